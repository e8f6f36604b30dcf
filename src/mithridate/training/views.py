"""What each instance sees of the training set, in which order, and how it is moved or made noisy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mithridate.data import Dataset
from mithridate.data.partition import IndexArray
from mithridate.training.plain_config import Bootstrap, FlippedLabels, NoisedFeatures, PlainRecipe
from mithridate.training.randomness import Seeds
from mithridate.training.sampling import Block

# Examples of one instance whose order is drawn at a time. A constant: draws must not depend on memory.
_VISITS_PER_BLOCK = 2**12
# Numbers of noise that a GPU draws at a time. Likewise.
_NORMALS = 2**24


@dataclass(frozen=True, eq=False)
class Seen:
    """What one instance sees: indices into the training set, and the labels that stand there for it."""

    members: IndexArray
    labels: npt.NDArray[np.int64]


NOTHING = Seen(np.empty(0, np.int64), np.empty(0, np.int64))


class Sight:
    """What every instance of a plan sees of the training set.

    Guarantee: for a plan of parts, what an instance sees is its part, in the canonical order. For the others it is an
    independent draw, as the plan's mechanism says, from the stream of the instance and its purpose.

    Of noisy labels and inputs only those are drawn that a step will look at: the rest is independent of the model.

    Args:
        recipe: how instances are trained, resolved.
        data: the training set.
        parts: for each model, the indices of its part in the canonical order, where the plan has parts.
    """

    def __init__(self, recipe: PlainRecipe, data: Dataset, parts: Sequence[IndexArray] | None = None) -> None:
        self._recipe, self._plan, self._labels, self._parts = recipe, recipe.plan, data.labels, parts
        self.noise = recipe.plan.noise if isinstance(recipe.plan, NoisedFeatures) else 0.0
        if self._parts is not None:
            self.longest = max(1, *(len(part) for part in self._parts))
        elif isinstance(self._plan, Bootstrap):
            self.longest = self._plan.draws
        else:
            self.longest = min(len(data.labels), recipe.steps * recipe.batch_size)

    def of(self, seeds: Seeds, instance: int) -> Seen:
        """What one instance sees; at most `longest` examples."""
        if self._parts is not None:
            members = self._parts[instance]
            return Seen(members, self._labels[members])
        if isinstance(self._plan, Bootstrap):
            random = seeds.generator(instance, "bootstrap")
            members = random.integers(len(self._labels), size=self.longest)
            return Seen(members, self._labels[members])
        members = np.arange(len(self._labels))
        if self.longest < len(members):
            members = seeds.generator(instance, "visited").permutation(members)[: self.longest]
        labels = self._labels[members]
        if isinstance(self._plan, FlippedLabels):
            labels = self._flipped(labels, self._plan.flip_prob, seeds.generator(instance, "labels"))
        return Seen(members, labels)

    def _flipped(
        self, labels: npt.NDArray[np.int64], flip_prob: float, random: np.random.Generator
    ) -> npt.NDArray[np.int64]:
        """Each label replaced with a probability, by one of the others, all equally likely."""
        assert self._recipe.classes is not None
        others = random.integers(1, self._recipe.classes, size=len(labels))
        return np.where(random.random(len(labels)) < flip_prob, (labels + others) % self._recipe.classes, labels)


class _Order:
    """In which order an instance visits what it sees: all of it in a random order, then again in another one."""

    def __init__(self, random: np.random.Generator, size: int) -> None:
        self._random, self._size = random, size
        self._left = np.empty(0, np.int32)

    def take(self, count: int) -> npt.NDArray[np.int32]:
        """The positions of the next visits, of something to see."""
        lack = count - len(self._left)
        if lack > 0:
            rounds = np.tile(np.arange(self._size, dtype=np.int32), (-(-lack // self._size), 1))
            self._left = np.concatenate([self._left, self._random.permuted(rounds, axis=1).ravel()])
        taken, self._left = self._left[:count], self._left[count:]
        return taken


def visits(
    seeds: Seeds, instances: Sequence[int], sizes: Sequence[int], *, steps: int, batch_size: int, ways: int = 1
) -> Iterator[Block]:
    """All batches of some models, a block of steps at a time; those of a model that sees nothing are empty.

    An entry is `position * ways + way`: a position in what the model sees, and one of the ways in which to see it. What
    is drawn for a model depends on its instance and on how much it sees.

    Args:
        seeds: where all randomness comes from.
        instances: the numbers of the instances; models beyond them see nothing.
        sizes: how many examples each model sees.
        steps: number of steps.
        batch_size: examples in a batch.
        ways: see `moved`.
    """
    orders = [
        _Order(seeds.generator(instance, "batches"), size) for instance, size in zip(instances, sizes, strict=False)
    ]
    moves = [seeds.generator(instance, "moves") for instance in instances]
    filled = np.array([batch_size if size else 0 for size in sizes], np.int32)
    length = max(1, _VISITS_PER_BLOCK // batch_size)
    for done in range(0, steps, length):
        count = min(length, steps - done)
        indices = np.zeros((count, len(filled), batch_size), np.int32)
        for slot in np.flatnonzero(filled):
            indices[:, slot] = orders[slot].take(count * batch_size).reshape(count, batch_size)
            if ways > 1:
                indices[:, slot] *= ways
                indices[:, slot] += moves[slot].integers(ways, size=(count, batch_size), dtype=np.int32)
        yield Block(indices, np.tile(filled, (count, 1)))


def ways_to_move(shift: int) -> int:
    """In how many ways an image can be moved by up to so many pixels."""
    return (2 * shift + 1) ** 2


def moved(images: Tensor, way: Tensor, shift: int) -> Tensor:
    """Images [N, C, H, W], each moved in one of the ways [N]; pixels at the border spread into what becomes free."""
    height, width = images.shape[2:]
    down, right = way // (2 * shift + 1) - shift, way % (2 * shift + 1) - shift
    rows = (torch.arange(height, device=way.device) - down.unsqueeze(1)).clamp(0, height - 1)
    columns = (torch.arange(width, device=way.device) - right.unsqueeze(1)).clamp(0, width - 1)
    places = (rows.unsqueeze(2) * width + columns.unsqueeze(1)).flatten(1).unsqueeze(1)
    return images.flatten(2).gather(2, places.expand(-1, images.shape[1], -1)).view_as(images)


def add_normals(values: Tensor, scale: float, seeds: Seeds, instance: int) -> None:
    """Add Gaussian noise to the inputs that an instance sees, in place, from its own stream.

    On a GPU it is drawn there in double precision, whose tails reach beyond eight standard deviations.
    """
    flat = values.view(-1)
    if values.device.type != "cuda":
        random = seeds.generator(instance, "features")
        flat.add_(torch.from_numpy(random.standard_normal(len(flat), dtype=np.float32)).to(values.device), alpha=scale)
        return
    random = torch.Generator(values.device).manual_seed(seeds.key(instance, "features") % 2**63)
    for at in range(0, len(flat), _NORMALS):
        part = flat[at : at + _NORMALS]
        drawn = torch.randn(len(part), dtype=torch.float64, device=values.device, generator=random)
        part.add_(drawn.float(), alpha=scale)
