"""Shards of one run by several processes: in one directory or in copies, at the same time, killed, meeting others."""

import itertools
import json
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_cli import run as command
from test_run_directory import DEVICE, SEED, make_manifest
from test_train_cli import TRAIN_FLAGS
from test_training import killing
from training_doubles import TEST, TRAIN, FakeEngine, make_config, prepare, same_votes

from mithridate import ArtifactError, ConfigError, Votes, certify, train
from mithridate.cli.parts import _instances, _Source, _without_overlaps
from mithridate.training import run as training
from mithridate.training import shared_run
from mithridate.training import task as task_file
from mithridate.training.run_directory import Manifest, RunDirectory, plan_ranges, propose_seed, run_id_of
from mithridate.training.shared_run import (
    SharedRun,
    check_shards,
    hand_out,
    in_words,
    parse_shards,
    selected,
    stretches,
)

NEEDS_FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
# Five shards of two instances.
OPTIONS: dict[str, Any] = {"model": "linear", "config": make_config(), "in_flight": 2, "device": "cpu"}


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeEngine]]:
    FakeEngine.reset()
    monkeypatch.setattr(task_file, "Engine", FakeEngine)
    yield FakeEngine
    FakeEngine.reset()


def task(run_dir: Path, shards: Any, **changes: Any) -> Votes:
    return train(TRAIN, TEST, run_dir=run_dir, shards=shards, **{**OPTIONS, **changes})


def undisturbed(run_dir: Path, **changes: Any) -> Votes:
    """The votes of one process with the seed of another run."""
    seed = bytes.fromhex((run_dir / "seed").read_text())
    return train(TRAIN, TEST, root_seed=seed, **{**OPTIONS, **changes})


# --- which shards ---------------------------------------------------------------------------------------------------


@given(count=st.integers(1, 50), first=st.integers(0, 60), stop=st.integers(0, 60))
def test_shards_mean_what_a_slice_means_and_there_must_be_some(count: int, first: int, stop: int) -> None:
    numbers = list(range(count))
    text = f"{first}:{stop}"
    if first < stop <= count:
        assert list(selected(parse_shards(text), count)) == numbers[first:stop]
        assert check_shards(range(first, stop)) == check_shards(slice(first, stop)) == parse_shards(text)
    else:
        with pytest.raises(ConfigError, match=rf"no shards {first}:{stop} .* has {count}, so choose within 0:{count} "):
            selected(parse_shards(text), count)


def test_an_end_may_be_left_out() -> None:
    assert selected(parse_shards("3:"), 5) == range(3, 5)
    assert selected(parse_shards(":3"), 5) == range(3)
    assert selected(parse_shards(":"), 5) == range(5)
    assert selected(parse_shards("4"), 5) == selected(check_shards(4), 5) == range(4, 5)


@pytest.mark.parametrize("text", ["", "a", "1:2:3", "-1", "-2:", "1.5", "1:b", " 1", "1 :2", "9" * 5000, "٣", "1\n"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="Expected shards as A:B"):
        parse_shards(text)


@pytest.mark.parametrize("shards", [-1, True, 1.5, "0:2", (0, 2), range(0, 4, 2), range(3, 0, -1), slice(-2, None)])
def test_other_values_are_refused(tmp_path: Path, shards: Any) -> None:
    with pytest.raises(ConfigError, match="Expected shards as a number"):
        task(tmp_path / "run", shards)
    assert not (tmp_path / "run").exists()


def test_shards_need_a_run_that_is_kept() -> None:
    with pytest.raises(ConfigError, match="give its run_dir"):
        train(TRAIN, TEST, shards=0, **OPTIONS)


@pytest.mark.parametrize("shards", [None, 0])
def test_a_directory_that_cannot_be_is_refused_in_a_sentence(tmp_path: Path, shards: int | None) -> None:
    with pytest.raises(ArtifactError, match=r"Cannot write .*Choose another run_dir"):
        task(tmp_path / ("a" * 300), shards)


def test_shards_that_do_not_exist_start_no_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="choose within 0:5"):
        task(tmp_path / "run", range(4, 6))
    assert not (tmp_path / "run").exists()


@given(st.sets(st.integers(0, 30)))
def test_stretches_hold_every_number_once(numbers: set[int]) -> None:
    found = stretches(sorted(numbers))
    assert [number for stretch in found for number in stretch] == sorted(numbers)
    assert all(one.stop < two.start for one, two in itertools.pairwise(found))
    assert in_words(sorted(numbers)).count(",") == max(len(found) - 1, 0)


# --- one directory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_models", [False, True])
def test_tasks_in_one_directory_give_the_votes_of_an_undisturbed_run(tmp_path: Path, keep_models: bool) -> None:
    parts = [task(tmp_path, shards, keep_models=keep_models) for shards in (range(3, 5), 0)]
    assert not (tmp_path / "votes.npz").exists()
    parts.append(task(tmp_path, slice(1, 3), keep_models=keep_models))  # the last one
    whole = Votes.load(tmp_path / "votes.npz")
    assert sorted(group.start for group in FakeEngine.trained) == [0, 2, 4, 6, 8]
    assert same_votes(whole, undisturbed(tmp_path))
    assert (whole.shards, whole.assumptions, whole.recipe) == ({}, (), Manifest.read(tmp_path / "run.json").recipe)
    run_id = whole.run_ids[0]
    assert [part.shards for part in parts] == [{run_id: ((6, 10),)}, {run_id: ((0, 2),)}, {run_id: ((2, 6),)}]
    assert [part.instances for part in parts] == [4, 2, 4]
    FakeEngine.trained.clear()
    assert train(TRAIN, TEST, run_dir=tmp_path, **{**OPTIONS, "keep_models": keep_models}).equals(whole)
    assert FakeEngine.trained == []


def test_a_plain_run_trains_what_tasks_left_out_and_removes_what_they_left(tmp_path: Path) -> None:
    task(tmp_path, range(1, 3))
    (tmp_path / "parts" / ".000002-000006.npz.killed.tmp").touch()
    FakeEngine.trained.clear()
    votes = train(TRAIN, TEST, run_dir=tmp_path, **OPTIONS)
    assert FakeEngine.trained == [range(0, 2), range(6, 8), range(8, 10)]
    assert same_votes(votes, undisturbed(tmp_path))
    assert not list(tmp_path.rglob("*.tmp"))


def test_the_part_is_written_and_certifies_with_its_own_number_of_instances(tmp_path: Path) -> None:
    votes = task(tmp_path, range(1, 4))
    assert Votes.load(tmp_path / "parts" / "000002-000008.npz").equals(votes)
    assert votes.recipe is not None
    assert votes.instances == votes.recipe["config"]["instances"] == 6
    certificate = certify(votes)
    alone = certify(Votes.from_counts(votes.counts, mechanism=votes.mechanism))
    assert np.array_equal(certificate.radius, alone.radius)
    assert certificate.to_dict()["instances"] == 6
    assert [each.id for each in certificate.conditions if each.id != "seed-known"] == ["instances-after-a-look"]


def test_nothing_that_is_done_is_trained_again(tmp_path: Path) -> None:
    first = task(tmp_path, range(0, 3))
    FakeEngine.trained.clear()
    assert task(tmp_path, range(0, 3)).equals(first)
    assert FakeEngine.trained == []
    task(tmp_path, range(1, 5))
    assert FakeEngine.trained == [range(6, 8), range(8, 10)]


def test_a_damaged_shard_is_trained_again_with_its_models(tmp_path: Path) -> None:
    votes = task(tmp_path, range(2), keep_models=True)
    for name in ("shards/000002-000004.npz", "models/000002-000004.safetensors"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[: len(content) // 2])
    FakeEngine.trained.clear()
    assert task(tmp_path, range(2), keep_models=True).equals(votes)
    assert FakeEngine.trained == [range(2, 4)]
    assert task(tmp_path, range(2), keep_models=True).equals(votes)
    assert FakeEngine.trained == [range(2, 4)]


def test_progress_is_that_of_the_task(tmp_path: Path) -> None:
    class Told(list[tuple[int, int]]):
        def __init__(self) -> None:
            self.details: list[str] = []

        def __call__(self, done: int, total: int) -> None:
            self.append((done, total))

        def detail(self, text: str) -> None:
            self.details.append(text)

    told = Told()
    task(tmp_path, range(1, 4), progress=told)
    assert (told[0], told[-1]) == ((0, 36), (36, 36))
    assert told.details == ["0 of 3 shards", "1 of 3 shards", "2 of 3 shards"]


# --- what would change the plan -------------------------------------------------------------------------------------


def test_the_plan_of_the_first_task_is_that_of_all(tmp_path: Path) -> None:
    FakeEngine.guess = 5
    task(tmp_path, 0, in_flight=None)
    FakeEngine.guess = 2  # a machine with less memory
    assert task(tmp_path, 1, in_flight=None).instances == 5
    with pytest.raises(ConfigError, match=r"planned with 5 models in flight, not 2; leave .*--in-flight.* out"):
        task(tmp_path, 1, in_flight=2)
    assert task(tmp_path, 1, in_flight=5).instances == 5


def test_without_memory_the_remedy_is_named_and_nothing_is_replanned(tmp_path: Path) -> None:
    task(tmp_path, 0, in_flight=4)
    FakeEngine.capacity = 3
    with pytest.raises(ConfigError, match=r"does not fit .* another run_dir with fewer .*--in-flight 2\)"):
        task(tmp_path, range(1, 3), in_flight=4)
    assert Manifest.read(tmp_path / "run.json").ranges == plan_ranges(0, 10, 4)
    FakeEngine.capacity = 4
    task(tmp_path, 2, in_flight=4)
    assert same_votes(Votes.load(tmp_path / "votes.npz"), undisturbed(tmp_path, in_flight=4))


def test_a_run_that_is_there_is_prepared_as_it_is(tmp_path: Path) -> None:
    prepare(tmp_path, **OPTIONS)
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(ConfigError, match=r"planned with 2 models in flight, not 4; leave .*--in-flight.* out"):
        prepare(tmp_path, **{**OPTIONS, "in_flight": 4})
    assert prepare(tmp_path, **{**OPTIONS, "in_flight": None}).in_flight == 2
    assert (tmp_path / "run.json").read_bytes() == before


def test_the_number_that_memory_chose_may_be_asked_for(tmp_path: Path) -> None:
    FakeEngine.guess = 4
    task(tmp_path, 2, in_flight=None)
    before = (tmp_path / "run.json").read_bytes()
    prepare(tmp_path, **{**OPTIONS, "in_flight": 4})
    assert (tmp_path / "run.json").read_bytes() == before


def test_other_recipes_data_or_assumptions_are_refused(tmp_path: Path) -> None:
    task(tmp_path, 0)
    with pytest.raises(ConfigError, match="belongs to another run: its learning_rate"):
        task(tmp_path, 1, config=make_config(learning_rate=0.25))
    with pytest.raises(ConfigError, match="its training data are different"):
        train((TRAIN[0] + 1, TRAIN[1]), TEST, run_dir=tmp_path, shards=1, **OPTIONS)
    with pytest.raises(ConfigError, match=r"takes something for granted .* The moon is full\. Give all tasks the same"):
        task(tmp_path, 1, assumptions=("The moon is full.",))
    with pytest.raises(ConfigError, match="another root seed"):
        task(tmp_path, 1, root_seed=bytes(32))
    assert len(list((tmp_path / "shards").iterdir())) == 1


def test_what_turns_out_to_be_assumed_is_added_by_preparing_again(tmp_path: Path) -> None:
    said = ("The moon is full.",)
    assert said[0] not in task(tmp_path, 0).assumptions
    prepare(tmp_path, **OPTIONS, assumptions=said)
    assert said[0] in task(tmp_path, 1, assumptions=said).assumptions
    assert said[0] in train(TRAIN, TEST, run_dir=tmp_path, **OPTIONS).assumptions


# --- at the same time -----------------------------------------------------------------------------------------------


@pytest.mark.more
@NEEDS_FORK
def test_tasks_that_start_a_run_together_agree_on_it(tmp_path: Path) -> None:
    """Each would choose another number in flight; one of them does for all."""
    tasks = [[[number, number + 1], guess] for number, guess in enumerate((1, 2, 3, 2))]
    order = {"config": {"instances": 12}}
    outcome = killing(tmp_path, how="together", rounds=12, tasks=tasks, options=order)
    assert outcome["codes"] == [[0, 0, 0, 0]] * 12
    for number in range(12):
        folder = tmp_path / str(number)
        manifest = Manifest.read(folder / "run.json")
        assert manifest.ranges == plan_ranges(0, 12, manifest.in_flight)
        parts = [Votes.load(path) for path in sorted((folder / "parts").iterdir())]
        assert len(parts) == 4
        assert {part.run_ids for part in parts} == {(manifest.run_id,)}
        assert stat.S_IMODE((folder / "seed").stat().st_mode) == 0o600
        assert not list(folder.glob(".*"))
        changes = {"config": make_config(instances=12), "in_flight": manifest.in_flight}
        whole = train(TRAIN, TEST, run_dir=folder, **{**OPTIONS, **changes})
        assert same_votes(whole, undisturbed(folder, **changes))


@pytest.mark.more
@NEEDS_FORK
def test_tasks_of_the_same_shards_together_count_them_once(tmp_path: Path) -> None:
    tasks = [[[0, 5], 2]] * 4
    outcome = killing(tmp_path, how="together", rounds=8, tasks=tasks, options={"config": {}, "in_flight": 2})
    for number, codes in enumerate(outcome["codes"]):
        assert set(codes) <= {0, 1}
        assert 0 in codes  # the one that had them
        assert same_votes(Votes.load(tmp_path / str(number) / "votes.npz"), undisturbed(tmp_path / str(number)))


@pytest.mark.more
@NEEDS_FORK
def test_a_killed_task_goes_on_and_two_that_meet_are_told(tmp_path: Path) -> None:
    outcome = killing(tmp_path, how="meet", options={"config": {}, "in_flight": 2})
    assert outcome["killed"] == [True, True]
    assert outcome["left"] == [1, 2]
    assert "Another process trains shards that this one was asked for (2). The others are done" in outcome["met"]
    assert outcome["beside"] == 3
    assert "Another process works in" in outcome["whole"]
    assert outcome["other"] == 0
    assert outcome["again"] == 0
    task(tmp_path / "run", 4)
    assert same_votes(Votes.load(tmp_path / "run" / "votes.npz"), undisturbed(tmp_path / "run"))


@pytest.mark.more
@NEEDS_FORK
def test_a_task_that_is_killed_at_every_write(tmp_path: Path) -> None:
    options = {"config": {"instances": 3}, "in_flight": 2, "keep_models": True, "shards": 1}
    outcome = killing(tmp_path, how="writes", options=options)
    assert outcome["killed"] == outcome["total"] > 30
    parts = [Votes.load(path) for path in tmp_path.glob("*/parts/*.npz")]
    assert len(parts) == outcome["total"] + 1
    assert all(part.equals(parts[0]) for part in parts)
    assert not list(tmp_path.glob("*/.seed*"))


@pytest.mark.more
@NEEDS_FORK
def test_who_gave_the_seed_is_known_wherever_its_task_was_killed(tmp_path: Path) -> None:
    """A task with a seed of its caller is killed; one that has none goes on."""
    options = {"config": {"instances": 3}, "in_flight": 2, "shards": 1}
    outcome = killing(tmp_path, how="writes", options=options, seed_again=False)
    assert outcome["killed"] == outcome["total"] > 20
    given = 0
    for path in tmp_path.glob("0*/parts/*.npz"):
        folder, votes = path.parent.parent, Votes.load(path)
        seed = bytes.fromhex((folder / "seed").read_text())
        assert votes.run_ids == (run_id_of(seed),)
        assert any("given by the caller" in sentence for sentence in votes.assumptions) == (seed == SEED)
        assert not list(folder.glob(".seed*"))
        given += seed == SEED
    assert 0 < given < outcome["total"]


def test_without_locks_the_first_file_of_a_shard_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_run, "_claim", lambda file, number: True)
    files: list[int] = []
    shard = tmp_path / "shards" / "000000-000002.npz"

    def meet(group: range) -> None:
        FakeEngine.before_group = staticmethod(lambda group: None)
        task(tmp_path, 0)  # another one trains all of it meanwhile
        files.append(shard.stat().st_ino)

    FakeEngine.before_group = staticmethod(meet)
    task(tmp_path, 0)
    assert FakeEngine.trained == [range(0, 2)] * 2
    assert files == [shard.stat().st_ino]  # the same file, not one like it
    task(tmp_path, range(1, 5))
    assert same_votes(Votes.load(tmp_path / "votes.npz"), undisturbed(tmp_path))


def test_a_plain_run_and_tasks_keep_each_other_out(tmp_path: Path) -> None:
    with SharedRun.join(tmp_path, make_manifest(), None, slice(0, 1)), \
            pytest.raises(ArtifactError, match="Another process works"), \
            RunDirectory.open(tmp_path, make_manifest(), None):  # fmt: skip
        pass
    with RunDirectory.open(tmp_path, make_manifest(), None), \
            pytest.raises(ArtifactError, match="Another process works"), \
            SharedRun.join(tmp_path, make_manifest(), None, slice(0, 1)):  # fmt: skip
        pass
    with SharedRun.join(tmp_path, make_manifest(), None, slice(0, 1)) as one, \
            SharedRun.join(tmp_path, make_manifest(), None, slice(1, 2)) as two:  # fmt: skip
        assert one.root_seed == two.root_seed
        assert (one.groups, two.groups) == ((range(0, 2),), (range(2, 4),))


def test_a_file_system_without_hard_links_asks_for_a_prepared_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(ArtifactError, match=r"hard links\. Prepare the run beforehand"):
        task(tmp_path, 0)
    assert not list(tmp_path.glob(".*"))
    prepare(tmp_path, **OPTIONS)
    task(tmp_path, 0)


def test_a_seed_without_a_plan_is_replaced(tmp_path: Path) -> None:
    """It may have been used, or given by a caller, which nobody wrote down."""
    (tmp_path / "seed").write_text(SEED.hex())
    with SharedRun.join(tmp_path, make_manifest(), None, slice(0, 1)) as run:
        assert run.root_seed != SEED
        assert (tmp_path / "seed").read_text().strip() == run.root_seed.hex()
        assert run_id_of(run.root_seed) == run.manifest.run_id
    assert stat.S_IMODE((tmp_path / "seed").stat().st_mode) == 0o600


def test_a_seed_that_was_proposed_becomes_that_of_the_run_it_names_and_of_no_other(tmp_path: Path) -> None:
    whole, other, half = propose_seed(tmp_path, SEED), propose_seed(tmp_path, bytes(32)), propose_seed(tmp_path, SEED)
    half.write_bytes(half.read_bytes()[:10])
    (tmp_path / "run.json").write_bytes(replace(make_manifest(), run_id=run_id_of(SEED)).to_json())
    assert stat.S_IMODE(whole.stat().st_mode) == stat.S_IMODE(other.stat().st_mode) == 0o600
    with SharedRun.join(tmp_path, make_manifest(), None, slice(0, 1)) as run:
        assert run.root_seed == SEED
    assert not list(tmp_path.glob(".seed*"))
    lost = propose_seed(tmp_path, SEED)  # of a task that was killed when another had made the run
    with RunDirectory.open(tmp_path, make_manifest(), None) as run:
        assert run.root_seed == SEED
    assert not lost.exists()


def test_a_seed_that_cannot_be_read_is_not_removed(tmp_path: Path) -> None:
    ours = propose_seed(tmp_path, SEED)
    content = ours.read_bytes()
    ours.write_bytes(b"")
    (tmp_path / "run.json").write_bytes(replace(make_manifest(), run_id=run_id_of(SEED)).to_json())
    for _ in range(2):
        with SharedRun.join(tmp_path, make_manifest(), None, slice(0, 1)) as run, \
                pytest.raises(ArtifactError, match="is missing"):  # fmt: skip
            print(run.root_seed)
    ours.write_bytes(content)
    with SharedRun.join(tmp_path, make_manifest(), None, slice(0, 1)) as run:
        assert run.root_seed == SEED


@pytest.mark.parametrize("name", ["shards/000000-000002.npz", "parts/000000-000002.npz", "models/0.safetensors"])
def test_results_without_a_plan_are_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).touch()
    with pytest.raises(ArtifactError, match=r"holds results but no run\.json"), \
            SharedRun.join(tmp_path, make_manifest(), None, slice(0, 1)):  # fmt: skip
        pass


# --- copies, and merging --------------------------------------------------------------------------------------------


def test_copies_train_apart_and_merge(tmp_path: Path) -> None:
    prepare(tmp_path / "run", **OPTIONS)
    assert not list((tmp_path / "run" / "shards").iterdir())
    parts: list[Votes] = []
    for number, shards in enumerate((range(0, 2), range(2, 3), range(3, 5))):
        shutil.copytree(tmp_path / "run", tmp_path / str(number))
        parts.append(task(tmp_path / str(number), shards))
    whole = undisturbed(tmp_path / "run")
    merged = parts[0].merge(*parts[1:])
    for name in ("counts", "score_histograms", "labels"):
        assert np.array_equal(getattr(merged, name), getattr(whole, name))
    for name in ("score_sums", "score_squares"):  # within what bounds on scores allow for
        np.testing.assert_allclose(getattr(merged, name), getattr(whole, name), rtol=10 * 2**-52, atol=0)
    assert (merged.instances, merged.recipe, merged.devices) == (10, whole.recipe, whole.devices)
    assert merged.shards == {whole.run_ids[0]: ((0, 10),)}
    with pytest.raises(ConfigError, match="instances 4 to 5 would count twice"):
        merged.merge(parts[1])
    with pytest.raises(ConfigError, match="share a run"):
        train(TRAIN, TEST, run_dir=tmp_path / "run", **OPTIONS).merge(parts[1])
    independent = task(tmp_path / "independent", range(5))
    assert merged.merge(independent).instances == 20
    some = parts[0].merge(parts[2])  # the one between is missing
    assert (some.instances, certify(some).to_dict()["instances"]) == (8, 8)


def test_copies_of_one_shard_each_merge_to_the_last_bit(tmp_path: Path) -> None:
    parts = [task(tmp_path, number) for number in range(5)]
    assert same_votes(parts[3].merge(*parts[:3], parts[4]), undisturbed(tmp_path))


def test_shards_that_were_handed_out_may_be_put_into_one_directory(tmp_path: Path) -> None:
    """Their models, too: then nothing is trained again, and the run predicts."""
    options = {**OPTIONS, "keep_models": True}
    prepare(tmp_path / "run", **options)
    for number, shards in enumerate((range(0, 2), range(2, 5))):
        hand_out(tmp_path / "run", shards, tmp_path / str(number))
        train(TRAIN, TEST, run_dir=tmp_path / str(number), **options)
    for kind in ("shards", "models"):
        for path in tmp_path.glob(f"[01]/{kind}/0*"):
            shutil.copy(path, tmp_path / "run" / kind)
    FakeEngine.trained.clear()
    votes = train(TRAIN, TEST, run_dir=tmp_path / "run", **options)
    assert FakeEngine.trained == []
    assert same_votes(votes, undisturbed(tmp_path / "run"))
    with pytest.raises(ArtifactError, match=r"was handed out .* Copy the shards and models folders"):
        training.predict(tmp_path / "0", TEST[0], device="cpu")
    assert np.array_equal(training.predict(tmp_path / "run", TEST[0], device="cpu").counts, votes.counts)


# --- handing out ----------------------------------------------------------------------------------------------------


def test_what_is_handed_out_holds_its_own_seeds_alone(tmp_path: Path) -> None:
    prepare(tmp_path / "run", **OPTIONS)
    hand_out(tmp_path / "run", range(1, 3), tmp_path / "part")
    assert sorted(path.name for path in (tmp_path / "part").iterdir()) == ["run.json", "seeds"]
    assert stat.S_IMODE((tmp_path / "part" / "seeds").stat().st_mode) == 0o600
    lines = (tmp_path / "part" / "seeds").read_text().splitlines()[1:]
    assert [int(line.split()[0]) for line in lines] == [2, 3, 4, 5]
    assert (tmp_path / "run" / "seed").read_text().strip() not in (tmp_path / "part" / "seeds").read_text()
    FakeEngine.trained.clear()
    part = train(TRAIN, TEST, run_dir=tmp_path / "part", **OPTIONS)  # all that it can
    assert FakeEngine.trained == [range(2, 4), range(4, 6)]
    assert part.equals(task(tmp_path / "run", range(1, 3)))
    assert task(tmp_path / "part", 2).instances == 2
    with pytest.raises(ConfigError, match=r"handed out with the seeds of the shards 1 to 2 only"):
        task(tmp_path / "part", 3)


@pytest.mark.parametrize("damage", ["nothing", "short", "twice", "another run", "a hole"])
def test_damaged_seeds_are_refused(tmp_path: Path, damage: str) -> None:
    prepare(tmp_path / "run", **OPTIONS)
    hand_out(tmp_path / "run", range(1, 4), tmp_path / "part")
    first, *rest = (tmp_path / "part" / "seeds").read_text().splitlines()
    lines = {
        "nothing": [first],
        "short": [first, rest[0][:-2], *rest[1:]],
        "twice": [first, *rest, rest[0]],
        "another run": ["run 0", *rest],
        "a hole": [first, *rest[:2], *rest[4:]],
    }[damage]
    (tmp_path / "part" / "seeds").write_text("\n".join(lines) + "\n")
    message = "holds seeds of another run; hand" if damage == "another run" else r"seeds .*again"
    with pytest.raises(ArtifactError, match=message):
        train(TRAIN, TEST, run_dir=tmp_path / "part", **OPTIONS)


def test_what_is_handed_out_is_not_prepared_and_stays(tmp_path: Path) -> None:
    prepare(tmp_path / "run", **OPTIONS)
    hand_out(tmp_path / "run", range(1, 4), tmp_path / "part")
    before = (tmp_path / "part" / "run.json").read_bytes()
    for in_flight in (2, 4, None):
        with pytest.raises(ConfigError, match=r"handed out with the seeds of some shards.*without --prepare"):
            prepare(tmp_path / "part", **{**OPTIONS, "in_flight": in_flight})
    assert (tmp_path / "part" / "run.json").read_bytes() == before
    (tmp_path / "part" / "run.json").unlink()
    with pytest.raises(ConfigError, match="without --prepare"):
        prepare(tmp_path / "part", **OPTIONS)
    assert [path.name for path in (tmp_path / "part").iterdir()] == ["seeds"]


@pytest.mark.parametrize("shards", [None, 0])
@pytest.mark.parametrize("name", ["parts/10", "parts"])
def test_no_new_run_starts_among_shards_that_were_handed_out(tmp_path: Path, name: str, shards: int | None) -> None:
    """The number of an array task that is too large, or empty."""
    prepare(tmp_path / "run", **OPTIONS)
    for number in range(2):
        hand_out(tmp_path / "run", range(number, number + 1), tmp_path / "parts" / str(number))
    with pytest.raises(ArtifactError, match=r"new run among shards that were handed out in .*parts, .* elsewhere"):
        task(tmp_path / name, shards)
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == ["0", "1"]
    task(tmp_path / "parts" / "mine", 0)
    task(tmp_path / "parts" / "0", None)


def test_a_root_seed_of_another_run_is_refused_where_there_is_none(tmp_path: Path) -> None:
    prepare(tmp_path / "run", root_seed=SEED, **OPTIONS)
    hand_out(tmp_path / "run", range(1), tmp_path / "part")
    with pytest.raises(ConfigError, match="another root seed"):
        task(tmp_path / "part", None, root_seed=bytes(32))
    assert task(tmp_path / "part", None, root_seed=SEED).instances == 2


def test_only_a_run_with_its_seed_is_handed_out(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"run\.json"):
        hand_out(tmp_path, range(1), tmp_path / "part")
    prepare(tmp_path / "run", **OPTIONS)
    (tmp_path / "part").mkdir()
    with pytest.raises(ArtifactError, match="exists already"):
        hand_out(tmp_path / "run", range(1), tmp_path / "part")
    hand_out(tmp_path / "run", range(1), tmp_path / "half")
    (tmp_path / "half" / "run.json").unlink()
    with pytest.raises(ArtifactError, match=r"has seeds, but no run\.json"):
        train(TRAIN, TEST, run_dir=tmp_path / "half", **OPTIONS)
    hand_out(tmp_path / "run", range(1), tmp_path / "seedless")
    (tmp_path / "seedless" / "seeds").unlink()
    with pytest.raises(ArtifactError, match="split again what was handed out without its seeds"):
        train(TRAIN, TEST, run_dir=tmp_path / "seedless", **OPTIONS)
    (tmp_path / "run" / "seed").unlink()
    with pytest.raises(ArtifactError, match="cannot be handed out"):
        hand_out(tmp_path / "run", range(1), tmp_path / "other")


# --- devices --------------------------------------------------------------------------------------------------------


def test_votes_say_which_devices_trained_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = task(tmp_path, range(0, 2)).devices
    assert list(here.values()) == [4]
    monkeypatch.setattr(training, "shown", lambda *_: DEVICE)
    assert task(tmp_path, range(2, 5)).devices == {DEVICE: 6}
    assert Votes.load(tmp_path / "votes.npz").devices == {**here, DEVICE: 6}


# --- the command line -----------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    np.savez(tmp_path / "train.npz", x=TRAIN[0], y=TRAIN[1])
    np.savez(tmp_path / "test.npz", x=TEST[0], y=TEST[1])
    monkeypatch.chdir(tmp_path)
    return tmp_path


FLAGS = [*TRAIN_FLAGS, "--in-flight", "2"]
WORDS = " ".join(FLAGS[1:])


def test_an_array_from_the_first_command_to_the_certificate(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    prepared = command(capsys, *FLAGS, "--prepare")
    assert prepared.code == 0, prepared.err
    assert "10 instances in 5 shards of at most 2: --shards 0:5. Missing: 0 to 4." in prepared.out
    assert f"Next: mithridate train --shards 0:5 {WORDS}\n" in prepared.out
    first = command(capsys, *FLAGS, "--shards", "1:3")
    assert first.code == 0, first.err
    assert "4 instances voted" in first.out
    assert "Shards 1 to 2 of 5 are done; their votes are in run/parts/000002-000006.npz." in first.out
    assert "Not here (yet): shards 0, 3 to 4." in first.out
    assert f"mithridate train --shards 0:1 {WORDS}\n" in first.out
    told = json.loads(command(capsys, *FLAGS, "--shards=3:", "--json").out)
    assert (told["shards"], told["missing_shards"], told["instances"]) == ([3, 5], [0], 4)
    assert told["next"] == f"mithridate train --shards 0:1 {WORDS} --json"
    assert told["votes"] == "run/parts/000006-000010.npz"
    last = command(capsys, *told["next"].removesuffix(" --json").split()[1:])
    assert (
        "All shards are here, and the votes of the whole run are in votes.npz. Next: mithridate certify run" in last.out
    )
    assert command(capsys, "certify", "run").code == 0
    done = json.loads(command(capsys, *FLAGS, "--prepare", "--json").out)
    assert (done["shards"], done["missing_shards"]) == (5, [])
    assert same_votes(Votes.load("run/votes.npz"), undisturbed(Path("run")))


def test_directories_that_are_handed_out_train_and_merge(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    assert command(capsys, *FLAGS, "--prepare").code == 0
    split = command(capsys, "split", "run", "--into", "2", "-o", "parts")
    assert split.code == 0, split.err
    assert "parts/0: shards 0 to 1\nparts/1: shards 2 to 4\n" in split.out
    assert "mithridate merge parts/* -o votes.npz" in split.out
    for number in range(2):
        outcome = command(capsys, *FLAGS, "--run-dir", f"parts/{number}")
        assert outcome.code == 0, outcome.err
        assert f"mithridate merge parts/{number}/parts/" in outcome.out
    merged = command(capsys, "merge", "parts/0", "parts/1", "-o", "votes.npz")
    assert merged.code == 0, merged.err
    assert np.array_equal(Votes.load("votes.npz").counts, undisturbed(Path("run")).counts)
    again = command(capsys, "merge", "parts/0", "parts/1", "votes.npz", "-o", "twice.npz")
    assert again.code == 2
    assert "would count twice" in again.err
    told = json.loads(command(capsys, "split", "run", "--into", "5", "-o", "more", "--json").out)
    assert [part["shards"] for part in told["parts"]] == [[n, n + 1] for n in range(5)]


def test_a_directory_merges_what_its_parts_hold_and_says_what_they_do_not(
    capsys: pytest.CaptureFixture[str], files: Path
) -> None:
    for shards in ("0:2", "1:4", "3:4"):
        assert command(capsys, *FLAGS, "--shards", shards, "--run-dir", "one").code == 0
    assert command(capsys, *FLAGS, "--shards", "0:1", "--run-dir", "other").code == 0
    Path("one/parts/000006-000008.npz").unlink()  # that of a task that was killed before it wrote it
    merged = command(capsys, "merge", "one", "other", "-o", "votes.npz")
    assert merged.code == 2
    assert "lack the instances 0 to 1 of the run" in merged.err
    merged = command(capsys, "merge", "one", "other", "-o", "votes.npz", "--incomplete")
    assert merged.code == 0, merged.err
    assert "Left out: the instances 0 to 1 of one, which are done" in merged.err
    assert "`mithridate train` with --shards 0:1 writes that" in merged.err
    assert Votes.load("votes.npz").instances == 6 + 2
    assert command(capsys, *FLAGS, "--shards", "0:1", "--run-dir", "one").code == 0
    merged = command(capsys, "merge", "one", "other", "-o", "votes.npz", "--force", "--json")
    assert (merged.code, merged.err) == (0, "")
    assert Votes.load("votes.npz").instances == 8 + 2
    Path("one/run.json").unlink()  # only the parts were brought back
    again = command(capsys, "merge", "one", "other", "-o", "again.npz")
    assert (again.code, again.err) == (0, "")
    assert Votes.load("again.npz").equals(Votes.load("votes.npz"))
    told = command(capsys, "certify", "other")
    assert told.code == 2
    assert "put all into one file (mithridate merge), or certify one (other/parts/000000-000002.npz)" in told.err


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5)), min_size=1, max_size=7))
def test_of_parts_that_overlap_those_that_hold_most_are_taken(parts: list[tuple[int, int]]) -> None:
    sources = [_Source(Path("x"), (), size, ("run",), {"run": ((first, first + size),)}) for first, size in parts]
    taken = _without_overlaps(sources)

    def apart(some: Sequence[_Source]) -> bool:
        return sum(source.instances for source in some) == len(_instances(some))

    subsets = [some for size in range(len(sources) + 1) for some in itertools.combinations(sources, size)]
    assert apart(taken)
    assert len(_instances(taken)) == max(len(_instances(some)) for some in subsets if apart(some))


def test_votes_of_the_whole_run_are_only_promised_where_they_are(
    capsys: pytest.CaptureFixture[str], files: Path
) -> None:
    assert command(capsys, *FLAGS, "--shards", "0:4").code == 0
    shard = Path("run/shards/000000-000002.npz")
    shard.write_bytes(shard.read_bytes()[:100])
    last = command(capsys, *FLAGS, "--shards", "4:")
    assert last.code == 0, last.err
    assert f"not all can be read. Next, which trains those again: mithridate {' '.join(FLAGS)}\n" in last.out
    assert command(capsys, *FLAGS).code == 0
    assert same_votes(Votes.load("run/votes.npz"), undisturbed(Path("run")))


def test_shards_that_are_done_are_named_where_they_are_handed_out(
    capsys: pytest.CaptureFixture[str], files: Path
) -> None:
    assert command(capsys, *FLAGS, "--shards", "0:2").code == 0
    assert "Done already in run: shards 0 to 1. Copy" in command(capsys, "split", "run", "--into", "2", "-o", "a").out
    told = json.loads(command(capsys, "split", "run", "--into", "2", "-o", "b", "--json").out)
    assert told["done_shards"] == [0, 1]
    shutil.rmtree("run/shards")
    assert "Done already" not in command(capsys, "split", "run", "--into", "2", "-o", "c").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shards", "0:6"], "it has 5, so choose within 0:5"),
        (["--shards", "3:3"], "no shards 3:3"),
        (["--shards", "a:b"], "Expected --shards as A:B"),
        (["--shards", "0:1", "--prepare"], "--prepare trains nothing"),
        (["--prep"], "there is no flag --prep; did you mean --prepare?"),
        (["--shards=-1:3"], "Expected --shards as A:B"),
        (["--shards", "-1:3"], "--shards: expected one argument, after a = if it starts with -"),
    ],
)
def test_bad_flags_are_refused_in_a_sentence(
    capsys: pytest.CaptureFixture[str], files: Path, words: list[str], message: str
) -> None:
    outcome = command(capsys, *FLAGS, *words)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--into", "6", "-o", "parts"], "5 shards, which are too few for 6"),
        (["run", "--into", "0", "-o", "parts"], "into"),
        (["nowhere", "--into", "2", "-o", "parts"], "Give the directory of a run"),
        (["run", "--into", "2", "-o", "train.npz"], "train.npz"),
    ],
)
def test_what_cannot_be_split_is_refused(
    capsys: pytest.CaptureFixture[str], files: Path, words: list[str], message: str
) -> None:
    assert command(capsys, *FLAGS, "--prepare").code == 0
    outcome = command(capsys, "split", *words)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
