"""Advice: what else the votes of a certificate could show; `certifying.advice` finds it, and reports tell it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mithridate.core.certificate import Certificate


@dataclass(frozen=True, eq=False)
class Advice:
    """What other methods certify from the same votes, and what more instances could.

    Attributes:
        others: the same votes and the same claim, certified by other methods.
        left_out: methods that could not be compared, and why, a sentence each.
        unanimous: the radius of a prediction on which all of so many instances agree, by their number; None where it
            is too large to search for. Only numbers that are worth a word are there, in ascending order.
    """

    others: tuple[Certificate, ...] = ()
    left_out: tuple[str, ...] = ()
    unanimous: Mapping[int, int | None] = field(default_factory=dict[int, int | None])
