"""The documentation: its Python runs, its commands exist, its links lead somewhere, and the site builds strictly."""

import importlib
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mithridate.cli import main
from mithridate.cli._shared import new_parser

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")), *sorted(DOCS.glob("*.md"))]
NOT_RUN = "<!-- not run -->"
# Blocks that cannot run in a test must stay the exception.
MOST_NOT_RUN = 4
# How many seconds a page may take.
TIMEOUT = 1200  # only for what hangs: a busy machine takes long

_FENCE = re.compile(r"^(?P<before>[^\n]*\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$", flags=re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*)$", flags=re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    language: str
    code: str
    line: int
    runs: bool


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        runs = (found["before"] or "").strip() != NOT_RUN
        yield Block(found["language"], found["code"], text[: found.start("code")].count("\n"), runs)


def commands(block: Block) -> list[list[str]]:
    """The mithridate commands of a block, without the name of the program."""
    if block.language not in ("", "sh", "console"):
        return []
    lines = [line.removeprefix("$ ") for line in block.code.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("mithridate ")]


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", _FENCE.sub("", text))


def pages(wanted: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", wanted, ids=[page.name for page in wanted])


# --- what is shown runs ---------------------------------------------------------------------------------------------


@pytest.mark.more
@pages([page for page in PAGES if any(block.language == "python" for block in blocks(page))])
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    """From top to bottom in one interpreter and an empty folder, as a reader would type it."""
    shown = [block for block in blocks(page) if block.language == "python" and block.runs]
    # As many blank lines in front as make the line numbers of a traceback those of the page.
    source, line = "", 1
    for block in shown:
        source += "\n" * (block.line + 1 - line) + block.code
        line = block.line + 1 + block.code.count("\n")
    script = tmp_path / f"{page.stem}.py"
    script.write_text(source, encoding="utf-8")
    outcome = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr


def test_few_blocks_do_not_run() -> None:
    skipped = [f"{page.name}:{block.line}" for page in PAGES for block in blocks(page) if not block.runs]
    assert len(skipped) <= MOST_NOT_RUN, skipped


@pages([page for page in PAGES if any(commands(block) for block in blocks(page))])
def test_the_commands_of_a_page_exist(page: Path) -> None:
    for block in blocks(page):
        for command in commands(block):
            assert callable(new_parser().parse_args(command).run), command


@pytest.mark.more
@pytest.mark.filterwarnings("ignore:Certificates will be weak")
def test_the_quickstart_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block in its order: Python and commands, the download of data sets left out."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "quickstart"}
    for block in blocks(DOCS / "quickstart.md"):
        if block.language == "python":
            exec(compile(block.code, f"quickstart.md:{block.line}", "exec"), names)
        for command in commands(block):
            if "--dataset" not in command:
                assert main(command) == 0, command
    assert (tmp_path / "report.html").is_file()


# --- links ----------------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The names by which headings of a page can be linked to."""
    titles = _HEADING.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip()) for title in titles}


@pages(PAGES)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(without_code(page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


# --- the reference --------------------------------------------------------------------------------------------------


@pytest.mark.more
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    for package in ("mkdocs", "material", "mkdocstrings", "latex2mathml"):
        pytest.importorskip(package, reason="the documentation needs: pip install -e '.[docs]'")
    outcome = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    shown = {page.stem: page.read_text(encoding="utf-8") for page in (tmp_path / "site").glob("*.html")}
    # The help of every command is there, formulas are drawn without a script, and nothing comes from the network.
    for command in re.findall(r"^ {4}(\w+) ", new_parser().format_help(), flags=re.MULTILINE):
        assert f"usage: mithridate {command}" in shown["cli"]
    assert "<math" in shown["theory"]
    assert "arithmatex" not in shown["theory"]
    assert "hooks.py" not in {path.name for path in (tmp_path / "site").rglob("*")}
    for name, page in shown.items():
        loaded = re.findall(r"<(?:script|img|link)[^>]*(?:src|href)=\"?(?:https?:)?//[^\">]*", page)
        assert not loaded, (name, loaded)


def test_the_tables_of_choosing_come_from_the_raw_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `python benchmarks/choosing.py` would write is what stands there."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    choosing = importlib.import_module("choosing")
    assert choosing.tables() in (DOCS / "choosing.md").read_text(encoding="utf-8")


def test_what_a_ray_cluster_costs_is_what_was_measured() -> None:
    """The figures of docs/scaling.md are those of the benchmark's results."""
    page = (DOCS / "scaling.md").read_text(encoding="utf-8").replace("\n", " ")
    results = ROOT / "benchmarks" / "results"
    for model in ("mlp", "lenet5"):
        found = json.loads((results / f"ray-long-{model}.json").read_text(encoding="utf-8"))
        local, ray = (statistics.mean(found["seconds"][name]) for name in ("local", "ray"))
        assert found["seconds_of_work_per_shard"] >= 10
        assert f"| {local:.1f} s | {ray:.1f} s | {found['ray_over_local']:.2f} |" in page
    many = json.loads((results / "ray-many.json").read_text(encoding="utf-8"))
    assert f"{many['shards']:,} shards of one trivial model each take {many['ms_per_shard']:.1f} ms a shard" in page
    assert f"grew by {many['driver_mib_growth_after_first_quarter']:.0f} MiB" in page


def test_the_tables_of_size_are_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `python benchmarks/size.py --page` would write is what stands there."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    size = importlib.import_module("size")
    assert size.tables() in (DOCS / "scaling.md").read_text(encoding="utf-8")
