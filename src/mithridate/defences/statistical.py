"""Baseline-DP: a bound on accuracy as a whole, from differential privacy. It certifies no prediction.

Let J be the expected accuracy of one instance on a fixed test set, the expectation taken over training: a reward in
[0, 1]. If one inserted or deleted example obeys (eps, delta), a single change gives

    J <= e^eps J' + delta,   that is,   J' >= e^-eps (J - delta).

Change by change, r of them give J' >= e^(-r eps) J - delta (e^-eps + ... + e^(-r eps)), and summing up

    J' >= e^(-r eps) J - delta (1 - e^(-r eps)) / (e^eps - 1),

which is the bound of Ma, Zhu, Hsu, e^(-r eps) (J + c) - c with c = delta / (e^eps - 1). At eps = 0 it is J - r delta.

J itself is not known. The accuracies of P independent instances are independent, lie in [0, 1] and have mean J; their
observed mean m follows from the counts of the true labels, the single accuracies do not, so only a bound that needs
nothing but the mean applies. By Chernoff and Hoeffding (1963, Theorem 1), Pr[mean >= m] <= exp(-P kl(m, J)) for m > J,

    kl(m, J) = m log(m / J) + (1 - m) log((1 - m) / (1 - J)),

so with probability 1 - failure_prob no J below m with P kl(m, J) > log(1 / failure_prob) is the true one. This is never
worse than the usual sqrt(log(1 / failure_prob) / (2 P)), and far better where accuracy is near 1. One event covers the
whole curve.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mithridate import _validate
from mithridate.accounting import FDP
from mithridate.accounting.rdp import one_example_epsilon
from mithridate.certifying.certification import default_threat
from mithridate.core.certificate import Scope
from mithridate.core.conditions import Size, in_json
from mithridate.core.mechanism import Private, Threat
from mithridate.core.rule import FloatArray, Rule
from mithridate.core.units import Unit, unit_in_json
from mithridate.core.votes import Votes
from mithridate.defences.base import check_votes, option
from mithridate.defences.private import PrivateDefence
from mithridate.defences.registry import register
from mithridate.errors import ConfigError
from mithridate.training.order import Progress

# Relative distance by which results are moved to the safe side for rounding.
_SAFETY = 1e-12
_HALVINGS = 100
# Above this eps nothing is left after one change, and powers would overflow.
_USELESS = 500.0

_ASSUMPTIONS = (
    "The instances are independent runs of the stated mechanism; nothing else has looked at the training data, beyond "
    "what is stated here.",
    "The attacker does not know the randomness of training.",
    "The test points and their labels are fixed; the bound is on the expected accuracy of one instance on them, not of "
    "the majority.",
)


@dataclass(frozen=True)
class StatisticalBound:
    """A lower bound on accuracy under poisoning: about one instance on average, about no prediction.

    Guarantee: with probability `1 - failure_prob` over training, for every radius at once: had the instance been
    trained on any D' within that radius, its expected accuracy on this test set would be at least `accuracy(radius)`.
    The expectation is over training; the majority of the instances is not covered, nor is any single prediction.

    Assumes: the instances are independent runs of the mechanism, whose randomness the attacker does not know; the test
    set and its labels are fixed.

    Attributes:
        mean_accuracy: accuracy of the instances, on average.
        accuracy_lower: lower bound on the expected accuracy of one instance.
        epsilon: eps of one inserted or deleted example; infinite where the mechanism is as good as not private.
        delta: delta of one inserted or deleted example.
        failure_prob: probability with which the claim may fail, over training.
        threat: how the data may have been changed.
        examples: number of test examples.
        instances: number of instances.
        mechanism: how one instance was trained.
        assumptions: what is taken for granted, a sentence each.
        size: see `Votes.size`; beyond its limit nothing is claimed.
        unit: see `Votes.unit`; eps and delta are then those of one inserted or deleted unit.

    References: Ma, Zhu, Hsu 2019 (arXiv 1903.09860), the bound for bounded rewards.
    """

    per_prediction: ClassVar[bool] = False

    mean_accuracy: float
    accuracy_lower: float
    epsilon: float
    delta: float
    failure_prob: float
    threat: Threat
    examples: int
    instances: int
    mechanism: Private
    assumptions: tuple[str, ...]
    size: Size | None = None
    unit: Unit | None = None

    def accuracy(self, radii: npt.ArrayLike) -> FloatArray:
        """The lower bound on accuracy at every radius.

        Raises:
            ConfigError: a radius is negative or not a whole number.
        """
        numbers = _checked_radii(radii)
        bound = statistical_bound(
            self.accuracy_lower, numbers * self.threat.changes(1), epsilon=self.epsilon, delta=self.delta
        )
        limit = None if self.size is None else self.size.limit(self.threat)
        return bound if limit is None else np.where(numbers <= limit, bound, 0.0)

    def to_dict(self) -> dict[str, Any]:
        """The bound as plain JSON values; an infinite `epsilon` is left out as None."""
        return {
            "name": "statistical-dp",
            **unit_in_json(self.unit),
            "per_prediction": self.per_prediction,
            "mean_accuracy": self.mean_accuracy,
            "accuracy_lower": self.accuracy_lower,
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else None,
            "delta": self.delta,
            "failure_prob": self.failure_prob,
            "threat": self.threat.value,
            "examples": self.examples,
            "instances": self.instances,
            "mechanism": self.mechanism.to_dict(),
            "size": None if self.size is None else self.size.to_dict(),
            **in_json(self.assumptions, self.threat),
            "assumptions": list(map(str, self.assumptions)),
        }


def statistical_dp(
    votes: Votes,
    *,
    failure_prob: float = 1e-3,
    delta: float = 1e-5,
    threat: Threat | str | None = None,
) -> StatisticalBound:
    """Bound the accuracy of one instance under poisoning, from the same votes as the certificates.

    Guarantee: that of `StatisticalBound`.

    Args:
        votes: what private instances voted, with true labels.
        failure_prob: probability with which the claim may fail, over training, in (0, 1).
        delta: the delta of one example, in (0, 1).
        threat: how the data may have been changed; by default `symmetric-difference`, with units `edit`.

    Raises:
        ConfigError: the votes carry no labels or were not trained privately, or an argument is outside its range.
    """
    _validate.number_in(0, 1, low_open=True, high_open=True, failure_prob=failure_prob, delta=delta)
    threat = default_threat(votes) if threat is None else threat
    _validate.one_of(tuple(Threat), threat=threat)
    if not isinstance(votes.mechanism, Private):
        raise ConfigError(
            f"statistical-dp needs votes of privately trained instances, these come from "
            f"{type(votes.mechanism).__name__}; use votes of the fdp defence."
        )
    if votes.labels is None:
        raise ConfigError("statistical-dp bounds accuracy and needs the true labels; add labels to the votes.")
    correct = int(np.take_along_axis(votes.counts, votes.labels[:, None], axis=1).sum())
    mean = correct / (votes.examples * votes.instances)
    return StatisticalBound(
        mean_accuracy=mean,
        accuracy_lower=mean_lower(mean, votes.instances, failure_prob),
        epsilon=one_example_epsilon(votes.mechanism, delta),
        delta=float(delta),
        failure_prob=float(failure_prob),
        threat=Threat(threat),
        examples=votes.examples,
        instances=votes.instances,
        mechanism=votes.mechanism,
        assumptions=(*_ASSUMPTIONS, *votes.statements),
        size=votes.size,
        unit=votes.unit,
    )


def statistical_bound(accuracy: float, changes: npt.ArrayLike, *, epsilon: float, delta: float) -> FloatArray:
    """Lower bounds on the expected accuracy after so many single insertions or deletions.

    Args:
        accuracy: a lower bound on the expected accuracy without changes, in [0, 1].
        changes: numbers of insertions and deletions, 0 or more.
        epsilon: eps of one example, 0 or more; may be infinite.
        delta: delta of one example, in [0, 1].

    >>> statistical_bound(0.9, [0, 1], epsilon=0.0, delta=0.1).round(6).tolist()
    [0.9, 0.8]
    """
    _validate.number_in(0, 1, accuracy=accuracy, delta=delta)
    _validate.number_in(0, math.inf, epsilon=min(epsilon, _USELESS))
    numbers = np.asarray(changes, dtype=np.float64)
    if epsilon > _USELESS:
        return np.where(numbers == 0, accuracy, 0.0)
    kept = np.exp(-epsilon * numbers)
    # (1 - e^(-r eps)) / (e^eps - 1), in the limit r.
    lost = -np.expm1(-epsilon * numbers) / math.expm1(epsilon) if epsilon > 0 else numbers
    bound = accuracy * kept * (1 - _SAFETY) - delta * lost * (1 + _SAFETY)
    return np.where(numbers == 0, accuracy, np.maximum(bound, 0.0))


def mean_lower(mean: float, instances: int, failure_prob: float) -> float:
    """A lower bound on the mean of numbers in [0, 1] of which only the average of `instances` draws is known.

    Guarantee: at most the true mean with probability `1 - failure_prob`; see the module docstring.

    >>> round(mean_lower(1.0, 1000, 1e-3), 6)  # failure_prob^(1 / instances)
    0.993116
    """
    # Slack for the rounding of mean, divergence and logarithm.
    needed = math.log(1 / failure_prob) / instances * (1 + _SAFETY) + _SAFETY
    low, high = 0.0, mean
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if middle < mean and _divergence(mean, middle) > needed:
            low = middle
        else:
            high = middle
    return low


def _divergence(mean: float, candidate: float) -> float:
    """kl(mean, candidate) for 0 <= candidate < mean <= 1."""
    if candidate == 0:
        return math.inf
    miss = (1 - mean) * math.log((1 - mean) / (1 - candidate)) if mean < 1 else 0.0
    return mean * math.log(mean / candidate) + miss


def _checked_radii(radii: npt.ArrayLike) -> npt.NDArray[np.int64]:
    numbers = np.asarray(radii)
    if numbers.dtype.kind not in "iu" or (numbers.size and int(numbers.min()) < 0):
        raise ConfigError("Expected radii as whole numbers, 0 or more.")
    return numbers.astype(np.int64)


@register
@dataclass(frozen=True)
class StatisticalDP(PrivateDefence):
    """The statistical bound of differential privacy: on the mean accuracy of one model, on no prediction.

    Guarantee: that of `StatisticalBound`. Single predictions of the same models are certified by f-DP.

    Args:
        delta: the delta of one example, in (0, 1).

    References: Ma, Zhu, Hsu 2019 (arXiv 1903.09860).
    """

    name = "statistical-dp"
    summary = "The private ensemble, with a bound on the mean accuracy of one model; single predictions by f-DP."
    per_prediction = False

    delta: float = option(1e-5, "statistical-dp: delta of one example (1e-5)", float, "D")

    def __post_init__(self) -> None:
        _validate.number_in(0, 1, low_open=True, high_open=True, delta=self.delta)
        super().__post_init__()

    @property
    def title(self) -> str:
        """For a legend."""
        return "statistical DP"

    def rule(self) -> Rule:
        """Of single predictions, which the bound says nothing about."""
        return FDP()

    def certify(
        self,
        votes: Votes,
        *,
        threat: Threat | str | None = None,
        failure_prob: float = 1e-3,
        scope: Scope | str = Scope.PREDICTION,
        progress: Progress | None = None,
    ) -> StatisticalBound:
        """Bound the accuracy of one instance; `scope` does not matter, since no prediction is certified."""
        check_votes(votes, self)
        return statistical_dp(votes, failure_prob=failure_prob, delta=self.delta, threat=threat)
