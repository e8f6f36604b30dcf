"""A change of the input beside changes of the training data: one more factor of every dominating pair.

An instance draws its model from the training set, and noise N(0, S^2 I) that it adds to the input, independently. If
the input moves by at most e in Euclidean length, the noisy input moves from N(0, 1) to N(m, 1) with m = e / S at most
(rotate the space; the other coordinates are alike). So whatever P and Q dominate what training shows, P x N(m, 1) and
Q x N(0, 1) dominate what model and noisy input show together; the vote is made from these (docs/theory.md, section 5).

*Lines.* Let K be a bound on the curve of (P, Q), and H(a) = sup_x K(x) - a x. An event S of the product has slices S_z,
and P(S_z) <= H(a) + a Q(S_z) for every a, which may depend on z. With the ratio R(z) = exp(m z - m^2 / 2) of N(m, 1) to
N(0, 1), and a = b / R(z),

    P'(S) <= E_{z ~ N(m, 1)} H(b / R(z)) + b Q'(S)        for every b > 0.

H is convex and decreasing in a, with H(0) <= 1: a chord between slopes at which it is known lies above it.

*The mean over z* is one over cells whose ends have log R on a grid, l = i d. In a cell H(b / R) lies, by convexity in
1 / R, below the chord between its values at both ends: with the masses p of N(m, 1) and q of N(0, 1) in the cell, the
mean of 1 / R over it under N(m, 1) is q / p, which says at which point of the chord. So every cell puts its mass on two
atoms, and the mean is a convolution of H, on the same grid of log a, with these. What lies above the cells counts with
H <= 1, and what lies below them with the value at their end, for H is smaller there.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import special

from mithridate.accounting.mixture import UNIT
from mithridate.accounting.privacy_loss import ErrorBudget, TradeoffCurve

FloatArray = npt.NDArray[np.float64]

# How far the cells reach, in standard deviations: what lies above counts as seen for certain, less than 1e-15.
_REACH = 8.0
# Points of the grid between the flattest and the steepest line; chords make its error second order.
_POINTS = 1024
# Error of the mass of a cell, which is a difference of distribution functions, of a sum of many terms, and of a
# height for the rounding of its slope: at least ten times what can come together.
_ROUNDING = 1e-11
# Slopes keep their logarithms below this.
_MAX_EXPONENT = 650.0
# Beyond this many standard deviations of the noise nothing can be certified, and nothing is computed.
_LARGEST = 20.0


def shifted(curve: TradeoffCurve, shift: float) -> TradeoffCurve:
    """The curve of a pair, each with a normal draw beside it whose mean differs by `shift`.

    Guarantee: for every event S of the pairs (P, N(shift, 1)) and (Q, N(0, 1)) with Q'(S) <= x, P'(S) <= result(x),
    if `curve` says so of P and Q; rounded up.

    Args:
        curve: a bound on the pair.
        shift: at least 0.
    """
    if shift == 0:
        return curve
    if shift > _LARGEST:
        return TradeoffCurve(np.ones(1), np.ones(1), curve.budget)
    first, last, step = _grid(np.log(curve.slopes[[0, -1]]), shift)
    lowest, atoms, above = _atoms(shift, step)
    highest = lowest + len(atoms) - 1
    asked = step * np.arange(first - highest, last - lowest + 1, dtype=np.float64)
    heights = np.interp(np.exp(np.clip(asked, -_MAX_EXPONENT, _MAX_EXPONENT)), *_known(curve))
    intercepts = (np.convolve(heights, atoms, mode="valid") + above) * (1 + _ROUNDING) + _ROUNDING
    budget = curve.budget
    moved = ErrorBudget(
        truncation=budget.truncation + above,
        wrap=budget.wrap,
        rounding=budget.rounding + 2 * _ROUNDING,
        loss=budget.loss,
    )
    slopes: FloatArray = np.exp(step * np.arange(first, last + 1, dtype=np.float64))
    return TradeoffCurve(np.minimum(intercepts, 1.0), slopes * (1 + 4 * UNIT), moved)


def _grid(ends: FloatArray, shift: float) -> tuple[int, int, float]:
    """Numbers of the first and the last point at which the new curve is taken, and the distance of points."""
    reach = shift * (_REACH - 1 + shift / 2)
    low, high = max(ends[0] - reach, -_MAX_EXPONENT / 2), min(ends[1] + reach, _MAX_EXPONENT / 2)
    step = max(high - low, 1e-3) / _POINTS
    return math.floor(low / step), math.ceil(high / step), step


def _atoms(shift: float, step: float) -> tuple[int, FloatArray, float]:
    """The law of log R under N(shift, 1), on the grid: its first point, masses from there on, and the mass beyond."""
    lowest = math.floor((shift * shift / 2 - _REACH * shift) / step)
    highest = max(math.ceil((shift * shift / 2 + _REACH * shift) / step), lowest + 1)
    log_ratio = step * np.arange(lowest, highest + 1, dtype=np.float64)
    # log R = shift z - shift^2 / 2, and z is N(shift, 1) under P.
    under_p, under_q = log_ratio / shift - shift / 2, log_ratio / shift + shift / 2
    p, q = _masses(under_p), _masses(under_q)
    inverse = np.exp(-log_ratio)
    # Where between the ends of its cell the mean of 1 / R lies; less of it is safe, for H is larger at the upper end.
    mean = q / np.maximum(p, 1e-300) * (1 - _ROUNDING)
    to_upper = np.clip((inverse[:-1] - mean) / (inverse[:-1] - inverse[1:]) * (1 + _ROUNDING), 0.0, 1.0)
    atoms = np.append(p * (1 - to_upper), 0.0)
    atoms[1:] += p * to_upper
    atoms[0] += special.ndtr(under_p[0])
    above = float(special.ndtr(-float(under_p[-1])))
    return lowest, atoms, above * (1 + _ROUNDING)


def identity() -> TradeoffCurve:
    """The curve where nothing of the training data changes: K(x) = x."""
    return TradeoffCurve(np.zeros(1), np.ones(1), ErrorBudget(0.0, 0.0, 0.0, 0.0))


def _masses(edges: FloatArray) -> FloatArray:
    """Of N(0, 1) between neighbouring edges; differences of whichever tail is small, so that all digits count."""
    right = special.ndtr(edges[1:]) - special.ndtr(edges[:-1])
    left = special.ndtr(-edges[:-1]) - special.ndtr(-edges[1:])
    return np.where(edges[:-1] > 0, left, right)


def _known(curve: TradeoffCurve) -> tuple[FloatArray, FloatArray]:
    """Slopes a, ascending from 0, and upper bounds on H(a) = sup K(x) - a x there; beyond the last it falls no further.

    A line c + s x above K says H(s) <= c, and so for all larger slopes. H(0) is at most 1.
    """
    heights = np.minimum(np.minimum.accumulate(curve.intercepts), 1.0)
    return np.append(0.0, curve.slopes), np.append(1.0, heights)
