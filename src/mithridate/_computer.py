"""Which computer this is, as far as rounding is concerned, and its cores for work that rounds nothing."""

from __future__ import annotations

import functools
import os
import platform
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")
Result = TypeVar("Result")


def processor() -> str:
    """The processor's model and what it can do, so that machines may share a cache folder; else the machine's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.node()}"
    kinds = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(kinds)}))


def cores() -> int:
    """How many threads may compute at once: what OMP_NUM_THREADS says, else the cores that this process may use."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    if said.isascii() and said.isdigit() and int(said) > 0:
        return int(said)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_cores(work: Callable[[Item], Result], pieces: Iterable[Item]) -> Iterator[Result]:
    """What `work` makes of every piece, in their order; numpy lets several threads compute at once.

    Matrix products have one thread each meanwhile: threads of two libraries would wait for each other.
    """
    threads, waiting = cores(), list(pieces)
    if threads == 1:
        yield from map(work, waiting)
        return
    with one_thread_each():
        if len(waiting) == 1:  # a pool takes longer than many a piece
            yield work(waiting[0])
            return
        with ThreadPoolExecutor(threads) as pool:
            yield from pool.map(work, waiting)


# The limit is one of the whole process: whoever comes first sets it, and whoever leaves last takes it back.
_lock = threading.Lock()
_limits: list[Any] = []


@contextmanager
def one_thread_each() -> Iterator[None]:
    """One thread for each matrix product, for all callers that are in here at the same time."""
    with _lock:
        _limits.append(_libraries().limit(limits=1, user_api="blas") if not _limits else None)
    try:
        yield
    finally:
        with _lock:
            if len(_limits) == 1:
                _limits[0].restore_original_limits()
                _limits.clear()
            else:
                # The first one holds what there was before.
                _limits.pop()


@functools.cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


def in_shares(count: int, least: int = 1) -> list[slice]:
    """So many items in a few shares for each core, each of at least so many: a core may be busy with something else."""
    size = max(least, -(-count // (4 * cores())))
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
