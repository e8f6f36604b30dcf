"""`mithridate evidence`: what a run shows, in one archive for those who ask."""

import argparse
import getpass
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from mithridate.cli import _shared
from mithridate.core.mechanism import Threat
from mithridate.errors import ConfigError

_EXAMPLES = """examples:
  mithridate evidence runs/mine -o evidence.zip
  mithridate evidence runs/mine -o evidence.zip --sign key.pem
  openssl genpkey -algorithm ed25519 -out key.pem              makes a key
  openssl pkey -in key.pem -pubout -out public-key.pem         its public part, for those who verify

A run that has no certificate.json is certified first, as `mithridate certify RUN_DIR` does. The seed of the run, its
models and its training data stay where they are.
"""
_PASSWORD = "MITHRIDATE_KEY_PASSWORD"


def add_evidence(command: _shared.NewCommand) -> None:
    """Register `mithridate evidence`."""
    parser = command(
        help="put what a run shows into one archive that anyone can check",
        description="Write one archive, signed if you like: certificate, votes, report, configuration, environment, "
        "hashes of data and encoder, and a page that says what all of it is evidence for and what not.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="directory of a finished run")
    parser.add_argument(
        "-o", "--out", metavar="FILE.zip", type=Path, help="where it goes (default: evidence.zip in RUN_DIR)"
    )
    parser.add_argument("--sign", metavar="KEY.pem", type=Path, help="sign it with this Ed25519 private key")
    parser.add_argument(
        "--certificate", metavar="FILE", type=Path, help="certificate of the run (default: certificate.json in RUN_DIR)"
    )
    group = parser.add_argument_group("claim (of a run that has no certificate yet; see certify)")
    group.add_argument(
        "--threat", choices=[threat.value for threat in Threat], help="what an attacker may have done, r times"
    )
    group.add_argument(
        "--failure-prob", type=float, metavar="P", help="probability with which a claim may fail, over training (0.001)"
    )


def run_evidence(arguments: argparse.Namespace) -> int:
    """Write the archive and say what is in it."""
    # Imported here because what checks a run needs more of scipy than the other commands should wait for.
    from mithridate.attesting.archive import KEY
    from mithridate.attesting.evidence import write_evidence
    from mithridate.attesting.signing import fingerprint_of, read_private_key

    out = arguments.run_dir / "evidence.zip" if arguments.out is None else arguments.out
    if not os.path.isdir(arguments.run_dir):
        raise ConfigError(f"Expected the directory of a run, got {arguments.run_dir}; give what train wrote.")
    _shared.check_writable(out)
    read = (arguments.run_dir / name for name in ("certificate.json", "votes.npz", "run.json"))
    _shared.check_apart(out, arguments.sign, arguments.certificate, *read)
    key = None if arguments.sign is None else read_private_key(arguments.sign, lambda: _password(arguments.sign))
    notes = [] if arguments.sign is None else _about_key(arguments.sign)
    certificate, said = _certificate(arguments)
    files = write_evidence(out, arguments.run_dir, certificate, key=key)
    signed_by = None if key is None else fingerprint_of(files[KEY])
    _tell(arguments, out, files, signed_by, (*notes, *said))
    return 0


def _certificate(arguments: argparse.Namespace) -> tuple[Path, list[str]]:
    """The file of the certificate, which is written where there is none, and what was decided for it."""
    from mithridate.cli.certifying import certified_run

    path = arguments.run_dir / "certificate.json" if arguments.certificate is None else arguments.certificate
    given = {"--threat": arguments.threat, "--failure-prob": arguments.failure_prob}
    flags = [f"{flag}={value}" for flag, value in given.items() if value is not None]
    if arguments.certificate is None and not os.path.exists(path):
        certified_run(arguments.run_dir, flags)
        return path, [f"There was no certificate.json in {arguments.run_dir}; it was certified, and has one now."]
    if flags:
        again = f"mithridate certify {shlex.quote(str(arguments.run_dir))} {' '.join(flags)}"
        raise ConfigError(f"{path} says already what is claimed; leave {flags[0]} out, or certify again: {again}")
    return path, []


def _password(path: Path) -> str:
    """The password of a key: that of the environment, else what is typed unseen."""
    said = os.environ.get(_PASSWORD)
    if said is not None:
        return said
    if not sys.stdin.isatty():
        raise ConfigError(f"The key in {path} has a password; set {_PASSWORD}, or run this in a terminal, which asks.")
    try:
        return getpass.getpass(f"Password of {path}: ")
    except EOFError:
        return ""


def _about_key(path: Path) -> list[str]:
    """Whether others may read a private key."""
    if os.name != "posix" or not path.stat().st_mode & 0o077:
        return []
    return [f"Others on this computer may read or write {path}; run: chmod 600 {shlex.quote(str(path))}"]


def _tell(
    arguments: argparse.Namespace, out: Path, files: dict[str, bytes], signed_by: str | None, notes: tuple[str, ...]
) -> None:
    """What was written, for programs or for people."""
    if arguments.json:
        found: dict[str, Any] = {
            "schema": "mithridate.evidence-written/1",
            "evidence": str(out),
            "files": sorted(files),
        }
        _shared.print_json({**found, "signed_by": signed_by, "notes": list(notes)})
        return
    console = _shared.console()
    for sentence in notes:
        console.print(f"Note: {sentence}", soft_wrap=True)
    who = "not signed" if signed_by is None else f"signed by the key with the SHA-256 {signed_by}"
    console.print(f"{len(files)} files, {who}.", soft_wrap=True)
    console.print(
        f"Written to {out}; check it with: mithridate verify {shlex.quote(str(out))}",
        soft_wrap=True,
    )
