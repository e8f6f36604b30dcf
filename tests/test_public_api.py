"""What users see first: names, the weight of the import, the README, and the files around the package."""

import json
import re
import shlex
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import pytest
from test_cli import COMMANDS

import mithridate
from mithridate.cli._shared import new_parser

ROOT = Path(__file__).parents[1]
CONTRACT = {"SampledGaussian", "Votes", "certify", "Certificate", "Threat", "FDP", "RDP", "ADP", "plan"}
TRAINING = {"TrainConfig", "train", "predict", "CertifiedClassifier"}
ERRORS = {"MithridateError", "ConfigError", "UnsupportedMechanismError", "ArtifactError", "NumericalError"}


def test_every_public_name_is_there() -> None:
    assert sorted(set(mithridate.__all__)) == sorted(mithridate.__all__)
    for name in mithridate.__all__:
        assert getattr(mithridate, name).__doc__ or name == "Mechanism", name
    assert set(mithridate.__all__) >= CONTRACT | ERRORS | TRAINING | {"Subsampled", "verify"}


def test_the_version_is_that_of_the_package() -> None:
    assert mithridate.__version__ == metadata.version("mithridate")


def test_every_error_has_one_base() -> None:
    for name in mithridate.__all__:
        value = getattr(mithridate, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert issubclass(value, mithridate.MithridateError)


def loaded_by(statement: str) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    return set(json.loads(result.stdout))


def test_importing_is_light() -> None:
    heavy = {"torch", "ray", "matplotlib", "sklearn", "pandas", "jinja2", "dp_accounting", "mpmath"}
    library = loaded_by("import mithridate")
    assert not library & (heavy | {"numpy", "scipy", "rich"})
    assert not loaded_by("import mithridate.cli") & (heavy | {"numpy", "scipy", "rich", "typing", "argparse"})
    for words in ([], ["plan"], ["train"], ["compare"]):
        assert not loaded_by(f"from mithridate.cli._shared import new_parser; new_parser({words})") & heavy
    light = (
        "auditing.verification",
        "data",
        "features",
        "training.config",
        "training.randomness",
        "training.run_directory",
    )
    assert not loaded_by("; ".join(f"import mithridate.{name}" for name in light)) & (heavy | {"safetensors"})


def test_without_torch_training_says_what_to_install() -> None:
    """The rest works, and the one sentence names the remedy."""
    code = """
import sys
sys.modules["torch"] = None
import mithridate
from mithridate.cli import main
try:
    mithridate.train
except ModuleNotFoundError as error:
    print(error)
import numpy as np
np.savez(sys.argv[1], x=np.zeros((2, 2)), y=np.array([0, 1]))
flags = "--model linear --instances 1 --noise-multiplier 1 --sample-rate 1 --steps 1"
flags += " --max-grad-norm 1 --learning-rate 1"
sys.exit(main(["train", "--train", sys.argv[1], "--test", sys.argv[1], *flags.split()]))
"""
    with tempfile.TemporaryDirectory() as folder:
        outcome = subprocess.run(
            [sys.executable, "-c", code, f"{folder}/data.npz"], cwd=folder, capture_output=True, text=True, check=False
        )
        assert list(Path(folder).iterdir()) == [Path(folder) / "data.npz"]
    assert outcome.returncode == 2
    for text in (outcome.stdout, outcome.stderr):
        assert "pip install 'mithridate[train]'" in text
    assert outcome.stderr.count("\n") == 1


# --- the README -----------------------------------------------------------------------------------------------------


def blocks(language: str) -> list[str]:
    """Code blocks of the README that are marked with a language, or not marked at all."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [block for name, block in found if name == language]


def test_the_readme_certifies_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That all its Python runs is left to the tests of the documentation."""
    monkeypatch.chdir(tmp_path)
    (example,) = (block for block in blocks("python") if "from_counts" in block)
    exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
    certificate = mithridate.Certificate.load(tmp_path / "certificate.json")
    assert certificate.label.tolist() == [0, 0, 0]
    assert certificate.radius[0] > certificate.radius[1] > 0 > certificate.radius[2]
    assert str(certificate.radius) in capsys.readouterr().out


def test_every_command_of_the_readme_parses() -> None:
    lines = [line.removeprefix("$ ") for block in blocks("") for line in block.splitlines()]
    commands = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("mithridate ")]
    assert {command[0] for command in commands} == set(COMMANDS)
    for command in commands:
        assert callable(new_parser().parse_args(command).run)


def test_every_target_of_the_readme_is_in_the_makefile() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"(?:^|`)make ([a-z]+)", text, flags=re.MULTILINE))
    assert {"demo", "test", "lint", "slow", "bench"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_links_of_the_readme_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if "://" not in target:
            assert (ROOT / target).is_file(), target


# --- around the package ---------------------------------------------------------------------------------------------


def test_the_changelog_speaks_of_soundness() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^### Soundness$", text, flags=re.MULTILINE)


def test_the_citation_names_the_paper() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert "Enhancing the Antidote: Improved Pointwise Certifications against Poisoning Attacks" in text
    assert "arXiv:2308.07553" in text
    for name in ("Liu", "Cullen", "Montague", "Erfani", "Rubinstein"):
        assert f"family-names: {name}" in text


def test_the_package_says_that_it_is_typed_and_free() -> None:
    assert (ROOT / "src" / "mithridate" / "py.typed").is_file()
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_no_file_speaks_of_the_machine_it_was_written_on() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    machine = re.compile(r"(?<![\w.])/(?:work|home|root|Users)/")
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        assert not machine.search(text), name
