"""What was run, and against whom: frozen values that every accountant reads.

A mechanism says so fully what an instance of the learner did with the training set that an accountant can be written
from its docstring alone. Its meaning never changes; a different learner is a different class.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

from mithridate import _validate
from mithridate.core import registry
from mithridate.core.units import EXAMPLES, UnitWords
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
        return self.of(EXAMPLES)

    def of(self, counted: UnitWords) -> str:
        """The same, with what radii count by its name.

        >>> Threat.ADD.of(UnitWords.of("vendor"))
        "vendors may have been deleted from my data (D' is my data plus up to r vendors)"
        """
        said = _IN_WORDS[self]
        if counted.are_named:
            said = _IN_WORDS_OF_UNITS.get(self, said)
        return said.format(one=counted.one, many=counted.many)

    def changes_of(self, counted: UnitWords, radius: int | None = None) -> str:
        """What up to `radius` units of it do to the training data, as a clause; None: any r of them, or fewer.

        >>> Threat.SYMMETRIC_DIFFERENCE.changes_of(EXAMPLES, 120), Threat.EDIT.changes_of(UnitWords.of("vendor"), 1)
        ('up to 120 training examples were added or removed', 'one vendor was inserted, deleted or changed')
        """
        one, many, happened = self._unit_of(counted)
        if radius == 1:
            return f"one {one} was {happened}"
        return (
            f"any r {many} were {happened}, or fewer" if radius is None else f"up to {radius:,} {many} were {happened}"
        )

    def counts(self, counted: UnitWords) -> str:
        """What its radii count, for the axis of a chart."""
        _, many, happened = self._unit_of(counted)
        return f"{many} {happened}"

    def _unit_of(self, counted: UnitWords) -> tuple[str, str, str]:
        """What one unit of it is about, several of them, and what happened to it."""
        what, happened = _UNITS[self]
        if counted.are_named:
            return counted.one, counted.many, _HAPPENED_TO_UNITS.get(self, happened)
        return what, f"{what}s", happened

    def changes(self, radius: int) -> int:
        """How many single insertions or deletions `radius` units of this threat amount to.

        >>> Threat.REPLACE.changes(3)
        6
        """
        return 2 * radius if self not in (Threat.SYMMETRIC_DIFFERENCE, Threat.ADD, Threat.REMOVE) else radius


_IN_WORDS = {
    Threat.SYMMETRIC_DIFFERENCE: (
        "{many} may have been inserted into my data or deleted from it (a changed {one} counts two)"
    ),
    Threat.ADD: "{many} may have been deleted from my data (D' is my data plus up to r {many})",
    Threat.REMOVE: "{many} may have been inserted into my data (D' is my data minus up to r {many})",
    Threat.REPLACE: "{many} in my data may have been changed, their number kept (a changed {one} counts one)",
    Threat.EDIT: "{many} may have been inserted, deleted or changed (each counts one)",
    Threat.LABELS: "labels in my data may have been changed, all inputs kept (a changed label counts one)",
    Threat.FEATURES: (
        "inputs in my data may have been changed by a bounded distance each, all labels kept "
        "(a changed input counts one)"
    ),
}
# Where a unit keeps its name, and what it holds is another thing than its name.
_IN_WORDS_OF_UNITS = {
    Threat.REPLACE: (
        "{many} in my data may have been changed under their names, whatever each of them holds (each counts one)"
    ),
    Threat.EDIT: (
        "{many} may have been inserted, deleted or changed under their names, whatever each of them holds (each counts "
        "one, and a renamed {one} two)"
    ),
    Threat.LABELS: (
        "labels in my data may have been changed, all inputs kept (each {one} counts one, however many of its labels "
        "changed)"
    ),
    Threat.FEATURES: (
        "inputs in my data may have been changed by a bounded distance each, all labels kept (each {one} counts one, "
        "however many of its inputs changed)"
    ),
}
# What one unit of a threat is about, and what happened to it.
_UNITS = {
    Threat.SYMMETRIC_DIFFERENCE: ("training example", "added or removed"),
    Threat.ADD: ("training example", "added"),
    Threat.REMOVE: ("training example", "removed"),
    Threat.REPLACE: ("training example", "changed"),
    Threat.EDIT: ("training example", "inserted, deleted or changed"),
    Threat.LABELS: ("training label", "changed"),
    Threat.FEATURES: ("training input", "changed by at most the declared distance"),
}
_HAPPENED_TO_UNITS = {
    Threat.LABELS: "changed in nothing but labels",
    Threat.FEATURES: "changed in nothing but inputs, each by at most the declared distance",
}
# What is certified against where units are declared and nobody says otherwise.
OF_UNITS = Threat.EDIT


@dataclass(frozen=True)
class Voters:
    """How a report speaks of those who vote; `{one}`, `{many}` and so on stand for what radii count (`UnitWords`).

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

    def of(self, counted: UnitWords) -> Voters:
        """The same, with what radii count by its name.

        >>> SampledGaussian.words.of(UnitWords.of("vendor")).remedy[:38]
        'each vendor matters too much in traini'
        """
        said = {**asdict(counted), "change": counted.change}
        return replace(self, in_full=self.in_full.format(**said), remedy=self.remedy.format(**said))

    def tally(self, number: int, counted: UnitWords = EXAMPLES) -> str:
        """Who voted, and how many.

        >>> SampledGaussian.words.tally(5000), SampledGaussian.words.tally(1)
        ('5,000 instances', '1 instance')
        """
        if not self.voters:
            return f"all {counted.many_in_full} by weight"
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

    def in_words(self, counted: UnitWords = EXAMPLES) -> str:
        """What it does with the training data, with its constants.

        Args:
            counted: what radii count; where that is units, the mechanism runs on these.
        """
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


class Drawn(Random):
    """A function of the training data that noise on its inputs makes random: its samples are draws of that noise.

    All models answer every draw together, and so give one vote. Another run has other models, or the same ones once
    more: its votes are no further samples.
    """


class Deterministic(Mechanism):
    """A learner that is a function of the training set: its votes are exact, and nothing about them can fail."""

    @property
    def models(self) -> int | None:
        """How many models vote, each once; None where no models are counted."""
        return None


_PRIVATE_WORDS = Voters(
    "instances",
    "models",
    "each {one} matters too much in training. Train with more noise (--noise-multiplier), fewer --steps or a lower "
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

    def in_words(self, counted: UnitWords = EXAMPLES) -> str:
        """What it does with the training data, with its constants."""
        rate, whole = f"sample rate {self.sample_rate}", ""
        if counted.are_named:
            rate += f" of the {counted.many}"
            whole = f", to each of which {counted.a} adds no more than one clipped gradient"
        return (
            f"private training (DP-SGD): noise multiplier {self.noise_multiplier}, {rate}, {self.steps:,} steps{whole}"
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

    def in_words(self, counted: UnitWords = EXAMPLES) -> str:
        """What it does with the training data, with its constants."""
        return f"{self.inner.in_words(counted)}; each instance first kept every {counted.one} with chance {self.keep}"

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
