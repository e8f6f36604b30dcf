"""Arrays that may be larger than memory: beyond a size they lie in a file that is gone when nobody holds them."""

from __future__ import annotations

import math
import os
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt

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
