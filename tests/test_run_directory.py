"""The run directory: what it holds, what it refuses, and that nothing in it is ever half written."""

import hashlib
import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mithridate import ArtifactError, ConfigError, NumericalError
from mithridate.core.provenance import TrainingData
from mithridate.training import run_directory
from mithridate.training.run_directory import (
    Manifest,
    RunDirectory,
    TallyArrays,
    added,
    check_tiling,
    plan_ranges,
    read_models,
    replanned,
    run_id_of,
)

SEED = bytes(range(32))
DEVICE = "an abacus"


def make_manifest(instances: int = 6, in_flight: int = 2, asked: int | None = None, **changes: Any) -> Manifest:
    config = {"instances": instances, "steps": 10, "learning_rate": 0.5}
    values: dict[str, Any] = {
        "run_id": run_id_of(SEED),
        "recipe": {"config": config, "model": "linear", "features": None, "path": "fast", "precision": "float32"},
        "data_fingerprint": "sha256:both",
        "training": TrainingData("0" * 64, 100),
        "inputs": {"shape": [5], "kind": "float"},
        "assumptions": ("num_train was read off the data.",),
        "keep_models": False,
        "device": "cpu",
        "versions": {"numpy": "2"},
        "in_flight": in_flight,
        "in_flight_asked": asked,
        "ranges": plan_ranges(0, instances, in_flight),
    }
    return Manifest(**{**values, **changes})


def make_tally(group: range, examples: int = 4, bins: int = 3) -> TallyArrays:
    """Votes of a group that depend on its instances only."""
    total: TallyArrays | None = None
    for instance in group:
        rng = np.random.default_rng(instance)
        scores = rng.dirichlet([1.0, 1.0], size=examples)
        where = np.minimum((scores * bins).astype(int), bins - 1)
        tally = {
            "counts": (scores.argmax(axis=1)[:, None] == np.arange(2)).astype(np.int64),
            "score_sums": scores,
            "score_squares": scores**2,
            "score_histograms": (where[..., None] == np.arange(bins)).astype(np.int64),
        }
        total = tally if total is None else added(total, tally)
    assert total is not None
    return total


def fill(run: RunDirectory, groups: int | None = None) -> None:
    for group in run.missing()[:groups]:
        run.save_tally(group, make_tally(group), DEVICE)


def test_a_run_says_what_it_is_and_keeps_its_votes(tmp_path: Path) -> None:
    manifest = make_manifest()
    with RunDirectory.open(tmp_path / "new" / "run", manifest, SEED) as run:
        assert (run.manifest, run.root_seed, run.finished_votes()) == (manifest, SEED, None)
        assert run.missing() == [range(0, 2), range(2, 4), range(4, 6)]
        fill(run)
        assert run.missing() == []
        expected = make_tally(range(0, 2))
        for group in (range(2, 4), range(4, 6)):
            expected = added(expected, make_tally(group))
        for name, array in run.total().items():
            assert array.dtype == expected[name].dtype
            assert np.array_equal(array, expected[name]), name
    names = {str(p.relative_to(tmp_path / "new" / "run")) for p in (tmp_path / "new").rglob("*") if p.is_file()}
    shards = {f"shards/00000{a}-00000{a + 2}.npz" for a in (0, 2, 4)}
    assert names == {"run.json", "seed", "lock", *shards}
    assert Manifest.read(tmp_path / "new" / "run" / "run.json") == manifest


# --- the seed -------------------------------------------------------------------------------------------------------


def test_the_seed_is_private_and_nowhere_else(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path, make_manifest(keep_models=True), None) as run:
        for group in run.missing():
            run.save_models(group, {"w": np.ones((2, 3), np.float32)}, DEVICE)
            run.save_tally(group, make_tally(group), DEVICE)
        seed = run.root_seed
    assert len(seed) == 32
    assert (tmp_path / "seed").read_text().strip() == seed.hex()
    assert stat.S_IMODE((tmp_path / "seed").stat().st_mode) == 0o600
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "seed":
            content = path.read_bytes()
            assert seed.hex().encode() not in content, path
            assert seed not in content, path


def test_the_seed_is_never_readable_by_others_not_even_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[int] = []
    replace_ = os.replace

    def spy(source: str, target: Path) -> None:
        if Path(target).name == "seed":
            modes.append(stat.S_IMODE(os.stat(source).st_mode))
        replace_(source, target)

    monkeypatch.setattr(os, "replace", spy)
    with RunDirectory.open(tmp_path, make_manifest(), None):
        pass
    assert modes == [0o600]


def test_every_run_draws_its_own_seed(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path / "a", make_manifest(), None) as a, \
            RunDirectory.open(tmp_path / "b", make_manifest(), None) as b:  # fmt: skip
        assert a.root_seed != b.root_seed


def test_a_seed_without_a_run_was_never_used_and_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "seed").write_text("00" * 32)
    with RunDirectory.open(tmp_path, make_manifest(), SEED) as run:
        assert run.root_seed == SEED
    assert (tmp_path / "seed").read_text().strip() == SEED.hex()


def test_a_run_without_its_seed_cannot_go_on(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path, make_manifest(), None) as run:
        fill(run, 1)
    (tmp_path / "seed").unlink()
    with RunDirectory.open(tmp_path, make_manifest(), None) as run, pytest.raises(ArtifactError, match="seed is miss"):
        _ = run.root_seed
    (tmp_path / "seed").write_text("not a seed")
    with pytest.raises(ArtifactError, match="damaged"), RunDirectory.open(tmp_path, make_manifest(), None):
        pass


def test_the_seed_of_another_run_is_recognised(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with RunDirectory.open(tmp_path / name, make_manifest(), None) as run:
            fill(run, 1)
    (tmp_path / "a" / "seed").write_bytes((tmp_path / "b" / "seed").read_bytes())
    with pytest.raises(ArtifactError, match="not the seed of this run"), \
            RunDirectory.open(tmp_path / "a", make_manifest(), None):  # fmt: skip
        pass


def test_the_public_name_is_a_function_of_the_seed_and_shows_nothing_of_it() -> None:
    names = {run_id_of(seed) for seed in (SEED, bytes(32), bytes([1]) + bytes(31))}
    assert len(names) == 3
    assert all(len(name) == 32 and int(name, 16) >= 0 for name in names)
    assert run_id_of(SEED) == run_id_of(bytes(SEED))
    assert run_id_of(SEED) not in SEED.hex()
    # A second computation: a directory is resumed by whoever gives its seed the name that is written there.
    digest = hashlib.blake2b(b"\0\0\0\0\0\0\0\0run id", key=SEED, digest_size=16).digest()
    assert run_id_of(SEED) == digest[::-1].hex()


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path, make_manifest(), SEED):
        pass
    other = bytes(32)
    with pytest.raises(ConfigError, match="another root seed") as caught, \
            RunDirectory.open(tmp_path, make_manifest(), other):  # fmt: skip
        pass
    assert other.hex() not in str(caught.value)
    assert SEED.hex() not in str(caught.value)


# --- groups ---------------------------------------------------------------------------------------------------------


@given(instances=st.integers(1, 300), in_flight=st.integers(1, 400))
def test_groups_hold_every_instance_once_and_none_is_tiny(instances: int, in_flight: int) -> None:
    groups = plan_ranges(0, instances, in_flight)
    check_tiling(groups, instances)
    sizes = [len(group) for group in groups]
    assert max(sizes) <= in_flight
    assert max(sizes) - min(sizes) <= 1
    assert len(groups) == -(-instances // in_flight)


@given(
    instances=st.integers(1, 60),
    first=st.integers(1, 20),
    then=st.integers(1, 20),
    chosen=st.lists(st.integers(0, 60)),
)
def test_new_groups_leave_what_is_done_alone(instances: int, first: int, then: int, chosen: list[int]) -> None:
    groups = plan_ranges(0, instances, first)
    done = [group for number, group in enumerate(groups) if number in chosen]
    changed = replanned(groups, done, then)
    check_tiling(changed, instances)
    assert set(done) <= set(changed)
    assert all(len(group) <= then for group in changed if group not in done)


@pytest.mark.parametrize(
    "ranges", [[], [range(0, 3)], [range(0, 3), range(2, 6)], [range(0, 3), range(4, 6)], [range(0, 7)], [range(3, 6)]]
)
def test_groups_that_overlap_or_leave_gaps_are_refused(tmp_path: Path, ranges: list[range]) -> None:
    with pytest.raises(ArtifactError):
        check_tiling(ranges, 6)
    manifest = replace(make_manifest(), ranges=tuple(ranges))
    (tmp_path / "run.json").write_bytes(manifest.to_json())
    with pytest.raises(ArtifactError, match="damaged"):
        Manifest.read(tmp_path / "run.json")


def test_a_new_number_in_flight_is_for_the_rest_and_is_written_down(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path, make_manifest(8, 4), SEED) as run:
        fill(run, 1)
    with RunDirectory.open(tmp_path, make_manifest(8, 3, asked=3), SEED) as run:
        assert run.missing() == [range(4, 6), range(6, 8)]
        fill(run, 1)
    with RunDirectory.open(tmp_path, make_manifest(8, 4), SEED) as run:  # nothing asked: what is written counts
        assert run.missing() == [range(6, 8)]
        assert (run.manifest.in_flight, run.manifest.in_flight_asked) == (3, 3)


def test_a_number_that_was_halved_is_not_doubled_by_the_same_command(tmp_path: Path) -> None:
    wanted = make_manifest(8, 4, asked=4)
    with RunDirectory.open(tmp_path, wanted, SEED) as run:
        run.set_in_flight(2)
        fill(run, 1)
    with RunDirectory.open(tmp_path, wanted, SEED) as run:
        assert run.missing() == [range(2, 4), range(4, 6), range(6, 8)]


# --- resuming -------------------------------------------------------------------------------------------------------


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path, make_manifest(), SEED) as run:
        fill(run, 2)
    other_name = make_manifest(run_id="cd" * 16)
    with RunDirectory.open(tmp_path, other_name, None) as run:
        assert run.manifest.run_id == run_id_of(SEED)
        assert run.root_seed == SEED
        assert run.missing() == [range(4, 6)]


def recipe_with(**changes: Any) -> dict[str, Any]:
    recipe = make_manifest().recipe
    config = {**recipe["config"], **{k: v for k, v in changes.items() if k in recipe["config"]}}
    return {**recipe, **{k: v for k, v in changes.items() if k not in recipe["config"]}, "config": config}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"recipe": recipe_with(steps=20)}, "its steps is 10, not 20"),
        ({"recipe": recipe_with(learning_rate=0.25)}, "its learning_rate is 0.5, not 0.25"),
        ({"recipe": recipe_with(instances=7)}, "its instances is 6, not 7"),
        ({"recipe": recipe_with(model="mlp")}, "its model is 'linear', not 'mlp'"),
        ({"recipe": recipe_with(features={"name": "hog"})}, "its features is None, not {'name': 'hog'}"),
        ({"recipe": recipe_with(precision="tf32")}, "its precision is 'float32', not 'tf32'"),
        ({"training": TrainingData("1" * 64, 100), "data_fingerprint": "other"}, "its training data are different"),
        ({"data_fingerprint": "other"}, "its test inputs are different"),
        ({"keep_models": True}, "it does not keep models"),
    ],
)
def test_a_directory_of_another_run_is_refused_and_left_alone(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    with RunDirectory.open(tmp_path, make_manifest(), SEED) as run:
        fill(run)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    wanted = replace(make_manifest(), **changes)
    with pytest.raises(ConfigError, match="Use another run_dir") as caught, \
            RunDirectory.open(tmp_path, wanted, None):  # fmt: skip
        pass
    assert says in str(caught.value)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("keep", range(0, 100, 7))
def test_a_truncated_shard_is_trained_again(tmp_path: Path, keep: int, caplog: pytest.LogCaptureFixture) -> None:
    with RunDirectory.open(tmp_path, make_manifest(), SEED) as run:
        fill(run)
    path = tmp_path / "shards" / "000002-000004.npz"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * keep // 100])
    with RunDirectory.open(tmp_path, make_manifest(), SEED) as run:
        assert run.missing() == [range(2, 4)]
    assert "000002-000004.npz is not a readable .npz" in caplog.text
    assert "trained again" in caplog.text


@settings(max_examples=40)
@given(position=st.floats(0, 1, exclude_max=True), value=st.integers(1, 255))
def test_a_changed_byte_in_a_shard_is_found_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, position: float, value: int
) -> None:
    folder = tmp_path_factory.mktemp("byte")
    with RunDirectory.open(folder, make_manifest(2), SEED) as run:
        fill(run)
    path = folder / "shards" / "000000-000002.npz"
    data = bytearray(path.read_bytes())
    data[int(position * len(data))] ^= value
    path.write_bytes(bytes(data))
    with RunDirectory.open(folder, make_manifest(2), SEED) as run:
        if run.missing():
            return
        expected = make_tally(range(0, 2))
        assert all(np.array_equal(array, expected[name]) for name, array in run.total().items())
        assert run.total().keys() == expected.keys()


def test_a_shard_of_another_run_or_group_is_not_counted(tmp_path: Path) -> None:
    for name, seed in (("a", SEED), ("b", bytes(32))):
        with RunDirectory.open(tmp_path / name, make_manifest(), seed) as run:
            fill(run)
    foreign = (tmp_path / "b" / "shards" / "000000-000002.npz").read_bytes()
    (tmp_path / "a" / "shards" / "000000-000002.npz").write_bytes(foreign)
    moved = (tmp_path / "a" / "shards" / "000004-000006.npz").read_bytes()
    (tmp_path / "a" / "shards" / "000002-000004.npz").write_bytes(moved)
    with RunDirectory.open(tmp_path / "a", make_manifest(), SEED) as run:
        assert run.missing() == [range(0, 2), range(2, 4)]


def test_a_shard_that_would_count_instances_twice_is_reported(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path, make_manifest(), SEED) as run:
        fill(run)
    path = tmp_path / "shards" / "000000-000002.npz"
    (tmp_path / "shards" / "000001-000003.npz").write_bytes(path.read_bytes())
    with pytest.raises(ArtifactError, match="would count twice"), \
            RunDirectory.open(tmp_path, make_manifest(), SEED):  # fmt: skip
        pass


def test_votes_that_are_incomplete_are_never_written(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path, make_manifest(), SEED) as run:
        tally = make_tally(range(0, 2))
        for change in (
            {"counts": tally["counts"] - np.array([[1, 0]] * 4)},
            {"score_sums": tally["score_sums"] * np.nan},
            {"score_squares": tally["score_squares"] + np.inf},
        ):
            with pytest.raises(NumericalError, match="instances 0 to 1"):
                run.save_tally(range(0, 2), {**tally, **change}, DEVICE)
        with pytest.raises(NumericalError):
            run.save_tally(range(0, 2), make_tally(range(0, 3)), DEVICE)
    assert list((tmp_path / "shards").iterdir()) == []


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path, make_manifest(keep_models=True), SEED):
        pass
    leftovers = [
        tmp_path / ".seed.x.tmp",
        tmp_path / "shards" / ".000000-000002.npz.y.tmp",
        tmp_path / "models" / ".m.tmp",
    ]
    for path in leftovers:
        path.write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    with RunDirectory.open(tmp_path, make_manifest(keep_models=True), SEED) as run:
        assert len(run.missing()) == 3
    assert not any(path.exists() for path in leftovers)
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"{}", b'{"schema": "mithridate.run/1"}', b"\xff\xfe"])
def test_a_damaged_manifest_is_reported(tmp_path: Path, text: bytes) -> None:
    with RunDirectory.open(tmp_path, make_manifest(), SEED) as run:
        fill(run)
    (tmp_path / "run.json").write_bytes(text)
    with pytest.raises(ArtifactError, match=r"run\.json is damaged"), \
            RunDirectory.open(tmp_path, make_manifest(), SEED):  # fmt: skip
        pass
    assert len(list((tmp_path / "shards").iterdir())) == 3


def test_a_manifest_of_a_later_version_asks_for_an_update(tmp_path: Path) -> None:
    text = make_manifest().to_json().replace(b"mithridate.run/1", b"mithridate.run/2")
    (tmp_path / "run.json").write_bytes(text)
    with pytest.raises(ArtifactError, match="update mithridate"):
        Manifest.read(tmp_path / "run.json")


def test_results_without_a_manifest_are_not_overwritten(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path, make_manifest(), SEED) as run:
        fill(run)
    (tmp_path / "run.json").unlink()
    with pytest.raises(ArtifactError, match=r"no run\.json"), RunDirectory.open(tmp_path, make_manifest(), SEED):
        pass


# --- models ---------------------------------------------------------------------------------------------------------


def weights_of(group: range) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(group.start)
    return {
        "a.weight": rng.normal(size=(len(group), 2, 3)).astype(np.float32),
        "a.bias": np.zeros((len(group), 2), "f4"),
    }


def test_models_are_written_in_one_piece_and_read_back(tmp_path: Path) -> None:
    manifest = make_manifest(keep_models=True)
    with RunDirectory.open(tmp_path, manifest, SEED) as run:
        for group in run.missing():
            run.save_models(group, weights_of(group), DEVICE)
            run.save_tally(group, make_tally(group), DEVICE)
    path = tmp_path / "models" / "000002-000004.safetensors"
    for name, array in read_models(path, manifest, range(2, 4)).items():
        assert np.array_equal(array, weights_of(range(2, 4))[name])
    with pytest.raises(ArtifactError, match="another run"):
        read_models(path, manifest, range(0, 2))
    with pytest.raises(ArtifactError, match="another run"):
        read_models(path, replace(manifest, run_id="cd" * 16), range(2, 4))
    with pytest.raises(ArtifactError, match="another run"):
        read_models(path, replace(manifest, recipe=recipe_with(steps=20)), range(2, 4))


@pytest.mark.parametrize("damage", ["missing", "truncated", "empty", "other"])
def test_votes_whose_models_are_gone_are_trained_again(tmp_path: Path, damage: str) -> None:
    manifest = make_manifest(keep_models=True)
    with RunDirectory.open(tmp_path, manifest, SEED) as run:
        for group in run.missing():
            run.save_models(group, weights_of(group), DEVICE)
            run.save_tally(group, make_tally(group), DEVICE)
    path = tmp_path / "models" / "000002-000004.safetensors"
    data = path.read_bytes()
    match damage:
        case "missing":
            path.unlink()
        case "truncated":
            path.write_bytes(data[:-1])
        case "empty":
            path.write_bytes(b"")
        case _:
            path.write_bytes((tmp_path / "models" / "000000-000002.safetensors").read_bytes())
    with RunDirectory.open(tmp_path, manifest, SEED) as run:
        assert run.missing() == [range(2, 4)]
    with pytest.raises(ArtifactError):
        read_models(path, manifest, range(2, 4))


def test_a_changed_weight_is_found(tmp_path: Path) -> None:
    manifest = make_manifest(keep_models=True)
    with RunDirectory.open(tmp_path, manifest, SEED) as run:
        run.save_models(range(0, 2), weights_of(range(0, 2)), DEVICE)
    path = tmp_path / "models" / "000000-000002.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ArtifactError, match="changed after"):
        read_models(path, manifest, range(0, 2))


# --- other processes, other places ----------------------------------------------------------------------------------


def test_two_processes_never_share_a_run(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path, make_manifest(), SEED):
        code = (
            "import sys; sys.path.insert(0, sys.argv[2])\n"
            "from test_run_directory import *\n"
            "try:\n"
            "    with RunDirectory.open(sys.argv[1], make_manifest(), SEED): pass\n"
            "except ArtifactError as error: print(error)\n"
        )
        arguments = [sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parent)]
        second = subprocess.run(arguments, capture_output=True, text=True, timeout=600, check=True)
        assert second.stdout.startswith("Another process works in")
        with pytest.raises(ArtifactError, match="Another process"), RunDirectory.open(tmp_path, make_manifest(), SEED):
            pass
    with RunDirectory.open(tmp_path, make_manifest(), SEED) as run:
        assert len(run.missing()) == 3


def test_a_file_system_without_locks_is_no_reason_to_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoLocks:
        LOCK_EX, LOCK_NB = 2, 4

        @staticmethod
        def flock(file: Any, operation: int) -> None:
            raise OSError(95, "Operation not supported")

    monkeypatch.setattr(run_directory, "fcntl", NoLocks)
    with RunDirectory.open(tmp_path, make_manifest(), SEED) as run:
        fill(run)
        assert run.missing() == []


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        for path in (tmp_path, tmp_path / "below"):
            with pytest.raises(ArtifactError, match="Permission denied"), \
                    RunDirectory.open(path, make_manifest(), SEED):  # fmt: skip
                pass
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("refused", ["mkdir", "open"])
def test_a_folder_that_may_not_be_written_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    def refuse(*arguments: Any, **keywords: Any) -> int:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, refused, refuse)
    with pytest.raises(ArtifactError, match="Read-only file system"), \
            RunDirectory.open(tmp_path / "run", make_manifest(), SEED):  # fmt: skip
        pass


def test_a_file_is_no_run_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ArtifactError), RunDirectory.open(path, make_manifest(), SEED):
            pass


def test_a_full_disk_keeps_what_is_finished_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any, **keywords: Any) -> None:
        raise OSError(28, "No space left on device")

    with RunDirectory.open(tmp_path, make_manifest(), SEED) as run:
        fill(run, 2)
    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(ArtifactError, match=r"No space left.*the same command goes on"), \
            RunDirectory.open(tmp_path, make_manifest(), SEED) as run:  # fmt: skip
        fill(run)
    monkeypatch.undo()
    with RunDirectory.open(tmp_path, make_manifest(), SEED) as run:
        assert run.missing() == [range(4, 6)]
    assert sorted(p.name for p in (tmp_path / "shards").iterdir()) == ["000000-000002.npz", "000002-000004.npz"]


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """The system itself refuses to write more than so many bytes to a file."""
    code = (
        "import resource, signal, sys; sys.path.insert(0, sys.argv[2])\n"
        "from test_run_directory import *\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))\n"
        "manifest = make_manifest(keep_models=True)\n"
        "try:\n"
        "    with RunDirectory.open(sys.argv[1], manifest, SEED) as run:\n"
        "        for size, group in zip((10, 10, 2000), run.missing()):\n"
        "            run.save_models(group, {'w': np.ones((2, size), np.float32)}, DEVICE)\n"
        "            run.save_tally(group, make_tally(group), DEVICE)\n"
        "except ArtifactError as error: print(error)\n"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parent)]
    outcome = subprocess.run(arguments, capture_output=True, text=True, timeout=600, check=True)
    assert "Cannot write" in outcome.stdout
    assert "the same command goes on" in outcome.stdout
    assert sorted(p.name for p in (tmp_path / "models").iterdir()) == [
        "000000-000002.safetensors", "000002-000004.safetensors",
    ]  # fmt: skip
    with RunDirectory.open(tmp_path, make_manifest(keep_models=True), SEED) as run:
        assert run.missing() == [range(4, 6)]


def test_the_manifest_holds_plain_json(tmp_path: Path) -> None:
    content = json.loads(make_manifest().to_json())
    assert content["ranges"] == [[0, 2], [2, 4], [4, 6]]
    assert content["schema"] == "mithridate.run/1"


# --- values of any kind in run.json ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"assumptions": [3]}, {"assumptions": "x"}, {"assumptions": None}, {"run_id": 3}, {"data_fingerprint": None},
        {"data_fingerprint": float("nan")}, {"training": []}, {"training": {"fingerprint": "x", "examples": 1}},
        {"training": {"fingerprint": "0" * 64}}, {"recipe": []}, {"recipe": {"config": 3}},
        {"recipe": {"config": {"instances": 6.5}}}, {"recipe": {"config": {"instances": True}}}, {"inputs": 3},
        {"keep_models": 1}, {"device": None}, {"versions": "2"}, {"in_flight": 0}, {"in_flight": "2"},
        {"in_flight_asked": -1}, {"in_flight_asked": 1.5}, {"ranges": 3}, {"ranges": [3]}, {"ranges": [[0, 6, 1]]},
        {"ranges": [[0.0, 6]]}, {"ranges": [["0", 6]]}, {"ranges": [[0, 5]]}, {"ranges": []}, {"more": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_manifest_of_other_values_is_damaged(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({**json.loads(make_manifest().to_json()), **change}))
    with pytest.raises(ArtifactError, match=r"run\.json is damaged"):
        Manifest.read(path)
    path.write_bytes(make_manifest().to_json())
    assert Manifest.read(path) == make_manifest()


def test_a_shard_with_more_in_it_is_trained_again(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path, make_manifest(), SEED) as run:
        for group in run.manifest.ranges:
            run.save_tally(group, make_tally(group), DEVICE)
    path = tmp_path / "shards" / "000000-000002.npz"
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    np.savez(path, **arrays, more=np.zeros(3))
    with RunDirectory.open(tmp_path, make_manifest(), SEED) as run:
        assert run.missing() == [range(2)]
    np.savez(path, **arrays)
    with RunDirectory.open(tmp_path, make_manifest(), SEED) as run:
        assert run.missing() == []
