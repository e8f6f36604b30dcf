"""Confidence bounds by the second route."""

from fractions import Fraction
from math import comb

import mpmath as mp
import numpy as np
import pytest
from scipy import stats

from mithridate.auditing import confidence
from mithridate.auditing.confidence import (
    binomial_lower,
    binomial_upper,
    log_binomial_tail,
    mixture,
    mixture_upper,
)
from mithridate.core.bounds import anytime_upper


@pytest.mark.parametrize("total", [1, 7, 1000])
@pytest.mark.parametrize("tail", [0.2, 5e-5])
def test_binomial_bounds_solve_their_equation(total: int, tail: float) -> None:
    counts = np.unique(np.array([0, 1, total // 2, total - 1, total]))
    lower, upper = binomial_lower(counts, total, tail), binomial_upper(counts, total, tail)
    assert (lower <= counts / total).all()
    assert (upper >= counts / total).all()
    assert lower[0] == 0
    assert upper[-1] == 1
    assert stats.binom.sf(counts[1:] - 1, total, lower[1:]) == pytest.approx(tail, rel=1e-9)
    assert stats.binom.cdf(counts[:-1], total, upper[:-1]) == pytest.approx(tail, rel=1e-9)


@pytest.mark.parametrize("share", [Fraction(1, 2), Fraction(1, 4), Fraction(10, 11)])
@pytest.mark.parametrize("terms", [3, 2000])
def test_sums_of_binomial_terms_are_no_less_than_the_tail(
    monkeypatch: pytest.MonkeyPatch, share: Fraction, terms: int
) -> None:
    """With few terms the rest is bounded by a geometric series, from above."""
    monkeypatch.setattr(confidence, "_TERMS", terms)
    for total in (1, 2, 9, 60, 300):
        counts = np.unique(np.linspace(1, total, 12).astype(np.int64))
        found = log_binomial_tail(counts, np.full(len(counts), total), np.full(len(counts), float(share)))
        for count, value in zip(counts.tolist(), found.tolist(), strict=True):
            sums = (comb(total, k) * share**k * (1 - share) ** (total - k) for k in range(count, total + 1))
            exact = float(mp.log(mp.mpf((tail := sum(sums, Fraction(0))).numerator) / tail.denominator))
            assert value >= exact - 1e-12 * total
            if terms > total and count > total * share:
                assert value == pytest.approx(exact, abs=1e-11 * total)
            if count <= total * share:
                assert value == 0


@pytest.mark.parametrize(
    ("misses", "hits", "miss"),
    [
        (0, 1, 0.5),
        (0, 30, 0.2),
        (3, 0, 0.5),
        (7, 23, 0.4),
        (23, 7, 0.4),
        (0, 1000, 0.01),
        (300, 700, 0.35),
        (5, 9, 0.99),
    ],
)
def test_capitals_by_quadrature(misses: int, hits: int, miss: float) -> None:
    with mp.workdps(30):
        q = mp.mpf(miss)
        exact = mp.log(
            mp.quad(lambda v: ((1 - v * v) / (1 - q) + v * v) ** hits * v ** (2 * misses), mp.linspace(0, 1, 60))
        )
    found = mixture(np.array([misses]), np.array([hits]), np.array([miss]))
    assert found[0] == pytest.approx(float(exact), abs=1e-10)


@pytest.mark.parametrize("tail", [0.1, 1e-3 / 20, 1e-9])
def test_bounds_at_any_time_are_those_that_certify(tail: float) -> None:
    for total in (1, 2, 30, 1000, 20_000):
        counts = np.unique(np.linspace(0, total, 25).astype(np.int64))
        found, first = mixture_upper(counts, total, tail), anytime_upper(counts, total, tail)
        assert found == pytest.approx(first, rel=1e-8)
        assert (found <= first * (1 + 1e-12)).all()  # so that what was certified is confirmed
