"""Every command once, on a small table, in the order in which a user would meet them."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from test_cli import run

from mithridate import Certificate, Votes
from mithridate.cli._shared import new_parser

pytest.importorskip("torch", reason="needs: pip install 'mithridate[train]'")

PROJECT = """
[data]
train = "train.csv"
test = "test.csv"
kind = "table"
label = "kind"
classes = ["daisy", "lily"]
columns = [{ name = "petal", kind = "number", low = 0.0, high = 9.0 }]
[train]
instances = 40
num_train = 80
device = "cpu"
"""
COMPARISON = """
[[methods]]
name = "dpa"
partitions = 5
steps = 20
[data]
train = "train.npz"
test = "test.npz"
"""
# A command, and a file that it leaves behind.
WALK = (
    ("plan --noise-multiplier 3 --sample-rate 0.001 --steps 1000 --instances 1000 --classes 10", None),
    ("init train.csv --label kind -o proposed.toml", "proposed.toml"),
    ("train flowers.toml --run-dir run", "run/run.json"),
    ("certify run --out certificate.json", "certificate.json"),
    ("predict run new.csv --json", None),
    ("report certificate.json -o report.html", "report.html"),
    ("verify certificate.json --run run", None),
    ("gate certificate.json --certified-accuracy 0.9 --at 0 --junit gate.xml", "gate.xml"),
    ("evidence run -o evidence.zip", "evidence.zip"),
    ("verify evidence.zip", None),
    ("train proposed.toml --method nearest-neighbours --run-dir near", "near/votes.npz"),
    ("update near --remove one.csv", "near/updates.json"),
    ("train flowers.toml --run-dir apart --prepare --in-flight 20", "apart/run.json"),
    ("split apart --into 2 -o parts", "parts/1/run.json"),
    ("train flowers.toml --run-dir parts/0 --in-flight 20", None),
    ("train flowers.toml --run-dir parts/1 --in-flight 20", None),
    ("merge parts/0 parts/1 -o votes.npz", "votes.npz"),
    ("compare compare.toml --out compared", None),
    ("audit flowers.toml --method nearest-neighbours --targets 4 -o audited", "audited/audit.html"),
    ("tune proposed.toml -o tuned", "tuned/tuned.toml"),
    ("demo --instances 20 --device cpu --out demo.html", "demo.html"),
)


def table(kinds: np.ndarray, *, labels: bool = True) -> str:
    # Far apart: all of 6,000 models told them apart. Side by side, a majority of 40 was wrong once in 240 times.
    lines = [f"{1 + 6 * kind + step / 80:.2f}" + (f",{('daisy', 'lily')[kind]}" if labels else "")
             for step, kind in enumerate(kinds)]  # fmt: skip
    return "\n".join(["petal,kind" if labels else "petal", *lines]) + "\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    kinds = {name: np.arange(count) % 2 for name, count in (("train", 80), ("test", 10))}
    for name, kind in kinds.items():
        Path(f"{name}.csv").write_text(table(kind))
        np.savez(f"{name}.npz", x=kind[:, None] * 2.0 - 1.0, y=kind)
    Path("new.csv").write_text(table(kinds["test"], labels=False))
    Path("one.csv").write_text(table(kinds["train"][:1]))
    Path("flowers.toml").write_text(PROJECT)
    Path("compare.toml").write_text(COMPARISON)
    return tmp_path


@pytest.mark.filterwarnings("ignore:Certificates will be weak")
def test_every_command_works(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = {}
    for line, left in WALK:
        outcome = run(capsys, *shlex.split(line))
        assert outcome.code == 0, f"{line}: {outcome.err}{outcome.out}"
        assert left is None or (here / left).is_file(), line
        printed[line.split()[0]] = outcome.out
    # `serve` goes on until somebody ends it; tests/test_serving.py has it.
    assert {line.split()[0] for line, _ in WALK} | {"serve"} == set(
        re.findall(r"^ {4}(\w+) ", new_parser().format_help(), flags=re.MULTILINE)
    )
    # What was trained apart and merged is as large as what was trained at once, and both separate the two kinds.
    certificate, merged = Certificate.load("certificate.json"), Votes.load("votes.npz")
    assert merged.instances == certificate.votes.instances == 40
    assert certificate.label.tolist() == merged.counts.argmax(axis=1).tolist() == [0, 1] * 5
    assert [one["prediction"] for one in json.loads(printed["predict"])["predictions"]] == ["daisy", "lily"] * 5
