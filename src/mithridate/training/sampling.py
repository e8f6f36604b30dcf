"""True Poisson sampling at the cost of the batch: gaps between sampled examples instead of a coin for each.

The coins of `steps` consecutive batches over `n` examples are one sequence of `steps * n` independent coins. The gaps
between its heads are geometric, so a stretch of training is sampled by one vectorised draw of gaps; a position p means
example `p % n` in step `p // n`. Batches vary in size and may be empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

IndexArray = npt.NDArray[np.int64]

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


def steps_per_block(num_examples: int, sample_rate: float) -> int:
    """How many steps are sampled by one draw: a function of the mechanism alone."""
    return max(1, int(_DRAWS_PER_BLOCK / (num_examples * sample_rate + 1.0)))


def sample_batches(random: np.random.Generator, num_examples: int, sample_rate: float, steps: int) -> Batches:
    """Poisson batches of `steps` steps.

    Guarantee: every example is in every batch with probability `sample_rate`, independently of all others; exact up to
    the resolution of a double, 2^-53 in probability: gaps beyond 36 / sample_rate, of that probability, do not occur.

    Args:
        random: the stream to draw from.
        num_examples: number of examples, 0 or more.
        sample_rate: probability of an example to enter a batch, in (0, 1].
        steps: number of batches.

    >>> batches = sample_batches(np.random.default_rng(0), 1000, 0.01, 3)
    >>> len(batches), bool(batches.sizes.sum() == len(batches.indices))
    (3, True)
    """
    total = num_examples * steps
    if sample_rate == 1.0 or total == 0:
        heads = np.arange(total, dtype=np.int64)
    else:
        heads = _heads(random, total, sample_rate)
    starts = np.searchsorted(heads, np.arange(steps + 1, dtype=np.int64) * num_examples)
    return Batches(heads % max(num_examples, 1), starts.astype(np.int64))


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
    # From the whole data and not from the parts: the blocks of all instances then cover the same steps.
    length = steps_per_block(num_examples, sample_rate)
    for done in range(0, steps, length):
        count = min(length, steps - done)
        sample = partial(_sample_part, num_examples, sample_rate, count)
        yield _side_by_side(list(mapped(sample, streams, parts)))


def _sample_part(
    num_examples: int, sample_rate: float, steps: int, stream: np.random.Generator, part: IndexArray | None
) -> Batches:
    if part is None:
        return sample_batches(stream, num_examples, sample_rate, steps)
    batches = sample_batches(stream, len(part), sample_rate, steps)
    return Batches(part[batches.indices], batches.starts)


def _side_by_side(batches: Sequence[Batches]) -> Block:
    sizes = np.stack([each.sizes for each in batches], axis=1)
    width = int(sizes.max(initial=0))
    indices = np.zeros((*sizes.shape, width), dtype=np.int32)
    for column, each in enumerate(batches):
        inside = np.arange(width) < sizes[:, column, None]
        indices[:, column][inside] = each.indices
    return Block(indices, sizes.astype(np.int32))
