"""How the command line speaks: JSON for programs, tables for people, progress on the error stream."""

import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mithridate._text import one_line as one_line
from mithridate._text import printable as printable
from mithridate.core.conditions import in_words
from mithridate.errors import ArtifactError

# What a run could not go on without, or be certified by.
_OF_A_RUN = ("run.json", "seed", "seeds", "lock", "claims", "votes.npz", "inputs.npz")


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


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on the error stream where a person watches, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def print_conditions(console: Console, statements: Iterable[str]) -> None:
    """The last line of a command: what its claims are conditional on, and what to declare; none where nothing is."""
    said = in_words(statements)
    if said is not None:
        console.print(said, soft_wrap=True)


def bar(share: float, width: int = 30) -> str:
    """A bar of blocks, to an eighth of a character.

    >>> bar(0.5, 4)
    '██  '
    """
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    partial = " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    return ("█" * (eighths // 8) + partial).ljust(width)


def percent(share: float) -> str:
    """A share with two decimals, "100.00%" only where it is all.

    >>> percent(0.5263), percent(0.99999), percent(1.0)
    ('52.63%', '99.99%', '100.00%')
    """
    return f"{min(share, 0.9999) if share < 1 else 1:.2%}"


def check_writable(path: Path) -> None:
    """Refuse a place that cannot be written to before hours are spent on what should go there.

    Raises:
        ArtifactError: the folder does not exist or may not be written to, or the path is a folder.
    """
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


def check_apart(out: Path, *inputs: Path | None) -> None:
    """Refuse to overwrite what is read.

    Raises:
        ArtifactError: the output is one of the inputs.
    """
    for path in inputs:
        if path is not None and os.path.exists(out) and os.path.exists(path) and os.path.samefile(out, path):
            raise ArtifactError(f"Cannot write {out}: it is read from. Choose another name.")
