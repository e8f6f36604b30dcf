"""`mithridate train` and `predict`: flags, what is printed, interruptions, and one sentence for bad input."""

import io
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cli import Outcome, run
from training_doubles import SEED, TEST, TRAIN, FakeEngine, make_config, same_votes

from mithridate import SampledGaussian, Subsampled, TrainConfig, Votes, train
from mithridate.cli import main
from mithridate.cli import train as command
from mithridate.ensemble import prediction, training

RECIPE = [
    "--instances", "10", "--noise-multiplier", "2", "--sample-rate", "0.2", "--steps", "6", "--max-grad-norm", "1",
    "--learning-rate", "0.5", "--num-train", "60", "--classes", "3", "--score-bins", "8",
]  # fmt: skip


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeEngine]]:
    FakeEngine.reset()
    monkeypatch.setattr(training, "Engine", FakeEngine)
    monkeypatch.setattr(prediction, "Engine", FakeEngine)
    yield FakeEngine
    FakeEngine.reset()


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data, which is also the current one."""
    np.savez(tmp_path / "train.npz", x=TRAIN[0], y=TRAIN[1])
    np.savez(tmp_path / "test.npz", x=TEST[0], y=TEST[1])
    np.savez(tmp_path / "inputs.npz", x=TEST[0])
    (tmp_path / "root").write_text(SEED.hex() + "\n")
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
    assert "mithridate certify 'my runs/votes.npz'" in outcome.out
    assert "The majority is right on" in outcome.out
    assert main(["certify", "my runs/votes.npz", "--json"]) == 0
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
}


@pytest.mark.parametrize("name", [field.name for field in fields(TrainConfig) if not field.name.startswith("pixel")])
def test_every_field_of_the_configuration_is_a_flag(
    fake: Any, capsys: pytest.CaptureFixture[str], files: Path, name: str
) -> None:
    text, value = OTHER_VALUES[name]
    content = train_json(capsys, f"--{name.replace('_', '-')}", *text)
    found = TrainConfig.from_dict(content["recipe"]["config"])
    assert getattr(found, name) == value
    if name == "keep":
        assert Votes.load("run/votes.npz").mechanism == Subsampled(0.5, SampledGaussian(2.0, 0.2, 6))


def test_features_by_name(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    content = train_json(capsys, "--features", "unit-norm", "--device", "cpu", "--keep-models")
    assert content["recipe"]["features"]["name"] == "unit-norm"
    outcome = run(capsys, "predict", "run", "--inputs", "test.npz", "--out", "new.npz", "--device", "cpu")
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
    assert "Note: num_train = 60 (and with it divisor" in text
    assert main(["certify", "run/votes.npz"]) == 0
    assert "Note: num_train = 60 (and with it divisor" in " ".join(capsys.readouterr().out.split())


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
    fake.before_group = staticmethod(lambda group: time.sleep(0.15))
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
        clock = command._Clock()
        clock.show = command._Lines(clock)
        for step in range(100_001):
            now[0] = step / 1000
            clock(step, 1_000_000)
    assert 9 <= len(lines) <= 11  # a hundred seconds, a tenth of the work
    assert lines[0].startswith("10,")
    assert "1,000 model-steps/s" in lines[0]


def test_the_speed_is_that_of_this_process(fake: Any, capsys: pytest.CaptureFixture[str], files: Path) -> None:
    def stop(group: range) -> None:
        if group.start >= 6:
            raise KeyboardInterrupt

    fake.before_group = staticmethod(stop)
    interrupted = run(capsys, *TRAIN_FLAGS, "--json")
    assert interrupted.code == 130
    assert interrupted.out == ""
    assert interrupted.err.splitlines() == [
        "mithridate: interrupted; what is finished is kept in run. The same command goes on from there."
    ]
    fake.reset()
    content = train_json(capsys)
    assert fake.trained == [range(6, 10)]
    assert content["model_steps_per_s"] * content["seconds"] == pytest.approx(24, rel=0.2)
    assert train_json(capsys)["model_steps_per_s"] is None


def program(*arguments: Any) -> list[str]:
    code = "import sys; from mithridate.cli import main; sys.exit(main())"
    return [sys.executable, "-c", code, *map(str, arguments)]


def test_control_c_ends_cleanly_and_the_same_command_goes_on(files: Path) -> None:
    arguments = [*TRAIN_FLAGS, "--device", "cpu", "--in-flight", "1", "--steps", "400", "--root-seed", "root"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        program(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    deadline = time.monotonic() + 60
    while not list(files.glob("run/shards/0*.npz")) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    if process.returncode == 0:
        pytest.skip("it was faster than the interruption")
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "The same command goes on" in err
    finished = {path.name: path.read_bytes() for path in files.glob("run/shards/0*.npz")}
    assert finished
    assert not (files / "run" / "votes.npz").exists()
    assert main(arguments) == 0
    assert {name: (files / "run" / "shards" / name).read_bytes() for name in finished} == finished
    whole = train(TRAIN, TEST, model="linear", config=make_config(steps=400), root_seed=SEED, device="cpu", in_flight=1)
    assert same_votes(Votes.load(files / "run" / "votes.npz"), whole)


# --- predict --------------------------------------------------------------------------------------------------------


def test_predict(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    train_json(capsys, "--keep-models", "--device", "cpu")
    outcome = run(capsys, "predict", "run", "--inputs", "test.npz", "--out", "new.npz", "--json", "--device", "cpu")
    assert outcome.code == 0, outcome.err
    content = json.loads(outcome.out)
    first, second = Votes.load("run/votes.npz"), Votes.load("new.npz")
    assert second.equals(first)
    assert (content["votes"], content["instances"], content["examples"]) == ("new.npz", 10, 20)
    assert content["accuracy"] == float(np.mean(first.counts.argmax(axis=1) == TEST[1]))
    people = run(capsys, "predict", "run", "--inputs", "inputs.npz", "--out", "other.npz", "--device", "cpu")
    assert "mithridate certify other.npz" in people.out
    assert Votes.load("other.npz").labels is None


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["nowhere", "--inputs", "test.npz", "--out", "new.npz"], "directory of a run"),
        (["run", "--inputs", "missing.npz", "--out", "new.npz"], "no file"),
        (["run", "--inputs", "test.npz", "--out", "missing/new.npz"], "no folder"),
        (["run", "--inputs", "test.npz", "--out", "new.npz"], "--keep-models"),
    ],
)
def test_predictions_that_cannot_be_made(
    fake: Any, capsys: pytest.CaptureFixture[str], files: Path, flags: list[str], says: str
) -> None:
    train_json(capsys)
    assert says in refused(run(capsys, "predict", *flags))
    assert not Path("new.npz").exists()


# --- bad input ------------------------------------------------------------------------------------------------------


def refused(outcome: Outcome) -> str:
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("mithridate")
    assert "Traceback" not in outcome.err
    return outcome.err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--instances", "0"], "instances"),
        (["--noise-multiplier", "0"], "noise_multiplier"),
        (["--sample-rate", "1.5"], "sample_rate"),
        (["--steps", "0"], "steps"),
        (["--max-grad-norm", "-1"], "max_grad_norm"),
        (["--learning-rate", "nan"], "learning_rate"),
        (["--optimizer", "lion"], "lion"),
        (["--momentum", "1"], "momentum"),
        (["--optimizer", "adam", "--momentum", "0.5"], "momentum"),
        (["--schedule", "linear"], "linear"),
        (["--keep", "2/1"], "keep"),
        (["--keep", "a/b"], "fraction"),
        (["--betas", "0.9"], "--betas"),
        (["--classes", "2"], "is 2; with classes=2"),
        (["--classes", "1"], "classes"),
        (["--score-bins", "3"], "score_bins"),
        (["--model", "lenet5"], "lenet5"),
        (["--model", "vgg"], "vgg"),
        (["--device", "abacus"], "abacus"),
        (["--in-flight", "0"], "in_flight"),
        (["--precision", "float16"], "float16"),
        (["--train", "missing.npz"], "no file missing.npz"),
        (["--train", "inputs.npz"], "no array 'y'"),
        (["--test", "root"], "not a readable .npz"),
        (["--root-seed", "train.npz"], "hexadecimal"),
        (["--root-seed", "missing"], "Cannot read missing"),
        (["--run-dir", "train.npz"], "is a file"),
        (["--features", "magic"], "magic"),
    ],
)
def test_bad_flags_and_files(
    fake: Any, capsys: pytest.CaptureFixture[str], files: Path, flags: list[str], says: str
) -> None:
    assert says in refused(run(capsys, *TRAIN_FLAGS, *flags))
    assert not Path("run/run.json").exists()


@pytest.mark.parametrize(
    "flag", ["--train", "--test", "--model", "--instances", "--noise-multiplier", "--sample-rate", "--steps",
             "--max-grad-norm", "--learning-rate"],
)  # fmt: skip
def test_what_has_no_default_is_required(capsys: pytest.CaptureFixture[str], files: Path, flag: str) -> None:
    place = TRAIN_FLAGS.index(flag)
    assert flag in refused(run(capsys, *TRAIN_FLAGS[:place], *TRAIN_FLAGS[place + 2 :]))


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": TRAIN[0], "y": TRAIN[1][:-1]}, "60 training inputs but 59 labels"),
        ({"x": TRAIN[0], "y": TRAIN[1] - 1}, "labels are whole numbers from 0"),
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
    text = refused(run(capsys, *TRAIN_FLAGS, "--steps", "7"))
    assert "its steps is 6, not 7" in text
    assert "another run_dir" in text


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
