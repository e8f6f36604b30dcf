"""Slow and obvious twins of the accounting core, written without it: nothing here imports mithridate.

Everywhere `noise` is sigma, `rate` is q, and one step is the pair of theory.md, section 3:

    P (from D') = sum_k Binom(k; deleted, q) N(+k, sigma^2)      Q (from D) = sum_j Binom(j; inserted, q) N(-j, sigma^2)

with *all* components, the weights from scipy's or mpmath's binomial coefficients.
"""

from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import numpy.typing as npt
from scipy import optimize, special, stats

FloatArray = npt.NDArray[np.float64]
ComplexArray = npt.NDArray[np.complex128]


def weights(changes: int, rate: float) -> FloatArray:
    """Probabilities that 0, 1, ..., `changes` of the changed examples are sampled."""
    return np.asarray(stats.binom.pmf(np.arange(changes + 1), changes, rate))


# --- (d) no sampling: Gaussians ---------------------------------------------------------------------------------------


def gaussian_curve(noise: float, steps: int, changes: int, x: npt.ArrayLike) -> FloatArray:
    """K for q = 1: two Gaussians, `changes` apart in each of `steps` steps."""
    return special.ndtr(special.ndtri(np.asarray(x, dtype=np.float64)) + changes * np.sqrt(steps) / noise)


# --- (a) one step: the threshold test ---------------------------------------------------------------------------------


def winner_tail(failure_prob: float, classes: int) -> float:
    """What one bound of kind `winner` may spend where all labels weigh the same (docs/theory.md, section 8)."""
    return 0.75 * failure_prob if classes == 2 else failure_prob * min(0.9, 1 - 1 / classes) / 2


def tail_upper(noise: float, rate: float, deleted: int, threshold: float) -> float:
    """P(x > threshold) after one step."""
    k = np.arange(deleted + 1)
    return float(weights(deleted, rate) @ special.ndtr((k - threshold) / noise))


def tail_lower(noise: float, rate: float, inserted: int, threshold: float) -> float:
    """Q(x > threshold) after one step."""
    j = np.arange(inserted + 1)
    return float(weights(inserted, rate) @ special.ndtr((-j - threshold) / noise))


def one_step_curve(noise: float, rate: float, deleted: int, inserted: int, x: float) -> float:
    """K(x) of one step: the loss increases in x, so the best test of level x is a threshold; find it."""
    return tail_upper(noise, rate, deleted, _threshold(noise, rate, inserted, x))


def _threshold(noise: float, rate: float, inserted: int, x: float) -> float:
    """Where Q(x > threshold) = x."""
    reach = 40 * noise
    return optimize.brentq(
        lambda t: tail_lower(noise, rate, inserted, t) - x, -inserted - reach, reach, xtol=1e-15 * reach, rtol=1e-15
    )


def one_step_curve_mp(noise: str, rate: str, deleted: int, inserted: int, x: str, digits: int = 30) -> float:
    """`one_step_curve` in many digits; numbers as decimal strings, so that they are what they say."""
    with mp.workdps(digits):
        s, q, level = mp.mpf(noise), mp.mpf(rate), mp.mpf(x)
        w, v = _mp_weights(deleted, q), _mp_weights(inserted, q)
        start = _threshold(float(s), float(q), inserted, float(level))
        threshold = mp.findroot(
            lambda t: mp.fsum(v[j] * mp.ncdf((-j - t) / s) for j in range(inserted + 1)) - level, (start, start + 1e-9)
        )
        return float(mp.fsum(w[k] * mp.ncdf((k - threshold) / s) for k in range(deleted + 1)))


# --- (b) many steps: characteristic functions -------------------------------------------------------------------------


class ComposedLoss:
    """The privacy loss of `steps` steps, from its characteristic function.

    `E exp(i t loss)` of one step is an integral over x, taken by the trapezoidal rule with `points` points on all of
    the real line that matters; its `steps`-th power at the multiples of 2 pi / period is the Fourier series of the
    density of the sum, which is integrated term by term. Valid to about 1e-9 where the series converges (checked).
    """

    def __init__(
        self,
        noise: float,
        rate: float,
        steps: int,
        deleted: int,
        inserted: int,
        *,
        points: int = 6001,
        reach: float = 10.0,
    ) -> None:
        x = np.linspace(-inserted - reach * noise, deleted + reach * noise, points)
        if rate < 1:  # Components that nobody can meet need no room.
            most = max(float(stats.binom.isf(1e-16, n, rate)) if n else 0.0 for n in (deleted, inserted))
            x = np.linspace(-min(inserted, most) - reach * noise, min(deleted, most) + reach * noise, points)
        log_p = _log_mixture(x, noise, deleted, rate)
        log_q = _log_mixture(-x, noise, inserted, rate)
        loss = log_p - log_q
        self._p, self._q = np.exp(log_p) * (x[1] - x[0]), np.exp(log_q) * (x[1] - x[0])
        assert abs(self._p.sum() - 1) < 1e-12
        assert abs(self._q.sum() - 1) < 1e-12
        means = [float(m @ loss) for m in (self._q, self._p)]
        deviations = [np.sqrt(float(m @ (loss - c) ** 2)) for m, c in zip((self._q, self._p), means, strict=True)]
        spread = 14 * np.sqrt(steps) * max(deviations) + 30 * max(deviations)
        self._low, self._high = steps * min(means) - spread, steps * max(means) + spread
        self._centre = steps * means[0]
        frequencies = 2 * np.pi / (self._high - self._low)
        blocks: list[FloatArray] = []
        series: tuple[list[ComplexArray], list[ComplexArray]] = ([], [])
        n = 1
        while True:  # In blocks, until both series have converged.
            t = frequencies * np.arange(n, n + 64)
            waves = np.exp(1j * np.multiply.outer(t, loss))
            block = [self._power(waves @ masses, steps) for masses in (self._p, self._q)]
            blocks.append(t)
            for kept, new in zip(series, block, strict=True):
                kept.append(new)
            n += 64
            if max(float(np.abs(new[-8:]).max()) for new in block) < 1e-13:
                break
            assert n < 30000, "the characteristic function does not decay; use fewer, or one, steps"
        self._t = np.concatenate(blocks)
        self._phi_p, self._phi_q = (np.concatenate(kept) for kept in series)

    @staticmethod
    def _power(values: ComplexArray, steps: int) -> ComplexArray:
        return np.exp(steps * np.log(np.where(np.abs(values) < 1e-300, 1e-300, values)))

    def _tail(self, phi: ComplexArray, threshold: float) -> float:
        """Probability above the threshold: the Fourier series integrated from there to the end of the period."""
        period = self._high - self._low
        pieces = phi * (np.exp(-1j * self._t * self._high) - np.exp(-1j * self._t * threshold)) / (-1j * self._t)
        return ((self._high - threshold) + 2 * float(pieces.real.sum())) / period

    def tail_p(self, threshold: float) -> float:
        """P^T(loss > threshold)."""
        return self._tail(self._phi_p, threshold)

    def tail_q(self, threshold: float) -> float:
        """Q^T(loss > threshold)."""
        return self._tail(self._phi_q, threshold)

    def curve(self, x: float) -> float:
        """K(x)."""
        edge = 0.02 * (self._high - self._low)
        threshold = optimize.brentq(lambda s: self.tail_q(s) - x, self._low + edge, self._high - edge, xtol=1e-13)
        return self.tail_p(float(threshold))

    def hockey_stick(self, eps: float) -> float:
        """H(eps) = max_S P^T(S) - exp(eps) Q^T(S)."""
        return self.tail_p(eps) - np.exp(eps) * self.tail_q(eps)


def _log_mixture(x: FloatArray, noise: float, changes: int, rate: float) -> FloatArray:
    """Log density of sum_k Binom(k; changes, rate) N(k, noise^2)."""
    k = np.arange(changes + 1)
    log_w = np.asarray(stats.binom.logpmf(k, changes, rate))
    k, log_w = k[log_w > -800], log_w[log_w > -800]
    exponents = log_w - 0.5 * ((x[:, None] - k) / noise) ** 2
    return special.logsumexp(exponents, axis=1) - np.log(noise * np.sqrt(2 * np.pi))


# --- (c) Renyi divergence in many digits ------------------------------------------------------------------------------


def renyi_log_moment(
    noise: float, rate: float, deleted: int, inserted: int, order: float, *, digits: int = 30, width: int = 12
) -> Any:
    """Log of the integral of P^order Q^(1 - order), all components, trapezoidal rule in `digits` digits.

    The integrand is analytic in a strip of half-width pi sigma^2, so a step of a tenth of sigma^2 (or an eighth of
    sigma) leaves less than 1e-80; `width` sigmas beyond the outermost possible maximum leave less than 1e-31.
    """
    with mp.workdps(digits):
        s, q, o = mp.mpf(noise), mp.mpf(rate), mp.mpf(order)
        w, v = _mp_weights(deleted, q), _mp_weights(inserted, q)
        low, high = -width * s, o * deleted + (o - 1) * inserted + width * s
        step = min(s / 8, s * s / 10)

        def polynomial(coefficients: list[Any], z: Any) -> Any:
            total = mp.mpf(0)
            for c in reversed(coefficients):
                total = total * z + c
            return total

        # P / phi is a polynomial in z = exp(x / s^2), Q / phi the same in 1 / z.
        up = [c * mp.exp(-mp.mpf(k * k) / (2 * s * s)) for k, c in enumerate(w)]
        down = [c * mp.exp(-mp.mpf(k * k) / (2 * s * s)) for k, c in enumerate(v)]
        total = mp.mpf(0)
        for i in range(int((high - low) / step) + 2):
            x = low + i * step
            z = mp.exp(x / (s * s))
            p, lower = polynomial(up, z), polynomial(down, 1 / z)
            total += mp.exp(o * mp.log(p) + (1 - o) * mp.log(lower) - x * x / (2 * s * s))
        return mp.log(total * step / (s * mp.sqrt(2 * mp.pi)))


def _mp_weights(changes: int, rate: Any) -> list[Any]:
    return [mp.binomial(changes, k) * rate**k * (1 - rate) ** (changes - k) for k in range(changes + 1)]


# --- curves from hockey sticks ----------------------------------------------------------------------------------------


def hockey_stick_of_curve(curve: Callable[[FloatArray], FloatArray], eps: float) -> float:
    """H(eps) = max_x K(x) - exp(eps) x, on a fine grid of x (dense at both ends)."""
    odds = np.exp(np.linspace(-22, 22, 40001))
    x = odds / (1 + odds)
    return float(np.max(curve(x) - np.exp(eps) * x))


# --- (e) any test is a lower bound ------------------------------------------------------------------------------------


class LatticeTest:
    """Lower bounds on K from one family of tests: thresholds on a sum of whole numbers, one for each step.

    The outputs of a step are cut into cells, and each cell is given a whole number: the loss there, rounded, of one
    pair (any numbers and any cuts make a valid test, so nothing here needs to be accurate but the masses). What P and Q
    have in each cell are differences of normal tails, good to 1e-12 of themselves or below 1e-300; sums are convolved
    directly, positive numbers only, so that every probability has a relative error below `_SLACK`, which is charged.
    A test that tosses a coin lies on the line between its neighbours.

    With `keep` below one, every changed example is kept with that probability for all steps: P and Q are the mixtures
    of what they are for each number of kept ones.
    """

    _SLACK = 1e-10

    def __init__(
        self, noise: float, rate: float, steps: int, deleted: int, inserted: int, *, keep: float = 1.0, cells: int = 400
    ) -> None:
        cuts, numbers = self._cut(noise, rate, max(deleted, 0), inserted, cells)
        self.p = self._mixture(noise, rate, steps, deleted, keep, 1, cuts, numbers)
        self.q = self._mixture(noise, rate, steps, inserted, keep, -1, cuts, numbers)

    @staticmethod
    def _cut(noise: float, rate: float, deleted: int, inserted: int, cells: int) -> tuple[FloatArray, Any]:
        """Where the loss of one step crosses the multiples of a width, more or less; cells are numbered from 0."""
        x = np.linspace(-inserted - 8 * noise, deleted + 8 * noise, 40 * cells)
        loss = np.clip(_log_mixture(x, noise, deleted, rate) - _log_mixture(-x, noise, inserted, rate), -40, 40)
        loss = np.maximum.accumulate(loss)
        numbers = np.floor((loss - loss[0]) / max(loss[-1] - loss[0], 1e-300) * (cells - 1)).astype(int)
        first = np.flatnonzero(np.diff(numbers)) + 1
        return x[first], np.append(0, numbers[first])

    def _mixture(
        self,
        noise: float,
        rate: float,
        steps: int,
        changes: int,
        keep: float,
        side: int,
        cuts: FloatArray,
        numbers: Any,
    ) -> FloatArray:
        """Probabilities of the sums."""
        kept = weights(changes, keep)
        total = np.zeros(int(numbers[-1]) * steps + 1)
        for count in range(changes + 1):
            centres = side * np.arange(count + 1)
            z = (cuts[:, None] - centres) / noise
            edges = np.concatenate([np.full((1, count + 1), -np.inf), z, np.full((1, count + 1), np.inf)])
            # On the side of the smaller tail, so that differences keep their digits.
            upper = edges[:-1] > 0
            masses = np.where(
                upper,
                special.ndtr(-edges[:-1]) - special.ndtr(-edges[1:]),
                special.ndtr(edges[1:]) - special.ndtr(edges[:-1]),
            )
            one = np.bincount(numbers, np.maximum(masses, 0) @ weights(count, rate), int(numbers[-1]) + 1)
            total += kept[count] * _convolved(np.asarray(one, dtype=np.float64), steps)
        return total

    def lower(self, x: npt.ArrayLike) -> FloatArray:
        """A lower bound on K(x)."""
        q = np.append(0.0, np.cumsum(self.q[::-1])) * (1 + self._SLACK)
        p = np.append(0.0, np.cumsum(self.p[::-1])) * (1 - self._SLACK)
        return np.interp(np.asarray(x, dtype=np.float64), q, p)


def _convolved(masses: FloatArray, times: int) -> FloatArray:
    if times == 1:
        return masses
    half = _convolved(masses, times // 2)
    both = np.convolve(half, half)
    return np.convolve(both, masses) if times % 2 else both
