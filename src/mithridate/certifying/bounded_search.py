"""Certify, but follow no method farther than a reader of a report would wait for: by a limit on radii, not by a clock.

What a report shows must not depend on how busy the machine was. The cost of trying a radius grows with the radius, so a
limit on the radii that are tried bounds the work, and whether a method meets it follows from the votes alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mithridate.accounting import Accountant, Margins, Method
from mithridate.accounting.accountant import BoolArray
from mithridate.certifying.certification import certify
from mithridate.core.certificate import Certificate
from mithridate.core.mechanism import Mechanism, Threat
from mithridate.core.rule import Rule
from mithridate.core.votes import Votes


def certify_up_to(limit: int, votes: Votes, *, method: Rule, **claim: Any) -> Certificate | None:
    """What `certify` gives, or None where a radius beyond the limit would have to be tried.

    Guarantee: whether it is None is a function of the arguments. Where it is, some prediction is certified to `limit`.

    Args:
        limit: the largest radius that may be tried, a power of two: the search doubles radii until one is refused.
        votes: see `certify`.
        method: see `certify`.
        claim: the other arguments of `certify`.
    """
    if not isinstance(method, Method):  # which takes no time
        return certify(votes, method=method, **claim)
    try:
        found = certify(votes, method=_Limited(method, limit), **claim)
    except _BeyondLimitError:
        return None
    return replace(found, method=method)


class _BeyondLimitError(Exception):
    """A radius beyond the limit was asked for."""


@dataclass(frozen=True)
class _Limited(Method):
    """A method whose accountants stop at a limit."""

    method: Method
    limit: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.method.name)

    @property
    def assumptions(self) -> tuple[str, ...]:
        return self.method.assumptions

    def accountant(self, mechanism: Mechanism, threat: Threat) -> Accountant:
        return _LimitedAccountant(self.method.accountant(mechanism, threat), self.limit)

    def to_dict(self) -> dict[str, Any]:
        return self.method.to_dict()


@dataclass(frozen=True)
class _LimitedAccountant:
    accountant: Accountant
    limit: int

    def holds(self, radius: int, margins: Margins) -> BoolArray:
        if radius > self.limit:
            raise _BeyondLimitError
        return self.accountant.holds(radius, margins)

    def close(self) -> None:
        self.accountant.close()

    @property
    def error_budget(self) -> dict[str, float]:
        return self.accountant.error_budget
