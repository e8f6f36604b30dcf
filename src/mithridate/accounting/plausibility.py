"""What every right curve obeys, checked without the engine that computed it: a curve from a file may be a lie.

A curve K is stored as lines `c + s x`, each an upper bound on the largest probability under D' of an event that has
probability x under D. Three things are known of it beforehand:

* *Shape.* The least right intercept of slope s is the hockey-stick divergence, which lies between max(0, 1 - s) and 1.
  So every line has 0 <= c and c + s >= 1, which is K(x) >= x on all of [0, 1].
* *Order.* More changed examples are no harder to see: K grows with either number of changes.
* *A lower bound.* Let every changed example pull with all its length in one direction, and let the attacker look at
  the sum of all steps only. That is a real pair of data sets and a real event, so K may not lie below it.

References: Dong, Roth, Su 2022 (arXiv 1905.02383) for shape and order; the event is that of docs/theory.md, section 5.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy import special

from mithridate.accounting.privacy_loss import TradeoffCurve
from mithridate.core.mechanism import SampledGaussian

FloatArray = npt.NDArray[np.float64]

# Rounding of the lines and of what they are compared with; damage that matters is far larger.
_TOLERANCE = 1e-9
# Two curves come from grids of their own; the engine allows them as much when it computes them.
_ORDER_TOLERANCE = 1e-3
_PROBES = np.array([0.003, 0.03, 0.3])
# Numbers of kept examples are taken in so many equally likely groups, and thresholds at so many places.
_GROUPS = 64
_PLACES = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])


def check_lines(intercepts: FloatArray, slopes: FloatArray) -> None:
    """Require lines as a curve has them: finite, of increasing slopes, between x and 1 wherever they may be.

    Raises:
        ValueError: they are something else.
    """
    if not (np.isfinite(intercepts).all() and np.isfinite(slopes).all()):
        raise ValueError("a curve holds numbers that are not finite")
    if (slopes < 0).any() or (np.diff(slopes) <= 0).any():
        raise ValueError("the slopes of a curve do not increase")
    below = (intercepts < -_TOLERANCE) | (intercepts + slopes < 1 - _TOLERANCE)
    if below.any() or (intercepts > 1 + _TOLERANCE).any():
        raise ValueError("a curve lies below K(x) = x, or above 1")


def check_plausible(mechanism: SampledGaussian, curves: Mapping[tuple[int, int], TradeoffCurve]) -> None:
    """Require curves that fit each other and their mechanism.

    Raises:
        ValueError: one cannot be right.
    """
    if any(min(split) < 0 or max(split) < 1 for split in curves):
        raise ValueError("a curve is about an impossible number of changes")
    for pure in ({s[0]: c for s, c in curves.items() if not s[1]}, {s[1]: c for s, c in curves.items() if not s[0]}):
        values = [pure[changes](_PROBES) for changes in sorted(pure)]
        if any((fewer > more + _ORDER_TOLERANCE).any() for fewer, more in pairwise(values)):
            raise ValueError("a curve lies above one for more changes")
    for (split, curve), (at, least) in zip(curves.items(), least_curves(mechanism, list(curves)), strict=True):
        if (curve(at) < least - _TOLERANCE).any():
            raise ValueError(f"the curve for {split[0]} deleted and {split[1]} inserted examples lies too low")


def least_curves(
    mechanism: SampledGaussian, splits: Sequence[tuple[int, int]]
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """For each split (deleted, inserted) some probabilities, and values that K has at least there.

    Guarantee: every curve that is right for the split is at least as large. With s = noise x sqrt(steps), the event
    "the sum of all steps is above t" has probability E Phi((J - t) / s) under D' and E Phi((-I - t) / s) under D, for
    binomial numbers J and I of times that a deleted or an inserted example is sampled. Both are bounded in groups of
    equal probability: under D' each by its smallest J, under D by its smallest I.

    Assumes: the mechanism of `SampledGaussian`.
    """
    scale = mechanism.noise_multiplier * np.sqrt(mechanism.steps)
    sampled = _smallest_in_groups({changes for split in splits for changes in split}, mechanism)
    for deleted, inserted in splits:
        more, fewer = sampled[deleted], sampled[inserted]
        # About the middle of the sum under D', and at some standard deviations from it.
        thresholds = float(more.mean()) + _PLACES * np.sqrt(scale**2 + float(more.var()))
        under = np.mean(_normal((-fewer[:, None] - thresholds) / scale), axis=0)
        over = np.mean(_normal((more[:, None] - thresholds) / scale), axis=0)
        yield np.minimum(under, 1.0), over


def _normal(x: FloatArray) -> FloatArray:
    return np.asarray(special.ndtr(x), dtype=np.float64)


def _smallest_in_groups(changes: set[int], mechanism: SampledGaussian) -> dict[int, FloatArray]:
    """How often so many examples are sampled in all steps: the smallest member of each of equally likely groups."""
    from scipy import stats  # which takes long to import, and is needed only where there is a cache

    numbers = sorted(changes)
    trials = np.array(numbers, dtype=np.float64)[:, None] * mechanism.steps
    smallest = np.asarray(stats.binom.ppf(np.arange(_GROUPS) / _GROUPS, trials, mechanism.sample_rate))
    # The quantile of zero is below every number; where all are sampled there is but one number.
    smallest = np.broadcast_to(trials, smallest.shape) if mechanism.sample_rate == 1 else np.maximum(smallest, 0.0)
    return dict(zip(numbers, smallest, strict=True))
