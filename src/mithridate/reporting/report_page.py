"""A report as a page, as Markdown and as a chart.

What the page says is decided here, how it looks in `templates`, what moves in `assets/report.js`.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate._text import percent, shortened
from mithridate._version import VERSION
from mithridate.core.certificate import Certificate, Curve, Status, confidence, is_correct, round_ticks
from mithridate.core.rule import ExactRule
from mithridate.reporting import frontier_page, rendering
from mithridate.reporting import sentences as words
from mithridate.reporting.rendering import BASELINE_DASH
from mithridate.reporting.report import ClassRow, Report, group_of, per_class, top_share
from mithridate.reporting.report_chart import (
    DASHES,
    axis_title,
    axis_units,
    baseline_label,
    counted_units,
    description,
    draw,
)

# More classes than this are listed by number of points, the largest first.
_MOST_CLASSES = 200
# What the table of points calls a status, where that is not its name.
_STATUS_WORDS = {
    Status.NOT_SEPARATED: "not certified",
    Status.SEARCH_LIMIT: "certified, end of search",
    Status.NUMERICAL: "certified, end of arithmetic",
    Status.SIZE_LIMIT: "certified, end of the size step",
    Status.INPUT_CHANGE: "not certified, input change",
}
# Names of classes are cut to this where room is short.
_SHORT = 24
_BAND_NOTE = (
    "The shaded band is a 95% Clopper-Pearson interval at each radius by itself: how the share would vary for other "
    "test points from the same source. It is not about the certificates themselves."
)


def html(report: Report) -> str:
    """The whole page."""
    certificate = report.certificate
    return rendering.page(
        "report.html",
        styles=("style.css", "frontier.css") if frontier_page.has_frontier(report) else ("style.css",),
        scripts=("report.js",),
        report=report,
        certificate=certificate,
        title=report.title,
        headline=_headline(words.headline(certificate, report.class_names), confidence(certificate)),
        lead=[
            f"Threat: {certificate.threat.of(certificate.votes.unit_words)}.",
            *words.moved_inputs(certificate),
            *words.moved_further(certificate),
            *words.limits(certificate),
            *words.together(certificate),
        ],
        rule=words.headline_rule(certificate.votes.unit_words),
        figures=key_figures(report),
        start=_start(report),
        shown=axis_title(report),
        **_curve(report),
        frontier=frontier_page.section(report, _start(report)) if frontier_page.has_frontier(report) else None,
        **_radii(report),
        **_classes(report),
        **_points(report),
        not_covered=words.not_covered(certificate),
        precise=words.precise_claim(certificate),
        facts=facts(report),
        recipe=json.dumps(certificate.votes.recipe, indent=2) if certificate.votes.recipe is not None else "",
        footer=f"Written by mithridate {VERSION}. This page shows a certificate and does not check it.",
        data=_data(report),
    )


# --- the parts of the page ------------------------------------------------------------------------------------------


def _headline(found: words.Headline, sure: str) -> dict[str, str]:
    """The headline in parts: its radius has a colour, and its confidence is a second, quieter line."""
    claim = found.text.removesuffix(f"; {sure}.")
    before, radius, after = claim.partition(f"up to {found.radius:,} ") if found.radius > 1 else (claim, "", "")
    return {
        "before": before,
        "radius": f"{found.radius:,}" if radius else "",
        "after": after,
        "confidence": "" if claim == found.text else sure,
    }


def key_figures(report: Report) -> list[tuple[str, str]]:
    """The numbers that a reader asks for first, with their names."""
    certificate, curve = report.certificate, report.curves[0]
    total = curve.total
    kind, units = certificate.votes.voters, certificate.votes.unit_words
    voters = (f"{kind.in_full} that voted", f"{certificate.votes.instances:,}")
    weighed = (f"{units.many_in_full} voted, by weight", "all")
    figures = [("predictions", f"{total:,}"), voters if kind.voters else weighed]
    if certificate.votes.unit is not None:
        figures.append((f"{units.short.many} in the training data", f"{certificate.votes.unit.count:,}"))
    correct = is_correct(certificate)
    if correct is not None:
        figures.append(("labels that are correct", percent(int(correct.sum()), total)))
    known = words.baseline(certificate)
    if known is not None:
        always = f"baseline: always '{shortened(report.class_names[known.label], _SHORT)}'"
        figures.append((always, percent(known.count, known.total)))
    figures.append(("not certified", percent(int((certificate.radius < 0).sum()), total)))
    start = max(words.headline(certificate).radius, 0)
    shown = percent(int(curve.at(curve.shown, start)), total)
    figures.append((f"{axis_title(report)} at radius\u00a0{start:,}", shown))
    if known is not None:
        balanced = float(certificate.balanced_accuracy(None, start)[0])
        figures.append((f"the same as a mean over classes, at radius\u00a0{start:,}", mean_of_shares(balanced)))
    median = words.radius_reached_by(certificate, 0.5)
    figures.append((f"{units.radius()} to which half are {axis_title(report)}", _radius(median)))
    ended = certificate.status[certificate.radius.argmax()] == Status.SEARCH_LIMIT.value
    figures.append(
        (units.radius("largest radius") + (", or more" if ended else ""), _radius(int(certificate.radius.max())))
    )
    return figures


def mean_of_shares(share: float) -> str:
    """A mean of shares with one decimal, rounded down so that nothing seems better than it is."""
    return f"{np.floor(1000 * share + 1e-9) / 10:.1f}%"


def _curve(report: Report) -> dict[str, Any]:
    what = "Certified accuracy" if report.certificate.votes.labels is not None else "Certified share"
    total = report.curves[0].total
    which = "Whether the one prediction is" if total == 1 else f"How many of the {total:,} predictions are"
    compared = ", by each method from the same votes at the same confidence" if report.advice.others else ""
    header, rows = curve_table(report)
    return {
        "curve_title": f"{what} against radius",
        "curve_lead": f"{which} {axis_title(report)} at radius r{frontier_page.of_inputs(report)}{compared}.",
        "readout": readout(report, _start(report)),
        "unit": f"r counts {counted_units(report)}.",
        "chart": draw(report).svg(),
        "legend": _legend(report),
        "band_note": _BAND_NOTE,
        "curve_header": header,
        "curve_rows": rows,
    }


def _start(report: Report) -> int:
    """Where the slider stands at first: at the radius of the headline."""
    return min(max(words.headline(report.certificate).radius, 0), report.axis_limit)


def readout(report: Report, radius: int) -> str:
    """What holds at one radius, in a sentence."""
    curve = report.curves[0]
    total, certified = curve.total, int(curve.at(curve.certified, radius))
    far = f"{percent(total - certified, total)} not certified that far."
    if curve.right is None:
        return f"At r = {radius:,}: {percent(certified, total)} certified, {far}"
    right = int(curve.at(curve.right, radius))
    return (
        f"At r = {radius:,}: {percent(right, total)} correct and certified "
        f"({baseline_label(report)}), {percent(certified - right, total)} certified but wrong, {far}"
    )


def _legend(report: Report) -> list[dict[str, str]]:
    lines: list[dict[str, str]] = []
    for which, certificate in enumerate(report.certificates):
        own = " (this certificate)" if which == 0 else ""
        unsound = "" if certificate.method.is_sound else f", {certificate.method.flaw}"
        look = which % len(DASHES)
        text = f"{certificate.method.in_words()}{own}{unsound}"
        lines.append({"css": f"line line-{look}", "dash": DASHES[look], "text": text})
    for sentence in words.baseline_sentence(report.certificate.votes, report.class_names):
        lines.append({"css": "baseline", "dash": BASELINE_DASH, "text": sentence})
    return lines


def curve_table(report: Report) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the curve at round radii: the certificate with its band, then the other methods."""
    radii = round_ticks(report.axis_limit, 12)
    own, total = report.curves[0], report.curves[0].total
    header = [report.certificate.votes.unit_words.radius(), axis_title(report), "95% band"]
    columns = [[f"{radius:,}" for radius in radii], _shares(own.at(own.shown, radii), total), _bands(own, radii)]
    if own.right is not None:
        header += ["mean over classes", "certified, correct or not"]
        columns.append([mean_of_shares(share) for share in report.certificate.balanced_accuracy(None, radii).tolist()])
        columns.append(_shares(own.at(own.certified, radii), total))
    for certificate, curve in zip(report.advice.others, report.curves[1:], strict=True):
        header.append(certificate.method.in_words())
        columns.append(_shares(curve.at(curve.shown, radii), total))
    return header, [list(row) for row in zip(*columns, strict=True)]


def _bands(curve: Curve, radii: list[int]) -> list[str]:
    lower, upper = curve.band()
    entries = np.searchsorted(curve.radius, radii)
    return [f"{lower[i]:.1%} to {upper[i]:.1%}" if i < len(lower) else "" for i in entries]


def _shares(counts: npt.NDArray[np.int64], total: int) -> list[str]:
    return [percent(int(count), total) for count in counts]


def _radii(report: Report) -> dict[str, Any]:
    histogram, abstained = report.histogram, int((report.certificate.radius < 0).sum())
    lead = "How many predictions have which radius. Bars fade below the radius that is set above; "
    lead += f"the bar at the left counts the {abstained:,} that {'is' if abstained == 1 else 'are'} not certified"
    lead += f"{_why_not_certified(report.certificate, abstained)}."
    if report.certificate.votes.labels is not None:
        lead += " Labels that are wrong stand on top, in red."
    if histogram.beyond:
        lead += f" {histogram.beyond:,} more lie beyond the axis."
    header, rows = _radii_table(report)
    return {"radii_lead": lead, "radii_header": header, "radii_rows": rows}


def _why_not_certified(certificate: Certificate, abstained: int) -> str:
    """Why so many predictions are not certified, as a clause."""
    if not abstained:
        return ""
    whose, label, moves = ("its", "label", "it") if abstained == 1 else ("their", "labels", "they")
    close = f" because {whose} two leading labels are too close"
    moved = int((certificate.status == Status.INPUT_CHANGE.value).sum())
    if not moved:
        return close
    alone = "may change with the input alone"
    return f" because {whose} {label} {alone}" if moved == abstained else f"{close} or because {moves} {alone}"


def _radii_table(report: Report) -> tuple[list[str], list[list[str]]]:
    histogram, none, correct = report.histogram, report.certificate.radius < 0, is_correct(report.certificate)
    radius = report.certificate.votes.unit_words.radius()
    header = [radius, "points"] if correct is None else [radius, "correct", "wrong"]
    counts = [none] if correct is None else [none & correct, none & ~correct]
    rows = [["not certified", *(f"{int(some.sum()):,}" for some in counts)]]
    for start, right, wrong in zip(histogram.start, histogram.right, histogram.wrong, strict=True):
        span = f"{start:,}" if histogram.width == 1 else f"{start:,} to {start + histogram.width - 1:,}"
        rows.append([span, f"{right:,}", f"{wrong:,}"][: len(header)])
    return header, rows


def _classes(report: Report) -> dict[str, Any]:
    known = report.certificate.votes.labels is not None
    rows = per_class(report.certificate)
    listed = sorted(sorted(rows, key=lambda row: -row.points)[:_MOST_CLASSES], key=lambda row: row.label)
    lead = f"Points by their {'true' if known else 'predicted'} class; the last column follows the radius set above."
    if len(listed) < len(rows):
        lead += f" Of {len(rows):,} classes, the {len(listed):,} with most points are listed."
    return {"classes_lead": lead, "classes_header": _class_header(report), "classes": _class_rows(report, listed)}


def _class_rows(report: Report, rows: list[ClassRow]) -> list[dict[str, Any]]:
    certificate, start = report.certificate, _start(report)
    correct = is_correct(certificate)
    counted = certificate.radius >= start if correct is None else (certificate.radius >= start) & correct
    reached = np.bincount(group_of(certificate)[counted], minlength=certificate.votes.classes)
    return [
        {
            "name": report.class_names[row.label],
            "label": row.label,
            "points": row.points,
            "numbers": _class_numbers(row),
            "share": percent(int(reached[row.label]), row.points),
        }
        for row in rows
    ]


def _class_numbers(row: ClassRow) -> list[str]:
    """The row of a class in a table, without its name."""
    right = [] if row.right is None else [percent(row.right, row.points)]
    return [f"{row.points:,}", *right, percent(row.abstained, row.points), _radius(row.median_radius)]


def _class_header(report: Report) -> list[str]:
    """What `_class_numbers` are; where true labels are known, only what is correct counts for the median."""
    if report.certificate.votes.labels is None:
        return ["class", "points", "not certified", "median radius"]
    return ["class", "points", "correct", "not certified", "median radius, correct ones"]


def _points(report: Report) -> dict[str, Any]:
    known = report.certificate.votes.labels is not None
    share = report.certificate.votes.voters.share
    voted = share if report.certificate.on == "votes" else "mean score of the label"
    named = report.point_names is not None
    columns = [
        ("index", "point", True),
        *([("name", "name", False)] if named else []),
        *([("", "picture", False)] if report.pictures else []),
        ("label", "label", False),
        *([("truth", "true label", False)] if known else []),
        ("share", voted, True),
        ("radius", "radius", True),
        *frontier_page.columns(report),
        ("status", "status", False),
    ]
    options = [("all", "all points"), ("abstained", "not certified")]
    if known:
        options += [("wrong", "wrong"), ("certified-wrong", "certified but wrong")]
    searched = "a name, a class or a status" if named else "a class or a status"
    lead = f"The least certain come first; every column sorts. Search for {searched}, or for #12 to see point 12."
    lead += frontier_page.points_lead(report)
    if report.pictures:
        lead += f" Pictures travel with {len(report.pictures):,} of {report.curves[0].total:,} points: "
        lead += "the least and the most certain" + (", of all and of the wrong ones." if known else ".")
    return {
        "points_lead": lead,
        "search_hint": "name, class, status or #index" if named else "class, status or #index",
        "columns": columns,
        "show_options": options,
    }


def facts(report: Report) -> list[tuple[str, str]]:
    """Names and values of everything that a certificate rests on."""
    certificate, votes = report.certificate, report.certificate.votes
    budget = ", ".join(f"{name.replace('_', ' ')} {_brief(value)}" for name, value in certificate.error_budget.items())
    listed = [
        ("method", certificate.method.in_words()),
        ("threat", f"{certificate.threat.value}: {certificate.threat.of(votes.unit_words)}"),
        ("change of the input", _input_change(certificate)),
        ("units", "" if votes.unit is None else f"{votes.unit.counted(votes.unit.count)} in the training data"),
        *_confidence_facts(certificate),
        ("mechanism", votes.mechanism.in_words(votes.unit_words)),
        ("voters", votes.tally),
        ("data fingerprint", str(votes.data_fingerprint or "")),
        ("runs", ", ".join(map(str, votes.run_ids))),
        ("error budget", budget),
        ("versions", ", ".join(f"{name} {version}" for name, version in certificate.versions.items())),
    ]
    return [(name, value) for name, value in listed if value]


def _input_change(certificate: Certificate) -> str:
    """For which changes of the input there are radii; empty where it stays as it is."""
    if certificate.frontier is None:
        return ""
    changes = ", ".join(f"{change:g}" for change in certificate.frontier.changes)
    return f"up to {changes}, as a Euclidean length, {certificate.frontier.in_words}"


def _confidence_facts(certificate: Certificate) -> list[tuple[str, str]]:
    if isinstance(certificate.method, ExactRule):
        return [("failure probability", "none: the radii follow from the votes, and nothing is estimated")]
    scope = "all predictions at once" if certificate.scope.value == "all" else "each prediction by itself"
    return [
        ("failure probability", f"{certificate.failure_prob:g}, for {scope}"),
        ("bounds", f"{certificate.bounds}, on {certificate.on}"),
    ]


# --- what the script reads ------------------------------------------------------------------------------------------


def _data(report: Report) -> dict[str, Any]:
    certificate, statuses = report.certificate, list(Status)
    known = words.baseline(certificate)
    codes = np.zeros(len(certificate.status), dtype=np.int64)
    for code, status in enumerate(statuses):
        codes[certificate.status == status.value] = code
    content = report.to_dict()
    return {
        "names": list(report.class_names),
        "pointNames": None if report.point_names is None else list(report.point_names),
        "total": len(certificate.label),
        "limit": report.axis_limit,
        "start": _start(report),
        "unit": axis_units(report),
        "chartTitle": f"{axis_title(report)}, against radius",
        "chartDescription": description(report),
        "baseline": None if known is None else {"share": known.share, "label": baseline_label(report)},
        "histogramDescription": "How many predictions have which radius; the table below holds the same numbers.",
        "curves": [_curve_data(curve, which) for which, curve in enumerate(content["curves"])],
        "histogram": content["histogram"],
        "statuses": [_STATUS_WORDS.get(status, status.value.replace("_", " ")) for status in statuses],
        "searchLimit": statuses.index(Status.SEARCH_LIMIT),
        "columns": {
            "label": packed(certificate.label),
            "truth": packed(certificate.votes.labels),
            "share": packed(top_share(certificate).astype(np.float32)),
            "radius": packed(certificate.radius),
            "status": packed(codes),
            **{key: packed(radii) for key, radii in frontier_page.point_radii(report).items()},
        },
        "pictures": {point: base64.b64encode(file).decode() for point, file in report.pictures.items()} or None,
        **frontier_page.data(report),
    }


def _curve_data(curve: dict[str, Any], which: int) -> dict[str, Any]:
    shown = curve["certified"] if curve["right"] is None else curve["right"]
    data = {"short": curve["short"], "dash": DASHES[which % 4], "radius": curve["radius"], "shown": shown}
    if which == 0:
        data["certified"] = curve["certified"]
        data["lower"] = [round(share, 5) for share in curve["band_lower"]]
        data["upper"] = [round(share, 5) for share in curve["band_upper"]]
    return data


def packed(values: npt.NDArray[Any] | None) -> dict[str, str] | None:
    """An array in the fewest bytes that hold its values, as text."""
    if values is None:
        return None
    if values.dtype.kind == "i":
        kinds = ("uint8", "int8", "uint16", "int16", "int32")
        fits = (kind for kind in kinds if np.iinfo(kind).min <= values.min() and values.max() <= np.iinfo(kind).max)
        values = values.astype(next(fits))
    raw = values.astype(values.dtype.newbyteorder("<")).tobytes()
    return {"type": values.dtype.name, "data": base64.b64encode(raw).decode()}


def _radius(radius: int) -> str:
    return "none" if radius < 0 else f"{radius:,}"


def _brief(value: Any) -> str:
    """A small number in two digits; a file may hold anything else in its place."""
    return f"{value:.2g}" if isinstance(value, int | float) else str(value)


# --- Markdown ---------------------------------------------------------------------------------------------------------


def markdown(report: Report) -> str:
    """The whole document."""
    certificate = report.certificate
    classes = [[shortened(report.class_names[row.label]), *_class_numbers(row)] for row in per_class(certificate)]
    parts = [
        f"# {rendering.plain_text(report.title)}",
        f"**{rendering.plain_text(report.headline)}**",
        rendering.plain_text(f"Threat: {certificate.threat.of(certificate.votes.unit_words)}."),
        rendering.bullets(
            (
                *words.moved_inputs(certificate),
                *words.moved_further(certificate),
                *words.limits(certificate),
                *words.together(certificate),
            )
        ),
        rendering.section("Worth knowing", rendering.bullets(report.warnings)),
        rendering.rendered_table(["", ""], [[name, value] for name, value in key_figures(report)]),
        rendering.section("Against radius", rendering.rendered_table(*curve_table(report))),
        rendering.bullets(tuple(words.baseline_sentence(certificate.votes, report.class_names))),
        rendering.bullets(report.advice.left_out),
        frontier_page.markdown(report),
        rendering.section("Class by class", rendering.rendered_table(_class_header(report), classes)),
        rendering.section("What was assumed", rendering.bullets(certificate.assumptions)),
        rendering.section("What is not covered", rendering.bullets(words.not_covered(certificate))),
        rendering.section("Where it comes from", rendering.plain_text(words.precise_claim(certificate))),
        rendering.rendered_table(["", ""], [[name, value] for name, value in facts(report)], numbers=False),
        _check(report.check_with),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _check(commands: tuple[str, ...]) -> str:
    """Commands as an indented block, which no character inside can end."""
    if not commands:
        return ""
    lines = "\n".join(f"    {line}" for command in commands for line in command.splitlines())
    return f"Check it with:\n\n{lines}"
