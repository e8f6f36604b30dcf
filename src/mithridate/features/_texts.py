"""Texts for networks: as tokens, in pieces that are not too long, one text by itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate.errors import ConfigError
from mithridate.features.pretrained import needed
from mithridate.features.tables_and_text import check_texts

Tokens = npt.NDArray[np.int64]
# Fixed texts, by which settings that change bits are found out.
PROBE_TEXTS = ("The quick brown fox jumps over 13 lazy dogs.", "Prices rose by 0.7% in May; shares did not.")


def as_texts(x: Any) -> tuple[npt.NDArray[np.str_], Sequence[str]]:
    """Texts as they are hashed, and one by one.

    Raises:
        ConfigError: this is not a list or array of text.
    """
    texts = check_texts(x)
    if not texts:
        raise ConfigError("Expected at least one text.")
    array = np.array(texts, dtype=np.str_)
    return array, array.tolist()  # as they were hashed: an array drops NULs at the end of a text


def tokenizer_of(path: Path, most: int, *, title: str, extra: str, ends: bool = True) -> Callable[[str], list[Tokens]]:
    """A function from a text to its tokens, in pieces of at most so many.

    Args:
        path: `tokenizer.json`, as the library tokenizers writes it.
        most: tokens of a piece, those at its ends included.
        title: of the encoder.
        extra: what brings the library.
        ends: whether a piece has the tokens that mark its ends.
    """
    library = needed("tokenizers", title=title, extra=extra)
    content = path.read_text(encoding="utf-8")
    try:
        if (json.loads(content).get("model") or {}).get("dropout"):
            raise ConfigError(f"The tokenizer {path} draws random numbers (dropout); set that to null.")
        tokenizer = library.Tokenizer.from_str(content)
    except ConfigError:
        raise
    except Exception as error:  # the library raises bare exceptions
        raise ConfigError(f"{path} is no tokenizer: {error}") from error
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length=most)

    def pieces(text: str) -> list[Tokens]:
        # Half a surrogate pair is no character, and tokenizers refuse it.
        encoded = tokenizer.encode(text.encode("utf-8", "replace").decode("utf-8"), add_special_tokens=ends)
        return [np.array(each.ids, dtype=np.int64) for each in (encoded, *encoded.overflowing)]

    return pieces
