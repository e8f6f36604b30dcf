"""The auditor's second route: what `accounting` and `bounds` compute, by other means, sharing no code with them.

* Trade-off curves: not by a grid of privacy losses and FFTs, but from the characteristic function of the loss of one
  step (trapezoidal rule in x, which converges exponentially), its T-th power, and the inversion formula of Gil-Pelaez
  with Davies' midpoint rule, whose error is a tail probability that Chernoff's inequality makes negligible. One step,
  or no sampling, is solved directly; a few steps, where that fails, by a table of sums.
* Renyi divergences: with every component of the mixture, in log space, on another grid.
* Clopper-Pearson: by bisection on the binomial tail itself.

These numbers are accurate to better than 1e-9, not rounded to one side (where sums are tabulated they err upwards): the
engine's pessimism, of at least `TOLERANCE`, is what they are compared with.

References: Gil-Pelaez 1951; Davies 1973 (Biometrika 60).
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import fft, special, stats

from mithridate.errors import NumericalError

FloatArray = npt.NDArray[np.float64]
ComplexArray = npt.NDArray[np.complex128]

TOLERANCE = 1e-9
_NEGLIGIBLE = 1e-14
_BLOCK = 32
_MAX_FREQUENCIES = 1 << 13
# Outputs times components that are held at once.
_MAX_GRID = 1 << 26


class ExactTradeoff:
    """K of one split after all steps: `exact(x)` for an array of probabilities.

    Args:
        noise: noise multiplier.
        rate: sample rate.
        steps: number of steps.
        deleted: examples that D' has and D lacks.
        inserted: examples that D has and D' lacks.
    """

    def __init__(self, noise: float, rate: float, steps: int, deleted: int, inserted: int) -> None:
        self._solve: Callable[[FloatArray], FloatArray]
        if deleted == inserted == 0:
            self._solve = lambda x: x
        elif rate == 1.0:
            shift = (deleted + inserted) * np.sqrt(steps) / noise
            self._solve = lambda x: special.ndtr(special.ndtri(x) + shift)
        elif steps == 1:
            self._solve = _OneStep(noise, rate, deleted, inserted)
        else:
            self._solve = _many_steps(noise, rate, steps, deleted, inserted)

    def __call__(self, x: FloatArray) -> FloatArray:
        """The largest probability under D' of an event that has probability x under D."""
        inside = (x > 0) & (x < 1)
        result = np.where(x >= 1, 1.0, 0.0)
        if inside.any():
            result[inside] = self._solve(x[inside])
        return result


def _many_steps(
    noise: float, rate: float, steps: int, deleted: int, inserted: int
) -> Callable[[FloatArray], FloatArray]:
    """Inversion; for a few steps the characteristic function may decay too slowly for it, and sums are tabulated."""
    try:
        return _Inversion(noise, rate, steps, deleted, inserted)
    except NumericalError:
        return _Table(noise, rate, steps, deleted, inserted)


class _OneStep:
    """One step: thresholds on the output itself."""

    def __init__(self, noise: float, rate: float, deleted: int, inserted: int) -> None:
        self._noise = noise
        self._up, self._up_weights = _components(deleted, rate)
        self._down, self._down_weights = _components(inserted, rate)

    def __call__(self, x: FloatArray) -> FloatArray:
        low = np.full(len(x), -self._down[-1] - 40 * self._noise)
        high = np.full(len(x), self._up[-1] + 40 * self._noise)
        for _ in range(200):
            middle = (low + high) / 2
            above = special.ndtr(-(middle[:, None] + self._down) / self._noise) @ self._down_weights >= x
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        return special.ndtr(-(low[:, None] - self._up) / self._noise) @ self._up_weights


class _Inversion:
    """Many steps: tails of the sum of losses from its characteristic function."""

    def __init__(self, noise: float, rate: float, steps: int, deleted: int, inserted: int) -> None:
        self._steps = steps
        self._loss, self._log_p, self._log_q = _one_step(noise, rate, deleted, inserted, noise / 10)
        self._p, self._q = np.exp(self._log_p), np.exp(self._log_q)
        self._low, self._high = self._window()
        self._invert()

    def _window(self) -> tuple[float, float]:
        """Sums of losses outside of which neither P nor Q has more than `_NEGLIGIBLE` (Chernoff)."""
        deviation = np.sqrt(self._steps * _variance(self._q, self._loss))
        best = np.sqrt(-2 * np.log(_NEGLIGIBLE)) / deviation
        tilts = best * np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.3])
        high = [self._steps * _log_sum_exp(t * self._loss + self._log_p) - np.log(_NEGLIGIBLE) for t in tilts]
        low = [self._steps * _log_sum_exp(-t * self._loss + self._log_q) - np.log(_NEGLIGIBLE) for t in tilts]
        return -float(np.min(np.array(low) / tilts)), float(np.min(np.array(high) / tilts))

    def _invert(self) -> None:
        """Characteristic functions at the midpoints (k + 1/2) * spacing of Davies' rule, as far as they matter."""
        self._spacing = 2 * np.pi / (self._high - self._low)
        self._centre = (self._low + self._high) / 2
        # Centring the loss keeps the powers from spinning, and so from losing digits.
        phase = 1j * self._spacing * (self._loss - self._centre / self._steps)
        turns = np.exp(np.multiply.outer(np.arange(_BLOCK), phase))
        wave, jump = np.exp(0.5 * phase), np.exp(_BLOCK * phase)
        p_terms: list[ComplexArray] = []
        q_terms: list[ComplexArray] = []
        while len(p_terms) * _BLOCK < _MAX_FREQUENCIES:
            # Sums and not matrix products: these are small, and threads would cost more than they gain.
            p_terms.append(np.sum(turns * (self._p * wave), axis=1) ** self._steps)
            q_terms.append(np.sum(turns * (self._q * wave), axis=1) ** self._steps)
            wave = wave * jump
            if max(float(np.abs(p_terms[-1][-8:]).max()), float(np.abs(q_terms[-1][-8:]).max())) < _NEGLIGIBLE:
                break
        else:
            raise NumericalError("The characteristic function decays too slowly to be inverted.")
        midpoints = np.arange(len(p_terms) * _BLOCK) + 0.5
        self._p_terms = np.concatenate(p_terms) / (np.pi * midpoints)
        self._q_terms = np.concatenate(q_terms) / (np.pi * midpoints)
        self._density_terms = np.concatenate(q_terms) * (self._spacing / np.pi)

    def __call__(self, x: FloatArray) -> FloatArray:
        table = np.linspace(self._low, self._high, 256)
        tails = np.minimum.accumulate(self._tail(self._q_terms, table))
        cell = np.clip(np.searchsorted(-tails, -x), 1, len(table) - 1)
        low, high = table[cell - 1], table[cell]
        threshold = np.clip(np.interp(-x, -tails, table), low, high)
        # Newton's method inside a bracket: where the losses come in lumps, only the bracket keeps it from going astray.
        for _ in range(60):
            gap = self._tail(self._q_terms, threshold) - x
            if np.all(np.abs(gap) <= _NEGLIGIBLE):
                break
            low, high = np.where(gap >= 0, threshold, low), np.where(gap >= 0, high, threshold)
            density = np.maximum(self._series(self._density_terms, threshold).real, 1e-300)
            newton = threshold + gap / density
            inside = (newton > low) & (newton < high)
            threshold = np.where(inside, newton, (low + high) / 2)
        # Whatever is left of the error is charged: the tail of Q may be short of x by `missing`, so K by at most that
        # times the slope of K there, exp(threshold).
        missing = np.maximum(x - self._tail(self._q_terms, threshold), 0.0)
        return np.minimum(self._tail(self._p_terms, threshold) + missing * np.exp(np.minimum(threshold, 700.0)), 1.0)

    def _tail(self, terms: ComplexArray, threshold: FloatArray) -> FloatArray:
        """Probability above the threshold: 1/2 + 1/pi sum_k Im(phi(t_k) exp(-i t_k s)) / (k + 1/2)."""
        return 0.5 + self._series(terms, threshold).imag

    def _series(self, terms: ComplexArray, threshold: FloatArray) -> ComplexArray:
        """sum_k terms_k exp(-i t_k s), by Horner's rule."""
        phase = -1j * self._spacing * (threshold - self._centre)
        total = np.zeros(len(threshold), dtype=np.complex128)
        turn = np.exp(phase)
        for term in terms[::-1]:
            total = total * turn + term
        return np.exp(0.5 * phase) * total


class _Table:
    """A few steps: the distribution of the sum of losses on a very fine grid, by one linear convolution.

    Each mass is shared by the two nearest cells in such a way that the totals of P and of Q are both kept. That spreads
    the loss a little, so where the grid is too wide this errs upwards, and an auditor doubts rather than believes.
    Losses beyond 60 either way count as infinite: a factor of exp(60) is as good as certainty.
    """

    def __init__(self, noise: float, rate: float, steps: int, deleted: int, inserted: int) -> None:
        cells = (1 << 22) // steps
        if cells < 1 << 12:
            raise NumericalError("The characteristic function decays too slowly to be inverted.")
        loss, log_p, log_q = _one_step(noise, rate, deleted, inserted, noise / (1 << 14))
        self._certain = -np.expm1(steps * np.log1p(-min(float(np.exp(log_p[loss > 60]).sum()), 0.5)))
        finite = np.abs(loss) <= 60
        loss, log_p, log_q = loss[finite], log_p[finite], log_q[finite]
        width = float(loss[-1] - loss[0]) / (cells - 2)
        left = np.floor((loss - loss[0]) / width).astype(np.intp)
        above = loss - (loss[0] + left * width)  # How far the loss lies above its left cell.
        stays = np.clip(1 - np.expm1(-above) / np.expm1(-width), 0.0, 1.0)
        self._p = _sums(left, np.exp(log_p), stays, cells, steps)
        self._q = _sums(left, np.exp(log_q), np.clip(stays * np.exp(above), 0.0, 1.0), cells, steps)

    def __call__(self, x: FloatArray) -> FloatArray:
        q_tail, p_tail = np.maximum.accumulate(np.cumsum(self._q[::-1])), np.cumsum(self._p[::-1])
        return np.minimum(np.interp(x, q_tail, p_tail, right=1.0) + self._certain, 1.0)


def _sums(left: npt.NDArray[np.intp], masses: FloatArray, share: FloatArray, cells: int, steps: int) -> FloatArray:
    """Distribution of the sum of `steps` losses; a `share` of each mass lies in cell `left`, the rest in the next."""
    grid = np.bincount(left, masses * share, cells) + np.bincount(left + 1, masses * (1 - share), cells)
    size = fft.next_fast_len(steps * cells, real=True)
    return fft.irfft(fft.rfft(grid, size) ** steps, size)


class ExactMoments:
    """Moments of one step with every component of both mixtures, in log space, on one grid of outputs."""

    def __init__(self, noise: float, rate: float) -> None:
        self._noise, self._rate = noise, rate
        self._width = min(noise / 10, noise * noise / 10)
        self._x: FloatArray = np.empty(0)
        self._rows: dict[tuple[int, int], FloatArray] = {}

    def log_moment(self, deleted: int, inserted: int, order: float) -> float:
        """Log of the integral of P^order Q^(1 - order); infinite where the grid would be too large."""
        reach = order * deleted + (order - 1) * inserted * self._rate + 11 * self._noise
        points = int((reach + 11 * self._noise) / self._width) + 2
        if points > 1 << 20:
            return np.inf
        if points > len(self._x):
            self._x = -11 * self._noise + self._width * np.arange(2 * points, dtype=np.float64)
            self._rows.clear()
        log_p, log_q = self._row(deleted, 1)[:points], self._row(inserted, -1)[:points]
        log_phi = stats.norm.logpdf(self._x[:points], scale=self._noise)
        terms = order * log_p + (1 - order) * log_q + log_phi
        largest = float(terms.max())
        return largest + float(np.log(np.sum(np.exp(terms - largest)) * self._width))

    def _row(self, changes: int, side: int) -> FloatArray:
        """Log of P / phi (side 1) or Q / phi (side -1) on the grid."""
        if (changes, side) not in self._rows:
            counts = np.arange(changes + 1)
            log_weights = stats.binom.logpmf(counts, changes, self._rate)
            total = np.full(len(self._x), -np.inf)
            for count, log_weight in zip(
                counts[log_weights > -np.inf], log_weights[log_weights > -np.inf], strict=True
            ):
                shifted = (side * count * self._x - 0.5 * count * count) / self._noise**2
                np.logaddexp(total, log_weight + shifted, out=total)
            self._rows[changes, side] = total
        return self._rows[changes, side]


def binomial_lower(count: npt.NDArray[np.int64], total: int, tail: float) -> FloatArray:
    """Clopper-Pearson lower bound: the largest p at which `count` or more successes have probability at most `tail`."""
    low, high = np.zeros(len(count)), np.ones(len(count))
    for _ in range(100):
        middle = (low + high) / 2
        # sf(count - 1) is the probability of `count` or more; with no success it is one, and the bound stays zero.
        fits = stats.binom.sf(count - 1, total, middle) <= tail
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return low


def binomial_upper(count: npt.NDArray[np.int64], total: int, tail: float) -> FloatArray:
    """Clopper-Pearson upper bound: the smallest p at which at most `count` successes have probability `tail`."""
    low, high = np.zeros(len(count)), np.ones(len(count))
    for _ in range(100):
        middle = (low + high) / 2
        fits = stats.binom.cdf(count, total, middle) <= tail
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    return high


def _one_step(
    noise: float, rate: float, deleted: int, inserted: int, width: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The loss, and the logs of P's and Q's probabilities, on a grid of outputs."""
    up, up_weights = _components(deleted, rate)
    down, down_weights = _components(inserted, rate)
    if (float(up[-1] + down[-1]) + 19 * noise) / width * max(len(up), len(down)) > _MAX_GRID:
        raise NumericalError(f"The exact curve for {deleted} and {inserted} changes is too large to compute.")
    x = np.arange(-down[-1] - 9.5 * noise, up[-1] + 9.5 * noise + width, width)
    log_p, log_q = _log_mixture(x / noise, up / noise, up_weights), _log_mixture(-x / noise, down / noise, down_weights)
    log_phi = -0.5 * (x / noise) ** 2 + np.log(width / (noise * np.sqrt(2 * np.pi)))
    return log_p - log_q, log_p + log_phi, log_q + log_phi


def _log_mixture(x: FloatArray, centres: FloatArray, weights: FloatArray) -> FloatArray:
    """Log of sum_k weights_k exp(centres_k x - centres_k^2 / 2)."""
    exponents = np.multiply.outer(centres, x) + (np.log(weights) - 0.5 * centres**2)[:, None]
    largest = exponents.max(axis=0)
    return largest + np.log(np.exp(exponents - largest).sum(axis=0))


def _log_sum_exp(exponents: FloatArray) -> float:
    largest = float(exponents.max())
    return largest + float(np.log(np.exp(exponents - largest).sum()))


@lru_cache(maxsize=4096)
def _components(changes: int, rate: float) -> tuple[FloatArray, FloatArray]:
    """Numbers of sampled examples that have a probability above 1e-18, and their probabilities."""
    if rate == 1.0 or changes == 0:
        return np.array([float(changes)]), np.ones(1)
    counts = np.arange(changes + 1)
    weights = stats.binom.pmf(counts, changes, rate)
    kept = weights > 1e-18
    return counts[kept].astype(np.float64), weights[kept]


def _variance(weights: FloatArray, values: FloatArray) -> float:
    mean = float(weights @ values)
    return float(weights @ (values - mean) ** 2)
