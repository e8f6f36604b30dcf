"""What models of parts said before: a model whose part did not change need not be trained again.

The model of a part is, to the bit, a function of the examples that the part holds, of the recipe and of its own number.
So whoever trains on nearly the same data again and again trains only the models whose part changed.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mithridate.training.run_directory import Run, TallyArrays, added

if TYPE_CHECKING:
    from mithridate.training.task import Job

TrainsModels = Callable[[Sequence[int]], Iterable[TallyArrays]]
_KEY_BYTES = 32
# Bytes of votes that are kept.
_MOST_BYTES = 1 << 29
# What a votes file of a function of the data has no use for.
_SCORES = ("score_sums", "score_squares", "score_histograms")


class KnownModels:
    """The votes of models of parts, by all that they are a function of.

    Guarantee: a run whose models are taken from here has the votes of one that trains all of them, as far as models
    are functions of their parts: where they are rehearsed, and no two parts have one hash.
    """

    def __init__(self) -> None:
        self._tallies: OrderedDict[bytes, _Packed] = OrderedDict()
        self._first: set[bytes] = set()
        self._last: list[bytes] = []
        self.trained = 0

    @property
    def is_rehearsed(self) -> bool:
        """Whether models were trained, and so tried, before."""
        return bool(self._tallies)

    @property
    def said(self) -> npt.NDArray[np.int64] | None:
        """The label that each model of the last run votes for, models x inputs; None where none was trained here."""
        if not self._last:
            return None
        return np.stack([self._tallies[key].tally()["counts"].argmax(axis=1) for key in self._last])

    def fill(self, run: Run, job: Job, train: TrainsModels, device: str) -> None:
        """The votes of every group of a run, from models that are known, or else trained now.

        Args:
            run: what is to be filled; models are functions of their parts.
            job: what those who train know.
            train: trains some models, and says how each of them votes.
            device: what trains them.
        """
        keys = keys_of(run.manifest.recipe, job)
        self._last = keys
        unknown = [model for model, key in enumerate(keys) if key not in self._tallies]
        for model, tally in zip(unknown, train(unknown) if unknown else (), strict=True):
            self._tallies[keys[model]] = _Packed.of({name: tally[name] for name in tally if name not in _SCORES})
        self.trained += len(unknown)
        for group in run.missing():
            run.save_tally(group, _sum(self._tallies[keys[model]].tally() for model in group), device)
        self._forget(keys)

    def _forget(self, keys: Sequence[bytes]) -> None:
        """Drop those that were not asked for the longest, but for models of the first run and of the last."""
        self._first = self._first or set(keys)
        for key in keys:
            self._tallies.move_to_end(key)
        size = sum(each.size for each in self._tallies.values())
        for key in list(self._tallies):
            if size <= _MOST_BYTES:
                return
            if key not in self._first and key not in keys:
                size -= self._tallies.pop(key).size


@dataclass(frozen=True)
class _Packed:
    """What one model said: votes of one model are zeros and ones, and take a bit each.

    Attributes:
        arrays: by name, the packed bits of an array, its shape and its type; what holds other numbers as it is.
    """

    arrays: dict[str, tuple[npt.NDArray[Any], tuple[int, ...] | None, np.dtype[Any]]]

    @classmethod
    def of(cls, tally: TallyArrays) -> _Packed:
        """Of some arrays."""
        found: dict[str, tuple[npt.NDArray[Any], tuple[int, ...] | None, np.dtype[Any]]] = {}
        for name, values in tally.items():
            if bool(((values == 0) | (values == 1)).all()):
                found[name] = np.packbits(values.astype(np.bool_)), values.shape, values.dtype
            else:
                found[name] = values, None, values.dtype
        return cls(found)

    def tally(self) -> TallyArrays:
        """The arrays as they were."""
        return {
            name: values
            if shape is None
            else np.unpackbits(values, count=int(np.prod(shape))).reshape(shape).astype(dtype)
            for name, (values, shape, dtype) in self.arrays.items()
        }

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(values.nbytes for values, _, _ in self.arrays.values())


def _sum(tallies: Iterable[TallyArrays]) -> TallyArrays:
    total = functools.reduce(added, tallies)
    scores = np.zeros(total["counts"].shape)  # of a function of the data nobody reads them
    return {**total, "score_sums": scores, "score_squares": scores}


def keys_of(recipe: Mapping[str, Any], job: Job) -> list[bytes]:
    """For every model, a hash of all that its votes are a function of."""
    assert job.members is not None
    training = {name: value for name, value in recipe.items() if name not in ("defence", "rule")}
    said = json.dumps([training, list(job.evidence), list(job.data.inputs.shape[1:])], sort_keys=True, default=repr)
    start = hashlib.blake2b(said.encode(), digest_size=_KEY_BYTES)
    start.update(np.ascontiguousarray(job.test).data)
    return [_key(start, model, members, job) for model, members in enumerate(job.members)]


def _key(start: Any, model: int, members: npt.NDArray[np.int64], job: Job) -> bytes:
    one = start.copy()
    one.update(f"{model} {len(members)}\n".encode())
    one.update(np.ascontiguousarray(job.data.inputs[members]).data)
    one.update(np.ascontiguousarray(job.data.labels[members]).data)
    return one.digest()
