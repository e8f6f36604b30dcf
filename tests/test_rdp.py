"""The paper's certificate: conditions, the three group rules, subsampling."""

import numpy as np
import numpy.typing as npt
import pytest
from oracles import renyi_log_moment
from scipy import integrate, stats

from mithridate.accounting import RDP, Margins, rdp
from mithridate.accounting.rdp import (
    ORDERS,
    composed_log_moments,
    group_divergence,
    largest_after,
    one_example_divergence,
    smallest_after,
)
from mithridate.core.mechanism import Mechanism, SampledGaussian, Subsampled, Threat
from mithridate.errors import ConfigError, UnsupportedMechanismError

FloatArray = npt.NDArray[np.float64]
MNIST = SampledGaussian(3.0, 0.001, 1000)
SMALL = SampledGaussian(4.0, 0.1, 20)


def margins(top: float, rival: float) -> Margins:
    return Margins.of(np.array([top]), np.array([1 - top]), np.array([rival]))


def holds(method: RDP, mechanism: Mechanism, threat: Threat, radius: int, points: Margins) -> bool:
    return bool(method.accountant(mechanism, threat).holds(radius, points)[0])


def near(orders: FloatArray, target: float) -> int:
    return int(np.abs(orders - target).argmin())


# --- the condition ----------------------------------------------------------------------------------------------------


def test_orders_cover_what_the_paper_asks_for() -> None:
    # theory.md, section 5: 1.01 ... 64, dense near 1.
    assert ORDERS[0] == pytest.approx(1.01)
    assert ORDERS[-1] == pytest.approx(64)
    assert np.all(np.diff(ORDERS) > 0)
    assert np.max(np.diff(np.log(ORDERS - 1))) < 0.1


def test_curves_are_the_paper_s_at_the_best_order() -> None:
    orders, eps = np.array([1.5, 2.0, 8.0]), np.array([0.02, 0.1, 0.9])
    x, p = 0.01, 0.97
    up = min((np.exp(e) * x) ** ((o - 1) / o) for o, e in zip(orders, eps, strict=True))
    down = max(p ** (o / (o - 1)) * np.exp(-e) for o, e in zip(orders, eps, strict=True))
    assert largest_after(orders, eps, np.array([x]))[0] == pytest.approx(up, rel=1e-10)
    assert smallest_after(orders, eps, np.array([p]))[0] == pytest.approx(down, rel=1e-10)
    assert largest_after(orders, eps, np.array([x]))[0] >= up
    assert smallest_after(orders, eps, np.array([p]))[0] <= down


def test_the_curves_bound_what_gaussians_can_do() -> None:
    # N(0, 1) against N(mu, 1): D = order mu^2 / 2, and the true K is known.
    mu, x = 0.7, np.array([1e-4, 0.01, 0.3, 0.9])
    eps = ORDERS * mu**2 / 2
    after = stats.norm.cdf(stats.norm.ppf(x) + mu)
    assert np.all(largest_after(ORDERS, eps, x) >= after)
    assert np.all(smallest_after(ORDERS, eps, after) <= x)


def test_complement_is_the_condition_of_the_docstring() -> None:
    # At q = 1 the mixture divergence is order r^2 T / (2 sigma^2); the condition by hand, at the same orders.
    mechanism, radius, top, rival = SampledGaussian(30.0, 1.0, 4), 5, 0.9, 0.08
    eps = ORDERS * radius**2 * 4 / (2 * 30.0**2)
    k = lambda x: np.min((np.exp(eps) * x) ** ((ORDERS - 1) / ORDERS))  # noqa: E731
    inverse = lambda p: np.max(p ** (ORDERS / (ORDERS - 1)) * np.exp(-eps))  # noqa: E731
    for rival in np.linspace(0.02, 0.1, 30):
        plain = inverse(top) > k(rival)
        both = max(inverse(top), 1 - k(1 - top)) > min(k(rival), 1 - inverse(1 - rival))
        points = margins(top, float(rival))
        assert holds(RDP(), mechanism, Threat.ADD, radius, points) == plain
        assert holds(RDP(complement=True), mechanism, Threat.ADD, radius, points) == both


# --- group rules ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threat", list(Threat))
def test_mixture_is_the_worst_split_in_either_direction(threat: Threat) -> None:
    radius = 3
    splits = {
        Threat.ADD: [(3, 0), (0, 3)],
        Threat.REMOVE: [(3, 0), (0, 3)],
        **{each: [(3, 3)] for each in (Threat.REPLACE, Threat.LABELS, Threat.FEATURES)},
        Threat.EDIT: [(d, a) for d in range(4) for a in range(4) if d or a],
        Threat.SYMMETRIC_DIFFERENCE: [(3, 0), (2, 1), (1, 2), (0, 3)],
    }[threat]
    orders, eps = group_divergence("mixture", SMALL, threat).at(radius)
    for target in (1.01, 1.5, 4.0):
        i = near(orders, target)
        exact = max(float(renyi_log_moment(4.0, 0.1, d, a, float(orders[i]), digits=20)) for d, a in splits)
        exact *= 20 / (orders[i] - 1)
        assert exact <= eps[i] <= exact * (1 + 1e-5)


@pytest.mark.more
@pytest.mark.parametrize("radius", [5, 8, 9, 30, 700, 1030])
def test_tables_of_mixed_splits_cover_every_split(radius: int) -> None:
    # Beyond 512 changes the table has gaps, which are rounded up.
    mechanism = SampledGaussian(40.0, 0.01, 3)
    orders, eps = group_divergence("mixture", mechanism, Threat.SYMMETRIC_DIFFERENCE).at(radius)
    rng = np.random.default_rng(radius)
    for deleted in {0, radius, radius // 2, *rng.integers(0, radius + 1, 4).tolist()}:
        chosen = [near(orders, target) for target in (1.05, 1.5, 3.0)]
        moments = composed_log_moments(mechanism, [deleted], [radius - deleted], orders[chosen])[:, 0, 0]
        assert np.all(eps[chosen] * (orders[chosen] - 1) >= moments * (1 - 1e-9))


@pytest.mark.parametrize("radius", [2, 5, 9, 700])
def test_a_mixed_split_that_is_worst_decides(radius: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # In every regime tried a pure split is worst, so a made-up divergence has to show that mixed ones are looked at.
    def made_up(
        mechanism: Mechanism, deleted: list[int], inserted: list[int], orders: FloatArray, *, prune: bool = True
    ) -> FloatArray:
        d, a = np.array(deleted, float)[:, None], np.array(inserted, float)
        return np.multiply.outer(orders - 1, (d + a + d * a) / 1e6)

    monkeypatch.setattr(rdp, "composed_log_moments", made_up)
    _, eps = group_divergence("mixture", SMALL, Threat.SYMMETRIC_DIFFERENCE).at(radius)
    worst = (radius + (radius // 2) * (radius - radius // 2)) / 1e6
    assert np.all(eps >= worst * (1 - 1e-12))
    assert np.all(eps <= worst * (1.05 if radius > 512 else 1 + 1e-12))


@pytest.mark.parametrize("threat", list(Threat))
def test_paper_is_one_example_at_a_larger_rate(threat: Threat) -> None:
    radius = 7
    orders, eps = group_divergence("paper", MNIST, threat).at(radius)
    changes = threat.changes(7)
    rate = 1 - (1 - 0.001) ** changes
    for target in (1.05, 2.0, 10.0):
        i = near(orders, target)
        exact = max(float(renyi_log_moment(3.0, rate, d, a, float(orders[i]), digits=20)) for d, a in ((1, 0), (0, 1)))
        assert eps[i] == pytest.approx(1000 * exact / (orders[i] - 1), rel=1e-6)


@pytest.mark.parametrize(("radius", "doublings"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (64, 6)])
def test_standard_is_mironov_s_proposition(radius: int, doublings: int) -> None:
    # (order, eps) of one example -> (order / 2^c, 3^c eps), for r <= 2^c and order >= 2^(c + 1).
    orders, eps = group_divergence("standard", MNIST, Threat.SYMMETRIC_DIFFERENCE).at(radius)
    assert np.all(orders >= 2)
    for target in (2.0, 3.0):
        i = near(orders, target)
        exact = 3**doublings * one_example_divergence(MNIST, np.array([orders[i] * 2**doublings]))[0]
        assert eps[i] == pytest.approx(exact, rel=1e-12)


def test_sound_rules_are_never_below_the_truth_where_it_is_known() -> None:
    # q = 1: the divergence of r changes is order r^2 T / (2 sigma^2). The paper's rule ignores r there.
    mechanism, radius = SampledGaussian(50.0, 1.0, 10), 4
    for group in ("mixture", "standard"):
        orders, eps = group_divergence(group, mechanism, Threat.SYMMETRIC_DIFFERENCE).at(radius)
        assert np.all(eps >= orders * radius**2 * 10 / (2 * 50.0**2) * (1 - 1e-12))
    orders, eps = group_divergence("paper", mechanism, Threat.SYMMETRIC_DIFFERENCE).at(radius)
    assert np.all(eps < orders * radius**2 * 10 / (2 * 50.0**2) / 10)


def test_only_the_paper_s_rule_has_to_be_taken_for_granted() -> None:
    assert "bounded group sensitivity" in RDP(group="paper").assumptions[0]
    assert RDP().assumptions == RDP(group="standard").assumptions == ()


def test_what_is_not_defined_is_refused() -> None:
    with pytest.raises(ConfigError, match="group"):
        RDP(group="folk")
    with pytest.raises(UnsupportedMechanismError, match="mixture"):
        RDP(group="paper").accountant(Subsampled(0.5, MNIST), Threat.ADD)


# --- subsampling ------------------------------------------------------------------------------------------------------


def test_keeping_everything_is_the_inner_mechanism() -> None:
    orders = np.array([1.1, 2.0, 5.0])
    kept = composed_log_moments(Subsampled(1.0, SMALL), [1, 4], [0, 2], orders)
    assert kept == pytest.approx(composed_log_moments(SMALL, [1, 4], [0, 2], orders), rel=1e-12)


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(("deleted", "inserted"), [(1, 0), (0, 1), (3, 0), (0, 3), (2, 2)])
def test_one_subsampled_step_is_never_below_the_exact_mixture(keep: float, deleted: int, inserted: int) -> None:
    # One step on a kept part is one step at the rate keep * q, exactly.
    mechanism, orders = Subsampled(keep, SampledGaussian(1.5, 0.3, 1)), np.array([1.1, 2.0, 6.0])
    found = composed_log_moments(mechanism, [deleted], [inserted], orders)[:, 0, 0]
    whole = composed_log_moments(mechanism.inner, [deleted], [inserted], orders)[:, 0, 0]
    for order, value, bound in zip(orders, found, whole, strict=True):
        exact = float(renyi_log_moment(1.5, keep * 0.3, deleted, inserted, float(order), digits=20))
        assert exact <= value <= bound * (1 + 1e-9)


def test_two_subsampled_steps_are_never_below_the_exact_mixture() -> None:
    # One example, kept for both steps or for none: P = (1 - m) N_0 N_0 + m (both sampled at rate q), a double integral.
    noise, rate, keep, order = 1.2, 0.4, 0.35, 2.5

    def ratio(x: float) -> float:
        return 1 - rate + rate * float(np.exp((x - 0.5) / noise**2))

    def integrand(y: float, x: float) -> float:
        mixture = 1 - keep + keep * ratio(x) * ratio(y)
        density = float(np.exp(-(x * x + y * y) / (2 * noise**2))) / (2 * np.pi * noise**2)
        return mixture**order * density

    area = (-8.0, 14.0)
    exact = np.log(integrate.dblquad(integrand, *area, *area, epsabs=1e-10, epsrel=1e-8)[0])
    mechanism = Subsampled(keep, SampledGaussian(noise, rate, 2))
    found = composed_log_moments(mechanism, [1], [0], np.array([order]))[0, 0, 0]
    assert exact * (1 - 1e-7) <= found <= composed_log_moments(mechanism.inner, [1], [0], np.array([order]))[0, 0, 0]


@pytest.mark.parametrize("group", ["mixture", "standard"])
def test_a_smaller_part_never_shrinks_the_radius(group: str) -> None:
    points = margins(0.9, 0.08)
    shown = [
        [holds(RDP(group=group), Subsampled(keep, SMALL), Threat.SYMMETRIC_DIFFERENCE, r, points) for r in range(1, 12)]
        for keep in (1.0, 0.7, 0.3, 0.1)
    ]
    radii = [sum(row) for row in shown]
    assert radii == sorted(radii)
    assert radii[0] < radii[-1]
