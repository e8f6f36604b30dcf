"""From the votes of a deterministic mechanism to exact radii; numpy only.

What such a mechanism predicts is a function of the training set. So nothing is estimated and nothing can fail: a rule
counts how many examples an attacker must touch before another label wins. Each rule reads `Votes.counts` and, by name,
the arrays of `Votes.evidence` that its docstring lists.
"""

from typing import Any

from mithridate.aggregation.neighbours import KernelRule, NeighbourRule
from mithridate.aggregation.partitions import MajorityRule, RunOffRule, SpreadRule
from mithridate.aggregation.rule import Decision, ExactRule
from mithridate.errors import ArtifactError

__all__ = [
    "Decision",
    "ExactRule",
    "KernelRule",
    "MajorityRule",
    "NeighbourRule",
    "RunOffRule",
    "SpreadRule",
    "exact_rule_from_dict",
]

_RULES: tuple[ExactRule, ...] = (MajorityRule(), SpreadRule(), RunOffRule(), NeighbourRule(), KernelRule())


def exact_rule_from_dict(values: dict[str, Any]) -> ExactRule:
    """Read back what a rule's `to_dict` wrote.

    Raises:
        ArtifactError: the rule is unknown.

    >>> exact_rule_from_dict({"name": "dpa"})
    MajorityRule()
    """
    for rule in _RULES:
        if values == rule.to_dict():
            return rule
    raise ArtifactError(f"The method {values.get('name')!r} is not known to this version of mithridate; update it.")
