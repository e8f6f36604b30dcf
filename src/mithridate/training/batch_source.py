"""Where batches come from: Poisson samples of the whole training set, or passes over what each instance sees of it.

A source draws the batches of a group of models as numbers, and a table looks the examples up: on the device that trains
where there is room, else on the host, a batch at a time. The training set may be a mapped file that is larger than
memory: on a host it is never copied as a whole.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mithridate.data import Dataset
from mithridate.data.partition import IndexArray
from mithridate.errors import ConfigError
from mithridate.training.clipping import MOST_EXAMPLES
from mithridate.training.config import PlainRecipe, TrainConfig
from mithridate.training.randomness import Seeds

# --- true Poisson sampling at the cost of the batch -------------------------------------------------------------------
#
# The coins of `steps` consecutive batches over `n` examples are one sequence of `steps * n` independent coins. The gaps
# between its heads are geometric, so a stretch of training is sampled by one vectorised draw of gaps; a position p
# means example `p % n` in step `p // n`. Batches vary in size and may be empty.

# Expected draws of one instance at a time: enough to be vectorised, few enough that a GPU does not wait for the first.
# A constant, since the draws must not depend on memory or on other instances.
_DRAWS_PER_BLOCK = 2**12


@dataclass(frozen=True)
class Batches:
    """The batches of one instance in consecutive steps: `indices[starts[t]:starts[t + 1]]` is that of step t."""

    indices: IndexArray
    starts: IndexArray

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, step: int) -> IndexArray:
        return self.indices[self.starts[step] : self.starts[step + 1]]

    @property
    def sizes(self) -> IndexArray:
        """Number of examples in each batch."""
        return np.diff(self.starts)


def sample_batches(
    random: np.random.Generator, num_examples: int, sample_rate: float, steps: int, part: IndexArray | None = None
) -> Batches:
    """Poisson batches of `steps` steps.

    Guarantee: every example is in every batch with probability `sample_rate`, independently of all others; exact up to
    the resolution of a double, 2^-53 in probability: gaps beyond 36 / sample_rate, of that probability, do not occur.

    Args:
        random: the stream to draw from.
        num_examples: number of examples, 0 or more.
        sample_rate: probability of an example to enter a batch, in (0, 1].
        steps: number of batches.
        part: the examples to sample from, where that is not all of them.

    >>> batches = sample_batches(np.random.default_rng(0), 1000, 0.01, 3)
    >>> len(batches), bool(batches.sizes.sum() == len(batches.indices))
    (3, True)
    """
    num_examples = num_examples if part is None else len(part)
    total = num_examples * steps
    if sample_rate == 1.0 or total == 0:
        heads = np.arange(total, dtype=np.int64)
    else:
        heads = _heads(random, total, sample_rate)
    starts = np.searchsorted(heads, np.arange(steps + 1, dtype=np.int64) * num_examples)
    indices = heads % max(num_examples, 1)
    return Batches(indices if part is None else part[indices], starts.astype(np.int64))


def _heads(random: np.random.Generator, total: int, probability: float) -> IndexArray:
    """Positions of the heads among `total` independent coins."""
    pieces: list[npt.NDArray[np.float64]] = []
    reached = -1.0
    while reached < total:
        expected = (total - reached) * probability
        gaps = _gaps(random, int(expected + 6.0 * math.sqrt(expected)) + 16, probability)
        # Sums of whole numbers below 2^53 are exact in doubles.
        pieces.append(reached + np.cumsum(gaps))
        reached = float(pieces[-1][-1])
    heads = np.concatenate(pieces)
    return heads[heads < total].astype(np.int64)


def _gaps(random: np.random.Generator, count: int, probability: float) -> npt.NDArray[np.float64]:
    """Geometric gaps: P(gap > g) = (1 - probability)^g."""
    uniform = 1.0 - random.random(count)  # in (0, 1]: its logarithm is finite
    return np.floor(np.log(uniform) / math.log1p(-probability)) + 1.0


@dataclass(frozen=True)
class Block:
    """The batches of many instances in consecutive steps, side by side.

    Attributes:
        indices: steps x instances x width of the widest batch, 0 beyond the end of a batch.
        sizes: steps x instances.
        least: no step is narrower than this, whatever its batches are.
    """

    indices: npt.NDArray[np.int32]
    sizes: npt.NDArray[np.int32]
    least: int = 0

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]]:
        """Indices and sizes of every step, no wider than its own widest batch or `least`."""
        for indices, sizes in zip(self.indices, self.sizes, strict=True):
            yield indices[:, : sizes.max(initial=self.least)], sizes


def blocks(
    streams: Sequence[np.random.Generator],
    num_examples: int,
    sample_rate: float,
    steps: int,
    keep: float | None = None,
    mapped: Callable[..., Iterable[Batches]] = map,
) -> Iterator[Block]:
    """All batches of some instances, a block of steps at a time.

    Args:
        streams: one stream for each instance; what it draws depends on nothing else that is in flight.
        num_examples: number of training examples.
        sample_rate: probability of an example to enter a batch.
        steps: number of steps.
        keep: each instance first keeps every example with this probability, and samples from those.
        mapped: how to sample for every instance, `map` or that of a pool.
    """
    parts = [None if keep is None else sample_batches(stream, num_examples, keep, 1)[0] for stream in streams]
    # How many steps are sampled by one draw: a function of the mechanism alone. From the whole data and not from the
    # parts: the blocks of all instances then cover the same steps.
    length = max(1, int(_DRAWS_PER_BLOCK / (num_examples * sample_rate + 1.0)))
    for done in range(0, steps, length):
        count = min(length, steps - done)
        constants = (repeat(constant) for constant in (num_examples, sample_rate, count))
        yield _side_by_side(list(mapped(sample_batches, streams, *constants, parts)))


def _side_by_side(batches: Sequence[Batches]) -> Block:
    sizes = np.stack([each.sizes for each in batches], axis=1)
    width = int(sizes.max(initial=0))
    indices = np.zeros((*sizes.shape, width), dtype=np.int32)
    for column, each in enumerate(batches):
        inside = np.arange(width) < sizes[:, column, None]
        indices[:, column][inside] = each.indices
    return Block(indices, sizes.astype(np.int32))


# --- which examples of a unit enter -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class UnitBlock(Block):
    """The batches of many instances where units enter, and of each of them some examples.

    Attributes:
        rows: steps x instances x width x places, numbers of examples; places beyond the count repeat the first one.
        counts: steps x instances x width, how many examples enter, 0 beyond the end of a batch.
    """

    rows: npt.NDArray[np.int32] = field(kw_only=True)
    counts: npt.NDArray[np.int32] = field(kw_only=True)


def rows_of_units(
    random: np.random.Generator, starts: IndexArray, units: npt.NDArray[Any], most: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """For every unit of a list some of its examples: all of them, or so many at most.

    Guarantee: where a unit has more than `most`, every set of `most` of them is equally likely, and draws are
    independent of each other, also for a unit that is listed twice.

    Args:
        random: the stream to draw from.
        starts: where the examples of every unit start, and at last their number.
        units: numbers of units.
        most: how many examples of a unit enter at most.

    Returns:
        Numbers of examples, units x `most`, where places that are left repeat the first one; and how many there are.

    References: Floyd's algorithm (Bentley and Floyd 1987, Communications of the ACM 30).
    """
    first, sizes = starts[units], starts[units + 1] - starts[units]
    places = np.minimum(np.arange(most), np.maximum(sizes[:, None] - 1, 0))
    places[np.arange(most) >= sizes[:, None]] = 0
    large = np.flatnonzero(sizes > most)
    if len(large):
        places[large] = _subsets(random, sizes[large], most)
    counts = np.minimum(sizes, most)
    return (first[:, None] + places).astype(np.int32), counts.astype(np.int32)


def _subsets(random: np.random.Generator, sizes: IndexArray, count: int) -> IndexArray:
    """For every size n a set of so many of the numbers below n, all sets equally likely."""
    chosen = np.empty((len(sizes), count), np.int64)
    for at in range(count):
        last = sizes - count + at
        drawn = random.integers(0, last, endpoint=True)
        taken = (chosen[:, :at] == drawn[:, None]).any(axis=1)
        chosen[:, at] = np.where(taken, last, drawn)
    return chosen


# --- what instances see, and where their batches come from ------------------------------------------------------------

TrainingRecipe = TrainConfig | PlainRecipe

# Models that one core trains at a time: few enough for its cache, enough to share the cost of every call.
TOGETHER = 8
# Examples of one instance whose order is drawn at a time. A constant: draws must not depend on memory.
_VISITS_PER_BLOCK = 2**12
# Numbers of noise that a GPU draws at a time. Likewise.
_NORMALS = 2**24
# Bytes of noisy inputs that one core holds.
_NOISY_BYTES = 2**29


@dataclass(frozen=True, eq=False)
class Seen:
    """What one instance sees: indices into the training set, and the labels that stand there for it."""

    members: IndexArray
    labels: npt.NDArray[np.int64]


NOTHING = Seen(np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True, eq=False)
class Group:
    """Models that are trained together.

    Attributes:
        seeds: where their randomness comes from.
        instances: their numbers.
        start: their first weights, models x parameters.
        seen: what each of them sees, where that is not the whole training set.
    """

    seeds: Seeds
    instances: Sequence[int]
    start: Tensor
    seen: Sequence[Seen] = ()

    @property
    def models(self) -> int:
        """How many of them are instances, and not there to fill up."""
        return len(self.instances)

    def __getitem__(self, part: slice) -> Group:
        return Group(self.seeds, self.instances[part], self.start[part], self.seen[part])

    def filled_up(self, slots: int) -> Group:
        """With models that see nothing in the places that are left."""
        lack = slots - len(self.start)
        start = torch.cat([self.start, self.start.new_zeros(lack, self.start.shape[1])])
        return Group(self.seeds, self.instances, start, [*self.seen, *[NOTHING] * lack])


# --- where examples are looked up -----------------------------------------------------------------------------------

# What a table needs to look up the batches of a step, models x width and whatever an entry has.
Entries = tuple[Tensor, ...]
# Share of a GPU's free memory that the training set may take.
_FOR_DATA = 0.7


def indices_of(block: Block, device: torch.device) -> Iterator[Entries]:
    """The indices of every step, all as wide as the widest, sent together."""
    return ((indices,) for indices in torch.from_numpy(block.indices).to(device))


@dataclass(frozen=True, eq=False)
class _OnDevice:
    """Inputs in the memory of the device that trains."""

    inputs: Tensor

    def take(self, places: Tensor) -> Tensor:
        """Those at some places, in the shape of these."""
        return self.inputs.index_select(0, places.flatten()).unflatten(0, places.shape)


@dataclass(frozen=True, eq=False)
class _OnHost:
    """Inputs that stay where they are, which may be a file: only what is asked for is copied.

    Attributes:
        inputs: contiguous; nothing else is taken from without a copy of the whole.
        pinned: whether what is taken will be sent to a GPU.
    """

    inputs: npt.NDArray[Any]
    pinned: bool = False

    def take(self, places: Tensor) -> Tensor:
        """Those at some places, in the shape of these, in torch's own memory."""
        shape, dtype = self.inputs.shape[1:], torch.from_numpy(self.inputs[:0].copy()).dtype
        taken = torch.empty(places.numel(), *shape, dtype=dtype, pin_memory=self.pinned)
        # No place is beyond the end, and with mode="raise" there would be a copy.
        np.take(self.inputs, places.flatten().numpy(), axis=0, out=taken.numpy(), mode="clip")
        return taken.unflatten(0, places.shape)


def has_room(inputs: npt.NDArray[Any], device: torch.device) -> bool:
    """Whether a device has room for the training set beside the models; a CPU looks it up where it is."""
    return device.type != "cuda" or inputs.nbytes <= _FOR_DATA * torch.cuda.mem_get_info(device)[0]


def _placed(
    inputs: npt.NDArray[Any], device: torch.device, *, is_sent: bool
) -> tuple[_OnDevice | _OnHost, torch.device]:
    """The inputs where they will be looked up, and which device that is."""
    if device.type == "cpu" or is_sent:
        return _OnHost(np.ascontiguousarray(inputs), pinned=device.type == "cuda"), torch.device("cpu")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # it is copied at once
        return _OnDevice(torch.from_numpy(inputs).to(device)), device


@dataclass(frozen=True, eq=False)
class Sent:
    """A table on the host whose batches are sent to the device, for a training set that has no room there.

    Guarantee: what `look_up` gives is, to the bit and in shape, what it would be if the table were on the device, and
    as there in memory of its own; so where the training set lies does not change a model. (But for noise on inputs,
    which a host draws from another stream than a GPU: a draw as good as the other.)

    Attributes:
        table: on the host.
    """

    table: _WholeSet | _UnitSet | Views

    def fill(self, group: Group) -> None:
        """See the table."""
        self.table.fill(group)

    def entries(self, block: Block) -> Iterator[Entries]:
        """What the table takes out for every step, such as inputs and labels, on the host."""
        for entries in self.table.entries(block):
            yield self.table.take(*entries)

    def look_up(self, *sent: Tensor) -> list[TakenExamples]:
        """What was sent, or a piece of it, in memory of its own."""
        return self.table.looked(*(each.clone(memory_format=torch.contiguous_format) for each in sent))


@dataclass(frozen=True, eq=False)
class TakenExamples:
    """Examples of a batch.

    Attributes:
        inputs: models x width x input; with shares, models x width x examples of a unit x input.
        labels: likewise.
        present: models x width, what is no padding; None: as far as the sizes of the batches say.
        shares: models x width x examples of a unit, what each counts in the mean of its unit; None: they are units.
    """

    inputs: Tensor
    labels: Tensor
    present: Tensor | None = None
    shares: Tensor | None = None


# --- the whole training set -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _WholeSet:
    """The training set; every model sees it."""

    inputs: _OnDevice | _OnHost
    labels: Tensor

    def fill(self, group: Group) -> None:
        """Nothing to do."""

    def entries(self, block: Block) -> Iterator[Entries]:
        """Indices of every step."""
        return indices_of(block, self.labels.device)

    def take(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and labels; entries are indices."""
        return self.inputs.take(chosen), self.labels.index_select(0, chosen.flatten()).unflatten(0, chosen.shape)

    def looked(self, inputs: Tensor, labels: Tensor) -> list[TakenExamples]:
        """What was taken, as the engine wants it."""
        return [TakenExamples(inputs, labels)]

    def look_up(self, *entries: Tensor) -> list[TakenExamples]:
        """The examples of some entries."""
        return self.looked(*self.take(*entries))


@dataclass(frozen=True, eq=False)
class _UnitSet:
    """The training set of units: of each that enters, some examples.

    Guarantee: what a unit gives is formed by one arithmetic, whatever else is in the batch or in the training set: that
    of single examples where it has one, that of means where it has more. (Units that all have one example are the same
    to the bit with this and with `_WholeSet`.)

    Attributes:
        whole: looks examples up.
        has_single: whether any unit has one example only.
    """

    whole: _WholeSet
    has_single: bool

    def fill(self, group: Group) -> None:
        """Nothing to do."""

    def entries(self, block: Block) -> Iterator[Entries]:
        """For every step, numbers of examples and how many of them count: of units of one, and of those of more."""
        assert isinstance(block, UnitBlock)
        rows, counts = found = block.rows, block.counts
        if self.has_single:
            found = (*_first(counts > 1, rows, counts), *_first(counts == 1, rows[..., 0], counts))
        return zip(*(torch.from_numpy(each).to(self.whole.labels.device) for each in found), strict=True)

    def take(self, rows: Tensor, counts: Tensor, *alone: Tensor) -> Entries:
        """Inputs and labels in the place of numbers."""
        if self.whole.labels.device.type == "cpu" and alone:
            rows, counts, alone = *_trimmed(rows, counts), _trimmed(*alone)
        taken = (*self.whole.take(rows.long()), counts)
        return taken if not alone else (*taken, *self.whole.take(alone[0].long()), alone[1])

    def looked(self, inputs: Tensor, labels: Tensor, counts: Tensor, *alone: Tensor) -> list[TakenExamples]:
        """What was taken, as the engine wants it."""
        places = torch.arange(labels.shape[2], device=counts.device)
        shares = torch.where(places < counts.unsqueeze(2), 1.0 / counts.clamp_min(1).unsqueeze(2), 0.0)
        several = TakenExamples(inputs, labels, counts > 0, shares)
        return [several] if not alone else [several, TakenExamples(alone[0], alone[1], alone[2] > 0)]

    def look_up(self, *entries: Tensor) -> list[TakenExamples]:
        """The examples of some entries."""
        return self.looked(*self.take(*entries))


def _first(chosen: npt.NDArray[np.bool_], rows: npt.NDArray[Any], counts: npt.NDArray[Any]) -> tuple[Any, Any]:
    """Those that are chosen moved to the front of every batch; the others count 0."""
    order = np.argsort(~chosen, axis=2, kind="stable")
    counts = np.take_along_axis(np.where(chosen, counts, 0), order, axis=2)
    return np.take_along_axis(rows, order.reshape(*order.shape, *(1,) * (rows.ndim - 3)), axis=2), counts


def _trimmed(rows: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Without the padding that all batches end with."""
    width = int((counts > 0).any(dim=0).sum())
    return rows[:, :width], counts[:, :width]


class PoissonSamples:
    """True Poisson batches of the whole training set, as private training needs them: of examples, or of units.

    Attributes:
        rows: places that a unit has for examples in a batch.
        width: of every batch, whatever is in it; 0 where batches vary.
        widest: units in a batch, hardly ever more.
        bytes_seen: memory that holds what one model sees.
        together: how many models a core may train at a time.
    """

    width, bytes_seen, together = 0, 0, TOGETHER

    def __init__(self, config: TrainConfig, data: Dataset, device: torch.device) -> None:
        self._config, self._units = config, data.count
        is_sent = not has_room(data.inputs, device)
        inputs, place = _placed(data.inputs, device, is_sent=is_sent)
        table = _WholeSet(inputs, torch.tensor(data.labels, device=place))
        self.rows, self._starts = 1, None
        # Units that all have one example are examples, to the bit; see `_UnitSet`.
        if data.starts is not None and data.count < len(data.labels):
            assert config.unit_rows is not None
            self.rows, self._starts = config.unit_rows, data.starts
            table = _UnitSet(table, bool((np.diff(data.starts) == 1).any()))
        self._set = Sent(table) if is_sent else table
        expected = config.sample_rate * self._units * (1.0 if config.keep is None else config.keep)
        self.widest = expected + 5.0 * math.sqrt(expected) + 8.0
        # No sum could hold them with the promised rounding; twelve standard deviations are never seen.
        if min(self._units, expected + 12.0 * math.sqrt(expected)) > MOST_EXAMPLES:
            raise ConfigError(
                f"Batches of some {expected:,.0f} examples are too large: at most {MOST_EXAMPLES:,} can be added up "
                "with the rounding that clipping allows for. Use a smaller sample_rate."
            )

    def seen(self, seeds: Seeds, instances: Sequence[int]) -> Sequence[Seen]:
        """What instances see beside the whole training set: nothing."""
        return ()

    def table(self, models: int, group: Group | None = None) -> _WholeSet | _UnitSet | Sent:
        """A place for what so many models see: one for all."""
        return self._set

    def blocks(self, group: Group, steps: int, mapped: Callable[..., Iterable[Any]] = map) -> Iterator[Block]:
        """All batches of a group, a block of steps at a time; `mapped` is `map` or that of a pool."""
        streams = [group.seeds.generator(instance, "batches") for instance in group.instances]
        config = self._config
        found = blocks(streams, self._units, config.sample_rate, steps, config.keep, mapped)
        return found if self._starts is None else self._with_rows(found, group, self._starts, mapped)

    def _with_rows(
        self, found: Iterator[Block], group: Group, starts: IndexArray, mapped: Callable[..., Iterable[Any]]
    ) -> Iterator[UnitBlock]:
        """With the examples of every unit that enters, drawn anew each time."""
        streams = [group.seeds.generator(instance, "rows") for instance in group.instances]
        for block in found:
            inside = np.arange(block.indices.shape[2]) < block.sizes[:, :, None]
            units = [block.indices[:, model][inside[:, model]] for model in range(len(streams))]
            rows = np.zeros((*block.indices.shape, self.rows), np.int32)
            counts = np.zeros(block.indices.shape, np.int32)
            drawn = mapped(rows_of_units, streams, repeat(starts), units, repeat(self.rows))
            for model, (own, several) in enumerate(drawn):
                rows[:, model][inside[:, model]], counts[:, model][inside[:, model]] = own, several
            yield UnitBlock(block.indices, block.sizes, block.least, rows=rows, counts=counts)


# --- what each instance sees ----------------------------------------------------------------------------------------


class Visits:
    """Passes over what every instance of a plan sees of the training set, in batches of one size.

    Guarantee: for a plan of parts, what an instance sees is its part, in the canonical order. For the others it is an
    independent draw, as the plan's mechanism says, from the stream of the instance and its purpose.

    Args:
        recipe: how instances are trained, resolved.
        data: the training set.
        device: where it is looked up.
        parts: for models of parts, the indices of what each of them sees, in the canonical order.

    Attributes:
        longest: how many examples an instance sees, at most.
        width: see `PoissonSamples`, also for the others.
    """

    def __init__(
        self, recipe: PlainRecipe, data: Dataset, device: torch.device, parts: Sequence[IndexArray] | None = None
    ) -> None:
        self._recipe, self._plan, self._labels, self._parts = recipe, recipe.plan, data.labels, parts
        self._starts = data.starts
        self._is_sent, self._shape = not has_room(data.inputs, device), data.inputs.shape[1:]
        self._inputs, self._place = _placed(data.inputs, device, is_sent=self._is_sent)
        self._noise = recipe.plan.noise
        self._ways = ways_to_move(recipe.shift) if data.inputs.ndim == 4 else 1
        self.longest = self._longest()
        if self.longest * self._ways >= 2**31:
            raise ConfigError(f"There are too many images to be moved in {self._ways} ways; use a smaller shift.")
        self.width, self.rows = recipe.batch_size, 1
        self.widest = float(recipe.batch_size + 16)
        noisy = 4 * math.prod(self._shape) if self._noise else 0
        self.bytes_seen = self.longest * (16 + noisy)
        if recipe.plan.is_deterministic:
            self.together = 1  # a function, whatever becomes of the others
        else:
            self.together = min(TOGETHER, max(1, _NOISY_BYTES // (noisy * self.longest))) if noisy else TOGETHER

    def _longest(self) -> int:
        if self._parts is not None:
            return max(1, *(len(part) for part in self._parts))
        return self._plan.longest(len(self._labels), self._recipe.steps * self._recipe.batch_size, self._starts)

    def seen(self, seeds: Seeds, instances: Sequence[int]) -> Sequence[Seen]:
        """What each of some instances sees; at most `longest` examples."""
        return [self._seen(seeds, instance) for instance in instances]

    def _seen(self, seeds: Seeds, instance: int) -> Seen:
        if self._parts is not None:
            members = self._parts[instance]
            return Seen(members, self._labels[members])
        assert self._recipe.classes is not None
        stream = partial(seeds.generator, instance)
        return Seen(*self._plan.drawn(self._labels, self._recipe.classes, self.longest, stream, self._starts))

    def table(self, models: int, group: Group | None = None) -> Views | Sent:
        """Padded to what any instance sees, or to what those of a group see; no arithmetic depends on the padding."""
        length = self.longest if group is None else max(1, *(len(seen.members) for seen in group.seen))
        members, labels = (torch.zeros(models, length, dtype=torch.int64, device=self._place) for _ in range(2))
        own = torch.zeros(models, length, *self._shape, device=self._place) if self._noise else None
        views = Views(self._inputs, members, labels, own, self._noise, self._ways, self._recipe.shift)
        return Sent(views) if self._is_sent else views

    def blocks(self, group: Group, steps: int, mapped: Callable[..., Iterable[Batches]] = map) -> Iterator[Block]:
        """All of what an instance sees in a random order, then again in another one."""
        sizes = [len(seen.members) for seen in group.seen]
        return visits(group.seeds, group.instances, sizes, steps=steps, batch_size=self.width, ways=self._ways)


@dataclass(frozen=True, eq=False)
class Views:
    """What the models in flight see of the training set, padded to one length.

    Attributes:
        examples: inputs of the training set.
        members: models x length, indices into the training set.
        labels: models x length.
        own: models x length x input, where every model has inputs of its own.
        noise: what is added to those.
        ways: in how many ways an input can be moved.
        shift: by up to so many pixels.
    """

    examples: _OnDevice | _OnHost
    members: Tensor
    labels: Tensor
    own: Tensor | None
    noise: float
    ways: int
    shift: int

    def fill(self, group: Group) -> None:
        """Put what the models of a group see into it."""
        for column in ("members", "labels"):
            rows = np.zeros(tuple(self.members.shape), np.int64)
            for row, seen in zip(rows, group.seen, strict=True):
                row[: len(seen.members)] = getattr(seen, column)
            getattr(self, column).copy_(torch.from_numpy(rows))
        if self.own is not None:
            for row, places, instance in zip(self.own, self.members, group.instances, strict=False):
                row.copy_(self.examples.take(places))
                add_normals(row, self.noise, group.seeds, instance)

    def entries(self, block: Block) -> Iterator[Entries]:
        """Indices of every step."""
        return indices_of(block, self.members.device)

    def take(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and labels; entries are places in what a model sees, with a way to see them; see `visits`."""
        models, width = chosen.shape
        chosen = chosen.long()
        chosen, way = (chosen, None) if self.ways == 1 else (chosen // self.ways, chosen % self.ways)
        labels = self.labels.gather(1, chosen)
        if self.own is None:
            places, source = self.members.gather(1, chosen), self.examples
        else:
            firsts = torch.arange(models, device=chosen.device).mul(self.own.shape[1]).unsqueeze(1)
            places, source = chosen + firsts, _OnDevice(self.own.flatten(0, 1))
        inputs = source.take(places)
        if way is not None:
            inputs = moved(inputs.flatten(0, 1), way.flatten(), self.shift).unflatten(0, (models, width))
        return inputs, labels

    def looked(self, inputs: Tensor, labels: Tensor) -> list[TakenExamples]:
        """What was taken, as the engine wants it."""
        return [TakenExamples(inputs, labels)]

    def look_up(self, *entries: Tensor) -> list[TakenExamples]:
        """The examples of some entries."""
        return self.looked(*self.take(*entries))


class _Order:
    """In which order an instance visits what it sees: all of it in a random order, then again in another one."""

    def __init__(self, random: np.random.Generator, size: int) -> None:
        self._random, self._size = random, size
        self._left = np.empty(0, np.int32)

    def take(self, count: int) -> npt.NDArray[np.int32]:
        """The positions of the next visits, of something to see."""
        lack = count - len(self._left)
        if lack > 0:
            rounds = np.tile(np.arange(self._size, dtype=np.int32), (-(-lack // self._size), 1))
            self._left = np.concatenate([self._left, self._random.permuted(rounds, axis=1).ravel()])
        taken, self._left = self._left[:count], self._left[count:]
        return taken


def visits(
    seeds: Seeds, instances: Sequence[int], sizes: Sequence[int], *, steps: int, batch_size: int, ways: int = 1
) -> Iterator[Block]:
    """All batches of some models, a block of steps at a time; those of a model that sees nothing are empty.

    An entry is `position * ways + way`: a position in what the model sees, and one of the ways in which to see it. What
    is drawn for a model depends on its instance and on how much it sees.

    Args:
        seeds: where all randomness comes from.
        instances: the numbers of the instances; models beyond them see nothing.
        sizes: how many examples each model sees.
        steps: number of steps.
        batch_size: examples in a batch.
        ways: see `moved`.
    """
    orders = [
        _Order(seeds.generator(instance, "batches"), size) for instance, size in zip(instances, sizes, strict=False)
    ]
    moves = [seeds.generator(instance, "moves") for instance in instances]
    filled = np.array([batch_size if size else 0 for size in sizes], np.int32)
    length = max(1, _VISITS_PER_BLOCK // batch_size)
    for done in range(0, steps, length):
        count = min(length, steps - done)
        indices = np.zeros((count, len(filled), batch_size), np.int32)
        for slot in np.flatnonzero(filled):
            indices[:, slot] = orders[slot].take(count * batch_size).reshape(count, batch_size)
            if ways > 1:
                indices[:, slot] *= ways
                indices[:, slot] += moves[slot].integers(ways, size=(count, batch_size), dtype=np.int32)
        yield Block(indices, np.tile(filled, (count, 1)), least=batch_size)


def ways_to_move(shift: int) -> int:
    """In how many ways an image can be moved by up to so many pixels."""
    return (2 * shift + 1) ** 2


def moved(images: Tensor, way: Tensor, shift: int) -> Tensor:
    """Images [N, C, H, W], each moved in one of the ways [N]; pixels at the border spread into what becomes free."""
    height, width = images.shape[2:]
    down, right = way // (2 * shift + 1) - shift, way % (2 * shift + 1) - shift
    rows = (torch.arange(height, device=way.device) - down.unsqueeze(1)).clamp(0, height - 1)
    columns = (torch.arange(width, device=way.device) - right.unsqueeze(1)).clamp(0, width - 1)
    places = (rows.unsqueeze(2) * width + columns.unsqueeze(1)).flatten(1).unsqueeze(1)
    return images.flatten(2).gather(2, places.expand(-1, images.shape[1], -1)).view_as(images)


def add_normals(values: Tensor, scale: float, seeds: Seeds, instance: int) -> None:
    """Add Gaussian noise to the inputs that an instance sees, in place, from its own stream.

    On a GPU it is drawn there in double precision, whose tails reach beyond eight standard deviations.
    """
    flat = values.view(-1)
    if values.device.type != "cuda":
        random = seeds.generator(instance, "features")
        flat.add_(torch.from_numpy(random.standard_normal(len(flat), dtype=np.float32)).to(values.device), alpha=scale)
        return
    random = torch.Generator(values.device).manual_seed(seeds.key(instance, "features") % 2**63)
    for at in range(0, len(flat), _NORMALS):
        part = flat[at : at + _NORMALS]
        drawn = torch.randn(len(part), dtype=torch.float64, device=values.device, generator=random)
        part.add_(drawn.float(), alpha=scale)


# --- either of them ---------------------------------------------------------------------------------------------------

ExampleTable = _WholeSet | _UnitSet | Views | Sent
