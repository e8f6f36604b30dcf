"""Which unit every example belongs to, where an attacker controls more than one example at a time.

Whoever controls a unit controls how many examples it has. So no constant may follow the number of examples: units are
counted instead, and of a unit with very many examples a declared number enters, chosen by their own hashes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate._text import listed, shown
from mithridate.core.provenance import is_hash
from mithridate.core.units import Unit
from mithridate.errors import ConfigError

IntArray = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

# A constant that everybody knows: parts need to be fixed, not secret. Changing it changes all parts.
_KEY = b"mithridate unit name 1"
_BYTES = 32


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

        Args:
            names: one for every example.
            name: what one unit is called.
            what: an example is called in an error, such as `row`; its number counts from 0.

        Raises:
            ConfigError: a name is missing, or is neither text nor a whole number.

        >>> units = Units.of(["b", "a", "b"], "vendor")
        >>> units.names, units.of_example.tolist(), units.unit
        (('b', 'a'), [0, 1, 0], Unit(name='vendor', count=2))
        """
        texts = [_text(each, row, name, what) for row, each in enumerate(_listed(names))]
        numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        return cls(name, tuple(numbers), np.array([numbers[text] for text in texts], dtype=np.int64))

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
        lines = (f"{self.names[number]!a}\n" for number in self.of_example.tolist())
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def name_hash(name: str) -> bytes:
    """A hash of a name, of 256 bits; a name that is such a hash already, in 64 small hexadecimal digits, is its own.

    Which function of the name this is does not matter to any certificate: whoever has a name has one unit.
    """
    if is_hash(name):
        return bytes.fromhex(name)
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=_BYTES, key=_KEY).digest()


def joined(one: Units, more: Units) -> Units:
    """Units of examples with others behind them; those of one name are one unit."""
    names = [(*one.names, *more.names)[number] for number in (*one.of_example, *(more.of_example + len(one.names)))]
    return replace(Units.of(names, one.name), name=one.name)


def _listed(names: Iterable[Any]) -> list[Any]:
    array = np.asarray(names) if not isinstance(names, np.ndarray) else names
    if array.ndim != 1:
        raise ConfigError(f"Expected the units as one name for every example, got shape {array.shape}.")
    return array.tolist()


def _text(name: Any, row: int, unit: str, what: str) -> str:
    if isinstance(name, str) and name.strip():
        return name
    if isinstance(name, float) and math.isfinite(name) and name == int(name):
        return str(int(name))  # whole numbers of a column with a missing cell come as floats
    if isinstance(name, int) and not isinstance(name, bool):
        return str(name)
    if isinstance(name, date):  # a day, or a time
        return name.isoformat()
    missing = name is None or name == "" or (isinstance(name, float) and math.isnan(name)) or isinstance(name, str)
    said = "is missing" if missing else f"is {shown(name)}, neither text nor a whole number"
    raise ConfigError(
        f"The {unit} of {what} {row} (from 0) {said}; an example without one has no bounded influence. Name it, or "
        "leave the example out."
    )
