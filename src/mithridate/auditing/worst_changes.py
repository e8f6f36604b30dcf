"""The auditor's second route for the defences without privacy, sharing no code with the rules that certified.

* Rules on functions of the data (`recheck`): the worst poisoning of the claimed size is acted out, rival by rival, on
  the votes of one example after the other.
* Rules on random learners (`second_route`): bagging with 60 decimals, size by size of D'; noisy labels from the
  characteristic function of the lead of the changed ones; noisy inputs in closed form.

A claim is confirmed when the label is the prediction and it stays so at the claimed radius, not when the radius is the
largest one. What a file does not show is taken to be what suits the attacker.

References: Levine and Feizi 2021 (arXiv 2006.14768); Wang, Levine and Feizi 2022 (arXiv 2202.02628); Rezaei et al. 2023
(arXiv 2302.02300); Jia et al. 2022 (arXiv 2012.03765); Jia, Cao and Gong 2021 (arXiv 2008.04495); Rosenfeld et al. 2020
(arXiv 2002.03018); Weber et al. 2020 (arXiv 2003.08904).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, DivisionByZero, InvalidOperation
from itertools import combinations
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import special

from mithridate.core.mechanism import (
    Bagged,
    KernelSum,
    Mechanism,
    NearestExamples,
    NoisyFeatures,
    NoisyLabels,
    Partitioned,
    SpreadPartitions,
    Threat,
)
from mithridate.errors import ArtifactError, UnsupportedMechanismError

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

# Where this route rounds, it is accurate to better than this, and the doubt is charged to the claim.
_ROUNDING = 1e-13
# Far more than sixty digits lose to rounding, and nothing beside any probability.
_SIXTIETH = Decimal("1e-35")


class Voted(Protocol):
    """What is read of votes."""

    @property
    def counts(self) -> IntArray:
        """Votes, examples x labels."""
        ...

    @property
    def mechanism(self) -> Mechanism:
        """What the voters are."""
        ...

    @property
    def evidence(self) -> Mapping[str, npt.NDArray[Any]]:
        """What else the mechanism shows of each example."""
        ...


class Limits(Protocol):
    """Bounds on the votes of every example."""

    @property
    def top_lower(self) -> FloatArray:
        """Lower bounds on the share of the label."""
        ...

    @property
    def miss_upper(self) -> FloatArray:
        """Upper bounds on the share of all other labels together."""
        ...

    @property
    def rival_upper(self) -> FloatArray:
        """Upper bounds on the share of any one other label."""
        ...


_Kind = TypeVar("_Kind", bound=Mechanism)
SecondRoute = Callable[[int, Limits], BoolArray]


def recheck(votes: Voted, name: str, threat: Threat, label: npt.ArrayLike, radius: npt.ArrayLike) -> BoolArray:
    """Which claims of a deterministic rule are wrong.

    Guarantee: where the answer is False, the rule predicts `label` from `votes`, and predicts it on every D' within
    `radius` (a radius below 0 claims nothing about D'). Where it is True, the label is not the prediction, or the
    evidence does not rule out an attack.

    Assumes: the counts and the evidence are those of the mechanism; that they fit each other is checked.

    Args:
        votes: what was certified.
        name: the rule: dpa, finite-aggregation, run-off-election, nearest-neighbours or kernel-vote.
        threat: how D' may differ from D.
        label: claimed label of each example.
        radius: claimed radius of each example.

    Raises:
        ArtifactError: evidence that the rule rests on is missing, or contradicts the counts.
        UnsupportedMechanismError: the rule is unknown, or the votes are not of its mechanism.
    """
    if name not in _TABLES:
        raise UnsupportedMechanismError(f"The rule {name!r} is not one of {', '.join(_TABLES)}; update mithridate.")
    table = _TABLES[name](votes, threat)
    labels, radii = np.asarray(label), np.asarray(radius)
    if not labels.shape == radii.shape == (len(votes.counts),):
        raise ArtifactError(f"Expected one label and one radius for each of {len(votes.counts)} examples.")
    wrong = np.ones(len(labels), dtype=np.bool_)
    for example, (claimed, size) in enumerate(zip(labels.tolist(), radii.tolist(), strict=True)):
        # Whether a claim holds is only asked about the winner.
        if claimed == table.winner(example):
            wrong[example] = size > 0 and not table.holds(example, claimed, size)
    return wrong


class _Table(Protocol):
    """The votes of all examples, under one rule."""

    def winner(self, example: int) -> int:
        """What the rule predicts."""
        ...

    def holds(self, example: int, label: int, radius: int) -> bool:
        """Whether the winner `label` still wins after the worst poisoning of this size, 1 or more."""
        ...


class _Majority:
    """Every spoiled part turns one vote, from the label to a rival; a label without votes has lost."""

    def __init__(self, votes: Voted, threat: Threat) -> None:
        mechanism = _expect(votes, Partitioned)
        self._counts, self._threat = _counts_of(votes, mechanism.partitions), threat

    def winner(self, example: int) -> int:
        return _first(self._counts[example])

    def holds(self, example: int, label: int, radius: int) -> bool:
        counts = self._counts[example]
        for rival in _rivals(counts, label):
            turned = min(self._threat.changes(radius), counts[label])
            if not _beats(counts[label] - turned, label, counts[rival] + turned, rival):
                return False
        return True


class _Spread:
    """Every spoiled bucket turns all models that see it; the buckets that hurt most are spoiled.

    A model that two spoiled buckets share is counted twice, as the paper has it: too much damage, never too little.
    """

    def __init__(self, votes: Voted, threat: Threat) -> None:
        mechanism = _expect(votes, SpreadPartitions)
        self._counts, self._threat = _counts_of(votes, mechanism.models), threat
        self._predictions = _evidence(votes, "predictions", (mechanism.models,), below=len(self._counts[0]))
        for example, predictions in enumerate(self._predictions):
            if _histogram(predictions, len(self._counts[0])) != self._counts[example]:
                raise ArtifactError(f"The predictions of example {example} do not add up to its counts.")
        self._offsets = mechanism.offsets

    def winner(self, example: int) -> int:
        return _first(self._counts[example])

    def holds(self, example: int, label: int, radius: int) -> bool:
        counts, predictions = self._counts[example], self._predictions[example]
        spoiled = min(self._threat.changes(radius), len(predictions))
        for rival in _rivals(counts, label):
            # A vote for the label that goes to the rival closes the gap by two, a vote for a third label by one.
            damage = np.ones(len(predictions), dtype=np.int32)
            damage[predictions == label] = 2
            damage[predictions == rival] = 0
            # Bucket 0, 1, ... is seen by the models offset, offset + 1, ..., and behind the last comes the first again.
            around = np.concatenate([damage, damage])
            of_bucket = np.zeros(len(damage), dtype=np.int32)
            for offset in self._offsets:
                of_bucket += around[offset : offset + len(damage)]
            worst = _sum_of_largest(np.bincount(of_bucket), spoiled)
            if not _beats(counts[label] - worst, label, counts[rival], rival):
                return False
        return True


class _RunOff:
    """Every spoiled part turns one model: its vote, and its preference in the final.

    The label loses if two others overtake it in the first round, or if a rival reaches the final and wins it there. How
    the models that prefer the label to the rival are spread over the votes is not known: as suits the attacker.
    """

    def __init__(self, votes: Voted, threat: Threat) -> None:
        mechanism = _expect(votes, Partitioned)
        self._counts, self._threat = _counts_of(votes, mechanism.partitions), threat
        labels = len(self._counts[0])
        preferences = _evidence(votes, "preferences", (labels, labels), below=mechanism.partitions + 1).astype(np.int64)
        pairs = preferences + preferences.transpose(0, 2, 1)
        different = ~np.eye(labels, dtype=np.bool_)
        wrong = ((pairs != mechanism.partitions) & different) | ((preferences != 0) & ~different)
        # Who votes for a label prefers it to every other one.
        wrong |= (preferences < np.asarray(votes.counts)[:, :, None]) & different
        if wrong.any():
            raise ArtifactError(f"The preferences of example {np.argwhere(wrong)[0][0]} do not fit its counts.")
        self._preferences = preferences

    def winner(self, example: int) -> int:
        counts, preferences = self._counts[example], self._preferences[example]
        first = _first(counts)
        second = _first([-1 if label == first else count for label, count in enumerate(counts)])
        return first if _beats(preferences[first, second], first, preferences[second, first], second) else second

    def holds(self, example: int, label: int, radius: int) -> bool:
        counts = self._counts[example]
        spoiled = min(self._threat.changes(radius), sum(counts))
        return not (
            any(self._overtaken(counts, label, pair, spoiled) for pair in combinations(_rivals(counts, label), 2))
            or any(self._beaten(example, label, rival, spoiled) for rival in _rivals(counts, label))
        )

    @staticmethod
    def _overtaken(counts: list[int], label: int, pair: tuple[int, int], spoiled: int) -> bool:
        """Whether both of a pair can get ahead of the label.

        A vote that goes from the label to one of them closes the gap to that one by two, to the other one by one, and
        no other change does more. That the label may not have so many votes to lose is left out: without any votes it
        is overtaken all the same.
        """
        # How far each gap must close: to zero, or beyond where the label wins ties.
        first, second = (counts[label] - counts[rival] + (label < rival) for rival in pair)
        to_first = max(0, first - spoiled)  # So many at least: first - spoiled - to_first <= 0.
        return to_first <= spoiled and second - spoiled - (spoiled - to_first) <= 0

    def _beaten(self, example: int, label: int, rival: int, spoiled: int) -> bool:
        """Whether the rival can get ahead of all third labels, and win against the label.

        Spoiled models vote for the rival and prefer it. Every mix is tried: `third` of them had voted for third labels,
        `own` for the label.
        """
        counts, preferences = self._counts[example], self._preferences[example]
        thirds = [other for other in _rivals(counts, label) if other != rival]
        third = np.arange(min(spoiled, sum(counts[other] for other in thirds)) + 1)
        own = np.minimum(spoiled - third, counts[label])
        needed = np.zeros(len(third), dtype=np.int64)
        for other in thirds:  # So many votes must each of them lose.
            needed += np.maximum(counts[other] + (other < rival) - (counts[rival] + third + own), 0)
        # Of those who voted for third labels, so many prefer the label to the rival; the attacker met them first.
        turned = own + np.minimum(third, int(preferences[label, rival]) - counts[label])
        gap = int(preferences[label, rival] - preferences[rival, label]) + (label < rival)
        return bool(((needed <= third) & (gap <= 2 * turned)).any())


class _Neighbours:
    """Examples of a rival are inserted before all others, and the nearest ones with the label are deleted.

    With several scales, each is asked in turn what these changes can make of its votes at the worst, whoever the rival
    is: the label holds where it must be the answer of a scale, and no scale up to it can answer a rival.
    """

    def __init__(self, votes: Voted, threat: Threat) -> None:
        mechanism = _expect(votes, NearestExamples)
        self._threat, self._neighbours = threat, mechanism.most
        self._counts = _counts_of(votes)
        self._scales = _scales_by_label(mechanism, len(self._counts[0]))
        self._order = _evidence(votes, "order", (None,), below=len(self._counts[0]))
        wanted = 2 * self._neighbours
        if mechanism.num_train is not None and mechanism.num_train < wanted:
            wanted = mechanism.num_train
        if self._order.shape[1] != wanted:
            raise ArtifactError(f"The nearest examples are cut short: {self._order.shape[1]} of {wanted} are there.")
        for example, order in enumerate(self._order):
            if _histogram(order[: self._neighbours], len(self._counts[0])) != self._counts[example]:
                raise ArtifactError(f"The nearest examples of example {example} do not add up to its counts.")
        # A shorter list is all there is; behind a full one comes what suits the attacker: no label, counted as a rival.
        self._unknown = self._neighbours if self._order.shape[1] >= 2 * self._neighbours else 0

    def winner(self, example: int) -> int:
        for neighbours, leads in self._scales:
            counts = _histogram(self._order[example, :neighbours], len(self._counts[example]))
            first = _first(counts)
            needed = counts[first] - leads[first]
            if all(_beats(needed, first, counts[rival], rival) for rival in _rivals(counts, first)):
                return first
        raise AssertionError("The last scale always answers.")

    def holds(self, example: int, label: int, radius: int) -> bool:
        if self._threat is not Threat.REMOVE and radius >= self._neighbours:
            return False  # The neighbourhood is filled with a rival.
        order = np.append(self._order[example].astype(np.int64), np.full(self._unknown, -1))
        inserted, deleted = np.array(list(_splits(self._threat, radius))).T
        deleted = np.minimum(deleted, len(order))
        rivals = _rivals(self._counts[example], label)
        undecided = np.ones(len(inserted), dtype=np.bool_)
        for neighbours, leads in self._scales:
            # So far down the list that the neighbourhood is full without the deleted. Where fewer have the label than
            # are deleted, that is too far; but then the label has lost already, to whoever is left.
            reach = np.clip(neighbours - inserted + deleted, 0, len(order))
            mine = _left(order, label, reach, deleted)
            answers = np.ones(len(inserted), dtype=np.bool_)
            for rival in rivals:
                won = _seen((order == rival) | (order == -1))[reach] + inserted
                wrong = undecided & _may_beat(won - leads[rival], rival, mine, label)
                # The rival answers only where it may lead everybody by enough, third labels as well.
                for third in rivals:
                    if not wrong.any():
                        break
                    if third != rival:
                        wrong &= _may_beat(won - leads[rival], rival, _left(order, third, reach, deleted), third)
                if wrong.any():
                    return False
                answers &= ~_may_beat(won, rival, mine - leads[label], label)
            undecided &= ~answers
        return True


def _left(order: IntArray, label: int, reach: IntArray, deleted: IntArray) -> IntArray:
    """Votes for a label among so many of the list when all that are deleted were for it."""
    return np.maximum(_seen(order == label)[reach] - deleted, 0)


def _scales_by_label(mechanism: NearestExamples, labels: int) -> list[tuple[int, list[int]]]:
    """How many vote at each scale and the lead that each label needs; none at the last, which always answers."""
    scales: list[tuple[int, list[int]]] = []
    for neighbours, lead in mechanism.scales:
        by_label = list(lead) if isinstance(lead, tuple) else [lead] * labels
        if len(by_label) != labels:
            raise ArtifactError(f"The leads are for {len(by_label)} labels, but there are {labels}.")
        scales.append((neighbours, by_label))
    return scales


def _may_beat(theirs: IntArray, rival: int, mine: IntArray, label: int) -> BoolArray:
    return (theirs > mine) | ((theirs == mine) & (rival < label))


class _Kernel:
    """Examples of a rival are inserted with the largest weight, and the heaviest ones with the label are deleted."""

    def __init__(self, votes: Voted, threat: Threat) -> None:
        self._unit, self._threat = _expect(votes, KernelSum).unit, threat
        self._counts = _counts_of(votes)
        self._own: npt.NDArray[np.integer[Any]] | None = None
        # An insertion does as much harm as any deletion: where it may stand in for one, no weights are needed.
        if "own" in votes.evidence or threat not in (Threat.ADD, Threat.SYMMETRIC_DIFFERENCE):
            self._own = _evidence(votes, "own", (self._unit + 1,), below=1 << 53)
            for example, counts in enumerate(self._counts):
                own = self._own[example]
                if _sum_of_largest(own, sum(own.tolist())) != counts[_first(counts)]:
                    raise ArtifactError(f"The weights of example {example} do not add up to the score of its label.")

    def winner(self, example: int) -> int:
        return _first(self._counts[example])

    def holds(self, example: int, label: int, radius: int) -> bool:
        counts = self._counts[example]
        if self._threat is Threat.SYMMETRIC_DIFFERENCE:
            won, lost = radius * self._unit, 0
        else:
            inserted, deleted = next(_splits(self._threat, radius))
            won, lost = inserted * self._unit, 0
            if self._own is not None:
                lost = _sum_of_largest(self._own[example], deleted)
        return all(_beats(counts[label] - lost, label, counts[rival] + won, rival) for rival in _rivals(counts, label))


_TABLES: dict[str, Callable[[Voted, Threat], _Table]] = {
    "dpa": _Majority,
    "finite-aggregation": _Spread,
    "run-off-election": _RunOff,
    "nearest-neighbours": _Neighbours,
    "kernel-vote": _Kernel,
}


def _expect(votes: Voted, kind: type[_Kind]) -> _Kind:
    if not isinstance(votes.mechanism, kind):
        raise UnsupportedMechanismError(f"This rule is for {kind.__name__}, but the votes are of {votes.mechanism}.")
    return votes.mechanism


def _counts_of(votes: Voted, total: int | None = None) -> list[list[int]]:
    counts: list[list[int]] = np.asarray(votes.counts).tolist()
    if total is not None and any(sum(row) != total for row in counts):
        raise ArtifactError(f"The counts of every example must add up to {total}, the number of models; some do not.")
    return counts


def _evidence(votes: Voted, name: str, shape: tuple[int | None, ...], *, below: int) -> npt.NDArray[np.integer[Any]]:
    """An array of the evidence as whole numbers from 0 to `below - 1`; `None` stands for any length."""
    if name not in votes.evidence:
        raise ArtifactError(f"The votes carry no {name!r}, which this certificate rests on; certify again from votes.")
    array = np.asarray(votes.evidence[name])
    wanted = (len(votes.counts), *shape)
    fits = array.ndim == len(wanted) and all(w in (None, s) for w, s in zip(wanted, array.shape, strict=True))
    if not fits or array.dtype.kind not in "iu":
        raise ArtifactError(f"The array {name!r} is not a table of whole numbers of the right size; it is damaged.")
    if array.size and (int(array.min()) < 0 or int(array.max()) >= below):
        raise ArtifactError(f"The array {name!r} holds numbers outside 0 to {below - 1}; the file is damaged.")
    return array


def _beats(mine: int, label: int, theirs: int, rival: int) -> bool:
    return mine > theirs or (mine == theirs and label < rival)


def _first(counts: list[int]) -> int:
    """The label with most votes, of several the smallest; without any votes that is label 0."""
    return counts.index(max(counts))


def _rivals(counts: list[int], label: int) -> list[int]:
    return [rival for rival in range(len(counts)) if rival != label]


def _histogram(labels: npt.NDArray[np.integer[Any]], size: int) -> list[int]:
    return np.bincount(labels.astype(np.int64), minlength=size).tolist()


def _sum_of_largest(histogram: npt.NDArray[np.integer[Any]], number: int) -> int:
    """Sum of the so many largest values, where `histogram` says how often each value from 0 on occurs."""
    total = 0
    for value in np.flatnonzero(histogram)[::-1].tolist():
        taken = min(number, int(histogram[value]))
        total, number = total + taken * value, number - taken
    return total


def _seen(matches: BoolArray) -> IntArray:
    """How many matches there are among the first 0, 1, 2, ... entries."""
    return np.concatenate([[0], np.cumsum(matches)])


def _splits(threat: Threat, radius: int) -> Iterator[tuple[int, int]]:
    """Numbers of (inserted, deleted) examples that `radius` units amount to; fewer do less harm."""
    match threat:
        case Threat.SYMMETRIC_DIFFERENCE:
            yield from ((inserted, radius - inserted) for inserted in range(radius + 1))
        case Threat.ADD:
            yield radius, 0
        case Threat.REMOVE:
            yield 0, radius
        case _:
            yield radius, radius


def second_route(mechanism: Mechanism, method_name: str, options: Mapping[str, Any], threat: Threat) -> SecondRoute:
    """What tells, for a random mechanism, whether the label of each example stays on top at a radius.

    Guarantee: the condition of the method's paper, without the arithmetic of the method. A claim that fails is refused;
    so is one that holds by less than the rounding of this route.

    Args:
        mechanism: what each instance ran.
        method_name: bagging, label-smoothing or feature-smoothing.
        options: the method's options; feature-smoothing has `max_change`.
        threat: how D' may differ from D.

    Raises:
        ArtifactError: an option is missing.
        UnsupportedMechanismError: the method is unknown, or not for this mechanism or threat.
    """
    match method_name, mechanism:
        case "bagging", Bagged():
            return _Bagging(mechanism, threat)
        case "label-smoothing", NoisyLabels() if threat is Threat.LABELS:
            return _LabelNoise(mechanism)
        case "feature-smoothing", NoisyFeatures() if threat is Threat.FEATURES:
            if not isinstance(options.get("max_change"), int | float):
                raise ArtifactError("The certificate does not say by how far an input may change; certify again.")
            return _FeatureNoise(mechanism, float(options["max_change"]))
        case _:
            raise UnsupportedMechanismError(
                f"There is no second route for {method_name!r} on {mechanism} against {threat.value!r}."
            )


class _Bagging:
    """Every size of D' and every number of examples it shares with D, without rounding that could matter.

    With k draws, n examples in D, n' in D' and m in both, the label stays on top if
    `(n'/n)^k - 2 (m/n)^k + (1 - p1) + p2 < 0`. The powers are taken with 60 decimals.

    A ball has as many sizes as its radius. Up to `_EVERY_SIZE` each is tried. Beyond that only those at both ends are,
    and those where the left side stops rising as n' and m grow: with n' - m fixed its slope is
    k n'^(k-1) - 2 k m^(k-1), positive as long as n' / m, which falls, is large enough; with n' = 2m + const it is
    2k n'^(k-1) - 2k m^(k-1), never negative.
    """

    _EVERY_SIZE = 1 << 10

    def __init__(self, mechanism: Bagged, threat: Threat) -> None:
        self._total, self._draws, self._threat = mechanism.num_train, mechanism.draws, threat
        self._exact = Context(prec=60, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[InvalidOperation, DivisionByZero])

    def __call__(self, radius: int, limits: Limits) -> BoolArray:
        worst = Decimal(-2)
        for size, shared in self._neighbouring(radius):
            worst = max(worst, self._lead_lost(size, shared))
            if worst >= 0:  # Lost whatever the votes.
                return np.zeros(len(limits.top_lower), dtype=np.bool_)
        add = self._exact.add
        needed = [add(Decimal(miss), Decimal(rival)) for miss, rival in zip(*_shares(limits), strict=True)]
        return np.array([add(add(worst, share), _SIXTIETH) < 0 for share in needed], dtype=np.bool_)

    def _lead_lost(self, size: int, shared: int) -> Decimal:
        """`(n'/n)^k - 2 (m/n)^k`."""
        return self._exact.subtract(self._power(size), self._exact.multiply(Decimal(2), self._power(max(shared, 0))))

    def _power(self, part: int) -> Decimal:
        if part == 0:
            return Decimal(0)
        log_ratio = self._exact.ln(self._exact.divide(Decimal(part), Decimal(self._total)))
        # Beyond e^1000 either way nothing is known, or needed, but that.
        exponent = self._exact.multiply(Decimal(self._draws), log_ratio)
        return self._exact.exp(min(max(exponent, Decimal(-1000)), Decimal(1000)))

    def _neighbouring(self, radius: int) -> Iterator[tuple[int, int]]:
        """Sizes of D' and of what it shares with D: every one, or of many those among which is the worst."""
        n = self._total
        match self._threat:
            case Threat.EDIT:
                # Fewer examples than D has, at least n - radius of them shared, do less than as many as D has.
                yield from self._every(lambda size: (size, size - radius), n, n + radius)
            case Threat.SYMMETRIC_DIFFERENCE:  # As many insertions as the deletions leave: more are worse.
                yield from self._every(lambda kept: (2 * kept + radius - n, kept), n - min(radius, n), n)
            case Threat.ADD:
                yield n + radius, n
            case Threat.REMOVE:
                yield n - min(radius, n), n - min(radius, n)
            case _:
                yield n, n - min(radius, n)

    def _every(self, split: Callable[[int], tuple[int, int]], first: int, last: int) -> Iterator[tuple[int, int]]:
        """Splits at the whole numbers from `first` to `last`, of many those where the damage can be largest."""
        yield split(last)
        yield split(first)
        if last - first <= self._EVERY_SIZE:
            yield from map(split, range(first + 1, last))
            return
        low, high = first, last  # It rises at `low`, or nowhere, and does not at `high`, or only there.
        while high - low > 1:
            middle = (low + high) // 2
            rises = self._lead_lost(*split(middle + 1)) > self._lead_lost(*split(middle))
            low, high = (middle, high) if rises else (low, middle)
        yield from map(split, range(max(first, low - 4), min(last, high + 4) + 1))


class _LabelNoise:
    """The best test between the noisy labels of D and of D', which differ in `radius` labels.

    Of the differing labels, some come out as D has them, some as D' has them, and the rest as neither. The
    likelihood ratio is a power of the lead, the difference of the first two numbers, so tests are thresholds on it. Its
    law under D' comes from its characteristic function, on a circle that is wide enough; and with
    `H(s) = E (1 - ratio^(s - lead))_+` under D', every whole number s gives a bound `K(x) <= H(s) + ratio^s x`.
    """

    def __init__(self, mechanism: NoisyLabels) -> None:
        self._kept, self._changed = 1 - mechanism.flip_prob, mechanism.flip_prob / (mechanism.classes - 1)
        self._third = max(1 - self._kept - self._changed, 0.0) if mechanism.classes > 2 else 0.0
        self._same = mechanism.flip_prob == (mechanism.classes - 1) / mechanism.classes

    def __call__(self, radius: int, limits: Limits) -> BoolArray:
        miss, rival = _shares(limits)
        if self._same:  # Labels that say nothing cannot be poisoned.
            return miss + rival < 1
        if self._changed == 0:  # So small that it cannot be written: whatever is changed is seen.
            return np.zeros(len(miss), dtype=np.bool_)
        return self.largest(radius, miss) + self.largest(radius, rival) < 1

    def largest(self, radius: int, x: FloatArray) -> FloatArray:
        """K: the largest probability under D' of an event that has probability x under D; rounded up."""
        lead, masses, error = self._law(radius)
        log_ratio = math.log(self._kept) - math.log(self._changed)
        above = np.append(np.cumsum(masses[::-1])[::-1], 0.0)
        # What D has from s on, times ratio^s: from one s to the one below it, a factor and one more mass.
        shrunk = special.xlogy(1, np.maximum(masses, 1e-320)) - lead * log_ratio
        under_d = np.append(np.logaddexp.accumulate(shrunk[::-1])[::-1], -np.inf)
        thresholds = np.append(lead, lead[-1] + 1) * log_ratio
        slack = above - np.exp(np.minimum(under_d + thresholds, 0.0))
        with np.errstate(divide="ignore"):
            log_x = np.log(np.maximum(x, 0.0))
        # D has x above about this threshold; the ones beside it, in case of rounding.
        place = np.searchsorted(-under_d, -log_x)
        values = np.ones(len(x))
        for near in (-1, 0, 1):
            at = np.clip(place + near, 0, len(thresholds) - 1)
            values = np.minimum(values, slack[at] + np.exp(np.minimum(thresholds[at] + log_x, 1.0)))
        return np.minimum(values * (1 + _ROUNDING) + error, 1.0)

    def _law(self, radius: int) -> tuple[FloatArray, FloatArray, float]:
        """Values of the lead, their probabilities under D', and by how much any sum of these may be wrong."""
        # Beyond this lies less than 1e-20 on either side, by Hoeffding's inequality.
        mean, reach = radius * (self._kept - self._changed), 10 * math.sqrt(radius) + 1
        first, last = max(math.floor(mean - reach), -radius), min(math.ceil(mean + reach), radius)
        size = last - first + 1
        angle = (2 * np.pi * np.fft.fftfreq(size)).astype(np.float64)
        # Around the mean, so that powers do not spin; 1 - cos without losing digits.
        centre = self._kept - self._changed
        turned = self._kept * _turn(angle, 1 - centre) + self._changed * _turn(angle, -1 - centre)
        turned += self._third * _turn(angle, -centre)
        powers = (1 + turned) ** radius
        start = np.exp(1j * angle * (radius * centre - first))
        masses = np.fft.fft(powers * start).real / size
        error = radius * 16 * 2.0**-52 * float(np.abs(powers).sum()) + 1e-13
        return np.arange(first, last + 1).astype(np.float64), np.maximum(masses, 0.0), error


def _turn(angle: FloatArray, by: float) -> npt.NDArray[np.complex128]:
    """exp(i angle by) - 1."""
    return 1j * np.sin(angle * by) - 2 * np.sin(angle * by / 2) ** 2


class _FeatureNoise:
    """Gaussian noise hides a shift of all inputs by less than half the noise times the gap of the quantiles."""

    def __init__(self, mechanism: NoisyFeatures, max_change: float) -> None:
        self._noise, self._max_change = mechanism.noise, max_change

    def __call__(self, radius: int, limits: Limits) -> BoolArray:
        miss, rival = _shares(limits)
        with np.errstate(invalid="ignore"):  # A score of exactly 0 against one of exactly 1: not a number, not shown.
            gap = -(special.ndtri(miss) + special.ndtri(rival)) / 2
        # What an input is moved by is compared in units of the noise, so that nothing can overflow.
        return gap * (1 - 1e-14) > math.sqrt(radius) * (self._max_change / self._noise)


def _shares(limits: Limits) -> tuple[FloatArray, FloatArray]:
    """Upper bounds on the share of all other labels and of any one; the first by whichever bound is better."""
    return np.minimum(limits.miss_upper, 1 - limits.top_lower), np.asarray(limits.rival_upper)
