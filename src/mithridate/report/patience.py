"""Certify, but not for longer than a reader of a report would wait."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from mithridate.accounting import Accountant, Margins, Method
from mithridate.accounting.accountant import BoolArray
from mithridate.certificate import Certificate
from mithridate.certification import certify
from mithridate.mechanism import Mechanism, Threat
from mithridate.rules import Rule, is_exact
from mithridate.votes import Votes


def certify_until(deadline: float, votes: Votes, *, method: Rule, **claim: Any) -> Certificate | None:
    """What `certify` gives, or None where it is not done in time.

    Args:
        deadline: when to stop, on the clock of `time.monotonic`; looked at before each radius that is tried.
        votes: see `certify`.
        method: see `certify`.
        claim: the other arguments of `certify`.
    """
    if is_exact(method):  # which takes no time
        return certify(votes, method=method, **claim)
    try:
        found = certify(votes, method=_Hurried(method, deadline), **claim)
    except _OutOfTimeError:
        return None
    return replace(found, method=method)


class _OutOfTimeError(Exception):
    """The deadline has passed."""


@dataclass(frozen=True)
class _Hurried:
    """A method whose accountants stop at a deadline."""

    method: Method
    deadline: float

    @property
    def name(self) -> str:
        return self.method.name

    @property
    def assumptions(self) -> tuple[str, ...]:
        return self.method.assumptions

    def accountant(self, mechanism: Mechanism, threat: Threat) -> Accountant:
        return _HurriedAccountant(self.method.accountant(mechanism, threat), self.deadline)

    def to_dict(self) -> dict[str, Any]:
        return self.method.to_dict()


@dataclass(frozen=True)
class _HurriedAccountant:
    accountant: Accountant
    deadline: float

    def holds(self, radius: int, margins: Margins) -> BoolArray:
        if time.monotonic() > self.deadline:
            raise _OutOfTimeError
        return self.accountant.holds(radius, margins)

    def close(self) -> None:
        self.accountant.close()

    @property
    def error_budget(self) -> dict[str, float]:
        return self.accountant.error_budget
