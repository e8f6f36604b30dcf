"""Inputs are compared with examples on a GPU: the numbers of a CPU, bit for bit.

Whole numbers up to 2^24 are exact in single precision, in any order of summation, and so are all products and partial
sums of them here (see `_whole_rows`). TF32, which rounds what is multiplied, is switched off, and that is checked. Keys
are whole numbers of 64 bits that differ from each other, so that the smallest ones are the same set however they are
found. So are the smallest ones of the examples of each unit, which are their voices (see `_voices`). Keys are formed
only of examples whose product is among the largest, and of all where more are equally near than were looked at.

Examples that do not stay on the device cross to it once, piece by piece, while the piece before is compared.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
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
from mithridate.defences._sending import Coming, Sender
from mithridate.defences._voices import UnitBounds
from mithridate.defences._whole_rows import LARGEST_NORM, LARGEST_PRODUCT, IntArray, RowBlock, Rows
from mithridate.errors import ConfigError

_log = logging.getLogger(__name__)
_NO_ROOM = "The GPU has too little free memory; inputs and examples are compared on the CPU, with the same results."
# Examples that are compared at a time. It bounds memory and cannot change a result.
_BLOCK_EXAMPLES = 1 << 20
# Of the memory that is free: for products and keys, for the nearest examples so far, and for a block of examples.
_FOR_PRODUCTS, _FOR_NEAREST, _FOR_BLOCK = 0.4, 0.2, 0.1
# Bytes that are held for one product: itself, its key, and what a selection needs; and for one of the nearest.
_BYTES_OF_PRODUCT, _BYTES_OF_NEAREST = 32, 32
# So many more than asked for are looked at, for those that are equally near.
_SPARE = 1 << 10
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
        labels = torch.from_numpy(_known_to_torch(asked.labels)).to(self._device)
        count = order.shape[1]
        # Every round of inputs sees all examples.
        together = max(1, int(_FOR_NEAREST * _free(self._device)) // (_BYTES_OF_NEAREST * count))
        with products("float32", self._device):
            for part in chunks_of(len(asked.inputs), together, None):
                done = None if told is None else partial(_tell, told, part)
                for some, keys in self._smallest_keys(asked.inputs.part(part), examples, count, done):
                    ordered = labels[keys.sort(dim=1).values & RANKS].cpu().numpy()
                    order[part.start + some.start : part.start + some.stop] = ordered

    def _smallest_keys(
        self, views: tuple[RowBlock, ...], examples: _Examples, count: int, done: Callable[[float], None] | None
    ) -> Iterator[tuple[slice, Tensor]]:
        """Of every input, in no order, some inputs at a time; `done` hears the share of the examples so far."""
        seen = self._moved(views)
        parts = list(chunks_of(len(seen[0]), self._inputs_at_a_time(examples.size), None))
        kept = [torch.empty(part.stop - part.start, 0, dtype=torch.int64, device=self._device) for part in parts]
        carried = torch.empty(len(seen[0]), dtype=torch.int64, device=self._device)
        for block, ranks, units, share in examples.blocks():
            for at, part in enumerate(parts):
                dots = _dots([view[part] for view in seen], block)
                if units is not None:
                    keys = _smallest(units.smallest(_keys(dots, ranks), carried[part]), count)
                elif (nearer := _nearer(dots, ranks, kept[at], count)) is not None:
                    keys = nearer
                else:
                    keys = _nearest(dots, ranks, count)
                kept[at] = _smallest(torch.cat([kept[at], keys], dim=1), count)
            if done is not None:
                done(share)
        return zip(parts, kept, strict=True)

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
            for block, labels, _, _ in examples.blocks():
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
            for block, ranks, units, _ in examples.blocks():
                assert units is not None
                for part in chunks_of(asked.inputs, size, None):
                    dots = _dots([view[part] for view in seen], block)
                    keys = units.smallest(_keys(dots, ranks), carried[part])
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
    """Examples block by block on a device, each block once."""

    def __init__(
        self, rows: Rows, beside: npt.NDArray[Any], starts: IntArray | None, size: int, device: torch.device
    ) -> None:
        assert isinstance(rows, np.ndarray)
        self._rows, self._beside, self._starts, self._device = rows, beside, starts, device
        self.size = max(1, min(size, int(_FOR_BLOCK * _free(device)) // (4 * max(1, rows.shape[1]))))

    def blocks(self) -> Iterator[tuple[Tensor, Tensor, _Units | None, float]]:
        """Rows in single precision, what is beside them in 64 bits, their units, and the share so far."""
        total = len(self._beside)
        parts = list(chunks_of(total, self.size, None))
        with Sender(self._device) as sender:
            coming = self._sent(sender, parts[0])
            for part, following in zip(parts, [*parts[1:], None], strict=True):
                rows, beside = (each.there() for each in coming)
                if following is not None:
                    coming = self._sent(sender, following)
                units = None if self._starts is None else _Units.of(part, self._starts, self._device)
                yield rows.float(), self._widened(beside), units, part.stop / total

    def _sent(self, sender: Sender, part: slice) -> tuple[Coming, Coming]:
        """Rows, and what is beside them, on their way."""
        beside = self._beside[part]
        beside = beside.view(np.int32) if beside.dtype == np.uint32 else _known_to_torch(beside)
        return sender.send(self._rows[part]), sender.send(beside)

    def _widened(self, beside: Tensor) -> Tensor:
        """What is beside rows in 64 bits; 32 bits without a sign were sent as if the first were one."""
        wide = beside.long()
        return wide.bitwise_and_(RANKS) if self._beside.dtype == np.uint32 else wide


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


def _known_to_torch(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same numbers in a type that all versions of torch have."""
    known = (np.int8, np.uint8, np.int16, np.int32, np.int64)
    return np.ascontiguousarray(numbers if numbers.dtype in known else numbers.astype(np.int64))


def _tell(told: Told, part: slice, share: float) -> None:
    told(part.start + int((part.stop - part.start) * share))


def _free(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 1 << 28


def _dots(views: list[Tensor], block: Tensor) -> Tensor:
    """Products of inputs and examples; of several views of an input, the largest."""
    found = views[0] @ block.T
    for view in views[1:]:
        torch.maximum(found, view @ block.T, out=found)
    return found


def _keys(dots: Tensor, ranks: Tensor) -> Tensor:
    """What is smaller the nearer an example is, inputs x examples; see `_search`."""
    # In whole numbers: of a negative product the difference is beyond what single precision holds.
    lacks = dots.long().neg_().add_(LARGEST_PRODUCT)
    return lacks.bitwise_left_shift_(RANK_BITS).bitwise_or_(ranks)


def _nearest(dots: Tensor, ranks: Tensor, count: int) -> Tensor:
    """The smallest keys of some products, in no order: all of them where there are no more than `count`."""
    if dots.shape[1] <= count + _SPARE:
        return _smallest(_keys(dots, ranks), count)
    largest, places = dots.topk(count + _SPARE, dim=1, sorted=False)
    keys = _smallest(_keys(largest, ranks[places]), count)
    # Which of the products that equal the least were taken, nobody knows. Above it all are there.
    unsure = (largest > largest.amin(dim=1, keepdim=True)).sum(dim=1) < count
    if unsure.any():
        keys[unsure] = _smallest(_keys(dots[unsure], ranks), count)
    return keys


def _nearer(dots: Tensor, ranks: Tensor, kept: Tensor, count: int) -> Tensor | None:
    """The keys of examples that may be among the nearest, beside those kept so far, filled up with what is no key.

    None where that is no less work: where not enough are kept, or many are as near as the farthest of those.
    """
    if kept.shape[1] < count:
        return None
    farthest = LARGEST_PRODUCT - (kept.amax(dim=1) >> RANK_BITS)
    candidates = dots >= farthest.to(dots.dtype).unsqueeze(1)
    found = candidates.sum(dim=1)
    if (most := int(found.max())) > count + _SPARE:
        return None
    which, places = candidates.nonzero(as_tuple=True)
    columns = torch.arange(len(which), device=dots.device) - (found.cumsum(0) - found)[which]
    keys = torch.full((len(dots), most), _LARGEST_KEY, device=dots.device)
    keys[which, columns] = _keys(dots[which, places], ranks[places])
    return keys


def _smallest(keys: Tensor, count: int) -> Tensor:
    return keys if keys.shape[1] <= count else keys.topk(count, dim=1, largest=False, sorted=False).values
