"""Rows of a table to rows of numbers, by a declaration and nothing else.

Every column becomes a block of numbers with norm at most about one, so that no column drowns another when the whole row
is scaled to norm one (`mithridate.features.UnitNorm`). Nothing here is computed from more than one row: what is
remembered between rows is the hash of a value, which is the same whoever asks for it.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate._text import listed
from mithridate.data import frames
from mithridate.data.declarations import CATEGORY_PARTS, Category, Number, Table, Text
from mithridate.data.frames import Cells, FloatArray, Frame
from mithridate.errors import ConfigError

Matrix = npt.NDArray[np.float32]

_KEY = b"mithridate category"
# The line and the hats share the norm of a block.
_HALF = math.sqrt(0.5)


def encode(frame: Frame, table: Table, *, training: bool = False) -> tuple[Matrix, tuple[str, ...]]:
    """The rows of a table as numbers.

    Guarantee:
        Each row of the result is a function of that row and the declaration alone, and equal bit for bit whether it is
        computed alone or with others.

    Args:
        frame: the table.
        table: its declaration.
        training: whether this is training data, where a column without any value is a mistake.

    Returns:
        float32 array [rows, `table.width`], and notes for the user.

    Raises:
        ConfigError: a declared column is missing, or holds what it should not.
    """
    cells = {column.name: frame.cells(column.name) for column in table.columns}
    try:
        out = np.zeros((frame.rows, table.width), dtype=np.float32)
    except (MemoryError, ValueError) as error:
        raise ConfigError(
            f"{frame.rows:,} rows of {table.width:,} numbers do not fit into memory; declare fewer buckets or "
            "smaller dimensions."
        ) from error
    notes = _ignored(frame, table)
    start = 0
    for column in table.columns:
        block = out[:, start : start + column.width]
        missing = _fill(block, column, cells[column.name], frame, notes)
        block[missing, -1] = 1.0
        if training and missing.all():
            raise ConfigError(f"The column {column.name!r} of {frame.origin} has no values at all; do not declare it.")
        start += column.width
    return out, tuple(notes)


def _ignored(frame: Frame, table: Table) -> list[str]:
    used = {table.label, *(column.name for column in table.columns)}
    unused = [name for name in frame.names if name not in used]
    return [f"Columns that are not declared were ignored: {listed(unused)}."] if unused else []


def _fill(block: Matrix, column: Any, cells: Cells, frame: Frame, notes: list[str]) -> npt.NDArray[np.bool_]:
    """Write a column's block, except for the last place, and tell which rows miss the value."""
    if isinstance(column, Number):
        values = frames.numbers(cells, column.name, frame.place)
        notes.extend(_mostly_clipped(column, values))
        return _fill_number(block, column, values)
    words = frames.texts(cells)
    missing = np.fromiter((word is None for word in words), dtype=bool, count=len(words))
    if isinstance(column, Text):
        block[:, :-1] = column.encoder.transform([word or "" for word in words])
    else:
        _fill_category(block, column, words)
    return missing


def _mostly_clipped(column: Number, values: FloatArray) -> list[str]:
    outside = np.count_nonzero((values < column.low) | (values > column.high))
    if outside * 2 <= len(values):
        return []
    return [
        f"More than half of the values of {column.name!r} lie outside {column.low:g} to {column.high:g} and were "
        "clipped; check its unit."
    ]


def _fill_number(block: Matrix, column: Number, values: FloatArray) -> npt.NDArray[np.bool_]:
    missing = np.isnan(values)
    share = (np.clip(np.where(missing, column.low, values), column.low, column.high) - column.low) / (
        column.high - column.low
    )
    position = np.clip(share * (column.bins - 1), 0, column.bins - 1)  # in knots
    left = np.minimum(position.astype(np.int64), column.bins - 2)
    weight = position - left
    rows = np.flatnonzero(~missing)
    block[rows, 0] = _HALF * (2 * share[rows] - 1)
    block[rows, 1:-1] = -_HALF / column.bins
    block[rows, 1 + left[rows]] = _HALF * (1 - weight[rows] - 1 / column.bins)
    block[rows, 2 + left[rows]] = _HALF * (weight[rows] - 1 / column.bins)
    return missing


def _fill_category(block: Matrix, column: Category, words: list[str | None]) -> None:
    places = _Places(column.buckets)
    rows = [row for row, word in enumerate(words) if word is not None]
    found = [places[word] for word in words if word is not None]
    if found:
        signed = np.array(found)
        block[np.array(rows)[:, None], signed[:, :CATEGORY_PARTS]] = signed[:, CATEGORY_PARTS:] / math.sqrt(
            CATEGORY_PARTS
        )


class _Places(dict[str, tuple[int, ...]]):
    """Places and then signs of each value, hashed when first asked for; what it remembers changes no result."""

    def __init__(self, buckets: int) -> None:
        super().__init__()
        self.part = buckets // CATEGORY_PARTS

    def __missing__(self, word: str) -> tuple[int, ...]:
        # Half a surrogate pair is no character, but it can stand in a string; it is hashed as it is.
        data = word.encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(data, digest_size=8 * CATEGORY_PARTS, key=_KEY).digest()
        hashes = [int.from_bytes(digest[8 * i : 8 * i + 8], "little") for i in range(CATEGORY_PARTS)]
        places = [i * self.part + number % (1 << 63) % self.part for i, number in enumerate(hashes)]
        found = (*places, *[-1 if number >> 63 else 1 for number in hashes])
        self[word] = found
        return found
