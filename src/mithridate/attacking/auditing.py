"""An audit: poison the training data, train again by the same door, and compare every prediction with every claim.

The search for attacks is cheap and may be lucky; it decides nothing. What it suspects is judged on fresh instances
(`judging`), of deterministic methods by training everything once more.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate import _validate
from mithridate._io.files import PathLike
from mithridate._io.pieces import joined as joined_arrays
from mithridate._text import counted, did_you_mean, shown
from mithridate.accounting import RDP
from mithridate.attacking import attacks as known_attacks
from mithridate.attacking.attacks import ATTACKS, BOUNDARY, BOUNDARY_KNOWS, BOUNDARY_TITLE, NAMES, Boundary
from mithridate.attacking.journal import Journal
from mithridate.attacking.judging import Claims, labels_of, p_value
from mithridate.attacking.poison import Poison
from mithridate.attacking.result import Audit, Broken, Control, Target, Used
from mithridate.attacking.retraining import Pipeline, is_instant, is_random, same_constants
from mithridate.attacking.scene import Scene
from mithridate.certifying.certification import certify, default_threat, own_rule
from mithridate.comparing.result import make_folder
from mithridate.core.conditions import conditions_of
from mithridate.core.mechanism import Private, Threat
from mithridate.core.rule import Rule
from mithridate.core.votes import Votes
from mithridate.data.examples import Examples, as_examples
from mithridate.defences import defence as defence_of
from mithridate.defences import predict
from mithridate.defences.private import METHODS
from mithridate.errors import ConfigError, MithridateError
from mithridate.features import remembered
from mithridate.training.order import Order

IntArray = npt.NDArray[np.int64]
Say = Callable[[str], None]

# Instances of a random learner that vote in a search, and those that judge.
_SEARCHING, _JUDGING = 128, 512
# Poisoned sets whose broken claims are judged, at most: of the method, and of the control.
_MOST_JUDGED, _MOST_CONTROLS = 12, 3
# How far beyond the radius an attack is tried, in steps, and how exactly the budget that suffices is found.
_STEPS = (1.1, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0)
_TOLERANCE = 0.03
# One trigger for so many targets.
_A_TRIGGER = 4


def audit(
    defence: Any,
    training_set: Any,
    test_set: Any,
    *,
    run_dir: PathLike | None = None,
    threat: Threat | str | None = None,
    failure_prob: float = 1e-3,
    targets: int = 20,
    budgets: Sequence[int | str] | None = None,
    attacks: Sequence[str] | None = None,
    minutes: float | None = 10,
    out: PathLike | None = None,
    device: str = "auto",
    assumptions: Sequence[str] = (),
    progress: Say | None = None,
) -> Audit:
    """Attack the predictions of a method on some data, and check every claim of its certificates on the way.

    Guarantee: that of `Audit`.

    Args:
        defence: a method by name, or an object of `mithridate.defences`.
        training_set: a pair of inputs and labels, or `data.Examples`: the clean set.
        test_set: the inputs that are predicted; true labels are not needed.
        run_dir: a finished run of this method on this data, whose votes are audited; None: it is trained.
        threat: what may be changed; None: what `certify` assumes.
        failure_prob: with which a claim may fail.
        targets: how many predictions are attacked; the claims of all are checked.
        budgets: how many changes to try: whole numbers, or multiples of the radius such as `"2x"`; None: as many as it
            takes.
        attacks: their names, of `attacking.attacks.NAMES`; None: all that fit.
        minutes: how long it may take in all; None: as long as it takes.
        out: where it is kept, so that the same call resumes after an interruption, and where the page is written.
        device: where models are trained.
        assumptions: what else has looked at the training data, a sentence each.
        progress: called with a line for every step.

    Raises:
        ConfigError: an argument is not what it should be, or the run is of other data or constants.
        ArtifactError: the folder cannot be used.

    >>> audit("nearest-neighbours", ([[0.0]], [0]), [[0.0]], targets=0)
    Traceback (most recent call last):
    ...
    mithridate.errors.ConfigError: Expected targets to be a whole number of at least 1, got 0.
    """
    _validate.positive_integer(targets=targets)
    _validate.number_in(0, 1, low_open=True, high_open=True, failure_prob=failure_prob)
    if minutes is not None:
        _validate.number_in(0, float("inf"), low_open=True, minutes=minutes)
    if threat is not None:
        _validate.one_of(tuple(Threat), threat=threat)
    asked = _Asked(
        targets, _checked_budgets(budgets), _checked_attacks(attacks), failure_prob,
        None if threat is None else Threat(threat),
    )  # fmt: skip
    method = defence_of(defence) if isinstance(defence, str) else defence
    training = as_examples(training_set, "training", need_labels=True, classes=method.classes)
    test = as_examples(test_set, "test", need_labels=False)
    folder = None if out is None else Path(out)
    with remembered():
        work = _begun(method, training, test, asked, run_dir, folder, device, assumptions, minutes, progress)
        found = work.carried_out()
    return found if folder is None else found.write(folder)


@dataclass(frozen=True)
class _Asked:
    """What the user wants."""

    targets: int
    budgets: tuple[str, ...] | None
    attacks: tuple[str, ...] | None
    failure_prob: float
    threat: Threat | None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        threat = None if self.threat is None else self.threat.value
        budgets = None if self.budgets is None else list(self.budgets)
        return {**vars(self), "threat": threat, "budgets": budgets, "attacks": _listed(self.attacks)}


def _listed(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)


def _checked_budgets(budgets: Sequence[int | str] | None) -> tuple[str, ...] | None:
    if budgets is None:
        return None
    given = tuple(str(each).strip().lower() for each in budgets)
    for each in given:
        try:
            number = float(each[:-1]) if each.endswith("x") else int(each)
        except ValueError:
            number = 0.0
        if not 0 < number < 1e9:
            raise ConfigError(
                f"Expected budgets as numbers of changes, such as 5, or multiples of the radius, such as 2x; got "
                f"{shown(each)}."
            )
    if not given:
        raise ConfigError("Expected at least one budget; leave budgets out to try as many changes as it takes.")
    return given


def _checked_attacks(attacks: Sequence[str] | None) -> tuple[str, ...] | None:
    if attacks is None:
        return None
    for each in attacks:
        if each not in NAMES:
            raise ConfigError(f"There is no attack {shown(each)}; {did_you_mean(str(each), NAMES)}")
    if not attacks:
        raise ConfigError(f"Expected at least one attack of {', '.join(NAMES)}.")
    return tuple(dict.fromkeys(attacks))


# --- the clean run --------------------------------------------------------------------------------------------------


def _begun(
    method: Any,
    training: Examples,
    test: Examples,
    asked: _Asked,
    run_dir: PathLike | None,
    folder: Path | None,
    device: str,
    assumptions: Sequence[str],
    minutes: float | None,
    progress: Say | None,
) -> _Work:
    """Everything that is decided before the first poisoned set: claims, targets, what an attacker knows."""
    if folder is not None:
        make_folder(folder)
    marked = np.unique(np.linspace(0, len(test.x) - 1, max(1, asked.targets // _A_TRIGGER)).astype(np.int64))
    carries = asked.attacks is None or "backdoor" in asked.attacks
    marked = marked if carries and training.units is None else marked[:0]
    both = _with_triggered(training, test, marked)
    pipeline = Pipeline(method, training, both, device, assumptions)
    order = pipeline.order(training, both)
    if order.choice.defence.name == "statistical-dp":
        order = pipeline.order(training, both)
    identity = {
        "training": order.training_data().to_dict(),
        "inputs": len(test.x),
        "defence": _plain(order.defence.to_dict()),
        "run_dir": None if run_dir is None else str(Path(run_dir).resolve()),
        "asked": asked.to_dict(),
    }
    journal = Journal(folder, identity)
    started = time.monotonic() - journal.seconds
    if progress is not None:
        progress(f"the clean run of {order.defence.title}")
    notes: list[str] = []
    if run_dir is not None:
        clean = _of_run(run_dir, order, test, both, len(marked), notes)
        if len(clean) == 1 and len(marked):
            marked, both = marked[:0], test
            pipeline = replace(pipeline, inputs=both)
            order = pipeline.order(training, both)
        if not is_random(order):
            clean = [_confirmed(clean[0], pipeline, order, len(test.x))]
    else:
        clean = [pipeline.clean(order, None if folder is None else folder / "run")]
    threat = asked.threat or default_threat(clean[0])
    rule, on = own_rule(clean[0]), getattr(order.defence, "on", "votes")
    claims = _joined([Claims.of(votes, rule, threat, asked.failure_prob, on) for votes in clean])
    control, name = _control(clean, rule, threat, asked.failure_prob, on)
    counts = np.concatenate([votes.score_sums if on == "scores" else votes.counts for votes in clean])
    scene = Scene(
        training, both, {len(test.x) + at: int(of) for at, of in enumerate(marked)}, order.defence, threat,
        claims.label, counts, None if is_random(order) or not order.defence.needs_torch else pipeline.known.said,
    )  # fmt: skip
    certificate = certify(clean[0], method=rule, threat=threat, failure_prob=asked.failure_prob, **_on(rule, on))
    rules = _other_rules(clean[0], rule, threat, asked.failure_prob, on)
    deadline = None if minutes is None else started + 60 * minutes
    return _Work(
        asked, pipeline, order, scene, claims, control, name, rules, journal, started, deadline,
        progress or (lambda _: None), len(test.x), certificate.assumptions, clean[0].shown_class_names, notes,
    )  # fmt: skip


def _on(rule: Rule, on: str) -> dict[str, Any]:
    from mithridate.core.rule import ExactRule

    return {} if isinstance(rule, ExactRule) else {"on": on}


def _plain(values: Any) -> Any:
    import json

    return json.loads(json.dumps(values, default=repr))


def _with_triggered(training: Examples, test: Examples, marked: IntArray) -> Examples:
    """The inputs, and behind them some that carry a trigger."""
    if not len(marked):
        return replace(test, units=None)
    x = known_attacks.with_trigger(training, test.x[marked])
    y = None if test.y is None else np.concatenate([test.y, test.y[marked]])
    more = x if x.dtype.kind == "U" else x.astype(test.x.dtype)
    return replace(test, x=joined_arrays(test.x, more), y=y, ids=None, units=None)


def _of_run(
    run_dir: PathLike, order: Order, test: Examples, both: Examples, marked: int, notes: list[str]
) -> list[Votes]:
    """The votes of a finished run, and those of its models on inputs with a trigger where they can be asked.

    Raises:
        ConfigError: the run is of other data, inputs or constants.
    """
    votes = Votes.load(Path(run_dir) / "votes.npz")
    trained = order.training_data().to_dict()
    known = None if votes.training is None else votes.training.to_dict()
    same = known is not None and all(known.get(each) == trained.get(each) for each in ("fingerprint", "units"))
    if not same:
        raise ConfigError(f"The run in {run_dir} was not trained on this training data; give the data that it names.")
    from mithridate.core.provenance import input_hashes

    if votes.input_hashes is None or not np.array_equal(votes.input_hashes, input_hashes(test.x)):
        raise ConfigError(f"The run in {run_dir} did not vote on these inputs; give the inputs that it names.")
    recorded = (votes.recipe or {}).get("defence")
    asked = _plain(order.extra["defence"])
    different = [name for name in asked if isinstance(recorded, dict) and recorded.get(name) != asked[name]]
    if not isinstance(recorded, dict) or different:
        what = f": {different[0]} is different" if different else ""
        raise ConfigError(f"The run in {run_dir} is of other constants{what}; audit the configuration that it was of.")
    if not marked or not is_random(order):
        return [votes]
    try:
        return [votes, predict(run_dir, both.part(np.arange(len(test.x), len(both.x))))]
    except (MithridateError, ModuleNotFoundError):
        notes.append("The run keeps no models that could be asked about inputs with a trigger: no backdoor was tried.")
        return [votes]


def _confirmed(votes: Votes, pipeline: Pipeline, order: Order, inputs: int) -> Votes:
    """The votes of a deterministic method, computed again with those on inputs with a trigger.

    Raises:
        ConfigError: they are not those of the run.
    """
    again = pipeline.clean(order, None)
    if not np.array_equal(again.counts[:inputs], votes.counts):
        raise ConfigError(
            "The votes of the run are not those of this method on this data: it is no function of them here, or the "
            "files were changed. Train again."
        )
    return again


def _joined(claims: list[Claims]) -> Claims:
    return claims[0] if len(claims) == 1 else claims[0].joined(claims[1])


def _control(clean: list[Votes], rule: Rule, threat: Threat, failure_prob: float, on: str) -> tuple[Claims, str]:
    """Claims that are too large: the paper's rule for groups of a private learner, else twice the certified radius.

    No size limits them: they are about the rule, and are checked with the constants of the clean set.
    """
    freed = [replace(votes, size=None) for votes in clean]
    if isinstance(clean[0].mechanism, Private):
        paper = RDP("paper", class_weights=getattr(rule, "class_weights", None))
        return _joined([Claims.of(votes, paper, threat, failure_prob, on) for votes in freed]), "rdp-paper"
    own = _joined([Claims.of(votes, rule, threat, failure_prob, on) for votes in freed])
    return own.doubled(), f"{rule.name} with twice its radii, and one more"


def _other_rules(votes: Votes, rule: Rule, threat: Threat, failure_prob: float, on: str) -> dict[str, IntArray]:
    """The radii of all ways to certify the same votes, without the size's limit: what the attacks are compared with."""
    freed = replace(votes, size=None)
    if not isinstance(votes.mechanism, Private):
        return {
            rule.name: certify(freed, method=rule, threat=threat, failure_prob=failure_prob, **_on(rule, on)).radius
        }
    weights = getattr(rule, "class_weights", None)
    found: dict[str, IntArray] = {}
    for name, method in METHODS.items():
        try:
            weighed = dataclasses.replace(method, class_weights=weights)
            found[name] = certify(freed, method=weighed, threat=threat, failure_prob=failure_prob, on=on).radius
        except MithridateError:  # one that does not know this threat
            continue
    return found


# --- the search -----------------------------------------------------------------------------------------------------


class _OutOfTimeError(Exception):
    """The time is over; what was found stays."""


@dataclass(frozen=True)
class _Seen:
    """What a poisoned set did.

    Attributes:
        cost: how many changes it counts as.
        flipped: whether the target has another label.
        suspects: inputs whose claims the search saw broken.
        control: the same of the claims of the control.
    """

    cost: int
    flipped: bool
    suspects: tuple[int, ...]
    control: tuple[int, ...]


@dataclass(eq=False)
class _Work:
    """An audit at work."""

    asked: _Asked
    pipeline: Pipeline
    clean: Order
    scene: Scene
    claims: Claims
    control: Claims
    control_name: str
    rules: dict[str, IntArray]
    journal: Journal
    started: float
    deadline: float | None
    say: Say
    inputs: int
    assumptions: tuple[str, ...]
    class_names: tuple[str, ...]
    notes: list[str]
    claims_checked: int = 0
    control_checked: int = 0
    retrainings: int = 0
    used: dict[str, int] = field(default_factory=dict[str, int])
    judged: dict[str, list[tuple[Broken, int]]] = field(default_factory=dict[str, list[tuple[Broken, int]]])
    controls_judged: int = 0
    control_tails: list[float] = field(default_factory=list[float])
    left_unjudged: int = 0

    def carried_out(self) -> Audit:
        """All that was asked for, or as much as there is time for."""
        targets: dict[int, Target] = {}
        finished = True
        chosen = self._targets()
        try:
            self._break_control(chosen[:3])
            if self._wanted(BOUNDARY) and chosen:
                self._cross_boundaries(chosen[0])
            for number, target in enumerate(chosen):
                targets[target] = self._attacked(target)
                self._say_target(targets[target], number + 1, len(chosen))
            for target in self.scene.triggered:
                targets[target] = self._attacked(target)
        except _OutOfTimeError:
            finished = False
        return self._found(chosen, targets, finished)

    def _wanted(self, name: str) -> bool:
        return self.asked.attacks is None or name in self.asked.attacks

    def _targets(self) -> list[int]:
        """The predictions to attack: of all certified radii, in an order in which the first few are of all, too."""
        radii = self.claims.radius[: self.inputs]
        known = np.flatnonzero(radii >= min(1, radii.max()))
        ordered = known[np.argsort(radii[known], kind="stable")]
        places = np.unique(np.linspace(0, len(ordered) - 1, min(self.asked.targets, len(ordered))).astype(np.int64))
        return [int(ordered[places[at]]) for at in _spread(len(places))]

    def _attacks(self, target: int) -> list[str]:
        """Those that fit, in the order in which they are tried; an input with a trigger is there for one alone."""
        wanted = [name for name in ATTACKS if self._wanted(name)]
        if target in self.scene.triggered:
            wanted = [name for name in wanted if name == "backdoor"]
        return [name for name in wanted if ATTACKS[name].fits(self.scene, target)]

    # --- one poisoned set --------------------------------------------------------------------------------------------

    def _tried(self, attack: str, target: int, budget: int) -> _Seen | None:
        """What an attack with a budget did; None where there is nothing to change, or more than is allowed."""
        poison = ATTACKS[attack].poison(self.scene, target, budget)
        return None if poison is None else self._seen(attack, target, budget, poison, len(self.claims.label))

    def _seen(
        self, attack: str, target: int, budget: int, poison: Poison, among: int, condition: str | None = None
    ) -> _Seen | None:
        key = f"{attack} {target} {budget}"
        cost = poison.cost(self.scene.threat, self.pipeline.training)
        covered = self.claims.covering(cost)
        known = self.journal.find(key)
        if known is None:
            self._check_time()
            known = self._voted(poison, target, cost, covered)
            self.journal.add(key, known, time.monotonic() - self.started)
        if known.get("refused"):
            return None
        self.retrainings += 1
        self.used[attack] = self.used.get(attack, 0) + 1
        self.claims_checked += len(covered) if condition is None else 0
        self.control_checked += known["control_claims"]
        seen = _Seen(cost, known["flipped"], tuple(known["suspects"]), tuple(known["control"]))
        if not is_random(self.clean):
            self.control_tails += [0.0] * len(seen.control)
        if seen.suspects:
            self._judge(key, attack, budget, cost, poison, seen.suspects, condition)
        return seen

    def _voted(self, poison: Poison, target: int, cost: int, covered: IntArray) -> dict[str, Any]:
        """Train on the poisoned set, and compare with all claims."""
        chosen = np.union1d(covered, [target]) if is_instant(self.clean) else None
        try:
            votes = self.pipeline.poisoned(
                self.clean, poison, chosen, _SEARCHING, self.journal.seed, pinned=not len(covered)
            )
        except ConfigError as error:  # a set that the door refuses changes no prediction
            return {"refused": str(error)[:300]}
        labels = labels_of(votes, self.scene.threat, self.claims.on)
        asked = np.arange(len(self.claims.label)) if chosen is None else chosen
        changed = asked[labels != self.claims.label[asked]]
        claimed = np.intersect1d(asked, self.control.covering(cost))
        return {
            "flipped": bool(target in changed),
            "suspects": np.intersect1d(changed, covered).tolist(),
            "control": np.intersect1d(changed, claimed).tolist(),
            "control_claims": len(claimed),
        }

    def _check_time(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise _OutOfTimeError

    # --- judging -----------------------------------------------------------------------------------------------------

    def _judge(
        self, key: str, attack: str, budget: int, cost: int, poison: Poison, suspects: Sequence[int],
        condition: str | None,
    ) -> None:  # fmt: skip
        """Put the claims that the search saw broken before fresh instances."""
        if len(self.judged) >= _MOST_JUDGED:
            self.left_unjudged += len(suspects)
            return
        said = self._verdict(f"judged {key}", poison, suspects, self.claims)
        found: list[tuple[Broken, int]] = []
        for number, votes, tail in zip(suspects, said["votes"], said["tails"], strict=True):
            label, radius = int(self.claims.label[number]), int(self.claims.radius[number])
            one = Broken(number, label, radius, cost, attack, said["seed"], tuple(votes), tail, poison)
            found.append((one, int(self.claims.strict[number])))
        self.judged[f"{condition or ''} {key}"] = found

    def _verdict(self, key: str, poison: Poison, suspects: Sequence[int], claims: Claims) -> dict[str, Any]:
        """How fresh instances vote on some inputs, and how likely that is if their claims are true."""
        known = self.journal.find(key)
        if known is not None:
            return known
        self._check_time()
        seed = os.urandom(32)
        votes = self.pipeline.again(self.clean, poison, _JUDGING, seed)
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

    # --- the control -------------------------------------------------------------------------------------------------

    def _break_control(self, targets: Sequence[int]) -> None:
        """Find changes at which the control is wrong, and have that judged."""
        for target in targets:
            names = [name for name in self._attacks(target) if name != "delete"] or self._attacks(target)
            for attack in names[:2]:
                for budget in self._ladder(target, most=int(self.control.radius[target])):
                    seen = self._tried(attack, target, budget)
                    if seen is None:
                        break
                    if seen.control and self._control_is_broken(attack, target, budget, seen.control):
                        return

    def _control_is_broken(self, attack: str, target: int, budget: int, suspects: Sequence[int]) -> bool:
        """Judge claims of the control that the search saw broken; whether one of them is false."""
        if not is_random(self.clean):  # a label that changed is a fact
            return True
        if self.controls_judged >= _MOST_CONTROLS:
            return False
        self.controls_judged += 1
        poison = ATTACKS[attack].poison(self.scene, target, budget)
        assert poison is not None
        said = self._verdict(f"control {attack} {target} {budget}", poison, suspects, self.control)
        self.control_tails += said["tails"]
        return min(said["tails"]) * self.control_checked <= self._level

    @property
    def _level(self) -> float:
        """The chance with which any true claim may be called broken."""
        return self.asked.failure_prob

    # --- one target --------------------------------------------------------------------------------------------------

    def _guide(self, target: int) -> int:
        """Its radius as the rule gives it, whatever the size limits: where the search starts."""
        own = next(iter(self.rules.values())) if self.clean.defence.name not in self.rules else None
        radii = self.rules[self.clean.defence.name] if own is None else own
        return int(max(radii[target] if target < len(radii) else self.claims.radius[target], 0))

    def _ladder(self, target: int, most: int | None = None) -> list[int]:
        """Budgets beyond the radius, ascending."""
        guide, limit = self._guide(target), max(2, self.scene.count // 2)
        limit = limit if most is None else min(limit, most)
        steps = [guide + 1, *(round(times * max(guide, 1)) for times in _STEPS)]
        if is_random(self.clean):
            steps = steps[3:]
        return sorted({each for each in steps if guide < each <= limit})

    def _attacked(self, target: int) -> Target:
        """The fewest changes found that flip a prediction; every attack is tried at its radius first."""
        names, radius = self._attacks(target), int(self.claims.radius[target])
        if radius > 0:
            for name in names:
                self._tried(name, target, radius)
        best = self._by_budgets(target, names) if self.asked.budgets else self._by_search(target, names)
        flips = None if best.flipped is None else ATTACKS[best.attack].poison(self.scene, target, best.flipped)
        shown = flips
        if shown is None and best.attack and best.tried:
            shown = ATTACKS[best.attack].poison(self.scene, target, best.tried)
        cost = None if flips is None else flips.cost(self.scene.threat, self.pipeline.training)
        return Target(
            target, int(self.claims.label[target]), self.scene.rival(target), radius, cost,
            best.attack if cost is not None else None, best.tried, shown, self.scene.triggered.get(target),
        )  # fmt: skip

    def _by_budgets(self, target: int, names: Sequence[str]) -> _Best:
        """The first of the budgets asked for at which an attack flips the label."""
        assert self.asked.budgets is not None
        best = _Best()
        radius = max(self._guide(target), 1)
        wanted = {round(float(each[:-1]) * radius) if each.endswith("x") else int(each) for each in self.asked.budgets}
        for budget in sorted(each for each in wanted if 0 < each <= self.scene.count):
            for name in names:
                seen = self._tried(name, target, budget)
                best.note(name, budget, seen)
                if seen is not None and seen.flipped:
                    return best
        return best

    def _by_search(self, target: int, names: Sequence[str]) -> _Best:
        """Up a ladder until an attack flips the label, then down; the others only where they need fewer changes."""
        best, ladder = _Best(), self._ladder(target)
        for name in names:
            if best.flipped is None:
                steps = ladder if not best.tried else ladder[-1:]
                low = self._guide(target)
                for budget in steps:
                    seen = self._tried(name, target, budget)
                    best.note(name, budget, seen)
                    if seen is None or seen.flipped:
                        break
                    low = budget
            else:
                low = self._guide(target)
                budget = best.flipped - _slack(best.flipped)
                if budget <= low:
                    continue
                best.note(name, budget, self._tried(name, target, budget))
            if best.attack == name and best.flipped is not None:
                self._down(name, target, low, best)
        return best

    def _down(self, name: str, target: int, low: int, best: _Best) -> None:
        """Halve the stretch between a budget that does not suffice and one that does."""
        while best.flipped is not None and best.flipped - low > _slack(best.flipped):
            middle = (low + best.flipped) // 2
            seen = self._tried(name, target, middle)
            if seen is not None and seen.flipped:
                best.flipped = middle
            else:
                low = middle

    def _cross_boundaries(self, target: int) -> None:
        """Poison across the boundary of every constant that follows the data, where any claim covers it."""
        declared = self.pipeline.asked.classes is not None
        for number, each in enumerate(
            known_attacks.boundaries(self.scene, self.clean.size, classes_declared=declared, target=target)
        ):
            cost = self._cost(each)
            if cost is None or not len(self.claims.covering(cost)):
                self.notes.append(
                    f"Radii end before {each.what}" + ("." if cost is None else f", which takes {cost:,} changes.")
                )
                continue
            self._seen(BOUNDARY, number, cost, each.poison, 0, each.condition)

    def _cost(self, boundary: Boundary) -> int | None:
        try:
            return boundary.poison.cost(self.scene.threat, self.pipeline.training)
        except ConfigError:  # the threat does not cover it
            return None

    # --- what came of it ---------------------------------------------------------------------------------------------

    def _say_target(self, target: Target, number: int, of: int) -> None:
        if target.flipped_at is None:
            came = f"not flipped by {target.tried:,}"
        else:
            came = f"flipped by {target.flipped_at:,} ({target.attack})"
        self.say(f"target {number} of {of}: input {target.input}, certified to {target.radius:,}, {came}")

    def _found(self, chosen: Sequence[int], targets: dict[int, Target], finished: bool) -> Audit:
        broken = self._broken()
        attacked = tuple(targets[each] for each in chosen if each in targets)
        triggered = tuple(targets[each] for each in self.scene.triggered if each in targets)
        defence = self.clean.defence
        tails = sum(tail * max(1, self.control_checked) <= self._level for tail in self.control_tails)
        return Audit(
            method=defence.name,
            title=defence.title,
            threat=self.scene.threat,
            failure_prob=self.claims.failure_prob,
            unit=self.clean.unit,
            inputs=self.inputs,
            claims=self.claims_checked,
            retrainings=self.retrainings,
            violations=broken["violations"],
            excused=broken["excused"],
            conditional=broken["conditional"],
            control=Control(self.control_name, self.control_checked, tails),
            targets=attacked,
            triggered=triggered,
            used=self._used(attacked + triggered),
            rules={name: tuple(int(radii[each.input]) for each in attacked) for name, radii in self.rules.items()},
            finished=finished,
            seconds=time.monotonic() - self.started,
            notes=tuple(dict.fromkeys([*self.notes, *self._more_notes(attacked)])),
            assumptions=self.assumptions,
            label_names=self.class_names,
            pictures=_Shown(self.pipeline.training, self.pipeline.inputs),
        )

    def _more_notes(self, attacked: Sequence[Target]) -> Iterator[str]:
        short = sum(each.radius < self._guide(each.input) for each in attacked)
        if short:
            yield (
                f"The radii of {counted(short, 'target')} end with the size step; without it they would be larger. "
                "The search starts from those, with the constants of the clean set."
            )
        if self.left_unjudged:
            yield (
                f"The search saw {self.left_unjudged:,} more broken claims, which were not judged: those that were are "
                "enough."
            )
        if is_random(self.clean):
            yield (
                f"Attacks were searched with {_SEARCHING} instances and judged with {_JUDGING} fresh ones; where the "
                "votes are close, the budget at which a label flips is an estimate."
            )

    def _broken(self) -> dict[str, tuple[Broken, ...]]:
        """The claims that are refuted, by what follows from that."""
        kinds: dict[str, list[Broken]] = {"violations": [], "excused": [], "conditional": []}
        refuted = [
            (key, replace(one, p=min(1.0, one.p * max(1, self.claims_checked))), strict)
            for key, found in self.judged.items()
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

    def _used(self, targets: Sequence[Target]) -> tuple[Used, ...]:
        best = [each.attack for each in targets]
        known = [(each.name, each.title, each.knows) for each in ATTACKS.values()]
        known.append((BOUNDARY, BOUNDARY_TITLE, BOUNDARY_KNOWS))
        return tuple(
            Used(name, title, knows, self.used[name], best.count(name))
            for name, title, knows in known
            if name in self.used
        )


@dataclass(eq=False)
class _Best:
    """The fewest changes that flip a label, so far.

    Attributes:
        flipped: the budget; None: none did.
        attack: which attack, or the one that was tried with most.
        tried: the largest budget that was tried.
    """

    flipped: int | None = None
    attack: str = ""
    tried: int = 0

    def note(self, name: str, budget: int, seen: _Seen | None) -> None:
        """What came of a try."""
        if seen is None:
            return
        if budget > self.tried:
            self.tried, self.attack = budget, self.attack if self.flipped is not None else name
        if seen.flipped and (self.flipped is None or budget < self.flipped):
            self.flipped, self.attack = budget, name


@dataclass(frozen=True, eq=False)
class _Shown:
    """What a page shows of examples."""

    training: Examples
    inputs: Examples


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


_ = same_constants
