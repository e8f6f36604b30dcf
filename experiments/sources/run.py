"""MNIST and Fashion-MNIST in 1,000 sources: what every method certifies of changed sources.

    python experiments/sources/run.py --data-dir DIR                (everything that is not there yet)
    python experiments/sources/run.py --only bagging --data mnist --held-out

Each of `methods.py` on each arrangement becomes `results/NAME.json`, how it was made and what it certifies, and
`results/NAME.npz`, the certified radius of every input, -1 where the label is wrong. What is there already is not run
again, so the command may be killed at any moment. A method that cannot certify units is skipped with a note.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from arrangements import ARRANGEMENTS, SOURCES, in_sources
from methods import FEATURES, METHODS, Compared

from mithridate import Certificate, Votes, __version__, certify
from mithridate._io.artifacts import write_npz
from mithridate._io.files import write_atomically
from mithridate.data.examples import Examples
from mithridate.data.named import load_named
from mithridate.defences import defence
from mithridate.errors import MithridateError
from mithridate.training.order import Order, RuntimeOptions, compose

HERE = Path(__file__).parent
RESULTS = HERE / "results"
RADII = (0, 10, 20, 50, 100)
CLASSES = 10
# How much of the training set the constants were chosen on, and compared on the rest.
_FITTED = 50_000
_LOOKED_AT = (
    "Methods, features and constants were chosen by fitting on one part of the training set and comparing on another: "
    "a look at the data that the certificate does not account for."
)


@dataclass(frozen=True)
class Cell:
    """One method on one arrangement of one set of images.

    Attributes:
        data: the set.
        arrangement: of its images in sources; None: every image by itself.
        method: by its name in `METHODS`.
        cap: the most images of a source that enter; None: the default.
    """

    data: str
    arrangement: str | None
    method: str
    cap: int | None = None

    @property
    def name(self) -> str:
        """Of its files."""
        cap = "" if self.cap is None else f"-cap-{self.cap}"
        return f"{self.data}-{self.arrangement or 'images'}-{self.method}{cap}"

    @property
    def compared(self) -> Compared:
        """The method."""
        return METHODS[self.method]


# What a source of many images loses, beside the same learner on single images: as many on average to each model.
SIZES = [
    *(Cell("mnist", "power-law", method, cap) for method in ("dpa-250", "bagging-4") for cap in (10, 60, 10_000)),
    Cell("mnist", None, "dpa-250"),
]


def cells() -> list[Cell]:
    """All that is run."""
    shown = [Cell(data, way, method) for method in METHODS for data in FEATURES for way in ARRANGEMENTS]
    return [*shown, *SIZES]


def load(data: str, folder: str | None, *, held_out: bool) -> tuple[Examples, Examples]:
    """What is trained on and what is voted on; with `held_out` both are of the training set."""
    training, test = load_named(data, data_dir=folder)
    return (training.part(slice(_FITTED)), training.part(slice(_FITTED, None))) if held_out else (training, test)


class Shared:
    """The last votes, which a method with another rule certifies once more."""

    def __init__(self) -> None:
        self._key = ""
        self._votes: tuple[Votes, float] | None = None

    def votes(self, cell: Cell, training: Examples, test: Examples, device: str) -> tuple[Any, Votes, float]:
        """The defence, its votes, and the seconds that they took."""
        order = composed(cell, training, test, device)
        key = f"{cell.data} {cell.arrangement} {order.defence.to_dict()}"
        if key != self._key or self._votes is None:
            start = time.perf_counter()
            votes = order.run(RuntimeOptions(device=device))
            self._key, self._votes = key, (votes, time.perf_counter() - start)
        return order.defence, *self._votes


def composed(cell: Cell, training: Examples, test: Examples, device: str) -> Order:
    """What is trained in a cell."""
    found = cell.compared
    size = {"num_train": len(training.x)} if cell.arrangement is None else {"num_units": SOURCES, "unit_cap": cell.cap}
    constants = {**found.arguments(), **size}
    chosen = defence(found.method, features=found.features[cell.data], classes=CLASSES, **constants)
    given = training if cell.arrangement is None else in_sources(training, cell.arrangement)
    return compose(chosen, given, test, assumptions=[_LOOKED_AT], device=device)


def measured(cell: Cell, training: Examples, test: Examples, device: str, shared: Shared) -> dict[str, Any]:
    """Train and certify; the note of a result, and under `radius` what is certified of every input."""
    trained, votes, seconds = shared.votes(cell, training, test, device)
    rule = trained.rule() if cell.compared.rule is None else defence(cell.compared.rule).rule()
    found = certify(votes, method=rule, threat="edit")
    return {**about(cell, found), "seconds": round(seconds, 1), "defence": trained.to_dict()}


def about(cell: Cell, found: Certificate) -> dict[str, Any]:
    """What a certificate says, as plain values; a wrong label counts as a radius of minus one."""
    truth = found.votes.labels
    assert truth is not None
    radius = np.where(found.label == truth, found.radius, -1)
    return {
        "name": cell.name,
        "data": cell.data,
        "arrangement": cell.arrangement,
        "method": cell.method,
        "unit": None if found.votes.unit is None else found.votes.unit.to_dict(),
        "threat": found.threat.value,
        "failure_prob": found.failure_prob,
        "inputs": len(radius),
        "accuracy": {str(r): round(float(np.mean(radius >= r)), 4) for r in RADII},
        "median": int(np.floor(np.median(radius))),
        "largest": int(radius.max()),
        "python": platform.python_version(),
        "mithridate": __version__,
        "radius": radius,
    }


def run(folder: Path, chosen: list[Cell], data_dir: str | None, *, held_out: bool, device: str) -> None:
    """Everything of `chosen` that is not in the folder yet."""
    folder.mkdir(parents=True, exist_ok=True)
    loaded: dict[str, tuple[Examples, Examples]] = {}
    shared = Shared()
    for cell in sorted(chosen, key=lambda one: (one.data, one.arrangement or "", one.cap or 0)):
        if (folder / f"{cell.name}.json").exists():
            continue
        if cell.data not in loaded:
            loaded = {cell.data: load(cell.data, data_dir, held_out=held_out)}
        try:
            note = measured(cell, *loaded[cell.data], device, shared)
        except MithridateError as error:
            print(f"{cell.name}: skipped. {error}", flush=True)
            continue
        keep(folder, note)
        print(f"{cell.name}: {note['accuracy']}, median {note['median']}, {note['seconds']} s", flush=True)


def keep(folder: Path, note: dict[str, Any]) -> None:
    """Write the radii, then the note: a note is there only if they are."""
    radius = note.pop("radius").astype(np.int16)
    with write_atomically(folder / f"{note['name']}.npz") as file:
        write_npz(file, {"radius": radius})
    with write_atomically(folder / f"{note['name']}.json") as file:
        file.write((json.dumps(note, indent=1) + "\n").encode())


def _wanted(only: list[str], data: list[str], arrangement: list[str]) -> Iterator[Cell]:
    for cell in cells():
        ways = not arrangement or cell.arrangement in arrangement
        if cell.data in data and ways and (not only or any(cell.method.startswith(each) for each in only)):
            yield cell


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-dir", help="folder with mnist and fashion-mnist; else they are downloaded")
    parser.add_argument("--only", nargs="+", default=[], help="methods whose names start like this")
    parser.add_argument("--data", nargs="+", default=list(FEATURES), choices=list(FEATURES))
    parser.add_argument("--arrangement", nargs="+", default=[], choices=list(ARRANGEMENTS))
    parser.add_argument("--held-out", action="store_true", help="train and vote on parts of the training set")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=None, help="folder of the results")
    asked = parser.parse_args()
    out = asked.out or (Path("held-out") if asked.held_out else RESULTS)
    chosen = list(_wanted(asked.only, asked.data, asked.arrangement))
    run(out, chosen, asked.data_dir, held_out=asked.held_out, device=asked.device)


if __name__ == "__main__":
    main()
