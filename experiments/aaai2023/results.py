"""Every certified radius that docs/results.md and its figures show, computed from the raw votes and nothing else."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from aaai2023 import paper_rules
from scipy import stats

from mithridate import Votes, certify
from mithridate.accounting import ADP, FDP, RDP, Method
from mithridate.accounting.rdp import PaperDivergence, largest_after
from mithridate.core.mechanism import Random, SampledGaussian, Threat
from mithridate.defences.bagging import Bagged
from mithridate.defences.statistical import StatisticalBound, statistical_dp
from mithridate.projects import read_project

HERE = Path(__file__).parent
RAW = HERE / "raw"
PUBLISHED: dict[str, Any] = json.loads((HERE / "published.json").read_text(encoding="utf-8"))

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

# Sound rules by the names that the tables use.
SOUND: dict[str, Method] = {"rdp": RDP(group="mixture"), "adp": ADP(), "fdp": FDP()}


@dataclass(frozen=True)
class Row:
    """A row of the paper's table.

    Attributes:
        key: data set and model, as the raw results are named.
        title: for people.
        sigma: the noise multiplier at which methods are compared.
        sigmas: those of the curves.
        radii: those of the table of certified accuracies.
    """

    key: str
    title: str
    sigma: str
    sigmas: tuple[str, ...]
    radii: tuple[int, ...]

    @property
    def main(self) -> str:
        """The run that all methods are compared at."""
        return self.run(self.sigma)

    def run(self, sigma: str) -> str:
        """The name of the run with some noise."""
        return f"{self.key}-sigma{sigma}"


_GRID = ("1", "2", "3", "4")
_FAR, _NEAR = (0, 20, 50, 80, 100, 140, 200), (0, 1, 2, 4, 6, 8, 10, 12)
ROWS = (
    Row("mnist-lenet5", "MNIST, LeNet-5", "3", _GRID, _FAR),
    Row("fashion-mnist-lenet5", "Fashion-MNIST, LeNet-5", "3", _GRID, _FAR),
    Row("cifar10-opa-tut", "CIFAR-10, Opa-tut", "3", _GRID, _NEAR),
    Row("cifar10-resnet18", "CIFAR-10, ResNet-18", "0.2", ("0.2",), _NEAR),
)


@dataclass(frozen=True, eq=False)
class Certified:
    """Certified radii of all test points, -1 where the label is wrong or nothing is certified."""

    radius: IntArray

    @cached_property
    def median(self) -> float:
        """The median over all points."""
        return float(np.median(self.radius))

    @cached_property
    def largest(self) -> int:
        """The largest radius of a point whose label is right."""
        return int(self.radius.max())

    def accuracy(self, radii: Iterable[int]) -> FloatArray:
        """The share of points that are right and certified at least to each radius."""
        return np.array([np.mean(self.radius >= radius) for radius in radii], dtype=np.float64)


class Results:
    """The runs of a folder, and what can be certified from their votes; every answer is computed once."""

    def __init__(self, folder: Path = RAW) -> None:
        self.folder = folder
        self._votes: dict[str, Votes] = {}
        self._certified: dict[Any, Certified] = {}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The runs whose votes are there."""
        return tuple(sorted((path.stem for path in self.folder.glob("*.npz")), key=_place))

    def has(self, name: str) -> bool:
        """Whether a run is there, with at least half of its instances: fewer say little, and are not shown."""
        return name in self.names and 2 * self.votes(name).instances >= self.wanted(name)

    def is_complete(self, name: str) -> bool:
        """Whether a run is there with all of its instances."""
        return name in self.names and self.votes(name).instances >= self.wanted(name)

    def wanted(self, name: str) -> int:
        """How many instances the configuration of a run asks for; 0 where it has none of its own."""
        path = self.folder.parent / f"{name}.toml"
        return int(read_project(path).options["instances"]) if path.exists() else 0

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows whose main run is there."""
        return tuple(row for row in ROWS if self.has(row.main))

    def votes(self, name: str) -> Votes:
        """The votes of a run."""
        if name not in self._votes:
            self._votes[name] = Votes.load(self.folder / f"{name}.npz")
        return self._votes[name]

    def note(self, name: str) -> dict[str, Any]:
        """How a run was made; empty where nobody noted it."""
        path = self.folder / f"{name}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def by_paper(self, name: str, rule: str, on: str, *, valid_bounds: bool = False) -> Certified:
        """Radii by the paper's own rules: `rdp` or `adp`, on `votes` or `scores`; with its bounds or valid ones."""
        key = (name, rule, on, valid_bounds)
        return self._once(key, lambda votes: paper_rules.radii(votes, rule, on=on, valid_bounds=valid_bounds))

    def sound(self, name: str, rule: str, on: str) -> Certified:
        """Radii by a sound rule, with bounds that hold for the label that leads."""
        return self.by_method(name, SOUND[rule], on)

    def by_method(self, name: str, method: Method, on: str = "votes") -> Certified:
        """Radii by any of the library's methods, with its default bounds."""
        return self._once((name, method, on), lambda votes: _right(votes, method=method, on=on))

    def by_bounds(self, name: str, bounds: str) -> Certified:
        """Radii by f-DP on votes, by confidence bounds of one kind."""
        return self._once((name, "bounds", bounds), lambda votes: _right(votes, method=FDP(), bounds=bounds))

    def bagging(self, name: str, *, as_published: bool) -> Certified:
        """Radii of a bagging run: as its authors have them, or against insertions and deletions as all others here."""
        if as_published:
            options = {"bounds": "simuem", "threat": Threat.EDIT}
        else:
            options = {"threat": Threat.SYMMETRIC_DIFFERENCE}
        return self._once((name, as_published), lambda votes: _right(votes, **options))

    def dpa(self, name: str) -> Certified:
        """Radii of a run of partitions, which follow from the votes alone."""
        return self._once((name,), _right)

    def on_average(self, name: str) -> StatisticalBound:
        """The bounds on the accuracy of one instance, which are about no prediction: as published, and by f-DP."""
        return statistical_dp(self.votes(name), failure_prob=paper_rules.FAILURE_PROB, delta=paper_rules.DELTA)

    def has_scores(self, row: Row) -> bool:
        """Whether the main run of a row kept sums of scores."""
        return self.votes(row.main).score_squares is not None

    def bagging_runs(self, row: Row) -> tuple[str, ...]:
        """The bagging runs of a row with enough instances beside its private ones, by the number of draws."""
        enough = self.wanted(row.main) / 2
        named = [name for name in self.names if name.startswith(f"{row.key}-bagging-")]
        found = [name for name in named if self.votes(name).instances >= enough]
        return tuple(sorted(found, key=lambda name: draws(self.votes(name))))

    def matched_bagging(self, row: Row) -> str | None:
        """The bagging run whose certified accuracy at radius 0 is nearest to that of the private ensemble."""
        wanted = self.by_paper(row.main, "rdp", "votes").accuracy([0])[0]

        def distance(name: str) -> float:
            return abs(float(self.bagging(name, as_published=True).accuracy([0])[0] - wanted))

        return min(self.bagging_runs(row), key=distance, default=None)

    def dpa_run(self, row: Row) -> str | None:
        """The run of partitions of a row."""
        return next((name for name in self.names if name.startswith(f"{row.key}-dpa-")), None)

    def _once(self, key: tuple[Any, ...], compute: Callable[[Votes], IntArray]) -> Certified:
        if key not in self._certified:
            self._certified[key] = Certified(compute(self.votes(key[0])))
        return self._certified[key]


def _place(name: str) -> tuple[int, list[str | float]]:
    """Where a run stands in a list: by row, then by name, numbers by their size."""
    row = next((place for place, row in enumerate(ROWS) if name.startswith(row.key)), len(ROWS))
    # Words and numbers take turns, so that only likes are compared.
    return row, [float(part) if part[:1].isdigit() else part for part in re.split(r"(\d+(?:\.\d+)?)", name)]


def _right(votes: Votes, **options: Any) -> IntArray:
    """Radii by the library, -1 for labels that are wrong."""
    found = certify(votes, failure_prob=paper_rules.FAILURE_PROB, **options)
    return np.where(found.label == votes.labels, found.radius, -1)


def draws(votes: Votes) -> int:
    """How many examples an instance of bagging draws."""
    assert isinstance(votes.mechanism, Bagged)
    return votes.mechanism.draws


def single_accuracy(votes: Votes) -> float:
    """The accuracy of one instance, on average."""
    assert votes.labels is not None
    return float(np.take_along_axis(votes.counts, votes.labels[:, None], axis=1).mean() / votes.instances)


def majority_accuracy(votes: Votes) -> float:
    """The accuracy of the label with most votes; of equal ones the smallest."""
    return float(np.mean(votes.counts.argmax(axis=1) == votes.labels))


# --- the mechanisms of the paper, without any votes of ours ---------------------------------------------------------


def published_mechanism(key: str) -> SampledGaussian:
    """What the paper's code ran for a row."""
    constants = PUBLISHED["mechanisms"][key]
    return SampledGaussian(constants["noise_multiplier"], constants["sample_rate"], constants["steps"])


@cache
def unanimous(mechanism: Random, method: Method | None, *, instances: int, bounds: str = "pointwise") -> int:
    """The radius of a point on which all instances agree, among ten labels: no votes can give a larger one."""
    votes = Votes.from_counts([[instances] + [0] * 9], mechanism=mechanism)
    return int(certify(votes, method=method, bounds=bounds, failure_prob=paper_rules.FAILURE_PROB).radius[0])


def best_scores(mechanism: SampledGaussian, *, instances: int, bounds: str) -> int:
    """The radius by the paper's group rule of a point on which every instance gives one of ten labels the score 1."""
    sums = np.array([[float(instances)] + [0.0] * 9])
    counts = sums.astype(np.int64)
    votes = Votes(counts, mechanism, score_sums=sums, score_squares=sums)
    found = certify(votes, method=RDP(group="paper"), on="scores", bounds=bounds, failure_prob=paper_rules.FAILURE_PROB)
    return int(found.radius[0])


def allowed_by_paper(mechanism: SampledGaussian, radius: int, probability: float) -> float:
    """How likely the paper's rule says that an event of some probability can become through `radius` changes."""
    orders, eps = PaperDivergence(mechanism, Threat.SYMMETRIC_DIFFERENCE).at(radius)
    return float(largest_after(orders, eps, np.array([probability]))[0])


def reached_by_attack(mechanism: SampledGaussian, radius: int, probability: float) -> float:
    """How likely an event of some probability does become when `radius` examples with one gradient are inserted.

    The event is that the sum of all noisy sums, along that gradient and in units of the clipping norm, exceeds a limit.
    Without the examples it is normal; with them, a binomial number of them has been added.
    """
    deviation = mechanism.noise_multiplier * math.sqrt(mechanism.steps)
    limit = deviation * float(stats.norm.isf(probability))
    sampled = np.arange(radius * mechanism.steps + 1)
    weights = stats.binom.pmf(sampled, radius * mechanism.steps, mechanism.sample_rate)
    return float(weights @ stats.norm.sf((limit - sampled) / deviation))
