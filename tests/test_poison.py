"""Poison: what it makes of a data set, and how many changes it counts as, beside slow counts of what really differs."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mithridate.attacking.poison import Poison
from mithridate.core.mechanism import Threat
from mithridate.data.columns import Number
from mithridate.data.declarations import Table
from mithridate.data.examples import Examples
from mithridate.data.units import Units
from mithridate.errors import ArtifactError, ConfigError

NAMES = ("a", "b", "c", "new", "newer")
OF_EXAMPLES = tuple(Threat)
OF_UNITS = (Threat.SYMMETRIC_DIFFERENCE, Threat.ADD, Threat.REMOVE, Threat.REPLACE, Threat.EDIT)


# --- slow and obvious counts ------------------------------------------------------------------------------------------


def rows(examples: Examples) -> list[tuple[Any, int]]:
    """Every example as a pair that can be compared."""
    assert examples.y is not None
    return list(zip([str(x.tolist()) for x in examples.x], examples.y.tolist(), strict=True))


def owners(examples: Examples) -> dict[str, Counter[tuple[Any, int]]]:
    """What every unit holds, by its name."""
    assert examples.units is not None
    found: dict[str, Counter[tuple[Any, int]]] = {}
    for number, row in zip(examples.units.of_example.tolist(), rows(examples), strict=True):
        found.setdefault(examples.units.names[number], Counter())[row] += 1
    return found


def slow_cost(threat: Threat, clean: Examples, poisoned: Examples) -> int | None:
    """How many changes of a threat lead from one set to the other; None where none do."""
    if clean.units is None:
        return _cost_of_examples(threat, clean, poisoned)
    before, after = owners(clean), owners(poisoned)
    gone, new = len(before.keys() - after.keys()), len(after.keys() - before.keys())
    changed = sum(before[name] != after[name] for name in before.keys() & after.keys())
    return {
        Threat.SYMMETRIC_DIFFERENCE: gone + new + 2 * changed,
        Threat.EDIT: gone + new + changed,
        Threat.ADD: None if gone or changed else new,
        Threat.REMOVE: None if new or changed else gone,
        Threat.REPLACE: None if gone or new else changed,
    }.get(threat)


def _cost_of_examples(threat: Threat, clean: Examples, poisoned: Examples) -> int | None:
    before, after = rows(clean), rows(poisoned)
    gone = sum((Counter(before) - Counter(after)).values())
    new = sum((Counter(after) - Counter(before)).values())
    if threat in (Threat.LABELS, Threat.FEATURES):  # whoever changes no more than that leaves every example its place
        if len(before) != len(after):
            return None
        kept = 0 if threat is Threat.LABELS else 1
        if any(one[kept] != other[kept] for one, other in zip(before, after, strict=True)):
            return None
        return sum(one != other for one, other in zip(before, after, strict=True))
    return {
        Threat.SYMMETRIC_DIFFERENCE: gone + new,
        Threat.EDIT: max(gone, new),
        Threat.ADD: None if gone else new,
        Threat.REMOVE: None if new else gone,
        Threat.REPLACE: gone if gone == new else None,
    }[threat]


@st.composite
def poisoned_sets(draw: st.DrawFn) -> tuple[Examples, Poison]:
    """Few examples of few values, so that they are often equal, with units or without, and any poison."""
    count = draw(st.integers(2, 7))
    value, label = st.integers(0, 2), st.integers(0, 1)
    x = np.array(draw(st.lists(value, min_size=count, max_size=count)), dtype=np.float32)[:, None]
    y = np.array(draw(st.lists(label, min_size=count, max_size=count)), dtype=np.int64)
    has_units = draw(st.booleans())
    owner = draw(st.lists(st.sampled_from(NAMES[:3]), min_size=count, max_size=count))
    clean = Examples(x, y, units=Units.of(owner, "vendor") if has_units else None)
    deleted = np.array(sorted(draw(st.sets(st.integers(0, count - 1), max_size=count - 1))), dtype=np.int64)
    # As often as not, as many are inserted as deleted: then each takes the place of the other.
    size = len(deleted) if draw(st.booleans()) else draw(st.integers(0, 5))
    more = np.array(draw(st.lists(value, min_size=size, max_size=size)), dtype=np.float32).reshape(size, 1)
    labels = np.array(draw(st.lists(label, min_size=size, max_size=size)), dtype=np.int64)
    if size == len(deleted):  # and of these, some keep their inputs or their labels
        kept = draw(st.sampled_from(["neither", "inputs", "labels"]))
        more = x[deleted] if kept == "inputs" else more
        labels = y[deleted] if kept == "labels" else labels
    names = tuple(draw(st.lists(st.sampled_from(NAMES), min_size=size, max_size=size))) if has_units else None
    return clean, Poison(deleted, more, labels, names)


# --- what it counts as ------------------------------------------------------------------------------------------------


@given(poisoned_sets())
def test_no_threat_counts_fewer_changes_than_there_are(case: tuple[Examples, Poison]) -> None:
    clean, poison = case
    poisoned = poison.applied(clean)
    for threat in Threat:
        fewest = slow_cost(threat, clean, poisoned)
        if fewest is None:
            with pytest.raises(ConfigError, match=threat.value):
                poison.cost(threat, clean)
            continue
        with contextlib.suppress(ConfigError):
            assert poison.cost(threat, clean) >= fewest, threat


@given(poisoned_sets())
def test_the_poisoned_set_is_the_planned_one(case: tuple[Examples, Poison]) -> None:
    clean, poison = case
    poisoned = poison.applied(clean)
    left = [row for number, row in enumerate(rows(clean)) if number not in set(poison.deleted.tolist())]
    planned = Counter(left + rows(Examples(poison.x, poison.y)))
    assert Counter(rows(poisoned)) == planned
    assert poisoned.x.dtype == clean.x.dtype
    if clean.units is None:
        assert poisoned.units is None
        return
    assert poison.units is not None
    names = [clean.units.names[at] for at in clean.units.of_example.tolist()]
    expected: dict[str, Counter[tuple[Any, int]]] = {}
    kept = [(name, row) for at, (name, row) in enumerate(zip(names, rows(clean), strict=True))
            if at not in set(poison.deleted.tolist())]  # fmt: skip
    for name, row in [*kept, *zip(poison.units, rows(Examples(poison.x, poison.y)), strict=True)]:
        expected.setdefault(name, Counter())[row] += 1
    assert owners(poisoned) == expected
    assert poisoned.units is not None
    assert sorted(poisoned.units.names) == sorted(expected)  # none that has no example
    assert poisoned.units.name == "vendor"


CLEAN = Examples(np.arange(12, dtype=np.float32).reshape(6, 2), np.array([0, 0, 0, 1, 1, 1]))
OWNED = replace(CLEAN, units=Units.of(["a", "a", "b", "b", "c", "c"], "vendor"))
FRESH = np.full((3, 2), 99, dtype=np.float32)
INSERTED = Poison.inserting(FRESH[:2], np.array([0, 1]))
DELETED = Poison.deleting(CLEAN, np.array([4, 1]))
CHANGED = Poison.changing(CLEAN, np.array([5, 0]), FRESH[:2], np.array([0, 1]))
RELABELLED = Poison.changing(CLEAN, np.array([5, 0]), CLEAN.x[[5, 0]], np.array([0, 1]))
MOVED = Poison.changing(CLEAN, np.array([5, 0]), FRESH[:2], CLEAN.y[[5, 0]])  # pyright: ignore[reportOptionalSubscript]
MIXED = Poison(np.array([1]), FRESH, np.array([0, 1, 0]))


@pytest.mark.parametrize("poison", [INSERTED, DELETED, CHANGED, RELABELLED, MOVED, MIXED])
def test_of_rows_that_nobody_else_has_the_count_is_exact(poison: Poison) -> None:
    """And every threat that some changes lead by is one that has a count, without exception."""
    for threat in Threat:
        fewest = slow_cost(threat, CLEAN, poison.applied(CLEAN))
        if fewest is None:
            with pytest.raises(ConfigError, match=f"{threat.value} does not cover"):
                poison.cost(threat, CLEAN)
        else:
            assert poison.cost(threat, CLEAN) == fewest


def test_a_flip_costs_two_where_only_insertions_and_deletions_count() -> None:
    assert RELABELLED.cost(Threat.SYMMETRIC_DIFFERENCE, CLEAN) == 4
    assert RELABELLED.cost(Threat.EDIT, CLEAN) == 2
    assert RELABELLED.cost(Threat.LABELS, CLEAN) == 2


OF_SOURCES = {
    "a new one": Poison.inserting(FRESH, np.array([0, 1, 0]), ["x", "x", "y"]),
    "a whole one deleted": Poison.deleting(OWNED, np.array([3, 2])),
    "a part of one deleted": Poison.deleting(OWNED, np.array([2])),
    "all of one in the place of all": Poison(np.array([2, 3]), FRESH, np.array([0, 1, 0]), ("b", "b", "b")),
    "one renamed": Poison(np.array([2, 3]), OWNED.x[[2, 3]], np.array([0, 1]), ("z", "z")),
    "more of one": Poison.inserting(FRESH, np.array([0, 1, 0]), ["a", "a", "c"]),
    "labels of one": Poison.changing(OWNED, np.array([2, 3]), OWNED.x[[2, 3]], np.array([1, 0])),
    "one deleted and one inserted": Poison(np.array([0, 1]), FRESH[:1], np.array([0]), ("x",)),
}


@pytest.mark.parametrize("what", OF_SOURCES)
def test_of_sources_whole_ones_are_counted(what: str) -> None:
    poison = OF_SOURCES[what]
    for threat in OF_UNITS:
        fewest = slow_cost(threat, OWNED, poison.applied(OWNED))
        if fewest is None:
            with pytest.raises(ConfigError, match=f"{threat.value} does not cover"):
                poison.cost(threat, OWNED)
        else:
            assert poison.cost(threat, OWNED) == fewest


@pytest.mark.parametrize("threat", [Threat.LABELS, Threat.FEATURES])
def test_threats_of_single_labels_and_inputs_do_not_cover_sources(threat: Threat) -> None:
    with pytest.raises(ConfigError, match="does not cover"):
        OF_SOURCES["labels of one"].cost(threat, OWNED)


def test_inputs_changed_along_with_labels_are_neither_labels_nor_features() -> None:
    for threat in (Threat.LABELS, Threat.FEATURES):
        with pytest.raises(ConfigError, match="0 changed"):
            CHANGED.cost(threat, CLEAN)
    with pytest.raises(ConfigError):
        MOVED.cost(Threat.LABELS, CLEAN)
    with pytest.raises(ConfigError):
        RELABELLED.cost(Threat.FEATURES, CLEAN)


def test_additions_cover_no_deletion_and_removals_no_insertion() -> None:
    assert INSERTED.cost(Threat.ADD, CLEAN) == 2
    assert DELETED.cost(Threat.REMOVE, CLEAN) == 2
    for poison, threat in ((DELETED, Threat.ADD), (INSERTED, Threat.REMOVE), (MIXED, Threat.ADD), (CHANGED, Threat.ADD),
                           (CHANGED, Threat.REMOVE), (MIXED, Threat.REPLACE)):  # fmt: skip
        with pytest.raises(ConfigError, match=f"{threat.value} does not cover"):
            poison.cost(threat, CLEAN)


# --- what is left as it was -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("poison", [INSERTED, DELETED, CHANGED, MIXED])
def test_whatever_was_declared_stays_declared(poison: Poison) -> None:
    declared = Table(None, (Number("a", 0, 1, 2),))
    said = replace(CLEAN, class_names=("no", "yes"), notes=("n",), assumptions=("s",), declaration=declared,
                   ids=[f"row {n}" for n in range(6)])  # fmt: skip
    found = poison.applied(said)
    assert (found.class_names, found.notes, found.assumptions) == (("no", "yes"), ("n",), ("s",))
    assert found.declaration == declared
    assert found.ids is None  # examples were inserted that have no name


def test_the_clean_set_is_not_written_to() -> None:
    before = CLEAN.x.copy(), np.array(CLEAN.y)
    for poison in (INSERTED, DELETED, CHANGED, RELABELLED, MIXED):
        poison.applied(CLEAN)
    assert np.array_equal(CLEAN.x, before[0])
    assert np.array_equal(np.array(CLEAN.y), before[1])


@pytest.mark.parametrize("deleted", [[], [1], [0, 1]])
def test_a_text_longer_than_any_of_the_clean_set_is_kept_whole(deleted: list[int]) -> None:
    texts = Examples(np.array(["ab", "cd", "e"]), np.array([0, 1, 1]))
    long = np.array(["a much longer text than there was"])
    found = Poison(np.array(deleted, dtype=np.int64), long, np.array([1])).applied(texts)
    assert str(long[0]) in found.x.tolist()
    left = [text for number, text in enumerate(["ab", "cd", "e"]) if number not in deleted]
    assert sorted(found.x.tolist()) == sorted([*left, str(long[0])])


@pytest.mark.parametrize("poison", [INSERTED, CHANGED])
def test_the_type_of_the_clean_numbers_is_kept(poison: Poison) -> None:
    wide = replace(poison, x=poison.x.astype(np.float64) + 0.1)
    found = wide.applied(CLEAN)
    assert found.x.dtype == np.float32
    assert {float(np.float32(99.1))} <= set(found.x.ravel().tolist())


def test_what_is_changed_is_named_in_any_order() -> None:
    which, x, y = np.array([4, 0, 2]), FRESH + np.arange(3, dtype=np.float32)[:, None], np.array([2, 3, 4])
    found = Poison.changing(CLEAN, which, x, y).applied(CLEAN)
    assert found.y is not None
    for place, row, label in zip(which.tolist(), x, y.tolist(), strict=True):
        assert (found.x[place] == row).all()
        assert found.y[place] == label
    inside = Poison.changing(OWNED, which, x, y)
    assert inside.units == ("a", "b", "c")  # of the examples 0, 2 and 4


# --- as files ---------------------------------------------------------------------------------------------------------

KEPT = {
    "numbers": (CLEAN, MIXED),
    "nothing inserted": (CLEAN, DELETED),
    "nothing deleted": (CLEAN, INSERTED),
    "sources": (OWNED, OF_SOURCES["one deleted and one inserted"]),
    "sources, none inserted": (OWNED, OF_SOURCES["a whole one deleted"]),
    "pixels": (
        Examples(np.arange(48, dtype=np.uint8).reshape(3, 4, 4), np.array([0, 1, 1])),
        Poison.inserting(np.full((2, 4, 4), 200, dtype=np.uint8), np.array([1, 0])),
    ),
    "texts": (
        Examples(np.array(["a", "b"]), np.array([0, 1])),
        Poison.inserting(np.array(["ä 𝄞 'quoted' \" \\n\n", "b"]), np.array([1, 0])),
    ),
}


@pytest.mark.parametrize("what", KEPT)
def test_what_is_saved_is_read_back(what: str, tmp_path: Path) -> None:
    clean, poison = KEPT[what]
    poison.save(tmp_path / "p.npz", {"attack": "copies", "seed": None})
    again = Poison.load(tmp_path / "p.npz")
    assert again.x.dtype == poison.x.dtype
    assert (again.x.tolist(), again.y.tolist(), again.deleted.tolist(), again.units) == (
        *(poison.x.tolist(), poison.y.tolist(), poison.deleted.tolist(), poison.units),
    )
    assert again.digest() == poison.digest()
    one, other = poison.applied(clean), again.applied(clean)
    assert rows(one) == rows(other)
    assert (one.units is None) == (other.units is None)
    np.load(tmp_path / "p.npz", allow_pickle=False)["about"]  # for people, and no pickle either


def test_different_poison_has_different_digests() -> None:
    sources = list(OF_SOURCES.values())
    found = [each.digest() for each in (INSERTED, DELETED, CHANGED, RELABELLED, MOVED, MIXED, *sources)]
    assert len(set(found)) == len(found)
    x = FRESH[:1].copy()
    x[0, 1] = np.nextafter(x[0, 1], np.float32(0))
    assert Poison.inserting(x, np.array([0])).digest() != Poison.inserting(FRESH[:1], np.array([0])).digest()
    text = Poison.inserting(np.array(["a"]), np.array([0]))
    assert text.digest() != Poison.inserting(np.array(["a "]), np.array([0])).digest()


def test_other_files_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", counts=np.eye(2))
    (tmp_path / "text.npz").write_text("deleted, x, y")
    np.savez(tmp_path / "objects.npz", deleted=np.array([0]), x=np.array([{"a": 1}], dtype=object), y=np.array([0]))
    for name in ("other.npz", "text.npz", "objects.npz", "missing.npz"):
        with pytest.raises(ArtifactError, match=name.split(".")[0]):
            Poison.load(tmp_path / name)


@pytest.mark.parametrize(
    "arrays",
    [
        {"deleted": np.array(["one"]), "x": FRESH[:1], "y": np.array([0])},
        {"deleted": np.array([0]), "x": FRESH[:1], "y": np.array(["cat"])},
    ],
)
def test_a_file_of_these_names_with_other_contents_is_refused(arrays: dict[str, Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "strange.npz", **arrays)
    with pytest.raises(ArtifactError, match=r"strange\.npz"):
        Poison.load(tmp_path / "strange.npz")
