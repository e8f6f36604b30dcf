"""The second routes of RDP and ADP: moments of every component of the mixture, in log space.

The engine is asked only which Renyi orders to try: the condition at any order is a proof by itself.
"""

from __future__ import annotations

import numpy as np
from scipy import special, stats

from mithridate.accounting.adp import CONVERSION_ORDERS
from mithridate.accounting.rdp import group_divergence
from mithridate.auditing.exact_curves import ExactMoments, PrivateTraining
from mithridate.auditing.routes import BoolArray, Claim, Difference, FloatArray, Limits, differences, second_route
from mithridate.core.mechanism import private

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
        self._moments: dict[float, ExactMoments] = {}
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
        return lower > upper

    def _orders(self, radius: int, limits: Limits) -> FloatArray:
        """The best order of each point for its upper and for its lower bound."""
        orders, eps = self._suggestion.at(radius)
        orders, eps = orders[np.isfinite(eps)], eps[np.isfinite(eps)]
        if not len(orders):
            return orders
        upper, lower = (orders - 1) / orders, orders / (orders - 1)
        best = [np.argmin((np.log(np.maximum(x, 1e-300))[:, None] + eps) * upper, axis=1) for x in limits[1:]]
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
            moments = self._moments.setdefault(order, ExactMoments(self._training.noise, self._training.rate))
            self._known[split, order] = self._training.steps * moments.log_moment(*split, order)
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
        return (limits.top_lower - delta) / factor > (factor * limits.rival_upper + delta) * (1 + 1e-13)


def _after_upper(orders: FloatArray, eps: FloatArray, x: FloatArray) -> FloatArray:
    powers = (np.exp(np.minimum(eps, 600))[:, None] * x) ** ((orders - 1) / orders)[:, None]
    return np.minimum(powers.min(axis=0), 1)


def _after_lower(orders: FloatArray, eps: FloatArray, p: FloatArray) -> FloatArray:
    return (np.exp(-eps)[:, None] * p ** (orders / (orders - 1))[:, None]).max(axis=0)
