"""What computes, and how: kinds of devices and their memory, settings of torch, threads, optimisers, CUDA graphs."""

from __future__ import annotations

import gc
import hashlib
import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager

import torch
from torch import Tensor

from mithridate._computer import processor
from mithridate._torch import pool_of, single_threaded
from mithridate.errors import ConfigError
from mithridate.training.batch_source import Block, Entries
from mithridate.training.config import Learning
from mithridate.training.kernels import cpu


def computer_of(device: torch.device, versions: Mapping[str, str]) -> dict[str, str]:
    """What rounds numbers: the models of a run that goes on elsewhere would be other functions."""
    # Libraries for CPUs choose their code by maker and model, not only by what a processor can do.
    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else hashlib.sha256(processor().encode()).hexdigest()[:16]
    return {"name": name, **{library: versions[library] for library in ("torch", "numpy", "arithmetic")}}


def shown(device: torch.device, computer: Mapping[str, str]) -> str:
    """The name of a device and of what computes on it, for people."""
    names = [line.partition(":")[2].strip() for line in processor().splitlines() if line.startswith("model name")]
    name = computer["name"] if device.type == "cuda" or not names else names[0]
    return listed({**computer, "name": name})


def listed(computer: Mapping[str, str]) -> str:
    """The same of a computer by itself."""
    return f"{computer['name']} (torch {computer['torch']}, numpy {computer['numpy']}, {computer['arithmetic']})"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice, on any device."""
    words = ("out of memory", "not enough memory", "can't allocate memory", "STATUS_ALLOC_FAILED")
    return isinstance(error, MemoryError | torch.cuda.OutOfMemoryError) or any(word in str(error) for word in words)


@contextmanager
def enough_memory(what: str) -> Iterator[None]:
    """Say in words where memory does not suffice."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(f"There is not enough memory for {what}; use another device or fewer examples.") from error


# --- models on the cores of a CPU: a few to a core, each core by itself -----------------------------------------------

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
    cpu.keep_freed_memory()
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


# --- optimisers on the flat weights of many models: post-processing of the sums ---------------------------------------

_ADAM_EPSILON = 1e-8


class Optimiser:
    """The state of the optimiser of every model in flight; the weights are changed in place.

    Args:
        config: which optimiser, and its constants.
        weights: models x parameters, as they start.
    """

    def __init__(self, config: Learning, weights: Tensor) -> None:
        self._config = config
        self._step = 0
        self._weights = weights
        adam = config.optimizer == "adam"
        self._first = torch.zeros_like(weights) if adam or config.momentum else None
        self._second = torch.zeros_like(weights) if adam else None
        self._total = torch.zeros_like(weights) if config.average_iterates else None

    def update(self, gradients: Tensor) -> None:
        """One step along the mean gradients, noisy or not; they are overwritten."""
        config, weights = self._config, self._weights
        if config.weight_decay:
            gradients.add_(weights, alpha=config.weight_decay)
        rate = config.learning_rate_at(self._step)
        self._step += 1
        if self._second is not None:
            self._adam(gradients, rate)
        elif self._first is not None:
            self._first.mul_(config.momentum).add_(gradients)
            weights.sub_(self._first, alpha=rate)
        else:
            weights.sub_(gradients, alpha=rate)
        if self._total is not None:
            self._total.add_(weights)

    def _adam(self, gradients: Tensor, rate: float) -> None:
        assert self._first is not None
        assert self._second is not None
        one, two = self._config.betas
        self._first.mul_(one).add_(gradients, alpha=1.0 - one)
        self._second.mul_(two).addcmul_(gradients, gradients, value=1.0 - two)
        scale = (1.0 - two**self._step) ** 0.5
        spread = self._second.sqrt().div_(scale).add_(_ADAM_EPSILON)
        self._weights.addcdiv_(self._first, spread, value=-rate / (1.0 - one**self._step))

    def result(self) -> Tensor:
        """The weights that vote: the last ones, or the mean over all steps."""
        return self._weights if self._total is None else self._total / self._step


# --- steps without the host: captured once as a CUDA graph, and replayed with other batches ---------------------------

_log = logging.getLogger(__name__)

# Batches are padded to a multiple of this, so that few widths occur: each needs a graph, and kernels of its own.
_WIDTH = 16


class ReplayedStep:
    """Runs a step for every row of a block.

    The first step of a width runs as it is, which compiles kernels and readies libraries; the second is captured, and
    all others replay it. A wider batch than any before, however rare, gets a wider graph: no batch is ever cut.

    Args:
        step: the step, from entries (models x width x whatever they have) and sizes (models) on the device; it changes
            weights in place.
        models: number of models in flight.
        device: the GPU.
        entries: what every step of a block is given, at least as wide as its batches, on the device or on the host.
    """

    def __init__(
        self,
        step: Callable[..., None],
        models: int,
        device: torch.device,
        entries: Callable[[Block], Iterable[Entries]],
    ) -> None:
        self._step, self._entries = step, entries
        self._device = device
        self._models = models
        self._sizes = torch.zeros(models, dtype=torch.int32, device=device)
        self._given: dict[int, Entries] = {}
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._memory = torch.cuda.graph_pool_handle()  # one for all graphs: no two run at the same time
        self._can_be_captured = True

    def run(self, block: Block) -> None:
        """All steps of a block. Where no batch is wider than `block.least`, all have the same shapes."""
        sizes, widest = torch.from_numpy(block.sizes).to(self._device), block.sizes.max(axis=1).tolist()
        for own, largest, entries in zip(sizes, widest, self._entries(block), strict=True):
            width = -(-max(largest, block.least, 1) // _WIDTH) * _WIDTH
            self._sizes.copy_(own)
            self._run_one(width, [each[:, :width] for each in entries])

    def _run_one(self, width: int, entries: Sequence[Tensor]) -> None:
        is_new = width not in self._given
        if is_new:
            self._given[width] = tuple(self._room(at, width, each) for at, each in enumerate(entries))
        for place, each in zip(self._given[width], entries, strict=True):
            place[:, : each.shape[1]].copy_(each, non_blocking=True)
            if each.shape[1] < width:  # no step sees what a wider one left there
                place[:, each.shape[1] :].zero_()
        if width not in self._graphs and not is_new and self._can_be_captured:
            self._capture(width)
        if width in self._graphs:
            self._graphs[width].replay()
        else:
            self._step(*self._given[width], self._sizes)

    def _room(self, at: int, width: int, entry: Tensor) -> Tensor:
        """A place for batches of a width, in that of wider ones where there are any: no two are used at a time."""
        shape = (self._models, width, *entry.shape[2:])
        if (widest := max(self._given, default=0)) > width:
            return self._given[widest][at].flatten()[: math.prod(shape)].view(shape)
        return torch.zeros(shape, dtype=entry.dtype, device=self._device)

    def _capture(self, width: int) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with _without_garbage(), torch.cuda.graph(graph, pool=self._memory):
                self._step(*self._given[width], self._sizes)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # a user's module may do what no graph can hold; nothing was computed yet
            _log.info("Steps run one by one, since they cannot be captured: %s", error)
            self._can_be_captured = False
        else:
            self._graphs[width] = graph


@contextmanager
def _without_garbage() -> Iterator[None]:
    """No garbage is collected meanwhile, and there is none before.

    What is in a cycle may hold graphs of an earlier run, and these cannot be freed while a stream is being captured:
    CUDA says "operation not permitted when stream is capturing", and their memory is lost.
    """
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
