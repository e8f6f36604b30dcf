"""What the encoders have in common: numbers in, rows of a known norm out, in chunks that bound memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from mithridate.errors import ConfigError

# Numbers held per chunk of rows: 32 MiB of float64. It bounds memory and cannot change a result.
_CHUNK_NUMBERS = 1 << 22


def numbers(x: Any, what: str) -> np.ndarray:
    try:
        array = np.asarray(x)
    except ValueError as error:
        raise ConfigError(f"Expected {what} as one array of numbers, got rows of different shapes.") from error
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
        raise ConfigError(f"Expected {what} as an array of numbers, got {array.dtype}; convert it with .astype(float).")
    return array


def scaled(values: np.ndarray, dtype: type) -> np.ndarray:
    with np.errstate(over="ignore"):  # too large for float32 is found by the check that follows
        converted = values.astype(dtype)
    return converted / dtype(255) if values.dtype == np.uint8 else converted


def check_finite(values: np.ndarray, first_row: int, largest: float = math.inf) -> None:
    bad = ~np.isfinite(values) | (np.abs(values) > largest)
    if bad.any():
        row = first_row + int(bad.reshape(len(values), -1).any(axis=1).argmax())
        limit = "" if math.isinf(largest) else f" of at most {largest:g}"
        raise ConfigError(
            f"Row {row} holds a number that is not finite or too large; expected numbers{limit}. Mend it."
        )


def chunks(rows: int, numbers_per_row: int) -> Iterator[slice]:
    size = max(1, _CHUNK_NUMBERS // max(1, numbers_per_row))
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def with_bias(rows: np.ndarray, bias: float) -> np.ndarray:
    return np.concatenate([rows, np.full((len(rows), 1), bias)], axis=1) if bias else rows


def unit_rows(rows: np.ndarray, least: float = 0.0) -> np.ndarray:
    """Rows scaled to norm 1; those of norm below `least` are divided by `least`, and zero stays zero."""
    # Divided by the largest entry first: squares neither overflow nor vanish.
    peak = np.abs(rows).max(axis=1, keepdims=True)
    small = rows / np.where(peak > 0, peak, 1.0)
    norm = np.sqrt((small * small).sum(axis=1, keepdims=True))
    return np.divide(small, np.where(norm > 0, norm, 1.0)) * np.minimum(1.0, norm * peak / least if least else 1.0)
