"""Evidence of a run: an archive that holds what the run shows, and the check of all of it.

The manifest names the SHA-256 of every file, a signature is of the manifest, and whatever follows from the certificate
is made again from it. So a changed byte is found by the manifest; and who writes a new manifest, too, can only change
what nobody could compute again: the votes, what is assumed of them, and what is recorded of the computers. Against that
there is the signature.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy

from mithridate._io.files import PathLike, parse_json, read_file, write_atomically
from mithridate._version import VERSION
from mithridate.attesting import signing
from mithridate.attesting.archive import (
    CERTIFICATE,
    ENVIRONMENT,
    KEY,
    LISTED,
    MANIFEST,
    SIGNATURE,
    VOTES,
    packed,
    unpacked,
)
from mithridate.attesting.contents import KnownVersions, as_json, derived, environment
from mithridate.auditing.routes import Progress
from mithridate.auditing.verification import Check, Verification, differences_from_source, verify
from mithridate.core.certificate import Certificate
from mithridate.errors import ArtifactError, MithridateError, TamperedError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SCHEMA = "mithridate.evidence/1"
NOT_SIGNED = "not signed"


def write_evidence(
    out: PathLike, run_dir: PathLike, certificate: PathLike, *, key: Ed25519PrivateKey | None = None
) -> dict[str, bytes]:
    """Write the evidence of a run.

    Guarantee: neither the seed of the run, nor its models, nor its training data are in the archive. The same run,
    certificate, versions and key give the same bytes.

    Args:
        out: the archive.
        run_dir: directory of the run.
        certificate: file of the certificate of its votes.
        key: what signs it; see `signing.read_private_key`.

    Returns:
        The files of the archive by name.

    Raises:
        ArtifactError: the certificate is not of the votes of the run, or a file cannot be read or written.
        ConfigError: the files are too large for one archive.
    """
    folder = Path(run_dir)
    content, claimed = _read_certificate(Path(certificate))
    votes = folder / VOTES
    differences = differences_from_source(claimed.votes, folder)
    if differences:
        raise ArtifactError(
            f"{certificate} is not of the run in {run_dir} ({differences}). Certify the run again: mithridate certify "
            f"{shlex.quote(str(run_dir))}"
        )
    files = {
        CERTIFICATE: content,
        VOTES: read_file(votes, 1 << 31),
        **derived(claimed),
        ENVIRONMENT: environment(claimed, KnownVersions.of_run(folder)),
    }
    files[MANIFEST] = _manifest(files)
    if key is not None:
        made = signing.signed(files[MANIFEST], key)
        files |= {SIGNATURE: made.signature, KEY: made.public_key}
    with write_atomically(out, durable=True) as file:
        file.write(packed(files))
    return files


def verify_evidence(
    path: PathLike, *, run: PathLike | None = None, public_key: PathLike | None = None, progress: Progress | None = None
) -> Verification:
    """Check everything in an evidence archive.

    Guarantee: `valid` is True only if no byte of the archive was changed since its manifest was written; if the
    signature, where there is one, is of this manifest by the key that is stated, and by `public_key` where that is
    given; if the certificate holds as `verify` says, for the votes in the archive; and if the pages, the configuration
    and what is said of the data follow from the certificate.

    Assumes: what `verify` assumes. Without a `public_key`, who has forged the votes or what the certificate assumes can
    write and sign an archive that passes; with it, only whoever has the private key can.

    Args:
        path: the archive.
        run: the directory of the run, or its votes file, with which the certificate is compared besides.
        public_key: file of the one key whose signature counts.
        progress: called with how many radii, or how many predictions, are done, and their total.

    Raises:
        ArtifactError: the archive cannot be read, or is truncated.
        ConfigError: there is a signature and no `cryptography` to check it, or `public_key` is no such key.
    """
    wanted = None if public_key is None else signing.read_public_key(Path(public_key))
    try:
        files = unpacked(Path(path))
        manifest = _read_manifest(files)
    except TamperedError as error:
        return Verification((Check("archive unchanged", False, str(error)),))
    checks = [
        Check("archive unchanged", True, f"every byte of it belongs to one of its {len(files)} files"),
        Check("manifest", True, f"the SHA-256 and the size of {len(LISTED)} files agree, schema {SCHEMA}"),
        _check_signature(files, wanted),
    ]
    with TemporaryDirectory(prefix="mithridate-") as name:
        folder = Path(name)
        for each in (CERTIFICATE, VOTES):
            (folder / each).write_bytes(files[each])
        try:
            found = verify(folder / CERTIFICATE, run=folder / VOTES, progress=progress)
            checks.extend(replace(check, detail=check.detail.replace(f"{folder}/", "")) for check in found.checks)
            if not found.valid:
                return replace(found, checks=tuple(checks))
            certificate = Certificate.load(folder / CERTIFICATE)
        except ArtifactError as error:
            raise ArtifactError(str(error).replace(f"{folder}/", f"{path}: ")) from error
    if run is not None:
        differences = differences_from_source(certificate.votes, run)
        checks.append(
            Check("run", not differences, differences or f"the votes and all that is said of them are {run}'s")
        )
    is_vouched = wanted is not None and checks[2].passed
    checks.extend(_check_derived(certificate, files, str(manifest["made_with"]), is_vouched=is_vouched))
    checks.append(_check_environment(certificate, files[ENVIRONMENT], str(manifest["made_with"])))
    return replace(found, checks=tuple(checks))


# --- the manifest -----------------------------------------------------------------------------------------------------


def _manifest(files: Mapping[str, bytes], made_with: str = VERSION) -> bytes:
    listed = {name: {"sha256": hashlib.sha256(files[name]).hexdigest(), "size": len(files[name])} for name in LISTED}
    return as_json({"schema": SCHEMA, "made_with": made_with, "files": listed})


def _read_manifest(files: Mapping[str, bytes]) -> dict[str, Any]:
    """What the manifest says, which is all that it should say of these files.

    Raises:
        TamperedError: it says something else.
        ArtifactError: it is of another version.
    """
    try:
        said = parse_json(files[MANIFEST])
        schema, made_with, listed = said["schema"], said["made_with"], said["files"]
        if schema == SCHEMA:
            found = json.loads(_manifest(files, made_with))["files"]
            wrong = next((name for name in LISTED if listed.get(name) != found[name]), None)
            if wrong is not None:
                raise TamperedError(
                    f"{wrong} was changed after the archive was written: the manifest has another hash."
                )
            if not isinstance(made_with, str) or files[MANIFEST] != _manifest(files, made_with):
                raise TamperedError(f"{MANIFEST} was changed after the archive was written.")
            return said
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, TamperedError):
            raise
        raise TamperedError(f"{MANIFEST} was changed after the archive was written ({error!s:.200}).") from error
    raise ArtifactError(f"The archive has the schema {schema!r:.80}, this version reads {SCHEMA!r}; update mithridate.")


# --- checks -----------------------------------------------------------------------------------------------------------


def _check_signature(files: Mapping[str, bytes], wanted: bytes | None) -> Check:
    """That the manifest is signed by the key that is stated, or by the one that is wanted."""
    if SIGNATURE not in files:
        words = f"{NOT_SIGNED}: anyone could have written this archive"
        return Check("signature", wanted is None, words if wanted is None else f"{words}, and a signature is required")
    try:
        is_valid = signing.is_by_its_key(files[MANIFEST], signing.Signature(files[SIGNATURE], files[KEY]))
    except ArtifactError as error:
        return Check("signature", False, str(error))
    if not is_valid:
        return Check("signature", False, f"{SIGNATURE} is no signature of this manifest by the key in {KEY}")
    key = f"signed by the key with the SHA-256 {signing.fingerprint_of(files[KEY])}"
    if wanted is None:
        return Check("signature", True, f"{key}; whose key that is, only a comparison with a key that you know can say")
    if wanted != files[KEY]:
        return Check("signature", False, f"{key}, and not by the required {signing.fingerprint_of(wanted)}")
    return Check("signature", True, f"{key}, as required")


def _check_derived(
    certificate: Certificate, files: Mapping[str, bytes], made_with: str, *, is_vouched: bool
) -> Iterator[Check]:
    """That what follows from the certificate is what is there.

    Args:
        certificate: what holds.
        files: of the archive.
        made_with: the version that wrote it; only that version writes the same pages.
        is_vouched: whether a key that the user trusts has signed them.
    """
    if made_with != VERSION:
        other = f"written by mithridate {made_with}, and this is {VERSION}, which cannot write them again"
        remedy = "; believed, for the required key has signed them" if is_vouched else f"; verify with {made_with}"
        yield Check("pages", is_vouched, other + remedy)
        return
    try:
        expected = derived(certificate)
    except MithridateError as error:
        yield Check("pages", False, f"they cannot be written again: {error}")
        return
    for name, content in expected.items():
        same = content == files[name]
        words = "it follows from the certificate, byte for byte"
        yield Check(name, same, words if same else f"it does not follow from the certificate{_other_versions(files)}")


def _other_versions(files: Mapping[str, bytes]) -> str:
    """A hint where other versions of what computes could be the reason."""
    here = {"numpy": np.__version__, "scipy": scipy.__version__}
    try:
        there = KnownVersions.of_file(files[ENVIRONMENT]).made_with
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
    others = [f"{name} {there[name]}" for name, version in here.items() if there.get(name, version) != version]
    return (
        f", as {' and '.join(others)} may round otherwise; try with {'that' if len(others) == 1 else 'these'}"
        * bool(others)
    )


def _check_environment(certificate: Certificate, content: bytes, made_with: str) -> Check:
    """That the versions and devices that the certificate names are there; the others cannot be known."""
    try:
        recorded = KnownVersions.of_file(content)
        same = environment(certificate, recorded) == content and recorded.made_with.get("mithridate") == made_with
    except (ValueError, KeyError, TypeError, AttributeError):
        same = False
    agreed = "versions and devices are those of the certificate; those of training and of the archive are believed"
    return Check(ENVIRONMENT, same, agreed if same else "it is not what the certificate and the manifest say")


def _read_certificate(path: Path) -> tuple[bytes, Certificate]:
    """A certificate with the bytes of its file, read once."""
    certificate = Certificate.load(path)
    return read_file(path, 1 << 31), certificate
