"""Where the instances of a run are trained: by this process, or by the workers of a Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mithridate import _validate
from mithridate.errors import ConfigError


@dataclass(frozen=True)
class Local:
    """This process, on its own device."""


@dataclass(frozen=True)
class Ray:
    """The workers of a Ray cluster (needs `pip install 'mithridate[ray]'`).

    Guarantee: the votes are those of this process on the same kind of device with the same number in flight, bit for
    bit, whatever workers or nodes are lost on the way. Workers receive the seeds of the instances that they train and
    no others; see `docs/scaling.md` for what else is sent, and to whom.

    Args:
        address: of a running cluster: `auto` for the one of this machine, `host:port` from a machine of the cluster, or
            `ray://host:port` from outside; None starts one on this machine, and stops it afterwards. Where the program
            is connected to a cluster already, that one is used.
        workers: how many groups of instances are trained at the same time, at most; None: as many as there is room for.
        gpus_per_worker: the share of a GPU that a worker takes, at most 1; None: a whole one where the cluster has
            GPUs, else none.
        cpus_per_worker: cores that a worker takes, and threads that it computes with; None: one.
        retries: how often a group of instances that failed, or whose worker died, is tried again.

    Raises:
        ConfigError: a value is not what it should be.

    >>> Ray(workers=0)
    Traceback (most recent call last):
    ...
    mithridate.errors.ConfigError: Expected workers to be a whole number of at least 1, got 0.
    """

    address: str | None = None
    workers: int | None = None
    gpus_per_worker: float | None = None
    cpus_per_worker: int | None = None
    retries: int = 3

    def __post_init__(self) -> None:
        if self.address is not None and (not isinstance(self.address, str) or not self.address.strip()):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Expected address to be auto, host:port or ray://host:port, got {self.address!r}.")
        numbers = {"workers": self.workers, "cpus_per_worker": self.cpus_per_worker}
        _validate.positive_integer(**{name: value for name, value in numbers.items() if value is not None})
        if self.gpus_per_worker is not None:
            _validate.number_in(0, 1, gpus_per_worker=self.gpus_per_worker)
        if self.retries != 0 or isinstance(self.retries, bool):
            _validate.positive_integer(retries=self.retries)


Backend = Local | Ray


def check_backend(backend: Any) -> Backend:
    """A back end that a caller gives; None is this process.

    Raises:
        ConfigError: it is something else.
    """
    if backend is None:
        return Local()
    if not isinstance(backend, Local | Ray):
        raise ConfigError(f"Expected backend to be mithridate.Ray(...) or None, got {backend!r}.")
    return backend
