"""Words about a mechanism: who votes, what was done with the training data, and what would raise the radii."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from mithridate.mechanism import (
    Bagged,
    KernelSum,
    Lead,
    Mechanism,
    NearestExamples,
    NoisyFeatures,
    NoisyLabels,
    Partitioned,
    SampledGaussian,
    SpreadPartitions,
    Subsampled,
)
from mithridate.votes import Votes


@dataclass(frozen=True)
class Learner:
    """How one kind of mechanism is spoken of.

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


_PRIVATE = Learner(
    "instances",
    "models",
    "each example matters too much in training. Train with more noise (--noise-multiplier), fewer --steps or a lower "
    "--sample-rate to raise the radius, at some cost in accuracy.",
    "--instances {}",
)
_PARTS = Learner(
    "models",
    "models",
    "too few models vote for the label rather than another. With more partitions one change spoils a smaller share of "
    "the votes, at some cost in accuracy.",
)
_LEARNERS: dict[type[Mechanism], Learner] = {
    SampledGaussian: _PRIVATE,
    Subsampled: _PRIVATE,
    Bagged: Learner(
        "instances",
        "models",
        "too many instances draw the same example. Let each draw fewer examples to raise the radius, at some cost in "
        "accuracy.",
        "instances = {}",
    ),
    NoisyLabels: Learner(
        "instances",
        "models",
        "too few labels are replaced to hide a changed one. Train with a larger flip_prob to raise the radius, at some "
        "cost in accuracy.",
        "instances = {}",
    ),
    NoisyFeatures: Learner(
        "instances",
        "models",
        "the noise is too small to hide a changed input. Train with more noise to raise the radius, at some cost in "
        "accuracy.",
        "instances = {}",
    ),
    Partitioned: _PARTS,
    SpreadPartitions: _PARTS,
    NearestExamples: Learner(
        "neighbours",
        "nearest training examples",
        "too few neighbours have this label rather than another. Let more neighbours vote, or use features that bring "
        "examples of a class closer together.",
    ),
    KernelSum: Learner(
        "",
        "training examples, each by its weight",
        "one example can weigh as much as the label is ahead. Use a wider kernel, so that more examples count, or "
        "features that bring examples of a class closer together.",
        share="weight for the label",
    ),
}


def learner(votes: Votes) -> Learner:
    """The words for the mechanism of some votes."""
    return _LEARNERS[type(votes.mechanism)]


def tally(votes: Votes) -> str:
    """Who voted, and how many.

    >>> tally(Votes.from_counts([[3, 2]], mechanism=NearestExamples(5)))
    '5 neighbours'
    """
    voters = learner(votes).voters
    if not voters:
        return "all training examples by weight"
    return f"{votes.instances:,} {voters if votes.instances != 1 else voters[:-1]}"


def fewer_decide(mechanism: Mechanism) -> str:
    """Who decides where the voters do not, as the end of a sentence; empty where they always do.

    >>> fewer_decide(NearestExamples((5, 3), leads=(2,)))
    '; where their label leads by fewer than 2 votes (3 over earlier labels), the 3 nearest decide'
    >>> fewer_decide(NearestExamples((5, 3), leads=((2, 1, 4),)))
    '; where their label leads by fewer votes than it needs (1 to 4; 1 more over earlier labels), the 3 nearest decide'
    """
    scales = mechanism.scales if isinstance(mechanism, NearestExamples) else ()
    return "".join(
        f"; where their label leads by fewer {_than(lead)}, the {fewer:,} nearest decide"
        for (_, lead), (fewer, _) in pairwise(scales)
    )


def _than(lead: Lead) -> str:
    if isinstance(lead, int):
        return f"than {lead:,} votes ({lead + 1:,} over earlier labels)"
    return f"votes than it needs ({min(lead):,} to {max(lead):,}; 1 more over earlier labels)"


def in_words(mechanism: Mechanism) -> str:
    """What the mechanism did with the training data, with its constants.

    >>> in_words(Bagged(60000, 500))
    'bagging: each instance drew 500 times one of the 60,000 training examples'
    """
    match mechanism:
        case SampledGaussian():
            return (
                f"private training (DP-SGD): noise multiplier {mechanism.noise_multiplier}, sample rate "
                f"{mechanism.sample_rate}, {mechanism.steps:,} steps"
            )
        case Subsampled():
            return f"{in_words(mechanism.inner)}; each instance first kept every example with chance {mechanism.keep}"
        case Bagged():
            return (
                f"bagging: each instance drew {mechanism.draws:,} times one of the {mechanism.num_train:,} training "
                "examples"
            )
        case NoisyLabels():
            return (
                f"noisy labels: each instance replaced every training label with chance {mechanism.flip_prob} by "
                f"another one of {mechanism.classes}"
            )
        case NoisyFeatures():
            return (
                "noisy inputs: each instance added noise of standard deviation "
                f"{mechanism.noise} to every number of every training input"
            )
        case Partitioned():
            return f"a model for each of {mechanism.partitions:,} parts; its content says to which an example belongs"
        case SpreadPartitions():
            return (
                f"{mechanism.models:,} models on parts that overlap; its content says which {mechanism.spread:,} of "
                f"them see an example ({mechanism.partitions:,} partitions, each spread over {mechanism.spread:,})"
            )
        case NearestExamples():
            voters = f"the {mechanism.most:,} training examples that are nearest to an input"
            return f"{voters} vote with their labels{fewer_decide(mechanism)}"
        case KernelSum():
            return f"every training example votes for its label with a weight from 0 to {mechanism.unit:,}"
