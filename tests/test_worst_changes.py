"""The second route for functions of the data: against every poisoning of tiny data sets, and hand-made wrong claims."""

import math
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import combinations, permutations, product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mithridate.auditing.routes import Claim, NoSecondRouteError, recheck
from mithridate.core.mechanism import Mechanism, Threat
from mithridate.defences.kernel import KernelSum
from mithridate.defences.neighbours import Lead, NearestExamples
from mithridate.defences.partitions import Partitioned, SpreadPartitions
from mithridate.errors import ArtifactError

SINGLE = [Threat.SYMMETRIC_DIFFERENCE, Threat.ADD, Threat.REMOVE]
DOUBLE = [Threat.REPLACE, Threat.EDIT, Threat.LABELS, Threat.FEATURES]


class Table(NamedTuple):
    """Votes that nobody has checked."""

    counts: npt.NDArray[np.int64]
    mechanism: Mechanism
    evidence: Mapping[str, npt.NDArray[Any]]


def wrong(table: Table, name: str, threat: Threat, label: Any, radius: Any) -> npt.NDArray[np.bool_]:
    """Which claims about the examples of the table are found wrong."""
    return recheck(
        Claim(
            table.mechanism,
            name,
            threat,
            np.asarray(label),
            np.asarray(radius),
            table.counts,
            evidence=table.evidence,
        )
    )


def right(table: Table, name: str, threat: Threat, label: int, radius: int) -> bool:
    """Whether a claim about all examples of the table is found right for the first of them."""
    size = len(table.counts)
    return not wrong(table, name, threat, np.full(size, label), np.full(size, radius))[0]


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
        expected = wrong(Table(counts, Partitioned(25), {}), "dpa", *claim)
        np.testing.assert_array_equal(wrong(spread, "finite-aggregation", *claim), expected)


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
    for name in ("bagging", "dpa", "finite-aggregation", "run-off-election", "nearest-neighbours"):
        with pytest.raises(NoSecondRouteError, match=f"{name}' on 'kernel-sum'"):
            right(table, name, Threat.ADD, 0, 0)
    for label, radius in (([0, 0], [0]), ([0, 0], [0, 0]), ([], [])):
        with pytest.raises(ArtifactError, match="one label and one radius"):
            wrong(table, "kernel-vote", Threat.ADD, label, radius)
    with pytest.raises(ArtifactError, match="leads are for 3 labels"):
        right(
            TABLES["nearest-neighbours"]._replace(mechanism=NearestExamples((4, 2), leads=((1, 1, 1),))),
            "nearest-neighbours",
            Threat.ADD,
            0,
            0,
        )


def test_votes_are_rechecked_example_by_example() -> None:
    table = Table(np.array([[9, 1], [5, 5], [1, 9], [9, 1]]), Partitioned(10), {})
    found = wrong(table, "dpa", Threat.SYMMETRIC_DIFFERENCE, [0, 0, 0, 0], [4, 1, 0, 5])
    assert found.tolist() == [False, True, True, True]
