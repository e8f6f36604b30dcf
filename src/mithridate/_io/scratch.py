"""Arrays that may be larger than memory: in a file that is gone when nobody holds them, or in one that is kept."""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate._io.files import check_is_file, write_atomically
from mithridate.errors import ArtifactError

# The largest array that is made in memory; MITHRIDATE_MEMORY_BYTES is another number. It cannot change a result.
IN_MEMORY_BYTES = 1 << 30


def in_memory_bytes() -> int:
    """The largest array that is made in memory."""
    said = os.environ.get("MITHRIDATE_MEMORY_BYTES", "")
    return int(said) if said.isascii() and said.isdigit() else IN_MEMORY_BYTES


def scratch(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An array to be filled: in memory, or mapped to a file without a name in the folder for temporary files.

    The file is gone with the array, also if the program is killed. TMPDIR names another folder for it, such as one on a
    larger disk; a folder that is kept in memory serves no purpose.

    Raises:
        ArtifactError: there is no room for it.

    >>> scratch((2, 3), np.int16).shape
    (2, 3)
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size <= in_memory_bytes():
        return np.empty(shape, dtype)
    try:
        with tempfile.TemporaryFile(prefix="mithridate-") as file:
            _reserve(file.fileno(), size)
            return np.memmap(file, dtype=dtype, mode="r+", shape=shape)
    except OSError as error:
        raise ArtifactError(
            f"There is no room for {size:,} bytes in {tempfile.gettempdir()}: {error.strerror}. Set TMPDIR to a folder "
            "on a larger disk."
        ) from error


def _reserve(file: int, size: int) -> None:
    """Have the room now: a full disk would otherwise kill the program when a page is written."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.truncate(file, size)


# --- files that are kept ----------------------------------------------------------------------------------------------

_HASHED_BYTES = 1 << 24
# What numpy raises on a header that is damaged, whose literals it reads as Python does.
_UNREADABLE = (
    ValueError,
    OSError,
    KeyError,
    TypeError,
    SyntaxError,
    TokenError,
    RecursionError,
    MemoryError,
    OverflowError,
)


def write_mapped(path: Path, array: npt.NDArray[Any]) -> str:
    """Write an array so that it can be mapped; the SHA-256 of its numbers."""
    with write_atomically(path) as file:
        np.lib.format.write_array(file, array, allow_pickle=False)
    return _digest(array)


def read_mapped(path: Path, digest: str) -> npt.NDArray[Any]:
    """An array that `write_mapped` wrote: read-only, and read from the file as it is needed.

    Raises:
        ArtifactError: the file is missing, damaged, or another one.
    """
    check_is_file(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of literals that only damage can have written
            array = np.lib.format.open_memmap(path, mode="r")
        found = None if array.dtype.hasobject else _digest(array)
    except _UNREADABLE as error:
        raise ArtifactError(f"Cannot read {path}: {error}. Copy it again, or train again.") from error
    if found != digest:
        raise ArtifactError(f"{path} was changed after it was written. Copy it again, or train again.")
    return array


def _digest(array: npt.NDArray[Any]) -> str:
    running = hashlib.sha256(f"{array.dtype.str} {array.shape}\n".encode())
    for piece in _pieces(array):
        running.update(np.ascontiguousarray(piece).data)
    return running.hexdigest()


def _pieces(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    size = max(1, _HASHED_BYTES * len(array) // max(1, array.nbytes))
    return (array[start : start + size] for start in range(0, len(array), size))
