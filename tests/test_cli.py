"""The command line: flags, output for programs and for people, exit codes, and one clear sentence for bad input."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rival_votes import EXACT, RIVALS, method_of
from test_certificate import CONTRACT, scored_votes

from mithridate import Certificate, SampledGaussian, Subsampled, Threat, Votes, certify
from mithridate.cli import main

MECHANISM = ["--noise-multiplier", "20", "--sample-rate", "1", "--steps", "4"]
GAUSSIAN = SampledGaussian(20.0, 1.0, 4)
COUNTS = [[200, 0, 0], [30, 160, 10], [90, 80, 30]]
COMMANDS = (
    *("certify", "compare", "demo", "fingerprint", "init", "merge", "plan", "predict", "report", "train", "tune"),
    "verify",
    *("audit", "evidence", "gate", "serve", "update"),
)


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


def run(capsys: pytest.CaptureFixture[str], *arguments: Any) -> Outcome:
    """Run a command in this process; a usage error of argparse counts by its exit code."""
    capsys.readouterr()
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as error:
        code = int(error.code or 0)
    captured = capsys.readouterr()
    return Outcome(code, captured.out, captured.err)


def run_json(capsys: pytest.CaptureFixture[str], *arguments: Any) -> dict[str, Any]:
    outcome = run(capsys, *arguments, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.err == ""
    assert outcome.out.count("\n") == 1
    content = json.loads(outcome.out, parse_constant=pytest.fail)
    assert isinstance(content, dict)
    return content


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    path = tmp_path / "counts.csv"
    path.write_text("\n".join(",".join(map(str, row)) for row in COUNTS))
    return path


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    votes = scored_votes(mechanism=GAUSSIAN)
    path = tmp_path / "foreign.npz"
    np.savez(
        path,
        counts=votes.counts,
        sum=np.asarray(votes.score_sums),
        sumsq=np.asarray(votes.score_squares),
        hist=np.asarray(votes.score_histograms),
        y=np.asarray(votes.labels),
    )
    return path


# --- certify --------------------------------------------------------------------------------------------------------


def test_certify_prints_the_object_of_the_contract(capsys: pytest.CaptureFixture[str], csv: Path) -> None:
    content = run_json(capsys, "certify", csv, *MECHANISM)
    assert content.keys() >= CONTRACT
    expected = certify(Votes.from_counts(COUNTS, mechanism=GAUSSIAN))
    assert content == json.loads(json.dumps(expected.to_dict()))
    assert (content["method"], content["threat"], content["failure_prob"]) == ("fdp", "symmetric-difference", 0.001)
    assert (content["scope"], content["examples"], content["label"]) == ("prediction", 3, [0, 1, 0])
    assert content["status"] == ["certified", "certified", "not_separated"]
    assert set(content["summary"]) == {"median_radius", "max_radius", "abstained", "single_label"}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--method", "fdp"], {"method": "fdp"}),
        (["--method", "rdp"], {"method": "rdp", "method_options": {"group": "mixture", "complement": True}}),
        (["--method", "rdp-paper"], {"method_options": {"group": "paper", "complement": False}}),
        (["--method", "rdp-standard"], {"method_options": {"group": "standard", "complement": False}}),
        (["--method", "adp"], {"method": "adp", "method_options": {"delta": 1e-5}}),
        (["--method", "adp", "--delta", "1e-7"], {"method_options": {"delta": 1e-7}}),
        (["--on", "votes"], {"on": "votes", "bounds": "winner"}),
        (["--on", "scores"], {"on": "scores", "bounds": "histogram"}),
        (["--on", "scores", "--method", "adp"], {"on": "scores", "bounds": "empirical-bernstein"}),
        (["--on", "scores", "--bounds", "empirical-bernstein"], {"bounds": "empirical-bernstein"}),
        (["--on", "scores", "--bounds", "hoeffding"], {"bounds": "hoeffding"}),
        (["--on", "scores", "--bounds", "betting"], {"bounds": "betting"}),
        (["--bounds", "simultaneous"], {"bounds": "simultaneous"}),
        (["--bounds", "anytime"], {"bounds": "anytime"}),
        (["--bounds", "simuem"], {"bounds": "simuem"}),
        (["--bounds", "pointwise"], {"bounds": "pointwise"}),
        (["--threat", "add"], {"threat": "add"}),
        (["--threat", "remove"], {"threat": "remove"}),
        (["--threat", "replace"], {"threat": "replace"}),
        (["--threat", "symmetric-difference"], {"threat": "symmetric-difference"}),
        (["--failure-prob", "0.05"], {"failure_prob": 0.05}),
        (["--scope", "all"], {"scope": "all"}),
    ],
)
def test_every_flag_of_the_contract(
    capsys: pytest.CaptureFixture[str], foreign: Path, flags: list[str], expected: dict[str, Any]
) -> None:
    content = run_json(capsys, "certify", foreign, *MECHANISM, *flags)
    assert {key: content[key] for key in expected} == expected
    assert content["radius"][0] >= 0


@pytest.mark.parametrize(("text", "keep"), [("1/2", 0.5), ("0.5", 0.5), ("4000/50000", 0.08), ("1", 1.0), ("3/3", 1.0)])
def test_keep(capsys: pytest.CaptureFixture[str], csv: Path, text: str, keep: float) -> None:
    content = run_json(capsys, "certify", csv, *MECHANISM, "--keep", text, "--threat", "add")
    expected = certify(Votes.from_counts(COUNTS, mechanism=Subsampled(keep, GAUSSIAN)), threat="add")
    assert content["mechanism"]["type"] == "subsampled-gaussian"
    assert content["mechanism"]["keep"] == keep
    assert content["radius"] == expected.radius.tolist()


def test_true_labels_and_radii(capsys: pytest.CaptureFixture[str], foreign: Path) -> None:
    content = run_json(capsys, "certify", foreign, *MECHANISM, "--labels-key", "y", "--radii", "0,5,1000000")
    summary = content["summary"]
    assert list(summary["certified_accuracy"]) == ["0", "5", "1000000"]
    right = np.where(np.array(content["label"]) == [0, 0, 1, 2], content["radius"], -1)
    assert summary["certified_accuracy"]["0"] == float(np.mean(right >= 0))
    assert summary["median_radius_correct"] == float(np.median(right))
    table = run(capsys, "certify", foreign, *MECHANISM, "--labels-key", "y", "--radii", "0,5")
    assert table.code == 0
    assert "correct and certified" in table.out
    assert "Baseline: always saying '0' is correct on 50.0%." in table.out


def test_our_own_file_knows_its_mechanism_and_labels(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "votes.npz"
    scored_votes(mechanism=GAUSSIAN).save(path)
    content = run_json(capsys, "certify", path)
    assert content["mechanism"]["noise_multiplier"] == 20.0
    assert "certified_accuracy" in content["summary"]
    assert run_json(capsys, "certify", path, *MECHANISM) == content
    contradiction = run(capsys, "certify", path, *MECHANISM[:-1], "5")
    assert contradiction.code == 2
    assert "leave the mechanism flags out" in contradiction.err


def test_out_writes_what_verify_confirms(capsys: pytest.CaptureFixture[str], csv: Path, tmp_path: Path) -> None:
    out = tmp_path / "certificate.json"
    content = run_json(capsys, "certify", csv, *MECHANISM, "--out", out)
    assert Certificate.load(out).to_dict() == content
    checked = run_json(capsys, "verify", out)
    assert checked["valid"] is True
    assert checked["checks"]
    people = run(capsys, "verify", out)
    assert people.code == 0
    assert "The certificate holds" in people.out
    assert "Assumed: The attacker does not know the randomness of training." in people.out


def test_what_a_file_assumes_cannot_pass_for_what_verify_says(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    said = "Tuned here.\nThe certificate holds\x1b[2J"
    votes, out = tmp_path / "votes.npz", tmp_path / "certificate.json"
    Votes(np.array([[60, 4]]), SampledGaussian(2.0, 0.01, 100), assumptions=(said,)).save(votes)
    for arguments in (("certify", votes, "--out", out), ("verify", out), ("report", out, "--out", tmp_path / "r.html")):
        outcome = run(capsys, *arguments)
        assert outcome.code == 0, outcome.err
        assert "Tuned here. The certificate holds\\x1b[2J" in outcome.out
        assert "\x1b" not in outcome.out
    assert said in Certificate.load(out).assumptions  # which are what they were


def test_what_is_not_guaranteed_is_said_wherever_it_is_read(
    capsys: pytest.CaptureFixture[str], csv: Path, tmp_path: Path
) -> None:
    out = tmp_path / "certificate.json"
    flags = ["--method", "rdp-paper", "--bounds", "pointwise"]
    table = " ".join(run(capsys, "certify", csv, *MECHANISM, *flags, "--out", out).out.split())
    assert "nominal and not guaranteed" in table
    assert "% confidence" not in table
    assert "bounded group sensitivity" in table
    audit = " ".join(run(capsys, "verify", out).out.split())
    assert "Assumed: assumes bounded group sensitivity" in audit
    assert "Assumed: pointwise bounds are not simultaneous" in audit
    assert any("bounded group sensitivity" in line for line in run_json(capsys, "verify", out)["assumptions"])
    simuem = " ".join(run(capsys, "certify", csv, *MECHANISM, "--bounds", "simuem").out.split())
    classes = len(csv.read_text().splitlines()[-1].split(","))
    (said,) = re.findall(r"with ([0-9.]+)% confidence", simuem)
    true = 100 * (1 - 0.001 * (1 + 2 / classes))
    assert true - 0.1 < float(said) <= true  # rounded to the safe side


def test_the_printed_object_does_not_pass_for_a_certificate_file(
    capsys: pytest.CaptureFixture[str], csv: Path, tmp_path: Path
) -> None:
    printed = tmp_path / "printed.json"
    printed.write_text(json.dumps(run_json(capsys, "certify", csv, *MECHANISM)))
    assert "certify --out" in refused(capsys, "verify", printed)


def test_the_table_for_people_says_what_is_claimed(
    capsys: pytest.CaptureFixture[str], csv: Path, tmp_path: Path
) -> None:
    outcome = run(capsys, "certify", csv, *MECHANISM, "--threat", "remove", "--out", tmp_path / "c.json")
    text = " ".join(outcome.out.split())
    assert outcome.code == 0
    assert outcome.err == ""
    assert "inserted into my data" in text
    assert "with 99.9% confidence" in text
    assert "not_separated: 1." in text
    assert "mithridate verify" in text
    marked = run(capsys, "certify", csv, *MECHANISM, "--method", "rdp-paper", "--bounds", "pointwise")
    assert "do not rely on these radii" in " ".join(marked.out.split())
    assert "not simultaneous" in " ".join(marked.out.split())


@pytest.mark.parametrize("name", RIVALS)
def test_votes_of_every_defence_from_certify_to_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    rival, votes, out = RIVALS[name], tmp_path / "votes.npz", tmp_path / "certificate.json"
    rival.votes.save(votes)
    certified = run(capsys, "certify", votes, *rival.flags, "--out", out)
    text = " ".join(certified.out.split())
    assert (certified.code, certified.err) == (0, "")
    assert f"4 predictions, {rival.voters}" in text
    assert f"Threat: {rival.threats[0].in_words}." in text
    assert ("99.9% confidence" in text) == (name not in EXACT)
    assert ("these claims are certain, given what is assumed." in text) == (name in EXACT)
    assert ("bounds on votes" in text) == (name not in EXACT)
    assert Certificate.load(out) == rival.certificate()
    content = run_json(capsys, "certify", votes, *rival.flags)
    assert content["method"] == method_of(name)
    assert content["radius"] == rival.certificate().radius.tolist()
    checked = run(capsys, "verify", out)
    assert checked.code == 0, checked.out
    assert "The certificate holds, under these assumptions." in checked.out
    reported = run(capsys, "report", out)
    assert reported.code == 0, reported.err
    assert re.search(
        r"4 predictions (is|are) correct and certified to stay the same if", " ".join(reported.out.split())
    )
    assert (tmp_path / "report.html").stat().st_size > 10_000
    for shown in (text, " ".join(reported.out.split())):
        assert all(f"Note: {sentence}" in shown for sentence in rival.certificate().method.assumptions)
        assert "Note: The votes are the stated function" not in shown
        assert "Note: The attacker does not know" not in shown


@pytest.mark.parametrize(
    ("name", "flags", "says"),
    [
        ("dpa", ["--method", "fdp"], "leave --method out"),
        ("dpa", ["--method", "run-off-election"], "preferences"),
        ("dpa", ["--on", "scores"], "leave --on and --bounds out"),
        ("dpa", ["--bounds", "simuem"], "leave --on and --bounds out"),
        ("kernel-vote", ["--method", "run-off-election"], "leave the method out"),
        ("bagging", ["--method", "adp"], "leave the method out"),
        ("label-smoothing", ["--threat", "add"], "'labels'"),
        ("feature-smoothing", [], "--max-change"),
        ("feature-smoothing", ["--method", "feature-smoothing"], "needs --max-change"),
        ("feature-smoothing", ["--max-change", "1", "--method", "adp"], "no option --max-change"),
        ("feature-smoothing", ["--method", "feature-smoothing", "--max-change", "-1"], "--max-change"),
        ("feature-smoothing", ["--method", "feature-smoothing", "--max-change", "1", "--threat", "edit"], "'features'"),
    ],
)
def test_what_does_not_fit_the_votes_of_a_defence_is_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, flags: list[str], says: str
) -> None:
    RIVALS[name].votes.save(tmp_path / "votes.npz")
    assert says in refused(capsys, "certify", tmp_path / "votes.npz", *flags)


# --- bad input ------------------------------------------------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    """Run a command that must fail, and return its one sentence."""
    outcome = run(capsys, *arguments)
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert "Traceback" not in outcome.err
    assert outcome.err.startswith("mithridate: ")
    assert outcome.err.count("\n") == 1
    return outcome.err


def npz(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


GOOD = npz(counts=np.array(COUNTS))
BAD_FILES = [
    ("c.csv", b"5,-1\n2,2\n", "negative"),
    ("c.csv", b"2.5,1.5\n", "whole numbers"),
    ("c.csv", b"nan,1\n", "whole numbers"),
    ("c.csv", b"4,0\n0,0\n", "all zero"),
    ("c.csv", b"4,0\n3,0\n", "adds up to"),
    ("c.csv", b"4\n4\n", "two classes"),
    ("c.csv", b"", "no rows"),
    ("c.npz", npz(counts=np.array([[5, -1]])), "negative"),
    ("c.npz", npz(counts=np.array([[0.5, 0.5]])), "fractions"),
    ("c.npz", npz(counts=np.array([[np.nan, 1.0]])), "not finite"),
    ("c.npz", npz(counts=np.array([[3, 1], [0, 0]])), "all zero"),
    ("c.npz", npz(counts=np.array([[3, 1], [2, 1]])), "adds up to"),
    ("c.npz", npz(counts=np.array([[3], [3]])), "two classes"),
    ("c.npz", npz(votes=np.array(COUNTS)), "no array 'counts'"),
    ("c.npz", npz(counts=np.array([[object()]])), "Python objects"),
    ("c.npz", GOOD[:100], "not a readable"),
    ("c.npz", b"not a zip", "not a readable"),
    ("c.json", b'{"counts": [[1, 2]]}', "not a readable"),
]


@pytest.mark.parametrize(("name", "data", "says"), BAD_FILES)
@pytest.mark.parametrize("existing", [None, b"an older certificate"])
def test_bad_files_leave_out_untouched(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, data: bytes, says: str, existing: bytes | None
) -> None:
    path, out = tmp_path / name, tmp_path / "out.json"
    path.write_bytes(data)
    if existing is not None:
        out.write_bytes(existing)
    assert says in refused(capsys, "certify", path, *MECHANISM, "--out", out)
    assert (out.read_bytes() if out.exists() else None) == existing
    assert path.read_bytes() == data
    assert len(list(tmp_path.iterdir())) == (1 if existing is None else 2)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], "--noise-multiplier, --sample-rate and --steps"),
        (["--steps", "4"], "add --noise-multiplier, --sample-rate"),
        (["--keep", "1/2"], "add --noise-multiplier, --sample-rate, --steps"),
        (["--noise-multiplier", "0", *MECHANISM[2:]], "--noise-multiplier"),
        (["--noise-multiplier", "-3", *MECHANISM[2:]], "--noise-multiplier"),
        (["--noise-multiplier", "nan", *MECHANISM[2:]], "--noise-multiplier"),
        (["--noise-multiplier", "inf", *MECHANISM[2:]], "--noise-multiplier"),
        ([*MECHANISM, "--sample-rate", "0"], "--sample-rate"),
        ([*MECHANISM, "--sample-rate", "1.01"], "--sample-rate"),
        ([*MECHANISM, "--sample-rate", "-0.5"], "--sample-rate"),
        ([*MECHANISM, "--sample-rate", "nan"], "--sample-rate"),
        ([*MECHANISM, "--steps", "0"], "--steps"),
        ([*MECHANISM, "--steps", "-1"], "--steps"),
        ([*MECHANISM, "--failure-prob", "0"], "--failure-prob"),
        ([*MECHANISM, "--failure-prob", "1"], "--failure-prob"),
        ([*MECHANISM, "--failure-prob", "nan"], "--failure-prob"),
        ([*MECHANISM, "--keep", "0"], "--keep"),
        ([*MECHANISM, "--keep", "3/2"], "--keep"),
        ([*MECHANISM, "--keep=-1/2"], "--keep"),
        ([*MECHANISM, "--method", "adp", "--delta", "0"], "--delta"),
        ([*MECHANISM, "--method", "adp", "--delta", "1"], "--delta"),
        ([*MECHANISM, "--delta", "1e-5"], "--method adp"),
        ([*MECHANISM, "--method", "rdp", "--delta", "1e-5"], "delta belongs to the method adp"),
        ([*MECHANISM, "--on", "scores"], "no score sums"),
        ([*MECHANISM, "--bounds", "hoeffding"], "votes have"),
        ([*MECHANISM, "--labels-key", "y"], "no labels"),
        ([*MECHANISM, "--keep", "1/2", "--method", "rdp-paper"], "mixture"),
    ],
)
def test_bad_flags_are_one_sentence(
    capsys: pytest.CaptureFixture[str], csv: Path, tmp_path: Path, flags: list[str], says: str
) -> None:
    out = tmp_path / "out.json"
    out.write_bytes(b"an older certificate")
    assert says in refused(capsys, "certify", csv, *flags, "--out", out)
    assert out.read_bytes() == b"an older certificate"


@pytest.mark.parametrize(
    "flags",
    [
        ["--method", "magic"],
        ["--threat", "insert"],
        ["--scope", "some"],
        ["--bounds", "wide"],
        ["--on", "logits"],
        ["--steps", "1.5"],
        ["--steps", "many"],
        ["--noise-multiplier", "much"],
        ["--keep", "half"],
        ["--keep", "1/0"],
        ["--keep", "1/2/3"],
        ["--radii", ""],
        ["--radii", "a,b"],
        ["--radii", "1,,2"],
        ["--radii", "1.5"],
        ["--radii", "-1"],
        ["--radii", "0,-5"],
        ["--unknown"],
    ],
)
def test_flags_that_argparse_refuses(
    capsys: pytest.CaptureFixture[str], csv: Path, tmp_path: Path, flags: list[str]
) -> None:
    out = tmp_path / "out.json"
    arguments = [f"{flags[0]}={flags[1]}"] if len(flags) == 2 else flags
    outcome = run(capsys, "certify", csv, *MECHANISM, *arguments, "--out", out)
    assert outcome.code == 2
    assert outcome.out == ""
    assert len(outcome.err.splitlines()) == 1
    assert outcome.err.startswith("mithridate")
    assert not out.exists()


def test_a_missing_labels_key_names_what_is_there(capsys: pytest.CaptureFixture[str], foreign: Path) -> None:
    sentence = refused(capsys, "certify", foreign, *MECHANISM, "--labels-key", "truth")
    assert "no array 'truth'" in sentence
    assert "counts, hist, sum, sumsq, y" in sentence


def test_missing_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for path in (tmp_path / "none.npz", tmp_path / "none.csv"):
        assert "no file" in refused(capsys, "certify", path, *MECHANISM)
        assert "Cannot read" in refused(capsys, "verify", path)
    assert "There is no certificate.json in" in refused(capsys, "verify", tmp_path)


# --- certify, given the directory of a run --------------------------------------------------------------------------


def test_a_run_is_certified_in_its_directory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    scored_votes(mechanism=GAUSSIAN).save(tmp_path / "votes.npz")
    content = run_json(capsys, "certify", tmp_path, "--threat", "add")
    written = Certificate.load(tmp_path / "certificate.json")
    assert written.to_dict(written.votes.labels) == content
    assert content["threat"] == "add"
    elsewhere = tmp_path / "elsewhere.json"
    people = run(capsys, "certify", tmp_path, "--out", elsewhere)
    assert people.code == 0, people.err
    assert people.out.endswith(f"check it with: mithridate verify {elsewhere}\n")
    assert Certificate.load(elsewhere).threat.value == "symmetric-difference"
    assert Certificate.load(tmp_path / "certificate.json").threat.value == "add"


def test_a_run_that_is_not_finished_is_no_run_to_certify(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "give that of a finished run" in refused(capsys, "certify", tmp_path)
    (tmp_path / "run.json").write_text("{}")
    assert "run its `mithridate train` again" in refused(capsys, "certify", tmp_path)
    (tmp_path / "votes.npz").write_bytes(b"damaged")
    (tmp_path / "certificate.json").write_bytes(b"an older certificate")
    assert "not a readable" in refused(capsys, "certify", tmp_path)
    assert (tmp_path / "certificate.json").read_bytes() == b"an older certificate"


def test_weak_votes_come_with_a_remedy(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "few.csv"
    path.write_text("8,0\n7,1\n")
    outcome = run(capsys, "certify", path, *MECHANISM)
    assert outcome.code == 0
    assert "To certify more: " in outcome.out
    assert "--instances" in outcome.out


def test_places_that_cannot_be_written_to(capsys: pytest.CaptureFixture[str], csv: Path, tmp_path: Path) -> None:
    assert "it is a folder" in refused(capsys, "certify", csv, *MECHANISM, "--out", tmp_path)
    assert "no folder" in refused(capsys, "certify", csv, *MECHANISM, "--out", tmp_path / "a" / "b.json")


def test_out_never_replaces_the_votes(capsys: pytest.CaptureFixture[str], csv: Path, tmp_path: Path) -> None:
    before = csv.read_bytes()
    link = tmp_path / "link.csv"
    link.symlink_to(csv)
    for out in (csv, link):
        assert "overwrite the votes" in refused(capsys, "certify", csv, *MECHANISM, "--out", out)
    assert csv.read_bytes() == before


# --- plan -----------------------------------------------------------------------------------------------------------

PLAN = ["plan", *MECHANISM, "--instances", "200", "--classes", "3"]


def test_plan(capsys: pytest.CaptureFixture[str]) -> None:
    content = run_json(capsys, *PLAN)
    assert content["max_radius"] == content["radius_by_top_share"]["1"] > 0
    flags = ["--radius", "5", "--failure-prob", "0.01", "--threat", "add", "--method", "rdp", "--bounds", "simuem"]
    asked = run_json(capsys, *PLAN, *flags)
    assert (asked["radius"], asked["failure_prob"], asked["threat"]) == (5, 0.01, "add")
    assert (asked["method"], asked["bounds"], asked["instances"], asked["classes"]) == ("rdp", "simuem", 200, 3)
    assert {"needed_instances", "needed_steps", "needed_noise_multiplier"} <= asked.keys()
    people = run(capsys, *PLAN, "--radius", "5")
    assert people.code == 0
    assert "█" in people.out
    assert all(word in people.out for word in ("instances", "noise multiplier", "steps"))
    hopeless = run(capsys, *PLAN[:-3], "5", "--classes", "3")
    assert hopeless.code == 0
    assert "Not even unanimous votes are certified" in hopeless.out


def test_a_plan_says_how_many_examples_the_noise_takes(capsys: pytest.CaptureFixture[str]) -> None:
    """Signal 10 x 5 classes of a table, 50 x 5 of texts; 0.02 x sqrt(400) / 8 for each example."""
    flags = "--noise-multiplier 8 --sample-rate 0.02 --steps 400 --instances 100 --classes 3".split()
    assert run_json(capsys, "plan", *flags)["needed_examples"] == {"table": 1000, "text": 5000}
    said = " ".join(run(capsys, "plan", *flags).out.split())
    assert "from about 1,000 rows of a table, or 5,000 texts" in said


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--instances", "0"], "--instances"),
        (["--classes", "1"], "--classes"),
        (["--radius", "0"], "--radius"),
        (["--radius", "-4"], "--radius"),
        (["--failure-prob", "2"], "--failure-prob"),
        (["--sample-rate", "1.5"], "--sample-rate"),
        (["--noise-multiplier", "0"], "--noise-multiplier"),
        (["--steps", "0"], "--steps"),
        (["--delta", "1e-5"], "--method adp"),
    ],
)
def test_plans_with_bad_numbers(capsys: pytest.CaptureFixture[str], flags: list[str], says: str) -> None:
    assert says in refused(capsys, *PLAN, *flags, "--json")


# --- verify ---------------------------------------------------------------------------------------------------------


def test_exit_codes_of_verify(capsys: pytest.CaptureFixture[str], csv: Path, tmp_path: Path) -> None:
    out = tmp_path / "c.json"
    run_json(capsys, "certify", csv, *MECHANISM, "--out", out)
    data = out.read_bytes()
    out.write_bytes(data.replace(b'"winner"', b'"vinner"'))
    changed = run(capsys, "verify", out, "--json")
    assert changed.code == 1
    content = json.loads(changed.out)
    assert content["valid"] is False
    assert content["checks"][0]["passed"] is False
    people = run(capsys, "verify", out)
    assert people.code == 1
    assert "does NOT hold" in people.out
    out.write_bytes(data[:-20])
    assert "truncated" in refused(capsys, "verify", out)
    out.write_bytes(b"something else")
    assert "not a mithridate.certificate file" in refused(capsys, "verify", out, "--json")
    csv_given = run(capsys, "verify", csv)
    assert csv_given.code == 2


# --- help -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(capsys: pytest.CaptureFixture[str], command: str) -> None:
    outcome = run(capsys, command, "--help")
    assert outcome.code == 0
    assert f"mithridate {command} " in outcome.out.split("example", 1)[1]


@pytest.mark.parametrize("command", ["certify", "plan"])
def test_help_puts_threats_in_the_words_of_the_user(capsys: pytest.CaptureFixture[str], command: str) -> None:
    text = " ".join(run(capsys, command, "--help").out.split()).replace("- ", "-")  # lines may end at a hyphen
    remove, add = text.index("remove: examples may"), text.index("add: examples may")
    assert text[remove:].startswith("remove: examples may have been inserted into my data")
    assert text[add:].startswith("add: examples may have been deleted from my data")
    assert all(f"{threat.value}: {threat.in_words[:30]}" in text for threat in Threat)


def test_no_command_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys).code == 2
    assert run(capsys, "--version").out.startswith("mithridate ")
    assert all(command in run(capsys, "--help").out for command in COMMANDS)


# --- as a program of its own ----------------------------------------------------------------------------------------


def program(*arguments: Any, **environment: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from mithridate.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=600,  # only for what hangs
        env={**os.environ, **environment},
        check=False,
    )


def test_as_a_program(csv: Path, tmp_path: Path) -> None:
    out = tmp_path / "c.json"
    certified = program("certify", csv, *MECHANISM, "--out", out, "--json")
    assert (certified.returncode, certified.stderr) == (0, "")
    assert json.loads(certified.stdout)["examples"] == 3
    verified = program("verify", out)
    assert (verified.returncode, verified.stderr) == (0, "")
    missing = program("verify", tmp_path / "none")
    assert missing.returncode == 2
    assert missing.stderr.startswith("mithridate: ")
    assert missing.stderr.count("\n") == 1


def test_a_terminal_that_knows_only_ascii_is_no_reason_to_crash(csv: Path) -> None:
    outcome = program("certify", csv, *MECHANISM, PYTHONIOENCODING="ascii")
    assert outcome.returncode == 0, outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_a_reader_that_goes_away_is_no_reason_to_complain(csv: Path) -> None:
    code = "import sys; from mithridate.cli import main; sys.exit(main())"
    reader, writer = os.pipe()
    os.close(reader)
    try:
        outcome = subprocess.run(
            [sys.executable, "-c", code, "certify", str(csv), *MECHANISM, "--json"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=600,
            check=False,
        )
    finally:
        os.close(writer)
    assert outcome.stderr == ""


# --- bytes from anywhere --------------------------------------------------------------------------------------------


def survives(folder: Path, name: str, data: bytes) -> None:
    """Neither command may crash on these bytes."""
    path = folder / name
    path.write_bytes(data)
    for arguments in (["certify", str(path), *MECHANISM, "--json"], ["verify", str(path), "--json"]):
        assert main(arguments) in (0, 1, 2)


@settings(max_examples=60)
@given(data=st.binary(max_size=400), name=st.sampled_from(["f.npz", "f.csv", "f"]))
def test_random_bytes_never_crash(tmp_path_factory: pytest.TempPathFactory, data: bytes, name: str) -> None:
    survives(tmp_path_factory.mktemp("random"), name, data)


@settings(max_examples=60)
@given(text=st.text(alphabet="0123456789,-.\n \"'ex", max_size=60))
def test_text_that_looks_like_numbers_never_crashes(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    survives(tmp_path_factory.mktemp("text"), "f.csv", text.encode())


@pytest.fixture(scope="module")
def valid_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("valid")
    votes = Votes.from_counts(COUNTS, mechanism=GAUSSIAN, labels=[0, 1, 0])
    votes.save(folder / "votes.npz")
    certify(votes).save(folder / "certificate.json")
    return {
        "votes.npz": (folder / "votes.npz").read_bytes(),
        "certificate.json": (folder / "certificate.json").read_bytes(),
        "foreign.npz": GOOD,
        "counts.csv": b"200,0,0\n30,160,10\n90,80,30\n",
    }


@settings(max_examples=120)
@given(
    name=st.sampled_from(["votes.npz", "certificate.json", "foreign.npz", "counts.csv"]),
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4),
    end=st.none() | st.integers(0, 10**6),
    tail=st.binary(max_size=10),
)
def test_damaged_files_never_crash(
    tmp_path_factory: pytest.TempPathFactory,
    valid_files: dict[str, bytes],
    name: str,
    changes: list[tuple[int, int]],
    end: int | None,
    tail: bytes,
) -> None:
    data = bytearray(valid_files[name])
    for position, value in changes:
        data[position % len(data)] = value
    cut = len(data) if end is None else end % len(data)
    survives(tmp_path_factory.mktemp("damaged"), name, bytes(data[:cut]) + tail)
