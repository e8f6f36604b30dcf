"""What was run, and against whom: frozen values that every accountant reads.

A mechanism says so fully what an instance of the learner did with the training set that an accountant can be written
from its docstring alone. Its meaning never changes; a different learner is a different class.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from mithridate import _validate
from mithridate.core import registry
from mithridate.errors import ArtifactError, ConfigError, UnsupportedMechanismError

# A radius beyond this is reported as "at least this".
SEARCH_LIMIT = 1 << 20


class Threat(StrEnum):
    """What may separate the data set D that was trained on from the data set D' that it would have been.

    Every threat is named by how D' differs from D. An attacker who *inserted* examples made D larger than D', so the
    threat is `REMOVE`; one who *deleted* examples is covered by `ADD`.

    `EDIT` covers `REPLACE`: each of up to r examples is inserted, deleted or changed. `LABELS` and `FEATURES` are
    weaker than `REPLACE`: only labels change, or inputs by a bounded distance; the smoothing defences certify nothing
    else.
    """

    SYMMETRIC_DIFFERENCE = "symmetric-difference"
    ADD = "add"
    REMOVE = "remove"
    REPLACE = "replace"
    EDIT = "edit"
    LABELS = "labels"
    FEATURES = "features"

    @property
    def in_words(self) -> str:
        """What the attacker may have done, in the words of the owner of the data."""
        return _IN_WORDS[self]

    def changes(self, radius: int) -> int:
        """How many single insertions or deletions `radius` units of this threat amount to.

        >>> Threat.REPLACE.changes(3)
        6
        """
        return 2 * radius if self not in (Threat.SYMMETRIC_DIFFERENCE, Threat.ADD, Threat.REMOVE) else radius


_IN_WORDS = {
    Threat.SYMMETRIC_DIFFERENCE: (
        "examples may have been inserted into my data or deleted from it (a changed example counts two)"
    ),
    Threat.ADD: "examples may have been deleted from my data (D' is my data plus up to r examples)",
    Threat.REMOVE: "examples may have been inserted into my data (D' is my data minus up to r examples)",
    Threat.REPLACE: "examples in my data may have been changed, their number kept (a changed example counts one)",
    Threat.EDIT: "examples may have been inserted, deleted or changed (each counts one)",
    Threat.LABELS: "labels in my data may have been changed, all inputs kept (a changed label counts one)",
    Threat.FEATURES: (
        "inputs in my data may have been changed by a bounded distance each, all labels kept "
        "(a changed input counts one)"
    ),
}


@dataclass(frozen=True)
class Voters:
    """How a report speaks of those who vote.

    Attributes:
        voters: what votes, in the plural; empty where nobody is counted.
        in_full: the same for a reader who has never heard of them.
        remedy: why a single change may suffice to change a prediction, and what to do about it.
        more: how so many voters are asked for; empty where their number is part of the mechanism.
        share: what the share of a label is called.
    """

    voters: str
    in_full: str
    remedy: str
    more: str = ""
    share: str = "votes for the label"

    def tally(self, number: int) -> str:
        """Who voted, and how many.

        >>> SampledGaussian.words.tally(5000), SampledGaussian.words.tally(1)
        ('5,000 instances', '1 instance')
        """
        if not self.voters:
            return "all training examples by weight"
        return f"{number:,} {self.voters if number != 1 else self.voters[:-1]}"


class Mechanism(registry.Tagged, table=registry.mechanisms):
    """What an instance of a learner does with the training set; frozen dataclasses inherit it, one for each learner.

    Attributes:
        type: what files call it; every one has its own.
        rule: the name of the rule that certifies its votes where nobody says otherwise.
        threat: what is certified against where nobody says otherwise.
        words: how a report speaks of those who vote.
        counts_voters: whether every voter has one vote, so that all examples have as many votes; else they have scores.
    """

    type: ClassVar[str]
    rule: ClassVar[str]
    threat: ClassVar[Threat] = Threat.SYMMETRIC_DIFFERENCE
    words: ClassVar[Voters]
    counts_voters: ClassVar[bool] = True

    def in_words(self) -> str:
        """What it does with the training data, with its constants."""
        raise NotImplementedError

    def check_classes(self, classes: int) -> None:
        """Require that its votes can be for so many labels.

        Raises:
            ConfigError: they cannot.
        """

    def tie_break(self) -> str:
        """Who decides where the voters do not, as the end of a sentence; empty where they always do."""
        return ""


class Random(Mechanism):
    """A learner that draws random numbers: its instances are samples, whose votes are bounded."""


class Deterministic(Mechanism):
    """A learner that is a function of the training set: its votes are exact, and nothing about them can fail."""

    @property
    def models(self) -> int | None:
        """How many models vote, each once; None where no models are counted."""
        return None


_PRIVATE_WORDS = Voters(
    "instances",
    "models",
    "each example matters too much in training. Train with more noise (--noise-multiplier), fewer --steps or a lower "
    "--sample-rate to raise the radius, at some cost in accuracy.",
    "--instances {}",
)


@dataclass(frozen=True)
class SampledGaussian(Random):
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

    type = "sampled-gaussian"
    rule = "fdp"
    words = _PRIVATE_WORDS

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

    def in_words(self) -> str:
        """What it does with the training data, with its constants."""
        return (
            f"private training (DP-SGD): noise multiplier {self.noise_multiplier}, sample rate {self.sample_rate}, "
            f"{self.steps:,} steps"
        )


@dataclass(frozen=True)
class Subsampled(Random):
    """Each instance first keeps every training example with probability `keep`, once, then runs `inner` on the rest.

    The choice is made independently for every example and every instance, and it is secret. A part of *fixed size* is
    another mechanism, with another guarantee; it is not this one.

    Args:
        keep: probability of an example to be kept, in (0, 1].
        inner: what runs on the part that was kept.
    """

    type = "subsampled-gaussian"
    rule = "fdp"
    words = _PRIVATE_WORDS

    keep: float
    inner: SampledGaussian

    def __post_init__(self) -> None:
        _validate.number_in(0, 1, low_open=True, keep=self.keep)
        if not isinstance(self.inner, SampledGaussian):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Expected inner to be a SampledGaussian, got {self.inner!r}.")
        object.__setattr__(self, "keep", float(self.keep))

    def in_words(self) -> str:
        """What it does with the training data, with its constants."""
        return f"{self.inner.in_words()}; each instance first kept every example with chance {self.keep}"

    def to_dict(self) -> dict[str, Any]:
        """The mechanism as plain JSON values; `inner`'s constants stand beside `keep`."""
        return {**self.inner.to_dict(), "type": self.type, "keep": self.keep}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Subsampled:
        """Read back what `to_dict` wrote."""
        return cls(values.pop("keep"), SampledGaussian(**values))


# Learners whose privacy the accountants know.
Private = SampledGaussian | Subsampled


def private(mechanism: Mechanism) -> Private:
    """The mechanism, where its privacy is known.

    Raises:
        UnsupportedMechanismError: it is not a private one.
    """
    if not isinstance(mechanism, Private):
        raise UnsupportedMechanismError(
            f"FDP, RDP and ADP need votes of a private learner, not of {type(mechanism).__name__}; "
            "leave the method out to certify by the rule of these votes."
        )
    return mechanism


def mechanism_from_dict(values: dict[str, Any]) -> Mechanism:
    """Read back what `to_dict` wrote.

    Raises:
        ArtifactError: the type is unknown or a constant is missing.
        ConfigError: a constant is outside its range.

    >>> mechanism_from_dict(SampledGaussian(3.0, 0.001, 1000).to_dict())
    SampledGaussian(noise_multiplier=3.0, sample_rate=0.001, steps=1000)
    """
    try:
        kind = values["type"]
        found: type[Mechanism] | None = registry.mechanisms.find(kind)
        if found is not None:
            return found.from_dict({name: value for name, value in values.items() if name != "type"})
    except (KeyError, TypeError) as error:
        raise ArtifactError(f"The mechanism in this file is incomplete: {error}.") from error
    raise ArtifactError(f"The mechanism type {kind!r} is not known to this version of mithridate; update it.")
