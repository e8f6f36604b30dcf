"""The probability that `winner` and `anytime` promise, by enumeration: every table of votes of small ensembles.

Nothing is sampled but where a test says so. A case is a truth (label probabilities), a number of models and a failure
probability; truths lie on a grid with its edges, so labels tie, and labels nobody votes for, are among them.
"""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from math import comb, factorial, prod
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from mithridate import SampledGaussian, Votes, certify, verify
from mithridate.core import bounds
from mithridate.core.bounds import (
    IntArray,
    LabelBounds,
    anytime_lower,
    anytime_upper,
    bound_votes,
    bound_weighed_votes,
    clopper_pearson_upper,
)
from mithridate.errors import ConfigError
from tests.test_bounds import FALSE_ALARM, any_wrong, most_failures

Weights = tuple[int, ...]
# classes, and the largest number of models at which all tables are enumerated
SIZES = {2: (1, 2, 3, 7, 20, 60), 3: (1, 2, 5, 12, 25), 4: (3, 8, 14), 5: (12,)}
FAILURES = (0.02, 0.1, 0.3, 0.6)


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All rows of `parts` counts that add up to `total`."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in compositions(total - first, parts - 1):
            yield (first, *rest)


@cache
def tables(total: int, classes: int) -> tuple[IntArray, npt.NDArray[np.float64]]:
    """Every row of counts, and in how many orders of votes it comes about."""
    rows = list(compositions(total, classes))
    ways = [factorial(total) // prod(map(factorial, row)) for row in rows]
    return np.array(rows), np.array(ways, dtype=np.float64)


def truths(classes: int) -> list[tuple[float, ...]]:
    """A grid on the simplex with its edges, in every order, and near-ties off the grid."""
    step = {2: 20, 3: 8, 4: 6, 5: 4}[classes]
    grid = [tuple(part / step for part in row) for row in compositions(step, classes)]
    even = (1 / classes,) * classes
    two = (0.5, 0.5, *(0.0,) * (classes - 2))
    close = (0.51, 0.49, *(0.0,) * (classes - 2))
    return [*grid, even, two, close, tuple(reversed(close))]


def chances(total: int, truth: tuple[float, ...]) -> npt.NDArray[np.float64]:
    """The probability of every table."""
    rows, ways = tables(total, len(truth))
    return ways * np.prod(np.power(np.array(truth), rows), axis=1)


def weighed_wrong(found: LabelBounds, truth: npt.NDArray[np.float64], weights: Weights) -> npt.NDArray[np.bool_]:
    """Per table: is any bound wrong for the label that was picked, or is a label separated that is not the best?"""
    examples = len(found.label) // len(set(weights))
    label, wrong = found.label[:examples], np.zeros(examples, dtype=np.bool_)
    assert found.ratio is not None
    separated = np.ones(examples, dtype=np.bool_)
    for number, weight in enumerate(sorted(set(weights))):
        part = slice(number * examples, (number + 1) * examples)
        largest = np.array(
            [
                max((truth[o] for o in range(len(weights)) if o != own and weights[o] == weight), default=0.0)
                for own in range(len(weights))
            ]
        )
        wrong |= found.top_lower[part] > truth[label] + 1e-15
        wrong |= found.top_miss_upper[part] < 1 - truth[label] - 1e-15
        wrong |= found.rival_upper[part] < largest[label] - 1e-15
        separated &= found.top_lower[part] > found.rival_upper[part] * found.ratio[part]
    score = truth * np.array(weights)
    return wrong | (separated & (score[label] < score.max() - 1e-12))


def worst(kind: str, total: int, classes: int, failure_prob: float, weights: Weights | None = None) -> float:
    """The largest probability of a wrong bound over all truths of the grid, as a multiple of what is promised."""
    rows, _ = tables(total, classes)
    if weights is None:
        found = bound_votes(rows, failure_prob=failure_prob, kind=kind)
        return max(
            float(chances(total, truth)[any_wrong(found, np.array(truth))].sum()) / failure_prob
            for truth in truths(classes)
        )
    found = bound_weighed_votes(rows, np.array(weights), failure_prob=failure_prob, kind=kind)
    return max(
        float(chances(total, truth)[weighed_wrong(found, np.array(truth), weights)].sum()) / failure_prob
        for truth in truths(classes)
    )


CASES = [(classes, total) for classes, totals in SIZES.items() for total in totals]


@pytest.mark.parametrize("kind", ["winner", "simultaneous", "anytime"])
@pytest.mark.parametrize(("classes", "total"), CASES)
def test_the_failure_probability_is_at_most_what_is_promised(kind: str, classes: int, total: int) -> None:
    for failure_prob in FAILURES:
        assert worst(kind, total, classes, failure_prob) <= 1 + 1e-9


@pytest.mark.parametrize("kind", ["winner", "simultaneous", "anytime"])
@pytest.mark.parametrize("weights", [(1, 2), (3, 1), (1, 1, 2), (3, 1, 1), (1, 2, 5), (2, 1, 2), (1, 1, 3, 9), (2, 2)])
def test_with_class_weights_it_is_so_too(kind: str, weights: Weights) -> None:
    for total in SIZES[len(weights)][-2:]:
        for failure_prob in FAILURES:
            assert worst(kind, total, len(weights), failure_prob, weights) <= 1 + 1e-9


@pytest.mark.parametrize(("classes", "total", "share"), [(2, 60, 0.7), (3, 25, 0.3), (5, 12, 0.3)])
def test_the_promise_is_not_much_larger_than_the_truth(classes: int, total: int, share: float) -> None:
    """Else the enumeration could not tell a wrong level from a right one."""
    assert max(worst("winner", total, classes, failure_prob) for failure_prob in FAILURES) > share


# --- what the parts of the proof are needed for -----------------------------------------------------------------------


def with_levels(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Let every set of levels be changed by a function of it and of failure_prob."""
    honest = bounds._Levels.of  # pyright: ignore[reportPrivateUsage]

    def changed(kind: str, failure_prob: float, classes: int, weights: int = 1) -> Any:
        return change(honest(kind, failure_prob, classes, weights), failure_prob)

    monkeypatch.setattr(bounds._Levels, "of", changed)  # pyright: ignore[reportPrivateUsage]


def test_without_the_sign_test_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with_levels(monkeypatch, lambda levels, _: replace(levels, ahead=None))
    for classes, total in ((2, 60), (4, 14), (5, 12)):
        assert max(worst("winner", total, classes, failure_prob) for failure_prob in FAILURES) > 1.3


def test_with_a_sign_test_at_the_whole_level_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with_levels(monkeypatch, lambda levels, failure_prob: replace(levels, ahead=failure_prob))
    for classes, total in ((2, 60), (5, 12)):
        assert max(worst("winner", total, classes, failure_prob) for failure_prob in FAILURES) > 1.1


def test_with_the_whole_probability_for_every_event_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with_levels(monkeypatch, lambda levels, fp: replace(levels, lower=fp, upper=fp, ahead=fp))
    for classes, total in ((2, 60), (3, 25), (4, 14), (5, 12)):
        assert max(worst("winner", total, classes, failure_prob) for failure_prob in FAILURES) > 1.5


def test_one_upper_bound_for_rivals_of_two_weights_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with_levels(monkeypatch, lambda levels, fp: replace(levels, lower=fp / 50, upper=0.9 * fp))
    assert max(worst("winner", 14, 4, failure_prob, (1, 1, 3, 9)) for failure_prob in FAILURES) > 1.4


@pytest.mark.parametrize(("classes", "totals"), [(2, (1, 5, 30)), (3, (2, 7, 16, 25)), (4, (5, 14)), (5, (12,))])
def test_a_wrong_winner_passes_the_two_sided_sign_test_no_more_often_than_its_level(
    classes: int, totals: tuple[int, ...]
) -> None:
    """The lemma of docs/theory.md at every level that a table can reach, whoever of tied labels is called the best."""
    for total in totals:
        rows, _ = tables(total, classes)
        ordered = np.sort(rows, axis=1)
        level = 2 * np.asarray(stats.binom.sf(ordered[:, -1] - 1, ordered[:, -1] + ordered[:, -2], 0.5))
        order = np.argsort(level)
        last = np.append(np.diff(level[order]) > 1e-12, True)
        for truth in truths(classes):
            best = max(range(classes), key=lambda label: (truth[label], label))
            mass = np.where(rows.argmax(axis=1) != best, chances(total, truth), 0.0)[order].cumsum()
            assert (mass <= level[order] * (1 + 1e-9))[last].all()


# --- never less than before -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [(1, 1), (1,) * 3, (1,) * 10, (1,) * 30, (1, 4), (9, 1, 2), (5, 1, 1, 2, 2, 2)])
@pytest.mark.parametrize("total", [4, 15, 61])
def test_winner_claims_whatever_simultaneous_claims_with_better_bounds(weights: Weights, total: int) -> None:
    """At every pair of counts of two labels, with the other votes spread over the others."""
    rows: list[list[int]] = []
    for top in range(total + 1):
        for second in range(total - top + 1):
            rest, others = total - top - second, len(weights) - 2
            if rest and not others:
                continue
            rows.append([top, second, *(rest // others + (n < rest % others) for n in range(others))])
    for failure_prob in (0.3, 1e-3, 1e-9):
        new, old = (
            bound_weighed_votes(np.array(rows), np.array(weights), failure_prob=failure_prob, kind=kind)
            for kind in ("winner", "simultaneous")
        )
        assert new.ratio is not None
        was = (old.top_lower > old.rival_upper * new.ratio).reshape(-1, len(rows)).all(axis=0)
        now = (new.top_lower > new.rival_upper * new.ratio).reshape(-1, len(rows)).all(axis=0)
        assert not (was & ~now).any()
        there = np.tile(was, len(set(weights)))
        assert (new.top_lower > old.top_lower)[there].all()
        assert (new.top_miss_upper < old.top_miss_upper)[there].all()
        assert (new.rival_upper <= old.rival_upper)[there].all()


def test_the_level_of_bounds_does_not_fall_with_the_number_of_labels() -> None:
    few, many = (bounds._Levels.of("winner", 1e-3, classes) for classes in (10, 10_000))  # pyright: ignore[reportPrivateUsage]
    assert few == many
    assert few.lower == few.upper == pytest.approx(0.45e-3)
    assert few.ahead == pytest.approx(0.05e-3)


@pytest.mark.parametrize("kind", ["winner", "anytime"])
@pytest.mark.parametrize("classes", [2, 3, 9, 10, 11, 200])
@pytest.mark.parametrize("weights", [1, 2, 5, 200])
def test_all_that_is_spent_is_failure_prob(kind: str, classes: int, weights: int) -> None:
    weights = min(weights, classes)
    levels = bounds._Levels.of(kind, 0.01, classes, weights)  # pyright: ignore[reportPrivateUsage]
    assert levels.ahead is not None
    uppers = 0 if classes == 2 else min(weights, classes - 1)
    tests = classes - 1 if kind == "anytime" or weights > 1 else min(2, classes - 1)
    assert levels.lower + uppers * levels.upper + tests * levels.ahead == pytest.approx(0.01)
    assert levels.lower == levels.upper
    if kind == "winner":
        assert min(levels.lower, levels.ahead) >= 0.01 / (2 * classes) * (1 - 1e-12)


# --- at any time ------------------------------------------------------------------------------------------------------


def ever_wrong(
    kind: str, truth: tuple[float, ...], last: int, failure_prob: float, weights: Weights | None = None
) -> float:
    """The exact probability that bounds are wrong after 1, 2, ... or `last` models: whoever wants to may stop there."""
    classes, values = len(truth), np.array(truth)
    alive = {(0,) * classes: 1.0}
    failed = 0.0
    for _ in range(last):
        if not alive:
            break
        after: dict[tuple[int, ...], float] = {}
        for row, mass in alive.items():
            for label, chance in enumerate(truth):
                if chance > 0:
                    more = (*row[:label], row[label] + 1, *row[label + 1 :])
                    after[more] = after.get(more, 0.0) + mass * chance
        rows = np.array(list(after))
        if weights is None:
            wrong = any_wrong(bound_votes(rows, failure_prob=failure_prob, kind=kind), values)
        else:
            found = bound_weighed_votes(rows, np.array(weights), failure_prob=failure_prob, kind=kind)
            wrong = weighed_wrong(found, values, weights)
        masses = np.array(list(after.values()))
        failed += float(masses[wrong].sum())
        alive = {tuple(row): mass for row, mass in zip(rows[~wrong].tolist(), masses[~wrong].tolist(), strict=True)}
    return failed


SEQUENCES: list[tuple[tuple[float, ...], int]] = [
    *(((p, 1 - p), 150) for p in (0.5, 0.51, 0.6, 0.9, 0.99, 1.0)),
    *((truth, 30) for truth in ((1 / 3,) * 3, (0.5, 0.5, 0.0), (0.5, 0.25, 0.25), (0.05, 0.9, 0.05), (0.4, 0.4, 0.2))),
    *((truth, 14) for truth in ((0.25,) * 4, (0.4, 0.3, 0.2, 0.1))),
]


@pytest.mark.parametrize(("truth", "last"), SEQUENCES, ids=str)
@pytest.mark.parametrize("failure_prob", [0.1, 0.5])
def test_anytime_holds_for_whoever_stops_at_the_first_wrong_claim(
    truth: tuple[float, ...], last: int, failure_prob: float
) -> None:
    assert ever_wrong("anytime", truth, last, failure_prob) <= failure_prob


@pytest.mark.parametrize("weights", [(1, 2, 2), (1, 3, 9)])
def test_anytime_holds_so_with_class_weights(weights: Weights) -> None:
    for truth in ((1 / 3,) * 3, (0.6, 0.3, 0.1), (9 / 13, 3 / 13, 1 / 13), (0.5, 0.25, 0.25)):
        assert ever_wrong("anytime", truth, 22, 0.3, weights) <= 0.3


def test_the_other_bounds_do_not() -> None:
    assert ever_wrong("winner", (0.5, 0.5), 150, 0.1) > 0.15
    assert ever_wrong("simultaneous", (0.6, 0.4), 150, 0.5) > 0.5


def test_anytime_with_the_whole_probability_for_every_event_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with_levels(monkeypatch, lambda levels, fp: replace(levels, lower=fp, upper=fp, ahead=fp))
    assert ever_wrong("anytime", (0.5, 0.5), 150, 0.1) > 0.12


def test_anytime_without_the_sign_test_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with_levels(monkeypatch, lambda levels, fp: replace(levels, lower=fp, upper=fp, ahead=None))
    assert ever_wrong("anytime", (1 / 3,) * 3, 30, 0.1) > 0.15


@pytest.mark.parametrize("truth", [(0.1,) * 10, (0.3, 0.3, 0.3, 0.1), (0.9, 0.05, 0.05), (0.52, 0.48)], ids=str)
def test_anytime_holds_over_two_thousand_models(truth: tuple[float, ...]) -> None:
    """Looks after 1, 2, 4, ... and every 50 models, in 2,000 runs; false alarm below FALSE_ALARM for each case."""
    runs, looks = 2000, sorted({1, 2, 4, 8, 16, 32, *range(50, 2001, 50)})
    rng, wrong, counts = np.random.default_rng(8), np.zeros(2000, dtype=np.bool_), np.zeros((2000, len(truth)), int)
    for before, look in pairwise([0, *looks]):
        counts += rng.multinomial(look - before, truth, size=runs)
        wrong |= any_wrong(bound_votes(counts, failure_prob=0.2, kind="anytime"), np.array(truth))
    assert FALSE_ALARM == 1e-6
    assert wrong.sum() <= most_failures(0.2, runs)


def capital(misses: int, total: int, miss: Any) -> Any:
    """The capital of the module's docstring, by quadrature in many digits; u = v^2."""

    def integrand(v: Any) -> Any:
        return ((1 - v * v) / (1 - miss) + v * v) ** (total - misses) * v ** (2 * misses)

    return mp.quad(integrand, mp.linspace(0, 1, 40))


@pytest.mark.parametrize("tail", [0.2, 1e-3 / 20, 1e-9])
@pytest.mark.parametrize(
    ("count", "total"), [(0, 1), (1, 2), (0, 30), (7, 30), (29, 30), (0, 1000), (30, 1000), (500, 1000), (990, 1000)]
)
def test_anytime_bounds_solve_their_equation_from_the_safe_side(count: int, total: int, tail: float) -> None:
    upper, lower = float(anytime_upper(count, total, tail)), float(anytime_lower(total - count, total, tail))
    assert upper > clopper_pearson_upper(count, total, tail)
    with mp.workdps(30):
        # They fail together: what bounds the misses bounds the hits.
        assert lower < 1 - mp.mpf(upper)
        assert lower == pytest.approx(1 - upper, abs=1e-15)
        assert capital(count, total, mp.mpf(upper)) >= 1 / tail
        assert capital(count, total, mp.mpf(upper) * (1 - mp.mpf("1e-7"))) < 1 / tail


def test_anytime_bounds_of_nothing_say_nothing() -> None:
    assert anytime_upper(5, 5, 0.1) == 1
    assert anytime_lower(0, 5, 0.1) == 0


def test_anytime_bounds_of_a_million_votes() -> None:
    upper = anytime_upper(np.array([0, 1000, 999_999]), 10**6, 1e-4)
    assert upper[0] == pytest.approx(1.05e-5, rel=0.05)
    assert 1e-3 < upper[1] < 1.2e-3
    assert upper[2] > 0.999999


@pytest.mark.parametrize(("count", "total", "tail"), [(-1, 5, 0.1), (6, 5, 0.1), (0, 0, 0.1), (1, 5, 0.0), (1, 5, 1.0)])
@pytest.mark.parametrize("bound", [anytime_lower, anytime_upper])
def test_anytime_bounds_refuse_impossible_counts(bound: Any, count: int, total: int, tail: float) -> None:
    with pytest.raises(ConfigError):
        bound(count, total, tail)


# --- the sign test ----------------------------------------------------------------------------------------------------


def tail_of(hits: int, misses: int, share: Fraction) -> Fraction:
    """Pr[Binomial(hits + misses, share) >= hits], exactly."""
    total = hits + misses
    return sum((comb(total, k) * share**k * (1 - share) ** (total - k) for k in range(hits, total + 1)), Fraction(0))


@pytest.mark.parametrize(("own", "rival"), [(1, 1), (3, 3), (1, 3), (7, 2), (1, 1000)])
def test_the_sign_test_is_the_binomial_one(own: int, rival: int) -> None:
    for hits in range(1, 41):
        for misses in (0, 1, 5, 20):
            exact = tail_of(hits, misses, Fraction(rival, rival + own))
            share = bounds._fair_share(rival, np.array([own]))  # pyright: ignore[reportPrivateUsage]
            for factor, expected in ((1 + 1e-8, True), (1 - 1e-8, False)):
                level = float(exact) * factor
                if 0 < level < 1:
                    found = bounds._ahead("winner", np.array([hits]), np.array([misses]), share, level)  # pyright: ignore[reportPrivateUsage]
                    assert found.tolist() == [expected]


@pytest.mark.parametrize(("classes", "share"), [(2, 0.75), (3, 1 / 3), (10, 0.45), (50, 0.45)])
def test_unanimous_votes_are_bounded_at_the_level_of_the_theory_page(classes: int, share: float) -> None:
    """`pointwise` spends a quarter of its failure probability on each bound."""
    votes = Votes.from_counts([[1000] + [0] * (classes - 1)], mechanism=SampledGaussian(20.0, 1.0, 2))
    found, same = certify(votes), certify(votes, bounds="pointwise", failure_prob=4e-3 * share)
    assert found.radius[0] == same.radius[0] > certify(votes, bounds="simultaneous").radius[0]


def test_a_level_that_is_no_number_any_more_separates_nothing() -> None:
    assert not bounds._ahead("winner", np.array([10**6]), np.array([0]), 0.5, 1e-305).any()  # pyright: ignore[reportPrivateUsage]


def test_where_the_winner_is_not_separated_nothing_is_said() -> None:
    found = bound_votes(np.array([[520, 480], [501, 499], [560, 440]]), failure_prob=1e-3)
    assert found.top_lower[:2].tolist() == [0, 0]
    assert found.top_miss_upper[:2].tolist() == found.rival_upper[:2].tolist() == [1, 1]
    assert found.top_lower[2] > 0.5


@pytest.mark.parametrize("kind", ["simuem", "pointwise", "hoeffding"])
def test_weighed_votes_have_the_bounds_that_are_proved_for_them(kind: str) -> None:
    with pytest.raises(ConfigError, match="class weights"):
        bound_weighed_votes(np.array([[3, 1]]), np.array([1, 2]), failure_prob=0.1, kind=kind)


@pytest.mark.parametrize(("kind", "top"), [("winner", 557), ("anytime", 577)])
def test_the_second_route_asks_for_the_sign_test_too(
    kind: str, top: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where bounds alone separate two labels, a certificate without the test is found out."""
    votes = Votes.from_counts([[top, 1000 - top] + [0] * 8, [999] + [1] + [0] * 8], mechanism=SampledGaussian(3, 1, 1))
    honest = certify(votes, bounds=kind)
    assert honest.status.tolist() == ["not_separated", "certified"]
    honest.save(tmp_path / "c.json")
    assert verify(tmp_path / "c.json").valid
    with_levels(monkeypatch, lambda levels, _: replace(levels, ahead=None))
    careless = certify(votes, bounds=kind)
    assert careless.status.tolist() == ["certified", "certified"]
    careless.save(tmp_path / "c.json")
    failed = {check.name for check in verify(tmp_path / "c.json").checks if not check.passed}
    assert "statuses" in failed
