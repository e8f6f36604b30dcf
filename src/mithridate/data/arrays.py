"""Arrays of users: checked, scaled by constants of the recipe, and fingerprinted.

Everything here is done to each example by itself, with constants fixed beforehand: a mean or a standard deviation of
the training data would be a second look at it, which no certificate accounts for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate._io.artifacts import PathLike, read_npz
from mithridate.core.conditions import Statement
from mithridate.errors import ArtifactError, ConfigError
from mithridate.features import Encoder

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

_WANTED = "arrays 'x' (inputs) and 'y' (labels)"
_HASH_BYTES = 1 << 24
# When columns count as scaled on their own data: so close to the scale, over so many rows.
_TO_ROUNDING = 1e-5
_FEW_ROWS = 10
_FEW_VALUES = 10
_MOST_LOOKED_AT = 64


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training data as the engine takes it.

    Attributes:
        inputs: float32 and scaled, or int64 for tokens; one entry per example.
        labels: int64, from 0.
        fingerprint: SHA-256 over the arrays as they were given.
    """

    inputs: FloatArray | IntArray
    labels: IntArray
    fingerprint: str


@dataclass(frozen=True)
class Preparation:
    """How raw inputs become inputs of the network: the same for training data, test data, and any later input.

    Attributes:
        shape: shape of one raw input.
        kind: `uint8` for images, else the kind of numbers or `text`.
        mean: subtracted from images after division by 255, one number or one per channel; None where nothing is scaled.
        std: what the difference is divided by.
        channel_axis: whether images without a channel axis get one.
        tokens: how many tokens the network can look up, 0 where its inputs are not tokens; whole numbers stay whole.
        encoder: features that are computed instead of scaling.
    """

    shape: tuple[int, ...]
    kind: str
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    channel_axis: bool = False
    tokens: int = 0
    encoder: Encoder | None = None

    def __post_init__(self) -> None:
        if self.encoder is not None:
            return
        if self.kind == "text":
            raise ConfigError("Text needs features: give features='hashed-ngrams', or numbers instead of strings.")
        if self.kind == "uint8" and len(self.shape) == 3 and self.shape[0] > 4 >= self.shape[2]:
            raise ConfigError(
                f"Expected images as channels x height x width, got {self.shape}; "
                "if the channels come last, use np.moveaxis(x, -1, 1)."
            )
        for name, values in (("pixel_mean", self.mean), ("pixel_std", self.std)):
            if values is not None and len(values) not in (1, self.channels):
                raise ConfigError(f"Expected {name} as one number or {self.channels} (one per channel), got {values}.")

    @property
    def channels(self) -> int:
        """Number of channels of an image; other inputs count as one."""
        return self.shape[0] if len(self.shape) == 3 else 1

    def __call__(self, x: Array, what: str) -> FloatArray | IntArray:
        """Check raw inputs and turn them into inputs of the network.

        Args:
            x: raw inputs, one entry per example.
            what: how to call them in an error.

        Raises:
            ConfigError: they are not of the shape and kind of the training inputs, or not finite.
        """
        if x.shape[1:] != self.shape or not self._is_of_kind(kind_of(x)):
            raise ConfigError(
                f"Expected {what} inputs of shape {self.shape} and kind {self.kind} like the training inputs, "
                f"got {x.shape[1:]} and {kind_of(x)}; prepare both alike."
            )
        if self.tokens:
            return self._checked_tokens(x, what)
        inputs = self._encoded(x, what) if self.encoder is not None else self._scaled(x)
        bad = ~np.isfinite(inputs.reshape(len(inputs), -1)).all(axis=1)
        if bad.any():
            raise ConfigError(
                f"Input {int(np.argmax(bad))} of the {what} data holds NaN or infinite values; "
                "repair or leave out such examples."
            )
        return inputs

    def _is_of_kind(self, kind: str) -> bool:
        """Whole numbers and others are both numbers, unless they stand for tokens."""
        return kind == self.kind or (not self.tokens and {kind, self.kind} == {"integer", "float"})

    def _checked_tokens(self, x: Array, what: str) -> IntArray:
        tokens = np.array(x, dtype=np.int64, order="C")
        bad = ((tokens < 0) | (tokens >= self.tokens)).reshape(len(tokens), -1).any(axis=1)
        if bad.any():
            raise ConfigError(
                f"Input {int(np.argmax(bad))} of the {what} data holds a token outside 0 to {self.tokens - 1}, those "
                "that the network can look up; map unknown tokens to one of them."
            )
        return tokens

    def _encoded(self, x: Array, what: str) -> FloatArray:
        assert self.encoder is not None
        features = np.ascontiguousarray(self.encoder.transform(x), dtype=np.float32)
        if len(features) != len(x):
            raise ConfigError(f"The encoder made {len(features)} rows of {len(x)} {what} inputs; it must keep them.")
        return features

    def _scaled(self, x: Array) -> FloatArray:
        with np.errstate(over="ignore"):  # what does not fit into single precision is found as infinite
            inputs = np.array(x, dtype=np.float32, order="C")
        if self.channel_axis and len(self.shape) == 2:
            inputs = inputs[:, None]
        if self.mean is not None and self.std is not None:
            inputs /= 255
            inputs -= _per_channel(self.mean, inputs.ndim)
            inputs /= _per_channel(self.std, inputs.ndim)
        return inputs


def _per_channel(values: tuple[float, ...], dimensions: int) -> FloatArray:
    shape = (1, len(values), *[1] * (dimensions - 2)) if len(values) > 1 else (1,) * dimensions
    return np.array(values, dtype=np.float32).reshape(shape)


def kind_of(x: Array) -> str:
    """What an array of inputs holds: `uint8`, `float`, `integer` or `text`."""
    if x.dtype == np.uint8:
        return "uint8"
    return {"f": "float", "i": "integer", "u": "integer", "b": "integer", "U": "text"}[x.dtype.kind]


def read_arrays(path: PathLike, *, labels: bool) -> tuple[Array, Array | None]:
    """Inputs `x` and labels `y` of an `.npz`.

    Args:
        path: the file.
        labels: whether there must be labels.

    Raises:
        ArtifactError: the file is missing or damaged, or lacks an array.
    """
    path = Path(path)
    arrays = read_npz(path, _WANTED)
    for name in ("x", "y") if labels else ("x",):
        if name not in arrays:
            found = ", ".join(sorted(arrays)) or "none"
            raise ArtifactError(f"{path} has no array {name!r} (it has: {found}); save {_WANTED}.")
    return arrays["x"], arrays.get("y")


def check_inputs(x: Any, what: str) -> Array:
    """Inputs as an array of numbers or text with at least one entry.

    Args:
        x: what the user gave.
        what: how to call it in an error.

    Raises:
        ConfigError: it is something else.
    """
    array = _array(x, f"{what} inputs")
    if array.dtype.kind not in "fiubU":
        raise ConfigError(f"Expected {what} inputs as numbers (or text with an encoder), got {array.dtype}.")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        raise ConfigError(f"Expected {what} inputs in float32 or float64, got {array.dtype}; convert them.")
    if array.ndim == 0 or array.size == 0:
        raise ConfigError(f"The {what} inputs are empty (shape {array.shape}); give at least one example.")
    if array.ndim == 1 and array.dtype.kind != "U":
        raise ConfigError(f"Expected {what} inputs as one row per example, got shape {array.shape}; add an axis.")
    return array


def check_labels(y: Any, count: int, what: str, *, classes: int | None) -> IntArray:
    """Labels as whole numbers from 0, one for each of `count` inputs.

    Args:
        y: what the user gave.
        count: number of inputs.
        what: how to call it in an error.
        classes: number of classes, where it is known.

    Raises:
        ConfigError: they are something else; the message names the first wrong one.
    """
    labels = _array(y, f"{what} labels")
    if labels.ndim != 1:
        raise ConfigError(f"Expected {what} labels as one number per example, got shape {labels.shape}.")
    if len(labels) != count:
        raise ConfigError(f"There are {count} {what} inputs but {len(labels)} labels; give one label for each input.")
    if labels.dtype.kind not in "iuf":
        raise ConfigError(f"Expected {what} labels as whole numbers from 0, got {labels.dtype}; number the classes.")
    with np.errstate(invalid="ignore"):
        whole = labels == np.floor(labels)
    _refuse_first(labels, ~(whole & np.isfinite(labels)), what, "labels are whole numbers from 0")
    _refuse_first(labels, labels < 0, what, "labels are whole numbers from 0")
    limit = classes if classes is not None else 1 << 31
    rule = f"with classes={limit}, labels go from 0 to {limit - 1}; mend the label, or declare more classes"
    _refuse_first(labels, labels >= limit, what, rule)
    return labels.astype(np.int64)


def pair_of(name: str, value: Any) -> tuple[Any, Any]:
    """Inputs and labels.

    Raises:
        ConfigError: it is no pair.
    """
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ConfigError(f"Expected {name} as a pair (inputs, labels), got {type(value).__name__}.")
    return value[0], value[1]


def split_inputs(given: Any, what: str, classes: int) -> tuple[Array, IntArray | None]:
    """Inputs to vote on and their true labels, from an array or a pair.

    Raises:
        ConfigError: they are not what they should be.
    """
    if not isinstance(given, tuple):
        return check_inputs(given, what), None
    x, y = pair_of(f"{what} data", given)
    x = check_inputs(x, what)
    return x, None if y is None else check_labels(y, len(x), what, classes=classes)


def _refuse_first(labels: Array, wrong: npt.NDArray[np.bool_], what: str, rule: str) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ConfigError(f"Label {row} of the {what} data is {labels[row]}; {rule}.")


def _array(values: Any, name: str) -> Array:
    try:
        array = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"Expected {name} as an array: {error}.") from error
    if array.dtype.hasobject or array.dtype.fields is not None:
        raise ConfigError(f"Expected {name} as a plain array, got {array.dtype}; convert it to numbers.")
    return array


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


def fingerprint(*arrays: Array) -> str:
    """SHA-256 over type, shape and bytes of arrays, as hexadecimal digits.

    >>> fingerprint(np.zeros(2, np.uint8)) == fingerprint(np.zeros(2, np.uint8)) != fingerprint(np.zeros(2, np.int8))
    True
    """
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        data = np.ascontiguousarray(array).reshape(-1)
        step = max(1, _HASH_BYTES // max(1, data.itemsize))
        for start in range(0, len(data), step):
            digest.update(data[start : start + step].tobytes())
    return digest.hexdigest()
