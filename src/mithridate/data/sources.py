"""Arrays, data frames, files, folders and data sets, told apart by what they look like: read, or looked at.

`read` makes examples of them by a declaration. `propose` makes a first declaration for somebody's data, to be corrected
by what they know. A proposal looks at the data, which a certificate does not account for. It is therefore marked
(`proposed`), and every result says so until its constants come from knowledge and the mark is taken away.
"""

from __future__ import annotations

import datetime
import decimal
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from mithridate._io.artifacts import read_npz
from mithridate._io.files import check_is_file
from mithridate._text import listed
from mithridate.core.conditions import PUBLIC, Statement
from mithridate.data import frames, images
from mithridate.data import labels as labelling
from mithridate.data.columns import Category, Column, Date, Notes, Number, Text, encode, ignored
from mithridate.data.declarations import Arrays, Declaration, Images, Table
from mithridate.data.examples import Array, Examples, check_inputs
from mithridate.data.frames import Cells, FloatArray, Frame, Place
from mithridate.errors import ArtifactError, ConfigError

_TAKEN = (
    "a pair (inputs, labels) of arrays, a pandas or polars DataFrame, a torch or Hugging Face data set, or the path of "
    "a .csv, .tsv, .parquet or .npz file, an image or a folder of images"
)
_TABLE_FILES = (".csv", ".tsv", ".parquet")
_NPZ = "arrays 'x' (inputs) and 'y' (labels)"
# Words per cell from which a column is called text.
_WORDS_OF_TEXT = 4.0
# Thai, Lao, Burmese, Khmer, Japanese, Chinese.
_WITHOUT_SPACES = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
# What stands beyond so many characters of a text does not count.
LONGEST_TEXT = 1 << 13
_LARGEST_SIDE = 64
_LOOKED_AT = 50
_LARGEST = 1e300
_DECLARE = "declare its columns first; `mithridate init` proposes a declaration to start from"


@dataclass(frozen=True)
class _Request:
    """What `read` was asked for; the classes and the label are in the declaration, too, where there is one."""

    declaration: Declaration | None
    labels: bool | None
    label: str | None
    classes: tuple[str, ...] | None

    @property
    def training(self) -> bool:
        return self.labels is True

    def examples(self, x: Array, y: labelling.Numbered | None, **more: Any) -> Examples:
        """The inputs with their labels, and all that was assumed."""
        assumed = () if self.declaration is None else self.declaration.assumptions
        numbers, names, assumptions = y or (None, self.classes, ())
        more.setdefault("declaration", self.declaration)
        return Examples(x, numbers, names, assumptions=(*assumed, *assumptions), **more)

    def numbered(
        self, cells: Cells | None, count: int, place: Place, absent: str, *, are_numbers: bool = False
    ) -> labelling.Numbered | None:
        """Labels as numbers; None where there are none, unless they are needed, or where they are not wanted."""
        if cells is None and self.training:
            raise ConfigError(absent)
        if cells is None or self.labels is False:
            return None
        if len(cells) != count:
            raise ConfigError(f"There are {count} inputs but {len(cells)} labels; give one label for each input.")
        return labelling.numbered(
            cells, classes=self.classes, place=place, training=self.training, are_numbers=are_numbers
        )


def read(
    source: Any,
    declaration: Declaration | None = None,
    *,
    labels: bool | None = None,
    label: str | None = None,
    classes: tuple[str, ...] | list[str] | None = None,
) -> Examples:
    """Read examples of any source.

    Guarantee:
        Each input of the result is a function of that example and the declaration alone. What else was taken from the
        data (classes that were not declared) is listed in `assumptions`.

    Args:
        source: a pair (inputs, labels) of arrays; a pandas or polars DataFrame, also in a pair; the path of a `.csv`,
            `.tsv`, `.parquet` or `.npz` file, an image, or a folder of images (with a folder per class, if labelled);
            a map-style torch data set; a Hugging Face data set.
        declaration: how an example becomes numbers. Tables and images need one; arrays are taken as they are.
        labels: True for training data: there must be labels, of at least two classes, and where no classes are declared
            they may name them. False: labels are ignored. None: labels are read where there are some.
        label: name of the column with the labels, instead of the declared one.
        classes: names of the classes, instead of the declared ones; for test data, those of the training data. None
            there: the labels are whole numbers.

    Returns:
        The examples.

    Raises:
        ArtifactError: a file is missing or cannot be read.
        ConfigError: the source is of no kind that can be read, contradicts the declaration, or lacks one.
    """
    request = _request(declaration, labels, label, classes)
    if isinstance(source, (str, os.PathLike)):
        return _read_path(Path(source), request)
    if isinstance(source, tuple):
        return _read_pair(source, request)
    if isinstance(source, dict):
        raise ConfigError(f"Expected one data set, got several: {listed(map(str, source))}; choose one of them.")
    if frames.is_hugging_face(source):
        return _read_hugging_face(source, request)
    frame = frames.frame_of(source)
    if frame is not None:
        return _read_frame(frame, request)
    if hasattr(source, "__array__"):
        return _read_pair((source, None), request)
    if hasattr(source, "__len__") and hasattr(source, "__getitem__") and not isinstance(source, (bytes, bytearray)):
        return _read_items(source, request)
    raise ConfigError(f"Cannot read examples from {type(source).__name__}; expected {_TAKEN}.")


def _request(declaration: Any, labels: bool | None, label: str | None, classes: Any) -> _Request:
    if declaration is not None and not isinstance(declaration, Declaration):
        raise ConfigError(f"Expected a declaration (Table, Images or Arrays), got {type(declaration).__name__}.")
    names = Arrays(classes=classes).classes  # checks them
    if declaration is not None and names is not None:
        declaration = replace(declaration, classes=names)
    if isinstance(declaration, Table):
        declaration = declaration if label is None else replace(declaration, label=label)
        label = declaration.label
    return _Request(declaration, labels, label, names if declaration is None else declaration.classes)


# --- files ----------------------------------------------------------------------------------------------------------


def _read_path(path: Path, request: _Request) -> Examples:
    if _is_folder(path):
        return _read_folder(path, request)
    suffix = path.suffix.lower()
    if suffix in _TABLE_FILES:
        return _read_frame(frames.read_table(path), request)
    if suffix == ".npz":
        return _read_npz(path, request)
    if suffix in images.SUFFIXES:
        return _read_image(path, request)
    raise ConfigError(f"Cannot read {path} by its name; expected {_TAKEN}.")


def _is_folder(path: Path) -> bool:
    """Whether this is a folder; what is neither a folder nor a file is refused."""
    try:
        if path.is_dir():
            return True
        if not path.exists():
            raise ArtifactError(f"There is no file or folder {path}; check the path.")
    except OSError as error:
        raise ArtifactError(f"Cannot read {path}: {error.strerror}. Check the path.") from error
    check_is_file(path)
    return False


def _read_npz(path: Path, request: _Request) -> Examples:
    arrays = read_npz(path, _NPZ)
    for name in ("x", "y") if request.training else ("x",):
        if name not in arrays:
            found = ", ".join(sorted(arrays)) or "none"
            raise ArtifactError(f"{path} has no array {name!r} (it has: {found}); save {_NPZ}.")
    return _read_pair((arrays["x"], arrays.get("y")), request)


# --- arrays ---------------------------------------------------------------------------------------------------------


def _read_pair(pair: tuple[Any, ...], request: _Request) -> Examples:
    if len(pair) != 2:
        raise ConfigError(f"Expected a pair (inputs, labels), got {len(pair)} values.")
    x, y = pair
    frame = frames.frame_of(x)
    if frame is not None:
        return _read_frame(frame, request, None if y is None else frames.cells_of(y, "The list of labels"))
    if isinstance(x, list | tuple) and len(x):
        inputs = _stacked([_item(each) for each in x], request)
    else:
        inputs = _as_declared(check_inputs(frames.as_array(x, "The input"), "given"), request.declaration)
    cells = None if y is None else frames.cells_of(y, "The list of labels")
    place: Place = lambda row: f"example {row} (from 0)"  # noqa: E731
    absent = "Training needs labels; give a pair (inputs, labels)."
    numbered = request.numbered(cells, len(inputs), place, absent, are_numbers=_are_numbers(y))
    if numbered is None or cells is None or not labelling.are_counted(cells, request.classes):
        return request.examples(inputs, numbered)
    each = listed(f"{number} is {name}" for number, name in enumerate(request.classes or ()))
    note = f"Labels that are numbers were taken to count the classes: {each}."
    return request.examples(inputs, numbered, notes=(note,))


def _are_numbers(labels: Any) -> bool:
    """Whether a list holds nothing but whole numbers."""
    return isinstance(labels, list | tuple) and all(
        isinstance(label, Integral) and not isinstance(label, bool) for label in labels
    )


def _item(item: Any) -> Any:
    """An item of a list by itself; plain numbers of Python are all of one type."""
    if isinstance(item, str):
        return item
    array = frames.as_array(item, "An input")
    is_plain = not hasattr(item, "dtype") and array.dtype.kind in "iufb"
    return array.astype(np.float64) if is_plain else array


def _as_declared(x: Array, declaration: Declaration | None) -> Array:
    if isinstance(declaration, Table):
        raise ConfigError("A table is declared, but arrays have no column names; give a data frame, or declare arrays.")
    if isinstance(declaration, Images):
        return images.of_arrays(x, declaration)
    if declaration is None or not declaration.channels_last:
        return x
    if x.ndim != 4:
        raise ConfigError(f"channels_last is declared for images [n, height, width, channels], got shape {x.shape}.")
    return np.ascontiguousarray(np.moveaxis(x, -1, 1))


# --- tables ---------------------------------------------------------------------------------------------------------


def _read_frame(frame: Frame, request: _Request, labels: Cells | None = None) -> Examples:
    table = request.declaration
    if not isinstance(table, Table):
        raise ConfigError(f"{frame.subject} is a table; {_DECLARE}.")
    name = table.label
    if labels is None and name is not None and (name in frame.names or request.training):
        labels = frame.cells(name) if request.labels is not False else None
    absent = f"No column of {frame.origin} is declared as the label; declare it."
    y = request.numbered(labels, frame.rows, frame.place, absent)
    made = _texts if table.is_text else encode
    x, notes = made(frame, table.columns, table.label, training=request.training)
    return request.examples(x, y, notes=notes, ids=frame.ids)


def _texts(frame: Frame, columns: Sequence[Column], label: str | None, *, training: bool) -> tuple[Array, Notes]:
    """The one declared column of a table of texts, as it is; like `encode`."""
    (column,) = columns
    words = frames.texts(frame.cells(column.name))
    if training and not any(words):
        raise ConfigError(f"The column {column.name!r} of {frame.origin} has no values at all; declare another one.")
    # numpy gives every text the room of the longest one.
    return np.array([(word or "")[:LONGEST_TEXT] for word in words]), ignored(frame, columns, label)


# --- images ---------------------------------------------------------------------------------------------------------


def _images(request: _Request, origin: Any) -> Images:
    if isinstance(request.declaration, Images):
        return request.declaration
    raise ConfigError(f"{origin} holds images; declare their size and channels, such as Images(size=(32, 32)).")


def _read_folder(root: Path, request: _Request) -> Examples:
    declared = _images(request, root)
    folder = images.list_folder(root)
    cells = None if folder.labels is None else frames.cells_of_objects(folder.labels, "The folder")
    absent = f"Training needs labels; put the images of {root} into one folder per class."
    y = request.numbered(cells, len(folder.names), lambda row: f"{root / folder.names[row]}", absent)
    notes = [f"{folder.ignored:,} files that are no images by their names were ignored."] if folder.ignored else []
    empty = [name for name in request.classes or () if name not in (folder.labels or ())]
    if empty and y is not None:
        notes.append(f"No images were found of the classes {listed(empty)}.")
    x = images.load(root, folder.names, declared)
    return request.examples(x, y, notes=tuple(notes), ids=folder.names)


def _read_image(path: Path, request: _Request) -> Examples:
    declared = _images(request, path)
    y = request.numbered(None, 1, str, "Training needs more than one image; give a folder with one folder per class.")
    return request.examples(images.load(path.parent, [path.name], declared), y, ids=(path.name,))


# --- data sets ------------------------------------------------------------------------------------------------------


def _read_hugging_face(source: Any, request: _Request) -> Examples:
    source = source.with_format(None) if hasattr(source, "with_format") else source  # plain values, not tensors
    frame = frames.frame_of(source, "the data set")
    assert frame is not None
    features = source.features or {}
    pictures = _picture_columns(source)
    label = request.label or ("label" if "label" in frame.names else None)
    request, schema = _with_schema(request, frames.class_names(features.get(label)))
    if not pictures or isinstance(request.declaration, Table):
        found = _read_frame(frame, request)
    else:
        found = _read_pictures(source, frame, pictures, label, request)
    return replace(found, assumptions=found.assumptions + (schema if found.y is not None else ()))


def _picture_columns(source: Any) -> list[str]:
    """The columns of a Hugging Face data set that hold images."""
    return [name for name, feature in (source.features or {}).items() if type(feature).__name__ == "Image"]


def _with_schema(request: _Request, names: tuple[str, ...] | None) -> tuple[_Request, tuple[str, ...]]:
    """Classes that the training data brings along, where none were declared; other data does not name them."""
    if names is None or request.classes is not None or not request.training:
        return request, ()
    Arrays(classes=names)  # checks them
    assumption = f"The classes ({listed(names)}) were taken from the description of the data set; {PUBLIC}"
    return replace(request, classes=names), (Statement(assumption, "class-list"),)


def _read_pictures(source: Any, frame: Frame, columns: list[str], label: str | None, request: _Request) -> Examples:
    declared = _images(request, "The data set")
    if len(columns) > 1:
        raise ConfigError(f"The data set has several columns of images ({listed(columns)}); keep one of them.")
    cells = None if label is None or request.labels is False else frame.cells(label)
    y = request.numbered(cells, frame.rows, frame.place, "Training needs labels; name their column with label=....")
    pictures = (source[row][columns[0]] for row in range(frame.rows))
    return request.examples(images.from_pictures(pictures, frame.rows, declared, "the data set"), y, ids=frame.ids)


def _read_items(source: Any, request: _Request) -> Examples:
    """A map-style data set: so many items, each an input and its label, or an input alone."""
    count = len(source)
    if not count:
        raise ConfigError("The data set is empty; give at least one example.")
    inputs: list[Any] = []
    found: list[Any] = []
    for item in (source[row] for row in range(count)):
        pair = isinstance(item, (tuple, list)) and len(item) == 2
        if not pair and (request.labels or isinstance(item, (tuple, list, dict))):
            raise ConfigError(
                f"Expected every item of the data set as a pair (input, label), got {type(item).__name__} as item "
                f"{len(inputs)}; or give {_TAKEN}."
            )
        inputs.append(_input(item[0] if pair else item, len(inputs), request))
        found += [item[1]] if pair else []
    place: Place = lambda row: f"item {row} (from 0)"  # noqa: E731
    cells = frames.cells_of(found, "The list of labels") if found and request.labels is not False else None
    absent = "Training needs labels; give items (input, label)."
    y = request.numbered(cells, count, place, absent, are_numbers=_are_numbers(found))
    return request.examples(_stacked(inputs, request), y)


def _input(value: Any, row: int, request: _Request) -> Any:
    if hasattr(value, "convert") and hasattr(value, "mode"):
        return images.pixels(value, _images(request, "The data set"), f"Image {row} (from 0) of the data set")
    return value if isinstance(value, str) else frames.as_array(value, "An input of the data set")


def _stacked(inputs: list[Any], request: _Request) -> Array:
    # Inputs of different types would be brought to a common one: an item would then change what others become.
    first = _kind(inputs[0])
    other = next((row for row, value in enumerate(inputs) if _kind(value) != first), None)
    if other is not None:
        raise ConfigError(
            f"Item {other} (from 0) of the data set is {_kind(inputs[other])}, but item 0 is {first}; bring all inputs "
            "to one type and shape."
        )
    if isinstance(inputs[0], str):
        return check_inputs(np.array(inputs), "given")
    return _as_declared(check_inputs(np.stack(inputs), "given"), request.declaration)


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "a text"
    # The length of the longest text is part of a type, but of no text.
    return f"an array of {'text' if value.dtype.kind == 'U' else value.dtype} of shape {value.shape}"


# --- a first declaration ---------------------------------------------------------------------------------------------


def propose(source: Any, *, label: str | None = None) -> Declaration:
    """A declaration to start from, marked as proposed.

    The ranges are those of the file, rounded outwards; the classes are those of the file. Both must be replaced by what
    is known from elsewhere: a code book, units, physics, other data.

    Assumes:
        Whoever uses it unchanged takes it as public; every result then says so.

    Args:
        source: as in `read`.
        label: name of the column with the labels; tables need it, unless they come in a pair with their labels, or
            with None where the classes are declared elsewhere.

    Raises:
        ArtifactError: the file is missing or cannot be read.
        ConfigError: nothing can be proposed, or the label is missing.
    """
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if _is_folder(path):
            return _of_folder(images.list_folder(path))
        frame = frames.read_table(path) if path.suffix.lower() in _TABLE_FILES else None
    elif frames.is_hugging_face(source) and _picture_columns(source):
        return _of_pictures(source, label or "label")
    elif isinstance(source, tuple) and len(source) == 2 and (paired := frames.frame_of(source[0])) is not None:
        return _of_pair(paired, source[1])
    else:
        frame = frames.frame_of(source)
    if frame is not None:
        return _of_frame(frame, label)
    names = read(source, labels=True).class_names
    return Arrays(classes=names, proposed=names is not None)


def _of_frame(frame: Frame, label: str | None) -> Table:
    if label is None:
        raise ConfigError(f"Name the column with the labels; {frame.origin} has {listed(frame.names)}.")
    classes = labelling.proposed(frame.cells(label), frame.place)
    return Table(label, _of_columns(frame, label), classes, proposed=True)


def _of_pair(frame: Frame, labels: Any) -> Table:
    classes = None if labels is None else labelling.proposed(frames.cells_of(labels, "The list of labels"), frame.place)
    return Table(None, _of_columns(frame, None), classes, proposed=True)


def _of_columns(frame: Frame, label: str | None) -> tuple[Column, ...]:
    """What all columns look like but the label; empty ones are left out."""
    columns = [
        _of_column(name, frame.cells(name), is_category=name in frame.categories)
        for name in frame.names
        if name != label
    ]
    usable = tuple(column for column in columns if column is not None)
    if not usable:
        beside = "" if label is None else f" beside the label {label!r}"
        raise ConfigError(f"{frame.subject} has no column with values{beside}; there is nothing to learn.")
    return usable


def _of_column(name: str, cells: Cells, *, is_category: bool = False) -> Column | None:
    """What a column looks like, None where it is empty."""
    if is_category:
        return Category(name) if any(frames.texts(cells)) else None
    try:
        values = frames.numbers(cells, name, str)
    except ConfigError:
        return _of_words(name, cells)
    known = values[np.isfinite(values)]
    if not len(known):
        return None
    if set(known.tolist()) == {0.0, 1.0}:
        return Category(name)
    low, high = rounded_range(known)
    return Number(name, low, high, scale="log" if low == 0 else "linear")


def _of_words(name: str, cells: Cells) -> Column | None:
    try:
        moments = [moment for moment in frames.moments(cells, name, str) if moment is not None]
    except ConfigError:
        lengths = [_words(word) for word in frames.texts(cells) if word is not None]
        return Text(name) if sum(lengths) / len(lengths) >= _WORDS_OF_TEXT else Category(name)
    years = [moment.year for moment in moments]
    time = any(moment.time() != datetime.time() for moment in moments)
    return Date(name, min(years), max(years), time) if moments else None


def _words(text: str) -> float:
    """About how many words a text has; where no spaces are written between them, they have about two characters."""
    return len(text.split()) + len(_WITHOUT_SPACES.findall(text)) / 2


def rounded_range(values: FloatArray) -> tuple[float, float]:
    """A range around values, rounded outwards to one digit of its length.

    >>> rounded_range(np.array([17.0, 90.0])), rounded_range(np.array([5.0]))
    ((10.0, 90.0), (5.0, 10.0))
    """
    low, high = (float(np.clip(value, -_LARGEST, _LARGEST)) for value in (values.min(), values.max()))
    if low == high:
        return low, low + max(1.0, abs(low))
    return _outwards(low, high - low, decimal.ROUND_FLOOR), _outwards(high, high - low, decimal.ROUND_CEILING)


def _outwards(value: float, length: float, rounding: str) -> float:
    # In decimal digits as a person would write them: 0.3 is three times 0.1.
    unit = decimal.Decimal(1).scaleb(decimal.Decimal(repr(length)).adjusted())
    return float((decimal.Decimal(repr(value)) / unit).to_integral_value(rounding) * unit) + 0.0  # not -0.0


def _of_folder(folder: images.Folder) -> Images:
    sizes: list[tuple[int, int]] = []
    modes: set[str] = set()
    for name in folder.names[:_LOOKED_AT]:
        with images.opened(folder.root / name) as image:
            sizes.append(image.size)
            modes.add(image.mode)
    classes = None if folder.labels is None else labelling.in_order(set(folder.labels))
    return Images(_rounded_size(sizes), 1 if modes <= {"1", "L"} else 3, classes, proposed=True)


def _of_pictures(source: Any, label: str) -> Images:
    column = _picture_columns(source)[0]
    first = images.next_picture((source[row][column] for row in range(1)), 0, "the data set")
    classes = frames.class_names(source.features.get(label))
    return Images(_rounded_size([first.size]), 1 if first.mode in ("1", "L") else 3, classes, proposed=True)


def _rounded_size(sizes: list[tuple[int, int]]) -> tuple[int, int]:
    """Height and width: the usual ones, not above 64 pixels, in multiples of four."""
    width, height = (float(np.median(side)) for side in zip(*sizes, strict=True))
    scale = min(1.0, _LARGEST_SIDE / max(width, height))
    return max(4, 4 * round(height * scale / 4)), max(4, 4 * round(width * scale / 4))
