"""Bounds on mean accuracy: by trade-off curves and as published, their coverage, and a learner of known truth."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mithridate import Votes
from mithridate.accounting.rdp import one_example_epsilon
from mithridate.auditing.distributions import steps_of_errors, steps_of_wrong
from mithridate.auditing.private_routes import average_holds
from mithridate.core.bounds import clopper_pearson_upper
from mithridate.core.mechanism import Private, SampledGaussian, Subsampled, Threat, mechanism_from_dict
from mithridate.core.score_bands import steps_of_counts, steps_of_values
from mithridate.defences.bagging import Bagged
from mithridate.defences.smoothing import NoisyLabels
from mithridate.defences.statistical import (
    StatisticalBound,
    _pairs,
    mean_lower,
    statistical_bound,
    statistical_dp,
)
from mithridate.errors import ConfigError

FALSE_ALARM = 1e-6


def error_steps(accuracies: np.ndarray, failure_prob: float) -> tuple[tuple[float, float], ...]:
    """What follows from the accuracies of all instances."""
    return _pairs(steps_of_values(1 - accuracies, len(accuracies), failure_prob, clopper_pearson_upper))


MNIST = SampledGaussian(3.0, 0.001, 1000)


# --- the bound at a radius ------------------------------------------------------------------------------------------


@given(accuracy=st.floats(0, 1), epsilon=st.floats(0, 5), delta=st.floats(0, 0.1), changes=st.integers(0, 60))
def test_it_is_one_change_after_the_other(accuracy: float, epsilon: float, delta: float, changes: int) -> None:
    """J' >= e^-eps (J - delta), again and again; below zero nothing is left."""
    expected = accuracy
    for _ in range(changes):
        expected = math.exp(-epsilon) * (expected - delta)
    (bound,) = statistical_bound(accuracy, [changes], epsilon=epsilon, delta=delta)
    assert bound == pytest.approx(max(expected, 0.0), rel=1e-9, abs=1e-11)
    assert bound <= max(expected, 0.0) + 1e-15 * changes


def test_it_is_the_published_formula() -> None:
    accuracy, epsilon, delta = 0.87, 0.0545, 1e-5
    radii = np.arange(0, 80, 7)
    c = delta / math.expm1(epsilon)
    expected = np.maximum(np.exp(-radii * epsilon) * (accuracy + c) - c, 0)
    np.testing.assert_allclose(statistical_bound(accuracy, radii, epsilon=epsilon, delta=delta), expected, rtol=1e-9)


def test_a_vanishing_epsilon_is_the_limit() -> None:
    exact = statistical_bound(0.9, [0, 1, 1000], epsilon=0.0, delta=1e-4)
    np.testing.assert_allclose(exact, [0.9, 0.8999, 0.8], rtol=1e-9)
    for epsilon in (5e-324, 1e-300, 1e-15):
        np.testing.assert_allclose(statistical_bound(0.9, [0, 1, 1000], epsilon=epsilon, delta=1e-4), exact, rtol=1e-9)


@pytest.mark.parametrize("epsilon", [1e3, 1e300, math.inf])
def test_without_privacy_nothing_is_left_after_one_change(epsilon: float) -> None:
    assert statistical_bound(0.9, [0, 1, 2], epsilon=epsilon, delta=1e-5).tolist() == [0.9, 0.0, 0.0]


@pytest.mark.parametrize(("accuracy", "epsilon", "delta"), [(1.1, 1.0, 0.1), (0.9, -1.0, 0.1), (0.9, math.nan, 0.1)])
def test_numbers_outside_their_range_are_refused(accuracy: float, epsilon: float, delta: float) -> None:
    with pytest.raises(ConfigError, match="Expected"):
        statistical_bound(accuracy, [1], epsilon=epsilon, delta=delta)


# --- the bound on accuracy ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("instances", [1, 10, 1000])
@pytest.mark.parametrize("failure_prob", [0.5, 1e-3, 1e-9])
def test_perfect_accuracy_has_a_closed_form(instances: int, failure_prob: float) -> None:
    exact = failure_prob ** (1 / instances)
    assert exact - 1e-9 <= mean_lower(1.0, instances, failure_prob) <= exact


@given(hits=st.integers(0, 400), instances=st.integers(1, 400), failure_prob=st.floats(1e-9, 0.5))
def test_it_lies_between_hoeffding_and_the_exact_bound_for_hits_and_misses(
    hits: int, instances: int, failure_prob: float
) -> None:
    """Instances that are all right or all wrong are among those it must cover: no better than Clopper-Pearson."""
    hits = min(hits, instances)
    bound = mean_lower(hits / instances, instances, failure_prob)
    exact = float(stats.beta.ppf(failure_prob, hits, instances - hits + 1)) if hits else 0.0
    assert bound <= exact * (1 + 1e-9)
    assert bound >= hits / instances - math.sqrt(math.log(1 / failure_prob) / (2 * instances)) - 1e-6


@pytest.mark.parametrize("law", ["all or nothing", "spread", "narrow"])
def test_it_fails_at_most_as_often_as_promised(law: str) -> None:
    """A valid bound fails this test with probability 1e-6 over seeds."""
    rng, instances, failure_prob, runs, mean = np.random.default_rng(11), 60, 0.05, 20_000, 0.9
    match law:
        case "all or nothing":
            accuracies = rng.random((runs, instances)) < mean
        case "spread":
            accuracies = rng.beta(0.9, 0.1, (runs, instances))
        case _:
            accuracies = rng.beta(90, 10, (runs, instances))
    means, inverse = np.unique(accuracies.mean(axis=1).round(3), return_inverse=True)
    # Means are rounded to the nearest thousandth to save time, and up: a bound on a larger mean is a harder test.
    bounds = np.array([mean_lower(min(m + 0.0005, 1.0), instances, failure_prob) for m in means.tolist()])
    failures = int((bounds[inverse] > mean).sum())
    assert failures <= stats.binom.isf(FALSE_ALARM, runs, failure_prob)
    assert failures or law != "all or nothing"  # The worst law comes near the promise.


# --- from votes -----------------------------------------------------------------------------------------------------


def test_votes_give_the_accuracy_of_the_instances() -> None:
    votes = Votes.from_counts([[80, 20, 0], [0, 50, 50], [10, 0, 90]], mechanism=MNIST, labels=[0, 1, 2])
    bound = statistical_dp(votes, failure_prob=0.01, delta=1e-6, threat="remove")
    assert bound.mean_accuracy == pytest.approx((80 + 50 + 90) / 300)
    assert bound.published_lower == mean_lower(220 / 300, 100, 0.01)
    # Both the mean and the single inputs have half of the probability.
    assert bound.accuracy_lower >= mean_lower(220 / 300, 100, 0.005) - 1e-9
    assert sum(share for share, _ in bound.errors) == pytest.approx(1)
    assert bound.epsilon == one_example_epsilon(MNIST, 1e-6)
    assert (bound.delta, bound.failure_prob, bound.threat) == (1e-6, 0.01, Threat.REMOVE)
    assert (bound.examples, bound.instances) == (3, 100)
    assert bound.per_prediction is False


@pytest.mark.parametrize("threat", list(Threat))
def test_the_published_bound_counts_changed_examples_twice(threat: Threat) -> None:
    votes = Votes.from_counts([[900, 100]], mechanism=MNIST, labels=[0])
    bound = statistical_dp(votes, threat=threat)
    changes = [threat.changes(radius) for radius in range(30)]
    expected = statistical_bound(bound.published_lower, changes, epsilon=bound.epsilon, delta=bound.delta)
    np.testing.assert_array_equal(bound.published(range(30)), expected)
    assert expected[0] == bound.published_lower
    assert (np.diff(expected) <= 0).all()


# --- by trade-off curves --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threat", list(Threat))
def test_without_sampling_there_is_a_closed_form(threat: Threat) -> None:
    """With q = 1 every split of r changes has K(x) = Phi(Phi^-1(x) + r sqrt(T) / sigma); one input has one step."""
    votes = Votes.from_counts([[900, 100]], mechanism=SampledGaussian(40.0, 1.0, 16), labels=[0])
    bound, radii = statistical_dp(votes, threat=threat), np.arange(12)
    changes = np.array([threat.changes(radius) for radius in radii.tolist()])
    # One minus it, without subtracting from one.
    exact = stats.norm.cdf(stats.norm.ppf(bound.accuracy_lower) - changes * 4 / 40)
    found = bound.accuracy(radii)
    assert (found <= exact + 1e-12).all()
    np.testing.assert_allclose(found, exact, atol=3e-4)


@pytest.mark.parametrize(
    "mechanism", [MNIST, SampledGaussian(1.0, 0.05, 20), Subsampled(0.5, SampledGaussian(4.0, 0.5, 4))], ids=str
)
@pytest.mark.parametrize("threat", ["symmetric-difference", "add", "remove", "edit"])
def test_it_is_the_worst_split_by_the_exact_curves(mechanism: Private, threat: str) -> None:
    votes = Votes.from_counts([[950, 50], [800, 200]], mechanism=mechanism, labels=[0, 0])
    bound, radii = statistical_dp(votes, threat=threat), [1, 2, 5]
    found, stated = bound.accuracy(radii), json.loads(json.dumps(bound.to_dict()))
    steps = steps_of_wrong(np.array([50, 200]), 1000, 1e-3)
    assert average_holds(stated, steps, radii, found.tolist()).all()
    assert not average_holds(stated, steps, radii, (found + 0.01).tolist()).any()
    assert not average_holds(stated, steps[:1], radii, found.tolist()).any()
    assert (found > bound.published(radii)).all()


@pytest.mark.parametrize("radius", [513, 700])
def test_of_many_changes_one_chain_covers_several_splits(radius: int) -> None:
    votes = Votes.from_counts([[900, 100]], mechanism=SampledGaussian(3000.0, 1.0, 16), labels=[0])
    bound = statistical_dp(votes)
    exact, fewer = (
        stats.norm.cdf(stats.norm.ppf(bound.accuracy_lower) - r * 4 / 3000) for r in (radius, 1.08 * radius)
    )
    assert fewer - 1e-3 <= bound.accuracy(radius) <= exact + 1e-12


def test_more_changes_leave_less_and_in_the_end_nothing() -> None:
    bound = statistical_dp(Votes.from_counts([[900, 100]], mechanism=SampledGaussian(1.0, 0.05, 20), labels=[0]))
    found = bound.accuracy([0, 1, 2, 5, 10, 20, 1 << 20])
    assert found[0] == bound.accuracy_lower
    assert (np.diff(found) <= 0).all()
    assert found[-1] == 0.0


# --- from counts ------------------------------------------------------------------------------------------------------


def test_easy_and_hopeless_inputs_together_are_better_than_their_mean() -> None:
    """The largest expected error is a mean over inputs, and a curve does little to what is certain already."""
    mixed = Votes.from_counts([[1000, 0]] * 8 + [[0, 1000]] * 2, mechanism=MNIST, labels=[0] * 10)
    even = Votes.from_counts([[800, 200]] * 10, mechanism=MNIST, labels=[0] * 10)
    assert statistical_dp(mixed).mean_accuracy == statistical_dp(even).mean_accuracy
    assert (statistical_dp(mixed).accuracy([50, 100]) > statistical_dp(even).accuracy([50, 100]) + 0.1).all()


@pytest.mark.parametrize("law", ["alike", "mixed", "together"])
def test_what_is_claimed_from_counts_fails_as_rarely_as_promised(law: str) -> None:
    """The truth under a shift of a Gaussian is known for every input; false alarm below 1e-6 over seeds."""
    rng, inputs, instances, failure_prob, runs = np.random.default_rng(14), 12, 40, 0.1, 1000
    wrong = np.full(inputs, 0.3) if law != "mixed" else np.linspace(0, 1, inputs) ** 2
    chance = rng.random((runs, instances, 1 if law == "together" else inputs))
    counts = (chance < wrong).sum(axis=1)
    curve = lambda x: stats.norm.cdf(stats.norm.ppf(x) + 0.8)  # noqa: E731
    truth = curve(wrong).mean()
    failures = 0
    for row in counts:
        lengths, heights = np.array(_pairs(steps_of_counts(row, instances, failure_prob, clopper_pearson_upper))).T
        failures += lengths @ curve(heights) < truth - 1e-12
    assert failures <= stats.binom.isf(FALSE_ALARM, runs, failure_prob)


@pytest.mark.parametrize("instances", [1, 2, 60, 1000])
def test_the_second_route_to_the_steps_of_inputs_agrees(instances: int) -> None:
    wrong = np.random.default_rng(instances).binomial(instances, 0.2, 30)
    shifts = np.array([0.0, 0.3, 1.0, 3.0])[:, None]
    results: list[np.ndarray] = []
    for steps in (
        _pairs(steps_of_counts(wrong, instances, 1e-3, clopper_pearson_upper)),
        steps_of_wrong(wrong, instances, 1e-3),
    ):
        lengths, heights = np.array(steps).T
        results.append(stats.norm.cdf(stats.norm.ppf(heights) + shifts) @ lengths)
    np.testing.assert_allclose(*results, rtol=1e-9)
    assert (results[0] >= results[1] * (1 - 1e-12)).all()


# --- by the accuracies of the instances -------------------------------------------------------------------------------


def many_inputs(correct: np.ndarray, inputs: int = 200) -> Votes:
    """Votes of instances that are correct on so many of the first inputs."""
    right = np.arange(inputs)[:, None] < correct
    counts = np.stack([right.sum(axis=1), (~right).sum(axis=1)], axis=1)
    return Votes.from_counts(counts, mechanism=MNIST, labels=np.zeros(inputs, dtype=np.int64))


def test_accuracies_that_hardly_differ_give_more_than_their_mean() -> None:
    correct = np.random.default_rng(3).binomial(200, 0.9, 500)
    votes = many_inputs(correct)
    alone, together = statistical_dp(votes), statistical_dp(votes, instance_accuracy=correct / 200)
    radii = [0, 10, 50, 100, 150]
    assert (together.accuracy(radii) > alone.accuracy(radii)).all()
    assert together.accuracy(100) > alone.accuracy(100) + 0.02
    stated, steps = json.loads(json.dumps(together.to_dict())), steps_of_errors((correct / 200).tolist(), 1e-3)
    assert average_holds(stated, steps, radii[1:], together.accuracy(radii[1:]).tolist()).all()
    assert not average_holds(stated, steps, radii[1:], (together.accuracy(radii[1:]) + 0.01).tolist()).any()


def test_instances_that_are_all_right_or_all_wrong_are_the_worst_case() -> None:
    """Then their distribution says no more than the counts, which are those of every input."""
    correct = np.where(np.arange(1000) < 900, 200, 0)
    votes = many_inputs(correct)
    alone, together = statistical_dp(votes), statistical_dp(votes, instance_accuracy=correct / 200)
    radii = [0, 10, 50, 100]
    np.testing.assert_allclose(together.accuracy(radii), alone.accuracy(radii), atol=0.03)


@pytest.mark.parametrize("law", ["all or nothing", "spread", "narrow", "atoms"])
def test_the_accuracy_after_changes_is_below_the_bound_as_rarely_as_promised(law: str) -> None:
    """The truth is an integral over the law of the error; a valid bound fails with probability 1e-6 over seeds."""
    rng, instances, failure_prob, runs = np.random.default_rng(12), 40, 0.1, 800
    levels = (np.arange(20_000) + 0.5) / 20_000
    match law:
        case "all or nothing":
            quantiles = (levels > 0.85).astype(float)
        case "spread":
            quantiles = stats.beta(0.2, 0.8).ppf(levels)
        case "narrow":
            quantiles = stats.beta(20, 180).ppf(levels)
        case _:
            quantiles = np.choose((levels * 4).astype(int), [0.0, 0.125, 0.25, 1.0])
    shift = 0.8
    # E'[e] on the worst D' of a Gaussian: the largest errors get all the weight that a shift by so much can give.
    edges = stats.norm.cdf(stats.norm.ppf(np.linspace(0, 1, 20_001)) - shift)
    truth = float(1 - np.diff(edges) @ quantiles)
    errors = quantiles[rng.integers(0, 20_000, (runs, instances))]
    failures = 0
    for row in errors:
        lengths, heights = np.array(error_steps(1 - row, failure_prob)).T
        claimed = 1 - lengths @ stats.norm.cdf(stats.norm.ppf(heights) + shift)
        failures += claimed > truth + 1e-3  # what the grid of the law is good for
    assert failures <= stats.binom.isf(FALSE_ALARM, runs, failure_prob)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.full(99, 0.9), "one for each of 100 instances"),
        (np.full((100, 1), 0.9), "one for each of 100 instances"),
        (np.full(100, 2), "numbers in"),
        (np.full(100, 1.1), "numbers in"),
        (np.full(100, np.nan), "numbers in"),
        (np.full(100, 0.5), "by their votes"),
    ],
)
def test_accuracies_of_other_instances_are_refused(given: np.ndarray, message: str) -> None:
    votes = Votes.from_counts([[90, 10]], mechanism=MNIST, labels=[0])
    with pytest.raises(ConfigError, match=message):
        statistical_dp(votes, instance_accuracy=given)


def test_accuracies_in_single_precision_are_taken() -> None:
    correct = np.random.default_rng(4).binomial(200, 0.9, 100)
    exact = statistical_dp(many_inputs(correct), instance_accuracy=correct / 200)
    rounded = statistical_dp(many_inputs(correct), instance_accuracy=(correct / 200).astype(np.float32))
    np.testing.assert_allclose(rounded.accuracy([0, 50]), exact.accuracy([0, 50]), atol=1e-5)


@pytest.mark.parametrize("instances", [1, 2, 50, 1000])
def test_the_second_route_to_the_steps_of_the_error_agrees(instances: int) -> None:
    accuracies = np.random.default_rng(instances).beta(30, 3, instances)
    shifts = np.array([0.0, 0.3, 1.0, 3.0])[:, None]
    results: list[np.ndarray] = []
    for steps in (error_steps(accuracies, 1e-3), steps_of_errors(accuracies.tolist(), 1e-3)):
        lengths, heights = np.array(steps).T
        assert lengths.sum() == pytest.approx(1)
        results.append(stats.norm.cdf(stats.norm.ppf(heights) + shifts) @ lengths)
    np.testing.assert_allclose(*results, rtol=1e-9)
    assert (results[0] >= results[1] * (1 - 1e-12)).all()


def test_a_learner_of_known_accuracy_is_never_below_the_bound() -> None:
    """DP-SGD in one dimension, full batches: the sum of updates is N(0, T sigma^2), shifted by T for each canary.

    An instance is right where the sum is below a threshold, so its expected accuracy is known for any number of them.
    """
    mechanism, threshold = SampledGaussian(20.0, 1.0, 50), 200.0
    deviation = 20.0 * math.sqrt(50)
    epsilon = one_example_epsilon(mechanism, 1e-5)
    radii = np.arange(0, 6)
    truth = stats.norm.cdf((threshold - 50 * radii) / deviation)
    bound = statistical_bound(float(truth[0]), radii, epsilon=epsilon, delta=1e-5)
    assert (bound <= truth).all()
    # The attacked learner is the worst one, so that our bound is the truth.
    votes = Votes.from_counts([[10**9, 0]], mechanism=mechanism, labels=[0])
    lower = replace(statistical_dp(votes), errors=((1.0, float(1 - truth[0])),), accuracy_lower=float(truth[0]))
    assert (lower.accuracy(radii) <= truth + 1e-12).all()
    np.testing.assert_allclose(lower.accuracy(radii), truth, atol=2e-4)
    assert bound[1] > 0.1  # Not an empty claim.


def test_it_is_written_as_plain_values() -> None:
    votes = Votes.from_counts([[900, 100]], mechanism=MNIST, labels=[0])
    values = json.loads(json.dumps(statistical_dp(votes).to_dict(), allow_nan=False))
    assert values["name"] == "statistical-dp"
    assert values["per_prediction"] is False
    assert values["threat"] == "symmetric-difference"
    rest = {
        key: value
        for key, value in values.items()
        if key not in ("name", "per_prediction", "conditional", "conditions")
    }
    read = {
        "threat": Threat(rest["threat"]),
        "mechanism": mechanism_from_dict(rest["mechanism"]),
        "assumptions": tuple(rest["assumptions"]),
        "errors": tuple(map(tuple, rest["errors"])),
    }
    assert StatisticalBound(**{**rest, **read}) == statistical_dp(votes)


def test_it_says_what_it_assumes() -> None:
    votes = Votes(np.array([[900, 100]]), MNIST, labels=np.array([0]), assumptions=("The data was counted.",))
    found = statistical_dp(votes).assumptions
    assert found[-1] == "The data was counted."
    for words in (
        "independent runs of the stated mechanism",
        "does not know the randomness",
        "accuracy of one instance",
    ):
        assert sum(words in sentence for sentence in found) == 1


def test_a_mechanism_that_is_as_good_as_not_private_gives_nothing() -> None:
    votes = Votes.from_counts([[900, 100]], mechanism=SampledGaussian(0.01, 1.0, 1000), labels=[0])
    bound = statistical_dp(votes)
    assert bound.accuracy([0, 1]).tolist() == [bound.accuracy_lower, 0.0]
    assert json.dumps(bound.to_dict(), allow_nan=False)


def test_votes_without_labels_or_privacy_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs the true labels"):
        statistical_dp(Votes.from_counts([[900, 100]], mechanism=MNIST))
    for mechanism in (Bagged(100, 10), NoisyLabels(0.2, 2)):
        with pytest.raises(ConfigError, match="privately trained"):
            statistical_dp(Votes.from_counts([[900, 100]], mechanism=mechanism, labels=[0]))


@pytest.mark.parametrize("radii", [[-1], [0.5], ["many"], [True]])
def test_radii_are_whole_numbers(radii: list[int]) -> None:
    bound = statistical_dp(Votes.from_counts([[900, 100]], mechanism=MNIST, labels=[0]))
    with pytest.raises(ConfigError, match="radii"):
        bound.accuracy(radii)


def test_options_outside_their_range_are_refused() -> None:
    votes = Votes.from_counts([[900, 100]], mechanism=MNIST, labels=[0])
    for value in (0.0, 1.0, math.nan):
        with pytest.raises(ConfigError, match="failure_prob"):
            statistical_dp(votes, failure_prob=value)
        with pytest.raises(ConfigError, match="delta"):
            statistical_dp(votes, delta=value)
    with pytest.raises(ConfigError, match="threat"):
        statistical_dp(votes, threat="flood")
