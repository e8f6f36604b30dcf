"""What every accountant answers: does the label still win at this radius?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mithridate.core.mechanism import Mechanism, Threat
from mithridate.core.rule import Rule

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IndexArray = npt.NDArray[np.intp]


@dataclass(frozen=True)
class DistinctValues:
    """One number per test point, stored as distinct values and indices into them.

    Votes take few distinct values, so a curve is evaluated a thousand times for a million points.
    """

    values: FloatArray
    index: IndexArray

    @classmethod
    def of(cls, numbers: FloatArray) -> DistinctValues:
        """Factor an array into distinct values and indices."""
        values, index = np.unique(numbers, return_inverse=True)
        return cls(values, index)

    def take(self, chosen: IndexArray) -> DistinctValues:
        """The same numbers for some of the points."""
        return DistinctValues(self.values, self.index[chosen])

    def map(self, function: Callable[[FloatArray], FloatArray]) -> FloatArray:
        """`function` at every point, by whichever way needs fewer evaluations."""
        if len(self.values) <= len(self.index):
            return function(self.values)[self.index]
        return function(self.values[self.index])


@dataclass(frozen=True)
class Margins:
    """How far ahead the top label of each point is, in the safe direction throughout.

    Attributes:
        top: lower bounds on the score of the top label.
        miss: upper bounds on one minus that score.
        rival: upper bounds on the largest score of any other label; shares its distinct values with `miss`.
    """

    top: DistinctValues
    miss: DistinctValues
    rival: DistinctValues

    @classmethod
    def of(cls, top: FloatArray, miss: FloatArray, rival: FloatArray) -> Margins:
        """Margins from plain arrays."""
        shared = DistinctValues.of(np.concatenate([miss, rival]))
        everyone = np.arange(len(miss))
        return cls(DistinctValues.of(top), shared.take(everyone), shared.take(everyone + len(miss)))

    def __len__(self) -> int:
        return len(self.top.index)

    def take(self, chosen: IndexArray) -> Margins:
        """The margins of some of the points."""
        return Margins(self.top.take(chosen), self.miss.take(chosen), self.rival.take(chosen))

    def sum_of(self, function: Callable[[FloatArray], FloatArray]) -> FloatArray:
        """`function(miss) + function(rival)` at every point."""
        values, miss, rival = self.miss.values, self.miss.index, self.rival.index
        if len(values) <= 2 * len(miss):
            results = function(values)
            return results[miss] + results[rival]
        results = function(values[np.concatenate([miss, rival])])
        return results[: len(miss)] + results[len(miss) :]


class Accountant(Protocol):
    """Turns a radius into a yes or no for every point."""

    def holds(self, radius: int, margins: Margins) -> BoolArray:
        """Whether the top label of each point stays on top for every D' within `radius`.

        A yes is a guarantee; a no may only mean that this accountant cannot show it.
        """
        ...

    def close(self) -> None:
        """Keep what was computed for the next time."""
        ...

    @property
    def error_budget(self) -> dict[str, float]:
        """The largest numerical errors that were added to any curve in the safe direction."""
        ...


class Method(Rule):
    """A rule on samples: bounds on their counts, and an accountant that says how far these reach."""

    def accountant(self, mechanism: Mechanism, threat: Threat) -> Accountant:
        """The accountant of this method for one mechanism and one threat."""
        raise NotImplementedError
