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
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from mithridate import _validate
from mithridate._io.artifacts import PathLike
from mithridate._version import VERSION
from mithridate.core.conditions import Statement, of_user, to_plain
from mithridate.core.mechanism import Deterministic, Mechanism
from mithridate.core.votes import Votes
from mithridate.data.arrays import (
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
from mithridate.errors import ConfigError
from mithridate.features import Encoder, about_encoder, pick_encoder
from mithridate.training import models, suitability
from mithridate.training.arithmetic import usual_settings
from mithridate.training.backends import Backend, Ray, check_backend
from mithridate.training.config import PRECISIONS, TrainConfig
from mithridate.training.devices import computer_of, shown
from mithridate.training.engine import Engine, Tally
from mithridate.training.initialisation import check_repeatable
from mithridate.training.plain_config import PlainRecipe
from mithridate.training.randomness import Seeds
from mithridate.training.run_directory import (
    EVIDENCE,
    TALLY,
    Arrays,
    Manifest,
    MemoryRun,
    RunDirectory,
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


class AnyEngine(Machine, Protocol):
    """What trains and counts; see `engine.Engine`."""

    shapes: dict[str, torch.Size]

    def train(self, seeds: Seeds, instances: range, on_step: Callable[[int], None] | None) -> Tensor:
        """Models x parameters."""
        ...

    def tally(self, weights: Tensor, inputs: npt.NDArray[Any]) -> Tally:
        """How they vote."""
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

    Returns:
        The votes, with the mechanism that was run; also in `run_dir/votes.npz`. With `shards`, the votes of these
        alone, also in `run_dir/parts`; whoever finishes the last one writes those of the whole run.

    Raises:
        ConfigError: an argument or the data is not what it should be, the model mixes examples, or the run directory
            belongs to something else.
        ClusterError: workers of a cluster failed again and again; finished groups stay.
        ArtifactError: the run directory cannot be written to, or another process works in it; finished groups stay.
    """
    chosen = None if shards is None else check_shards(shards)
    if shards is not None and run_dir is None:
        raise ConfigError("shards are those of a run that is kept; give its run_dir.")
    with _ordered(
        training_set, test_set, model=model, config=config, run_dir=run_dir, device=device, features=features,
        in_flight=in_flight, precision=precision, keep_models=keep_models, source=source, assumptions=assumptions,
        backend=backend,
    ) as order:  # fmt: skip
        return votes_in(order.run_dir, order.manifest, root_seed, order.fill, order.task, progress, chosen)


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
        options: what else `train` takes, but for `progress` and `shards`.

    Raises:
        ConfigError: see `train`.
        ArtifactError: see `train`.
    """
    if is_handed_out(run_dir):
        raise ConfigError(
            f"{run_dir} was handed out with the seeds of some shards, and is prepared; train there without --prepare."
        )
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
    config: TrainConfig,
    run_dir: PathLike | None,
    device: str | torch.device = "auto",
    features: str | Encoder | None = None,
    in_flight: int | None = None,
    precision: str = "auto",
    keep_models: bool = False,
    source: Mapping[str, Any] | None = None,
    assumptions: Sequence[str] = (),
    backend: Backend | None = None,
) -> Iterator[_Order]:
    """Decide everything about a run, as long as those who train it are there."""
    if not isinstance(config, TrainConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"Expected config to be a TrainConfig, got {config!r}.")
    _validate.sentences(assumptions=assumptions)
    check_runtime(in_flight, precision)
    backend = check_backend(backend)
    if keep_models and run_dir is None:
        raise ConfigError("keep_models needs a place for them; give a run_dir.")
    task = task_of(training_set, test_set, model=model, config=config, features=features)
    assumed = (*of_user(assumptions), *task.assumptions, *fitted_preprocessing(training_set[0], source))
    task = replace(task, source=source, assumptions=assumed)
    if isinstance(backend, Ray):
        cluster = import_cluster()
        job = cluster.Job(task.model, task.config, task.data, task.test, keep_models=keep_models)
        with cluster.hired(backend, job, device, precision, in_flight) as crew, cluster.kept(run_dir) as folder:
            manifest = manifest_of(task, crew, crew.device, in_flight, keep_models=keep_models, versions=crew.versions)
            yield _Order(task, folder, manifest, crew.train_missing)
        return
    target = pick_device(device)
    with enough_memory(f"the training data and a {task.model_name} on {target}"):
        machine: AnyEngine = Engine(task.model, task.data, config_of(task), device=target, precision=precision)
    manifest = manifest_of(task, machine, target, in_flight, keep_models=keep_models)
    yield _Order(task, run_dir, manifest, partial(train_missing, machine, target))


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


def votes_in(
    run_dir: PathLike | None,
    manifest: Manifest,
    root_seed: bytes | None,
    fill: Fill,
    task: Task,
    progress: Progress | None,
    shards: slice | None = None,
) -> Votes:
    """Train what is missing of a run, or of some of its shards, and give the votes.

    Args:
        run_dir: where it is kept; None keeps it in memory.
        manifest: what is to be run.
        root_seed: the seed of a caller, None for one of the operating system.
        fill: trains the groups that are missing, and puts their votes into the run.
        task: everything that was decided.
        progress: told what is done.
        shards: the only ones to train, None for all.
    """
    root_seed, manifest = _with_seed(root_seed, manifest, task)
    with _opened(run_dir, manifest, root_seed, shards) as run:
        votes = run.finished_votes()
        if votes is None:
            fill(run, task, progress)
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
    """A seed of the caller's, checked, and what follows from there being one."""
    if root_seed is None:
        return None, manifest
    if not isinstance(task.config.mechanism, Deterministic):
        manifest = replace(manifest, assumptions=(*manifest.assumptions, _SEED_GIVEN))
    return check_root_seed(root_seed), manifest


def _finish(task: Task, run: SharedRun) -> None:
    """Write the votes of the whole run if this was the last process to finish its shards."""
    whole = run.whole()
    if whole is not None and whole.finished_votes() is None:
        whole.save_votes(_votes(task, whole))


def _up_to_date(votes: Votes, task: Task, run: AnyRun) -> Votes:
    """Finished votes, with what this call adds to them: true labels, and what it takes for granted."""
    labels = votes.labels if task.labels is None else task.labels
    same_labels = labels is votes.labels or np.array_equal(np.asarray(labels), np.asarray(votes.labels))
    if same_labels and to_plain(votes.assumptions) == to_plain(run.manifest.assumptions):
        return votes
    votes = replace(votes, labels=labels, assumptions=run.manifest.assumptions)
    run.save_votes(votes)
    return votes


def check_runtime(in_flight: Any, precision: str) -> None:
    """Require a number of models in flight and a precision that there are."""
    _validate.one_of(PRECISIONS, precision=precision)
    if in_flight is not None:
        _validate.positive_integer(in_flight=in_flight)


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
        source: how the data was read, where that is known.
    """

    model: Model
    model_name: str
    config: TrainConfig | PlainRecipe
    preparation: Preparation
    data: Dataset
    test: npt.NDArray[Any]
    test_fingerprint: str
    labels: npt.NDArray[np.int64] | None
    features: dict[str, Any] | None
    assumptions: tuple[str, ...]
    source: Mapping[str, Any] | None = None


def task_of(training_set: Any, test_set: Any, *, model: Any, config: TrainConfig | PlainRecipe, features: Any) -> Task:
    """What is to be trained, from what the user gave.

    Raises:
        ConfigError: an argument or the data is not what it should be.
    """
    x, y = pair_of("training_set", training_set)
    x = check_inputs(x, "training")
    y = check_labels(y, len(x), "training", classes=config.classes)
    config, assumptions = config.resolve(num_train=len(x), classes=int(y.max()) + 1)
    chosen = pick_encoder(features)
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
    return task


def config_of(task: Task) -> TrainConfig:
    """The recipe of private instances."""
    assert isinstance(task.config, TrainConfig)
    return task.config


def _preparation(x: Array, model: Any, config: TrainConfig | PlainRecipe, chosen: Encoder | None) -> Preparation:
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


def recipe_of(task: Task, path: str, precision: str) -> dict[str, Any]:
    """How instances are trained, in plain JSON values, as they are read back."""
    recipe = {
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
    *,
    keep_models: bool = False,
    versions: Mapping[str, str] | None = None,
) -> Manifest:
    """What is to be run, and in which groups; by these versions of libraries, else by those that are here."""
    instances = int(task.config.instances)
    at_once = int(min(instances, in_flight or machine.models_in_flight()))
    recipe = recipe_of(task, machine.path, machine.precision)
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
        assumptions=task.assumptions,
        keep_models=keep_models,
        device=device.type,
        versions={**(versions or versions_here()), "arithmetic": machine.arithmetic},
        in_flight=at_once,
        in_flight_asked=None if in_flight is None else int(in_flight),
        ranges=plan_ranges(0, instances, at_once),
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


def train_missing(machine: AnyEngine, target: torch.device, run: AnyRun, task: Task, progress: Progress | None) -> None:
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


def _train_group(
    machine: AnyEngine, run: AnyRun, group: range, test: npt.NDArray[Any], meter: Meter, device: str
) -> bool:
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
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if size == 1:
        raise ConfigError(
            "Not even one model at a time fits into memory; use a smaller model, a smaller sample_rate or device='cpu'."
        )
    run.set_in_flight(size // 2)
    _log.warning("Out of memory with %d models in flight; going on with %d, and the same draws.", size, size // 2)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice, on any device."""
    words = ("out of memory", "not enough memory", "can't allocate memory", "STATUS_ALLOC_FAILED")
    return isinstance(error, MemoryError | torch.cuda.OutOfMemoryError) or any(word in str(error) for word in words)


@contextlib.contextmanager
def enough_memory(what: str) -> Iterator[None]:
    """Say in words where memory does not suffice."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(f"There is not enough memory for {what}; use another device or fewer examples.") from error


def by_parameter(weights: Tensor, shapes: dict[str, torch.Size]) -> dict[str, npt.NDArray[np.float32]]:
    """Weights as models x the shape of each parameter."""
    rows = weights.detach().float().cpu().numpy()
    result, start = dict[str, npt.NDArray[np.float32]](), 0
    for name, shape in shapes.items():
        stop = start + shape.numel()
        result[name] = rows[:, start:stop].reshape(len(rows), *shape)
        start = stop
    return result


def as_arrays(tally: Tally) -> Arrays:
    """A tally by the names of its fields."""
    values = {name: getattr(tally, name) for name in TALLY}
    return {name: np.asarray(value) for name, value in values.items() if value is not None}


def votes_of(total: Arrays, manifest: Manifest, labels: npt.NDArray[np.int64] | None, identity: str) -> Votes:
    """The votes of a run of private instances on some inputs."""
    mechanism = TrainConfig.from_dict(manifest.recipe["config"]).mechanism
    return _votes_by(mechanism, total, manifest, labels, identity)


def _votes_by(
    mechanism: Mechanism, total: Arrays, manifest: Manifest, labels: npt.NDArray[np.int64] | None, identity: str | None
) -> Votes:
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
        **sums,  # pyright: ignore[reportArgumentType]
    )


def _votes(task: Task, run: AnyRun) -> Votes:
    total, manifest = run.total(), run.manifest
    votes = _votes_by(task.config.mechanism, total, manifest, task.labels, manifest.data_fingerprint)
    votes = replace(votes, devices=run.devices)
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
