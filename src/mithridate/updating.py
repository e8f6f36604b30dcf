"""Training data that changes: a finished run becomes that of the new data, and trains only what was touched."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate._io.files import PathLike, exchange, parse_json, read_file, recover, write_atomically
from mithridate._text import counted
from mithridate.certifying.certification import certify
from mithridate.core.certificate import Certificate
from mithridate.core.conditions import Statement
from mithridate.core.mechanism import Deterministic, Drawn
from mithridate.core.provenance import input_hashes
from mithridate.core.units import unit_in_json
from mithridate.core.votes import Votes
from mithridate.data.changing import Change, changed, names_in, per_unit
from mithridate.data.examples import Examples, as_examples
from mithridate.data.kept_examples import save_examples
from mithridate.data.sources import read
from mithridate.defences.base import kind_of_device
from mithridate.defences.prediction import method_of
from mithridate.errors import ArtifactError, ConfigError
from mithridate.projects import INPUTS, RUN_PROJECT, TRAINING, Project, project_of_run, run_toml
from mithridate.training.order import Order, Progress, RuntimeOptions, compose
from mithridate.training.run_directory import is_handed_out, locked

IntArray = npt.NDArray[np.int64]

HISTORY = "updates.json"
_SCHEMA = "mithridate.updates/1"
_DATA = "updated-data"
# What a run writes itself: of the earlier run, all that is not among these is carried over.
_OF_A_RUN = ("lock", "claims", "run.json", "seed", "seeds", "votes.npz", "examples.npz")
_OF_GROUPS = re.compile(r"(shards|models|parts)/\d+-\d+\.(npz|safetensors)")
# What speaks of the earlier votes; it stays under another name.
_OF_EARLIER_VOTES = ("certificate.json", "report.html")


# --- what an update did -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Update:
    """What an update of a run did.

    Attributes:
        run_dir: of the run.
        method: by which it predicts.
        added: how many examples came that are trained on.
        removed: how many went.
        held_out: how many of those that were to come or go are held out by their hash; nothing trains on these.
        examples: how many there are now.
        models: how many models the run has; 0 where nothing is trained.
        retrained: how many of them were trained on data that changed.
        trained_before: how many of these were trained on their earlier data, too, to take their votes out.
        constants_changed: whether what is chosen by the size of the data was chosen otherwise.
        before: the certificate of the earlier run, by its default threat.
        after: that of the run now.
        sources: by the name of every source that was touched: how many examples were added and removed, and are there.
        names: of the classes, where they have some.
        ids: of the inputs, where they have some.
        notes: for the user.
    """

    run_dir: str
    method: str
    added: int
    removed: int
    held_out: int
    examples: int
    models: int
    retrained: int
    trained_before: int
    constants_changed: bool
    before: Certificate = field(repr=False)
    after: Certificate = field(repr=False)
    sources: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]], repr=False)
    names: tuple[str, ...] | None = None
    ids: Sequence[str] | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def predictions_changed(self) -> list[dict[str, Any]]:
        """The inputs whose prediction is another one: their number, name, and the prediction before and after."""
        return [
            {
                "input": int(row),
                **({} if self.ids is None else {"id": self.ids[int(row)]}),
                "from": self._name(self.before.label[row]),
                "to": self._name(self.after.label[row]),
            }
            for row in np.flatnonzero(self.before.label != self.after.label)
        ]

    def _name(self, label: Any) -> str | int:
        return int(label) if self.names is None else self.names[int(label)]

    def moved(self, *, up: bool) -> tuple[int, dict[str, int] | None]:
        """How many radii grew, or shrank, and the input of which one did most; None where there is none."""
        by = (self.after.radius - self.before.radius) * (1 if up else -1)
        number = int((by > 0).sum())
        if not number:
            return 0, None
        row = int(by.argmax())
        return number, {"input": row, "from": int(self.before.radius[row]), "to": int(self.after.radius[row])}

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        (shrank, most_down), (grew, most_up) = self.moved(up=False), self.moved(up=True)
        return {
            "run_dir": self.run_dir,
            "method": self.method,
            "added": self.added,
            "removed": self.removed,
            "held_out": self.held_out,
            "examples": self.examples,
            "models": self.models,
            "retrained": self.retrained,
            "trained_before": self.trained_before,
            "constants_changed": self.constants_changed,
            "inputs": self.after.votes.examples,
            "threat": self.after.threat.value,
            "predictions_changed": self.predictions_changed,
            "radii_shrank": shrank,
            "radii_grew": grew,
            "largest_shrink": most_down,
            "largest_growth": most_up,
            "sources": {name: dict(counts) for name, counts in self.sources.items()},
            **unit_in_json(self.after.votes.unit),
            "notes": list(self.notes),
        }

    def recorded(self) -> dict[str, Any]:
        """What the history of the run says of it."""
        names = ("added", "removed", "held_out", "examples", "models", "retrained", "constants_changed")
        said = self.to_dict()
        training = self.after.votes.training
        kept = {name: said[name] for name in names}
        changes = {name: len(said[name]) for name in ("sources", "predictions_changed")}
        data = None if training is None else training.to_dict()
        return {"at": datetime.now(UTC).isoformat(timespec="seconds"), **kept, **changes, "training": data}


# --- the update -------------------------------------------------------------------------------------------------------


def update(
    run_dir: PathLike,
    new: Any = None,
    *,
    remove: Any = None,
    progress: Progress | None = None,
) -> Update:
    """Add examples to the training data of a finished run, or remove some, and bring the run up to date.

    Guarantee: the votes are, bit for bit, those of training from scratch on the data that results, on this computer and
    with the same project: the examples that are left, in their order, and behind them the new ones. A constant that was
    left open follows the size step of that data, as it would in training from scratch. Of models of parts only those
    are trained whose part changed. The inputs that are voted on stay what they are. Killed at any moment, the run is
    either the old one or the new one, whole.

    Assumes: that the files that the run was trained on are still there and unchanged at the first update; from then on
    the run keeps its own copy of the examples.

    Args:
        run_dir: the directory of a run of neighbours, kernels, or models of parts, by `mithridate train`.
        new: the examples to add: what `data.read` takes, with labels, declared like the training data; None: none.
        remove: the examples to remove: likewise, each row for one example of its content; where the run certifies
            sources, also a list of their names, the path of a `.txt` with a name on each line, or of a table whose only
            column holds them. None: none.
        progress: called with how much is done, and of how much.

    Raises:
        ConfigError: the run is of another method, what is to go is not there, or the examples are not like those of the
            run.
        ArtifactError: the run, or a file that it was trained on, is missing, damaged or changed.
    """
    if new is None and remove is None:
        raise ConfigError("There is nothing to update: give new examples, examples to remove, or both.")
    place = Path(os.path.realpath(run_dir))
    recover(_stage_of(place), place)
    _check_run(place, run_dir)
    with locked(place):
        earlier = _Earlier.of(place)
        return _updated(earlier, Path(run_dir), new, remove, progress)


def _stage_of(place: Path) -> Path:
    """Where the new run is made: beside the old one, so that they can change places."""
    return place.with_name(f".{place.name}.update")


def _check_run(place: Path, shown: PathLike) -> None:
    """Require a finished run of a method that can be updated.

    Raises:
        ConfigError: it cannot.
        ArtifactError: there is no finished run.
    """
    method = method_of(shown)
    what = "models that a call of train decided by hand" if method is None else method
    if not (place / "votes.npz").exists() or is_handed_out(place):
        raise ArtifactError(f"The run in {shown} is not finished; run its `mithridate train` again first.")
    mechanism = Votes.load(place / "votes.npz").mechanism
    if isinstance(mechanism, Drawn):
        raise ConfigError(
            f"{shown} is a run of {what} with input_noise: its votes are draws of noise, which would all be "
            "drawn anew. Train it again."
        )
    if method is None or not isinstance(mechanism, Deterministic):
        raise ConfigError(
            f"{shown} is a run of {what}: each of its models is a random draw that depends on all examples, so one "
            "example more or less would change all of them. Train it again; or use neighbours, kernels or parts "
            "(nearest-neighbours, kernel-vote, dpa), which can be updated."
        )


@dataclass(frozen=True, eq=False)
class _Earlier:
    """A run before its update: where it is, what it was made from, and its votes."""

    place: Path
    project: Project
    order: Order
    votes: Votes

    @classmethod
    def of(cls, place: Path) -> _Earlier:
        """Read it, and make sure that its data is still what it was trained on.

        Raises:
            ArtifactError: it is not.
        """
        if not (place / RUN_PROJECT).exists():
            raise ArtifactError(
                f"{place} has no {RUN_PROJECT}, by which an update finds the training data; `mithridate train` leaves "
                "one in its runs. Train the run by that command."
            )
        project, votes = project_of_run(place), Votes.load(place / "votes.npz")
        if os.path.lexists(place / _DATA) and project.updated is None:
            raise ConfigError(f"An update keeps examples in {place / _DATA}, which is there already; rename it.")
        training, test = project.examples()
        order = _order_of(project, training, test)
        found, said = order.training_data(), votes.training
        if said is None or (found.fingerprint, found.units) != (said.fingerprint, said.units):
            raise ArtifactError(
                f"{project.train or project.name or 'The training data'} is not what the run was trained on: it was "
                "changed since. Put the file back as it was, or train again."
            )
        if votes.input_hashes is None or not np.array_equal(input_hashes(order.test.x), votes.input_hashes):
            raise ArtifactError(
                f"{project.test or 'The inputs that are voted on'} is not what the run voted on: it was changed since. "
                "Put the file back as it was, or train again."
            )
        return cls(place, project, order, votes)


def _order_of(project: Project, training: Examples, test: Examples) -> Order:
    device = kind_of_device(project.options.get("device", "auto"))
    return compose(project.defence(), training, test, device=device)


def _updated(earlier: _Earlier, shown: Path, new: Any, remove: Any, progress: Progress | None) -> Update:
    project, before = earlier.project, earlier.order
    more = None if new is None else _further(new, before.given, project, "new")
    gone = None if remove is None else _gone(remove, before.given, project)
    holdout = project.holdout if project.test is None and project.data_name is None else 0.0
    classes = project.options.get("classes")
    read_off = any(each.id == "class-list" for each in before.statements if isinstance(each, Statement))
    # An update drops those new examples that a hash holds out, so from then on nobody knows all of these.
    kept_out = before.test if holdout and project.updated is None else None
    change = changed(
        before.given, more, gone, holdout=holdout, classes=classes, names_read_off=read_off, inputs=kept_out
    )
    after = _order_of(project, change.training, before.test)
    if after.defence.name != before.defence.name:
        raise ConfigError(
            f"{after.count:,} training examples are of another size step, by which the method would be "
            f"{after.defence.name} in place of {before.defence.name}; name the method in [train], and train again."
        )
    stage = _stage_of(earlier.place)
    with _staged(stage):
        runtime, models = _runtime_for(earlier, stage, progress)
        votes = after.run(runtime)
        done = _told(earlier, shown, change, after, votes, models, () if more is None else more.notes)
        _write_beside(stage, shown, earlier, after, done)
        _carry_over(earlier.place, stage)
        _sync(stage)
        exchange(stage, earlier.place)
    return done


@contextlib.contextmanager
def _staged(stage: Path) -> Iterator[None]:
    """A place for the new run, which is the old one's afterwards; what is left there goes, also of a killed update.

    Raises:
        ArtifactError: it cannot be written to.
    """
    try:
        _remove(stage)
        yield
    except OSError as error:
        reason = error.strerror or error
        raise ArtifactError(
            f"Cannot write {stage}: {reason}. The run stays what it was; make room, or move it."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            _remove(stage)


def _runtime_for(earlier: _Earlier, stage: Path, progress: Progress | None) -> tuple[RuntimeOptions, Any]:
    """How the new run is trained, and the models of parts that it can take over; None where nothing is trained."""
    options = {name: value for name, value in earlier.project.runtime().items() if name in ("device", "precision")}
    runtime = RuntimeOptions(run_dir=stage, progress=progress, keep_models=True, **options)
    if not earlier.order.defence.needs_torch:
        return runtime, None
    try:
        from mithridate.training.earlier_models import EarlierModels
        from mithridate.training.task import task_of
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"Models of parts need {error.name}; install it with: pip install 'mithridate[train]'"
        ) from error
    models = EarlierModels(earlier.place, task_of(earlier.order).job)
    said = models.manifest
    keeps = said.keep_models or (earlier.place / "examples.npz").exists()  # what a learner keeps
    return dataclasses.replace(runtime, earlier=models, keep_models=keeps, in_flight=said.in_flight_asked), models


# --- what comes and what goes -----------------------------------------------------------------------------------------


def _further(given: Any, training: Examples, project: Project, what: str) -> Examples:
    """Examples like those of the training data, read by the same declaration."""
    if isinstance(given, Examples):
        return as_examples(given, what, need_labels=True)
    found = read(given, project.declaration, labels=True, classes=training.class_names, further=True)
    found = as_examples(found, what, need_labels=True)
    if training.units is not None and found.units is None:
        raise ConfigError(f"The {what} examples do not say which {training.units.name} they are of; add it.")
    return found


def _gone(given: Any, training: Examples, project: Project) -> Examples | Sequence[str]:
    """What is to be removed: examples, or all those of the sources of a list."""
    if isinstance(given, list) and all(isinstance(name, str) for name in given):
        return given
    if isinstance(given, str | os.PathLike):
        units = training.units
        unit, known = (None, ()) if units is None else (units.name, units.names)
        names = names_in(Path(given), unit, known)
        if names is not None:
            return names
    return _further(given, training, project, "removed")


def _told(
    earlier: _Earlier, shown: Path, change: Change, after: Order, votes: Votes, models: Any, notes: Sequence[str]
) -> Update:
    """What the update did, by the certificates before and after it."""
    given = change.training
    return Update(
        run_dir=str(shown),
        method=after.defence.name,
        added=0 if change.added is None else len(change.added.x),
        removed=0 if change.removed is None else len(change.removed.x),
        held_out=change.held_out,
        examples=len(given.x),
        models=0 if models is None else int(models.manifest.instances),
        retrained=0 if models is None else models.trained,
        trained_before=0 if models is None else models.again,
        constants_changed=after.defence.to_dict() != earlier.order.defence.to_dict(),
        before=_certified(earlier.votes),
        after=_certified(votes),
        sources=per_unit(change),
        names=given.class_names,
        ids=after.test.ids,
        notes=tuple(dict.fromkeys((*notes, *_notes(earlier, change, after)))),
    )


def _certified(votes: Votes) -> Certificate:
    found = certify(votes)
    assert isinstance(found, Certificate)
    return found


def _notes(earlier: _Earlier, change: Change, after: Order) -> list[str]:
    found: list[str] = []
    if change.held_out:
        found.append(
            f"{counted(change.held_out, 'example')} of the files {'is' if change.held_out == 1 else 'are'} held out, "
            "by a hash as when the run was trained; nothing trains on such examples, and the inputs that are voted on "
            "stay what they are."
        )
    if after.defence.to_dict() != earlier.order.defence.to_dict():
        found.append(
            f"With {after.count:,} training {'examples' if after.unit is None else after.unit.many} another size step "
            "begins, and the constants that follow it are others; what depends on them was computed anew. Declare "
            f"{'num_train' if after.unit is None else 'num_units'} to fix them."
        )
    return found


# --- files ------------------------------------------------------------------------------------------------------------


def _write_beside(stage: Path, shown: Path, earlier: _Earlier, after: Order, done: Update) -> None:
    """What the next update, `mithridate audit` and `mithridate train` find the data by, and what was done so far."""
    (stage / _DATA).mkdir()
    save_examples(stage / _DATA / TRAINING, after.given)
    save_examples(stage / _DATA / INPUTS, after.test)
    project = dataclasses.replace(earlier.project, updated=shown / _DATA)
    with write_atomically(stage / RUN_PROJECT) as file:
        file.write(run_toml(project, shown / RUN_PROJECT).encode())
    history = {"schema": _SCHEMA, "updates": [*_history(earlier.place), done.recorded()]}
    with write_atomically(stage / HISTORY) as file:
        file.write((json.dumps(history, indent=1) + "\n").encode())


def _history(place: Path) -> list[Any]:
    """The updates before, as far as they can be read: nothing rests on them."""
    with contextlib.suppress(ArtifactError, ValueError, KeyError, TypeError):
        found = parse_json(read_file(place / HISTORY))["updates"]
        return list(found) if isinstance(found, list) else []
    return []


def _carry_over(place: Path, stage: Path) -> None:
    """What else lies in the directory of the run stays there; what speaks of the earlier votes under another name."""
    own = {*_OF_A_RUN, *_mapped(place)}
    for folder, _, names in os.walk(place):
        for name in names:
            source = Path(folder) / name
            relative = source.relative_to(place)
            if str(relative) in own or _OF_GROUPS.fullmatch(relative.as_posix()):
                continue
            if str(relative) in _OF_EARLIER_VOTES:
                relative = relative.with_stem(f"{relative.stem}.before-update")
            target = stage / relative
            if not os.path.lexists(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)


def _mapped(place: Path) -> list[str]:
    """The files of a run that hold arrays that are larger than memory."""
    said = parse_json(read_file(place / "run.json"))
    names = said.get("mapped", {})
    return ["examples.npy", *(f"{name}.npy" for name in names)]


def _sync(folder: Path) -> None:
    """Put all files of a folder on the disk, before their names take the place of others."""
    for each in folder.rglob("*"):
        if each.is_file() and not each.is_symlink():
            descriptor = os.open(each, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _remove(folder: Path) -> None:
    if os.path.lexists(folder):
        shutil.rmtree(folder)
