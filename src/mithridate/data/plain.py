"""Inputs as plain JSON values, one for each: they become a table or an array, which is then read like any other.

So a row gives the same numbers bit for bit whether it comes from a file or from a request.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate._text import did_you_mean, listed, shown
from mithridate.data import images
from mithridate.data.columns import Column
from mithridate.data.declarations import Declaration, Images, Table
from mithridate.data.examples import Examples
from mithridate.data.frames import Cells, Frame, cells_of_objects
from mithridate.data.sources import read
from mithridate.errors import ArtifactError, ConfigError

FORMATS = ("PNG", "JPEG")
# Of one picture: decoded in colour it takes less than 64 MB.
MOST_PIXELS = 1 << 24
# numpy gives every text the room of the longest one.
_MOST_TEXT_BYTES = 1 << 28
_NUMBERS = frozenset((int, float))
# Whole numbers up to here are all different in double precision.
_MOST_WHOLE = 1 << 53


def read_plain(
    values: Sequence[Any],
    declaration: Declaration | None,
    *,
    shape: tuple[int, ...],
    kind: str,
    classes: Sequence[Any] | None = None,
) -> Examples:
    """Inputs that are plain JSON values, as those of training were.

    Guarantee: each input is the one that `read` makes of the same example in a file.

    Args:
        values: an object or a list for each row of a table, in which null is a missing value; a text; a picture, PNG or
            JPEG in base64; or numbers in lists, of the shape of one input.
        declaration: of the training data; None: it was arrays.
        shape: of one raw input, as a run recorded it.
        kind: of the inputs, likewise: `uint8`, `float`, `integer` or `text`.
        classes: the names of the classes.

    Raises:
        ConfigError: a value is no such input; the message says which.
    """
    names = None if classes is None else list(classes)
    if isinstance(declaration, Table):
        return read(_frame(values, declaration), declaration, labels=False, classes=names)
    if isinstance(declaration, Images):
        inputs = [_pixels(value, _place(at), declaration) for at, value in enumerate(values)]
        return read((np.stack(inputs), None), declaration, labels=False, classes=names)
    if kind == "text":
        return read((_texts(values), None), declaration, labels=False, classes=names)
    last = declaration is not None and declaration.channels_last
    given = (*shape[1:], shape[0]) if last else shape
    inputs = [_numbers(value, _place(at), given, kind, channels_last=last) for at, value in enumerate(values)]
    return read((np.stack(inputs), None), declaration, labels=False, classes=names)


def _place(at: int) -> str:
    return f"Input {at} (from 0)"


# --- rows of tables -------------------------------------------------------------------------------------------------


def _frame(values: Sequence[Any], table: Table) -> Frame:
    """The declared columns of rows that are objects by their names, or lists in the order of the declaration."""
    columns = {column.name: column for column in table.columns}
    unused = {name for name in (table.label, table.unit) if name is not None}
    rows = [_row(value, _place(at), tuple(columns), unused, is_text=table.is_text) for at, value in enumerate(values)]
    return Frame(
        names=tuple(columns),
        rows=len(rows),
        origin="the request",
        column=lambda name: _cells([row[name] for row in rows], columns[name]),
        place=lambda row: f"input {row} (from 0)",
    )


def _row(value: Any, place: str, names: tuple[str, ...], unused: set[str], *, is_text: bool) -> Mapping[str, Any]:
    if isinstance(value, str) and is_text:
        value = [value]
    if isinstance(value, list):
        if len(value) != len(names):
            raise ConfigError(f"{place} has {len(value)} values; give one for each column: {listed(names, 20)}.")
        value = dict(zip(names, value, strict=True))
    if not isinstance(value, dict):
        raise ConfigError(
            f"{place} is {shown(value)}; give an object with the columns {listed(names, 20)}, or a list in this order."
        )
    for name in value:
        if name not in names and name not in unused:
            raise ConfigError(
                f"{place} has the column {shown(name)}, which is not declared; {did_you_mean(name, names)}"
            )
    missing = [name for name in names if name not in value]
    if missing:
        raise ConfigError(f"{place} has no column {shown(missing[0])}; give it, as null where the value is missing.")
    for name in names:
        if isinstance(value[name], list | dict):
            raise ConfigError(f"The column {shown(name)} of {place.lower()} is no single value; give a number or text.")
        _check_text(value[name], place)
    return value


def _cells(values: list[Any], column: Column) -> Cells:
    """Cells as a file has them, in which numbers are written as the column declares."""
    if getattr(column, "decimal", ".") == ",":
        values = [repr(value).replace(".", ",") if type(value) in _NUMBERS else value for value in values]
    return cells_of_objects(values, f"The column {column.name!r}")


# --- texts ----------------------------------------------------------------------------------------------------------


def _texts(values: Sequence[Any]) -> npt.NDArray[Any]:
    for at, value in enumerate(values):
        if not isinstance(value, str):
            raise ConfigError(f"{_place(at)} is {shown(value)}; give a text.")
        _check_text(value, _place(at))
    if 4 * len(values) * max(map(len, values)) > _MOST_TEXT_BYTES:
        raise ConfigError("A text is too long to be asked about beside so many others; ask about it alone.")
    return np.array(values, dtype=np.str_)


def _check_text(value: Any, place: str) -> None:
    """Refuse what no file of text could hold."""
    if isinstance(value, str) and ("\0" in value or not _is_utf8(value)):
        raise ConfigError(f"{place} holds characters that are no text; take them out.")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # one half of a pair, which JSON can write
        return False
    return True


# --- pictures and numbers -------------------------------------------------------------------------------------------


def _pixels(value: Any, place: str, declared: Images, *, exact: bool = False) -> images.Pixels:
    """A picture in base64 as channels x height x width; where arrays were trained on, it has to have their size."""
    if not isinstance(value, str):
        raise ConfigError(f"{place} is {shown(value)}; give a picture, {' or '.join(FORMATS)}, as text in base64.")
    try:
        data = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigError(f"{place} is no text in base64; encode the bytes of a PNG or JPEG file.") from error
    try:
        with images.of_bytes(data, place, FORMATS, MOST_PIXELS) as picture:
            found, wanted = (picture.height, picture.width), declared.size
            if exact and found != wanted:
                raise ConfigError(f"{place} has {found[0]} x {found[1]} pixels; give {wanted[0]} x {wanted[1]}.")
            return images.pixels(picture, declared, place)
    except ArtifactError as error:
        raise ConfigError(str(error)) from error


def _numbers(value: Any, place: str, shape: tuple[int, ...], kind: str, *, channels_last: bool) -> npt.NDArray[Any]:
    """One input of an array; of 8-bit images, a picture will do."""
    declared = _picture_of(shape, kind, channels_last=channels_last)
    if isinstance(value, str) and declared is not None:
        found = _pixels(value, place, declared, exact=True)
        return (np.moveaxis(found, 0, -1) if channels_last else found).reshape(shape)
    if not _are_numbers(value, shape):
        size = " x ".join(map(str, shape))
        also = "" if declared is None else ", or a picture in base64"
        raise ConfigError(f"{place} is not what was trained on; give {size} numbers, in lists{also}.")
    try:
        array = np.array(value, dtype=np.float64 if kind == "float" else None)
    except (OverflowError, ValueError) as error:
        raise ConfigError(f"{place} holds a number that is too large; mend it.") from error
    if kind != "uint8":
        # Numbers beyond 64 bits are no numbers to numpy.
        if array.dtype.kind not in "if":
            raise ConfigError(f"{place} holds a number that is too large; mend it.")
        # Some programs write 1.0 for 1.
        whole = kind == "integer" and array.dtype.kind == "f" and bool((array == np.floor(array)).all())
        return array.astype(np.int64) if whole and np.abs(array).max(initial=0) < _MOST_WHOLE else array
    if array.dtype.kind != "i" or array.min(initial=0) < 0 or array.max(initial=0) > 255:
        raise ConfigError(f"{place} holds numbers other than whole ones from 0 to 255, which 8-bit images have.")
    return array.astype(np.uint8)


def _picture_of(shape: tuple[int, ...], kind: str, *, channels_last: bool) -> Images | None:
    """What a picture would have to be to be an input of this shape; None where it cannot be one."""
    if kind != "uint8" or len(shape) not in (2, 3):
        return None
    sized = (*shape, 1) if len(shape) == 2 else shape if channels_last else (*shape[1:], shape[0])
    height, width, channels = sized
    return Images((height, width), channels) if channels in (1, 3) and height * width <= MOST_PIXELS else None


def _are_numbers(value: Any, shape: tuple[int, ...]) -> bool:
    """Whether this is a list of lists ... of numbers, none of them true or false."""
    if not shape:
        return type(value) in _NUMBERS
    if not isinstance(value, list) or len(value) != shape[0]:
        return False
    if len(shape) == 1:
        return set(map(type, value)) <= _NUMBERS
    return all(_are_numbers(each, shape[1:]) for each in value)
