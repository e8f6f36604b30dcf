"""Columns of a table: what is declared of each, and how its cells become numbers by that and nothing else.

Every column becomes a block of numbers with norm at most about one, so that no column drowns another when the whole row
is scaled to norm one (`mithridate.features.UnitNorm`). Nothing here is computed from more than one row: what is
remembered between rows is the hash of a value, which is the same whoever asks for it.

A kind of column is one class; what reads, writes and encodes declarations finds it in `COLUMNS`.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mithridate import _validate
from mithridate._text import listed
from mithridate.data import frames
from mithridate.data.frames import Cells, Frame, Place
from mithridate.errors import ConfigError
from mithridate.features import HashedNgrams

Matrix = npt.NDArray[np.float32]
Notes = tuple[str, ...]
Mask = npt.NDArray[np.bool_]

_MOST_BINS = 1_000
_MOST_PLACES = 1 << 20
_KEY = b"mithridate category"
# A category has one signed place in each of this many equal parts of its block.
_PARTS = 4
# The line and the hats share the norm of a block.
_HALF = math.sqrt(0.5)


@dataclass(frozen=True)
class Column(ABC):
    """A column of a table as it is declared: one of `Number`, `Category` and `Text`.

    Attributes:
        kind: what files call this kind of column.
        comment: what stands above such a column in a project file.
        name: of the column.
    """

    kind: ClassVar[str]
    comment: ClassVar[str]

    name: str

    def __post_init__(self) -> None:
        check_name("column", self.name)

    @property
    @abstractmethod
    def width(self) -> int:
        """How many numbers a cell becomes; the last says whether it is missing."""

    @abstractmethod
    def _fill(self, block: Matrix, cells: Cells, place: Place, notes: list[str]) -> Mask:
        """Write what the cells become, but for the last number of each, and tell which of them are missing.

        Args:
            block: zeros [rows, `width`], to be written to.
            cells: of the column.
            place: how a row is called in an error.
            notes: for the user, to be added to.

        Raises:
            ConfigError: a cell is not what was declared.
        """


@dataclass(frozen=True)
class Number(Column):
    """A column of numbers with a range that is known beforehand.

    A value is clipped to the range and becomes its position on the line from -1 to 1 and `bins` hat functions, all
    times the square root of 1/2. The knots divide the range evenly; the hat of a knot is 1 there, falls to 0 at its
    neighbours, and loses its mean over the knots, 1 / `bins`. So a linear model is a curve with a bend at each knot.
    For a missing value all this is 0, and a place of its own is 1.

    Args:
        name: of the column.
        low: lower end of the range, from knowledge and not from the training data.
        high: upper end, above `low`.
        bins: number of hat functions, 2 to 1,000.
    """

    kind: ClassVar[str] = "number"
    comment: ClassVar[str] = (
        "# low, high: the range that is possible by units, physics or a code book; what lies outside is clipped."
    )

    low: float
    high: float
    bins: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = (_finite(f"{end} of the column {self.name!r}", getattr(self, end)) for end in ("low", "high"))
        if not (low < high and math.isfinite(high - low)):
            raise ConfigError(
                f"Expected low below high for the column {self.name!r}, got {self.low!r} and {self.high!r}."
            )
        check_whole(2, _MOST_BINS, f"bins of the column {self.name!r}", self.bins)
        set_fields(self, low=low, high=high)

    @property
    def width(self) -> int:
        """The position on the line, the hats, and whether the value is missing."""
        return self.bins + 2

    def _fill(self, block: Matrix, cells: Cells, place: Place, notes: list[str]) -> Mask:
        values = frames.numbers(cells, self.name, place)
        if 2 * np.count_nonzero((values < self.low) | (values > self.high)) > len(values):
            notes.append(
                f"More than half of the values of {self.name!r} lie outside {self.low:g} to {self.high:g} and were "
                "clipped; check its unit."
            )
        missing = np.isnan(values)
        clipped = np.clip(np.where(missing, self.low, values), self.low, self.high)
        share = (clipped - self.low) / (self.high - self.low)
        position = np.clip(share * (self.bins - 1), 0, self.bins - 1)  # in knots
        left = np.minimum(position.astype(np.int64), self.bins - 2)
        weight = position - left
        rows = np.flatnonzero(~missing)
        block[rows, 0] = _HALF * (2 * share[rows] - 1)
        block[rows, 1:-1] = -_HALF / self.bins
        block[rows, 1 + left[rows]] = _HALF * (1 - weight[rows] - 1 / self.bins)
        block[rows, 2 + left[rows]] = _HALF * (weight[rows] - 1 / self.bins)
        return missing


@dataclass(frozen=True)
class Category(Column):
    """A column of words or codes, hashed: no list of them is learnt or needed.

    Every value has one signed place in each of four equal parts of the block, given by the keyed BLAKE2b hash of the
    value; so two values are rarely alike, and known and new ones are treated the same. Missing values have a place of
    their own.

    Args:
        name: of the column.
        buckets: places to share, a multiple of 4; more of them make different values more different.
    """

    kind: ClassVar[str] = "category"
    comment: ClassVar[str] = (
        "# Hashed: the values need not be listed. More buckets for columns with very many different values."
    )

    buckets: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(_PARTS, _MOST_PLACES, f"buckets of the column {self.name!r}", self.buckets)
        if self.buckets % _PARTS:
            raise ConfigError(
                f"Expected buckets of the column {self.name!r} as a multiple of {_PARTS}, got {self.buckets}."
            )

    @property
    def width(self) -> int:
        """The buckets, and whether the value is missing."""
        return self.buckets + 1

    def _fill(self, block: Matrix, cells: Cells, place: Place, notes: list[str]) -> Mask:
        words = frames.texts(cells)
        missing = np.array([word is None for word in words], dtype=bool)
        places = _Places(self.buckets // _PARTS)
        found = [places[word] for word in words if word is not None]
        if found:
            signed = np.array(found)
            block[np.flatnonzero(~missing)[:, None], signed[:, :_PARTS]] = signed[:, _PARTS:] / math.sqrt(_PARTS)
        return missing


class _Places(dict[str, tuple[int, ...]]):
    """Places and then signs of each value, hashed when first asked for; what it remembers changes no result."""

    def __init__(self, part: int) -> None:
        super().__init__()
        self.part = part

    def __missing__(self, word: str) -> tuple[int, ...]:
        # Half a surrogate pair is no character, but it can stand in a string; it is hashed as it is.
        data = word.encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(data, digest_size=8 * _PARTS, key=_KEY).digest()
        hashes = [int.from_bytes(digest[8 * i : 8 * i + 8], "little") for i in range(_PARTS)]
        places = [i * self.part + number % (1 << 63) % self.part for i, number in enumerate(hashes)]
        self[word] = found = (*places, *[-1 if number >> 63 else 1 for number in hashes])
        return found


@dataclass(frozen=True)
class Text(Column):
    """A column of free text: hashed n-grams as in `mithridate.features.HashedNgrams`, and a place for missing text.

    Args:
        name: of the column.
        dimension: places that the n-grams share.
    """

    kind: ClassVar[str] = "text"
    comment: ClassVar[str] = (
        "# Free text, hashed: nothing is learnt from it. A larger dimension for long texts; alone, features decide."
    )

    dimension: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(2, _MOST_PLACES, f"dimension of the column {self.name!r}", self.dimension)

    @property
    def width(self) -> int:
        """The places, and whether the text is missing."""
        return self.dimension + 1

    def _fill(self, block: Matrix, cells: Cells, place: Place, notes: list[str]) -> Mask:
        words = frames.texts(cells)
        block[:, :-1] = HashedNgrams(dimension=self.dimension).transform([word or "" for word in words])
        return np.array([word is None for word in words], dtype=bool)


COLUMNS: dict[str, type[Column]] = {kind.kind: kind for kind in (Number, Category, Text)}


def encode(
    frame: Frame, columns: Sequence[Column], label: str | None, *, training: bool = False
) -> tuple[Matrix, tuple[str, ...]]:
    """The rows of a table as numbers.

    Guarantee:
        Each row of the result is a function of that row and the declaration alone, and equal bit for bit whether it is
        computed alone or with others.

    Args:
        frame: the table.
        columns: what is declared of it, in this order.
        label: name of the column with the labels, which is no input.
        training: whether this is training data, where a column without any value is a mistake.

    Returns:
        float32 array [rows, sum of the widths], and notes for the user.

    Raises:
        ConfigError: a declared column is missing, or holds what it should not.
    """
    cells = {column.name: frame.cells(column.name) for column in columns}
    width = sum(column.width for column in columns)
    try:
        out = np.zeros((frame.rows, width), dtype=np.float32)
    except (MemoryError, ValueError) as error:
        raise ConfigError(
            f"{frame.rows:,} rows of {width:,} numbers do not fit into memory; declare fewer buckets or smaller "
            "dimensions."
        ) from error
    notes = list(ignored(frame, columns, label))
    start = 0
    for column in columns:
        block = out[:, start : start + column.width]
        missing = column._fill(block, cells[column.name], frame.place, notes)
        block[missing, -1] = 1.0
        if training and missing.all():
            raise ConfigError(f"The column {column.name!r} of {frame.origin} has no values at all; do not declare it.")
        start += column.width
    return out, tuple(notes)


def ignored(frame: Frame, columns: Sequence[Column], label: str | None) -> Notes:
    """A note for the user where columns are not declared."""
    known = {label, *(column.name for column in columns)}
    unused = [name for name in frame.names if name not in known]
    return (f"Columns that are not declared were ignored: {listed(unused)}.",) if unused else ()


# --- checks, also of other declarations -----------------------------------------------------------------------------


def check_name(what: str, name: Any) -> None:
    """Require a name that can be shown and written to a file."""
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"Expected the name of a {what} as text, got {name!r}.")
    if any(0xD800 <= ord(character) <= 0xDFFF for character in name):
        raise ConfigError(f"The name {name!r} of a {what} is not valid Unicode; rename it.")


def check_whole(low: int, high: int, what: str, value: Any) -> None:
    """Require a whole number in a range."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"Expected {what} to be a whole number from {low} to {high:,}, got {value!r}.")


def set_fields(made: Any, **values: Any) -> None:
    """Write fields of a frozen value while it is made."""
    for name, value in values.items():
        object.__setattr__(made, name, value)


def _finite(what: str, value: Any) -> float:
    if isinstance(value, int) and abs(value) > 1 << 1000:
        raise ConfigError(f"The {what} is too large; numbers are kept in double precision.")
    named: dict[str, Any] = {what: value}
    _validate.number_in(-math.inf, math.inf, **named)
    return float(value)
