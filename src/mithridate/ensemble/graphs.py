"""Steps without the host: a step is captured once as a CUDA graph, and replayed with other batches."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from mithridate.ensemble.sampling import Block

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
        self._chosen = torch.zeros(models, 0, dtype=torch.int32, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._can_be_captured = True

    def run(self, block: Block) -> None:
        """All steps of a block."""
        width = -(-block.indices.shape[2] // _WIDTH) * _WIDTH
        if width > self._chosen.shape[1]:
            self._graph = None
            self._chosen = torch.zeros(self._models, width, dtype=torch.int32, device=self._device)
        indices = torch.from_numpy(block.indices).to(self._device)
        sizes = torch.from_numpy(block.sizes).to(self._device)
        for at in range(len(block)):
            self._chosen[:, : indices.shape[2]].copy_(indices[at])
            self._sizes.copy_(sizes[at])
            self._run_one(may_capture=at > 0)

    def _run_one(self, *, may_capture: bool) -> None:
        if self._graph is None and may_capture and self._can_be_captured:
            self._capture()
        if self._graph is None:
            self._step(self._chosen, self._sizes)
        else:
            self._graph.replay()

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._step(self._chosen, self._sizes)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # a user's module may do what no graph can hold; nothing was computed yet
            _log.info("Steps run one by one, since they cannot be captured: %s", error)
            self._can_be_captured = False
        else:
            self._graph = graph
