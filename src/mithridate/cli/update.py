"""`mithridate update`: examples come and go, and a finished run follows."""

import argparse
import shlex
from pathlib import Path

from rich.console import Console

from mithridate._progress import shown
from mithridate._text import counted, listed, printable, shortened
from mithridate.cli import _shared
from mithridate.updating import Update, update

_UPDATE_EXAMPLES = """examples:
  mithridate update runs/flowers new.csv                       rows like those of the training file, with their labels
  mithridate update runs/flowers new.csv --remove wrong.csv    and these rows go
  mithridate update runs/flowers --remove vendors.txt          of a run that certifies vendors: a name on each line

The result is, bit for bit, the run that `mithridate train` would give on the data that results, and the directory has
all of it or nothing, whenever the command is killed. For nearest-neighbours, kernel-vote, ridge, dpa,
finite-aggregation and their run-offs; of models of parts only those are trained whose part changed.
"""
# Changed predictions that are shown, at most.
_SHOWN = 10


def add_update(command: _shared.NewCommand) -> None:
    """Register `mithridate update`."""
    parser = command(
        help="add examples to a finished run or remove some, and train only what they touch",
        description="Add examples to the training data of a finished run, remove some, and bring its votes up to date; "
        "then say which predictions changed and which radii moved.",
        epilog=_UPDATE_EXAMPLES,
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="directory of a finished run")
    parser.add_argument(
        "new", metavar="NEW", type=Path, nargs="?", help="examples to add, like the training file and with labels"
    )
    parser.add_argument(
        "--remove",
        metavar="FILE",
        type=Path,
        help="examples to remove, as rows like those of the training file; or, of a run that certifies sources, their "
        "names: a line each in a .txt, or a table with that column alone",
    )


def run_update(arguments: argparse.Namespace) -> int:
    """Update and say what came of it."""
    console = _shared.console(error=arguments.json)
    with shown() as clock:
        done = update(arguments.run_dir, arguments.new, remove=arguments.remove, progress=clock)
    if arguments.json:
        _shared.print_json({**done.to_dict(), "seconds": clock.seconds})
    else:
        _print(console, done)
    return 0


def _print(console: Console, done: Update) -> None:
    for note in done.notes:
        console.print(f"Note: {printable(note)}")
    console.print(
        f"{counted(done.added, 'example')} added and {done.removed:,} removed; there are {done.examples:,} now."
    )
    if done.sources:
        console.print(f"They are of {_sources(done)}.")
    if done.models:
        before = f" ({done.trained_before:,} of them on their earlier part, too)" if done.trained_before else ""
        console.print(f"{done.retrained:,} of {counted(done.models, 'model')} trained again{before}.")
    changed = done.predictions_changed
    console.print(f"{counted(len(changed), 'prediction')} of {done.after.votes.examples:,} changed.")
    for each in changed[:_SHOWN]:
        name = f" ({each['id']})" if "id" in each else ""
        console.print(printable(f"  input {each['input']}{name}: {_label(each['from'])} -> {_label(each['to'])}"))
    if len(changed) > _SHOWN:
        console.print(f"  and {len(changed) - _SHOWN:,} more (--json lists all)")
    for up, word in ((False, "shrank"), (True, "grew")):
        number, most = done.moved(up=up)
        end = "" if most is None else f", at most from {most['from']:,} to {most['to']:,} (input {most['input']})"
        console.print(f"{counted(number, 'radius') if number == 1 else f'{number:,} radii'} {word}{end}.")
    command = f"mithridate certify {shlex.quote(done.run_dir)}"
    console.print(f"The run in {done.run_dir} is up to date; certify it with: {command}", soft_wrap=True)
    _shared.print_conditions(console, done.after.assumptions)


def _sources(done: Update) -> str:
    unit = done.after.votes.unit
    assert unit is not None
    told = (
        f"{shortened(name, 30)} (+{counts['added']:,} -{counts['removed']:,})"
        for name, counts in sorted(done.sources.items(), key=lambda each: -each[1]["added"] - each[1]["removed"])
    )
    return f"{unit.counted(len(done.sources))}: {listed(told, 5)}"


def _label(name: str | int) -> str:
    return shortened(str(name), 30)
