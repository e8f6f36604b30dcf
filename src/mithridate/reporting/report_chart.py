"""The chart of a report: certified accuracy against radius, a line for every method."""

from __future__ import annotations

import numpy as np

from mithridate._text import percent
from mithridate.core.certificate import Curve, round_ticks
from mithridate.reporting import sentences as words
from mithridate.reporting.rendering import Chart, ChartText, Path, Plane, Shape, Steps
from mithridate.reporting.report import Report

# One pattern and one colour a method; the first belongs to the certificate itself.
DASHES = ("", "7 4", "2 3", "9 3 2 3")
_COLOURS = ("#0b5d6b", "#9a4a00", "#5a3d8a", "#4d5560")
WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 52, WIDTH - 16, 14, HEIGHT - 46
# How high on its curve the name of each method stands, as a share of where the curve starts.
_LABEL_HEIGHTS = (0.36, 0.24, 0.12, 0.3)


def axis_title(report: Report) -> str:
    """What the vertical axis shows."""
    return "correct and certified" if report.certificate.votes.labels is not None else "certified"


def counted_units(report: Report, *, short: bool = False) -> str:
    """What radii count, and what happened to it; short, where an axis has little room."""
    units = report.certificate.votes.unit_words
    return report.certificate.threat.counts(units.short if short else units)


def axis_units(report: Report) -> str:
    """What stands below the axis of radii: what they count, and how far the input moves, where it does."""
    change, counted = report.certificate.input_change, counted_units(report, short=True)
    return f"{counted}; input changed by up to {change:g}" if change else counted


def baseline_label(report: Report) -> str | None:
    """What stands beside the line of the baseline; None where true labels are unknown."""
    known = words.baseline(report.certificate)
    return None if known is None else f"baseline {percent(known.count, known.total)}"


def description(report: Report) -> str:
    """The curves in words, for those who do not see them."""
    sentences = [f"Share of points that are {axis_title(report)}, by radius ({counted_units(report)})."]
    for certificate, curve in zip(report.certificates, report.curves, strict=True):
        name = certificate.method.in_words()
        if not len(curve.radius):
            sentences.append(f"{name}: nothing is certified.")
            continue
        last = min(int(curve.radius[-1]), report.axis_limit)
        shares = [
            f"{percent(int(curve.at(curve.shown, radius)), curve.total)} at radius {radius:,}"
            for radius in round_ticks(max(last, 1), 4)
        ]
        beyond = int(curve.at(curve.shown, last + 1))
        rest = percent(beyond, curve.total) if beyond else "none"
        sentences.append(f"{name}: {', '.join(shares)}, {rest} beyond {last:,}.")
    return " ".join([*sentences, *words.baseline_sentence(report.certificate.votes, report.class_names)])


def draw(report: Report) -> Chart:
    """The chart of a report."""
    plane = Plane(LEFT, RIGHT, TOP, BOTTOM, report.axis_limit)
    shapes = plane.axes(round_ticks(report.axis_limit), axis_units(report))
    shapes += [*baseline_shapes(report, plane), *_band(report.curves[0], plane)]
    for which in range(len(report.curves)):
        shapes += [*_line(report, which, plane), *_name(report, which, plane)]
    return Chart(WIDTH, HEIGHT, f"{axis_title(report).capitalize()}, against radius", description(report), shapes)


def baseline_shapes(report: Report, plane: Plane) -> list[Shape]:
    """The line of the baseline, and its name; none where true labels are unknown."""
    known, label = words.baseline(report.certificate), baseline_label(report)
    if known is None or label is None:
        return []
    height = float(plane.y(known.share))
    # Above the line, but for a line so high that there is no room.
    text = height - 5 if height > TOP + 16 else height + 14
    return [plane.baseline(known.share), ChartText(RIGHT, text, label, "baseline-name", anchor="end")]


def _band(curve: Curve, plane: Plane) -> list[Shape]:
    lower, upper = (Steps.of(curve.radius, shares, plane).corners for shares in curve.band())
    area = upper + lower[::-1]
    return [Path(area, "band", _COLOURS[0], width=0, opacity=0.15, is_filled=True, is_closed=True)] if area else []


def _line(report: Report, which: int, plane: Plane) -> list[Shape]:
    curve, look = report.curves[which], which % len(DASHES)
    line = Steps.of(curve.radius, curve.shown / curve.total, plane).line
    width = 2.5 if which == 0 else 1.75
    return [Path(line, f"line line-{look}", _COLOURS[look], width, DASHES[look])] if line else []


def _name(report: Report, which: int, plane: Plane) -> list[Shape]:
    """The name of a method beside its line, low on it: to the right where nothing else is there, else to the left."""
    curve, look = report.curves[which], which % len(DASHES)
    if not len(curve.radius):
        return []
    name = report.certificates[which].method.short_title
    level = _LABEL_HEIGHTS[look] * curve.shown[0]
    last, room = last_radius(curve, level), 8 * len(name) + 16
    at, height = float(plane.x(last + 1)), float(plane.y(level / curve.total))
    is_free = all(last_radius(other, level) <= last for other in report.curves)
    is_right = (is_free and at + room < RIGHT) or at - room < LEFT
    x, y, anchor = (at + 9, height, "start") if is_right else (at - 9, height + 14, "end")
    return [ChartText(x, y, name, f"name name-{look}", _COLOURS[look], anchor, is_bold=True)]


def last_radius(curve: Curve, level: float) -> int:
    """The last radius at which a curve is at least so high, -1 where it never is."""
    high = np.flatnonzero(curve.shown >= level)
    return int(curve.radius[high[-1]]) if len(high) else -1
