"""Rows of a table, scaled by public constants, and texts as hashed n-grams, without a vocabulary."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mithridate import _validate
from mithridate.errors import ConfigError
from mithridate.features._encoder import Encoder, check_finite, chunks, numbers, scaled, unit_rows, with_bias

_REMEMBERED_NGRAMS = 1_000_000


@dataclass(frozen=True)
class UnitNorm(Encoder):
    """Rows of a table, shifted and scaled by public constants, with a bias, scaled to norm 1.

    Guarantee:
        Each row of the result is a function of that row and these constants alone, and equal bit for bit whether it is
        computed alone or with others.

    Assumes:
        `center` and `scale` come from outside the training data: a code book, units, other data. A mean or a standard
        deviation computed from the training set voids the certificate.

    Args:
        bias: appended to every row before it is scaled to norm 1; 0 leaves it out.
        center: subtracted from every row: one number for all columns, or one per column.
        scale: what the difference is divided by, above 0; likewise.

    Edge cases:
        ====================  =========================================================================
        a row of zeros        stays zero without a bias, and becomes 0, ..., 0, 1 with one
        images [n, ...]       are flattened
        8-bit numbers         are divided by 255, like pixels; other whole numbers are taken as they are
        ====================  =========================================================================

    >>> UnitNorm(bias=0.0).transform(np.array([[3.0, 4.0], [0.0, 0.0]]))
    array([[0.6, 0.8],
           [0. , 0. ]], dtype=float32)
    """

    name: ClassVar[str] = "unit-norm"

    bias: float = 1.0
    center: float | tuple[float, ...] = 0.0
    scale: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        _validate.number_in(0, math.inf, bias=self.bias)
        for name, low in (("center", -math.inf), ("scale", 0.0)):
            object.__setattr__(self, name, _public_constants(getattr(self, name), name, low))
        if isinstance(self.center, tuple) and isinstance(self.scale, tuple) and len(self.center) != len(self.scale):
            raise ConfigError(
                f"center has {len(self.center)} numbers and scale {len(self.scale)}; give one per column."
            )
        self._use_plain_numbers()

    def transform(self, x: np.ndarray) -> np.ndarray:
        """Features of table rows.

        Args:
            x: numbers [n, d], or [n, ...], which is flattened.

        Returns:
            float32 array [n, d] (with a bias [n, d + 1]), rows of norm 1 (or 0).

        Raises:
            ConfigError: the array is not numbers in rows, is not finite, or has another number of columns than
                `center` or `scale`.
        """
        table = numbers(x, "rows")
        if table.ndim < 2:
            raise ConfigError(f"Expected rows [n, d], got shape {table.shape}; reshape one column to [n, 1].")
        # A row is summed in the order in which it lies in memory: always the same one.
        table = np.ascontiguousarray(table.reshape(len(table), math.prod(table.shape[1:])))
        columns = table.shape[1]
        if not columns:
            raise ConfigError(f"Expected rows with at least one number, got shape {np.shape(x)}.")
        center, scale = self._constants("center", columns), self._constants("scale", columns)
        out = np.empty((len(table), columns + (1 if self.bias else 0)), dtype=np.float32)
        for rows in chunks(len(table), 2 * columns):
            with np.errstate(over="ignore"):
                values = (scaled(table[rows], np.float64) - center) / scale
            check_finite(values, rows.start)
            out[rows] = unit_rows(with_bias(values, self.bias))
        return out

    def _constants(self, name: str, columns: int) -> np.ndarray:
        values = np.atleast_1d(np.asarray(getattr(self, name), dtype=np.float64))
        if len(values) not in (1, columns):
            raise ConfigError(
                f"{name} has {len(values)} numbers, the rows have {columns}; give one number or {columns}."
            )
        return values


def _public_constants(value: Any, name: str, low: float) -> float | tuple[float, ...]:
    """One number, or one per column, each above `low`."""
    several = isinstance(value, (tuple, list, np.ndarray)) and np.ndim(value) == 1
    values: tuple[Any, ...] = tuple(value) if several else (value,)
    if not values:
        raise ConfigError(f"Expected {name} as one number or one per column, got none.")
    for number in values:
        _validate.number_in(low, math.inf, low_open=True, **{name: number})
    return tuple(float(number) for number in values) if several else float(values[0])


@dataclass(frozen=True)
class HashedNgrams(Encoder):
    """Text as signed, hashed counts of character and word n-grams, scaled to norm 1.

    Text is lower-cased (if asked), runs of white space become one space, and one space is put at either end. Character
    n-grams are all its substrings of the given lengths; words are runs of letters, digits and underscores, and word
    n-grams are words in a row, joined by one space. An n-gram found c times counts 1 + log(c). Its place and its sign
    are the keyed BLAKE2b hash of its kind ("c" or "w") and its UTF-8 bytes: 8 bytes, read as a little-endian whole
    number h, give place h mod 2^63 mod `dimension`, and sign -1 if h is 2^63 or more.

    Guarantee:
        Each row of the result is a function of that text and these constants alone. The hash depends neither on
        PYTHONHASHSEED nor on the machine, and there is no vocabulary to learn.

    Assumes:
        The constants are chosen without looking at the data to be certified.

    Args:
        dimension: number of places, at least 2.
        chars: shortest and longest character n-gram, or None for none.
        words: shortest and longest word n-gram, or None for none.
        lowercase: whether "A" is "a".
        bias: appended to every row before it is scaled; 0 leaves it out.
        key: key of the hash, at most 64 bytes; another key shares out the collisions anew.

    Edge cases:
        ====================  =========================================================================
        empty text            has one n-gram, the two spaces at its ends
        bytes                 are refused: decode them first
        ====================  =========================================================================

    References:
        K. Weinberger et al., 2009, "Feature hashing for large scale multitask learning" (signs).

    >>> HashedNgrams().transform(["three words here", ""]).shape
    (2, 1024)
    """

    name: ClassVar[str] = "hashed-ngrams"

    dimension: int = 1024
    chars: tuple[int, int] | None = (2, 4)
    words: tuple[int, int] | None = (1, 2)
    lowercase: bool = True
    bias: float = 0.0
    key: str = "mithridate"

    def __post_init__(self) -> None:
        _validate.positive_integer(dimension=self.dimension)
        if self.dimension < 2:
            raise ConfigError("Expected dimension of at least 2; all n-grams would share one place.")
        _validate.number_in(0, math.inf, bias=self.bias)
        check_hashing(self)
        self._use_plain_numbers()

    def transform(self, x: np.ndarray | Sequence[str]) -> np.ndarray:
        """Features of texts.

        Args:
            x: list or one-dimensional array of text.

        Returns:
            float32 array [n, dimension] (with a bias one more), rows of norm 1 (or 0).

        Raises:
            ConfigError: this is not a list or array of text.
        """
        texts = check_texts(x)
        out = np.empty((len(texts), self.dimension + (1 if self.bias else 0)), dtype=np.float32)
        places = {kind: Places(kind, self.dimension, self.key) for kind in ("c", "w")}
        for rows in chunks(len(texts), 2 * self.dimension):
            sums = np.stack([self._sums(text, places) for text in texts[rows]])
            out[rows] = unit_rows(with_bias(sums, self.bias))
        return out

    def _sums(self, text: str, places: dict[str, Places]) -> np.ndarray:
        text = text.lower() if self.lowercase else text
        sums = np.zeros(self.dimension)
        if self.chars:
            sums += places["c"].sums(windows(f" {' '.join(text.split())} ", self.chars))
        if self.words:
            words = windows(re.findall(r"\w+", text), self.words)
            sums += places["w"].sums([" ".join(window) for window in words])
        return sums


class Places(dict[str, tuple[int, float]]):
    """Place and sign of each n-gram of one kind, hashed when first asked for; what it remembers changes no result."""

    def __init__(self, kind: str, dimension: int, key: str) -> None:
        super().__init__()
        self.kind, self.dimension, self.key = kind, dimension, key.encode()

    def __missing__(self, ngram: str) -> tuple[int, float]:
        # Half a surrogate pair is no character, but it can stand in a string; it is hashed as it is.
        data = (self.kind + ngram).encode("utf-8", "surrogatepass")
        number = int.from_bytes(hashlib.blake2b(data, digest_size=8, key=self.key).digest(), "little")
        found = number % (1 << 63) % self.dimension, -1.0 if number >> 63 else 1.0
        self[ngram] = found
        return found

    def signed(self, weights: Mapping[str, float], scale: float) -> tuple[np.ndarray, np.ndarray]:
        """Places of n-grams, and their weights with their signs, together of norm `scale` (or 0)."""
        self._forget()
        places, signs = zip(*[self[ngram] for ngram in weights], strict=True)
        values = np.fromiter(weights.values(), dtype=np.float64)
        norm = math.sqrt(math.fsum(values * values))
        return np.array(places), values * (scale / norm if norm else 0.0) * signs

    def _forget(self) -> None:
        if len(self) > _REMEMBERED_NGRAMS:
            self.clear()

    def sums(self, ngrams: list[str]) -> np.ndarray:
        """Signed sums of 1 + log(count) at the n-grams' places."""
        self._forget()
        counts = Counter(ngrams)
        if not counts:
            return np.zeros(self.dimension)
        places, signs = zip(*[self[ngram] for ngram in counts], strict=True)
        weights = 1.0 + np.log(np.fromiter(counts.values(), dtype=np.float64))
        return np.bincount(places, weights * signs, minlength=self.dimension)


def windows(items: Any, lengths: tuple[int, int]) -> list[Any]:
    """All runs of neighbours of the given lengths in a string or a list."""
    shortest, longest = lengths
    return [items[i : i + k] for k in range(shortest, longest + 1) for i in range(len(items) - k + 1)]


def check_hashing(encoder: Any) -> None:
    """Check what encoders of text share: which n-grams there are, and their hash."""
    for name in ("chars", "words"):
        object.__setattr__(encoder, name, _lengths(getattr(encoder, name), name))
    if encoder.chars is None and encoder.words is None:
        raise ConfigError("Expected chars or words as a pair of lengths such as (2, 4); without both, no n-grams.")
    if not isinstance(encoder.lowercase, bool):
        raise ConfigError(f"Expected lowercase to be True or False, got {encoder.lowercase!r}.")
    if not isinstance(encoder.key, str) or len(encoder.key.encode()) > 64:
        raise ConfigError(f"Expected key as text of at most 64 bytes, got {encoder.key!r}.")


def _lengths(value: Any, name: str) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ConfigError(f"Expected {name} as shortest and longest length such as (2, 4), or None, got {value!r}.")
    _validate.positive_integer(**{name: value[0]})
    _validate.positive_integer(**{name: value[1]})
    if value[0] > value[1]:
        raise ConfigError(f"Expected {name} with the shortest length first, got {value!r}.")
    return int(value[0]), int(value[1])


def check_texts(x: Any) -> list[str]:
    """Texts as a list, or an error that says what they are instead."""
    if isinstance(x, np.ndarray):
        if x.ndim != 1 or x.dtype.kind not in "UT":
            raise ConfigError(
                f"Expected text as a one-dimensional array of strings, got {x.dtype} of shape {x.shape}; decode bytes, "
                "and convert Python objects with .astype(str)."
            )
        return [str(text) for text in x]
    if not isinstance(x, (list, tuple)):
        raise ConfigError(
            f"Expected text as a list or array of strings, got {type(x).__name__}; put one text in a list."
        )
    for i, text in enumerate(x):
        if not isinstance(text, str):
            raise ConfigError(
                f"Expected text as a list of strings, got {type(text).__name__} in row {i}; decode bytes."
            )
    return list(x)
