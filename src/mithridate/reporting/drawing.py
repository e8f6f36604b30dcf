"""Drawings that stand still: the curve as SVG without any package, and as PNG by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from mithridate.errors import ConfigError
from mithridate.reporting import sentences as words
from mithridate.reporting.summary import Curve, round_ticks

if TYPE_CHECKING:
    from mithridate.reporting.report import Report

# One pattern and one colour a method; the first belongs to the certificate itself.
DASHES = ("", "7 4", "2 3", "9 3 2 3")
BASELINE_DASH = "1 4"
_COLOURS = ("#0b5d6b", "#9a4a00", "#5a3d8a", "#4d5560")

_WIDTH, _HEIGHT = 760, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 14, 46
# How high on its curve the name of each method stands, as a share of where the curve starts.
_LABEL_HEIGHTS = (0.36, 0.24, 0.12, 0.3)

Scale = Callable[[float], float]


def axis_title(report: Report) -> str:
    """What the vertical axis shows."""
    return "correct and certified" if report.certificate.votes.labels is not None else "certified"


def baseline_label(report: Report) -> str | None:
    """What stands beside the line of the baseline; None where true labels are unknown."""
    known = words.baseline(report.certificate)
    return None if known is None else f"baseline {words.percent(known.count, known.total)}"


def description(report: Report) -> str:
    """The curves in words, for those who do not see them."""
    sentences = [f"Share of points that are {axis_title(report)}, by radius ({words.unit(report.certificate.threat)})."]
    for certificate, curve in zip(report.certificates, report.curves, strict=True):
        name = certificate.method.in_words()
        if not len(curve.radius):
            sentences.append(f"{name}: nothing is certified.")
            continue
        last = min(int(curve.radius[-1]), report.axis_limit)
        shares = [
            f"{words.percent(int(curve.at(curve.shown, radius)), curve.total)} at radius {radius:,}"
            for radius in round_ticks(max(last, 1), 4)
        ]
        beyond = int(curve.at(curve.shown, last + 1))
        rest = words.percent(beyond, curve.total) if beyond else "none"
        sentences.append(f"{name}: {', '.join(shares)}, {rest} beyond {last:,}.")
    return " ".join([*sentences, *words.baseline_sentence(report.certificate.votes, report.class_names)])


def inline(report: Report) -> str:
    """The chart as an SVG element for a page, in the colour of the text around it."""
    plot_width, plot_height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(radius: float) -> float:
        # Radii are whole numbers: each takes the room from x(r) to x(r + 1), and its own place is the middle.
        return _LEFT + plot_width * min(radius, report.axis_limit + 1) / (report.axis_limit + 1)

    def y(share: float) -> float:
        return _TOP + plot_height * (1 - share)

    parts = [*_axes(report, x, y), _baseline(report, y), _band(report.curves[0], x, y)]
    for which, curve in enumerate(report.curves):
        name = report.certificates[which].method.short_title
        parts += [_line(curve, which, report.axis_limit, x, y), _label(report, which, name, x, y)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="currentColor">'
        f"<title>{escape(_title(report))}</title><desc>{escape(description(report))}</desc>{''.join(parts)}</svg>\n"
    )


def standalone(report: Report) -> str:
    """The chart as a file of its own, dark on white."""
    start, rest = inline(report).split(">", 1)
    sheet = f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>'
    return f'{start} color="#1d2126" width="{_WIDTH}" height="{_HEIGHT}">{sheet}{rest}'


def png(report: Report) -> bytes:
    """The chart by matplotlib.

    Raises:
        ConfigError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ConfigError("A PNG needs matplotlib; install it with: pip install 'mithridate[report]'") from error
    figure = Figure(figsize=(7.6, 4.2), dpi=160, layout="constrained")
    axes = figure.add_subplot()
    for which, (certificate, curve) in enumerate(zip(report.certificates, report.curves, strict=True)):
        radii, shares = _corners(curve)
        style = (0, tuple(float(part) for part in DASHES[which % 4].split())) if DASHES[which % 4] else "solid"
        name = certificate.method.in_words().replace("$", r"\$")
        axes.plot(
            np.array(radii) - 0.5,
            shares,
            color=_COLOURS[which % 4],
            linestyle=style,
            label=name,
            linewidth=2 if which == 0 else 1.5,
        )
    known = words.baseline(report.certificate)
    if known is not None:
        axes.axhline(known.share, color="#1d2126", linestyle="dotted", linewidth=1.25, label=baseline_label(report))
    own = report.curves[0]
    lower, upper = own.band()
    edges, least = _corners(own, lower)
    axes.fill_between(np.array(edges) - 0.5, least, _corners(own, upper)[1], color=_COLOURS[0], alpha=0.15, linewidth=0)
    axes.set(
        xlim=(-0.5, report.axis_limit + 0.5), ylim=(0, 1), xlabel=f"radius r: {words.unit(report.certificate.threat)}"
    )
    axes.set(ylabel=axis_title(report))
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(framealpha=0.9, edgecolor="none")
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def _title(report: Report) -> str:
    return f"{axis_title(report).capitalize()}, against radius"


def _corners(curve: Curve, shares: np.ndarray | None = None) -> tuple[list[float], list[float]]:
    """The corners of a step curve: level to the end of each distinct radius, then down to the next level."""
    shares = curve.shown / curve.total if shares is None else shares
    radii, heights, start = [], [], 0.0
    for radius, share in zip(curve.radius.tolist(), shares.tolist(), strict=True):
        radii += [start, radius + 1.0]
        heights += [share, share]
        start = radius + 1.0
    return [*radii, start], [*heights, 0.0]


def _path(points: list[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _line(curve: Curve, which: int, limit: int, x: Scale, y: Scale) -> str:
    corners = [(x(radius), y(share)) for radius, share in zip(*_corners(curve), strict=True)]
    if len(curve.radius) and curve.radius[-1] > limit:
        corners.pop()  # the line goes on beyond the axis
    dash = f' stroke-dasharray="{DASHES[which % 4]}"' if DASHES[which % 4] else ""
    width = 2.5 if which == 0 else 1.75
    return (
        f'<path class="line line-{which % 4}" d="{_path(corners)}" fill="none" stroke="{_COLOURS[which % 4]}" '
        f'stroke-width="{width}"{dash}/>'
    )


def _baseline(report: Report, y: Scale) -> str:
    known = words.baseline(report.certificate)
    if known is None:
        return ""
    height = y(known.share)
    # Above the line, but for a line so high that there is no room.
    text = height - 5 if height > _TOP + 16 else height + 14
    return (
        f'<path class="baseline" d="M{_LEFT} {height:.1f}H{_WIDTH - _RIGHT}" fill="none" stroke="currentColor" '
        f'stroke-opacity="0.75" stroke-width="1.25" stroke-dasharray="{BASELINE_DASH}"/>'
        f'<text class="baseline-name" x="{_WIDTH - _RIGHT}" y="{text:.1f}" text-anchor="end">'
        f"{baseline_label(report)}</text>"
    )


def _band(curve: Curve, x: Scale, y: Scale) -> str:
    if not len(curve.radius):
        return ""
    lower, upper = curve.band()
    there = [(x(radius), y(share)) for radius, share in zip(*_corners(curve, upper), strict=True)][:-1]
    back = [(x(radius), y(share)) for radius, share in zip(*_corners(curve, lower), strict=True)][:-1]
    return f'<path d="{_path(there + back[::-1])}Z" class="band" fill="{_COLOURS[0]}" opacity="0.15"/>'


def _label(report: Report, which: int, name: str, x: Scale, y: Scale) -> str:
    """The name of a method beside its line, low on it: to the right where nothing else is there, else to the left."""
    curve = report.curves[which]
    if not len(curve.radius):
        return ""
    level = _LABEL_HEIGHTS[which % 4] * curve.shown[0]
    last, room = _last_radius(curve, level), 8 * len(name) + 16
    at, height = x(last + 1), y(level / curve.total)
    free = all(_last_radius(other, level) <= last for other in report.curves)
    is_right = (free and at + room < _WIDTH - _RIGHT) or at - room < _LEFT
    place = f'x="{at + 9:.1f}" y="{height:.1f}"' if is_right else f'x="{at - 9:.1f}" y="{height + 14:.1f}"'
    anchor = "start" if is_right else "end"
    return (
        f'<text class="name name-{which % 4}" {place} text-anchor="{anchor}" font-weight="600" '
        f'fill="{_COLOURS[which % 4]}">{escape(name)}</text>'
    )


def _last_radius(curve: Curve, level: float) -> int:
    """The last radius at which a curve is at least so high, -1 where it never is."""
    high = np.flatnonzero(curve.shown >= level)
    return int(curve.radius[high[-1]]) if len(high) else -1


def _axes(report: Report, x: Scale, y: Scale) -> list[str]:
    parts: list[str] = []
    for percent in range(0, 101, 20):
        height = y(percent / 100)
        parts.append(
            f'<path d="M{_LEFT} {height:.1f}H{_WIDTH - _RIGHT}" stroke="currentColor" stroke-opacity="0.15"/>'
            f'<text x="{_LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">{percent}%</text>'
        )
    for radius in round_ticks(report.axis_limit):
        parts.append(
            f'<text x="{x(radius + 0.5):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{radius:,}</text>'
        )
    unit = escape(words.unit(report.certificate.threat))
    middle = _LEFT + (_WIDTH - _LEFT - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">radius r: {unit}</text>')
    return parts
