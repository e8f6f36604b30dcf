"""Judging: true claims are rarely called broken, false ones nearly always, and no certificate is asked for too much.

Statistical tests draw from fixed seeds, so that they pass or fail for good. Were the seeds drawn anew, a test of a true
null hypothesis would fail with the probability that it states.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import comb
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mithridate import SampledGaussian, Threat, Votes, certify
from mithridate.accounting import FDP, RDP
from mithridate.attacking.judging import Claims, labels_of, p_value
from mithridate.attacking.poison import Poison
from mithridate.attacking.result import Broken
from mithridate.attacking.search import AuditSearch, Question
from mithridate.certifying.certification import predicted
from mithridate.core.rule import default_rule
from mithridate.defences.bagging import Bagged
from mithridate.defences.partitions import Partitioned

GAUSSIAN = SampledGaussian(20.0, 1.0, 4)
LEVEL, DRAWS, INSTANCES = 0.05, 4000, 512
# Four standard deviations of a rate of LEVEL among so many draws: more is seen with probability 3.2e-5.
MARGIN = 4 * np.sqrt(LEVEL * (1 - LEVEL) / DRAWS)


def rate(votes: Votes, weights: Any, on: str = "votes") -> float:
    """How often the claim that label 0 has the largest score is refuted at the level."""
    found = [p_value(votes, at, 0, on, np.array(weights)) for at in range(len(votes.counts))]
    return float(np.mean(np.array(found) <= LEVEL))


def drawn(chances: Any, seed: int) -> Votes:
    """Votes of many runs, an entry each."""
    counts = np.random.default_rng(seed).multinomial(INSTANCES, chances, size=DRAWS)
    return Votes.from_counts(counts, mechanism=GAUSSIAN)


# --- one claim --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chances", "weights"),
    [
        ([0.5, 0.5], [1, 1]),
        ([0.05, 0.05, 0.9 / 2, 0.9 / 2], [9, 9, 1, 1]),
        ([0.4, 0.4, 0.2], [1, 1, 1]),
        ([1 / 3, 1 / 3, 1 / 3], [1, 1, 1]),
        ([0.02, 0.02, 0.96 - 0.94, 0.94], [47, 1, 1, 1]),
        ([0.25, 0.75], [3, 1]),
        ([0.6, 0.2, 0.2], [1, 3, 3]),
        ([0.1] * 10, [1] * 10),
    ],
)
def test_a_true_claim_at_its_boundary_is_rarely_refuted(chances: list[float], weights: list[int]) -> None:
    """False alarm of this test: 3.2e-5 for each case (`MARGIN`)."""
    weighed = np.array(chances) * weights
    assert weighed[0] >= weighed.max() - 1e-12  # the claim is true
    assert rate(drawn(chances, seed=1), weights) <= LEVEL + MARGIN


@pytest.mark.parametrize(("chances", "weights"), [([0.5, 0.5], [1, 1]), ([0.25, 0.75], [3, 1])])
def test_with_one_rival_the_level_is_used(chances: list[float], weights: list[int]) -> None:
    """A test that never rejects is worth nothing: of two labels at the boundary, nearly the level is used.

    A binomial of 512 has no atom above 3.6%, so its tail at the level is at least 1.4%. Twice as sharp is seen; false
    alarm below 1e-9 of a rate of 3% in truth.
    """
    assert rate(drawn(chances, seed=2), weights) >= 0.02


@pytest.mark.parametrize(
    ("chances", "weights"),
    [([0.4, 0.6], [1, 1]), ([0.3, 0.5, 0.2], [1, 1, 1]), ([0.5, 0.5], [1, 3]), ([0.1, *[0.04] * 5, 0.7], [1] * 7)],
)
def test_a_false_claim_is_refuted(chances: list[float], weights: list[int]) -> None:
    """The rates of votes differ by more than four standard deviations; fails by chance below 1e-6."""
    assert rate(drawn(chances, seed=3), weights) >= 0.97


def scored(scores: Any) -> Votes:
    """Votes of scores, draws x instances x classes."""
    winners = scores == scores.max(axis=2, keepdims=True)
    first = winners & (winners.cumsum(axis=2) == 1)
    return Votes.from_counts(
        first.sum(axis=1), mechanism=GAUSSIAN, score_sums=scores.sum(axis=1), score_squares=(scores**2).sum(axis=1)
    )


def test_mean_scores_at_their_boundary_are_rarely_refuted_and_false_ones_are() -> None:
    """False alarm 3.2e-5; of the false claim below 1e-9 (a lead of 0.3 over 128 instances)."""
    random = np.random.default_rng(4)
    equal = random.dirichlet([0.2, 0.2, 0.1], size=(1000, 128))
    assert rate(scored(equal), [1, 1, 1], on="scores") <= LEVEL + MARGIN
    sharp = np.eye(2)[random.integers(2, size=(1000, 128))]  # differences of scores as large as they can be
    assert rate(scored(sharp), [1, 1], on="scores") <= LEVEL + MARGIN
    false = random.dirichlet([1.0, 2.5, 0.5], size=(300, 128))
    assert rate(scored(false), [1, 1, 1], on="scores") >= 0.97


def tail(successes: int, number: int, chance: Fraction) -> Fraction:
    """P(binomial >= successes), exactly."""
    terms = (comb(number, k) * chance**k * (1 - chance) ** (number - k) for k in range(successes, number + 1))
    return sum(terms, Fraction(0))


@given(
    st.lists(st.integers(0, 30), min_size=2, max_size=5).filter(lambda counts: sum(counts) > 0),
    st.lists(st.integers(1, 9), min_size=5, max_size=5),
    st.integers(0, 4),
)
def test_the_tail_is_that_of_an_exact_binomial(counts: list[int], weights: list[int], label: int) -> None:
    label %= len(counts)
    weights = weights[: len(counts)]
    votes = Votes.from_counts([counts], mechanism=GAUSSIAN)
    found = p_value(votes, 0, label, "votes", np.array(weights))
    rivals = [other for other in range(len(counts)) if other != label]
    tails = [
        tail(counts[m], counts[m] + counts[label], Fraction(weights[label], weights[label] + weights[m]))
        for m in rivals
    ]
    assert found == pytest.approx(min(1.0, float(min(tails)) * len(rivals)), rel=1e-9)


def test_ties_and_empty_votes_refute_nothing() -> None:
    counts = [[30, 30, 0], [0, 0, 60], [20, 20, 20], [60, 0, 0]]
    votes = Votes.from_counts(counts, mechanism=GAUSSIAN)
    ones = np.ones(3, dtype=np.int64)
    assert [p_value(votes, at, 0, "votes", ones) for at in (0, 2, 3)] == [1.0, 1.0, 1.0]
    assert p_value(votes, 1, 0, "votes", ones) < 1e-15  # sixty to none
    equal = replace(votes, score_sums=np.full((4, 3), 20.0), score_squares=np.full((4, 3), 10.0))
    assert p_value(equal, 0, 0, "scores", ones) == 1.0


@pytest.mark.parametrize("on", ["votes", "scores"])
def test_a_label_that_the_poisoned_set_lacks_gives_one(on: str) -> None:
    """All of its examples were deleted, and labels are read off: such a certificate names a condition."""
    sums = np.full((1, 2), 30.0)
    votes = Votes.from_counts([[60, 0]], mechanism=GAUSSIAN, score_sums=sums, score_squares=sums)
    assert p_value(votes, 0, 2, on, np.ones(3, dtype=np.int64)) == 1.0


def test_a_label_that_the_clean_set_lacks_has_no_weight_of_its_own() -> None:
    votes = Votes.from_counts([[10, 58, 49]], mechanism=GAUSSIAN)
    expected = min(float(tail(58, 68, Fraction(4, 5))), float(tail(49, 59, Fraction(4, 5)))) * 2
    assert expected < 0.9
    found = p_value(votes, 0, 0, "votes", np.array([4, 1]))
    assert found == pytest.approx(expected, rel=1e-9)
    fewer = p_value(Votes.from_counts([[10, 20]], mechanism=GAUSSIAN), 0, 0, "votes", np.array([4, 1, 7]))
    assert fewer == pytest.approx(float(tail(20, 30, Fraction(4, 5))), rel=1e-9)


# --- what is claimed --------------------------------------------------------------------------------------------------

RANDOM = np.random.default_rng(5)
MANY = Votes.from_counts(RANDOM.multinomial(600, [0.7, 0.2, 0.1], size=40), mechanism=GAUSSIAN)
BAGS = replace(MANY, mechanism=Bagged(1000, 20))
PARTS = replace(MANY, mechanism=Partitioned(600))


@pytest.mark.parametrize("sets", [1, 2])
@pytest.mark.parametrize(
    ("votes", "rule", "threat"),
    [
        (MANY, FDP(), Threat.SYMMETRIC_DIFFERENCE),
        (MANY, FDP(class_weights=(2, 3, 1)), Threat.ADD),
        (MANY, RDP(), Threat.REMOVE),
        (BAGS, None, Threat.EDIT),
        (PARTS, None, Threat.REPLACE),
    ],
)
def test_strict_radii_are_never_above_the_own(votes: Votes, rule: Any, threat: Threat, sets: int) -> None:
    rule = rule or default_rule(votes.mechanism)
    claims = Claims.of(votes, rule, threat, 0.01, "votes", sets)
    assert (claims.strict <= claims.radius).all()
    assert claims.radius.max() > 0
    is_exact = votes is PARTS
    own = certify(votes, method=rule, threat=threat, failure_prob=0.01)
    assert np.array_equal(claims.radius, own.radius)
    assert np.array_equal(claims.label, own.label)
    assert claims.failure_prob == (0.0 if is_exact else 0.01)
    assert not is_exact or (claims.strict == claims.radius).all()
    if sets == 2 and not is_exact:  # two sets of votes share what one may fail with
        assert (claims.strict <= Claims.of(votes, rule, threat, 0.01, "votes").strict).all()


def test_whoever_may_be_wrong_about_no_prediction_claims_less() -> None:
    found = Claims.of(MANY, FDP(), Threat.SYMMETRIC_DIFFERENCE, 0.01, "votes")
    everywhere = certify(MANY, method=FDP(), failure_prob=0.01, scope="all")
    assert np.array_equal(found.strict, everywhere.radius)
    assert (found.strict < found.radius).any()


def test_weights_of_labels_are_those_of_the_rule() -> None:
    weighed = Claims.of(MANY, FDP(class_weights=(1, 3, 1)), Threat.ADD, 0.01, "votes")
    assert weighed.weights.tolist() == [1, 3, 1]
    assert Claims.of(MANY, FDP(), Threat.ADD, 0.01, "votes").weights.tolist() == [1, 1, 1]


def claims(radius: list[int], failure_prob: float = 0.001, strict: list[int] | None = None) -> Claims:
    number, label = np.array(radius), np.zeros(len(radius), dtype=np.int64)
    below = number if strict is None else np.array(strict)
    return Claims(label, number, below, failure_prob, "votes", np.ones(2, dtype=np.int64))


def test_multiples_of_radii_claim_more_and_nothing_where_nothing_is_claimed() -> None:
    found = claims([-1, 0, 1, 5]).times(2)
    assert found.radius.tolist() == [-1, 1, 3, 11]
    assert found.strict.tolist() == found.radius.tolist()
    assert found.label.tolist() == [0, 0, 0, 0]


def test_covered_are_those_whose_radius_is_as_large() -> None:
    found = claims([-1, 0, 3, 4])
    assert [found.covering(cost).tolist() for cost in (0, 1, 3, 4, 5)] == [[1, 2, 3], [2, 3], [2, 3], [3], []]


def test_joined_claims_are_those_of_both() -> None:
    found = claims([1, 2], strict=[0, 2]).joined(claims([3], strict=[1]))
    assert (found.radius.tolist(), found.strict.tolist(), len(found.label)) == ([1, 2, 3], [0, 2, 1], 3)


def test_a_sound_certificate_may_be_wrong_about_some_of_all_inputs() -> None:
    """By Markov's inequality about 20 times the expected number; inputs about which nothing is claimed count, too."""
    few, many = claims([5] * 10, 0.01), claims([5] * 10 + [-1] * 90, 0.01)
    assert [few.allows(broken) for broken in (0, 1, 2, 3)] == [True, True, True, False]
    assert [many.allows(broken) for broken in (20, 21)] == [True, False]
    assert not claims([5] * 10, 0.0).allows(0)  # of a deterministic method


def test_wrong_claims_of_a_sound_certificate_are_rarely_too_many() -> None:
    """Claims that fail together or one by one: blamed with probability 5% at most (false alarm 3.2e-5 each)."""
    random, number, prob = np.random.default_rng(6), 200, 0.002
    sound = claims([1] * number, prob)
    alone = random.binomial(number, prob, size=DRAWS)
    together = np.where(random.random(DRAWS) < prob * 20, number // 20, 0)  # the worst for Markov's inequality
    for broken in (alone, together):
        assert broken.mean() <= prob * number * 1.3
        blamed = np.mean([not sound.allows(int(each)) for each in broken])
        assert blamed <= 0.05 + MARGIN


# --- which broken claims count ----------------------------------------------------------------------------------------


def judged(found: list[tuple[int, int, int, float]], claimed: Claims, *, checked: int = 100, key: str = " k") -> Any:
    """What a search says of refuted claims: input, budget, strict radius and p-value of each."""
    search: Any = AuditSearch.__new__(AuditSearch)
    search.asked = Question(1, None, None, 1e-3, None)
    search.claims, search._claims_checked = claimed, checked
    poison = Poison(np.zeros(0, np.int64), np.zeros((1, 1)), np.zeros(1, np.int64))
    search._judged = {
        key: [(Broken(n, 0, 9, at, "copies", None, (0.0, 1.0), p, poison), strict) for n, at, strict, p in found]
    }
    broken = search._broken()
    return SimpleNamespace(**{name: [each.input for each in some] for name, some in broken.items()})


def test_p_values_are_multiplied_by_the_number_of_claims() -> None:
    found = judged([(0, 3, 9, 0.99e-5), (1, 3, 9, 1.01e-5)], claims([9, 9]))
    assert (found.violations, found.excused) == ([0], [])


def test_claims_beyond_the_strict_radius_count_only_if_they_are_too_many() -> None:
    doubtful = [(number, 7, 5, 0.0) for number in range(3)]
    many = claims([9] * 200, 0.001)  # 0.2 expected, 4 allowed
    assert judged(doubtful, many).excused == [0, 1, 2]
    assert judged(doubtful, many).violations == []
    few = claims([9] * 20, 0.001)  # one is too many
    assert judged(doubtful, few).violations == [0, 1, 2]
    strict = judged([*doubtful, (7, 5, 5, 0.0)], many)
    assert (strict.violations, strict.excused) == ([7], [0, 1, 2])


def test_what_a_condition_covers_is_no_violation() -> None:
    found = judged([(0, 3, 9, 0.0)], claims([9] * 20), key="class-list k")
    assert (found.violations, found.excused, found.conditional) == ([], [], [0])


# --- predictions ------------------------------------------------------------------------------------------------------


def test_labels_are_those_of_the_rule_or_of_scores() -> None:
    sums = np.array([[10.0, 50.0], [40.0, 20.0]])
    votes = Votes.from_counts([[40, 20], [20, 40]], mechanism=GAUSSIAN, score_sums=sums, score_squares=sums)
    assert labels_of(votes, Threat.ADD, "votes").tolist() == predicted(votes).tolist() == [0, 1]
    assert labels_of(votes, Threat.ADD, "scores").tolist() == [1, 0]
    exact = Votes.from_counts([[30, 30], [20, 40]], mechanism=Partitioned(60))
    assert labels_of(exact, Threat.ADD, "votes").tolist() == [0, 1]
