"""Rows of a table, scaled by public constants."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mithridate import _validate
from mithridate.errors import ConfigError
from mithridate.features._encoder import Encoder
from mithridate.features._rows import check_finite, chunks, numbers, scaled, unit_rows, with_bias


@dataclass(frozen=True)
class UnitNorm(Encoder):
    """Rows of a table, shifted and scaled by public constants, with a bias, scaled to norm 1.

    Guarantee:
        Each row of the result is a function of that row and these constants alone, and equal bit for bit whether it is
        computed alone or with others.

    Assumes:
        `center` and `scale` come from outside the training data: a code book, units, other data. A mean or a standard
        deviation computed from the training set voids the certificate.

    Args:
        bias: appended to every row before it is scaled to norm 1; 0 leaves it out.
        center: subtracted from every row: one number for all columns, or one per column.
        scale: what the difference is divided by, above 0; likewise.

    Edge cases:
        ====================  =========================================================================
        a row of zeros        stays zero without a bias, and becomes 0, ..., 0, 1 with one
        images [n, ...]       are flattened
        8-bit numbers         are divided by 255, like pixels; other whole numbers are taken as they are
        ====================  =========================================================================

    >>> UnitNorm(bias=0.0).transform(np.array([[3.0, 4.0], [0.0, 0.0]]))
    array([[0.6, 0.8],
           [0. , 0. ]], dtype=float32)
    """

    name: ClassVar[str] = "unit-norm"

    bias: float = 1.0
    center: float | tuple[float, ...] = 0.0
    scale: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        _validate.number_in(0, math.inf, bias=self.bias)
        for name, low in (("center", -math.inf), ("scale", 0.0)):
            object.__setattr__(self, name, _public_constants(getattr(self, name), name, low))
        if isinstance(self.center, tuple) and isinstance(self.scale, tuple) and len(self.center) != len(self.scale):
            raise ConfigError(
                f"center has {len(self.center)} numbers and scale {len(self.scale)}; give one per column."
            )
        self._use_plain_numbers()

    def transform(self, x: np.ndarray) -> np.ndarray:
        """Features of table rows.

        Args:
            x: numbers [n, d], or [n, ...], which is flattened.

        Returns:
            float32 array [n, d] (with a bias [n, d + 1]), rows of norm 1 (or 0).

        Raises:
            ConfigError: the array is not numbers in rows, is not finite, or has another number of columns than
                `center` or `scale`.
        """
        table = numbers(x, "rows")
        if table.ndim < 2:
            raise ConfigError(f"Expected rows [n, d], got shape {table.shape}; reshape one column to [n, 1].")
        # A row is summed in the order in which it lies in memory: always the same one.
        table = np.ascontiguousarray(table.reshape(len(table), math.prod(table.shape[1:])))
        columns = table.shape[1]
        if not columns:
            raise ConfigError(f"Expected rows with at least one number, got shape {np.shape(x)}.")
        center, scale = self._constants("center", columns), self._constants("scale", columns)
        out = np.empty((len(table), columns + (1 if self.bias else 0)), dtype=np.float32)
        for rows in chunks(len(table), 2 * columns):
            with np.errstate(over="ignore"):
                values = (scaled(table[rows], np.float64) - center) / scale
            check_finite(values, rows.start)
            out[rows] = unit_rows(with_bias(values, self.bias))
        return out

    def _constants(self, name: str, columns: int) -> np.ndarray:
        values = np.atleast_1d(np.asarray(getattr(self, name), dtype=np.float64))
        if len(values) not in (1, columns):
            raise ConfigError(
                f"{name} has {len(values)} numbers, the rows have {columns}; give one number or {columns}."
            )
        return values


def _public_constants(value: Any, name: str, low: float) -> float | tuple[float, ...]:
    """One number, or one per column, each above `low`."""
    several = isinstance(value, (tuple, list, np.ndarray)) and np.ndim(value) == 1
    values: tuple[Any, ...] = tuple(value) if several else (value,)
    if not values:
        raise ConfigError(f"Expected {name} as one number or one per column, got none.")
    for number in values:
        _validate.number_in(low, math.inf, low_open=True, **{name: number})
    return tuple(float(number) for number in values) if several else float(values[0])
