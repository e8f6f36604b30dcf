"""Nearest neighbours and kernel votes against brute force: every poisoning of every tiny data set."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_partitions import DOMAIN, LABELS, Data, histogram, largest, radii, smallest_flip, some_data

from mithridate.auditing.routes import Claim, recheck
from mithridate.core.mechanism import SEARCH_LIMIT, Threat, mechanism_from_dict
from mithridate.core.rule import Decision, ExactRule
from mithridate.core.votes import Votes
from mithridate.defences.kernel import KernelRule, KernelSum
from mithridate.defences.neighbours import Lead, NearestExamples, NeighbourRule
from mithridate.errors import ConfigError

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


# --- Several scales ---------------------------------------------------------------------------------------------------


def scaled_votes(orders: Sequence[Order], mechanism: NearestExamples, classes: int) -> Votes:
    counts = histogram([order[: mechanism.most] for order in orders], classes)
    return Votes(counts, mechanism, evidence={"order": np.array([order[: mechanism.shown] for order in orders])})


def scaled_vote(order: Order, mechanism: NearestExamples, classes: int) -> int:
    """The definition, scale by scale."""
    for neighbours, lead in mechanism.scales:
        counts = [order[:neighbours].count(label) for label in range(classes)]
        first = largest(counts)
        needed = lead[first] if isinstance(lead, tuple) else lead
        if all(counts[first] - counts[b] - (b < first) >= needed for b in range(classes) if b != first):
            return first
    raise AssertionError


def withstands(order: Order, mechanism: NearestExamples, classes: int, threat: Threat, radius: int) -> bool:
    """Whether no list within the radius changes the prediction, by trying all."""
    label = scaled_vote(order, mechanism, classes)
    seen, frontier = {order}, {order}
    for _ in range(radius):
        frontier = {other for known in frontier for other in changed_orders(known, threat, classes)} - seen
        if any(scaled_vote(other, mechanism, classes) != label for other in frontier):
            return False
        seen |= frontier
    return True


SCALES = [
    (2, NearestExamples((2, 1), 2, (1,)), 3),
    (3, NearestExamples((3, 1), 3, (1,)), 3),
    (4, NearestExamples((3, 1), 4, (1,)), 3),
    (5, NearestExamples((4, 2), 5, (2,)), 2),
    (5, NearestExamples((5, 3, 1), 5, (3, 2)), 3),
    (6, NearestExamples((3, 2, 1), 6, (1, 2)), 2),
    (7, NearestExamples((5, 3), 7, (1,)), 2),
    (7, NearestExamples((5, 3, 1), 7, (2, 2)), 2),
    (8, NearestExamples((7, 5, 3), 8, (2, 2)), 2),
    (8, NearestExamples((8, 3), 8, (5,)), 3),
    # By label.
    (4, NearestExamples((4, 1), 4, ((2, 1, 4),)), 3),
    (5, NearestExamples((5, 3, 1), 5, ((1, 3, 2), 1)), 3),
    (6, NearestExamples((6, 4, 2), 6, (3, (1, 2, 4))), 3),
    (7, NearestExamples((5, 3), 7, ((5, 1),)), 2),
    (8, NearestExamples((7, 4, 1), 8, ((1, 3), (4, 1))), 2),
]


def is_confirmed(votes: Votes, threat: Threat, found: Decision) -> bool:
    """Whether the auditor confirms all labels and radii."""
    claim = Claim(votes.mechanism, "nearest-neighbours", threat, found.label, found.radius, votes.counts)
    return not recheck(replace(claim, evidence=votes.evidence)).any()


@pytest.mark.parametrize("threat", [*EXAMPLE_THREATS, Threat.LABELS])
@pytest.mark.parametrize(("length", "mechanism", "classes"), SCALES)
def test_several_scales_withstand_every_poisoning(
    length: int, mechanism: NearestExamples, classes: int, threat: Threat
) -> None:
    orders = list(product(range(classes), repeat=length))
    votes = scaled_votes(orders, mechanism, classes)
    found = NeighbourRule().decide(votes, threat)
    assert found.label.tolist() == [scaled_vote(order, mechanism, classes) for order in orders]
    assert found.radius.min() >= 0
    assert is_confirmed(votes, threat, found)
    chosen = np.flatnonzero(found.radius)
    random = np.random.default_rng(length)
    for place in random.permutation(chosen)[:12]:
        radius = min(int(found.radius[place]), 2 if threat in (Threat.EDIT, Threat.REPLACE) else 3)
        assert withstands(orders[place], mechanism, classes, threat, radius)
    if threat in (Threat.ADD, Threat.REMOVE, Threat.SYMMETRIC_DIFFERENCE) and length > 2:
        assert len(chosen)


@pytest.mark.parametrize("lead", [2, (1, 3)])
def test_the_radius_of_several_scales_is_nearly_the_largest(lead: Lead) -> None:
    """Not a claim of ours, but a rule that always said 0 would pass the tests above."""
    mechanism, orders = NearestExamples((5, 3), 7, (lead,)), list(product(range(2), repeat=7))
    found = radii(NeighbourRule(), scaled_votes(orders, mechanism, 2))
    symmetric = Threat.SYMMETRIC_DIFFERENCE
    larger = sum(withstands(o, mechanism, 2, symmetric, r + 1) for o, r in zip(orders, found, strict=True))
    assert larger < len(orders) // 10


def random_leads(random: np.random.Generator, neighbours: Sequence[int], classes: int) -> tuple[Lead, ...]:
    drawn = [random.integers(1, count, size=classes, endpoint=True) for count in neighbours[:-1]]
    return tuple(tuple(int(number) for number in lead) for lead in drawn)


@pytest.mark.parametrize("threat", [Threat.ADD, Threat.REMOVE, Threat.SYMMETRIC_DIFFERENCE])
def test_leads_by_label_withstand_every_poisoning_of_every_list(threat: Threat) -> None:
    random, certified = np.random.default_rng(11), 0
    for neighbours in [(3, 1), (4, 2), (4, 3, 1), (4, 3, 2)]:
        mechanism = NearestExamples(neighbours, 4, random_leads(random, neighbours, 3))
        orders = list(product(range(3), repeat=4))
        found = NeighbourRule().decide(scaled_votes(orders, mechanism, 3), threat)
        for order, radius in zip(orders, found.radius.tolist(), strict=True):
            assert withstands(order, mechanism, 3, threat, min(radius, 2))
            certified += radius > 0
    assert certified > 30


@pytest.mark.parametrize("threat", Threat)
def test_no_poisoning_changes_a_certified_vote_at_several_scales(threat: Threat) -> None:
    certified = 0
    for number, data in enumerate(some_data(40, (5, 9), seed=5)):
        query = number % 3
        mechanism = [
            NearestExamples((5, 3, 1), len(data), (3, 1)),
            NearestExamples((5, 2), len(data), (2,)),
            NearestExamples((5, 3), len(data), ((1, 4, 2),)),
        ][number % 3]

        def predict(other: Data, query: int = query, mechanism: NearestExamples = mechanism) -> int:
            return scaled_vote(nearest(other, query), mechanism, 3)

        radius = min(radii(NeighbourRule(), scaled_votes([nearest(data, query)], mechanism, 3), threat)[0], 3)
        assert smallest_flip(data, threat, predict, limit=radius) > radius
        certified += radius > 0
    assert certified > 5


@st.composite
def scaled_orders(draw: st.DrawFn) -> tuple[list[Order], NearestExamples]:
    voters = sorted(draw(st.sets(st.integers(1, 14), min_size=1, max_size=4)), reverse=True)
    needed = [draw(lead | st.tuples(lead, lead, lead)) for lead in (st.integers(1, count) for count in voters[:-1])]
    length = draw(st.integers(voters[0], 3 * voters[0]))
    row = st.lists(st.sampled_from([0, 0, 1, 1, 1, 2]), min_size=length, max_size=length)
    orders = [tuple(order) for order in draw(st.lists(row, min_size=1, max_size=4))]
    return orders, NearestExamples(tuple(voters), length, tuple(needed))


@given(scaled_orders(), st.sampled_from(list(Threat)))
def test_the_auditor_confirms_several_scales(case: tuple[list[Order], NearestExamples], threat: Threat) -> None:
    votes = scaled_votes(*case, 3)
    found = NeighbourRule().decide(votes, threat)
    assert found.label.tolist() == [scaled_vote(order, case[1], 3) for order in case[0]]
    assert is_confirmed(votes, threat, found)


@given(scaled_orders(), st.sampled_from([Threat.ADD, Threat.SYMMETRIC_DIFFERENCE, Threat.EDIT]))
def test_scales_that_agree_are_no_weaker_than_the_weakest(
    case: tuple[list[Order], NearestExamples], threat: Threat
) -> None:
    orders, mechanism = case
    found = NeighbourRule().decide(scaled_votes(orders, mechanism, 3), threat)
    alone = [
        NeighbourRule().decide(scaled_votes(orders, NearestExamples(neighbours, len(orders[0])), 3), threat)
        for neighbours, _ in mechanism.scales
    ]
    agree = np.all([one.label == found.label for one in alone], axis=0)
    assert (found.radius >= np.min([one.radius for one in alone], axis=0))[agree].all()
    if not mechanism.leads:
        assert found.radius.tolist() == alone[0].radius.tolist()


def test_several_scales_by_hand() -> None:
    mechanism = NearestExamples((9, 3), 40, (4,))
    # Nine votes for label 0, whose lead has to stay 4 or more: an insertion takes a 0 away and gives a 1.
    # Else three voters decide, who withstand one insertion: the nine are then 0's by 7 : 2, a lead of 5.
    assert radii(NeighbourRule(), scaled_votes([(0,) * 40], mechanism, 2)) == [2]
    # The nine say 0 by 5 : 4, which is not enough, and the three say 1, by 3 : 0. One change leaves both so.
    split = (1, 1, 1, 0, 0, 0, 0, 0, 1) + (0, 1) * 15
    assert scaled_vote(split, mechanism, 2) == 1
    assert radii(NeighbourRule(), scaled_votes([split], mechanism, 2)) == [1]
    # Two labels dispute the first scale by 10 : 10, where 3 are needed, so the five nearest decide. Two inserted 1
    # drive out a 2 and a 1, 11 : 9; three drive out two 2 and a 1, 12 : 8, enough for an answer.
    disputed = NearestExamples((25, 5), 25, (3,))
    order = (0,) * 5 + (1, 2) * 10
    assert scaled_vote(order, disputed, 3) == 0
    assert scaled_vote((1,) * 2 + order, disputed, 3) == 0
    assert scaled_vote((1,) * 3 + order, disputed, 3) == 1
    assert radii(NeighbourRule(), scaled_votes([order], disputed, 3), Threat.ADD) == [2]


def test_leads_by_label_by_hand() -> None:
    few, many = (1,) + (0,) * 5 + (1,) * 34, (0,) + (1,) * 39
    # Of nine votes, label 0 needs a lead of 1 and label 1 one of 8; else the example next to the input decides.
    mechanism = NearestExamples((9, 1), 40, ((1, 8),))
    # In the first list 0 leads by 5 : 4. Three inserted 1 drive out three 1, a fourth one drives out a 0.
    # In the second one 1 leads by 8 : 1, which loses ties, so by 6. That is too little, and an insertion comes nearest.
    found = NeighbourRule().decide(scaled_votes([few, many], mechanism, 2), Threat.ADD)
    assert (found.label.tolist(), found.radius.tolist()) == ([0, 0], [3, 0])
    # The other way round, the first list is left to the nearest. In the second one, 6 : 3 is a lead of 2, 5 : 4 of 0.
    found = NeighbourRule().decide(scaled_votes([few, many], replace(mechanism, leads=((8, 1),)), 2), Threat.ADD)
    assert (found.label.tolist(), found.radius.tolist()) == ([1, 1], [0, 2])


@given(scaled_orders(), st.sampled_from(list(Threat)))
def test_equal_leads_by_label_are_one_lead(case: tuple[list[Order], NearestExamples], threat: Threat) -> None:
    orders, mechanism = case
    smallest = tuple(min(lead) if isinstance(lead, tuple) else lead for lead in mechanism.leads)
    plain = replace(mechanism, leads=smallest)
    spelt = replace(mechanism, leads=tuple((lead,) * 3 for lead in smallest))
    one, other = (NeighbourRule().decide(scaled_votes(orders, each, 3), threat) for each in (plain, spelt))
    assert one.label.tolist() == other.label.tolist()
    assert one.radius.tolist() == other.radius.tolist()


def test_several_scales_of_many_neighbours() -> None:
    # More examples than one chunk holds, and leads beyond two bytes.
    mechanism = NearestExamples((20000, 10), None, (12000,))
    votes = Votes(np.array([[20000, 0]] * 60), mechanism, evidence={"order": np.zeros((60, 40000), dtype=np.uint8)})
    # 20000 - 2 r >= 12000; that the ten next to the input cannot help against four thousand is plain.
    assert set(radii(NeighbourRule(), votes)) == {4000}
    assert set(radii(NeighbourRule(), votes, Threat.EDIT)) == {4000}


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
        if threat not in (Threat.LABELS, Threat.FEATURES):
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


def test_several_scales_need_the_order_under_every_threat() -> None:
    votes = Votes(np.array([[5, 0]]), NearestExamples((5, 3), leads=(2,)))
    with pytest.raises(ConfigError, match="evidence 'order'"):
        NeighbourRule().decide(votes, Threat.EDIT)


@pytest.mark.parametrize(
    ("neighbours", "leads", "message"),
    [
        ((5, 5), (1,), "every number of neighbours to be below the one before"),
        ((5, 3, 4), (1, 1), "below the one before"),
        ((5, 3), (), "a lead for every number of neighbours but the last"),
        (5, (1,), "a lead for every number of neighbours but the last"),
        ((), (), "a lead for every number of neighbours but the last"),
        ((5, 3), (6,), "5 neighbours cannot lead by 6"),
        ((5, 3, 2), (5, 4), "3 neighbours cannot lead by 4"),
        ((5, 3), (0,), "leads to be a whole number of at least 1"),
        ((5, 0), (1,), "neighbours to be a whole number of at least 1"),
        ((5, 2.5), (1,), "neighbours to be a whole number"),
        ((5, "3"), (1,), "neighbours to be a whole number"),
        ((5, 3), (True,), "leads to be a whole number"),
        ("53", (1,), "neighbours to be a whole number"),
        ((5, 3), "1", "leads as a list of whole numbers"),
        ((5, 3), 1, "leads as a list of whole numbers"),
        ((5, 3), None, "leads as a list of whole numbers"),
        ((5, 3), ((1, 6),), "5 neighbours cannot lead by 6"),
        ((5, 3), ((1, 0),), "leads to be a whole number of at least 1"),
        ((5, 3), ((1, -2),), "leads to be a whole number of at least 1"),
        ((5, 3), ((1, 1.5),), "leads to be a whole number"),
        ((5, 3), (("1", 1),), "leads to be a whole number"),
        ((5, 3), (((1, 1), 1),), "leads to be a whole number"),
        ((5, 3), ((),), "got an empty list"),
        ((5, 3, 1), ((1, 1), (1, 1, 1)), "the same number of labels at every scale"),
        (5, ((1, 1),), "a lead for every number of neighbours but the last"),
    ],
)
def test_scales_that_make_no_sense_are_refused(neighbours: Any, leads: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NearestExamples(neighbours, None, leads)


def test_scales_too_long_for_an_error_are_refused() -> None:
    huge = 1 << 20_000  # TOML has such numbers in base 16, and Python does not write them in base 10.
    for neighbours, leads in [
        ((5, 3), huge),
        ((5, 3, 1), (huge,)),
        ((5, 3), ((huge, 1),)),
        ((5, 3), (((huge,), 1),)),
        (((huge,), 3), (1,)),
        ((5, 3), ((1,) * 1000, 1)),
        (tuple(range(1, 1000)), ()),
    ]:
        with pytest.raises(ConfigError) as refused:
            NearestExamples(cast("Any", neighbours), None, cast("Any", leads))
        assert len(str(refused.value)) < 300


def test_leads_for_another_number_of_labels_are_refused() -> None:
    mechanism, order = NearestExamples((5, 3), 9, ((1, 2),)), np.zeros((1, 9), dtype=np.int64)
    with pytest.raises(ConfigError, match=r"a lead for each of 3 labels, got 2: \[1, 2\]"):
        Votes(np.array([[5, 0, 0]]), mechanism, evidence={"order": order})


def test_scales_may_be_arrays() -> None:
    plain = NearestExamples((9, 3, 2), 40, ((4, 9, 1), (1, 1, 2)))
    assert NearestExamples(np.array([9, 3, 2]), 40, np.array([[4, 9, 1], [1, 1, 2]])) == plain  # pyright: ignore[reportArgumentType]
    assert NearestExamples((9, 3, 2), 40, (np.array([4, 9, 1]), (1, 1, 2))) == plain  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="leads to be a whole number"):
        NearestExamples((9, 3), 40, np.array([1.5]))  # pyright: ignore[reportArgumentType]


def test_several_scales_need_as_many_examples_as_vote() -> None:
    assert NearestExamples(5, 4).shown == 4
    with pytest.raises(ConfigError, match="4 training examples, fewer than neighbours=5"):
        NearestExamples((5, 3), 4, (2,))


def test_scales_are_read_back() -> None:
    for leads in ((4, 1), ((4, 9, 1), 1), ((4, 4, 4), (1, 2, 3))):
        mechanism = NearestExamples((9, 3, 2), 40, leads)
        assert mechanism_from_dict(json.loads(json.dumps(mechanism.to_dict()))) == mechanism
        assert mechanism.leads == leads
    assert NearestExamples((9,), 40) == NearestExamples(9, 40)
    # Files of one scale stay what they were.
    assert NearestExamples(9, 40).to_dict() == {"type": "nearest-examples", "neighbours": 9, "num_train": 40}


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
