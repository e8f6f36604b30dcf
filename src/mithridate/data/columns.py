"""Columns of a table: what is declared of each, and how its cells become numbers by that and nothing else.

Every column becomes a block of numbers with a norm of about one, so that no column drowns another when the whole row
is scaled to norm one (`mithridate.features.UnitNorm`). What has an order becomes a thermometer: places that are -1
below a value and 1 above it, so that dot products fall with the distance of two values, and a linear model can bend.
Nothing here is computed from more than one row: what is remembered between rows is what a value becomes, which is the
same whoever asks for it.

A kind of column is one class; what reads, writes and encodes declarations finds it in `COLUMNS`.
"""

from __future__ import annotations

import datetime
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mithridate import _validate
from mithridate._io.scratch import scratch
from mithridate._text import listed, shown
from mithridate.data import frames
from mithridate.data.frames import Cells, FloatArray, Frame, Place
from mithridate.errors import ArtifactError, ConfigError
from mithridate.features import HashedNgrams

Matrix = npt.NDArray[np.float32]
Notes = tuple[str, ...]
Mask = npt.NDArray[np.bool_]

_MOST_BINS = 1_000
# How much is made at a time, which is fastest where it fits into a cache. No result depends on it.
_BLOCK_BYTES = 1 << 22
_MOST_PLACES = 1 << 20
_KEY = b"mithridate category"
# A category has one signed place in each of this many equal parts of its block.
_PARTS = 4
# How much of the way from one end of a number to the other another category is: two that differ have a product of 0
# instead of `_CATEGORY` squared, the ends of a thermometer -1 instead of 1.
_CATEGORY = math.sqrt(0.5)
# On a logarithmic scale the first hundredth of the range takes 15% of the thermometer.
_LOG = 99.0
_SCALES = ("linear", "log")
_DECIMALS = (".", ",")
# The parts of a date: together they weigh more than one number and less than two.
_DATE_PART = math.sqrt(0.5)
_DATE_PLACES = 16
_WEEKDAY = 0.5


@dataclass(frozen=True)
class Column(ABC):
    """A column of a table as it is declared: one of `Number`, `Category`, `Ordered`, `Date` and `Text`.

    Attributes:
        kind: what files call this kind of column.
        comment: what stands above such a column in a project file.
        weight: norm of a block, which the last place has where the value is missing.
        name: of the column.
    """

    kind: ClassVar[str]
    comment: ClassVar[str]
    weight: ClassVar[float] = 1.0

    name: str

    def __post_init__(self) -> None:
        check_name("column", self.name)

    @property
    @abstractmethod
    def width(self) -> int:
        """How many numbers a cell becomes; the last says whether it is missing."""

    @property
    def range_in_words(self) -> str:
        """What values are clipped to, where they are."""
        return ""

    @abstractmethod
    def _fill(self, block: Matrix, cells: Cells, place: Place) -> tuple[Mask, int]:
        """Write what the cells become, but for the last number of each.

        Args:
            block: zeros [rows, `width`], to be written to.
            cells: of the column.
            place: how a row is called in an error.

        Returns:
            Which of the cells are missing, and how many were clipped.

        Raises:
            ConfigError: a cell is not what was declared.
        """

    @property
    @abstractmethod
    def least_square(self) -> float:
        """The smallest squared norm that the block of a cell can have, to rounding."""

    def highest(self, vectors: FloatArray) -> FloatArray:
        """The largest product of each vector [rows, `width`] with the block of any cell, to rounding, or more."""
        missing = self.weight * vectors[:, -1]
        return np.maximum(missing, self._highest_present(vectors[:, :-1]))

    @abstractmethod
    def _highest_present(self, vectors: FloatArray) -> FloatArray:
        """The same for cells that are not missing."""

    def in_words(self, block: FloatArray) -> str | None:
        """The cell that a block [`width`] was made of, for people; None where a block does not tell."""
        return None

    def compact(self, block: Matrix) -> Matrix:
        """A block in as few numbers as tell its values apart, for learners that split on one number at a time."""
        return block


@dataclass(frozen=True)
class Number(Column):
    """A column of numbers with a range that is known beforehand.

    A value is clipped to the range; t is its share of the way from `low` to `high`, and on a logarithmic scale
    log(1 + 99 t) / log(100) takes the place of t. It becomes a thermometer of `bins` places: place i is -1 for t up to
    i / `bins`, 1 from (i + 1) / `bins` on and linear between, all divided by the square root of `bins`. For a missing
    value all this is 0, and a place of its own is 1.

    Guarantee:
        The dot product of the blocks of two values is 1 - 2 |t - t'| where some i / `bins` lies between t and t', or is
        one of them; elsewhere it is smaller, by at most 1 / `bins`. So near values have larger products. A linear model
        of the block is any curve of t with a bend at each i / `bins`.

    Args:
        name: of the column.
        low: lower end of the range, from knowledge and not from the training data.
        high: upper end, above `low`.
        bins: number of places, 2 to 1,000.
        scale: `linear`, or `log` where small values differ more than large ones: amounts, counts, durations.
        decimal: what stands before the decimals where cells are text: a point, or a comma. With a comma, points or
            spaces may stand between thousands: `1.234,5`, and `1.234` is a thousand and more.
    """

    kind: ClassVar[str] = "number"
    comment: ClassVar[str] = (
        "# low, high: the range that is possible by units, physics or a code book; what lies outside is clipped.\n"
        '# scale: "log" for amounts and counts, of which small ones differ more than large ones; else "linear".'
    )

    low: float
    high: float
    bins: int = 16
    scale: str = "linear"
    decimal: str = "."

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = (_finite(f"{end} of the column {self.name!r}", getattr(self, end)) for end in ("low", "high"))
        if not (low < high and math.isfinite(high - low)):
            raise ConfigError(
                f"Expected low below high for the column {self.name!r}, got {self.low!r} and {self.high!r}."
            )
        check_whole(2, _MOST_BINS, f"bins of the column {self.name!r}", self.bins)
        if self.scale not in _SCALES:
            raise ConfigError(f"Expected scale of the column {self.name!r} to be linear or log, got {self.scale!r}.")
        if self.decimal not in _DECIMALS:
            raise ConfigError(
                f'Expected decimal of the column {self.name!r} to be "." or ",", got {shown(self.decimal)}.'
            )
        set_fields(self, low=low, high=high)

    @property
    def width(self) -> int:
        """The thermometer, and whether the value is missing."""
        return self.bins + 1

    @property
    def least_square(self) -> float:
        """One place at most is neither -1 nor 1, before the division."""
        return 1 - 1 / self.bins

    def _highest_present(self, vectors: FloatArray) -> FloatArray:
        return _highest_thermometer(vectors)

    def compact(self, block: Matrix) -> Matrix:
        """The height of the thermometer."""
        return _heights(block, self.bins)

    def in_words(self, block: FloatArray) -> str | None:
        """The number, to the ends of its range."""
        if block[-1]:
            return "missing"
        share = (float(block[:-1].sum()) / math.sqrt(self.bins) + 1) / 2
        if self.scale == "log":
            share = math.expm1(share * math.log1p(_LOG)) / _LOG
        return f"{self.low + share * (self.high - self.low):.4g}"

    @property
    def range_in_words(self) -> str:
        """What values are clipped to."""
        return f"{self.low:g} to {self.high:g}"

    def _fill(self, block: Matrix, cells: Cells, place: Place) -> tuple[Mask, int]:
        values = frames.numbers(cells, self.name, place, self.decimal)
        outside = int(np.count_nonzero((values < self.low) | (values > self.high)))
        missing = np.isnan(values)
        clipped = np.clip(values[~missing], self.low, self.high)
        share = (clipped - self.low) / (self.high - self.low)
        if self.scale == "log":
            # One number at a time: a vectorised logarithm may round by the place of a number in its array.
            share = np.array([math.log1p(_LOG * t) for t in share.tolist()]) / math.log1p(_LOG)
        made = _thermometer(share, self.bins)
        if missing.any():
            block[~missing, :-1] = made
        else:
            block[:, :-1] = made  # which takes half the time
        return missing, outside


def _thermometer(share: FloatArray, places: int) -> FloatArray:
    """Numbers from 0 to 1 as rows of norm at most 1 whose dot products fall with their distance; see `Number`."""
    made = share[:, None] * places - np.arange(places)
    np.clip(made, 0, 1, out=made)
    made *= 2
    made -= 1
    made /= math.sqrt(places)
    return made


def _highest_thermometer(vectors: FloatArray) -> FloatArray:
    """The largest product of each vector with a thermometer of as many places.

    Between two multiples of 1 / places a product is linear in the share, so one of these has the largest.
    """
    rising = 2 * np.cumsum(vectors, axis=1)
    highest = np.maximum(rising.max(axis=1), 0.0) - vectors.sum(axis=1)
    return highest / math.sqrt(vectors.shape[1])


def _heights(block: Matrix, *places: int) -> Matrix:
    """Thermometers of so many places each as one number each, and what comes behind them."""
    heights: list[Matrix] = []
    start = 0
    for count in places:
        # One place at a time: how a library adds up a row may depend on the rows beside it.
        height = block[:, start].copy()
        for place in range(start + 1, start + count):
            height += block[:, place]
        heights.append(height[:, None])
        start += count
    return np.hstack([*heights, block[:, start:]])


def compact(rows: Matrix, columns: Sequence[Column]) -> Matrix:
    """Rows of `encode` in as few numbers as tell their values apart.

    Guarantee:
        Each row of the result is a function of that row and the declaration alone, bit for bit.
    """
    blocks = [column.compact(rows[:, part]) for column, part in _places_of(columns)]
    return np.ascontiguousarray(np.hstack(blocks))


def cells_in_words(row: FloatArray, columns: Sequence[Column]) -> list[tuple[str, str]]:
    """The names and cells of a row, for people, of those columns whose blocks tell."""
    found = [(column.name, column.in_words(row[place])) for column, place in _places_of(columns)]
    return [(name, cell) for name, cell in found if cell is not None]


def highest(vectors: FloatArray, columns: Sequence[Column]) -> FloatArray:
    """The largest product of each vector with a row that `encode` could ever make, to rounding, or more."""
    return np.sum([column.highest(vectors[:, part]) for column, part in _places_of(columns)], axis=0)


def _places_of(columns: Sequence[Column]) -> Iterator[tuple[Column, slice]]:
    """Where in a row the block of each column stands."""
    start = 0
    for column in columns:
        yield column, slice(start, start + column.width)
        start += column.width


@dataclass(frozen=True)
class Category(Column):
    """A column of words or codes, hashed: no list of them is learnt or needed.

    Every value has one signed place in each of four equal parts of the block, given by the keyed BLAKE2b hash of the
    value; so two values are rarely alike, and known and new ones are treated the same. Missing values have a place of
    their own. Two categories differ by a quarter of the range of a number.

    Args:
        name: of the column.
        buckets: places to share, a multiple of 4; more of them make different values more different.
    """

    kind: ClassVar[str] = "category"
    comment: ClassVar[str] = (
        "# Hashed: the values need not be listed. More buckets for columns with very many different values."
    )
    weight: ClassVar[float] = _CATEGORY

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

    @property
    def least_square(self) -> float:
        """All categories have the same norm."""
        return self.weight**2

    def _highest_present(self, vectors: FloatArray) -> FloatArray:
        # As if there were a value for every choice of places and signs.
        parts = np.abs(vectors).reshape(len(vectors), _PARTS, -1)
        return parts.max(axis=2).sum(axis=1) * self.weight / math.sqrt(_PARTS)

    def _fill(self, block: Matrix, cells: Cells, place: Place) -> tuple[Mask, int]:
        words, codes = frames.coded(cells)
        missing = _missing(words)[codes]
        nowhere, part = (0,) * (2 * _PARTS), self.buckets // _PARTS
        signed = np.array([nowhere if word is None else _places(word, part) for word in words])
        signed = signed.reshape(-1, 2 * _PARTS)[codes[~missing]]
        size = self.weight / math.sqrt(_PARTS)
        block[np.flatnonzero(~missing)[:, None], signed[:, :_PARTS]] = signed[:, _PARTS:] * size
        return missing, 0


def _missing(words: Sequence[object]) -> Mask:
    return np.array([word is None for word in words], dtype=bool)


def _places(word: str, part: int) -> tuple[int, ...]:
    """The places of a value, one in each part of so many, and then their signs."""
    # Half a surrogate pair is no character, but it can stand in a string; it is hashed as it is.
    data = word.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(data, digest_size=8 * _PARTS, key=_KEY).digest()
    hashes = [int.from_bytes(digest[8 * i : 8 * i + 8], "little") for i in range(_PARTS)]
    places = [i * part + number % (1 << 63) % part for i, number in enumerate(hashes)]
    return (*places, *[-1 if number >> 63 else 1 for number in hashes])


@dataclass(frozen=True)
class Ordered(Column):
    """A column of steps with an order: words in the order that is declared, or numbers between edges that are.

    A value becomes a thermometer with a place for each step from one value to the next: 1 where the value is above
    that step, else -1, divided by the square root of the number of steps. So values differ by how many steps there are
    between them, and the first and the last one like the ends of a number. Missing values have a place of their own.

    Args:
        name: of the column.
        order: all values that there are, the lowest first, 2 or more; a value that is not among them is refused.
        edges: instead of `order`: numbers, each above the one before, where one step ends and the next begins; a value
            that is an edge is above it.
    """

    kind: ClassVar[str] = "ordered"
    comment: ClassVar[str] = (
        '# order: all values, the lowest first, such as ["low", "middle", "high"]; or edges: numbers between the steps.'
    )

    order: tuple[str, ...] | None = None
    edges: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.order is None) == (self.edges is None):
            raise ConfigError(f"Expected either order or edges of the column {self.name!r}; declare one of them.")
        made = {"edges": self._checked_edges()} if self.order is None else {"order": self._checked_order()}
        check_whole(1, _MOST_BINS, f"number of steps of the column {self.name!r}", self._steps)
        set_fields(self, **made)

    def _checked_order(self) -> tuple[str, ...]:
        said = f"order of the column {self.name!r}"
        if not isinstance(self.order, (tuple, list)) or not all(isinstance(word, str) for word in self.order):
            raise ConfigError(f"Expected {said} as a list of text, got {self.order!r}.")
        for word in self.order:
            check_name(f"value in the {said}", word)
        twice = frames.repeated(map(frames.canonical, self.order))
        if twice is not None:
            raise ConfigError(f"The value {shown(twice)} is in the {said} twice; declare it once.")
        return tuple(self.order)

    def _checked_edges(self) -> tuple[float, ...]:
        if not isinstance(self.edges, (tuple, list)):
            raise ConfigError(f"Expected edges of the column {self.name!r} as a list of numbers, got {self.edges!r}.")
        edges = tuple(_finite(f"edges of the column {self.name!r}", edge) for edge in self.edges)
        if any(after <= before for before, after in pairwise(edges)):
            raise ConfigError(f"Expected every one of the edges of the column {self.name!r} above the one before.")
        return edges

    @property
    def _steps(self) -> int:
        return len(self.edges or ()) if self.order is None else len(self.order) - 1

    @property
    def width(self) -> int:
        """The steps, and whether the value is missing."""
        return self._steps + 1

    @property
    def least_square(self) -> float:
        """Every place is -1 or 1, before the division."""
        return 1.0

    def _highest_present(self, vectors: FloatArray) -> FloatArray:
        return _highest_thermometer(vectors)

    def compact(self, block: Matrix) -> Matrix:
        """The height of the thermometer."""
        return _heights(block, self._steps)

    def _fill(self, block: Matrix, cells: Cells, place: Place) -> tuple[Mask, int]:
        if self.order is None:
            values = frames.numbers(cells, self.name, place)
            missing, above = np.isnan(values), np.searchsorted(self.edges or (), values, side="right")
        else:
            words, codes = frames.coded(cells)
            missing = _missing(words)[codes]
            above = self._positions(words, lambda code: place(frames.first_rows(codes)[code]))[codes]
        steps = np.where(np.arange(self._steps) < above[:, None], 1.0, -1.0) / math.sqrt(self._steps)
        block[~missing, :-1] = steps[~missing]
        return missing, 0

    def _positions(self, words: list[str | None], place: Place) -> npt.NDArray[np.int64]:
        known: dict[str | None, int] = {frames.canonical(word): i for i, word in enumerate(self.order or ())}
        known[None] = 0
        for number, word in enumerate(words):
            if word not in known:
                raise ConfigError(
                    f"The order of the column {self.name!r} is {listed(self.order or ())}, but {place(number)} holds "
                    f"{shown(word)}; add it to the order, or mend it."
                )
        return np.array([known[word] for word in words], dtype=np.int64)


@dataclass(frozen=True)
class Date(Column):
    """A column of dates, with or without a time of day, between two years that are known beforehand.

    A date becomes thermometers of 16 places as in `Number`, times the square root of 1/2: of its share of the time from
    the start of `first` to the end of `last` (clipped), of the day of the year, and with `time` of the time of day; and
    one of seven places, 1/2, for the day of the week. So a date weighs more than one number and less than two. Missing
    dates have a place of their own.

    Dates are written with the year first (2020-01-31, 2020/1/31, 2020-01) or with an English name of the month (31 Jan
    2020, January 31, 2020), perhaps with a time (2020-01-31T15:30:00, 2020-01-31 3:30 pm) as the clock showed it: a
    time zone is ignored. A date without a time is at midnight. Other dates are refused: whether 1/2/2020 is in January
    cannot be told from one row.

    Args:
        name: of the column.
        first: the first year that is possible.
        last: the last one.
        time: whether the time of day counts.
    """

    kind: ClassVar[str] = "date"
    comment: ClassVar[str] = (
        "# first, last: the years that are possible; other dates are clipped. time: whether the time of day counts."
    )

    first: int
    last: int
    time: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(1, 9999, f"first of the column {self.name!r}", self.first)
        check_whole(self.first, 9999, f"last of the column {self.name!r}", self.last)
        if not isinstance(self.time, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Expected time of the column {self.name!r} to be true or false, got {self.time!r}.")

    @property
    def width(self) -> int:
        """Two or three thermometers, the days of the week, and whether the date is missing."""
        return (2 + self.time) * _DATE_PLACES + 7 + 1

    @property
    def least_square(self) -> float:
        """That of a missing date, or of thermometers with one place each between -1 and 1."""
        thermometers = (2 + self.time) * _DATE_PART**2 * (1 - 1 / _DATE_PLACES)
        return min(self.weight**2, thermometers + _WEEKDAY**2)

    def _highest_present(self, vectors: FloatArray) -> FloatArray:
        parts = [vectors[:, i * _DATE_PLACES : (i + 1) * _DATE_PLACES] for i in range(2 + self.time)]
        thermometers = np.sum([_highest_thermometer(part) for part in parts], axis=0)
        return _DATE_PART * thermometers + _WEEKDAY * vectors[:, -7:].max(axis=1)

    def compact(self, block: Matrix) -> Matrix:
        """The heights of the thermometers, the days of the week, and whether the date is missing."""
        return _heights(block, *[_DATE_PLACES] * (2 + self.time))

    @property
    def range_in_words(self) -> str:
        """What dates are clipped to."""
        return f"the years {self.first} to {self.last}"

    def _fill(self, block: Matrix, cells: Cells, place: Place) -> tuple[Mask, int]:
        different, codes = frames.distinct(cells)
        moments = frames.moments(different, self.name, lambda code: place(frames.first_rows(codes)[code]))
        missing = _missing(moments)
        known = [moment for moment in moments if moment is not None]
        outside = np.array([m is not None and not self.first <= m.year <= self.last for m in moments], dtype=bool)
        shares = np.array([self._shares(moment) for moment in known]).reshape(-1, 2 + self.time)
        made = np.zeros((len(known), self.width), dtype=np.float32)
        for i, share in enumerate(shares.T):
            made[:, i * _DATE_PLACES : (i + 1) * _DATE_PLACES] = _DATE_PART * _thermometer(share, _DATE_PLACES)
        weekdays = np.array([moment.weekday() for moment in known], dtype=np.int64)
        made[np.arange(len(known)), weekdays - 8] = _WEEKDAY
        places = np.cumsum(~missing) - 1  # of the different dates among those that are known
        block[~missing[codes]] = made[places[codes[~missing[codes]]]]
        return missing[codes], int(np.count_nonzero(outside[codes]))

    def _shares(self, moment: datetime.datetime) -> tuple[float, ...]:
        """How far a moment is, of the years, of its year, and of its day."""
        start, end = (datetime.date(year, 12, 31).toordinal() for year in (self.first, self.last))
        start -= (datetime.date(self.first, 12, 31) - datetime.date(self.first, 1, 1)).days
        clock = (moment.hour + (moment.minute + moment.second / 60) / 60) / 24
        of_years = (moment.toordinal() + clock - start) / (end + 1 - start)
        of_year = (moment.timetuple().tm_yday - 1) / 365
        return (min(max(of_years, 0.0), 1.0), of_year, *([clock] if self.time else []))


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

    @property
    def least_square(self) -> float:
        """That of an empty text."""
        return 0.0

    def _highest_present(self, vectors: FloatArray) -> FloatArray:
        return np.linalg.norm(vectors, axis=1)

    def _fill(self, block: Matrix, cells: Cells, place: Place) -> tuple[Mask, int]:
        words = frames.texts(cells)
        missing = _missing(words)
        if not missing.all():
            present = [word for word in words if word is not None]
            block[~missing, :-1] = HashedNgrams(dimension=self.dimension).transform(present)
        return missing, 0


COLUMNS: dict[str, type[Column]] = {kind.kind: kind for kind in (Number, Category, Ordered, Date, Text)}


class Encoding:
    """The rows of a table as numbers, piece by piece, and what there is to say about all of them.

    Guarantee:
        Each row of the result is a function of that row and the declaration alone, and equal bit for bit whether it is
        computed alone or with others.

    Args:
        columns: what is declared of the table, in this order.
        label: name of the column with the labels, which is no input.
        training: whether this is training data, where a column without any value is a mistake.
        unit: name of the column with the units, which is none, either.
    """

    def __init__(
        self, columns: Sequence[Column], label: str | None, *, training: bool, unit: str | None = None
    ) -> None:
        self._columns, self._no_inputs, self._training = columns, (label, unit), training
        self._rows, self._ignored = 0, tuple[str, ...]()
        self._clipped, self._present = [0] * len(columns), [0] * len(columns)

    @property
    def shape(self) -> tuple[int, ...]:
        """That of a row."""
        return (sum(column.width for column in self._columns),)

    def __call__(self, frame: Frame, *, is_last: bool) -> Iterator[Matrix]:
        """The rows of the next piece, a few at a time; whether it is the last piece.

        Raises:
            ConfigError: a declared column is missing, or holds what it should not.
        """
        cells = {column.name: frame.cells(column.name) for column in self._columns}
        self._ignored = ignored(frame, self._columns, self._no_inputs)
        step = max(1, _BLOCK_BYTES // (4 * self.shape[0]))
        for start in range(0, frame.rows, step):
            stop = min(start + step, frame.rows)
            block = np.zeros((stop - start, *self.shape), dtype=np.float32)
            for number, (column, part) in enumerate(_places_of(self._columns)):
                place: Place = lambda row, start=start: frame.place(start + row)  # noqa: E731
                missing, clipped = column._fill(block[:, part], cells[column.name][start:stop], place)
                block[missing, part.stop - 1] = column.weight
                self._clipped[number] += clipped
                self._present[number] += len(block) - int(np.count_nonzero(missing))
                if is_last and stop == frame.rows:
                    self.check_values(frame.origin, number + 1)
            self._rows += len(block)
            yield block

    def check_values(self, origin: str, count: int | None = None) -> None:
        """Require of training data that columns, the first so many of them, have a value somewhere.

        Raises:
            ConfigError: one of them has none.
        """
        for column, present in zip(self._columns[:count], self._present[:count], strict=True):
            if self._training and not present:
                raise ConfigError(f"The column {column.name!r} of {origin} has no values at all; do not declare it.")

    @property
    def notes(self) -> Notes:
        """For the user, about all rows so far."""
        clipped = (
            f"More than half of the values of {column.name!r} lie outside {column.range_in_words} and were clipped; "
            "check its unit."
            for column, count in zip(self._columns, self._clipped, strict=True)
            if 2 * count > self._rows
        )
        return (*self._ignored, *clipped)

    @property
    def state(self) -> dict[str, Any]:
        """What was counted so far, as plain JSON values."""
        return {
            "rows": self._rows,
            "clipped": list(self._clipped),
            "present": list(self._present),
            "ignored": list(self._ignored),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with what was counted before."""
        self._rows, self._ignored = state["rows"], tuple(state["ignored"])
        self._clipped, self._present = list(state["clipped"]), list(state["present"])


def encode(
    frame: Frame, columns: Sequence[Column], label: str | None, *, training: bool = False, unit: str | None = None
) -> tuple[Matrix, tuple[str, ...]]:
    """The rows of a table as numbers.

    Guarantee:
        As `Encoding`.

    Args:
        frame: the table.
        columns: what is declared of it, in this order.
        label: name of the column with the labels, which is no input.
        training: whether this is training data, where a column without any value is a mistake.
        unit: name of the column with the units, which is none, either.

    Returns:
        float32 array [rows, sum of the widths], and notes for the user.

    Raises:
        ConfigError: a declared column is missing, or holds what it should not.
    """
    encoding = Encoding(columns, label, training=training, unit=unit)
    width = encoding.shape[0]
    try:
        out = scratch((frame.rows, width), np.float32)
    except (MemoryError, ValueError, ArtifactError) as error:
        raise ConfigError(
            f"{frame.rows:,} rows of {width:,} numbers do not fit into memory; declare fewer buckets or smaller "
            "dimensions."
        ) from error
    row = 0
    for block in encoding(frame, is_last=True):
        out[row : row + len(block)] = block
        row += len(block)
    return out, encoding.notes


def ignored(frame: Frame, columns: Sequence[Column], no_inputs: Iterable[str | None]) -> Notes:
    """A note for the user where columns are not declared, neither as inputs nor as something else."""
    known = {*no_inputs, *(column.name for column in columns)}
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
