"""The Gaussian noise of private training: a function of an instance's key, the step and the place of a parameter.

Counters take the place of a state, so that no draw depends on what else is in flight or on what was drawn before, and all
devices draw the same numbers, up to rounding: `kernels.triton` on a GPU, compiled code (`kernels.cpu`) or numpy on a CPU.

Guarantee: the words that numbers are made of are independent and uniform, as far as Philox 4x32-10 is a random function of
its counter, which is what it was made and tested for (it passes all of TestU01's BigCrush). The numbers reach beyond nine
standard deviations; those of `torch.randn` on a CPU end at 5.8, which a run of a billion draws would notice.

References:
    Salmon, Moraes, Dror, Shaw 2011, Parallel random numbers: as easy as 1, 2, 3 (Philox); Box, Muller 1958.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mithridate.training.kernels import cpu

_MASK = np.uint64(2**32 - 1)
_HALF = np.uint64(32)


def add_noise(sums: Tensor, keys: Sequence[int], step: int, scale: float) -> None:
    """Add `scale` times standard normals to sums, models x places, in place and in their precision.

    Args:
        sums: in single or double precision.
        keys: for each model, 128 bits of which it uses the lower 96; from `Seeds.key`.
        step: from 0 on, below 2^32.
        scale: standard deviation of the noise.
    """
    library = cpu.library() if sums.device.type == "cpu" else None
    if library is not None:
        library.add_normals(sums, keys, step, scale)
        return
    for row, key in zip(sums, keys, strict=True):
        row.add_(torch.from_numpy(normals(key, step, sums.shape[1])).to(sums), alpha=scale)


def normals(key: int, step: int, size: int) -> npt.NDArray[np.float32]:
    """The standard normals of one model in one step: two from each counter, by the method of Box and Muller.

    64 bits give the radius: with 32 it would end at 6.7 standard deviations.
    """
    one, two, three = _philox(key, step, (size + 1) // 2)
    uniform = one.astype(np.float32) * np.float32(2.0**-32)
    uniform += (two.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-64)
    radius = np.sqrt(np.float32(-2.0) * np.log(np.minimum(uniform, np.float32(1.0))))
    angle = three.astype(np.float32) * np.float32(2.0 * math.pi / 2**32)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).ravel()[:size]


def _philox(key: int, step: int, counters: int) -> tuple[npt.NDArray[np.uint64], ...]:
    """The first three words of Philox 4x32-10 for the counters (0, step, upper key, 0), (1, step, upper key, 0), ..."""
    word = 2**32 - 1
    low, high = key & word, key >> 32 & word
    a = np.arange(counters, dtype=np.uint64)
    b, c, d = (np.full(counters, value, np.uint64) for value in (step, key >> 64 & word, 0))
    for turn in range(10):
        left, right = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a = right >> _HALF ^ b ^ np.uint64((low + turn * 0x9E3779B9) & word)
        c = left >> _HALF ^ d ^ np.uint64((high + turn * 0xBB67AE85) & word)
        b, d = right & _MASK, left & _MASK
    return a, b, c
