"""Columns that look as a scaler leaves them that was fitted on this very data, which no certificate covers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate.core.conditions import Statement

Array = npt.NDArray[Any]

# When columns count as scaled on their own data: so close to the scale, over so many rows.
_TO_ROUNDING = 1e-5
_FEW_ROWS = 10
_FEW_VALUES = 10
_MOST_LOOKED_AT = 64


def fitted_preprocessing(x: Any, source: Mapping[str, Any] | None = None) -> tuple[Statement, ...]:
    """A condition where columns look as a scaler leaves them that was fitted on this very data.

    Such columns have mean 0 and deviation 1, or all of them go from 0 (or -1) to 1, to rounding. No other data set is
    scaled so well by chance; one example more or less would have moved every other one. Whatever follows from this look
    is said, and changes no vote.

    Args:
        x: training inputs.
        source: how they were read; what was made from declared columns is not looked at.

    >>> [each.id for each in fitted_preprocessing(np.linspace([0.0, 0.0], [1.0, 1.0], 30))]
    ['fitted-preprocessing']
    """
    rows = np.asarray(x)
    declaration = None if source is None else source.get("declaration")
    if (
        (declaration or {}).get("kind") == "table"
        or rows.ndim != 2
        or rows.dtype.kind != "f"
        or len(rows) < _FEW_ROWS
        or not np.isfinite(rows).all()
    ):
        return ()
    if (standardised := _standardised(rows)) > 0:
        how = f"{standardised} of {rows.shape[1]} columns have mean 0 and deviation 1 to rounding"
    elif _goes_to_one(rows):
        how = "all columns with more than a few values go from 0 or -1 to 1"
    else:
        return ()
    sentence = (
        f"In the training data {how}, as if a scaler had been fitted on it, which the certificate does not cover."
    )
    return (Statement(sentence, "fitted-preprocessing"),)


def _standardised(rows: Array) -> int:
    """How many columns have mean 0 and deviation 1."""
    candidates = np.flatnonzero(np.abs(rows.mean(axis=0, dtype=np.float64)) < _TO_ROUNDING)
    # As many of 1 as of -1 have this mean and deviation, too.
    candidates = candidates[(np.abs(rows[:, candidates]) != 1).any(axis=0)]
    deviations = [rows[:, candidates].std(axis=0, ddof=ddof, dtype=np.float64) for ddof in (0, 1)]
    return int(np.any([np.abs(each - 1) < _TO_ROUNDING for each in deviations], axis=0).sum())


def _goes_to_one(rows: Array) -> bool:
    """Whether every column of more than a few values, and at least two, has the range of a scaler."""
    low, high = rows.min(axis=0), rows.max(axis=0)
    scaled = (np.abs(high - 1) < _TO_ROUNDING) & np.isin(low, (0, -1))
    if scaled.sum() < 2:
        return False
    many = (len(np.unique(rows[:, column])) > _FEW_VALUES for column in np.flatnonzero(~scaled & (low < high)))
    if any(many):
        return False
    return sum(len(np.unique(rows[:, column])) > _FEW_VALUES for column in np.flatnonzero(scaled)[:_MOST_LOOKED_AT]) > 1
