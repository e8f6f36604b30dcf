"""The majority of models of parts, on inputs with noise: what it withstands together with inputs that move.

*Votes.* All models of parts answer the same noisy copy z of an input x, and the majority of their answers is the vote
of that copy: f(z) for models of D, f'(z) for those of D'. The prediction is the label that most copies vote for, that
is, the most likely one under the noise N(0, S^2 I).

*Claim.* A copy whose majority for c leads by L, after ties are broken, votes for c whatever floor(L / 2) touched parts
answer. Let A_t be the noisy inputs z that vote for c and withstand t touched parts. If D' touches no more than t of
them, f' is c all over A_t. If the input moves by h standard deviations of the noise, the probability of A_t falls to
Phi(Phi^-1(Pr[A_t]) - h) at worst (Neyman and Pearson). So c keeps more than half of the copies, on D' and on every
input that is so near, if

    Pr[A_t] > Phi(h).

*Tight.* No rule that knows Pr[A_t] alone can say more: A_t may be the half-space from which the input moves away, and
everywhere else t touched parts may give the majority to one rival.

*Confidence.* A radius t is claimed for c where at least m of n copies are seen in A_t. A_t shrinks as t grows, so each
c has a first A_t that does not meet the condition; where a claim is false, at least m copies are seen in that one,
too. These sets of different c are disjoint, and each has a probability p of at most tau = Phi(h), which is 1/2 or more.
The chance of m copies in a set is b(p) = Pr[Bin(n, p) >= m]. It is convex up to p = (m - 1) / (n - 1), and b(0) = 0. So
if m >= (n - 1) tau + 1, it is at most p b(tau) / tau, and the sum over all c is at most b(tau) / tau. With
b(tau) <= tau failure_prob some claim on this input is false, of whatever label and radius, with probability
failure_prob at most. Several h are several such events.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from scipy import special

from mithridate import _validate
from mithridate.certifying.exact import IntArray, chunks, evidence_of, in_touched_parts, leads, winners
from mithridate.core.bounds import clopper_pearson_lower
from mithridate.core.mechanism import Drawn, Threat, Voters
from mithridate.core.rule import Decision, DrawnRule
from mithridate.core.units import EXAMPLES, UnitWords
from mithridate.core.votes import Votes
from mithridate.errors import ConfigError, UnsupportedMechanismError

# The name of the evidence: examples x (touched parts, from 0 on), how many copies of those that vote for the label of
# the example withstand so many and no more.
WITHSTOOD = "withstood"
# More than a distribution function is off by.
_ROUNDING = 2.0**-50


@dataclass(frozen=True)
class NoisyPartitioned(Drawn):
    """A deterministic model for each part of the training set; all of them vote on the same noisy copies of an input.

    A hash of the content of an example (input and label) decides which one of `partitions` parts it belongs to. Model i
    is a deterministic function of the examples of part i, whatever their order, and of nothing else. A vote is the
    label that most models give to one noisy copy of the input, of equal ones the smaller; every copy has noise of its
    own.

    Args:
        partitions: number of parts, at least 1.
    """

    type = "noisy-partitioned"
    rule = "smoothed-majority"
    words = Voters(
        "draws",
        "noisy copies of the input",
        "too few models vote for the label rather than another, on too many noisy copies. With more partitions one "
        "{change} spoils a smaller share of the models, at some cost in accuracy.",
        "--noise-draws {}",
    )

    partitions: int

    def __post_init__(self) -> None:
        _validate.positive_integer(partitions=self.partitions)
        object.__setattr__(self, "partitions", int(self.partitions))

    def in_words(self, counted: UnitWords = EXAMPLES) -> str:
        """What it does with the training data, with its constants."""
        return (
            f"a model for each of {self.partitions:,} parts; its {counted.known_by} says to which {counted.a} belongs; "
            "each vote is that of most models on one noisy copy of the input"
        )


def drawn_votes(answers: IntArray, draws: int, partitions: int) -> tuple[IntArray, IntArray]:
    """How copies vote, and what they withstand.

    Args:
        answers: of the models, (examples x draws) x classes, the copies of an example side by side.
        draws: copies of each example.
        partitions: number of models.

    Returns:
        Votes, examples x classes; and the evidence `WITHSTOOD`.
    """
    label, withstood = (np.empty(len(answers), dtype=np.int64) for _ in range(2))
    for rows in chunks(len(answers), answers.shape[1]):
        part = answers[rows].astype(np.int64)
        label[rows] = winners(part)
        withstood[rows] = leads(part, label[rows]).min(axis=1) // 2
    label, withstood = label.reshape(-1, draws), withstood.reshape(-1, draws)
    counts = np.stack([(label == each).sum(axis=1) for each in range(answers.shape[1])], axis=1)
    own = label == counts.argmax(axis=1)[:, None]
    histogram = np.stack(
        [np.bincount(row[kept], minlength=partitions // 2 + 1) for row, kept in zip(withstood, own, strict=True)]
    )
    return counts, histogram


@dataclass(frozen=True)
class SmoothedMajorityRule(DrawnRule):
    """Certify the label that most noisy copies of an input vote for, each by the majority of models of parts.

    Reads the evidence `withstood`; see `drawn_votes`.

    Guarantee: with probability at least 1 - failure_prob over the noise, the label is the most likely vote, and it
    stays so whatever `radius` units of the threat change, together with any move of the input by `shift` standard
    deviations of the noise. See the module docstring, also for what no rule can improve.

    Assumes: nothing beyond `NoisyPartitioned`.

    References: Levine & Feizi 2021 (arXiv 2006.14768), Theorem 1; Cohen, Rosenfeld, Kolter 2019 (arXiv 1902.02918).
    Saxena et al. 2026 (arXiv 2605.21780) vote with smoothed models instead.
    """

    name = "smoothed-majority"
    title = "majority of parts on noisy inputs"

    def reads(self, threat: Threat) -> tuple[str, ...]:
        """What noisy copies withstand."""
        return (WITHSTOOD,)

    def decide_drawn(self, votes: Votes, threat: Threat, failure_prob: float, shift: float) -> Decision:
        """The label with most votes, and the largest number of touched parts that enough copies withstand."""
        if not isinstance(votes.mechanism, NoisyPartitioned):
            raise UnsupportedMechanismError(
                f"The method {self.name} is for votes of NoisyPartitioned, these are of "
                f"{type(votes.mechanism).__name__}; leave the method out to use the one that fits."
            )
        label = winners(votes.counts)
        withstood = evidence_of(votes, WITHSTOOD, self, (votes.mechanism.partitions // 2 + 1,)).astype(np.int64)
        if (withstood.sum(axis=1) != votes.counts.max(axis=1)).any():
            raise ConfigError(f"The evidence {WITHSTOOD!r} does not add up to the counts; train again.")
        at_least = withstood[:, ::-1].cumsum(axis=1)[:, ::-1]
        parts = (at_least >= fewest_draws(votes.instances, failure_prob, shift)).sum(axis=1) - 1
        radius = in_touched_parts(np.maximum(parts, 0), threat, votes.unit)
        return Decision(label, np.where(parts < 0, -1, radius))


def fewest_draws(draws: int, failure_prob: float, shift: float) -> int:
    """So many of the draws show that an event is likelier than Phi(shift); one more than all where no number does.

    Guarantee: of any disjoint events that are no likelier than that, one has so many draws with probability
    `failure_prob` at most.

    >>> fewest_draws(1000, 0.001, 0.0), fewest_draws(5, 0.001, 0.0)
    (553, 6)
    """
    likely = float(special.ndtr(shift)) * (1 + _ROUNDING)
    if likely >= 1:
        return draws + 1

    def is_enough(count: int) -> bool:
        lower = clopper_pearson_lower(count, draws, likely * failure_prob)
        return count >= (draws - 1) * likely + 1 and bool(lower >= likely)

    return bisect_left(range(draws + 1), True, key=is_enough)
