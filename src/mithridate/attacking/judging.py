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

*Deterministic methods* are wrong about none: one label that changes within its radius is a bug.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from mithridate.certifying.certification import certify, own_rule, predicted
from mithridate.core.certificate import Certificate, Scope
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
    """

    label: IntArray
    radius: IntArray
    strict: IntArray
    failure_prob: float
    on: str
    weights: IntArray

    @classmethod
    def of(cls, votes: Votes, rule: Rule, threat: Threat, failure_prob: float, on: str, sets: int = 1) -> Claims:
        """Those of a certificate of each prediction by itself; `sets` such sets of votes are strict together."""
        own = _certified(votes, rule, threat, failure_prob, on, Scope.PREDICTION)
        strict = own
        if not isinstance(rule, ExactRule):
            strict = _certified(votes, rule, threat, failure_prob / sets, on, Scope.ALL)
        weights = rule.weights(votes.classes) if isinstance(rule, Weighted) else np.ones(votes.classes, np.int64)
        radii = np.minimum(strict.radius, own.radius)
        return cls(own.label, own.radius, radii, own.failure_prob, on, weights)

    def joined(self, more: Claims) -> Claims:
        """With those about other inputs behind them."""
        pairs = [(getattr(self, name), getattr(more, name)) for name in ("label", "radius", "strict")]
        label, radius, strict = (np.concatenate(pair) for pair in pairs)
        return Claims(label, radius, strict, self.failure_prob, self.on, self.weights)

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


def _certified(votes: Votes, rule: Rule, threat: Threat, failure_prob: float, on: str, scope: Scope) -> Certificate:
    kind: dict[str, Any] = {} if isinstance(rule, ExactRule) else {"on": on, "scope": scope}
    return certify(votes, method=rule, threat=threat, failure_prob=failure_prob, **kind)


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
