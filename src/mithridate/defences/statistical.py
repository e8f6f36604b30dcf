"""A bound on accuracy as a whole, from differential privacy. It certifies no prediction.

Let a in [0, 1] be the accuracy of one instance on a fixed test set: a function of the model, so that trade-off curves
speak of it. With the error e = 1 - a and the curve K of a split of the changes,

    E'[e] = integral of Pr'[e > t] over t in [0, 1] <= integral of K(Pr[e > t]),

which is the claim where the accuracies of single instances are known. From counts alone, e is the mean over the inputs
of the events "wrong on input i", so that

    E'[e] = mean of Pr'[wrong on i] over i <= mean of K(Pr[wrong on i]) over i.

K is concave, so either is at most K(1 - J) with J = E[a], and far less where most inputs are easy or hopeless. The
claim is the largest such bound over all splits.

The probabilities are not known; they are bounded at once. From counts, half of the failure probability goes to
Clopper-Pearson bounds for all inputs together, and half to J: the accuracies of P independent instances are
independent, lie in [0, 1] and have mean J, and by Chernoff and Hoeffding (1963, Theorem 1) their observed mean m obeys
Pr[mean >= m] <= exp(-P kl(m, J)) for m > J,

    kl(m, J) = m log(m / J) + (1 - m) log((1 - m) / (1 - J)),

so with probability 1 - failure_prob no J below m with P kl(m, J) > log(1 / failure_prob) is the true one. This is never
worse than the usual sqrt(log(1 / failure_prob) / (2 P)), and far better where accuracy is near 1. With the accuracies
of all instances, a band on their distribution and their mean share the failure probability. The worst case that fits
both is cut off at one height (core/score_bands.py). Either way it is one event for the whole curve.

The bound of Ma, Zhu, Hsu 2019, `StatisticalBound.published`, follows from (eps, delta) instead. If one inserted or
deleted example obeys it, a single change gives

    J <= e^eps J' + delta,   that is,   J' >= e^-eps (J - delta).

Change by change, r of them give J' >= e^(-r eps) J - delta (e^-eps + ... + e^(-r eps)), and summing up

    J' >= e^(-r eps) J - delta (1 - e^(-r eps)) / (e^eps - 1),

which is their e^(-r eps) (J + c) - c with c = delta / (e^eps - 1). At eps = 0 it is J - r delta.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mithridate import _validate
from mithridate.accounting import FDP
from mithridate.accounting.fdp import CurveOrChain, Curves, FdpAccountant
from mithridate.accounting.rdp import one_example_epsilon
from mithridate.certifying.certification import default_threat
from mithridate.core.bounds import clopper_pearson_upper
from mithridate.core.certificate import Scope
from mithridate.core.conditions import Size, in_json
from mithridate.core.mechanism import Private, Threat
from mithridate.core.rule import FloatArray, Rule
from mithridate.core.score_bands import StepBounds, steps_of_counts, steps_of_values
from mithridate.core.units import Unit, unit_in_json
from mithridate.core.votes import Votes
from mithridate.defences.base import check_votes, option
from mithridate.defences.private import PrivateDefence
from mithridate.defences.registry import register
from mithridate.errors import ConfigError, NumericalError
from mithridate.training.order import Progress

IntArray = npt.NDArray[np.int64]

# Relative distance by which results are moved to the safe side for rounding.
_SAFETY = 1e-12
_HALVINGS = 100
# Below this nothing is claimed: it would not be worth the curves.
_LEAST_CLAIM = 1e-6
# By how much the mean of given accuracies may differ from that of the counts: they may be in single precision.
_ACCURACY_ROUNDING = 2.0**-20
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
        errors: what the claim follows from, pairs of a share and a probability, the shares adding up to 1: one instance
            is wrong on that share of the inputs at most so probably; or, from the accuracies of instances, on that
            share of the errors in [0, 1] a larger one is at most so probable.
        published_lower: lower bound on the expected accuracy from the mean alone, for `published`.
        epsilon: eps of one inserted or deleted example, for `published`; infinite where the mechanism is as good as not
            private.
        delta: delta of one inserted or deleted example, for `published`.
        failure_prob: probability with which the claim may fail, over training.
        threat: how the data may have been changed.
        examples: number of test examples.
        instances: number of instances.
        mechanism: how one instance was trained.
        assumptions: what is taken for granted, a sentence each.
        size: see `Votes.size`; beyond its limit nothing is claimed.
        unit: see `Votes.unit`; eps and delta are then those of one inserted or deleted unit.

    References: docs/theory.md, section 10; Ma, Zhu, Hsu 2019 (arXiv 1903.09860), the question and their own bound.
    """

    per_prediction: ClassVar[bool] = False

    mean_accuracy: float
    accuracy_lower: float
    errors: tuple[tuple[float, float], ...]
    published_lower: float
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
        return self._within_size(radii, lambda numbers: np.vectorize(self._after, otypes=[np.float64])(numbers))

    def published(self, radii: npt.ArrayLike) -> FloatArray:
        """The bound of Ma, Zhu, Hsu at every radius, from (eps, delta) and the mean alone: for comparison.

        Guarantee: that of `accuracy`, on an event of its own.

        Raises:
            ConfigError: a radius is negative or not a whole number.
        """
        return self._within_size(
            radii,
            lambda numbers: statistical_bound(
                self.published_lower, numbers * self.threat.changes(1), epsilon=self.epsilon, delta=self.delta
            ),
        )

    def _within_size(self, radii: npt.ArrayLike, bound_at: Callable[[IntArray], FloatArray]) -> FloatArray:
        """A bound at every radius, nothing beyond the limit of the size."""
        numbers = _checked_radii(radii)
        limit = None if self.size is None else self.size.limit(self.threat)
        inside = numbers if limit is None else np.minimum(numbers, limit)
        return np.where(numbers <= inside, bound_at(inside), 0.0)

    def _after(self, radius: int) -> float:
        """The bound at one radius. Where nothing is left after fewer changes, nothing is after more."""
        if radius == 0:
            return self.accuracy_lower
        fewer = 1
        while fewer < radius:
            if _accuracy_after(self.mechanism, self.threat, self.errors, fewer) == 0:
                return 0.0
            fewer *= 2
        return min(_accuracy_after(self.mechanism, self.threat, self.errors, int(radius)), self.accuracy_lower)

    def to_dict(self) -> dict[str, Any]:
        """The bound as plain JSON values; an infinite `epsilon` is left out as None."""
        return {
            "name": "statistical-dp",
            **unit_in_json(self.unit),
            "per_prediction": self.per_prediction,
            "mean_accuracy": self.mean_accuracy,
            "accuracy_lower": self.accuracy_lower,
            "errors": [list(step) for step in self.errors],
            "published_lower": self.published_lower,
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
    instance_accuracy: npt.ArrayLike | None = None,
) -> StatisticalBound:
    """Bound the accuracy of one instance under poisoning, from the same votes as the certificates.

    Guarantee: that of `StatisticalBound`.

    Args:
        votes: what private instances voted, with true labels.
        failure_prob: probability with which the claim may fail, over training, in (0, 1).
        delta: the delta of one example, in (0, 1), for `StatisticalBound.published`.
        threat: how the data may have been changed; by default `symmetric-difference`, with units `edit`.
        instance_accuracy: the accuracy of every instance on the inputs of the votes, where it is known; the bound then
            rests on their distribution and not on single inputs, which as a rule gives more.

    Raises:
        ConfigError: the votes carry no labels or were not trained privately, the accuracies are not theirs, or an
            argument is outside its range.
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
    correct = np.take_along_axis(votes.counts, votes.labels[:, None], axis=1)[:, 0]
    mean = int(correct.sum()) / (votes.examples * votes.instances)
    if instance_accuracy is None:
        steps = steps_of_counts(votes.instances - correct, votes.instances, failure_prob, clopper_pearson_upper)
    else:
        errors = 1.0 - _checked_accuracies(instance_accuracy, votes.instances, mean)
        steps = steps_of_values(errors, votes.instances, failure_prob, clopper_pearson_upper)
    return StatisticalBound(
        mean_accuracy=mean,
        accuracy_lower=max(1.0 - float(steps.mean[0]) - _SAFETY, 0.0),
        errors=_pairs(steps),
        published_lower=mean_lower(mean, votes.instances, failure_prob),
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


def _checked_accuracies(given: npt.ArrayLike, instances: int, mean: float) -> FloatArray:
    """The accuracies of all instances, rounded down."""
    values = np.asarray(given)
    if values.dtype.kind != "f" or values.shape != (instances,) or not bool(((values >= 0) & (values <= 1)).all()):
        raise ConfigError(f"Expected instance_accuracy as numbers in [0, 1], one for each of {instances} instances.")
    if abs(float(values.mean(dtype=np.float64)) - mean) > _ACCURACY_ROUNDING:
        raise ConfigError(
            f"The instances are correct on {mean:.6f} of the inputs by their votes, but on {values.mean():.6f} by "
            "instance_accuracy; give the accuracies of these instances on these inputs."
        )
    return np.maximum(values.astype(np.float64) - _ACCURACY_ROUNDING, 0.0)


def _pairs(steps: StepBounds) -> tuple[tuple[float, float], ...]:
    """The one row of some steps, as pairs of a length and a height."""
    pairs = [(float(steps.cap_length[0]), float(steps.cap[0]))]
    pairs += zip(steps.lengths[0].tolist(), steps.heights.tolist(), strict=True)
    return tuple(pair for pair in pairs if pair[0] > 0)


@lru_cache(maxsize=8)
def _accountant(mechanism: Private, threat: Threat) -> FdpAccountant:
    """Its curves serve all radii."""
    return FdpAccountant(Curves(mechanism), threat)


@lru_cache(maxsize=1 << 14)
def _accuracy_after(mechanism: Private, threat: Threat, errors: tuple[tuple[float, float], ...], radius: int) -> float:
    """1 - the largest expected error within a radius; 0 where that is next to nothing, or cannot be computed."""
    lengths, heights = np.array(errors).T

    def mean_of(curve: CurveOrChain) -> float:
        return float(lengths @ curve(heights)) * (1 + _SAFETY) + _SAFETY

    accountant = _accountant(mechanism, threat)
    try:
        left = 1.0 - accountant.largest(radius, mean_of)
    except NumericalError:
        return 0.0
    finally:
        accountant.close()
    return left if left >= _LEAST_CLAIM else 0.0


def statistical_bound(accuracy: float, changes: npt.ArrayLike, *, epsilon: float, delta: float) -> FloatArray:
    """Lower bounds on the expected accuracy after so many single insertions or deletions, by (eps, delta).

    Guarantee: none if one change does not obey (eps, delta). `StatisticalBound.accuracy` says more of the same models.

    References: Ma, Zhu, Hsu 2019 (arXiv 1903.09860).

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
        delta: the delta of one example, in (0, 1), for the published bound that stands beside ours.

    References: docs/theory.md, section 10; Ma, Zhu, Hsu 2019 (arXiv 1903.09860).
    """

    name = "statistical-dp"
    summary = "The private ensemble, with a bound on the mean accuracy of one model; single predictions by f-DP."
    per_prediction = False

    delta: float = option(1e-5, "statistical-dp: delta of one example (1e-5), for the published bound", float, "D")

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
        input_change: float | Sequence[float] | None = None,
        progress: Progress | None = None,
    ) -> StatisticalBound:
        """Bound the accuracy of one instance; `scope` does not matter, since no prediction is certified.

        Raises:
            ConfigError: the inputs are to change, of which the bound says nothing.
        """
        check_votes(votes, self)
        if input_change is not None:
            raise ConfigError("The bound of statistical-dp is about inputs that stay; leave input_change out.")
        return statistical_dp(votes, failure_prob=failure_prob, delta=self.delta, threat=threat)
