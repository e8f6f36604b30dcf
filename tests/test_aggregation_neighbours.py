"""Nearest neighbours and kernel votes against brute force: every poisoning of every tiny data set."""

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_aggregation_partitions import DOMAIN, LABELS, Data, histogram, largest, radii, smallest_flip, some_data

from mithridate.aggregation import ExactRule, KernelRule, NeighbourRule
from mithridate.errors import ConfigError
from mithridate.mechanism import SEARCH_LIMIT, KernelSum, NearestExamples, Threat
from mithridate.votes import Votes

Order = tuple[int, ...]

EXAMPLE_THREATS = (Threat.ADD, Threat.REMOVE, Threat.SYMMETRIC_DIFFERENCE, Threat.REPLACE, Threat.EDIT)


# --- Nearest neighbours: lists of labels ------------------------------------------------------------------------------


def neighbour_votes(orders: Sequence[Order], neighbours: int, classes: int) -> Votes:
    """Votes of lists of labels, all of one length, nearest first."""
    shown = [order[: 2 * neighbours] for order in orders]
    counts = histogram([order[:neighbours] for order in orders], classes)
    return Votes(counts, NearestExamples(neighbours, len(orders[0])), evidence={"order": np.array(shown)})


def vote(order: Order, neighbours: int, classes: int) -> int:
    return largest([order[:neighbours].count(label) for label in range(classes)])


def changed_orders(order: Order, threat: Threat, classes: int) -> Iterator[Order]:
    """Every list that one unit of a threat makes of another: a new example may come anywhere."""

    def inserted(into: Order) -> Iterator[Order]:
        for place, label in product(range(len(into) + 1), range(classes)):
            yield (*into[:place], label, *into[place:])

    if threat in (Threat.ADD, Threat.SYMMETRIC_DIFFERENCE, Threat.EDIT):
        yield from inserted(order)
    for place in range(len(order)):
        rest = order[:place] + order[place + 1 :]
        if threat in (Threat.REMOVE, Threat.SYMMETRIC_DIFFERENCE, Threat.EDIT):
            yield rest
        if threat in (Threat.REPLACE, Threat.EDIT):
            yield from inserted(rest)
        if threat is Threat.LABELS:
            yield from ((*order[:place], label, *order[place + 1 :]) for label in range(classes))


def true_radius(order: Order, neighbours: int, classes: int, threat: Threat) -> int:
    label = vote(order, neighbours, classes)
    seen, frontier, radius = {order}, {order}, 0
    while frontier:
        frontier = {other for known in frontier for other in changed_orders(known, threat, classes)} - seen
        if any(vote(other, neighbours, classes) != label for other in frontier):
            return radius
        seen |= frontier
        radius += 1
    return SEARCH_LIMIT


@pytest.mark.parametrize("threat", [*EXAMPLE_THREATS, Threat.LABELS])
@pytest.mark.parametrize(
    ("length", "neighbours", "classes"),
    [
        (1, 1, 2),
        (1, 2, 3),
        (2, 1, 3),
        (2, 3, 3),
        (3, 2, 3),
        (3, 3, 2),
        (4, 3, 2),
        (4, 2, 3),
        (5, 3, 2),
        (5, 2, 3),
        (6, 4, 2),
    ],
)
def test_neighbours_are_exact_on_every_list(length: int, neighbours: int, classes: int, threat: Threat) -> None:
    orders = list(product(range(classes), repeat=length))
    if threat in (Threat.SYMMETRIC_DIFFERENCE, Threat.EDIT, Threat.REPLACE) and length >= 5:
        orders = orders[::5]  # there are many lists around each of them
    found = NeighbourRule().decide(neighbour_votes(orders, neighbours, classes), threat)
    for order, label, radius in zip(orders, found.label, found.radius, strict=True):
        truth = true_radius(order, neighbours, classes, threat)
        assert label == vote(order, neighbours, classes)
        assert radius <= truth
        # Deletions may bring in examples that the evidence does not show.
        if not (threat is Threat.REMOVE and length >= 2 * neighbours and truth > neighbours):
            assert radius == truth


def test_deletions_beyond_what_is_shown_meet_the_worst() -> None:
    # Six of label 0 are shown and three vote. Three deletions leave three. With five, one 0 and two unseen 1 vote.
    votes = neighbour_votes([(0,) * 40], 3, 2)
    assert radii(NeighbourRule(), votes, Threat.REMOVE) == [4]
    assert true_radius((0,) * 6 + (1,) * 6, 3, 2, Threat.REMOVE) == 4
    # Where nothing else is there, label 0 wins even when nobody votes, label 1 until then.
    assert radii(NeighbourRule(), neighbour_votes([(0,) * 5, (1,) * 5], 3, 2), Threat.REMOVE) == [SEARCH_LIMIT, 4]


def slow_neighbour_radius(order: np.ndarray, neighbours: int, classes: int, threat: Threat) -> int:
    """All splits of r into insertions and deletions, for each r: one attack after another, carried out on a list."""
    label = vote(tuple(order), neighbours, classes)

    def survives(inserted: int, deleted: int, rival: int) -> bool:
        left, remaining = deleted, []
        for entry in order:
            if entry == label and left:
                left -= 1
            else:
                remaining.append(int(entry))
        return vote((rival,) * inserted + tuple(remaining), neighbours, classes) == label

    radius = 0
    while True:
        splits = {
            Threat.ADD: [(radius + 1, 0)],
            Threat.REMOVE: [(0, radius + 1)],
            Threat.SYMMETRIC_DIFFERENCE: [(i, radius + 1 - i) for i in range(radius + 2)],
            Threat.EDIT: [(radius + 1, radius + 1)],
        }[threat]
        if not all(survives(*split, rival) for split in splits for rival in set(range(classes)) - {label}):
            return radius
        radius += 1


@pytest.mark.parametrize("threat", [Threat.ADD, Threat.REMOVE, Threat.SYMMETRIC_DIFFERENCE, Threat.EDIT])
def test_neighbours_equal_the_attacks_on_longer_lists(threat: Threat) -> None:
    random = np.random.default_rng(4)
    orders = [tuple(random.choice(4, size=50, p=random.dirichlet([2, 1, 1, 0.5])).tolist()) for _ in range(60)]
    votes = neighbour_votes(orders, 27, 4)
    expected = [slow_neighbour_radius(np.array(order), 27, 4, threat) for order in orders]
    assert radii(NeighbourRule(), votes, threat) == expected
    assert len(set(expected)) > 5


def test_many_neighbours_and_examples() -> None:
    # More examples than one chunk holds.
    neighbours = 3 << 12
    order = np.zeros((80, 2 * neighbours), dtype=np.uint8)
    order[:, 1::4] = 1
    counts = np.tile([3 * neighbours // 4, neighbours // 4], (80, 1))
    votes = Votes(counts, NearestExamples(neighbours), evidence={"order": order})
    # r insertions leave k - r, of which 3/4 are 0, to r + (k - r) / 4: a tie, which 0 wins, at r = k / 3.
    assert set(radii(NeighbourRule(), votes, Threat.ADD)) == {neighbours // 3}
    assert set(radii(NeighbourRule(), votes)) == {neighbours // 3}
    # r deletions leave 3/4 (k + r) - r to (k + r) / 4: a tie at r = k, which 0 wins.
    assert set(radii(NeighbourRule(), votes, Threat.REMOVE)) == {neighbours}


def test_far_more_neighbours_than_examples() -> None:
    orders = list(product(range(3), repeat=3))
    for threat in EXAMPLE_THREATS:
        found = radii(NeighbourRule(), neighbour_votes(orders, 2**40, 3), threat)
        assert found == [true_radius(order, 2**40, 3, threat) for order in orders]


def test_leads_beyond_two_bytes() -> None:
    votes = Votes(np.array([[20000, 0]]), NearestExamples(20000), evidence={"order": np.zeros((1, 40000), dtype=int)})
    assert radii(NeighbourRule(), votes, Threat.ADD) == [10000]
    # 30000 deletions leave 10000 that are shown, and let 10000 in that are not.
    assert radii(NeighbourRule(), votes, Threat.REMOVE) == [30000]


# --- Tiny data sets ---------------------------------------------------------------------------------------------------


def nearest(data: Data, query: int) -> Order:
    return tuple(y for _, _, y in sorted((abs(x - query), x, y) for x, y in data))


@pytest.mark.parametrize("threat", Threat)
def test_no_poisoning_changes_a_certified_vote_of_neighbours(threat: Threat) -> None:
    certified = 0
    for number, data in enumerate(some_data(30, (4, 8), seed=2)):
        query, neighbours = number % 3, 1 + number % 5
        votes = neighbour_votes([nearest(data, query)], min(neighbours, len(data)), 3)
        neighbours = votes.instances

        def predict(other: Data, query: int = query, neighbours: int = neighbours) -> int:
            return vote(nearest(other, query), neighbours, 3)

        radius = min(radii(NeighbourRule(), votes, threat)[0], 3)
        assert smallest_flip(data, threat, predict, limit=radius) > radius
        certified += radius > 0
    assert certified > 5


# --- Kernel votes -----------------------------------------------------------------------------------------------------

UNIT = 3


def weight(x: int, query: int) -> int:
    return (UNIT, 2, 0)[abs(x - query)]


def scores(data: Data, query: int) -> list[int]:
    return [sum(weight(x, query) for x, y in data if y == label) for label in LABELS]


def kernel_votes(data: Data, query: int) -> Votes:
    counts = scores(data, query)
    own = [weight(x, query) for x, y in data if y == largest(counts)]
    return Votes(
        np.array([counts]), KernelSum(UNIT), evidence={"own": np.array([[own.count(w) for w in range(UNIT + 1)]])}
    )


@pytest.mark.parametrize("threat", Threat)
def test_kernel_votes_are_exact_under_every_poisoning(threat: Threat) -> None:
    limit, found = 3, set()
    for number, data in enumerate(some_data(30, (1, 6), seed=3)):
        query = number % 3
        radius = radii(KernelRule(), kernel_votes(data, query), threat)[0]
        flip = smallest_flip(data, threat, lambda other, query=query: largest(scores(other, query)), limit)
        assert min(radius, limit) < flip
        if threat.is_about_examples:
            assert min(radius, limit) == flip - 1
        found.add(min(radius, limit))
    assert len(found) > 1


def test_the_domain_reaches_every_weight() -> None:
    # Else the exactness above would say little.
    assert {weight(x, query) for x, _ in DOMAIN for query in range(3)} == {0, 2, UNIT}


def kernel_oracle(own: Sequence[int], lead: int, inserted: int) -> int:
    """Largest r whose insertions and dearest deletions take no more than the lead."""
    ordered, radius, taken = sorted(own, reverse=True), 0, 0
    while radius < SEARCH_LIMIT:
        taken += inserted + (ordered[radius] if radius < len(ordered) else 0)
        if taken > lead or (inserted == 0 and radius >= len(ordered)):
            return radius if taken > lead else SEARCH_LIMIT
        radius += 1
    return radius


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(0, 60), st.booleans())
def test_kernel_votes_add_up_the_largest_weights(own: list[int], rival: int, rival_first: bool) -> None:
    mine = sum(own)
    rival = min(rival, mine - rival_first) if mine else 0
    counts = [rival, mine] if rival_first and mine else [mine, rival]
    lead = mine - rival - (1 if rival_first and mine else 0)
    numbers = np.array([[own.count(w) for w in range(10)]])
    votes = Votes(np.array([counts]), KernelSum(9), evidence={"own": numbers})
    assert radii(KernelRule(), votes, Threat.REMOVE) == [kernel_oracle(own, lead, 0)]
    assert radii(KernelRule(), votes, Threat.REPLACE) == [kernel_oracle(own, lead, 9)]
    assert radii(KernelRule(), votes, Threat.ADD) == [lead // 9] == radii(KernelRule(), votes)


def test_kernel_votes_by_hand() -> None:
    votes = Votes(np.array([[100, 30, 0], [30, 100, 0], [0, 0, 0]]), KernelSum(10))
    # Seven insertions make a tie: the smaller label wins it.
    assert radii(KernelRule(), votes) == [7, 6, 0]
    assert KernelRule().decide(votes, Threat.ADD).label.tolist() == [0, 1, 0]


def test_kernel_votes_without_rivals_withstand_every_deletion() -> None:
    votes = Votes(np.array([[6, 0], [0, 6]]), KernelSum(2), evidence={"own": np.array([[5, 2, 2], [5, 2, 2]])})
    # When all is deleted, label 0 wins: label 1 holds as long as one of its four examples is left.
    assert radii(KernelRule(), votes, Threat.REMOVE) == [SEARCH_LIMIT, 3]
    assert radii(KernelRule(), votes, Threat.REPLACE) == [1, 1]


def test_kernel_votes_do_not_overflow() -> None:
    most = 2**53
    votes = Votes(np.array([[most, 0], [0, most]]), KernelSum(1), evidence={"own": np.array([[most, most]] * 2)})
    for threat in Threat:
        assert radii(KernelRule(), votes, threat) == [SEARCH_LIMIT] * 2
    wide = Votes(np.array([[most, 7]]), KernelSum(2**40))
    assert radii(KernelRule(), wide) == [(most - 7) // 2**40]


# --- Bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "votes", "name"),
    [
        (NeighbourRule(), Votes(np.array([[3, 0]]), NearestExamples(3)), "order"),
        (KernelRule(), Votes(np.array([[3, 0]]), KernelSum(3)), "own"),
    ],
    ids=["order", "own"],
)
def test_missing_evidence_is_named(rule: ExactRule, votes: Votes, name: str) -> None:
    with pytest.raises(ConfigError, match=f"needs the evidence '{name}', which these votes do not carry"):
        rule.decide(votes, Threat.REMOVE)


def test_threats_that_need_no_evidence_ask_for_none() -> None:
    assert radii(NeighbourRule(), Votes(np.array([[5, 0]]), NearestExamples(5)), Threat.EDIT) == [2]
    assert radii(KernelRule(), Votes(np.array([[5, 0]]), KernelSum(5)), Threat.ADD) == [1]


@pytest.mark.parametrize(
    ("counts", "order", "message"),
    [
        ([[2, 0]], [[0, 0, 1, 1, 1]], "4 columns"),
        ([[2, 0]], [[0, 0, 1]], "4 columns.*it has 3"),  # cut short, not all there are
        ([[2, 0]], [[0]], "it has 1, and 2 neighbours voted"),
        ([[2, 0]], [[0, 0, 1, 2]], "labels below 2, got 2"),
        ([[2, 0]], [[0, 1, 0, 0]], "not those of the nearest examples"),
        ([[3, 0]], [[0, 0, 0, 0]], "at most 2 neighbours"),
        ([[2, 0]], [0], "examples x any"),
    ],
)
def test_an_order_that_contradicts_the_counts_is_refused(counts: list, order: list, message: str) -> None:
    votes = Votes(np.array(counts), NearestExamples(2), evidence={"order": np.array(order)})
    with pytest.raises(ConfigError, match=message):
        NeighbourRule().decide(votes, Threat.SYMMETRIC_DIFFERENCE)


def test_weights_that_contradict_the_scores_only_beyond_64_bits_are_refused() -> None:
    own = np.zeros((1, 4097), dtype=np.int64)
    own[0, 4], own[0, 4096] = 1, 2**52  # 4 + 2^64
    with pytest.raises(ConfigError, match="add up to the scores"):
        KernelRule().decide(Votes(np.array([[4, 1]]), KernelSum(4096), evidence={"own": own}), Threat.REMOVE)


@pytest.mark.parametrize(
    ("own", "message"),
    [([[0, 1, 1]], "add up to the scores"), ([[0, 0, 2, 0]], "examples x 3"), ([[0, 2**53, 2**53]], "add up")],
)
def test_weights_that_contradict_the_scores_are_refused(own: list, message: str) -> None:
    votes = Votes(np.array([[4, 1]]), KernelSum(2), evidence={"own": np.array(own)})
    with pytest.raises(ConfigError, match=message):
        KernelRule().decide(votes, Threat.REMOVE)


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 2), min_size=7, max_size=7), min_size=1, max_size=5))
def test_more_freedom_for_the_attacker_never_gives_a_larger_radius(orders: list[list[int]]) -> None:
    votes = neighbour_votes([tuple(order) for order in orders], 4, 3)
    by_threat = {threat: NeighbourRule().decide(votes, threat).radius for threat in Threat}
    for smaller, larger in [
        (Threat.ADD, Threat.SYMMETRIC_DIFFERENCE),
        (Threat.REMOVE, Threat.SYMMETRIC_DIFFERENCE),
        (Threat.SYMMETRIC_DIFFERENCE, Threat.EDIT),
        (Threat.LABELS, Threat.REPLACE),
    ]:
        assert (by_threat[smaller] >= by_threat[larger]).all()
    assert (by_threat[Threat.EDIT] >= by_threat[Threat.SYMMETRIC_DIFFERENCE] // 2).all()
