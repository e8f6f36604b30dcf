"""Certificates beside the run that they come from, where that run keeps examples and has no shards."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mithridate import ArtifactError, SampledGaussian, Votes, certify, verify
from mithridate.core.conditions import Statement, to_plain
from mithridate.core.mechanism import Mechanism
from mithridate.core.provenance import TrainingData
from mithridate.defences.partitions import Partitioned

CONDITION = Statement("The classes are those of the training data.", "class-list")


def saved(folder: Path, mechanism: Mechanism | None = None, **changes: Any) -> Path:
    """The directory of a run with votes, a certificate, and `run.json` with something changed."""
    votes = replace(
        Votes.from_counts([[9, 0], [3, 6]], mechanism=mechanism or Partitioned(9)),
        recipe={"method": "nearest-neighbours"},
        data_fingerprint="sha256:1",
        assumptions=(CONDITION,),
        training=TrainingData("1" * 64, 60),
        input_hashes=np.arange(64, dtype=np.uint8).reshape(2, 32),
    )
    votes.save(folder / "votes.npz")
    certify(votes).save(folder / "c.json")
    said = {
        "schema": "mithridate.run/1",
        "kind": "examples",
        "recipe": votes.recipe,
        "data_fingerprint": votes.data_fingerprint,
        "training": {"fingerprint": "1" * 64, "examples": 60},
        "assumptions": to_plain(votes.assumptions),
        "size": None,
    }
    (folder / "run.json").write_text(json.dumps({name: v for name, v in (said | changes).items() if v != "gone"}))
    return folder


def source_check(run: Path) -> str | None:
    """What the audit says against the source; None where nothing."""
    (check,) = [each for each in verify(run / "c.json", run=run).checks if each.name == "source"]
    return None if check.passed else check.detail


def test_a_run_without_shards_agrees_with_its_certificate(tmp_path: Path) -> None:
    assert source_check(saved(tmp_path)) is None


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"recipe": {"method": "kernel-vote"}}, "recipe"),
        ({"data_fingerprint": "sha256:2"}, "fingerprint"),
        ({"training": {"fingerprint": "2" * 64, "examples": 60}}, "training data"),
        ({"training": {"fingerprint": "1" * 64, "examples": 61}}, "training data"),
        ({"assumptions": [str(CONDITION)]}, "conditions"),
        ({"assumptions": []}, "conditions"),
        ({"size": {"num_train": 60, "low": 34, "high": 67}}, "size"),
    ],
)
def test_a_run_without_shards_that_says_something_else_is_noticed(tmp_path: Path, changes: Any, word: str) -> None:
    assert source_check(saved(tmp_path, **changes)) == (
        f"votes.npz in {tmp_path} is not what that run counted: {word} differ"
    )


def test_a_certificate_of_other_votes_is_noticed(tmp_path: Path) -> None:
    votes = Votes.load(saved(tmp_path) / "votes.npz")
    certify(replace(votes, counts=np.array([[9, 0], [0, 9]]))).save(tmp_path / "c.json")
    assert source_check(tmp_path) == f"counts differ from those of {tmp_path}"


def test_random_votes_need_their_shards(tmp_path: Path) -> None:
    """Nobody passes off an ensemble, whose shards would not add up, as a run that has none."""
    found = source_check(saved(tmp_path, SampledGaussian(30.0, 1.0, 4)))
    assert found == f"votes.npz in {tmp_path} is not what that run counted: mechanism differ"
    for kind in ("gone", "models", None, [], 7):
        with pytest.raises(ArtifactError):
            source_check(saved(tmp_path, kind=kind))


@pytest.mark.parametrize("changes", [{"recipe": "gone"}, {"assumptions": 3}, {"assumptions": [{}]}])
def test_a_damaged_run_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ArtifactError, match="is damaged"):
        source_check(saved(tmp_path, **changes))
    for content in ("", "[]", "null", '{"kind": 1e999}', "[" * 100_000):
        (tmp_path / "run.json").write_text(content)
        with pytest.raises(ArtifactError, match="is damaged"):
            source_check(tmp_path)


def test_an_audit_needs_no_torch(tmp_path: Path) -> None:
    run = saved(tmp_path, SampledGaussian(30.0, 1.0, 4), kind="gone")
    code = (
        "import sys\n"
        "from mithridate import MithridateError, verify\n"
        f"try: verify({str(run / 'c.json')!r}, run={str(run)!r})\n"
        "except MithridateError as error: print(error)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said, has_torch = done.stdout.splitlines()
    assert "run.json is damaged" in said  # it got as far as reading what a run that trains would have written
    assert has_torch == "False"
