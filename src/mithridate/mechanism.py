"""What was run, and against whom: frozen values that every accountant reads.

A mechanism says so fully what an instance of the learner did with the training set that an accountant can be written
from its docstring alone. Its meaning never changes; a different learner is a different class.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mithridate import _validate
from mithridate.errors import ArtifactError, ConfigError


@dataclass(frozen=True)
class SampledGaussian:
    """DP-SGD with Poisson sampling (the sampled Gaussian mechanism, composed with itself).

    Each of `steps` steps, independently: every training example enters the batch with probability `sample_rate`;
    each per-example gradient is scaled to norm at most C; the clipped gradients are summed; Gaussian noise of standard
    deviation `noise_multiplier * C` is added to every coordinate; the result is divided by a constant. Whatever the
    optimiser does with it afterwards is post-processing. Nothing else looks at the training set.

    Args:
        noise_multiplier: standard deviation of the noise in units of the clipping norm, above 0.
        sample_rate: probability of an example to enter one batch, in (0, 1].
        steps: number of steps, at least 1.
    """

    noise_multiplier: float
    sample_rate: float
    steps: int

    def __post_init__(self) -> None:
        _validate.number_in(0, math.inf, low_open=True, noise_multiplier=self.noise_multiplier)
        _validate.number_in(0, 1, low_open=True, sample_rate=self.sample_rate)
        _validate.positive_integer(steps=self.steps)
        object.__setattr__(self, "noise_multiplier", float(self.noise_multiplier))
        object.__setattr__(self, "sample_rate", float(self.sample_rate))
        object.__setattr__(self, "steps", int(self.steps))

    def to_dict(self) -> dict[str, Any]:
        """The mechanism as plain JSON values."""
        return {
            "type": "sampled-gaussian",
            "noise_multiplier": self.noise_multiplier,
            "sample_rate": self.sample_rate,
            "steps": self.steps,
        }


@dataclass(frozen=True)
class Subsampled:
    """Each instance first keeps every training example with probability `keep`, once, then runs `inner` on the rest.

    The choice is made independently for every example and every instance, and it is secret. A part of *fixed size* is
    another mechanism, with another guarantee; it is not this one.

    Args:
        keep: probability of an example to be kept, in (0, 1].
        inner: what runs on the part that was kept.
    """

    keep: float
    inner: SampledGaussian

    def __post_init__(self) -> None:
        _validate.number_in(0, 1, low_open=True, keep=self.keep)
        if not isinstance(self.inner, SampledGaussian):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Expected inner to be a SampledGaussian, got {self.inner!r}.")
        object.__setattr__(self, "keep", float(self.keep))

    def to_dict(self) -> dict[str, Any]:
        """The mechanism as plain JSON values; `inner`'s constants stand beside `keep`."""
        return {**self.inner.to_dict(), "type": "subsampled-gaussian", "keep": self.keep}


Mechanism = SampledGaussian | Subsampled


def mechanism_from_dict(values: dict[str, Any]) -> Mechanism:
    """Read back what `to_dict` wrote.

    Raises:
        ArtifactError: the type is unknown or a constant is missing.
        ConfigError: a constant is outside its range.

    >>> mechanism_from_dict(SampledGaussian(3.0, 0.001, 1000).to_dict())
    SampledGaussian(noise_multiplier=3.0, sample_rate=0.001, steps=1000)
    """
    try:
        inner = SampledGaussian(values["noise_multiplier"], values["sample_rate"], values["steps"])
        kind = values["type"]
        if kind == "sampled-gaussian":
            return inner
        if kind == "subsampled-gaussian":
            return Subsampled(values["keep"], inner)
    except (KeyError, TypeError) as error:
        raise ArtifactError(f"The mechanism in this file is incomplete: {error}.") from error
    raise ArtifactError(f"The mechanism type {kind!r} is not known to this version of mithridate; update it.")


class Threat(StrEnum):
    """What may separate the data set D that was trained on from the data set D' that it would have been.

    Every threat is named by how D' differs from D. An attacker who *inserted* examples made D larger than D', so the
    threat is `REMOVE`; one who *deleted* examples is covered by `ADD`.
    """

    SYMMETRIC_DIFFERENCE = "symmetric-difference"
    ADD = "add"
    REMOVE = "remove"
    REPLACE = "replace"

    @property
    def in_words(self) -> str:
        """What the attacker may have done, in the words of the owner of the data."""
        return _IN_WORDS[self]

    def changes(self, radius: int) -> int:
        """How many single insertions or deletions `radius` units of this threat amount to.

        >>> Threat.REPLACE.changes(3)
        6
        """
        return 2 * radius if self is Threat.REPLACE else radius


_IN_WORDS = {
    Threat.SYMMETRIC_DIFFERENCE: (
        "examples may have been inserted into my data or deleted from it (a changed example counts two)"
    ),
    Threat.ADD: "examples may have been deleted from my data (D' is my data plus up to r examples)",
    Threat.REMOVE: "examples may have been inserted into my data (D' is my data minus up to r examples)",
    Threat.REPLACE: "examples in my data may have been changed, their number kept (a changed example counts one)",
}
