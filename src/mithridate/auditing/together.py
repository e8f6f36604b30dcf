"""The second route for what is claimed of all predictions together.

It shares no code with what certified. A proof gives multipliers and thresholds, any of which bound the number of
changed predictions; the bound is computed again, in fractions, input by input. Where there is no proof, sets of parts
are tried one after the other, depth first.

References: docs/theory.md, section 10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import numpy as np
import numpy.typing as npt

from mithridate.auditing.routes import Claim, NoSecondRouteError
from mithridate.errors import ArtifactError

_IntArray = npt.NDArray[np.int64]
# What a multiplier and a threshold are counted in, as the file has them.
_MULTIPLIERS, _THRESHOLDS = 1 << 16, 1 << 24
# Costs are rounded up to multiples of one part in so many.
_GRID = 1 << 40
# Beyond so many states, trying everything takes too long.
_MOST_STATES = 3_000_000


@dataclass(frozen=True, eq=False)
class _Input:
    """An input that some set of parts can change.

    Attributes:
        at: which one.
        wins: for each rival that can win it, how much that needs, and what every part gives towards it.
    """

    at: int
    wins: list[tuple[int, _IntArray]]


def unconfirmed_together(
    claim: Claim, claimed: Mapping[int, int], proofs: Mapping[int, _IntArray], is_within: Callable[[int], bool]
) -> list[int]:
    """The radii at which a claim about all predictions together cannot be confirmed.

    Args:
        claim: what is claimed of every example.
        claimed: how many predictions change together at most, by the radius.
        proofs: a multiplier and a threshold for each example, by the radius, where there are some.
        is_within: whether all that so many changes lead to stays within the size step.

    Raises:
        NoSecondRouteError: no other route to such a claim is known for this rule.
        ArtifactError: what the claim rests on is missing or contradicts itself.
    """
    offsets, models = _parts_of(claim)
    predictions = _predictions_of(claim, models)
    everything, wrong = len(claim.counts), list[int]()
    least = everything
    for radius in sorted(claimed, reverse=True):
        if is_within(radius):
            touched = min(radius if claim.counts_units else claim.threat.changes(radius), models)
            # Where a prediction is said to hold by itself, the check of radii has asked about it.
            open_ones = np.flatnonzero(claim.radius < radius)
            inputs = list(_changeable(claim, predictions, open_ones, offsets, touched))
            # What holds at a larger radius holds here.
            least = min(least, _most(inputs, touched, models, proofs.get(radius)))
        if claimed[radius] < least:
            wrong.append(radius)
    return sorted(wrong)


def _parts_of(claim: Claim) -> tuple[list[int], int]:
    """Which models see a part, counted from its own place, and how many parts and models there are."""
    found, constants = (claim.mechanism.type, claim.rule), claim.constants
    if found == ("partitioned", "dpa"):
        return [0], int(constants["partitions"])
    if found == ("spread-partitions", "finite-aggregation"):
        return list(constants["offsets"]), int(constants["partitions"]) * len(constants["offsets"])
    raise NoSecondRouteError(
        f"Nobody can check what the rule {found[1]!r} on {found[0]!r} claims of all predictions together."
    )


def _predictions_of(claim: Claim, models: int) -> _IntArray:
    if "predictions" not in claim.evidence:
        raise ArtifactError("The certificate carries no 'predictions', which a claim about all predictions rests on.")
    table = np.asarray(claim.evidence["predictions"])
    if table.shape != (len(claim.counts), models) or table.dtype.kind not in "iu":
        raise ArtifactError("The array 'predictions' has no vote of each model on each example; it is damaged.")
    for label in range(claim.counts.shape[1]):
        if ((table == label).sum(axis=1) != claim.counts[:, label]).any():
            raise ArtifactError("The predictions do not add up to the counts.")
    return table.astype(np.int64)


def _changeable(
    claim: Claim, predictions: _IntArray, among: npt.NDArray[np.intp], offsets: list[int], touched: int
) -> Iterator[_Input]:
    """The inputs that the worst parts for them can change, each looked at alone."""
    weights = claim.weights
    for at in among.tolist():
        votes = predictions[at]
        scores = [weight * int((votes == label).sum()) for label, weight in enumerate(weights)]
        first = scores.index(max(scores))
        wins: list[tuple[int, _IntArray]] = []
        for rival in range(len(weights)):
            if rival == first:
                continue
            # Each model that goes over to the rival takes its vote along.
            moved = np.where(votes == rival, 0, weights[rival]) + np.where(votes == first, weights[first], 0)
            given = sum((np.roll(moved, -offset) for offset in offsets), np.zeros_like(moved))
            need = scores[first] - scores[rival] + (1 if first < rival else 0)
            need = max(need, 1)
            if np.sort(given)[::-1][:touched].sum() >= need:
                wins.append((need, given))
        if wins:
            yield _Input(at, wins)


def _most(inputs: list[_Input], touched: int, parts: int, proof: _IntArray | None) -> int:
    """How many of the inputs change together, at most, as far as it can be confirmed."""
    if proof is not None:
        return min(len(inputs), _by_proof(inputs, touched, parts, proof))
    try:
        return _Search(inputs, touched).most()
    except _TooManyStatesError:
        return len(inputs)


# --- by a proof -------------------------------------------------------------------------------------------------------


def _by_proof(inputs: list[_Input], touched: int, parts: int, proof: _IntArray) -> int:
    """What multipliers prove: sum of (1 - l), and of l x cost over the dearest parts, rounded down."""
    costs = np.zeros(parts, dtype=np.int64)
    spared = Fraction(0)
    for each in inputs:
        multiplier = Fraction(int(proof[0, each.at]), _MULTIPLIERS)
        threshold = Fraction(int(proof[1, each.at]), _THRESHOLDS)
        if touched * threshold >= 1 or not 0 <= multiplier <= 1 or threshold < 0:
            multiplier = Fraction(0)
        spared += 1 - multiplier
        if multiplier > 0:
            costs += _costs_of(each, multiplier, threshold, touched)
    dearest = sum(sorted(costs.tolist())[-touched:])
    return int(spared + Fraction(dearest, _GRID))


def _costs_of(each: _Input, multiplier: Fraction, threshold: Fraction, touched: int) -> _IntArray:
    """What every part costs, in parts of `_GRID`, rounded up; parts that give the same have the same cost."""
    given = np.stack([given for _, given in each.wins])
    kinds, kind = np.unique(given, axis=1, return_inverse=True)
    cost = np.empty(kinds.shape[1], dtype=np.int64)
    for number, column in enumerate(kinds.T.tolist()):
        share = max(Fraction(amount, need) for amount, (need, _) in zip(column, each.wins, strict=True))
        paid = min((max(share - threshold, Fraction(0))) / (1 - touched * threshold), Fraction(1))
        cost[number] = ceil(multiplier * paid * _GRID)
    return cost[kind.reshape(-1)]


# --- by trying everything ---------------------------------------------------------------------------------------------


class _TooManyStatesError(Exception):
    """It would take too long."""


class _Search:
    """Spoils or spares one part after the other, depth first, and never does the same twice."""

    def __init__(self, inputs: list[_Input], touched: int) -> None:
        self._touched = touched
        self._owner = [number for number, each in enumerate(inputs) for _ in each.wins]
        self._start = tuple(need for each in inputs for need, _ in each.wins)
        rows = [given.tolist() for each in inputs for _, given in each.wins]
        self._parts: list[tuple[int, ...]] = list(zip(*rows, strict=True))
        self._seen: set[tuple[int, int, tuple[int, ...]]] = set()

    def most(self) -> int:
        """The largest number of inputs that change together."""
        best, stack = 0, [(0, self._touched, self._start)]
        while stack:
            place, left, needs = stack.pop()
            best = max(best, len({owner for owner, need in zip(self._owner, needs, strict=True) if need == 0}))
            if left == 0 or place == len(self._parts) or (place, left, needs) in self._seen:
                continue
            self._seen.add((place, left, needs))
            if len(self._seen) > _MOST_STATES:
                raise _TooManyStatesError
            stack.append((place + 1, left, needs))
            stack.append((place + 1, left - 1, self._after(needs, self._parts[place])))
        return best

    def _after(self, needs: tuple[int, ...], given: tuple[int, ...]) -> tuple[int, ...]:
        """What is still needed; nothing of an input that has changed."""
        left = [max(need - gift, 0) for need, gift in zip(needs, given, strict=True)]
        changed = {owner for owner, need in zip(self._owner, left, strict=True) if need == 0}
        return tuple(0 if owner in changed else need for owner, need in zip(self._owner, left, strict=True))
