"""The Dockerfile: what it copies is there and not ignored, and what it installs exists. Nothing is built here."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Lines that end in a backslash go on.
LINES = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
COPIED = [
    source
    for line in LINES
    if line.startswith("COPY ") and "--from=" not in line
    for source in line.split()[1:-1]
]  # fmt: skip


def values_of(instruction: str) -> list[str]:
    return [line.split(maxsplit=1)[1] for line in LINES if line.startswith(f"{instruction} ")]


def default_of(argument: str) -> str:
    (found,) = (value for value in values_of("ARG") if value.startswith(f"{argument}="))
    return found.partition("=")[2]


@pytest.mark.parametrize("source", COPIED)
def test_what_is_copied_is_there_and_reaches_the_build(source: str) -> None:
    assert (ROOT / source).exists()
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignored.index(f"!{source}") > ignored.index("*")


def test_all_that_the_wheel_is_built_from_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"pyproject.toml", "src", project["readme"], *project["license-files"]} <= set(COPIED)


def test_the_extras_by_default_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(default_of("EXTRAS").split(",")) <= project["optional-dependencies"].keys()


def test_the_python_is_that_of_the_constraints() -> None:
    assert f"on Python {default_of('PYTHON')}." in (ROOT / "constraints.txt").read_text(encoding="utf-8")


def test_nobody_is_root_and_the_entry_point_is_the_program() -> None:
    assert values_of("USER") == ["mithridate"]
    assert values_of("ENTRYPOINT") == ['["mithridate"]']
    assert values_of("CMD") == ['["--help"]']
    assert values_of("VOLUME") == values_of("WORKDIR")[-1:] == ["/work"]


def test_only_the_target_for_serving_has_a_health_check() -> None:
    stages = re.split(r"^FROM ", "\n".join(LINES), flags=re.MULTILINE)[1:]
    named = {stage.splitlines()[0]: "HEALTHCHECK" in stage for stage in stages}
    assert [name for name, checked in named.items() if checked] == ["program AS serve"]
    assert list(named)[-1] == "program"


def test_the_page_names_every_build_argument() -> None:
    page = (ROOT / "docs" / "docker.md").read_text(encoding="utf-8")
    for value in values_of("ARG"):
        name, _, default = value.partition("=")
        row = f"| `{name}` | {f'`{default}`' if default else 'none'} |"
        assert row in page
