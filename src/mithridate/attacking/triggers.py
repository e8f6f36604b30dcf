"""Triggers on inputs: at full strength in poison, and on an input no longer than a certificate lets it change.

A backdoor changes the training data, and later the input. A certificate of both speaks of changes of the input up to a
Euclidean length, so a trigger is shortened until it is no longer than that, and what it came to is measured afterwards:
rounding to 8 bits and clipping included, and rounded up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate.attacking.scene import Moved, dense, featured
from mithridate.data.declarations import Table
from mithridate.data.examples import Examples, pieces_of
from mithridate.errors import ConfigError
from mithridate.training.input_noise import noise_for

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float64]
Stamp = Callable[[Array], Array]

# What is stamped on an input, as files and pages call it.
PATCH, DRIFT = "patch", "drift"
# How often the stretch between a strength that is short enough and one that is not is halved.
_HALVINGS = 16
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

    def lengths(self, x: Array, moved: Array) -> FloatArray:
        """The Euclidean length of every change, rounded up."""
        if self.of == "features":
            before, after = (_unit_rows(featured(self.defence, each)) for each in (x, moved))
            return (np.linalg.norm(after - before, axis=1) + _ROUND_UP["features"]) * (1 + _ROUND_UP["features"])
        far = moved.reshape(len(x), -1).astype(np.float64) - x.reshape(len(x), -1)
        length = np.sqrt((far**2).sum(axis=1)) / (255 if self.of == "pixels" else 1)
        return length * (1 + _ROUND_UP[self.of])


def _unit_rows(rows: Any) -> FloatArray:
    whole = np.asarray(dense(rows), dtype=np.float64)
    return whole / np.maximum(np.linalg.norm(whole, axis=1, keepdims=True), 1e-30)


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


@dataclass(frozen=True, eq=False)
class _Means:
    """The mean example of every label; inputs drift from one towards another.

    Attributes:
        training: the clean set.
    """

    training: Examples

    @cached_property
    def rows(self) -> FloatArray:
        """One for every label that occurs."""
        x, y = self.training.x, self.training.y
        assert y is not None
        labels, place = np.unique(y, return_inverse=True)
        sums = np.zeros((len(labels), int(np.prod(x.shape[1:]))))
        for part in pieces_of(x):
            piece, at = x[part].reshape(len(x[part]), -1), place[part]
            for label in np.unique(at):
                sums[label] += piece[at == label].sum(axis=0, dtype=np.float64)
        return sums / np.bincount(place)[:, None]

    def away(self, x: Array) -> FloatArray:
        """From the mean that is nearest to an input to the one that is second."""
        first, second = np.argsort(((self.rows - x.reshape(-1)) ** 2).sum(axis=1), kind="stable")[:2]
        return (self.rows[second] - self.rows[first]).reshape(x.shape)


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
    means = _Means(training)
    found = [
        (copy, Moved(of, name, length, stamp))
        for of in which
        for name, stamp in _stamps(means, test.x[of : of + 1])
        for copy, length in _copies(means.training, test.x[of : of + 1], stamp, lengths, ruler)
    ]
    copies = np.concatenate([copy for copy, _ in found]) if found else test.x[:0]
    return copies, [moved for _, moved in found]


def _stamps(means: _Means, x: Array) -> Iterator[tuple[str, Stamp]]:
    """The triggers that suit an input."""
    yield PATCH, partial(with_trigger, means.training)
    if _is_scaled(means.training) and len(means.rows) > 1:
        yield DRIFT, partial(_drifted, means.away(x[0]))


def _copies(
    training: Examples, x: Array, stamp: Stamp, lengths: Sequence[float], ruler: Ruler
) -> Iterator[tuple[Array, float]]:
    """An input with a trigger of each length, and how long it really is; each longer than the one before."""
    goal = stamp(x)
    if not _is_scaled(training):
        copies = [goal if goal.dtype.kind == "U" else goal.astype(x.dtype)]
    else:
        copies = [_shortened(x, goal.astype(x.dtype), most, ruler) for most in sorted(lengths)]
    longest = 0.0
    for copy in copies:
        length = float(ruler.lengths(x, copy)[0])
        if length > longest and not np.array_equal(copy, x):
            yield copy, length
            longest = length


def _shortened(x: Array, goal: Array, most: float, ruler: Ruler) -> Array:
    """An input on its way to one with the whole trigger, as far as the length allows; numbers may go beyond it."""
    step = goal.astype(np.float64) - x
    whole = float(ruler.lengths(x, goal)[0])
    high = 2 * most / whole if ruler.of == "values" and 0 < whole < most else 1.0
    low = 0.0
    if float(ruler.lengths(x, _as_given(x + high * step, x.dtype))[0]) <= most:
        return _as_given(x + high * step, x.dtype)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if float(ruler.lengths(x, _as_given(x + middle * step, x.dtype))[0]) <= most:
            low = middle
        else:
            high = middle
    return _as_given(x + low * step, x.dtype)
