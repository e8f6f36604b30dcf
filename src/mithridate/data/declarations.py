"""What the user declares about the data before anyone looks at it: columns and their ranges, image sizes, classes.

A certificate holds only if nothing but the mechanism looks at the training data. So how an example becomes numbers is a
function of that example and of the constants declared here, and these come from knowledge: a code book, units, physics,
other data. A declaration that was proposed from a file says so (`proposed`), and so does every result that used it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from mithridate import _validate
from mithridate._text import did_you_mean, listed, shown
from mithridate.core.conditions import PUBLIC, Statement
from mithridate.errors import ConfigError
from mithridate.features import HashedNgrams

MOST_CLASSES = 10_000  # more are no classes: a wrong column of labels, most likely
# A category has one signed place in each of this many equal parts of its block.
CATEGORY_PARTS = 4
_MOST_BINS = 1_000
_MOST_PLACES = 1 << 20
_MOST_PIXELS = 1 << 24
# Longer names are no names: a column of texts taken for the labels, most likely.
_LONGEST_CLASS = 200


# --- columns --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Number:
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

    name: str
    low: float
    high: float
    bins: int = 4

    def __post_init__(self) -> None:
        _check_name("column", self.name)
        low, high = (_finite(f"{end} of the column {self.name!r}", getattr(self, end)) for end in ("low", "high"))
        if not (low < high and math.isfinite(high - low)):
            raise ConfigError(
                f"Expected low below high for the column {self.name!r}, got {self.low!r} and {self.high!r}."
            )
        _check_whole(2, _MOST_BINS, f"bins of the column {self.name!r}", self.bins)
        _set(self, low=low, high=high, bins=int(self.bins))

    @property
    def width(self) -> int:
        """How many numbers a value becomes: its position on the line, the hats, and whether it is missing."""
        return self.bins + 2


@dataclass(frozen=True)
class Category:
    """A column of words or codes, hashed: no list of them is learnt or needed.

    Every value has one signed place in each of four equal parts of the block, given by the keyed BLAKE2b hash of the
    value; so two values are rarely alike, and known and new ones are treated the same. Missing values have a place of
    their own.

    Args:
        name: of the column.
        buckets: places to share, a multiple of 4; more of them make different values more different.
    """

    kind: ClassVar[str] = "category"

    name: str
    buckets: int = 32

    def __post_init__(self) -> None:
        _check_name("column", self.name)
        _check_whole(CATEGORY_PARTS, _MOST_PLACES, f"buckets of the column {self.name!r}", self.buckets)
        if self.buckets % CATEGORY_PARTS:
            raise ConfigError(
                f"Expected buckets of the column {self.name!r} as a multiple of {CATEGORY_PARTS}, got {self.buckets}."
            )
        _set(self, buckets=int(self.buckets))

    @property
    def width(self) -> int:
        """How many numbers a value becomes: the buckets, and whether it is missing."""
        return self.buckets + 1


@dataclass(frozen=True)
class Text:
    """A column of free text: hashed n-grams as in `mithridate.features.HashedNgrams`, and a place for missing text.

    Args:
        name: of the column.
        dimension: places that the n-grams share.
    """

    kind: ClassVar[str] = "text"

    name: str
    dimension: int = 1024

    def __post_init__(self) -> None:
        _check_name("column", self.name)
        _check_whole(2, _MOST_PLACES, f"dimension of the column {self.name!r}", self.dimension)
        _set(self, dimension=int(self.dimension))

    @property
    def encoder(self) -> HashedNgrams:
        """What turns the texts into numbers."""
        return HashedNgrams(dimension=self.dimension)

    @property
    def width(self) -> int:
        """How many numbers a text becomes."""
        return self.dimension + 1


Column = Number | Category | Text
_COLUMNS: dict[str, type[Column]] = {kind.kind: kind for kind in (Number, Category, Text)}


# --- declarations ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Rows of a table, each to become one row of float32 numbers.

    Guarantee:
        Each row of the result is a function of that row and this declaration alone, and equal bit for bit whether it
        is computed alone or with others.

    Assumes:
        Ranges and classes were fixed without looking at the training data; where they were proposed from it,
        `assumptions` says so.

    Args:
        label: name of the column with the labels; None where they come separately.
        columns: what to use of the table, in this order; other columns are ignored.
        classes: the labels that there are, in the order of their numbers, each at most 200 characters that can be
            shown. None: they are whole numbers from 0, or they are read off the training data; both are assumptions,
            but for numbers whose type the source fixes.
        proposed: whether the constants were read off a file; set it to false once they come from knowledge.
    """

    kind: ClassVar[str] = "table"

    label: str | None
    columns: tuple[Column, ...]
    classes: tuple[str, ...] | None = None
    proposed: bool = False

    def __post_init__(self) -> None:
        columns = tuple(self.columns) if isinstance(self.columns, Iterable) else ()
        if not columns or not all(isinstance(column, Column) for column in columns):
            raise ConfigError("Expected columns as one or more of Number, Category and Text; declare at least one.")
        names = [column.name for column in columns]
        twice = repeated(names)
        if twice is not None:
            raise ConfigError(f"The column {twice!r} is declared twice; declare it once.")
        if self.label is not None:
            _check_name("label", self.label)
            if self.label in names:
                raise ConfigError(
                    f"The label {self.label!r} is declared as a column, too; a model would read it there."
                )
        _set(self, columns=columns, classes=_checked_classes(self.classes), proposed=_flag("proposed", self.proposed))

    @property
    def width(self) -> int:
        """Length of one row of the result."""
        return sum(column.width for column in self.columns)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What a certificate takes for granted about these constants, as sentences."""
        return _proposed("The ranges and kinds of columns", self)

    def to_dict(self) -> dict[str, Any]:
        """The declaration as plain JSON (and TOML) values, enough for `declaration_from_dict`."""
        return _to_dict(self)


@dataclass(frozen=True)
class Images:
    """Images of one size, each to become 8-bit numbers, channels x height x width.

    An image is turned upright (EXIF), converted to grey or RGB, and stretched to the size by Pillow's bilinear filter.

    Guarantee:
        Each image of the result is a function of that file and this declaration alone.

    Assumes:
        The size and the classes were fixed without looking at the training data; where they were proposed from it,
        `assumptions` says so.

    Args:
        size: height and width in pixels.
        channels: 1 for grey, 3 for colour.
        classes: names of the classes, which are those of the folders; None as in `Table`.
        proposed: as in `Table`.
    """

    kind: ClassVar[str] = "images"

    size: tuple[int, int]
    channels: int = 3
    classes: tuple[str, ...] | None = None
    proposed: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.size, (tuple, list)) or len(self.size) != 2:
            raise ConfigError(f"Expected size as height and width in pixels such as [32, 32], got {self.size!r}.")
        for pixels in self.size:
            _check_whole(1, _MOST_PIXELS, "size in pixels", pixels)
        height, width = (int(pixels) for pixels in self.size)
        if height * width > _MOST_PIXELS:
            raise ConfigError(f"Expected a size of at most {_MOST_PIXELS:,} pixels, got {height} x {width}.")
        if self.channels not in (1, 3) or isinstance(self.channels, bool):
            raise ConfigError(f"Expected channels to be 1 (grey) or 3 (colour), got {self.channels!r}.")
        classes = _checked_classes(self.classes)
        _set(self, size=(height, width), channels=int(self.channels), classes=classes)
        _set(self, proposed=_flag("proposed", self.proposed))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What a certificate takes for granted about these constants, as sentences."""
        return _proposed("The size of the images and their channels", self)

    def to_dict(self) -> dict[str, Any]:
        """The declaration as plain JSON (and TOML) values, enough for `declaration_from_dict`."""
        return _to_dict(self)


@dataclass(frozen=True)
class Arrays:
    """Arrays that are ready to be trained on: they are taken as they are.

    Assumes:
        Whoever made the arrays made each row from one example alone, with constants fixed beforehand.

    Args:
        classes: as in `Table`.
        channels_last: whether images come as n x height x width x channels; the channels are then moved to the front.
        proposed: as in `Table`.
    """

    kind: ClassVar[str] = "arrays"

    classes: tuple[str, ...] | None = None
    channels_last: bool = False
    proposed: bool = False

    def __post_init__(self) -> None:
        _set(self, classes=_checked_classes(self.classes), proposed=_flag("proposed", self.proposed))
        _flag("channels_last", self.channels_last)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What a certificate takes for granted about these constants, as sentences."""
        return _proposed("The order of the channels", self)

    def to_dict(self) -> dict[str, Any]:
        """The declaration as plain JSON (and TOML) values, enough for `declaration_from_dict`."""
        return _to_dict(self)


Declaration = Table | Images | Arrays
_DECLARATIONS: dict[str, type[Declaration]] = {kind.kind: kind for kind in (Table, Images, Arrays)}


def _proposed(constants: str, declaration: Declaration) -> tuple[Statement, ...]:
    """What a claim is conditional on as long as constants that were read off the data are not confirmed."""
    if not declaration.proposed:
        return ()
    said = [Statement(f"{constants} were proposed from the training data; {PUBLIC}", "proposed-schema")]
    if declaration.classes is not None:
        names = listed(declaration.classes)
        said.append(Statement(f"The classes ({names}) were proposed from the training data; {PUBLIC}", "class-list"))
    return tuple(said)


# --- as plain values ------------------------------------------------------------------------------------------------


def declaration_from_dict(values: Any) -> Declaration:
    """Read what `to_dict` wrote, or what a person wrote into a configuration.

    Args:
        values: plain values, as JSON or TOML hold them; what is left out has its default.

    Raises:
        ConfigError: this is no declaration; the message names the part that is wrong.

    >>> declaration_from_dict({"kind": "images", "size": [28, 28], "channels": 1})
    Images(size=(28, 28), channels=1, classes=None, proposed=False)
    """
    kind, given = _kind_and_rest("declaration", values, _DECLARATIONS)
    if "columns" in given:
        listed = given["columns"]
        if not isinstance(listed, (list, tuple)):
            raise ConfigError(f"Expected columns as a list, got {listed!r}; write each as [[columns]].")
        given["columns"] = tuple(_column_from_dict(column) for column in listed)
    if kind is Table:
        given.setdefault("label", None)
    return kind(**given)


def _column_from_dict(values: Any) -> Column:
    kind, given = _kind_and_rest("column", values, _COLUMNS)
    return kind(**given)


def _kind_and_rest(what: str, values: Any, kinds: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    if not isinstance(values, dict):
        raise ConfigError(f"Expected a {what} as named values with a kind ({', '.join(kinds)}), got {values!r}.")
    given: dict[str, Any] = {str(key): value for key, value in values.items()}
    name = given.pop("kind", None)
    if not isinstance(name, str) or name not in kinds:
        raise ConfigError(f"Expected the kind of a {what} to be one of {', '.join(kinds)}, got {name!r}.")
    known = [field.name for field in fields(kinds[name])]
    for key in given:
        if key not in known:
            raise ConfigError(f"A {what} of kind {name} has no {key!r}; {did_you_mean(key, known)}")
    required = {"table": ["columns"], "images": ["size"], "number": ["name", "low", "high"]}
    for key in required.get(name, ["name"] if what == "column" else []):
        if key not in given:
            raise ConfigError(f"A {what} of kind {name} needs {key!r}; declare it.")
    return kinds[name], given


def _to_dict(made: Declaration | Column) -> dict[str, Any]:
    """Without what is None, which TOML cannot hold, and without the mark of a proposal where there is none."""
    found: dict[str, Any] = {"kind": made.kind}
    for field in fields(made):
        value = getattr(made, field.name)
        if value is None or (field.name == "proposed" and not value):
            continue
        if field.name == "columns":
            value = [_to_dict(column) for column in value]
        found[field.name] = list(value) if isinstance(value, tuple) else value
    return found


# --- as a commented configuration -----------------------------------------------------------------------------------

_WARNING = """\
# PROPOSED FROM A FILE. If that file is the training data, these constants are a second look at it, which no certificate
# accounts for. Replace them by what you know from elsewhere (a code book, units, physics, other data), then delete the
# line "proposed = true". Until then every result says that it assumes them public.
"""
_CLASSES_COMMENT = (
    "# All labels that can occur, in the order of their numbers: from knowledge, also those not in the data."
)
_COMMENTS = {
    "number": "# low, high: the range that is possible by units, physics or a code book; what lies outside is clipped.",
    "category": "# Hashed: the values need not be listed. More buckets for columns with very many different values.",
    "text": "# Free text, hashed: nothing is learnt from it. A larger dimension for long texts.",
}


def to_toml(declaration: Declaration, *, table: str | None = None) -> str:
    """The declaration as TOML with comments that say where the constants must come from.

    Args:
        declaration: what to write.
        table: name of the TOML table that it becomes, such as `data`; None for the top level.

    Returns:
        Text from which `tomllib` and `declaration_from_dict` make an equal declaration.

    >>> print(to_toml(Arrays(channels_last=True)))
    kind = "arrays"
    channels_last = true
    <BLANKLINE>
    """
    values = declaration.to_dict()
    columns = values.pop("columns", [])
    lines = [_WARNING.rstrip()] if declaration.proposed else []
    if table is not None:
        _check_name("TOML table", table)
        lines.append(f"[{_toml_key(table)}]")
    for key, value in values.items():
        if key == "classes":
            lines.append(_CLASSES_COMMENT)
        lines.append(f"{key} = {_toml_value(value)}")
    if isinstance(declaration, Table):
        lines.append("\n# Columns that are not declared are ignored.")
    prefix = "" if table is None else f"{_toml_key(table)}."
    commented: set[str] = set()
    for column in columns:
        lines.append(f"\n[[{prefix}columns]]")
        if column["kind"] not in commented or column["kind"] == "number":
            lines.append(_COMMENTS[column["kind"]])
            commented.add(column["kind"])
        lines.extend(f"{key} = {_toml_value(value)}" for key, value in column.items())
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, str):
        return toml_text(value)
    if isinstance(value, list):
        return f"[{', '.join(_toml_value(item) for item in value)}]"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def toml_text(text: str) -> str:
    """A string as TOML writes it."""
    # JSON escapes what TOML wants escaped, but for one control character.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_key(name: str) -> str:
    return name if name.isascii() and name.replace("_", "").replace("-", "").isalnum() else toml_text(name)


# --- checks ---------------------------------------------------------------------------------------------------------


def repeated(names: Iterable[str]) -> str | None:
    """The first name that came before, if any."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def why_no_class(name: str) -> str | None:
    """What keeps a text from being the name of a class, which is printed in many places; None if nothing does."""
    if not name.isprintable():
        return "holds characters that cannot be shown"
    return f"is longer than {_LONGEST_CLASS} characters" if len(name) > _LONGEST_CLASS else None


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


def _checked_classes(classes: Any) -> tuple[str, ...] | None:
    if classes is None:
        return None
    if not isinstance(classes, (tuple, list)):
        raise ConfigError(f"Expected classes as a list of names, got {classes!r}.")
    for name in classes:
        _check_name("class", name)
        wrong = why_no_class(name)
        if wrong is not None:
            raise ConfigError(f"The class {shown(name)} {wrong}; rename it.")
    if len(classes) < 2:
        raise ConfigError("Expected at least two classes; with one there is nothing to certify.")
    if len(classes) > MOST_CLASSES:
        raise ConfigError(f"{len(classes):,} classes are declared, more than {MOST_CLASSES:,}; check the label column.")
    seen: dict[str, str] = {}
    for name in classes:
        if canonical(name) in seen:
            raise ConfigError(f"The classes {seen[canonical(name)]!r} and {name!r} read the same; declare each once.")
        seen[canonical(name)] = name
    return tuple(classes)


def _check_name(what: str, name: Any) -> None:
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"Expected the name of a {what} as text, got {name!r}.")
    if any(0xD800 <= ord(character) <= 0xDFFF for character in name):
        raise ConfigError(f"The name {name!r} of a {what} is not valid Unicode; rename it.")


def _check_whole(low: int, high: int, what: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"Expected {what} to be a whole number from {low} to {high:,}, got {value!r}.")


def _finite(what: str, value: Any) -> float:
    if isinstance(value, int) and abs(value) > 1 << 1000:
        raise ConfigError(f"The {what} is too large; numbers are kept in double precision.")
    named: dict[str, Any] = {what: value}
    _validate.number_in(-math.inf, math.inf, **named)
    return float(value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"Expected {name} to be true or false, got {value!r}.")
    return value


def _set(made: Any, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(made, name, value)
