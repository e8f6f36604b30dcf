"""Speed of training the models of rival defences: many at once, without privacy, and their votes on a test set.

    python benchmarks/rivals.py --what dpa --device cuda --json
    python benchmarks/rivals.py --what bagging --data mnist.npz        (arrays x, y, x_test, y_test)

LeNet-5 on 50 images each (`dpa`: 1,200 parts of 60,000) or on 500 draws each (`bagging`: 1,000 models). The time is
that of the whole call: hashing, rehearsal, compilation of kernels, training, and the votes on 10,000 test images.
Without --data the images are random, which no timing depends on.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from train import Memory, machine  # the benchmark beside this one

from mithridate.core.votes import Votes
from mithridate.defences.bagging import Bootstrap
from mithridate.defences.partitions import Parts, SpreadParts
from mithridate.training.config import PRECISIONS, PlainConfig, PlainRecipe, ViewPlan
from mithridate.training.order import RuntimeOptions
from mithridate.training.run import by_hand, carry_out

CLASSES = 10
MODELS = {"dpa": 1200, "finite-aggregation": 1200, "bagging": 1000}
ROOT_SEED = bytes(range(32))


def main() -> None:
    arguments = parse()
    results = benchmark(arguments)
    if arguments.json:
        print(json.dumps(results, indent=2))
        return
    accuracy = results["majority_accuracy"]
    print(
        f"{results['what']} on {results['machine']['device']}: {results['models']} models in "
        f"{results['seconds']:.1f} s, {results['model_steps_per_s']:,.0f} model-steps/s, "
        f"peak memory {results['peak_memory_gib']:.2f} GiB"
        + ("" if accuracy is None else f", majority accuracy {accuracy:.4f}")
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=tuple(MODELS), default="dpa")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", choices=PRECISIONS, default="auto")
    parser.add_argument("--models", type=int, help="models that are trained; by default as many as the peers have")
    parser.add_argument("--draws", type=int, default=500, help="examples that each bagged model draws")
    parser.add_argument("--spread", type=int, default=4, help="how many models of finite aggregation see an example")
    parser.add_argument("--steps", type=int, help="steps of each model; by default those of PlainConfig")
    parser.add_argument("--in-flight", type=int, help="models trained at once; by default from the memory there is")
    parser.add_argument("--data", type=Path, help="an .npz with x, y, x_test and y_test; random images without it")
    parser.add_argument("--run-dir", type=Path, help="where the run is kept; in memory by default")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def benchmark(arguments: argparse.Namespace) -> dict[str, Any]:
    config = PlainConfig(classes=CLASSES)
    if arguments.steps is not None:
        config = replace(config, steps=arguments.steps)
    plan = plan_of(arguments)
    training_set, test_set = load(arguments.data)
    memory = Memory(torch.device(arguments.device))
    start = time.perf_counter()
    seed = None if plan.is_deterministic else ROOT_SEED
    order = by_hand(training_set, test_set, model="lenet5", config=PlainRecipe.of(config, plan), root_seed=seed)
    runtime = RuntimeOptions(arguments.run_dir, arguments.device, arguments.in_flight, arguments.precision)
    votes = carry_out(order, runtime)
    seconds = time.perf_counter() - start
    return {
        "what": arguments.what,
        "models": plan.models,
        "seconds": seconds,
        "model_steps_per_s": plan.models * config.steps / seconds,
        "majority_accuracy": None if arguments.data is None else accuracy(votes),
        "peak_memory_gib": memory.peak_gib(),
        "test_inputs": votes.examples,
        "settings": {"plan": plan.to_dict(), "config": asdict(config), "precision": arguments.precision},
        "machine": machine(torch.device(arguments.device)),
    }


def plan_of(arguments: argparse.Namespace) -> ViewPlan:
    count = arguments.models or MODELS[arguments.what]
    if arguments.what == "dpa":
        return Parts(count)
    if arguments.what == "finite-aggregation":
        return SpreadParts(max(1, count // arguments.spread), arguments.spread)
    return Bootstrap(count, arguments.draws)


def load(path: Path | None) -> tuple[Any, Any]:
    if path is not None:
        with np.load(path) as arrays:
            return (arrays["x"], arrays["y"]), (arrays["x_test"], arrays["y_test"])
    random = np.random.default_rng(0)
    x, x_test = (random.integers(0, 256, (count, 28, 28), dtype=np.uint8) for count in (60_000, 10_000))
    return (x, random.integers(0, CLASSES, 60_000)), x_test


def accuracy(votes: Votes) -> float | None:
    return None if votes.labels is None else float((votes.counts.argmax(axis=1) == votes.labels).mean())


if __name__ == "__main__":
    main()
