"""Classifiers with scikit-learn's interface as the learners of models that each see a part of the data.

*What an attacker can do to one model.* The examples of a part are the attacker's as soon as one of them is. So nothing
that a part holds may stop the run or reach another part: a part that cannot be learnt votes by a fixed rule, and every
model is trained by a fresh copy of the learner, on one thread, from a seed that is its number.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.metadata
import json
import logging
import math
import os
import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from mithridate._io.artifacts import read_npz, write_npz
from mithridate._io.files import write_atomically
from mithridate._io.scratch import in_memory_bytes, read_mapped, scratch, write_mapped
from mithridate._text import did_you_mean
from mithridate.data.columns import compact
from mithridate.data.declarations import Table, declaration_from_dict
from mithridate.errors import ArtifactError, ConfigError
from mithridate.training.randomness import Seeds
from mithridate.training.run_directory import Manifest, Run, RunDirectory, TallyArrays, check_tally

if TYPE_CHECKING:
    from mithridate.training.batch_source import TrainingRecipe
    from mithridate.training.task import Job

Scores = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
# What one model sees: the rows of its examples, and their labels.
OwnExamples = tuple[Any, IntArray]
# Its scores on the inputs, and what the learner raised, where it did.
Answers = tuple[Scores, str | None]

_log = logging.getLogger(__name__)
# Groups are what a run resumes by.
_GROUP = 64
# What models saw, where their run is kept; inputs that are large have a file of their own, which is mapped.
_EXAMPLES, _INPUTS = "examples.npz", "examples.npy"
# Beyond so many seconds of work, other processes are worth their start.
_SECONDS_ALONE = 5.0
# So many models are trained a second time, in another process, before the first group.
_TRIED = 3
_ROWS_TRIED = 40
# Inputs that are changed for a learner at a time.
_ROWS_CHANGED = 2**14
# Learners that were tried in this process, with the number of columns and of labels.
_tried_here: set[str] = set()


@dataclass(frozen=True)
class _Family:
    """A classifier that can be named.

    Attributes:
        place: module and class.
        constants: those that differ from its own defaults; chosen for parts of 20 to a few hundred examples.
        splits: whether it is made of trees, to which every column of a table is one number.
        wants_counts: whether its inputs must not be negative.
        package: what to install for it.
    """

    place: str
    constants: Mapping[str, Any]
    splits: bool = False
    wants_counts: bool = False
    package: str = "scikit-learn"


_FAMILIES = {
    "hist-gradient-boosting": _Family(
        "sklearn.ensemble:HistGradientBoostingClassifier",
        {"max_iter": 50, "min_samples_leaf": 5, "max_leaf_nodes": 15, "early_stopping": False},
        splits=True,
    ),
    "random-forest": _Family("sklearn.ensemble:RandomForestClassifier", {"n_estimators": 50}, splits=True),
    "extra-trees": _Family("sklearn.ensemble:ExtraTreesClassifier", {"n_estimators": 50}, splits=True),
    "logistic": _Family("sklearn.linear_model:LogisticRegression", {"C": 10.0, "max_iter": 200}),
    "complement-naive-bayes": _Family("sklearn.naive_bayes:ComplementNB", {}, wants_counts=True),
    "xgboost": _Family("xgboost:XGBClassifier", {"n_estimators": 50, "max_depth": 4}, True, package="xgboost"),
    "lightgbm": _Family(
        "lightgbm:LGBMClassifier",
        {"n_estimators": 50, "min_child_samples": 5, "verbose": -1, "deterministic": True, "force_row_wise": True},
        splits=True,
        package="lightgbm",
    ),
}
LEARNERS = tuple(_FAMILIES)
# What would let a learner use more than one thread, or say more than it should.
_ONE_THREAD = ("n_jobs", "nthread", "num_threads", "thread_count")


@dataclass(frozen=True)
class Learner:
    """How the model of a part learns.

    Guarantee: `scores` is a function of the examples of the part (in the order given), the number of the model and the
    input alone, if the classifier is one of its data and its `random_state`; `check` tries whether it is.

    Args:
        name: one of `LEARNERS`, or the name of the class of an estimator of the user's own.
        constants: its arguments, beyond the defaults here.
        estimator: the user's own, never fitted itself; None for one that is named.
    """

    name: str
    constants: Mapping[str, Any] = field(default_factory=dict[str, Any])
    estimator: Any = None

    @property
    def splits(self) -> bool:
        """Whether it is made of trees, to which every column of a table is best one number."""
        if self.estimator is None:
            return _FAMILIES[self.name].splits
        return any(word in type(self.estimator).__module__ for word in ("tree", "ensemble", "xgboost", "lightgbm"))

    @property
    def wants_counts(self) -> bool:
        """Whether its inputs must not be negative."""
        return self.estimator is None and _FAMILIES[self.name].wants_counts

    def to_dict(self) -> dict[str, Any]:
        """Name and constants as plain JSON values; those of a user's own are as its `get_params` shows them."""
        if self.estimator is None:
            return {"name": self.name, **self.constants}
        shown = {name: _plain(value) for name, value in sorted(self.estimator.get_params().items())}
        return {"name": self.name, "own": True, **shown}

    def fresh(self, seed: int) -> Any:
        """An unfitted classifier for one model, on one thread."""
        from sklearn.base import clone

        made = self._built() if self.estimator is None else cast("Any", clone(self.estimator))
        known = made.get_params(deep=True)
        seeds = {name: seed for name in known if name.split("__")[-1] == "random_state"}
        threads = {name: 1 for name in known if name.split("__")[-1] in _ONE_THREAD}
        return made.set_params(**seeds, **threads)

    def _built(self) -> Any:
        family = _FAMILIES[self.name]
        module, _, kind = family.place.partition(":")
        try:
            found = getattr(importlib.import_module(module), kind)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"The learner {self.name} needs {family.package}; install it with: pip install {family.package}"
            ) from error
        return found(**{**family.constants, **self.constants})

    def scores(self, x: Any, y: IntArray, classes: int, model: int, inputs: Any) -> tuple[Scores, str | None]:
        """How the model of some examples scores every label on some inputs; the largest is its vote.

        Args:
            x: the examples of the part, in an order that is a function of what they hold.
            y: their labels.
            classes: number of labels.
            model: its number.
            inputs: to score.

        Returns:
            inputs x classes, finite. Without examples label 0 scores 1, with examples of one label that one, and
            where the classifier raises, or gives no number for an input, again label 0; all others 0. And what it
            raised, where it did.
        """
        found = np.unique(y)
        if len(found) < 2:
            return fixed_scores(inputs.shape[0], classes, int(found[0]) if len(found) else 0), None
        try:
            scores = self._learnt(x, y, found, classes, model, inputs)
        except MemoryError:  # says something about the machine, not about the part
            raise
        except Exception as error:
            return fixed_scores(inputs.shape[0], classes, 0), f"{type(error).__name__}: {error!s:.200}"
        lost = ~np.isfinite(scores).all(axis=1)
        scores[lost] = fixed_scores(1, classes, 0)
        return scores, None

    def _learnt(self, x: Any, y: IntArray, found: IntArray, classes: int, model: int, inputs: Any) -> Scores:
        from threadpoolctl import threadpool_limits

        seed = seed_of(model)
        with _seeded(seed), threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Some libraries want labels from 0 without gaps.
            fitted = self.fresh(seed).fit(x, np.searchsorted(found, y))
            scores = np.zeros((inputs.shape[0], classes), dtype=np.float32)
            scores[:, found] = _scored(fitted, inputs, len(found))
        return scores


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The global generators, from which some learners draw, start from the model's own seed; then all is as before."""
    before, plain = np.random.get_state(), random.getstate()  # noqa: NPY002
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002
        random.setstate(plain)


def seed_of(model: int) -> int:
    """The seed of a model, by its number alone."""
    digest = hashlib.blake2b(f"learner {model}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % (1 << 31)


def fixed_scores(inputs: int, classes: int, label: int) -> Scores:
    """One label scores 1, all others 0."""
    scores = np.zeros((inputs, classes), dtype=np.float32)
    scores[:, label] = 1
    return scores


def _scored(fitted: Any, inputs: Any, labels: int) -> npt.NDArray[Any]:
    """Scores of the labels that a classifier saw: its probabilities where it has any, else 1 for its prediction."""
    if hasattr(fitted, "predict_proba"):
        scores = np.asarray(fitted.predict_proba(inputs))
        if scores.shape != (inputs.shape[0], labels):
            raise ValueError(f"expected probabilities of {labels} labels, got shape {scores.shape}")
        return scores
    predicted = np.asarray(fitted.predict(inputs)).astype(np.int64)
    return np.eye(labels, dtype=np.float32)[predicted]


def _plain(value: Any) -> Any:
    """A constant of a user's estimator, as JSON or as Python shows it."""
    try:
        json.dumps(value, allow_nan=False)
        return value
    except (TypeError, ValueError):
        return repr(value) if not hasattr(value, "get_params") else type(value).__name__


def inputs_for(learner: Learner, rows: npt.NDArray[Any], declaration: Any) -> npt.NDArray[Any]:
    """Prepared inputs as a learner takes them: rows, and to trees every declared column of a table as one number.

    To a learner that counts, a number below 0 is one above 0 in another column: hashed words have signs, and a word
    with the other sign is another word.

    Args:
        learner: who takes them.
        rows: one entry per input.
        declaration: of the data, where there is one.
    """
    flat = rows.reshape(rows.shape[0], -1)
    if learner.wants_counts:
        return _in_pieces(_counts, flat)
    if learner.splits and isinstance(declaration, Table):
        return _in_pieces(partial(compact, columns=declaration.columns), flat)
    return flat


def _counts(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.hstack([np.maximum(rows, 0), np.maximum(-rows, 0)])


def _in_pieces(change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]], rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """What becomes of inputs that are changed one by one; neither they nor the result need fit into memory."""
    some = change(rows[:_ROWS_CHANGED])
    if len(some) == len(rows):
        return some
    changed = scratch((len(rows), *some.shape[1:]), some.dtype)
    for start in range(0, len(rows), _ROWS_CHANGED):
        part = slice(start, start + _ROWS_CHANGED)
        changed[part] = change(rows[part])
    return changed


def pick_learner(learner: Any) -> Learner:
    """The learner of a name, of a table with its name and constants, or of a classifier.

    Raises:
        ConfigError: it is none of these, or its constants are not known.

    >>> pick_learner({"name": "random-forest", "n_estimators": 20}).to_dict()
    {'name': 'random-forest', 'n_estimators': 20}
    """
    if isinstance(learner, Learner):
        return learner
    if isinstance(learner, str):
        learner = {"name": learner}
    if isinstance(learner, Mapping):
        return _named(dict(cast("Mapping[str, Any]", learner)))
    if isinstance(learner, type) or not all(hasattr(learner, name) for name in ("fit", "predict", "get_params")):
        raise ConfigError(
            f"Expected learner as one of {', '.join(LEARNERS)}, a table with such a name and constants, or an unfitted "
            f"classifier with scikit-learn's interface, got {learner!r:.200}."
        )
    chosen = Learner(type(learner).__name__, estimator=learner)
    chosen.fresh(0)  # or it says what is wrong
    return chosen


def _named(values: dict[str, Any]) -> Learner:
    name = values.pop("name", None)
    if not isinstance(name, str) or name not in _FAMILIES:
        raise ConfigError(f"There is no learner {name!r}; {did_you_mean(str(name), LEARNERS)}")
    for constant, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"Expected {constant} of {name} to be finite, got {value!r}.")
    chosen = Learner(name, values)
    try:
        chosen.fresh(0)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"The learner {name} does not take these constants: {error}.") from error
    return chosen


# --- all models of a run ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LearnerTrainer:
    """Trains every model of a job by a learner, in place of `NetworkTrainer`; what they saw is kept instead of weights.

    Attributes:
        learner: how a model learns.
    """

    learner: Learner
    keeps_weights: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """What the recipe calls a model."""
        return self.learner.name

    @property
    def recorded(self) -> dict[str, Any]:
        """What else the recipe says of who trains."""
        return {"learner": self.learner.to_dict()}

    def machine(self, job: Job, device: Any, precision: str, in_flight: int | None) -> LearnerMachine:
        """What trains a job, where this is called, whatever the device is."""

        def seen(seeds: Seeds | None, model: int) -> OwnExamples:
            members, labels = _members_of(job, seeds, model)
            return _taken(job.data.inputs, members), labels

        assert job.config.classes is not None
        return LearnerMachine(
            self.learner,
            seen,
            models=int(job.config.instances),
            classes=job.config.classes,
            columns=job.data.inputs.shape[1],
            test=job.test,
            evidence=job.evidence,
            bins=job.config.score_bins,
            steps=job.config.steps,
            in_flight=in_flight,
        )

    def keep(self, run: Run, job: Job) -> None:
        """Keep what the models saw: they are trained again when they are asked."""
        if type(run) is not RunDirectory:
            raise ConfigError("A learner keeps its examples with the whole run; leave --shards or --keep-models out.")
        if (run.path / _EXAMPLES).exists():
            return
        seen = [_members_of(job, run.seeds, model) for model in range(int(job.config.instances))]
        members, labels = (np.concatenate([one[at] for one in seen]) for at in (0, 1))
        arrays = {
            **_kept_inputs(run.path, job.data.inputs),
            "members": members.astype(np.int64),
            "labels": labels.astype(np.int32),
            "ends": np.cumsum([len(one[0]) for one in seen]),
        }
        with write_atomically(run.path / _EXAMPLES, durable=True) as file:
            write_npz(file, arrays)


def _kept_inputs(path: Path, inputs: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """Inputs to be kept with other arrays, or the hash of their own file."""
    if inputs.nbytes <= in_memory_bytes():
        return {"inputs": inputs}
    return {"digest": np.frombuffer(bytes.fromhex(write_mapped(path / _INPUTS, inputs)), np.uint8)}


def _taken(inputs: npt.NDArray[Any], members: IntArray) -> npt.NDArray[Any]:
    """Some of the inputs, which may be a mapped file: read from its start to its end, and nothing else of it."""
    order = np.argsort(members, kind="stable")
    taken = np.empty((len(members), *inputs.shape[1:]), inputs.dtype)
    taken[order] = inputs[members[order]]
    return taken


def _members_of(job: Job, seeds: Seeds | None, model: int) -> tuple[IntArray, IntArray]:
    """Which examples a model sees, and the labels that stand there for it."""
    labels, plan = job.data.labels, job.config.plan
    if job.members is not None:
        return job.members[model], labels[job.members[model]]
    assert plan is not None
    assert seeds is not None
    assert job.config.classes is not None
    starts = job.data.starts
    longest = plan.longest(len(labels), len(labels), starts)
    return plan.drawn(labels, job.config.classes, longest, partial(seeds.generator, model), starts)


def learnt_again(
    path: Path,
    manifest: Manifest,
    config: TrainingRecipe,
    inputs: npt.NDArray[Any],
    learner: Any,
    evidence: tuple[str, ...],
) -> TallyArrays:
    """The votes of models that are trained again on the examples that they saw."""
    if not (path / _EXAMPLES).exists():
        raise ArtifactError(f"The run in {path} did not keep its examples; train with keep_models (--keep-models).")
    stored = manifest.recipe["learner"]
    if stored.get("own") and learner is None:
        raise ConfigError(f"This run used a learner of its own, {stored['name']}; give it again as model=.")
    chosen = pick_learner(learner if stored.get("own") else stored)
    if chosen.to_dict() != stored:
        raise ConfigError(f"Expected the learner of the run, {stored}, got {chosen.to_dict()}.")
    arrays = read_npz(path / _EXAMPLES, "what the models of a learner saw")
    rows = arrays["inputs"] if "inputs" in arrays else read_mapped(path / _INPUTS, arrays["digest"].tobytes().hex())
    ends, members, labels = arrays["ends"].tolist(), arrays["members"], arrays["labels"].astype(np.int64)
    if len(ends) != manifest.instances or ends[-1] != len(members) or len(labels) != len(members):
        raise ArtifactError(f"{path / _EXAMPLES} is not of this run; train it again.")

    def seen(_: Any, model: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        part = slice(ends[model - 1] if model else 0, ends[model])
        return _taken(rows, members[part]), labels[part]

    assert config.classes is not None
    declared = manifest.recipe.get("source", {}).get("declaration")
    inputs = inputs_for(chosen, inputs, None if declared is None else declaration_from_dict(declared))
    machine = LearnerMachine(
        chosen,
        seen,
        models=manifest.instances,
        classes=config.classes,
        columns=rows.shape[1],
        test=inputs,
        evidence=evidence,
        bins=config.score_bins,
    )
    tally = machine.tally(machine.train(None, range(manifest.instances), None), inputs)
    check_tally(range(manifest.instances), tally)
    return tally


class LearnerMachine:
    """Trains the models of a run by a learner, in place of the engine for networks; see `training.engine.Engine`.

    Guarantee: what a model answers depends on what it sees, on its number and on the input alone, as far as `rehearse`
    can tell: neither on other models nor on the process that trains it.

    Args:
        learner: how a model learns.
        seen: gives the examples of a model, by its number and the seeds of its group.
        models: how many models there are.
        classes: number of labels.
        columns: how many numbers an example has.
        test: inputs to vote on.
        evidence: what is counted beside votes.
        bins: of the histograms of scores, 0 for none.
        steps: how many steps a model counts for in reports of progress.
        in_flight: models in a group; None to choose.

    Raises:
        ConfigError: the learner cannot learn from such inputs.
    """

    path = "learner"
    precision = "float64"
    shapes: Mapping[str, Any] = {}

    def __init__(
        self,
        learner: Learner,
        seen: Callable[[Any, int], OwnExamples],
        *,
        models: int,
        classes: int,
        columns: int,
        test: Any,
        evidence: tuple[str, ...] = (),
        bins: int = 0,
        steps: int = 1,
        in_flight: int | None = None,
    ) -> None:
        self._learner, self._seen, self._classes, self._test = learner, seen, classes, test
        self._evidence, self._bins, self._steps = evidence, bins, steps
        self._models, self._in_flight, self._columns = models, in_flight, columns
        self._check()

    @property
    def arithmetic(self) -> str:
        """What computes."""
        return f"{self._learner.name}, scikit-learn {importlib.metadata.version('scikit-learn')}"

    def models_in_flight(self) -> int:
        """How many models make a group."""
        return self._in_flight or _GROUP

    def _check(self) -> None:
        """Learn from made-up examples: what fails on these fails on all parts, and would go unseen there."""
        drawn = np.random.default_rng(0)
        x = drawn.random((_ROWS_TRIED, self._columns), dtype=np.float32)
        y = np.arange(_ROWS_TRIED, dtype=np.int64) % 2
        rows: Any = x
        if not isinstance(self._test, np.ndarray):
            from scipy.sparse import csr_matrix

            rows = csr_matrix(x)
        try:
            found = self._learner._learnt(rows, y, np.unique(y), self._classes, 0, rows)
        except Exception as error:
            raise ConfigError(f"The learner {self._learner.name} cannot learn from such inputs: {error}.") from error
        if not np.isfinite(found).all():
            raise ConfigError(f"The learner {self._learner.name} gives scores that are no numbers; use another one.")

    def rehearse(self) -> None:
        """Train a few models twice, the second time in another process and in another order.

        A learner that is named is tried once in a process for as many columns and labels: a search trains it a hundred
        times. A user's own is tried every time, for nothing tells two of them apart.

        Raises:
            ConfigError: their answers differ, so that they are no functions of what they see.
        """
        from joblib import delayed

        about = repr((self._learner.to_dict(), self._columns, self._classes))
        if self._learner.estimator is None and about in _tried_here:
            return
        tried = [(model, *self._seen(None, model)) for model in range(min(_TRIED, self._models))]
        here = [_answers(self._learner, self._classes, self._test, *one) for one in tried]
        with _processes(2, batch_size=1) as others:
            asked = (delayed(_answers)(self._learner, self._classes, self._test, *one) for one in reversed(tried))
            there = list(others(asked))[::-1]
        if not all(np.array_equal(first, second) for (first, _), (second, _) in zip(here, there, strict=True)):
            raise ConfigError(
                f"The learner {self._learner.name} gives other answers when it is trained again on the same examples; "
                "fix its randomness (random_state), or use another one."
            )
        _tried_here.add(about)

    def train(self, seeds: Any, group: Sequence[int], advance: Callable[[int], None] | None) -> list[Scores]:
        """The scores of each model of a group on the inputs; the models themselves are not kept."""
        found: list[Answers] = []
        started = time.perf_counter()
        for model in group:
            if (time.perf_counter() - started) * (len(group) - len(found)) > _SECONDS_ALONE * max(1, len(found)):
                break
            found.append(_answers(self._learner, self._classes, self._test, model, *self._seen(seeds, model)))
            if advance is not None:
                advance(self._steps)
        found += self._in_parallel(seeds, list(group)[len(found) :], advance)
        self._warn([error for _, error in found if error is not None], len(group))
        return [scores for scores, _ in found]

    def _warn(self, errors: Sequence[str], models: int) -> None:
        """Say what could not be learnt: a few parts may be an attacker's, many are a mistake of the user's."""
        if errors:
            _log.warning(
                "%s could not learn from %d of %d parts, which vote for label 0: %s",
                self._learner.name, len(errors), models, errors[0],
            )  # fmt: skip

    def _in_parallel(self, seeds: Any, models: list[int], advance: Callable[[int], None] | None) -> Iterator[Answers]:
        """The rest of a group, on all cores."""
        if not models:
            return
        from joblib import delayed

        workers = min(len(models), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2)
        with _processes(workers, return_as="generator") as others:
            asked = (
                delayed(_answers)(self._learner, self._classes, self._test, model, *self._seen(seeds, model))
                for model in models
            )
            for answers in others(asked):
                if advance is not None:
                    advance(self._steps)
                yield answers

    def tally(self, weights: Sequence[Scores], inputs: Any) -> TallyArrays:
        """How the models of a group vote on the inputs that they were asked about."""
        shape = (inputs.shape[0], self._classes)
        tally: TallyArrays = {"counts": np.zeros(shape, dtype=np.int64)}
        tally |= {name: np.zeros(shape) for name in ("score_sums", "score_squares")}
        if self._bins:
            tally["score_histograms"] = np.zeros((*shape, self._bins), dtype=np.int64)
        if "preferences" in self._evidence:
            tally["preferences"] = np.zeros((*shape, self._classes), dtype=np.int64)
        rows = np.arange(shape[0])
        for scores in weights:
            tally["counts"][rows, scores.argmax(axis=1)] += 1  # the first of equals
            shares = _shares(scores)
            tally["score_sums"] += shares
            tally["score_squares"] += shares**2
            if self._bins:
                bins = np.minimum((shares * self._bins).astype(np.int64), self._bins - 1)
                tally["score_histograms"][rows[:, None], np.arange(self._classes), bins] += 1
            if "preferences" in self._evidence:
                tally["preferences"] += _preferences(scores)
        if "predictions" in self._evidence:
            said = [scores.argmax(axis=1) for scores in weights]
            tally["predictions"] = np.stack(said, axis=1).astype(np.uint16)
        if "rankings" in self._evidence:
            ranked = [np.argsort(-scores, axis=1, kind="stable") for scores in weights]  # of equals the smaller first
            tally["rankings"] = np.stack(ranked, axis=1).astype(np.uint16)
        return tally


@contextlib.contextmanager
def _processes(count: int, **options: Any) -> Iterator[Any]:
    """Other processes that train models; they end with the block, and hold up nobody who ends."""
    from joblib import Parallel
    from joblib.externals.loky import get_reusable_executor

    try:
        with Parallel(n_jobs=count, backend="loky", **options) as others:
            yield others
    finally:
        get_reusable_executor().shutdown(wait=True, kill_workers=True)


def _answers(learner: Learner, classes: int, inputs: Any, model: int, x: Any, y: IntArray) -> Answers:
    """What `Learner.scores` says: a function of its own, so that a process gets no more than it needs."""
    return learner.scores(x, y, classes, model, inputs)


def _shares(scores: Scores) -> npt.NDArray[np.float64]:
    """Scores in [0, 1] that add up to at most one, as certificates of mean scores assume."""
    shares = np.clip(scores.astype(np.float64), 0, 1)
    return shares / np.maximum(shares.sum(axis=1, keepdims=True), 1)


def _preferences(scores: Scores) -> npt.NDArray[np.bool_]:
    """Whether the label of the second axis scores above that of the third; of equals, the smaller is above."""
    labels = np.arange(scores.shape[1])
    own, other = scores[:, :, None], scores[:, None, :]
    return (own > other) | ((own == other) & (labels[:, None] < labels))
