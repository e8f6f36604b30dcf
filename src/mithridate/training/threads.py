"""Models on the cores of a CPU: a few to a core, each core by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

import torch
from torch import Tensor

from mithridate.training.kernels import cpu as plain_ops

OnStep = Callable[[int], None]


def on_threads(
    train: Callable[[slice, OnStep], Tensor],
    models: int,
    group: int,
    on_step: OnStep | None,
    *,
    one_at_a_time: bool,
) -> Tensor:
    """Train a few models to a core: small products stay in its cache, and no core waits for another.

    Args:
        train: trains the models of a slice, and reports model-steps to the function that it is given.
        models: number of models.
        group: how many a core takes at a time.
        on_step: told how many model-steps are done.
        one_at_a_time: for what only one thread may do: torch.func puts weights into the one module that it has.

    Returns:
        The weights of all models.
    """
    plain_ops.keep_freed_memory()
    stop = threading.Event()

    def advance(steps: int) -> None:
        if stop.is_set():
            raise _Stopped
        if on_step is not None:
            on_step(steps)

    with single_threaded() as threads:
        with pool_of(1 if one_at_a_time else threads) as pool:
            tasks = list[Future[Tensor]]()
            try:  # an interruption while they are handed out stops them, too
                for at in range(0, models, group):
                    tasks.append(pool.submit(train, slice(at, at + group), advance))
                wait(tasks, return_when=FIRST_EXCEPTION)
            finally:
                stop.set()
                for task in tasks:
                    task.cancel()
        for task in tasks:
            if not task.cancelled() and not isinstance(task.exception(), _Stopped):
                task.result()  # raises what made the others stop
        return torch.cat([task.result() for task in tasks])


class _Stopped(Exception):
    """Training was interrupted in another thread."""


@contextmanager
def single_threaded() -> Iterator[int]:
    """Torch on one thread, so that others may have the rest; gives the number of threads that it had."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def pool_of(threads: int) -> ThreadPoolExecutor:
    """So many threads, in each of which torch has one."""
    return ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
