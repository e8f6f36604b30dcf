"""Arrays of users: what is refused, and how it is scaled."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mithridate import ArtifactError, ConfigError
from mithridate.data.examples import (
    Examples,
    Preparation,
    as_examples,
    check_inputs,
    check_labels,
    kind_of,
)
from mithridate.data.sources import read
from mithridate.features import Frozen

# --- files ----------------------------------------------------------------------------------------------------------


def test_inputs_and_labels_of_a_file(tmp_path: Path) -> None:
    x, y = np.arange(12).reshape(4, 3).astype(np.uint8), np.array([0, 1, 1, 0])
    np.savez(tmp_path / "both.npz", x=x, y=y, other=np.ones(3))
    np.savez(tmp_path / "inputs.npz", x=x)
    for labels in (True, False):
        found = read(tmp_path / "both.npz", labels=labels or None)
        assert np.array_equal(found.x, x)
        assert np.array_equal(np.asarray(found.y), y)
    assert read(tmp_path / "inputs.npz").y is None


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": np.ones((2, 2))}, "no array 'y' (it has: x)"),
        ({"y": np.ones(2)}, "no array 'x' (it has: y)"),
        ({"images": np.ones((2, 2)), "labels": np.ones(2)}, "no array 'x' (it has: images, labels)"),
        ({}, "no array 'x' (it has: none)"),
        ({"x": np.array([object()]), "y": np.ones(1)}, "Python objects"),
    ],
)
def test_files_that_lack_an_array(tmp_path: Path, arrays: dict[str, Any], says: str) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(ArtifactError) as caught:
        read(tmp_path / "data.npz", labels=True)
    assert says in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"not a zip", pickle.dumps([1, 2]), b"\x93NUMPY\x01\x00"])
def test_files_of_another_kind(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "data.npz").write_bytes(data)
    with pytest.raises(ArtifactError, match="arrays 'x'"):
        read(tmp_path / "data.npz", labels=True)
    with pytest.raises(ArtifactError, match="no file or folder"):
        read(tmp_path / "missing.npz", labels=True)


# --- the door ---------------------------------------------------------------------------------------------------------


def test_examples_go_through_the_door_whole() -> None:
    given = Examples(np.ones((2, 1)), np.array([0, 1]), ("no", "yes"), ids=("line 2", "line 3"))
    found = as_examples(given, "training", need_labels=True, classes=2)
    assert (found.x is given.x, found.class_names, found.ids) == (True, ("no", "yes"), ("line 2", "line 3"))
    assert found.part(np.array([False, True])).ids == ("line 3",)


@pytest.mark.parametrize(
    "given", [([[1], [2]], [0, 1]), [[[1], [2]], [0, 1]], (np.array([[1], [2]]), np.array([0.0, 1]))]
)
def test_pairs_become_examples(given: Any) -> None:
    found = as_examples(given, "training", need_labels=True)
    assert (found.x.tolist(), found.y.tolist() if found.y is not None else None) == ([[1], [2]], [0, 1])


def test_inputs_alone_have_no_labels() -> None:
    for data in ([[1, 2], [3, 4]], ([[1, 2], [3, 4]], None), Examples(np.array([[1, 2], [3, 4]]), None)):
        found = as_examples(data, "test", need_labels=False)
        assert (found.x.tolist(), found.y) == ([[1, 2], [3, 4]], None)


@pytest.mark.parametrize(
    ("given", "need_labels", "says"),
    [
        (np.ones((3, 2)), True, "Expected training data as a pair (inputs, labels), got ndarray"),
        (pandas.DataFrame({"a": ["b"]}), True, "got DataFrame; read a data frame by a declaration"),
        ((pandas.DataFrame({"a": ["b"]}), [0]), True, "got object; read a data frame by a declaration"),
        ((np.array(["b", None]), [0, 1]), True, "got object; convert it to numbers"),
        ((np.ones((3, 2)),), False, "Expected training data as a pair (inputs, labels), got tuple"),
        ((np.ones((3, 2)), None), True, "The training data has no labels"),
        (Examples(np.ones((3, 2)), None), True, "The training data has no labels"),
        ((np.ones((3, 2)), [0, 1]), True, "There are 3 training inputs but 2 labels"),
        ((np.ones((3, 2)), [0, 1, 5]), False, "Label 2 of the training data is 5"),
        (Examples(np.ones(3), None), False, "one row per example"),
    ],
)
def test_what_is_no_data_stays_outside(given: Any, need_labels: bool, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        as_examples(given, "training", need_labels=need_labels, classes=3)
    assert says in str(caught.value)


# --- labels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.int8, np.float32, np.float64, ">i4"])
def test_whole_numbers_of_any_type_are_labels(dtype: Any) -> None:
    labels = check_labels(np.array([0, 2, 1], dtype=dtype), 3, "training", classes=3)
    assert labels.dtype == np.int64
    assert labels.tolist() == [0, 2, 1]


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ([0, 1, 3], "Label 2 of the training data is 3; with classes=3, labels go from 0 to 2"),
        ([0, -1, 1], "Label 1 of the training data is -1"),
        ([0.5, 1.0, 1.0], "Label 0 of the training data is 0.5"),
        ([0.0, np.inf, 1.0], "Label 1 of the training data is inf"),
        ([0.0, np.nan, 1.0], "Label 1 of the training data is nan"),
        ([0, 1], "There are 3 training inputs but 2 labels"),
        ([0, 1, 2, 0], "There are 3 training inputs but 4 labels"),
        ([[0], [1], [2]], "one number per example"),
        (["a", "b", "c"], "whole numbers from 0"),
        ([True, False, True], "whole numbers from 0"),
        ([None, 1, 2], "plain array"),
    ],
)
def test_labels_that_are_none(labels: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_labels(labels, 3, "training", classes=3)
    assert says in str(caught.value)


def test_an_absurd_label_is_refused_where_the_classes_are_not_declared() -> None:
    with pytest.raises(ConfigError, match="Label 1"):
        check_labels([0, 2**40], 2, "training", classes=None)


# --- inputs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (np.zeros((0, 3)), "empty"),
        (np.zeros((3, 0)), "empty"),
        (np.float64(3.0), "empty"),
        ([], "empty"),
        (np.zeros(3), "one row per example"),
        (np.zeros((3, 2), dtype=object), "plain array"),
        (np.zeros(3, dtype=[("a", int)]), "plain array"),
        (np.zeros((3, 2), dtype=complex), "as numbers"),
        (np.zeros((3, 2), dtype="datetime64[s]"), "as numbers"),
        ([[1, 2], [3]], "as an array"),
    ],
)
def test_inputs_that_are_none(inputs: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_inputs(inputs, "training")


def test_floats_are_taken_as_they_are() -> None:
    x = np.random.default_rng(0).normal(size=(4, 3))
    for dtype in (np.float16, np.float32, np.float64):
        prepared = Preparation((3,), "float")(x.astype(dtype), "training")
        assert prepared.dtype == np.float32
        assert prepared.flags.c_contiguous
        assert np.array_equal(prepared, x.astype(dtype).astype(np.float32))
    fortran = np.asfortranarray(x)
    assert Preparation((3,), "float")(fortran, "training").flags.c_contiguous


def test_the_arrays_of_the_user_stay_as_they_are() -> None:
    x = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    before = x.copy()
    Preparation((2, 2), "uint8", mean=(0.5,), std=(0.5,), channel_axis=True)(x, "training")
    assert np.array_equal(x, before)
    floats = np.ones((3, 2), np.float32)
    Preparation((2,), "float")(floats, "training")[:] = 7
    assert (floats == 1).all()


@given(
    x=hnp.arrays(np.uint8, (3, 2, 4, 4)),
    mean=st.tuples(st.floats(-1, 1), st.floats(-1, 1)),
    std=st.tuples(st.floats(0.1, 2), st.floats(0.1, 2)),
)
def test_images_are_scaled_channel_by_channel(x: Any, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    prepared = Preparation((2, 4, 4), "uint8", mean=mean, std=std, channel_axis=True)(x, "test")
    for channel in range(2):
        expected = (x[:, channel].astype(np.float64) / 255 - mean[channel]) / std[channel]
        np.testing.assert_allclose(prepared[:, channel], expected, rtol=1e-5, atol=1e-5)


def test_grey_images_get_a_channel_axis_and_tables_do_not() -> None:
    images = np.zeros((3, 4, 5), np.uint8)
    assert Preparation((4, 5), "uint8", mean=(0.0,), std=(1.0,), channel_axis=True)(images, "test").shape == (
        3,
        1,
        4,
        5,
    )
    assert Preparation((4, 5), "uint8", mean=(0.0,), std=(1.0,))(images, "test").shape == (3, 4, 5)
    table = np.full((3, 4), 255, np.uint8)
    assert (Preparation((4,), "uint8", mean=(0.0,), std=(1.0,), channel_axis=True)(table, "test") == 1.0).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_values_that_are_not_finite_are_found(bad: float) -> None:
    x = np.zeros((4, 2, 2))
    x[2, 1, 0] = bad
    with pytest.raises(ConfigError, match="Input 2 of the test data"):
        Preparation((2, 2), "float")(x, "test")


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (np.zeros((4, 3), np.float32), r"shape \(2,\)"),
        (np.zeros((4, 2, 1), np.float32), r"shape \(2,\)"),
        (np.zeros((4, 2), np.uint8), "uint8"),
        (np.array([["a", "b"]]), "text"),
    ],
)
def test_inputs_unlike_those_of_training_are_refused(other: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Preparation((2,), "float")(other, "test")


def test_whole_numbers_are_numbers_unless_they_are_tokens() -> None:
    """A single fraction in the training data makes all of it floating-point: inputs must not depend on that."""
    whole = np.array([[1, 2], [3, 4]])
    as_floats = Preparation((2,), "float")(whole, "test")
    assert np.array_equal(as_floats, Preparation((2,), "integer")(whole.astype(np.float64), "test"))
    with pytest.raises(ConfigError, match="kind integer"):
        Preparation((2,), "integer", tokens=9)(whole.astype(np.float64), "test")


def test_what_cannot_be_scaled_is_refused() -> None:
    with pytest.raises(ConfigError, match="pixel_mean as one number or 3"):
        Preparation((3, 8, 8), "uint8", mean=(0.1, 0.2), std=(1.0,))
    with pytest.raises(ConfigError, match="pixel_std as one number or 1"):
        Preparation((8, 8), "uint8", mean=(0.1,), std=(1.0, 2.0))
    with pytest.raises(ConfigError, match="moveaxis"):
        Preparation((32, 32, 3), "uint8", mean=(0.1,), std=(1.0,))
    with pytest.raises(ConfigError, match="Text needs features"):
        Preparation((), "text")


@pytest.mark.parametrize("bad", [-1, 7])
def test_tokens_that_the_network_does_not_know_are_refused(bad: int) -> None:
    with pytest.raises(ConfigError, match="Input 1 of the training data holds a token outside 0 to 6"):
        Preparation((2,), "integer", tokens=7)(np.array([[1, 2], [3, bad]]), "training")


def test_tokens_stay_whole() -> None:
    tokens = np.array([[1, 2], [3, 2**40]])
    prepared = Preparation((2,), "integer", tokens=2**41)(tokens, "training")
    assert prepared.dtype == np.int64
    assert np.array_equal(prepared, tokens)


def letters(x: Any) -> Any:
    return np.array([[len(word), word.count("a")] for word in x])


def test_an_encoder_takes_the_place_of_scaling() -> None:
    text = check_inputs(["banana", "kiwi", "apple"], "training")
    assert kind_of(text) == "text"
    prepared = Preparation((), "text", encoder=Frozen(letters, title="letters", trained_on="nothing"))(text, "training")
    assert prepared.dtype == np.float32
    assert prepared.tolist() == [[6, 3], [4, 0], [5, 1]]
