"""The examples run as their own first lines say, on few instances."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mithridate import Certificate, Votes, verify

pytestmark = pytest.mark.more
EXAMPLES = Path(__file__).parents[1] / "examples"


def run(script: Path, *arguments: str, folder: Path) -> str:
    """What a script prints, run in a folder of its own."""
    outcome = subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1200,  # only for what hangs: a busy machine takes long
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


def test_the_quickstart_fits_predicts_certifies_and_reports(tmp_path: Path) -> None:
    printed = run(EXAMPLES / "quickstart.py", "40", folder=tmp_path)
    certificate = Certificate.load(tmp_path / "certificate.json")
    assert certificate.votes.instances == 40
    assert len(certificate.label) == 400
    assert verify(tmp_path / "certificate.json").valid
    assert (tmp_path / "report.html").read_text(encoding="utf-8").lower().startswith("<!doctype html>")
    # Better than guessing among ten digits, and no more certified than predicted.
    right, *certified = (float(share) for share in re.findall(r"^([\d.]+)%", printed, flags=re.MULTILINE))
    assert right > 30
    assert sorted(certified, reverse=True) == certified
    assert certified[0] <= right


def test_votes_are_made_as_the_example_says(tmp_path: Path) -> None:
    """With few instances, which is the one constant that only costs time."""
    source = (EXAMPLES / "digits_votes.py").read_text(encoding="utf-8")
    assert "INSTANCES = 1000\n" in source
    script = tmp_path / "digits_votes.py"
    script.write_text(source.replace("INSTANCES = 1000\n", "INSTANCES = 20\n"), encoding="utf-8")
    run(script, "votes.npz", folder=tmp_path)
    made, kept = Votes.load(tmp_path / "votes.npz"), Votes.load(EXAMPLES / "digits-votes.npz")
    assert made.instances == 20
    assert made.mechanism == kept.mechanism
    assert made.counts.shape == kept.counts.shape
    # Both come from one law: the shares of votes lie close together.
    difference = abs(made.counts / made.instances - kept.counts / kept.instances)
    assert difference.mean() < 0.05


def test_every_example_is_run_here() -> None:
    tested = Path(__file__).read_text(encoding="utf-8")
    for script in EXAMPLES.glob("*.py"):
        assert f'"{script.name}"' in tested, script.name
