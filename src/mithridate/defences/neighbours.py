"""Nearest neighbours: the training examples nearest to an input vote with their labels; nothing is trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from mithridate import _validate
from mithridate._computer import on_cores
from mithridate._io.scratch import scratch
from mithridate._text import shown
from mithridate.certifying.exact import (
    AnyArray,
    IntArray,
    chunks,
    evidence_of,
    in_units,
    leads,
    mechanism_of,
    winners,
)
from mithridate.core.conditions import Statement, tuned_constants
from mithridate.core.mechanism import SEARCH_LIMIT, Deterministic, Threat, Voters
from mithridate.core.rule import Decision, ExactRule, Rule, Weighted
from mithridate.core.units import EXAMPLES, UnitWords, words_of
from mithridate.core.votes import Votes
from mithridate.defences import _moves
from mithridate.defences._moves import FirstSets, Intervals, moving_evidence
from mithridate.defences._near import NearDefence
from mithridate.defences._nearness import StoredExamples, check_may_move, require_moving, votes_of
from mithridate.defences._places import HERE, Comparing
from mithridate.defences._search import Search
from mithridate.defences.base import option
from mithridate.defences.registry import register
from mithridate.errors import ConfigError
from mithridate.training.order import Facts, Progress

# How many votes a label has to be ahead: the same for all labels, or one number for each.
Lead = int | tuple[int, ...]


@dataclass(frozen=True)
class NearestExamples(Deterministic):
    """The `neighbours` training examples that are nearest to an input vote with their labels.

    Distances are a function of the input and of one training example. Of equally distant examples, those come first
    that a fixed function of their content puts first.

    Several numbers of neighbours are several scales, of which the most neighbours are asked first. If their label with
    most votes leads by at least `leads[0]`, it is the prediction; else the next fewer are asked, whose label has to
    lead by `leads[1]`, and so on. The last ones always decide. A label may need another lead than others: where
    `leads[0]` is a list, label a has to lead by `leads[0][a]`. The lead of label a is the smallest of
    `votes of a - votes of b - [b < a]` over the other labels b: so much the votes for b may gain on those for a before
    a no longer has most, where ties go to the smaller label.

    Where units are declared (`Votes.unit`), the voices of units are meant wherever examples are spoken of: of each unit
    the example that comes first, which is a function of the input and of that unit.

    Args:
        neighbours: how many vote, at least 1; all, where there are fewer examples. Several numbers each are smaller
            than the one before, and D has at least as many examples as the first.
        num_train: the number of examples of D; it must be said where it is below twice the most neighbours, and None
            says that it is not. Otherwise a list that was cut short would pass for all there are.
        leads: one for every number of neighbours but the last, from 1 to that number; or instead of one, one for each
            label.

    >>> NearestExamples((2400, 600, 100), leads=(480, 300)).scales
    ((2400, 480), (600, 300), (100, 0))
    """

    type = "nearest-examples"
    rule = "nearest-neighbours"
    words = Voters(
        "neighbours",
        "nearest {many_in_full}",
        "too few neighbours have this label rather than another. Let more neighbours vote, or use features that bring "
        "examples of a class closer together.",
    )

    neighbours: int | tuple[int, ...]
    num_train: int | None = None
    leads: tuple[Lead, ...] = ()

    def __post_init__(self) -> None:
        neighbours, leads = checked_scales(self.neighbours, self.leads)
        object.__setattr__(self, "neighbours", neighbours)
        object.__setattr__(self, "leads", leads)
        if self.num_train is not None:
            _validate.positive_integer(num_train=self.num_train)
            object.__setattr__(self, "num_train", int(self.num_train))
            if self.leads and self.num_train < self.most:
                raise ConfigError(
                    f"There are {self.num_train} training examples, fewer than neighbours={self.most}; ask for fewer."
                )

    def in_words(self, counted: UnitWords = EXAMPLES) -> str:
        """What it does with the training data, with its constants."""
        voice = ", each by its nearest example," if counted.are_named else ""
        voters = f"the {self.most:,} {counted.many_in_full} that are nearest to an input{voice}"
        return f"{voters} vote with their labels{self.tie_break()}"

    def check_classes(self, classes: int) -> None:
        """Leads by label are for as many labels."""
        self.needed(classes)

    def tie_break(self) -> str:
        """Who decides where the most neighbours do not.

        >>> NearestExamples((5, 3), leads=(2,)).tie_break()
        '; where their label leads by fewer than 2 votes (3 over earlier labels), the 3 nearest decide'
        >>> NearestExamples((5, 3), leads=((2, 1, 4),)).tie_break()[:60]
        '; where their label leads by fewer votes than it needs (1 to'
        """
        return "".join(
            f"; where their label leads by fewer {_than(lead)}, the {fewer:,} nearest decide"
            for (_, lead), (fewer, _) in pairwise(self.scales)
        )

    @property
    def scales(self) -> tuple[tuple[int, Lead], ...]:
        """How many vote at each scale and the lead that they need, 0 at the last; the most voters first."""
        voters = self.neighbours if isinstance(self.neighbours, tuple) else (self.neighbours,)
        return tuple(zip(voters, (*self.leads, 0), strict=True))

    @property
    def most(self) -> int:
        """How many vote at the first scale."""
        return self.scales[0][0]

    @property
    def shown(self) -> int:
        """How many of the nearest examples a certificate looks at."""
        return 2 * self.most if self.num_train is None else min(2 * self.most, self.num_train)

    def needed(self, classes: int) -> tuple[tuple[int, ...], ...]:
        """The lead that each label needs, scale by scale.

        Raises:
            ConfigError: there are leads for another number of labels.
        """
        for _, lead in self.scales:
            if isinstance(lead, tuple) and len(lead) != classes:
                said = shown(list(lead))
                raise ConfigError(f"Expected a lead for each of {classes} labels, got {len(lead)}: {said}.")
        return tuple(lead if isinstance(lead, tuple) else (lead,) * classes for _, lead in self.scales)

    def to_dict(self) -> dict[str, Any]:
        """The mechanism as plain JSON values."""
        voters = list(self.neighbours) if isinstance(self.neighbours, tuple) else self.neighbours
        # What is said of one scale stays what it was before there were several.
        leads = {"leads": listed_leads(self.leads)} if self.leads else {}
        return {"type": self.type, "neighbours": voters, "num_train": self.num_train, **leads}


def _than(lead: Lead) -> str:
    if isinstance(lead, int):
        return f"than {lead:,} votes ({lead + 1:,} over earlier labels)"
    return f"votes than it needs ({min(lead):,} to {max(lead):,}; 1 more over earlier labels)"


def listed_leads(leads: Sequence[int | Sequence[int]]) -> list[int | list[int]]:
    """Leads as plain JSON values."""
    return [lead if isinstance(lead, int) else list(lead) for lead in leads]


def checked_scales(neighbours: Any, leads: Any) -> tuple[int | tuple[int, ...], tuple[Lead, ...]]:
    """Numbers of neighbours and leads as `NearestExamples` holds them; one number of neighbours is no list.

    Raises:
        ConfigError: they are not what it asks for, or the leads do not fit the neighbours.
    """
    neighbours, leads = _unpacked(neighbours), _unpacked(leads)
    if not isinstance(neighbours, list | tuple):
        _validate.positive_integer(neighbours=neighbours)
    if not isinstance(leads, list | tuple):
        raise ConfigError(f"Expected leads as a list of whole numbers, got {shown(leads)}.")
    voters = cast("Sequence[Any]", neighbours if isinstance(neighbours, list | tuple) else [neighbours])
    needed = cast("Sequence[Any]", leads)
    for count in voters:
        _validate.positive_integer(neighbours=count)
    said = shown(list(voters))
    if any(after >= before for before, after in pairwise(voters)):
        raise ConfigError(f"Expected every number of neighbours to be below the one before, got {said}.")
    asked = shown(list(needed))
    if len(needed) != len(voters) - 1:
        raise ConfigError(
            f"Expected a lead for every number of neighbours but the last, got leads {asked} for neighbours {said}."
        )
    checked = tuple(_checked_lead(lead, count) for lead, count in zip(needed, voters, strict=False))
    if len({len(lead) for lead in checked if isinstance(lead, tuple)}) > 1:
        raise ConfigError(f"Expected leads by label for the same number of labels at every scale, got {asked}.")
    return int(voters[0]) if len(voters) == 1 else tuple(int(count) for count in voters), checked


def _unpacked(numbers: Any) -> Any:
    """The list that an array holds; anything else as it is."""
    return numbers.tolist() if isinstance(numbers, np.ndarray) else numbers


def _checked_lead(lead: Any, voters: int) -> Lead:
    lead = _unpacked(lead)
    by_label = isinstance(lead, list | tuple)
    numbers = cast("Sequence[Any]", lead if by_label else [lead])
    if not numbers:
        raise ConfigError("Expected a lead, or a list with one for each label, got an empty list.")
    for number in numbers:
        _validate.positive_integer(leads=number)
        if number > voters:
            raise ConfigError(f"{voters} neighbours cannot lead by {number}; ask for a lead of at most {voters}.")
    return tuple(int(number) for number in numbers) if by_label else int(numbers[0])


# --- votes ---------------------------------------------------------------------------------------------------------


def neighbour_votes(
    examples: StoredExamples,
    test_set: Any,
    *,
    neighbours: int | Sequence[int],
    leads: Sequence[int | Sequence[int]] = (),
    mirrored: bool = False,
    moving_inputs: bool = False,
    progress: Progress | None = None,
    place: Comparing = HERE,
) -> Votes:
    """Labels of the training examples nearest to each input.

    Guarantee: `evidence["order"][x]` holds the labels of the 2 * `neighbours` examples (all, if there are fewer) that
    come first on input x, in order, and `counts[x]` counts the first `neighbours` of them; of several numbers, the
    first one is meant, and the certificate reads the others off the order. Of two examples that one
    comes first whose features, rounded to whole numbers, have the larger dot product with those of x (with `mirrored`,
    with those of x or of its mirror image, whichever is larger); with equal ones, that one whose content (rounded
    features and label) has the smaller BLAKE2b hash; examples of equal content are interchangeable. So which of two
    comes first is a function of x and these two alone, bit for bit. Where units are declared, the examples that count
    are one of each unit, the first of its own: its voice, a function of x and the unit alone.

    Assumes: the features were fixed before anyone looked at the training set, and what `votes.assumptions` lists.

    Args:
        examples: those that vote.
        test_set: inputs to vote on, or a pair with their true labels.
        neighbours: how many examples vote; or several numbers, the largest first: fewer are asked where more do not
            agree, see `mithridate.core.mechanism.NearestExamples`.
        leads: by how many votes each of several numbers of neighbours has to agree, except the last; a number, or a
            list with one for each label.
        mirrored: see `kernel_votes`.
        moving_inputs: keep what certificates of inputs that move need, too: the labels and the products of four times
            as many examples as vote, and of 4,096 at least; see `_moves`.
        progress: called with the number of inputs that are done and their total.
        place: where inputs and examples are compared.

    Raises:
        ConfigError: an argument or the data is not what it should be, or there are fewer examples than `neighbours`.
    """
    numbers, needed = checked_scales(neighbours, leads)
    voters = NearestExamples(numbers, leads=needed)
    voters.needed(examples.classes)  # or it says what is wrong, before anything is computed
    if voters.most > examples.voters:
        number = (
            f"{examples.voters} training examples" if examples.unit is None else examples.unit.counted(examples.voters)
        )
        declared = words_of(examples.unit).declared_as
        raise ConfigError(
            f"There are {number}, fewer than neighbours={voters.most}; ask for fewer or, where that follows a declared "
            f"{declared}, declare a smaller one."
        )
    if moving_inputs:
        check_may_move(examples, mirrored=mirrored)
    inputs = examples.asked(test_set, mirrored=mirrored)
    mechanism = replace(voters, num_train=examples.voters)
    ranks = examples.ranks
    labels = examples.labels.astype(np.min_scalar_type(examples.classes))
    told, extra = _told(progress, len(inputs)), dict[str, AnyArray]()
    if moving_inputs:
        width = min(_moves.kept_of(voters.most), examples.voters)
        nearest = scratch((len(inputs), width), np.int64)
        place.fill_with_nearest(
            nearest, Search(inputs, examples.rows, ranks, np.argsort(ranks), turned=examples.turned), told
        )
        extra = moving_evidence(inputs.views[0], examples.rows, nearest, labels, examples.scale)
        order = extra[_moves.ORDER][:, : mechanism.shown]
    else:
        order = scratch((len(inputs), mechanism.shown), labels.dtype)
        by_rank = np.empty_like(labels)
        by_rank[ranks] = labels
        asked = Search(inputs, examples.rows, ranks, by_rank, examples.starts, examples.turned)
        place.fill_with_nearest(order, asked, told)
    counts = np.stack([np.bincount(each, minlength=examples.classes) for each in order[:, : mechanism.most]])
    said = {name: value for name, value in mechanism.to_dict().items() if name in ("neighbours", "leads")}
    recipe = {"method": "nearest-neighbours", **examples.recipe(mirrored=mirrored), **said}
    recipe = {**recipe, "moving_inputs": True} if moving_inputs else recipe
    return votes_of(examples, inputs, counts, mechanism, recipe, {"order": order, **extra})


def _told(progress: Progress | None, total: int) -> Callable[[int], None] | None:
    return None if progress is None else lambda done: progress(done, total)


# --- rule ---------------------------------------------------------------------------------------------------------

# Voters and the leads that their label needs, by label.
Scales = Sequence[tuple[int, IntArray]]


@dataclass(frozen=True)
class NeighbourRule(Weighted, ExactRule):
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

    *One scale with weights* w of the labels. Each new one takes at most w_b from the lead of a over b, and each deleted
    one at most w_a, so it is at least

        w_a A(p) - w_b B(p) - u w_b - e w_a - [b < a].

    Let u grow by 1: p falls by 1, which adds w_b if that example is of b, takes w_a if it is of a, and nothing else;
    with the w_b of the new one, the bound does not rise. Let e grow by 1: p rises by 1, which adds at most w_a, and the
    deleted one takes w_a: again it does not rise. Where p is beyond 0 or n, the first part stays as it is. So u = i and
    e = d is the worst as before, whatever the weights, and the same attack reaches it:

        lead(i, d) = w_a A(m) - w_b B(m) - i w_b - d w_a - [b < a],    m = k - i + d.

    For the symmetric difference, with r = i + d and s = d - i, twice the lead is

        2 (w_a A(k + s) - w_b B(k + s) - [b < a]) - s (w_a - w_b) - r (w_a + w_b),

    so that the smallest of the first two terms over s = -r, -r + 2, ..., r is compared with the third.

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
        self._check(votes, mechanism)
        scores, weights = self.weighed(votes.counts), self.weights(votes.classes)
        if _in_counts(threat) and not mechanism.leads:
            label = winners(scores)
            # Each of r units inserts one and deletes one.
            changes = leads(scores, label) // (weights[label][:, None] + weights)
            return Decision(label, np.minimum(changes.min(axis=1), SEARCH_LIMIT))
        order = evidence_of(votes, "order", self, (None,))
        _check_order(order, votes, mechanism)
        scales, complete = _scales(mechanism, order.shape[1], weights)
        neighbours = scales[0][0]
        # One small type for both, so that comparing them copies neither.
        order = order.astype(np.min_scalar_type(votes.classes), copy=False)
        label = np.empty(votes.examples, dtype=np.int64)
        radius = np.empty(votes.examples, dtype=np.int64)

        def certify(rows: slice) -> None:
            if self.class_weights is not None:
                label[rows] = winners(scores[rows])
                seen = _tables(order[rows], votes.counts[rows], neighbours)
                radius[rows] = _withstood_weighed(seen, label[rows], weights, threat, complete=complete)
                return
            label[rows] = _predictions(order[rows], votes.counts[rows], scales)
            lead_of = _lead if len(scales) == 1 else _combined_lead
            lead = lead_of(order[rows], votes.counts[rows], label[rows], scales)
            if _in_counts(threat):
                radius[rows] = in_units(lead[:, neighbours].astype(np.int64), threat)
            else:
                radius[rows] = _withstood(lead, threat, complete=complete)

        # Pieces of some megabytes: of smaller ones, the calls would take longer than the work.
        list(on_cores(certify, chunks(votes.examples, max(1, neighbours * votes.classes // 2))))
        _mark_label_0(radius, order, neighbours, threat)
        return Decision(label, np.minimum(radius, SEARCH_LIMIT))

    def reads_moved(self, threat: Threat) -> tuple[str, ...]:
        """The labels of more of the nearest examples, and their products."""
        return _moves.EVIDENCE

    def decide_moved(self, votes: Votes, threat: Threat, change: float) -> Decision:
        """The prediction on every example, and its radius where the features of the input may move, too.

        Guarantee: the prediction stays the same whatever `radius` units of the threat change, together with any change
        of the features of the input, scaled to norm 1, whose Euclidean length is at most `change`. With one scale, no
        larger radius can be shown in the relaxation of `_moves`, in which every product moves by itself, with the
        exceptions that `decide` has, and one more: examples behind those that are kept are taken for the worst.

        Proof: that of `NeighbourRule`, with another table. Let F(m) be the least w_a A(S) - w_c B(S) of all sets S of m
        examples of D that may come first (`FirstSets`). Of the voters of D', let u be new; let e be the deleted ones
        that the last of the others have before them, or could have. With these back, the others are such a set of
        m = k - u + e, so that the lead is at least

            F(k - u + e) - u w_b - e w_a - [b < a].

        From m to m + 1, F rises by w_a at most, and falls by w_b at most. So this falls, or stays, with u and with e,
        as it did with F(m) = w_a A(m) - w_b B(m), and u = i, e = d is the worst. The attack that reaches it deletes d
        examples of a from the worst S. Several scales: as before, with the bounds F of each scale for all pairs of
        labels, which hold whatever the input has become.
        """
        decision = self.decide(votes, threat)
        if change == 0:
            return decision
        mechanism = mechanism_of(votes, NearestExamples, self)
        order, lacks, lengths = _moved_evidence(votes, mechanism, self)
        weights = self.weights(votes.classes)
        scales, complete = _scales(mechanism, min(order.shape[1], mechanism.shown), weights)
        hidden = _hidden(order.shape[1], mechanism)
        radius = np.empty(votes.examples, dtype=np.int64)

        def certify(row: int) -> None:
            label, tables = decision.label[row : row + 1], dict[int, _Table]()
            for voters, _ in scales:
                within = Intervals.of(lacks[row], lengths[row], voters, change)
                tables[voters] = _Table(FirstSets(order[row], within, votes.classes, hidden), voters, scales, weights)
            if len(scales) > 1:
                lead = _combined_pairs(tables, int(label[0]), scales)[None, :]
                in_counts = in_units(lead[:, scales[0][0]], threat)
                found = in_counts if _in_counts(threat) else _withstood(lead, threat, complete=complete)
            else:
                ((voters, _),) = scales
                found = _withstood_by(tables[voters].leads(int(label[0])), label, weights, threat, complete=complete)
            radius[row] = max(int(found[0]), -1)

        list(on_cores(certify, range(votes.examples)))
        _mark_label_0(radius, order, scales[0][0], threat)
        return Decision(decision.label, np.minimum(radius, SEARCH_LIMIT))

    def _check(self, votes: Votes, mechanism: NearestExamples) -> None:
        if votes.instances > mechanism.most:
            raise ConfigError(
                f"Expected votes of at most {mechanism.most} neighbours, but the counts hold {votes.instances}."
            )
        if self.class_weights is not None and mechanism.leads:
            raise ConfigError(
                "Class weights are for one number of neighbours, not for several in turn; give one, or use leads by "
                "label instead of the weights."
            )


def _in_counts(threat: Threat) -> bool:
    """Whether each unit inserts one example and deletes one, so that k stay in play."""
    return threat not in (Threat.ADD, Threat.REMOVE, Threat.SYMMETRIC_DIFFERENCE)


def _scales(mechanism: NearestExamples, shown: int, weights: IntArray) -> tuple[list[tuple[int, IntArray]], bool]:
    """Voters and leads by scale, and whether k deletions put all examples in play at every scale.

    Then more of them bring in nobody.
    """
    # Where all n vote, n + 1 inserted rivals always win, or more where they weigh less: room for more voters than
    # these changes nothing.
    needed_to_win = shown * (weights.max() // weights.min() + 1) + 1
    neighbours = min(mechanism.most, shown + int(needed_to_win))
    # Of several scales, none exceeds n.
    voters = [min(count, neighbours) for count, _ in mechanism.scales]
    scales = list(zip(voters, map(np.array, mechanism.needed(len(weights))), strict=True))
    return scales, shown < 2 * neighbours and shown <= neighbours + voters[-1]


def _mark_label_0(radius: IntArray, order: AnyArray, neighbours: int, threat: Threat) -> None:
    """Where D has nothing but label 0, which also wins where nothing is left, deletions change nothing."""
    if threat is Threat.REMOVE and order.shape[1] < 2 * neighbours:
        radius[(order == 0).all(axis=1)] = SEARCH_LIMIT


# --- rule for inputs that move ------------------------------------------------------------------------------------


class _Table:
    """F for d - i = -k, ..., k, with the k voters of the first scale, at one of the scales."""

    def __init__(self, sets: FirstSets, voters: int, scales: Scales, weights: IntArray) -> None:
        most = scales[0][0]
        self._sets, self._weights = sets, weights.tolist()
        self._sizes = np.clip(voters + np.arange(-most, most + 1), 0, sets.kept)

    def lead(self, own: int, rival: int) -> IntArray:
        """The least lead of one label over another, before changes are taken from it."""
        weights = self._weights[own], self._weights[rival]
        return self._sets.least(own, rival, weights, self._sizes) - (rival < own)

    def leads(self, own: int) -> AnyArray:
        """Over every label, rivals x 1 x sizes; nothing of the label itself."""
        rivals = range(len(self._weights))
        return np.stack([self._sizes if rival == own else self.lead(own, rival) for rival in rivals])[:, None, :]


def _combined_pairs(tables: dict[int, _Table], label: int, scales: Scales) -> IntArray:
    """V_1 for d - i = -k, ..., k, from the least lead of every label over every other one at every scale."""
    combined: IntArray | None = None
    for voters, needed in reversed(scales):
        labels, table = range(len(needed)), tables[voters]
        answers = np.min([table.lead(label, rival) for rival in labels if rival != label], axis=0) - needed[label]
        if combined is None:
            combined = answers
            continue
        others = [
            np.max([table.lead(each, rival) for each in labels if each != rival], axis=0) + needed[rival]
            for rival in labels
            if rival != label
        ]
        combined = np.minimum(np.maximum(combined, answers), np.min(others, axis=0))
    assert combined is not None
    return combined


def _moved_evidence(
    votes: Votes, mechanism: NearestExamples, rule: NeighbourRule
) -> tuple[AnyArray, AnyArray, IntArray]:
    """Labels and products of the nearest examples, and the lengths of rows, checked.

    Raises:
        ConfigError: the votes do not carry them, or they contradict the votes.
    """
    require_moving(votes, _moves.EVIDENCE)
    order, lacks = (evidence_of(votes, name, rule, (None,)) for name in (_moves.ORDER, _moves.LACKS))
    lengths = evidence_of(votes, _moves.LENGTHS, rule, (4,)).astype(np.int64)
    width = _moves.kept_of(mechanism.most)
    wanted = width if mechanism.num_train is None else min(width, mechanism.num_train)
    if order.shape[1] != wanted or lacks.shape != order.shape:
        raise ConfigError(f"Expected the evidence {_moves.ORDER!r} to have {wanted} columns; it has {order.shape[1]}.")
    if order.max() >= votes.classes or (np.diff(lacks.astype(np.int64), axis=1) < 0).any():
        raise ConfigError("The evidence of inputs that move is not that of the nearest examples; train again.")
    if (_histograms(order[:, : mechanism.most], votes.classes) != votes.counts).any():
        raise ConfigError(f"The counts are not those of the nearest examples in {_moves.ORDER!r}; train again.")
    return order, lacks, lengths


def _hidden(kept: int, mechanism: NearestExamples) -> int:
    """How many examples there may be behind those that are kept: no more than could matter."""
    if mechanism.num_train is None:
        return 0 if kept < _moves.kept_of(mechanism.most) else kept + 1
    return min(mechanism.num_train - kept, kept + 1)


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


def _lead(order: AnyArray, counts: IntArray, label: IntArray, scales: Scales) -> AnyArray:
    """The smallest lead over a rival of one scale, for d - i = -k, ..., k, before i + d is taken from it."""
    ((neighbours, _),) = scales
    own = _running(order, label[:, None], np.take_along_axis(counts, label[:, None], axis=1)[:, 0], neighbours)
    lead = np.full_like(own, np.iinfo(own.dtype).max)
    for rival in range(counts.shape[1]):
        theirs = _running(order, rival, counts[:, rival], neighbours)
        over = np.subtract(own, theirs, out=theirs)
        over -= (rival < label).astype(over.dtype)[:, None]
        over[label == rival] = np.iinfo(over.dtype).max
        np.minimum(lead, over, out=lead)
    return lead


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
            return _last_safe(_worst_shift(lead) >= radii)


def _tables(order: AnyArray, counts: IntArray, neighbours: int) -> AnyArray:
    """How many of the first m = 0, ..., 2 k have each label, labels x examples x m; all there are, beyond the last."""
    return np.stack([_running(order, label, counts[:, label], neighbours) for label in range(counts.shape[1])])


def _running(order: AnyArray, wanted: int | IntArray, counts: IntArray, neighbours: int) -> AnyArray:
    """How many of the first m = 0, ..., 2 k have the wanted label, examples x m; `counts` of the first k."""
    # numpy adds up single numbers of 32 bits several times as fast as those of 16.
    found = np.zeros((len(order), 2 * neighbours + 1), np.int32 if 2 * neighbours < 1 << 31 else np.int64)
    found[:, 1 : order.shape[1] + 1] = order == wanted
    np.cumsum(found, axis=1, out=found)
    if (found[:, neighbours] != counts).any():
        raise ConfigError("The counts are not those of the nearest examples in the evidence 'order'; train again.")
    return found


def _withstood_weighed(
    tables: AnyArray, label: IntArray, weights: IntArray, threat: Threat, *, complete: bool
) -> IntArray:
    """The largest r that is safe against every rival, with weights of the labels."""
    own = tables[label, np.arange(len(label))] * weights[label][:, None]
    rivals = range(len(weights))
    found = (own - weights[rival] * tables[rival] - (rival < label)[:, None] for rival in rivals)
    return _withstood_by(found, label, weights, threat, complete=complete)


def _withstood_by(
    leads_over: Iterable[AnyArray], label: IntArray, weights: IntArray, threat: Threat, *, complete: bool
) -> IntArray:
    """The same from the lead over every rival, examples x (d - i = -k, ..., k); -1 where no radius is safe."""
    mine = weights[label][:, None]
    radius = np.full(len(label), SEARCH_LIMIT, dtype=np.int64)
    for rival, (theirs, lead) in enumerate(zip(weights, leads_over, strict=True)):
        neighbours = lead.shape[1] // 2
        radii, shift = np.arange(neighbours + 1), np.arange(-neighbours, neighbours + 1)
        match threat:
            case Threat.ADD:
                safe = _last_safe(lead[:, neighbours::-1] >= radii * theirs)
            case Threat.REMOVE:
                safe = _last_safe(lead[:, neighbours:] >= radii * mine)
                rest = lead[:, -1] - neighbours * mine[:, 0]
                # As without weights: beyond what is shown comes nothing, or for all we know another rival each time.
                more = rest // (mine[:, 0] + (0 if complete else theirs))
                safe = np.where(rest >= 0, neighbours + more, safe)
            case _ if _in_counts(threat):
                safe = lead[:, neighbours] // (mine[:, 0] + theirs)
            case _:
                twice = 2 * lead - shift * (mine - theirs)
                safe = _last_safe(_worst_shift(twice) >= radii * (mine + theirs))
        radius = np.where(label == rival, radius, np.minimum(radius, safe))
    return radius


def _worst_shift(lead: AnyArray) -> AnyArray:
    """From the lead for d - i = -k, ..., k, the smallest over all splits i + d = r, for r = 0, ..., k."""
    neighbours = lead.shape[1] // 2
    worst = np.minimum(lead[:, neighbours::-1], lead[:, neighbours:])
    for parity in (0, 1):
        # From r to r + 2 the same values of m stay possible, and one comes at either end.
        same = worst[:, parity::2]
        np.minimum.accumulate(same, axis=1, out=same)
    return worst


def _last_safe(safe: npt.NDArray[np.bool_]) -> IntArray:
    """The last radius that is safe: 0 is, and a radius below a safe one."""
    return safe.sum(axis=1, dtype=np.int64) - 1


# --- the defence ----------------------------------------------------------------------------------------------------


def _numbers(text: str) -> int | list[int]:
    """One number, or several with commas between them."""
    found = [int(part) for part in text.split(",")]
    return found if len(found) > 1 else found[0]


def _listed(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


# Units that vote by default: as many as of examples.
_MOST_UNITS = 5000
# What the numbers for units were chosen on.
_TUNED_ON = ("MNIST", "Fashion-MNIST")


@register
@dataclass(frozen=True, kw_only=True)
class NearestNeighbours(NearDefence):
    """The nearest examples vote, each with one vote.

    Many neighbours certify large radii, few are more accurate. With several numbers, both: `neighbours=(2400, 100)` and
    `leads=(500,)` ask the 2,400 nearest, and where they agree by fewer than 500 votes, the 100 nearest.

    Guarantee: that of `Certificate`, without any probability of failure.

    Args:
        neighbours: how many examples vote; None: one in fifteen, at most 5,000, of images one in ten, at most 1,000; of
            units, two numbers (see `decided`). Several numbers, the largest first, are asked in turn until one label
            leads by enough; see `NearestExamples`.
        leads: how many votes are enough, for every one of several numbers but the last: a number, or a list with one
            for each label, such as `[[500, 900, 200]]`.

    References: Jia, Liu, Cao, Gong 2022 (arXiv 2012.03765).
    """

    name = "nearest-neighbours"
    summary = "The training examples nearest to an input vote with their labels; nothing is trained."
    mechanisms = (NearestExamples,)
    weighs_votes = True

    neighbours: int | Sequence[int] | None = option(
        None, "nearest-neighbours: how many vote, such as 500 or 2400,100", _numbers, "K"
    )
    leads: Sequence[int | Sequence[int]] | None = option(
        None, "nearest-neighbours: the leads that several numbers of neighbours need, such as 500", _listed, "N"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.neighbours is None:
            if self.leads not in (None, (), []):
                raise ConfigError("Leads are of numbers of neighbours; say neighbours, too, such as [2400, 600].")
            object.__setattr__(self, "leads", None)
            return
        neighbours, leads = checked_scales(self.neighbours, () if self.leads is None else self.leads)
        object.__setattr__(self, "neighbours", neighbours)
        object.__setattr__(self, "leads", leads)
        if leads and self.class_weights is not None:
            raise ConfigError("class_weights are for one number of neighbours; leave leads out, or the weights.")

    @property
    def title(self) -> str:
        """For a legend."""
        match self.neighbours:
            case None:
                return "nearest neighbours"
            case int(count):
                return f"{count:,} nearest neighbours"
            case several:
                return f"{', '.join(f'{count:,}' for count in several[:-1])} or {several[-1]:,} nearest neighbours"

    def to_dict(self) -> dict[str, Any]:
        """Leads only where there are some."""
        said = super().to_dict()
        leads = said.pop("leads", None)
        return {**said, "leads": leads} if leads else said

    def decided(self, facts: Facts) -> dict[str, Any]:
        """One example in fifteen votes, at most 5,000 (of images one in ten, at most 1,000), or as many as a class has.

        The step of the number of examples is down to two fifths of it, so 3% to 7% of all vote. On 22 tables one in ten
        certified as much on the whole: less at changes of 0 and 0.1% of the examples, more at 0.5%. The end bounds
        memory: an input keeps the labels of twice as many.

        Of units, three in four vote, and where their label leads by less than a fifth of the units, those of the
        nearest fifth; of more than ten classes, as many as have a class if each of them has two. Measured on MNIST and
        Fashion-MNIST in 1,000 sources (experiments/sources): where sources have examples of all classes, most of them
        say what is right; where each has two, those of other classes are far, and the second number decides.
        """
        if facts.unit is not None:
            return self._decided_of_units(facts)
        share, most = (10, 1000) if len(facts.shape) > 1 else (15, 5000)
        return {"neighbours": max(1, min(most, facts.num_train // max(share, facts.classes)))}

    def about(self, facts: Facts, own: dict[str, Any]) -> tuple[Statement, ...]:
        """On which data sets the numbers for units were chosen."""
        if facts.unit is None or not own:
            return ()
        return (tuned_constants("The numbers of neighbours", _TUNED_ON, math.prod(facts.shape), facts.classes),)

    def _decided_of_units(self, facts: Facts) -> dict[str, Any]:
        most = min(_MOST_UNITS, 3 * facts.num_train // 4)
        fewer = max(1, min(4 * most // 15, 2 * facts.num_train // facts.classes))
        # Weights of the labels are for one number of neighbours.
        if fewer >= most or self.class_weights is not None:
            return {"neighbours": fewer, "leads": ()}
        return {"neighbours": (most, fewer), "leads": (fewer,)}

    def rule(self) -> Rule:
        """See `NeighbourRule`."""
        return NeighbourRule(class_weights=self.class_weights)

    def votes(
        self,
        examples: StoredExamples,
        test_set: Any,
        progress: Progress | None = None,
        place: Comparing = HERE,
    ) -> Votes:
        """How the examples vote on some inputs."""
        assert self.neighbours is not None
        return neighbour_votes(
            examples,
            test_set,
            neighbours=self.neighbours,
            leads=self.leads or (),
            mirrored=self.mirrored,
            moving_inputs=self.moving_inputs,
            progress=progress,
            place=place,
        )
