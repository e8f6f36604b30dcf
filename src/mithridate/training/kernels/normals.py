"""The Gaussian noise of private training: a function of an instance's key, the step and the place of a parameter.

Counters take the place of a state, so that no draw depends on what else is in flight or on what was drawn before, and
all devices draw the same numbers, up to rounding: `triton` on a GPU; on a CPU `cpu` by compiled code, or numpy here.

Guarantee: the words that numbers are made of are independent and uniform, as far as Philox 4x32-10 is a random function
of its counter, which is what it was made and tested for (it passes all of TestU01's BigCrush). The numbers reach beyond
nine standard deviations; those of `torch.randn` on a CPU end at 5.8, which a run of a billion draws would notice.

References:
    Salmon, Moraes, Dror, Shaw 2011, Parallel random numbers: as easy as 1, 2, 3 (Philox); Box, Muller 1958.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

_WORD = 2**32 - 1


def normals(key: int, step: int, size: int) -> npt.NDArray[np.float32]:
    """The standard normals of one model in one step: two from each counter, by the method of Box and Muller.

    64 bits give the radius: with 32 it would end at 6.7 standard deviations.

    Args:
        key: the lower 96 bits of what `Seeds.key` gives.
        step: from 0 on, below 2^32.
        size: number of parameters.
    """
    one, two, three = (word.astype(np.float32) for word in _philox(key, step, (size + 1) // 2))
    uniform = one * np.float32(2.0**-32) + (two + np.float32(0.5)) * np.float32(2.0**-64)
    radius = np.sqrt(np.float32(-2.0) * np.log(np.minimum(uniform, np.float32(1.0))))
    angle = three * np.float32(2.0 * math.pi / 2**32)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).ravel()[:size]


def _philox(key: int, step: int, counters: int) -> tuple[npt.NDArray[np.uint64], ...]:
    """The first three words of Philox 4x32-10 for the counters (0, step, upper key, 0), (1, step, upper key, 0), ..."""
    low, high, upper = (key >> shift & _WORD for shift in (0, 32, 64))
    half, mask = np.uint64(32), np.uint64(_WORD)
    a = np.arange(counters, dtype=np.uint64)
    b, c, d = (np.full(counters, value, np.uint64) for value in (step, upper, 0))
    for turn in range(10):
        left, right = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a = right >> half ^ b ^ np.uint64(low + turn * 0x9E3779B9 & _WORD)
        c = left >> half ^ d ^ np.uint64(high + turn * 0xBB67AE85 & _WORD)
        b, d = right & mask, left & mask
    return a, b, c
