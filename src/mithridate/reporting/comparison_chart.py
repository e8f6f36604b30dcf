"""The chart of a comparison: certified accuracy against radius, all methods on one axis, as SVG without any package.

A fine dotted line across shows the baseline. A line is solid where its method is ranked. A dashed one has another
threat, a dotted one says nothing about single predictions, a dash-dotted one is no guarantee. Methods differ in colour,
in the shape of their marks and by the name beside the line, so that none of these is needed to tell them apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

from mithridate.comparing.result import Comparison, Entry, axis_ticks
from mithridate.reporting import sentences as words

# Told apart by people with any kind of colour vision, at a contrast of 3:1 or more on white; assets/comparison.css has
# their twins for dark pages.
COLOURS = (
    "#0072b2", "#c75000", "#00805f", "#aa3377", "#222222", "#8c6d00", "#5d6f7f", "#5b4bc4",
    "#e000e0", "#000099", "#800000", "#590066", "#a56db0", "#f0307a", "#1d5c00", "#2a93a5",
)  # fmt: skip
# Around (0, 0); every other round of the seven shapes is hollow. With sixteen colours, 112 lines look different.
_MARKS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",
    "M-3.6 -3.6H3.6V3.6H-3.6Z",
    "M0 -4.6L4.6 3.6H-4.6Z",
    "M0 -5L5 0L0 5L-5 0Z",
    "M0 4.6L4.6 -3.6H-4.6Z",
    "M-4 -4L4 4M-4 4L4 -4",
    "M-5 0H5M0 -5V5",
)
DASHES = {"ranked": "", "other-threat": "8 5", "not-per-prediction": "2 4", "no-guarantee": "10 4 2 4"}

_WIDTH, _PLOT_HEIGHT = 860, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 18, 52, 54
_ROW = 22
# Longer names and titles are cut, or get a line to themselves.
_NAME, _HALF_LINE, _LINE = 28, 54, 110
_CHARACTER = 7.4
_MARKED_AT = (0.12, 0.45, 0.75)
_PLACES = 32

FloatArray = npt.NDArray[np.float64]


def kind(entry: Entry) -> str:
    """What sets an entry apart from the ranked ones, if anything does; a key of `DASHES`."""
    if not entry.per_prediction:
        return "not-per-prediction"
    if not entry.same_threat:
        return "other-threat"
    return "ranked" if entry.is_guarantee else "no-guarantee"


def legend_text(entry: Entry) -> str:
    """The name of an entry, and what sets it apart."""
    called = entry.title if entry.title == entry.name else f"{entry.name}: {entry.title}"
    apart = {
        "ranked": "",
        "other-threat": f" (another threat: {entry.threat.value})",
        "not-per-prediction": " (not per prediction)",
        "no-guarantee": " (no guarantee)",
    }[kind(entry)]
    return words.shortened(called, _LINE - len(apart)) + apart


def inline(comparison: Comparison) -> str:
    """The chart as an SVG element for a page, in the colour of the text around it."""
    plane = _Plane(comparison.axis_limit, comparison.is_logarithmic)
    lines = [_Line.of(entry, plane) for entry in comparison.entries]
    named = _baseline_box(comparison, lines, plane)
    parts = [*_axes(comparison, plane), _baseline(comparison, plane, named), *_leaders(comparison, plane)]
    for which, entry in enumerate(comparison.entries):
        parts.append(_method(which, entry, lines[which], plane))
    parts += _labels(comparison.entries, lines, named)
    legend, height = _legend(comparison.entries)
    parts += legend
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="currentColor">'
        f"<title>{escape(comparison.title)}</title><desc>{escape(description(comparison))}</desc>{''.join(parts)}</svg>\n"
    )


def standalone(comparison: Comparison) -> str:
    """The chart as a file of its own, dark on white."""
    start, rest = inline(comparison).split(">", 1)
    height = _legend(comparison.entries)[1]
    sheet = f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>'
    return f'{start} color="#1d2126" width="{_WIDTH}" height="{height}">{sheet}{rest}'


def description(comparison: Comparison) -> str:
    """The curves in words, for those who do not see them."""
    radii = axis_ticks(comparison.axis_limit, 4, logarithmic=comparison.is_logarithmic)
    sentences = [f"Certified accuracy by radius ({words.unit(comparison.threat)}). {comparison.headline}"]
    for entry in comparison.entries:
        shares = zip(radii, entry.shares(radii), strict=True)
        sentences.append(f"{legend_text(entry)}: {', '.join(f'{share} at {radius:,}' for radius, share in shares)}.")
    return " ".join([*sentences, f"Baseline: {comparison.baseline_words}."])


@dataclass(frozen=True)
class _Plane:
    """Where radii and shares are drawn: a radius takes the room from x(r) to x(r + 1)."""

    limit: int
    logarithmic: bool

    def x(self, radius: npt.ArrayLike) -> FloatArray:
        inside = np.minimum(np.asarray(radius, dtype=np.float64), self.limit + 1)
        share = np.log1p(inside) / math.log1p(self.limit + 1) if self.logarithmic else inside / (self.limit + 1)
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * share

    def radius(self, x: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """The radius that is drawn at some place."""
        share = np.clip((np.asarray(x) - _LEFT) / (_WIDTH - _LEFT - _RIGHT), 0, 1)
        end = self.limit + 1
        edge = np.expm1(share * math.log1p(end)) if self.logarithmic else share * end
        return np.minimum(np.floor(edge + 1e-9), self.limit).astype(np.int64)

    @staticmethod
    def y(share: npt.ArrayLike) -> FloatArray:
        return _TOP + _PLOT_HEIGHT * (1 - np.asarray(share, dtype=np.float64))


@dataclass(frozen=True, eq=False)
class _Line:
    """A step curve in pixels.

    Attributes:
        edges: where each level ends, from left to right.
        heights: the levels.
        ends: whether the curve falls to nothing inside the axis.
    """

    edges: FloatArray
    heights: FloatArray
    ends: bool

    @classmethod
    def of(cls, entry: Entry, plane: _Plane) -> _Line:
        if entry.curve is not None:
            some = entry.curve.shown > 0
            radii, shares = entry.curve.radius[some], entry.curve.shown[some] / entry.curve.total
        else:
            radii = np.unique(plane.radius(np.linspace(_LEFT, _WIDTH - _RIGHT, 400)))
            shares = entry.accuracy(radii)
            radii, shares = radii[shares > 0], shares[shares > 0]
        ends = len(radii) > 0 and int(radii[-1]) < plane.limit
        edges = plane.x(radii + 1)
        # Of several steps within half a pixel the last one is drawn.
        last = np.flatnonzero(np.diff(np.round(2 * edges), append=np.inf))
        return cls(edges[last], plane.y(shares[last]), ends)

    def path(self) -> str:
        """As an SVG path."""
        levels = [*self.heights.tolist(), _TOP + _PLOT_HEIGHT]
        steps = "".join(
            f"H{edge:.1f}" + (f"V{level:.1f}" if self.ends or number + 1 < len(self.edges) else "")
            for number, (edge, level) in enumerate(zip(self.edges.tolist(), levels[1:], strict=True))
        )
        return f"M{_LEFT} {levels[0]:.1f}{steps}"

    def at(self, x: npt.ArrayLike) -> FloatArray:
        """Heights at some places, the bottom where the line has ended."""
        bottom = float(_TOP + _PLOT_HEIGHT)
        return np.append(self.heights, bottom)[np.searchsorted(self.edges, np.asarray(x) + 1e-6)]


def _method(which: int, entry: Entry, line: _Line, plane: _Plane) -> str:
    """A line with its marks."""
    content = ""
    if len(line.edges):
        dash = DASHES[kind(entry)]
        pattern = f' stroke-dasharray="{dash}"' if dash else ""
        content = f'<path class="curve" d="{line.path()}" stroke-width="2"{pattern}/>'
        for share in _MARKED_AT:
            x = _LEFT + (float(line.edges[-1]) - _LEFT) * (share + 0.03 * (which % 8))
            content += _mark(which, x, float(line.at(x)))
    return (
        f'<g class="method c{which % len(COLOURS)} {kind(entry)}" color="{COLOURS[which % len(COLOURS)]}" '
        f'stroke="currentColor" fill="none">{content}</g>'
    )


def _mark(which: int, x: float, y: float) -> str:
    shape = _MARKS[which % len(_MARKS)]
    is_filled = shape.endswith("Z") and which // len(_MARKS) % 2 == 0
    fill = ' fill="currentColor"' if is_filled else ' stroke-width="2"'
    return f'<path class="mark" d="{shape}" transform="translate({x:.1f} {y:.1f})"{fill}/>'


def _axes(comparison: Comparison, plane: _Plane) -> list[str]:
    parts: list[str] = []
    for percent in range(0, 101, 20):
        height = float(plane.y(percent / 100))
        parts.append(
            f'<path d="M{_LEFT} {height:.1f}H{_WIDTH - _RIGHT}" stroke="currentColor" stroke-opacity="0.15"/>'
            f'<text x="{_LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">{percent}%</text>'
        )
    bottom = _TOP + _PLOT_HEIGHT
    for radius in axis_ticks(plane.limit, 8, logarithmic=plane.logarithmic):
        at = float(plane.x(radius + 0.5))
        parts.append(
            f'<path d="M{at:.1f} {bottom}v5" stroke="currentColor" stroke-opacity="0.5"/>'
            f'<text x="{at:.1f}" y="{bottom + 19}" text-anchor="middle">{radius:,}</text>'
        )
    scale = ", on a logarithmic scale" if plane.logarithmic else ""
    title = escape(f"radius r: {words.unit(comparison.threat)}{scale}")
    middle = _LEFT + (_WIDTH - _LEFT - _RIGHT) / 2
    return [*parts, f'<text x="{middle}" y="{bottom + 42}" text-anchor="middle">{title}</text>']


def baseline_label(comparison: Comparison) -> str:
    """What stands beside the line of the baseline, and in the table."""
    return f"baseline {words.percent(comparison.baseline.count, comparison.baseline.total)}"


def _baseline(comparison: Comparison, plane: _Plane, box: _Box) -> str:
    """The line of the baseline, with its name in a box."""
    height = float(plane.y(comparison.baseline.share))
    return (
        f'<path class="baseline" d="M{_LEFT} {height:.1f}H{_WIDTH - _RIGHT}" fill="none" stroke="currentColor" '
        'stroke-opacity="0.75" stroke-width="1.25" stroke-dasharray="1 4"/>'
        f'<text class="baseline-name" x="{box.left:.1f}" y="{box.bottom - 4:.1f}">{baseline_label(comparison)}</text>'
    )


def _leaders(comparison: Comparison, plane: _Plane) -> list[str]:
    """A strip above the chart that says who certifies most, with a line down from every crossing."""
    place = {entry.name: which for which, entry in enumerate(comparison.entries)}
    parts: list[str] = []
    for stretch in comparison.leaders[0]:
        if stretch.first > plane.limit or len(comparison.ranked) < 2:
            break
        start, end = (float(plane.x(radius)) for radius in (stretch.first, stretch.last + 1))
        if stretch.first:
            parts.append(
                f'<path class="crossing" d="M{start:.1f} {_TOP - 14}V{_TOP + _PLOT_HEIGHT}" stroke="currentColor" '
                'stroke-opacity="0.45" stroke-dasharray="1 3"/>'
            )
        which = place[stretch.names[0]] % len(COLOURS)
        parts.append(
            f'<g class="c{which}" color="{COLOURS[which]}"><rect class="leader" x="{start:.1f}" y="{_TOP - 20}" '
            f'width="{max(end - start - 1, 1):.1f}" height="6" fill="currentColor"/></g>'
        )
        text = words.shortened("most: " + " = ".join(stretch.names), 40)
        if stretch.first:
            text = words.shortened(f"{' = '.join(stretch.names)} from {stretch.first:,}", 40)
        if _CHARACTER * len(text) <= end - start:
            parts.append(f'<text class="leader-name" x="{start + 2:.1f}" y="{_TOP - 27}">{escape(text)}</text>')
    return parts


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

    def is_crossed_by(self, line: _Line) -> bool:
        heights = line.at(np.linspace(self.left, self.right, 12))
        return bool(heights.min() <= self.bottom and heights.max() >= self.top) and len(line.edges) > 0

    @property
    def is_inside(self) -> bool:
        across = self.left >= _LEFT and self.right <= _WIDTH - _RIGHT
        return across and self.top >= _TOP and self.bottom <= _TOP + _PLOT_HEIGHT - 2


def _baseline_box(comparison: Comparison, lines: Sequence[_Line], plane: _Plane) -> _Box:
    """Where the name of the baseline stands: above its line if there is room, where it meets the fewest lines."""
    line, width = float(plane.y(comparison.baseline.share)), _CHARACTER * len(baseline_label(comparison))
    bottom = line - 1 if line > _TOP + 16 else line + 18
    places = np.linspace(_LEFT + 4, _WIDTH - _RIGHT - width, _PLACES).tolist()
    boxes = [_Box(left, bottom - 17, left + width, bottom) for left in places]
    return min(boxes, key=lambda box: sum(box.is_crossed_by(line) for line in lines))


def _labels(entries: Sequence[Entry], lines: Sequence[_Line], taken: _Box) -> list[str]:
    """The name of each method where it covers the fewest lines; none where it would cover another name."""
    placed: list[_Box] = [taken]
    parts: list[str] = []
    for which, entry in enumerate(entries):
        name = words.shortened(entry.name, _NAME)
        free = [box for box in _places(lines[which], name) if not any(box.meets(other) for other in placed)]
        if not free:
            continue
        box = min(free, key=lambda each: sum(each.is_crossed_by(line) for line in lines))
        placed.append(box)
        colour = which % len(COLOURS)
        parts.append(
            f'<g class="c{colour}" color="{COLOURS[colour]}"><text class="name" x="{box.left + 2:.1f}" '
            f'y="{box.bottom - 4:.1f}" font-weight="600" fill="currentColor">{escape(name)}</text></g>'
        )
    return parts


def _places(line: _Line, name: str) -> list[_Box]:
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


def _legend(entries: Sequence[Entry]) -> tuple[list[str], int]:
    """A row for each method, two beside each other where they are short; and the height of the whole drawing."""
    texts = [legend_text(entry) for entry in entries]
    columns = 2 if max(map(len, texts)) <= _HALF_LINE else 1
    top, parts = _TOP + _PLOT_HEIGHT + _BOTTOM + 12, []
    for which, (entry, text) in enumerate(zip(entries, texts, strict=True)):
        x = _LEFT + (which % columns) * (_WIDTH - _LEFT) / 2
        y = top + _ROW * (which // columns)
        colour, dash = which % len(COLOURS), DASHES[kind(entry)]
        pattern = f' stroke-dasharray="{dash}"' if dash else ""
        parts.append(
            f'<g class="legend-row c{colour}" color="{COLOURS[colour]}"><g stroke="currentColor" fill="none">'
            f'<path d="M{x:.1f} {y}h34" stroke-width="2"{pattern}/>{_mark(which, x + 17, y)}</g></g>'
            f'<text class="legend-text" x="{x + 44:.1f}" y="{y + 4}">{escape(text)}</text>'
        )
    return parts, top + _ROW * -(-len(entries) // columns)
