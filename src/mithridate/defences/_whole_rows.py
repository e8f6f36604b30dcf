"""Rows of whole numbers, whose dot products are exact in single precision, in any order of summation.

Products of matrices in floating point round, and how depends on their shapes. So every row of features is rounded to
whole numbers first, small enough that single precision holds every number on the way to a dot product: see
`whole_rows`. Then blocks, threads and libraries may add up as they like, and the result is the same bit for bit.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, vstack

from mithridate._computer import one_thread_each
from mithridate._io.scratch import scratch
from mithridate.errors import ConfigError
from mithridate.features import UnitNorm

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
# Whole numbers of 16 bits, perhaps mapped to a file; or sparse, with places in order and no zeros.
Rows = npt.NDArray[np.int16] | csr_array
# A few rows in single precision, as they are multiplied.
RowBlock = FloatArray | csr_array

# Norm that no row of whole numbers exceeds: products of two rows stay within 2^24, exact in single precision.
LARGEST_NORM = 1 << 12
LARGEST_PRODUCT = LARGEST_NORM**2
_MOST_COLUMNS = 1 << 24
# Numbers of rows that are looked at together, and products. It bounds memory and cannot change a result.
_NUMBERS = 1 << 22
# Numbers of a block of examples, in single precision, at most. Likewise.
_BLOCK_NUMBERS = 1 << 26
# Examples up to here are kept as they are compared, where they are asked about often. Likewise.
_MOST_KEPT_BYTES = 1 << 28
# Bytes of a hash that are kept of every example.
_FIRST_BYTES = 8
UNIT_ROWS = UnitNorm(bias=0.0)

# --- rounding ---------------------------------------------------------------------------------------------------------


def rounded(pieces: Iterable[tuple[slice, npt.NDArray[Any] | csr_array]], total: int) -> Rows:
    """Features that come piece by piece, `total` of them in all, as rows of whole numbers; large ones in a file."""
    dense: npt.NDArray[np.int16] | None = None
    sparse: list[csr_array] = []
    for part, features in pieces:
        if isinstance(features, csr_array):
            sparse.append(sparse_whole_rows(features))
            continue
        rows, _ = whole_rows(features)
        if dense is None:
            dense = scratch((total, rows.shape[1]), np.int16)
        dense[part] = rows
    return csr_array(vstack(sparse, format="csr")) if dense is None else dense


def whole_rows(features: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int16], int]:
    """Features as rows of whole numbers of norm at most 2^12, and what a feature of 1 became.

    Dot products of such rows are exact in single precision, in any order of summation and with fused or separate
    multiplications. For rows a and b and any set S of columns, by Cauchy-Schwarz,

        |sum of a_i b_i over S| <= sum of |a_i| |b_i| over all i <= |a| |b| <= 2^24,

    so every product and every partial sum is a whole number of at most 2^24, and single precision holds all of these.

    The norm: a row of `UnitNorm` has norm at most 1 + 2^-20, for only its rounding to single precision can exceed 1.
    Multiplied by `scale` and rounded to whole numbers, every entry moves by at most 1/2 (and by the rounding of the
    multiplication, 2^-24 of it), the row by at most sqrt(columns) / 2. The norm is then at most
    `scale + 1 + sqrt(columns) / 2`.
    """
    rows = UNIT_ROWS.transform(features)
    scale = scale_of(rows.shape[1])
    rows *= np.float32(scale)
    np.rint(rows, out=rows)
    small = rows.astype(np.int16)
    assert longest(small) <= LARGEST_PRODUCT
    return small, scale


def sparse_whole_rows(features: csr_array) -> csr_array:
    """The same of sparse rows, which have norm 1 already, to their own rounding.

    The proof of `whole_rows` holds for them: a column that is zero stays so, and adds nothing to any sum.
    """
    rows = features.copy()
    rows.data = np.rint(rows.data * np.float32(scale_of(rows.shape[1])))
    rows.eliminate_zeros()
    assert longest(rows) <= LARGEST_PRODUCT
    return rows


def scale_of(columns: int) -> int:
    """What a feature of 1 becomes, by the number of columns alone."""
    if columns > _MOST_COLUMNS:
        raise ConfigError(f"Expected at most {_MOST_COLUMNS:,} features per example, got {columns:,}; use an encoder.")
    return LARGEST_NORM - 1 - math.ceil(math.sqrt(columns) / 2)


def longest(rows: Rows) -> int:
    """The largest squared norm of a row."""
    if isinstance(rows, csr_array):
        squares = rows.astype(np.float64).power(2)
        return int(squares.sum(axis=1).max())
    exact = (rows[part].astype(np.float64) for part in _stretches(rows))
    return int(max(np.einsum("ij,ij->i", some, some).max() for some in exact))


def _stretches(rows: Rows, count: int | None = None) -> Iterator[slice]:
    """So many of the rows, or all, some at a time."""
    size = max(1, _NUMBERS // max(1, rows.shape[1]))
    return (slice(start, start + size) for start in range(0, rows.shape[0] if count is None else count, size))


# --- as arrays of a file ----------------------------------------------------------------------------------------------


def kept(rows: Rows) -> dict[str, npt.NDArray[Any]]:
    """Rows as arrays of a file."""
    if not isinstance(rows, csr_array):
        return {"rows": rows}
    return {
        "data": rows.data.astype(np.int16),
        "indices": rows.indices.astype(np.int32),
        "indptr": rows.indptr.astype(np.int64),
        "columns": np.array([rows.shape[1]]),
    }


def of_kept(arrays: Mapping[str, npt.NDArray[Any]]) -> Rows:
    """What `kept` wrote, checked.

    Raises:
        ValueError: rows are no whole numbers, or too long for exact products; sparse ones have places that are out of
            range, out of order or there twice.
    """
    rows = arrays["rows"] if "rows" in arrays else _of_kept_sparse(arrays)
    if rows.ndim != 2 or (isinstance(rows, np.ndarray) and rows.dtype != np.int16):
        raise ValueError("examples are no rows of whole numbers")
    if not rows.shape[0] or longest(rows) > LARGEST_PRODUCT:
        raise ValueError("a row is too long for exact products")
    return rows


def _of_kept_sparse(arrays: Mapping[str, npt.NDArray[Any]]) -> csr_array:
    (columns,) = arrays["columns"]
    parts = arrays["data"].astype(np.float32), arrays["indices"], arrays["indptr"]
    rows = csr_array(parts, shape=(len(arrays["indptr"]) - 1, int(columns)))
    rows.check_format(full_check=True)
    if not rows.has_canonical_format or not rows.data.all():
        raise ValueError("sparse rows are not in order")
    return rows


# --- products ---------------------------------------------------------------------------------------------------------


def blocks(rows: Rows, most: int) -> Iterator[slice]:
    """Blocks of examples to compare with: so many at a time at most, fewer where they have many columns."""
    columns = 1 if isinstance(rows, csr_array) else rows.shape[1]
    size = max(1, min(most, _BLOCK_NUMBERS // max(1, columns)))
    return (slice(start, min(start + size, rows.shape[0])) for start in range(0, rows.shape[0], size))


def block_of(rows: Rows, part: slice | IntArray) -> RowBlock:
    """Some rows as they are multiplied."""
    some = rows[part]
    return some if isinstance(some, csr_array) else some.astype(np.float32)


def turned(block: RowBlock) -> RowBlock:
    """A block of examples as `compared` takes it: dense ones column by column, which is faster."""
    return block if isinstance(block, csr_array) else np.ascontiguousarray(block.T)


class TurnedBlocks:
    """Turned blocks of examples that inputs are compared with again and again; those of sparse rows are not kept."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int | None, ...], RowBlock] = {}

    @staticmethod
    def suit(rows: Rows) -> bool:
        """Whether so many rows are few enough to be kept twice."""
        return isinstance(rows, np.ndarray) and 4 * rows.size <= _MOST_KEPT_BYTES

    def of(self, rows: Rows, part: slice | IntArray) -> RowBlock:
        """Some rows of these examples, which are always the same ones."""
        if not isinstance(part, slice):
            return turned(block_of(rows, part))
        key = (part.start, part.stop, part.step)
        if key not in self._kept:
            self._kept[key] = turned(block_of(rows, part))
        return self._kept[key]


def compared(views: Sequence[RowBlock], block: RowBlock) -> Iterator[tuple[slice, FloatArray]]:
    """Products of inputs with a turned block of examples, some inputs at a time; of several views, the largest.

    The next ones take the place in memory of those before.
    """
    inputs, examples = views[0].shape[0], block.shape[0 if isinstance(block, csr_array) else 1]
    size = min(inputs, max(1, _NUMBERS // max(1, examples)))
    rooms = [np.empty((size, examples), dtype=np.float32) for _ in views[:2]]
    for start in range(0, inputs, size):
        part = slice(start, min(start + size, inputs))
        first, *others = (view[part] for view in views)
        found = products(first, block, rooms[0][: part.stop - start])
        for view in others:
            np.maximum(found, products(view, block, rooms[1][: part.stop - start]), out=found)
        yield part, found


def products(view: RowBlock, block: RowBlock, out: FloatArray | None = None) -> FloatArray:
    """Dot products of inputs and a turned block of examples, inputs x examples; in `out`, where that can be."""
    if isinstance(block, csr_array):
        # This way round it is the few inputs that are transposed, and sums are kept for as many.
        return np.ascontiguousarray((block @ csr_array(view).T.tocsr()).toarray().T)
    return np.matmul(view if isinstance(view, np.ndarray) else view.toarray(), block, out=out)


def require_exact_products() -> None:
    """Refuse a library of matrix products that rounds its inputs: the proof of `whole_rows` needs all 24 bits."""
    odd = np.diag(np.full(256, LARGEST_NORM - 1, dtype=np.float32))
    with one_thread_each():  # as products are made, and soon done
        found = np.diag(odd @ odd)
    if not np.array_equal(found, np.full(256, (LARGEST_NORM - 1) ** 2)):
        raise ConfigError("Matrix products are not exact in single precision here; switch reduced precision off.")


# --- which comes first among equals -----------------------------------------------------------------------------------


def ranks_of(rows: Rows, labels: IntArray) -> npt.NDArray[np.uint32]:
    """The place of every example in the order of the hashes of their contents; equal contents are interchangeable."""
    # The first bytes of a hash are kept, which decide between all but copies; others are hashed again.
    first = np.empty(len(labels), dtype=np.uint64)
    for part in _stretches(rows):
        first[part] = [int.from_bytes(each[:_FIRST_BYTES], "big") for each in _content_hashes(rows[part], labels[part])]
    order = np.argsort(first, kind="stable")
    is_next = first[order[1:]] == first[order[:-1]]
    tied = np.flatnonzero(np.append(is_next, False) | np.append(False, is_next))
    if len(tied):
        among = order[tied]
        digests = np.empty((len(among), 4), dtype=">u8")
        # Some at a time: all may be copies, and larger than memory.
        for part in _stretches(rows, len(among)):
            some = b"".join(_content_hashes(rows[among[part]], labels[among[part]]))
            digests[part] = np.frombuffer(some, dtype=">u8").reshape(-1, 4)
        order[tied] = among[np.lexsort(digests.T[::-1])]
    ranks = np.empty(len(labels), dtype=np.uint32)
    ranks[order] = np.arange(len(labels), dtype=np.uint32)
    return ranks


def _content_hashes(rows: Rows, labels: IntArray) -> Iterator[bytes]:
    """BLAKE2b of each example: of its row, for a sparse one its places and what stands there, and of its label."""
    for content, label in zip(_contents(rows), labels.astype("<i8"), strict=True):
        yield hashlib.blake2b(content + label.tobytes(), digest_size=32).digest()


def _contents(rows: Rows) -> Iterator[bytes]:
    if not isinstance(rows, csr_array):
        return (row.tobytes() for row in rows.astype("<i2"))
    ends = zip(rows.indptr[:-1], rows.indptr[1:], strict=True)
    places, values = rows.indices.astype("<i4"), rows.data.astype("<i2")
    return (places[start:end].tobytes() + values[start:end].tobytes() for start, end in ends)
