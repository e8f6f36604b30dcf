"""What all commands share: how they are parsed, how they speak, and what becomes of their errors.

JSON is for programs, tables are for people, and progress goes to the error stream.
"""

import argparse
import errno
import io
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from mithridate._text import one_line, printable
from mithridate._version import VERSION
from mithridate.cli import _ending
from mithridate.cli._flags import Parser, as_typed
from mithridate.core.conditions import in_words
from mithridate.core.input_change import checked_changes
from mithridate.errors import ArtifactError, ConfigError, MithridateError

# `add_parser` of argparse for one command; its flag --json and what runs it are added to all alike.
NewCommand = Callable[..., argparse.ArgumentParser]
# The module of each command, with its `add_NAME` and `run_NAME`; it is imported when the command is asked for.
_HOMES = {
    "demo": "starting",
    "init": "starting",
    "plan": "certifying",
    "tune": "tune",
    "train": "train",
    "update": "update",
    "split": "parts",
    "merge": "parts",
    "certify": "certifying",
    "predict": "certifying",
    "report": "certificates",
    "compare": "compare",
    "evidence": "evidence",
    "verify": "certificates",
    "gate": "gate",
    "audit": "audit",
    "completion": "completion",
    "fingerprint": "fingerprints",
    "serve": "serve",
}
# A flag with -- for a value, in all its spellings.
_NO_VALUE = re.compile(r"-[^-]=?--|--[^=]*=--", re.DOTALL)
# More of an error's own words does not help.
_MOST_CHARACTERS = 300
# There is no reader any more, no room, or no working disk; what is saved in files has errors in words.
_OF_OUTPUT = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
# What a run could not go on without, or be certified by.
_OF_A_RUN = ("run.json", "seed", "seeds", "lock", "claims", "votes.npz", "inputs.npz", "served-claims.json")


def run(words: list[str]) -> int:
    """Run one command; see `mithridate.cli.main`."""
    parser = new_parser(words)  # if that fails, the program cannot start, and says so
    arguments = argparse.Namespace(flags={})
    try:
        if any(_NO_VALUE.fullmatch(word) for word in words):
            parser.error("-- is not a value")  # argparse would make a list of it
        arguments = parser.parse_args(words)
        arguments.words = words
        arguments.flags = parser.commands[arguments.command].flags_for(arguments, words)
        return arguments.run(arguments)
    except Exception as error:
        if _ending.was_asked_for():  # and this came of it
            raise KeyboardInterrupt from error
        return _failed(error, arguments.flags)


def _failed(error: Exception, flags: Mapping[str, str]) -> int:
    """Say what is wrong, and whose fault it is; the status for it."""
    if isinstance(error, MithridateError):
        _ending.complain(f"mithridate: {printable(as_typed(str(error), flags))}")
        return _ending.BAD_INPUT
    if isinstance(error, OSError) and error.errno in _OF_OUTPUT:
        return _ending.status_of_lost_output(error)
    _ending.show_details(error)
    _ending.complain(f"mithridate: {_in_words(error)}")
    return _ending.INTERNAL


def _in_words(error: Exception) -> str:
    """What went wrong that should not have, in one line."""
    details = one_line(str(error))[:_MOST_CHARACTERS]
    if isinstance(error, MemoryError):
        reason = f" ({details})" if details else ""
        return (
            f"there is not enough memory{reason}. What is finished is kept; use fewer examples, models in flight or "
            "instances, or a machine with more memory."
        )
    last = traceback.extract_tb(error.__traceback__, limit=-1)
    where = f"{Path(last[0].filename).name}, line {last[0].lineno}" if last else "nowhere"
    if isinstance(error, RecursionError):
        what = f"something is nested too deeply ({where})"
    else:
        what = f"an error of its own, {type(error).__name__}{': ' if details else ''}{details} ({where})"
    return (
        f"{what}. Please report it to the developers, with what the same command says with MITHRIDATE_DEBUG=1 set, "
        "which shows where it happened."
    )


# --- flags ------------------------------------------------------------------------------------------------------------


def new_parser(words: list[str] | None = None) -> Parser:
    """What reads the words of a command line: of the one command that they start with, else of all commands."""
    parser = Parser(
        prog="mithridate",
        description="Certificates against training-data poisoning: which predictions would survive how many changes.",
    )
    parser.add_argument("--version", action="version", version=f"mithridate {VERSION}")
    commands = parser.add_subparsers(title="commands", required=True, dest="command", metavar="COMMAND")
    for name in [words[0]] if words and words[0] in _HOMES else _HOMES:
        module = import_module(f"mithridate.cli.{_HOMES[name]}")
        raw = argparse.RawDescriptionHelpFormatter
        getattr(module, f"add_{name}")(partial(commands.add_parser, name, formatter_class=raw))
        command = commands.choices[name]
        command.add_argument("--json", action="store_true", help="print one JSON object instead of text")
        command.set_defaults(run=getattr(module, f"run_{name}"))
    return parser


def changes_of(text: str) -> tuple[float, ...]:
    """Changes of an input from a list with commas, for a flag."""
    try:
        return checked_changes([float(part) for part in text.split(",")])
    except (ValueError, ConfigError) as error:
        raise argparse.ArgumentTypeError(f"expected numbers of 0 or more such as 0.1,0.25, got {text!r}") from error


class Joined(argparse.Action):
    """Takes several lists of numbers for one."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        """Keep them all, with those of earlier flags of the name."""
        before = getattr(namespace, self.dest) or ()
        setattr(namespace, self.dest, (*before, *(number for some in values for number in some)))


def add_units(parser: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    """The flags that say what a unit is, and where it stands."""
    parser.add_argument(
        "--unit",
        metavar="NAME",
        help="certify against poisoned sources: the column, array or level of folders that names them, e.g. vendor; or "
        "day, week, month, quarter or year of the declared date",
    )
    parser.add_argument(
        "--units", type=Path, metavar="FILE", help="of images: a table with the columns file and NAME of --unit"
    )


# --- output -----------------------------------------------------------------------------------------------------------


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the program what to do when the reader of the output is gone; the status would be 1."""
        raise


def console(*, error: bool = False) -> Console:
    """Where tables go: the output stream, or the error stream.

    Text from users is printed as it is: no markup, no guesses about what to highlight.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without block characters shows question marks
    return _Console(markup=False, highlight=False, stderr=error)


def print_json(value: dict[str, Any]) -> None:
    """One JSON object on the output stream."""
    json.dump(value, sys.stdout, allow_nan=False)
    sys.stdout.write("\n")


def print_conditions(console: Console, statements: Iterable[str]) -> None:
    """The last line of a command: what its claims are conditional on, and what to declare; none where nothing is."""
    said = in_words(statements)
    if said is not None:
        console.print(said, soft_wrap=True)


def percent(share: float) -> str:
    """A share with two decimals, "100.00%" only where it is all.

    >>> percent(0.5263), percent(0.99999), percent(1.0)
    ('52.63%', '99.99%', '100.00%')
    """
    return f"{min(share, 0.9999) if share < 1 else 1:.2%}"


def check_writable(path: Path) -> None:
    """Refuse a place that cannot be written to before hours are spent on what should go there."""
    # Of os.path, since the methods of Path raise for names that no file can have.
    if os.path.isdir(path):
        raise ArtifactError(f"Cannot write {path}: it is a folder. Give a file name.")
    if not os.path.isdir(path.parent):
        raise ArtifactError(f"Cannot write {path}: there is no folder {path.parent}. Create it first.")
    if not os.access(path.parent, os.W_OK):
        raise ArtifactError(f"Cannot write {path}: the folder {path.parent} is read-only. Choose another one.")
    folder = path.parent.parent if path.parent.name in ("models", "shards", "parts") else path.parent
    if (path.name in _OF_A_RUN or folder != path.parent) and os.path.exists(folder / "run.json"):
        raise ArtifactError(f"Cannot write {path}: it belongs to the run in {folder}. Choose another name.")


def no_votes(folder: Path) -> ArtifactError:
    """That a folder holds no votes of a whole run, and what to do."""
    started, parts = os.path.isfile(folder / "run.json"), sorted((folder / "parts").glob("*.npz"))
    remedy = "it is not finished; run its `mithridate train` again" if started else "give that of a finished run"
    if parts:
        remedy = f"it has parts of a run; put all into one file (mithridate merge), or certify one ({parts[0]})"
    return ArtifactError(f"There are no votes in {folder}: {remedy}.")


def is_same(out: Path, path: Path | None) -> bool:
    """Whether a file that is there would be overwritten."""
    return path is not None and os.path.exists(out) and os.path.exists(path) and os.path.samefile(out, path)


def check_apart(out: Path, *inputs: Path | None) -> None:
    """Refuse to overwrite what is read."""
    for path in inputs:
        if is_same(out, path):
            raise ArtifactError(f"Cannot write {out}: it is read from. Choose another name.")
