"""Confidence bounds computed again, from counts or scores, sharing no code with `bounds`.

Clopper-Pearson comes by bisection on the binomial tail itself. Betting bounds are the exception: the capital of a bet
is a definition, not an approximation, and has no second route.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from mithridate.auditing.routes import FloatArray, Limits
from mithridate.core.bounds import bound_scores
from mithridate.core.certificate import Certificate, Scope
from mithridate.errors import NumericalError


def limits_of(certificate: Certificate) -> Limits:
    """Bounds on the label of every example and on its rivals.

    Raises:
        NumericalError: the bounds that the certificate names do not fit what it carries.
    """
    votes = certificate.votes
    share = certificate.failure_prob / (votes.examples if certificate.scope is Scope.ALL else 1)
    if certificate.on == "votes":
        tail = {"simultaneous": share / (2 * votes.classes), "simuem": share / votes.classes, "pointwise": share / 4}
        return _vote_limits(votes.counts, votes.instances, tail[certificate.bounds])
    if votes.score_sums is None:
        raise NumericalError("the certificate is on scores but carries none")
    if certificate.bounds == "betting":
        limits = bound_scores(
            votes.score_sums,
            votes.score_squares,
            votes.score_histograms,
            instances=votes.instances,
            failure_prob=share,
            kind="betting",
        )
        return Limits(limits.top_lower, limits.top_miss_upper, limits.rival_upper)
    return _score_limits(certificate, share / (2 * votes.classes))


def _vote_limits(counts: npt.NDArray[np.int64], total: int, tail: float) -> Limits:
    ordered = np.sort(counts, axis=1)
    top, second = ordered[:, -1], ordered[:, -2]
    values = np.unique(ordered[:, -2:])
    lower, upper = binomial_lower(values, total, tail), binomial_upper(values, total, tail)
    place_top, place_second = np.searchsorted(values, top), np.searchsorted(values, second)
    # One minus the lower bound, from the other tail: the upper bound on the share of all other votes.
    miss = binomial_upper(total - values, total, tail)[place_top]
    return Limits(lower[place_top], miss, np.minimum(upper[place_second], miss))


def _score_limits(certificate: Certificate, tail: float) -> Limits:
    votes = certificate.votes
    instances = votes.instances
    sums = np.asarray(votes.score_sums)
    rounding = _rounding(sums.dtype, instances)
    mean = sums.astype(np.float64) / instances
    if certificate.bounds == "hoeffding":
        width = np.full(mean.shape, np.sqrt(np.log(1 / tail) / (2 * instances)))
    elif certificate.bounds == "empirical-bernstein" and votes.score_squares is not None and instances > 1:
        squares = votes.score_squares.astype(np.float64) / instances
        excess = 2 * rounding * mean**2 + rounding * squares
        variance = np.maximum(squares - mean**2 + excess, 0) * instances / (instances - 1)
        variance = np.minimum(variance, 0.25 * instances / (instances - 1))
        width = np.sqrt(2 * variance * np.log(2 / tail) / instances) + 7 * np.log(2 / tail) / (3 * (instances - 1))
    else:
        raise NumericalError(f"the bounds {certificate.bounds!r} do not fit the scores that the certificate carries")
    label = np.clip(certificate.label, 0, votes.classes - 1)[:, None]
    lower = np.clip(mean * (1 - rounding) - width, 0, 1)
    upper = np.clip(mean * (1 + rounding) + width, 0, 1)
    top = np.take_along_axis(lower, label, axis=1)[:, 0]
    np.put_along_axis(upper, label, 0.0, axis=1)
    return Limits(top, 1 - top, np.minimum(upper.max(axis=1), 1 - top))


def _rounding(dtype: np.dtype[Any], instances: int) -> float:
    """Relative error of sums that were accumulated in this precision."""
    return instances * 2.0**-23 if dtype == np.float32 else instances * 2.0**-52


def binomial_lower(count: npt.NDArray[np.int64], total: int, tail: float) -> FloatArray:
    """Clopper-Pearson lower bound: the largest p at which `count` or more successes have probability at most `tail`."""
    low, high = np.zeros(len(count)), np.ones(len(count))
    for _ in range(100):
        middle = (low + high) / 2
        # sf(count - 1) is the probability of `count` or more; with no success it is one, and the bound stays zero.
        fits = stats.binom.sf(count - 1, total, middle) <= tail
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return low


def binomial_upper(count: npt.NDArray[np.int64], total: int, tail: float) -> FloatArray:
    """Clopper-Pearson upper bound: the smallest p at which at most `count` successes have probability `tail`."""
    low, high = np.zeros(len(count)), np.ones(len(count))
    for _ in range(100):
        middle = (low + high) / 2
        fits = stats.binom.cdf(count, total, middle) <= tail
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    return high
