"""Rules for predictions that are made from the training examples themselves, without a model."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mithridate.aggregation.rule import (
    AnyArray,
    Decision,
    IntArray,
    PlainRule,
    chunks,
    evidence_of,
    in_units,
    leads,
    mechanism_of,
    most_within,
    winners,
)
from mithridate.errors import ConfigError
from mithridate.mechanism import SEARCH_LIMIT, KernelSum, NearestExamples, Threat
from mithridate.votes import Votes


@dataclass(frozen=True)
class NeighbourRule(PlainRule):
    """The k nearest training examples vote; where there are fewer than k, those that are there.

    Reads the evidence `order`, examples x min(2 k, n): the labels of the nearest of the n training examples, nearest
    first. Fewer than 2 k columns therefore are the whole training set. Replaced, edited and changed examples need the
    counts only.

    Guarantee: the prediction stays the same whatever `radius` units of the threat change. No larger radius can be shown
    from the order, with two exceptions: `FEATURES`, where inputs move less far than is assumed here, and `REMOVE`
    beyond the 2 k examples that are shown, where the unseen ones are taken for the worst.

    Assumes: nothing beyond `NearestExamples`. Without any example the label is 0.

    Take rival b against the label a, with A(m) and B(m) their numbers among the m nearest of D. Let D' have i more
    examples and lack d of D. An inserted example is worst as a b nearer than all others: among the voters nothing costs
    the lead more, and coming in it takes one from the lead, while the last voter, who may go, gives back at most one. A
    deleted example is worst as an a among the voters: it takes one from the lead, and who moves up gives back at most
    one; a b that is deleted never lowers the lead, and a third label lowers it less than an a. Were no a left among the
    voters, a has lost already, unless nobody is left and a = 0. So with m = k - i + d, at most n,

        lead(i, d) = A(m) - B(m) - (i + d) - [b < a],

    and lead(i, d) falls, or stays, with i and with d, for A - B changes by at most 1 from m to m + 1. The threats allow

        ADD                                i = r, d = 0
        REMOVE                             i = 0, d = r
        SYMMETRIC_DIFFERENCE               i + d = r, so m = k - r, k - r + 2, ..., k + r
        REPLACE, EDIT, LABELS, FEATURES    i = r, d = r, so m = k

    and r is safe where the smallest lead is 0 or more. Relabelling r voters does what r replaced ones do.

    References: Jia, Liu, Cao, Gong 2022 (arXiv 2012.03765) for the idea; their bound is the last line.
    """

    @property
    def name(self) -> str:
        """Short name, as on the command line."""
        return "nearest-neighbours"

    def reads(self, threat: Threat) -> tuple[str, ...]:
        """The labels of the nearest examples."""
        return ("order",)

    def decide(self, votes: Votes, threat: Threat) -> Decision:
        """The prediction on every example, and its radius."""
        mechanism = mechanism_of(votes, NearestExamples, self)
        neighbours = mechanism.neighbours
        if votes.instances > neighbours:
            raise ConfigError(
                f"Expected votes of at most {neighbours} neighbours, but the counts hold {votes.instances}."
            )
        label = winners(votes.counts)
        if threat not in (Threat.ADD, Threat.REMOVE, Threat.SYMMETRIC_DIFFERENCE):
            return Decision(label, in_units(leads(votes.counts, label).min(axis=1), threat))
        order = evidence_of(votes, "order", self, (None,))
        _check_order(order, votes, mechanism)
        # Where all n vote, n + 1 inserted rivals always win: room for more voters than these changes nothing.
        neighbours = min(neighbours, 2 * order.shape[1] + 1)
        # One small type for both, so that comparing them copies neither.
        order = order.astype(np.min_scalar_type(votes.classes), copy=False)
        radius = np.full(votes.examples, SEARCH_LIMIT, dtype=np.int64)
        for rows in chunks(votes.examples, 2 * neighbours):
            for rival in range(votes.classes):
                lead = _lead(order[rows], label[rows], rival, neighbours)
                _check_lead(lead[:, neighbours], votes.counts[rows], label[rows], rival)
                withstood = _withstood(lead, threat, complete=order.shape[1] < 2 * neighbours)
                radius[rows] = np.where(label[rows] == rival, radius[rows], np.minimum(radius[rows], withstood))
        if threat is Threat.REMOVE and order.shape[1] < 2 * neighbours:
            # Nothing but label 0, which also wins where nothing is left.
            radius[(order == 0).all(axis=1)] = SEARCH_LIMIT
        return Decision(label, radius)


def _check_order(order: AnyArray, votes: Votes, mechanism: NearestExamples) -> None:
    width = order.shape[1]
    if width != mechanism.shown or min(width, mechanism.neighbours) != votes.instances:
        raise ConfigError(
            f"Expected the evidence 'order' to have {mechanism.shown} columns, twice the neighbours, or one for each "
            f"training example where NearestExamples(num_train=...) says that there are fewer; it has {width}, and "
            f"{votes.instances} neighbours voted."
        )
    if order.max() >= votes.classes:
        raise ConfigError(f"Expected the evidence 'order' to hold labels below {votes.classes}, got {order.max()}.")


def _check_lead(lead: AnyArray, counts: IntArray, label: IntArray, rival: int) -> None:
    expected = counts[np.arange(len(label)), label] - counts[:, rival] - (rival < label)
    if ((lead != expected) & (label != rival)).any():
        raise ConfigError("The counts are not those of the nearest examples in the evidence 'order'; train again.")


def _lead(order: AnyArray, label: IntArray, rival: int, neighbours: int) -> AnyArray:
    """A(m) - B(m) - [b < a] for m = 0, ..., 2 k; beyond the last training example it stays as it is."""
    steps = np.zeros((len(order), 2 * neighbours + 1), dtype=np.int8)
    steps[:, 0] = -(rival < label).astype(np.int8)
    shown = steps[:, 1 : order.shape[1] + 1]
    np.equal(order, label.astype(order.dtype)[:, None], out=shown.view(np.bool_))
    shown -= (order == rival).view(np.int8)
    return np.cumsum(steps, axis=1, dtype=np.int16 if neighbours < 1 << 13 else np.int64)


def _withstood(lead: AnyArray, threat: Threat, *, complete: bool) -> IntArray:
    """The largest r that is safe against one rival; the lead over it is given for m = 0, ..., 2 k."""
    neighbours = lead.shape[1] // 2
    inserted, deleted = lead[:, neighbours::-1], lead[:, neighbours:]
    radii = np.arange(neighbours + 1, dtype=lead.dtype)
    match threat:
        case Threat.ADD:
            return _last_safe(inserted >= radii)
        case Threat.REMOVE:
            radius = _last_safe(deleted >= radii)
            # With r > k, m is beyond what is shown: nothing comes there, or for all we know another b for each r.
            rest = lead[:, -1].astype(np.int64) - neighbours
            return np.where(rest >= 0, neighbours + rest // (1 if complete else 2), radius)
        case _:
            worst = np.minimum(inserted, deleted)
            for parity in (0, 1):
                # From r to r + 2 the same values of m stay possible, and one comes at either end.
                same = worst[:, parity::2]
                np.minimum.accumulate(same, axis=1, out=same)
            return _last_safe(worst >= radii)


def _last_safe(safe: npt.NDArray[np.bool_]) -> IntArray:
    """The last radius that is safe: 0 is, and a radius below a safe one."""
    return safe.sum(axis=1, dtype=np.int64) - 1


@dataclass(frozen=True)
class KernelRule(PlainRule):
    """Every training example votes for its label by its weight; the label with the largest score wins.

    Reads, for the threats that delete examples and for those that change them, the evidence `own`, examples x
    (unit + 1): how many training examples of the predicted label have each weight from 0 to `unit`.

    Guarantee: the prediction stays the same whatever `radius` units of the threat change. No larger radius can be shown
    where an example of any label can have the weight `unit`, as one has that equals the input; for `LABELS` and
    `FEATURES`, which change weights less freely, a larger radius may hold.

    Assumes: nothing beyond `KernelSum`. Without any example the label is 0.

    An insertion takes at most `unit` from the lead over a rival; a deletion takes the weight of one of the label's own,
    no more than an insertion. With w_1 >= w_2 >= ... the weights of the label's examples, r units take at most

        ADD, SYMMETRIC_DIFFERENCE          r unit
        REMOVE                             w_1 + ... + w_r
        REPLACE, EDIT, LABELS, FEATURES    r unit + w_1 + ... + w_r

    whichever the rival, so the one with the smallest lead decides: r is safe where this is at most its lead.

    References: the threshold on sums of Jia, Liu, Cao, Gong 2022 (arXiv 2012.03765), with weights.
    """

    @property
    def name(self) -> str:
        """Short name, as on the command line."""
        return "kernel-vote"

    def reads(self, threat: Threat) -> tuple[str, ...]:
        """The weights of the label's own examples, where they may be deleted and are not outweighed by insertions."""
        return () if threat in (Threat.SYMMETRIC_DIFFERENCE, Threat.ADD) else ("own",)

    def decide(self, votes: Votes, threat: Threat) -> Decision:
        """The prediction on every example, and its radius."""
        unit = mechanism_of(votes, KernelSum, self).unit
        label = winners(votes.counts)
        lead = leads(votes.counts, label).min(axis=1)
        if threat in (Threat.ADD, Threat.SYMMETRIC_DIFFERENCE):
            return Decision(label, np.minimum(lead // unit, SEARCH_LIMIT))
        own = evidence_of(votes, "own", self, (unit + 1,))
        inserted = 0 if threat is Threat.REMOVE else unit
        weights = np.arange(unit, -1, -1)
        radius = np.empty(votes.examples, dtype=np.int64)
        for rows in chunks(votes.examples, unit + 1):
            numbers = own[rows, ::-1].astype(np.int64)
            _check_own(numbers, weights, votes.counts[rows].max(axis=1))
            # When all examples of the label are gone, a deletion takes nothing, like that of an example of weight 0.
            numbers[:, -1] = SEARCH_LIMIT
            radius[rows] = most_within(lead[rows], weights + inserted, numbers)
        return Decision(label, radius)


def _check_own(numbers: IntArray, weights: IntArray, scores: IntArray) -> None:
    # In floating point first: only where that is near the score, whole numbers cannot overflow.
    near = numbers.astype(np.float64) @ weights.astype(np.float64) <= 2.0**54
    if not near.all() or (numbers @ weights != scores).any():
        raise ConfigError("The evidence 'own' does not add up to the scores of the predicted labels; train again.")
