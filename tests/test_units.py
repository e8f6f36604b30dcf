"""Units: what they are, what reaches a mechanism of them, and parts and bagging by brute force over sets of units."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mithridate import Certificate, Votes, certify, verify
from mithridate.core.mechanism import SampledGaussian, Threat
from mithridate.core.rule import ExactRule
from mithridate.core.units import Unit
from mithridate.data.examples import Examples
from mithridate.data.partition import by_unit, content_hashes, split_by_hash, unit_hashes
from mithridate.data.units import Units, joined, name_hash
from mithridate.defences import defence
from mithridate.defences.automatic import named
from mithridate.defences.bagging import Bagged, Bootstrap
from mithridate.defences.partitions import (
    MajorityRule,
    Partitioned,
    Parts,
    RunOffRule,
    SpreadPartitions,
    SpreadParts,
    SpreadRule,
)
from mithridate.errors import ArtifactError, ConfigError
from mithridate.training.order import compose

PRIVATE = SampledGaussian(3.0, 0.001, 1000)


def examples_of(units: Units, seed: int = 0, classes: int = 3) -> Examples:
    random = np.random.default_rng(seed)
    x = random.integers(0, 4, (len(units), 2)).astype(np.float64)
    return Examples(x, random.integers(0, classes, len(units)), units=units)


# --- what they are ----------------------------------------------------------------------------------------------------


def test_names_are_texts_or_whole_numbers_and_numbered_by_their_first_example() -> None:
    assert Units.of(np.array([7, 3, 7])).names == ("7", "3")
    assert Units.of([7.0, 3.0]).names == ("7", "3")  # a column of numbers in which a cell was missing once
    assert Units.of(["b", "a", "b"]).of_example.tolist() == [0, 1, 0]
    assert Units.of(["Acme", "acme"]).names == ("Acme", "acme")


@pytest.mark.parametrize("name", [None, float("nan"), "", "  ", 1.5, float("inf"), b"bytes", [1]])
def test_an_example_without_a_name_is_refused(name: Any) -> None:
    names = np.empty(3, dtype=object)
    names[:] = ["a", "b", name]
    with pytest.raises(ConfigError, match="vendor of row 2"):
        Units.of(names, "vendor", "row")


@pytest.mark.parametrize("name", ["", " ", "x" * 81, 3])
def test_a_unit_has_a_word_for_a_name(name: Any) -> None:
    with pytest.raises(ConfigError, match="name of a unit"):
        Unit(name, 3)
    with pytest.raises(ConfigError):
        Unit("vendor", 0)


def test_hashes_follow_from_names_and_a_hash_is_its_own() -> None:
    digits = hashlib.sha256(b"x").hexdigest()
    assert name_hash(digits) == bytes.fromhex(digits)
    assert len({name_hash(name) for name in ("a", "A", "a ", digits.upper())}) == 4
    units = Units.of(["b", "a"])
    assert units.hashes.shape == (2, 4)
    assert units.hashes[1].tolist() == Units.of(["a"]).hashes[0].tolist()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.data())
def test_a_part_of_the_examples_has_the_units_that_are_left(numbers: list[int], data: st.DataObject) -> None:
    units = Units.of([f"u{n}" for n in numbers])
    chosen = np.array(data.draw(st.lists(st.booleans(), min_size=len(numbers), max_size=len(numbers))))
    part = units.part(chosen)
    kept = [f"u{n}" for n, is_in in zip(numbers, chosen, strict=True) if is_in]
    assert [part.names[n] for n in part.of_example.tolist()] == kept
    assert part.names == tuple(dict.fromkeys(kept))


def test_units_behind_others_are_those_of_the_same_name() -> None:
    both = joined(Units.of(["a", "b"], "vendor"), Units.of(["b", "c"], "shop"))
    assert (both.name, both.names, both.of_example.tolist()) == ("vendor", ("a", "b", "c"), [0, 1, 1, 2])


# --- what reaches a mechanism -----------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.integers(1, 4), st.integers(0, 100))
def test_what_enters_of_a_unit_is_a_function_of_that_unit_and_the_cap(names: list[int], cap: int, seed: int) -> None:
    units = Units.of([f"u{n}" for n in names])
    examples = examples_of(units, seed)
    entered = by_unit(examples, cap)
    assert entered.units is not None
    assert entered.units.names == units.names
    starts = entered.units.starts
    order = np.random.default_rng(seed).permutation(len(names))
    for number, name in enumerate(units.names):
        part = slice(starts[number], starts[number + 1])
        # The same unit alone, with its examples in another order, or among others.
        alone = examples.part(order[np.isin(order, np.flatnonzero(units.of_example == number))])
        once_more = by_unit(alone, cap)
        assert once_more.units is not None
        assert once_more.units.names == (name,)
        assert np.array_equal(once_more.x, entered.x[part])
        assert np.array_equal(np.asarray(once_more.y), np.asarray(entered.y)[part])
        assert len(once_more.x) == min(cap, (units.of_example == number).sum())


def test_units_of_one_example_change_nothing() -> None:
    examples = examples_of(Units.of(range(10)))
    assert by_unit(examples, 1) is examples


def test_no_unit_is_on_both_sides_of_a_holdout_and_a_changed_one_stays_on_its_side() -> None:
    names = [f"u{n % 40}" for n in range(200)]
    examples = examples_of(Units.of(names))
    train, test = split_by_hash(examples, 0.3)
    assert train.units is not None
    assert test.units is not None
    assert not set(train.units.names) & set(test.units.names)
    assert len(train.x) + len(test.x) == 200
    changed = replace(examples, x=examples.x + 1, y=np.zeros(200, np.int64))
    assert split_by_hash(changed, 0.3)[1].units is not None
    assert split_by_hash(changed, 0.3)[1].units.names == test.units.names  # pyright: ignore[reportOptionalMemberAccess]
    with pytest.raises(ConfigError, match="of 1 unit leaves one part empty"):
        split_by_hash(examples_of(Units.of(["a"] * 5)), 0.3)


# --- parts, by brute force --------------------------------------------------------------------------------------------

# A unit is a name with one or two rows; a data set maps names to what they hold.
ROWS = (0, 1)
CONTENTS: tuple[tuple[int, ...], ...] = ((0,), (1,), (0, 1))
Sources = tuple[tuple[str, tuple[int, ...]], ...]
NAMED = (Threat.ADD, Threat.REMOVE, Threat.SYMMETRIC_DIFFERENCE, Threat.REPLACE, Threat.EDIT)


def one_step(data: Sources, threat: Threat) -> Iterator[Sources]:
    """Every set of units that one unit of a threat makes of another."""
    held = dict(data)
    for name, rows in data:
        if threat in (Threat.REMOVE, Threat.SYMMETRIC_DIFFERENCE, Threat.EDIT):
            yield tuple((other, its) for other, its in data if other != name)
        if threat in (Threat.REPLACE, Threat.EDIT):
            for changed in CONTENTS:
                if changed != rows:
                    yield tuple(sorted({**held, name: changed}.items()))
    if threat in (Threat.ADD, Threat.SYMMETRIC_DIFFERENCE, Threat.EDIT):
        for name, rows in product(NAMES, CONTENTS):
            if name not in held:
                yield tuple(sorted({**held, name: rows}.items()))


def smallest_flip(data: Sources, threat: Threat, predict: Callable[[Sources], int], limit: int) -> int:
    label, seen, frontier = predict(data), {data}, {data}
    for radius in range(1, limit + 1):
        frontier = {other for known in frontier for other in one_step(known, threat) if other} - seen
        if any(predict(other) != label for other in frontier):
            return radius
        seen |= frontier
    return limit + 1


def as_examples(data: Sources) -> Examples:
    rows = [(name, row) for name, its in data for row in its]
    return Examples(np.array([[float(row)] for _, row in rows]), np.array([row for _, row in rows]),
                    units=Units.of([name for name, _ in rows]))  # fmt: skip


def votes_of_parts(data: Sources, plan: Parts | SpreadParts, seed: int, classes: int = 3) -> Votes:
    """Votes of models that are arbitrary functions of what they see: a ranking of labels by a hash."""
    examples = by_unit(as_examples(data), 10)
    assert examples.units is not None
    assert examples.y is not None
    members = plan.members(unit_hashes(examples.units, content_hashes(examples.x, examples.y)))
    rankings: list[list[int]] = []
    for model, part in enumerate(members):
        seen = f"{seed} {model} {[(float(examples.x[at, 0]), int(examples.y[at])) for at in part]}".encode()
        random = np.random.default_rng(int.from_bytes(hashlib.sha256(seen).digest()[:8], "big"))
        # Label 1 is the likeliest, so that some radius is above 0.
        rankings.append(np.argsort(-random.random(classes) * np.array([0.5, 1.0, 0.5])).tolist())
    first = np.array([ranking[0] for ranking in rankings])
    before = [[sum(r.index(a) < r.index(b) for r in rankings) if a != b else 0 for b in range(classes)]
              for a in range(classes)]  # fmt: skip
    mechanism = plan.mechanism(num_train=len(data), classes=classes)
    return Votes(
        np.bincount(first, minlength=classes)[None],
        mechanism,
        evidence={"predictions": first[None].astype(np.uint16), "preferences": np.array([before])},
        unit=Unit("vendor", len(data)),
    )


NAMES = tuple("abcde")


@pytest.mark.parametrize("threat", NAMED)
@pytest.mark.parametrize(
    ("rule", "plan"),
    [(MajorityRule(), Parts(5)), (SpreadRule(), SpreadParts(4, 2)), (RunOffRule(), Parts(5))],
    ids=["majority", "spread", "run-off"],
)
def test_no_certified_label_changes_whatever_units_are_poisoned(
    rule: ExactRule, plan: Parts | SpreadParts, threat: Threat
) -> None:
    random, certified, met = np.random.default_rng(3), 0, 0
    for seed in range(16):
        data = tuple((name, CONTENTS[random.integers(3)]) for name in NAMES[:4])

        def predict(other: Sources, seed: int = seed) -> int:
            return int(rule.decide(votes_of_parts(other, plan, seed), threat).label[0])

        radius = int(rule.decide(votes_of_parts(data, plan, seed), threat).radius[0])
        certified += radius
        if radius:
            met += 1
            assert smallest_flip(data, threat, predict, min(radius, 2)) > min(radius, 2)
    assert certified >= 3  # Not an empty claim.
    assert met >= 3


def test_a_changed_unit_touches_one_part_where_a_changed_example_touches_two() -> None:
    votes = Votes.from_counts([[9, 1]], mechanism=Partitioned(10))
    of_units = replace(votes, unit=Unit("vendor", 50))
    for threat, examples, units in (
        (Threat.EDIT, 2, 4),
        (Threat.REPLACE, 2, 4),
        (Threat.ADD, 4, 4),
        (Threat.SYMMETRIC_DIFFERENCE, 4, 4),
    ):
        assert certify(votes, threat=threat).radius.tolist() == [examples]
        assert certify(of_units, threat=threat).radius.tolist() == [units]
    assert certify(of_units).threat is Threat.EDIT
    assert certify(votes).threat is Threat.SYMMETRIC_DIFFERENCE


def test_every_row_of_a_unit_is_in_one_part_in_an_order_of_its_own() -> None:
    examples = by_unit(examples_of(Units.of([f"u{n % 30}" for n in range(120)])), 10)
    assert examples.units is not None
    assert examples.y is not None
    members = Parts(7).members(unit_hashes(examples.units, content_hashes(examples.x, examples.y)))
    places = {int(row): number for number, part in enumerate(members) for row in part}
    for unit in range(30):
        assert len({places[row] for row in np.flatnonzero(examples.units.of_example == unit).tolist()}) == 1
    assert sorted(places) == list(range(len(examples.x)))


# --- bagging ----------------------------------------------------------------------------------------------------------


def test_bagging_draws_units_with_all_their_examples() -> None:
    starts, labels = np.array([0, 3, 4, 9]), np.arange(9)
    counts = np.zeros(3)
    for instance in range(300):
        members, seen = Bootstrap(300, 2).drawn(
            labels, 9, 10, lambda purpose, n=instance: np.random.default_rng([n, len(purpose)]), starts
        )
        assert np.array_equal(members, seen)
        drawn: list[int] = []
        rows = members.tolist()
        while rows:
            unit = int(np.searchsorted(starts, rows[0], side="right")) - 1
            whole = list(range(starts[unit], starts[unit + 1]))
            assert rows[: len(whole)] == whole
            rows, drawn = rows[len(whole) :], [*drawn, unit]
        assert len(drawn) == 2
        counts += np.bincount(drawn, minlength=3)
    # 600 uniform draws of three: chi-square with two degrees of freedom exceeds 18.4 once in ten thousand.
    assert ((counts - 200) ** 2 / 200).sum() < 18.4
    assert Bootstrap(300, 2).longest(9, 100, starts) == 10


# --- units of one example each ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["dpa", "finite-aggregation", "run-off-election", "run-off-finite-aggregation", "bagging"]
)
@pytest.mark.parametrize("learner", [None, "logistic"])
def test_units_of_one_example_give_the_votes_of_examples(method: str, learner: str | None) -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(60, 4)), random.integers(0, 3, 60)
    names = [np.ascontiguousarray(each, dtype="<u8").tobytes().hex() for each in content_hashes(x, y)]
    constants: dict[str, Any] = {"draws": 8, "instances": 6} if method == "bagging" else {"partitions": 5}
    if learner is None:
        constants |= {"model": "linear", "features": "unit-norm", "steps": 5}
    chosen = defence(method, learner=learner, classes=3, **constants)
    # Under one seed the instances of both are the same draws; models of parts take none.
    seed = bytes(32) if method == "bagging" else None
    plain, of_units = (
        chosen.train(Examples(x, y, units=units), x[:20], root_seed=seed, device="cpu")
        for units in (None, Units.of(names))
    )
    assert np.array_equal(plain.counts, of_units.counts)
    assert plain.mechanism == of_units.mechanism
    assert (plain.unit, of_units.unit) == (None, Unit("unit", 60))


# --- in files, and what is refused ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Certificate]:
    folder = tmp_path_factory.mktemp("units")
    random = np.random.default_rng(1)
    x, y = random.normal(size=(200, 3)), random.integers(0, 2, 200)
    x[:, 0] += 3 * y
    examples = Examples(x, y, units=Units.of([f"v{n % 50}" for n in range(200)], "vendor"))
    chosen = defence("dpa", partitions=11, learner="logistic", classes=2)
    votes = chosen.train(examples, (x[:30], y[:30]), run_dir=folder / "run", device="cpu")
    found = chosen.certify(votes)
    assert isinstance(found, Certificate)
    found.save(folder / "certificate.json")
    return folder, found


def test_files_carry_the_unit(certified: tuple[Path, Certificate]) -> None:
    folder, found = certified
    said = json.loads((folder / "certificate.json").read_text())
    assert said["unit"] == {"name": "vendor", "count": 50}
    assert said["threat"] == "edit"
    assert found.to_dict()["unit"] == {"name": "vendor", "count": 50}
    assert Certificate.load(folder / "certificate.json") == found
    assert Votes.load(folder / "run" / "votes.npz").unit == Unit("vendor", 50)
    assert found.votes.training is not None
    assert found.votes.training.units == Units.of([f"v{n % 50}" for n in range(200)]).fingerprint()
    assert verify(folder / "certificate.json", run=folder / "run").valid
    assert max(found.radius) > 0
    votes = Votes.from_counts([[9, 1]], mechanism=Partitioned(10))
    assert "unit" not in certify(votes).to_dict()


def test_the_fingerprint_of_units_is_what_the_documentation_says(certified: tuple[Path, Certificate]) -> None:
    lines = "".join(f"'v{n % 50}'\n" for n in range(200))
    assert certified[1].votes.training is not None
    assert certified[1].votes.training.units == hashlib.sha256(lines.encode()).hexdigest()


@pytest.mark.parametrize(
    "change",
    [
        {"unit": None},
        {"unit": Unit("vendor", 201)},
        {"unit": Unit("vendor", 51)},
        {"training": None, "unit": Unit("site", 50)},
    ],
)
def test_an_audit_finds_another_unit(certified: tuple[Path, Certificate], change: dict[str, Any]) -> None:
    folder, found = certified
    replace(found, votes=replace(found.votes, **change)).save(folder / "forged.json")
    assert not verify(folder / "forged.json", run=folder / "run").valid


def test_an_audit_finds_units_that_contradict_the_mechanism(tmp_path: Path) -> None:
    votes = Votes.from_counts([[90, 10]], mechanism=Bagged(60, 3))
    for count in (60, 61):
        certify(replace(votes, unit=Unit("vendor", count))).save(tmp_path / "certificate.json")
        assert verify(tmp_path / "certificate.json").valid == (count == 60)


def test_votes_of_different_units_do_not_merge() -> None:
    one = Votes(np.array([[3, 1]]), PRIVATE, run_ids=("a",), unit=Unit("vendor", 5))
    two = Votes(np.array([[3, 1]]), PRIVATE, run_ids=("b",), unit=Unit("site", 5))
    with pytest.raises(ConfigError, match="what a unit is"):
        one.merge(two)
    assert one.merge(replace(two, unit=one.unit)).unit == one.unit


def test_a_certificate_names_its_unit_in_one_place(certified: tuple[Path, Certificate]) -> None:
    header, arrays = certified[1].votes.to_parts()
    assert header["unit"] == {"name": "vendor", "count": 50}
    with pytest.raises(ArtifactError):
        Votes.from_parts({**header, "unit": {"name": "vendor"}}, arrays, "this")
    with pytest.raises(ArtifactError):
        Votes.from_parts({**header, "unit": {"name": "vendor", "count": -1}}, arrays, "this")


TABLE = (np.arange(12.0).reshape(6, 2), np.array([0, 1, 0, 1, 0, 1]))


@pytest.mark.parametrize("method", ["label-smoothing", "feature-smoothing", "ridge"])
def test_methods_that_bound_single_examples_refuse_units(method: str) -> None:
    examples = Examples(*TABLE, units=Units.of(list("aabbcc"), "vendor"))
    with pytest.raises(ConfigError, match=f"{method} cannot certify vendors: "):
        defence(method, classes=2).order(examples, TABLE[0])


@pytest.mark.parametrize("constants", [{"num_units": 3}, {"unit_cap": 3}])
def test_constants_of_units_need_units(constants: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="declares none"):
        defence("dpa", partitions=2, **constants).order(TABLE, TABLE[0])


def test_the_number_of_examples_is_not_declared_where_there_are_units() -> None:
    examples = Examples(*TABLE, units=Units.of(list("aabbcc"), "vendor"))
    for method in ("dpa", "auto"):
        with pytest.raises(ConfigError, match="declare num_units instead"):
            compose(named(method, {"num_train": 6}), examples, TABLE[0])
    with pytest.raises(ConfigError, match="one of the two"):
        defence("dpa", num_train=6, num_units=3)


def test_constants_follow_the_number_of_units_and_radii_end_with_its_step() -> None:
    x = np.random.default_rng(0).normal(size=(400, 2))
    examples = Examples(x, (x[:, 0] > 0).astype(np.int64), units=Units.of(np.arange(400) % 40))
    order = defence("dpa", learner="logistic", classes=2).order(examples, x[:3])
    assert order.facts.num_train == 34
    assert order.count == 40
    assert order.size is not None
    assert (order.size.num_train, order.size.low) == (40, 34)
    declared = defence("dpa", learner="logistic", classes=2, num_units=40).order(examples, x[:3])
    assert declared.size is None
    assert declared.facts.num_train == 40
    # Whoever controls a unit decides how many examples there are, and changes no constant by that.
    more = Units.of([*(np.arange(400) % 40), *[0] * 5000])
    grown = Examples(
        np.concatenate([x, np.repeat(x[:1], 5000, axis=0)]), np.append(np.asarray(examples.y), [0] * 5000), units=more
    )
    again = defence("dpa", learner="logistic", classes=2).order(grown, x[:3])
    assert again.choice.details == order.choice.details
    assert again.size == order.size
    assert len(again.training.x) == 390 + 1000  # the cap


def test_more_partitions_than_units_are_refused() -> None:
    examples = Examples(*TABLE, units=Units.of(list("aabbcc"), "vendor"))
    with pytest.raises(ConfigError, match="only 3"):
        defence("dpa", partitions=4, learner="logistic", classes=2).train(examples, TABLE[0])


def test_names_of_units_fit_the_inputs() -> None:
    with pytest.raises(ConfigError, match="6 training inputs but 3 names of units"):
        defence("dpa", classes=2).order(Examples(*TABLE, units=Units.of(list("abc"))), TABLE[0])


def test_spread_partitions_know_units() -> None:
    mechanism = SpreadPartitions(4, (0, 1))
    first = np.array([[1, 1, 1, 1, 1, 1, 1, 0]], np.uint16)
    votes = Votes(np.array([[1, 7]]), mechanism, evidence={"predictions": first})
    of_units = certify(replace(votes, unit=Unit("vendor", 50)), threat="edit").radius[0]
    assert of_units == certify(votes, threat="symmetric-difference").radius[0] > 0
    assert certify(votes, threat="edit").radius[0] < of_units


def test_one_unit_alone_is_refused() -> None:
    examples = Examples(*TABLE, units=Units.of(["a"] * 6, "vendor"))
    with pytest.raises(ConfigError, match="All training examples are of one vendor"):
        defence("dpa", classes=2).order(examples, TABLE[0])
