"""Small defences whose votes are known beforehand, for tests of what compares them."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from mithridate import Certificate, ConfigError, SampledGaussian, Threat, Votes, certify
from mithridate.core.mechanism import Mechanism
from mithridate.core.rule import Rule, default_rule
from mithridate.defences import Defence
from mithridate.defences.bagging import Bagged
from mithridate.defences.kernel import KernelSum
from mithridate.defences.partitions import Partitioned
from mithridate.defences.smoothing import NoisyLabels
from mithridate.defences.statistical import StatisticalBound, statistical_dp
from mithridate.training.order import Choice, Facts, Order, RuntimeOptions

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


@dataclass(frozen=True, kw_only=True)
class Fake(Defence):
    """A defence with fixed votes.

    Attributes:
        name: of the method.
        mechanism: of the votes.
        counts: the votes.
        title: see `Defence`.
        threats: see `Defence`.
        fails: what `run` raises.
    """

    name: str  # pyright: ignore[reportIncompatibleVariableOverride, reportGeneralTypeIssues]
    mechanism: Mechanism
    counts: Any
    title: str = ""  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]
    threats: tuple[Threat, ...] = EVERY  # pyright: ignore[reportIncompatibleVariableOverride]
    fails: BaseException | None = None
    # What was trained, and the orders for it; shared by all.
    trained: ClassVar[list[str]] = []
    seen: ClassVar[list[Order]] = []

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name}

    @property
    def training_key(self) -> dict[str, Any]:
        return {"mechanism": self.mechanism.to_dict(), "counts": np.asarray(self.counts).tolist()}

    def choose(self, facts: Facts) -> Choice:
        return Choice(self, follows_size=False)

    def rule(self) -> Rule:
        return default_rule(self.mechanism)

    def run(self, order: Order, runtime: RuntimeOptions) -> Votes:
        if self.fails is not None:
            raise self.fails
        path = None if runtime.folder is None else runtime.folder / "votes.npz"
        if path is not None and path.exists():
            return Votes.load(path)
        Fake.trained.append(self.name)
        Fake.seen.append(order)
        if runtime.progress is not None:
            runtime.progress(1, 2)
            runtime.progress(2, 2)
        votes = Votes(np.asarray(self.counts), self.mechanism, assumptions=order.statements)
        if path is not None:
            path.parent.mkdir(parents=True)
            path.with_name("run.json").touch()  # a run that could go on
            votes.save(path)
        return votes

    def certify(self, votes: Votes, **claim: Any) -> Certificate | StatisticalBound:
        return certify(votes, method=self.rule(), **claim)


@dataclass(frozen=True, kw_only=True)
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
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class FakeMean(Fake):
    """A bound on mean accuracy."""

    per_prediction = False

    def certify(self, votes: Votes, **claim: Any) -> StatisticalBound:
        return statistical_dp(votes, threat=claim["threat"], failure_prob=claim["failure_prob"])


def parts(total: int = 41, name: str = "dpa", **options: Any) -> Fake:
    """Votes of parts: radii from 0 to half their number."""
    top = np.linspace(total // 2 + 1, total, POINTS).astype(int)
    options.setdefault("title", f"DPA, {total} partitions")
    return Fake(name=name, mechanism=Partitioned(total), counts=counts_for(top, total), **options)


def kernel(scale: int = 400, right: int = 30, **options: Any) -> Fake:
    """Sums of kernels: fewer points are right, and these to larger radii."""
    scores = np.where(np.arange(POINTS) < right, np.linspace(100, scale, POINTS).astype(int), 0)
    counts = counts_for(scores, 0)
    counts[counts < 0] = 0
    counts[np.arange(POINTS) >= right, 1 - LABELS[right:]] = 1
    options.setdefault("title", "kernel vote")
    return Fake(name="kernel-vote", mechanism=KernelSum(1), counts=counts, **options)


def private(name: str = "fdp", kind: type[Fake] = Fake, **options: Any) -> Fake:
    """Votes of private instances."""
    top = np.linspace(600, 1000, POINTS).astype(int)
    options.setdefault("title", f"{name} on votes")
    return kind(name=name, mechanism=GAUSSIAN, counts=counts_for(top, 1000), **options)


def labels_only(**options: Any) -> Fake:
    """Certifies label flips only."""
    top = np.linspace(600, 1000, POINTS).astype(int)
    options = {"title": "label smoothing", "threats": (Threat.LABELS,), **options}
    return Fake(name="label-smoothing", mechanism=NoisyLabels(0.3, 2), counts=counts_for(top, 1000), **options)


def failing(message: str = "There is no such thing; leave it out.") -> Fake:
    """Comes to no result."""
    counts = counts_for(np.full(POINTS, 3), 3)
    return Fake(name="finite-aggregation", mechanism=Partitioned(3), counts=counts, fails=ConfigError(message))
