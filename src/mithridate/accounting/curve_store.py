"""Curves on disk: one file per mechanism and engine, replaced atomically, rebuilt when damaged.

Whoever can write into their folder can falsify certificates that are computed from it (`mithridate verify` never reads
it): a folder or file that others own or may write to is not used. Against accidents, a file carries a hash of all that
it says, and curves that contradict what is known about their mechanism are not believed.

What every right curve obeys is checked without the engine that computes curves. A curve K is stored as lines `c + s x`,
each an upper bound on the largest probability under D' of an event that has probability x under D.

* *Shape.* The least right intercept of slope s is the hockey-stick divergence, which lies between max(0, 1 - s) and 1.
  So every line has 0 <= c and c + s >= 1, which is K(x) >= x on all of [0, 1].
* *Order.* More changed examples are no harder to see: K grows with either number of changes.
* *A lower bound.* Let every changed example pull with all its length in one direction, and let the attacker look at
  the sum of all steps only. That is a real pair of data sets and a real event, so K may not lie below it.

References: Dong, Roth, Su 2022 (arXiv 1905.02383) for shape and order; the event is that of docs/theory.md, section 5.
"""

import contextlib
import functools
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from mithridate._io.artifacts import read_npz
from mithridate._io.files import make_private, refuse_unless_private, write_atomically
from mithridate.accounting.privacy_loss import ErrorBudget, TradeoffCurve
from mithridate.core.mechanism import SampledGaussian
from mithridate.core.rule import FloatArray
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
            self.close()

    def close(self) -> None:
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
            return dict(_checked(self._path, _identity(self._path), self._key, self._mechanism))
        except (ArtifactError, ValueError) as error:
            _log.warning("the curve cache %s is damaged and will be rebuilt (%s)", self._path, error)
            return {}


@functools.lru_cache(maxsize=4)
def _checked(
    path: Path, identity: tuple[int, ...], key: str, mechanism: SampledGaussian
) -> dict[tuple[int, int], TradeoffCurve]:
    """The curves of a file, which is checked once as long as it stays the same: who certifies often reads it often."""
    curves = _unpack(key, read_npz(path, "curves"))
    check_plausible(mechanism, curves)
    return curves


def _identity(path: Path) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


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
    curves: dict[tuple[int, int], TradeoffCurve] = {}
    for (deleted, inserted), intercepts, slopes, budget in pieces:
        check_lines(intercepts, slopes)
        curves[deleted, inserted] = TradeoffCurve(intercepts, slopes, ErrorBudget(*budget))
    return curves


# Rounding of the lines and of what they are compared with; damage that matters is far larger.
_TOLERANCE = 1e-9
# Where the order is checked, here and as curves are computed, and by how much two grids may disagree.
ORDER_TOLERANCE = 1e-3
PROBES = np.array([0.003, 0.03, 0.3])
# Numbers of kept examples are taken in so many equally likely groups, and thresholds at so many places.
_GROUPS = 64
_PLACES = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])


def check_lines(intercepts: FloatArray, slopes: FloatArray) -> None:
    """Require lines as a curve has them: finite, of increasing slopes, between x and 1 wherever they may be.

    Raises:
        ValueError: they are something else.
    """
    if not (np.isfinite(intercepts).all() and np.isfinite(slopes).all()):
        raise ValueError("a curve holds numbers that are not finite")
    if (slopes < 0).any() or (np.diff(slopes) <= 0).any():
        raise ValueError("the slopes of a curve do not increase")
    below = (intercepts < -_TOLERANCE) | (intercepts + slopes < 1 - _TOLERANCE)
    if below.any() or (intercepts > 1 + _TOLERANCE).any():
        raise ValueError("a curve lies below K(x) = x, or above 1")


def check_plausible(mechanism: SampledGaussian, curves: Mapping[tuple[int, int], TradeoffCurve]) -> None:
    """Require curves that fit each other and their mechanism.

    Raises:
        ValueError: one cannot be right.
    """
    if any(min(split) < 0 or max(split) < 1 for split in curves):
        raise ValueError("a curve is about an impossible number of changes")
    for pure in ({s[0]: c for s, c in curves.items() if not s[1]}, {s[1]: c for s, c in curves.items() if not s[0]}):
        values = [pure[changes](PROBES) for changes in sorted(pure)]
        if any((fewer > more + ORDER_TOLERANCE).any() for fewer, more in pairwise(values)):
            raise ValueError("a curve lies above one for more changes")
    for (split, curve), (at, least) in zip(curves.items(), least_curves(mechanism, list(curves)), strict=True):
        if (curve(at) < least - _TOLERANCE).any():
            raise ValueError(f"the curve for {split[0]} deleted and {split[1]} inserted examples lies too low")


def least_curves(
    mechanism: SampledGaussian, splits: Sequence[tuple[int, int]]
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """For each split (deleted, inserted) some probabilities, and values that K has at least there.

    Guarantee: every curve that is right for the split is at least as large. With s = noise x sqrt(steps), the event
    "the sum of all steps is above t" has probability E Phi((J - t) / s) under D' and E Phi((-I - t) / s) under D, for
    binomial numbers J and I of times that a deleted or an inserted example is sampled. Both are bounded in groups of
    equal probability: under D' each by its smallest J, under D by its smallest I.

    Assumes: the mechanism of `SampledGaussian`.
    """
    scale = mechanism.noise_multiplier * np.sqrt(mechanism.steps)
    sampled = _smallest_in_groups({changes for split in splits for changes in split}, mechanism)
    for deleted, inserted in splits:
        more, fewer = sampled[deleted], sampled[inserted]
        # About the middle of the sum under D', and at some standard deviations from it.
        thresholds = float(more.mean()) + _PLACES * np.sqrt(scale**2 + float(more.var()))
        sums = np.stack([-fewer, more])[:, :, None]
        under, over = np.mean(np.asarray(special.ndtr((sums - thresholds) / scale), dtype=np.float64), axis=1)
        yield np.minimum(under, 1.0), over


def _smallest_in_groups(changes: set[int], mechanism: SampledGaussian) -> dict[int, FloatArray]:
    """How often so many examples are sampled in all steps: the smallest member of each of equally likely groups."""
    from scipy import stats  # which takes long to import, and is needed only where there is a cache

    numbers = sorted(changes)
    trials = np.array(numbers, dtype=np.float64)[:, None] * mechanism.steps
    smallest = np.asarray(stats.binom.ppf(np.arange(_GROUPS) / _GROUPS, trials, mechanism.sample_rate))
    # The quantile of zero is below every number; where all are sampled there is but one number.
    smallest = np.broadcast_to(trials, smallest.shape) if mechanism.sample_rate == 1 else np.maximum(smallest, 0.0)
    return dict(zip(numbers, smallest, strict=True))
