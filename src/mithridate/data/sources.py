"""Arrays, data frames, files, folders and data sets, told apart by what they look like, and read by a declaration."""

from __future__ import annotations

import contextlib
import itertools
import os
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from mithridate._io.artifacts import map_npy, read_npz
from mithridate._io.files import PathLike, check_is_file
from mithridate._text import capitalised, listed, plural, shown
from mithridate._version import VERSION
from mithridate.core.conditions import PUBLIC, Statement
from mithridate.data import frames, images
from mithridate.data import labels as labelling
from mithridate.data.columns import encode
from mithridate.data.declarations import Arrays, Declaration, Images, Table
from mithridate.data.example_store import ExampleStore
from mithridate.data.examples import Array, Examples, check_inputs
from mithridate.data.frames import Cells, Frame, Place
from mithridate.data.periods import unit_cells
from mithridate.data.reading import ImageReading, TableReading, gathered, inputs_of, no_label
from mithridate.data.table_files import pieces, read_table
from mithridate.data.units import GatheredUnits, Units
from mithridate.errors import ArtifactError, ConfigError

_TAKEN = (
    "a pair (inputs, labels) of arrays, a pandas or polars DataFrame, a torch or Hugging Face data set, or the path of "
    "a .csv, .tsv, .parquet, .npz or .npy file, an image or a folder of images"
)
TABLE_FILES = (".csv", ".tsv", ".parquet")
_INPUTS, _LABELS, _UNITS = "x.npy", "y.npy", "unit.npy"
_NPZ = "arrays 'x' (inputs) and 'y' (labels)"
# What a unit is called where there is an array of units, and nobody says.
_UNIT = "unit"
_FILE = "file"  # the column of a table that maps files to units
_DECLARE = "declare its columns first; `mithridate init` proposes a declaration to start from"


@dataclass(frozen=True)
class _Request:
    """What `read` was asked for; the classes and the label are in the declaration, too, where there is one."""

    declaration: Declaration | None
    labels: bool | None
    label: str | None
    classes: tuple[str, ...] | None
    units: Path | None
    further: bool = False

    @property
    def training(self) -> bool:
        return self.labels is True

    @property
    def alone(self) -> bool:
        """Whether these are all the training data that there is: such has two classes, and values in every column."""
        return self.training and not self.further

    @property
    def unit(self) -> str | None:
        """What a unit is called, where examples have some: those that are not trained on have none."""
        return self.declaration.unit if self.training and self.declaration is not None else None

    def units_of(self, cells: Cells | None, place: Place, absent: str) -> Units | None:
        """The units by their names, one for each example; None where there are none, and none are declared."""
        if cells is None:
            if self.unit is not None:
                raise ConfigError(f"The unit {shown(self.unit)} is declared, but {absent}")
            return None
        gathered = GatheredUnits(self.unit or _UNIT)
        return gathered.units(gathered.add(cells, place))

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
            cells, classes=self.classes, place=place, training=self.alone, are_numbers=are_numbers
        )


def read(
    source: Any,
    declaration: Declaration | None = None,
    *,
    labels: bool | None = None,
    label: str | None = None,
    classes: tuple[str, ...] | list[str] | None = None,
    units: PathLike | None = None,
    further: bool = False,
) -> Examples:
    """Read examples of any source.

    Guarantee:
        Each input of the result is a function of that example and the declaration alone. What else was taken from the
        data (classes that were not declared) is listed in `assumptions`.

    Args:
        source: a pair (inputs, labels) of arrays; a pandas or polars DataFrame, also in a pair; the path of a `.csv`,
            `.tsv`, `.parquet` or `.npz` file, an image, or a folder of images (with a folder per class, if labelled);
            the path of an `.npy` file of inputs, or of a folder with `x.npy`, whose labels are in `y.npy` beside it;
            a map-style torch data set; a Hugging Face data set.
        declaration: how an example becomes numbers. Tables and images need one; arrays are taken as they are.
        labels: True for training data: there must be labels, of at least two classes, and where no classes are declared
            they may name them. False: labels are ignored. None: labels are read where there are some.
        label: name of the column with the labels, instead of the declared one.
        classes: names of the classes, instead of the declared ones; for test data, those of the training data. None
            there: the labels are whole numbers.
        units: for a folder of images whose declaration names a unit: a table (`.csv`, `.tsv`, `.parquet`) with a column
            `file`, the path of every image in the folder, and one of the name of the unit. Only training data is asked
            for its units.
        further: whether training data joins other training data: then it may be of one class, or lack values in a
            column, and names no classes of its own.

    Returns:
        The examples.

    Raises:
        ArtifactError: a file is missing or cannot be read.
        ConfigError: the source is of no kind that can be read, contradicts the declaration, or lacks one.
    """
    request = replace(_request(declaration, labels, label, classes, units), further=further)
    if request.units is not None and request.training and not _is_image_folder(source):
        raise ConfigError(
            f"units = {str(request.units)!r} maps the images of a folder to {plural(request.unit or _UNIT)}; of other "
            "data, name the column or the array of the units as unit, and leave units out."
        )
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


def _is_image_folder(source: Any) -> bool:
    return isinstance(source, (str, os.PathLike)) and is_folder(Path(source)) and not has_arrays(Path(source))


def _request(declaration: Any, labels: bool | None, label: str | None, classes: Any, units: Any) -> _Request:
    if declaration is not None and not isinstance(declaration, Declaration):
        raise ConfigError(f"Expected a declaration (Table, Images or Arrays), got {type(declaration).__name__}.")
    names = Arrays(classes=classes).classes  # checks them
    if declaration is not None and names is not None:
        declaration = replace(declaration, classes=names)
    if isinstance(declaration, Table):
        declaration = declaration if label is None else replace(declaration, label=label)
        label = declaration.label
    if units is not None and (declaration is None or declaration.unit is None):
        raise ConfigError(f"units = {str(units)!r} maps files to units; say what one is called: unit = 'vendor'.")
    names = names if declaration is None else declaration.classes
    return _Request(declaration, labels, label, names, None if units is None else Path(units))


# --- files ----------------------------------------------------------------------------------------------------------


def _read_path(path: Path, request: _Request) -> Examples:
    if is_folder(path):
        return _read_npy(path / _INPUTS, request) if has_arrays(path) else _read_folder(path, request)
    suffix = path.suffix.lower()
    if suffix in TABLE_FILES:
        return _read_table_file(path, request)
    if suffix == ".npz":
        return _read_npz(path, request)
    if suffix == ".npy":
        return _read_npy(path, request)
    if suffix in images.SUFFIXES:
        return _read_image(path, request)
    raise ConfigError(f"Cannot read {path} by its name; expected {_TAKEN}.")


def is_data(path: Path) -> bool:
    """Whether there is a file that could be read as examples, by its name, or a folder with images."""
    if not os.path.isdir(path):
        return path.suffix.lower() in (*TABLE_FILES, ".npz", ".npy", *images.SUFFIXES) and os.path.isfile(path)
    if has_arrays(path):
        return True
    inside = itertools.chain(path.glob("*"), path.glob("*/*"))
    return any(each.suffix.lower() in images.SUFFIXES for each in inside)


def has_arrays(path: Path) -> bool:
    """Whether this is a folder of plain arrays."""
    return os.path.isfile(path / _INPUTS)


def is_folder(path: Path) -> bool:
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
    own = None if request.unit is None else arrays.get(request.unit)
    units = (arrays.get(_UNIT) if own is None else own) if request.training else None
    absent = f"{path} has no array {shown(_UNIT)}; save the unit of every example in one, or leave unit out."
    examples = _read_pair((arrays["x"], arrays.get("y")), request, units, absent)
    texts = [name for name, each in arrays.items() if each.dtype.kind == "U" and each.shape == (len(examples.x),)]
    unused = [name for name in texts if name not in ("x", "y")]
    if not unused or not request.training or units is not None:
        return examples
    note = f"Arrays with a text for every example are not used: {listed(unused)}; one that names sources can be unit."
    return replace(examples, notes=(*examples.notes, note))


def _read_npy(path: Path, request: _Request) -> Examples:
    """An array that is mapped, with those beside it that are its labels: the form of what is larger than memory."""
    labels = path.with_name(_LABELS)
    has_labels = path.name == _INPUTS and os.path.isfile(labels)
    if request.training and not has_labels:
        raise ArtifactError(f"{path} has no labels beside it; save inputs as {_INPUTS} and labels as {_LABELS}.")
    units = path.with_name(_UNITS)
    has_units = request.training and os.path.isfile(units)
    absent = f"{path} has no {_UNITS} beside it; save the unit of every example there, or leave unit out."
    pair = map_npy(path), map_npy(labels) if has_labels and request.labels is not False else None
    return _read_pair(pair, request, map_npy(units) if has_units else None, absent)


# --- arrays ---------------------------------------------------------------------------------------------------------


_NO_ROOM = "arrays have no room for units; give Examples(x, y, units=Units.of(names)), or leave unit out."


def _read_pair(pair: tuple[Any, ...], request: _Request, names: Any = None, absent: str = _NO_ROOM) -> Examples:
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
    no_labels = "Training needs labels; give a pair (inputs, labels)."
    numbered = request.numbered(cells, len(inputs), place, no_labels, are_numbers=_are_numbers(y))
    units = _units_of_array(names, len(inputs), request, absent)
    if numbered is None or cells is None or not labelling.are_counted(cells, request.classes):
        return request.examples(inputs, numbered, units=units)
    each = listed(f"{number} is {name}" for number, name in enumerate(request.classes or ()))
    note = f"Labels that are numbers were taken to count the classes: {each}."
    return request.examples(inputs, numbered, notes=(note,), units=units)


def _units_of_array(names: Any, count: int, request: _Request, absent: str) -> Units | None:
    if names is None:
        return request.units_of(None, str, absent)
    units = Units.of(names, request.unit or _UNIT)
    if len(units) != count:
        raise ConfigError(
            f"There are {count} inputs but {len(units)} names of {units.unit.many}; give one for each input."
        )
    return units


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
    return images.moved_to_front(x)


# --- tables ---------------------------------------------------------------------------------------------------------


def _read_frame(frame: Frame, request: _Request, labels: Cells | None = None) -> Examples:
    table = _table(frame, request)
    name = table.label
    if labels is None and name is not None and (name in frame.names or request.training):
        labels = frame.cells(name) if request.labels is not False else None
    y = request.numbered(labels, frame.rows, frame.place, no_label(frame))
    units = request.units_of(None if request.unit is None else unit_cells(frame, table), frame.place, "")
    if table.is_text:
        texts = inputs_of(table, training=request.alone)
        x = np.concatenate(list(texts(frame, is_last=True)))
        return request.examples(x, y, notes=texts.notes, ids=frame.ids, units=units)
    x, notes = encode(frame, table.columns, table.label, training=request.alone, unit=table.unit)
    return request.examples(x, y, notes=notes, ids=frame.ids, units=units)


def _table(frame: Frame, request: _Request) -> Table:
    if isinstance(request.declaration, Table):
        return request.declaration
    if isinstance(request.declaration, Images):
        raise ConfigError(f"{frame.subject} is a table, but images are declared; give images of the same kind.")
    raise ConfigError(f"{frame.subject} is a table; {_DECLARE}.")


def _read_table_file(path: Path, request: _Request) -> Examples:
    """Like a frame, but in pieces."""
    table = request.declaration
    if not isinstance(table, Table):
        table = _table(next(pieces(path)).frame, request)
    labels = None if request.labels is False else labelling.GatheredLabels(request.classes, training=request.alone)
    units = None if request.unit is None else GatheredUnits(request.unit)
    reading = TableReading(path, table, labels, units, training=request.training, alone=request.alone)
    x, numbers = gathered(reading, ExampleStore.of(_identity(path, table, request.labels), reading.content))
    y = None
    if labels is not None and (codes := numbers.get("labels")) is not None:
        of_code, names, assumptions = labels.numbered()
        y = of_code[np.asarray(codes)], names, assumptions
    lines = numbers.get("lines")
    ids = frames.ids_of(range(len(x)) if lines is None else lines, are_lines=lines is not None)
    found = None if units is None else units.units(np.asarray(numbers["units"], dtype=np.int64))
    return request.examples(x, y, notes=reading.notes, ids=ids, units=found)


def _identity(path: Path, declaration: Declaration, labels: bool | None) -> dict[str, Any]:
    """All that examples in files depend on, but for what is in the files."""
    reader = "pillow" if isinstance(declaration, Images) else "pyarrow" if path.suffix.lower() == ".parquet" else ""
    return {
        "path": os.path.realpath(path),
        "declaration": declaration.to_dict(),
        "labels": labels,
        "version": f"{VERSION} {_version_of(reader)}",
    }


def _version_of(package: str) -> str:
    try:
        return version(package) if package else ""
    except PackageNotFoundError:  # which is said where it is needed
        return ""


# --- images ---------------------------------------------------------------------------------------------------------


def _images(request: _Request, origin: Any) -> Images:
    if isinstance(request.declaration, Images):
        return request.declaration
    if isinstance(request.declaration, Table):
        raise ConfigError(f"{origin} holds images, but a table is declared; give a table with its columns.")
    raise ConfigError(f"{origin} holds images; declare their size and channels, such as Images(size=(32, 32)).")


def _read_folder(root: Path, request: _Request) -> Examples:
    declared = _images(request, root)
    folder = _listed(root, request)
    cells = None if folder.labels is None else frames.cells_of_objects(folder.labels, "The folder")
    absent = f"Training needs labels; put the images of {root} into one folder per class."
    y = request.numbered(cells, len(folder.names), lambda row: f"{root / folder.names[row]}", absent)
    notes = [f"Files that are no images by their names were ignored: {folder.ignored:,}."] if folder.ignored else []
    empty = [name for name in request.classes or () if name not in (folder.labels or ())]
    if empty and y is not None:
        notes.append(f"No images were found of the classes {listed(empty)}.")
    units = _units_of_folder(folder, request)
    reading = ImageReading(folder, declared)
    store = ExampleStore.of(_identity(root, declared, None), reading.content) if reading.is_large else None
    x, _ = gathered(reading, store)
    return request.examples(x, y, notes=tuple(notes), ids=folder.names, units=units)


def _listed(root: Path, request: _Request) -> images.Folder:
    """The images of a folder; with one of each unit above those of the classes, where the units come from there."""
    unit = None if request.declaration is None else request.declaration.unit
    if unit is None or request.units is not None:
        return images.list_folder(root)
    if request.training:
        return images.list_units(root, unit)
    try:
        return images.list_folder(root)
    except ArtifactError:  # it has none there; those to predict may lie as those that were trained on do
        with contextlib.suppress(ConfigError):
            return images.list_units(root, unit)
        raise


def _units_of_folder(folder: images.Folder, request: _Request) -> Units | None:
    if request.unit is None:
        return None
    if request.units is not None:
        return _mapped(folder, request.units, request.unit)
    assert folder.units is not None
    place: Place = lambda row: f"{folder.root / folder.names[row]}"  # noqa: E731
    return request.units_of(frames.cells_of_objects(folder.units, "The folder"), place, "")


def _mapped(folder: images.Folder, path: Path, unit: str) -> Units:
    """The units of the images of a folder, by a table of files and units."""
    if path.suffix.lower() not in TABLE_FILES:
        raise ConfigError(f"Cannot read {path} by its name; expected units as a table, in .csv, .tsv or .parquet.")
    table, gathered = read_table(path), GatheredUnits(unit)
    units = gathered.units(gathered.add(table.cells(unit), table.place))
    rows, there = dict[str, int](), set(folder.names)
    for row, cell in enumerate(table.cells(_FILE).tolist()):
        file = "" if cell is None else str(cell).strip().removeprefix("./")
        if file in rows:
            raise ConfigError(f"{_line(table, row)} names the file {shown(file)} again; keep one line for each file.")
        if file not in there:
            raise ConfigError(
                f"{_line(table, row)} names the file {shown(file)}, and there is no such image in {folder.root}; write "
                "paths as they are from there, with forward slashes, or take the line out."
            )
        rows[file] = row
    absent = next((name for name in folder.names if name not in rows), None)
    if absent is not None:
        raise ConfigError(
            f"{path} has no line for {shown(absent)}, an image in {folder.root}; add it, or leave the image out."
        )
    return units.part(np.array([rows[name] for name in folder.names], dtype=np.int64))


def _line(table: Frame, row: int) -> str:
    """A row at the start of a sentence."""
    return capitalised(table.place(row))


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
    pictures = picture_columns(source)
    label = request.label or ("label" if "label" in frame.names else None)
    request, schema = _with_schema(request, frames.class_names(features.get(label)))
    if not pictures or isinstance(request.declaration, Table):
        found = _read_frame(frame, request)
    else:
        found = _read_pictures(source, frame, pictures, label, request)
    return replace(found, assumptions=found.assumptions + (schema if found.y is not None else ()))


def picture_columns(source: Any) -> list[str]:
    """The columns of a Hugging Face data set that hold images."""
    return [name for name, feature in (source.features or {}).items() if type(feature).__name__ == "Image"]


def _with_schema(request: _Request, names: tuple[str, ...] | None) -> tuple[_Request, tuple[str, ...]]:
    """Classes that the training data brings along, where none were declared; other data does not name them."""
    if names is None or request.classes is not None or not request.alone:
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
    units = request.units_of(None if request.unit is None else frame.cells(request.unit), frame.place, "")
    pictures = (source[row][columns[0]] for row in range(frame.rows))
    x = images.from_pictures(pictures, frame.rows, declared, "the data set")
    return request.examples(x, y, ids=frame.ids, units=units)


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
    units = request.units_of(None, place, _NO_ROOM.replace("arrays", "pairs (input, label)"))
    return request.examples(_stacked(inputs, request), y, units=units)


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
