"""Nearest neighbours and kernel votes on a well-known data set: time, memory and certified accuracy.

    python benchmarks/neighbours.py --data mnist --data-dir FOLDER --json

Times include features, votes and nothing else; reading the files is left out. Certified accuracy is against inserted
and deleted examples (symmetric difference) by the plain rule for a score: a label keeps its lead while each of r
changes costs it at most one unit. Kernels were picked from a grid by their results on the last 2,000 *training* images
with the others as examples; `--held-out` shows these results.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

from mithridate.core.votes import Votes
from mithridate.data.examples import Examples
from mithridate.data.named import load_named
from mithridate.defences._nearness import StoredExamples
from mithridate.defences.kernel import FULL_WEIGHT, Exponential, Kernel, Within, kernel_votes
from mithridate.defences.neighbours import neighbour_votes
from mithridate.features import OrientedGradients

RADII = (0, 10, 50, 80, 150, 300, 500, 1000, 1500, 2000)
NEIGHBOURS = 100
HELD_OUT = 2000
KERNELS: dict[str, dict[str, Kernel]] = {
    "mnist": {
        "plain exponential": Exponential(0.2),
        "default": Exponential(0.03, 0.75),
        "within": Within(0.7),
    },
    "fashion-mnist": {
        "plain exponential": Exponential(0.2),
        "default": Exponential(0.03, 0.75),
        "within": Within(0.75),
    },
    "cifar10": {
        "plain exponential": Exponential(0.4),
        "default": Exponential(0.06, 0.4),
        "within": Within(0.35),
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=tuple(KERNELS), default="mnist")
    parser.add_argument("--data-dir", type=Path, help="folder with the files of the data set")
    parser.add_argument(
        "--held-out", action="store_true", help="vote on the end of the training set, not on the test set"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    results = measure(arguments.data, arguments.data_dir, held_out=arguments.held_out)
    print(json.dumps(results, indent=2) if arguments.json else table(results))


def measure(name: str, folder: Path | None, *, held_out: bool) -> dict[str, Any]:
    train, test = load_named(name, data_dir=folder, download=folder is None)
    if held_out:
        train, test = train.part(slice(-HELD_OUT)), train.part(slice(-HELD_OUT, None))
    results: dict[str, Any] = {
        "data": name,
        "examples": len(train.x),
        "inputs": len(test.x),
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "radii": RADII,
        "kernels": {},
    }
    for title, kernel in KERNELS[name].items():
        start = time.perf_counter()
        votes = kernel_votes(stored(train), (test.x, test.y), kernel=kernel)
        results["kernels"][title] = {
            **kernel.to_dict(),
            "seconds": time.perf_counter() - start,
            "certified": certified(votes),
        }
    start = time.perf_counter()
    votes = neighbour_votes(stored(train), (test.x, test.y), neighbours=NEIGHBOURS)
    results["neighbours"] = {
        "neighbours": NEIGHBOURS,
        "seconds": time.perf_counter() - start,
        "accuracy": float((votes.counts.argmax(axis=1) == votes.labels).mean()),
    }
    results["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return results


def stored(train: Examples) -> StoredExamples:
    return StoredExamples.of(train, OrientedGradients(), 10)


def certified(votes: Votes) -> list[float]:
    """Share of inputs with the right label that keeps its lead at each radius."""
    labels = np.asarray(votes.labels)
    rows = np.arange(votes.examples)
    # The right label wins a tie against larger ones only.
    needed = (np.arange(votes.classes) < labels[:, None]).astype(np.int64)
    leads = votes.counts[rows, labels][:, None] - votes.counts - needed
    leads[rows, labels] = np.iinfo(np.int64).max
    lead = leads.min(axis=1)
    return [round(float((lead >= radius * FULL_WEIGHT).mean()), 4) for radius in RADII]


def table(results: dict[str, Any]) -> str:
    lines = [
        f"{results['data']}: {results['examples']:,} examples, {results['inputs']:,} inputs; {results['machine']}",
        "",
    ]
    lines.append(f"{'certified at r =':24}" + "".join(f"{radius:>7}" for radius in RADII) + "     time")
    for title, found in results["kernels"].items():
        lines.append(f"{title:24}" + "".join(f"{v:7.3f}" for v in found["certified"]) + f"{found['seconds']:7.1f} s")
    nearest = results["neighbours"]
    lines.append(
        f"{nearest['neighbours']} nearest neighbours: accuracy {nearest['accuracy']:.3f}, {nearest['seconds']:.1f} s"
    )
    lines.append(f"largest memory: {results['peak_gib']:.2f} GiB")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
