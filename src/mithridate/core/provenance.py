"""Which data a claim is about: hashes of inputs and training data that anyone can compute again.

They follow from what the user gave, as it was read by its declaration, and from nothing else: not from the type of an
array, nor from where an input stands, nor from the inputs beside it. docs/certificate.md has them in ten lines.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate._text import shown
from mithridate.errors import ConfigError

Array = npt.NDArray[Any]
Hashes = npt.NDArray[np.uint8]

HASH_BYTES = hashlib.sha256().digest_size
_DIGITS = re.compile(f"[0-9a-f]{{{2 * HASH_BYTES}}}")
_ROWS = 1024  # converted at a time
_HASHED = 1 << 16  # held as lines of text at a time


@dataclass(frozen=True)
class TrainingData:
    """What was trained on.

    Attributes:
        fingerprint: of its inputs and labels; see `fingerprint`.
        examples: how many there are.
        features: fingerprint of what a trusted encoder made of the inputs, of which we know only what it does; None
            where features are a formula.
        units: fingerprint of the names of their units (docs/certificate.md); None where a unit is an example.
    """

    fingerprint: str
    examples: int
    features: str | None = None
    units: str | None = None

    def __post_init__(self) -> None:
        for name in ("fingerprint", "features", "units"):
            value = getattr(self, name)
            if not (is_hash(value) or (name != "fingerprint" and value is None)):
                raise ConfigError(f"Expected {name} of the training data as 64 hexadecimal digits, got {shown(value)}.")
        if type(self.examples) is not int or self.examples < 1:
            raise ConfigError(f"Expected examples of the training data from 1 on, got {shown(self.examples)}.")

    @classmethod
    def of(
        cls, x: Array, y: npt.NDArray[np.int64], features: Array | str | None = None, units: str | None = None
    ) -> TrainingData:
        """That of some inputs and labels; with what a trusted encoder made of the inputs, or its fingerprint."""
        made = fingerprint(features) if isinstance(features, np.ndarray) else features
        return cls(fingerprint(x, y), len(x), made, units)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values; what is None is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def input_hashes(x: Array) -> Hashes:
    """SHA-256 of every input, examples x 32 bytes.

    Guarantee: each is a function of that input alone: of its kind (8-bit numbers, other numbers, text), its shape and
    its values. Numbers count in double precision, texts in UTF-8.

    >>> x = np.array([[0.5, 2.0], [1.0, 2.0]], dtype=np.float32)
    >>> bool((input_hashes(x)[1] == input_hashes(np.array([[1, 2]]))[0]).all())
    True
    """
    kind = "text" if x.dtype.kind == "U" else "uint8" if x.dtype == np.uint8 else "numbers"
    shape = "x".join(map(str, x.shape[1:]))
    start = hashlib.sha256(f"{kind} {shape}\n".encode())
    digests = bytearray()
    for content in contents(x, "|u1" if kind == "uint8" else "<f8"):
        one = start.copy()
        one.update(content)
        digests += one.digest()
    return np.frombuffer(bytes(digests), dtype=np.uint8).reshape(len(x), HASH_BYTES)


def fingerprint(x: Array, y: npt.NDArray[np.int64] | None = None) -> str:
    """SHA-256, as hexadecimal digits, over a line for every input: its hash and, with labels, its label.

    >>> x = np.array([[1.0], [2.0]])
    >>> fingerprint(x) == fingerprint(x.astype(np.float32)) != fingerprint(x[::-1])
    True
    """
    running = Fingerprint()
    for start in range(0, len(x), _HASHED):
        part = slice(start, start + _HASHED)
        running.add(x[part], None if y is None else y[part])
    return running.digits()


class Fingerprint:
    """What `fingerprint` computes, of data that comes piece by piece."""

    def __init__(self) -> None:
        self._running = hashlib.sha256()

    def add(self, x: Array, y: npt.NDArray[np.int64] | None = None) -> None:
        """The next inputs, and their labels where the others have theirs."""
        lines = in_digits(input_hashes(x))
        if y is not None:
            lines = [f"{line} {label}" for line, label in zip(lines, y.tolist(), strict=True)]
        self._running.update("".join(f"{line}\n" for line in lines).encode())

    def digits(self) -> str:
        """The fingerprint of all that came so far."""
        return self._running.hexdigest()


def in_digits(hashes: Hashes) -> list[str]:
    """Hashes as hexadecimal digits."""
    return [row.tobytes().hex() for row in hashes]


def from_digits(digits: list[Any]) -> Hashes:
    """Read what `in_digits` gave.

    Raises:
        ValueError: something is no hash.
    """
    if not all(is_hash(each) for each in digits):
        raise ValueError("the hash of an input does not have 64 hexadecimal digits")
    return np.frombuffer(bytes.fromhex("".join(digits)), dtype=np.uint8).reshape(len(digits), HASH_BYTES)


def is_hash(value: Any) -> bool:
    """Whether this is a SHA-256 in small hexadecimal digits."""
    return isinstance(value, str) and _DIGITS.fullmatch(value) is not None


def contents(x: Array, dtype: str, zero: float | None = None) -> Iterator[bytes]:
    """The bytes of every input, numbers in this type; with `zero`, -0.0 counts as 0.0.

    The bytes of an entry in memory depend on the type of the whole array: on its longest text, or on a single number
    that needs double precision. These do not.
    """
    if x.dtype.kind == "U":
        for texts in x.reshape(len(x), -1).tolist():
            # Half a surrogate pair is no character, but it can stand in a string.
            encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
            yield b"".join(len(text).to_bytes(8, "little") + text for text in encoded)
        return
    for start in range(0, len(x), _ROWS):
        with np.errstate(invalid="ignore"):
            rows = x[start : start + _ROWS].astype(dtype)
        yield from map(np.ndarray.tobytes, rows if zero is None else rows + zero)
