"""The second routes for defences whose votes are a function of the data: the worst changes, acted out.

The worst poisoning of the claimed size is tried, rival by rival, on the votes of one example after the other. A claim
is confirmed when the label is the prediction and it stays so at the claimed radius, not when the radius is the largest
one. What a file does not show is taken to be what suits the attacker.

References: Levine and Feizi 2021 (arXiv 2006.14768); Wang, Levine and Feizi 2022 (arXiv 2202.02628); Rezaei et al. 2023
(arXiv 2302.02300); Jia et al. 2022 (arXiv 2012.03765).
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import combinations
from math import ceil, isqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate.auditing.routes import BoolArray, Claim, Difference, IntArray, Route, differences, second_route
from mithridate.core.mechanism import Threat
from mithridate.errors import ArtifactError

# After so many examples whoever waits is told.
_REPORTED = 100


class _VoteTable:
    """The votes of all examples, under one rule."""

    def __init__(self, claim: Claim, total: int | None = None) -> None:
        self._counts: list[list[int]] = claim.counts.tolist()
        self._weights = claim.weights  # what a vote counts, by its label
        self._threat, self._have_names = claim.threat, claim.counts_units
        if total is not None and any(sum(row) != total for row in self._counts):
            raise ArtifactError(
                f"The counts of every example must add up to {total}, the number of models; some do not."
            )

    def _touched(self, radius: int) -> int:
        """How many parts so many units reach: one by its name; without a name, an example that changes reaches two."""
        return radius if self._have_names else self._threat.changes(radius)

    def winner(self, example: int) -> int:
        """What the rule predicts."""
        return _first([weight * count for weight, count in zip(self._weights, self._counts[example], strict=True)])

    def holds(self, example: int, label: int, radius: int) -> bool:
        """Whether the winner `label` still wins after the worst poisoning of this size, 1 or more."""
        raise NotImplementedError


class _Majority(_VoteTable):
    """Every spoiled part turns one vote, from the label to a rival; a label without votes has lost."""

    def __init__(self, claim: Claim) -> None:
        super().__init__(claim, claim.constants["partitions"])

    def holds(self, example: int, label: int, radius: int) -> bool:
        counts = self._counts[example]
        for rival in _rivals(counts, label):
            turned = min(self._touched(radius), counts[label])
            theirs = self._weights[rival] * (counts[rival] + turned)
            if not _beats(self._weights[label] * (counts[label] - turned), label, theirs, rival):
                return False
        return True


class _Spread(_VoteTable):
    """Every spoiled bucket turns all models that see it; the buckets that hurt most are spoiled.

    A model that two spoiled buckets share is counted twice, as the paper has it: too much damage, never too little.
    """

    def __init__(self, claim: Claim) -> None:
        self._offsets: list[int] = claim.constants["offsets"]
        models = claim.constants["partitions"] * len(self._offsets)
        super().__init__(claim, models)
        self._predictions = _evidence(claim, "predictions", (models,), below=len(self._counts[0]))
        for example, predictions in enumerate(self._predictions):
            if _histogram(predictions, len(self._counts[0])) != self._counts[example]:
                raise ArtifactError(f"The predictions of example {example} do not add up to its counts.")

    def holds(self, example: int, label: int, radius: int) -> bool:
        counts, predictions = self._counts[example], self._predictions[example]
        spoiled = min(self._touched(radius), len(predictions))
        for rival in _rivals(counts, label):
            # A vote for the label that goes to the rival closes the gap by both weights (two, if they are one), a vote
            # for a third label by that of the rival.
            mine, theirs = self._weights[label], self._weights[rival]
            damage = np.full(len(predictions), theirs, dtype=np.int64)
            damage[predictions == label] = mine + theirs
            damage[predictions == rival] = 0
            # Bucket 0, 1, ... is seen by the models offset, offset + 1, ..., and behind the last comes the first again.
            around = np.concatenate([damage, damage])
            of_bucket = np.zeros(len(damage), dtype=np.int64)
            for offset in self._offsets:
                of_bucket += around[offset : offset + len(damage)]
            worst = int(np.sort(of_bucket)[len(of_bucket) - spoiled :].sum())
            if not _beats(mine * counts[label] - worst, label, theirs * counts[rival], rival):
                return False
        return True


class _RunOff(_VoteTable):
    """Every spoiled part turns one model: its vote, and its preference in the final.

    The label loses if two others overtake it in the first round, or if a rival reaches the final and wins it there. How
    the models that prefer the label to the rival are spread over the votes is not known: as suits the attacker.
    """

    def __init__(self, claim: Claim) -> None:
        models: int = claim.constants["partitions"]
        super().__init__(claim, models)
        labels = len(self._counts[0])
        preferences = _evidence(claim, "preferences", (labels, labels), below=models + 1).astype(np.int64)
        pairs = preferences + preferences.transpose(0, 2, 1)
        different = ~np.eye(labels, dtype=np.bool_)
        wrong = ((pairs != models) & different) | ((preferences != 0) & ~different)
        # Who votes for a label prefers it to every other one.
        wrong |= (preferences < claim.counts[:, :, None]) & different
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
        spoiled = min(self._touched(radius), sum(counts))
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


class _SpreadRunOff(_VoteTable):
    """Every spoiled bucket turns the ranking of all models that see it; the buckets that hurt most are spoiled.

    What helps the attacker is a score of votes: one for a rival against the label, and so on. A model that turns from
    its vote to the best one for the attacker raises the score by as much as they differ. As in `_Spread`, a model that
    two buckets share is counted twice.
    """

    def __init__(self, claim: Claim) -> None:
        self._offsets: list[int] = claim.constants["offsets"]
        models = claim.constants["partitions"] * len(self._offsets)
        super().__init__(claim, models)
        self._labels = len(self._counts[0])
        self._rankings = _evidence(claim, "rankings", (models, self._labels), below=self._labels)
        for example, rankings in enumerate(self._rankings):
            if (np.sort(rankings, axis=1) != np.arange(self._labels)).any():
                raise ArtifactError(f"The rankings of example {example} do not hold every label once.")
            if _histogram(rankings[:, 0], self._labels) != self._counts[example]:
                raise ArtifactError(f"The rankings of example {example} do not add up to its counts.")

    def _preferring(self, example: int, label: int, rival: int) -> BoolArray:
        """Which models rank the label before the rival: it is the first of the two that occurs."""
        rankings = self._rankings[example]
        return rankings[(rankings == label) | (rankings == rival)].reshape(-1, 2)[:, 0] == label

    def winner(self, example: int) -> int:
        counts = self._counts[example]
        first = _first(counts)
        second = _first([-1 if label == first else count for label, count in enumerate(counts)])
        ours = int(self._preferring(example, first, second).sum())
        return first if _beats(ours, first, sum(counts) - ours, second) else second

    def holds(self, example: int, label: int, radius: int) -> bool:
        spoiled = min(self._touched(radius), sum(self._counts[example]))
        rivals = _rivals(self._counts[example], label)
        passing = [rival for rival in rivals if self._may_lead(example, [rival], [label], spoiled)]
        return not (
            any(self._may_lead(example, list(pair), [label], spoiled) for pair in combinations(passing, 2))
            or any(
                self._may_win(example, label, rival, spoiled) and self._may_enter(example, label, rival, spoiled)
                for rival in rivals
            )
        )

    def _may_enter(self, example: int, label: int, rival: int, spoiled: int) -> bool:
        """Whether the rival may get ahead of the third labels, of the strongest one, of the two strongest and so on."""
        counts = self._counts[example]
        thirds = [other for other in _rivals(counts, label) if other != rival]
        thirds.sort(key=lambda other: (-counts[other] - (other < rival), other))
        return all(self._may_lead(example, [rival], thirds[:number], spoiled) for number in range(1, len(thirds) + 1))

    def _may_win(self, example: int, label: int, rival: int, spoiled: int) -> bool:
        """Whether the rival may win the final: a model that preferred the label makes two of difference."""
        for_label = self._preferring(example, label, rival)
        gap = 2 * int(for_label.sum()) - len(for_label) + (label < rival)
        return self._damage(2 * for_label.astype(np.int64), spoiled) >= gap

    def _may_lead(self, example: int, ahead: list[int], behind: list[int], spoiled: int) -> bool:
        """Whether all pairs of one that is to be ahead and one that is to be behind may turn, by their sum."""
        score = np.zeros(self._labels, dtype=np.int64)
        score[ahead] += len(behind)
        score[behind] -= len(ahead)
        votes = score[self._rankings[example][:, 0]]
        ties = sum(other < one for one in ahead for other in behind)
        return int(votes.sum()) + self._damage(score.max() - votes, spoiled) >= ties

    def _damage(self, of_model: IntArray, spoiled: int) -> int:
        """What the worst buckets do, where it is known what every model can."""
        seen_by = np.add.outer(np.arange(len(of_model)), self._offsets) % len(of_model)
        of_bucket = np.sort(of_model[seen_by].sum(axis=1))
        return int(of_bucket[len(of_bucket) - spoiled :].sum())


class _Neighbours(_VoteTable):
    """Examples of a rival are inserted before all others, and the nearest ones with the label are deleted.

    With several scales, each is asked in turn what these changes can make of its votes at the worst, whoever the rival
    is: the label holds where it must be the answer of a scale, and no scale up to it can answer a rival.
    """

    def __init__(self, claim: Claim) -> None:
        super().__init__(claim)
        self._scales = _scales_by_label(claim, len(self._counts[0]))
        self._neighbours = self._scales[0][0]
        if len(self._scales) > 1 and set(self._weights) != {1}:
            raise ArtifactError("Class weights are proved for one number of neighbours, but there are several.")
        self._order = _evidence(claim, "order", (None,), below=len(self._counts[0]))
        wanted, num_train = 2 * self._neighbours, claim.constants["num_train"]
        if num_train is not None and num_train < wanted:
            wanted = num_train
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
            counts = [weight * count for weight, count in zip(self._weights, counts, strict=True)]
            first = _first(counts)
            needed = counts[first] - leads[first]
            if all(_beats(needed, first, counts[rival], rival) for rival in _rivals(counts, first)):
                return first
        raise AssertionError("The last scale always answers.")

    def holds(self, example: int, label: int, radius: int) -> bool:
        if self._threat is not Threat.REMOVE and radius >= self._neighbours:
            return False  # The neighbourhood is filled with a rival.
        seen, length = self._seen(example), self._order.shape[1] + self._unknown
        labels, weights = np.arange(len(seen))[:, None], np.array(self._weights)[:, None]
        inserted, deleted = _numbers_of_changes(self._threat, radius)
        deleted = np.minimum(deleted, length)
        undecided = np.ones(len(inserted), dtype=np.bool_)
        for neighbours, needed in self._scales:
            leads = np.array(needed)[:, None]
            # So far down the list that the neighbourhood is full without the deleted. Where fewer have the label than
            # are deleted, that is too far; but then the label has lost already, to whoever is left.
            reach = np.clip(neighbours - inserted + deleted, 0, length)
            shown = np.minimum(reach, self._order.shape[1])
            # Votes for each label when all that are deleted were for it, and when it is the rival that gains.
            left = weights * np.maximum(seen[:, shown] - deleted, 0)
            won = weights * (seen[:, shown] + (reach - shown) + inserted)
            wrong = undecided & (labels != label) & _may_beat(won - leads, labels, left[label], label)
            # A rival answers only where it may lead everybody by enough, third labels as well.
            for rival in np.flatnonzero(wrong.any(axis=1)).tolist():
                thirds = (
                    (labels == rival) | (labels == label) | _may_beat(won[rival] - leads[rival], rival, left, labels)
                )
                if (wrong[rival] & thirds.all(axis=0)).any():
                    return False
            behind = _may_beat(won, labels, left[label] - leads[label], label)
            undecided &= (behind & (labels != label)).any(axis=0)
        return True

    def _seen(self, example: int) -> IntArray:
        """How many of each label are among the first 0, 1, 2, ... that the file shows, labels x these numbers."""
        order = self._order[example]
        seen = np.zeros((len(self._counts[0]), len(order) + 1), dtype=np.int64)
        np.cumsum(order == np.arange(len(seen))[:, None], axis=1, out=seen[:, 1:])
        return seen


def _numbers_of_changes(threat: Threat, radius: int) -> tuple[IntArray, IntArray]:
    """The insertions and deletions of every largest difference; see `differences`."""
    if threat is Threat.SYMMETRIC_DIFFERENCE:  # of which there are many
        return np.arange(radius, -1, -1), np.arange(radius + 1)
    ((inserted, deleted),) = differences(threat, radius)
    return np.array([inserted]), np.array([deleted])


def _scales_by_label(claim: Claim, labels: int) -> list[tuple[int, list[int]]]:
    """How many vote at each scale and the lead that each label needs; none at the last, which always answers."""
    voters: int | list[int] = claim.constants["neighbours"]
    leads: list[int | list[int]] = [*claim.constants.get("leads", []), 0]
    by_label = [[lead] * labels if isinstance(lead, int) else lead for lead in leads]
    if wrong := [len(lead) for lead in by_label if len(lead) != labels]:
        raise ArtifactError(f"The leads are for {wrong[0]} labels, but there are {labels}.")
    return list(zip([voters] if isinstance(voters, int) else voters, by_label, strict=True))


def _may_beat(theirs: IntArray, rival: int | IntArray, mine: IntArray, label: int | IntArray) -> BoolArray:
    return (theirs > mine) | ((theirs == mine) & (rival < label))


class _MovedNeighbours(_VoteTable):
    """Neighbours of an input that moves: whoever may be among the nearest is chosen as suits the attacker.

    Every threshold is tried: whoever stays above it must vote, whoever cannot rise to it must not, and of the others
    rivals come first, the label last. At a threshold the numbers are counted label by label.
    """

    def __init__(self, claim: Claim) -> None:
        super().__init__(claim)
        self._still, labels = _Neighbours(claim), len(self._counts[0])
        self._scales = _scales_by_label(claim, labels)
        self._order = _evidence(claim, "moved_order", (None,), below=labels)
        self._lacks = _evidence(claim, "moved_lacks", (self._order.shape[1],), below=(1 << 25) + 1).astype(np.int64)
        self._lengths = _evidence(claim, "moved_lengths", (4,), below=1 << 53)
        self._change, num_train = claim.input_change, claim.constants["num_train"]
        shown = claim.evidence["order"]
        if (self._order[:, : shown.shape[1]] != shown).any() or (np.diff(self._lacks, axis=1) < 0).any():
            raise ArtifactError("The nearest examples of inputs that move are not those of inputs that stay.")
        wanted = max(4 * self._scales[0][0], 4096)
        if self._order.shape[1] != (wanted if num_train is None else min(wanted, num_train)):
            raise ArtifactError("The nearest examples of inputs that move are cut short.")
        # A shorter list is all there is; how many are behind a full one, D may not say.
        cut = self._order.shape[1] == wanted
        self._hidden = 0 if not cut else 1 << 40 if num_train is None else num_train - wanted

    def winner(self, example: int) -> int:
        return self._still.winner(example)

    def holds(self, example: int, label: int, radius: int) -> bool:
        if self._threat is not Threat.REMOVE and radius >= self._scales[0][0]:
            return False  # The neighbourhood is filled with a rival.
        if self._threat is Threat.REMOVE and not self._hidden and not self._order[example].any():
            return True  # There is nothing but label 0, which also wins where nothing is left.
        inserted, deleted = _numbers_of_changes(self._threat, radius)
        undecided = np.ones(len(inserted), dtype=np.bool_)
        for neighbours, needed in self._scales:
            sizes = np.clip(neighbours - inserted + deleted, 0, self._order.shape[1] + self._hidden)
            sets = self._sets_of(example, neighbours, (int(sizes.min()), int(sizes.max())))

            def lead(own: int, rival: int, sets: _Thresholds = sets, sizes: IntArray = sizes) -> IntArray:
                """The least lead after the changes, less 1 where the rival wins ties."""
                costs = self._weights[rival] * inserted + self._weights[own] * deleted
                least = sets.least_lead(own, rival, (self._weights[own], self._weights[rival]), sizes)
                return least - costs - (rival < own)

            over = {rival: lead(label, rival) for rival in _rivals(self._counts[example], label)}
            for rival in over:
                answers = undecided & (over[rival] + needed[rival] < 0)
                # It answers only where it may lead everybody by enough, third labels as well.
                for third in (each for each in over if each != rival and answers.any()):
                    answers &= lead(third, rival) + needed[rival] < 0
                if answers.any():
                    return False
            undecided &= np.any([found < needed[label] for found in over.values()], axis=0)
        return True

    def _sets_of(self, example: int, voters: int, sizes: tuple[int, int]) -> _Thresholds:
        low, high, beyond = self._ends(example, voters)
        numbers = np.arange(len(self._counts[0]))
        thresholds = np.unique(low)
        must, may = np.empty((2, len(numbers), len(thresholds) + 1), dtype=np.int64)
        for label in numbers.tolist():
            is_label = self._order[example] == label
            must[label, :-1] = is_label.sum() - np.searchsorted(np.sort(low[is_label]), thresholds, side="right")
            may[label, :-1] = is_label.sum() - np.searchsorted(np.sort(high[is_label]), thresholds, side="left")
            must[label, -1] = may[label, -1] = is_label.sum()  # below all that are shown
        unseen = np.append(np.where(beyond >= thresholds, self._hidden, 0), self._hidden)
        can = (must.sum(axis=0) <= sizes[1]) & (may.sum(axis=0) + unseen >= sizes[0])
        return _Thresholds(must[:, can], may[:, can], unseen[can])

    def _ends(self, example: int, voters: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any], float]:
        """Between what the products may move, and what those that are not shown can reach.

        The part of an example's row along that of the input and the part across it are looked at one by one.
        """
        near = ((1 << 24) - self._lacks[example]).astype(np.longdouble)
        if self._change >= 4:  # rows of norm 1 are never so far apart
            return np.full(len(near), -np.inf), np.full(len(near), np.inf), np.inf
        own, longest, scale, filled = map(np.longdouble, self._lengths[example].tolist())
        bound = scale * np.longdouble(self._change) * (1 + 2.0**-24) + np.sqrt(filled) + 2.0**-10
        toward = np.clip(near[min(voters, len(near)) - 1] / own, 0, 1) if own else np.longdouble(0)
        along = near / own if own else np.zeros(len(near))
        across = longest - near * along
        distance = np.sqrt(np.maximum(across + own * (toward - along) ** 2, 0) + 2.0**-20)
        moved = bound * distance + 2.0**-20
        beyond = near[-1] + moved[-1]
        if distance[-1] < bound * toward:  # less near ones can rise higher
            beyond = (longest + toward**2 * own) / (2 * toward) + bound**2 * toward / 2 + 2.0**-10
        return near - moved, near + moved, float(beyond)


class _Thresholds:
    """Who must vote, and who may, at some thresholds: numbers by label, and those who are not shown."""

    def __init__(self, must: IntArray, may: IntArray, unseen: IntArray) -> None:
        self._must, self._free, self._unseen = must, may - must, unseen

    def least_lead(self, own: int, rival: int, weights: tuple[int, int], sizes: IntArray) -> IntArray:
        """The least lead of a label over a rival among so many who come first, for some sizes."""
        to_come = sizes[:, None] - self._must.sum(axis=0)
        rivals = np.minimum(to_come, self._free[rival] + self._unseen)
        thirds = self._free.sum(axis=0) - self._free[own] - self._free[rival]
        last = np.maximum(to_come - rivals - thirds, 0)  # of the label
        lead = weights[0] * (self._must[own] + last) - weights[1] * (self._must[rival] + rivals)
        lead[(to_come < 0) | (last > self._free[own])] = np.iinfo(np.int64).max >> 1
        return lead.min(axis=1)


class _Kernel(_VoteTable):
    """Examples of a rival are inserted with the largest weight, and the heaviest ones with the label are deleted."""

    def __init__(self, claim: Claim) -> None:
        super().__init__(claim)
        self._full_weight: int = claim.constants["full_weight"]
        self._own: npt.NDArray[np.integer[Any]] | None = None
        # An insertion does as much harm as any deletion: where it may stand in for one, no weights are needed, unless
        # a vote for the label counts more than one for a rival.
        stands_in = self._threat is Threat.SYMMETRIC_DIFFERENCE and len(set(self._weights)) == 1
        if "own" in claim.evidence or not (self._threat is Threat.ADD or stands_in):
            self._own = _evidence(claim, "own", (self._full_weight + 1,), below=1 << 53)
            for example, counts in enumerate(self._counts):
                own = self._own[example]
                if _sum_of_largest(own, sum(own.tolist())) != counts[self.winner(example)]:
                    raise ArtifactError(f"The weights of example {example} do not add up to the score of its label.")

    def holds(self, example: int, label: int, radius: int) -> bool:
        counts, rivals = self._counts[example], _rivals(self._counts[example], label)
        if self._own is None:
            inserted = radius  # which do the most harm
            return all(self._wins(label, counts[label], rival, counts[rival], inserted) for rival in rivals)
        for inserted, deleted in self._splits(radius, self._own[example]):
            left = counts[label] - _sum_of_largest(self._own[example], deleted)
            if not all(self._wins(label, left, rival, counts[rival], inserted) for rival in rivals):
                return False
        return True

    def _splits(self, radius: int, own: npt.NDArray[np.integer[Any]]) -> list[Difference]:
        """Insertions and deletions to try.

        From one number of deletions to the next the harm changes by as much as long as the examples that go weigh the
        same: only those numbers are tried at which all of a weight are gone.
        """
        if self._threat is not Threat.SYMMETRIC_DIFFERENCE:
            return differences(self._threat, radius)
        if len(set(self._weights)) == 1:
            return [Difference(radius, 0)]
        gone = {0, *(min(radius, number) for number in np.cumsum(own[::-1], dtype=np.float64).tolist())}
        return [Difference(radius - int(deleted), int(deleted)) for deleted in sorted(gone)]

    def _wins(self, label: int, left: int, rival: int, had: int, inserted: int) -> bool:
        won = self._weights[rival] * (had + inserted * self._full_weight)
        return _beats(self._weights[label] * left, label, won, rival)


class _MovedKernel(_Kernel):
    """The same for an input that moves: the label's examples weigh the least that they may, all others the most.

    Weights are added up layer by layer: how many examples weigh at least 1, at least 2, and so on.
    """

    def __init__(self, claim: Claim) -> None:
        super().__init__(claim)
        found: list[int] | None = claim.constants.get("thresholds")
        if found is None or len(found) != self._full_weight or sorted(found) != found:
            raise ArtifactError("The mechanism does not say of what the weights are a function.")
        self._thresholds, labels = np.array(found), len(self._counts[0])
        self._bins = _evidence(claim, "moved_bins", (labels, 513), below=1 << 40)
        lengths = _evidence(claim, "moved_lengths", (4,), below=1 << 53)
        self._moves = [_steps_moved(row, claim.input_change) for row in lengths.tolist()]
        for example, counts in enumerate(self._counts):
            least, most = (np.sum(self._layers(example, end, 0), axis=1) for end in (0, 255))
            if (least > counts).any() or (most < counts).any():
                raise ArtifactError(f"The numbers in the bins of example {example} do not add up to its scores.")

    def _layers(self, example: int, end: int, moved: int) -> IntArray:
        """How many examples of each label weigh at least 1, 2, ..., all at one end of their bins, and moved on."""
        at_least = np.zeros((len(self._counts[0]), 514), dtype=np.int64)  # this bin or a higher one
        at_least[:, :-1] = np.cumsum(self._bins[example][:, ::-1], axis=1, dtype=np.int64)[:, ::-1]
        # The first bin whose end, moved on, is at the threshold: 256 bin - 65536 + end + moved >= threshold.
        first = -((-(self._thresholds + 65536 - end - moved)) // 256)
        return at_least[:, np.clip(first, 0, 513)]

    def holds(self, example: int, label: int, radius: int) -> bool:
        moved = self._moves[example]
        own = self._layers(example, 0, -moved)[label]
        most = np.sum(self._layers(example, 255, moved), axis=1).tolist()
        # Of each weight, those that weigh at least so much, but not more.
        of_weight = np.append(0, own - np.append(own[1:], 0))
        for inserted, deleted in self._splits(radius, of_weight):
            left = int(own.sum()) - _sum_of_largest(of_weight, deleted)
            if not all(self._wins(label, left, each, most[each], inserted) for each in _rivals(most, label)):
                return False
        return True


def _steps_moved(lengths: list[int], change: float) -> int:
    """By how many steps of 256 a product moves at most: in fractions, with roots that are rounded up."""
    _, longest, scale, filled = lengths
    unit = 1 << 40
    root, norm = (Fraction(isqrt(square * unit**2) + 1, unit) for square in (filled, longest))
    far = min(Fraction(change), Fraction(4))  # rows of norm 1 are never so far apart
    bound = scale * far * (1 + Fraction(1, 1 << 24)) + root + Fraction(1, 1 << 10)
    return ceil(bound * norm / 256)


class _Ridge(_VoteTable):
    """Every change takes from each lead as much as the run has shown that it can, and so many are shown at most."""

    def __init__(self, claim: Claim) -> None:
        super().__init__(claim)
        shape = (len(self._counts[0]),)
        self._costs = [_evidence(claim, name, shape, below=1 << 62).tolist() for name in ("offset", "slope", "limit")]

    def holds(self, example: int, label: int, radius: int) -> bool:
        counts, changes = self._counts[example], self._threat.changes(radius)
        for rival in _rivals(counts, label):
            offset, slope, limit = (costs[example][rival] for costs in self._costs)
            left = counts[label] - offset - changes * slope
            if changes > limit or not _beats(left, label, counts[rival], rival):
                return False
        return True


def _neighbours_of(claim: Claim) -> _VoteTable:
    return _MovedNeighbours(claim) if claim.input_change else _Neighbours(claim)


def _kernel_of(claim: Claim) -> _VoteTable:
    return _MovedKernel(claim) if claim.input_change else _Kernel(claim)


def _rechecking(table_of: Callable[[Claim], _VoteTable]) -> Route:
    """The route that asks a table of votes about every example."""

    def recheck_exactly(claim: Claim) -> BoolArray:
        table = table_of(claim)
        wrong = np.ones(len(claim.label), dtype=np.bool_)
        for example, (label, radius) in enumerate(zip(claim.label.tolist(), claim.radius.tolist(), strict=True)):
            # Whether a claim holds is only asked about the winner.
            if label == table.winner(example):
                is_claimed = radius > 0 or (radius == 0 and claim.input_change > 0)
                wrong[example] = is_claimed and not table.holds(example, label, radius)
            if claim.progress is not None and (example + 1) % _REPORTED == 0:
                claim.progress(example + 1, len(wrong))
        if claim.progress is not None:
            claim.progress(len(wrong), len(wrong))
        return wrong

    return recheck_exactly


second_route("partitioned", "dpa")(_rechecking(_Majority))
second_route("spread-partitions", "finite-aggregation")(_rechecking(_Spread))
second_route("partitioned", "run-off-election")(_rechecking(_RunOff))
second_route("spread-partitions", "run-off-finite-aggregation")(_rechecking(_SpreadRunOff))
second_route("nearest-examples", "nearest-neighbours", input_moves=True)(_rechecking(_neighbours_of))
second_route("kernel-sum", "kernel-vote", input_moves=True)(_rechecking(_kernel_of))
second_route("least-squares", "ridge")(_rechecking(_Ridge))


def _evidence(claim: Claim, name: str, shape: tuple[int | None, ...], *, below: int) -> npt.NDArray[np.integer[Any]]:
    """An array of the evidence as whole numbers from 0 to `below - 1`; `None` stands for any length."""
    if name not in claim.evidence:
        raise ArtifactError(f"The votes carry no {name!r}, which this certificate rests on; certify again from votes.")
    array = np.asarray(claim.evidence[name])
    wanted = (len(claim.counts), *shape)
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
