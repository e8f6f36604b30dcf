"""Certificates against training-data poisoning for every prediction of a classifier."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mithridate.accounting import ADP, FDP, RDP
from mithridate.backends import Ray
from mithridate.certificate import Certificate, Scope, Status
from mithridate.certification import certify
from mithridate.config import TrainConfig
from mithridate.errors import (
    ArtifactError,
    ClusterError,
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
    from mithridate.comparing import compare
    from mithridate.comparison import Comparison
    from mithridate.ensemble.prediction import predict
    from mithridate.ensemble.training import train
    from mithridate.estimator import CertifiedClassifier
    from mithridate.verification import Verification, verify

__all__ = [
    "ADP",
    "FDP",
    "RDP",
    "ArtifactError",
    "Certificate",
    "CertifiedClassifier",
    "ClusterError",
    "Comparison",
    "ConfigError",
    "Mechanism",
    "MithridateError",
    "NumericalError",
    "Plan",
    "Ray",
    "SampledGaussian",
    "Scope",
    "Status",
    "Subsampled",
    "TamperedError",
    "Threat",
    "TrainConfig",
    "UnsupportedMechanismError",
    "Verification",
    "Votes",
    "certify",
    "compare",
    "plan",
    "predict",
    "read_votes",
    "train",
    "verify",
]

# Imported when first asked for: what only some users need must not slow everyone's start.
_LAZY = {
    "CertifiedClassifier": "mithridate.estimator",
    "Comparison": "mithridate.comparison",
    "Verification": "mithridate.verification",
    "compare": "mithridate.comparing",
    "predict": "mithridate.ensemble.prediction",
    "train": "mithridate.ensemble.training",
    "verify": "mithridate.verification",
}
# What the optional packages of training are called, for those who lack them.
_TRAINING = {"torch": "torch", "safetensors": "safetensors", "sklearn": "scikit-learn"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_LAZY[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in _TRAINING:
            raise
        raise ModuleNotFoundError(
            f"mithridate.{name} needs {_TRAINING[error.name]}; install it with: pip install 'mithridate[train]'",
            name=error.name,
        ) from error
