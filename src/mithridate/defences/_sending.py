"""Rows that lie in memory or in a mapped file, sent to a GPU ahead of their use, by several threads at a time.

One thread reads a mapped file, or copies memory, at a fraction of the speed at which a GPU takes it, and what has no
fixed place in memory crosses more slowly still. So each of a few threads copies its piece to memory with a fixed place
(pinned), from where the device fetches it while the thread beside it copies the next.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mithridate._computer import cores

# Threads, and bytes of a piece: each thread holds as many with a fixed place.
_MOST_THREADS, _PIECE_BYTES = 8, 1 << 25


@dataclass(frozen=True, eq=False)
class Coming:
    """Rows on their way.

    Attributes:
        rows: where they come to.
        pieces: the copies that are under way.
    """

    rows: Tensor
    pieces: list[Future[None]]

    def there(self) -> Tensor:
        """The rows, once they are there."""
        for piece in self.pieces:
            piece.result()
        return self.rows


class Sender:
    """Threads that send rows to a device; to be used in a `with` statement."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._own = device, threading.local()
        self._threads = ThreadPoolExecutor(min(_MOST_THREADS, cores()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._threads.shutdown(cancel_futures=True)

    def send(self, rows: npt.NDArray[Any]) -> Coming:
        """Start to send rows, which must not change meanwhile."""
        there = torch.empty(rows.shape, dtype=torch.from_numpy(np.empty(0, rows.dtype)).dtype, device=self._device)
        size = max(1, _PIECE_BYTES // max(1, rows[:1].nbytes))
        parts = [slice(start, start + size) for start in range(0, len(rows), size)]
        free = None
        if self._device.type == "cuda":
            free = torch.cuda.Event()
            free.record()  # The memory may have been given back by what the device has not done yet.
        return Coming(there, [self._threads.submit(self._send, rows[part], there[part], free) for part in parts])

    def _send(self, rows: npt.NDArray[Any], there: Tensor, free: torch.cuda.Event | None) -> None:
        if free is None:
            there.copy_(torch.from_numpy(np.array(rows)))  # A copy: mapped files are read-only.
            return
        stream, room = self._stream_and_room(rows.nbytes)
        pinned = room[: rows.nbytes].view(there.dtype).view(there.shape)
        np.copyto(pinned.numpy(), rows)
        with torch.cuda.stream(stream):
            stream.wait_event(free)
            there.copy_(pinned, non_blocking=True)
        stream.synchronize()

    def _stream_and_room(self, size: int) -> tuple[torch.cuda.Stream, Tensor]:
        """Those of this thread."""
        if not hasattr(self._own, "stream"):
            self._own.stream = torch.cuda.Stream(self._device)
            self._own.room = torch.empty(0, dtype=torch.uint8)
        if len(self._own.room) < size:
            self._own.room = torch.empty(max(size, _PIECE_BYTES), dtype=torch.uint8, pin_memory=True)
        return self._own.stream, self._own.room
