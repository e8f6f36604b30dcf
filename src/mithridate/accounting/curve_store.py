"""Curves on disk: one file per mechanism and engine, replaced atomically, rebuilt when damaged.

The folder is `$MITHRIDATE_CACHE`, else `mithridate` in the user's cache folder; `MITHRIDATE_CACHE=off` keeps nothing.
Whoever can write there can falsify certificates that are computed from it (`mithridate verify` never reads it).
"""

import contextlib
import hashlib
import json
import logging
import os
import tempfile
import zipfile
import zlib
from dataclasses import astuple
from pathlib import Path

import numpy as np

from mithridate.accounting.privacy_loss import ErrorBudget, TradeoffCurve
from mithridate.mechanism import SampledGaussian

# Raise when a change of the engine changes any curve: old files are then left alone and never read.
ENGINE_VERSION = 2
_FLUSH_EVERY = 256
# What numpy, zipfile and our own unpacking raise on bytes that are not what was written.
_DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RuntimeError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
)
_log = logging.getLogger(__name__)


def cache_folder() -> Path | None:
    """Where curves are kept, or None where the user wants none kept."""
    chosen = os.environ.get("MITHRIDATE_CACHE")
    if chosen is not None:
        return None if chosen in ("", "off") else Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    with contextlib.suppress(RuntimeError):  # No home folder: keep nothing.
        return Path(base) / "mithridate" if base else Path.home() / ".cache" / "mithridate"
    return None


class CurveStore:
    """The curves of one mechanism, in memory and, where a folder is given and can be written to, on disk."""

    def __init__(self, mechanism: SampledGaussian, folder: Path | None) -> None:
        key = json.dumps({"schema": f"mithridate.curves/{ENGINE_VERSION}", **mechanism.to_dict()}, sort_keys=True)
        self._key = key
        self._path = folder / f"curves-{hashlib.sha256(key.encode()).hexdigest()[:24]}.npz" if folder else None
        self._curves = self._read()
        self._unsaved = 0

    def get(self, deleted: int, inserted: int) -> TradeoffCurve | None:
        """The curve of a split, or None."""
        return self._curves.get((deleted, inserted))

    def put(self, deleted: int, inserted: int, curve: TradeoffCurve) -> None:
        """Remember a curve; every so often all are written to disk, so that an interrupted run loses little."""
        self._curves[deleted, inserted] = curve
        self._unsaved += 1
        if self._unsaved >= _FLUSH_EVERY:
            self.flush()

    def flush(self) -> None:
        """Write all curves, those that another process wrote meanwhile included. Failure to write is not an error."""
        if self._path is None or self._unsaved == 0:
            return
        self._curves = {**self._read(), **self._curves}
        try:
            self._write(self._path)
        except OSError as error:
            _log.info("curves are not cached: %s", error)
        self._unsaved = 0

    def _write(self, path: Path) -> None:
        splits = sorted(self._curves)
        curves = [self._curves[split] for split in splits]
        path.parent.mkdir(parents=True, exist_ok=True)
        # A reader sees the old file or the new one, never a part; the last of two writers wins.
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
        try:
            with os.fdopen(descriptor, "wb") as file:
                np.savez(
                    file,
                    key=np.array(self._key),
                    splits=np.array(splits, dtype=np.int64),
                    lines=np.array([len(curve.slopes) for curve in curves], dtype=np.int64),
                    intercepts=np.concatenate([curve.intercepts for curve in curves]),
                    slopes=np.concatenate([curve.slopes for curve in curves]),
                    budgets=np.array([astuple(curve.budget) for curve in curves], dtype=np.float64),
                )
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def _read(self) -> dict[tuple[int, int], TradeoffCurve]:
        """What is on disk; a file that is damaged or not ours counts as empty and is replaced by the next write."""
        if self._path is None or not self._path.exists():
            return {}
        try:
            with self._path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                return _unpack(self._key, {name: file[name] for name in file.files})
        except _DAMAGE as error:
            _log.warning("the curve cache %s is damaged and will be rebuilt (%s)", self._path, error)
            return {}


def _unpack(key: str, arrays: dict[str, np.ndarray]) -> dict[tuple[int, int], TradeoffCurve]:
    if str(arrays["key"]) != key:
        raise ValueError("it belongs to another mechanism")
    ends = np.cumsum(arrays["lines"])
    total = int(ends[-1])
    if len(arrays["slopes"]) != total or len(arrays["intercepts"]) != total or len(arrays["splits"]) != len(ends):
        raise ValueError("its arrays do not fit each other")
    if not (np.all(np.isfinite(arrays["slopes"])) and np.all(np.isfinite(arrays["intercepts"]))):
        raise ValueError("it holds numbers that are not finite")
    pieces = zip(
        arrays["splits"].tolist(),
        np.split(arrays["intercepts"], ends[:-1]),
        np.split(arrays["slopes"], ends[:-1]),
        arrays["budgets"].tolist(),
        strict=True,
    )
    return {(d, a): TradeoffCurve(c, s, ErrorBudget(*budget)) for (d, a), c, s, budget in pieces}
