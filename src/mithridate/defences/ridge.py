"""Ridge regression: a linear classifier by regularised least squares, of which no example can move the answer far."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from mithridate import _validate
from mithridate._text import shown
from mithridate.certifying.exact import IntArray, evidence_of, in_units, leads, mechanism_of, winners
from mithridate.core.mechanism import SEARCH_LIMIT, Deterministic, Threat, Voters
from mithridate.core.rule import Decision, ExactRule, Rule
from mithridate.core.units import EXAMPLES, UnitWords
from mithridate.core.votes import Votes
from mithridate.data.columns import Column, highest
from mithridate.defences._near import ExamplesDefence
from mithridate.defences._nearness import StoredExamples, chunks_of, votes_of
from mithridate.defences._places import HERE, Comparing
from mithridate.defences._whole_rows import LARGEST_NORM
from mithridate.defences.base import option
from mithridate.defences.registry import register
from mithridate.errors import ConfigError
from mithridate.features import UnitNorm
from mithridate.training.order import Facts, Progress

FloatArray = npt.NDArray[np.float64]
# The largest product of each vector with the row of any example that there could be.
Highest = Callable[[FloatArray], FloatArray]

# What a score of 1 is in the counts of votes, where all labels weigh 1.
ONE = 1 << 30
# Numbers of evidence beyond are not kept: no change is shown to be withstood then.
_MOST = 1 << 52
_MOST_COLUMNS = 1 << 13
# Entries of the largest working arrays, 8 bytes each.
_WORKING = 1 << 24
# The two free constants of the bound: theta by what suits copies of the input, and psi by theta.
_THETAS = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
_PSIS = (0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0)
# By how much the cost of a change is raised where deletions cost more than insertions.
_RAISED = (1.0, 1.02, 1.05, 1.1, 1.2, 1.35, 1.5, 2.0, 3.0)
# How much of a lead is set aside for deletions.
_SET_ASIDE = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3)
# From one number of deletions that is looked at to the next.
_GROWTH = 1.2
# Deletions are followed to where the examples that matter most have this much leverage together, of at most 1.
_MOST_LEVERAGE = 0.9
# Of more examples than this, not all pairs are compared to tell how much leverage a few have together.
_MOST_COMPARED = 20_000
# A bias beyond leaves nothing of a row but itself.
_LARGEST_BIAS = 1e6
# A linear model of more than this relative error is refused.
_LARGEST_ERROR = 1e-4
_UNIT_ROUNDOFF = 2.0**-53


@dataclass(frozen=True)
class LeastSquares(Deterministic):
    """One linear model for each label, fitted to 1 on examples of the label and to 0 on others, by ridge regression.

    The score of a label on an input is what its model says there; `Votes.counts` holds the scores above the smallest
    one, in units of 1 / `one`.

    Args:
        one: what a score of 1 is in the counts, at least 1.
    """

    type = "least-squares"
    rule = "ridge"
    counts_voters = False
    words = Voters(
        "",
        "training examples, each by its weight in the fit",
        "too few examples bear on this input. Use a larger penalty, so that each example matters less, or features "
        "that bring examples of a class closer together.",
        share="score of the label",
    )

    one: int

    def __post_init__(self) -> None:
        _validate.positive_integer(one=self.one)
        object.__setattr__(self, "one", int(self.one))

    def in_words(self, counted: UnitWords = EXAMPLES) -> str:
        """What it does with the training data."""
        return f"a linear model of each label is fitted to all {counted.many_in_full} by ridge regression"


# --- rule -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RidgeRule(ExactRule):
    """The label with the largest score wins; so many changes can take only so much from its lead.

    Reads the evidence `offset`, `slope` and `limit`, examples x classes: any r <= `limit` insertions and deletions
    together take at most `offset` + r `slope` from the lead over that rival, in units of the counts, with the rounding
    of the scores before and after.

    Guarantee: the prediction stays the same whatever `radius` units of the threat change.

    Assumes: nothing beyond `LeastSquares`; that the evidence is true is what `ridge_votes` guarantees.
    """

    name = "ridge"
    title = "ridge regression"

    def reads(self, threat: Threat) -> tuple[str, ...]:
        """What changes cost, whatever the threat."""
        return ("offset", "slope", "limit")

    def decide(self, votes: Votes, threat: Threat) -> Decision:
        """The prediction on every example, and its radius."""
        mechanism_of(votes, LeastSquares, self)
        label = winners(votes.counts)
        lead = leads(votes.counts, label)
        offset, slope, limit = (
            evidence_of(votes, name, self, (votes.classes,)).astype(np.int64) for name in self.reads(threat)
        )
        # The lead of a rival must stay at 0 or above.
        changes = np.where(lead < offset, 0, np.minimum(limit, (lead - offset) // np.maximum(slope, 1)))
        np.put_along_axis(changes, label[:, None], SEARCH_LIMIT, axis=1)
        return Decision(label, in_units(changes.min(axis=1), threat))


# --- the fit --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Fit:
    """Linear models of all labels, and what a change of the examples can do to them.

    With rows z of norm at most 1, penalty p and A = sum of z z' + p I, the model of label l is w_l A^-1 (sum of the z
    of its examples), where w_l is the class weight.

    Attributes:
        rows: of the examples.
        labels: of the examples.
        weights: of the labels.
        penalty: p.
        factor: A, as Cholesky's method takes it apart.
        models: one column for each label.
    """

    rows: FloatArray
    labels: IntArray
    weights: FloatArray
    penalty: float
    factor: Any
    models: FloatArray

    @classmethod
    def of(cls, whole_rows: npt.NDArray[Any], labels: IntArray, weights: FloatArray, penalty: float) -> _Fit:
        """Fit to rows of whole numbers of norm at most `LARGEST_NORM`."""
        # Division by a power of two is exact; so are sums of so few products of 24 bits each, in any order.
        rows = whole_rows.astype(np.float64) / LARGEST_NORM
        columns = rows.shape[1]
        gram = rows.T @ rows
        gram[np.diag_indices(columns)] += penalty
        factor = cho_factor(gram)
        sums = np.stack([rows[labels == label].sum(axis=0) for label in range(len(weights))], axis=1)
        return cls(rows, labels, weights, penalty, factor, cho_solve(factor, sums) * weights)

    def norms(self, *labels: int) -> float:
        """Of the models of some labels, together."""
        return float(np.linalg.norm(self.models[:, list(labels)], axis=0).sum())

    def solved(self, rows: FloatArray) -> FloatArray:
        """A^-1 times each row."""
        return np.ascontiguousarray(cho_solve(self.factor, rows.T).T)

    @cached_property
    def error(self) -> float:
        """Relative error of whatever was solved for, here or after up to as many insertions as there are examples.

        Solving by Cholesky's method with d columns is exact for a matrix A + E with |E| at most 4 d (3 d + 1) u |A|,
        with u the unit roundoff (Higham 2002, theorem 10.4), so solutions are off by that times the condition number,
        which is at most 1 + n / p. So is h = x A^-1 x: with a = A^-1 x, it is off by a E a, and is a A a itself. Four
        times as much covers sums and products afterwards.
        """
        columns = self.rows.shape[1]
        condition = 1 + 2 * len(self.rows) / self.penalty
        return 64 * (columns + 1) ** 2 * _UNIT_ROUNDOFF * condition

    @cached_property
    def slack(self) -> float:
        """What rounding may take from a lead, of two scores, before and after the change.

        A model has a norm of at most w sqrt(n) / (2 sqrt(p)).
        """
        norm = self.weights.max() * math.sqrt(2 * len(self.rows) / self.penalty) / 2
        return 4 * self.error * norm

    def deletions(self, highest_product: Highest) -> _Deletions:
        """How far deletions are followed, and what they change at most."""
        solved = self.solved(self.rows)
        leverage = np.sort(np.einsum("ij,ij->i", solved, self.rows))[::-1]
        together = np.cumsum(leverage) * (1 + self.error)
        if len(self.rows) <= _MOST_COMPARED:
            most = min(len(together), 4 * int(np.searchsorted(together, _MOST_LEVERAGE, side="right")) + 1)
            together = np.minimum(together[:most], self._row_sums(solved, most))
        ranges = _Deletions.of(together)
        return replace(ranges, reach=ranges.largest_sums(self._reach(solved, highest_product)[None, :] ** 2)[0])

    def _row_sums(self, solved: FloatArray, most: int) -> FloatArray:
        """The largest sums of 1, ..., `most` entries of a row of the z A^-1 z', in size: no eigenvalue is larger."""
        largest = np.zeros(most)
        size = max(1, _WORKING // len(self.rows))
        for start in range(0, len(self.rows), size):
            sizes = np.abs(solved[start : start + size] @ self.rows.T)
            top = np.sort(np.partition(sizes, len(self.rows) - most, axis=1)[:, -most:], axis=1)[:, ::-1]
            largest = np.maximum(largest, np.cumsum(top, axis=1).max(axis=0))
        return largest * (1 + self.error) + self.error / self.penalty * np.arange(1, most + 1)

    def _reach(self, solved: FloatArray, highest_product: Highest) -> FloatArray:
        """The largest |z A^-1 z'| of each example with any that there could be."""
        size = max(1, _WORKING // solved.shape[1])
        parts = [solved[start : start + size] for start in range(0, len(solved), size)]
        found = [np.maximum(highest_product(part), highest_product(-part)) for part in parts]
        return np.concatenate(found) + self.error / self.penalty


@dataclass(frozen=True, eq=False)
class _Deletions:
    """Numbers of deletions in ranges, first to last; a range is judged by the worst of it.

    Attributes:
        first: the smallest number of each range; the first range is 1 alone.
        last: the largest.
        leverage: the largest eigenvalue of the z A^-1 z' of so many examples, or more.
        reach: the largest sum of the squares of so many of the largest |z A^-1 z'| with any z'.
    """

    first: IntArray
    last: IntArray
    leverage: FloatArray
    reach: FloatArray

    @classmethod
    def of(cls, together: FloatArray) -> _Deletions:
        """Ranges up to where examples have too much leverage."""
        most = int(np.searchsorted(together, _MOST_LEVERAGE, side="right"))
        ends: list[int] = []
        while most and (not ends or ends[-1] < most):
            ends.append(min(most, max(1, 1 + ends[-1], int(ends[-1] * _GROWTH)) if ends else 1))
        last = np.array(ends, dtype=np.int64)
        first = np.concatenate([[1], last[:-1] + 1])[: len(last)].astype(np.int64)
        return cls(first, last, together[last - 1], np.zeros(len(last)))

    @property
    def most(self) -> int:
        """The largest number of deletions that is followed."""
        return int(self.last[-1]) if len(self.last) else 0

    def largest_sums(self, values: FloatArray) -> FloatArray:
        """The largest sum of as many values of a row as each range has at most, rows x ranges; negative ones as 0."""
        if not self.most:
            return np.zeros((len(values), 0))
        top = np.partition(values, values.shape[1] - self.most, axis=1)[:, -self.most :]
        top = np.maximum(np.sort(top, axis=1)[:, ::-1], 0.0)
        return np.cumsum(top, axis=1)[:, self.last - 1]


def _highest_of(examples: StoredExamples) -> Highest:
    """The largest product of vectors with the row of any example, by what is declared of the data."""
    columns, encoder = examples.columns, examples.encoder
    if columns is None or not isinstance(encoder, UnitNorm) or (encoder.center, encoder.scale) != (0.0, 1.0):
        return _norms
    if encoder.bias > _LARGEST_BIAS:
        return _norms
    least = sum(column.least_square for column in columns) + encoder.bias**2
    return _HighestOfTable(columns, encoder.bias, math.sqrt(least) * (1 - 1e-6)) if least > 0 else _norms


def _norms(vectors: FloatArray) -> FloatArray:
    return np.linalg.norm(vectors, axis=1)


@dataclass(frozen=True)
class _HighestOfTable:
    """The same for rows of a table: the largest of every column, divided by the smallest norm that a row can have.

    Rows were scaled to norm 1, multiplied by less than `LARGEST_NORM` and rounded to whole numbers, which changes every
    number by at most half of one; `least_norm` and the last term allow for more than that.
    """

    columns: tuple[Column, ...]
    bias: float
    least_norm: float

    def __call__(self, vectors: FloatArray) -> FloatArray:
        if self.bias:
            found = highest(vectors[:, :-1], self.columns) + self.bias * vectors[:, -1]
        else:
            found = highest(vectors, self.columns)
        rounding = 0.51 / LARGEST_NORM * np.abs(vectors).sum(axis=1)
        norms = np.linalg.norm(vectors, axis=1)
        return np.minimum(np.maximum(found, 0.0) / self.least_norm * (1 + 1e-6) + rounding, norms)


# --- what changes cost ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Costs:
    """Evidence of some inputs against one rival: see `RidgeRule`."""

    offset: FloatArray
    slope: FloatArray
    limit: IntArray


def _costs(fit: _Fit, inputs: _Seen, deleted: _Deletions, rival: int, label: int, highest_product: Highest) -> _Costs:
    """What changes can take from the lead of `label` over `rival` on inputs that all have that label.

    Guarantee: with `offset`, `slope` and `limit` of an input, any d deletions and i insertions with d + i <= `limit`
    take at most `offset` + (d + i) `slope` from the lead. docs/theory.md has the proof; in short, with
    f = D x the lead, D the difference of the two models, a = A^-1 x, h = a x, t(z) the difference of the targets of an
    example, G the matrix of the z A^-1 z' of the changed examples:

    - i insertions take u' (I + G)^-1 v, where u = a z and v = D z - t(z) for each of them; for all theta, psi that is
      at most i Q^2 + h (theta - psi)^2 / 4 with Q the largest |psi a z + (D z - t) / theta| / 2 of any z and t;
    - d deletions take -u' (I - G)^-1 v, at most S + g / (1 - g) sqrt(U V) with S, U and V the d largest -u v, u^2 and
      v^2 and g the largest eigenvalue of G, which is at most the sum of its diagonal and the largest sum of a row;
      after them h is at most h / (1 - g), and Q at most Q + sqrt(K W) / (1 - g) / 2, with K and W the d largest squares
      of |z A^-1 z'| with any z', and of psi u + v / theta.
    """
    bound = _insertions(fit, inputs, rival, label, highest_product)
    difference = fit.models[:, label] - fit.models[:, rival]
    target = fit.weights[label] * (fit.labels == label) - fit.weights[rival] * (fit.labels == rival)
    residual = target - fit.rows @ difference
    rest = 1 - deleted.leverage
    squares = deleted.largest_sums(residual[None, :] ** 2)
    # What was computed may be off by so much each; sums of products of two, by the inequality of Cauchy and Schwarz.
    off, roots = np.sqrt(deleted.last), (np.sqrt(inputs.squares), np.sqrt(squares))
    errors = fit.error * np.linalg.norm(inputs.solved, axis=1)[:, None], fit.error * fit.norms(label, rival)
    roots = roots[0] + off * errors[0], roots[1] + off * errors[1]
    taken = deleted.largest_sums(inputs.products * residual) + off * (errors[0] * roots[1] + errors[1] * roots[0])
    taken += deleted.leverage / rest * roots[0] * roots[1]
    psi, theta = bound.psi[:, None], bound.theta[:, None]
    moved = deleted.largest_sums((psi * inputs.products - residual / theta) ** 2)
    longer = np.sqrt(moved) + off * (psi * errors[0] + errors[1] / theta)
    widest = bound.widest[:, None] + np.sqrt(deleted.reach) * longer / rest / 2
    return _raised(deleted, inputs.leads(label, rival), bound, taken + bound.constant[:, None] / rest, widest**2)


def _raised(deleted: _Deletions, lead: FloatArray, bound: _Insertions, taken: FloatArray, each: FloatArray) -> _Costs:
    """The cost of an insertion, raised to cover deletions, too: the raise with which a prediction withstands most.

    Args:
        deleted: the numbers of deletions.
        lead: of the inputs.
        bound: what insertions cost without deletions.
        taken: what deletions take, and the constant of insertions after them.
        each: what an insertion takes after them.
    """
    best, reached = _Costs(bound.constant, bound.widest**2, np.zeros(len(lead), dtype=np.int64)), np.zeros(len(lead))
    for share, factor in itertools.product(_SET_ASIDE, _RAISED):
        offset = bound.constant + share * np.maximum(lead - bound.constant, 0)
        slope = factor * bound.widest**2
        limit = _dominated(deleted, taken, each, offset[:, None], slope[:, None])
        reach = np.minimum(limit, np.maximum(lead - offset, 0) // slope)
        better = reach > reached
        pairs = (offset, best.offset), (slope, best.slope), (limit, best.limit)
        best = _Costs(*[np.where(better, *pair) for pair in pairs])
        reached = np.maximum(reached, reach)
    return best


def _dominated(
    deleted: _Deletions, taken: FloatArray, each: FloatArray, offset: FloatArray, slope: FloatArray
) -> IntArray:
    """The most changes of which no mix of deletions and insertions takes more than `offset` + changes x `slope`.

    With d deletions of a range and r changes, `taken` + (r - d) `each` is at most its value with the first d of the
    range. That is linear in r: it is at most the line from r = d on until they meet, if it is so at d.
    """
    spare = offset + slope * deleted.first - taken
    faster = np.maximum(each - slope, 0.0)
    more = np.full(spare.shape, math.inf)
    np.divide(spare * (1 - 1e-9), faster, out=more, where=faster > 0)
    ends = np.where(spare >= 0, deleted.first + np.floor(more), deleted.first - 1)
    return np.minimum(ends.min(axis=1, initial=math.inf), deleted.most).astype(np.int64)


@dataclass(frozen=True, eq=False)
class _Insertions:
    """i insertions take at most i `widest`^2 + `constant`."""

    widest: FloatArray
    constant: FloatArray
    theta: FloatArray
    psi: FloatArray


def _insertions(fit: _Fit, inputs: _Seen, rival: int, label: int, highest_product: Highest) -> _Insertions:
    """The bound of `_costs`, with those constants for each input that let it reach farthest."""
    difference = fit.models[:, label] - fit.models[:, rival]
    own, other = fit.weights[label], fit.weights[rival]
    lead = inputs.leads(label, rival)
    usual = np.sqrt((other + np.maximum(lead, 0) / 2) / inputs.leverage)
    shares = np.array(list(itertools.product(_THETAS, _PSIS)))
    theta = shares[:, :1] * usual
    psi = shares[:, 1:] * theta
    vectors = psi[:, :, None] * inputs.solved + difference / theta[:, :, None]
    flat = vectors.reshape(-1, len(difference))
    # Examples of the rival have the target -other, those of the label the target own, the rest 0.
    above = highest_product(flat).reshape(theta.shape) + other / theta
    below = highest_product(-flat).reshape(theta.shape) + own / theta
    rounding = psi * np.linalg.norm(inputs.solved, axis=1) + fit.norms(label, rival) / theta
    widest = (np.maximum(above, below) + 4 * fit.error * rounding) / 2
    constant = inputs.leverage * (theta - psi) ** 2 / 4 * (1 + 4 * fit.error)
    best = ((lead - constant) / widest**2).argmax(axis=0), np.arange(len(lead))
    return _Insertions(widest[best], constant[best], theta[best], psi[best])


@dataclass(frozen=True, eq=False)
class _Seen:
    """Inputs, and what a fit makes of them.

    Attributes:
        scores: of all labels.
        solved: A^-1 x.
        leverage: x A^-1 x.
        products: x A^-1 z for every example z.
        squares: the largest sums of squares of products, by ranges of deletions.
    """

    scores: FloatArray
    solved: FloatArray
    leverage: FloatArray
    products: FloatArray
    squares: FloatArray

    @classmethod
    def of(cls, fit: _Fit, rows: FloatArray, deleted: _Deletions) -> _Seen:
        solved = fit.solved(rows)
        # An input without features is treated as if it were a very short one.
        leverage = np.maximum(np.einsum("ij,ij->i", solved, rows), 2.0**-40) * (1 + fit.error)
        products = solved @ fit.rows.T
        return cls(rows @ fit.models, solved, leverage, products, deleted.largest_sums(products**2))

    def take(self, which: IntArray) -> _Seen:
        """Some of the inputs."""
        return _Seen(*[values[which] for values in vars(self).values()])

    def leads(self, label: int, rival: int) -> FloatArray:
        """Of a label over a rival."""
        return self.scores[:, label] - self.scores[:, rival]


# --- votes ----------------------------------------------------------------------------------------------------------


def ridge_votes(
    examples: StoredExamples,
    test_set: Any,
    *,
    penalty: float,
    class_weights: tuple[int, ...] | None = None,
    progress: Progress | None = None,
) -> Votes:
    """Scores of labels by ridge regression on the examples, and what changes of the examples can do to them.

    Guarantee: `counts` is a function of the examples and the input up to rounding, which the evidence covers; for every
    input and rival, any r <= `limit` insertions and deletions of examples take at most `offset` + r `slope` from the
    difference of the counts.

    Assumes: the features were fixed before anyone looked at the training set, and what `votes.assumptions` lists.

    Args:
        examples: all of them, with rows of norm at most 1.
        test_set: inputs to vote on, or a pair with their true labels.
        penalty: of the squared norm of a model, above 0: the larger, the less a single example matters.
        class_weights: by which scores are multiplied.
        progress: called with the number of inputs that are done and their total.

    Raises:
        ConfigError: an argument or the data is not what it should be.
    """
    _check_columns(examples)
    inputs = examples.asked(test_set, mirrored=False)
    weights = np.ones(examples.classes) if class_weights is None else np.array(class_weights, dtype=np.float64)
    _validate.whole_weights(examples.classes, class_weights=[int(each) for each in weights])
    fit = _Fit.of(np.asarray(examples.rows), examples.labels, weights, penalty)
    if fit.error > _LARGEST_ERROR:
        raise ConfigError(
            f"A penalty of {penalty:g} is too small for {len(examples.labels):,} examples of {fit.rows.shape[1]:,} "
            "columns: rounding would decide. Use a larger one, or fewer columns."
        )
    total, classes = len(inputs), examples.classes
    # Counts must stay whole numbers that double precision holds, whatever the weights.
    one = max(1, ONE >> int(weights.max()).bit_length() - 1)
    counts = np.zeros((total, classes), dtype=np.int64)
    evidence = {name: np.zeros((total, classes), dtype=np.int64) for name in ("offset", "slope", "limit")}
    highest_product = _highest_of(examples)
    deleted = fit.deletions(highest_product)
    # An input has a number for every example, and several vectors of as many columns as there are.
    of_input = max(len(examples.labels), len(_THETAS) * len(_PSIS) * fit.rows.shape[1])
    for part in chunks_of(total, max(1, min(256, _WORKING // of_input)), progress):
        (rows,) = inputs.part(part)
        seen = _Seen.of(fit, np.asarray(rows, dtype=np.float64) / LARGEST_NORM, deleted)
        counts[part] = np.rint((seen.scores - seen.scores.min(axis=1, keepdims=True)) * one)
        for which, rival, costs in _all_costs(fit, seen, deleted, winners(counts[part]), highest_product):
            at = part.start + which
            offset, slope = _in_counts(costs.offset + fit.slack, one) + 4, _in_counts(costs.slope, one)
            is_kept = (offset < _MOST) & (slope < _MOST)
            for name, values in (("offset", offset), ("slope", slope), ("limit", costs.limit)):
                evidence[name][at, rival] = np.where(is_kept, values, 0)
    recipe = {"method": "ridge", **examples.recipe(mirrored=False), "penalty": penalty}
    if class_weights is not None:
        recipe["class_weights"] = list(class_weights)
        examples = replace(examples, statements=(*examples.statements, _about_weights(class_weights)))
    return votes_of(examples, inputs, counts, LeastSquares(one), recipe, evidence)


def _about_weights(class_weights: tuple[int, ...]) -> str:
    return (
        f"The score of each label is multiplied by its class weight, {shown(list(class_weights))}, which was declared "
        "before anyone looked at the training data or at the votes."
    )


def _all_costs(
    fit: _Fit, seen: _Seen, deleted: _Deletions, label: IntArray, highest_product: Highest
) -> Iterator[tuple[IntArray, int, _Costs]]:
    """Which inputs, against which rival, and what changes cost there."""
    for own in np.unique(label).tolist():
        which = np.flatnonzero(label == own)
        mine = seen.take(which)
        for rival in range(len(fit.weights)):
            if rival != own:
                yield which, rival, _costs(fit, mine, deleted, rival, own, highest_product)


def _in_counts(values: FloatArray, one: int) -> IntArray:
    """In units of counts, rounded up; what is not kept is as large as nothing that is."""
    return np.ceil(np.minimum(values * (1 + 1e-9) * one, float(_MOST))).astype(np.int64) + 1


def _check_columns(examples: StoredExamples) -> None:
    columns = examples.rows.shape[1]
    if columns > _MOST_COLUMNS:
        raise ConfigError(
            f"Ridge regression is for at most {_MOST_COLUMNS:,} features, these have {columns:,}; use an encoder with "
            "fewer, or another method, such as nearest-neighbours."
        )


# --- the defence ----------------------------------------------------------------------------------------------------


@register
@dataclass(frozen=True, kw_only=True)
class Ridge(ExamplesDefence):
    """A linear classifier by regularised least squares, fitted once to all examples.

    Guarantee: that of `Certificate`, without any probability of failure: the penalty bounds how far the answer on an
    input can move when examples come or go; see `ridge_votes`.

    Args:
        penalty: of the squared norm of a model, in examples: with p, about p examples that are alike are needed to
            decide against it. None: one in 100 of the examples.

    References: the theorem is our own; docs/theory.md has the proof. It rests on how least squares change with their
    data: Sherman, Morrison 1950; Woodbury 1950.
    """

    name = "ridge"
    units_refused = "its theorem bounds what single examples move, and a unit may be any number of examples"
    summary = "A linear model is fitted to all training examples by ridge regression; a few of them cannot move it far."
    mechanisms = (LeastSquares,)
    weighs_losses = True
    sparse_rows = False
    compares = False

    penalty: float | None = option(None, "ridge: the penalty of the squared norm, in examples", float, "P")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.penalty is not None:
            _validate.number_in(0, math.inf, low_open=True, penalty=self.penalty)
            object.__setattr__(self, "penalty", float(self.penalty))

    @property
    def title(self) -> str:
        """For a legend."""
        return "ridge regression" if self.penalty is None else f"ridge regression, penalty {self.penalty:g}"

    def decided(self, facts: Facts) -> dict[str, Any]:
        """A penalty of one in 100 of the examples.

        On 17 tables a smaller one was more accurate without changes, and a larger one certified more from changes of
        0.5% of the examples on.
        """
        return {"penalty": max(1.0, facts.num_train / 100)}

    def rule(self) -> Rule:
        """See `RidgeRule`."""
        return RidgeRule()

    def votes(
        self,
        examples: StoredExamples,
        test_set: Any,
        progress: Progress | None = None,
        place: Comparing = HERE,
    ) -> Votes:
        """The scores of some inputs."""
        assert self.penalty is not None
        weights = self.class_weights
        return ridge_votes(examples, test_set, penalty=self.penalty, class_weights=weights, progress=progress)
