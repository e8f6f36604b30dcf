"""The report as Markdown: for a README, an issue or a terminal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mithridate._text import shortened
from mithridate.reporting import report_page, summary
from mithridate.reporting import sentences as words
from mithridate.reporting.report_page import curve_table, facts, key_figures

if TYPE_CHECKING:
    from mithridate.reporting.report import Report


def render(report: Report) -> str:
    """The whole document."""
    certificate = report.certificate
    parts = [
        f"# {plain_text(report.title)}",
        f"**{plain_text(report.headline)}**",
        plain_text(f"Threat: {certificate.threat.in_words}."),
        bullets(tuple(words.limits(certificate))),
        section("Worth knowing", bullets(report.warnings)),
        rendered_table(["", ""], [[name, value] for name, value in key_figures(report)]),
        section("Against radius", rendered_table(*curve_table(report))),
        bullets(tuple(words.baseline_sentence(certificate.votes, report.class_names))),
        bullets(report.advice.left_out),
        section("Class by class", rendered_table(*_class_table(report))),
        section("What was assumed", bullets(certificate.assumptions)),
        section("What is not covered", bullets(words.not_covered(certificate))),
        section("Where it comes from", plain_text(words.precise_claim(certificate))),
        rendered_table(["", ""], [[name, value] for name, value in facts(report)], numbers=False),
        _check(report.check_with),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _class_table(report: Report) -> tuple[list[str], list[list[str]]]:
    known = report.certificate.votes.labels is not None
    header = ["class", "points", *(["correct"] if known else []), "not certified", report_page.median_title(report)]
    rows: list[list[str]] = []
    for row in summary.per_class(report.certificate):
        rows.append([shortened(report.class_names[row.label]), *report_page.class_numbers(row)])
    return header, rows


def section(title: str, content: str) -> str:
    """A heading and what belongs to it; nothing where that is empty."""
    return f"## {title}\n\n{content}" if content else ""


def bullets(sentences: tuple[str, ...]) -> str:
    """A list of sentences."""
    return "\n".join(f"- {plain_text(str(sentence))}" for sentence in sentences)


def rendered_table(header: list[str], rows: list[list[str]], *, numbers: bool = True) -> str:
    """A table, all columns but the first aligned to the right where they are numbers."""
    lines = [header, ["---"] + ["---:" if numbers else "---"] * (len(header) - 1), *rows]
    cells = [[cell if number == 1 else plain_text(cell) for cell in line] for number, line in enumerate(lines)]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _check(commands: tuple[str, ...]) -> str:
    """Commands as an indented block, which no character inside can end."""
    if not commands:
        return ""
    lines = "\n".join(f"    {line}" for command in commands for line in command.splitlines())
    return f"Check it with:\n\n{lines}"


def plain_text(text: str) -> str:
    """Text in which nothing is markup, on one line."""
    return re.sub(r"([\\`*_\[\]<>|&#~])", r"\\\1", " ".join(text.split()))
