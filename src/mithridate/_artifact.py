"""Files that tell whether they were changed: one JSON object whose hash covers every byte of the file.

The file starts with a fixed prefix that holds the schema, the size and the hash, which is that of the whole file with
its own 64 digits replaced by zeros. A changed byte therefore shows, wherever it is; a shorter file is called truncated.
"""

import base64
import contextlib
import hashlib
import json
import os
import re
import secrets
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from mithridate.errors import ArtifactError, TamperedError

PathLike = str | os.PathLike[str]

_PREFIX = '{{"schema": "{schema}", "size": "{size:012d}", "sha256": "{digest}",\n'
_DIGEST = re.compile(rb'"sha256": "([0-9a-f]{64})"')
_SIZE = re.compile(rb'"size": "([0-9]{12})"')
_ARRAY_DTYPES = ("int64", "float64", "float32", "uint8", "uint16", "uint32")
# What zipfile and numpy raise on damaged files.
_UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    RuntimeError,  # an encrypted member; NotImplementedError, an unknown compression
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
)


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


def read_npz(path: Path, wanted: str) -> dict[str, npt.NDArray[Any]]:
    """All arrays of an `.npz`. Object arrays are refused: reading them would run code from the file.

    Args:
        path: the file.
        wanted: what the file should hold, for the messages.

    Raises:
        ArtifactError: the file is missing, damaged, of another kind, or holds something other than plain arrays.
    """
    check_is_file(path)
    try:
        # Opened here and not by numpy, which leaves a damaged file open.
        with path.open("rb") as stream:
            if stream.read(6) == b"\x93NUMPY":
                raise ArtifactError(f"{path} holds a single array; save it as an .npz with {wanted}.")
            stream.seek(0)
            with np.load(stream, allow_pickle=False) as file:
                return {name: _plain(path, name, np.asarray(file[name])) for name in file.files}
    except ArtifactError:
        raise
    except PermissionError as error:
        raise ArtifactError(f"Cannot read {path}: {error.strerror}. Ask its owner for permission.") from error
    except _UNREADABLE as error:
        if "Object arrays" in str(error):
            raise ArtifactError(
                f"{path} holds Python objects, which mithridate never loads; save plain arrays instead."
            ) from error
        raise ArtifactError(
            f"{path} is not a readable .npz (truncated, damaged or of another kind); give one with {wanted}."
        ) from error


def check_is_file(path: Path) -> None:
    """Refuse a path that leads to no file."""
    try:
        if path.is_dir():
            raise ArtifactError(f"{path} is a folder; give a file.")
        if not path.is_file():
            raise ArtifactError(f"There is no file {path}; check the path.")
    except (OSError, ValueError) as error:  # of a name that no file can have
        if isinstance(error, ArtifactError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise ArtifactError(f"Cannot read {path}: {reason}. Check the path.") from error


def _plain(path: Path, name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if array.dtype.hasobject or array.dtype.fields is not None:
        raise ArtifactError(f"The array {name!r} of {path} is not a plain array of numbers; save it as one.")
    return array


def write_hashed(path: PathLike, schema: str, content: dict[str, Any]) -> None:
    """Write `content` (JSON values and arrays) as a hashed file."""
    # The prefix opens the object, so the body is the rest of it without its own brace.
    body = json.dumps(content, indent=0, default=_encode_array, allow_nan=False)[1:].lstrip("\n") + "\n"
    size = len(_prefix(schema, 0, "0" * 64)) + len(body.encode())
    blank = _prefix(schema, size, "0" * 64) + body.encode()
    digest = hashlib.sha256(blank).hexdigest()
    with write_atomically(path) as file:
        file.write(_prefix(schema, size, digest) + body.encode())


def read_hashed(path: PathLike, schema: str) -> dict[str, Any]:
    """Read what `write_hashed` wrote.

    Raises:
        TamperedError: the file is of this schema, but a byte of it was changed.
        ArtifactError: the file is missing, truncated, or something else.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ArtifactError(f"Cannot read {path}: {error.strerror}. Check the path.") from error
    digest, size = _DIGEST.search(data[:512]), _SIZE.search(data[:512])
    name = schema.split("/")[0]
    if digest is None and f'"schema": "{name}/'.encode() not in data[:512]:
        raise ArtifactError(f"{path} is not a {name} file; give one that certify --out or Certificate.save wrote.")
    expected = int(size[1]) if size is not None else len(_prefix(schema, 0, "0" * 64))
    if len(data) < expected and not _is_whole(data):
        raise ArtifactError(f"{path} is truncated ({len(data)} of {expected} bytes); copy or write it again.")
    blank = data if digest is None else data[: digest.start(1)] + b"0" * 64 + data[digest.end(1) :]
    if digest is None or hashlib.sha256(blank).hexdigest().encode() != digest[1]:
        raise TamperedError(f"{path} was changed after it was written: its content does not match its hash.")
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{path} is not valid JSON although its hash is right.") from error
    if not isinstance(content, dict):
        raise ArtifactError(f"{path} is not a {name} file; give one that certify --out or Certificate.save wrote.")
    if content.get("schema") != schema:
        raise ArtifactError(
            f"{path} has the schema {content.get('schema')!r}, this version reads {schema!r}; update it."
        )
    return content


def _is_whole(data: bytes) -> bool:
    """Whether nothing is missing at the end, whatever the size says: then the size itself was changed."""
    try:
        return data.endswith(b"}\n") and bool(json.loads(data))
    except (ValueError, RecursionError):
        return False


def decode_array(value: Any) -> npt.NDArray[Any] | None:
    """An array that `write_hashed` wrote, or None.

    Raises:
        ArtifactError: the value is not an encoded array.
    """
    if value is None:
        return None
    try:
        if value["dtype"] not in _ARRAY_DTYPES:
            raise ValueError(value["dtype"])
        raw = zlib.decompress(base64.b64decode(value["data"], validate=True))
        little_endian = np.dtype(value["dtype"]).newbyteorder("<")
        return np.frombuffer(raw, dtype=little_endian).astype(value["dtype"]).reshape(value["shape"])
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise ArtifactError(f"An array in this file cannot be read: {error}.") from error


def _encode_array(value: Any) -> dict[str, Any]:
    if not isinstance(value, np.ndarray) or value.dtype.name not in _ARRAY_DTYPES:
        raise TypeError(f"cannot write {type(value)} into a file")
    raw = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<")).tobytes()
    data = base64.b64encode(zlib.compress(raw, 6)).decode()
    return {"dtype": value.dtype.name, "shape": list(value.shape), "data": data}


def _prefix(schema: str, size: int, digest: str) -> bytes:
    return _PREFIX.format(schema=schema, size=size, digest=digest).encode()
