"""Many models at once without privacy: one group of instances through all its steps, and how they vote.

The engine is told which instances to train and what each of them sees; it knows neither shards nor files. Where a model
must be a function of its part of the data, nothing that computes it may depend on any other part: see `PlainEngine`.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from mithridate.data import Dataset
from mithridate.errors import ConfigError
from mithridate.training import suitability
from mithridate.training.arithmetic import products
from mithridate.training.clipping import Clipping
from mithridate.training.config import TrainConfig
from mithridate.training.engine import (
    GROUP,
    Network,
    OnStep,
    arithmetic_of,
    counted_on_threads,
    free_memory,
    network_for,
    on_all_cores,
    on_threads,
    precision_for,
    single_threaded,
    that_fit,
)
from mithridate.training.graphs import ReplayedStep
from mithridate.training.initialisation import initial_weights, same_bits
from mithridate.training.network import FastNetwork, Model, kernels_for
from mithridate.training.optimisers import Optimiser
from mithridate.training.plain_config import PlainRecipe
from mithridate.training.randomness import PUBLIC_SEED, Seeds
from mithridate.training.run import is_out_of_memory
from mithridate.training.run_directory import plan_ranges
from mithridate.training.sampling import Block
from mithridate.training.tally import Counter, Tally
from mithridate.training.views import NOTHING, Seen, Sight, add_normals, moved, visits, ways_to_move

# Longer gradients are unheard of; and it is far from the end of single precision.
_NO_CLIPPING = 1e30
# Bytes of noisy inputs that one core holds.
_NOISY_BYTES = 2**29
_REHEARSED_STEPS = 3


@dataclass(frozen=True, eq=False)
class _Group:
    """Models that are trained together: where their randomness comes from, what they see, and how they start."""

    seeds: Seeds
    instances: Sequence[int]
    seen: Sequence[Seen]
    start: Tensor

    @property
    def models(self) -> int:
        """How many of them are instances, and not there to fill up."""
        return len(self.instances)

    def __getitem__(self, part: slice) -> _Group:
        return _Group(self.seeds, self.instances[part], self.seen[part], self.start[part])

    def filled_up(self, slots: int) -> _Group:
        """With models that see nothing in the places that are left."""
        lack = slots - len(self.seen)
        return _Group(
            self.seeds,
            self.instances,
            [*self.seen, *[NOTHING] * lack],
            torch.cat([self.start, self.start.new_zeros(lack, self.start.shape[1])]),
        )


@dataclass(frozen=True, eq=False)
class _Table:
    """What the models in flight see, on the device and padded to one length, which no arithmetic depends on.

    Attributes:
        members: models x length, indices into the training set.
        labels: models x length.
        inputs: models x length x input, where every model has inputs of its own.
    """

    members: Tensor
    labels: Tensor
    inputs: Tensor | None


@dataclass(frozen=True, eq=False)
class _Resident:
    """What stays on a GPU from one group of models to the next, so that its graph need not be captured again."""

    weights: Tensor
    table: _Table
    optimiser: Any
    step: ReplayedStep


@dataclass(frozen=True)
class _Rule:
    """A recipe as the optimisers read it: sums over a batch are divided by its size, and there is no noise."""

    recipe: PlainRecipe
    noise_multiplier: float = 0.0
    max_grad_norm: float = 1.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.recipe, name)

    @property
    def divisor(self) -> float:
        return float(self.recipe.batch_size)


class PlainEngine:
    """Trains instances of one model on what each of them sees, and counts their votes.

    Guarantee, for a plan of parts: the weights of a model, and so its vote on any input, are to the bit a function of
    the examples of its part, of the recipe and of its number, on one computer. On a CPU every model is trained alone,
    by one thread. On a GPU all models of a group are trained together: every step is the same captured graph, whose
    shapes are constants of the recipe, and a model has a fixed place in a group of a fixed size; before the first
    group, `rehearse` compares the weights and scores of every place, bit for bit, with those that it gets when the
    other places hold something else.

    Guarantee, for other plans: each instance is one independent draw of the recipe's mechanism, and on one device a
    function of (root seed, instance), up to rounding.

    Args:
        model: a module whose layers know `reset_parameters`, or a function that builds a new one.
        data: the training set.
        recipe: how instances are trained, resolved.
        sight: what each instance sees.
        test: inputs that will be voted on.
        device: where to compute.
        precision: `float32` or `tf32` for the operands of matrix products, or `auto`: `tf32` where a GPU has it.
        in_flight: how many models are trained at a time, None to choose; on a GPU, a constant of models that are
            functions.
        evidence: what is to be counted beside votes; see `tally.Counter`.

    Raises:
        ConfigError: the model cannot be trained, or not as a function of its part on this device.
    """

    def __init__(
        self,
        model: Model,
        data: Dataset,
        recipe: PlainRecipe,
        sight: Sight,
        test: npt.NDArray[Any],
        *,
        device: torch.device,
        precision: str = "auto",
        in_flight: int | None = None,
        evidence: Collection[str] = (),
    ) -> None:
        self._model, self._recipe, self._sight, self._test = model, recipe, sight, test
        self._device, self._in_flight = device, in_flight
        self._norm = _NO_CLIPPING if recipe.max_grad_norm is None else recipe.max_grad_norm
        module = model if isinstance(model, nn.Module) else model()
        suitability.check(module)
        self.network: Network
        self.network, self.path = network_for(module, data)
        if recipe.plan.is_deterministic:
            _check_device(device, self.path)
        self.precision = precision_for(precision, device, self.path)
        if isinstance(self.network, FastNetwork):
            self.network.clipping = Clipping(self.precision)
        self.shapes = self.network.shapes
        self._inputs = torch.from_numpy(data.inputs).to(device)
        assert recipe.classes is not None
        self._ways = ways_to_move(recipe.shift) if self._inputs.dim() == 4 else 1
        if sight.longest * self._ways >= 2**31:
            raise ConfigError(f"There are too many images to be moved in {self._ways} ways; use a smaller shift.")
        self._counter = Counter(self.network, recipe.classes, recipe.score_bins, device, evidence)
        self._resident: _Resident | None = None
        # On a CPU models are alone, and their number is of no account.
        self._shapes_are_fixed = recipe.plan.is_deterministic and device.type != "cpu"
        self._slots = self._places() if self._shapes_are_fixed else None
        self._is_rehearsed = not recipe.plan.is_deterministic

    @property
    def arithmetic(self) -> str:
        """What computes: results of different ones differ by rounding."""
        return arithmetic_of(self.network, self._device)

    def models_in_flight(self) -> int:
        """How many models to train at a time: from the memory that is free, or, for functions, from constants alone."""
        instances = self._recipe.instances
        if self._in_flight is not None:
            return min(instances, self._in_flight)
        if self._device.type == "cpu":
            return on_all_cores(instances)
        each = self.network.bytes_per_model + (self._recipe.batch_size + 16) * self.network.bytes_per_example
        if self._shapes_are_fixed:  # not even the sizes of parts may count
            return that_fit(self.network, each, instances, _all_memory(self._device))
        each += self._sight.longest * (16 + (4 * self._inputs[0].numel() if self._sight.noise else 0))
        return that_fit(self.network, each, instances, free_memory(self._device))

    def _places(self) -> int:
        """Number of places in a group, the same in all groups of the run."""
        return max(map(len, plan_ranges(0, self._recipe.instances, self.models_in_flight())))

    def train(self, seeds: Seeds, instances: range, on_step: OnStep | None = None) -> Tensor:
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

    def _group(self, seeds: Seeds, instances: Sequence[int]) -> _Group:
        seen = [self._sight.of(seeds, instance) for instance in instances]
        return _Group(seeds, instances, seen, initial_weights(self._model, seeds, instances))

    def _train(self, group: _Group, steps: int, on_step: OnStep | None = None) -> Tensor:
        if self._device.type == "cpu":

            def train(part: slice, advance: OnStep) -> Tensor:
                return self._train_together(group[part], steps, advance)

            at_once, one_at_a_time = self._models_on_a_core(group.models), self.path != "fast"
            return on_threads(train, group.models, at_once, on_step, one_at_a_time=one_at_a_time)
        whole = group if self._slots is None else group.filled_up(self._slots)
        if self._device.type == "cuda" and (kernels := kernels_for(self._device)) is not None:
            return self._train_by_graph(whole, steps, kernels, on_step)[: group.models]
        return self._train_together(whole, steps, on_step)[: group.models]

    def _models_on_a_core(self, models: int) -> int:
        """How many models are trained together: one where it must be a function, whatever becomes of the others."""
        if self._recipe.plan.is_deterministic:
            return 1
        fit = _NOISY_BYTES // (4 * self._inputs[0].numel() * self._sight.longest) if self._sight.noise else GROUP
        return max(1, min(GROUP, -(-models // 2), fit))

    def _train_together(self, group: _Group, steps: int, on_step: OnStep | None) -> Tensor:
        """The plain loop: what every other one must agree with."""
        weights = group.start.to(self._device, copy=True)
        rule = _Rule(self._recipe)
        optimiser = Optimiser(cast("TrainConfig", rule), weights)
        table = self._new_table(len(weights), max(1, *(len(seen.members) for seen in group.seen)))
        self._fill(table, group)
        for block in self._visits(group, steps):
            for indices, sizes in zip(block.indices, block.sizes, strict=True):
                chosen = torch.from_numpy(indices).to(self._device)
                sums = self._sums(weights, table, chosen, torch.from_numpy(sizes).to(self._device))
                optimiser.update(sums.to(weights).div_(rule.divisor))
                if on_step is not None:
                    on_step(group.models)
        return optimiser.result()

    def _visits(self, group: _Group, steps: int) -> Iterator[Block]:
        sizes = [len(seen.members) for seen in group.seen]
        batch_size, ways = self._recipe.batch_size, self._ways
        return visits(group.seeds, group.instances, sizes, steps=steps, batch_size=batch_size, ways=ways)

    def _train_by_graph(self, group: _Group, steps: int, kernels: ModuleType, on_step: OnStep | None) -> Tensor:
        """The same loop without the host: batches are drawn ahead, and every step replays one captured graph."""
        try:
            resident = self._resident_for(group, kernels)
            with ThreadPoolExecutor(1) as ahead:
                upcoming = self._visits(group, steps)
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

    def _resident_for(self, group: _Group, kernels: ModuleType) -> _Resident:
        """Weights, optimiser, table and graph for so many models: those of the group before, if it had as many."""
        models = len(group.seen)
        if self._resident is None or len(self._resident.weights) != models:
            self._resident = None  # its memory first
            self._resident = self._new_resident(models, kernels)
        resident = self._resident
        resident.weights.copy_(group.start)
        resident.optimiser.restart([0] * models)
        self._fill(resident.table, group)
        return resident

    def _new_resident(self, models: int, kernels: ModuleType) -> _Resident:
        """With its graph: no step that counts runs in another way than the others."""
        weights = torch.zeros(models, self.network.size, device=self._device)
        optimiser = kernels.NoisyOptimiser(_Rule(self._recipe), weights, [0] * models)
        table = self._new_table(models, self._sight.longest)

        def step(chosen: Tensor, sizes: Tensor) -> None:
            optimiser.update(self._sums(weights, table, chosen, sizes))

        batch_size = self._recipe.batch_size
        replayed = ReplayedStep(step, models, self._device, least=batch_size)
        empty = Block(np.zeros((1, models, batch_size), np.int32), np.zeros((1, models), np.int32))
        for _ in range(2):  # the first runs as it is, the second is captured
            optimiser.restart([0] * models)
            replayed.run(empty)
        return _Resident(weights, table, optimiser, replayed)

    def _sums(self, weights: Tensor, table: _Table, chosen: Tensor, sizes: Tensor) -> Tensor:
        """Gradients of the batches that are `chosen`, models x width, as far as `sizes`, one number a model."""
        models, width = chosen.shape
        chosen = chosen.long()
        chosen, way = (chosen, None) if self._ways == 1 else (chosen // self._ways, chosen % self._ways)
        present = torch.arange(width, device=chosen.device) < sizes.unsqueeze(1)
        labels = table.labels.gather(1, chosen)
        if table.inputs is None:
            rows, source = table.members.gather(1, chosen), self._inputs
        else:
            firsts = torch.arange(models, device=chosen.device).mul(table.inputs.shape[1]).unsqueeze(1)
            rows, source = chosen + firsts, table.inputs.flatten(0, 1)
        inputs = source.index_select(0, rows.flatten())
        if way is not None:
            inputs = moved(inputs, way.flatten(), self._recipe.shift)
        inputs = inputs.unflatten(0, (models, width))
        return self.network.clipped_sums(weights, inputs, labels, present, self._norm)

    def _new_table(self, models: int, length: int) -> _Table:
        members, labels = (torch.zeros(models, length, dtype=torch.int64, device=self._device) for _ in range(2))
        own = torch.zeros(models, length, *self._inputs.shape[1:], device=self._device) if self._sight.noise else None
        return _Table(members, labels, own)

    def _fill(self, table: _Table, group: _Group) -> None:
        """Put what the models of a group see into a table."""
        for column in ("members", "labels"):
            rows = np.zeros(tuple(table.members.shape), np.int64)
            for row, seen in zip(rows, group.seen, strict=True):
                row[: len(seen.members)] = getattr(seen, column)
            getattr(table, column).copy_(torch.from_numpy(rows))
        if table.inputs is not None:
            for row, places, instance in zip(table.inputs, table.members, group.instances, strict=False):
                row.copy_(self._inputs.index_select(0, places))
                add_normals(row, self._sight.noise, group.seeds, instance)

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
                self._refuse_unrepeatable(group)
            expected, scores = self._rehearsed(group)
            for first in range(2):
                kept = torch.arange(count) % 2 == first
                weights, logits = self._rehearsed(_with_others_replaced(group, kept))
                if not (same_bits(weights[kept], expected[kept]) and same_bits(logits[kept], scores[kept])):
                    raise ConfigError(
                        f"On this device ({self._device}) a model depends on those that are trained beside it, to the "
                        "last bit; its certificate would not hold. Use device='cpu'."
                    )
        self._is_rehearsed = True

    def _rehearsed(self, group: _Group) -> tuple[Tensor, Tensor]:
        """Weights after a few steps, and what they answer to some inputs."""
        weights = self._train(group, min(_REHEARSED_STEPS, self._recipe.steps))
        piece = self._counter.pieces(self._test, len(weights))[0]
        return weights.cpu(), self.network.logits(weights, piece.to(self._device)).cpu()

    def _refuse_unrepeatable(self, group: _Group) -> None:
        """Refuse operations of which torch says that they add up in any order."""
        one = group[:1]
        before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.use_deterministic_algorithms(True, warn_only=True)
            try:
                self._train_together(one, 1, None)
                self.network.logits(one.start.to(self._device), torch.from_numpy(self._test[:2]).to(self._device))
            finally:
                torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        said = [str(warning.message).split(" does not have a deterministic implementation") for warning in caught]
        found = [words[0] for words in said if len(words) > 1]
        if found:
            raise ConfigError(
                f"On a GPU this model is no function of its data: {found[0]} is not repeatable there. Use device='cpu'."
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
                f"in another run_dir with in_flight={fewer}."
            ) from error

    # --- votes ----------------------------------------------------------------------------------------------------

    def tally(self, weights: Tensor, inputs: npt.NDArray[Any]) -> Tally:
        """How the models vote on some inputs; one that diverged votes for label 0."""
        with self._one_size(), products(self.precision, self._device):
            if self._device.type == "cpu":
                if self.path == "fast":
                    return counted_on_threads(self._counter, weights, inputs)
                with single_threaded():  # the number of threads may change the rounding
                    return self._counter.count(weights, inputs)
            try:
                return self._counter.count(weights, inputs)
            except torch.OutOfMemoryError:
                if self._resident is None:
                    raise
            self._resident = None  # it stays for the next group only where there is room
            torch.cuda.empty_cache()
            return self._counter.count(weights, inputs)


def _check_device(device: torch.device, path: str) -> None:
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(
            f"Models that are functions of their data cannot be promised on {device.type}; use device='cpu' or 'cuda'."
        )
    if device.type == "cuda" and path != "fast":
        raise ConfigError(
            "This network has layers of its own making, for which no bits can be promised on a GPU; use device='cpu'."
        )


def _with_others_replaced(group: _Group, kept: Tensor) -> _Group:
    """The same models in the places that are kept; in the others, models with other data, sizes and weights."""
    count = len(group.seen)
    seen, start = list(group.seen), group.start.clone()
    others = (~kept).nonzero().flatten().tolist()
    for number, slot in enumerate(others):
        other = group.seen[(slot + 1) % count]
        size = (0, 1, len(other.members) // 2)[number % 3]
        seen[slot] = Seen(other.members[::-1][:size], other.labels[::-1][:size])
        start[slot] *= torch.inf if number == 1 else 1.5  # not even one that diverges may disturb the others
    return replace(group, seen=seen, start=start)


def _all_memory(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[1]
