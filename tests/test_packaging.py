"""The wheel and the sdist: what is in them, and what works where only the wheel and what it requires are installed."""

import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.more

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "mithridate"
# Everything at the top of the sdist; a folder that lies around in a checkout must not slip in.
SDIST = {
    ".ci", ".dockerignore", ".gitignore", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "Dockerfile", "LICENSE",
    "Makefile", "PKG-INFO", "README.md", "SECURITY.md", "benchmarks", "constraints.txt", "docs", "examples",
    "experiments", "mkdocs.yml", "pyproject.toml", "src", "tests",
}  # fmt: skip
# These need no extra, the others name theirs.
CORE = ("certify", "evidence", "gate", "init", "merge", "plan", "report", "split", "verify")


def outcome(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    # Neither the packages of this interpreter nor the user's settings may reach the other one.
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, env=clean, capture_output=True, text=True, timeout=3600, check=False
    )


# --- what is built --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of this checkout."""
    pytest.importorskip("build", reason="building needs: pip install build")
    folder = tmp_path_factory.mktemp("dist")
    # With hatchling at hand no network is needed.
    isolation = [] if importlib.util.find_spec("hatchling") is None else ["--no-isolation"]
    result = outcome(sys.executable, "-m", "build", *isolation, "--outdir", folder, ROOT, cwd=folder)
    if result.returncode and not isolation and "hatchling" in result.stdout + result.stderr:
        pytest.skip("building needs hatchling, which is neither installed nor to be had here")
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    source = {
        path.relative_to(SOURCE.parent).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == source
    assert {"mithridate/py.typed", "mithridate/training/kernels/native.c"} <= names
    assert {".py", ".c", ".html", ".css", ".js"} <= {Path(name).suffix for name in names}


def test_the_wheel_is_small(wheel: Path) -> None:
    """So that auditors and continuous integration do not wait for it: docs/releasing.md has the last figure."""
    assert wheel.stat().st_size < 3_000_000


def test_the_sdist_holds_what_a_developer_needs_and_nothing_else(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = [Path(*Path(member.name).parts[1:]) for member in archive.getmembers()]
    top = {name.parts[0] for name in names if name.parts}
    assert top == SDIST
    for wanted in ("tests/test_packaging.py", "docs/theory.md", "docs/hooks.py", "examples/digits-votes.npz"):
        assert Path(wanted) in names, wanted
    assert not [name for name in names if "__pycache__" in name.parts]


# --- what works without extras --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel and what it requires, no more."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
    pip = (programs / "python", "-m", "pip", "install", "-qq", "--disable-pip-version-check")
    result = outcome(*pip, "-c", ROOT / "constraints.txt", wheel, cwd=folder)
    if result.returncode and re.search(r"No matching distribution found for (numpy|scipy|rich|jinja2)", result.stderr):
        pytest.skip("numpy, scipy, rich and jinja2 are not to be had here")
    assert result.returncode == 0, result.stderr
    return programs


def mithridate(bare: Path, *arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return outcome(bare / "mithridate", *arguments, cwd=cwd)


def test_without_extras_plan_certify_and_verify_work(bare: Path, tmp_path: Path) -> None:
    recipe = "--noise-multiplier 3 --sample-rate 0.001 --steps 1000 --instances 1000 --classes 10"
    votes = ROOT / "examples" / "digits-votes.npz"
    for command in (
        ("plan", *recipe.split()),
        ("certify", votes, "--labels-key", "y", "--out", "certificate.json"),
        ("verify", "certificate.json"),
        ("gate", "certificate.json", "--certified-accuracy", "0.5", "--at", "0"),
        ("report", "certificate.json", "-o", "report.html"),
    ):
        result = mithridate(bare, *command, cwd=tmp_path)
        assert result.returncode == 0, (command, result.stderr)
        assert result.stdout
    assert (tmp_path / "report.html").is_file()
    installed = outcome(bare / "python", "-m", "pip", "list", "--format=freeze", cwd=tmp_path).stdout
    assert "mithridate==" in installed
    assert not re.search(r"^(torch|triton|nvidia\S*|matplotlib|ray)==", installed, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that were trained where torch is installed."""
    pytest.importorskip("torch")
    from mithridate import TrainConfig, train

    folder = tmp_path_factory.mktemp("run") / "run"
    x, y = np.eye(2, dtype=np.float32).repeat(10, axis=0), np.arange(2).repeat(10)
    config = TrainConfig(
        instances=2, noise_multiplier=1.0, sample_rate=0.5, steps=1, max_grad_norm=1.0, learning_rate=1.0
    )
    train((x, y), (x, y), model="linear", config=config, run_dir=folder, keep_models=True)
    return folder


TRAIN = (
    "train --train data.npz --test data.npz --run-dir run --model linear --instances 2 --noise-multiplier 1"
    " --sample-rate 0.5 --steps 1 --max-grad-norm 1 --learning-rate 1"
).split()


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (TRAIN, "train"),
        (["demo"], "train"),
        (["predict", "RUN_DIR", "data.npz"], "train"),
        (["report", "certificate.json", "-o", "report.png"], "report"),
        (["init", "table.parquet", "-o", "table.toml"], "data"),
        (["audit", "p.toml", "--method", "fdp"], "train"),
        (["tune", "p.toml", "--trusted", "known.npz", "--trials", "1"], "tune"),
        (["serve", "RUN_DIR"], "serve"),
    ],
    ids=["train", "demo", "predict", "report-png", "init-parquet", "audit", "tune", "serve"],
)
def test_without_extras_the_rest_names_what_it_needs(
    bare: Path, run_dir: Path, tmp_path: Path, command: Sequence[str], extra: str
) -> None:
    np.savez(tmp_path / "data.npz", x=np.eye(2, dtype=np.float32), y=np.arange(2))
    (tmp_path / "table.parquet").write_bytes(b"PAR1PAR1")
    np.savez(tmp_path / "known.npz", x=5 + np.arange(80.0).reshape(40, 2), y=np.arange(40) % 2)
    (tmp_path / "p.toml").write_text('[data]\ntrain = "data.npz"\ntest = "data.npz"\n[train]\nnum_train = 40\n')
    votes = ROOT / "examples" / "digits-votes.npz"
    assert mithridate(bare, "certify", votes, "--out", "certificate.json", cwd=tmp_path).returncode == 0
    before = sorted(tmp_path.iterdir())
    result = mithridate(bare, *(str(run_dir) if part == "RUN_DIR" else part for part in command), cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert f"pip install 'mithridate[{extra}]'" in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_every_command_was_tried_without_extras(bare: Path, tmp_path: Path) -> None:
    listed = re.findall(r"^ {4}(\w+) ", mithridate(bare, "--help", cwd=tmp_path).stdout, flags=re.MULTILINE)
    # An update of neighbours needs no extra; tests/test_update.py has it.
    assert sorted(listed) == sorted({*CORE, "audit", "compare", "demo", "predict", "serve", "train", "tune", "update"})


@pytest.mark.parametrize("call", ["train", "predict(RUN_DIR, [[1.0, 0.0]])", "CertifiedClassifier()"])
def test_without_extras_python_names_what_it_needs(bare: Path, run_dir: Path, tmp_path: Path, call: str) -> None:
    code = f"import mithridate\nmithridate.{call.replace('RUN_DIR', repr(str(run_dir)))}"
    result = outcome(bare / "python", "-c", code, cwd=tmp_path)
    assert result.returncode
    assert "pip install 'mithridate[train]'" in result.stderr
