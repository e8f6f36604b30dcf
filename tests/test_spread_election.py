"""Run-Off Election on Finite Aggregation: against every ranking of every model, its second route, and by hand."""

from functools import cache
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mithridate import certify, verify
from mithridate.auditing.routes import Claim, recheck
from mithridate.core.mechanism import Threat
from mithridate.core.votes import Votes
from mithridate.defences.partitions import Partitioned, RunOffRule, SpreadPartitions, SpreadRule
from mithridate.defences.spread_election import SpreadRunOffRule
from mithridate.errors import ArtifactError, ConfigError

Array = npt.NDArray[Any]
RULE = SpreadRunOffRule()


def votes_of(rankings: Array, mechanism: SpreadPartitions) -> Votes:
    """Votes of examples x models x labels."""
    first = rankings[:, :, 0]
    counts = (first[:, :, None] == np.arange(rankings.shape[2])).sum(axis=1)
    return Votes(counts, mechanism, evidence={"predictions": first, "rankings": rankings})


def elected(rankings: Array) -> int:
    """Both rounds, model by model."""
    labels = range(rankings.shape[1])
    votes = [sum(ranking[0] == label for ranking in rankings) for label in labels]
    one, two = sorted(sorted(labels, key=lambda label: (-votes[label], label))[:2])
    for_one = sum(ranking.tolist().index(one) < ranking.tolist().index(two) for ranking in rankings)
    return one if 2 * for_one >= len(rankings) else two


def wrong(votes: Votes, label: Array, radius: Array) -> Array:
    """Which claims the second route does not confirm."""
    claim = (votes.mechanism, RULE.name, Threat.SYMMETRIC_DIFFERENCE, label, radius, votes.counts)
    return recheck(Claim(*claim, evidence=votes.evidence))


@cache
def every_profile(models: int, labels: int) -> tuple[Array, Array]:
    """All ways in which so many models rank so many labels, and who is elected, on an axis for each model."""
    kinds = np.array(list(permutations(range(labels))))
    numbers = np.indices((len(kinds),) * models).reshape(models, -1).T
    rankings = kinds[numbers]
    winners: dict[tuple[int, ...], int] = {}  # the order of the models does not matter
    found = [
        winners[key] if (key := tuple(sorted(row))) in winners else winners.setdefault(key, elected(kinds[list(key)]))
        for row in numbers.tolist()
    ]
    return rankings, np.array(found).reshape((len(kinds),) * models)


def true_radius(outcome: Array, mechanism: SpreadPartitions) -> Array:
    """For every profile the largest r such that no ranking of the models of any r buckets changes the outcome."""
    radius = np.zeros(outcome.shape, dtype=np.int64)
    holds = np.ones(outcome.shape, dtype=np.bool_)
    for number in range(1, mechanism.models + 1):
        for buckets in combinations(range(mechanism.models), number):
            seen = {(bucket + offset) % mechanism.models for bucket in buckets for offset in mechanism.offsets}
            axes = tuple(sorted(seen))
            holds &= outcome.min(axis=axes, keepdims=True) == outcome.max(axis=axes, keepdims=True)
        radius[holds] = number
    return radius.reshape(-1)


@pytest.mark.parametrize(
    ("partitions", "offsets", "labels", "exact"),
    [
        (5, (2,), 3, 0.97),
        (4, (0,), 3, 0.97),
        (2, (0, 1), 3, 1.0),
        (3, (0, 2), 3, 0.95),
        (3, (1, 4), 3, 0.95),
        (2, (0, 1, 3), 3, 0.95),
        (3, (0,), 4, 0.97),
        (4, (0, 3), 2, 0.85),
        (5, (0, 2), 2, 0.85),
    ],
)
def test_nothing_changes_within_the_radius_whatever_spoiled_models_rank(
    partitions: int, offsets: tuple[int, ...], labels: int, exact: float
) -> None:
    mechanism = SpreadPartitions(partitions, offsets)
    rankings, outcome = every_profile(mechanism.models, labels)
    truth = true_radius(outcome, mechanism)
    votes = votes_of(rankings, mechanism)
    decision = RULE.decide(votes, Threat.SYMMETRIC_DIFFERENCE)
    assert np.array_equal(decision.label, outcome.reshape(-1))
    assert (decision.radius <= truth).all()
    assert (decision.radius == truth).mean() >= exact
    # The second route says the same of a thousand of them: this radius and no larger one.
    some = np.arange(0, len(rankings), max(1, len(rankings) // 1000))
    few = votes_of(rankings[some], mechanism)
    label, radius = decision.label[some], decision.radius[some]
    assert not wrong(few, label, radius).any()
    assert wrong(few, label, radius + 1).all()
    assert wrong(few, (label + 1) % labels, np.zeros_like(radius)).all()


def some_rankings(mechanism: SpreadPartitions, labels: int, seed: int, examples: int = 200) -> Array:
    random = np.random.default_rng(seed)
    strength = random.gamma(1.0, size=(examples, 1, labels)) * random.choice([1.0, 4.0], size=(examples, 1, 1))
    noise = random.gumbel(size=(examples, mechanism.models, labels))
    return np.argsort(-(strength + noise), axis=2)


def test_without_overlap_it_is_the_run_off_of_parts() -> None:
    mechanism = SpreadPartitions(40, (7,))
    rankings = some_rankings(mechanism, 5, seed=1)
    places = np.argsort(rankings, axis=2)
    preferences = (places[..., :, None] < places[..., None, :]).sum(axis=1)
    votes = votes_of(rankings, mechanism)
    parts = Votes(votes.counts, Partitioned(40), evidence={"preferences": preferences})
    for threat in Threat:
        ours, theirs = RULE.decide(votes, threat), RunOffRule().decide(parts, threat)
        assert np.array_equal(ours.label, theirs.label)
        # Here it is known who prefers whom, so it is at least as much.
        assert (ours.radius >= theirs.radius).all()
        assert (ours.radius == theirs.radius).mean() > 0.95


def test_with_two_labels_it_is_finite_aggregation() -> None:
    mechanism = SpreadPartitions(12, (0, 5, 7))
    votes = votes_of(some_rankings(mechanism, 2, seed=2), mechanism)
    ours, theirs = (rule.decide(votes, Threat.ADD) for rule in (RULE, SpreadRule()))
    assert np.array_equal(ours.label, theirs.label)
    assert np.array_equal(ours.radius, theirs.radius)


def attacked(rankings: Array, label: int, rival: int, mechanism: SpreadPartitions, buckets: int) -> Array:
    """The rankings after the buckets are spoiled that reach most who prefer the label, one after the other."""
    changed = rankings.copy()
    seen_by = np.add.outer(np.arange(mechanism.models), mechanism.offsets) % mechanism.models
    thirds = [other for other in range(rankings.shape[1]) if other not in (label, rival)]
    for _ in range(buckets):
        gain = 1 + (changed[:, 0] == label) - (changed[:, 0] == rival)
        gain = gain + 2 * (changed.argsort(axis=1)[:, label] < changed.argsort(axis=1)[:, rival])
        changed[seen_by[int(gain[seen_by].sum(axis=1).argmax())]] = [rival, *thirds, label]
    return changed


@pytest.mark.parametrize("offsets", [(0, 1, 9), (0, 3, 8, 11)])
def test_attacks_break_no_radius_and_often_the_next_one(offsets: tuple[int, ...], tmp_path: Path) -> None:
    mechanism = SpreadPartitions(10, offsets)
    rankings = some_rankings(mechanism, 4, seed=3, examples=60)
    votes = votes_of(rankings, mechanism)
    votes.save(tmp_path / "votes.npz")
    certificate = certify(votes, method=RULE)
    certificate.save(tmp_path / "certificate.json")
    assert verify(tmp_path / "certificate.json").valid
    broken = 0
    for row, label, radius in zip(rankings, certificate.label.tolist(), certificate.radius.tolist(), strict=True):
        rivals = [rival for rival in range(4) if rival != label]
        after = [elected(attacked(row, label, rival, mechanism, radius)) for rival in rivals]
        assert after == [label] * 3
        broken += any(elected(attacked(row, label, rival, mechanism, radius + 1)) != label for rival in rivals)
    assert certificate.radius.max() > 2
    assert broken > 40


def test_by_hand() -> None:
    # Six models in a ring, each bucket seen by two neighbours. 4 vote for 0, who leads the final by 4 to 2: one bucket
    # turns two models, and 4 to 2 against.
    mechanism = SpreadPartitions(3, (0, 1))
    close = [(0, 1, 2)] * 4 + [(1, 0, 2)] * 2
    # Where all six agree, one bucket makes it 4 to 2, and two make it 2 to 4.
    agreed = [(0, 1, 2)] * 6
    votes = votes_of(np.array([close, agreed]), mechanism)
    assert RULE.decide(votes, Threat.REMOVE).radius.tolist() == [0, 1]
    assert RULE.decide(votes, Threat.REPLACE).radius.tolist() == [0, 0]


@pytest.mark.parametrize("rankings", [[[[0, 1], [1, 1]]], [[[0, 1], [1, 2]]]])
def test_what_is_no_ranking_is_refused(rankings: Any) -> None:
    votes = Votes(np.array([[1, 1]]), SpreadPartitions(1, (0, 1)), evidence={"rankings": np.array(rankings)})
    with pytest.raises(ConfigError, match="does not hold every label once"):
        RULE.decide(votes, Threat.ADD)
    with pytest.raises(ArtifactError):
        wrong(votes, np.array([0]), np.array([0]))


def test_rankings_that_contradict_the_counts_are_refused() -> None:
    rankings = np.array([[[0, 1], [1, 0]]])
    votes = Votes(np.array([[2, 0]]), SpreadPartitions(1, (0, 1)), evidence={"rankings": rankings})
    with pytest.raises(ConfigError, match="does not add up to the counts"):
        RULE.decide(votes, Threat.ADD)
    with pytest.raises(ArtifactError, match="do not add up to its counts"):
        wrong(votes, np.array([0]), np.array([0]))


def test_votes_alone_are_not_enough() -> None:
    votes = Votes(np.array([[1, 1]]), SpreadPartitions(1, (0, 1)), evidence={"predictions": np.array([[0, 1]])})
    with pytest.raises(ConfigError, match="needs the evidence 'rankings'"):
        RULE.decide(votes, Threat.ADD)
