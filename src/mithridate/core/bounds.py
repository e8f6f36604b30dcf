"""Confidence bounds: what vote counts or score sums of P independent models say about the true scores.

Notation. L is the number of classes, P the number of models, `p_l` the true score of label l for one example: the
probability that one more model votes for l (*votes*), or the mean of its score in [0, 1] (*scores*). The label with
the largest count or sum is picked from the same data that bounds it, so a bound for one label alone is not enough.
On scores, and in `simultaneous` on votes, all L labels are bounded from both sides at once, 2L one-sided events, each
allowed to fail with probability

    tail = failure_prob / (2L).

Votes for the winner (`kind="winner"`). Let 1 be a truly best label, fixed beforehand. The label with most votes is
claimed only if a sign test separates it from the runner-up; otherwise the bounds say nothing, which is never wrong.
What may go wrong is then

    A   p_1 lies below the lower bound of the count of label 1,
    B   the largest of the other p_l lies above the upper bound of its own count, which is at most the runner-up's,
    C   another label than 1 has most votes, and passes the sign test.

Where none of them happens, a label that is claimed is label 1, and its bounds hold. A and B are one event each, however
many labels there are. For C see `_Levels` and docs/theory.md.

Votes at any time (`kind="anytime"`). Bet on every vote, with a prior on bets that is fixed beforehand: the capital
against "a label is missed with probability `miss` or more" is

    capital(miss) = E_u [ ((1 - u) / (1 - miss) + u)^hits u^misses ],   u of density a u^(a - 1) on (0, 1), a = 1/2,

of expectation at most 1 whenever that is true, after any number of votes. By Ville's inequality it ever reaches 1/tail
with probability at most tail. It increases in `miss`, so every `miss` beyond the first rejected one is rejected, too.

Betting bounds (`kind="betting"`). Let `x_1 ... x_P` be independent scores with mean p. For a candidate mean m and
bets c in (0, 1) with a prior fixed beforehand, the

    capital(m) = sum_c prior(c) prod_i (1 + c (x_i / m - 1))

has expectation at most 1 when `p <= m`: the factors are independent, non-negative, and of mean
`1 + c (p / m - 1) <= 1`. By Markov it reaches 1/tail with probability at most tail. It decreases in m, so if the true
p lay below an m whose capital has reached 1/tail, the capital at p would have reached it too: every such rejected m is
a lower bound on p. The capital is a fixed mixture of products, so the order of the models does not matter.

The scores are known only by their bins and their sum S. Let f(x) = log(1 + c (x / m - 1)), concave and increasing, and
let x_i lie in the bin [l_i, l_i + w]. Then f(x_i) lies on or above its chord over the bin, and chords of higher bins
are flatter. Hence sum_i f(x_i) is at least what it becomes when the surplus S - sum_i l_i lifts scores from the lower
to the upper edges of their bins, the highest bins first. The resulting weights on the bin edges depend on neither c
nor m. Rounding every score down to l_i is the special case of surplus zero, and loses up to one bin's width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from scipy import special

from mithridate._validate import number_in, positive_integer
from mithridate.core.score_bands import MEAN_SHARE, Band, Spread, StepBounds, chernoff_upper
from mithridate.errors import ConfigError, NumericalError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
IndexArray = npt.NDArray[np.intp]
_Scalar = TypeVar("_Scalar", np.int64, np.float64)

VOTE_BOUNDS = ("winner", "simultaneous", "anytime", "simuem", "pointwise")
# Those that are proved where votes for some labels count more than for others.
WEIGHED_BOUNDS = ("winner", "simultaneous", "anytime")
# Those that hold at any time: for all numbers of instances at once.
ANYTIME = "anytime"
SCORE_BOUNDS = ("empirical-bernstein", "hoeffding", "betting", "histogram")

# Relative distance by which every bound is moved outward, so that the rounding of our own arithmetic cannot hurt.
_WIDEN = 1e-12
# What rounding may take from a ratio of weights and from one product with it, and more.
_RATIO_ROUNDING = 2.0**-48
# The exponent a of the prior on bets against a count.
_EXPONENT = 0.5
# The share of failure_prob that pays for the sign tests, unless they need more to ask no more than `simultaneous` does.
_FOR_TESTS = 0.1
# Softmax in single precision may sum to a little more than one; the bound on 1 - score gives that much away.
_EXCESS = 2.0**-20
# Candidate means m = sin^2: spaced like the standard deviation of a mean, so dense near 0 and 1 where bounds are small.
_MEANS: FloatArray = np.sin(np.linspace(0.0, np.pi / 2, 2**13 + 1)) ** 2
# Distance between neighbouring bets on the logit scale: finer dilutes the prior as much as it sharpens the best bet.
_BET_SPACING = 0.35
# Numbers held at once by the betting bound (32 MB of weights), whatever the number of examples.
_CHUNK = 2**22

_betainc = cast(Callable[..., FloatArray], special.betainc)
_betaincc = cast(Callable[..., FloatArray], special.betaincc)
_betaincinv = cast(Callable[..., FloatArray], special.betaincinv)
_betainccinv = cast(Callable[..., FloatArray], special.betainccinv)
_betaln = cast(Callable[..., FloatArray], special.betaln)


@dataclass(frozen=True)
class LabelBounds:
    """Bounds on the scores of the leading label and of its strongest rival, one entry per example.

    Attributes:
        label: the label with the largest count or sum; ties go to the smaller label.
        top_lower: lower bound on the score of that label.
        top_miss_upper: upper bound on one minus that score, with full relative accuracy when it is near zero.
        rival_upper: upper bound on the largest score of any other label; never above `top_miss_upper`.
        ratio: what that label weighs by the weight of `label`, rounded up; None: all labels weigh the same.
        spread: bounds on whole distributions of scores, of which the others are the means; None: there are none.
    """

    label: IntArray
    top_lower: FloatArray
    top_miss_upper: FloatArray
    rival_upper: FloatArray
    ratio: FloatArray | None = None
    spread: Spread | None = None


# --- votes ----------------------------------------------------------------------------------------------------------


def clopper_pearson_lower(count: npt.ArrayLike, total: npt.ArrayLike, tail: npt.ArrayLike) -> FloatArray:
    """Return the one-sided Clopper-Pearson lower bound on a binomial probability.

    Guarantee:
        If `count` is binomial with probability p, the result exceeds p with probability at most `tail`. The result is
        rounded down.

    Args:
        count: number of successes; arrays are broadcast together.
        total: number of trials.
        tail: allowed failure probability of this one bound.

    Raises:
        ConfigError: a count is outside [0, total], or a tail outside (0, 1).

    References:
        Clopper & Pearson 1934, Biometrika 26(4).

    >>> float(clopper_pearson_lower(2, 2, 0.25).round(6))
    0.5
    """
    hits, trials, level = _checked_binomial(count, total, tail)
    # Pr[Binomial(total, p) >= count] = betainc(count, total - count + 1, p)
    first, second = np.maximum(hits, 1.0), trials - hits + 1.0
    inner = _betaincinv(first, second, level)
    # count = total has the closed form p^total = tail; count = 0 says nothing.
    bound = np.where(hits == trials, level ** (1.0 / trials), np.where(hits == 0, 0.0, inner))
    return _moved_outward(bound, -_WIDEN, lambda p: _betainc(first, second, p), level)


def clopper_pearson_upper(count: npt.ArrayLike, total: npt.ArrayLike, tail: npt.ArrayLike) -> FloatArray:
    """Return the one-sided Clopper-Pearson upper bound on a binomial probability.

    Guarantee:
        If `count` is binomial with probability p, the result is below p with probability at most `tail`. The result is
        rounded up. `clopper_pearson_upper(total - count, ...)` bounds `1 - p` on the very event on which
        `clopper_pearson_lower(count, ...)` bounds p, without subtracting from one. The arguments, and what is refused,
        are the same.

    >>> float(clopper_pearson_upper(0, 2, 0.25).round(6))
    0.5
    """
    hits, trials, level = _checked_binomial(count, total, tail)
    # Pr[Binomial(total, p) <= count] = betaincc(count + 1, total - count, p)
    first, second = hits + 1.0, np.maximum(trials - hits, 1.0)
    inner = _betainccinv(first, second, level)
    # count = 0 has the closed form (1 - p)^total = tail; count = total says nothing.
    bound = np.where(hits == 0, -np.expm1(np.log(level) / trials), np.where(hits == trials, 1.0, inner))
    return _moved_outward(bound, _WIDEN, lambda p: _betaincc(first, second, p), level)


def _moved_outward(
    bound: FloatArray, step: float, tail_at: Callable[[FloatArray], FloatArray], level: FloatArray
) -> FloatArray:
    """Move every bound by the relative `step`, and where its tail probability is still too large, further.

    scipy's inverse beta functions are good to 1e-13 for a few thousand trials but not for a million (999 of 10^8: wrong
    in the third digit, on the unsafe side), whereas the beta functions themselves stay good to about 1e-12.
    """
    steps = np.full(bound.shape, step)
    while True:
        moved = np.clip(bound * (1.0 + steps), 0.0, 1.0)
        # The negation also catches NaN.
        unsafe = ~(tail_at(moved) <= level * (1.0 - 1e-11))
        if not unsafe.any():
            return moved
        if np.abs(steps).max() > 0.1:
            raise NumericalError("The inverse beta function failed; use fewer instances or a larger failure_prob.")
        steps = np.where(unsafe, 8.0 * steps, steps)


def anytime_upper(count: npt.ArrayLike, total: npt.ArrayLike, tail: npt.ArrayLike) -> FloatArray:
    """Return an upper bound on a binomial probability that holds after every number of trials at once.

    Guarantee:
        Let trials succeed with probability p each, and `count` be the successes among the first `total` of them. With
        probability at least `1 - tail` no `total` from 1 on has a result below p, so trials may be added after a look.
        The result is rounded up. The arguments, and what is refused, are those of `clopper_pearson_upper`.

    References:
        Ville 1939. Robbins 1970, Annals of Mathematical Statistics 41(5) (mixtures of likelihood ratios). Waudby-Smith
        & Ramdas 2020, arXiv 2010.09686.

    >>> bool(anytime_upper(0, 1000, 0.001) > clopper_pearson_upper(0, 1000, 0.001))
    True
    """
    hits, trials, level = np.broadcast_arrays(*_checked_binomial(count, total, tail))
    low, high = np.zeros(hits.shape), np.ones(hits.shape)
    while True:
        middle = (low + high) / 2
        if bool(np.all((middle <= low) | (middle >= high))):
            return high  # It was rejected itself, or is 1.
        rejected = _rejects(hits, trials, middle, level)
        low, high = np.where(rejected, low, middle), np.where(rejected, middle, high)


def anytime_lower(count: npt.ArrayLike, total: npt.ArrayLike, tail: npt.ArrayLike) -> FloatArray:
    """Return a lower bound on a binomial probability that holds after every number of trials at once.

    Guarantee: that of `anytime_upper` on the failures, on the very same event; rounded down.

    >>> float(anytime_lower(0, 10, 0.1))
    0.0
    """
    hits, trials, level = _checked_binomial(count, total, tail)
    return np.maximum(np.nextafter(1.0 - anytime_upper(trials - hits, trials, level), -1.0), 0.0)


def _rejects(misses: FloatArray, total: FloatArray, miss: FloatArray, tail: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Whether the capital against missing with probability `miss` or more has reached 1 / tail.

    With z = miss u the integral is an incomplete beta function:

        capital = a (1 - miss)^-hits miss^-(misses + a) B(miss; misses + a, hits + 1).
    """
    first, hits = misses + _EXPONENT, total - misses
    with np.errstate(divide="ignore", invalid="ignore"):
        integral = _betaln(first, hits + 1.0) + np.log(_betainc(first, hits + 1.0, miss))
        log_capital = np.log(_EXPONENT) + integral - first * np.log(miss) - hits * np.log1p(-miss)
    # Logarithms of gamma functions of n are wrong by a few 1e-16 n log n. NaN rejects nothing.
    return log_capital >= np.log(1.0 / np.asarray(tail)) + 1e-9 + 1e-13 * total


@dataclass(frozen=True)
class _Levels:
    """How failure_prob is spent: on the events A, B and C of the module's docstring, or on all bounds alike.

    Attributes:
        lower: level of the lower bound on the label.
        upper: level of the upper bound on a rival; of one for each weight that labels have.
        ahead: level of one sign test; None: there is none, and the bounds hold for every label at once.
    """

    lower: float
    upper: float
    ahead: float | None = None

    @classmethod
    def of(cls, kind: str, failure_prob: float, classes: int, weights: int = 1) -> "_Levels":
        """Those of a kind of bounds on this many labels, which have this many different weights.

        With two labels, A and B are one event. One wrong label passes a sign test at level t with probability at most
        t, so L - 1 tests pay for C; where all labels weigh the same and their number is not open, the cost is that of
        two tests, whatever L is (docs/theory.md, after Hung & Fithian 2019). Of `winner`, no level is below the
        failure_prob / (2L) of `simultaneous`: whatever that separates passes the tests.
        """
        if kind not in ("winner", ANYTIME):
            each = failure_prob / {"simultaneous": 2 * classes, "simuem": classes, "pointwise": 4}[kind]
            return cls(each, each)
        tests = min(classes - 1, 2) if kind == "winner" and weights == 1 else classes - 1
        share = max(_FOR_TESTS, tests / (2 * classes)) if kind == "winner" else _FOR_TESTS
        rivals = 0 if classes == 2 else min(weights, classes - 1)
        each = failure_prob * (1 - share) / (1 + rivals)
        return cls(each, each, failure_prob * share / tests)


def bound_votes(counts: IntArray, *, failure_prob: float, kind: str = "winner") -> LabelBounds:
    """Bound the probability of the winning label and of its strongest rival from vote counts.

    Guarantee:
        For each example separately, with probability at least `1 - failure_prob` over the training of the P models,
        `top_lower`, `top_miss_upper` and `rival_upper` all hold for `label`. This is so for

        - `winner` (default): Clopper-Pearson for a truly best label and for the best of the others, and a sign test
          between the two labels with most votes; without pay for the number of labels. Where the test fails, the bounds
          are 0, 1 and 1, which always hold;
        - `simultaneous`: Clopper-Pearson at `failure_prob / (2L)` for each of the 2L one-sided events, so the label may
          be picked from the same counts;
        - `anytime`: as `winner`, with bounds and tests by betting: with probability at least `1 - failure_prob` those
          after 1, 2, 3, ... models all hold, so models may be added after a look at the votes;
        - `simuem`: at `failure_prob / L`, only where `label` was fixed before the counts were seen. With the label
          picked from the counts the failure probability can exceed `failure_prob`; it is at most
          `failure_prob * (1 + 2/L)` for the bounds returned here (all lower bounds, and the upper bounds of the two
          labels that are truly largest), and at most `2 * failure_prob` for one upper bound per rival.

        `pointwise`, at `failure_prob / 4`, is what the code of Liu et al. 2023 does. It has only this weaker guarantee:
        each one-sided bound of a label fixed beforehand fails with at most that probability. Nothing is claimed about
        several bounds at once, nor about a label picked from the counts.

        Every bound is rounded outward. For all examples at once, divide `failure_prob` by their number.

    Assumes:
        Each row counts the votes of the same models, independent draws of one mechanism, none dropped or chosen; for
        `anytime`, the first models of a sequence whose order was fixed beforehand.

    Args:
        counts: votes, examples x classes, at least two classes, every row with the same total.
        failure_prob: allowed probability of a wrong bound, for one example.
        kind: one of `VOTE_BOUNDS`.

    Raises:
        ConfigError: an argument is outside its range, or the rows are not counts with one common total.
        NumericalError: no bound could be verified (seen with 10^9 models, and with a failure_prob near 1e-300).

    References:
        Hung & Fithian 2019, arXiv 1610.03944 (the sign test of the winner). Jia, Cao, Gong 2021, arXiv 2008.04495
        (SimuEM). Liu et al. 2023, AAAI.

    >>> bound_votes(np.array([[0, 1000]]), failure_prob=0.001).top_lower.round(4)
    array([0.9928])
    """
    _check_kind(kind, failure_prob, VOTE_BOUNDS, "votes")
    votes, total = _checked_counts(counts)
    levels = _Levels.of(kind, failure_prob, votes.shape[1])
    label = votes.argmax(axis=1)
    top = _pick(votes, label)
    # The upper bound grows with the count, so the rival with most votes has the largest one; it is the nearest, too.
    second = _largest_other(votes, label)
    lower, miss = _of_winner(kind, top, total, levels)
    rival = np.minimum(_per_distinct(_UPPER[kind], second, total, levels.upper), miss)
    found = LabelBounds(label, lower, miss, rival)
    return found if levels.ahead is None else _only(found, _ahead(kind, top, second, 0.5, levels.ahead))


def bound_weighed_votes(
    counts: IntArray, weights: IntArray, *, failure_prob: float, kind: str = "winner"
) -> LabelBounds:
    """Bound the probability of the label with the largest weight x votes, and those of its rivals by their weight.

    Guarantee: as `bound_votes` for these kinds, with "best" by weight x probability. All 2L one-sided bounds of
    `simultaneous` hold at once, so they hold for the label that was picked, by whatever rule, and for every rival. The
    others bound the best rival of each weight, and have a sign test against it. Which rival comes closest depends on
    what is asked of the bounds, so that there is an entry for every weight.

    Args:
        counts: as for `bound_votes`.
        weights: of the labels, whole numbers of 1 or more.
        failure_prob: allowed probability of a wrong bound, for one example.
        kind: one of `WEIGHED_BOUNDS`.

    Returns:
        The bounds for all examples and the rivals of the smallest weight, then for all examples and the rivals of the
        next larger weight, and so on. Of one weight, the rival with most votes has the largest bound. Where there is
        no rival of a weight, `rival_upper` and `ratio` are 0.
    """
    _check_kind(kind, failure_prob, WEIGHED_BOUNDS, "votes with class weights")
    votes, total = _checked_counts(counts)
    different: IntArray = np.unique(weights)
    levels = _Levels.of(kind, failure_prob, votes.shape[1], len(different))
    label = (votes * weights).argmax(axis=1)
    top, own = _pick(votes, label), weights[label]
    lower, miss = _of_winner(kind, top, total, levels)
    rivals: list[FloatArray] = []
    ratios: list[FloatArray] = []
    ahead = np.ones(len(votes), dtype=np.bool_)
    for weight in different:
        mine = (weights == weight) & (np.arange(len(weights)) != label[:, None])
        there = mine.any(axis=1)
        most = np.where(mine, votes, 0).max(axis=1)
        upper = np.minimum(_per_distinct(_UPPER[kind], most, total, levels.upper), miss)
        rivals.append(np.where(there, upper, 0.0))
        ratios.append(np.where(there, weight_ratio(weight, own), 0.0))
        if levels.ahead is not None:
            ahead &= ~there | _ahead(kind, top, most, _fair_share(weight, own), levels.ahead)
    times = len(rivals)
    found = LabelBounds(
        np.tile(label, times), np.tile(lower, times), np.tile(miss, times), np.concatenate(rivals),
        np.concatenate(ratios),
    )  # fmt: skip
    return _only(found, np.tile(ahead, times))


_LOWER = dict.fromkeys(VOTE_BOUNDS, clopper_pearson_lower) | {ANYTIME: anytime_lower}
_UPPER = dict.fromkeys(VOTE_BOUNDS, clopper_pearson_upper) | {ANYTIME: anytime_upper}


def _of_winner(kind: str, top: IntArray, total: int, levels: _Levels) -> tuple[FloatArray, FloatArray]:
    """The lower bound on a label, and the upper bound on its misses, which fail together."""
    lower = _per_distinct(_LOWER[kind], top, total, levels.lower)
    return lower, _per_distinct(_UPPER[kind], total - top, total, levels.lower)


def _ahead(kind: str, top: IntArray, rival: IntArray, share: FloatArray | float, level: float) -> npt.NDArray[np.bool_]:
    """Whether a sign test separates the label from a rival.

    Guarantee: let the label have at most `share` of the votes for either in truth. The test passes with probability at
    most `level`; for `anytime` that it ever does has no more. What passes against a rival passes against one with
    fewer votes.
    """
    hits, misses = top.astype(np.float64), rival.astype(np.float64)
    if kind == ANYTIME:
        return _rejects(misses, hits + misses, 1.0 - np.asarray(share, dtype=np.float64), level)
    # Pr[Binomial(hits + misses, share) >= hits]; the label has a vote, since it has most. It may have underflowed.
    return _betainc(hits, misses + 1.0, share) + 1e-300 <= level * (1.0 - 1e-11)


def _fair_share(rival: npt.ArrayLike, top: IntArray) -> FloatArray:
    """The share of the votes for either at which both have equal weight x votes, rounded up."""
    share = np.divide(rival, np.add(np.asarray(rival, dtype=np.float64), top))
    return np.where(np.equal(rival, top), 0.5, share * (1 + _RATIO_ROUNDING))


def _only(found: LabelBounds, ahead: npt.NDArray[np.bool_]) -> LabelBounds:
    """The bounds where the label is ahead, and elsewhere those that always hold."""
    miss, rival = np.where(ahead, found.top_miss_upper, 1.0), np.where(ahead, found.rival_upper, 1.0)
    return LabelBounds(found.label, np.where(ahead, found.top_lower, 0.0), miss, rival, found.ratio)


def weight_ratio(rival: npt.ArrayLike, top: IntArray) -> FloatArray:
    """Weights of rivals by the weights of labels, rounded up by so much that products with them are, too."""
    return np.where(np.equal(rival, top), 1.0, np.divide(rival, top) * (1 + _RATIO_ROUNDING))


def _per_distinct(
    bound: Callable[[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike], FloatArray],
    counts: IntArray,
    total: int,
    tail: float,
) -> FloatArray:
    """Evaluate `bound` once per distinct count: a million examples share at most `total + 1` of them."""
    if total <= counts.size:  # A table over all counts is small, and finds the distinct ones without sorting.
        distinct = np.flatnonzero(np.bincount(counts, minlength=total + 1))
        table = np.full(total + 1, np.nan)
        table[distinct] = bound(distinct, total, tail)
        return table[counts]
    distinct, where = np.unique(counts, return_inverse=True)
    return bound(distinct, total, tail)[where]


# --- scores ---------------------------------------------------------------------------------------------------------


def bound_scores(
    sums: npt.NDArray[Any],
    sumsqs: npt.NDArray[Any] | None = None,
    histograms: npt.NDArray[Any] | None = None,
    *,
    instances: int,
    failure_prob: float,
    kind: str = "empirical-bernstein",
) -> LabelBounds:
    """Bound the mean score of the leading label and of its strongest rival from sums over models.

    Guarantee:
        For each example separately, with probability at least `1 - failure_prob` over the training of the models,
        `top_lower`, `top_miss_upper` and `rival_upper` all hold for `label`, although the label is picked from the same
        sums: each of the 2L one-sided events gets `tail = failure_prob / (2L)`. Every bound is rounded outward.

        - `hoeffding`: mean +- sqrt(log(1/tail) / (2P)).
        - `empirical-bernstein`: mean +- (sqrt(2 V log(2/tail) / P) + 7 log(2/tail) / (3 (P - 1))), V the variance of
          the sample.
        - `betting`: the capital of the module's docstring, on bets fixed by P alone. For P = 1000 and
          failure_prob = 0.001 it is tighter than Bernstein, and tighter than Hoeffding up to a variance of 0.16;
          towards the largest possible variance, 1/4, it is wider than Hoeffding by less than a tenth.
        - `histogram`: bounds on the whole distribution of every score, all at once, in `spread`; see `score_bands`.
          Those on the means follow from it.

    Assumes:
        Models are independent draws of one mechanism. Scores lie in [0, 1], and those of one model sum to at most 1
        over the classes (up to 2**-20, for softmax in single precision): this is what makes
        `rival_upper <= top_miss_upper` valid.
        Sums and sums of squares carry a relative error of at most `max(2**-20, P * 2**-23)` if their type is float32
        and `max(2**-40, P * 2**-52)` otherwise, as they do after accumulation in that precision in any order; mean and
        variance are widened by it. In single precision this costs about a tenth of the width at worst for P = 1000, so
        accumulate in double precision; a cast afterwards does not help, it only hides the error.
        Histograms are exact: bin b of B holds scores in [b/B, (b+1)/B], the last one included (B a power of two makes
        `floor(score * B)` exact).

    Args:
        sums: sum of each score over the models, examples x classes.
        sumsqs: sum of the squares, same shape; needed by `empirical-bernstein`.
        histograms: counts, examples x classes x equal-width bins of [0, 1]; needed by `betting` and `histogram`.
        instances: the number P of models.
        failure_prob: allowed probability of a wrong bound, for one example.
        kind: one of `SCORE_BOUNDS`.

    Raises:
        ConfigError: an argument is outside its range, missing, or does not fit the others.

    References:
        Hoeffding 1963, Theorem 2. Maurer & Pontil 2009, arXiv 0907.3740, Theorem 4. Waudby-Smith & Ramdas 2020, arXiv
        2010.09686 (bets on a mean); the fixed mixture needs only Markov's inequality.

    >>> bound_scores(np.array([[950.0, 50.0]]), instances=1000, failure_prob=0.001, kind="hoeffding").top_lower.round(4)
    array([0.8856])
    """
    _check_kind(kind, failure_prob, SCORE_BOUNDS, "scores")
    positive_integer(instances=instances)
    total = _SumInterval.of(sums, instances, "sums")
    if bool(np.any(total.stored.sum(axis=1) > instances * (1.0 + 2 * total.error + _EXCESS))):
        raise ConfigError(
            f"Expected the sums of each example to total at most instances={instances}: the scores of one model must "
            "sum to at most 1 over the classes; pass probabilities (softmax outputs)."
        )
    tail = failure_prob / (2 * total.stored.shape[1])
    label = total.stored.argmax(axis=1)
    if kind == "histogram":
        return _by_bands(total, _checked_histograms(histograms, total, instances, kind), label, instances, tail)
    if kind == "betting":
        top_miss, rival = _betting(
            total, _checked_histograms(histograms, total, instances, kind), label, instances, tail
        )
    else:
        if kind == "hoeffding":
            width = np.full(total.stored.shape, np.sqrt(np.log(1.0 / tail) / (2 * instances)))
        else:
            width = _bernstein_width(total, _checked_sumsqs(sumsqs, total, instances), instances, tail)
        width = width * (1.0 + _WIDEN)
        top_miss = _pick((instances - total.low) / instances + width, label)
        rival = _largest_other(total.high / instances + width, label)
    # Clip to [0, 1], and cap the rival by what the leader leaves.
    top_miss_upper = np.clip(top_miss + _EXCESS, 0.0, 1.0)
    # top_miss is a valid bound before _EXCESS, which therefore covers the rounding of this subtraction too.
    rival_upper = np.minimum(np.clip(rival, 0.0, 1.0), top_miss_upper)
    return LabelBounds(label, 1.0 - top_miss_upper, top_miss_upper, rival_upper)


@dataclass(frozen=True)
class _SumInterval:
    """Stored sums, and the interval in which the exact sums lie given the rounding of their type."""

    stored: FloatArray
    low: FloatArray
    high: FloatArray
    error: float

    @classmethod
    def of(cls, values: npt.NDArray[Any], instances: int, name: str) -> "_SumInterval":
        array = np.asarray(values)
        if array.dtype.kind not in "iuf" or array.dtype.itemsize < 4:
            raise ConfigError(f"Expected {name} of type float32 or float64, got {array.dtype}; accumulate in float64.")
        if array.ndim != 2 or array.shape[0] < 1 or array.shape[1] < 2:
            raise ConfigError(
                f"Expected {name} as examples x classes with at least 2 classes, got shape {array.shape}."
            )
        single = array.dtype == np.float32
        # P additions round by at most half an eps each; the floor leaves 8 more roundings for the score itself.
        error = max(2.0**-20, instances * 2.0**-23) if single else max(2.0**-40, instances * 2.0**-52)
        if error >= 0.5:
            raise ConfigError(
                f"Expected {name} in float64 for instances={instances}: float32 has lost them to rounding."
            )
        stored = array.astype(np.float64)
        # The negation also catches NaN.
        if not bool(np.all((stored >= 0) & (stored <= instances / (1.0 - error)))):
            raise ConfigError(f"Expected {name} between 0 and instances={instances}, each score being in [0, 1].")
        return cls(stored, stored * (1.0 - error), np.minimum(stored / (1.0 - error), float(instances)), error)


def _bernstein_width(total: _SumInterval, squares: _SumInterval, instances: int, tail: float) -> FloatArray:
    """Half-width of Maurer & Pontil 2009, Theorem 4, with the largest variance that the rounded sums allow."""
    # V = (sumsq - sum^2 / P) / (P - 1), at the ends of both intervals that make it largest.
    variance = (squares.high - total.low**2 / instances) / (instances - 1)
    # V <= P/(P-1) mean (1 - mean), since x^2 <= x; largest at the mean nearest to 1/2.
    central = np.clip(0.5, total.low / instances, total.high / instances)
    variance = np.clip(variance, 0.0, instances / (instances - 1) * central * (1.0 - central))
    log_term = np.log(2.0 / tail)
    return np.sqrt(2.0 * variance * log_term / instances) + 7.0 * log_term / (3.0 * (instances - 1))


# --- betting --------------------------------------------------------------------------------------------------------


def _betting(
    total: _SumInterval, histograms: npt.NDArray[Any], label: IntArray, instances: int, tail: float
) -> tuple[FloatArray, FloatArray]:
    """Return bounds on 1 - score of the leader and on the largest score of a rival, per example."""
    examples, num_classes, bins = histograms.shape
    bets, log_prior = _bets(instances)
    # Sums and tables of logarithms in floating point are wrong by at most about 2e-15 * bins per model.
    threshold = np.log(1.0 / tail) + 1e-9 + 1e-10 * instances
    top_miss, rival = np.empty(examples), np.empty(examples)
    step = max(1, _CHUNK // (num_classes * (bins + 1)))
    for part in (slice(start, start + step) for start in range(0, examples, step)):
        is_top = np.equal(np.arange(num_classes, dtype=np.int64), label[part][:, None])
        counts = histograms[part]
        leader = _edge_weights(counts[is_top], total.low[part][is_top])
        top_miss[part] = 1.0 - _largest_rejected_mean(leader, bets, log_prior, threshold)
        # An upper bound on the mean of x is one minus a lower bound on the mean of 1 - x, whose bins run backwards.
        others = _edge_weights(counts[~is_top][:, ::-1], instances - total.high[part][~is_top])
        upper = 1.0 - _largest_rejected_mean(others, bets, log_prior, threshold)
        rival[part] = upper.reshape(-1, num_classes - 1).max(axis=1) + _WIDEN
    return top_miss, rival


def _bets(instances: int) -> tuple[FloatArray, FloatArray]:
    """Return the bets c and the logarithm of their prior, fixed before the scores are seen.

    The best bet at variance v and mean m is about m sqrt(2 log(1/tail) / (v P)). `safest` is its value at m = 1/2,
    v = 1/4 and a typical tail, where Hoeffding cannot be beaten; a quarter of the prior keeps the loss there small.
    Smaller bets serve means below 1/2, larger ones smaller variances. The true tail is left out on purpose: with one
    prior for all, a smaller failure_prob can never tighten a bound.
    """
    safest = min(0.5, np.sqrt(2.0 * 10.0 / instances))
    first, last = _logit(safest / 4), _logit(0.99)
    spread = np.linspace(first, last, int(np.ceil((last - first) / _BET_SPACING)) + 1)
    bets = np.append(1.0 / (1.0 + np.exp(-spread)), safest)
    prior = np.append(np.full(spread.size, 0.75 / spread.size), 0.25)
    return bets, np.log(prior)


def _logit(probability: float) -> float:
    return float(np.log(probability) - np.log1p(-probability))


def _edge_weights(counts: npt.NDArray[Any], sums: FloatArray) -> FloatArray:
    """Spread the counts of B bins over the B + 1 bin edges, in the way that is least favourable to the capital.

    Args:
        counts: rows x bins.
        sums: at most the sum of the scores, one per row; the surplus over the lower edges lifts the highest bins first.
    """
    bins = counts.shape[1]
    held = counts.astype(np.float64)
    lifts: FloatArray = sums * bins - held @ np.arange(bins, dtype=np.float64)
    above = held[:, ::-1].cumsum(axis=1)[:, ::-1] - held
    lifted: FloatArray = np.clip(lifts[:, None] - above, 0.0, held)
    weights = np.zeros((len(held), bins + 1))
    weights[:, :-1] = held - lifted
    weights[:, 1:] += lifted
    return weights


def _largest_rejected_mean(
    weights: FloatArray, bets: FloatArray, log_prior: FloatArray, threshold: float
) -> FloatArray:
    """Return per row the largest candidate mean whose capital passes the threshold, 0 if there is none.

    Bisection on the grid of means, all rows at once: rows that ask about the same mean share one table of logarithms.
    The answer was itself rejected, so it is a valid bound even where rounding disturbs the order.
    """
    edges = np.linspace(0.0, 1.0, weights.shape[1])[:, None]
    answer = np.zeros(len(weights))
    # Each entry: rows whose answer is at index `low` or above, and below `high`.
    pending = [(np.arange(len(weights)), 0, len(_MEANS) - 1)]
    while pending:
        rows, low, high = pending.pop()
        if high - low == 1:
            answer[rows] = _MEANS[low]
            continue
        middle = (low + high) // 2
        log_capital = weights[rows] @ np.log1p(bets * (edges / _MEANS[middle] - 1.0)) + log_prior
        best = log_capital.max(axis=1)
        rejected = best + np.log(np.exp(log_capital - best[:, None]).sum(axis=1)) >= threshold
        if rejected.any():
            pending.append((rows[rejected], middle, high))
        if not rejected.all():
            pending.append((rows[~rejected], low, middle))
    return answer


# --- bands ----------------------------------------------------------------------------------------------------------


def _by_bands(
    total: _SumInterval, histograms: npt.NDArray[Any], label: IntArray, instances: int, tail: float
) -> LabelBounds:
    """Bounds on the distribution of 1 - the score of the leader, and on those of all rivals at once.

    A score is above t in [b/B, (b+1)/B) only if it is in bin b or higher; 1 - a score is, only if the score is in a bin
    below B - b. Those counts are exact, and the band at the edge holds for all t of the bin.
    """
    examples, num_classes, bins = histograms.shape
    band = Band.of(instances, tail * (1.0 - MEAN_SHARE), clopper_pearson_upper)
    means = total.high / instances * (1.0 + _WIDEN)
    rival_mean = np.minimum(_largest_other(means, label), 1.0)
    miss_mean = np.clip((instances - _pick(total.low, label)) / instances + _WIDEN, 0.0, 1.0)
    # The Chernoff bound grows with the mean, so that of the largest covers all rivals.
    rival_mean, miss_mean = (chernoff_upper(each, instances, tail * MEAN_SHARE) for each in (rival_mean, miss_mean))
    # Scores of one model add up to one, but for rounding: no rival has more than the leader leaves.
    rival_mean = np.minimum(rival_mean, miss_mean + _EXCESS)
    pieces: list[tuple[FloatArray, FloatArray]] = []
    step = max(1, _CHUNK // (num_classes * (bins + 1)))
    for part in (slice(start, start + step) for start in range(0, examples, step)):
        miss, rival = _places(band, histograms[part], label[part])
        pieces.append((_lengths(miss, len(band.heights)), _lengths(rival, len(band.heights))))
    miss, rival = (np.concatenate(each) for each in zip(*pieces, strict=True))
    return _joined(label, band.steps(miss, miss_mean), band.steps(rival, rival_mean))


def _places(band: Band, counts: npt.NDArray[Any], label: IntArray) -> tuple[IndexArray, IndexArray]:
    """Which height of the band each bin has, inputs x bins: of 1 - the score of the leader, and of any rival."""
    is_top = np.equal(np.arange(counts.shape[1], dtype=np.int64), label[:, None])
    # Bins below B - b, for b = 0 ... B - 1.
    below = counts[is_top].cumsum(axis=1, dtype=np.int64)[:, ::-1]
    above = counts[~is_top].reshape(len(counts), -1, counts.shape[2])[:, :, ::-1].cumsum(axis=2, dtype=np.int64)
    miss, rival = band.places(below), band.places(above.max(axis=1)[:, ::-1])
    # What is above t leaves 1 - the score of the leader above t - 2^-20, which is at least the next lower edge.
    left = np.concatenate([miss[:, :1], miss[:, :-1]], axis=1)
    return miss, np.minimum(rival, left)


def _lengths(places: IndexArray, heights: int) -> FloatArray:
    """On which share of the bins a step function has each height, inputs x heights."""
    rows, bins = places.shape
    flat: IndexArray = np.ravel(np.arange(rows, dtype=np.intp)[:, None] * heights + places)
    return np.bincount(flat, minlength=rows * heights).reshape(rows, heights) / bins


def _joined(label: IntArray, miss: StepBounds, rival: StepBounds) -> LabelBounds:
    spread = Spread(
        miss.heights,
        miss.lengths + rival.lengths,
        np.stack([miss.cap, rival.cap], axis=1),
        np.stack([miss.cap_length, rival.cap_length], axis=1),
    )
    top_miss_upper = np.minimum(miss.mean + _EXCESS, 1.0)
    return LabelBounds(
        label, 1.0 - top_miss_upper, top_miss_upper, np.minimum(rival.mean, top_miss_upper), spread=spread
    )


# --- shared ---------------------------------------------------------------------------------------------------------


def _pick(values: npt.NDArray[_Scalar], label: IntArray) -> npt.NDArray[_Scalar]:
    return np.take_along_axis(values, label[:, None], axis=1)[:, 0]


def _largest_other(values: npt.NDArray[_Scalar], label: IntArray) -> npt.NDArray[_Scalar]:
    """Return per row the largest value outside the column `label`; all values must be non-negative."""
    others = values.copy()
    np.put_along_axis(others, label[:, None], -1, axis=1)
    return others.max(axis=1)


def _check_kind(kind: str, failure_prob: float, allowed: tuple[str, ...], what: str) -> None:
    if kind not in allowed:
        raise ConfigError(
            f"Expected kind of bound for {what} to be one of {', '.join(allowed)}, got {kind!r}; "
            f"votes have {', '.join(VOTE_BOUNDS)}, scores have {', '.join(SCORE_BOUNDS)}."
        )
    number_in(0, 1, low_open=True, high_open=True, failure_prob=failure_prob)


def _checked_binomial(
    count: npt.ArrayLike, total: npt.ArrayLike, tail: npt.ArrayLike
) -> tuple[FloatArray, FloatArray, FloatArray]:
    hits, trials, level = (np.asarray(value, dtype=np.float64) for value in (count, total, tail))
    # The negations also catch NaN.
    if not bool(np.all((hits >= 0) & (hits <= trials) & (trials >= 1))):
        raise ConfigError("Expected every count between 0 and total, and total of at least 1.")
    if not bool(np.all((level > 0) & (level < 1))):
        raise ConfigError(f"Expected tail in (0, 1), got {tail!r}.")
    return hits, trials, level


def _checked_counts(counts: npt.NDArray[Any]) -> tuple[IntArray, int]:
    array = np.asarray(counts)
    if array.dtype.kind not in "iu" or array.ndim != 2 or array.shape[0] < 1 or array.shape[1] < 2:
        raise ConfigError(
            f"Expected counts as whole numbers, examples x classes with at least 2 classes, "
            f"got {array.dtype} of shape {array.shape}."
        )
    votes = array.astype(np.int64, copy=False)
    totals = votes.sum(axis=1)
    total = int(totals[0])
    if total < 1 or bool(np.any(totals != total)) or bool(np.any(votes < 0)):
        raise ConfigError("Expected every row of counts to hold one vote of each model; pass the counts unfiltered.")
    return votes, total


def _checked_sumsqs(sumsqs: npt.NDArray[Any] | None, total: _SumInterval, instances: int) -> _SumInterval:
    if sumsqs is None:
        raise ConfigError(
            "bounds='empirical-bernstein' needs the sums of squared scores; re-run with them or use bounds='hoeffding'."
        )
    if instances < 2:
        raise ConfigError(
            f"bounds='empirical-bernstein' needs at least 2 instances, got {instances}; use bounds='hoeffding'."
        )
    squares = _SumInterval.of(sumsqs, instances, "sumsqs")
    if squares.stored.shape != total.stored.shape:
        raise ConfigError(f"Expected sumsqs of shape {total.stored.shape} like sums, got {squares.stored.shape}.")
    # For scores in [0, 1]: sum^2 / P <= sumsq <= sum.
    if bool(np.any((squares.low > total.high) | (squares.high < total.low**2 / instances * (1.0 - _WIDEN)))):
        raise ConfigError(
            "Expected sumsqs between sums**2 / instances and sums; pass sums and sumsqs of the same scores."
        )
    return squares


def _checked_histograms(
    histograms: npt.NDArray[Any] | None, total: _SumInterval, instances: int, kind: str
) -> npt.NDArray[Any]:
    if histograms is None:
        raise ConfigError(
            f"bounds={kind!r} needs histograms; re-run with histograms or use bounds='empirical-bernstein'."
        )
    counts = np.asarray(histograms)
    shape = total.stored.shape
    if counts.dtype.kind not in "iu" or counts.ndim != 3 or counts.shape[:2] != shape or counts.shape[2] < 1:
        raise ConfigError(
            f"Expected histograms as whole numbers, {shape[0]} examples x {shape[1]} classes x bins, "
            f"got {counts.dtype} of shape {counts.shape}."
        )
    if bool(np.any(counts < 0)) or bool(np.any(counts.sum(axis=2, dtype=np.int64) != instances)):
        raise ConfigError(
            f"Expected every histogram to hold instances={instances} scores; pass the histograms unfiltered."
        )
    bins = counts.shape[2]
    lower_edges = counts @ np.arange(bins, dtype=np.int64)
    if bool(np.any((total.high * bins < lower_edges) | (total.low * bins > lower_edges + instances))):
        raise ConfigError("Expected sums that fit the histograms; pass sums and histograms of the same scores.")
    return counts
