"""From the dominating pair of one step to the trade-off curve of `steps` steps, pessimistic in every operation.

Notation. For a pair (P, Q) and the T-fold products P^T, Q^T let

    K(x) = max { P^T(S) : Q^T(S) <= x }          (Neyman-Pearson; concave, increasing)
    H(e) = max_S P^T(S) - exp(e) Q^T(S)          (hockey-stick divergence, any real e)

so that K(x) <= H(e) + exp(e) x for *every* e: a curve is stored as a few hundred such lines, and leaving lines out, or
lifting them, can only make K larger, which is the safe direction.

Each operation and why it is safe (proofs in docs/theory.md, section 4):

1. *Rounding to the grid.* The x axis is cut where the loss crosses multiples of `h`. Inside one cell the ratio P/Q lies
   between exp(l) and exp(l + h); the cell's masses (p, q) are moved to two atoms with exactly these two ratios, keeping
   both totals. That is a mean-preserving spread of the likelihood ratio under Q, so every H grows (Doroshenko et al.
   2022, arXiv 2207.04380, "connecting the dots"). The variance added is at most h^2 / 4 a step, second order in h;
   plain rounding up would shift the loss by h / 2 a step, first order.
2. *Ends.* Above the last cut P's mass goes to an atom at +infinity, below the first one Q's surplus to -infinity.
   Mixture components that are left out are charged the same way.
3. *Floating point, one step.* A cell's p is raised and its q lowered by a bound on their rounding error, and the loss
   of every atom is raised by the largest error of a cut. Each makes every H of the cell larger.
4. *Composition.* P^T and Q^T by FFT on a circle. What could wrap around is bounded by Chernoff's inequality, what the
   FFTs could lose by Higham 2002 (Theorem 24.2); both are added to every tail probability.

Why not dp-accounting: docs/theory.md, section 9, with the measured ratio.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy import fft, special

from mithridate.accounting.mixture import UNIT, Components, FloatArray, MixturePair, binomial_components
from mithridate.errors import NumericalError

# Probability that may go to +infinity by cutting tails and leaving out components, over all steps.
TRUNCATION = 1e-10
# Probability that may wrap around the circle, at each end and for each of P and Q.
WRAP = 1e-11
# Grid step in units of the standard deviation of one step's loss: inflates the total deviation by about 2e-5.
RESOLUTION = 0.015
# Lines kept of a composed curve; leaving lines out is safe, and these cost less than the grid does.
LINES = 2048
# Error of scipy's normal distribution function in units of its own value (measured: below 8), with a margin of 4.
_NDTR_ERROR = 32 * UNIT
_MAX_CELLS = 1 << 16
_MAX_CIRCLE = 1 << 21
_COARSEST = 4.0
_TABLE = 1024
# Tilts of Chernoff's inequality in units of the one that is best for a Gaussian; any of them is valid.
_TILTS = np.array([0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 1.0, 1.2, 1.6])
_MAX_EXPONENT = 600.0
# Lines are taken where Q's tail is neither this small nor this close to one.
_NEGLIGIBLE = 1e-10


@dataclass(frozen=True)
class ErrorBudget:
    """Everything that was added to a curve on purpose so that it errs on the safe side; each entry is a bound.

    Attributes:
        truncation: probability sent to +infinity (cut tails, components left out), over all steps.
        wrap: probability that may have wrapped around the circle, at both ends.
        rounding: floating-point error in any tail probability.
        loss: error of the privacy loss (where cells are cut), over all steps.
    """

    truncation: float
    wrap: float
    rounding: float
    loss: float


@dataclass(frozen=True)
class TradeoffCurve:
    """An upper bound on K: the lower envelope of lines `intercepts + slopes * x`.

    Guarantee: for every event S with Q(S) <= x, P(S) <= curve(x). Every single line has this property, so the order
    in which they are searched can cost tightness but never soundness.
    """

    intercepts: FloatArray
    slopes: FloatArray  # increasing
    budget: ErrorBudget
    _crossings: FloatArray = field(init=False, repr=False, compare=False)
    _heights: FloatArray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Line i is the lowest from where it meets line i + 1 (steeper) up to where it meets line i - 1.
        crossings = (self.intercepts[:-1] - self.intercepts[1:]) / np.diff(self.slopes)
        heights = self.intercepts[:-1] + self.slopes[:-1] * crossings
        # Rounding may break the order of the crossings by a little; the search needs it.
        object.__setattr__(self, "_crossings", np.maximum.accumulate(crossings[::-1]))
        object.__setattr__(self, "_heights", np.maximum.accumulate(heights[::-1]))

    def __call__(self, x: FloatArray) -> FloatArray:
        """K at x, rounded up."""
        index = self.line_at(x)
        value = (self.intercepts[index] + self.slopes[index] * x) * (1 + 8 * UNIT)
        return np.minimum(np.maximum(value, x), 1.0)

    def line_at(self, x: FloatArray) -> npt.NDArray[np.intp]:
        """Index of a line that is lowest at x."""
        return len(self.slopes) - 1 - np.searchsorted(self._crossings, x)

    def line_at_height(self, y: FloatArray) -> npt.NDArray[np.intp]:
        """Index of a line that gives the largest lower bound on K^-1 at y."""
        return len(self.slopes) - 1 - np.searchsorted(self._heights, y)


def compose(
    noise: float, rate: float, steps: int, deleted: int, inserted: int, *, resolution: float = RESOLUTION
) -> TradeoffCurve:
    """The trade-off curve between D' and D after `steps` steps.

    Guarantee: an upper bound on K for every D' that has `deleted` examples more and `inserted` examples fewer than D,
    or less of either, and for every adaptive choice of gradients.

    Assumes: the mechanism of `SampledGaussian`.

    Raises:
        NumericalError: the curve would not fit into memory at any resolution that is worth having.
    """
    try:
        # Whatever numpy would only warn about is refused: a curve must never come out of arithmetic that failed.
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            drop = TRUNCATION / (4 * steps)
            upper, lower = binomial_components(deleted, rate, drop), binomial_components(inserted, rate, drop)
            pair = MixturePair(noise, upper, lower)
            atoms = _discretise(pair, steps, resolution)
            window = _window(atoms, steps)
            # Too large a circle: a coarser grid is as sound, only looser.
            while _circle(window, atoms.h) > _MAX_CIRCLE and resolution < _COARSEST:
                resolution *= 2
                atoms = _discretise(pair, steps, resolution)
                window = _window(atoms, steps)
            return _lines(*_convolve(atoms, steps, window))
    except NumericalError:
        raise
    except (ArithmeticError, ValueError, IndexError, MemoryError) as error:
        raise NumericalError(
            f"The privacy loss of this mechanism is beyond floating-point arithmetic: {error}."
        ) from error


@dataclass(frozen=True)
class _Atoms:
    """One step on the grid `h * (first + i)`: masses of P and Q, P's mass at +infinity, the largest error of a cut."""

    h: float
    first: int
    p: FloatArray
    q: FloatArray
    infinite: float
    cut_error: float


def _discretise(pair: MixturePair, steps: int, resolution: float) -> _Atoms:
    """Operations 1 to 3 of the module docstring, for one step."""
    low, high = _range(pair, TRUNCATION / (4 * steps))
    table = np.linspace(low, high, _TABLE)
    lower, loss = pair.log_ratio_lower(table)[0], pair.loss(table)[0]
    h = _grid_step(table / pair.noise, lower, loss, steps, resolution)
    first = int(np.floor(loss[0] / h))
    last = max(int(np.ceil(loss[-1] / h)), first + 1)
    inner = h * np.arange(first + 1, last, dtype=np.float64)
    cuts, cut_error = _invert(pair, inner, table, loss)
    cuts = np.concatenate([[low], cuts, [high]])
    p, p_error = _cell_masses(pair.upper, pair.upper.counts, cuts, pair.noise)
    q, q_error = _cell_masses(pair.lower, -pair.lower.counts, cuts, pair.noise)
    if abs(p.sum() - 1) > 1e-6 or abs(q.sum() - 1) > 1e-6:
        raise NumericalError("The masses of one step do not add up to one; please report the mechanism.")
    # Operation 3: p up, q down; the q of a cell also by the part whose ratio may lie below the cell's lower label.
    p = p + p_error
    q = np.maximum(q - q_error, 0.0) * (1 - 2 * cut_error)
    q[1:-1] = np.minimum(
        q[1:-1], p[1:-1] * np.exp(np.minimum(-h * np.arange(first, last, dtype=np.float64), _MAX_EXPONENT))
    )
    masses_p, masses_q = _spread(h, first, p[1:-1], q[1:-1])
    # Operation 2: below the first cut the ratio is at most that of the second atom; above the last one it is unknown.
    masses_p[1] += p[0]
    masses_q[1] += p[0] * np.exp(min(-h * (first + 1), _MAX_EXPONENT))
    return _Atoms(h, first, masses_p, masses_q * np.exp(-cut_error), float(p[-1]) + pair.upper.dropped, cut_error)


def _range(pair: MixturePair, tail: float) -> tuple[float, float]:
    """An interval of x outside of which P and Q each have at most about `tail` on either side."""
    reach = -float(special.ndtri(tail)) * pair.noise
    low, high = -float(pair.lower.counts[-1]) - reach, float(pair.upper.counts[-1]) + reach
    grid = np.linspace(low, high, 257, dtype=np.float64)
    above = special.ndtr((pair.upper.counts - grid[:, None]) / pair.noise) @ np.exp(pair.upper.log_weights)
    below = special.ndtr((grid[:, None] + pair.lower.counts) / pair.noise) @ np.exp(pair.lower.log_weights)
    first_above = int(np.argmax(above <= tail)) if above[-1] <= tail else len(grid) - 1
    last_below = int(np.nonzero(below <= tail)[0][-1]) if below[0] <= tail else 0
    return float(grid[last_below]), float(grid[first_above])


def _grid_step(x: FloatArray, log_lower: FloatArray, loss: FloatArray, steps: int, resolution: float) -> float:
    """The spacing of the loss grid: a fraction of the standard deviation of one step's loss under Q.

    Losses so rare that hardly any of the `steps` steps has one do not count: with little noise they would make the grid
    far too coarse for all the others. Any spacing is sound; this one is tight.
    """
    density = np.exp(log_lower - 0.5 * x * x)
    cumulative = np.cumsum(density) / density.sum()
    rare = min(0.05, 0.1 / steps)
    last = len(loss) - 1
    low, high = np.searchsorted(cumulative, [rare, 1 - rare])
    usual = np.clip(loss, loss[min(int(low), last)], loss[min(int(high), last)])
    mean = density @ usual / density.sum()
    deviation = float(np.sqrt(density @ (usual - mean) ** 2 / density.sum()))
    spread = float(loss[-1] - loss[0])
    # A loss that is constant to rounding error (one change among billions) needs no finer grid than this.
    return max(resolution * deviation, spread / _MAX_CELLS, 1e-13)


def _invert(
    pair: MixturePair, grid: FloatArray, table_x: FloatArray, table_loss: FloatArray
) -> tuple[FloatArray, float]:
    """Where the loss crosses `grid`, by Newton's method from a table, and the largest error of the loss there."""
    # Also covers the rounding of exp(-loss) in every atom's ratio.
    tolerance = 1e-13 * max(1.0, float(np.abs(table_loss).max()))
    if len(grid) == 0:
        return grid, tolerance
    x = np.interp(grid, table_loss, table_x)
    for _ in range(20):
        loss, slope = pair.loss(x)
        if float(np.abs(loss - grid).max()) <= tolerance:
            break
        x = np.clip(x - (loss - grid) / np.maximum(slope, 1e-300), table_x[0], table_x[-1])
    x = np.maximum.accumulate(x)
    error = float(np.abs(pair.loss(x)[0] - grid).max())
    return x, error + tolerance


def _cell_masses(
    components: Components, centres: FloatArray, cuts: FloatArray, noise: float
) -> tuple[FloatArray, FloatArray]:
    """Mass of sum_k weights_k N(centres_k, noise^2) below, between and above the cuts; bounds on its error."""
    weights = np.exp(components.log_weights)
    z = (cuts[:, None] - centres) / noise
    small_tail = special.ndtr(-np.abs(z))
    # The distribution function, less one where z > 0: both tails keep their relative accuracy in a difference.
    signed = np.where(z > 0, -small_tail, small_tail) @ weights
    masses = np.diff(signed, prepend=0.0, append=0.0)
    # A centre on a cut has z = 0 there, which counts as "not above": its one is owed to the cell after that cut.
    masses += np.bincount(np.searchsorted(cuts, centres, side="right"), weights, len(cuts) + 1)
    masses = np.maximum(masses, 0.0)
    tails = small_tail @ weights
    rounding = (_NDTR_ERROR + len(weights) * UNIT) * (np.append(tails, 0.0) + np.insert(tails, 0, 0.0) + masses)
    return masses, rounding + components.weight_error * masses


def _spread(h: float, first: int, p: FloatArray, q: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Move the masses (p, q) of each cell to two atoms with the ratios of its ends; see operation 1."""
    losses = h * np.arange(first, first + len(p) + 1, dtype=np.float64)
    factors = np.exp(np.clip(-losses, -_MAX_EXPONENT, _MAX_EXPONENT))
    # p = a + b and q = a exp(-l) + b exp(-l - h)  =>  b = (p - q exp(l)) / (1 - exp(-h))
    with np.errstate(over="ignore"):
        to_upper = np.clip((p - q / factors[:-1]) / -np.expm1(-h), 0.0, p)
    masses = np.append(p - to_upper, 0.0)
    masses[1:] += to_upper
    return masses, masses * factors


def _convolve(
    atoms: _Atoms, steps: int, window: tuple[float, float]
) -> tuple[FloatArray, FloatArray, FloatArray, ErrorBudget]:
    """All steps: losses in increasing order, masses of P and Q there, and what was added; operation 4 of the module."""
    h = atoms.h
    needed = _circle(window, h)
    if not needed <= _MAX_CIRCLE:
        raise NumericalError(f"The grid would need {needed:.3g} points; fewer steps or more noise need fewer.")
    size = int(fft.next_fast_len(int(needed), real=True))
    start = int(np.floor(window[0] / h)) - 1
    shift = (steps * atoms.first - start) % size
    p, p_error = _power(atoms.p, steps, size, shift)
    q, q_error = _power(atoms.q, steps, size, shift)
    budget = ErrorBudget(
        truncation=steps * atoms.infinite,
        wrap=2 * WRAP,
        rounding=max(p_error, q_error),
        loss=steps * atoms.cut_error,
    )
    return h * np.arange(start, start + size, dtype=np.float64) + budget.loss, p, q, budget


def _circle(window: tuple[float, float], h: float) -> float:
    """How many points of the grid the window has."""
    return (window[1] - window[0]) / h + 4


def _power(masses: FloatArray, steps: int, size: int, shift: int) -> tuple[FloatArray, float]:
    """The `steps`-fold convolution on a circle of `size`, turned by `shift`; the error of any partial sum of it."""
    folded = np.bincount(np.arange(len(masses)) % size, masses, size)
    spectrum = _integer_power(fft.rfft(folded), steps)
    result = np.roll(fft.irfft(spectrum, size), shift)
    # Higham 2002, Theorem 24.2: an FFT has relative error at most 8 u log2(n) in the 2-norm (doubled here for factors
    # 3 and 5). Raising to the power T multiplies it by T; by Parseval and Cauchy-Schwarz any partial sum of the result
    # is off by at most the total. Summing the tails adds at most `size` roundings.
    growth = max(float(masses.sum()), 1.0) ** steps
    norm = np.sqrt(size * float(np.square(folded).sum())) * growth
    return result, float(UNIT * (norm * ((steps + 1) * 16 * np.log2(size) + 4 * steps) + growth * size))


def _integer_power(values: npt.NDArray[np.complex128], exponent: int) -> npt.NDArray[np.complex128]:
    """`values ** exponent` by repeated squaring: cheaper and no less accurate than complex logarithms."""
    result = None
    while True:
        if exponent & 1:
            result = values if result is None else result * values
        exponent >>= 1
        if not exponent:
            return values if result is None else result
        values = values * values


def _window(atoms: _Atoms, steps: int) -> tuple[float, float]:
    """Losses below and above which Q and P (and so both) have at most `WRAP` after all steps (Chernoff)."""
    losses = atoms.h * (atoms.first + np.arange(len(atoms.p), dtype=np.float64))
    centre = float(atoms.q @ losses) / float(atoms.q.sum())
    variance = float(atoms.q @ (losses - centre) ** 2) / float(atoms.q.sum())
    deviation = np.sqrt(steps * variance) + atoms.h
    tilts = _TILTS * np.sqrt(-2 * np.log(WRAP)) / deviation
    needed = -np.log(WRAP) / tilts
    # A tail of P above w >= 0 bounds that of Q, and a tail of Q below w <= 0 bounds that of P, since P = exp(loss) Q.
    high = float(np.min(needed + steps * _log_moments(losses, atoms.p, tilts) / tilts))
    low = float(np.min(needed + steps * _log_moments(losses, atoms.q, -tilts) / tilts))
    if not (np.isfinite(high) and np.isfinite(low)):
        raise NumericalError("The tails of the privacy loss cannot be bounded.")
    return min(-low, 0.0), max(high, 0.0)


def _log_moments(losses: FloatArray, masses: FloatArray, tilts: FloatArray) -> FloatArray:
    """Log of sum_i masses_i exp(tilt losses_i) for each tilt."""
    # Only atoms that have mass: the scale of an empty one could make all others underflow, and a tail vanish.
    present = masses > 0
    exponents = tilts[:, None] * losses[present] + np.log(masses[present])
    peak = exponents.max(axis=1, keepdims=True)
    return np.log(np.exp(exponents - peak).sum(axis=1)) + peak[:, 0]


def _lines(losses: FloatArray, p: FloatArray, q: FloatArray, budget: ErrorBudget) -> TradeoffCurve:
    """H at about `LINES` losses around the bulk of Q, errors added."""
    p_tail, q_tail = np.cumsum(p[::-1])[::-1], np.cumsum(q[::-1])[::-1]
    usable = np.abs(losses) < _MAX_EXPONENT
    bulk = np.flatnonzero((q_tail > _NEGLIGIBLE) & (q_tail < 1 - _NEGLIGIBLE) & usable)
    if len(bulk) == 0:
        # All of Q at one atom (hardly any loss, or more than can be written): its neighbours are all there is to take.
        centre = int(np.argmax(q_tail < 0.5))
        bulk = np.flatnonzero(usable & (np.abs(np.arange(len(q_tail)) - centre) <= 2))
    if len(bulk) == 0:
        return TradeoffCurve(np.ones(1), np.ones(1), budget)
    # Half of the lines evenly over the losses, half over the probabilities at which the curve will be asked.
    even = np.linspace(int(bulk[0]), int(bulk[-1]), LINES // 2, dtype=np.float64).astype(np.int64)
    levels = special.ndtr(np.linspace(6.4, -6.4, LINES // 2, dtype=np.float64))
    asked = len(q_tail) - np.searchsorted(q_tail[::-1], levels)
    chosen = np.union1d(even, np.clip(asked, bulk[0], bulk[-1]))
    slopes = np.exp(losses[chosen])
    error = budget.wrap + budget.rounding
    intercepts = (p_tail[chosen] + error + budget.truncation) - slopes * (q_tail[chosen] - error)
    if not np.all(np.isfinite(intercepts)):
        raise NumericalError("The hockey-stick divergence could not be computed.")
    return TradeoffCurve(np.clip(intercepts, 0.0, 1.0) * (1 + 8 * UNIT), slopes, budget)
