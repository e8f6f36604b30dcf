"""Hashes of inputs and training data: functions of the content alone, which anyone computes again in ten lines."""

import csv as csv_format
import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from test_cli import run, run_json

from mithridate import Certificate, ConfigError, SampledGaussian, TamperedError, Votes, certify, verify
from mithridate._io.artifacts import read_hashed, write_hashed
from mithridate._io.files import parse_json
from mithridate.core.certificate import SCHEMA
from mithridate.core.provenance import TrainingData, fingerprint, from_digits, in_digits, input_hashes
from mithridate.defences import defence, predict

MECHANISM = SampledGaussian(30.0, 1.0, 4)
NAMED = {"source": {"class_names": ["=cat", "dog", "-3"]}}


def slow_hash(value: Any) -> str:
    """The lines of docs/certificate.md."""
    if isinstance(value, str):
        content = value.encode()
        content = b"text \n" + len(content).to_bytes(8, "little") + content
    else:
        array = np.asarray(value)
        kind, dtype = ("uint8", "u1") if array.dtype == np.uint8 else ("numbers", "<f8")
        content = f"{kind} {'x'.join(map(str, array.shape))}\n".encode() + array.astype(dtype).tobytes()
    return hashlib.sha256(content).hexdigest()


def slow_fingerprint(inputs: Sequence[Any], labels: Sequence[int]) -> str:
    lines = "".join(f"{slow_hash(x)} {label}\n" for x, label in zip(inputs, labels, strict=True))
    return hashlib.sha256(lines.encode()).hexdigest()


INPUTS: list[npt.NDArray[Any]] = [
    np.arange(12, dtype=np.float32).reshape(4, 3),
    np.arange(12).reshape(2, 6),
    np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    np.array([[True, False]]),
    np.array(["", "é", "a\0b", "much longer than the others"]),
    np.zeros((3000, 1)),
]


@pytest.mark.parametrize("x", INPUTS, ids=lambda x: f"{x.dtype} {x.shape}")
def test_hashes_are_those_of_the_documentation(x: npt.NDArray[Any]) -> None:
    assert in_digits(input_hashes(x)) == [slow_hash(each) for each in (x.tolist() if x.dtype.kind == "U" else x)]
    y = np.arange(len(x)) % 3
    assert fingerprint(x, y) == slow_fingerprint(x.tolist() if x.dtype.kind == "U" else list(x), y.tolist())


@given(
    x=hnp.arrays(np.float32, (5, 3), elements=st.floats(-9, 9, width=32)),
    kept=st.lists(st.integers(0, 4), min_size=1),
)
def test_a_hash_follows_from_its_own_input_alone(x: Any, kept: list[int]) -> None:
    every = input_hashes(x)
    for other in (x[kept], x.astype(np.float64)[kept], x.astype(">f4")[kept], np.asfortranarray(x)[kept]):
        assert np.array_equal(input_hashes(other), every[kept])


def test_texts_are_hashed_without_what_pads_them() -> None:
    short, long = np.array(["ab", "c"]), np.array(["ab", "c", "a longer one"])
    assert np.array_equal(input_hashes(short), input_hashes(long)[:2])


def test_what_differs_has_another_hash() -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    different = [x, x.reshape(4, 2, 3), x.astype(np.uint8), x + 1, np.array(["0.0", "1.0"])]
    assert len({in_digits(input_hashes(each))[0] for each in different}) == 5
    y = np.array([0, 1, 0, 1])
    found = {
        fingerprint(x),
        fingerprint(x, y),
        fingerprint(x, 1 - y),
        fingerprint(x[::-1], y),
        fingerprint(x[:3], y[:3]),
    }
    assert len(found) == 5


@given(x=hnp.arrays(np.uint8, (2, 5)), place=st.integers(0, 9), change=st.integers(1, 255))
def test_the_fingerprint_sees_every_byte(x: Any, place: int, change: int) -> None:
    other = x.copy()
    other.reshape(-1)[place] ^= change
    assert fingerprint(x) != fingerprint(other)


@given(hnp.arrays(np.uint8, st.tuples(st.integers(0, 5), st.just(32))))
def test_digits_are_read_back(hashes: Any) -> None:
    assert np.array_equal(from_digits(in_digits(hashes)), hashes)


@pytest.mark.parametrize("wrong", ["", "0" * 63, "0" * 65, "G" * 64, "A" * 64, 3, None, "0" * 63 + "\n"])
def test_what_is_no_hash_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        from_digits(["0" * 64, wrong])
    with pytest.raises(ConfigError, match="fingerprint of the training data as 64 hexadecimal digits"):
        TrainingData(wrong, 3)
    if wrong is not None:
        with pytest.raises(ConfigError, match="features of the training data"):
            TrainingData("0" * 64, 3, wrong)


@pytest.mark.parametrize("examples", [0, -1, True, 1.0, "3", None])
def test_training_data_has_examples(examples: Any) -> None:
    with pytest.raises(ConfigError, match="examples of the training data from 1 on"):
        TrainingData("0" * 64, examples)


def known_votes(**more: Any) -> Votes:
    """Votes that name their data and their classes."""
    x = np.arange(12.0).reshape(3, 4)
    given: dict[str, Any] = {
        "recipe": NAMED,
        "labels": np.array([0, 1, 2]),
        "training": TrainingData("1" * 64, 60),
        "input_hashes": input_hashes(x),
    }
    return Votes(np.array([[200, 0, 0], [30, 160, 10], [90, 80, 30]]), MECHANISM, **{**given, **more})


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("input_hashes", np.zeros((2, 32), np.uint8), "32 bytes for each of 3"),
        ("input_hashes", np.zeros((3, 31), np.uint8), "32 bytes for each of 3"),
        ("input_hashes", np.zeros((3, 32), np.int64), "32 bytes for each of 3"),
        ("input_hashes", ["0" * 64] * 3, "32 bytes for each of 3"),
        ("training", {"fingerprint": "1" * 64, "examples": 60}, "training to be TrainingData"),
        ("training", "1" * 64, "training to be TrainingData"),
    ],
)
def test_votes_refuse_other_hashes(name: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        known_votes(**{name: value})


@pytest.mark.parametrize(
    "other",
    [
        {"input_hashes": None},
        {"input_hashes": np.zeros((3, 32), np.uint8)},
        {"training": None},
        {"training": TrainingData("2" * 64, 60)},
    ],
)
def test_votes_on_other_data_do_not_merge(other: dict[str, Any]) -> None:
    one, two = known_votes(run_ids=("a",)), known_votes(run_ids=("b",))
    assert np.array_equal(one.merge(two).input_hashes, one.input_hashes)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="different data or inputs"):
        one.merge(replace(two, **other))


# --- certificates ---------------------------------------------------------------------------------------------------


def test_any_tool_reads_what_is_claimed(tmp_path: Path) -> None:
    certificate = certify(known_votes())
    certificate.save(tmp_path / "c.json")
    plain = json.loads((tmp_path / "c.json").read_text())
    assert plain["label"] == [0, 1, 0] == certificate.label.tolist()
    assert plain["class"] == ["=cat", "dog", "=cat"]
    assert plain["radius"] == certificate.radius.tolist()
    assert plain["status"] == certificate.status.tolist()
    assert plain["input_hash"] == [slow_hash(row) for row in np.arange(12.0).reshape(3, 4)]
    assert plain["training"] == {"fingerprint": "1" * 64, "examples": 60}
    assert plain["versions"]["mithridate"]
    loaded = Certificate.load(tmp_path / "c.json")
    assert loaded == certificate
    assert loaded.issued == certificate.issued
    assert loaded.votes == certificate.votes


def test_lists_of_many_stand_on_one_line_each(tmp_path: Path) -> None:
    counts = np.tile([[200, 0], [160, 40]], (500, 1))
    certify(Votes.from_counts(counts, mechanism=MECHANISM)).save(tmp_path / "c.json")
    lines = (tmp_path / "c.json").read_text().splitlines()
    assert len(lines) < 60
    for name in ("label", "radius", "status"):
        (line,) = (line for line in lines if line.startswith(f'"{name}": '))
        assert len(json.loads("{" + line.rstrip(",") + "}")[name]) == 1000


def changed(path: Path, **change: Any) -> None:
    """Write the certificate of known votes with something changed, and a hash that fits."""
    certify(known_votes()).save(path)
    content = read_hashed(path, SCHEMA)
    for key in ("schema", "size", "sha256"):
        content.pop(key)
    write_hashed(path, SCHEMA, {**content, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"class": ["dog", "dog", "=cat"]},
        {"class": ["=cat", "dog", "-3"]},
        {"class": ["=cat", "dog"]},
        {"class": None},
        {"class": "=cat"},
        {"label": [0, 1, 7]},
        {"label": [0, 1, -1]},
    ],
)
def test_names_that_are_not_those_of_the_labels_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    from mithridate import ArtifactError

    changed(tmp_path / "c.json")
    assert verify(tmp_path / "c.json").valid
    changed(tmp_path / "c.json", **change)
    with pytest.raises(ArtifactError, match="class does not hold the names of the labels"):
        verify(tmp_path / "c.json")


def test_names_and_labels_that_agree_on_something_false_are_refuted(tmp_path: Path) -> None:
    changed(tmp_path / "c.json", label=[1, 1, 0], **{"class": ["dog", "dog", "=cat"]})
    assert {check.name for check in verify(tmp_path / "c.json").checks if not check.passed} == {"labels"}


@pytest.mark.parametrize(
    "text", ['{"radius": [1], "radius": [9]}', '{"a": {"b": 1, "c": 2, "b": 1}}', '[{"x": 1, "x": 1}]']
)
def test_a_name_that_is_there_twice_is_no_json(text: str) -> None:
    """Of two values of one name some programs read the first, others the last."""
    with pytest.raises(ValueError, match="is there twice"):
        parse_json(text)
    assert json.loads(text) is not None


def test_a_certificate_that_says_two_things_is_refused(tmp_path: Path) -> None:
    from mithridate import ArtifactError

    path = tmp_path / "c.json"
    certify(known_votes()).save(path)
    text = path.read_text().replace('"radius": ', '"radius": [9, 9, 9],\n"radius": ', 1)
    with pytest.raises(TamperedError):
        Certificate.load(_written(path, text.encode()))
    digest, size = json.loads(text)["sha256"], json.loads(text)["size"]
    blank = text.replace(size, f"{len(text.encode()):012d}").replace(digest, "0" * 64)
    _written(path, blank.replace("0" * 64, hashlib.sha256(blank.encode()).hexdigest(), 1).encode())
    with pytest.raises(ArtifactError, match="'radius' is there twice"):
        verify(path)


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_the_time_can_be_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")
    one = certify(known_votes())
    assert one.issued == "2001-09-09T01:46:40Z"  # as every calendar has it
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000001")
    two = certify(known_votes())
    assert one == two
    one.save(tmp_path / "one.json")
    two.save(tmp_path / "two.json")
    assert (tmp_path / "one.json").read_bytes() != (tmp_path / "two.json").read_bytes()
    replace(two, issued=one.issued).save(tmp_path / "two.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


@pytest.mark.parametrize("said", ["now", "-1", "1.5", "9" * 13, "1e9", "१"])
def test_a_time_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", said)
    with pytest.raises(ConfigError, match="SOURCE_DATE_EPOCH as whole seconds since 1970"):
        certify(known_votes())


# --- commands -------------------------------------------------------------------------------------------------------


def table(tmp_path: Path, rows: int = 60) -> tuple[Path, list[list[float]], list[str]]:
    """A table of two columns with a project that declares it, its numbers and its labels."""
    rng = np.random.default_rng(5)
    labels = ["no", "yes"] * (rows // 2)
    numbers = [[round(float(v), 2) for v in (rng.normal() + (name == "yes") * 2, rng.normal())] for name in labels]
    lines = ["a,b,kind", *(f"{a},{b},{name}" for (a, b), name in zip(numbers, labels, strict=True))]
    (tmp_path / "d.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "p.toml").write_text(
        f"""run_dir = {json.dumps(str(tmp_path / "run"))}
[data]
train = "d.csv"
holdout = 0.3
kind = "table"
label = "kind"
classes = ["no", "yes"]
[[data.columns]]
kind = "number"
name = "a"
low = -5.0
high = 5.0
[[data.columns]]
kind = "number"
name = "b"
low = -5.0
high = 5.0
[train]
method = "nearest-neighbours"
neighbours = 5
"""
    )
    return tmp_path / "d.csv", numbers, labels


@pytest.fixture
def certified(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Path:
    """The directory of a run with its certificate."""
    table(tmp_path)
    for arguments in (("train", tmp_path / "p.toml"), ("certify", tmp_path / "run")):
        outcome = run(capsys, *arguments)
        assert outcome.code == 0, outcome.err
    return tmp_path / "run"


def test_fingerprint_recomputes_what_the_certificate_names(
    capsys: pytest.CaptureFixture[str], certified: Path, tmp_path: Path
) -> None:
    named = json.loads((certified / "certificate.json").read_text())
    found = run_json(capsys, "fingerprint", tmp_path / "d.csv", "--project", tmp_path / "p.toml")
    assert (found["training"], found["input_hash"]) == (named["training"], named["input_hash"])
    assert run_json(capsys, "fingerprint", tmp_path / "p.toml")["training"] == named["training"]
    people = run(capsys, "fingerprint", tmp_path / "d.csv", "--project", tmp_path / "p.toml").out
    assert people.splitlines()[1:] == [f"{a}  {b}" for a, b in zip(found["input_hash"], found["input"], strict=True)]
    assert named["training"]["fingerprint"] in people
    # Row by row: the same rows in a file of their own, in another order.
    held_out = [int(line.removeprefix("line ")) - 1 for line in found["input"]]
    lines = (tmp_path / "d.csv").read_text().splitlines()
    (tmp_path / "e.csv").write_text("\n".join([lines[0], *(lines[at] for at in held_out[::-1])]) + "\n")
    other = run_json(capsys, "fingerprint", tmp_path / "e.csv", "--project", tmp_path / "p.toml")
    assert other["input_hash"] == named["input_hash"][::-1]


def test_fingerprint_of_arrays_needs_no_project(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    x, y = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([0, 1, 1, 0])
    np.savez(tmp_path / "d.npz", x=x, y=y)
    found = run_json(capsys, "fingerprint", tmp_path / "d.npz")
    assert found["training"] == {"fingerprint": slow_fingerprint(list(x), y.tolist()), "examples": 4}
    assert found["input_hash"] == [slow_hash(row) for row in x]
    votes = defence("nearest-neighbours", neighbours=3, features="none").train((x, y), x[:2])
    assert votes.training is not None
    assert votes.training.to_dict() == found["training"]
    np.savez(tmp_path / "new.npz", x=x)
    unlabelled = run(capsys, "fingerprint", tmp_path / "new.npz")
    assert "This is no training data." in unlabelled.out
    assert run_json(capsys, "fingerprint", tmp_path / "new.npz")["training"] is None


def test_predictions_name_the_new_inputs(capsys: pytest.CaptureFixture[str], certified: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("b,a\n0.5,1.5\n-1,2\n")
    out = tmp_path / "predictions.csv"
    assert run(capsys, "predict", certified, tmp_path / "new.csv", "--out", out).code == 0
    found = run_json(capsys, "fingerprint", tmp_path / "new.csv", "--project", tmp_path / "p.toml")
    with out.open(newline="") as file:
        assert [row["input_hash"] for row in csv_format.DictReader(file)] == found["input_hash"]


def test_votes_of_predictions_keep_the_training_data(certified: Path) -> None:
    trained = Votes.load(certified / "votes.npz")
    kept = np.load(certified / "examples.npz")
    new = predict(
        certified, np.zeros((2, *json.loads((certified / "run.json").read_text())["inputs"]["shape"]), np.float32)
    )
    assert new.training == trained.training is not None
    assert trained.training is not None
    assert trained.training.examples == len(kept["labels"])


def test_a_csv_has_a_row_for_each_input(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    known_votes().save(tmp_path / "v.npz")
    out = tmp_path / "out.csv"
    assert run(capsys, "certify", tmp_path / "v.npz", "--csv", out).out.count(f"Written to {out}") == 1
    certificate = certify(known_votes())
    with out.open(newline="") as file:
        rows = list(csv_format.DictReader(file))
    assert [row["index"] for row in rows] == ["0", "1", "2"]
    assert [row["input_hash"] for row in rows] == [slow_hash(row) for row in np.arange(12.0).reshape(3, 4)]
    assert [row["class"] for row in rows] == ["'=cat", "dog", "'=cat"]  # no formula
    assert [int(row["label"]) for row in rows] == certificate.label.tolist()
    assert [int(row["radius"]) for row in rows] == certificate.radius.tolist()
    assert [row["status"] for row in rows] == certificate.status.tolist()
    assert [row["correct"] for row in rows] == ["yes", "yes", "no"]


def test_a_csv_of_foreign_counts_leaves_cells_empty(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("900,100\n")
    flags = ("--noise-multiplier", "3", "--sample-rate", "0.001", "--steps", "1000", "--csv", tmp_path / "out.csv")
    assert run(capsys, "certify", tmp_path / "c.csv", *flags).code == 0
    with (tmp_path / "out.csv").open(newline="") as file:
        (row,) = csv_format.DictReader(file)
    assert (row["input_hash"], row["class"], row["correct"], row["label"]) == ("", "", "", "0")


def test_a_csv_overwrites_nothing_that_is_read_or_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    known_votes().save(tmp_path / "v.npz")
    before = (tmp_path / "v.npz").read_bytes()
    for flags, says in (
        (("--csv", tmp_path / "v.npz"), "--csv would overwrite the votes"),
        (("--csv", tmp_path / "x", "--out", tmp_path / "x"), "--csv and --out are both"),
        (("--csv", tmp_path), "it is a folder"),
        (("--csv", tmp_path / "no" / "x"), "there is no folder"),
    ):
        outcome = run(capsys, "certify", tmp_path / "v.npz", *flags)
        assert outcome.code == 2
        assert says in outcome.err
    assert (tmp_path / "v.npz").read_bytes() == before
    assert not (tmp_path / "x").exists()


def test_verify_takes_the_directory_of_a_run(
    capsys: pytest.CaptureFixture[str], certified: Path, tmp_path: Path
) -> None:
    checks = {check["name"]: check["passed"] for check in run_json(capsys, "verify", certified)["checks"]}
    assert checks["source"]
    assert "mithridate verify" in run(capsys, "certify", certified).out
    # Of another run it is refused.
    votes = Votes.load(certified / "votes.npz")
    assert votes.input_hashes is not None
    other = replace(certify(votes).votes, input_hashes=votes.input_hashes[::-1].copy())
    replace(certify(votes), votes=other).save(certified / "certificate.json")
    outcome = run(capsys, "verify", certified)
    assert outcome.code == 1
    assert "hashes of inputs differ" in " ".join(outcome.out.split())


def test_verify_says_where_a_certificate_is_missing(
    capsys: pytest.CaptureFixture[str], certified: Path, tmp_path: Path
) -> None:
    (certified / "certificate.json").unlink()
    outcome = run(capsys, "verify", certified)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert f"There is no certificate.json in {certified}; write it with: mithridate certify {certified}." in outcome.err
    (tmp_path / "empty").mkdir()
    assert "give the directory of a certified run" in run(capsys, "verify", tmp_path / "empty").err


def test_progress_is_written_in_lines_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    from mithridate import _progress

    clock = [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_progress.time, "monotonic", lambda: clock[0])
        with _progress.progress_bar("claims checked") as progress:
            assert progress is not None
            for second in range(40):
                clock[0] = float(second)
                progress(1000 * second, 40_000)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "mithridate: claims checked: 2,000 of 40,000 (5%)"
    assert 10 < len(lines) < 25


@pytest.mark.more
def test_verify_shows_progress_when_piped(tmp_path: Path) -> None:
    from rival_votes import RIVALS

    few = RIVALS["nearest-neighbours at two scales"].votes
    votes = replace(
        few,
        counts=np.tile(few.counts, (20_000, 1)),
        labels=None,
        evidence={"order": np.tile(few.evidence["order"], (20_000, 1))},
    )
    certify(votes).save(tmp_path / "c.json")
    program = [sys.executable, "-m", "mithridate", "verify", str(tmp_path / "c.json")]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert "mithridate: claims checked: " in done.stderr
    assert " of 80,000 (" in done.stderr


@pytest.mark.parametrize(
    ("cell", "written"),
    [("=1+1", "'=1+1"), ("+1", "'+1"), ("-1", "-1"), ("-1.5", "-1.5"), ("-1+x|'C'!A0", "'-1+x|'C'!A0"),
     ("@SUM(A1)", "'@SUM(A1)"), ("\tx", "'\tx"), ("plain", "plain"), ("", ""), (3, 3), (-1, -1), ("-१", "'-१")],
)  # fmt: skip
def test_no_cell_is_a_formula(cell: Any, written: Any) -> None:
    from mithridate.cli.certifying import _inert

    assert _inert(cell) == written
