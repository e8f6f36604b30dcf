"""Rules turn votes into radii: which one fits a mechanism, and how a rule is read back from a file.

There are two kinds. Instances of a random mechanism are samples, so their counts are bounded first and an accountant
says how far the bounds reach (`accounting.Method`). A deterministic mechanism is a function of the data, so its radius
follows from the votes alone (`aggregation.ExactRule`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mithridate import aggregation
from mithridate.accounting import FDP, Method, method_from_dict
from mithridate.accounting.bagging import BaggingRule
from mithridate.accounting.smoothing import FeatureNoiseRule, LabelNoiseRule
from mithridate.aggregation import ExactRule, exact_rule_from_dict
from mithridate.errors import ConfigError
from mithridate.mechanism import (
    Bagged,
    KernelSum,
    Mechanism,
    NearestExamples,
    NoisyFeatures,
    NoisyLabels,
    Partitioned,
    SampledGaussian,
    SpreadPartitions,
    Subsampled,
    Threat,
)

if TYPE_CHECKING:
    from typing_extensions import TypeIs  # of typing itself from Python 3.13 on

Rule = Method | ExactRule


def default_rule(mechanism: Mechanism) -> Rule:
    """The rule that certifies most from the counts of a mechanism.

    Raises:
        ConfigError: the rule needs a constant that only the user can know.
    """
    match mechanism:
        case SampledGaussian() | Subsampled():
            return FDP()
        case Bagged():
            return BaggingRule()
        case NoisyLabels():
            return LabelNoiseRule()
        case NoisyFeatures():
            raise ConfigError(
                "These votes need a bound on how far one input may have moved; give "
                "method=FeatureNoiseRule(max_change=...) (--max-change DISTANCE)."
            )
        case Partitioned():
            return aggregation.MajorityRule()
        case SpreadPartitions():
            return aggregation.SpreadRule()
        case NearestExamples():
            return aggregation.NeighbourRule()
        case KernelSum():
            return aggregation.KernelRule()


def default_threat(mechanism: Mechanism) -> Threat:
    """What a defence certifies against where nobody says otherwise."""
    match mechanism:
        case Bagged():
            return Threat.EDIT
        case NoisyLabels():
            return Threat.LABELS
        case NoisyFeatures():
            return Threat.FEATURES
        case _:
            return Threat.SYMMETRIC_DIFFERENCE


def is_exact(rule: object) -> TypeIs[ExactRule]:
    """Whether a rule decides from votes alone, without bounds on counts."""
    return hasattr(rule, "decide")


def rule_from_dict(values: dict[str, Any]) -> Rule:
    """Read back what a rule's `to_dict` wrote.

    Raises:
        ArtifactError: the rule is unknown.
    """
    options = {key: value for key, value in values.items() if key != "name"}
    match values.get("name"):
        case "fdp" | "rdp" | "adp":
            return method_from_dict(values)
        case "bagging":
            return BaggingRule(**options)
        case "label-smoothing":
            return LabelNoiseRule(**options)
        case "feature-smoothing":
            return FeatureNoiseRule(**options)
        case _:
            return exact_rule_from_dict(values)
