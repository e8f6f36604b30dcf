"""`mithridate report`: where it reads, where it writes, and one clear sentence for bad input."""

import json
import os
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_cli import Outcome, run

from mithridate import ADP, Certificate, SampledGaussian, Votes, certify
from mithridate.core.conditions import Statement
from mithridate.reporting import Report

GAUSSIAN = SampledGaussian(20.0, 1.0, 4)
COUNTS = [[200, 0, 0], [30, 160, 10], [90, 80, 30]]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One quick method to compare with."""
    monkeypatch.setattr("mithridate.certifying.advice.METHODS", (ADP(),))


def votes() -> Votes:
    return Votes.from_counts(COUNTS, mechanism=GAUSSIAN, labels=[0, 1, 1])


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    path = tmp_path / "certificate.json"
    certify(votes(), threat="replace").save(path)
    return path


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "a run"
    folder.mkdir()
    votes().save(folder / "votes.npz")
    return folder


def refused(outcome: Outcome, *parts: str) -> None:
    assert outcome.code == 2, outcome.out
    assert outcome.err.count("\n") == 1, outcome.err
    for part in parts:
        assert part in outcome.err


# --- what it writes -------------------------------------------------------------------------------------------------


def test_a_report_beside_the_certificate(capsys: pytest.CaptureFixture[str], certificate: Path) -> None:
    outcome = run(capsys, "report", certificate)
    assert outcome.code == 0, outcome.err
    page = (certificate.parent / "report.html").read_text()
    expected = Certificate.load(certificate).report(methods=(ADP(),), certificate_path=certificate)
    assert page == expected.html()
    assert "Written to" in outcome.out
    assert expected.headline in " ".join(outcome.out.split())
    assert f"mithridate verify {certificate}" in page


@pytest.mark.parametrize("name", ["r.html", "r.md", "r.json", "r.svg", "r.PNG"])
def test_the_name_says_the_format(
    capsys: pytest.CaptureFixture[str], certificate: Path, tmp_path: Path, name: str
) -> None:
    if name.endswith("PNG"):
        pytest.importorskip("matplotlib")
    outcome = run(capsys, "report", certificate, "-o", tmp_path / name)
    assert outcome.code == 0, outcome.err
    start = {"html": b"<!DOCTYPE html>", "md": b"# ", "json": b"{", "svg": b"<svg", "png": b"\x89PNG"}
    assert (tmp_path / name).read_bytes().startswith(start[name.split(".")[1].lower()])


def test_format_wins_over_the_name_and_names_the_default(capsys: pytest.CaptureFixture[str], certificate: Path) -> None:
    assert run(capsys, "report", certificate, "--format", "md").code == 0
    assert (certificate.parent / "report.md").read_text().startswith("# Certified predictions")
    other = certificate.parent / "odd.html"
    assert run(capsys, "report", certificate, "--format", "svg", "-o", other, "--title", "T").code == 0
    assert other.read_text().startswith("<svg")


@pytest.mark.parametrize("format", ["md", "json", "svg", "html"])
def test_a_dash_prints_the_report_itself(capsys: pytest.CaptureFixture[str], certificate: Path, format: str) -> None:
    before = set(certificate.parent.iterdir())
    outcome = run(capsys, "report", certificate, "-o", "-", "--format", format, "--title", "Mine")
    expected = Certificate.load(certificate).report(methods=(ADP(),), title="Mine", certificate_path=certificate)
    assert outcome.code == 0, outcome.err
    assert outcome.out.encode() == expected.rendered(format)
    assert set(certificate.parent.iterdir()) == before


def test_json_says_what_was_written(capsys: pytest.CaptureFixture[str], certificate: Path) -> None:
    outcome = run(capsys, "report", certificate, "--json")
    content = json.loads(outcome.out, parse_constant=pytest.fail)
    assert outcome.err == ""
    assert content["report"] == str(certificate.parent / "report.html")
    assert content["format"] == "html"
    assert content["claim"]["threat"] == "replace"
    assert content["headline"]["text"] == Certificate.load(certificate).report(methods=()).headline


# --- runs -----------------------------------------------------------------------------------------------------------


def test_a_run_without_a_certificate_is_certified_with_the_defaults(
    capsys: pytest.CaptureFixture[str], run_dir: Path
) -> None:
    outcome = run(capsys, "report", run_dir)
    assert outcome.code == 0, outcome.err
    assert "certified with the defaults" in " ".join(outcome.out.split())
    page = (run_dir / "report.html").read_text()
    assert "mithridate certify '" in unescape(page)
    assert "mithridate verify '" in unescape(page)
    assert sorted(path.name for path in run_dir.iterdir()) == ["report.html", "votes.npz"]


def test_a_run_with_a_certificate_uses_it(capsys: pytest.CaptureFixture[str], run_dir: Path) -> None:
    certify(votes(), threat="add").save(run_dir / "certificate.json")
    outcome = run(capsys, "report", run_dir, "--json")
    content = json.loads(outcome.out)
    assert content["claim"]["threat"] == "add"
    assert content["notes"] == []


def test_pictures_beside_a_run_are_used_where_they_fit(capsys: pytest.CaptureFixture[str], run_dir: Path) -> None:
    np.savez(run_dir / "inputs.npz", x=np.zeros((3, 4, 4), dtype=np.uint8))
    assert json.loads(run(capsys, "report", run_dir, "--json").out)["pictures"] == 3
    np.savez(run_dir / "inputs.npz", x=np.zeros((4, 4, 4), dtype=np.uint8))
    content = json.loads(run(capsys, "report", run_dir, "--json").out)
    assert content["pictures"] == 0
    assert any("No pictures" in note for note in content["notes"])
    (run_dir / "inputs.npz").write_bytes(b"broken")
    assert json.loads(run(capsys, "report", run_dir, "--json").out)["pictures"] == 0


def _page_data(path: Path) -> dict[str, Any]:
    return json.loads(re.findall(r'id="report-data">(.*?)</script>', path.read_text())[0])


@pytest.mark.parametrize("with_pictures", [False, True])
def test_names_beside_a_run_are_shown(capsys: pytest.CaptureFixture[str], run_dir: Path, with_pictures: bool) -> None:
    names = ["a.png", "<script>", "b" * 300]
    pictures: dict[str, Any] = {"x": np.zeros((3, 4, 4), dtype=np.uint8)} if with_pictures else {}
    np.savez(run_dir / "inputs.npz", ids=np.array(names), **pictures)
    content = json.loads(run(capsys, "report", run_dir, "--json").out)
    assert content["pictures"] == (3 if with_pictures else 0)
    assert not any(note.startswith("No ") for note in content["notes"])
    assert _page_data(run_dir / "report.html")["pointNames"] == names


@pytest.mark.parametrize(
    "ids",
    [
        np.array(["a", "b"]),
        np.arange(3),
        np.array([["a"], ["b"], ["c"]]),
        np.array([b"a", b"b", b"c"]),
        np.array("abc"),
    ],
)
def test_names_that_do_not_fit_are_left_out_or_refused(
    capsys: pytest.CaptureFixture[str], run_dir: Path, ids: np.ndarray
) -> None:
    path = run_dir / "inputs.npz"
    np.savez(path, ids=ids, x=np.zeros((3, 4, 4), dtype=np.uint8))
    content = json.loads(run(capsys, "report", run_dir, "--json").out)
    assert content["pictures"] == 3
    assert any(note.startswith("No names: ") for note in content["notes"])
    assert _page_data(run_dir / "report.html")["pointNames"] is None
    refused(run(capsys, "report", run_dir, "--inputs", path), "inputs.npz: ")


def test_names_that_are_no_text_are_damage(capsys: pytest.CaptureFixture[str], run_dir: Path) -> None:
    path = run_dir / "inputs.npz"
    np.savez(path, ids=np.full(3, 0x7FFFFFFF, dtype=np.uint32).view("U1"), x=np.zeros((3, 4, 4), dtype=np.uint8))
    content = json.loads(run(capsys, "report", run_dir, "--json").out)
    assert any("holds what is no text" in note for note in content["notes"])
    refused(run(capsys, "report", run_dir, "--inputs", path), "holds what is no text")


def test_names_of_python_objects_are_never_loaded(
    capsys: pytest.CaptureFixture[str], run_dir: Path, tmp_path: Path
) -> None:
    np.savez(run_dir / "inputs.npz", ids=np.array(["a", "b", "c"], dtype=object))
    content = json.loads(run(capsys, "report", run_dir, "--json").out)
    assert any("Python objects" in note for note in content["notes"])
    refused(run(capsys, "report", run_dir, "--inputs", run_dir / "inputs.npz"), "Python objects")


def test_named_inputs_may_be_names_alone(capsys: pytest.CaptureFixture[str], certificate: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", ids=np.array(["row 1", "row 2", "row 3"]))
    outcome = run(capsys, "report", certificate, "--inputs", tmp_path / "in.npz", "-o", "-", "--format", "json")
    assert json.loads(outcome.out)["points"]["name"] == ["row 1", "row 2", "row 3"]


def test_what_was_assumed_about_this_run_is_printed_once(capsys: pytest.CaptureFixture[str], run_dir: Path) -> None:
    seed, other = Statement("The seed was given.", "seed-known"), "The rows are from the archive."
    replace(votes(), assumptions=(seed, other)).save(run_dir / "votes.npz")
    out = run(capsys, "report", run_dir).out
    text = " ".join(out.split())
    assert text.count(f"Condition seed-known: {seed}") == text.count(other) == 1
    assert f"Note: {other}" in text
    assert "The attacker does not know" not in text
    assert out.splitlines()[-1].startswith("Conditional on seed-known. Leave the seed out")
    assert str(seed) in json.loads(run(capsys, "report", run_dir, "--json").out)["warnings"][0]


def test_named_pictures_are_shown(capsys: pytest.CaptureFixture[str], certificate: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.zeros((3, 3, 4, 4), dtype=np.uint8))
    outcome = run(capsys, "report", certificate, "--inputs", tmp_path / "in.npz", "--json")
    assert json.loads(outcome.out)["pictures"] == 3


def test_every_condition_is_said_once(capsys: pytest.CaptureFixture[str], run_dir: Path) -> None:
    sentence = "The classes are those of the training data."
    conditional = replace(votes(), assumptions=(Statement(sentence, "class-list"),))
    certify(conditional).save(run_dir / "certificate.json")
    conditional.save(run_dir / "votes.npz")
    said = " ".join(run(capsys, "report", run_dir).out.split())
    assert said.count(sentence) == 1
    assert f"Condition class-list: {sentence}" in said


# --- bad input ------------------------------------------------------------------------------------------------------


def test_a_certificate_from_before_the_run_was_trained_again_is_refused(
    capsys: pytest.CaptureFixture[str], run_dir: Path
) -> None:
    certify(votes()).save(run_dir / "certificate.json")
    assert run(capsys, "report", run_dir).code == 0
    (run_dir / "report.html").unlink()
    replace(votes(), recipe={"class_weights": [1, 10, 1]}).save(run_dir / "votes.npz")
    refused(run(capsys, "report", run_dir), "not of the votes beside it", f"mithridate certify '{run_dir}'")
    assert not (run_dir / "report.html").exists()


def test_a_changed_certificate_is_refused(capsys: pytest.CaptureFixture[str], certificate: Path) -> None:
    content = certificate.read_bytes()
    certificate.write_bytes(content.replace(b'"replace"', b'"remove" ', 1))
    refused(run(capsys, "report", certificate), "was changed after it was written")
    assert not (certificate.parent / "report.html").exists()


def test_what_is_no_certificate_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    refused(run(capsys, "report", tmp_path / "missing.json"), "missing.json")
    refused(run(capsys, "report", tmp_path), "neither certificate.json nor votes.npz")
    (tmp_path / "empty.json").touch()
    refused(run(capsys, "report", tmp_path / "empty.json"), "empty.json")
    votes().save(tmp_path / "some-votes.npz")
    refused(run(capsys, "report", tmp_path / "some-votes.npz"), "some-votes.npz")


def test_bad_places_are_refused_before_anything_is_computed(
    capsys: pytest.CaptureFixture[str], certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def computed(*_: Any, **__: Any) -> None:
        raise AssertionError("computed before the place was checked")

    monkeypatch.setattr(Report, "of", computed)
    folder = certificate.parent
    refused(run(capsys, "report", certificate, "-o", folder / "none" / "r.html"), "there is no folder")
    refused(run(capsys, "report", certificate, "-o", folder), "format")
    refused(run(capsys, "report", certificate, "-o", folder, "--format", "md"), "it is a folder")
    refused(run(capsys, "report", certificate, "-o", folder / "r.pdf"), ".html")
    refused(run(capsys, "report", certificate, "-o", certificate), "overwrite")
    refused(run(capsys, "report", certificate, "-o", "-", "--format", "png"), "PNG")
    refused(run(capsys, "report", certificate, "-o", "-", "--json"), "--json")
    refused(run(capsys, "report", certificate, "--format", "pdf"), "pdf")


def test_a_folder_without_permission_is_refused(
    capsys: pytest.CaptureFixture[str], certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    (folder / "report.html").write_text("old")
    monkeypatch.setattr(os, "access", lambda *_: False)  # the superuser may write anywhere
    refused(run(capsys, "report", certificate, "-o", folder / "report.html"), "read-only")
    assert (folder / "report.html").read_text() == "old"


def test_pictures_that_do_not_fit_are_refused(
    capsys: pytest.CaptureFixture[str], certificate: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "in.npz", x=np.zeros((5, 4, 4), dtype=np.uint8))
    refused(run(capsys, "report", certificate, "--inputs", tmp_path / "in.npz"), "one picture for each of 3 points")
    np.savez(tmp_path / "in.npz", z=np.zeros(3))
    refused(run(capsys, "report", certificate, "--inputs", tmp_path / "in.npz"), "no array 'x'")
    refused(run(capsys, "report", certificate, "--inputs", tmp_path / "no.npz"), "no.npz")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_damaged_certificates_are_refused_in_one_sentence(
    data: st.DataObject, capsys: pytest.CaptureFixture[str], certificate: Path, tmp_path: Path
) -> None:
    whole = certificate.read_bytes()
    start = data.draw(st.integers(0, len(whole) - 1))
    damaged = whole[:start] + data.draw(st.binary(max_size=20)) + whole[start + data.draw(st.integers(1, 200)) :]
    path = tmp_path / "damaged.json"
    path.write_bytes(damaged)
    outcome = run(capsys, "report", path, "-o", tmp_path / "damaged.html")
    if damaged != whole:
        refused(outcome)


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert "mithridate report runs/mnist" in run(capsys, "report", "--help").out
