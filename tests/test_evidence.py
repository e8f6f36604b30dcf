"""Evidence: what the archive holds, that any changed byte is found, and that a forger's manifest is not enough."""

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rival_votes import RIVALS
from test_cli import COUNTS, GAUSSIAN, refused, run, run_json

from mithridate import Certificate, Votes, certify
from mithridate._io.artifacts import read_hashed, write_hashed
from mithridate.attesting import archive, evidence, signing
from mithridate.attesting.archive import CERTIFICATE, KEY, LISTED, MANIFEST, SIGNATURE, VOTES, packed, unpacked
from mithridate.attesting.evidence import verify_evidence
from mithridate.cli import main
from mithridate.core.certificate import SCHEMA
from mithridate.core.conditions import Statement
from mithridate.core.input_change import Frontier
from mithridate.core.provenance import TrainingData, fingerprint, input_hashes
from mithridate.core.units import Unit
from mithridate.reporting import mapping

INPUTS = np.arange(6.0).reshape(3, 2)
TRAINING = TrainingData(hashlib.sha256(b"training").hexdigest(), 40)
RECIPE = {"features": {"name": "frozen", "digest": "ab" * 32}, "source": {"class_names": ["<b>cat</b>", "dog", "emu"]}}


def votes(**more: Any) -> Votes:
    made = Votes.from_counts(COUNTS, mechanism=GAUSSIAN, labels=[0, 1, 1])
    return replace(made, recipe=RECIPE, training=TRAINING, input_hashes=input_hashes(INPUTS), **more)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with votes, and with what belongs into no archive."""
    folder = tmp_path / "a run"
    (folder / "models").mkdir(parents=True)
    votes().save(folder / VOTES)
    (folder / "seed").write_bytes(b"the private seed")
    (folder / "models" / "0.safetensors").write_bytes(b"the weights")
    return folder


@pytest.fixture
def packed_run(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "evidence.zip"
    assert run(capsys, "evidence", run_dir, "-o", path).code == 0
    return path


def _write_key(path: Path, key: Any, password: bytes | None = None) -> Path:
    from cryptography.hazmat.primitives import serialization as form

    lock = form.NoEncryption() if password is None else form.BestAvailableEncryption(password)
    path.write_bytes(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, lock))
    path.chmod(0o600)
    return path


def new_key(path: Path, password: bytes | None = None) -> Path:
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    return _write_key(path, ed25519.Ed25519PrivateKey.generate(), password)


def public_part(key: Path) -> Path:
    from cryptography.hazmat.primitives import serialization as form

    private: Any = form.load_pem_private_key(key.read_bytes(), None)
    path = key.with_suffix(".pub.pem")
    path.write_bytes(private.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo))
    return path


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return new_key(tmp_path / "key.pem")


@pytest.fixture
def signed(run_dir: Path, tmp_path: Path, key: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "signed.zip"
    assert run(capsys, "evidence", run_dir, "-o", path, "--sign", key).code == 0
    return path


def failed(path: Path, **how: Any) -> set[str]:
    outcome = verify_evidence(path, **how)
    assert outcome.valid == all(check.passed for check in outcome.checks)
    return {check.name for check in outcome.checks if not check.passed}


def forged(path: Path, changes: Mapping[str, bytes], made_with: str | None = None) -> Path:
    """The archive with other files and a manifest that fits them, as a forger without a key can write it."""
    files = {**unpacked(path), **changes}
    more = {} if made_with is None else {"made_with": made_with}
    files[MANIFEST] = evidence._manifest(files, **more)
    out = path.with_name("forged.zip")
    out.write_bytes(packed(files))
    return out


# --- what is in it --------------------------------------------------------------------------------------------------


def test_it_holds_what_is_promised_and_no_more(packed_run: Path) -> None:
    with zipfile.ZipFile(packed_run) as opened:
        assert opened.testzip() is None
        assert opened.namelist() == [MANIFEST, *LISTED]
        files = {name: opened.read(name) for name in opened.namelist()}
    listed = json.loads(files[MANIFEST])["files"]
    assert listed == {n: {"sha256": hashlib.sha256(files[n]).hexdigest(), "size": len(files[n])} for n in LISTED}
    content = packed_run.read_bytes()
    assert b"the private seed" not in content
    assert b"the weights" not in content


def test_what_is_said_of_data_and_encoder(packed_run: Path) -> None:
    said = json.loads(unpacked(packed_run)["data.json"])
    assert said["training"] == {"fingerprint": TRAINING.fingerprint, "examples": 40}
    assert said["inputs"] == {"examples": 3, "fingerprint": fingerprint(INPUTS)}
    assert said["encoder"]["digest"] == "ab" * 32
    assert json.loads(unpacked(packed_run)["configuration.json"])["recipe"] == RECIPE


def test_versions_and_devices(run_dir: Path, tmp_path: Path) -> None:
    said = {"versions": {"torch": "2.99"}, "device": "cuda"}
    certify(votes()).save(run_dir / CERTIFICATE)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.json").write_text(json.dumps(said))
    recorded = evidence.KnownVersions.of_run(tmp_path / "other")
    assert (recorded.trained_with, recorded.started_on) == ({"torch": "2.99"}, "cuda")
    again = evidence.KnownVersions.of_file(evidence.environment(Certificate.load(run_dir / CERTIFICATE), recorded))
    assert again == recorded


def test_the_same_run_gives_the_same_bytes(
    run_dir: Path, packed_run: Path, tmp_path: Path, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "evidence", run_dir, "--out", tmp_path / "b.zip").code == 0
    assert (tmp_path / "b.zip").read_bytes() == packed_run.read_bytes()
    for name in ("c.zip", "d.zip"):
        assert run(capsys, "evidence", run_dir, "-o", tmp_path / name, "--sign", key).code == 0
    assert (tmp_path / "c.zip").read_bytes() == (tmp_path / "d.zip").read_bytes()


def test_a_run_without_a_certificate_gets_that_of_certify(
    run_dir: Path, packed_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The archive has the very bytes that are in the run afterwards, and they claim what `certify` does."""
    assert unpacked(packed_run)[CERTIFICATE] == (run_dir / CERTIFICATE).read_bytes()
    assert Certificate.load(run_dir / CERTIFICATE) == certify(votes())
    (run_dir / CERTIFICATE).unlink()
    flags = ("--threat", "remove", "--failure-prob", "0.01")
    assert run(capsys, "evidence", run_dir, *flags).code == 0
    assert Certificate.load(run_dir / CERTIFICATE) == certify(votes(), threat="remove", failure_prob=0.01)
    assert failed(run_dir / "evidence.zip") == set()


def test_another_certificate_of_the_same_votes(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certify(votes(), threat="add").save(tmp_path / "add.json")
    path = tmp_path / "e.zip"
    assert run(capsys, "evidence", run_dir, "-o", path, "--certificate", tmp_path / "add.json").code == 0
    assert unpacked(path)[CERTIFICATE] == (tmp_path / "add.json").read_bytes()
    assert not (run_dir / CERTIFICATE).exists()
    assert failed(path) == set()


def test_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run(capsys, "evidence", "--help")
    assert outcome.code == 0
    for flag in ("--out", "--sign", "--certificate", "--threat", "--failure-prob", "--json"):
        assert flag in outcome.out
    assert "--public-key" in run(capsys, "verify", "--help").out


@pytest.mark.parametrize("name", RIVALS)
def test_evidence_of_every_defence(tmp_path: Path, name: str) -> None:
    rival = RIVALS[name]
    rival.votes.save(tmp_path / VOTES)
    certificate = certify(rival.votes, method=rival.method, threat=rival.threats[0])
    certificate.save(tmp_path / CERTIFICATE)
    evidence.write_evidence(tmp_path / "e.zip", tmp_path, tmp_path / CERTIFICATE)
    assert failed(tmp_path / "e.zip") == set()
    assert len(re.findall(r"^<article", unpacked(tmp_path / "e.zip")["mapping.html"].decode(), re.MULTILINE)) == 17


# --- a changed byte -------------------------------------------------------------------------------------------------


def test_what_was_written_holds(packed_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run_json(capsys, "verify", packed_run)
    assert said["schema"] == "mithridate.verification/1"
    assert said["valid"]
    details = {check["name"]: check["detail"] for check in said["checks"]}
    assert details["signature"].startswith("not signed")
    assert {"archive unchanged", "manifest", "file unchanged", "source", "radii", "report.html", "mapping.html"} < set(
        details
    )
    assert str(Path("/tmp")) not in json.dumps(said)
    assert "The evidence holds, under these assumptions, but it is not signed." in run(capsys, "verify", packed_run).out


def _code(capsys: pytest.CaptureFixture[str], path: Path) -> int:
    outcome = run(capsys, "verify", path)
    assert "Traceback" not in outcome.err
    return outcome.code


def test_any_changed_byte_is_found(signed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, random = signed.read_bytes(), np.random.default_rng(5)
    path = tmp_path / "changed.zip"
    for place in random.choice(len(content), 150, replace=False).tolist():
        changed = bytearray(content)
        changed[place] ^= int(random.integers(1, 256))
        path.write_bytes(changed)
        assert _code(capsys, path) in (1, 2), place


def test_any_changed_byte_around_the_files_is_found(packed_run: Path, tmp_path: Path) -> None:
    """Be it one that no reader looks at: of the directory, and of the header of the first file and of the last."""
    content, path = packed_run.read_bytes(), tmp_path / "changed.zip"
    with zipfile.ZipFile(packed_run) as opened:
        members, directory = opened.infolist(), opened.start_dir
    heads = [
        at for m in (members[0], members[-1]) for at in range(m.header_offset, m.header_offset + 30 + len(m.filename))
    ]
    for place in [*heads, *range(directory, len(content))]:
        changed = bytearray(content)
        changed[place] ^= 1 << (place % 8)
        path.write_bytes(changed)
        with contextlib.suppress(ValueError):  # an ArtifactError
            assert failed(path), place


def test_the_bytes_of_the_archive_are_those_of_the_format() -> None:
    """Written here from the specification of zip, field by field, so that no version of a library can change them."""
    files = {VOTES: b"some votes", MANIFEST: b"{}"}
    local, central = b"", b""
    for name in (MANIFEST, VOTES):  # the manifest first, whatever comes first here
        about = struct.pack("<HHHHHIIIHH", 20, 0, 0, 0, 0x21, *_sizes(files[name]), len(name), 0)
        place, mode = len(local), 0o644 << 16
        local += b"PK\3\4" + about + name.encode() + files[name]
        central += b"PK\1\2" + struct.pack("<BB", 20, 3) + about
        central += struct.pack("<HHHII", 0, 0, 0, mode, place) + name.encode()
    end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 2, 2, len(central), len(local), 0)
    assert packed(files) == local + central + end


def _sizes(content: bytes) -> tuple[int, int, int]:
    return zlib.crc32(content), len(content), len(content)


@pytest.mark.parametrize("cut", [1, 21, 22, 100, 0.5, 0.99])
def test_a_truncated_archive_is_found(packed_run: Path, capsys: pytest.CaptureFixture[str], cut: float) -> None:
    content = packed_run.read_bytes()
    packed_run.write_bytes(content[: -int(cut if cut >= 1 else cut * len(content))])
    assert _code(capsys, packed_run) in (1, 2)


@pytest.mark.parametrize("more", [b"\0", b"PK\x05\x06" + bytes(18), b"and more"])
def test_more_at_either_end_is_found(packed_run: Path, capsys: pytest.CaptureFixture[str], more: bytes) -> None:
    content = packed_run.read_bytes()
    for changed in (content + more, more + content):
        packed_run.write_bytes(changed)
        assert _code(capsys, packed_run) in (1, 2)


def _rewritten(path: Path, change: Callable[[zipfile.ZipFile, dict[str, bytes]], None], how: int = 0) -> None:
    files = unpacked(path)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as opened:
        for name, content in files.items():
            opened.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, how)
        change(opened, files)
    path.write_bytes(buffer.getvalue())


@pytest.mark.parametrize(
    ("name", "words"),
    [("../evil", "no archive does"), ("/etc/evil", "no archive does"), ("seed", "no archive does"), (VOTES, "twice")],
)
def test_other_files_are_refused(packed_run: Path, name: str, words: str) -> None:
    with pytest.warns(UserWarning, match="Duplicate") if name == VOTES else contextlib.nullcontext():
        _rewritten(packed_run, lambda opened, _: opened.writestr(name, b"x"))
    (check,) = verify_evidence(packed_run).checks
    assert not check.passed
    assert words in check.detail


def test_compressed_files_are_refused(packed_run: Path) -> None:
    """So a bomb is never unpacked."""
    _rewritten(packed_run, lambda opened, files: None, zipfile.ZIP_DEFLATED)
    (check,) = verify_evidence(packed_run).checks
    assert "compressed" in check.detail


def test_a_link_is_found(packed_run: Path) -> None:
    files, buffer = unpacked(packed_run), io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as opened:
        for name, content in files.items():
            member = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            member.create_system, member.external_attr = 3, (0o120777 if name == VOTES else 0o644) << 16
            opened.writestr(member, content)
    packed_run.write_bytes(buffer.getvalue())
    assert failed(packed_run) == {"archive unchanged"}


def test_a_missing_file_is_found(packed_run: Path) -> None:
    files = unpacked(packed_run)
    del files["data.json"]
    packed_run.write_bytes(packed(files))
    (check,) = verify_evidence(packed_run).checks
    assert "data.json is missing" in check.detail


@pytest.mark.parametrize("name", LISTED)
def test_the_manifest_covers_every_file(packed_run: Path, name: str) -> None:
    files = unpacked(packed_run)
    packed_run.write_bytes(packed({**files, name: files[name] + b"\n"}))
    (check,) = verify_evidence(packed_run).checks
    assert check.detail.startswith(name)


# --- a forger who writes a new manifest -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["report.html", "mapping.html", "data.json", "configuration.json", "environment.json"])
def test_what_does_not_follow_from_the_certificate_is_found(packed_run: Path, name: str) -> None:
    """One digit that reads better, and a manifest that fits it."""
    content = unpacked(packed_run)[name]
    places = [found.start() for found in re.finditer(rb"[1-8]", content)]
    at = places[len(places) // 2]
    changed = content[:at] + bytes([content[at] + 1]) + content[at + 1 :]
    # Which versions trained and wrote it nobody else can know.
    if name == "environment.json":
        changed = content.replace(b'"devices": {}', b'"devices": {"cuda": 200}')
        assert changed != content
    assert failed(forged(packed_run, {name: changed})) == {name}


def test_a_better_certificate_is_found(packed_run: Path, tmp_path: Path) -> None:
    """With its own hash, the manifest, the pages and the data written anew to fit."""
    (tmp_path / "c.json").write_bytes(unpacked(packed_run)[CERTIFICATE])
    content = read_hashed(tmp_path / "c.json", SCHEMA)
    content = {name: value for name, value in content.items() if name not in ("schema", "size", "sha256")}
    content["radius"] = [radius + 1 for radius in content["radius"]]
    write_hashed(tmp_path / "c.json", SCHEMA, content)
    pages = evidence.derived(Certificate.load(tmp_path / "c.json"))
    found = failed(forged(packed_run, {CERTIFICATE: (tmp_path / "c.json").read_bytes(), **pages}))
    assert "radii" in found


def test_votes_of_another_run_are_found(packed_run: Path, tmp_path: Path) -> None:
    votes(data_fingerprint="another").save(tmp_path / "other.npz")
    assert failed(forged(packed_run, {VOTES: (tmp_path / "other.npz").read_bytes()})) == {"source"}


def test_other_true_labels_are_found(packed_run: Path, tmp_path: Path) -> None:
    replace(votes(), labels=np.array([0, 1, 0])).save(tmp_path / "other.npz")
    assert failed(forged(packed_run, {VOTES: (tmp_path / "other.npz").read_bytes()})) == {"source"}


def test_another_version_is_no_way_round(
    packed_run: Path, signed: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the version that wrote the pages can write them again; a key that is required can vouch for them."""
    changed = unpacked(packed_run)["report.html"].replace(b"99.9%", b"99.99%")
    assert "pages" in failed(forged(packed_run, {"report.html": changed}, made_with="0.0.9"))
    monkeypatch.setattr(evidence, "VERSION", "9.9")
    assert failed(signed) == {"pages"}
    assert failed(signed, public_key=public_part(key)) == set()


@pytest.mark.parametrize(
    "content", [b"{}", b"[]", b"no JSON", b'{"schema": "mithridate.evidence/1", "made_with": 1, "files": []}', b"\xff"]
)
def test_a_manifest_that_is_none(packed_run: Path, content: bytes) -> None:
    packed_run.write_bytes(packed({**unpacked(packed_run), MANIFEST: content}))
    assert failed(packed_run) == {"archive unchanged"}


def test_the_run_is_compared_besides(packed_run: Path, run_dir: Path, tmp_path: Path) -> None:
    assert failed(packed_run, run=run_dir) == set()
    votes(data_fingerprint="another").save(tmp_path / "other.npz")
    assert failed(packed_run, run=tmp_path / "other.npz") == {"run"}


# --- signatures -----------------------------------------------------------------------------------------------------


def test_the_signature_is_of_the_manifest(signed: Path, key: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As anyone can check who has the public key, and no mithridate."""
    from cryptography.hazmat.primitives import serialization as form

    files = unpacked(signed)
    assert list(files)[:3] == [MANIFEST, SIGNATURE, KEY]
    public: Any = form.load_pem_public_key(public_part(key).read_bytes())
    public.verify(files[SIGNATURE], files[MANIFEST])  # raises where it is not
    der = public.public_bytes(form.Encoding.DER, form.PublicFormat.SubjectPublicKeyInfo)
    said = {check["name"]: check for check in run_json(capsys, "verify", signed)["checks"]}
    assert hashlib.sha256(der).hexdigest() in said["signature"]["detail"]
    assert "PRIVATE" not in str(files)


@pytest.mark.more
def test_openssl_agrees(signed: Path, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl")
    for name, content in unpacked(signed).items():
        (tmp_path / name).write_bytes(content)
    command = next(line for line in mapping._COMMANDS if line.startswith("openssl"))
    found = subprocess.run(command.split(), cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 0, found.stderr


def test_whose_signature_it_has_to_be(packed_run: Path, signed: Path, key: Path, tmp_path: Path) -> None:
    own, other = public_part(key), public_part(new_key(tmp_path / "other.pem"))
    assert failed(signed, public_key=own) == set()
    assert failed(signed, public_key=other) == {"signature"}
    assert failed(packed_run) == set()
    assert failed(packed_run, public_key=own) == {"signature"}


def test_a_signature_of_something_else_is_found(signed: Path, key: Path, tmp_path: Path) -> None:
    """Of another manifest; by another key than the one that is stated."""
    files = unpacked(signed)
    other = signing.read_private_key(new_key(tmp_path / "other.pem"), str)
    by_other = signing.signed(files[MANIFEST], other)
    for changes in (
        {SIGNATURE: by_other.signature},
        {KEY: by_other.public_key},
        {SIGNATURE: signing.signed(b"another", signing.read_private_key(key, str)).signature},
        {SIGNATURE: b""},
        {KEY: b"no key"},
        {KEY: files[KEY] + b"\n"},
    ):
        signed.write_bytes(packed({**files, **changes}))
        assert failed(signed) == {"signature"}, changes
    # Signed anew by a stranger, it passes as the stranger's, and not as ours.
    signed.write_bytes(packed({**files, SIGNATURE: by_other.signature, KEY: by_other.public_key}))
    assert failed(signed) == set()
    assert failed(signed, public_key=public_part(key)) == {"signature"}


def test_a_forgery_without_the_key_is_found(signed: Path) -> None:
    """The manifest of a signed archive cannot be written anew."""
    changed = unpacked(signed)["environment.json"].replace(b'"python": "3', b'"python": "4')
    assert failed(forged(signed, {"environment.json": changed})) == {"signature"}


def test_a_key_with_a_password(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    locked, path = new_key(tmp_path / "locked.pem", b"open sesame"), tmp_path / "e.zip"
    monkeypatch.delenv("MITHRIDATE_KEY_PASSWORD", raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    outcome = run(capsys, "evidence", run_dir, "-o", path, "--sign", locked)
    assert (outcome.code, "MITHRIDATE_KEY_PASSWORD" in outcome.err) == (2, True)
    for password in ("a wrong one", "", "\udcff"):
        monkeypatch.setenv("MITHRIDATE_KEY_PASSWORD", password)
        outcome = run(capsys, "evidence", run_dir, "-o", path, "--sign", locked)
        assert (outcome.code, "The password does not open" in outcome.err) == (2, True), outcome.err
        assert "a wrong one" not in outcome.err
    assert not path.exists()
    monkeypatch.setenv("MITHRIDATE_KEY_PASSWORD", "open sesame")
    assert run(capsys, "evidence", run_dir, "-o", path, "--sign", locked).code == 0
    assert failed(path) == set()


def test_keys_of_another_kind(run_dir: Path, packed_run: Path, key: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec, x25519

    folder = key.parent
    others = {
        "curve.pem": _write_key(folder / "curve.pem", ec.generate_private_key(ec.SECP256R1())),
        "exchange.pem": _write_key(folder / "exchange.pem", x25519.X25519PrivateKey.generate()),
        "public": public_part(key),
        "text": packed_run,
    }
    for path in (*others.values(), folder / "none.pem"):
        outcome = run(capsys, "evidence", run_dir, "-o", folder / "e.zip", "--sign", path)
        assert outcome.code == 2
        assert outcome.err.count("\n") == 1
        assert "openssl genpkey -algorithm ed25519" in outcome.err or "no file" in outcome.err
        if path != others["public"]:
            assert run(capsys, "verify", packed_run, "--public-key", path).code == 2
    assert run(capsys, "verify", packed_run, "--public-key", key).code == 2  # a private key is nothing to hand round
    assert not (folder / "e.zip").exists()


@pytest.mark.skipif(os.name != "posix", reason="modes are of POSIX")
def test_a_key_that_others_may_read(run_dir: Path, key: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_json(capsys, "evidence", run_dir, "--sign", key)["notes"] == [
        f"There was no certificate.json in {run_dir}; it was certified, and has one now."
    ]
    key.chmod(0o644)
    (note,) = run_json(capsys, "evidence", run_dir, "--sign", key)["notes"]
    assert "chmod 600" in note


def test_without_cryptography(
    run_dir: Path,
    packed_run: Path,
    signed: Path,
    key: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is not signed works; a signature that nobody checked is not called good."""
    public = public_part(key)
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert run(capsys, "evidence", run_dir).code == 0
    assert run(capsys, "verify", packed_run).code == 0
    for words in (("verify", signed), ("verify", signed, "--public-key", public), ("evidence", run_dir, "--sign", key)):
        outcome = run(capsys, *words)
        assert outcome.code == 2
        assert "pip install 'mithridate[evidence]'" in outcome.err
        assert "holds" not in outcome.out


# --- bad input ------------------------------------------------------------------------------------------------------


def test_bad_input(
    run_dir: Path, packed_run: Path, key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    certify(Votes.from_counts([[9, 1]], mechanism=GAUSSIAN)).save(tmp_path / "other.json")
    for words, part in (
        (("evidence", tmp_path / "empty"), "There are no votes"),
        (("evidence", tmp_path / "none"), "directory of a run"),
        (("evidence", run_dir / VOTES), "directory of a run"),
        (("evidence", run_dir, "--certificate", tmp_path / "other.json"), "is not of the run"),
        (("evidence", run_dir, "--certificate", tmp_path / "none.json"), "no file"),
        (("evidence", run_dir, "--threat", "add"), "says already"),
        (("evidence", run_dir, "--failure-prob", "x"), "--failure-prob"),
        (("evidence", run_dir, "-o", tmp_path / "no" / "e.zip"), "no folder"),
        (("evidence", run_dir, "-o", run_dir / VOTES), "is read from"),
        (("evidence", run_dir, "-o", key, "--sign", key), "is read from"),
        (("verify", run_dir / VOTES), "not a mithridate.certificate file"),
        (("verify", run_dir / CERTIFICATE, "--public-key", public_part(key)), "for evidence archives"),
        (("verify", packed_run, "--run", tmp_path / "empty"), "no file"),
    ):
        outcome = run(capsys, *words)
        assert outcome.code == 2, words
        assert part in outcome.err, (words, outcome.err)
        assert outcome.err.count("\n") == 1, outcome.err


def test_a_certificate_from_before_is_refused(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of votes that are not those of the run any more."""
    certify(votes(data_fingerprint="before")).save(run_dir / CERTIFICATE)
    outcome = run(capsys, "evidence", run_dir)
    assert outcome.code == 2
    assert "mithridate certify" in outcome.err


def test_a_votes_file_is_no_archive(run_dir: Path, packed_run: Path) -> None:
    assert archive.is_archive(packed_run)
    assert not archive.is_archive(run_dir / VOTES)
    assert not archive.is_archive(run_dir / "seed")
    assert not archive.is_archive(run_dir)
    assert not archive.is_archive(run_dir / "none")


# --- the page -------------------------------------------------------------------------------------------------------


def _text(page: str) -> str:
    return " ".join(unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL)).split())


def test_the_numbers_of_the_page_are_those_of_the_certificate() -> None:
    """Counted here one prediction at a time."""
    certificate = certify(votes())
    text, truth = _text(mapping.html(certificate)), [0, 1, 1]
    radii, labels = certificate.radius.tolist(), certificate.label.tolist()
    for radius in certificate.round_radii():
        reached = [at for at in range(3) if radii[at] >= radius]
        right = [at for at in reached if labels[at] == truth[at]]
        cells = [f"{len(some)} of 3 ({len(some) / 3 * 100 // 0.1 / 10:.1f}%)" for some in (reached, right)]
        assert f"{radius} {cells[0]} {cells[1]}" in text
    assert sum(radius >= 1 for radius in radii) == 2
    assert "Of 3 predictions, 2 would stay the same if one training example was added or removed" in text
    assert "conditional on nothing" in text
    for source in ("Article 15(5)", "NIST AI 100-2", "AISVS"):
        assert source in text


def test_the_page_claims_nothing_where_nothing_is_certified() -> None:
    text = _text(mapping.html(certify(Votes.from_counts([[5, 4], [5, 4]], mechanism=GAUSSIAN))))
    assert "shown within the claim" not in text
    assert "would stay the same if" not in text
    assert "Nothing: no prediction is certified against a change of the training data." in text


def test_the_page_of_a_rule_that_is_no_guarantee() -> None:
    from mithridate import RDP

    text = _text(mapping.html(certify(votes(), method=RDP("paper"))))
    assert "shown within the claim" not in text
    assert "do not rely on them" in text


def test_conditions_units_and_encoders_are_said() -> None:
    trusted = Statement("The encoder 'e' is trusted; it is said to be trained on: <i>the web</i>.", "trusted-encoder")
    units = replace(TRAINING, units="cd" * 32)
    made = replace(votes(assumptions=(trusted,)), training=units, unit=Unit("<u>vendor</u>", 40))
    certificate = certify(made)
    page = mapping.html(certificate)
    for raw in ("<i>the web", "<u>vendor", "<b>cat"):
        assert raw not in page
    text = _text(page)
    assert "conditional on trusted-encoder" in text
    assert "shown within the claim" not in text
    assert "one <u>vendor</u> was inserted, deleted or changed" in text


def test_evasion_is_shown_only_where_a_frontier_is() -> None:
    certificate = certify(votes())
    assert "Euclidean" not in _text(mapping.html(certificate))
    status = np.stack([certificate.status] * 3)
    so_many = (
        "So many of 3 predictions are certified where the input changes by up to a Euclidean length, in pixel values"
    )
    for nearer, farther, said in ((2, -1, "1 at 0.25, 0 at 0.5"), (2, 0, "1 at 0.25, 1 at 0.5"), (-1, -1, None)):
        radius = np.stack([certificate.radius, [nearer, -1, -1], [farther, -1, -1]])
        moved = replace(certificate, frontier=Frontier((0.0, 0.25, 0.5), "pixels", radius, status))
        text = _text(mapping.html(moved))
        assert (so_many in text) == (said is not None)
        assert said is None or f"divided by 255: {said}." in text
        assert said is None or "0.25 0 1 of 3 (33.3%) 1 of 3 (33.3%)" in text


@pytest.mark.more
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    """It fits a phone and a desk, and opens in silence, whatever a vendor is called."""
    browsers = pytest.importorskip("playwright.sync_api", reason="Playwright for Python is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium; `make browser` installs it")
    made = replace(votes(), training=replace(TRAINING, units="cd" * 32), unit=Unit("supplier-" * 8, 40))
    (tmp_path / "mapping.html").write_text(mapping.html(certify(made)), encoding="utf-8")
    with browsers.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for width in (390, 1280):
            page, said = browser.new_page(viewport={"width": width, "height": 900}), list[str]()
            page.on("console", lambda message, said=said: said.append(message.text))
            page.goto((tmp_path / "mapping.html").as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert said == []
        browser.close()


# --- a run that trained ---------------------------------------------------------------------------------------------


@pytest.mark.more
def test_of_a_run_from_train_to_verify(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    x = random.normal(size=(90, 3))
    y = (x[:, 0] > 0).astype(np.int64)
    np.savez("train.npz", x=x[:60], y=y[:60])
    np.savez("test.npz", x=x[60:], y=y[60:])
    data = ["--train", "train.npz", "--test", "test.npz", "--classes", "2", "--num-train", "60"]
    for method, more in (("nearest-neighbours", ["--neighbours", "5"]), ("fdp", ["--instances", "16"])):
        assert main(["train", *data, "--method", method, *more, "--device", "cpu", "--run-dir", method]) == 0
        assert main(["evidence", method, "-o", "e.zip"]) == 0
        assert main(["verify", "e.zip", "--run", method]) == 0
        said = json.loads(unpacked(Path("e.zip"))["environment.json"])
        assert said["trained_with"]["numpy"] == np.__version__
        seed = Path(method, "seed")
        if seed.exists():
            secret = seed.read_bytes().strip()
            assert secret not in Path("e.zip").read_bytes()
            assert secret.hex().encode() not in Path("e.zip").read_bytes()


def test_what_was_unpacked_is_not_taken_for_an_archive(
    packed_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "unpacked"
    place.mkdir()
    for name, content in unpacked(packed_run).items():
        (place / name).write_bytes(content)
    assert "that was unpacked" in refused(capsys, "verify", place)
    assert "there is no file of that name" in refused(
        capsys, "verify", tmp_path / "gone.zip", "--public-key", tmp_path / "k.pem"
    )
