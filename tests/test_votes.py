"""Votes: what is refused, what is kept, and how foreign files are read."""

import io
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rival_votes import EXACT, RIVALS

from mithridate import ArtifactError, ConfigError, MithridateError, SampledGaussian, Subsampled, Votes, read_votes
from mithridate.mechanism import Bagged, KernelSum, Partitioned

GAUSSIAN = SampledGaussian(4.0, 1.0, 4)
COUNTS = [[90, 10, 0], [40, 30, 30]]
ARRAYS = ("counts", "score_sums", "score_squares", "score_histograms", "labels")
PLAIN = ("mechanism", "data_fingerprint", "run_ids", "assumptions", "recipe")


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
        ({"assumptions": "a sentence"}, "tuple of sentences"),
        ({"assumptions": (1, 2)}, "tuple of sentences"),
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


def test_files_from_before_training_still_load(tmp_path: Path) -> None:
    np.savez(tmp_path / "votes.npz", mithridate=_header(), counts=np.array(COUNTS))
    votes = Votes.load(tmp_path / "votes.npz")
    assert (votes.assumptions, votes.recipe) == ((), None)


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
    with pytest.raises(ArtifactError, match="is a folder" if name == "." else "no file"):
        read_votes(tmp_path / name, mechanism=GAUSSIAN)


def _header(**changes: Any) -> Any:
    header = {"schema": "mithridate.votes/1", "mechanism": GAUSSIAN.to_dict(), "data_fingerprint": None, "run_ids": []}
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
        (_header(assumptions=[1]), "sentences"),
        (_header(recipe=[1]), "dictionary"),
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
