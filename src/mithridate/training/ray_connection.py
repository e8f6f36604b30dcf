"""A Ray cluster to work on: found or refused at once, and an error in words where it is lost."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import ray
from ray import exceptions
from ray._common.utils import get_default_system_temp_dir
from ray._private import ray_constants

from mithridate.errors import ClusterError, ConfigError, MithridateError
from mithridate.training.order import Ray

_log = logging.getLogger(__name__)

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
