"""The table of second routes: by what was run, and the rule that certified it, what checks a claim again.

A route shares no arithmetic with the rule that it checks. It sees core values only, the constants of a mechanism by the
names that files use, and knows no defence; so a defence from anywhere can have a route, and register it here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mithridate.core.mechanism import SEARCH_LIMIT, Mechanism, Threat
from mithridate.errors import ArtifactError, ConfigError, UnsupportedMechanismError

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.intp]
Progress = Callable[[int, int], None]
_ONE: FloatArray = np.ones(())


class Limits(NamedTuple):
    """Bounds on the votes of some examples, computed again; in the safe direction throughout.

    Attributes:
        top_lower: lower bounds on the share of the label.
        miss_upper: upper bounds on the share of all other labels together.
        rival_upper: upper bounds on the share of any one other label.
        weight: what a vote for the label counts.
        rival_weight: what a vote for that other label counts.
    """

    top_lower: FloatArray
    miss_upper: FloatArray
    rival_upper: FloatArray
    weight: FloatArray = _ONE
    rival_weight: FloatArray = _ONE

    def take(self, rows: IndexArray) -> Limits:
        """Those of some rows."""
        return Limits(*(np.broadcast_to(each, self.top_lower.shape)[rows] for each in self))


@dataclass(frozen=True, eq=False)
class Distributions:
    """Upper bounds on the probability that a score is above t, by the bins that t may be in; inputs x bins each.

    Attributes:
        miss: of one minus the score of the label.
        rival: of the score of any one other label.
    """

    miss: FloatArray
    rival: FloatArray


@dataclass(frozen=True, eq=False)
class Claim:
    """What a certificate says of every example, and what it says it from.

    Attributes:
        mechanism: what was run.
        rule: the name of the rule that certified.
        threat: how D' may differ from D.
        label: claimed label of each example.
        radius: claimed radius of each example; a radius below 0 claims nothing about D'.
        counts: votes, examples x labels.
        options: the options of the rule, by name.
        evidence: what else the mechanism shows of each example, by name.
        limits: bounds on the votes, an entry for each example, or with class weights one for each example and rival;
            None for a deterministic mechanism, whose votes are exact.
        distributions: bounds on whole distributions of scores, whose means are the limits; None where there are none.
        progress: called with how many radii are done and their total; of a deterministic mechanism, how many examples.
        counts_units: whether radii count units that have names, each of many examples, and not single examples.
        input_change: how far the input may have moved, too; a radius of 0 then claims something.
        input_noise: standard deviation of the noise that each instance added to the input; None: none.
        failure_prob: with which the claim about one example may fail, where votes are draws of noise, without limits.
    """

    mechanism: Mechanism
    rule: str
    threat: Threat
    label: IntArray
    radius: IntArray
    counts: IntArray
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    evidence: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict[str, npt.NDArray[Any]])
    limits: Limits | None = None
    distributions: Distributions | None = None
    progress: Progress | None = None
    counts_units: bool = False
    input_change: float = 0.0
    input_noise: float | None = None
    failure_prob: float = 0.0

    @property
    def input_shift(self) -> float:
        """How far the input may have moved, in standard deviations of the noise on it; rounded up.

        Raises:
            ArtifactError: it may have moved, and there was no noise.
        """
        if not self.input_change:
            return 0.0
        if self.input_noise is None:
            raise ArtifactError("The claim is about inputs that move, but its votes were cast on inputs without noise.")
        return self.input_change / self.input_noise * (1 + 1e-15)

    @property
    def constants(self) -> dict[str, Any]:
        """The constants of the mechanism, by the names that files use."""
        return self.mechanism.to_dict()

    @property
    def weights(self) -> list[int]:
        """What a vote counts, by its label.

        Raises:
            ArtifactError: the weights are not whole numbers from 1 on, one for each label.
        """
        labels, found = self.counts.shape[1], self.options.get("class_weights")
        if found is None:
            return [1] * labels
        if len(found) != labels or not all(type(each) is int and each > 0 for each in found):
            raise ArtifactError(f"The class weights {found!r:.80} are not those of {labels} labels.")
        return list(found)

    @property
    def radii(self) -> list[int]:
        """The distinct radii to check, and none that nobody searches for, since a file may claim anything.

        A radius of 0 claims something only where the input may have moved.
        """
        least = 0 if self.input_change else 1
        return np.unique(self.radius[(self.radius >= least) & (self.radius <= SEARCH_LIMIT)]).tolist()

    def unconfirmed(self, holds: Callable[[int, Limits], BoolArray]) -> BoolArray:
        """Which radii do not hold, asked once for each radius and each distinct row of bounds.

        Args:
            holds: says at a radius, for each row of bounds, whether the label stays on top.
        """
        if self.limits is None:
            raise ArtifactError("The claim is about exact votes, but its rule rests on bounds.")
        limits = self.limits

        def hold(radius: int, members: IndexArray) -> BoolArray:
            points = np.stack(limits.take(members), axis=-1)
            distinct, inverse = np.unique(points.reshape(-1, points.shape[-1]), axis=0, return_inverse=True)
            held = holds(radius, Limits(*distinct.T))[inverse.reshape(-1)]
            return np.logical_and.reduce(held.reshape(len(members), -1), axis=1)

        return self.unconfirmed_members(hold)

    def unconfirmed_members(self, holds: Callable[[int, IndexArray], BoolArray]) -> BoolArray:
        """Which radii do not hold, asked once for each radius.

        Args:
            holds: says at a radius, for the examples that claim it, whether the label stays on top.
        """
        wrong = self.radius > SEARCH_LIMIT
        for number, radius in enumerate(self.radii):
            members = np.flatnonzero(self.radius == radius)
            wrong[members] = ~holds(radius, members)
            if self.progress is not None:
                self.progress(number + 1, len(self.radii))
        return wrong


Route = Callable[[Claim], BoolArray]

# Modules whose routes come with this package; they fill the table when they are loaded.
_OWN = ("private_routes", "draws_and_noise", "worst_changes")
_routes: dict[tuple[str, str], Route] = {}
# Those that read `Claim.input_change`.
_moving: set[tuple[str, str]] = set()


class NoSecondRouteError(UnsupportedMechanismError):
    """Nobody has registered what checks this rule by other means."""


def second_route(mechanism: str, rule: str, *, input_moves: bool = False) -> Callable[[Route], Route]:
    """Register a function as the second route for the votes of a mechanism under a rule; a decorator.

    The function says which claims it cannot confirm, True for each of those examples. Of a deterministic mechanism that
    includes the label: what the rule predicts from the votes. Labels and bounds of a random one are checked beforehand,
    and `Claim.unconfirmed` goes through the radii.

    Guarantee: where no route is registered, or a route does not answer for every example, `verify` never says valid.

    Assumes: where the function says False, the label stays the same on every D' within the radius; and it shares no
    arithmetic with the rule, else the check says nothing.

    Args:
        mechanism: the `type` of the mechanism.
        rule: the `name` of the rule.
        input_moves: whether the function also checks claims about inputs that move (`Claim.input_change`); else these
            are never confirmed.

    Raises:
        ConfigError: there is one already.

    >>> from mithridate.auditing import Claim, second_route
    >>> @second_route("coin", "heads-wins")
    ... def recheck_coin(claim: Claim):
    ...     return (claim.label != claim.counts.argmax(axis=1)) | (claim.radius > 0)
    """

    def register(route: Route) -> Route:
        if _routes.setdefault((mechanism, rule), route) is not route:
            raise ConfigError(f"The rule {rule!r} on {mechanism!r} has a second route already; register no other.")
        if input_moves:
            _moving.add((mechanism, rule))
        return route

    return register


def known_routes() -> Mapping[tuple[str, str], Route]:
    """Every route, by the type of the mechanism and the name of the rule."""
    for module in _OWN:
        import_module(f"mithridate.auditing.{module}")
    return _routes


def recheck(claim: Claim) -> BoolArray:
    """Which claims are not confirmed by the second route.

    Raises:
        NoSecondRouteError: there is none for this rule on this mechanism.
        ArtifactError: what the claim rests on is missing or contradicts itself.
    """
    if not claim.label.shape == claim.radius.shape == (len(claim.counts),):
        raise ArtifactError(f"Expected one label and one radius for each of {len(claim.counts)} examples.")
    kind = claim.mechanism.type
    route = known_routes().get((kind, claim.rule))
    if route is None:
        raise NoSecondRouteError(
            f"Nobody can check the rule {claim.rule!r} on {kind!r} by another route. Register one with "
            f"mithridate.auditing.second_route({kind!r}, {claim.rule!r})."
        )
    if claim.input_change and (kind, claim.rule) not in _moving:
        raise NoSecondRouteError(f"Nobody can check what {claim.rule!r} on {kind!r} says of inputs that move.")
    wrong = np.asarray(route(claim))
    if wrong.shape != claim.radius.shape or wrong.dtype != np.bool_:
        raise ArtifactError(
            f"The second route for {claim.rule!r} on {kind!r} has no yes or no for each of {len(claim.radius)} "
            "examples; correct it."
        )
    return wrong


class Difference(NamedTuple):
    """How D' differs from D.

    Attributes:
        gained: examples that D' has and D lacks; the attacker deleted them from D.
        lost: examples that D has and D' lacks; the attacker inserted them into D.
    """

    gained: int
    lost: int


def differences(threat: Threat, radius: int) -> list[Difference]:
    """The largest differences that `radius` units of a threat amount to; smaller ones do less harm.

    >>> differences(Threat.SYMMETRIC_DIFFERENCE, 1)
    [Difference(gained=1, lost=0), Difference(gained=0, lost=1)]
    """
    match threat:
        case Threat.ADD:
            return [Difference(radius, 0)]
        case Threat.REMOVE:
            return [Difference(0, radius)]
        case Threat.SYMMETRIC_DIFFERENCE:
            return [Difference(gained, radius - gained) for gained in range(radius, -1, -1)]
        case _:
            return [Difference(radius, radius)]
