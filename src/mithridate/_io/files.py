"""Files: read within limits, though others may have written them; written as a whole or not at all.

Only plain files are opened, and no more is read or unpacked than is stated. The limits are those of docs/data.md,
"Limits". A pipe or a device is refused before anything waits for it.
"""

import contextlib
import ctypes
import json
import math
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from mithridate.errors import ArtifactError

PathLike = str | os.PathLike[str]

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
        raise unreadable(path, error) from error
    _check_mode(path, mode)


def _check_mode(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise ArtifactError(f"Cannot read {path}: it is not a file but a folder; give a file.")
    if not stat.S_ISREG(mode):
        raise ArtifactError(f"Cannot read {path}: it is not a file but a pipe or a device; give a file.")


def unreadable(path: Path, error: Exception) -> ArtifactError:
    """What to raise where a file cannot be read for this reason."""
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
        raise unreadable(path, error) from error
    with stream:
        _check_mode(path, os.fstat(stream.fileno()).st_mode)
        yield stream


def read_file(path: Path, limit: int = SMALL_BYTES) -> bytes:
    """All bytes of a plain file, which may have at most `limit`.

    Raises:
        ArtifactError: it is missing, too large, no plain file, or cannot be read.
    """
    with opened_file(path) as stream:
        try:
            if size_of(stream) > limit:
                raise ArtifactError(f"{path} is too large, with more than {limit:,} bytes.")
            return stream.read(limit)
        except (OSError, MemoryError) as error:
            raise unreadable(path, error) from error


def size_of(stream: IO[bytes]) -> int:
    """The number of bytes of an open file."""
    return os.fstat(stream.fileno()).st_size


def unpacked_limit(size: int) -> int:
    """How many bytes a file of this size may unpack to: enough for all that is not made to fill the memory."""
    return UNPACKED_BYTES + UNPACKED_RATIO * size


def parse_json(data: bytes | str) -> Any:
    """The value of a JSON text.

    Numbers that are not finite are refused: JSON has none, and comparisons with them fail. So is a name that an object
    has twice: of the two values some programs would read the first, others the last.

    Raises:
        ValueError: it is no JSON, or nested too deeply.
    """
    try:
        return json.loads(
            data, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_of_different_names
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _of_different_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r:.80} is there twice")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text:.40} is too large a number")
    return number


# --- writing ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def write_atomically(path: PathLike, *, durable: bool = False, private: bool = False) -> Iterator[IO[bytes]]:
    """A file that appears under its name only when all of it is written; what was there before stays until then.

    Args:
        path: name of the file.
        durable: wait until the file and its name are on the disk, so that not even a power cut takes them back.
        private: only the owner may read the file, at any moment of its life.

    Raises:
        ArtifactError: the folder cannot be written to.
    """
    path = Path(path)
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        raise ArtifactError(
            f"Cannot write {path}: {getattr(error, 'strerror', error)}. Choose a folder that exists and is yours."
        ) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if not private:  # A temporary file is private until it is told otherwise.
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
        if durable:
            sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise ArtifactError(f"Cannot write {path}: {error.strerror}. Choose another place.") from error
        raise


def write_once(path: Path, content: bytes) -> bool:
    """Write a file that nobody has written yet, whole and on the disk; whether it was this call that did.

    Guarantee: of several processes, on whatever machines, one writes it, and all read the same content afterwards. That
    rests on hard links, which fail where there is a file of that name: no lock is needed.

    Raises:
        ArtifactError: the folder cannot be written to, or its file system has no hard links.
    """
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    with write_atomically(unfinished, durable=True) as file:
        file.write(content)
    try:
        os.link(unfinished, path)
    except FileExistsError:
        return False
    except OSError as error:
        raise ArtifactError(
            f"Cannot write {path}: {error.strerror}; several processes can start a run together only on a file system "
            "with hard links. Prepare the run beforehand (mithridate train --prepare)."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
    sync_folder(path.parent)
    return True


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk, where the system has a way to ask for it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def exchange(one: Path, other: Path) -> None:
    """Give each of two folders, side by side, the name of the other.

    Guarantee: on Linux at once: at any moment either name leads to one of them, whole. Elsewhere by renaming, with a
    moment in which `other` is called like `one` with `.before` behind it.

    Raises:
        ArtifactError: they cannot be renamed.
    """
    try:
        if not _exchanged_at_once(one, other):
            before = _before(one)
            os.rename(other, before)
            os.rename(one, other)
            os.rename(before, one)
    except OSError as error:
        raise ArtifactError(f"Cannot put {one} in the place of {other}: {error.strerror}. Check the folder.") from error
    sync_folder(other.parent)


def recover(one: Path, other: Path) -> None:
    """Undo an exchange that was interrupted where it takes more than one step."""
    before = _before(one)
    with contextlib.suppress(OSError):
        if before.exists() and not other.exists():
            os.rename(before, other)
        elif before.exists() and not one.exists():
            os.rename(before, one)


def _before(one: Path) -> Path:
    return one.with_name(f"{one.name}.before")


# Of renameat2: relative to the working folder, and exchange.
_HERE, _EXCHANGE = -100, 2


def _exchanged_at_once(one: Path, other: Path) -> bool:
    """Whether the system could do it, which not every file system can."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    return rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), ctypes.c_uint(_EXCHANGE)) == 0


# --- files that only the user may write -------------------------------------------------------------------------------


def cache_folder() -> Path | None:
    """`$MITHRIDATE_CACHE`, else `mithridate` in the user's cache folder; None where nothing is to be kept (`off`)."""
    chosen = os.environ.get("MITHRIDATE_CACHE")
    if chosen is not None:
        return None if chosen in ("", "off") else Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    with contextlib.suppress(RuntimeError):  # No home folder: keep nothing.
        return Path(base) / "mithridate" if base else Path.home() / ".cache" / "mithridate"
    return None


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
