"""The paper's certificate: Renyi differential privacy (RDP) with three rules for groups of examples.

If the Renyi divergences of order `order` between D' and D are at most `eps`, both ways, then for every event

    Pr'[S] <= K(Pr[S]),   K(x) = (exp(eps) x)^((order - 1) / order)            (Mironov 2017, Proposition 10)

for *every* order, so K is minimised over the whole grid of orders, upper and lower bound each with its own best one.
The certificate of the paper is K^-1(top_lower) > K(rival_upper). Since K holds for complements too, the lower bound may
also be 1 - K(1 - top_lower) and the upper bound 1 - K^-1(1 - rival_upper): `complement=True` takes the better.

The three rules for r changed examples:

* `mixture` (sound): the divergence of the dominating pairs of `mixture.py`, every split, the larger of both directions.
* `paper`: the divergence of one example at sample rate 1 - (1 - q)^r. It assumes that r examples together move the
  clipped sum by at most the clipping norm. Per-example clipping allows r times that, so for DP-SGD it is not valid
  (docs/theory.md, section 7). Kept exactly, for reproduction.
* `standard` (sound): Mironov 2017, Proposition 2, from the divergence of one example.

The divergences themselves are computed in `renyi.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from mithridate import _validate
from mithridate.accounting.accountant import Accountant, BoolArray, FloatArray, Margins, Method
from mithridate.accounting.mixture import log_binomial
from mithridate.accounting.renyi import ERROR, log_moments
from mithridate.core.mechanism import Mechanism, Private, SampledGaussian, Subsampled, Threat, private
from mithridate.errors import NumericalError, UnsupportedMechanismError

GROUPS = ("mixture", "paper", "standard")
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
class RDP(Method):
    """Certify by Renyi differential privacy, as in the paper.

    Guarantee: as `FDP`, for `group="mixture"` and `group="standard"`.

    Assumes: `group="paper"` assumes that any group of examples together moves the clipped sum by at most the
    clipping norm, which per-example clipping does not give; certificates say so.

    Args:
        group: the rule for groups of examples; see the module docstring.
        complement: use the bound on complements too; tighter, not in the paper.

    References: Liu et al. 2023 (AAAI), theorem "Pointwise-certified robustness by outcomes guarantee"; Mironov 2017
    (arXiv 1702.07476), Propositions 2 and 10; Mironov, Talwar, Zhang 2019 (arXiv 1908.10530).
    """

    group: str = "mixture"
    complement: bool = False

    def __post_init__(self) -> None:
        _validate.one_of(GROUPS, group=self.group)

    name = "rdp"
    title = "RDP"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What `group="paper"` takes for granted."""
        if self.group == "paper":
            return (
                "assumes bounded group sensitivity: that all changed examples together move the clipped gradient sum "
                "by at most one clipping norm. DP-SGD does not ensure this; do not rely on these radii.",
            )
        return ()

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
    def is_sound(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Not with the paper's rule for groups, which is not valid for DP-SGD."""
        return self.group != "paper"


class RdpAccountant:
    """The paper's condition from divergences at every order."""

    def __init__(self, divergence: GroupDivergence, complement: bool) -> None:
        self._divergence = divergence
        self._complement = complement

    @property
    def error_budget(self) -> dict[str, float]:
        """The relative error that is added to every divergence."""
        return {"divergence": ERROR}

    def close(self) -> None:
        """Nothing to keep."""

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
        return lower > upper


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


class GroupDivergence(Protocol):
    """Divergences over all steps between D' and D, the larger of both directions; infinite where unknown."""

    def at(self, radius: int) -> tuple[FloatArray, FloatArray]:
        """Orders, and the divergence at each of them for `radius` units of the threat."""
        ...


@lru_cache(maxsize=2)  # Certificates of one mechanism come in series; more tables would only fill the memory.
def group_divergence(group: str, mechanism: Private, threat: Threat) -> GroupDivergence:
    """The rule of the given name."""
    if group == "mixture":
        return MixtureDivergence(mechanism, threat)
    return PaperDivergence(mechanism, threat) if group == "paper" else StandardDivergence(mechanism, threat)


class MixtureDivergence:
    """`group="mixture"`: the dominating pairs themselves, every split of the symmetric difference.

    The larger divergence over all splits and both directions is taken at each order. Reflection swaps the directions:
    D(Q || P) of the split (d, a) is D(P || Q) of the split (a, d).
    """

    def __init__(self, mechanism: Private, threat: Threat) -> None:
        self._mechanism = mechanism
        self._threat = threat
        self._tables: dict[int, FloatArray] = {}
        self._known: dict[int, FloatArray] = {}

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
                return self._pure(radius)
            case Threat.REPLACE | Threat.EDIT | Threat.LABELS | Threat.FEATURES:
                return self._moments([radius], [radius], ORDERS)[:, 0, 0]
            case Threat.SYMMETRIC_DIFFERENCE:
                return np.maximum(self._pure(radius), self._mixed(radius))

    def _pure(self, radius: int) -> FloatArray:
        forward = self._moments([radius], [0], ORDERS)
        return np.maximum(forward, self._moments([0], [radius], ORDERS))[:, 0, 0]

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
        pure = self._pure(top // 2 if top > 8 else 1)
        useful = np.flatnonzero(pure / (ORDERS - 1) < _USELESS)
        numbers = list(range(0, top + 1, step))
        table = np.full((len(ORDERS), len(numbers) + 1), np.inf)
        for chosen in np.array_split(useful, max(1, len(useful) // _ORDERS_AT_ONCE)):
            for order, moments in zip(chosen, self._moments(numbers, numbers, ORDERS[chosen]), strict=True):
                mixed = np.fliplr(moments[1:, 1:])
                # Antidiagonals, whose sums are 2, 3, ..., len(numbers).
                table[order, 2:] = [mixed.diagonal(offset).max() for offset in range(len(mixed) - 1, -1, -1)]
        return table

    def _moments(self, deleted: list[int], inserted: list[int], orders: FloatArray) -> FloatArray:
        return composed_log_moments(self._mechanism, deleted, inserted, orders)


class PaperDivergence:
    """`group="paper"`: one example at sample rate 1 - (1 - q)^r. Not valid for DP-SGD; see the module docstring."""

    def __init__(self, mechanism: Private, threat: Threat) -> None:
        if not isinstance(mechanism, SampledGaussian):
            raise UnsupportedMechanismError(
                "group='paper' is defined for a plain SampledGaussian only; use group='mixture' or method FDP."
            )
        self._mechanism = mechanism
        self._threat = threat
        self._known: dict[int, FloatArray] = {}

    def at(self, radius: int) -> tuple[FloatArray, FloatArray]:
        """See `GroupDivergence`."""
        m, changes = self._mechanism, self._threat.changes(radius)
        if changes not in self._known:
            rate = -np.expm1(changes * np.log1p(-m.sample_rate)) if m.sample_rate < 1 else 1.0
            enlarged = SampledGaussian(m.noise_multiplier, float(rate), m.steps)
            self._known[changes] = one_example_divergence(enlarged, ORDERS)
        return ORDERS, self._known[changes]


class StandardDivergence:
    """`group="standard"`: (order, eps) for one example gives (order / 2^c, 3^c eps) for r <= 2^c, order >= 2^(c+1)."""

    def __init__(self, mechanism: Private, threat: Threat) -> None:
        self._mechanism = mechanism
        self._threat = threat
        self._known: dict[int, FloatArray] = {}

    def at(self, radius: int) -> tuple[FloatArray, FloatArray]:
        """See `GroupDivergence`."""
        doublings = (self._threat.changes(radius) - 1).bit_length()
        orders = ORDERS[ORDERS >= 2]
        if doublings not in self._known:
            self._known[doublings] = 3.0**doublings * one_example_divergence(self._mechanism, orders * 2.0**doublings)
        return orders, self._known[doublings]


def one_example_divergence(mechanism: Private, orders: FloatArray) -> FloatArray:
    """Divergence over all steps when one example is added or removed, the larger of both directions."""
    forward = composed_log_moments(mechanism, [1], [0], orders)
    return np.maximum(forward, composed_log_moments(mechanism, [0], [1], orders))[:, 0, 0] / (orders - 1)


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
    kept_deleted = np.stack([_log_kept(d, mechanism.keep, len(all_deleted)) for d in deleted])
    kept_inserted = np.stack([_log_kept(a, mechanism.keep, len(all_inserted)) for a in inserted])
    result = np.empty((len(orders), len(deleted), len(inserted)))
    for i in range(len(orders)):
        # [deleted, kept deleted, kept inserted] -> [deleted, kept inserted] -> [deleted, inserted]
        half = np.logaddexp.reduce(kept_deleted[:, :, None] + inner[i], axis=1)
        result[i] = np.logaddexp.reduce(kept_inserted[None, :, :] + half[:, None, :], axis=2)
    return np.where(result < _HOPELESS / 2, result, np.inf)


def _log_kept(changes: int, keep: float, length: int) -> FloatArray:
    """Log probabilities that 0, 1, ... of `changes` examples are kept."""
    weights = np.full(length, -np.inf)
    weights[: changes + 1] = log_binomial(changes, keep)
    return weights
