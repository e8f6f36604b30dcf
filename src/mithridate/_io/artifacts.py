"""Files that tell whether they were changed: one JSON object whose hash covers every byte of the file.

The file starts with a fixed prefix that holds the schema, the size and the hash, which is that of the whole file with
its own 64 digits replaced by zeros. A changed byte therefore shows, wherever it is; a shorter file is called truncated.
"""

import base64
import contextlib
import hashlib
import json
import math
import os
import re
import secrets
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from mithridate._io import npz as _npz
from mithridate._io.files import (
    TEXT_BYTES,
    UNPACKED_BYTES,
    UNPACKED_RATIO,
    opened_file,
    parse_json,
    size_of,
    unpacked_limit,
)
from mithridate.errors import ArtifactError, TamperedError

PathLike = str | os.PathLike[str]

_PREFIX = '{{"schema": "{schema}", "size": "{size:012d}", "sha256": "{digest}",\n'
_DIGEST = re.compile(rb'"sha256": "([0-9a-f]{64})"')
_SIZE = re.compile(rb'"size": "([0-9]{12})"')
_ARRAY_DTYPES = ("int64", "float64", "float32", "uint8", "uint16", "uint32")
# The hash and the size are this near to the beginning.
_PREFIX_BYTES = 512
# Arrays up to this size are compressed as far as they can be.
_SMALL_ARRAY = 1 << 24


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
    """All arrays of an `.npz`, each read whole; see `_npz.read_arrays` for what is checked.

    Object arrays are refused: reading them would run code from the file.

    Args:
        path: the file.
        wanted: what the file should hold, for the messages.

    Raises:
        ArtifactError: the file is missing, damaged, of another kind, or holds something other than plain arrays.
    """
    with opened_file(path) as stream:
        try:
            if stream.read(6) == b"\x93NUMPY":
                raise ArtifactError(f"{path} holds a single array; save it as an .npz with {wanted}.")
            return _npz.read_arrays(stream)
        except _npz.NotPlainError as error:
            if error.objects:
                raise ArtifactError(
                    f"{path} holds Python objects, which mithridate never loads; save plain arrays instead."
                ) from error
            raise ArtifactError(
                f"The array {error.name!r:.80} of {path} is not a plain array of numbers; save it as one."
            ) from error
        except (_npz.DamagedError, OSError) as error:
            raise ArtifactError(
                f"{path} is not a readable .npz (truncated, damaged or of another kind: {error}); give one with "
                f"{wanted}."
            ) from error


def write_npz(file: IO[bytes], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays that `read_npz` reads, compressed unless they are so large that they might not be read then."""
    write = np.savez_compressed if sum(array.nbytes for array in arrays.values()) < UNPACKED_BYTES else np.savez
    write(file, **arrays)  # pyright: ignore[reportArgumentType]


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
    path, name = Path(path), schema.split("/")[0]
    with opened_file(path) as stream:
        data = _claimed_bytes(stream, path, name)
    digest, size = _DIGEST.search(data[:_PREFIX_BYTES]), _SIZE.search(data[:_PREFIX_BYTES])
    expected = int(size[1]) if size is not None else len(_prefix(schema, 0, "0" * 64))
    if len(data) < expected and not _is_whole(data):
        raise ArtifactError(f"{path} is truncated ({len(data)} of {expected} bytes); copy or write it again.")
    blank = data if digest is None else data[: digest.start(1)] + b"0" * 64 + data[digest.end(1) :]
    if digest is None or hashlib.sha256(blank).hexdigest().encode() != digest[1]:
        raise TamperedError(f"{path} was changed after it was written: its content does not match its hash.")
    try:
        content = parse_json(data)
    except ValueError as error:
        raise ArtifactError(f"{path} is not valid JSON although its hash is right: {error}.") from error
    if not isinstance(content, dict):
        raise ArtifactError(f"{path} is not a {name} file; give one that certify --out or Certificate.save wrote.")
    if content.get("schema") != schema:
        raise ArtifactError(
            f"{path} has the schema {content.get('schema')!r:.80}, this version reads {schema!r}; update it."
        )
    limit = unpacked_limit(len(data))
    if _declared_bytes(content) > limit:
        raise ArtifactError(f"The arrays in {path} would unpack to more than {limit:,} bytes; do not trust it.")
    return content


def _claimed_bytes(stream: IO[bytes], path: Path, name: str) -> bytes:
    """What the file holds, after a look at its beginning: a large file of another kind is not read as a whole."""
    try:
        start = stream.read(_PREFIX_BYTES)
        if _DIGEST.search(start) is None and f'"schema": "{name}/'.encode() not in start:
            raise ArtifactError(f"{path} is not a {name} file; give one that certify --out or Certificate.save wrote.")
        if size_of(stream) > TEXT_BYTES:
            raise ArtifactError(f"{path} has more than {TEXT_BYTES:,} bytes, too many for a {name} file.")
        return start + stream.read(TEXT_BYTES)
    except (OSError, MemoryError) as error:
        raise ArtifactError(f"Cannot read {path}: {getattr(error, 'strerror', None) or error}.") from error


def _declared_bytes(value: Any) -> int:
    """How much memory the arrays in the content of a file say that they need."""
    total, waiting = 0, [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(value)  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, dict):
            waiting.extend(value.values())  # pyright: ignore[reportUnknownArgumentType,reportUnknownMemberType]
            total += _array_bytes(value) or 0  # pyright: ignore[reportUnknownArgumentType]
    return total


def _array_bytes(value: Any) -> int | None:
    """How many bytes the array has that is encoded here; None if none is."""
    try:
        dtype, shape = value["dtype"], value["shape"]
        if dtype not in _ARRAY_DTYPES or not isinstance(shape, list) or len(shape) > 32:  # pyright: ignore[reportUnknownArgumentType]
            return None
        if not all(type(axis) is int and axis >= 0 for axis in shape):  # pyright: ignore[reportUnknownVariableType]
            return None
    except (KeyError, TypeError):
        return None
    return np.dtype(dtype).itemsize * math.prod(shape)  # pyright: ignore[reportUnknownArgumentType]


def _is_whole(data: bytes) -> bool:
    """Whether nothing is missing at the end, whatever the size says: then the size itself was changed."""
    try:
        return data.endswith(b"}\n") and bool(parse_json(data))
    except ValueError:
        return False


def decode_array(value: Any) -> npt.NDArray[Any]:
    """An array that `write_hashed` wrote.

    Raises:
        ArtifactError: the value is not an encoded array.
    """
    size = _array_bytes(value)
    if size is None:
        raise ArtifactError("An array in this file cannot be read: it lacks a type, or a shape.")
    try:
        unpacking = zlib.decompressobj()
        raw = unpacking.decompress(base64.b64decode(value["data"], validate=True), size + 1)
        if len(raw) != size or not unpacking.eof or unpacking.unused_data:
            raise ValueError("its data does not have the size of its shape")
        little_endian = np.dtype(value["dtype"]).newbyteorder("<")
        return np.frombuffer(raw, dtype=little_endian).astype(value["dtype"], copy=False).reshape(value["shape"])
    except (ValueError, KeyError, TypeError, MemoryError, zlib.error) as error:
        raise ArtifactError(f"An array in this file cannot be read: {error}.") from error


def _encode_array(value: Any) -> dict[str, Any]:
    if not isinstance(value, np.ndarray) or value.dtype.name not in _ARRAY_DTYPES:
        raise TypeError(f"cannot write {type(value)} into a file")
    raw = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<")).tobytes()
    packed = zlib.compress(raw, 6)
    if len(raw) > max(_SMALL_ARRAY, UNPACKED_RATIO * len(packed)):
        packed = zlib.compress(raw, 0)  # else nobody would unpack it; see `unpacked_limit`
    return {"dtype": value.dtype.name, "shape": list(value.shape), "data": base64.b64encode(packed).decode()}


def _prefix(schema: str, size: int, digest: str) -> bytes:
    return _PREFIX.format(schema=schema, size=size, digest=digest).encode()
