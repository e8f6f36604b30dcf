"""The second route for rival defences: against every poisoning of tiny data sets, and hand-made wrong claims."""

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cache
from itertools import combinations, permutations, product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mithridate import Votes
from mithridate.auditing.worst_changes import recheck, second_route
from mithridate.core.mechanism import (
    Bagged,
    KernelSum,
    Lead,
    Mechanism,
    NearestExamples,
    NoisyFeatures,
    NoisyLabels,
    Partitioned,
    SampledGaussian,
    SpreadPartitions,
    Threat,
)
from mithridate.errors import ArtifactError, UnsupportedMechanismError

SINGLE = [Threat.SYMMETRIC_DIFFERENCE, Threat.ADD, Threat.REMOVE]
DOUBLE = [Threat.REPLACE, Threat.EDIT, Threat.LABELS, Threat.FEATURES]


class Table(NamedTuple):
    """Votes that nobody has checked."""

    counts: npt.NDArray[np.int64]
    mechanism: Mechanism
    evidence: Mapping[str, npt.NDArray[Any]]


class Points(NamedTuple):
    """Bounds on the votes of some examples."""

    top_lower: npt.NDArray[np.float64]
    miss_upper: npt.NDArray[np.float64]
    rival_upper: npt.NDArray[np.float64]


def points(*pairs: tuple[float, float]) -> Points:
    top, rival = np.array(pairs, dtype=float).T
    return Points(top, 1 - top, rival)


def right(table: Table, name: str, threat: Threat, label: int, radius: int) -> bool:
    """Whether a claim about all examples of the table is found right for the first of them."""
    size = len(table.counts)
    return not recheck(table, name, threat, np.full(size, label), np.full(size, radius))[0]


def winner(counts: Any) -> int:
    return int(np.argmax(counts))


def histogram(votes: Any, labels: int) -> list[int]:
    return np.bincount(np.array(votes, dtype=np.int64), minlength=labels).tolist()


def spoiled(votes: tuple[Any, ...], which: tuple[int, ...], values: Any) -> Iterator[tuple[Any, ...]]:
    """All votes that differ from these at most at the given places."""
    yield from product(*(values if place in which else (vote,) for place, vote in enumerate(votes)))


# Partitions


@pytest.mark.parametrize("models", [1, 2, 3, 5])
def test_dpa_agrees_with_every_poisoning(models: int) -> None:
    for counts in {
        tuple(sorted_counts) for sorted_counts in map(lambda v: histogram(v, 3), product(range(3), repeat=models))
    }:
        votes = tuple(np.repeat(range(3), counts).tolist())
        table = Table(np.array([counts]), Partitioned(models), {})
        for radius in range(models + 2):
            size = min(radius, models)
            after = [v for which in combinations(range(models), size) for v in spoiled(votes, which, range(3))]
            truth = all(winner(histogram(v, 3)) == winner(counts) for v in after)
            assert all(right(table, "dpa", threat, winner(counts), radius) == truth for threat in SINGLE)
            if radius % 2 == 0:
                assert all(right(table, "dpa", threat, winner(counts), radius // 2) == truth for threat in DOUBLE)


def test_dpa_worked_example() -> None:
    # 10 against 4: three votes make it 7 to 7, which the smaller label wins.
    smaller, larger = Table(np.array([[10, 4]]), Partitioned(14), {}), Table(np.array([[4, 10]]), Partitioned(14), {})
    assert right(smaller, "dpa", Threat.REMOVE, 0, 3)
    assert not right(smaller, "dpa", Threat.REMOVE, 0, 4)
    assert right(larger, "dpa", Threat.REMOVE, 1, 2)
    assert not right(larger, "dpa", Threat.REMOVE, 1, 3)
    assert not right(larger, "dpa", Threat.REMOVE, 0, 0)
    assert not right(larger, "dpa", Threat.REMOVE, 2, 0)


@pytest.mark.parametrize(("partitions", "offsets"), [(4, (0,)), (2, (0, 1)), (2, (0, 3)), (3, (0, 2)), (2, (0, 1, 2))])
def test_finite_aggregation_confirms_nothing_that_a_poisoning_breaks(partitions: int, offsets: tuple[int, ...]) -> None:
    mechanism = SpreadPartitions(partitions, offsets)
    rng = np.random.default_rng(1)
    confirmed = 0
    for _ in range(40):
        votes = tuple(rng.choice(3, size=mechanism.models, p=[0.15, 0.15, 0.7]).tolist())
        counts = histogram(votes, 3)
        table = Table(np.array([counts]), mechanism, {"predictions": np.array([votes], dtype=np.uint8)})
        for radius in (1, 2):
            truth = True
            for buckets in combinations(range(mechanism.models), radius):
                seen = tuple({(bucket + offset) % mechanism.models for bucket in buckets for offset in offsets})
                after = spoiled(votes, seen, range(3))
                truth = truth and all(winner(histogram(v, 3)) == winner(counts) for v in after)
            held = right(table, "finite-aggregation", Threat.ADD, winner(counts), radius)
            confirmed += held
            assert truth or not held
            assert radius == 2 or held == right(
                table, "finite-aggregation", Threat.SYMMETRIC_DIFFERENCE, winner(counts), radius
            )
            # One bucket shares no model with itself: the sum of damages is exact. So it is where nothing overlaps.
            if radius == 1 or len(offsets) == 1:
                assert held == truth
            if radius == 2:
                assert right(table, "finite-aggregation", Threat.REPLACE, winner(counts), 1) == held
    assert confirmed > 0 or mechanism.models - 2 * len(offsets) < 2


def test_finite_aggregation_knows_which_way_the_buckets_go() -> None:
    # 10 : 3 : 5, and one bucket is seen by three models that vote for label 0; read backwards, none is.
    votes = [0, 1, 2, 2, 0, 0, 0, 2, 1, 0, 0, 0, 2, 1, 0, 0, 0, 2]
    for order, safe in ((votes, False), (votes[::-1], True)):
        triples = [(order[b], order[(b + 1) % 18], order[(b + 3) % 18]) for b in range(18)]
        assert ((0, 0, 0) not in triples) == safe
        evidence = {"predictions": np.array([order])}
        table = Table(np.array([[10, 3, 5]]), SpreadPartitions(6, (0, 1, 3)), evidence)
        assert right(table, "finite-aggregation", Threat.ADD, 0, 1) == safe


def test_finite_aggregation_without_overlap_is_dpa() -> None:
    rng = np.random.default_rng(2)
    predictions = rng.choice(4, size=(30, 25), p=[0.5, 0.2, 0.2, 0.1])
    counts = np.array([histogram(row, 4) for row in predictions])
    spread = Table(counts, SpreadPartitions(25, (3,)), {"predictions": predictions.astype(np.uint16)})
    label = counts.argmax(axis=1)
    for radius in range(12):
        claim = (Threat.SYMMETRIC_DIFFERENCE, label, np.full(30, radius))
        expected = recheck(Table(counts, Partitioned(25), {}), "dpa", *claim)
        np.testing.assert_array_equal(recheck(spread, "finite-aggregation", *claim), expected)


# Run-off election


def preferences_of(rankings: Any, labels: int) -> npt.NDArray[np.int64]:
    """How many models rank a above b."""
    result = np.zeros((labels, labels), dtype=np.int64)
    for ranking in rankings:
        for above, below in combinations(ranking, 2):
            result[above, below] += 1
    return result


def elected(rankings: Any, labels: int) -> int:
    """Both rounds, model by model."""
    counts = histogram([ranking[0] for ranking in rankings], labels)
    finalists = sorted(sorted(range(labels), key=lambda label: (-counts[label], label))[:2])
    first = sum(ranking.index(finalists[0]) < ranking.index(finalists[1]) for ranking in rankings)
    return finalists[0] if 2 * first >= len(rankings) else finalists[1]


def election(rankings: Any, labels: int) -> Table:
    counts = histogram([ranking[0] for ranking in rankings], labels)
    evidence = {"preferences": preferences_of(rankings, labels)[None].astype(np.uint16)}
    return Table(np.array([counts]), Partitioned(len(rankings)), evidence)


def profiles(models: int, kinds: int) -> npt.NDArray[np.int64]:
    """All ways to have so many models of so many kinds, a row each."""
    if kinds == 1:
        return np.array([[models]])
    parts = [profiles(models - first, kinds - 1) for first in range(models + 1)]
    return np.concatenate([np.insert(part, 0, first, axis=1) for first, part in enumerate(parts)])


@pytest.mark.parametrize(("models", "labels"), [(1, 3), (2, 3), (3, 3), (6, 3), (9, 3), (7, 2), (2, 4), (3, 4)])
def test_run_off_agrees_with_every_poisoning(models: int, labels: int) -> None:
    kinds = list(permutations(range(labels)))
    # The order of the models does not matter: a profile says how many models rank the labels in each way.
    table = profiles(models, len(kinds)).astype(np.int8)
    everyone = [[kinds[k] for k in np.repeat(range(len(kinds)), profile)] for profile in table]
    outcomes = np.array([elected(rankings, labels) for rankings in everyone])
    for number in range(0, len(table), max(1, len(table) // 500)):
        election_table, label = election(everyone[number], labels), int(outcomes[number])
        distance = np.abs(table - table[number]).sum(axis=1) // 2
        for radius in range(models + 1):
            truth = bool((outcomes[distance <= radius] == label).all())
            held = right(election_table, "run-off-election", Threat.SYMMETRIC_DIFFERENCE, label, radius)
            assert held == truth  # For so few models, counts and preferences tell all that matters.
            if not truth:
                break
        others = [other for other in range(labels) if other != label]
        assert all(not right(election_table, "run-off-election", Threat.ADD, other, 0) for other in others)


def paper_radius(counts: list[int], preferences: npt.NDArray[np.int64], label: int) -> int:
    """The certificate of Rezaei et al. 2023, as a number of spoiled parts that change nothing."""
    labels = range(len(counts))
    least = math.inf
    for one, two in combinations([other for other in labels if other != label], 2):
        gaps = sorted(counts[label] - counts[other] + (label < other) for other in (one, two))
        needed = next(
            s for s in range(sum(counts) + 2)
            if any(gaps[0] - s - x <= 0 and gaps[1] - 2 * s + x <= 0 for x in range(s + 1))
        )  # fmt: skip
        least = min(least, needed)
    for rival in (other for other in labels if other != label):
        thirds = [other for other in labels if other not in (label, rival)]
        reach = max((counts[other] - counts[rival] + (other < rival) for other in thirds), default=0)
        duel = preferences[label, rival] - preferences[rival, label] + (label < rival)
        least = min(least, max(math.ceil(max(reach, 0) / 2), math.ceil(max(duel, 0) / 2)))
    return int(least) - 1


@given(st.integers(1, 40), st.integers(2, 5), st.integers(0, 2**32 - 1))
def test_run_off_confirms_what_the_paper_certifies(models: int, labels: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    strength = rng.gamma(1.0, size=labels) * rng.choice([0.5, 3.0])
    noise = rng.gumbel(size=(models, labels))
    rankings = [tuple(row.tolist()) for row in np.argsort(-(strength + noise), axis=1)]
    label = elected(rankings, labels)
    table = election(rankings, labels)
    radius = paper_radius(table.counts[0].tolist(), table.evidence["preferences"][0].astype(np.int64), label)
    assert radius >= 0
    assert right(table, "run-off-election", Threat.REMOVE, label, radius)
    assert right(table, "run-off-election", Threat.REPLACE, label, radius // 2)
    # Confirmations are never lost at a smaller radius, and no label survives when all models are spoiled.
    held = [right(table, "run-off-election", Threat.ADD, label, r) for r in range(models + 1)]
    assert held == sorted(held, reverse=True)
    assert models == 1 or not held[models]


def test_run_off_worked_examples() -> None:
    # 6 : 3 : 0 and all of the three would have the first next: the final stands 9 - 0 against label 2, which must also
    # pass label 1, and 6 - 3 against label 1, which two models turn.
    rankings = [(0, 1, 2)] * 6 + [(1, 0, 2)] * 3
    table = election(rankings, 3)
    assert right(table, "run-off-election", Threat.ADD, 0, 1)
    turned = [(1, 0, 2)] * 2 + rankings[2:]
    assert elected(turned, 3) == 1
    assert not right(table, "run-off-election", Threat.ADD, 0, 2)
    # Here label 1 is safe in any final, but 4 : 4 : 3 becomes 4 : 3 : 4, and it is not in it.
    rankings = [(0, 1, 2)] * 4 + [(1, 0, 2)] * 4 + [(2, 1, 0)] * 3
    assert elected(rankings, 3) == 1
    assert elected([*rankings[:7], (2, 1, 0), *rankings[8:]], 3) != 1
    assert not right(election(rankings, 3), "run-off-election", Threat.ADD, 1, 1)
    # The winner of the first round may lose the final.
    split = [(0, 1, 2)] * 4 + [(1, 2, 0)] * 3 + [(2, 1, 0)] * 2
    assert elected(split, 3) == 1
    assert right(election(split, 3), "run-off-election", Threat.ADD, 1, 0)
    assert not right(election(split, 3), "run-off-election", Threat.ADD, 0, 0)
    # One model that leaves label 1 for label 2 throws it out of the final: 4 : 2 : 3.
    assert elected([*split[:6], (2, 1, 0), *split[7:]], 3) != 1
    assert not right(election(split, 3), "run-off-election", Threat.ADD, 1, 1)


# Nearest neighbours


def nearest_winner(order: tuple[int, ...], neighbours: int, labels: int) -> int:
    return winner(histogram(order[:neighbours], labels))


def edits(order: tuple[int, ...], inserted: int, deleted: int, labels: int) -> Iterator[tuple[int, ...]]:
    """All lists with up to so many entries inserted anywhere and deleted."""
    for gone in range(min(deleted, len(order)) + 1):
        for which in combinations(range(len(order)), gone):
            kept = [label for place, label in enumerate(order) if place not in which]
            for new in range(inserted + 1):
                yield from _insertions(tuple(kept), new, labels)


@cache
def _insertions(order: tuple[int, ...], number: int, labels: int) -> frozenset[tuple[int, ...]]:
    if number == 0:
        return frozenset([order])
    return frozenset(
        (*before[:place], label, *before[place:])
        for before in _insertions(order, number - 1, labels)
        for place in range(len(before) + 1)
        for label in range(labels)
    )


def balls(threat: Threat, radius: int) -> list[tuple[int, int]]:
    return {
        Threat.SYMMETRIC_DIFFERENCE: [(i, radius - i) for i in range(radius + 1)],
        Threat.ADD: [(radius, 0)],
        Threat.REMOVE: [(0, radius)],
    }.get(threat, [(radius, radius)])


@pytest.mark.parametrize("threat", [*SINGLE, Threat.REPLACE])
@pytest.mark.parametrize(("examples", "neighbours"), [(2, 3), (3, 2), (4, 2), (5, 2), (5, 3), (6, 1), (6, 3)])
def test_neighbours_agree_with_every_poisoning(examples: int, neighbours: int, threat: Threat) -> None:
    rng = np.random.default_rng(examples * 10 + neighbours)
    shown = min(2 * neighbours, examples)
    for order in {tuple(rng.choice(3, size=examples, p=[0.6, 0.1, 0.3]).tolist()) for _ in range(12)}:
        label = nearest_winner(order, neighbours, 3)
        table = Table(
            np.array([histogram(order[:neighbours], 3)]),
            NearestExamples(neighbours, examples),
            {"order": np.array([order[:shown]], dtype=np.uint8)},
        )
        for radius in range(3 if threat is not Threat.REMOVE else examples + 1):
            after = {changed for split in balls(threat, radius) for changed in edits(order, *split, 3)}
            truth = all(nearest_winner(changed, neighbours, 3) == label for changed in after)
            held = right(table, "nearest-neighbours", threat, label, radius)
            assert truth or not held
            # As long as the neighbourhood cannot reach beyond what the file shows, nothing is lost.
            if examples < 2 * neighbours or radius <= neighbours:
                assert held == truth


def scaled_winner(order: tuple[int, ...], scales: Any, labels: int) -> int:
    """Label of the first scale that leads by enough, where a tie lost by its number costs a vote."""
    for neighbours, lead in scales:
        counts = histogram(order[:neighbours], labels)
        first = winner(counts)
        needed = lead[first] if isinstance(lead, tuple) else lead
        if all(counts[first] - counts[b] - (b < first) >= needed for b in range(labels) if b != first):
            return first
    raise AssertionError


@pytest.mark.parametrize("threat", [*SINGLE, Threat.REPLACE])
@pytest.mark.parametrize(
    ("examples", "neighbours", "leads"),
    [
        *[(4, (3, 1), (1,)), (5, (4, 2), (1,)), (5, (5, 3, 1), (3, 1)), (6, (5, 3), (2,)), (6, (3, 2), (1,))],
        *[(5, (4, 2), ((3, 1, 2),)), (5, (5, 3, 1), ((1, 5, 3), 1)), (6, (3, 2), ((1, 2, 3),))],
    ],
)
def test_neighbours_at_several_scales_confirm_nothing_that_a_poisoning_breaks(
    examples: int, neighbours: tuple[int, ...], leads: tuple[Lead, ...], threat: Threat
) -> None:
    rng = np.random.default_rng(examples)
    mechanism = NearestExamples(neighbours, examples, leads)
    scales = list(zip(neighbours, (*leads, 0), strict=True))
    claims = confirmed = refused = 0
    for order in {tuple(rng.choice(3, size=examples, p=[0.5, 0.1, 0.4]).tolist()) for _ in range(25)}:
        label = scaled_winner(order, scales, 3)
        table = Table(
            np.array([histogram(order[: neighbours[0]], 3)]),
            mechanism,
            {"order": np.array([order[: 2 * neighbours[0]]], dtype=np.uint8)},
        )
        for radius in range(1, 3 if threat is not Threat.REMOVE else examples + 1):
            after = {changed for split in balls(threat, radius) for changed in edits(order, *split, 3)}
            truth = all(scaled_winner(changed, scales, 3) == label for changed in after)
            held = right(table, "nearest-neighbours", threat, label, radius)
            assert truth or not held
            claims, confirmed, refused = claims + truth, confirmed + held, refused + (not truth)
        assert right(table, "nearest-neighbours", threat, label, 0)
        assert not right(table, "nearest-neighbours", threat, (label + 1) % 3, 0)
    assert refused > 0
    # Scales are looked at one by one, so that not every true claim is confirmed, but most of them are.
    assert confirmed >= 0.7 * claims


def test_a_scale_in_dispute_between_others_can_be_won_from_third_labels() -> None:
    # Labels 1 and 2 have ten votes each of 25, where a lead of 3 is needed: the five nearest decide, all of label 0.
    order = (0,) * 5 + (1, 2) * 10
    mechanism = NearestExamples((25, 5), 25, (3,))
    table = Table(np.array([histogram(order, 3)]), mechanism, {"order": np.array([order])})
    # Without two of label 2 it is 10 : 8 and the five still decide; without three, 10 : 7 is enough for label 1.
    assert right(table, "nearest-neighbours", Threat.REMOVE, 0, 2)
    poisoned = tuple(label for place, label in enumerate(order) if place not in (6, 8, 10))
    assert scaled_winner(poisoned, mechanism.scales, 3) == 1
    assert not right(table, "nearest-neighbours", Threat.REMOVE, 0, 3)


def test_neighbours_behind_a_full_list_are_the_rivals() -> None:
    table = Table(np.array([[0, 4]]), NearestExamples(4), {"order": np.ones((1, 8), dtype=np.int64)})
    # Five or six of the eight deleted: 3 : 1 or 2 : 2, a tie that label 0 wins.
    assert right(table, "nearest-neighbours", Threat.REMOVE, 1, 5)
    assert not right(table, "nearest-neighbours", Threat.REMOVE, 1, 6)
    # Seven examples are all there are: one is left, then none, and label 0 is predicted.
    table = Table(np.array([[0, 4]]), NearestExamples(4, 7), {"order": np.ones((1, 7), dtype=np.int64)})
    assert right(table, "nearest-neighbours", Threat.REMOVE, 1, 6)
    assert not right(table, "nearest-neighbours", Threat.REMOVE, 1, 7)
    table = Table(np.array([[4, 0]]), NearestExamples(4, 7), {"order": np.zeros((1, 7), dtype=np.int64)})
    assert right(table, "nearest-neighbours", Threat.REMOVE, 0, 1000)
    # The same list, of which nobody says that it is all there is.
    table = Table(np.array([[4, 0]]), NearestExamples(4), {"order": np.zeros((1, 7), dtype=np.int64)})
    with pytest.raises(ArtifactError, match="cut short: 7 of 8"):
        right(table, "nearest-neighbours", Threat.REMOVE, 0, 1)


# Kernel votes


def kernel_scores(examples: Any, labels: int) -> list[int]:
    return [sum(weight for label, weight in examples if label == one) for one in range(labels)]


@pytest.mark.parametrize("threat", [*SINGLE, Threat.REPLACE])
def test_kernel_agrees_with_every_poisoning(threat: Threat) -> None:
    rng = np.random.default_rng(5)
    unit, confirmed = 3, 0
    kinds = list(product(range(3), range(unit + 1)))
    for _ in range(25):
        size = int(rng.integers(1, 7))
        data = list(
            zip(rng.choice(3, size, p=[0.2, 0.7, 0.1]).tolist(), rng.integers(0, unit + 1, size).tolist(), strict=True)
        )
        scores = kernel_scores(data, 3)
        label = winner(scores)
        own = histogram([weight for one, weight in data if one == label], unit + 1)
        table = Table(np.array([scores]), KernelSum(unit), {"own": np.array([own])})
        for radius in range(3):
            truth = True
            for inserted, deleted in balls(threat, radius):
                for gone in range(min(deleted, size) + 1):
                    for which in combinations(range(size), gone):
                        kept = [example for place, example in enumerate(data) if place not in which]
                        after = product(kinds, repeat=inserted)
                        truth = truth and all(winner(kernel_scores([*kept, *new], 3)) == label for new in after)
            assert right(table, "kernel-vote", threat, label, radius) == truth
            confirmed += truth and radius > 0
            if threat in (Threat.ADD, Threat.SYMMETRIC_DIFFERENCE):
                bare = table._replace(evidence={})
                assert right(bare, "kernel-vote", threat, label, radius) == truth
    assert confirmed > 0


def test_kernel_of_a_huge_radius_does_not_overflow() -> None:
    table = Table(np.array([[2**50, 0]]), KernelSum(2**20), {})
    assert right(table, "kernel-vote", Threat.ADD, 0, 2**30)
    assert not right(table, "kernel-vote", Threat.ADD, 0, 2**30 + 1)
    assert not right(table, "kernel-vote", Threat.ADD, 0, 2**62)


# Bad input

SPREAD = {"predictions": np.array([[0, 0, 1, 0]])}
PREFERENCES = {"preferences": np.array([[[0, 3], [1, 0]]])}
ORDER = {"order": np.array([[0, 0, 1, 0, 1, 1, 1, 1]])}
OWN = {"own": np.array([[5, 1, 1]])}
TABLES: dict[str, Table] = {
    "finite-aggregation": Table(np.array([[3, 1]]), SpreadPartitions(2, (0, 1)), SPREAD),
    "run-off-election": Table(np.array([[3, 1]]), Partitioned(4), PREFERENCES),
    "nearest-neighbours": Table(np.array([[3, 1]]), NearestExamples(4), ORDER),
    "kernel-vote": Table(np.array([[3, 1]]), KernelSum(2), OWN),
}


@pytest.mark.parametrize("name", TABLES)
def test_evidence_is_needed(name: str) -> None:
    assert right(TABLES[name], name, Threat.REMOVE, 0, 0)
    with pytest.raises(ArtifactError, match="carry no"):
        right(TABLES[name]._replace(evidence={}), name, Threat.REMOVE, 0, 0)


@pytest.mark.parametrize(
    ("name", "evidence"),
    [
        ("finite-aggregation", [[0, 0, 1, 1]]),
        ("finite-aggregation", [[0, 0, 2, 0]]),
        ("finite-aggregation", [[0, 0, -1, 0]]),
        ("finite-aggregation", [[0, 0, 1]]),
        ("finite-aggregation", [[0.0, 0.0, 1.0, 0.0]]),
        ("finite-aggregation", [[0, 0, 1, 0]] * 2),
        ("run-off-election", [[[0, 3], [2, 0]]]),
        ("run-off-election", [[[1, 3], [1, 0]]]),
        ("run-off-election", [[[0, 2], [2, 0]]]),
        ("run-off-election", [[[0, 5], [-1, 0]]]),
        ("run-off-election", [[0, 3], [1, 0]]),
        ("nearest-neighbours", [[0, 1, 1, 0, 0, 0]]),
        ("nearest-neighbours", [[0, 0, 1]]),
        ("nearest-neighbours", [[0, 0, 1, 0, 7]]),
        ("kernel-vote", [[5, 1, 2]]),
        ("kernel-vote", [[5, 3]]),
        ("kernel-vote", [[5, 5, -1]]),
    ],
)
def test_evidence_that_contradicts_the_counts(name: str, evidence: Any) -> None:
    key = next(iter(TABLES[name].evidence))
    with pytest.raises(ArtifactError):
        right(TABLES[name]._replace(evidence={key: np.array(evidence)}), name, Threat.REMOVE, 0, 0)


def test_counts_must_be_those_of_all_models() -> None:
    with pytest.raises(ArtifactError, match="add up to 5"):
        right(Table(np.array([[3, 1]]), Partitioned(5), {}), "dpa", Threat.ADD, 0, 0)


def test_rules_and_claims_that_do_not_fit() -> None:
    table = TABLES["kernel-vote"]
    with pytest.raises(UnsupportedMechanismError, match="not one of"):
        right(table, "bagging", Threat.ADD, 0, 0)
    for name in ("dpa", "finite-aggregation", "run-off-election", "nearest-neighbours"):
        with pytest.raises(UnsupportedMechanismError, match="KernelSum"):
            right(table, name, Threat.ADD, 0, 0)
    with pytest.raises(ArtifactError, match="one label and one radius"):
        recheck(table, "kernel-vote", Threat.ADD, [0, 0], [0])


def test_votes_are_rechecked_example_by_example() -> None:
    votes = Votes(np.array([[9, 1], [5, 5], [1, 9], [9, 1]]), Partitioned(10))
    wrong = recheck(votes, "dpa", Threat.SYMMETRIC_DIFFERENCE, [0, 0, 0, 0], [4, 1, 0, 5])
    assert wrong.tolist() == [False, True, True, True]


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
    ("mechanism", "name", "threat"),
    [
        (Bagged(10, 2), "label-smoothing", Threat.LABELS),
        (NoisyLabels(0.2, 3), "label-smoothing", Threat.REPLACE),
        (NoisyFeatures(1.0), "feature-smoothing", Threat.ADD),
        (SampledGaussian(1.0, 0.1, 5), "bagging", Threat.EDIT),
        (Bagged(10, 2), "fdp", Threat.EDIT),
    ],
)
def test_methods_that_do_not_fit(mechanism: Mechanism, name: str, threat: Threat) -> None:
    with pytest.raises(UnsupportedMechanismError, match="no second route"):
        second_route(mechanism, name, {"max_change": 1.0}, threat)


def test_feature_smoothing_needs_its_option() -> None:
    with pytest.raises(ArtifactError, match="how far"):
        second_route(NoisyFeatures(1.0), "feature-smoothing", {}, Threat.FEATURES)
