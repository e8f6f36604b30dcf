"""What the user declares about the data before anyone looks at it: columns and their ranges, image sizes, classes.

A certificate holds only if nothing but the mechanism looks at the training data. So how an example becomes numbers is a
function of that example and of the constants declared here, and these come from knowledge: a code book, units, physics,
other data. A declaration that was proposed from a file says so (`proposed`), and so does every result that used it.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar

from mithridate._text import did_you_mean, listed, one_line, shown
from mithridate.core.conditions import PUBLIC, Statement
from mithridate.core.units import Unit
from mithridate.data.columns import COLUMNS, Column, Text, check_name, check_whole, set_fields
from mithridate.data.frames import canonical, repeated
from mithridate.errors import ConfigError

MOST_CLASSES = 10_000  # more are no classes: a wrong column of labels, most likely
_MOST_PIXELS = 1 << 24
# Longer names are no names: a column of texts taken for the labels, most likely.
_LONGEST_CLASS = 200


class _Declared:
    """What all declarations have: names of the classes, perhaps, and whether they were read off a file."""

    kind: ClassVar[str]
    constants: ClassVar[str]  # what else was, at the start of a sentence

    classes: tuple[str, ...] | None
    proposed: bool
    unit: str | None

    def __post_init__(self) -> None:
        _check_flag("proposed", self.proposed)
        set_fields(self, classes=_checked_classes(self.classes))
        if self.unit is not None:
            check_name("unit", self.unit)
            Unit(self.unit, 1)  # checks the rest

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What a certificate takes for granted about constants that nobody has confirmed, as sentences."""
        if not self.proposed:
            return ()
        said = [Statement(f"{self.constants} were proposed from the training data; {PUBLIC}", "proposed-schema")]
        if self.classes is not None:
            names = f"The classes ({listed(self.classes)})"
            said.append(Statement(f"{names} were proposed from the training data; {PUBLIC}", "class-list"))
        return tuple(said)

    def to_dict(self) -> dict[str, Any]:
        """The declaration as plain JSON (and TOML) values, enough for `declaration_from_dict`."""
        return _to_dict(self)


@dataclass(frozen=True)
class Table(_Declared):
    """Rows of a table, each to become one row of float32 numbers; where one column of text is declared, one text.

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
        unit: name of the column with the unit of every training example, such as `vendor`, which is no input and need
            not be in other data; None: a unit is an example.
    """

    kind: ClassVar[str] = "table"
    constants: ClassVar[str] = "The columns, their kinds and their ranges"

    label: str | None
    columns: tuple[Column, ...]
    classes: tuple[str, ...] | None = None
    proposed: bool = False
    unit: str | None = None

    def __post_init__(self) -> None:
        columns = tuple(self.columns) if isinstance(self.columns, Iterable) else ()
        if not columns or not all(isinstance(column, Column) for column in columns):
            kinds = ", ".join(kind.__name__ for kind in COLUMNS.values())
            raise ConfigError(f"Expected columns as one or more of {kinds}; declare at least one.")
        names = [column.name for column in columns]
        twice = repeated(names)
        if twice is not None:
            raise ConfigError(f"The column {twice!r} is declared twice; declare it once.")
        if self.label is not None:
            check_name("label", self.label)
            if self.label in names:
                raise ConfigError(
                    f"The label {self.label!r} is declared as a column, too; a model would read it there."
                )
        if self.unit is not None and self.unit == self.label:
            raise ConfigError(f"The column {self.unit!r} cannot be both label and unit; name another column as unit.")
        if self.unit in names:
            raise ConfigError(
                f"The unit {self.unit!r} is declared as a column, too, and the name of a unit is no input: new data "
                "has other units. Take its [[columns]] out."
            )
        set_fields(self, columns=columns)
        super().__post_init__()

    @property
    def width(self) -> int:
        """Length of one row of the result, where it is numbers."""
        return sum(column.width for column in self.columns)

    @property
    def is_text(self) -> bool:
        """Whether texts are all there is: they are then handed on as texts, and `features` make numbers of them."""
        return len(self.columns) == 1 and isinstance(self.columns[0], Text)


@dataclass(frozen=True)
class Images(_Declared):
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
        unit: what a unit is called, such as `vendor`, of which training images then have a folder each, above those of
            the classes; or a file says to which each image belongs (`read`). None: a unit is an image.
    """

    kind: ClassVar[str] = "images"
    constants: ClassVar[str] = "The size of the images and their channels"

    size: tuple[int, int]
    channels: int = 3
    classes: tuple[str, ...] | None = None
    proposed: bool = False
    unit: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.size, (tuple, list)) or len(self.size) != 2:
            raise ConfigError(f"Expected size as height and width in pixels such as [32, 32], got {self.size!r}.")
        for pixels in self.size:
            check_whole(1, _MOST_PIXELS, "size in pixels", pixels)
        height, width = (int(pixels) for pixels in self.size)
        if height * width > _MOST_PIXELS:
            raise ConfigError(f"Expected a size of at most {_MOST_PIXELS:,} pixels, got {height} x {width}.")
        if self.channels not in (1, 3) or isinstance(self.channels, bool):
            raise ConfigError(f"Expected channels to be 1 (grey) or 3 (colour), got {self.channels!r}.")
        set_fields(self, size=(height, width), channels=int(self.channels))
        super().__post_init__()


@dataclass(frozen=True)
class Arrays(_Declared):
    """Arrays that are ready to be trained on: they are taken as they are.

    Assumes:
        Whoever made the arrays made each row from one example alone, with constants fixed beforehand.

    Args:
        classes: as in `Table`.
        channels_last: whether images come as n x height x width x channels; the channels are then moved to the front.
        proposed: as in `Table`.
        unit: what a unit is called, such as `vendor`; the names of the units are in an array beside the labels. None:
            `unit`, where there is an array of that name.
    """

    kind: ClassVar[str] = "arrays"
    constants: ClassVar[str] = "The order of the channels"

    classes: tuple[str, ...] | None = None
    channels_last: bool = False
    proposed: bool = False
    unit: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_flag("channels_last", self.channels_last)


Declaration = Table | Images | Arrays
_DECLARATIONS: dict[str, type[Declaration]] = {kind.kind: kind for kind in (Table, Images, Arrays)}


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
        made = (_kind_and_rest("column", column, COLUMNS) for column in listed)
        given["columns"] = tuple(column(**rest) for column, rest in made)
    if kind is Table:
        given.setdefault("label", None)
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
    for field in fields(kinds[name]):
        # Labels may come separately.
        if field.default is MISSING and field.name not in (*given, "label"):
            raise ConfigError(f"A {what} of kind {name} needs {field.name!r}; declare it.")
    return kinds[name], given


_SAID_IF_UNUSUAL = ("proposed", "decimal")


def _to_dict(made: Any) -> dict[str, Any]:
    """Without what is None, which TOML cannot hold, and without what is said only where it is not as usual."""
    found: dict[str, Any] = {"kind": made.kind}
    for field in fields(made):
        value = getattr(made, field.name)
        if value is None or (field.name in _SAID_IF_UNUSUAL and value == field.default):
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
_COMMENTS = {
    "classes": "All labels that can occur, in the order of their numbers: from knowledge, also those not in the data.",
    "unit": "Whoever controls one of these controls all of its examples: radii count them, and no single examples.",
}


_LEFT_OUT = "# --- left out; take the # away from the lines of a column to use it ---"
_LINE = 118


def to_toml(
    declaration: Declaration,
    *,
    table: str | None = None,
    remarks: Mapping[str, Sequence[str]] | None = None,
    left_out: Sequence[Column] = (),
) -> str:
    """The declaration as TOML with comments that say where the constants must come from.

    Args:
        declaration: what to write.
        table: name of the TOML table that it becomes, such as `data`; None for the top level.
        remarks: sentences about columns, by their names, to stand beside them; also about some that are not declared.
        left_out: columns that are not declared, to be written as comments.

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
        check_name("TOML table", table)
        lines.append(f"[{_toml_key(table)}]")
    for key, value in values.items():
        if key in _COMMENTS:
            lines.append(f"# {_COMMENTS[key]}")
        lines.append(f"{key} = {toml_value(value)}")
    if isinstance(declaration, Table):
        lines.append("\n# Columns that are not declared are ignored.")
    heading = f"[[{'' if table is None else f'{_toml_key(table)}.'}columns]]"
    said = {} if remarks is None else dict(remarks)
    commented: set[str] = set()
    for column in columns:
        lines.append(f"\n{heading}")
        if column["kind"] not in commented or column["kind"] == "number":
            lines.append(COLUMNS[column["kind"]].comment)
            commented.add(column["kind"])
        lines.extend(comment_lines(said.pop(column["name"], ())))
        lines.extend(f"{key} = {toml_value(value)}" for key, value in column.items())
    lines.extend(_left_out(left_out, said, heading))
    return "\n".join(lines) + "\n"


def _left_out(columns: Sequence[Column], said: Mapping[str, Sequence[str]], heading: str) -> Iterator[str]:
    """Columns as comments, each below the reason why it is none; those that have nothing to declare come last."""
    if columns or said:
        yield f"\n{_LEFT_OUT}"
    for column in columns:
        yield ""
        yield from comment_lines(said.get(column.name, ()))
        yield f"# {heading}"
        yield from (f"# {key} = {toml_value(value)}" for key, value in _to_dict(column).items())
    names = {column.name for column in columns}
    for sentences in (sentences for name, sentences in said.items() if name not in names):
        yield ""
        yield from comment_lines(sentences)


def comment_lines(sentences: Iterable[str]) -> Iterator[str]:
    """Sentences as lines of comment, whatever they hold."""
    for sentence in sentences:
        yield from textwrap.wrap(one_line(sentence), _LINE, initial_indent="# ", subsequent_indent="# ")


def toml_value(value: Any) -> str:
    """Text, a number, true or false, or a list or table of such values, as TOML writes it on one line."""
    if isinstance(value, str):
        return toml_text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_toml_key(str(key))} = {toml_value(each)}' for key, each in value.items())} }}"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def toml_text(text: str) -> str:
    """A string as TOML writes it."""
    # JSON escapes what TOML wants escaped, but for one control character.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_key(name: str) -> str:
    return name if name.isascii() and name.replace("_", "").replace("-", "").isalnum() else toml_text(name)


# --- checks ---------------------------------------------------------------------------------------------------------


def why_no_class(name: str) -> str | None:
    """What keeps a text from being the name of a class, which is printed in many places; None if nothing does."""
    if not name.isprintable():
        return "holds characters that cannot be shown"
    return f"is longer than {_LONGEST_CLASS} characters" if len(name) > _LONGEST_CLASS else None


def _checked_classes(classes: Any) -> tuple[str, ...] | None:
    if classes is None:
        return None
    if not isinstance(classes, (tuple, list)):
        raise ConfigError(f"Expected classes as a list of names, got {classes!r}.")
    for name in classes:
        check_name("class", name)
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


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"Expected {name} to be true or false, got {value!r}.")
