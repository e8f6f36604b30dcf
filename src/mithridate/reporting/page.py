"""The HTML page: what Python knows is written into it, what the reader moves is left to `assets/report.js`."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mithridate._version import VERSION
from mithridate.core.certificate import Certificate, Status
from mithridate.core.rule import is_exact
from mithridate.core.votes import Votes
from mithridate.reporting import drawing, summary
from mithridate.reporting import sentences as words
from mithridate.reporting.voters import tally

if TYPE_CHECKING:
    from mithridate.reporting.report import Report

# More classes than this are listed by number of points, the largest first.
_MOST_CLASSES = 200
_STATUS_WORDS = {
    Status.CERTIFIED: "certified",
    Status.NOT_SEPARATED: "not certified",
    Status.SEARCH_LIMIT: "certified, end of search",
    Status.NUMERICAL: "certified, end of arithmetic",
}
# Names of classes are cut to this where room is short.
_SHORT = 24
_BAND_NOTE = (
    "The shaded band is a 95% Clopper-Pearson interval at each radius by itself: how the share would vary for other "
    "test points from the same source. It is not about the certificates themselves."
)


def render(report: Report) -> str:
    """The whole page."""
    style, script = asset("style.css"), asset("report.js")
    return Template(asset("page.html")).substitute(
        policy=_policy(style, script),
        style=style,
        script=script,
        data=embedded_json(_data(report)),
        **_hero(report),
        **_curve(report),
        **_radii(report),
        **_classes(report),
        **_points(report),
        **_provenance(report),
    )


def embedded_json(value: Any) -> str:
    r"""JSON that can stand inside a script element whatever its strings hold.

    >>> embedded_json("</script>")
    '"\\u003c/script\\u003e"'
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII, so U+2028 and U+2029 are escaped too
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def asset(name: str) -> str:
    """A file of the folder `assets`, as text."""
    return resources.files("mithridate.reporting").joinpath("assets", name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Only this very style and this very script, pictures from inside the page, and no network."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; img-src data:; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


# --- the parts of the page ------------------------------------------------------------------------------------------


def _hero(report: Report) -> dict[str, str]:
    certificate = report.certificate
    found = words.headline(certificate, report.class_names)
    lead = [f"Threat: {certificate.threat.in_words}.", *words.limits(certificate)]
    return {
        "title": escape(report.title),
        "headline": _headline(found, words.confidence(certificate)),
        "lead": "".join(f'<p class="lead">{escape(sentence)}</p>' for sentence in lead),
        "rule": escape(words.HEADLINE_RULE),
        "warnings": _warnings(report.warnings),
        "figures": "".join(f"<div><dt>{escape(n)}</dt><dd>{escape(v)}</dd></div>" for n, v in key_figures(report)),
    }


def _headline(found: words.Headline, confidence: str) -> str:
    """The headline with its radius in colour, and its confidence as a second, quieter line."""
    claim, sure = found.text, f"; {confidence}."
    has_confidence = claim.endswith(sure)
    claim = escape(claim.removesuffix(sure))
    if found.radius > 1:
        claim = claim.replace(f"up to {found.radius:,} ", f"up to <strong>{found.radius:,}</strong> ", 1)
    return f'{claim}; <span class="confidence">{escape(confidence)}.</span>' if has_confidence else claim


def key_figures(report: Report) -> list[tuple[str, str]]:
    """The numbers that a reader asks for first, with their names."""
    certificate, curve = report.certificate, report.curves[0]
    total = curve.total
    figures = [("predictions", f"{total:,}"), _voters(certificate.votes)]
    correct = summary.right(certificate)
    if correct is not None:
        figures.append(("labels that are correct", words.percent(int(correct.sum()), total)))
    known = words.baseline(certificate)
    if known is not None:
        always = f"baseline: always '{words.shortened(report.class_names[known.label], _SHORT)}'"
        figures.append((always, words.percent(known.count, known.total)))
    figures.append(("not certified", words.percent(int((certificate.radius < 0).sum()), total)))
    start = max(words.headline(certificate).radius, 0)
    shown = words.percent(int(curve.at(curve.shown, start)), total)
    figures.append((f"{drawing.axis_title(report)} at radius\u00a0{start:,}", shown))
    if known is not None:
        balanced = float(certificate.balanced_accuracy(None, start)[0])
        figures.append((f"the same as a mean over classes, at radius\u00a0{start:,}", mean_of_shares(balanced)))
    median = words.radius_reached_by(certificate, 0.5)
    figures.append((f"radius to which half are {drawing.axis_title(report)}", _radius(median)))
    ended = certificate.status[certificate.radius.argmax()] == Status.SEARCH_LIMIT.value
    figures.append(("largest radius" + (", or more" if ended else ""), _radius(int(certificate.radius.max()))))
    return figures


def mean_of_shares(share: float) -> str:
    """A mean of shares with one decimal, rounded down so that nothing seems better than it is."""
    return f"{np.floor(1000 * share + 1e-9) / 10:.1f}%"


def _voters(votes: Votes) -> tuple[str, str]:
    kind = votes.mechanism.words
    if not kind.voters:
        return "training examples voted, by weight", "all"
    return f"{kind.in_full} that voted", f"{votes.instances:,}"


def _warnings(sentences: tuple[str, ...]) -> str:
    if not sentences:
        return ""
    return f'<aside class="warning" aria-label="Warnings"><h2>Worth knowing</h2><ul>{items(sentences)}</ul></aside>'


def _curve(report: Report) -> dict[str, str]:
    what = "Certified accuracy" if report.certificate.votes.labels is not None else "Certified share"
    total = report.curves[0].total
    which = "Whether the one prediction is" if total == 1 else f"How many of the {total:,} predictions are"
    compared = ", by each method from the same votes at the same confidence" if report.others else ""
    lead = f"{which} {drawing.axis_title(report)} at radius r{compared}."
    return {
        "curve_title": f"{what} against radius",
        "curve_lead": escape(lead),
        "limit": str(report.axis_limit),
        "start": str(_start(report)),
        "readout": escape(readout(report, _start(report))),
        "unit": escape(f"r counts {words.unit(report.certificate.threat)}."),
        "static_chart": drawing.inline(report),
        "legend": "".join(_legend_entry(c, which) for which, c in enumerate(report.certificates))
        + _baseline_entry(report),
        "band_note": escape(_BAND_NOTE),
        "left_out": "".join(f'<p class="note">{escape(sentence)}</p>' for sentence in report.left_out),
        "curve_table": table(*curve_table(report)),
    }


def _start(report: Report) -> int:
    """Where the slider stands at first: at the radius of the headline."""
    return min(max(words.headline(report.certificate).radius, 0), report.axis_limit)


def readout(report: Report, radius: int) -> str:
    """What holds at one radius, in a sentence."""
    curve = report.curves[0]
    total, certified = curve.total, int(curve.at(curve.certified, radius))
    far = f"{words.percent(total - certified, total)} not certified that far."
    if curve.right is None:
        return f"At r = {radius:,}: {words.percent(certified, total)} certified, {far}"
    right = int(curve.at(curve.right, radius))
    return (
        f"At r = {radius:,}: {words.percent(right, total)} correct and certified "
        f"({drawing.baseline_label(report)}), {words.percent(certified - right, total)} certified but wrong, {far}"
    )


def _legend_entry(certificate: Certificate, which: int) -> str:
    dash = drawing.DASHES[which % 4]
    swatch = (
        '<svg width="36" height="10" viewBox="0 0 36 10" aria-hidden="true">'
        f'<path class="line line-{which % 4}" d="M0 5H36" stroke-dasharray="{dash}"/></svg>'
    )
    own = " (this certificate)" if which == 0 else ""
    unsound = "" if certificate.method.is_sound else ", not valid for DP-SGD"
    return f"<li>{swatch}{escape(certificate.method.in_words() + own + unsound)}</li>"


def _baseline_entry(report: Report) -> str:
    sentences = words.baseline_sentence(report.certificate.votes, report.class_names)
    swatch = (
        '<svg width="36" height="10" viewBox="0 0 36 10" aria-hidden="true">'
        f'<path class="baseline" d="M0 5H36" stroke-dasharray="{drawing.BASELINE_DASH}"/></svg>'
    )
    return "".join(f"<li>{swatch}{escape(sentence)}</li>" for sentence in sentences)


def curve_table(report: Report) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the curve at round radii: the certificate with its band, then the other methods."""
    radii = summary.round_ticks(report.axis_limit, 12)
    own, total = report.curves[0], report.curves[0].total
    header = ["radius", drawing.axis_title(report), "95% band"]
    columns = [[f"{radius:,}" for radius in radii], _shares(own.at(own.shown, radii), total), _bands(own, radii)]
    if own.right is not None:
        header += ["mean over classes", "certified, correct or not"]
        columns.append([mean_of_shares(share) for share in report.certificate.balanced_accuracy(None, radii).tolist()])
        columns.append(_shares(own.at(own.certified, radii), total))
    for certificate, curve in zip(report.others, report.curves[1:], strict=True):
        header.append(certificate.method.in_words())
        columns.append(_shares(curve.at(curve.shown, radii), total))
    return header, [list(row) for row in zip(*columns, strict=True)]


def _bands(curve: summary.Curve, radii: list[int]) -> list[str]:
    lower, upper = curve.band()
    entries = np.searchsorted(curve.radius, radii)
    return [f"{lower[i]:.1%} to {upper[i]:.1%}" if i < len(lower) else "" for i in entries]


def _shares(counts: npt.NDArray[np.int64], total: int) -> list[str]:
    return [words.percent(int(count), total) for count in counts]


def _radii(report: Report) -> dict[str, str]:
    histogram = summary.Histogram.of(report.certificate, report.axis_limit)
    abstained = int((report.certificate.radius < 0).sum())
    lead = "How many predictions have which radius. Bars fade below the radius that is set above; "
    lead += f"the bar at the left counts the {abstained:,} that {'is' if abstained == 1 else 'are'} not certified"
    whose = "its" if abstained == 1 else "their"
    lead += f" because {whose} two leading labels are too close." if abstained else "."
    if report.certificate.votes.labels is not None:
        lead += " Labels that are wrong stand on top, in red."
    if histogram.beyond:
        lead += f" {histogram.beyond:,} more lie beyond the axis."
    return {"radii_lead": escape(lead), "radii_table": table(*_radii_table(report, histogram))}


def _radii_table(report: Report, histogram: summary.Histogram) -> tuple[list[str], list[list[str]]]:
    none, correct = report.certificate.radius < 0, summary.right(report.certificate)
    header = ["radius", "points"] if correct is None else ["radius", "correct", "wrong"]
    counts = [none] if correct is None else [none & correct, none & ~correct]
    rows = [["not certified", *(f"{int(some.sum()):,}" for some in counts)]]
    for start, right, wrong in zip(histogram.start, histogram.right, histogram.wrong, strict=True):
        span = f"{start:,}" if histogram.width == 1 else f"{start:,} to {start + histogram.width - 1:,}"
        rows.append([span, f"{right:,}", f"{wrong:,}"][: len(header)])
    return header, rows


def _classes(report: Report) -> dict[str, str]:
    known = report.certificate.votes.labels is not None
    rows = summary.per_class(report.certificate)
    listed = sorted(sorted(rows, key=lambda row: -row.points)[:_MOST_CLASSES], key=lambda row: row.label)
    lead = f"Points by their {'true' if known else 'predicted'} class; the last column follows the radius set above."
    if len(listed) < len(rows):
        lead += f" Of {len(rows):,} classes, the {len(listed):,} with most points are listed."
    return {"classes_lead": escape(lead), "classes_table": _class_table(report, listed)}


def _class_table(report: Report, rows: list[summary.ClassRow]) -> str:
    certificate, start = report.certificate, _start(report)
    correct = summary.right(certificate)
    counted = certificate.radius >= start if correct is None else (certificate.radius >= start) & correct
    reached = np.bincount(summary.group_of(certificate)[counted], minlength=certificate.votes.classes)
    header = ["class", "points", *([] if correct is None else ["correct"]), "not certified", median_title(report)]
    cells = "".join(f'<th scope="col"{_align(i)}>{name}</th>' for i, name in enumerate(header))
    last = f'<th scope="col" class="number">{drawing.axis_title(report)} at r = <span data-radius>{start:,}</span></th>'
    body = "".join(_class_row(report, row, int(reached[row.label])) for row in rows)
    return f'<table class="classes"><thead><tr>{cells}{last}</tr></thead><tbody>{body}</tbody></table>'


def median_title(report: Report) -> str:
    """The header of the median radius of a class: only what is correct counts, where that is known."""
    known = report.certificate.votes.labels is not None
    return "median radius, correct ones" if known else "median radius"


def _class_row(report: Report, row: summary.ClassRow, reached: int) -> str:
    values = [f"{row.points:,}"]
    if row.right is not None:
        values.append(words.percent(row.right, row.points))
    values += [words.percent(row.abstained, row.points), _radius(row.median_radius)]
    cells = "".join(f'<td class="number">{escape(value)}</td>' for value in values)
    share = escape(words.percent(reached, row.points))
    return (
        f'<tr><th scope="row" class="text">{_clipped(report.class_names[row.label])}</th>{cells}'
        f'<td class="number" data-class="{row.label}" data-points="{row.points}">{share}</td></tr>'
    )


def _clipped(name: str) -> str:
    """A name of which the page shows two lines (a phone three), and all of it where it is pointed at."""
    return f'<span class="clip" title="{escape(name)}">{escape(name)}</span>'


def _points(report: Report) -> dict[str, str]:
    known = report.certificate.votes.labels is not None
    share = report.certificate.votes.mechanism.words.share
    voted = share if report.certificate.on == "votes" else "mean score of the label"
    named = report.point_names is not None
    headers = [
        ("index", "point", True),
        *([("name", "name", False)] if named else []),
        *([("", "picture", False)] if report.pictures else []),
        ("label", "label", False),
    ]
    headers += [("truth", "true label", False)] if known else []
    headers += [("share", voted, True), ("radius", "radius", True), ("status", "status", False)]
    options = [("all", "all points"), ("abstained", "not certified")]
    if known:
        options += [("wrong", "wrong"), ("certified-wrong", "certified but wrong")]
    searched = "a name, a class or a status" if named else "a class or a status"
    lead = f"The least certain come first; every column sorts. Search for {searched}, or for #12 to see point 12."
    if report.pictures:
        lead += f" Pictures travel with {len(report.pictures):,} of {report.curves[0].total:,} points: "
        lead += "the least and the most certain" + (", of all and of the wrong ones." if known else ".")
    return {
        "points_lead": escape(lead),
        "search_hint": "name, class, status or #index" if named else "class, status or #index",
        "points_head": "".join(_header(*header) for header in headers),
        "show_options": "".join(f'<option value="{value}">{name}</option>' for value, name in options),
    }


def _header(key: str, name: str, is_number: bool) -> str:
    align = ' class="number"' if is_number else ""
    content = f'<button type="button" data-key="{key}">{name}</button>' if key else name
    return f'<th scope="col"{align}>{content}</th>'


def _provenance(report: Report) -> dict[str, str]:
    certificate = report.certificate
    return {
        "assumptions": items(certificate.assumptions),
        "not_covered": items(words.not_covered(certificate)),
        "precise": escape(words.precise_claim(certificate)),
        "check": _check(report.check_with),
        "facts": "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts(report)),
        "recipe": _recipe(certificate.votes.recipe),
        "footer": escape(f"Written by mithridate {VERSION}. This page shows a certificate and does not check it."),
    }


def _check(commands: tuple[str, ...]) -> str:
    if not commands:
        return "<p>To let anyone check it, save the certificate and run <code>mithridate verify</code> on the file.</p>"
    lines = escape("\n".join(commands))
    return f'<p>Anyone with the certificate file can check it, by another route:</p><pre class="command">{lines}</pre>'


def _recipe(recipe: dict[str, Any] | None) -> str:
    if recipe is None:
        return ""
    return f"<details><summary>The whole recipe</summary><pre>{escape(json.dumps(recipe, indent=2))}</pre></details>"


def facts(report: Report) -> list[tuple[str, str]]:
    """Names and values of everything that a certificate rests on."""
    certificate, votes = report.certificate, report.certificate.votes
    budget = ", ".join(f"{name.replace('_', ' ')} {_brief(value)}" for name, value in certificate.error_budget.items())
    listed = [
        ("method", certificate.method.in_words()),
        ("threat", f"{certificate.threat.value}: {certificate.threat.in_words}"),
        *_confidence_facts(certificate),
        ("mechanism", votes.mechanism.in_words()),
        ("voters", tally(votes)),
        ("data fingerprint", str(votes.data_fingerprint or "")),
        ("runs", ", ".join(map(str, votes.run_ids))),
        ("error budget", budget),
        ("versions", ", ".join(f"{name} {version}" for name, version in certificate.versions.items())),
    ]
    return [(name, value) for name, value in listed if value]


def _confidence_facts(certificate: Certificate) -> list[tuple[str, str]]:
    if is_exact(certificate.method):
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
    content, curves = report.to_dict(), []
    for which, curve in enumerate(content["curves"]):
        curves.append(_curve_data(curve, which))
    return {
        "names": list(report.class_names),
        "pointNames": None if report.point_names is None else list(report.point_names),
        "total": len(certificate.label),
        "limit": report.axis_limit,
        "start": _start(report),
        "unit": words.unit(certificate.threat),
        "chartTitle": f"{drawing.axis_title(report)}, against radius",
        "chartDescription": drawing.description(report),
        "baseline": None if known is None else {"share": known.share, "label": drawing.baseline_label(report)},
        "histogramDescription": "How many predictions have which radius; the table below holds the same numbers.",
        "curves": curves,
        "histogram": content["histogram"],
        "statuses": [_STATUS_WORDS[status] for status in statuses],
        "searchLimit": statuses.index(Status.SEARCH_LIMIT),
        "columns": {
            "label": packed(certificate.label),
            "truth": packed(certificate.votes.labels),
            "share": packed(summary.top_share(certificate).astype(np.float32)),
            "radius": packed(certificate.radius),
            "status": packed(codes),
        },
        "pictures": _picture_data(report.pictures),
    }


def _curve_data(curve: dict[str, Any], which: int) -> dict[str, Any]:
    shown = curve["certified"] if curve["right"] is None else curve["right"]
    data = {"short": curve["short"], "dash": drawing.DASHES[which % 4], "radius": curve["radius"], "shown": shown}
    if which == 0:
        data["certified"] = curve["certified"]
        data["lower"] = [round(share, 5) for share in curve["band_lower"]]
        data["upper"] = [round(share, 5) for share in curve["band_upper"]]
    return data


def _picture_data(pictures: dict[int, bytes]) -> dict[int, str] | None:
    return {point: base64.b64encode(file).decode() for point, file in pictures.items()} or None


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


# --- tables and lists -----------------------------------------------------------------------------------------------


def table(header: list[str], rows: list[list[str]]) -> str:
    """A table whose first column names its rows and whose others are numbers."""
    head = "".join(f'<th scope="col"{_align(i)}>{escape(name)}</th>' for i, name in enumerate(header))
    lines = [
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f'<td class="number">{escape(value)}</td>' for value in row[1:])
        + "</tr>"
        for row in rows
    ]
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _align(column: int) -> str:
    return ' class="number"' if column else ' class="text"'


def items(sentences: tuple[str, ...]) -> str:
    """Items of a list, escaped."""
    return "".join(f"<li>{escape(str(sentence))}</li>" for sentence in sentences)


def _radius(radius: int) -> str:
    return "none" if radius < 0 else f"{radius:,}"


def _brief(value: Any) -> str:
    """A small number in two digits; a file may hold anything else in its place."""
    return f"{value:.2g}" if isinstance(value, int | float) else str(value)
