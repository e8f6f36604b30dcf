"""A comparison as one self-contained HTML page without any script, and as Markdown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mithridate._version import VERSION
from mithridate.comparing.result import Comparison, Entry, certificate_file
from mithridate.comparing.sentences import baseline_share, shares
from mithridate.core.certificate import guaranteed_failure_prob
from mithridate.core.conditions import explained
from mithridate.reporting import comparison_chart, templating
from mithridate.reporting import sentences as words
from mithridate.reporting.markdown import bullets, plain_text, rendered_table, section
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


@dataclass(frozen=True, eq=False)
class ComparisonReport:
    """A comparison as a page, as Markdown and as a drawing.

    Attributes:
        comparison: what the report is about.
    """

    comparison: Comparison

    def html(self) -> str:
        """One self-contained page: no network, no script, no other files."""
        comparison = self.comparison
        header, rows = table(comparison)
        return templating.rendered(
            "comparison.html",
            styles=("style.css", "comparison.css"),
            title=comparison.title,
            headline=comparison.headline,
            lead=threat_sentence(comparison),
            remarks=(*_failures(comparison), *comparison.findings[1:]),
            chart_lead=f"All methods on one axis; r counts {words.unit(comparison.threat)}.",
            chart=comparison_chart.draw(comparison).svg(),
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
        return templating.framed(self.html(), self.comparison.title, sandbox="")

    def svg(self) -> str:
        """The chart as a drawing that stands alone."""
        return comparison_chart.draw(self.comparison).svg_file()

    def markdown(self) -> str:
        """Headline, table, methods and notes."""
        comparison = self.comparison
        header, rows = table(comparison)
        methods = "\n\n".join(_markdown_method(entry, comparison) for entry in comparison.entries)
        parts = [
            f"# {plain_text(comparison.title)}",
            f"**{plain_text(comparison.headline)}**",
            plain_text(threat_sentence(comparison)),
            bullets((*_failures(comparison), *comparison.findings[1:])),
            section("Certified accuracy against radius", rendered_table(header, rows)),
            plain_text(_TABLE_NOTE),
            section("Method by method", methods),
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
    share = baseline_share(comparison)
    leading = [" = ".join(names) or "none" for names in comparison.best()]
    rows = [["baseline", *(share for _ in comparison.radii)], ["most, above the baseline", *leading]]
    return [[*row, *([""] * (width - len(row)))] for row in rows]


def _row(entry: Entry, comparison: Comparison) -> list[str]:
    return [
        marked_title(entry),
        *shares(entry, comparison.radii),
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
        f"### {plain_text(marked_title(entry))}",
        bullets(tuple(_facts(entry, comparison))),
        "It assumes:\n\n" + bullets(entry.assumptions) if entry.assumptions else "",
        "" if command is None else f"Check it with:\n\n    {command}",
    ]
    return "\n\n".join(part for part in parts if part)


def _failures(comparison: Comparison) -> tuple[str, ...]:
    return tuple(f"{name} came to no result: {reason}" for name, reason in comparison.failed)
