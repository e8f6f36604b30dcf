"""The command that trains what the paper trained: rows, pieces, what is kept."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
from mithridate import Certificate, Votes
from mithridate._io.artifacts import read_npz
from mithridate.data.named import load_named
from mithridate.defences import defence
from mithridate.errors import ConfigError

pytestmark = pytest.mark.more
FOLDER = Path(__file__).parents[1] / "experiments"
PRIVATE = """
[data]
name = "digits"
[train]
model = "linear"
features = "oriented-gradients"
instances = 5
noise_multiplier = 3.0
sample_rate = 0.1
steps = 5
max_grad_norm = 1.0
learning_rate = 5.0
num_train = 1397
classes = 10
score_bins = 0
"""
BASELINES = """
[data]
name = "digits"
[[methods]]
name = "bagging"
draws = 50
instances = 3
steps = 5
[[methods]]
name = "dpa"
partitions = 4
steps = 5
"""


@pytest.fixture(scope="module")
def reproduce() -> ModuleType:
    specification = importlib.util.spec_from_file_location("reproduce", FOLDER / "reproduce.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["reproduce"] = module  # dataclasses look their module up
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("aaai2023", "beyond"):
        (tmp_path / name).mkdir()
    (tmp_path / "aaai2023" / "digits-linear-sigma3.toml").write_text(PRIVATE, encoding="utf-8")
    (tmp_path / "aaai2023" / "digits-linear-baselines.toml").write_text(BASELINES, encoding="utf-8")
    return tmp_path


def run(reproduce: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> Path:
    monkeypatch.setattr(sys, "argv", ["reproduce.py", "--device", "cpu", "--root", str(folder), *arguments])
    reproduce.main()
    return folder / "aaai2023" / "raw"


def test_every_row_is_trained_and_kept(reproduce: ModuleType, monkeypatch: Any, folder: Path) -> None:
    raw = run(reproduce, monkeypatch, folder)
    instances = {path.stem: Votes.load(path).instances for path in raw.glob("*.npz")}
    assert instances == {"digits-linear-sigma3": 5, "digits-linear-bagging-50": 3, "digits-linear-dpa-4": 4}
    for path in raw.glob("*.json"):
        how = json.loads(path.read_text(encoding="utf-8"))
        assert how["name"] == path.stem
        assert how["instances"] == instances[path.stem]
        assert how["seconds"] > 0
        assert {"device", "torch", "python", "mithridate", "mechanism", "pieces"} <= set(how)


def test_every_row_assumes_what_its_own_file_says(reproduce: ModuleType, monkeypatch: Any, folder: Path) -> None:
    for path in (folder / "aaai2023").glob("*.toml"):
        said = f'assumptions = ["Tuned by {path.stem}."]\n'
        path.write_text(said + path.read_text(encoding="utf-8"), encoding="utf-8")
    raw = run(reproduce, monkeypatch, folder)
    for name, file in (("sigma3", "sigma3"), ("bagging-50", "baselines"), ("dpa-4", "baselines")):
        votes = Votes.load(raw / f"digits-linear-{name}.npz")
        assert [text for text in votes.assumptions if "Tuned" in text] == [f"Tuned by digits-linear-{file}."]
        how = json.loads((raw / f"digits-linear-{name}.json").read_text(encoding="utf-8"))
        assert how["assumptions"] == list(votes.assumptions)


def test_pieces_are_independent_runs_that_add_up(reproduce: ModuleType, monkeypatch: Any, folder: Path) -> None:
    raw = run(reproduce, monkeypatch, folder, "digits-linear-sigma3", "--piece", "2")
    votes = Votes.load(raw / "digits-linear-sigma3.npz")
    assert votes.instances == 5
    assert len(set(votes.run_ids)) == 3  # 2 + 2 + 1
    pieces = json.loads((raw / "digits-linear-sigma3.json").read_text(encoding="utf-8"))["pieces"]
    assert [piece["instances"] for piece in pieces] == [2, 2, 1]
    assert votes.score_sums is not None
    assert np.allclose(votes.score_sums.sum(axis=1), 5, rtol=1e-5)


def test_what_is_there_is_not_trained_again(reproduce: ModuleType, monkeypatch: Any, folder: Path) -> None:
    raw = run(reproduce, monkeypatch, folder)
    before = {path.name: path.read_bytes() for path in raw.iterdir()}
    assert run(reproduce, monkeypatch, folder) == raw
    assert {path.name: path.read_bytes() for path in raw.iterdir()} == before


def test_nothing_is_begun_when_the_time_is_up(reproduce: ModuleType, monkeypatch: Any, folder: Path) -> None:
    assert list(run(reproduce, monkeypatch, folder, "--seconds", "0").iterdir()) == []


def test_another_recipe_is_never_merged_into_what_is_there(
    reproduce: ModuleType, monkeypatch: Any, folder: Path
) -> None:
    run(reproduce, monkeypatch, folder, "digits-linear-sigma3")
    changed = PRIVATE.replace("noise_multiplier = 3.0", "noise_multiplier = 4.0").replace(
        "instances = 5", "instances = 6"
    )
    (folder / "aaai2023" / "digits-linear-sigma3.toml").write_text(changed, encoding="utf-8")
    with pytest.raises(SystemExit, match="different mechanisms"):
        run(reproduce, monkeypatch, folder, "digits-linear-sigma3")
    assert Votes.load(folder / "aaai2023" / "raw" / "digits-linear-sigma3.npz").instances == 5


LEADS = [40, 30, 20, 50, 1, 60, 40, 30, 90, 100]


def test_methods_that_need_more_than_counts_keep_their_radii(
    reproduce: ModuleType, monkeypatch: Any, folder: Path
) -> None:
    methods = "".join(f'[[methods]]\nname = "{name}"\n' for name in ("kernel-vote", "nearest-neighbours"))
    several = '[[methods]]\nname = "nearest-neighbours"\nneighbours = [100, 10]\nleads = [40]\n'
    several += several.replace("10]", "5]").replace("[40]", f"[{LEADS}]")
    text = f'[data]\nname = "digits"\n{methods}neighbours = 100\n{several}'
    (folder / "beyond" / "best-digits.toml").write_text(text, encoding="utf-8")
    start = "digits-nearest-neighbours-100"
    names = ("digits-kernel-vote", start, f"{start}-10", f"{start}-5")
    run(reproduce, monkeypatch, folder, *names)
    train, test = load_named("digits")
    for row, method in (
        ("digits-kernel-vote", defence("kernel-vote")),
        ("digits-nearest-neighbours-100", defence("nearest-neighbours", neighbours=100)),
        ("digits-nearest-neighbours-100-10", defence("nearest-neighbours", neighbours=[100, 10], leads=[40])),
        ("digits-nearest-neighbours-100-5", defence("nearest-neighbours", neighbours=[100, 5], leads=[LEADS])),
    ):
        kept = read_npz(folder / "beyond" / "raw" / f"{row}.npz", "certified radii")
        expected = method.certify(method.train(train, test))
        assert isinstance(expected, Certificate)
        assert np.array_equal(kept["label"], expected.label)
        assert np.array_equal(kept["radius"], expected.radius)
        assert kept["y"].tolist() == np.asarray(test.y).tolist()


def test_an_unknown_name_is_refused(reproduce: ModuleType, monkeypatch: Any, folder: Path) -> None:
    with pytest.raises(SystemExit, match="There is no sigma9; there are digits-linear"):
        run(reproduce, monkeypatch, folder, "sigma9")


def test_every_configuration_can_be_read(reproduce: ModuleType) -> None:
    names = [one.name for one in reproduce.experiments()]
    assert len(names) == len(set(names))
    for data in ("mnist", "fashion-mnist"):
        assert {f"{data}-lenet5-sigma{sigma}" for sigma in (1, 2, 3, 4)} <= set(names)
        assert f"{data}-lenet5-dpa-250" in names
    assert names[0].startswith("mnist-lenet5")


def test_a_configuration_with_an_unknown_option_says_so(reproduce: ModuleType, monkeypatch: Any, folder: Path) -> None:
    (folder / "aaai2023" / "digits-linear-sigma3.toml").write_text(PRIVATE + "noise = 3\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="noise"):
        run(reproduce, monkeypatch, folder)
    with pytest.raises(ConfigError):
        reproduce.experiments(folder)
