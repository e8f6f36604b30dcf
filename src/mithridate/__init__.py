"""Certificates against training-data poisoning for every prediction of a classifier."""

# Nothing is imported before it is asked for, not even numpy: what only some users need must not slow everyone's start,
# and the command line must have the signals in hand before anything takes long. Type checkers know this name.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from mithridate.accounting import ADP, FDP, RDP
    from mithridate.attacking.auditing import audit
    from mithridate.attacking.result import Audit
    from mithridate.auditing.gating import Gate, gate
    from mithridate.auditing.verification import Verification, verify
    from mithridate.certifying.certification import certify
    from mithridate.certifying.planning import Plan, plan
    from mithridate.comparing.result import Comparison
    from mithridate.comparing.running import compare
    from mithridate.core.certificate import Certificate, Scope, Status
    from mithridate.core.mechanism import Mechanism, SampledGaussian, Subsampled, Threat
    from mithridate.core.votes import Votes, read_votes
    from mithridate.defences import predict
    from mithridate.errors import (
        ArtifactError,
        ClusterError,
        ConfigError,
        MithridateError,
        NumericalError,
        TamperedError,
        UnsupportedMechanismError,
    )
    from mithridate.estimator import CertifiedClassifier
    from mithridate.training.config import TrainConfig
    from mithridate.training.order import Ray
    from mithridate.training.run import train
    from mithridate.tuning.result import Tuning
    from mithridate.tuning.scoring import certified_accuracy_scorer
    from mithridate.tuning.search import tune
    from mithridate.updating import Update, update

__all__ = [
    "ADP",
    "FDP",
    "RDP",
    "ArtifactError",
    "Audit",
    "Certificate",
    "CertifiedClassifier",
    "ClusterError",
    "Comparison",
    "ConfigError",
    "Gate",
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
    "Tuning",
    "UnsupportedMechanismError",
    "Update",
    "Verification",
    "Votes",
    "audit",
    "certified_accuracy_scorer",
    "certify",
    "compare",
    "gate",
    "plan",
    "predict",
    "read_votes",
    "train",
    "tune",
    "update",
    "verify",
]

_MODULES = {
    "accounting": "ADP FDP RDP",
    "training.order": "Ray",
    "attacking.auditing": "audit",
    "attacking.result": "Audit",
    "core.certificate": "Certificate Scope Status",
    "certifying.certification": "certify",
    "comparing.running": "compare",
    "comparing.result": "Comparison",
    "training.config": "TrainConfig",
    "defences": "predict",
    "training.run": "train",
    "tuning.result": "Tuning",
    "tuning.scoring": "certified_accuracy_scorer",
    "tuning.search": "tune",
    "errors": (
        "ArtifactError ClusterError ConfigError MithridateError NumericalError TamperedError UnsupportedMechanismError"
    ),
    "estimator": "CertifiedClassifier",
    "core.mechanism": "Mechanism SampledGaussian Subsampled Threat",
    "certifying.planning": "Plan plan",
    "auditing.gating": "Gate gate",
    "auditing.verification": "Verification verify",
    "core.votes": "Votes read_votes",
    "updating": "Update update",
}
# Rooms with public names of their own, for those who write `mithridate.data.Table`.
_ROOMS = ("data", "defences", "features")
_HOMES = {name: f"mithridate.{module}" for module, names in _MODULES.items() for name in names.split()}
# What the optional packages of training are called, for those who lack them.
_TRAINING = {"torch": "torch", "safetensors": "safetensors", "sklearn": "scikit-learn"}


def __getattr__(name: str) -> "Any":
    from importlib import import_module

    if name == "__version__":
        from mithridate._version import VERSION

        return VERSION
    if name in _ROOMS:
        return import_module(f"mithridate.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in _TRAINING:
            raise
        raise ModuleNotFoundError(
            f"mithridate.{name} needs {_TRAINING[error.name]}; install it with: pip install 'mithridate[train]'",
            name=error.name,
        ) from error


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS])
