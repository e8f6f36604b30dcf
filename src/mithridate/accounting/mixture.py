"""The dominating pair of one DP-SGD step when `deleted` and `inserted` examples separate D' from D.

After scaling by the clipping norm, the worst case of one step is

    P (from D') = sum_k Binom(k; deleted, q) N(+k, sigma^2)
    Q (from D)  = sum_j Binom(j; inserted, q) N(-j, sigma^2)

where `deleted` counts examples that D' has and D lacks, `inserted` those that D has and D' lacks. With
phi the density of N(0, sigma^2),

    P(x) / phi(x) = sum_k w_k exp( k x / sigma^2 - k^2 / (2 sigma^2)),   increasing in x,
    Q(x) / phi(x) = sum_j v_j exp(-j x / sigma^2 - j^2 / (2 sigma^2)),   decreasing in x,

so the privacy loss log P/Q increases in x and every optimal test is a threshold on x. The proof that this pair
dominates is in docs/theory.md, section 3.

References: Ganesh 2024, arXiv 2401.10294 (one kind of change); Schuchardt et al. 2024, arXiv 2403.04867 (both kinds).
"""

from dataclasses import dataclass

import numpy as np

from mithridate.core.rule import FloatArray

UNIT = float(np.finfo(np.float64).eps) / 2


@dataclass(frozen=True)
class Components:
    """The components of a binomial mixture that carry all but `dropped` of its mass.

    Attributes:
        counts: how many examples each component has.
        log_weights: log of its probability.
        dropped: mass of the components left out, rounded up.
        weight_error: largest relative error of a weight.
    """

    counts: FloatArray
    log_weights: FloatArray
    dropped: float
    weight_error: float


def log_binomial(trials: int, rate: float, low: int = 0, high: int | None = None) -> FloatArray:
    """Log probabilities of `low` to `high` successes, of full relative accuracy around the mode; by default of all.

    They are normalised over that window, which must hold nearly all mass.
    """
    counts = np.arange(low, (trials if high is None else high) + 1, dtype=np.float64)
    if rate == 1.0 or trials == 0:
        return np.where(counts == trials, 0.0, -np.inf)
    # w_(k+1) / w_k = (n - k) / (k + 1) * q / (1 - q). The logs are summed outward from the mode, where they are near
    # zero, and normalised at the end: summed from w_0, their rounding errors would grow with the number of trials.
    with np.errstate(divide="ignore"):  # The smallest of rates: a weight that cannot be written.
        log_steps = np.log((trials - counts[:-1]) / counts[1:] * (rate / (1 - rate)))
    sums = np.concatenate([[0.0], np.cumsum(log_steps)])
    mode = int(np.argmax(sums))
    below = -np.cumsum(log_steps[:mode][::-1])[::-1]
    above = np.cumsum(log_steps[mode:])
    relative = np.concatenate([below, [0.0], above])
    return relative - np.log(np.exp(relative).sum())


def binomial_components(trials: int, rate: float, drop: float) -> Components:
    """Components of Binomial(trials, rate) around the mode, leaving out about `drop` of the mass.

    The mass that is really left out is reported, *rounded up*, as `dropped`; callers charge it in the safe direction.
    """
    if trials == 0 or rate == 1.0:
        return Components(np.array([float(trials)]), np.zeros(1), 0.0, 0.0)
    mean = trials * rate
    if mean <= drop / 2:  # Hardly anybody is ever sampled; at the smallest of rates ratios of weights would overflow.
        return Components(np.zeros(1), np.array([trials * np.log1p(-rate)]), mean * (1 + 1e-9), 4 * UNIT)
    reach = 12 * np.sqrt(mean * (1 - rate)) + 45
    first, last = max(0, int(mean - reach)), min(trials, int(mean + reach))
    log_weights = log_binomial(trials, rate, first, last)
    weights = np.exp(log_weights)
    beyond = _geometric_tail(weights[-1], (trials - last) / (last + 1) * (rate / (1 - rate)))
    before = _geometric_tail(weights[0], first / (trials - first + 1) * ((1 - rate) / rate))
    below, above = before + np.cumsum(weights), beyond + np.cumsum(weights[::-1])[::-1]
    kept = np.flatnonzero((below > drop / 2) & (above > drop / 2))
    low, high = int(kept[0]), int(kept[-1])
    outside = (below[low - 1] if low else before) + (above[high + 1] if high < last - first else beyond)
    counts = np.arange(first + low, first + high + 1, dtype=np.float64)
    # Every log is a sum of at most so many terms, each good to a few units in the last place.
    weight_error = 4 * UNIT * (len(weights) + 16)
    return Components(counts, log_weights[low : high + 1], float(outside) * (1 + 1e-9), weight_error)


def _geometric_tail(weight: float, ratio: float) -> float:
    """A bound on what follows a weight when the ratio of neighbours is at most `ratio` and falls."""
    return float(weight * ratio / (1 - ratio))


@dataclass(frozen=True)
class MixturePair:
    """P and Q of the module docstring, each restricted to the components that matter."""

    noise: float
    upper: Components  # of P, centred at +counts
    lower: Components  # of Q, centred at -counts

    def log_ratio_lower(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Log Q/phi and its derivative at x."""
        value, slope = _log_tilt(-x, self.lower, self.noise)
        return value, -slope

    def loss(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The privacy loss log P/Q and its (non-negative) derivative at x."""
        upper, upper_slope = _log_tilt(x, self.upper, self.noise)
        lower, lower_slope = self.log_ratio_lower(x)
        return upper - lower, upper_slope - lower_slope


def _log_tilt(x: FloatArray, components: Components, noise: float) -> tuple[FloatArray, FloatArray]:
    """Log of sum_k w_k exp(k x / s^2 - k^2 / (2 s^2)), and its derivative in x."""
    k = components.counts / noise
    exponents = np.multiply.outer(x / noise, k)
    exponents += components.log_weights - 0.5 * k * k
    peak = exponents.max(axis=1, keepdims=True)
    np.exp(exponents - peak, out=exponents)
    total = exponents.sum(axis=1)
    return np.log(total) + peak[:, 0], (exponents @ k) / (total * noise)
