"""Held-out examples: chosen by each example alone, in the right number, with copies on one side."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from mithridate import ConfigError
from mithridate.data import Arrays, Examples
from mithridate.data.partition import split_by_hash

# With which probability a test of chance may fail though all is well, were its seed not fixed.
FALSE_ALARM = 1e-6


def held_out(x: np.ndarray, share: float = 0.5) -> set[bytes]:
    """The inputs that are held out, as bytes, however few."""
    filler = _fillers(x)
    _, out = split_by_hash(Examples(np.concatenate([x, filler]), None), share)
    return {_key(row) for row in out.x}


def _key(row: Any) -> bytes:
    return str(row).encode() if isinstance(row, str) else row.tobytes()


def _fillers(x: np.ndarray) -> np.ndarray:
    """Inputs of the same kind, so many that neither part is empty."""
    if x.dtype.kind == "U":
        return np.array([f"filler {number}" for number in range(200)])
    rng = np.random.default_rng(7)
    if x.dtype == np.uint8:
        return rng.integers(0, 256, (200, *x.shape[1:]), dtype=np.uint8)
    return rng.normal(size=(200, *x.shape[1:])).astype(x.dtype)


ROWS = st.one_of(
    arrays.arrays(np.float32, st.tuples(st.integers(1, 12), st.just(3)), elements=st.floats(-9, 9, width=32)),
    arrays.arrays(np.uint8, st.tuples(st.integers(1, 12), st.just(1), st.just(2), st.just(2))),
    st.lists(st.text(st.characters(blacklist_categories=("Cs",)), max_size=9), min_size=1, max_size=12).map(np.array),
)


# --- a function of each example alone -------------------------------------------------------------------------------


@settings(max_examples=80)
@given(x=ROWS, share=st.sampled_from([0.1, 0.5, 0.9]), data=st.data())
def test_other_examples_move_none(x: np.ndarray, share: float, data: st.DataObject) -> None:
    """Adding, removing and shuffling other rows leaves each row on its side."""
    whole = held_out(x, share)
    kept = data.draw(st.permutations(range(len(x))))[: data.draw(st.integers(1, len(x)))]
    part = held_out(x[np.array(kept)], share)
    rows = {_key(row) for row in x[np.array(kept)]}
    assert part & rows == whole & rows


@settings(max_examples=40)
@given(
    texts=st.lists(st.text(max_size=6).filter(lambda text: text.isprintable()), min_size=1, max_size=6),
    longest=st.integers(7, 5000),
)
def test_a_text_does_not_depend_on_the_longest_one(texts: list[str], longest: int) -> None:
    alone = held_out(np.array(texts))
    beside = held_out(np.array([*texts, "x" * longest]))
    assert alone == beside - {b"x" * longest}


def test_the_memory_layout_does_not_matter() -> None:
    x = np.random.default_rng(0).normal(size=(100, 4, 3)).astype(np.float32)
    expected = split_by_hash(Examples(x, None), 0.3)[1].x
    for other in (np.asfortranarray(x), x[::-1][::-1], x.transpose(1, 0, 2).copy().transpose(1, 0, 2)):
        assert np.array_equal(split_by_hash(Examples(other, None), 0.3)[1].x, expected)


def test_labels_have_no_say() -> None:
    x = np.random.default_rng(0).normal(size=(100, 2))
    one = split_by_hash(Examples(x, np.zeros(100, dtype=np.int64)), 0.3)[1]
    other = split_by_hash(Examples(x, np.arange(100)), 0.3)[1]
    assert np.array_equal(one.x, other.x)


def test_a_larger_share_holds_out_more_and_never_less() -> None:
    x = np.random.default_rng(0).normal(size=(300, 2))
    before: set[bytes] = set()
    for share in (0.05, 0.2, 0.5, 0.8, 0.95):
        now = {row.tobytes() for row in split_by_hash(Examples(x, None), share)[1].x}
        assert before < now
        before = now


# --- how many -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("kind", ["counted", "random", "text"])
def test_the_share_is_that_asked_for(share: float, kind: str) -> None:
    """Within what an unbiased coin would give, but for one time in a million; also for inputs that hardly differ."""
    count = 20_000
    inputs = {
        "counted": np.arange(count, dtype=np.float32)[:, None],
        "random": np.random.default_rng(1).integers(0, 256, (count, 4), dtype=np.uint8),
        "text": np.array([f"row {number}" for number in range(count)]),
    }[kind]
    inputs = np.unique(inputs, axis=0)
    found = len(split_by_hash(Examples(inputs, None), share)[1].x)
    assert stats.binomtest(found, len(inputs), share).pvalue > FALSE_ALARM


# --- copies, and what comes along -----------------------------------------------------------------------------------


@settings(max_examples=40)
@given(seed=st.integers(0, 999), copies=st.integers(2, 5))
def test_copies_are_on_one_side(seed: int, copies: int) -> None:
    rng = np.random.default_rng(seed)
    x = np.repeat(rng.normal(size=(60, 2)), copies, axis=0)
    rng.shuffle(x)
    training, out = split_by_hash(Examples(x, None), 0.5)
    assert not {row.tobytes() for row in training.x} & {row.tobytes() for row in out.x}
    assert len(training.x) % copies == len(out.x) % copies == 0


def test_labels_names_and_notes_go_along() -> None:
    count = 100
    x = np.arange(count, dtype=np.float32)[:, None]
    made = Examples(
        x,
        np.arange(count, dtype=np.int64),
        class_names=tuple(map(str, range(count))),
        notes=("a note",),
        assumptions=("assumed",),
        declaration=Arrays(),
        ids=tuple(f"{number}.png" for number in range(count)),
    )
    parts = split_by_hash(made, 0.3)
    assert sum(len(part.x) for part in parts) == count
    for part in parts:
        assert part.y is not None
        numbers = part.x[:, 0].astype(int).tolist()
        assert part.y.tolist() == numbers == sorted(numbers)
        assert part.ids == tuple(f"{number}.png" for number in numbers)
        assert (part.class_names, part.notes) == (made.class_names, made.notes)
        assert (part.assumptions, part.declaration) == (made.assumptions, made.declaration)


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.1, float("nan"), "half", None, True])
def test_shares_that_are_none(share: Any) -> None:
    with pytest.raises(ConfigError, match="holdout"):
        split_by_hash(Examples(np.zeros((4, 2)), None), share)


@pytest.mark.parametrize("count", [1, 2, 50])
def test_no_part_may_be_empty(count: int) -> None:
    """One example, or copies of one: they are all on one side."""
    with pytest.raises(ConfigError, match="test file"):
        split_by_hash(Examples(np.ones((count, 2)), None), 0.5)


# --- the type of the whole array, and what else is not of the example -----------------------------------------------


def sides(x: np.ndarray, share: float = 0.5) -> list[bool]:
    """Whether each input is held out, with so many others that neither part is empty."""
    count = len(x)
    made = Examples(np.concatenate([x, _others(x)]), np.arange(count + 200))
    _, out = split_by_hash(made, share)
    assert out.y is not None
    return [row in out.y for row in range(count)]


def _others(x: np.ndarray) -> np.ndarray:
    words = np.array([f"other {number}" for number in range(200)])
    numbers = np.arange(200) % 100 if x.dtype == np.uint8 else np.arange(200)
    rows = (words if x.dtype.kind == "U" else numbers.astype(x.dtype)).reshape(-1, *[1] * (x.ndim - 1))
    return np.broadcast_to(rows, (200, *x.shape[1:]))


def test_the_type_of_the_array_does_not_matter() -> None:
    x = np.random.default_rng(2).integers(0, 128, (60, 3))
    expected = sides(x)
    assert len(set(expected)) == 2
    for kind in (np.uint8, np.int8, np.int32, np.uint64, np.float16, np.float32, np.float64, ">f4", ">i8"):
        assert sides(x.astype(kind)) == expected
    beside = np.concatenate([x.astype(np.float32), np.full((1, 3), 0.1)])  # in double precision, all of it
    assert sides(beside)[:-1] == expected


def test_zeros_have_no_sign() -> None:
    x = np.zeros((40, 40), dtype=np.float32)
    x[np.arange(40), np.arange(40)] = np.arange(1, 41)
    expected = sides(x)
    assert len(set(expected)) == 2
    assert sides(np.where(x == 0, np.float32(-0.0), x)) == expected


def test_texts_of_several_columns() -> None:
    """Neither the longest text nor where one ends and the next begins is lost or has a say."""
    x = np.array([[f"{number}", "b"] for number in range(60)])
    expected = sides(x)
    assert len(set(expected)) == 2
    assert sides(np.concatenate([x, [["x" * 5000, "y"]]]))[:-1] == expected
    moved = np.array([[f"{number}b", ""] for number in range(60)])
    assert sides(moved) != expected


def test_half_a_surrogate_pair_is_hashed_like_any_text() -> None:
    x = np.array([f"\ud800{number}" for number in range(60)])
    assert len(set(sides(x))) == 2
    assert sides(x[:, None]) == sides(x)


@pytest.mark.parametrize("x", [np.ones((50, 2)), np.array(["same"] * 50), np.full((50, 1, 2, 2), 7, np.uint8)])
def test_inputs_that_all_look_alike_are_named_as_the_cause(x: np.ndarray) -> None:
    with pytest.raises(ConfigError, match=r"all inputs look alike; check the data .* or name a test file"):
        split_by_hash(Examples(x, None), 0.5)
    with pytest.raises(ConfigError) as caught:
        split_by_hash(Examples(np.arange(6.0).reshape(3, 2), None), 1e-9)
    assert "alike" not in str(caught.value)
    assert "name a test file" in str(caught.value)
