"""Arrays that may be larger than memory, a piece at a time."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate._io.scratch import in_memory_bytes, scratch

Array = npt.NDArray[Any]

# How much is looked at in one go. No result depends on it.
_PIECE_BYTES = 1 << 25


def pieces(x: Array) -> Iterator[Array]:
    """Some entries at a time, in order; the pages of a mapped array are let go behind them."""
    step = max(1, _PIECE_BYTES // _entry_bytes(x))
    for start in range(0, len(x), step):
        yield x[start : start + step]
        let_go(x)


def taken(x: Array, chosen: npt.NDArray[Any]) -> Array:
    """The entries that a mask or numbers choose: in memory, or in a scratch array where they are many.

    >>> taken(np.arange(6).reshape(3, 2), np.array([True, False, True])).tolist()
    [[0, 1], [4, 5]]
    """
    places = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
    if len(places) * _entry_bytes(x) <= in_memory_bytes():
        return np.asarray(x[places])
    out = scratch((len(places), *x.shape[1:]), x.dtype)
    step = max(1, _PIECE_BYTES // _entry_bytes(x))
    for start in range(0, len(places), step):
        out[start : start + step] = x[places[start : start + step]]
        let_go(x)
        let_go(out)
    return out


def joined(one: Array, more: Array) -> Array:
    """Entries with others behind them, in a type that holds both: in memory, or in a scratch array.

    >>> joined(np.array([[1]]), np.array([[0.5]])).tolist()
    [[1.0], [0.5]]
    """
    out = scratch((len(one) + len(more), *one.shape[1:]), np.result_type(one.dtype, more.dtype))
    start = 0
    for x in (one, more):
        for some in pieces(x):
            out[start : start + len(some)] = some
            start += len(some)
            let_go(out)
    return out


def made(x: Array, make: Callable[[Array], Array]) -> Array:
    """What `make` makes of the entries, each by itself and of the type of `x`: in memory, or in a scratch array.

    >>> made(np.arange(6).reshape(3, 2), lambda some: some[:, ::-1]).tolist()
    [[1, 0], [3, 2], [5, 4]]
    """
    out = scratch((len(x), *make(x[:1]).shape[1:]), x.dtype)
    start = 0
    for some in pieces(x):
        out[start : start + len(some)] = make(some)
        start += len(some)
        let_go(out)
    return out


def let_go(x: Array) -> None:
    """Give back the memory that holds pages of a mapped array; they are read again where they are needed.

    They would be given back anyway before memory runs out, but until then they count as this program's.
    """
    base: Any = x
    while isinstance(base, np.ndarray) and not isinstance(base.base, mmap.mmap):
        base = base.base
    # Pages of a private mapping (mode c) would be lost.
    if isinstance(base, np.memmap) and base.mode in ("r", "r+") and hasattr(mmap, "MADV_DONTNEED"):
        base.base.madvise(mmap.MADV_DONTNEED)  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]


def _entry_bytes(x: Array) -> int:
    return max(1, math.prod(x.shape[1:]) * x.dtype.itemsize)
