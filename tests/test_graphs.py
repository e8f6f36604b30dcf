"""Capturing a step as a CUDA graph, with doubles for CUDA: what may not happen meanwhile."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mithridate.training.batch_source import Block, indices_of
from mithridate.training.devices import ReplayedStep

CPU = torch.device("cpu")
ENTRIES = partial(indices_of, device=CPU)


class Graph:
    """Stands for `torch.cuda.CUDAGraph`, which must not be freed while another one is being captured."""

    capturing = False
    freed_too_early = 0

    def replay(self) -> None:
        """Nothing."""

    def __del__(self) -> None:
        Graph.freed_too_early += Graph.capturing


@contextmanager
def capture(graph: Graph, pool: Any) -> Iterator[None]:
    Graph.capturing = True
    try:
        yield
    finally:
        Graph.capturing = False


@pytest.fixture(autouse=True)
def doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    Graph.freed_too_early = 0
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)


class Trainer:
    """Holds its graphs in a cycle, as whatever a step refers to may do; an allocation may collect garbage any time."""

    def __init__(self) -> None:
        self.step = ReplayedStep(self.run, 1, CPU, ENTRIES)

    def run(self, chosen: Tensor, sizes: Tensor) -> None:
        if Graph.capturing and gc.isenabled():
            gc.collect()


def block() -> Block:
    return Block(np.zeros((3, 1, 4), np.int32), np.full((3, 1), 4, np.int32))


def test_graphs_that_are_garbage_are_not_freed_during_a_capture() -> None:
    first = Trainer()
    first.step.run(block())
    gone = weakref.ref(first)
    gc.disable()
    try:
        del first
        assert gone() is not None  # a cycle: only a collection frees it
    finally:
        gc.enable()
    Trainer().step.run(block())
    assert gone() is None
    assert Graph.freed_too_early == 0
    assert gc.isenabled()


def test_garbage_is_collected_again_after_a_capture_that_fails() -> None:
    def refuse(chosen: Tensor, sizes: Tensor) -> None:
        if Graph.capturing:
            raise RuntimeError("not permitted")

    ReplayedStep(refuse, 1, CPU, ENTRIES).run(block())
    assert gc.isenabled()


def test_entries_of_every_width_reach_their_step() -> None:
    """Narrow batches lie in the memory of wide ones; what is replayed finds what was sent last."""
    found: list[float] = []
    recorded: dict[int, Callable[[], None]] = {}

    class Replayed(Graph):
        def replay(self) -> None:
            recorded[id(self)]()

    @contextmanager
    def record(graph: Graph, pool: Any) -> Iterator[None]:
        current.append(id(graph))
        yield
        current.clear()

    current: list[int] = []

    def step(values: Tensor, weights: Tensor, sizes: Tensor) -> None:
        def work() -> None:
            inside = torch.arange(values.shape[1]) < sizes.unsqueeze(1)
            found.append(float((values.sum(dim=2) * weights * inside).sum()))

        if current:
            recorded[current[0]] = work
        else:
            work()

    def entries(block: Block) -> Iterator[tuple[Tensor, Tensor]]:
        for indices, _ in block:
            chosen = torch.from_numpy(indices)
            yield torch.stack([chosen, 2 * chosen], dim=2).double(), chosen.long()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "CUDAGraph", Replayed)
        patch.setattr(torch.cuda, "graph", record)
        replayed = ReplayedStep(step, 2, CPU, entries)
        random = np.random.default_rng(0)
        expected: list[float] = []
        for width in (20, 5, 40, 3, 20, 33, 5, 70, 40):
            sizes = random.integers(1, width + 1, size=(3, 2)).astype(np.int32)
            indices = random.integers(0, 100, size=(3, 2, width)).astype(np.int32)
            expected += (3.0 * indices**2 * (np.arange(width) < sizes[..., None])).sum(axis=(1, 2)).tolist()
            replayed.run(Block(indices, sizes))
    assert found == expected
    assert len(recorded) > 2


def test_whoever_collects_no_garbage_is_left_alone() -> None:
    gc.disable()
    try:
        Trainer().step.run(block())
        assert not gc.isenabled()
    finally:
        gc.enable()
