"""`mithridate demo`: everything at once on real data, quickly because few instances vote."""

import html
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cli import Outcome, run
from test_train_cli import everything_in, refused

from mithridate import Certificate, Votes, verify
from mithridate.cli import starting as command
from mithridate.data import named
from mithridate.data.named import load_named
from mithridate.training.engine import Engine

pytest.importorskip("sklearn")

pytestmark = pytest.mark.more
QUICK = ["demo", "--instances", "60", "--device", "cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One folder for all tests of a finished demo: it is trained once, and found finished afterwards."""
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def empty(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, an empty cache elsewhere, and nobody to download from."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MITHRIDATE_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("MITHRIDATE_DATA", raising=False)
    for name, published in named.PUBLISHED.items():
        monkeypatch.setitem(named.PUBLISHED, name, replace(published, hosts=("http://127.0.0.1:9/",)))
    return tmp_path


def shown(outcome: Outcome) -> str:
    assert outcome.code == 0, outcome.err
    return " ".join(outcome.out.split())


# --- what comes out -------------------------------------------------------------------------------------------------


def test_the_demo_says_what_it_does_and_where_the_report_is(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    outcome = run(capsys, *QUICK)
    text = shown(outcome)
    assert "digits: 1,397 images to train on, 400 to predict." in text
    assert "60 instances of linear" in text
    assert "Radius that could be reached" in text
    assert text.index("Radius that could be reached") < text.index("method")
    for method in ("f-DP", "RDP", "ADP"):
        assert method in text
    assert f"The report is in {here / 'report.html'}; open it in a browser.\n" in outcome.out
    assert "mithridate verify runs/demo-digits/certificate.json\n" in outcome.out
    page = (here / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "digits: certified predictions" in page
    assert verify("runs/demo-digits/certificate.json").valid


def test_json_says_the_same_to_programs(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    outcome = run(capsys, *QUICK, "--json", "-o", "again.html")
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("\n") == 1
    content = json.loads(outcome.out, parse_constant=pytest.fail)
    assert content["report"] == str(here / "again.html")
    certificate = Certificate.load(content["certificate"])
    votes = Votes.load(content["votes"])
    truth = load_named("digits")[1].y
    assert votes.labels is not None
    assert truth is not None
    assert np.array_equal(votes.labels, truth)
    assert votes.instances == 60
    assert content["accuracy"] == pytest.approx(float(np.mean(votes.counts.argmax(axis=1) == truth)))
    assert content["accuracy"] > 0.5  # digits are easy, and guessing has a tenth
    first = next(iter(content["certified_accuracy"].values()))
    assert first == certificate.accuracy(truth, content["radii"]).tolist()
    assert len(content["certified_accuracy"]) > 1
    assert all(len(curve) == len(content["radii"]) for curve in content["certified_accuracy"].values())
    words = html.unescape(re.sub(r"<[^>]*>", "", Path("again.html").read_text(encoding="utf-8")))
    assert content["headline"] in " ".join(words.split())
    assert content["seconds"] > 0


def test_the_number_of_public_digits_is_declared(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    run(capsys, *QUICK, "--json")
    assumptions = " ".join(Votes.load("runs/demo-digits/votes.npz").assumptions)
    assert "training data; the certificate assumes" not in assumptions
    assert Votes.load("runs/demo-digits/votes.npz").size is None


def test_a_finished_demo_is_not_trained_again(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, *QUICK, "--json")

    def again(*_: Any, **__: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(Engine, "train", again)
    assert run(capsys, *QUICK, "--json").code == 0
    assert "belongs to another run" in refused(run(capsys, "demo", "--instances", "61", "--device", "cpu"))


def test_models_are_kept_for_predict(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    run(capsys, *QUICK, "--json")
    np.savez("new.npz", x=load_named("digits")[1].x[:5])
    outcome = run(capsys, "predict", "runs/demo-digits", "new.npz", "--device", "cpu", "--json")
    assert outcome.code == 0, outcome.err
    assert len(json.loads(outcome.out)["predictions"]) == 5


def test_an_interruption_keeps_what_is_finished(
    capsys: pytest.CaptureFixture[str], empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "carried_out", interrupt)
    Path("report.html").write_text("old")
    outcome = run(capsys, *QUICK)
    assert outcome.code == 130
    kept = "what is finished is kept in runs/demo-digits. The same command goes on from there."
    assert outcome.err == f"mithridate: interrupted; {kept}\n"
    assert Path("report.html").read_text() == "old"


# --- what cannot be done --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_offline_it_says_what_to_do(capsys: pytest.CaptureFixture[str], empty: Path, name: str) -> None:
    Path("report.html").write_text("old")
    outcome = run(capsys, "demo", "--dataset", name)
    text = refused(outcome)
    assert outcome.out == ""
    assert f"{name} cannot be downloaded" in text
    assert "--data-dir" in text
    assert "MITHRIDATE_DATA" in text
    assert everything_in(empty) == {"report.html": b"old"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-o", "none/report.html"], "no folder"),
        (["-o", "folder"], "it is a folder"),
        (["-o", "file/report.html"], "no folder"),
        (["--dataset", "imagenet"], "imagenet"),
        (["--dataset", "mnist", "--data-dir", "none"], "no folder none, which --data-dir names"),
        (["--dataset", "mnist", "--data-dir", "folder"], "is not in folder"),
        (["--instances", "0"], "instances"),
        (["--instances", "some"], "some"),
        (["--device", "abacus"], "abacus"),
        (["--run-dir", "file"], "is a file"),
    ],
)
def test_what_is_refused(capsys: pytest.CaptureFixture[str], empty: Path, arguments: list[str], says: str) -> None:
    Path("folder").mkdir()
    Path("file").touch()
    before = everything_in(empty)
    assert says in refused(run(capsys, *QUICK, *arguments))
    assert everything_in(empty) == before


def test_a_folder_without_permission(
    capsys: pytest.CaptureFixture[str], empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said before anything is trained."""
    monkeypatch.setattr(os, "access", lambda *_: False)  # the superuser may write anywhere
    assert "read-only" in refused(run(capsys, *QUICK))
    assert everything_in(empty) == {}
