"""Rules turn votes into radii.

There are two kinds. Instances of a random mechanism are samples, so their counts are bounded first and an accountant
says how far the bounds reach (`accounting.Method`). A deterministic mechanism is a function of the data, so its radius
follows from the votes alone (`ExactRule`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np
import numpy.typing as npt

from mithridate.core import registry
from mithridate.core.mechanism import Mechanism, Threat
from mithridate.errors import ArtifactError

if TYPE_CHECKING:
    from typing_extensions import TypeIs  # of typing itself from Python 3.13 on

    from mithridate.core.votes import Votes


class Rule:
    """A way from votes to radii, such as `FDP()`; frozen dataclasses inherit it, and their fields are its options.

    Attributes:
        name: what files and the command line call it.
        title: what a report calls it.
        is_sound: whether its radii are valid for the mechanisms that it certifies.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    is_sound: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        if isinstance(vars(cls).get("name"), str):
            registry.rules.add(cls.name, cls)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What it takes for granted beyond the mechanism."""
        return ()

    @property
    def short_title(self) -> str:
        """In a word or two, to stand beside a line in a chart."""
        return self.title

    def in_words(self) -> str:
        """With its options, for people."""
        return self.title

    def to_dict(self) -> dict[str, Any]:
        """Name and options as plain JSON values."""
        return {"name": self.name, **{one.name: getattr(self, one.name) for one in fields(cast("Any", self))}}

    @classmethod
    def from_dict(cls, options: dict[str, Any]) -> Self:
        """Read back the options that `to_dict` wrote."""
        return cls(**options)


@dataclass(frozen=True, eq=False)
class Decision:
    """What is predicted, and how much it withstands.

    Attributes:
        label: the prediction on each example.
        radius: how many units of the threat leave it as it is, 0 or more; at most `SEARCH_LIMIT`.
    """

    label: npt.NDArray[np.int64]
    radius: npt.NDArray[np.int64]


class ExactRule(Rule):
    """A rule that decides from votes alone, such as `MajorityRule()`: no count is a sample, and nothing can fail."""

    # How the label is chosen among the voters, where that is not by most votes.
    choice: ClassVar[str] = ""

    def reads(self, threat: Threat) -> tuple[str, ...]:
        """Names of the evidence that it needs beside counts; a certificate carries no other."""
        return ()

    def decide(self, votes: Votes, threat: Threat) -> Decision:
        """The prediction on every example, and its radius."""
        raise NotImplementedError


def is_exact(rule: object) -> TypeIs[ExactRule]:
    """Whether a rule decides from votes alone, without bounds on counts."""
    return isinstance(rule, ExactRule)


def default_rule(mechanism: Mechanism) -> Rule:
    """The rule that certifies most from the counts of a mechanism.

    Raises:
        ConfigError: the rule needs a constant that only the user can know.
    """
    return _built(mechanism.rule, {})


def rule_from_dict(values: dict[str, Any]) -> Rule:
    """Read back what a rule's `to_dict` wrote.

    Raises:
        ArtifactError: the rule or an option is unknown.

    >>> rule_from_dict({"name": "rdp", "group": "paper", "complement": False})
    RDP(group='paper', complement=False)
    """
    return _built(values.get("name"), {key: value for key, value in values.items() if key != "name"})


def _built(name: Any, options: dict[str, Any]) -> Rule:
    found: type[Rule] | None = registry.rules.find(name)
    if found is None:
        raise ArtifactError(f"The method {name!r} is not known to this version of mithridate; update it.")
    try:
        return found.from_dict(options)
    except TypeError as error:
        raise ArtifactError(
            f"The method {name!r} with these options is not known to this version of mithridate ({error}); update it."
        ) from error
