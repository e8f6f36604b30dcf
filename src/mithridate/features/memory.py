"""Rows that were encoded before, for those who encode nearly the same inputs again and again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from scipy.sparse import csr_array, vstack

from mithridate.core.provenance import contents
from mithridate.features._encoder import BadRow, Encoder

_KEY_BYTES = 16


class _Rows:
    """The rows of one encoder, each under a hash of its input."""

    def __init__(self) -> None:
        self._places: dict[bytes, int] = {}
        self._rows: Any = None

    def of(self, x: np.ndarray, encode: Callable[[np.ndarray], Any]) -> Any:
        """The rows of some inputs; those that are new are encoded, each once."""
        keys = _keys(x)
        new = {key: at for at, key in enumerate(keys) if key not in self._places}
        if new:
            first, which = len(self._places), np.fromiter(new.values(), np.int64, len(new))
            try:
                made = encode(np.ascontiguousarray(x[which]))
            except BadRow as error:  # which counts among those that are new
                raise BadRow(int(which[error.row]), error.words) from error
            self._rows = made if self._rows is None else _stacked(self._rows, made)
            self._places |= {key: first + at for at, key in enumerate(new)}
        return self._rows[np.fromiter((self._places[key] for key in keys), np.int64, len(keys))]


def _keys(x: np.ndarray) -> list[bytes]:
    """A hash of every input, with the type of its numbers: an encoder may round by it."""
    is_text = x.dtype.kind == "U"
    start = hashlib.blake2b(f"{'text' if is_text else x.dtype} {x.shape[1:]}".encode(), digest_size=_KEY_BYTES)
    found: list[bytes] = []
    for each in contents(x, "|u1" if x.dtype == np.uint8 else "<f8"):
        one = start.copy()
        one.update(each)
        found.append(one.digest())
    return found


def _stacked(first: Any, second: Any) -> Any:
    if isinstance(first, csr_array):
        return csr_array(vstack([first, second]))
    return np.concatenate([first, second])


_memory: ContextVar[dict[tuple[str, str, int], _Rows] | None] = ContextVar("encoded rows", default=None)

_passing: ContextVar[bool] = ContextVar("features that are not kept", default=False)


@contextmanager
def remembered() -> Iterator[None]:
    """Inside of this block every input is encoded once by each encoder, however often it is asked about.

    Guarantee: rows are those of the encoder bit for bit, since each is a function of its input and the constants alone
    (see `Encoder`). Of a user's own encoder, `Frozen`, that is what the user states.
    """
    token = _memory.set({})
    try:
        yield
    finally:
        _memory.reset(token)


@contextmanager
def forgotten() -> Iterator[None]:
    """Inside of this block nothing is remembered, whatever the block around it says: for what checks."""
    token = _memory.set(None)
    try:
        yield
    finally:
        _memory.reset(token)


@contextmanager
def passing() -> Iterator[None]:
    """Inside of this block features are neither remembered nor kept on disk: for inputs that never come again."""
    token = _passing.set(True)
    try:
        with forgotten():
            yield
    finally:
        _passing.reset(token)


def is_passing() -> bool:
    """Whether features are not to be kept."""
    return _passing.get()


def encoded(encoder: Encoder, x: np.ndarray, *, compared: bool = False) -> Any:
    """Features of inputs: those of `transform`, or of `compared`, remembered inside of `remembered`."""
    encode = encoder.compared if compared else encoder.transform
    memory = _memory.get()
    if memory is None:
        return encode(x)
    name = json.dumps(encoder.to_dict(), sort_keys=True, default=repr)
    key = ("compared" if compared else "transform", name, id(getattr(encoder, "function", None)))
    return memory.setdefault(key, _Rows()).of(x, encode)
