"""The methods that are compared, each with one set of constants for all arrangements.

Another method is another line of `METHODS`. Constants were chosen on the training sets alone: fitted on the first
50,000 images, in 1,000 sources of 50, and compared on the last 10,000 (`run.py --held-out`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# Fixed features of each set of images; neighbours and kernels compare more cells of digits.
FEATURES: dict[str, Any] = {"mnist": "oriented-gradients", "fashion-mnist": "object-gradients"}
_CELLS = {**FEATURES, "mnist": {"name": "oriented-gradients", "cells": 7}}


@dataclass(frozen=True)
class Compared:
    """A method with its constants.

    Attributes:
        title: for a table.
        method: by the name of its defence.
        constants: of the defence, beside the numbers of units and classes, which all are given.
        features: of each set.
        is_learnt: whether each model is a linear discriminant with a shrunken covariance, for a few hundred images.
        rule: the method whose rule certifies the votes, if it is another one.
    """

    title: str
    method: str
    constants: dict[str, Any] = field(default_factory=dict[str, Any])
    features: dict[str, Any] = field(default_factory=lambda: FEATURES)
    is_learnt: bool = False
    rule: str | None = None

    def arguments(self) -> dict[str, Any]:
        """The constants as the defence takes them."""
        if not self.is_learnt:
            return self.constants
        from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

        return {**self.constants, "learner": LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.3)}


def _private(signal: int, rows: int) -> Compared:
    """A private ensemble of linear models by its signal A = q n sqrt(T) / s.

    Args:
        signal: A.
        rows: images of a source whose mean gradient is clipped.
    """
    steps, noise, clip, logit_noise = 20, 4.0, 0.1, 0.7
    constants = {
        "instances": 1000,
        "sample_rate": signal * noise / steps**0.5 / 1000,
        "noise_multiplier": noise,
        "steps": steps,
        "max_grad_norm": clip,
        "learning_rate": logit_noise * signal / (steps * clip),
        "average_iterates": True,
        "model": "linear",
        "unit_rows": rows,
    }
    return Compared(f"private ensemble, A = {signal}, means of {rows} images", "fdp", constants)


_250 = {"partitions": 250}
METHODS = {
    "dpa-250": Compared("DPA, 250 parts", "dpa", _250, is_learnt=True),
    "run-off-election-250": Compared(
        "Run-Off Election, 250 parts", "dpa", _250, is_learnt=True, rule="run-off-election"
    ),
    "dpa-500": Compared("DPA, 500 parts", "dpa", {"partitions": 500}, is_learnt=True),
    "dpa-1000": Compared("DPA, 1,000 parts", "dpa", {"partitions": 1000}, is_learnt=True),
    "finite-aggregation-250": Compared(
        "Finite Aggregation, 250 parts, each spread over 4",
        "finite-aggregation",
        {**_250, "spread": 4},
        is_learnt=True,
    ),
    "bagging-4": Compared("bagging, 4 sources each", "bagging", {"draws": 4, "instances": 1000}, is_learnt=True),
    "bagging-6": Compared("bagging, 6 sources each", "bagging", {"draws": 6, "instances": 1000}, is_learnt=True),
    "nearest-neighbours-180": Compared("180 nearest sources", "nearest-neighbours", {"neighbours": 180}, _CELLS),
    "nearest-neighbours-350": Compared("350 nearest sources", "nearest-neighbours", {"neighbours": 350}, _CELLS),
    "kernel-vote": Compared("kernel vote of sources", "kernel-vote", {}, _CELLS),
    "private-50": _private(50, 60),
    "private-100": _private(100, 60),
    "private-300": _private(300, 60),
    "private-50-of-8": _private(50, 8),
}
