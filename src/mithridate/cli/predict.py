"""`mithridate predict`: how kept models vote on new inputs."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from mithridate.cli import _output
from mithridate.cli.train import accuracy, import_training
from mithridate.data.arrays import read_arrays

_EXAMPLES = """example:
  mithridate predict runs/mnist --inputs new.npz --out new-votes.npz
  mithridate certify new-votes.npz
"""


def add_to(commands: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "predict",
        help="let the models of a run vote on new inputs",
        description="Let the models that a run kept (train --keep-models) vote on new inputs.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="directory of the run")
    parser.add_argument("--inputs", type=Path, metavar="FILE.npz", required=True, help="inputs to vote on, x (and y)")
    parser.add_argument("--out", type=Path, metavar="VOTES.npz", required=True, help="where the votes go")
    parser.add_argument("--device", default="auto", metavar="NAME", help="cpu, cuda, mps or auto")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Predict and print."""
    _output.check_writable(arguments.out)
    inputs = read_arrays(arguments.inputs, labels=False)
    votes = import_training("predict")(arguments.run_dir, inputs, device=arguments.device)
    votes.save(arguments.out)
    right = accuracy(votes)
    if arguments.json:
        _output.print_json(
            {
                "votes": str(arguments.out),
                "run_id": votes.run_ids[0],
                "instances": votes.instances,
                "examples": votes.examples,
                "mechanism": votes.mechanism.to_dict(),
                "assumptions": list(votes.assumptions),
                "accuracy": right,
            }
        )
        return 0
    console = _output.console()
    console.print(f"{votes.instances:,} instances voted on {votes.examples:,} inputs.")
    if right is not None:
        console.print(f"The majority is right on {right:.2%} of them.")
    command = f"mithridate certify {shlex.quote(str(arguments.out))}"
    console.print(f"Written to {arguments.out}; certify it with: {command}", soft_wrap=True)
    return 0
