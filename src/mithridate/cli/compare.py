"""`mithridate compare`: which defence certifies most on my data?"""

import argparse
import contextlib
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mithridate._progress import progress_bar, shown
from mithridate._text import printable
from mithridate.cli import _ending, _shared
from mithridate.cli._flags import CONFIG
from mithridate.cli.certifying import radii_of
from mithridate.comparing.result import Comparison, make_folder
from mithridate.comparing.running import TRAINING, compare
from mithridate.core.mechanism import Threat
from mithridate.defences.registry import names
from mithridate.errors import ConfigError, MithridateError
from mithridate.projects import matched_radius, read_comparison
from mithridate.reporting.comparison import duration, failure_words, marked_title

_COMPARE_EXAMPLES = """examples:
  mithridate compare compare.toml
  mithridate compare --methods fdp,kernel-vote --radii 0,10,50 compare.toml
  mithridate compare --match r=0 --match-with fdp compare.toml

A comparison file names data and methods:

  out = "comparison"
  methods = ["fdp", "kernel-vote"]
  [data]
  name = "digits"                     # or train = "train.csv" and the rest, as in a project file

or, with options, a table [[methods]] for each; a project file of `mithridate init` will do, with --methods. Methods:
{methods}.
After an interruption of any kind the same command goes on where it ended.
"""
# Characters of a column of the table: a share, or a radius, and the space after it.
_CELL = 8


def add_compare(command: _shared.NewCommand) -> None:
    """Register `mithridate compare`."""
    parser = command(
        help="train and certify several defences on the same data",
        description="Train several defences on the same data, certify them, and write one table, one chart and one "
        "report: certified accuracy against radius.",
        epilog=_COMPARE_EXAMPLES.format(methods=textwrap.fill(", ".join(names()), 120)),
    )
    parser.add_argument("file", metavar=CONFIG, type=Path, help="what to compare, on which data")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where results and runs go (comparisons/CONFIG)")
    _shared.add_units(parser)
    parser.add_argument(
        "--methods", type=_names, metavar="A,B,...", help="compare these methods or rows, with the file's options"
    )
    parser.add_argument("--radii", type=radii_of, metavar="R,R,...", help="radii of the table, e.g. 0,50,100")
    parser.add_argument(
        "--threat",
        choices=[threat.value for threat in Threat],
        help="what an attacker may have done, r times (symmetric-difference, with units edit); methods that certify "
        "another threat are marked",
    )
    parser.add_argument(
        "--failure-prob", type=float, metavar="P", help="probability with which a claim may fail, over training (0.001)"
    )
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, mps or auto (auto)")
    parser.add_argument(
        "--match",
        type=_matched,
        metavar="r=0",
        help="choose the draws of bagging so that it certifies as many at radius 0 as another method",
    )
    parser.add_argument("--match-with", metavar="NAME", help="that method (the first that is not bagging)")


def run_compare(arguments: argparse.Namespace) -> int:
    """Train, certify, compare, write."""
    file = read_comparison(arguments.file)
    file = replace(file, data=file.data.with_units(arguments.unit, arguments.units))
    known = ("radii", "threat", "failure_prob", "device", "match", "match_with")
    flags = {name: getattr(arguments, name) for name in known if getattr(arguments, name) is not None}
    defences = file.defences(arguments.methods)
    out: Path = arguments.out or file.out
    console = _shared.console(error=arguments.json)
    with _in_own_words(), progress_bar("downloading") as progress:
        training, test = file.examples(progress)
    for sentence in dict.fromkeys((*file.notes, *training.notes, *test.notes)):
        console.print(f"Note: {sentence}")
    make_folder(out)
    what = file.data.name or (file.data.train.name if file.data.train else "data")
    options = {"title": f"Defences compared on {what}", **file.options, **flags}
    _ending.kept_in(out / "runs")
    with _in_own_words(), contextlib.ExitStack() as stack:
        comparison = compare(defences, (training, test), run_dir=out / "runs", progress=_watch(stack), **options)
    comparison = replace(comparison, failed=tuple((name, own_words(reason)) for name, reason in comparison.failed))
    comparison.write(out)
    if arguments.json:
        _shared.print_json({**comparison.to_dict(), "out": str(out)})
    else:
        _print(console, comparison, out)
    for name, reason in comparison.failed:
        print(f"mithridate: {printable(f'{name} came to no result: {reason}')}", file=sys.stderr)
    return 2 if comparison.failed else 0


def own_words(message: str) -> str:
    """A message with the remedies of this command instead of those of others.

    >>> own_words("Another process works in o; wait until it ends, or choose another run_dir.")
    'Another process works in o; wait until it ends, or choose another --out (out = ...).'
    """
    message = re.sub(r"another run_dir( \(--run-dir\))?", "another --out (out = ...)", message)
    return message.replace("--data-dir", "data_dir in [data]")


@contextlib.contextmanager
def _in_own_words() -> Iterator[None]:
    try:
        yield
    except MithridateError as error:
        raise type(error)(own_words(str(error))) from error


def _watch(stack: contextlib.ExitStack) -> Callable[[str, str], Callable[[int, int], None] | None]:
    """What shows how far each stage of each method is: a bar where a person watches, lines elsewhere."""

    def begin(name: str, stage: str) -> Callable[[int, int], None] | None:
        stack.close()  # the bar of the stage before
        if stage != TRAINING:
            return stack.enter_context(progress_bar(f"{name}: {stage}"))
        print(f"mithridate: {name}: {stage}", file=sys.stderr, flush=True)
        return stack.enter_context(shown())

    return begin


def _print(console: Console, comparison: Comparison, out: Path) -> None:
    """The table, in as many parts as the width asks for; what each method is; who is best where."""
    console.print(
        f"Predictions that are correct, and certified to stay the same for up to r {comparison.unit_words.changes}:"
    )
    names = [printable(entry.name) + ("" if entry.ranked else " *") for entry in comparison.entries]
    room = max(1, (console.width - max(map(len, [*names, "baseline"])) - 2) // _CELL)
    for start in range(0, len(comparison.radii), room):
        console.print(_table(comparison, names, comparison.radii[start : start + room]))
    for entry in comparison.entries:
        fails = "no failure probability" if entry.failure_prob == 0 else f"failure probability {failure_words(entry)}"
        facts = f"{fails}, trained in {duration(entry.training_seconds)}"
        console.print(f"{printable(marked_title(entry))}; {facts}")
    console.print(f"\n{comparison.headline}")
    console.print(f"Baseline: {comparison.baseline_clause}.")
    for sentence in comparison.not_ranked:
        console.print(f"* {sentence}")
    for sentence in comparison.remarks:
        console.print(f"Note: {sentence}")
    notes = dict.fromkeys(note for entry in comparison.ranked for note in entry.notes)
    for sentence in notes:
        if not sentence.startswith("Certified from"):  # whose votes it has
            console.print(f"Note: {sentence}")
    console.print(f"The report is in {out.absolute() / 'comparison.html'}; open it in a browser.", soft_wrap=True)
    _shared.print_conditions(console, comparison.conditions)


def _table(comparison: Comparison, names: list[str], radii: tuple[int, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("r =", no_wrap=True)
    for radius in radii:
        table.add_column(f"{radius:,}", justify="right", no_wrap=True, min_width=_CELL - 2)
    for name, entry in zip(names, comparison.entries, strict=True):
        table.add_row(name, *entry.shares(radii))
    table.add_row("baseline", *(comparison.baseline_share for _ in radii))
    return table


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"expected names such as fdp,dpa, got {text!r}")
    return names


def _matched(text: str) -> int:
    try:
        return matched_radius(text)
    except ConfigError:
        raise argparse.ArgumentTypeError(f"expected r=0, got {text!r}") from None
