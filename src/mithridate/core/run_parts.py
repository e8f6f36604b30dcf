"""Parts of a run: which of its instances, as pairs of numbers."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence
from typing import Any

from mithridate._text import shown
from mithridate.errors import ConfigError

# Instances of one run, from the first to before the second number of every pair; sorted, with gaps between the pairs.
InstanceRanges = tuple[tuple[int, int], ...]

# Whole numbers in files stay below this, so that every program reads them alike.
LARGEST = 2**53
# A run whose parts are not listed, however many instances it has.
WHOLE: InstanceRanges = ((0, LARGEST),)


def checked_parts(run: str, parts: Any) -> InstanceRanges:
    """Pairs of instances, sorted and joined.

    Raises:
        ConfigError: they are no such pairs, or name an instance twice.
    """
    try:
        pairs = sorted((whole_number(first), whole_number(stop)) for first, stop in parts)
        fits = bool(pairs) and all(0 <= first < stop <= LARGEST for first, stop in pairs)
    except (TypeError, ValueError):
        fits, pairs = False, []
    if not fits:  # Without the values, which may be of any size.
        raise ConfigError(
            f"Expected the shards of the run {shown(run)} as pairs (first, stop) of whole numbers from 0 on, "
            "first below stop, and at least one pair."
        )
    twice = overlap(pairs)
    if twice is not None:
        raise ConfigError(
            f"The shards of the run {shown(run)} name {instances_in_words(*twice)} twice; name them once."
        )
    return joined(pairs)


def whole_number(value: Any) -> int:
    """A whole number, of whatever type that is.

    Raises:
        TypeError: it is none.
    """
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def overlap(pairs: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """The first instances that two of the sorted pairs share."""
    for (_, end), (first, stop) in itertools.pairwise(pairs):
        if first < end:
            return first, min(end, stop)
    return None


def joined(pairs: Iterable[tuple[int, int]]) -> InstanceRanges:
    """Sorted disjoint pairs, of which those that touch become one.

    >>> joined([(0, 2), (2, 5), (7, 8)])
    ((0, 5), (7, 8))
    """
    result: list[tuple[int, int]] = []
    for first, stop in pairs:
        if result and result[-1][1] == first:
            first = result.pop()[0]
        result.append((first, stop))
    return tuple(result)


def size_of(parts: InstanceRanges) -> int:
    """Their number of instances."""
    return sum(stop - first for first, stop in parts)


def instances_in_words(first: int, stop: int) -> str:
    """Instances from `first` to before `stop`."""
    return f"the instances {first} to {stop - 1}" if stop - first > 1 else f"the instance {first}"
