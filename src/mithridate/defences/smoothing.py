"""Smoothing: what r changed labels, or r slightly changed inputs, can do to instances that train on noisy ones.

For random data z that is drawn from Q under D and from P under D', let K(x) = max { P(S) : Q(S) <= x }. Whatever is
computed from z obeys `score'(l) <= K(score(l))` and `score'(l) >= 1 - K(1 - score(l))` (votes by Neyman-Pearson, means
of scores because K is concave), so the label stays on top if

    K(1 - top_lower) + K(rival_upper) < 1.

*Noisy labels.* Let r labels differ. Only these matter; at each of them the noisy label is D's own with probability
1 - q under D and q / (L - 1) under D', the other way round for D's rival, and any third one with the same probability
under both. With U the number of places that show the label of D' and V of those that show the label of D,

    P / Q = rho^(U - V),   rho = (1 - q) (L - 1) / q >= 1,

so the best tests are thresholds on the lead S = U - V, whose law under D is the r-fold convolution of

    Pr[+1] = q / (L - 1),   Pr[-1] = 1 - q,   Pr[0] = q (L - 2) / (L - 1).

Exchanging the two labels at each place turns Q into P and P into Q: under D' the law is that of -S, and K is the same
in both directions. Hence K joins the points (Pr[S >= s], Pr[S <= -s]), s = r + 1, r, ..., -r, by straight lines (an
atom may be split by a coin). Fewer changed labels are covered: a test may ignore places. At q = (L - 1) / L labels
carry no information, K(x) = x, and every radius holds.

Every point is moved left and up by a bound on its error. K increases, so the lines between the moved points lie above
it. The masses are sums of products of positive numbers, direct and without subtraction, so their errors are relative
and add up; masses that are left out are charged to Pr[S <= -s] alone.

*Noisy inputs.* Let r inputs be moved by at most `max_change` each, in l2. All inputs together then move by at most
sqrt(r) max_change, and with Gaussian noise (P, Q) is dominated by (N(mu, 1), N(0, 1)), mu = sqrt(r) max_change / noise:

    K(x) = Phi(Phi^-1(x) + mu).

As Phi(a) + Phi(b) < 1 where a + b < 0, the condition is Phi^-1(1 - top_lower) + Phi^-1(rival_upper) + 2 mu < 0, that
is, sqrt(r) max_change < noise / 2 (Phi^-1(top_lower) - Phi^-1(rival_upper)).

*Tight.* Both times, let the rival win where P / Q is largest and the top label where it is smallest. The two events are
disjoint, as p1 + p2 <= 1, and meet both bounds at once: where the condition fails, a learner with these scores exists
whose label changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
from scipy import special

from mithridate import _validate
from mithridate.core.mechanism import Mechanism, Random, Threat, Voters
from mithridate.core.rule import Accountant, BoolArray, FloatArray, Margins, Method, Rule
from mithridate.core.units import EXAMPLES, UnitWords
from mithridate.data.partition import IndexArray
from mithridate.defences._trained import PlainDefence
from mithridate.defences.base import option
from mithridate.defences.registry import register
from mithridate.errors import ConfigError, NumericalError, UnsupportedMechanismError
from mithridate.training.config import ViewPlan
from mithridate.training.order import Facts

_UNIT = float(np.finfo(np.float64).eps) / 2
# Relative error of a sum or product or two; at least twice the true one.
_ROUNDING = 4 * _UNIT
# Relative error of an interpolated value.
_INTERPOLATION = 16 * _UNIT
# Probability that may be left out at each end of a law, each time two are convolved.
_NEGLIGIBLE = 1e-20
# Beyond this radius a law would need too long.
LARGEST_RADIUS = 1 << 20
# Above this radius numbers of changed labels are rounded up to so many binary digits, at most 0.2% of the radius.
_EXACT_RADIUS = 4096
_LATTICE_BITS = 10
# Added to every normal quantile z, times 1 + |z|; measured against 40-digit arithmetic: below 3e-16.
QUANTILE_ERROR = 1e-13

_ndtri = cast(Callable[[FloatArray], FloatArray], special.ndtri)


@dataclass(frozen=True)
class NoisyLabels(Random):
    """Each instance trains on labels of which some were replaced at random.

    Every instance replaces the label of each training example, independently, with probability `flip_prob` by one of
    the other `classes - 1` labels, all equally likely, and trains on the result by an algorithm (it may be random) that
    sees no other labels.

    Args:
        flip_prob: probability of a label to be replaced, in (0, (classes - 1) / classes].
        classes: number of labels, at least 2.
    """

    type = "noisy-labels"
    rule = "label-smoothing"
    threat = Threat.LABELS
    words = Voters(
        "instances",
        "models",
        "too few labels are replaced to hide a changed one. Train with a larger flip_prob to raise the radius, at some "
        "cost in accuracy.",
        "instances = {}",
    )

    flip_prob: float
    classes: int

    def __post_init__(self) -> None:
        _validate.positive_integer(classes=self.classes)
        if self.classes < 2:
            raise ConfigError("Expected classes of at least 2; with one class there is nothing to flip.")
        _validate.number_in(0, (self.classes - 1) / self.classes, low_open=True, flip_prob=self.flip_prob)
        object.__setattr__(self, "flip_prob", float(self.flip_prob))
        object.__setattr__(self, "classes", int(self.classes))

    def check_classes(self, classes: int) -> None:
        """Votes are for the labels by which others were replaced."""
        if classes != self.classes:
            raise ConfigError(
                f"Expected counts of {self.classes} classes, those that labels were replaced by, got {classes}; count "
                "votes for all of them."
            )

    def in_words(self, counted: UnitWords = EXAMPLES) -> str:
        """What it does with the training data, with its constants."""
        return (
            f"noisy labels: each instance replaced every training label with chance {self.flip_prob} by another one of "
            f"{self.classes}"
        )


@dataclass(frozen=True)
class NoisyFeatures(Random):
    """Each instance trains on inputs with Gaussian noise.

    Every instance adds to every number of every training input, once and independently, Gaussian noise of standard
    deviation `noise`, and trains on the result by an algorithm (it may be random) that sees no other inputs.

    Args:
        noise: standard deviation, in the units in which inputs reach the model, above 0.
    """

    type = "noisy-features"
    rule = "feature-smoothing"
    threat = Threat.FEATURES
    words = Voters(
        "instances",
        "models",
        "the noise is too small to hide a changed input. Train with more noise to raise the radius, at some cost in "
        "accuracy.",
        "instances = {}",
    )

    noise: float

    def __post_init__(self) -> None:
        _validate.number_in(0, math.inf, low_open=True, noise=self.noise)
        object.__setattr__(self, "noise", float(self.noise))

    def in_words(self, counted: UnitWords = EXAMPLES) -> str:
        """What it does with the training data, with its constants."""
        return (
            f"noisy inputs: each instance added noise of standard deviation {self.noise} to every number of every "
            "training input"
        )


@dataclass(frozen=True)
class FlippedLabels(ViewPlan):
    """Each instance sees labels of which some were replaced at random (`mechanism.NoisyLabels`).

    Args:
        instances: number of models that vote, at least 1.
        flip_prob: probability of a label to be replaced, above 0 and at most (classes - 1) / classes.
    """

    instances: int
    flip_prob: float
    type = "flipped-labels"

    def __post_init__(self) -> None:
        _validate.positive_integer(instances=self.instances)
        _validate.number_in(0, 1, low_open=True, high_open=True, flip_prob=self.flip_prob)
        object.__setattr__(self, "flip_prob", float(self.flip_prob))

    def mechanism(self, *, num_train: int, classes: int) -> Mechanism:
        """What each instance runs, as the certificates read it."""
        return NoisyLabels(self.flip_prob, classes)

    def drawn(
        self,
        labels: IndexArray,
        classes: int,
        longest: int,
        generator: Callable[[str], np.random.Generator],
        starts: IndexArray | None = None,
    ) -> tuple[IndexArray, IndexArray]:
        """Each label replaced with a probability, by one of the others, all equally likely."""
        members, seen = super().drawn(labels, classes, longest, generator, starts)
        random = generator("labels")
        others = random.integers(1, classes, size=len(seen))
        return members, np.where(random.random(len(seen)) < self.flip_prob, (seen + others) % classes, seen)


@dataclass(frozen=True)
class NoisedFeatures(ViewPlan):
    """Each instance sees inputs with Gaussian noise, drawn once for each of them (`mechanism.NoisyFeatures`).

    Args:
        instances: number of models that vote, at least 1.
        noise: standard deviation, in the units in which inputs reach the model, above 0.
    """

    instances: int
    noise: float
    type = "noised-features"

    def __post_init__(self) -> None:
        _validate.positive_integer(instances=self.instances)
        _validate.number_in(0, 1e30, low_open=True, noise=self.noise)  # single precision ends at 3e38
        object.__setattr__(self, "noise", float(self.noise))

    def mechanism(self, *, num_train: int, classes: int) -> Mechanism:
        """What each instance runs, as the certificates read it."""
        return NoisyFeatures(self.noise)


@dataclass(frozen=True)
class LabelNoiseRule(Method):
    """Certify votes of instances that trained on randomly replaced labels, against changed labels.

    Guarantee: for every D' that differs from D in at most as many labels as the certified radius, the label has the
    largest score under D' too, provided that the confidence bounds hold. No rule that knows only the two scores can
    certify more.

    Assumes: D' has the same inputs as D.

    References: Rosenfeld et al. 2020 (arXiv 2002.03018), whose closed form relaxes the trade-off to a divergence; here
    it is exact, for any number of classes, by vote.
    """

    name = "label-smoothing"
    title = "label smoothing"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the threat model leaves out."""
        return ("Only labels of training examples were changed; the training inputs and their number are unchanged.",)

    def accountant(self, mechanism: Mechanism, threat: Threat) -> Accountant:
        """The accountant for one mechanism.

        Raises:
            UnsupportedMechanismError: the instances did not train on noisy labels, or the threat is not `LABELS`.
        """
        if not isinstance(mechanism, NoisyLabels):
            raise _wrong_mechanism(self.name, NoisyLabels, mechanism)
        _check_threat(self.name, Threat.LABELS, threat)
        return LabelNoiseAccountant(mechanism)


@dataclass(frozen=True)
class FeatureNoiseRule(Method):
    """Certify votes of instances that trained on inputs with Gaussian noise, against small changes of inputs.

    Guarantee: for every D' that differs from D in at most as many inputs as the certified radius, each by an l2
    distance of at most `max_change`, the label has the largest score under D' too, provided that the confidence bounds
    hold. No rule that knows only the two scores can certify more.

    Assumes: D' has the same labels and the same number of examples as D; test inputs are unchanged.

    Args:
        max_change: how far one input may have been moved, in l2, in the units in which inputs reach the model; above 0.

    References: Weber et al. 2023 (arXiv 2003.08904), the certificate for Gaussian noise on training inputs.
    """

    max_change: float

    def __post_init__(self) -> None:
        _validate.number_in(0, math.inf, low_open=True, max_change=self.max_change)
        object.__setattr__(self, "max_change", float(self.max_change))

    name = "feature-smoothing"
    title = "feature smoothing"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the threat model leaves out, and what `max_change` means."""
        return (
            f"No training input was moved by more than {self.max_change!r} in l2 distance, in the units in which "
            "inputs reach the model; the training labels, the number of training examples and the test inputs are "
            "unchanged.",
        )

    def accountant(self, mechanism: Mechanism, threat: Threat) -> Accountant:
        """The accountant for one mechanism.

        Raises:
            UnsupportedMechanismError: the instances did not train on noisy inputs, or the threat is not `FEATURES`.
        """
        if not isinstance(mechanism, NoisyFeatures):
            raise _wrong_mechanism(self.name, NoisyFeatures, mechanism)
        _check_threat(self.name, Threat.FEATURES, threat)
        return FeatureNoiseAccountant(mechanism, self.max_change)

    def in_words(self) -> str:
        """With its options."""
        return f"{self.title} (distance at most {self.max_change})"

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> FeatureNoiseRule:
        """Read back its options; nobody but the user knows the distance.

        Raises:
            ConfigError: there is no distance.
        """
        if "max_change" not in values:
            raise ConfigError(
                "These votes need a bound on how far one input may have moved; give "
                "method=FeatureNoiseRule(max_change=...) (--max-change DISTANCE)."
            )
        return cls(**values)


class LabelNoiseAccountant(Accountant):
    """The exact condition for changed labels."""

    def __init__(self, mechanism: NoisyLabels) -> None:
        self._mechanism = mechanism
        self._uninformative = mechanism.flip_prob == (mechanism.classes - 1) / mechanism.classes
        self._error = self._dropped = 0.0

    @property
    def error_budget(self) -> dict[str, float]:
        """The largest relative error and the largest missing mass that were added to any curve."""
        return {"rounding": self._error, "truncation": self._dropped}

    def holds(self, radius: int, margins: Margins) -> BoolArray:
        """Whether the top label stays on top for every D' within `radius`; see `Accountant`.

        Raises:
            NumericalError: the radius is beyond `LARGEST_RADIUS`, and labels are not purely random.
        """
        if radius == 0 or self._uninformative:
            return margins.sum_of(lambda x: x) * (1 + _ROUNDING) < 1
        if radius > LARGEST_RADIUS:
            raise NumericalError(f"label-smoothing is computed up to a radius of {LARGEST_RADIUS}, not {radius}.")
        curve = _label_curve(self._mechanism, _rounded_up(radius))
        self._error, self._dropped = max(self._error, curve.error), max(self._dropped, curve.dropped)
        return margins.sum_of(curve) * (1 + _ROUNDING) < 1


@dataclass(frozen=True)
class _LeadLaw:
    """The law of the lead S under D.

    Attributes:
        first: the value of S that the first mass belongs to.
        step: how far apart the values of neighbouring masses are; 2 for two classes, where there is no third label.
        masses: probabilities.
        error: largest relative error of a mass.
        dropped: upper bound on the probability of all values that are left out.
    """

    first: int
    step: int
    masses: FloatArray
    error: float
    dropped: float

    def __add__(self, other: _LeadLaw) -> _LeadLaw:
        """The law of the sum of two independent leads."""
        terms = min(len(self.masses), len(other.masses))
        error = self.error + other.error + self.error * other.error + (terms + 2) * _UNIT
        masses = np.convolve(self.masses, other.masses)
        return _trimmed(self.first + other.first, self.step, masses, error, self.dropped + other.dropped)


@dataclass(frozen=True)
class _LabelCurve:
    """An upper bound on K: straight lines between points.

    Attributes:
        before: probabilities under D, ascending.
        after: largest probabilities under D'.
        error: relative error that was charged.
        dropped: probability that was charged.
    """

    before: FloatArray
    after: FloatArray
    error: float
    dropped: float

    def __call__(self, x: FloatArray) -> FloatArray:
        return np.interp(x, self.before, self.after) * (1 + _INTERPOLATION)


def _rounded_up(radius: int) -> int:
    """Few enough different numbers that thousands of large radii share their laws; more changes cover fewer."""
    unit = 1 << (radius.bit_length() - _LATTICE_BITS) if radius > _EXACT_RADIUS else 1
    return -(-radius // unit) * unit


@lru_cache(maxsize=256)
def _label_curve(mechanism: NoisyLabels, changed: int) -> _LabelCurve:
    """K for so many changed labels."""
    law = _lead_law(mechanism, changed)
    error = law.error + (len(law.masses) + 2) * _UNIT
    at_most = np.append(0.0, np.cumsum(law.masses))
    at_least = np.append(0.0, np.cumsum(law.masses[::-1]))
    # Thresholds s from just above the last mass down to the first one; beyond them Pr[S >= s] does not change.
    thresholds = law.first + law.step * np.arange(len(law.masses), -1, -1)
    counted = np.clip((-thresholds - law.first) // law.step + 1, 0, len(law.masses))
    after = np.minimum(at_most[counted] * (1 + error) + law.dropped, 1.0)
    after[-1] = 1.0
    return _LabelCurve(at_least * (1 - error), after, error, law.dropped)


@lru_cache(maxsize=256)
def _lead_law(mechanism: NoisyLabels, changed: int) -> _LeadLaw:
    """The law for so many changed labels: powers of two by squaring, others by adding their lowest binary digit."""
    if changed == 1:
        other = mechanism.flip_prob / (mechanism.classes - 1)
        third = [other * (mechanism.classes - 2)] if mechanism.classes > 2 else []
        return _trimmed(-1, 2 - len(third), np.array([1 - mechanism.flip_prob, *third, other]), _ROUNDING, 0.0)
    lowest = changed & -changed
    part = changed // 2 if lowest == changed else lowest
    return _lead_law(mechanism, changed - part) + _lead_law(mechanism, part)


def _trimmed(first: int, step: int, masses: FloatArray, error: float, dropped: float) -> _LeadLaw:
    """A law without the masses at both ends that do not matter, which are charged."""
    left = int(np.searchsorted(np.cumsum(masses), _NEGLIGIBLE, side="right"))
    right = int(np.searchsorted(np.cumsum(masses[::-1]), _NEGLIGIBLE, side="right"))
    if left + right > 0:
        dropped += 4 * _NEGLIGIBLE
    return _LeadLaw(first + step * left, step, masses[left : len(masses) - right], error, dropped)


class FeatureNoiseAccountant(Accountant):
    """The closed form for inputs that were moved a little."""

    def __init__(self, mechanism: NoisyFeatures, max_change: float) -> None:
        self._change_per_noise = max_change / mechanism.noise

    @property
    def error_budget(self) -> dict[str, float]:
        """What is added to every normal quantile, relative to one plus its size."""
        return {"quantile": QUANTILE_ERROR}

    def holds(self, radius: int, margins: Margins) -> BoolArray:
        """Whether the top label stays on top for every D' within `radius`; see `Accountant`."""
        shift = math.sqrt(radius) * self._change_per_noise * (1 + _ROUNDING)
        # A score of exactly 0 against one of exactly 1 is infinity minus infinity: not a number, and not shown.
        with np.errstate(invalid="ignore"):
            return margins.sum_of(lambda x: _quantile_upper(x) + shift) < 0


def _quantile_upper(x: FloatArray) -> FloatArray:
    quantile = _ndtri(x)
    return np.where(np.isfinite(quantile), quantile + QUANTILE_ERROR * (1 + np.abs(quantile)), quantile)


def _wrong_mechanism(rule: str, wanted: type[Mechanism], mechanism: Mechanism) -> UnsupportedMechanismError:
    return UnsupportedMechanismError(
        f"The method {rule} certifies votes of {wanted.__name__} instances, not of {type(mechanism).__name__}; "
        "leave the method out to get the one that fits."
    )


def _check_threat(rule: str, wanted: Threat, threat: Threat) -> None:
    if threat is not wanted:
        raise UnsupportedMechanismError(
            f"The method {rule} certifies the threat {wanted.value!r} only, not {threat.value!r}; "
            f"use threat={wanted.value!r}, or votes of another defence."
        )


# --- the defences ---------------------------------------------------------------------------------------------------


# Why units of many examples are refused.
_UNITS_REFUSED = (
    "its noise hides a change of single labels or inputs, and whoever controls a unit changes as many of them as they "
    "like"
)


@register
@dataclass(frozen=True, kw_only=True)
class LabelSmoothing(PlainDefence):
    """Each model trains on labels of which some are replaced at random; the majority wins.

    Guarantee: that of `Certificate`, against changed labels only: inputs are taken as they are.

    Args:
        flip_prob: probability of a label to be replaced by another one; None: 0.7 of the largest that makes sense,
            (classes - 1) / classes, at which labels say nothing.
        instances: number of models.

    References: Rosenfeld, Winston, Ravikumar, Kolter 2020 (arXiv 2002.03018).
    """

    name = "label-smoothing"
    units_refused = _UNITS_REFUSED
    weighs_losses = True
    summary = "Each model trains on labels of which some are replaced at random; certifies changed labels only."
    threats = (Threat.LABELS,)
    mechanisms = (NoisyLabels,)

    flip_prob: float | None = option(None, "label-smoothing: probability of a label to be replaced", float, "P")
    instances: int = option(1000, "number of models that vote (1000)", int, "P")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.flip_prob is not None:
            _validate.number_in(0, 1, low_open=True, high_open=True, flip_prob=self.flip_prob)

    @property
    def title(self) -> str:
        """For a legend."""
        return "label smoothing" if self.flip_prob is None else f"label smoothing, {self.flip_prob:g}"

    def decided(self, facts: Facts) -> dict[str, Any]:
        """The probability, by the number of classes."""
        return {"flip_prob": 0.7 * (facts.classes - 1) / facts.classes}

    def plan(self) -> ViewPlan:
        """Noisy labels for each model."""
        assert self.flip_prob is not None
        return FlippedLabels(self.instances, self.flip_prob)

    def rule(self) -> Rule:
        """See `LabelNoiseRule`."""
        return LabelNoiseRule()


@register
@dataclass(frozen=True, kw_only=True)
class FeatureSmoothing(PlainDefence):
    """Each model trains on inputs with Gaussian noise; the majority wins.

    Guarantee: that of `Certificate`, against inputs of the training set that moved by at most `max_change` each (l2
    distance, as they reach the model): labels and the number of examples are taken as they are.

    Args:
        noise: standard deviation of the noise.
        max_change: how far one input may have moved.
        instances: number of models.

    References: Weber, Xu, Karlas, Zhang, Li 2023 (RAB, arXiv 2003.08904).
    """

    name = "feature-smoothing"
    units_refused = _UNITS_REFUSED
    weighs_losses = True
    summary = "Each model trains on inputs with Gaussian noise; certifies small changes of inputs only."
    threats = (Threat.FEATURES,)
    mechanisms = (NoisyFeatures,)

    noise: float = option(0.5, "feature-smoothing: standard deviation of the noise on inputs (0.5)", float, "S")
    max_change: float = option(0.5, "feature-smoothing: how far one input may have moved (0.5)", float, "DISTANCE")
    instances: int = option(1000, "number of models that vote (1000)", int, "P")

    def __post_init__(self) -> None:
        super().__post_init__()
        NoisyFeatures(self.noise)
        FeatureNoiseRule(self.max_change)

    @property
    def title(self) -> str:
        """For a legend."""
        return f"feature smoothing, noise {self.noise:g}, moves up to {self.max_change:g}"

    @property
    def training_key(self) -> dict[str, Any]:
        """How far inputs may have moved does not matter for training."""
        return {name: value for name, value in super().training_key.items() if name != "max_change"}

    def decided(self, facts: Facts) -> dict[str, Any]:
        """Nothing is left open."""
        return {}

    def plan(self) -> ViewPlan:
        """Noisy inputs for each model."""
        return NoisedFeatures(self.instances, self.noise)

    def rule(self) -> Rule:
        """See `FeatureNoiseRule`."""
        return FeatureNoiseRule(self.max_change)
