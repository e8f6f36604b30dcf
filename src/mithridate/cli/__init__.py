"""The command line: parse, call, print; no logic of its own."""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from mithridate._version import VERSION
from mithridate.cli import _output, certify, compare, demo, init, merge, plan, predict, report, split, train, verify
from mithridate.errors import MithridateError

# A flag with -- for a value, in all its spellings.
_NO_VALUE = re.compile(r"-[^-]=?--|--[^=]*=--", re.DOTALL)
_COMMANDS = (demo, init, plan, train, split, merge, certify, predict, report, compare, verify)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 when all is well, 1 when a certificate does not hold, 2 on bad input, 130 when interrupted.
    """
    parser = _parser()
    words = list(sys.argv[1:] if argv is None else argv)
    if any(_NO_VALUE.fullmatch(word) for word in words):
        parser.error("-- is not a value")  # argparse would make a list of it
    arguments = parser.parse_args(words)
    arguments.words = words
    try:
        return arguments.run(arguments)
    except MithridateError as error:
        print(f"mithridate: {_output.printable(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "mithridate: interrupted; what is finished is kept, and the same command goes on from there.",
            file=sys.stderr,
        )
        return 130
    except BrokenPipeError:
        # The reader went away (`| head`); keep Python from complaining again while it shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line instead of repeating all flags."""

    def error(self, message: str) -> NoReturn:
        if message.endswith("expected one argument"):  # or there is one, which looks like a flag
            message += ", after a = if it starts with -"
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="mithridate",
        description="Certificates against training-data poisoning: which predictions would survive how many changes.",
    )
    parser.add_argument("--version", action="version", version=f"mithridate {VERSION}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add_to(commands)
    return parser
