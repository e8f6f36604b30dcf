"""What an attacker of the strongest kind knows: the data, the method with its constants, and how it votes.

Of the randomness of training nothing is known, which certificates assume.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from mithridate.core.mechanism import Threat
from mithridate.data.declarations import Table
from mithridate.data.examples import Examples
from mithridate.features.memory import encoded
from mithridate.training.order import cap_of

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]
# Copies of an input that a source of the attacker's holds, where sources are declared: as many as enter, up to this.
_COPIES = 64


@dataclass(frozen=True, eq=False)
class Moved:
    """An input that carries a trigger of bounded length.

    Attributes:
        of: the number of the input without it.
        trigger: what it carries: a `patch`, or a `drift` towards another label.
        length: how far it has moved, rounded up.
        stamp: puts the trigger on examples at its full strength, as poison has it.
        input_change: the change of the input whose claim covers it; None: it has moved beyond all of them.
    """

    of: int
    trigger: str
    length: float
    stamp: Callable[[Array], Array]
    input_change: float | None = None


@dataclass(eq=False)
class Scene:
    """What attacks are made from.

    Attributes:
        training: the clean training set, as it was given.
        inputs: the inputs that are predicted, and behind them those that carry a trigger.
        triggered: for each input with a trigger, that without; empty where there is none.
        moved: those of them that have moved no farther than a trigger was allowed to; claims cover some of them.
        defence: the method that was trained, with nothing left open.
        threat: what may be changed.
        label: what the clean run predicts.
        counts: how it votes, inputs x classes.
        is_parts: whether examples are assigned to models by a hash.
        model_votes: the label that each model of parts votes for, models x inputs; None where that is not known.
    """

    training: Examples
    inputs: Examples
    triggered: dict[int, int]
    defence: Any
    threat: Threat
    label: IntArray
    counts: npt.NDArray[Any]
    is_parts: bool = False
    model_votes: IntArray | None = None
    moved: dict[int, Moved] = field(default_factory=dict[int, Moved])
    _nearest: dict[int, IntArray] = field(default_factory=dict[int, IntArray])

    # --- what is predicted -------------------------------------------------------------------------------------------

    def rival(self, target: int) -> int:
        """The label to make of a prediction: the runner-up; where nobody votes for another one, that of the nearest."""
        own = int(self.label[target])
        others = np.array(self.counts[target], dtype=np.float64)
        others[own] = -np.inf
        if others.max() > 0:
            return int(others.argmax())
        near = self.labels[self.nearest(target)]
        found = near[near != own]
        return int(found[0]) if len(found) else (own + 1) % self.classes

    @property
    def classes(self) -> int:
        """Number of labels."""
        return self.counts.shape[1]

    @property
    def labels(self) -> IntArray:
        """Those of the training examples."""
        assert self.training.y is not None
        return self.training.y

    # --- what is near ------------------------------------------------------------------------------------------------

    @cached_property
    def features(self) -> FloatArray | csr_array:
        """The training examples as the method sees them."""
        return self.featured(self.training.x)

    def featured(self, x: Array) -> FloatArray | csr_array:
        """Inputs as the method sees them, a row each: sparse where it compares sparse ones."""
        return featured(self.defence, x)

    def _products(self, target: int) -> FloatArray:
        """Inner products of the features of an input with those of every training example."""
        found = self.features @ np.asarray(dense(self.featured(self.copied(target, 1))))[0]
        return np.asarray(found, dtype=np.float32).reshape(-1)

    def nearest(self, target: int) -> IntArray:
        """The training examples, those that look most like an input first."""
        if target not in self._nearest:
            lengths = np.maximum(self._lengths, 1e-30)
            self._nearest[target] = np.argsort(-self._products(target) / lengths, kind="stable")
        return self._nearest[target]

    @cached_property
    def _lengths(self) -> FloatArray:
        squares = self.features.multiply(self.features) if isinstance(self.features, csr_array) else self.features**2
        return np.sqrt(np.asarray(squares.sum(axis=1), dtype=np.float32).reshape(-1))

    def supporters(self, target: int) -> IntArray:
        """The training examples with the label that is predicted, the nearest first."""
        near = self.nearest(target)
        return near[self.labels[near] == self.label[target]]

    # --- sources -----------------------------------------------------------------------------------------------------

    @property
    def has_sources(self) -> bool:
        """Whether what counts is sources of many examples."""
        return self.training.units is not None

    @property
    def count(self) -> int:
        """How many examples, or sources, there are."""
        units = self.training.units
        return len(self.labels) if units is None else len(units.names)

    @property
    def copies(self) -> int:
        """How many copies a source of the attacker's holds."""
        return min(_COPIES, cap_of(self.defence)) if self.has_sources else 1

    def supporting_sources(self, target: int) -> IntArray:
        """The numbers of sources, those first whose examples do most for the label that is predicted."""
        units = self.training.units
        assert units is not None
        near = self.supporters(target)
        worth = np.zeros(len(units.names))
        np.add.at(worth, units.of_example[near], 1.0 / (1.0 + np.arange(len(near))))
        return np.argsort(-worth, kind="stable")

    def members(self, sources: IntArray) -> IntArray:
        """The examples of some sources."""
        units = self.training.units
        assert units is not None
        return np.flatnonzero(np.isin(units.of_example, sources))

    def new_names(self, count: int) -> list[str]:
        """Names of sources that nobody has."""
        units = self.training.units
        assert units is not None
        taken, names, number = set(units.names), list[str](), 0
        while len(names) < count:
            name = f"inserted {number}"
            names += [] if name in taken else [name]
            number += 1
        return names

    # --- other inputs that look the same -----------------------------------------------------------------------------

    def copied(self, target: int, count: int) -> Array:
        """So many copies of an input."""
        return np.repeat(self.inputs.x[target : target + 1], count, axis=0)

    def variants(self, target: int, count: int) -> Array:
        """So many different inputs that look like one: each can be given to the pipeline, and has a hash of its own."""
        kind, declared = self.training.kind, self.training.declaration
        rows = self.copied(target, count)
        if kind == "text":
            return np.array([str(x) + " " * (number + 1) for number, x in enumerate(rows.tolist())])
        if isinstance(declared, Table):
            rows = rows.astype(self.training.x.dtype)
            self._exchange_cells(rows, target, [column.width for column in declared.columns])
            return rows
        flat = rows.reshape(count, -1)
        places, times = np.arange(count) % flat.shape[1], 1 + np.arange(count) // flat.shape[1]
        at = np.arange(count), places
        if kind == "uint8":
            flat[at] = np.where(flat[at] >= 128, flat[at] - np.minimum(times, 100), flat[at] + np.minimum(times, 100))
        elif kind == "integer":
            flat[at] += times.astype(flat.dtype)
        else:
            flat[at] += (times * 2.0**-16 * np.maximum(np.abs(flat[at]), 2.0**-10)).astype(flat.dtype)
        return rows.astype(self.training.x.dtype)  # whose hashes are those of what is trained on

    def _exchange_cells(self, rows: Array, target: int, widths: Sequence[int]) -> None:
        """Give rows of a table one or more cells of examples that look alike: only such rows can be written."""
        ends = np.cumsum(widths)
        near, other = self.nearest(target), self.training.x.reshape(len(self.labels), -1)
        random = np.random.default_rng(target)
        for number, row in enumerate(rows):
            for _ in range(1 + number // (len(widths) * 50)):
                column = int(random.integers(len(widths)))
                giver = near[int(random.integers(min(len(near), 20 + number)))]
                cells = slice(ends[column] - widths[column], ends[column])
                row[cells] = other[giver, cells]


def featured(defence: Any, x: Array) -> FloatArray | csr_array:
    """Inputs as a method sees them, a row each: sparse where it compares sparse ones."""
    encoder = defence.encoder
    x = np.ascontiguousarray(x)
    if encoder is None:
        rows = x.reshape(len(x), -1).astype(np.float32)
        return rows / np.float32(255) if x.dtype == np.uint8 else rows
    sparse = getattr(defence, "sparse_rows", False)
    rows = encoded(encoder, x, compared=sparse)
    return rows if isinstance(rows, csr_array) else np.asarray(rows, dtype=np.float32).reshape(len(rows), -1)


def dense(rows: Any) -> Any:
    """Rows as an array."""
    return rows.toarray() if isinstance(rows, csr_array) else rows
