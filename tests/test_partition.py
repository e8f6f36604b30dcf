"""Parts are decided by content alone: never by position, by other examples, or by how wide numpy stores a text."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mithridate import ConfigError
from mithridate.data.partition import canonical_order, content_hashes, parts


def examples(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (count, 4, 3)).astype(np.uint8), random.integers(0, 5, count)


def contents(x: np.ndarray, y: np.ndarray, members: np.ndarray) -> list[tuple[bytes, int]]:
    return [(x[i].tobytes(), int(y[i])) for i in members]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(1, 12), removed=st.integers(0, 10))
def test_a_part_is_the_same_in_any_order_and_beside_any_others(seed: int, count: int, removed: int) -> None:
    x, y = examples(40, seed)
    random = np.random.default_rng(seed)
    kept = random.permutation(40)[removed:]
    extra_x, extra_y = examples(removed, seed + 1001)
    other = (np.concatenate([extra_x, x[kept]]), np.concatenate([extra_y, y[kept]]))
    before = parts(content_hashes(x, y), count)
    after = parts(content_hashes(*other), count)
    changed = {content for i in set(range(40)) - set(kept.tolist()) for content in contents(x, y, np.array([i]))}
    changed |= set(contents(extra_x, extra_y, np.arange(removed)))
    for one, two in zip(before, after, strict=True):
        old, new = contents(x, y, one), contents(*other, two)
        assert [c for c in old if c not in changed] == [c for c in new if c not in changed]


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 60))
def test_every_example_is_in_one_part(count: int) -> None:
    x, y = examples(50)
    found = parts(content_hashes(x, y), count)
    assert len(found) == count
    assert sorted(np.concatenate(found).tolist()) == list(range(50))


def test_one_change_changes_at_most_two_parts() -> None:
    x, y = examples(60)
    before = [sorted(contents(x, y, part)) for part in parts(content_hashes(x, y), 30)]
    for i in range(20):
        changed = x.copy()
        changed[i, 0, 0] ^= 1
        after = [sorted(contents(changed, y, part)) for part in parts(content_hashes(changed, y), 30)]
        assert sum(one != two for one, two in zip(before, after, strict=True)) in (1, 2)


def test_duplicates_fall_into_one_part_and_count_as_often_as_they_occur() -> None:
    x, y = examples(10)
    x, y = np.concatenate([x, x[:3], x[:1]]), np.concatenate([y, y[:3], y[:1]])
    found = [contents(x, y, part) for part in parts(content_hashes(x, y), 4)]
    first = (x[0].tobytes(), int(y[0]))
    assert sorted(part.count(first) for part in found) == [0, 0, 0, 3]


def test_the_hash_is_of_label_and_input_and_of_their_kind_and_shape() -> None:
    x, y = examples(5)
    hashes = content_hashes(x, y)
    assert len({tuple(row) for row in hashes.tolist()}) == 5
    others = [content_hashes(x, y + 1), content_hashes(x.reshape(5, 12), y), content_hashes(x.view(np.int8), y)]
    for other in others:
        assert not (other == hashes).any()
    x[2, 1, 1] += 1
    assert (content_hashes(x, y) == hashes).all(axis=1).tolist() == [True, True, False, True, True]


def test_a_strided_array_is_its_contents() -> None:
    x, y = examples(6)
    assert np.array_equal(content_hashes(np.asfortranarray(x), y), content_hashes(x, y))
    assert np.array_equal(content_hashes(x[::2], y[::2]), content_hashes(x, y)[::2])


def test_a_longer_text_beside_it_does_not_change_the_hash_of_a_text() -> None:
    y = np.zeros(2, np.int64)
    short, long = np.array(["one", "two"]), np.array(["one", "a much longer text"])
    assert np.array_equal(content_hashes(short, y)[0], content_hashes(long, y)[0])
    pairs = content_hashes(np.array([["ab", "c"], ["a", "bc"]]), y)
    assert not np.array_equal(pairs[0], pairs[1])


def test_the_canonical_order_sorts_by_hash_and_forgets_positions() -> None:
    x, y = examples(30)
    order = canonical_order(content_hashes(x, y))
    mixed = np.random.default_rng(1).permutation(30)
    again = canonical_order(content_hashes(x[mixed], y[mixed]))
    assert contents(x, y, order) == contents(x[mixed], y[mixed], again)
    rows = [tuple(row) for row in content_hashes(x, y)[order].tolist()]
    assert rows == sorted(rows)


def test_parts_are_balanced_as_random_ones_are() -> None:
    x, y = examples(4000)
    sizes = np.array([len(part) for part in parts(content_hashes(x, y), 40)])
    # 100 expected, standard deviation 9.9: six of them fail by chance with probability below 1e-7.
    assert abs(sizes - 100).max() < 60


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint16, np.float32, np.float64, np.bool_])
def test_how_an_array_holds_its_numbers_does_not_matter(dtype: type) -> None:
    """One inserted example can change the type of all: whole numbers become fractions, single precision double."""
    x, y = np.array([[0, 1], [1, 1], [1, 0]]).astype(dtype), np.array([0, 1, 1])
    expected = content_hashes(x.astype(np.float64), y)
    assert np.array_equal(content_hashes(x, y), expected)
    longer = np.concatenate([x, np.array([[0.5, 300.0]])])
    assert np.array_equal(content_hashes(longer, np.append(y, 0))[:3], expected)


def test_numbers_that_only_look_alike_are_different_content() -> None:
    x = np.array([[0.0], [-0.0], [np.nextafter(0.0, 1.0)]])
    assert len(np.unique(content_hashes(x, np.zeros(3, np.int64)), axis=0)) == 3
    with pytest.raises(ConfigError, match="up to 2\\^53"):
        content_hashes(np.array([[2**53 + 1]]), np.zeros(1, np.int64))
