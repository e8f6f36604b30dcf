"""Which claims a poisoned data set refutes, and how sure that is.

*One claim.* It says: under the poisoned set, no label m has a larger score than the label l. Let n_l and n_m be their
votes among fresh instances, trained with seeds that the search never saw. Of the n_l + n_m votes for one of the two,
each is for m with probability p_m / (p_l + p_m), at most w_l / (w_l + w_m) if the claim is true (w: class weights, else
1). So n_m is at most as large as a binomial with that chance, given the sum; its tail is the p-value against m, and the
smallest one times the number of rivals that against the claim. Mean scores: a difference of two scores
lies in [-1, 1], so by Hoeffding a mean difference d in favour of m over n instances has p-value exp(-n d^2 / 2) at
most.

*Many claims.* The p-values are multiplied by the number of all claims that were checked, so that with probability at
most `failure_prob` any true claim is called broken.

*What a certificate may get wrong.* Each prediction's claims may fail with probability `failure_prob`, over the training
of the clean run. So a broken claim counts as a violation where a certificate that may fail with that probability *for
all predictions together* makes it, too; such a certificate of the same votes has smaller radii. Claims between the two
count only if they are too many: a sound certificate is wrong about at most failure_prob x inputs on average, so by
Markov's inequality about 20 times as many with probability 1/20 at most.

*Inputs that carry a trigger.* Where a certificate also covers changes of the input, it claims that the label of the
input without the trigger has the largest score on the input with it, under every poisoned set within the radius at the
smallest certified change that is no shorter than the trigger. That is a claim like any other, about another input. All
radii of a prediction hold or fail together, so both certificates above are asked for their radii at every change.

*Deterministic methods* are wrong about none: one label that changes within its radius is a bug.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from mithridate.certifying.certification import certify, own_rule, predicted
from mithridate.core.certificate import Certificate, Scope
from mithridate.core.input_change import Frontier
from mithridate.core.mechanism import Threat
from mithridate.core.rule import ExactRule, Rule, Weighted
from mithridate.core.votes import Votes

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
# How often a sound certificate may be blamed for more broken claims than it may have.
_MARKOV = 0.05


@dataclass(frozen=True, eq=False)
class Claims:
    """What is claimed about each input.

    Attributes:
        label: the prediction.
        radius: how many changes it is certified to withstand; -1: nothing is claimed.
        strict: the same by a certificate whose failure probability is that of all predictions together.
        failure_prob: with which a claim may fail; 0 of deterministic methods.
        on: `votes` or `scores`.
        weights: of the labels.
        changes: how far an input may move, ascending, where claims cover that, too.
        frontier: the radius for each of these changes, changes x inputs.
        strict_frontier: likewise.
    """

    label: IntArray
    radius: IntArray
    strict: IntArray
    failure_prob: float
    on: str
    weights: IntArray
    changes: tuple[float, ...] = ()
    frontier: IntArray | None = None
    strict_frontier: IntArray | None = None

    @classmethod
    def of(
        cls,
        votes: Votes,
        rule: Rule,
        threat: Threat,
        failure_prob: float,
        on: str,
        sets: int = 1,
        changes: tuple[float, ...] = (),
    ) -> Claims:
        """Those of a certificate of each prediction by itself; `sets` such sets of votes are strict together."""
        own, own_moved = _certified(votes, rule, threat, failure_prob, on, Scope.PREDICTION, changes)
        strict, strict_moved = own, own_moved
        if not isinstance(rule, ExactRule):
            strict, strict_moved = _certified(votes, rule, threat, failure_prob / sets, on, Scope.ALL, changes)
        weights = rule.weights(votes.classes) if isinstance(rule, Weighted) else np.ones(votes.classes, np.int64)
        radii = np.minimum(strict.radius, own.radius)
        found = cls(own.label, own.radius, radii, own.failure_prob, on, weights)
        if own_moved is None or strict_moved is None:
            return found
        lower = np.minimum(strict_moved.radius, own_moved.radius)
        return replace(found, changes=changes, frontier=own_moved.radius, strict_frontier=lower)

    def first(self, count: int) -> Claims:
        """Those about the first so many inputs."""
        arrays = {name: getattr(self, name)[:count] for name in ("label", "radius", "strict")}
        radii = {name: getattr(self, name) for name in ("frontier", "strict_frontier")}
        moved = {name: None if each is None else each[:, :count] for name, each in radii.items()}
        return replace(self, **arrays, **moved)

    def joined(self, more: Claims) -> Claims:
        """With those about other inputs behind them."""
        pairs = [(getattr(self, name), getattr(more, name)) for name in ("label", "radius", "strict")]
        label, radius, strict = (np.concatenate(pair) for pair in pairs)
        return Claims(label, radius, strict, self.failure_prob, self.on, self.weights)

    def covering_change(self, length: float, times: int = 1) -> float | None:
        """The smallest certified change that is so long, or times as long; None where none is."""
        return next((each for each in self.changes if length <= times * each), None)

    def of_moved(self, of: IntArray, lengths: Sequence[float], times: int = 1) -> Claims:
        """The claims about inputs that have moved: the label of the input as it was, and the radius for the move.

        Args:
            of: the number of each input as it was.
            lengths: how far each has moved, rounded up.
            times: how much farther each change is said to reach; above 1 such claims are too large.
        """
        if self.frontier is None or self.strict_frontier is None:
            return self.withdrawn().first(0)
        covering = [self.covering_change(length, times) for length in lengths]
        at = [None if each is None else self.changes.index(each) for each in covering]
        radius, strict = (
            np.array([-1 if row is None else radii[row, n] for row, n in zip(at, of.tolist(), strict=True)], np.int64)
            for radii in (self.frontier, self.strict_frontier)
        )
        return Claims(self.label[of], radius, strict, self.failure_prob, self.on, self.weights)

    def withdrawn(self) -> Claims:
        """The same labels, of which nothing is claimed."""
        nothing = np.full_like(self.radius, -1)
        return Claims(self.label, nothing, nothing, self.failure_prob, self.on, self.weights)

    def covering(self, cost: int) -> IntArray:
        """The inputs that are claimed to withstand so many changes."""
        return np.flatnonzero(self.radius >= cost)

    def times(self, factor: int) -> Claims:
        """Claims that are too large on purpose, for a method that has no rule known to be wrong."""
        radius = np.where(self.radius >= 0, factor * self.radius + 1, -1)
        return Claims(self.label, radius, radius, self.failure_prob, self.on, self.weights)

    def allows(self, broken: int) -> bool:
        """Whether a sound certificate may well be wrong about so many predictions."""
        expected = self.failure_prob * len(self.radius)  # of all that were certified, whatever came of it
        return self.failure_prob > 0 and broken * _MARKOV <= expected


def _certified(
    votes: Votes,
    rule: Rule,
    threat: Threat,
    failure_prob: float,
    on: str,
    scope: Scope,
    changes: tuple[float, ...],
) -> tuple[Certificate, Frontier | None]:
    """The certificate of inputs as they are, and the radii where they move."""
    kind: dict[str, Any] = {} if isinstance(rule, ExactRule) else {"on": on, "scope": scope}
    kind |= {"method": rule, "threat": threat, "failure_prob": failure_prob}
    moved = certify(votes, input_change=changes, **kind).frontier if changes else None
    return certify(votes, **kind), moved


def labels_of(votes: Votes, threat: Threat, on: str) -> IntArray:
    """What these votes predict."""
    rule = own_rule(votes)
    if isinstance(rule, ExactRule):
        return rule.decide(votes, threat).label
    if on == "scores":
        assert votes.score_sums is not None
        return votes.score_sums.argmax(axis=1)
    return predicted(votes)


def p_value(votes: Votes, at: int, label: int, on: str, weights: IntArray) -> float:
    """An upper bound on the chance of such votes, or stronger ones, if the label truly has the largest score."""
    if label >= votes.classes:  # the poisoned set has no such label
        return 1.0
    others = np.delete(np.arange(votes.classes), label)
    if on == "scores":
        assert votes.score_sums is not None
        lead = (votes.score_sums[at, others] - votes.score_sums[at, label]) / votes.instances
        tails = np.exp(-votes.instances * np.maximum(lead, 0.0) ** 2 / 2)
    else:
        own, rivals = int(votes.counts[at, label]), votes.counts[at, others]
        # Other classes than those of the clean set have no weight of their own.
        known = np.ones(votes.classes)
        known[: len(weights)] = weights[: votes.classes]
        chance = known[label] / (known[label] + known[others])
        tails = stats.binom.sf(rivals - 1, rivals + own, chance)
    return min(1.0, float(tails.min()) * len(others))
