"""The second routes for learners that draw examples at random, or add noise to them, without privacy.

Bagging with 60 decimals, size by size of D'; noisy labels from the characteristic function of the lead of the changed
ones; noisy inputs in closed form. Each is the condition of the paper without the arithmetic of the rule; a claim that
holds by less than the rounding of this route is refused.

References: Jia, Cao and Gong 2021 (arXiv 2008.04495); Rosenfeld et al. 2020 (arXiv 2002.03018); Weber et al. 2020
(arXiv 2003.08904).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, DivisionByZero, InvalidOperation
from functools import partial

import numpy as np
import numpy.typing as npt
from scipy import special

from mithridate.auditing.confidence import log_binomial_tail
from mithridate.auditing.routes import BoolArray, Claim, FloatArray, IntArray, Limits, second_route
from mithridate.core.mechanism import Threat
from mithridate.errors import ArtifactError, UnsupportedMechanismError

# Where this route rounds, it is accurate to better than this, and the doubt is charged to the claim.
_ROUNDING = 1e-13
# Far more than sixty digits lose to rounding, and nothing beside any probability.
_SIXTIETH = Decimal("1e-35")


@second_route("bagged", "bagging", input_moves=True)
def recheck_bagging(claim: Claim) -> BoolArray:
    """Which radii do not hold at some size of D'."""
    constants, shift = claim.constants, claim.input_shift
    route = _Bagging(constants["num_train"], constants["draws"], claim.threat)
    return claim.unconfirmed(partial(route.holds_moved, shift) if shift else route)


@second_route("noisy-labels", "label-smoothing")
def recheck_noisy_labels(claim: Claim) -> BoolArray:
    """Which radii do not hold against the best test between the labels of D and of D'."""
    _check_threat(claim, Threat.LABELS)
    return claim.unconfirmed(_LabelNoise(claim.constants["flip_prob"], claim.constants["classes"]))


@second_route("noisy-features", "feature-smoothing")
def recheck_noisy_features(claim: Claim) -> BoolArray:
    """Which radii do not hold against a shift of all inputs."""
    _check_threat(claim, Threat.FEATURES)
    max_change = claim.options.get("max_change")
    if not isinstance(max_change, int | float):
        raise ArtifactError("The certificate does not say by how far an input may change; certify again.")
    return claim.unconfirmed(_FeatureNoise(claim.constants["noise"], float(max_change)))


@second_route("noisy-partitioned", "smoothed-majority", input_moves=True)
def recheck_noisy_parts(claim: Claim) -> BoolArray:
    """Which radii too few draws of the noise withstand, by the terms of binomial tails.

    A draw that withstands t touched parts withstands all that reaches no more of them. An event of probability
    tau = erfc(-h / sqrt 2) / 2 would be seen so often with probability tau x failure_prob at most; of disjoint events
    that are no likelier, one then with probability failure_prob (docs/theory.md, section 10).
    """
    withstood = claim.evidence.get("withstood")
    if withstood is None or withstood.ndim != 2 or len(withstood) != len(claim.counts):
        raise ArtifactError("The certificate does not carry what noisy copies withstand; certify again.")
    rows, draws = np.arange(len(claim.counts)), int(claim.counts[0].sum())
    reach = 1 if claim.counts_units or claim.threat in _ONE_PART else 2
    touched = claim.radius * reach
    columns = np.arange(withstood.shape[1])
    seen = np.where(columns >= touched[:, None], withstood.astype(np.int64), 0).sum(axis=1)
    likely = math.erfc(-claim.input_shift / math.sqrt(2)) / 2 * (1 + 1e-15)
    wrong = withstood.sum(axis=1) != claim.counts[rows, np.clip(claim.label, 0, claim.counts.shape[1] - 1)]
    wrong |= claim.counts.max(axis=1) != withstood.sum(axis=1)
    wrong |= (claim.label < 0) | (claim.label >= claim.counts.shape[1])
    wrong |= withstood.shape[1] != claim.constants["partitions"] // 2 + 1
    if likely >= 1 or not 0 < claim.failure_prob < 1:
        return wrong | (claim.radius >= 0)
    numbers, where = np.unique(seen, return_inverse=True)
    tails = log_binomial_tail(numbers, np.full(len(numbers), draws), np.full(len(numbers), likely))
    enough = (tails <= math.log(likely * claim.failure_prob) + 1e-9) & (numbers - 1 >= (draws - 1) * likely)
    return wrong | ((claim.radius >= 0) & ~enough[where])


def copies_again(answers: IntArray, draws: int) -> tuple[IntArray, IntArray]:
    """The votes of noisy copies, and how many of those for the leading label withstand so many touched parts at most.

    Args:
        answers: of the models, (inputs x draws) x labels.
        draws: copies of each input.
    """
    models, labels = int(answers[0].sum()), answers.shape[1]
    counts, withstood = (np.zeros((len(answers) // draws, size), np.int64) for size in (labels, models // 2 + 1))
    for row in range(len(counts)):
        copies = answers[row * draws : (row + 1) * draws].astype(np.int64)
        votes = (copies == copies.max(axis=1, keepdims=True)).argmax(axis=1)  # the first of equals
        counts[row] = [(votes == label).sum() for label in range(labels)]
        first = int(np.flatnonzero(counts[row] == counts[row].max())[0])
        own = copies[votes == first]
        # t parts that go over to a rival: a smaller label must stay behind, a larger one may draw level.
        room = own[:, [first]] - own - (np.arange(labels) < first)
        room[:, first] = 2 * models
        np.add.at(withstood[row], room.min(axis=1) // 2, 1)
    return counts, withstood


# A unit of these threats is one example that comes or goes, and so reaches one part; a changed one may reach two.
_ONE_PART = (Threat.ADD, Threat.REMOVE, Threat.SYMMETRIC_DIFFERENCE)


def _check_threat(claim: Claim, threat: Threat) -> None:
    if claim.threat is not threat:
        raise UnsupportedMechanismError(
            f"The rule {claim.rule!r} is about the threat {threat.value!r}; {claim.threat.value!r} cannot be certified."
        )


def _after_move(share: FloatArray, shift: float) -> FloatArray:
    """The share of an event, at most or at least, after the mean of its noise has moved; by the error function."""
    moved = special.erfcinv(2 * share) - shift / math.sqrt(2)
    return special.erfc(moved) / 2


class _Bagging:
    """Every size of D' and every number of examples it shares with D, without rounding that could matter.

    With k draws, n examples in D, n' in D' and m in both, the label stays on top if
    `(n'/n)^k - 2 (m/n)^k + (1 - p1) + p2 < 0`; with a weight v of the label and w of a rival, if
    `w (n'/n)^k - (v + w) (m/n)^k + v (1 - p1) + w p2 < 0`. The powers are taken with 60 decimals.

    A ball has as many sizes as its radius. Up to `_EVERY_SIZE` each is tried. Beyond that only those at both ends are,
    and those where the left side stops rising as n' and m grow: with n' - m fixed its slope is
    w k n'^(k-1) - (v + w) k m^(k-1), positive as long as n' / m, which falls, is large enough; with n' = 2m + r - n it
    is 2 w k n'^(k-1) - (v + w) k m^(k-1), never negative if w >= v. Else n' / m rises for r < n, so that the left side
    falls before it rises and is largest at one of the ends; for r >= n nothing of D may be left, and all is lost.
    """

    _EVERY_SIZE = 1 << 10

    def __init__(self, num_train: int, draws: int, threat: Threat) -> None:
        self._total, self._draws, self._threat = num_train, draws, threat
        self._exact = Context(prec=60, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[InvalidOperation, DivisionByZero])

    def __call__(self, radius: int, limits: Limits) -> BoolArray:
        weights = np.stack(np.broadcast_arrays(limits.weight, limits.rival_weight, limits.top_lower)[:2], axis=1)
        shown = np.zeros(len(weights), dtype=np.bool_)
        miss, rival = _shares(limits)
        for pair in np.unique(weights, axis=0):
            own, other = (Decimal(int(each)) for each in pair)
            worst = self._worst(radius, own, other)
            for row in np.flatnonzero((weights == pair).all(axis=1)):
                needed = self._exact.fma(own, Decimal(float(miss[row])), worst)
                needed = self._exact.fma(other, Decimal(float(rival[row])), needed)
                shown[row] = self._exact.add(needed, _SIXTIETH * max(own, other)) < 0
        return shown

    def holds_moved(self, shift: float, radius: int, limits: Limits) -> BoolArray:
        """The same where the input moves by so many standard deviations of the noise on it.

        All that an instance draws is shared with probability s under D and s' under D'. If it is, the label has at
        least 1 - (1 - p1) / s of the votes, and a rival at most p2 / s; noise that moves takes from one and gives to
        the other. In all other cases the rival gets everything.
        """
        shown = np.ones(len(limits.top_lower), dtype=np.bool_)
        miss, rival = _shares(limits)
        for size, shared in self._splits(radius):
            kept = self._power(max(shared, 0))
            stays = float(self._exact.divide(kept, self._power(size))) if size else 0.0
            with np.errstate(divide="ignore", invalid="ignore"):
                top = stays * _after_move(1 - np.minimum(miss / float(kept), 1.0), -shift) if kept else 0.0 * miss
                most = 1 - stays + stays * _after_move(np.minimum(rival / float(kept), 1.0), shift) if kept else 1.0
            shown &= limits.weight * (top - _ROUNDING) > limits.rival_weight * (most + _ROUNDING)
        return shown

    def _splits(self, radius: int) -> Iterator[tuple[int, int]]:
        """Sizes of D' and of what it shares with D: all, or of many, of each block one that is worse than all in it."""
        n = self._total
        match self._threat:
            case Threat.SYMMETRIC_DIFFERENCE:
                step = max(1, radius // self._EVERY_SIZE)
                for fewest in range(0, radius + 1, step):
                    most = min(fewest + step - 1, radius)
                    yield max(n - most, 0) + radius - fewest, n - most
            case Threat.EDIT:
                yield max(n - radius, 0) + radius, n - radius
            case _:
                yield from self._neighbouring(radius, Decimal(1), Decimal(1))

    def _worst(self, radius: int, own: Decimal, other: Decimal) -> Decimal:
        """The most that a D' of the ball takes from the lead before anyone has voted."""
        worst = -own - other
        for size, shared in self._neighbouring(radius, own, other):
            worst = max(worst, self._lead_lost(size, shared, own, other))
            if worst >= 0:  # Lost whatever the votes.
                break
        return worst

    def _lead_lost(self, size: int, shared: int, own: Decimal, other: Decimal) -> Decimal:
        """`w (n'/n)^k - (v + w) (m/n)^k`."""
        kept = self._exact.multiply(self._exact.add(own, other), self._power(max(shared, 0)))
        return self._exact.subtract(self._exact.multiply(other, self._power(size)), kept)

    def _power(self, part: int) -> Decimal:
        if part == 0:
            return Decimal(0)
        log_ratio = self._exact.ln(self._exact.divide(Decimal(part), Decimal(self._total)))
        # Beyond e^1000 either way nothing is known, or needed, but that.
        exponent = self._exact.multiply(Decimal(self._draws), log_ratio)
        return self._exact.exp(min(max(exponent, Decimal(-1000)), Decimal(1000)))

    def _neighbouring(self, radius: int, own: Decimal, other: Decimal) -> Iterator[tuple[int, int]]:
        """Sizes of D' and of what it shares with D: every one, or of many those among which is the worst."""
        n = self._total
        match self._threat:
            case Threat.EDIT:
                # Fewer examples than D has, at least n - radius of them shared, do less than as many as D has.
                yield from self._every(lambda size: (size, size - radius), n, n + radius, own, other)
            case Threat.SYMMETRIC_DIFFERENCE:  # As many insertions as the deletions leave: more are worse.
                yield from self._every(lambda kept: (2 * kept + radius - n, kept), n - min(radius, n), n, own, other)
            case Threat.ADD:
                yield n + radius, n
            case Threat.REMOVE:
                yield n - min(radius, n), n - min(radius, n)
            case _:
                yield n, n - min(radius, n)

    def _every(
        self, split: Callable[[int], tuple[int, int]], first: int, last: int, own: Decimal, other: Decimal
    ) -> Iterator[tuple[int, int]]:
        """Splits at the whole numbers from `first` to `last`, of many those where the damage can be largest."""
        yield split(last)
        yield split(first)
        if last - first <= self._EVERY_SIZE:
            yield from map(split, range(first + 1, last))
            return
        low, high = first, last  # It rises at `low`, or nowhere, and does not at `high`, or only there.
        while high - low > 1:
            middle = (low + high) // 2
            rises = self._lead_lost(*split(middle + 1), own, other) > self._lead_lost(*split(middle), own, other)
            low, high = (middle, high) if rises else (low, middle)
        yield from map(split, range(max(first, low - 4), min(last, high + 4) + 1))


class _LabelNoise:
    """The best test between the noisy labels of D and of D', which differ in `radius` labels.

    Of the differing labels, some come out as D has them, some as D' has them, and the rest as neither. The
    likelihood ratio is a power of the lead, the difference of the first two numbers, so tests are thresholds on it. Its
    law under D' comes from its characteristic function, on a circle that is wide enough; and with
    `H(s) = E (1 - ratio^(s - lead))_+` under D', every whole number s gives a bound `K(x) <= H(s) + ratio^s x`.
    """

    def __init__(self, flip_prob: float, classes: int) -> None:
        self._kept, self._changed = 1 - flip_prob, flip_prob / (classes - 1)
        self._third = max(1 - self._kept - self._changed, 0.0) if classes > 2 else 0.0
        self._same = flip_prob == (classes - 1) / classes

    def __call__(self, radius: int, limits: Limits) -> BoolArray:
        miss, rival = _shares(limits)
        if self._same:  # Labels that say nothing cannot be poisoned.
            return miss + rival < 1
        if self._changed == 0:  # So small that it cannot be written: whatever is changed is seen.
            return np.zeros(len(miss), dtype=np.bool_)
        return self.largest(radius, miss) + self.largest(radius, rival) < 1

    def largest(self, radius: int, x: FloatArray) -> FloatArray:
        """K: the largest probability under D' of an event that has probability x under D; rounded up."""
        lead, masses, error = self._law(radius)
        log_ratio = math.log(self._kept) - math.log(self._changed)
        above = np.append(np.cumsum(masses[::-1])[::-1], 0.0)
        # What D has from s on, times ratio^s: from one s to the one below it, a factor and one more mass.
        shrunk = special.xlogy(1, np.maximum(masses, 1e-320)) - lead * log_ratio
        under_d = np.append(np.logaddexp.accumulate(shrunk[::-1])[::-1], -np.inf)
        thresholds = np.append(lead, lead[-1] + 1) * log_ratio
        slack = above - np.exp(np.minimum(under_d + thresholds, 0.0))
        with np.errstate(divide="ignore"):
            log_x = np.log(np.maximum(x, 0.0))
        # D has x above about this threshold; the ones beside it, in case of rounding.
        place = np.searchsorted(-under_d, -log_x)
        values = np.ones(len(x))
        for near in (-1, 0, 1):
            at = np.clip(place + near, 0, len(thresholds) - 1)
            values = np.minimum(values, slack[at] + np.exp(np.minimum(thresholds[at] + log_x, 1.0)))
        return np.minimum(values * (1 + _ROUNDING) + error, 1.0)

    def _law(self, radius: int) -> tuple[FloatArray, FloatArray, float]:
        """Values of the lead, their probabilities under D', and by how much any sum of these may be wrong."""
        # Beyond this lies less than 1e-20 on either side, by Hoeffding's inequality.
        mean, reach = radius * (self._kept - self._changed), 10 * math.sqrt(radius) + 1
        first, last = max(math.floor(mean - reach), -radius), min(math.ceil(mean + reach), radius)
        size = last - first + 1
        angle = (2 * np.pi * np.fft.fftfreq(size)).astype(np.float64)
        # Around the mean, so that powers do not spin; 1 - cos without losing digits.
        centre = self._kept - self._changed
        turned = self._kept * _turn(angle, 1 - centre) + self._changed * _turn(angle, -1 - centre)
        turned += self._third * _turn(angle, -centre)
        powers = (1 + turned) ** radius
        start = np.exp(1j * angle * (radius * centre - first))
        masses = np.fft.fft(powers * start).real / size
        error = radius * 16 * 2.0**-52 * float(np.abs(powers).sum()) + 1e-13
        return np.arange(first, last + 1).astype(np.float64), np.maximum(masses, 0.0), error


def _turn(angle: FloatArray, by: float) -> npt.NDArray[np.complex128]:
    """exp(i angle by) - 1."""
    return 1j * np.sin(angle * by) - 2 * np.sin(angle * by / 2) ** 2


class _FeatureNoise:
    """Gaussian noise hides a shift of all inputs by less than half the noise times the gap of the quantiles."""

    def __init__(self, noise: float, max_change: float) -> None:
        self._noise, self._max_change = noise, max_change

    def __call__(self, radius: int, limits: Limits) -> BoolArray:
        miss, rival = _shares(limits)
        with np.errstate(invalid="ignore"):  # A score of exactly 0 against one of exactly 1: not a number, not shown.
            gap = -(special.ndtri(miss) + special.ndtri(rival)) / 2
        # What an input is moved by is compared in units of the noise, so that nothing can overflow.
        return gap * (1 - 1e-14) > math.sqrt(radius) * (self._max_change / self._noise)


def _shares(limits: Limits) -> tuple[FloatArray, FloatArray]:
    """Upper bounds on the share of all other labels and of any one; the first by whichever bound is better."""
    return np.minimum(limits.miss_upper, 1 - limits.top_lower), limits.rival_upper
