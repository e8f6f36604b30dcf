"""Log moments against 30-digit quadrature over all components: never below, and close."""

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from oracles import renyi_log_moment
from scipy import special

from mithridate.accounting.rdp import one_example_divergence
from mithridate.accounting.renyi import log_moments
from mithridate.core.mechanism import SampledGaussian


def moment(noise: float, rate: float, deleted: int, inserted: int, order: float) -> float:
    return float(log_moments(noise, rate, [deleted], [inserted], np.array([order]))[0, 0, 0])


CASES = [
    # noise, rate, deleted, inserted, orders
    (1.0, 0.01, 1, 0, (1.01, 1.5, 2.0, 8.0, 64.0)),
    (1.0, 0.01, 0, 1, (1.01, 1.5, 2.0, 8.0, 64.0)),
    (3.0, 0.001, 40, 0, (1.01, 1.3, 2.0)),
    (3.0, 0.001, 0, 40, (1.01, 1.3, 2.0, 5.0)),
    (3.0, 0.001, 20, 20, (1.01, 1.3, 2.0, 5.0)),
    (19.0, 0.064, 10, 0, (1.1, 4.0, 20.0, 64.0)),
    (19.0, 0.064, 3, 7, (1.1, 4.0, 20.0)),
    (2.0, 0.3, 3, 2, (1.2, 5.0, 16.0)),
    (0.5, 0.1, 2, 1, (1.05, 2.0, 8.0)),
    (4.0, 0.137, 1, 0, (1.01, 1.1, 3.0)),
    (3.0, 0.35, 1, 0, (1.05, 1.5, 1.79)),
]


@pytest.mark.parametrize(("noise", "rate", "deleted", "inserted", "orders"), CASES)
def test_never_below_and_within_a_millionth(
    noise: float, rate: float, deleted: int, inserted: int, orders: tuple[float, ...]
) -> None:
    for order in orders:
        exact = float(renyi_log_moment(noise, rate, deleted, inserted, order))
        found = moment(noise, rate, deleted, inserted, order)
        assert exact <= found <= exact * (1 + 1e-6), order


@pytest.mark.parametrize(("order", "within"), [(1.85, 1e-6), (1.9, 1e-3), (1.905, 0.1), (1.95, 1e-3), (2.0, 1e-4)])
def test_the_event_that_all_were_sampled_is_never_left_out(order: float, within: float) -> None:
    # From order 1.91 on the far component, of weight 1e-408, decides. Close to the change the bound is loose but sound.
    exact = float(renyi_log_moment(3.0, 0.001, 136, 0, order))
    assert exact <= moment(3.0, 0.001, 136, 0, order) <= exact * (1 + within)


@pytest.mark.parametrize("order", [1.908, 1.91, 1.915, 1.92])
def test_the_change_is_never_underestimated(order: float) -> None:
    exact = float(renyi_log_moment(3.0, 0.001, 136, 0, order))
    assert exact <= moment(3.0, 0.001, 136, 0, order)


@pytest.mark.parametrize(("deleted", "inserted"), [(1, 0), (0, 4), (3, 2)])
def test_without_sampling_the_divergence_is_that_of_gaussians(deleted: int, inserted: int) -> None:
    for order in (1.01, 2.0, 30.0):
        exact = order * (order - 1) * (deleted + inserted) ** 2 / (2 * 5.0**2)
        assert exact <= moment(5.0, 1.0, deleted, inserted, order) <= exact * (1 + 1e-6)


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.01), (3.0, 0.001), (19.0, 0.064), (0.7, 0.5)])
def test_whole_orders_have_a_closed_form(noise: float, rate: float) -> None:
    # Mironov, Talwar, Zhang 2019, section 3.3: sum_k Binom(k; order, q) exp((k^2 - k) / (2 sigma^2)), one deletion.
    for order in (2, 3, 10, 32):
        k = np.arange(order + 1)
        log_choose = special.gammaln(order + 1) - special.gammaln(k + 1) - special.gammaln(order - k + 1)
        terms = log_choose + k * np.log(rate) + (order - k) * np.log1p(-rate) + (k * k - k) / (2 * noise**2)
        exact = float(special.logsumexp(terms))
        found = moment(noise, rate, 1, 0, float(order))
        assert exact * (1 - 1e-7) - 1e-13 <= found <= exact * (1 + 1e-6) + 1e-12


@pytest.mark.parametrize(("noise", "rate", "steps"), [(3.0, 0.001, 1000), (1.1, 0.02, 300), (19.0, 0.064, 2343)])
def test_one_example_agrees_with_dp_accounting(noise: float, rate: float, steps: int) -> None:
    # Its divergence at one whole order, read back from the epsilon it converts it to.
    delta = 1e-12
    for order in (2, 4, 6):
        accountant = RdpAccountant([order])
        accountant.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)), steps)
        eps = accountant.get_epsilon(delta)
        theirs = eps - np.log1p(-1 / order) + (np.log(delta) + np.log(order)) / (order - 1)
        ours = one_example_divergence(SampledGaussian(noise, rate, steps), np.array([float(order)]))[0]
        assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-9)


def test_several_sizes_at_once_are_the_same_as_one_by_one() -> None:
    sizes = [0, 1, 3, 8]
    orders = np.array([1.1, 2.0, 6.0])
    table = log_moments(2.0, 0.05, sizes, sizes, orders)
    for i, deleted in enumerate(sizes):
        for j, inserted in enumerate(sizes):
            for n, order in enumerate(orders):
                exact = float(renyi_log_moment(2.0, 0.05, deleted, inserted, float(order), digits=20))
                assert table[n, i, j] >= exact * (1 - 1e-12) - 1e-18
                assert table[n, i, j] <= exact * (1 + 1e-6) + 1e-11


def test_a_small_group_beside_a_large_one_is_never_below() -> None:
    # At the scale of the large group all terms of the small one underflow.
    table = log_moments(1.0, 0.01, [1, 100], [0], np.array([64.0]))
    assert table[0, 0, 0] >= float(renyi_log_moment(1.0, 0.01, 1, 0, 64.0))


def test_no_change_no_divergence() -> None:
    assert np.all(log_moments(1.0, 0.1, [0, 2], [0, 3], np.array([1.5, 7.0]))[:, 0, 0] == 0)


def test_more_changes_never_lower_a_moment() -> None:
    table = log_moments(3.0, 0.02, list(range(20)), list(range(20)), np.array([1.05, 1.5, 3.0]))
    assert np.all(np.diff(table, axis=1) >= -1e-12)
    assert np.all(np.diff(table, axis=2) >= -1e-12)
