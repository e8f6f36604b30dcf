"""What audits by attack came to: a table from raw results alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from aaai2023.tables import listed, table

HERE = Path(__file__).parent
TITLES = {
    "digits": "digits",
    "adult": "adult",
    "reuters": "Reuters",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10, EfficientNet-Lite0",
}
METHODS = {
    "nearest-neighbours": "nearest neighbours",
    "kernel-vote": "kernel vote",
    "ridge": "ridge",
    "dpa": "DPA",
    "run-off-election": "run-off election",
    "finite-aggregation": "finite aggregation",
    "bagging": "bagging",
    "fdp": "f-DP ensemble",
    "label-smoothing": "label smoothing",
}
_HEAD = (
    "data", "examples, inputs", "method", "claims checked", "poisoned sets", "broken", "radius", "best attack",
    "attack / radius", "not unanimous", "control broken", "minutes",
)  # fmt: skip
_WORDS = (0, 2, 10)
_MOVING_HEAD = (
    "data", "method", "change of the input", "claims checked", "broken", "attacked", "radius", "best attack", "flipped",
    "control broken",
)  # fmt: skip
_MOVING_WORDS = (0, 1, 9)


class Audits:
    """The raw results of a folder; every file is read once."""

    def __init__(self, folder: Path = HERE / "results") -> None:
        self._folder = folder

    @cached_property
    def found(self) -> list[dict[str, Any]]:
        """What every audit said, by data set and method."""
        return _read(self._folder)

    @cached_property
    def moving(self) -> list[dict[str, Any]]:
        """The same of audits in which inputs move, too."""
        return _read(self._folder / "moving")


def _read(folder: Path) -> list[dict[str, Any]]:
    all_of_them = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    order = list(TITLES), list(METHODS)
    return sorted(all_of_them, key=lambda each: (order[0].index(each["data"]), order[1].index(each["method"])))


def blocks(found: Audits) -> dict[str, str]:
    """The generated parts of pages."""
    if not found.found:
        return {}
    return {
        "audits": table(_HEAD, [_line(each) for each in found.found], _WORDS),
        "audits in words": _words(found.found),
        "audits where inputs move": _of_moving(found.moving),
    }


def _of_moving(found: Sequence[dict[str, Any]]) -> str:
    """A line for every change of the input, and what all of them came to."""
    lines = [_moving_line(said, row) for said in found for row in said["frontier"]]
    claims = sum(row["claims"] for said in found for row in said["frontier"])
    sets = sum(said["retrainings"] for said in found)
    broken = sum(len(said["violations"]) for said in found)
    verdict = "None is broken" if not broken else f"{broken:,} claims are broken"
    words = (
        f"In all, {claims:,} claims about inputs that move were checked under {sets:,} poisoned data sets. {verdict}."
    )
    return f"{table(_MOVING_HEAD, lines, _MOVING_WORDS)}\n{words}{_unfinished(found)}\n"


def _moving_line(said: dict[str, Any], row: dict[str, Any]) -> list[str]:
    return [
        TITLES[said["data"]],
        METHODS[said["method"]],
        f"{row['input_change']:g} ({said['input_change_of']})",
        f"{row['claims']:,}",
        f"{row['violations']:,}",
        f"{row['targets']:,}",
        "" if row["median_radius"] is None else f"{row['median_radius']:,}",
        "" if row["median_flipped_at"] is None else f"{row['median_flipped_at']:,}",
        f"{row['flipped']:,}",
        _control(said["input_change_control"]),
    ]


def _line(said: dict[str, Any]) -> list[str]:
    targets = said["targets"]
    ratios = [_ratio(each) for each in targets]
    others = [_ratio(each) for each in targets if each.get("unanimous") is False]
    return [
        TITLES[said["data"]],
        f"{said['examples']:,}, {said['inputs']:,}",
        METHODS[said["method"]],
        f"{said['claims']:,}",
        f"{said['retrainings']:,}",
        f"{len(said['violations']):,}",
        _number(_median([each["radius"] for each in targets])),
        _number(_median([_flipped(each) for each in targets])),
        _times(_median(ratios)),
        _times(_median(others)) if others else "",
        _control(said["control"]),
        f"{said['seconds'] / 60:.1f}",
    ]


def _flipped(target: dict[str, Any]) -> float:
    return float("inf") if target["flipped_at"] is None else float(target["flipped_at"])


def _ratio(target: dict[str, Any]) -> float:
    return _flipped(target) / max(target["radius"], 1)


def _median(values: Sequence[float]) -> float:
    """The lower one of an even number, as audits have it."""
    return sorted(values)[(len(values) - 1) // 2] if values else float("inf")


def _number(value: float) -> str:
    return "" if value == float("inf") else f"{value:,.0f}"


def _times(value: float) -> str:
    return "" if value == float("inf") else f"{value:.2f}"


def _control(control: dict[str, Any]) -> str:
    """Whose claims are refuted: those of the paper's rule, or the method's own times a factor."""
    if not control["has_power"]:
        return "none"
    name = control["method"]
    times = name.split(" with ")[-1].split(" ")[0]
    both = " and change" if "changes of the input" in name else ""
    return name if " with " not in name else f"{times} x radius{both}"


def _words(found: Sequence[dict[str, Any]]) -> str:
    """All audits together."""
    claims, sets = (sum(each[name] for each in found) for name in ("claims", "retrainings"))
    broken = sum(len(each["violations"]) for each in found)
    verdict = "None is broken." if not broken else f"{broken:,} are broken."
    said = f"In all, {claims:,} certified claims were checked under {sets:,} poisoned data sets. {verdict}"
    return f"{said}{_unfinished(found)}\n"


def _unfinished(found: Sequence[dict[str, Any]]) -> str:
    """Where the time was over, as a sentence with a space before it."""
    names = [f"{TITLES[each['data']]} with {METHODS[each['method']]}" for each in found if not each["finished"]]
    return f" The time was over before all was tried for {listed(names)}." if names else ""
