"""The tables of docs/choosing.md, from the comparisons in benchmarks/results.

mithridate compare benchmarks/compare.toml        (for each data set: see the file)
cp comparisons/mnist/comparison.json benchmarks/results/compare-mnist.json
python benchmarks/choosing.py                     (writes the tables into the page)
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "choosing.md"
DATA = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
_TABLES = re.compile(r"<!-- tables -->\n.*?<!-- end of tables -->\n", re.DOTALL)


def tables() -> str:
    """What stands between the two comments of the page, comments included."""
    parts = [table(DATA[name], read(name)) for name in DATA]
    return "\n".join(["<!-- tables -->", *parts, "<!-- end of tables -->", ""])


def read(name: str) -> dict[str, Any]:
    """The comparison on a data set."""
    return json.loads((ROOT / "benchmarks" / "results" / f"compare-{name}.json").read_text(encoding="utf-8"))


def table(title: str, comparison: dict[str, Any]) -> str:
    """Certified accuracy of every method at the radii of a comparison."""
    radii = [str(radius) for radius in comparison["radii"]]
    best = {r: max(m["certified_accuracy"][r] for m in comparison["methods"] if m["ranked"]) for r in radii}
    lines = [f"| {title} | {' | '.join(f'r = {int(r):,}' for r in radii)} |", f"| --- |{' ---: |' * len(radii)}"]
    for method in comparison["methods"]:
        cells = [_cell(method, radius, best[radius]) for radius in radii]
        lines.append(f"| {method['title']}{'' if method['ranked'] else ' *'} | {' | '.join(cells)} |")
    return "\n".join(["", *lines, "", comparison["headline"]])


def _cell(method: dict[str, Any], radius: str, best: float) -> str:
    share = method["certified_accuracy"][radius]
    shown = f"{share:.3f}".removeprefix("0") if share else ""
    return f"**{shown}**" if method["ranked"] and share == best > 0 else shown


def main() -> None:
    PAGE.write_text(_TABLES.sub(lambda _: tables(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
