"""What is typed: what was meant by an unknown word, messages that name the flag, and what a shell completes."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_cli import MECHANISM, run

from mithridate.cli._flags import as_typed
from mithridate.cli._shared import new_parser
from mithridate.cli.completion import script_for

TABLE = "p,q,kind\n" + "".join(f"{row % 17},{row % 5},{'ab'[row % 2]}\n" for row in range(60))
PROJECT = """
[data]
train = "t.csv"
kind = "table"
label = "kind"
classes = ["a", "b"]
columns = [{kind = "number", name = "p", low = 0, high = 20}, {kind = "number", name = "q", low = 0, high = 5}]
[train]
"""
PLAN = ["plan", *MECHANISM, "--instances", "200", "--classes", "3"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(TABLE)
    Path("p.toml").write_text(PROJECT)
    Path("counts.csv").write_text("200,0,0\n30,160,10\n")
    np.savez("a.npz", x=np.eye(9), y=np.arange(9) % 2)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    outcome = run(capsys, *words)
    assert outcome.code == 2, outcome
    assert outcome.err.count("\n") == 1
    return outcome.err.removesuffix("\n")


# --- did you mean ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["trian"], "mithridate: there is no command 'trian'; did you mean 'train'? (see mithridate --help)"),
        (["certfy", "x", "--json"], "there is no command 'certfy'; did you mean 'certify'?"),
        (["frobnicate"], "there is no command 'frobnicate'; expected one of demo, init, plan"),
        (["--", "train"], "there is no command '--'"),
        (["--verson"], "mithridate: there is no flag --verson; did you mean --version? (see mithridate --help)"),
        (["train", "--instnces", "5"], "mithridate train: there is no flag --instnces; did you mean --instances? (see"),
        (["train", "--instnces=5"], "there is no flag --instnces; did you mean --instances?"),
        (["train", "--sample_rate", "5"], "there is no flag --sample_rate; did you mean --sample-rate?"),
        (["train", "--prep"], "there is no flag --prep; did you mean --prepare?"),  # nothing is abbreviated there
        (["plan", "--noise-multipler", "3"], "there is no flag --noise-multipler; did you mean --noise-multiplier?"),
        (["certify", "x", "--zzz"], "mithridate certify: there is no flag --zzz (see mithridate certify --help)"),
        (["certify", "x", "-q"], "there is no flag -q"),
        (["certify", "--treat", "add", "x"], "there is no flag --treat; did you mean --threat?"),
        (["verify", "x", "y"], "mithridate verify: there is one argument too many, 'y'"),
        (["certify", "x", "--threat", "remov"], "argument --threat: there is no 'remov'; did you mean 'remove'?"),
        (["certify", "x", "--threat=remov"], "argument --threat: there is no 'remov'; did you mean 'remove'?"),
        (["certify", "x", "--on", "logits"], "argument --on: there is no 'logits'; expected one of votes, scores (see"),
        (["train", "p.toml", "--method", "kernel-votes"], "there is no 'kernel-votes'; did you mean 'kernel-vote'?"),
        (["completion", "bsh"], "there is no 'bsh'; did you mean 'bash'?"),
        (["demo", "--dataset", "minst"], "argument --dataset: there is no 'minst'; did you mean 'mnist'?"),
        (["plan", "--s", "3"], "ambiguous option: --s could match --sample-rate, --steps"),
        (["train", "--\x1b[2J"], "there is no flag --\\x1b[2J"),
    ],
)
def test_what_was_meant(capsys: pytest.CaptureFixture[str], here: Path, words: list[str], says: str) -> None:
    assert says in said(capsys, *words)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("smple_rate = 0.5", "Nobody asks for 'smple_rate' in [train] of p.toml; did you mean 'sample_rate'?"),
        ('method = "fpd"', "did you mean 'fdp'?"),
        ('method = "fdp"\noptimizer = "adm"', "optimizer to be one of sgd, adam, got 'adm'; did you mean 'adam'?"),
        ('backend = "rays"', "did you mean 'ray'?"),
    ],
)
def test_what_was_meant_in_a_file(capsys: pytest.CaptureFixture[str], here: Path, text: str, says: str) -> None:
    Path("p.toml").write_text(PROJECT + text)
    assert says in said(capsys, "train", "p.toml")


def test_abbreviations_and_values_that_look_odd_are_no_mistakes(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    assert run(capsys, "plan", "--noise", "3", "--sample", "0.5", "--st=4", "--inst", "99", "--classe", "2").code == 0
    assert "Cannot read" in said(capsys, "verify", "--", "--odd")
    assert ". holds neither" in said(capsys, "report", ".", "--title", "--a title")


# --- messages name what was typed ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([*PLAN, "--sample-rate", "2"], "Expected --sample-rate in (0, 1], got 2.0."),
        ([*PLAN, "--sample-rate=2"], "Expected --sample-rate in"),
        ([*PLAN, "--failure-p", "2"], "Expected --failure-prob in"),
        ([*PLAN, "--steps", "0"], "Expected --steps to be"),
        ([*PLAN, "--classes", "1"], "Expected --classes"),
        ([*PLAN, "--radius", "0"], "Expected --radius"),
        (["certify", "counts.csv", *MECHANISM, "--on", "scores"], "certify --on votes"),
        (["certify", "counts.csv", *MECHANISM, "--method", "adp", "--delta", "2"], "Expected --delta in"),
        (["certify", "counts.csv", *MECHANISM, "--keep", "3"], "Expected --keep in"),
        (["train", "--train", "a.npz", "--num-train", "0"], "Expected --num-train to be"),
        (["train", "--train", "a.npz", "--radius", "0"], "Expected --radius to be"),
        (["train", "--train", "a.npz", "--method", "dpa", "--instances", "3"], "dpa has no option --instances"),
        (["train", "--train", "a.npz", "--partitions", "3"], "--partitions belongs to"),
        (["train", "--train", "a.npz", "--workers", "3"], "--workers belongs to a cluster"),
        (["train", "--train", "a.npz", "--method", "dpa", "--private"], "leave --private out"),
        (["train", "--train", "a.npz", "--method", "fdp", "--in-flight", "0"], "Expected --in-flight to be"),
        (["train", "--train", "a.npz", "--method", "fdp", "--max-grad-norm", "0"], "Expected --max-grad-norm"),
        (["train", "--train", "a.npz", "--class-weights", "1", "0"], "Expected --class-weights as"),
        (["train", "--train", "a.npz", "--recipe", "mnst-strong"], "did you mean 'mnist-strong'?"),
        (["train", "p.toml", "--sample-rate", "2"], "Expected --sample-rate in"),
        (["train", "p.toml", "--method", "fdp", "--features", "nothing"], "Expected --features to be one of"),
        (["train", "p.toml", "--shards", "b:a"], "Expected --shards as"),
        (["split", "none", "--into", "0", "-o", "x"], "Expected --into to be"),
        (["demo", "--instances", "0"], "Expected --instances to be"),
        (["init", "t.csv"], "Expected --label, the name of the column"),
        (["init", "t.csv", "--label", "kind", "--radius", "0"], "Expected --radius to be"),
        (["compare", "p.toml", "--methods", "dpa", "--failure-prob", "2"], "--failure-prob"),
    ],
)
def test_messages_name_the_flag(capsys: pytest.CaptureFixture[str], here: Path, words: list[str], says: str) -> None:
    outcome = run(capsys, *words)
    assert outcome.code == 2, outcome
    assert says in outcome.err
    assert not re.search(r"\b[a-z]+_[a-z_]+\b", outcome.err.replace("train_", "")), outcome.err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('method = "fdp"\nsample_rate = 2', "Expected sample_rate in (0, 1], got 2."),
        ("num_train = 0", "Expected num_train to be"),
        ("radius = 0", "Expected radius to be"),
        ('method = "dpa"\ninstances = 3', "dpa has no option 'instances'"),
        ("workers = 3", "workers belongs to a cluster"),
    ],
)
def test_messages_about_a_file_name_its_keys(
    capsys: pytest.CaptureFixture[str], here: Path, text: str, says: str
) -> None:
    Path("p.toml").write_text(PROJECT + text)
    assert says in said(capsys, "train", "p.toml")
    assert says in said(capsys, "train", "p.toml", "--device", "cpu")


FLAGS = {name: f"--{name.replace('_', '-')}" for name in ("run_dir", "steps", "on", "bounds", "keep_models", "out")}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Choose another run_dir.", "Choose another --run-dir."),
        ("Use another run_dir (--run-dir) for this one.", "Use another --run-dir for this one."),
        ("keep_models needs a run_dir; give one.", "--keep-models needs a --run-dir; give one."),
        ("leave on and bounds out.", "leave --on and --bounds out."),
        ("use bounds='hoeffding'.", "use --bounds hoeffding."),
        ("its steps is 6, not 7.", "its --steps is 6, not 7."),
        # English, files of users, and Python are left alone.
        ("It goes on with fewer steps; take it out.", None),
        ("Too many; leave out some of them.", None),
        ("There is no file run_dir/run_dir.csv; check the path.", None),
        ("a.csv has no column 'run_dir'; did you mean 'keep_models'?", None),
        ("Use another --out (run_dir = ...).", None),
        ("my-run_dir was split.", None),
        ("use mechanism.run_dir instead.", None),
    ],
)
def test_what_a_message_calls_by_its_flag(message: str, expected: str | None) -> None:
    assert as_typed(message, FLAGS) == (message if expected is None else expected)
    assert as_typed(message, {}) == message


@given(st.text(), st.sampled_from([FLAGS, {}]))
def test_any_message_stays_readable(message: str, flags: dict[str, str]) -> None:
    typed = as_typed(message, flags)
    assert as_typed(typed, flags) == typed
    if not any(name in message for name in flags):
        assert typed == message


def test_a_choice_that_is_weak_names_flags(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    flags = ["--train", "a.npz", "--method", "fdp", "--instances", "3", "--device", "cpu", "--prepare"]
    out = " ".join(run(capsys, "train", *flags).out.split())
    assert "raise --instances." in out


# --- completion -----------------------------------------------------------------------------------------------------


def completed(script: Path, *words: str) -> list[str]:
    """What bash offers for the last of these words, by its own tables."""
    code = (
        'source "$1"; shift; complete -p mithridate > /dev/null || exit 9\n'
        'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _mithridate; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    outcome = subprocess.run(
        ["bash", "--norc", "-c", code, "bash", str(script), "mithridate", *words],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (outcome.returncode, outcome.stderr) == (0, "")
    return outcome.stdout.split()


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    path = tmp_path_factory.mktemp("completion") / "mithridate"
    path.write_text(script_for("bash", new_parser()))
    return path


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["tr"], ["train"]),
        (["ver"], ["verify"]),
        (["--ver"], ["--version"]),
        (["init", "--la"], ["--label"]),
        (["certify", "votes.npz", "--threat", "re"], ["remove", "replace"]),
        (["certify", "--threat", "=", "re"], ["remove", "replace"]),
        (["certify", "--on", "="], ["votes", "scores"]),
        (["report", "runs/x", "--format", "h"], ["html"]),
        (["train", "--method", "kernel"], ["kernel-vote"]),
        (["train", "p.toml", "--no-keep"], ["--no-keep-models"]),
        (["completion", ""], ["bash", "zsh", "fish", "--help", "--json"]),
        (["completion", "f"], ["fish"]),
        (["certify", "vo"], []),  # files are left to bash
        (["nothing", "--x"], []),
    ],
)
def test_bash_completes(script: Path, words: list[str], offered: list[str]) -> None:
    assert completed(script, *words) == offered


def test_bash_knows_every_command_and_flag(script: Path) -> None:
    parser = new_parser()
    assert completed(script, "") == [*parser.commands, "--help", "--version"]
    for name, command in parser.commands.items():
        flags = {flag for action in command.arguments for flag in action.option_strings if flag.startswith("--")}
        assert set(completed(script, name, "--")) == flags >= {"--json", "--help"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_of_other_shells(capsys: pytest.CaptureFixture[str], tmp_path: Path, shell: str) -> None:
    outcome = run(capsys, "completion", shell)
    assert (outcome.code, outcome.err) == (0, "")
    assert json.loads(run(capsys, "completion", shell, "--json").out) == {"shell": shell, "script": outcome.out}
    for name, command in new_parser().commands.items():
        assert re.search(rf"\b{name}\b", outcome.out)
        for action in command.arguments:
            for flag in action.option_strings:
                assert not flag.startswith("--") or flag.removeprefix("--") in outcome.out
    if shutil.which(shell) is not None:
        (tmp_path / "script").write_text(outcome.out)
        checked = subprocess.run([shell, "-n", tmp_path / "script"], capture_output=True, timeout=60, check=False)
        assert (checked.returncode, checked.stderr) == (0, b"")


def test_help_says_where_a_script_goes(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "completion", "--help").out
    assert all(f"mithridate completion {shell} > " in text for shell in ("bash", "zsh", "fish"))


def test_the_package_is_a_program() -> None:
    command: list[Any] = [sys.executable, "-m", "mithridate", "trian"]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert outcome.returncode == 2
    assert outcome.stderr == "mithridate: there is no command 'trian'; did you mean 'train'? (see mithridate --help)\n"
