"""Where inputs are compared with examples: on the cores here, on a GPU, or by the workers of a cluster.

Every place gives the same numbers bit for bit, so that none is recorded: products of whole numbers are exact, and what
is made of them does not depend on any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from mithridate.defences import _kernel_sums, _search
from mithridate.defences._kernel_sums import Done, WeighedUnits, Weighing
from mithridate.defences._search import Search, Told
from mithridate.defences._voices import Ranks
from mithridate.defences._whole_rows import IntArray, Rows, require_exact_products
from mithridate.errors import ConfigError
from mithridate.training.order import Ray, RuntimeOptions

if TYPE_CHECKING:
    from mithridate.training.ray_tasks import Comparers


class Comparing(Protocol):
    """Compares inputs with examples."""

    def fill_with_nearest(self, order: npt.NDArray[Any], asked: Search, told: Told | None) -> None:
        """See `_search.fill_with_nearest`."""
        ...

    def label_sums(self, asked: Weighing, classes: int, done: Done) -> IntArray:
        """See `_kernel_sums.label_sums`."""
        ...

    def own_weights(self, asked: Weighing, predicted: IntArray, done: Done) -> npt.NDArray[np.uint32]:
        """See `_kernel_sums.own_weights`."""
        ...


class _Here:
    """The cores of this process."""

    def fill_with_nearest(self, order: npt.NDArray[Any], asked: Search, told: Told | None) -> None:
        _search.fill_with_nearest(order, asked, told)

    def label_sums(self, asked: Weighing, classes: int, done: Done) -> IntArray:
        return _kernel_sums.label_sums(asked, classes, done)

    def own_weights(self, asked: Weighing, predicted: IntArray, done: Done) -> npt.NDArray[np.uint32]:
        return _kernel_sums.own_weights(asked, predicted, done)


HERE = _Here()


class _OnCluster:
    """Workers of a cluster, each with shards of the examples; what they find is merged exactly."""

    def __init__(self, others: Comparers) -> None:
        self._others = others

    def fill_with_nearest(self, order: npt.NDArray[Any], asked: Search, told: Told | None) -> None:
        def compare(*common: Any) -> Iterator[tuple[int, Any]]:
            return self._others.each(_search.keys_of_shard, common, (asked.rows, asked.ranks), asked.starts)

        _search.fill_with_nearest(order, asked, told, compare)

    def label_sums(self, asked: Weighing, classes: int, done: Done) -> IntArray:
        return self._added(_label_sums_of_shard, asked, classes, done)

    def own_weights(self, asked: Weighing, predicted: IntArray, done: Done) -> npt.NDArray[np.uint32]:
        return self._added(_own_weights_of_shard, asked, predicted, done)

    def _added(self, work: Any, asked: Weighing, about: Any, done: Done) -> npt.NDArray[Any]:
        total, sums, units = asked.voters, None, asked.units
        common = (replace(asked, rows=np.empty((0, 0), np.int16), labels=asked.labels[:0], units=None), about)
        arrays = (asked.rows, asked.labels, *(() if units is None else (units.ranks,)))
        for number, found in self._others.each(work, common, arrays, None if units is None else units.starts):
            sums = found if sums is None else sums + found
            done(number, total)
        assert sums is not None
        return sums


def _label_sums_of_shard(asked: Weighing, classes: int, *shard: Any) -> IntArray:
    require_exact_products()
    return _kernel_sums.label_sums(_with_shard(asked, *shard), classes)


def _own_weights_of_shard(asked: Weighing, predicted: IntArray, *shard: Any) -> npt.NDArray[np.uint32]:
    require_exact_products()
    return _kernel_sums.own_weights(_with_shard(asked, *shard), predicted)


def _with_shard(
    asked: Weighing, rows: Rows, labels: IntArray, ranks: Ranks | None = None, starts: IntArray | None = None
) -> Weighing:
    units = None if ranks is None or starts is None else WeighedUnits.of(starts, ranks, labels)
    return replace(asked, rows=rows, labels=labels, units=units)


@contextmanager
def place_for(runtime: RuntimeOptions) -> Iterator[Comparing]:
    """Where an order wants it: on the workers of its cluster, on the GPU that it names or finds, or here.

    Raises:
        ConfigError: there is no such cluster or device, or Ray is not installed.
    """
    if runtime.backend is not None:
        with _cluster(runtime.backend) as place:
            yield place
        return
    yield on_device(runtime.device)


def on_device(device: Any) -> Comparing:
    """A GPU, where the device is one; else the cores here, which need no torch."""
    if device == "cpu":
        return HERE
    try:
        from mithridate._torch import pick_device
    except ModuleNotFoundError:  # without torch there is no GPU
        return HERE
    found = pick_device(device)
    if found.type != "cuda":
        return HERE
    from mithridate.defences._on_gpu import OnGpu

    return OnGpu(found)


@contextmanager
def _cluster(backend: Ray) -> Iterator[Comparing]:
    try:
        from mithridate.training.ray_tasks import compared_by
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ConfigError("A Ray cluster needs ray; install it with: pip install 'mithridate[ray]'") from error
    with compared_by(backend) as others:
        yield _OnCluster(others)
