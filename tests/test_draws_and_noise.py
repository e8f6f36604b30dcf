"""The second route for learners that draw examples or noise: against outcomes one by one, and worked by hand."""

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from mithridate.auditing.routes import Claim, Limits, NoSecondRouteError, recheck
from mithridate.core.mechanism import Mechanism, SampledGaussian, Threat
from mithridate.defences.bagging import Bagged
from mithridate.defences.smoothing import NoisyFeatures, NoisyLabels
from mithridate.errors import ArtifactError, UnsupportedMechanismError


def points(*pairs: tuple[float, float]) -> Limits:
    top, rival = np.array(pairs, dtype=float).T
    return Limits(top, 1 - top, rival)


def second_route(
    mechanism: Mechanism, rule: str, options: dict[str, Any], threat: Threat
) -> Callable[[int, Limits], npt.NDArray[np.bool_]]:
    """What says whether a radius holds, for every row of bounds."""

    def holds(radius: int, limits: Limits) -> npt.NDArray[np.bool_]:
        size = len(limits.top_lower)
        counts = np.zeros((size, 2), dtype=np.int64)
        radii = np.full(size, radius)
        claim = Claim(mechanism, rule, threat, counts[:, 0], radii, counts, options=options, limits=limits)
        return ~recheck(claim)

    return holds


# Bagging


def shared_sizes(threat: Threat, n: int, radius: int) -> set[tuple[int, int]]:
    """(size of D', examples in both), of every D' that single steps can reach; an example of D changes at most once."""
    result: set[tuple[int, int]] = set()
    for deleted, inserted, changed in product(range(n + 1), range(radius + 1), range(n + 1)):
        allowed = {
            Threat.SYMMETRIC_DIFFERENCE: changed == 0 and deleted + inserted <= radius,
            Threat.ADD: changed == deleted == 0,
            Threat.REMOVE: changed == inserted == 0 and deleted <= radius,
            Threat.EDIT: deleted + inserted + changed <= radius,
        }.get(threat, deleted == inserted == 0 and changed <= radius)
        if allowed and deleted + changed <= n:
            result.add((n - deleted + inserted, n - deleted - changed))
    return result


@pytest.mark.parametrize("threat", list(Threat))
@pytest.mark.parametrize(("n", "draws"), [(2, 2), (4, 1), (4, 2), (8, 1)])  # Powers of two: shares are exact.
def test_bagging_against_every_vote_on_every_sample(n: int, draws: int, threat: Threat) -> None:
    route = second_route(Bagged(n, draws), "bagging", {}, threat)
    whole, confirmed = n**draws, 0
    for radius in range(1, 4):
        worlds = shared_sizes(threat, n, radius)
        for top, rival in product(range(whole + 1), repeat=2):
            if top + rival > whole or top <= rival:
                continue
            held = bool(route(radius, points((top / whole, rival / whole)))[0])
            truth = True
            for size, shared in worlds:
                both = shared**draws
                # As few samples of both as possible vote for the label, as many for the rival, and all new ones do.
                least = max(0, top - (whole - both))
                most = min(rival, both - least) + size**draws - both
                truth = truth and least > most and size > 0
            assert truth or not held
            # The condition is exact where the label can lose all samples that are gone, and the rival none.
            room = all(top >= whole - s**draws and rival <= s**draws - (top - whole + s**draws) for _, s in worlds)
            if room and min(size for size, _ in worlds) > 0:
                assert held == truth
            confirmed += held
    assert confirmed > 0 or whole < 16


def test_bagging_worked_by_hand() -> None:
    # One draw of ten, unanimous: 2 r / 10 - 1 < 0 up to r = 4, at r = 5 half of the draws are the attacker's.
    route = second_route(Bagged(10, 1), "bagging", {}, Threat.EDIT)
    assert [bool(route(r, points((1.0, 0.0)))[0]) for r in (1, 4, 5, 6, 10, 11, 10**6)] == [True, True] + [False] * 5
    # With k draws and p2 = 0: changed examples alone ask for 2 (1 - r/n)^k > 2 - p1, r < n (1 - (1 - p1 / 2)^(1/k)).
    route = second_route(Bagged(60_000, 500), "bagging", {}, Threat.REPLACE)
    for top in (0.6, 0.9, 0.999):
        limit = 60_000 * -math.expm1(math.log1p(-top / 2) / 500)
        assert route(math.floor(limit), points((top, 0.0)))[0]
        assert not route(math.ceil(limit), points((top, 0.0)))[0]


@pytest.mark.parametrize("threat", list(Threat))
def test_bagging_agrees_with_a_search_over_all_data_sets(threat: Threat) -> None:
    n, draws = 30, 4
    route = second_route(Bagged(n, draws), "bagging", {}, threat)
    pairs = [(0.99, 0.005), (0.8, 0.1), (0.6, 0.3)]
    for radius in range(1, 8):
        held = route(radius, points(*pairs))
        for (top, rival), answer in zip(pairs, held.tolist(), strict=True):
            expected = all(
                Fraction(size, n) ** draws - 2 * Fraction(shared, n) ** draws + 1 - Fraction(top) + Fraction(rival) < 0
                for size, shared in shared_sizes(threat, n, radius)
            )
            assert answer == expected


# Noise


def best_test(flip_prob: float, classes: int, radius: int, x: float) -> float:
    """The largest probability under D' of an event of probability x under D, outcome by outcome."""
    outcomes: list[tuple[float, float]] = []
    for noisy in product(range(classes), repeat=radius):
        kept = [1 - flip_prob if label == 0 else flip_prob / (classes - 1) for label in noisy]
        changed = [1 - flip_prob if label == 1 else flip_prob / (classes - 1) for label in noisy]
        outcomes.append((math.prod(kept), math.prod(changed)))
    total = 0.0
    for under, after in sorted(outcomes, key=lambda pair: pair[0] / pair[1]):
        part = min(1.0, x / under)
        total, x = total + part * after, x - part * under
        if x <= 0:
            break
    return total


@pytest.mark.parametrize(("flip_prob", "classes"), [(0.1, 2), (0.4, 2), (0.3, 3), (0.55, 4), (0.75, 4)])
@pytest.mark.parametrize("radius", [1, 2, 5])
def test_noisy_labels_against_every_outcome(flip_prob: float, classes: int, radius: int) -> None:
    route = second_route(NoisyLabels(flip_prob, classes), "label-smoothing", {}, Threat.LABELS)
    for rival in (1e-4, 0.01, 0.1, 0.3):
        reached = best_test(flip_prob, classes, radius, rival)
        # The share of the label at which it is just ahead: K(1 - p1) = 1 - K(p2), by bisection.
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            ahead = best_test(flip_prob, classes, radius, 1 - middle) + reached < 1
            low, high = (low, middle) if ahead else (middle, high)
        if high < 1 - 1e-9:
            assert route(radius, points((high + 1e-8, rival), (high - 1e-8, rival))).tolist() == [True, False]
        else:
            assert not route(radius, points((1 - 1e-9, rival)))[0]


def test_noisy_labels_of_two_classes_by_the_binomial() -> None:
    # With two labels and x the probability of r flips among r, K(x) is the probability that none flips.
    flip_prob, radius = 0.4, 6
    x = flip_prob**radius
    # The rival's K is 0.6^6; the label may then miss as much as some m with K(m) = 1 - 0.6^6, that is m = 1 - 0.4^6.
    assert best_test(flip_prob, 2, radius, x) == pytest.approx((1 - flip_prob) ** radius, rel=1e-12)
    route = second_route(NoisyLabels(flip_prob, 2), "label-smoothing", {}, Threat.LABELS)
    edge = (1 - flip_prob) ** radius
    assert best_test(flip_prob, 2, radius, 1 - edge) == pytest.approx(1 - x, rel=1e-12)
    # K(1 - 0.6^6) = 1 - 0.4^6, and K of a rival below (0.4 / 0.6)^6 0.4^6 stays below 0.4^6.
    rival = x * (flip_prob / (1 - flip_prob)) ** radius
    assert route(radius, points((edge, 0.999 * rival), (edge, 1.001 * rival))).tolist() == [True, False]


def test_noisy_labels_many_changes() -> None:
    # Many weak traces are Gaussian: K(x) = Phi(Phi^-1(x) + d), d the root of radius times the divergence of one label.
    mechanism, radius = NoisyLabels(0.499, 2), 40_000
    shift = (1 - 2 * 0.499) / math.sqrt(0.499 * 0.501) * math.sqrt(radius)
    reached = stats.norm.cdf(stats.norm.ppf(0.1) + shift)
    top = stats.norm.sf(stats.norm.ppf(1 - reached) - shift)
    route = second_route(mechanism, "label-smoothing", {}, Threat.LABELS)
    assert route(radius, points((top + 1e-3, 0.1), (top - 1e-3, 0.1))).tolist() == [True, False]


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_labels_that_are_pure_noise_cannot_be_poisoned(classes: int) -> None:
    route = second_route(NoisyLabels((classes - 1) / classes, classes), "label-smoothing", {}, Threat.LABELS)
    assert route(1 << 20, points((0.5, 0.4), (0.4, 0.5))).tolist() == [True, False]


@pytest.mark.parametrize("radius", [1, 4, 100])
def test_noisy_features_against_the_best_test_on_a_line(radius: int) -> None:
    noise, change = 2.0, 0.3
    route = second_route(NoisyFeatures(noise), "feature-smoothing", {"max_change": change}, Threat.FEATURES)
    for rival in (0.001, 0.2, 0.45):
        # All changes at once are one shift by their joint length; the rival gains what lies beyond its threshold.
        shift = change * math.sqrt(radius)
        reached = stats.norm.sf(stats.norm.isf(rival, scale=noise), loc=shift, scale=noise)
        top = stats.norm.sf(stats.norm.isf(reached, loc=shift, scale=noise), loc=2 * shift, scale=noise)
        assert route(radius, points((top * (1 + 1e-9), rival), (top * (1 - 1e-9), rival))).tolist() == [True, False]


def test_a_certain_vote_withstands_any_noise() -> None:
    route = second_route(NoisyFeatures(1.0), "feature-smoothing", {"max_change": 1.0}, Threat.FEATURES)
    assert route(1 << 20, points((1.0, 0.0))).tolist() == [True]


@pytest.mark.parametrize(
    ("mechanism", "name"),
    [(Bagged(10, 2), "label-smoothing"), (SampledGaussian(1.0, 0.1, 5), "bagging"), (Bagged(10, 2), "fdp")],
)
def test_rules_that_do_not_fit_the_mechanism(mechanism: Mechanism, name: str) -> None:
    with pytest.raises(NoSecondRouteError, match="by another route"):
        second_route(mechanism, name, {}, Threat.LABELS)(1, points((1.0, 0.0)))


@pytest.mark.parametrize(
    ("mechanism", "name", "threat"),
    [
        (NoisyLabels(0.2, 3), "label-smoothing", Threat.REPLACE),
        (NoisyFeatures(1.0), "feature-smoothing", Threat.ADD),
    ],
)
def test_threats_that_do_not_fit_the_rule(mechanism: Mechanism, name: str, threat: Threat) -> None:
    with pytest.raises(UnsupportedMechanismError, match="is about the threat"):
        second_route(mechanism, name, {"max_change": 1.0}, threat)(1, points((1.0, 0.0)))


def test_feature_smoothing_needs_its_option() -> None:
    with pytest.raises(ArtifactError, match="how far"):
        second_route(NoisyFeatures(1.0), "feature-smoothing", {}, Threat.FEATURES)(1, points((1.0, 0.0)))


def test_bounds_are_needed() -> None:
    claim = Claim(Bagged(9, 1), "bagging", Threat.EDIT, np.array([0]), np.array([1]), np.array([[9, 0]]))
    with pytest.raises(ArtifactError, match="rests on bounds"):
        recheck(claim)
