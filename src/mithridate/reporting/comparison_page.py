"""A comparison as one self-contained HTML page without any script, and as Markdown."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from string import Template

from mithridate._version import VERSION
from mithridate.comparing.result import Comparison, Entry, certificate_file
from mithridate.core.conditions import explained
from mithridate.reporting import comparison_chart
from mithridate.reporting import sentences as words
from mithridate.reporting.markdown import bullets, plain_text, rendered_table, section
from mithridate.reporting.page import asset, items, mean_of_shares

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


def html(comparison: Comparison) -> str:
    """The whole page."""
    style = asset("style.css") + asset("comparison.css")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    header, rows = table(comparison)
    findings = comparison.findings[1:]
    return Template(asset("comparison.html")).substitute(
        policy=f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        style=style,
        title=escape(comparison.title),
        headline=escape(comparison.headline),
        lead=f'<p class="lead">{escape(threat_sentence(comparison))}</p>',
        warnings=_warnings((*_failures(comparison), *findings)),
        chart_lead=escape(f"All methods on one axis; r counts {words.unit(comparison.threat)}."),
        chart=comparison_chart.inline(comparison),
        chart_note=escape(_CHART_NOTE),
        table=_html_table(header, rows, len(comparison.radii)),
        table_note=escape(_TABLE_NOTE),
        methods="".join(_card(entry, comparison) for entry in comparison.entries),
        notes=items(comparison.notes),
        footer=escape(
            f"Written by mithridate {VERSION}. The commands run in the folder of this report; the page shows "
            "certificates and does not check them."
        ),
    )


def framed(comparison: Comparison) -> str:
    """The page in a frame of its own, for notebooks."""
    return (
        f'<iframe srcdoc="{escape(html(comparison))}" sandbox="" title="{escape(comparison.title)}" '
        'style="width: 100%; height: 46rem; border: 1px solid #8886; border-radius: 8px"></iframe>'
    )


def markdown(comparison: Comparison) -> str:
    """The whole document."""
    header, rows = table(comparison)
    parts = [
        f"# {plain_text(comparison.title)}",
        f"**{plain_text(comparison.headline)}**",
        plain_text(threat_sentence(comparison)),
        bullets((*_failures(comparison), *comparison.findings[1:])),
        section("Certified accuracy against radius", rendered_table(header, rows)),
        plain_text(_TABLE_NOTE),
        section("Method by method", "\n\n".join(_markdown_method(entry, comparison) for entry in comparison.entries)),
        section("Worth knowing", bullets(comparison.notes)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def threat_sentence(comparison: Comparison) -> str:
    """What the radius is about."""
    return f"Threat: {comparison.threat.in_words}."


def table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Header and rows: certified accuracy at the radii of the comparison, then what the numbers rest on."""
    header = ["method", *(f"r = {radius:,}" for radius in comparison.radii)]
    header += ["failure probability", "certified against", "training", "certifying"]
    return header, [*(_row(entry, comparison) for entry in comparison.entries), *_common_rows(comparison, len(header))]


def _common_rows(comparison: Comparison, width: int) -> list[list[str]]:
    """What the shares of all methods are measured by: the baseline, and who is above it and certifies most."""
    share = words.percent(comparison.baseline.count, comparison.baseline.total)
    leading = [" = ".join(names) or "none" for names in comparison.best()]
    rows = [["baseline", *(share for _ in comparison.radii)], ["most, above the baseline", *leading]]
    return [[*row, *([""] * (width - len(row)))] for row in rows]


def _row(entry: Entry, comparison: Comparison) -> list[str]:
    return [
        marked_title(entry),
        *entry.shares(comparison.radii),
        failure_words(entry),
        entry.threat.value,
        duration(entry.training_seconds),
        duration(entry.certification_seconds),
    ]


def marked_title(entry: Entry) -> str:
    """The title, with a star where the entry is not ranked."""
    called = entry.title if entry.title == entry.name else f"{entry.name}: {entry.title}"
    return called + ("" if entry.ranked else " *")


def failure_words(entry: Entry) -> str:
    """The probability of failure, as a cell of a table."""
    if entry.failure_prob == 0:
        return "none"
    found = entry.certificate
    if found is None:
        return f"{entry.failure_prob:g}, whole curve"
    if not found.method.is_sound:
        return "not guaranteed"
    guaranteed = words.failure(found)
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
    cost = f"Training took {duration(entry.training_seconds)}, certification {duration(entry.certification_seconds)}."
    conditions = explained(entry.conditions)
    return [
        f"Threat: {entry.threat.in_words}.",
        entry.confidence,
        *conditions,
        *entry.notes,
        *_balanced(entry, comparison),
        cost,
    ]


def _balanced(entry: Entry, comparison: Comparison) -> list[str]:
    """Certified accuracy as a mean over classes, at the radii of the table."""
    shares = entry.balanced_accuracy(comparison.radii)
    if shares is None:
        return []
    cells = (f"{mean_of_shares(share)} at {r:,}" for r, share in zip(comparison.radii, shares.tolist(), strict=True))
    return [f"Certified accuracy as a mean over classes: {', '.join(cells)}."]


def _command(entry: Entry) -> str | None:
    return None if entry.certificate is None else f"mithridate verify {certificate_file(entry)}"


def _card(entry: Entry, comparison: Comparison) -> str:
    assumed, command = entry.assumptions, _command(entry)
    parts = [f"<h3>{escape(marked_title(entry))}</h3>", f"<ul>{items(tuple(_facts(entry, comparison)))}</ul>"]
    if assumed:
        parts.append(f"<details><summary>What it assumes</summary><ul>{items(assumed)}</ul></details>")
    if command is not None:
        parts.append(f'<p class="note">Anyone can check it:</p><pre class="command">{escape(command)}</pre>')
    return f'<article class="method-card" id="method-{escape(entry.name)}">{"".join(parts)}</article>'


def _markdown_method(entry: Entry, comparison: Comparison) -> str:
    command = _command(entry)
    parts = [
        f"### {plain_text(marked_title(entry))}",
        bullets(tuple(_facts(entry, comparison))),
        "It assumes:\n\n" + bullets(entry.assumptions) if entry.assumptions else "",
        "" if command is None else f"Check it with:\n\n    {command}",
    ]
    return "\n\n".join(part for part in parts if part)


def _failures(comparison: Comparison) -> tuple[str, ...]:
    return tuple(f"{name} came to no result: {reason}" for name, reason in comparison.failed)


def _warnings(sentences: tuple[str, ...]) -> str:
    if not sentences:
        return ""
    return f'<aside class="warning" aria-label="Remarks"><ul>{items(sentences)}</ul></aside>'


def _html_table(header: list[str], rows: list[list[str]], numbers: int) -> str:
    """A table whose first column names its rows, followed by numbers and then by words."""

    def align(column: int) -> str:
        return ' class="number"' if 0 < column <= numbers else ' class="text"'

    head = "".join(f'<th scope="col"{align(i)}>{escape(name)}</th>' for i, name in enumerate(header))
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td{align(i)}>{escape(cell)}</td>" for i, cell in enumerate(row[1:], 1))
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
