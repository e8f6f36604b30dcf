"""Renyi divergences of the dominating pairs of one step, by quadrature, rounded up.

With phi the density of N(0, sigma^2), p = P / phi and q = Q / phi (module `mixture`), the moment of an order is

    exp((order - 1) D(P || Q)) = integral of p^order q^(1 - order) phi.

*Range.* The logarithm of the integrand has slope (order E_P[k | x] + (order - 1) E_Q[j | x] - x) / sigma^2, where k and
j are numbers of sampled examples. It is at least -x / sigma^2 for x < 0, so nothing matters below -9 sigma; and since
E_Q[j | x] is at most its mean for x > 0, nothing matters 9 sigma above order k_max + (order - 1) E_Q[j].

*Components.* P is cut to at most k_max sampled examples. With P = P1 + P2, Minkowski's inequality under Q gives

    moment^(1/order) <= moment1^(1/order) + sum_(k > k_max) w_k |N_k / Q|_order,
    |N_k / Q|_order <= v_0^((1 - order)/order) exp((order - 1) k^2 / (2 sigma^2))        (Q >= v_0 N_0),

and what is cut is added, so that high orders of large groups, where "all were sampled at once" decides, are never
underestimated. Components of Q that are left out make the integrand larger, which is safe.

*Convergence.* The trapezoidal rule converges exponentially for such integrands (Trefethen & Weideman 2014).

Why not dp-accounting: it overestimates fractional orders at large sample rates, drops those that do not converge, and
knows no groups.
"""

import numpy as np

from mithridate.accounting.mixture import UNIT, FloatArray, binomial_components, log_binomial

# Added to every log moment, relative to its size; tests compare with 30-digit arithmetic.
ERROR = 1e-9
_REACH = 9.0
_NEGLIGIBLE = 1e-13
# Components of P below this are bounded, not integrated; components of Q below it are left out.
_LEAST_WEIGHT = 1e-40
_MAX_POINTS = 1 << 18
# Points times components: 256 MiB. Orders that would need more are left out.
_MAX_NUMBERS = 1 << 25
_MAX_EXPONENT = 650.0


# Overflow and the like can only come from moments that are beyond all use: they end up infinite.
@np.errstate(over="ignore", invalid="ignore")
def log_moments(
    noise: float,
    rate: float,
    deleted: list[int],
    inserted: list[int],
    orders: FloatArray,
    *,
    useless: FloatArray | None = None,
) -> FloatArray:
    """Log moments of one step for all numbers of changes: an array [order, deleted, inserted].

    Guarantee: at least the true value; infinite where no bound could be computed, or where it is certain beforehand
    that every number in `deleted` but zero gives more than `useless` (one limit for each order).
    """
    result = np.full((len(orders), len(deleted), len(inserted)), np.inf)
    usable = np.ones(len(orders), dtype=np.bool_)
    if useless is not None:
        usable = _least(noise, rate, min((d for d in deleted if d), default=0), orders) <= useless
    log_w = log_weights(deleted, rate)
    cuts = {int(i): _cut(noise, rate, log_w, max(inserted), float(orders[i])) for i in np.flatnonzero(usable)}
    step = max(min(noise / 6, noise * noise / 8), 1e-300)
    most_points = min(_MAX_POINTS, _MAX_NUMBERS // (_last_component(max(deleted), rate) + 1))
    spans = {i: (reach + _REACH * noise) / step for i, (reach, _) in cuts.items()}
    points = {i: int(span) + 2 for i, span in spans.items() if span < most_points}
    if points:
        x = -_REACH * noise + step * np.arange(max(points.values()), dtype=np.float64)
        log_p = _log_tilts(x / noise, log_w, noise, last=_last_component(max(deleted), rate))
        log_q = _log_tilts(-x / noise, log_weights(inserted, rate), noise, last=_last_component(max(inserted), rate))
        log_phi = -0.5 * (x / noise) ** 2 + np.log(step / (noise * np.sqrt(2 * np.pi)))
        for i, n in points.items():
            order = float(orders[i])
            moments = _log_inner_products(order * log_p[:, :n], (1 - order) * log_q[:, :n], log_phi[:n])
            moments = np.maximum(moments, 0.0) * (1 + ERROR) + (n + 1024 + 64 * order) * UNIT
            result[i] = moments + order * np.log1p(cuts[i][1][:, None] * np.exp(-moments / order))
    result = np.where(np.isnan(result), np.inf, result)
    # No change, no divergence: exact, and free of the safety margins.
    result[:, np.array(deleted)[:, None] + np.array(inserted) == 0] = 0.0
    return result


def _cut(noise: float, rate: float, log_w: FloatArray, inserted: int, order: float) -> tuple[float, FloatArray]:
    """Cut P where what is beyond is negligible, or else at the last component that is integrated at all.

    Returns:
        How far to integrate for one order; per number of deletions, a bound on what is left out, as a norm.
    """
    last = _last_component(log_w.shape[1] - 1, rate)
    k = np.arange(log_w.shape[1], dtype=np.float64)
    if rate == 1.0:  # Every inserted example is in every batch: Q is one Gaussian at -inserted.
        log_norms = (order - 1) * ((k + inserted) / noise) ** 2 / 2
    else:
        log_norms = (1 - order) / order * inserted * np.log1p(-rate) + (order - 1) * (k / noise) ** 2 / 2
    terms = log_w + log_norms
    largest_tails = np.logaddexp.accumulate(terms[:, last::-1].max(axis=0))[::-1]
    needed = np.flatnonzero(largest_tails > np.log(_NEGLIGIBLE))
    cut = int(needed[-1]) if len(needed) else 0
    reach = order * cut + (order - 1) * inserted * rate + _REACH * noise
    beyond = terms[:, cut + 1 :]
    with np.errstate(over="ignore"):
        remainders = np.exp(np.logaddexp.reduce(beyond, axis=1)) if beyond.shape[1] else np.zeros(len(log_w))
    return reach, remainders


def _last_component(changes: int, rate: float) -> int:
    """The largest number of sampled examples that is integrated."""
    return int(binomial_components(changes, rate, _LEAST_WEIGHT).counts[-1])


def _least(noise: float, rate: float, changes: int, orders: FloatArray) -> FloatArray:
    """A lower bound on the log moment against N(0, sigma^2): that of any single component."""
    k = np.arange(changes + 1, dtype=np.float64)
    log_w = log_binomial(changes, rate)
    return np.array([float(np.max(o * log_w + o * (o - 1) * (k / noise) ** 2 / 2)) for o in orders.tolist()])


def log_weights(changes: list[int], rate: float) -> FloatArray:
    """Log binomial weights: a row for each number of changes, a column for each number of sampled or kept examples."""
    weights = np.full((len(changes), max(changes) + 1), -np.inf)
    for row, number in zip(weights, changes, strict=True):
        row[: number + 1] = log_binomial(number, rate)
    return weights


def _log_tilts(x: FloatArray, rows: FloatArray, noise: float, *, last: int) -> FloatArray:
    """Log of sum_k w_k exp(k x / s - k^2 / (2 s^2)), k <= last, for each row of weights and each x in units of s."""
    k = np.arange(last + 1, dtype=np.float64) / noise
    exponents = np.multiply.outer(k, x) - (0.5 * k * k)[:, None]
    result = np.empty((len(rows), len(x)))
    for row, log_w in zip(result, rows, strict=True):
        # Each row at its own scale: beside the largest terms of other rows, all of its own could underflow.
        used = np.flatnonzero(log_w[: last + 1] > -np.inf)
        terms = exponents[used] + log_w[used, None]
        peak = terms.max(axis=0)
        row[:] = np.log(np.exp(terms - peak).sum(axis=0)) + peak
    return result


def _log_inner_products(left: FloatArray, right: FloatArray, log_measure: FloatArray) -> FloatArray:
    """Log of sum_x exp(left[i, x] + right[j, x] + log_measure[x]) for all i, j; infinite where it would overflow."""
    if left.shape[0] * right.shape[0] <= 4:
        total = left[:, None, :] + right[None, :, :] + log_measure
        peak = total.max(axis=2, keepdims=True)
        return np.log(np.exp(total - peak).sum(axis=2)) + peak[:, :, 0]
    left, right = left + 0.5 * log_measure, right + 0.5 * log_measure
    overflow_left, overflow_right = left.max(axis=1) > _MAX_EXPONENT, right.max(axis=1) > _MAX_EXPONENT
    with np.errstate(divide="ignore", over="ignore"):
        # Not by BLAS: its threads spin, and on a busy machine that costs ten times what they gain.
        products = np.einsum(
            "ix,jx->ij", np.exp(np.minimum(left, _MAX_EXPONENT)), np.exp(np.minimum(right, _MAX_EXPONENT))
        )
        result = np.log(products)
    result[overflow_left, :] = np.inf
    result[:, overflow_right] = np.inf
    return result
