"""Certified accuracy against radius: the curve of one certificate, and round radii to read it at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mithridate.core.bounds import clopper_pearson_lower, clopper_pearson_upper
from mithridate.core.certificate import Certificate

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

_BAND = 0.95


@dataclass(frozen=True, eq=False)
class Curve:
    """How many points are certified, and how many of them are correct, at every radius.

    The counts change at the distinct radii only: at any radius r they are those of the first entry at or above r, and
    0 beyond the last.

    Attributes:
        radius: distinct certified radii, ascending.
        certified: points with at least that radius.
        right: those among them whose label is the true one; None where true labels are unknown.
        total: all points.
    """

    radius: IntArray
    certified: IntArray
    right: IntArray | None
    total: int

    @classmethod
    def of(cls, certificate: Certificate) -> Curve:
        """The curve of one certificate; true labels are those of its votes."""
        distinct = np.unique(certificate.radius[certificate.radius >= 0])
        correct = is_correct(certificate)
        return cls(
            distinct,
            _at_least(certificate.radius, distinct),
            None if correct is None else _at_least(certificate.radius[correct], distinct),
            len(certificate.radius),
        )

    @property
    def shown(self) -> IntArray:
        """What is drawn: correct and certified where that is known, else certified."""
        return self.certified if self.right is None else self.right

    def at(self, counts: IntArray, radii: npt.ArrayLike) -> IntArray:
        """Counts of this curve at any radii of 0 or more."""
        return np.append(counts, 0)[np.searchsorted(self.radius, np.asarray(radii))]

    def band(self) -> tuple[FloatArray, FloatArray]:
        """Clopper-Pearson interval for the share that is drawn, at each distinct radius by itself.

        Guarantee: were the points drawn independently from some source, each interval would hold the share in that
        source with probability at least 95%. It says nothing about the certificates themselves.
        """
        tail = (1 - _BAND) / 2
        return (
            clopper_pearson_lower(self.shown, self.total, tail),
            clopper_pearson_upper(self.shown, self.total, tail),
        )


def is_correct(certificate: Certificate) -> BoolArray | None:
    """Which labels are correct; None where true labels are unknown."""
    return None if certificate.votes.labels is None else certificate.label == certificate.votes.labels


def round_ticks(limit: float, parts: int = 6) -> list[int]:
    """Zero and about `parts` round whole numbers up to a limit of at least 1, for an axis.

    >>> round_ticks(215)
    [0, 50, 100, 150, 200]
    >>> round_ticks(3)
    [0, 1, 2, 3]
    """
    rough = max(limit / parts, 1.0)
    magnitude = 10 ** int(np.log10(rough))
    step = next(int(m * magnitude) for m in (1, 2, 2.5, 5, 10) if m * magnitude >= rough and (m * magnitude) % 1 == 0)
    return list(range(0, int(limit) + 1, step))


def _at_least(radius: IntArray, thresholds: IntArray) -> IntArray:
    return len(radius) - np.searchsorted(np.sort(radius), thresholds)
