"""Argument checks: one line each at the call, the message built from the keyword's own name."""

import math
from numbers import Integral, Real
from typing import Any

from mithridate.errors import ConfigError


def number_in(low: float, high: float, *, low_open: bool = False, high_open: bool = False, **named: Any) -> None:
    """Require every named value to be a finite number in the interval from `low` to `high`.

    Raises:
        ConfigError: a value is not a number, is NaN, or is outside the interval.

    >>> number_in(0, 1, low_open=True, sample_rate=0.5)
    >>> number_in(0, 1, low_open=True, sample_rate=1.3)
    Traceback (most recent call last):
    ...
    mithridate.errors.ConfigError: Expected sample_rate in (0, 1], got 1.3.
    """
    for name, value in named.items():
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
        above = number > low if low_open else number >= low
        below = number < high if high_open else number <= high
        if not (above and below and math.isfinite(number)):
            interval = f"{'(' if low_open else '['}{low:g}, {high:g}{')' if high_open or math.isinf(high) else ']'}"
            raise ConfigError(f"Expected {name} in {interval}, got {value!r}.")


def positive_integer(**named: Any) -> None:
    """Require every named value to be a whole number of at least one.

    >>> positive_integer(steps=0)
    Traceback (most recent call last):
    ...
    mithridate.errors.ConfigError: Expected steps to be a whole number of at least 1, got 0.
    """
    for name, value in named.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise ConfigError(f"Expected {name} to be a whole number of at least 1, got {value!r}.")


def one_of(options: tuple[str, ...], **named: Any) -> None:
    """Require every named value to be one of the given words.

    >>> one_of(("votes", "scores"), on="logits")
    Traceback (most recent call last):
    ...
    mithridate.errors.ConfigError: Expected on to be one of votes, scores, got 'logits'.
    """
    for name, value in named.items():
        if value not in options:
            raise ConfigError(f"Expected {name} to be one of {', '.join(options)}, got {value!r}.")
