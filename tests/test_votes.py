"""Votes: what is refused, what is kept, and how foreign files are read."""

import io
import itertools
import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rival_votes import EXACT, RIVALS

from mithridate import (
    ArtifactError,
    ConfigError,
    MithridateError,
    SampledGaussian,
    Subsampled,
    Votes,
    certify,
    read_votes,
)
from mithridate.defences.bagging import Bagged
from mithridate.defences.kernel import KernelSum
from mithridate.defences.neighbours import NearestExamples
from mithridate.defences.partitions import Partitioned, RunOffRule, SpreadPartitions

GAUSSIAN = SampledGaussian(4.0, 1.0, 4)
COUNTS = [[90, 10, 0], [40, 30, 30]]
ARRAYS = ("counts", "score_sums", "score_squares", "score_histograms", "labels")
PLAIN = ("mechanism", "data_fingerprint", "run_ids", "assumptions", "recipe", "shards", "devices")


RECIPE: dict[str, Any] = {"config": {"instances": 50, "steps": 4}, "model": "linear", "features": None}


def full_votes(
    *, dtype: type = np.float64, run_ids: tuple[str, ...] = ("run-a",), seed: int = 0, extra: tuple[str, ...] = ()
) -> Votes:
    """Votes with every optional array, consistent with one another."""
    scores = np.random.default_rng(seed).dirichlet([3.0, 2.0, 1.0], size=(50, 4))  # instance example class
    bins = np.minimum((scores * 8).astype(int), 7)
    return Votes(
        (scores == scores.max(axis=2, keepdims=True)).sum(axis=0),
        GAUSSIAN,
        score_sums=scores.sum(axis=0).astype(dtype),
        score_squares=(scores**2).sum(axis=0).astype(dtype),
        score_histograms=(bins[..., None] == np.arange(8)).sum(axis=0),
        labels=np.array([0, 1, 2, 0]),
        data_fingerprint="sha256:1234",
        run_ids=run_ids,
        assumptions=("n is public.", *extra),
        recipe=RECIPE,
    )


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ([[5, -1], [2, 2]], "negative"),
        ([[4, 1], [6, -1]], "Row 1 of counts holds a negative"),
        ([[0.5, 0.5]], "fractions"),
        ([[np.nan, 1.0]], "not finite"),
        ([[np.inf, 1.0]], "not finite"),
        ([[3, 1], [0, 0]], "Row 1 of counts is all zero"),
        ([[3, 1], [2, 1]], "Row 1 of counts adds up to 3"),
        ([[3], [3]], "at least two classes"),
        ([3, 1], "table of examples x classes"),
        ([], "table of examples x classes"),
        (np.zeros((0, 3), dtype=int), "at least one row"),
        (np.zeros((2, 0), dtype=int), "at least two classes"),
        (np.ones((2, 2, 2), dtype=int), "table of examples x classes"),
        (7, "table of examples x classes"),
        ([[3, 1], [4]], "different lengths"),
        ([["3", "1"]], "whole numbers"),
        ([[True, False]], "whole numbers"),
        (np.array([[3, 1]], dtype=object), "whole numbers"),
        ([[3 + 0j, 1]], "whole numbers"),
        ([[2**60, 0]], "below 2"),
        ([[10**30, 0]], "whole numbers"),
        ([[1e300, 0.0]], "below 2"),
        (np.array([[2**64 - 1, 1]], dtype=np.uint64), "below 2"),
    ],
)
def test_counts_that_are_not_counts_are_refused(counts: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Votes.from_counts(counts, mechanism=GAUSSIAN)


def test_whole_floats_and_small_integer_types_are_counts() -> None:
    for dtype in (np.float64, np.uint8, np.int32, np.uint64, ">i4"):
        votes = Votes.from_counts(np.array(COUNTS, dtype=dtype), mechanism=GAUSSIAN)
        assert votes.counts.dtype == np.int64
        assert votes.counts.tolist() == COUNTS
    assert (votes.instances, votes.examples, votes.classes) == (100, 2, 3)


def test_small_integer_types_do_not_overflow_when_rows_are_added_up() -> None:
    votes = Votes.from_counts(np.array([[200, 200], [250, 150]], dtype=np.uint8), mechanism=GAUSSIAN)
    assert votes.instances == 400


@pytest.mark.parametrize("mechanism", [None, "gaussian", (4.0, 1.0, 4), {"type": "sampled-gaussian"}])
def test_only_a_mechanism_is_a_mechanism(mechanism: Any) -> None:
    with pytest.raises(ConfigError, match="mechanism"):
        Votes.from_counts(COUNTS, mechanism=mechanism)


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"score_sums": [[1.0, 2.0]]}, "shape of counts"),
        ({"score_sums": [[1.0, 2.0, -1e-9]] * 2}, "0 or more"),
        ({"score_sums": [[1.0, 2.0, np.nan]] * 2}, "finite"),
        ({"score_sums": [["1", "2", "3"]] * 2}, "finite numbers"),
        ({"score_sums": np.ones((2, 3), np.float16)}, "half precision"),
        ({"score_squares": np.ones((2, 3), ">f2")}, "half precision"),
        ({"score_squares": [[1.0, 2.0]]}, "shape of counts"),
        ({"score_histograms": np.ones((2, 3), int)}, "histograms of shape"),
        ({"score_histograms": np.zeros((2, 3, 0), int)}, "histograms of shape"),
        ({"score_histograms": np.full((2, 3, 2), 49)}, "add up to the number of instances"),
        ({"score_histograms": np.array([[[101, -1]] * 3] * 2)}, "add up to the number of instances"),
        ({"score_histograms": np.full((2, 3, 2), 50.5)}, "whole numbers"),
        ({"labels": [0]}, "one true label"),
        ({"labels": [[0, 1]]}, "one true label"),
        ({"labels": [0, 3]}, "from 0 to 2"),
        ({"labels": [0, -1]}, "from 0 to 2"),
        ({"labels": [0, 0.5]}, "whole numbers"),
        ({"labels": ["cat", "dog"]}, "whole numbers"),
        ({"labels": [[0], [0, 1]]}, "different lengths"),
    ],
)
def test_optional_arrays_that_do_not_fit_are_refused(extra: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Votes.from_counts(COUNTS, mechanism=GAUSSIAN, **extra)


def test_nobody_can_change_the_votes_afterwards() -> None:
    given_counts = np.array(COUNTS)
    votes = Votes.from_counts(given_counts, mechanism=GAUSSIAN)
    given_counts[0, 0] = 0
    assert votes.counts.tolist() == COUNTS
    whole = full_votes()
    for name in ARRAYS:
        with pytest.raises(ValueError, match="read-only"):
            getattr(whole, name)[0] = 0
    with pytest.raises(AttributeError):
        whole.counts = given_counts  # type: ignore[misc]


# --- save, load, merge ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_save_then_load_is_the_identity(tmp_path: Path, dtype: type) -> None:
    votes = full_votes(dtype=dtype)
    votes.save(tmp_path / "votes.npz")
    loaded = Votes.load(tmp_path / "votes.npz")
    assert loaded.equals(votes)
    assert read_votes(tmp_path / "votes.npz").equals(votes)
    assert read_votes(tmp_path / "votes.npz", mechanism=GAUSSIAN).equals(votes)
    assert loaded.score_sums is not None
    assert loaded.score_sums.dtype == dtype


@given(
    counts=st.lists(st.integers(0, 50), min_size=1, max_size=5),
    steps=st.integers(1, 10**9),
    rate=st.floats(1e-9, 1.0),
    noise=st.floats(1e-3, 1e3),
    keep=st.none() | st.floats(1e-6, 1.0),
    fingerprint=st.none() | st.text(max_size=8),
)
def test_save_then_load_is_the_identity_for_any_mechanism(
    tmp_path_factory: pytest.TempPathFactory,
    counts: list[int],
    steps: int,
    rate: float,
    noise: float,
    keep: float | None,
    fingerprint: str | None,
) -> None:
    inner = SampledGaussian(noise, rate, steps)
    mechanism = inner if keep is None else Subsampled(keep, inner)
    votes = Votes(np.array([[c, 50 - c] for c in counts]), mechanism, data_fingerprint=fingerprint, run_ids=("a", "ü"))
    path = tmp_path_factory.mktemp("votes") / "any name"
    votes.save(path)
    assert Votes.load(path).equals(votes)
    assert [p.name for p in path.parent.iterdir()] == ["any name"]


def test_equals_sees_every_difference() -> None:
    votes = full_votes()
    values = {name: getattr(votes, name) for name in (*ARRAYS, *PLAIN)}
    changes: dict[str, Any] = {
        "counts": votes.counts[:, ::-1],
        "score_sums": np.asarray(votes.score_sums).astype(np.float32),
        "score_squares": None,
        "score_histograms": np.asarray(votes.score_histograms)[:, :, ::-1],
        "labels": None,
        "mechanism": SampledGaussian(4.0, 1.0, 5),
        "data_fingerprint": None,
        "run_ids": (),
        "assumptions": (),
        "recipe": {**RECIPE, "model": "mlp"},
        "shards": {"run-a": ((0, 50),)},
        "devices": {"an abacus": 1},
    }
    assert votes.equals(Votes(**values))
    for name, value in changes.items():
        assert not votes.equals(Votes(**{**values, name: value})), name


def test_merge_adds_everything_up_and_its_order_is_irrelevant() -> None:
    first, second = full_votes(run_ids=("a",)), full_votes(run_ids=("b",), seed=1)
    merged = first.merge(second)
    assert merged.instances == 100
    assert (merged.counts == first.counts + second.counts).all()
    assert np.array_equal(np.asarray(merged.score_sums), np.asarray(first.score_sums) + np.asarray(second.score_sums))
    assert set(merged.run_ids) == {"a", "b"}
    assert merged.equals(second.merge(first))
    third = full_votes(run_ids=("c",), seed=2)
    one, other = first.merge(second).merge(third), third.merge(first.merge(second))
    assert one.equals(other)


def test_merged_votes_assume_what_either_assumed_and_add_up_their_recipes() -> None:
    first, second = full_votes(run_ids=("a",), extra=("one",)), full_votes(run_ids=("b",), seed=1, extra=("two",))
    merged = first.merge(second)
    assert set(merged.assumptions) == {"n is public.", "one", "two"}
    assert len(merged.assumptions) == 3
    assert merged.recipe == {**RECIPE, "config": {"instances": 100, "steps": 4}}
    assert first.recipe == second.recipe == RECIPE
    assert merged.equals(second.merge(first))


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"assumptions": "a sentence"}, "list of sentences"),
        ({"assumptions": (1, 2)}, "list of sentences"),
        ({"assumptions": None}, "list of sentences"),
        ({"recipe": [1, 2]}, "dictionary"),
        ({"recipe": {"x": {1, 2}}}, "plain JSON"),
        ({"recipe": {"x": float("nan")}}, "plain JSON"),
    ],
)
def test_assumptions_and_recipes_are_plain(extra: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Votes(np.array(COUNTS), GAUSSIAN, **extra)


def test_nobody_can_change_the_recipe_afterwards() -> None:
    recipe = {"config": {"steps": 4}, "shape": (1, 2)}
    votes = Votes(np.array(COUNTS), GAUSSIAN, recipe=recipe)
    recipe["config"]["steps"] = 5  # type: ignore[index]
    assert votes.recipe == {"config": {"steps": 4}, "shape": [1, 2]}


def test_merged_sums_are_as_imprecise_as_the_worse_part() -> None:
    double, single = full_votes(run_ids=("a",)), full_votes(run_ids=("b",), dtype=np.float32, seed=1)
    for merged in (double.merge(single), single.merge(double)):
        assert merged.score_sums is not None
        assert merged.score_squares is not None
        assert merged.score_sums.dtype == merged.score_squares.dtype == np.float32


def test_single_precision_stays_single_in_either_byte_order(tmp_path: Path) -> None:
    sums = np.array([[90, 10, 0], [40, 30, 30]], dtype=">f4")
    votes = Votes.from_counts(COUNTS, mechanism=GAUSSIAN, score_sums=sums)
    assert votes.score_sums is not None
    assert votes.score_sums.dtype == np.float32
    np.savez(tmp_path / "foreign.npz", counts=COUNTS, sum=sums)
    read = read_votes(tmp_path / "foreign.npz", mechanism=GAUSSIAN)
    assert read.score_sums is not None
    assert read.score_sums.dtype == np.float32


def test_an_array_that_only_one_of_two_runs_has_is_dropped() -> None:
    first, second = full_votes(run_ids=("a",)), full_votes(run_ids=("b",))
    bare = replace(second, score_sums=None, score_squares=None, score_histograms=None)
    merged = first.merge(bare)
    assert merged.score_sums is None
    assert merged.score_histograms is None


def _changed(**changes: Any) -> Votes:
    votes = full_votes(run_ids=("b",), seed=1)
    return Votes(**{**{name: getattr(votes, name) for name in (*ARRAYS, *PLAIN)}, **changes})


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (_changed(mechanism=SampledGaussian(4.0, 1.0, 5)), "different mechanisms never merge"),
        (_changed(mechanism=SampledGaussian(4.0, 0.999999, 4)), "different mechanisms never merge"),
        (_changed(mechanism=Subsampled(1.0, GAUSSIAN)), "different mechanisms never merge"),
        (_changed(data_fingerprint="sha256:other"), "different data"),
        (_changed(data_fingerprint=None), "different data"),
        (_changed(labels=np.array([0, 1, 2, 1])), "different true labels"),
        (_changed(labels=None), "different true labels"),
        (_changed(run_ids=("b", "run-a")), "share a run"),
        (_changed(recipe=None), "different recipes"),
        (_changed(recipe={**RECIPE, "model": "mlp"}), "different recipes"),
        (_changed(recipe={**RECIPE, "config": {"instances": 50, "steps": 5}}), "different recipes"),
        (Votes(np.array([[50, 0, 0]]), GAUSSIAN, data_fingerprint="sha256:1234", run_ids=("b",)), "different data"),
    ],
)
def test_what_does_not_belong_together_never_merges(other: Votes, says: str) -> None:
    votes = full_votes()
    for one, two in ((votes, other), (other, votes)):
        with pytest.raises(ConfigError, match=says):
            one.merge(two)


# --- reading files --------------------------------------------------------------------------------------------------


def test_a_foreign_npz_needs_a_mechanism_and_keeps_its_arrays(tmp_path: Path) -> None:
    path, votes = tmp_path / "foreign.npz", full_votes(dtype=np.float32)
    np.savez(
        path,
        counts=votes.counts,
        sum=np.asarray(votes.score_sums),
        sumsq=np.asarray(votes.score_squares),
        hist=np.asarray(votes.score_histograms),
        y=np.array([9, 9, 9, 9]),  # not labels unless we are told so
        truth=np.asarray(votes.labels),
    )
    with pytest.raises(ConfigError, match="--noise-multiplier, --sample-rate and --steps"):
        read_votes(path)
    read = read_votes(path, mechanism=GAUSSIAN, labels_key="truth")
    for name in ARRAYS:
        assert np.array_equal(getattr(read, name), getattr(votes, name)), name
    assert read_votes(path, mechanism=GAUSSIAN).labels is None
    with pytest.raises(ConfigError, match="true labels from 0 to 2"):
        read_votes(path, mechanism=GAUSSIAN, labels_key="y")
    with pytest.raises(ArtifactError, match=r"no array 'labels'; it has counts, hist, sum, sumsq, truth, y"):
        read_votes(path, mechanism=GAUSSIAN, labels_key="labels")
    with pytest.raises(ArtifactError, match="not a mithridate votes file"):
        Votes.load(path)


@pytest.mark.parametrize(
    "other",
    [
        SampledGaussian(4.0, 1.0, 5),
        SampledGaussian(3.9999, 1.0, 4),
        SampledGaussian(4.0, 0.5, 4),
        Subsampled(0.5, GAUSSIAN),
    ],
)
def test_flags_that_contradict_the_file_are_refused(tmp_path: Path, other: Any) -> None:
    Votes.from_counts(COUNTS, mechanism=GAUSSIAN).save(tmp_path / "v.npz")
    with pytest.raises(ConfigError, match="leave the mechanism flags out"):
        read_votes(tmp_path / "v.npz", mechanism=other)


@pytest.mark.parametrize(
    "text",
    [
        "90,10,0\n40,30,30\n",
        "cat,dog,bird\n90,10,0\n40,30,30",
        "\ufeff90,10,0\r\n40,30,30\r\n",
        "\ufeffcat,dog,bird\r\n90,10,0\r\n40,30,30\r\n",
        "\n90,10,0\n\n,,\n40, 30 ,30\n\n",
        '"90","10","0"\n"40","30","30"\n',
    ],
)
@pytest.mark.parametrize("name", ["counts.csv", "COUNTS.CSV"])
def test_csv_files(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / name).write_bytes(text.encode())
    assert read_votes(tmp_path / name, mechanism=GAUSSIAN).counts.tolist() == COUNTS


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "no rows"),
        (b"\n\n", "no rows"),
        (b"cat,dog\n", "no rows"),
        (b"90,10\n40,30,30\n", "different lengths"),
        (b"90.0,10.0\n", "whole numbers"),
        (b"90,nan\n", "whole numbers"),
        (b"90,\n", "whole numbers"),
        (b"90,1e1\n", "whole numbers"),
        (b"90,10\ncat,dog\n", "whole numbers"),
        (b"99999999999999999999999,0\n", "whole numbers"),
        (b"90;10\n40;60\n", "whole numbers"),
        (b"\xff\xfe9\x000\x00,\x001\x00", "not a readable CSV"),
        (b"90,10\x00\n", "whole numbers"),
        (b"1" * 200_000 + b",2\n", "not a readable CSV"),
        (b"90,-10\n", "negative"),
        (b"0,0\n", "all zero"),
        (b"90\n90\n", "two classes"),
        (b"90,10\n90,11\n", "adds up to"),
        (b"0,1,2\n90,10,0\n", "adds up to"),  # a header of class numbers
    ],
)
def test_csv_files_that_are_not_counts(tmp_path: Path, text: bytes, says: str) -> None:
    path = tmp_path / "counts.csv"
    path.write_bytes(text)
    with pytest.raises((ArtifactError, ConfigError), match=says):
        read_votes(path, mechanism=GAUSSIAN)


def test_a_csv_knows_neither_its_mechanism_nor_labels(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("90,10\n")
    with pytest.raises(ConfigError, match="--noise-multiplier"):
        read_votes(tmp_path / "c.csv")
    with pytest.raises(ConfigError, match="no labels"):
        read_votes(tmp_path / "c.csv", mechanism=GAUSSIAN, labels_key="y")


def _npz(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


class _Trap:
    """Runs code when unpickled."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return exec, ("raise SystemExit('code from the file was run')",)


def _npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def _encrypted(data: bytes) -> bytes:
    """The same zip, with its first member said to be encrypted."""
    changed = bytearray(data)
    changed[6] |= 1
    changed[data.index(b"PK\x01\x02") + 8] |= 1
    return bytes(changed)


WHOLE = _npz(counts=np.array(COUNTS))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a readable .npz"),
        (b"hello, these are not votes\n", "not a readable .npz"),
        (bytes(range(256)) * 8, "not a readable .npz"),
        (pickle.dumps({"counts": COUNTS}), "not a readable .npz"),
        (WHOLE[:-1], "not a readable .npz"),
        (WHOLE[: len(WHOLE) // 2], "not a readable .npz"),
        (WHOLE[:30], "not a readable .npz"),
        (WHOLE[10:], "not a readable .npz"),
        (_encrypted(WHOLE), "not a readable .npz"),
        (_npy(np.array(COUNTS)), "single array"),
        (_npz(counts=np.array([[_Trap(), 1]], dtype=object)), "Python objects"),
        (_npz(counts=np.array(COUNTS), junk=np.array([_Trap()], dtype=object)), "Python objects"),
        (_npz(counts=np.zeros(3, dtype=[("a", int), ("b", float)])), "plain array"),
        (_npz(votes=np.array(COUNTS)), "no array 'counts'"),
        (_npz(), "no array 'counts'"),
        (_npz(counts=np.array([["1", "2"]])), "whole numbers"),
        (_npz(counts=np.array([[0.5, 0.5]])), "fractions"),
        (_npz(counts=np.array([[np.nan, 0.5]])), "not finite"),
        (_npz(counts=np.array([[True, False]])), "whole numbers"),
        (_npz(counts=np.array([3, 1])), "table of examples x classes"),
        (_npz(counts=np.array(COUNTS), sum=np.ones(3)), "shape of counts"),
    ],
)
def test_files_that_are_no_votes_are_refused_and_say_why(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "votes.npz"
    path.write_bytes(data)
    with pytest.raises((ArtifactError, ConfigError), match=says):
        read_votes(path, mechanism=GAUSSIAN)
    with pytest.raises(MithridateError):
        Votes.load(path)


@pytest.mark.parametrize("name", ["missing.npz", "missing.csv", ".", "missing/votes.npz"])
def test_missing_files_and_folders_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArtifactError, match="a folder" if name == "." else "no file|Not a directory"):
        read_votes(tmp_path / name, mechanism=GAUSSIAN)


def _header(**changes: Any) -> Any:
    header = {"schema": "mithridate.votes/1", "mechanism": GAUSSIAN.to_dict(), "data_fingerprint": None, "run_ids": []}
    header |= {"assumptions": [], "recipe": None}
    return np.array(json.dumps({**header, **changes}))


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (_header(schema="mithridate.votes/2"), "update mithridate"),
        (_header(schema=None), "has the schema None"),
        (_header(mechanism=None), "incomplete"),
        (_header(mechanism={"type": "laplace", "noise_multiplier": 1, "sample_rate": 1, "steps": 1}), "not known"),
        (_header(mechanism={"type": "sampled-gaussian", "noise_multiplier": 1.0, "steps": 4}), "incomplete"),
        (_header(mechanism={**GAUSSIAN.to_dict(), "sample_rate": 1.5}), "sample_rate"),
        (_header(mechanism={**GAUSSIAN.to_dict(), "steps": 1.5}), "steps"),
        (_header(mechanism={**GAUSSIAN.to_dict(), "noise_multiplier": "3"}), "noise_multiplier"),
        (_header(run_ids=None), "header"),
        (_header(assumptions=None), "header"),
        (_header(assumptions=[1]), "cannot be read"),
        (_header(recipe=[1]), "dictionary"),
        (_header(run_ids="run"), "header"),
        (_header(run_ids=3), "header"),
        (_header(run_ids=[{}]), "run_ids"),
        (_header(run_ids=["a", "a"]), "run_ids"),
        (np.array("{}"), "header"),
        (np.array("[1, 2"), "header"),
        (np.array("[" * 100_000), "header"),
        (np.array("3"), "header"),
        (np.array([1.0, 2.0]), "header"),
    ],
)
def test_a_header_that_cannot_be_trusted_is_refused(tmp_path: Path, header: Any, says: str) -> None:
    path = tmp_path / "votes.npz"
    np.savez(path, mithridate=header, counts=np.array(COUNTS))
    with pytest.raises(MithridateError, match=says):
        read_votes(path, mechanism=GAUSSIAN)
    with pytest.raises(MithridateError, match=says):
        Votes.load(path)


def test_our_own_file_without_counts_is_damaged(tmp_path: Path) -> None:
    np.savez(tmp_path / "votes.npz", mithridate=_header())
    with pytest.raises(ArtifactError, match="damaged"):
        read_votes(tmp_path / "votes.npz")


@given(position=st.floats(0, 1, exclude_max=True), value=st.integers(1, 255), length=st.floats(0, 1))
def test_a_damaged_npz_is_read_rightly_or_refused(
    tmp_path_factory: pytest.TempPathFactory, position: float, value: int, length: float
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    votes = full_votes()
    votes.save(folder / "votes.npz")
    data = bytearray((folder / "votes.npz").read_bytes())
    data[int(position * len(data))] ^= value
    for damaged in (bytes(data), bytes(data)[: int(length * len(data))]):
        (folder / "votes.npz").write_bytes(damaged)
        try:
            read = read_votes(folder / "votes.npz")
        except MithridateError:
            continue
        assert np.array_equal(read.counts, votes.counts)  # zip checks every member, so only its own fields may differ
        assert read.mechanism == votes.mechanism


# --- other defences ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RIVALS)
def test_votes_of_every_defence_come_back_from_their_files(tmp_path: Path, name: str) -> None:
    votes = RIVALS[name].votes
    votes.save(tmp_path / "votes.npz")
    loaded = Votes.load(tmp_path / "votes.npz")
    assert loaded == votes == read_votes(tmp_path / "votes.npz")
    assert loaded.mechanism == votes.mechanism
    assert loaded.evidence.keys() == votes.evidence.keys()
    for key, array in votes.evidence.items():
        np.testing.assert_array_equal(loaded.evidence[key], array)


def test_evidence_is_kept_in_the_smallest_type_and_nobody_can_change_it() -> None:
    given = np.array([[0, 255], [3, 4]])
    votes = Votes(np.array(COUNTS), Partitioned(100), evidence={"small": given, "large": given * 1000.0})
    assert votes.evidence["small"].dtype == np.uint8
    assert votes.evidence["large"].dtype == np.uint32
    assert votes.evidence["large"].tolist() == [[0, 255_000], [3000, 4000]]
    given[0, 0] = 7
    assert votes.evidence["small"].tolist() == [[0, 255], [3, 4]]
    with pytest.raises(ValueError, match="read-only"):
        votes.evidence["small"][0, 0] = 7


@pytest.mark.parametrize(
    "evidence",
    [
        {"a": np.array([1])},
        {"a": np.array(1)},
        {"a": np.array([1, -1])},
        {"a": np.array([0.5, 1])},
        {"a": np.array([np.nan, 1])},
        {"a": np.array([2.0**60, 1])},
        {"a": np.array(["1", "2"])},
        {"a": np.array([None, 1], dtype=object)},
        {1: np.array([1, 2])},
    ],
    ids=repr,
)
def test_evidence_that_does_not_fit_is_refused(evidence: Any) -> None:
    with pytest.raises(ConfigError, match="evidence"):
        Votes(np.array(COUNTS), Partitioned(100), evidence=evidence)


def test_equals_sees_other_evidence() -> None:
    votes = Votes(np.array(COUNTS), Partitioned(100), evidence={"a": np.array([1, 2])})
    for other in ({}, {"b": np.array([1, 2])}, {"a": np.array([1, 3])}, {"a": np.array([[1], [2]])}):
        assert votes != replace(votes, evidence=other)
    assert votes == replace(votes, evidence={"a": np.array([1.0, 2.0])})


def test_only_sums_of_weights_may_differ_from_row_to_row() -> None:
    weights = Votes.from_counts([[7, 2, 0], [0, 0, 0]], mechanism=KernelSum(4))
    assert (weights.instances, weights.examples, weights.classes) == (1, 2, 3)
    with pytest.raises(ConfigError, match="all zero"):
        Votes.from_counts([[7, 2, 0], [0, 0, 0]], mechanism=Partitioned(9))


@pytest.mark.parametrize("name", RIVALS)
def test_samples_add_up_and_functions_do_not(name: str) -> None:
    votes = RIVALS[name].votes
    if name in EXACT:
        with pytest.raises(ConfigError, match="nothing to merge"):
            votes.merge(votes)
    else:
        assert votes.merge(votes).instances == 2 * votes.instances


def test_samples_of_different_sizes_never_merge() -> None:
    first, second = (Votes.from_counts(COUNTS, mechanism=Bagged(1000, draws)) for draws in (10, 11))
    with pytest.raises(ConfigError, match="different mechanisms"):
        first.merge(second)


def test_arrays_of_foreign_files_are_no_evidence(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"counts": np.array(COUNTS), "evidence.order": np.zeros((2, 4))}
    np.savez(tmp_path / "foreign.npz", **arrays)
    assert read_votes(tmp_path / "foreign.npz", mechanism=GAUSSIAN).evidence == {}


# --- parts of runs ----------------------------------------------------------------------------------------------------

INSTANCES = 12
VOTED = np.random.default_rng(5).integers(0, 3, size=(4, INSTANCES))  # example instance
SCORES = np.random.default_rng(6).dirichlet([3.0, 2.0, 1.0], size=(INSTANCES, 4))  # instance example class
PAIR = st.tuples(st.integers(0, INSTANCES), st.integers(0, INSTANCES))


def part(instances: Sequence[int], run: str = "a", mechanism: Any = GAUSSIAN, **changes: Any) -> Votes:
    """What some instances of a run voted; sums of scores depend on the order in which they are added."""
    chosen = list(instances)
    values: dict[str, Any] = {
        "score_sums": SCORES[chosen].sum(axis=0),
        "score_squares": (SCORES[chosen] ** 2).sum(axis=0),
        "labels": np.array([0, 1, 2, 0]),
        "data_fingerprint": "sha256:1234",
        "run_ids": (run,),
        "assumptions": ("n is public.",),
        "recipe": {"config": {"instances": INSTANCES, "steps": 4}},
        "shards": {run: [(number, number + 1) for number in chosen]},
    }
    counts = (VOTED[:, chosen, None] == np.arange(3)).sum(axis=1)
    return Votes(counts, mechanism, **{**values, **changes})


def whole(run: str = "a", **changes: Any) -> Votes:
    return part(range(INSTANCES), run, **{"shards": {}, **changes})


def shares_of(owners: Sequence[int], count: int) -> list[list[int]]:
    """The numbers of the instances that each of `count` owners has; owners without any are left out."""
    shares = [[number for number, owner in enumerate(owners) if owner == one] for one in range(count)]
    return [share for share in shares if share]


def is_the_same(one: Votes, other: Votes) -> bool:
    """Whether two merged votes hold the same instances; sums of scores may differ by rounding."""
    for name in ("score_sums", "score_squares"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-12)
    return replace(one, score_sums=None, score_squares=None) == replace(other, score_sums=None, score_squares=None)


def test_shards_are_sorted_and_joined() -> None:
    counts = np.array([[9, 0]])
    given: Any = {"a": [[5, 7], [np.int64(0), 2], (2, 3)], "b": ((4, 8),)}
    votes = Votes(counts, GAUSSIAN, run_ids=("b", "a"), shards=given)
    assert votes.shards == {"a": ((0, 3), (5, 7)), "b": ((4, 8),)}
    assert "'a': ((0, 3), (5, 7))" in repr(votes)
    given["a"].append([9, 10])
    assert votes.shards["a"] == ((0, 3), (5, 7))
    assert Votes(counts, GAUSSIAN, run_ids=("a", "b"), shards={"a": ((3, 8),)}).shards == {"a": ((3, 8),)}


BAD_SHARDS: list[Any] = [
    None, 3, "a", [], [["a", 0, 9]], {"b": [[0, 9]]}, {"a": None}, {"a": 9}, {"a": []}, {"a": [0, 9]}, {"a": "09"},
    {"a": [[0, 9, 1]]}, {"a": [[9]]}, {"a": [[]]}, {"a": [[9, 0]]}, {"a": [[3, 3], [0, 9]]}, {"a": [[-1, 8]]},
    {"a": [[0.0, 9]]}, {"a": [[0, 9.0]]}, {"a": [[0, float("nan")]]}, {"a": [[0, float("inf")]]}, {"a": [["0", "9"]]},
    {"a": [[False, True], [1, 9]]}, {"a": [[None, 9]]}, {"a": {"0": 9}}, {"a": [{"0": 9, "1": 2}]},
    {"a": [[[0], [9]]]}, {"a": [[0, 8]]}, {"a": [[0, 10]]}, {"a": [[0, 2**53 + 1]]}, {"a": [[0, 10**4000]]},
    {"a": [[10**4000, 10**4000 + 9]]}, {"a": [[0, 5], [4, 8]]}, {"a": [[0, 9], [0, 9]]}, {"a": [[0, 9], [3, 4]]},
    {"a": [[0, 9]], "b": [[0, 9]]},
]  # fmt: skip


@pytest.mark.parametrize("shards", BAD_SHARDS, ids=range(len(BAD_SHARDS)))
def test_shards_that_cannot_be_are_refused(tmp_path: Path, shards: Any) -> None:
    with pytest.raises(ConfigError, match="shards") as caught:
        Votes(np.array([[9, 0]]), GAUSSIAN, run_ids=("a",), shards=shards)
    assert len(str(caught.value)) < 300
    path = tmp_path / "votes.npz"
    np.savez(path, mithridate=_header(run_ids=["a"], shards=shards), counts=np.array([[9, 0]]))
    # JSON has no numbers that are not finite: a header with one is damaged.
    damaged = any(word in json.dumps(shards) for word in ("NaN", "Infinity"))
    kind, says = (ArtifactError, "header") if damaged else (ConfigError, r"votes\.npz: .*shards")
    with pytest.raises(kind, match=says):
        Votes.load(path)


@pytest.mark.parametrize("number", ["1" * 5000, "[" * 20_000 + "]" * 20_000], ids=["digits", "nesting"])
def test_numbers_and_nesting_without_end_are_damage(tmp_path: Path, number: str) -> None:
    header = str(_header(run_ids=["a"], shards="HERE")).replace('"HERE"', f'{{"a": [[0, {number}]]}}')
    np.savez(tmp_path / "votes.npz", mithridate=np.array(header), counts=np.array([[9, 0]]))
    with pytest.raises(ArtifactError, match="header"):
        Votes.load(tmp_path / "votes.npz")


def test_long_names_are_cut_in_messages() -> None:
    name = "a" * 10**5
    with pytest.raises(ConfigError, match="aaa") as caught:
        Votes(np.array([[9, 0]]), GAUSSIAN, run_ids=(name,), shards={name: ((3, 2),)})
    assert len(str(caught.value)) < 300


def test_parts_beside_whole_runs_leave_room_for_them() -> None:
    shards = {"a": ((0, 7),)}
    assert Votes(np.array([[9, 0]]), GAUSSIAN, run_ids=("a", "b", "c"), shards=shards).instances == 9
    with pytest.raises(ConfigError, match="name 7 instances and those of 3 whole runs, but 9 voted"):
        Votes(np.array([[9, 0]]), GAUSSIAN, run_ids=("a", "b", "c", "d"), shards=shards)
    with pytest.raises(ConfigError, match="those of 1 whole run, but 7 voted"):
        Votes(np.array([[7, 0]]), GAUSSIAN, run_ids=("a", "b"), shards=shards)


def test_shards_come_back_from_files_and_are_not_there_where_nothing_is_said(tmp_path: Path) -> None:
    votes = part([0, 1, 5])
    votes.save(tmp_path / "part.npz")
    assert Votes.load(tmp_path / "part.npz") == votes == read_votes(tmp_path / "part.npz")
    assert votes != replace(votes, shards={"a": ((0, 3),)})
    whole().save(tmp_path / "whole.npz")
    with np.load(tmp_path / "whole.npz") as file:
        header = json.loads(str(file["mithridate"]))
    assert list(header) == ["schema", "mechanism", "data_fingerprint", "run_ids", "assumptions", "recipe"]
    assert Votes.load(tmp_path / "whole.npz").shards == {}


def test_devices_come_back_from_files_add_up_and_are_not_there_where_nothing_is_said(tmp_path: Path) -> None:
    first = part([0, 1], devices={"cpu": 1, "abacus": 1})
    first.save(tmp_path / "part.npz")
    assert Votes.load(tmp_path / "part.npz") == first
    assert list(first.devices) == ["abacus", "cpu"]
    merged = first.merge(part([2, 3], devices={"cpu": 2}), part([4]))
    assert merged.devices == {"abacus": 1, "cpu": 3}
    whole().save(tmp_path / "whole.npz")  # as files of earlier versions: without the entry in the header
    assert Votes.load(tmp_path / "whole.npz").devices == {}


@pytest.mark.parametrize(
    "devices", [{"cpu": 10}, {"cpu": 0}, {"cpu": -1}, {"cpu": 1.5}, {"cpu": True}, ["cpu"], 7, None]
)
def test_devices_that_cannot_be_are_refused(tmp_path: Path, devices: Any) -> None:
    with pytest.raises(ConfigError, match="Expected devices as a mapping"):
        Votes(np.array([[9, 0]]), GAUSSIAN, devices=devices)
    path = tmp_path / "votes.npz"
    np.savez(path, mithridate=_header(run_ids=[], devices=devices), counts=np.array([[9, 0]]))
    with pytest.raises(ConfigError, match=r"votes\.npz: Expected devices"):
        Votes.load(path)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from([0, 3, 9, 2**53]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", ""]), inner, max_size=2),
    max_leaves=8,
)


@given(
    shards=ANY_JSON | st.dictionaries(st.sampled_from(["a", "b"]), st.lists(PAIR, max_size=3), max_size=2),
    run_ids=ANY_JSON | st.sampled_from([["a"], ["a", "b"], []]),
)
def test_any_header_is_read_rightly_or_refused(
    tmp_path_factory: pytest.TempPathFactory, shards: Any, run_ids: Any
) -> None:
    path = tmp_path_factory.mktemp("header") / "votes.npz"
    np.savez(path, mithridate=_header(run_ids=run_ids, shards=shards), counts=np.array([[9, 0]]))
    try:
        votes = Votes.load(path)
    except MithridateError:
        return
    assert list(votes.run_ids) == list(run_ids)
    numbers = [(run, n) for run, parts in votes.shards.items() for first, stop in parts for n in range(first, stop)]
    assert len(set(numbers)) == len(numbers) <= 9
    given = [(run, n) for run, parts in shards.items() for first, stop in parts for n in range(first, stop)]
    assert sorted(numbers) == sorted(given)
    votes.save(path)
    assert Votes.load(path) == votes


# --- merging parts ----------------------------------------------------------------------------------------------------


@given(
    owners=st.lists(st.integers(0, 4), min_size=INSTANCES, max_size=INSTANCES),
    order=st.permutations(range(5)),
    split=st.integers(1, 4),
)
def test_any_parts_in_any_order_make_up_the_run(owners: list[int], order: list[int], split: int) -> None:
    shares = shares_of(owners, 5)
    parts = [part(shares[at]) for at in order if at < len(shares)]
    merged = parts[0].merge(*parts[1:])
    assert merged.counts.tolist() == whole().counts.tolist()
    assert merged.shards == {"a": ((0, INSTANCES),)}
    assert merged.run_ids == ("a",)
    assert merged.recipe == whole().recipe
    assert is_the_same(merged, whole(shards={"a": ((0, INSTANCES),)}))
    # One call adds in an order of its own, whatever that of its arguments.
    assert merged == parts[-1].merge(*parts[:-1])
    # Several calls give the same but for rounding.
    some = [group for group in (parts[:split], parts[split:]) if group]
    groups = [group[0].merge(*group[1:]) for group in some]
    assert is_the_same(groups[-1].merge(*groups[:-1]), merged)


@given(owners=st.lists(st.integers(0, 3), min_size=INSTANCES, max_size=INSTANCES), twice=st.integers(0, INSTANCES - 1))
def test_no_instance_ever_counts_twice(owners: list[int], twice: int) -> None:
    parts = [part(share) for share in shares_of(owners, 4)]
    whole_run = parts[0].merge(*parts[1:])
    for again in (part([twice]), part(range(twice + 1)), whole()):
        for one, other in itertools.permutations((whole_run, again)):
            with pytest.raises(ConfigError, match=r"These votes share a run, 'a': .* would count twice"):
                one.merge(other)
        with pytest.raises(ConfigError, match="would count twice"):
            again.merge(*parts)


@pytest.mark.parametrize(
    ("one", "two", "says"),
    [
        (part([0, 1]), part([1, 2]), "'a': the instance 1 would"),
        (part(range(8)), part(range(2, 12)), "'a': the instances 2 to 7 would"),
        (part([0, 1, 6, 7, 8]), part([3, 4, 7, 8]), "'a': the instances 7 to 8 would"),
        (part([3, 4, 5]), whole(), "'a': the instances 3 to 5 would"),
        (whole(), whole(), "'a': all its instances would"),
        (whole("b").merge(part([3], "a")), part([2, 3], "a"), "'a': the instance 3 would"),
        (whole("b").merge(part([3], "a")), part([2, 3], "b"), "'b': the instances 2 to 3 would"),
    ],
)
def test_what_would_count_twice_is_named(one: Votes, two: Votes, says: str) -> None:
    for first, second in ((one, two), (two, one)):
        with pytest.raises(ConfigError, match=says):
            first.merge(second)


def test_parts_of_several_runs_merge_with_one_another() -> None:
    first, second = part([0, 1]).merge(part([4], "b"), whole("c")), part([2]).merge(part([0, 1], "b"))
    merged = first.merge(second)
    assert merged.run_ids == ("a", "b", "c")
    assert merged.shards == {"a": ((0, 3),), "b": ((0, 2), (4, 5))}
    assert merged.instances == 6 + INSTANCES
    assert merged.recipe == {"config": {"instances": 6 + INSTANCES, "steps": 4}}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"mechanism": SampledGaussian(4.0, 1.0, 5)}, "different mechanisms"),
        ({"data_fingerprint": "sha256:5"}, "different data"),
        ({"labels": None}, "different true labels"),
        ({"recipe": None}, "different recipes"),
    ],
)
def test_parts_of_something_else_never_merge(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        part([0, 1]).merge(part([2], **changes))


@given(order=st.permutations(range(4)), named=st.booleans())
def test_the_order_of_runs_does_not_change_a_bit(order: list[int], named: bool) -> None:
    scale = [1.0, 1e-3, 0.1, 1 / 3]
    runs = [
        whole(str(at), score_sums=scale[at] * SCORES.sum(axis=0), **({} if named else {"run_ids": ()})) for at in order
    ]
    expected = [whole(str(at), score_sums=scale[at] * SCORES.sum(axis=0)) for at in range(4)]
    merged = runs[0].merge(*runs[1:])
    assert merged == runs[2].merge(runs[3], runs[1], runs[0])
    if named:
        assert merged == expected[0].merge(*expected[1:])


def test_sums_of_scores_do_depend_on_their_order() -> None:
    """So that the tests above can fail."""
    runs = [whole(str(at), score_sums=factor * SCORES.sum(axis=0)) for at, factor in enumerate([1.0, 1e-3, 0.1, 1 / 3])]
    forth, back = (
        np.sum([np.asarray(run.score_sums) for run in order], axis=0) for order in (runs, list(reversed(runs)))
    )
    assert not np.array_equal(forth, back)


def test_merged_runs_without_a_name_say_so() -> None:
    named, unnamed = whole("b"), whole(run_ids=())
    for merged in (named.merge(unnamed), unnamed.merge(unnamed), unnamed.merge(named, whole("c"))):
        assert any("without a name" in sentence for sentence in merged.assumptions)
        for one, two in itertools.permutations((merged, part([3], "d"))):
            with pytest.raises(ConfigError, match="merge only with votes that name their runs"):
                one.merge(two)
    assert named.merge(whole("c")).assumptions == named.assumptions
    with pytest.raises(ConfigError, match="merge only with votes that name their runs"):
        unnamed.merge(part([3], "d"))


def test_histograms_with_other_bins_are_dropped() -> None:
    fine, coarse = (np.zeros((4, 3, bins), int) for bins in (8, 4))
    fine[..., 0] = coarse[..., 0] = INSTANCES
    merged = whole("a", score_histograms=fine).merge(whole("b", score_histograms=coarse))
    assert merged.score_histograms is None


def test_odd_numbers_of_instances_in_recipes_are_no_trouble() -> None:
    odd = [whole(run, recipe={"config": {"instances": "many"}}) for run in "ab"]
    assert odd[0].merge(odd[1]).recipe == {"config": {"instances": 2 * INSTANCES}}


def test_runs_of_other_numbers_of_instances_are_of_one_recipe() -> None:
    """The defence counts them, too."""
    one, two = ({"config": {"instances": n}, "defence": {"name": "fdp", "instances": n, "steps": 3}} for n in (3, 4))
    total = 2 * INSTANCES
    expected = {"config": {"instances": total}, "defence": {"name": "fdp", "instances": total, "steps": 3}}
    assert whole("a", recipe=one).merge(whole("b", recipe=two)).recipe == expected
    with pytest.raises(ConfigError, match="different recipes"):
        whole("a", recipe=one).merge(whole("b", recipe={**two, "defence": {**two["defence"], "steps": 4}}))


# --- parts of functions of the data -----------------------------------------------------------------------------------

PREFERRED = np.random.default_rng(7).random((INSTANCES, 4, 3))  # model example label


def models(instances: Sequence[int], kind: str, **changes: Any) -> Votes:
    """Some models of a deterministic defence, with what its rule reads."""
    chosen = list(instances)
    scores = PREFERRED[chosen]
    predictions = scores.argmax(axis=2)
    above = (scores[..., :, None] > scores[..., None, :]).sum(axis=0)
    values: dict[str, Any] = {
        "evidence": {
            "predictions": predictions.T,
            "preferences": above,
            "rankings": np.argsort(-scores, axis=2).swapaxes(0, 1),
        },
        "mechanism": SpreadPartitions(6, (0, 5)) if kind == "spread" else Partitioned(INSTANCES),
        **changes,
    }
    votes = part(chosen, mechanism=values.pop("mechanism"), score_sums=None, score_squares=None)
    return replace(votes, counts=(predictions[..., None] == np.arange(3)).sum(axis=0), **values)


@pytest.mark.parametrize("kind", ["spread", "parts"])
@given(owners=st.lists(st.integers(0, 3), min_size=INSTANCES, max_size=INSTANCES), order=st.permutations(range(4)))
def test_parts_of_a_function_certify_what_the_whole_certifies(kind: str, owners: list[int], order: list[int]) -> None:
    shares = shares_of(owners, 4)
    parts = [models(shares[at], kind) for at in order if at < len(shares)]
    merged = parts[0].merge(*parts[1:])
    trained_at_once = models(range(INSTANCES), kind)
    assert merged == trained_at_once
    for method in (None, RunOffRule()) if kind == "parts" else (None,):
        assert np.array_equal(certify(merged, method=method).radius, certify(trained_at_once, method=method).radius)
    if len(parts) > 1:
        assert parts[0].merge(*parts[1:-1]).instances < INSTANCES
        for method in (None, RunOffRule()) if kind == "parts" else (None,):
            with pytest.raises(ConfigError, match=f"one vote from each of {INSTANCES} models"):
                certify(parts[0].merge(*parts[1:-1]), method=method)
            with pytest.raises(ConfigError, match=f"one vote from each of {INSTANCES} models"):
                certify(parts[-1], method=method)


def test_models_are_never_taken_for_other_models() -> None:
    """The number of votes alone would let the same part twice, or parts of two runs, pass for all models."""
    first, second = models(range(6), "parts"), models(range(6, 12), "parts")
    with pytest.raises(ConfigError, match="the instances 0 to 5 would count twice"):
        first.merge(models(range(6), "parts"))
    renamed = replace(second, run_ids=("b",), shards={"b": ((6, 12),)})
    for other in (renamed, models(range(12), "parts", shards={}), replace(second, shards={})):
        for one, two in ((first, other), (other, first)):
            with pytest.raises(ConfigError, match="nothing to merge but parts of one run"):
                one.merge(two)
    with pytest.raises(ConfigError, match="shards of the models 0 to 11"):
        replace(second, shards={"a": ((6, 11), (12, 13))})
    with pytest.raises(ConfigError, match="shards of one run"):
        models(range(12), "parts", run_ids=("a", "b"), shards={"a": ((0, 6),), "b": ((0, 6),)})


@pytest.mark.parametrize("mechanism", [KernelSum(9), NearestExamples(9)])
def test_one_function_has_no_shards(mechanism: Any) -> None:
    with pytest.raises(ConfigError, match="which has no shards"):
        Votes(np.array([[9, 0]]), mechanism, run_ids=("a",), shards={"a": ((0, 9),)})


def test_evidence_that_does_not_fit_never_merges() -> None:
    first, second = models(range(6), "spread"), models(range(6, 12), "spread")
    assert first.merge(replace(second, evidence={})).evidence == {}
    with pytest.raises(ConfigError, match="does not hold a vote of each model"):
        first.merge(replace(second, evidence={"predictions": np.zeros((4, 7), int)}))
    with pytest.raises(ConfigError, match="'rankings' does not hold a vote of each model"):
        first.merge(replace(second, evidence={"rankings": np.zeros((4, 6, 2), int)}))
    with pytest.raises(ConfigError, match="different shapes"):
        first.merge(replace(second, evidence={"preferences": np.zeros((4, 2, 2), int)}))


def test_preferences_of_many_models_do_not_overflow() -> None:
    values = {"counts": np.full((4, 3), 2), "evidence": {"preferences": np.full((4, 3, 3), 200)}}
    first, second = (replace(models(range(at, at + 6), "parts"), **values) for at in (0, 6))  # type: ignore[arg-type]
    assert first.evidence["preferences"].dtype == np.uint8
    assert first.merge(second).evidence["preferences"].max() == 400
