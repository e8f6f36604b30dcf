"""One group of instances through all its steps, and how they vote: batches from a source, gradients by a rule.

The engine is told which instances to train, and knows neither shards nor files. What it draws for an instance depends
on the seed of that instance alone; and where a model must be a function of its part of the data, nothing that computes
it may depend on any other part.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from mithridate import _validate
from mithridate._torch import pool_of, products, single_threaded
from mithridate.data import Dataset
from mithridate.data.partition import IndexArray
from mithridate.errors import ConfigError
from mithridate.training.batch_source import (
    TOGETHER,
    Block,
    ExampleTable,
    Group,
    PoissonSamples,
    Seen,
    TrainingRecipe,
    Visits,
)
from mithridate.training.clipping import Clipping
from mithridate.training.config import PRECISIONS, GradientRule, TrainConfig
from mithridate.training.devices import (
    OnStep,
    Optimiser,
    ReplayedStep,
    is_out_of_memory,
    on_threads,
)
from mithridate.training.general import GeneralNetwork
from mithridate.training.kernels import cpu
from mithridate.training.models import Model, check_examples_apart, check_module, initial_weights, same_bits
from mithridate.training.network import FastNetwork, NotConvertible, kernels_for
from mithridate.training.randomness import PUBLIC_SEED, Seeds
from mithridate.training.run_directory import TallyArrays, plan_ranges

# Memory in flight on a GPU, at most: more does not make it faster, and more work is lost when a run is killed.
_BYTES_IN_FLIGHT = 3 * 2**33
# Threads that draw batches ahead of a GPU.
_SAMPLERS = min(8, os.cpu_count() or 1)
# A limit of CUDA on the number of blocks along one axis is 2^16 - 1.
_MOST_IN_FLIGHT = 2**14
_REHEARSED_STEPS = 3
# About so many bytes of activations are held in a step of the models that a core, or another device, trains together;
# a batch that would take more is cut into pieces. Constants: where a batch is cut may change how its sum is rounded,
# and must depend on nothing that is in the data. Draws may be cut by the memory of a GPU, of which this is the largest
# share: always more than is in flight, so that no batch is cut that need not be.
_BYTES_OF_A_PIECE = {"cpu": 2**30, "mps": 2**32, "cuda": 2**35}
_SHARE_OF_A_PIECE = 0.8
# Pieces are cut at multiples of this, where that is possible: whole runs of neighbours, see `clipping`.
_RUN = 16


# What turns batches into clipped gradient sums.
Network = FastNetwork | GeneralNetwork


@dataclass(frozen=True, eq=False)
class _Resident:
    """What stays on a GPU from one group of models to the next, so that its graphs need not be captured again."""

    weights: Tensor
    table: ExampleTable
    optimiser: Any
    step: ReplayedStep


class Engine:
    """Trains instances of one model on one data set, and counts their votes.

    Guarantee, for a `TrainConfig`: each instance is one independent draw of its mechanism on `data`: true Poisson
    batches, every example's gradient clipped (see `clipping`), the sums plus Gaussian noise of standard deviation
    `noise_multiplier * max_grad_norm` in every coordinate, divided by the constant `divisor`. On one device it is a
    function of the instance's seed, up to rounding.

    Guarantee, for a plan of parts: the weights of a model, and so its vote on any input, are to the bit a function of
    the examples of its part, of the recipe and of its number, on one computer. On a CPU every model is trained alone,
    by one thread. On a GPU all models of a group are trained together: every step is the same captured graph, whose
    shapes are constants of the recipe, and a model has a fixed place in a group of a fixed size; before the first
    group, `rehearse` compares the weights and scores of every place, bit for bit, with those that it gets when the
    other places hold something else.

    Guarantee, for other plans: each instance is one independent draw of the recipe's mechanism, and on one device a
    function of its seed, up to rounding.

    Args:
        model: a module whose layers know `reset_parameters`, or a function that builds a new one.
        data: the training set; its inputs may be a mapped file that is larger than memory.
        recipe: how instances are trained, resolved: it decides where batches come from (`batch_source`) and what
            becomes of their gradients (`GradientRule`).
        device: where to compute.
        precision: `float32`, `tf32` or `bfloat16` for the operands of matrix products (see `clipping`), or `auto`, the
            fastest that there is here.
        parts: for models of parts, the indices of what each of them sees.
        test: for models of parts, inputs that will be voted on.
        in_flight: how many models are trained at a time, None to choose; on a GPU, a constant of models that are
            functions.
        evidence: what is to be counted beside votes; see `Counter`.

    Raises:
        ConfigError: the model mixes examples, cannot be trained for another reason, or not as a function of its part
            on this device.
    """

    def __init__(
        self,
        model: Model,
        data: Dataset,
        recipe: TrainingRecipe,
        *,
        device: torch.device,
        precision: str = "auto",
        parts: Sequence[IndexArray] | None = None,
        test: npt.NDArray[Any] | None = None,
        in_flight: int | None = None,
        evidence: Collection[str] = (),
    ) -> None:
        self._model, self._recipe, self._test = model, recipe, data.inputs if test is None else test
        self._device, self._in_flight = device, in_flight
        module = model if isinstance(model, nn.Module) else model()
        check_module(module)
        self.network, self.path = _network_for(module, data)
        if recipe.is_deterministic:
            _check_device(device, self.path)
        self.precision = _precision_for(precision, device, self.network)
        if isinstance(self.network, FastNetwork):
            self.network.clipping = Clipping(self.precision)
        self.shapes = self.network.shapes
        self._source = (
            PoissonSamples(recipe, data, device)
            if isinstance(recipe, TrainConfig)
            else Visits(recipe, data, device, parts)
        )
        self._rule = recipe.gradient_rule
        if self._rule.loss_weights is not None:
            self.network.loss_weights = torch.tensor(self._rule.loss_weights, dtype=torch.float32, device=device)
        assert recipe.classes is not None
        self._counter = Counter(self.network, recipe.classes, recipe.score_bins, device, evidence)
        self._resident: _Resident | None = None
        # On a CPU models that are functions are alone, and their number is of no account.
        self._shapes_are_fixed = recipe.is_deterministic and device.type != "cpu"
        self._slots = self._places() if self._shapes_are_fixed else None
        self._is_rehearsed = not recipe.is_deterministic
        self._bytes_of_a_piece = _BYTES_OF_A_PIECE[device.type]
        if device.type == "cuda" and not recipe.is_deterministic:  # a function may not even depend on the memory
            free = _free_memory(device)
            self._bytes_of_a_piece = min(self._bytes_of_a_piece, int(_SHARE_OF_A_PIECE * free))

    @property
    def arithmetic(self) -> str:
        """What computes; others differ by rounding.

        That is `native` (with the name of the compiled code) or `torch` on a CPU, `triton` or `torch` elsewhere.
        """
        if self._device.type == "cpu":
            has_stem = isinstance(self.network, FastNetwork) and self.network.has_stem
            library = cpu.library(stages=True) if has_stem else None
            return "torch" if library is None else f"native {library.name[:8]}"
        return "torch" if kernels_for(self._device) is None else "triton"

    def models_in_flight(self) -> int:
        """How many models to train at a time: from the memory that is free, or, for functions, from constants alone."""
        instances = self._recipe.instances
        if self._in_flight is not None:
            return min(instances, self._in_flight)
        if self._device.type == "cpu":  # whole groups for every core, some fifty times until all are done
            whole = TOGETHER * torch.get_num_threads()
            return min(instances, whole * -(-instances // (50 * whole)))
        if isinstance(self.network, FastNetwork) and self.network.is_wide:
            return 1
        each = self.network.bytes_per_model + self._source.widest * self._bytes_per_unit
        if self._shapes_are_fixed:  # not even the sizes of parts may count
            memory = _all_memory(self._device)
        else:
            memory = _free_memory(self._device)
            each += self._source.bytes_seen
        return max(1, min(instances, int(min(memory * 0.6, _BYTES_IN_FLIGHT) / each), _MOST_IN_FLIGHT))

    def examples_at_a_time(self, models: int) -> int:
        """How many examples or units of each model go through the network together: a constant of recipe and shapes.

        Args:
            models: how many are trained together on a device other than a CPU.
        """
        # On a CPU not even the number of models beside it may count.
        together = self._source.together if self._device.type == "cpu" else models
        most = max(1, self._bytes_of_a_piece // (together * self._bytes_per_unit))
        return most - most % _RUN if most > _RUN else most

    @property
    def _bytes_per_unit(self) -> int:
        """Of the examples that it has places for, and of their mean gradient with a copy to work on."""
        rows, each = self._source.rows, self.network.bytes_per_example
        return each if rows == 1 else rows * each + 8 * self.network.size

    def _places(self) -> int:
        """Number of places in a group, the same in all groups of the run."""
        return max(map(len, plan_ranges(0, self._recipe.instances, self.models_in_flight())))

    # --- training -------------------------------------------------------------------------------------------------

    def train(self, seeds: Seeds, instances: Sequence[int], on_step: OnStep | None = None) -> Tensor:
        """The weights that vote, models x parameters, on the device.

        Args:
            seeds: where all randomness comes from, of these instances at least; for a plan of parts, the public ones.
            instances: the numbers of the instances.
            on_step: called now and then with the number of model-steps done since its last call.

        Raises:
            torch.OutOfMemoryError: train fewer at a time; the draws will be the same.
            ConfigError: models cannot be functions of their parts on this device, or not so many at a time.
        """
        with self._one_size():
            self.rehearse()
            with products(self.precision, self._device):
                return self._train(self._group(seeds, instances), self._recipe.steps, on_step)

    def _group(self, seeds: Seeds, instances: Sequence[int]) -> Group:
        start = initial_weights(self._model, seeds, instances)
        return Group(seeds, instances, start, self._source.seen(seeds, instances))

    def _train(self, group: Group, steps: int, on_step: OnStep | None = None) -> Tensor:
        if self._device.type == "cpu":
            # A function of the number of instances alone: how many are taken together changes the rounding.
            together = min(-(-group.models // 2), self._source.together)
            return on_threads(
                lambda part, advance: self._train_together(group[part], steps, advance),
                group.models,
                together,
                on_step,
                one_at_a_time=self.path != "fast",
            )
        whole = group if self._slots is None else group.filled_up(self._slots)
        if self._device.type == "cuda" and (kernels := kernels_for(self._device)) is not None:
            return self._train_by_graph(whole, steps, kernels, on_step)[: group.models]
        return self._train_together(whole, steps, on_step)[: group.models]

    def _train_together(self, group: Group, steps: int, on_step: OnStep | None) -> Tensor:
        """The plain loop: what every other one must agree with."""
        weights = group.start.to(self._device, copy=True)  # its own memory: rows of one matrix share a version counter
        optimiser = Optimiser(self._recipe, weights)
        keys = self._noise_keys(group)
        table = self._source.table(len(weights), group)
        table.fill(group)
        most = self.examples_at_a_time(len(weights))
        for step, (entries, sizes) in enumerate(self._batches(group, steps, table)):
            sums = _sums(self.network, self._rule, table, weights, entries, sizes, most)
            if self._rule.noise:
                cpu.add_noise(sums, keys, step, self._rule.noise)
            # Rounded after the noise: whatever is made of the noisy sum cannot tell more than the sum itself.
            optimiser.update(sums.to(weights).div_(self._rule.divisor))
            if on_step is not None:
                on_step(group.models)
        return optimiser.result()

    def _batches(self, group: Group, steps: int, table: ExampleTable) -> Iterator[tuple[list[Tensor], Tensor]]:
        """What the table needs to look up the batches of every step, and their sizes, on the device."""
        for block in self._source.blocks(group, steps):
            for (indices, sizes), entries in zip(block, table.entries(block), strict=True):
                given = [each[:, : indices.shape[1]].to(self._device) for each in entries]
                yield given, torch.from_numpy(sizes).to(self._device)

    def _noise_keys(self, group: Group) -> list[int]:
        """For each place of a group; those that are only there to fill up need no secrets."""
        if not self._rule.noise:
            return [0] * len(group.start)
        return [group.seeds.key(instance, "noise") for instance in group.instances]

    def _train_by_graph(self, group: Group, steps: int, kernels: ModuleType, on_step: OnStep | None) -> Tensor:
        """The same loop without the host: batches are drawn ahead, and every step replays one captured graph."""
        try:
            resident = self._resident_for(group, kernels)
            with ThreadPoolExecutor(1) as ahead, ThreadPoolExecutor(_SAMPLERS) as samplers:
                upcoming = self._source.blocks(group, steps, samplers.map)
                waiting = ahead.submit(next, upcoming, None)
                while (block := waiting.result()) is not None:
                    waiting = ahead.submit(next, upcoming, None)
                    resident.step.run(block)
                    if on_step is not None:
                        torch.cuda.synchronize(self._device)
                        on_step(group.models * len(block))
            return resident.optimiser.result().clone()
        except torch.OutOfMemoryError:
            self._resident = None
            raise

    def _resident_for(self, group: Group, kernels: ModuleType) -> _Resident:
        """Weights, optimiser, table and graphs for so many models: those of the group before, if it had as many."""
        models = len(group.start)
        if self._resident is None or len(self._resident.weights) != models:
            self._resident = None  # its memory first
            self._resident = self._new_resident(models, kernels)
        resident = self._resident
        resident.weights.copy_(group.start)
        resident.optimiser.restart(self._noise_keys(group))
        resident.table.fill(group)
        return resident

    def _new_resident(self, models: int, kernels: ModuleType) -> _Resident:
        """With its graph, where batches have one width: no step that counts runs in another way than the others."""
        weights = torch.zeros(models, self.network.size, device=self._device)
        optimiser = kernels.NoisyOptimiser(self._recipe, weights, [0] * models)
        network, rule, table = self.network, self._rule, self._source.table(models)
        most = self.examples_at_a_time(models)

        def step(*given: Tensor) -> None:  # without the engine: graphs are freed with it, at once
            *entries, sizes = given
            optimiser.update(_sums(network, rule, table, weights, entries, sizes, most))

        replayed = ReplayedStep(step, models, self._device, table.entries)
        if width := self._source.width:
            empty = Block(np.zeros((1, models, width), np.int32), np.zeros((1, models), np.int32), least=width)
            for _ in range(2):  # the first runs as it is, the second is captured
                optimiser.restart([0] * models)
                replayed.run(empty)
        return _Resident(weights, table, optimiser, replayed)

    # --- models that are functions --------------------------------------------------------------------------------

    def rehearse(self) -> None:
        """Make sure, once, that a model is a function of its part here: to the bit, whatever the others are.

        Raises:
            ConfigError: it is not.
            torch.OutOfMemoryError: there is no room for so many.
        """
        if self._is_rehearsed:
            return
        count = min(self._recipe.instances, self._slots or 2)
        group = self._group(Seeds.of(PUBLIC_SEED), range(count))
        with products(self.precision, self._device):
            if self._device.type == "cuda":
                _refuse_unrepeatable(lambda: self._train_together(group[:1], 1, None))
            expected = self._rehearsed(group)
            for kept in _halves(count):
                weights = self._rehearsed(_with_others_replaced(group, kept))
                if not same_bits(weights[kept], expected[kept]):
                    raise self._disturbed("trained")
        self.check_answers(expected.to(self._device), self._test)
        self._is_rehearsed = True

    def _rehearsed(self, group: Group) -> Tensor:
        """Weights after a few steps."""
        return self._train(group, min(_REHEARSED_STEPS, self._recipe.steps)).cpu()

    def check_answers(self, weights: Tensor, inputs: npt.NDArray[Any]) -> None:
        """Make sure that what a model answers is a function of its weights here: to the bit, whatever the others are.

        Only of models that are functions; a draw may depend on those beside it, up to rounding.

        Args:
            weights: of a group of models; where shapes are fixed, of a whole one.
            inputs: what they will be asked.

        Raises:
            ConfigError: it is not.
        """
        if not self._recipe.is_deterministic:
            return
        weights = weights if self._shapes_are_fixed else weights[:2]
        with self._one_size(), products(self.precision, self._device):
            piece = _copied(inputs[self._counter.pieces(inputs, len(weights))[0]]).to(self._device)
            if self._device.type == "cuda":
                _refuse_unrepeatable(lambda: self.network.logits(weights[:1], piece[:2]))
            expected = self.network.logits(weights, piece).cpu()
            for kept in _halves(len(weights)):
                answers = self.network.logits(_others_replaced(weights, kept), piece).cpu()
                if not same_bits(answers[kept], expected[kept]):
                    raise self._disturbed("asked")

    def _disturbed(self, what: str) -> ConfigError:
        return ConfigError(
            f"On this device ({self._device}) a model depends on those that are {what} beside it, to the last bit; its "
            "certificate would not hold. Use device='cpu'."
        )

    @contextlib.contextmanager
    def _one_size(self) -> Iterator[None]:
        """Where shapes are fixed, running out of memory ends the run: with others, models would be others."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not (self._shapes_are_fixed and is_out_of_memory(error)):
                raise
            fewer = max(1, (self._slots or 1) // 2)
            raise ConfigError(
                f"Out of memory with {self._slots} models in flight, a number that the models depend on; start again "
                f"in another run_dir with in_flight={fewer}, or ask models that are there on device='cpu'."
            ) from error

    # --- votes ----------------------------------------------------------------------------------------------------

    def tally(self, weights: Tensor, inputs: npt.NDArray[Any]) -> TallyArrays:
        """How the models vote on some inputs.

        A model whose scores for an input are not finite votes for label 0, with score 1: it diverged, and still votes.
        """
        with self._one_size(), products(self.precision, self._device):
            if self._device.type != "cpu":
                return self._count(weights, inputs)
            with single_threaded() as threads:  # how many share an operation may change the rounding
                if self.path != "fast":
                    return self._counter.count(weights, inputs)
                with pool_of(threads) as pool:  # every core with inputs of its own
                    return self._counter.count(weights, inputs, pool.map)

    def _count(self, weights: Tensor, inputs: npt.NDArray[Any]) -> TallyArrays:
        """The votes; what stays for the next group gives way if there is no room."""
        try:
            return self._counter.count(weights, inputs)
        except torch.OutOfMemoryError:
            if self._resident is None:
                raise
        self._resident = None
        torch.cuda.empty_cache()
        return self._counter.count(weights, inputs)


def _sums(
    network: Network,
    rule: GradientRule,
    table: ExampleTable,
    weights: Tensor,
    entries: Sequence[Tensor],
    sizes: Tensor,
    most: int,
) -> Tensor:
    """Clipped sums of the batches of some entries, models x width, as far as `sizes`, one number a model.

    Batches of more than `most` examples are looked up and added up a piece at a time (see `clipping`).
    """
    width = entries[0].shape[1]
    total: Tensor | None = None
    for start in range(0, max(width, 1), most):
        end = min(start + most, width)
        within = torch.arange(start, end, device=weights.device) < sizes.unsqueeze(1)
        found = table.look_up(*(each[:, start:end] for each in entries))
        whole = width if width > most or len(found) > 1 else None
        for part in found:
            # Beyond its size there may be anything in a batch, such as what a wider one left there.
            present = within if part.present is None else part.present & within[:, : part.present.shape[1]]
            sums = network.clipped_sums(weights, part.inputs, part.labels, present, rule.longest, whole, part.shares)
            total = sums if total is None else total.add_(sums)
    assert total is not None
    return total


def _network_for(module: nn.Module, data: Dataset) -> tuple[Network, str]:
    """The network that trains a module, and which of the two ways it takes, `fast` or `general`."""
    shape = data.inputs.shape[1:]
    dtype = torch.from_numpy(np.empty(0, data.inputs.dtype)).dtype
    try:
        return FastNetwork(module, shape, dtype), "fast"
    except NotConvertible:
        check_examples_apart(module, shape, dtype)
        return GeneralNetwork(module, shape), "general"


def _precision_for(asked: str, device: torch.device, network: Network) -> str:
    """The precision of matrix products: as asked, or the fastest whose clipping is accounted for."""
    _validate.one_of(PRECISIONS, precision=asked)
    if device.type != "cuda" or isinstance(network, GeneralNetwork):
        if asked in ("tf32", "bfloat16"):
            raise ConfigError(f"precision='{asked}' needs an NVIDIA GPU and a model of known layers; leave it out.")
        return "float32"
    takes_halves = network.takes_halves(device)
    if asked == "bfloat16" and not takes_halves:
        raise ConfigError(
            "precision='bfloat16' is for networks that start with convolutions of more than 16 outputs, each with an "
            "activation and a mean over windows, on an NVIDIA GPU of compute capability 8 or more; leave it out."
        )
    if asked != "auto":
        return asked
    return "bfloat16" if takes_halves else "tf32"


def _free_memory(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 2**32


def _all_memory(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[1]


# --- a rehearsal ----------------------------------------------------------------------------------------------------


def _check_device(device: torch.device, path: str) -> None:
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(
            f"Models that are functions of their data cannot be promised on {device.type}; use device='cpu' or 'cuda'."
        )
    if device.type == "cuda" and path != "fast":
        raise ConfigError(
            "This network has layers of its own making, for which no bits can be promised on a GPU; use device='cpu'."
        )


def _refuse_unrepeatable(work: Callable[[], Any]) -> None:
    """Refuse operations of which torch says that they add up in any order."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            work()
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    said = [str(warning.message).split(" does not have a deterministic implementation") for warning in caught]
    found = [words[0] for words in said if len(words) > 1]
    if found:
        raise ConfigError(
            f"On a GPU this model is no function of its data: {found[0]} is not repeatable there. Use device='cpu'."
        )


def _with_others_replaced(group: Group, kept: Tensor) -> Group:
    """The same models in the places that are kept; in the others, models with other data, sizes and weights."""
    seen = list(group.seen)
    for number, slot in enumerate((~kept).nonzero().flatten().tolist()):
        other = group.seen[(slot + 1) % len(seen)]
        size = (0, 1, len(other.members) // 2)[number % 3]
        seen[slot] = Seen(other.members[::-1][:size], other.labels[::-1][:size])
    return replace(group, seen=seen, start=_others_replaced(group.start, kept))


def _others_replaced(weights: Tensor, kept: Tensor) -> Tensor:
    """The same weights in the places that are kept; not even a model that diverges may disturb those."""
    weights = weights.clone()
    for number, slot in enumerate((~kept).nonzero().flatten().tolist()):
        weights[slot] *= torch.inf if number == 1 else 1.5
    return weights


def _halves(count: int) -> list[Tensor]:
    """Every second place, and the others."""
    return [torch.arange(count) % 2 == first for first in range(2)]


# --- how models vote --------------------------------------------------------------------------------------------------

# Bytes of activations that are held while inputs are scored.
_BYTES = {"cpu": 2**26, "mps": 2**29, "cuda": 2**32}


class Counter:
    """Counts the votes of models on inputs, a piece at a time, as `run_directory.TallyArrays`.

    Scores of single models are added up as they come and then forgotten, in double precision: nothing grows with the
    number of models unless it is asked for. The pieces are cut by the shapes of inputs and models alone, never by what
    is in them.

    Args:
        network: what scores the inputs.
        classes: number of labels.
        bins: in how many bins scores are counted, 0 for none.
        device: where to compute.
        evidence: which of `predictions`, `rankings` and `preferences` are wanted beside the counts.
    """

    def __init__(
        self, network: Network, classes: int, bins: int, device: torch.device, evidence: Collection[str] = ()
    ) -> None:
        self._network, self._classes, self._bins, self._device = network, classes, bins, device
        self._evidence = evidence
        # Sums need double precision, which Apple's GPUs lack.
        self._home = torch.device("cpu") if device.type == "mps" else device

    def count(
        self, weights: Tensor, inputs: npt.NDArray[Any], mapped: Callable[..., Iterable[Any]] = map
    ) -> TallyArrays:
        """The votes of all models on all inputs; `mapped` is `map` or that of a pool."""
        cut = self.pieces(inputs, len(weights))
        mapped = map if len(cut) == 1 else mapped  # a pool takes longer than few inputs
        pieces = list(mapped(partial(self._count_piece, weights, inputs), cut))
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}

    def pieces(self, inputs: npt.NDArray[Any], models: int) -> list[slice]:
        """Which inputs are scored together, from the first to the last."""
        # Activations of a network are some hundred times as large as its inputs at most; on a CPU, those of one model.
        activations = 64 * 4 * max(int(np.prod(inputs.shape[1:])), 64) * (1 if self._device.type == "cpu" else models)
        scores = 4 * self._classes * (8 * models + self._bins)
        scores += 4 * self._classes**2 if "preferences" in self._evidence else 0
        size = max(1, _BYTES[self._device.type] // (activations + scores))
        return [slice(at, at + size) for at in range(0, len(inputs), size)]

    def _count_piece(self, weights: Tensor, all_inputs: npt.NDArray[Any], piece: slice) -> TallyArrays:
        inputs = _copied(all_inputs[piece])
        logits = self._network.logits(weights, inputs.to(self._device)).to(self._home)
        logits = _settle_diverged(logits)
        scores = torch.softmax(logits, dim=2).clamp_(0.0, 1.0).double()
        labels = logits.argmax(dim=2).T  # the first of equals
        counts = torch.zeros(len(inputs), self._classes, dtype=torch.int64, device=self._home)
        counts.scatter_add_(1, labels, torch.ones_like(labels))
        tally = {"counts": counts, "score_sums": scores.sum(0), "score_squares": scores.square().sum(0)}
        if self._bins:
            tally["score_histograms"] = self._histograms(scores)
        if "preferences" in self._evidence:
            tally["preferences"] = _preferences(logits)
        arrays: TallyArrays = {name: values.cpu().numpy() for name, values in tally.items()}
        if "predictions" in self._evidence:
            arrays["predictions"] = labels.cpu().numpy().astype(np.uint16)
        if "rankings" in self._evidence:
            ranked = torch.argsort(logits, dim=2, descending=True, stable=True)  # of equals the smaller first
            arrays["rankings"] = ranked.transpose(0, 1).cpu().numpy().astype(np.uint16)
        return arrays

    def _histograms(self, scores: Tensor) -> Tensor:
        bins = (scores * self._bins).long().clamp_max_(self._bins - 1).permute(1, 2, 0)
        counts = torch.zeros(*bins.shape[:2], self._bins, dtype=torch.int64, device=self._home)
        return counts.scatter_add_(2, bins, torch.ones_like(bins))


def _copied(inputs: npt.NDArray[Any]) -> Tensor:
    """In torch's own memory: how a library rounds can depend on the alignment, and numpy's is left to chance."""
    return torch.tensor(inputs)


def _settle_diverged(logits: Tensor) -> Tensor:
    """Where a logit is not finite, all of the input's logits become those of a sure vote for label 0."""
    sure = torch.full_like(logits[0, 0], -torch.inf)
    sure[0] = 0.0
    return torch.where(torch.isfinite(logits).all(dim=2, keepdim=True), logits, sure)


def _preferences(logits: Tensor) -> Tensor:
    """How many models score the label of the second axis above that of the third; of equals, the smaller is above."""
    numbers = torch.arange(logits.shape[2], device=logits.device)
    above: list[Tensor] = []
    for label in range(logits.shape[2]):
        own = logits[:, :, label, None]
        above.append(((own > logits) | ((own == logits) & (label < numbers))).sum(0))
    return torch.stack(above, dim=1)
