"""Examples: inputs, labels, and how they came about, in the one form in which they travel."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate.data.declarations import Declaration
from mithridate.errors import ConfigError

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

_HASH_BYTES = 1 << 24


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and labels, and how they came about.

    Attributes:
        x: inputs, one entry per example.
        y: labels from 0 in int64, None where there are none.
        class_names: what the labels are called, where they have names.
        notes: sentences for the user.
        assumptions: sentences that every result must repeat.
        declaration: what was declared, None where arrays were taken as they are.
        ids: how the user would find each example, in the order of `x`: the name of an image file, `line 17` of a text
            file, `row 17` (from 0) of another table; None for other sources.
    """

    x: Array
    y: IntArray | None
    class_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    declaration: Declaration | None = None
    ids: tuple[str, ...] | None = None

    def part(self, chosen: npt.NDArray[np.bool_] | slice) -> Examples:
        """Those that are chosen, with all that is known about them."""
        return replace(
            self,
            x=self.x[chosen],
            y=None if self.y is None else self.y[chosen],
            ids=None if self.ids is None else tuple(np.array(self.ids, dtype=object)[chosen]),
        )

    @property
    def kind(self) -> str:
        """What the inputs hold: `uint8`, `float`, `integer` or `text`."""
        return kind_of(self.x)

    @property
    def source(self) -> dict[str, Any]:
        """What `train` records, so that later inputs are read alike: plain JSON values."""
        return {
            "declaration": None if self.declaration is None else self.declaration.to_dict(),
            "class_names": None if self.class_names is None else list(self.class_names),
        }


def as_examples(given: Any, what: str, *, need_labels: bool, classes: int | None = None) -> Examples:
    """What a user gave as data, checked: the door through which tuples and arrays come in, and `Examples` go on.

    Args:
        given: `Examples`, a pair (inputs, labels), or, where no labels are needed, inputs alone; labels may be None.
        what: how to call the data in an error, such as `training`.
        need_labels: whether there must be labels.
        classes: number of classes, where it is known; by default as many as have names.

    Raises:
        ConfigError: it is something else; the message says what is wrong with which value.

    >>> as_examples(([[1.0], [2.0]], [0, 1]), "training", need_labels=True).y
    array([0, 1])
    """
    examples = given if isinstance(given, Examples) else Examples(*_pair(given, what, need_labels=need_labels))
    classes = classes or (len(examples.class_names) if examples.class_names else None)
    x, y = check_inputs(examples.x, what), examples.y
    if y is None and need_labels:
        raise ConfigError(f"The {what} data has no labels; give a pair (inputs, labels).")
    return replace(examples, x=x, y=None if y is None else check_labels(y, len(x), what, classes=classes))


def _pair(given: Any, what: str, *, need_labels: bool) -> tuple[Any, Any]:
    # A list of two can be two inputs as well, where labels are not needed.
    if not isinstance(given, tuple) and not need_labels:
        return given, None
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise ConfigError(f"Expected {what} data as a pair (inputs, labels), got {type(given).__name__}.")
    return given[0], given[1]


def kind_of(x: Array) -> str:
    """What an array of inputs holds: `uint8`, `float`, `integer` or `text`."""
    if x.dtype == np.uint8:
        return "uint8"
    return {"f": "float", "i": "integer", "u": "integer", "b": "integer", "U": "text"}[x.dtype.kind]


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
