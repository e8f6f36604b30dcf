"""Texts as the mean of the vectors of their tokens: fast, small, and no network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mithridate.features._texts import PROBE_TEXTS, as_texts, tokenizer_of
from mithridate.features._twice import RowMachine
from mithridate.features.pretrained import Pretrained, needed, packaged, version_of

_MOST_TOKENS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class WordLlama(Pretrained):
    """Texts as the mean of the token vectors of WordLlama, which comes in a package of the Python registry.

    Guarantee and Assumes: those of `Pretrained`. Sums go through the tokens in their order.

    References:
        D. L. Miller, 2024, WordLlama (the token embeddings of large language models, trained further for similarity).
    """

    name: ClassVar[str] = "wordllama"
    extra: ClassVar[str] = "text"
    pinned: ClassVar[str | None] = "54b7ffb81f1fbe84ac94ac1fd262b3af66a97491837882bb5bb45f9b6212d87b"
    title: ClassVar[str] = "WordLlama (l2_supercat, 256 entries)"  # pyright: ignore

    trained_on: str | None = (
        "token embeddings of Llama 2 and other language models, whose training data is not public, trained further on "
        "public pairs of English texts"
    )
    licence: str | None = "MIT"

    def weight_files(self) -> tuple[Path, ...]:
        """Vectors and tokenizer."""
        files = "weights/l2_supercat_256.safetensors", "tokenizers/l2_supercat_tokenizer_config.json"
        vectors, tokenizer = (packaged("wordllama", file, title=self.title, extra=self.extra) for file in files)
        return vectors, tokenizer

    def versions(self) -> dict[str, str]:
        """Of what cuts texts."""
        needed("tokenizers", title=self.title, extra=self.extra)
        return {"tokenizers": version_of("tokenizers")}

    def inputs(self, x: Any) -> tuple[npt.NDArray[Any], Sequence[Any]]:
        """Texts."""
        return as_texts(x)

    def probes(self) -> list[str]:
        """Two texts."""
        return list(PROBE_TEXTS)

    def load(self) -> RowMachine:
        """The table of vectors."""
        library = needed("safetensors.numpy", title=self.title, extra=self.extra)
        file, tokenizer = self.weight_files()
        (vectors,) = library.load(file.read_bytes()).values()
        cut = tokenizer_of(tokenizer, _MOST_TOKENS, title=self.title, extra=self.extra, ends=False)
        table = vectors.astype(np.float64)

        def call(inputs: list[Any]) -> npt.NDArray[np.float32]:
            tokens = np.minimum(cut(inputs[0])[0], len(table) - 1)
            mean = np.add.reduce(table[tokens], axis=0) / max(1, len(tokens))
            return mean[None].astype(np.float32)

        return RowMachine(call, 1, "")
