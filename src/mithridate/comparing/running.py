"""From data to a comparison: train every recipe once, certify every method, and match bagging with another one."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mithridate import _validate
from mithridate._io.files import PathLike, read_file, write_atomically
from mithridate._text import shortened
from mithridate.comparing.entry import Entry, covers
from mithridate.comparing.result import ROW_NAME, Comparison, checked_radii, make_folder
from mithridate.core.certificate import Scope
from mithridate.core.conditions import Statement, of_user
from mithridate.core.mechanism import OF_UNITS, Threat
from mithridate.core.votes import Votes
from mithridate.data.examples import Examples, as_examples
from mithridate.data.named import load_named
from mithridate.defences import Defence
from mithridate.defences import defence as defence_of
from mithridate.defences.base import kind_of_device
from mithridate.errors import ArtifactError, ConfigError, MithridateError
from mithridate.training.order import RuntimeOptions, compose

Progress = Callable[[int, int], None]
# Called with the title of a method and the name of a stage when that begins; what it returns is told how far it is.
Watch = Callable[[str, str], Progress | None]

TRAINING, CERTIFYING = "training", "certifying"

# What every defence has; see `Defence`.
_PARTS = ("name", "title", "threats", "per_prediction", "choose", "run", "certify")
# How bagging is matched: this close is equal, and so many trainings are enough.
_EQUAL = 0.005
_MOST_TRAININGS = 8


def compare(
    defences: Sequence[Defence | str] | Mapping[str, Defence | str],
    data: Any,
    *,
    radii: Iterable[int] | None = None,
    threat: Threat | str | None = None,
    failure_prob: float = 1e-3,
    scope: Scope | str = Scope.PREDICTION,
    run_dir: PathLike | None = None,
    device: str = "auto",
    match: int | None = None,
    match_with: str | None = None,
    title: str | None = None,
    progress: Watch | None = None,
    assumptions: Sequence[str] = (),
) -> Comparison:
    """Train several defences on the same data, certify them, and compare what they certify.

    Guarantee: every certificate is that of its method by itself, and a method is called better than another only where
    both claim the same kind of thing: each prediction, the same threat, a valid rule. Methods of equal recipes share
    votes, and votes are those of the defence alone. A method that fails is reported in `failed`; the others go on.

    Assumes: what each certificate lists. With `match`, the draws of bagging are chosen by a look at the results, which
    its certificate says.

    Args:
        defences: methods by name, or objects of `mithridate.defences`; a mapping gives them other names.
        data: a pair of training set and test set, each a pair (inputs, labels) or `data.Examples`; or a named data set
            or its name, such as `digits`. The test set needs true labels.
        radii: radii of the table; by default round ones.
        threat: how the data may have been changed (`symmetric-difference`, with units `edit`); a method that cannot
            certify it uses its own threat, and is marked.
        failure_prob: probability with which a claim may fail, over training; deterministic methods have none.
        scope: whether that is about one `prediction` or about `all` of them at once.
        run_dir: where votes are kept, a folder for each recipe; the same call after an interruption goes on from there.
        device: `cpu`, `cuda`, `cuda:1` and so on, `mps` or `auto`.
        match: 0 to choose the draws of bagging so that it certifies as many correct predictions at radius 0 as another
            method does.
        match_with: name of that method; by default the first that is not bagging.
        title: the title of the report.
        progress: called with the title of a method and `training` or `certifying` when either begins; what it returns,
            if anything, is called with how much is done, and of how much.
        assumptions: what else has looked at the training data, a sentence each; every certificate repeats them.

    Raises:
        ConfigError: an argument is not what it should be, or no method came to a result.

    >>> compare([], "digits")
    Traceback (most recent call last):
    ...
    mithridate.errors.ConfigError: There is nothing to compare; name at least one method, such as fdp.
    """
    if threat is not None:
        _validate.one_of(tuple(Threat), threat=threat)
    _validate.one_of(tuple(Scope), scope=scope)
    _validate.number_in(0, 1, low_open=True, high_open=True, failure_prob=failure_prob)
    shown = None if radii is None else checked_radii(radii)
    methods = _resolved(defences)
    # A name, whether or not a method uses it; whether there is such a device is seen when one does.
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", str(device)):
        raise ConfigError(f"Expected device to be cpu, cuda, cuda:1, mps or auto, got {shortened(repr(device))}.")
    target = None if match is None else _target(methods, match, match_with)
    if match is None and match_with is not None:
        raise ConfigError("match_with says which method bagging is matched with; add match=0 (--match r=0).")
    _validate.sentences(assumptions=assumptions)
    training, test = _examples(data)
    training = dataclasses.replace(training, assumptions=(*training.assumptions, *of_user(assumptions)))
    runtime = RuntimeOptions(run_dir=run_dir, device=device, keep_models=run_dir is not None)
    assert test.y is not None
    trainer = _Trainer(training, test, runtime, progress or (lambda *_: None), {})
    usual = Threat.SYMMETRIC_DIFFERENCE if training.units is None else OF_UNITS
    claim = _Claim(Threat(threat or usual), failure_prob, Scope(scope))
    entries: dict[str, Entry] = {}
    failed: dict[str, str] = {}
    for name in sorted(methods, key=lambda each: each != target):  # what others are matched with comes first
        try:
            if target is not None and methods[name].name == "bagging":
                entries[name] = _matched(name, methods[name], entries.get(target), trainer, claim)
            else:
                entries[name] = trainer.entry(name, methods[name], claim)
        except MithridateError as error:
            failed[name] = str(error)
    if not entries:
        first = next(iter(failed))
        raise ConfigError(f"No method came to a result; {first}: {failed[first]}")
    return Comparison(
        tuple(entries[name] for name in methods if name in entries),
        claim.threat,
        test.y,
        tuple((name, failed[name]) for name in methods if name in failed),
        shown,
        title or (f"Defences compared on {data}" if isinstance(data, str) else "Defences compared"),
    )


@dataclass(frozen=True)
class _Claim:
    """What every method is asked to certify."""

    threat: Threat
    failure_prob: float
    scope: Scope

    def threat_for(self, defence: Defence) -> Threat:
        """What is asked, where the defence can certify it; else what covers that; else its own threat."""
        if self.threat in defence.threats:
            return self.threat
        return next((own for own in defence.threats if covers(own, self.threat)), defence.threats[0])


def _resolved(defences: Any) -> dict[str, Defence]:
    """Every defence by the name of its row."""
    if isinstance(defences, str) or not isinstance(defences, Sequence | Mapping):
        raise ConfigError("Expected a list of methods, such as ['fdp', 'dpa'].")
    if not defences:
        raise ConfigError("There is nothing to compare; name at least one method, such as fdp.")
    chosen = [_defence(each) for each in (defences.values() if isinstance(defences, Mapping) else defences)]
    if not isinstance(defences, Mapping):
        return dict(zip(row_names([(each.name, getattr(each, "on", "votes")) for each in chosen]), chosen, strict=True))
    for name in defences:
        if not isinstance(name, str) or not re.fullmatch(ROW_NAME, name):
            raise ConfigError(f"Expected names of letters, digits, '.', '_' and '-', got {shortened(repr(name))}.")
    return dict(zip(defences, chosen, strict=True))


def _defence(given: Any) -> Defence:
    if isinstance(given, type):
        raise ConfigError(f"Expected a defence, got the class {given.__name__}; write {given.__name__}().")
    found = defence_of(given) if isinstance(given, str) else given
    if not all(hasattr(found, part) for part in _PARTS):
        raise ConfigError(f"Expected the name of a method or a defence, got {shortened(repr(given))}.")
    return found


def row_names(methods: Iterable[tuple[str, str]]) -> list[str]:
    """A name for each pair of a method and `votes` or `scores`: the method's, with `-scores` or a number if it recurs.

    >>> row_names([("fdp", "votes"), ("fdp", "scores"), ("dpa", "votes"), ("dpa", "votes")])
    ['fdp', 'fdp-scores', 'dpa', 'dpa-2']
    """
    names: list[str] = []
    for method, on in methods:
        base = f"{method}-scores" if method in names and on == "scores" else method
        numbered = (f"{base}-{number}" for number in itertools.count(2))
        names.append(next(name for name in itertools.chain([base], numbered) if name not in names))
    return names


def _examples(data: Any) -> tuple[Examples, Examples]:
    """The data of all methods: training examples, and test points with their true labels."""
    if isinstance(data, str):
        data = load_named(data)
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise ConfigError("Expected data as a pair (training set, test set), or the name of a data set.")
    training = as_examples(data[0], "training", need_labels=True)
    test = as_examples(data[1], "test", need_labels=False)
    if test.y is None:
        raise ConfigError(
            "A comparison needs the true labels of the test inputs; give the test set as a pair (inputs, labels)."
        )
    return training, test


@dataclass(frozen=True, eq=False)
class _Trainer:
    """Trains every recipe once."""

    training: Examples
    test: Examples
    runtime: RuntimeOptions  # its `run_dir` holds a run directory for each recipe
    watch: Watch
    kept: dict[tuple[str, int], _Trained]  # by recipe

    def entry(self, name: str, defence: Defence, claim: _Claim, notes: tuple[str, ...] = ()) -> Entry:
        """Train unless that is done, and certify."""
        trained = self.trained(name, defence)
        if trained.owner != name:
            notes = (*notes, f"Certified from the votes of {trained.owner}.")
        return self.certified(name, defence, trained, claim, notes)

    def certified(self, name: str, defence: Defence, trained: _Trained, claim: _Claim, notes: tuple[str, ...]) -> Entry:
        """The entry of votes that are there."""
        begin = time.monotonic()
        outcome = defence.certify(
            trained.votes,
            threat=claim.threat_for(defence),
            failure_prob=claim.failure_prob,
            scope=claim.scope,
            progress=self.watch(defence.title, CERTIFYING),
        )
        run_dir = None if trained.folder is None else str(trained.folder)
        spent = (trained.seconds, time.monotonic() - begin)
        entry = Entry(defence.title, name, outcome, claim.threat, *spent, run_dir=run_dir)
        return dataclasses.replace(entry, notes=(*entry.warnings, *notes))

    def trained(self, name: str, defence: Defence) -> _Trained:
        """The votes of a recipe, and what is known of their training."""
        device = kind_of_device(self.runtime.device) if defence.needs_torch else "cpu"
        order = compose(defence, self.training, self.test, device=device)
        recipe = json.dumps(order.defence.training_key, sort_keys=True, default=repr)
        # A recipe has no room for functions: encoders that go by the same words may be different ones.
        own = recipe, id(getattr(getattr(defence, "features", None), "function", None))
        if own not in self.kept:
            folder = self._folder(defence.name, hashlib.sha256(recipe.encode()).hexdigest()[:8])
            spent = _Seconds.of(folder)
            progress = self.watch(defence.title, TRAINING)
            try:
                votes = order.run(dataclasses.replace(self.runtime, run_dir=folder, progress=progress))
            finally:
                spent.write()
            votes = dataclasses.replace(votes, labels=self.test.y)
            self.kept[own] = _Trained(votes, spent.total, name, folder)
        return self.kept[own]

    def _folder(self, slug: str, identity: str) -> Path | None:
        """The folder of a recipe; one that was made for another method of the same recipe is used again."""
        if self.runtime.folder is None:
            return None
        make_folder(self.runtime.folder)
        found = sorted(path for path in self.runtime.folder.glob(f"*-{identity}") if path.is_dir())
        return found[0] if found else self.runtime.folder / f"{slug}-{identity}"


@dataclass(frozen=True, eq=False)
class _Trained:
    """What was trained for a recipe."""

    votes: Votes
    seconds: float
    owner: str  # the method that it was trained for; others share it
    folder: Path | None  # its run directory, an ordinary one


class _Seconds:
    """How long a run took, over all processes that worked on it; kept beside its folder."""

    def __init__(self, path: Path | None, before: float, *, finished: bool) -> None:
        self._path, self._before, self._finished = path, before, finished
        self._begin = time.monotonic()
        self.total = before

    @classmethod
    def of(cls, folder: Path | None) -> _Seconds:
        if folder is None:
            return cls(None, 0.0, finished=False)
        path, before = folder.with_name(f"{folder.name}.seconds"), 0.0
        with suppress(ArtifactError, ValueError):
            before = float(read_file(path))
        # Votes without a run are computed anew every time.
        goes_on = (folder / "run.json").exists() and math.isfinite(before) and before > 0
        return cls(path, before if goes_on else 0.0, finished=goes_on and (folder / "votes.npz").exists())

    def write(self) -> None:
        """Add the time since; what was finished before costs nothing more."""
        if self._finished:
            return
        self.total = self._before + time.monotonic() - self._begin
        if self._path is not None:
            with suppress(ArtifactError), write_atomically(self._path) as file:
                file.write(f"{self.total:.3f}\n".encode())


# --- bagging as good as another method ------------------------------------------------------------------------------


def _target(methods: dict[str, Defence], match: int, match_with: str | None) -> str:
    """The name of the method that bagging is matched with."""
    if match != 0 or isinstance(match, bool):
        raise ConfigError(f"Expected match to be 0 (--match r=0), where more draws certify more; got {match!r}.")
    others = [name for name, each in methods.items() if each.name != "bagging" and each.per_prediction]
    if all(each.name != "bagging" for each in methods.values()):
        raise ConfigError("match chooses the draws of bagging, which is not among the methods; add it.")
    if not others:
        raise ConfigError("match needs another method for bagging to be matched with; add one.")
    if match_with is None:
        return others[0]
    if match_with not in others:
        raise ConfigError(f"Expected match_with to be one of {', '.join(others)}, got {match_with!r}.")
    return match_with


def _matched(name: str, bagging: Defence, target: Entry | None, trainer: _Trainer, claim: _Claim) -> Entry:
    """Bagging with as many draws as make it certify what another method does at radius 0: bisection by powers."""
    if target is None:
        raise ConfigError("What it should be matched with came to no result; see there.")
    wanted = float(target.accuracy(0))
    tried: dict[int, Entry] = {}
    units = trainer.training.units
    low, high = 0, (len(trainer.training.x) if units is None else units.unit.count) + 1
    while high - low > 1 and len(tried) < _MOST_TRAININGS:
        draws = min(max(round(math.sqrt(max(low, 1) * (high - 1))), low + 1), high - 1)
        tried[draws] = trainer.entry(name, _with_draws(bagging, draws), claim)
        difference = float(tried[draws].accuracy(0)) - wanted
        if abs(difference) <= _EQUAL:
            break
        low, high = (low, draws) if difference > 0 else (draws, high)
    closest = min(tried, key=lambda draws: abs(float(tried[draws].accuracy(0)) - wanted))
    seconds = sum(trainer.trained(name, _with_draws(bagging, draws)).seconds for draws in tried)
    chosen = _chosen(closest, tried[closest], target, trainer, bagging, claim)
    note = f"Training time is that of all {len(tried)} trainings by which the number was found."
    return dataclasses.replace(chosen, training_seconds=seconds, notes=(*chosen.notes, note))


def _with_draws(bagging: Any, draws: int) -> Defence:
    try:
        return dataclasses.replace(bagging, draws=draws)
    except TypeError as error:
        raise ConfigError(f"match needs a bagging defence whose draws can be set, got {bagging!r}.") from error


def _chosen(draws: int, entry: Entry, target: Entry, trainer: _Trainer, bagging: Any, claim: _Claim) -> Entry:
    """The entry with the choice of its draws among its assumptions."""
    defence = _with_draws(bagging, draws)
    trained = trainer.trained(entry.name, defence)
    own, other = float(entry.accuracy(0)), float(target.accuracy(0))
    note = (
        f"{draws:,} draws were chosen to match {target.name} at r = 0: {own:.1%} correct and certified against "
        f"{other:.1%}, on the test points of this comparison; its certificate takes the number as public and fixed."
    )
    assumed = Statement(
        f"The number of draws, {draws:,}, was chosen by certified accuracy on labelled test points, with models "
        "trained on this very data; the certificate holds only if the number is taken as public and fixed.",
        "tuned-on-training-data",
    )
    votes = dataclasses.replace(trained.votes, assumptions=(*trained.votes.assumptions, assumed))
    return trainer.certified(entry.name, defence, dataclasses.replace(trained, votes=votes), claim, (note,))
