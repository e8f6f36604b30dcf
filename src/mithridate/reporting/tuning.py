"""A search as a page without any script: what was tried, what it certified, the frontier, and the choice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mithridate._text import counted, shortened
from mithridate._version import VERSION
from mithridate.reporting import rendering
from mithridate.reporting.comparison import COLOURS, duration
from mithridate.reporting.rendering import Chart, ChartText, Path, Plane, Point, Shape
from mithridate.tuning.result import FINISHED, Trial, Tuning

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 860, 420, 52, 842, 20, 330
_LEGEND, _LEGEND_STEP = 400, 190
# More lines would be a grey mass.
_MOST_LINES = 300


@dataclass(frozen=True, eq=False)
class TuningReport:
    """A search as a page."""

    tuning: Tuning

    def html(self) -> str:
        """One self-contained page: no network, no script, no other files."""
        tuning = self.tuning
        header = ["trial", *(f"r = {radius:,}" for radius in tuning.at), "mean", "method", "constants", "time"]
        unfinished = [trial for trial in tuning.trials if trial.status != FINISHED]
        return rendering.page(
            "trials.html",
            styles=("style.css", "comparison.css", "trials.css"),
            title="Methods tried on trusted examples",
            headline=tuning.headline,
            lead=_lead(tuning),
            remarks=tuning.remarks,
            chosen=[(name, _shown(value)) for name, value in {"method": tuning.method, **tuning.options}.items()],
            statement=str(tuning.statement),
            chart=draw(tuning).svg() if len(tuning.at) > 1 else None,
            header=header,
            numbers=len(tuning.at) + 1,
            frontier=[*(_row(trial, tuning) for trial in _best_first(tuning.frontier)), _baseline_row(tuning)],
            rows=[_row(trial, tuning) for trial in tuning.finished],
            table_note=_table_note(tuning),
            unfinished=[_unfinished_row(trial) for trial in unfinished],
            footer=f"Written by mithridate {VERSION}.",
        )


def _lead(tuning: Tuning) -> str:
    spent = duration(sum(trial.seconds for trial in tuning.trials))
    return (
        f"{counted(len(tuning.trials), 'trial')} in {spent}, each on {tuning.identity['folds']} folds of "
        f"{tuning.examples:,} trusted examples. The choice is the trial with the largest mean over the radii. r counts "
        f"{tuning.threat.counts(tuning.unit_words)}. Baseline: {tuning.baseline_words}."
    )


def _table_note(tuning: Tuning) -> str:
    return (
        "Certified accuracy is the share of trusted examples whose label is correct and certified at least to r, by "
        "models that were trained on other trusted examples. Constants are for "
        f"{tuning.num_train:,} {tuning.unit_words.many_in_full}."
    )


def _best_first(trials: Sequence[Trial]) -> list[Trial]:
    return sorted(trials, key=lambda trial: (-trial.value, trial.number))


def _row(trial: Trial, tuning: Tuning) -> list[str]:
    mark = " (chosen)" if trial is tuning.chosen else ""
    shares = [tuning.share(share) for share in trial.certified]
    return [
        f"{trial.number}{mark}",
        *shares,
        f"{trial.value:.1%}",
        trial.candidate.method,
        constants_in_words(trial),
        duration(trial.seconds),
    ]


def _baseline_row(tuning: Tuning) -> list[str]:
    share = tuning.share(tuning.baseline_accuracy)
    return ["baseline", *([share] * (len(tuning.at) + 1)), f"always '{shortened(tuning.label, 30)}'", "", ""]


def _unfinished_row(trial: Trial) -> list[str]:
    return [str(trial.number), trial.status, trial.candidate.method, trial.reason, constants_in_words(trial)]


def constants_in_words(trial: Trial) -> str:
    """The constants of a trial on one line, long lists cut short."""
    return ", ".join(f"{name} {_shown(value)}" for name, value in trial.candidate.options.items())


def _shown(value: Any) -> str:
    """A constant for people; many numbers are counted."""
    if isinstance(value, dict):
        rest = [f"{name} {_shown(each)}" for name, each in value.items() if name != "name"]
        return f"{value.get('name', '')} ({', '.join(rest)})" if rest else str(value.get("name", ""))
    if isinstance(value, list | tuple):
        few = ", ".join(_shown(each) for each in value[:3])
        return few if len(value) <= 3 else f"{len(value)} numbers"
    return value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else json.dumps(value)


# --- the chart --------------------------------------------------------------------------------------------------------


def draw(tuning: Tuning) -> Chart:
    """A line for every trial over the radii asked for, in the colour of its method; those of the frontier stand out."""
    plane = Plane(_LEFT, _RIGHT, _TOP, _BOTTOM, len(tuning.at) - 1)
    methods = list(dict.fromkeys(trial.candidate.method for trial in tuning.finished))
    shapes = _axes(tuning, plane)
    front = set(map(id, tuning.frontier))
    for trial in sorted(_best_first(tuning.finished)[:_MOST_LINES], key=lambda each: id(each) in front):
        shapes.append(_line(trial, plane, methods.index(trial.candidate.method), is_front=id(trial) in front))
    chosen = _points(tuning.chosen, plane)
    shapes.append(Path(chosen, "chosen", width=3.5))
    shapes.append(ChartText(chosen[0][0] + 6, chosen[0][1] - 8, "chosen", "name", is_bold=True))
    for place, method in enumerate(methods):
        x = _LEFT + _LEGEND_STEP * place
        colour = COLOURS[place % len(COLOURS)]
        shapes.append(Path([(x, _LEGEND), (x + 30, _LEGEND)], f"c{place % len(COLOURS)}", colour, 2.5))
        shapes.append(ChartText(x + 38, _LEGEND + 4, method, "legend-text"))
    return Chart(_WIDTH, _HEIGHT, "Certified accuracy of all trials", _description(tuning), shapes)


def _axes(tuning: Tuning, plane: Plane) -> list[Shape]:
    shapes: list[Shape] = []
    for share in range(0, 101, 20):
        height = float(plane.y(share / 100))
        shapes.append(Path([(_LEFT, height), (_RIGHT, height)], opacity=0.15))
        shapes.append(ChartText(_LEFT - 8, height + 4, f"{share}%", anchor="end"))
    for place, radius in enumerate(tuning.at):
        at = float(plane.x(place + 0.5))
        shapes.append(Path([(at, _TOP), (at, _BOTTOM + 5)], opacity=0.15))
        shapes.append(ChartText(at, _BOTTOM + 20, f"r = {radius:,}", anchor="middle"))
    return [*shapes, plane.baseline(tuning.baseline_accuracy)]


def _points(trial: Trial, plane: Plane) -> list[Point]:
    places = enumerate(trial.certified)
    return [(float(plane.x(place + 0.5)), float(plane.y(share))) for place, share in places]


def _line(trial: Trial, plane: Plane, which: int, *, is_front: bool) -> Path:
    width, opacity = (2.25, 1.0) if is_front else (1.0, 0.45)
    which %= len(COLOURS)
    return Path(_points(trial, plane), f"c{which}", COLOURS[which], width, opacity=opacity)


def _description(tuning: Tuning) -> str:
    lines = [f"{tuning.headline} The frontier:"]
    for trial in _best_first(tuning.frontier):
        cells = (f"{tuning.share(s)} at {r:,}" for s, r in zip(trial.certified, tuning.at, strict=True))
        lines.append(f"trial {trial.number}, {trial.candidate.method}: {', '.join(cells)}.")
    return " ".join(lines)
