"""Label and feature smoothing: the curves against exact arithmetic, all tiny data sets, and simulated votes."""

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import accumulate, product
from statistics import NormalDist

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from mithridate.accounting import Margins, Method
from mithridate.core.bounds import bound_votes
from mithridate.core.mechanism import Mechanism, Threat
from mithridate.defences.bagging import Bagged
from mithridate.defences.smoothing import (
    LARGEST_RADIUS,
    QUANTILE_ERROR,
    FeatureNoiseRule,
    LabelNoiseRule,
    NoisyFeatures,
    NoisyLabels,
    _label_curve,
    _quantile_upper,
    _rounded_up,
)
from mithridate.errors import ConfigError, NumericalError, UnsupportedMechanismError

FALSE_ALARM = 1e-6
LEVELS = np.concatenate([np.geomspace(1e-9, 0.4, 40), np.linspace(0.41, 1.0, 25)])


def holds(rule: Method, mechanism: Mechanism, radius: int, miss: float, rival: float) -> bool:
    threat = Threat.LABELS if isinstance(mechanism, NoisyLabels) else Threat.FEATURES
    points = Margins.of(np.array([1 - miss]), np.array([miss]), np.array([rival]))
    return bool(rule.accountant(mechanism, threat).holds(radius, points)[0])


def largest(rule: Method, mechanism: Mechanism, miss: float, rival: float, limit: int = 10**6) -> int:
    radius = 0
    while radius < limit and holds(rule, mechanism, radius + 1, miss, rival):
        radius += 1
    return radius


# --- noisy labels: the curve ----------------------------------------------------------------------------------------


def outcomes(flip: Fraction, classes: int, changed: int) -> Iterator[tuple[Fraction, Fraction]]:
    """Probability under D and under D' of every outcome at the changed places; D has label 0 there, D' label 1."""
    for shown in product(range(classes), repeat=changed):
        under = [Fraction(1), Fraction(1)]
        for noisy, own in product(shown, (0, 1)):
            under[own] *= 1 - flip if noisy == own else flip / (classes - 1)
        yield under[0], under[1]


def corners(atoms: list[tuple[Fraction, Fraction]]) -> tuple[list[Fraction], list[Fraction]]:
    """Where the trade-off curve bends: outcomes in the order of their likelihood ratio (Neyman-Pearson)."""
    atoms = sorted(atoms, key=lambda atom: atom[1] / atom[0], reverse=True)
    before = [Fraction(0), *accumulate(atom[0] for atom in atoms)]
    after = [Fraction(0), *accumulate(atom[1] for atom in atoms)]
    return before, after


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("flip", [Fraction(1, 64), Fraction(1, 4), Fraction(1, 2)])
def test_the_curve_is_the_one_of_every_outcome_counted(classes: int, flip: Fraction) -> None:
    for changed in (1, 2, 3, 4):
        before, after = corners(list(outcomes(flip, classes, changed)))
        exact = np.interp(LEVELS, np.array(before, dtype=float), np.array(after, dtype=float))
        ours = _label_curve(NoisyLabels(float(flip), classes), changed)(LEVELS)
        assert (ours >= exact * (1 - 1e-15)).all()
        np.testing.assert_allclose(ours, exact, rtol=1e-12)


@pytest.mark.parametrize(("flip", "classes", "changed"), [(0.75, 10, 60), (0.5, 3, 100), (0.875, 10, 37)])
def test_the_curve_is_the_one_of_whole_number_polynomials(flip: float, classes: int, changed: int) -> None:
    """The law of the lead from exact powers of a polynomial; the flip probabilities are binary fractions."""
    other = Fraction(flip) / (classes - 1)
    single = [1 - Fraction(flip), other * (classes - 2), other]
    law = [Fraction(1)]
    for _ in range(changed):
        law = [
            sum((single[j] * law[i - j] for j in range(3) if 0 <= i - j < len(law)), Fraction(0))
            for i in range(len(law) + 2)
        ]
    before, after = corners(list(zip(law, law[::-1], strict=True)))
    exact = np.interp(LEVELS, np.array(before, dtype=float), np.array(after, dtype=float))
    ours = _label_curve(NoisyLabels(flip, classes), changed)(LEVELS)
    assert (ours >= exact * (1 - 1e-15)).all()
    np.testing.assert_allclose(ours, exact, rtol=1e-11)


@pytest.mark.parametrize(("flip", "changed"), [(0.45, 500), (0.49, 5000), (0.499, 100_000), (0.4995, LARGEST_RADIUS)])
def test_two_classes_are_two_binomials(flip: float, changed: int) -> None:
    """D' shows its own label at Binomial(r, 1 - q) places, where D shows it at Binomial(r, q)."""
    places = np.arange(changed, -1, -1)
    before = np.append(0.0, stats.binom.sf(places - 1, changed, flip))
    after = np.append(0.0, stats.binom.sf(places - 1, changed, 1 - flip))
    # Left of the first corner that floating point can tell from zero there is nothing to compare.
    exact = np.interp(LEVELS, before, after)
    ours = _label_curve(NoisyLabels(flip, 2), changed)(LEVELS)
    np.testing.assert_allclose(ours, exact, rtol=1e-6)
    assert (ours >= exact * (1 - 1e-8)).all()


@given(
    classes=st.integers(2, 20),
    share=st.floats(0.01, 0.999),
    changed=st.integers(1, 300),
    more=st.integers(1, 40),
)
def test_curves_are_concave_and_grow_with_the_number_of_changes(
    classes: int, share: float, changed: int, more: int
) -> None:
    mechanism = NoisyLabels(share * (classes - 1) / classes, classes)
    fewer, values = _label_curve(mechanism, changed)(LEVELS), _label_curve(mechanism, changed + more)(LEVELS)
    assert (fewer >= LEVELS * (1 - 1e-15)).all()
    assert (values >= fewer * (1 - 1e-9)).all()
    slopes = np.diff(values) / np.diff(LEVELS)
    assert (slopes[1:] <= slopes[:-1] * (1 + 1e-6) + 1e-6).all()


@pytest.mark.parametrize(("flip", "top"), [(0.05, 0.999), (0.2, 0.99), (0.4, 0.9), (0.45, 0.99), (0.45, 0.6)])
def test_at_least_the_closed_form_of_the_authors(flip: float, top: float) -> None:
    """Rosenfeld et al., two classes: r <= log(4 p (1 - p)) / (2 (1 - 2 q) log(q / (1 - q))), a relaxation of ours."""
    theirs = math.log(4 * top * (1 - top)) / (2 * (1 - 2 * flip) * math.log(flip / (1 - flip)))
    ours = largest(LabelNoiseRule(), NoisyLabels(flip, 2), 1 - top, 1 - top)
    assert math.floor(theirs) <= ours <= 3 * theirs + 1


def test_one_changed_label_by_hand() -> None:
    # q = .25, two classes: with probability .25 under D the instance sees the label of D', and that is certain to
    # .75 under D'. So K(x) = 3 x up to .25, and (1 - p1) + p2 < 1/3 is needed.
    mechanism = NoisyLabels(0.25, 2)
    assert holds(LabelNoiseRule(), mechanism, 1, 0.1666, 0.1666)
    assert not holds(LabelNoiseRule(), mechanism, 1, 0.1667, 0.1667)


@pytest.mark.parametrize("classes", [2, 3, 7, 10, 1000])
def test_labels_that_carry_no_information_allow_every_radius(classes: int) -> None:
    mechanism = NoisyLabels((classes - 1) / classes, classes)
    for radius in (1, 1000, 2**20, 2**60):
        assert holds(LabelNoiseRule(), mechanism, radius, 0.49, 0.49)
        assert not holds(LabelNoiseRule(), mechanism, radius, 0.5, 0.5)


def test_large_radii_are_rounded_up_by_little() -> None:
    for radius in (1, 4095, 4096, 4097, 5000, 8191, 8193, 999_999, LARGEST_RADIUS):
        rounded = _rounded_up(radius)
        assert radius <= rounded <= radius * (1 + (radius > 4096) / 500)
        assert rounded <= LARGEST_RADIUS


def test_radii_that_would_take_too_long_are_refused() -> None:
    with pytest.raises(NumericalError, match=str(LARGEST_RADIUS)):
        holds(LabelNoiseRule(), NoisyLabels(0.4, 2), LARGEST_RADIUS + 1, 0.01, 0.01)


def test_almost_no_noise_certifies_nothing() -> None:
    for flip in (5e-324, 1e-300, 1e-30, 1e-6):
        assert largest(LabelNoiseRule(), NoisyLabels(flip, 3), 1e-5, 1e-5) == 0
        assert holds(LabelNoiseRule(), NoisyLabels(flip, 3), 0, 1e-5, 1e-5)


def test_charges_are_reported_and_small() -> None:
    accountant = LabelNoiseRule().accountant(NoisyLabels(0.49, 2), Threat.LABELS)
    assert accountant.error_budget == {"rounding": 0.0, "truncation": 0.0}
    accountant.holds(5000, Margins.of(np.array([0.9]), np.array([0.1]), np.array([0.1])))
    accountant.close()
    assert 0 < accountant.error_budget["rounding"] < 1e-10
    assert 0 < accountant.error_budget["truncation"] < 1e-15


# --- noisy labels: every poisoning of tiny data sets -----------------------------------------------------------------


@pytest.mark.parametrize(("classes", "places", "flip"), [(2, 5, 0.4375), (3, 4, 0.59375)])
def test_no_certified_label_changes_on_any_relabelled_tiny_data_set(classes: int, places: int, flip: float) -> None:
    rng = np.random.default_rng(classes)
    data_sets = np.array(list(product(range(classes), repeat=places)))
    differ = (data_sets[:, None] != data_sets[None]).sum(axis=2)
    # Probability of each noisy data set, given each true one; exact up to the last digits.
    chance = (1 - flip) ** (places - differ) * (flip / (classes - 1)) ** differ
    certified = 0
    for trial in range(40):
        bias = np.full(classes, (1 - 0.97) / (classes - 1))
        bias[trial % classes] = 0.97
        learner = rng.choice(classes, size=len(data_sets), p=bias)
        scores = np.stack([chance[:, learner == label].sum(axis=1) for label in range(classes)], axis=1)
        for trained in rng.choice(len(data_sets), 3):
            top = int(np.argmax(scores[trained]))
            rival = np.delete(scores[trained], top).max() + 1e-14
            miss = np.delete(scores[trained], top).sum() + 1e-14
            radius = largest(LabelNoiseRule(), NoisyLabels(flip, classes), miss, rival, limit=places)
            certified += radius
            near = scores[differ[trained] <= radius]
            assert (near[:, top] > np.delete(near, top, axis=1).max(axis=1)).all()
    assert certified > 60


@pytest.mark.parametrize(("classes", "changed"), [(2, 1), (2, 3), (3, 2), (4, 3)])
def test_where_the_condition_fails_an_attack_exists(classes: int, changed: int) -> None:
    """The rival wins where the likelihood ratio is largest, the top label where it is smallest; a coin splits atoms."""
    flip = Fraction(3, 8)
    before, after = corners(list(outcomes(flip, classes, changed)))
    answers = {True: 0, False: 0}
    for miss, share in product([Fraction(i, 40) for i in range(1, 20)], [Fraction(1), Fraction(1, 3)]):
        rival = miss * share
        rival_after = interpolate(before, after, rival)
        top_after = 1 - interpolate(before, after, miss)
        if abs(rival_after - top_after) > Fraction(1, 10**9):
            answer = holds(LabelNoiseRule(), NoisyLabels(float(flip), classes), changed, float(miss), float(rival))
            assert answer == (top_after > rival_after)
            answers[answer] += 1
    assert answers[False]
    assert answers[True] or changed > 2


def interpolate(x: list[Fraction], y: list[Fraction], at: Fraction) -> Fraction:
    place = next(i for i in range(1, len(x)) if x[i] >= at)
    return y[place - 1] + (y[place] - y[place - 1]) * (at - x[place - 1]) / (x[place] - x[place - 1])


def wrongly_certified(rule: Method, mechanism: Mechanism, threat: Threat, radius: int, miss: float, runs: int) -> int:
    """How many of the runs certify a radius at which, for these scores of two labels, a learner exists that ties."""
    counts = np.random.default_rng(3).multinomial(300, [1 - miss, miss], size=runs)
    limits = bound_votes(counts, failure_prob=0.05)
    points = Margins.of(limits.top_lower, limits.top_miss_upper, limits.rival_upper)
    return int(rule.accountant(mechanism, threat).holds(radius, points).sum())


def test_simulated_label_votes_are_certified_wrongly_at_most_as_often_as_promised() -> None:
    """A valid rule fails with probability 1e-6 over seeds. At radius 5, two classes, the exact limit is K(x) = 1/2."""
    flip, radius, runs = 0.4, 5, 4000
    places = np.arange(radius + 1, -1, -1)
    before, after = (stats.binom.sf(places - 1, radius, p) for p in (flip, 1 - flip))
    limit = float(np.interp(0.5, after, before))
    wrong = wrongly_certified(LabelNoiseRule(), NoisyLabels(flip, 2), Threat.LABELS, radius, limit, runs)
    assert wrong <= stats.binom.isf(FALSE_ALARM, runs, 0.05)
    assert holds(LabelNoiseRule(), NoisyLabels(flip, 2), radius, limit * 0.999, limit * 0.999)


# --- noisy inputs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("top", "rival"), [(0.99, 0.01), (0.9, 0.05), (0.6, 0.3), (0.999999, 1e-7)])
@pytest.mark.parametrize(("noise", "max_change"), [(1.0, 0.1), (0.25, 0.07), (20.0, 3.0)])
def test_the_published_closed_form(top: float, rival: float, noise: float, max_change: float) -> None:
    """sqrt(r) max_change < noise / 2 (Phi^-1(p1) - Phi^-1(p2))."""
    normal = NormalDist()
    distance = noise / 2 * (normal.inv_cdf(top) - normal.inv_cdf(rival))
    radius = largest(FeatureNoiseRule(max_change), NoisyFeatures(noise), 1 - top, rival)
    assert math.sqrt(radius) * max_change < distance
    assert math.sqrt(radius + 1) * max_change >= distance * (1 - 1e-9)


def test_quantiles_are_rounded_up_by_more_than_their_error() -> None:
    levels = np.concatenate([np.geomspace(1e-300, 0.5, 200), 1 - np.geomspace(1e-15, 0.5, 100)])
    ours = _quantile_upper(levels)
    with mp.workdps(40):
        for level, upper, plain in zip(levels.tolist(), ours.tolist(), special.ndtri(levels).tolist(), strict=True):
            # One Newton step from a quantile that is right to 15 digits is right to 30.
            error = (mp.ncdf(mp.mpf(plain)) - mp.mpf(level)) / mp.npdf(plain)
            assert abs(error) < 0.1 * QUANTILE_ERROR * (1 + abs(plain))
            assert upper > mp.mpf(plain) - error


def test_scores_at_the_ends_of_their_range() -> None:
    rule, mechanism = FeatureNoiseRule(1.0), NoisyFeatures(1.0)
    assert holds(rule, mechanism, 10**6, 0.0, 0.0)
    assert not holds(rule, mechanism, 1, 1.0, 0.0)
    assert not holds(rule, mechanism, 1, 1.0, 1.0)
    assert not holds(rule, mechanism, 0, 0.5, 0.5)


def test_where_inputs_moved_far_enough_an_attack_exists() -> None:
    """Learner: the mean of the moved inputs. Its scores after the attack are exact, on both sides of the radius."""
    normal, noise, max_change, top = NormalDist(), 2.0, 0.5, 0.9
    radius = largest(FeatureNoiseRule(max_change), NoisyFeatures(noise), 1 - top, 1 - top)

    def top_after(moved: int) -> float:
        # The mean of `moved` inputs has deviation noise / sqrt(moved); the label flips above its quantile of `top`.
        spread = noise / math.sqrt(moved)
        return NormalDist(max_change, spread).cdf(normal.inv_cdf(top) * spread)

    assert radius > 10
    assert all(top_after(moved) > 0.5 for moved in range(1, radius + 1))
    assert top_after(radius + 1) <= 0.5


def test_simulated_feature_votes_are_certified_wrongly_at_most_as_often_as_promised() -> None:
    """A valid rule fails with probability 1e-6 over seeds. Moved by mu, the exact limit is Phi(-mu) each."""
    radius, max_change, noise, runs = 16, 0.25, 1.0, 4000
    limit = NormalDist().cdf(-math.sqrt(radius) * max_change / noise)
    rule, mechanism = FeatureNoiseRule(max_change), NoisyFeatures(noise)
    wrong = wrongly_certified(rule, mechanism, Threat.FEATURES, radius, limit, runs)
    assert wrong <= stats.binom.isf(FALSE_ALARM, runs, 0.05)
    assert holds(rule, mechanism, radius, limit * 0.999, limit * 0.999)


@given(
    radius=st.integers(0, 10**6),
    miss=st.floats(0, 1),
    share=st.floats(0, 1),
    ratio=st.floats(1e-3, 1e3),
)
def test_a_yes_covers_fewer_changes_and_better_scores(radius: int, miss: float, share: float, ratio: float) -> None:
    rule, mechanism = FeatureNoiseRule(ratio), NoisyFeatures(1.0)
    if holds(rule, mechanism, radius + 1, miss, miss * share):
        assert holds(rule, mechanism, radius, miss, miss * share)
        assert holds(rule, mechanism, radius + 1, miss * 0.9, miss * share * 0.9)


# --- as objects -----------------------------------------------------------------------------------------------------


def test_votes_of_another_mechanism_are_refused() -> None:
    for rule, threat in ((LabelNoiseRule(), Threat.LABELS), (FeatureNoiseRule(1.0), Threat.FEATURES)):
        with pytest.raises(UnsupportedMechanismError, match="not of Bagged"):
            rule.accountant(Bagged(10, 2), threat)


@pytest.mark.parametrize("threat", list(Threat))
def test_other_threats_are_refused(threat: Threat) -> None:
    cases = ((LabelNoiseRule(), NoisyLabels(0.2, 3), "labels"), (FeatureNoiseRule(1.0), NoisyFeatures(1.0), "features"))
    for rule, mechanism, only in cases:
        if threat.value == only:
            rule.accountant(mechanism, threat)
        else:
            with pytest.raises(UnsupportedMechanismError, match=f"use threat='{only}'"):
                rule.accountant(mechanism, threat)


@pytest.mark.parametrize("max_change", [0.0, -1.0, math.nan, math.inf, "wide", True])
def test_a_change_without_size_is_refused(max_change: float) -> None:
    with pytest.raises(ConfigError, match="max_change"):
        FeatureNoiseRule(max_change)


def test_rules_describe_themselves_and_name_their_threat() -> None:
    assert LabelNoiseRule().to_dict() == {"name": "label-smoothing"}
    assert FeatureNoiseRule(2).to_dict() == {"name": "feature-smoothing", "max_change": 2.0}
    (labels,), (features,) = LabelNoiseRule().assumptions, FeatureNoiseRule(0.125).assumptions
    assert "inputs and their number are unchanged" in labels
    for part in ("0.125 in l2", "units", "labels", "number of training examples", "test inputs"):
        assert part in features
