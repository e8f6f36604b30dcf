"""Rows that are functions of their inputs alone, bit for bit: every one is encoded twice, in two different places.

How a network rounds may depend on the shape of a batch, on the place of a row in it, and on the rows beside it. So all
calls have one shape, gaps are filled with blanks, and every row is computed a second time, at another place among other
rows. If a single bit differs, the rows are refused. A batch of one has no other rows at all: that is what a CPU does,
a row to a core.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate.errors import ConfigError

FloatArray = npt.NDArray[np.float32]

# Settings of a library are those of the whole process: two threads that set them would undo each other's.
_one_at_a_time = threading.RLock()


@dataclass
class RowMachine:
    """Something that encodes batches of one shape; its threads stay, since what libraries prepare stays with a thread.

    Attributes:
        call: from exactly `batch` inputs, a list, to float32 [batch, d].
        batch: inputs of one call.
        blank: an input that fills gaps.
        workers: calls at a time.
        session: what holds while calls run, such as settings of a library.
        settle: called first in each worker, such as to bind it to one thread.
    """

    call: Callable[[list[Any]], FloatArray]
    batch: int
    blank: Any
    workers: int = 1
    session: Callable[[], AbstractContextManager[Any]] = nullcontext
    settle: Callable[[], None] = lambda: None

    @functools.cached_property
    def pool(self) -> ThreadPoolExecutor:
        """The threads that make the calls."""
        return ThreadPoolExecutor(self.workers, "encoding", self.settle)


def encoded_twice(machine: RowMachine, inputs: Sequence[Any], title: str) -> FloatArray:
    """Rows of inputs, each computed in two places.

    Guarantee: no bit of any row differed between the two.

    Raises:
        ConfigError: one did, or a row is not made of finite numbers.
    """
    with _one_at_a_time, machine.session():
        first, second = (_placed(machine, inputs, each) for each in _two_places(len(inputs), machine.batch))
    if not np.isfinite(first).all():
        row = int((~np.isfinite(first)).any(axis=1).argmax())
        raise ConfigError(f"The encoder {title} gave numbers that are not finite for input {row}; mend one of both.")
    differing = int((first.view(np.uint32) != second.view(np.uint32)).any(axis=1).sum())
    if differing:
        alone = "the encoder draws random numbers or keeps a state: mend it"
        raise ConfigError(
            f"The encoder {title} gave other bits for {differing:,} of {len(first):,} inputs when it encoded them "
            "again among others. A row must be a function of its input alone, or every certificate is void; "
            f"{alone if machine.batch == 1 else 'encode every input alone: batch = 1, or device = cpu'}."
        )
    return first


def _two_places(count: int, batch: int) -> Iterator[npt.NDArray[np.int64]]:
    """The places of the inputs in two runs: in no batch does one find all of the others again, or its own place.

    The place p of batch b becomes the place p + batch / 2 of batch b + p, both around the end. This is one to one, it
    moves every row where there are at least two places, and spreads what was together over all batches.
    """
    at = np.arange(count)
    yield at
    b, p = np.divmod(at, batch)
    batches = max(2, -(-count // batch)) if batch > 1 else max(1, count)
    yield (b + p) % batches * batch + (p + batch // 2) % batch if batch > 1 else count - 1 - at


def _placed(machine: RowMachine, inputs: Sequence[Any], places: npt.NDArray[np.int64]) -> FloatArray:
    """Encode inputs at these places of as many batches as it takes."""
    total = -(-(int(places.max()) + 1) // machine.batch) * machine.batch
    slots = [machine.blank] * total
    for one, place in zip(inputs, places.tolist(), strict=True):
        slots[place] = one
    batches = [slots[start : start + machine.batch] for start in range(0, total, machine.batch)]
    made = list(machine.pool.map(machine.call, batches))
    if any(each.ndim != 2 or len(each) != machine.batch for each in made):
        found = next(each.shape for each in made if each.ndim != 2 or len(each) != machine.batch)
        raise ConfigError(
            f"The encoder gave an array of shape {found} for {machine.batch} inputs; expected a row each."
        )
    rows = np.concatenate(made)
    return np.ascontiguousarray(rows[places], dtype=np.float32)
