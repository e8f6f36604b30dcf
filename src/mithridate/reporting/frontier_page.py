"""What a report shows of a frontier: how radii shrink as the input changes, as curves, as a map and as tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from mithridate._text import percent
from mithridate.core.certificate import Curve, round_ticks
from mithridate.core.mechanism import SEARCH_LIMIT
from mithridate.reporting import rendering
from mithridate.reporting import sentences as words
from mithridate.reporting.rendering import BASELINE_DASH, Chart, ChartText, Path, Plane, Shape, Steps
from mithridate.reporting.report import Report, axis_limit
from mithridate.reporting.report_chart import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    axis_title,
    baseline_shapes,
    counted_units,
    last_radius,
)

# From the smallest change to the largest: one scale, ever lighter. A style sheet has others for dark pages.
_COLOURS = ("#0b2f5e", "#3b2a86", "#66258f", "#8c2088", "#ab2473", "#c23458", "#cf4a37", "#c75b00")
_MOST_LINES = words.MOST_CHANGES_SHOWN
# Rows of the map, and radii above it; of more than a phone has room for, it leaves out every other one.
_MOST_ROWS = 16
_RADII, _RADII_OF_PHONE = 12, 7
# How many shades the map has, but for the first; a style sheet knows them by their numbers.
_SHADES = 10
# Names of lines are no closer than this, in pixels.
_APART = 15


def has_frontier(report: Report) -> bool:
    """Whether there is more to show than radii for one change of the input."""
    return len(report.moved) > 1


def of_inputs(report: Report) -> str:
    """Which inputs the radii are for, as the end of a clause; empty where nobody asked."""
    if report.certificate.frontier is None:
        return ""
    change = report.certificate.input_change
    return f", where the input changes by up to {change:g}" if change else ", where the input stays as it is"


def section(report: Report, start: int) -> dict[str, Any]:
    """The values of the template; its slider stands at `start`."""
    total, what = report.curves[0].total, axis_title(report)
    header, rows = table(report)
    known = report.certificate.votes.labels is not None
    which = "Whether the one prediction is" if total == 1 else f"How many of the {total:,} predictions are"
    return {
        "lead": f"{which} {what} at radius r where the input may change as well: a line for every length of the "
        f"change.{_drawn(report)}",
        "measured": f"The length of a change is Euclidean, {_in_words(report)}.",
        "chart": draw(report).svg(),
        "legend": _legend(report, start),
        "baseline_dash": BASELINE_DASH,
        "baseline": words.baseline_sentence(report.certificate.votes, report.class_names),
        "map_title": f"{'Certified accuracy' if known else 'Certified share'}, by radius and change of the input",
        "map_lead": f"Across: radius r, {counted_units(report)}. Down: how far the input may change. The cells have "
        f"the share of predictions that are {what}.",
        "map_radii": _map_radii(report),
        "map_rows": _map_rows(report),
        "alone": words.may_move_alone(report.certificate),
        "header": header,
        "rows": rows,
    }


def _in_words(report: Report) -> str:
    """In what changes of the input are measured."""
    return "" if report.certificate.frontier is None else report.certificate.frontier.in_words


def _drawn(report: Report) -> str:
    """That not all lengths are drawn, where that is so."""
    if len(report.moved) <= _MOST_LINES:
        return ""
    return f" Of {len(report.moved)} lengths, {_MOST_LINES} are drawn; the table below has all."


def _change(report: Report, at: int) -> str:
    """A change of the input as people write it."""
    return f"{report.moved[at].input_change:g}"


def _lines(report: Report) -> list[int]:
    """Which changes of the input are drawn."""
    return words.evenly(len(report.moved), _MOST_LINES)


def _look(line: int, lines: int) -> int:
    """Which colour a line has: all lines together take the whole scale."""
    return round(line * (len(_COLOURS) - 1) / max(lines - 1, 1))


def _legend(report: Report, start: int) -> list[dict[str, Any]]:
    lines = _lines(report)
    return [
        {
            "css": f"line step-{_look(line, len(lines))}",
            "change": _change(report, at),
            "line": line,
            "share": _share(report.moved_curves[at], start),
        }
        for line, at in enumerate(lines)
    ]


def _share(curve: Curve, radius: int) -> str:
    return percent(int(curve.at(curve.shown, radius)), curve.total)


# --- the map and the table --------------------------------------------------------------------------------------------


def _radii(report: Report) -> list[int]:
    """The radii of the map and of the table."""
    return round_ticks(limit(report), _RADII)


def _of_columns(count: int) -> list[str]:
    """What a style sheet calls each column of the map: of many, every other one is for wide pages."""
    return ["wide" if at % 2 and count > _RADII_OF_PHONE else "" for at in range(count)]


def _map_radii(report: Report) -> list[dict[str, str]]:
    radii = _radii(report)
    return [{"text": f"{radius:,}", "css": css} for radius, css in zip(radii, _of_columns(len(radii)), strict=True)]


def _map_rows(report: Report) -> list[dict[str, Any]]:
    radii = _radii(report)
    return [
        {"change": _change(report, at), "cells": _cells(report.moved_curves[at], radii)}
        for at in words.evenly(len(report.moved), _MOST_ROWS)
    ]


def _cells(curve: Curve, radii: list[int]) -> list[dict[str, str]]:
    counts = curve.at(curve.shown, radii).tolist()
    return [
        {"text": whole_percent(count, curve.total), "css": f"heat-{_shade(count, curve.total)} {css}".strip()}
        for count, css in zip(counts, _of_columns(len(counts)), strict=True)
    ]


def _shade(count: int, total: int) -> int:
    """Which shade a share has: the palest and the darkest only where it is none or all of them."""
    if count in (0, total):
        return _SHADES if count else 0
    return min(max(round(_SHADES * count / total), 1), _SHADES - 1)


def whole_percent(count: int, total: int) -> str:
    """A share without decimals, rounded down so that nothing seems better than it is.

    >>> whole_percent(0, 7), whole_percent(1, 1000), whole_percent(999, 1000), whole_percent(7, 7)
    ('0%', '<1%', '99%', '100%')
    """
    if 0 < 100 * count < total:
        return "<1%"
    return f"{100 * count // total}%"


def table(report: Report) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the whole frontier: a row for every change of the input."""
    radii = _radii(report)
    header = ["change of the input, up to", *(f"r\u00a0=\u00a0{radius:,}" for radius in radii)]
    rows = [
        [_change(report, at), *(_share(curve, radius) for radius in radii)]
        for at, curve in enumerate(report.moved_curves)
    ]
    return header, rows


def markdown(report: Report) -> str:
    """What a document without pictures says of it; empty where there is no frontier."""
    if not has_frontier(report):
        return ""
    what, alone = axis_title(report), words.may_move_alone(report.certificate)
    lead = f"Share of predictions that are {what}, by radius and by how far the input may change as well (Euclidean "
    lead += f"length, {_in_words(report)})."
    parts = [rendering.plain_text(lead), rendering.rendered_table(*table(report)), rendering.bullets(tuple(alone))]
    return rendering.section("When the input changes, too", "\n\n".join(part for part in parts if part))


# --- the chart --------------------------------------------------------------------------------------------------------


def limit(report: Report) -> int:
    """The largest radius on its axis."""
    return axis_limit(report.moved)


def description(report: Report) -> str:
    """The curves in words, for those who do not see them."""
    what = axis_title(report)
    sentences = [f"Share of points that are {what}, by radius ({counted_units(report)}) and change of the input."]
    for at in _lines(report):
        curve = report.moved_curves[at]
        ticks = [radius for radius in round_ticks(limit(report), 4) if curve.at(curve.shown, radius)]
        shares = ", ".join(f"{_share(curve, radius)} at radius {radius:,}" for radius in ticks)
        sentences.append(f"Input changed by up to {_change(report, at)}: {shares or 'none'}.")
    return " ".join([*sentences, *words.baseline_sentence(report.certificate.votes, report.class_names)])


def title(report: Report) -> str:
    """What the chart shows."""
    return f"{axis_title(report).capitalize()}, against radius, by change of the input"


def draw(report: Report) -> Chart:
    """The curves, a line for every change of the input that is drawn."""
    plane = Plane(LEFT, RIGHT, TOP, BOTTOM, limit(report))
    shapes = plane.axes(round_ticks(plane.limit), counted_units(report, short=True))
    shapes += [*baseline_shapes(report, plane), *_line_shapes(report, plane), *_names(report, plane)]
    return Chart(WIDTH, HEIGHT, title(report), description(report), shapes)


def _line_shapes(report: Report, plane: Plane) -> list[Shape]:
    lines = _lines(report)
    shapes: list[Shape] = []
    for line, at in enumerate(lines):
        curve, look = report.moved_curves[at], _look(line, len(lines))
        steps = Steps.of(curve.radius, curve.shown / curve.total, plane).line
        shapes += [Path(steps, f"line step-{look}", _COLOURS[look], 2)] if steps else []
    return shapes


def _names(report: Report, plane: Plane) -> list[Shape]:
    """The change of the input beside each line: the larger, the lower; none where there is no room for it."""
    lines = _lines(report)
    shapes: list[Shape] = []
    lowest = -np.inf
    for line, at in enumerate(lines):
        curve, look = report.moved_curves[at], _look(line, len(lines))
        level = name_level(curve, line, len(lines))
        height = float(plane.y(level / curve.total))
        if level > 0 and height >= lowest + _APART:
            x = float(plane.x(last_radius(curve, level) + 1))
            place = (x + 5, "start") if x + 50 < RIGHT else (x - 5, "end")
            name = _change(report, at)
            shapes.append(
                ChartText(place[0], height + 4, name, f"name step-{look}", _COLOURS[look], place[1], is_bold=True)
            )
            lowest = height
    return shapes


def name_level(curve: Curve, line: int, lines: int) -> float:
    """At which count the name of a line stands."""
    return float(curve.shown[0]) * (lines - line) / (lines + 1) if len(curve.shown) else 0.0


# --- single predictions -----------------------------------------------------------------------------------------------


def columns(report: Report) -> list[tuple[str, str, bool]]:
    """Columns of the table of points: a radius for every further change of the input that is drawn."""
    if not has_frontier(report):
        return []
    return [(_key(at), f"radius at {_change(report, at)}", True) for at in _lines(report)[1:]]


def _key(at: int) -> str:
    return f"moved-{at}"


def points_lead(report: Report) -> str:
    """What these columns are, as a further sentence."""
    if not has_frontier(report):
        return ""
    first = report.certificate.input_change
    radius = f"for inputs that change by up to {first:g}" if first else "for the input as it is"
    return (
        f" The radius is {radius}, a {columns(report)[0][1]} for one that may change by up to that length as "
        "well; a dash says that nothing is certified."
    )


# --- what the script reads --------------------------------------------------------------------------------------------


def data(report: Report) -> dict[str, Any]:
    """What the script draws; nothing where there is no frontier."""
    if not has_frontier(report):
        return {}
    lines = _lines(report)
    drawn = [_line_data(report, at, _look(line, len(lines))) for line, at in enumerate(lines)]
    return {
        "frontier": {
            "limit": limit(report),
            "unit": counted_units(report, short=True),
            "title": title(report),
            "description": description(report),
            "lines": drawn,
            "columns": [key for key, _, _ in columns(report)],
            "searchLimit": SEARCH_LIMIT,
        }
    }


def _line_data(report: Report, at: int, look: int) -> dict[str, Any]:
    curve = report.moved_curves[at]
    return {
        "name": _change(report, at),
        "look": look,
        "radius": curve.radius.tolist(),
        "shown": curve.shown.tolist(),
    }


def point_radii(report: Report) -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
    """The radii of the further columns, by their names."""
    return {key: report.moved[at].radius for (key, _, _), at in zip(columns(report), _lines(report)[1:], strict=False)}
