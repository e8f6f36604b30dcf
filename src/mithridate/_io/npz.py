"""Arrays of an `.npz` file, read whole: a zip whose members are arrays in numpy's own format, and nothing else.

numpy itself reads of a member what the header of the array asks for. If a damaged header asks for less, the end of the
member is never reached, and its checksum never compared: the array is another one, and nobody is told. Here every
member is read to its end, its checksum compared, and its header must account for every byte.
"""

import math
import re
import struct
import zipfile
import zlib
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from mithridate._io.files import size_of, unpacked_limit

Array = npt.NDArray[Any]

_MAGIC = b"\x93NUMPY"
_SUFFIX = ".npy"
# How the length of the header is written, by the version of the format.
_LENGTHS = {(1, 0): "<H", (2, 0): "<I", (3, 0): "<I"}
_LONGEST_HEADER = 1 << 16
_CHUNK = 1 << 20
# The end of a zip: signature, number of members, length of the comment. Large ones have another record before it.
_END = struct.Struct("<4s6xH8xH")
_LARGE_END = struct.Struct("<4s28xQ16x")
_LARGE_LOCATOR = 20
_LARGE = 0xFFFF
_MOST_MEMBERS = 1 << 12
# The three entries that every header has; in what order, and with how much space between them, is up to the writer.
_ENTRY = re.compile(
    r"""\s*(?:
    (['"])descr\1\s*:\s*(?:(['"])(?P<descr>[^'"]{1,40})\2|(?P<structured>\[.*))
    |(['"])fortran_order\5\s*:\s*(?P<fortran>True|False)
    |(['"])shape\7\s*:\s*\((?P<shape>[\s0-9,L]*)\)
    )\s*(?:,\s*|$)""",
    re.VERBOSE | re.DOTALL,
)
_PLAIN = re.compile(r"[<>=|]?(?:\?|[biufcSU][0-9]{1,9})")
_AXIS = re.compile(r"\s*([0-9]{1,18})L?\s*")
_LARGEST_CHARACTER = 0x10FFFF
# What zipfile raises on bytes that are no zip, or only look like one.
_NO_ZIP = (
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


class DamagedError(Exception):
    """The bytes are not what was written; the text says what is wrong, and becomes part of a sentence."""


class NotPlainError(Exception):
    """An array is no plain array of numbers or text.

    Attributes:
        name: that of the array.
        objects: whether it holds Python objects, which to load would run code from the file.
    """

    def __init__(self, name: str, *, objects: bool) -> None:
        super().__init__(name)
        self.name, self.objects = name, objects


def read_arrays(stream: IO[bytes]) -> dict[str, Array]:
    """All arrays of an open `.npz` file, by name.

    Guarantee: every byte of every member is accounted for by its array's type and shape, and the checksum of the member
    agrees. Nothing is unpacked beyond what its header declares, nor beyond `unpacked_limit` in all.

    Raises:
        DamagedError: it is damaged, of another kind, or unpacks to more than the limit.
        NotPlainError: an array holds something other than numbers or text.
    """
    try:
        with zipfile.ZipFile(stream) as archive:
            _check_directory(stream, len(archive.infolist()))
            return _members(archive, unpacked_limit(size_of(stream)))
    except (DamagedError, NotPlainError):
        raise
    except _NO_ZIP as error:
        raise DamagedError(str(error) or type(error).__name__) from error


def _check_directory(stream: IO[bytes], members: int) -> None:
    """Require that the end of the file names as many members as were found; zipfile does not look.

    A directory that seems shorter than it is lacks its first members, and nothing else would tell.
    """
    size = size_of(stream)
    stream.seek(max(0, size - _END.size - _LARGE_LOCATOR - _LARGE_END.size))
    tail = stream.read()
    signature, named, comment = _END.unpack_from(tail, len(tail) - _END.size)
    if signature != b"PK\x05\x06" or comment != 0:
        raise DamagedError("something follows the end of its directory")
    if named == _LARGE and tail[_LARGE_END.size :].startswith(b"PK\x06\x07"):
        signature, named = _LARGE_END.unpack_from(tail)
    if named != members:
        raise DamagedError(f"its directory should have {named} members, but has {members}")


def _members(archive: zipfile.ZipFile, limit: int) -> dict[str, Array]:
    members = archive.infolist()
    if len(members) > _MOST_MEMBERS:
        raise DamagedError(f"it has more than {_MOST_MEMBERS:,} members")
    if sum(member.file_size for member in members) > limit:
        raise DamagedError(f"it unpacks to more than {limit:,} bytes; save it without compression (np.savez)")
    arrays: dict[str, Array] = {}
    for member in members:
        name = member.filename.removesuffix(_SUFFIX)
        if name == member.filename or name in arrays:
            raise DamagedError(f"its member {member.filename!r:.80} is no array, or there twice")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DamagedError("it is compressed by another method than deflate")
        with archive.open(member) as opened:
            arrays[name] = _Member(opened, member).array(name)
    return arrays


class _Member:
    """The content of one member, counted and added to a checksum as it is read."""

    def __init__(self, stream: IO[bytes], member: zipfile.ZipInfo) -> None:
        self._stream, self._member = stream, member
        self._left, self._checksum = member.file_size, 0

    def array(self, name: str) -> Array:
        """The array, if the member holds one and nothing but it."""
        header = self._header()
        dtype, shape, fortran = _parsed(header, name)
        if math.prod(shape) * dtype.itemsize != self._left:
            raise DamagedError(f"the array {name!r:.80} does not have the size that its header says")
        content = self._read(self._left)
        if self._stream.read(1) or self._checksum != self._member.CRC:
            raise DamagedError(f"the checksum of the array {name!r:.80} is wrong")
        if dtype.kind == "U" and (np.frombuffer(content, dtype.str[0] + "u4") > _LARGEST_CHARACTER).any():
            raise DamagedError(f"the array {name!r:.80} holds what is no text")
        return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")

    def _header(self) -> bytes:
        start = bytes(self._read(8))
        form = _LENGTHS.get((start[6], start[7]))
        if start[:6] != _MAGIC or form is None:
            raise DamagedError("a member is no array")
        (length,) = struct.unpack(form, self._read(struct.calcsize(form)))
        if length > _LONGEST_HEADER:
            raise DamagedError("the header of an array is too long")
        return bytes(self._read(length))

    def _read(self, count: int) -> bytearray:
        """So many bytes, in memory that grows with what is really there; fewer are an error."""
        if count > self._left:
            raise DamagedError("a member is too short")
        self._left -= count
        content = bytearray()
        while len(content) < count:
            chunk = self._stream.read(min(_CHUNK, count - len(content)))
            if not chunk:
                raise DamagedError("a member is too short")
            self._checksum = zlib.crc32(chunk, self._checksum)
            content += chunk
        return content


def _parsed(header: bytes, name: str) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """Type, shape and order in the header of an array: a dictionary as Python writes it, of which only this is read."""
    text = header.decode("utf-8").strip()
    if not (text.startswith("{") and text.endswith("}")):
        raise DamagedError("the header of an array is no dictionary")
    found: dict[str, str] = {}
    at, text = 0, text[1:-1].rstrip()
    while at < len(text):
        entry = _ENTRY.match(text, at)
        if entry is None or entry.lastgroup is None or entry.lastgroup in found:
            raise DamagedError("the header of an array cannot be read")
        found[entry.lastgroup] = entry[entry.lastgroup]
        at = entry.end()
    if "structured" in found:
        raise NotPlainError(name, objects="|O" in text)
    if found.keys() != {"descr", "fortran", "shape"}:
        raise DamagedError("the header of an array lacks an entry")
    return _dtype(found["descr"], name), _shape(found["shape"]), found["fortran"] == "True"


def _dtype(text: str, name: str) -> np.dtype[Any]:
    if _PLAIN.fullmatch(text) is None:
        raise NotPlainError(name, objects=text.lstrip("<>=|") == "O")
    dtype = np.dtype(text)
    if dtype.itemsize == 0:  # of which any number would fit into nothing
        raise DamagedError("the header of an array has entries without size")
    return dtype


def _shape(text: str) -> tuple[int, ...]:
    axes = text.split(",") if text.strip() else []
    if axes and not axes[-1].strip():  # as in (3,)
        axes.pop()
    found = [_AXIS.fullmatch(axis) for axis in axes]
    if len(found) > 32 or None in found:
        raise DamagedError("the header of an array has no shape")
    return tuple(int(axis[1]) for axis in found if axis is not None)
