"""The exact curves and moments of the audit: against closed forms, published values, and each other."""

import numpy as np
import pytest
from oracles import one_step_curve
from scipy import special, stats

from mithridate.accounting.privacy_loss import compose
from mithridate.auditing.exact_curves import ExactMoments, ExactTradeoff, _Inversion, _SumTable

LEVELS = np.array([1e-4, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.9, 0.999])


@pytest.mark.parametrize(("noise", "steps", "deleted", "inserted"), [(2.0, 10, 1, 1), (5.0, 50, 2, 1), (1.0, 3, 0, 1)])
def test_without_sampling_curves_are_those_of_gaussians(noise: float, steps: int, deleted: int, inserted: int) -> None:
    expected = special.ndtr(special.ndtri(LEVELS) + (deleted + inserted) * np.sqrt(steps) / noise)
    for route, tolerance in ((ExactTradeoff, 1e-13), (_Inversion, 1e-10), (_SumTable, 1e-7)):
        curve = route(noise, 1.0, steps, deleted, inserted)(LEVELS)
        assert curve == pytest.approx(expected, abs=tolerance)
        assert (curve >= expected - 1e-14).all()


@pytest.mark.parametrize(("deleted", "inserted"), [(3, 0), (0, 3), (2, 5)])
@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.3), (0.4, 0.01), (3.0, 0.9)])
def test_one_step_is_a_threshold_test(noise: float, rate: float, deleted: int, inserted: int) -> None:
    exact = ExactTradeoff(noise, rate, 1, deleted, inserted)(LEVELS)
    expected = [one_step_curve(noise, rate, deleted, inserted, x) for x in LEVELS.tolist()]
    assert exact == pytest.approx(expected, abs=1e-11)


def test_curves_end_where_they_must() -> None:
    ends = np.array([0.0, 1.0])
    for steps in (1, 5, 100):
        assert ExactTradeoff(1.0, 0.2, steps, 2, 1)(ends).tolist() == [0.0, 1.0]
    assert ExactTradeoff(1.0, 0.2, 7, 0, 0)(LEVELS).tolist() == LEVELS.tolist()


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ((150, 0), [0.24364, 0.63334, 0.86238]),
        ((0, 150), [0.23517, 0.63014, 0.86351]),
        ((75, 75), [0.22659, 0.61585, 0.85354]),
    ],
)
def test_published_trade_off_values(split: tuple[int, int], expected: list[float]) -> None:
    """theory.md, section 8: q = 0.001, sigma = 3, T = 1000, r = 150."""
    exact = ExactTradeoff(3.0, 0.001, 1000, *split)(np.array([0.01, 0.1, 0.3]))
    assert exact == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("split", "expected"),
    [((6, 0), [0.1803, 0.4609, 0.6967]), ((0, 6), [0.0557, 0.3480, 0.6960]), ((3, 3), [0.0926, 0.3441, 0.6267])],
)
def test_published_trade_off_values_with_little_noise(split: tuple[int, int], expected: list[float]) -> None:
    """theory.md, section 8: q = 0.01, sigma = 0.6, T = 50, r = 6."""
    exact = ExactTradeoff(0.6, 0.01, 50, *split)(np.array([0.01, 0.1, 0.3]))
    assert exact == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "deleted", "inserted", "tolerance"),
    [(1.0, 0.2, 20, 2, 1, 1e-8), (2.0, 0.1, 8, 3, 2, 1e-8), (3.0, 0.05, 30, 0, 5, 1e-8), (0.6, 0.01, 50, 0, 6, 1e-5)],
)
def test_inversion_and_table_agree(
    noise: float, rate: float, steps: int, deleted: int, inserted: int, tolerance: float
) -> None:
    inverted = _Inversion(noise, rate, steps, deleted, inserted)(LEVELS)
    tabulated = _SumTable(noise, rate, steps, deleted, inserted)(LEVELS)
    assert tabulated == pytest.approx(inverted, abs=tolerance)


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "deleted", "inserted"),
    [
        (0.5, 0.001, 200, 0, 2),  # losses in lumps: Newton's method alone goes astray
        (0.5, 0.001, 200, 2, 0),
        (0.4, 0.01, 100, 1, 2),
        (0.3, 0.001, 500, 0, 3),
        (0.8, 0.001, 50, 0, 20),
        (0.4, 0.01, 20, 0, 2),  # by the table
        (0.4, 0.01, 20, 2, 0),
        (1.5, 0.2, 40, 3, 2),
    ],
)
def test_both_routes_agree_where_noise_is_small(
    noise: float, rate: float, steps: int, deleted: int, inserted: int
) -> None:
    exact = ExactTradeoff(noise, rate, steps, deleted, inserted)(LEVELS)
    engine = compose(noise, rate, steps, deleted, inserted)(LEVELS)
    assert (engine > exact - 1e-9).all()
    assert engine == pytest.approx(exact, abs=1e-3)


def test_the_table_errs_upwards_where_it_is_coarse() -> None:
    """Many steps with rare, large losses: the grid is too wide for the bulk of them."""
    levels = np.array([0.001, 0.01, 0.1, 0.3])
    coarse = ExactTradeoff(0.5, 1e-4, 1000, 3, 0)
    assert isinstance(coarse._solve, _SumTable)
    # The same grid, 16 times as fine.
    fine = np.array([0.00191332758, 0.0137534748, 0.113889718, 0.321215610])
    assert (coarse(levels) > fine).all()
    assert coarse(levels) == pytest.approx(fine, rel=0.05)


@pytest.mark.parametrize("order", [1.5, 2.0, 8.0])
def test_moments_without_sampling(order: float) -> None:
    for deleted, inserted in ((1, 0), (0, 2), (2, 3)):
        moment = ExactMoments(3.0, 1.0).log_moment(deleted, inserted, order)
        expected = order * (order - 1) * (deleted + inserted) ** 2 / (2 * 9.0)
        assert expected <= moment <= expected * (1 + 2e-10) + 1e-12


def test_moments_with_sampling_at_whole_orders() -> None:
    """E_Q (P/Q)^2 with Q = phi: sum_kl w_k w_l exp(k l / sigma^2)."""
    for noise, rate, changes in ((1.0, 0.1, 3), (2.5, 0.4, 5)):
        k = np.arange(changes + 1)
        weights = stats.binom.pmf(k, changes, rate)
        expected = np.log(weights @ np.exp(np.outer(k, k) / noise**2) @ weights)
        assert expected <= ExactMoments(noise, rate).log_moment(changes, 0, 2.0) <= expected * (1 + 2e-10) + 1e-12
