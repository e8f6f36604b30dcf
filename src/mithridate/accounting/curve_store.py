"""Curves on disk: one file per mechanism and engine, replaced atomically, rebuilt when damaged.

Whoever can write into their folder can falsify certificates that are computed from it (`mithridate verify` never reads
it): a folder or file that others own or may write to is not used. Against accidents, a file carries a hash of all that
it says, and curves that contradict what is known about their mechanism are not believed.
"""

import contextlib
import hashlib
import json
import logging
import os
import time
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate._io.artifacts import read_npz, write_atomically
from mithridate._io.files import make_private, refuse_unless_private
from mithridate.accounting.plausibility import check_lines, check_plausible
from mithridate.accounting.privacy_loss import ErrorBudget, TradeoffCurve
from mithridate.core.mechanism import SampledGaussian
from mithridate.errors import ArtifactError

# Raise when a change of the engine or of the file changes any curve: old files are then left alone and never read.
ENGINE_VERSION = 3
_FLUSH_EVERY = 256
_MEMBERS = {"key", "splits", "lines", "intercepts", "slopes", "budgets", "sha256"}
# Unfinished files of processes that were killed; one that is being written is younger.
_LEFT_OVER_SECONDS = 3600
_log = logging.getLogger(__name__)


class CurveStore:
    """The curves of one mechanism, in memory and, where a folder is given and can be written to, on disk."""

    def __init__(self, mechanism: SampledGaussian, folder: Path | None) -> None:
        key = json.dumps({"schema": f"mithridate.curves/{ENGINE_VERSION}", **mechanism.to_dict()}, sort_keys=True)
        self._mechanism, self._key = mechanism, key
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
        except (OSError, ArtifactError) as error:
            _log.info("curves are not cached: %s", error)
        self._unsaved = 0

    def _write(self, path: Path) -> None:
        splits = sorted(self._curves)
        curves = [self._curves[split] for split in splits]
        arrays: dict[str, npt.NDArray[Any]] = {
            "key": np.array(self._key),
            "splits": np.array(splits, dtype=np.int64),
            "lines": np.array([len(curve.slopes) for curve in curves], dtype=np.int64),
            "intercepts": np.concatenate([curve.intercepts for curve in curves]),
            "slopes": np.concatenate([curve.slopes for curve in curves]),
            "budgets": np.array([astuple(curve.budget) for curve in curves], dtype=np.float64),
        }
        make_private(path.parent)
        _remove_left_over(path.parent)
        # A reader sees the old file or the new one, never a part; the last of two writers wins.
        with write_atomically(path, private=True) as file:
            np.savez(file, sha256=np.array(_digest(arrays)), **arrays)  # pyright: ignore[reportArgumentType]

    def _read(self) -> dict[tuple[int, int], TradeoffCurve]:
        """What is on disk; a file that is damaged or not ours counts as empty and is replaced by the next write."""
        if self._path is None or not os.path.lexists(self._path):
            return {}
        try:
            refuse_unless_private(self._path.parent)
            refuse_unless_private(self._path)
        except OSError as error:
            _log.warning("the curve cache is not used: %s", error)
            return {}
        try:
            curves = _unpack(self._key, read_npz(self._path, "curves"))
            check_plausible(self._mechanism, curves)
        except (ArtifactError, ValueError) as error:
            _log.warning("the curve cache %s is damaged and will be rebuilt (%s)", self._path, error)
            return {}
        return curves


def _remove_left_over(folder: Path) -> None:
    """Remove what processes that were killed while they wrote left behind; the folder is this user's alone."""
    for path in folder.glob(".curves-*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > _LEFT_OVER_SECONDS:
                path.unlink()


def _digest(arrays: dict[str, npt.NDArray[Any]]) -> str:
    """Over names, types, shapes and every byte of the arrays."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _unpack(key: str, arrays: dict[str, npt.NDArray[Any]]) -> dict[tuple[int, int], TradeoffCurve]:
    """The curves that the arrays of a file stand for.

    Raises:
        ValueError: they are not what was written, or are those of another mechanism.
    """
    if arrays.keys() != _MEMBERS:
        raise ValueError("it has other arrays than it should")
    if str(arrays.pop("sha256")) != _digest(arrays):
        raise ValueError("its content does not match its hash")
    if str(arrays["key"]) != key:
        raise ValueError("it belongs to another mechanism")
    splits, lines, budgets = arrays["splits"], arrays["lines"], arrays["budgets"]
    wanted = [("splits", (len(lines), 2), "i8"), ("lines", (len(lines),), "i8"), ("budgets", (len(lines), 4), "f8")]
    total = (int(lines.sum()),)
    wanted += [("intercepts", total, "f8"), ("slopes", total, "f8")]
    if any(arrays[name].shape != shape or arrays[name].dtype != kind for name, shape, kind in wanted):
        raise ValueError("its arrays do not fit each other")
    if (lines < 1).any() or not np.isfinite(budgets).all() or (budgets < 0).any():
        raise ValueError("a curve has no lines, or no error budget")
    ends = np.cumsum(lines)[:-1]
    pieces = zip(
        splits.tolist(),
        np.split(arrays["intercepts"], ends),
        np.split(arrays["slopes"], ends),
        budgets.tolist(),
        strict=True,
    )
    found = [((d, a), c, s, ErrorBudget(*budget)) for (d, a), c, s, budget in pieces]
    for _, intercepts, slopes, _ in found:
        check_lines(intercepts, slopes)
    return {split: TradeoffCurve(c, s, budget) for split, c, s, budget in found}
