"""Argument checks: one line each at the call, the message built from the keyword's own name."""

import math
from numbers import Integral, Real
from typing import Any

from mithridate._text import nearest, shown
from mithridate.errors import ConfigError

_LARGEST = 1 << 53  # beyond it, whole numbers lose digits as floats
# With weights up to this, weighed votes stay far below 2^63.
LARGEST_WEIGHT = 1_000_000


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
        try:
            number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
        except OverflowError:  # a whole number beyond double precision
            number = math.inf
        above = number > low if low_open else number >= low
        below = number < high if high_open else number <= high
        if not (above and below and math.isfinite(number)):
            interval = f"{'(' if low_open else '['}{low:g}, {high:g}{')' if high_open or math.isinf(high) else ']'}"
            raise ConfigError(f"Expected {name} in {interval}, got {shown(value)}.")


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


def whole_weights(classes: int | None = None, **named: Any) -> None:
    """Require every named value to be a list of whole numbers from 1 to a million, one for each of two labels or more.

    Raises:
        ConfigError: it is something else, or there are `classes` labels and another number of weights.

    >>> whole_weights(class_weights=[1, 10])
    >>> whole_weights(3, class_weights=[1, 10])
    Traceback (most recent call last):
    ...
    mithridate.errors.ConfigError: Expected class_weights for 3 labels, got 2; give one for each label, in their order.
    """
    for name, value in named.items():
        listed = isinstance(value, list | tuple) and len(value) >= 2
        if not listed or not all(_is_weight(each) for each in value):
            raise ConfigError(
                f"Expected {name} as whole numbers from 1 to {LARGEST_WEIGHT:,}, one for each label, got "
                f"{shown(value)}; 1 and 2.5 weigh as 2 and 5 do."
            )
        if classes is not None and len(value) != classes:
            raise ConfigError(
                f"Expected {name} for {classes} labels, got {len(value)}; give one for each label, in their order."
            )


def _is_weight(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and 1 <= int(value) <= LARGEST_WEIGHT


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
            near = nearest(value, options)
            end = "." if near is None else f"; did you mean {near!r}?"
            raise ConfigError(f"Expected {name} to be one of {', '.join(options)}, got {shown(value)}{end}")
