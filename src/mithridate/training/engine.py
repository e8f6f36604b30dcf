"""One group of instances through all its steps, and how they vote: the loop of DP-SGD.

The engine is told which instances to train, and knows neither shards nor files. What it draws for an instance depends
on the seed of that instance alone.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from mithridate import _validate
from mithridate.data import Dataset
from mithridate.errors import ConfigError
from mithridate.training import suitability
from mithridate.training.arithmetic import products
from mithridate.training.clipping import MOST_EXAMPLES, Clipping
from mithridate.training.config import PRECISIONS, TrainConfig
from mithridate.training.general import GeneralNetwork
from mithridate.training.graphs import ReplayedStep
from mithridate.training.initialisation import initial_weights
from mithridate.training.kernels import cpu as plain_ops
from mithridate.training.kernels import native
from mithridate.training.network import FastNetwork, Model, NotConvertible, kernels_for
from mithridate.training.optimisers import Optimiser
from mithridate.training.randomness import Seeds
from mithridate.training.sampling import Batches, Block, blocks
from mithridate.training.tally import Counter, Tally

OnStep = Callable[[int], None]

# Models that one core trains at a time: few enough for its cache, enough to share the cost of every call.
GROUP = 8
# Memory in flight on a GPU, at most: more does not make it faster, and more work is lost when a run is killed.
_BYTES_IN_FLIGHT = 3 * 2**33
# Threads that draw batches ahead of a GPU.
_SAMPLERS = min(8, os.cpu_count() or 1)
# A limit of CUDA on the number of blocks along one axis is 2^16 - 1.
_MOST_IN_FLIGHT = 2**14


class Network(Protocol):
    """What turns batches into clipped gradient sums: `FastNetwork` or `GeneralNetwork`."""

    size: int
    shapes: dict[str, torch.Size]
    bytes_per_model: int
    bytes_per_example: int

    def clipped_sums(
        self, weights: Tensor, inputs: Tensor, labels: Tensor, present: Tensor, max_grad_norm: float
    ) -> Tensor:
        """Models x parameters; see `FastNetwork`."""
        ...

    def logits(self, weights: Tensor, inputs: Tensor) -> Tensor:
        """Models x inputs x classes."""
        ...


class Engine:
    """Trains instances of one model on one data set, and counts their votes.

    Guarantee: each instance is one independent draw of `config.mechanism` on `data`: true Poisson batches, every
    example's gradient clipped (see `clipping`), the sums plus Gaussian noise of standard deviation `noise_multiplier *
    max_grad_norm` in every coordinate, divided by the constant `config.divisor`. On one device it is a function of
    the instance's seed, up to rounding; GPUs draw their noise from other streams than CPUs.

    Args:
        model: a module whose layers know `reset_parameters`, or a function that builds a new one.
        data: the training set.
        config: the recipe, with its public constants resolved.
        device: where to compute.
        precision: `float32` or `tf32` for the operands of matrix products, or `auto`: `tf32` where a GPU has it.

    Raises:
        ConfigError: the model mixes examples, or cannot be trained privately for another reason.
    """

    def __init__(
        self, model: Model, data: Dataset, config: TrainConfig, *, device: torch.device, precision: str = "auto"
    ) -> None:
        self._model = model
        self._config = config
        self._device = device
        module = model if isinstance(model, nn.Module) else model()
        suitability.check(module)
        self.network, self.path = network_for(module, data)
        self.precision = precision_for(precision, device, self.path)
        if isinstance(self.network, FastNetwork):
            self.network.clipping = Clipping(self.precision)
        self.shapes = self.network.shapes
        inputs, labels = (torch.from_numpy(array).to(device) for array in (data.inputs, data.labels))
        _check_batches(config, len(labels))
        self._batches = _Examples(self.network, inputs, labels, config.max_grad_norm)
        self._resident: _Resident | None = None

    @property
    def arithmetic(self) -> str:
        """What computes: results of different ones differ by rounding."""
        return arithmetic_of(self.network, self._device)

    def models_in_flight(self) -> int:
        """How many models to train at a time, from the memory that is free."""
        config = self._config
        if self._device.type == "cpu":
            return on_all_cores(config.instances)
        batch = config.sample_rate * len(self._batches.labels) * (1.0 if config.keep is None else config.keep)
        widest = batch + 5.0 * math.sqrt(batch) + 8.0
        each = self.network.bytes_per_model + widest * self.network.bytes_per_example
        return that_fit(self.network, each, config.instances, free_memory(self._device))

    def train(self, seeds: Seeds, instances: range, on_step: OnStep | None = None) -> Tensor:
        """The weights that vote, models x parameters, on the device.

        Args:
            seeds: where all randomness comes from; of these instances at least.
            instances: the numbers of the instances.
            on_step: called now and then with the number of model-steps done since its last call.

        Raises:
            torch.OutOfMemoryError: train fewer at a time; the draws will be the same.
        """
        start = initial_weights(self._model, seeds, instances)
        with products(self.precision, self._device):
            if self._device.type == "cpu":
                return self._train_on_threads(seeds, instances, start, on_step)
            if self._device.type == "cuda" and (kernels := kernels_for(self._device)) is not None:
                return self._train_by_graph(seeds, instances, start, kernels, on_step)
            return self._train_together(seeds, instances, start, on_step)

    def _train_on_threads(self, seeds: Seeds, instances: range, start: Tensor, on_step: OnStep | None) -> Tensor:
        # A function of the number of instances alone: how many are taken together changes the rounding.
        group = min(GROUP, -(-len(instances) // 2))

        def train(part: slice, advance: OnStep) -> Tensor:
            return self._train_together(seeds, instances[part], start[part], advance)

        return on_threads(train, len(instances), group, on_step, one_at_a_time=self.path != "fast")

    def _train_together(self, seeds: Seeds, instances: Sequence[int], start: Tensor, on_step: OnStep | None) -> Tensor:
        """The plain loop: what every other one must agree with."""
        config = self._config
        weights = start.to(self._device, copy=True)  # its own memory: rows of one matrix share a version counter
        optimiser = Optimiser(config, weights)
        streams = [seeds.generator(instance, "noise") for instance in instances]
        noise = config.noise_multiplier * config.max_grad_norm
        assert config.divisor is not None
        for block in self._blocks(seeds, instances):
            for indices, sizes in block:
                chosen = torch.from_numpy(indices).to(self._device)
                sums = self._batches.clipped_sums(weights, chosen, torch.from_numpy(sizes).to(self._device))
                # Rounded after the noise: whatever is made of the noisy sum cannot tell more than the sum itself.
                noisy = sums.add_(_normals(streams, sums), alpha=noise).to(weights)
                optimiser.update(noisy.div_(config.divisor))
                if on_step is not None:
                    on_step(len(instances))
        return optimiser.result()

    def _train_by_graph(
        self, seeds: Seeds, instances: Sequence[int], start: Tensor, kernels: ModuleType, on_step: OnStep | None
    ) -> Tensor:
        """The same loop without the host: batches are drawn ahead, and every step replays one captured graph."""
        keys = [seeds.key(instance, "noise") for instance in instances]
        try:
            resident = self._resident_for(start, keys, kernels)
            with ThreadPoolExecutor(1) as ahead, ThreadPoolExecutor(_SAMPLERS) as samplers:
                upcoming = self._blocks(seeds, instances, samplers.map)
                waiting = ahead.submit(next, upcoming, None)
                while (block := waiting.result()) is not None:
                    waiting = ahead.submit(next, upcoming, None)
                    resident.step.run(block)
                    if on_step is not None:
                        torch.cuda.synchronize(self._device)
                        on_step(len(instances) * len(block))
            return resident.optimiser.result().clone()
        except torch.OutOfMemoryError:
            self._resident = None
            raise

    def _resident_for(self, start: Tensor, keys: Sequence[int], kernels: ModuleType) -> _Resident:
        """Weights, optimiser and graphs for so many models: those of the group before, if it had as many."""
        resident = self._resident
        if resident is not None and len(resident.weights) == len(start):
            resident.weights.copy_(start)
            resident.optimiser.restart(keys)
            return resident
        self._resident = resident = None  # its memory first
        weights = start.to(self._device)
        optimiser = kernels.NoisyOptimiser(self._config, weights, keys)
        batches = self._batches

        def step(chosen: Tensor, sizes: Tensor) -> None:  # without the engine: graphs are freed with it, at once
            optimiser.update(batches.clipped_sums(weights, chosen, sizes))

        self._resident = _Resident(weights, optimiser, ReplayedStep(step, len(start), self._device))
        return self._resident

    def _blocks(
        self, seeds: Seeds, instances: Sequence[int], mapped: Callable[..., Iterable[Batches]] = map
    ) -> Iterator[Block]:
        config = self._config
        streams = [seeds.generator(instance, "batches") for instance in instances]
        return blocks(streams, len(self._batches.labels), config.sample_rate, config.steps, config.keep, mapped)

    def tally(self, weights: Tensor, inputs: npt.NDArray[Any]) -> Tally:
        """How the models vote on some inputs.

        A model whose scores for an input are not finite votes for label 0, with score 1: it diverged, and still votes.
        """
        assert self._config.classes is not None
        counter = Counter(self.network, self._config.classes, self._config.score_bins, self._device)
        with products(self.precision, self._device):
            if self._device.type != "cpu" or self.path != "fast":
                return self._count(counter, weights, inputs)
            return counted_on_threads(counter, weights, inputs)

    def _count(self, counter: Counter, weights: Tensor, inputs: npt.NDArray[Any]) -> Tally:
        """The votes; what stays for the next group gives way if there is no room."""
        try:
            return counter.count(weights, inputs)
        except torch.OutOfMemoryError:
            if self._resident is None:
                raise
        self._resident = None
        torch.cuda.empty_cache()
        return counter.count(weights, inputs)


@dataclass(frozen=True, eq=False)
class _Examples:
    """The training set on the device, and what makes clipped sums of its batches."""

    network: Network
    inputs: Tensor
    labels: Tensor
    max_grad_norm: float

    def clipped_sums(self, weights: Tensor, chosen: Tensor, sizes: Tensor) -> Tensor:
        """Of the batches whose indices are `chosen`, models x width, as far as `sizes`, one number a model."""
        present = torch.arange(chosen.shape[1], device=chosen.device) < sizes.unsqueeze(1)
        inputs = self.inputs.index_select(0, chosen.flatten()).unflatten(0, chosen.shape)
        labels = self.labels.index_select(0, chosen.flatten()).unflatten(0, chosen.shape)
        return self.network.clipped_sums(weights, inputs, labels, present, self.max_grad_norm)


@dataclass(frozen=True)
class _Resident:
    """What stays on a GPU from one group of models to the next, so that its graphs need not be captured again."""

    weights: Tensor
    optimiser: Any
    step: ReplayedStep


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
        with ThreadPoolExecutor(1 if one_at_a_time else threads, initializer=_one_thread) as pool:
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


def counted_on_threads(counter: Counter, weights: Tensor, inputs: npt.NDArray[Any]) -> Tally:
    """The votes of models on a CPU, every core with inputs of its own."""
    with single_threaded() as threads, ThreadPoolExecutor(threads, initializer=_one_thread) as pool:
        return counter.count(weights, inputs, pool.map)


def on_all_cores(instances: int) -> int:
    """How many models to train at a time on a CPU: whole groups for every core, some fifty times until all are done."""
    whole = GROUP * torch.get_num_threads()
    return min(instances, whole * -(-instances // (50 * whole)))


def that_fit(network: Network, bytes_each: float, instances: int, memory: float) -> int:
    """How many of some models to train at a time on a GPU of so much memory."""
    if isinstance(network, FastNetwork) and network.is_wide:
        return 1
    return max(1, min(instances, int(min(memory * 0.6, _BYTES_IN_FLIGHT) / bytes_each), _MOST_IN_FLIGHT))


@contextmanager
def single_threaded() -> Iterator[int]:
    """Torch on one thread, so that others may have the rest; gives the number of threads that it had."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def _one_thread() -> None:
    torch.set_num_threads(1)


class _Stopped(Exception):
    """Training was interrupted in another thread."""


def precision_for(asked: str, device: torch.device, path: str) -> str:
    """The precision of matrix products: as asked, or the fastest whose clipping is accounted for."""
    _validate.one_of(PRECISIONS, precision=asked)
    if device.type != "cuda" or path == "general":
        if asked == "tf32":
            raise ConfigError("precision='tf32' needs an NVIDIA GPU and a model of known layers; leave it out.")
        return "float32"
    return "tf32" if asked == "auto" else asked


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a GPU."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return 2**32


def arithmetic_of(network: Network, device: torch.device) -> str:
    """What computes: `native` or `torch` on a CPU, `triton` or `torch` elsewhere."""
    if device.type == "cpu":
        has_stem = isinstance(network, FastNetwork) and network.has_stem
        return "native" if has_stem and native.library() is not None else "torch"
    return "torch" if kernels_for(device) is None else "triton"


def _check_batches(config: TrainConfig, examples: int) -> None:
    """Refuse batches that no sum could hold with the promised rounding; twelve standard deviations are never seen."""
    expected = config.sample_rate * examples * (1.0 if config.keep is None else config.keep)
    if min(examples, expected + 12.0 * math.sqrt(expected)) > MOST_EXAMPLES:
        raise ConfigError(
            f"Batches of some {expected:,.0f} examples are too large: at most {MOST_EXAMPLES:,} can be added up with "
            "the rounding that clipping allows for. Use a smaller sample_rate."
        )


def network_for(module: nn.Module, data: Dataset) -> tuple[Network, str]:
    """The network that trains a module, and which of the two ways it takes, `fast` or `general`."""
    shape = data.inputs.shape[1:]
    dtype = torch.from_numpy(data.inputs[:1]).dtype
    try:
        return FastNetwork(module, shape, dtype), "fast"
    except NotConvertible:
        suitability.check_examples_apart(module, shape, dtype)
        return GeneralNetwork(module, shape), "general"


def _normals(streams: Sequence[np.random.Generator], like: Tensor) -> Tensor:
    """Standard normals like `like`, row by row from the instances' own streams."""
    rows = np.stack([stream.standard_normal(like.shape[1], dtype=np.float32) for stream in streams])
    return torch.from_numpy(rows).to(like)
