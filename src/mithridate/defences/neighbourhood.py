"""Training examples vote on an input by how near they are: nearest neighbours, and sums of a kernel.

Nothing is trained and nothing is random. What a certificate needs is that an example's vote on an input is a function
of these two alone, *bit for bit*, whatever other examples there are. Products of matrices in floating point do not give
that: their rounding depends on the shapes. So every row of features is rounded to whole numbers first, small enough
that single precision holds every number on the way to a dot product, in any order of summation (see `_whole_rows`).
The rounded cosine *is* the similarity of two examples, and weights are whole numbers looked up in a table, so that
their sums are exact, too.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mithridate import _validate
from mithridate.core.conditions import Statement, classes_read_off, of_user, tuned_constants
from mithridate.core.mechanism import KernelSum, NearestExamples, checked_scales
from mithridate.core.votes import Votes
from mithridate.data.arrays import (
    Preparation,
    check_inputs,
    check_labels,
    fingerprint,
    fitted_preprocessing,
    kind_of,
    pair_of,
    split_inputs,
)
from mithridate.errors import ConfigError
from mithridate.features import (
    Encoder,
    Frozen,
    OrientedGradients,
    PhotoGradients,
    UnitNorm,
    about_encoder,
    pick_encoder,
)

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]

# The weight of an example whose kernel is 1.
UNIT = 1024

# Norm that no row of whole numbers exceeds: products of two rows stay within 2^24, exact in single precision.
_LARGEST_NORM = 1 << 12
_MOST_COLUMNS = 1 << 24
# Dot products are rounded to multiples of this before a weight is looked up: the table then fits into a fast cache.
_STEP = 1 << 8
_TABLE_END = _LARGEST_NORM**2 // _STEP
# How much is computed at a time. It bounds memory and cannot change a result; a block of weights must sum to at most
# 2^24 to be exact in single precision.
_BLOCK_EXAMPLES = 1 << 13
_CHUNK_INPUTS = 1 << 8
_CHUNK_NUMBERS = 1 << 23
_UNIT_ROWS = UnitNorm(bias=0.0)

_ROUNDING_OF_TRUSTED = (
    "The features of an example are taken to depend on that example alone, bit for bit; "
    "rounding of the trusted encoder that depends on the other examples is not covered."
)


# --- kernels --------------------------------------------------------------------------------------------------------


class Kernel(Protocol):
    """A function of the cosine between the features of an input and of an example, with values from 0 to 1.

    It must be fixed before anyone looks at the training set. Write your own with these two methods.
    """

    def __call__(self, cosine: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        """The values at these cosines, each from 0 to 1."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """The kernel as plain JSON values."""
        ...


@dataclass(frozen=True)
class Exponential:
    """1 where the cosine is at least `full`; below, a factor of e less for every `width`.

    An attacker's example weighs up to 1, so a kernel certifies much where it gives the honest examples of a class
    nearly that, and this is what `full` is for: about the cosine between examples of one class. With oriented gradients
    that is 0.8 for digits and clothes, and 0.4 for photographs (0.5 with photo gradients). With `full` = 1, only copies
    of the input weigh 1.

    Args:
        width: how far the cosine falls for a factor of e, above 0.
        full: the cosine from which on the weight is 1, in [-1, 1].

    >>> Exponential(width=0.2)(np.array([1.0, 0.8])).round(3).tolist()
    [1.0, 0.368]
    """

    width: float
    full: float = 1.0

    def __post_init__(self) -> None:
        _validate.number_in(0, math.inf, low_open=True, width=self.width)
        _validate.number_in(-1, 1, full=self.full)
        object.__setattr__(self, "width", float(self.width))
        object.__setattr__(self, "full", float(self.full))

    def __call__(self, cosine: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        """The values at these cosines."""
        with np.errstate(over="ignore", under="ignore"):  # a tiny width
            return np.exp(np.minimum(cosine - self.full, 0.0) / self.width)

    def to_dict(self) -> dict[str, Any]:
        """The kernel as plain JSON values."""
        return {"name": "exponential", "width": self.width, "full": self.full}


@dataclass(frozen=True)
class Within:
    """1 where the cosine is at least `cosine`, else 0: the examples within a distance vote (radius neighbours, rNN).

    References:
        J. Jia, Y. Liu, X. Cao, N. Z. Gong, 2022, "Certified robustness of nearest neighbors against data poisoning and
        backdoor attacks".

    Args:
        cosine: the least cosine of an example that votes, in [-1, 1].

    >>> Within(cosine=0.7)(np.array([0.9, 0.5])).tolist()
    [1.0, 0.0]
    """

    cosine: float

    def __post_init__(self) -> None:
        _validate.number_in(-1, 1, cosine=self.cosine)
        object.__setattr__(self, "cosine", float(self.cosine))

    def __call__(self, cosine: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        """The values at these cosines."""
        return (cosine >= self.cosine).astype(np.float64)

    def to_dict(self) -> dict[str, Any]:
        """The kernel as plain JSON values."""
        return {"name": "within", "cosine": self.cosine}


# Chosen on held-out parts of the training sets of MNIST and Fashion-MNIST (drawings, with oriented gradients) and of
# CIFAR-10 (in colour, with oriented gradients; photographs, with photo gradients); public constants now. For other
# inputs nothing was tuned.
_DRAWINGS, _IN_COLOUR = Exponential(width=0.03, full=0.75), Exponential(width=0.06, full=0.4)
_PHOTOGRAPHS = Exponential(width=0.06, full=0.5)
_OTHERS = Exponential(width=0.1, full=0.8)


def _default_kernel(encoder: Encoder, channels: int) -> Kernel:
    if not isinstance(encoder, OrientedGradients):
        return _OTHERS
    if channels != 3:
        return _DRAWINGS
    return _PHOTOGRAPHS if isinstance(encoder, PhotoGradients) else _IN_COLOUR


def _about_kernel(encoder: Encoder, x: npt.NDArray[Any], classes: int) -> tuple[Statement, ...]:
    """What the default kernel was tuned on."""
    if not isinstance(encoder, OrientedGradients):
        return ()
    looked_at = ("MNIST", "Fashion-MNIST", "CIFAR-10")
    return (tuned_constants("The constants of the kernel", looked_at, math.prod(x.shape[1:]), classes),)


# --- votes ----------------------------------------------------------------------------------------------------------


def kernel_votes(
    training_set: tuple[npt.ArrayLike, npt.ArrayLike],
    test_set: npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike | None],
    *,
    features: str | Encoder | None = None,
    kernel: Kernel | None = None,
    mirrored: bool = False,
    classes: int | None = None,
    own: bool = False,
    progress: Progress | None = None,
    source: Mapping[str, Any] | None = None,
    assumptions: Sequence[str] = (),
) -> Votes:
    """Scores of labels: each training example adds to its label what the kernel makes of its cosine to the input.

    Guarantee: `counts[x, l]` is the sum over the examples of label l of their weights on input x. A weight is a whole
    number from 0 to `UNIT` and a function of the input and that one example (its features), bit for bit, whatever the
    other examples and inputs are and in whatever order they come; sums are exact.

    Assumes: features and kernel were fixed before anyone looked at the training set, and what `votes.assumptions`
    lists.

    Args:
        training_set: inputs and labels; text needs `features`.
        test_set: inputs to vote on, or a pair with their true labels.
        features: name of a fixed encoder, or one of `mithridate.features`; without it, inputs are flattened (8-bit
            numbers divided by 255). Rows are scaled to norm 1 in any case, and a row of zeros has the cosine 0 to all.
        kernel: by default one for these features; a function of the cosine with values from 0 to 1, multiplied by
            `UNIT` and rounded. The cosine is that of rows rounded to multiples of about 1/4096, and then rounded toward
            0 to a multiple of about 1/65536: a copy of the input can have a cosine slightly below 1.
        mirrored: for images [n, H, W] or [n, channels, H, W]: an example is as near as it is to the input or to its
            mirror image, left and right exchanged, whichever is nearer.
        classes: number of labels; by default one more than the largest in the training set.
        own: also count by weight the examples of the predicted label, `evidence["own"]`, which threats without
            insertions need.
        progress: called with the number of inputs that are done and their total.
        source: how the data was read; see `mithridate.train`.
        assumptions: what was taken for granted when the data was read, a sentence each.

    Raises:
        ConfigError: an argument or the data is not what it should be.
    """
    task = _task(training_set, test_set, features, classes, mirrored, source, assumptions)
    if kernel is None:
        kernel, task = task.kernel, replace(task, assumptions=(*task.assumptions, *task.kernel_assumptions))
    table = _table(kernel, task.scale)
    examples = _ByLabel.of(task.rows, task.labels)
    scores = np.zeros((task.inputs, task.classes), dtype=np.int64)
    histograms = np.zeros((task.inputs, UNIT + 1), dtype=np.uint32) if own else None
    for part in _chunks(task.inputs, _CHUNK_INPUTS, progress):
        scores[part] = _scores(task.views[:, part], examples, table, task.classes)
        if histograms is not None:
            histograms[part] = _own_weights(task.views[:, part], examples, table, scores[part].argmax(axis=1))
    recipe = {"method": "kernel-vote", **task.recipe, "kernel": kernel.to_dict()}
    evidence = {} if histograms is None else {"own": histograms}
    return _votes(task, scores, KernelSum(UNIT), recipe, evidence, source)


def neighbour_votes(
    training_set: tuple[npt.ArrayLike, npt.ArrayLike],
    test_set: npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike | None],
    *,
    neighbours: int | Sequence[int],
    leads: Sequence[int | Sequence[int]] = (),
    features: str | Encoder | None = None,
    mirrored: bool = False,
    classes: int | None = None,
    progress: Progress | None = None,
    source: Mapping[str, Any] | None = None,
    assumptions: Sequence[str] = (),
) -> Votes:
    """Labels of the training examples nearest to each input.

    Guarantee: `evidence["order"][x]` holds the labels of the 2 * `neighbours` examples (all, if there are fewer) that
    come first on input x, in order, and `counts[x]` counts the first `neighbours` of them; of several numbers, the
    first one is meant, and the certificate reads the others off the order. Of two examples that one
    comes first whose features, rounded to whole numbers, have the larger dot product with those of x (with `mirrored`,
    with those of x or of its mirror image, whichever is larger); with equal ones, that one whose content (rounded
    features and label) has the smaller BLAKE2b hash; examples of equal content are interchangeable. So which of two
    comes first is a function of x and these two alone, bit for bit.

    Assumes: the features were fixed before anyone looked at the training set, and what `votes.assumptions` lists.

    Args:
        training_set: inputs and labels; text needs `features`.
        test_set: inputs to vote on, or a pair with their true labels.
        neighbours: how many examples vote; or several numbers, the largest first: fewer are asked where more do not
            agree, see `mithridate.core.mechanism.NearestExamples`.
        leads: by how many votes each of several numbers of neighbours has to agree, except the last; a number, or a
            list with one for each label.
        features: see `kernel_votes`.
        mirrored: see `kernel_votes`.
        classes: number of labels; by default one more than the largest in the training set.
        progress: called with the number of inputs that are done and their total.
        source: how the data was read; see `mithridate.train`.
        assumptions: what was taken for granted when the data was read, a sentence each.

    Raises:
        ConfigError: an argument or the data is not what it should be, or there are fewer examples than `neighbours`.
    """
    numbers, needed = checked_scales(neighbours, leads)
    voters = NearestExamples(numbers, leads=needed)
    task = _task(training_set, test_set, features, classes, mirrored, source, assumptions)
    voters.needed(task.classes)  # or it says what is wrong, before anything is computed
    if voters.most > len(task.rows):
        raise ConfigError(
            f"There are {len(task.rows)} training examples, fewer than neighbours={voters.most}; ask for fewer."
        )
    mechanism = replace(voters, num_train=len(task.rows))
    by_hash = _hash_order(task.rows, task.labels)
    rows, labels = task.rows[by_hash], task.labels[by_hash]
    order = np.empty((task.inputs, mechanism.shown), dtype=np.int64)
    for part in _chunks(len(order), max(1, min(_CHUNK_INPUTS, _CHUNK_NUMBERS // len(rows))), progress):
        order[part] = labels[_nearest(_products(task.views[:, part], rows), order.shape[1])]
    said = {name: value for name, value in mechanism.to_dict().items() if name in ("neighbours", "leads")}
    recipe = {"method": "nearest-neighbours", **task.recipe, **said}
    counts = _histograms(order[:, : mechanism.most], task.classes)
    return _votes(task, counts, mechanism, recipe, {"order": order}, source)


# --- data -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Task:
    """Checked data, with features as rows of whole numbers.

    Attributes:
        rows: of the training set.
        labels: of the training set.
        views: rows of the test inputs, 1 x inputs x columns; with their mirror images, 2 x inputs x columns.
        true_labels: of the test inputs, where known.
        classes: number of labels.
        scale: what a feature of 1 became.
        recipe: features and classes, as the recipes of votes name them.
        kernel: for these features, where none is given.
        fingerprints: of training set and test inputs.
        assumptions: what is taken for granted.
        kernel_assumptions: likewise, where that kernel is used.
    """

    rows: FloatArray
    labels: IntArray
    views: FloatArray
    true_labels: IntArray | None
    classes: int
    scale: int
    recipe: dict[str, Any]
    kernel: Kernel
    fingerprints: tuple[str, str]
    assumptions: tuple[str, ...]
    kernel_assumptions: tuple[Statement, ...]

    @property
    def inputs(self) -> int:
        """Number of test inputs."""
        return self.views.shape[1]


def _task(
    training_set: Any,
    test_set: Any,
    features: Any,
    classes: int | None,
    mirrored: bool,
    source: Mapping[str, Any] | None,
    assumptions: Sequence[str],
) -> _Task:
    check_mirrored(mirrored)
    _validate.sentences(assumptions=assumptions)
    if classes is not None:
        _validate.positive_integer(classes=classes)
    x, y = pair_of("training_set", training_set)
    x = check_inputs(x, "training")
    y = check_labels(y, len(x), "training", classes=classes)
    count = int(y.max()) + 1 if classes is None else int(classes)
    if count < 2:
        raise ConfigError("Expected classes of at least 2; with one class there is nothing to certify.")
    test, true_labels = split_inputs(test_set, "test", count)
    prepare = Preparation(x.shape[1:], kind_of(x), encoder=_encoder(features, kind_of(x)))
    assert prepare.encoder is not None
    # An encoder may sum a row in the order in which it lies in memory: always the same one.
    inputs = prepare(np.ascontiguousarray(x), "training")
    _require_exact_products()
    rows, scale = _whole_rows(inputs)
    seen = [test, _mirror_images(test, prepare.kind)] if mirrored else [test]
    views = np.stack([_whole_rows(prepare(np.ascontiguousarray(view), "test"))[0] for view in seen])
    recipe = {"features": prepare.encoder.to_dict(), "classes": count}
    trusted = isinstance(prepare.encoder, Frozen)
    return _Task(
        # Of an encoder that is trusted we know only what it does: its features count as data, too.
        fingerprints=(fingerprint(x, y, *([inputs] if trusted else [])), fingerprint(test)),
        rows=rows,
        labels=y,
        views=views,
        true_labels=true_labels,
        classes=count,
        scale=scale,
        # Only where it is so: the recipes of other votes, and their fingerprints, stay what they were.
        recipe={**recipe, "mirrored": True} if mirrored else recipe,
        kernel=_default_kernel(prepare.encoder, prepare.channels),
        assumptions=(
            *of_user(assumptions),
            *_assumptions(prepare.encoder, count if classes is None else None),
            *about_encoder(prepare.encoder, x, count),
            *fitted_preprocessing(x, source),
        ),
        kernel_assumptions=_about_kernel(prepare.encoder, x, count),
    )


def check_mirrored(mirrored: Any) -> None:
    """Require true or false.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(mirrored, bool):
        raise ConfigError(f"Expected mirrored to be true or false, got {mirrored!r}.")


def _mirror_images(images: npt.NDArray[Any], kind: str) -> npt.NDArray[Any]:
    if kind == "text" or images.ndim not in (3, 4):
        raise ConfigError(
            f"Only images [n, H, W] or [n, channels, H, W] have mirror images, got shape {images.shape} of {kind}; "
            "leave mirrored out."
        )
    return images[..., ::-1]


def _encoder(features: Any, kind: str) -> Encoder | None:
    chosen = pick_encoder(features)
    # `Preparation` says what text needs.
    return _UNIT_ROWS if chosen is None and kind != "text" else chosen


def _assumptions(chosen: Encoder, inferred_classes: int | None) -> tuple[str, ...]:
    sentences: list[str] = []
    if inferred_classes is not None:
        sentences.append(classes_read_off(inferred_classes))
    if isinstance(chosen, Frozen):
        sentences.append(_ROUNDING_OF_TRUSTED)
    return tuple(sentences)


def _votes(
    task: _Task,
    counts: IntArray,
    mechanism: KernelSum | NearestExamples,
    recipe: dict[str, Any],
    evidence: Mapping[str, npt.NDArray[Any]],
    source: Mapping[str, Any] | None,
) -> Votes:
    content = json.dumps([*task.fingerprints, recipe], sort_keys=True)
    return Votes(
        counts,
        mechanism,
        labels=task.true_labels,
        data_fingerprint=f"sha256:{hashlib.sha256(content.encode()).hexdigest()}",
        assumptions=task.assumptions,
        recipe=recipe if source is None else {**recipe, "source": dict(source)},
        evidence=evidence,
    )


def _chunks(total: int, size: int, progress: Progress | None) -> Iterator[slice]:
    for start in range(0, total, size):
        end = min(start + size, total)
        yield slice(start, end)
        if progress is not None:
            progress(end, total)


# --- exact dot products ---------------------------------------------------------------------------------------------


def _whole_rows(features: npt.NDArray[Any]) -> tuple[FloatArray, int]:
    """Features as rows of whole numbers of norm at most 2^12, in single precision, and what a feature of 1 became.

    Dot products of such rows are exact in single precision, in any order of summation and with fused or separate
    multiplications. For rows a and b and any set S of columns, by Cauchy-Schwarz,

        |sum of a_i b_i over S| <= sum of |a_i| |b_i| over all i <= |a| |b| <= 2^24,

    so every product and every partial sum is a whole number of at most 2^24, and single precision holds all of these.

    The norm: a row of `UnitNorm` has norm at most 1 + 2^-20, for only its rounding to single precision can exceed 1.
    Multiplied by `scale` and rounded to whole numbers, every entry moves by at most 1/2 (and by the rounding of the
    multiplication, 2^-24 of it), the row by at most sqrt(columns) / 2. The norm is then at most
    `scale + 1 + sqrt(columns) / 2`.
    """
    rows = _UNIT_ROWS.transform(features)
    columns = rows.shape[1]
    if columns > _MOST_COLUMNS:
        raise ConfigError(f"Expected at most {_MOST_COLUMNS:,} features per example, got {columns:,}; use an encoder.")
    scale = _LARGEST_NORM - 1 - math.ceil(math.sqrt(columns) / 2)
    rows *= np.float32(scale)
    np.rint(rows, out=rows)
    assert np.einsum("ij,ij->i", rows, rows, dtype=np.float64).max() <= _LARGEST_NORM**2
    return rows, scale


def _products(views: FloatArray, rows: FloatArray) -> FloatArray:
    """Dot products of inputs and rows, inputs x rows; of several views of an input, the largest."""
    products = views[0] @ rows.T
    for view in views[1:]:
        np.maximum(products, view @ rows.T, out=products)
    return products


def _require_exact_products() -> None:
    """Refuse a library of matrix products that rounds its inputs: the proof of `_whole_rows` needs all 24 bits."""
    odd = np.diag(np.full(256, _LARGEST_NORM - 1, dtype=np.float32))
    if not np.array_equal(np.diag(odd @ odd), np.full(256, (_LARGEST_NORM - 1) ** 2)):
        raise ConfigError("Matrix products are not exact in single precision here; switch reduced precision off.")


# --- kernel sums ----------------------------------------------------------------------------------------------------


def _table(kernel: Kernel, scale: int) -> FloatArray:
    """Weights by dot product, divided by `_STEP` and rounded toward 0; negative ones count from the end."""
    steps = np.concatenate([np.arange(_TABLE_END + 1), np.arange(-_TABLE_END, 0)])
    cosine = np.clip(steps * (_STEP / scale**2), -1.0, 1.0).astype(np.float64)
    values = np.asarray(kernel(cosine), dtype=np.float64)
    if values.shape != cosine.shape or not ((values >= 0) & (values <= 1)).all():
        raise ConfigError(f"Expected a kernel with a value from 0 to 1 at every cosine, got others from {kernel!r}.")
    return np.rint(UNIT * values).astype(np.float32)


@dataclass(frozen=True, eq=False)
class _ByLabel:
    """Training rows sorted by label, so that a label's weights lie side by side."""

    rows: FloatArray
    labels: IntArray

    @classmethod
    def of(cls, rows: FloatArray, labels: IntArray) -> _ByLabel:
        order = np.argsort(labels, kind="stable")
        return cls(rows[order], labels[order])

    def blocks(self) -> Iterator[tuple[FloatArray, IntArray, IntArray]]:
        """Some rows at a time, where in them each label starts, and which labels these are."""
        for start in range(0, len(self.rows), _BLOCK_EXAMPLES):
            part = slice(start, start + _BLOCK_EXAMPLES)
            labels, starts = np.unique(self.labels[part], return_index=True)
            yield self.rows[part], starts, labels

    def of_label(self, label: int) -> FloatArray:
        """The rows of one label."""
        first, last = np.searchsorted(self.labels, [label, label + 1])
        return self.rows[first:last]


def _weights(views: FloatArray, rows: FloatArray, table: FloatArray) -> FloatArray:
    """Whole numbers, inputs x rows."""
    # Divided by a power of two, whole numbers stay as exact as they were.
    dots = _products(views * np.float32(1 / _STEP), rows)
    return np.take(table, dots.astype(np.int64), mode="wrap")


def _scores(views: FloatArray, examples: _ByLabel, table: FloatArray, classes: int) -> IntArray:
    scores = np.zeros((views.shape[1], classes), dtype=np.int64)
    for rows, starts, labels in examples.blocks():
        # At most 2^13 weights of at most 2^10: exact in single precision.
        sums = np.add.reduceat(_weights(views, rows, table), starts, axis=1)
        scores[:, labels] += sums.astype(np.int64)
    return scores


def _own_weights(views: FloatArray, examples: _ByLabel, table: FloatArray, predicted: IntArray) -> IntArray:
    """How many examples of the predicted label have each weight, inputs x (UNIT + 1)."""
    counts = np.zeros((views.shape[1], UNIT + 1), dtype=np.int64)
    for label in np.unique(predicted):
        mine = np.flatnonzero(predicted == label)
        rows = examples.of_label(int(label))
        for start in range(0, len(rows), _BLOCK_EXAMPLES):
            weights = _weights(views[:, mine], rows[start : start + _BLOCK_EXAMPLES], table)
            counts[mine] += _histograms(weights.astype(np.int64), UNIT + 1)
    return counts


def _histograms(values: IntArray, bins: int) -> IntArray:
    """How often each of the numbers below `bins` occurs in each row."""
    places = values + bins * np.arange(len(values))[:, None]
    return np.bincount(places.ravel(), minlength=len(values) * bins).reshape(len(values), bins)


# --- neighbours -----------------------------------------------------------------------------------------------------


def _hash_order(rows: FloatArray, labels: IntArray) -> IntArray:
    """Positions of the examples by the hash of their content."""
    contents = zip(rows.astype("<i2"), labels.astype("<i8"), strict=True)
    digests = [hashlib.blake2b(row.tobytes() + label.tobytes(), digest_size=32).digest() for row, label in contents]
    return np.array(sorted(range(len(digests)), key=digests.__getitem__), dtype=np.int64)


def _nearest(dots: FloatArray, count: int) -> IntArray:
    """Positions of the largest numbers of each row, the largest first, of equal ones the first first."""
    last = dots.shape[1] - count
    thresholds = np.partition(dots, last, axis=1)[:, last]
    nearest = np.empty((len(dots), count), dtype=np.int64)
    for row, threshold, out in zip(dots, thresholds, nearest, strict=True):
        candidates = np.flatnonzero(row >= threshold)
        out[:] = candidates[np.argsort(-row[candidates], kind="stable")[:count]]
    return nearest
