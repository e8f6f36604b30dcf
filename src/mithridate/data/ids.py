"""How the user would find each example: names that are made when they are asked for, since there may be millions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt

Numbers = range | npt.NDArray[np.int64]


class Ids(Sequence[str]):
    """A name for each example: a function of a number.

    It equals any sequence of the same names, and parts of it are made as with arrays.

    Args:
        name: what an example is called, by its number.
        numbers: of the examples, in their order.

    >>> ids = Ids("line {}".format, range(2, 6))
    >>> ids[0], list(ids[1:3]), list(ids[np.array([True, False, False, True])]), ids[2:] == ("line 4", "line 5")
    ('line 2', ['line 3', 'line 4'], ['line 2', 'line 5'], True)
    """

    __slots__ = ("_name", "_numbers")

    def __init__(self, name: Callable[[int], str], numbers: Numbers) -> None:
        self._name, self._numbers = name, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, chosen: int | np.integer[Any]) -> str: ...
    @overload
    def __getitem__(self, chosen: slice | npt.NDArray[Any]) -> Ids: ...
    def __getitem__(self, chosen: int | np.integer[Any] | slice | npt.NDArray[Any]) -> str | Ids:
        if isinstance(chosen, slice):
            return Ids(self._name, self._numbers[chosen])
        if isinstance(chosen, np.ndarray):
            return Ids(self._name, np.asarray(self._numbers, dtype=np.int64)[chosen])
        return self._name(int(self._numbers[int(chosen)]))

    def __iter__(self) -> Iterator[str]:
        return (self._name(int(number)) for number in self._numbers)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ids | tuple | list):
            return NotImplemented
        return len(self) == len(other) and all(one == two for one, two in zip(self, other, strict=True))  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:3]))
        return f"Ids({shown}{', ...' if len(self) > 3 else ''})"


def as_ids(names: Sequence[str]) -> Ids:
    """Names that are there already."""
    return names if isinstance(names, Ids) else Ids(names.__getitem__, range(len(names)))


def joined(one: Sequence[str], more: Sequence[str], what: str) -> Ids:
    """Names of examples with others behind them, which are called `what`.

    >>> list(joined(("line 2",), ("line 2", "line 3"), "trusted"))
    ['line 2', 'trusted line 2', 'trusted line 3']
    """
    return Ids(_Joined(one, more, what), range(len(one) + len(more)))


@dataclass(frozen=True)
class _Joined:
    one: Sequence[str]
    more: Sequence[str]
    what: str

    def __call__(self, number: int) -> str:
        behind = number - len(self.one)
        return self.one[number] if behind < 0 else f"{self.what} {self.more[behind]}"
