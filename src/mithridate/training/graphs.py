"""Steps without the host: a step is captured once as a CUDA graph, and replayed with other batches."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from mithridate.training.sampling import Block

_log = logging.getLogger(__name__)

# Batches are padded to a multiple of this, so that few widths occur: each needs a graph, and kernels of its own.
_WIDTH = 16


class ReplayedStep:
    """Runs a step for every row of a block.

    The first step of a width runs as it is, which compiles kernels and readies libraries; the second is captured, and
    all others replay it. A wider batch than any before, however rare, gets a wider graph: no batch is ever cut.

    Args:
        step: the step, from indices (models x width) and sizes (models) on the device; it changes weights in place.
        models: number of models in flight.
        device: the GPU.
    """

    def __init__(self, step: Callable[[Tensor, Tensor], None], models: int, device: torch.device) -> None:
        self._step = step
        self._device = device
        self._models = models
        self._sizes = torch.zeros(models, dtype=torch.int32, device=device)
        self._chosen: dict[int, Tensor] = {}
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._memory = torch.cuda.graph_pool_handle()  # one for all graphs: no two run at the same time
        self._can_be_captured = True

    def run(self, block: Block) -> None:
        """All steps of a block. Where no batch is wider than `block.least`, all have the same shapes."""
        indices = torch.from_numpy(block.indices).to(self._device)
        sizes = torch.from_numpy(block.sizes).to(self._device)
        for at, largest in enumerate(block.sizes.max(axis=1).tolist()):
            width = -(-max(largest, block.least, 1) // _WIDTH) * _WIDTH
            self._sizes.copy_(sizes[at])
            self._run_one(width, indices[at, :, :width])

    def _run_one(self, width: int, indices: Tensor) -> None:
        is_new = width not in self._chosen
        if is_new:
            self._chosen[width] = torch.zeros(self._models, width, dtype=torch.int32, device=self._device)
        chosen = self._chosen[width]
        chosen[:, : indices.shape[1]].copy_(indices)
        if width not in self._graphs and not is_new and self._can_be_captured:
            self._capture(width)
        if width in self._graphs:
            self._graphs[width].replay()
        else:
            self._step(chosen, self._sizes)

    def _capture(self, width: int) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with _without_garbage(), torch.cuda.graph(graph, pool=self._memory):
                self._step(self._chosen[width], self._sizes)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # a user's module may do what no graph can hold; nothing was computed yet
            _log.info("Steps run one by one, since they cannot be captured: %s", error)
            self._can_be_captured = False
        else:
            self._graphs[width] = graph


@contextmanager
def _without_garbage() -> Iterator[None]:
    """No garbage is collected meanwhile, and there is none before.

    What is in a cycle may hold graphs of an earlier run, and these cannot be freed while a stream is being captured:
    CUDA says "operation not permitted when stream is capturing", and their memory is lost.
    """
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
