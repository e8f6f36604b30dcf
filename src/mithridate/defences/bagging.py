"""Bagging: each model trains on examples drawn with replacement, and the majority wins.

*What r changed examples can do to instances that each train on k examples drawn with replacement.*

Let D have n examples, D' lack d of them and have a others, so n' = n + a - d and the two share n - d. An instance sees
k uniform draws, a tuple. Of three kinds of tuples, those

* from shared examples only have probability s = ((n - d) / n)^k under D and s (n / n')^k under D', a constant ratio;
* with an example that D' lacks have probability 1 - s under D and 0 under D';
* with an example that D lacks have probability 0 under D and 1 - ((n - d) / n')^k under D'.

By Neyman-Pearson the largest probability under D' of an event of probability x under D is (for x <= s, else 1)

    K(x) = x (n / n')^k + 1 - ((n - d) / n')^k.

The label keeps the largest score under D' if K(1 - p1) + K(p2) < 1, that is, if

    (1 - p1) + p2  <  2 ((n - d) / n)^k - (n' / n)^k  =:  room(d, a).

(Beyond s the curve is 1: the condition fails there with or without the cap.) K is concave, so mean scores obey it too.

*Weights.* If votes for label l weigh w_l and c = w_rival / w_top, the condition is K(1 - p1) + c K(p2) < 1, that is,

    (1 - p1) + c p2  <  (1 + c) ((n - d) / n)^k - c (n' / n)^k  =:  room(d, a).

(As p2 <= 1 - p1, a rival beyond s means that K(1 - p1) is 1: again the cap changes nothing.)

*Tight.* Let the top label own all tuples that D' lacks and the rival all those that D lacks; what remains of p1 and p2
lies on shared tuples and fits there, as p1 + p2 <= 1. Both bounds are then met at once: where the condition fails, a
learner with these scores exists whose label changes (up to ties and to the size of a single tuple).

*The worst D' of a ball.* room falls in a. With m = n - d, its slope in m at fixed a has the sign of
(1 + c) m^(k-1) - c (m + a)^(k-1).

* `ADD`: room(0, r). `REMOVE`: room(r, 0) = ((n - r) / n)^k. `REPLACE`, and what it contains: room(r, r). Each falls
  in r, so fewer changes are covered.
* `SYMMETRIC_DIFFERENCE`: with a = r - d, the slope in d has the sign of 2c (n + r - 2d)^(k-1) - (1 + c) (n - d)^(k-1).
  For c >= 1 it is not negative for d <= r, so insertions alone are worst: room(0, r), the same as `ADD`. For c < 1 and
  r < n, (n + r - 2d) / (n - d) falls in d, so room rises and then falls, and one of the ends is worst: room(0, r) or
  room(r, 0). For r >= n all of D may be deleted, and nothing is shown.
* `EDIT` (each of r examples inserted, deleted or changed: d <= r and a <= r): a = r, and m in [n - r, n] where
  m = r / (t - 1), t = ((1 + c) / c)^(1/(k-1)), clipped to the range: below it room falls, above it room rises. At
  k = 1 it only rises, so m = n - r. With n' = m + r and c = 1 this is the condition of Jia et al.

*Where the input may move, too*, by h standard deviations of the noise that every instance adds to it: given that a
tuple has shared examples only, all such tuples are as likely under D as under D', and model and noisy input obey the
curve of N(h, 1) against N(0, 1). An event of probability x under D has at most min(1, x / s) among them, so with
s' = ((n - d) / n')^k

    K(x) = 1 - s' + s' Phi(Phi^-1(min(1, x / s)) + h).

K rises with d and with a, since s falls in d, and s' in both. So the worst D' of `EDIT` is that of `REPLACE`, (r, r);
for `SYMMETRIC_DIFFERENCE` every split counts, and (most d, most a) of a block of them covers the block.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy import special

from mithridate import _validate
from mithridate.core.mechanism import Mechanism, Random, Threat, Voters
from mithridate.core.rule import Accountant, BoolArray, FloatArray, Margins, Method, Rule, Weighted
from mithridate.core.units import EXAMPLES, UnitWords
from mithridate.data.partition import IndexArray
from mithridate.defences._trained import PlainDefence
from mithridate.defences.base import option
from mithridate.defences.registry import register
from mithridate.errors import ConfigError, UnsupportedMechanismError
from mithridate.training.config import ViewPlan
from mithridate.training.order import Facts

_UNIT = float(np.finfo(np.float64).eps) / 2
# Relative error of a logarithm of a ratio, and of one exponential, product or sum; each at least twice the true one.
_LOG_ERROR = 8 * _UNIT
_ROUNDING = 4 * _UNIT
# Exponents whose exponentials keep all their digits.
_REACH = 700.0
# Whole numbers tried on either side of the worst m: its own rounding error is far smaller.
_NEIGHBOURS = 4
# Added to every curve of an input that moves: its logarithms, exponentials and distribution functions are off by less.
_CURVE_ROUNDING = 1e-12
# So many blocks of splits, at most, cover a ball.
_BLOCKS = 256
# Draws of a learner.
_LEARNER_DRAWS = 75


@dataclass(frozen=True)
class Bagged(Random):
    """Each instance trains on examples drawn at random, with replacement, from the training set.

    Every instance draws `draws` times, independently and uniformly, one of the `num_train` examples of D, and trains on
    what it drew by an algorithm that looks at nothing else of D; the algorithm may be random. Neither the number of
    draws nor the algorithm depends on D.

    Args:
        num_train: the number of examples of D, at least 1.
        draws: how many examples each instance draws, at least 1.
    """

    type = "bagged"
    rule = "bagging"
    threat = Threat.EDIT
    words = Voters(
        "instances",
        "models",
        "too many instances draw the same {one}. Let each draw fewer {many} to raise the radius, at some cost in "
        "accuracy.",
        "instances = {}",
    )

    num_train: int
    draws: int

    def __post_init__(self) -> None:
        _validate.positive_integer(num_train=self.num_train, draws=self.draws)
        object.__setattr__(self, "num_train", int(self.num_train))
        object.__setattr__(self, "draws", int(self.draws))

    def in_words(self, counted: UnitWords = EXAMPLES) -> str:
        """What it does with the training data, with its constants."""
        whole = ", with all that it holds" if counted.are_named else ""
        number = f"{self.num_train:,} {counted.many_in_full}"
        return f"bagging: each instance drew {self.draws:,} times one of the {number}{whole}"


@dataclass(frozen=True)
class Bootstrap(ViewPlan):
    """Each instance sees examples that it draws at random, with replacement (`mechanism.Bagged`).

    Args:
        instances: number of models that vote, at least 1.
        draws: how many examples each draws, at least 1 and at most as many as there are.
    """

    instances: int
    draws: int
    type = "bootstrap"
    counts_examples = True

    def __post_init__(self) -> None:
        _validate.positive_integer(instances=self.instances, draws=self.draws)

    def mechanism(self, *, num_train: int, classes: int) -> Mechanism:
        """What each instance runs, as the certificates read it."""
        return Bagged(num_train, self.draws)

    def check(self, num_train: int) -> None:
        """Require that it suits so many training examples."""
        if self.draws > num_train:
            raise ConfigError(
                f"Expected draws (k) of at most the {num_train} training examples, got {self.draws}; draw fewer."
            )

    def longest(self, examples: int, visited: int, starts: IndexArray | None = None) -> int:
        """As many as it draws; of units, as many of the largest."""
        return self.draws * (1 if starts is None else int(np.diff(starts).max()))

    def drawn(
        self,
        labels: IndexArray,
        classes: int,
        longest: int,
        generator: Callable[[str], np.random.Generator],
        starts: IndexArray | None = None,
    ) -> tuple[IndexArray, IndexArray]:
        """Uniform draws, with replacement: of examples, or of units with all their examples."""
        total = len(labels) if starts is None else len(starts) - 1
        members = generator("bootstrap").integers(total, size=self.draws)
        if starts is not None:
            ends = starts.tolist()
            members = np.concatenate([np.arange(ends[unit], ends[unit + 1]) for unit in members.tolist()])
        return members, labels[members]


@dataclass(frozen=True)
class BaggingRule(Weighted, Method):
    """Certify votes of instances that trained on examples drawn with replacement.

    Guarantee: for every D' within the certified radius, the label has the largest score under D' too, provided that
    the confidence bounds hold. No rule that knows only the two scores can certify more.

    Assumes: nothing beyond the mechanism.

    References: Jia, Cao, Gong 2021 (arXiv 2008.04495), Theorems 1 and 2, for the threat `EDIT`. The other threats
    follow in the same way; see the module docstring.
    """

    name = "bagging"
    title = "bagging"

    def accountant(self, mechanism: Mechanism, threat: Threat) -> Accountant:
        """The accountant for one mechanism and one threat.

        Raises:
            UnsupportedMechanismError: the instances were not trained on examples drawn with replacement.
        """
        if not isinstance(mechanism, Bagged):
            raise UnsupportedMechanismError(
                f"The method bagging certifies votes of Bagged instances, not of {type(mechanism).__name__}; "
                "leave the method out to get the one that fits."
            )
        return BaggingAccountant(mechanism, threat)

    def accountant_moved(self, mechanism: Mechanism, threat: Threat, shift: float) -> Accountant:
        """The same where the input may move, too.

        Raises:
            UnsupportedMechanismError: the instances were not trained on examples drawn with replacement.
        """
        self.accountant(mechanism, threat)  # or it says what is wrong
        assert isinstance(mechanism, Bagged)
        return MovedBaggingAccountant(mechanism, threat, shift)


class MovedBaggingAccountant(Accountant):
    """The condition of the module docstring where the input may move by `shift` standard deviations of its noise."""

    def __init__(self, mechanism: Bagged, threat: Threat, shift: float) -> None:
        self._mechanism, self._threat, self._shift = mechanism, threat, shift

    @property
    def error_budget(self) -> dict[str, float]:
        """What was added to every curve for rounding."""
        return {"rounding": _CURVE_ROUNDING}

    def holds(self, radius: int, margins: Margins) -> BoolArray:
        """Whether the top label stays on top for every D' within `radius`; see `Accountant`."""
        shown = np.ones(len(margins), dtype=np.bool_)
        for deleted, inserted in _covering_splits(self._threat, radius):
            shown &= margins.sum_of(partial(self._curve, deleted, inserted)) < 1
        return shown

    def _curve(self, deleted: int, inserted: int, x: FloatArray) -> FloatArray:
        """K of a split, rounded up."""
        total, draws = self._mechanism.num_train, self._mechanism.draws
        left = total - min(deleted, total)
        shared, among_others = (_power(left, whole, draws)[0] for whole in (total, max(left + inserted, 1)))
        with np.errstate(divide="ignore", over="ignore"):
            given_shared = np.minimum(x / shared, 1.0) if shared > 0 else np.ones_like(x)
            moved = special.ndtr(special.ndtri(given_shared) + self._shift) if self._shift else given_shared
        return np.clip(1 - among_others * (1 - moved) + _CURVE_ROUNDING, x, 1.0)


def _covering_splits(threat: Threat, radius: int) -> list[tuple[int, int]]:
    """Numbers of deleted and inserted examples, one of which is at least as bad as any D' of the ball."""
    match threat:
        case Threat.ADD:
            return [(0, radius)]
        case Threat.REMOVE:
            return [(radius, 0)]
        case Threat.SYMMETRIC_DIFFERENCE:
            starts = np.unique(np.linspace(0, radius + 1, min(radius + 1, _BLOCKS) + 1).astype(np.int64)).tolist()
            return [(after - 1, radius - first) for first, after in itertools.pairwise(starts)]
        case _:
            return [(radius, radius)]


class BaggingAccountant(Accountant):
    """The condition of the module docstring for one mechanism and one threat."""

    def __init__(self, mechanism: Bagged, threat: Threat) -> None:
        self._mechanism, self._threat = mechanism, threat
        self._largest_charge = 0.0

    @property
    def error_budget(self) -> dict[str, float]:
        """The largest amount by which the room between the two scores was lowered for rounding, where any was left."""
        return {"rounding": self._largest_charge}

    def holds(self, radius: int, margins: Margins) -> BoolArray:
        """Whether the top label stays on top for every D' within `radius`; see `Accountant`."""
        needed = margins.sum_of(lambda x: x) * (1 + _ROUNDING)
        if margins.ratio is None:
            return needed < self._room(radius, 1.0)
        ratios, index = np.unique(margins.ratio, return_inverse=True)
        return needed < np.array([self._room(radius, ratio) for ratio in ratios.tolist()])[index]

    def _room(self, radius: int, ratio: float) -> float:
        """A lower bound on the room that the worst D' leaves; 0 where there is none."""
        splits = _worst_splits(self._mechanism, self._threat, radius, ratio)
        room, charge = min(_room(self._mechanism, *split, ratio) for split in splits)
        if room > 0:
            self._largest_charge = max(self._largest_charge, charge)
        return room


def _worst_splits(mechanism: Bagged, threat: Threat, radius: int, ratio: float) -> list[tuple[int, int]]:
    """Numbers of deleted and inserted examples, among which is the worst D' of the ball."""
    total = mechanism.num_train
    deleted = min(radius, total)
    match threat:
        case Threat.ADD:
            return [(0, radius)]
        case Threat.SYMMETRIC_DIFFERENCE:
            return [(0, radius), (deleted, radius - deleted)]
        case Threat.REMOVE:
            return [(deleted, 0)]
        case Threat.REPLACE | Threat.LABELS | Threat.FEATURES:
            return [(deleted, deleted)]
        case Threat.EDIT:
            return [(total - kept, radius) for kept in _worst_kept(mechanism, total - deleted, radius, ratio)]


def _worst_kept(mechanism: Bagged, fewest: int, inserted: int, ratio: float) -> list[int]:
    """How many examples of D the worst D' keeps if it has so many others: one of these."""
    most = mechanism.num_train
    if mechanism.draws == 1 or ratio == 0:
        return [fewest]
    # m = r / (t - 1), t = ((1 + c) / c)^(1/(k-1)).
    stationary = inserted / math.expm1(math.log1p(1 / ratio) / (mechanism.draws - 1))
    centre = math.floor(min(max(stationary, fewest), most))
    near = range(max(fewest, centre - _NEIGHBOURS), min(most, centre + 1 + _NEIGHBOURS) + 1)
    return sorted({fewest, *near, most})


def _room(mechanism: Bagged, deleted: int, inserted: int, ratio: float) -> tuple[float, float]:
    """A lower bound on room(d, a) = (1 + c) ((n - d) / n)^k - c (n' / n)^k, and by how much it may be too low."""
    total, draws = mechanism.num_train, mechanism.draws
    shared = _power(total - deleted, total, draws)
    size = _power(total - deleted + inserted, total, draws)
    if ratio == 1:
        room, highest = 2 * shared[0] - size[1], 2 * shared[1] - size[0]
        return room - _ROUNDING * abs(room), highest - room
    # It is shared + c (shared - size), and shared <= size: a ratio that was rounded up makes it smaller.
    gains, costs = [(1 + ratio) * each for each in shared], [ratio * each if ratio else 0.0 for each in size]
    room, highest = gains[0] - costs[1], gains[1] - costs[0]
    return room - _ROUNDING * (abs(room) + gains[0] + costs[1]), highest - room


def _power(part: int, whole: int, exponent: int) -> tuple[float, float]:
    """Bounds on (part / whole)^exponent from below and above."""
    if part == 0:
        return 0.0, 0.0
    # Either form has a small relative error in its range; the other has not.
    log_ratio = math.log1p((part - whole) / whole) if 2 * part >= whole else math.log(part / whole)
    log_power = exponent * log_ratio
    error = _LOG_ERROR * abs(log_power)
    # Below e^-700 or above e^700 nothing is known, or needed, but that.
    low = math.exp(min(log_power - error, _REACH)) if log_power - error >= -_REACH else 0.0
    high = math.exp(max(log_power + error, -_REACH)) if log_power + error <= _REACH else math.inf
    return low * (1 - _ROUNDING), high * (1 + _ROUNDING)


@register
@dataclass(frozen=True, kw_only=True)
class Bagging(PlainDefence):
    """Each model trains on examples drawn with replacement; the majority wins.

    Guarantee: that of `Certificate`. Its own threat, `edit`, counts a changed example once, as its authors do.

    Args:
        draws: how many examples each model draws; None: one in twenty, from 20 to 500, and of a learner 75.
        instances: number of models.

    References: Jia, Cao, Gong 2021 (arXiv 2008.04495).
    """

    name = "bagging"
    weighs_votes = True
    summary = "Each model trains on examples drawn with replacement; the majority wins."
    threats = (Threat.EDIT, *(threat for threat in Threat if threat is not Threat.EDIT))
    mechanisms = (Bagged,)
    takes_units = True
    takes_input_noise = True
    sized = ("draws",)

    draws: int | None = option(None, "bagging: examples that each model draws", int, "K")
    instances: int = option(1000, "number of models that vote (1000)", int, "P")

    @property
    def title(self) -> str:
        """For a legend."""
        return "bagging" if self.draws is None else f"bagging, {self.draws:,} draws"

    def decided(self, facts: Facts) -> dict[str, Any]:
        """One draw for every twenty examples, within limits; of a learner as many as serve 1% of changed examples.

        The share of the examples that may change follows from the number of draws alone. Networks learn little from 75
        examples, learners of tables and texts enough: see docs/real-data.md.
        """
        usual = _LEARNER_DRAWS if self.learner is not None else min(500, max(20, facts.num_train // 20))
        return {"draws": max(1, min(usual, facts.num_train))}

    def plan(self) -> ViewPlan:
        """A bootstrap sample for each model."""
        assert self.draws is not None
        return Bootstrap(self.instances, self.draws)

    def rule(self) -> Rule:
        """See `BaggingRule`."""
        return BaggingRule(class_weights=self.class_weights)
