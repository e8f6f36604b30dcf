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
    "cifar10-fdp-0.06": "CIFAR-10, f-DP ensemble, pretrained encoder",
    "cifar10-fdp-0.12": "CIFAR-10, f-DP ensemble, pretrained encoder",
    "cifar10-fdp-0.25": "CIFAR-10, f-DP ensemble, pretrained encoder",
    "cifar10-neighbours": "CIFAR-10, nearest neighbours",
    "cifar10-encoder-neighbours": "CIFAR-10, nearest neighbours, pretrained encoder",
}
RADII = ("0", "10", "50", "100", "200")
PIXELS = ("0", "0.1", "0.25", "0.5")
SMALL_PIXELS = ("0", "0.03", "0.06", "0.12")
FEATURES = ("0", "0.02", "0.05", "0.1")


def found(folder: Path = HERE / "results") -> dict[str, dict[str, Any]]:
    """What every run said, by its name."""
    files = {path.stem: path for path in folder.glob("*.json")}
    return {name: json.loads(files[name].read_text(encoding="utf-8")) for name in TITLES if name in files}


def blocks(runs: dict[str, dict[str, Any]]) -> dict[str, str]:
    """The generated parts of pages."""
    noisy = {name: run for name, run in runs.items() if run["input_noise"] is not None}
    digits = {name: run for name, run in noisy.items() if run["data"] == "mnist"}
    photographs = {name: run for name, run in noisy.items() if run["data"] == "cifar10"}
    compared = {name: run for name, run in runs.items() if run["input_noise"] is None}
    kinds = (
        ("backdoors in pixels", digits, PIXELS),
        ("backdoors in photographs", photographs, SMALL_PIXELS),
        ("backdoors in features", compared, FEATURES),
    )
    return {block: _table(some, changes) for block, some, changes in kinds if some}


def noise_block(folder: Path = HERE / "results") -> dict[str, str]:
    """How accurate one model is on noisy photographs."""
    rows = json.loads((folder / "cifar10-noise.json").read_text(encoding="utf-8"))["rows"]
    head = ("noise of the pixels", "taken out first", "least squares", "60 neighbours")
    lines = [
        [
            f"{row['noise']:g}",
            "yes" if row["denoise"] else "no",
            *(f"{row[name]:.3f}".lstrip("0") for name in ("linear", "neighbours")),
        ]
        for row in rows
    ]
    return {"photographs under noise": table(head, lines)}


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
