"""`tune`: a search on trusted examples alone, trial by trial, which can be killed and resumed."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mithridate import _validate
from mithridate._io.files import PathLike
from mithridate._text import counted, shortened
from mithridate.comparing.result import make_folder
from mithridate.core.certificate import Certificate
from mithridate.core.labels import commonest
from mithridate.core.mechanism import Deterministic, Threat
from mithridate.core.provenance import fingerprint
from mithridate.data.examples import Examples, as_examples
from mithridate.data.partition import canonical_order, content_hashes, folds_of, shared_with, unit_hashes
from mithridate.defences.base import check_counts_units, check_declared, kind_of_device
from mithridate.errors import ArtifactError, ConfigError
from mithridate.training.order import RuntimeOptions, compose, facts_of
from mithridate.training.run_directory import locked
from mithridate.tuning.result import (
    FINISHED,
    GIVEN_UP,
    RECORD,
    REFUSED,
    Trial,
    Tuning,
    damaged,
    read_record,
    write_record,
)
from mithridate.tuning.space import Candidate, Known, candidate_of

if TYPE_CHECKING:
    import optuna

BoolArray = npt.NDArray[np.bool_]
# Called with every trial that is done.
Watch = Callable[[Trial], None]

# Shares of the training set, where no radii are asked for.
DEFAULT_AT: tuple[float, ...] = (0, 0.001, 0.005)
# A trusted file of which more than this is in the training file, too, was probably cut out of it.
MOST_SHARED = 0.01
# No trial may take more than this share of the time.
_SHARE_OF_TIME = 0.25
_FEWEST_IN_A_FOLD = 5


def tune(
    trusted: Any,
    training: Any = None,
    *,
    num_train: int | None = None,
    num_units: int | None = None,
    size_step: int | None = None,
    classes: int | None = None,
    given: Mapping[str, Any] | None = None,
    methods: Sequence[str] | None = None,
    at: Sequence[float] = DEFAULT_AT,
    minutes: float | None = 10.0,
    trials: int | None = None,
    balanced: bool = False,
    threat: Threat | str | None = None,
    failure_prob: float = 1e-3,
    folds: int = 5,
    seed: int = 0,
    device: str = "auto",
    out: PathLike | None = None,
    progress: Watch | None = None,
) -> Tuning:
    """Choose a method, features and constants on examples that no attacker touched (needs the `tune` extra).

    Guarantee: the choice is a function of the trusted examples (as a set, in any order), of the other arguments, and,
    where time and not `trials` ends the search, of the speed of the machine; the training data has no part in it. So on
    every D' that an attacker makes of the training data the constants are the same, and the certificates of the choice
    are not conditional on it. `training` is compared with the trusted examples and can do two things: have the call
    refused, or add a note. No trusted example is left out because of it, and no trial sees it.

    Assumes: no attacker touched the trusted examples, nor decided which ones they are; certificates say so in a
    sentence (`Tuning.statement`). Examples that are in the training data as well were probably taken from it, where an
    attacker could have put or picked them: this is why more than 1% of them is refused.

    The trusted examples are split into folds, by a hash of each input, or of the name of its unit. Every trial trains
    on all folds but one and certifies that one, in turn. Radii count changes of the training set; on the folds they are
    the same share of fewer examples, rounded up. The search (Optuna, TPE) raises the mean of certified accuracy over
    all radii.

    Args:
        trusted: `data.Examples`, or a pair of inputs and labels.
        training: the training data, likewise, to be compared with the trusted examples; None: not compared.
        num_train: the number of training examples, declared and not counted; what follows it is chosen for as many.
        num_units: in its place the number of units, where the examples have some. Folds are then by the name of each
            unit, and radii and shares of the training set count units.
        size_step: in the place of both, the step of a number that is not declared (`core.conditions.step_of`): what
            follows it is chosen for that step, and certificates of the choice end with it.
        classes: the number of labels, where it is known.
        given: constants that are decided already, by the names of flags, and not searched.
        methods: those that are searched; None: `nearest-neighbours`, `kernel-vote`, `ridge` and, where torch and
            scikit-learn are there, `dpa`. `fdp` and `run-off-election` can be named.
        at: radii that matter: whole numbers of changes, or shares of the training set below 1.
        minutes: how long the search may take in all; None: as long as `trials` take. A trial gets at most a quarter,
            and a method that needs more is not tried again.
        trials: how many trials there are in all; None: as many as there is time for.
        balanced: raise certified accuracy as a mean over classes, and search weights of labels (if `classes` or their
            names are declared).
        threat: how the training data may have been changed (`symmetric-difference`, with units `edit`).
        failure_prob: probability with which a claim may fail, over training.
        folds: into how many parts the trusted examples are split, at least 2.
        seed: of sampler and folds: the same one gives the same trials, resumed or not.
        device: `cpu`, `cuda`, `mps` or `auto`, for methods that train.
        out: a folder that keeps every trial, so that the same call resumes; None: in memory.
        progress: called with every trial that is done.

    Raises:
        ConfigError: an argument is not what it should be, the trusted examples are too few or taken from the training
            data, the folder has another search, or no trial came to a result.
        ArtifactError: the folder cannot be used.

    >>> x = np.random.default_rng(0).normal(size=(200, 2))
    >>> found = tune((x, (x[:, 0] > 0).astype(int)), num_train=1_000, classes=2, methods=["ridge"], at=[0, 5], trials=2)
    >>> found.method, len(found.trials), found.statement.id is None
    ('ridge', 2, True)
    """
    known = as_examples(trusted, "trusted", need_labels=True, classes=classes)
    other = None if training is None else as_examples(training, "training", need_labels=False)
    if other is not None and (known.units is None) != (other.units is None):
        raise ConfigError(
            "The training data has units and the trusted examples have none, or the other way round; name the units of "
            "both, or of neither."
        )
    search = _Search.of(
        _sorted(known),
        given={} if given is None else given,
        methods=methods,
        num_train=num_train,
        num_units=num_units,
        size_step=size_step,
        classes=classes,
        at=at,
        balanced=balanced,
        threat=threat or (Threat.SYMMETRIC_DIFFERENCE if known.units is None else Threat.EDIT),
        failure_prob=failure_prob,
        folds=folds,
        seed=seed,
        device=device,
    )
    limit = _Limit.of(minutes, trials)
    notes = () if other is None else _overlap(search.examples, other)
    _optuna()  # before a folder is made that stays empty
    with _folder(out) as folder:
        found = search.run(limit, folder, progress or (lambda trial: None))
    result = dataclasses.replace(search.result(found), notes=notes)
    if not result.finished:
        raise ConfigError(_nothing(found, limit))
    return result


def number_of(examples: Examples) -> int:
    """How many there are of what radii count: units, where they are declared."""
    return len(examples.x) if examples.units is None else examples.units.unit.count


def _sorted(examples: Examples) -> Examples:
    """In an order that follows from what they are: no trial depends on how the file was sorted."""
    assert examples.y is not None
    hashes = content_hashes(examples.x, examples.y)
    return examples.part(canonical_order(hashes if examples.units is None else unit_hashes(examples.units, hashes)))


def _overlap(trusted: Examples, training: Examples) -> tuple[str, ...]:
    """A note where a few trusted examples are in the training data; more are refused, and none is left out."""
    if trusted.x.shape[1:] != training.x.shape[1:] or (trusted.kind == "text") != (training.kind == "text"):
        raise ConfigError(
            f"Expected trusted inputs of shape {training.x.shape[1:]} like the training inputs, got "
            f"{trusted.x.shape[1:]} ({trusted.kind}); prepare both alike."
        )
    shared, total = int(shared_with(trusted.x, training.x).sum()), len(trusted.x)
    if shared > MOST_SHARED * total:
        raise ConfigError(
            f"{shared:,} of {counted(total, 'trusted example')} are in the training data, too (more than "
            f"{MOST_SHARED:.0%}): they were probably taken from it, where an attacker could have put them. Give "
            "examples that were collected apart from the training data."
        )
    if not shared:
        return ()
    are = "1 trusted example is" if shared == 1 else f"{shared:,} of {total:,} trusted examples are"
    return (
        f"{are} in the training data, too; that is few enough to be a coincidence, and nothing was left out for it.",
    )


def _nothing(found: Sequence[Trial], limit: _Limit) -> str:
    """Why there is no result."""
    refused = next((trial for trial in found if trial.status == REFUSED), None)
    if refused is not None:
        return f"No trial came to a result; {refused.candidate.method}: {refused.reason}"
    return f"No trial finished within {limit.words}; allow more time, name quicker methods, or use fewer folds."


# --- limits -----------------------------------------------------------------------------------------------------------


class _OutOfTimeError(Exception):
    """The time of a trial, or of the whole search, is over."""


@dataclass(frozen=True)
class _Limit:
    """How long a search may take."""

    seconds: float
    trials: float

    @classmethod
    def of(cls, minutes: Any, trials: Any) -> _Limit:
        if minutes is None and trials is None:
            raise ConfigError("A search needs an end: give minutes, or a number of trials.")
        if minutes is not None:
            _validate.number_in(0, 1e6, low_open=True, minutes=minutes)
        if trials is not None:
            _validate.positive_integer(trials=trials)
        return cls(math.inf if minutes is None else 60.0 * minutes, math.inf if trials is None else trials)

    @property
    def of_trial(self) -> float:
        """Seconds that a trial may take."""
        return self.seconds * _SHARE_OF_TIME

    @property
    def words(self) -> str:
        return f"{self.seconds / 60:g} minutes" if math.isfinite(self.seconds) else f"{self.trials:g} trials"


@contextlib.contextmanager
def _folder(out: PathLike | None) -> Iterator[Path | None]:
    """The folder of the search, for this process alone."""
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


# --- the search -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Fold:
    """Examples to train on, and those that are then certified."""

    training: Examples
    scored: Examples
    radii: npt.NDArray[np.int64]  # the radii asked for, as so many changes of these examples

    @property
    def correct_labels(self) -> npt.NDArray[np.int64]:
        assert self.scored.y is not None
        return self.scored.y


@dataclass(frozen=True, eq=False)
class _Search:
    """A search with all that it depends on."""

    examples: Examples
    known: Known
    folds: tuple[_Fold, ...]
    at: tuple[int, ...]
    identity: Mapping[str, Any]
    device: str

    @classmethod
    def of(
        cls,
        examples: Examples,
        *,
        given: Mapping[str, Any],
        methods: Sequence[str] | None,
        num_train: int | None,
        num_units: int | None,
        size_step: int | None,
        classes: int | None,
        at: Sequence[float],
        balanced: bool,
        threat: Threat | str,
        failure_prob: float,
        folds: int,
        seed: int,
        device: str,
    ) -> _Search:
        check_declared(num_train, classes, size_step, num_units)
        if examples.units is not None:
            check_counts_units(num_train)
        elif num_units is not None:
            raise ConfigError("num_units is about units, and the trusted examples have none; declare num_train.")
        number = num_train or num_units or size_step
        if number is None:
            many, name = ("examples", "num_train") if examples.units is None else ("units", "num_units")
            raise ConfigError(
                f"A search is for a number of training {many}: declare {name}, or give size_step, the step of a "
                "number that is not declared."
            )
        _validate.one_of(tuple(Threat), threat=threat)
        _validate.number_in(0, 1, low_open=True, high_open=True, failure_prob=failure_prob)
        _check_whole(2, 1000, folds=folds)
        _check_whole(0, 1 << 32, seed=seed)
        asked = radii_for(at, number)
        declared = classes if classes is not None else _declared_classes(examples)
        sizes = ("num_train", "num_units", "size_step", "classes")
        constants = {name: value for name, value in given.items() if name not in sizes}
        facts, _ = facts_of(_Declared(number, declared), examples)
        known = Known.of(examples, facts, constants, methods, weigh_labels=balanced and declared is not None)
        identity = {
            "trusted": _fingerprint(examples),
            "declaration": None if examples.declaration is None else examples.declaration.to_dict(),
            "given": _plain(constants),
            "num_train": number,
            "is_step": size_step is not None,
            "classes": facts.classes,
            "labels": len(np.unique(np.asarray(examples.y))),
            "methods": list(known.methods),
            "at": list(asked),
            "balanced": bool(balanced),
            "threat": str(Threat(threat).value),
            "failure_prob": failure_prob,
            "folds": folds,
            "seed": seed,
        }
        if examples.units is not None:
            identity |= {"unit": examples.units.name, "units": examples.units.fingerprint()}
        return cls(examples, known, _folds(examples, folds, seed, asked, number), asked, identity, device)

    def result(self, found: Sequence[Trial]) -> Tuning:
        """What came of it."""
        baseline = commonest(np.asarray(self.examples.y))
        names = self.examples.class_names
        return Tuning(
            tuple(found),
            self.identity,
            self.at,
            tuple(np.max([fold.radii for fold in self.folds], axis=0).tolist()),
            examples=len(self.examples.x),
            trained_on=round(float(np.mean([number_of(fold.training) for fold in self.folds]))),
            fingerprint=self.identity["trusted"],
            baseline=baseline,
            label=str(baseline.label if names is None else names[baseline.label]),
        )

    def run(self, limit: _Limit, folder: Path | None, watch: Watch) -> list[Trial]:
        """Try until the end; what a folder has of the same search comes first."""
        found = [] if folder is None else self._resumed(folder)
        sampler = self._sampler(found)
        while len(found) < limit.trials and not self._is_hopeless(found):
            left = limit.seconds - sum(trial.seconds for trial in found)
            if left <= 0:
                break
            answers, candidate = sampler.ask(len(found))
            trial = self._tried(len(found), answers, candidate, left, limit.of_trial)
            if trial is None:  # the time of the search was over before that of the trial
                break
            found.append(trial)
            if trial.status == GIVEN_UP:
                sampler = self._sampler(found)
            else:
                sampler.tell(trial)
            if folder is not None:
                write_record(folder, self.identity, tuple(found))
            watch(trial)
        return found

    def _resumed(self, folder: Path) -> list[Trial]:
        """The trials of earlier processes."""
        contents = read_record(folder, self.identity)
        try:
            return [self._recorded(content, number) for number, content in enumerate(contents)]
        except (KeyError, TypeError, ValueError, AssertionError) as error:
            raise damaged(folder / RECORD) from error

    def _sampler(self, found: Sequence[Trial]) -> _Sampler:
        """What proposes the next trial: a method that takes too long is not proposed again."""
        methods = self._quick_enough(found)
        sampler = _Sampler(dataclasses.replace(self.known, methods=methods), self.identity["seed"])
        for trial in found:
            if trial.candidate.method in methods:
                sampler.tell_again(trial)
        return sampler

    def _quick_enough(self, found: Sequence[Trial]) -> tuple[str, ...]:
        slow = {trial.candidate.method for trial in found if trial.status == GIVEN_UP}
        return tuple(name for name in self.known.methods if name not in slow)

    def _is_hopeless(self, found: Sequence[Trial]) -> bool:
        """Whether every method takes too long, or was tried and refused."""
        refused = len(found) >= len(self.known.methods) and all(trial.status == REFUSED for trial in found)
        return refused or not self._quick_enough(found)

    def _recorded(self, content: Mapping[str, Any], number: int) -> Trial:
        """A trial of an earlier process; its constants follow from the answers of the sampler anew."""
        answers = dict(content["answers"])
        recorded = Recorded(answers)
        candidate = candidate_of(recorded, self.known)
        if set(recorded.ranges) != set(answers):
            raise ValueError("there are answers that nobody asked for")
        certified = tuple(float(share) for share in content["certified_accuracy"])
        status, seconds = content["status"], float(content["seconds"])
        is_whole = status in (FINISHED, REFUSED, GIVEN_UP) and len(certified) == len(self.at) * (status == FINISHED)
        if (
            not is_whole
            or content["number"] != number
            or not all(0 <= share <= 1 for share in certified)
            or seconds < 0
        ):
            raise ValueError("not a trial")
        return Trial(number, answers, candidate, status, certified, str(content["reason"]), seconds)

    def _tried(
        self, number: int, answers: Mapping[str, Any], candidate: Candidate, left: float, most: float
    ) -> Trial | None:
        """The trial, finished, refused or given up; None where the time of the whole search is over."""
        begin = time.monotonic()

        def spent() -> float:
            return time.monotonic() - begin

        def check(*_: int) -> None:
            if spent() > min(left, most):
                raise _OutOfTimeError

        try:
            certified = self._certified(number, candidate, check)
        except _OutOfTimeError:
            if spent() <= most:
                return None
            reason = f"It took more than {most:.0f} s, a quarter of the time of the search."
            return Trial(number, answers, candidate, GIVEN_UP, reason=reason, seconds=spent())
        except ConfigError as error:
            return Trial(number, answers, candidate, REFUSED, reason=shortened(str(error), 300), seconds=spent())
        return Trial(number, answers, candidate, FINISHED, certified, seconds=spent())

    def _certified(self, number: int, candidate: Candidate, check: Callable[..., None]) -> tuple[float, ...]:
        """Certified accuracy at every radius asked for, over all folds together."""
        shown: list[BoolArray] = []
        for place, fold in enumerate(self.folds):
            check()
            shown.append(self._shown(fold, candidate, _root_seed(self.identity["seed"], number, place), check))
        whole, truth = np.concatenate(shown), np.concatenate([fold.correct_labels for fold in self.folds])
        if not self.identity["balanced"]:
            return tuple(whole.mean(axis=0).tolist())
        return tuple(np.mean([whole[truth == label].mean(axis=0) for label in np.unique(truth)], axis=0).tolist())

    def _shown(self, fold: _Fold, candidate: Candidate, root_seed: bytes, check: Callable[..., None]) -> BoolArray:
        """Whether each example is correct and certified, examples x radii."""
        defence = candidate.defence(number_of(fold.training), self.known.facts.classes)
        device = kind_of_device(self.device) if defence.needs_torch else "cpu"
        is_random = not all(issubclass(each, Deterministic) for each in defence.mechanisms)
        seed = root_seed if is_random else None
        order = compose(defence, fold.training, fold.scored, device=device, root_seed=seed)
        votes = order.run(RuntimeOptions(device=self.device, progress=check))
        certificate = order.defence.certify(
            votes, threat=self.identity["threat"], failure_prob=self.identity["failure_prob"], progress=check
        )
        assert isinstance(certificate, Certificate)
        reached = np.where(certificate.label == fold.correct_labels, certificate.radius, -1)
        return reached[:, None] >= fold.radii[None, :]


@dataclass(frozen=True)
class _Declared:
    """What facts are taken from, in the place of a defence."""

    num_train: int
    classes: int | None


def _declared_classes(examples: Examples) -> int | None:
    named = None if examples.declaration is None else examples.declaration.classes
    return None if named is None else len(named)


def _fingerprint(examples: Examples) -> str:
    """Of sorted examples; however their numbers and texts are held."""
    assert examples.y is not None
    return fingerprint(examples.x, examples.y)


def _plain(constants: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, str | int | float | bool) else repr(value) for name, value in constants.items()
    }


def _check_whole(low: int, high: int, **named: Any) -> None:
    for name, value in named.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
            raise ConfigError(f"Expected {name} to be a whole number from {low} to {high:,}, got {value!r:.80}.")


def radii_for(at: Any, num_train: int) -> tuple[int, ...]:
    """Radii in changes of the training set: whole numbers as they are, shares below 1 of its examples, rounded up.

    Raises:
        ConfigError: one is neither, or there are none.

    >>> radii_for([0, 5, 0.01], 1000)
    (0, 5, 10)
    """
    given = list(at) if isinstance(at, list | tuple) else []
    radii: set[int] = set()
    for each in given:
        number = isinstance(each, int | float | np.integer | np.floating) and not isinstance(each, bool)
        if not number or not math.isfinite(each) or each < 0 or (each >= 1 and each != int(each)):
            raise ConfigError(
                f"Expected radii as whole numbers or as shares below 1, such as 0, 5, 0.01; got {each!r:.80}."
            )
        radii.add(int(each) if each == int(each) else math.ceil(each * num_train - 1e-9))
    if not radii:
        raise ConfigError("Expected at least one radius, such as at=(0, 5, 50).")
    if max(radii) > num_train:
        raise ConfigError(f"A radius of {max(radii):,} is above num_train={num_train:,}; ask for a smaller one.")
    return tuple(sorted(radii))


def _folds(examples: Examples, count: int, seed: int, at: Sequence[int], num_train: int) -> tuple[_Fold, ...]:
    """The trusted examples in folds, by a hash of each.

    Raises:
        ConfigError: there are too few of them, or of their labels.
    """
    numbers, units = folds_of(examples, count, seed), examples.units
    of_each = numbers if units is None else numbers[np.unique(units.of_example, return_index=True)[1]]
    if np.bincount(of_each, minlength=count).min() < _FEWEST_IN_A_FOLD:
        few = counted(len(numbers), "trusted example") if units is None else units.unit.counted(len(of_each))
        raise ConfigError(
            f"{few} are too few for {count} folds of different {'inputs' if units is None else units.unit.many}; give "
            f"at least {4 * _FEWEST_IN_A_FOLD * count}, or use fewer folds."
        )
    found: list[_Fold] = []
    for number in range(count):
        training, scored = examples.part(numbers != number), examples.part(numbers == number)
        if len(np.unique(np.asarray(training.y))) < 2:
            raise ConfigError("The trusted examples have one label only; give some of every class.")
        share = number_of(training) / num_train
        radii = np.array([math.ceil(radius * share - 1e-9) for radius in at], dtype=np.int64)
        found.append(_Fold(training, scored, radii))
    return tuple(found)


def _root_seed(*numbers: int) -> bytes:
    """What trials that need randomness get, so that they can be repeated."""
    return hashlib.sha256(f"mithridate tune {numbers}".encode()).digest()


# --- who answers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recorded:
    """The answers of an earlier process, with the ranges that they were taken from."""

    answers: Mapping[str, Any]
    ranges: dict[str, Any] = field(default_factory=dict[str, Any])

    def number(self, name: str, low: float, high: float, start: float, *, log: bool = False) -> float:
        """The number that was answered."""
        from optuna.distributions import FloatDistribution

        self.ranges[name] = FloatDistribution(low, high, log=log)
        value = float(self.answers[name])
        if not low <= value <= high:
            raise ValueError(f"{name} is out of range")
        return value

    def one_of(self, name: str, choices: Sequence[str], start: str | None = None) -> str:
        """The word that was answered."""
        from optuna.distributions import CategoricalDistribution

        self.ranges[name] = CategoricalDistribution(tuple(choices))
        if self.answers[name] not in choices:
            raise ValueError(f"{name} is out of range")
        return self.answers[name]


@dataclass(frozen=True)
class _First:
    """The first guess of the table about one method."""

    method: str
    answers: dict[str, Any] = field(default_factory=dict[str, Any])

    def number(self, name: str, low: float, high: float, start: float, *, log: bool = False) -> float:
        return self.answers.setdefault(name, start)

    def one_of(self, name: str, choices: Sequence[str], start: str | None = None) -> str:
        guess = self.method if name == "method" else start or choices[0]
        return self.answers.setdefault(name, guess)


@dataclass(frozen=True)
class _OfTrial:
    """The answers of Optuna's sampler."""

    trial: optuna.Trial

    def number(self, name: str, low: float, high: float, start: float, *, log: bool = False) -> float:
        return self.trial.suggest_float(name, low, high, log=log)

    def one_of(self, name: str, choices: Sequence[str], start: str | None = None) -> str:
        return self.trial.suggest_categorical(name, choices)


def _optuna() -> Any:
    """The library that proposes trials.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise ConfigError("tune needs Optuna; install it with: pip install 'mithridate[tune]'") from error
    return optuna


class _Sampler:
    """Optuna's study, in memory: what is kept of it is our own record, in plain JSON.

    The sampler of a trial is seeded anew by the number of the trial: what it answers is a function of the seed and of
    the trials before, whichever process they ran in. The first trial of every method is the first guess of the table.
    """

    def __init__(self, known: Known, seed: int) -> None:
        optuna = _optuna()
        self._known, self._seed, self._optuna = known, seed, optuna
        with self._quiet():
            self._study = optuna.create_study(direction="maximize")
        self._asked: optuna.Trial | None = None
        self._tried: set[str] = set()

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        logging = self._optuna.logging
        before = logging.get_verbosity()
        logging.set_verbosity(logging.WARNING)
        try:
            yield
        finally:
            logging.set_verbosity(before)

    def ask(self, number: int) -> tuple[dict[str, Any], Candidate]:
        """The answers for the trial of a number, and what follows from them."""
        untried = next((name for name in self._known.methods if name not in self._tried), None)
        with self._quiet():
            if untried is not None:
                first = _First(untried)
                candidate_of(first, self._known)
                self._study.enqueue_trial(first.answers)
            state = np.random.SeedSequence([self._seed, number]).generate_state(1)
            self._study.sampler = self._optuna.samplers.TPESampler(seed=int(state[0]))
            asked = self._asked = self._study.ask()
            candidate = candidate_of(_OfTrial(asked), self._known)
        return dict(asked.params), candidate

    def tell(self, trial: Trial) -> None:
        """What came of the trial that was asked for; one without a result counts as one that certifies nothing."""
        assert self._asked is not None
        self._tried.add(trial.candidate.method)
        with self._quiet():
            self._study.tell(self._asked, trial.value)

    def tell_again(self, trial: Trial) -> None:
        """What came of a trial that another study asked for."""
        recorded = Recorded(trial.answers)
        candidate_of(recorded, self._known)
        self._tried.add(trial.candidate.method)
        made = self._optuna.trial.create_trial(
            params=dict(trial.answers), distributions=recorded.ranges, value=trial.value
        )
        with self._quiet():
            self._study.add_trial(made)
