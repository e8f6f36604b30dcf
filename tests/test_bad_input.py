"""Bad input, from the file to the exit status: one sentence that names the culprit, status 2, and nothing lost."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cli import MECHANISM, run
from test_train_cli import everything_in, refused

from mithridate import Certificate, SampledGaussian, Votes, certify
from mithridate.data import Examples
from mithridate.data.declarations import MOST_CLASSES
from mithridate.data.partition import split_by_hash
from mithridate.data.table_files import read_csv

QUICK = ["--instances", "8", "--device", "cpu"]
ROWS = [f"{number % 17},{number % 5},{'ab'[number % 2]}" for number in range(60)]
TABLE = "\n".join(["p,q,kind", *ROWS, ""])
PROJECT = """
[data]
train = "train.csv"
test = "test.csv"
kind = "table"
label = "kind"
columns = [{kind = "number", name = "p", low = 0, high = 20}, {kind = "number", name = "q", low = 0, high = 5}]
"""
CLASSES = 'classes = ["a", "b"]\n'


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table, its project, and a finished run beside them that must not change."""
    monkeypatch.chdir(tmp_path)
    Path("train.csv").write_text(TABLE)
    Path("test.csv").write_text(TABLE)
    Path("p.toml").write_text(PROJECT)
    Path("runs").mkdir()
    Path("runs/earlier").mkdir()
    votes = Votes.from_counts([[200, 0], [30, 170]], mechanism=SampledGaussian(20.0, 1.0, 4), labels=[0, 1])
    votes.save("runs/earlier/votes.npz")
    certify(votes).save("runs/earlier/certificate.json")
    Path("runs/earlier/report.html").write_text("an older report")
    return tmp_path


def check_refused(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: Any) -> str:
    before = everything_in(folder)
    text = refused(run(capsys, *arguments))
    assert everything_in(folder) == before
    return text


def test_the_table_itself_is_good(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    """Without this the others would prove little."""
    outcome = run(capsys, "train", "p.toml", *QUICK)
    assert outcome.code == 0, outcome.err


# --- an empty file --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["train", "test"])
@pytest.mark.parametrize("text", ["", "\n", "p,q,kind\n"])
def test_an_empty_table(capsys: pytest.CaptureFixture[str], here: Path, role: str, text: str) -> None:
    Path(f"{role}.csv").write_text(text)
    assert f"{role}.csv" in check_refused(capsys, here, "train", "p.toml", *QUICK)


@pytest.mark.parametrize("name", ["empty.npz", "empty.parquet", "empty.csv", "empty.png", "empty.toml", "empty"])
def test_an_empty_file_of_any_kind(capsys: pytest.CaptureFixture[str], here: Path, name: str) -> None:
    Path(name).touch()
    check_refused(capsys, here, "train", "--train", name, *QUICK)
    check_refused(capsys, here, "init", name, "--label", "kind")
    check_refused(capsys, here, "certify", name)
    check_refused(capsys, here, "verify", name)
    check_refused(capsys, here, "report", name)
    check_refused(capsys, here, "predict", name, name)
    check_refused(capsys, here, "train", name, *QUICK)  # an empty project lacks its data


def test_an_empty_folder(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    Path("nothing").mkdir()
    for arguments in (
        ["train", "--train", "nothing"],
        ["train", "nothing"],
        ["init", "nothing"],
        ["certify", "nothing"],
        ["report", "nothing"],
        ["verify", "nothing"],
        ["predict", "nothing", "test.csv"],
    ):
        assert "nothing" in check_refused(capsys, here, *arguments)


# --- classes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", ["", CLASSES])
def test_one_class(capsys: pytest.CaptureFixture[str], here: Path, declared: str) -> None:
    Path("train.csv").write_text(TABLE.replace(",b\n", ",a\n"))
    Path("p.toml").write_text(PROJECT + declared)
    assert "'a'" in check_refused(capsys, here, "train", "p.toml", *QUICK)


def test_one_class_in_arrays(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    np.savez("one.npz", x=np.eye(9), y=np.zeros(9, dtype=int))
    assert "two classes" in check_refused(capsys, here, "train", "--train", "one.npz", *QUICK)


@pytest.mark.parametrize("declared", ["", CLASSES])
def test_a_label_never_seen_in_training(capsys: pytest.CaptureFixture[str], here: Path, declared: str) -> None:
    Path("test.csv").write_text("p,q,kind\n1,1,a\n2,2,c\n")
    Path("p.toml").write_text(PROJECT + declared)
    text = check_refused(capsys, here, "train", "p.toml", *QUICK)
    assert "line 3 of test.csv is 'c'" in text
    assert "a, b" in text


def test_a_label_never_seen_in_training_of_arrays(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    np.savez("a.npz", x=np.eye(9), y=np.arange(9) % 2)
    np.savez("b.npz", x=np.eye(9), y=np.arange(9) % 3)
    text = check_refused(capsys, here, "train", "--train", "a.npz", "--test", "b.npz", *QUICK)
    assert "is 2" in text


def test_a_label_that_is_missing(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    Path("train.csv").write_text(TABLE + "1,1,\n")
    assert "line 62 of train.csv is missing" in check_refused(capsys, here, "train", "p.toml", *QUICK)


def test_a_huge_number_of_classes(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    count = MOST_CLASSES + 1
    Path("train.csv").write_text("p,q,kind\n" + "".join(f"1,1,c{number}\n" for number in range(count)))
    assert f"{count:,} different labels" in check_refused(capsys, here, "train", "p.toml", *QUICK)
    assert "column" in check_refused(capsys, here, "init", "train.csv", "--label", "kind")
    np.savez("many.npz", x=np.eye(3), y=np.array([0, 1, 10**9]))
    text = check_refused(capsys, here, "train", "--train", "many.npz", *QUICK)
    assert "1e+09" in text
    declared = json.dumps([f"c{number}" for number in range(count)])
    Path("p.toml").write_text(f"{PROJECT}classes = {declared}\n")
    assert f"{count:,} classes are declared" in check_refused(capsys, here, "train", "p.toml", *QUICK)


@pytest.mark.parametrize("count", [10**12, 10**18, 10**30])
def test_a_huge_number_of_classes_by_flag(capsys: pytest.CaptureFixture[str], here: Path, count: int) -> None:
    assert "classes" in check_refused(capsys, here, "train", "p.toml", *QUICK, "--classes", count)


# --- cells ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", ["", "NA"])
def test_a_column_that_is_all_missing(capsys: pytest.CaptureFixture[str], here: Path, cell: str) -> None:
    rows = [f"{row.split(',')[0]},{cell},{row.split(',')[2]}" for row in ROWS]
    Path("train.csv").write_text("\n".join(["p,q,kind", *rows, ""]))
    assert "'q'" in check_refused(capsys, here, "train", "p.toml", *QUICK)


def test_a_column_that_is_not_there(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    Path("train.csv").write_text(TABLE.replace("p,q,kind", "p,Q1,kind"))
    assert "no column 'q'" in check_refused(capsys, here, "train", "p.toml", *QUICK)


@pytest.mark.parametrize("role", ["train", "test"])
@pytest.mark.parametrize("cell", ["many", "1;2", "12 cm", "2024-01-01"])
def test_text_where_numbers_are_declared(capsys: pytest.CaptureFixture[str], here: Path, role: str, cell: str) -> None:
    Path(f"{role}.csv").write_text(f"{TABLE}{cell},1,a\n")
    text = check_refused(capsys, here, "train", "p.toml", *QUICK)
    assert "'p'" in text
    assert f"line 62 of {role}.csv" in text
    assert cell in text


@pytest.mark.parametrize("row", ["1,2", "1,2,a,9", '"1,2,a'])
def test_a_row_that_is_no_row(capsys: pytest.CaptureFixture[str], here: Path, row: str) -> None:
    Path("train.csv").write_text(f"{TABLE}{row}\n")
    assert "train.csv" in check_refused(capsys, here, "train", "p.toml", *QUICK)


def swallowing(first: int, last: int) -> str:
    """The table with a quote too many on two of its lines: what is between them becomes one cell."""
    lines = TABLE.split("\n")
    for line in (first, last):
        at = lines[line - 1].rindex(",") + 1
        lines[line - 1] = f'{lines[line - 1][:at]}"{lines[line - 1][at:]}' if line == first else lines[line - 1] + '"'
    return "\n".join(lines)


def test_a_quote_that_swallows_rows(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    Path("train.csv").write_text(swallowing(10, 40))
    text = check_refused(capsys, here, "train", "p.toml", *QUICK)
    assert "line 10 of train.csv" in text
    assert "up to line 40" in text


@pytest.mark.parametrize("header", [True, False])
def test_a_quote_that_swallows_thousands_of_lines(capsys: pytest.CaptureFixture[str], here: Path, header: bool) -> None:
    lines = ["p,q,kind", *["1,2,a"] * 5000, ""]
    first = 1 if header else 3
    lines[first - 1] = '1,2,"a' if not header else 'p,q,"kind'
    lines[4000] += '"'
    Path("train.csv").write_text("\n".join(lines))
    assert f"line {first} of train.csv" in check_refused(capsys, here, "init", "train.csv", "--label", "kind")
    prose = "\n".join(["text", '"once', *["upon a time"] * 2000, 'the end"', "more", ""])
    Path("train.csv").write_text(prose)
    assert "line 2 of train.csv" in check_refused(capsys, here, "init", "train.csv", "--label", "text")


def test_text_of_many_lines_is_no_swallowed_row(here: Path) -> None:
    poem = "\n".join(["Tyger Tyger, burning bright,", "In the forests of the night;"] * 30)
    Path("train.csv").write_text(f'text,kind\n"{poem}",a\nshort,b\n')
    assert read_csv(Path("train.csv")).rows == 2


def test_a_quote_in_counts(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    """The first row would pass for a header and go, with all that it swallowed."""
    Path("counts.csv").write_text('"a,b\n3,1\n2,2",b\n1,3\n')
    assert "quote" in check_refused(capsys, here, "certify", "counts.csv", *MECHANISM)


# --- pipes and devices ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "pipe.json"], ["report", "pipe.json"], ["certify", "pipe.npz"], ["certify", "pipe.csv", *MECHANISM],
        ["train", "pipe.toml"], ["compare", "pipe.toml"], ["train", "--train", "pipe.npz"], ["init", "pipe.csv"],
        ["init", "pipe.tsv"], ["init", "pipe.parquet"], ["train", "p.toml", "--test", "pipe.csv"],
        ["train", "p.toml", "--root-seed", "pipe"], ["merge", "pipe.npz", "runs/earlier", "-o", "m.npz"],
        ["report", "runs/earlier", "--inputs", "pipe.npz"], ["init", "pipe.png"], ["init", "device.csv"],
        ["verify", "device.json"], ["train", "device.toml"], ["certify", "device.npz"],
    ],
    ids=lambda arguments: " ".join(arguments[:3]),
)  # fmt: skip
def test_pipes_and_devices_are_refused(capsys: pytest.CaptureFixture[str], here: Path, arguments: list[str]) -> None:
    """At once: nobody writes into the pipes, and the device has no end."""
    for word in arguments:
        if word.startswith("pipe"):
            os.mkfifo(word)
        elif word.startswith("device"):
            Path(word).symlink_to("/dev/zero")
    assert "not a file but a pipe or a device" in refused(run(capsys, *arguments))


@pytest.mark.parametrize("flag", ["-o=--", "-o--", "--out=--", "--title=--"])
def test_dashes_for_a_value(capsys: pytest.CaptureFixture[str], here: Path, flag: str) -> None:
    assert "not a value" in check_refused(capsys, here, "report", "runs/earlier", flag)


# --- images ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [b"", b"not an image", b"\x89PNG\r\n\x1a\n", "cut"])
def test_a_broken_image(capsys: pytest.CaptureFixture[str], here: Path, damage: bytes | str) -> None:
    image = pytest.importorskip("PIL.Image")
    for number, kind in enumerate("abababab"):
        Path("pets", kind).mkdir(parents=True, exist_ok=True)
        image.new("RGB", (8, 8), (number, 0, 0)).save(f"pets/{kind}/{number}.png")
    Path("pets.toml").write_text('[data]\ntrain = "pets"\ntest = "pets"\nkind = "images"\nsize = [8, 8]\n')
    assert run(capsys, "train", "pets.toml", *QUICK).code == 0
    shutil.rmtree("runs/pets")
    broken = Path("pets/b/3.png")
    broken.write_bytes(broken.read_bytes()[:-30] if isinstance(damage, str) else damage)
    assert str(broken) in check_refused(capsys, here, "train", "pets.toml", *QUICK)


# --- where nothing can be written -----------------------------------------------------------------------------------


def test_a_report_folder_without_permission(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("the superuser may write anywhere")
    closed = Path("closed")
    closed.mkdir(mode=0o500)
    assert "read-only" in check_refused(capsys, here, "report", "runs/earlier", "-o", closed / "r.html")
    assert "read-only" in check_refused(capsys, here, "predict", "runs/earlier", "test.csv", "--out", closed / "r.csv")
    assert "closed" in check_refused(capsys, here, "train", "p.toml", *QUICK, "--run-dir", closed / "run")


@pytest.mark.parametrize("place", ["train.csv/r.html", "none/r.html", "runs"])
def test_a_report_folder_that_is_none(capsys: pytest.CaptureFixture[str], here: Path, place: str) -> None:
    """A place below a file cannot be written to by anybody, nor can a folder that is not there."""
    check_refused(capsys, here, "report", "runs/earlier", "--format", "html", "-o", place)
    check_refused(capsys, here, "demo", *QUICK, "-o", place)
    check_refused(capsys, here, "certify", "runs/earlier", "--out", place)
    check_refused(capsys, here, "init", "train.csv", "--label", "kind", "-o", place)
    if place != "runs":  # a folder is what a run wants
        Path("none").touch()
        check_refused(capsys, here, "train", "p.toml", *QUICK, "--run-dir", place)


def test_a_disk_that_is_full(capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was there before stays whole, and no half file takes its place."""

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        for arguments in (
            ["certify", "runs/earlier"],
            ["report", "runs/earlier"],
            ["init", "train.csv", "--label", "kind"],
        ):
            assert "No space left" in check_refused(capsys, here, *arguments)
    assert Certificate.load("runs/earlier/certificate.json").votes.instances == 200


# --- numbers and names beyond measure -------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--noise-multiplier", "--max-grad-norm", "--learning-rate"])
def test_numbers_that_training_cannot_hold(capsys: pytest.CaptureFixture[str], here: Path, flag: str) -> None:
    refused(run(capsys, "train", "p.toml", *QUICK, flag, "1e300"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "p.toml", "--steps", "1" * 400],
        ["train", "p.toml", "--num-train", "1" * 400],
        ["train", "p.toml", "--instances", "1" * 400],
        ["plan", *MECHANISM, "--classes", "2", "--instances", "1" * 400],
    ],
)
def test_numbers_that_nothing_can_hold(capsys: pytest.CaptureFixture[str], here: Path, arguments: list[str]) -> None:
    check_refused(capsys, here, *arguments)


LONG = "a" * 300


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", LONG],
        ["train", "--train", f"{LONG}.csv"],
        ["train", "p.toml", "--run-dir", LONG],
        ["train", "p.toml", "--root-seed", LONG],
        ["predict", LONG, "test.csv"],
        ["report", LONG],
        ["report", "runs/earlier", "-o", f"{LONG}.html"],
        ["certify", "runs/earlier", "--out", f"{LONG}.json"],
        ["verify", LONG],
        ["verify", "runs/earlier/certificate.json", "--run", LONG],
        ["certify", f"{LONG}.csv"],
        ["report", "runs/earlier", "--inputs", f"{LONG}.npz"],
    ],
)
def test_names_that_no_file_can_have(capsys: pytest.CaptureFixture[str], here: Path, arguments: list[str]) -> None:
    assert "too long" in check_refused(capsys, here, *arguments)


def test_the_held_out_examples_may_be_all_there_is_of_a_class(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    """The class counts all the same: which ones there are must not hang on the split."""
    x = np.arange(200, dtype=np.float32)[:, None]
    _, held_out = split_by_hash(Examples(x, None), 0.2)
    np.savez("a.npz", x=x, y=np.isin(x, held_out.x)[:, 0].astype(int))
    outcome = run(capsys, "train", "--train", "a.npz", *QUICK)
    assert outcome.code == 0, outcome.err
    assert Votes.load("run/votes.npz").classes == 2
