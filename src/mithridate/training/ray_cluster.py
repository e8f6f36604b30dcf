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
import ipaddress
import logging
import os
import platform
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import time
import traceback
import uuid
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import ray
import torch
from ray import exceptions
from ray._common.utils import get_default_system_temp_dir
from ray._private import ray_constants

from mithridate import errors
from mithridate._io.files import PathLike
from mithridate._version import VERSION
from mithridate.errors import ClusterError, ConfigError, MithridateError
from mithridate.training.devices import computer_of, is_out_of_memory, listed, shown
from mithridate.training.order import Progress, Ray
from mithridate.training.randomness import Seeds
from mithridate.training.run import Meter, by_parameter, halve, rehearsed
from mithridate.training.run_directory import Run, RunDirectory, TallyArrays
from mithridate.training.task import Job, versions_here

_log = logging.getLogger(__name__)

# --- the connection: found or refused at once, and an error in words where it is lost ---------------------------------

# Seconds until an address that does not answer is given up.
_CONNECT_SECONDS = 10.0
_CONNECT_TRIES = 3
_CLIENT, _CLIENT_PORT = "ray://", 10001
# A message of Ray's client port, ClusterInfoRequest(type=PING), which it answers before it knows who asks.
_PING = b"\x08\x06"
_TOKEN = (
    "where it asks for a token, set RAY_AUTH_MODE=token here, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH unless the "
    "cluster's token is in ~/.ray/auth_token"
)
KEPT = "What is finished is kept, and the same command goes on from there."


@contextlib.contextmanager
def connected(backend: Ray) -> Iterator[None]:
    """A cluster to work on: the one that the program is connected to, the one of the address, or one of our own.

    Raises:
        ConfigError: nobody answers at the address.
    """
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if backend.address is not None:
        options["address"] = _answering(backend.address)
    # Spoken before the level of logging is set: how Ray's own authentication is switched on.
    logging.getLogger("ray").setLevel(logging.ERROR)
    with contextlib.ExitStack() as stack:
        try:
            if backend.address is None:
                options |= _of_our_own(backend) | {"_temp_dir": stack.enter_context(_private_folder())}
            with warnings.catch_warnings(), _handlers_kept(), _on_loopback(backend):
                warnings.simplefilter("ignore")
                stack.callback(ray.shutdown)
                _open(options)
        except MithridateError:
            raise
        except Exception as error:  # over its client port, Ray raises errors of many kinds, some of them plain ones
            what = f"use the Ray cluster at {backend.address}" if backend.address else "start a Ray cluster here"
            raise ConfigError(
                f"Cannot {what}: {_gist(error)}. Ray and Python must be of the same versions on both sides; {_TOKEN}."
            ) from error
        yield


# --- a cluster of our own, which nobody else can reach --------------------------------------------------------------


def _of_our_own(backend: Ray) -> dict[str, Any]:
    """What Ray is told to start."""
    options: dict[str, Any] = {"address": "local", "include_dashboard": False}
    if backend.workers is not None:  # not fewer, so that as many as were asked for run
        options["num_cpus"] = max(os.cpu_count() or 1, backend.workers * (backend.cpus_per_worker or 1))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    is_chosen = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if not is_chosen and os.environ.get("RAY_AUTH_MODE", "token").lower() == "token":
        make_token_private(Path.home() / ".ray" / "auth_token")
    return options


@contextlib.contextmanager
def _private_folder() -> Iterator[str]:
    """Where Ray puts its sockets, its logs and what does not fit into memory, so that other users cannot get there.

    The folders that Ray makes, or is given, it opens to all users.
    """
    made = tempfile.mkdtemp(prefix="ray-", dir=get_default_system_temp_dir())  # 0700
    try:
        yield os.path.join(made, "r")  # paths of sockets must be short
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def _on_loopback(backend: Ray) -> Iterator[None]:
    """A cluster that is started here listens on the loopback address only.

    Ray listens on all addresses of a machine unless the address of the node is the loopback one, and replaces that by
    another one wherever it takes a machine for part of a cluster.

    Raises:
        ConfigError: it listens elsewhere.
    """
    if backend.address is not None:
        yield
        return
    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
    found = ray.util.get_node_ip_address()
    if not ipaddress.ip_address(found).is_loopback:
        raise ConfigError(
            f"A Ray cluster that is started here would listen on {found}, where others may reach it; Ray "
            f"{ray.__version__} was not tried. Install Ray 2.60, or start a cluster yourself and give its address."
        )


def make_token_private(path: Path) -> None:
    """See to it that there is a token, and that nobody else can read it at any moment: Ray would write it for all.

    Raises:
        ConfigError: the file or its folder belongs to somebody else.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _keep_to_ourselves(path.parent, "folder")
    if not path.exists():
        new = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))  # as Ray makes them
        try:
            os.link(new, path)
        except FileExistsError:
            pass  # another process was faster
        except OSError:  # a file system without hard links
            os.replace(new, path)
        new.unlink(missing_ok=True)
    if _keep_to_ourselves(path, "file"):
        _log.warning(
            "Other users of this machine could read Ray's token in %s until now; where they matter, remove it, and the "
            "next cluster gets a new one.", path,
        )  # fmt: skip


def _keep_to_ourselves(path: Path, what: str) -> bool:
    """Take all rights from other users; whether they had any."""
    if os.name != "posix":
        return False
    found = path.stat()
    if found.st_uid != os.geteuid():
        raise ConfigError(
            f"The {what} {path} of Ray's token belongs to another user; remove it, or set RAY_AUTH_TOKEN_PATH."
        )
    is_open = bool(found.st_mode & 0o077)
    if is_open:
        path.chmod(found.st_mode & 0o700)
    return is_open


# --- any cluster ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself; whoever has a handler for it keeps that, and hears of what Ray made of it."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as ending:
        if ending.code == signal.SIGTERM and callable(before):
            before(signal.SIGTERM, None)
        raise
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _open(options: Mapping[str, Any]) -> None:
    """Connect. For each client the head node starts a process, which dies now and then as it starts; try again then."""
    for tries_left in reversed(range(_CONNECT_TRIES)):
        try:
            ray.init(**options)
            return
        except ConnectionAbortedError:
            if not tries_left:
                raise


def first_line(error: Exception) -> str:
    """What an error says first."""
    return (_words(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def _gist(error: Exception) -> str:
    """What an error says, on one line: all of it, or the end of a traceback of the other side."""
    lines = _words(error).splitlines() or [type(error).__name__]
    return " ".join((lines[-1] if any("Traceback" in line for line in lines) else " ".join(lines)).split()).rstrip(".")


def _words(error: Exception) -> str:
    details = getattr(error, "details", None)  # of an error of gRPC, whose own text is long
    return str(details() if callable(details) else error).strip()


def _answering(address: str) -> str:
    """The address, with its port; refused where nobody listens, which Ray would try for minutes."""
    if address == "auto":
        return address  # Ray looks for a cluster of this machine and says at once if there is none
    bare = address.removeprefix(_CLIENT)
    host, _, port = bare.rpartition(":") if ":" in bare else (bare, "", str(_CLIENT_PORT))
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS):
            pass
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"No Ray cluster answers at {address} ({error}). Start one with `ray start --head` and give its address "
            "(auto on the same machine, host:6379 on its nodes, ray://host:10001 from outside), or leave the address "
            "out to start one here."
        ) from error
    if not address.startswith(_CLIENT):
        return address
    _check_client_port(f"{host}:{port}")
    return f"{_CLIENT}{host}:{port}"


def _check_client_port(address: str) -> None:
    """Refuse whatever is not a client port of Ray that lets us in: Ray would try for half a minute and not say why."""
    try:
        import grpc
        from ray._private.grpc_utils import init_grpc_channel  # with the token and the certificates of Ray's own calls
    except ImportError as error:
        raise ConfigError(
            f"{_CLIENT}{address} needs gRPC, which Ray alone does not bring; install it here and on the head node: "
            "pip install 'mithridate[ray]'"
        ) from error
    try:
        with cast("grpc.Channel", init_grpc_channel(address)) as channel:
            channel.unary_unary("/ray.rpc.RayletDriver/ClusterInfo")(_PING, timeout=_CONNECT_SECONDS)
    except grpc.RpcError as error:
        code = cast("Any", error).code()
        if code == grpc.StatusCode.UNAUTHENTICATED:
            raise ConfigError(f"The Ray cluster at {_CLIENT}{address} does not let us in: {_TOKEN}.") from error
        raise ConfigError(
            f"What answers at {_CLIENT}{address} is not the client port of a Ray cluster ({code.name}). That is "
            f"{_CLIENT_PORT} of the head node, unless it was started with another one; 6379 is for machines of the "
            "cluster, without ray://."
        ) from error
    except (exceptions.RayError, RuntimeError, OSError) as error:  # no token, no certificates
        raise ConfigError(f"Cannot use the Ray cluster at {_CLIENT}{address}: {first_line(error)}.") from error


@contextlib.contextmanager
def asking() -> Iterator[None]:
    """Ask something of the cluster; around every call of Ray, for over its client port any of them may fail.

    Raises:
        ClusterError: the connection was lost. Ray's next call would start another cluster, on this machine.
    """
    try:
        if not ray.is_initialized():
            raise ConnectionError("there is none any more")
        yield
    except Exception as error:
        if isinstance(error, MithridateError | exceptions.RayError):
            raise
        is_of_network = isinstance(error, ConnectionError) or type(error).__module__.startswith("grpc")
        if not is_of_network and ray.is_initialized():
            raise
        raise ClusterError(f"The connection to the Ray cluster was lost ({first_line(error)}). {KEPT}") from error


# Groups for each worker, where there are instances enough: the last ones to finish keep the others waiting less.
_GROUPS_PER_WORKER = 4
# Seconds after which the cluster is looked at again: it may have grown.
_LOOK_AGAIN = 2.0
# Nodes that may be lost under one group; on machines that others may take away, that is nobody's mistake.
_MOST_NODES_LOST = 100
# Groups that fail again and again before the others are given up: by then it is not the groups.
_MOST_BROKEN = 3


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


@dataclass(frozen=True)
class Failed:
    """Why there is no result.

    Attributes:
        why: `memory`: it did not suffice for so many models; `final`: trying again cannot help; `error`: it might;
            `killed`: the node ran out of memory; `crashed`: the process died; `lost`: the node, or the result with it.
        words: what was wrong.
        kind: the class of an error of mithridate.
        trace: where it happened.
    """

    why: str
    words: str
    kind: str = "ClusterError"
    trace: str = ""


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
        return _failure(error)


def train_group(place: Sequence[Any], terms: Terms, group: range, seeds: Seeds) -> Trained | Failed:
    """A task: train one group of instances and count its votes."""
    global _bench
    try:
        bench = _bench if _bench is not None and _bench.terms == terms else _set_up(place, terms)
        weights = bench.machine.train(seeds, group, None)
        tally = bench.machine.tally(weights, bench.job.test)
        models = by_parameter(weights, bench.machine.shapes) if bench.job.keep_models else None
        return Trained(group, tally, models, shown(torch.device(terms.device), bench.computer))
    except Exception as error:
        bench = _bench = None  # the next group starts from a clean one
        failure = _failure(error)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return failure


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
    _check_versions(terms.versions)
    # Nobody writes into training data or test inputs, which the workers of a node share.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    torch.set_num_threads(terms.threads)
    return ray.get(place[0])


def _common_versions() -> dict[str, str]:
    """What must be the same on all sides: what is sent are objects of Python, made and read by these."""
    return {"mithridate": VERSION, "Python": ".".join(platform.python_version_tuple()[:2]), "Ray": ray.__version__}


def _check_versions(wanted: Mapping[str, str]) -> None:
    for name, here in _common_versions().items():
        if here != wanted[name]:
            raise ConfigError(
                f"The node {platform.node()} has {name} {here}, and this program {wanted[name]}; install the same "
                "version everywhere."
            )


def _failure(error: Exception) -> Failed:
    if is_out_of_memory(error) and not isinstance(error, MithridateError):
        return Failed("memory", str(error))
    words = f"{type(error).__name__}: {error}"
    if isinstance(error, MithridateError):
        return Failed("final", str(error), type(error).__name__)
    return Failed("error", words, trace=traceback.format_exc())


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


@dataclass
class _Sight:
    """How large the cluster is, looked at now and then."""

    needs: Mapping[str, float]
    nodes: int = 0
    slots: int = 0
    _seen: float | None = None

    def refresh(self) -> None:
        """Look again if it is time."""
        now = time.monotonic()
        if self._seen is not None and now - self._seen < _LOOK_AGAIN:
            return
        self._seen = now
        with asking():
            there, nodes = ray.cluster_resources(), ray.nodes()
        self.slots = min(int(there.get(name, 0.0) / need + 1e-6) for name, need in self.needs.items())
        self.nodes = sum(bool(node["Alive"]) for node in nodes)


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
        self._sight = _Sight({"CPU": cpus, **({"GPU": gpus} if gpus else {})})
        self._share = gpus or 1.0
        # A GPU is not released after each task, as Ray would by default: the engine stays. A task whose worker dies
        # fails, and is submitted again here, where its failures are counted.
        task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_calls=0, max_retries=0)
        self._survey, self._train = task(survey), task(train_group)
        self._place = [_placed(job)]
        self.device = torch.device(device)
        terms = Terms(uuid.uuid4().hex, device, precision, in_flight, cpus, _common_versions())
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
            self._explain_lack()
        workers = min(self._sight.slots, self._backend.workers or self._sight.slots) or 1
        most = max(1, self._instances // (_GROUPS_PER_WORKER * workers))
        for attempt in range(self._backend.retries + 1):
            with asking():
                task = self._survey.remote(self._place, terms, most, self._share)
            while not _done([task]):
                pass
            found = _result(task)
            if isinstance(found, Findings):
                return found
            if found.why in ("final", "memory", "error") or attempt == self._backend.retries:
                raise _as_error(found, "A worker cannot do this job")
        raise AssertionError

    def _explain_lack(self) -> None:
        needs = " and ".join(f"{number:g} {name}" for name, number in self._sight.needs.items())
        if self._backend.address is None:
            raise ConfigError(f"A worker needs {needs}, which this machine lacks; use device='cpu' or fewer of them.")
        _log.warning("No node of the cluster has %s for a worker; waiting for one that joins.", needs)

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
            trouble = self._round(run, groups, report)
            if trouble.too_many is not None:
                halve(run, trouble.too_many)

    def _round(self, run: RunDirectory, groups: Sequence[range], report: _Report) -> _Trouble:
        """Train groups until all that can be are done, or, if something is in the way, until those under way are."""
        seeds, trouble = run.seeds, _Trouble(self._backend.retries)
        waiting, under_way = deque(groups), dict[Any, range]()
        try:
            while under_way or (waiting and not trouble.stops):
                while waiting and not trouble.stops and len(under_way) < self._window():
                    group = waiting.popleft()
                    with asking():
                        under_way[self._train.remote(self._place, self._terms, group, seeds.only(group))] = group
                for task in _done(list(under_way)):
                    group, result = under_way.pop(task), _result(task)
                    if isinstance(result, Failed):
                        if trouble.is_tried_again(group, result):
                            waiting.appendleft(group)
                    else:
                        _save(run, group, result)
                        report.advance(result)
        finally:
            for task in under_way:
                with contextlib.suppress(Exception), asking():
                    ray.cancel(task, force=True)
        if trouble.cause is not None:
            raise trouble.cause
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


def _done(tasks: list[Any]) -> list[Any]:
    """Tasks that have ended, or none after a while."""
    with asking():
        return ray.wait(tasks, timeout=_LOOK_AGAIN)[0]


def _result(task: Any) -> Any:
    """What a task gave, or why it gave nothing."""
    try:
        with asking():
            return ray.get(task)
    except exceptions.OutOfMemoryError as error:
        return Failed("killed", first_line(error))
    except (exceptions.NodeDiedError, exceptions.ObjectLostError, exceptions.LocalRayletDiedError) as error:
        return Failed("lost", first_line(error))
    except exceptions.WorkerCrashedError as error:
        return Failed("crashed", first_line(error))
    except exceptions.RayTaskError as error:
        # Not even the function could be read there.
        return Failed("error", f"{first_line(error.cause or error)} (is mithridate installed on every node?)")
    except exceptions.RayError as error:
        return Failed("error", f"{type(error).__name__}: {first_line(error)}")


def _as_error(failed: Failed, what: str) -> MithridateError:
    """What a failure is for the caller."""
    if failed.why == "final":
        return getattr(errors, failed.kind, ClusterError)(failed.words)
    if failed.trace:
        _log.error("%s", failed.trace.rstrip())
    return ClusterError(f"{what}: {failed.words.rstrip('.')}. {KEPT}")


@dataclass
class _Trouble:
    """What failed, how often, and what follows from it.

    Attributes:
        retries: how often a group is tried again.
        too_many: the size of a group that was too large for memory.
        cause: why the run cannot be completed.
    """

    retries: int
    too_many: int | None = None
    cause: MithridateError | None = None
    _failures: Counter[tuple[range, str]] = field(default_factory=Counter)
    _broken: int = 0
    _is_final: bool = False

    @property
    def stops(self) -> bool:
        """Whether nothing more is to be submitted. A single group that fails does not keep the others from it."""
        return self.too_many is not None or self._is_final or self._broken >= _MOST_BROKEN

    def is_tried_again(self, group: range, failed: Failed) -> bool:
        """Take note of a failure; whether the group is to be trained again as it is."""
        name = f"The instances {group.start} to {group.stop - 1}"
        if failed.why == "memory":
            self.too_many = min(len(group), self.too_many or len(group))
            return False
        kind = "lost" if failed.why == "lost" else "failed"
        self._failures[group, kind] += 1
        number = self._failures[group, kind]
        allowed = _MOST_NODES_LOST if kind == "lost" else self.retries
        if failed.why != "final" and number <= allowed:
            _log.warning("%s are trained again, with the same draws: %s", name, failed.words)
            return True
        if failed.why == "killed" and len(group) > 1:
            self.too_many = min(len(group), self.too_many or len(group))
        else:
            self._give_up(_as_error(failed, f"{name} failed {number} times, the last time with"), failed.why == "final")
        return False

    def _give_up(self, cause: MithridateError, is_final: bool) -> None:
        """Leave a group out; the run ends with the first cause."""
        self.cause = self.cause or cause
        self._broken += 1
        self._is_final |= is_final
        if not self.stops:
            _log.warning("The run will end with an error, once the other groups are done. %s", cause)


class _Report:
    """Tells how far a run is, and whether devices of several kinds train it."""

    def __init__(self, job: Job, run: RunDirectory, progress: Progress | None, sight: _Sight) -> None:
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
