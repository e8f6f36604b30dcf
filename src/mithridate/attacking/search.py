"""The search of an audit: which poisoned data set changes which prediction, and what it does to all claims.

It is cheap and may be lucky, so it decides nothing. What it suspects is judged on fresh instances (`judging`), of
deterministic methods by training everything once more.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate._text import counted
from mithridate.attacking import attacks as known_attacks
from mithridate.attacking.attacks import ATTACKS, BOUNDARY, BOUNDARY_KNOWS, BOUNDARY_TITLE
from mithridate.attacking.journal import Journal
from mithridate.attacking.judging import Claims, labels_of, p_value
from mithridate.attacking.poison import NOTHING, Poison
from mithridate.attacking.result import AtChange, Audit, Broken, Control, InputMove, Shown, Target, Used
from mithridate.attacking.retraining import Pipeline, is_instant, is_random
from mithridate.attacking.scene import Scene
from mithridate.core.mechanism import Threat
from mithridate.errors import ConfigError, NumericalError
from mithridate.training.order import Order

IntArray = npt.NDArray[np.int64]
Say = Callable[[str], None]

# Instances of a random learner that vote in a search, and those that judge.
_SEARCHING, _JUDGING = 128, 512
# Poisoned sets that refute claims, after which no more are judged; and sets of each control that are.
_MOST_REFUTING, _MOST_CONTROLS = 12, 3
# How far beyond the radius an attack is tried, in steps, and how exactly the budget that suffices is found.
_STEPS = (1.1, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0)
_TOLERANCE = 0.03
# How often fresh instances are asked whether a label flips, and by how much the budget grows where they deny it.
_CONFIRMATIONS, _A_LITTLE_MORE = 4, 1.1
# Up to this share of all examples attacks are tried in any case.
_AT_LEAST = 0.01
# Budgets at which the claims of a control are attacked.
_BUDGETS_OF_CONTROLS = 2
# Share of the time that is left for controls.
_FOR_CONTROLS = 0.4
# One input with a trigger of bounded length is attacked for so many targets, and by what.
_A_MOVED_TARGET, _ON_MOVED = 2, ("copies", "backdoor")
# Targets against whose predictions each control is tried before anything else.
_CONTROL_TARGETS = 3


class _OutOfTimeError(Exception):
    """The time is over; what was found stays."""


@dataclass(frozen=True)
class Question:
    """What the user wants.

    Attributes:
        targets: how many predictions are attacked.
        budgets: how many changes are tried, as numbers or multiples of the radius; None: as many as it takes.
        attacks: names of attacks; None: all that fit.
        failure_prob: with which a claim may fail.
        threat: what may be changed; None: what `certify` assumes.
        input_change: how far inputs may move, too; none where claims are about inputs as they are.
    """

    targets: int
    budgets: tuple[str, ...] | None
    attacks: tuple[str, ...] | None
    failure_prob: float
    threat: Threat | None
    input_change: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        moves = {"input_change": list(self.input_change)} if self.input_change else {}
        return {
            **{name: value for name, value in vars(self).items() if name != "input_change"},
            **moves,
            "budgets": None if self.budgets is None else list(self.budgets),
            "attacks": None if self.attacks is None else list(self.attacks),
            "threat": None if self.threat is None else self.threat.value,
        }


@dataclass(frozen=True)
class _Seen:
    """What a poisoned set did.

    Attributes:
        cost: how many changes it counts as.
        flipped: whether the target has another label.
        suspects: inputs whose claims the search saw broken.
        controls: the same of the claims of each control.
    """

    cost: int
    flipped: bool
    suspects: tuple[int, ...]
    controls: tuple[tuple[int, ...], ...]


@dataclass(eq=False)
class _ControlTally:
    """What became of the claims of one control.

    Attributes:
        name: whose claims they are.
        claims: what it claims, which is too much.
        checked: how many claims were checked.
        judged: how many poisoned sets were judged against it.
        tails: of the claims that were judged; see `judging.p_value`.
    """

    name: str
    claims: Claims
    checked: int = 0
    judged: int = 0
    tails: list[float] = field(default_factory=list[float])

    def broken(self, level: float) -> int:
        """How many of its claims are refuted, with the correction that those of an audit have: for all checked."""
        return sum(tail * max(self.checked, len(self.tails)) <= level for tail in self.tails)


@dataclass(eq=False)
class AuditSearch:
    """An audit at work.

    Attributes:
        asked: what the user wants.
        pipeline: the way from a training set to votes.
        clean: the order of the clean set.
        scene: what attacks are made from.
        claims: what is audited.
        controls: claims that are too large, by the name of each, the smallest first.
        moved_controls: the same of claims about inputs that have moved.
        rules: the radii of every way to certify the same votes, without limits of size; the own one first.
        guide: which of these radii the search starts from.
        unanimous: on which inputs all instances of the clean run agree; None where votes are no random draws.
        journal: what is known already.
        started: the moment at which the audit would have started without interruptions.
        deadline: when its time is over; None: never.
        say: called with a line for every step.
        inputs: how many inputs are predicted, without those that carry a trigger.
        assumptions: what the certificate takes for granted.
        class_names: what labels are called.
        notes: sentences for the reader.
        changes_of: in what moves of inputs are measured; None: they do not move.
    """

    asked: Question
    pipeline: Pipeline
    clean: Order
    scene: Scene
    claims: Claims
    controls: Sequence[tuple[str, Claims]]
    moved_controls: Sequence[tuple[str, Claims]]
    rules: dict[str, IntArray]
    guide: str
    unanimous: npt.NDArray[np.bool_] | None
    journal: Journal
    started: float
    deadline: float | None
    say: Say
    inputs: int
    assumptions: tuple[str, ...]
    class_names: tuple[str, ...]
    notes: list[str]
    changes_of: str | None = None
    _claims_checked: int = 0
    _claims_at: dict[float, int] = field(default_factory=dict[float, int])
    _retrainings: int = 0
    _used: dict[str, int] = field(default_factory=dict[str, int])
    _judged: dict[str, list[tuple[Broken, int]]] = field(default_factory=dict[str, list[tuple[Broken, int]]])
    _left_unjudged: int = 0
    _refused: dict[str, str] = field(default_factory=dict[str, str])
    _counted: set[str] = field(default_factory=set[str])
    _tallies: list[_ControlTally] = field(default_factory=list[_ControlTally])
    _last_took: float = 0.0

    def __post_init__(self) -> None:
        self._tallies = [_ControlTally(name, claims) for name, claims in [*self.controls, *self.moved_controls]]

    def carried_out(self) -> Audit:
        """All that was asked for, or as much as there is time for."""
        targets: dict[int, Target] = {}
        finished = True
        chosen, moved = self._targets(), self._moved_targets()
        every = _taking_turns(chosen, moved)
        try:
            for number, target in enumerate(every):
                targets[target] = self._attacked(target)
                self._say_target(targets[target], number + 1, len(every))
                if number == 0:
                    self._check_all(chosen)
            for target in sorted(self.scene.triggered.keys() - self.scene.moved.keys()):
                targets[target] = self._attacked(target)
        except _OutOfTimeError:
            finished = False
        return self._found(chosen, moved, targets, finished)

    def _check_all(self, chosen: Sequence[int]) -> None:
        """What is not about one target: the search itself, boundaries of constants, and controls for some of the time.

        After the first target: where there is time for little, its claims have been attacked.
        """
        self._check_search(chosen[0])
        if self.scene.moved:
            self._stamp_triggers()
        if self._wanted(BOUNDARY):
            self._cross_boundaries(chosen[0])
        deadline, plain = self.deadline, len(self.controls)
        groups = [(range(plain), chosen), (range(plain, len(self._tallies)), list(self.scene.moved))]
        groups = [each for each in groups if each[0]]
        for numbers, targets in groups:
            if deadline is not None:
                share = _FOR_CONTROLS / len(groups)
                self.deadline = time.monotonic() + share * (deadline - time.monotonic())
            with contextlib.suppress(_OutOfTimeError):
                self._break_controls(numbers, targets)
            self.deadline = deadline

    def _stamp_triggers(self) -> None:
        """Triggers on inputs, and nothing else: what is certified to 0 changes has to withstand that."""
        nothing = Poison.deleting(self.pipeline.training, NOTHING)
        self._seen("backdoor", next(iter(self.scene.moved)), 0, nothing)

    def _wanted(self, name: str) -> bool:
        return self.asked.attacks is None or name in self.asked.attacks

    def _targets(self) -> list[int]:
        """The predictions to attack: of all certified radii, in an order in which the first few are of all, too."""
        radii = self.claims.radius[: self.inputs]
        known = np.flatnonzero(radii >= min(1, radii.max()))
        ordered = known[np.argsort(radii[known], kind="stable")]
        places = np.unique(np.linspace(0, len(ordered) - 1, min(self.asked.targets, len(ordered))).astype(np.int64))
        return [int(ordered[places[at]]) for at in _spread(len(places))]

    def _moved_targets(self) -> list[int]:
        """Inputs with a trigger to attack: for each change of the input a few, of all radii that are claimed there."""
        found: list[list[int]] = []
        for change in self.asked.input_change:
            there = [number for number, each in self.scene.moved.items() if each.input_change == change]
            known = [number for number in there if self.claims.radius[number] >= 0 and self._attacks(number)]
            ordered = sorted(known, key=lambda number: int(self.claims.radius[number]))
            few = min(len(ordered), math.ceil(self.asked.targets / _A_MOVED_TARGET / len(self.asked.input_change)))
            places = np.unique(np.linspace(0, len(ordered) - 1, few).astype(np.int64)) if few else []
            found.append([ordered[places[at]] for at in _spread(len(places))])
        return functools.reduce(_taking_turns, found, list[int]())

    def _attacks(self, target: int) -> list[str]:
        """Those that fit, in the order in which they are tried; an input with a trigger is there for few."""
        wanted = [name for name in ATTACKS if self._wanted(name)]
        if target in self.scene.moved:
            wanted = [name for name in wanted if name in _ON_MOVED]
        elif target in self.scene.triggered:
            wanted = [name for name in wanted if name == "backdoor"]
        return [name for name in wanted if ATTACKS[name].fits(self.scene, target)]

    # --- one poisoned set --------------------------------------------------------------------------------------------

    def _tried(self, attack: str, target: int, budget: int) -> _Seen | None:
        """What an attack with a budget did; None where there is nothing to change, or more than is allowed."""
        poison = ATTACKS[attack].poison(self.scene, target, budget)
        return None if poison is None else self._seen(attack, target, budget, poison)

    def _seen(
        self, attack: str, target: int, budget: int, poison: Poison, condition: str | None = None
    ) -> _Seen | None:
        key = f"{attack} {target} {budget} {poison.digest()}"
        cost = self._cost(poison)
        if cost is None:
            return None
        covered = self._covered(self.claims, cost)
        known = self.journal.find(key)
        if known is None:
            self._check_time()
            began = time.monotonic()
            known = self._voted(poison, target, cost, covered)
            self._last_took = time.monotonic() - began
            self.journal.add(key, known, time.monotonic() - self.started)
        if known.get("refused"):
            self._refused.setdefault(key, known["refused"])
            return None
        condition = condition or known["condition"]
        seen = _Seen(cost, known["flipped"], tuple(known["suspects"]), tuple(map(tuple, known["controls"])))
        self._count(key, attack, known, seen, covered, is_covered=condition is None)
        if seen.suspects:
            self._judge(key, attack, cost, poison, seen.suspects, condition)
        is_luck = is_random(self.clean) and target in seen.suspects and not self._is_broken(target, cost, poison)
        return replace(seen, flipped=seen.flipped and not is_luck)

    def _covered(self, claims: Claims, cost: int) -> IntArray:
        """The inputs about which something is claimed; where no example is changed, only those that have moved."""
        covered = claims.covering(cost)
        return covered if cost else covered[np.isin(covered, list(self.scene.moved))]

    def _is_broken(self, target: int, cost: int, poison: Poison) -> bool:
        """Whether what the search saw within a radius was confirmed."""
        found = self._broken()
        broken = (each for kind in found.values() for each in kind)
        return any(
            (each.input, each.budget, each.poison.digest()) == (target, cost, poison.digest()) for each in broken
        )

    def _count(
        self, key: str, attack: str, known: dict[str, Any], seen: _Seen, covered: IntArray, *, is_covered: bool
    ) -> None:
        """Count a poisoned set and the claims that it checks, once however often it is asked about."""
        if key in self._counted:
            return
        self._counted.add(key)
        self._retrainings += 1
        self._used[attack] = self._used.get(attack, 0) + 1
        if not is_covered:  # which no certificate claims anything about
            return
        self._claims_checked += len(covered)
        for change in (self.scene.moved[each].input_change for each in covered.tolist() if each in self.scene.moved):
            if change is not None:
                self._claims_at[change] = self._claims_at.get(change, 0) + 1
        for tally, checked, changed in zip(self._tallies, known["control_claims"], seen.controls, strict=True):
            tally.checked += checked
            if not is_random(self.clean):  # a label that changed is a fact
                tally.tails += [0.0] * len(changed)

    def _voted(self, poison: Poison, target: int, cost: int, covered: IntArray) -> dict[str, Any]:
        """Train on the poisoned set, and compare with all claims."""
        chosen = self._asked_about(target, cost, covered) if is_instant(self.clean) else None
        try:
            votes = self.pipeline.poisoned(
                self.clean, poison, chosen, _SEARCHING, self.journal.seed, pinned=not len(covered)
            )
        except ConfigError as error:  # nobody can train on a set that the door refuses
            return {"refused": str(error)[:300]}
        labels = labels_of(votes, self.scene.threat, self.claims.on)
        asked = np.arange(len(self.claims.label)) if chosen is None else chosen
        changed = asked[labels != self.claims.label[asked]]
        condition = None if votes.classes == self.scene.classes else "class-list"
        claimed = [np.intersect1d(asked, self._covered(tally.claims, cost)) for tally in self._tallies]
        return {
            "flipped": bool(target in changed),
            "suspects": np.intersect1d(changed, covered).tolist(),
            "condition": condition,
            "controls": [np.intersect1d(changed, each).tolist() for each in claimed],
            "control_claims": [len(each) for each in claimed],
        }

    def _asked_about(self, target: int, cost: int, covered: IntArray) -> IntArray:
        """The inputs that matter: the target, what claims cover, and of those that have moved what controls do."""
        beyond = [self._covered(claims, cost) for _, claims in self.moved_controls[-1:]]
        return functools.reduce(np.union1d, [covered, *beyond], np.array([target], dtype=np.int64))

    def _check_time(self) -> None:
        """End where another poisoned set, if it takes as long as the last one, would be too late."""
        if self.deadline is not None and time.monotonic() + self._last_took > self.deadline:
            raise _OutOfTimeError

    def _check_search(self, target: int) -> None:
        """Where votes are a function of the data, compute poisoned sets from the start, too: the search reuses much.

        Raises:
            NumericalError: the search sees other votes.
        """
        names = () if is_random(self.clean) else self._attacks(target)
        # Whoever trains takes long from the start: one that inserts will do, and one that deletes.
        for name in names if is_instant(self.clean) else [*names[:1], *(each for each in names if each == "delete")]:
            poison = ATTACKS[name].poison(self.scene, target, max(1, self._guide(target)))
            if poison is not None:
                self._check_poison(f"again {name} {target} {poison.digest()}", poison)

    def _check_poison(self, key: str, poison: Poison) -> None:
        known = self.journal.find(key)
        if known is None:
            self._check_time()
            known = self._agrees(poison)
            self.journal.add(key, known, time.monotonic() - self.started)
        if not known:
            raise self._disagreement()

    def _disagreement(self) -> NumericalError:
        return NumericalError(
            f"{self.clean.defence.name} gives other votes on the same poisoned data when what was computed before "
            "is used again, so this audit would be worth nothing. Please report it."
        )

    def _agrees(self, poison: Poison) -> bool:
        """Whether the quick votes on a poisoned set are those of a run from the start."""
        try:
            quick = self.pipeline.poisoned(self.clean, poison, None, _SEARCHING, self.journal.seed, pinned=False)
            slow = self.pipeline.again(self.clean, poison, _JUDGING, self.journal.seed)
        except ConfigError:  # nobody can train on it
            return True
        return bool(np.array_equal(quick.counts, slow.counts))

    # --- judging -----------------------------------------------------------------------------------------------------

    def _judge(
        self, key: str, attack: str, cost: int, poison: Poison, suspects: Sequence[int], condition: str | None
    ) -> None:
        """Put the claims that the search saw broken before fresh instances."""
        name = f"{condition or ''} {key}"
        if name in self._judged:
            return
        if len({one.poison.digest() for one in self._broken()["violations"]}) >= _MOST_REFUTING:
            self._left_unjudged += len(suspects)
            return
        try:
            said = self._verdict(f"judged {key}", poison, suspects, self.claims)
        except _OutOfTimeError:
            self._left_unjudged += len(suspects)
            raise
        if not is_random(self.clean) and max(said["tails"]) > 0:
            raise self._disagreement()
        found: list[tuple[Broken, int]] = []
        of = self.scene.triggered
        for number, votes, tail in zip(suspects, said["votes"], said["tails"], strict=True):
            label, radius = int(self.claims.label[number]), int(self.claims.radius[number])
            one = Broken(
                number, label, radius, cost, attack, said["seed"], tuple(votes), tail, poison, of.get(number),
                move=self._move_of(number),
            )  # fmt: skip
            found.append((one, int(self.claims.strict[number])))
        self._judged[name] = found

    def _verdict(
        self, key: str, poison: Poison, suspects: Sequence[int], claims: Claims, *, pinned: bool = False
    ) -> dict[str, Any]:
        """How fresh instances vote on some inputs, and how likely that is if their claims are true."""
        known = self.journal.find(key)
        if known is not None:
            return known
        if is_random(self.clean):  # elsewhere it takes one more computation, and what was seen is a fact
            self._check_time()
        seed = os.urandom(32)
        votes = self.pipeline.again(self.clean, poison, _JUDGING, seed, pinned=pinned)
        table = votes.score_sums if claims.on == "scores" and votes.score_sums is not None else votes.counts
        if is_random(self.clean):
            tails = [p_value(votes, at, int(claims.label[at]), claims.on, claims.weights) for at in suspects]
        else:
            labels = labels_of(votes, self.scene.threat, claims.on)
            tails = [0.0 if labels[at] != claims.label[at] else 1.0 for at in suspects]
        said = {
            "seed": seed.hex() if is_random(self.clean) else None,
            "votes": [table[at].tolist() for at in suspects],
            "tails": tails,
        }
        self.journal.add(key, said, time.monotonic() - self.started)
        return said

    @property
    def _level(self) -> float:
        """The chance with which any true claim may be called broken."""
        return self.asked.failure_prob

    # --- the controls ------------------------------------------------------------------------------------------------

    def _break_controls(self, numbers: Sequence[int], targets: Sequence[int]) -> None:
        """Find changes at which a control is wrong: the smallest claims first, until those of one are refuted."""
        for number in numbers:
            tally = self._tallies[number]
            if number >= len(self.controls) and self._breaks_by_triggers(number, tally):
                return
            for target in self._overclaimed(tally.claims, targets):
                if self._breaks(number, tally, target):
                    return

    def _breaks_by_triggers(self, number: int, tally: _ControlTally) -> bool:
        """Whether triggers alone refute claims of a control."""
        target, nothing = next(iter(self.scene.moved)), Poison.deleting(self.pipeline.training, NOTHING)
        seen = self._seen("backdoor", target, 0, nothing)
        if seen is None or not seen.controls[number]:
            return False
        return self._is_refuted(number, tally, f"backdoor {target} 0", nothing, seen)

    def _overclaimed(self, claims: Claims, targets: Sequence[int]) -> list[int]:
        """A few targets: those first about which most is claimed, beside what a sound rule claims."""
        ordered = sorted(targets, key=lambda at: -(claims.radius[at] + 1) / (self._guide(at) + 1))
        # Of many copies of an input one is enough.
        firsts = {self._base(at): at for at in reversed(ordered)}
        return [at for at in ordered if firsts[self._base(at)] == at][:_CONTROL_TARGETS]

    def _base(self, target: int) -> int:
        """The input without a trigger."""
        return self.scene.triggered.get(target, target)

    def _breaks(self, number: int, tally: _ControlTally, target: int) -> bool:
        """Whether an attack on one prediction refutes claims of a control."""
        names = [name for name in self._attacks(target) if name != "delete"] or self._attacks(target)
        for attack in names[:2]:
            # The most that it claims first: where that changes nothing, less will not.
            most = int(tally.claims.radius[target])
            ladder = self._ladder(target, most)
            if not ladder and most > 0 and target in self.scene.moved:  # whose radius may well be 0
                ladder = [most]
            for budget in ladder[: -1 - _BUDGETS_OF_CONTROLS : -1]:
                seen = self._tried(attack, target, budget)
                if seen is None or not seen.controls[number]:
                    continue
                poison = ATTACKS[attack].poison(self.scene, target, budget)
                assert poison is not None
                if self._is_refuted(number, tally, f"{attack} {target} {budget}", poison, seen):
                    return True
        return False

    def _is_refuted(self, number: int, tally: _ControlTally, key: str, poison: Poison, seen: _Seen) -> bool:
        """Judge claims of a control that the search saw broken; whether one of them is false."""
        if is_random(self.clean):
            if tally.judged >= _MOST_CONTROLS:
                return False
            tally.judged += 1
            # Its claims know no limit of size: they are about the constants of the clean set.
            tally.tails += self._verdict(
                f"control {number} {key}", poison, seen.controls[number], tally.claims, pinned=True
            )["tails"]
        return tally.broken(self._level) > 0

    def _control(self, tallies: Sequence[_ControlTally]) -> Control:
        """The control with the smallest claims of which one is refuted; else that with the largest."""
        best = next((each for each in tallies if each.broken(self._level)), tallies[-1])
        return Control(best.name, best.checked, best.broken(self._level))

    # --- one target --------------------------------------------------------------------------------------------------

    def _guide(self, target: int) -> int:
        """Its radius by a sound rule, whatever the size limits: where the search starts."""
        radii = self.rules[self.guide]
        return int(max(radii[target] if target < len(radii) else self.claims.radius[target], 0))

    def _ladder(self, target: int, most: int | None = None) -> list[int]:
        """Budgets beyond the radius, ascending."""
        guide = self._guide(target)
        limit = max(2, self.scene.count // 2, 2 * guide)
        limit = limit if most is None else min(limit, most)
        steps = [guide + 1, *(round(times * max(guide, 1)) for times in _STEPS)]
        if is_random(self.clean):
            steps = steps[3:]
        while steps[-1] < _AT_LEAST * self.scene.count:  # small radii say little of where a label flips
            steps.append(2 * steps[-1])
        return sorted({each for each in steps if guide < each <= limit})

    def _attacked(self, target: int) -> Target:
        """The fewest changes found that flip a prediction; every attack is tried at its radius first."""
        names, radius = self._attacks(target), int(self.claims.radius[target])
        best = _Best()
        for name in names if radius > 0 else ():
            best.note(name, radius, self._tried(name, target, radius))
        if self.asked.budgets is None:
            self._search(target, names, best)
            self._confirm(target, best)
        else:
            self._try_budgets(target, names, best)
        flips = None if best.flipped is None else ATTACKS[best.attack].poison(self.scene, target, best.flipped)
        shown = flips
        if shown is None and best.attack and best.tried:
            shown = ATTACKS[best.attack].poison(self.scene, target, best.tried)
        cost = None if flips is None else flips.cost(self.scene.threat, self.pipeline.training)
        return Target(
            target, int(self.claims.label[target]), self.scene.rival(target), radius, cost,
            best.attack if cost is not None else None, best.tried, shown, self.scene.triggered.get(target),
            None if self.unanimous is None else bool(self.unanimous[target]), self._move_of(target),
        )  # fmt: skip

    def _move_of(self, number: int) -> InputMove | None:
        """How far an input has moved, where claims cover that."""
        if not self.asked.input_change:
            return None
        moved = self.scene.moved.get(number)
        return InputMove(0.0) if moved is None else InputMove(moved.input_change or 0.0, moved.length, moved.trigger)

    def _try_budgets(self, target: int, names: Sequence[str], best: _Best) -> None:
        """Only the budgets asked for, up to the first at which an attack flips the label."""
        assert self.asked.budgets is not None
        radius = max(self._guide(target), 1)
        wanted = {round(float(each[:-1]) * radius) if each.endswith("x") else int(each) for each in self.asked.budgets}
        for budget in sorted(each for each in wanted if 0 < each <= self.scene.count):
            for name in names:
                best.note(name, budget, self._tried(name, target, budget))
            if best.flipped is not None and best.flipped <= budget:
                self._confirm(target, best, most=budget)
            if best.flipped is not None:
                return

    def _search(self, target: int, names: Sequence[str], best: _Best) -> None:
        """Up a ladder until an attack flips the label, then down; the others only where they need fewer changes."""
        ladder = self._ladder(target)
        for name in names:
            low = 0 if best.attack == name and best.flipped is not None else min(self._guide(target), best.bound)
            if best.flipped is None:
                for budget in ladder if not best.was_beyond else ladder[-1:]:
                    best.was_beyond = True
                    seen = self._tried(name, target, budget)
                    best.note(name, budget, seen)
                    if seen is None or seen.flipped:
                        break
                    low = budget
            elif best.attack != name:
                budget = best.flipped - _slack(best.flipped)
                if budget <= low:
                    continue
                best.note(name, budget, self._tried(name, target, budget))
            if best.attack == name and best.flipped is not None:
                self._down(name, target, low, best)

    def _down(self, name: str, target: int, low: int, best: _Best) -> None:
        """Halve the stretch between a budget that does not suffice and one that does."""
        while best.flipped is not None and best.flipped - low > _slack(best.flipped):
            middle = (low + best.flipped) // 2
            seen = self._tried(name, target, middle)
            if seen is not None and seen.flipped:
                best.flipped = middle
            else:
                low = middle

    def _confirm(self, target: int, best: _Best, most: int = 1 << 62) -> None:
        """Ask fresh instances: of many budgets the search takes the luckiest. What they deny takes a little more."""
        if not is_random(self.clean):
            return
        for _ in range(_CONFIRMATIONS):
            if best.flipped is None or best.flipped <= int(self.claims.radius[target]):  # which judging decides
                return
            if self._is_confirmed(best.attack, target, best.flipped):
                return
            best.tried = max(best.tried, best.flipped)
            best.flipped = round(_A_LITTLE_MORE * best.flipped) + 1
            if best.flipped > most:
                break
        best.tried, best.flipped = max(best.tried, min(best.flipped or 0, most)), None

    def _is_confirmed(self, attack: str, target: int, budget: int) -> bool:
        poison = ATTACKS[attack].poison(self.scene, target, budget)
        if poison is None:
            return False
        key = f"confirmed {attack} {target} {budget} {poison.digest()}"
        known = self.journal.find(key)
        if known is None:
            self._check_time()
            chosen = np.array([target])
            pinned = (self._cost(poison) or 0) > int(self.claims.radius[target])
            try:
                votes = self.pipeline.poisoned(self.clean, poison, chosen, _SEARCHING, os.urandom(32), pinned=pinned)
                known = bool(labels_of(votes, self.scene.threat, self.claims.on)[0] != self.claims.label[target])
            except ConfigError:  # nobody can train on it
                known = False
            self.journal.add(key, known, time.monotonic() - self.started)
        return known

    def _cross_boundaries(self, target: int) -> None:
        """Poison across the boundary of every constant that follows the data, where any claim covers it."""
        declared = self.pipeline.asked.classes is not None
        found = known_attacks.boundaries(self.scene, self.clean.size, classes_declared=declared, target=target)
        for number, each in enumerate(found):
            cost = self._cost(each.poison)
            if cost is None:
                continue
            if not len(self.claims.covering(cost)):
                self.notes.append(f"Radii end before {each.what}, which takes {cost:,} changes.")
                continue
            self._seen(BOUNDARY, number, cost, each.poison, each.condition)

    def _cost(self, poison: Poison) -> int | None:
        try:
            return poison.cost(self.scene.threat, self.pipeline.training)
        except ConfigError:  # the threat does not cover it
            return None

    # --- what came of it ---------------------------------------------------------------------------------------------

    def _say_target(self, target: Target, number: int, of: int) -> None:
        if target.flipped_at is None:
            came = f"not flipped by {target.tried:,}"
        else:
            came = f"flipped by {target.flipped_at:,} ({target.attack})"
        move = target.move
        if move is None or move.trigger is None:
            name = f"input {target.input}"
        else:
            name = f"input {target.of} with a {move.trigger} of {move.length:.4g}"
        self.say(f"target {number} of {of}: {name}, certified to {target.radius:,}, {came}")

    def _found(self, chosen: Sequence[int], moved: Sequence[int], targets: dict[int, Target], finished: bool) -> Audit:
        broken = self._broken()
        attacked, moving = (tuple(targets[each] for each in some if each in targets) for some in (chosen, moved))
        plain = (each for each in self.scene.triggered if each not in self.scene.moved)
        triggered = tuple(targets[each] for each in plain if each in targets)
        defence = self.clean.defence
        return Audit(
            method=defence.name,
            title=defence.title,
            threat=self.scene.threat,
            failure_prob=self.claims.failure_prob,
            unit=self.clean.unit,
            inputs=self.inputs,
            claims=self._claims_checked,
            retrainings=self._retrainings,
            violations=broken["violations"],
            excused=broken["excused"],
            conditional=broken["conditional"],
            control=self._control(self._tallies[: len(self.controls)]),
            targets=attacked,
            triggered=triggered,
            used=self._attacks_used(attacked + triggered + moving),
            rules={name: tuple(int(radii[each.input]) for each in attacked) for name, radii in self.rules.items()},
            finished=finished,
            seconds=time.monotonic() - self.started,
            unjudged=0 if broken["violations"] else self._left_unjudged,
            notes=tuple(dict.fromkeys([*self.notes, *self._more_notes(attacked)])),
            assumptions=self.assumptions,
            label_names=self.class_names,
            pictures=Shown(self.pipeline.training, self.pipeline.inputs),
            moved=moving,
            frontier=self._frontier(moving, broken["violations"]),
            changes_of=self.changes_of,
            moved_control=self._control(self._tallies[len(self.controls) :]) if self.moved_controls else None,
        )

    def _frontier(self, attacked: Sequence[Target], broken: Sequence[Broken]) -> tuple[AtChange, ...]:
        """What was claimed and tried at every change of the input."""
        copies = [(number, each.input_change) for number, each in self.scene.moved.items()]
        return tuple(
            AtChange(
                change,
                copies=sum(at == change and bool(self.claims.radius[number] >= 0) for number, at in copies),
                claims=self._claims_at.get(change, 0),
                violations=sum(each.move is not None and each.move.input_change == change for each in broken),
                targets=tuple(each for each in attacked if each.move is not None and each.move.input_change == change),
            )
            for change in self.asked.input_change
        )

    def _more_notes(self, attacked: Sequence[Target]) -> Iterator[str]:
        if not self._used:
            yield (
                f"No attack that was asked for fits {self.clean.defence.name} on this data under the threat "
                f"{self.scene.threat.value}, so nothing was tried."
            )
        for change in self.asked.input_change if not self.scene.moved else ():
            yield f"No trigger of length {change:g} fits these inputs, so no claim about inputs that move was tried."
        at = {each.input_change for number, each in self.scene.moved.items() if self.claims.radius[number] >= 0}
        for change in self.asked.input_change if self.scene.moved else ():
            if change not in at:
                yield f"Of the inputs with a trigger of length {change:g} nothing is certified, so nothing was tried."
        if self._refused:
            reason = next(iter(self._refused.values()))
            yield (
                f"{counted(len(self._refused), 'poisoned data set')} could not be trained on and changed nothing; the "
                f"first because: {reason}"
            )
        freed = next(iter(self.rules.values()))  # those of the own rule
        short = sum(each.radius < freed[each.input] for each in attacked)
        if short:
            yield (
                f"The radii of {counted(short, 'target')} end with the size step; without it they would be larger. "
                "The search goes on beyond them with the constants of the clean set."
            )
        yield from self._about_unanimous(attacked)
        if self._left_unjudged:
            yield (
                f"The search saw {self._left_unjudged:,} more broken claims, which were not judged: those that were "
                "are enough."
            )
        if is_random(self.clean):
            yield (
                f"Attacks were searched and their flips confirmed with {_SEARCHING} instances each, and broken claims "
                f"judged with {_JUDGING} fresh ones; where votes are close, the budget at which a label flips is an "
                "estimate."
            )

    def _about_unanimous(self, attacked: Sequence[Target]) -> Iterator[str]:
        """That the radii of unanimous votes say more of the number of instances than of the prediction."""
        if self.unanimous is None or not attacked:
            return
        others = [each for each in attacked if not each.unanimous]
        if 0 < len(others) < len(attacked):
            ratios = sorted(each.ratio or np.inf for each in others)
            median = ratios[(len(others) - 1) // 2]
            came = (
                f"half flip within {median:.2f} times their radius" if np.isfinite(median) else "fewer than half flip"
            )
            yield (
                f"On {len(attacked) - len(others):,} of {counted(len(attacked), 'target')} all instances of the clean "
                "run agree, and their radii end with the number of instances. Of the "
                f"{counted(len(others), 'other')}, {came}."
            )

    def _broken(self) -> dict[str, tuple[Broken, ...]]:
        """The claims that are refuted, by what follows from that."""
        kinds: dict[str, list[Broken]] = {"violations": [], "excused": [], "conditional": []}
        refuted = [
            (key, replace(one, p=min(1.0, one.p * max(1, self._claims_checked))), strict)
            for key, found in self._judged.items()
            for one, strict in found
        ]
        refuted = [each for each in refuted if each[1].p <= self._level]
        doubtful = {one.input for key, one, strict in refuted if key.startswith(" ") and strict < one.budget}
        excused = self.claims.allows(len(doubtful))
        for key, one, strict in refuted:
            if not key.startswith(" "):
                kinds["conditional"].append(one)
            elif strict < one.budget and excused:
                kinds["excused"].append(one)
            else:
                kinds["violations"].append(one)
        return {name: tuple(found) for name, found in kinds.items()}

    def _attacks_used(self, targets: Sequence[Target]) -> tuple[Used, ...]:
        best = [each.attack for each in targets]
        known = [(each.name, each.title, each.knows) for each in ATTACKS.values()]
        known.append((BOUNDARY, BOUNDARY_TITLE, BOUNDARY_KNOWS))
        return tuple(
            Used(name, title, knows, self._used[name], best.count(name))
            for name, title, knows in known
            if name in self._used
        )


@dataclass(eq=False)
class _Best:
    """The fewest changes that flip a label, so far.

    Attributes:
        flipped: the budget; None: none did.
        attack: which attack, or the one that was tried with most.
        tried: the largest budget that was tried.
        was_beyond: whether any attack was tried beyond the radius.
    """

    flipped: int | None = None
    attack: str = ""
    tried: int = 0
    was_beyond: bool = False

    @property
    def bound(self) -> int:
        """More than which nobody need try."""
        return 1 << 62 if self.flipped is None else self.flipped - 1

    def note(self, name: str, budget: int, seen: _Seen | None) -> None:
        """What came of a try."""
        if seen is None:
            return
        if budget > self.tried:
            self.tried, self.attack = budget, self.attack if self.flipped is not None else name
        if seen.flipped and (self.flipped is None or budget < self.flipped):
            self.flipped, self.attack = budget, name


def _taking_turns(some: Sequence[int], others: Sequence[int]) -> list[int]:
    """One of each in turn; what is left of the longer ones comes last."""
    pairs = itertools.zip_longest(some, others)
    return [each for pair in pairs for each in pair if each is not None]


def _slack(budget: int) -> int:
    return max(1, round(_TOLERANCE * budget))


def _spread(count: int) -> list[int]:
    """All numbers below a count, in an order whose beginnings are spread evenly: 0, the last, the middle, and so on."""
    if count <= 2:
        return list(range(count))
    order, gaps = [0, count - 1], [(0, count - 1)]
    while gaps:
        low, high = gaps.pop(0)
        if high - low < 2:
            continue
        middle = (low + high) // 2
        order.append(middle)
        gaps += [(low, middle), (middle, high)]
    return order
