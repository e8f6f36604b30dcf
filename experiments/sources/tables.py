"""What is certified of changed sources: tables from raw results alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from aaai2023.tables import listed, share, table
from sources.arrangements import ARRANGEMENTS, SOURCES, sizes
from sources.methods import METHODS

from mithridate.core.units import Unit

HERE = Path(__file__).parent
RADII = (0, 10, 20, 50, 100)
REAL_RADII = (0, 1, 2, 5, 10, 20)
TITLES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
# What always the same label scores, at every radius.
_BASELINES = {"mnist": 0.1135, "fashion-mnist": 0.1}
REAL_METHODS = {
    "dpa": "DPA, logistic",
    "finite-aggregation": "Finite Aggregation, logistic",
    "bagging": "bagging, logistic",
    "nearest-neighbours": "nearest units",
    "kernel-vote": "kernel vote",
    "private": "private ensemble",
}
REAL_SETS = (
    "ratings",
    "pupils",
    "reviews",
    "speeches",
    "air-day",
    "air-month",
    "tweets-day",
    "tweets-week",
    "tweets-month",
)
_IMAGES = 60_000
_OF_CAPS = ("dpa-250", "bagging-4")
_CAPS = (10, 60, None, 10_000)
_DEFAULT_CAP = 1000


class Sources:
    """The raw results of two folders; every file is read once."""

    def __init__(self, folder: Path = HERE) -> None:
        self._folder = folder

    @cached_property
    def notes(self) -> dict[str, dict[str, Any]]:
        """How every result came about, by name: those of images, and those of real sets behind `real/`."""
        paths = [*sorted(self._folder.glob("results/*.json")), *sorted(self._folder.glob("real/*.json"))]
        found: dict[str, dict[str, Any]] = {}
        for path in paths:
            name = path.stem if path.parent.name == "results" else f"real/{path.stem}"
            found[name] = json.loads(path.read_text(encoding="utf-8"))
        return found

    def radius(self, name: str) -> npt.NDArray[np.int16]:
        """The certified radius of every input, -1 where the label is wrong."""
        path = self._folder / f"{name}.npz" if name.startswith("real/") else self._folder / "results" / f"{name}.npz"
        with np.load(path, allow_pickle=False) as raw:
            return raw["radius"]

    def accuracy(self, name: str, radii: Sequence[int]) -> list[float]:
        """Certified accuracy."""
        radius = self.radius(name)
        return [float(np.mean(radius >= r)) for r in radii]


def blocks(found: Sources) -> dict[str, str]:
    """The generated parts of pages."""
    return {"sources": images(found), "source sizes": caps(found), "real sources": real(found)}


# --- images in sources ------------------------------------------------------------------------------------------------


def images(found: Sources) -> str:
    """A table for each set and arrangement."""
    parts = [_arrangement(found, data, way) for data in TITLES for way in ARRANGEMENTS]
    return "\n".join([*filter(None, parts), _not_run(found)])


def _arrangement(found: Sources, data: str, way: str) -> str:
    names = [(f"{data}-{way}-{method}", one.title) for method, one in METHODS.items()]
    names = [(name, title) for name, title in names if name in found.notes]
    if not names:
        return ""
    rows = [found.accuracy(name, RADII) for name, _ in names]
    best = np.max(rows, axis=0)
    lines = []
    for (name, title), row in zip(names, rows, strict=True):
        note = found.notes[name]
        cells = [_cell(value, value == top > _BASELINES[data]) for value, top in zip(row, best, strict=True)]
        lines.append([title, *cells, f"{note['median']}, {note['largest']}"])
    head = [f"{TITLES[data]}, {ARRANGEMENTS[way]}", *(f"r = {r}" for r in RADII), "median, largest"]
    return table(head, lines)


def _cell(value: float, best: bool) -> str:
    return f"**{_plain(value)}**" if best else _plain(value)


def _not_run(found: Sources) -> str:
    run = {note["method"] for note in found.notes.values() if note.get("arrangement")}
    missing = [one.title for method, one in METHODS.items() if method not in run]
    return f"Not run: {listed(missing)}.\n" if missing else ""


def caps(found: Sources) -> str:
    """What a cap on the images of a source costs and buys, where sizes follow a power law."""
    size = sizes("power-law", _IMAGES)
    largest = np.sort(size)[::-1]
    tenth = int(largest[: SOURCES // 10].sum())
    about = (
        f"Sizes by the power law: the largest source has {largest[0]:,} images, the median one {int(np.median(size))}, "
        f"and the largest {SOURCES // 10} have {tenth / _IMAGES:.0%} of all.\n"
    )
    lines = [line for method in _OF_CAPS for line in _capped(found, method, size)]
    if "mnist-images-dpa-250" in found.notes:
        row = found.accuracy("mnist-images-dpa-250", RADII)
        lines.append([f"{METHODS['dpa-250'].title}, of single images: r counts images", "100%", *map(_plain, row)])
    head = ["MNIST, sizes by a power law", "images that enter", *(f"r = {r}" for r in RADII)]
    return about + "\n" + table(head, lines)


def _capped(found: Sources, method: str, size: npt.NDArray[np.int64]) -> list[list[str]]:
    lines: list[list[str]] = []
    for cap in _CAPS:
        name = f"mnist-power-law-{method}" + ("" if cap is None else f"-cap-{cap}")
        if name in found.notes:
            most = cap or _DEFAULT_CAP
            enter = np.minimum(size, most).sum() / _IMAGES
            row = found.accuracy(name, RADII)
            lines.append(
                [f"{METHODS[method].title}, at most {most:,} images of a source", f"{enter:.0%}", *map(_plain, row)]
            )
    return lines


def _plain(value: float) -> str:
    return share(value) if value else ""


# --- real sources -----------------------------------------------------------------------------------------------------


def real(found: Sources) -> str:
    """A table for each real set."""
    return "\n".join([*filter(None, (_real_set(found, name) for name in REAL_SETS)), _real_sizes(found)])


def _real_set(found: Sources, name: str) -> str:
    note = found.notes.get(f"real/{name}")
    if note is None:
        return ""
    units = note["unit"]["count"]
    shares = [(part, max(1, int(np.ceil(part * units)))) for part in (0.01, 0.05)]
    radii = [*REAL_RADII, *(r for _, r in shares)]
    lines = [
        ["the commonest label", *[share(note["baseline"])] * len(radii)],
        ["one model of all, no certificate", share(note["plain"])],
    ]
    lines[1] += [""] * (len(radii) - 1)
    for method, title in REAL_METHODS.items():
        if f"real/{name}-{method}" in found.notes:
            lines.append([title, *map(_plain, found.accuracy(f"real/{name}-{method}", radii))])
    head = [_about(note), *(f"r = {r}" for r in REAL_RADII), *(f"{part:.0%} (r = {r})" for part, r in shares)]
    return table(head, lines)


def _about(note: dict[str, Any]) -> str:
    units, (least, _, median, _, most) = Unit(**note["unit"]), note["sizes"]
    return f"{note['title']}; {units.counted(units.count)} of {least:,} to {most:,} rows, median {median:,}"


def _real_sizes(found: Sources) -> str:
    forms = {"-cap-3": "at most 3 rows of a unit", "-cap-10": "at most 10 rows", "": "at most 1,000 rows"}
    lines: list[list[str]] = []
    for name in REAL_SETS:
        for method in ("dpa", "bagging"):
            for ending, words in {**forms, "-examples": "single rows: r counts rows"}.items():
                key = f"real/{name}-{method}{ending}"
                if key in found.notes and f"real/{name}-{method}-cap-3" in found.notes:
                    row = found.accuracy(key, REAL_RADII)
                    lines.append([f"{name}: {REAL_METHODS[method]}, {words}", *map(_plain, row)])
    return table(["what large units lose", *(f"r = {r}" for r in REAL_RADII)], lines) if lines else ""
