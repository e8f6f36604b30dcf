"""`mithridate predict`: new inputs read as the training data was, certified predictions, and what goes where."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cli import run
from test_train_cli import everything_in, refused
from training_doubles import SEED, TEST, TRAIN

from mithridate import ADP, Certificate, Votes, certify, predict, verify
from mithridate.cli import main

ARRAY_FLAGS = [
    "--instances", "60", "--noise-multiplier", "2", "--sample-rate", "0.2", "--steps", "6", "--max-grad-norm", "1",
    "--learning-rate", "0.5", "--num-train", "60", "--classes", "3", "--model", "linear", "--device", "cpu",
]  # fmt: skip
KINDS = ("daisy", "lily", "rose")


def flowers(count: int, seed: int, *, labels: bool = True) -> str:
    """A table that a linear model gets right."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 3, count)
    lines = ["petal,soil,kind" if labels else "petal,soil"]
    for kind, noise in zip(kinds, rng.normal(0.0, 0.4, count), strict=True):
        cells = [f"{2 + 5 * kind + noise:.3f}", ["clay", "sand", "peat"][kind]] + ([KINDS[kind]] if labels else [])
        lines.append(",".join(cells))
    return "\n".join(lines) + "\n"


PROJECT = """
[data]
train = "flowers.csv"
test = "test.csv"
kind = "table"
label = "kind"
classes = ["daisy", "lily", "rose"]
[[data.columns]]
kind = "number"
name = "petal"
low = 0
high = 15
[[data.columns]]
kind = "category"
name = "soil"
[train]
instances = 60
num_train = 300
device = "cpu"
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a finished run on arrays in `arrays`, and one on a table in `table`."""
    folder = tmp_path_factory.mktemp("trained")
    np.savez(folder / "train.npz", x=TRAIN[0], y=TRAIN[1])
    np.savez(folder / "test.npz", x=TEST[0], y=TEST[1])
    np.savez(folder / "inputs.npz", x=TEST[0])
    (folder / "root").write_text(SEED.hex())
    (folder / "flowers.csv").write_text(flowers(300, 0))
    (folder / "test.csv").write_text(flowers(30, 1))
    (folder / "new.csv").write_text(flowers(30, 1, labels=False))
    (folder / "flowers.toml").write_text(PROJECT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        shared = ["--root-seed", "root"]
        assert (
            main(["train", "--train", "train.npz", "--test", "test.npz", "--run-dir", "arrays", *ARRAY_FLAGS, *shared])
            == 0
        )
        assert main(["train", "flowers.toml", "--run-dir", "table", *shared]) == 0
    return folder


@pytest.fixture
def files(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, which is also the current one."""
    folder = tmp_path / "copy"
    shutil.copytree(trained, folder)
    monkeypatch.chdir(folder)
    return folder


def predicted(capsys: pytest.CaptureFixture[str], *arguments: Any) -> dict[str, Any]:
    outcome = run(capsys, "predict", *arguments, "--device", "cpu", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.err == ""
    assert outcome.out.count("\n") == 1
    return json.loads(outcome.out, parse_constant=pytest.fail)


# --- what comes out -------------------------------------------------------------------------------------------------


def test_the_command_does_what_the_functions_do(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    content = predicted(capsys, "arrays", "test.npz", "--threat", "add", "--failure-prob", "0.01")
    votes = predict("arrays", TEST, device="cpu")
    certificate = certify(votes, threat="add", failure_prob=0.01)
    assert [row["radius"] for row in content["predictions"]] == certificate.radius.tolist()
    assert [row["status"] for row in content["predictions"]] == certificate.status.tolist()
    assert [row["prediction"] for row in content["predictions"]] == [str(label) for label in certificate.label]
    assert [row["input"] for row in content["predictions"]] == list(range(20))
    shares = votes.counts.max(axis=1) / 60
    assert [row["share_of_votes"] for row in content["predictions"]] == shares.tolist()
    assert (content["threat"], content["failure_prob"]) == ("add", 0.01)
    assert (content["instances"], content["examples"], content["out"]) == (60, 20, None)
    assert content["accuracy"] == float(np.mean(certificate.label == TEST[1]))
    assert content["assumptions"] == list(certificate.assumptions)
    assert content["mechanism"] == votes.mechanism.to_dict()
    assert max(row["radius"] for row in content["predictions"]) > 0


def test_the_votes_on_the_test_inputs_are_those_of_training(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    predicted(capsys, "arrays", "test.npz", "--out", "again.npz")
    assert Votes.load("again.npz").equals(Votes.load("arrays/votes.npz"))
    predicted(capsys, "table", "test.csv", "--out", "again.npz")
    assert Votes.load("again.npz").equals(Votes.load("table/votes.npz"))


def test_a_table_is_read_as_it_was_declared(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    content = predicted(capsys, "table", "new.csv")
    names = [row["prediction"] for row in content["predictions"]]
    truth = [line.split(",")[2] for line in flowers(30, 1).splitlines()[1:]]
    assert set(names) <= set(KINDS)
    assert np.mean(np.array(names) == truth) > 0.9  # three clouds that hardly touch
    assert content["accuracy"] is None
    labelled = predicted(capsys, "table", "test.csv")
    assert labelled["predictions"] == content["predictions"]
    assert labelled["accuracy"] == float(np.mean(np.array(names) == truth))


def test_columns_may_come_in_another_order(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    lines = [line.split(",") for line in Path("new.csv").read_text().splitlines()]
    Path("turned.csv").write_text("".join(f"{soil},0,{petal}\n".replace(",0,", ",extra,") for petal, soil in lines))
    assert (
        predicted(capsys, "table", "turned.csv")["predictions"] == predicted(capsys, "table", "new.csv")["predictions"]
    )


def test_people_see_predictions_and_what_is_claimed(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    outcome = run(capsys, "predict", "table", "test.csv", "--device", "cpu")
    assert outcome.code == 0, outcome.err
    text = " ".join(outcome.out.split())
    assert "30 predictions of 60 instances" in text
    assert all(kind in text for kind in KINDS)
    assert "The first 20 of 30; --out predictions.csv writes all." in text
    assert "The majority is correct on" in text
    assert "training examples" in text
    assert "To certify more:" in text
    assert "--instances" in text


def test_options_of_the_certificate(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    content = predicted(capsys, "arrays", "inputs.npz", "--method", "adp", "--out", "c.json")
    certificate = Certificate.load("c.json")
    assert certificate.method == ADP()
    assert certificate.radius.tolist() == [row["radius"] for row in content["predictions"]]
    assert "--method adp" in refused(run(capsys, "predict", "arrays", "inputs.npz", "--delta", "1e-5"))


# --- where it goes --------------------------------------------------------------------------------------------------


def test_predictions_as_csv(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    content = predicted(capsys, "table", "new.csv", "--out", "predictions.csv")
    assert content["out"] == "predictions.csv"
    with Path("predictions.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [{key: str(value) for key, value in row.items()} for row in content["predictions"]] == rows


def test_a_certificate_that_verify_confirms(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    outcome = run(capsys, "predict", "arrays", "inputs.npz", "--out", "my certificate.json", "--device", "cpu")
    assert outcome.out.splitlines()[-2].endswith("check it with: mithridate verify 'my certificate.json'")
    assert outcome.out.splitlines()[-1].startswith("Conditional on seed-known. ")
    assert verify("my certificate.json").valid
    assert main(["report", "my certificate.json", "-o", "report.html"]) == 0


def test_votes_that_certify_takes(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    outcome = run(capsys, "predict", "arrays", "inputs.npz", "--out", "my votes.npz", "--device", "cpu")
    assert outcome.out.splitlines()[-2].endswith("certify it with: mithridate certify 'my votes.npz'")
    assert Votes.load("my votes.npz").labels is None
    assert main(["certify", "my votes.npz", "--json"]) == 0


def test_class_names_of_any_kind_are_printed_and_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    odd = ['say "hi", all', "[bold]é[/bold]", "=1+1"]
    np.savez("a.npz", x=TRAIN[0], y=TRAIN[1])
    Path("p.toml").write_text(
        f"[data]\ntrain = 'a.npz'\ntest = 'a.npz'\nkind = 'arrays'\nclasses = {json.dumps(odd)}\n"
        "[train]\ninstances = 8\ndevice = 'cpu'\n"
    )
    assert main(["train", "p.toml"]) == 0
    outcome = run(capsys, "predict", "runs/p", "a.npz", "--out", "out.csv", "--device", "cpu")
    assert outcome.code == 0, outcome.err
    assert odd[1] in outcome.out
    with Path("out.csv").open(newline="", encoding="utf-8") as file:
        written = {row["prediction"] for row in csv.DictReader(file)}
    assert written <= {odd[0], odd[1], f"'{odd[2]}"}  # no spreadsheet takes it for a formula


def test_more_classes_than_names(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A label without a name is called by its number, wherever it is read."""
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text(flowers(30, 0))
    Path("p.toml").write_text(PROJECT.replace("flowers.csv", "a.csv").replace("test.csv", "a.csv"))
    # With noise like this every label is as likely as any other, and most of them have no name.
    flags = ["--instances", "4", "--classes", "60", "--noise-multiplier", "1000", "--run-dir", "run"]
    outcome = run(capsys, "train", "p.toml", *flags)
    if outcome.code == 2:
        assert "classes" in refused(outcome)
        return
    for arguments in (["predict", "run", "a.csv", "--device", "cpu"], ["certify", "run"], ["report", "run"]):
        outcome = run(capsys, *arguments)
        assert outcome.code == 0, outcome.err


# --- what cannot be done --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere", "test.npz"], "directory of a run"),
        (["test.npz", "test.npz"], "directory of a run"),
        (["arrays", "missing.npz"], "no file or folder missing.npz"),
        (["arrays", "test.npz", "--out", "missing/new.npz"], "no folder"),
        (["arrays", "test.npz", "--out", "."], "it is a folder"),
        (["arrays", "test.npz", "--out", "test.npz/new.csv"], "no folder"),
        (["arrays", "test.npz", "--out", "new.txt"], ".csv, .json, .npz"),
        (["arrays", "test.npz", "--out", "new"], ".csv, .json, .npz"),
        (["arrays", "test.npz", "--device", "abacus"], "abacus"),
        (["arrays", "test.npz", "--failure-prob", "2"], "--failure-prob"),
        (["arrays", "wide.npz"], "shape"),
        (["arrays", "nan.npz"], "NaN"),
        (["arrays", "empty.npz"], "empty"),
        (["arrays", "strange.npz"], "is 7"),
        (["arrays", "new.csv"], "declare"),
        (["table", "test.npz"], "A table is declared"),
        (["table", "lacks.csv"], "no column 'soil'"),
        (["table", "other.csv"], "'tulip', which is not among the classes daisy, lily, rose"),
        (["table", "words.csv"], "'long'"),
        (["table", "empty.csv"], "empty.csv"),
        (["table", "header.csv"], "no rows"),
    ],
)
def test_predictions_that_cannot_be_made(
    capsys: pytest.CaptureFixture[str], files: Path, arguments: list[str], says: str
) -> None:
    np.savez("wide.npz", x=np.zeros((3, 9), np.float32))
    np.savez("nan.npz", x=TEST[0] * np.nan)
    np.savez("empty.npz", x=TEST[0][:0])
    np.savez("strange.npz", x=TEST[0], y=TEST[1] * 0 + 7)
    Path("lacks.csv").write_text("petal\n1\n")
    Path("other.csv").write_text("petal,soil,kind\n1,clay,tulip\n")
    Path("words.csv").write_text("petal,soil\nlong,clay\n")
    Path("empty.csv").touch()
    Path("header.csv").write_text("petal,soil\n")
    before = everything_in(files)
    assert says in refused(run(capsys, "predict", *arguments))
    assert everything_in(files) == before


def test_a_run_that_kept_no_models(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    flags = ["--train", "train.npz", "--test", "test.npz", "--run-dir", "bare", *ARRAY_FLAGS]
    assert run(capsys, "train", *flags, "--instances", "2", "--no-keep-models").code == 0
    Path("old.csv").write_text("old")
    assert "--keep-models" in refused(run(capsys, "predict", "bare", "test.npz", "--out", "old.csv"))
    assert Path("old.csv").read_text() == "old"


@pytest.mark.parametrize("what", ["run.json", "models"])
@pytest.mark.parametrize("damage", ["cut", "gone", "garbage"])
def test_a_damaged_run(capsys: pytest.CaptureFixture[str], files: Path, what: str, damage: str) -> None:
    target = Path("arrays") / what
    path = next(target.iterdir()) if target.is_dir() else target
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data[: len(data) // 2] if damage == "cut" else b"\x00\xff garbage")
    Path("old.json").write_text("old")
    refused(run(capsys, "predict", "arrays", "test.npz", "--out", "old.json"))
    assert Path("old.json").read_text() == "old"


@pytest.mark.parametrize(
    "source",
    [3, [], "x", {"declaration": 3}, {"declaration": {"kind": "nothing"}}, {"class_names": 3}, {"class_names": [1]},
     {"class_names": ["a", "a"]}],
)  # fmt: skip
def test_a_manifest_that_says_something_else(capsys: pytest.CaptureFixture[str], files: Path, source: Any) -> None:
    content = json.loads(Path("arrays/run.json").read_text())
    content["recipe"]["source"] = source
    Path("arrays/run.json").write_text(json.dumps(content))
    outcome = run(capsys, "predict", "arrays", "test.npz")
    assert outcome.code in (0, 2), outcome
    if outcome.code == 2:
        refused(outcome)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["config"], 3),
        (["config"], None),
        (["config", "instances"], "many"),
        (["model"], []),
        (["model"], "vgg"),
        (["features"], 3),
        (["config", "unknown"], 1),
        (["config", "steps"], "many"),
        (["config", "classes"], None),
    ],
)
def test_a_manifest_with_another_recipe(
    capsys: pytest.CaptureFixture[str], files: Path, place: list[str], value: Any
) -> None:
    content = json.loads(Path("arrays/run.json").read_text())
    *path, last = ["recipe", *place]
    inner = content
    for name in path:
        inner = inner[name]
    inner[last] = value
    Path("arrays/run.json").write_text(json.dumps(content))
    refused(run(capsys, "predict", "arrays", "test.npz"))
