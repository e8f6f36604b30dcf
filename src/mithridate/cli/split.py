"""`mithridate split`: directories in which the shards of a run can be trained apart, with no other seeds."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from mithridate._validate import positive_integer
from mithridate.cli import _output
from mithridate.errors import ConfigError
from mithridate.training.run_directory import Manifest, missing_shards
from mithridate.training.shared_run import hand_out, in_words

_EXAMPLES = """example:
  mithridate train --prepare --instances 1000 --in-flight 25 --run-dir runs/mine flowers.toml
  mithridate split runs/mine --into 10 -o parts
  mithridate train --run-dir parts/$SLURM_ARRAY_TASK_ID flowers.toml        on machine or task 0 to 9
  mithridate merge parts/* -o votes.npz                                     once all are done

A directory holds the private seeds of its own instances; whoever has it can predict these and no others.
"""


def add_to(commands: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "split",
        help="hand out the shards of a run to several machines",
        description="Make directories 0, 1, ... in which the shards of a run can be trained apart, each with the seeds "
        "of its\nown instances and no others. Their votes merge.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="a run that `mithridate train --prepare` started")
    parser.add_argument("--into", type=int, metavar="N", required=True, help="number of directories")
    parser.add_argument("-o", "--out", type=Path, metavar="DIR", required=True, help="folder that they go to")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Split and print."""
    positive_integer(into=arguments.into)
    manifest = Manifest.read(arguments.run_dir / "run.json")
    count, into = len(manifest.ranges), arguments.into
    if into > count:
        raise ConfigError(
            f"The run has {count} shards, which are too few for {into} directories; split into {count} or fewer, or "
            "start a run with fewer models in flight (--in-flight)."
        )
    parts = [range(number * count // into, (number + 1) * count // into) for number in range(into)]
    for number, shards in enumerate(parts):
        hand_out(arguments.run_dir, shards, arguments.out / str(number))
    done = sorted({*range(count)} - {*missing_shards(arguments.run_dir, manifest)})
    if arguments.json:
        folders = [{"run_dir": str(arguments.out / str(n)), "shards": [p.start, p.stop]} for n, p in enumerate(parts)]
        _output.print_json({"run_id": manifest.run_id, "shards": count, "done_shards": done, "parts": folders})
        return 0
    console, out = _output.console(), shlex.quote(str(arguments.out))
    for number, shards in enumerate(parts):
        console.print(_output.printable(f"{arguments.out / str(number)}: shards {in_words(shards)}"), soft_wrap=True)
    if done:
        console.print(
            _output.printable(
                f"Done already in {arguments.run_dir}: shards {in_words(done)}. Copy their files from its folders "
                "shards and models to where they are handed out, or they are trained again there."
            ),
            soft_wrap=True,
        )
    console.print(f"Train each with the options of the run and --run-dir {out}/N; then:", soft_wrap=True)
    console.print(f"mithridate merge {out}/* -o votes.npz", soft_wrap=True)
    return 0
