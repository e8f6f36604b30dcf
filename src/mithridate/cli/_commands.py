"""What is typed, and what becomes of it: a command's status, or a line that says what is wrong."""

import argparse
import errno
import re
import traceback
from pathlib import Path
from typing import NoReturn

from mithridate._version import VERSION
from mithridate.cli import (
    _ending,
    _output,
    certify,
    compare,
    demo,
    init,
    merge,
    plan,
    predict,
    report,
    split,
    train,
    verify,
)
from mithridate.errors import MithridateError

_COMMANDS = (demo, init, plan, train, split, merge, certify, predict, report, compare, verify)
# A flag with -- for a value, in all its spellings.
_NO_VALUE = re.compile(r"-[^-]=?--|--[^=]*=--", re.DOTALL)
# More of an error's own words does not help.
_MOST_CHARACTERS = 300
# There is no reader any more, no room, or no working disk; what is saved in files has errors in words.
_OF_OUTPUT = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def run(words: list[str]) -> int:
    """Run one command; see `mithridate.cli.main`."""
    try:
        return _run(words)
    except Exception as error:
        if _ending.was_asked_for():  # and this came of it
            raise KeyboardInterrupt from error
        return _failed(error)


def _run(words: list[str]) -> int:
    parser = new_parser()
    if any(_NO_VALUE.fullmatch(word) for word in words):
        parser.error("-- is not a value")  # argparse would make a list of it
    arguments = parser.parse_args(words)
    arguments.words = words
    return arguments.run(arguments)


def _failed(error: Exception) -> int:
    """Say what is wrong, and whose fault it is; the status for it."""
    if isinstance(error, MithridateError):
        _ending.complain(f"mithridate: {_output.printable(str(error))}")
        return _ending.BAD_INPUT
    if isinstance(error, OSError) and error.errno in _OF_OUTPUT:
        return _ending.status_of_lost_output(error)
    _ending.show_details(error)
    _ending.complain(f"mithridate: {_in_words(error)}")
    return _ending.INTERNAL


def _in_words(error: Exception) -> str:
    """What went wrong that should not have, in one line."""
    details = _output.one_line(str(error))[:_MOST_CHARACTERS]
    if isinstance(error, MemoryError):
        reason = f" ({details})" if details else ""
        return (
            f"there is not enough memory{reason}. What is finished is kept; use fewer examples, models in flight or "
            "instances, or a machine with more memory."
        )
    where = _place(error)
    if isinstance(error, RecursionError):
        what = f"something is nested too deeply ({where})"
    else:
        what = f"an error of its own, {type(error).__name__}{': ' if details else ''}{details} ({where})"
    return (
        f"{what}. Please report it to the developers, with what the same command says with MITHRIDATE_DEBUG=1 set, "
        "which shows where it happened."
    )


def _place(error: Exception) -> str:
    """File and line of the error."""
    last = traceback.extract_tb(error.__traceback__, limit=-1)
    return f"{Path(last[0].filename).name}, line {last[0].lineno}" if last else "nowhere"


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line instead of repeating all flags."""

    def error(self, message: str) -> NoReturn:
        if message.endswith("expected one argument"):  # or there is one, which looks like a flag
            message += ", after a = if it starts with -"
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def new_parser() -> argparse.ArgumentParser:
    """Of all commands."""
    parser = _Parser(
        prog="mithridate",
        description="Certificates against training-data poisoning: which predictions would survive how many changes.",
    )
    parser.add_argument("--version", action="version", version=f"mithridate {VERSION}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add_to(commands)
    return parser
