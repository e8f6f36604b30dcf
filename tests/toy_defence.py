"""A whole defence in one file, as docs/design.md shows it: the commonest label of the training set, for every input.

It is no use, and sound: how many examples an attacker must touch before another label is the commonest can be counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate import Votes
from mithridate._io.files import PathLike
from mithridate.auditing import Claim, second_route
from mithridate.certifying.exact import in_units, leads, winners
from mithridate.core.mechanism import Deterministic, Threat, Voters
from mithridate.core.provenance import TrainingData, fingerprint, input_hashes
from mithridate.core.rule import Decision, ExactRule
from mithridate.core.units import EXAMPLES, UnitWords
from mithridate.data.examples import Examples
from mithridate.defences import Defence, register
from mithridate.defences.kept_run import KeptRun
from mithridate.training.order import Choice, Facts, Order, RuntimeOptions


@dataclass(frozen=True)
class LabelCount(Deterministic):
    """Every training example votes for its own label, whatever the input is."""

    type = "label-count"
    rule = "commonest-label"
    words = Voters("", "training examples", "the commonest label is not much commoner. Collect more examples.")

    def in_words(self, counted: UnitWords = EXAMPLES) -> str:
        """What it does with the training data."""
        return "every training example votes for its own label, whatever the input is"


@dataclass(frozen=True)
class CommonestRule(ExactRule):
    """The commonest label wins; a change takes one vote from it, or gives one to a rival.

    Guarantee: the prediction stays the same whatever `radius` units of the threat change.
    """

    name = "commonest-label"
    title = "commonest label"

    def decide(self, votes: Votes, threat: Threat) -> Decision:
        """The prediction on every example, and its radius."""
        label = winners(votes.counts)
        return Decision(label, in_units(leads(votes.counts, label).min(axis=1), threat))


@register
@dataclass(frozen=True, kw_only=True)
class CommonestLabel(Defence):
    """Always the commonest label.

    Guarantee: that of `Certificate`, without any probability of failure.
    """

    name = "commonest-label"
    summary = "Always the commonest label of the training set."
    mechanisms = (LabelCount,)

    def choose(self, facts: Facts) -> Choice:
        """Nothing is left open but the number of labels."""
        return Choice(replace(self, classes=facts.classes), follows_size=False, words="Counting labels.")

    def run(self, order: Order, runtime: RuntimeOptions) -> Votes:
        """Count the labels once, for all inputs."""
        labels = order.training.y
        assert labels is not None
        totals = np.bincount(labels, minlength=order.facts.classes)
        votes, training = _votes(totals, order.test), TrainingData.of(order.training.x, labels)
        recipe = {"source": order.training.source, **order.extra}
        votes = replace(votes, assumptions=order.statements, size=order.size, recipe=recipe, training=training)
        if runtime.run_dir is not None:
            inputs = {"shape": list(order.facts.shape), "kind": order.facts.kind}
            run = KeptRun(recipe, inputs, training, order.statements, order.size, {"totals": totals})
            run.save(runtime.run_dir, votes)
        return votes

    def rule(self) -> CommonestRule:
        """See `CommonestRule`."""
        return CommonestRule()

    @classmethod
    def predict(cls, run_dir: PathLike, test: Examples, **hints: Any) -> Votes:
        """The same counts for other inputs."""
        run = KeptRun.load(run_dir)
        return run.votes_of_run(_votes(run.arrays["totals"], test))


def _votes(totals: npt.NDArray[np.int64], test: Examples) -> Votes:
    counts = np.tile(totals, (len(test.x), 1))
    identity = f"{fingerprint(test.x)} {totals.tolist()}"
    return Votes(counts, LabelCount(), labels=test.y, data_fingerprint=identity, input_hashes=input_hashes(test.x))


@second_route("label-count", "commonest-label")
def recount(claim: Claim) -> npt.NDArray[np.bool_]:
    """The auditor's own way: act the worst changes out, vote by vote."""
    wrong: list[bool] = []
    for counts, label, radius in zip(claim.counts.tolist(), claim.label.tolist(), claim.radius.tolist(), strict=True):
        spent = claim.threat.changes(radius)
        rivals = [count + spent + (rival < label) for rival, count in enumerate(counts) if rival != label]
        wrong.append(max(rivals) > counts[label])
    return np.array(wrong)
