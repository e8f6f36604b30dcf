"""The paper's two certificates: by Renyi differential privacy (RDP), and by (eps, delta) from it (ADP).

**RDP**, with three rules for groups of examples. If the Renyi divergences of order `order` between D' and D are at most
`eps`, both ways, then for every event

    Pr'[S] <= K(Pr[S]),   K(x) = (exp(eps) x)^((order - 1) / order)            (Mironov 2017, Proposition 10)

for *every* order, so K is minimised over the whole grid of orders, upper and lower bound each with its own best one.
The certificate of the paper is K^-1(top_lower) > K(rival_upper). Since K holds for complements too, the lower bound may
also be 1 - K(1 - top_lower) and the upper bound 1 - K^-1(1 - rival_upper): `complement=True` takes the better.

Where votes for label l weigh w_l, the lower bound has to exceed (w_rival / w_top) x the upper bound, for every rival.

The three rules for r changed examples:

* `mixture` (sound): the divergence of the dominating pairs of `mixture.py`, every split, the larger of both directions.
* `paper`: the divergence of one example at sample rate 1 - (1 - q)^r. It assumes that r examples together move the
  clipped sum by at most the clipping norm. Per-example clipping allows r times that, so for DP-SGD it is not valid
  (docs/theory.md, section 7). Kept exactly, for reproduction.
* `standard` (sound): Mironov 2017, Proposition 2, from the divergence of one example.

The divergences themselves are computed in `renyi.py`.

**ADP**. One example obeys (eps, delta) with `delta` fixed beforehand and

    eps = min over orders of  D + log((order - 1) / order) - (log delta + log order) / (order - 1)

(Balle et al. 2020, arXiv 1905.09982, Theorem 21), D the Renyi divergence of one example over all steps. A group of r
examples then obeys (r eps, delta (e^(r eps) - 1) / (e^eps - 1)), the standard group privacy of (eps, delta); the
paper's own code used r delta instead, which is smaller and not valid. With K(x) = e^(eps_r) x + delta_r, the condition
is K^-1(top_lower) > K(rival_upper).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mithridate import _validate
from mithridate.accounting.renyi import ERROR, log_moments, log_weights
from mithridate.core.mechanism import Mechanism, Private, SampledGaussian, Subsampled, Threat, private
from mithridate.core.rule import Accountant, BoolArray, FloatArray, Margins, Method, Weighted
from mithridate.errors import NumericalError, UnsupportedMechanismError

# Dense near one and around two, where the best orders of large groups lie: beyond a sharp limit that falls with the
# size of the group, the event that *all* of it was sampled makes the divergence explode.
ORDERS: FloatArray = np.unique([*(1 + np.geomspace(0.01, 63.0, 120)), *np.linspace(1.4, 3.0, 65)])
# A divergence above this over all steps certifies nothing: such orders are left out.
_USELESS = 100.0
# Stands for infinity where infinity would meet a probability of zero.
_HOPELESS = 1e200
# Numbers of changes are tabulated one by one up to here, beyond in as many steps, rounded up.
_LATTICE = 512
_ORDERS_AT_ONCE = 16


@dataclass(frozen=True)
class RDP(Weighted, Method):
    """Certify by Renyi differential privacy, as in the paper.

    Guarantee: as `FDP`, for `group="mixture"` and `group="standard"`.

    Assumes: `group="paper"` assumes that any group of examples together moves the clipped sum by at most the
    clipping norm, which per-example clipping does not give; certificates say so.

    Args:
        group: the rule for groups of examples; see the module docstring.
        complement: use the bound on complements too; tighter, not in the paper.
        class_weights: weights of the votes by label; the prediction is the label with the largest weight x votes. See
            docs/theory.md, section 5.

    References: Liu et al. 2023 (AAAI), theorem "Pointwise-certified robustness by outcomes guarantee"; Mironov 2017
    (arXiv 1702.07476), Propositions 2 and 10; Mironov, Talwar, Zhang 2019 (arXiv 1908.10530).
    """

    group: str = "mixture"
    complement: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.one_of(tuple(_GROUPS), group=self.group)

    name = "rdp"
    title = "RDP"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What `group="paper"` takes for granted."""
        if self.group == "paper":
            return (
                *super().assumptions,
                "assumes bounded group sensitivity: that all changed examples together move the clipped gradient sum "
                "by at most one clipping norm. DP-SGD does not ensure this; do not rely on these radii.",
            )
        return super().assumptions

    def accountant(self, mechanism: Mechanism, threat: Threat) -> Accountant:
        """Divergences are computed as radii are asked for; nothing is kept on disk."""
        return RdpAccountant(group_divergence(self.group, private(mechanism), threat), self.complement)

    @property
    def short_title(self) -> str:
        """In a word or two."""
        if self.group != "mixture":
            return f"RDP {self.group}"
        return "RDP" if self.complement else "RDP plain"

    def in_words(self) -> str:
        """With its options.

        >>> RDP("mixture", complement=True).in_words()
        'RDP (mixture, with complements)'
        """
        return f"RDP ({self.group}{', with complements' if self.complement else ''})"

    @property
    def flaw(self) -> str:
        """What is wrong with the paper's rule for groups; see the module docstring."""
        return "not valid for DP-SGD" if self.group == "paper" else ""


class RdpAccountant(Accountant):
    """The paper's condition from divergences at every order."""

    def __init__(self, divergence: GroupDivergence, complement: bool) -> None:
        self._divergence = divergence
        self._complement = complement

    @property
    def error_budget(self) -> dict[str, float]:
        """The relative error that is added to every divergence."""
        return {"divergence": ERROR}

    def holds(self, radius: int, margins: Margins) -> BoolArray:
        """Whether the top label stays on top for every D' within `radius`; see `Accountant`."""
        orders, eps = self._divergence.at(radius)
        usable = np.isfinite(eps)
        if not usable.any():
            return np.zeros(len(margins), dtype=np.bool_)
        orders, eps = orders[usable], eps[usable]
        lower = margins.top.map(lambda p: smallest_after(orders, eps, p))
        upper = margins.rival.map(lambda x: largest_after(orders, eps, x))
        if self._complement:
            lower = np.maximum(lower, 1 - margins.miss.map(lambda x: largest_after(orders, eps, x)))
            upper = np.minimum(upper, 1 - margins.rival.map(lambda x: smallest_after(orders, eps, 1 - x)))
        return lower > margins.in_top_votes(upper)


def largest_after(orders: FloatArray, eps: FloatArray, x: FloatArray) -> FloatArray:
    """The smallest K(x) over all orders, rounded up: how likely an event of probability x may become."""
    with np.errstate(divide="ignore"):
        exponents = np.log(x)[:, None] + eps
    exponents *= (orders - 1) / orders
    return np.exp(np.minimum(exponents.min(axis=1) + 1e-12, 0.0))


def smallest_after(orders: FloatArray, eps: FloatArray, p: FloatArray) -> FloatArray:
    """The largest K^-1(p) over all orders, rounded down: how unlikely an event of probability p may become."""
    with np.errstate(divide="ignore"):
        exponents = np.log(p)[:, None] * (orders / (orders - 1)) - eps
    return np.exp(exponents.max(axis=1)) * (1 - 1e-12)


class GroupDivergence:
    """Divergences over all steps between D' and D, the larger of both directions; infinite where unknown."""

    def __init__(self, mechanism: Private, threat: Threat) -> None:
        self._mechanism, self._threat = mechanism, threat
        self._known: dict[int, FloatArray] = {}

    def at(self, radius: int) -> tuple[FloatArray, FloatArray]:
        """Orders, and the divergence at each of them for `radius` units of the threat."""
        raise NotImplementedError


class MixtureDivergence(GroupDivergence):
    """`group="mixture"`: the dominating pairs themselves, every split of the symmetric difference.

    The larger divergence over all splits and both directions is taken at each order. Reflection swaps the directions:
    D(Q || P) of the split (d, a) is D(P || Q) of the split (a, d).
    """

    def __init__(self, mechanism: Private, threat: Threat) -> None:
        super().__init__(mechanism, threat)
        self._tables: dict[int, FloatArray] = {}

    def at(self, radius: int) -> tuple[FloatArray, FloatArray]:
        """See `GroupDivergence`."""
        if radius > self._most:
            raise NumericalError(f"Renyi divergences are not computed for more than {self._most} changes; use FDP().")
        if radius not in self._known:
            self._known[radius] = self._worst(radius) / (ORDERS - 1)
        return ORDERS, self._known[radius]

    @property
    def _most(self) -> int:
        """The largest radius whose divergences fit into memory and minutes."""
        every_split = self._threat is Threat.SYMMETRIC_DIFFERENCE
        if isinstance(self._mechanism, Subsampled):
            return 128 if every_split else 512
        return 4096 if every_split else 1 << 16

    def _worst(self, radius: int) -> FloatArray:
        match self._threat:
            case Threat.ADD | Threat.REMOVE:
                return _pure_log_moments(self._mechanism, radius, ORDERS)
            case Threat.REPLACE | Threat.EDIT | Threat.LABELS | Threat.FEATURES:
                return composed_log_moments(self._mechanism, [radius], [radius], ORDERS)[:, 0, 0]
            case Threat.SYMMETRIC_DIFFERENCE:
                return np.maximum(_pure_log_moments(self._mechanism, radius, ORDERS), self._mixed(radius))

    def _mixed(self, radius: int) -> FloatArray:
        """The largest moment over all mixed splits, from a table that serves all radii between two powers of two."""
        if radius < 2:
            return np.zeros(len(ORDERS))
        top = max(8, 1 << (radius - 1).bit_length())
        step = max(1, top // _LATTICE)
        if top not in self._tables:
            self._tables[top] = self._table(top, step)
        # Rounded up to the lattice, the two numbers of a split add up to this sum or to one more.
        total = -(-radius // step)
        return self._tables[top][:, total : total + (1 if step == 1 else 2)].max(axis=1)

    def _table(self, top: int, step: int) -> FloatArray:
        """The largest moment of all mixed splits by the sum of their numbers on the lattice: an array [order, sum]."""
        pure = _pure_log_moments(self._mechanism, top // 2 if top > 8 else 1, ORDERS)
        useful = np.flatnonzero(pure / (ORDERS - 1) < _USELESS)
        numbers = list(range(0, top + 1, step))
        table = np.full((len(ORDERS), len(numbers) + 1), np.inf)
        for chosen in np.array_split(useful, max(1, len(useful) // _ORDERS_AT_ONCE)):
            found = composed_log_moments(self._mechanism, numbers, numbers, ORDERS[chosen])
            for order, moments in zip(chosen, found, strict=True):
                mixed = np.fliplr(moments[1:, 1:])
                # Antidiagonals, whose sums are 2, 3, ..., len(numbers).
                table[order, 2:] = [mixed.diagonal(offset).max() for offset in range(len(mixed) - 1, -1, -1)]
        return table


class PaperDivergence(GroupDivergence):
    """`group="paper"`: one example at sample rate 1 - (1 - q)^r; see the module docstring for what is wrong with it."""

    def __init__(self, mechanism: Private, threat: Threat) -> None:
        super().__init__(mechanism, threat)
        if not isinstance(mechanism, SampledGaussian):
            raise UnsupportedMechanismError(
                "group='paper' is defined for a plain SampledGaussian only; use group='mixture' or method FDP."
            )
        self._plain = mechanism

    def at(self, radius: int) -> tuple[FloatArray, FloatArray]:
        """See `GroupDivergence`."""
        m, changes = self._plain, self._threat.changes(radius)
        if changes not in self._known:
            rate = -np.expm1(changes * np.log1p(-m.sample_rate)) if m.sample_rate < 1 else 1.0
            enlarged = SampledGaussian(m.noise_multiplier, float(rate), m.steps)
            self._known[changes] = one_example_divergence(enlarged, ORDERS)
        return ORDERS, self._known[changes]


class StandardDivergence(GroupDivergence):
    """`group="standard"`: (order, eps) for one example gives (order / 2^c, 3^c eps) for r <= 2^c, order >= 2^(c+1)."""

    def at(self, radius: int) -> tuple[FloatArray, FloatArray]:
        """See `GroupDivergence`."""
        doublings = (self._threat.changes(radius) - 1).bit_length()
        orders = ORDERS[ORDERS >= 2]
        if doublings not in self._known:
            self._known[doublings] = 3.0**doublings * one_example_divergence(self._mechanism, orders * 2.0**doublings)
        return orders, self._known[doublings]


_GROUPS = {"mixture": MixtureDivergence, "paper": PaperDivergence, "standard": StandardDivergence}


@lru_cache(maxsize=2)  # Certificates of one mechanism come in series; more tables would only fill the memory.
def group_divergence(group: str, mechanism: Private, threat: Threat) -> GroupDivergence:
    """The rule of the given name."""
    return _GROUPS[group](mechanism, threat)


def one_example_divergence(mechanism: Private, orders: FloatArray) -> FloatArray:
    """Divergence over all steps when one example is added or removed, the larger of both directions."""
    return _pure_log_moments(mechanism, 1, orders) / (orders - 1)


def _pure_log_moments(mechanism: Private, changes: int, orders: FloatArray) -> FloatArray:
    """Log moments when so many examples are added, or as many removed, whichever is larger."""
    forward = composed_log_moments(mechanism, [changes], [0], orders)
    return np.maximum(forward, composed_log_moments(mechanism, [0], [changes], orders))[:, 0, 0]


def composed_log_moments(
    mechanism: Private, deleted: list[int], inserted: list[int], orders: FloatArray, *, prune: bool = True
) -> FloatArray:
    """Log moments, (order - 1) times the divergence, over all steps: an array [order, deleted, inserted].

    With `prune`, orders that could not certify anything are infinite.
    """
    if isinstance(mechanism, Subsampled):
        return _subsampled_log_moments(mechanism, deleted, inserted, orders)
    m = mechanism
    useless = (orders - 1) * _USELESS / m.steps if prune else None
    return m.steps * log_moments(m.noise_multiplier, m.sample_rate, deleted, inserted, orders, useless=useless)


def _subsampled_log_moments(
    mechanism: Subsampled, deleted: list[int], inserted: list[int], orders: FloatArray
) -> FloatArray:
    """Joint convexity: the moment is at most the mean of the inner moments over how many changed examples were kept.

    exp((order - 1) D(P || Q)) is the integral of the perspective of t^order, and so jointly convex in (P, Q).
    """
    all_deleted, all_inserted = list(range(max(deleted) + 1)), list(range(max(inserted) + 1))
    inner = composed_log_moments(mechanism.inner, all_deleted, all_inserted, orders, prune=False)
    # Nothing is known of an infinite moment, however unlikely: a large finite number keeps it so without 0 * infinity.
    inner = np.where(np.isfinite(inner), inner, _HOPELESS)
    kept_deleted, kept_inserted = log_weights(deleted, mechanism.keep), log_weights(inserted, mechanism.keep)
    result = np.empty((len(orders), len(deleted), len(inserted)))
    for i in range(len(orders)):
        # [deleted, kept deleted, kept inserted] -> [deleted, kept inserted] -> [deleted, inserted]
        half = np.logaddexp.reduce(kept_deleted[:, :, None] + inner[i], axis=1)
        result[i] = np.logaddexp.reduce(kept_inserted[None, :, :] + half[:, None, :], axis=2)
    return np.where(result < _HOPELESS / 2, result, np.inf)


# Little loss per example needs high orders: at 64 the paper's MNIST setting would certify half as much.
CONVERSION_ORDERS: FloatArray = np.concatenate([ORDERS, np.geomspace(66.0, 256.0, 40, dtype=np.float64)])


@dataclass(frozen=True)
class ADP(Weighted, Method):
    """Certify by (eps, delta)-differential privacy, as in the paper.

    Guarantee: as `FDP`.

    Assumes: nothing beyond the mechanism.

    Args:
        delta: the delta of one example, in (0, 1).
        class_weights: weights of the votes by label; the prediction is the label with the largest weight x votes. See
            docs/theory.md, section 5.

    References: Liu et al. 2023 (AAAI); Balle et al. 2020 (arXiv 1905.09982), Theorem 21; Balle, Barthe, Gaboardi 2018
    (arXiv 1807.01647) for `Subsampled`.
    """

    delta: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.number_in(0, 1, low_open=True, high_open=True, delta=self.delta)
        object.__setattr__(self, "delta", float(self.delta))

    name = "adp"
    title = "ADP"

    def accountant(self, mechanism: Mechanism, threat: Threat) -> Accountant:
        """The accountant for one mechanism and one threat."""
        return AdpAccountant(one_example_epsilon(private(mechanism), self.delta), self.delta, threat)

    def in_words(self) -> str:
        """With its options."""
        return f"ADP (delta {self.delta:g})"


def one_example_epsilon(mechanism: Private, delta: float) -> float:
    """The smallest eps with which one example obeys (eps, delta).

    A `Subsampled` mechanism is amplified: keeping each example with probability m turns (eps, delta) of the inner
    mechanism into (log(1 + m (e^eps - 1)), m delta), for adding or removing an example.
    """
    if isinstance(mechanism, Subsampled):
        inner_delta = delta / mechanism.keep
        inner = one_example_epsilon(mechanism.inner, inner_delta) if inner_delta < 1 else 0.0
        # log(1 + m (e^eps - 1)) = eps + log(m + (1 - m) e^-eps), without overflow.
        return inner + float(np.log(mechanism.keep + (1 - mechanism.keep) * np.exp(-inner)))
    divergence = one_example_divergence(mechanism, CONVERSION_ORDERS)
    eps = (
        divergence
        + np.log1p(-1 / CONVERSION_ORDERS)
        - (np.log(delta) + np.log(CONVERSION_ORDERS)) / (CONVERSION_ORDERS - 1)
    )
    return max(float(eps.min()), 0.0)


class AdpAccountant(Accountant):
    """The paper's condition for groups of examples."""

    def __init__(self, eps: float, delta: float, threat: Threat) -> None:
        self._eps, self._delta, self._threat = eps, delta, threat

    @property
    def error_budget(self) -> dict[str, float]:
        """The relative error that is added to every divergence."""
        return {"divergence": ERROR}

    def holds(self, radius: int, margins: Margins) -> BoolArray:
        """Whether the top label stays on top for every D' within `radius`; see `Accountant`."""
        eps, delta = self._group(self._threat.changes(radius))
        if not np.isfinite(delta):
            return np.zeros(len(margins), dtype=np.bool_)
        lower = margins.top.map(lambda p: (p - delta) * np.exp(-eps))
        upper = margins.rival.map(lambda x: np.exp(eps) * x + delta)
        return lower * (1 - 1e-12) > margins.in_top_votes(upper) * (1 + 1e-12)

    def _group(self, changes: int) -> tuple[float, float]:
        eps = changes * self._eps
        if eps > 700:
            return eps, np.inf
        factor = np.expm1(eps) / np.expm1(self._eps) if self._eps > 0 else float(changes)
        return eps, float(self._delta * factor)
