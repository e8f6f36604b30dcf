"""The nearest examples of many inputs, exactly, whatever the memory: examples come block by block, each block once.

Every input keeps the examples so far that may be among its nearest, as sortable keys. A guess at the last product that
will count, from every sixteenth example, spares most of the others; a guess that was too high is found out, for then
too few were kept, and the input is asked again without one. Who is nearest therefore never depends on the guess, on
the blocks or on the threads.
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
from mithridate.defences._whole_rows import (
    LARGEST_PRODUCT,
    FloatArray,
    IntArray,
    RowBlock,
    Rows,
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
Ranks = npt.NDArray[np.uint32]
# Has `keys_of_shard` called with these arguments and every shard of the examples; gives their number and what it gave.
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
    """

    inputs: Inputs
    rows: Rows
    ranks: Ranks
    labels: npt.NDArray[Any]


def fill_with_nearest(
    order: npt.NDArray[Any], asked: Search, told: Told | None = None, elsewhere: Elsewhere | None = None
) -> None:
    """Write the labels of the nearest examples of every input, the nearest first, as many as `order` is wide.

    Guarantee: of two examples that one comes first which has the larger dot product with the input, and of equal ones
    that of the smaller rank.

    Args:
        order: inputs x number of examples that are asked for, of which there are as many.
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
        kept = _Kept.guessing(views, asked.rows, count, keys[: part.stop - start])
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
    """

    count: int
    keys: IntArray
    found: IntArray
    least: FloatArray

    @classmethod
    def guessing(cls, views: InputViews, rows: Rows, count: int, keys: IntArray) -> _Kept:
        """None so far, with a guess at the last product that counts."""
        # One in sixteen, or fewer, so that they are one block.
        every = max(_ASKED, -(-rows.shape[0] // next(blocks(rows, _BLOCK_EXAMPLES)).stop))
        inputs, asked = views[0].shape[0], rows.shape[0] // every
        least = np.full(inputs, -LARGEST_PRODUCT, dtype=np.float32)
        # Were the examples asked drawn by lot, three deviations would seldom be too few.
        expected = count / every
        place = math.ceil(expected + 3 * math.sqrt(expected) + 3)
        if place < asked:
            some = turned(block_of(rows, slice(0, asked * every, every)))

            def guess(share: slice) -> None:
                for part, dots in compared([view[share] for view in views], some):
                    dots.partition(asked - place, axis=1)
                    least[share][part] = dots[:, asked - place]

            list(on_cores(guess, in_shares(inputs, _SHARE)))
        return cls(count, keys, np.zeros(inputs, dtype=np.int64), least)

    def compare(self, views: InputViews, asked: Search, elsewhere: Elsewhere | None) -> Iterator[float]:
        """Compare the inputs with all examples; tells now and then which share of it is done."""
        if elsewhere is None:
            return self.compare_here(views, asked.rows, asked.ranks)
        return self._compare_elsewhere(elsewhere, views, len(asked.ranks))

    def _compare_elsewhere(self, elsewhere: Elsewhere, views: InputViews, total: int) -> Iterator[float]:
        """Have shards of the examples compared, and keep what they keep."""
        seen = 0
        for examples, (found, keys) in elsewhere(self.count, self.keys.shape[1], self.least, views):
            ends = np.cumsum(found)
            for at, (start, end) in enumerate(zip(ends - found, ends, strict=True)):
                self._add(at, keys[start:end])
            seen += examples
            yield seen / total

    def compare_here(self, views: InputViews, rows: Rows, ranks: Ranks) -> Iterator[float]:
        """The same with these examples, on the cores here."""
        total, inputs = rows.shape[0], len(self.found)
        for part in blocks(rows, _BLOCK_EXAMPLES):
            block, of_block = turned(block_of(rows, part)), ranks[part].astype(np.int64)
            keep = partial(self._keep, views, block, of_block)
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
        anew = _Kept(self.count, self.keys[few], np.zeros(len(few), dtype=np.int64), least)
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


def keys_of_shard(
    count: int, room: int, least: FloatArray, views: InputViews, rows: Rows, ranks: Ranks
) -> tuple[IntArray, IntArray]:
    """What is kept of a shard of the examples: how many for each input, and their keys, input by input."""
    require_exact_products()  # a worker may have another library of them, or other settings, than whoever asks
    inputs, count = len(least), min(count, rows.shape[0])
    keys = np.empty((inputs, min(room, rows.shape[0])), dtype=np.int64)
    kept = _Kept(count, keys, np.zeros(inputs, dtype=np.int64), least.copy())
    for _ in kept.compare_here(views, rows, ranks):
        pass
    return kept.found, np.concatenate([row[:found] for row, found in zip(keys, kept.found, strict=True)])
