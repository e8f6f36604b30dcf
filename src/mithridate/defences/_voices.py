"""What units say on an input: each has one voice, that of its example that is nearest, however many it has.

The nearest example of a unit is the one with the largest dot product, of equal ones that with the smallest rank (see
`ranks_of`). Both stand in one number, so that a maximum over the examples of the unit finds it:

    voice = dot product x 2^28 - rank,    with |dot product| <= 2^24 and 0 <= rank < 2^28.

Double precision holds it exactly, since it is at most 2^52 + 2^28; and so a maximum of maxima, over a unit that blocks
of examples cut, is that of the whole unit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mithridate.defences._whole_rows import FloatArray, IntArray

Ranks = npt.NDArray[np.uint32]
# Whole numbers in double precision.
Voices = npt.NDArray[np.float64]

MOST_EXAMPLES = 1 << 28
_DOT = float(MOST_EXAMPLES)


@dataclass(frozen=True, eq=False)
class UnitBounds:
    """The units of a block of examples.

    Attributes:
        starts: where in the block the examples of each of its units start.
        is_continued: whether the first unit has examples before the block.
        goes_on: whether the last one has more behind it.
    """

    starts: IntArray
    is_continued: bool
    goes_on: bool

    @classmethod
    def of(cls, part: slice, starts: IntArray) -> UnitBounds:
        """Of a slice of all examples, and where in all of them those of every unit start."""
        first = int(np.searchsorted(starts, part.start, side="right")) - 1
        behind = int(np.searchsorted(starts, part.stop))
        within = np.maximum(starts[first:behind] - part.start, 0)
        return cls(within, bool(starts[first] < part.start), bool(starts[behind] > part.stop))

    @property
    def whole(self) -> int:
        """How many units end here."""
        return len(self.starts) - self.goes_on


@dataclass(frozen=True, eq=False)
class UnitBlock:
    """The units of a block of examples, as they speak.

    Attributes:
        bounds: where they are.
        ranks: of the examples.
    """

    bounds: UnitBounds
    ranks: Voices

    @classmethod
    def of(cls, part: slice, starts: IntArray, ranks: Ranks) -> UnitBlock:
        """Of a slice of all examples."""
        return cls(UnitBounds.of(part, starts), ranks[part].astype(np.float64))

    def voices(self, dots: FloatArray, carried: Voices) -> Voices:
        """The voice on every input of every unit that ends in the block, inputs x units.

        Args:
            dots: products of inputs and examples; they are kept as they are.
            carried: by input, what a unit that the block before cut has said so far; what one that this block cuts has
                said is left there.
        """
        found = np.empty((len(dots), len(self.bounds.starts)))
        room = np.empty(dots.shape[1])
        # One input at a time: it stays in a fast cache.
        for of_input, said in zip(dots, found, strict=True):
            np.multiply(of_input, _DOT, out=room)
            np.subtract(room, self.ranks, out=room)
            np.maximum.reduceat(room, self.bounds.starts, out=said)
        if self.bounds.is_continued:
            np.maximum(found[:, 0], carried, out=found[:, 0])
        if self.bounds.goes_on:
            carried[:] = found[:, -1]
        return found[:, : self.bounds.whole]


def told_apart(voices: Voices) -> tuple[IntArray, IntArray]:
    """The dot products and the ranks of voices."""
    dots = np.ceil(voices / _DOT)  # a power of two, so this is exact
    return dots.astype(np.int64), (dots * _DOT - voices).astype(np.int64)


def at_least(dot: float) -> float:
    """What all voices are above whose dot product is at least this whole number, and no others."""
    return (dot - 1) * _DOT


def some_units(starts: IntArray, every: int, most: int) -> tuple[IntArray, IntArray] | None:
    """The examples of one in so many units, and where those of each start among them; None where there are too many."""
    chosen = slice(0, (len(starts) - 1) // every * every, every)
    first, sizes = starts[:-1][chosen], np.diff(starts)[chosen]
    if not 0 < sizes.sum() <= most:
        return None
    within = np.cumsum(sizes) - sizes
    return np.repeat(first - within, sizes) + np.arange(sizes.sum()), within
