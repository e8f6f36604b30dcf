"""Class weights: votes for a label count by its weight; every rule against every poisoning of tiny data sets."""

import json
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import combinations, combinations_with_replacement, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from mithridate import Certificate, CertifiedClassifier, SampledGaussian, Votes, certify, compare, plan, verify
from mithridate.accounting import ADP, FDP, RDP, Method
from mithridate.auditing.routes import Claim, recheck
from mithridate.certifying.advice import advise
from mithridate.cli import main
from mithridate.core.mechanism import SEARCH_LIMIT, Mechanism, Subsampled, Threat
from mithridate.core.rule import Rule, Weighted, rule_from_dict
from mithridate.defences import DPA, Bagging, FiniteAggregation, KernelVote, NearestNeighbours
from mithridate.defences.bagging import Bagged, BaggingRule, _worst_splits
from mithridate.defences.kernel import KernelRule, KernelSum
from mithridate.defences.neighbours import NearestExamples, NeighbourRule
from mithridate.defences.partitions import MajorityRule, Partitioned, SpreadPartitions, SpreadRule
from mithridate.defences.registry import defence
from mithridate.errors import ConfigError
from tests.test_bagging import ball
from tests.test_neighbours import UNIT, changed_orders, neighbour_votes, weight
from tests.test_partitions import LABELS, histogram, smallest_flip, some_data

Weights = tuple[int, ...]
TWO: list[Weights] = [(1, 3), (3, 1), (2, 5)]
THREE: list[Weights] = [(1, 2, 5), (4, 1, 2), (3, 3, 1)]


def largest(counts: Sequence[int], weights: Weights) -> int:
    """The label with the largest weight x count, of equal ones the smallest."""
    return max(range(len(counts)), key=lambda label: (weights[label] * counts[label], -label))


def confirmed(rule: Weighted, votes: Votes, threat: Threat, label: Any, radius: Any) -> Any:
    """Which claims the second route confirms."""
    options = rule.to_dict()
    name = options.pop("name")
    claim = Claim(
        votes.mechanism, name, threat, np.array(label), np.array(radius), votes.counts,
        options=options, evidence=votes.evidence,
    )  # fmt: skip
    return ~recheck(claim)


# --- functions of the data --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("models", "weights"), [*product((1, 4, 6), TWO), *product((3, 5), THREE)])
def test_majority_is_exact_on_every_table_of_votes(models: int, weights: Weights) -> None:
    classes = range(len(weights))
    tables = [[row.count(label) for label in classes] for row in combinations_with_replacement(classes, models)]
    votes, rule = Votes(np.array(tables), Partitioned(models)), MajorityRule(class_weights=weights)
    found = rule.decide(votes, Threat.SYMMETRIC_DIFFERENCE)
    for counts, label, radius in zip(tables, found.label, found.radius, strict=True):
        others = [other for other in tables if largest(other, weights) != largest(counts, weights)]
        assert label == largest(counts, weights)
        # Two tables are as many changes apart as votes moved.
        assert radius == min(models - sum(map(min, counts, other)) for other in others) - 1
    assert confirmed(rule, votes, Threat.SYMMETRIC_DIFFERENCE, found.label, found.radius).all()
    assert not confirmed(rule, votes, Threat.SYMMETRIC_DIFFERENCE, found.label, found.radius + 1).any()


@pytest.mark.parametrize(
    "mechanism", [SpreadPartitions(3, (0,)), SpreadPartitions(2, (0, 1)), SpreadPartitions(2, (0, 3))]
)
@pytest.mark.parametrize("weights", THREE)
def test_spread_holds_against_every_vote_of_spoiled_models(mechanism: SpreadPartitions, weights: Weights) -> None:
    rows = list(product(range(3), repeat=mechanism.models))[::2]
    votes = Votes(histogram(rows, 3), mechanism, evidence={"predictions": np.array(rows)})
    rule = SpreadRule(class_weights=weights)
    found = rule.decide(votes, Threat.SYMMETRIC_DIFFERENCE)
    exact = 0
    for row, label, radius in zip(rows, found.label, found.radius, strict=True):
        flips = [
            number
            for number in range(1, mechanism.models + 1)
            if any(_changes(row, label, weights, mechanism, b) for b in combinations(range(mechanism.models), number))
        ]
        truth = min(flips) - 1
        assert radius <= truth
        exact += radius == truth
        assert radius == truth or mechanism.spread > 1
    assert exact > len(rows) // 2
    assert confirmed(rule, votes, Threat.SYMMETRIC_DIFFERENCE, found.label, found.radius).all()


def _changes(
    row: Sequence[int], label: int, weights: Weights, mechanism: SpreadPartitions, buckets: Sequence[int]
) -> bool:
    """Whether the models that see some buckets can change the prediction: all of them for one rival is the worst."""
    seen = {(bucket + offset) % mechanism.models for bucket in buckets for offset in mechanism.offsets}
    spoiled = [[rival if model in seen else vote for model, vote in enumerate(row)] for rival in range(3)]
    return any(largest([votes.count(each) for each in range(3)], weights) != label for votes in spoiled)


def true_radius(order: tuple[int, ...], neighbours: int, weights: Weights, threat: Threat) -> int:
    def vote(of: tuple[int, ...]) -> int:
        return largest([of[:neighbours].count(label) for label in range(len(weights))], weights)

    seen, frontier, radius = {order}, {order}, 0
    while frontier:
        frontier = {other for known in frontier for other in changed_orders(known, threat, len(weights))} - seen
        if any(vote(other) != vote(order) for other in frontier):
            return radius
        seen |= frontier
        radius += 1
    return SEARCH_LIMIT


@pytest.mark.parametrize("threat", [each for each in Threat if each is not Threat.FEATURES])
@pytest.mark.parametrize(
    ("length", "neighbours", "weights"),
    [
        (2, 1, (1, 3)),
        (2, 3, (3, 1)),
        (3, 2, (1, 2, 5)),
        (3, 3, (5, 2)),
        (4, 2, (2, 1, 3)),
        (4, 3, (1, 4)),
        (4, 6, (1, 3)),
        (5, 3, (2, 3)),
        (6, 4, (3, 2)),
    ],
)
def test_neighbours_are_exact_on_every_list(length: int, neighbours: int, weights: Weights, threat: Threat) -> None:
    orders = list(product(range(len(weights)), repeat=length))
    if threat in (Threat.SYMMETRIC_DIFFERENCE, Threat.EDIT, Threat.REPLACE) and length >= 4:
        orders = orders[::5]  # there are many lists around each of them
    votes, rule = neighbour_votes(orders, neighbours, len(weights)), NeighbourRule(class_weights=weights)
    found = rule.decide(votes, threat)
    for order, label, radius in zip(orders, found.label, found.radius, strict=True):
        truth = true_radius(order, neighbours, weights, threat)
        assert label == largest([order[:neighbours].count(each) for each in range(len(weights))], weights)
        assert radius <= truth
        # Deletions may bring in examples that the evidence does not show.
        if not (threat is Threat.REMOVE and length >= 2 * neighbours and truth > neighbours):
            assert radius == truth
    if threat is not Threat.REMOVE:  # where it says less about those that nobody sees
        radius = np.minimum(found.radius, neighbours - 1)
        assert confirmed(rule, votes, threat, found.label, radius).all()
        assert not confirmed(rule, votes, threat, found.label, found.radius + 1).any()


def slow_radius(order: np.ndarray, neighbours: int, weights: Weights, threat: Threat) -> int:
    """The smallest lead over all u <= i and e <= d, and not only at the ends; see `NeighbourRule`."""
    counts = [np.concatenate([[0], np.cumsum(order == label)]) for label in range(len(weights))]
    label = largest([int(each[neighbours]) for each in counts], weights)

    def lead(rival: int, new: int, gone: int) -> int:
        m = min(max(neighbours - new + gone, 0), len(order))
        mine, theirs = weights[label] * (int(counts[label][m]) - gone), weights[rival] * (int(counts[rival][m]) + new)
        return mine - theirs - (rival < label)

    def holds(radius: int) -> bool:
        inserted, deleted = (radius, 0) if threat is Threat.ADD else (0, radius)
        splits = [(inserted, deleted)]
        if threat is Threat.SYMMETRIC_DIFFERENCE:
            splits = [(i, radius - i) for i in range(radius + 1)]
        rivals = [each for each in range(len(weights)) if each != label]
        return all(
            lead(rival, u, e) >= 0
            for rival in rivals
            for i, d in splits
            for u, e in product(range(i + 1), range(d + 1))
        )

    return next(radius for radius in range(neighbours + 1) if not holds(radius + 1))


@pytest.mark.parametrize("threat", [Threat.SYMMETRIC_DIFFERENCE, Threat.ADD])
def test_the_worst_attack_uses_all_its_changes(threat: Threat) -> None:
    rng = np.random.default_rng(19)
    for _ in range(40):
        weights = tuple(rng.integers(1, 9, size=rng.integers(2, 5)).tolist())
        neighbours = int(rng.integers(1, 14))
        order = rng.choice(len(weights), size=int(rng.integers(2 * neighbours, 40 + neighbours)))
        votes = neighbour_votes([tuple(order.tolist())], neighbours, len(weights))
        found = NeighbourRule(class_weights=weights).decide(votes, threat).radius[0]
        assert found == slow_radius(order, neighbours, weights, threat)


def test_several_scales_take_no_weights() -> None:
    order = np.zeros((1, 10), dtype=np.int64)
    votes = Votes(np.array([[5, 0]]), NearestExamples((5, 3), leads=(2,)), evidence={"order": order})
    with pytest.raises(ConfigError, match="one number of neighbours"):
        NeighbourRule(class_weights=(1, 2)).decide(votes, Threat.ADD)
    with pytest.raises(ConfigError, match="one number of neighbours"):
        NearestNeighbours(neighbours=(5, 3), leads=(2,), class_weights=(1, 2))


@pytest.mark.parametrize("threat", Threat)
@pytest.mark.parametrize("weights", [(1, 2, 3), (3, 1, 2), (3, 3, 1)])
def test_kernel_votes_are_exact_under_every_poisoning(weights: Weights, threat: Threat) -> None:
    def scores(data: Any, query: int) -> list[int]:
        return [sum(weight(x, query) for x, y in data if y == label) for label in LABELS]

    limit, found, rule = 2, set(), KernelRule(class_weights=weights)
    for number, data in enumerate(some_data(25, (1, 7), seed=5)):
        query, counts = number % 3, scores(data, number % 3)
        own = [weight(x, query) for x, y in data if y == largest(counts, weights)]
        evidence = {"own": np.array([[own.count(w) for w in range(UNIT + 1)]])}
        votes = Votes(np.array([counts]), KernelSum(UNIT), evidence=evidence)
        decision = rule.decide(votes, threat)
        radius = int(decision.radius[0])
        flip = smallest_flip(data, threat, lambda other, q=query: largest(scores(other, q), weights), limit)
        assert min(radius, limit) < flip
        if threat not in (Threat.LABELS, Threat.FEATURES):
            assert min(radius, limit) == flip - 1
            assert confirmed(rule, votes, threat, decision.label, [radius + 1])[0] == (radius >= SEARCH_LIMIT)
        assert confirmed(rule, votes, threat, decision.label, [radius])[0]
        found.add(min(radius, limit))
    assert len(found) > 1


def test_a_deletion_may_cost_more_than_an_insertion() -> None:
    # 4 x 9 against 2 x 3 + 1: a deletion takes 4 x 3 or 4 x 2, an insertion 2 x 3. 12 + 8 + 8 > 29 - 1 is too much.
    votes = Votes(np.array([[3, 9]]), KernelSum(3), evidence={"own": np.array([[0, 0, 3, 1]])})
    rule = KernelRule(class_weights=(2, 4))
    assert rule.decide(votes, Threat.SYMMETRIC_DIFFERENCE).radius.tolist() == [3]
    assert rule.decide(votes, Threat.ADD).radius.tolist() == [4]
    assert rule.decide(votes, Threat.REMOVE).radius.tolist() == [3]
    assert confirmed(rule, votes, Threat.SYMMETRIC_DIFFERENCE, [1], [3])[0]
    assert not confirmed(rule, votes, Threat.SYMMETRIC_DIFFERENCE, [1], [4])[0]


@pytest.mark.parametrize("factor", [1, 7])
@pytest.mark.parametrize("threat", Threat)
def test_equal_weights_change_nothing(threat: Threat, factor: int) -> None:
    rng = np.random.default_rng(4)
    orders = [tuple(rng.choice(3, size=30).tolist()) for _ in range(40)]
    near = neighbour_votes(orders, 12, 3)
    models = rng.choice(3, size=(40, 12), p=[0.2, 0.2, 0.6])
    parts, spread = Partitioned(12), SpreadPartitions(6, (0, 5))
    own = np.zeros((40, 4), dtype=np.int64)
    own[:, 2] = np.arange(40)
    kernel = Votes(
        np.stack([np.zeros(40, dtype=np.int64), 2 * np.arange(40), np.arange(40)], axis=1),
        KernelSum(3),
        evidence={"own": own},
    )
    cases: list[tuple[type[Weighted], Votes]] = [
        (NeighbourRule, near),
        (MajorityRule, Votes(histogram(models.tolist(), 3), parts)),
        (SpreadRule, Votes(histogram(models.tolist(), 3), spread, evidence={"predictions": models})),
        (KernelRule, kernel),
    ]  # fmt: skip
    for rule, votes in cases:
        weighed, plain = (
            certify(votes, method=rule(class_weights=(factor,) * 3), threat=threat),
            certify(votes, method=rule(), threat=threat),
        )
        assert (weighed.label == plain.label).all()
        assert (weighed.radius == plain.radius).all()


# --- random learners --------------------------------------------------------------------------------------------------


def exact_room(total: int, draws: int, deleted: int, inserted: int, ratio: Fraction) -> Fraction:
    shared = Fraction(total - deleted, total) ** draws
    return (1 + ratio) * shared - ratio * Fraction(total - deleted + inserted, total) ** draws


RATIOS = [Fraction(1, 10), Fraction(1, 2), Fraction(1), Fraction(5, 3), Fraction(10)]


@pytest.mark.parametrize("threat", list(Threat))
@pytest.mark.parametrize("ratio", RATIOS)
def test_the_worst_split_of_bagging_is_the_worst_of_the_whole_ball(threat: Threat, ratio: Fraction) -> None:
    for total, draws in product((1, 2, 5, 9), (1, 2, 3, 5, 11)):
        for radius in range(total + 3):
            every = min(exact_room(total, draws, *split, ratio) for split in ball(threat, total, radius))
            splits = _worst_splits(Bagged(total, draws), threat, radius, float(ratio))
            found = min(exact_room(total, draws, *split, ratio) for split in splits)
            assert found == every or max(found, every) <= 0  # where nothing is left, it does not matter how little


def bagging_by_region(
    mechanism: Bagged, deleted: int, inserted: int, miss: Fraction, rival: Fraction
) -> tuple[Fraction, Fraction]:
    """The largest probabilities under D' of "not the label" and of the rival, by the three regions of tuples."""
    n, k, size = mechanism.num_train, mechanism.draws, mechanism.num_train - deleted + inserted
    if size == 0:
        return Fraction(1), Fraction(1)
    shared, new = Fraction(n - deleted, n) ** k, 1 - Fraction(n - deleted, size) ** k
    under = Fraction(n - deleted, size) ** k
    return tuple(new + (under * min(x / shared, 1) if shared else 0) for x in (miss, rival))  # type: ignore[return-value]


def bagging_holds(
    mechanism: Bagged, threat: Threat, radius: int, miss: Fraction, rival: Fraction, mine: int, theirs: int
) -> bool:
    splits = ball(threat, mechanism.num_train, radius)
    pairs = (bagging_by_region(mechanism, *split, miss, rival) for split in splits)
    return all(mine * (1 - missed) > theirs * won for missed, won in pairs)


@pytest.mark.parametrize(
    "threat", [Threat.SYMMETRIC_DIFFERENCE, Threat.ADD, Threat.REMOVE, Threat.EDIT, Threat.REPLACE]
)
@pytest.mark.parametrize("weights", [(1, 10), (10, 1), (2, 3)])
def test_bagging_is_the_condition_on_every_dataset_of_the_ball(threat: Threat, weights: Weights) -> None:
    for total, draws in ((9, 2), (14, 3), (30, 1)):
        mechanism = Bagged(total, draws)
        counts = [[990, 10], [900, 100], [700, 300], [100, 900], [10, 990]]
        certificate = certify(
            Votes.from_counts(counts, mechanism=mechanism), method=BaggingRule(class_weights=weights), threat=threat
        )
        for row, label, radius in zip(counts, certificate.label, certificate.radius, strict=True):
            assert label == largest(row, weights)
            upper = [
                Fraction(float(stats.beta.ppf(1 - 0.75e-3, c + 1, 1000 - c)))
                for c in (1000 - row[label], row[1 - label])
            ]
            scales = weights[label], weights[1 - label]
            assert radius < 0 or bagging_holds(mechanism, threat, radius, upper[0], upper[1], *scales)
            assert not bagging_holds(mechanism, threat, radius + 1, upper[0], upper[1], *scales)


def largest_gaussian(weights: Weights, row: Sequence[int], noise: float, steps: int, tail: float) -> int:
    """The radius of f-DP without sampling, rival by rival: K(x) = Phi(Phi^-1(x) + r sqrt(T) / noise)."""
    total, label = sum(row), largest(row, weights)
    upper = [float(stats.beta.ppf(1 - tail, c + 1, total - c)) if c < total else 1.0 for c in row]
    miss = float(stats.beta.ppf(1 - tail, total - row[label] + 1, row[label]))

    def after(x: float, radius: int) -> float:
        return float(stats.norm.cdf(stats.norm.ppf(x) + radius * np.sqrt(steps) / noise))

    def shown(radius: int) -> bool:
        left = weights[label] * (1 - after(miss, radius))
        rivals = [each for each in range(len(row)) if each != label]
        return all(left > weights[each] * after(min(upper[each], miss), radius) for each in rivals)

    return next(radius for radius in range(-1, 1000) if not shown(radius + 1))


@pytest.mark.parametrize("weights", [(1, 1, 1), (1, 3, 10), (10, 3, 1), (2, 1, 2)])
def test_f_dp_is_the_closed_form_rival_by_rival(weights: Weights) -> None:
    counts = [[900, 60, 40], [60, 900, 40], [500, 100, 400], [995, 3, 2], [300, 400, 300], [990, 0, 10]]
    votes = Votes.from_counts(counts, mechanism=SampledGaussian(20.0, 1.0, 50))
    certificate = certify(votes, method=FDP(cached=False, class_weights=weights))
    assert certificate.label.tolist() == [largest(row, weights) for row in counts]
    expected = [
        largest_gaussian(weights, row, 20.0, 50, 1e-3 * (1 / 3 if len(set(weights)) == 1 else 2 / 9)) for row in counts
    ]
    # The curve of the engine may lie above the closed form, by a little.
    assert all(
        0 <= want - got <= (0 if want < 4 else 1) for got, want in zip(certificate.radius, expected, strict=True)
    )
    assert len(set(expected)) > 2


@pytest.mark.parametrize("method", [FDP, RDP, ADP])
@pytest.mark.parametrize(
    "mechanism", [SampledGaussian(3.0, 0.01, 100), Subsampled(0.5, SampledGaussian(3.0, 0.02, 50))]
)
def test_equal_weights_of_random_learners_change_nothing(method: type[Method], mechanism: Mechanism) -> None:
    votes = Votes.from_counts([[900, 60, 40], [20, 970, 10], [400, 350, 250]], mechanism=mechanism)
    weighed, plain = certify(votes, method=method(class_weights=(4, 4, 4))), certify(votes, method=method())  # type: ignore[call-arg]
    assert weighed.radius.tolist() == plain.radius.tolist()
    assert weighed.status.tolist() == plain.status.tolist()


@pytest.mark.parametrize("method", [RDP("mixture", complement=True), RDP(), ADP()])
def test_other_methods_certify_no_more_than_f_dp(method: Any) -> None:
    votes = Votes.from_counts([[900, 100], [600, 400], [100, 900], [2, 998]], mechanism=SampledGaussian(3.0, 0.01, 100))
    best = certify(votes, method=FDP(class_weights=(5, 1)))
    other = certify(votes, method=rule_from_dict({**method.to_dict(), "class_weights": [5, 1]}))
    assert best.label.tolist() == other.label.tolist() == [0, 0, 1, 1]
    assert (other.radius <= best.radius).all()
    assert other.radius.max() > 0


def test_a_rare_label_wins_and_is_certified_by_its_weight() -> None:
    mechanism = SampledGaussian(3.0, 0.001, 1000)
    votes = Votes.from_counts([[700, 300]], mechanism=mechanism)
    assert certify(votes).label.tolist() == [0]
    found = [certify(votes, method=FDP(class_weights=(1, weight))) for weight in (5, 10, 100)]
    assert [each.label.tolist() for each in found] == [[1]] * 3
    radii = [int(each.radius[0]) for each in found]
    assert 0 < radii[0] < radii[1] < radii[2]
    # Votes that are too close: 3 x .25 against .75.
    close = certify(Votes.from_counts([[750, 250]], mechanism=mechanism), method=FDP(class_weights=(1, 3)))
    assert close.status.tolist() == ["not_separated"]


@pytest.mark.parametrize(("on", "bounds"), [("scores", None), ("votes", "simuem"), ("votes", "pointwise")])
def test_what_is_not_proved_is_refused(on: str, bounds: str | None) -> None:
    votes = Votes.from_counts([[9, 1]], mechanism=SampledGaussian(3.0, 0.01, 100), score_sums=[[9.0, 1.0]])
    with pytest.raises(ConfigError, match="winner, simultaneous, anytime bounds"):
        certify(votes, method=FDP(class_weights=(1, 2)), on=on, bounds=bounds)


def test_plans_and_advice_keep_the_weights() -> None:
    mechanism = SampledGaussian(20.0, 1.0, 50)
    hard = plan(mechanism, instances=1000, classes=2, method=FDP(class_weights=(1, 10)), radius=3)
    # The label of weight 1 with all votes against a rival of weight 10.
    assert (
        hard.max_radius
        == largest_gaussian((1, 10), [1000, 0], 20.0, 50, 0.75e-3)
        < plan(mechanism, instances=1000, classes=2).max_radius
    )
    assert hard.radius_by_top_share[0.9] == -1
    assert hard.to_dict()["method_options"] == {"class_weights": [1, 10]}
    votes = Votes.from_counts([[700, 300]], mechanism=mechanism)
    others = advise(certify(votes, method=FDP(class_weights=(1, 10)))).others
    assert [each.label.tolist() for each in others] == [[1], [1]]


# --- files and audits -------------------------------------------------------------------------------------------------


def _some_votes() -> Iterator[tuple[Votes, Weighted, Threat]]:
    rng = np.random.default_rng(6)
    orders = [tuple(rng.choice(3, size=30, p=[0.5, 0.3, 0.2]).tolist()) for _ in range(20)]
    models = rng.choice(3, size=(20, 12), p=[0.6, 0.3, 0.1])
    private = rng.multinomial(1000, [0.8, 0.15, 0.05], size=6)
    yield neighbour_votes(orders, 12, 3), NeighbourRule(class_weights=(1, 2, 4)), Threat.SYMMETRIC_DIFFERENCE
    yield Votes(histogram(models.tolist(), 3), Partitioned(12)), MajorityRule(class_weights=(1, 3, 2)), Threat.REPLACE
    spread = Votes(histogram(models.tolist(), 3), SpreadPartitions(6, (0, 5)), evidence={"predictions": models})
    yield spread, SpreadRule(class_weights=(1, 3, 2)), Threat.ADD
    for rule in (FDP(class_weights=(1, 2, 3)), RDP(class_weights=(1, 2, 3)), ADP(class_weights=(3, 1, 1))):
        yield Votes(private, SampledGaussian(3.0, 0.01, 100)), rule, Threat.SYMMETRIC_DIFFERENCE
    yield Votes(private, Bagged(500, 20)), BaggingRule(class_weights=(1, 2, 3)), Threat.EDIT
    yield Votes(private, Bagged(500, 20)), BaggingRule(class_weights=(9, 2, 1)), Threat.SYMMETRIC_DIFFERENCE


@pytest.mark.parametrize("number", range(8))
def test_certificates_are_confirmed_and_larger_claims_are_not(number: int, tmp_path: Path) -> None:
    votes, rule, threat = list(_some_votes())[number]
    certificate = certify(votes, method=rule, threat=threat)
    certificate.save(tmp_path / "certificate.json")
    assert verify(tmp_path / "certificate.json").valid
    assert rule_from_dict(rule.to_dict()) == rule
    assert certificate.radius.max() > 0
    assert any("class weight" in sentence for sentence in certificate.assumptions)
    assert "class weight" in certificate.report().html()
    object.__setattr__(
        certificate, "radius", np.where(certificate.radius > 0, certificate.radius + 2, certificate.radius)
    )
    certificate.save(tmp_path / "larger.json")
    assert not verify(tmp_path / "larger.json").valid
    if rule.weights(3)[0] > 1:  # which are stronger claims than those without weights
        return
    plain = certify(votes, method=type(rule)(), threat=threat)
    object.__setattr__(plain, "method", rule)
    object.__setattr__(plain, "assumptions", certificate.assumptions)
    plain.save(tmp_path / "plain.json")
    assert not verify(tmp_path / "plain.json").valid


@pytest.mark.parametrize(
    "rule", [FDP(), RDP(), ADP(), BaggingRule(), MajorityRule(), SpreadRule(), NeighbourRule(), KernelRule()]
)
def test_rules_without_weights_are_written_as_before(rule: Rule) -> None:
    assert "class_weights" not in rule.to_dict()
    assert not rule.choice
    assert "class weight" not in " ".join(rule.assumptions)


# --- doors ------------------------------------------------------------------------------------------------------------

WRONG: list[Any] = [(0, 1), (-1, 2), (1.5, 2), (1, 2.0), (True, 2), [1], "12", 3, (1, 10**6 + 1), (), ("1", "2")]


@pytest.mark.parametrize("weights", WRONG, ids=repr)
@pytest.mark.parametrize("build", [MajorityRule, FDP, NearestNeighbours, DPA])
def test_weights_that_make_no_sense_are_refused(build: Callable[..., Any], weights: Any) -> None:
    with pytest.raises(ConfigError, match="class_weights as whole numbers from 1"):
        build(class_weights=weights)


@pytest.mark.parametrize("name", ["dpa", "bagging", "fdp", "nearest-neighbours", "kernel-vote"])
def test_weights_for_another_number_of_labels_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="class_weights for 3 labels, got 2"):
        defence(name, class_weights=[1, 2], classes=3)
    votes = Votes.from_counts([[1, 1, 1]], mechanism=Partitioned(3))
    with pytest.raises(ConfigError, match="class_weights for 3 labels, got 2"):
        certify(votes, method=MajorityRule(class_weights=(1, 2)))


@pytest.mark.parametrize("name", ["statistical-dp"])
def test_methods_without_weights_refuse_them(name: str) -> None:
    with pytest.raises(ConfigError, match="has no class_weights"):
        defence(name, class_weights=[1, 2])


def test_votes_too_many_for_their_weights_are_refused() -> None:
    votes = Votes(np.array([[1 << 50, 0]]), KernelSum(1024))
    with pytest.raises(ConfigError, match="use smaller ones"):
        certify(votes, method=KernelRule(class_weights=(10**6, 1)))


def _rare() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(8)
    labels = (rng.random(300) < 0.15).astype(np.int64)
    return (rng.normal(size=(300, 3)) + 1.2 * labels[:, None]).astype(np.float32), labels


@pytest.mark.parametrize("kind", [NearestNeighbours, KernelVote])
def test_votes_remember_their_weights(kind: type[NearestNeighbours | KernelVote], tmp_path: Path) -> None:
    x, y = _rare()
    votes = kind(class_weights=[1, 10], classes=2).train(
        (x[:200], y[:200]), (x[200:], y[200:]), run_dir=tmp_path / "run"
    )
    certificate = certify(votes)
    assert getattr(certificate.method, "class_weights", None) == (1, 10)
    expected = [largest(row, (1, 10)) for row in votes.counts.tolist()]
    assert certificate.label.tolist() == expected != votes.counts.argmax(axis=1).tolist()
    again = kind.predict(tmp_path / "run", kind().order((x, y), (x[200:], y[200:])).test)
    assert (certify(again).radius == certificate.radius).all()
    certificate.save(tmp_path / "certificate.json")
    assert verify(tmp_path / "certificate.json", run=tmp_path / "run").valid


def test_weights_do_not_change_how_anything_is_trained() -> None:
    for kind in (DPA, FiniteAggregation, Bagging, NearestNeighbours):
        assert kind(class_weights=[1, 2]).training_key == kind().training_key
        assert kind(class_weights=[1, 2]).to_dict()["class_weights"] == [1, 2]
        assert "class_weights" not in kind().to_dict()
    # It shows the examples of the label that is predicted.
    assert KernelVote(class_weights=[1, 2]).training_key != KernelVote().training_key


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a training and a test file in it."""
    x, y = _rare()
    monkeypatch.chdir(tmp_path)
    np.savez("train.npz", x=x[:200], y=y[:200])
    np.savez("test.npz", x=x[200:], y=y[200:])
    text = 'run_dir = "file"\n[data]\ntrain = "train.npz"\ntest = "test.npz"\n[train]\nmethod = "nearest-neighbours"\n'
    Path("project.toml").write_text(text + "neighbours = 25\nclass_weights = [1, 10]\n")
    return tmp_path


@pytest.mark.usefixtures("here")
def test_every_door_gives_the_same_weighed_certificate(capsys: pytest.CaptureFixture[str]) -> None:
    x, y = _rare()
    training, test = (x[:200], y[:200]), (x[200:], y[200:])
    votes = NearestNeighbours(neighbours=25, class_weights=[1, 10]).train(training, test)
    expected = certify(votes)
    flags = ["--method", "nearest-neighbours", "--neighbours", "25", "--class-weights", "1", "10", "--run-dir", "flags"]
    assert main(["train", "project.toml"]) == 0
    capsys.readouterr()
    assert main(["train", "--train", "train.npz", "--test", "test.npz", *flags, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["accuracy"] == pytest.approx(np.mean(expected.label == y[200:]))
    for run in ("file", "flags"):
        assert main(["certify", run]) == 0
        found = Certificate.load(f"{run}/certificate.json")
        assert found.method == expected.method
        assert (found.label == expected.label).all()
        assert (found.radius == expected.radius).all()
        assert main(["verify", f"{run}/certificate.json", "--run", run]) == 0
        assert main(["report", run, "--out", "report.html"]) == 0
        assert main(["predict", run, "test.npz", "--out", "again.json"]) == 0
        assert (Certificate.load("again.json").radius == expected.radius).all()
    fitted = CertifiedClassifier("nearest-neighbours", neighbours=25, class_weights=[1, 10]).fit(*training)
    assert (fitted.predict(test[0]) == expected.label).all()
    assert (fitted.predict_proba(test[0]).argmax(axis=1) == expected.label).all()
    assert (fitted.certify(test[0]).radius == expected.radius).all()


@pytest.mark.usefixtures("here")
def test_flags_of_certify_stand_above_what_votes_record(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(2)
    Votes(
        rng.multinomial(500, [0.7, 0.3], size=9),
        SampledGaussian(3.0, 0.01, 100),
        recipe={"rule": FDP(class_weights=(1, 4)).to_dict()},
    ).save("votes.npz")
    for more, weights in (([], (1, 4)), (["--method", "adp"], (1, 4)), (["--class-weights", "2", "3"], (2, 3))):
        assert main(["certify", "votes.npz", "--out", "c.json", *more]) == 0
        assert Certificate.load("c.json").method.to_dict()["class_weights"] == list(weights)
        assert main(["verify", "c.json"]) == 0
    for wrong in (["0", "1"], ["1", "2", "3"], ["-1", "2"]):
        assert main(["certify", "votes.npz", "--class-weights", *wrong]) == 2
    assert "--class-weights" in capsys.readouterr().err
    constants = [
        "--noise-multiplier",
        "20",
        "--sample-rate",
        "1",
        "--steps",
        "50",
        "--instances",
        "1000",
        "--classes",
        "2",
    ]
    assert main(["plan", *constants, "--class-weights", "1", "10", "--json"]) == 0
    expected = plan(SampledGaussian(20.0, 1.0, 50), instances=1000, classes=2, method=FDP(class_weights=(1, 10)))
    assert json.loads(capsys.readouterr().out)["max_radius"] == expected.max_radius


def test_comparisons_share_votes_that_are_weighed_otherwise() -> None:
    x, y = _rare()
    several = {
        "plain": NearestNeighbours(neighbours=25, classes=2),
        "weighed": NearestNeighbours(neighbours=25, classes=2, class_weights=[1, 10]),
    }
    found = compare(several, ((x[:200], y[:200]), (x[200:], y[200:])))
    plain, weighed = (next(each for each in found.entries if each.name == name) for name in several)
    assert not found.failed
    assert plain.certificate is not None
    assert weighed.certificate is not None
    assert plain.certificate.label.sum() < weighed.certificate.label.sum()


def test_auto_takes_weights() -> None:
    x, y = _rare()
    fitted = CertifiedClassifier("auto", class_weights=[1, 10], classes=[0, 1]).fit(x, y)
    assert fitted.defence_.class_weights == (1, 10)
    assert fitted.predict(x).sum() > CertifiedClassifier("auto", classes=[0, 1]).fit(x, y).predict(x).sum()


def test_an_estimator_with_a_rule_has_its_weights_there() -> None:
    x, y = _rare()
    with pytest.raises(ConfigError, match="belong into the rule"):
        CertifiedClassifier(FDP(), class_weights=[1, 10]).fit(x, y)
