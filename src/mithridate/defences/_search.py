"""The nearest examples of many inputs, exactly, whatever the memory: examples come block by block, each block once.

Every input keeps the examples so far that may be among its nearest, as sortable keys. A guess at the last product that
will count, from every sixteenth example, spares most of the others; a guess that was too high is found out, for then
too few were kept, and the input is asked again without one. Who is nearest therefore never depends on the guess, on
the blocks or on the threads.

Where units have many examples each, it is units that are near, each by its voice (see `_voices`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate._computer import in_shares, on_cores
from mithridate.defences._nearness import Inputs
from mithridate.defences._voices import Ranks, UnitBlock, Voices, at_least, some_units, told_apart
from mithridate.defences._whole_rows import (
    LARGEST_PRODUCT,
    FloatArray,
    IntArray,
    RowBlock,
    Rows,
    TurnedBlocks,
    block_of,
    blocks,
    compared,
    require_exact_products,
    turned,
)

# What follows bounds memory and changes no result.
# Examples that are compared at a time, inputs that a core has at least, and bytes of keys, most where rows are large.
_BLOCK_EXAMPLES = 1 << 15
_SHARE = 1 << 7
_KEY_BYTES, _MOST_KEY_BYTES = 1 << 28, 1 << 31
# One example in so many is asked for a guess, and so many more than asked for are kept before the rest is dropped.
_ASKED = 16
_SPARE = 1 << 10

# Called with the number of inputs that are done.
Told = Callable[[int], None]
InputViews = tuple[RowBlock, ...]
# Has `keys_of_shard` called with these arguments and every shard of the examples; gives the number of voters in it, and
# what it gave.
Elsewhere = Callable[[int, int, FloatArray, InputViews], Iterator[tuple[int, tuple[IntArray, IntArray]]]]
RANK_BITS = 32
RANKS = (1 << RANK_BITS) - 1


@dataclass(frozen=True, eq=False)
class Search:
    """Which examples are compared with which inputs.

    Attributes:
        inputs: to find the nearest examples for.
        rows: of the examples.
        ranks: of the examples, each another number: of equally near ones, the smaller comes first.
        labels: by rank.
        starts: where the examples of every unit start, and at last their number; None: an example is a unit.
        turned: blocks of the examples that were compared with earlier inputs; None: none are kept.
    """

    inputs: Inputs
    rows: Rows
    ranks: Ranks
    labels: npt.NDArray[Any]
    starts: IntArray | None = None
    turned: TurnedBlocks | None = None

    @property
    def voters(self) -> int:
        """How many units there are."""
        return voters_in(self.ranks, self.starts)

    def block(self, part: slice | IntArray) -> RowBlock:
        """Some examples as they are compared with inputs."""
        return turned(block_of(self.rows, part)) if self.turned is None else self.turned.of(self.rows, part)


def voters_in(ranks: npt.NDArray[Any], starts: IntArray | None) -> int:
    """How many units some examples are."""
    return len(ranks) if starts is None else len(starts) - 1


def fill_with_nearest(
    order: npt.NDArray[Any], asked: Search, told: Told | None = None, elsewhere: Elsewhere | None = None
) -> None:
    """Write the labels of the nearest examples of every input, the nearest first, as many as `order` is wide.

    Guarantee: of two examples that one comes first which has the larger dot product with the input, and of equal ones
    that of the smaller rank. Of a unit of many, only the first of its examples is there.

    Args:
        order: inputs x number of voters that are asked for, of which there are as many.
        asked: inputs and examples.
        told: about progress.
        elsewhere: where shards of the examples are compared; None: here.
    """
    count, total = order.shape[1], len(asked.inputs)
    room = count + count // 4 + _SPARE
    # Examples that are larger than memory are to be read few times.
    size = min(total, max(1, max(_KEY_BYTES, min(_MOST_KEY_BYTES, _bytes_of(asked.rows) // 8)) // (8 * room)))
    keys = np.empty((size, room), dtype=np.int64)
    for start in range(0, total, size):
        part = slice(start, min(start + size, total))
        views = asked.inputs.part(part)
        kept = _Kept.guessing(views, asked, count, keys[: part.stop - start])
        for share in kept.compare(views, asked, elsewhere):
            if told is not None:
                told(start + int((part.stop - start) * share))
        kept.ask_again(views, asked, elsewhere)
        kept.write(order[part], asked.labels)


def _bytes_of(rows: Rows) -> int:
    return rows.nbytes if isinstance(rows, np.ndarray) else rows.data.nbytes


@dataclass(eq=False)
class _Kept:
    """The examples so far that may be among the nearest of some inputs.

    A key is smaller the nearer its example is: what the product lacks to the largest one, then the rank.

    Attributes:
        count: how many are asked for.
        keys: inputs x room.
        found: how many keys of each input are there; nothing is behind them.
        least: examples with a smaller product are not kept.
        carried: by input, what a unit that the last block cut has said so far.
    """

    count: int
    keys: IntArray
    found: IntArray
    least: FloatArray
    carried: Voices

    @classmethod
    def of(cls, count: int, keys: IntArray, least: FloatArray) -> _Kept:
        """None so far."""
        return cls(count, keys, np.zeros(len(least), dtype=np.int64), least, np.empty(len(least)))

    @classmethod
    def guessing(cls, views: InputViews, asked: Search, count: int, keys: IntArray) -> _Kept:
        """None so far, with a guess at the last product that counts."""
        inputs, examples = views[0].shape[0], asked.rows.shape[0]
        least = np.full(inputs, -LARGEST_PRODUCT, dtype=np.float32)
        # One in sixteen, or fewer, so that they are one block.
        most = next(blocks(asked.rows, _BLOCK_EXAMPLES)).stop
        every = max(_ASKED, -(-examples // most))
        voters = asked.voters // every
        # Were those asked drawn by lot, three deviations would seldom be too few.
        expected = count / every
        place = math.ceil(expected + 3 * math.sqrt(expected) + 3)
        chosen, within = _asked_of(asked, every, most)
        if place < voters and chosen is not None:
            block = asked.block(chosen)

            def guess(share: slice) -> None:
                for part, dots in compared([view[share] for view in views], block):
                    largest = dots if within is None else np.maximum.reduceat(dots, within, axis=1)
                    largest.partition(voters - place, axis=1)
                    least[share][part] = largest[:, voters - place]

            list(on_cores(guess, in_shares(inputs, _SHARE)))
        return cls.of(count, keys, least)

    def compare(self, views: InputViews, asked: Search, elsewhere: Elsewhere | None) -> Iterator[float]:
        """Compare the inputs with all examples; tells now and then which share of it is done."""
        if elsewhere is None:
            return self.compare_here(views, asked.rows, asked.ranks, asked.starts, asked.block)
        return self._compare_elsewhere(elsewhere, views, asked.voters)

    def _compare_elsewhere(self, elsewhere: Elsewhere, views: InputViews, total: int) -> Iterator[float]:
        """Have shards of the examples compared, and keep what they keep."""
        seen = 0
        for voters, (found, keys) in elsewhere(self.count, self.keys.shape[1], self.least, views):
            ends = np.cumsum(found)
            for at, (start, end) in enumerate(zip(ends - found, ends, strict=True)):
                self._add(at, keys[start:end])
            seen += voters
            yield seen / total

    def compare_here(
        self,
        views: InputViews,
        rows: Rows,
        ranks: Ranks,
        starts: IntArray | None,
        block_at: Callable[[slice], RowBlock],
    ) -> Iterator[float]:
        """The same with these examples, on the cores here."""
        total, inputs = rows.shape[0], len(self.found)
        for part in blocks(rows, _BLOCK_EXAMPLES):
            block = block_at(part)
            if starts is None:
                keep = partial(self._keep, views, block, ranks[part].astype(np.int64))
            else:
                keep = partial(self._keep_units, views, block, UnitBlock.of(part, starts, ranks))
            for inputs_done in on_cores(keep, in_shares(inputs, _SHARE)):
                yield (part.start + (part.stop - part.start) * inputs_done / inputs) / total

    def _keep(self, views: InputViews, block: RowBlock, ranks: IntArray, share: slice) -> int:
        """Keep those of a block that may count for a share of the inputs; where that ends."""
        for part, dots in compared([view[share] for view in views], block):
            for at, of_input in enumerate(dots, share.start + part.start):
                self._keep_of_input(at, of_input, ranks)
        return share.stop

    def _keep_of_input(self, at: int, dots: FloatArray, ranks: IntArray) -> None:
        near = np.flatnonzero(dots >= self.least[at])
        # In whole numbers: of a negative product the difference is beyond what single precision holds.
        keys = LARGEST_PRODUCT - dots[near].astype(np.int64)
        keys <<= RANK_BITS
        keys |= ranks[near]
        self._add(at, keys)

    def _keep_units(self, views: InputViews, block: RowBlock, units: UnitBlock, share: slice) -> int:
        """The same for units."""
        for part, dots in compared([view[share] for view in views], block):
            voices = units.voices(dots, self.carried[share][part])
            for at, of_input in enumerate(voices, share.start + part.start):
                products, ranks = told_apart(of_input[of_input > at_least(float(self.least[at]))])
                self._add(at, (LARGEST_PRODUCT - products) << RANK_BITS | ranks)
        return share.stop

    def _add(self, at: int, keys: IntArray) -> None:
        """Keep more of one input; if there is no room for all, those that are nearest."""
        before = int(self.found[at])
        after = before + len(keys)
        if after > self.keys.shape[1]:
            keys = np.concatenate([self.keys[at, :before], keys])
            keys = np.partition(keys, self.count - 1)[: self.count]
            before, after = 0, self.count
            # Others with a smaller product come after all of these.
            self.least[at] = LARGEST_PRODUCT - (int(keys.max()) >> RANK_BITS)
        self.keys[at, before:after] = keys
        self.found[at] = after

    def ask_again(self, views: InputViews, asked: Search, elsewhere: Elsewhere | None) -> None:
        """Compare inputs without a guess, where it was too high."""
        few = np.flatnonzero(self.found < self.count)
        if not len(few):
            return
        least = np.full(len(few), -LARGEST_PRODUCT, dtype=np.float32)
        anew = _Kept.of(self.count, self.keys[few], least)
        for _ in anew.compare(tuple(view[few] for view in views), asked, elsewhere):
            pass
        self.keys[few], self.found[few] = anew.keys, anew.found

    def write(self, order: npt.NDArray[Any], labels: npt.NDArray[Any]) -> None:
        """Write the labels of the nearest, in their order."""

        def write(share: slice) -> None:
            for at in range(share.start, share.stop):
                keys = self.keys[at, : self.found[at]]
                keys.sort()
                np.take(labels, keys[: self.count] & RANKS, out=order[at])

        list(on_cores(write, in_shares(len(order), _SHARE)))


def _asked_of(asked: Search, every: int, most: int) -> tuple[slice | IntArray | None, IntArray | None]:
    """Examples of one voter in so many; of units, where each starts among them. None: they are too many."""
    if asked.starts is None:
        return slice(0, asked.voters // every * every, every), None
    return some_units(asked.starts, every, most) or (None, None)


def keys_of_shard(
    count: int,
    room: int,
    least: FloatArray,
    views: InputViews,
    rows: Rows,
    ranks: Ranks,
    starts: IntArray | None = None,
) -> tuple[IntArray, IntArray]:
    """What is kept of a shard of the examples: how many for each input, and their keys, input by input."""
    require_exact_products()  # a worker may have another library of them, or other settings, than whoever asks
    voters = voters_in(ranks, starts)
    keys = np.empty((len(least), min(room, voters)), dtype=np.int64)
    kept = _Kept.of(min(count, voters), keys, least.copy())
    for _ in kept.compare_here(views, rows, ranks, starts, lambda part: turned(block_of(rows, part))):
        pass
    return kept.found, np.concatenate([row[:found] for row, found in zip(keys, kept.found, strict=True)])
