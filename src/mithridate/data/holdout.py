"""Examples that are set aside to be voted on, chosen by a hash of each: a function of that example alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate import _validate
from mithridate.data.examples import Examples
from mithridate.errors import ConfigError

_KEY = b"mithridate holdout"
# Rows that are converted at once: enough to be fast, few enough to need little memory.
_ROWS = 256


def split_by_hash(examples: Examples, share: float) -> tuple[Examples, Examples]:
    """The examples to train on, and those that are held out.

    Guarantee:
        Whether an example is held out depends on the values of its own inputs and on no other example, nor on the type
        of the array that holds them all. So whoever adds or removes r examples changes the training part by at most r,
        which a split by position would not ensure. Exact copies of an example are on the same side: what is voted on
        was not trained on. An example that is replaced may change sides; for the training part that is then one
        removal or one addition, not a replacement.

    Args:
        examples: what was read.
        share: how much of it is held out, on average, above 0 and below 1.

    Raises:
        ConfigError: the share is not what it should be, or one of the parts would be empty.
    """
    _validate.number_in(0, 1, low_open=True, high_open=True, holdout=share)
    hashes = _uniform(examples.x)
    out = hashes < share
    if out.all() or not out.any():
        empty = f"Holding out {share:g} of {len(out)} examples leaves one part empty"
        if len(out) > 1 and len(np.unique(hashes)) < 2:
            raise ConfigError(
                f"{empty}, since all inputs look alike; check the data (constant or clipped columns), or name a test "
                "file."
            )
        raise ConfigError(f"{empty}; name a test file, or hold out another share.")
    return examples.part(~out), examples.part(out)


def _uniform(x: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each input."""
    rows = map(_text_bytes, x) if x.dtype.kind == "U" else _number_bytes(x)
    digests = b"".join(hashlib.blake2b(row, digest_size=8, key=_KEY).digest() for row in rows)
    return np.frombuffer(digests, dtype="<u8") * 2.0**-64


# The bytes of an entry in memory depend on the type of the whole array: on its longest text, or on a single number that
# needs double precision. These do not.


def _number_bytes(x: npt.NDArray[Any]) -> Iterator[bytes]:
    for start in range(0, len(x), _ROWS):
        with np.errstate(invalid="ignore"):
            rows = x[start : start + _ROWS].astype("<f8") + 0.0  # -0.0 becomes 0.0
        yield from map(np.ndarray.tobytes, rows)


def _text_bytes(row: Any) -> bytes:
    # Half a surrogate pair is no character, but it can stand in a string.
    found = [str(text).encode("utf-8", "surrogatepass") for text in np.ravel(row)]
    return b"".join(len(data).to_bytes(8, "little") + data for data in found)
