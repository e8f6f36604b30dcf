"""The same run on a Ray cluster: workers train groups of instances, this process writes their votes down.

Ray schedules; here is only what it cannot know. The driver places the job (model, recipe, data) into the object store
once, so that every node holds one copy of it. Then it submits a task for each group of instances, never many more than
there are workers for, with the seeds of these instances and no others. What comes back it writes into the run
directory, which is the same whoever trains; so any back end goes on with a run of any other. A group is in one task
at a time, and its votes are written once.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import platform
import tempfile
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
import torch
from ray import exceptions

from mithridate._io.files import PathLike
from mithridate.errors import ClusterError, ConfigError
from mithridate.training.devices import computer_of, is_out_of_memory, listed, shown
from mithridate.training.order import Progress, Ray
from mithridate.training.randomness import Seeds
from mithridate.training.ray_connection import KEPT, asking, connected, first_line
from mithridate.training.ray_tasks import (
    Failed,
    Sight,
    Trouble,
    as_error,
    carry_out,
    check_versions,
    common_versions,
    done,
    explain_lack,
    failure,
    result,
)
from mithridate.training.run import Meter, by_parameter, halve, rehearsed
from mithridate.training.run_directory import Run, RunDirectory, TallyArrays
from mithridate.training.task import Job, versions_here

_log = logging.getLogger(__name__)

# Groups for each worker, where there are instances enough: the last ones to finish keep the others waiting less.
_GROUPS_PER_WORKER = 4


# --- what is sent ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Terms:
    """What the driver decided about how a job is done; it goes with every task.

    Attributes:
        job: the name of the job.
        device: `cpu` or `cuda`.
        precision: of matrix products.
        in_flight: how many models are trained at a time, None if that is still to be found out.
        threads: how many a worker may use.
        versions: what driver and workers must have in common.
        computer: for models that are functions of their data, the kind of computer that they are bound to.
    """

    job: str
    device: str
    precision: str
    in_flight: int | None
    threads: int
    versions: Mapping[str, str]
    computer: Mapping[str, str] | None = None


@dataclass(frozen=True, eq=False)
class Findings:
    """What a worker says about itself and the job before the first group."""

    path: str
    precision: str
    arithmetic: str
    in_flight: int
    versions: Mapping[str, str]
    computer: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Trained:
    """What became of a group: its votes, its weights where they are kept, and who trained it."""

    group: range
    tally: TallyArrays
    models: Mapping[str, npt.NDArray[np.float32]] | None
    device: str


# --- in a worker ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Bench:
    """What a worker keeps from one group to the next: an engine that was built, with its compiled kernels."""

    terms: Terms
    job: Job
    machine: Any  # an engine, or what takes its place for learners
    computer: Mapping[str, str]


_bench: _Bench | None = None


def survey(place: Sequence[Any], terms: Terms, most: int, share: float) -> Findings | Failed:
    """A task: build an engine and say what it is.

    Args:
        place: where the job is.
        terms: what is decided already.
        most: how many models in flight at most, where no number is asked for.
        share: of a GPU.
    """
    try:
        job = _received(place, terms)
        build = partial(job.trainer.machine, job, torch.device(terms.device), terms.precision)
        machine, in_flight = build(terms.in_flight), terms.in_flight
        if in_flight is None:
            in_flight = min(most, max(1, int(share * machine.models_in_flight())))
        if job.config.is_deterministic and not job.is_rehearsed:
            del machine
            machine = rehearsed(build, in_flight)
            in_flight = machine.models_in_flight()
        versions = {**versions_here(), "arithmetic": machine.arithmetic}
        computer = computer_of(torch.device(terms.device), versions)
        return Findings(machine.path, machine.precision, machine.arithmetic, in_flight, versions, computer)
    except Exception as error:
        return failure(error, lacks_memory=is_out_of_memory(error))


def train_group(place: Sequence[Any], terms: Terms, group: range, seeds: Seeds) -> Trained | Failed:
    """A task: train one group of instances and count its votes."""
    global _bench
    try:
        bench = _bench if _bench is not None and _bench.terms == terms else _set_up(place, terms)
        weights = bench.machine.train(bench.job.training_seeds(seeds), group, None)
        tally = bench.job.votes(bench.machine, weights, seeds, group)
        models = by_parameter(weights, bench.machine.shapes) if bench.job.keep_models else None
        return Trained(group, tally, models, shown(torch.device(terms.device), bench.computer))
    except Exception as error:
        bench = _bench = None  # the next group starts from a clean one
        failed = failure(error, lacks_memory=is_out_of_memory(error))
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return failed


def _set_up(place: Sequence[Any], terms: Terms) -> _Bench:
    """Build the engine of a job, in place of that of the job before."""
    global _bench
    _bench = None
    job = _received(place, terms)
    machine = job.trainer.machine(job, torch.device(terms.device), terms.precision, terms.in_flight)
    computer = computer_of(torch.device(terms.device), {**versions_here(), "arithmetic": machine.arithmetic})
    if terms.computer is not None and terms.computer != computer:
        raise ConfigError(
            "Models of parts are functions of their data on one kind of computer, and this run was started on "
            f"{listed(terms.computer)}, where the node {platform.node()} has {listed(computer)}. Use a cluster whose "
            "nodes are all of one kind."
        )
    _bench = _Bench(terms, job, machine, computer)
    return _bench


def _received(place: Sequence[Any], terms: Terms) -> Job:
    """The job, whose arrays stay in the object store of the node; torch on as many threads as the worker was given."""
    check_versions(terms.versions)
    # Nobody writes into training data or test inputs, which the workers of a node share.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    torch.set_num_threads(terms.threads)
    return ray.get(place[0])


# --- the cluster ----------------------------------------------------------------------------------------------------


def _placed(job: Job) -> Any:
    """Where the cluster keeps a job.

    Raises:
        ClusterError: it has no room.
        ConfigError: it cannot read it, or it is too large to be sent.
    """
    try:
        with asking():
            return ray.put(job)
    except (ImportError, AttributeError) as error:
        # Over the client port, the head node reads what it is sent.
        raise ConfigError(
            f"The head node of the cluster cannot read the model and the recipe ({first_line(error)}). Install "
            "mithridate, and your own modules that the model is made of, in the same versions on every node."
        ) from error
    except exceptions.RayError as error:
        raise ClusterError(f"The cluster cannot keep the training data: {first_line(error)}. {KEPT}") from error
    except Exception as error:
        if not type(error).__module__.startswith("google.protobuf"):  # which over the client port writes the message
            raise
        raise ConfigError(
            f"Training data and test inputs of {job.nbytes / 2**30:.1f} GiB are more than can be sent through Ray's "
            "client port, 2 GiB. Run the same command on a machine of the cluster, with --address auto."
        ) from error


@contextlib.contextmanager
def kept(run_dir: PathLike | None) -> Iterator[PathLike]:
    """The run directory, or one that is forgotten: results come in any order, and are added up in theirs."""
    if run_dir is not None:
        yield run_dir
        return
    with tempfile.TemporaryDirectory(prefix="mithridate-") as folder:
        yield folder


@contextlib.contextmanager
def hired(backend: Ray, job: Job, device: str | torch.device, precision: str, in_flight: int | None) -> Iterator[Crew]:
    """Workers of a cluster that know a job.

    Args:
        backend: which cluster, and how many of its workers.
        job: what they will do.
        device: where they compute: `cpu`, `cuda`, or `auto`: on GPUs if the cluster has any.
        precision: of matrix products.
        in_flight: how many models each trains at a time, None to choose.

    Raises:
        ConfigError: there is no such cluster or device, or the job cannot be done there.
    """
    with connected(backend):
        yield Crew(backend, job, _device_type(backend, device), precision, in_flight)


def _device_type(backend: Ray, device: str | torch.device) -> str:
    name = str(device)
    if name == "auto":
        with asking():
            wants_gpu = backend.gpus_per_worker != 0 and ray.cluster_resources().get("GPU", 0) > 0
        return "cuda" if wants_gpu or backend.gpus_per_worker else "cpu"
    if name not in ("cpu", "cuda"):
        raise ConfigError(f"Expected device to be cpu, cuda or auto on a Ray cluster, got {name!r}.")
    return name


class Crew:
    """Workers that know a job: what they are, and how they fill a run.

    Guarantee: every group that is missing is trained by one task at a time and written once, whatever workers and
    nodes are lost. A task holds the seeds of its own group alone.

    Attributes:
        path: which way the engine takes, `fast` or `general`.
        precision: of matrix products.
        arithmetic: what computes.
        versions: of the libraries of the workers.
        computer: what rounds their numbers.
        device: the type of their device.

    Raises:
        ConfigError: the job cannot be done by these workers.
    """

    def __init__(self, backend: Ray, job: Job, device: str, precision: str, in_flight: int | None) -> None:
        self._backend, self._instances = backend, int(job.config.instances)
        cpus = backend.cpus_per_worker or 1
        gpus = (backend.gpus_per_worker or 1.0) if device == "cuda" else 0.0
        self._sight = Sight({"CPU": cpus, **({"GPU": gpus} if gpus else {})})
        self._share = gpus or 1.0
        # A GPU is not released after each task, as Ray would by default: the engine stays. A task whose worker dies
        # fails, and is submitted again here, where its failures are counted.
        task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_calls=0, max_retries=0)
        self._survey, self._train = task(survey), task(train_group)
        self._place = [_placed(job)]
        self.device = torch.device(device)
        terms = Terms(uuid.uuid4().hex, device, precision, in_flight, cpus, common_versions())
        found = self._findings(terms)
        self.path, self.precision, self.arithmetic = found.path, found.precision, found.arithmetic
        self.versions, self.computer = found.versions, found.computer
        self._in_flight = found.in_flight
        self._terms = replace(
            terms,
            precision=found.precision,
            in_flight=found.in_flight if job.config.is_deterministic else None,
            computer=found.computer if job.config.is_deterministic else None,
        )

    def models_in_flight(self) -> int:
        """How many models a worker trains at a time: as many as fit, and few enough for every worker to have some."""
        return self._in_flight

    def _findings(self, terms: Terms) -> Findings:
        """What a worker says of itself; any worker, which a mixed cluster will make up for."""
        self._sight.refresh()
        if self._sight.slots == 0:
            explain_lack(self._sight, self._backend)
        workers = min(self._sight.slots, self._backend.workers or self._sight.slots) or 1
        most = max(1, self._instances // (_GROUPS_PER_WORKER * workers))
        for attempt in range(self._backend.retries + 1):
            with asking():
                task = self._survey.remote(self._place, terms, most, self._share)
            while not done([task]):
                pass
            found = result(task)
            if isinstance(found, Findings):
                return found
            if found.why in ("final", "memory", "error") or attempt == self._backend.retries:
                raise as_error(found, "A worker cannot do this job")
        raise AssertionError

    # --- training -------------------------------------------------------------------------------------------------

    def train_missing(self, run: Run, job: Job, progress: Progress | None) -> None:
        """Train all groups that are missing; where memory does not suffice, smaller groups with the same draws.

        Raises:
            ClusterError: a group failed again and again; all others are saved, or if several fail, those under way.
            ConfigError: the job cannot be done.
        """
        assert isinstance(run, RunDirectory)
        report = _Report(job, run, progress, self._sight)
        while groups := run.missing():
            report.start(groups)
            trouble = self._round(run, job, groups, report)
            if trouble.too_many is not None:
                halve(run, trouble.too_many)

    def _round(self, run: RunDirectory, job: Job, groups: Sequence[range], report: _Report) -> Trouble:
        """Train groups until all that can be are done, or, if something is in the way, until those under way are."""
        seeds, trouble = run.seeds, Trouble(self._backend.retries)

        def submit(group: range) -> Any:
            return self._train.remote(self._place, self._terms, group, seeds.only(job.streams(group)))

        with contextlib.closing(carry_out(groups, submit, trouble, self._window)) as results:
            for group, trained in results:
                _save(run, group, trained)
                report.advance(trained)
        return trouble

    def _window(self) -> int:
        """How many tasks are submitted at a time: some more than run, so that no worker waits and a cluster grows."""
        self._sight.refresh()
        return min(2 * self._sight.slots + 1, self._backend.workers or 2**31)


def _save(run: RunDirectory, group: range, result: Trained) -> None:
    """Write down what a worker sent, which must be of the group that it was asked for."""
    if result.group != group:
        raise ClusterError(f"A worker answered with {result.group} when asked for {group}. {KEPT}")
    if result.models is not None:
        run.save_models(group, result.models, result.device)
    run.save_tally(group, result.tally, result.device)


class _Report:
    """Tells how far a run is, and whether devices of several kinds train it."""

    def __init__(self, job: Job, run: RunDirectory, progress: Progress | None, sight: Sight) -> None:
        self._instances, self._steps = sum(map(len, run.groups)), job.config.steps
        self._meter = Meter(self._instances, self._steps, progress)
        self._run, self._sight = run, sight
        self._done = 0
        self._kinds = set(run.devices)

    def start(self, missing: Sequence[range]) -> None:
        """So much is missing."""
        self._done = len(self._run.groups) - len(missing)
        self._say()
        self._meter.start(self._instances - sum(map(len, missing)))

    def advance(self, result: Trained) -> None:
        """One group more is done."""
        if self._kinds and result.device not in self._kinds:
            _log.warning(
                "Devices of several kinds train this run, %s now, too: the votes are as valid, but equal to those of "
                "one kind to rounding only.", result.device,
            )  # fmt: skip
        self._kinds.add(result.device)
        self._done += 1
        self._say()
        self._meter.advance(self._steps * len(result.group))

    def _say(self) -> None:
        nodes = f"{self._sight.nodes} node{'s' * (self._sight.nodes != 1)}"
        self._meter.say(f"{self._done:,} of {len(self._run.groups):,} shards, {nodes}")
