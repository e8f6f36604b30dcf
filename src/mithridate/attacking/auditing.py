"""An audit: poison the training data, train again by the same door, and compare every prediction with every claim."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate import _validate
from mithridate._io.files import PathLike
from mithridate._io.pieces import joined as joined_arrays
from mithridate._text import did_you_mean, shown
from mithridate._version import VERSION
from mithridate.accounting import RDP
from mithridate.attacking.attacks import NAMES
from mithridate.attacking.journal import Journal
from mithridate.attacking.judging import Claims
from mithridate.attacking.result import Audit
from mithridate.attacking.retraining import Pipeline, is_random
from mithridate.attacking.scene import Moved, Scene
from mithridate.attacking.search import AuditSearch, Question, Say
from mithridate.attacking.triggers import Ruler, moved_copies, with_trigger
from mithridate.certifying.certification import certify, default_threat, own_rule
from mithridate.comparing.result import make_folder
from mithridate.core.input_change import checked_changes
from mithridate.core.mechanism import Drawn, Private, Threat
from mithridate.core.provenance import fingerprint, input_hashes
from mithridate.core.rule import ExactRule, Method, Rule, certifies_no_input_change
from mithridate.core.votes import Votes
from mithridate.data.examples import Examples, as_examples
from mithridate.defences import defence as defence_of
from mithridate.defences import predict
from mithridate.defences.private import METHODS
from mithridate.errors import ArtifactError, ConfigError, MithridateError
from mithridate.features.memory import remembered
from mithridate.training.order import Order
from mithridate.training.run_directory import locked

IntArray = npt.NDArray[np.int64]

# What the journal calls a hash of all claims.
_CLAIMS = "claims"
# One trigger for so many targets.
_A_TRIGGER = 4
# So many inputs at least have copies with a trigger of bounded length.
_LEAST_MOVED = 20
# How many times too large controls are.
_TOO_LARGE = (2, 4, 8, 16)


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
    input_change: float | Sequence[float] | None = None,
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
        input_change: how far the input may move, too, in Euclidean length, one or several: claims at each of them are
            attacked by triggers that are no longer; for methods with `input_noise` or `moving_inputs`.
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
    asked = _asked(targets, budgets, attacks, failure_prob, threat, minutes, input_change)
    method = defence_of(defence) if isinstance(defence, str) else defence
    training = as_examples(training_set, "training", need_labels=True, classes=method.classes)
    test = as_examples(test_set, "test", need_labels=False)
    with remembered():
        clean = _Clean.of(method, training, test, asked, run_dir, device, assumptions)
        _check_installed(clean.order)
        with _folder(out) as folder:
            search = _begun(clean, asked, folder, minutes, progress or (lambda _: None))
            found = search.carried_out()
            return found if folder is None else found.write(folder)


def _check_installed(order: Order) -> None:
    """Before a folder is made.

    Raises:
        ConfigError: what trains models is not installed.
    """
    if not order.defence.needs_torch:
        return
    try:
        import_module("mithridate.training.run")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"An audit of {order.defence.name} trains models, which needs {error.name}; install it with: "
            "pip install 'mithridate[train]'"
        ) from error


@contextlib.contextmanager
def _folder(out: PathLike | None) -> Iterator[Path | None]:
    """The folder of the audit, for this process alone."""
    if out is None:
        yield None
        return
    folder = Path(out)
    make_folder(folder)
    try:
        with locked(folder):
            yield folder
    except ArtifactError as error:
        raise ArtifactError(str(error).replace("another run_dir", "another folder (-o)")) from error


# --- what is asked ----------------------------------------------------------------------------------------------------


def _asked(
    targets: int,
    budgets: Sequence[int | str] | None,
    attacks: Sequence[str] | None,
    failure_prob: float,
    threat: Threat | str | None,
    minutes: float | None,
    input_change: float | Sequence[float] | None,
) -> Question:
    _validate.positive_integer(targets=targets)
    _validate.number_in(0, 1, low_open=True, high_open=True, failure_prob=failure_prob)
    if minutes is not None:
        _validate.number_in(0, float("inf"), low_open=True, minutes=minutes)
    if threat is not None:
        _validate.one_of(tuple(Threat), threat=threat)
    wanted = None if threat is None else Threat(threat)
    changes = () if input_change is None else checked_changes(input_change)
    if input_change is not None and not any(changes):
        raise ConfigError("Expected an input_change above 0: inputs that stay as they are are audited in any case.")
    moves = tuple(each for each in changes if each)
    return Question(targets, _checked_budgets(budgets), _checked_attacks(attacks), failure_prob, wanted, moves)


def _checked_budgets(budgets: Sequence[int | str] | None) -> tuple[str, ...] | None:
    if budgets is None:
        return None
    given = tuple(str(each).strip().lower() for each in (budgets.split(",") if isinstance(budgets, str) else budgets))
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
    attacks = attacks.split(",") if isinstance(attacks, str) else attacks
    for each in attacks:
        if each not in NAMES:
            raise ConfigError(f"There is no attack {shown(each)}; {did_you_mean(str(each), NAMES)}")
    if not attacks:
        raise ConfigError(f"Expected at least one attack of {', '.join(NAMES)}.")
    return tuple(dict.fromkeys(attacks))


# --- the clean run --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class _Clean:
    """The clean set, how it is trained on, and what is predicted.

    Attributes:
        pipeline: the way from a training set to votes.
        order: that of the clean set.
        test: the inputs that are predicted.
        marked: the numbers of those of which copies with a trigger stand behind them.
        run_dir: the finished run that is audited, if there is one.
        moved: of the copies behind these, what each carries; their triggers are of bounded length.
        changes_of: in what that is measured.
    """

    pipeline: Pipeline
    order: Order
    test: Examples
    marked: IntArray
    run_dir: PathLike | None
    moved: tuple[Moved, ...] = ()
    changes_of: str | None = None

    @classmethod
    def of(
        cls,
        method: Any,
        training: Examples,
        test: Examples,
        asked: Question,
        run_dir: PathLike | None,
        device: str,
        assumptions: Sequence[str],
    ) -> _Clean:
        marked = np.unique(np.linspace(0, len(test.x) - 1, max(1, asked.targets // _A_TRIGGER)).astype(np.int64))
        carries = training.units is None and (asked.attacks is None or "backdoor" in asked.attacks)
        marked = marked if carries else marked[:0]
        pipeline = Pipeline(method, training, _with_triggered(training, test, marked), device, assumptions)
        order = pipeline.order(training, pipeline.inputs)
        if not order.defence.per_prediction:
            raise ConfigError(
                f"{order.defence.name} claims nothing about single predictions, so there is nothing to attack; audit "
                "fdp, which certifies the same models."
            )
        if any(issubclass(each, Drawn) for each in order.defence.mechanisms):
            raise ConfigError(
                f"With input_noise the votes of {order.defence.name} are draws of the noise on inputs, which an audit "
                "does not know; audit it without input_noise."
            )
        found = cls(pipeline, order, test, marked, run_dir)
        return found._with_moved(asked) if asked.input_change else found

    def _with_moved(self, asked: Question) -> _Clean:
        """The same with copies that carry triggers of bounded length behind all others.

        Some are as long as a certified change, and some are longer, for controls.

        Raises:
            ConfigError: nothing is certified of inputs that move.
            UnsupportedMechanismError: its rule knows nothing of them.
        """
        rule = self.order.defence.rule()
        kind = ExactRule if isinstance(rule, ExactRule) else Method
        name = "decide_moved" if kind is ExactRule else "accountant_moved"
        if getattr(type(rule), name) is getattr(kind, name):
            raise certifies_no_input_change(rule)
        ruler = Ruler.of_method(self.order.defence, self.pipeline.training)
        longest = max(asked.input_change)
        lengths = (*asked.input_change, *(times * longest for times in _TOO_LARGE))
        count = max(asked.targets, _LEAST_MOVED)
        which = np.unique(np.linspace(0, len(self.test.x) - 1, count).astype(np.int64)).tolist()
        copies, moved = moved_copies(self.pipeline.training, self.test, which, lengths, ruler)
        inputs = _followed_by(self.pipeline.inputs, copies, np.array([each.of for each in moved], dtype=np.int64))
        return replace(self._voting_on(inputs), moved=tuple(moved), changes_of=ruler.of)

    def without_triggers(self) -> _Clean:
        """The same without the copies whose own votes would be needed."""
        kept = np.setdiff1d(np.arange(len(self.pipeline.inputs.x)), len(self.test.x) + np.arange(len(self.marked)))
        return replace(self._voting_on(self.pipeline.inputs.part(kept)), marked=self.marked[:0])

    def _voting_on(self, inputs: Examples) -> _Clean:
        pipeline = replace(self.pipeline, inputs=inputs)
        return replace(self, pipeline=pipeline, order=pipeline.order(pipeline.training, inputs))

    @property
    def claiming(self) -> int:
        """How many inputs make claims by their own votes; what has moved makes those of the input that it was."""
        return len(self.test.x) + len(self.marked)

    @property
    def identity(self) -> dict[str, Any]:
        """What an audit is about: only the same is resumed."""
        return {
            "mithridate": VERSION,
            "training": self.order.training_data().to_dict(),
            "inputs": fingerprint(self.test.x),
            "defence": _plain(self.order.defence.to_dict()),
            "run_dir": None if self.run_dir is None else str(Path(self.run_dir).resolve()),
        }

    def votes(self, folder: Path | None) -> list[Votes]:
        """Votes on the inputs, trained now or earlier in the folder of the audit."""
        return [self.pipeline.clean(self.order, None if folder is None else folder / "run")]

    def kept_votes(self) -> list[Votes]:
        """The votes of a finished run, and those of its models on inputs with a trigger where they can be asked.

        Empty where no run is audited.

        Raises:
            ConfigError: the run is of other data, inputs or constants.
        """
        run_dir = self.run_dir
        if run_dir is None:
            return []
        votes = Votes.load(Path(run_dir) / "votes.npz")
        self._check_run(votes, run_dir)
        if not is_random(self.order):
            return [self._confirmed(votes)]
        if not len(self.marked):
            return [votes]
        triggered = self.pipeline.inputs.part(np.arange(len(self.test.x), self.claiming))
        try:
            return [votes, predict(run_dir, triggered)]
        except (MithridateError, ModuleNotFoundError):
            return [votes]

    def _check_run(self, votes: Votes, run_dir: PathLike) -> None:
        trained = self.order.training_data().to_dict()
        known = {} if votes.training is None else votes.training.to_dict()
        if not all(known.get(each) == trained.get(each) for each in ("fingerprint", "units")):
            raise ConfigError(
                f"The run in {run_dir} was not trained on this training data; give the data that it names."
            )
        if votes.input_hashes is None or not np.array_equal(votes.input_hashes, input_hashes(self.test.x)):
            raise ConfigError(f"The run in {run_dir} did not vote on these inputs; give the inputs that it names.")
        recorded, asked = (votes.recipe or {}).get("defence"), _plain(self.order.extra["defence"])
        if not isinstance(recorded, dict) or recorded != asked:
            values = recorded if isinstance(recorded, dict) else {}
            other = next((name for name in {**asked, **values} if values.get(name) != asked.get(name)), "method")
            raise ConfigError(
                f"The run in {run_dir} is of other constants ({other} is different); audit the configuration that it "
                "was of."
            )

    def _confirmed(self, votes: Votes) -> Votes:
        """The votes of a deterministic method, computed again with those on inputs with a trigger.

        Raises:
            ConfigError: they are not those of the run.
        """
        again = self.pipeline.clean(self.order, None)
        if not np.array_equal(again.counts[: len(self.test.x)], votes.counts):
            raise ConfigError(
                "The votes of the run are not those of this method on this data: it is no function of them here, or "
                "the files were changed. Train again."
            )
        return again


def _plain(values: Any) -> Any:
    return json.loads(json.dumps(values, default=repr))


def _with_triggered(training: Examples, test: Examples, marked: IntArray) -> Examples:
    """The inputs, and behind them some that carry a trigger."""
    alone = replace(test, units=None)
    return _followed_by(alone, with_trigger(training, test.x[marked]), marked) if len(marked) else alone


def _followed_by(inputs: Examples, copies: npt.NDArray[Any], of: IntArray) -> Examples:
    """Inputs, and behind them changed copies of some of them."""
    if not len(copies):
        return inputs
    more = copies if copies.dtype.kind == "U" else copies.astype(inputs.x.dtype)
    y = None if inputs.y is None else np.concatenate([inputs.y, inputs.y[of]])
    return replace(inputs, x=joined_arrays(inputs.x, more), y=y, ids=None)


# --- what is claimed --------------------------------------------------------------------------------------------------


def _begun(clean: _Clean, asked: Question, folder: Path | None, minutes: float | None, say: Say) -> AuditSearch:
    """Everything that is decided before the first poisoned set: claims, targets, what an attacker knows."""
    say(f"the clean run of {clean.order.defence.title}")
    began = time.monotonic()
    kept = clean.kept_votes()  # before a folder is taken by an audit that cannot be
    journal = Journal(folder, {**clean.identity, "asked": asked.to_dict()})
    started = began - journal.seconds
    votes, notes = kept or clean.votes(folder), list[str]()
    if is_random(clean.order) and clean.run_dir is not None and len(clean.marked) and len(votes) == 1:
        left = "only triggers whose length is certified were tried" if clean.moved else "no backdoor was tried"
        notes.append(f"The run keeps no models that could be asked about inputs with a trigger: {left}.")
        clean = clean.without_triggers()
    order, pipeline = clean.order, clean.pipeline
    claimed = _Claimed.of(votes, asked, getattr(order.defence, "on", "votes"), clean.moved, clean.claiming)
    claims, moved = claimed.own, claimed.moved_by_number
    counts = np.concatenate([_scored(each, claimed.on) for each in votes])
    if len(counts) < len(pipeline.inputs.x):  # a finished run was not asked about inputs that have moved
        counts = np.concatenate([counts, counts[[each.of for each in clean.moved]]])
    triggered = {len(clean.test.x) + at: int(of) for at, of in enumerate(clean.marked)}
    triggered |= {number: each.of for number, each in moved.items()}
    is_parts = order.defence.needs_torch and not is_random(order)
    scene = Scene(
        pipeline.training,
        pipeline.inputs,
        triggered,
        order.defence,
        claimed.threat,
        claims.label,
        counts,
        is_parts=is_parts,
        model_votes=pipeline.known.said if is_parts else None,
        moved=moved,
    )
    controls, rules = claimed.controls(), claimed.all_rules()
    moved_controls = claimed.moved_controls()
    unanimous = (counts == counts.sum(axis=1, keepdims=True)).any(axis=1) if is_random(order) else None
    _check_claims(journal, [claims, *(each for _, each in [*controls, *moved_controls])])
    return AuditSearch(
        asked=asked,
        pipeline=pipeline,
        clean=order,
        scene=scene,
        claims=claims,
        controls=controls,
        moved_controls=moved_controls,
        rules=rules,
        guide="fdp" if "fdp" in rules else claimed.name,  # the tightest that holds
        unanimous=unanimous,
        journal=journal,
        started=started,
        deadline=None if minutes is None else started + 60 * minutes,
        say=say,
        inputs=len(clean.test.x),
        assumptions=claimed.assumptions,
        class_names=votes[0].shown_class_names,
        notes=notes,
        changes_of=clean.changes_of,
    )


def _check_claims(journal: Journal, claims: Sequence[Claims]) -> None:
    """Require that the clean run is still the one that the journal is about: it may have been trained again.

    Raises:
        ConfigError: it claims something else.
    """
    content = hashlib.sha256()
    for each in claims:
        for values in (each.label, each.radius, each.strict):
            content.update(np.ascontiguousarray(values, dtype="<i8").data)
    known = journal.find(_CLAIMS)
    if known is None:
        journal.add(_CLAIMS, content.hexdigest(), journal.seconds)
    elif known != content.hexdigest():
        raise ConfigError("The clean run claims something else than when this audit began; choose another folder (-o).")


def _scored(votes: Votes, on: str) -> npt.NDArray[Any]:
    """By what labels compete."""
    return votes.score_sums if on == "scores" and votes.score_sums is not None else votes.counts


@dataclasses.dataclass(frozen=True, eq=False)
class _Claimed:
    """What the votes of the clean run claim, by their own rule and by others.

    Attributes:
        votes: on the inputs, and perhaps apart from them on those that carry a trigger.
        rule: that of the defence.
        threat: what may be changed.
        failure_prob: with which a claim may fail.
        on: `votes` or `scores`.
        changes: how far inputs may move, where claims cover that, too.
        moved: the inputs that have moved, which stand behind all others.
        claiming: how many others there are.
    """

    votes: Sequence[Votes]
    rule: Rule
    threat: Threat
    failure_prob: float
    on: str
    changes: tuple[float, ...]
    moved: tuple[Moved, ...]
    claiming: int

    @classmethod
    def of(cls, votes: Sequence[Votes], asked: Question, on: str, moved: tuple[Moved, ...], claiming: int) -> _Claimed:
        """What is claimed under the threat that is asked about."""
        threat = asked.threat or default_threat(votes[0])
        return cls(votes, own_rule(votes[0]), threat, asked.failure_prob, on, asked.input_change, moved, claiming)

    @cached_property
    def own(self) -> Claims:
        """The claims that are audited."""
        return self._whole(self._first, self.rule, self.votes).joined(self._of_moved(self._first))

    @cached_property
    def _first(self) -> Claims:
        """Those of the first votes, which are on the inputs as they were given, and on these where they move."""
        return self._claims(self.rule, self.votes[0], self.changes)

    @cached_property
    def _first_freed(self) -> Claims:
        """The same without the limit that the size sets."""
        return self._first if self.votes[0].size is None else self._claims(self.rule, self._freed[0], self.changes)

    @property
    def moved_by_number(self) -> dict[int, Moved]:
        """The inputs that have moved, each with the change whose claim covers it."""
        covered = (replace(each, input_change=self._first.covering_change(each.length)) for each in self.moved)
        return dict(enumerate(covered, self.claiming))

    def _of_moved(self, claims: Claims, times: int = 1) -> Claims:
        """Claims about the inputs that have moved."""
        of = np.array([each.of for each in self.moved], dtype=np.int64)
        return claims.of_moved(of, [each.length for each in self.moved], times)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What their certificate takes for granted."""
        return self._certificate(self.rule, self.votes[0]).assumptions

    @property
    def _is_private(self) -> bool:
        return isinstance(self.votes[0].mechanism, Private)

    @property
    def _freed(self) -> list[Votes]:
        """The votes without the limit that the size sets: what is about the rule alone."""
        return [replace(each, size=None) for each in self.votes]

    def controls(self) -> list[tuple[str, Claims]]:
        """Claims that are too large: those of the paper's rule for groups, where it applies, and multiples of the own.

        No size limits them: they are about the rule, and are checked with the constants of the clean set. Where the
        paper's rule claims no more than a sound one, it may be true, and only the multiples show what would be found.
        """
        found = list[tuple[str, Claims]]()
        if self._is_private and self.name != "rdp-paper":
            paper = RDP("paper", class_weights=getattr(self.rule, "class_weights", None))
            found.append(("rdp-paper", self._with_none_moved(self._claims(paper, self._freed[0]), paper)))
        own = self._with_none_moved(self._first_freed, self.rule)
        name = f"{self.name} with {{}} times its radii, and one more"
        return found + [(name.format(times), own.times(times)) for times in _TOO_LARGE]

    def moved_controls(self) -> list[tuple[str, Claims]]:
        """Claims about inputs that have moved, which are too large: in radius, and in how far the input may move."""
        if not self.moved:
            return []
        name = f"{self.name} with {{0}} times its radii, and one more, and {{0}} times its changes of the input"
        nothing = self._whole(self._first, self.rule, self.votes).withdrawn()
        return [
            (name.format(times), nothing.joined(self._of_moved(self._first_freed, times).times(times)))
            for times in _TOO_LARGE
        ]

    @property
    def name(self) -> str:
        """The name of the own rule, among all of them."""
        if not self._is_private:
            return self.rule.name
        weights = getattr(self.rule, "class_weights", None)
        same = (
            name for name, method in METHODS.items() if dataclasses.replace(method, class_weights=weights) == self.rule
        )
        return next(same, self.rule.name)

    def all_rules(self) -> dict[str, IntArray]:
        """The radii of all ways to certify the same votes, without the limit of the size."""
        freed = self._freed[0]
        found = {self.name: self._certificate(self.rule, freed).radius}
        weights = getattr(self.rule, "class_weights", None)
        for name, method in METHODS.items() if self._is_private else ():
            try:
                found[name] = self._certificate(dataclasses.replace(method, class_weights=weights), freed).radius
            except MithridateError:  # one that does not know this threat
                continue
        return {name: radius[: self.claiming] for name, radius in found.items()}

    def _claims(self, rule: Rule, votes: Votes, changes: tuple[float, ...] = ()) -> Claims:
        return Claims.of(votes, rule, self.threat, self.failure_prob, self.on, len(self.votes), changes)

    def _whole(self, first: Claims, rule: Rule, votes: Sequence[Votes]) -> Claims:
        """Claims of all votes, about all inputs that have not moved."""
        found = first
        for each in votes[1:]:
            found = found.joined(self._claims(rule, each))
        return found.first(self.claiming)

    def _with_none_moved(self, first: Claims, rule: Rule) -> Claims:
        """Claims of all votes without the limit of the size; about inputs that have moved none."""
        return self._whole(first, rule, self._freed).joined(self._of_moved(self._first).withdrawn())

    def _certificate(self, rule: Rule, votes: Votes) -> Any:
        kind: dict[str, Any] = {} if isinstance(rule, ExactRule) else {"on": self.on}
        return certify(votes, method=rule, threat=self.threat, failure_prob=self.failure_prob, **kind)
