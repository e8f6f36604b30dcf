"""Triggers on inputs: at full strength in poison, and on an input no longer than a certificate lets it change.

A backdoor changes the training data, and later the input. A certificate of both speaks of changes of the input up to a
Euclidean length, so a trigger is shortened until it is no longer than that, and what it came to is measured afterwards:
rounding to 8 bits and clipping included, and rounded up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate.attacking.scene import Moved, dense, featured
from mithridate.data.declarations import Table
from mithridate.data.examples import Examples, pieces_of
from mithridate.errors import ConfigError
from mithridate.features.memory import passing
from mithridate.training.input_noise import noise_for

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float64]
Stamp = Callable[[Array], Array]
Measure = Callable[[Array], FloatArray]

# What is stamped on an input, as files and pages call it.
PATCH, DRIFT = "patch", "drift"
# How often the stretch between a strength that is short enough and one that is not is halved; features take long.
_HALVINGS = {"pixels": 16, "values": 16, "features": 8}
# How many times as far as a trigger goes an input may go on along the same way.
_FARTHEST = 8.0
# How much measured lengths are rounded up: more than arithmetic can lose.
_ROUND_UP = {"pixels": 1e-15, "values": 1e-9, "features": 1e-6}


# --- how long a change is ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Ruler:
    """Measures how far inputs have moved, as the certificate of a method measures it.

    Attributes:
        of: `pixels`, `values` or `features`; see `core.input_change`.
        defence: the method, with nothing left open.
    """

    of: str
    defence: Any

    @classmethod
    def of_method(cls, defence: Any, training: Examples) -> Ruler:
        """That of a method on some data.

        Raises:
            ConfigError: it certifies nothing of inputs that move.
        """
        noise = noise_for(getattr(defence, "input_noise", None), training)
        if noise is not None:
            return cls(noise.of, defence)
        if getattr(defence, "moving_inputs", False):
            return cls("features", defence)
        raise ConfigError(
            f"{defence.name} as it is configured votes on inputs as they are, so nothing is claimed of inputs that "
            "change; add input_noise (fdp, bagging) or moving_inputs (nearest-neighbours, kernel-vote), or leave "
            "input_change out."
        )

    def from_here(self, x: Array) -> Measure:
        """Gives the Euclidean length of the change from these inputs to others, rounded up."""
        if self.of == "features":
            before = self._unit_rows(x)
            return lambda moved: self._rounded_up(np.linalg.norm(self._unit_rows(moved) - before, axis=1))
        return lambda moved: self._rounded_up(_lengths(x, moved) / (255 if self.of == "pixels" else 1))

    def _rounded_up(self, lengths: FloatArray) -> FloatArray:
        more = _ROUND_UP[self.of]
        return (lengths + more) * (1 + more) if self.of == "features" else lengths * (1 + more)

    def _unit_rows(self, x: Array) -> FloatArray:
        """Features scaled to norm 1, before they are rounded."""
        with passing():
            rows = np.asarray(dense(featured(self.defence, x)), dtype=np.float64)
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)


def _lengths(x: Array, moved: Array) -> FloatArray:
    far = moved.reshape(len(x), -1).astype(np.float64) - x.reshape(len(x), -1)
    return np.sqrt((far**2).sum(axis=1))


# --- what is stamped --------------------------------------------------------------------------------------------------


def with_trigger(training: Examples, x: Array) -> Array:
    """Inputs with a trigger: a corner of an image, two columns of a table, a word behind a text."""
    if training.kind == "text":
        return np.array([f"{text} zqtrigger zqtrigger" for text in x.tolist()])
    marked = np.array(x, order="C")  # so that what is flat is a view
    if training.kind == "uint8" and marked.ndim >= 3:
        size = max(2, marked.shape[-1] // 8)
        marked[..., -size:, -size:] = 255
        marked[..., -size::2, -size::2] = 0
        return marked
    declared = training.declaration
    width = sum(column.width for column in declared.columns[:2]) if isinstance(declared, Table) else 2
    flat, known = marked.reshape(len(marked), -1), training.x.reshape(len(training.x), -1)
    giver = int(np.argmax(np.abs(known[:, :width]).sum(axis=1)))
    flat[:, :width] = known[giver, :width]
    return marked


def _is_scaled(training: Examples) -> bool:
    """Whether a trigger of any strength makes an input of a kind that can be given to the method."""
    return training.kind in ("uint8", "float") and not isinstance(training.declaration, Table)


def _means(training: Examples) -> FloatArray:
    """The mean example of every label that occurs; inputs drift from one towards another."""
    x, y = training.x, training.y
    assert y is not None
    labels, place = np.unique(y, return_inverse=True)
    sums = np.zeros((len(labels), int(np.prod(x.shape[1:]))))
    for part in pieces_of(x):
        piece, at = x[part].reshape(len(x[part]), -1), place[part]
        for label in np.unique(at):
            sums[label] += piece[at == label].sum(axis=0, dtype=np.float64)
    return sums / np.bincount(place)[:, None]


def _away(means: FloatArray, x: Array) -> FloatArray:
    """From the mean that is nearest to an input to the one that is second."""
    first, second = np.argsort(((means - x.reshape(-1)) ** 2).sum(axis=1), kind="stable")[:2]
    return (means[second] - means[first]).reshape(x.shape)


def _drifted(by: FloatArray, x: Array) -> Array:
    return _as_given(x + by, x.dtype)


def _as_given(values: FloatArray, kind: np.dtype[Any]) -> Array:
    """Numbers as inputs have them: images in 8 bits."""
    return np.clip(np.rint(values), 0, 255).astype(kind) if kind == np.uint8 else values.astype(kind)


# --- inputs that carry one --------------------------------------------------------------------------------------------


def moved_copies(
    training: Examples, test: Examples, which: Sequence[int], lengths: Sequence[float], ruler: Ruler
) -> tuple[Array, list[Moved]]:
    """Some inputs with every trigger, shortened to each of some lengths; what has not moved is left out.

    Where inputs know no strength (texts, tokens, tables), the trigger is there as a whole.
    """
    x = test.x[np.asarray(which, dtype=np.int64)]
    measure = ruler.from_here(x)
    found: list[tuple[int, str, float, Array, Moved]] = []
    for name, stamps in _stamps(training, x):
        longest = np.zeros(len(x))
        for copies in _shortened(training, x, stamps, lengths, ruler.of, measure):
            real = measure(copies)
            for at in np.flatnonzero(real > longest).tolist():  # a trigger that cannot be any longer is there once
                if not np.array_equal(copies[at], x[at]):
                    moved = Moved(int(which[at]), name, float(real[at]), stamps[at])
                    found.append((moved.of, name, moved.length, copies[at : at + 1], moved))
                    longest[at] = real[at]
    found.sort(key=lambda each: each[:3])
    copies = np.concatenate([each[3] for each in found]) if found else x[:0]
    return copies, [each[4] for each in found]


def _stamps(training: Examples, x: Array) -> Iterator[tuple[str, list[Stamp]]]:
    """The triggers that suit some inputs, for each input its own."""
    yield PATCH, [partial(with_trigger, training)] * len(x)
    means = _means(training) if _is_scaled(training) else np.zeros((0, 0))
    if len(means) > 1:
        yield DRIFT, [partial(_drifted, _away(means, each)) for each in x]


def _shortened(
    training: Examples, x: Array, stamps: Sequence[Stamp], lengths: Sequence[float], of: str, measure: Measure
) -> Iterator[Array]:
    """Inputs with their triggers, as far as each of some lengths allows, the shortest first."""
    goals = np.concatenate([stamp(x[at : at + 1]) for at, stamp in enumerate(stamps)])
    if not _is_scaled(training):
        yield goals if goals.dtype.kind == "U" else goals.astype(x.dtype)
        return
    step = goals.astype(np.float64) - x
    for most in sorted(lengths):
        yield _stretched(x, step, _strength(x, step, most, of, measure))


def _strength(x: Array, step: FloatArray, most: float, of: str, measure: Measure) -> FloatArray:
    """How much of each step there may be: up to a few times the whole of it, and for numbers as much as is wanted."""

    def is_short(share: FloatArray) -> npt.NDArray[np.bool_]:
        return measure(_stretched(x, step, share)) <= most

    low, high = np.zeros(len(x)), np.ones(len(x))
    low = np.where(is_short(high), 1.0, low)
    whole = np.maximum(measure(_stretched(x, step, high)), 1e-30) if of == "values" else most
    high = np.where(low > 0, np.maximum(_FARTHEST, 2 * most / whole), high)
    low = np.where(is_short(high), high, low)
    for _ in range(_HALVINGS[of]):
        middle = (low + high) / 2
        fits = is_short(middle)
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return low


def _stretched(x: Array, step: FloatArray, share: FloatArray) -> Array:
    return _as_given(x + share.reshape(-1, *[1] * (x.ndim - 1)) * step, x.dtype)
