"""What methods of parts certify with and without overlap, and how far the rule of overlapping parts is from an attack.

    python benchmarks/overlap.py digits mnist --test 2000
    python benchmarks/overlap.py mnist --data-dir DIR --device cuda --at 20 50 75 100

Every model is linear, on the features of its defence. `partitions` parts, and as many x `spread` models on overlapping
ones; the latter rank all labels, so that one run serves the vote and the run-off. The line "at most" of finite
aggregation is what a greedy attack leaves: no certificate of these votes can have more. The last line says on how many
inputs the linear relaxation of the attacker's problem, in which a model that two buckets share counts once, certifies
more than the theorem.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.optimize import linprog

from mithridate import Threat, Votes
from mithridate.certifying.exact import leads
from mithridate.core.rule import ExactRule
from mithridate.data.named import NAMES, load_named
from mithridate.defences import RunOffElection, SpreadRunOff
from mithridate.defences.partitions import MajorityRule, RunOffRule, SpreadPartitions, SpreadRule
from mithridate.defences.spread_election import SpreadRunOffRule

Array = npt.NDArray[Any]
# Rivals with fewer votes are not attacked for; that leaves the line "at most" too high, if anything.
_RIVALS = 4


def main() -> None:
    arguments = parse()
    for name in arguments.names:
        print(f"\n{name}\n")
        print(table(measured(name, arguments), arguments.at))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=NAMES)
    parser.add_argument("--data-dir", type=Path, help="where the files of the data sets are")
    parser.add_argument("--partitions", type=int, default=250)
    parser.add_argument("--spread", type=int, default=4)
    parser.add_argument("--test", type=int, default=10_000, help="how many of the test inputs, the first ones")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--at", type=int, nargs="+", default=[1, 10, 20, 50, 75, 100, 120], help="radii")
    parser.add_argument("--relaxed", type=int, default=20, help="on how many inputs the relaxation is solved")
    return parser.parse_args()


def measured(name: str, arguments: argparse.Namespace) -> list[tuple[str, Array]]:
    """Rows of a table: what was certified, and the radius on each test input, -1 where the label is wrong."""
    training, test = load_named(name, data_dir=arguments.data_dir)
    size = {"partitions": arguments.partitions, "classes": 10}
    assert test.y is not None
    data = (training.x, training.y), (test.x[: arguments.test], test.y[: arguments.test])
    apart = RunOffElection(**size).train(*data, device=arguments.device)
    spread = SpreadRunOff(**size, spread=arguments.spread).train(*data, device=arguments.device)
    rows = [
        ("dpa", certified(MajorityRule(), apart)),
        ("run-off-election", certified(RunOffRule(), apart)),
        ("finite-aggregation", certified(SpreadRule(), spread)),
        ("finite-aggregation, at most", attacked(spread)),
        ("run-off-finite-aggregation", certified(SpreadRunOffRule(), spread)),
    ]
    chosen = np.linspace(0, spread.examples - 1, arguments.relaxed).astype(int)
    gained = sum(relaxed(spread, row) > radii(SpreadRule(), spread)[row] for row in chosen)
    print(f"The relaxation certifies more on {gained} of {len(chosen)} inputs.\n")
    return rows


def table(rows: list[tuple[str, Array]], at: list[int]) -> str:
    lines = [f"| method | accuracy | {' | '.join(f'r = {r}' for r in at)} | median | sum |"]
    lines.append("| --- " * (len(at) + 4) + "|")
    for name, radius in rows:
        shares = " | ".join(f"{(radius >= r).mean():.4f}" for r in [0, *at])
        lines.append(f"| {name} | {shares} | {np.median(radius):g} | {radius[radius > 0].sum():,} |")
    return "\n".join(lines)


def radii(rule: ExactRule, votes: Votes) -> Array:
    return rule.decide(votes, Threat.SYMMETRIC_DIFFERENCE).radius


def certified(rule: ExactRule, votes: Votes) -> Array:
    decision = rule.decide(votes, Threat.SYMMETRIC_DIFFERENCE)
    return np.where(decision.label == votes.labels, decision.radius, -1)


def attacked(votes: Votes) -> Array:
    """One less than the buckets that a greedy attack needs, for the rivals with most votes."""
    label = votes.counts.argmax(axis=1)
    found = np.array([min(map(_greedy, _tasks(votes, row))) for row in range(votes.examples)])
    return np.where(label == votes.labels, found, -1)


def relaxed(votes: Votes, row: int) -> int:
    """What the linear relaxation certifies on an input, for the rivals with most votes."""
    return min(map(_relaxed, _tasks(votes, row)))


Task = tuple[int, Array, Array]


def _tasks(votes: Votes, row: int) -> list[Task]:
    """For each rival: the lead, what every model can take of it, and the models that see each bucket."""
    assert isinstance(votes.mechanism, SpreadPartitions)
    models, said = votes.mechanism.models, votes.evidence["predictions"][row]
    counts = votes.counts[row]
    label, seen_by = int(counts.argmax()), np.add.outer(np.arange(models), votes.mechanism.offsets) % models
    lead = leads(counts[None], np.array([label]))[0]
    rivals = [rival for rival in np.argsort(-counts, kind="stable").tolist() if rival != label][:_RIVALS]
    return [(int(lead[c]), 1 + (said == label).astype(int) - (said == c), seen_by) for c in rivals]


def _greedy(task: Task) -> int:
    """The bucket that takes most of the lead, then the one that takes most of what is left."""
    lead, of_model, seen_by = task
    left, buckets = of_model.copy(), 0
    while (taken := left[seen_by].sum(axis=1)).any():
        if lead < 0:
            break
        worst = int(taken.argmax())
        lead, buckets = lead - int(taken[worst]), buckets + 1
        left[seen_by[worst]] = 0
    return buckets - 1 if lead < 0 else len(of_model)


def _relaxed(task: Task) -> int:
    """The least x of [0, 1] for each bucket in sum so that all models together take more than the lead."""
    lead, of_model, seen_by = task
    models, buckets = len(of_model), np.repeat(np.arange(len(of_model)), seen_by.shape[1])
    seen = sparse.csr_matrix((-np.ones(seen_by.size), (seen_by.reshape(-1), buckets)), shape=(models, models))
    above = sparse.hstack([seen, sparse.eye(models)])
    enough = sparse.hstack([sparse.csr_matrix((1, models)), sparse.csr_matrix(-of_model[None].astype(float))])
    cost = np.append(np.ones(models), np.zeros(models))
    bounds = np.append(np.zeros(models), -(lead + 1))
    conditions: Any = sparse.vstack([above, enough])
    solved: Any = linprog(cost, A_ub=conditions, b_ub=bounds, bounds=(0, 1))
    return int(np.ceil(solved.fun - 1e-7)) - 1 if solved.status == 0 else models


if __name__ == "__main__":
    main()
