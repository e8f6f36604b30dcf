"""Audits by attack: every claim checked under real poisoned data, and how far the best attack is from the radius.

    python experiments/audit/run.py --data-dir DIR --folder PACKAGES      (everything that is not there yet)
    python experiments/audit/run.py --only mnist/fdp --minutes 20

Each becomes `results/DATA-METHOD.json`, what `mithridate audit --json` says; where inputs move, too, it is in
`results/moving`. What is there already is not run again, and an audit that was interrupted resumes in its folder below
`--work`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mithridate import audit
from mithridate._io.files import write_atomically
from mithridate.data import read
from mithridate.data.examples import Examples
from mithridate.data.named import load_named
from mithridate.defences import defence

HERE = Path(__file__).parent
RESULTS = HERE / "results"
sys.path.append(str(HERE.parents[1] / "benchmarks"))


@dataclass(frozen=True)
class Data:
    """A data set, or as much of it as is audited in minutes on two cores.

    Attributes:
        title: for people.
        kind: `named`, one of `mithridate.data.named`; `real`, one of `benchmarks/real_sets.py`.
        train: how many training examples; 0: all.
        inputs: how many inputs are predicted; 0: all.
        methods: constants of every method that is audited on it.
        moving: the same of audits in which inputs move, too, with how far they do.
    """

    title: str
    kind: str
    train: int
    inputs: int
    methods: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    moving: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = field(
        default_factory=dict[str, tuple[dict[str, Any], tuple[float, ...]]]
    )

    def audits(self, name: str) -> Iterator[tuple[str, Path, dict[str, Any], tuple[float, ...]]]:
        """The method of every audit, where its result is, the constants, and how far inputs move."""
        for method, constants in self.methods.items():
            yield method, RESULTS / f"{name}-{method}.json", constants, ()
        for method, (constants, changes) in self.moving.items():
            yield method, RESULTS / "moving" / f"{name}-{method}.json", constants, changes


_FEW: dict[str, dict[str, Any]] = {"nearest-neighbours": {}, "kernel-vote": {}, "dpa": {}, "fdp": {}}
_LITE: dict[str, Any] = {"features": "efficientnet-lite0"}
SETS = {
    "digits": Data(
        "digits", "named", 0, 0,
        {**_FEW, "ridge": {}, "run-off-election": {}, "finite-aggregation": {}, "bagging": {}, "label-smoothing": {}},
        {
            "nearest-neighbours": ({"moving_inputs": True}, (0.02, 0.05)),
            "fdp": ({"input_noise": 0.25}, (0.1, 0.25)),
        },
    ),
    "adult": Data("adult", "real", 10_000, 2_000, _FEW),
    "reuters": Data("Reuters", "real", 5_000, 1_000, {"nearest-neighbours": {}, "dpa": {}, "fdp": {}}),
    "mnist": Data(
        "MNIST", "named", 0, 2_000, _FEW, {"nearest-neighbours": ({"moving_inputs": True}, (0.02, 0.05))}
    ),
    "fashion-mnist": Data("Fashion-MNIST", "named", 0, 2_000, {"nearest-neighbours": {}, "fdp": {}}),
    "cifar10": Data(
        "CIFAR-10", "named", 4_000, 1_000, {"nearest-neighbours": _LITE, "kernel-vote": _LITE, "fdp": _LITE}
    ),
}  # fmt: skip


@cache
def examples(name: str, data_dir: str | None, folder: str) -> tuple[Examples, Examples]:
    """The training set and the inputs of a set: the first so many of both, in a fixed random order of real rows."""
    data = SETS[name]
    if data.kind == "named":
        train, test = load_named(name, data_dir=None if data_dir is None or name == "digits" else Path(data_dir) / name)
        return _first(train, data.train), _first(test, data.inputs)
    from real_sets import declared, load  # pyright: ignore[reportMissingImports]

    frame = load(name, Path(folder)).sample(frac=1, random_state=0)
    found = read(frame, declared(name, list(frame.columns)), labels=True)
    rest = found.part(slice(data.train, data.train + data.inputs))
    return found.part(slice(0, data.train)), rest


def _first(found: Examples, count: int) -> Examples:
    return found.part(np.arange(count)) if count else found


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", help="with a folder for mnist, fashion-mnist and cifar10")
    parser.add_argument("--folder", default="packages", help="of the packages that hold real sets")
    parser.add_argument("--work", type=Path, default=Path("audits"), help="where runs and journals are kept")
    parser.add_argument("--only", nargs="*", help="such as digits or mnist/fdp")
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--targets", type=int, default=20)
    arguments = parser.parse_args()
    for name, data in SETS.items():
        for method, path, constants, changes in data.audits(name):
            wanted = arguments.only is None or name in arguments.only or f"{name}/{method}" in arguments.only
            if not wanted or path.exists():
                continue
            train, test = examples(name, arguments.data_dir, arguments.folder)
            found = audit(
                defence(method, **constants),
                train,
                test,
                targets=arguments.targets,
                input_change=changes or None,
                minutes=arguments.minutes,
                out=arguments.work / path.relative_to(RESULTS).with_suffix(""),
                progress=lambda line, at=path.stem: print(f"{at}: {line}", flush=True),
            )
            said = {"data": name, "examples": len(train.x), **found.to_dict()}
            with write_atomically(path) as file:
                file.write((json.dumps(said, indent=None) + "\n").encode())
            print(f"{path.stem}: {found.headline}", flush=True)


if __name__ == "__main__":
    main()
