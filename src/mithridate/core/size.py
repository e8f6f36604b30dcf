"""The size step of a training set: the one number that every constant follows which follows the number of examples.

A constant that followed every single example would be another one on nearly all changed data, and a claim that compares
D with D' under the same constants would say nothing about that data. Steps are coarse, and a radius ends before any D'
within it could have another step: up to there the constants are the same on D and on D' (docs/theory.md).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mithridate import _validate
from mithridate.core.mechanism import Threat
from mithridate.errors import ConfigError

# Three a decade, none of them round: data sets of the usual sizes are far from the next step.
_FIRST = (1, 4, 7, 14, 34, 67)
_DECADE = (135, 340, 670)


def _steps() -> Iterator[int]:
    yield from _FIRST
    for power in itertools.count():
        yield from (step * 10**power for step in _DECADE)


def step_of(number: int) -> int:
    """The largest step that is at most a number of examples.

    >>> step_of(1587), step_of(60_000), step_of(3), step_of(670)
    (1350, 34000, 1, 670)
    """
    _validate.positive_integer(num_train=number)
    return max(itertools.takewhile(lambda step: step <= number, _steps()))


def next_step(step: int) -> int:
    """The step after this one.

    >>> next_step(1350), next_step(67)
    (3400, 135)
    """
    return next(later for later in _steps() if later > step)


@dataclass(frozen=True)
class Size:
    """That constants follow the number of training examples, which nobody declared, by its step.

    Guarantee: on every D' with `low` to `high - 1` examples they are the same as on D, and so on every D' within
    `limit(threat)` changes of D.

    Args:
        num_train: the number of examples of D.
        low: its step, from 1 to `num_train`.
        high: the next step, above `num_train`.

    >>> size = Size.of(60_000)
    >>> size.low, size.high, size.limit(Threat.ADD), size.limit(Threat.REMOVE), size.limit(Threat.REPLACE)
    (34000, 67000, 6999, 26000, None)
    """

    num_train: int
    low: int
    high: int

    def __post_init__(self) -> None:
        _validate.positive_integer(**asdict(self))
        for name, value in asdict(self).items():
            object.__setattr__(self, name, int(value))
        if not self.low <= self.num_train < self.high:
            raise ConfigError(
                f"Expected num_train={self.num_train} from low={self.low} to below high={self.high}; use Size.of(n)."
            )

    @classmethod
    def of(cls, number: int) -> Size:
        """The size of a training set with so many examples."""
        low = step_of(number)
        return cls(number, low, next_step(low))

    def limit(self, threat: Threat) -> int | None:
        """The largest radius within which no D' has another step; None where every D' has as many examples as D."""
        fewer, more = self.num_train - self.low, self.high - 1 - self.num_train
        match threat:
            case Threat.REMOVE:
                return fewer
            case Threat.ADD:
                return more
            case Threat.SYMMETRIC_DIFFERENCE | Threat.EDIT:
                return min(fewer, more)
            case Threat.REPLACE | Threat.LABELS | Threat.FEATURES:
                return None

    @property
    def sentence(self) -> str:
        """What every certificate says about it."""
        return (
            f"What was chosen by the number of training examples, {self.num_train:,}, is the same from {self.low:,} to "
            f"{self.high - 1:,} examples, and no radius goes beyond these; declare num_train to lift this limit."
        )

    def to_dict(self) -> dict[str, int]:
        """The size as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Size:
        """Read back what `to_dict` wrote.

        Raises:
            TypeError: a number is missing, or there is one too many.
            ConfigError: the numbers are not what they should be.
        """
        return cls(**values)
