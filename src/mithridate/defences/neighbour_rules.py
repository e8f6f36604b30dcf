"""Rules for predictions that are made from the training examples themselves, without a model."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mithridate.certifying.exact import (
    AnyArray,
    IntArray,
    chunks,
    evidence_of,
    in_units,
    leads,
    mechanism_of,
    most_within,
    winners,
)
from mithridate.core.mechanism import SEARCH_LIMIT, KernelSum, NearestExamples, Threat
from mithridate.core.rule import Decision, ExactRule
from mithridate.core.votes import Votes
from mithridate.errors import ConfigError

# Voters and the leads that their label needs, by label.
Scales = Sequence[tuple[int, IntArray]]


@dataclass(frozen=True)
class NeighbourRule(ExactRule):
    """The k nearest training examples vote; where there are fewer than k, those that are there.

    Reads the evidence `order`, examples x min(2 k, n): the labels of the nearest of the n training examples, nearest
    first. Fewer than 2 k columns therefore are the whole training set. Replaced, edited and changed examples need the
    counts only, if there is one scale.

    Guarantee: the prediction stays the same whatever `radius` units of the threat change. With one scale, no larger
    radius can be shown from the order, with two exceptions: `FEATURES`, where inputs move less far than is assumed
    here, and `REMOVE` beyond the 2 k examples that are shown, where the unseen ones are taken for the worst.

    Assumes: nothing beyond `NearestExamples`. Without any example the label is 0.

    *One scale.* Take any two labels a and b, with A(m) and B(m) their numbers among the m nearest of D; for m < 0 read
    0, for m > n read n. Let D' have i more examples and lack d of D. Of the voters of D', let u be new. The others are
    the first of D that were not deleted: they lie among the first p of D, where e were deleted. Each new one and each
    deleted one takes at most one from the lead of a over b, so it is at least

        A(p) - B(p) - u - e - [b < a].

    If k vote, p = k - u + e with u <= i and e <= d; if fewer do, p = n, u = i and e = d, and k - i + d > n. In p =
    k - u + e the bound falls, or stays, with u and with e, for A - B changes by at most 1 from p to p + 1. So the lead
    is never less than at u = i and e = d: with m = k - i + d,

        lead(i, d) = A(m) - B(m) - (i + d) - [b < a].

    The worst attack reaches it: i examples of b nearer than all others, and d of a deleted among the voters. Were there
    not so many, a has lost already, unless nobody is left and a = 0. The threats allow

        ADD                                i = r, d = 0
        REMOVE                             i = 0, d = r
        SYMMETRIC_DIFFERENCE               i + d = r, so m = k - r, k - r + 2, ..., k + r
        REPLACE, EDIT, LABELS, FEATURES    i = r, d = r, so m = k

    and r is safe where the smallest lead is 0 or more. Relabelling r voters does what r replaced ones do.

    *Several scales*, k_1 > k_2 > ..., of which scale j answers a if a leads every other label there by t_j(a) or more,
    0 at the last. Let L_j(a, b) be a's lead over b. One of [a < b] and [b < a] is 1, so L_j(a, b) = -L_j(b, a) - 1, and
    scale j answers b exactly if L_j(c, b) + t_j(b) < 0 for all c. Let a be the prediction, and

        A_j = smallest L_j(a, b) - t_j(a) of all b: 0 or more exactly if scale j answers a,
        B_j = smallest of all b but a of the largest L_j(c, b) + t_j(b) of all c: 0 or more exactly if it answers no b.

    Now let, from the last scale to the first, V = A at the last one, and

        V_j = the larger one of V_(j+1) and A_j, but at most B_j.

    V_j >= 0 exactly if scale j and those behind it predict a. For the last one, that is what winning means. For another
    one, B_j >= 0 says that it answers a or nobody. If a, A_j >= 0; if nobody, A_j < 0, and those behind it decide.

    All scales see the same D'. With m = k_j - i + d, no L_j(c, b) of D' is less than the lead(i, d) of c over b at its
    scale, and V_1 never rises where one of them falls, and falls by s where all of them fall by s. So take V_1 of the
    C(m) - B(m) - [b < c] of all scales at the same d - i: less i + d, it is a lower bound on V_1 of D', and so takes
    the place of the lead of one scale. It, too, changes by at most 1 from d - i to d - i + 1: what withstands r
    withstands less. It may be too low, for every scale meets the attack that is worst for it, whoever gains by that.

    References: Jia, Liu, Cao, Gong 2022 (arXiv 2012.03765) for the idea; their bound is the last line of one scale.
    """

    name = "nearest-neighbours"
    title = "nearest neighbours"

    def reads(self, threat: Threat) -> tuple[str, ...]:
        """The labels of the nearest examples."""
        return ("order",)

    def decide(self, votes: Votes, threat: Threat) -> Decision:
        """The prediction on every example, and its radius."""
        mechanism = mechanism_of(votes, NearestExamples, self)
        neighbours = mechanism.most
        if votes.instances > neighbours:
            raise ConfigError(
                f"Expected votes of at most {neighbours} neighbours, but the counts hold {votes.instances}."
            )
        in_counts = threat not in (Threat.ADD, Threat.REMOVE, Threat.SYMMETRIC_DIFFERENCE)
        if in_counts and not mechanism.leads:
            label = winners(votes.counts)
            return Decision(label, in_units(leads(votes.counts, label).min(axis=1), threat))
        order = evidence_of(votes, "order", self, (None,))
        _check_order(order, votes, mechanism)
        # Where all n vote, n + 1 inserted rivals always win: room for more voters than these changes nothing.
        neighbours = min(neighbours, 2 * order.shape[1] + 1)
        # Of several scales, none exceeds n.
        voters = [min(count, neighbours) for count, _ in mechanism.scales]
        scales = list(zip(voters, map(np.array, mechanism.needed(votes.classes)), strict=True))
        # One small type for both, so that comparing them copies neither.
        order = order.astype(np.min_scalar_type(votes.classes), copy=False)
        label = np.empty(votes.examples, dtype=np.int64)
        radius = np.empty(votes.examples, dtype=np.int64)
        # Whether k deletions put all examples in play at every scale, so that more of them bring in nobody.
        complete = order.shape[1] < 2 * neighbours and order.shape[1] <= neighbours + scales[-1][0]
        for rows in chunks(votes.examples, 2 * neighbours * votes.classes):
            label[rows] = _predictions(order[rows], votes.counts[rows], scales)
            lead = _combined_lead(order[rows], votes.counts[rows], label[rows], scales)
            if in_counts:
                radius[rows] = in_units(lead[:, neighbours].astype(np.int64), threat)
            else:
                radius[rows] = _withstood(lead, threat, complete=complete)
        if threat is Threat.REMOVE and order.shape[1] < 2 * neighbours:
            # Nothing but label 0, which also wins where nothing is left.
            radius[(order == 0).all(axis=1)] = SEARCH_LIMIT
        return Decision(label, np.minimum(radius, SEARCH_LIMIT))


def _predictions(order: AnyArray, counts: IntArray, scales: Scales) -> IntArray:
    """The label of the first scale that leads by enough."""
    label = np.zeros(len(order), dtype=np.int64)
    for number, (neighbours, needed) in reversed(list(enumerate(scales))):
        votes = counts if number == 0 else _histograms(order[:, :neighbours], counts.shape[1])
        winner = winners(votes)
        label = np.where(leads(votes, winner).min(axis=1) >= needed[winner], winner, label)
    return label


def _histograms(labels: AnyArray, classes: int) -> IntArray:
    return np.stack([(labels == label).sum(axis=1, dtype=np.int64) for label in range(classes)], axis=1)


def _combined_lead(order: AnyArray, counts: IntArray, label: IntArray, scales: Scales) -> AnyArray:
    """V_1 for d - i = -k, ..., k, with the k voters of the first scale, before i + d is taken from it."""
    most, classes = scales[0][0], counts.shape[1]
    behind = _behind(order, counts, most)
    rivals = (np.arange(classes)[:, None] != label)[:, :, None]
    lead = -behind[label, np.arange(len(label))]
    combined = _at_scale(lead, scales[-1][0], most)
    for neighbours, needed in reversed(scales[:-1]):
        units = (classes * needed).astype(behind.dtype)
        answers = lead - units[label, None]
        others = np.min(behind + units[:, None, None], axis=0, where=rivals, initial=np.iinfo(behind.dtype).max)
        combined = np.maximum(combined, _at_scale(answers, neighbours, most))
        combined = np.minimum(combined, _at_scale(others, neighbours, most))
    # Rounded down last: whole votes are what was added, and rounding keeps the order.
    return combined // classes


def _at_scale(table: AnyArray, neighbours: int, most: int) -> AnyArray:
    """What `table` says for 0, 1, ... in play as a table for d - i = -k, ..., k, by the voters of a scale."""
    # The scale has k_j + d - i in play, and where that is below 0, as much as at 0.
    shown = table[:, : most + neighbours + 1]
    return np.pad(shown, ((0, 0), (most - neighbours, 0)), mode="edge")


def _behind(order: AnyArray, counts: IntArray, neighbours: int) -> AnyArray:
    """How far each label is behind the first of the others, with m = 0, ..., 2 k in play: labels x examples x m.

    In units of one vote / labels, so that ties are no ties: a label that wins ties is ahead by as many units as its
    number is smaller. Rounded down to votes, the largest N_c(m) - N_b(m) - [b < c] of all c. Beyond the last training
    example it stays as it is.
    """
    classes, width = counts.shape[1], 2 * neighbours + 1
    ahead = np.zeros((classes, len(order), width), dtype=np.min_scalar_type(-4 * classes * (neighbours + 1)))
    for label, row in enumerate(ahead):
        row[:, 0] = classes - 1 - label
        np.multiply(order == label, row.dtype.type(classes), out=row[:, 1 : order.shape[1] + 1])
        np.cumsum(row, axis=1, out=row)
        if (row[:, neighbours] != classes * counts[:, label] + (classes - 1 - label)).any():
            raise ConfigError("The counts are not those of the nearest examples in the evidence 'order'; train again.")
    first = ahead.max(axis=0)
    is_first = ahead == first
    second = ahead.max(axis=0, where=~is_first, initial=-1)
    return np.where(is_first, second, first) - ahead


def _check_order(order: AnyArray, votes: Votes, mechanism: NearestExamples) -> None:
    width = order.shape[1]
    if width != mechanism.shown or min(width, mechanism.most) != votes.instances:
        raise ConfigError(
            f"Expected the evidence 'order' to have {mechanism.shown} columns, twice the neighbours, or one for each "
            f"training example where NearestExamples(num_train=...) says that there are fewer; it has {width}, and "
            f"{votes.instances} neighbours voted."
        )
    if order.max() >= votes.classes:
        raise ConfigError(f"Expected the evidence 'order' to hold labels below {votes.classes}, got {order.max()}.")


def _withstood(lead: AnyArray, threat: Threat, *, complete: bool) -> IntArray:
    """The largest r that is safe, from the lead for d - i = -k, ..., k before i + d is taken from it."""
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
class KernelRule(ExactRule):
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

    name = "kernel-vote"
    title = "kernel vote"

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
