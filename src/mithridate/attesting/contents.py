"""The files of an archive that follow from its certificate, and what is recorded of the computers."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from mithridate._io.files import parse_json, read_file
from mithridate._version import VERSION
from mithridate.attesting.archive import CONFIGURATION, DATA, MAPPING, REPORT
from mithridate.core.certificate import Certificate
from mithridate.core.conditions import in_json
from mithridate.core.provenance import in_digits
from mithridate.core.units import unit_in_json
from mithridate.errors import ArtifactError
from mithridate.reporting import mapping

# The page is read beside the certificate, whatever the archive is called.
_CHECK = "mithridate verify certificate.json"
_KINDS = {"configuration": "mithridate.evidence-configuration/1", "data": "mithridate.evidence-data/1"}
_ENVIRONMENT = "mithridate.evidence-environment/1"


@dataclass(frozen=True)
class KnownVersions:
    """What is known of the computers besides what the certificate says; it is believed.

    Attributes:
        made_with: versions that wrote the archive.
        trained_with: versions that the run was started with; None where it does not say.
        started_on: kind of device that the run was started on; likewise.
    """

    made_with: dict[str, str]
    trained_with: dict[str, str] | None = None
    started_on: str | None = None

    @classmethod
    def of_run(cls, run_dir: Path) -> KnownVersions:
        """What is known here and now of a run.

        Raises:
            ArtifactError: its `run.json` is damaged.
        """
        here = {
            "mithridate": VERSION,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
        }
        path = run_dir / "run.json"
        if not path.is_file():
            return cls(here)
        try:
            said = parse_json(read_file(path))
            return cls(here, _texts(said.get("versions")), _text(said.get("device")))
        except (ValueError, AttributeError) as error:
            if isinstance(error, ArtifactError):
                raise
            raise ArtifactError(f"{path} is damaged ({error!s:.200}); train it again.") from error

    @classmethod
    def of_file(cls, content: bytes) -> KnownVersions:
        """What an `environment.json` says of it.

        Raises:
            ValueError: something is missing or of the wrong kind.
        """
        said = parse_json(content)
        made_with = _texts(said["made_with"])
        if made_with is None:
            raise ValueError("it does not say what it was made with")
        return cls(made_with, _texts(said["trained_with"]), _text(said["started_on"]))


def derived(certificate: Certificate) -> dict[str, bytes]:
    """The files that follow from a certificate, by name.

    Guarantee: they are a function of the certificate and of the version of mithridate.

    Raises:
        ArtifactError: the certificate claims what cannot be.
    """
    report = certificate.report(methods=(), title="Evidence: certified predictions", check_with=(_CHECK,))
    return {
        REPORT: report.rendered("html"),
        # Half a character, which JSON lets through, has no place in UTF-8.
        MAPPING: mapping.html(certificate).encode("utf-8", "replace"),
        CONFIGURATION: as_json(_configuration(certificate)),
        DATA: as_json(_data(certificate)),
    }


def environment(certificate: Certificate, recorded: KnownVersions) -> bytes:
    """Versions and devices, as a file."""
    return as_json(
        {
            "schema": _ENVIRONMENT,
            **asdict(recorded),
            "certified_with": certificate.versions,
            "devices": dict(certificate.votes.devices),
        }
    )


def as_json(content: Mapping[str, Any]) -> bytes:
    """JSON for people, in ASCII, of which equal values have equal bytes."""
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def _configuration(certificate: Certificate) -> dict[str, Any]:
    """What was run, and how its votes were certified."""
    votes, said = certificate.votes, certificate.to_dict()
    names = ("method", "method_options", "threat", "failure_prob", "scope", "on", "bounds", "input_change")
    return {
        "schema": _KINDS["configuration"],
        "mechanism": votes.mechanism.to_dict(),
        "instances": votes.instances,
        "classes": votes.classes,
        "class_names": said["class_names"],
        "runs": list(votes.run_ids),
        "recipe": votes.recipe,
        "certified": {name: said[name] for name in names if name in said},
    }


def _data(certificate: Certificate) -> dict[str, Any]:
    """Which data the claim is about, what encoded it, and on what the claim is conditional."""
    votes, recipe = certificate.votes, certificate.votes.recipe or {}
    return {
        "schema": _KINDS["data"],
        "training": None if votes.training is None else votes.training.to_dict(),
        "inputs": {"examples": votes.examples, "fingerprint": _of_inputs(certificate)},
        "run": votes.data_fingerprint,
        "size": None if votes.size is None else votes.size.to_dict(),
        **unit_in_json(votes.unit),
        "source": recipe.get("source"),
        "encoder": _encoder(recipe),
        "threat": certificate.threat.value,
        "threat_in_words": certificate.threat.of(votes.unit_words),
        **in_json(certificate.assumptions, certificate.threat),
        "assumptions": list(map(str, certificate.assumptions)),
    }


def _encoder(recipe: Mapping[str, Any]) -> Any:
    """What encodes inputs, as the run records it: of pretrained weights their hash and what they were trained on."""
    said = recipe.get("defence")
    return recipe.get("features", said.get("features") if isinstance(said, dict) else None)  # pyright: ignore[reportUnknownMemberType]


def _of_inputs(certificate: Certificate) -> str | None:
    """The fingerprint of the test inputs, as `core.provenance.fingerprint` has it; None where they are not recorded."""
    hashes = certificate.votes.input_hashes
    if hashes is None:
        return None
    return hashlib.sha256("".join(f"{line}\n" for line in in_digits(hashes)).encode()).hexdigest()


def _texts(value: Any) -> dict[str, str] | None:
    """Texts by name, as a file should have them; None where it has none.

    Raises:
        ValueError: it is something else.
    """
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):  # pyright: ignore[reportUnknownVariableType,reportUnknownMemberType]
        raise ValueError("versions are not texts by name")
    return value  # pyright: ignore[reportUnknownVariableType]


def _text(value: Any) -> str | None:
    if not isinstance(value, str | None):
        raise ValueError("a device is no text")
    return value
