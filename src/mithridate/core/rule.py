"""Rules turn votes into radii.

There are three kinds. Instances of a random mechanism are samples, so their counts are bounded first and an accountant
says how far the bounds reach (`Method`). A deterministic mechanism is a function of the data, so its radius follows
from the votes alone (`ExactRule`). Where such a function votes on many noisy copies of an input, every copy has a
radius, and a quantile of these is bounded (`DrawnRule`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from mithridate import _validate
from mithridate._text import shown
from mithridate.core import registry
from mithridate.core.collective import Collective
from mithridate.core.mechanism import Mechanism, Threat
from mithridate.core.score_bands import Spread
from mithridate.errors import ArtifactError, ConfigError, UnsupportedMechanismError

if TYPE_CHECKING:
    from mithridate.core.votes import Votes

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IndexArray = npt.NDArray[np.intp]
IntArray = npt.NDArray[np.int64]


class Rule(registry.Tagged, table=registry.rules):
    """A way from votes to radii, such as `FDP()`; frozen dataclasses inherit it, and their fields are its options.

    Attributes:
        name: what files and the command line call it.
        title: what a report calls it.
    """

    name: ClassVar[str]
    title: ClassVar[str]

    @property
    def flaw(self) -> str:
        """Why its radii are no guarantee for the mechanisms that it certifies, after "it is"; empty where they are."""
        return ""

    @property
    def is_sound(self) -> bool:
        """Whether its radii are valid for the mechanisms that it certifies."""
        return not self.flaw

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What it takes for granted beyond the mechanism."""
        return ()

    @property
    def short_title(self) -> str:
        """In a word or two, to stand beside a line in a chart."""
        return self.title

    @property
    def choice(self) -> str:
        """How the label is chosen among the `{voters}`, where that is not by most votes."""
        return ""

    def in_words(self) -> str:
        """With its options, for people."""
        return self.title

    def weighed(self, counts: IntArray) -> IntArray:
        """Votes times the class weights, where it has some."""
        return counts


@dataclass(frozen=True)
class Weighted(Rule):
    """A rule that can weigh votes by their label, for labels that are rare.

    The prediction is the label l with the largest w_l x votes_l, of equal ones the smallest.

    Attributes:
        class_weights: w, a whole number from 1 to a million for each label; None: all labels weigh the same.
    """

    class_weights: tuple[int, ...] | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if self.class_weights is not None:
            _validate.whole_weights(class_weights=self.class_weights)
            object.__setattr__(self, "class_weights", tuple(int(each) for each in self.class_weights))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """That the weights are constants."""
        if self.class_weights is None:
            return ()
        said = shown(list(self.class_weights))
        return (
            f"The votes for each label are multiplied by its class weight, {said}, which was declared before anyone "
            "looked at the training data or at the votes.",
        )

    @property
    def choice(self) -> str:
        """By weight, where there are weights."""
        return "" if self.class_weights is None else "the one with the largest number of votes x class weight"

    def weights(self, classes: int) -> IntArray:
        """The weight of each of so many labels.

        Raises:
            ConfigError: there are weights for another number of labels.
        """
        if self.class_weights is None:
            return np.ones(classes, dtype=np.int64)
        _validate.whole_weights(classes, class_weights=self.class_weights)
        return np.array(self.class_weights, dtype=np.int64)

    def weighed(self, counts: IntArray) -> IntArray:
        """Votes times weights.

        Raises:
            ConfigError: there are weights for another number of labels, or a product would be too large.
        """
        weights = self.weights(counts.shape[1])
        if int(counts.max()) * int(weights.max()) >= 1 << 62:
            raise ConfigError(f"The votes are too many for class weights up to {weights.max():,}; use smaller ones.")
        return counts * weights


@dataclass(frozen=True, eq=False)
class Decision:
    """What is predicted, and how much it withstands.

    Attributes:
        label: the prediction on each example.
        radius: how many units of the threat leave it as it is, 0 or more; at most `SEARCH_LIMIT`.
    """

    label: npt.NDArray[np.int64]
    radius: npt.NDArray[np.int64]


class ExactRule(Rule):
    """A rule that decides from votes alone, such as `MajorityRule()`: no count is a sample, and nothing can fail."""

    def reads(self, threat: Threat) -> tuple[str, ...]:
        """Names of the evidence that it needs beside counts; a certificate carries no other."""
        return ()

    def decide(self, votes: Votes, threat: Threat) -> Decision:
        """The prediction on every example, and its radius."""
        raise NotImplementedError

    def reads_moved(self, threat: Threat) -> tuple[str, ...]:
        """Names of the evidence that `decide_moved` needs."""
        return ()

    def decide_moved(self, votes: Votes, threat: Threat, change: float) -> Decision:
        """The same where the input may have moved, too: a radius of -1 where that alone may change the label.

        Args:
            votes: they carry the evidence that `reads_moved` names.
            threat: how the training data may have been changed.
            change: how far the features of the input may have moved, at least 0, in Euclidean length.

        Raises:
            UnsupportedMechanismError: nothing is proved for inputs that change.
        """
        raise certifies_no_input_change(self)

    @property
    def reads_together(self) -> tuple[str, ...]:
        """Names of the evidence that `decide_together` needs."""
        return ()

    def decide_together(self, votes: Votes, threat: Threat, radii: Sequence[int]) -> Collective:
        """How many of the predictions change together within each radius, at most.

        Raises:
            UnsupportedMechanismError: nothing is proved of all predictions together.
        """
        raise UnsupportedMechanismError(
            f"The method {self.name} certifies each prediction by itself; leave collective out, or use dpa or "
            "finite-aggregation."
        )


class DrawnRule(Rule):
    """A rule on draws of noise, each of which says how many changes of the training data its own vote withstands."""

    def reads(self, threat: Threat) -> tuple[str, ...]:
        """Names of the evidence that it needs beside counts; a certificate carries no other."""
        return ()

    def decide_drawn(self, votes: Votes, threat: Threat, failure_prob: float, shift: float) -> Decision:
        """The prediction on every example, and its radius: -1 where nothing is certified.

        Args:
            votes: they carry the evidence that `reads` names.
            threat: how the training data may have been changed.
            failure_prob: with which a radius may be too large, for each example.
            shift: how far the input may have moved over the standard deviation of the noise on it, at least 0.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class DistinctValues:
    """One number per test point, stored as distinct values and indices into them.

    Votes take few distinct values, so a curve is evaluated a thousand times for a million points.
    """

    values: FloatArray
    index: IndexArray

    @classmethod
    def of(cls, numbers: FloatArray) -> DistinctValues:
        """Factor an array into distinct values and indices."""
        values, index = np.unique(numbers, return_inverse=True)
        return cls(values, index)

    def take(self, chosen: IndexArray) -> DistinctValues:
        """The same numbers for some of the points."""
        return DistinctValues(self.values, self.index[chosen])

    def map(self, function: Callable[[FloatArray], FloatArray]) -> FloatArray:
        """`function` at every point, by whichever way needs fewer evaluations."""
        if len(self.values) <= len(self.index):
            return function(self.values)[self.index]
        return function(self.values[self.index])


@dataclass(frozen=True)
class Margins:
    """How far ahead the top label of each point is, in the safe direction throughout.

    Attributes:
        top: lower bounds on the score of the top label.
        miss: upper bounds on one minus that score.
        rival: upper bounds on the largest score of any other label; shares its distinct values with `miss`.
        ratio: what that label weighs by the weight of the top label, rounded up; None: both weigh the same.
        spread: bounds on whole distributions of scores, where `miss` and `rival` are their means; None: there are none.
    """

    top: DistinctValues
    miss: DistinctValues
    rival: DistinctValues
    ratio: FloatArray | None = None
    spread: Spread | None = None

    @classmethod
    def of(
        cls,
        top: FloatArray,
        miss: FloatArray,
        rival: FloatArray,
        ratio: FloatArray | None = None,
        spread: Spread | None = None,
    ) -> Margins:
        """Margins from plain arrays."""
        shared = DistinctValues.of(np.concatenate([miss, rival]))
        everyone = np.arange(len(miss))
        return cls(DistinctValues.of(top), shared.take(everyone), shared.take(everyone + len(miss)), ratio, spread)

    def __len__(self) -> int:
        return len(self.top.index)

    def take(self, chosen: IndexArray) -> Margins:
        """The margins of some of the points."""
        ratio = None if self.ratio is None else self.ratio[chosen]
        spread = None if self.spread is None else self.spread.take(chosen)
        return Margins(self.top.take(chosen), self.miss.take(chosen), self.rival.take(chosen), ratio, spread)

    def in_top_votes(self, rival: FloatArray) -> FloatArray:
        """Scores of rivals in units of the weight of the top label, rounded up."""
        return rival if self.ratio is None else rival * self.ratio

    def sum_of(self, function: Callable[[FloatArray], FloatArray]) -> FloatArray:
        """`function(miss) + function(rival)` at every point, the latter in units of the weight of the top label."""
        values, miss, rival = self.miss.values, self.miss.index, self.rival.index
        if len(values) <= 2 * len(miss):
            results = function(values)
            return results[miss] + self.in_top_votes(results[rival])
        results = function(values[np.concatenate([miss, rival])])
        return results[: len(miss)] + self.in_top_votes(results[len(miss) :])

    def after(self, curve: Callable[[FloatArray], FloatArray]) -> FloatArray:
        """What is left to others, and what a rival may have, after changes that obey an increasing concave curve.

        From whole distributions where they are known: for a score y, E'[y] is at most the integral of K(Pr[y > t]).
        """
        return self.sum_of(curve) if self.spread is None else self.spread.sum_of(curve)


class Accountant(Protocol):
    """Turns a radius into a yes or no for every point; what it does not say is inherited from here."""

    def holds(self, radius: int, margins: Margins) -> BoolArray:
        """Whether the top label of each point stays on top for every D' within `radius`.

        A yes is a guarantee; a no may only mean that this accountant cannot show it.
        """
        ...

    def close(self) -> None:
        """Keep what was computed for the next time, where anything is kept."""

    @property
    def error_budget(self) -> dict[str, float]:
        """The largest numerical errors that were added to any curve in the safe direction."""
        return {}


class Method(Rule):
    """A rule on samples: bounds on their counts, and an accountant that says how far these reach.

    Attributes:
        reads_distributions: whether it certifies more from whole distributions of scores than from their means.
    """

    reads_distributions: ClassVar[bool] = False

    def accountant(self, mechanism: Mechanism, threat: Threat) -> Accountant:
        """The accountant of this method for one mechanism and one threat."""
        raise NotImplementedError

    def accountant_moved(self, mechanism: Mechanism, threat: Threat, shift: float) -> Accountant:
        """The same where the input may have moved, too; unlike the other it may deny a radius of 0.

        Args:
            mechanism: what each instance ran.
            threat: how the training data may have been changed.
            shift: the change of the input over the standard deviation of the noise that each instance adds to it.

        Raises:
            UnsupportedMechanismError: nothing is proved for inputs that change.
        """
        raise certifies_no_input_change(self)


def certifies_no_input_change(rule: Rule) -> UnsupportedMechanismError:
    """What a rule says that certifies changes of the training data alone."""
    return UnsupportedMechanismError(
        f"The method {rule.name} certifies changes of the training data, not of the input; leave input_change out, or "
        "use fdp, bagging, dpa (with input_noise) or nearest-neighbours."
    )


def default_rule(mechanism: Mechanism) -> Rule:
    """The rule that certifies most from the counts of a mechanism.

    Raises:
        ConfigError: the rule needs a constant that only the user can know.
    """
    return rule_from_dict({"name": mechanism.rule})


def rule_from_dict(values: dict[str, Any]) -> Rule:
    """Read back what a rule's `to_dict` wrote.

    Raises:
        ArtifactError: the rule or an option is unknown.

    >>> rule_from_dict({"name": "rdp", "group": "paper", "complement": False})
    RDP(group='paper', complement=False)
    """
    name = values.get("name")
    found: type[Rule] | None = registry.rules.find(name)
    if found is None:
        raise ArtifactError(f"The method {name!r} is not known to this version of mithridate; update it.")
    try:
        return found.from_dict({key: value for key, value in values.items() if key != "name"})
    except TypeError as error:
        raise ArtifactError(
            f"The method {name!r} with these options is not known to this version of mithridate ({error}); update it."
        ) from error
