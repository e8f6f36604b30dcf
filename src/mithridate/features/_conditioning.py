"""What of an embedding is kept: its difference from a centre, along some directions, at norm one.

The arithmetic is exact where it would otherwise depend on the number of rows. Square roots, differences and quotients
are rounded by themselves, entry by entry. For the product with the directions, rows and directions are whole numbers:
a row has entries of at most 2^20, a direction a norm of at most 2^21, so that for any set S of up to 2^16 entries, by
Cauchy-Schwarz,

    |sum of w_i p_i over S| <= |w| |p| <= 2^20 * 2^8 * 2^21 = 2^49 < 2^53,

and double precision holds every partial sum, in any order of summation.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import linalg

from mithridate.errors import ConfigError
from mithridate.features._encoder import chunks, unit_rows

Float64 = npt.NDArray[np.float64]

MOST_ENTRIES = 1 << 16
_ROW_UNIT = float(1 << 20)
# Of directions that are computed anew wherever they are needed: coarse, so that libraries that differ in the last bits
# of a singular vector agree on all of its entries. And of those that are computed once and kept.
COARSE, FINE = float(1 << 15), float(1 << 20)
_LONGEST_DIRECTION = float(1 << 21)


@dataclass(frozen=True, eq=False)
class Conditioning:
    """Fixed constants between an embedding and the features that are used.

    Attributes:
        centre: what is subtracted from every embedding (from its square roots, where these are taken).
        directions: entries x columns, whole numbers; None: all entries are kept.
        root: whether square roots of the entries are taken first, negative ones counting as 0.
    """

    centre: Float64
    directions: Float64 | None
    root: bool = False

    @property
    def columns(self) -> int:
        """Number of features."""
        return len(self.centre) if self.directions is None else self.directions.shape[1]

    @property
    def sha256(self) -> str:
        """Over all constants."""
        digest = hashlib.sha256(f"root={self.root} {self.centre.shape}".encode())
        digest.update(self.centre.astype("<f8").tobytes())
        if self.directions is not None:
            digest.update(self.directions.astype("<i4").tobytes())
        return digest.hexdigest()

    def spread(self, embeddings: npt.NDArray[np.float32]) -> Float64:
        """Embeddings, or their square roots, before anything is subtracted."""
        values = embeddings.astype(np.float64)
        return np.sqrt(np.maximum(values, 0.0)) if self.root else values

    def __call__(self, embeddings: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Features of embeddings: rows of norm 1, or 0 where nothing is left."""
        out = np.empty((len(embeddings), self.columns), dtype=np.float32)
        for part in chunks(len(embeddings), 4 * embeddings.shape[1]):
            out[part] = self._of_some(embeddings[part])
        return out

    def _of_some(self, embeddings: npt.NDArray[np.float32]) -> Float64:
        centred = self.spread(embeddings) - self.centre
        if self.directions is None:
            return unit_rows(centred)
        peak = np.abs(centred).max(axis=1, keepdims=True)
        whole = np.rint(centred / np.where(peak > 0, peak, 1.0) * _ROW_UNIT)
        return unit_rows(whole @ self.directions)


def main_directions(matrix: Float64, columns: int, unit: float = COARSE, whitening: float = 0.0) -> Float64:
    """The first right singular vectors of a matrix, as whole numbers; the largest entry of each is positive.

    Args:
        matrix: of rows.
        columns: how many.
        unit: what a length of 1 becomes.
        whitening: 0: all have length 1; above it, those along which the rows vary less are longer in proportion to the
            singular values to this power, the last one having length 1. With 1 the rows vary alike along all of them.

    Raises:
        ConfigError: the matrix has fewer.
    """
    most = min(matrix.shape)
    if columns > most:
        raise ConfigError(f"Expected columns of at most {most:,} here, got {columns:,}.")
    # Of the smaller of the two products of the matrix with itself: a fraction of the work of a decomposition.
    is_wide = matrix.shape[0] < matrix.shape[1]
    product = matrix @ matrix.T if is_wide else matrix.T @ matrix
    squares, found = linalg.eigh(product, subset_by_index=[most - columns, most - 1])
    found = found[:, ::-1]
    vectors = (matrix.T @ found if is_wide else found).T
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = vectors / np.where(lengths > 0, lengths, 1.0)
    largest = np.take_along_axis(vectors, np.abs(vectors).argmax(axis=1, keepdims=True), axis=1)
    # A direction in which nothing varies counts like one in which rounding would be all that does.
    deviations = np.sqrt(np.maximum(squares[::-1], 1e-12 * squares[-1]))
    scales = (deviations[-1] / deviations) ** whitening if squares[-1] > 0 else np.ones(columns)
    whole = np.ascontiguousarray(np.rint((vectors * np.sign(largest)).T * scales * unit))
    if np.linalg.norm(whole, axis=0).max(initial=0.0) > _LONGEST_DIRECTION:
        raise ConfigError("The directions are too long for exact products; use less whitening, or fewer columns.")
    return whole


def checked_embeddings(rows: Any, title: str) -> npt.NDArray[np.float32]:
    """Require one row of numbers for each input."""
    found = np.ascontiguousarray(rows, dtype=np.float32)
    if found.ndim != 2 or not 1 <= found.shape[1] <= MOST_ENTRIES:
        raise ConfigError(
            f"The encoder {title} gave an array of shape {found.shape}; expected a row of 1 to {MOST_ENTRIES:,} "
            "numbers for each input."
        )
    return found
