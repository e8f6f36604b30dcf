"""Certificates against training-data poisoning for every prediction of a classifier."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mithridate.accounting import ADP, FDP, RDP
from mithridate.certificate import Certificate, Scope, Status
from mithridate.certification import certify
from mithridate.errors import (
    ArtifactError,
    ConfigError,
    MithridateError,
    NumericalError,
    TamperedError,
    UnsupportedMechanismError,
)
from mithridate.mechanism import Mechanism, SampledGaussian, Subsampled, Threat
from mithridate.planning import Plan, plan
from mithridate.votes import Votes, read_votes

if TYPE_CHECKING:
    from mithridate.verification import Verification, verify

__all__ = [
    "ADP",
    "FDP",
    "RDP",
    "ArtifactError",
    "Certificate",
    "ConfigError",
    "Mechanism",
    "MithridateError",
    "NumericalError",
    "Plan",
    "SampledGaussian",
    "Scope",
    "Status",
    "Subsampled",
    "TamperedError",
    "Threat",
    "UnsupportedMechanismError",
    "Verification",
    "Votes",
    "certify",
    "plan",
    "read_votes",
    "verify",
]

# Imported when first asked for: what only some users need must not slow everyone's start.
_LAZY = {"Verification": "mithridate.verification", "verify": "mithridate.verification"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
