"""How many predictions one poisoning of a few parts can change together, at most.

An attacker spoils up to `touched` parts. What a part can take from the lead of the label over a rival is its damage,
and an input changes only if, for some rival, the damages of the spoiled parts add up to its need, the lead plus one.
Every input has rivals of its own, but the spoiled parts are the same for all of them.

Small cases are decided by trying every set of parts. Otherwise the number is bounded by weak duality: any multipliers
prove some bound. Good ones are found in floating point, and what they prove is computed in whole numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mithridate.certifying.exact import IntArray, chunks
from mithridate.core.collective import MOST_EXAMPLES, MULTIPLIER_UNIT, THRESHOLD_UNIT
from mithridate.errors import ConfigError

FloatArray = npt.NDArray[np.float64]
SingleArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
# The damages of some of the inputs: rivals x inputs x parts.
Damages = Callable[[slice], IntArray]

# As many states are kept at most when every set of parts is tried, and as many pairs of an input and a rival are.
_MOST_STATES, _MOST_PAIRS = 10_000, 100
# Thresholds are chosen anew so often; then multipliers take so many steps, looked at now and then.
_ROUNDS, _STEPS, _LOOKED_AT = 3, 500, 25
# A bound this close to what is reached in fractions is not worth another step.
_CLOSE = 0.05
_LEVELS = 8


@dataclass(frozen=True)
class Bound:
    """A number of inputs, and why no more of them can change.

    Attributes:
        most: the number.
        proof: a multiplier and a threshold for each input; None where every set of parts was tried.
    """

    most: int
    proof: IntArray | None


def most_changed(damages: Damages, needs: IntArray, parts: int, touched: int) -> Bound:
    """An upper bound on how many inputs change together when up to so many parts are spoiled.

    Guarantee: no set of `touched` parts changes more inputs than `most`. The proof bounds their number in whole
    numbers and rounds up, whatever the floating point did. Where there is no proof, `most` is also reached, if damages
    are.

    Assumes: an input changes only if, for some rival, the damages of the spoiled parts add up to its need.

    Args:
        damages: how much each part can take from the leads of some inputs, numbers of 0 or more.
        needs: how much must be taken, inputs x rivals, from 1 on; at least 2^62 in the label's own column.
        parts: their number.
        touched: how many of them are spoiled, 1 or more.

    Raises:
        ConfigError: there are too many inputs for sums of whole numbers in 64 bits.

    References: docs/theory.md, section 10; Levine & Feizi 2021 (arXiv 2006.14768) for the damages.
    """
    if len(needs) > MOST_EXAMPLES:
        raise ConfigError(f"Collective certificates are for up to {MOST_EXAMPLES:,} inputs, got {len(needs):,}.")
    touched = min(touched, parts)
    pieces = [_piece(damages(rows), needs[rows], touched) for rows in chunks(len(needs), parts * needs.shape[1])]
    reachable = np.concatenate([piece.reachable for piece in pieces])
    tried = _tried(pieces, touched) if reachable.any() else 0
    if tried is not None:
        return Bound(tried, None)
    most, found = _dual(np.concatenate([piece.shares for piece in pieces]), touched)
    proof = np.zeros((2, len(needs)), dtype=np.int64)
    proof[:, reachable] = found
    return Bound(most, proof)


# --- which inputs can change, and by which parts ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Piece:
    """Some of the inputs.

    Attributes:
        reachable: which of them some set of parts can change.
        shares: for each of these and each part, at least the part's largest share of a need, in `THRESHOLD_UNIT`.
        pairs: damages of the pairs of an input and a rival that can win it, pairs x parts.
        needs: the need of each pair.
        inputs: the input of each pair, by its place among the reachable ones.
    """

    reachable: BoolArray
    shares: IntArray
    pairs: IntArray
    needs: IntArray
    inputs: IntArray


def _piece(damages: IntArray, needs: IntArray, touched: int) -> _Piece:
    worst = -np.partition(-damages, touched - 1, axis=2)[:, :, :touched].sum(axis=2)
    wins = worst >= needs.T
    reachable = wins.any(axis=0)
    rivals, inputs = np.nonzero(wins)
    shares = np.zeros(damages.shape[1:], dtype=np.int64)
    for rival, won in enumerate(wins):
        taken, need = damages[rival, won], needs[won, rival, None]
        shares[won] = np.maximum(shares[won], -(-taken * THRESHOLD_UNIT // need))
    few = len(rivals) <= _MOST_PAIRS
    places = np.cumsum(reachable) - 1
    return _Piece(
        reachable,
        np.minimum(shares[reachable], THRESHOLD_UNIT),
        damages[rivals, inputs] if few else damages[:0, 0],
        needs[inputs, rivals],
        places[inputs].astype(np.int64),
    )


# --- every set of parts -----------------------------------------------------------------------------------------------


def _tried(pieces: list[_Piece], touched: int) -> int | None:
    """The largest number of inputs that change together, over all sets of parts; None where these are too many.

    Parts are spoiled or spared one after the other. A state is what is left of every need; of the same state that with
    fewest spoiled parts is kept.
    """
    needs = np.concatenate([piece.needs for piece in pieces])
    if len(needs) > _MOST_PAIRS:
        return None
    sizes = np.array([int(piece.reachable.sum()) for piece in pieces])
    firsts = np.cumsum(sizes) - sizes
    inputs = np.concatenate([piece.inputs + first for piece, first in zip(pieces, firsts, strict=True)])
    owners = inputs[:, None] == np.arange(int(sizes.sum()))
    pairs = np.concatenate([piece.pairs for piece in pieces])
    states, spoiled = needs[None, :], np.zeros(1, dtype=np.int64)
    for damage in pairs.T:
        more = spoiled < touched
        after = np.maximum(states[more] - damage, 0)
        # Of an input that changed, no rival matters any more.
        after[((after == 0) @ owners)[:, inputs]] = 0
        states = np.concatenate([states, after])
        spoiled = np.concatenate([spoiled, spoiled[more] + 1])
        order = np.argsort(spoiled, kind="stable")
        # As bytes, which compare faster than rows of numbers; the first of equals has spoiled fewest.
        rows = np.ascontiguousarray(states[order]).view(np.dtype((np.void, states[0].nbytes)))
        first = np.unique(rows.reshape(-1), return_index=True)[1]
        states, spoiled = states[order][first], spoiled[order][first]
        if len(states) > _MOST_STATES:
            return None
    return int(((states == 0) @ owners).sum(axis=1).max())


# --- weak duality -----------------------------------------------------------------------------------------------------


def _dual(shares: IntArray, touched: int) -> tuple[int, IntArray]:
    """The best bound that was found, and the multipliers and thresholds that prove it."""
    inputs, parts = shares.shape
    spoiled = np.full(parts, touched / parts)
    multipliers = np.ones(inputs)
    best, proof = inputs, np.zeros((2, inputs), dtype=np.int64)
    for _ in range(_ROUNDS):
        thresholds = _thresholds(shares, spoiled, touched)
        costs = lifted(shares, thresholds, touched)
        multipliers, spoiled = _saddle((costs / THRESHOLD_UNIT).astype(np.float32), touched, multipliers, spoiled)
        multipliers = np.clip(np.nan_to_num(multipliers), 0, 1)
        whole = np.rint(multipliers * MULTIPLIER_UNIT).astype(np.int64)
        bound = proved(whole, costs, touched)
        if bound < best:
            best, proof = bound, np.stack([whole, thresholds])
    return best, proof


def lifted(shares: IntArray, thresholds: IntArray, touched: int) -> IntArray:
    """Costs of the parts, which add up to one wherever the shares of a set of parts do; all in `THRESHOLD_UNIT`.

    If shares s of m parts add up to 1, those of `max(0, s - t)` add up to 1 - m t, for any t below 1 / m. Rounded up.
    """
    left = THRESHOLD_UNIT - touched * thresholds[:, None]
    above = np.maximum(shares - thresholds[:, None], 0)
    return np.minimum(-(-above * THRESHOLD_UNIT // left), THRESHOLD_UNIT)


def proved(multipliers: IntArray, costs: IntArray, touched: int) -> int:
    """The bound that multipliers from 0 to one prove, in whole numbers.

    With multipliers l, of the changed inputs there are at most the sum over inputs of 1 - l, and the sum over spoiled
    parts of l times cost; the worst parts are those with the largest sums.
    """
    totals = sorted((multipliers @ costs).tolist(), reverse=True)
    unchanged = (MULTIPLIER_UNIT * len(multipliers) - int(multipliers.sum())) * THRESHOLD_UNIT
    return (unchanged + sum(totals[:touched])) // (MULTIPLIER_UNIT * THRESHOLD_UNIT)


def _thresholds(shares: IntArray, spoiled: FloatArray, touched: int) -> IntArray:
    """For each input, that of several thresholds with which these spoiled parts cost least."""
    ordered = np.sort(shares, axis=1)
    places = np.linspace(0, shares.shape[1] - 1, _LEVELS).astype(np.int64)
    best = np.zeros(len(shares), dtype=np.int64)
    least = np.full(len(shares), np.inf)
    for place in places:
        tried = np.where(ordered[:, place] * touched < THRESHOLD_UNIT, ordered[:, place], 0)
        cost = lifted(shares, tried, touched) @ spoiled
        best, least = np.where(cost < least, tried, best), np.minimum(cost, least)
    return best


def _saddle(
    costs: SingleArray, touched: int, multipliers: FloatArray, spoiled: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Multipliers with a small bound, and the fractions of parts that they are good against; see Chambolle, Pock 2011.

    The attacker maximises, over fractions x of parts, the sum over inputs of min(1, cost x). Nothing rests on how well
    this ends.
    """
    inputs, parts = costs.shape
    step = 0.9 / max(_norm(costs), 1e-12)
    balance = np.sqrt(inputs / touched)
    best, least = multipliers, _bound(multipliers, costs, touched)
    ahead, sums = spoiled, [np.zeros(inputs), np.zeros(parts)]
    for number in range(1, _STEPS + 1):
        multipliers = np.clip(multipliers + step * balance * (1 - costs @ ahead.astype(np.float32)), 0, 1)
        pull = multipliers.astype(np.float32) @ costs
        after = _fractions(spoiled + step / balance * pull, touched)
        ahead, spoiled = 2 * after - spoiled, after
        sums = [sums[0] + multipliers, sums[1] + spoiled]
        if number % _LOOKED_AT:
            continue
        mean, spread = sums[0] / _LOOKED_AT, sums[1] / _LOOKED_AT
        for each in (mean, multipliers):
            bound = _bound(each, costs, touched)
            best, least = (each, bound) if bound < least else (best, least)
        reached = float(np.minimum(costs @ spread.astype(np.float32), 1).sum())
        if least - reached < _CLOSE:
            return best, spread
        multipliers, spoiled, ahead, sums = mean, spread, spread, [np.zeros(inputs), np.zeros(parts)]
    return best, spoiled


def _norm(costs: SingleArray) -> float:
    """About the largest singular value."""
    vector = np.ones(costs.shape[1], dtype=np.float32)
    size = 0.0
    for _ in range(10):
        vector = costs.T @ (costs @ vector)
        size = float(np.linalg.norm(vector))
        if size == 0:
            return 0.0
        vector /= size
    return float(np.sqrt(size))


def _bound(multipliers: FloatArray, costs: SingleArray, touched: int) -> float:
    totals = multipliers.astype(np.float32) @ costs
    return float((1 - multipliers).sum() + np.sort(totals)[-touched:].sum(dtype=np.float64))


def _fractions(wanted: FloatArray, touched: int) -> FloatArray:
    """The nearest fractions from 0 to 1 that add up to so many: all lowered by the same number, then cut off.

    How much they add up to is linear between the numbers at which one of them is cut off.
    """
    ordered = np.sort(wanted)
    sums = np.append(np.cumsum(ordered[::-1])[::-1], 0.0)

    def excess(lowered: FloatArray) -> FloatArray:
        first = np.searchsorted(ordered, lowered)
        return sums[first] - (len(ordered) - first) * lowered

    corners = np.sort(np.concatenate([ordered - 1, ordered]))[::-1]
    lowered = np.interp(touched, excess(corners) - excess(corners + 1), corners)
    return np.clip(wanted - lowered, 0, 1)
