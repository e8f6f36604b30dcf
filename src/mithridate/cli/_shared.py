"""What all commands share: how they are parsed, how they speak, and what becomes of their errors.

JSON is for programs, tables are for people, and progress goes to the error stream.
"""

import argparse
import contextlib
import errno
import io
import json
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from mithridate._text import one_line, printable
from mithridate._version import VERSION
from mithridate.cli import _ending
from mithridate.core.conditions import in_words
from mithridate.errors import ArtifactError, MithridateError

# `add_parser` of argparse for one command; its flag --json and what runs it are added to all alike.
NewCommand = Callable[..., argparse.ArgumentParser]
# The module of each command, with its `add_NAME` and `run_NAME`; it is imported when the command is asked for.
_HOMES = {
    "demo": "starting",
    "init": "starting",
    "plan": "certifying",
    "train": "train",
    "split": "parts",
    "merge": "parts",
    "certify": "certifying",
    "predict": "certifying",
    "report": "certificates",
    "compare": "compare",
    "verify": "certificates",
    "fingerprint": "fingerprints",
}
# A flag with -- for a value, in all its spellings.
_NO_VALUE = re.compile(r"-[^-]=?--|--[^=]*=--", re.DOTALL)
# More of an error's own words does not help.
_MOST_CHARACTERS = 300
# There is no reader any more, no room, or no working disk; what is saved in files has errors in words.
_OF_OUTPUT = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
# What a run could not go on without, or be certified by.
_OF_A_RUN = ("run.json", "seed", "seeds", "lock", "claims", "votes.npz", "inputs.npz")
# Without a terminal, a line is written after so many seconds, or this share of the work.
_LINE_SECONDS = 10.0
_LINE_SHARE = 0.05


def run(words: list[str]) -> int:
    """Run one command; see `mithridate.cli.main`."""
    parser = new_parser(words)  # if that fails, the program cannot start, and says so
    try:
        if any(_NO_VALUE.fullmatch(word) for word in words):
            parser.error("-- is not a value")  # argparse would make a list of it
        arguments = parser.parse_args(words)
        arguments.words = words
        return arguments.run(arguments)
    except Exception as error:
        if _ending.was_asked_for():  # and this came of it
            raise KeyboardInterrupt from error
        return _failed(error)


def _failed(error: Exception) -> int:
    """Say what is wrong, and whose fault it is; the status for it."""
    if isinstance(error, MithridateError):
        _ending.complain(f"mithridate: {printable(str(error))}")
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


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line instead of repeating all flags."""

    def error(self, message: str) -> NoReturn:
        if message.endswith("expected one argument"):  # or there is one, which looks like a flag
            message += ", after a = if it starts with -"
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def new_parser(words: list[str] | None = None) -> argparse.ArgumentParser:
    """What reads the words of a command line: of the one command that they start with, else of all commands."""
    parser = _Parser(
        prog="mithridate",
        description="Certificates against training-data poisoning: which predictions would survive how many changes.",
    )
    parser.add_argument("--version", action="version", version=f"mithridate {VERSION}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name in [words[0]] if words and words[0] in _HOMES else _HOMES:
        module = import_module(f"mithridate.cli.{_HOMES[name]}")
        raw = argparse.RawDescriptionHelpFormatter
        getattr(module, f"add_{name}")(partial(commands.add_parser, name, formatter_class=raw))
        command = commands.choices[name]
        command.add_argument("--json", action="store_true", help="print one JSON object instead of text")
        command.set_defaults(run=getattr(module, f"run_{name}"))
    return parser


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


# --- progress ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on the error stream where a person watches, a line now and then elsewhere."""
    if not sys.stderr.isatty():
        pace = _Pace()
        pace.start(0)

        def say(done: int, total: int) -> None:
            if pace.is_time(done, total):
                _say(f"{what}: {done:,} of {total:,} ({done / max(total, 1):.0%})")

        yield say
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class Clock:
    """Model-steps over time; what came from an earlier process does not count for the speed."""

    def __init__(self) -> None:
        self.begin = time.monotonic()
        self.first: int | None = None
        self.done = self.total = 0
        self.details = ""
        self.show: Callable[[], None] = lambda: None

    def __call__(self, done: int, total: int) -> None:
        """So many model-steps are done."""
        if self.first is None:
            self.begin, self.first = time.monotonic(), done
        self.done, self.total = done, total
        self.show()

    def detail(self, text: str) -> None:
        """What else there is to say, until the next time."""
        self.details = text

    @property
    def seconds(self) -> float:
        """Since the first model-step."""
        return time.monotonic() - self.begin

    @property
    def speed(self) -> float | None:
        """Model-steps per second of this process, None where it did none."""
        steps = self.done - (self.first or 0)
        return steps / max(self.seconds, 1e-9) if steps > 0 else None

    @property
    def speed_in_words(self) -> str:
        """The same for people, nothing where it did none."""
        return "" if self.speed is None else f"{self.speed:,.0f} model-steps/s"

    def __str__(self) -> str:
        line = f"{self.done:,} of {self.total:,} model-steps ({self.done / self.total:.0%})"
        if self.speed is not None:
            line += f", {self.speed_in_words}, {(self.total - self.done) / self.speed:,.0f} s left"
        return f"{line}, {self.details}" if self.details else line


@contextlib.contextmanager
def shown() -> Iterator[Clock]:
    """A progress bar where a person watches, lines elsewhere."""
    clock = Clock()
    if not sys.stderr.isatty():
        clock.show = _Lines(clock)
        with _logging(_say):
            yield clock
        return
    speed, details = _Said(lambda: clock.speed_in_words), _Said(lambda: clock.details)
    done = TextColumn("{task.percentage:.0f}%")
    columns = (TextColumn("training"), BarColumn(), done, speed, TimeRemainingColumn(), details)
    console = Console(stderr=True, markup=False, highlight=False)
    with Progress(*columns, console=console, transient=True) as bar, _logging(console.print):
        task = bar.add_task("training", total=None)
        clock.show = lambda: bar.update(task, completed=clock.done, total=clock.total)
        yield clock


class _Said(ProgressColumn):
    def __init__(self, say: Callable[[], str]) -> None:
        super().__init__()
        self._say = say

    def render(self, task: Task) -> Text:
        """What there is to say now."""
        return Text(self._say())


class _Pace:
    """When another line is due: after some seconds, or some of the work; the first call starts it, unless `start`."""

    def __init__(self) -> None:
        self._last: tuple[float, int] | None = None

    def start(self, done: int) -> None:
        """So much is done now."""
        self._last = (time.monotonic(), done)

    def is_time(self, done: int, total: int) -> bool:
        """Whether a line is due, and will be written."""
        if self._last is None:
            self.start(done)
            return False
        elapsed, share = time.monotonic() - self._last[0], (done - self._last[1]) / max(total, 1)
        if elapsed < _LINE_SECONDS and (share < _LINE_SHARE or elapsed < 1.0):
            return False
        self.start(done)
        return True


class _Lines:
    """Now and then a line about how far it is."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._pace = clock, _Pace()

    def __call__(self) -> None:
        """Write one if it is time."""
        if self._pace.is_time(self._clock.done, self._clock.total):
            _say(str(self._clock))


def _say(text: str) -> None:
    print(f"mithridate: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _logging(say: Callable[[str], None]) -> Iterator[None]:
    """What the library has to say while it trains."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say(record.getMessage())

    logger, handler = logging.getLogger("mithridate"), Handler()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
