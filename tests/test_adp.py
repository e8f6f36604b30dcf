"""The paper's second certificate, (eps, delta)."""

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from scipy import optimize, stats

from mithridate.accounting import ADP, Margins
from mithridate.accounting.rdp import one_example_epsilon
from mithridate.core.mechanism import SampledGaussian, Subsampled, Threat
from mithridate.errors import ConfigError

MNIST = SampledGaussian(3.0, 0.001, 1000)


def holds(method: ADP, mechanism: SampledGaussian | Subsampled, threat: Threat, radius: int, top: float) -> bool:
    points = Margins.of(np.array([top]), np.array([1 - top]), np.array([1 - top]))
    return bool(method.accountant(mechanism, threat).holds(radius, points)[0])


def test_tabulated_epsilon() -> None:
    # theory.md, section 8; finer orders may only make it smaller.
    eps = one_example_epsilon(MNIST, 1e-5)
    assert 0.0545 * 0.98 <= eps <= 0.0545 + 5e-5


@pytest.mark.parametrize(("noise", "rate", "steps"), [(1.1, 0.02, 300), (3.0, 0.001, 1000)])
def test_epsilon_agrees_with_dp_accounting_on_whole_orders(noise: float, rate: float, steps: int) -> None:
    # Theirs is the best of whole orders, ours of many more: never larger, apart from rounding, and close.
    accountant = RdpAccountant(list(range(2, 257)))
    accountant.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)), steps)
    theirs = accountant.get_epsilon(1e-5)
    assert theirs * 0.98 <= one_example_epsilon(SampledGaussian(noise, rate, steps), 1e-5) <= theirs * (1 + 1e-4)


def test_epsilon_is_never_below_the_exact_one_of_a_gaussian() -> None:
    # q = 1: delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), Balle & Wang 2018.
    mu = np.sqrt(20) / 10.0

    def excess(eps: float) -> float:
        return float(stats.norm.cdf(mu / 2 - eps / mu) - np.exp(eps) * stats.norm.cdf(-mu / 2 - eps / mu)) - 1e-5

    exact = optimize.brentq(excess, 1e-6, 50)
    assert exact <= one_example_epsilon(SampledGaussian(10.0, 1.0, 20), 1e-5) <= 1.2 * exact


@pytest.mark.parametrize("threat", list(Threat))
def test_groups_obey_the_stated_formula(threat: Threat) -> None:
    eps, delta = one_example_epsilon(MNIST, 1e-5), 1e-5
    for radius in (1, 5, 20):
        changes = threat.changes(radius)
        group_eps = changes * eps
        group_delta = delta * sum(np.exp(i * eps) for i in range(changes))  # = delta (e^(r eps) - 1) / (e^eps - 1)
        # The smallest top score that holds, with the rest for one rival: (p - delta) e^-eps > e^eps (1 - p) + delta.
        least = (np.exp(group_eps) + group_delta + group_delta * np.exp(-group_eps)) / (
            np.exp(group_eps) + np.exp(-group_eps)
        )
        assert holds(ADP(), MNIST, threat, radius, least + 1e-9)
        assert not holds(ADP(), MNIST, threat, radius, least - 1e-9)


def test_hopeless_groups_do_not_hold() -> None:
    assert not holds(ADP(), MNIST, Threat.ADD, 10**6, 1 - 1e-12)


@pytest.mark.parametrize("keep", [0.2, 0.8])
def test_subsampling_amplifies_by_the_stated_formula(keep: float) -> None:
    inner = one_example_epsilon(MNIST, 1e-5 / keep)
    expected = np.log(1 + keep * (np.exp(inner) - 1))
    assert one_example_epsilon(Subsampled(keep, MNIST), 1e-5) == pytest.approx(expected, rel=1e-12)


def test_keeping_everything_is_the_inner_mechanism_and_less_never_hurts() -> None:
    assert one_example_epsilon(Subsampled(1.0, MNIST), 1e-5) == one_example_epsilon(MNIST, 1e-5)
    values = [one_example_epsilon(Subsampled(keep, MNIST), 1e-5) for keep in (1.0, 0.5, 0.1, 1e-6)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == 0  # A part that is kept with probability below delta: nothing to protect.


def test_delta_is_a_probability() -> None:
    for delta in (0.0, 1.0, -1e-5, float("nan")):
        with pytest.raises(ConfigError, match="delta"):
            ADP(delta=delta)
