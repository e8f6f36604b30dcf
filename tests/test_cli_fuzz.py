"""Whatever is typed and whatever lies in the files: an exit status, one line that says what is wrong, and an end."""

import argparse
import contextlib
import io
import json
import shutil
import signal
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_cli import Outcome
from test_train_cli import everything_in
from training_doubles import TEST, TRAIN, FakeEngine

from mithridate import ADP, SampledGaussian, Votes, certify
from mithridate.cli import main
from mithridate.cli._shared import new_parser
from mithridate.data import named
from mithridate.training import task

# Longer than any of these commands takes on a slow machine; a loop without end takes longer.
pytestmark = pytest.mark.more
SECONDS = 600  # a call takes less than one; a busy machine must not look like a hang
TABLE = "p,q,kind\n" + "".join(f"{number % 17},{'xy'[number % 2]},{'ab'[number % 2]}\n" for number in range(40))
PROJECT = """
[data]
train = "train.csv"
test = "test.csv"
kind = "table"
label = "kind"
columns = [{kind = "number", name = "p", low = 0, high = 20}, {kind = "category", name = "q"}]
[train]
instances = 8
device = "cpu"
"""
COMPARISON = """
out = "../out/c"
[data]
train = "train.npz"
test = "test.npz"
[[methods]]
name = "kernel-vote"
[[methods]]
name = "adp"
instances = 8
"""
GARBAGE = {
    "binary": bytes(range(256)) * 4,
    "empty": b"",
    "zip": b"PK\x03\x04" + bytes(40),
    "text": "Ünïcödé, \u2028 and \u202e more\n".encode() * 3,
    "json": b'{"schema": "mithridate.certificate/1", "hash": 3}',
    "numbers": b"1,2\n3,4\n",
}
NEAR = ["--train", "train.npz", "--test", "test.npz", "--method", "nearest-neighbours"]
ENDS = (".toml", ".csv", ".tsv", ".npz", ".parquet", ".json", ".png", "")


# --- the world that commands are run in -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with good and bad files, an engine that costs nothing, and nobody to download from."""
    folder = tmp_path_factory.mktemp("world")
    good, bad = folder / "good", folder / "bad"
    good.mkdir()
    bad.mkdir()
    np.savez(good / "train.npz", x=TRAIN[0], y=TRAIN[1])
    np.savez(good / "test.npz", x=TEST[0], y=TEST[1])
    (good / "train.csv").write_text(TABLE)
    (good / "test.csv").write_text(TABLE)
    (good / "p.toml").write_text(PROJECT)
    (good / "c.toml").write_text(COMPARISON)
    (good / "seed").write_text("ab" * 32)
    (good / "counts.csv").write_text("200,0,0\n30,160,10\n")
    votes = Votes.from_counts([[200, 0], [30, 170]], mechanism=SampledGaussian(20.0, 1.0, 4), labels=[0, 1])
    votes.save(good / "votes.npz")
    replace(votes, run_ids=("more",)).save(good / "more.npz")
    certify(votes, method=ADP()).save(good / "certificate.json")
    for name, data in GARBAGE.items():
        for end in ENDS:
            (bad / f"{name}{end}").write_bytes(data)
        (bad / f"run-{name}").mkdir()
        for part in ("run.json", "votes.npz", "certificate.json", "inputs.npz"):
            (bad / f"run-{name}" / part).write_bytes(data)
    (bad / "folder").mkdir()
    (bad / "loop").symlink_to(bad / "loop")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "Engine", FakeEngine)
        patch.setattr("mithridate.certifying.advice.METHODS", (ADP(),))
        patch.delenv("MITHRIDATE_DATA", raising=False)
        for name, published in named.PUBLISHED.items():
            patch.setitem(named.PUBLISHED, name, replace(published, hosts=("http://127.0.0.1:9/",)))
        patch.chdir(good)
        assert attempt("train", "p.toml", "--run-dir", "run").code == 0
        assert attempt("train", *NEAR, "--run-dir", "near").code == 0
        yield folder


def attempt(*arguments: str) -> Outcome:
    """Run a command in this process, with an end after some time."""

    def too_long(signum: int, frame: types.FrameType | None) -> None:
        raise BaseException("it does not end")  # nobody catches that on the way

    out, err = io.StringIO(), io.StringIO()
    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(list(arguments))
    except SystemExit as error:
        code = int(error.code or 0)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return Outcome(code, out.getvalue(), err.getvalue())


def check(*arguments: str) -> int:
    """An exit status that is documented, and at most one sentence, which is not a traceback."""
    outcome = attempt(*arguments)
    assert outcome.code in (0, 1, 2, 130, *((3,) if arguments[0] == "audit" else ())), outcome
    assert "Traceback" not in outcome.err
    # Training says what it will do and how far it is; with --json on this stream.
    lines = [line for line in outcome.err.split("\n") if line.startswith("mithridate")]
    if outcome.code == 2:
        assert lines
        assert outcome.err.endswith(f"{lines[-1]}\n"), outcome.err
        if arguments[0] not in ("train", "demo", "compare", "audit"):
            assert outcome.err == f"{lines[-1]}\n"
            assert outcome.out == ""
    elif "--json" in arguments and "--help" not in arguments:
        json.loads(outcome.out, parse_constant=pytest.fail)
    return outcome.code


# --- what may be typed ----------------------------------------------------------------------------------------------

ODD = [
    "", "0", "1", "-1", "2", "3", "0.5", "0.01", "nan", "inf", "-inf", "1e300", "1e-300", "1" * 400, "1_0", "a",
    "é\u202e", "\udcff", "--", "-", "1/2", "0/0", "1/0", "0,5", "auto", "cpu", "linear", "unit-norm",
    "hashed-ngrams", "oriented-gradients",
    "kind", "y", "x" * 300,
]  # fmt: skip
PATHS = [
    "train.npz", "test.npz", "train.csv", "test.csv", "p.toml", "seed", "votes.npz", "certificate.json", "run",
    ".", "..", "/", "missing", "missing.csv", "missing/x.json", "train.csv/x.html", "../bad/folder", "../bad/loop",
    "/dev/null",
    *(f"../bad/{name}{end}" for name in GARBAGE for end in ENDS), *(f"../bad/run-{name}" for name in GARBAGE),
]  # fmt: skip
# Places to write to: what is written there is not read by other examples.
OUTPUTS = [
    "../out/o.json",
    "../out/o.csv",
    "../out/o.npz",
    "../out/o.html",
    "../out/o.toml",
    "../out",
    "none/o.json",
    "/dev/null/o",
]
# Flags whose good values cost time: here they are always small, the last one of a flag counts.
SMALL = {
    "train": ["--instances", "8"],
    "demo": ["--instances", "8"],
    "audit": ["--minutes", "0.001", "--targets", "1"],
}
_MECHANISM = ["--noise-multiplier", "20", "--sample-rate", "1", "--steps", "4"]
WORKING = {
    "audit": [
        ["p.toml", "-o", "../out/audit"],
        ["p.toml", "--method", "nearest-neighbours", "-o", "../out/near-audit"],
    ],
    "certify": [["votes.npz"], ["counts.csv", *_MECHANISM]],
    "compare": [["c.toml"]],
    "completion": [["bash"]],
    "demo": [[]],
    "evidence": [["run", "-o", "../out/e.zip"], ["near", "-o", "../out/e.zip"]],
    "fingerprint": [["train.csv", "--project", "p.toml"], ["train.npz"]],
    "gate": [["certificate.json", "--certified-accuracy", "0.5", "--at", "1"]],
    "init": [["train.csv", "--label", "kind", "-o", "../out/i.toml"], ["train.npz", "-o", "../out/i.toml"]],
    "merge": [["votes.npz", "more.npz", "-o", "../out/m.npz"]],
    "plan": [[*_MECHANISM, "--instances", "200", "--classes", "3"]],
    "predict": [["run", "test.csv"], ["near", "test.npz"]],
    "report": [["certificate.json", "-o", "../out/r.html"], ["run", "-o", "../out/r.html"]],
    "split": [["run", "--into", "1", "-o", "../out/parts"]],
    "train": [
        ["p.toml", "--run-dir", "../out/run"],
        ["--train", "train.npz", "--run-dir", "../out/run"],
        [*NEAR, "--run-dir", "../out/run"],
    ],
    "tune": [["p.toml", "-o", "../out/tuned"]],
    "verify": [["certificate.json"]],
}


def small(name: str, words: list[str]) -> list[str]:
    return [] if "nearest-neighbours" in words else SMALL.get(name, [])  # where nothing is trained


def test_the_commands_that_others_are_made_of_work(world: Path) -> None:
    for name, all_words in WORKING.items():
        for words in all_words:
            _prepare(world)
            # Of a moment's audit nothing may follow.
            assert check(name, *words, *small(name, words)) in ((0, 3) if name == "audit" else (0,)), (name, words)


def commands() -> dict[str, argparse.ArgumentParser]:
    for action in new_parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise AssertionError("there are no commands")


# One that works runs until it is told to stop, and one changes the run that the others read.
COMMANDS = {name: each for name, each in commands().items() if name not in ("serve", "update")}


@st.composite
def arguments(draw: st.DrawFn) -> list[str]:
    """A command that works, or one with any paths; then some of its flags with values, well chosen or not."""
    name = draw(st.sampled_from(sorted(COMMANDS)))
    actions = COMMANDS[name]._actions
    words = list(draw(st.sampled_from(WORKING[name])))
    if not draw(st.integers(0, 3)):
        words = [draw(st.sampled_from(PATHS)) for action in actions if not action.option_strings]
    flags = [action for action in actions if action.option_strings and action.dest != "help"]
    for action in draw(st.lists(st.sampled_from(flags), max_size=5)):
        words.append(draw(st.sampled_from(action.option_strings)))
        if action.nargs == 0:
            continue
        count = action.nargs if isinstance(action.nargs, int) else 1
        words += [draw(_values(action)) for _ in range(count if draw(st.integers(0, 9)) else count - 1)]
    return [name, *words, *small(name, words)]


def _values(action: argparse.Action) -> st.SearchStrategy[str]:
    if action.dest in ("out", "run_dir"):
        return st.sampled_from(OUTPUTS)
    fitting = list(map(str, action.choices)) if action.choices else PATHS if action.type is Path else ["1", "5", "0.1"]
    return st.sampled_from(fitting) | st.sampled_from(ODD)


def _prepare(world: Path) -> None:
    """An empty place to write to."""
    shutil.rmtree(world / "out", ignore_errors=True)
    (world / "out").mkdir()


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(typed=arguments())
def test_any_arguments(world: Path, typed: list[str]) -> None:
    _prepare(world)
    check(*typed)


@settings(max_examples=150)
@given(typed=st.lists(st.sampled_from([*COMMANDS, *ODD, *PATHS[:12], "--help", "--json", "--version"]), max_size=5))
def test_words_in_any_order(world: Path, typed: list[str]) -> None:
    _prepare(world)
    outcome = attempt(*typed, *small(typed[0], typed) if typed else [])
    assert outcome.code in (0, 1, 2)
    assert "Traceback" not in outcome.err


# --- what may lie in files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(GARBAGE))
def test_garbage_wherever_a_file_is_named(world: Path, kind: str) -> None:
    """In every place of every command, one after the other; nothing is written, nothing else is touched."""
    _prepare(world)
    for end in ENDS:
        bad = f"../bad/{kind}{end}"
        for typed in (
            ["train", bad],
            ["train", "--train", bad],
            ["train", "p.toml", "--test", bad],
            ["train", "--root-seed", bad, "p.toml"],
            ["train", "p.toml", "--run-dir", bad],
            ["certify", bad],
            ["merge", "votes.npz", bad, "-o", "../out/m.npz"],
            ["predict", "run", bad],
            ["predict", bad, "test.csv"],
            ["serve", bad],
            ["update", bad, "train.csv"],
            ["update", "near", bad],
            ["update", "near", "--remove", bad],
            ["serve", "run", "--token-file", bad],
            ["report", bad],
            ["report", "certificate.json", "--inputs", bad, "-o", "../out/r.html"],
            ["verify", bad],
            ["gate", bad, "--certified-accuracy", "0.5", "--at", "1"],
            ["evidence", bad, "-o", "../out/e.zip"],
            ["evidence", "run", "-o", "../out/e.zip", "--sign", bad],
            ["compare", bad],
            ["init", bad, "--label", "kind", "-o", "../out/i.toml"],
            ["demo", "--dataset", "mnist", "--data-dir", bad],
        ):
            assert check(*typed) == 2, typed
    assert list((world / "out").iterdir()) == []
    run = f"../bad/run-{kind}"
    before = everything_in(world / "bad" / f"run-{kind}")
    for typed in (
        ["certify", run],
        ["merge", run, "votes.npz", "-o", "../out/m.npz"],
        ["predict", run, "test.csv"],
        ["report", run],
        ["train", "p.toml", "--run-dir", run],
    ):
        assert check(*typed) == 2, typed
    assert everything_in(world / "bad" / f"run-{kind}").items() >= before.items()


DAMAGED = (
    "p.toml", "train.csv", "train.npz", "certificate.json", "votes.npz", "run/run.json", "near/run.json",
    "near/examples.npz",
)  # fmt: skip


@settings(max_examples=150)
@given(
    name=st.sampled_from(DAMAGED),
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.binary(min_size=1, max_size=3)), min_size=1, max_size=3),
    end=st.none() | st.integers(0, 10**6),
)
def test_damaged_files(world: Path, name: str, changes: list[tuple[int, bytes]], end: int | None) -> None:
    """A few bytes are others, or the end is missing."""
    _prepare(world)
    data = bytearray((world / "good" / name).read_bytes())
    for place, new in changes:
        place %= len(data)
        data[place : place + len(new)] = new
    shutil.copytree(world / "good", world / "out" / "copy")
    path = world / "out" / "copy" / name
    path.write_bytes(data[: None if end is None else end % len(data)])
    for typed in {
        "p.toml": [["train", path, "--run-dir", "../out/run", "--instances", "8"]],
        "train.csv": [["init", path, "--label", "kind", "-o", "../out/i.toml"]],
        "train.npz": [["train", "--train", path, "--run-dir", "../out/run", "--instances", "8"]],
        "certificate.json": [["report", path], ["verify", path]],
        "votes.npz": [
            ["certify", path],
            ["report", path.parent],
            ["merge", path, "more.npz", "-o", "../out/m.npz"],
        ],
        "run/run.json": [["predict", path.parent, "train.csv"], ["train", "p.toml", "--run-dir", path.parent]],
        "near/run.json": [["predict", path.parent, "test.npz"], ["train", *NEAR, "--run-dir", path.parent]],
        "near/examples.npz": [["predict", path.parent, "test.npz"], ["train", *NEAR, "--run-dir", path.parent]],
    }[name]:
        check(*map(str, typed))
