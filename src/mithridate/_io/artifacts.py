"""Files of ours: hashed JSON, and arrays in `.npz` files that are read whole.

A hashed file tells whether it was changed: one JSON object whose hash covers every byte of the file. It starts with a
fixed prefix that holds the schema, the size and the hash, which is that of the whole file with its own 64 digits
replaced by zeros. A changed byte therefore shows, wherever it is; a shorter file is called truncated.
"""

import base64
import hashlib
import io
import json
import math
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from mithridate._io.files import (
    TEXT_BYTES,
    UNPACKED_BYTES,
    UNPACKED_RATIO,
    PathLike,
    opened_file,
    parse_json,
    size_of,
    unpacked_limit,
    write_atomically,
)
from mithridate.errors import ArtifactError, TamperedError

_PREFIX = '{{"schema": "{schema}", "size": "{size:012d}", "sha256": "{digest}",\n'
_DIGEST = re.compile(rb'"sha256": "([0-9a-f]{64})"')
_SIZE = re.compile(rb'"size": "([0-9]{12})"')
_ARRAY_DTYPES = ("int64", "float64", "float32", "uint8", "uint16", "uint32")
# What fits on a line of this length is not broken up, nor is a list of entries of at most this length, such as hashes.
_LINE, _LONG_ENTRY = 100, 80
# The hash and the size are this near to the beginning.
_PREFIX_BYTES = 512
# Arrays up to this size are compressed well; larger ones in little time, and not at all where nobody would unpack them.
_SMALL_ARRAY = 1 << 24


def write_hashed(path: PathLike, schema: str, content: dict[str, Any]) -> None:
    """Write `content` (JSON values and arrays) as a hashed file, laid out for people: see `_laid_out`."""
    # The prefix opens the object, so the body is the rest of it without its own brace.
    body = (",\n".join(_entries(_plain(content))) + "\n}\n").encode()
    size = len(_prefix(schema, 0, "0" * 64)) + len(body)
    digest = hashlib.sha256(_prefix(schema, size, "0" * 64) + body).hexdigest()
    with write_atomically(path) as file:
        file.write(_prefix(schema, size, digest) + body)


def _entries(content: Mapping[str, Any], indent: str = "") -> list[str]:
    return [f"{indent}{_compact(str(name))}: {_laid_out(value, indent)}" for name, value in content.items()]


def _laid_out(value: Any, indent: str) -> str:
    """A JSON value on one line, be it a list of ten thousand numbers; what holds long texts or objects, on several."""
    line = _compact(value)
    if len(line) <= _LINE or not isinstance(value, dict | list) or not value:
        return line
    deeper = f"{indent} "
    if isinstance(value, dict):
        inner = _entries(value, deeper)  # pyright: ignore[reportUnknownArgumentType]
        return "{\n" + ",\n".join(inner) + f"\n{indent}}}"
    entries = [f"{deeper}{_laid_out(each, deeper)}" for each in value]  # pyright: ignore[reportUnknownVariableType]
    if max(map(len, entries)) <= _LONG_ENTRY:
        return line
    return "[\n" + ",\n".join(entries) + f"\n{indent}]"


def _compact(value: Any) -> str:
    """On one line, in ASCII: a name from a stranger cannot turn the text around it."""
    return json.dumps(value, allow_nan=False)


def _plain(value: Any) -> Any:
    """JSON values with arrays encoded, each once."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
    if isinstance(value, list | tuple):
        return [_plain(each) if isinstance(each, np.ndarray | Mapping | list | tuple) else each for each in value]  # pyright: ignore[reportUnknownVariableType]
    return value if isinstance(value, str | int | float | None) else _encode_array(value)


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
    packed = zlib.compress(raw, 6 if len(raw) <= _SMALL_ARRAY else 1)  # what is large would take long
    if len(raw) > max(_SMALL_ARRAY, UNPACKED_RATIO * len(packed)):
        packed = zlib.compress(raw, 0)  # else nobody would unpack it; see `unpacked_limit`
    return {"dtype": value.dtype.name, "shape": list(value.shape), "data": base64.b64encode(packed).decode()}


def _prefix(schema: str, size: int, digest: str) -> bytes:
    return _PREFIX.format(schema=schema, size=size, digest=digest).encode()


# --- arrays -----------------------------------------------------------------------------------------------------------

_MAGIC = b"\x93NUMPY"
_SUFFIX = ".npy"
# By the version of the format; the third differs from the second in names of fields only, which are not read.
_HEADERS = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
    (3, 0): npy.read_array_header_2_0,
}
_ENTRIES = (b"descr", b"fortran_order", b"shape")
_HEADER_BYTES = 1 << 14
_CHUNK = 1 << 20
# The end of a zip: signature, number of members, length of the comment. Large ones have another record before it.
_END = struct.Struct("<4s6xH8xH")
_LARGE_END = struct.Struct("<4s28xQ16x")
_LARGE_LOCATOR = 20
_LARGE = 0xFFFF
_MOST_MEMBERS = 1 << 12
# The last of all characters.
_LARGEST = 0x10FFFF
# What zipfile raises on bytes that are no zip, or only look like one.
NO_ZIP = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    OSError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    OverflowError,
    RuntimeError,  # an encrypted member; NotImplementedError, an unknown version
    MemoryError,
)


class _DamagedError(Exception):
    """The bytes are not what was written; the text says what is wrong, and becomes part of a sentence."""


class _NotPlainError(Exception):
    """An array, of this name, is no plain array of numbers or text; `objects`: to load it would run code."""

    def __init__(self, name: str, *, objects: bool) -> None:
        super().__init__(name)
        self.name, self.objects = name, objects


def read_npz(path: Path, wanted: str) -> dict[str, npt.NDArray[Any]]:
    """All arrays of an `.npz` file, by name, each read whole.

    numpy itself reads of a member what the header of the array asks for. If a damaged header asks for less, the end of
    the member is never reached, and its checksum never compared: the array is another one, and nobody is told.

    Guarantee: every byte of every member is accounted for by its array's type and shape, and the checksum of the member
    agrees. Nothing is unpacked beyond what its header declares, nor beyond `unpacked_limit` in all. Object arrays are
    refused: reading them would run code from the file.

    Args:
        path: the file.
        wanted: what the file should hold, for the messages.

    Raises:
        ArtifactError: the file is missing, damaged, of another kind, or holds something other than plain arrays.
    """
    with opened_file(path) as stream:
        try:
            if stream.read(6) == _MAGIC:
                raise ArtifactError(f"{path} holds a single array; save it as an .npz with {wanted}.")
            with zipfile.ZipFile(stream) as archive:
                _check_directory(stream, len(archive.infolist()))
                return _members(archive, unpacked_limit(size_of(stream)))
        except ArtifactError:
            raise
        except _NotPlainError as error:
            if error.objects:
                raise ArtifactError(
                    f"{path} holds Python objects, which mithridate never loads; save plain arrays instead."
                ) from error
            raise ArtifactError(
                f"The array {error.name!r:.80} of {path} is not a plain array of numbers; save it as one."
            ) from error
        except (_DamagedError, *NO_ZIP) as error:
            raise ArtifactError(
                f"{path} is not a readable .npz (truncated, damaged or of another kind: "
                f"{str(error) or type(error).__name__}); give one with {wanted}."
            ) from error


def _check_directory(stream: IO[bytes], members: int) -> None:
    """Require that the end of the file names as many members as were found; zipfile does not look.

    A directory that seems shorter than it is lacks its first members, and nothing else would tell.
    """
    size = size_of(stream)
    stream.seek(max(0, size - _END.size - _LARGE_LOCATOR - _LARGE_END.size))
    tail = stream.read()
    signature, named, comment = _END.unpack_from(tail, len(tail) - _END.size)
    if signature != b"PK\x05\x06" or comment != 0:
        raise _DamagedError("something follows the end of its directory")
    if named == _LARGE and tail[_LARGE_END.size :].startswith(b"PK\x06\x07"):
        signature, named = _LARGE_END.unpack_from(tail)
    if named != members:
        raise _DamagedError(f"its directory should have {named} members, but has {members}")


def _members(archive: zipfile.ZipFile, limit: int) -> dict[str, npt.NDArray[Any]]:
    members = archive.infolist()
    if len(members) > _MOST_MEMBERS:
        raise _DamagedError(f"it has more than {_MOST_MEMBERS:,} members")
    if sum(member.file_size for member in members) > limit:
        raise _DamagedError(f"it unpacks to more than {limit:,} bytes; save it without compression (np.savez)")
    arrays: dict[str, npt.NDArray[Any]] = {}
    for member in members:
        name = member.filename.removesuffix(_SUFFIX)
        if name == member.filename or name in arrays:
            raise _DamagedError(f"its member {member.filename!r:.80} is no array, or there twice")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise _DamagedError("it is compressed by another method than deflate")
        with archive.open(member) as opened:
            arrays[name] = _array(opened, member.file_size, name)
    return arrays


def _array(stream: IO[bytes], size: int, name: str) -> npt.NDArray[Any]:
    """The array in a member of so many bytes, if it holds one and nothing but it."""
    content = bytearray()
    while chunk := stream.read(_CHUNK):  # to the end, where zipfile compares the checksum
        content += chunk
    if len(content) != size:
        raise _DamagedError("a member is too short")
    plain = _plain_header(bytes(content[:_HEADER_BYTES]), size, name)
    if plain.dtype.kind == "U":
        _check_text(np.frombuffer(content, plain.dtype.str[0] + "u4", offset=plain.offset), name)
    return np.frombuffer(content, plain.dtype, offset=plain.offset).reshape(plain.shape, order=plain.order)


class _Plain(NamedTuple):
    """What the header of an array of numbers or text says, and where the array begins."""

    shape: tuple[int, ...]
    order: Literal["C", "F"]
    dtype: np.dtype[Any]
    offset: int


def _plain_header(beginning: bytes, size: int, name: str) -> _Plain:
    """The header of the array of this name, which has so many bytes and is nothing but plain numbers or text."""
    start = io.BytesIO(beginning)
    shape, fortran, dtype = _header(start)
    if dtype.hasobject or dtype.names or dtype.kind not in "biufcSU":
        raise _NotPlainError(name, objects=dtype.hasobject)
    if sum(beginning[: start.tell()].count(entry) for entry in _ENTRIES) != len(_ENTRIES):
        raise _DamagedError("the header of an array has an entry twice")
    if dtype.itemsize == 0:  # of which any number would fit into nothing
        raise _DamagedError("the header of an array has entries without size")
    if math.prod(shape) * dtype.itemsize != size - start.tell():
        raise _DamagedError(f"the array {name!r:.80} does not have the size that its header says")
    return _Plain(shape, "F" if fortran else "C", dtype, start.tell())


def _check_text(characters: npt.NDArray[Any], name: str) -> None:
    for start in range(0, len(characters), _CHUNK):
        if (characters[start : start + _CHUNK] > _LARGEST).any():
            raise _DamagedError(f"the array {name!r:.80} holds what is no text")


def map_npy(path: Path) -> npt.NDArray[Any]:
    """The array of an `.npy` file, mapped for reading: of a large one only what is looked at takes memory.

    Guarantee: every byte of the file is accounted for by the type and shape of the array. Object arrays are refused:
    reading them would run code from the file.

    Assumes: nobody changes the file while it is in use.

    Raises:
        ArtifactError: the file is missing, damaged, of another kind, or holds something other than a plain array.
    """
    with opened_file(path) as stream:
        try:
            plain = _plain_header(stream.read(_HEADER_BYTES), size_of(stream), path.stem)
            array = np.memmap(stream, plain.dtype, "r", plain.offset, plain.shape, plain.order)
            if plain.dtype.kind == "U":
                _check_text(np.memmap(stream, plain.dtype.str[0] + "u4", "r", plain.offset), path.stem)
        except _NotPlainError as error:
            said = "Python objects, which mithridate never loads" if error.objects else "no plain numbers"
            raise ArtifactError(f"{path} holds {said}; save a plain array instead.") from error
        except (_DamagedError, OSError, ValueError, OverflowError, MemoryError) as error:
            raise ArtifactError(
                f"{path} is not a readable .npy (truncated, damaged, empty or of another kind: {error}); save it again "
                "with np.save."
            ) from error
    return array


def _header(start: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type of an array, as numpy reads them: literals of Python, none of which can run anything."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of literals that only damage can have written
            return _HEADERS[npy.read_magic(start)](start)
    except (ValueError, KeyError, TypeError, SyntaxError, TokenError, RecursionError, MemoryError) as error:
        raise _DamagedError("the header of an array cannot be read") from error


def write_npz(file: IO[bytes], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays that `read_npz` reads, compressed unless they are so large that they might not be read then."""
    write = np.savez_compressed if sum(array.nbytes for array in arrays.values()) < UNPACKED_BYTES else np.savez
    write(file, **arrays)  # pyright: ignore[reportArgumentType]
