"""A first declaration for somebody's data, to be corrected by what they know.

A proposal looks at the data, which a certificate does not account for. It is therefore marked (`proposed`), and every
result says so until its constants come from knowledge and the mark is taken away.
"""

from __future__ import annotations

import datetime
import decimal
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mithridate._io.files import PathLike
from mithridate._text import listed, shown
from mithridate.data import frames, images, looking
from mithridate.data import labels as labelling
from mithridate.data.columns import Category, Column, Date, Number, Text
from mithridate.data.declarations import Arrays, Declaration, Images, Table
from mithridate.data.examples import Examples
from mithridate.data.frames import Cells, FloatArray, Frame
from mithridate.data.looking import Looked, Remark
from mithridate.data.periods import date_of_units, unit_cells
from mithridate.data.sources import TABLE_FILES, has_arrays, is_folder, picture_columns, read
from mithridate.data.table_files import read_table
from mithridate.errors import ConfigError
from mithridate.features import is_installed

# Words per cell from which a column is called text.
_WORDS_OF_TEXT = 4.0
# Thai, Lao, Burmese, Khmer, Japanese, Chinese.
_WITHOUT_SPACES = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
# Larger images cost time and memory: those of fixed formulas, and those that an encoder looks at.
_LARGEST_SIDE, _LARGEST_ENCODED_SIDE = 64, 224
_MOST_BYTES = 1 << 32
_SMALLEST_PHOTOGRAPH = 24
_FOR_PHOTOGRAPHS, _FOR_TEXT = ("efficientnet-lite2", "efficientnet-lite0"), ("minilm", "wordllama")
_LOOKED_AT = 50
_LARGEST = 1e300


@dataclass(frozen=True)
class Proposal:
    """What a look at data suggests.

    Attributes:
        declaration: to start from, marked as proposed.
        remarks: what was seen.
        left_out: columns that could be declared and are not, each with a remark that says why.
        class_weights: for rare labels, by the shares of the labels in the data; None where there are none.
        features: the name of an encoder that is installed and suits the data; None where there is none.
        count: number of units that were looked at, where they were read: of examples, unless units are named.
        notes: what reading them had to say.
    """

    declaration: Declaration
    remarks: tuple[Remark, ...] = ()
    left_out: tuple[Column, ...] = ()
    class_weights: tuple[int, ...] | None = None
    features: str | None = None
    count: int = 0
    notes: tuple[str, ...] = ()


def propose(source: Any, *, label: str | None = None, unit: str | None = None) -> Declaration:
    """A declaration to start from, marked as proposed.

    The ranges are those of the file, rounded outwards; the classes are those of the file; identifiers, columns with one
    value and columns that repeat others are left out. All of it must be replaced by what is known from elsewhere: a
    code book, units, physics, other data.

    Assumes:
        Whoever uses it unchanged takes it as public; every result then says so.

    Args:
        source: as in `read`.
        label: name of the column with the labels; tables need it, unless they come in a pair with their labels, or
            with None where the classes are declared elsewhere.
        unit: what a unit is called, where units are named: of tables the column that names them, which is no input.

    Raises:
        ArtifactError: the file is missing or cannot be read.
        ConfigError: nothing can be proposed, or the label is missing.
    """
    return _proposal(source, label, unit).declaration


def look(source: Any, *, label: str | None = None, unit: str | None = None, units: PathLike | None = None) -> Proposal:
    """A declaration to start from, with all that was seen on the way; the data can be read by it.

    Args:
        source: as in `read`.
        label: name of the column with the labels; tables need it.
        unit: as in `propose`.
        units: as in `read`.

    Raises:
        ArtifactError: the file is missing or cannot be read.
        ConfigError: nothing can be proposed, or the label is missing.
    """
    found = _proposal(source, label, unit, has_levels=units is None)
    examples = read(source, found.declaration, labels=True, units=units)
    assert examples.y is not None  # which reading made sure of
    if examples.units is not None:  # an array may be there without a word for it
        found = replace(found, declaration=replace(found.declaration, unit=examples.units.name))
    names = examples.class_names or tuple(map(str, range(int(examples.y.max()) + 1)))
    rare = looking.rare_labels(examples.y, names)
    encoder = _encoder_for(examples)
    more = (*(() if rare is None else (rare[0],)), *(() if encoder is None else (encoder[1],)))
    return replace(
        found,
        remarks=(*found.remarks, *more),
        features=None if encoder is None else encoder[0],
        class_weights=None if rare is None else rare[1],
        count=len(examples.x) if examples.units is None else examples.units.unit.count,
        # Those of a table would say again what was left out.
        notes=() if isinstance(found.declaration, Table) else examples.notes,
    )


def _encoder_for(examples: Examples) -> tuple[str, Remark] | None:
    """The encoder to propose for photographs or texts, if one is installed, and what is to be said of it."""
    x = examples.x
    is_photograph = x.dtype == np.uint8 and x.ndim == 4 and x.shape[1] == 3 and min(x.shape[2:]) >= _SMALLEST_PHOTOGRAPH
    names = _FOR_TEXT if examples.kind == "text" else _FOR_PHOTOGRAPHS if is_photograph else ()
    name = next((name for name in names if is_installed(name)), None)
    if name is None:
        return None
    said = (
        f"The encoder {name} is installed, and proposed as features: certificates then rest on what it was trained on "
        "(trusted-encoder). Without that line, features are a formula."
    )
    return name, Remark("encoder", said)


def _proposal(source: Any, label: str | None, unit: str | None, *, has_levels: bool = True) -> Proposal:
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if is_folder(path) and not has_arrays(path):
            in_levels = unit is not None and has_levels
            folder = images.list_units(path, unit) if unit is not None and in_levels else images.list_folder(path)
            return Proposal(replace(_of_folder(folder), unit=unit))
        frame = read_table(path) if path.suffix.lower() in TABLE_FILES else None
    elif frames.is_hugging_face(source) and picture_columns(source):
        return Proposal(replace(_of_pictures(source, label or "label"), unit=unit))
    elif isinstance(source, tuple) and len(source) == 2 and (paired := frames.frame_of(source[0])) is not None:
        labels = None if source[1] is None else frames.cells_of(source[1], "The list of labels")
        return _of_columns(paired, None, labels, unit)
    else:
        frame = frames.frame_of(source)
    if frame is not None:
        return _of_frame(frame, label, unit)
    names = read(source, None if unit is None else Arrays(unit=unit), labels=True).class_names
    return Proposal(Arrays(classes=names, proposed=names is not None, unit=unit))


# --- tables ---------------------------------------------------------------------------------------------------------


def _of_frame(frame: Frame, label: str | None, unit: str | None) -> Proposal:
    if label is None:
        likely = looking.likely_labels(frame)
        end = f" Most likely it is {' or '.join(map(shown, likely))}." if likely else ""
        raise ConfigError(
            f"Expected label, the name of the column with the labels; {frame.origin} has {listed(frame.names)}.{end}"
        )
    return _of_columns(frame, label, frame.cells(label), unit)


def _of_columns(frame: Frame, label: str | None, labels: Cells | None, unit: str | None) -> Proposal:
    """What the other columns look like; labels that come with them, or from elsewhere, if they are there."""
    classes = None if labels is None else labelling.proposed(labels, frame.place)
    y = None if labels is None else labelling.numbered(labels, classes=classes, place=frame.place, training=True)[0]
    looked = [Looked(name, frame.cells(name)) for name in frame.names if name not in (label, unit)]
    unsaid = [column for column in looked if column.name not in frame.categories]
    commas, thousands = looking.comma_columns(unsaid, frame.delimiter)
    looked = [replace(column, decimal=",") if column.name in commas else column for column in looked]
    kinds = {column.name: _kind_of(column, is_category=column.name in frame.categories) for column in looked}
    reasons = _reasons(looked, kinds)
    if not any(kind is not None and name not in reasons for name, kind in kinds.items()):
        reasons = {name: reason for name, reason in reasons.items() if kinds[name] is None}  # better than nothing
    remarks: list[Remark] = []
    for column in looked:
        if column.name in reasons:
            remarks.append(reasons[column.name])
            continue
        remarks.extend(_about_kind(column, kinds[column.name], column.name in thousands))
        found = None if y is None else looking.giveaway(column, y)
        source = looking.source(column) if unit is None else None
        remarks.extend(each for each in (found, source) if each is not None)
    made = {name: kind for name, kind in kinds.items() if kind is not None}
    usable = tuple(kind for name, kind in made.items() if name not in reasons)
    if not usable:
        beside = "" if label is None else f" beside the label {label!r}"
        raise ConfigError(f"{frame.subject} has no column with values{beside}; there is nothing to learn.")
    left_out = tuple(kind for name, kind in made.items() if name in reasons)
    table = Table(label, usable, classes, proposed=True, unit=unit)
    if unit is not None:
        unit_cells(frame, table)  # which must be there
        date = date_of_units(frame, table)
        remarks += [] if date is None else [Remark("unit", f"The {unit} of {shown(date)} is the unit.", date)]
    return Proposal(table, tuple(remarks), left_out)


def _reasons(columns: list[Looked], kinds: dict[str, Column | None]) -> dict[str, Remark]:
    """Why columns are left out, by their names."""
    found: dict[str, Remark] = {}
    first: dict[tuple[str | None, ...], str] = {}
    for column in columns:
        kind = kinds[column.name]
        same = first.setdefault(column.texts, column.name)
        if kind is None:
            reason = Remark("empty", f"{shown(column.name)} has no values; it is left out.", column.name)
        else:
            earlier = same if same != column.name else None
            reason = looking.why_left_out(column, earlier, isinstance(kind, Category) and column.values is None)
        if reason is not None:
            found[column.name] = reason
    return found


def _about_kind(column: Looked, kind: Column | None, has_thousands: bool) -> list[Remark]:
    """What is remarkable about how a column is read."""
    name, said = shown(column.name), dict[str, str]()
    if isinstance(kind, Date):
        said["date"] = f"{name} is read as dates of the years {kind.first} to {kind.last}."
    if isinstance(kind, Number) and kind.decimal == ",":
        example = next((word for word in column.words if "," in word), column.words[0])
        said["decimal-comma"] = f"{name} is read with decimal commas, such as {shown(example)}."
    if has_thousands:
        example = next(word for word in column.words if "," in word)
        said["thousands"] = (
            f"{name} looks like numbers with commas between thousands, such as {shown(example)}, and is read as a "
            "category; write them without commas, and declare it as a number."
        )
    if isinstance(kind, Category) and column.values is not None and _is_zero_or_one(column.values):
        said["two-values"] = f"{name} holds nothing but 0 and 1, and is read as a category."
    return [Remark(each, sentence, column.name) for each, sentence in said.items()]


def _kind_of(column: Looked, *, is_category: bool = False) -> Column | None:
    """What a column looks like, None where it is empty."""
    if is_category:
        return Category(column.name) if any(column.texts) else None
    if column.values is None:
        return _of_words(column)
    known = column.values[np.isfinite(column.values)]
    if not len(known):
        return None
    if _is_zero_or_one(known):
        return Category(column.name)
    low, high = rounded_range(known)
    return Number(column.name, low, high, scale="log" if low == 0 else "linear", decimal=column.decimal)


def _is_zero_or_one(values: FloatArray) -> bool:
    """Whether both are there, and nothing else but gaps."""
    return set(values[np.isfinite(values)].tolist()) == {0.0, 1.0}


def _of_words(column: Looked) -> Column | None:
    if column.moments is None:
        lengths = [_words(text) for text in column.texts if text is not None]
        is_text = sum(lengths) / len(lengths) >= _WORDS_OF_TEXT
        return Text(column.name) if is_text else Category(column.name)
    moments = [moment for moment in column.moments if moment is not None]
    years = [moment.year for moment in moments]
    time = any(moment.time() != datetime.time() for moment in moments)
    return Date(column.name, min(years), max(years), time) if moments else None


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


# --- images ---------------------------------------------------------------------------------------------------------


def _of_folder(folder: images.Folder) -> Images:
    sizes: list[tuple[int, int]] = []
    modes: set[str] = set()
    for name in folder.names[:_LOOKED_AT]:
        with images.opened(folder.root / name) as image:
            sizes.append(image.size)
            modes.add(image.mode)
    classes = None if folder.labels is None else labelling.in_order(set(folder.labels))
    channels = 1 if modes <= {"1", "L"} else 3
    return Images(_rounded_size(sizes, len(folder.names), channels), channels, classes, proposed=True)


def _of_pictures(source: Any, label: str) -> Images:
    column = picture_columns(source)[0]
    first = images.next_picture((source[row][column] for row in range(1)), 0, "the data set")
    classes = frames.class_names(source.features.get(label))
    channels = 1 if first.mode in ("1", "L") else 3
    return Images(_rounded_size([first.size], len(source), channels), channels, classes, proposed=True)


def _rounded_size(sizes: list[tuple[int, int]], count: int, channels: int) -> tuple[int, int]:
    """Height and width: the usual ones, not above 64 pixels (224 where an encoder looks), in multiples of four."""
    width, height = (float(np.median(side)) for side in zip(*sizes, strict=True))
    largest = _LARGEST_SIDE
    if channels == 3 and any(map(is_installed, _FOR_PHOTOGRAPHS)):
        fits = (_MOST_BYTES / (channels * max(1, count))) ** 0.5
        largest = max(largest, min(_LARGEST_ENCODED_SIDE, int(fits)))
    scale = min(1.0, largest / max(width, height))
    return max(4, 4 * round(height * scale / 4)), max(4, 4 * round(width * scale / 4))
