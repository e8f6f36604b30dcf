"""Small defences whose votes are known beforehand, for tests of what compares them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mithridate import Certificate, ConfigError, SampledGaussian, Threat, Votes, certify
from mithridate.core.mechanism import Bagged, KernelSum, Mechanism, NoisyLabels, Partitioned
from mithridate.defences.statistical_bound import StatisticalBound, statistical_dp

EVERY = tuple(threat for threat in Threat)
POINTS = 40
LABELS = np.arange(POINTS) % 2
TRAIN = (np.arange(200, dtype=np.float32).reshape(100, 2), np.arange(100) % 2)
TEST = (np.arange(2 * POINTS, dtype=np.float32).reshape(POINTS, 2), LABELS)
GAUSSIAN = SampledGaussian(20.0, 1.0, 4)


def counts_for(top: np.ndarray, total: int) -> np.ndarray:
    """Votes of which the true label gets `top`."""
    counts = np.empty((POINTS, 2), dtype=np.int64)
    counts[np.arange(POINTS), LABELS] = top
    counts[np.arange(POINTS), 1 - LABELS] = total - top
    return counts


@dataclass(frozen=True)
class Fake:
    """A defence with fixed votes.

    Attributes:
        name: of the method.
        mechanism: of the votes.
        counts: the votes.
        title: see `Defence`.
        threats: see `Defence`.
        fails: what `train` raises.
    """

    name: str
    mechanism: Mechanism
    counts: Any
    title: str = ""
    threats: tuple[Threat, ...] = EVERY
    fails: BaseException | None = None
    per_prediction = True
    # What was trained, in order; shared by all.
    trained: ClassVar[list[str]] = []
    seen: ClassVar[list[dict[str, Any]]] = []

    @property
    def recipe(self) -> dict[str, Any]:
        return {"mechanism": self.mechanism.to_dict(), "counts": np.asarray(self.counts).tolist()}

    def train(self, training_set: Any, test_set: Any, *, run_dir: Any = None, **options: Any) -> Votes:
        if self.fails is not None:
            raise self.fails
        path = None if run_dir is None else Path(run_dir) / "votes.npz"
        if path is not None and path.exists():
            return Votes.load(path)
        Fake.trained.append(self.name)
        Fake.seen.append(options)
        progress = options.get("progress")
        if progress is not None:
            progress(1, 2)
            progress(2, 2)
        votes = Votes(np.asarray(self.counts), self.mechanism, assumptions=tuple(options["assumptions"]))
        if path is not None:
            path.parent.mkdir(parents=True)
            path.with_name("run.json").touch()  # a run that could go on
            votes.save(path)
        return votes

    def certify(self, votes: Votes, **claim: Any) -> Certificate | StatisticalBound:
        return certify(votes, **claim)


@dataclass(frozen=True)
class FakeBagging(Fake):
    """More draws, more points that are clearly right."""

    name: str = "bagging"
    mechanism: Mechanism = field(default_factory=lambda: Bagged(100, 10))
    counts: Any = None
    draws: int = 10

    def __post_init__(self) -> None:
        right = np.arange(POINTS) < POINTS * self.draws / 100
        object.__setattr__(self, "mechanism", Bagged(100, self.draws))
        object.__setattr__(self, "counts", counts_for(np.where(right, 1000, 0), 1000))
        object.__setattr__(self, "title", f"bagging, {self.draws} draws")


@dataclass(frozen=True)
class FakeMean(Fake):
    """A bound on mean accuracy."""

    per_prediction = False

    def certify(self, votes: Votes, **claim: Any) -> StatisticalBound:
        return statistical_dp(votes, threat=claim["threat"], failure_prob=claim["failure_prob"])


def parts(total: int = 41, name: str = "dpa", **options: Any) -> Fake:
    """Votes of parts: radii from 0 to half their number."""
    top = np.linspace(total // 2 + 1, total, POINTS).astype(int)
    options.setdefault("title", f"DPA, {total} partitions")
    return Fake(name, Partitioned(total), counts_for(top, total), **options)


def kernel(scale: int = 400, right: int = 30, **options: Any) -> Fake:
    """Sums of kernels: fewer points are right, and these to larger radii."""
    scores = np.where(np.arange(POINTS) < right, np.linspace(100, scale, POINTS).astype(int), 0)
    counts = counts_for(scores, 0)
    counts[counts < 0] = 0
    counts[np.arange(POINTS) >= right, 1 - LABELS[right:]] = 1
    options.setdefault("title", "kernel vote")
    return Fake("kernel-vote", KernelSum(1), counts, **options)


def private(name: str = "fdp", kind: type[Fake] = Fake, **options: Any) -> Fake:
    """Votes of private instances."""
    top = np.linspace(600, 1000, POINTS).astype(int)
    options.setdefault("title", f"{name} on votes")
    return kind(name, GAUSSIAN, counts_for(top, 1000), **options)


def labels_only(**options: Any) -> Fake:
    """Certifies label flips only."""
    top = np.linspace(600, 1000, POINTS).astype(int)
    options = {"title": "label smoothing", "threats": (Threat.LABELS,), **options}
    return Fake("label-smoothing", NoisyLabels(0.3, 2), counts_for(top, 1000), **options)


def failing(message: str = "There is no such thing; leave it out.") -> Fake:
    """Comes to no result."""
    return Fake("finite-aggregation", Partitioned(3), counts_for(np.full(POINTS, 3), 3), fails=ConfigError(message))
