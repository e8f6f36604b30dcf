"""What was run, and against whom: frozen values that every accountant reads.

A mechanism says so fully what an instance of the learner did with the training set that an accountant can be written
from its docstring alone. Its meaning never changes; a different learner is a different class.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import pairwise
from typing import Any, ClassVar, Self, cast

import numpy as np

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

    @property
    def is_about_examples(self) -> bool:
        """Whether whole examples come, go or change; else only their labels, or their inputs by a bounded amount."""
        return self not in (Threat.LABELS, Threat.FEATURES)


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


class Mechanism:
    """What an instance of a learner does with the training set; frozen dataclasses inherit it, one for each learner.

    Attributes:
        type: what files call it; every one has its own.
        rule: the name of the rule that certifies its votes where nobody says otherwise.
        threat: what is certified against where nobody says otherwise.
        words: how a report speaks of those who vote.
    """

    type: ClassVar[str]
    rule: ClassVar[str]
    threat: ClassVar[Threat] = Threat.SYMMETRIC_DIFFERENCE
    words: ClassVar[Voters]

    def __init_subclass__(cls) -> None:
        if "type" in vars(cls):
            registry.mechanisms.add(cls.type, cls)

    def in_words(self) -> str:
        """What it does with the training data, with its constants."""
        raise NotImplementedError

    def tie_break(self) -> str:
        """Who decides where the voters do not, as the end of a sentence; empty where they always do."""
        return ""

    def to_dict(self) -> dict[str, Any]:
        """The mechanism as plain JSON values."""
        return {"type": self.type, **{one.name: getattr(self, one.name) for one in fields(cast("Any", self))}}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Read back what `to_dict` wrote, without its type."""
        return cls(**values)


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


@dataclass(frozen=True)
class Bagged(Random):
    """Each instance trains on examples drawn at random, with replacement, from the training set.

    Every instance draws `draws` times, independently and uniformly, one of the `num_train` examples of D, and trains on
    what it drew by an algorithm that looks at nothing else of D; the algorithm may be random. Neither the number of
    draws nor the algorithm depends on D.

    Args:
        num_train: the number of examples of D, at least 1.
        draws: how many examples each instance draws, at least 1.
    """

    type = "bagged"
    rule = "bagging"
    threat = Threat.EDIT
    words = Voters(
        "instances",
        "models",
        "too many instances draw the same example. Let each draw fewer examples to raise the radius, at some cost in "
        "accuracy.",
        "instances = {}",
    )

    num_train: int
    draws: int

    def __post_init__(self) -> None:
        _validate.positive_integer(num_train=self.num_train, draws=self.draws)
        object.__setattr__(self, "num_train", int(self.num_train))
        object.__setattr__(self, "draws", int(self.draws))

    def in_words(self) -> str:
        """What it does with the training data, with its constants."""
        return f"bagging: each instance drew {self.draws:,} times one of the {self.num_train:,} training examples"


@dataclass(frozen=True)
class NoisyLabels(Random):
    """Each instance trains on labels of which some were replaced at random.

    Every instance replaces the label of each training example, independently, with probability `flip_prob` by one of
    the other `classes - 1` labels, all equally likely, and trains on the result by an algorithm (it may be random) that
    sees no other labels.

    Args:
        flip_prob: probability of a label to be replaced, in (0, (classes - 1) / classes].
        classes: number of labels, at least 2.
    """

    type = "noisy-labels"
    rule = "label-smoothing"
    threat = Threat.LABELS
    words = Voters(
        "instances",
        "models",
        "too few labels are replaced to hide a changed one. Train with a larger flip_prob to raise the radius, at some "
        "cost in accuracy.",
        "instances = {}",
    )

    flip_prob: float
    classes: int

    def __post_init__(self) -> None:
        _validate.positive_integer(classes=self.classes)
        if self.classes < 2:
            raise ConfigError("Expected classes of at least 2; with one class there is nothing to flip.")
        _validate.number_in(0, (self.classes - 1) / self.classes, low_open=True, flip_prob=self.flip_prob)
        object.__setattr__(self, "flip_prob", float(self.flip_prob))
        object.__setattr__(self, "classes", int(self.classes))

    def in_words(self) -> str:
        """What it does with the training data, with its constants."""
        return (
            f"noisy labels: each instance replaced every training label with chance {self.flip_prob} by another one of "
            f"{self.classes}"
        )


@dataclass(frozen=True)
class NoisyFeatures(Random):
    """Each instance trains on inputs with Gaussian noise.

    Every instance adds to every number of every training input, once and independently, Gaussian noise of standard
    deviation `noise`, and trains on the result by an algorithm (it may be random) that sees no other inputs.

    Args:
        noise: standard deviation, in the units in which inputs reach the model, above 0.
    """

    type = "noisy-features"
    rule = "feature-smoothing"
    threat = Threat.FEATURES
    words = Voters(
        "instances",
        "models",
        "the noise is too small to hide a changed input. Train with more noise to raise the radius, at some cost in "
        "accuracy.",
        "instances = {}",
    )

    noise: float

    def __post_init__(self) -> None:
        _validate.number_in(0, math.inf, low_open=True, noise=self.noise)
        object.__setattr__(self, "noise", float(self.noise))

    def in_words(self) -> str:
        """What it does with the training data, with its constants."""
        return (
            f"noisy inputs: each instance added noise of standard deviation {self.noise} to every number of every "
            "training input"
        )


_PART_WORDS = Voters(
    "models",
    "models",
    "too few models vote for the label rather than another. With more partitions one change spoils a smaller share of "
    "the votes, at some cost in accuracy.",
)


@dataclass(frozen=True)
class Partitioned(Deterministic):
    """A deterministic model for each part of the training set.

    A hash of the content of an example (input and label) decides which one of `partitions` parts it belongs to. Model i
    is a deterministic function of the examples of part i, whatever their order, and of nothing else.

    Args:
        partitions: number of parts, at least 1.
    """

    type = "partitioned"
    rule = "dpa"
    words = _PART_WORDS

    partitions: int

    def __post_init__(self) -> None:
        _validate.positive_integer(partitions=self.partitions)
        object.__setattr__(self, "partitions", int(self.partitions))

    @property
    def models(self) -> int:
        """Number of models, one for each part."""
        return self.partitions

    def in_words(self) -> str:
        """What it does with the training data, with its constants."""
        return f"a model for each of {self.partitions:,} parts; its content says to which an example belongs"


@dataclass(frozen=True)
class SpreadPartitions(Deterministic):
    """A deterministic model for each overlapping part of the training set, as Finite Aggregation has it.

    A hash of the content of an example (input and label) decides which of `models = partitions * spread` buckets it
    belongs to. Bucket b is seen by the models `(b + offset) % models`, for every one of `offsets`. Model i is a
    deterministic function of the examples of its buckets, whatever their order, and of nothing else.

    Args:
        partitions: number of parts that models of the same size would need without overlap, at least 1.
        offsets: which models see a bucket: different whole numbers from 0 to `models - 1`; their number is `spread`.
    """

    type = "spread-partitions"
    rule = "finite-aggregation"
    words = _PART_WORDS

    partitions: int
    offsets: tuple[int, ...]

    def __post_init__(self) -> None:
        _validate.positive_integer(partitions=self.partitions)
        object.__setattr__(self, "partitions", int(self.partitions))
        try:
            object.__setattr__(self, "offsets", tuple(operator.index(offset) for offset in self.offsets))
        except TypeError:
            raise ConfigError(f"Expected offsets as whole numbers, got {self.offsets!r}.") from None
        if not self.offsets or len(set(self.offsets)) < len(self.offsets):
            raise ConfigError(f"Expected at least one offset and no offset twice, got {self.offsets!r}.")
        if min(self.offsets) < 0 or max(self.offsets) >= self.models:
            raise ConfigError(f"Expected offsets from 0 to {self.models - 1}, got {self.offsets!r}.")

    def in_words(self) -> str:
        """What it does with the training data, with its constants."""
        return (
            f"{self.models:,} models on parts that overlap; its content says which {self.spread:,} of them see an "
            f"example ({self.partitions:,} partitions, each spread over {self.spread:,})"
        )

    @property
    def spread(self) -> int:
        """How many models see each example."""
        return len(self.offsets)

    @property
    def models(self) -> int:
        """Number of models, and of buckets."""
        return self.partitions * len(self.offsets)

    def to_dict(self) -> dict[str, Any]:
        """The mechanism as plain JSON values."""
        return {"type": self.type, "partitions": self.partitions, "offsets": list(self.offsets)}


# How many votes a label has to be ahead: the same for all labels, or one number for each.
Lead = int | tuple[int, ...]


@dataclass(frozen=True)
class NearestExamples(Deterministic):
    """The `neighbours` training examples that are nearest to an input vote with their labels.

    Distances are a function of the input and of one training example. Of equally distant examples, those come first
    that a fixed function of their content puts first.

    Several numbers of neighbours are several scales, of which the most neighbours are asked first. If their label with
    most votes leads by at least `leads[0]`, it is the prediction; else the next fewer are asked, whose label has to
    lead by `leads[1]`, and so on. The last ones always decide. A label may need another lead than others: where
    `leads[0]` is a list, label a has to lead by `leads[0][a]`. The lead of label a is the smallest of
    `votes of a - votes of b - [b < a]` over the other labels b: so much the votes for b may gain on those for a before
    a no longer has most, where ties go to the smaller label.

    Args:
        neighbours: how many vote, at least 1; all, where there are fewer examples. Several numbers each are smaller
            than the one before, and D has at least as many examples as the first.
        num_train: the number of examples of D; it must be said where it is below twice the most neighbours, and None
            says that it is not. Otherwise a list that was cut short would pass for all there are.
        leads: one for every number of neighbours but the last, from 1 to that number; or instead of one, one for each
            label.

    >>> NearestExamples((2400, 600, 100), leads=(480, 300)).scales
    ((2400, 480), (600, 300), (100, 0))
    """

    type = "nearest-examples"
    rule = "nearest-neighbours"
    words = Voters(
        "neighbours",
        "nearest training examples",
        "too few neighbours have this label rather than another. Let more neighbours vote, or use features that bring "
        "examples of a class closer together.",
    )

    neighbours: int | tuple[int, ...]
    num_train: int | None = None
    leads: tuple[Lead, ...] = ()

    def __post_init__(self) -> None:
        neighbours, leads = checked_scales(self.neighbours, self.leads)
        object.__setattr__(self, "neighbours", neighbours)
        object.__setattr__(self, "leads", leads)
        if self.num_train is not None:
            _validate.positive_integer(num_train=self.num_train)
            object.__setattr__(self, "num_train", int(self.num_train))
            if self.leads and self.num_train < self.most:
                raise ConfigError(
                    f"There are {self.num_train} training examples, fewer than neighbours={self.most}; ask for fewer."
                )

    def in_words(self) -> str:
        """What it does with the training data, with its constants."""
        voters = f"the {self.most:,} training examples that are nearest to an input"
        return f"{voters} vote with their labels{self.tie_break()}"

    def tie_break(self) -> str:
        """Who decides where the most neighbours do not.

        >>> NearestExamples((5, 3), leads=(2,)).tie_break()
        '; where their label leads by fewer than 2 votes (3 over earlier labels), the 3 nearest decide'
        >>> NearestExamples((5, 3), leads=((2, 1, 4),)).tie_break()[:60]
        '; where their label leads by fewer votes than it needs (1 to'
        """
        return "".join(
            f"; where their label leads by fewer {_than(lead)}, the {fewer:,} nearest decide"
            for (_, lead), (fewer, _) in pairwise(self.scales)
        )

    @property
    def scales(self) -> tuple[tuple[int, Lead], ...]:
        """How many vote at each scale and the lead that they need, 0 at the last; the most voters first."""
        voters = self.neighbours if isinstance(self.neighbours, tuple) else (self.neighbours,)
        return tuple(zip(voters, (*self.leads, 0), strict=True))

    @property
    def most(self) -> int:
        """How many vote at the first scale."""
        return self.scales[0][0]

    @property
    def shown(self) -> int:
        """How many of the nearest examples a certificate looks at."""
        return 2 * self.most if self.num_train is None else min(2 * self.most, self.num_train)

    def needed(self, classes: int) -> tuple[tuple[int, ...], ...]:
        """The lead that each label needs, scale by scale.

        Raises:
            ConfigError: there are leads for another number of labels.
        """
        for _, lead in self.scales:
            if isinstance(lead, tuple) and len(lead) != classes:
                said = _validate.shown(list(lead))
                raise ConfigError(f"Expected a lead for each of {classes} labels, got {len(lead)}: {said}.")
        return tuple(lead if isinstance(lead, tuple) else (lead,) * classes for _, lead in self.scales)

    def to_dict(self) -> dict[str, Any]:
        """The mechanism as plain JSON values."""
        voters = list(self.neighbours) if isinstance(self.neighbours, tuple) else self.neighbours
        # What is said of one scale stays what it was before there were several.
        leads = {"leads": listed_leads(self.leads)} if self.leads else {}
        return {"type": self.type, "neighbours": voters, "num_train": self.num_train, **leads}


def _than(lead: Lead) -> str:
    if isinstance(lead, int):
        return f"than {lead:,} votes ({lead + 1:,} over earlier labels)"
    return f"votes than it needs ({min(lead):,} to {max(lead):,}; 1 more over earlier labels)"


def listed_leads(leads: Sequence[int | Sequence[int]]) -> list[int | list[int]]:
    """Leads as plain JSON values."""
    return [lead if isinstance(lead, int) else list(lead) for lead in leads]


def checked_scales(neighbours: Any, leads: Any) -> tuple[int | tuple[int, ...], tuple[Lead, ...]]:
    """Numbers of neighbours and leads as `NearestExamples` holds them; one number of neighbours is no list.

    Raises:
        ConfigError: they are not what it asks for, or the leads do not fit the neighbours.
    """
    neighbours, leads = _unpacked(neighbours), _unpacked(leads)
    if not isinstance(neighbours, list | tuple):
        _validate.positive_integer(neighbours=neighbours)
    if not isinstance(leads, list | tuple):
        raise ConfigError(f"Expected leads as a list of whole numbers, got {_validate.shown(leads)}.")
    voters = cast("Sequence[Any]", neighbours if isinstance(neighbours, list | tuple) else [neighbours])
    needed = cast("Sequence[Any]", leads)
    for count in voters:
        _validate.positive_integer(neighbours=count)
    said = _validate.shown(list(voters))
    if any(after >= before for before, after in pairwise(voters)):
        raise ConfigError(f"Expected every number of neighbours to be below the one before, got {said}.")
    asked = _validate.shown(list(needed))
    if len(needed) != len(voters) - 1:
        raise ConfigError(
            f"Expected a lead for every number of neighbours but the last, got leads {asked} for neighbours {said}."
        )
    checked = tuple(_checked_lead(lead, count) for lead, count in zip(needed, voters, strict=False))
    if len({len(lead) for lead in checked if isinstance(lead, tuple)}) > 1:
        raise ConfigError(f"Expected leads by label for the same number of labels at every scale, got {asked}.")
    return int(voters[0]) if len(voters) == 1 else tuple(int(count) for count in voters), checked


def _unpacked(numbers: Any) -> Any:
    """The list that an array holds; anything else as it is."""
    return numbers.tolist() if isinstance(numbers, np.ndarray) else numbers


def _checked_lead(lead: Any, voters: int) -> Lead:
    lead = _unpacked(lead)
    by_label = isinstance(lead, list | tuple)
    numbers = cast("Sequence[Any]", lead if by_label else [lead])
    if not numbers:
        raise ConfigError("Expected a lead, or a list with one for each label, got an empty list.")
    for number in numbers:
        _validate.positive_integer(leads=number)
        if number > voters:
            raise ConfigError(f"{voters} neighbours cannot lead by {number}; ask for a lead of at most {voters}.")
    return tuple(int(number) for number in numbers) if by_label else int(numbers[0])


@dataclass(frozen=True)
class KernelSum(Deterministic):
    """Every training example votes for its label with a weight that is a function of the input and of itself.

    Weights are whole numbers from 0 to `unit`, so that sums are exact in any order. The score of a label is the sum of
    the weights of its examples, and `Votes.counts` holds the scores.

    Args:
        unit: the largest weight, at least 1.
    """

    type = "kernel-sum"
    rule = "kernel-vote"
    words = Voters(
        "",
        "training examples, each by its weight",
        "one example can weigh as much as the label is ahead. Use a wider kernel, so that more examples count, or "
        "features that bring examples of a class closer together.",
        share="weight for the label",
    )

    unit: int

    def __post_init__(self) -> None:
        _validate.positive_integer(unit=self.unit)
        object.__setattr__(self, "unit", int(self.unit))

    def in_words(self) -> str:
        """What it does with the training data, with its constants."""
        return f"every training example votes for its label with a weight from 0 to {self.unit:,}"


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
