"""Text as hashed n-grams, without a vocabulary."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mithridate import _validate
from mithridate.errors import ConfigError
from mithridate.features._encoder import Encoder
from mithridate.features._rows import chunks, unit_rows, with_bias

_REMEMBERED_NGRAMS = 1_000_000


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
        empty text            stays zero without a bias (it has no n-gram of two characters or one word)
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
        for name in ("chars", "words"):
            object.__setattr__(self, name, _lengths(getattr(self, name), name))
        if self.chars is None and self.words is None:
            raise ConfigError("Expected chars or words as a pair of lengths such as (2, 4); without both, no n-grams.")
        if not isinstance(self.lowercase, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Expected lowercase to be True or False, got {self.lowercase!r}.")
        _validate.number_in(0, math.inf, bias=self.bias)
        if not isinstance(self.key, str) or len(self.key.encode()) > 64:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Expected key as text of at most 64 bytes, got {self.key!r}.")
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
        texts = _texts(x)
        out = np.empty((len(texts), self.dimension + (1 if self.bias else 0)), dtype=np.float32)
        places = {kind: _Places(kind, self.dimension, self.key) for kind in ("c", "w")}
        for rows in chunks(len(texts), 2 * self.dimension):
            sums = np.stack([self._sums(text, places) for text in texts[rows]])
            out[rows] = unit_rows(with_bias(sums, self.bias))
        return out

    def _sums(self, text: str, places: dict[str, _Places]) -> np.ndarray:
        text = text.lower() if self.lowercase else text
        sums = np.zeros(self.dimension)
        if self.chars:
            sums += places["c"].sums(_windows(f" {' '.join(text.split())} ", self.chars))
        if self.words:
            words = _windows(re.findall(r"\w+", text), self.words)
            sums += places["w"].sums([" ".join(window) for window in words])
        return sums


class _Places(dict[str, tuple[int, float]]):
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

    def sums(self, ngrams: list[str]) -> np.ndarray:
        """Signed sums of 1 + log(count) at the n-grams' places."""
        if len(self) > _REMEMBERED_NGRAMS:
            self.clear()
        counts = Counter(ngrams)
        if not counts:
            return np.zeros(self.dimension)
        places, signs = zip(*[self[ngram] for ngram in counts], strict=True)
        weights = 1.0 + np.log(np.fromiter(counts.values(), dtype=np.float64))
        return np.bincount(places, weights * signs, minlength=self.dimension)


def _windows(items: Any, lengths: tuple[int, int]) -> list[Any]:
    """All runs of neighbours of the given lengths in a string or a list."""
    shortest, longest = lengths
    return [items[i : i + k] for k in range(shortest, longest + 1) for i in range(len(items) - k + 1)]


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


def _texts(x: Any) -> list[str]:
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
