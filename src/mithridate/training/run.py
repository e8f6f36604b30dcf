"""From an order to votes: all instances, group by group, into a run directory; and votes of models that were kept."""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mithridate import _validate
from mithridate._io.files import PathLike
from mithridate._torch import pick_device, usual_settings
from mithridate.core.conditions import Size, to_plain
from mithridate.core.mechanism import Deterministic, Drawn
from mithridate.core.provenance import input_hashes
from mithridate.core.votes import Votes
from mithridate.data.examples import Dataset, Examples, Preparation, as_examples
from mithridate.errors import ArtifactError, ConfigError
from mithridate.features import Encoder, Frozen, from_dict, is_same, pick_encoder
from mithridate.training.batch_source import TrainingRecipe
from mithridate.training.config import PRECISIONS, UNIT_ROWS, TrainConfig, recipe_from_dict
from mithridate.training.devices import (
    computer_of,
    is_out_of_memory,
    shown,
)
from mithridate.training.earlier_models import EarlierModels
from mithridate.training.engine import Engine
from mithridate.training.input_noise import NoisyCopies, NoisyInputs, input_noise_of, noisy_inputs
from mithridate.training.known_models import KnownModels
from mithridate.training.learners import LearnerMachine, learnt_again
from mithridate.training.models import MODELS, Model, describe, pick_model
from mithridate.training.order import Choice, Facts, Order, Progress, Ray, RuntimeOptions, compose
from mithridate.training.randomness import PUBLIC_SEED, Seeds, new_root_seed
from mithridate.training.run_directory import (
    EVIDENCE,
    Manifest,
    Run,
    RunDirectory,
    TallyArrays,
    added,
    check_root_seed,
    check_tally,
    devices_of,
    is_handed_out,
    path_of,
    read_models,
)
from mithridate.training.shared_run import SharedRun, check_shards
from mithridate.training.task import (
    Job,
    NetworkTrainer,
    check_evidence,
    data_fingerprint,
    manifest_of,
    task_of,
    versions_here,
)

Machine = Engine | LearnerMachine
Fill = Callable[[Run, "Job", Progress | None], None]

_log = logging.getLogger(__name__)

# --- a door for those who have decided everything by hand -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ByHand:
    """The defence of an order whose every constant a caller has decided; see `train`."""

    model: str | Model
    config: TrainingRecipe
    encoder: Encoder | None
    wants_preferences: bool = False

    @property
    def num_train(self) -> int | None:
        """As declared in the configuration."""
        return self.config.num_train

    size_step = None
    takes_units = True
    unit_cap = None

    @property
    def unit_rows(self) -> int | None:
        """As declared in the configuration."""
        return getattr(self.config, "unit_rows", None)

    def for_units(self) -> ByHand:
        """The configuration speaks of units where it says examples."""
        if not isinstance(self.config, TrainConfig) or self.config.unit_rows is not None:
            return self
        return replace(self, config=replace(self.config, unit_rows=UNIT_ROWS))

    @property
    def classes(self) -> int | None:
        """Likewise."""
        return self.config.classes

    def choose(self, facts: Facts) -> Choice:
        """Nothing is left open, but for a divisor."""
        return Choice(self, self.config.follows_size)

    def recorded(self, training: Examples) -> dict[str, Any]:
        """How the data was read, where that is known."""
        is_known = training.declaration is not None or training.class_names is not None
        return {"source": training.source} if is_known else {}

    def run(self, order: Order, runtime: RuntimeOptions) -> Votes:
        """See `carry_out`."""
        return carry_out(order, runtime)


def by_hand(
    training_set: Any,
    test_set: Any,
    *,
    model: str | Model,
    config: TrainingRecipe,
    features: str | Encoder | None = None,
    preferences: bool = False,
    assumptions: Sequence[str] = (),
    root_seed: bytes | None = None,
    size: Size | None = None,
) -> Order:
    """The order of constants that a caller has decided; see `train` for the arguments."""
    training = as_examples(training_set, "training", need_labels=True, classes=config.classes)
    assert training.y is not None
    if config.classes is None and not training.y.any():
        raise ConfigError("Expected classes of at least 2; with one class there is nothing to certify.")
    defence = ByHand(model, config, pick_encoder(features), preferences)
    order = compose(defence, training, test_set, assumptions=assumptions, root_seed=root_seed)
    examples = order.count
    if size is not None and size.num_train != examples:
        raise ConfigError(f"Expected the size of {examples} training examples, got {size}; give Size.of({examples}).")
    return order if size is None else replace(order, size=size)


def train(
    training_set: Examples | tuple[npt.ArrayLike, npt.ArrayLike],
    test_set: Examples | npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike],
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
    assumptions: Sequence[str] = (),
    backend: Ray | None = None,
    shards: int | range | slice | None = None,
    size: Size | None = None,
) -> Votes:
    """Train many private models at once, and count how they vote on the test inputs.

    Guarantee: every instance is one independent draw of `votes.mechanism` on the training set, all of them vote, and
    their votes depend on the root seed, the data and the recipe only: not on the number in flight, on interruptions or
    on their order, up to the rounding of the device. With a `run_dir`, the same call after any interruption goes on
    where the last one ended, and its votes are those of an uninterrupted run bit for bit.

    Assumes: what `votes.assumptions` lists, which every certificate repeats. Everything in `config`, the model and the
    features were fixed before anyone looked at the training set.

    Args:
        training_set: a pair of inputs and labels, or `data.Examples`, whose declaration, class names and assumptions
            are repeated. Images in 8 bits are scaled by constants of the recipe, `n x height x width` or
            `n x channels x height x width`; other numbers are taken as they are; text needs `features`.
        test_set: inputs to vote on, or a pair with their true labels, or `data.Examples`.
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
        assumptions: what else has looked at the training data, a sentence each; every certificate repeats them.
        backend: who trains: this process (None), or the workers of a cluster, `mithridate.Ray(...)`. `device` is then
            theirs, `auto` a GPU where the cluster has one. Any back end goes on with a run of any other.
        shards: train these shards (groups of at most `in_flight` instances, numbered from 0) of the run in `run_dir`
            and no others, while other processes may train others there; see `docs/scaling.md`.
        size: `Size.of(len(labels))` where something in `config`, the model or the features was chosen by the size step
            of the training set; radii then end with that step. A divisor that is left open always follows it.

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
    order = by_hand(
        training_set, test_set, model=model, config=config, features=features, assumptions=assumptions,
        root_seed=root_seed, size=size,
    )  # fmt: skip
    return carry_out(
        order, RuntimeOptions(run_dir, device, in_flight, precision, keep_models, backend, shards, progress)
    )


# --- carrying out -----------------------------------------------------------------------------------------------------


@usual_settings()
def carry_out(order: Order, runtime: RuntimeOptions) -> Votes:
    """Train what is missing of the run of an order, or of some of its shards, and give the votes.

    The defence of the order has a `model`, an `encoder`, a `config`, and says whether it `wants_preferences`.

    Guarantee: for a `TrainConfig`, that of `train`. For a `PlainRecipe`, every instance is what `votes.mechanism` says,
    and all of them vote. For plans of parts the vote of a model is, to the bit, a function of the examples that its
    part holds (as a multiset: neither their order nor any other example matters), of the recipe and of the number of
    the model; all its constants are public. For the other plans instances are independent draws from the root seed.

    Assumes: as `train`, of the plan as well.

    Raises:
        ConfigError: see `train`; or models cannot be functions of their parts on this device.
        ClusterError: see `train`.
        ArtifactError: see `train`.
    """
    shards = None if runtime.shards is None else check_shards(runtime.shards)
    if shards is not None and runtime.run_dir is None:
        raise ConfigError("shards are those of a run that is kept; give its run_dir.")
    with _staffed(order, runtime) as work, _opened(work, shards) as run:
        votes = run.finished_votes()
        if votes is None:
            work.fill(run, work.job, runtime.progress)
            votes = _votes(order.test, run, work.job.config)
            run.save_votes(votes)
        else:
            votes = _up_to_date(votes, order.test.y, run)
        if runtime.keep_models:
            work.job.trainer.keep(run, work.job)
        # Whoever finishes the last shard writes the votes of the whole run.
        whole = run.whole() if isinstance(run, SharedRun) else None
        if whole is not None and whole.finished_votes() is None:
            whole.save_votes(_votes(order.test, whole, work.job.config))
        steps = _instances(run) * work.job.config.steps
    if runtime.progress is not None:
        runtime.progress(steps, steps)
    return votes


@usual_settings()
def prepare(order: Order, runtime: RuntimeOptions) -> Manifest:
    """Start a run without training anything, or look at the one that is there: which shards it has.

    Of a run that is there, all stays but for what it takes for granted, to which new assumptions are added.

    Raises:
        ConfigError: see `train`.
        ArtifactError: see `train`.
    """
    assert runtime.run_dir is not None
    if is_handed_out(runtime.run_dir):
        raise ConfigError(
            f"{runtime.run_dir} was handed out with the seeds of some shards, and is prepared; train there without "
            "--prepare."
        )
    with _staffed(order, runtime) as work:
        _check_has_shards(work.job)
        with RunDirectory.open(runtime.run_dir, work.manifest, work.seed, may_replan=False) as run:
            return run.manifest


@dataclass(frozen=True, eq=False)
class _Work:
    """A job, where it is kept, the seed of a caller, and who does it."""

    job: Job
    run_dir: PathLike | None
    seed: bytes | None
    manifest: Manifest
    fill: Fill


@contextlib.contextmanager
def _staffed(order: Order, runtime: RuntimeOptions) -> Iterator[_Work]:
    """Decide everything about a run, as long as those who train it are there."""
    _validate.one_of(PRECISIONS, precision=runtime.precision)
    if runtime.in_flight is not None:
        _validate.positive_integer(in_flight=runtime.in_flight)
    if not isinstance(runtime.backend, Ray | None):
        raise ConfigError(f"Expected backend to be mithridate.Ray(...) or None, got {runtime.backend!r}.")
    if runtime.keep_models and runtime.run_dir is None:
        raise ConfigError("keep_models needs a place for them; give a run_dir.")
    task = task_of(order, keep_models=runtime.keep_models)
    if runtime.shards is not None:
        _check_has_shards(task.job)
    if task.job.is_function and order.root_seed is not None:
        raise ConfigError("Models of parts are functions of their data, and take no root_seed; leave it out.")
    given = None if order.root_seed is None else check_root_seed(order.root_seed)
    # Where there is noise on inputs, the seed is that of the noise, which nobody may know.
    seed = PUBLIC_SEED if task.job.is_function else given
    stored = _stored_in_flight(runtime.run_dir) if task.job.config.is_deterministic else None
    in_flight = runtime.in_flight or stored
    if runtime.backend is not None:
        cluster = import_cluster()
        job = replace(task.job, is_rehearsed=stored is not None)
        with (
            cluster.hired(runtime.backend, job, runtime.device, runtime.precision, in_flight) as crew,
            cluster.kept(runtime.run_dir) as folder,
        ):
            manifest = manifest_of(task, crew, crew.device, runtime.in_flight, crew.versions, crew.computer)
            yield _Work(job, folder, seed, manifest, crew.train_missing)
        return
    target = pick_device(runtime.device)
    build = partial(task.job.trainer.machine, task.job, target, runtime.precision)
    known = runtime.known if task.job.is_function and target.type == "cpu" else None
    is_new = task.job.config.is_deterministic and stored is None and not (known is not None and known.is_rehearsed)
    asked = runtime.in_flight or (None if runtime.earlier is None else runtime.earlier.manifest.in_flight)
    machine = rehearsed(build, asked) if is_new else build(in_flight)
    manifest = manifest_of(task, machine, target, runtime.in_flight)
    if runtime.earlier is not None:
        fill = partial(_train_changed, machine, target, runtime.earlier)
    else:
        fill = partial(train_missing, machine, target) if known is None else partial(_train_unknown, machine, known)
    yield _Work(task.job, runtime.run_dir, seed, manifest, fill)


def _check_has_shards(job: Job) -> None:
    """Refuse shards of models that vote together.

    Raises:
        ConfigError: they do.
    """
    if isinstance(job.noisy, NoisyCopies):
        raise ConfigError(
            "All models of parts answer the same noisy inputs together, so their run has no shards; leave --shards and "
            "--prepare out, or train on a Ray cluster."
        )


def _stored_in_flight(run_dir: PathLike | None) -> int | None:
    """How many models were in flight when a run was started, None if there is none."""
    if run_dir is None or not (path := Path(run_dir) / "run.json").exists():
        return None
    return Manifest.read(path).in_flight


def rehearsed(build: Callable[[int | None], Machine], in_flight: int | None) -> Machine:
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


@contextlib.contextmanager
def _opened(work: _Work, shards: slice | None) -> Iterator[Run]:
    if work.run_dir is None:
        yield Run(work.manifest, work.seed)
        return
    if shards is None and not is_handed_out(work.run_dir):
        opened = RunDirectory.open(work.run_dir, work.manifest, work.seed)
    else:
        opened = SharedRun.join(work.run_dir, work.manifest, work.seed, shards)
    with opened as run:
        if run.missing():
            _note_changes(run.manifest, work.manifest)
        yield run


def _note_changes(before: Manifest, now: Manifest) -> None:
    """Say what is not as it was when the run was started; the instances to come are draws of the same mechanism."""
    if before.device != now.device:
        _log.warning(
            "This run was started on %s and goes on on %s, which rounds in another way: the votes are as valid, but "
            "equal to those of a run on one device up to rounding only.", before.device, now.device,
        )  # fmt: skip
    for name in sorted(before.versions.keys() | now.versions.keys()):
        old, new = before.versions.get(name), now.versions.get(name)
        if old != new:
            _log.warning("This run was started with %s %s and goes on with %s: equal to rounding only.", name, old, new)


def _up_to_date(votes: Votes, labels: npt.NDArray[np.int64] | None, run: Run) -> Votes:
    """Finished votes, with what this call adds to them: true labels, and what it takes for granted."""
    labels = votes.labels if labels is None else labels
    same_labels = labels is votes.labels or np.array_equal(np.asarray(labels), np.asarray(votes.labels))
    said = run.manifest
    same_claims = to_plain(votes.assumptions) == to_plain(said.assumptions) and votes.size == said.size
    if same_labels and same_claims and votes.recipe == said.recipe:
        return votes
    votes = replace(votes, labels=labels, assumptions=said.assumptions, size=said.size, recipe=said.recipe)
    run.save_votes(votes)
    return votes


# --- training it ----------------------------------------------------------------------------------------------------


def train_missing(
    machine: Engine | LearnerMachine, target: torch.device, run: Run, job: Job, progress: Progress | None
) -> None:
    """Train group by group on a device; where memory does not suffice, smaller groups with the same draws."""
    meter = Meter(_instances(run), job.config.steps, progress)
    device = shown(target, computer_of(target, {**versions_here(), "arithmetic": machine.arithmetic}))
    while groups := run.missing():
        meter.start(_instances(run) - sum(map(len, groups)))
        if isinstance(run, SharedRun):
            meter.say(f"{len(run.groups) - len(groups):,} of {len(run.groups):,} shards")
        if not _train_group(machine, run, groups[0], job, meter, device):
            halve(run, len(groups[0]))


def _train_unknown(machine: Machine, known: KnownModels, run: Run, job: Job, progress: Progress | None) -> None:
    """Train those models of parts alone that nobody has trained before, on a CPU."""
    meter = Meter(_instances(run), job.config.steps, progress)

    assert job.noisy is None  # which makes votes random

    def train(models: Sequence[int]) -> Iterator[TallyArrays]:
        weights: Any = machine.train(run.seeds.only(models), models, meter.advance)
        return (machine.tally(weights[at : at + 1], job.test) for at in range(len(models)))

    known.fill(run, job, train, "cpu")


def _train_changed(
    machine: Machine, target: torch.device, earlier: EarlierModels, run: Run, job: Job, progress: Progress | None
) -> None:
    """Train those models of parts alone whose part is not what it was in an earlier run."""
    meter = Meter(_instances(run), job.config.steps, progress)
    device = shown(target, computer_of(target, {**versions_here(), "arithmetic": machine.arithmetic}))
    alone = target.type == "cpu" or isinstance(machine, LearnerMachine)
    earlier.compare(run, job)
    while groups := run.missing():
        meter.start(_instances(run) - sum(map(len, groups)))
        if earlier.may_take(groups[0], alone=alone):
            earlier.take(run, job, machine, groups[0], meter.advance)
        elif _train_group(machine, run, groups[0], job, meter, device):
            earlier.trained += len(groups[0])
        else:
            halve(run, len(groups[0]))


def _instances(run: Run) -> int:
    """How many instances this process sees to."""
    return sum(map(len, run.groups))


def _train_group(machine: Engine | LearnerMachine, run: Run, group: range, job: Job, meter: Meter, device: str) -> bool:
    """Train one group, count and keep its votes; False where memory does not suffice."""
    try:
        seeds = run.seeds.only(job.streams(group))
        weights: Any = machine.train(job.training_seeds(seeds), group, meter.advance)
        tally = job.votes(machine, weights, seeds, group)
        models = by_parameter(weights, machine.shapes) if run.manifest.keep_models else None
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return False
    if models is not None:
        run.save_models(group, models, device)
    run.save_tally(group, tally, device)
    return True


def halve(run: Run, size: int) -> None:
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


def by_parameter(weights: Tensor, shapes: Mapping[str, torch.Size]) -> dict[str, npt.NDArray[np.float32]]:
    """Weights as models x the shape of each parameter."""
    parts = weights.detach().float().cpu().split([shape.numel() for shape in shapes.values()], dim=1)
    named = zip(shapes.items(), parts, strict=True)
    return {name: part.numpy().reshape(len(weights), *shape) for (name, shape), part in named}


def votes_of(total: TallyArrays, manifest: Manifest, config: TrainingRecipe, inputs: Examples) -> Votes:
    """The votes of a run, by its recipe, on some inputs."""
    mechanism = config.mechanism
    evidence = {name: total[name] for name in EVIDENCE if name in total}
    if isinstance(mechanism, Drawn):
        assert config.plan is not None
        counts, evidence = config.plan.folded(total["counts"])
        total = {"counts": counts, **evidence}
    sums = {name: array for name, array in total.items() if name not in evidence}
    if isinstance(mechanism, Deterministic):  # a function of the data has counts, and no scores to average
        sums = {"counts": sums["counts"]}
    return Votes(
        mechanism=mechanism,
        labels=inputs.y,
        data_fingerprint=data_fingerprint(manifest.training, inputs.x, manifest.recipe),
        training=manifest.training,
        input_hashes=input_hashes(inputs.x),
        run_ids=(manifest.run_id,),
        assumptions=manifest.assumptions,
        recipe=manifest.recipe,
        evidence=evidence,
        size=manifest.size,
        unit=manifest.unit,
        input_noise=input_noise_of(manifest.recipe),
        **sums,  # pyright: ignore[reportArgumentType]
    )


def _votes(inputs: Examples, run: Run, config: TrainingRecipe) -> Votes:
    manifest = run.manifest
    votes = votes_of(run.total(), manifest, config, inputs)
    votes = replace(votes, data_fingerprint=manifest.data_fingerprint)
    if isinstance(votes.mechanism, Drawn):  # whose votes are not those of single models
        return votes
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


# --- models that were kept --------------------------------------------------------------------------------------------


@usual_settings()
def predict(
    run_dir: PathLike,
    inputs: Examples | npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike],
    *,
    model: Model | None = None,
    features: Encoder | None = None,
    device: str | torch.device = "auto",
) -> Votes:
    """How the models of a finished run vote on new inputs.

    Guarantee: every instance of the run votes, with the weights that training with `keep_models=True` left; mechanism,
    recipe, assumptions, run id and what is counted beside votes are those of the run. What a model of parts answers is
    to the bit a function of its weights: it is asked in the same group as at its training, alone on a CPU, and on a GPU
    only where a rehearsal found that the models beside it do not count.

    Assumes: whoever chose the inputs did not choose them by what these very models answer to others. The claim is about
    each input by itself, over the training of the models.

    Args:
        run_dir: the directory of a run that kept its models.
        inputs: raw inputs like those of the training set, or a pair with their true labels, or `data.Examples`.
        model: the network, where the run was of a user's own; it must be the same.
        features: the encoder, where it was a `features.Frozen`; it must be the same.
        device: `cpu`, `cuda`, `mps` or `auto`.

    Raises:
        ArtifactError: the run is not finished, has no models, or they are damaged.
        ConfigError: the inputs are not like those of the training set, the model or encoder is not that of the run, or
            models of parts cannot be functions on this device.
    """
    return KeptModels.of_run(run_dir, model=model, features=features, device=device)(inputs)


@dataclass(frozen=True, eq=False)
class KeptModels:
    """The models of a finished run, as they are asked about inputs.

    Attributes:
        path: of the run.
        manifest: what the run says of itself.
        config: how its models were trained.
        preparation: how raw inputs become those of a network.
        model: the network, where the run was of a user's own.
        device: where to compute.
        weights: of all models, once they were read; None: they are read anew for every question, a group at a time.
        machine: what asks them, made with the weights.
    """

    path: Path
    manifest: Manifest
    config: TrainingRecipe
    preparation: Preparation
    model: Model | None
    device: torch.device
    weights: tuple[tuple[range, Tensor], ...] | None = None
    machine: Engine | None = None

    @classmethod
    def of_run(
        cls,
        run_dir: PathLike,
        *,
        model: Model | None = None,
        features: Encoder | None = None,
        device: str | torch.device = "auto",
    ) -> KeptModels:
        """Those that a run kept; the arguments, and what is refused, are those of `predict`."""
        path = Path(run_dir)
        manifest = Manifest.read(path / "run.json")
        if not manifest.keep_models and "learner" not in manifest.recipe:
            raise ArtifactError(f"The run in {path} did not keep its models; train with keep_models (--keep-models).")
        if is_handed_out(path):
            raise ArtifactError(
                f"{path} was handed out and has the models of some shards only. Copy the shards and models folders of "
                "all that were into the run that was split, run its mithridate train again, and predict there."
            )
        try:
            config = recipe_from_dict(manifest.recipe["config"])
            assert config.classes is not None
            _ = config.gradient_rule  # what was trained has nothing left open
            _check_stored(manifest)
            preparation = _preparation_of(manifest, config, features, path)
        except (KeyError, TypeError, AttributeError, AssertionError) as error:
            raise ArtifactError(f"{path / 'run.json'} is damaged; models cannot be used without it.") from error
        return cls(path, manifest, config, preparation, model, pick_device(device))

    @usual_settings()
    def loaded(self) -> KeptModels:
        """The same with all weights in memory; there are none of a learner, whose models are trained again."""
        if "learner" in self.manifest.recipe:
            return self
        nothing = np.zeros((1, *self.manifest.inputs["network_shape"]), np.float32)
        machine = _asked(self.manifest, self.config, nothing, self.model, self.device)
        return replace(self, weights=tuple(self._read(machine)), machine=machine)

    @usual_settings()
    def __call__(self, inputs: Examples | npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike]) -> Votes:
        """How they vote; see `predict`."""
        manifest, config = self.manifest, self.config
        new = as_examples(inputs, "new", need_labels=False, classes=config.classes)
        prepared = self.preparation(new.x, "new")
        if "learner" in manifest.recipe:
            total = learnt_again(self.path, manifest, config, prepared, self.model, _evidence(manifest))
            return votes_of(total, manifest, config, new)
        if list(prepared.shape[1:]) != manifest.inputs["network_shape"]:
            where = self.path / "run.json"
            raise ArtifactError(f"{where} is damaged: its inputs are not those that its network takes.")
        assert config.classes is not None
        check_evidence(_evidence(manifest), len(prepared), config.classes, manifest.instances)
        machine = self.machine or _asked(manifest, config, prepared, self.model, self.device)
        noise = input_noise_of(manifest.recipe)
        noisy = noisy_inputs(noise, new.x, self.preparation, config.plan, config.classes)
        groups = self._read(machine) if self.weights is None else self.weights
        total = _counted(machine, groups, prepared, noisy)
        votes = votes_of(total, manifest, config, new)
        # Whose votes are not those of single models.
        return votes if isinstance(votes.mechanism, Drawn) else replace(votes, devices=devices_of(self.path, manifest))

    def _read(self, machine: Engine) -> Iterator[tuple[range, Tensor]]:
        """The weights of every group, a row for each model."""
        for group in self.manifest.ranges:
            path = path_of(self.path, "models", group)
            weights = read_models(path, self.manifest, group)
            expected = {name: (len(group), *shape) for name, shape in machine.shapes.items()}
            if {name: array.shape for name, array in weights.items()} != expected:
                raise ArtifactError(f"The models in {path} are not those of the recipe.")
            rows = np.concatenate([weights[name].reshape(len(group), -1) for name in machine.shapes], axis=1)
            yield group, torch.from_numpy(rows).to(self.device)


def _check_stored(manifest: Manifest) -> None:
    """Require of the recipe and the inputs in `run.json` the kinds of values that are used here.

    Raises:
        KeyError: one is missing.
        TypeError: one is of another kind.
    """
    recipe, inputs = manifest.recipe, manifest.inputs
    shapes = (*inputs["shape"], *inputs["network_shape"])
    kinds = [(axis, int) for axis in shapes] + [(inputs["tokens"], int), (inputs["channel_axis"], bool)]
    kinds += [(value, str) for value in (inputs["kind"], recipe["model"], recipe["precision"], *_evidence(manifest))]
    for value, kind in kinds:
        if type(value) is not kind:
            raise TypeError(f"{value!r:.80} is of another kind than {kind.__name__}")
    if min(shapes, default=1) < 0 or inputs["tokens"] < 0:
        raise TypeError("a size is below zero")


def _evidence(manifest: Manifest) -> tuple[str, ...]:
    """What was counted beside votes at training."""
    return tuple(manifest.recipe.get("evidence", ()))


def _preparation_of(manifest: Manifest, config: TrainingRecipe, features: Any, folder: Path) -> Preparation:
    """The same scaling or encoder as in training."""
    stored, inputs = manifest.recipe["features"], manifest.inputs
    encoder = pick_encoder(features)
    if encoder is None and stored is not None:
        if stored["name"] == Frozen.name:
            raise ConfigError(f"This run used a frozen encoder, {stored}; give it again as features=.")
        encoder = from_dict(stored, folder=folder)
    if not is_same(None if encoder is None else encoder.to_dict(), stored):
        raise ConfigError(f"Expected the features of the run, {stored}, got {features!r}.")
    return Preparation(
        tuple(inputs["shape"]),
        inputs["kind"],
        mean=config.pixel_mean,
        std=config.pixel_std,
        channel_axis=inputs["channel_axis"],
        tokens=inputs["tokens"],
        encoder=encoder,
    )


def _asked(
    manifest: Manifest,
    config: TrainingRecipe,
    inputs: npt.NDArray[Any],
    model: str | Model | None,
    device: torch.device,
) -> Engine:
    stored, shape = manifest.recipe["model"], tuple(manifest.inputs["network_shape"])
    assert config.classes is not None
    if model is None:
        if stored not in MODELS:
            raise ConfigError(f"This run used a network of its own, {stored}; give it again as model=.")
        model = stored
    elif (found := model if isinstance(model, str) else describe(model)) != stored:
        raise ConfigError(f"Expected the network of the run, {stored}, got {found}.")
    # Nothing is trained here: one example of zeros tells the engine the shape of its inputs.
    zeros = np.zeros((1, *shape), np.float32)
    nothing = Dataset(zeros.astype(np.int64) if manifest.inputs["tokens"] else zeros, np.zeros(1, np.int64))
    # Elsewhere than on a GPU all products are in single precision, however the models were trained.
    precision = manifest.recipe["precision"] if device.type == "cuda" else "float32"
    network = pick_model(model, shape, config.classes, on_features=manifest.recipe["features"] is not None)
    trainer = NetworkTrainer(network, stored)
    job = Job(trainer, config, nothing, inputs, _evidence(manifest), None, keep_models=False)
    return trainer.machine(job, device, precision, manifest.in_flight)


def _counted(
    machine: Engine,
    groups: Iterable[tuple[range, Tensor]],
    inputs: npt.NDArray[Any],
    noisy: NoisyInputs | None,
) -> TallyArrays:
    total: TallyArrays | None = None
    # Whoever chose the inputs may have seen what the models answered before, but no noise that is drawn now.
    fresh = Seeds.of(new_root_seed())
    sizes = set[int]()
    for group, models in groups:
        if len(group) not in sizes:
            machine.check_answers(models, inputs)
        sizes.add(len(group))
        tally = _tally(machine, models, inputs) if noisy is None else noisy.votes(machine, models, fresh, group)
        check_tally(group, tally)
        total = tally if total is None else added(total, tally)
    assert total is not None
    return total


def _tally(machine: Engine, weights: Tensor, inputs: npt.NDArray[Any]) -> TallyArrays:
    """Votes of some models, in halves where memory does not suffice."""
    try:
        return machine.tally(weights, inputs)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error) or len(weights) == 1:
            raise
    half = len(weights) // 2
    return added(_tally(machine, weights[:half], inputs), _tally(machine, weights[half:], inputs))
