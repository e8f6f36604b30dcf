"""How long every rule takes to certify 10,000 points from their votes, and `verify` to check them by another route.

    python benchmarks/rules.py --json
    python benchmarks/rules.py dpa nearest-neighbours       # some of them

Either should take at most 30 s on two cores, for every rule. Votes are random, of sizes that the peers have: 1,000
instances, 1,200 partitions, 300 x 4 overlapping ones, 3,500 neighbours of 50,000 examples, 60,000 examples in a sum of
kernels. Curves of f-DP are computed anew. Seconds are those of the clock and, in brackets, of the processor, which
other programs do not stretch.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mithridate import ADP, FDP, RDP, SampledGaussian, Subsampled, Threat, Votes, certify, verify
from mithridate.core.mechanism import Mechanism
from mithridate.defences.bagging import Bagged
from mithridate.defences.kernel import KernelSum
from mithridate.defences.neighbours import NearestExamples
from mithridate.defences.partitions import Partitioned, RunOffRule, SpreadPartitions, SpreadParts
from mithridate.defences.ridge import LeastSquares
from mithridate.defences.smoothing import FeatureNoiseRule, NoisyFeatures, NoisyLabels
from mithridate.defences.spread_election import SpreadRunOffRule
from mithridate.defences.statistical import statistical_dp

POINTS, CLASSES = 10_000, 10
GAUSSIAN = SampledGaussian(3.0, 0.001, 1000)


class Claimed(NamedTuple):
    """What is certified: how its votes are made, and the options of `certify`."""

    votes: Callable[[], Votes]
    options: Mapping[str, Any] = {}


RULES: dict[str, Claimed] = {
    "fdp": Claimed(lambda: votes(GAUSSIAN, 1000), {"method": FDP(cached=False)}),
    "fdp, half kept": Claimed(lambda: votes(Subsampled(0.5, GAUSSIAN), 1000), {"method": FDP(cached=False)}),
    "rdp": Claimed(lambda: votes(GAUSSIAN, 1000), {"method": RDP("mixture", complement=True)}),
    "rdp-paper": Claimed(lambda: votes(GAUSSIAN, 1000), {"method": RDP("paper")}),
    "rdp-standard": Claimed(lambda: votes(GAUSSIAN, 1000), {"method": RDP("standard")}),
    "adp": Claimed(lambda: votes(GAUSSIAN, 1000), {"method": ADP()}),
    "bagging": Claimed(lambda: votes(Bagged(60_000, 100), 1000)),
    "label-smoothing": Claimed(lambda: votes(NoisyLabels(0.63, CLASSES), 1000)),
    "feature-smoothing": Claimed(lambda: votes(NoisyFeatures(0.5), 1000), {"method": FeatureNoiseRule(0.5)}),
    "dpa": Claimed(lambda: votes(Partitioned(1200), 1200)),
    "run-off-election": Claimed(lambda: ranked(1200), {"method": RunOffRule()}),
    "finite-aggregation": Claimed(lambda: spread(300, 4)),
    "run-off-finite-aggregation": Claimed(lambda: spread_rankings(300, 4), {"method": SpreadRunOffRule()}),
    "nearest-neighbours": Claimed(lambda: neighbours(3500)),
    "nearest-neighbours, remove": Claimed(lambda: neighbours(3500), {"threat": Threat.REMOVE}),
    "nearest-neighbours, 3 scales": Claimed(lambda: neighbours((3500, 900, 150), (700, 450))),
    "kernel-vote": Claimed(lambda: kernel(60_000)),
    "kernel-vote, remove": Claimed(lambda: kernel(60_000), {"threat": Threat.REMOVE}),
    "ridge": Claimed(lambda: ridge()),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which rules (all): {', '.join(RULES)}")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    seconds: dict[str, Any] = {}
    for name, found in timings(arguments.names or list(RULES)):
        seconds[name] = found
        if not arguments.json:
            columns = (f"{what} {took['clock']:6.2f} s ({took['processor']:.2f} s)" for what, took in found.items())
            print(f"{name:30} {'   '.join(columns)}", flush=True)
    if arguments.json:
        print(json.dumps({"points": POINTS, "classes": CLASSES, "seconds": seconds}, indent=2))


def timings(names: list[str]) -> Iterator[tuple[str, dict[str, dict[str, float]]]]:
    """Seconds of every rule, by name."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "certificate.json"
        for name in names:
            made, options = RULES[name].votes(), RULES[name].options
            begin = used()
            certify(made, **options).save(path)
            certified = used()
            del made
            outcome = verify(path)
            checked = used()
            assert outcome.valid, outcome.checks
            yield name, {"certify": _between(begin, certified), "verify": _between(certified, checked)}
    if names == list(RULES):
        made, begin = votes(GAUSSIAN, 1000), used()
        statistical_dp(made)
        yield "statistical-dp", {"certify": _between(begin, used())}


def used() -> tuple[float, float]:
    """Seconds of the clock, and those that this process has used of all cores."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter(), usage.ru_utime + usage.ru_stime


def _between(first: tuple[float, float], second: tuple[float, float]) -> dict[str, float]:
    return {"clock": second[0] - first[0], "processor": second[1] - first[1]}


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


def labels(total: int) -> npt.NDArray[np.uint8]:
    """The labels that so many models or examples vote for, points x total."""
    edges, generator = np.cumsum(shares(), axis=1)[:, :-1], np.random.default_rng(3)
    return np.stack([np.searchsorted(edge, generator.random(total)).astype(np.uint8) for edge in edges])


def counted(table: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
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


def spread_rankings(partitions: int, times: int) -> Votes:
    """Votes of overlapping parts, and how each model ranks the labels that it does not vote for: at random."""
    plain, random = spread(partitions, times), np.random.default_rng(7)
    table = plain.evidence["predictions"]
    rankings = np.empty((*table.shape, CLASSES), dtype=np.uint8)
    for row, said in enumerate(table):
        scores = random.random(rankings.shape[1:], dtype=np.float32)
        np.put_along_axis(scores, said[:, None].astype(np.intp), -1.0, axis=1)
        rankings[row] = scores.argsort(axis=1)
    return replace(plain, evidence={"rankings": rankings})


def neighbours(count: int | tuple[int, ...], leads: tuple[int, ...] = ()) -> Votes:
    """Labels of twice as many neighbours as vote."""
    most = count if isinstance(count, int) else count[0]
    table = labels(2 * most)
    return Votes(counted(table[:, :most]), NearestExamples(count, leads=leads), evidence={"order": table})


def kernel(examples: int) -> Votes:
    """Scores of weights up to 1024, and the weights of the label's own examples."""
    unit = 1024
    own = np.random.default_rng(4).multinomial(examples // CLASSES, np.full(unit + 1, 1 / (unit + 1)), POINTS)
    scores = np.rint(shares() * 1000).astype(np.int64)
    top = own @ np.arange(unit + 1)
    scores = np.column_stack([top, np.minimum(scores[:, 1:] * unit, top[:, None] - 1)])
    return Votes(scores, KernelSum(unit), evidence={"own": own})


def ridge() -> Votes:
    """Scores, and what changes take from each lead."""
    one, generator = 1 << 20, np.random.default_rng(5)
    scores = np.rint(shares() * one).astype(np.int64)
    scores -= scores.min(axis=1, keepdims=True)
    costs = {"offset": (0, 100), "slope": (100, 10_000), "limit": (1, 5_000)}
    evidence = {name: generator.integers(*ends, scores.shape) for name, ends in costs.items()}
    return Votes(scores, LeastSquares(one), evidence=evidence)


if __name__ == "__main__":
    main()
