"""Models that each see a part of the training set: DPA, Finite Aggregation, Run-Off Election.

An inserted or deleted example changes the data of the models that see its part, and of no others. Those may then vote
for anything; all others vote as before.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate import _validate
from mithridate.certifying.collective import most_changed
from mithridate.certifying.exact import (
    AnyArray,
    IntArray,
    check_voters,
    chunks,
    evidence_of,
    in_touched_parts,
    leads,
    mechanism_of,
    most_within,
    touched_parts,
    winners,
)
from mithridate.core.collective import Collective
from mithridate.core.mechanism import SEARCH_LIMIT, Deterministic, Mechanism, Threat, Voters
from mithridate.core.rule import Decision, ExactRule, Rule, Weighted
from mithridate.core.units import EXAMPLES, UnitWords
from mithridate.core.votes import Votes
from mithridate.data.partition import Hashes, IndexArray, canonical_order, parts
from mithridate.defences._trained import PlainDefence
from mithridate.defences.base import option
from mithridate.defences.noisy_parts import WITHSTOOD, NoisyPartitioned, SmoothedMajorityRule, drawn_votes
from mithridate.defences.registry import register
from mithridate.errors import ConfigError
from mithridate.training.config import ViewPlan
from mithridate.training.order import Facts

# Up to so many labels, how often one is preferred to another is counted beside the votes, for a run-off election.
_FEW_LABELS = 100
# Noisy copies of every input, where models of parts vote on some.
NOISE_DRAWS = 1000


_PART_WORDS = Voters(
    "models",
    "models",
    "too few models vote for the label rather than another. With more partitions one {change} spoils a smaller share "
    "of the votes, at some cost in accuracy.",
)


@dataclass(frozen=True)
class Partitioned(Deterministic):
    """A deterministic model for each part of the training set.

    A hash of the content of an example (input and label) decides which one of `partitions` parts it belongs to. Model i
    is a deterministic function of the examples of part i, whatever their order, and of nothing else.

    Args:
        partitions: number of parts, at least 1.
    """

    type = "partitioned"
    rule = "dpa"
    words = _PART_WORDS

    partitions: int

    def __post_init__(self) -> None:
        _validate.positive_integer(partitions=self.partitions)
        object.__setattr__(self, "partitions", int(self.partitions))

    @property
    def models(self) -> int:
        """Number of models, one for each part."""
        return self.partitions

    def in_words(self, counted: UnitWords = EXAMPLES) -> str:
        """What it does with the training data, with its constants."""
        return (
            f"a model for each of {self.partitions:,} parts; its {counted.known_by} says to which {counted.a} belongs"
        )


@dataclass(frozen=True)
class SpreadPartitions(Deterministic):
    """A deterministic model for each overlapping part of the training set, as Finite Aggregation has it.

    A hash of the content of an example (input and label) decides which of `models = partitions * spread` buckets it
    belongs to. Bucket b is seen by the models `(b + offset) % models`, for every one of `offsets`. Model i is a
    deterministic function of the examples of its buckets, whatever their order, and of nothing else.

    Args:
        partitions: number of parts that models of the same size would need without overlap, at least 1.
        offsets: which models see a bucket: different whole numbers from 0 to `models - 1`; their number is `spread`.
    """

    type = "spread-partitions"
    rule = "finite-aggregation"
    words = _PART_WORDS

    partitions: int
    offsets: tuple[int, ...]

    def __post_init__(self) -> None:
        _validate.positive_integer(partitions=self.partitions)
        object.__setattr__(self, "partitions", int(self.partitions))
        try:
            object.__setattr__(self, "offsets", tuple(operator.index(offset) for offset in self.offsets))
        except TypeError:
            raise ConfigError(f"Expected offsets as whole numbers, got {self.offsets!r}.") from None
        if not self.offsets or len(set(self.offsets)) < len(self.offsets):
            raise ConfigError(f"Expected at least one offset and no offset twice, got {self.offsets!r}.")
        if min(self.offsets) < 0 or max(self.offsets) >= self.models:
            raise ConfigError(f"Expected offsets from 0 to {self.models - 1}, got {self.offsets!r}.")

    def in_words(self, counted: UnitWords = EXAMPLES) -> str:
        """What it does with the training data, with its constants."""
        return (
            f"{self.models:,} models on parts that overlap; its {counted.known_by} says which {self.spread:,} of them "
            f"see {counted.a} ({self.partitions:,} partitions, each spread over {self.spread:,})"
        )

    @property
    def spread(self) -> int:
        """How many models see each example."""
        return len(self.offsets)

    @property
    def models(self) -> int:
        """Number of models, and of buckets."""
        return self.partitions * len(self.offsets)


# --- what each model sees ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parts(ViewPlan):
    """Each model sees one part of the training set, and is a function of it (`mechanism.Partitioned`).

    Args:
        partitions: number of parts and of models, at least 1.
    """

    partitions: int
    type = "parts"
    has_preferences = True
    is_deterministic = True
    evidence_that_fits = ("predictions",)

    def members(self, hashes: Hashes) -> list[IndexArray]:
        """One part each."""
        return parts(hashes, self.partitions)

    def __post_init__(self) -> None:
        _validate.positive_integer(partitions=self.partitions)

    @property
    def instances(self) -> int:
        """Number of models that vote."""
        return self.partitions

    def mechanism(self, *, num_train: int, classes: int) -> Mechanism:
        """What each model is, as the certificates read it."""
        return Partitioned(self.partitions)

    def check(self, num_train: int) -> None:
        """Require that it suits so many training examples."""
        _check_partitions(self.partitions, num_train)


@dataclass(frozen=True)
class NoisyParts(Parts):
    """The same, and all models answer the same noisy copies of every input (`NoisyPartitioned`).

    Args:
        partitions: number of parts and of models, at least 1.
        noise_draws: copies of every input, at least 1.
    """

    noise_draws: int = NOISE_DRAWS
    type = "noisy-parts"
    has_preferences = False
    evidence_that_fits = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.positive_integer(noise_draws=self.noise_draws)

    def mechanism(self, *, num_train: int, classes: int) -> Mechanism:
        """What the models are, and who votes, as the certificates read it."""
        return NoisyPartitioned(self.partitions)

    def folded(self, answers: IndexArray) -> tuple[IndexArray, dict[str, IndexArray]]:
        """The vote of every copy, and what copies withstand."""
        counts, withstood = drawn_votes(answers, self.noise_draws, self.partitions)
        return counts, {WITHSTOOD: withstood}


@dataclass(frozen=True)
class SpreadParts(ViewPlan):
    """Each model sees several small parts, and each part is seen by several models (`mechanism.SpreadPartitions`).

    Args:
        partitions: number of parts that models of the same size would need without overlap, at least 1.
        spread: how many models see each example, at least 1; there are `partitions * spread` models.
    """

    partitions: int
    spread: int
    type = "spread-parts"
    is_deterministic = True
    evidence = ("predictions",)

    def members(self, hashes: Hashes) -> list[IndexArray]:
        """Several small parts each, in the canonical order."""
        buckets, order = parts(hashes, self.instances), canonical_order(hashes)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        joined = [
            np.concatenate([buckets[(model - offset) % self.instances] for offset in self.offsets])
            for model in range(self.instances)
        ]
        return [indices[np.argsort(place[indices])] for indices in joined]

    def __post_init__(self) -> None:
        _validate.positive_integer(partitions=self.partitions, spread=self.spread)

    @property
    def instances(self) -> int:
        """Number of models that vote."""
        return self.partitions * self.spread

    @property
    def offsets(self) -> tuple[int, ...]:
        """Which models see a bucket: 0 and other numbers below `instances`, a public function of the two constants."""
        found, draw = {0}, 0
        while len(found) < self.spread:
            message = f"offsets {self.partitions} {self.spread} {draw}".encode()
            found.add(int.from_bytes(hashlib.blake2b(message, digest_size=16).digest(), "little") % self.instances)
            draw += 1
        return tuple(sorted(found))

    def mechanism(self, *, num_train: int, classes: int) -> Mechanism:
        """What each model is, as the certificates read it."""
        return SpreadPartitions(self.partitions, self.offsets)

    def check(self, num_train: int) -> None:
        """Require that it suits so many training examples."""
        _check_partitions(self.partitions, num_train)


def _check_partitions(partitions: int, num_train: int) -> None:
    if partitions > num_train:
        raise ConfigError(
            f"There are {partitions} partitions but only {num_train} training examples; use fewer partitions."
        )


# --- rules ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MajorityRule(Weighted, ExactRule):
    """Deep Partition Aggregation: the label with most votes wins, each times the weight of its label.

    Guarantee: the prediction stays the same whatever `radius` units of the threat change. No larger radius can be
    shown from the counts: with one change more, some behaviour of the touched models changes the prediction.

    Assumes: nothing beyond `Partitioned`.

    One change spoils one model. It moves at most one vote from the label a to a rival b, so that the lead
    `w_a n_a - w_b n_b - [b < a]` falls by `w_a + w_b`, and it may fall to 0: the number of changes is
    `lead // (w_a + w_b)`, for the rival with the smallest such number. Without weights that is `lead // 2`. The attack
    needs as many votes for a: where there are fewer, w_a n_a falls to 0 and a has lost to b, which has a vote.

    All predictions together, from the evidence `predictions`, examples x models: the models of the same parts answer on
    every input, so a set of parts changes those inputs on which it moves enough votes, and no others.

    References: Levine & Feizi 2021 (arXiv 2006.14768), Theorem 1.
    """

    name = "dpa"
    title = "DPA"

    def decide(self, votes: Votes, threat: Threat) -> Decision:
        """The prediction on every example, and its radius."""
        check_voters(votes, mechanism_of(votes, Partitioned, self).partitions)
        scores, weights = self.weighed(votes.counts), self.weights(votes.classes)
        label = winners(scores)
        changes = leads(scores, label) // (weights[label][:, None] + weights)
        return Decision(label, in_touched_parts(changes.min(axis=1), threat, votes.unit))

    @property
    def reads_together(self) -> tuple[str, ...]:
        """The vote of every model."""
        return ("predictions",)

    def decide_together(self, votes: Votes, threat: Threat, radii: Sequence[int]) -> Collective:
        """See `_together`: a part is a bucket that one model sees."""
        parts = SpreadPartitions(mechanism_of(votes, Partitioned, self).partitions, (0,))
        return _together(self, votes, parts, threat, radii)


@dataclass(frozen=True)
class SpreadRule(Weighted, ExactRule):
    """Finite Aggregation: the label with most votes of models whose parts overlap wins, each times its weight.

    Reads the evidence `predictions`, examples x models: the label that each model votes for.

    Guarantee: the prediction stays the same whatever `radius` units of the threat change. A larger radius may hold: a
    model that sees two spoiled buckets is counted twice, as in the paper. docs/theory.md says what counting it once
    would show: with a cap by distinct models nothing.

    Assumes: nothing beyond `SpreadPartitions`.

    One change spoils one bucket, and so the models that see it. A spoiled model lowers the lead over rival c by at most
    `w_a [it votes for the label a] + w_c (1 - [it votes for c])`: a vote for a that goes to c costs both weights, one
    for a third label w_c, one for c nothing. A bucket lowers it by the sum of this over its models: its impact. Changes
    to the same bucket spoil nothing more, so r changes do no more than the r largest impacts together, and r is safe
    where this sum is at most the lead, for every rival.

    References: Wang, Levine, Feizi 2022 (arXiv 2202.02628), Theorem 2.
    """

    name = "finite-aggregation"
    title = "Finite Aggregation"

    def reads(self, threat: Threat) -> tuple[str, ...]:
        """The vote of every model."""
        return ("predictions",)

    def decide(self, votes: Votes, threat: Threat) -> Decision:
        """The prediction on every example, and its radius."""
        mechanism = mechanism_of(votes, SpreadPartitions, self)
        check_voters(votes, mechanism.models)
        predictions = evidence_of(votes, "predictions", self, (mechanism.models,))
        scores, weights = self.weighed(votes.counts), self.weights(votes.classes)
        label = winners(scores)
        lead = leads(scores, label)
        changes = np.empty(votes.examples, dtype=np.int64)
        for rows in chunks(votes.examples, mechanism.models * votes.classes):
            backers = backers_of(predictions[rows], votes.counts[rows], mechanism)
            if self.class_weights is None:
                changes[rows] = _spread_changes(backers, label[rows], lead[rows], mechanism.spread)
            else:
                changes[rows] = _weighed_changes(backers, label[rows], lead[rows], mechanism.spread, weights)
        return Decision(label, in_touched_parts(changes, threat, votes.unit))

    @property
    def reads_together(self) -> tuple[str, ...]:
        """The vote of every model."""
        return ("predictions",)

    def decide_together(self, votes: Votes, threat: Threat, radii: Sequence[int]) -> Collective:
        """See `_together`."""
        return _together(self, votes, mechanism_of(votes, SpreadPartitions, self), threat, radii)


def _together(
    rule: MajorityRule | SpreadRule, votes: Votes, mechanism: SpreadPartitions, threat: Threat, radii: Sequence[int]
) -> Collective:
    """How many predictions change together, at most, within each radius.

    Guarantee: no single D' within r units of the threat changes more than `most_changed[r]` predictions. At least as
    many have a radius of their own below r.

    A set of buckets changes an input only if the impacts of its buckets (see `SpreadRule`) add up to more than the lead
    over some rival. The set is the same for all inputs, and `most_changed` bounds how many it can change.
    """
    check_voters(votes, mechanism.models)
    predictions = evidence_of(votes, "predictions", rule, (mechanism.models,))
    scores, weights = rule.weighed(votes.counts), rule.weights(votes.classes)
    label = winners(scores)
    lead = leads(scores, label)
    needs = np.where(lead == np.iinfo(np.int64).max, lead, lead + 1)

    def impacts(rows: slice) -> IntArray:
        backers = backers_of(predictions[rows], votes.counts[rows], mechanism).astype(np.int64)
        own = backers[label[rows], np.arange(backers.shape[1])] * weights[label[rows], None]
        return own + weights[:, None, None] * (mechanism.spread - backers)

    most: dict[int, int] = {}
    proofs: dict[int, IntArray] = {}
    for radius in sorted(radii, reverse=True):
        bound = most_changed(impacts, needs, mechanism.models, touched_parts(radius, threat, votes.unit))
        # What holds at a larger radius holds at this one.
        most[radius] = min(bound.most, *most.values()) if most else bound.most
        if bound.proof is not None:
            proofs[radius] = bound.proof
    return Collective(dict(sorted(most.items())), dict(sorted(proofs.items())))


def backers_of(predictions: AnyArray, counts: IntArray, mechanism: SpreadPartitions) -> AnyArray:
    """For each label, example and bucket: how many of the models that see the bucket vote for the label."""
    # Wide enough for impacts too, which are at most two for each model.
    backers = np.empty((counts.shape[1], *predictions.shape), dtype=np.min_scalar_type(2 * mechanism.spread))
    for label, sums in enumerate(backers):
        votes = predictions == label
        if (votes.sum(axis=1) != counts[:, label]).any():
            raise ConfigError("The evidence 'predictions' does not add up to the counts; train again.")
        sums[:] = in_buckets(votes, mechanism)
    return backers


def in_buckets(chosen: npt.NDArray[np.bool_], mechanism: SpreadPartitions) -> AnyArray:
    """For each example and bucket: how many of the models that see the bucket are chosen, of examples x models."""
    sums = np.zeros(chosen.shape, dtype=np.min_scalar_type(2 * mechanism.spread))
    around = np.concatenate([chosen, chosen], axis=1).view(np.uint8)
    for offset in mechanism.offsets:
        sums += around[:, offset : offset + mechanism.models]
    return sums


def _spread_changes(backers: AnyArray, label: IntArray, lead: IntArray, spread: int) -> IntArray:
    losable = backers[label, np.arange(len(label))] + backers.dtype.type(spread)
    changes = np.full(len(label), SEARCH_LIMIT, dtype=np.int64)
    for rival, gained in enumerate(backers):
        withstood = most_buckets(losable - gained, lead[:, rival], 2 * spread)
        changes = np.where(label == rival, changes, np.minimum(changes, withstood))
    return changes


def most_buckets(impacts: AnyArray, budget: IntArray, largest: int) -> IntArray:
    """How many buckets can be spoiled, those of most impact first, before their impacts exceed a budget.

    Args:
        impacts: of every bucket, examples x buckets, from 0 to `largest`.
        budget: 0 or more, for each example.
        largest: the largest impact that there can be, a small number.

    Returns:
        For each example, at most the number of buckets.
    """
    # Counting how often each small number occurs takes the place of sorting them.
    bins = (np.arange(len(impacts)) * (largest + 1) + largest)[:, None]
    occurrences = np.bincount((bins - impacts).reshape(-1), minlength=len(impacts) * (largest + 1))
    return most_within(budget, np.arange(largest, -1, -1), occurrences.reshape(len(impacts), largest + 1))


def _weighed_changes(backers: AnyArray, label: IntArray, lead: IntArray, spread: int, weights: IntArray) -> IntArray:
    """The same with weights, whose impacts are too many different numbers to be counted: they are sorted."""
    own = backers[label, np.arange(len(label))] * weights[label][:, None]
    changes = np.full(len(label), SEARCH_LIMIT, dtype=np.int64)
    for rival, gained in enumerate(backers):
        impacts = -np.sort(-(own + weights[rival] * (spread - gained.astype(np.int64))), axis=1)
        withstood = (np.cumsum(impacts, axis=1) <= lead[:, rival, None]).sum(axis=1)
        changes = np.where(label == rival, changes, np.minimum(changes, withstood))
    return changes


@dataclass(frozen=True)
class RunOffRule(ExactRule):
    """Run-Off Election: the two labels with most votes go on; of these wins the one that more models prefer.

    Reads the evidence `preferences`, examples x labels x labels: entry [a, b] is the number of models that score label
    a above label b, of equal scores the smaller label; 0 on the diagonal.

    Guarantee: the prediction stays the same whatever `radius` units of the threat change. A larger radius may hold: the
    counts do not say whether the models that help a rival in one round can help it in the other.

    Assumes: nothing beyond `Partitioned`, and that a model votes for the label it scores highest, of equal ones the
    smaller.

    One change spoils one model, which may then vote and prefer as the attacker likes. With n the votes of the first
    round, the prediction a changes in one of two ways only.

    1. a is not among the two. Then two rivals c are ahead of a. Each needs `n_a - n_c + [a < c]` votes. Each of t
       spoiled models takes at most one vote from a, which serves both, and gives one vote to one of them. So
       `sum over both of max(0, need - t) <= t`, and the two rivals with the smallest needs are the cheapest.
    2. a and some b are the two, and b is preferred to a. In the first round b is ahead of every third label c, and
       needs `n_c - n_b + [c < b]` votes. Each of t spoiled models gives one vote to b, which serves against all c, and
       takes one vote from one of them: again `sum over c of max(0, need - t) <= t`. In the second round each spoiled
       model changes the difference by at most 2: `2 t >= preferences[a, b] - preferences[b, a] + [a < b]`. The same
       models may do both, so the larger t counts.

    The radius is one less than the smallest t of all these ways. The paper compares b with the present runner-up only,
    where 2 compares it with all third labels; the radius here is never smaller.

    References: Rezaei, Banihashem, Chegini, Feizi 2023 (arXiv 2302.02300), DPA+ROE.
    """

    name = "run-off-election"
    title = "Run-Off Election"

    @property
    def choice(self) -> str:
        """In two rounds."""
        return "the one that more of the {voters} prefer, of the two with most votes among them"

    def reads(self, threat: Threat) -> tuple[str, ...]:
        """How often one label is preferred to another."""
        return ("preferences",)

    def decide(self, votes: Votes, threat: Threat) -> Decision:
        """The prediction on every example, and its radius."""
        models = mechanism_of(votes, Partitioned, self).partitions
        check_voters(votes, models)
        preferences = evidence_of(votes, "preferences", self, (votes.classes, votes.classes))
        _check_preferences(preferences, votes.counts, models)
        label = run_off(votes.counts, preferences)
        spoiled = np.minimum(
            _spoiled_to_drop(votes.counts, label), _spoiled_to_overrule(votes.counts, preferences, label)
        )
        return Decision(label, in_touched_parts(spoiled - 1, threat, votes.unit))


def _check_preferences(preferences: AnyArray, counts: IntArray, models: int) -> None:
    classes = counts.shape[1]
    different = ~np.eye(classes, dtype=np.bool_)
    for rows in chunks(len(counts), classes * classes):
        part = preferences[rows].astype(np.int64)
        # Who votes for a label prefers it to every other one.
        agrees = (part >= counts[rows, :, None]) & (part + part.transpose(0, 2, 1) == models)
        if not (agrees | ~different).all():
            raise ConfigError(
                "The evidence 'preferences' does not fit the counts: for two labels, entries [a, b] and [b, a] add up "
                "to the number of models, and [a, b] is at least the votes for a. Train again."
            )


def run_off(counts: IntArray, preferences: AnyArray) -> IntArray:
    """Of the two labels with most votes the one that more models prefer; of equals the smaller."""
    # A stable sort of the negated counts puts the smaller of equal labels first.
    finalists = np.sort(np.argsort(-counts, axis=1, kind="stable")[:, :2], axis=1)
    smaller, larger = finalists.T
    examples = np.arange(len(counts))
    prefers_smaller = preferences[examples, smaller, larger] >= preferences[examples, larger, smaller]
    return np.where(prefers_smaller, smaller, larger)


def _spoiled_to_drop(counts: IntArray, label: IntArray) -> IntArray:
    """How many models must be spoiled before two rivals are ahead of the label in the first round."""
    if counts.shape[1] == 2:
        return np.full(len(counts), SEARCH_LIMIT + 1, dtype=np.int64)
    # A rival is ahead of the label where the lead is negative, so it needs one vote more than the lead.
    needs = np.sort(leads(counts, label), axis=1)[:, :2] + 1
    return _fewest_spoiled(needs)


def _spoiled_to_overrule(counts: IntArray, preferences: AnyArray, label: IntArray) -> IntArray:
    """How many models must be spoiled before a rival meets the label in the second round and wins."""
    examples, labels = np.arange(len(counts)), np.arange(counts.shape[1])
    ours = preferences[examples, label].astype(np.int64)
    theirs = preferences[examples, :, label].astype(np.int64)
    second = -((theirs - ours - (label[:, None] < labels)) // 2)
    spoiled = np.full(len(counts), SEARCH_LIMIT + 1, dtype=np.int64)
    for rival in labels:
        needs = counts - counts[:, rival, None] + (labels < rival)
        # Neither the rival nor the label is a third one.
        needs[:, rival] = 0
        needs[examples, label] = 0
        both = np.maximum(_fewest_spoiled(needs), second[:, rival])
        spoiled = np.where(label == rival, spoiled, np.minimum(spoiled, both))
    return spoiled


def _fewest_spoiled(needs: npt.NDArray[np.int64]) -> IntArray:
    """The smallest t of 0 or more with `sum of max(0, need - t) <= t`, for each row of needs.

    The sum is the largest of `(sum of the j largest needs) - j t` over j, so t is at least each of these sums divided
    by j + 1.
    """
    sums = np.cumsum(-np.sort(-needs, axis=1), axis=1)
    shares = -(-sums // np.arange(2, needs.shape[1] + 2))
    return np.maximum(shares.max(axis=1), 0)


# --- the defences ---------------------------------------------------------------------------------------------------


def _partitions_for(num_train: int, learner: Any) -> int:
    """About 50 examples in each of 10 to 250 parts, of 2,000 where a learner is quickly trained."""
    return max(1, min(250 if learner is None else 2_000, max(10, num_train // 50), num_train))


@register
@dataclass(frozen=True, kw_only=True)
class DPA(PlainDefence):
    """Deep partition aggregation: a deterministic model for each part of the data; the majority wins.

    Guarantee: that of `Certificate`, without any probability of failure: a changed example touches one part. With
    `input_noise` the majority is taken on many noisy copies of an input, whose votes are counted; see
    `SmoothedMajorityRule`.

    Args:
        partitions: number of parts; None: about one for every 50 examples, from 10 to 250.
        noise_draws: with `input_noise`, noisy copies of every input; None: 1,000.

    References: Levine, Feizi 2021 (arXiv 2006.14768).
    """

    name = "dpa"
    weighs_votes = True
    summary = "A deterministic model for each part of the data; the majority wins."
    takes_units = True
    takes_input_noise = True
    sized = ("partitions",)

    partitions: int | None = option(None, "dpa, finite-aggregation and their run-offs: number of parts", int, "N")
    preferences: bool | None = None
    noise_draws: int | None = option(
        None, "dpa with --input-noise: noisy copies of every input that models vote on (1000)", int, "N"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise_draws is not None:
            _validate.positive_integer(noise_draws=self.noise_draws)
        if self.input_noise is None and self.noise_draws is not None:
            raise ConfigError("noise_draws are copies of an input with noise; give input_noise, too, or leave it out.")
        if self.input_noise is not None and self.class_weights is not None:
            raise ConfigError("Votes on noisy copies of an input have no class_weights; leave one of both out.")

    @property
    def mechanisms(self) -> tuple[type[Mechanism], ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """By whether inputs get noise."""
        return (Partitioned,) if self.input_noise is None else (NoisyPartitioned,)

    @property
    def title(self) -> str:
        """For a legend."""
        return "DPA" if self.partitions is None else f"DPA, {self.partitions:,} partitions"

    def decided(self, facts: Facts) -> dict[str, Any]:
        """The number of parts; and preferences, which a run-off election on the same models needs, where they fit."""
        return {
            "partitions": _partitions_for(facts.num_train, self.learner),
            "preferences": facts.classes <= _FEW_LABELS and self.input_noise is None,
        }

    @property
    def wants_preferences(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether it is counted how often one label is preferred to another."""
        return bool(self.preferences)

    def plan(self) -> ViewPlan:
        """A part for each model."""
        assert self.partitions is not None
        if self.input_noise is None:
            return Parts(self.partitions)
        return NoisyParts(self.partitions, self.noise_draws or NOISE_DRAWS)

    def rule(self) -> Rule:
        """See `MajorityRule` and `SmoothedMajorityRule`."""
        if self.input_noise is not None:
            return SmoothedMajorityRule()
        return MajorityRule(class_weights=self.class_weights)


@register
@dataclass(frozen=True, kw_only=True)
class RunOffElection(DPA):
    """Partition aggregation in two rounds: the two labels with most votes meet in a run-off.

    Guarantee: as `DPA`; the models are the same. Class weights are those of the losses in training.

    References: Rezaei, Banihashem, Chegini, Feizi 2023 (arXiv 2302.02300).
    """

    name = "run-off-election"
    weighs_votes, weighs_losses = False, True
    takes_input_noise = False
    summary = "DPA in two rounds: the two labels with most votes meet in a run-off."

    @property
    def title(self) -> str:
        """For a legend."""
        return "run-off election" if self.partitions is None else f"run-off election, {self.partitions:,} partitions"

    @property
    def training_key(self) -> dict[str, Any]:
        """The models are those of DPA."""
        return {**super().training_key, "name": DPA.name}

    def decided(self, facts: Facts) -> dict[str, Any]:
        """As DPA, and preferences in any case."""
        return {**super().decided(facts), "preferences": True}

    def rule(self) -> Rule:
        """See `RunOffRule`."""
        return RunOffRule()


@register
@dataclass(frozen=True, kw_only=True)
class FiniteAggregation(PlainDefence):
    """Partition aggregation with small overlapping parts: each example is seen by `spread` models.

    Guarantee: as `DPA`.

    Args:
        partitions: parts that models of the same size would need without overlap; None: as `DPA`.
        spread: how many models see each example; `partitions * spread` models are trained.

    References: Wang, Levine, Feizi 2022 (arXiv 2202.02628).
    """

    name = "finite-aggregation"
    weighs_votes = True
    summary = "DPA with small overlapping parts: each example is seen by several models."
    mechanisms = (SpreadPartitions,)
    takes_units = True
    sized = ("partitions",)

    partitions: int | None = option(None, "dpa, finite-aggregation and their run-offs: number of parts", int, "N")
    spread: int = option(4, "finite-aggregation and its run-off: models that see each example (4)", int, "D")

    @property
    def title(self) -> str:
        """For a legend."""
        of = "" if self.partitions is None else f"{self.partitions:,} x "
        return f"finite aggregation, {of}{self.spread}"

    def decided(self, facts: Facts) -> dict[str, Any]:
        """The number of parts."""
        return {"partitions": _partitions_for(facts.num_train, self.learner)}

    def plan(self) -> ViewPlan:
        """Several small parts for each model."""
        assert self.partitions is not None
        return SpreadParts(self.partitions, self.spread)

    def rule(self) -> Rule:
        """See `SpreadRule`."""
        return SpreadRule(class_weights=self.class_weights)
