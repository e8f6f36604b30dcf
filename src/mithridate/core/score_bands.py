"""Bands: bounds on the whole distribution of a score, all of it at once, from P independent models.

Let y in [0, 1] be the score of one label on one input, S(t) = Pr[y > t], and N(t) the number of models whose score is
above t. A *band* is a rule U from counts to probabilities with

    Pr[ S(t) <= U(N(t)) for every t ] >= 1 - tail.

It is built from a fixed grid of counts 0 = k_0 < k_1 < ... < k_m < P, whose members get shares w_j of `tail` that add
up to one: h_j is the Clopper-Pearson upper bound for k_j successes in P trials at level w_j * tail, and U(N) is h_j for
the smallest k_j >= N, or 1 where there is none. *Proof.* Suppose that S(t) > h_j for a t with N(t) <= k_j. Then the
number of models among the upper h_j of the distribution of y (ties broken at random) is at most N(t): a binomial number
with success probability h_j was at most k_j. That has probability at most w_j * tail, by the choice of h_j, and the
event does not mention t. Sum over j. (Of a continuous distribution: the k_j + 1 largest of P uniform numbers reach
below 1 - h_j but with that probability.) So no t, and no bin, costs anything: 2,048 bins have the band of 32.

Low counts matter most, for a trade-off curve is steepest at 0; so zero gets half of `tail`, and the rest is spread
evenly. The grid has steps of half a standard deviation of a count, so that rounding N up to it costs little.

*With a mean.* Let also E[y] <= M. Of all S <= U with integral at most M, the integral of K(S) is largest at min(U, c)
for every increasing concave K at once, where c is such that the integral of min(U, c) is M (docs/theory.md, section 5).
So the worst distribution follows from the data alone, and a curve is evaluated at its few heights.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mithridate.errors import ConfigError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
IndexArray = npt.NDArray[np.intp]

# Shares of the tail of one side of one label: of the mean, and of the count zero among what is left for the band.
MEAN_SHARE = 1 / 16
ZERO_SHARE = 0.5
# No two counts of the grid are nearer than this part of all models.
_COARSEST = 512
_WIDEN = 1e-12
_HALVINGS = 60


@dataclass(frozen=True)
class Spread:
    """Two upper bounds on distributions for each input, for 1 - the score of the label and for that of any rival.

    Both are step functions on [0, 1], kept as the length of [0, 1] on which they have each height.

    Attributes:
        heights: probabilities that all inputs share, increasing.
        lengths: where either step function has that height, added up, inputs x heights.
        caps: the height of each at which its mean cuts it off, inputs x 2.
        cap_lengths: the length on which it does, inputs x 2.
    """

    heights: FloatArray
    lengths: FloatArray
    caps: FloatArray
    cap_lengths: FloatArray

    def __len__(self) -> int:
        return len(self.caps)

    def take(self, chosen: IndexArray) -> "Spread":
        """Those of some inputs."""
        return Spread(self.heights, self.lengths[chosen], self.caps[chosen], self.cap_lengths[chosen])

    def sum_of(self, function: Callable[[FloatArray], FloatArray]) -> FloatArray:
        """The integrals of `function` of both, added up and rounded up, for a function with values of 0 or more."""
        at_caps = function(self.caps.reshape(-1)).reshape(self.caps.shape)
        total: FloatArray = self.lengths @ function(self.heights) + (self.cap_lengths * at_caps).sum(axis=1)
        return total * (1.0 + _WIDEN)


@dataclass(frozen=True)
class StepBounds:
    """Upper bounds on S as step functions, a row each; `lengths` is rows x heights, the rest one number a row."""

    heights: FloatArray
    lengths: FloatArray
    cap: FloatArray
    cap_length: FloatArray
    mean: FloatArray


@dataclass(frozen=True)
class Band:
    """The rule U; see the module docstring.

    Attributes:
        counts: the grid.
        heights: U at each count of the grid, and 1 for more.
    """

    counts: IntArray
    heights: FloatArray

    @classmethod
    def of(cls, instances: int, tail: float, upper: Callable[[IntArray, int, FloatArray], FloatArray]) -> "Band":
        """The band of so many models; `upper` is the Clopper-Pearson bound.

        Guarantee: with probability `1 - tail`, S(t) is at most the height of the count of scores above t, for every t.
        """
        counts = grid_of(instances)
        return cls(counts, np.append(upper(counts, instances, tail * shares_of(len(counts))), 1.0))

    def places(self, counts: IntArray) -> IndexArray:
        """Which height belongs to each count."""
        return np.searchsorted(self.counts, counts)

    def steps(self, lengths: FloatArray, mean: FloatArray) -> StepBounds:
        """The worst distributions, from the lengths on which U has each height, and an upper bound on each mean."""
        heights, reached = self.heights, np.cumsum(lengths * self.heights, axis=1)
        left = np.maximum(lengths.sum(axis=1, keepdims=True) - np.cumsum(lengths, axis=1), 0.0)
        # The integral of min(U, h) at every height h: it grows with h.
        too_much = reached + left * heights > mean[:, None]
        first = np.where(too_much.any(axis=1), too_much.argmax(axis=1), len(heights))
        is_cut = np.arange(len(heights)) >= first[:, None]
        cap_length = np.where(is_cut, lengths, 0.0).sum(axis=1)
        kept = np.where(is_cut, 0.0, lengths)
        room = np.maximum(mean - kept @ heights, 0.0)
        cap = np.divide(room, cap_length, out=np.zeros(len(room)), where=cap_length > 0) * (1 + _WIDEN) + 1e-15
        # Never above the height that is cut, which is a bound by itself.
        cap = np.minimum(cap, np.append(heights, 1.0)[first])
        total = (kept @ heights + cap_length * cap) * (1 + _WIDEN)
        return StepBounds(heights, kept, cap, cap_length, np.minimum(total, 1.0))


def grid_of(instances: int) -> IntArray:
    """The counts at which a band is computed, the same for everybody who has so many models."""
    counts = [0]
    while True:
        last = counts[-1]
        step = max(1, int(np.sqrt(last) / 2), instances // _COARSEST)
        if last + step >= instances:
            return np.array(counts, dtype=np.int64)
        counts.append(last + step)


def shares_of(number: int) -> FloatArray:
    """What each count of the grid may use up of the tail; they add up to at most one."""
    if number == 1:
        return np.ones(1)
    shares = np.full(number, (1.0 - ZERO_SHARE) / (number - 1))
    shares[0] = ZERO_SHARE
    return shares * (1.0 - _WIDEN)


def chernoff_upper(means: FloatArray, instances: int, tail: float) -> FloatArray:
    """Upper bounds on the means of numbers in [0, 1] of which only the average of `instances` draws is known.

    Guarantee: each is below the true mean with probability at most `tail`; rounded up. Pr[average <= m] is at most
    exp(-P kl(m, M)) for a true mean M > m.

    References: Hoeffding 1963, Theorem 1.

    >>> chernoff_upper(np.array([0.0]), 1000, 1e-3).round(6)  # 1 - tail^(1 / instances)
    array([0.006884])
    """
    needed = np.log(1.0 / tail) / instances * (1 + _WIDEN) + _WIDEN
    low, high = means.copy(), np.ones(len(means))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = _divergence(means, middle) > needed
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high


def _divergence(mean: FloatArray, candidate: FloatArray) -> FloatArray:
    """kl(mean, candidate) for mean <= candidate."""
    with np.errstate(divide="ignore", invalid="ignore"):
        hit = np.where(mean > 0, mean * np.log(mean / candidate), 0.0)
        miss = np.where(mean < 1, (1 - mean) * (np.log1p(-mean) - np.log1p(-candidate)), 0.0)
    return np.where(candidate >= 1, np.inf, hit + miss)


def steps_of_counts(
    counts: IntArray, instances: int, tail: float, upper: Callable[[IntArray, int, FloatArray], FloatArray]
) -> StepBounds:
    """The worst probabilities of some events, of which each happened to so many of the models, as one row.

    Guarantee: with probability `1 - tail`, the average of K(p) over the probabilities p of the events is at most that
    of K of the steps, for every increasing concave K. Half of `tail` goes to all single probabilities at once, the
    other half to their mean.
    """
    grid = grid_of(instances)
    each = np.full(len(grid), 0.5 * tail * (1.0 - _WIDEN) / len(counts))
    band = Band(grid, np.append(upper(grid, instances, each), 1.0))
    lengths = np.bincount(band.places(counts), minlength=len(band.heights)) / len(counts)
    mean = min(float(counts.mean()) / instances * (1.0 + _WIDEN), 1.0)
    return band.steps(lengths[None], chernoff_upper(np.array([mean]), instances, 0.5 * tail))


def steps_of_values(
    values: FloatArray, instances: int, tail: float, upper: Callable[[IntArray, int, FloatArray], FloatArray]
) -> StepBounds:
    """The worst distribution of a number in [0, 1] of which every draw is known, as one row.

    Guarantee: with probability `1 - tail`, the integral of K(Pr[y > t]) over t is at most that of K of the steps, for
    every increasing concave K.

    Raises:
        ConfigError: the values are not numbers in [0, 1].
    """
    if values.ndim != 1 or not bool(np.all((values >= 0) & (values <= 1))):
        raise ConfigError("Expected numbers in [0, 1], one for each instance.")
    band = Band.of(instances, tail * (1.0 - MEAN_SHARE), upper)
    edges, above = np.unique(values, return_counts=True)
    # From 0 to the smallest value all are above, from there on fewer.
    remaining = instances - np.append(0, np.cumsum(above))
    widths = np.diff(np.concatenate([[0.0], edges, [1.0]]))
    lengths = np.zeros(len(band.heights))
    np.add.at(lengths, band.places(remaining), widths)
    mean = chernoff_upper(np.array([min(float(values.mean()) * (1 + _WIDEN), 1.0)]), instances, tail * MEAN_SHARE)
    return band.steps(lengths[None], mean)
