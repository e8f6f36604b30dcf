"""`mithridate train`: flags, project files, what is printed, interruptions, and one sentence for bad input."""

import io
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cli import Outcome, run
from training_doubles import SEED, TEST, TRAIN, FakeEngine, make_config, same_votes

from mithridate import SampledGaussian, Subsampled, TrainConfig, Votes, train
from mithridate import _progress as command
from mithridate.cli import main
from mithridate.core.conditions import Size
from mithridate.training import task

RECIPE = [
    "--instances", "10", "--noise-multiplier", "2", "--sample-rate", "0.2", "--steps", "6", "--max-grad-norm", "1",
    "--learning-rate", "0.5", "--num-train", "60", "--classes", "3", "--score-bins", "8",
]  # fmt: skip


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeEngine]]:
    FakeEngine.reset()
    monkeypatch.setattr(task, "Engine", FakeEngine)
    yield FakeEngine
    FakeEngine.reset()


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data, which is also the current one."""
    np.savez(tmp_path / "train.npz", x=TRAIN[0], y=TRAIN[1])
    np.savez(tmp_path / "test.npz", x=TEST[0], y=TEST[1])
    np.savez(tmp_path / "inputs.npz", x=TEST[0])
    (tmp_path / "root").write_text(SEED.hex() + "\n")
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 and no more")
    monkeypatch.chdir(tmp_path)
    return tmp_path


TRAIN_FLAGS = ["train", "--train", "train.npz", "--test", "test.npz", "--model", "linear", *RECIPE]


def train_json(capsys: pytest.CaptureFixture[str], *flags: Any) -> dict[str, Any]:
    outcome = run(capsys, *TRAIN_FLAGS, *flags, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("\n") == 1
    return json.loads(outcome.out, parse_constant=pytest.fail)


# --- what comes out -------------------------------------------------------------------------------------------------


def test_the_command_does_what_the_function_does(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    flags = ["--run-dir", "runs/mine", "--root-seed", "root", "--device", "cpu", "--in-flight", "4"]
    content = train_json(capsys, *flags)
    votes = Votes.load("runs/mine/votes.npz")
    options: dict[str, Any] = {"root_seed": SEED, "device": "cpu", "in_flight": 4}
    assert same_votes(votes, train(TRAIN, TEST, model="linear", config=make_config(), **options))
    assert (content["votes"], content["run_dir"]) == ("runs/mine/votes.npz", "runs/mine")
    assert (content["instances"], content["examples"]) == (10, 20)
    assert content["run_id"] == votes.run_ids[0]
    assert content["mechanism"] == SampledGaussian(2.0, 0.2, 6).to_dict()
    assert content["accuracy"] == float(np.mean(votes.counts.argmax(axis=1) == TEST[1]))
    assert content["assumptions"] == list(votes.assumptions)
    assert "given by the caller" in content["assumptions"][0]
    assert content["model_steps_per_s"] > 0
    assert content["seconds"] > 0
    assert content["recipe"] == votes.recipe


def test_people_are_told_how_to_certify(fake: Any, capsys: pytest.CaptureFixture[str], files: Path) -> None:
    outcome = run(capsys, *TRAIN_FLAGS, "--run-dir", "my runs")
    assert outcome.code == 0, outcome.err
    assert "Written to my runs/votes.npz; certify it with: mithridate certify 'my runs'\n" in outcome.out
    assert "The majority is correct on" in outcome.out
    assert main(["certify", "my runs", "--json"]) == 0
    again = run(capsys, *TRAIN_FLAGS, "--run-dir", "my runs")
    assert "finished before" in again.out


def test_the_run_directory_has_a_default(fake: Any, capsys: pytest.CaptureFixture[str], files: Path) -> None:
    assert train_json(capsys)["run_dir"] == "run"
    assert Votes.load("run/votes.npz").instances == 10
    assert stat.S_IMODE(Path("run/seed").stat().st_mode) == 0o600


def test_true_labels_are_optional(fake: Any, capsys: pytest.CaptureFixture[str], files: Path) -> None:
    flags = [flag if flag != "test.npz" else "inputs.npz" for flag in TRAIN_FLAGS]
    outcome = run(capsys, *flags, "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["accuracy"] is None
    assert Votes.load("run/votes.npz").labels is None


OTHER_VALUES: dict[str, tuple[list[str], Any]] = {
    "optimizer": (["adam"], "adam"),
    "momentum": (["0.9"], 0.9),
    "weight_decay": (["0.01"], 0.01),
    "betas": (["0.5", "0.75"], (0.5, 0.75)),
    "schedule": (["cosine"], "cosine"),
    "average_iterates": ([], True),
    "keep": (["30/60"], 0.5),
    "divisor": (["7"], 7.0),
    "score_bins": (["16"], 16),
    "instances": (["3"], 3),
    "noise_multiplier": (["1.5"], 1.5),
    "sample_rate": (["0.1"], 0.1),
    "steps": (["2"], 2),
    "max_grad_norm": (["0.5"], 0.5),
    "learning_rate": (["0.125"], 0.125),
    "num_train": (["61"], 61),
    "classes": (["4"], 4),
    "loss_weights": (["0.5", "1", "2"], (0.5, 1.0, 2.0)),
}


# Those have tests of their own.
APART = ("pixel_mean", "pixel_std", "unit_rows")


@pytest.mark.parametrize("name", [field.name for field in fields(TrainConfig) if field.name not in APART])
def test_every_field_of_the_configuration_is_a_flag(
    fake: Any, capsys: pytest.CaptureFixture[str], files: Path, name: str
) -> None:
    text, value = OTHER_VALUES[name]
    content = train_json(capsys, f"--{name.replace('_', '-')}", *text)
    found = TrainConfig.from_dict(content["recipe"]["config"])
    assert getattr(found, name) == value
    if name == "keep":
        assert Votes.load("run/votes.npz").mechanism == Subsampled(0.5, SampledGaussian(2.0, 0.2, 6))


def test_the_examples_of_a_unit_are_a_flag(fake: Any, capsys: pytest.CaptureFixture[str], files: Path) -> None:
    with np.load("train.npz") as arrays:
        np.savez("train.npz", **arrays, unit=np.arange(len(arrays["x"])) % 20)
    flags = [flag for flag in TRAIN_FLAGS if flag not in ("--num-train", "60")]
    outcome = run(capsys, *flags, "--num-units", "20", "--unit-rows", "4", "--json")
    assert outcome.code == 0, outcome.err
    content = json.loads(outcome.out)
    assert TrainConfig.from_dict(content["recipe"]["config"]).unit_rows == 4
    assert content["unit"] == {"name": "unit", "count": 20}


def test_features_by_name(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    content = train_json(capsys, "--features", "unit-norm", "--device", "cpu", "--keep-models")
    assert content["recipe"]["features"]["name"] == "unit-norm"
    outcome = run(capsys, "predict", "run", "test.npz", "--out", "new.npz", "--device", "cpu")
    assert outcome.code == 0, outcome.err
    assert Votes.load("new.npz").equals(Votes.load("run/votes.npz"))


def test_pixels_are_scaled_by_flags(fake: Any, capsys: pytest.CaptureFixture[str], files: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (60, 3, 8, 8)).astype(np.uint8)
    np.savez("images.npz", x=x, y=TRAIN[1])
    flags = [flag if flag not in ("train.npz", "test.npz") else "images.npz" for flag in TRAIN_FLAGS]
    scaling = ["--pixel-mean", "0.1", "0.2", "0.3", "--pixel-std", "0.5"]
    outcome = run(capsys, *flags, *scaling, "--json")
    assert outcome.code == 0, outcome.err
    config = json.loads(outcome.out)["recipe"]["config"]
    assert (config["pixel_mean"], config["pixel_std"]) == ([0.1, 0.2, 0.3], [0.5])


def test_flags_of_how_it_runs(fake: Any, capsys: pytest.CaptureFixture[str], files: Path) -> None:
    content = train_json(capsys, "--in-flight", "5", "--precision", "float32", "--device", "cpu", "--keep-models")
    assert fake.trained == [range(0, 5), range(5, 10)]
    assert content["recipe"]["precision"] == "float32"
    assert len(list(Path("run/models").iterdir())) == 2


def test_constants_read_off_the_data_are_noted(fake: Any, capsys: pytest.CaptureFixture[str], files: Path) -> None:
    place = TRAIN_FLAGS.index("--num-train")
    flags = TRAIN_FLAGS[:place] + TRAIN_FLAGS[place + 4 :]
    outcome = run(capsys, *flags)
    assert outcome.code == 0, outcome.err
    text = " ".join(outcome.out.split())
    assert Size.of(60).sentence in text
    assert "Condition class-list: classes = 3 was read off" in text
    assert main(["certify", "run/votes.npz"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert Size.of(60).sentence in text
    assert "Condition class-list: classes = 3 was read off" in text


# --- while it runs --------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar_with_speed(
    fake: Any, files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    fake.capacity = 4
    assert main([*TRAIN_FLAGS, "--in-flight", "8"]) == 0
    text = screen.getvalue()
    assert "training" in text
    assert "model-steps/s" in text
    assert "%" in text
    assert "Out of memory with 5 models in flight; going on with 2" in " ".join(text.split())


def test_elsewhere_there_are_plain_lines(
    fake: Any, files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(command.time, "monotonic", lambda: now[0])

    def pass_time(group: range) -> None:
        now[0] += 4.0

    fake.before_group, fake.guess = staticmethod(pass_time), 1
    outcome = run(capsys, *TRAIN_FLAGS)
    assert outcome.code == 0
    lines = outcome.err.splitlines()
    assert len(lines) >= 5
    assert all(line.startswith("mithridate: ") and "\x1b" not in line for line in lines)
    assert any(line.endswith("s left") and "of 60 model-steps" in line for line in lines)


def test_lines_do_not_come_more_often_than_needed() -> None:
    lines: list[str] = []
    now = [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command.time, "monotonic", lambda: now[0])
        patch.setattr(command, "_say", lines.append)
        clock = command.Clock()
        clock.show = command._Lines(clock)
        for step in range(100_001):
            now[0] = step / 1000
            clock(step, 1_000_000)
    assert 9 <= len(lines) <= 11  # a hundred seconds, a tenth of the work
    assert lines[0].startswith("10,")
    assert "1,000 model-steps/s" in lines[0]


def test_the_speed_is_that_of_this_process(
    fake: Any, capsys: pytest.CaptureFixture[str], files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(command.time, "monotonic", lambda: now[0])

    def pass_time(group: range) -> None:
        now[0] += 2.0

    def stop(group: range) -> None:
        if group.start >= 6:
            raise KeyboardInterrupt

    fake.before_group = staticmethod(stop)
    interrupted = run(capsys, *TRAIN_FLAGS, "--json")
    assert interrupted.code == 130
    assert interrupted.out == ""
    *plan, last = interrupted.err.splitlines()
    assert last == "mithridate: interrupted; what is finished is kept in run. The same command goes on from there."
    assert not any(line.startswith("mithridate") for line in plan)
    fake.reset()
    fake.before_group = staticmethod(pass_time)
    content = train_json(capsys)
    assert fake.trained == [range(6, 10)]
    assert (content["model_steps_per_s"], content["seconds"]) == (12, 2)
    assert train_json(capsys)["model_steps_per_s"] is None


INTERRUPTED = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from training_doubles import interrupt_after_a_shard
interrupt_after_a_shard()
from mithridate.cli import main; sys.exit(main())
"""


@pytest.mark.more
def test_control_c_ends_cleanly_and_the_same_command_goes_on(files: Path) -> None:
    arguments = [*TRAIN_FLAGS, "--device", "cpu", "--in-flight", "1", "--steps", "400", "--root-seed", "root"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    outcome = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *arguments], capture_output=True, text=True, env=environment, timeout=600,
        check=False,
    )  # fmt: skip
    assert outcome.returncode == 130, outcome.stderr
    last = "mithridate: interrupted; what is finished is kept in run. The same command goes on from there."
    assert outcome.stderr.splitlines()[-1] == last
    assert "Traceback" not in outcome.stderr
    finished = {path.name: path.read_bytes() for path in files.glob("run/shards/0*.npz")}
    assert len(finished) == 1
    assert not (files / "run" / "votes.npz").exists()
    assert main(arguments) == 0
    assert {name: (files / "run" / "shards" / name).read_bytes() for name in finished} == finished
    whole = train(TRAIN, TEST, model="linear", config=make_config(steps=400), root_seed=SEED, device="cpu", in_flight=1)
    assert same_votes(Votes.load(files / "run" / "votes.npz"), whole)


# --- what is left out ------------------------------------------------------------------------------------------------

SIX = ["--model", "--noise-multiplier", "--sample-rate", "--steps", "--max-grad-norm", "--learning-rate"]


def without(*flags: str) -> list[str]:
    """The flags of a complete run, less some of them and their values."""
    arguments = list(TRAIN_FLAGS)
    for flag in flags:
        place = arguments.index(flag)
        del arguments[place : place + 2]
    return arguments


def test_only_the_training_data_is_required(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    text = refused(run(capsys, *without("--train")))
    assert "--train" in text
    assert "project file" in text
    assert not Path("run").exists()


@pytest.mark.parametrize("flag", SIX)
def test_what_is_left_out_is_chosen_and_what_is_given_is_kept(
    fake: Any, capsys: pytest.CaptureFixture[str], files: Path, flag: str
) -> None:
    outcome = run(capsys, *without(flag), "--json")
    assert outcome.code == 0, outcome.err
    content = json.loads(outcome.out)
    found, wanted = TrainConfig.from_dict(content["recipe"]["config"]), make_config()
    for name in (
        "noise_multiplier",
        "sample_rate",
        "steps",
        "max_grad_norm",
        "learning_rate",
        "instances",
        "score_bins",
    ):
        if name != flag.removeprefix("--").replace("-", "_"):
            assert getattr(found, name) == getattr(wanted, name), name
    assert content["chosen"]["model"] == content["recipe"]["model"] == "linear"
    assert content["chosen"]["config"]["steps"] == found.steps


def test_the_plan_is_printed_before_training_starts(
    fake: Any, capsys: pytest.CaptureFixture[str], files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    fake.before_group = staticmethod(lambda group: seen.append(capsys.readouterr().out))
    assert main(["train", "--train", "train.npz", "--instances", "100", "--device", "cpu"]) == 0
    plan = " ".join(seen[0].split())
    assert "100 instances of linear on unit-norm features" in plan
    assert "Radius that could be reached: up to " in plan


def test_a_recipe_chosen_by_the_size_of_the_data_says_so(
    fake: Any, capsys: pytest.CaptureFixture[str], files: Path
) -> None:
    flags = ["train", "--train", "train.npz", "--test", "test.npz", "--instances", "10", "--device", "cpu", "--json"]
    followed = json.loads(run(capsys, *flags).out)
    assert followed["size"] == Size.of(60).to_dict()
    assert Votes.load("run/votes.npz").size == Size.of(60)
    assert Size.of(60).sentence in followed["assumptions"]
    declared = json.loads(run(capsys, *flags, "--num-train", "60", "--run-dir", "declared").out)
    for content in (declared, train_json(capsys, "--run-dir", "complete")):
        assert content["size"] is None
        assert not any("What was chosen by the number" in sentence for sentence in content["assumptions"])


def test_without_a_test_file_some_examples_are_held_out(
    fake: Any, capsys: pytest.CaptureFixture[str], files: Path
) -> None:
    outcome = run(capsys, *without("--test", "--num-train"), "--json")
    assert outcome.code == 0, outcome.err
    content = json.loads(outcome.out)
    assert content["examples"] + content["size"]["num_train"] == len(TRAIN[0])
    assert content["recipe"]["config"]["num_train"] == content["size"]["low"]
    assert 0 < content["examples"] < len(TRAIN[0])
    assert Size.of(len(TRAIN[0]) - content["examples"]).sentence in content["assumptions"]
    assert content["accuracy"] is not None


def test_models_are_kept_unless_the_user_says_otherwise(
    fake: Any, capsys: pytest.CaptureFixture[str], files: Path
) -> None:
    train_json(capsys)
    assert list(Path("run/models").iterdir())
    train_json(capsys, "--no-keep-models", "--run-dir", "bare")
    assert not Path("bare/models").exists()


def test_test_images_are_left_for_the_report(fake: Any, capsys: pytest.CaptureFixture[str], files: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (60, 1, 8, 8)).astype(np.uint8)
    np.savez("images.npz", x=x, y=TRAIN[1])
    flags = ["train", "--train", "images.npz", "--test", "images.npz", "--instances", "10", "--device", "cpu"]
    assert run(capsys, *flags).code == 0
    with np.load("run/inputs.npz") as kept:
        assert np.array_equal(kept["x"], x)
    train_json(capsys, "--run-dir", "table")
    assert not Path("table/inputs.npz").exists()


# --- project files --------------------------------------------------------------------------------------------------

PROJECT = """
run_dir = "runs/mine"
[data]
train = "train.npz"
test = "test.npz"
[train]
model = "linear"
instances = 10
noise_multiplier = 2
sample_rate = 0.2
steps = 6
max_grad_norm = 1
learning_rate = 0.5
num_train = 60
classes = 3
score_bins = 8
device = "cpu"
"""


def test_a_project_file_does_what_the_flags_do(fake: Any, capsys: pytest.CaptureFixture[str], files: Path) -> None:
    Path("mine.toml").write_text(PROJECT)
    outcome = run(capsys, "train", "mine.toml", "--root-seed", "root", "--json")
    assert outcome.code == 0, outcome.err
    content = json.loads(outcome.out)
    assert content["run_dir"] == "runs/mine"
    flags = train_json(capsys, "--root-seed", "root", "--device", "cpu")
    assert same_votes(Votes.load("runs/mine/votes.npz"), Votes.load("run/votes.npz"))
    assert content["recipe"] == flags["recipe"]


@pytest.mark.parametrize(("declared", "is_far"), [(60, False), (59, False), (6, True), (600, True)])
def test_a_declared_number_that_is_far_from_the_truth(
    fake: Any, capsys: pytest.CaptureFixture[str], files: Path, declared: int, is_far: bool
) -> None:
    assert len(TRAIN[0]) == 60
    Path("mine.toml").write_text(PROJECT)
    outcome = run(capsys, "train", "mine.toml", "--num-train", str(declared))
    assert outcome.code == 0, outcome.err
    said = f"Note: num_train is declared as {declared:,}, but there are 60 examples to train on"
    assert (said in " ".join(outcome.out.split())) is is_far


def test_what_the_file_assumes_is_in_the_certificate(
    fake: Any, capsys: pytest.CaptureFixture[str], files: Path
) -> None:
    Path("mine.toml").write_text(f'assumptions = ["The steps were tuned here."]\n{PROJECT}')
    outcome = run(capsys, "train", "mine.toml")
    assert outcome.code == 0, outcome.err
    assert "Condition tuned-on-training-data: The steps were tuned here." in outcome.out
    certified = json.loads(run(capsys, "certify", "runs/mine", "--json").out)
    assert "The steps were tuned here." in certified["assumptions"]


@pytest.mark.parametrize("line", ["keep_models = 'no'", "average_iterates = 'no'"])
def test_a_flag_is_true_or_false(fake: Any, capsys: pytest.CaptureFixture[str], files: Path, line: str) -> None:
    Path("mine.toml").write_text(f"{PROJECT}{line}\n")
    assert line.split()[0] in refused(run(capsys, "train", "mine.toml"))


def test_flags_win_over_the_file(fake: Any, capsys: pytest.CaptureFixture[str], files: Path) -> None:
    Path("mine.toml").write_text(PROJECT)
    flags = ["--steps", "3", "--test", "inputs.npz", "--run-dir", "other", "--average-iterates"]
    outcome = run(capsys, "train", "mine.toml", *flags, "--json")
    assert outcome.code == 0, outcome.err
    content = json.loads(outcome.out)
    assert (content["run_dir"], content["accuracy"]) == ("other", None)
    config = content["recipe"]["config"]
    assert (config["steps"], config["average_iterates"], config["noise_multiplier"]) == (3, True, 2.0)
    assert not Path("runs").exists()


def test_files_are_looked_for_beside_the_project_file(
    fake: Any, capsys: pytest.CaptureFixture[str], files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine.toml").write_text(PROJECT)
    elsewhere = files / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert run(capsys, "train", "../mine.toml").code == 0
    assert (elsewhere / "runs" / "mine" / "votes.npz").is_file()


def test_a_finished_project_is_not_trained_again(fake: Any, capsys: pytest.CaptureFixture[str], files: Path) -> None:
    Path("mine.toml").write_text(PROJECT)
    assert run(capsys, "train", "mine.toml").code == 0
    before, fake.trained = everything_in(files), []
    assert "finished before" in run(capsys, "train", "mine.toml").out
    assert fake.trained == []
    assert everything_in(files) == before


# --- bad input ------------------------------------------------------------------------------------------------------


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(outcome: Outcome) -> str:
    assert outcome.code == 2, outcome
    assert "Written" not in outcome.out  # what would have been trained may be there
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("mithridate")
    assert "Traceback" not in outcome.err
    return outcome.err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--instances", "0"], "instances"),
        (["--noise-multiplier", "0"], "--noise-multiplier"),
        (["--sample-rate", "1.5"], "--sample-rate"),
        (["--steps", "0"], "steps"),
        (["--max-grad-norm", "-1"], "--max-grad-norm"),
        (["--learning-rate", "nan"], "--learning-rate"),
        (["--optimizer", "lion"], "lion"),
        (["--momentum", "1"], "momentum"),
        (["--optimizer", "adam", "--momentum", "0.5"], "momentum"),
        (["--schedule", "linear"], "linear"),
        (["--keep", "2/1"], "keep"),
        (["--keep", "a/b"], "fraction"),
        (["--betas", "0.9"], "--betas"),
        (["--classes", "2"], "is 2; with --classes 2"),
        (["--classes", "1"], "classes"),
        (["--score-bins", "3"], "--score-bins"),
        (["--model", "lenet5"], "lenet5"),
        (["--model", "vgg"], "vgg"),
        (["--device", "abacus"], "abacus"),
        (["--in-flight", "0"], "--in-flight"),
        (["--precision", "float16"], "float16"),
        (["--train", "missing.npz"], "no file or folder missing.npz"),
        (["--train", "inputs.npz"], "no array 'y'"),
        (["--test", "root"], "Cannot read root by its name"),
        (["--test", "broken.npz"], "not a readable .npz"),
        (["--seconds", "0"], "seconds"),
        (["--num-train", "0"], "--num-train"),
        (["missing.toml"], "Cannot read missing.toml"),
        (["root"], "not a project file in TOML"),
        (["."], "is not a file"),
        (["--root-seed", "/dev/zero"], "is not a file"),
        (["/dev/zero"], "is not a file"),
        (["--root-seed", "train.npz"], "hexadecimal"),
        (["--root-seed", "missing"], "Cannot read missing"),
        (["--run-dir", "train.npz"], "is a file"),
        (["--features", "magic"], "magic"),
    ],
)
def test_bad_flags_and_files(
    fake: Any, capsys: pytest.CaptureFixture[str], files: Path, flags: list[str], says: str
) -> None:
    before = everything_in(files)
    assert says in refused(run(capsys, *TRAIN_FLAGS, *flags))
    assert everything_in(files) == before


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": TRAIN[0], "y": TRAIN[1][:-1]}, "There are 60 inputs but 59 labels"),
        ({"x": TRAIN[0], "y": TRAIN[1] - 1}, "labels are names or whole numbers from 0"),
        ({"x": TRAIN[0] * np.nan, "y": TRAIN[1]}, "Input 0 of the training data holds NaN"),
        ({"x": TRAIN[0][:, :3], "y": TRAIN[1]}, "test inputs of shape (3,)"),
        ({"x": TRAIN[0][:0], "y": TRAIN[1][:0]}, "empty"),
    ],
)
def test_bad_arrays(
    fake: Any, capsys: pytest.CaptureFixture[str], files: Path, arrays: dict[str, Any], says: str
) -> None:
    np.savez("bad.npz", **arrays)
    assert says in refused(run(capsys, *TRAIN_FLAGS, "--train", "bad.npz"))


def test_a_directory_of_another_configuration(fake: Any, capsys: pytest.CaptureFixture[str], files: Path) -> None:
    train_json(capsys)
    before = everything_in(files)
    text = refused(run(capsys, *TRAIN_FLAGS, "--steps", "7"))
    assert everything_in(files) == before
    assert "its --steps is 6, not 7" in text
    assert "another --run-dir" in text


def test_a_full_disk(
    fake: Any, capsys: pytest.CaptureFixture[str], files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any, **keywords: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez_compressed", full)
        text = refused(run(capsys, *TRAIN_FLAGS))
    assert "No space left" in text
    assert "the same command goes on" in text
    assert train_json(capsys)["instances"] == 10
