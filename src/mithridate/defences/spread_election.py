"""Run-Off Election among the models of Finite Aggregation: two rounds of votes, and parts that overlap.

An inserted or deleted example changes the data of the models that see its bucket, and of no others. Those may then rank
the labels in any way; all others rank them as before.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from mithridate.certifying.exact import (
    AnyArray,
    IntArray,
    check_voters,
    chunks,
    evidence_of,
    in_touched_parts,
    leads,
    mechanism_of,
)
from mithridate.core.mechanism import SEARCH_LIMIT, Threat
from mithridate.core.rule import Decision, ExactRule, Rule
from mithridate.core.votes import Votes
from mithridate.data.partition import IndexArray
from mithridate.defences.partitions import (
    FiniteAggregation,
    SpreadPartitions,
    SpreadParts,
    backers_of,
    in_buckets,
    most_buckets,
    run_off,
)
from mithridate.defences.registry import register
from mithridate.errors import ConfigError
from mithridate.training.config import ViewPlan


@dataclass(frozen=True)
class RankedSpreadParts(SpreadParts):
    """As `SpreadParts`; it is kept how every model ranks all labels, and not only its vote."""

    type = "ranked-spread-parts"
    evidence = ("predictions", "rankings")


# --- the rule -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SpreadRunOffRule(ExactRule):
    """Run-Off Election on Finite Aggregation: of the two labels with most votes wins the one that more models prefer.

    Reads the evidence `rankings`, examples x models x labels: all labels, from the one that a model scores highest to
    the one that it scores lowest, of equal scores the smaller label first.

    Guarantee: the prediction stays the same whatever `radius` units of the threat change. A larger radius may hold: a
    model that sees two spoiled buckets is counted twice, and buckets that serve in one round need not serve in the
    other.

    Assumes: nothing beyond `SpreadPartitions`, and that a model votes for the label that it ranks first.

    One change spoils one bucket, and so the models that see it; these may then rank the labels as the attacker likes.
    With n the votes of the first round, the prediction a changes in one of two ways only.

    1. a is not among the two. Then two rivals are ahead of a, each of which needs `n_a - n_c + [a < c]` votes. For one
       of them a spoiled model does at most `1 + [it votes a] - [it votes c]`; for both together, b and c, who need the
       sum of both needs, at most `1 + 2 [it votes a] - [it votes b] - [it votes c]`.
    2. a and some b are the two, and b is preferred to a. In the first round b is ahead of every third label c, and
       needs `n_c - n_b + [c < b]` votes; against a set K of third labels together a spoiled model does at most
       `|K| + [it votes for one of K] - |K| [it votes b]`. In the second round b needs a change of the difference of
       `preferences[a, b] - preferences[b, a] + [a < b]`, and a spoiled model that prefers a changes it by 2, any other
       one by nothing.

    Each of these is a condition that a set of buckets meets only if what its models do adds up to the need; r buckets
    do no more than the r largest sums over the models of one bucket. A way is closed to r buckets where one of its
    conditions is, and r is safe where all ways are closed, for all rivals. Of the sets K it is asked about those of the
    j largest needs, for every j; leaving out a condition only makes the radius smaller.

    References: Rezaei, Banihashem, Chegini, Feizi 2023 (arXiv 2302.02300), FA+ROE.
    """

    name = "run-off-finite-aggregation"
    title = "Run-Off Election on Finite Aggregation"

    @property
    def choice(self) -> str:
        """In two rounds."""
        return "the one that more of the {voters} prefer, of the two with most votes among them"

    def reads(self, threat: Threat) -> tuple[str, ...]:
        """How every model ranks the labels."""
        return ("rankings",)

    def decide(self, votes: Votes, threat: Threat) -> Decision:
        """The prediction on every example, and its radius."""
        mechanism = mechanism_of(votes, SpreadPartitions, self)
        check_voters(votes, mechanism.models)
        rankings = evidence_of(votes, "rankings", self, (mechanism.models, votes.classes))
        label, changes = np.empty((2, votes.examples), dtype=np.int64)
        for rows in chunks(votes.examples, mechanism.models * votes.classes):
            election = _Election(rankings[rows], votes.counts[rows], mechanism)
            label[rows], changes[rows] = election.label, election.withstood()
        return Decision(label, in_touched_parts(changes, threat, votes.unit))


class _Election:
    """The two rounds on some examples, and how many spoiled buckets the label withstands in each way."""

    def __init__(self, rankings: AnyArray, counts: IntArray, mechanism: SpreadPartitions) -> None:
        self._counts, self._mechanism = counts, mechanism
        self._places = _places_of(rankings)
        self._backers = backers_of(rankings[:, :, 0], counts, mechanism).astype(np.int64)
        labels, self._examples = range(counts.shape[1]), np.arange(len(counts))
        above = [(self._places[:, :, one, None] < self._places).sum(axis=1) for one in labels]
        self._preferences = np.stack(above, axis=1)
        self.label = run_off(counts, self._preferences)
        self._own = self._backers[self.label, self._examples]

    def withstood(self) -> IntArray:
        """How many buckets cannot change the prediction, in either way."""
        safe = np.full(len(self.label), SEARCH_LIMIT, dtype=np.int64)
        self._overrule(safe)
        self._drop(safe)
        return safe

    def _overrule(self, safe: IntArray) -> None:
        """Lower what is safe to what cannot bring a rival to the second round, and make it win there."""
        for rival in range(self._counts.shape[1]):
            second = self._safe_in_second(rival)
            # One closed condition is enough, so others are asked about only where it does not show enough yet.
            asked = np.flatnonzero((self.label != rival) & (second < safe))
            first = self._safe_in_first(rival, asked)
            safe[asked] = np.minimum(safe[asked], np.maximum(second[asked], first))

    def _drop(self, safe: IntArray) -> None:
        """Lower what is safe to what cannot bring two rivals ahead of the label in the first round."""
        spread, labels = self._mechanism.spread, range(self._counts.shape[1])
        needs = leads(self._counts, self.label)
        np.put_along_axis(needs, self.label[:, None], 0, axis=1)  # its own is not used
        needs += 1
        alone = [_withstood(spread + self._own - self._backers[c], needs[:, c], 2 * spread) for c in labels]
        for one, two in combinations(labels, 2):
            each = np.maximum(alone[one], alone[two])
            asked = np.flatnonzero((self.label != one) & (self.label != two) & (each < safe))
            impacts = spread + 2 * self._own[asked] - self._backers[one, asked] - self._backers[two, asked]
            both = _withstood(impacts, needs[asked, one] + needs[asked, two], 3 * spread)
            safe[asked] = np.minimum(safe[asked], np.maximum(each[asked], both))

    def _safe_in_second(self, rival: int) -> IntArray:
        mine = self._places[self._examples, :, self.label]
        for_label = in_buckets(mine < self._places[:, :, rival], self._mechanism)
        ours = self._preferences[self._examples, self.label, rival]
        theirs = self._preferences[self._examples, rival, self.label]
        need = ours - theirs + (self.label < rival)
        return _withstood(2 * for_label.astype(np.int64), need, 2 * self._mechanism.spread)

    def _safe_in_first(self, rival: int, asked: IndexArray) -> IntArray:
        """Against the third labels of the j largest needs together, for every j; of some examples."""
        spread, counts, examples = self._mechanism.spread, self._counts[asked], np.arange(len(asked))
        labels = np.arange(counts.shape[1])
        needs = counts - counts[:, rival, None] + (labels < rival)
        # Neither the rival nor the label is a third one: they come last, and are left out.
        needs[:, rival] = needs[examples, self.label[asked]] = -SEARCH_LIMIT
        order = np.argsort(-needs, axis=1, kind="stable")[:, : len(labels) - 2]
        own = self._backers[rival, asked]
        safe = np.full(len(asked), -1, dtype=np.int64)
        need, theirs = np.zeros_like(safe), np.zeros_like(own)
        for number, thirds in enumerate(order.T, start=1):
            need = need + needs[examples, thirds]
            theirs = theirs + self._backers[thirds, asked]
            safe = np.maximum(safe, _withstood(number * (spread - own) + theirs, need, (number + 1) * spread))
        return safe


def _withstood(impacts: IntArray, need: IntArray, largest: int) -> IntArray:
    """How many buckets do less together than is needed; -1 where nothing is."""
    return np.where(need > 0, most_buckets(impacts, np.maximum(need - 1, 0), largest), -1)


def _places_of(rankings: AnyArray) -> AnyArray:
    """Where each model ranks each label, 0 for the best; examples x models x labels."""
    labels = rankings.shape[2]
    places = np.full(rankings.shape, labels, dtype=np.min_scalar_type(labels))
    if in_range := bool((rankings < labels).all()):
        np.put_along_axis(places, rankings.astype(np.intp), np.arange(labels)[None, None, :], axis=2)
    if not in_range or (places == labels).any():
        raise ConfigError("The evidence 'rankings' does not hold every label once for each model; train again.")
    return places


# --- the defence ----------------------------------------------------------------------------------------------------


@register
@dataclass(frozen=True, kw_only=True)
class SpreadRunOff(FiniteAggregation):
    """Finite aggregation in two rounds: the two labels with most votes meet in a run-off.

    Guarantee: as `DPA`; the models are those of `FiniteAggregation`. Class weights are those of the losses in training.

    Args:
        partitions: parts that models of the same size would need without overlap; None: as `DPA`.
        spread: how many models see each example; `partitions * spread` models are trained.

    References: Rezaei, Banihashem, Chegini, Feizi 2023 (arXiv 2302.02300).
    """

    name = "run-off-finite-aggregation"
    weighs_votes, weighs_losses = False, True
    summary = "Finite aggregation in two rounds: the two labels with most votes meet in a run-off."

    @property
    def title(self) -> str:
        """For a legend."""
        of = "" if self.partitions is None else f"{self.partitions:,} x "
        return f"run-off on finite aggregation, {of}{self.spread}"

    def plan(self) -> ViewPlan:
        """As finite aggregation; rankings are kept."""
        assert self.partitions is not None
        return RankedSpreadParts(self.partitions, self.spread)

    def rule(self) -> Rule:
        """See `SpreadRunOffRule`."""
        return SpreadRunOffRule()
