"""Training data and input changed together: tables from raw results alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aaai2023.tables import table

HERE = Path(__file__).parent
TITLES = {
    "mnist-fdp": "MNIST, f-DP ensemble",
    "mnist-fdp-less-noise": "MNIST, f-DP ensemble, less noise",
    "mnist-bagging": "MNIST, bagging",
    "mnist-dpa": "MNIST, DPA",
    "mnist-neighbours": "MNIST, nearest neighbours",
    "mnist-kernel": "MNIST, kernel vote",
    "cifar10-neighbours": "CIFAR-10, nearest neighbours",
}
RADII = ("0", "10", "50", "100", "200")
PIXELS = ("0", "0.1", "0.25", "0.5")
FEATURES = ("0", "0.02", "0.05", "0.1")


def found(folder: Path = HERE / "results") -> dict[str, dict[str, Any]]:
    """What every run said, by its name."""
    files = {path.stem: path for path in folder.glob("*.json")}
    return {name: json.loads(files[name].read_text(encoding="utf-8")) for name in TITLES if name in files}


def blocks(runs: dict[str, dict[str, Any]]) -> dict[str, str]:
    """The generated parts of pages."""
    noisy = {name: run for name, run in runs.items() if run["input_noise"] is not None}
    compared = {name: run for name, run in runs.items() if run["input_noise"] is None}
    kinds = (("backdoors in pixels", noisy, PIXELS), ("backdoors in features", compared, FEATURES))
    return {block: _table(some, changes) for block, some, changes in kinds if some}


def _table(runs: dict[str, dict[str, Any]], changes: tuple[str, ...]) -> str:
    head = ("method", "inputs", "noise", "E", *(f"r = {radius}" for radius in RADII), "votes, certificates")
    lines = [_line(name, run, change) for name, run in runs.items() for change in changes]
    return table(head, lines, (0,))


def _line(name: str, run: dict[str, Any], change: str) -> list[str]:
    noise, seconds = run["input_noise"], run["seconds"]
    shares = [f"{run['accuracy'][change][radius]:.3f}".lstrip("0") for radius in RADII]
    deviation = "" if noise is None else f"{noise['deviation']:g}"
    times = f"{seconds['votes']:,.0f} s, {seconds['certificates']:,.0f} s" if change == "0" else ""
    return [TITLES[name], f"{run['inputs']:,}", deviation, change, *shares, times]
