"""Inputs are compared with examples on a GPU: the numbers of a CPU, bit for bit.

Whole numbers up to 2^24 are exact in single precision, in any order of summation, and so are all products and partial
sums of them here (see `_whole_rows`). TF32, which rounds what is multiplied, is switched off, and that is checked. Keys
are whole numbers of 64 bits that differ from each other, so that the smallest ones are the same set however they are
found. So are the smallest ones of the examples of each unit, which are their voices (see `_voices`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mithridate._torch import products
from mithridate.defences import _kernel_sums
from mithridate.defences._kernel_sums import BLOCK_EXAMPLES, FULL_WEIGHT, STEP, Done, WeighedUnits, Weighing
from mithridate.defences._nearness import chunks_of
from mithridate.defences._search import RANK_BITS, RANKS, Search, Told
from mithridate.defences._search import fill_with_nearest as fill_here
from mithridate.defences._voices import UnitBounds
from mithridate.defences._whole_rows import LARGEST_NORM, LARGEST_PRODUCT, IntArray, RowBlock, Rows
from mithridate.errors import ConfigError

_log = logging.getLogger(__name__)
_NO_ROOM = "The GPU has too little free memory; inputs and examples are compared on the CPU, with the same results."
# Examples that are compared at a time. It bounds memory and cannot change a result.
_BLOCK_EXAMPLES = 1 << 20
# Of the memory that is free: for products and keys, for examples that stay on the device, and for a block of them.
_FOR_PRODUCTS, _FOR_EXAMPLES, _FOR_BLOCK = 0.4, 0.3, 0.1
# Bytes that are held for one product: itself, its key, and what a selection needs.
_BYTES_OF_PRODUCT = 32
_LARGEST_KEY = torch.iinfo(torch.int64).max


class OnGpu:
    """One GPU. Sparse rows are compared on the CPU.

    Raises:
        ConfigError: its matrix products are not exact.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with products("float32", device):
            odd = torch.diag(torch.full((256,), float(LARGEST_NORM - 1), dtype=torch.float32, device=device))
            if not (odd @ odd).diagonal().double().eq((LARGEST_NORM - 1) ** 2).all():
                raise ConfigError("Matrix products are not exact in single precision on this GPU; use device='cpu'.")

    # --- nearest examples ---------------------------------------------------------------------------------------------

    def fill_with_nearest(self, order: npt.NDArray[Any], asked: Search, told: Told | None) -> None:
        """See `_search.fill_with_nearest`."""
        if not isinstance(asked.rows, np.ndarray):
            fill_here(order, asked, told)
            return
        try:
            self._fill(order, asked, told)
        except torch.OutOfMemoryError:
            _log.warning(_NO_ROOM)
            fill_here(order, asked, told)

    def _fill(self, order: npt.NDArray[Any], asked: Search, told: Told | None) -> None:
        assert isinstance(asked.rows, np.ndarray)
        size = min(_BLOCK_EXAMPLES, len(asked.ranks))
        examples = _Examples(asked.rows, asked.ranks, asked.starts, size, self._device)
        labels = torch.from_numpy(asked.labels.astype(np.int32)).to(self._device)
        total, size = len(asked.inputs), self._inputs_at_a_time(examples.size)
        with products("float32", self._device):
            for start in range(0, total, size):
                part = slice(start, min(start + size, total))
                keys = self._smallest_keys(asked.inputs.part(part), examples, order.shape[1])
                order[part] = labels[keys.sort(dim=1).values & RANKS].cpu().numpy()
                if told is not None:
                    told(part.stop)

    def _smallest_keys(self, views: tuple[RowBlock, ...], examples: _Examples, count: int) -> Tensor:
        """Of every input, in no order."""
        seen = self._moved(views)
        kept: Tensor | None = None
        carried = torch.empty(len(seen[0]), dtype=torch.int64, device=self._device)
        for block, ranks, units in examples.blocks():
            keys = _keys(seen, block, ranks)
            if units is not None:
                keys = units.smallest(keys, carried)
            kept = _smallest(keys if kept is None else torch.cat([kept, _smallest(keys, count)], dim=1), count)
        assert kept is not None
        return kept

    # --- sums of weights ----------------------------------------------------------------------------------------------

    def label_sums(self, asked: Weighing, classes: int, done: Done) -> IntArray:
        """See `_kernel_sums.label_sums`."""
        if not isinstance(asked.rows, np.ndarray):
            return _kernel_sums.label_sums(asked, classes, done)
        try:
            return self._label_sums(asked, classes, done)
        except torch.OutOfMemoryError:
            _log.warning(_NO_ROOM)
            return _kernel_sums.label_sums(asked, classes)

    def _label_sums(self, asked: Weighing, classes: int, done: Done) -> IntArray:
        sums = torch.zeros(asked.inputs, classes, dtype=torch.int64, device=self._device)
        for part, weights, labels in self._weights(asked, done):
            # The labels of examples are the same for all inputs, those of voices are not.
            add = sums[part].index_add_ if labels.dim() == 1 else sums[part].scatter_add_
            sums[part] = add(1, labels, weights.long())
        return sums.cpu().numpy()

    def own_weights(self, asked: Weighing, predicted: IntArray, done: Done) -> npt.NDArray[np.uint32]:
        """See `_kernel_sums.own_weights`."""
        if not isinstance(asked.rows, np.ndarray):
            return _kernel_sums.own_weights(asked, predicted, done)
        try:
            return self._own_weights(asked, predicted, done)
        except torch.OutOfMemoryError:
            _log.warning(_NO_ROOM)
            return _kernel_sums.own_weights(asked, predicted)

    def _own_weights(self, asked: Weighing, predicted: IntArray, done: Done) -> npt.NDArray[np.uint32]:
        counts = torch.zeros(asked.inputs, FULL_WEIGHT + 1, dtype=torch.int64, device=self._device)
        wanted = torch.from_numpy(predicted).to(self._device)
        for part, weights, labels in self._weights(asked, done):
            is_own = labels == wanted[part].unsqueeze(1)
            counts[part] = counts[part].scatter_add_(1, weights.long(), is_own.long())
        return counts.cpu().numpy().astype(np.uint32)

    def _weights(self, asked: Weighing, done: Done) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Some inputs, the weights of some voters on them, and the labels of these."""
        if asked.units is not None:
            yield from self._weights_of_units(asked, asked.units, done)
            return
        assert isinstance(asked.rows, np.ndarray)
        examples = _Examples(asked.rows, asked.labels, None, BLOCK_EXAMPLES, self._device)
        table = torch.from_numpy(asked.table).to(self._device)
        seen, size = self._moved(asked.views), self._inputs_at_a_time(examples.size)
        with products("float32", self._device):
            for block, labels, _ in examples.blocks():
                for part in chunks_of(asked.inputs, size, None):
                    # Divided by a power of two, whole numbers stay exact; rounded toward 0, negative ones from the end.
                    steps = _dots([view[part] for view in seen], block).div_(STEP).long().remainder_(len(table))
                    yield part, table[steps], labels
                done(len(labels), len(asked.labels))

    def _weights_of_units(
        self, asked: Weighing, of_units: WeighedUnits, done: Done
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """The same of units, by their voices."""
        assert isinstance(asked.rows, np.ndarray)
        examples = _Examples(asked.rows, of_units.ranks, of_units.starts, BLOCK_EXAMPLES, self._device)
        table, labels = (torch.from_numpy(each).to(self._device) for each in (asked.table, of_units.labels))
        seen, size = self._moved(asked.views), self._inputs_at_a_time(examples.size)
        carried = torch.empty(asked.inputs, dtype=torch.int64, device=self._device)
        with products("float32", self._device):
            for block, ranks, units in examples.blocks():
                assert units is not None
                for part in chunks_of(asked.inputs, size, None):
                    keys = units.smallest(_keys([view[part] for view in seen], block, ranks), carried[part])
                    dots = LARGEST_PRODUCT - (keys >> RANK_BITS)
                    # Rounded toward 0, as without units.
                    steps = dots.div_(STEP, rounding_mode="trunc").remainder_(len(table))
                    yield part, table[steps], labels[keys & RANKS]
                done(units.whole, asked.voters)

    # --- memory -------------------------------------------------------------------------------------------------------

    def _moved(self, views: Any) -> list[Tensor]:
        return [torch.from_numpy(np.ascontiguousarray(view)).to(self._device) for view in views]

    def _inputs_at_a_time(self, block: int) -> int:
        return max(1, int(_FOR_PRODUCTS * _free(self._device)) // (_BYTES_OF_PRODUCT * block))


class _Examples:
    """Examples block by block on a device; if there is room, they stay there from one pass to the next."""

    def __init__(
        self, rows: Rows, beside: npt.NDArray[Any], starts: IntArray | None, size: int, device: torch.device
    ) -> None:
        assert isinstance(rows, np.ndarray)
        self._rows, self._beside, self._starts, self._device = rows, beside, starts, device
        self.size = max(1, min(size, int(_FOR_BLOCK * _free(device)) // (4 * max(1, rows.shape[1]))))
        self._stays = rows.nbytes + 16 * len(beside) <= _FOR_EXAMPLES * _free(device)

    def blocks(self) -> Iterator[tuple[Tensor, Tensor, _Units | None]]:
        """Rows in single precision, what is beside them as whole numbers of 64 bits, and their units."""
        for rows, beside, units in self._on_device if self._stays else self._sent():
            yield rows.float(), beside, units

    @cached_property
    def _on_device(self) -> list[tuple[Tensor, Tensor, _Units | None]]:
        return list(self._sent())

    def _sent(self) -> Iterator[tuple[Tensor, Tensor, _Units | None]]:
        for part in chunks_of(len(self._beside), self.size, None):
            # A copy: mapped files are read-only.
            rows = torch.from_numpy(np.array(self._rows[part])).to(self._device)
            beside = torch.from_numpy(self._beside[part].astype(np.int64)).to(self._device)
            units = None if self._starts is None else _Units.of(part, self._starts, self._device)
            yield rows, beside, units


@dataclass(frozen=True, eq=False)
class _Units:
    """The units of a block of examples.

    Attributes:
        of_example: their numbers within the block.
        bounds: see `UnitBounds`.
    """

    of_example: Tensor
    bounds: UnitBounds

    @classmethod
    def of(cls, part: slice, starts: IntArray, device: torch.device) -> _Units:
        bounds = UnitBounds.of(part, starts)
        sizes = np.diff(bounds.starts, append=part.stop - part.start)
        return cls(torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes)).to(device), bounds)

    @property
    def whole(self) -> int:
        """See `UnitBounds`."""
        return self.bounds.whole

    def smallest(self, keys: Tensor, carried: Tensor) -> Tensor:
        """The smallest key of every unit that ends in the block, inputs x units; see `UnitBlock.voices`."""
        found = torch.full((len(keys), len(self.bounds.starts)), _LARGEST_KEY, dtype=torch.int64, device=keys.device)
        found.scatter_reduce_(1, self.of_example.expand_as(keys), keys, "amin")
        if self.bounds.is_continued:
            torch.minimum(found[:, 0], carried, out=found[:, 0])
        if self.bounds.goes_on:
            carried.copy_(found[:, -1])
        return found[:, : self.whole]


def _free(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 1 << 28


def _keys(views: list[Tensor], block: Tensor, ranks: Tensor) -> Tensor:
    """What is smaller the nearer an example is, inputs x examples; see `_search`."""
    # In whole numbers: of a negative product the difference is beyond what single precision holds.
    lacks = _dots(views, block).long().neg_().add_(LARGEST_PRODUCT)
    return lacks.bitwise_left_shift_(RANK_BITS).bitwise_or_(ranks)


def _dots(views: list[Tensor], block: Tensor) -> Tensor:
    """Products of inputs and examples; of several views of an input, the largest."""
    found = views[0] @ block.T
    for view in views[1:]:
        torch.maximum(found, view @ block.T, out=found)
    return found


def _smallest(keys: Tensor, count: int) -> Tensor:
    return keys if keys.shape[1] <= count else keys.topk(count, dim=1, largest=False, sorted=False).values
