"""The numbers of a report: plain arrays from a certificate, without words and without drawings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mithridate.core.bounds import clopper_pearson_lower, clopper_pearson_upper
from mithridate.core.certificate import Certificate, Status

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

BAND = 0.95
_BINS = 40


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
        correct = right(certificate)
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
        tail = (1 - BAND) / 2
        return (
            clopper_pearson_lower(self.shown, self.total, tail),
            clopper_pearson_upper(self.shown, self.total, tail),
        )


@dataclass(frozen=True, eq=False)
class Histogram:
    """Radii of certified points counted in bins of equal width.

    Attributes:
        start: smallest radius of each bin.
        width: how many radii a bin holds.
        right: points in each bin whose label is correct; all points where true labels are unknown.
        wrong: points whose label is wrong.
        beyond: points with a radius beyond the last bin.
    """

    start: IntArray
    width: int
    right: IntArray
    wrong: IntArray
    beyond: int

    @classmethod
    def of(cls, certificate: Certificate, limit: int) -> Histogram:
        """The histogram of all radii from 0 to `limit`."""
        width = -(-(limit + 1) // _BINS)
        start = np.arange(0, limit + 1, width)
        counted = (certificate.radius >= 0) & (certificate.radius <= limit)
        correct = right(certificate)
        correct = np.ones(len(counted), dtype=np.bool_) if correct is None else correct
        return cls(
            start,
            width,
            np.bincount(certificate.radius[counted & correct] // width, minlength=len(start)),
            np.bincount(certificate.radius[counted & ~correct] // width, minlength=len(start)),
            int((certificate.radius > limit).sum()),
        )


@dataclass(frozen=True)
class ClassRow:
    """What is known about the points of one class: its true class, or the predicted one where that is all we have.

    Attributes:
        label: the class.
        points: how many there are.
        right: how many of them have the correct label; None where true labels are unknown.
        abstained: how many are not certified.
        median_radius: the largest radius to which at least half of them are certified, and correct where that is known;
            -1 where fewer are.
    """

    label: int
    points: int
    right: int | None
    abstained: int
    median_radius: int


def per_class(certificate: Certificate) -> list[ClassRow]:
    """A row for every class that occurs."""
    correct, groups = right(certificate), group_of(certificate)
    counted = certificate.radius if correct is None else np.where(correct, certificate.radius, -1)
    order = np.argsort(groups, kind="stable")
    present, starts = np.unique(groups[order], return_index=True)
    return [
        ClassRow(
            int(label),
            len(members),
            None if correct is None else int(correct[members].sum()),
            int((certificate.radius[members] < 0).sum()),
            int(np.sort(counted[members])[len(members) // 2]),
        )
        for label, members in zip(present, np.split(order, starts[1:]), strict=True)
    ]


def group_of(certificate: Certificate) -> IntArray:
    """The class by which each point is counted: the true one where known, else the predicted one."""
    return certificate.label if certificate.votes.labels is None else certificate.votes.labels


def right(certificate: Certificate) -> BoolArray | None:
    """Which labels are correct; None where true labels are unknown."""
    return None if certificate.votes.labels is None else certificate.label == certificate.votes.labels


def top_share(certificate: Certificate) -> FloatArray:
    """The share of votes for each label (of weights, where votes have them), or its mean score."""
    votes, rows = certificate.votes, np.arange(len(certificate.label))
    if certificate.on == "scores" and votes.score_sums is not None:
        return votes.score_sums[rows, certificate.label].astype(np.float64) / votes.instances
    # Where all weights are zero, no label has a share.
    return votes.counts[rows, certificate.label] / np.maximum(votes.counts.sum(axis=1), 1)


def least_certain_first(certificate: Certificate) -> npt.NDArray[np.intp]:
    """The points by radius, then by share of votes, then by index."""
    return np.lexsort((top_share(certificate), certificate.radius))


def axis_limit(certificates: tuple[Certificate, ...]) -> int:
    """The largest radius that a chart shows: the largest found by any search that did not stop at its limit.

    A point that stops at the limit of the search (2^20) would press all others against the axis.
    """
    found = [
        c.radius[c.status != Status.SEARCH_LIMIT.value].max(initial=-1) for c in certificates
    ]  # every radius is -1 or more
    largest = int(max(found))
    if largest < 1:
        largest = max(int(c.radius.max()) for c in certificates)
    return max(largest, 1)


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
