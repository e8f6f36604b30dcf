"""What private training shows of its data: what `accounting` computes, by other means, sharing no code with it.

* Trade-off curves: not by a circle of privacy losses, but from the characteristic function of the loss of one step
  under P (trapezoidal rule in x, which converges exponentially) and its T-th power. One step, or no sampling, is solved
  directly; a few steps, whose characteristic function hardly decays, by a table of sums.
* Renyi divergences: with every component of the mixture, in log space, on another grid.

An auditor errs towards doubt. With L the loss of all steps, every real s gives a line above the curve,

    K(x) <= H(s) + exp(s) x,    H(s) = E_P (1 - exp(s - L))_+,

and H is the mean *under P* of a function between 0 and 1: whatever is wrong with the law of L by some probability, H is
wrong by no more than that, however steep the line is, so errors are bounded and added to K. (From a tail of Q the same
error would come out multiplied by exp(s), which is beyond 1e12 where x is 1e-12.) What is left out of P counts as seen
for certain, what is left out of Q as absent.

References: Gil-Pelaez 1951; Davies 1973 (Biometrika 60), whose midpoint rule is used here for H instead of tails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Self, cast

import numpy as np
import numpy.typing as npt
from scipy import fft, special, stats

from mithridate.errors import NumericalError

FloatArray = npt.NDArray[np.float64]
ComplexArray = npt.NDArray[np.complex128]
IntArray = npt.NDArray[np.intp]

_fft = cast(Callable[[ComplexArray], ComplexArray], fft.fft)
_rfft = cast(Callable[[FloatArray, int], ComplexArray], fft.rfft)
_irfft = cast(Callable[[ComplexArray, int], FloatArray], fft.irfft)
_next_fast_len = cast(Callable[..., int], fft.next_fast_len)

TOLERANCE = 1e-9
_UNIT = float(np.finfo(np.float64).eps) / 2
# Probability that may lie outside the window of an inversion, at each end; charged.
_OUTSIDE = 1e-15
# Below this the characteristic function of all steps counts as gone; charged.
_GONE = 1e-14
_BLOCK = 32
_MAX_FREQUENCIES = 1 << 13
# How much further than that it is looked at, in case that it comes back, and at how many places.
_BEYOND, _LOOKS = 4, 64
# How wrong the trapezoidal rule may be for all steps, and where it is asked.
_QUADRATURE, _PROBES = 1e-12, 8
_REACH = 9.5
# Outputs times components that an inversion and a table are worth.
_MAX_INVERTED, _MAX_TABULATED = 1 << 19, 1 << 24
# Cells of a table for each standard deviation of the noise, at least.
_COARSEST = 1 << 10
# Outputs times components that a moment is worth: seconds.
_MAX_MOMENTS = 1 << 28
# Where outputs around different numbers of sampled examples do not meet; where one cannot tell outputs apart.
_SEPARATE, _LEAST_NOISE = 0.025, 1e-7
# Losses of one step beyond which an output counts as certainly from P, or as no better than this.
_CERTAIN = 60.0
# Lines are taken at losses between these: below the first K is one to 13 digits, beyond the last they are too steep.
_LOWEST, _MAX_EXPONENT = -30.0, 650.0
_TABLE, _STRIDE = 1 << 12, 1 << 4
# Standard deviations beyond which two normal laws are told apart for certain.
_FARTHEST_SHIFT = 40.0
# How far above its minimum over all s a bound may stay.
_AT_MINIMUM = 1e-12


class PrivateTraining(NamedTuple):
    """The constants of DP-SGD, as a file states them; `keep` is None where an instance keeps every example."""

    noise: float
    rate: float
    steps: int
    keep: float | None

    @classmethod
    def of(cls, constants: Mapping[str, Any]) -> Self:
        """From the constants of a mechanism."""
        noise, rate, steps = constants["noise_multiplier"], constants["sample_rate"], constants["steps"]
        return cls(noise, rate, steps, constants.get("keep"))


class ExactTradeoff:
    """K of one split after all steps: `exact(x)` for an array of probabilities.

    Guarantee: never below the true K by more than a tenth of `TOLERANCE`, nor in general above it by more; where the
    curve can be bounded only loosely, it lies above the true one.

    Args:
        noise: noise multiplier.
        rate: sample rate.
        steps: number of steps.
        deleted: examples that D' has and D lacks.
        inserted: examples that D has and D' lacks.
        shift: how far the input may move, too, in standard deviations of the noise on it.

    Raises:
        NumericalError: the curve would be too large to compute.
    """

    def __init__(self, noise: float, rate: float, steps: int, deleted: int, inserted: int, shift: float = 0.0) -> None:
        self._solve: Callable[[FloatArray], FloatArray]
        up, down = _components(deleted, rate), _components(inserted, rate)
        if deleted == inserted == 0:
            self._solve = _Gaussian(shift)
        elif rate == 1.0:
            self._solve = _Gaussian(math.hypot((deleted + inserted) * math.sqrt(steps) / noise, shift))
        elif up.counts[-1] == down.counts[-1] == 0:  # changed examples are hardly ever sampled
            self._solve = _Gaussian(shift, certain=-math.expm1(steps * math.log1p(-up.dropped)))
        elif shift:
            self._solve = _with_moved_input(noise, rate, steps, deleted, inserted, shift)
        elif steps == 1:
            self._solve = _OneStep(noise, rate, deleted, inserted)
        else:
            self._solve = _many_steps(noise, rate, steps, deleted, inserted)

    def __call__(self, x: FloatArray) -> FloatArray:
        """The largest probability under D' of an event that has probability x under D."""
        inside = (x > 0) & (x < 1)
        result = np.where(x >= 1, 1.0, 0.0)
        if inside.any():
            result[inside] = np.clip(self._solve(x[inside]), x[inside], 1.0)
        return result

    def lines(self, x: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        """Intercepts and slopes of lines that lie above the whole curve, each of them close to it at one x.

        None where the curve is not known by such lines.
        """
        return self._solve.lines(x) if isinstance(self._solve, _Inversion | _Gaussian) else None


def _many_steps(
    noise: float, rate: float, steps: int, deleted: int, inserted: int
) -> Callable[[FloatArray], FloatArray]:
    """Inversion; for a few steps the characteristic function may decay too slowly for it, and sums are tabulated."""
    for route in (_Inversion, _SumTable):
        try:
            return route(noise, rate, steps, deleted, inserted)
        except _TooSlowError:
            continue
    return _Inversion(noise, rate, steps, deleted, inserted, blurred=True)


def _with_moved_input(noise: float, rate: float, steps: int, deleted: int, inserted: int, shift: float) -> _Inversion:
    """What a move of the input adds to the loss is Gaussian, and so a factor of the characteristic function."""
    try:
        return _Inversion(noise, rate, steps, deleted, inserted, shift)
    except _TooSlowError:
        return _Inversion(noise, rate, steps, deleted, inserted, shift, blurred=True)


class _Gaussian:
    """N(shift, 1) against N(0, 1), and with some probability all is seen."""

    def __init__(self, shift: float, *, certain: float = 0.0) -> None:
        self._shift, self._certain = shift, certain

    def __call__(self, x: FloatArray) -> FloatArray:
        moved = special.ndtr(special.ndtri(x) + self._shift) if self._shift else x
        return moved + self._certain

    def lines(self, x: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        """Tangents, but for shifts beyond which all is lost and slopes overflow."""
        if self._shift > _FARTHEST_SHIFT:
            return None
        at = special.ndtri(x)
        slopes = np.exp(-self._shift * at - self._shift**2 / 2)
        return self(x) - slopes * x + (1e-15 if self._shift else 0.0), slopes


class _TooSlowError(NumericalError):
    """A route that does not suit the curve."""


class _OneStep:
    """One step: thresholds on the output itself."""

    def __init__(self, noise: float, rate: float, deleted: int, inserted: int) -> None:
        self._noise = noise
        self._up, self._down = _components(deleted, rate), _components(inserted, rate)

    def __call__(self, x: FloatArray) -> FloatArray:
        low = np.full(len(x), -self._down.counts[-1] - 40 * self._noise)
        high = np.full(len(x), self._up.counts[-1] + 40 * self._noise)
        for _ in range(200):
            middle = (low + high) / 2
            above = special.ndtr(-(middle[:, None] + self._down.counts) / self._noise) @ self._down.weights >= x
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        # Q has at least x above `low`, so the best test of size x lies within.
        return special.ndtr(-(low[:, None] - self._up.counts) / self._noise) @ self._up.weights + self._up.dropped


def _reach_of(deviation: float) -> float:
    """How far from 0 the loss of two normal draws goes whose means differ by so many standard deviations."""
    return math.sqrt(-2 * math.log(_OUTSIDE)) * deviation + deviation * deviation


class _Inversion:
    """Many steps: H from the characteristic function of the loss under P.

    The function of u = L - s whose mean is H is continued outside a window of length W that holds P and Q, with its
    sign changed: a step by halves, and exp(-u) by -exp(-u - W). Its Fourier series then has the frequencies
    w_k = (2k + 1) pi / W and the coefficients 1 / (W i w (1 + i w)), and what the second continuation adds is
    exp(-W) times what Q has below s.

    An input that moves by `shift` standard deviations of its noise adds a normal draw to the loss, with that standard
    deviation. With `blurred`, let the attacker also see one more output with Gaussian noise, so much noise that the
    characteristic function is gone at the last frequency: K can only become larger.
    """

    def __init__(
        self,
        noise: float,
        rate: float,
        steps: int,
        deleted: int,
        inserted: int,
        shift: float = 0.0,
        *,
        blurred: bool = False,
    ) -> None:
        self._steps, self._blur = steps, shift
        self._pair = (noise, rate, deleted, inserted)
        self._width = min(noise / 10, noise * noise / 4)
        while True:
            self._one = _one_step(*self._pair, self._width)
            self._low, self._high = self._window()
            if blurred:
                self._blur = max(self._enough_blur(), shift)
            self._make_room()
            self._invert()
            wrong = self._steps * self._quadrature_error()
            if wrong <= _QUADRATURE or self._width < 1e-3 * min(noise, noise * noise):
                break
            self._width /= 2
        # Rounding: of a sum of products that add up to one, and of the loss; each as often as there are steps.
        rounding = steps * (32 * _UNIT + self._one.error) + 128 * _UNIT
        self._error = 4 * (wrong + rounding + _GONE) + 4 * _OUTSIDE + steps * self._one.dropped

    def _window(self) -> tuple[float, float]:
        """Sums of losses outside of which neither P nor Q has more than `_OUTSIDE` (Chernoff)."""
        one = self._one
        deviation = np.sqrt(self._steps * max(_variance(one.q, one.loss), _variance(one.p, one.loss)))
        # A loss that is constant to rounding: any window that is not empty will do.
        best = np.sqrt(-2 * np.log(_OUTSIDE)) / max(deviation, 1e-9)
        tilts = best * np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.3])
        needed, tilted = -np.log(_OUTSIDE), np.multiply.outer(tilts, one.loss)
        high = self._steps * _log_sums_exp(tilted + one.log_p) + needed
        low = self._steps * _log_sums_exp(one.log_q - tilted) + needed
        return -float(np.min(low / tilts)), float(np.min(high / tilts))

    def _enough_blur(self) -> float:
        """A standard deviation of a loss that ends the characteristic function in time."""
        blur, width = 0.0, self._high - self._low
        for _ in range(3):  # The room that it needs makes the frequencies smaller.
            wide = width + 2 * _reach_of(blur)
            blur = math.sqrt(-2 * math.log(_GONE)) * wide / (2 * math.pi * (_MAX_FREQUENCIES - _BLOCK))
        return blur

    def _make_room(self) -> None:
        """In the window, for what is normal in the loss."""
        reach = _reach_of(self._blur)
        self._low, self._high = self._low - reach, self._high + reach

    def _invert(self) -> None:
        """Characteristic functions at the frequencies (k + 1/2) * spacing, as far as they matter."""
        self._spacing = 2 * np.pi / (self._high - self._low)
        self._centre = (self._low + self._high) / 2
        # Centring the loss keeps the powers from spinning, and so from losing digits.
        phase = 1j * self._spacing * (self._one.loss - self._centre / self._steps)
        turns = _turns(phase, _BLOCK)
        wave, jump = np.exp(0.5 * phase), np.exp(_BLOCK * phase)
        terms: list[ComplexArray] = []
        while len(terms) * _BLOCK < _MAX_FREQUENCIES:
            # Sums and not matrix products: these are small, and threads would cost more than they gain.
            powers = np.sum(turns * (self._one.p * wave), axis=1) ** self._steps
            if self._blur:
                at = self._spacing * (np.arange(_BLOCK) + len(terms) * _BLOCK + 0.5)
                powers = powers * np.exp(0.5 * self._blur**2 * (1j * at - at**2))
            terms.append(powers)
            wave = wave * jump
            if float(np.abs(powers[-8:]).max()) < _GONE:
                break
        else:
            raise _TooSlowError("The characteristic function decays too slowly to be inverted.")
        self._phi = np.concatenate(terms)
        frequencies = self._spacing * (np.arange(len(self._phi)) + 0.5)
        if not self._blur:
            self._look_beyond(float(frequencies[-1]))
        self._excess = self._phi * (self._spacing / np.pi / (1j * frequencies * (1 + 1j * frequencies)))
        self._q_terms = self._phi * (self._spacing / np.pi / (1 + 1j * frequencies))
        self._density = self._phi * (self._spacing / np.pi)

    def _look_beyond(self, last: float) -> None:
        """Losses that come in lumps have a characteristic function that comes back."""
        one = self._one
        # So fine a grid that the loss turns by less than half a circle between outputs that matter.
        turn = _BEYOND * last * float(np.max(np.diff(one.loss), initial=0.0, where=one.p[1:] > TOLERANCE))
        if turn > np.pi:
            one = _one_step(*self._pair, self._width / min(turn / np.pi, _MAX_INVERTED / (8 * len(one.loss))))
        wave = one.p * np.exp(1j * last * one.loss)
        spacing = (_BEYOND - 1) * last / (_LOOKS - 1)
        waves = wave * _turns(1j * (spacing * one.loss), _LOOKS)
        if float(np.abs(np.sum(waves, axis=1)).max()) ** self._steps > 100 * _GONE:
            raise _TooSlowError("The characteristic function decays too slowly to be inverted.")

    def _quadrature_error(self) -> float:
        """How much the characteristic function of one step changes on outputs half-way between.

        The error of a trapezoidal rule then changes its sign, so it is half as large as this.
        """
        other = _one_step(*self._pair, self._width, offset=0.5)
        places = np.unique(np.geomspace(1, len(self._phi), _PROBES).astype(np.intp)) - 1
        at = 1j * self._spacing * (places + 0.5)[:, None]
        here, there = (np.sum(step.p * np.exp(at * step.loss), axis=1) for step in (self._one, other))
        # Where the power is small, so is what the error does to it.
        weight = np.minimum(1.0, 100 * np.abs(self._phi[places]) ** (1 - 1 / self._steps) + _GONE)
        return float(np.max(np.abs(here - there) * weight))

    def lines(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The best lines of the table."""
        table, excess = self._table
        best = self._best_lines(x)[1]
        return excess[best] + self._error, np.exp(table[best])

    def _best_lines(self, x: FloatArray) -> tuple[FloatArray, IntArray]:
        """What the best lines in the table say at x, and where they are in it; first of every so many, then nearby."""
        table, excess = self._table
        slopes = np.exp(table)
        coarse = _STRIDE * np.argmin(excess[::_STRIDE] + np.multiply.outer(x, slopes[::_STRIDE]), axis=1)
        near = np.clip(coarse[:, None] + np.arange(-_STRIDE, _STRIDE + 1), 0, len(table) - 1)
        lines = excess[near] + slopes[near] * x[:, None]
        rows, best = np.arange(len(x)), np.argmin(lines, axis=1)
        return lines[rows, best], near[rows, best]

    @cached_property
    def _table(self) -> tuple[FloatArray, FloatArray]:
        """Losses s across the window, and H there: its series is a Fourier transform."""
        s: FloatArray = self._low + (self._high - self._low) / _TABLE * np.arange(_TABLE, dtype=np.float64)
        signs = np.where(np.arange(len(self._phi)) % 2, -1.0, 1.0)
        terms = np.zeros(_TABLE, dtype=np.complex128)
        # Frequencies beyond the size of the table come around again.
        np.add.at(terms, np.arange(len(self._phi)) % _TABLE, self._excess * signs)
        series = np.exp(-0.5j * self._spacing * (s - self._centre)) * _fft(terms)
        usable = (s >= _LOWEST) & (s <= _MAX_EXPONENT)
        if not usable.any():
            s = np.array([np.clip(0.0, max(self._low, _LOWEST), min(self._high, _MAX_EXPONENT))])
            return s, self._excess_at(s)
        s = s[usable]
        return s, np.maximum(0.5 + series.real[usable] - self._continued(s), 0.0)

    def __call__(self, x: FloatArray) -> FloatArray:
        # Every s gives a bound, and a table of them a good one; the best is where Q has x above s.
        table, (lines, best) = self._table[0], self._best_lines(x)
        low, high, s = table[np.maximum(best - 1, 0)], table[np.minimum(best + 1, len(table) - 1)], table[best]
        both = np.stack([self._q_terms, self._density])
        for _ in range(40):
            # What Q has above s, times exp(s), less what it should have.
            above, density = self._series(both, s).real
            gap = above + self._continued(s) - np.exp(s) * x
            low, high = np.where(gap >= 0, s, low), np.where(gap >= 0, high, s)
            # The bound falls by the gap as s grows, and its minimum is in the bracket: so much it is above that.
            if np.all(np.abs(gap) * (high - low) <= _AT_MINIMUM):
                break
            newton = s + gap / np.maximum(density, 1e-300)
            # Inside a bracket: where the losses come in lumps, Newton's method alone would go astray.
            s = np.where((newton > low) & (newton < high), newton, (low + high) / 2)
        lowest = np.minimum(lines, self._excess_at(s) + np.exp(s) * x)
        return np.minimum(lowest + self._error, 1.0)

    def _excess_at(self, s: FloatArray) -> FloatArray:
        """H, without what was left out."""
        return np.maximum(0.5 + self._series(self._excess, s).real - self._continued(s), 0.0)

    def _continued(self, s: FloatArray) -> FloatArray:
        """What continuing exp(-u) outside the window adds."""
        length = self._high - self._low
        return np.exp(s - length) / (1 + np.exp(-length))

    def _series(self, terms: ComplexArray, s: FloatArray) -> ComplexArray:
        """sum_k terms_k exp(-i w_k s), by Horner's rule; of several rows of terms, one row each."""
        phase = -1j * self._spacing * (s - self._centre)
        total = np.zeros((*terms.shape[:-1], len(s)), dtype=np.complex128)
        turn = np.exp(phase)
        for term in np.moveaxis(terms, -1, 0)[::-1, ..., None]:
            total = total * turn + term
        return np.exp(0.5 * phase) * total


class _SumTable:
    """A few steps: the law under P of the sum of losses on a very fine grid, by one linear convolution.

    The outputs of a step are cut into cells. In each the ratio of P to Q lies between those at its ends; what P has
    there goes to the two points of the grid that enclose them, shared so that Q keeps its mass too. That spreads the
    ratio around its mean, so H only grows. An output whose loss is above `_CERTAIN` counts as certainly from P.
    """

    def __init__(self, noise: float, rate: float, steps: int, deleted: int, inserted: int) -> None:
        cells = (1 << 22) // steps
        if cells < 1 << 12:
            raise _TooSlowError("The sums of losses would need too large a table.")
        per_deviation = int(np.clip((1 << 20) // steps, 1 << 10, 1 << 14))
        cuts, loss, up, down = _cells(noise, rate, deleted, inserted, per_deviation)
        p, p_tails = _masses(cuts / noise, up.counts / noise, up.weights)
        q, q_tails = _masses(cuts / noise, -down.counts / noise, down.weights)
        # Above the last cut nothing is known; below the first one the loss is at most the one there.
        certain = up.dropped + float(p[-1] + p[1:-1][loss[1:] > _CERTAIN].sum()) * (1 + 1e-9)
        finite = np.flatnonzero(loss[1:] <= _CERTAIN)
        loss = np.maximum(loss, -_CERTAIN)
        base = float(loss[0])
        self._spacing = max((float(loss[finite[-1] + 1]) - base) / (cells - 3), 1e-13) if len(finite) else 1.0
        left = np.floor((loss[finite] - base) / self._spacing).astype(np.intp)
        right = np.maximum(np.ceil((loss[finite + 1] - base) / self._spacing).astype(np.intp), left + 1)
        inner_p, inner_q = p[1:-1][finite], q[1:-1][finite]
        # p = a + b and q = a exp(-l) + b exp(-r)  =>  b = (p - q exp(l)) / (1 - exp(l - r))
        excess = inner_p - inner_q * np.exp(base + left * self._spacing)
        moved = np.clip(excess / -np.expm1((left - right) * self._spacing), 0.0, inner_p)
        grid = (np.bincount(left, inner_p - moved, cells) + np.bincount(right, moved, cells)).astype(np.float64)
        grid[0] += p[0]
        rounding = self._convolve(grid, steps)
        self._losses = steps * base + self._spacing * np.arange(len(self._sum), dtype=np.float64)
        # A mass that is wrong by a share of itself makes H wrong by that share; the loss is good to `error`.
        wrong_masses = 8 * _UNIT * float(p_tails.sum() + np.minimum(q_tails * np.exp(np.minimum(loss, 60)), 1).sum())
        error = 4 * _UNIT * (1 + float((up.counts[-1] / noise) ** 2 + (down.counts[-1] / noise) ** 2))
        self._error = -np.expm1(steps * np.log1p(-min(certain, 1.0))) if certain < 1 else 1.0
        self._error += rounding + steps * (wrong_masses + error)
        # What P and Q have from each loss on, where a line with that slope can be written.
        usable = np.abs(self._losses) <= _MAX_EXPONENT
        above = float(self._sum[self._losses > _MAX_EXPONENT].sum())
        losses, p = self._losses[usable], self._sum[usable]
        self._slopes = np.exp(losses)
        self._p_tail = np.cumsum(p[::-1])[::-1] + above
        self._q_tail = np.cumsum((p * np.exp(-losses))[::-1])[::-1]

    def _convolve(self, grid: FloatArray, steps: int) -> float:
        """The law of the sum; returns how wrong any part of it may be.

        Higham 2002, Theorem 24.2: an FFT has a relative error of at most 8 u log2(n) in the 2-norm, the power makes it
        `steps` times that; by Cauchy and Schwarz any part of the sum is off by at most sqrt(n) times the total.
        """
        size: int = _next_fast_len(steps * len(grid), real=True)
        self._sum: FloatArray = np.maximum(_irfft(_rfft(grid, size) ** steps, size), 0.0)
        norm = float(np.sqrt(size * np.square(grid).sum()))
        return float(_UNIT * norm * (steps + 1) * 8 * np.log2(size))

    def __call__(self, x: FloatArray) -> FloatArray:
        last = len(self._slopes) - 1
        if last < 0:
            return np.ones(len(x))
        place = np.searchsorted(-self._q_tail, -x)
        values = np.ones(len(x))
        for near in (-1, 0, 1):  # Any line is a bound; one of these is the lowest, up to rounding.
            at = np.clip(place + near, 0, last)
            line = self._p_tail[at] + self._slopes[at] * (x - self._q_tail[at])
            values = np.minimum(values, line * (1 + 1e-12) + self._error)
        return np.maximum(values, x)


class ExactMoments:
    """Moments of one step with every component of both mixtures, in log space, on one grid of outputs."""

    def __init__(self, noise: float, rate: float) -> None:
        self._noise, self._rate = noise, rate
        self._width = min(noise / 10, noise * noise / 10)
        self._x = self._log_phi = np.empty(0)
        self._rows: dict[tuple[int, int], FloatArray] = {}

    def log_moment(self, deleted: int, inserted: int, order: float) -> float:
        """Log of the integral of P^order Q^(1 - order), rounded up; infinite where the grid would be too large.

        Raises:
            NumericalError: there are so many changes that it would take too long.
        """
        reach = order * deleted + (order - 1) * inserted * self._rate + 11 * self._noise
        if not reach + 11 * self._noise < self._width * (1 << 20):
            return np.inf
        points = int((reach + 11 * self._noise) / self._width) + 2
        if points * (deleted + inserted + 1) > _MAX_MOMENTS:
            raise NumericalError(f"Divergences of {deleted + inserted} changes would take too long to compute again.")
        if points > len(self._x):
            self._x = -11 * self._noise + self._width * np.arange(2 * points, dtype=np.float64)
            self._log_phi = -0.5 * (self._x / self._noise) ** 2 - np.log(self._noise * np.sqrt(2 * np.pi))
            self._rows.clear()
        log_p, log_q = self._row(deleted, 1)[:points], self._row(inserted, -1)[:points]
        terms = order * log_p + (1 - order) * log_q + self._log_phi[:points]
        # Upwards: the rule converges exponentially, and what is rounded are exponents of the size of `order`.
        return max(_log_sum_exp(terms) + float(np.log(self._width)), 0.0) * (1 + 1e-10) + (512 + 32 * order) * _UNIT

    def _row(self, changes: int, side: int) -> FloatArray:
        """Log of P / phi (side 1) or Q / phi (side -1) on the grid."""
        if (changes, side) not in self._rows:
            counts = np.arange(changes + 1)
            with np.errstate(all="ignore"):  # At the smallest of rates nearly all weights are too small to be written.
                log_weights = stats.binom.logpmf(counts, changes, self._rate)
            log_weights = np.where(np.isnan(log_weights), -np.inf, log_weights)
            # The more examples, the more an output far out speaks for them: who is negligible there is so everywhere.
            far = float(np.max(side * self._x))
            there = log_weights + counts / self._noise * ((far - 0.5 * counts) / self._noise)
            last = int(np.flatnonzero(there > there.max() - 80)[-1])
            total = np.full(len(self._x), -np.inf)
            for count in np.flatnonzero(log_weights[: last + 1] > -np.inf).tolist():
                shifted = count / self._noise * ((side * self._x - 0.5 * count) / self._noise)
                np.logaddexp(total, log_weights[count] + shifted, out=total)
            self._rows[changes, side] = total
        return self._rows[changes, side]


class _Components(NamedTuple):
    """Numbers of sampled examples, their probabilities, and the probability of all others."""

    counts: FloatArray
    weights: FloatArray
    dropped: float


class _OneStepLoss(NamedTuple):
    """The loss, log P/Q, on a grid of outputs; P's probabilities there, which add up to one, and Q's; and their logs.

    `dropped` is what P has elsewhere, and `error` that of the loss.
    """

    loss: FloatArray
    log_p: FloatArray
    log_q: FloatArray
    p: FloatArray
    q: FloatArray
    dropped: float
    error: float


def _one_step(
    noise: float, rate: float, deleted: int, inserted: int, width: float, *, offset: float = 0.0
) -> _OneStepLoss:
    """One step on outputs `width` apart, turned by a share `offset` of that."""
    up, down = _components(deleted, rate), _components(inserted, rate)
    low, high = -down.counts[-1] - _REACH * noise, up.counts[-1] + _REACH * noise
    outputs = (high - low) / width if width > 0 else np.inf
    if not outputs * max(len(up.counts), len(down.counts), 8) <= _MAX_INVERTED:
        raise _TooSlowError("The characteristic function would need too many outputs.")
    x = np.arange(low, high + width, width) + offset * width
    up_counts, down_counts = up.counts / noise, down.counts / noise
    tilt_p, tilt_q = _log_mixture(x / noise, up_counts, up.weights), _log_mixture(-x / noise, down_counts, down.weights)
    log_phi = -0.5 * (x / noise) ** 2 + np.log(width / (noise * np.sqrt(2 * np.pi)))
    log_p, log_q = tilt_p + log_phi, tilt_q + log_phi
    log_p -= _log_sum_exp(log_p)
    dropped = up.dropped + 4 * float(special.ndtr(0.2 - _REACH))
    error = 4 * _UNIT * (1 + float(up_counts[-1] ** 2 + down_counts[-1] ** 2))
    return _OneStepLoss(tilt_p - tilt_q, log_p, log_q, np.exp(log_p), np.exp(log_q), dropped, error)


def _cells(
    noise: float, rate: float, deleted: int, inserted: int, per_deviation: int
) -> tuple[FloatArray, FloatArray, _Components, _Components]:
    """Outputs at which a step is cut, the loss there, and the components of P and Q."""
    up, down = _components(deleted, rate), _components(inserted, rate)
    centres = np.unique(np.concatenate([up.counts, -down.counts]))
    components = max(len(up.counts), len(down.counts))
    # Between the outputs that each number of sampled examples may have there may lie nothing.
    deviations = 2 * _REACH * len(centres) if noise < _SEPARATE else (centres[-1] - centres[0]) / noise + 2 * _REACH
    while deviations * per_deviation * components > _MAX_TABULATED and per_deviation > _COARSEST:
        per_deviation //= 2  # Wider cells are as sound, only looser.
    if not deviations * per_deviation * components <= _MAX_TABULATED or noise < _LEAST_NOISE:
        raise NumericalError("The noise is so small beside what may change that the exact curve cannot be computed.")
    if noise < _SEPARATE:
        reach = np.linspace(-_REACH, _REACH, int(2 * _REACH * per_deviation)) * noise
        cuts = np.add.outer(centres, reach).reshape(-1)
    else:
        ends = centres[0] - _REACH * noise, centres[-1] + _REACH * noise
        cuts = np.linspace(*ends, int(deviations * per_deviation))
    tilt_p = _log_mixture(cuts / noise, up.counts / noise, up.weights)
    tilt_q = _log_mixture(-cuts / noise, down.counts / noise, down.weights)
    return cuts, np.maximum.accumulate(tilt_p - tilt_q), up, down


def _masses(cuts: FloatArray, centres: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """What a mixture of unit Gaussians has below, between and above the cuts; the smaller tails at the cuts."""
    signed, tails = np.zeros(len(cuts)), np.zeros(len(cuts))
    for centre, weight in zip(centres.tolist(), weights.tolist(), strict=True):
        tail = special.ndtr(-np.abs(cuts - centre))
        signed += weight * np.where(cuts > centre, -tail, tail)
        tails += weight * tail
    masses = np.diff(signed, prepend=0.0, append=0.0)
    # A centre counts as one more from the first cut above it on.
    masses += np.bincount(np.searchsorted(cuts, centres, side="right"), weights, len(cuts) + 1)
    return np.maximum(masses, 0.0), tails


def _log_mixture(x: FloatArray, centres: FloatArray, weights: FloatArray) -> FloatArray:
    """Log of sum_k weights_k exp(centres_k x - centres_k^2 / 2)."""
    exponents = np.multiply.outer(centres, x) + (np.log(weights) - 0.5 * centres**2)[:, None]
    largest = exponents.max(axis=0)
    return largest + np.log(np.exp(exponents - largest).sum(axis=0))


def _turns(phase: npt.NDArray[np.complexfloating[Any, Any]], count: int) -> ComplexArray:
    """exp(k phase) for k from 0 to before `count`, a power of two; by doubling, so that few are exponentials."""
    rows = np.ones((1, len(phase)), dtype=np.complex128)
    while len(rows) < count:
        rows = np.concatenate([rows, rows * np.exp(len(rows) * phase)])
    return rows


def _log_sums_exp(exponents: FloatArray) -> FloatArray:
    """Of each row."""
    largest = exponents.max(axis=1)
    return largest + np.log(np.exp(exponents - largest[:, None]).sum(axis=1))


def _log_sum_exp(exponents: FloatArray) -> float:
    largest = float(exponents.max())
    return largest + float(np.log(np.exp(exponents - largest).sum()))


@lru_cache(maxsize=4096)
def _components(changes: int, rate: float) -> _Components:
    """Numbers of sampled examples that have a probability above 1e-18."""
    if rate == 1.0 or changes == 0:
        return _Components(np.array([float(changes)]), np.ones(1), 0.0)
    counts = np.arange(changes + 1)
    weights = stats.binom.pmf(counts, changes, rate)
    kept = weights > 1e-18
    counts, others = counts[kept], float(weights[~kept].sum())
    return _Components(counts.astype(np.float64), weights[kept], others * (1 + TOLERANCE))


def _variance(weights: FloatArray, values: FloatArray) -> float:
    mean = float(weights @ values)
    return float(weights @ (values - mean) ** 2)
