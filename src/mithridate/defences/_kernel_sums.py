"""Sums of weights over all examples, exactly, whatever the memory: examples come block by block.

Where units have many examples each, it is units that are weighed, each by its voice (see `_voices`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from mithridate._computer import in_shares, on_cores
from mithridate.defences._voices import Ranks, UnitBlock, Voices, told_apart
from mithridate.defences._whole_rows import FloatArray, IntArray, RowBlock, Rows, block_of, blocks, compared, turned

# The weight of an example whose kernel is 1.
FULL_WEIGHT = 1024
# Dot products are rounded to multiples of this before a weight is looked up: the table then fits into a fast cache.
STEP = 1 << 8
# How many examples are weighed at a time: their weights must sum to at most 2^24 to be exact in single precision.
BLOCK_EXAMPLES = 1 << 13
# How many inputs a core has at least.
_SHARE = 1 << 7
# Called with a number of examples, of how many.
Done = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Weighing:
    """Which examples are weighed on which inputs, and how.

    Attributes:
        table: weights by dot product, divided by `STEP` and rounded toward 0; negative ones count from the end.
        views: of the inputs.
        rows: of the examples.
        labels: of the examples.
        units: to which they belong; None: an example is a unit.
    """

    table: FloatArray
    views: Sequence[RowBlock]
    rows: Rows
    labels: IntArray
    units: WeighedUnits | None = None

    @property
    def inputs(self) -> int:
        """How many there are."""
        return self.views[0].shape[0]

    @property
    def voters(self) -> int:
        """How many units there are."""
        return len(self.labels) if self.units is None else len(self.units.starts) - 1


@dataclass(frozen=True, eq=False)
class WeighedUnits:
    """Units of the examples that are weighed.

    Attributes:
        starts: where the examples of each start, and at last their number.
        ranks: of the examples, from 0 on: of equally near ones of a unit, the smallest is its voice.
        labels: by rank.
    """

    starts: IntArray
    ranks: Ranks
    labels: IntArray

    @classmethod
    def of(cls, starts: IntArray, ranks: Ranks, labels: IntArray) -> WeighedUnits:
        """With the labels of the examples; of their ranks, only the order matters."""
        order = np.argsort(ranks)
        places = np.empty_like(ranks)
        places[order] = np.arange(len(ranks), dtype=ranks.dtype)
        return cls(starts, places, labels[order])


def label_sums(asked: Weighing, classes: int, done: Done | None = None) -> IntArray:
    """The sum of the weights of every label, inputs x classes."""
    sums = np.zeros((asked.inputs, classes), dtype=np.int64)
    if asked.units is not None:
        _weigh_units(asked, asked.units, partial(_add_voices, sums), done)
        return sums
    for block, labels in _blocks(asked, done):
        present, starts = np.unique(labels, return_index=True)
        add = partial(_add_weights, sums, asked, turned(block), present, starts)
        list(on_cores(add, in_shares(asked.inputs, _SHARE)))
    return sums


def _add_weights(
    sums: IntArray, asked: Weighing, block: RowBlock, present: IntArray, starts: IntArray, share: slice
) -> None:
    """Add the weights of a block for some inputs."""
    for part, dots in compared([view[share] for view in asked.views], block):
        # At most 2^13 weights of at most 2^10: exact in single precision.
        found = np.add.reduceat(_weights(dots, asked.table), starts, axis=1)
        sums[share][part, present] += found.astype(np.int64)


def _add_voices(sums: IntArray, part: slice, weights: FloatArray, labels: IntArray) -> None:
    """Add the weights of voices for some inputs."""
    inputs, classes = sums[part].shape
    cells = np.arange(inputs)[:, None] * classes + labels
    # Sums in double precision, of less than 2^53.
    found = np.bincount(cells.ravel(), weights.ravel(), minlength=inputs * classes)
    sums[part] += found.reshape(inputs, classes).astype(np.int64)


def own_weights(asked: Weighing, predicted: IntArray, done: Done | None = None) -> npt.NDArray[np.uint32]:
    """How many voters of the predicted label have each weight, inputs x (FULL_WEIGHT + 1)."""
    counts = np.zeros((asked.inputs, FULL_WEIGHT + 1), dtype=np.uint32)
    if asked.units is not None:
        _weigh_units(asked, asked.units, partial(_count_voices, counts, predicted), done)
        return counts
    # Inputs of one label side by side, and threads that are started once for a block: there may be many labels.
    by_label = np.argsort(predicted, kind="stable")
    shares = [by_label[share] for share in in_shares(asked.inputs, _SHARE)]
    for block, labels in _blocks(asked, done):
        list(on_cores(partial(_count_weights, counts, asked, block, labels, predicted), shares))
    return counts


def _count_weights(
    counts: npt.NDArray[np.uint32],
    asked: Weighing,
    block: RowBlock,
    labels: IntArray,
    predicted: IntArray,
    share: IntArray,
) -> None:
    """Count the weights of a block, sorted by label, for some inputs."""
    wanted = predicted[share]
    for label in np.intersect1d(labels, wanted).tolist():
        asking = share[wanted == label]
        first, last = np.searchsorted(labels, [label, label + 1])
        for part, dots in compared([view[asking] for view in asked.views], turned(block[first:last])):
            for at, weights in zip(asking[part].tolist(), _weights(dots, asked.table).astype(np.int64), strict=True):
                counts[at] += np.bincount(weights, minlength=FULL_WEIGHT + 1).astype(np.uint32)


def _count_voices(
    counts: npt.NDArray[np.uint32], predicted: IntArray, part: slice, weights: FloatArray, labels: IntArray
) -> None:
    """Count the weights of voices for some inputs."""
    inputs, units = np.nonzero(labels == predicted[part, None])
    np.add.at(counts[part], (inputs, weights[inputs, units].astype(np.int64)), np.uint32(1))


def _weigh_units(
    asked: Weighing,
    units: WeighedUnits,
    add: Callable[[slice, FloatArray, IntArray], None],
    done: Done | None,
) -> None:
    """Call `add` with some inputs, and the weights and labels of the voices of some units on them."""
    carried = np.empty(asked.inputs)
    for part in blocks(asked.rows, BLOCK_EXAMPLES):
        block, here = turned(block_of(asked.rows, part)), UnitBlock.of(part, units.starts, units.ranks)
        list(on_cores(partial(_weigh_block, asked, units, block, here, carried, add), in_shares(asked.inputs, _SHARE)))
        if done is not None:
            done(here.bounds.whole, asked.voters)


def _weigh_block(
    asked: Weighing,
    units: WeighedUnits,
    block: RowBlock,
    here: UnitBlock,
    carried: Voices,
    add: Callable[[slice, FloatArray, IntArray], None],
    share: slice,
) -> None:
    for part, dots in compared([view[share] for view in asked.views], block):
        products, ranks = told_apart(here.voices(dots, carried[share][part]))
        inputs = slice(share.start + part.start, share.start + part.stop)
        add(inputs, _weights(products, asked.table), units.labels[ranks])


def _blocks(asked: Weighing, done: Done | None) -> Iterator[tuple[RowBlock, IntArray]]:
    """Some examples at a time, sorted by label, so that the weights of a label lie side by side; and their labels."""
    for part in blocks(asked.rows, BLOCK_EXAMPLES):
        by_label = np.argsort(asked.labels[part], kind="stable")
        # A block of a mapped file is read as it lies, and sorted in memory.
        yield block_of(asked.rows, part)[by_label], asked.labels[part][by_label]
        if done is not None:
            done(part.stop - part.start, len(asked.labels))


def _weights(dots: FloatArray | IntArray, table: FloatArray) -> FloatArray:
    """Whole numbers, inputs x examples."""
    # Divided by a power of two, whole numbers stay as exact as they were.
    steps = (dots * np.float32(1 / STEP)).astype(np.int64)
    return np.take(table, steps, mode="wrap")
