"""Certificates against training-data poisoning for every prediction of a classifier."""

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
from mithridate.verification import Verification, verify
from mithridate.votes import Votes, read_votes

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
