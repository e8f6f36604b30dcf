"""Small votes of every defence without privacy, with what its rule needs beside counts."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate import Certificate, Threat, Votes, certify
from mithridate.core.mechanism import Mechanism
from mithridate.defences.bagging import Bagged
from mithridate.defences.kernel import KernelSum
from mithridate.defences.neighbours import Lead, NearestExamples
from mithridate.defences.partitions import Partitioned, RunOffRule, SpreadPartitions
from mithridate.defences.smoothing import FeatureNoiseRule, NoisyFeatures, NoisyLabels
from mithridate.defences.spread_election import SpreadRunOffRule

LABELS = [0, 1, 2, 0]
CLASSES = 3


@dataclass(frozen=True)
class Rival:
    """A defence.

    Attributes:
        votes: its votes on four inputs, from clear to even.
        threats: what it can certify against, its default first.
        method: its rule, where that is not the default of the votes.
        flags: the same on the command line.
        voters: who votes, as a table says it.
    """

    votes: Votes
    threats: tuple[Threat, ...]
    method: Any = None
    flags: tuple[str, ...] = ()
    voters: str = ""

    def certificate(self, threat: Threat | None = None) -> Certificate:
        return certify(self.votes, method=self.method, threat=threat)


def _votes(counts: npt.ArrayLike, mechanism: Mechanism, **evidence: npt.NDArray[Any]) -> Votes:
    return Votes(np.asarray(counts), mechanism, labels=np.array(LABELS), evidence=evidence)


def _histogram(votes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return (votes[..., None] == np.arange(CLASSES)).sum(axis=1)


def _sampled(mechanism: Mechanism) -> Votes:
    return _votes([[1000, 0, 0], [100, 880, 20], [350, 250, 400], [340, 330, 330]], mechanism)


def _spread() -> Votes:
    predictions = np.array([[0] * 10, [1] * 8 + [0, 2], [2] * 6 + [0, 0, 1, 1], [0, 1] * 5])
    return _votes(_histogram(predictions), SpreadPartitions(5, (0, 3)), predictions=predictions)


def _run_off() -> Votes:
    scores = np.random.default_rng(3).random((4, 9, CLASSES))
    scores[0, :, 0] += 2
    above = (scores[..., :, None] > scores[..., None, :]).sum(axis=1)
    return _votes(_histogram(scores.argmax(axis=2)), Partitioned(9), preferences=above)


def _spread_run_off() -> Votes:
    predictions = _spread().evidence["predictions"]
    scores = np.random.default_rng(4).random((*predictions.shape, CLASSES)) + (
        predictions[..., None] == np.arange(CLASSES)
    )
    return _votes(_histogram(predictions), SpreadPartitions(5, (0, 3)), rankings=np.argsort(-scores, axis=2))


def _nearest() -> Votes:
    order = np.array([[0] * 10, [1, 1, 1, 1, 2, 1, 1, 0, 1, 1], [2, 2, 0, 2, 1, 2, 0, 0, 2, 1], [0, 1] * 5])
    return _votes(_histogram(order[:, :5]), NearestExamples(5), order=order)


def _at_two_scales(lead: Lead = 2) -> Votes:
    # The last two disagree at the first scale; the last one's three nearest overrule the majority of five.
    order = np.array(
        [[0] * 10, [1, 1, 1, 1, 2, 1, 1, 0, 1, 1], [2, 2, 2, 0, 1, 2, 0, 0, 2, 1], [1, 1, 0, 0, 0, 1, 0, 1, 2, 0]]
    )
    return _votes(_histogram(order[:, :5]), NearestExamples((5, 3), leads=(lead,)), order=order)


def _kernel() -> Votes:
    # The last input is near to no training example; of ten training examples each label has at least three.
    own = np.array([[0, 0, 0, 0, 4], [1, 0, 0, 1, 2], [0, 1, 1, 0, 1], [4, 0, 0, 0, 0]])
    counts = [[16, 0, 1], [2, 11, 0], [5, 1, 7], [0, 0, 0]]
    return _votes(counts, KernelSum(4), own=own)


_ALL = tuple(Threat)
_PARTS = _votes([[9, 0, 0], [2, 6, 1], [3, 2, 4], [3, 3, 3]], Partitioned(9))

RIVALS = {
    "bagging": Rival(_sampled(Bagged(1000, 20)), (Threat.EDIT, *_ALL), voters="1,000 instances"),
    "label-smoothing": Rival(_sampled(NoisyLabels(0.3, CLASSES)), (Threat.LABELS,), voters="1,000 instances"),
    "feature-smoothing": Rival(
        _sampled(NoisyFeatures(1.0)),
        (Threat.FEATURES,),
        FeatureNoiseRule(0.25),
        ("--method", "feature-smoothing", "--max-change", "0.25"),
        "1,000 instances",
    ),
    "dpa": Rival(_PARTS, _ALL, voters="9 models"),
    "finite-aggregation": Rival(_spread(), _ALL, voters="10 models"),
    "run-off-election": Rival(_run_off(), _ALL, RunOffRule(), ("--method", "run-off-election"), "9 models"),
    "run-off-finite-aggregation": Rival(
        _spread_run_off(), _ALL, SpreadRunOffRule(), ("--method", "run-off-finite-aggregation"), "10 models"
    ),
    "nearest-neighbours": Rival(_nearest(), _ALL, voters="5 neighbours"),
    "nearest-neighbours at two scales": Rival(_at_two_scales(), _ALL, voters="5 neighbours"),
    "nearest-neighbours at two scales by label": Rival(_at_two_scales((1, 4, 2)), _ALL, voters="5 neighbours"),
    "kernel-vote": Rival(_kernel(), _ALL, voters="all training examples by weight"),
}
EXACT = (
    "dpa",
    "finite-aggregation",
    "run-off-election",
    "run-off-finite-aggregation",
    "nearest-neighbours",
    "nearest-neighbours at two scales",
    "nearest-neighbours at two scales by label",
    "kernel-vote",
)
CLAIMS = [(name, threat) for name, rival in RIVALS.items() for threat in dict.fromkeys(rival.threats)]


def method_of(name: str) -> str:
    """The method that certifies the votes of a rival."""
    return name.partition(" at ")[0]
