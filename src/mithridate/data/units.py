"""Which unit every example belongs to, where an attacker controls more than one example at a time.

Whoever controls a unit controls how many examples it has. So no constant may follow the number of examples: units are
counted instead, and of a unit with very many examples a declared number enters, chosen by their own hashes.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate._text import listed, shown
from mithridate.core.provenance import is_hash
from mithridate.core.units import Unit
from mithridate.data import frames
from mithridate.data.frames import Cells, Place
from mithridate.errors import ConfigError

IntArray = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

# A constant that everybody knows: parts need to be fixed, not secret. Changing it changes all parts.
_KEY = b"mithridate unit name 1"
_BYTES = 32
_HASHED = 1 << 16  # lines of text that are held at a time
# A whole number as tables of numbers with decimals write it.
_WHOLE = re.compile(r"([+-]?\d+)\.0+", re.ASCII)
_EXACT = 2**53


@dataclass(frozen=True, eq=False)
class Units:
    """The units of some examples.

    Attributes:
        name: what one of them is called, such as `vendor`.
        names: what each of them is called, in the order of their first examples, each once.
        of_example: the number of the unit of every example.
    """

    name: str
    names: tuple[str, ...]
    of_example: IntArray

    @classmethod
    def of(cls, names: Iterable[Any], name: str = "unit", what: str = "example") -> Units:
        """From the name of the unit of every example: texts, or whole numbers, which count as their digits.

        Guarantee: what a name becomes is a function of that name alone. Spaces around it do not count; capitals do.

        Args:
            names: one for every example.
            name: what one unit is called.
            what: an example is called in an error, such as `row`; its number counts from 0.

        Raises:
            ConfigError: a name is missing, or is neither text nor a whole number.

        >>> units = Units.of(["b", "a", "b "], "vendor")
        >>> units.names, units.of_example.tolist(), units.unit
        (('b', 'a'), [0, 1, 0], Unit(name='vendor', count=2))
        """
        cells, gathered = _listed(names), GatheredUnits(name)
        place: Place = lambda row: f"{what} {row} (from 0)"  # noqa: E731
        for row, each in enumerate(cells.tolist()):
            if type(each) not in (str, int, float):
                _text(each, name, place, row)  # which refuses it, unless it is a date
        return gathered.units(gathered.add(cells, place))

    def __post_init__(self) -> None:
        Unit(self.name, 1)  # checks the name

    def __len__(self) -> int:
        return len(self.of_example)

    def __repr__(self) -> str:
        return f"Units({self.unit.counted(len(self.names))}: {listed(self.names)})"

    @property
    def unit(self) -> Unit:
        """Name and number, as votes and certificates have them."""
        return Unit(self.name, len(self.names))

    def part(self, chosen: npt.NDArray[Any] | slice) -> Units:
        """Those of some of the examples; units without any are left out."""
        left = self.of_example[chosen]
        present, first = np.unique(left, return_index=True)
        order = present[np.argsort(first)]
        numbers = np.empty(len(self.names), dtype=np.int64)
        numbers[order] = np.arange(len(order))
        return Units(self.name, tuple(self.names[each] for each in order.tolist()), numbers[left])

    @cached_property
    def hashes(self) -> Hashes:
        """A hash of the name of every unit, 256 bits as units x 4; see `name_hash`."""
        digests = b"".join(map(name_hash, self.names))
        return np.frombuffer(digests, dtype="<u8").reshape(len(self.names), -1).astype(np.uint64, copy=False)

    @cached_property
    def starts(self) -> IntArray:
        """Where the examples of every unit start, and at last their number; they must lie side by side, in order."""
        if (np.diff(self.of_example) < 0).any():
            raise ValueError("the examples of a unit do not lie side by side")
        return np.searchsorted(self.of_example, np.arange(len(self.names) + 1))

    @property
    def sizes(self) -> IntArray:
        """How many examples each of them has."""
        return np.bincount(self.of_example, minlength=len(self.names))

    def fingerprint(self) -> str:
        """SHA-256, as hexadecimal digits, over a line for every example: its unit's name, as a Python string."""
        lines, digest = [f"{name!a}\n".encode() for name in self.names], hashlib.sha256()
        for start in range(0, len(self), _HASHED):
            digest.update(b"".join(lines[number] for number in self.of_example[start : start + _HASHED].tolist()))
        return digest.hexdigest()


class GatheredUnits:
    """Names as they come, piece by piece: every different one is kept once.

    Args:
        name: what one unit is called.
    """

    def __init__(self, name: str) -> None:
        self._name, self._numbers = name, dict[str, int]()

    def add(self, cells: Cells, place: Place) -> IntArray:
        """The names of the next examples, each as the number of its place among the different ones.

        Args:
            cells: the names.
            place: how an example is called in an error.

        Raises:
            ConfigError: a name is missing, or is neither text nor a whole number.
        """
        if cells.dtype != object:
            values, which = frames.distinct(cells)
            rows = frames.first_rows(which)
            return self._added(values.tolist(), lambda at: place(rows[at]))[which]
        return self._added(cells.tolist(), place)

    def _added(self, values: list[Any], place: Place) -> IntArray:
        # What is the name of a unit already is that one: names are written in one way.
        numbers = np.fromiter(map(self._numbers.get, values, itertools.repeat(-1)), np.int64, len(values))
        for row in np.flatnonzero(numbers < 0).tolist():
            name = _text(values[row], self._name, place, row)
            numbers[row] = self._numbers.setdefault(name, len(self._numbers))
        return numbers

    def units(self, of_example: IntArray) -> Units:
        """The units of examples that have these numbers."""
        return Units(self._name, tuple(self._numbers), of_example)

    @property
    def state(self) -> list[str]:
        """The names so far, as plain JSON values."""
        return list(self._numbers)

    def restore(self, names: Iterable[str]) -> None:
        """Continue with the names that were found before."""
        self._numbers = {name: number for number, name in enumerate(names)}


def name_hash(name: str) -> bytes:
    """A hash of a name, of 256 bits; a name that is such a hash already, in 64 small hexadecimal digits, is its own.

    Which function of the name this is does not matter to any certificate: whoever has a name has one unit.
    """
    if is_hash(name):
        return bytes.fromhex(name)
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=_BYTES, key=_KEY).digest()


def joined(one: Units, more: Units) -> Units:
    """Units of examples with others behind them; those of one name are one unit."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys((*one.names, *more.names)))}
    renumbered = np.array([numbers[name] for name in more.names], dtype=np.int64)
    return Units(one.name, tuple(numbers), np.concatenate([one.of_example, renumbered[more.of_example]]))


def _listed(names: Any) -> Cells:
    """Names one by one, each of its own type: in one array of numpy, what is missing would become a text."""
    if isinstance(names, list | tuple):
        values = [each.item() if isinstance(each, np.generic) else each for each in names]
    elif isinstance(names, np.ndarray) or not callable(getattr(names, "to_list", None)):
        array = frames.as_array(names, "The list of units")
        if array.ndim != 1:
            raise ConfigError(f"Expected the units as one name for every example, got shape {array.shape}.")
        values = (array.astype("datetime64[us]") if array.dtype.kind == "M" else array).tolist()
    else:
        values = names.to_list()  # a series, of pandas or polars
    cells = np.empty(len(values), dtype=object)
    cells[:] = values
    return cells


def _text(name: Any, unit: str, place: Place, row: int) -> str:
    """A name as it counts."""
    if isinstance(name, str) and name.strip():
        word = name.strip()
        whole = _WHOLE.fullmatch(word)
        return word if whole is None else whole[1]
    if isinstance(name, float) and abs(name) > _EXACT and math.isfinite(name):
        raise ConfigError(
            f"The {unit} of {place(row)} is a number beyond 2^53, which cannot be told from its neighbours; write the "
            f"{unit} as text."
        )
    if isinstance(name, float) and math.isfinite(name) and name == int(name):
        return str(int(name))  # whole numbers of a column with a missing cell come as floats
    if isinstance(name, int) and not isinstance(name, bool):
        return str(name)
    if isinstance(name, date) and name == name:  # a day, or a time; that of pandas which is missing equals nothing
        return name.isoformat()
    is_nan = isinstance(name, float) and math.isnan(name)
    if name is None or is_nan or isinstance(name, str | date) or type(name).__name__ == "NAType":
        raise ConfigError(
            f"The {unit} of {place(row)} is missing; an example without one has no bounded influence. Name it, or "
            "leave the example out."
        )
    raise ConfigError(
        f"The {unit} of {place(row)} is {shown(name)}, neither text nor a whole number; write it as text."
    )
