"""Tables of any source as columns of cells; those of pandas, polars and Hugging Face. `table_files` has those of files.

A column is of numbers (double precision, NaN where one is missing) where the source fixes that by its type; otherwise
its cells are text (None where one is missing), numbers being written out. What else a source knows is brought to that,
each value by itself: booleans are the text True or False, dates their ISO text.
"""

from __future__ import annotations

import datetime
import decimal
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate._text import listed, nearest, shown
from mithridate.data.ids import Ids, Numbers
from mithridate.errors import ConfigError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
# float64 where the type of the source says so, else objects that are text or None.
Cells = npt.NDArray[Any]
# How a row is called in an error, by its number from 0.
Place = Callable[[int], str]

# What stands for a missing number in files; in columns of words only an empty cell is missing.
MISSING_NUMBERS = frozenset(("", "na", "n/a", "nan", "null", "none", "?", "-"))
_TRUTH = {"true": 1.0, "false": 0.0}
# Numbers as much of the world writes them, 1.234,5: thousands may be apart by points or spaces, also narrow ones.
_THOUSANDS = ". \u00a0\u202f"
DECIMAL_COMMA = re.compile(
    rf"[+-]?(?:(?:\d+|\d{{1,3}}(?:[{_THOUSANDS}]\d{{3}})+)(?:,\d*)?|,\d+)(?:e[+-]?\d+)?", re.ASCII
)
_POINTED = str.maketrans(dict.fromkeys(_THOUSANDS, "") | {",": "."})
_UNNAMED = ("the table", "the data set")
_MONTH_NAMES = "january february march april may june july august september october november december".split()
_MONTHS = {name[:length]: i for i, name in enumerate(_MONTH_NAMES, 1) for length in (3, len(name))}
_CLOCK = (
    r"(?:[t ](?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:\.\d+)?)?"
    r" ?(?P<half>[ap]m)? ?(?:z|utc|[+-]\d\d(?::?\d\d)?)?)?"
)
_DATE_FORMS = [
    re.compile(form + _CLOCK, re.ASCII)
    for form in (
        r"(?P<year>\d{4})(?P<between>[-/])(?P<month>\d{1,2})(?:(?P=between)(?P<day>\d{1,2}))?",
        r"(?P<day>\d{1,2})[- /](?P<month>[a-z]+)[- /](?P<year>\d{4})",
        r"(?P<month>[a-z]+) (?P<day>\d{1,2}),? (?P<year>\d{4})",
    )
]
_DATES = (datetime.date, datetime.time, np.datetime64)  # a datetime is a date


def repeated(names: Iterable[str]) -> str | None:
    """The first name that there is more than once, if any."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


@dataclass(frozen=True, eq=False)
class Frame:
    """A table: the names of its columns, and its cells on demand.

    Attributes:
        names: of the columns, each once.
        rows: how many.
        origin: what the table is called inside a sentence.
        column: the cells of a column, by name.
        place: how a row is called in an error.
        lines: of the file that the rows end in, where there is one that has lines.
        delimiter: what stands between the cells of that file.
        categories: the columns whose type says that their values are categories, numbers or not.
    """

    names: tuple[str, ...]
    rows: int
    origin: str
    column: Callable[[str], Cells]
    place: Place
    lines: Numbers | None = None
    delimiter: str | None = None
    categories: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        twice = repeated(self.names)
        if twice is not None:
            raise ConfigError(f"{self.subject} has more than one column named {twice!r}; rename one of them.")
        if not self.rows:
            raise ConfigError(f"{self.subject} has no rows; give at least one example.")

    @property
    def subject(self) -> str:
        """What the table is called at the start of a sentence."""
        return self.origin.capitalize() if self.origin in _UNNAMED else self.origin

    @property
    def ids(self) -> Ids:
        """A short name for each row, counted as in the errors."""
        return ids_of(range(self.rows) if self.lines is None else self.lines, are_lines=self.lines is not None)

    def cells(self, name: str) -> Cells:
        """The cells of a column that must be there.

        Raises:
            ConfigError: it is not there, or holds something other than numbers and text.
        """
        if name not in self.names:
            raise ConfigError(f"{self.subject} has no column {name!r}; {_instead(name, self.names)}")
        return self.column(name)


def ids_of(numbers: Numbers, *, are_lines: bool) -> Ids:
    """Short names for the rows of a file that end in these lines, or for rows that have these numbers."""
    return Ids("line {}".format if are_lines else "row {}".format, numbers)


def _instead(name: str, names: Sequence[str]) -> str:
    """The end of a sentence on a column that is not there: the one that was meant, else those that are there."""
    near = nearest(name, names)
    return f"it has {listed(names, 20)}." if near is None else f"did you mean {near!r}?"


# --- cells ----------------------------------------------------------------------------------------------------------


def numbers(cells: Cells, name: str, place: Place, decimal: str = ".") -> FloatArray:
    """Cells of the column of this name as numbers, NaN where missing.

    Args:
        cells: of the column; those that are numbers by their type are taken as they are.
        name: of the column.
        place: how a row is called in an error.
        decimal: what stands before the decimals where cells are text: a point, or a comma as in 1.234,5.

    Raises:
        ConfigError: a cell is not a number.
    """
    if cells.dtype != object:
        return cells
    convert = float if decimal == "." else _with_comma
    words: list[Any] = cells.tolist()
    try:
        return np.fromiter(map(convert, words), np.float64, len(words))
    except (TypeError, ValueError):  # some are missing, or no numbers
        pass
    found = np.empty(len(words))
    special: dict[str | None, float] = {}
    for row, cell in enumerate(words):
        try:
            found[row] = special[cell] if cell in special else convert(cell)
        except (TypeError, ValueError):
            found[row] = special[cell] = _special_number(cell, row, name, place, decimal)
    return found


def _with_comma(cell: str | None) -> float:
    """A number with a decimal comma.

    >>> [_with_comma(word) for word in ("3,14", "-1.234,5", "1.234", " 7 ", ",5e2")]
    [3.14, -1234.5, 1234.0, 7.0, 50.0]
    """
    word = (cell or "").strip().lower()
    if DECIMAL_COMMA.fullmatch(word) is None:
        raise ValueError(cell)
    return float(word.translate(_POINTED))


def _special_number(cell: str | None, row: int, name: str, place: Place, decimal: str) -> float:
    word = "" if cell is None else cell.strip().lower()
    if word in MISSING_NUMBERS:
        return math.nan
    if word in _TRUTH:
        return _TRUTH[word]
    hint = "declare it as a category or text, or mend it"
    if decimal == "," and _reads(float, word):
        hint = "its decimals are declared to follow a comma; mend it, or leave decimal out"
    elif _reads(float, word.replace(",", ".")):
        hint = 'write decimals with a point, or declare decimal = ","'
    elif _reads(datetime.datetime.fromisoformat, word):
        hint = "declare it as a date"
    raise ConfigError(f"The column {name!r} is declared as numbers, but {place(row)} holds {shown(cell)}; {hint}.")


def _reads(convert: Callable[[str], object], word: str) -> bool:
    try:
        convert(word)
    except ValueError:
        return False
    return True


def moments(cells: Cells, name: str, place: Place) -> list[datetime.datetime | None]:
    """Cells of the column of this name as dates with the time of day that they tell, None where missing.

    Raises:
        ConfigError: a cell is no date, or one whose day and month could be the other way round.
    """
    written: list[str | None] = cells.tolist() if cells.dtype == object else texts(cells)
    known: dict[str | None, datetime.datetime | None] = {None: None}
    for row, cell in enumerate(written):
        if cell is not None and cell not in known:
            known[cell] = _moment(cell, row, name, place)
    return [known[cell] for cell in written]


def _moment(cell: str, row: int, name: str, place: Place) -> datetime.datetime | None:
    word = " ".join(cell.lower().split())
    if word in (*MISSING_NUMBERS, "nat"):
        return None
    number = _reads(float, word)
    found = next(filter(None, (form.fullmatch(word) for form in _DATE_FORMS)), None)
    try:
        if found is not None and not number:
            return _moment_of(**found.groupdict())
    except ValueError:  # there is no such day, month or hour
        pass
    hint = "write dates with the year first, such as 2020-01-31, or with the name of the month"
    hint = "declare it as a number, or mend it" if number else hint
    raise ConfigError(f"The column {name!r} is declared as dates, but {place(row)} holds {shown(cell)}; {hint}.")


def _moment_of(
    year: str, month: str, day: str | None, hour: str | None, half: str | None, **rest: str | None
) -> datetime.datetime:
    number = int(month) if month.isdecimal() else _MONTHS.get(month, 0)
    hours = int(hour or 0)
    if half is not None:
        hours = hours % 12 + 12 * (half == "pm") if 1 <= hours <= 12 else 24  # 0 pm and 13 pm are no hours
    minute, second = (int(rest[unit] or 0) for unit in ("minute", "second"))
    return datetime.datetime(int(year), number, int(day or 1), hours, minute, second)


def texts(cells: Cells) -> list[str | None]:
    """Cells as canonical text, None where missing."""
    words, codes = coded(cells)
    return [words[code] for code in codes.tolist()]


def coded(cells: Cells) -> tuple[list[str | None], IntArray]:
    """The different canonical texts of cells, None where missing, in the order in which they come; and which each is.

    >>> coded(cells_of_objects(["b", " 3", None, "3.0", "b", ""], "c"))
    (['b', '3.0', None], array([0, 1, 2, 1, 0, 2]))
    """
    values, which = distinct(cells)
    codes: dict[str | None, int] = {}
    if values.dtype == object:
        words = (None if cell is None else canonical(cell) or None for cell in values.tolist())
    else:
        words = (None if cell != cell else repr(cell + 0.0) for cell in values.tolist())  # as `canonical` writes them
    code_of = np.array([codes.setdefault(word, len(codes)) for word in words], dtype=np.int64)
    return list(codes), code_of[which]


def distinct(cells: Cells) -> tuple[Cells, IntArray]:
    """The different cells, in the order in which they come, and which of them each is. NaN is one, and so is zero."""
    if cells.dtype != object:
        values, first, which = np.unique(cells, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        return values[order], rank[which]
    written: list[str | None] = cells.tolist()
    known = {cell: number for number, cell in enumerate(dict.fromkeys(written))}
    return objects(list(known)), np.fromiter(map(known.__getitem__, written), np.int64, len(written))


def first_rows(codes: IntArray) -> list[int]:
    """The first row of each of the codes of `coded` or `distinct`.

    >>> first_rows(np.array([0, 0, 1, 0, 2]))
    [0, 2, 4]
    """
    return np.flatnonzero(np.diff(np.maximum.accumulate(codes), prepend=-1)).tolist()


def canonical(text: str) -> str:
    """A cell as it is hashed and compared: what reads as a number is that number, in double precision.

    Tables forget how a number was written: 3, 3.0 and "3" are told apart or not depending on what else is in the
    column. So that a row never depends on other rows, they are the same here; likewise true, True and TRUE.

    >>> canonical(" 3 "), canonical("3.0"), canonical("TRUE"), canonical("cat ")
    ('3.0', '3.0', 'True', 'cat')
    """
    word = text.strip()
    if word.lower() in ("true", "false"):
        return word.capitalize()
    try:
        number = float(word)
    except ValueError:
        return word
    return repr(number + 0.0) if math.isfinite(number) else word


def cells_of(values: Any, name: str) -> Cells:
    """The cells of one value per example: a list, an array, a tensor, a pandas or polars series.

    Raises:
        ConfigError: they are something else, or hold something other than numbers and text.
    """
    kind = (type(values).__module__.split(".")[0], type(values).__name__)
    if kind == ("pandas", "Series"):
        return _pandas_cells(values, name)
    if kind == ("polars", "Series"):
        return _polars_cells(values, name)
    if isinstance(values, (list, tuple)):
        return cells_of_objects(
            [value.item() if getattr(value, "ndim", None) == 0 else value for value in values], name
        )
    array = as_array(values, name)
    if array.ndim != 1:
        raise ConfigError(f"{name} has the shape {array.shape}; give one value per example.")
    if array.dtype.kind in "iuf":
        return array.astype(np.float64)
    return cells_of_objects(list(array) if array.dtype.kind == "M" else array.tolist(), name)


def as_array(values: Any, name: str) -> npt.NDArray[Any]:
    """An array, also of a tensor.

    Raises:
        ConfigError: the values form no array.
    """
    if hasattr(values, "detach") and hasattr(values, "cpu"):
        values = values.detach().cpu()
    try:
        return np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ConfigError(
            f"{name} ({type(values).__name__}) cannot be made an array; give numbers in rows of one shape."
        ) from error


def cells_of_objects(values: Iterable[Any], name: str) -> Cells:
    """The cells of Python values: each is brought to text by itself, also where all of them are numbers.

    Raises:
        ConfigError: a value is neither a number, text, a boolean nor a date.
    """
    return objects([_cell(value, name) for value in values])


def _cell(value: Any, name: str) -> str | None:
    if value is None or isinstance(value, str):
        return None if value is None else str(value)
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value))
    if isinstance(value, (Integral, Real, decimal.Decimal)):
        number = _double(value)
        if number is None:
            return None
        return str(int(number)) if isinstance(value, Integral) and math.isfinite(number) else repr(number)
    if isinstance(value, _DATES):
        return str(value) if isinstance(value, np.datetime64) else value.isoformat()
    raise ConfigError(
        f"{name} holds {type(value).__name__} values; only numbers, text, booleans and dates can be read. "
        "Convert it, or do not declare it."
    )


def _double(value: Any) -> float | None:
    try:
        number = float(value)
    except OverflowError:  # a whole number beyond all doubles
        return math.inf if value > 0 else -math.inf
    except ValueError:  # a signalling decimal NaN
        return None
    return None if math.isnan(number) else number


def objects(values: Sequence[str | None]) -> Cells:
    """Cells that are text or None already."""
    cells = np.empty(len(values), dtype=object)
    cells[:] = values
    return cells


# --- data frames ----------------------------------------------------------------------------------------------------


def frame_of(source: Any, origin: str = "the table") -> Frame | None:
    """The table behind a pandas or polars data frame, a Hugging Face data set, or what can be made a pandas one.

    What is a `Frame` already is taken as it is.
    """
    if isinstance(source, Frame):
        return source
    place: Place = lambda row: f"row {row} (from 0)"  # noqa: E731
    source = as_frame(source)
    if source is None:
        return None
    names = column_names(source)
    if is_hugging_face(source):
        return Frame(names, len(source), origin, lambda name: _hugging_face_cells(source, name), place)
    cells = _pandas_cells if _is_of(source, "pandas") else _polars_cells
    categories = frozenset(name for name in names if _is_category(column_of(source, name)))
    return Frame(
        names, len(source), origin, lambda name: cells(column_of(source, name), name), place, categories=categories
    )


def as_frame(source: Any) -> Any:
    """A pandas or polars data frame or a Hugging Face data set as it is, other tables by `to_pandas`; else None.

    Raises:
        ConfigError: it is a frame whose rows are not there yet.
    """
    if _is_of(source, "pandas") or _is_of(source, "polars") or is_hugging_face(source):
        return source
    if _is_of(source, "polars", "LazyFrame"):
        raise ConfigError("A LazyFrame of polars has no rows yet; give what its collect() returns.")
    made = source.to_pandas() if callable(getattr(type(source), "to_pandas", None)) else None
    return made if _is_of(made, "pandas") else None


def _is_of(source: Any, package: str, name: str = "DataFrame") -> bool:
    return (type(source).__module__.split(".")[0], type(source).__name__) == (package, name)


def column_names(source: Any) -> tuple[str, ...]:
    """The names of the columns of what `as_frame` gave."""
    return tuple(map(str, source.column_names if is_hugging_face(source) else source.columns))


def column_of(source: Any, name: str) -> Any:
    """One column of what `as_frame` gave, each value of its own kind; classes of Hugging Face by their names.

    Raises:
        ConfigError: it is not there.
    """
    names = column_names(source)
    if name not in names:
        raise ConfigError(f"The table has no column {name!r}; {_instead(name, names)}")
    if is_hugging_face(source):
        return _hugging_face_values(source, name)
    return source.iloc[:, names.index(name)] if _is_of(source, "pandas") else source.get_column(name)


def without_column(source: Any, name: str) -> Any:
    """What `as_frame` gave, without one column."""
    if is_hugging_face(source):
        return source.remove_columns([name])
    kept = [number for number, other in enumerate(column_names(source)) if other != name]
    return source.iloc[:, kept] if _is_of(source, "pandas") else source.drop(name)


def _is_category(series: Any) -> bool:
    return type(series.dtype).__name__ in ("CategoricalDtype", "Categorical", "Enum")


def as_list(convert: Callable[[], list[Any]], name: str) -> list[Any]:
    """The values of the column of this name as Python values.

    Raises:
        ConfigError: Python has no such values.
    """
    try:
        return convert()
    except (ValueError, OverflowError, TypeError, NotImplementedError) as error:  # such as dates beyond the year 9999
        raise ConfigError(f"The column {name!r} holds values that Python cannot hold; convert it to text.") from error


def _pandas_cells(series: Any, name: str) -> Cells:
    missing = series.isna().to_numpy(dtype=bool)
    if getattr(series.dtype, "kind", "O") in "iuf":
        return series.to_numpy(dtype=np.float64, na_value=math.nan)
    values = [None if absent else value for value, absent in zip(series.tolist(), missing, strict=True)]
    return cells_of_objects(values, f"The column {name!r}")


def _polars_cells(series: Any, name: str) -> Cells:
    if series.dtype.is_numeric():
        values = series.to_list()
        return np.array([math.nan if value is None else float(value) for value in values], dtype=np.float64)
    return cells_of_objects(as_list(series.to_list, name), f"The column {name!r}")


def is_hugging_face(source: Any) -> bool:
    """Whether this looks like a data set of Hugging Face's `datasets`."""
    return all(hasattr(source, part) for part in ("features", "column_names", "__len__", "__getitem__")) and isinstance(
        source.column_names, list
    )


def class_names(feature: Any) -> tuple[str, ...] | None:
    """The class names that a Hugging Face column carries in its schema, or None."""
    names = getattr(feature, "names", None)
    return tuple(str(name) for name in names) if isinstance(names, (list, tuple)) else None


def _hugging_face_values(source: Any, name: str) -> list[Any]:
    names = class_names((source.features or {}).get(name))
    # Plain values, not tensors.
    plain = source.with_format(None) if hasattr(source, "with_format") else source
    values = as_list(lambda: list(plain[name]), name)
    if names is None:
        return values
    return [names[value] if isinstance(value, int) and 0 <= value < len(names) else None for value in values]


def _hugging_face_cells(source: Any, name: str) -> Cells:
    feature = (source.features or {}).get(name)
    values = _hugging_face_values(source, name)
    if str(getattr(feature, "dtype", "")).startswith(("int", "uint", "float")) and class_names(feature) is None:
        return np.array([math.nan if value is None else float(value) for value in values], dtype=np.float64)
    return cells_of_objects(values, f"The column {name!r}")
