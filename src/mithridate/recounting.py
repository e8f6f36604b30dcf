"""The auditor's second route for the defences without privacy, sharing no code with the rules that certified.

* Rules on functions of the data (`recheck`): the worst poisoning of the claimed size is acted out, rival by rival, on
  the votes of one example after the other.
* Rules on random learners (`second_route`): bagging in whole numbers without any rounding; noisy labels from binomial
  tails, one for each number of changed labels that the noise left a trace of; noisy inputs in closed form.

A claim is confirmed when the label is the prediction and it stays so at the claimed radius, not when the radius is the
largest one. What a file does not show is taken to be what suits the attacker.

References: Levine and Feizi 2021 (arXiv 2006.14768); Wang, Levine and Feizi 2022 (arXiv 2202.02628); Rezaei et al. 2023
(arXiv 2302.02300); Jia et al. 2022 (arXiv 2012.03765); Jia, Cao and Gong 2021 (arXiv 2008.04495); Rosenfeld et al. 2020
(arXiv 2002.03018); Weber et al. 2020 (arXiv 2003.08904).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from itertools import combinations
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from mithridate.errors import ArtifactError, UnsupportedMechanismError
from mithridate.mechanism import (
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

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

# Where this route rounds, it is accurate to better than this, and gives the claim the benefit of so much doubt.
_ROUNDING = 1e-12


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

    Guarantee: the condition of the method's paper, without the arithmetic of the method. A claim that fails is refused
    unless it fails by less than the rounding of this route, which is below 1e-12.

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
    """Every size of D' and every number of examples it shares with D, in whole numbers.

    With k draws, n examples in D, n' in D' and m in both, the label stays on top if
    `(n'/n)^k - 2 (m/n)^k + (1 - p1) + p2 < 0`; everything is multiplied by n^k.
    """

    def __init__(self, mechanism: Bagged, threat: Threat) -> None:
        self._total, self._draws, self._threat = mechanism.num_train, mechanism.draws, threat

    def __call__(self, radius: int, limits: Limits) -> BoolArray:
        worst = -2 * self._total**self._draws
        for size, shared in self._neighbouring(radius):
            worst = max(worst, size**self._draws - 2 * max(shared, 0) ** self._draws)
            if worst >= 0:  # Lost whatever the votes.
                return np.zeros(len(limits.top_lower), dtype=np.bool_)
        whole = self._total**self._draws
        needed = [Fraction(miss) + Fraction(rival) for miss, rival in zip(*_shares(limits), strict=True)]
        return np.array([worst * f.denominator + whole * f.numerator < 0 for f in needed], dtype=np.bool_)

    def _neighbouring(self, radius: int) -> Iterator[tuple[int, int]]:
        """Sizes of D' and of what it shares with D."""
        n = self._total
        match self._threat:
            case Threat.EDIT:
                yield from ((size, max(n, size) - radius) for size in range(n + radius, max(n - radius, 0) - 1, -1))
            case Threat.SYMMETRIC_DIFFERENCE:  # As many insertions as the deletions leave: more are worse.
                yield from ((n + radius - 2 * deleted, n - deleted) for deleted in range(min(radius, n) + 1))
            case Threat.ADD:
                yield from ((n + inserted, n) for inserted in range(radius, -1, -1))
            case Threat.REMOVE:
                yield from ((n - deleted, n - deleted) for deleted in range(min(radius, n), -1, -1))
            case _:
                yield from ((n, n - changed) for changed in range(min(radius, n), -1, -1))


class _LabelNoise:
    """The best test between the noisy labels of D and of D', which differ in `radius` labels.

    Of the differing labels, some come out as D has them, some as D' has them, and the rest as neither. The
    likelihood ratio is a power of the difference of the first two numbers, so tests are thresholds on it. The number of
    labels that come out as one of both is binomial, and so is, given that number, how many come out as D' has them.
    """

    def __init__(self, mechanism: NoisyLabels) -> None:
        kept, changed = 1 - mechanism.flip_prob, mechanism.flip_prob / (mechanism.classes - 1)
        self._same = math.isclose(kept, changed, rel_tol=1e-13)
        self._either = min(kept + changed, 1.0) if mechanism.classes > 2 else 1.0
        self._turned = changed / (kept + changed)

    def __call__(self, radius: int, limits: Limits) -> BoolArray:
        miss, rival = _shares(limits)
        if self._same:  # Labels that say nothing cannot be poisoned.
            return miss + rival < 1
        return self.largest(radius, miss) + self.largest(radius, rival) < 1 + _ROUNDING

    def largest(self, radius: int, x: FloatArray) -> FloatArray:
        """K: the largest probability under D' of an event that has probability x under D."""
        low, high = np.full(len(x), -radius), np.full(len(x), radius + 1)
        while (high - low > 1).any():  # The tail from `low` on is at least x, the tail from `high` on at most.
            middle = (low + high) // 2
            fits = self._tail(radius, middle, self._turned) <= x
            low, high = np.where(fits, low, middle), np.where(fits, middle, high)
        below, above = (self._tail(radius, edge, self._turned) for edge in (high, low))
        share = np.divide(x - below, above - below, out=np.ones(len(x)), where=above > below)
        least, most = (self._tail(radius, edge, 1 - self._turned) for edge in (high, low))
        return least + np.clip(share, 0, 1) * (most - least)

    def _tail(self, radius: int, threshold: IntArray, turned: float) -> FloatArray:
        """Probability that at least `threshold` more labels come out as D' has them than as D has them."""
        mean, reach = radius * self._either, 6 * math.sqrt(radius) + 1  # Beyond lies less than 1e-30, by Hoeffding.
        counted = np.arange(max(math.floor(mean - reach), 0), min(math.ceil(mean + reach), radius) + 1)
        weights = stats.binom.pmf(counted, radius, self._either)
        distinct, inverse = np.unique(threshold, return_inverse=True)
        # At least (counted + threshold) / 2 of the counted ones, rounded up.
        least = (counted + distinct[:, None] + 1) // 2
        return np.minimum(stats.binom.sf(least - 1, counted, turned) @ weights, 1.0)[inverse]


class _FeatureNoise:
    """Gaussian noise hides a shift of all inputs by less than half the noise times the gap of the quantiles."""

    def __init__(self, mechanism: NoisyFeatures, max_change: float) -> None:
        self._noise, self._max_change = mechanism.noise, max_change

    def __call__(self, radius: int, limits: Limits) -> BoolArray:
        miss, rival = _shares(limits)
        hidden = self._noise / 2 * -(special.ndtri(miss) + special.ndtri(rival))
        return hidden * (1 + _ROUNDING) > math.sqrt(radius) * self._max_change


def _shares(limits: Limits) -> tuple[FloatArray, FloatArray]:
    """Upper bounds on the share of all other labels and of any one; the first by whichever bound is better."""
    return np.minimum(limits.miss_upper, 1 - limits.top_lower), np.asarray(limits.rival_upper)
