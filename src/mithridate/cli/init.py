"""`mithridate init`: a commented project file for the user's data."""

import argparse
import os
import shlex
from pathlib import Path
from typing import Any

from mithridate._io.files import write_atomically
from mithridate.cli import _output
from mithridate.core.conditions import in_json
from mithridate.data import propose, read
from mithridate.errors import ConfigError
from mithridate.projects import project_toml

_EXAMPLES = """examples:
  mithridate init flowers.csv --label kind -o flowers.toml
  mithridate init photos/ --test more-photos/ -o photos.toml
  mithridate train flowers.toml
"""


def add_to(commands: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "init",
        help="write a commented configuration for your data",
        description="Look at a table, a folder of images or arrays, and propose how to read them. What is proposed is "
        "to be replaced by what you know: every result says so until it is.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "data", metavar="DATA", type=Path, help="training data: .csv, .tsv, .parquet, .npz or a folder of images"
    )
    parser.add_argument("--label", metavar="COLUMN", help="column of a table that holds the labels")
    parser.add_argument("--test", metavar="FILE", type=Path, help="inputs to vote on; else some of DATA are held out")
    parser.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        type=Path,
        default=Path("mithridate.toml"),
        help="where it goes (mithridate.toml)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite what is there")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Propose, write, and say what is next."""
    path: Path = arguments.out
    _output.check_writable(path)
    if os.path.exists(path) and not arguments.force:
        raise ConfigError(f"{path} is there already; give another name with -o, or --force to overwrite it.")
    _output.check_apart(path, arguments.data, arguments.test)
    declaration = propose(arguments.data, label=arguments.label)
    notes = read(arguments.data, declaration, labels=True).notes  # before anything is written: can it be read so?
    if arguments.test is not None:
        read(arguments.test, declaration, labels=False)
    text = project_toml(path, arguments.data, arguments.test, declaration)
    with write_atomically(path) as file:
        file.write(text.encode())
    if arguments.json:
        _output.print_json(
            {
                "project": str(path),
                "declaration": declaration.to_dict(),
                **in_json(declaration.assumptions),
                "assumptions": list(map(str, declaration.assumptions)),
                "notes": list(notes),
            }
        )
        return 0
    console = _output.console()
    for sentence in (*notes, *declaration.assumptions):
        console.print(f"Note: {sentence}")
    command = f"mithridate train {shlex.quote(str(path))}"
    console.print(f"Written to {path}. Correct it by what you know, then: {command}", soft_wrap=True)
    return 0
