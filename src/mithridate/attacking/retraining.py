"""Votes of poisoned data sets: composed anew by the door that the clean one came through, and trained cheaply.

Cheap means: features of an input are computed once, models of parts whose part did not change are not trained again,
and random learners vote with fewer instances. None of this may decide about a violation, so `again` does without.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate._io.files import PathLike
from mithridate.attacking.poison import Poison
from mithridate.core.mechanism import Deterministic
from mithridate.core.votes import Votes
from mithridate.data.examples import Examples
from mithridate.defences.base import kind_of_device
from mithridate.features.memory import forgotten
from mithridate.training.known_models import KnownModels
from mithridate.training.order import Order, Progress, RuntimeOptions, compose

IntArray = npt.NDArray[np.int64]


@dataclass(eq=False)
class Pipeline:
    """The way from a training set to votes, for the clean set and for every poisoned one.

    Attributes:
        asked: the defence as the user asked for it, with what was left open.
        training: the clean set.
        inputs: what is predicted.
        device: where models are trained.
        assumptions: what the user says has looked at the training data.
        known: models of parts that were trained before.
    """

    asked: Any
    training: Examples
    inputs: Examples
    device: str = "auto"
    assumptions: Sequence[str] = ()
    known: KnownModels = field(default_factory=KnownModels)

    def order(self, training: Examples, inputs: Examples, seed: bytes | None = None) -> Order:
        """The order for some data."""
        return compose(self.asked, training, inputs, assumptions=self.assumptions, device=self._kind, root_seed=seed)

    @property
    def _kind(self) -> str:
        return kind_of_device(self.device)

    def clean(self, order: Order, run_dir: PathLike | None, progress: Progress | None = None) -> Votes:
        """The votes that are certified: of a random learner in a run directory like any other."""
        if is_random(order):
            options = RuntimeOptions(run_dir=run_dir, device=self.device, keep_models=False, progress=progress)
        else:
            options = RuntimeOptions(device=self.device, progress=progress, known=self.known)
        return order.run(options)

    def poisoned(
        self, clean: Order, poison: Poison, chosen: IntArray | None, instances: int, seed: bytes, *, pinned: bool
    ) -> Votes:
        """Votes on a poisoned set, for a search.

        Args:
            clean: the order of the clean set.
            poison: what is changed.
            chosen: the inputs that are asked about; None: all.
            instances: how many models of a random learner vote.
            seed: where their randomness comes from: the same for all sets, so that luck tells them apart less.
            pinned: keep the constants of the clean set even where they would follow the poisoned one.
        """
        order = _for_votes(self._order_of(clean, poison, chosen, instances, seed, pinned=pinned))
        return order.run(RuntimeOptions(device=self.device, known=self.known))

    def again(self, clean: Order, poison: Poison, instances: int, seed: bytes, *, pinned: bool = False) -> Votes:
        """Votes on a poisoned set, to judge by: nothing known or remembered, a seed of their own, nothing pinned."""
        with forgotten():
            order = self._order_of(clean, poison, None, instances, seed, pinned=pinned)
            return order.run(RuntimeOptions(device=self.device))

    def _order_of(
        self, clean: Order, poison: Poison, chosen: IntArray | None, instances: int, seed: bytes, *, pinned: bool
    ) -> Order:
        training = poison.applied(self.training)
        inputs = self.inputs if chosen is None else self.inputs.part(chosen)
        seed_given = seed if is_random(clean) else None
        order = self.order(training, inputs, seed_given)
        if pinned and not same_constants(order, clean):
            order = replace(order, choice=clean.choice, facts=clean.facts)
        return with_instances(order, instances) if is_random(clean) else order


def _for_votes(order: Order) -> Order:
    """The same order without what certificates of inputs that move need: it takes long, and changes no vote."""
    if not getattr(order.defence, "moving_inputs", False):
        return order
    return replace(order, choice=replace(order.choice, defence=replace(order.defence, moving_inputs=False)))


def is_random(order: Order) -> bool:
    """Whether its votes are random draws."""
    return not all(issubclass(kind, Deterministic) for kind in order.defence.mechanisms)


def is_instant(order: Order) -> bool:
    """Whether nothing is trained, so that only inputs that matter need be asked about."""
    return not order.defence.needs_torch and not is_random(order)


def same_constants(order: Order, other: Order) -> bool:
    """Whether what was left open was decided alike."""
    return order.defence.to_dict() == other.defence.to_dict()


def with_instances(order: Order, instances: int) -> Order:
    """The same order for another number of instances; a choice that depends on their number is not made again."""
    defence = order.defence
    fewer = dataclasses.replace(defence, instances=instances)
    return replace(order, choice=replace(order.choice, defence=fewer))
