"""A first declaration for somebody's data, to be corrected by what they know.

A proposal looks at the data, which a certificate does not account for. It is therefore marked (`proposed`), and every
result says so until its constants come from knowledge and the mark is taken away.
"""

from __future__ import annotations

import decimal
import os
from pathlib import Path
from typing import Any

import numpy as np

from mithridate._text import listed
from mithridate.data import frames, images, labels, readers
from mithridate.data.declarations import Arrays, Category, Column, Declaration, Images, Number, Table, Text
from mithridate.data.frames import Cells, FloatArray, Frame
from mithridate.errors import ConfigError

# Words per cell from which a column is called text.
_WORDS_OF_TEXT = 4.0
_LARGEST_SIDE = 64
_LOOKED_AT = 50
_LARGEST = 1e300


def propose(source: Any, *, label: str | None = None) -> Declaration:
    """A declaration to start from, marked as proposed.

    The ranges are those of the file, rounded outwards; the classes are those of the file. Both must be replaced by what
    is known from elsewhere: a code book, units, physics, other data.

    Assumes:
        Whoever uses it unchanged takes it as public; every result then says so.

    Args:
        source: as in `read`.
        label: name of the column with the labels; tables need it.

    Raises:
        ArtifactError: the file is missing or cannot be read.
        ConfigError: nothing can be proposed, or the label is missing.
    """
    if isinstance(source, (str, os.PathLike)):
        return _of_path(Path(source), label)
    if frames.is_hugging_face(source) and readers.picture_columns(source):
        return _of_pictures(source, label or "label")
    frame = frames.frame_of(source)
    if frame is not None:
        return _of_frame(frame, label)
    return _of_arrays(source)


def _of_arrays(source: Any) -> Arrays:
    names = readers.read(source, labels=True).class_names
    return Arrays(classes=names, proposed=names is not None)


def _of_path(path: Path, label: str | None) -> Declaration:
    if readers.is_folder(path):
        return _of_folder(images.list_folder(path))
    if path.suffix.lower() in (".csv", ".tsv", ".parquet"):
        return _of_frame(readers.table_file(path), label)
    return _of_arrays(path)


# --- tables ---------------------------------------------------------------------------------------------------------


def _of_frame(frame: Frame, label: str | None) -> Table:
    if label is None:
        raise ConfigError(f"Name the column with the labels; {frame.origin} has {listed(frame.names)}.")
    classes = labels.proposed(frame.cells(label), frame.place)
    columns = [_of_column(name, frame.cells(name)) for name in frame.names if name != label]
    usable = tuple(column for column in columns if column is not None)
    if not usable:
        raise ConfigError(
            f"{frame.subject} has no column with values beside the label {label!r}; there is nothing to learn."
        )
    return Table(label, usable, classes, proposed=True)


def _of_column(name: str, cells: Cells) -> Column | None:
    """What a column looks like, None where it is empty."""
    try:
        values = frames.numbers(cells, name, str)
    except ConfigError:
        return _of_words([word for word in frames.texts(cells) if word is not None], name)
    known = values[np.isfinite(values)]
    return Number(name, *rounded_range(known)) if len(known) else None


def _of_words(words: list[str], name: str) -> Column | None:
    if not words:
        return None
    spaces = sum(len(word.split()) for word in words) / len(words)
    return Text(name) if spaces >= _WORDS_OF_TEXT else Category(name)


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
    classes = None if folder.labels is None else labels.in_order(set(folder.labels))
    return Images(_rounded_size(sizes), 1 if modes <= {"1", "L"} else 3, classes, proposed=True)


def _of_pictures(source: Any, label: str) -> Images:
    column = readers.picture_columns(source)[0]
    first = images.next_picture((source[row][column] for row in range(1)), 0, "the data set")
    classes = frames.class_names(source.features.get(label))
    return Images(_rounded_size([first.size]), 1 if first.mode in ("1", "L") else 3, classes, proposed=True)


def _rounded_size(sizes: list[tuple[int, int]]) -> tuple[int, int]:
    """Height and width: the usual ones, not above 64 pixels, in multiples of four."""
    width, height = (float(np.median(side)) for side in zip(*sizes, strict=True))
    scale = min(1.0, _LARGEST_SIDE / max(width, height))
    return max(4, 4 * round(height * scale / 4)), max(4, 4 * round(width * scale / 4))
