"""What an order makes to be done: the data as the network takes it, the network, and what `run.json` says of both."""

from __future__ import annotations

import copy
import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from mithridate._version import VERSION
from mithridate.core.conditions import Statement
from mithridate.core.provenance import TrainingData, fingerprint
from mithridate.data.examples import Array, Dataset, Preparation, kind_of
from mithridate.data.partition import Hashes, IndexArray, content_hashes, unit_hashes
from mithridate.errors import ConfigError
from mithridate.features import Encoder, Frozen
from mithridate.training.batch_source import TrainingRecipe
from mithridate.training.config import ViewPlan
from mithridate.training.devices import (
    computer_of,
    enough_memory,
)
from mithridate.training.engine import Engine
from mithridate.training.input_noise import NoisyInputs, noise_for, noisy_inputs, trained_on
from mithridate.training.learners import Learner, LearnerMachine, LearnerTrainer, inputs_for
from mithridate.training.models import Model, check_repeatable, describe, pick_model, scaling
from mithridate.training.order import Order
from mithridate.training.randomness import PUBLIC_SEED, Seeds
from mithridate.training.run_directory import Manifest, Run, TallyArrays, plan_ranges

if TYPE_CHECKING:
    from mithridate.training.ray_cluster import Crew

_IMAGE_MODELS = ("lenet5", "opa-tut", "resnet18")
_MOST_PREFERENCES = 2**31
_MOST_PREDICTIONS = 2**27
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


@dataclass(frozen=True, eq=False)
class NetworkTrainer:
    """Trains networks, all of a group at once, by the engine; `LearnerTrainer` is the other who can do a job.

    Attributes:
        model: the network, or a function that builds it.
        name: what it is called in the recipe.
        recorded: what else the recipe says of who trains.
        keeps_weights: whether weights are what predictions need.
    """

    model: Model
    name: str
    recorded: ClassVar[Mapping[str, Any]] = {}
    keeps_weights: ClassVar[bool] = True

    def machine(self, job: Job, device: torch.device, precision: str, in_flight: int | None) -> Engine:
        """What trains a job, where this is called.

        Raises:
            ConfigError: there is not enough memory, or it cannot be done on this device.
        """
        with enough_memory(f"the training data and a {self.name} on {device}"):
            return Engine(
                self.model,
                job.data,
                job.config,
                device=device,
                precision=precision,
                parts=job.members,
                test=job.test,
                in_flight=in_flight,
                evidence=job.evidence,
            )

    def keep(self, run: Run, job: Job) -> None:
        """Nothing is left to do: weights are kept with the votes of their group."""


@dataclass(frozen=True, eq=False)
class Job:
    """What whoever trains must know of a task; no seed is in it.

    Attributes:
        trainer: who trains.
        config: the recipe with its public constants.
        data: the training set.
        test: test inputs, prepared.
        evidence: what is counted beside votes.
        members: for models of parts, the examples that each of them sees.
        keep_models: whether weights are kept.
        is_rehearsed: whether a run of models of parts was started before, with a number in flight that fits.
        noisy: the test inputs as instances see them, where each adds noise of its own; None: as `test` has them.
    """

    trainer: NetworkTrainer | LearnerTrainer
    config: TrainingRecipe
    data: Dataset
    test: npt.NDArray[Any]
    evidence: tuple[str, ...]
    members: Sequence[IndexArray] | None
    keep_models: bool
    is_rehearsed: bool = False
    noisy: NoisyInputs | None = None

    @property
    def nbytes(self) -> int:
        """How large its arrays are."""
        raw = 0 if self.noisy is None else self.noisy.x.nbytes
        return self.data.inputs.nbytes + self.data.labels.nbytes + self.test.nbytes + raw

    @property
    def is_function(self) -> bool:
        """Whether votes are a function of the data: nothing is drawn, neither in training nor for the inputs."""
        return self.config.is_deterministic and self.noisy is None

    def training_seeds(self, seeds: Seeds) -> Seeds:
        """What models are trained by: where they are functions of their data, a seed that everybody may know."""
        return Seeds.of(PUBLIC_SEED) if self.config.is_deterministic else seeds

    def streams(self, instances: Sequence[int]) -> Sequence[int]:
        """The instances whose seeds are needed to train these and to let them vote."""
        return instances if self.noisy is None else self.noisy.streams(instances)

    def votes(
        self, machine: Engine | LearnerMachine, weights: Any, seeds: Seeds, instances: Sequence[int]
    ) -> TallyArrays:
        """How trained instances vote on the test inputs.

        Args:
            machine: what trained them.
            weights: what it left, in the order of their numbers.
            seeds: of these instances at least.
            instances: their numbers.
        """
        return (
            machine.tally(weights, self.test)
            if self.noisy is None
            else self.noisy.votes(machine, weights, seeds, instances)
        )


@dataclass(frozen=True, eq=False)
class Task:
    """Everything about a run that is decided before its first instance.

    Attributes:
        order: what is trained, on what, and all that is said of it.
        job: the same for those who train.
        preparation: how inputs reach the network.
        training: which data that is.
    """

    order: Order
    job: Job
    preparation: Preparation
    training: TrainingData


def task_of(order: Order, *, keep_models: bool = False) -> Task:
    """What is to be trained by an order.

    Raises:
        ConfigError: an argument or the data is not what it should be.
    """
    defence, x, y = order.defence, order.training.x, order.training.y
    assert y is not None
    config: TrainingRecipe = defence.config.resolve(num_train=order.count, classes=order.facts.classes)
    classes = config.classes
    assert classes is not None
    encoder = defence.encoder
    preparation = _preparation(x, defence.model, config, encoder)
    config = replace(config, pixel_mean=preparation.mean, pixel_std=preparation.std)
    noise = noise_for(getattr(defence, "input_noise", None), order.training)
    seen = x if noise is None else trained_on(x, noise)
    inputs, test = preparation(seen, "training"), preparation(order.test.x, "test")
    learner: Learner | None = getattr(defence, "learner", None)
    if learner is None:
        model = pick_model(defence.model, inputs.shape[1:], classes, on_features=encoder is not None)
        trainer = NetworkTrainer(model, defence.model if isinstance(defence.model, str) else describe(model))
        _check_outputs(model, inputs, classes)
        check_repeatable(model)
    else:
        trainer = LearnerTrainer(learner)
        inputs, test = (inputs_for(learner, rows, order.training.declaration) for rows in (inputs, test))
    # Of an encoder that is trusted we know only what it does: its features count as data, too.
    found = order.training_data(inputs if isinstance(encoder, Frozen) else None)
    plan = config.plan
    if plan is not None and plan.noise and inputs.dtype != np.float32:
        raise ConfigError("Noise is for numbers, and these inputs are tokens; use features='hashed-words' for text.")
    if defence.wants_preferences and not (plan is not None and plan.has_preferences):
        raise ConfigError("preferences are for run-off elections, on plans of Parts; leave them out.")
    evidence = () if plan is None else _evidence_of(plan, len(test))
    if defence.wants_preferences:
        evidence = (*evidence, "preferences")
    check_evidence(evidence, len(test), classes, 0 if plan is None else plan.models)
    members = plan.members(_hashes(order)) if plan is not None and plan.is_deterministic else None
    # As plain arrays, which is no copy: a mapped one would be sent to other processes as bytes, and held by each.
    arrays: list[npt.NDArray[Any]] = [np.asarray(each) for each in (inputs, test)]
    units = order.training.units
    data = Dataset(arrays[0], y, None if units is None else units.starts)
    noisy = noisy_inputs(noise, order.test.x, preparation, plan, classes)
    keeps = keep_models and trainer.keeps_weights
    job = Job(trainer, config, data, arrays[1], evidence, members, keeps, noisy=noisy)
    return Task(order, job, preparation, found)


def _hashes(order: Order) -> Hashes:
    """What decides in which parts every example is: its content, or the name of its unit."""
    assert order.training.y is not None
    contents, units = content_hashes(order.training.x, order.training.y), order.training.units
    return contents if units is None else unit_hashes(units, contents)


def _evidence_of(plan: ViewPlan, inputs: int) -> tuple[str, ...]:
    """What is counted beside votes: what is always, and what else can be kept for so many inputs."""
    return plan.evidence + (plan.evidence_that_fits if plan.models * inputs <= _MOST_PREDICTIONS else ())


def check_evidence(evidence: Sequence[str], inputs: int, classes: int, models: int) -> None:
    """Require that what is counted beside votes can be kept for so many inputs."""
    if "rankings" in evidence and inputs * classes * models > _MOST_PREFERENCES:
        raise ConfigError(
            f"How {models} models rank {classes} classes for {inputs} inputs is too much to keep; "
            "use finite-aggregation instead, or fewer inputs."
        )
    if "preferences" in evidence and inputs * classes**2 > _MOST_PREFERENCES:
        raise ConfigError(
            f"Preferences between {classes} classes for {inputs} inputs are too many to keep; "
            "use a majority of the parts instead, or fewer inputs."
        )


def _distances(preparation: Preparation) -> str:
    """Between what distances are taken, where a certificate speaks of them."""
    if preparation.encoder is not None:
        return f"Distances are between features ({preparation.encoder.name}), not between inputs."
    mean, std = preparation.mean, preparation.std
    if mean is None or std is None:
        return "Distances are between inputs as they were given."
    shown = [", ".join(f"{number:g}" for number in numbers) for numbers in (mean, std)]
    return f"Distances are between images divided by 255, minus {shown[0]}, divided by {shown[1]}."


def _preparation(x: Array, model: Any, config: TrainingRecipe, chosen: Encoder | None) -> Preparation:
    shape, kind = x.shape[1:], kind_of(x)
    if chosen is None and kind == "uint8":
        bare = Preparation(shape, kind)
        mean, std = scaling(model, bare.channels) if isinstance(model, str) else ((0.0,), (1.0,))
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


def _check_outputs(model: Model, inputs: npt.NDArray[Any], classes: int) -> None:
    """Require one logit per class of a user's network."""
    module = copy.deepcopy(model).cpu() if isinstance(model, nn.Module) else model()
    sample = torch.from_numpy(inputs[[0, -1]])  # two: some layers that are refused later need more than one
    try:
        with torch.no_grad():
            shape = tuple(module(sample).shape[1:])
    except AttributeError as error:
        raise ConfigError("Expected the model to return one tensor of logits; return the logits alone.") from error
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise ConfigError(f"The model cannot take inputs of shape {tuple(sample.shape[1:])}: {error}") from error
    if shape != (classes,):
        raise ConfigError(f"Expected the model to give {classes} logits for each input (classes), got shape {shape}.")


def _recipe_of(task: Task, machine: Engine | LearnerMachine | Crew) -> dict[str, Any]:
    """How instances are trained, in plain JSON values, as they are read back."""
    encoder = task.preparation.encoder
    recipe = {
        **task.order.extra,
        "config": task.job.config.to_dict(),
        "model": task.job.trainer.name,
        "features": None if encoder is None else encoder.to_dict(),
        "path": machine.path,
        "precision": machine.precision,
        **task.job.trainer.recorded,
        **({} if task.job.noisy is None else {"input_noise": task.job.noisy.noise.to_dict()}),
    }
    return json.loads(json.dumps(recipe, default=lambda number: number.item()))  # numpy's numbers are not JSON's


def data_fingerprint(training: TrainingData, x: Array, recipe: dict[str, Any]) -> str:
    """What identifies training data, inputs and configuration; runs of different size may merge."""
    config = {name: value for name, value in recipe["config"].items() if name != "instances"}
    content = [training.to_dict(), fingerprint(x), config, recipe["model"], recipe["features"]]
    return f"sha256:{hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}"


def manifest_of(
    task: Task,
    machine: Engine | LearnerMachine | Crew,
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
    job, preparation, said = task.job, task.preparation, list(task.order.statements)
    versions = {**(versions or versions_here()), "arithmetic": machine.arithmetic}
    recipe = _recipe_of(task, machine)
    plan = job.config.plan
    if plan is not None and plan.noise:
        said.append(_distances(preparation))
    if job.config.is_deterministic:
        recipe["computer"] = dict(computer or computer_of(device, versions))
        if job.evidence:
            recipe["evidence"] = list(job.evidence)
        said += [_ONE_KIND.format(kind=_KINDS[preparation.kind], shape=preparation.shape), _ONE_COMPUTER]
        if device.type != "cpu":  # where models are trained alone, their number does not matter
            in_flight = None
            recipe["config"]["in_flight"] = machine.models_in_flight()
    if task.order.root_seed is not None:
        said.append(_SEED_GIVEN)
    instances = int(job.config.instances)
    at_once = int(min(instances, in_flight or machine.models_in_flight()))
    return Manifest(
        run_id="",  # the seed gives it
        recipe=recipe,
        data_fingerprint=data_fingerprint(task.training, task.order.test.x, recipe),
        training=task.training,
        inputs={
            "shape": list(preparation.shape),
            "kind": preparation.kind,
            "channel_axis": preparation.channel_axis,
            "tokens": preparation.tokens,
            "network_shape": list(job.data.inputs.shape[1:]),
        },
        assumptions=tuple(said),
        keep_models=job.keep_models,
        device=device.type,
        versions=versions,
        in_flight=at_once,
        in_flight_asked=None if in_flight is None else int(in_flight),
        ranges=plan_ranges(0, instances, at_once),
        size=task.order.size,
        unit=task.order.unit,
    )


def versions_here() -> dict[str, str]:
    """Of what computes in this process."""
    return {
        "mithridate": VERSION,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": importlib.metadata.version("torch"),
    }
