"""Confidence bounds by the second route."""

import numpy as np
import pytest
from scipy import stats

from mithridate.auditing.confidence import binomial_lower, binomial_upper


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
