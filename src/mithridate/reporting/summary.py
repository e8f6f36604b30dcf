"""The numbers of a report: plain arrays from a certificate, without words and without drawings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mithridate.core.certificate import Certificate, Status, is_correct

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

_BINS = 40


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
        correct = is_correct(certificate)
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
    correct, groups = is_correct(certificate), group_of(certificate)
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
