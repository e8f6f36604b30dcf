"""`mithridate update`: equal to training from scratch, bit for bit; whole or not at all; and what it says."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cli import run

from mithridate import ArtifactError, ConfigError, SampledGaussian, Votes, update, updating
from mithridate._io.files import exchange, recover
from mithridate.cli import main
from mithridate.core.mechanism import Mechanism
from mithridate.defences.bagging import Bagged
from mithridate.training.earlier_models import EarlierModels
from mithridate.training.engine import Engine

Rows = dict[str, Any]
LINEAR = ("--model", "linear", "--steps", "1", "--batch-size", "4", "--features", "unit-norm")
METHODS = {
    "nearest-neighbours": ("--neighbours", "7,3", "--leads", "3"),
    "kernel-vote": ("--width", "0.2"),
    "dpa": ("--partitions", "6", "--in-flight", "2", *LINEAR),
    "finite-aggregation": ("--partitions", "3", "--spread", "2", *LINEAR),
    "run-off-election": ("--partitions", "6", *LINEAR),
    "run-off-finite-aggregation": ("--partitions", "3", "--spread", "2", *LINEAR),
}


def drawn(random: np.random.Generator, count: int, *, units: bool) -> Rows:
    """Few different inputs, so that there are copies, and examples at equal distances."""
    rows: Rows = {"x": random.integers(-1, 2, (count, 3)).astype(np.float32), "y": random.integers(0, 3, count)}
    return {**rows, "unit": np.array([f"u{each}" for each in random.integers(0, 12, count)])} if units else rows


def some(rows: Rows, chosen: Any) -> Rows:
    return {name: values[chosen] for name, values in rows.items()}


def both(one: Rows, more: Rows) -> Rows:
    return {name: np.concatenate([one[name], more[name]]) for name in one}


def without(rows: Rows, gone: Rows) -> Rows:
    """The slow and obvious way: for each row that goes, the first that is left of its kind."""
    there = [repr([np.asarray(cell).tolist() for cell in row]) for row in zip(*rows.values(), strict=True)]
    places = list(range(len(there)))
    for row in zip(*gone.values(), strict=True):
        wanted = repr([np.asarray(cell).tolist() for cell in row])
        places.remove(next(place for place in places if there[place] == wanted))
    return some(rows, np.array(places))


def trained(folder: Path, name: str, rows: Rows, method: str, *flags: str) -> Path:
    """A run by the command, on a file of its own."""
    np.savez(folder / f"{name}.npz", **rows)
    unit = ("--unit", "unit", "--num-units", "12") if "unit" in rows else ("--num-train", "60")
    files = ("--train", str(folder / f"{name}.npz"), "--test", str(folder / "test.npz"))
    words = ("train", *files, "--method", method, "--run-dir", str(folder / name), "--classes", "3", *unit)
    assert main([*words, "--device", "cpu", *METHODS.get(method, ()), *flags]) == 0
    return folder / name


def assert_same(one: Path, other: Path) -> None:
    """The same votes, with all that is said of them."""
    with np.load(one / "votes.npz") as first, np.load(other / "votes.npz") as second:
        assert set(first.files) == set(second.files)
        for name in first.files:
            assert first[name].dtype == second[name].dtype
            np.testing.assert_array_equal(first[name], second[name], err_msg=name)
    assert (one / "run.json").read_bytes() == (other / "run.json").read_bytes()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    test = drawn(np.random.default_rng(99), 20, units=False)
    np.savez("test.npz", **test)
    return tmp_path


# --- equal to training from scratch -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "units"),
    [*((method, False) for method in METHODS), *((method, True) for method in ("nearest-neighbours", "kernel-vote"))],
)
def test_an_update_gives_what_training_from_scratch_gives(folder: Path, method: str, units: bool) -> None:
    random = np.random.default_rng(len(method) + units)
    rows = drawn(random, 60, units=units)
    place = trained(folder, "run", rows, method)
    for step in range(2):
        new = drawn(random, int(random.integers(1, 6)), units=units)
        gone = some(rows, random.choice(len(rows["y"]), random.integers(1, 6), replace=False))
        np.savez("new.npz", **new)
        np.savez("gone.npz", **gone)
        rows = both(without(rows, gone), new)
        done = update(place, folder / "new.npz", remove=folder / "gone.npz")
        assert (done.added, done.removed, done.examples) == (len(new["y"]), len(gone["y"]), len(rows["y"]))
        assert_same(place, trained(folder, f"scratch{step}", rows, method))
    history = json.loads((place / "updates.json").read_text())["updates"]
    assert [each["examples"] for each in history][-1] == len(rows["y"])
    assert len(history) == 2


def test_only_models_of_parts_that_changed_are_trained(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = drawn(np.random.default_rng(1), 60, units=False)
    place, asked = trained(folder, "run", rows, "dpa"), list[int]()
    train: Any = Engine.train

    def counting(self: Engine, seeds: Any, instances: Any, *more: Any) -> Any:
        asked.extend(instances)
        return train(self, seeds, instances, *more)

    monkeypatch.setattr(Engine, "train", counting)
    np.savez("new.npz", **some(rows, slice(0, 1)))
    done = update(place, folder / "new.npz")
    assert (len(asked), done.models, done.retrained, done.trained_before) == (1, 6, 1, 0)
    assert_same(place, trained(folder, "scratch", both(rows, some(rows, slice(0, 1))), "dpa"))


def test_without_kept_models_the_votes_before_are_trained_out(folder: Path) -> None:
    rows = drawn(np.random.default_rng(2), 60, units=False)
    place = trained(folder, "run", rows, "dpa", "--no-keep-models")
    np.savez("new.npz", **some(rows, slice(0, 1)))
    done = update(place, folder / "new.npz")
    assert (done.retrained, done.trained_before) == (1, 1)
    assert_same(place, trained(folder, "scratch", both(rows, some(rows, slice(0, 1))), "dpa", "--no-keep-models"))


def test_where_models_are_trained_in_groups_touched_groups_are_trained(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, but here."""
    rows = drawn(np.random.default_rng(16), 60, units=False)
    place = trained(folder, "run", rows, "dpa")
    may_take: Any = EarlierModels.may_take
    monkeypatch.setattr(EarlierModels, "may_take", lambda self, group, alone: may_take(self, group, alone=False))
    np.savez("new.npz", **some(rows, slice(0, 1)))
    assert update(place, folder / "new.npz").retrained == 2  # in flight
    assert_same(place, trained(folder, "scratch", both(rows, some(rows, slice(0, 1))), "dpa"))


@pytest.mark.more
def test_learners_of_the_earlier_parts_are_trained_once_more(folder: Path) -> None:
    rows = drawn(np.random.default_rng(15), 60, units=False)
    flags = ("--num-train", "60", "--classes", "3", "--partitions", "6", "--learner", "extra-trees", "--device", "cpu")
    for name, data in (("run", rows), ("scratch", both(rows, some(rows, slice(0, 1))))):
        np.savez(f"{name}.npz", **data)
        words = ["train", "--train", f"{name}.npz", "--test", "test.npz", "--method", "dpa", "--run-dir", name]
        assert main([*words, *flags]) == 0
    np.savez("new.npz", **some(rows, slice(0, 1)))
    done = update("run", "new.npz")
    assert (done.retrained, done.trained_before) == (1, 1)
    assert_same(Path("run"), Path("scratch"))


def test_predictions_are_those_of_the_new_models(folder: Path) -> None:
    rows = drawn(np.random.default_rng(3), 60, units=False)
    place = trained(folder, "run", rows, "dpa")
    np.savez("new.npz", **some(rows, slice(0, 3)))
    update(place, folder / "new.npz")
    scratch = trained(folder, "scratch", both(rows, some(rows, slice(0, 3))), "dpa")
    from mithridate import predict

    asked = drawn(np.random.default_rng(4), 30, units=False)["x"]
    first, second = predict(place, asked), predict(scratch, asked)
    np.testing.assert_array_equal(first.counts, second.counts)


def test_the_run_directory_says_how_to_train_it_from_scratch(folder: Path) -> None:
    rows = drawn(np.random.default_rng(5), 60, units=True)
    place = trained(folder, "run", rows, "nearest-neighbours")
    np.savez("new.npz", **drawn(np.random.default_rng(6), 4, units=True))
    update(place, folder / "new.npz")
    (folder / "run.npz").unlink()  # the run keeps the examples now
    assert main(["train", str(place / "project.toml"), "--run-dir", str(folder / "again")]) == 0
    assert_same(place, folder / "again")


def test_what_is_held_out_stays_held_out(folder: Path) -> None:
    random = np.random.default_rng(7)
    rows, new = ({**drawn(random, n, units=False), "x": random.normal(size=(n, 3))} for n in (200, 40))
    np.savez("train.npz", **rows)
    np.savez("new.npz", **new)
    np.savez("all.npz", **both(rows, new))
    words = ["--method", "kernel-vote", "--width", "0.2", "--classes", "3", "--num-train", "200"]
    assert main(["train", "--train", "train.npz", "--run-dir", "run", *words]) == 0
    assert main(["train", "--train", "all.npz", "--run-dir", "whole", *words]) == 0
    done = update("run", "new.npz")
    votes, whole = Votes.load("run/votes.npz"), Votes.load("whole/votes.npz")
    assert done.added + done.held_out == 40
    assert done.held_out > 0
    assert votes.training == whole.training
    assert len(votes.counts) == len(whole.counts) - done.held_out
    np.testing.assert_array_equal(votes.counts, whole.counts[: len(votes.counts)])
    back = update("run", remove="new.npz")  # those that are held out can go, and change nothing
    assert (back.removed, back.held_out, back.examples) == (done.added, done.held_out, done.examples - done.added)


def test_constants_follow_the_size_as_in_training_from_scratch(folder: Path) -> None:
    random = np.random.default_rng(8)
    rows, new = drawn(random, 60, units=False), drawn(random, 300, units=False)
    np.savez("run.npz", **rows)
    np.savez("new.npz", **new)
    np.savez("all.npz", **both(rows, new))
    for name in ("run", "all"):
        words = ["--method", "nearest-neighbours", "--test", "test.npz", "--classes", "3"]
        assert main(["train", "--train", f"{name}.npz", "--run-dir", name, *words]) == 0
    done = update("run", "new.npz")
    assert done.constants_changed
    assert "num_train" in done.notes[-1]
    assert_same(Path("run"), Path("all"))


# --- sources ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "method"),
    [
        ("gone.txt", "u3\nu5\n", "dpa"),
        ("gone.txt", "unit\nu3\nu5", "kernel-vote"),
        ("gone.csv", "unit\nu3\nu5\n", "kernel-vote"),
        ("gone.csv", "u3\nu5\n", "kernel-vote"),
    ],
)
def test_sources_go_by_name(folder: Path, name: str, text: str, method: str) -> None:
    rows = drawn(np.random.default_rng(9), 60, units=True)
    place = trained(folder, "run", rows, method)
    Path(name).write_text(text)
    np.savez("new.npz", **some(rows, slice(0, 2)))
    done = update(place, "new.npz", remove=name)
    gone = np.isin(rows["unit"], ["u3", "u5"])
    assert done.removed == gone.sum()
    assert {name for name, each in done.sources.items() if each["removed"]} == {"u3", "u5"}
    assert sum(each["added"] for each in done.sources.values()) == 2
    assert_same(place, trained(folder, "scratch", both(some(rows, ~gone), some(rows, slice(0, 2))), method))


# --- the command ------------------------------------------------------------------------------------------------------


def table(rows: Rows) -> str:
    lines = [f"{a},{b},{'abc'[y]}" for (a, b, _), y in zip(rows["x"].tolist(), rows["y"].tolist(), strict=True)]
    return "\n".join(["height,width,kind", *lines]) + "\n"


@pytest.fixture
def csv_run(folder: Path) -> Path:
    """A run on a table, by init and train."""
    rows = drawn(np.random.default_rng(10), 80, units=False)
    Path("train.csv").write_text(table(rows))
    Path("test.csv").write_text(table(drawn(np.random.default_rng(11), 20, units=False)))
    assert main(["init", "train.csv", "--label", "kind", "--test", "test.csv", "-o", "flowers.toml"]) == 0
    assert main(["train", "flowers.toml", "--method", "nearest-neighbours", "--num-train", "80"]) == 0
    return Path("runs/flowers")


def test_the_command_says_what_the_batch_did(csv_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = Votes.load(csv_run / "votes.npz")
    new = drawn(np.random.default_rng(12), 30, units=False)
    Path("new.csv").write_text(table({**new, "y": np.zeros(30, dtype=np.int64)}))  # of one class alone
    outcome = run(capsys, "update", csv_run, "new.csv", "--json")
    assert outcome.code == 0, outcome.err
    said, after = json.loads(outcome.out), Votes.load(csv_run / "votes.npz")
    from mithridate import certify

    old, now = certify(before), certify(after)
    moved = np.flatnonzero(old.label != now.label)
    assert [each["input"] for each in said["predictions_changed"]] == moved.tolist()
    assert moved.size
    assert all(each["from"] != each["to"] == "abc"[now.label[each["input"]]] for each in said["predictions_changed"])
    assert (said["radii_shrank"], said["radii_grew"]) == (
        (now.radius < old.radius).sum(), (now.radius > old.radius).sum(),
    )  # fmt: skip
    assert (said["added"], said["removed"], said["retrained"], said["examples"]) == (30, 0, 0, 110)
    assert said["sources"] == {}
    text = run(capsys, "update", csv_run, "--remove", "new.csv")
    assert text.code == 0, text.err
    assert "0 examples added and 30 removed; there are 80 now." in text.out
    assert f"{len(moved)} predictions of 20 changed." in text.out
    np.testing.assert_array_equal(Votes.load(csv_run / "votes.npz").counts, before.counts)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (lambda: [], "There is nothing to update"),
    "no column": (lambda: "height,kind\n1,a\n", "width"),
    "no label": (lambda: "height,width\n1,1\n", "kind"),
    "new class": (lambda: "height,width,kind\n1,1,d\n", "not among the classes"),
    "missing label": (lambda: "height,width,kind\n1,1,\n", "missing"),
    "empty": (lambda: "height,width,kind\n", "no rows"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("flag", [(), ("--remove",)])
def test_bad_files_are_refused_and_the_run_stays(
    csv_run: Path, capsys: pytest.CaptureFixture[str], case: str, flag: tuple[str, ...]
) -> None:
    text, said = REFUSED[case]
    content = text()
    before = contents_of(csv_run)
    Path("new.csv").write_text(content or "")
    outcome = run(capsys, "update", csv_run, *((*flag, "new.csv") if content else ()))
    assert outcome.code == 2
    assert said in outcome.err
    assert "Traceback" not in outcome.err
    assert contents_of(csv_run) == before


def contents_of(place: Path) -> dict[str, bytes]:
    found = {str(each.relative_to(place)): each.read_bytes() for each in sorted(place.rglob("*")) if each.is_file()}
    return {name: content for name, content in found.items() if name != "lock"}


def test_a_row_that_is_not_there_is_named(csv_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = Path("train.csv").read_text().splitlines()
    copies = lines.count(lines[1])
    Path("gone.csv").write_text("\n".join([lines[0], *[lines[1]] * (copies + 1)]) + "\n")
    outcome = run(capsys, "update", csv_run, "--remove", "gone.csv")
    assert outcome.code == 2
    assert f"Line {copies + 2} of what is to be removed" in outcome.err
    Path("gone.csv").write_text("height,width,kind\n0.25,1,a\n")
    outcome = run(capsys, "update", csv_run, "--remove", "gone.csv")
    assert outcome.code == 2
    assert "Line 2 of what is to be removed is not in the training data" in outcome.err
    Path("gone.txt").write_text("a\n")
    assert "certifies single examples" in run(capsys, "update", csv_run, "--remove", "gone.txt").err


def test_changed_files_and_other_runs_are_refused(csv_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("new.csv").write_text("height,width,kind\n1,1,a\n")
    whole = Path("train.csv").read_text()
    Path("train.csv").write_text(whole + "1,1,a\n")
    assert "is not what the run was trained on" in run(capsys, "update", csv_run, "new.csv").err
    Path("train.csv").write_text(whole)
    test = Path("test.csv").read_text()
    Path("test.csv").write_text(test + "0,1,a\n")
    assert "is not what the run voted on" in run(capsys, "update", csv_run, "new.csv").err
    Path("test.csv").write_text(test)
    (csv_run / "project.toml").rename("project.toml")
    assert "has no project.toml" in run(capsys, "update", csv_run, "new.csv").err
    assert run(capsys, "update", "nowhere", "new.csv").code == 2


def test_removing_all_of_two_classes_is_refused(csv_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = Path("train.csv").read_text().splitlines()
    Path("gone.csv").write_text("\n".join([lines[0], *(line for line in lines if line[-1] in "bc")]) + "\n")
    assert "training needs two" in run(capsys, "update", csv_run, "--remove", "gone.csv").err


@pytest.mark.parametrize(
    ("method", "mechanism"), [("bagging", Bagged(num_train=9, draws=2)), ("fdp", SampledGaussian(3.0, 0.1, 10))]
)
def test_random_methods_are_refused(folder: Path, method: str, mechanism: Mechanism) -> None:
    place = folder / "run"
    place.mkdir()
    (place / "run.json").write_text(json.dumps({"recipe": {"defence": {"name": method}}}))
    Votes.from_counts([[3, 0]], mechanism=mechanism).save(place / "votes.npz")
    with pytest.raises(ConfigError, match="a random draw that depends on all examples"):
        update(place, "new.csv")


def test_parts_on_noisy_inputs_are_refused(folder: Path) -> None:
    np.savez("run.npz", **drawn(np.random.default_rng(3), 60, units=False))
    words = ["--method", "dpa", "--partitions", "3", "--model", "linear", "--input-noise", "0.1", "--noise-draws", "3"]
    assert main(["train", "--train", "run.npz", "--test", "run.npz", "--run-dir", "run", *words]) == 0
    with pytest.raises(ConfigError, match="draws of noise, which would all be drawn anew"):
        update("run", "run.npz")


def test_classes_that_are_counted_neither_come_nor_go(folder: Path) -> None:
    rows = drawn(np.random.default_rng(13), 60, units=False)
    np.savez("run.npz", **rows)
    words = ["--test", "test.npz", "--method", "kernel-vote", "--run-dir", "run", "--num-train", "60"]
    assert main(["train", "--train", "run.npz", *words]) == 0
    np.savez("new.npz", x=rows["x"][:1], y=np.array([3]))
    with pytest.raises(ConfigError, match="have the label 3, and those of the run go up to 2"):
        update("run", "new.npz")
    np.savez("gone.npz", **some(rows, rows["y"] == 2))
    with pytest.raises(ConfigError, match="No example of the last class, 2, would be left"):
        update("run", remove="gone.npz")


# --- whole or not at all ----------------------------------------------------------------------------------------------


def test_an_update_that_fails_late_leaves_the_old_run(csv_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("new.csv").write_text("height,width,kind\n1,1,a\n")
    before = contents_of(csv_run)
    full = OSError(28, "No space left on device")
    for name, failure, said in (
        ("_told", KeyboardInterrupt(), KeyboardInterrupt),
        ("_write_beside", full, ArtifactError),
        ("_sync", full, ArtifactError),
        ("exchange", KeyboardInterrupt(), KeyboardInterrupt),
    ):
        with monkeypatch.context() as patch:

            def fails(*_: Any, error: BaseException = failure) -> None:
                raise error

            patch.setattr(updating, name, fails)
            with pytest.raises(said):
                update(csv_run, "new.csv")
        assert contents_of(csv_run) == before
        assert [each.name for each in csv_run.parent.iterdir()] == [csv_run.name]
    done = update(csv_run, "new.csv")
    assert done.examples == 81
    assert [each.name for each in csv_run.parent.iterdir()] == [csv_run.name]


def test_what_others_put_beside_the_votes_stays(csv_run: Path) -> None:
    (csv_run / "notes").mkdir()
    (csv_run / "notes" / "mine.txt").write_text("kept")
    Path("new.csv").write_text("height,width,kind\n1,1,a\n")
    update(csv_run, "new.csv")
    assert (csv_run / "notes" / "mine.txt").read_text() == "kept"


def test_two_updates_at_a_time_are_refused(csv_run: Path) -> None:
    from mithridate.training.run_directory import locked

    Path("new.csv").write_text("height,width,kind\n1,1,a\n")
    with locked(csv_run), pytest.raises(ArtifactError, match="Another process works in"):
        update(csv_run, "new.csv")


def test_folders_change_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for each in (one, other):
        each.mkdir()
        (each / "name").write_text(each.name)
    exchange(one, other)
    assert ((one / "name").read_text(), (other / "name").read_text()) == ("other", "one")
    monkeypatch.setattr("mithridate._io.files._exchanged_at_once", lambda *_: False)
    exchange(one, other)
    assert ((one / "name").read_text(), (other / "name").read_text()) == ("one", "other")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["one", "other"]
    for killed_after in (1, 2):  # in as many renames
        exchange(one, other)
        (other if killed_after == 1 else one).rename(tmp_path / "one.before")
        recover(one, other)
        assert sorted(each.name for each in tmp_path.iterdir()) == ["one", "other"]
        exchange(one, other)


@pytest.mark.more
def test_killed_at_any_moment_the_run_is_the_old_one_or_the_new_one(csv_run: Path) -> None:
    Path("new.csv").write_text("height,width,kind\n1,1,a\n")
    random, program = np.random.default_rng(14), [sys.executable, "-m", "mithridate", "update", str(csv_run), "new.csv"]
    for _ in range(6):
        before = contents_of(csv_run)
        process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))
        try:
            process.wait(float(random.uniform(0.2, 1.5)))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        now = contents_of(csv_run)
        if now != before:
            examples = json.loads((csv_run / "updates.json").read_text())["updates"][-1]["examples"]
            assert json.loads(now["run.json"])["training"]["examples"] == examples
        assert main(["certify", str(csv_run), "--json"]) == 0
        (csv_run / "certificate.json").unlink()
    assert update(csv_run, "new.csv").added == 1


def test_what_the_user_put_there_stays_and_what_is_of_the_old_votes_is_renamed(folder: Path) -> None:
    rows = drawn(np.random.default_rng(21), 60, units=False)
    np.savez("run.npz", **rows)
    words = ["--train", "run.npz", "--test", "run.npz", "--method", "dpa", "--partitions", "6", "--run-dir", "run"]
    assert main(["train", *words, *LINEAR]) == 0
    kept = {"data/mine.npz": "1", "parts/notes.txt": "2", "shards/mine.txt": "3", "x.tmp": "4", "certificate.json": "5"}
    for name, text in kept.items():
        (folder / "run" / name).parent.mkdir(exist_ok=True)
        (folder / "run" / name).write_text(text)
    np.savez("gone.npz", **some(rows, [0]))
    update("run", remove="gone.npz")
    for name, text in kept.items():
        now = name.replace("certificate.json", "certificate.before-update.json")
        assert (folder / "run" / now).read_text() == text
    assert not (folder / "run" / "certificate.json").exists()


def test_a_folder_in_the_way_of_the_examples_is_refused(folder: Path) -> None:
    np.savez("run.npz", **drawn(np.random.default_rng(22), 60, units=False))
    words = ["--train", "run.npz", "--test", "run.npz", "--method", "kernel-vote", "--run-dir", "run"]
    assert main(["train", *words]) == 0
    (folder / "run" / "updated-data").mkdir()
    with pytest.raises(ConfigError, match="which is there already; rename it"):
        update("run", "run.npz")


def test_a_class_that_was_read_off_and_goes_is_refused(folder: Path) -> None:
    lines = [f"{number},{('ant', 'bee', 'cow')[number % 3]}" for number in range(60)]
    Path("t.csv").write_text("\n".join(["size,kind", *lines]) + "\n")
    Path("bees.csv").write_text("\n".join(["size,kind", *(line for line in lines if "bee" in line)]) + "\n")
    Path("p.toml").write_text(
        '[data]\ntrain = "t.csv"\ntest = "t.csv"\nkind = "table"\nlabel = "kind"\n'
        'columns = [{ name = "size", kind = "number", low = 0.0, high = 60.0 }]\n'
    )
    assert main(["train", "p.toml", "--method", "nearest-neighbours", "--neighbours", "3", "--run-dir", "run"]) == 0
    with pytest.raises(ConfigError, match="No example of the class 'bee' would be left"):
        update("run", remove="bees.csv")


def test_what_is_neither_trained_on_nor_held_out_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{number},{('ant', 'bee')[number % 2]},v{number % 40}" for number in range(200)]
    Path("t.csv").write_text("\n".join(["size,kind,vendor", *lines]) + "\n")
    Path("p.toml").write_text(
        '[data]\ntrain = "t.csv"\nholdout = 0.3\nkind = "table"\nlabel = "kind"\nclasses = ["ant", "bee"]\n'
        'unit = "vendor"\ncolumns = [{ name = "size", kind = "number", low = 0.0, high = 999.0 }]\n'
    )
    assert main(["train", "p.toml", "--method", "nearest-neighbours", "--neighbours", "3", "--run-dir", "run"]) == 0
    capsys.readouterr()
    for number in range(20):  # 3 of 10 such names are held out by their hash
        Path("gone.txt").write_text(f"nobody{number}\n")
        assert "No training example is of the vendor" in run(capsys, "update", "run", "--remove", "gone.txt").err
        Path("gone.csv").write_text(f"size,kind,vendor\n{500 + number},ant,v{number}\n")
        assert "is not in the training data" in run(capsys, "update", "run", "--remove", "gone.csv").err
    Path("gone.txt").write_text("\n".join(f"v{number}" for number in range(30)) + "\n")
    said = json.loads(run(capsys, "update", "run", "--remove", "gone.txt", "--json").out)
    assert said["removed"] + said["held_out"] == 150
    assert said["held_out"] > 0
