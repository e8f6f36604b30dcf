"""Inputs that move: which examples may come first for an input whose features may be others, within a distance.

An input is compared by its row of features, scaled to norm 1 and rounded to whole numbers (see `_whole_rows`). Let Q be
the rounded row of the input as it was given, Q' that of the input as it is asked, and X_i that of example i. What is
assumed is that the rows *before* rounding are at most `change` apart, in Euclidean length; the row of the input that
moved need not be that of any real input.

*How far a product moves.* Let c be the number that a feature of 1 becomes (`scale_of`), and take any number t. The
products with Q' are, apart from one number that is the same for all examples, <Q' - Q, tQ>,

    s_i + <Q' - Q, X_i - t Q>,    s_i = <Q, X_i>.

Only their order counts, so this number may be left out. Rounding moves every entry by at most 1/2, and by 2^-24 of
itself before that. With v = X_i - tQ, which has at most m entries that are not 0,

    |<Q' - Q, v>| <= c change |v| + |v|_1 + 2^-24 c (2 + 2^-19 + change) |v| <= B |v|,
    B = c change (1 + 2^-24) + sqrt(m) + 2^-10,

since c <= 2^12. With R the norm of the longest row of D, |v|^2 = |X_i|^2 - 2 t s_i + t^2 |Q|^2 is at most
w(s_i)^2 = R^2 + t^2 |Q|^2 - 2 t s_i. So, up to that number, the product with Q' lies in [s_i - B w(s_i),
s_i + B w(s_i)]. Every t gives valid bounds. The one here, s_k / |Q|^2 from 0 to 1 with s_k the k-th product, makes w
smallest there: for rows of norm c at an angle a to the input, w is c sin a, where it is c without the common number.

The lower end falls with s_i. The upper end need not: where s_i is large, w may shrink faster than it. It is replaced by
its largest value at s_i or less, which makes the interval larger; so no example behind the last that is kept reaches
higher than that one.

*The relaxation.* From here on, every product may lie anywhere in its interval, whatever the others do, and those that
are equal may come in any order. Real inputs move all products together, so that this is more than any input can do.

References: Wang, Jha, Chaudhuri 2018 (arXiv 1706.03922) on how robust nearest neighbours are to inputs that move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from mithridate._computer import in_shares, on_cores
from mithridate._io.scratch import scratch
from mithridate.defences._whole_rows import (
    LARGEST_PRODUCT,
    IntArray,
    RowBlock,
    Rows,
    block_of,
    longest,
    products,
    turned,
)

FloatArray = npt.NDArray[np.float64]

# The names of the evidence: labels of the nearest examples, what their products lack to the largest one, and, of every
# input, |Q|^2, R^2, c and m. Of kernels: by label, how many examples have products in each bin.
ORDER, LACKS, LENGTHS, BINS = "moved_order", "moved_lacks", "moved_lengths", "moved_bins"
EVIDENCE = (ORDER, LACKS, LENGTHS)
OF_KERNELS = (BINS, LENGTHS)
# So many times as many examples as vote are kept, and so many at least: those behind them are taken for the worst.
_TIMES, _LEAST_KEPT = 4, 1 << 12
# Rows of norm 1 are 2 apart at most.
_FARTHEST = 4.0
# More than what double precision rounds off a sum of squares of rows, and off what follows from it.
_MARGIN = 2.0**-10


def kept_of(voters: int) -> int:
    """How many of the nearest examples are kept, where so many vote; all, where there are fewer.

    An input that moves may come near to many examples, however few vote: of the first 1,000 digits of the test set of
    MNIST, 100 of 60,000 examples voting, 55% are correct and certified within 0.1 by 4,000 that are kept, 0.1% by 400.
    """
    return max(_TIMES * voters, _LEAST_KEPT)


# --- evidence ---------------------------------------------------------------------------------------------------------


def moving_evidence(
    view: Rows, rows: Rows, nearest: IntArray, labels: npt.NDArray[Any], scale: int
) -> dict[str, npt.NDArray[Any]]:
    """What certificates of inputs that move rest on.

    Args:
        view: rows of the inputs.
        rows: of all examples.
        nearest: which of them are the nearest of every input, in order.
        labels: of all examples, in a small type.
        scale: what a feature of 1 became.
    """
    lacks = scratch(nearest.shape, np.uint32)

    def multiply(share: slice) -> None:
        for at in range(share.start, share.stop):
            dots = products(block_of(view, slice(at, at + 1)), turned(block_of(rows, nearest[at])))
            lacks[at] = LARGEST_PRODUCT - dots[0].astype(np.int64)

    list(on_cores(multiply, in_shares(len(nearest), 1)))
    return {ORDER: labels[nearest], LACKS: lacks, LENGTHS: lengths_of(view, rows, scale)}


def lengths_of(view: Rows, rows: Rows, scale: int) -> IntArray:
    """Of every input the squares of the norms of its row and of the longest example, the scale, and m."""
    block = block_of(view, slice(0, view.shape[0]))
    filled = np.full(view.shape[0], rows.shape[1], dtype=np.int64)
    if isinstance(rows, csr_array) and isinstance(block, csr_array):
        # A column where both are 0 adds nothing, however it is rounded.
        filled = np.minimum(filled, np.diff(block.indptr) + int(np.diff(rows.indptr).max()))
    constants = np.array([longest(rows), scale])
    return np.column_stack([_squares(block), np.broadcast_to(constants, (len(filled), 2)), filled])


def _squares(block: RowBlock) -> IntArray:
    if isinstance(block, csr_array):
        return block.astype(np.float64).power(2).sum(axis=1).astype(np.int64)
    return np.einsum("ij,ij->i", block, block, dtype=np.float64).astype(np.int64)


# --- intervals --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Intervals:
    """Where the products of the kept examples may lie, for one input; up to a number that all of them share.

    Attributes:
        low: the lower ends, falling.
        high: the upper ends, falling; the last one is also that of every example that is not kept.
    """

    low: FloatArray
    high: FloatArray

    @classmethod
    def of(cls, lacks: IntArray, lengths: IntArray, voters: int, change: float) -> Intervals:
        """The intervals of one input; see the module.

        Args:
            lacks: what the products lack to the largest one, the nearest first.
            lengths: |Q|^2, R^2, c and m.
            voters: k, whose product says which t is taken.
            change: how far the row of the input may be from what it was, above 0.
        """
        if change >= _FARTHEST:  # anything can come first
            return cls(np.full(len(lacks), -np.inf), np.full(len(lacks), np.inf))
        near = LARGEST_PRODUCT - lacks.astype(np.float64)
        own, most, scale, filled = lengths.tolist()
        toward = min(max(float(near[min(voters, len(near)) - 1]) / own, 0.0), 1.0) if own else 0.0
        bound = _bound(change, scale, filled)
        total = most + toward**2 * own + _MARGIN

        def moved(dots: FloatArray) -> FloatArray:
            """B w(s), rounded up."""
            return bound * np.sqrt(np.maximum(total - 2 * toward * dots, _MARGIN)) * (1 + 2.0**-40) + _MARGIN

        # Where the upper end turns: w(s) = B t.
        turn = (total - (bound * toward) ** 2) / (2 * toward) if toward > 0 else np.inf
        reached = np.minimum(near, turn)
        return cls(near - moved(near), reached + moved(reached))


def _bound(change: float, scale: float, filled: float) -> float:
    """B, rounded up: how far a product moves at most, by the length of the row that it is with; see the module."""
    return (scale * change * (1 + 2.0**-24) + filled**0.5 + 2.0**-10) * (1 + 2.0**-40)


def farthest_products(lengths: IntArray, change: float) -> FloatArray:
    """How far any product with each input moves at most, with all that products have in common: B R, rounded up.

    Args:
        lengths: of every input |Q|^2, R^2, c and m.
        change: how far the row of the input may be from what it was, above 0.
    """
    far = min(change, _FARTHEST)  # there every product can be any
    return np.array(
        [_bound(far, scale, filled) * most**0.5 * (1 + 2.0**-40) for _, most, scale, filled in lengths.tolist()]
    )


# --- sets that may come first -----------------------------------------------------------------------------------------


class FirstSets:
    """The sets of examples of D that may be the first m of an input that moves.

    In the relaxation (see the module), a set S may be the first |S| of D exactly if there is a number z with

        {i: low_i > z}  inside  S  inside  {i: high_i >= z}.

    For if there is, put the members of S at their upper and all others at their lower ends; and if S comes first, take
    for z the largest lower end of the others. So z need only be one of the lower ends, or below all. As the ends fall
    with the rank, the first p(z) must be in S and the first q(z) may be, and p and q grow together as z falls.

    *Numbers of two labels.* Among the sets of size m with some z, the fewest of label a and, at the same time, the most
    of label c (whatever is left to choose is first of c, then of others, and of a at last) are

        max(A(p), m - q + A(q))  and  min(C(q), C(p) + m - p),

    with the numbers A(m), C(m) of both labels among the first m by rank. Let

        F(m) = min over z of  w_a max(A(p), m - q + A(q)) - w_c min(C(q), C(p) + m - p).

    Guarantee: w_a A(S) - w_c C(S) >= F(m) for all S of size m that may come first, and some S has this value; m is at
    most the number of those that are kept. Examples behind these may be of any label, as suits the attacker.

    Proof. Where p(z) <= m <= q(z) this has just been said. F(m) also looks at other z. If S of size m may come first,
    so may S without its member of the smallest upper end (with the larger one of z and the lower end of this member for
    z), and S with the other one of the largest lower end (with the smaller one of z and the upper end of this one). So
    the least value v(m) over all S obeys v(m) <= v(m + 1) + w_c and v(m + 1) <= v(m) + w_a. Where m > q, z adds to the
    minimum the value of the first q and w_a for each that is missing, no less than v(q) + (m - q) w_a >= v(m); where
    m < p, the value of the first p and w_c for each that is too many, no less than v(p) + (p - m) w_c >= v(m). ∎

    Both terms of F are the larger one of one number that grows as z falls and one that shrinks. While both shrink, the
    last z is the best, while both grow, the first; between, what is to be minimised does not depend on m but for a
    common number, and a table of minima over ranges has it.
    """

    def __init__(self, order: IntArray, within: Intervals, classes: int, unseen: int) -> None:
        kept = self.kept = len(order)
        seen = np.zeros((classes, kept + 1), dtype=np.int64)
        np.cumsum(order == np.arange(classes)[:, None], axis=1, out=seen[:, 1:])
        # By rank, for every z that is a lower end; at last the first of all that are kept, and no others.
        sure = np.append(np.searchsorted(-within.low, -within.low, side="left"), kept)
        may = np.append(np.searchsorted(-within.high, -within.low, side="right"), kept)
        # Those that are not kept reach as high as the last one that is.
        behind = np.append(np.where(within.low <= within.high[-1], unseen, 0), unseen)
        self._own_least, self._rival_most = seen[:, sure], seen[:, may] + behind
        # All that must be in S, or may be, and are of another label.
        self._others_least, self._others_most = sure - self._own_least, may + behind - seen[:, may]

    def least(self, own: int, rival: int, weights: tuple[int, int], sizes: IntArray) -> IntArray:
        """F(m) for two labels and what a vote for each of them counts, for some m."""
        mine, theirs = weights
        fewest, most = self._own_least[own], self._rival_most[rival]
        other_fewest, other_most = self._others_least[rival], self._others_most[own]
        # From here on those of `own` grow in number as z falls, and those of `rival` shrink.
        grows = np.searchsorted(fewest + other_most, sizes)
        shrinks = np.searchsorted(other_fewest + most, sizes)
        first, last = np.minimum(grows, shrinks), np.maximum(grows, shrinks)
        before = np.maximum(first - 1, 0)
        at_ends = np.minimum(
            mine * fewest[last] - theirs * (sizes - other_fewest[last]),
            np.where(first > 0, mine * (sizes - other_most[before]) - theirs * most[before], np.iinfo(np.int64).max),
        )
        between = np.where(
            grows < shrinks,
            _least_between(mine * fewest - theirs * most, first, last),
            _least_between(theirs * other_fewest - mine * other_most, first, last) + (mine - theirs) * sizes,
        )
        return np.where(first < last, np.minimum(at_ends, between), at_ends)


def _least_between(values: IntArray, first: IntArray, last: IntArray) -> IntArray:
    """The least value from every first place to before the last one; anything where there is none."""
    length = np.maximum(last - first, 1)
    first = np.minimum(first, len(values) - 1)
    result, level, size = values[first], values, 1
    while size <= length.max():
        # `level` has the least of as many as `size` from every place on.
        chosen = (length >= size) & (length < 2 * size)
        start = first[chosen]
        result[chosen] = np.minimum(level[start], level[start + length[chosen] - size])
        if len(level) <= size:
            break
        level, size = np.minimum(level[:-size], level[size:]), 2 * size
    return result
