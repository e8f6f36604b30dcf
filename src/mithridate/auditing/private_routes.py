"""The second routes of private training.

f-DP: every split of the changes by its exact curve, without the engine and its cache. RDP and ADP: moments of every
component of the mixture, in log space. The engine is asked only which Renyi orders to try: the condition at any order
is a proof by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from mithridate.accounting.rdp import CONVERSION_ORDERS, group_divergence
from mithridate.auditing.distributions import Integrals
from mithridate.auditing.exact_curves import TOLERANCE, ExactMoments, ExactTradeoff, PrivateTraining
from mithridate.auditing.routes import (
    BoolArray,
    Claim,
    Difference,
    Distributions,
    FloatArray,
    IndexArray,
    Limits,
    differences,
    second_route,
)
from mithridate.core.mechanism import Threat, private
from mithridate.errors import NumericalError

# Up to so many changes splits are checked by chains, so many splits times claims at once.
_MOST_CHAINED, _CHAINED_AT_ONCE = 1 << 12, 1 << 20
# Curves that are computed for any claim, without asking first whether it can hold.
_FEW_CURVES = 64
# Above this many changes a subsampled mechanism is first tried at one number of kept ones.
_MANY_KEPT = 16


@second_route("subsampled-gaussian", "fdp", input_moves=True)
@second_route("sampled-gaussian", "fdp", input_moves=True)
def recheck_tradeoff(claim: Claim) -> BoolArray:
    """Which radii of f-DP do not hold on the exact curves."""
    training, found = PrivateTraining.of(claim.constants), claim.distributions
    route = _TradeoffRoute(training, claim.threat, claim.input_shift)
    if found is None:
        return claim.unconfirmed(lambda radius, limits: route(radius, _Pairs(limits)))
    return claim.unconfirmed_members(
        lambda radius, members: route(radius, Integrals(Distributions(found.miss[members], found.rival[members])))
    )


def average_holds(
    stated: Mapping[str, Any],
    steps: Sequence[tuple[float, float]],
    radii: Sequence[int],
    accuracies: Sequence[float],
) -> BoolArray:
    """Whether a bound on the accuracy of one instance says no more, at some radii, than it may.

    Guarantee: where True, the expected accuracy on every D' within the radius is at least what is claimed, provided
    that the steps bound what they are said to.

    Args:
        stated: the bound, as its `to_dict` has it; only `mechanism` and `threat` are taken from there.
        steps: shares and probabilities that the claim follows from, of `distributions.steps_of_wrong` or
            `distributions.steps_of_errors`, computed again from the votes.
        radii: 1 or more each.
        accuracies: what is claimed at each.
    """
    route = _TradeoffRoute(PrivateTraining.of(stated["mechanism"]), Threat(stated["threat"]))
    lengths, heights = np.array(steps, dtype=np.float64).T
    # Whatever the steps leave out of the whole may be wrong for certain.
    lengths, heights = np.append(lengths, max(1 - lengths.sum(), 0.0)), np.append(heights, 1.0)
    pairs = zip(radii, accuracies, strict=True)
    held = [route(radius, _Average(heights, lengths, np.array([claimed]))) for radius, claimed in pairs]
    return np.concatenate(held)


class _Conditions(Protocol):
    """What curves have to be small enough for, a condition for each claim."""

    @property
    def x(self) -> FloatArray:
        """Where a curve is asked."""
        ...

    def __len__(self) -> int: ...

    def take(self, rows: IndexArray) -> _Conditions:
        """Those of some claims."""
        ...

    def below_one(self, largest: FloatArray) -> BoolArray:
        """Whether a curve with these values at `x`, or each of several, leaves the label on top."""
        ...


class _Pairs:
    """A bound on what is not the label's, and one on a rival, for each claim."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.x = np.concatenate([limits.miss_upper, limits.rival_upper])

    def __len__(self) -> int:
        return len(self._limits.top_lower)

    def take(self, rows: IndexArray) -> _Pairs:
        """Those of some claims."""
        return _Pairs(self._limits.take(rows))

    def below_one(self, largest: FloatArray) -> BoolArray:
        """Whether the label keeps more than the rival gets, by their weights."""
        limits, points = self._limits, len(self)
        left = limits.weight * (1 - largest[..., :points])
        # Weights are whole numbers: either product is off by its last digit at most, far less than the tolerance.
        tolerance = TOLERANCE * np.maximum(limits.weight, limits.rival_weight)
        return limits.rival_weight * largest[..., points:] < left - tolerance


class _Average:
    """The error of one instance on average, against what is claimed of it."""

    def __init__(self, heights: FloatArray, lengths: FloatArray, claimed: FloatArray) -> None:
        self.x, self._lengths, self._claimed = heights, lengths, claimed

    def __len__(self) -> int:
        return len(self._claimed)

    def take(self, rows: IndexArray) -> _Average:
        """Those of some claims."""
        return _Average(self.x, self._lengths, self._claimed[rows])

    def below_one(self, largest: FloatArray) -> BoolArray:
        """Whether the error and what is claimed of accuracy add up to no more than one."""
        return (largest @ self._lengths)[..., None] + self._claimed < 1 + TOLERANCE


class _TradeoffRoute:
    """Every split of the changes, by whatever shows in the least time that a claim holds there.

    An event that has probability x under D has at most K_(0, inserted)(x) without the insertions, and then at most
    K_(deleted, 0) of that on D'. Such a chain needs the curves of pure splits only, which serve all radii. Where it
    does not show a claim, the curve of the split itself decides. Of more changes than `_MOST_CHAINED`, neighbouring
    splits are taken together: (most deleted, most inserted) of them dominates each. It has more changes than the
    radius, so where a claim fails there, fewer splits are taken together.

    An input that moves does so once: in a chain with what was gained, or where nothing was with what was lost.
    """

    def __init__(self, training: PrivateTraining, threat: Threat, shift: float = 0.0) -> None:
        self._training, self._threat, self._shift = training, threat, shift
        self._gained = _PureSplits(lambda number: self._exact(Difference(number, 0), shift))
        self._lost = _PureSplits(lambda number: self._exact(Difference(0, number), 0.0))
        self._tables: dict[tuple[Difference, float], _ConcaveTable] = {}
        self._node_values: dict[tuple[int, float], FloatArray] = {}

    def __call__(self, radius: int, claims: _Conditions) -> BoolArray:
        if self._threat is not Threat.SYMMETRIC_DIFFERENCE:
            return self._holds(differences(self._threat, radius)[0], claims)
        if self._training.keep is not None or radius > _MOST_CHAINED:
            return self._in_blocks(radius, claims)
        if radius > self._lost.known + _FEW_CURVES and not self._plausible(radius, claims):
            return np.zeros(len(claims), dtype=np.bool_)
        if not (self._gained.know(radius) and self._lost.know(radius)):
            return self._in_blocks(radius, claims)
        step = max(_CHAINED_AT_ONCE // (radius + 1), 1)
        rows = np.arange(len(claims))
        parts = (rows[start : start + step] for start in range(0, len(rows), step))
        return np.concatenate([self._chained(radius, claims.take(part)) for part in parts])

    def _plausible(self, radius: int, claims: _Conditions) -> bool:
        """Whether some claim holds where all changes are alike: else hundreds of curves need not be computed."""
        return bool((self._holds(Difference(radius, 0), claims) & self._holds(Difference(0, radius), claims)).any())

    def _chained(self, radius: int, claims: _Conditions) -> BoolArray:
        """By chains; where these do not show a claim, by the curve of the split itself."""
        gained = np.arange(radius + 1)
        x = claims.x
        without = self._lost.at_most(radius - gained, np.broadcast_to(x, (radius + 1, len(x))))
        shown = claims.below_one(self._gained.at_most(gained, without))
        held = np.ones(shown.shape[1], dtype=np.bool_)
        # Those splits first that show the fewest claims: a false one is refuted there.
        for number in np.argsort(shown.sum(axis=1), kind="stable").tolist():
            doubted = np.flatnonzero(held & ~shown[number])
            if len(doubted):
                held[doubted] = self._holds(Difference(number, radius - number), claims.take(doubted))
        return held

    def _in_blocks(self, radius: int, claims: _Conditions) -> BoolArray:
        held = np.ones(len(claims), dtype=np.bool_)
        fewest, width = 0, max(radius // 4, 1)
        while fewest <= radius and held.any():
            most, rest = min(fewest + width - 1, radius), np.flatnonzero(held)
            shown = self._holds(Difference(most, radius - fewest), claims.take(rest))
            if not shown.all() and most > fewest:
                width = (most - fewest + 1) // 2
                continue
            held[rest[~shown]] = False
            fewest, width = most + 1, min(width + max(width // 4, 1), max(radius // 4, 1))
        return held

    def _holds(self, split: Difference, claims: _Conditions) -> BoolArray:
        x = claims.x
        pure = (Difference(split.gained, 0), Difference(0, split.lost))
        is_new = any(sum(each) > _MANY_KEPT and all(each != known for known, _ in self._tables) for each in pure)
        if self._training.keep is not None and is_new:
            # Thousands of curves are not computed for a claim that one of them refutes.
            held = claims.below_one(self._at_least(self._training.keep, split, x))
            if not held.any():
                return held
        return claims.below_one(self._largest(split, x))

    def _at_least(self, keep: float, split: Difference, x: FloatArray) -> FloatArray:
        """A lower bound on what `_largest` says of a subsampled mechanism, from a number that is nearly always kept.

        Let k or more be kept but with probability m. If D' has them, P(S) >= (1 - m) P_k(S); if D has them,
        Q(S) <= m + Q_k(S).
        """
        changes = max(split)
        kept = int(stats.binom.ppf(max(float(x.min()) / 10, 1e-12), changes, keep))
        missed = float(stats.binom.cdf(kept - 1, changes, keep))
        if split.gained >= split.lost:
            return (1 - missed) * self._exact(Difference(kept, 0), self._shift)(x)
        return self._exact(Difference(0, kept), self._shift)(np.maximum(x - missed, 0.0))

    def _largest(self, split: Difference, x: FloatArray) -> FloatArray:
        """K of a split. Of a subsampled mechanism: pure splits mixed over what was kept, others as a chain of two."""
        keep = self._training.keep
        if keep is None or not any(split):
            return self._exact(split, self._shift)(x)
        if split.lost:
            x = self._mixed(keep, Difference(0, split.lost), 0.0 if split.gained else self._shift)(x)
        return self._mixed(keep, Difference(split.gained, 0), self._shift)(x) if split.gained else x

    def _mixed(self, keep: float, split: Difference, shift: float) -> _ConcaveTable:
        """K of a pure split: the mean of K_(k, 0) over what was kept, or the inverse of the mean of inverses."""
        if (split, shift) not in self._tables:
            kept = np.arange(sum(split) + 1)
            weights = stats.binom.pmf(kept, sum(split), keep)
            used = weights > 1e-16
            # What is left out counts as if whoever was kept were seen: K <= 1.
            mean = np.full(len(_NODES), float(weights[~used].sum()))
            for k in kept[used].tolist():
                mean += weights[k] * self._at_nodes(k, shift)
            mean = np.minimum(mean, 1.0)
            # The inverse of K_(0, j) is one minus the curve of the reverse pair at one minus y, and that is K_(j, 0);
            # one minus the nodes are the nodes backwards.
            self._tables[split, shift] = (
                _ConcaveTable(_NODES, mean, error=_NODE_ERROR)
                if split.gained
                else _ConcaveTable(1 - mean[::-1], _NODES, error=_NODE_ERROR)
            )
        return self._tables[split, shift]

    def _at_nodes(self, kept: int, shift: float) -> FloatArray:
        if (kept, shift) not in self._node_values:
            try:
                self._node_values[kept, shift] = self._exact(Difference(kept, 0), shift)(_NODES)
            except NumericalError:  # so little noise that whoever is kept is seen: K <= 1 is all that is claimed
                self._node_values[kept, shift] = np.ones(len(_NODES))
        return self._node_values[kept, shift]

    def _exact(self, split: Difference, shift: float) -> ExactTradeoff:
        return ExactTradeoff(self._training.noise, self._training.rate, self._training.steps, *split, shift=shift)


class _PureSplits:
    """Upper bounds on the curves of insertions alone, or of deletions alone, of every number of them.

    Each curve is kept as lines that lie above all of it, the best ones at some probabilities. At any other probability
    the lines of its neighbours are nearly as good, and as safe.
    """

    def __init__(self, curve_of: Callable[[int], ExactTradeoff]) -> None:
        self._curve_of = curve_of
        # Intercepts and slopes by the number of changes, from none on.
        none = curve_of(0).lines(_AT) or (np.ones(len(_AT)), np.zeros(len(_AT)))  # K <= 1, where that is all
        self._lines: FloatArray = np.stack(none)[None]
        self.known = 0

    def know(self, number: int) -> bool:
        """Compute the curves of up to so many changes; False where one is not known by lines."""
        while self.known < number:
            lines = self._curve_of(self.known + 1).lines(_AT)
            if lines is None:
                return False
            self.known += 1
            if self.known == len(self._lines):  # Room for twice as many.
                self._lines = np.concatenate([self._lines, np.zeros_like(self._lines)])
            self._lines[self.known] = lines
        return True

    def at_most(self, numbers: npt.NDArray[np.int64], x: FloatArray) -> FloatArray:
        """Upper bounds at x, rows x points, a number of changes for each row."""
        rows, right = numbers[:, None], np.clip(np.searchsorted(_AT, x), 1, len(_AT) - 1)
        lines = (self._lines[rows, 0, near] + self._lines[rows, 1, near] * x for near in (right - 1, right))
        return np.clip(np.minimum(*lines), x, 1.0)


class _ConcaveTable:
    """An upper bound on a concave, increasing function with values in [0, 1], from its values at some points.

    Between two points a concave function lies below the chords of the intervals on both sides, extended; where there is
    only one of them, below that one; where there is none, nothing is known but that it is at most 1.

    Args:
        x: where it is known, ascending; each may be too small by up to `error`.
        y: its values there; each may be too large by up to `error`.
        error: see there; chords are turned by so much that they stay above the function.
    """

    def __init__(self, x: FloatArray, y: FloatArray, *, error: float = 0.0) -> None:
        x = np.maximum.accumulate(x)
        apart = np.append(np.diff(x) > max(1e-12, 16 * error), True)  # Closer points would turn errors into slopes.
        self._x, self._y = x[apart], y[apart]
        rise, run = np.diff(self._y), np.diff(self._x)
        self._steepest, self._flattest = (rise + error) / (run - error), np.maximum(rise - error, 0) / (run + error)

    def __call__(self, x: FloatArray) -> FloatArray:
        right = np.searchsorted(self._x, x)
        from_left = self._chord(right - 2, right - 1, self._steepest, x)
        from_right = self._chord(right, right, self._flattest, x)
        return np.clip(np.minimum(from_left, from_right), 0.0, 1.0)

    def _chord(
        self, interval: npt.NDArray[np.intp], point: npt.NDArray[np.intp], slopes: FloatArray, x: FloatArray
    ) -> FloatArray:
        """The chord of an interval through one of its points at x, 1 where there is no such interval."""
        there = (interval >= 0) & (interval < len(slopes))
        if not there.any():
            return np.ones(len(x))
        interval, point = np.where(there, interval, 0), np.where(there, point, 0)
        return np.where(there, self._y[point] + slopes[interval] * (x - self._x[point]), 1.0)


# Probabilities at which the lines of pure splits are the best ones, evenly spaced as normal quantiles.
_AT: FloatArray = special.ndtr(np.linspace(-7.0, 7.0, 1 << 10))
# Probabilities at which the curves of a subsampled mechanism are tabulated, evenly spaced as normal quantiles.
_NODES: FloatArray = special.ndtr(np.linspace(-6.0, 6.0, 4001))
# By how much the curves there may differ from concave ones, and one minus a node from a node.
_NODE_ERROR = 1e-12


# --- RDP and ADP ------------------------------------------------------------------------------------------------------

# Beyond this radius claims on Renyi divergences are first tried at smaller ones.
_FEW_CHANGES = 8


@second_route("subsampled-gaussian", "rdp")
@second_route("sampled-gaussian", "rdp")
def recheck_renyi(claim: Claim) -> BoolArray:
    """Which radii of RDP do not hold by divergences that are computed again."""
    return claim.unconfirmed(_RenyiRoute(claim))


@second_route("subsampled-gaussian", "adp")
@second_route("sampled-gaussian", "adp")
def recheck_approximate(claim: Claim) -> BoolArray:
    """Which radii of ADP do not hold by an (eps, delta) that is computed again."""
    return claim.unconfirmed(_ApproximateRoute(claim))


class _RenyiRoute:
    """The paper's condition, at the orders that matter, from moments with every component of the mixture."""

    def __init__(self, claim: Claim) -> None:
        self._training, self._threat = PrivateTraining.of(claim.constants), claim.threat
        self._group, self._complement = claim.options["group"], claim.options["complement"]
        self._suggestion = group_divergence(self._group, private(claim.mechanism), claim.threat)
        self._moments = ExactMoments(self._training.noise, self._training.rate)
        self._known: dict[tuple[Difference, float], float] = {}

    def __call__(self, radius: int, limits: Limits) -> BoolArray:
        # What does not hold for fewer changes does not for more, whose divergences may take minutes.
        fewer = _FEW_CHANGES
        while fewer < radius:
            if not self._holds(fewer, limits).any():
                return np.zeros(len(limits.top_lower), dtype=np.bool_)
            fewer *= 2
        return self._holds(radius, limits)

    def _holds(self, radius: int, limits: Limits) -> BoolArray:
        orders = self._orders(radius, limits)
        if not len(orders):
            return np.zeros(len(limits.top_lower), dtype=np.bool_)
        eps = np.array([self._divergence(radius, order) for order in orders.tolist()])
        lower = _after_lower(orders, eps, limits.top_lower)
        upper = _after_upper(orders, eps, limits.rival_upper)
        if self._complement:
            lower = np.maximum(lower, 1 - _after_upper(orders, eps, limits.miss_upper))
            upper = np.minimum(upper, 1 - _after_lower(orders, eps, 1 - limits.rival_upper))
        return limits.weight * lower > limits.rival_weight * upper

    def _orders(self, radius: int, limits: Limits) -> FloatArray:
        """The best order of each point for its upper and for its lower bound."""
        orders, eps = self._suggestion.at(radius)
        orders, eps = orders[np.isfinite(eps)], eps[np.isfinite(eps)]
        if not len(orders):
            return orders
        upper, lower = (orders - 1) / orders, orders / (orders - 1)
        best = [np.argmin((np.log(np.maximum(x, 1e-300))[:, None] + eps) * upper, axis=1) for x in limits[1:3]]
        best += [
            np.argmax(np.log(np.maximum(p, 1e-300))[:, None] * lower - eps, axis=1)
            for p in (limits.top_lower, 1 - limits.rival_upper)
        ]
        return orders[np.unique(np.concatenate(best))]

    def _divergence(self, radius: int, order: float) -> float:
        changes = self._threat.changes(radius)
        match self._group:
            case "standard":
                doublings = (changes - 1).bit_length()
                return 3.0**doublings * self._either_way(Difference(1, 0), order * 2.0**doublings)
            case "paper":
                moments = ExactMoments(self._training.noise, 1 - (1 - self._training.rate) ** changes)
                moment = max(moments.log_moment(1, 0, order), moments.log_moment(0, 1, order))
                return self._training.steps * moment / (order - 1)
            case _:
                return max(self._either_way(split, order) for split in differences(self._threat, radius))

    def _either_way(self, split: Difference, order: float) -> float:
        """Divergence of one split over all steps, the larger of both directions."""
        both = (split, Difference(split.lost, split.gained))
        return max(self._log_moment(each, order) for each in both) / (order - 1)

    def _log_moment(self, split: Difference, order: float) -> float:
        keep = self._training.keep
        if keep is None:
            return self._inner_log_moment(split, order)
        # The mean of the inner moments over how many changed examples were kept.
        up, down = (stats.binom.logpmf(np.arange(n + 1), n, keep) for n in split)
        inner = [
            [self._inner_log_moment(Difference(k, j), order) for j in range(split.lost + 1)]
            for k in range(split.gained + 1)
        ]
        return float(special.logsumexp(up[:, None] + down + np.array(inner)))

    def _inner_log_moment(self, split: Difference, order: float) -> float:
        """Of all steps, for a mechanism without subsampling."""
        if (split, order) not in self._known:
            self._known[split, order] = self._training.steps * self._moments.log_moment(*split, order)
        return self._known[split, order]


class _ApproximateRoute:
    """(eps, delta) of one example from its divergences, then of the group; any choice of orders is a proof."""

    def __init__(self, claim: Claim) -> None:
        training = PrivateTraining.of(claim.constants)
        self._threat, self._delta = claim.threat, claim.options["delta"]
        keep = 1.0 if training.keep is None else training.keep
        moments = ExactMoments(training.noise, training.rate)
        # An inner delta of one or more is obeyed whatever the inner mechanism does.
        eps = np.inf if self._delta < keep else 0.0
        for order in CONVERSION_ORDERS.tolist() if eps else []:
            moment = max(moments.log_moment(1, 0, order), moments.log_moment(0, 1, order))
            conversion = np.log(1 - 1 / order) - (np.log(self._delta / keep) + np.log(order)) / (order - 1)
            eps = min(eps, training.steps * moment / (order - 1) + conversion)
        with np.errstate(over="ignore"):
            self._eps = float(np.log1p(keep * np.expm1(max(eps, 0.0)))) * (1 + 1e-13)

    def __call__(self, radius: int, limits: Limits) -> BoolArray:
        changes = self._threat.changes(radius)
        if changes * self._eps > 300:
            return np.zeros(len(limits.top_lower), dtype=np.bool_)
        delta = self._delta * sum(np.exp(i * self._eps) for i in range(changes))
        factor = np.exp(changes * self._eps)
        rival = (factor * limits.rival_upper + delta) * limits.rival_weight * (1 + 1e-13)
        return limits.weight * (limits.top_lower - delta) / factor > rival


def _after_upper(orders: FloatArray, eps: FloatArray, x: FloatArray) -> FloatArray:
    powers = (np.exp(np.minimum(eps, 600))[:, None] * x) ** ((orders - 1) / orders)[:, None]
    return np.minimum(powers.min(axis=0), 1)


def _after_lower(orders: FloatArray, eps: FloatArray, p: FloatArray) -> FloatArray:
    return (np.exp(-eps)[:, None] * p ** (orders / (orders - 1))[:, None]).max(axis=0)
