"""Files of well-known data sets as their publishers offer them: fetched once, and read.

A download is streamed, checked against a checksum known beforehand, then renamed into place. Readers take at most as
many bytes as the whole data set has, so that a small file cannot unpack into a huge one, and raise `ArtifactError` on
anything that is not what it should be. Pickles are never loaded.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import math
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

import numpy as np
import numpy.typing as npt

from mithridate._io.artifacts import write_atomically
from mithridate._io.files import make_folders, opened_file
from mithridate.errors import ArtifactError

Bytes = npt.NDArray[np.uint8]
Progress = Callable[[int, int], None]

CIFAR_SHAPE = (3, 32, 32)
_CIFAR_CLASSES = 10
_CIFAR_RECORD = 1 + math.prod(CIFAR_SHAPE)
_IDX_UNSIGNED_BYTE = 0x08
_AGAIN = "copy or download it again"
# An archive of the batches has little else in it.
_ARCHIVE_ROOM = 1 << 24
# What gzip and tarfile raise on damaged files.
_UNREADABLE = (OSError, EOFError, ValueError, zlib.error, tarfile.TarError, OverflowError, MemoryError)
_CHUNK = 1 << 18
_TIMEOUT_SECONDS = 30.0


# --- downloads --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PublishedFile:
    """A file as its publisher offers it.

    Attributes:
        name: its name, also at the end of its address.
        size: in bytes.
        sha256: of all its bytes, in hexadecimal digits.
    """

    name: str
    size: int
    sha256: str


class DownloadError(Exception):
    """A file did not come; the text says why, and becomes part of a sentence."""


def fetch(files: Sequence[PublishedFile], hosts: Sequence[str], folder: Path, progress: Progress | None) -> None:
    """Put files into a folder, each whole and as it was published or not at all.

    Hosts are tried in this order; `progress` is called with the number of bytes done and their total.

    Raises:
        DownloadError: no host gave a file as it was published.
        ArtifactError: the folder cannot be written to.
    """
    try:
        make_folders(folder)
    except OSError as error:
        raise ArtifactError(
            f"Cannot create {folder}: {error.strerror}. Set MITHRIDATE_CACHE to another one."
        ) from error
    total, before = sum(file.size for file in files), 0
    for file in files:

        def report(done: int, before: int = before) -> None:
            if progress is not None:
                progress(before + done, total)

        _fetch_from_any(file, hosts, folder, report)
        before += file.size


def _fetch_from_any(file: PublishedFile, hosts: Sequence[str], folder: Path, report: Callable[[int], None]) -> None:
    reasons: list[str] = []
    for host in hosts:
        try:
            _fetch_one(file, host + file.name, folder, report)
            return
        except DownloadError as error:
            reasons.append(str(error))
    raise DownloadError(", then ".join(dict.fromkeys(reasons)))


def _fetch_one(file: PublishedFile, address: str, folder: Path, report: Callable[[int], None]) -> None:
    digest, done = hashlib.sha256(), 0
    with write_atomically(folder / file.name) as written:
        for chunk in _chunks(address):
            done += len(chunk)
            if done > file.size:
                break
            digest.update(chunk)
            written.write(chunk)
            report(done)
        # Raised inside, so that the file never gets its name.
        if done != file.size or digest.hexdigest() != file.sha256:
            raise DownloadError(f"what arrived is not {file.name} as it was published")


def _chunks(address: str) -> Iterator[bytes]:
    """The bytes behind an address. Whatever the network does wrong becomes a `DownloadError`."""
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT_SECONDS) as response:
            while chunk := response.read(_CHUNK):
                yield chunk
    except urllib.error.HTTPError as error:
        error.close()
        raise DownloadError(f"the host answered with status {error.code}") from error
    except (OSError, http.client.HTTPException) as error:
        raise DownloadError("there is no connection to the host") from error


# --- formats: idx, CIFAR-10 records, archives of these ----------------------------------------------------------------


def read_idx(path: Path, *, limit: int) -> Bytes:
    """The array, of at most `limit` bytes, of an idx file, compressed by gzip where its name ends in `.gz`."""
    return parse_idx(_content(path, limit + 1024), str(path))


def parse_idx(content: bytes, what: str) -> Bytes:
    """The array in the bytes of an idx file.

    The layout: two zero bytes, the type, the number of axes, the length of each axis (four bytes, the highest first),
    then the values.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), "labels").tolist()
    [7, 9]
    """
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _IDX_UNSIGNED_BYTE or not 1 <= content[3] <= 4:
        raise ArtifactError(f"{what} is not an idx file of bytes; {_AGAIN}.")
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise ArtifactError(f"{what} is truncated; {_AGAIN}.")
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
    expected = start + math.prod(shape)
    if len(content) != expected:
        raise ArtifactError(f"{what} has {len(content)} bytes where its header announces {expected}; {_AGAIN}.")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_cifar(path: Path, *, limit: int) -> tuple[Bytes, Bytes]:
    """Images [n, 3, 32, 32] and labels of a file of CIFAR-10 records, such as `data_batch_1.bin`."""
    return parse_cifar(_content(path, limit), str(path))


def parse_cifar(content: bytes, what: str) -> tuple[Bytes, Bytes]:
    """Images and labels in CIFAR-10 records: a byte for the label, then planes of red, green and blue."""
    if not content or len(content) % _CIFAR_RECORD:
        raise ArtifactError(f"{what} does not hold whole records of {_CIFAR_RECORD} bytes; {_AGAIN}.")
    records = np.frombuffer(content, np.uint8).reshape(-1, _CIFAR_RECORD)
    images, labels = records[:, 1:].reshape(-1, *CIFAR_SHAPE), records[:, 0]
    if labels.max() >= _CIFAR_CLASSES:
        raise ArtifactError(f"{what} holds the label {labels.max()}; labels go from 0 to 9. {_AGAIN.capitalize()}.")
    return images, labels


def read_cifar_archive(path: Path, names: Iterable[str], *, limit: int) -> dict[str, tuple[Bytes, Bytes]]:
    """Images and labels of the named files, each of at most `limit` bytes, in `cifar-10-binary.tar.gz`.

    Folders in the archive do not matter, and nothing is unpacked to the disk.
    """
    wanted, found = set(names), dict[str, tuple[Bytes, Bytes]]()
    with opened_file(path) as file:
        try:
            unpacked = _Bounded(file, len(wanted) * limit + _ARCHIVE_ROOM)
            with tarfile.open(fileobj=cast("IO[bytes]", unpacked), mode="r|") as archive:
                for member in archive:
                    name = PurePosixPath(member.name).name
                    if name in wanted and member.isreg() and member.size <= limit:
                        stream = archive.extractfile(member)
                        assert stream is not None  # A regular file has content.
                        found[name] = parse_cifar(stream.read(), f"{name} in {path}")
        except ArtifactError:
            raise
        except _UNREADABLE as error:
            raise ArtifactError(f"{path} is not a readable .tar.gz (truncated or damaged); {_AGAIN}.") from error
    if missing := sorted(wanted - set(found)):
        raise ArtifactError(f"{path} lacks {', '.join(missing)}; {_AGAIN}.")
    return found


def _content(path: Path, limit: int) -> bytes:
    """The bytes of a file, unpacked; more than `limit` are refused."""
    with opened_file(path) as file:
        try:
            content = (gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file).read(limit + 1)
        except _UNREADABLE as error:
            raise ArtifactError(f"{path} cannot be read (truncated or damaged); {_AGAIN}.") from error
    if len(content) > limit:
        raise ArtifactError(f"{path} is larger than what was published; {_AGAIN}.")
    return content


class _Bounded:
    """What a gzip file unpacks to, which ends in an error after so many bytes."""

    def __init__(self, file: IO[bytes], most: int) -> None:
        self._stream, self._left = gzip.GzipFile(fileobj=file), most

    def read(self, size: int) -> bytes:
        """Some bytes; none at the end."""
        content = self._stream.read(min(size, self._left + 1))
        self._left -= len(content)
        if self._left < 0:
            raise ValueError("it unpacks to more than was published")
        return content
