"""How the constants of noisy digits were chosen: 55,000 training images of MNIST, and 500 that were held out of them.

    python experiments/backdoor/tune.py --data-dir DIR      # minutes on two cores

Fifty instances vote eight times each on every held-out image. A prediction counts at (r, E) where the share of votes
for the true label exceeds Phi(sqrt((r m)^2 + (E / S)^2)) by 0.02, with m = q sqrt(T) / sigma: what a certificate needs,
but for confidence bounds.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from run import NOISY_DIGITS, PRIVATE
from scipy import special

from mithridate.data.named import load_named
from mithridate.defences import defence
from mithridate.features import OrientedGradients

HELD_OUT, INPUTS, INSTANCES, REPEATS = 5000, 500, 50, 8
PAIRS = ((0, 0.0), (50, 0.25), (100, 0.5))
TRIED: list[tuple[float, OrientedGradients, dict[str, Any]]] = [
    *((noise, NOISY_DIGITS, {}) for noise in (0.2, 0.25, 0.3, 0.35, 0.4, 0.5)),
    *((0.35, replace(NOISY_DIGITS, blur=blur), {}) for blur in (0.0, 0.8, 1.6)),
    *((0.35, replace(NOISY_DIGITS, cells=cells), {}) for cells in (4, 5, 7)),
    *((0.35, NOISY_DIGITS, {"noise_multiplier": sigma}) for sigma in (2.5, 4.0, 6.0)),
]


def main() -> None:
    """Print a line for every combination."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="holds the folder mnist")
    train, _ = load_named("mnist", data_dir=parser.parse_args().data_dir / "mnist")
    assert train.y is not None
    learnt = train.x[:-HELD_OUT], train.y[:-HELD_OUT]
    held_out, truth = np.repeat(train.x[-INPUTS:], REPEATS, axis=0), train.y[-INPUTS:]
    for noise, features, others in TRIED:
        constants = {**PRIVATE, **others, "features": features, "instances": INSTANCES, "input_noise": noise}
        made = defence("fdp", num_train=len(train.x), classes=10, **constants)
        counts = made.train(learnt, held_out).counts.reshape(INPUTS, REPEATS, 10).sum(axis=1)
        share, won = counts[np.arange(INPUTS), truth] / (INSTANCES * REPEATS), counts.argmax(axis=1) == truth
        scale = constants["sample_rate"] * constants["steps"] ** 0.5 / constants["noise_multiplier"]
        needed = [special.ndtr(np.hypot(radius * scale, change / noise)) + 0.02 for radius, change in PAIRS]
        shown = ", ".join(f"{np.mean(won & (share > least)):.3f}" for least in needed)
        print(f"noise {noise:g}, cells {features.cells}, blur {features.blur:g}, {others}: {shown}", flush=True)


if __name__ == "__main__":
    main()
