"""Published files, fetched once: streamed, checked against a checksum known beforehand, then renamed into place."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mithridate._io.files import make_folders, write_atomically
from mithridate.errors import ArtifactError

Progress = Callable[[int, int], None]

_CHUNK = 1 << 18
_TIMEOUT_SECONDS = 30.0


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

    Args:
        files: what to fetch.
        hosts: where they are offered, tried in this order; the name of a file is appended.
        folder: where they go; created where it is missing.
        progress: called with the number of bytes done and their total.

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
