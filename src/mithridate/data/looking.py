"""What there is to see in somebody's table before it is trained on: what misleads a model, or asks to be declared.

Everything here looks at the data, which no certificate accounts for. So nothing here decides: what is seen is told to
whoever declares the columns, and a declaration that follows it is marked as proposed (`mithridate.data.proposing`).
"""

from __future__ import annotations

import datetime
import math
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from mithridate._text import counted, listed, percent, shown
from mithridate.data import frames
from mithridate.data.frames import DECIMAL_COMMA, MISSING_NUMBERS, Cells, FloatArray, Frame
from mithridate.errors import ConfigError

IntArray = npt.NDArray[np.int64]

# Kinds of remarks, with what is said of several columns at once.
KINDS = {
    "identifier": "Columns that look like identifiers are left out",
    "constant": "Columns with one value are left out",
    "empty": "Columns without values are left out",
    "duplicate": "Columns that repeat another one are left out",
    "unreadable-date": "Columns of dates with the day or the month first are left out; write the year first",
    "date": "Columns read as dates",
    "unit": "Dates that units are made of",
    "decimal-comma": "Columns read with decimal commas",
    "thousands": "Columns of numbers with commas between thousands are read as categories; write them without commas",
    "two-values": "Columns of 0 and 1 are read as categories",
    "source": "Columns that may name sources: where one source can be compromised as a whole, name its column as unit",
    "gives-label-away": "Columns that give the label away, each by itself; leave out what is not known beforehand",
    "rare-class": "Rare labels",
    "few-examples": "Few examples",
    "encoder": "Encoders",
}
# Fewer rows show nothing: chance makes identifiers of anything, and gives labels away.
_LEAST_ROWS = 20
# What identifiers and giveaways come to, at least; a few cells of any file are wrong.
_NEARLY = 0.95
_MOST_THRESHOLDS = 100
# A label is rare from one in so many of the commonest one on. Weights follow this rule, which is that of the measured
# ones in docs/real-data.md: the commonest label gets 4, another one 4 (largest share / share)^(3/4).
_RARE = 5
_USUAL_WEIGHT, _WEIGHT_POWER, _LARGEST_QUOTIENT = 4, 0.75, 16
_IDENTIFIER = re.compile(r"(?:^|.*[^a-z])(?:id|ids|uuid|guid|key|index|idx|rowid|nr|no)")
_SOURCE = re.compile(
    r"(?:.*[^a-z])?(?:sources?|vendors?|suppliers?|annotators?|workers?|labell?ers?|users?|authors?|accounts?|customers?|"
    r"clients?|hospitals?|sites?|stores?|patients?|subjects?|sellers?|domains?)(?:[^a-z](?:id|no|nr|name|key|code))?"
)
# Fewer are hardly sources, and of those with one example each the example is the unit.
_FEWEST_SOURCES, _EXAMPLES_OF_A_SOURCE = 5, 2
_LABEL = re.compile(
    r"(?:.*[^a-z])?(?:labels?|class|target|y|outcome|kind|category|species|diagnosis|result|response|status|type)(?:[^a-z].*)?"
)
_FEW_LABELS, _MANY_LABELS, _MOST_NAMED = 20, 100, 3
_DAY_OR_MONTH_FIRST = re.compile(r"\d{1,2}([./-])\d{1,2}\1(?:\d{4}|\d\d)(?:[ t]\d{1,2}:\d\d.*)?", re.ASCII)
_THOUSANDS = re.compile(r"[+-]?(?:0|[1-9]\d{0,2}(?:,\d{3})*)(?:\.\d+)?", re.ASCII)


@dataclass(frozen=True)
class Remark:
    """Something that was seen, for whoever declares the data to judge.

    Attributes:
        kind: one of `KINDS`.
        sentence: what was seen, and what follows.
        column: which column it is about; None: the labels, or all examples.
    """

    kind: str
    sentence: str
    column: str | None = None

    def to_dict(self) -> dict[str, str | None]:
        """As plain JSON values."""
        return {"kind": self.kind, "column": self.column, "sentence": self.sentence}


def in_few_lines(remarks: Sequence[Remark]) -> tuple[str, ...]:
    """The remarks in a line for each kind: a table may have hundreds of columns.

    >>> in_few_lines([Remark("constant", "'a' is always 1.", "a"), Remark("constant", "'b' is always 2.", "b")])
    ('Columns with one value are left out: a, b.',)
    """
    lines: list[str] = []
    for kind, heading in KINDS.items():
        found = [remark for remark in remarks if remark.kind == kind]
        columns = [remark.column for remark in found if remark.column is not None]
        if len(columns) > 1:
            lines.append(f"{heading}: {listed(columns)}.")
        else:
            lines.extend(remark.sentence for remark in found)
    return tuple(lines)


@dataclass(frozen=True, eq=False)
class Looked:
    """A column that is looked at.

    Attributes:
        name: of the column.
        cells: of the column.
        decimal: what stands before its decimals.
    """

    name: str
    cells: Cells
    decimal: str = "."

    @cached_property
    def texts(self) -> tuple[str | None, ...]:
        """The cells as canonical text, None where missing."""
        return tuple(frames.texts(self.cells))

    @cached_property
    def values(self) -> FloatArray | None:
        """The cells as numbers, NaN where missing; None where some are no numbers."""
        try:
            return frames.numbers(self.cells, self.name, str, self.decimal)
        except ConfigError:
            return None

    @cached_property
    def moments(self) -> list[datetime.datetime | None] | None:
        """The cells as dates, None where missing; None where some are no dates."""
        try:
            return frames.moments(self.cells, self.name, str)
        except ConfigError:
            return None

    @cached_property
    def position(self) -> FloatArray | None:
        """Where the cells are on a line, NaN where missing; None where they have no order."""
        if self.values is not None or self.moments is None:
            return self.values
        return np.array([math.nan if m is None else m.toordinal() + m.hour / 24 for m in self.moments])

    @cached_property
    def words(self) -> list[str]:
        """The cells of a column of text that are there, as they are written."""
        cells = self.cells.tolist() if self.cells.dtype == object else []
        written = [cell.strip().lower() for cell in cells if cell is not None]
        return [word for word in written if word not in MISSING_NUMBERS]


# --- columns --------------------------------------------------------------------------------------------------------


def comma_columns(columns: Sequence[Looked], delimiter: str | None) -> tuple[set[str], set[str]]:
    """The columns whose decimals follow a comma, and those whose commas stand between thousands.

    `12,345` can be either. It is a decimal comma where semicolons stand between the cells of the file, or where another
    column leaves no doubt; and only there a point as in `1.234` stands between thousands.
    """
    found = {column.name: _commas(column.words) for column in columns}
    sure = {name for name, commas in found.items() if commas == "decimal"}
    either = {name for name, commas in found.items() if commas == "either"}
    thousands = {name for name, commas in found.items() if commas == "thousands"}
    if sure:
        return sure | either | {name for name, commas in found.items() if commas == "points"}, thousands
    return (either, thousands) if delimiter == ";" else (set(), thousands | either)


def _commas(words: list[str]) -> str | None:
    """What the commas of numbers are: `decimal`, between `thousands`, `either`; or `points`, where there are none."""
    text = "".join(words)
    if "," not in text and "." not in text:
        return None
    decimal = all(DECIMAL_COMMA.fullmatch(word) for word in words)
    thousands = "," in text and all(_THOUSANDS.fullmatch(word) for word in words)
    if decimal and thousands:
        return "either"
    if thousands:
        return "thousands"
    if not decimal:
        return None
    return "points" if "," not in text and all(word.count(".") < 2 for word in words) else "decimal"


def why_left_out(column: Looked, same: str | None, is_words: bool) -> Remark | None:
    """Why a column with values had better be left out; None where nothing speaks against it.

    Args:
        column: to look at.
        same: the name of an earlier column with the same cells, if there is one.
        is_words: whether it would be read as a category.
    """
    name, first = shown(column.name), next((text for text in column.texts if text is not None), "")
    if len(column.texts) > 1 and len(set(column.texts)) == 1:
        return Remark("constant", f"{name} is {shown(_written(first))} in every row; it is left out.", column.name)
    if same is not None:
        return Remark("duplicate", f"{name} equals {shown(same)} in every row; it is left out.", column.name)
    words = column.words if is_words else []
    if words and all(_DAY_OR_MONTH_FIRST.fullmatch(word) for word in words):
        return Remark(
            "unreadable-date",
            f"{name} looks like dates with the day or the month first ({shown(words[0])}), which one row cannot tell; "
            "it is left out. Write them with the year first, such as 2020-01-31, to use them.",
            column.name,
        )
    if _is_identifier(column, is_words):
        present = [text for text in column.texts if text is not None]
        return Remark(
            "identifier",
            f"{name} looks like an identifier, with {len(set(present)):,} different values in "
            f"{counted(len(present), 'row')}; it tells nothing about new inputs, and is left out.",
            column.name,
        )
    return None


def _written(text: str) -> str:
    """A canonical cell as somebody would write it."""
    return text.removesuffix(".0")


def _is_identifier(column: Looked, is_words: bool) -> bool:
    present = [text for text in column.texts if text is not None]
    different = len(set(present))
    if len(present) < _LEAST_ROWS or different < _NEARLY * len(present):
        return False
    if is_words:
        return True
    known = np.array([]) if column.values is None else column.values[np.isfinite(column.values)]
    if not len(known) or not np.array_equal(known, np.floor(known)):
        return False
    counts_rows = different == len(known) == known.max() - known.min() + 1
    return bool(counts_rows or _IDENTIFIER.fullmatch(_in_words(column.name)))


def source(column: Looked) -> Remark | None:
    """That a column may name who sent the examples: its name says so, and its values come again and again."""
    present = [text for text in column.texts if text is not None]
    different = len(set(present))
    is_named = _SOURCE.fullmatch(_in_words(column.name)) is not None
    if not is_named or different < _FEWEST_SOURCES or len(present) < _EXAMPLES_OF_A_SOURCE * different:
        return None
    return Remark(
        "source",
        f"{shown(column.name)} may name sources: {different:,} in {counted(len(present), 'row')}. Where whoever "
        f"controls one controls all of its rows, certify against that: run init again with --unit "
        f"{shlex.quote(column.name)}.",
        column.name,
    )


def _in_words(name: str) -> str:
    """The name of a column in small letters: customerId and CUSTOMER_ID alike."""
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()


# --- labels ---------------------------------------------------------------------------------------------------------


def giveaway(column: Looked, y: IntArray) -> Remark | None:
    """That a column nearly determines the label by itself: by a label for each value, or by a threshold between labels.

    Args:
        column: to look at.
        y: the labels as numbers.
    """
    if len(y) < _LEAST_ROWS:
        return None
    commonest = int(np.bincount(y).max())
    told = _by_values(column.texts, y)
    position = column.position
    if position is not None:
        told = max(told, _by_thresholds(position, y))
    if commonest == len(y) or told - commonest < _NEARLY * (len(y) - commonest):
        return None
    return Remark(
        "gives-label-away",
        f"{shown(column.name)} gives the label away: alone it tells {percent(told, len(y))} of the labels, of which "
        f"the commonest is {percent(commonest, len(y))}. If it is not known before the label is, do not declare it.",
        column.name,
    )


def _by_values(texts: Sequence[str | None], y: IntArray) -> int:
    """How many labels are the commonest one among the *other* rows with the same value; a tie tells nothing."""
    codes: dict[str | None, int] = {}
    values = np.array([codes.setdefault(text, len(codes)) for text in texts], dtype=np.int64)
    pairs, counts = np.unique(values * (int(y.max()) + 1) + y, return_counts=True)
    owners = pairs // (int(y.max()) + 1)
    order = np.lexsort((-counts, owners))
    owners, counts = owners[order], counts[order]
    first = np.flatnonzero(np.diff(owners, prepend=-1))
    has_second = np.append(owners[1:] == owners[:-1], False)[first]
    second = np.where(has_second, np.append(counts, 0)[first + 1], 0)
    top = counts[first]
    return int(top[top - 1 > second].sum())


def _by_thresholds(position: FloatArray, y: IntArray) -> int:
    """How many labels one interval for each label tells, in the order of their medians."""
    known = np.isfinite(position)
    position, y = position[known], y[known]
    labels = np.unique(y)
    if not 2 <= len(labels) <= _MOST_THRESHOLDS:
        return 0
    groups = sorted((np.sort(position[y == label]) for label in labels), key=lambda group: float(np.median(group)))
    ends = np.maximum.accumulate([_threshold(low, high) for low, high in pairwise(groups)])
    return sum(
        int(np.count_nonzero(np.searchsorted(ends, group, side="left") == place)) for place, group in enumerate(groups)
    )


def _threshold(low: FloatArray, high: FloatArray) -> float:
    """The value up to which most of `low` and beyond which most of `high` lie, both in order."""
    candidates = np.unique(np.concatenate([low, high]))
    right = np.searchsorted(low, candidates, side="right") + len(high) - np.searchsorted(high, candidates, side="right")
    return float(candidates[int(np.argmax(right))])


def likely_labels(frame: Frame) -> list[str]:
    """The columns that most likely hold the labels, the likeliest first."""
    scores: dict[str, float] = {}
    for place, name in enumerate(frame.names):
        column = Looked(name, frame.cells(name))
        different = Counter(column.texts)
        few = 2 <= len(different) <= max(2, min(_MANY_LABELS, frame.rows // 2))
        whole = column.values is None or np.array_equal(column.values, np.floor(column.values))
        is_date = column.values is None and column.moments is not None
        if not few or not whole or is_date or None in different:
            continue
        named = _LABEL.fullmatch(_in_words(name)) is not None
        at_the_end = place == len(frame.names) - 1
        scores[name] = 4 * named + 2 * at_the_end + (place == 0) + (len(different) <= _FEW_LABELS)
    return sorted(scores, key=lambda name: -scores[name])[:_MOST_NAMED]


def rare_labels(y: IntArray, names: Sequence[str]) -> tuple[Remark, tuple[int, ...]] | None:
    """That some labels are rare, and class weights by the shares of the labels; None where none is rare.

    The weights follow the training data: a certificate is conditional on them, unless the shares are known from
    elsewhere.

    Args:
        y: the labels as numbers.
        names: of the labels, in the order of their numbers.
    """
    counts = np.bincount(y, minlength=len(names))
    largest = int(counts.max())
    rare: Mapping[str, int] = {
        name: int(count) for name, count in zip(names, counts, strict=True) if _RARE * count <= largest
    }
    if not rare:
        return None
    said = listed(f"{shown(name)} ({percent(count, len(y))})" for name, count in rare.items())
    sentence = (
        f"Rare beside {shown(names[int(counts.argmax())])} ({percent(largest, len(y))}): {said}. Without class_weights "
        f"few predictions, or none, may be {'this label' if len(rare) == 1 else 'one of these labels'}. Let them "
        "follow shares that you know from elsewhere, such as those of the population: by the shares of this file, "
        "every certificate is conditional on them, and assumptions must say so."
    )
    return Remark("rare-class", sentence), tuple(_weight(largest, int(count)) for count in counts)


def _weight(largest: int, count: int) -> int:
    quotient = min(largest / max(count, 1), _LARGEST_QUOTIENT)
    return round(_USUAL_WEIGHT * quotient**_WEIGHT_POWER)
