"""Second routes for what is certified from whole distributions, written down anew.

A band says how likely a score is to be above t at most, for every t at once, from how many models are above t. Here it
is inverted by bisection on the binomial distribution, the level at which a mean cuts it off is found by bisection, and
integrals are plain averages over bins. `core.score_bands` has the proof; nothing is shared with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse, stats

from mithridate.auditing.exact_curves import TOLERANCE
from mithridate.auditing.routes import BoolArray, Distributions, FloatArray, IntArray, Limits
from mithridate.errors import NumericalError

# What each label may spend on the mean of one side, and of the rest on the count zero.
_FOR_MEAN, _FOR_ZERO = 0.0625, 0.5
_STEPS = 100
# Scores of one model may add up to so much more than one.
_EXCESS = 2.0**-20
# Inputs at once.
_AT_ONCE = 256


def distributions_of(
    histograms: npt.NDArray[Any], sums: npt.NDArray[Any], label: IntArray, *, instances: int, tail: float
) -> Distributions:
    """The distributions that fit the histograms and sums of scores worst, for a label and its rivals.

    Args:
        histograms: scores counted in equal bins, inputs x labels x bins.
        sums: of the scores, inputs x labels.
        label: the claimed one of each input.
        instances: number of models.
        tail: what may fail for one side of one label.

    Raises:
        NumericalError: the histograms are not those of so many models.
    """
    if histograms.ndim != 3 or histograms.shape[:2] != sums.shape:
        raise NumericalError("the histograms do not have an entry for each input and label")
    if histograms.min() < 0 or (histograms.sum(axis=2, dtype=np.int64) != instances).any():
        raise NumericalError("the histograms do not count every instance once")
    by_count = heights(instances, tail * (1 - _FOR_MEAN))
    rounding = instances * (2.0**-23 if sums.dtype == np.float32 else 2.0**-52)
    means = sums.astype(np.float64) / instances
    rows = np.arange(len(label))
    miss_mean = mean_at_most(1 - means[rows, label] * (1 - rounding), instances, tail * _FOR_MEAN)
    others = means.copy()
    others[rows, label] = 0
    rival_mean = mean_at_most(others.max(axis=1) * (1 + rounding), instances, tail * _FOR_MEAN)
    parts = [
        _part(by_count, histograms[part], label[part], miss_mean[part], rival_mean[part])
        for part in (slice(at, at + _AT_ONCE) for at in range(0, len(label), _AT_ONCE))
    ]
    miss, rival = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Distributions(miss, rival)


def means_of(found: Distributions) -> Limits:
    """Bounds on the mean scores that follow from bounds on their distributions."""
    miss = np.minimum(found.miss.mean(axis=1) + _EXCESS, 1.0)
    return Limits(1 - miss, miss, np.minimum(found.rival.mean(axis=1), miss))


def _part(
    by_count: FloatArray, counts: npt.NDArray[Any], label: IntArray, miss_mean: FloatArray, rival_mean: FloatArray
) -> tuple[FloatArray, FloatArray]:
    inputs, _, bins = counts.shape
    rows = np.arange(inputs)
    below = np.zeros((inputs, bins), dtype=np.int64)
    above = np.zeros((inputs, counts.shape[1], bins), dtype=np.int64)
    for edge in range(bins):
        # 1 - score > edge / bins where the score is below 1 - edge / bins.
        below[:, edge] = counts[rows, label, : bins - edge].sum(axis=1)
        above[:, :, edge] = counts[:, :, edge:].sum(axis=2)
    above[rows, label] = 0
    miss, rival = by_count[below], by_count[above].max(axis=1)
    # A rival that has more than t leaves the label less than 1 - t, but for the excess: the bin before has that.
    rival[:, 1:] = np.minimum(rival[:, 1:], miss[:, :-1])
    rival[:, 0] = np.minimum(rival[:, 0], miss[:, 0])
    return cut(miss, miss_mean), cut(rival, np.minimum(rival_mean, miss_mean + _EXCESS))


def heights(instances: int, tail: float) -> FloatArray:
    """For every number of models above t the largest probability of being above it that is not rejected."""
    grid = list(_grid(instances))
    share = [1.0] if len(grid) == 1 else [_FOR_ZERO] + [(1 - _FOR_ZERO) / (len(grid) - 1)] * (len(grid) - 1)
    levels, counts = tail * np.array(share), np.array(grid)
    low, high = np.zeros(len(grid)), np.ones(len(grid))
    for _ in range(_STEPS):
        middle = (low + high) / 2
        rejected = stats.binom.cdf(counts, instances, middle) <= levels
        low, high = np.where(rejected, low, middle), np.where(rejected, middle, high)
    every = np.ones(instances + 1)
    # A count between two of the grid counts as the larger one; beyond the last nothing is known.
    before = -1
    for count, height in zip(grid, high.tolist(), strict=True):
        every[before + 1 : count + 1] = height
        before = count
    return every


def _grid(instances: int) -> Iterator[int]:
    """Counts half a standard deviation apart, and never nearer than a 512th of all."""
    count = 0
    while count < instances:
        yield count
        count += max(1, math.isqrt(count) // 2, instances // 512)


def mean_at_most(means: FloatArray, instances: int, tail: float) -> FloatArray:
    """The largest mean of numbers in [0, 1] at which an average so small is not rejected by Chernoff's inequality."""
    average, wanted = np.clip(means, 0.0, 1.0), -math.log(tail) / instances
    low, high = average.copy(), np.ones(len(average))
    for _ in range(_STEPS):
        middle = (low + high) / 2
        rejected = stats.entropy(_coin(average), _coin(middle)) >= wanted
        low, high = np.where(rejected, low, middle), np.where(rejected, middle, high)
    return high


def _coin(probability: FloatArray) -> FloatArray:
    return np.stack([probability, 1 - probability])


def cut(bound: FloatArray, mean: FloatArray) -> FloatArray:
    """Rows cut off at the height at which their average is the mean, where it is larger."""
    low, high = np.zeros(len(bound)), np.ones(len(bound))
    for _ in range(_STEPS):
        middle = (low + high) / 2
        small = np.minimum(bound, middle[:, None]).mean(axis=1) <= mean
        low, high = np.where(small, middle, low), np.where(small, high, middle)
    return np.minimum(bound, high[:, None])


class Integrals:
    """What a curve makes of some distributions: it is asked at `x`, the heights that occur, each once."""

    def __init__(self, found: Distributions) -> None:
        both = np.concatenate([found.miss, found.rival], axis=1)
        self.x, place = np.unique(both, return_inverse=True)
        rows = np.repeat(np.arange(len(both)), both.shape[1])
        shares = np.full(both.size, 2 / both.shape[1])
        self._shares = sparse.csr_matrix((shares, (rows, place.reshape(-1))), shape=(len(both), len(self.x)))
        self._found = found

    def __len__(self) -> int:
        return len(self._found.miss)

    def take(self, rows: npt.NDArray[np.intp]) -> Integrals:
        """Those of some inputs."""
        return Integrals(Distributions(self._found.miss[rows], self._found.rival[rows]))

    def below_one(self, largest: FloatArray) -> BoolArray:
        """Whether both integrals together stay below one; `largest` is the curve at `x`, or rows of such curves."""
        columns = np.atleast_2d(largest).T
        total = np.asarray(self._shares @ columns, dtype=np.float64).T
        return total.reshape(*largest.shape[:-1], len(self)) < 1 - 2 * TOLERANCE


def steps_of_errors(accuracies: Sequence[float], tail: float) -> list[tuple[float, float]]:
    """Lengths and heights of the worst distribution of the error of one instance, from the accuracies of all."""
    errors = np.sort(1 - np.asarray(accuracies, dtype=np.float64))
    by_count = heights(len(errors), tail * (1 - _FOR_MEAN))
    edges = np.concatenate([[0.0], errors, [1.0]])
    # Between the i-th and the next smallest error so many instances have a larger one.
    lengths, bound = np.diff(edges), by_count[len(errors) - np.arange(len(errors) + 1)]
    (mean,) = mean_at_most(np.array([errors.mean()]), len(errors), tail * _FOR_MEAN)
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if lengths @ np.minimum(bound, middle) <= mean else (low, middle)
    return list(zip(lengths.tolist(), np.minimum(bound, high).tolist(), strict=True))


def steps_of_wrong(wrong: IntArray, instances: int, tail: float) -> list[tuple[float, float]]:
    """Shares of the inputs, and how probably one instance is wrong on them at most, from how many were."""
    grid = np.array(list(_grid(instances)))
    # A count between two of the grid counts as the larger one.
    above = np.array([grid[grid >= count].min(initial=instances) for count in wrong.tolist()])
    low, high = np.zeros(len(above)), np.ones(len(above))
    for _ in range(_STEPS):
        middle = (low + high) / 2
        rejected = stats.binom.cdf(above, instances, middle) <= tail / (2 * len(wrong))
        low, high = np.where(rejected, low, middle), np.where(rejected, middle, high)
    mean = mean_at_most(np.array([wrong.mean() / instances]), instances, tail / 2)
    shares = np.full(len(wrong), 1 / len(wrong))
    return list(zip(shares.tolist(), cut(high[None], mean)[0].tolist(), strict=True))
