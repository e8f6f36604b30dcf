"""A change of the input beside changes of the training data: one more factor of every dominating pair.

An instance draws its model from the training set, and noise N(0, S^2 I) that it adds to the input, independently. If
the input moves by at most e in Euclidean length, the noisy input moves from N(0, 1) to N(m, 1) with m = e / S at most
(rotate the space; the other coordinates are alike). So whatever P and Q dominate what training shows, P x N(m, 1) and
Q x N(0, 1) dominate what model and noisy input show together; the vote is made from these (docs/theory.md, section 13).

*Lines.* Let K be a bound on the curve of (P, Q), and H(a) = sup_x K(x) - a x. An event S of the product has slices S_z,
and P(S_z) <= H(a) + a Q(S_z) for every a, which may depend on z. With the ratio R(z) = exp(m z - m^2 / 2) of N(m, 1) to
N(0, 1), and a = b / R(z),

    P'(S) <= E_{z ~ N(m, 1)} H(b / R(z)) + b Q'(S)        for every b > 0.

H is convex and decreasing in a, with H(0) <= 1: a chord between slopes at which it is known lies above it.

*The mean over z* is one over cells. In a cell, R lies between r and r h, so H(b / R) lies between its values at both
ends, and by convexity in 1 / R below the chord between them: with the masses p of N(m, 1) and q of N(0, 1) in the cell,
the mean of 1 / R over the cell under N(m, 1) is q / p, which says at which point of the chord. What lies beyond the
cells counts with H <= 1 above, and with the value at the end below, where H is smaller.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import special

from mithridate.accounting.privacy_loss import ErrorBudget, TradeoffCurve

FloatArray = npt.NDArray[np.float64]

# How far the cells reach, in standard deviations: what lies above counts as seen for certain, less than 1e-15.
_REACH = 8.0
# Cells in which the mean is taken; chords make their error second order.
_CELLS = 1024
# Lines of the new curve, at least.
_LINES = 1024
# Relative error of the mass of a cell, which is a difference of distribution functions, and of all that is made of it:
# at least ten times what can come together.
_ROUNDING = 1e-12
# Less counts as this: between cells whose ratios hardly differ there would be nothing but rounding.
_SMALLEST = 1e-4
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
    shift = max(shift, _SMALLEST)
    if shift > _LARGEST:
        return TradeoffCurve(np.ones(1), np.ones(1), curve.budget)
    edges = shift + np.linspace(-_REACH, _REACH, _CELLS + 1)
    upper, lower = _masses(edges - shift), _masses(edges)
    inverse = np.exp(shift * shift / 2 - shift * edges)
    # Where between the ends of its cell the mean of 1 / R lies; less of it is safe, for H is larger at the upper end.
    mean = lower / upper * (1 - _ROUNDING)
    weight = np.clip((inverse[:-1] - mean) / (inverse[:-1] - inverse[1:]) * (1 + _ROUNDING), 0.0, 1.0)
    wanted = _slopes_for(curve, shift)
    at_edges = np.interp(wanted[:, None] * inverse, *_known(curve))
    mass_at_edge = np.append(upper * (1 - weight), 0.0) + np.insert(upper * weight, 0, 0.0)
    above = float(special.ndtr(-_REACH)) * (1 + _ROUNDING)
    # Below the cells H is at most its value at the first edge.
    mass_at_edge[0] += above
    intercepts = (at_edges @ mass_at_edge + above) * (1 + 4 * _ROUNDING)
    budget = curve.budget
    moved = ErrorBudget(
        truncation=budget.truncation + above,
        wrap=budget.wrap,
        rounding=budget.rounding + 4 * _ROUNDING,
        loss=budget.loss,
    )
    return TradeoffCurve(np.minimum(intercepts, 1.0), wanted, moved)


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


def _slopes_for(curve: TradeoffCurve, shift: float) -> FloatArray:
    """Slopes at which the new curve is taken: any are safe, and these are many where it bends."""
    logs = np.log(curve.slopes)
    few: FloatArray = logs[:: max(1, len(logs) // _LINES)]
    reach = shift * (_REACH - 1 + shift / 2)
    low, high = max(logs[0] - reach, -_MAX_EXPONENT), min(logs[-1] + reach, _MAX_EXPONENT)
    even = np.linspace(low, high, _LINES, dtype=np.float64)
    return np.exp(np.unique(np.concatenate([few, even])))
