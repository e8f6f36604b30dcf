"""What vote counts say, by the second routes: roots by halving, sums term by term, integrals by quadrature.

It shares no arithmetic with `core/bounds.py`, which solves the same equations by inverse and incomplete beta functions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import stats

from mithridate.auditing.routes import FloatArray, IntArray

# Terms of a binomial tail that are added up; those that follow are bounded by a geometric series.
_TERMS = 2000
# Nodes and weights of the rule by which a capital is integrated on either side of its peak.
_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(100)
# What lies so far below the peak, in logarithms, is left out, which makes the capital smaller.
_NEGLIGIBLE = 50.0


def binomial_lower(count: IntArray, total: int, tail: float) -> FloatArray:
    """Clopper-Pearson lower bound: the largest p at which `count` or more successes have probability at most `tail`."""
    low, high = np.zeros(len(count)), np.ones(len(count))
    for _ in range(100):
        middle = (low + high) / 2
        # sf(count - 1) is the probability of `count` or more; with no success it is one, and the bound stays zero.
        fits = stats.binom.sf(count - 1, total, middle) <= tail
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return low


def binomial_upper(count: IntArray, total: int, tail: float) -> FloatArray:
    """Clopper-Pearson upper bound: the smallest p at which at most `count` successes have probability `tail`."""
    low, high = np.zeros(len(count)), np.ones(len(count))
    for _ in range(100):
        middle = (low + high) / 2
        fits = stats.binom.cdf(count, total, middle) <= tail
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    return high


def log_binomial_tail(count: IntArray, total: IntArray, probability: FloatArray) -> FloatArray:
    """An upper bound on the logarithm of the probability of `count` or more successes, term by term.

    It is 0 where `count` is no more than the mean. Beyond it every term is smaller than the one before, and the ratio
    of neighbouring terms falls.
    """
    result = np.zeros(len(count))
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, int(total.max(initial=0)) + 1)))])
    for row in np.flatnonzero(count > total * probability):
        first, trials, chance = int(count[row]), int(total[row]), float(probability[row])
        k = np.arange(first, min(trials, first + _TERMS) + 1)
        terms = factorials[trials] - factorials[k] - factorials[trials - k]
        terms = terms + k * np.log(chance) + (trials - k) * np.log1p(-chance)
        ratio = (trials - k[-1]) / (k[-1] + 1) * chance / (1 - chance)
        parts = np.exp(terms - terms[0])
        result[row] = terms[0] + np.log(parts.sum() + parts[-1] * ratio / (1 - ratio))
    return result


def mixture(misses: IntArray, hits: IntArray, miss: FloatArray) -> FloatArray:
    """The logarithm of the capital against missing with probability `miss` or more, by quadrature.

    For u = v^2 the prior on v is uniform on (0, 1), and the capital is the integral of
    ((1 - v^2) / (1 - miss) + v^2)^hits v^(2 misses), which has one peak.
    """
    lost, won = misses.astype(np.float64)[:, None], hits.astype(np.float64)[:, None]
    gain = (miss / (1 - miss))[:, None]  # the first factor is 1 + gain (1 - v^2)

    def log_at(v: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return won * np.log1p(gain * (1 - v**2)) + np.where(lost > 0, 2 * lost * np.log(v), 0.0)

    peak = np.sqrt(np.clip(lost / np.maximum(lost + won, 1) / miss[:, None], 0.0, 1.0))
    height = log_at(peak)
    sides = [_where_negligible(log_at, peak, end, height - _NEGLIGIBLE) for end in (0.0, 1.0)]
    total = np.zeros(peak.shape)
    for end in sides:
        nodes = peak + (end - peak) * (_NODES + 1) / 2
        total += np.abs(end - peak) / 2 * (np.exp(log_at(nodes) - height) * _NODE_WEIGHTS).sum(axis=1, keepdims=True)
    return (height + np.log(total))[:, 0]


def _where_negligible(
    log_at: Callable[[FloatArray], FloatArray], peak: FloatArray, end: float, level: FloatArray
) -> FloatArray:
    """How far from the peak towards an end an integrand stays above a level; the end, if it is above it there."""
    inner, outer = peak, np.full(peak.shape, end)
    for _ in range(40):
        middle = (inner + outer) / 2
        below = log_at(middle) < level
        inner, outer = np.where(below, inner, middle), np.where(below, middle, outer)
    return outer


def mixture_upper(count: IntArray, total: int, tail: float) -> FloatArray:
    """The smallest probability beyond which the capital has reached one by the tail, in any number of trials."""
    low, high = np.zeros(len(count)), np.ones(len(count))
    for _ in range(70):
        middle = (low + high) / 2
        rejected = np.zeros(len(count), dtype=np.bool_)
        inside = (middle > low) & (middle < high)
        rejected[inside] = mixture(count[inside], (total - count)[inside], middle[inside]) >= np.log(1 / tail)
        low, high = np.where(rejected, low, middle), np.where(rejected, middle, high)
    return high
