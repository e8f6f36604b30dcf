"""Encoded rows on disk: computed once, by input and encoder, and the very same numbers ever after.

One folder an encoder (its name is a hash of all that its bits depend on), in it one file for every stretch of rows that
was finished. Files appear whole or not at all, are never changed, and are named by what they hold: any number of
processes may write at the same time, and one that is killed loses the stretch that it was at. Whoever can write into
the folder can falsify features, so one that others may write to is not used. Against accidents every file carries a
hash of all that it says; a damaged one is left alone, and its rows are computed again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate._io.files import make_private, opened_file, refuse_unless_private, write_atomically
from mithridate.errors import ArtifactError, ConfigError

Rows = npt.NDArray[np.float32]
Hashes = npt.NDArray[np.uint8]

# Unfinished files of processes that were killed; one that is being written is younger.
_LEFT_OVER_SECONDS = 3600
_log = logging.getLogger(__name__)


class RowStore:
    """The rows that one encoder made.

    Args:
        root: the folder of all stores, None where nothing is kept.
        identity: all that the bits of a row depend on beside its input, in plain JSON values.
    """

    def __init__(self, root: Path | None, identity: Mapping[str, Any]) -> None:
        key = json.dumps(identity, sort_keys=True)
        self._key = key
        self._folder = None if root is None else root / f"rows-{hashlib.sha256(key.encode()).hexdigest()[:24]}"
        self._is_open = self._folder is not None and self._opened(self._folder)

    def _opened(self, folder: Path) -> bool:
        """Whether the folder can be used; what it cannot is not an error, for rows can be computed again."""
        try:
            make_private(folder)
            for path in folder.glob(".*.tmp"):
                if time.time() - path.lstat().st_mtime > _LEFT_OVER_SECONDS:
                    with suppress(OSError):
                        path.unlink()
            about = folder / "encoder.json"
            if not about.exists():
                with write_atomically(about, private=True) as file:
                    file.write(self._key.encode())
            return about.read_text(encoding="utf-8") == self._key
        except (OSError, ArtifactError, ValueError) as error:
            _log.warning("encoded rows are not kept: %s", error)
            return False

    def find(self, hashes: Hashes) -> tuple[Rows | None, npt.NDArray[np.bool_]]:
        """The rows of some inputs, and of which of them there are any; the others are left undefined.

        Raises:
            ConfigError: two files disagree about a row.
        """
        found = np.zeros(len(hashes), dtype=bool)
        if not self._is_open or self._folder is None:
            return None, found
        places: dict[bytes, list[int]] = {}
        for at, one in enumerate(map(bytes, hashes)):
            places.setdefault(one, []).append(at)
        rows: Rows | None = None
        for path in sorted(self._folder.glob("*.npz")):
            part = _read(path, self._key, places)
            if part is None:
                continue
            chosen, values = part
            if rows is None:
                rows = np.empty((len(hashes), values.shape[1]), dtype=np.float32)
            at = np.array([place for one in chosen for place in places[one]])
            spread = np.repeat(values, [len(places[one]) for one in chosen], axis=0)
            known = found[at]
            if not np.array_equal(rows[at[known]].view(np.uint32), spread[known].view(np.uint32)):
                raise ConfigError(
                    f"Two files of {self._folder} disagree about the same input: this encoder is no function of its "
                    "input. Remove that folder, and encode again with device='cpu'."
                )
            rows[at], found[at] = spread, True
        return rows, found

    def add(self, hashes: Hashes, rows: Rows) -> None:
        """Keep some rows. Failure to write is not an error."""
        if not self._is_open or self._folder is None or not len(rows):
            return
        digest = _digest(self._key, hashes, rows)
        try:
            with write_atomically(self._folder / f"{digest[:32]}.npz", private=True) as file:
                np.savez(file, hashes=hashes, rows=rows, sha256=np.array(digest))
        except (OSError, ArtifactError) as error:
            _log.warning("encoded rows are not kept: %s", error)


def _read(path: Path, key: str, wanted: Mapping[bytes, Any]) -> tuple[list[bytes], Rows] | None:
    """The wanted inputs of a file and their rows, None where there are none."""
    try:
        refuse_unless_private(path)
        with opened_file(path) as file, np.load(file, allow_pickle=False) as archive:
            hashes: Hashes = archive["hashes"]
            which = [at for at, one in enumerate(map(bytes, hashes)) if one in wanted]
            if not which:
                return None
            rows: Rows = archive["rows"]
            if str(archive["sha256"]) != _digest(key, hashes, rows) or rows.dtype != np.float32:
                raise ValueError("its content does not match its hash")
    except (OSError, ArtifactError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zipfile.LargeZipFile) as error:
        _log.warning("%s is damaged, and its rows are computed again (%s)", path, error)
        return None
    return [bytes(hashes[at]) for at in which], rows[which]


def _digest(key: str, hashes: Hashes, rows: Rows) -> str:
    digest = hashlib.sha256(f"{key} {hashes.shape} {rows.shape}\n".encode())
    digest.update(np.ascontiguousarray(hashes).data)
    digest.update(np.ascontiguousarray(rows).data)
    return digest.hexdigest()
