"""Every attack keeps to its threat and budget, on every kind of data, and does what its title says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mithridate.attacking.attacks import ATTACKS, NAMES, boundaries, with_trigger
from mithridate.attacking.poison import Poison
from mithridate.attacking.scene import Scene
from mithridate.core.conditions import Size, step_of
from mithridate.core.mechanism import Threat
from mithridate.data import Category, Number, Table, read
from mithridate.data.examples import Examples
from mithridate.data.partition import content_hashes, unit_hashes
from mithridate.data.units import Units
from mithridate.defences import defence
from mithridate.training.order import Order, compose

COUNT, CLASSES, TARGETS = 40, 3, 3
BUDGETS = (1, 2, 7, 60)  # the last is more than there are examples
TABLE = Table("kind", (Number("age", 0, 100, 4), Category("job", 16), Number("pay", 0, 10, 4)), ("p", "q", "r"))
OF_UNITS = (Threat.SYMMETRIC_DIFFERENCE, Threat.ADD, Threat.REMOVE, Threat.REPLACE, Threat.EDIT)


def frame(count: int, seed: int) -> pd.DataFrame:
    """People of three jobs."""
    random = np.random.default_rng(seed)
    jobs = np.array(["smith", "cook", "judge"])
    return pd.DataFrame(
        {
            "age": random.integers(0, 100, count),
            "job": jobs[random.integers(3, size=count)],
            "pay": random.integers(0, 11, count),
            "kind": np.array(TABLE.classes)[np.arange(count) % 3],
        }
    )


def words(count: int, seed: int) -> Any:
    random = np.random.default_rng(seed)
    known = np.array(["good", "bad", "plain", "loud", "soft", "old"])
    return np.array([" ".join(known[random.integers(6, size=4)]) + f" {n}" for n in range(count)])


@cache
def data(kind: str) -> tuple[Examples, Examples]:
    """A training set of one kind, and three inputs."""
    random, y = np.random.default_rng(1), np.arange(COUNT) % CLASSES
    if kind == "table":
        return read(frame(COUNT, 1), TABLE, labels=True), read(frame(TARGETS, 2), TABLE)
    if kind == "text":
        return Examples(words(COUNT, 1), y), Examples(words(TARGETS, 2), None)
    if kind == "images":
        x = random.integers(0, 256, (COUNT + TARGETS, 1, 8, 8), dtype=np.uint8)
    elif kind == "bytes":
        x = random.integers(0, 256, (COUNT + TARGETS, 12), dtype=np.uint8)
    elif kind == "integers":
        x = random.integers(-50, 50, (COUNT + TARGETS, 4))
    else:
        x = random.normal(size=(COUNT + TARGETS, 4)).astype(np.float32)
    units = Units.of([f"v{n % 9}" for n in range(COUNT)], "vendor") if kind == "units" else None
    return Examples(x[:COUNT], y, units=units), Examples(x[COUNT:], None)


KINDS = ("images", "bytes", "integers", "rows", "table", "text", "units")
METHODS: dict[str, dict[str, Any]] = {
    "nearest-neighbours": {},
    "dpa": {"partitions": 5, "model": "linear"},
    "finite-aggregation": {"partitions": 4, "spread": 2, "model": "linear"},
    "label-smoothing": {"model": "linear"},
    "feature-smoothing": {"model": "linear", "max_change": 0.3},
    "bagging": {"model": "linear"},
}


def of(
    method: str,
    training: Examples,
    inputs: Examples,
    threat: Threat,
    *,
    models: Any = None,
    counts: Any = None,
    **constants: Any,
) -> tuple[Scene, Order]:
    """A scene with votes that nobody cast: attacks do not ask where they come from."""
    features = {"features": "hashed-words"} if training.kind == "text" else {}
    order = compose(defence(method, **{**METHODS[method], **features, **constants}), training, inputs)
    carriers = replace(inputs, x=with_trigger(training, inputs.x[:1]).astype(inputs.x.dtype), y=None, ids=None)
    longer = max(inputs.x.dtype, carriers.x.dtype, key=lambda each: each.itemsize)
    if training.kind == "text":
        carriers, longer = replace(carriers, x=with_trigger(training, inputs.x[:1])), np.dtype("U200")
    asked = replace(inputs, x=np.concatenate([inputs.x.astype(longer), carriers.x]), y=None, ids=None)
    said = np.random.default_rng(0).multinomial(20, [0.5, 0.3, 0.2], size=len(asked.x)) if counts is None else counts
    triggered = {} if training.units is not None else {len(inputs.x): 0}
    is_parts = method in ("dpa", "finite-aggregation")
    scene = Scene(training, asked, triggered, order.defence, threat, said.argmax(axis=1), said, is_parts, models)
    return scene, order


def pairs() -> list[Any]:
    """Methods and kinds of data that go together."""
    return [
        (method, kind)
        for method in METHODS
        for kind in KINDS
        if kind != "units" or method in ("nearest-neighbours", "dpa", "bagging")
    ]


# --- all of them ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "kind"), pairs())
def test_whatever_fits_keeps_to_the_threat_and_the_budget(method: str, kind: str) -> None:
    """And what comes of it can be given to the same door as the clean set."""
    training, inputs = data(kind)
    for threat in OF_UNITS if kind == "units" else Threat:
        scene, order = of(method, training, inputs, threat)
        for name, attack in ATTACKS.items():
            for target in range(len(scene.inputs.x)):
                if not attack.fits(scene, target):
                    continue
                for budget in BUDGETS:
                    poison = attack.poison(scene, target, budget)
                    if poison is None:
                        continue
                    cost = poison.cost(threat, training)
                    assert 0 < cost <= budget, (name, threat, budget)
                    check_poisoned(poison, training, inputs, order)


def check_poisoned(poison: Poison, training: Examples, inputs: Examples, order: Order) -> None:
    """That a method can be trained on it, of the same kind of data and by the same constants for it."""
    poisoned = poison.applied(training)
    assert (poisoned.kind, poisoned.x.shape[1:]) == (training.kind, training.x.shape[1:])
    assert poisoned.kind == "text" or poisoned.x.dtype == training.x.dtype
    again = compose(order.defence, poisoned, inputs)
    assert again.facts.kind == order.facts.kind
    assert again.facts.shape == order.facts.shape


EXPECTED = {
    Threat.SYMMETRIC_DIFFERENCE: {"copies", "flip", "delete", "backdoor"},
    Threat.ADD: {"copies", "backdoor"},
    Threat.REMOVE: {"delete"},
    Threat.REPLACE: {"copies", "flip", "backdoor"},
    Threat.EDIT: {"copies", "flip", "delete", "backdoor"},
    Threat.LABELS: {"flip"},
    Threat.FEATURES: set(),
}


@pytest.mark.parametrize("threat", Threat)
def test_every_threat_has_the_attacks_that_it_allows(threat: Threat) -> None:
    training, inputs = data("rows")
    scene, _ = of("nearest-neighbours", training, inputs, threat)
    found = {name for name in ATTACKS for target in (0, TARGETS) if ATTACKS[name].fits(scene, target)}
    assert found == EXPECTED[threat]
    for name in found:  # and each of them really changes something
        poison = ATTACKS[name].poison(scene, TARGETS if name == "backdoor" else 0, 2)
        assert poison is not None
        assert poison.cost(threat, training) > 0


def test_there_is_a_name_for_each() -> None:
    assert set(NAMES) == {*ATTACKS, "boundary"}
    assert all(attack.name == name for name, attack in ATTACKS.items())


# --- copies, flips, deletions -----------------------------------------------------------------------------------------


def cosines(training: Examples, x: Any) -> Any:
    """Of rows of numbers, the slow way."""
    return np.array([float(row @ x / (np.linalg.norm(row) * np.linalg.norm(x))) for row in training.x.astype(float)])


@pytest.mark.parametrize("threat", [Threat.ADD, Threat.SYMMETRIC_DIFFERENCE, Threat.EDIT, Threat.REPLACE])
@pytest.mark.parametrize("kind", KINDS[:-1])
def test_copies_are_of_the_input_and_have_the_label_of_its_runner_up(kind: str, threat: Threat) -> None:
    training, inputs = data(kind)
    scene, _ = of("nearest-neighbours", training, inputs, threat)
    for target in range(TARGETS):
        rival = scene.counts[target].argsort()[-2]
        poison = ATTACKS["copies"].poison(scene, target, 5)
        assert poison is not None
        assert poison.y.tolist() == [rival] * 5
        assert all(row.tolist() == inputs.x[target].tolist() for row in poison.x)
        if len(poison.deleted):  # those that go are of the label that is predicted
            assert np.asarray(training.y)[poison.deleted].tolist() == [scene.label[target]] * 5


def test_where_nobody_votes_for_another_label_the_rival_is_that_of_the_nearest() -> None:
    training, inputs = data("rows")
    counts = np.zeros((TARGETS + 1, CLASSES), dtype=np.int64)
    counts[:, 1] = 9
    scene, _ = of("nearest-neighbours", training, inputs, Threat.ADD, counts=counts, features="none")
    y = np.asarray(training.y)
    for target in range(TARGETS):
        order = np.argsort(-cosines(training, inputs.x[target]))
        assert scene.rival(target) == next(int(y[at]) for at in order if y[at] != 1)


@pytest.mark.parametrize(
    ("name", "threat"), [("delete", Threat.REMOVE), ("delete", Threat.EDIT), ("flip", Threat.LABELS)]
)
def test_those_that_are_deleted_or_flipped_are_the_nearest_with_the_label(name: str, threat: Threat) -> None:
    training, inputs = data("rows")
    scene, _ = of("nearest-neighbours", training, inputs, threat, features="none")
    y = np.asarray(training.y)
    for target in range(TARGETS):
        order = np.argsort(-cosines(training, inputs.x[target].astype(float)))
        nearest = [at for at in order.tolist() if y[at] == scene.label[target]][:4]
        poison = ATTACKS[name].poison(scene, target, 4)
        assert poison is not None
        assert poison.deleted.tolist() == sorted(nearest)


def test_a_flip_takes_two_where_only_insertions_and_deletions_count() -> None:
    scene, _ = of("nearest-neighbours", *data("rows"), Threat.SYMMETRIC_DIFFERENCE)
    assert ATTACKS["flip"].poison(scene, 0, 1) is None
    poison = ATTACKS["flip"].poison(scene, 0, 5)
    assert poison is not None
    assert len(poison.deleted) == len(poison.y) == 2


def test_no_deletion_leaves_less_than_two_examples() -> None:
    x, y = np.eye(4, dtype=np.float32), np.array([0, 0, 0, 1])
    counts = np.array([[3, 1], [3, 1]])
    scene, _ = of("nearest-neighbours", Examples(x, y), Examples(x[:1], None), Threat.REMOVE, counts=counts)
    for budget in (1, 2, 3, 4):
        poison = ATTACKS["delete"].poison(scene, 0, budget)
        assert poison is None or len(poison.applied(scene.training).x) >= 2


def test_beyond_the_supporters_copies_take_the_place_of_the_farthest() -> None:
    """Near examples of the runner-up work for the attacker, and are the last to go."""
    x = np.array([[1, 0], [1, 0.1], [1, 0.2], [1, 0.3], [0, 1], [-1, 0]], dtype=np.float32)
    y = np.array([0, 0, 1, 1, 1, 1])
    counts = np.array([[2, 1, 0], [2, 1, 0]])
    training, inputs = Examples(x, y), Examples(x[:1], None)
    scene, _ = of("nearest-neighbours", training, inputs, Threat.REPLACE, counts=counts, classes=3, features="none")
    poison = ATTACKS["copies"].poison(scene, 0, 4)
    assert poison is not None
    assert poison.deleted.tolist() == [0, 1, 4, 5]


# --- parts ------------------------------------------------------------------------------------------------------------


def landed(order: Order, poisoned: Examples, of_interest: Sequence[int]) -> list[tuple[int, ...]]:
    """Which models see each of some examples of a poisoned set, as it is trained on."""
    again = compose(order.defence, poisoned, order.test)
    training = again.training
    assert training.y is not None
    hashes = content_hashes(training.x, training.y)
    if training.units is not None:
        hashes = unit_hashes(training.units, hashes)
    members = [set(each.tolist()) for each in order.defence.plan().members(hashes)]
    return [tuple(model for model, seen in enumerate(members) if at in seen) for at in of_interest]


@pytest.mark.parametrize("method", ["dpa", "finite-aggregation"])
@pytest.mark.parametrize("threat", [Threat.SYMMETRIC_DIFFERENCE, Threat.ADD, Threat.REPLACE])
@pytest.mark.parametrize("kind", [*KINDS[:-1], "wide"])
def test_crafted_variants_land_in_different_parts(kind: str, threat: Threat, method: str) -> None:
    """`wide`: inputs in double precision, over training data in single precision, in which they are hashed."""
    training, inputs = data("rows" if kind == "wide" else kind)
    if kind == "wide":
        inputs = Examples(np.random.default_rng(3).normal(size=(TARGETS, 4)), None)
    scene, order = of(method, training, inputs, threat, partitions=8)
    for target in range(TARGETS):
        poison = ATTACKS["crafted"].poison(scene, target, 6)
        assert poison is not None
        assert len(poison.y) == 6
        is_added = len(poison.deleted) == 0
        places = range(COUNT, COUNT + 6) if is_added else poison.deleted.tolist()
        found = landed(order, poison.applied(training), places)
        assert len(set(found)) == 6


def test_of_a_table_whose_inputs_come_in_double_precision_crafted_rows_land_in_different_parts() -> None:
    training, inputs = data("table")
    wide = Examples(inputs.x.astype(np.float64) + 1e-9, None)
    scene, order = of("dpa", training, wide, Threat.ADD, partitions=8)
    for target in range(TARGETS):
        poison = ATTACKS["crafted"].poison(scene, target, 6)
        assert poison is not None
        found = landed(order, poison.applied(training), range(COUNT, COUNT + len(poison.y)))
        assert len(set(found)) == len(poison.y)


def test_no_more_variants_are_crafted_than_there_are_parts() -> None:
    scene, order = of("dpa", *data("rows"), Threat.ADD)
    poison = ATTACKS["crafted"].poison(scene, 0, 60)
    assert poison is not None
    found = landed(order, poison.applied(scene.training), range(COUNT, COUNT + len(poison.y)))
    assert sorted(found) == [(part,) for part in range(5)]


def test_parts_that_vote_for_the_label_come_first_and_those_of_the_rival_last() -> None:
    counts = np.tile([5, 3, 1], (TARGETS + 1, 1))
    models = np.tile(np.array([1, 0, 1, 0, 2, 0, 1, 2])[:, None], (1, TARGETS + 1))  # 0 is predicted, 1 the rival
    scene, order = of("dpa", *data("rows"), Threat.ADD, models=models, counts=counts, partitions=8)
    for budget, parts in ((3, {1, 3, 5}), (5, {1, 3, 5, 4, 7}), (8, set(range(8)))):
        poison = ATTACKS["crafted"].poison(scene, 0, budget)
        assert poison is not None
        found = landed(order, poison.applied(scene.training), range(COUNT, COUNT + budget))
        assert {part for (part,) in found} == parts


def test_sources_are_named_so_that_each_lands_in_another_part() -> None:
    training, inputs = data("units")
    scene, order = of("dpa", training, inputs, Threat.EDIT, partitions=8)
    poison = ATTACKS["crafted"].poison(scene, 0, 5)
    assert poison is not None
    assert poison.units is not None
    poisoned = poison.applied(training)
    again = compose(order.defence, poisoned, inputs).training
    assert again.units is not None
    named = [again.units.names[at] for at in again.units.of_example.tolist()]
    found = {name: landed(order, poisoned, [named.index(name)])[0] for name in set(poison.units)}
    assert len(found) == len(set(found.values())) == 5
    assert not set(found) & set(training.units.names if training.units else ())


# --- sources ----------------------------------------------------------------------------------------------------------


def test_sources_that_are_taken_over_hold_nothing_but_copies() -> None:
    training, inputs = data("units")
    for threat, changed in ((Threat.EDIT, 3), (Threat.REPLACE, 3), (Threat.SYMMETRIC_DIFFERENCE, 1)):
        scene, _ = of("nearest-neighbours", training, inputs, threat)
        poison = ATTACKS["sources"].poison(scene, 0, 3)
        assert poison is not None
        poisoned = poison.applied(training)
        assert poisoned.units is not None
        assert poison.units is not None
        assert len(set(poison.units)) == changed
        for number, name in enumerate(poisoned.units.names):
            own = poisoned.units.of_example == number
            if name in poison.units:
                assert (poisoned.x[own] == inputs.x[0]).all()
                assert set(np.asarray(poisoned.y)[own].tolist()) == {scene.rival(0)}


def test_copies_and_deletions_are_of_whole_sources() -> None:
    training, inputs = data("units")
    scene, _ = of("nearest-neighbours", training, inputs, Threat.SYMMETRIC_DIFFERENCE)
    added, gone = (ATTACKS[name].poison(scene, 0, 2) for name in ("copies", "delete"))
    assert added is not None
    assert gone is not None
    left = gone.applied(training).units
    assert left is not None
    assert len(left.names) == 7
    both = added.applied(training).units
    assert both is not None
    assert len(both.names) == 11


# --- bounded moves ----------------------------------------------------------------------------------------------------

MOVES: list[tuple[str, dict[str, Any]]] = [
    ("rows", {"features": "none"}),
    ("rows", {}),
    ("images", {"features": "none"}),
    ("images", {"features": "oriented-gradients"}),
    ("table", {}),
]


def seen_by_model(scene: Scene, x: Any) -> Any:
    """Inputs as they reach the model, in double precision: encoded, pixels divided by 255, or as they are."""
    encoder = scene.defence.encoder
    made = encoder.transform(x) if encoder is not None else x / 255 if x.dtype == np.uint8 else x
    made = made.toarray() if hasattr(made, "toarray") else made
    return np.asarray(made, dtype=np.float64).reshape(len(x), -1)


@pytest.mark.parametrize("max_change", [0.2, 0.7])
@pytest.mark.parametrize(("kind", "constants"), MOVES)
def test_moves_are_as_short_as_declared_and_lead_somewhere(
    kind: str, constants: dict[str, Any], max_change: float
) -> None:
    training, inputs = data(kind)
    scene, _ = of("feature-smoothing", training, inputs, Threat.FEATURES, max_change=max_change, **constants)
    moved = 0
    for target in range(TARGETS):
        assert ATTACKS["move"].fits(scene, target)
        poison = ATTACKS["move"].poison(scene, target, 7)
        assert poison is not None
        y = np.asarray(training.y)
        assert (poison.y == y[poison.deleted]).all()
        assert set(poison.y.tolist()) == {scene.rival(target)}
        poisoned = poison.applied(training)
        before, after = seen_by_model(scene, training.x), seen_by_model(scene, poisoned.x)
        far = np.linalg.norm(after - before, axis=1)
        assert far.max() <= max_change
        assert np.flatnonzero(far).tolist() == [at for at in poison.deleted.tolist() if far[at]]
        moved += int((far > 0).sum())
        goal = seen_by_model(scene, inputs.x)[target]  # nobody moves away
        own = poison.deleted
        nearer = np.linalg.norm(after[own] - goal, axis=1) - np.linalg.norm(before[own] - goal, axis=1)
        assert kind != "rows" or constants == {} or (nearer < 0).all()
    assert moved >= (TARGETS if kind == "table" else 7 * TARGETS // 2)


def test_inputs_that_a_network_scales_by_itself_are_not_moved() -> None:
    """How far they may go is said in numbers that only the network sees."""
    training, inputs = data("images")
    constants = {"features": "none", "model": "linear", "pixel_mean": 0.5, "pixel_std": 0.25}
    scene, _ = of("feature-smoothing", training, inputs, Threat.FEATURES, **constants)
    assert not ATTACKS["move"].fits(scene, 0)


# --- gradients --------------------------------------------------------------------------------------------------------


def test_gradients_are_those_of_a_longer_copy_where_nothing_clips_them() -> None:
    training, inputs = data("rows")
    scene, _ = of("bagging", training, inputs, Threat.ADD, features="none", max_grad_norm=None)
    poison = ATTACKS["gradient"].poison(scene, 0, 3)
    assert poison is not None
    best = max([inputs.x[0] * times for times in (1, 2, 4, 8)] + list(training.x), key=lambda x: float(x @ inputs.x[0]))
    assert np.array_equal(poison.x, np.tile(best, (3, 1)))
    assert poison.y.tolist() == [scene.rival(0)] * 3


# --- variants and triggers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["images", "bytes", "integers", "rows", "text", "units"])
def test_variants_are_all_different_and_of_the_training_type(kind: str) -> None:
    training, inputs = data(kind)
    scene, _ = of("nearest-neighbours", training, inputs, Threat.ADD)
    for target in range(TARGETS):
        found = scene.variants(target, 800)
        assert found.dtype.kind == training.x.dtype.kind
        assert training.kind == "text" or found.dtype == training.x.dtype
        assert len({str(row.tolist()) for row in found}) == 800
        assert inputs.x[target].tolist() not in found.tolist()
        hashes = content_hashes(found, np.zeros(800, dtype=np.int64))
        assert len(np.unique(hashes, axis=0)) == 800


def test_variants_in_single_precision_differ_after_rounding() -> None:
    training, _ = data("rows")
    large = Examples(np.array([[1e-9, 1.0, -3e7, 123.456]] * TARGETS), None)
    scene, _ = of("nearest-neighbours", training, large, Threat.ADD)
    found = scene.variants(0, 2000)
    assert found.dtype == np.float32
    assert len(np.unique(found, axis=0)) == 2000


def test_variants_of_a_row_of_a_table_have_only_cells_that_occur() -> None:
    training, inputs = data("table")
    scene, _ = of("nearest-neighbours", training, inputs, Threat.ADD)
    found = scene.variants(0, 800)
    assert found.dtype == training.x.dtype
    ends = np.cumsum([column.width for column in TABLE.columns])
    for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        known = {str(cells.tolist()) for cells in [*training.x[:, start:end], inputs.x[0, start:end]]}
        assert {str(cells.tolist()) for cells in found[:, start:end]} <= known
    assert len(np.unique(found, axis=0)) > 100  # of few cells there are not more rows than that


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_a_trigger_marks_every_input_alike(kind: str) -> None:
    training, _ = data(kind)
    before = training.x.copy()
    marked = with_trigger(training, training.x)
    assert np.array_equal(training.x, before)
    changed = [one.tolist() != other.tolist() for one, other in zip(marked, before, strict=True)]
    assert sum(changed) >= COUNT - COUNT // 5  # but for those that had it
    assert np.array_equal(with_trigger(training, marked), marked) or kind == "text"
    if kind == "text":
        assert all(text.startswith(str(own)) for text, own in zip(marked.tolist(), before, strict=True))
        return
    same = (marked == marked[0]).all(axis=0) & (before != before[0]).any(axis=0)
    assert same.any()
    differs = (marked != before).any(axis=0)
    assert np.array_equal(marked[:, ~differs], before[:, ~differs])


def test_a_trigger_of_a_table_has_only_cells_that_occur() -> None:
    training, inputs = data("table")
    marked = with_trigger(training, inputs.x)
    width = sum(column.width for column in TABLE.columns[:2])
    assert all(row[:width].tolist() in training.x[:, :width].tolist() for row in marked)


def test_a_trigger_does_not_depend_on_how_an_array_lies_in_memory() -> None:
    x = np.random.default_rng(0).normal(size=(6, 3, 4)).astype(np.float32)
    training = Examples(x, np.arange(6) % 2)
    turned = np.asfortranarray(x)
    assert np.array_equal(with_trigger(training, turned), with_trigger(training, x))
    assert not np.array_equal(with_trigger(training, turned), x)


# --- boundaries -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["rows", "images", "units", "text", "table"])
def test_boundaries_are_crossed(kind: str) -> None:
    """Poison across the size step has another step, by as few changes as that takes; one more class is one more."""
    training, inputs = data(kind)
    scene, order = of("nearest-neighbours", training, inputs, Threat.EDIT)
    size = Size.of(scene.count)
    found = {each.what: each for each in boundaries(scene, size, classes_declared=False, target=0)}
    steps = [each for what, each in found.items() if what.startswith("the size step")]
    assert len(steps) == 2
    for each in steps:
        again = compose(order.defence, each.poison.applied(training), inputs)
        assert step_of(again.count) != size.low
        assert again.count in (size.low - 1, size.high)
        assert each.condition is None
    labels = found.get("the number of labels")
    # Classes that have names are declared, and a source of a new label is no smaller poison than others.
    assert (labels is None) == (kind in ("table", "units"))
    if labels is not None:
        assert labels.condition == "class-list"
        assert labels.poison.cost(Threat.ADD, training) == 1
        free = compose(defence("nearest-neighbours"), labels.poison.applied(training), inputs)
        assert free.facts.classes == CLASSES + 1


def test_declared_classes_have_no_boundary_and_constants_that_follow_nothing_neither() -> None:
    scene, _ = of("nearest-neighbours", *data("rows"), Threat.EDIT)
    assert list(boundaries(scene, None, classes_declared=True, target=0)) == []


def test_a_set_that_would_more_than_double_is_no_poisoned_one() -> None:
    scene, _ = of("nearest-neighbours", *data("rows"), Threat.EDIT)
    found = [each.what for each in boundaries(scene, Size(COUNT, 1, 200), classes_declared=True, target=0)]
    assert found == []
