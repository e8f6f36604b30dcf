"""DPA, Finite Aggregation and Run-Off Election against brute force: on tables of votes, and on tiny data sets."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, combinations_with_replacement, permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mithridate.certifying.exact import most_within
from mithridate.core.mechanism import SEARCH_LIMIT, SampledGaussian, Threat
from mithridate.core.rule import ExactRule, rule_from_dict
from mithridate.core.votes import Votes
from mithridate.defences.kernel import KernelRule
from mithridate.defences.neighbours import NeighbourRule
from mithridate.defences.partitions import MajorityRule, Partitioned, RunOffRule, SpreadPartitions, SpreadRule
from mithridate.errors import ArtifactError, ConfigError, UnsupportedMechanismError

Example = tuple[int, int]
Data = Sequence[Example]
Ranking = tuple[int, ...]

# Everything an attacker can insert: three inputs with three labels.
POSITIONS, LABELS = range(3), range(3)
DOMAIN = [(x, y) for x in POSITIONS for y in LABELS]


def one_step(data: tuple[Example, ...], threat: Threat) -> Iterator[tuple[Example, ...]]:
    """Every data set that one unit of a threat makes of another, as sorted tuples."""
    for place, (x, y) in enumerate(data):
        rest = data[:place] + data[place + 1 :]
        if threat in (Threat.REMOVE, Threat.SYMMETRIC_DIFFERENCE, Threat.EDIT):
            yield rest
        if threat in (Threat.REPLACE, Threat.EDIT):
            yield from (tuple(sorted((*rest, new))) for new in DOMAIN)
        if threat is Threat.LABELS:
            yield from (tuple(sorted((*rest, (x, label)))) for label in LABELS)
        if threat is Threat.FEATURES:
            yield from (tuple(sorted((*rest, (position, y)))) for position in POSITIONS)
    if threat in (Threat.ADD, Threat.SYMMETRIC_DIFFERENCE, Threat.EDIT):
        yield from (tuple(sorted((*data, new))) for new in DOMAIN)


def smallest_flip(data: Data, threat: Threat, predict: Callable[[Data], int], limit: int) -> int:
    """The fewest units of a threat that change a prediction, by trying all; `limit + 1` where that many do not."""
    start = tuple(sorted(data))
    label = predict(start)
    seen, frontier = {start}, {start}
    for radius in range(1, limit + 1):
        frontier = {other for known in frontier for other in one_step(known, threat)} - seen
        if any(predict(other) != label for other in frontier):
            return radius
        seen |= frontier
    return limit + 1


# --- Tables of votes --------------------------------------------------------------------------------------------------


def histogram(predictions: Sequence[Sequence[int]], classes: int) -> np.ndarray:
    return np.array([[list(row).count(label) for label in range(classes)] for row in predictions])


def largest(scores: Sequence[int]) -> int:
    return max(range(len(scores)), key=lambda label: (scores[label], -label))


def radii(rule: ExactRule, votes: Votes, threat: Threat = Threat.SYMMETRIC_DIFFERENCE) -> list[int]:
    return rule.decide(votes, threat).radius.tolist()


@pytest.mark.parametrize(("models", "classes"), [(1, 2), (5, 2), (6, 2), (5, 3), (6, 3), (4, 4), (5, 4)])
def test_majority_is_exact_on_every_table_of_votes(models: int, classes: int) -> None:
    tables = [
        [row.count(label) for label in range(classes)] for row in combinations_with_replacement(range(classes), models)
    ]
    decision = MajorityRule().decide(Votes(np.array(tables), Partitioned(models)), Threat.SYMMETRIC_DIFFERENCE)
    for counts, label, radius in zip(tables, decision.label, decision.radius, strict=True):
        # Models are told apart by their votes only, so two tables are as many changes apart as votes moved.
        flips = [models - sum(map(min, counts, other)) for other in tables if largest(other) != largest(counts)]
        assert label == largest(counts)
        assert radius == min(flips) - 1


def test_majority_by_hand() -> None:
    votes = Votes(np.array([[1200, 0], [0, 1200], [601, 599], [600, 600]]), Partitioned(1200))
    # 600 votes moved from label 0 leave a tie, which it wins; from label 1, which it loses.
    assert radii(MajorityRule(), votes) == [600, 599, 1, 0]
    assert radii(MajorityRule(), votes, Threat.REPLACE) == [300, 299, 0, 0]
    assert MajorityRule().decide(votes, Threat.ADD).label.tolist() == [0, 1, 0, 0]


def spread_oracle(row: Sequence[int], mechanism: SpreadPartitions, classes: int) -> int:
    """Finite Aggregation as its theorem reads: for each rival, impacts sorted and added one by one."""
    counts = histogram([row], classes)[0]
    label = largest(counts.tolist())
    radius = mechanism.models
    for rival in set(range(classes)) - {label}:
        impacts = sorted(
            (
                sum(
                    1
                    + (row[(bucket + offset) % mechanism.models] == label)
                    - (row[(bucket + offset) % mechanism.models] == rival)
                    for offset in mechanism.offsets
                )
                for bucket in range(mechanism.models)
            ),
            reverse=True,
        )
        lead = counts[label] - counts[rival] - (rival < label)
        radius = min(radius, max(r for r in range(mechanism.models + 1) if sum(impacts[:r]) <= lead))
    return radius


@given(
    st.integers(1, 5),
    st.sets(st.integers(0, 4), min_size=1, max_size=4),
    st.integers(2, 4),
    st.randoms(use_true_random=False),
)
def test_spread_is_the_theorem(partitions: int, offsets: set[int], classes: int, random) -> None:
    # There are as many models as parts x offsets, and an offset is the number of a model.
    chosen = sorted(offsets)
    while max(chosen) >= partitions * len(chosen):
        chosen = sorted({offset % (partitions * len(chosen)) for offset in chosen})
    mechanism = SpreadPartitions(partitions, tuple(chosen))
    favourite = random.randrange(classes)
    rows = [
        [random.choice([favourite, favourite, random.randrange(classes)]) for _ in range(mechanism.models)]
        for _ in range(5)
    ]
    votes = Votes(histogram(rows, classes), mechanism, evidence={"predictions": np.array(rows)})
    assert radii(SpreadRule(), votes) == [spread_oracle(row, mechanism, classes) for row in rows]


def test_spread_knows_on_which_side_of_a_bucket_its_models_are() -> None:
    mechanism, mirrored = SpreadPartitions(6, (0, 1, 2, 5, 9)), SpreadPartitions(6, (0, 29, 28, 25, 21))
    random = np.random.default_rng(8)
    rows = [random.choice(3, 30, p=random.dirichlet([4, 1, 1])).tolist() for _ in range(600)]
    votes = Votes(histogram(rows, 3), mechanism, evidence={"predictions": np.array(rows)})
    found = radii(SpreadRule(), votes)
    assert found == [spread_oracle(row, mechanism, 3) for row in rows]
    assert found != [spread_oracle(row, mirrored, 3) for row in rows]


@pytest.mark.parametrize(
    ("mechanism", "classes"),
    [(SpreadPartitions(3, (0, 1)), 3), (SpreadPartitions(3, (1, 4)), 3), (SpreadPartitions(5, (0, 3)), 2)],
)
def test_spread_holds_against_every_vote_of_spoiled_models(mechanism: SpreadPartitions, classes: int) -> None:
    rows = [row for row in product(range(classes), repeat=mechanism.models) if row[0] <= 1]
    votes = Votes(histogram(rows, classes), mechanism, evidence={"predictions": np.array(rows)})
    decision = SpreadRule().decide(votes, Threat.SYMMETRIC_DIFFERENCE)
    assert decision.radius.max() > 0
    for row, label, radius in zip(rows, decision.label, decision.radius, strict=True):
        for buckets in combinations(range(mechanism.models), int(radius)):
            spoiled = {(bucket + offset) % mechanism.models for bucket in buckets for offset in mechanism.offsets}
            for new in product(range(classes), repeat=len(spoiled)):
                changed = list(row)
                for model, vote in zip(spoiled, new, strict=True):
                    changed[model] = vote
                assert largest(histogram([changed], classes)[0].tolist()) == label


@pytest.mark.parametrize("weights", [None, (1, 3, 2), (7, 1, 1)])
def test_counting_a_model_once_in_the_cap_shows_no_larger_radius(weights: tuple[int, ...] | None) -> None:
    """No r buckets take more than the r x spread largest amounts of single models; sums over buckets show as much."""
    random = np.random.default_rng(9)
    each = np.array(weights or (1, 1, 1))
    for offsets in ((0, 1), (0, 3, 7), (0, 2, 3, 5, 11)):
        mechanism = SpreadPartitions(6, offsets)
        rows = np.array([random.choice(3, mechanism.models, p=random.dirichlet([3, 1, 1])) for _ in range(100)])
        votes = Votes(histogram(rows.tolist(), 3), mechanism, evidence={"predictions": rows})
        decision = SpreadRule(class_weights=weights).decide(votes, Threat.SYMMETRIC_DIFFERENCE)
        for row, counts, label, radius in zip(rows, votes.counts, decision.label, decision.radius, strict=True):
            capped = []
            for rival in {0, 1, 2} - {int(label)}:
                amounts = np.sort(np.where(row == label, each[label], 0) + np.where(row == rival, 0, each[rival]))[::-1]
                lead = each[label] * counts[label] - each[rival] * counts[rival] - (rival < label)
                taken = [amounts[: r * len(offsets)].sum() for r in range(mechanism.models + 1)]
                capped.append(int((np.array(taken) <= lead).sum()) - 1)
            assert radius >= min(capped)


@pytest.mark.parametrize("offsets", [(0, 1), (0, 5), (0, 1, 3), (0, 2, 3, 7, 11, 16)])
def test_with_one_bucket_more_the_prediction_mostly_turns(offsets: tuple[int, ...]) -> None:
    """By trying sets of buckets in which a model counts once."""
    mechanism, random = SpreadPartitions(18 // len(offsets), offsets), np.random.default_rng(10)
    rows = np.array([random.choice(3, 18, p=random.dirichlet([6, 1, 1])) for _ in range(100)])
    votes = Votes(histogram(rows.tolist(), 3), mechanism, evidence={"predictions": rows})
    decision = SpreadRule().decide(votes, Threat.SYMMETRIC_DIFFERENCE)
    seen_by = np.add.outer(np.arange(18), offsets) % 18

    def turns(row: np.ndarray, label: int, rival: int, buckets: tuple[int, ...]) -> bool:
        after = row.copy()
        after[seen_by[list(buckets)]] = rival
        return largest(np.bincount(after, minlength=3).tolist()) != label

    turned = [
        any(
            turns(row, label, rival, buckets)
            for rival in {0, 1, 2} - {label}
            for buckets in combinations(range(18), radius + 1)
        )
        for row, label, radius in zip(rows, decision.label.tolist(), decision.radius.tolist(), strict=True)
    ]
    print(offsets, np.mean(turned), decision.radius.max())
    assert np.mean(turned) > 0.9


def test_spread_without_overlap_is_majority() -> None:
    rows = np.random.default_rng(3).choice(4, size=(200, 30), p=[0.5, 0.3, 0.15, 0.05])
    counts = histogram(rows.tolist(), 4)
    spread = Votes(counts, SpreadPartitions(30, (7,)), evidence={"predictions": rows})
    for threat in Threat:
        assert radii(SpreadRule(), spread, threat) == radii(MajorityRule(), Votes(counts, Partitioned(30)), threat)


def test_spread_in_chunks_and_with_wide_sums() -> None:
    # 2 x 130 does not fit into one byte; more examples than one chunk holds.
    mechanism = SpreadPartitions(2, tuple(range(0, 260, 2)))
    rows = (np.random.default_rng(5).random((3000, 260)) < 0.02).astype(int)
    counts = np.stack([(rows == 0).sum(axis=1), (rows == 1).sum(axis=1)], axis=1)
    votes = Votes(counts, mechanism, evidence={"predictions": rows})
    found = radii(SpreadRule(), votes)
    assert found[::500] == [spread_oracle(row, mechanism, 2) for row in rows[::500].tolist()]
    # Only where all models agree do 130 of them, from the label to the rival, leave a tie.
    assert [radius == 1 for radius in found] == (rows.sum(axis=1) == 0).tolist()
    assert 0 < sum(found) < 100


# --- Run-off ----------------------------------------------------------------------------------------------------------


def elect(profile: Sequence[Ranking]) -> int:
    """A run-off among rankings, best first, read off the definition."""
    classes = len(profile[0])
    first = Counter(ranking[0] for ranking in profile)
    one, two = sorted(sorted(range(classes), key=lambda label: (-first[label], label))[:2])
    for_one = sum(ranking.index(one) < ranking.index(two) for ranking in profile)
    return one if 2 * for_one >= len(profile) else two


def run_off_votes(profiles: Sequence[Sequence[Ranking]]) -> Votes:
    classes = len(profiles[0][0])
    preferences = np.zeros((len(profiles), classes, classes), dtype=int)
    for row, profile in enumerate(profiles):
        for ranking in profile:
            for better, worse in combinations(ranking, 2):
                preferences[row, better, worse] += 1
    counts = histogram([[ranking[0] for ranking in profile] for profile in profiles], classes)
    return Votes(counts, Partitioned(len(profiles[0])), evidence={"preferences": preferences})


def run_off_truth(profiles: list[tuple[Ranking, ...]], chosen: Sequence[int]) -> list[int]:
    """The true radius of the chosen profiles: how many rankings the nearest profile with another winner differs by."""
    rankings = list(permutations(range(len(profiles[0][0]))))
    numbers = np.array([[profile.count(ranking) for ranking in rankings] for profile in profiles], dtype=np.int8)
    elected = np.array([elect(profile) for profile in profiles])
    found = []
    for index in chosen:
        others = numbers[elected != elected[index]]
        found.append(len(profiles[0]) - int(np.minimum(others, numbers[index]).sum(axis=1).max()) - 1)
    return found


@pytest.mark.parametrize(
    ("models", "classes"), [(1, 3), (2, 3), (3, 3), (4, 3), (5, 3), (8, 3), (3, 4), (4, 4), (9, 2)]
)
def test_run_off_holds_against_every_ranking_of_spoiled_models(models: int, classes: int) -> None:
    rankings = list(permutations(range(classes)))
    profiles = list(combinations_with_replacement(rankings, models))
    chosen = range(0, len(profiles), max(1, len(profiles) // 600))
    decision = RunOffRule().decide(run_off_votes([profiles[index] for index in chosen]), Threat.SYMMETRIC_DIFFERENCE)
    truth = run_off_truth(profiles, chosen)
    assert decision.label.tolist() == [elect(profiles[index]) for index in chosen]
    assert (decision.radius <= truth).all()
    # The counts do not tell everything; how much they miss is known to be little.
    assert (decision.radius == truth).mean() >= 0.95
    if classes == 2:
        assert decision.radius.tolist() == truth


def paper_run_off(counts: Sequence[int], preferences: np.ndarray, label: int) -> int:
    """The paper's certificate by plain search: each spoiled model moves one vote, round by round."""
    labels = set(range(len(counts))) - {label}
    second = next(c for c in sorted(range(len(counts)), key=lambda c: (-counts[c], c))[:2] if c != label)

    def drops(gap: int) -> int:
        """Changes until a gap, of which 0 is enough to win, is lost: each closes it by two."""
        return next(t for t in range(100) if gap - 2 * t < 0)

    def both(gap: int, other: int) -> int:
        """Changes until both gaps are lost: each closes one by two and the other by one."""
        return next(
            t for t in range(100) if any(gap - 2 * u - (t - u) < 0 > other - u - 2 * (t - u) for u in range(t + 1))
        )

    lead = {c: counts[label] - counts[c] - (c < label) for c in labels}
    thrown_out = [both(lead[one], lead[two]) for one, two in combinations(labels, 2)]
    overruled = [
        max(
            0 if c == second else drops(counts[second] - counts[c] - (c < second)),
            drops(max(int(preferences[label, c] - preferences[c, label]) - (c < label), -1)),
        )
        for c in labels
    ]
    return min(thrown_out + overruled) - 1


def test_run_off_is_never_below_the_paper_and_mostly_equal() -> None:
    random = np.random.default_rng(11)
    strength = np.array([1.0, 0.9, 0.8, 0.2, 0.0])
    profiles = [
        [tuple(np.argsort(-(strength + random.gumbel(size=5))).tolist()) for _ in range(25)] for _ in range(300)
    ]
    votes = run_off_votes(profiles)
    decision = RunOffRule().decide(votes, Threat.SYMMETRIC_DIFFERENCE)
    paper = np.array(
        [
            paper_run_off(votes.counts[row].tolist(), votes.evidence["preferences"][row].astype(int), int(label))
            for row, label in enumerate(decision.label)
        ]
    )
    assert (decision.radius >= paper).all()
    assert (decision.radius == paper).mean() > 0.8
    assert len(set(paper.tolist())) > 3


def test_run_off_by_hand() -> None:
    # 6 vote for 0, 4 for 1, 1 for 2; whoever does not vote for 0 puts it last. In the second round 0 leads by 6 to 5,
    # and one model that goes over from 0 to 1 changes the prediction. A lead of 8 to 3 withstands two: 6 to 5.
    close = [(0, 1, 2)] * 6 + [(1, 2, 0)] * 4 + [(2, 1, 0)]
    clear = [(0, 1, 2)] * 8 + [(1, 2, 0)] * 2 + [(2, 1, 0)]
    assert radii(RunOffRule(), run_off_votes([close, clear])) == [0, 2]
    assert radii(RunOffRule(), run_off_votes([close, clear]), Threat.LABELS) == [0, 1]


# --- Tiny data sets, all poisonings -----------------------------------------------------------------------------------


def ranking_of(part: Data, query: int) -> Ranking:
    """A toy learner: labels by the distance of their mean input to the query, then by how often they occur."""

    def distance(label: int) -> tuple[float, int, int]:
        inputs = [x for x, y in part if y == label]
        return (abs(sum(inputs) / len(inputs) - query) if inputs else 9.0, -len(inputs), label)

    return tuple(sorted(LABELS, key=distance))


def bucket_of(example: Example, buckets: int) -> int:
    x, y = example
    return (7 * x + 3 * y + x * y) % buckets


def parts(data: Data, models: int, offsets: Sequence[int] = (0,)) -> list[list[Example]]:
    seen: list[list[Example]] = [[] for _ in range(models)]
    for example in data:
        for offset in offsets:
            seen[(bucket_of(example, models) + offset) % models].append(example)
    return seen


def some_data(number: int, sizes: tuple[int, int], seed: int) -> list[Data]:
    """Data sets in which a label mostly goes with its own input, so that there is something to certify."""
    random = np.random.default_rng(seed)
    return [
        [
            (x, x if random.random() < 0.7 else int(random.choice(3)))
            for x in random.choice(3, size=random.integers(*sizes), p=[0.6, 0.2, 0.2]).tolist()
        ]
        for _ in range(number)
    ]


def trained(kind: str, data: Data, query: int) -> Votes:
    if kind == "finite-aggregation":
        mechanism = SpreadPartitions(4, (0, 3))
        votes = [ranking_of(part, query)[0] for part in parts(data, 8, (0, 3))]
        return Votes(histogram([votes], 3), mechanism, evidence={"predictions": np.array([votes])})
    return run_off_votes([[ranking_of(part, query) for part in parts(data, 5)]])


@pytest.mark.parametrize("threat", Threat)
@pytest.mark.parametrize("rule", [MajorityRule(), SpreadRule(), RunOffRule()], ids=lambda rule: rule.name)
def test_no_poisoning_of_a_tiny_data_set_changes_a_certified_prediction(rule: ExactRule, threat: Threat) -> None:
    certified = 0
    for number, data in enumerate(some_data(40, (4, 8), seed=1)):
        query = number % 3

        def predict(other: Data, query: int = query) -> int:
            return int(rule.decide(trained(rule.name, other, query), threat).label[0])

        radius = radii(rule, trained(rule.name, data, query), threat)[0]
        if radius and certified < 10:
            assert smallest_flip(data, threat, predict, limit=min(radius, 2)) > min(radius, 2)
            certified += 1
    # Replacing costs two changes, which five models withstand only if they all agree.
    assert certified > 0


# --- What all rules share ---------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.integers(0, 30))
def test_most_within_is_greedy(costs: list[int], budget: int) -> None:
    kinds = [4, 3, 2, 1, 0]
    numbers = np.array([[costs.count(kind) for kind in kinds]])
    ordered = sorted(costs, reverse=True)
    expected = max(r for r in range(len(costs) + 1) if sum(ordered[:r]) <= budget)
    assert most_within(np.array([budget]), np.array(kinds), numbers).tolist() == [expected]


@pytest.mark.parametrize("rule", [MajorityRule(), SpreadRule(), RunOffRule(), NeighbourRule(), KernelRule()])
def test_rules_are_read_back(rule: ExactRule) -> None:
    assert rule_from_dict(rule.to_dict()) == rule
    assert rule.assumptions == ()


@pytest.mark.parametrize("values", [{"name": "dpb"}, {}, {"name": "dpa", "partitions": 3}])
def test_unknown_rules_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ArtifactError, match="not known to this version"):
        rule_from_dict(values)


@pytest.mark.parametrize("rule", [MajorityRule(), SpreadRule(), RunOffRule(), NeighbourRule(), KernelRule()])
def test_votes_of_another_mechanism_are_refused(rule: ExactRule) -> None:
    votes = Votes(np.array([[3, 1]]), SampledGaussian(1.0, 0.1, 5))
    with pytest.raises(UnsupportedMechanismError, match=f"The method {rule.name} is for votes of .* SampledGaussian"):
        rule.decide(votes, Threat.ADD)


def test_missing_evidence_is_named() -> None:
    with pytest.raises(ConfigError, match="finite-aggregation needs the evidence 'predictions'"):
        SpreadRule().decide(Votes(np.array([[3, 1]]), SpreadPartitions(4, (0,))), Threat.ADD)
    with pytest.raises(ConfigError, match="run-off-election needs the evidence 'preferences'"):
        RunOffRule().decide(Votes(np.array([[3, 1]]), Partitioned(4)), Threat.ADD)


@pytest.mark.parametrize("rule", [MajorityRule(), RunOffRule()], ids=lambda rule: rule.name)
def test_a_model_votes_once(rule: ExactRule) -> None:
    with pytest.raises(ConfigError, match="one vote from each of 3 models, but the counts hold 4"):
        rule.decide(Votes(np.array([[3, 1]]), Partitioned(3)), Threat.ADD)


@pytest.mark.parametrize(
    ("predictions", "message"), [([[0, 0, 0, 1]], "does not add up to the counts"), ([[0, 0, 0]], "examples x 4, got")]
)
def test_predictions_that_contradict_the_counts_are_refused(predictions: list, message: str) -> None:
    votes = Votes(np.array([[4, 0]]), SpreadPartitions(2, (0, 1)), evidence={"predictions": np.array(predictions)})
    with pytest.raises(ConfigError, match=message):
        SpreadRule().decide(votes, Threat.ADD)


@pytest.mark.parametrize(
    ("preferences", "message"),
    [
        ([[[0, 2], [2, 0]]], "does not fit the counts"),  # fewer prefer label 0 than vote for it
        ([[[0, 4], [1, 0]]], "does not fit the counts"),  # one model more than there are
        ([[3, 1]], "examples x 2 x 2"),
    ],
)
def test_preferences_that_contradict_the_counts_are_refused(preferences: list, message: str) -> None:
    votes = Votes(np.array([[3, 1]]), Partitioned(4), evidence={"preferences": np.array(preferences)})
    with pytest.raises(ConfigError, match=message):
        RunOffRule().decide(votes, Threat.ADD)


def test_radii_end_at_the_search_limit() -> None:
    votes = Votes(np.array([[1 << 22, 0]]), Partitioned(1 << 22))
    assert radii(MajorityRule(), votes) == [SEARCH_LIMIT]
