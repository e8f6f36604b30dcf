"""How long every rule takes to certify 10,000 points from their votes: at most 5 s each, on one core.

    python benchmarks/rules.py --json

Votes are random, of sizes that the peers have: 1,000 instances, 1,200 partitions, 300 x 4 overlapping ones, 2,000
neighbours, 60,000 examples in a sum of kernels. Curves of f-DP are computed anew.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate import ADP, FDP, RDP, SampledGaussian, Threat, Votes, certify
from mithridate.accounting import Method
from mithridate.core.mechanism import Mechanism
from mithridate.defences.bagging import Bagged
from mithridate.defences.kernel import KernelSum
from mithridate.defences.neighbours import NearestExamples
from mithridate.defences.partitions import Partitioned, RunOffRule, SpreadPartitions, SpreadParts
from mithridate.defences.smoothing import FeatureNoiseRule, NoisyFeatures, NoisyLabels
from mithridate.defences.statistical import statistical_dp

POINTS, CLASSES = 10_000, 10
GAUSSIAN = SampledGaussian(3.0, 0.001, 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    seconds = dict(timings())
    if parser.parse_args().json:
        print(json.dumps({"points": POINTS, "classes": CLASSES, "seconds": seconds}, indent=2))
        return
    for name, took in seconds.items():
        print(f"{name:20} {took:6.2f} s")


def timings() -> Iterator[tuple[str, float]]:
    """Seconds of every rule, by name."""
    private = votes(GAUSSIAN, 1000)
    methods: dict[str, Method] = {
        "fdp": FDP(cached=False),
        "rdp": RDP("mixture", complement=True),
        "rdp-paper": RDP("paper"),
        "rdp-standard": RDP("standard"),
        "adp": ADP(),
    }
    for name, method in methods.items():
        yield name, timed(certify, private, method=method)
    yield "statistical-dp", timed(statistical_dp, private)
    yield "bagging", timed(certify, votes(Bagged(60_000, 100), 1000))
    yield "dpa", timed(certify, votes(Partitioned(1200), 1200))
    yield "label-smoothing", timed(certify, votes(NoisyLabels(0.63, CLASSES), 1000))
    yield "feature-smoothing", timed(certify, votes(NoisyFeatures(0.5), 1000), method=FeatureNoiseRule(0.5))
    yield "run-off-election", timed(certify, ranked(1200), method=RunOffRule())
    yield "finite-aggregation", timed(certify, spread(300, 4))
    yield "nearest-neighbours", timed(certify, neighbours(2000))
    yield "kernel-vote", timed(certify, kernel(60_000))
    yield "kernel-vote, remove", timed(certify, kernel(60_000), threat=Threat.REMOVE)


def timed(work: Callable[..., object], found: Votes, **options: Any) -> float:
    """Seconds of a call."""
    begin = time.perf_counter()
    work(found, **options)
    return time.perf_counter() - begin


def shares() -> npt.NDArray[np.float64]:
    """How votes are shared out: the true label first, by any margin."""
    draws = np.random.default_rng(1)
    top = draws.uniform(0.2, 1.0, POINTS)
    rest = draws.dirichlet(np.ones(CLASSES - 1), POINTS) * (1 - top)[:, None]
    return np.column_stack([top, rest])


def votes(mechanism: Mechanism, total: int) -> Votes:
    """Votes of so many models."""
    counts = np.random.default_rng(2).multinomial(total, shares())
    return Votes(counts, mechanism, labels=np.zeros(POINTS, np.int64))


def labels(total: int) -> npt.NDArray[np.int64]:
    """The labels that so many models or examples vote for, points x total."""
    edges = np.cumsum(shares(), axis=1)[:, :-1]
    draws = np.random.default_rng(3).random((POINTS, total))
    return np.stack([np.searchsorted(edge, row) for edge, row in zip(edges, draws, strict=True)])


def counted(table: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How often each label occurs in each row."""
    return np.stack([(table == label).sum(axis=1) for label in range(CLASSES)], axis=1)


def ranked(total: int) -> Votes:
    """Votes with preferences: whoever does not vote for one of two labels prefers either as often."""
    counts = votes(Partitioned(total), total).counts
    neither = total - counts[:, :, None] - counts[:, None, :]
    preferences = counts[:, :, None] + neither // 2
    upper = np.triu(np.ones((CLASSES, CLASSES), np.bool_), 1)
    preferences = np.where(upper, total - preferences.transpose(0, 2, 1), preferences)
    preferences[:, np.arange(CLASSES), np.arange(CLASSES)] = 0
    return Votes(counts, Partitioned(total), evidence={"preferences": preferences})


def spread(partitions: int, times: int) -> Votes:
    """Votes of overlapping parts."""
    plan = SpreadParts(partitions, times)
    table = labels(plan.instances)
    return Votes(counted(table), SpreadPartitions(partitions, plan.offsets), evidence={"predictions": table})


def neighbours(count: int) -> Votes:
    """Labels of twice as many neighbours as vote."""
    table = labels(2 * count)
    return Votes(counted(table[:, :count]), NearestExamples(count), evidence={"order": table})


def kernel(examples: int) -> Votes:
    """Scores of weights up to 1024, and the weights of the label's own examples."""
    unit = 1024
    own = np.random.default_rng(4).multinomial(examples // CLASSES, np.full(unit + 1, 1 / (unit + 1)), POINTS)
    scores = np.rint(shares() * 1000).astype(np.int64)
    top = own @ np.arange(unit + 1)
    scores = np.column_stack([top, np.minimum(scores[:, 1:] * unit, top[:, None] - 1)])
    return Votes(scores, KernelSum(unit), evidence={"own": own})


if __name__ == "__main__":
    main()
