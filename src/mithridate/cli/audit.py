"""`mithridate audit`: do the claims withstand real attacks, and what happens beyond the radius?"""

import argparse
import contextlib
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mithridate._progress import progress_bar
from mithridate._text import listed, printable, shortened
from mithridate.attacking.attacks import NAMES
from mithridate.attacking.auditing import audit
from mithridate.attacking.result import BROKEN, NO_POWER, PAGE, RECORD, Audit
from mithridate.cli import _ending, _shared
from mithridate.cli._flags import CONFIG
from mithridate.core.input_change import in_words_of
from mithridate.core.mechanism import Threat
from mithridate.defences.registry import names
from mithridate.errors import ConfigError
from mithridate.projects import Project, project_of_run, read_project

_AUDIT_EXAMPLES = f"""examples:
  mithridate audit flowers.toml                        trains, then attacks: 20 predictions, at most 10 minutes
  mithridate audit runs/flowers                        the votes of a finished run
  mithridate audit flowers.toml --method dpa --attacks crafted,delete --minutes 3
  mithridate audit runs/noisy --input-change 0.1 0.25  triggers on the input, too, of so much length
  mithridate audit flowers.toml --budgets 1,2,5        only so many changes; 0.5x, 1x, 2x are multiples of the radius

Each attack poisons the training data, the same method is trained on it from the start, and every prediction whose
radius covers the change is compared with its claim. The folder gets audit.html and audit.json, and for every broken
claim the poison that broke it. The same command resumes after an interruption; --minutes counts over all of them.
Attacks: {", ".join(NAMES)}.
Exit status: 0 no claim is broken, 1 some are, 2 bad input, 3 the attacks break not even claims that are too large.
"""
# Budgets that are shown as certified and as the best attack, at most so many lines.
_TABLE_TARGETS = 20


def add_audit(command: _shared.NewCommand) -> None:
    """Register `mithridate audit`."""
    parser = command(
        help="attack the predictions of a method, and check every claim on the way",
        description="Poison the training data by real attacks, train again, and compare every prediction with what its "
        "certificate claims; and find out how many changes flip a prediction.",
        epilog=_AUDIT_EXAMPLES,
    )
    parser.add_argument(
        "source", metavar=CONFIG, type=Path, help="file that `init` wrote, or the directory of a finished run"
    )
    parser.add_argument(
        "--method", choices=names(), metavar="NAME", help="audit this method instead of that of the file"
    )
    parser.add_argument("--targets", type=int, default=20, metavar="N", help="predictions that are attacked (20)")
    parser.add_argument(
        "--budgets",
        type=_words,
        metavar="B,B,...",
        help="numbers of changes to try, or multiples such as 2x (a search)",
    )
    parser.add_argument("--attacks", type=_words, metavar="A,B,...", help="use these attacks only (all that fit)")
    parser.add_argument(
        "--input-change",
        type=_shared.changes_of,
        nargs="+",
        action=_shared.Joined,
        metavar="E",
        help="attack claims about inputs that change, too, by triggers of Euclidean length up to E; what E counts is "
        "what certify --input-change says (0.1 0.25 or 0.1,0.25)",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=10,
        metavar="M",
        help="how long it takes in all, the first training included (10)",
    )
    parser.add_argument(
        "--threat",
        choices=[threat.value for threat in Threat],
        help="what an attacker may do (that of the method; with units edit)",
    )
    parser.add_argument(
        "--failure-prob", type=float, default=1e-3, metavar="P", help="with which a claim may fail (0.001)"
    )
    _shared.add_units(parser)
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, mps or auto (auto)")
    parser.add_argument(
        "-o", "--out", type=Path, metavar="DIR", help="where results go (CONFIG-audit-METHOD, or RUN_DIR-audit)"
    )


def run_audit(arguments: argparse.Namespace) -> int:
    """Attack, write, and say what came of it."""
    source: Path = arguments.source
    is_run = source.is_dir()
    console = _shared.console(error=arguments.json)
    project = _project(arguments, source, console, is_run=is_run)
    with progress_bar("downloading") if project.data_name else contextlib.nullcontext() as progress:
        training, test = project.examples(progress)
    for sentence in dict.fromkeys((*training.notes, *test.notes)):
        console.print(f"Note: {sentence}")
    out = arguments.out or _folder(source, project, is_run=is_run)
    _ending.kept_in(out)
    found = audit(
        project.defence(),
        training,
        test,
        run_dir=source if is_run else None,
        out=out,
        device=arguments.device or project.options.get("device", "auto"),
        progress=_say,
        **_wanted(arguments),
    )
    if arguments.json:
        _shared.print_json({**found.to_dict(), "page": str(out / PAGE), "record": str(out / RECORD)})
    else:
        _print(console, found, out)
    return found.exit_status


def _project(arguments: argparse.Namespace, source: Path, console: Console, *, is_run: bool) -> Project:
    """What is audited: what a run was made from, or a project file with the method asked for."""
    if is_run:
        if arguments.method is not None:
            raise ConfigError("A run is of one method; leave --method out, or give the project file.")
        if arguments.unit is not None or arguments.units is not None:
            raise ConfigError("A run has its units; leave --unit and --units out, or give the project file.")
        return project_of_run(source)
    project = read_project(source).with_units(arguments.unit, arguments.units)
    if arguments.method is None:
        return project
    project, unused = project.with_method(arguments.method)
    if unused:
        console.print(f"Note: {arguments.method} has no use for {listed(unused)} of {printable(str(source))}.")
    return project


def _folder(source: Path, project: Project, *, is_run: bool) -> Path:
    if is_run:
        whole = source.resolve()
        return whole.parent / f"{whole.name}-audit"
    method = project.options.get("method")
    return source.parent / (f"{source.stem}-audit" if method is None else f"{source.stem}-audit-{method}")


def _wanted(arguments: argparse.Namespace) -> Mapping[str, Any]:
    return {
        name: getattr(arguments, name)
        for name in ("targets", "budgets", "attacks", "input_change", "minutes", "threat", "failure_prob")
    }


# --- what is shown ----------------------------------------------------------------------------------------------------


def _say(line: str) -> None:
    print(printable(f"mithridate: {line}"), file=sys.stderr, flush=True)


def _print(console: Console, found: Audit, out: Path) -> None:
    if found.targets:
        console.print(_targets_table(found))
    if found.frontier and found.changes_of:
        console.print(f"Triggers on the input, {in_words_of(found.changes_of)}:")
        console.print(_frontier_table(found))
    console.print(printable(found.headline))
    console.print(found.meaning)
    for sentence in found.notes:
        console.print(f"Note: {printable(sentence)}")
    if not found.finished:
        console.print("The time was over before everything was tried; the same command with more --minutes resumes.")
    if found.exit_status == BROKEN:
        console.print(f"What broke each claim is in {out.absolute() / 'broken'}.", soft_wrap=True)
    if found.exit_status == NO_POWER:
        console.print("Exit status 3: nothing follows from this audit.")
    console.print(f"The report is in {out.absolute() / PAGE}; open it in a browser.", soft_wrap=True)
    _shared.print_conditions(console, found.assumptions)


def _targets_table(found: Audit) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name, side in (("input", "right"), ("label", "left"), ("certified to", "right"), ("flipped by", "right")):
        table.add_column(name, justify=side, no_wrap=True)  # pyright: ignore[reportArgumentType]
    table.add_column("attack", no_wrap=True)
    for target in found.targets[:_TABLE_TARGETS]:
        flipped = f"> {target.tried:,}" if target.flipped_at is None else f"{target.flipped_at:,}"
        label = printable(shortened(found.name_of(target.label), 30))
        table.add_row(str(target.input), label, f"{target.radius:,}", flipped, target.attack or "")
    return table


def _frontier_table(found: Audit) -> Table:
    """What was tried at every change of the input, and where the attacks begin to succeed."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in ("length", "claims", "broken", "attacked", "certified to", "flipped by"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in found.frontier:
        radius = "" if each.median_radius is None else f"{each.median_radius:,}"
        flipped = "" if each.median_flipped_at is None else f"{each.median_flipped_at:,}"
        broken, attacked = f"{each.violations:,}", f"{len(each.targets):,}"
        table.add_row(f"{each.input_change:g}", f"{each.claims:,}", broken, attacked, radius, flipped)
    return table


def _words(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise argparse.ArgumentTypeError(f"expected values such as {shlex.quote('copies,delete')}, got {text!r}")
    return words
