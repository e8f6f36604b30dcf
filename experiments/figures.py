"""`make figures`: rebuild every table and figure of docs/results.md from the raw votes.

python experiments/figures.py                 (needs the extra `report`; no GPU, no training data)

Tables and generated sentences stand between the marks `<!-- name -->` and `<!-- end of name -->`; everything else on a
page is left alone. The same raw votes give the same bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from aaai2023 import tables
from aaai2023.results import ROWS, Certified, Results, Row
from audit.tables import Audits
from audit.tables import blocks as audit_blocks
from backdoor.tables import blocks as backdoor_blocks
from backdoor.tables import found as backdoors
from backdoor.tables import noise_block
from beyond.tables import Beyond, Curve
from beyond.tables import blocks as beyond_blocks
from embeddings.tables import Embeddings
from embeddings.tables import blocks as encoder_blocks
from sources.tables import Sources
from sources.tables import blocks as source_blocks

from mithridate.accounting import RDP
from mithridate.reporting.comparison import COLOURS

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "results.md", ROOT / "docs" / "features.md", ROOT / "README.md")
FIGURES = ROOT / "docs" / "figures"

_INK, _RULE, _PAPER = "#1d2126", "#e2dfd6", "#ffffff"
# As in the reports of `mithridate compare`: solid lines are guarantees about each prediction.
_GUARANTEE, _NO_GUARANTEE, _NOT_ABOUT_POINTS = "-", (0, (6, 2, 1, 2)), (0, (1, 2))
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "mithridate",  # the names of things inside a file do not change from run to run
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "sans-serif"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.titlesize": 10,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.grid": True,
    "grid.color": _RULE,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.5,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "figure.facecolor": _PAPER,
    "axes.facecolor": _PAPER,
}

_FINE = re.compile(r"(\d\.\d\d)\d+")


# --- what is drawn --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A curve: its name, certified accuracy at radii, where it ends, and how it is drawn."""

    title: str
    accuracy: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float64]]
    end: int
    colour: str
    style: Any = _GUARANTEE


@dataclass(frozen=True)
class Panel:
    """Curves on common axes."""

    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Figure:
    """Panels side by side.

    Attributes:
        name: of its file.
        alt: what it shows, for those who do not see it.
        panels: from left to right.
    """

    name: str
    alt: str
    panels: tuple[Panel, ...]


def figures(results: Results) -> Iterator[Figure]:
    """Every figure whose votes are there."""
    for row in results.rows:
        alt = f"{row.title}: certified accuracy against radius, RDP by the paper's rules and all methods"
        yield Figure(row.key, alt, (_noise_panel(results, row, paper=True), _methods_panel(results, row)))
    rows = [row for row in results.rows if row.key.endswith("lenet5")]
    if rows:
        panels = tuple(_groups_panel(results, row) for row in rows)
        yield Figure("group-privacy", "Certified accuracy against radius by four rules for groups", panels)
    rows = [row for row in results.rows if len(row.sigmas) > 1]
    if rows:
        panels = tuple(_noise_panel(results, row, paper=False) for row in rows)
        yield Figure("noise-fdp", "Certified accuracy against radius by sound f-DP, for several sigma", panels)


def _noise_panel(results: Results, row: Row, *, paper: bool) -> Panel:
    lines: list[Line] = []
    for sigma, colour in zip(row.sigmas, COLOURS, strict=False):
        name = row.run(sigma)
        if results.has(name):
            found = results.by_paper(name, "rdp", "votes") if paper else results.sound(name, "fdp", "votes")
            lines.append(_line(f"sigma = {sigma}", found, colour, _NO_GUARANTEE if paper else _GUARANTEE))
    return Panel(f"{row.title}: {'RDP-multinomial, paper' if paper else 'f-DP, sound'}", tuple(lines))


def _methods_panel(results: Results, row: Row) -> Panel:
    lines: list[Line] = []
    for place, (rule, on) in enumerate((("rdp", "votes"), ("rdp", "scores"), ("adp", "votes"), ("adp", "scores"))):
        if on == "votes" or results.has_scores(row):
            title = f"{tables.METHODS[f'{rule}-{on}']}, paper"
            lines.append(_line(title, results.by_paper(row.main, rule, on), COLOURS[place], _NO_GUARANTEE))
    lines.append(_line("f-DP, sound", results.sound(row.main, "fdp", "votes"), COLOURS[4]))
    lines.append(_line("RDP, sound", results.sound(row.main, "rdp", "votes"), COLOURS[5]))
    if (bagging := results.matched_bagging(row)) is not None:
        lines.append(_line("Bagging", results.bagging(bagging, as_published=False), COLOURS[6]))
    if (dpa := results.dpa_run(row)) is not None:
        lines.append(_line("DPA", results.dpa(dpa), COLOURS[7]))
    bound = results.on_average(row.main)
    end = max(line.end for line in lines)
    lines.append(Line("f-DP (mean accuracy)", bound.accuracy, end, COLOURS[4], _NOT_ABOUT_POINTS))
    lines.append(Line("Baseline-DP (mean accuracy)", bound.published, end, COLOURS[10], _NOT_ABOUT_POINTS))
    return Panel(f"{row.title}: sigma = {row.sigma}", tuple(lines))


def _groups_panel(results: Results, row: Row) -> Panel:
    """Four rules for groups on the same votes, with the same valid bounds."""
    lines = (
        _line(
            "the paper's rule", results.by_paper(row.main, "rdp", "votes", valid_bounds=True), COLOURS[0], _NO_GUARANTEE
        ),
        _line("standard group privacy", results.by_method(row.main, RDP(group="standard")), COLOURS[1]),
        _line("mixture, sound", results.sound(row.main, "rdp", "votes"), COLOURS[5]),
        _line("f-DP, sound", results.sound(row.main, "fdp", "votes"), COLOURS[4]),
    )
    return Panel(f"{row.title}: sigma = {row.sigma}", lines)


def beyond_figure(beyond: Beyond) -> Figure:
    """The best of every kind beside the paper's recipe."""
    alt = "Certified accuracy against radius: the paper's recipe, and the best recipes found"
    panels = [Panel(task.title, tuple(_beyond_lines(beyond.curves(task)))) for task in beyond.tasks]
    return Figure("beyond", alt, tuple(panels))


def _beyond_lines(curves: Sequence[Curve]) -> Iterator[Line]:
    neighbours = iter((*COLOURS[2:4], *COLOURS[5:]))
    for curve in curves:
        how = curve.title.partition(": ")[2]
        if not curve.is_sound:
            yield _line(f"paper's recipe: {how}", curve.certified, COLOURS[0], _NO_GUARANTEE)
        elif curve.title.startswith("the same"):
            yield _line(f"paper's recipe: {how}", curve.certified, COLOURS[4])
        elif curve.title.startswith("DP"):
            yield _line("DP ensemble", curve.certified, COLOURS[1])
        else:
            yield _line(curve.title, curve.certified, next(neighbours))


def _line(title: str, found: Certified, colour: str, style: Any = _GUARANTEE) -> Line:
    return Line(title, lambda radii: found.accuracy(radii.tolist()), found.largest, colour, style)


# --- drawing --------------------------------------------------------------------------------------------------------


def draw(figure: Figure, path: Path) -> None:
    """Write a figure as SVG, dark on white, so that it can be read on pages of any colour."""
    import matplotlib
    from matplotlib.figure import Figure as Sheet

    with matplotlib.rc_context(_STYLE):
        sheet = Sheet(figsize=(4.7 * len(figure.panels), 4.2), layout="constrained")
        for place, (axes, panel) in enumerate(
            zip(sheet.subplots(1, len(figure.panels), squeeze=False)[0], figure.panels, strict=True)
        ):
            _draw_panel(axes, panel)
            axes.set_ylabel("certified accuracy" if place == 0 else "")
        drawn = io.StringIO()
        sheet.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None, "Title": figure.alt})
    path.parent.mkdir(parents=True, exist_ok=True)
    # A hundredth of a point is finer than any screen.
    path.write_text(_FINE.sub(r"\1", drawn.getvalue()), encoding="utf-8")


def _draw_panel(axes: Any, panel: Panel) -> None:
    for line in panel.lines:
        # A step from every radius to the next; past the last one, down to nothing.
        radii = np.arange(max(line.end, 0) + 2)
        axes.step(radii, line.accuracy(radii), where="post", label=line.title, color=line.colour, linestyle=line.style)
    axes.set(title=panel.title, xlabel="radius r", ylim=(0, 1), xlim=(0, None))
    axes.xaxis.get_major_locator().set_params(integer=True)
    # Below the axes: above them, curves go everywhere.
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)


# --- pages ----------------------------------------------------------------------------------------------------------


def pictures(drawn: list[Figure]) -> dict[str, str]:
    """The blocks of a page that show the figures."""
    by_name = {figure.name: f"![{figure.alt}](figures/{figure.name}.svg)\n" for figure in drawn}
    keys = [row.key for row in ROWS if row.key in by_name]
    return {
        "figures": "\n".join(by_name[key] for key in keys),
        "figure of groups": by_name.get("group-privacy", ""),
        "figure of noise": by_name.get("noise-fdp", ""),
        "figure of beyond": by_name.get("beyond", ""),
    }


def filled(page: str, blocks: dict[str, str]) -> str:
    """A page with its blocks replaced; marks of other names stay as they are."""
    for name, text in blocks.items():
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        page = block.sub(lambda found, text=text: f"{found[1]}\n{text}\n{found[2]}", page)
    return page


def everything() -> tuple[list[Figure], dict[str, str]]:
    """All figures, and all blocks of the pages."""
    results = Results()
    beyond = Beyond(results)
    drawn = [*figures(results), *([beyond_figure(beyond)] if beyond.tasks else [])]
    encoders = encoder_blocks(Embeddings(), beyond)
    sources = source_blocks(Sources())
    audits = audit_blocks(Audits())
    return drawn, {
        **tables.blocks(results), **beyond_blocks(beyond), **encoders, **sources, **audits, **pictures(drawn),
        **backdoor_blocks(backdoors()),
        **noise_block(),
    }  # fmt: skip


def main() -> None:
    drawn, blocks = everything()
    for figure in drawn:
        draw(figure, FIGURES / f"{figure.name}.svg")
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8"), blocks), encoding="utf-8")


if __name__ == "__main__":
    main()
