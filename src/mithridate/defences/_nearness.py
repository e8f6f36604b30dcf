"""Training examples by how near they are to an input, for those that vote: exact products of rounded features.

Nothing is trained and nothing is random. What a certificate needs is that an example's vote on an input is a function
of these two alone, *bit for bit*, whatever other examples there are. Products of matrices in floating point do not give
that: their rounding depends on the shapes. So every row of features is rounded to whole numbers first, small enough
that single precision holds every number on the way to a dot product, in any order of summation (see `_whole_rows`).
The rounded cosine *is* the similarity of two examples.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from mithridate.core.mechanism import Deterministic
from mithridate.core.provenance import Hashes, TrainingData, in_digits, input_hashes
from mithridate.core.votes import Votes
from mithridate.data.columns import Column
from mithridate.data.declarations import Table, declaration_from_dict
from mithridate.data.examples import Examples, Preparation, as_examples
from mithridate.defences.kept_run import KeptRun
from mithridate.errors import ConfigError
from mithridate.features import (
    Encoder,
    Frozen,
    UnitNorm,
    from_dict,
    is_same,
    pick_encoder,
)

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
# Rows of whole numbers: dense, or sparse with places in order and no zeros.
Rows = FloatArray | csr_array
Progress = Callable[[int, int], None]

# Norm that no row of whole numbers exceeds: products of two rows stay within 2^24, exact in single precision.
LARGEST_NORM = 1 << 12
_MOST_COLUMNS = 1 << 24
# How many inputs are asked about at a time. It bounds memory and cannot change a result.
CHUNK_INPUTS = 1 << 8
_UNIT_ROWS = UnitNorm(bias=0.0)


# --- the examples that vote -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StoredExamples:
    """Training examples as those vote that are near an input: rows of whole numbers, with their labels.

    It is all that later inputs need, so it is what a run directory keeps.

    Attributes:
        rows: features, rounded to whole numbers.
        labels: of the examples.
        classes: number of labels.
        preparation: how raw inputs become features.
        scale: what a feature of 1 became.
        training: which data they are.
        statements: what is taken for granted.
        columns: of a table, as declared; None for other data.
        sparse: whether rows may be sparse.
    """

    rows: Rows
    labels: IntArray
    classes: int
    preparation: Preparation
    scale: int
    training: TrainingData
    statements: tuple[str, ...]
    columns: tuple[Column, ...] | None = None
    sparse: bool = True

    @classmethod
    def of(
        cls,
        training: Examples,
        encoder: Encoder | None,
        classes: int,
        statements: Sequence[str] = (),
        *,
        sparse: bool = True,
    ) -> StoredExamples:
        """Round the features of examples; without an encoder, of inputs as they are.

        Args:
            training: the examples, checked.
            encoder: the features.
            classes: number of labels.
            statements: what an order says of all this.
            sparse: whether rows may be sparse.

        Raises:
            ConfigError: the encoder does not suit the inputs, or features cannot be rounded.
        """
        x, y, kind = training.x, training.y, training.kind
        assert y is not None
        # `Preparation` says what text needs.
        chosen = _UNIT_ROWS if encoder is None and kind != "text" else encoder
        prepare = Preparation(x.shape[1:], kind, encoder=chosen)
        inputs = _features(prepare, x, "training", sparse=sparse)
        _require_exact_products()
        rows = _rounded(inputs)
        # Of an encoder that is trusted we know only what it does: its features count as data, too.
        trusted = inputs if isinstance(chosen, Frozen) and isinstance(inputs, np.ndarray) else None
        columns = _columns(training.declaration)
        found = TrainingData.of(x, y, trusted)
        return cls(rows, y, classes, prepare, _scale(rows.shape[1]), found, tuple(statements), columns, sparse)

    def as_run(self, votes: Votes) -> KeptRun:
        """What a run directory keeps of them."""
        return KeptRun(
            dict(votes.recipe or {}),
            {"shape": list(self.preparation.shape), "kind": self.preparation.kind},
            self.training,
            votes.assumptions,
            votes.size,
            {**_kept(self.rows), "labels": self.labels.astype(np.int32)},
        )

    @classmethod
    def of_run(cls, run: KeptRun, features: Any = None, *, sparse: bool = True) -> StoredExamples:
        """Those that a run kept.

        Args:
            run: the run.
            features: the encoder, where it was one of the user's own; it must be the same.
            sparse: whether rows may be sparse.

        Raises:
            ConfigError: the encoder is not that of the run.
            KeyError: something is missing.
            ValueError: something is not what it should be.
        """
        rows, labels = _of_kept(run.arrays), run.arrays["labels"].astype(np.int64)
        classes = int(run.recipe["classes"])
        if rows.ndim != 2 or labels.shape != rows.shape[:1] or not len(labels):
            raise ValueError("examples and labels do not fit")
        if labels.min() < 0 or labels.max() >= classes:
            raise ValueError("there are labels beyond the classes")
        if _longest(rows) > LARGEST_NORM**2:
            raise ValueError("a row is too long for exact products")
        encoder = _encoder_of_run(run.recipe["features"], features, run.folder)
        preparation = Preparation(tuple(run.inputs["shape"]), run.inputs["kind"], encoder=encoder)
        declared = run.recipe.get("source", {}).get("declaration")
        columns = _columns(None if declared is None else declaration_from_dict(declared))
        scale, found = _scale(rows.shape[1]), run.training
        return cls(rows, labels, classes, preparation, scale, found, run.statements, columns, sparse)

    @property
    def encoder(self) -> Encoder:
        """The features."""
        assert self.preparation.encoder is not None
        return self.preparation.encoder

    def asked(self, test_set: Any, *, mirrored: bool) -> Inputs:
        """Inputs to vote on, an array, a pair with their true labels, or `Examples`, as rows like these.

        Raises:
            ConfigError: they are not like the examples.
        """
        check_mirrored(mirrored)
        test = as_examples(test_set, "test", need_labels=False, classes=self.classes)
        seen = [test.x, _mirror_images(test.x, self.preparation.kind)] if mirrored else [test.x]
        _require_exact_products()
        views = (_rounded(_features(self.preparation, view, "test", sparse=self.sparse)) for view in seen)
        return Inputs(tuple(views), test.y, input_hashes(test.x))

    def recipe(self, *, mirrored: bool) -> dict[str, Any]:
        """Features and classes, as the recipes of votes name them; mirror images only where they count."""
        said: dict[str, Any] = {"features": self.encoder.to_dict(), "classes": self.classes}
        return {**said, "mirrored": True} if mirrored else said


@dataclass(frozen=True, eq=False)
class Inputs:
    """Inputs to vote on.

    Attributes:
        views: their rows; with their mirror images, first those of the inputs, then those of the images.
        true_labels: where known.
        hashes: of the inputs as they were given.
    """

    views: tuple[Rows, ...]
    true_labels: IntArray | None
    hashes: Hashes

    def __len__(self) -> int:
        return self.views[0].shape[0]

    def part(self, which: slice) -> tuple[Rows, ...]:
        """The views of some inputs."""
        return tuple(view[which] for view in self.views)


def _features(prepare: Preparation, x: npt.NDArray[Any], what: str, *, sparse: bool) -> npt.NDArray[Any] | csr_array:
    """Features of inputs, always summed in the same order: an encoder may sum a row as it lies in memory."""
    inputs = np.ascontiguousarray(x)
    return prepare.compared(inputs, what) if sparse else prepare(inputs, what)


def _columns(declaration: Any) -> tuple[Column, ...] | None:
    return tuple(declaration.columns) if isinstance(declaration, Table) else None


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


def _encoder_of_run(stored: Mapping[str, Any], features: Any, folder: Path | None) -> Encoder:
    given = pick_encoder(features)
    if given is None:
        if stored["name"] == Frozen.name:
            raise ConfigError(f"This run used a frozen encoder, {stored}; give it again as features=.")
        return from_dict(dict(stored), folder=folder)
    if not is_same(given.to_dict(), dict(stored)):
        raise ConfigError(f"Expected the features of the run, {stored}, got {features!r}.")
    return given


def votes_of(
    examples: StoredExamples,
    inputs: Inputs,
    counts: IntArray,
    mechanism: Deterministic,
    recipe: dict[str, Any],
    evidence: Mapping[str, npt.NDArray[Any]],
) -> Votes:
    content = json.dumps([examples.training.to_dict(), in_digits(inputs.hashes), recipe], sort_keys=True)
    return Votes(
        counts,
        mechanism,
        labels=inputs.true_labels,
        data_fingerprint=f"sha256:{hashlib.sha256(content.encode()).hexdigest()}",
        training=examples.training,
        input_hashes=inputs.hashes,
        assumptions=examples.statements,
        recipe=recipe,
        evidence=evidence,
    )


def chunks_of(total: int, size: int, progress: Progress | None) -> Iterator[slice]:
    for start in range(0, total, size):
        end = min(start + size, total)
        yield slice(start, end)
        if progress is not None:
            progress(end, total)


# --- exact dot products ---------------------------------------------------------------------------------------------


def _rounded(features: npt.NDArray[Any] | csr_array) -> Rows:
    """Features as rows of whole numbers, of which dot products are exact."""
    return _sparse_whole_rows(features) if isinstance(features, csr_array) else _whole_rows(features)[0]


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
    scale = _scale(rows.shape[1])
    rows *= np.float32(scale)
    np.rint(rows, out=rows)
    assert _longest(rows) <= LARGEST_NORM**2
    return rows, scale


def _sparse_whole_rows(features: csr_array) -> csr_array:
    """The same of sparse rows, which have norm 1 already, to their own rounding.

    The proof of `_whole_rows` holds for them: a column that is zero stays so, and adds nothing to any sum.
    """
    rows = features.copy()
    rows.data = np.rint(rows.data * np.float32(_scale(rows.shape[1])))
    rows.eliminate_zeros()
    assert _longest(rows) <= LARGEST_NORM**2
    return rows


def _longest(rows: Rows) -> float:
    """The largest squared norm of a row."""
    if isinstance(rows, csr_array):
        squares = rows.astype(np.float64).power(2)
        return float(squares.sum(axis=1).max())
    return float(np.einsum("ij,ij->i", rows, rows, dtype=np.float64).max())


def _kept(rows: Rows) -> dict[str, npt.NDArray[Any]]:
    """Rows as arrays of a file."""
    if not isinstance(rows, csr_array):
        return {"rows": rows.astype(np.int16)}
    return {
        "data": rows.data.astype(np.int16),
        "indices": rows.indices.astype(np.int32),
        "indptr": rows.indptr.astype(np.int64),
        "columns": np.array([rows.shape[1]]),
    }


def _of_kept(arrays: Mapping[str, npt.NDArray[Any]]) -> Rows:
    """What `_kept` wrote, checked: places that are out of range, out of order or there twice would not be exact."""
    if "rows" in arrays:
        return arrays["rows"].astype(np.float32)
    (columns,) = arrays["columns"]
    parts = arrays["data"].astype(np.float32), arrays["indices"], arrays["indptr"]
    rows = csr_array(parts, shape=(len(arrays["indptr"]) - 1, int(columns)))
    rows.check_format(full_check=True)
    if not rows.has_canonical_format or not rows.data.all():
        raise ValueError("sparse rows are not in order")
    return rows


def content_hashes(rows: Rows, labels: IntArray) -> list[bytes]:
    """A hash of each example: of its row, for a sparse one its places and what stands there, and of its label."""
    if isinstance(rows, csr_array):
        parts = zip(rows.indptr[:-1], rows.indptr[1:], strict=True)
        places, values = rows.indices.astype("<i4"), rows.data.astype("<i2")
        contents = (places[start:end].tobytes() + values[start:end].tobytes() for start, end in parts)
    else:
        contents = (row.tobytes() for row in rows.astype("<i2"))
    both = zip(contents, labels.astype("<i8"), strict=True)
    return [hashlib.blake2b(content + label.tobytes(), digest_size=32).digest() for content, label in both]


def _scale(columns: int) -> int:
    """What a feature of 1 becomes, by the number of columns alone."""
    if columns > _MOST_COLUMNS:
        raise ConfigError(f"Expected at most {_MOST_COLUMNS:,} features per example, got {columns:,}; use an encoder.")
    return LARGEST_NORM - 1 - math.ceil(math.sqrt(columns) / 2)


def products(views: Sequence[Rows], rows: Rows) -> FloatArray:
    """Dot products of inputs and rows, inputs x rows; of several views of an input, the largest."""
    products = _products(views[0], rows)
    for view in views[1:]:
        np.maximum(products, _products(view, rows), out=products)
    return products


def _products(view: Rows, rows: Rows) -> FloatArray:
    if isinstance(view, np.ndarray) and isinstance(rows, np.ndarray):
        return view @ rows.T
    # This way round it is the few inputs that are transposed, and sums are kept for as many.
    return np.ascontiguousarray((csr_array(rows) @ csr_array(view).T.tocsr()).toarray().T)


def _require_exact_products() -> None:
    """Refuse a library of matrix products that rounds its inputs: the proof of `_whole_rows` needs all 24 bits."""
    odd = np.diag(np.full(256, LARGEST_NORM - 1, dtype=np.float32))
    if not np.array_equal(np.diag(odd @ odd), np.full(256, (LARGEST_NORM - 1) ** 2)):
        raise ConfigError("Matrix products are not exact in single precision here; switch reduced precision off.")


def histograms(values: IntArray, bins: int) -> IntArray:
    """How often each of the numbers below `bins` occurs in each row."""
    places = values + bins * np.arange(len(values))[:, None]
    return np.bincount(places.ravel(), minlength=len(values) * bins).reshape(len(values), bins)
