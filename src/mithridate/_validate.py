"""Argument checks: one line each at the call, the message built from the keyword's own name."""

import math
from numbers import Integral, Real
from typing import Any

from mithridate._text import shown
from mithridate.errors import ConfigError

_LARGEST = 1 << 53  # beyond it, whole numbers lose digits as floats


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
        number = _as_float(value)
        above = number > low if low_open else number >= low
        below = number < high if high_open else number <= high
        if not (above and below and math.isfinite(number)):
            interval = f"{'(' if low_open else '['}{low:g}, {high:g}{')' if high_open or math.isinf(high) else ']'}"
            raise ConfigError(f"Expected {name} in {interval}, got {shown(value)}.")


def _as_float(value: Any) -> float:
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # a whole number beyond double precision
        return math.inf


def positive_integer(**named: Any) -> None:
    """Require every named value to be a whole number of at least one, and below 2^53.

    >>> positive_integer(steps=0)
    Traceback (most recent call last):
    ...
    mithridate.errors.ConfigError: Expected steps to be a whole number of at least 1, got 0.
    """
    for name, value in named.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise ConfigError(f"Expected {name} to be a whole number of at least 1, got {shown(value)}.")
        if int(value) >= _LARGEST:
            raise ConfigError(f"Expected {name} to be a whole number below 2^53, got a huge number.")


def sentences(**named: Any) -> None:
    """Require every named value to be a list of sentences; a single one would pass for a list of letters.

    >>> sentences(assumptions="The clipping norm was tuned here.")
    Traceback (most recent call last):
    ...
    mithridate.errors.ConfigError: Expected assumptions as a list of sentences, got 'The clipping norm was tuned here.'.
    """
    for name, value in named.items():
        listed = isinstance(value, list | tuple)
        if not listed or not all(isinstance(each, str) and each.strip() for each in value):
            raise ConfigError(f"Expected {name} as a list of sentences, got {shown(value)}.")


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
