"""The processes behind the door: one that answers, or several that share a socket and are replaced when they die.

Who is asked to stop takes no more requests, answers those that it has, and ends.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

import uvicorn

from mithridate._computer import cores, one_thread_each
from mithridate.errors import ConfigError
from mithridate.serving import app as door
from mithridate.serving.limits import RequestLimits
from mithridate.serving.metrics import Metrics
from mithridate.serving.service import Claiming, Service

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

_log = logging.getLogger(__name__)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# How long requests that are there have to be answered once somebody asked for the end.
GRACE = 30
_BACKLOG = 1024
_LOOK = 0.5  # seconds between looks at workers and parents
# A worker that dies so soon will do so again.
_SOON, _MOST_DEATHS = 10.0, 3


@dataclass(frozen=True)
class Served:
    """What a server serves, in plain values that other processes can be given.

    Attributes:
        run_dir: the directory of the run.
        claiming: what is claimed.
        device: where models vote.
        limits: of requests.
        token_file: the file of the token; None: there is none.
    """

    run_dir: str
    claiming: Claiming
    device: str
    limits: RequestLimits
    token_file: str | None

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def bound(host: str, port: int) -> socket.socket:
    """A socket on which requests can wait from now on; of port 0, on any that is free.

    Raises:
        ConfigError: the address is not to be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError, OverflowError) as error:
        raise ConfigError(f"Cannot serve host {host!r}: {getattr(error, 'strerror', error)}. Check it.") from error
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(_BACKLOG)
        found.set_inheritable(True)
    except (OSError, OverflowError) as error:
        found.close()
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"Cannot serve {host} at port {port}: {reason}. Use another port, or stop who has it."
        ) from error
    return found


def run_here(service: Service, limits: RequestLimits, token: str | None, sock: socket.socket) -> int | None:
    """Answer in this process until a signal asks for the end; which one."""
    return _answer(door.app_of(service, limits, token, Metrics()), sock)


def run_workers(served: Served, workers: int, sock: socket.socket) -> int:
    """Let so many processes answer until a signal asks for the end; which one.

    Raises:
        ConfigError: workers cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="mithridate-serve-") as metrics, _shared_cores(workers), _noted() as asked:
        settings = {**served.to_dict(), "metrics": metrics}
        crew = [_Worker(settings, sock) for _ in range(workers)]
        try:
            while not asked:
                wait([worker.process.sentinel for worker in crew], timeout=_LOOK)
                for worker in crew:
                    if not asked:
                        worker.replace_if_dead()
        finally:
            _stop(crew)
        return asked[0]


@contextlib.contextmanager
def _shared_cores(workers: int) -> Iterator[None]:
    """Workers that start meanwhile have their share of the cores, where nobody said how many threads there may be."""
    if os.environ.get("OMP_NUM_THREADS"):
        yield
        return
    os.environ["OMP_NUM_THREADS"] = str(max(1, cores() // workers))
    try:
        yield
    finally:
        del os.environ["OMP_NUM_THREADS"]


# --- workers --------------------------------------------------------------------------------------------------------


class _Worker:
    """One place among the workers, with the process that fills it."""

    def __init__(self, settings: dict[str, Any], sock: socket.socket) -> None:
        self._settings, self._sock, self._deaths = settings, sock, 0
        self.process = self._started()

    def _started(self) -> SpawnProcess:
        self._since = time.monotonic()
        made = multiprocessing.get_context("spawn").Process(
            target=work, args=(self._settings, self._sock, os.getpid()), name="mithridate-serve"
        )
        made.start()
        return made

    def replace_if_dead(self) -> None:
        """Start another process where this one died, unless that is of no use."""
        if self.process.is_alive():
            return
        self.process.join()
        died_soon = time.monotonic() - self._since < _SOON
        self._deaths = self._deaths + 1 if died_soon else 0
        if self._deaths >= _MOST_DEATHS:
            raise ConfigError(
                f"Workers end as soon as they start (status {self.process.exitcode}); use fewer workers, or look "
                "at what they said."
            )
        _log.warning("mithridate: a worker ended (status %s); another one starts.", self.process.exitcode)
        self.process = self._started()


def _stop(crew: list[_Worker]) -> None:
    for worker in crew:
        worker.process.terminate()
    until = time.monotonic() + GRACE + 5
    for worker in crew:
        worker.process.join(max(0.0, until - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()


def work(settings: dict[str, Any], sock: socket.socket, parent: int) -> None:
    """What a worker does."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _answer(door.of_settings(settings), sock)
    sys.stdout.flush()


def _end_with(parent: int) -> None:
    """Who started this process may be killed; nobody would stop it then."""
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os.kill(os.getpid(), signal.SIGTERM)


# --- answering ------------------------------------------------------------------------------------------------------


class _Server(uvicorn.Server):
    """A server that leaves it to its caller what follows from the signal that stopped it."""

    asked: list[int]

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop in good order at the first signal, at once at the second."""
        with _noted(lambda number: self.handle_exit(number, None)) as self.asked:
            yield


def _answer(application: Any, sock: socket.socket) -> int | None:
    config = uvicorn.Config(
        application,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
    )
    server = _Server(config)
    # Set once, and not for every product of every question: where cores are busy, that takes longer than the product.
    with one_thread_each():
        server.run(sockets=[sock])
    return next(iter(server.asked), None)


@contextlib.contextmanager
def _noted(also: Any = None) -> Iterator[list[int]]:
    """The signals that ask for the end, as they come; what they did before, they do again afterwards."""
    asked: list[int] = []

    def note(number: int, frame: Any) -> None:
        asked.append(number)
        if also is not None:
            also(number)

    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
