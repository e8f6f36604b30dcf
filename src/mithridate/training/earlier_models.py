"""The models of parts of an earlier run: of those whose part is as it was, the votes are taken and nothing is trained.

A shard of a run holds the sum of what its models said. So what a model said before its part changed is taken out of
that sum, and what it says now is put in. What it said before is read where the run keeps it, or asked of the weights
that the run keeps; else the model is trained once more on the part that it had. All of these are whole numbers, whose
sums are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mithridate.training.known_models import keys_of
from mithridate.training.run_directory import Manifest, Run, TallyArrays, path_of, read_models, read_shard
from mithridate.training.task import Job

Weights = dict[str, npt.NDArray[np.float32]]
# Of a function of the data nobody reads scores, and sums of floating-point numbers cannot be taken apart.
_INEXACT = ("score_sums", "score_squares")
_OF_EACH = ("predictions", "rankings")


@dataclass(eq=False)
class EarlierModels:
    """A finished run of models of parts, from which a run on nearly the same data takes what did not change.

    Guarantee: a run that is filled from here has the votes of one that trains all its models, as far as models are
    functions of their parts, and the weights, where it keeps them. A model is taken over only where all that it is a
    function of is what it was (the examples of its part, the recipe and the computer), and so are the inputs that it is
    asked about.

    Attributes:
        run_dir: of the earlier run.
        job: of its order.
        trained: how many models were trained.
        again: how many of them were trained on the part that they had before, too.
    """

    run_dir: Path
    job: Job
    trained: int = 0
    again: int = 0
    _changed: frozenset[int] = field(default=frozenset(), init=False)

    @cached_property
    def manifest(self) -> Manifest:
        """What the earlier run says of itself."""
        return Manifest.read(self.run_dir / "run.json")

    def compare(self, run: Run, job: Job) -> None:
        """Find out which models of a run are not those of the earlier one."""
        before, now = keys_of(self.manifest.recipe, self.job), keys_of(run.manifest.recipe, job)
        known = dict(enumerate(before))
        self._changed = frozenset(model for model, key in enumerate(now) if known.get(model) != key)

    def may_take(self, group: range, *, alone: bool) -> bool:
        """Whether something of a group can be taken over.

        Args:
            group: of the run that is filled.
            alone: whether models are trained alone, so that some of a group can be.
        """
        changed = self._of(group)
        return group in self.manifest.ranges and len(changed) < len(group) and (alone or not changed)

    def take(self, run: Run, job: Job, machine: Any, group: range, advance: Callable[[int], None]) -> None:
        """Fill a group of which something can be taken over, and train the models that changed.

        Args:
            run: what is filled.
            job: what those who train know.
            machine: what trains models.
            group: the instances.
            advance: called with the number of model-steps that were done.
        """
        tally, device = read_shard(path_of(self.run_dir, "shards", group), self.manifest, group)
        stored = path_of(self.run_dir, "models", group)
        weights = read_models(stored, self.manifest, group) if self.manifest.keep_models else None
        if changed := self._of(group):
            places = [model - group.start for model in changed]
            old = self._said_before(run, machine, tally, weights, group, changed)
            made: Any = machine.train(run.seeds.only(changed), changed, advance)
            self.trained += len(changed)
            new = [machine.tally(made[at : at + 1], job.test) for at in range(len(changed))]
            tally = _exchanged(tally, old, new, places)
            weights = None if weights is None else _with_rows(weights, made, machine.shapes, places)
        if weights is not None and run.manifest.keep_models:
            run.save_models(group, weights, device or "cpu")
        run.save_tally(group, tally, device or "cpu")

    def _of(self, group: range) -> list[int]:
        return [model for model in group if model in self._changed]

    def _said_before(
        self, run: Run, machine: Any, tally: TallyArrays, weights: Weights | None, group: range, changed: Sequence[int]
    ) -> list[TallyArrays]:
        """What each of these models said in the earlier run."""
        places = [model - group.start for model in changed]
        if "preferences" not in tally and "predictions" in tally:
            return [_votes_for(tally["predictions"][:, place], tally["counts"].shape) for place in places]
        if weights is not None:
            rows = (_row_of(weights, machine.shapes, place) for place in places)
            return [machine.tally(torch.from_numpy(row), self.job.test) for row in rows]
        cpu = torch.device("cpu")
        earlier = self.job.trainer.machine(self.job, cpu, machine.precision, self.manifest.in_flight)
        made: Any = earlier.train(run.seeds.only(changed), changed, None)
        self.again += len(changed)
        return [earlier.tally(made[at : at + 1], self.job.test) for at in range(len(changed))]


def _votes_for(labels: npt.NDArray[Any], shape: tuple[int, ...]) -> TallyArrays:
    """The counts of one model that votes for these labels."""
    counts = np.zeros(shape, dtype=np.int64)
    counts[np.arange(len(labels)), labels] = 1
    return {"counts": counts}


def _exchanged(
    tally: TallyArrays, old: Sequence[TallyArrays], new: Sequence[TallyArrays], places: Sequence[int]
) -> TallyArrays:
    """The tally of a group with what some models said in the place of what they said before."""
    result: TallyArrays = {}
    for name, total in tally.items():
        if name in _INEXACT:
            result[name] = np.zeros_like(total)
        elif name in _OF_EACH:
            said = total.copy()
            for place, one in zip(places, new, strict=True):
                said[:, place] = one[name][:, 0]
            result[name] = said
        elif all(name in one for one in old):
            result[name] = total - sum(one[name] for one in old) + sum(one[name] for one in new)
    return result


def _row_of(weights: Weights, shapes: Mapping[str, Any], place: int) -> npt.NDArray[np.float32]:
    """The weights of one model as the engine holds them."""
    return np.concatenate([weights[name][place].reshape(1, -1) for name in shapes], axis=1)


def _with_rows(weights: Weights, made: torch.Tensor, shapes: Mapping[str, Any], places: Sequence[int]) -> Weights:
    """The weights of a group with those of some models in the place of others."""
    rows, found, start = made.detach().float().cpu().numpy(), dict[str, npt.NDArray[np.float32]](), 0
    for name in shapes:
        whole = weights[name].copy()
        size = whole[0].size
        whole[list(places)] = rows[:, start : start + size].reshape(len(places), *whole.shape[1:])
        found[name], start = whole, start + size
    return found
