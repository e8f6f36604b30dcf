"""How long training takes with units, beside the same method without, at an equal number of rows in a batch.

    python benchmarks/units.py                       # all methods, on the CPU
    python benchmarks/units.py fdp dpa --json

The data is random: 6,000 rows, each a unit by itself or in 600 units of ten. A model of either kind sees as many rows:
a part is of as many, a draw of bagging is one row or a unit of ten, and a batch of private training holds 240 rows on
average, of which a unit contributes eight. Private training should take at most 1.3 times as long with units. Each time
is the least of several, taken in turns: on a CPU that of this process on all cores, which others do not stretch, else
that of the clock.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mithridate.data.examples import Examples
from mithridate.data.units import Units
from mithridate.defences import defence
from mithridate.errors import MithridateError
from mithridate.training.order import Order, RuntimeOptions, compose

ROWS, OF_A_UNIT, COLUMNS, CLASSES, INPUTS = 6_000, 10, 100, 10, 500
UNITS = ROWS // OF_A_UNIT
_BATCH, _UNIT_ROWS = 240, 8
_PRIVATE = {"instances": 100, "noise_multiplier": 4.0, "steps": 20, "max_grad_norm": 0.5, "learning_rate": 1.0}


@dataclass(frozen=True)
class Timed:
    """A method in two forms that see as many rows.

    Attributes:
        method: by the name of its defence.
        shared: constants of both.
        plain: without units.
        by_unit: with units of ten rows.
        shape: of an input.
    """

    method: str
    shared: dict[str, Any]
    plain: dict[str, Any]
    by_unit: dict[str, Any]
    shape: tuple[int, ...] = (COLUMNS,)


def _private(model: str, shape: tuple[int, ...], **constants: Any) -> Timed:
    plain = {"sample_rate": _BATCH / ROWS}
    by_unit = {"sample_rate": _BATCH / _UNIT_ROWS / UNITS, "unit_rows": _UNIT_ROWS}
    return Timed("fdp", {**_PRIVATE, "model": model, "features": "none", **constants}, plain, by_unit, shape)


_LEARNER = {"learner": "logistic"}
METHODS = {
    "dpa": Timed("dpa", {"partitions": 60, **_LEARNER}, {}, {}),
    "bagging": Timed("bagging", {"instances": 60, **_LEARNER}, {"draws": 100}, {"draws": 10}),
    "nearest-neighbours": Timed("nearest-neighbours", {"neighbours": 100, "features": "none"}, {}, {}),
    "kernel-vote": Timed("kernel-vote", {"features": "unit-norm"}, {}, {}),
    "fdp": _private("linear", (COLUMNS,)),
    "fdp-lenet5": _private("lenet5", (1, 28, 28), instances=4, steps=10),
}


def order(timed: Timed, *, units: int | None, device: str) -> Order:
    """What is timed: without units, or with so many."""
    random = np.random.default_rng(0)
    x = random.standard_normal((ROWS + INPUTS, *timed.shape)).astype(np.float32)
    y = random.integers(0, CLASSES, len(x))
    training, test = Examples(x[:ROWS], y[:ROWS]), Examples(x[ROWS:], y[ROWS:])
    if units is None:
        chosen = defence(timed.method, num_train=ROWS, classes=CLASSES, **timed.shared, **timed.plain)
        return compose(chosen, training, test, device=device)
    constants = timed.by_unit if units == UNITS else timed.plain
    chosen = defence(timed.method, num_units=units, classes=CLASSES, **timed.shared, **constants)
    names = [f"unit {number % units}" for number in range(ROWS)]
    return compose(chosen, replace(training, units=Units.of(names)), test, device=device)


def measure(timed: Timed, repeats: int, device: str) -> dict[str, float]:
    """Seconds without units, with units of ten rows, and with units of one row."""
    forms: dict[str, Callable[[], Order]] = {
        "without units": lambda: order(timed, units=None, device=device),
        f"units of {OF_A_UNIT}": lambda: order(timed, units=UNITS, device=device),
        "units of 1": lambda: order(timed, units=ROWS, device=device),
    }
    ready = {name: make() for name, make in forms.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ready}
    clock = time.process_time if device == "cpu" else time.perf_counter
    for turn in range(repeats + 1):
        for name, each in ready.items():
            start = clock()
            each.run(RuntimeOptions(device=device))
            if turn:  # the first is to get warm
                seconds[name].append(clock() - start)
    return {name: round(min(each), 3) for name, each in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("methods", nargs="*", default=[], help=f"some of {', '.join(METHODS)}")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    results: dict[str, Any] = {
        "computer": platform.machine(),
        "device": asked.device,
        "python": platform.python_version(),
    }
    for name in asked.methods or METHODS:
        try:
            seconds = measure(METHODS[name], asked.repeats, asked.device)
        except MithridateError as error:
            print(f"{name}: skipped. {error}", flush=True)
            continue
        plain, by_unit, of_one = seconds.values()
        results[name] = {**seconds, "ratio": round(by_unit / plain, 2), "ratio of 1": round(of_one / plain, 2)}
        if not asked.json:
            print(
                f"{name}: {plain} s without units; {by_unit / plain:.2f} times that with units of {OF_A_UNIT}, "
                f"{of_one / plain:.2f} with units of 1",
                flush=True,
            )
    if asked.json:
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
