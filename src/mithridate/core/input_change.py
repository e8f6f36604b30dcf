"""Changes of the input beside those of the training data: what noise was voted on, and a radius for every change.

A backdoor changes the training set, and later the input. Where every instance adds noise of its own to the input before
it votes, or where distances between features are known, a certificate can cover both at once.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate import _validate
from mithridate._text import shown
from mithridate.errors import ConfigError

IntArray = npt.NDArray[np.int64]
StatusArray = npt.NDArray[np.str_]

# In what a change of an input is measured.
_IN_WORDS = {
    "pixels": "in pixel values divided by 255",
    "values": "in the numbers of an input as they were given",
    "features": "in the features by which examples are compared",
}
# Standard deviations of noise that arithmetic can draw.
NOISE_RANGE = 1e-30, 1e30
# So many changes of the input are certified at once, at most.
MOST_CHANGES = 100


@dataclass(frozen=True)
class InputNoise:
    """The Gaussian noise that every instance adds to every input that it votes on.

    Each number of the input gets a normal draw of mean 0 and of this standard deviation, independent of all others, of
    the instance and of the input. Whatever follows sees the noisy input alone: clipping and rounding to pixels,
    resizing, an encoder.

    Args:
        deviation: the standard deviation, from 1e-30 to 1e30.
        of: `pixels` (8-bit values divided by 255) or `values` (the numbers of an input as they were given).
    """

    deviation: float
    of: str = "values"

    def __post_init__(self) -> None:
        _validate.number_in(*NOISE_RANGE, deviation=self.deviation)
        _validate.one_of(("pixels", "values"), of=self.of)
        object.__setattr__(self, "deviation", float(self.deviation))

    def in_words(self) -> str:
        """As the end of a sentence.

        >>> InputNoise(0.25, "pixels").in_words()
        'Gaussian noise of standard deviation 0.25, in pixel values divided by 255'
        """
        return f"Gaussian noise of standard deviation {self.deviation:g}, {_IN_WORDS[self.of]}"

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Frontier:
    """How many changes of the training data each prediction withstands together with a change of its input.

    Attributes:
        changes: Euclidean lengths of the change of the input, 0 or more, ascending; at most `MOST_CHANGES` of them.
        of: in what they are measured: `pixels`, `values` or `features`.
        radius: certified radii, changes x inputs, -1 where the label may change with the input alone.
        status: how each search ended, likewise.
    """

    changes: tuple[float, ...]
    of: str
    radius: IntArray
    status: StatusArray

    def __post_init__(self) -> None:
        _validate.one_of(tuple(_IN_WORDS), of=self.of)
        if checked_changes(self.changes) != self.changes:
            raise ConfigError(f"Expected the changes of an input in ascending order, got {shown(self.changes)}.")
        if not self.radius.shape == self.status.shape == (len(self.changes), self.radius.shape[-1]):
            raise ConfigError("Expected a radius and a status for every change of the input and every prediction.")

    @property
    def in_words(self) -> str:
        """How its changes are measured, such as `in pixel values divided by 255`."""
        return in_words_of(self.of)

    def to_list(self) -> list[dict[str, Any]]:
        """As plain JSON values, an entry for every change."""
        rows = zip(self.changes, self.radius.tolist(), self.status.tolist(), strict=True)
        return [{"input_change": change, "radius": radius, "status": status} for change, radius, status in rows]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Frontier)
            and (self.changes, self.of) == (other.changes, other.of)
            and np.array_equal(self.radius, other.radius)
            and np.array_equal(self.status, other.status)
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType]


def in_words_of(measure: str) -> str:
    """How changes of an input are measured, as the end of a sentence.

    >>> in_words_of("values")
    'in the numbers of an input as they were given'
    """
    return _IN_WORDS[measure]


def checked_changes(changes: Any) -> tuple[float, ...]:
    """Lengths of a change of the input, sorted, each once.

    Raises:
        ConfigError: they are no such numbers, or too many.

    >>> checked_changes(0.5), checked_changes([0.5, 0, 0.25])
    ((0.5,), (0.0, 0.25, 0.5))
    """
    given: list[Any] = list(changes) if isinstance(changes, list | tuple | np.ndarray) else [changes]  # pyright: ignore[reportUnknownArgumentType]
    if not 1 <= len(given) <= MOST_CHANGES:
        raise ConfigError(f"Expected from 1 to {MOST_CHANGES} changes of the input, got {len(given)}.")
    for each in given:
        _validate.number_in(0, float("inf"), high_open=True, input_change=each)
    return tuple(sorted({float(each) for each in given}))
