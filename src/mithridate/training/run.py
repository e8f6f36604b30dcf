"""From a training set to votes: all instances, group by group, into a run directory."""

from __future__ import annotations

import contextlib
import copy
import gc
import hashlib
import importlib.metadata
import inspect
import json
import logging
import platform
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from mithridate import _validate
from mithridate._io.files import PathLike
from mithridate._version import VERSION
from mithridate.core.conditions import Size, Statement, of_user, to_plain
from mithridate.core.mechanism import Deterministic
from mithridate.core.votes import Votes
from mithridate.data.examples import (
    Array,
    Dataset,
    Preparation,
    check_inputs,
    check_labels,
    fingerprint,
    fitted_preprocessing,
    kind_of,
    pair_of,
    split_inputs,
)
from mithridate.data.partition import IndexArray, content_hashes
from mithridate.errors import ConfigError
from mithridate.features import Encoder, Frozen, about_encoder, pick_encoder
from mithridate.training import models, suitability
from mithridate.training.arithmetic import usual_settings
from mithridate.training.backends import Backend, Ray, check_backend
from mithridate.training.batch_source import TrainingRecipe
from mithridate.training.config import PRECISIONS, TrainConfig
from mithridate.training.devices import computer_of, enough_memory, is_out_of_memory, shown
from mithridate.training.engine import Engine, Tally
from mithridate.training.initialisation import check_repeatable
from mithridate.training.plain_config import PlainConfig, PlainRecipe, ViewPlan, recipe_from_dict
from mithridate.training.randomness import PUBLIC_SEED
from mithridate.training.run_directory import (
    EVIDENCE,
    TALLY,
    Manifest,
    MemoryRun,
    RunDirectory,
    TallyArrays,
    check_root_seed,
    is_handed_out,
    plan_ranges,
)
from mithridate.training.shared_run import SharedRun, check_shards

Progress = Callable[[int, int], None]
Model = nn.Module | Callable[[], nn.Module]
AnyRun = RunDirectory | MemoryRun
Fill = Callable[[AnyRun, "Task", Progress | None], None]

_log = logging.getLogger(__name__)

_IMAGE_MODELS = ("lenet5", "opa-tut", "resnet18")
_MOST_PREFERENCES = 2**31
_ONE_COMPUTER = (
    "Each model is a function of its part of the data on the computer, with the libraries and with as many models at a "
    "time as trained it; the certificate assumes that the other data would have been trained on with the same."
)
_ONE_KIND = "Inputs stay {kind} of shape {shape}, whatever examples are inserted; the certificate assumes that."
_KINDS = {"uint8": "8-bit numbers", "float": "numbers", "integer": "numbers", "text": "texts"}
_SEED_GIVEN = Statement(
    "The root seed was given by the caller and not drawn by the operating system; "
    "the certificate assumes that the attacker does not know it.",
    "seed-known",
)


class Machine(Protocol):
    """What a run must know of whatever trains its instances."""

    path: str
    precision: str

    @property
    def arithmetic(self) -> str:
        """What computes."""
        ...

    def models_in_flight(self) -> int:
        """How many models to train at a time."""
        ...


@usual_settings()
def train(
    training_set: tuple[npt.ArrayLike, npt.ArrayLike],
    test_set: npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike],
    *,
    model: str | Model,
    config: TrainConfig,
    run_dir: PathLike | None = None,
    device: str | torch.device = "auto",
    features: str | Encoder | None = None,
    in_flight: int | None = None,
    precision: str = "auto",
    keep_models: bool = False,
    root_seed: bytes | None = None,
    progress: Progress | None = None,
    source: Mapping[str, Any] | None = None,
    assumptions: Sequence[str] = (),
    backend: Backend | None = None,
    shards: int | range | slice | None = None,
    size: Size | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Votes:
    """Train many private models at once, and count how they vote on the test inputs.

    Guarantee: every instance is one independent draw of `votes.mechanism` on the training set, all of them vote, and
    their votes depend on the root seed, the data and the recipe only: not on the number in flight, on interruptions or
    on their order, up to the rounding of the device. With a `run_dir`, the same call after any interruption goes on
    where the last one ended, and its votes are those of an uninterrupted run bit for bit.

    Assumes: what `votes.assumptions` lists, which every certificate repeats. Everything in `config`, the model and the
    features were fixed before anyone looked at the training set.

    Args:
        training_set: inputs and labels. Images in 8 bits are scaled by constants of the recipe, `n x height x width` or
            `n x channels x height x width`; other numbers are taken as they are; text needs `features`.
        test_set: inputs to vote on, or a pair with their true labels.
        model: `linear`, `mlp`, `lenet5`, `opa-tut`, `resnet18`, any `torch.nn.Module` that does not mix examples, or a
            function that builds one.
        config: the recipe.
        run_dir: where the run is kept; None keeps it in memory.
        device: `cpu`, `cuda`, `mps` or `auto`: an NVIDIA GPU if there is one, else the CPU.
        features: name of a fixed encoder, or one of `mithridate.features`, whose output is trained on instead.
        in_flight: how many models are trained at a time; by default as many as fit into memory.
        precision: of matrix products: `float32`, `tf32` (faster on NVIDIA GPUs; clipping allows for its rounding), or
            `auto`, the faster one.
        keep_models: keep the weights in the run directory, for `predict`.
        root_seed: 32 bytes that all randomness comes from; by default the operating system's, as it should be.
        progress: called with the number of model-steps that are done and their total, from any thread.
        source: how inputs and labels were read, in plain JSON values, as `data.Examples.source` has it; recorded at
            `votes.recipe["source"]`, so that later inputs are read alike and classes have names.
        assumptions: what was taken for granted when the data was read, a sentence each; every certificate repeats them.
        backend: who trains: this process (None), or the workers of a cluster, `mithridate.Ray(...)`. `device` is then
            theirs, `auto` a GPU where the cluster has one. Any back end goes on with a run of any other.
        shards: train these shards (groups of at most `in_flight` instances, numbered from 0) of the run in `run_dir`
            and no others, while other processes may train others there; see `docs/scaling.md`.
        size: `Size.of(len(labels))` where something in `config`, the model or the features was chosen by the size step
            of the training set; radii then end with that step. A divisor that is left open always follows it.
        extra: what else the recipe says, in plain JSON values by name, such as the defence that this run is of.

    Returns:
        The votes, with the mechanism that was run; also in `run_dir/votes.npz`. With `shards`, the votes of these
        alone, also in `run_dir/parts`; whoever finishes the last one writes those of the whole run.

    Raises:
        ConfigError: an argument or the data is not what it should be, the model mixes examples, or the run directory
            belongs to something else.
        ClusterError: workers of a cluster failed again and again; finished groups stay.
        ArtifactError: the run directory cannot be written to, or another process works in it; finished groups stay.
    """
    if not isinstance(config, TrainConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"Expected config to be a TrainConfig, got {config!r}.")
    return _train(
        training_set, test_set, run_dir=run_dir, root_seed=root_seed, progress=progress, shards=shards, model=model,
        config=config, device=device, features=features, in_flight=in_flight, precision=precision,
        keep_models=keep_models, source=source, assumptions=assumptions, backend=backend, size=size, extra=extra,
    )  # fmt: skip


@usual_settings()
def train_plain(
    training_set: tuple[npt.ArrayLike, npt.ArrayLike],
    test_set: npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike],
    *,
    model: str | Model,
    plan: ViewPlan,
    config: PlainConfig,
    run_dir: PathLike | None = None,
    root_seed: bytes | None = None,
    progress: Progress | None = None,
    shards: int | range | slice | None = None,
    preferences: bool = False,
    **options: Any,
) -> Votes:
    """Train many models at once without privacy, and count how they vote on the test inputs.

    Guarantee: every instance is what `votes.mechanism` says, and all of them vote. For `Parts` and `SpreadParts` the
    vote of a model is, to the bit, a function of the examples that its part holds (as a multiset: neither their order
    nor any other example matters), of the recipe and of the number of the model; all its constants are public. For
    the other plans instances are independent draws from the root seed. With a `run_dir`, the same call after any
    interruption resumes where the last one ended, and its votes are those of an uninterrupted run bit for bit.

    Assumes: what `votes.assumptions` lists, which every certificate repeats. Everything in `config`, the plan, the
    model and the features were fixed before anyone looked at the training set.

    Args:
        training_set: inputs and labels; see `train`.
        test_set: inputs to vote on, or a pair with their true labels.
        model: see `train`.
        plan: what each instance sees: `Bootstrap`, `Parts`, `SpreadParts`, `FlippedLabels` or `NoisedFeatures`.
        config: how each instance learns.
        run_dir: where the run is kept; None keeps it in memory.
        root_seed: see `train`. Parts take none.
        progress: see `train`.
        shards: see `train`.
        preferences: for `Parts`, count for any two labels how many models score one above the other
            (`votes.evidence["preferences"]`), as run-off elections need it.
        options: what else `train` takes. Models of parts are not for `mps`, give a `Frozen` encoder one row at a time,
            and need nodes of one kind.

    Returns:
        The votes, with the mechanism that was run; see `train`. Those of `SpreadParts` carry the vote of every model in
        `votes.evidence["predictions"]`.

    Raises:
        ConfigError: see `train`; or models cannot be functions of their parts on this device.
        ClusterError: see `train`.
        ArtifactError: see `train`.
    """
    recipe = PlainRecipe.of(config, plan)
    return _train(
        training_set, test_set, run_dir=run_dir, root_seed=root_seed, progress=progress, shards=shards, model=model,
        config=recipe, preferences=preferences, **options,
    )  # fmt: skip


def _train(
    training_set: Any,
    test_set: Any,
    *,
    run_dir: PathLike | None,
    root_seed: bytes | None,
    progress: Progress | None,
    shards: int | range | slice | None,
    **options: Any,
) -> Votes:
    """The road of every trained defence; see `_ordered` for the options."""
    chosen = None if shards is None else check_shards(shards)
    if shards is not None and run_dir is None:
        raise ConfigError("shards are those of a run that is kept; give its run_dir.")
    with _ordered(training_set, test_set, run_dir=run_dir, **options) as order:
        return _votes_in(order, root_seed, progress, chosen)


@usual_settings()
def prepare(
    training_set: tuple[npt.ArrayLike, npt.ArrayLike],
    test_set: npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike],
    *,
    run_dir: PathLike,
    root_seed: bytes | None = None,
    **options: Any,
) -> Manifest:
    """Start a run without training anything, or look at the one that is there: which shards it has.

    Of a run that is there, all stays but for what it takes for granted, to which new assumptions are added.

    Args:
        training_set: see `train`.
        test_set: see `train`.
        run_dir: where the run is kept.
        root_seed: see `train`.
        options: what else `train` or, with a `plan`, `train_plain` takes, but for `progress` and `shards`.

    Raises:
        ConfigError: see `train`.
        ArtifactError: see `train`.
    """
    if is_handed_out(run_dir):
        raise ConfigError(
            f"{run_dir} was handed out with the seeds of some shards, and is prepared; train there without --prepare."
        )
    if "plan" in options:
        options["config"] = PlainRecipe.of(options["config"], options.pop("plan"))
    with _ordered(training_set, test_set, run_dir=run_dir, **options) as order:
        seed, manifest = _with_seed(root_seed, order.manifest, order.task)
        with RunDirectory.open(run_dir, manifest, seed, may_replan=False) as run:
            return run.manifest


@dataclass(frozen=True, eq=False)
class _Order:
    """A task, where it is kept, and who does it."""

    task: Task
    run_dir: PathLike | None
    manifest: Manifest
    fill: Fill


@contextlib.contextmanager
def _ordered(
    training_set: Any,
    test_set: Any,
    *,
    model: str | Model,
    config: TrainingRecipe,
    run_dir: PathLike | None,
    device: str | torch.device = "auto",
    features: str | Encoder | None = None,
    in_flight: int | None = None,
    precision: str = "auto",
    keep_models: bool = False,
    preferences: bool = False,
    source: Mapping[str, Any] | None = None,
    assumptions: Sequence[str] = (),
    backend: Backend | None = None,
    size: Size | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Iterator[_Order]:
    """Decide everything about a run, as long as those who train it are there."""
    if not isinstance(config, TrainingRecipe):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"Expected config to be a TrainConfig, got {config!r}.")
    _validate.sentences(assumptions=assumptions)
    _validate.one_of(PRECISIONS, precision=precision)
    if in_flight is not None:
        _validate.positive_integer(in_flight=in_flight)
    backend = check_backend(backend)
    if keep_models and run_dir is None:
        raise ConfigError("keep_models needs a place for them; give a run_dir.")
    task = task_of(training_set, test_set, model=model, config=config, features=features, preferences=preferences)
    raw, _ = pair_of("training_set", training_set)
    size = Size.of(len(task.data.labels)) if size is None and config.follows_size else size
    task = replace(
        task,
        assumptions=(*of_user(assumptions), *task.assumptions, *fitted_preprocessing(raw, source)),
        source=source,
        keep_models=keep_models,
        size=_checked_size(size, len(task.data.labels)),
        extra=dict(extra or {}),
    )
    stored = _stored_in_flight(run_dir) if config.is_deterministic else None
    job = Job.of(task)
    if isinstance(backend, Ray):
        cluster = import_cluster()
        job = replace(job, is_rehearsed=stored is not None)
        with (
            cluster.hired(backend, job, device, precision, in_flight or stored) as crew,
            cluster.kept(run_dir) as folder,
        ):
            manifest = manifest_of(task, crew, crew.device, in_flight, crew.versions, crew.computer)
            yield _Order(task, folder, manifest, crew.train_missing)
        return
    target = pick_device(device)
    build = partial(job.engine, target, precision)
    if config.is_deterministic and stored is None:
        machine = rehearsed(build, in_flight)
    else:
        machine = build(in_flight or stored)
    yield _Order(task, run_dir, manifest_of(task, machine, target, in_flight), partial(train_missing, machine, target))


def _stored_in_flight(run_dir: PathLike | None) -> int | None:
    """How many models were in flight when a run was started, None if there is none."""
    if run_dir is None or not (path := Path(run_dir) / "run.json").exists():
        return None
    return Manifest.read(path).in_flight


def rehearsed(build: Callable[[int | None], Engine], in_flight: int | None) -> Engine:
    """An engine whose models are functions here, with as many in flight as there is room for.

    Args:
        build: makes an engine for so many in flight, None to choose.
        in_flight: how many are wanted.
    """
    while True:
        machine = build(in_flight)
        try:
            machine.rehearse()
            return machine
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            in_flight = machine.models_in_flight() // 2
        del machine
        _free_memory()
        if in_flight == 0:
            raise ConfigError(
                "Not even one model at a time fits into memory; use a smaller model or batch_size, or device='cpu'."
            )
        _log.warning("Out of memory; trying again with %d models in flight.", in_flight)


def _free_memory() -> None:
    """Memory of what is gone, back where there was too little."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def import_cluster() -> ModuleType:
    """What trains on a Ray cluster.

    Raises:
        ConfigError: Ray is not installed.
    """
    try:
        from mithridate.training import ray_cluster
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ConfigError("A Ray cluster needs ray; install it with: pip install 'mithridate[ray]'") from error
    return ray_cluster


def _votes_in(order: _Order, root_seed: bytes | None, progress: Progress | None, shards: slice | None) -> Votes:
    """Train what is missing of a run, or of some of its shards, and give the votes.

    Args:
        order: what is trained, where it is kept, and who does it.
        root_seed: the seed of a caller, None for one of the operating system.
        progress: told what is done.
        shards: the only ones to train, None for all.
    """
    task = order.task
    root_seed, manifest = _with_seed(root_seed, order.manifest, task)
    with _opened(order.run_dir, manifest, root_seed, shards) as run:
        votes = run.finished_votes()
        if votes is None:
            order.fill(run, task, progress)
            votes = _votes(task, run)
            run.save_votes(votes)
        else:
            votes = _up_to_date(votes, task, run)
        if isinstance(run, SharedRun):
            _finish(task, run)
        steps = _instances(run) * task.config.steps
    if progress is not None:
        progress(steps, steps)
    return votes


def _with_seed(root_seed: bytes | None, manifest: Manifest, task: Task) -> tuple[bytes | None, Manifest]:
    """A seed of the caller's, checked, and what follows from there being one; that of functions is public."""
    if task.config.is_deterministic:
        if root_seed is not None:
            raise ConfigError("Models of parts are functions of their data, and take no root_seed; leave it out.")
        return PUBLIC_SEED, manifest
    if root_seed is None:
        return None, manifest
    return check_root_seed(root_seed), replace(manifest, assumptions=(*manifest.assumptions, _SEED_GIVEN))


def _finish(task: Task, run: SharedRun) -> None:
    """Write the votes of the whole run if this was the last process to finish its shards."""
    whole = run.whole()
    if whole is not None and whole.finished_votes() is None:
        whole.save_votes(_votes(task, whole))


def _up_to_date(votes: Votes, task: Task, run: AnyRun) -> Votes:
    """Finished votes, with what this call adds to them: true labels, and what it takes for granted."""
    labels = votes.labels if task.labels is None else task.labels
    same_labels = labels is votes.labels or np.array_equal(np.asarray(labels), np.asarray(votes.labels))
    said = run.manifest
    same_claims = to_plain(votes.assumptions) == to_plain(said.assumptions) and votes.size == said.size
    if same_labels and same_claims and votes.recipe == said.recipe:
        return votes
    votes = replace(votes, labels=labels, assumptions=said.assumptions, size=said.size, recipe=said.recipe)
    run.save_votes(votes)
    return votes


def _checked_size(size: Size | None, num_train: int) -> Size | None:
    """The size of a training set that constants follow, which has to be its own."""
    if size is not None and size.num_train != num_train:
        raise ConfigError(f"Expected the size of {num_train} training examples, got {size}; give Size.of({num_train}).")
    return size


# --- what is to be trained ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Task:
    """Everything about a run that is decided before its first instance.

    Attributes:
        model: the network, or a function that builds it.
        model_name: what it is called in the recipe.
        config: the recipe with its public constants.
        preparation: how inputs reach the network.
        data: the training set.
        test: test inputs, prepared.
        test_fingerprint: of the raw test inputs.
        labels: true labels of the test inputs, where known.
        features: what the encoder says about itself.
        assumptions: what is taken for granted.
        evidence: what is counted beside votes.
        members: for models of parts, the examples that each of them sees.
        source: how the data was read, where that is known.
        keep_models: whether weights are kept.
        size: the size of the training set, where constants follow its step.
        extra: see `train`.
    """

    model: Model
    model_name: str
    config: TrainingRecipe
    preparation: Preparation
    data: Dataset
    test: npt.NDArray[Any]
    test_fingerprint: str
    labels: npt.NDArray[np.int64] | None
    features: dict[str, Any] | None
    assumptions: tuple[str, ...]
    evidence: tuple[str, ...] = ()
    members: Sequence[IndexArray] | None = None
    source: Mapping[str, Any] | None = None
    keep_models: bool = False
    size: Size | None = None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, eq=False)
class Job:
    """What whoever trains must know of a task; no seed is in it.

    Attributes:
        model: see `Task`, likewise those up to `keep_models`.
        is_rehearsed: whether a run of models of parts was started before, with a number in flight that fits.
    """

    model: Model
    model_name: str
    config: TrainingRecipe
    data: Dataset
    test: npt.NDArray[Any]
    evidence: tuple[str, ...]
    members: Sequence[IndexArray] | None
    keep_models: bool
    is_rehearsed: bool = False

    @classmethod
    def of(cls, task: Task) -> Job:
        """The job of a task."""
        names = (one.name for one in fields(cls) if one.name != "is_rehearsed")
        return cls(**{name: getattr(task, name) for name in names})

    @property
    def nbytes(self) -> int:
        """How large its arrays are."""
        return self.data.inputs.nbytes + self.data.labels.nbytes + self.test.nbytes

    def engine(self, device: torch.device, precision: str, in_flight: int | None) -> Engine:
        """What trains it, where this is called.

        Raises:
            ConfigError: there is not enough memory, or it cannot be done on this device.
        """
        with enough_memory(f"the training data and a {self.model_name} on {device}"):
            return Engine(
                self.model,
                self.data,
                self.config,
                device=device,
                precision=precision,
                parts=self.members,
                test=self.test,
                in_flight=in_flight,
                evidence=self.evidence,
            )


def task_of(
    training_set: Any, test_set: Any, *, model: Any, config: TrainingRecipe, features: Any, preferences: bool = False
) -> Task:
    """What is to be trained, from what the user gave.

    Raises:
        ConfigError: an argument or the data is not what it should be.
    """
    x, y = pair_of("training_set", training_set)
    x = check_inputs(x, "training")
    y = check_labels(y, len(x), "training", classes=config.classes)
    config, assumptions = config.resolve(num_train=len(x), classes=int(y.max()) + 1)
    chosen = pick_encoder(row_by_row(features) if config.is_deterministic else features)
    preparation = _preparation(x, model, config, chosen)
    config = replace(config, pixel_mean=preparation.mean, pixel_std=preparation.std)
    assert config.classes is not None
    inputs = preparation(x, "training")
    test, labels = split_inputs(test_set, "test", config.classes)
    network = pick_model(model, inputs.shape[1:], config.classes, on_features=chosen is not None)
    task = Task(
        model=network,
        model_name=model if isinstance(model, str) else describe(network),
        config=config,
        preparation=preparation,
        # Of an encoder that is trusted we know only what it does: its features count as data, too.
        data=Dataset(inputs, y, fingerprint(x, y, *([inputs] if chosen is not None and chosen.trusted else []))),
        test=preparation(test, "test"),
        test_fingerprint=fingerprint(test),
        labels=labels,
        features=None if chosen is None else chosen.to_dict(),
        assumptions=(*assumptions, *about_encoder(chosen, x, config.classes)),
    )
    _check_outputs(task)
    check_repeatable(network)
    return task if isinstance(config, TrainConfig) else _planned(task, config.plan, x, preferences)


def row_by_row(features: Any) -> Any:
    """The encoder of models of parts.

    How a library rounds may depend on the rows beside one; other encoders than `Frozen` are exact row by row.
    """
    return replace(features, batch_size=1) if isinstance(features, Frozen) else features


def _planned(task: Task, plan: ViewPlan, x: Array, preferences: bool) -> Task:
    """A task with what follows from what instances see."""
    if plan.noise:
        if task.data.inputs.dtype != np.float32:
            raise ConfigError(
                "Noise is for numbers, and these inputs are tokens; use features='hashed-ngrams' for text."
            )
        task = replace(task, assumptions=(*task.assumptions, _distances(task)))
    if preferences and not plan.has_preferences:
        raise ConfigError("preferences are for run-off elections, on plans of Parts; leave them out.")
    evidence = ("preferences",) if preferences else plan.evidence
    check_evidence(evidence, len(task.test), task.config.classes)
    members = plan.members(content_hashes(x, task.data.labels)) if plan.is_deterministic else None
    return replace(task, evidence=evidence, members=members)


def check_evidence(evidence: Sequence[str], inputs: int, classes: int | None) -> None:
    """Require that what is counted beside votes can be kept for so many inputs."""
    assert classes is not None
    if "preferences" in evidence and inputs * classes**2 > _MOST_PREFERENCES:
        raise ConfigError(
            f"Preferences between {classes} classes for {inputs} inputs are too many to keep; "
            "use a majority of the parts instead, or fewer inputs."
        )


def _distances(task: Task) -> str:
    """Between what distances are taken, where a certificate speaks of them."""
    if task.features is not None:
        return f"Distances are between features ({task.features['name']}), not between inputs."
    mean, std = task.preparation.mean, task.preparation.std
    if mean is None or std is None:
        return "Distances are between inputs as they were given."
    shown = [", ".join(f"{number:g}" for number in numbers) for numbers in (mean, std)]
    return f"Distances are between images divided by 255, minus {shown[0]}, divided by {shown[1]}."


def _preparation(x: Array, model: Any, config: TrainingRecipe, chosen: Encoder | None) -> Preparation:
    shape, kind = x.shape[1:], kind_of(x)
    if chosen is None and kind == "uint8":
        bare = Preparation(shape, kind)
        mean, std = models.scaling(model, bare.channels) if isinstance(model, str) else ((0.0,), (1.0,))
        return replace(bare, mean=config.pixel_mean or mean, std=config.pixel_std or std, channel_axis=True)
    if config.pixel_mean is not None or config.pixel_std is not None:
        raise ConfigError("pixel_mean and pixel_std scale 8-bit images (uint8, no features); leave them out here.")
    if chosen is not None:
        return Preparation(shape, kind, encoder=chosen)
    tokens = _tokens_of(model) if kind == "integer" else 0
    return Preparation(shape, kind, channel_axis=model in _IMAGE_MODELS, tokens=tokens)


def _tokens_of(model: Any) -> int:
    """How many tokens every embedding of a user's network knows, 0 where it has none."""
    if isinstance(model, str):
        return 0
    module = model if isinstance(model, nn.Module) else model()
    lookups = [part for part in module.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag)]
    return min((part.num_embeddings for part in lookups), default=0)


def pick_model(model: Any, input_shape: tuple[int, ...], classes: int, *, on_features: bool = False) -> Model:
    """The network of a name, or what the user built.

    Features carry a bias where they want one: a linear model on them has none of its own, which would take up to half
    of each gradient's norm.

    Raises:
        ConfigError: the name is not known or does not fit the inputs, or it is no network.
    """
    if isinstance(model, str):
        return models.build(model, tuple(input_shape), classes, bias=not on_features)
    if isinstance(model, nn.Module) or callable(model):
        return model  # pyright: ignore[reportReturnType]  (`describe` looks at what it builds)
    raise ConfigError(f"Expected model to be one of {', '.join(models.MODELS)} or a torch.nn.Module, got {model!r}.")


def describe(model: Model) -> str:
    """What identifies a user's network: its class, and a hash of its structure, code and all that is not trained."""
    module = model if isinstance(model, nn.Module) else model()
    if not isinstance(module, nn.Module):
        raise ConfigError(f"Expected model to build a torch.nn.Module, got {module!r}.")
    suitability.check(module)
    shapes = {name: list(value.shape) for name, value in module.named_parameters()}
    digest = hashlib.sha256(json.dumps([repr(module), shapes, _code_of(module)]).encode())
    frozen = [(name, value) for name, value in module.named_parameters() if not value.requires_grad]
    for name, value in (*frozen, *module.named_buffers()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return f"{type(module).__qualname__} sha256:{digest.hexdigest()}"


def _code_of(module: nn.Module) -> list[Any]:
    """The code and the plain attributes of those parts of a network that are not torch's own."""
    found: list[Any] = []
    for name, part in module.named_modules():
        if type(part).__module__.startswith("torch.nn."):
            continue
        plain = {
            key: value
            for key, value in vars(part).items()
            if not key.startswith("_") and isinstance(value, int | float | str | tuple | None)
        }
        found.append([name, _source_of(type(part)), repr(sorted(plain.items()))])
    return found


def _source_of(kind: type[nn.Module]) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):  # typed in, not read from a file
        code = kind.forward.__code__
        return f"{code.co_code.hex()} {code.co_names} {code.co_consts!r}"


def _check_outputs(task: Task) -> None:
    """Require one logit per class of a user's network."""
    module = copy.deepcopy(task.model).cpu() if isinstance(task.model, nn.Module) else task.model()
    sample = torch.from_numpy(task.data.inputs[[0, -1]])  # two: some layers that are refused later need more than one
    try:
        with torch.no_grad():
            shape = tuple(module(sample).shape[1:])
    except AttributeError as error:
        raise ConfigError("Expected the model to return one tensor of logits; return the logits alone.") from error
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise ConfigError(f"The model cannot take inputs of shape {tuple(sample.shape[1:])}: {error}") from error
    if shape != (task.config.classes,):
        raise ConfigError(
            f"Expected the model to give {task.config.classes} logits for each input (classes), got shape {shape}."
        )


def pick_device(device: str | torch.device) -> torch.device:
    """The device of a name; `auto` is an NVIDIA GPU if there is one, else the CPU.

    Raises:
        ConfigError: there is no such device here.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"Expected device to be cpu, cuda, mps or auto, got {device!r}.") from error
    there = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (found.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not there.get(found.type, False):
        raise ConfigError(f"device={str(device)!r} is not available here; use device='auto' or 'cpu'.")
    return found


def _recipe_of(task: Task, path: str, precision: str) -> dict[str, Any]:
    """How instances are trained, in plain JSON values, as they are read back."""
    recipe = {
        **task.extra,
        "config": task.config.to_dict(),
        "model": task.model_name,
        "features": task.features,
        "path": path,
        "precision": precision,
    }
    if task.source is not None:
        recipe["source"] = dict(task.source)
    return json.loads(json.dumps(recipe, default=lambda number: number.item()))  # numpy's numbers are not JSON's


def data_fingerprint(train_fingerprint: str, test_fingerprint: str, recipe: dict[str, Any]) -> str:
    """What identifies training data, inputs and configuration; runs of different size may merge."""
    config = {name: value for name, value in recipe["config"].items() if name != "instances"}
    content = [train_fingerprint, test_fingerprint, config, recipe["model"], recipe["features"]]
    return f"sha256:{hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}"


def manifest_of(
    task: Task,
    machine: Machine,
    device: torch.device,
    in_flight: int | None,
    versions: Mapping[str, str] | None = None,
    computer: Mapping[str, str] | None = None,
) -> Manifest:
    """What is to be run, and in which groups; models that are functions are bound to all that their bits depend on.

    Args:
        task: what is trained.
        machine: what trains it.
        device: where.
        in_flight: how many the user wants in flight.
        versions: of the libraries that train it, None for those that are here.
        computer: what rounds numbers, None for this one.
    """
    versions = {**(versions or versions_here()), "arithmetic": machine.arithmetic}
    recipe, assumptions = _recipe_of(task, machine.path, machine.precision), task.assumptions
    if task.config.is_deterministic:
        recipe["computer"] = dict(computer or computer_of(device, versions))
        if task.evidence:
            recipe["evidence"] = list(task.evidence)
        kind, shape = _KINDS[task.preparation.kind], task.preparation.shape
        assumptions = (*assumptions, _ONE_KIND.format(kind=kind, shape=shape), _ONE_COMPUTER)
        if device.type != "cpu":  # where models are trained alone, their number does not matter
            in_flight = None
            recipe["config"]["in_flight"] = machine.models_in_flight()
    instances = int(task.config.instances)
    at_once = int(min(instances, in_flight or machine.models_in_flight()))
    return Manifest(
        run_id="",  # the seed gives it
        recipe=recipe,
        data_fingerprint=data_fingerprint(task.data.fingerprint, task.test_fingerprint, recipe),
        train_fingerprint=task.data.fingerprint,
        inputs={
            "shape": list(task.preparation.shape),
            "kind": task.preparation.kind,
            "channel_axis": task.preparation.channel_axis,
            "tokens": task.preparation.tokens,
            "network_shape": list(task.data.inputs.shape[1:]),
        },
        assumptions=assumptions,
        keep_models=task.keep_models,
        device=device.type,
        versions=versions,
        in_flight=at_once,
        in_flight_asked=None if in_flight is None else int(in_flight),
        ranges=plan_ranges(0, instances, at_once),
        size=task.size,
    )


def versions_here() -> dict[str, str]:
    """Of what computes in this process."""
    return {
        "mithridate": VERSION,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": importlib.metadata.version("torch"),
    }


# --- training it ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _opened(
    run_dir: PathLike | None, manifest: Manifest, root_seed: bytes | None, shards: slice | None
) -> Iterator[AnyRun]:
    if run_dir is None:
        yield MemoryRun(manifest, root_seed)
        return
    if shards is None and not is_handed_out(run_dir):
        opened = RunDirectory.open(run_dir, manifest, root_seed)
    else:
        opened = SharedRun.join(run_dir, manifest, root_seed, shards)
    with opened as run:
        if run.missing():
            _note_changes(run.manifest, manifest)
        yield run


def _note_changes(before: Manifest, now: Manifest) -> None:
    """Say what is not as it was when the run was started; the instances to come are draws of the same mechanism."""
    if before.device != now.device:
        _log.warning(
            "This run was started on %s and goes on on %s, where the noise comes from other streams: the votes are as "
            "valid, but not those of a run on one device.", before.device, now.device,
        )  # fmt: skip
    for name in sorted(before.versions.keys() | now.versions.keys()):
        old, new = before.versions.get(name), now.versions.get(name)
        if old != new:
            _log.warning("This run was started with %s %s and goes on with %s: equal to rounding only.", name, old, new)


def train_missing(machine: Engine, target: torch.device, run: AnyRun, task: Task, progress: Progress | None) -> None:
    """Train group by group on a device; where memory does not suffice, smaller groups with the same draws."""
    meter = Meter(_instances(run), task.config.steps, progress)
    device = shown(target, computer_of(target, {**versions_here(), "arithmetic": machine.arithmetic}))
    while groups := run.missing():
        meter.start(_instances(run) - sum(map(len, groups)))
        if isinstance(run, SharedRun):
            meter.say(f"{len(run.groups) - len(groups):,} of {len(run.groups):,} shards")
        if not _train_group(machine, run, groups[0], task.test, meter, device):
            halve(run, len(groups[0]))


def _instances(run: AnyRun) -> int:
    """How many instances this process sees to."""
    return sum(map(len, run.groups))


def _train_group(machine: Engine, run: AnyRun, group: range, test: npt.NDArray[Any], meter: Meter, device: str) -> bool:
    """Train one group, count and keep its votes; False where memory does not suffice."""
    try:
        weights = machine.train(run.seeds.only(group), group, meter.advance)
        tally = as_arrays(machine.tally(weights, test))
        models = by_parameter(weights, machine.shapes) if run.manifest.keep_models else None
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return False
    if models is not None:
        run.save_models(group, models, device)
    run.save_tally(group, tally, device)
    return True


def halve(run: AnyRun, size: int) -> None:
    """Go on with half as many models in flight as did not fit into memory.

    Raises:
        ConfigError: it was one.
    """
    _free_memory()
    if size == 1:
        raise ConfigError(
            "Not even one model at a time fits into memory; use a smaller model, a smaller sample_rate or device='cpu'."
        )
    run.set_in_flight(size // 2)
    _log.warning("Out of memory with %d models in flight; going on with %d, and the same draws.", size, size // 2)


def by_parameter(weights: Tensor, shapes: dict[str, torch.Size]) -> dict[str, npt.NDArray[np.float32]]:
    """Weights as models x the shape of each parameter."""
    rows = weights.detach().float().cpu().numpy()
    result, start = dict[str, npt.NDArray[np.float32]](), 0
    for name, shape in shapes.items():
        stop = start + shape.numel()
        result[name] = rows[:, start:stop].reshape(len(rows), *shape)
        start = stop
    return result


def as_arrays(tally: Tally) -> TallyArrays:
    """A tally by the names of its fields."""
    values = {name: getattr(tally, name) for name in TALLY}
    return {name: np.asarray(value) for name, value in values.items() if value is not None}


def votes_of(total: TallyArrays, manifest: Manifest, labels: npt.NDArray[np.int64] | None, identity: str) -> Votes:
    """The votes of a run on some inputs."""
    mechanism = recipe_from_dict(manifest.recipe["config"]).mechanism
    evidence = {name: total[name] for name in EVIDENCE if name in total}
    sums = {name: array for name, array in total.items() if name not in evidence}
    if isinstance(mechanism, Deterministic):  # a function of the data has counts, and no scores to average
        sums = {"counts": sums["counts"]}
    return Votes(
        mechanism=mechanism,
        labels=labels,
        data_fingerprint=identity,
        run_ids=(manifest.run_id,),
        assumptions=manifest.assumptions,
        recipe=manifest.recipe,
        evidence=evidence,
        size=manifest.size,
        **sums,  # pyright: ignore[reportArgumentType]
    )


def _votes(task: Task, run: AnyRun) -> Votes:
    manifest = run.manifest
    votes = replace(votes_of(run.total(), manifest, task.labels, manifest.data_fingerprint), devices=run.devices)
    if not isinstance(run, SharedRun):
        return votes
    # The number of instances in the recipe is that of all that voted, as in votes that were merged.
    recipe = {**manifest.recipe, "config": {**manifest.recipe["config"], "instances": votes.instances}}
    return replace(
        votes,
        recipe=recipe,
        shards={manifest.run_id: ((run.instances.start, run.instances.stop),)},
        planned={manifest.run_id: manifest.instances},
    )


class Meter:
    """Counts model-steps; the engine may report from several threads."""

    def __init__(self, instances: int, steps: int, progress: Progress | None) -> None:
        self._steps, self._total, self._progress = steps, instances * steps, progress
        self._done = 0
        self._lock = threading.Lock()

    def start(self, instances: int) -> None:
        """So many instances are done; what was reported beyond them is void."""
        self._done = instances * self._steps
        self.advance(0)

    def say(self, text: str) -> None:
        """Something beside the numbers, where that is wanted."""
        detail = getattr(self._progress, "detail", None)
        if detail is not None:
            detail(text)

    def advance(self, steps: int) -> None:
        """So many more model-steps are done."""
        if self._progress is not None:
            with self._lock:
                self._done += steps
                self._progress(self._done, self._total)
