"""What an audit found: claims that were checked and broken, the control, and how far the best attacks got."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mithridate._io.artifacts import write_npz
from mithridate._io.files import PathLike, write_atomically
from mithridate._text import counted
from mithridate._version import VERSION
from mithridate.attacking.poison import Poison
from mithridate.comparing.result import make_folder
from mithridate.core.conditions import in_json
from mithridate.core.mechanism import Threat
from mithridate.core.registry import hook
from mithridate.core.units import Unit, UnitWords, unit_in_json, words_of
from mithridate.data.examples import Examples

SCHEMA = "mithridate.audit/1"
PAGE, RECORD = "audit.html", "audit.json"
# Status of the command.
HOLDS, BROKEN, NO_POWER = 0, 1, 3


@dataclass(frozen=True)
class InputMove:
    """How far an input has moved, in an audit of claims that cover that.

    Attributes:
        input_change: the certified change of the input whose claim is meant; 0: the input is as it was given.
        length: how long the change really is, rounded up.
        trigger: what did it: `patch` or `drift`; None: nothing.
    """

    input_change: float
    length: float = 0.0
    trigger: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        said: dict[str, Any] = {"input_change": self.input_change}
        return said if self.trigger is None else {**said, "input_moved_by": self.length, "trigger": self.trigger}


@dataclass(frozen=True, eq=False)
class Broken:
    """A claim that a poisoned data set refuted.

    Attributes:
        input: the number of the input; those from `Audit.inputs` on carry a trigger.
        label: what was claimed.
        radius: how many changes the label was claimed to withstand.
        budget: how many it did not withstand.
        attack: the name of the attack.
        seed: the root seed of the instances that voted, in hexadecimal digits; None of a deterministic method.
        votes: how they voted.
        p: the chance of such votes if the claim is true, times the number of claims and of rivals.
        poison: what was changed.
        of: of an input with a trigger, the input without it.
        file: where what was changed is kept, below the folder of the audit.
        move: how far the input has moved, where claims cover that.
        input_file: where the input is kept that has moved, likewise.
    """

    input: int
    label: int
    radius: int
    budget: int
    attack: str
    seed: str | None
    votes: tuple[float, ...]
    p: float
    poison: Poison
    of: int | None = None
    file: str | None = None
    move: InputMove | None = None
    input_file: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        names = ("input", "label", "radius", "budget", "attack", "seed", "p", "file")
        more: dict[str, Any] = {} if self.of is None else {"triggered_copy_of": self.of}
        more |= {} if self.move is None else self.move.to_dict()
        more |= {} if self.input_file is None else {"input_file": self.input_file}
        return {**{name: getattr(self, name) for name in names}, "votes": list(self.votes), **more}


@dataclass(frozen=True, eq=False)
class Target:
    """A prediction that was attacked.

    Attributes:
        input: its number.
        label: what the clean run predicts.
        rival: what the attacks want.
        radius: certified.
        flipped_at: the fewest changes found that change the label; None: none did.
        attack: which attack found them.
        tried: the most changes that were tried.
        poison: the changes that did it, or the most that were tried.
        of: of an input with a trigger, the input without it.
        unanimous: whether all instances of the clean run agree, so that their number limits the radius; None: votes are
            no random draws.
        move: how far the input has moved, where claims cover that.
    """

    input: int
    label: int
    rival: int
    radius: int
    flipped_at: int | None
    attack: str | None
    tried: int
    poison: Poison | None = None
    of: int | None = None
    unanimous: bool | None = None
    move: InputMove | None = None

    @property
    def ratio(self) -> float | None:
        """How many times the certified radius it took; what is certified to 0 counts as 1."""
        return None if self.flipped_at is None else self.flipped_at / max(self.radius, 1)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        names = ("input", "label", "rival", "radius", "flipped_at", "attack", "tried")
        said = {name: getattr(self, name) for name in names}
        more = {"triggered_copy_of": self.of, "unanimous": self.unanimous}
        more |= {} if self.move is None else self.move.to_dict()
        return {**said, **{name: value for name, value in more.items() if value is not None}}


@dataclass(frozen=True, eq=False)
class AtChange:
    """What was claimed and tried at one change of the input.

    Attributes:
        input_change: Euclidean length up to which inputs were moved by triggers.
        copies: how many of the inputs with a trigger something is claimed about.
        claims: how many claims about them were checked, over all poisoned data sets.
        violations: how many of these are refuted.
        targets: those that were attacked.
    """

    input_change: float
    copies: int
    claims: int
    violations: int
    targets: tuple[Target, ...]

    @property
    def flipped(self) -> int:
        """How many of those that were attacked flip by some number of changes."""
        return sum(each.flipped_at is not None for each in self.targets)

    @property
    def median_radius(self) -> int | None:
        """That of those that were attacked; of an even number the lower of the two in the middle."""
        return None if not self.targets else sorted(each.radius for each in self.targets)[(len(self.targets) - 1) // 2]

    @property
    def median_flipped_at(self) -> int | None:
        """The changes of the training data by which half of those that were attacked flip; None: fewer do."""
        found = sorted(each.flipped_at for each in self.targets if each.flipped_at is not None)
        half = (len(self.targets) + 1) // 2
        return None if not self.targets or len(found) < half else found[half - 1]

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        names = ("input_change", "copies", "claims", "violations", "flipped", "median_radius", "median_flipped_at")
        return {**{name: getattr(self, name) for name in names}, "targets": len(self.targets)}


@dataclass(frozen=True)
class Control:
    """Claims that are known to be too large, against the same attacks: whoever cannot break these can break nothing.

    Attributes:
        method: whose claims they are.
        claims: how many were checked.
        violations: how many were broken.
    """

    method: str
    claims: int
    violations: int

    @property
    def has_power(self) -> bool:
        """Whether the attacks break claims that are false."""
        return self.violations > 0

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "method": self.method,
            "claims": self.claims,
            "violations": self.violations,
            "has_power": self.has_power,
        }


@dataclass(frozen=True)
class Used:
    """An attack, and how often it was used.

    Attributes:
        name: as flags call it.
        title: for people.
        knows: what it knows, as the end of a sentence.
        retrainings: how many poisoned data sets it made.
        best_on: on how many targets it needed the fewest changes.
    """

    name: str
    title: str
    knows: str
    retrainings: int
    best_on: int

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return dict(vars(self))


@dataclass(frozen=True, eq=False)
class Shown:
    """What a page shows of examples.

    Attributes:
        training: the clean set.
        inputs: what is predicted, and behind that the inputs that carry a trigger.
    """

    training: Examples
    inputs: Examples


@dataclass(frozen=True, eq=False)
class Audit:
    """What attacks did to the claims of a method.

    Guarantee: with probability at least `1 - failure_prob` no true claim is called broken by the tests, and a violation
    is counted only where a sound certificate would have made such a claim with probability `failure_prob` in all, or so
    many broken ones with probability 5% (see `attacking.judging`). Of a deterministic method a violation is a fact.

    That nothing was broken does not show that nothing can be: the radii say what cannot happen, and attacks say what
    can.

    Attributes:
        method: the name of the method.
        title: the same for people.
        threat: what may be changed.
        failure_prob: with which its claims may fail; 0 of deterministic methods.
        unit: what radii count, where that is not examples.
        inputs: how many inputs were predicted; those with a trigger come behind them.
        claims: how many were checked, over all poisoned data sets.
        retrainings: how many of these there were.
        violations: the claims that are refuted.
        excused: broken claims that a sound certificate may contain, by its failure probability.
        conditional: broken claims that the certificate names a condition for.
        control: claims known to be too large.
        targets: the predictions that were attacked.
        triggered: those of inputs with a trigger.
        used: the attacks.
        rules: for each way to certify the same votes, the radii of the targets.
        finished: whether all that was asked for was done within the time.
        seconds: how long it took.
        unjudged: how many claims looked broken in the search and could not be judged in the time.
        notes: sentences for the reader.
        assumptions: what the certificate takes for granted.
        label_names: what classes are called.
        pictures: what a page shows of examples.
        moved: those of inputs with a trigger that is no longer than a certified change of the input.
        frontier: what was tried at every change of the input; empty where claims are about inputs as they are.
        changes_of: in what these are measured: `pixels`, `values` or `features`.
        moved_control: claims about inputs with such a trigger that are known to be too large.
    """

    method: str
    title: str
    threat: Threat
    failure_prob: float
    unit: Unit | None
    inputs: int
    claims: int
    retrainings: int
    violations: tuple[Broken, ...]
    excused: tuple[Broken, ...]
    conditional: tuple[Broken, ...]
    control: Control
    targets: tuple[Target, ...]
    triggered: tuple[Target, ...]
    used: tuple[Used, ...]
    rules: Mapping[str, tuple[int, ...]]
    finished: bool
    seconds: float
    unjudged: int = 0
    notes: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    label_names: tuple[str, ...] = ()
    pictures: Shown | None = field(default=None, repr=False)
    moved: tuple[Target, ...] = ()
    frontier: tuple[AtChange, ...] = ()
    changes_of: str | None = None
    moved_control: Control | None = None

    def __repr__(self) -> str:
        return f"Audit of {self.method}\n{self.headline}"

    def _repr_html_(self) -> str:
        return hook("AuditReport")(self)._repr_html_()

    @property
    def unit_words(self) -> UnitWords:
        """How people speak of what radii count."""
        return words_of(self.unit)

    def name_of(self, label: int) -> str:
        """What a label is called."""
        return self.label_names[label] if label < len(self.label_names) else str(label)

    @property
    def exit_status(self) -> int:
        """0: nothing was broken; 1: a claim was; 3: neither a claim nor a control was, or not all was judged."""
        if self.violations:
            return BROKEN
        if self.unjudged:
            return NO_POWER
        has_power = self.control.has_power and self.claims and self.targets and self._has_power_where_inputs_move
        return HOLDS if has_power else NO_POWER

    @property
    def _has_power_where_inputs_move(self) -> bool:
        """Whether claims about inputs that move were tried, and larger ones are refuted; true where there are none."""
        if not self.frontier:
            return True
        has_power = self.moved_control is not None and self.moved_control.has_power
        return has_power and any(each.claims for each in self.frontier)

    @cached_property
    def median_ratio(self) -> float | None:
        """The budget at which half of the targets have flipped, over their certified radii; None: fewer flipped."""
        ratios = sorted(target.ratio for target in self.targets if target.ratio is not None)
        half = (len(self.targets) + 1) // 2
        return None if not self.targets or len(ratios) < half else ratios[half - 1]

    def flipped_by(self, ratio: float) -> float:
        """The share of targets that flip within so many times their radius."""
        within = [target.ratio is not None and target.ratio <= ratio for target in self.targets]
        return float(np.mean(within)) if within else 0.0

    # --- in words ----------------------------------------------------------------------------------------------------

    @property
    def headline(self) -> str:
        """What it came to."""
        said = f"{self.claims:,} certified claims were checked under {counted(self.retrainings, 'poisoned data set')}"
        if self.violations:
            inputs = len({each.input for each in self.violations})
            said += f": {len(self.violations):,} are broken, on {counted(inputs, 'input')}."
            return " ".join(filter(None, [said, self._moved_words, self._ratio_words]))
        said += f": none is broken{self._unjudged_words}."
        return " ".join(filter(None, [said, self._moved_words, self._ratio_words, self.control_words]))

    @property
    def _moved_words(self) -> str:
        """How many of the claims are about inputs with a trigger, where some may be."""
        if not self.frontier:
            return ""
        longest = max(each.input_change for each in self.frontier)
        claims = sum(each.claims for each in self.frontier)
        return f"{claims:,} of them are about inputs that carry a trigger of length {longest:g} or less."

    @property
    def _unjudged_words(self) -> str:
        if not self.unjudged:
            return ""
        return f", but {counted(self.unjudged, 'claim')} that seemed broken could not be judged in the time"

    @property
    def _ratio_words(self) -> str:
        if not self.targets:
            return "No prediction was attacked."
        flipped = sum(target.flipped_at is not None for target in self.targets)
        said = f"The attacks flip {flipped} of {counted(len(self.targets), 'target')}"
        if self.median_ratio is not None:
            said += f", half of them within {self.median_ratio:.2f} times the certified radius"
        tight = sum(target.flipped_at == target.radius + 1 for target in self.targets)
        return f"{said}; {tight} of them at one change more than certified." if tight else f"{said}."

    @property
    def control_words(self) -> str:
        """Whether the audit could have found anything."""
        return " ".join(words_of_control(each) for each in (self.control, self.moved_control) if each is not None)

    @property
    def meaning(self) -> str:
        """What may be concluded."""
        return (
            "A certified radius is a lower bound on what it takes to change a prediction, and the best attack an upper "
            "bound. Between the two nothing is known: no prediction is robust because these attacks failed."
        )

    # --- as files ----------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "schema": SCHEMA,
            "version": VERSION,
            "method": self.method,
            "threat": self.threat.value,
            "failure_prob": self.failure_prob,
            **unit_in_json(self.unit),
            "inputs": self.inputs,
            "claims": self.claims,
            "retrainings": self.retrainings,
            "unjudged": self.unjudged,
            "violations": [each.to_dict() for each in self.violations],
            "within_failure_prob": [each.to_dict() for each in self.excused],
            "outside_conditions": [each.to_dict() for each in self.conditional],
            "control": self.control.to_dict(),
            "targets": [each.to_dict() for each in self.targets + self.moved],
            "triggered": [each.to_dict() for each in self.triggered],
            "median_ratio": self.median_ratio,
            "attacks": [each.to_dict() for each in self.used],
            "radii": {name: list(radii) for name, radii in self.rules.items()},
            "finished": self.finished,
            "seconds": round(self.seconds, 1),
            "notes": list(self.notes),
            **in_json(self.assumptions, self.threat),
            **self._moves(),
        }

    def _moves(self) -> dict[str, Any]:
        """What was tried where inputs move, if claims cover that."""
        if not self.frontier:
            return {}
        return {
            "input_change": [each.input_change for each in self.frontier],
            "input_change_of": self.changes_of,
            "frontier": [each.to_dict() for each in self.frontier],
            "input_change_control": None if self.moved_control is None else self.moved_control.to_dict(),
        }

    def write(self, folder: PathLike) -> Audit:
        """Write `audit.html`, `audit.json`, and for every broken claim the poison that broke it.

        Returns:
            The audit, whose broken claims name their files.
        """
        place = Path(folder)
        make_folder(place)
        kept = {name: self._with_files(getattr(self, name), place) for name in ("violations", "excused", "conditional")}
        said = replace(self, **kept)
        with write_atomically(place / RECORD) as file:
            file.write((json.dumps(said.to_dict(), indent=1) + "\n").encode())
        with write_atomically(place / PAGE) as file:
            file.write(hook("AuditReport")(said).html().encode())
        return said

    def _with_files(self, broken: tuple[Broken, ...], folder: Path) -> tuple[Broken, ...]:
        found: list[Broken] = []
        for each in broken:
            file = f"broken/{each.attack}-{each.budget}-{each.poison.digest()}.npz"
            make_folder(folder / "broken")
            each.poison.save(folder / file, {"attack": each.attack, "budget": each.budget})
            found.append(replace(each, file=file, input_file=self._input_file(each, folder)))
        return tuple(found)

    def _input_file(self, broken: Broken, folder: Path) -> str | None:
        """Where the input of a broken claim is written, if it has moved."""
        if broken.move is None or broken.move.trigger is None or self.pictures is None:
            return None
        name = f"broken/input-{broken.input}.npz"
        with write_atomically(folder / name) as file:
            write_npz(file, {"x": self.pictures.inputs.x[broken.input : broken.input + 1]})
        return name


def words_of_control(control: Control) -> str:
    """Whether the attacks break claims that are too large, in words."""
    if control.has_power:
        return (
            f"The same attacks break {counted(control.violations, 'claim')} of the control ({control.method}), so "
            "they do find claims that are as false as that."
        )
    if not control.claims:
        return "No control was tried, so nothing follows: allow more minutes, targets or attacks."
    return (
        f"The same attacks break no claim of the control ({control.method}): this audit has no power, and shows "
        "nothing. Allow more attacks, targets or minutes."
    )
