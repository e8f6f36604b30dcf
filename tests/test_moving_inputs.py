"""Inputs that move, for nearest neighbours: against every set, every poisoning, and inputs that really move."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise, permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from mithridate import certify, verify
from mithridate._io.artifacts import write_hashed
from mithridate.auditing.routes import Claim, NoSecondRouteError, recheck
from mithridate.core.certificate import SCHEMA
from mithridate.core.mechanism import SEARCH_LIMIT, Threat
from mithridate.core.votes import Votes
from mithridate.data.examples import Examples, as_examples
from mithridate.data.units import Units
from mithridate.defences._moves import LACKS, LENGTHS, ORDER, FirstSets, Intervals
from mithridate.defences._nearness import StoredExamples
from mithridate.defences._whole_rows import LARGEST_PRODUCT
from mithridate.defences.kernel import Exponential, KernelVote, kernel_votes
from mithridate.defences.neighbours import NearestExamples, NearestNeighbours, NeighbourRule, neighbour_votes
from mithridate.defences.partitions import Partitioned
from mithridate.errors import ArtifactError, ConfigError
from mithridate.features import HashedWords

Ends = tuple[list[float], list[float]]
# Whole numbers that a feature of 1 becomes in two columns, and the entries that rounding moves.
SCALE, COLUMNS = 4094, 2


# --- Sets that may come first -----------------------------------------------------------------------------------------


def may_come_first(chosen: Sequence[int], low: Sequence[float], high: Sequence[float]) -> bool:
    """By definition: every one of them can be before every other one, at the same time."""
    others = [each for each in range(len(low)) if each not in chosen]
    return all(high[mine] >= low[other] for mine, other in product(chosen, others))


def least_of_all_sets(order: Sequence[int], ends: Ends, size: int, own: int, rival: int, weights: Any) -> int:
    """The smallest lead of a label over another in any set of this size that may come first."""
    return min(
        weights[0] * sum(order[at] == own for at in chosen) - weights[1] * sum(order[at] == rival for at in chosen)
        for chosen in combinations(range(len(order)), size)
        if may_come_first(chosen, *ends)
    )


@st.composite
def lists_with_ends(draw: st.DrawFn) -> tuple[list[int], Ends]:
    """Labels of a few examples, and ends of their intervals that fall, with many that are equal."""
    order = draw(st.lists(st.integers(0, 2), min_size=1, max_size=8))
    centre = sorted(draw(st.lists(st.integers(0, 12), min_size=len(order), max_size=len(order))), reverse=True)
    widths = sorted(draw(st.lists(st.integers(0, 4), min_size=len(order), max_size=len(order))))
    low = np.minimum.accumulate(np.array(centre) - widths).tolist()
    high = np.minimum.accumulate(np.array(centre) + widths[::-1]).tolist()
    return order, (low, np.maximum(low, high).tolist())


@settings(max_examples=300)
@given(lists_with_ends(), st.sampled_from([(1, 1), (3, 1), (1, 3), (2, 5)]))
def test_the_least_lead_is_that_of_some_set_and_of_none_a_smaller(
    case: tuple[list[int], Ends], weights: tuple[int, int]
) -> None:
    order, ends = case
    sets = FirstSets(np.array(order), Intervals(*map(np.array, ends)), 3, 0)
    sizes = np.arange(len(order) + 1)
    for own, rival in product(range(3), repeat=2):
        if own != rival:
            wanted = [least_of_all_sets(order, ends, size, own, rival, weights) for size in sizes.tolist()]
            assert sets.least(own, rival, weights, sizes).tolist() == wanted


@given(lists_with_ends(), st.integers(1, 4), st.lists(st.integers(0, 2), min_size=4, max_size=4))
def test_examples_that_are_not_kept_are_taken_for_the_worst(
    case: tuple[list[int], Ends], unseen: int, labels: list[int]
) -> None:
    order, (low, high) = case
    sets = FirstSets(np.array(order), Intervals(np.array(low), np.array(high)), 3, unseen)
    whole = order + labels[:unseen]
    rest = ([*low, *[-100.0] * unseen], [*high, *[high[-1]] * unseen])
    sizes = np.arange(len(order) + 1)
    found = sets.least(0, 1, (1, 1), sizes)
    # Whatever they are; and there is nothing worse than that all of them are of the rival.
    assert all(found <= [least_of_all_sets(whole, rest, size, 0, 1, (1, 1)) for size in sizes.tolist()])
    worst = [least_of_all_sets(order + [1] * unseen, rest, size, 0, 1, (1, 1)) for size in sizes.tolist()]
    assert found.tolist() == worst


# --- The rule, by every poisoning and every move ----------------------------------------------------------------------


def ends_of(products: Sequence[int], own: int, longest: int, voters: int, change: float) -> Ends:
    """The intervals as the theorem has them, in plain arithmetic."""
    toward = min(max(products[min(voters, len(products)) - 1] / own, 0.0), 1.0) if own else 0.0
    bound = SCALE * change + math.sqrt(COLUMNS) + 2**-10

    def width(dots: Any) -> Any:
        return bound * np.sqrt(np.maximum(longest + toward**2 * own - 2 * toward * np.array(dots), 0.0))

    tried = np.linspace(-(2**24), 2**24, 20001)
    reached = tried + width(tried)
    # The largest upper end of all products that are no larger.
    high = [max(dot + float(width(dot)), reached[tried <= dot].max()) for dot in products]
    return (np.array(products) - width(products)).tolist(), high


def moved_votes(order: Sequence[int], products: Sequence[int], neighbours: int, classes: int) -> Votes:
    """Votes of one input whose row, and those of all examples, have norm 2^12 at most."""
    shown, kept = order[: 2 * neighbours], order[: max(4 * neighbours, 4096)]
    counts = np.bincount(order[:neighbours], minlength=classes)[None, :]
    lacks = LARGEST_PRODUCT - np.array(products[: len(kept)])
    evidence = {"order": [shown], ORDER: [kept], LACKS: [lacks], LENGTHS: [[4090**2, 4095**2, SCALE, COLUMNS]]}
    named = {name: np.array(values) for name, values in evidence.items()}
    return Votes(counts, NearestExamples(neighbours, len(order)), evidence=named)


def splits(threat: Threat, radius: int) -> Iterator[tuple[int, int]]:
    """How many examples so many units insert and delete."""
    for inserted, deleted in product(range(radius + 1), repeat=2):
        match threat:
            case Threat.ADD:
                allowed = deleted == 0
            case Threat.REMOVE:
                allowed = inserted == 0
            case Threat.SYMMETRIC_DIFFERENCE:
                allowed = inserted + deleted <= radius
            case Threat.REPLACE:
                allowed = inserted == deleted
            case _:
                allowed = True
        if allowed:
            yield inserted, deleted


def withstands(order: list[int], ends: Ends, neighbours: int, weights: Sequence[int], threat: Threat, r: int) -> bool:
    """Whether no poisoning and no move of the products, each by itself, changes the label."""
    low, high = ends

    def winner(voters: Sequence[int]) -> int:
        votes = [weight * list(voters).count(label) for label, weight in enumerate(weights)]
        return votes.index(max(votes))

    label = winner(order[:neighbours])
    everyone = range(len(order))
    for inserted, deleted in splits(threat, r):
        for gone in combinations(everyone, min(deleted, len(order))):
            left = [at for at in everyone if at not in gone]
            for new, rival in product(range(min(inserted, neighbours) + 1), range(len(weights))):
                if new < inserted and new + len(left) < neighbours:
                    continue  # all that are inserted vote where there is room
                old = min(neighbours - new, len(left))
                for chosen in combinations(left, old):
                    others = [at for at in left if at not in chosen]
                    possible = all(high[mine] >= low[other] for mine, other in product(chosen, others))
                    if possible and winner([order[at] for at in chosen] + [rival] * new) != label:
                        return False
    return True


def confirmed(votes: Votes, threat: Threat, change: float, rule: NeighbourRule, radius: int) -> bool:
    """Whether the auditor confirms so large a radius."""
    label, options = rule.decide(votes, threat).label, {"class_weights": rule.class_weights}
    claim = Claim(votes.mechanism, rule.name, threat, label, np.array([radius]), votes.counts, options, votes.evidence)
    return not recheck(replace(claim, input_change=change)).any()


def random_lists(number: int, longest: int, seed: int) -> Iterator[tuple[list[int], list[int], int, int]]:
    random = np.random.default_rng(seed)
    for _ in range(number):
        length, classes = int(random.integers(1, longest + 1)), int(random.integers(2, 4))
        leaning = random.dirichlet(np.full(classes, 0.7))
        order = random.choice(classes, length, p=leaning).tolist()
        spread = random.choice([1e5, 2e6, 8e6])
        products = np.sort(random.uniform(1.6e7 - spread, 1.6e7, length).astype(int))[::-1].tolist()
        yield order, products, int(random.integers(1, 5)), classes


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize(
    "threat", [Threat.ADD, Threat.REMOVE, Threat.SYMMETRIC_DIFFERENCE, Threat.REPLACE, Threat.EDIT]
)
def test_radii_of_moved_inputs_are_exact_in_the_relaxation(threat: Threat, weighed: bool) -> None:
    found: list[int] = []
    for number, (order, products, neighbours, classes) in enumerate(random_lists(40, 5 if weighed else 6, seed=3)):
        neighbours = min(neighbours, len(order))
        votes = moved_votes(order, products, neighbours, classes)
        weights = [1 + (number + at) % 3 for at in range(classes)] if weighed else [1] * classes
        rule = NeighbourRule(class_weights=tuple(weights)) if weighed else NeighbourRule()
        for change in (0.002, 0.05, 0.3, 5.0):
            ends = ends_of(products, 4090**2, 4095**2, neighbours, change)
            if change >= 4:
                ends = [-math.inf] * len(order), [math.inf] * len(order)
            radius = int(rule.decide_moved(votes, threat, change).radius[0])
            shown = min(radius, len(order))
            assert shown < 0 or withstands(order, ends, neighbours, weights, threat, shown), (order, change)
            # Nothing larger holds, but for what deletions do behind the examples that the rule looks at.
            if radius < len(order):
                is_beyond = threat is Threat.REMOVE and radius >= neighbours and len(order) >= 2 * neighbours
                assert is_beyond or not withstands(order, ends, neighbours, weights, threat, radius + 1)
            # The auditor thinks of third labels as well, which leaves no more to claim with one scale.
            assert confirmed(votes, threat, change, rule, radius)
            if radius < len(order):
                more = confirmed(votes, threat, change, rule, radius + 1)
                assert not more or withstands(order, ends, neighbours, weights, threat, radius + 1)
            found.append(radius)
    assert min(found) == -1
    assert sum(radius >= 1 for radius in found) > 10


# --- Several scales ---------------------------------------------------------------------------------------------------


def possible_orders(low: Sequence[float], high: Sequence[float], left: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every order in which the relaxation may put some examples."""
    for order in permutations(left):
        if all(high[before] >= low[after] for before, after in combinations(order, 2)):
            yield order


def answer(labels: Sequence[int], mechanism: NearestExamples, classes: int) -> int:
    """What the first scale that leads by enough says, as the docstring of `NearestExamples` has it."""
    for voters, needed in zip(mechanism.scales, mechanism.needed(classes), strict=True):
        votes = [list(labels[: voters[0]]).count(label) for label in range(classes)]
        for label in range(classes):
            rivals = [other for other in range(classes) if other != label]
            if all(votes[label] - votes[other] - (other < label) >= needed[label] for other in rivals):
                return label
    raise AssertionError


def withstands_at_scales(order: list[int], ends: Ends, mechanism: NearestExamples, threat: Threat, r: int) -> bool:
    label = answer(order, mechanism, 3)
    for inserted, deleted in splits(threat, r):
        for gone in combinations(range(len(order)), min(deleted, len(order))):
            left = [at for at in range(len(order)) if at not in gone]
            for found in possible_orders(*ends, left):
                for new in product(range(3), repeat=inserted):
                    if answer([*new, *(order[at] for at in found)], mechanism, 3) != label:
                        return False
    return True


@pytest.mark.parametrize("threat", [Threat.ADD, Threat.REMOVE, Threat.SYMMETRIC_DIFFERENCE, Threat.REPLACE])
@pytest.mark.parametrize(("neighbours", "leads"), [((4, 1), (2,)), ((5, 3), ((1, 3, 2),)), ((5, 3, 2), (3, 1))])
def test_several_scales_withstand_every_poisoning_and_every_move(threat: Threat, neighbours: Any, leads: Any) -> None:
    random, tight = np.random.default_rng(11), 0
    for _ in range(60):
        order = random.choice(3, 6, p=random.dirichlet([0.8, 0.8, 0.8])).tolist()
        products = np.sort(random.uniform(1.2e7, 1.6e7, 6).astype(int))[::-1].tolist()
        change = float(random.choice([0.002, 0.03, 0.08, 0.2]))
        votes = moved_votes(order, products, neighbours[0], 3)
        votes = replace(votes, mechanism=NearestExamples(neighbours, 6, leads))
        found = NeighbourRule().decide_moved(votes, threat, change)
        assert confirmed(votes, threat, change, NeighbourRule(), max(int(found.radius[0]), -1))
        # Each scale has a number t of its own; what holds in the relaxation of one of them holds for inputs that move.
        every = [ends_of(products, 4090**2, 4095**2, voters, change) for voters in neighbours]
        ends = np.max([low for low, _ in every], axis=0).tolist(), np.min([high for _, high in every], axis=0).tolist()
        radius = int(found.radius[0])
        assert radius < 0 or withstands_at_scales(order, ends, votes.mechanism, threat, min(radius, 1))  # pyright: ignore[reportArgumentType]
        tight += radius < 0 and not withstands_at_scales(order, ends, votes.mechanism, threat, 0)  # pyright: ignore[reportArgumentType]
    assert tight > 3


# --- Intervals --------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.floats(0, 3.14), min_size=1, max_size=30),
    st.integers(3000, 4096),
    st.integers(0, 4096),
    st.integers(1, 40),
    st.floats(1e-6, 3.9),
)
@example([0.0, 0.01, 0.1, 1.0], 4090, 4090, 1, 0.3)
def test_ends_fall_with_the_rank_however_near_examples_are(
    angles: list[float], longest: int, own: int, voters: int, change: float
) -> None:
    def products(at: Any) -> Any:
        return np.floor(longest * own * np.cos(at))

    kept, lengths = products(np.sort(angles)), np.array([own**2, longest**2, 4090, 100])
    within = Intervals.of((LARGEST_PRODUCT - kept).astype(np.int64), lengths, voters, change)
    assert (np.diff(within.low) <= 0).all()
    assert (np.diff(within.high) <= 0).all()
    # Examples that are not kept have any smaller product, and reach no higher than the last that is.
    near = np.append(kept[-1], products(np.linspace(max(angles), np.pi, 200)))
    toward = min(max(float(kept[min(voters, len(kept)) - 1]) / own**2, 0.0), 1.0) if own else 0.0
    far = (4090 * change + 10) * np.sqrt(np.maximum(longest**2 + toward**2 * own**2 - 2 * toward * near, 0.0))
    assert (near + far <= within.high[-1]).all()


def test_examples_behind_copies_of_the_input_may_come_before_them() -> None:
    """Copies hardly move toward the input or away from it, and what is not shown may be anywhere behind them."""
    votes = moved_votes([0] * 5000, [4090**2 - at for at in range(5000)], 1, 2)
    assert votes.evidence[ORDER].shape == (1, 4096)
    votes = replace(votes, evidence={**votes.evidence, LENGTHS: np.array([[4090**2, 4090**2, SCALE, COLUMNS]])})
    rule = NeighbourRule()
    assert rule.decide_moved(votes, Threat.REMOVE, 0.3).radius.tolist() == [-1]
    assert not confirmed(votes, Threat.REMOVE, 0.3, rule, 0)
    # Without them there are no others.
    alone = replace(votes, mechanism=NearestExamples(1, 4096))
    assert rule.decide_moved(alone, Threat.ADD, 0.3).radius.tolist() == [0]
    alone = replace(
        alone,
        evidence={**votes.evidence, ORDER: votes.evidence[ORDER][:, :4], LACKS: votes.evidence[LACKS][:, :4]},
        mechanism=NearestExamples(1, 4),
    )
    assert rule.decide_moved(alone, Threat.REMOVE, 0.3).radius.tolist() == [1]
    assert confirmed(alone, Threat.REMOVE, 0.3, rule, SEARCH_LIMIT)  # all that there is has label 0


# --- Inputs that really move ------------------------------------------------------------------------------------------

ANGLES = np.linspace(0, np.pi, 9)
DOMAIN = [(np.array([np.cos(angle), np.sin(angle)]), label) for angle in ANGLES for label in (0, 1)]
Example = tuple[np.ndarray, int]


def voted(data: Sequence[Example], inputs: np.ndarray, **options: Any) -> Votes:
    x, y = np.array([each for each, _ in data]), np.array([label for _, label in data])
    stored = StoredExamples.of(as_examples((x, y), "training", need_labels=True, classes=2), None, 2)
    return neighbour_votes(stored, inputs, **options)


def changed(data: list[Example], threat: Threat) -> Iterator[list[Example]]:
    """Every data set that one unit of a threat makes of another."""
    if threat in (Threat.ADD, Threat.SYMMETRIC_DIFFERENCE, Threat.EDIT):
        yield from ([*data, new] for new in DOMAIN)
    for place in range(len(data)):
        rest = data[:place] + data[place + 1 :]
        if threat in (Threat.REMOVE, Threat.SYMMETRIC_DIFFERENCE, Threat.EDIT):
            yield rest
        if threat in (Threat.REPLACE, Threat.EDIT):
            yield from ([*rest, new] for new in DOMAIN)
        if threat is Threat.LABELS:
            yield [*rest, (data[place][0], 1 - data[place][1])]


def poisoned(data: list[Example], threat: Threat, radius: int) -> Iterator[list[Example]]:
    """Every data set within so many units, with repetitions."""
    yield data
    if radius:
        for other in changed(data, threat):
            yield from poisoned(other, threat, radius - 1)


def moved_to(angle: float, change: float) -> np.ndarray:
    """Inputs in all directions whose rows of norm 1 are within a distance, with those at the very end."""
    farthest = 2 * np.arcsin(min(change / 2, 1.0))
    angles = angle + np.linspace(-farthest, farthest, 401)
    return np.column_stack([np.cos(angles), np.sin(angles)])


def winners_of(votes: Votes, options: dict[str, Any]) -> set[int]:
    if "leads" in options:
        return set(NeighbourRule().decide(votes, Threat.ADD).label.tolist())
    return set(votes.counts.argmax(axis=1).tolist())


@pytest.mark.parametrize("options", [{"neighbours": 3}, {"neighbours": (5, 3), "leads": (2,)}], ids=["one", "several"])
@pytest.mark.parametrize("threat", [*(each for each in Threat if each is not Threat.FEATURES)])
def test_no_poisoning_and_no_move_together_change_a_certified_label(threat: Threat, options: dict[str, Any]) -> None:
    random = np.random.default_rng(list(Threat).index(threat))
    certified, broken = 0, 0
    for _ in range(12):
        # Labels go with the angle, but for a few.
        places = random.integers(0, 9, 8)
        data = [DOMAIN[2 * at + int((at > 4) != (random.random() < 0.1))] for at in places]
        angle, change = float(random.uniform(0, np.pi)), float(random.choice([0.01, 0.1, 0.4]))
        here = np.array([[np.cos(angle), np.sin(angle)]])
        votes = voted(data, here, moving_inputs=True, **options)
        found = NeighbourRule().decide_moved(votes, threat, change)
        radius, label = int(found.radius[0]), int(found.label[0])
        inputs = moved_to(angle, change)
        most = 2 if threat in (Threat.REMOVE, Threat.LABELS) else 1
        for other in poisoned(data, threat, min(radius, most)) if radius >= 0 else ():
            assert winners_of(voted(other, inputs, **options), options) == {label}
        certified += radius > 0
        broken += winners_of(voted(data, moved_to(angle, 1.5), **options), options) != {label}
    assert certified
    assert broken


@pytest.mark.parametrize("columns", [3, 30])
def test_no_direction_moves_a_product_out_of_its_interval(columns: int) -> None:
    random = np.random.default_rng(columns)
    x, y = random.normal(size=(40, columns)) + 1, random.integers(0, 2, 40)
    stored = StoredExamples.of(as_examples((x, y), "training", need_labels=True, classes=2), None, 2)
    inputs = random.normal(size=(3, columns)) + 1
    votes = neighbour_votes(stored, inputs, neighbours=10, moving_inputs=True)
    assert votes.evidence[LACKS].shape == (3, 40)
    largest = 0.0
    for at, row in enumerate(inputs / np.linalg.norm(inputs, axis=1, keepdims=True)):
        products = stored.rows @ stored.asked(inputs, mirrored=False).views[0][at].astype(int)
        order = np.argsort(-np.asarray(products), kind="stable")
        rows = stored.rows[order].astype(int)
        for change in (0.003, 0.1, 0.8):
            within = Intervals.of(votes.evidence[LACKS][at], votes.evidence[LENGTHS][at], 10, change)
            # Toward one example and away from another is the worst for their order.
            ways = [
                *random.normal(size=(20, columns)),
                *(rows[a] - rows[b] for a, b in random.integers(0, 40, (40, 2))),
            ]
            for way in ways:
                to = row + change * way / max(np.linalg.norm(way), 1e-9)
                moved = rows @ np.rint(np.float32(stored.scale) * to.astype(np.float32)).astype(int)
                gaps = moved[:, None] - moved  # what all have in common falls out
                allowed = within.high[:, None] - within.low
                assert (gaps <= allowed).all()
                largest = max(largest, float((gaps / np.maximum(allowed, 1)).max()))
    assert largest > 0.7


# --- Properties -------------------------------------------------------------------------------------------------------


def some_votes(**options: Any) -> Votes:
    random = np.random.default_rng(5)
    labels = random.integers(0, 3, 120)
    x = random.normal(size=(120, 6)) + 4 * np.eye(6)[labels]
    stored = StoredExamples.of(as_examples((x, labels), "training", need_labels=True, classes=3), None, 3)
    return neighbour_votes(stored, random.normal(size=(25, 6)) + 4 * np.eye(6)[random.integers(0, 3, 25)], **options)


@pytest.mark.parametrize("options", [{"neighbours": 10}, {"neighbours": 70}, {"neighbours": (20, 5), "leads": (6,)}])
@pytest.mark.parametrize("threat", Threat)
def test_radii_fall_as_inputs_move_farther_and_start_from_those_of_inputs_that_stay(
    threat: Threat, options: dict[str, Any]
) -> None:
    votes, rule = some_votes(moving_inputs=True, **options), NeighbourRule()
    stays = rule.decide(votes, threat)
    found = [rule.decide_moved(votes, threat, change) for change in (0.0, 1e-9, 0.01, 0.03, 0.1, 0.2, 0.4, 1.0, 4.0)]
    assert (found[0].radius == stays.radius).all()
    for nearer, farther in pairwise(found):
        assert (nearer.label == farther.label).all()
        assert (nearer.radius >= farther.radius).all()
    assert (found[-1].radius == -1).all()
    assert len({each.radius.sum() for each in found}) > 4


@pytest.mark.parametrize("options", [{"neighbours": 10}, {"neighbours": (20, 5), "leads": (6,)}])
def test_votes_are_the_same_with_what_inputs_that_move_need(options: dict[str, Any]) -> None:
    plain, more = some_votes(**options), some_votes(moving_inputs=True, **options)
    assert (plain.counts == more.counts).all()
    assert (plain.evidence["order"] == more.evidence["order"]).all()
    assert set(plain.evidence) == {"order"}
    assert "moving_inputs" not in (plain.recipe or {})
    assert more.evidence[ORDER].shape == (25, 120)


# --- The auditor ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [None, (2, 1, 5)])
@pytest.mark.parametrize("options", [{"neighbours": 10}, {"neighbours": 70}, {"neighbours": (20, 5), "leads": (6,)}])
@pytest.mark.parametrize("threat", Threat)
def test_the_auditor_confirms_inputs_that_move_and_nothing_much_larger(
    threat: Threat, options: dict[str, Any], weights: tuple[int, ...] | None
) -> None:
    if weights and "leads" in options:
        pytest.skip("Class weights are for one number of neighbours.")
    votes, rule = some_votes(moving_inputs=True, **options), NeighbourRule(class_weights=weights)
    for change in (1e-9, 0.03, 0.1, 0.3):
        found = rule.decide_moved(votes, threat, change)
        evidence = {name: votes.evidence[name] for name in (*rule.reads(threat), *rule.reads_moved(threat))}
        claim = Claim(votes.mechanism, rule.name, threat, found.label, found.radius, votes.counts)
        claim = replace(claim, options={"class_weights": weights}, evidence=evidence, input_change=change)
        assert not recheck(claim).any()
        # Of deletions the auditor sees the effect on more examples than the rule looks at.
        beyond = 200 if threat is Threat.REMOVE else 4
        larger = recheck(replace(claim, radius=np.maximum(found.radius + beyond, 0)))
        assert larger[found.radius < SEARCH_LIMIT].mean() > (0.9 if "leads" not in options else 0.3)
        assert recheck(replace(claim, label=(found.label + 1) % 3)).all()


# --- From training to verify ------------------------------------------------------------------------------------------

CHANGES = (0.0, 0.05, 0.3)


def some_data(seed: int = 7) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    labels, asked = random.integers(0, 3, 150), random.integers(0, 3, 20)
    centres = 3 * np.eye(6)
    return (random.normal(size=(150, 6)) + centres[labels], labels), random.normal(size=(20, 6)) + centres[asked]


def trained(**options: Any) -> Votes:
    given = {"neighbours": 12, "features": "none", "classes": 3, "num_train": 150, "moving_inputs": True, **options}
    return NearestNeighbours(**given).train(*some_data())


def forged(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A certificate with another content, and with the hash of that."""
    content = json.loads(path.read_text())
    change(content)
    for name in ("schema", "sha256", "size"):
        content.pop(name)
    other = path.with_name("forged.json")
    write_hashed(other, SCHEMA, content)
    return other


@pytest.mark.parametrize("options", [{}, {"neighbours": (30, 5), "leads": (8,)}, {"class_weights": (1, 2, 3)}])
def test_verify_checks_every_change_of_the_input(options: dict[str, Any], tmp_path: Path) -> None:
    certificate = certify(trained(**options), threat=Threat.SYMMETRIC_DIFFERENCE, input_change=CHANGES)
    assert certificate.frontier is not None
    assert certificate.frontier.radius[1].max() > 0
    certificate.save(path := tmp_path / "certificate.json")
    found = verify(path)
    assert found.valid, found.checks
    assert sum("labels and radii" in check.name for check in found.checks) == 3

    def more(content: dict[str, Any], row: int) -> None:
        radii = content["frontier"][row]["radius"]
        radii[0] += 100
        content["frontier"][row]["status"][0] = "certified"

    for row in (1, 2):
        refused = verify(forged(path, lambda content, row=row: more(content, row)))
        assert [check.name for check in refused.checks if not check.passed] == [
            f"labels and radii, input change {CHANGES[row]:g}"
        ]

    def nearer(content: dict[str, Any]) -> None:
        content["frontier"][2]["input_change"] = 0.9

    assert not verify(forged(path, nearer)).valid


def test_a_route_that_knows_nothing_of_inputs_that_move_confirms_nothing() -> None:
    claim = Claim(Partitioned(10), "dpa", Threat.ADD, np.array([0]), np.array([1]), np.array([[10, 0]]))
    assert not recheck(claim).any()
    with pytest.raises(NoSecondRouteError, match="inputs that move"):
        recheck(replace(claim, input_change=0.1))


def test_radii_without_moves_are_the_same_whether_or_not_inputs_may_move() -> None:
    plain, more = (certify(trained(moving_inputs=moves)) for moves in (False, True))
    assert (plain.radius == more.radius).all()
    assert set(plain.votes.evidence) == set(more.votes.evidence) == {"order"}


def test_a_run_answers_other_inputs_that_move(tmp_path: Path) -> None:
    given, inputs = some_data()
    defence = NearestNeighbours(neighbours=12, features="none", classes=3, num_train=150, moving_inputs=True)
    votes = defence.train(given, inputs, run_dir=tmp_path)
    again = NearestNeighbours.predict(tmp_path, as_examples(inputs, "test", need_labels=False))
    for name, values in votes.evidence.items():
        assert (again.evidence[name] == values).all()


# --- What is refused --------------------------------------------------------------------------------------------------


def test_votes_without_what_inputs_that_move_need_say_how_to_get_it() -> None:
    with pytest.raises(ConfigError, match="train again with --moving-inputs"):
        certify(trained(moving_inputs=False), input_change=0.1)


@pytest.mark.parametrize("change", [-0.1, float("nan"), float("inf"), "far", []])
def test_changes_that_are_no_lengths_are_refused(change: Any) -> None:
    with pytest.raises(ConfigError, match=r"input_change|changes of the input"):
        certify(trained(), input_change=change)


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="true or false"):
        NearestNeighbours(moving_inputs="yes")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="mirror image"):
        NearestNeighbours(moving_inputs=True, mirrored=True)
    assert "moving_inputs" not in NearestNeighbours().to_dict()
    assert NearestNeighbours(moving_inputs=True).to_dict()["moving_inputs"] is True


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        (ORDER, lambda values: values[:, :-1], "columns"),
        (LACKS, lambda values: values[:, ::-1], "not that of the nearest"),
        (ORDER, lambda values: (values + 1) % 3, "counts are not"),
        (ORDER, lambda values: values + 1, "not that of the nearest"),
        (LENGTHS, lambda values: values[:, :3], "shape"),
    ],
)
def test_evidence_that_contradicts_the_votes_is_refused(name: str, spoil: Any, message: str) -> None:
    votes = trained()
    wrong = replace(votes, evidence={**votes.evidence, name: spoil(votes.evidence[name])})
    with pytest.raises(ConfigError, match=message):
        certify(wrong, input_change=0.1)
    rule = NeighbourRule()
    claim = Claim(
        votes.mechanism, rule.name, Threat.ADD, rule.decide(votes, Threat.ADD).label, np.zeros(20, int), votes.counts
    )
    with pytest.raises(ArtifactError):
        recheck(replace(claim, evidence=wrong.evidence, input_change=0.1))


@pytest.mark.parametrize(
    "defence", [NearestNeighbours(neighbours=3, moving_inputs=True), KernelVote(moving_inputs=True)]
)
def test_units_of_several_examples_are_refused(defence: Any) -> None:
    (x, y), inputs = some_data()
    names = [f"u{at % 50}" for at in range(150)]
    chosen = replace(defence, features="none", classes=3, num_units=50)
    with pytest.raises(ConfigError, match="Which example of a vendor speaks"):
        chosen.train(Examples(x, y, units=Units.of(names, "vendor")), inputs)


# --- Sparse rows, and other places ------------------------------------------------------------------------------------

TEXTS = ["a cat sat here", "the dog ran far away", "a cat ran", "dogs and cats", "the far away land", "a b c d e f g"]


def test_sparse_rows_move_by_the_entries_that_they_have() -> None:
    stored = StoredExamples.of(
        as_examples((np.array(TEXTS), np.arange(6) % 2), "training", need_labels=True), HashedWords(), 2
    )
    assert isinstance(stored.rows, csr_array)
    inputs = np.array(["a cat and a dog", "far away"])
    votes = neighbour_votes(stored, inputs, neighbours=2, moving_inputs=True)
    views = stored.asked(inputs, mirrored=False).views[0]
    assert isinstance(views, csr_array)
    rows, asked = stored.rows.toarray().astype(int), views.toarray().astype(int)
    for at, row in enumerate(asked):
        products = np.sort(rows @ row)[::-1]
        assert (LARGEST_PRODUCT - votes.evidence[LACKS][at] == products).all()
        own, longest, scale, filled = votes.evidence[LENGTHS][at].tolist()
        assert (own, longest, scale) == (row @ row, (rows**2).sum(axis=1).max(), stored.scale)
        assert max(np.count_nonzero((row != 0) | (each != 0)) for each in rows) <= filled < rows.shape[1]


@pytest.mark.parametrize("method", ["neighbours", "kernel"])
def test_other_places_keep_the_same(method: str) -> None:
    torch = pytest.importorskip("torch")
    from mithridate.defences._on_gpu import OnGpu

    given, inputs = some_data()
    stored = StoredExamples.of(as_examples(given, "training", need_labels=True, classes=3), None, 3)
    options: dict[str, Any] = {"neighbours": 9} if method == "neighbours" else {"kernel": Exponential(0.3)}
    vote: Any = neighbour_votes if method == "neighbours" else kernel_votes
    here, there = (
        vote(stored, inputs, moving_inputs=True, **options, **place)
        for place in ({}, {"place": OnGpu(torch.device("cpu"))})
    )
    assert here.evidence.keys() == there.evidence.keys()
    for name, values in here.evidence.items():
        assert (there.evidence[name] == values).all()
