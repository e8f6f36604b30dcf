"""Bagging: the condition against exact arithmetic, against every D' of tiny balls, and against simulated votes."""

from collections import Counter
from collections.abc import Iterator
from decimal import MAX_EMAX, MIN_EMIN, Decimal, localcontext
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mithridate.accounting import Margins
from mithridate.core.bounds import bound_votes
from mithridate.core.mechanism import SampledGaussian, Threat
from mithridate.defences.bagging import Bagged, BaggingRule, _room, _worst_splits
from mithridate.defences.smoothing import NoisyFeatures
from mithridate.errors import UnsupportedMechanismError

FALSE_ALARM = 1e-6


def margins(miss: float, rival: float) -> Margins:
    return Margins.of(np.array([1 - miss]), np.array([miss]), np.array([rival]))


def holds(mechanism: Bagged, threat: Threat, radius: int, miss: float, rival: float) -> bool:
    return bool(BaggingRule().accountant(mechanism, threat).holds(radius, margins(miss, rival))[0])


def largest(mechanism: Bagged, threat: Threat, miss: float, rival: float) -> int:
    radius = 0
    while holds(mechanism, threat, radius + 1, miss, rival):
        radius += 1
    return radius


def ball(threat: Threat, total: int, radius: int) -> Iterator[tuple[int, int]]:
    """Every (deleted, inserted) of the ball, from its definition."""
    for deleted, inserted in product(range(min(radius, total) + 1), range(radius + 1)):
        inside = {
            Threat.SYMMETRIC_DIFFERENCE: deleted + inserted <= radius,
            Threat.ADD: deleted == 0,
            Threat.REMOVE: inserted == 0,
            Threat.EDIT: True,  # Pairs of a deletion and an insertion are changes, and count one.
        }
        if inside.get(threat, deleted == inserted):
            yield deleted, inserted


def exact_room(total: int, draws: int, deleted: int, inserted: int) -> Fraction:
    """One minus the scores' distance must stay below this; see the module docstring of `bagging`."""
    shared = Fraction(total - deleted, total) ** draws
    return 2 * shared - Fraction(total - deleted + inserted, total) ** draws


# --- the formula ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threat", list(Threat))
def test_the_worst_split_is_the_worst_of_the_whole_ball(threat: Threat) -> None:
    for total, draws in product((1, 2, 5, 9, 14), (1, 2, 3, 5, 11)):
        for radius in range(total + 4):
            every = min(exact_room(total, draws, *split) for split in ball(threat, total, radius))
            splits = _worst_splits(Bagged(total, draws), threat, radius, 1.0)
            assert min(exact_room(total, draws, *split) for split in splits) == every


@pytest.mark.parametrize("threat", list(Threat))
def test_the_answer_is_that_of_exact_arithmetic(threat: Threat) -> None:
    for total, draws, radius in product((3, 8, 13), (1, 2, 4, 7), (0, 1, 2, 3, 5, 20)):
        room = min(exact_room(total, draws, *split) for split in ball(threat, total, radius))
        for miss in (0.0, 1e-9, 0.01, 0.1, 0.2, 0.4):
            total_of_both = Fraction(miss) + Fraction(miss / 2)
            if abs(total_of_both - room) > Fraction(1, 10**12):
                assert holds(Bagged(total, draws), threat, radius, miss, miss / 2) == (total_of_both < room)


@pytest.mark.parametrize(("total", "draws"), [(60000, 500), (2000, 30), (500, 1), (500, 2), (50, 40), (40, 300)])
@pytest.mark.parametrize("both", [Fraction(1, 50), Fraction(1, 3), Fraction(4, 5)])
def test_the_authors_condition_searched_over_every_size(total: int, draws: int, both: Fraction) -> None:
    """Jia et al.: (n'/n)^k - 2 ((max(n, n') - r) / n)^k + 1 - p1 + p2 < 0 for all n' from n - r to n + r."""

    def shown(radius: int) -> bool:
        for size in range(max(total - radius, 0), total + radius + 1):
            shared = max(max(total, size) - radius, 0)
            if size**draws - 2 * shared**draws + both * total**draws >= 0:
                return False
        return True

    miss = float(both) / 2
    radius = largest(Bagged(total, draws), Threat.EDIT, miss, miss)
    assert all(shown(r) for r in {radius, radius // 2})
    assert not shown(radius + 1)


def test_published_largest_radii() -> None:
    """Liu et al. 2023, table of medians and maxima: bagging reaches 80 (MNIST, k=500) and 8 (CIFAR-10, k=4000).

    Unanimous votes of 1000 instances, failure_prob .001 over 10 classes: p1 >= .0001^(1/1000) = .990832. No insertion
    without a deletion is worst, so 2 (1 - r/n)^k > 1 + 2 (1 - p1) = 1.018337, (1 - r/n)^k > .509168: by hand
    r < 60000 (1 - .509168^(1/500)) = 80.95 and r < 50000 (1 - .509168^(1/4000)) = 8.44.
    """
    miss = 1 - 1e-4 ** (1 / 1000)
    assert largest(Bagged(60000, 500), Threat.EDIT, miss, miss) == 80
    assert largest(Bagged(50000, 4000), Threat.EDIT, miss, miss) == 8


def test_radii_worked_out_by_hand() -> None:
    # n = 100, k = 1, p1 = .8, p2 = .1: room is 1 - r/n less insertions. Both scores move by r/n when r are changed.
    assert largest(Bagged(100, 1), Threat.EDIT, 0.2, 0.1) == 34  # 1 - 2r/n > .3 at r < 35
    assert largest(Bagged(100, 1), Threat.REPLACE, 0.2, 0.1) == 34
    assert largest(Bagged(100, 1), Threat.SYMMETRIC_DIFFERENCE, 0.2, 0.1) == 69  # 1 - r/n > .3 at r < 70
    assert largest(Bagged(100, 1), Threat.REMOVE, 0.2, 0.1) == 69
    # k = 2: 2 - (1 + r/n)^2 > .3 at r < 100 (sqrt(1.7) - 1) = 30.38; (1 - r/n)^2 > .3 at r < 100 (1 - sqrt(.3)) = 45.2;
    # 2 (1 - r/n)^2 - 1 > .3 at r < 100 (1 - sqrt(.65)) = 19.4.
    assert largest(Bagged(100, 2), Threat.ADD, 0.2, 0.1) == 30
    assert largest(Bagged(100, 2), Threat.SYMMETRIC_DIFFERENCE, 0.2, 0.1) == 30
    assert largest(Bagged(100, 2), Threat.REMOVE, 0.2, 0.1) == 45
    assert largest(Bagged(100, 2), Threat.REPLACE, 0.2, 0.1) == 19


def test_the_worst_size_may_lie_strictly_between_none_and_all_inserted() -> None:
    # n = 100, k = 3, t = sqrt(2): the worst D' of EDIT keeps m = r / (sqrt(2) - 1), for r = 35: 84.5 of 100 examples.
    splits = _worst_splits(Bagged(100, 3), Threat.EDIT, 35, 1.0)
    rooms = {split: exact_room(100, 3, *split) for split in splits}
    worst = min(rooms, key=lambda split: rooms[split])
    assert worst in ((15, 35), (16, 35))
    assert rooms[worst] < min(rooms[0, 35], rooms[35, 35])


# --- rounding -------------------------------------------------------------------------------------------------------


@given(
    total=st.integers(1, 10**9),
    draws=st.integers(1, 10**7),
    deleted=st.floats(0, 1),
    inserted=st.floats(0, 1),
    scale=st.sampled_from([1.0, 1e-3, 1e-6, 1e-9]),
    ratio=st.sampled_from([1.0, 0.1, 3.7, 1e-6, 1e6]),
)
def test_room_is_never_above_the_true_one_and_close(
    total: int, draws: int, deleted: float, inserted: float, scale: float, ratio: float
) -> None:
    d, a = round(deleted * scale * total), round(inserted * scale * total)
    low, charge = _room(Bagged(total, draws), d, a, ratio)
    with localcontext() as context:
        context.prec, context.Emax, context.Emin = 60, MAX_EMAX, MIN_EMIN
        shared = (Decimal(total - d) / total) ** draws
        size = (Decimal(total - d + a) / total) ** draws
        exact = (1 + Decimal(ratio)) * shared - Decimal(ratio) * size
        assert Decimal(low) <= exact
        if exact > 0:
            assert exact - Decimal(low) <= Decimal(charge) + Decimal(1 + ratio) * Decimal(10) ** -15
            assert charge < 1e-13 * (1 + ratio) / 2


@pytest.mark.parametrize("threat", list(Threat))
@pytest.mark.parametrize("radius", [10, 11, 1000, 2**20])
def test_nothing_holds_when_everything_may_have_changed(threat: Threat, radius: int) -> None:
    for draws in (1, 2, 10**7):
        assert not holds(Bagged(10, draws), threat, radius, 0.0, 0.0)


def test_the_charge_for_rounding_is_reported() -> None:
    accountant = BaggingRule().accountant(Bagged(60000, 500), Threat.EDIT)
    assert accountant.error_budget == {"rounding": 0.0}
    accountant.holds(10, margins(0.1, 0.1))
    accountant.holds(10**6, margins(0.1, 0.1))
    accountant.close()
    assert 0 < accountant.error_budget["rounding"] < 1e-13


# --- properties -----------------------------------------------------------------------------------------------------


@given(
    total=st.integers(1, 10**5),
    draws=st.integers(1, 2000),
    radius=st.integers(0, 300),
    miss=st.floats(0, 0.5),
    share=st.floats(0, 1),
)
def test_a_yes_covers_smaller_radii_better_scores_and_smaller_balls(
    total: int, draws: int, radius: int, miss: float, share: float
) -> None:
    mechanism, rival = Bagged(total, draws), share * miss
    for threat in Threat:
        if holds(mechanism, threat, radius + 1, miss, rival):
            assert holds(mechanism, threat, radius, miss, rival)
            assert holds(mechanism, threat, radius + 1, miss / 2, rival / 2)
    if holds(mechanism, Threat.EDIT, radius, miss, rival):
        assert all(holds(mechanism, threat, radius, miss, rival) for threat in Threat)
    if holds(mechanism, Threat.SYMMETRIC_DIFFERENCE, radius, miss, rival):
        assert all(holds(mechanism, threat, radius, miss, rival) for threat in (Threat.ADD, Threat.REMOVE))


# --- every poisoning of tiny data sets ------------------------------------------------------------------------------


def scores(data: tuple[int, ...], draws: int, learner: dict[tuple[int, ...], int], labels: int) -> list[Fraction]:
    """Exact scores; `data` holds how many copies of each example there are."""
    result = [Fraction(0)] * labels
    for drawn in product(range(len(data)), repeat=draws):
        weight = Fraction(1)
        for example in drawn:
            weight *= Fraction(data[example], sum(data))
        result[learner[drawn]] += weight
    return result


def distance(threat: Threat, data: tuple[int, ...], other: tuple[int, ...]) -> int | None:
    """How many units of the threat separate two data sets; None where it never leads from one to the other."""
    deleted = sum(max(one - two, 0) for one, two in zip(data, other, strict=True))
    inserted = sum(max(two - one, 0) for one, two in zip(data, other, strict=True))
    match threat:
        case Threat.SYMMETRIC_DIFFERENCE:
            return deleted + inserted
        case Threat.ADD:
            return None if deleted else inserted
        case Threat.REMOVE:
            return None if inserted else deleted
        case Threat.EDIT:
            return max(deleted, inserted)
        case _:
            return deleted if deleted == inserted else None


@pytest.mark.parametrize("draws", [1, 2, 3])
def test_no_certified_label_changes_on_any_poisoned_tiny_data_set(draws: int) -> None:
    rng, labels = np.random.default_rng(draws), 3
    others = [other for other in product(range(10), repeat=3) if 1 <= sum(other) <= 12]
    certified = 0
    for _ in range(6):
        # Three possible examples, of which the first is the most frequent and mostly leads to label 1.
        data = (7, int(rng.integers(0, 2)), int(rng.integers(0, 2)))
        learner = {
            drawn: 1 if drawn.count(0) > draws / 2 else int(rng.integers(labels))
            for drawn in product(range(3), repeat=draws)
        }
        before = scores(data, draws, learner, labels)
        after = {other: scores(other, draws, learner, labels) for other in others}
        top = before.index(max(before))
        miss, rival = float(1 - before[top]), float(max(s for i, s in enumerate(before) if i != top))
        for threat in Threat:
            radius = largest(Bagged(sum(data), draws), threat, np.nextafter(miss, 1), np.nextafter(rival, 1))
            certified += radius
            for other in others:
                apart = distance(threat, data, other)
                if apart is not None and apart <= radius:
                    assert all(after[other][top] > s for i, s in enumerate(after[other]) if i != top)
    assert certified > 50  # Not an empty claim.


@pytest.mark.parametrize(("deleted", "inserted"), [(0, 1), (1, 0), (1, 1), (2, 1), (0, 2)])
@pytest.mark.parametrize("draws", [1, 2, 3])
def test_where_the_condition_fails_an_attack_exists(deleted: int, inserted: int, draws: int) -> None:
    """The learner of the module docstring: D's own tuples are the top label's, those of D' alone are the rival's."""
    total = 6
    examples = ["gone"] * deleted + ["shared"] * (total - deleted)
    poisoned = ["shared"] * (total - deleted) + ["new"] * inserted

    def attack(data: list[str], top: Fraction, rival: Fraction) -> tuple[Fraction, Fraction]:
        kinds = Counter(frozenset(drawn) for drawn in product(data, repeat=draws))
        first = second = Fraction(0)
        for kind, count in kinds.items():
            weight = Fraction(count, len(data) ** draws)
            first += weight * (1 if "gone" in kind else 0 if "new" in kind else top)
            second += weight * (0 if "gone" in kind else 1 if "new" in kind else rival)
        return first, second

    answers = Counter[bool]()
    for top, rival in product([Fraction(i, 8) for i in range(9)], repeat=2):
        if top + rival <= 1:
            first, second = attack(examples, top, rival)
            first_after, second_after = attack(poisoned, top, rival)
            stays = 1 - first + second < exact_room(total, draws, deleted, inserted)
            assert stays == (first_after > second_after)
            answers[stays] += 1
    assert answers[False]
    assert answers[True] or draws == 3


def test_simulated_votes_are_certified_wrongly_at_most_as_often_as_promised() -> None:
    """A label that a D' at radius 20 turns into a tie may be certified to 20 with probability failure_prob only.

    A valid rule fails this test with probability 1e-6 over seeds.
    """
    mechanism, radius, runs, failure_prob = Bagged(1000, 20), 20, 4000, 0.05
    both = float(min(exact_room(1000, 20, *split) for split in ball(Threat.EDIT, 1000, radius)))
    rng = np.random.default_rng(5)
    # One minus p1 plus p2 is exactly what the ball leaves, two thirds of it missing from the top.
    counts = rng.multinomial(200, [1 - both * 2 / 3, both / 3, both / 3], size=runs)
    limits = bound_votes(counts, failure_prob=failure_prob)
    points = Margins.of(limits.top_lower, limits.top_miss_upper, limits.rival_upper)
    wrong = BaggingRule().accountant(mechanism, Threat.EDIT).holds(radius, points).sum()
    assert wrong <= stats.binom.isf(FALSE_ALARM, runs, failure_prob)
    # With many more votes, the same label is certified to a little less.
    assert holds(mechanism, Threat.EDIT, radius - 1, both * 2 / 3, both / 3)


# --- as an object ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", [SampledGaussian(3.0, 0.001, 1000), NoisyFeatures(1.0)])
def test_votes_of_another_mechanism_are_refused(mechanism: SampledGaussian | NoisyFeatures) -> None:
    with pytest.raises(UnsupportedMechanismError, match="bagging certifies votes of Bagged instances"):
        BaggingRule().accountant(mechanism, Threat.EDIT)


def test_the_rule_describes_itself() -> None:
    assert BaggingRule() == BaggingRule()
    assert BaggingRule().to_dict() == {"name": "bagging"}
    assert BaggingRule().name == "bagging"
    assert BaggingRule().assumptions == ()
