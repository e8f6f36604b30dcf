"""A comparison as a page without any script, as Markdown, and as a chart: all methods on one axis.

A fine dotted line across the chart shows the baseline. A line is solid where its method is ranked. A dashed one has
another threat, a dotted one says nothing about single predictions, a dash-dotted one is no guarantee. Methods differ in
colour, in the shape of their marks and by the name beside the line, so that none of these is needed to tell them apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mithridate._text import shortened
from mithridate._version import VERSION
from mithridate.comparing.entry import Entry, certificate_file
from mithridate.comparing.result import Comparison, axis_ticks
from mithridate.core.certificate import guaranteed_failure_prob
from mithridate.core.conditions import explained
from mithridate.reporting import rendering
from mithridate.reporting.rendering import Chart, ChartText, Path, Plane, Point, Shape, Steps
from mithridate.reporting.report_page import mean_of_shares

_CHART_NOTE = (
    "Certified accuracy is the share of test points whose label is correct and certified at least to r. Solid lines "
    "are of methods that claim the same kind of thing and are ranked; the strip above the chart shows who certifies "
    "most, as long as that is more than the baseline: what always saying the commonest label scores, at every radius. "
    "Dashed: against another threat. Dotted: a bound on mean accuracy, not per prediction. Dash-dotted: no guarantee."
)
_TABLE_NOTE = (
    "* not ranked, for the reason given with the method. The failure probability is over training, and holds for each "
    "prediction by itself unless it says otherwise; deterministic methods have none. Training time of methods with "
    "the same votes is that of all of them together."
)

# Told apart by people with any kind of colour vision, at a contrast of 3:1 or more on white; assets/comparison.css has
# their twins for dark pages.
COLOURS = (
    "#0072b2", "#c75000", "#00805f", "#aa3377", "#222222", "#8c6d00", "#5d6f7f", "#5b4bc4",
    "#e000e0", "#000099", "#800000", "#590066", "#a56db0", "#f0307a", "#1d5c00", "#2a93a5",
)  # fmt: skip
# Around (0, 0): areas, of which every other round is hollow, and two crosses. With sixteen colours, 112 lines look
# different.
_AREAS: tuple[tuple[Point, ...], ...] = (
    tuple((4 * math.cos(math.tau * turn / 20), 4 * math.sin(math.tau * turn / 20)) for turn in range(20)),
    ((-3.6, -3.6), (3.6, -3.6), (3.6, 3.6), (-3.6, 3.6)),
    ((0, -4.6), (4.6, 3.6), (-4.6, 3.6)),
    ((0, -5), (5, 0), (0, 5), (-5, 0)),
    ((0, 4.6), (4.6, -3.6), (-4.6, -3.6)),
)
_CROSSES: tuple[tuple[Point, ...], ...] = (
    ((-4, -4), (4, 4), (0, 0), (-4, 4), (4, -4)),
    ((-5, 0), (5, 0), (0, 0), (0, -5), (0, 5)),
)
_MARKS = (*_AREAS, *_CROSSES)
DASHES = {"ranked": "", "other-threat": "8 5", "not-per-prediction": "2 4", "no-guarantee": "10 4 2 4"}

_WIDTH, _LEFT, _RIGHT = 860, 52, 842
_TOP, _BOTTOM, _LEGEND_TOP = 52, 382, 448
_ROW = 22
# Longer names and titles are cut, or get a line to themselves.
_NAME, _HALF_LINE, _LINE = 28, 54, 110
_CHARACTER = 7.4
_MARKED_AT = (0.12, 0.45, 0.75)
_PLACES = 32


@dataclass(frozen=True, eq=False)
class ComparisonReport:
    """A comparison as a page, as Markdown and as a drawing."""

    comparison: Comparison

    def html(self) -> str:
        """One self-contained page: no network, no script, no other files."""
        comparison = self.comparison
        header, rows = _table(comparison)
        return rendering.page(
            "comparison.html",
            styles=("style.css", "comparison.css"),
            title=comparison.title,
            headline=comparison.headline,
            lead=f"Threat: {comparison.threat.of(comparison.unit_words)}.",
            remarks=(*_failures(comparison), *comparison.findings[1:]),
            chart_lead=f"All methods on one axis; r counts {comparison.threat.counts(comparison.unit_words)}.",
            chart=draw(comparison).svg(),
            chart_note=_CHART_NOTE,
            header=header,
            rows=rows,
            numbers=len(comparison.radii),
            table_note=_TABLE_NOTE,
            methods=[_card(entry, comparison) for entry in comparison.entries],
            notes=comparison.notes,
            footer=f"Written by mithridate {VERSION}. The commands run in the folder of this report; the page shows "
            "certificates and does not check them.",
        )

    def _repr_html_(self) -> str:
        return rendering.framed(self.html(), self.comparison.title, sandbox="")

    def svg(self) -> str:
        """The chart as a drawing that stands alone."""
        return draw(self.comparison).svg(alone=True)

    def markdown(self) -> str:
        """Headline, table, methods and notes."""
        comparison = self.comparison
        header, rows = _table(comparison)
        methods = "\n\n".join(_markdown_method(entry, comparison) for entry in comparison.entries)
        parts = [
            f"# {rendering.plain_text(comparison.title)}",
            f"**{rendering.plain_text(comparison.headline)}**",
            rendering.plain_text(f"Threat: {comparison.threat.of(comparison.unit_words)}."),
            rendering.bullets((*_failures(comparison), *comparison.findings[1:])),
            rendering.section("Certified accuracy against radius", rendering.rendered_table(header, rows)),
            rendering.plain_text(_TABLE_NOTE),
            rendering.section("Method by method", methods),
            rendering.section("Worth knowing", rendering.bullets(comparison.notes)),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"


def _table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Header and rows: certified accuracy at the radii of the comparison, then what the numbers rest on."""
    header = ["method", *(f"r = {radius:,}" for radius in comparison.radii)]
    header += ["failure probability", "certified against", "training", "certifying"]
    rows = [
        [
            marked_title(entry),
            *entry.shares(comparison.radii),
            failure_words(entry),
            entry.threat.value,
            duration(entry.training_seconds),
            duration(entry.certification_seconds),
        ]
        for entry in comparison.entries
    ]
    # What the shares of all methods are measured by, and who is above it and certifies most.
    rows.append(["baseline", *([comparison.baseline_share] * len(comparison.radii)), "", "", "", ""])
    leading = [" = ".join(names) or "none" for names in comparison.best()]
    return header, [*rows, ["most, above the baseline", *leading, "", "", "", ""]]


def marked_title(entry: Entry) -> str:
    """The title, with a star where the entry is not ranked."""
    return entry.full_title + ("" if entry.ranked else " *")


def failure_words(entry: Entry) -> str:
    """The probability of failure, as a cell of a table."""
    if entry.failure_prob == 0:
        return "none"
    found = entry.certificate
    if found is None:
        return f"{entry.failure_prob:g}, whole curve"
    if not found.method.is_sound:
        return "not guaranteed"
    guaranteed = guaranteed_failure_prob(found)
    nominal = f"{entry.failure_prob if guaranteed is None else guaranteed:g}"
    return nominal + (" (nominal)" if guaranteed is None else ", all at once" if found.scope.value == "all" else "")


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(0.04), duration(75), duration(7000)
    ('0.04 s', '75 s', '117 min')
    """
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds >= 0.001 else "0 s"
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


# --- method by method -----------------------------------------------------------------------------------------------


def _facts(entry: Entry, comparison: Comparison) -> list[str]:
    """Claim, confidence and cost of an entry, a sentence each."""
    about = (f"Threat: {entry.threat_in_words}.", entry.confidence, *explained(entry.conditions), *entry.notes)
    cost = f"Training took {duration(entry.training_seconds)}, certification {duration(entry.certification_seconds)}."
    return [*about, *_balanced(entry, comparison), cost]


def _balanced(entry: Entry, comparison: Comparison) -> list[str]:
    """Certified accuracy as a mean over classes, at the radii of the table."""
    shares = entry.balanced_accuracy(comparison.radii)
    if shares is None:
        return []
    cells = (f"{mean_of_shares(share)} at {r:,}" for r, share in zip(comparison.radii, shares.tolist(), strict=True))
    return [f"Certified accuracy as a mean over classes: {', '.join(cells)}."]


def _command(entry: Entry) -> str | None:
    return None if entry.certificate is None else f"mithridate verify {certificate_file(entry)}"


def _card(entry: Entry, comparison: Comparison) -> dict[str, Any]:
    return {
        "name": entry.name,
        "title": marked_title(entry),
        "facts": _facts(entry, comparison),
        "assumptions": entry.assumptions,
        "command": _command(entry),
    }


def _markdown_method(entry: Entry, comparison: Comparison) -> str:
    command = _command(entry)
    parts = [
        f"### {rendering.plain_text(marked_title(entry))}",
        rendering.bullets(tuple(_facts(entry, comparison))),
        "It assumes:\n\n" + rendering.bullets(entry.assumptions) if entry.assumptions else "",
        "" if command is None else f"Check it with:\n\n    {command}",
    ]
    return "\n\n".join(part for part in parts if part)


def _failures(comparison: Comparison) -> tuple[str, ...]:
    return tuple(f"{name} came to no result: {reason}" for name, reason in comparison.failed)


# --- the chart --------------------------------------------------------------------------------------------------------


def draw(comparison: Comparison) -> Chart:
    """The chart of a comparison."""
    plane = Plane(_LEFT, _RIGHT, _TOP, _BOTTOM, comparison.axis_limit, comparison.is_logarithmic)
    lines = [_steps(entry, plane) for entry in comparison.entries]
    named = _baseline_box(comparison, lines, plane)
    scale = ", on a logarithmic scale" if plane.is_logarithmic else ""
    counted = comparison.threat.counts(comparison.unit_words.short)
    shapes = plane.axes(axis_ticks(plane.limit, 8, logarithmic=plane.is_logarithmic), f"{counted}{scale}")
    shapes += [plane.baseline(comparison.baseline.share), named.text(baseline_label(comparison), "baseline-name")]
    shapes += _leaders(comparison, plane)
    for which, entry in enumerate(comparison.entries):
        shapes += _method(which, entry, lines[which])
    shapes += _names(comparison.entries, lines, named)
    legend, height = _legend(comparison.entries)
    return Chart(_WIDTH, height, comparison.title, description(comparison), [*shapes, *legend])


def kind(entry: Entry) -> str:
    """What sets an entry apart from the ranked ones, if anything does; a key of `DASHES`."""
    if not entry.per_prediction:
        return "not-per-prediction"
    if not entry.same_threat:
        return "other-threat"
    return "ranked" if entry.is_guarantee else "no-guarantee"


def legend_text(entry: Entry) -> str:
    """The name of an entry, and what sets it apart."""
    apart = {
        "ranked": "",
        "other-threat": f" (another threat: {entry.threat.value})",
        "not-per-prediction": " (not per prediction)",
        "no-guarantee": " (no guarantee)",
    }[kind(entry)]
    return shortened(entry.full_title, _LINE - len(apart)) + apart


def description(comparison: Comparison) -> str:
    """The curves in words, for those who do not see them."""
    radii = axis_ticks(comparison.axis_limit, 4, logarithmic=comparison.is_logarithmic)
    counted = comparison.threat.counts(comparison.unit_words)
    sentences = [f"Certified accuracy by radius ({counted}). {comparison.headline}"]
    for entry in comparison.entries:
        listed = zip(radii, entry.shares(radii), strict=True)
        sentences.append(f"{legend_text(entry)}: {', '.join(f'{share} at {radius:,}' for radius, share in listed)}.")
    return " ".join([*sentences, f"Baseline: {comparison.baseline_clause}."])


def baseline_label(comparison: Comparison) -> str:
    """What stands beside the line of the baseline, and in the table."""
    return f"baseline {comparison.baseline_share}"


def _steps(entry: Entry, plane: Plane) -> Steps:
    if entry.curve is not None:
        radii, certified = entry.curve.radius, entry.curve.shown / entry.curve.total
    else:
        radii = np.unique(plane.radius(np.linspace(_LEFT, _RIGHT, 400)))
        certified = entry.accuracy(radii)
    return Steps.of(radii[certified > 0], certified[certified > 0], plane)


def _colour(which: int) -> str:
    return COLOURS[which % len(COLOURS)]


def _css(name: str, which: int) -> str:
    return f"{name} c{which % len(COLOURS)}"


def _method(which: int, entry: Entry, line: Steps) -> list[Shape]:
    """A line with its marks."""
    if not len(line.edges):
        return []
    shapes: list[Shape] = [Path(line.line, _css("curve", which), _colour(which), 2, DASHES[kind(entry)])]
    for share in _MARKED_AT:
        x = _LEFT + (float(line.edges[-1]) - _LEFT) * (share + 0.03 * (which % 8))
        shapes.append(_mark(which, x, float(line.at(x))))
    return shapes


def _mark(which: int, x: float, y: float) -> Path:
    shape = _MARKS[which % len(_MARKS)]
    is_area = shape in _AREAS
    is_filled = is_area and which // len(_MARKS) % 2 == 0
    moved = [(x + across, y + down) for across, down in shape]
    width = 1 if is_filled else 2
    return Path(moved, _css("mark", which), _colour(which), width, is_filled=is_filled, is_closed=is_area)


def _leaders(comparison: Comparison, plane: Plane) -> list[Shape]:
    """A strip above the chart that says who certifies most, with a line down from every crossing."""
    place = {entry.name: which for which, entry in enumerate(comparison.entries)}
    shapes: list[Shape] = []
    for stretch in comparison.leaders[0]:
        if stretch.first > plane.limit or len(comparison.ranked) < 2:
            break
        start, end = (float(plane.x(radius)) for radius in (stretch.first, stretch.last + 1))
        text = shortened("most: " + " = ".join(stretch.names), 40)
        if stretch.first:
            text = shortened(f"{' = '.join(stretch.names)} from {stretch.first:,}", 40)
            down = [(start, _TOP - 14), (start, _BOTTOM)]
            shapes.append(Path(down, "crossing", dash="1 3", opacity=0.45))
        which, stop = place[stretch.names[0]], max(end - 1, start + 1)
        strip = [(start, _TOP - 20), (stop, _TOP - 20), (stop, _TOP - 14), (start, _TOP - 14)]
        shapes.append(Path(strip, _css("leader", which), _colour(which), width=0, is_filled=True, is_closed=True))
        if _CHARACTER * len(text) <= end - start:
            shapes.append(ChartText(start + 2, _TOP - 27, text, "leader-name"))
    return shapes


# --- names beside the lines -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom

    def is_crossed_by(self, line: Steps) -> bool:
        heights = line.at(np.linspace(self.left, self.right, 12))
        return bool(heights.min() <= self.bottom and heights.max() >= self.top) and len(line.edges) > 0

    @property
    def is_inside(self) -> bool:
        return self.left >= _LEFT and self.right <= _RIGHT and self.top >= _TOP and self.bottom <= _BOTTOM - 2

    def text(self, text: str, css: str, colour: str | None = None) -> ChartText:
        """What stands in it."""
        return ChartText(self.left + 2, self.bottom - 4, text, css, colour, is_bold=colour is not None)


def _baseline_box(comparison: Comparison, lines: Sequence[Steps], plane: Plane) -> _Box:
    """Where the name of the baseline stands: above its line if there is room, where it meets the fewest lines."""
    line, width = float(plane.y(comparison.baseline.share)), _CHARACTER * len(baseline_label(comparison))
    bottom = line - 1 if line > _TOP + 16 else line + 18
    places = np.linspace(_LEFT + 4, _RIGHT - width, _PLACES).tolist()
    boxes = [_Box(left, bottom - 17, left + width, bottom) for left in places]
    return min(boxes, key=lambda box: sum(box.is_crossed_by(line) for line in lines))


def _names(entries: Sequence[Entry], lines: Sequence[Steps], taken: _Box) -> list[Shape]:
    """The name of each method where it covers the fewest lines; none where it would cover another name."""
    placed: list[_Box] = [taken]
    shapes: list[Shape] = []
    for which, entry in enumerate(entries):
        name = shortened(entry.name, _NAME)
        free = [box for box in _places(lines[which], name) if not any(box.meets(other) for other in placed)]
        if not free:
            continue
        box = min(free, key=lambda each: sum(each.is_crossed_by(line) for line in lines))
        placed.append(box)
        shapes.append(box.text(name, _css("name", which), _colour(which)))
    return shapes


def _places(line: Steps, name: str) -> list[_Box]:
    """Where the name of a line could stand: close above it to the right, or close below it to the left."""
    if not len(line.edges):
        return []
    width, height = _CHARACTER * len(name) + 4, 17
    boxes: list[_Box] = []
    for x in np.linspace(_LEFT, float(line.edges[-1]), _PLACES).tolist():
        y = float(line.at(x))
        boxes.append(_Box(x + 5, y - height - 3, x + 5 + width, y - 3))
        boxes.append(_Box(x - 5 - width, y + 4, x - 5, y + 4 + height))
    return [box for box in boxes if box.is_inside]


def _legend(entries: Sequence[Entry]) -> tuple[list[Shape], int]:
    """A row for each method, two beside each other where they are short; and the height of the whole drawing."""
    texts = [legend_text(entry) for entry in entries]
    columns = 2 if max(map(len, texts)) <= _HALF_LINE else 1
    shapes: list[Shape] = []
    for which, (entry, text) in enumerate(zip(entries, texts, strict=True)):
        x = _LEFT + (which % columns) * (_WIDTH - _LEFT) / 2
        y = _LEGEND_TOP + _ROW * (which // columns)
        swatch = [(x, y), (x + 34, y)]
        shapes.append(Path(swatch, _css("swatch", which), _colour(which), 2, DASHES[kind(entry)]))
        shapes += [_mark(which, x + 17, y), ChartText(x + 44, y + 4, text, "legend-text")]
    return shapes, _LEGEND_TOP + _ROW * -(-len(entries) // columns)
