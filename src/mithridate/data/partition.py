"""Parts of a training set that are decided by what each example is, never by where it stands.

An attacker who inserts or deletes an example must not move any other: the part of an example is a hash of its own
content, input and label. Equal examples fall into the same part, which is a multiset.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate.errors import ConfigError

Hashes = npt.NDArray[np.uint64]
IndexArray = npt.NDArray[np.int64]

# A constant that everybody knows: parts need to be fixed, not secret. Changing it changes all parts.
_KEY = b"mithridate content hash 1"
_BYTES = 32  # nobody finds two examples with one hash
_EXACT = 2**53
_ROWS = 1024  # converted at a time


def content_hashes(x: npt.NDArray[Any], y: npt.NDArray[np.int64]) -> Hashes:
    """A hash of the content of every example, 256 bits as examples x 4.

    Guarantee: it is a function of the example's own input and label, and of the kind (8-bit numbers, other numbers,
    text) and shape of the inputs, which are those of the data set. Numbers count by their value and texts without the
    padding that numpy gives them: how an array holds them may depend on other examples. Examples of different content
    have different hashes, as far as blake2b has no collisions.

    Args:
        x: inputs as they were given, one entry per example.
        y: labels.

    Raises:
        ConfigError: a whole number is too large to be told from its neighbours in double precision.

    >>> hashes = content_hashes(np.array([[1, 2], [3, 4], [1, 2]]), np.array([0, 1, 0]))
    >>> bool((hashes[0] == hashes[2]).all()), bool((hashes[0] == hashes[1]).any())
    (True, False)
    """
    kind = "text" if x.dtype.kind == "U" else "|u1" if x.dtype == np.uint8 else "numbers"
    start = hashlib.blake2b(f"{kind} {x.shape[1:]}".encode(), digest_size=_BYTES, key=_KEY)
    digests = bytearray()
    for content, label in zip(_contents(x), y.tolist(), strict=True):
        one = start.copy()
        one.update(label.to_bytes(8, "little"))
        one.update(content)
        digests += one.digest()
    return np.frombuffer(bytes(digests), dtype="<u8").reshape(len(x), -1).astype(np.uint64)


def _contents(x: npt.NDArray[Any]) -> Iterator[bytes | memoryview]:
    if x.dtype.kind == "U":
        # The width of numpy's texts is that of the longest one, which may be another example's.
        for texts in x.reshape(len(x), -1).tolist():
            encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
            yield b"".join(len(text).to_bytes(8, "little") + text for text in encoded)
        return
    if x.dtype.kind in "iu" and x.size and (x.max() > _EXACT or x.min() < -_EXACT):
        raise ConfigError("Expected whole numbers up to 2^53, which double precision holds exactly; scale the inputs.")
    for start in range(0, len(x), _ROWS):
        rows = x[start : start + _ROWS]
        rows = np.ascontiguousarray(rows, dtype=np.uint8 if x.dtype == np.uint8 else "<f8")
        for row in rows.reshape(len(rows), -1).view(np.uint8):
            yield row.data


def canonical_order(hashes: Hashes) -> IndexArray:
    """Indices of all examples, sorted by their hashes: an order that is the same however the data was ordered.

    Examples with equal hashes are equal, so which of them comes first does not matter.
    """
    return np.lexsort(hashes.T[::-1])


def parts(hashes: Hashes, count: int) -> list[IndexArray]:
    """The indices of the examples of each of `count` parts, in their canonical order.

    Guarantee: the part of an example depends on its own content and on `count` only.

    >>> x, y = np.arange(40).reshape(20, 2), np.zeros(20, np.int64)
    >>> sorted(int(i) for part in parts(content_hashes(x, y), 3) for i in part) == list(range(20))
    True
    """
    order = canonical_order(hashes)
    number = (hashes[order, 0] % np.uint64(count)).astype(np.int64)
    by_part = np.argsort(number, kind="stable")
    ends = np.searchsorted(number[by_part], np.arange(1, count))
    return np.split(order[by_part], ends)
