"""From a training set to votes without privacy: models that each see only some of the data, or noisy data."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mithridate import _validate
from mithridate._io.artifacts import PathLike
from mithridate.core.conditions import of_user
from mithridate.core.votes import Votes
from mithridate.data.arrays import check_inputs, fitted_preprocessing
from mithridate.data.partition import IndexArray, canonical_order, content_hashes, parts
from mithridate.errors import ConfigError
from mithridate.features import Encoder, Frozen
from mithridate.training.arithmetic import usual_settings
from mithridate.training.backends import Backend, Ray, check_backend
from mithridate.training.devices import computer_of
from mithridate.training.plain_config import NoisedFeatures, Parts, PlainConfig, PlainRecipe, Plan, SpreadParts
from mithridate.training.plain_engine import PlainEngine
from mithridate.training.randomness import PUBLIC_SEED
from mithridate.training.run import (
    Machine,
    Model,
    Progress,
    Task,
    check_runtime,
    data_fingerprint,
    enough_memory,
    import_cluster,
    is_out_of_memory,
    manifest_of,
    pick_device,
    task_of,
    train_missing,
    votes_in,
)
from mithridate.training.run_directory import Manifest
from mithridate.training.views import Sight

_log = logging.getLogger(__name__)

_MOST_PREFERENCES = 2**31
_ONE_COMPUTER = (
    "Each model is a function of its part of the data on the computer, with the libraries and with as many models at a "
    "time as trained it; the certificate assumes that the other data would have been trained on with the same."
)
_ONE_KIND = "Inputs stay {kind} of shape {shape}, whatever examples are inserted; the certificate assumes that."
_KINDS = {"uint8": "8-bit numbers", "float": "numbers", "integer": "numbers", "text": "texts"}


@usual_settings()
def train_plain(
    training_set: tuple[npt.ArrayLike, npt.ArrayLike],
    test_set: npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike],
    *,
    model: str | Model,
    plan: Plan,
    config: PlainConfig,
    run_dir: PathLike | None = None,
    device: str | torch.device = "auto",
    features: str | Encoder | None = None,
    in_flight: int | None = None,
    precision: str = "auto",
    root_seed: bytes | None = None,
    progress: Progress | None = None,
    source: Mapping[str, Any] | None = None,
    assumptions: Sequence[str] = (),
    preferences: bool = False,
    backend: Backend | None = None,
) -> Votes:
    """Train many models at once without privacy, and count how they vote on the test inputs.

    Guarantee: every instance is what `votes.mechanism` says, and all of them vote. For `Parts` and `SpreadParts` the
    vote of a model is, to the bit, a function of the examples that its part holds (as a multiset: neither their order
    nor any other example matters), of the recipe and of the number of the model; all its constants are public. For
    the other plans instances are independent draws from the root seed. With a `run_dir`, the same call after any
    interruption goes on where the last one ended, and its votes are those of an uninterrupted run bit for bit.

    Assumes: what `votes.assumptions` lists, which every certificate repeats. Everything in `config`, the plan, the
    model and the features were fixed before anyone looked at the training set.

    Args:
        training_set: inputs and labels; see `train`.
        test_set: inputs to vote on, or a pair with their true labels.
        model: the name of a network, a `torch.nn.Module` that does not mix examples, or a function that builds one.
        plan: what each instance sees: `Bootstrap`, `Parts`, `SpreadParts`, `FlippedLabels` or `NoisedFeatures`.
        config: how each instance learns.
        run_dir: where the run is kept; None keeps it in memory.
        device: `cpu`, `cuda`, `mps` (not for parts) or `auto`: an NVIDIA GPU if there is one, else the CPU.
        features: name of a fixed encoder, or one of `mithridate.features`, whose output is trained on instead. For
            parts, a `Frozen` one is given one row at a time.
        in_flight: how many models are trained at a time; by default as many as fit into memory.
        precision: of matrix products: `float32`, `tf32` (faster on NVIDIA GPUs) or `auto`, the faster one.
        root_seed: 32 bytes that all randomness comes from; by default the operating system's. Parts take none.
        progress: called with the number of model-steps that are done and their total, from any thread.
        source: how inputs and labels were read, in plain JSON values.
        assumptions: what was taken for granted when the data was read, a sentence each.
        preferences: for `Parts`, count for any two labels how many models score one above the other
            (`votes.evidence["preferences"]`), as run-off elections need it.
        backend: who trains; see `train`. Models of parts need nodes of one kind.

    Returns:
        The votes, with the mechanism that was run; also in `run_dir/votes.npz`. Those of `SpreadParts` carry the vote
        of every model in `votes.evidence["predictions"]`.

    Raises:
        ConfigError: an argument or the data is not what it should be, the run directory belongs to something else, or
            models cannot be functions of their parts on this device.
        ClusterError: workers of a cluster failed again and again; finished groups stay.
        ArtifactError: the run directory cannot be written to, or another process works in it; finished groups stay.
    """
    recipe = PlainRecipe.of(config, plan)
    _validate.sentences(assumptions=assumptions)
    check_runtime(in_flight, precision)
    backend = check_backend(backend)
    if plan.is_deterministic and isinstance(features, Frozen):
        # How a library rounds may depend on the rows beside one; the other encoders are exact row by row.
        features = replace(features, batch_size=1)
    task = task_of(training_set, test_set, model=model, config=recipe, features=features)
    looks = (*of_user(assumptions), *fitted_preprocessing(training_set[0], source))
    task = replace(task, source=source, assumptions=(*looks, *task.assumptions, *_distances(task, plan)))
    if plan.is_deterministic and root_seed is not None:
        raise ConfigError("Models of parts are functions of their data, and take no root_seed; leave it out.")
    seed = PUBLIC_SEED if plan.is_deterministic else root_seed
    evidence = _evidence(task, plan, preferences)
    members = _members(check_inputs(training_set[0], "training"), task) if plan.is_deterministic else None
    stored = _stored_in_flight(run_dir) if plan.is_deterministic else None
    if isinstance(backend, Ray):
        cluster = import_cluster()
        job = cluster.Job(task.model, task.config, task.data, task.test, evidence, members, is_rehearsed=bool(stored))
        with (
            cluster.hired(backend, job, device, precision, in_flight or stored) as crew,
            cluster.kept(run_dir) as folder,
        ):
            manifest = _manifest(task, crew, crew.device, in_flight, evidence, crew.versions, crew.computer)
            return votes_in(folder, manifest, seed, crew.train_missing, task, progress)
    work = _Work(task, pick_device(device), precision, evidence)
    build = partial(work.engine, members)
    if members is None:
        machine = build(None)
    else:
        machine = build(in_flight or stored) if stored else rehearsed(build, in_flight)
    manifest = _manifest(task, machine, work.device, in_flight, evidence)
    return votes_in(run_dir, manifest, seed, partial(train_missing, machine, work.device), task, progress)


@dataclass(frozen=True, eq=False)
class _Work:
    """A task with where and how it is computed."""

    task: Task
    device: torch.device
    precision: str
    evidence: tuple[str, ...]

    def engine(self, members: Sequence[IndexArray] | None, in_flight: int | None) -> PlainEngine:
        """What trains it."""
        task, recipe = self.task, self.task.config
        assert isinstance(recipe, PlainRecipe)
        with enough_memory(f"the training data and a {task.model_name} on {self.device}"):
            return PlainEngine(
                task.model,
                task.data,
                recipe,
                Sight(recipe, task.data, members),
                task.test,
                device=self.device,
                precision=self.precision,
                in_flight=in_flight,
                evidence=self.evidence,
            )


def _distances(task: Task, plan: Plan) -> tuple[str, ...]:
    """Between what distances are taken, where a certificate speaks of them."""
    if not isinstance(plan, NoisedFeatures):
        return ()
    if task.features is not None:
        return (f"Distances are between features ({task.features['name']}), not between inputs.",)
    mean, std = task.preparation.mean, task.preparation.std
    if mean is None or std is None:
        return ("Distances are between inputs as they were given.",)
    shown = [", ".join(f"{number:g}" for number in numbers) for numbers in (mean, std)]
    return (f"Distances are between images divided by 255, minus {shown[0]}, divided by {shown[1]}.",)


def _evidence(task: Task, plan: Plan, preferences: bool) -> tuple[str, ...]:
    """What is counted beside votes."""
    if isinstance(plan, NoisedFeatures) and task.data.inputs.dtype != np.float32:
        raise ConfigError("Noise is for numbers, and these inputs are tokens; use features='hashed-ngrams' for text.")
    if not preferences:
        return ("predictions",) if isinstance(plan, SpreadParts) else ()
    if not isinstance(plan, Parts):
        raise ConfigError("preferences are for run-off elections, on plans of Parts; leave them out.")
    assert task.config.classes is not None
    if len(task.test) * task.config.classes**2 > _MOST_PREFERENCES:
        raise ConfigError(
            f"Preferences between {task.config.classes} classes for {len(task.test)} inputs are too many to keep; "
            "use a majority of the parts instead, or fewer inputs."
        )
    return ("preferences",)


# --- models that are functions ----------------------------------------------------------------------------------------


def _members(x: npt.NDArray[Any], task: Task) -> list[IndexArray]:
    """For each model, the indices of the examples that it sees, in an order that is theirs alone."""
    hashes = content_hashes(x, task.data.labels)
    plan = task.config.plan if isinstance(task.config, PlainRecipe) else None
    if isinstance(plan, SpreadParts):
        buckets, place = parts(hashes, plan.instances), _inverse(canonical_order(hashes))
        joined = [
            np.concatenate([buckets[(model - offset) % plan.instances] for offset in plan.offsets])
            for model in range(plan.instances)
        ]
        return [indices[np.argsort(place[indices])] for indices in joined]
    assert isinstance(plan, Parts)
    return parts(hashes, plan.partitions)


def _inverse(order: IndexArray) -> IndexArray:
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return place


def _stored_in_flight(run_dir: PathLike | None) -> int | None:
    """How many models were in flight when a run was started, None if there is none."""
    if run_dir is None or not (path := Path(run_dir) / "run.json").exists():
        return None
    return Manifest.read(path).in_flight


def rehearsed(build: Callable[[int | None], PlainEngine], in_flight: int | None) -> PlainEngine:
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
        gc.collect()
        if in_flight == 0:
            raise ConfigError(
                "Not even one model at a time fits into memory; use a smaller model or batch_size, or device='cpu'."
            )
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        _log.warning("Out of memory; trying again with %d models in flight.", in_flight)


def _manifest(
    task: Task,
    machine: Machine,
    device: torch.device,
    in_flight: int | None,
    evidence: Sequence[str],
    versions: Mapping[str, str] | None = None,
    computer: Mapping[str, str] | None = None,
) -> Manifest:
    """What is to be run; models that are functions are bound to all that their bits depend on.

    Args:
        task: what is trained.
        machine: what trains it.
        device: where.
        in_flight: how many the user wants in flight.
        evidence: what is counted beside votes.
        versions: of the libraries that train it, None for those that are here.
        computer: what rounds numbers, None for this one.
    """
    assert isinstance(task.config, PlainRecipe)
    if not task.config.plan.is_deterministic:
        return manifest_of(task, machine, device, in_flight, versions=versions)
    on_cpu = device.type == "cpu"
    manifest = manifest_of(task, machine, device, in_flight if on_cpu else None, versions=versions)
    recipe = {**manifest.recipe, "computer": dict(computer or computer_of(device, manifest.versions))}
    if evidence:
        recipe["evidence"] = list(evidence)
    if not on_cpu:  # where models are trained alone, their number does not matter
        recipe["config"] = {**recipe["config"], "in_flight": machine.models_in_flight()}
    identity = data_fingerprint(task.data.fingerprint, task.test_fingerprint, recipe)
    preparation = task.preparation
    one_kind = _ONE_KIND.format(kind=_KINDS[preparation.kind], shape=preparation.shape)
    assumed = (*manifest.assumptions, one_kind, _ONE_COMPUTER)
    return replace(manifest, recipe=recipe, data_fingerprint=identity, assumptions=assumed)
