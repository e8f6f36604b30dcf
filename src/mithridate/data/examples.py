"""Examples: inputs, labels, and how they came about, in the one form in which they travel, and as a network takes them.

Everything here is done to each example by itself, with constants fixed beforehand: a mean or a standard deviation of
the training data would be a second look at it, which no certificate accounts for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from mithridate._io.pieces import joined as joined_arrays
from mithridate._io.pieces import taken
from mithridate._io.scratch import scratch
from mithridate._text import counted, listed
from mithridate.core.conditions import Statement
from mithridate.data import frames
from mithridate.data.declarations import Declaration
from mithridate.data.ids import as_ids
from mithridate.data.ids import joined as joined_ids
from mithridate.data.units import Units
from mithridate.data.units import joined as joined_units
from mithridate.errors import ConfigError
from mithridate.features import BadRow, Encoder
from mithridate.features.memory import encoded

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

_READ_FRAME = "read a data frame by a declaration first: mithridate.data.read(frame, Table(...), labels=True)"
# When columns count as scaled on their own data: so close to the scale, over so many rows.
_TO_ROUNDING = 1e-5
_FEW_ROWS = 10
_FEW_VALUES = 10
_MOST_LOOKED_AT = 64
# Inputs that are prepared at a time: so many bytes, and no fewer than these. They bound memory, and change no result.
_PIECE_BYTES, _PIECE = 1 << 26, 1 << 10


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
        units: what an attacker controls as a whole; None: every example by itself.
    """

    x: Array
    y: IntArray | None
    class_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    declaration: Declaration | None = None
    ids: Sequence[str] | None = None
    units: Units | None = None

    def __repr__(self) -> str:
        shape = f"{counted(len(self.x), 'example')} of shape {self.x.shape[1:]} ({self.kind})"
        names = "" if self.class_names is None else f", classes {listed(map(str, self.class_names))}"
        return f"Examples({shape}{', without labels' if self.y is None else names})"

    def part(self, chosen: npt.NDArray[np.bool_] | IntArray | slice) -> Examples:
        """Those that are chosen, by a mask or by their numbers, with all that is known about them."""
        return replace(
            self,
            x=self.x[chosen] if isinstance(chosen, slice) else taken(self.x, chosen),
            y=None if self.y is None else self.y[chosen],
            ids=None if self.ids is None else as_ids(self.ids)[chosen],
            units=None if self.units is None else self.units.part(chosen),
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
    if examples.units is not None and len(examples.units) != len(x):
        raise ConfigError(
            f"There are {len(x)} {what} inputs but {len(examples.units)} names of units; give one for each input."
        )
    return replace(examples, x=x, y=None if y is None else check_labels(y, len(x), what, classes=classes))


def _pair(given: Any, what: str, *, need_labels: bool) -> tuple[Any, Any]:
    # A list of two can be two inputs as well, where labels are not needed.
    if not isinstance(given, tuple) and not need_labels:
        return given, None
    if not isinstance(given, tuple | list) or len(given) != 2:
        advice = f"; {_READ_FRAME}" if frames.as_frame(given) is not None else ""
        raise ConfigError(f"Expected {what} data as a pair (inputs, labels), got {type(given).__name__}{advice}.")
    return given[0], given[1]


def joined(one: Examples, more: Examples, what: str) -> Examples:
    """Examples with others behind them, which are called `what` in an error; all that is said is said of the first.

    Raises:
        ConfigError: they are of other shapes, kinds or classes.
    """
    assert one.y is not None
    assert more.y is not None
    numbers = ("integer", "float")
    is_alike = one.kind == more.kind or (one.kind in numbers and more.kind in numbers)
    if one.x.shape[1:] != more.x.shape[1:] or not is_alike:
        raise ConfigError(
            f"Expected {what} inputs of shape {one.x.shape[1:]} and kind {one.kind} like the training inputs, got "
            f"{more.x.shape[1:]} and {more.kind}; prepare both alike."
        )
    is_named = one.class_names is not None and more.class_names is not None
    if is_named and one.class_names != more.class_names:
        raise ConfigError(f"The {what} examples have other classes than the training data; declare classes in [data].")
    if one.class_names is not None and int(more.y.max()) >= len(one.class_names):
        raise ConfigError(
            f"The {what} examples have labels beyond the {len(one.class_names)} classes; declare classes."
        )
    ids = None if one.ids is None or more.ids is None else joined_ids(one.ids, more.ids, what)
    if (one.units is None) != (more.units is None):
        raise ConfigError(f"The training examples have units and the {what} ones have none, or the other way round.")
    units = None if one.units is None or more.units is None else joined_units(one.units, more.units)
    x, y = joined_arrays(one.x, more.x), np.concatenate([one.y, more.y])
    return replace(one, x=x, y=y, ids=ids, notes=(*one.notes, *more.notes), units=units)


def kind_of(x: Array) -> str:
    """What an array of inputs holds: `uint8`, `float`, `integer` or `text`."""
    if x.dtype == np.uint8:
        return "uint8"
    return {"f": "float", "i": "integer", "u": "integer", "b": "integer", "U": "text"}[x.dtype.kind]


def check_inputs(x: Any, what: str) -> Array:
    """Inputs that a user gave, as an array of numbers or text with at least one entry.

    Raises:
        ConfigError: they are something else, which is called `what`.
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
    """Labels that a user gave, as whole numbers from 0, below `classes` where it is known, one for each input.

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
        negative = labels < 0
    _refuse_first(labels, ~(whole & np.isfinite(labels)) | negative, what, "labels are whole numbers from 0")
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
        advice = "convert it to numbers" if frames.as_frame(values) is None else _READ_FRAME
        raise ConfigError(f"Expected {name} as a plain array, got {array.dtype}; {advice}.")
    return array


# --- as inputs of a network -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training data as the engine takes it.

    Attributes:
        inputs: float32 and scaled, or int64 for tokens; one entry per example.
        labels: int64, from 0.
        starts: where the examples of every unit start, and at last their number; None: a unit is an example.
    """

    inputs: FloatArray | IntArray = field(repr=False)
    labels: IntArray = field(repr=False)
    starts: IntArray | None = field(default=None, repr=False)

    @property
    def count(self) -> int:
        """The number of units."""
        return len(self.labels) if self.starts is None else len(self.starts) - 1


def pieces_of(x: Array) -> list[slice]:
    """Inputs in pieces that fit into memory, whatever the whole does."""
    size = max(_PIECE, _PIECE_BYTES * len(x) // max(x.nbytes, 1))
    return [slice(start, min(start + size, len(x))) for start in range(0, len(x), size)]


@contextmanager
def _numbered_from(start: int) -> Iterator[None]:
    """Rows of a piece have the numbers that they have in the whole, also in errors of an encoder."""
    try:
        yield
    except BadRow as error:
        raise ConfigError(str(BadRow(start + error.row, error.words))) from error


def check_channels(shape: tuple[int, ...], kind: str) -> None:
    """Refuse images whose channels come last."""
    if kind == "uint8" and len(shape) == 3 and shape[0] > 4 >= shape[2]:
        raise ConfigError(
            f"Expected images as channels x height x width, got {shape}; "
            "if the channels come last, use np.moveaxis(x, -1, 1)."
        )


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
            raise ConfigError("Text needs features: give features='hashed-words', or numbers instead of strings.")
        check_channels(self.shape, self.kind)
        for name, values in (("pixel_mean", self.mean), ("pixel_std", self.std)):
            if values is not None and len(values) not in (1, self.channels):
                raise ConfigError(f"Expected {name} as one number or {self.channels} (one per channel), got {values}.")

    @property
    def channels(self) -> int:
        """Number of channels of an image; other inputs count as one."""
        return self.shape[0] if len(self.shape) == 3 else 1

    def __call__(self, x: Array, what: str) -> FloatArray | IntArray:
        """Check raw inputs, such as `training` ones, and turn them into inputs of the network.

        Inputs that are larger than memory, such as mapped ones, are prepared piece by piece into a file; each is
        prepared by itself, so that pieces change no bit.

        Raises:
            ConfigError: they are not of the shape and kind of the training inputs, or not finite.
        """
        self._check_alike(x, what)
        parts = pieces_of(x)
        if len(parts) == 1:
            return self._prepared(x, 0, what)
        prepared: Array | None = None
        for part in parts:
            piece = self._prepared(np.ascontiguousarray(x[part]), part.start, what)
            if prepared is None:
                prepared = scratch((len(x), *piece.shape[1:]), piece.dtype)
            prepared[part] = piece
        assert prepared is not None
        return prepared

    def compared(
        self, x: Array, what: str, *, sparse: bool
    ) -> Iterator[tuple[slice, FloatArray | IntArray | csr_array]]:
        """The same for methods that compare examples: piece by piece, each with its place.

        Args:
            x: raw inputs; they are laid out anew, for an encoder may sum a row as it lies in memory.
            what: they are, for errors.
            sparse: whether rows may be sparse, where the encoder has them so.

        Raises:
            ConfigError: likewise.
        """
        self._check_alike(x, what)
        for part in pieces_of(x):
            piece = np.ascontiguousarray(x[part])
            if self.encoder is None or not sparse:
                yield part, self._prepared(piece, part.start, what)
                continue
            with _numbered_from(part.start):
                rows = encoded(self.encoder, piece, compared=True)
            yield part, rows if isinstance(rows, csr_array) else self._checked(rows, len(piece), part.start, what)

    def _prepared(self, x: Array, start: int, what: str) -> FloatArray | IntArray:
        """Inputs of the network from raw ones, of which the first has the number `start`."""
        if self.tokens:
            return self._checked_tokens(x, start, what)
        with _numbered_from(start):
            made = self._scaled(x) if self.encoder is None else encoded(self.encoder, x)
        return self._checked(made, len(x), start, what)

    def _check_alike(self, x: Array, what: str) -> None:
        # Whole numbers and others are both numbers, unless they stand for tokens.
        kind = kind_of(x)
        is_alike = kind == self.kind or (not self.tokens and {kind, self.kind} == {"integer", "float"})
        if x.shape[1:] != self.shape or not is_alike:
            raise ConfigError(
                f"Expected {what} inputs of shape {self.shape} and kind {self.kind} like the training inputs, "
                f"got {x.shape[1:]} and {kind}; prepare both alike."
            )

    def _checked_tokens(self, x: Array, start: int, what: str) -> IntArray:
        tokens = np.array(x, dtype=np.int64, order="C")
        bad = ((tokens < 0) | (tokens >= self.tokens)).reshape(len(tokens), -1).any(axis=1)
        if bad.any():
            raise ConfigError(
                f"Input {start + int(np.argmax(bad))} of the {what} data holds a token outside 0 to {self.tokens - 1}, "
                "those that the network can look up; map unknown tokens to one of them."
            )
        return tokens

    def _checked(self, made: Array, count: int, start: int, what: str) -> FloatArray:
        inputs = np.ascontiguousarray(made, dtype=np.float32)
        if len(inputs) != count:
            raise ConfigError(f"The encoder made {len(inputs)} rows of {count} {what} inputs; it must keep them.")
        bad = ~np.isfinite(inputs.reshape(len(inputs), -1)).all(axis=1)
        if bad.any():
            raise ConfigError(
                f"Input {start + int(np.argmax(bad))} of the {what} data holds NaN or infinite values; "
                "repair or leave out such examples."
            )
        return inputs

    def _scaled(self, x: Array) -> FloatArray:
        with np.errstate(over="ignore"):  # what does not fit into single precision is found as infinite
            inputs = np.array(x, dtype=np.float32, order="C")
        if self.channel_axis and len(self.shape) == 2:
            inputs = inputs[:, None]
        if self.mean is not None and self.std is not None:
            each = (-1, *[1] * (inputs.ndim - 2))  # one number for all, or one per channel
            inputs /= 255
            inputs -= np.array(self.mean, dtype=np.float32).reshape(each)
            inputs /= np.array(self.std, dtype=np.float32).reshape(each)
        return inputs


# --- what was done to them before -------------------------------------------------------------------------------------


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
        or not all(np.isfinite(rows[part]).all() for part in pieces_of(rows))
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
    means = rows.mean(axis=0, dtype=np.float64)
    candidates = np.flatnonzero(np.abs(means) < _TO_ROUNDING)
    squares, is_sign = np.zeros(len(candidates)), np.ones(len(candidates), dtype=bool)
    for part in pieces_of(rows):
        piece = rows[part][:, candidates]
        squares += np.square(piece - means[candidates]).sum(axis=0)
        is_sign &= (np.abs(piece) == 1).all(axis=0)
    deviations = [np.sqrt(squares / (len(rows) - ddof)) for ddof in (0, 1)]
    is_scaled = np.any([np.abs(each - 1) < _TO_ROUNDING for each in deviations], axis=0)
    # As many of 1 as of -1 have this mean and deviation, too.
    return int((is_scaled & ~is_sign).sum())


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
