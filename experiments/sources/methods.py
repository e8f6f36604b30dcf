"""The methods that are compared, each with one set of constants for all arrangements.

Another method is another line of `METHODS`. Constants were chosen on the training sets alone: fitted on the first
50,000 images, in 1,000 sources of 50, and compared on the last 10,000 (`run.py --held-out`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

# Fixed features of each set of images; the learners, the private models and the kernel share them.
FEATURES = {"mnist": "oriented-gradients", "fashion-mnist": "object-gradients"}
# A linear discriminant with a shrunken covariance, for a few hundred images.
_LEARNER = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.3)


@dataclass(frozen=True)
class Compared:
    """A method with its constants.

    Attributes:
        title: for a table.
        method: by the name of its defence.
        constants: of the defence, beside the numbers of units and classes, and features, which all are given.
        rule: the method whose rule certifies the votes, if it is another one.
        inputs: how many test inputs are voted on at most.
        own: constants of one set of images.
    """

    title: str
    method: str
    constants: dict[str, Any] = field(default_factory=dict[str, Any])
    rule: str | None = None
    inputs: int = 10_000
    own: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])


def _signal(signal: int, steps: int = 20, noise: float = 4.0, clip: float = 0.2, logit_noise: float = 1.0) -> Compared:
    """A private ensemble of linear models by its signal A = q n sqrt(T) / s; the step size follows from the noise."""
    batch = signal * noise / steps**0.5
    constants = {
        "instances": 1000,
        "sample_rate": batch / 1000,
        "noise_multiplier": noise,
        "steps": steps,
        "max_grad_norm": clip,
        "learning_rate": logit_noise * signal / (steps * clip),
        "average_iterates": True,
        "model": "linear",
    }
    return Compared(f"private ensemble, A = {signal}", "fdp", constants)


METHODS = {
    "dpa-250": Compared("DPA, 250 parts", "dpa", {"partitions": 250, "learner": _LEARNER}),
    "run-off-election-250": Compared(
        "Run-Off Election, 250 parts", "dpa", {"partitions": 250, "learner": _LEARNER}, rule="run-off-election"
    ),
    "dpa-500": Compared("DPA, 500 parts", "dpa", {"partitions": 500, "learner": _LEARNER}),
    "dpa-1000": Compared("DPA, 1,000 parts", "dpa", {"partitions": 1000, "learner": _LEARNER}),
    "finite-aggregation-250": Compared(
        "Finite Aggregation, 250 parts spread over 4",
        "finite-aggregation",
        {"partitions": 250, "spread": 4, "learner": _LEARNER},
    ),
    "bagging-4": Compared("bagging, 4 sources each", "bagging", {"draws": 4, "instances": 1000, "learner": _LEARNER}),
    "bagging-6": Compared("bagging, 6 sources each", "bagging", {"draws": 6, "instances": 1000, "learner": _LEARNER}),
    "nearest-neighbours-100": Compared("100 nearest sources", "nearest-neighbours", {"neighbours": 100}, inputs=2000),
    "nearest-neighbours-170": Compared("170 nearest sources", "nearest-neighbours", {"neighbours": 170}, inputs=2000),
    "kernel-vote": Compared("kernel vote of sources", "kernel-vote", inputs=2000),
    "private-50": _signal(50),
    "private-100": _signal(100),
    "private-300": _signal(300),
}
