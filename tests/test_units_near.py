"""Neighbours and kernels of units: voices against Python's whole numbers in every place, and every small poisoning."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import test_units
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from test_larger_than_memory import mapped, same, small_pieces
from test_nearness import dot, in_pieces, in_words, weight, whole
from test_units import NAMED, Sources, smallest_flip

from mithridate import Certificate, Votes, certify, verify
from mithridate._io.artifacts import read_npz, write_npz
from mithridate.core.mechanism import Threat
from mithridate.core.rule import Decision, ExactRule
from mithridate.core.units import Unit
from mithridate.data.examples import Examples
from mithridate.data.partition import by_unit
from mithridate.data.units import Units
from mithridate.defences import Defence, _kernel_sums, _near, _nearness, _places, _search, defence, predict
from mithridate.defences._nearness import StoredExamples
from mithridate.defences._whole_rows import scale_of
from mithridate.defences.automatic import named
from mithridate.defences.kernel import FULL_WEIGHT, Exponential, KernelSum, KernelVote, Within
from mithridate.defences.neighbours import NearestExamples, NearestNeighbours
from mithridate.errors import ArtifactError, ConfigError
from mithridate.features import HashedWords
from mithridate.training.order import Facts, compose

Array = npt.NDArray[Any]
CLASSES = 3
METHODS: dict[str, dict[str, Any]] = {
    "one scale": {"neighbours": 4},
    "several scales": {"neighbours": (7, 2), "leads": (3,)},
    "weighted labels": {"neighbours": 5, "class_weights": (1, 3, 2)},
    "mirrored": {"neighbours": 4, "mirrored": True},
    "kernel": {"kernel": Exponential(0.2, full=0.7)},
    "radius": {"kernel": Within(0.5)},
    "weighted kernel": {"kernel": Exponential(0.2), "class_weights": (1, 3, 2)},
    "mirrored kernel": {"kernel": Exponential(0.2), "mirrored": True},
}


def made(name: str, **more: Any) -> Defence:
    constants = {"classes": CLASSES, "features": "none", **METHODS[name], **more}
    return KernelVote(**constants) if "kernel" in constants else NearestNeighbours(**constants)


def images(seed: int, count: int) -> Array:
    """Coarse ones, of which many are equal or equally near."""
    return np.random.default_rng(seed).integers(0, 2, (count, 2, 3)).astype(np.uint8)


def data(seed: int, count: int, units: int) -> Examples:
    random = np.random.default_rng(seed)
    names = [f"u{n}" for n in random.integers(0, units, count)]
    return Examples(images(seed, count), random.integers(0, CLASSES, count), units=Units.of(names, "vendor"))


# --- voices, the slow way ---------------------------------------------------------------------------------------------

Voice = tuple[int, bytes, int]


def content_hash(row: Sequence[int], label: int) -> bytes:
    content = b"".join(number.to_bytes(2, "little", signed=True) for number in row)
    return hashlib.blake2b(content + label.to_bytes(8, "little", signed=True), digest_size=32).digest()


def voices(products: Iterable[int], hashes: Iterable[bytes], examples: Examples) -> list[Voice]:
    """What every unit says, the nearest first: minus the product, the hash and the label of its first example."""
    assert examples.units is not None
    assert examples.y is not None
    of_unit: dict[int, Voice] = {}
    labels, units = examples.y.tolist(), examples.units.of_example.tolist()
    for product, digest, label, unit in zip(products, hashes, labels, units, strict=True):
        said = (-product, digest, label)
        of_unit[unit] = min(said, of_unit.get(unit, said))
    return sorted(of_unit.values())


def dense_voices(examples: Examples, inputs: Array, *, mirrored: bool = False) -> list[list[Voice]]:
    """The same on every input, or on it and its mirror image."""
    assert examples.y is not None
    rows, _ = whole(examples.x.reshape(len(examples.x), -1).astype(np.float64))
    hashes = [content_hash(row, label) for row, label in zip(rows, examples.y.tolist(), strict=True)]
    seen = [inputs, inputs[..., ::-1]] if mirrored else [inputs]
    views = zip(*(whole(each.reshape(len(inputs), -1).astype(np.float64))[0] for each in seen), strict=True)
    return [voices([max(dot(view, row) for view in each) for row in rows], hashes, examples) for each in views]


def check(votes: Votes, said: list[list[Voice]], scale: int, constants: dict[str, Any]) -> None:
    """Require the votes that voices give."""
    weights = constants.get("class_weights", (1,) * CLASSES)
    for at, of_input in enumerate(said):
        labels = [label for *_, label in of_input]
        if "kernel" in constants:
            heavy = [weight(-lack, scale, in_words(constants["kernel"])) for lack, *_ in of_input]
            scores = [sum(w for w, y in zip(heavy, labels, strict=True) if y == label) for label in range(CLASSES)]
            assert votes.counts[at].tolist() == scores
            weighed = [w * score for w, score in zip(weights, scores, strict=True)]
            first = weighed.index(max(weighed))
            own = [w for w, y in zip(heavy, labels, strict=True) if y == first]
            assert votes.evidence["own"][at].tolist() == np.bincount(own, minlength=FULL_WEIGHT + 1).tolist()
        else:
            most = int(np.max(constants["neighbours"]))
            assert votes.evidence["order"][at].tolist() == labels[: min(2 * most, len(labels))]
            assert votes.counts[at].tolist() == [labels[:most].count(label) for label in range(CLASSES)]
            expected = NearestExamples(constants["neighbours"], len(labels), constants.get("leads", ()))
            assert votes.mechanism == expected


def check_images(votes: Votes, examples: Examples, inputs: Array, method: str) -> None:
    """The same of images without an encoder."""
    constants = METHODS[method]
    said = dense_voices(by_unit(examples, 1000), inputs, mirrored=constants.get("mirrored", False))
    check(votes, said, scale_of(inputs[0].size), constants)


# --- wherever they are found ------------------------------------------------------------------------------------------


class Shards:
    """A cluster in this process, whose shards are as small as can be, and come in any order."""

    def each(self, work: Any, common: Any, arrays: Any, starts: Any = None) -> Iterator[tuple[int, Any]]:
        ray_tasks = pytest.importorskip("mithridate.training.ray_tasks", reason="needs: pip install 'mithridate[ray]'")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ray_tasks, "_SHARD_EXAMPLES", 7)
            shards = ray_tasks._shards(arrays[0].shape[0], starts)
        assert [unit for shard in shards for unit in shard] == list(range(len(starts) - 1))
        for shard in reversed(shards):
            yield len(shard), work(*common, *ray_tasks._slices(arrays, starts, shard))


@contextmanager
def at(where: str, block: int) -> Iterator[None]:
    """Examples are compared there, so many at a time."""
    with pytest.MonkeyPatch.context() as patch:
        in_pieces(patch, block)
        patch.setattr(_kernel_sums, "BLOCK_EXAMPLES", block)
        place: Any = _places.HERE
        if where == "on shards":
            place = _places._OnCluster(cast("Any", Shards()))
        if where == "on a GPU":
            torch = pytest.importorskip("torch")
            from mithridate.defences import _on_gpu

            patch.setattr(_on_gpu, "_BLOCK_EXAMPLES", block)
            patch.setattr(_on_gpu, "BLOCK_EXAMPLES", block)
            patch.setattr(_on_gpu, "_BYTES_OF_PRODUCT", 1 << 22)
            patch.setattr(_on_gpu, "_SPARE", block % 3)
            place = _on_gpu.OnGpu(torch.device("cpu"))
        patch.setattr(_near, "place_for", lambda runtime: nullcontext(place))
        yield


@pytest.mark.parametrize("where", ["here", "on a GPU", "on shards"])
@pytest.mark.parametrize("method", METHODS)
@given(seed=st.integers(0, 999), units=st.integers(20, 60), block=st.integers(1, 40))
def test_votes_are_those_of_voices(method: str, where: str, seed: int, units: int, block: int) -> None:
    examples, inputs = data(seed, 70, units), images(seed + 1, 6)
    assert examples.units is not None
    with at(where, block):
        votes = made(method).train(examples, inputs)
    check_images(votes, examples, inputs, method)
    assert votes.unit == examples.units.unit


@pytest.mark.parametrize("where", ["here", "on a GPU", "on shards"])
@pytest.mark.parametrize("method", ["several scales", "kernel"])
def test_units_that_many_blocks_cut(method: str, where: str) -> None:
    """Two units with nearly all examples, and few with one."""
    examples = data(3, 90, 10)
    names = ["large"] * 50 + ["larger"] * 30 + [f"small {n}" for n in range(10)]
    examples, inputs = replace(examples, units=Units.of(names)), images(4, 20)
    for block in (1, 3, 49, 90):
        with at(where, block):
            check_images(made(method).train(examples, inputs), examples, inputs, method)


def test_a_guess_that_was_too_high_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    examples, inputs = data(5, 300, 90), images(6, 9)
    guess = _search._Kept.guessing

    def too_high(*arguments: Any) -> _search._Kept:
        kept = guess(*arguments)
        kept.least[::2] = _search.LARGEST_PRODUCT
        return kept

    monkeypatch.setattr(_search._Kept, "guessing", too_high)
    with at("here", 40):
        check_images(made("one scale").train(examples, inputs), examples, inputs, "one scale")


@pytest.mark.parametrize("where", ["here", "on a GPU"])
def test_voices_are_exact_behind_the_input_too(where: str) -> None:
    """Products down to -2^24 that differ by 1, or not at all, within a unit: the label says which example it is."""
    random = np.random.default_rng(0)
    x = np.vstack([-np.abs(random.normal(size=(1500, 2))), random.normal(size=(100, 2))])
    labels = np.arange(1600)
    examples = Examples(x, labels, units=Units.of(random.integers(0, 300, 1600)))
    query = np.array([[3.0, 1.0]])
    with at(where, 200):
        votes = NearestNeighbours(neighbours=150, classes=1600, features="none").train(examples, query)
    assert votes.evidence["order"][0].tolist() == [label for *_, label in dense_voices(examples, query)[0]][:300]


@pytest.mark.parametrize("constants", [METHODS["one scale"], {"kernel": Exponential(0.05, full=0.3)}])
def test_sparse_rows_have_voices(constants: dict[str, Any]) -> None:
    words, random = ["red", "green", "blue", "large", "small", "round", "flat"], np.random.default_rng(0)
    texts, inputs = (np.array([" ".join(random.choice(words, 3)) for _ in range(count)]) for count in (80, 9))
    units = Units.of(random.integers(0, 30, 80))
    examples = Examples(texts, random.integers(0, CLASSES, 80), units=units)
    built = (KernelVote if "kernel" in constants else NearestNeighbours)(
        classes=CLASSES, features="hashed-words", **constants
    )
    grouped = by_unit(examples, 1000)
    stored = StoredExamples.of(grouped, HashedWords(), CLASSES)
    rows, queries = stored.rows, stored.asked(inputs, mirrored=False).views[0]
    assert isinstance(rows, csr_array)
    assert isinstance(queries, csr_array)
    hashes = [
        hashlib.blake2b(
            row.indices.astype("<i4").tobytes() + row.data.astype("<i2").tobytes() + label.to_bytes(8, "little"),
            digest_size=32,
        ).digest()
        for row, label in zip((rows[[at]] for at in range(80)), np.asarray(grouped.y).tolist(), strict=True)
    ]
    products = (queries.astype(np.int64) @ rows.astype(np.int64).T).toarray().tolist()
    with at("here", 11):
        votes = built.train(examples, inputs)
    check(votes, [voices(each, hashes, grouped) for each in products], stored.scale, constants)


@pytest.mark.parametrize("method", ["several scales", "kernel"])
def test_votes_are_the_same_from_files(method: str, tmp_path: Path) -> None:
    examples, inputs = data(0, 70, 20), images(1, 15)
    expected = made(method).train(examples, inputs)
    with pytest.MonkeyPatch.context() as patch:
        small_pieces(patch)
        large = replace(examples, x=mapped(tmp_path / "x.npy", examples.x))
        assert same(made(method).train(large, inputs, run_dir=tmp_path / "run"), expected)
    assert (tmp_path / "run/rows.npy").exists()
    assert (tmp_path / "run/starts.npy").exists()
    found = predict(tmp_path / "run", inputs)
    assert np.array_equal(found.counts, expected.counts)
    assert found.unit == expected.unit


# --- units of one example each ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_units_of_one_example_give_the_votes_of_examples(method: str) -> None:
    x, y, inputs = images(0, 60), np.arange(60) % CLASSES, images(1, 20)
    plain, of_units = (made(method).train(Examples(x, y, units=units), inputs) for units in (None, Units.of(range(60))))
    assert np.array_equal(plain.counts, of_units.counts)
    assert plain.evidence.keys() == of_units.evidence.keys()
    assert all(np.array_equal(plain.evidence[name], of_units.evidence[name]) for name in plain.evidence)
    assert plain.mechanism == of_units.mechanism
    assert (plain.unit, of_units.unit) == (None, Unit("unit", 60))


@pytest.mark.parametrize("method", METHODS)
def test_the_same_by_the_way_of_larger_units(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of one example each through the arithmetic of units."""
    x, y, inputs = images(0, 60), np.arange(60) % CLASSES, images(1, 20)
    of_units = _nearness._units_of
    monkeypatch.setattr(
        _nearness,
        "_units_of",
        lambda training: (of_units(training)[0], None if training.units is None else training.units.starts),
    )
    plain, found = (made(method).train(Examples(x, y, units=units), inputs) for units in (None, Units.of(range(60))))
    assert np.array_equal(plain.counts, found.counts)
    assert all(np.array_equal(plain.evidence[name], found.evidence[name]) for name in plain.evidence)


# --- every poisoning --------------------------------------------------------------------------------------------------

# Rows that a unit can have: a place and a label. Places 0 and 1 are equally near to the input.
PLACES = np.array([[3.0, 1.0], [3.0, -1.0], [1.0, 2.0], [-1.0, 1.0]])
QUERY = np.array([[1.0, 0.0]])
ALL_ROWS = [(place, label) for place in range(4) for label in range(2)]
POISONED: dict[str, dict[str, Any]] = {
    "one scale": {"neighbours": 3},
    "all": {"neighbours": 4},
    "several scales": {"neighbours": (4, 1), "leads": (2,)},
    "weights": {"neighbours": 3, "class_weights": (2, 3)},
    "kernel": {"kernel": Exponential(0.3)},
    "radius": {"kernel": Within(0.4)},
    "weighted kernel": {"kernel": Exponential(0.3), "class_weights": (2, 3)},
}


def examples_of(held: Sources) -> Examples:
    rows = [(name, ALL_ROWS[row]) for name, its in held for row in its]
    return Examples(
        PLACES[[place for _, (place, _) in rows]],
        np.array([label for _, (_, label) in rows]),
        units=Units.of([name for name, _ in rows]),
    )


def slow_label(held: Sources, constants: dict[str, Any]) -> int:
    """The prediction, by the words of the documentation."""
    said = sorted(min(VOICES[row] for row in its) for _, its in held)
    weights = constants.get("class_weights", (1, 1))
    if "kernel" in constants:
        value, scale = in_words(constants["kernel"]), whole(PLACES)[1]
        scores = [w * sum(weight(-lack, scale, value) for lack, _, y in said if y == label)
                  for label, w in enumerate(weights)]  # fmt: skip
        return scores.index(max(scores))
    several = constants["neighbours"]
    several = several if isinstance(several, tuple) else (several,)
    for count, needed in zip(several, (*constants.get("leads", ()), 0), strict=True):
        labels = [y for *_, y in said[:count]]
        scores = [w * labels.count(label) for label, w in enumerate(weights)]
        first = scores.index(max(scores))
        if scores[first] - scores[1 - first] - (first == 1) >= needed:
            return first
    raise AssertionError


def decided(chosen: Defence, held: Sources, threat: Threat) -> Decision:
    rule = chosen.rule()
    assert isinstance(rule, ExactRule)
    return rule.decide(chosen.train(examples_of(held), QUERY), threat)


(_QUERY,), (_ROWS, _) = whole(QUERY)[0], whole(PLACES)
VOICES = [(-dot(_QUERY, _ROWS[place]), content_hash(_ROWS[place], label), label) for place, label in ALL_ROWS]


@pytest.mark.parametrize("threat", NAMED)
@pytest.mark.parametrize("method", POISONED)
def test_no_certified_label_changes_whatever_units_are_poisoned(
    method: str, threat: Threat, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One row or two: of one place with both labels, of two that are equally near, of a near one and a far one.
    monkeypatch.setattr(test_units, "CONTENTS", ((0,), (1,), (2,), (7,), (0, 1), (1, 2), (0, 7), (3, 4)))
    monkeypatch.setattr(test_units, "NAMES", tuple("abcdef"))
    constants = POISONED[method]
    built = (KernelVote if "kernel" in constants else NearestNeighbours)(classes=2, features="none", **constants)
    random, certified = np.random.default_rng(5), 0
    for share in (0.0, 0.0, 0.2, 0.8, 1.0):
        held = tuple(
            (name, test_units.CONTENTS[random.choice([1, 3, 5, 7] if random.random() < share else [0, 2, 4, 6])])
            for name in "abcd"
        )
        decision = decided(built, held, threat)
        label, radius = int(decision.label[0]), int(decision.radius[0])
        assert label == slow_label(held, constants)
        limit = min(radius, 2)
        certified += limit
        if limit:
            assert smallest_flip(held, threat, lambda other: slow_label(other, constants), limit) > limit
    assert certified  # not an empty claim


@pytest.mark.parametrize("threat", NAMED)
def test_one_scale_certifies_all_that_holds(threat: Threat, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest place is open to the attacker with either label: then the radius ends where a label changes."""
    monkeypatch.setattr(test_units, "CONTENTS", ((0,), (1,), (7, 0), (2, 5), (6,)))
    monkeypatch.setattr(test_units, "NAMES", tuple("abcdef"))
    chosen, reached = NearestNeighbours(classes=2, features="none", neighbours=2), 0
    for held in (
        (("a", (6,)), ("b", (6,)), ("c", (6,)), ("d", (6,))),
        (("a", (2, 5)), ("b", (7, 0)), ("c", (6,)), ("d", (6,))),
        (("a", (1,)), ("b", (1,)), ("c", (6,)), ("d", (1,))),
    ):
        radius = int(decided(chosen, held, threat).radius[0])
        found = smallest_flip(held, threat, lambda other: slow_label(other, {"neighbours": 2}), 2)
        assert found > min(radius, 2)
        reached += found == radius + 1
    assert reached


# --- in files ---------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["several scales", "kernel"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Examples, Votes]:
    examples = data(0, 70, 20)
    return tmp_path, examples, made(request.param).train(examples, images(1, 15), run_dir=tmp_path)


def test_predictions_are_those_of_the_run(run: tuple[Path, Examples, Votes]) -> None:
    folder, examples, votes = run
    assert examples.units is not None
    again = predict(folder, images(1, 15))
    assert np.array_equal(again.counts, votes.counts)
    assert all(np.array_equal(again.evidence[name], votes.evidence[name]) for name in votes.evidence)
    assert (again.unit, again.mechanism, again.training) == (votes.unit, votes.mechanism, votes.training)
    assert again.unit == Unit("vendor", len(examples.units.names))
    assert (again.recipe or {})["unit_cap"] == 1000
    assert again.data_fingerprint == votes.data_fingerprint


def test_certificates_count_units_and_are_verified(run: tuple[Path, Examples, Votes]) -> None:
    folder, examples, votes = run
    assert examples.units is not None
    certificate = certify(votes)
    assert certificate.threat is Threat.EDIT
    certificate.save(folder / "certificate.json")
    said = json.loads((folder / "certificate.json").read_text())
    assert said["unit"] == {"name": "vendor", "count": len(examples.units.names)}
    assert votes.training is not None
    assert votes.training.units == examples.units.fingerprint()
    assert votes.training.examples == 70
    assert verify(folder / "certificate.json", run=folder).valid


def test_the_training_data_is_named_as_it_was_given() -> None:
    examples = data(0, 70, 5)
    for cap in (3, 1000):
        votes = made("kernel", unit_cap=cap).train(examples, images(1, 3))
        assert votes.training == compose(made("kernel"), examples, images(1, 3)).training_data()
        assert votes.counts.sum(axis=1).max() <= 5 * FULL_WEIGHT


@pytest.mark.parametrize(
    "change",
    [
        {"starts": None},
        {"starts": np.arange(3)},
        {"starts": np.zeros((2, 2), np.int64)},
        {"starts": 0.5},
        {"starts": "text"},
        {"first": 1},
        {"last": 71},
        {"last": 1 << 40},
        {"second": 70},
        {"second": -5},
        {"second": 0},
        {"unit": None},
        {"unit": {"name": "vendor", "count": 21}},
        {"unit": {"name": "vendor", "count": 10**30}},
        {"unit": {"name": "vendor", "count": -1}},
        {"unit": {"name": "vendor"}},
        {"unit": []},
    ],
)
def test_a_damaged_run_is_refused(change: dict[str, Any], run: tuple[Path, Examples, Votes]) -> None:
    folder, _, _ = run
    arrays = read_npz(folder / "examples.npz", "a run")
    for name, value in change.items():
        starts = arrays["starts"].copy()
        match name:
            case "starts":
                del arrays["starts"]
                if isinstance(value, np.ndarray):
                    arrays["starts"] = value
                elif value is not None:
                    arrays["starts"] = np.full(len(starts), value)
            case "unit":
                said = json.loads((folder / "run.json").read_text())
                (folder / "run.json").write_text(json.dumps({**said, "unit": value}))
            case _:
                starts[{"first": 0, "second": 1, "last": -1}[name]] = value
                arrays["starts"] = starts
    with (folder / "examples.npz").open("wb") as file:
        write_npz(file, arrays)
    with pytest.raises((ArtifactError, ConfigError)):
        predict(folder, images(1, 15))


def test_a_run_without_units_has_no_starts(tmp_path: Path) -> None:
    made("kernel").train((images(0, 30), np.arange(30) % 3), images(1, 3), run_dir=tmp_path)
    arrays = read_npz(tmp_path / "examples.npz", "a run")
    assert "starts" not in arrays
    with (tmp_path / "examples.npz").open("wb") as file:
        write_npz(file, {**arrays, "starts": np.arange(31)})
    with pytest.raises(ArtifactError, match="damaged"):
        predict(tmp_path, images(1, 3))


# --- constants --------------------------------------------------------------------------------------------------------


def test_more_neighbours_than_units_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"5 vendors, fewer than neighbours=6; .* num_units, declare a smaller"):
        made("one scale", neighbours=6).train(data(0, 70, 5), images(1, 3))


def test_defaults_follow_the_number_of_units_and_of_classes() -> None:
    def chosen(units: int, classes: int = 10, **constants: Any) -> tuple[Any, Any]:
        facts = Facts(units, classes, (28, 28), "uint8", unit="vendor")
        found = NearestNeighbours(classes=classes, **constants).choose(facts).defence
        return found.neighbours, found.leads

    assert chosen(1000) == ((750, 200), (200,))
    assert chosen(1000, classes=100) == ((750, 20), (20,))
    assert chosen(10**6)[0][0] == 5000
    assert chosen(1) == (1, ())
    assert chosen(1000, class_weights=(1,) * 10) == (200, ())
    assert chosen(1000, neighbours=30) == (30, ())
    assert chosen(1000, neighbours=(30, 5), leads=[3]) == ((30, 5), (3,))
    for units in range(1, 60):
        for classes in (2, 3, 50):
            assert max(np.atleast_1d(chosen(units, classes)[0])) <= units


@pytest.mark.parametrize("radius", [None, 2, 60])
def test_auto_asks_the_nearest_units(radius: int | None) -> None:
    examples = data(0, 300, 100)
    votes_of = compose(named("auto", {"classes": 3}, radius=radius), examples, images(1, 3)).run()
    assert isinstance(votes_of.mechanism, NearestExamples)
    assert examples.units is not None
    assert votes_of.mechanism.num_train == len(examples.units.names)
    assert certify(votes_of).votes.unit == examples.units.unit


def test_a_defence_with_nothing_decided_certifies_its_votes() -> None:
    chosen = NearestNeighbours(classes=CLASSES, features="none")
    votes = chosen.train(data(0, 300, 100), images(1, 5))
    assert isinstance(votes.mechanism, NearestExamples)
    assert votes.mechanism.leads
    assert isinstance(chosen.certify(votes), Certificate)


def test_a_unit_with_very_many_examples_takes_little_memory() -> None:
    x = np.random.default_rng(0).normal(size=(60_000, 64)).astype(np.float32)
    names = np.append(np.zeros(59_900, np.int64), np.arange(1, 101))
    examples = Examples(x, np.arange(60_000) % 3, units=Units.of(names))
    for chosen in (
        NearestNeighbours(classes=3, features="none", neighbours=20, unit_cap=100_000),
        KernelVote(classes=3, features="none", unit_cap=100_000),
    ):
        order = compose(chosen, examples, x[:300])
        tracemalloc.start()
        try:
            order.run()
            # All products would take 72 MB, and as voices twice that.
            assert tracemalloc.get_traced_memory()[1] < 120 << 20
        finally:
            tracemalloc.stop()


def test_the_mechanism_of_kernels_says_nothing_of_numbers() -> None:
    votes = made("kernel").train(data(0, 70, 20), images(1, 3))
    assert votes.mechanism == KernelSum(FULL_WEIGHT)
    assert votes.unit is not None
    assert votes.counts.sum(axis=1).max() <= votes.unit.count * FULL_WEIGHT


def test_ridge_still_refuses_units() -> None:
    with pytest.raises(ConfigError, match="ridge cannot certify vendors"):
        defence("ridge", classes=3).order(data(0, 20, 5), images(1, 3))


def test_numbers_that_were_chosen_on_a_data_set_say_so() -> None:
    random = np.random.default_rng(0)
    x, y = random.integers(0, 256, (90, 28, 28)).astype(np.uint8), np.arange(90) % 10
    units = Units.of([f"s{n % 45}" for n in range(90)], "source")

    def ids(examples: Examples, **constants: Any) -> set[str | None]:
        order = defence("nearest-neighbours", classes=10, features="none", **constants).order(examples, x[:2])
        return {cast("Any", each).id for each in order.statements if "numbers of neighbours" in each}

    assert ids(Examples(x, y, units=units)) == {"tuned-on-training-data"}
    assert ids(Examples(x, y, units=units), neighbours=5, leads=()) == set()
    assert ids(Examples(x, y)) == set()
