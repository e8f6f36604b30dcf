"""Training data and input changed together: private ensembles, bagging and parts on noisy inputs, and neighbours.

    python experiments/backdoor/run.py --data-dir DIR [--only mnist-fdp]     # what is not there yet

Constants of the noisy recipes were chosen on the last 5,000 training images of MNIST, by models that had not seen them
(see README.md); the test set was used once. Every run leaves a file in results, with the whole frontier.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mithridate import Certificate, certify
from mithridate._io.files import write_atomically
from mithridate.data import Examples
from mithridate.data.named import load_named
from mithridate.defences import defence
from mithridate.features import OrientedGradients

HERE = Path(__file__).parent
RADII = [0, 1, 2, 5, 10, 25, 50, 75, 100, 150, 200]
PIXELS = [0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75]
FEATURES = [0, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15]

# Features of noisy digits, and private training whose noise is fit for radii up to about 150.
NOISY_DIGITS = OrientedGradients(cells=6, blur=1.2)
PRIVATE: dict[str, Any] = {
    "model": "linear",
    "features": NOISY_DIGITS,
    "noise_multiplier": 3.0,
    "sample_rate": 0.0075,
    "steps": 20,
    "max_grad_norm": 0.5,
    "learning_rate": 42.0,
}
# Data set, test inputs, method and constants, changes of the input.
RUNS: dict[str, tuple[str, int, str, dict[str, Any], list[float]]] = {
    "mnist-fdp": ("mnist", 10_000, "fdp", {**PRIVATE, "instances": 1000, "input_noise": 0.35}, PIXELS),
    "mnist-fdp-less-noise": ("mnist", 2000, "fdp", {**PRIVATE, "instances": 1000, "input_noise": 0.2}, PIXELS),
    "mnist-bagging": (
        "mnist",
        2000,
        "bagging",
        {"model": "linear", "features": NOISY_DIGITS, "draws": 100, "instances": 1000, "input_noise": 0.35},
        PIXELS,
    ),
    "mnist-dpa": (
        "mnist",
        1000,
        "dpa",
        {"model": "linear", "features": NOISY_DIGITS, "partitions": 500, "noise_draws": 200, "input_noise": 0.35},
        PIXELS,
    ),
    "mnist-neighbours": ("mnist", 2000, "nearest-neighbours", {"neighbours": 400, "moving_inputs": True}, FEATURES),
    "mnist-kernel": ("mnist", 2000, "kernel-vote", {"moving_inputs": True}, FEATURES),
    "cifar10-neighbours": (
        "cifar10",
        1000,
        "nearest-neighbours",
        {"neighbours": 100, "moving_inputs": True},
        FEATURES,
    ),
}


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="holds the folders mnist and cifar10")
    parser.add_argument("--only", choices=RUNS, help="this run alone")
    arguments = parser.parse_args()
    for name in [arguments.only] if arguments.only else RUNS:
        out = HERE / "results" / f"{name}.json"
        if not out.exists():
            said = carried_out(name, arguments.data_dir)
            out.parent.mkdir(exist_ok=True)
            with write_atomically(out) as file:
                file.write((json.dumps(said, indent=1) + "\n").encode())
            print(f"{name}: {said['accuracy']}", flush=True)


def carried_out(name: str, folder: Path) -> dict[str, Any]:
    """Train, vote and certify, with the time that each took."""
    data, inputs, method, constants, changes = RUNS[name]
    train, test = load_named(data, data_dir=folder / data)
    test = Examples(test.x[:inputs], _labels(test)[:inputs])
    made = defence(method, num_train=len(train.x), classes=10, **constants)
    votes, trained = _timed(lambda: made.train(train, test))
    certificate, certified = _timed(lambda: certify(votes, input_change=changes))
    return described(data, method, certificate, {"votes": trained, "certificates": certified})


def described(data: str, method: str, certificate: Certificate, seconds: dict[str, float]) -> dict[str, Any]:
    """What is kept of a run: the whole frontier, and how it was made."""
    votes = certificate.votes
    return {
        "data": data,
        "inputs": votes.examples,
        "method": method,
        "mechanism": votes.mechanism.to_dict(),
        "instances": votes.instances,
        "input_noise": None if votes.input_noise is None else votes.input_noise.to_dict(),
        "features": (votes.recipe or {}).get("features"),
        "threat": certificate.threat.value,
        "failure_prob": certificate.failure_prob,
        "conditions": [each.id for each in certificate.conditions],
        "input_change_of": certificate.frontier.of if certificate.frontier else None,
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "accuracy": _accuracy(certificate),
    }


def _labels(examples: Examples) -> Any:
    assert examples.y is not None
    return examples.y


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def _accuracy(certificate: Certificate) -> dict[str, dict[str, float]]:
    """The share that is correct and certified, by the change of the input and the radius."""
    assert certificate.frontier is not None
    assert certificate.votes.labels is not None
    correct = certificate.label == certificate.votes.labels
    rows = zip(certificate.frontier.changes, certificate.frontier.radius, strict=True)
    return {
        f"{change:g}": {str(radius): round(float(np.mean(correct & (row >= radius))), 4) for radius in RADII}
        for change, row in rows
    }


if __name__ == "__main__":
    main()
