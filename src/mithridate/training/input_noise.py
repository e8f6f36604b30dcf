"""Noise on inputs: how instances see the inputs that they vote on, and the examples that they train on.

*Voting.* Every instance adds noise of its own to every input, from its own seed; then the noisy input goes the way of
any other: clipped and rounded to 8 bits where it is an image, scaled or encoded. All that is post-processing of the
noisy input, which is what a certificate of moved inputs speaks of (`accounting.input_shift`).

*Training.* So that models know such inputs, each example is trained on with noise of the same size. That noise is a
function of the example alone, seeded by its content: one example more or less changes no other, and the guarantee of
training stays what it is.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate._io.scratch import scratch
from mithridate.core.input_change import InputNoise
from mithridate.data.declarations import Table
from mithridate.data.examples import Examples, Preparation, kind_of, pieces_of
from mithridate.errors import ConfigError
from mithridate.features.memory import passing
from mithridate.training.config import ViewPlan
from mithridate.training.randomness import Seeds
from mithridate.training.run_directory import TallyArrays, added

Array = npt.NDArray[Any]
Normals = Callable[[int, tuple[int, ...]], npt.NDArray[np.float64]]

_PURPOSE = "input noise"
# Noisy numbers are multiples of the deviation divided by about so many powers of two.
_GRID_BITS = 12
# Copies of inputs x classes, at most.
_MOST_ANSWERS = 1 << 27
# Bytes of noisy copies that are kept for the next group of models.
_MOST_KEPT = 1 << 29


@dataclass(frozen=True, eq=False)
class NoisyInputs:
    """Inputs to vote on, as every instance sees them.

    Guarantee: what an instance sees of an input is a function of the input plus normal draws of the stated deviation,
    which are independent for every instance and every input, as far as the streams of `Seeds` are.

    Attributes:
        noise: what is added.
        x: raw inputs.
        preparation: what comes after.
    """

    noise: InputNoise
    x: Array
    preparation: Preparation

    def streams(self, instances: Sequence[int]) -> list[int]:
        """The instances whose seeds these instances need to train and to vote."""
        return list(instances)

    def seen_by(self, seeds: Seeds, instance: int, purpose: str = _PURPOSE) -> Array:
        """The inputs of the network, for one instance."""
        generator = seeds.generator(instance, purpose)
        noisy = _with_noise(self.x, self.noise, lambda _, shape: generator.standard_normal(shape))
        with passing():
            return np.asarray(self.preparation(noisy, "test"))

    def votes(self, machine: Any, weights: Any, seeds: Seeds, instances: Sequence[int]) -> TallyArrays:
        """How instances vote, each on the inputs as it sees them; `Job.votes` says what the arguments are."""
        tallies = (
            machine.tally(weights[at : at + 1], self.seen_by(seeds, instance)) for at, instance in enumerate(instances)
        )
        return functools.reduce(added, tallies)


@dataclass(frozen=True, eq=False)
class NoisyCopies(NoisyInputs):
    """Inputs to vote on, in copies that all instances answer together.

    Guarantee: a copy is a function of the input plus normal draws of the stated deviation, which are independent for
    every copy and every input, and of everything that instances draw.

    Attributes:
        draws: copies of every input.
        stream: the number after that of the last instance; its seed gives the noise.
    """

    draws: int
    stream: int
    # Copies as the network sees them, by what their noise begins with: every group of models asks for all of them.
    _kept: dict[bytes, Array] = field(default_factory=dict[bytes, Array], repr=False)

    def streams(self, instances: Sequence[int]) -> list[int]:
        """Their own, and that of the noise."""
        return [*instances, self.stream]

    def votes(self, machine: Any, weights: Any, seeds: Seeds, instances: Sequence[int]) -> TallyArrays:
        """How many of the instances give each label: (inputs x copies) x classes, the copies of an input together."""
        counts: Array | None = None
        for draw in range(self.draws):
            found = machine.tally(weights, self._copy(seeds, draw))["counts"]
            if counts is None:
                counts = np.empty((len(found), self.draws, found.shape[1]), np.min_scalar_type(self.stream))
            counts[:, draw] = found
        assert counts is not None
        none = np.zeros(0)  # of scores, which are of no use here
        return {"counts": counts.reshape(-1, counts.shape[2]), "score_sums": none, "score_squares": none}

    def _copy(self, seeds: Seeds, draw: int) -> Array:
        purpose = f"{_PURPOSE} {draw}"
        key = seeds.generator(self.stream, purpose).bytes(16)
        if key in self._kept:
            return self._kept[key]
        made = self.seen_by(seeds, self.stream, purpose)
        if made.nbytes * (len(self._kept) + 1) <= _MOST_KEPT:
            self._kept[key] = made
        return made


def noisy_inputs(
    noise: InputNoise | None, x: Array, preparation: Preparation, plan: ViewPlan | None, classes: int
) -> NoisyInputs | None:
    """Inputs as instances see them, where there is noise.

    Raises:
        ConfigError: there are too many copies of inputs to keep what models answer.
    """
    if noise is None:
        return None
    if plan is None or not plan.noise_draws:
        return NoisyInputs(noise, x, preparation)
    if len(x) * plan.noise_draws * classes > _MOST_ANSWERS:
        raise ConfigError(
            f"The votes of {plan.models:,} models on {plan.noise_draws:,} noisy copies of {len(x):,} inputs are too "
            "many to keep; use fewer noise_draws, or fewer inputs at a time."
        )
    return NoisyCopies(noise, x, preparation, plan.noise_draws, plan.models)


def input_noise_of(recipe: Mapping[str, Any] | None) -> InputNoise | None:
    """The noise on inputs that a recipe records."""
    said = (recipe or {}).get("input_noise")
    return None if said is None else InputNoise(**said)


def noise_for(deviation: float | None, training: Examples) -> InputNoise | None:
    """The noise on inputs like the training examples; None where there is none.

    Raises:
        ConfigError: what is known of such inputs has no Euclidean length.
    """
    if deviation is None:
        return None
    kind = kind_of(training.x)
    if isinstance(training.declaration, Table) or kind not in ("uint8", "float"):
        raise ConfigError(
            "input_noise is for images and arrays of numbers, whose changes have a Euclidean length; columns of "
            "tables, texts and tokens have none. Leave it out."
        )
    return InputNoise(deviation, "pixels" if kind == "uint8" else "values")


def trained_on(x: Array, noise: InputNoise) -> Array:
    """Examples with noise of their own, each seeded by its content."""
    # Of numbers, their values: the type of the whole array may follow another example.
    content_type = np.dtype("u1" if noise.of == "pixels" else "<f8")

    def normals(start: int, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
        drawn = np.empty(shape)
        for row, example in zip(drawn, x[start : start + len(drawn)], strict=True):
            content = np.ascontiguousarray(example, content_type).data
            digest = hashlib.blake2b(content, digest_size=16, person=b"training noise").digest()
            seed = np.random.SeedSequence(int.from_bytes(digest, "little"))
            np.random.Generator(np.random.SFC64(seed)).standard_normal(out=row)
        return drawn

    return _with_noise(x, noise, normals)


def _with_noise(x: Array, noise: InputNoise, normals: Normals) -> Array:
    """Inputs plus noise: numbers in single precision, images in 8 bits again.

    Draws and sums are in double precision, and rounded to a grid that does not depend on the input: a sum in single
    precision would keep the last bits of its draw, and with them show by how little an input has moved.

    Args:
        x: the inputs.
        noise: how much is added.
        normals: draws for a piece of them, by where it starts and its shape.
    """
    is_image = noise.of == "pixels"
    noisy = scratch(x.shape, np.uint8 if is_image else np.float32)
    # Of numbers, a few thousandths of the deviation.
    grid = 1.0 if is_image else 2.0 ** (math.floor(math.log2(noise.deviation)) - _GRID_BITS)
    for part in pieces_of(x):
        moved = normals(part.start, x[part].shape)
        moved *= noise.deviation * (255 if is_image else 1)
        moved += x[part]
        np.rint(np.divide(moved, grid, out=moved), out=moved)
        noisy[part] = np.clip(moved, 0, 255, out=moved) if is_image else np.multiply(moved, grid, out=moved)
    return noisy
