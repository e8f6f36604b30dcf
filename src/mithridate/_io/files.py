"""Files that others may have written: only plain files are opened, and no more is read or unpacked than is stated.

The limits are those of docs/data.md, "Limits". A pipe or a device is refused before anything waits for it.
"""

import contextlib
import json
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from mithridate.errors import ArtifactError

# What a compressed file may unpack to, at least; whatever its size, see `unpacked_limit`.
UNPACKED_BYTES = 1 << 28
# How many times its own size a file may unpack to beyond that. Deflate can reach 1,032 times.
UNPACKED_RATIO = 32
# The largest text table or certificate, which is held in memory as a whole.
TEXT_BYTES = 1 << 32
# The largest file of settings, seeds or the like.
SMALL_BYTES = 1 << 24
_OPEN = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def check_is_file(path: Path) -> None:
    """Refuse a path that leads to no file, or to a pipe or device, which may have no end.

    Raises:
        ArtifactError: it is no plain file.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise ArtifactError(f"Cannot read {path}: there is no file of that name. Check the path.") from None
    except (OSError, ValueError) as error:  # ValueError: of a name that no file can have
        raise _unreadable(path, error) from error
    _check_mode(path, mode)


def _check_mode(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise ArtifactError(f"Cannot read {path}: it is not a file but a folder; give a file.")
    if not stat.S_ISREG(mode):
        raise ArtifactError(f"Cannot read {path}: it is not a file but a pipe or a device; give a file.")


def _unreadable(path: Path, error: Exception) -> ArtifactError:
    if isinstance(error, PermissionError):
        return ArtifactError(f"Cannot read {path}: {error.strerror}. Ask its owner for permission.")
    return ArtifactError(f"Cannot read {path}: {getattr(error, 'strerror', None) or error}. Check the path.")


@contextlib.contextmanager
def opened_file(path: Path) -> Iterator[IO[bytes]]:
    """A plain file, open for reading. Nothing else is ever waited for, whatever takes the place of the file meanwhile.

    Raises:
        ArtifactError: there is no such file, it may not be read, or it is no plain file.
    """
    check_is_file(path)
    try:
        stream = open(os.open(path, _OPEN), "rb")
    except OSError as error:
        raise _unreadable(path, error) from error
    with stream:
        _check_mode(path, os.fstat(stream.fileno()).st_mode)
        yield stream


def read_file(path: Path, limit: int = SMALL_BYTES) -> bytes:
    """All bytes of a plain file.

    Args:
        path: the file.
        limit: the most bytes that it may have.

    Raises:
        ArtifactError: it is missing, too large, no plain file, or cannot be read.
    """
    with opened_file(path) as stream:
        try:
            if size_of(stream) > limit:
                raise ArtifactError(f"{path} is too large, with more than {limit:,} bytes.")
            return stream.read(limit)
        except (OSError, MemoryError) as error:
            raise _unreadable(path, error) from error


def size_of(stream: IO[bytes]) -> int:
    """The number of bytes of an open file."""
    return os.fstat(stream.fileno()).st_size


def unpacked_limit(size: int) -> int:
    """How many bytes a file of this size may unpack to: enough for all that is not made to fill the memory."""
    return UNPACKED_BYTES + UNPACKED_RATIO * size


def parse_json(data: bytes | str) -> Any:
    """The value of a JSON text. Numbers that are not finite are refused: JSON has none, and comparisons with them fail.

    Raises:
        ValueError: it is no JSON, or nested too deeply.
    """
    try:
        return json.loads(data, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text:.40} is too large a number")
    return number


# --- files that only the user may write ------------------------------------------------------------------------------


def make_private(folder: Path) -> None:
    """Make a folder that only the user can write to; an old one must be like that.

    Raises:
        OSError: it cannot be made, or others may write to it.
    """
    make_folders(folder)
    refuse_unless_private(folder)


def make_folders(folder: Path) -> None:
    """Make a folder and those above it; new ones are this user's alone, whatever the umask.

    Raises:
        OSError: one cannot be made.
    """
    for each in (*reversed(folder.parents), folder):
        each.mkdir(mode=0o700, exist_ok=True)


def refuse_unless_private(path: Path) -> None:
    """What others could have written is not trusted.

    Raises:
        PermissionError: the file or folder is a link, belongs to another user, or others can write to it.
    """
    if os.name != "posix":  # elsewhere the folders of a user are private
        return
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{path} is not this user's alone; give it to this user with mode 0700, or remove it")
