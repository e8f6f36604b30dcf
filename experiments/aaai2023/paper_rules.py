"""The rules of the paper's own code, kept for reproduction; none of the radii they give is a guarantee.

What sets them apart from the library's:

* *Groups.* RDP by `group="paper"`; (eps, delta) of a group as (r eps, r delta), which is smaller than what follows from
  that of one example. Instances that train on their own part of the data count as if they had the whole of it.
* *Votes.* Clopper-Pearson intervals for each label by itself (`pointwise`).
* *Scores.* Student-t intervals for each label by itself: right for normal scores, and scores in [0, 1] are not normal.
* *The true label* is what is certified, whether or not it is what is predicted. Points where it does not lead get -1.
* *The search* ends at radius 200, whatever holds beyond.
"""

from __future__ import annotations

from functools import cache
from typing import cast

import numpy as np
import numpy.typing as npt
from scipy import stats

from mithridate import Votes
from mithridate.accounting import Accountant, Margins
from mithridate.accounting.rdp import PaperDivergence, RdpAccountant, one_example_epsilon
from mithridate.certifying import certification
from mithridate.core.bounds import LabelBounds, bound_votes
from mithridate.core.mechanism import Mechanism, Private, Subsampled, Threat, private
from mithridate.core.rule import BoolArray

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

FAILURE_PROB = 1e-3
DELTA = 1e-5
LARGEST_RADIUS = 200


def radii(votes: Votes, rule: str, *, on: str, valid_bounds: bool = False) -> IntArray:
    """The radius of every point by the paper's rules, -1 where its true label does not lead.

    Args:
        votes: with true labels, and scores where they are asked for.
        rule: `rdp` or `adp`.
        on: `votes` or `scores`.
        valid_bounds: take the library's bounds instead of the paper's, to tell the two apart from the group rule.
    """
    if valid_bounds:
        limits = _of_true_labels(
            votes, certification.bound(votes, on=on, kind=certification.default_bounds(on), failure_prob=FAILURE_PROB)
        )
    else:
        limits = pointwise_bounds(votes) if on == "votes" else student_bounds(votes)
    return largest_radii(accountant(votes.mechanism, rule), limits)


def pointwise_bounds(votes: Votes) -> LabelBounds:
    """The bounds of the paper's code on votes."""
    return _of_true_labels(votes, bound_votes(votes.counts, failure_prob=FAILURE_PROB, kind="pointwise"))


def _of_true_labels(votes: Votes, found: LabelBounds) -> LabelBounds:
    """Bounds for the true label; where another one leads, nothing is separated."""
    assert votes.labels is not None
    top_lower = np.where(found.label == votes.labels, found.top_lower, 0.0)
    return LabelBounds(votes.labels, top_lower, found.top_miss_upper, found.rival_upper)


def student_bounds(votes: Votes) -> LabelBounds:
    """Two-sided Student-t intervals for every mean score, read for the true label against its strongest rival."""
    assert votes.labels is not None
    assert votes.score_sums is not None
    assert votes.score_squares is not None
    total = votes.instances
    mean = votes.score_sums.astype(np.float64) / total
    squares = votes.score_squares.astype(np.float64) / total
    # Sums in single precision may leave a variance below zero.
    error = np.sqrt(np.maximum(squares - mean**2, 0.0) / (total - 1))
    width = error * float(stats.t.ppf(1 - FAILURE_PROB / 2, total - 1))
    everyone = np.arange(votes.examples)
    top_lower = np.clip((mean - width)[everyone, votes.labels], 0.0, 1.0)
    upper = mean + width
    upper[everyone, votes.labels] = -1.0
    return LabelBounds(votes.labels, top_lower, 1 - top_lower, np.clip(upper.max(axis=1), 0.0, 1 - top_lower))


def largest_radii(accountant: Accountant, limits: LabelBounds) -> IntArray:
    """The largest radius up to the end of the paper's search at which each label stays on top, by bisection."""
    found = np.where(limits.top_lower > limits.rival_upper, 0, -1).astype(np.int64)
    brackets = [(0, LARGEST_RADIUS + 1, np.flatnonzero(found == 0))]
    while brackets:
        low, high, points = brackets.pop()
        if high - low == 1 or not len(points):
            found[points] = low
            continue
        middle = (low + high) // 2
        margins = Margins.of(limits.top_lower[points], limits.top_miss_upper[points], limits.rival_upper[points])
        holds = accountant.holds(middle, margins)
        brackets += [(middle, high, points[holds]), (low, middle, points[~holds])]
    return found


@cache
def accountant(mechanism: Mechanism, rule: str) -> Accountant:
    """The paper's condition for a mechanism; what it computes serves every run of that mechanism."""
    if rule == "adp":
        return _SimpleGroups(one_example_epsilon(_whole(private(mechanism)), DELTA))
    return RdpAccountant(PaperDivergence(_whole(private(mechanism)), Threat.SYMMETRIC_DIFFERENCE), False)


def _whole(mechanism: Private) -> Private:
    return mechanism.inner if isinstance(mechanism, Subsampled) else mechanism


class _SimpleGroups:
    """(eps, delta) of one example taken for (r eps, r delta) of r examples."""

    error_budget = cast("dict[str, float]", {})

    def __init__(self, eps: float) -> None:
        self._eps = eps

    def close(self) -> None:
        """Nothing to keep."""

    def holds(self, radius: int, margins: Margins) -> BoolArray:
        """(p1 - r delta) e^(-r eps) > e^(r eps) p2 + r delta."""
        # Beyond e^300 nothing holds, and nothing overflows.
        growth, delta = np.exp(min(radius * self._eps, 300.0)), radius * DELTA
        return margins.top.map(lambda p: (p - delta) / growth) > margins.rival.map(lambda x: growth * x + delta)
