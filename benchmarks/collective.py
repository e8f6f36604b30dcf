"""How many predictions one poisoning of a few parts can change: together, and as single radii count them.

    python benchmarks/collective.py runs/parts --at 1,2,5,10,20,50

RUN is the directory of a finished run of `dpa` or `finite-aggregation`, or its votes file.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from mithridate import Votes, certify


def main() -> None:
    arguments = parse()
    votes = Votes.load(arguments.run / "votes.npz" if arguments.run.is_dir() else arguments.run)
    started = time.perf_counter()
    certificate = certify(votes, collective=arguments.at)
    seconds = time.perf_counter() - started
    assert certificate.collective is not None
    alone = [int((certificate.radius < radius).sum()) for radius in arguments.at]
    most = [certificate.collective.most_changed[radius] for radius in arguments.at]
    print(f"{votes.examples:,} predictions of {votes.tally}, {seconds:.1f} s")
    for name, numbers in (("r", arguments.at), ("by their own radii", alone), ("together", most)):
        print(" | ".join([f"| {name}", *(f"{number:,}" for number in numbers)]) + " |")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN", type=Path, help="directory of a run, or its votes file")
    parser.add_argument(
        "--at",
        type=lambda text: [int(part) for part in text.split(",")],
        default=[1, 2, 5, 10, 20, 50],
        metavar="R,...",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
