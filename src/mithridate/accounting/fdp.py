"""The tight certificate: trade-off curves (f-DP) of the dominating pairs, every split of the changes covered.

For one split (deleted, inserted) and its curve K, every D' of that split obeys
`score'(l) <= K(score(l))` and `score'(l) >= 1 - K(1 - score(l))`, so the top label stays on top if

    K(1 - top_lower) + K(rival_upper) < 1

or, where votes for label l weigh w_l, if K(1 - top_lower) + (w_rival / w_top) K(rival_upper) < 1 for every rival.
Where the distributions of scores y are bounded and not only their means, it is enough that the integrals over t of
K(Pr[1 - y_top > t]) and of K(Pr[y_rival > t]) add up to less than 1, which is never more to ask.

The symmetric difference needs this for *every* split of the radius. A curve per split would be sound and slow; instead

* *chain*: with D'' = D intersected with D', any event obeys P(S) <= K_(deleted, 0)(K_(0, inserted)(Q(S))), so two pure
  curves bound every mixed one (for Gaussians without sampling this is an equality);
* *blocks*: a split is dominated by any split with at least as many changes of each kind, so for large radii the chain
  of the largest `deleted` and the largest `inserted` covers a block of splits; a block that is not shown is halved;
* *exact*: a single split that the chain cannot show gets its own curve.

Where the input may move, too, every curve gets one more factor (`input_shift`). In a chain the input moves part of the
way with the deletions and the rest with the insertions; with shares like the numbers of changes, the chain stays an
equality for Gaussians without sampling.

Every step errs towards "not shown". Proofs: docs/theory.md, section 5.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial

import numpy as np

from mithridate._io.files import cache_folder
from mithridate.accounting.curve_store import ORDER_TOLERANCE, PROBES, CurveStore
from mithridate.accounting.input_shift import identity, shifted
from mithridate.accounting.mixture import binomial_components
from mithridate.accounting.privacy_loss import LINES, ErrorBudget, TradeoffCurve, compose
from mithridate.core.mechanism import Mechanism, Private, SampledGaussian, Subsampled, Threat, private
from mithridate.core.rule import Accountant, BoolArray, FloatArray, IndexArray, Margins, Method, Weighted
from mithridate.errors import NumericalError

CurveOrChain = Callable[[FloatArray], FloatArray]
# From a curve to a bound on an expectation.
MeanOf = Callable[[CurveOrChain], float]

# Up to this radius every split is chained by itself; beyond, splits are covered by blocks that are halved as needed.
_SINGLE_SPLITS = 512
_BLOCKS = 16
# Of a chain, the input moves so many parts of the way in its two legs together.
_SHARES = 8
# Above this radius numbers of changes are rounded up to so many binary digits, which costs at most 0.4% of the radius.
_EXACT_RADIUS = 4096
_LATTICE_BITS = 10
# An average that may come so near to 1 may as well reach it.
_NOTHING_LEFT = 1e-6
# Kept examples beyond this probability count as if the label were lost: added to the curve.
_KEEP_DROP = 1e-12


@dataclass(frozen=True)
class FDP(Weighted, Method):
    """Certify by trade-off curves (f-DP): the tightest method, and the default.

    Guarantee: for every D' within the certified radius, the label has the largest score under D' too, provided that
    the confidence bounds hold.

    Assumes: nothing beyond the mechanism.

    Args:
        cached: keep curves on disk for the next time; does not change any result.
        class_weights: weights of the votes by label; the prediction is the label with the largest weight x votes. See
            docs/theory.md, section 5.

    References: Dong, Roth, Su 2022 (arXiv 1905.02383); Ganesh 2024 (arXiv 2401.10294); Schuchardt et al. 2024
    (arXiv 2403.04867); Zhu, Dong, Wang 2022 (arXiv 2106.08567).
    """

    cached: bool = field(default=True, compare=False, repr=False)

    name = "fdp"
    title = "f-DP"
    reads_distributions = True

    def accountant(self, mechanism: Mechanism, threat: Threat) -> Accountant:
        """Curves from the disk cache where they are known, computed otherwise."""
        return FdpAccountant(Curves(private(mechanism), cached=self.cached), threat)

    def accountant_moved(self, mechanism: Mechanism, threat: Threat, shift: float) -> Accountant:
        """The same curves, each with the change of the input as one more factor; see `input_shift`."""
        return FdpAccountant(Curves(private(mechanism), shift=shift, cached=self.cached), threat)


class CurveFamily(CurveStore):
    """The curves of one `SampledGaussian` for any numbers of changes, remembered on disk."""

    chain_only = False

    def __init__(self, mechanism: SampledGaussian, *, cached: bool = True) -> None:
        super().__init__(mechanism, cache_folder() if cached else None)
        self._seen: tuple[list[tuple[int, FloatArray]], ...] = ([], [])

    def curve(self, deleted: int, inserted: int) -> TradeoffCurve:
        """The curve of one split.

        Raises:
            NumericalError: it cannot be computed, or it contradicts a curve for fewer changes.
        """
        known = self.get(deleted, inserted)
        if known is not None:
            return known
        if not deleted and not inserted:
            return identity()
        m = self._mechanism
        curve = compose(m.noise_multiplier, m.sample_rate, m.steps, deleted, inserted)
        if deleted == 0 or inserted == 0:
            self._check_monotone(deleted, inserted, curve)
        self.put(deleted, inserted, curve)
        return curve

    def _check_monotone(self, deleted: int, inserted: int, curve: TradeoffCurve) -> None:
        """More changes cannot be harder to see: a violation is a bug, never a matter of data."""
        seen, changes = self._seen[inserted > 0], deleted + inserted
        place = bisect.bisect(seen, changes, key=lambda entry: entry[0])
        values = curve(PROBES)
        fewer = seen[place - 1][1] if place else 0.0
        more = seen[place][1] if place < len(seen) else 1.0
        if np.any(fewer > values + ORDER_TOLERANCE) or np.any(values > more + ORDER_TOLERANCE):
            raise NumericalError(f"The curve for {changes} changed examples contradicts another; please report it.")
        seen.insert(place, (changes, values))


class MovedCurveFamily:
    """The curves of a mechanism without subsampling, each with a change of the input as one more factor.

    Args:
        family: the same where the input stays as it is.
        shift: the change over the standard deviation of the noise on inputs.
    """

    def __init__(self, family: CurveFamily, shift: float) -> None:
        self._family, self._shift = family, shift
        self._known: dict[tuple[int, int], TradeoffCurve] = {}

    def curve(self, deleted: int, inserted: int) -> TradeoffCurve:
        """The curve of one split."""
        if (deleted, inserted) not in self._known:
            self._known[deleted, inserted] = shifted(self._family.curve(deleted, inserted), self._shift)
        return self._known[deleted, inserted]


class SubsampledCurveFamily:
    """Pure curves of a `Subsampled` mechanism, mixed from those of its inner mechanism.

    If only D' has extra examples, k of them are kept with probability w_k and Q does not depend on k, so
    P(S) = sum_k w_k P_k(S) <= sum_k w_k K_k(Q(S)). If only D has extra examples, P does not depend on their number j
    and Q(S) = sum_j w_j Q_j(S) >= sum_j w_j K_j^-1(P(S)): the *inverses* are mixed. Both are equalities when one test
    is best for every k at once, and the input stays. Mixed splits are always chained.

    Args:
        mechanism: what each instance ran.
        inner: the curves of what it ran on the examples that it kept, that of no changes among them.
    """

    chain_only = True

    def __init__(self, mechanism: Subsampled, inner: CurveFamily | MovedCurveFamily) -> None:
        self._keep, self._inner = mechanism.keep, inner
        self._mixed: dict[tuple[int, int], TradeoffCurve] = {}

    def curve(self, deleted: int, inserted: int) -> TradeoffCurve:
        """The curve of a pure split."""
        if deleted and inserted:
            raise NumericalError("A subsampled mechanism has no curve of its own for a mixed split.")
        if not deleted and not inserted:
            return self._inner.curve(0, 0)
        if (deleted, inserted) not in self._mixed:
            mix = self._mix_inserted if inserted else self._mix_deleted
            self._mixed[deleted, inserted] = mix(deleted + inserted)
        return self._mixed[deleted, inserted]

    def _mix_deleted(self, changes: int) -> TradeoffCurve:
        """K = sum_k w_k K_k as lines: a weighted sum of lines, one of each K_k, lies above the sum of the curves.

        Where the line of a K_k says less than K_k <= 1, that is taken instead.
        """
        kept = binomial_components(changes, self._keep, _KEEP_DROP)
        at = _nodes()
        intercepts, slopes = np.full(len(at), kept.dropped), np.zeros(len(at))
        budgets: list[ErrorBudget] = []
        for weight, curve in self._weighted(kept.counts, kept.log_weights, deleted=True):
            line = curve.line_at(at)
            says = curve.intercepts[line] + curve.slopes[line] * at < 1
            intercepts += weight * np.where(says, curve.intercepts[line], 1.0)
            slopes += weight * np.where(says, curve.slopes[line], 0.0)
            budgets.append(curve.budget)
        return _sorted_curve(intercepts, slopes, budgets, kept.weight_error, kept.dropped)

    def _mix_inserted(self, changes: int) -> TradeoffCurve:
        """K^-1 = sum_j w_j K_j^-1 as lines: x >= sum_j w_j (y - c_j) / s_j for one line (c_j, s_j) of some K_j.

        Where the line of a K_j says less than x >= 0, that is taken instead, as for components that are left out: all
        of them only add to x.
        """
        kept = binomial_components(changes, self._keep, _KEEP_DROP)
        at = _nodes()
        offset, rate = np.zeros(len(at)), np.zeros(len(at))
        budgets: list[ErrorBudget] = []
        for weight, curve in self._weighted(kept.counts, kept.log_weights, deleted=False):
            line = curve.line_at_height(at)
            intercepts, slopes = curve.intercepts[line], curve.slopes[line]
            says = at > intercepts
            offset += np.where(says, weight * intercepts / slopes, 0.0)
            rate += np.where(says, weight / slopes, 0.0)
            budgets.append(curve.budget)
        known = rate > 0
        if not known.any():
            return _sorted_curve(np.ones(1), np.zeros(1), budgets, kept.weight_error)  # nothing but K <= 1 is known
        return _sorted_curve(offset[known] / rate[known], 1 / rate[known], budgets, kept.weight_error)

    def _weighted(
        self, counts: FloatArray, log_weights: FloatArray, *, deleted: bool
    ) -> Iterator[tuple[float, TradeoffCurve]]:
        """Weight and curve for every number of kept examples."""
        for count, weight in zip(counts.astype(int).tolist(), np.exp(log_weights).tolist(), strict=True):
            yield weight, self._inner.curve(count, 0) if deleted else self._inner.curve(0, count)


def _nodes() -> FloatArray:
    """Probabilities at which lines of a mixed curve are taken: evenly spaced in log odds."""
    odds = np.exp(np.linspace(-23, 23, LINES))
    return odds / (1 + odds)


def _sorted_curve(
    intercepts: FloatArray, slopes: FloatArray, budgets: list[ErrorBudget], weight_error: float, dropped: float = 0.0
) -> TradeoffCurve:
    """A curve from lines in any order: of one slope the lowest, and none that is steeper and higher than another."""
    # Sums and quotients of weights, each good to `weight_error`, and some room for the sums themselves.
    upwards = 1 + 1e-13 + 4 * weight_error
    order = np.lexsort((intercepts, slopes))
    slopes, first = np.unique(slopes[order] * upwards, return_index=True)
    # What is never the lowest would lead the search for the lowest astray.
    intercepts = np.minimum.accumulate(intercepts[order][first])
    is_lower = np.append(True, np.diff(intercepts) < 0)
    slopes, intercepts = slopes[is_lower], intercepts[is_lower]
    budget = ErrorBudget(
        truncation=max(b.truncation for b in budgets) + dropped,
        wrap=max(b.wrap for b in budgets),
        rounding=max(b.rounding for b in budgets),
        loss=max(b.loss for b in budgets),
    )
    return TradeoffCurve(intercepts * upwards, slopes, budget)


Family = CurveFamily | MovedCurveFamily | SubsampledCurveFamily


class Curves:
    """The curves of a mechanism for every split of the changes, where the input may move, too.

    Args:
        mechanism: what each instance ran.
        shift: the change of the input over the standard deviation of the noise on it.
        cached: keep curves on disk.
    """

    def __init__(self, mechanism: Private, *, shift: float = 0.0, cached: bool = True) -> None:
        inner = mechanism.inner if isinstance(mechanism, Subsampled) else mechanism
        self._mechanism, self._shift = mechanism, shift
        self._store = CurveFamily(inner, cached=cached)
        self._families: dict[int, Family] = {}

    @property
    def chain_only(self) -> bool:
        """Whether mixed splits have no curve of their own."""
        return isinstance(self._mechanism, Subsampled)

    @property
    def is_moved(self) -> bool:
        """Whether the input may move."""
        return self._shift > 0

    def curve(self, deleted: int, inserted: int) -> TradeoffCurve:
        """The curve of one split; the input moves all the way."""
        return self._family(_SHARES).curve(deleted, inserted)

    def chain(self, deleted: int, inserted: int) -> CurveOrChain:
        """A bound on the curve of a split, by those of its deletions and of its insertions.

        With D'' = D intersected with D' and an input on the line between the two: from D to D'' it moves part of the
        way, from there to D' the rest.
        """
        # Of a subsampled mechanism, whose curves take longer, all the way with the deletions.
        share = 0 if self.chain_only else round(_SHARES * inserted / max(deleted + inserted, 1))
        outer = self._family(_SHARES - share).curve(deleted, 0)
        inner = self._family(share).curve(0, inserted)
        return lambda x: outer(inner(x))

    def close(self) -> None:
        """Keep new curves on disk."""
        self._store.close()

    def _family(self, share: int) -> Family:
        """The curves where the input moves by so many of `_SHARES` parts of the way."""
        share = share if self.is_moved else 0
        if share not in self._families:
            # Rounded up, so that two shares never make less than the whole.
            shift = self._shift * share / _SHARES * (1 + 1e-15)
            plain = MovedCurveFamily(self._store, shift) if share else self._store
            self._families[share] = (
                SubsampledCurveFamily(self._mechanism, plain) if isinstance(self._mechanism, Subsampled) else plain
            )
        return self._families[share]


class FdpAccountant(Accountant):
    """The condition of the module docstring for one mechanism and one threat.

    Args:
        curves: those of the mechanism; where the input may move, `holds` can deny a radius of 0.
        threat: how the data may have been changed.
    """

    def __init__(self, curves: Curves, threat: Threat) -> None:
        self._curves = curves
        self._threat = threat
        self._budget: dict[str, float] = {}
        self._used: set[tuple[int, int]] = set()

    @property
    def error_budget(self) -> dict[str, float]:
        """The largest numerical errors that were added to any curve in the safe direction."""
        return dict(self._budget)

    def close(self) -> None:
        """Keep new curves on disk."""
        self._curves.close()

    def holds(self, radius: int, margins: Margins) -> BoolArray:
        """Whether the top label stays on top for every D' within `radius`; see `Accountant`."""
        if radius == 0:
            return self._split_holds(0, 0, margins)
        match self._threat:
            case Threat.ADD:
                return self._split_holds(radius, 0, margins)
            case Threat.REMOVE:
                return self._split_holds(0, radius, margins)
            case Threat.REPLACE | Threat.EDIT | Threat.LABELS | Threat.FEATURES:
                return self._split_holds(radius, radius, margins)
            case Threat.SYMMETRIC_DIFFERENCE:
                return self._every_split_holds(radius, margins)

    def largest(self, radius: int, mean_of: MeanOf) -> float:
        """An upper bound on what an average may become on any D' within `radius`.

        Guarantee: let `mean_of(K)` bound the expectation of a number in [0, 1] by the curve K, as `Spread.sum_of` does.
        Then on every D' within `radius` the expectation is at most this. Rounded up.

        Splits with both kinds of changes are chained; of more than `_SINGLE_SPLITS`, a chain covers many.
        """
        if radius == 0:
            return mean_of(lambda x: x)
        match self._threat:
            case Threat.ADD:
                return mean_of(self._curve(radius, 0))
            case Threat.REMOVE:
                return mean_of(self._curve(0, radius))
            case Threat.REPLACE | Threat.EDIT | Threat.LABELS | Threat.FEATURES:
                least = mean_of(self._chain(radius, radius))
                return least if self._curves.chain_only else min(least, mean_of(self._curve(radius, radius)))
            case Threat.SYMMETRIC_DIFFERENCE:
                return self._largest_of_splits(radius, mean_of)

    def _largest_of_splits(self, radius: int, mean_of: MeanOf) -> float:
        largest = max(mean_of(self._curve(radius, 0)), mean_of(self._curve(0, radius)))
        width = 1 if radius <= _SINGLE_SPLITS else radius // _BLOCKS
        for fewest in range(1, radius, width):
            if largest > 1 - _NOTHING_LEFT:
                return 1.0
            most = min(fewest + width, radius) - 1
            largest = max(largest, mean_of(self._chain(most, radius - fewest)))
        return largest

    def _every_split_holds(self, radius: int, margins: Margins) -> BoolArray:
        shown = self._split_holds(radius, 0, margins)
        _refine(shown, lambda chosen: self._split_holds(0, radius, margins.take(chosen)))
        # So many changes of either kind dominate every split; far below the largest radius that is enough, and it takes
        # no further curve.
        shown_at_once = shown.copy()
        _refine(shown_at_once, lambda chosen: self._chain_holds(radius, radius, margins.take(chosen)))
        open_points = np.flatnonzero(shown & ~shown_at_once)
        if len(open_points):
            rest, left = np.ones(len(open_points), dtype=np.bool_), margins.take(open_points)
            # Take back what some split with both kinds of changes does not show.
            width = 1 if radius <= _SINGLE_SPLITS else radius // _BLOCKS
            for fewest in range(1, radius, width):
                most = min(fewest + width, radius) - 1
                _refine(rest, partial(self._block_holds, radius, fewest, most, left))
            shown[open_points] = rest
        return shown

    def _block_holds(self, radius: int, fewest: int, most: int, margins: Margins, chosen: IndexArray) -> BoolArray:
        """Whether every split with `fewest` to `most` deletions holds: by one chain, else by halves, else exactly."""
        finest = 1 if radius <= _EXACT_RADIUS else 1 << (radius.bit_length() - _LATTICE_BITS)
        deleted, inserted = -(-most // finest) * finest, -(-(radius - fewest) // finest) * finest
        shown = self._chain_holds(deleted, inserted, margins.take(chosen))
        open_points = np.flatnonzero(~shown)
        if len(open_points) == 0:
            return shown
        rest = chosen[open_points]
        if most - fewest >= finest:
            middle = (fewest + most) // 2
            halves = self._block_holds(radius, fewest, middle, margins, rest)
            _refine(halves, lambda still: self._block_holds(radius, middle + 1, most, margins, rest[still]))
            shown[open_points] = halves
        elif finest == 1 and not (self._curves.chain_only or self._curves.is_moved):
            shown[open_points] = self._split_holds(fewest, radius - fewest, margins.take(rest))
        return shown

    def _split_holds(self, deleted: int, inserted: int, margins: Margins) -> BoolArray:
        if deleted and inserted and self._curves.chain_only:
            return self._chain_holds(deleted, inserted, margins)
        return margins.after(self._curve(deleted, inserted)) < 1

    def _chain_holds(self, deleted: int, inserted: int, margins: Margins) -> BoolArray:
        return margins.after(self._chain(deleted, inserted)) < 1

    def _chain(self, deleted: int, inserted: int) -> CurveOrChain:
        """A bound on the curve of a split, by those of its deletions and of its insertions."""
        return self._curves.chain(deleted, inserted)

    def _curve(self, deleted: int, inserted: int) -> TradeoffCurve:
        curve = self._curves.curve(deleted, inserted)
        if (deleted, inserted) not in self._used:
            self._used.add((deleted, inserted))
            for part, size in asdict(curve.budget).items():
                self._budget[part] = max(self._budget.get(part, 0.0), float(size))
        return curve


def _refine(shown: BoolArray, test: Callable[[IndexArray], BoolArray]) -> None:
    """Keep those points that pass `test` too; it is asked only about points that are still shown."""
    chosen = np.flatnonzero(shown)
    if len(chosen):
        shown[chosen] = test(chosen)
