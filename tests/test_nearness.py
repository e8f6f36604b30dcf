"""Votes of neighbours against Python's whole numbers, against other company, and against every small poisoning."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mithridate.core.mechanism import Threat
from mithridate.core.rule import Decision, ExactRule
from mithridate.core.votes import Votes
from mithridate.data.examples import as_examples
from mithridate.defences import KernelVote, NearestNeighbours, _kernel_sums, _places, _search, _whole_rows
from mithridate.defences import kernel as kernel_file
from mithridate.defences import neighbours as neighbours_file
from mithridate.defences._nearness import StoredExamples
from mithridate.defences.kernel import FULL_WEIGHT, Exponential, Kernel, KernelRule, KernelSum, Within
from mithridate.defences.neighbours import Lead, NearestExamples, NeighbourRule
from mithridate.errors import ConfigError
from mithridate.features import Frozen, HashedNgrams, OrientedGradients, UnitNorm, pick_encoder

Array = npt.NDArray[Any]
KERNELS: list[Kernel] = [Exponential(0.2), Exponential(0.1, full=0.8), Exponential(3.0), Within(0.3), Within(-1.0)]
TEXTS = ["a first text", "another one", "a first text!", "", "something else entirely", "one more text", "zebra"]


def voted(vote: Callable[..., Votes], training_set: Any, inputs: Any, **options: Any) -> Votes:
    """How examples vote, from the data on."""
    classes = options.pop("classes", None)
    training = as_examples(training_set, "training", need_labels=True, classes=classes)
    assert training.y is not None
    encoder = pick_encoder(options.pop("features", None))
    return vote(StoredExamples.of(training, encoder, classes or int(training.y.max()) + 1), inputs, **options)


kernel_votes = partial(voted, kernel_file.kernel_votes)
neighbour_votes = partial(voted, neighbours_file.neighbour_votes)


class Constant:
    """A kernel that gives what it is told to, and one that a user wrote."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, cosine: Array) -> Any:
        return self.value if np.ndim(self.value) else np.full(cosine.shape, self.value)

    def to_dict(self) -> dict[str, Any]:
        return {"name": "constant"}


def drawn(seed: int, rows: int, columns: int, *, coarse: bool = False) -> Array:
    """Random rows; coarse ones have few values, so that many rows are equal or equally near."""
    random = np.random.default_rng(seed)
    return random.integers(-1, 2, (rows, columns)).astype(float) if coarse else random.normal(size=(rows, columns))


def in_pieces(patch: pytest.MonkeyPatch, size: int) -> None:
    """Small blocks of examples, few products, keys of few inputs, and guesses from many examples or few."""
    patch.setattr(_search, "_BLOCK_EXAMPLES", size)
    patch.setattr(_search, "_KEY_BYTES", 10_000 * size)
    patch.setattr(_search, "_ASKED", 1 + size % 5)
    patch.setattr(_search, "_SPARE", size % 3)
    patch.setattr(_whole_rows, "_NUMBERS", 7 * size)
    patch.setattr(_whole_rows, "_BLOCK_NUMBERS", 50 * size)
    patch.setattr(_whole_rows, "_FIRST_BYTES", size % 3)


def whole(x: Array) -> tuple[list[list[int]], int]:
    """Rows as the module rounds them, in Python's whole numbers."""
    rows, scale = _whole_rows.whole_rows(x)
    return [[int(number) for number in row] for row in rows], scale


def dot(first: Sequence[int], second: Sequence[int]) -> int:
    return sum(a * b for a, b in zip(first, second, strict=True))


def weight(product: int, scale: int, kernel: Callable[[float], float]) -> int:
    """The weight at a dot product, by the words of the docstring: rounded toward 0 to a multiple of 256."""
    steps = abs(product) // 256 * (1 if product > 0 else -1)
    cosine = max(-1.0, min(1.0, float(Fraction(256 * steps, scale**2))))
    return round(1024 * kernel(cosine))


def pair_weights(examples: Any, inputs: Any, **options: Any) -> Array:
    """Weights of single examples: with a label for each, a score is a weight."""
    return kernel_votes((examples, np.arange(len(examples))), inputs, classes=1000, **options).counts


# --- rounding to whole numbers --------------------------------------------------------------------------------------


@given(seed=st.integers(0, 999), columns=st.integers(1, 400), size=st.sampled_from([1e-300, 1e-30, 1.0, 1e30, 1e300]))
def test_whole_rows_are_the_direction_of_the_input(seed: int, columns: int, size: float) -> None:
    x = drawn(seed, 3, columns) * size
    rows, scale = whole(x)
    assert scale == 4095 - math.ceil(math.sqrt(columns) / 2)
    for given_row, row in zip(x / size, rows, strict=True):
        norm = math.sqrt(math.fsum(number**2 for number in given_row))
        assert all(abs(scale * a / norm - b) <= 0.5 + 2**-10 for a, b in zip(given_row, row, strict=True))


def extreme_rows(columns: int) -> Iterator[Array]:
    """Rows whose rounding lengthens them most, and rows with the largest entries."""
    scale = 4095 - math.ceil(math.sqrt(columns) / 2)
    yield np.eye(1, columns)[0]
    yield np.ones(columns)
    yield -np.ones(columns)
    # Just above one half of a whole number, as many as fit: all are rounded up.
    for half in (0.5001, 1.5001, 20.5001):
        row = np.zeros(columns)
        fitting = min(columns - 1, int((scale / half) ** 2) - 1)
        row[:fitting] = half
        row[-1] = math.sqrt(scale**2 - fitting * half**2)
        yield row
    yield np.full(columns, 1e-45, dtype=np.float32)
    yield np.full(columns, 3e38, dtype=np.float32)
    yield np.zeros(columns)


@pytest.mark.parametrize("columns", [2, 3, 154, 1024, 20_000])
def test_norms_keep_the_bound_and_products_are_exact(columns: int) -> None:
    rows, _ = _whole_rows.whole_rows(np.array(list(extreme_rows(columns))))
    exact = rows.astype(np.int64)
    assert (exact == rows).all()
    assert (exact**2).sum(axis=1).max() <= 2**24
    signs = np.where(np.arange(columns) % 2, 1, -1)  # large terms that cancel
    for seed in range(3):  # other orders of summation
        order = np.random.default_rng(seed).permutation(columns)
        for sign in (1, signs):
            others = exact * sign
            products = rows[:, order] @ others.astype(np.float32)[:, order].T
            assert products.astype(np.int64).tolist() == (exact @ others.T).tolist()


def test_a_row_of_zeros_is_at_a_right_angle_to_all() -> None:
    counts = pair_weights(
        np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([[3.0, 0.0], [0.0, 0.0]]), kernel=Exponential(0.2)
    )
    nothing = round(1024 * math.exp(-5))
    assert counts[0, 0] == counts[1, 0] == counts[1, 1] == nothing
    assert counts[0, 1] >= 1023


def test_inexact_products_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # Twice the norm needs 26 bits, more than single precision has: as on a library that computes with fewer.
    monkeypatch.setattr(_whole_rows, "LARGEST_NORM", 1 << 13)
    with pytest.raises(ConfigError, match="not exact"):
        _whole_rows.require_exact_products()


# --- scores ---------------------------------------------------------------------------------------------------------


def in_words(kernel: Kernel) -> Callable[[float], float]:
    """A kernel for one cosine, without numpy."""
    if isinstance(kernel, Within):
        return lambda cosine: 1.0 if cosine >= kernel.cosine else 0.0
    assert isinstance(kernel, Exponential)
    return lambda cosine: math.exp(min(0.0, cosine - kernel.full) / kernel.width)


@given(
    seed=st.integers(0, 999),
    columns=st.integers(1, 40),
    kernel=st.sampled_from(KERNELS),
    coarse=st.booleans(),
    block=st.integers(1, 9),
    chunk=st.integers(1, 4),
)
def test_scores_and_own_weights_are_those_of_whole_numbers(
    seed: int, columns: int, kernel: Kernel, coarse: bool, block: int, chunk: int
) -> None:
    x, inputs = drawn(seed, 23, columns, coarse=coarse), drawn(seed + 1, 5, columns, coarse=coarse)
    labels = np.random.default_rng(seed).integers(0, 4, 23)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_kernel_sums, "BLOCK_EXAMPLES", block)
        patch.setattr(kernel_file, "_INPUTS", chunk)
        votes = kernel_votes((x, labels), inputs, kernel=kernel, classes=5, own=True)
    (rows, scale), (queries, _) = whole(x), whole(inputs)
    value = in_words(kernel)
    weights = [[weight(dot(query, row), scale, value) for row in rows] for query in queries]
    scores = [[sum(w for w, y in zip(row, labels, strict=True) if y == label) for label in range(5)] for row in weights]
    assert votes.counts.tolist() == scores
    assert votes.mechanism == KernelSum(FULL_WEIGHT)
    for row, score, own in zip(weights, scores, votes.evidence["own"], strict=True):
        predicted = score.index(max(score))
        found = Counter(w for w, y in zip(row, labels, strict=True) if y == predicted)
        assert own.tolist() == [found[w] for w in range(FULL_WEIGHT + 1)]


def test_scores_are_exact_beyond_single_precision() -> None:
    x = np.ones((40_002, 2))
    votes = kernel_votes((x, np.arange(40_002) % 2), x[:1], kernel=Constant(1023 / 1024))
    assert votes.counts.tolist() == [[20_001 * 1023] * 2]  # odd and above 2^24


@pytest.mark.parametrize("kernel", [*KERNELS, Exponential(1e-300), Exponential(1e300)])
def test_weights_grow_with_the_cosine(kernel: Kernel) -> None:
    angles = np.linspace(0, math.pi, 900)
    weights = pair_weights(np.stack([np.cos(angles), np.sin(angles)], axis=1), np.array([[1.0, 0.0]]), kernel=kernel)
    found = weights[0, : len(angles)]
    assert (np.diff(found) <= 0).all()
    assert found.min() >= 0
    assert found.max() <= FULL_WEIGHT


@given(values=st.lists(st.floats(-5, 5), min_size=2, max_size=30).filter(any))
def test_a_copy_weighs_nearly_one_unit(values: list[float]) -> None:
    x = np.array([values])
    if not np.isfinite(x / np.abs(x).max()).all():
        return
    # Rounding moves the cosine by about the number of columns over 2 * 4096 at most.
    assert (
        pair_weights(np.vstack([x, -x]), x, kernel=Exponential(0.2))[0, 0] >= FULL_WEIGHT * math.exp(-0.005 / 0.2) - 1
    )
    assert pair_weights(np.vstack([x, -x]), x, kernel=Exponential(0.2, full=0.99))[0, 0] == FULL_WEIGHT


# --- neighbours -----------------------------------------------------------------------------------------------------


def expected_order(x: Array, labels: Array, query: Array) -> list[int]:
    """Positions by the words of the docstring: larger dot product first (of the views of a query), smaller hash."""
    rows, _ = whole(x)
    views, _ = whole(np.atleast_2d(query))

    def key(i: int) -> tuple[int, bytes]:
        content = b"".join(n.to_bytes(2, "little", signed=True) for n in rows[i])
        content += int(labels[i]).to_bytes(8, "little", signed=True)
        return -max(dot(view, rows[i]) for view in views), hashlib.blake2b(content, digest_size=32).digest()

    return sorted(range(len(x)), key=key)


@given(
    seed=st.integers(0, 999),
    columns=st.integers(1, 30),
    neighbours=st.integers(1, 21),
    coarse=st.booleans(),
    chunk=st.integers(1, 60),
)
def test_the_order_is_that_of_whole_numbers(seed: int, columns: int, neighbours: int, coarse: bool, chunk: int) -> None:
    x, inputs = drawn(seed, 21, columns, coarse=coarse), drawn(seed + 1, 5, columns, coarse=coarse)
    labels = np.random.default_rng(seed).integers(0, 4, 21)
    with pytest.MonkeyPatch.context() as patch:
        in_pieces(patch, chunk)
        votes = neighbour_votes((x, labels), inputs, neighbours=neighbours, classes=5)
    kept = min(2 * neighbours, 21)
    orders = [[int(labels[i]) for i in expected_order(x, labels, query)[:kept]] for query in inputs]
    assert votes.evidence["order"].tolist() == orders
    assert votes.counts.tolist() == [[order[:neighbours].count(label) for label in range(5)] for order in orders]
    assert votes.mechanism == NearestExamples(neighbours, 21)


@pytest.mark.parametrize("where", ["here", "on a GPU"])
def test_the_order_is_exact_behind_the_input_too(where: str) -> None:
    """Products down to -2^24, so dense that neighbours differ by 1, and many are equal."""
    random = np.random.default_rng(0)
    x = np.vstack([-np.abs(random.normal(size=(1500, 2))), random.normal(size=(500, 2))])
    labels = np.arange(2000)  # the label says which example it is
    query = np.array([[3.0, 1.0]])
    options: dict[str, Any] = {}
    if where != "here":
        torch = pytest.importorskip("torch")
        from mithridate.defences._on_gpu import OnGpu

        options["place"] = OnGpu(torch.device("cpu"))
    votes = neighbour_votes((x, labels), query, neighbours=1000, **options)
    expected = expected_order(x, labels, query[0])
    rows, ((view,), _) = whole(x)[0], whole(query)
    found = [dot(view, rows[i]) for i in expected]
    gaps = np.diff(found)
    assert (gaps == 0).sum() > 50
    assert ((gaps == -1) & (np.array(found[1:]) < -(2**23))).sum() > 50
    assert votes.evidence["order"][0].tolist() == expected


def test_many_equal_examples_are_ordered_by_hash_alone() -> None:
    x = np.tile([[1.0, 2.0]], (300, 1))
    labels = np.arange(300)
    votes = neighbour_votes((x, labels), x[:1], neighbours=20)
    assert votes.evidence["order"][0].tolist() == expected_order(x, labels, x[0])[:40]


# --- one pair at a time, whatever the company -----------------------------------------------------------------------


def images(seed: int, count: int) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (count, 9, 8)).astype(np.uint8)


def texts(seed: int, count: int) -> Array:
    return np.random.default_rng(seed).choice(np.array(TEXTS), count)


SOURCES: dict[str, tuple[Any, Callable[[int, int], Array]]] = {
    "plain numbers": (None, lambda seed, count: drawn(seed, count, 37)),
    "table": (UnitNorm(bias=0.5), lambda seed, count: drawn(seed, count, 11, coarse=True)),
    "images": ("oriented-gradients", images),
    "text": ("hashed-ngrams", texts),
    "words": ("hashed-words", texts),
}


@pytest.mark.more
@pytest.mark.parametrize("source", SOURCES)
@given(seed=st.integers(0, 99), others=st.integers(0, 40), block=st.integers(1, 70), chunk=st.integers(1, 9))
def test_a_weight_depends_on_its_pair_alone(source: str, seed: int, others: int, block: int, chunk: int) -> None:
    features, draw = SOURCES[source]
    x, inputs = draw(seed, 30), draw(seed + 1, 6)
    reference = pair_weights(x, inputs, features=features, kernel=Exponential(0.4))
    random = np.random.default_rng(seed)
    kept = random.permutation(30)[: random.integers(1, 31)]
    asked = random.permutation(6)[: random.integers(1, 7)]
    company = np.concatenate([x[kept], draw(seed + 2, others)]) if others else x[kept]
    order = random.permutation(len(company))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_kernel_sums, "BLOCK_EXAMPLES", block)
        patch.setattr(kernel_file, "_INPUTS", chunk)
        counts = pair_weights(company[order], inputs[asked], features=features, kernel=Exponential(0.4))
    place = np.argsort(order)  # where each of the company went
    assert counts[:, place[: len(kept)]].tolist() == reference[np.ix_(asked, kept)].tolist()


@pytest.mark.more
@pytest.mark.parametrize("source", SOURCES)
@given(seed=st.integers(0, 99), others=st.integers(0, 40), chunk=st.integers(1, 300))
def test_which_of_two_is_nearer_depends_on_them_alone(source: str, seed: int, others: int, chunk: int) -> None:
    features, draw = SOURCES[source]
    x, inputs = draw(seed, 30), draw(seed + 1, 4)
    labels = np.arange(30)  # the label says which example it is
    reference = neighbour_votes((x, labels), inputs, features=features, neighbours=30, classes=100).evidence["order"]
    random = np.random.default_rng(seed)
    kept = set(random.permutation(30)[: random.integers(2, 31)].tolist())
    company = np.concatenate([x, draw(seed + 2, others)]) if others else x
    chosen = np.array([i for i in random.permutation(len(company)) if i in kept or i >= 30])
    with pytest.MonkeyPatch.context() as patch:
        in_pieces(patch, chunk)
        options: dict[str, Any] = {"features": features, "neighbours": len(chosen), "classes": 100}
        found = neighbour_votes((company[chosen], chosen), inputs, **options).evidence["order"]
    for before, after in zip(reference.tolist(), found.tolist(), strict=True):
        assert [i for i in before if i in kept] == [i for i in after if i in kept]


def test_the_layout_in_memory_does_not_matter() -> None:
    x, inputs = drawn(0, 50, 333), drawn(1, 9, 333)
    reference = pair_weights(x, inputs, kernel=Exponential(0.4))
    other = pair_weights(np.asfortranarray(x), np.repeat(inputs, 2, axis=0)[::2], kernel=Exponential(0.4))
    assert (reference == other).all()


# --- every poisoning of a small set ---------------------------------------------------------------------------------

# Points of a plane in two directions and between, with either of two labels.
DOMAIN = [(point, label) for point in ((1.0, 0.0), (0.6, 0.8), (0.0, 1.0)) for label in (0, 1)]
Example = tuple[tuple[float, float], int]
THREATS = (Threat.SYMMETRIC_DIFFERENCE, Threat.ADD, Threat.REMOVE, Threat.REPLACE)


def poisonings(data: Sequence[Example], most: int) -> Iterator[tuple[int, int, list[Example]]]:
    """Every set that up to `most` insertions and deletions make of the data, with the number of either."""
    for changes in range(most + 1):
        for deleted in range(changes + 1):
            rests = {tuple(sorted(rest)) for rest in itertools.combinations(data, len(data) - deleted)}
            for added in itertools.combinations_with_replacement(DOMAIN, changes - deleted):
                yield from ((changes - deleted, deleted, [*rest, *added]) for rest in rests)


def units(threat: Threat, added: int, deleted: int) -> float:
    """How many units of a threat make this change; infinitely many where it cannot."""
    match threat:
        case Threat.ADD:
            return math.inf if deleted else added
        case Threat.REMOVE:
            return math.inf if added else deleted
        case Threat.REPLACE:
            return added if added == deleted else math.inf
        case _:
            return added + deleted


def plain_radius(counts: Array, label: Array, cost: int) -> Array:
    """How many changes the label survives if each takes at most `cost` off its lead, with two labels."""
    rows = np.arange(len(counts))
    return (counts[rows, label] - counts[rows, 1 - label] - label) // cost


def attack(data: Sequence[Example], vote: Callable[[Any], Votes], rule: ExactRule, cost: int) -> None:
    """Try every poisoning by up to 3 changes; none may change a prediction within its radius."""
    votes = vote(arrays(data))
    label = votes.counts.argmax(axis=1)
    certified = {threat: rule.decide(votes, threat).radius for threat in THREATS}
    assert (plain_radius(votes.counts, label, cost) <= certified[Threat.SYMMETRIC_DIFFERENCE]).all()
    assert certified[Threat.SYMMETRIC_DIFFERENCE].max() >= 1
    attacks = 0
    for added, deleted, poisoned in poisonings(data, 3):
        changed = vote(arrays(poisoned)).counts.argmax(axis=1) != label
        attacks += int(changed.sum())
        for threat, radius in certified.items():
            assert (units(threat, added, deleted) > radius[changed]).all()
    assert attacks > 0


def arrays(data: Sequence[Example]) -> tuple[Array, Array]:
    return np.array([point for point, _ in data]), np.array([label for _, label in data])


SMOOTH_AND_SHARP = [Exponential(0.2), Exponential(0.3, full=0.7), Within(0.5), Exponential(1.0)]


@pytest.mark.parametrize(("seed", "kernel"), list(enumerate(SMOOTH_AND_SHARP)))
def test_no_small_poisoning_changes_a_certified_kernel_vote(seed: int, kernel: Kernel) -> None:
    random = np.random.default_rng(seed)
    data = [DOMAIN[i] for i in random.choice(len(DOMAIN), 7, p=[0.4, 0.05, 0.1, 0.1, 0.05, 0.3])]
    inputs = np.array([[1.0, 0.0], [0.5, 0.5], [0.1, 1.0]])
    attack(data, lambda d: kernel_votes(d, inputs, kernel=kernel, classes=2, own=True), KernelRule(), FULL_WEIGHT)


@pytest.mark.parametrize("neighbours", [3, 4, 5])
def test_no_small_poisoning_changes_a_certified_neighbour_vote(neighbours: int) -> None:
    data = [DOMAIN[i] for i in (0, 0, 0, 0, 2, 3, 5, 5, 5)]
    inputs = np.array([[1.0, 0.1], [0.1, 1.0], [0.7, 0.7]])
    # A change brings at most one example into the nearest and drives one out: the lead falls by at most 2.
    attack(data, lambda d: neighbour_votes(d, inputs, neighbours=neighbours, classes=2), NeighbourRule(), 2)


@pytest.mark.parametrize(
    ("neighbours", "leads"),
    [
        ((5, 3), (1,)),
        ((5, 3), (2,)),
        ((6, 4, 1), (3, 2)),
        ((6, 1), (4,)),
        ((5, 3), ((3, 1),)),
        ((6, 4, 1), ((1, 5), 2)),
    ],
)
def test_no_small_poisoning_changes_a_certified_vote_at_several_scales(
    neighbours: tuple[int, ...], leads: tuple[Lead, ...]
) -> None:
    data = [DOMAIN[i] for i in (0, 0, 0, 0, 0, 2, 3, 5, 5, 5)]
    inputs = np.array([[1.0, 0.1], [0.1, 1.0], [0.7, 0.7]])

    def decide(examples: Sequence[Example], threat: Threat) -> Decision:
        votes = neighbour_votes(arrays(examples), inputs, neighbours=neighbours, leads=leads, classes=2)
        return NeighbourRule().decide(votes, threat)

    certified = {threat: decide(data, threat) for threat in THREATS}
    label = certified[Threat.ADD].label
    assert certified[Threat.SYMMETRIC_DIFFERENCE].radius.max() >= 1
    attacks = 0
    for added, deleted, poisoned in poisonings(data, 3):
        changed = decide(poisoned, Threat.EDIT).label != label
        attacks += int(changed.sum())
        for threat, decision in certified.items():
            assert (units(threat, added, deleted) > decision.radius[changed]).all()
    assert attacks > 0


def test_several_scales_share_one_order() -> None:
    data, inputs = (drawn(0, 40, 3), np.arange(40) % 3), drawn(1, 6, 3)
    one = neighbour_votes(data, inputs, neighbours=9, classes=3)
    several = neighbour_votes(data, inputs, neighbours=[9, 4], leads=[2], classes=3)
    assert np.array_equal(several.evidence["order"], one.evidence["order"])
    assert np.array_equal(several.counts, one.counts)
    assert several.mechanism == NearestExamples((9, 4), 40, (2,))
    assert one.recipe is not None
    assert several.recipe == {**one.recipe, "neighbours": [9, 4], "leads": [2]}
    assert "leads" not in one.recipe
    by_label = neighbour_votes(data, inputs, neighbours=[9, 4], leads=[[2, 9, 1]], classes=3)
    assert by_label.mechanism == NearestExamples((9, 4), 40, ((2, 9, 1),))
    assert by_label.recipe == {**one.recipe, "neighbours": [9, 4], "leads": [[2, 9, 1]]}


# --- mirror images --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 5), (3, 4, 5)])
@pytest.mark.parametrize("kernel", [Exponential(0.3), Within(0.2)])
def test_a_mirrored_weight_is_the_larger_one_of_two(shape: tuple[int, ...], kernel: Kernel) -> None:
    x, inputs = (np.random.default_rng(seed).normal(size=(30, *shape)) for seed in (0, 1))
    plain, turned = (pair_weights(x, each, kernel=kernel) for each in (inputs, inputs[..., ::-1]))
    assert (plain > turned).any()
    assert (plain < turned).any()
    found = kernel_votes((x, np.arange(30)), inputs, kernel=kernel, classes=30, mirrored=True, own=True)
    assert found.counts.tolist() == np.maximum(plain, turned)[:, :30].tolist()
    # One example for each label, so the winner has one weight of its own: its score.
    assert (found.evidence["own"].argmax(axis=1) == found.counts.max(axis=1)).all()


@given(seed=st.integers(0, 999), neighbours=st.integers(1, 12), chunk=st.integers(1, 60), coarse=st.booleans())
def test_the_mirrored_order_is_that_of_whole_numbers(seed: int, neighbours: int, chunk: int, coarse: bool) -> None:
    x, inputs = (drawn(seed + i, count, 6, coarse=coarse).reshape(-1, 2, 3) for i, count in enumerate((21, 5)))
    labels = np.arange(21) % 4
    with pytest.MonkeyPatch.context() as patch:
        in_pieces(patch, chunk)
        votes = neighbour_votes((x, labels), inputs, neighbours=neighbours, classes=4, mirrored=True)
    flat = x.reshape(21, 6)
    for query, order in zip(inputs, votes.evidence["order"].tolist(), strict=True):
        views = np.array([query.reshape(6), query[:, ::-1].reshape(6)])
        expected = expected_order(flat, labels, views)[: min(2 * neighbours, 21)]
        assert order == [int(labels[i]) for i in expected]


def test_an_input_and_its_mirror_image_get_the_same_votes() -> None:
    x, inputs, labels = images(0, 40), images(1, 5), np.arange(40) % 3
    turned = np.ascontiguousarray(inputs[..., ::-1])
    options: dict[str, Any] = {"features": "oriented-gradients", "classes": 3}
    for vote in (kernel_votes, lambda *data, **more: neighbour_votes(*data, neighbours=7, **more)):
        apart = [vote((x, labels), each, **options).counts for each in (inputs, turned)]
        assert (apart[0] != apart[1]).any()
        both = [vote((x, labels), each, mirrored=True, **options) for each in (inputs, turned)]
        assert both[0].counts.tolist() == both[1].counts.tolist()
        assert both[0].recipe is not None
        assert both[0].recipe["mirrored"] is True


@pytest.mark.parametrize("neighbours", [4, 5])
def test_no_small_poisoning_changes_a_certified_mirrored_vote(neighbours: int) -> None:
    data = [DOMAIN[i] for i in (0, 4, 0, 4, 0, 4, 2, 3, 5)]
    inputs = np.array([[1.0, 0.1], [0.5, 0.6], [-1.0, 1.0]])[:, None]  # images of one row: the mirror swaps two pixels

    def seen(d: tuple[Array, Array]) -> tuple[Array, Array]:
        return d[0][:, None], d[1]

    near: dict[str, Any] = {"neighbours": neighbours, "classes": 2, "mirrored": True}
    attack(data, lambda d: neighbour_votes(seen(d), inputs, **near), NeighbourRule(), 2)
    kernel: dict[str, Any] = {"kernel": Exponential(0.3), "classes": 2, "own": True, "mirrored": True}
    attack(data[3:], lambda d: kernel_votes(seen(d), inputs, **kernel), KernelRule(), FULL_WEIGHT)


def test_a_mirrored_defence_says_so() -> None:
    plain, mirrored = NearestNeighbours(neighbours=5), NearestNeighbours(neighbours=5, mirrored=True)
    assert mirrored.training_key == {**plain.training_key, "mirrored": True} != plain.training_key
    data = (images(0, 40), np.arange(40) % 3)
    for defence in (mirrored, KernelVote(mirrored=True)):
        votes = defence.train(data, (images(1, 5), np.zeros(5, dtype=int)))
        assert votes.recipe is not None
        assert votes.recipe["mirrored"] is True


# --- what votes say about themselves --------------------------------------------------------------------------------


def small(**options: Any) -> Votes:
    return kernel_votes((drawn(0, 9, 3), np.arange(9) % 3), (drawn(1, 2, 3), [0, 1]), **options)


def test_votes_say_where_they_come_from(tmp_path: Path) -> None:
    votes = small(features=UnitNorm(), kernel=Within(0.5), own=True)
    assert votes.recipe == {
        "method": "kernel-vote",
        "features": UnitNorm().to_dict(),
        "kernel": {"name": "within", "cosine": 0.5},
        "classes": 3,
    }
    assert json.loads(json.dumps(votes.recipe)) == votes.recipe
    assert votes.labels is not None
    assert votes.labels.tolist() == [0, 1]
    assert not votes.assumptions
    votes.save(tmp_path / "votes.npz")
    assert Votes.load(tmp_path / "votes.npz") == votes


def test_the_fingerprint_is_of_data_and_recipe() -> None:
    x, y, inputs = drawn(0, 9, 3), np.arange(9) % 3, drawn(1, 2, 3)
    calls: list[Callable[[], Votes]] = [
        lambda: kernel_votes((x, y), inputs),
        lambda: kernel_votes((x + 1, y), inputs),
        lambda: kernel_votes((x, y[::-1]), inputs),
        lambda: kernel_votes((x, y), inputs + 1),
        lambda: kernel_votes((x, y), inputs, kernel=Within(0.5)),
        lambda: kernel_votes((x, y), inputs, classes=4),
        lambda: kernel_votes((x, y), inputs, features=UnitNorm()),
        lambda: neighbour_votes((x, y), inputs, neighbours=3),
        lambda: neighbour_votes((x, y), inputs, neighbours=4),
        lambda: neighbour_votes((x, y), inputs, neighbours=(4, 3), leads=(1,)),
        lambda: neighbour_votes((x, y), inputs, neighbours=(4, 3), leads=(2,)),
    ]
    prints = [call().data_fingerprint for call in calls]
    assert len(set(prints)) == len(prints)
    assert all(printed is not None and printed.startswith("sha256:") for printed in prints)
    assert kernel_votes((x, y), (inputs, [0, 1])).data_fingerprint == prints[0]


def test_what_an_order_says_is_repeated() -> None:
    data = (drawn(0, 9, 3), np.arange(9) % 3)
    votes = KernelVote(features="none").train(data, drawn(1, 2, 3), assumptions=["Read as is."])
    assert votes.assumptions[0] == "Read as is."
    assert "classes = 3 was read off the training data" in votes.assumptions[1]
    assert not any("read off" in each for each in KernelVote(classes=3).train(data, drawn(1, 2, 3)).assumptions)


def test_a_trusted_encoder_is_named_among_the_assumptions() -> None:
    trusted = Frozen(function=lambda x: x * 2.0, title="doubling", trained_on="nothing")
    x, y, inputs = drawn(0, 9, 3), np.arange(9) % 3, drawn(1, 2, 3)
    votes = KernelVote(features=trusted, classes=3).train((x, y), inputs)
    assert votes.counts.tolist() == KernelVote(features="none", classes=3).train((x, y), inputs).counts.tolist()
    assert trusted.assumption in votes.assumptions
    shifted = Frozen(function=lambda x: x + 2.0, title="doubling", trained_on="nothing")
    assert KernelVote(features=shifted, classes=3).train((x, y), inputs).data_fingerprint != votes.data_fingerprint


@pytest.mark.parametrize("vote", [kernel_votes, partial(neighbour_votes, neighbours=2)])
def test_progress_counts_the_inputs(vote: Callable[..., Votes], monkeypatch: pytest.MonkeyPatch) -> None:
    in_pieces(monkeypatch, 2)
    monkeypatch.setattr(_kernel_sums, "BLOCK_EXAMPLES", 2)
    monkeypatch.setattr(kernel_file, "_INPUTS", 2)
    seen: list[tuple[int, int]] = []
    vote((drawn(0, 9, 3), np.arange(9) % 3), drawn(1, 5, 3), progress=lambda done, total: seen.append((done, total)))
    done = [each for each, _ in seen]
    assert done == sorted(done)
    assert set(done) >= {1, 2, 3, 4}
    assert seen[-1] == (5, 5)


def test_the_module_needs_no_torch() -> None:
    code = "import sys, mithridate.defences._nearness; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- bad input ------------------------------------------------------------------------------------------------------

X, Y, INPUTS = drawn(0, 6, 3), np.arange(6) % 2, drawn(1, 2, 3)
WITH_NAN = np.where(np.eye(6, 3) > 0, np.nan, X)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: kernel_votes((WITH_NAN, Y), INPUTS), "not finite"),
        (lambda: kernel_votes((X, Y), WITH_NAN), "not finite"),
        (lambda: kernel_votes((X, Y), INPUTS[:, :2]), "like the training inputs"),
        (lambda: kernel_votes((X, Y), INPUTS.astype(np.uint8)), "like the training inputs"),
        (lambda: kernel_votes((X, Y[:3]), INPUTS), "one label for each"),
        (lambda: kernel_votes((X, Y), (INPUTS, [0])), "one label for each"),
        (lambda: kernel_votes((X, Y), (INPUTS, [0, 7])), "labels go from 0 to 1"),
        (lambda: KernelVote(classes=1), "at least 2"),
        (lambda: KernelVote(classes=2.5), "whole number"),  # pyright: ignore[reportArgumentType]
        (lambda: kernel_votes(X, INPUTS), "a pair"),
        (lambda: kernel_votes((X[:0], Y[:0]), INPUTS), "empty"),
        (lambda: kernel_votes((X, Y), INPUTS[:0]), "empty"),
        (lambda: kernel_votes((np.array(TEXTS), np.arange(7) % 2), np.array(TEXTS)), "hashed-words"),
        (lambda: kernel_votes((X, Y), INPUTS, features="no-such"), "features"),
        (lambda: kernel_votes((X, Y), INPUTS, features=7), "features.Frozen"),
        (lambda: kernel_votes((X, Y), INPUTS, features=OrientedGradients()), "images"),
        (lambda: kernel_votes((X, Y), INPUTS, features=HashedNgrams()), "text"),
        (lambda: kernel_votes((X, Y), INPUTS, kernel=Constant(1.1)), "from 0 to 1"),
        (lambda: kernel_votes((X, Y), INPUTS, kernel=Constant(-0.1)), "from 0 to 1"),
        (lambda: kernel_votes((X, Y), INPUTS, kernel=Constant(math.nan)), "from 0 to 1"),
        (lambda: kernel_votes((X, Y), INPUTS, kernel=Constant([1.0, 0.5])), "from 0 to 1"),
        (lambda: kernel_votes((X, Y), INPUTS, mirrored=True), "leave mirrored out"),
        (
            lambda: kernel_votes((np.array(TEXTS), np.arange(7) % 2), TEXTS, features=HashedNgrams(), mirrored=True),
            "leave mirrored out",
        ),
        (lambda: kernel_votes((X, Y), INPUTS, mirrored=1), "true or false"),
        (lambda: NearestNeighbours(mirrored="yes"), "true or false"),  # pyright: ignore[reportArgumentType]
        (lambda: neighbour_votes((X, Y), INPUTS, neighbours=7), "6 training examples"),
        (lambda: neighbour_votes((X, Y), INPUTS, neighbours=(7, 2), leads=(2,)), "6 training examples"),
        (lambda: neighbour_votes((X, Y), INPUTS, neighbours=(5, 2), leads=([2] * 7,)), "a lead for each of"),
        (lambda: neighbour_votes((X, Y), INPUTS, neighbours=(4, 2)), "a lead for every number"),
        (lambda: neighbour_votes((X, Y), INPUTS, neighbours=0), "neighbours"),
        (lambda: neighbour_votes((X, Y), INPUTS, neighbours=1.5), "neighbours"),
        (lambda: KernelVote().train((X, Y), INPUTS, assumptions="One."), "as a list of sentences"),
        (lambda: KernelVote().train((X, Y), INPUTS, assumptions=[" "]), "as a list of sentences"),
        (lambda: Exponential(0.0), "width"),
        (lambda: Exponential(math.nan), "width"),
        (lambda: Exponential(0.2, full=1.5), "full"),
        (lambda: Within(2.0), "cosine"),
        (lambda: Within("near"), "cosine"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_bad_input_gets_one_clear_sentence(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        call()


def test_a_kernel_that_is_left_open_follows_features_and_colours() -> None:
    def default(channels: int, features: str) -> str:
        x = np.random.default_rng(5).integers(0, 256, (4, channels, 20, 20), dtype=np.uint8)
        votes = kernel_votes((x, np.arange(4) % 2), x[:1], features=features)
        assert votes.recipe is not None
        return json.dumps(votes.recipe["kernel"])

    oriented = [default(channels, "oriented-gradients") for channels in (1, 3, 4)]
    photo = [default(channels, "photo-gradients") for channels in (1, 3, 4)]
    assert oriented[0] == oriented[2] == photo[0] == photo[2]  # drawings, whatever their features are
    labelled = (np.array(TEXTS), np.arange(7) % 2)
    words, grams = (kernel_votes(labelled, TEXTS, features=name) for name in ("hashed-words", "hashed-ngrams"))
    assert (words.recipe or {})["kernel"] == {"name": "exponential", "width": 0.02, "full": 0.2}
    assert any("constants of the kernel" in str(each) and "VADER" in str(each) for each in words.assumptions)
    assert (grams.recipe or {})["kernel"]["full"] == 0.8
    assert len({oriented[0], oriented[1], photo[1], default(3, "unit-norm")}) == 4
    assert default(3, "layered-gradients") == oriented[1]


def test_workers_require_exact_products_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ConfigError("not exact here")

    for module in (_search, _places):
        monkeypatch.setattr(module, "require_exact_products", refuse)
    rows, zeros, inputs = np.ones((3, 2), np.int16), np.zeros(3, np.int64), np.ones((1, 2), np.float32)
    asked = _kernel_sums.Weighing(np.ones(1 << 17, np.float32), [inputs], rows[:0], zeros[:0])
    shards: list[Callable[[], Any]] = [
        lambda: _search.keys_of_shard(1, 9, np.zeros(1, np.float32), (inputs,), rows, np.arange(3, dtype=np.uint32)),
        lambda: _places._label_sums_of_shard(asked, 1, rows, zeros),
        lambda: _places._own_weights_of_shard(asked, zeros[:1], rows, zeros),
    ]
    for shard in shards:
        with pytest.raises(ConfigError, match="not exact here"):
            shard()
