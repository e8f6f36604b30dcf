"""What certificates are worth on the features of pretrained encoders: tables from raw results alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from aaai2023.tables import share, table
from beyond.tables import TASKS, Beyond

HERE = Path(__file__).parent
RADII = (0, 10, 50, 100, 200, 300, 500, 1000)
_FEW = (0, 10, 50, 100, 300, 500)
_NEIGHBOURS = ("neighbours-0", "neighbours-10", "neighbours-50", "neighbours-200", "neighbours-500")
_PRIVATE = ("private-0", "private-50", "private-100")
_FEW_LABELS = ("few-labels-0", "few-labels-10")


_ABOUT = """\
The same certificates on the features of EfficientNet-Lite2, a small network that was trained on ImageNet-1k and comes
inside a package of the Python registry. **These claims rest on that encoder**: they are conditional on
`trusted-encoder`. The last 5,000 training images of CIFAR-10 are trusted: they choose every constant, calibrate the
encoder without their labels, and are not trained on. The other 45,000 are trained on. Each recipe below voted on the
test images once (`experiments/embeddings/cifar10.py`, an H200).
"""
_READING = """\
*Own directions* need no trusted images: centre and directions follow from the weights. *Calibrated* ones are the 64
directions in which the trusted images vary most, those in which they vary less counting more; *not whitened*, 32 of
them that count alike. Several scales in one recipe are not close to the best at large radii; 4,500 neighbours alone are
closer.
"""
_ABOUT_CONDITIONING = """\
What centre and directions buy, on the trusted images (350 and 2,000 neighbours; 300 private models with a signal of
400, their votes taken as those of 10,000). Nothing here was tested.
"""
_AFTER_CONDITIONING = """\
For private models 32 directions that are not whitened do best from a radius of 50 on. That was measured after the test
images had been used, so no recipe above has them.
"""
_ABOUT_TEXTS = """\
Texts (`experiments/embeddings/texts.py`), by nearest neighbours. One in ten of the training texts is trusted and not
trained on. Reuters R8 has classes of 35 to 2,431 examples; reviews of films are hard for any method that compares whole
texts.
"""


class Embeddings:
    """The raw results of a folder; every answer is computed once."""

    def __init__(self, folder: Path = HERE) -> None:
        self._folder = folder

    @cached_property
    def results(self) -> dict[str, dict[str, Any]]:
        """What was tested, with which constants, by name."""
        return self._json("results")

    def _json(self, name: str) -> dict[str, Any]:
        return json.loads((self._folder / f"{name}.json").read_text(encoding="utf-8"))

    @property
    def conditioning(self) -> dict[str, Any]:
        """What centre and directions buy."""
        return self._json("conditioning")

    @property
    def texts(self) -> dict[str, Any]:
        """The sets of texts."""
        return self._json("texts")

    def accuracy(self, name: str, radii: Sequence[int] = RADII) -> npt.NDArray[np.float64]:
        """Certified accuracy, from the labels and radii of all test inputs."""
        with np.load(self._folder / "tested" / f"{name}.npz", allow_pickle=False) as raw:
            correct, reach = raw["label"] == raw["truth"], raw["radius"]
        return np.array([np.mean(correct & (reach >= radius)) for radius in radii])

    def best(self, names: Sequence[str], radii: Sequence[int] = RADII) -> npt.NDArray[np.float64]:
        """For each radius what that recipe reaches which certified most of the trusted images; the test has no say."""
        chosen = [max(names, key=lambda name: self.results[name]["trusted"][RADII.index(r)]) for r in radii]
        return np.array([self.accuracy(name, [r])[0] for name, r in zip(chosen, radii, strict=True)])


def blocks(found: Embeddings, beyond: Beyond) -> dict[str, str]:
    """The generated parts of pages."""
    return {
        "encoders": _cifar(found, beyond),
        "conditioning": _conditioning(found),
        "encoded texts": _texts(found),
        "encoder summary": _summary(found, beyond),
    }


def _line(title: str, values: Sequence[float] | npt.NDArray[np.float64]) -> list[str]:
    return [title, *(share(value) if value > 0 else "" for value in values)]


def _before(beyond: Beyond, radii: Sequence[int]) -> npt.NDArray[np.float64]:
    """The best on CIFAR-10 without any encoder that was trained."""
    task = next(task for task in TASKS if task.name == "cifar10")
    return np.max([curve.certified.accuracy(radii) for curve in beyond.curves(task) if curve.is_sound], axis=0)


def _cifar(found: Embeddings, beyond: Beyond) -> str:
    lines = [
        _line("without pretraining, the best recipe for each radius", _before(beyond, RADII)),
        _line("neighbours, the best recipe for each radius", found.best(_NEIGHBOURS)),
        *(_line(f"- {_recipe(found, name)}", found.accuracy(name)) for name in _NEIGHBOURS),
        _line(f"- several scales: {_recipe(found, 'scales')}", found.accuracy("scales")),
        _line("DP ensemble, 10,000 instances, the best recipe for each radius", found.best(_PRIVATE)),
        *(_line(f"- {_recipe(found, name)}", found.accuracy(name)) for name in _PRIVATE),
        _line("5,000 labels in all: neighbours, the best for each radius", found.best(_FEW_LABELS)),
        _line(f"labels alone are changed: {_recipe(found, 'labels')}", found.accuracy("labels")),
    ]
    head = ["CIFAR-10, EfficientNet-Lite2", *(f"r = {radius:,}" for radius in RADII)]
    flips = found.results["labels"]["median"]
    sentence = (
        f"Against changed labels the median radius is {flips:g} flips, where a wrong prediction counts as -1. Of the "
        "5,000 labels, 4,500 are trained on and 500 choose the number of neighbours.\n"
    )
    return "\n".join([_ABOUT, table(head, lines), sentence, _READING])


def _recipe(found: Embeddings, name: str) -> str:
    about = found.results[name]
    features = about["features"]
    if "recipe" in about:
        signal, steps, clip, noise = about["recipe"]
        return f"signal {signal:g}, {steps:g} steps, clip {clip:g}, logit noise {noise:g}; {features}"
    neighbours = about["neighbours"]
    counts = f"{neighbours:,}" if isinstance(neighbours, int) else ", ".join(f"{each:,}" for each in neighbours)
    leads = f", leads {', '.join(map(str, about['leads']))}" if "leads" in about else ""
    return f"{counts} neighbours{leads}; {features}"


def _conditioning(found: Embeddings) -> str:
    said = found.conditioning
    radii = said["radii"]
    columns = [("350", (0, 10, 100)), ("2000", (0, 100, 300)), ("private", (0, 50, 200))]
    names = {"350": "350 neighbours", "2000": "2,000 neighbours", "private": "private"}
    head = ["features", *(f"{names[kind]}, r = {radius}" for kind, few in columns for radius in few)]
    lines = [
        _line(row["features"], [row[kind][radii.index(radius)] for kind, few in columns for radius in few])
        for row in said["rows"]
    ]
    return "\n".join([_ABOUT_CONDITIONING, table(head, lines), _AFTER_CONDITIONING])


def _texts(found: Embeddings) -> str:
    said = found.texts
    head = ["set, features, neighbours", *(f"r = {radius}" for radius in said["radii"]), "balanced, r = 0"]
    lines = []
    for one in said["sets"]:
        lines.append([f"**{one['set']}**, {one['n']:,} examples; baseline", share(one["baseline"]), *[""] * 5])
        for row in one["rows"]:
            title = f"{row['features']}, {row['neighbours']}"
            lines.append([*_line(title, row["accuracy"]), share(row["balanced"][0])])
    return "\n".join([_ABOUT_TEXTS, table(head, lines)])


def _summary(found: Embeddings, beyond: Beyond) -> str:
    lines = [
        _line("CIFAR-10, no pretraining", _before(beyond, _FEW)),
        _line("CIFAR-10, neighbours ‡", found.best(_NEIGHBOURS, _FEW)),
        _line("CIFAR-10, DP ensemble ‡", found.best(_PRIVATE, _FEW)),
    ]
    return table(["certified accuracy", *(f"r = {radius}" for radius in _FEW)], lines)
