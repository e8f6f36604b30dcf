"""`mithridate report` and `verify`: a page worth showing about what was certified, and a second look at the claim."""

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from mithridate._io.artifacts import read_npz
from mithridate._progress import progress_bar
from mithridate._text import one_line
from mithridate.certifying.certification import certify
from mithridate.cli import _shared
from mithridate.core.certificate import Certificate
from mithridate.core.conditions import explained
from mithridate.core.votes import Votes
from mithridate.errors import ArtifactError, ConfigError, MithridateError
from mithridate.reporting import FORMATS, Report
from mithridate.reporting import sentences as words
from mithridate.reporting.rendering import checked_pictures
from mithridate.reporting.report import checked_point_names, format_of

if TYPE_CHECKING:
    from mithridate.auditing.verification import Verification

_REPORT_EXAMPLES = """examples:
  mithridate report runs/mnist
  mithridate report certificate.json -o report.html --inputs mnist-test.npz --title "Digits of our customers"
  mithridate report certificate.json --format md -o -
"""
_VERIFY_EXAMPLES = """examples:
  mithridate verify certificate.json
  mithridate verify runs/mine                               that of the run, and that it is of this very run
  mithridate verify certificate.json --run votes.npz        the same for a certificate and votes from elsewhere
  mithridate verify evidence.zip --public-key vendor.pem    all of an evidence archive, and whose signature it has

exit status: 0 everything holds, 1 something does not hold or was changed, 2 the file cannot be read
"""


def add_report(command: _shared.NewCommand) -> None:
    """Register `mithridate report`."""
    parser = command(
        help="write a report about a run or a certificate",
        description="Write one self-contained page (or Markdown, JSON, SVG, PNG) about what was certified.",
        epilog=_REPORT_EXAMPLES,
    )
    parser.add_argument(
        "source", metavar="RUN_DIR_OR_CERTIFICATE", type=Path, help="directory of a run, or a saved certificate"
    )
    parser.add_argument(
        "-o", "--out", metavar="FILE", help="where it goes (default: report.html beside the source; - for the screen)"
    )
    parser.add_argument(
        "--format", choices=FORMATS, help="form of the report (default: by the name of FILE, else html)"
    )
    parser.add_argument(
        "--inputs",
        type=Path,
        metavar="FILE.npz",
        help="pictures of the points (array x of 8-bit images), their names (array ids of strings), or both",
    )
    parser.add_argument("--title", metavar="T", help="title of the page")


def run_report(arguments: argparse.Namespace) -> int:
    """Write the report and say where it is."""
    if arguments.out == "-":
        return _print(arguments)
    path, format = _destination(arguments)
    report, notes = _report(arguments)
    report.write(path, format)
    if arguments.json:
        _shared.print_json(_summary(report, path, format, notes))
        return 0
    console = _shared.console()
    console.print(report.headline)
    # Conditions have lines of their own, and the last line says what lifts them.
    weak = [each for each in report.warnings if each not in map(one_line, explained(report.certificate.conditions))]
    said = words.particular_assumptions(report.certificate)
    for sentence in dict.fromkeys((*(f"Note: {each}" for each in (*weak, *notes)), *said)):
        console.print(sentence)
    console.print(f"Written to {path}", soft_wrap=True)
    _shared.print_conditions(console, report.certificate.conditions)
    return 0


def _print(arguments: argparse.Namespace) -> int:
    format = arguments.format or "md"
    if format == "png":
        raise ConfigError("A PNG does not go on the screen; give a file with -o.")
    if arguments.json:
        raise ConfigError("With -o - the report itself is printed; use --format json, or leave --json out.")
    report, notes = _report(arguments)
    for sentence in notes:
        print(f"Note: {sentence}", file=sys.stderr)
    # As bytes: a screen that cannot show a character must not spoil the file it is redirected to.
    sys.stdout.flush()
    sys.stdout.buffer.write(report.rendered(format))
    sys.stdout.flush()
    return 0


def _destination(arguments: argparse.Namespace) -> tuple[Path, str]:
    """Where the report goes and in which form, checked before anything is computed."""
    source: Path = arguments.source
    if arguments.out is None:
        format = arguments.format or "html"
        path = (source if os.path.isdir(source) else source.parent) / f"report.{format}"
    else:
        path = Path(arguments.out)
        format = arguments.format or format_of(path)
    _shared.check_writable(path)
    for other in (source, source / "votes.npz", source / "certificate.json", source / "inputs.npz", arguments.inputs):
        if _shared.is_same(path, other):
            raise ConfigError(f"The report would overwrite {other}; give another name with -o.")
    return path, format


def _report(arguments: argparse.Namespace) -> tuple[Report, tuple[str, ...]]:
    """The report, and what was decided or left out on the way."""
    certificate, commands, notes = _claim(arguments.source)
    about, left_out = _about_points(arguments.inputs, arguments.source / "inputs.npz", certificate.votes.examples)
    with progress_bar("methods compared") as progress:
        report = certificate.report(title=arguments.title, check_with=commands, progress=progress, **about)
    return report, (*notes, *left_out)


def _claim(source: Path) -> tuple[Certificate, tuple[str, ...], tuple[str, ...]]:
    """The certificate of a file or a run, the commands that check it, and what was decided for it."""
    is_run = os.path.isdir(source)
    path, votes = (source / "certificate.json", source / "votes.npz") if is_run else (source, source)
    verify = f"mithridate verify {shlex.quote(str(path))}"
    if not is_run or os.path.isfile(path):
        certificate = Certificate.load(path)
        if is_run and os.path.isfile(votes):
            # Imported here because the second route needs more of scipy than the other commands should wait for.
            from mithridate.auditing.verification import check_is_of

            check_is_of(certificate, source)
        return certificate, (verify,), ()
    if not os.path.isfile(votes):
        raise ArtifactError(
            f"{source} holds neither certificate.json nor votes.npz; give the directory of a finished run, or a "
            "certificate."
        )
    with progress_bar("certifying") as progress:
        certificate = certify(Votes.load(votes), progress=progress)
    command = f"mithridate certify {shlex.quote(str(votes))} --out {shlex.quote(str(path))}"
    note = f"There is no {path.name} in {source}, so its votes were certified with the defaults."
    return certificate, (command, verify), (note,)


def _about_points(given: Path | None, beside: Path, points: int) -> tuple[dict[str, Any], list[str]]:
    """Pictures and names of the points, and why some are left out.

    A file that the user named must fit; what lies beside a run is used where it does.
    """
    about, left_out = dict[str, Any](), list[str]()
    if given is None and not os.path.isfile(beside):
        return about, left_out
    path = given or beside
    try:
        arrays = read_npz(path, "an array 'x' of 8-bit images or an array 'ids' of names")
        if not {"x", "ids"} & set(arrays):
            raise ArtifactError(
                f"{path} has no array 'x' and no array 'ids'; save the pictures of the points as x, or their names as "
                "ids."
            )
    except MithridateError as error:
        if given is not None:
            raise
        return about, [f"No pictures and no names: {error}"]
    for name, argument, checked in (("x", "pictures", checked_pictures), ("ids", "point_names", _checked_ids)):
        try:
            if name in arrays:
                about[argument] = checked(arrays[name], points)
        except ConfigError as error:
            if given is not None:
                raise ConfigError(f"{path}: {error}") from error
            left_out.append(f"No {argument.removeprefix('point_')}: {path}: {error}")
    return about, left_out


def _checked_ids(ids: npt.NDArray[Any], points: int) -> tuple[str, ...]:
    if ids.dtype.kind != "U" or ids.ndim != 1:
        raise ConfigError(
            f"Expected 'ids' as one string for each point, got {ids.dtype} of shape {ids.shape}; save "
            "np.array(names, dtype=str)."
        )
    return checked_point_names(ids.tolist(), points)


def _summary(report: Report, path: Path, format: str, notes: tuple[str, ...]) -> dict[str, Any]:
    content = report.to_dict()
    return {
        "report": str(path),
        "format": format,
        "headline": content["headline"],
        "claim": content["claim"],
        "summary": content["summary"],
        "warnings": content["warnings"],
        "notes": list(notes),
        "pictures": len(report.pictures),
        "check_with": list(report.check_with),
    }


def add_verify(command: _shared.NewCommand) -> None:
    """Register `mithridate verify`."""
    parser = command(
        help="recompute a certificate by another route",
        description="Recompute a saved certificate by a different, slower route and say line by line what holds.",
        epilog=_VERIFY_EXAMPLES,
    )
    parser.add_argument(
        "certificate",
        metavar="RUN_DIR_OR_CERTIFICATE",
        type=Path,
        help="directory of a run that was certified, file written by certify --out, or archive written by evidence",
    )
    parser.add_argument(
        "--run",
        dest="source",
        metavar="RUN_DIR_OR_VOTES",
        type=Path,
        help="also compare counts, mechanism, recipe, data, inputs, size and conditions with the run, or the votes "
        "file, that was certified (RUN_DIR); without it they are believed as the certificate has them",
    )
    parser.add_argument(
        "--public-key",
        type=Path,
        metavar="FILE.pem",
        help="of an evidence archive: the Ed25519 key by which it has to be signed",
    )


def run_verify(arguments: argparse.Namespace) -> int:
    """Verify and print."""
    # Imported here because the second route needs more of scipy than the other commands should wait for.
    from mithridate.attesting.archive import is_archive

    is_evidence = is_archive(arguments.certificate)
    outcome = _verified_evidence(arguments) if is_evidence else _verified(arguments)
    if arguments.json:
        _shared.print_json(outcome.to_dict())
    else:
        console = _shared.console()
        for check in outcome.checks:
            console.print(f"{'✓' if check.passed else '✗'} {check.name}: {one_line(check.detail)}")
        conditions = {str(each): each.id for each in outcome.conditions}
        for assumption in outcome.assumptions:
            said = f"Condition {conditions[str(assumption)]}" if str(assumption) in conditions else "Assumed"
            console.print(f"{said}: {one_line(assumption)}")
        what = "evidence" if is_evidence else "certificate"
        holds = f"The {what} holds, under these assumptions{_unless_signed(outcome)}."
        console.print(holds if outcome.valid else f"The {what} does NOT hold.")
        _shared.print_conditions(console, outcome.conditions)
    return 0 if outcome.valid else 1


def _unless_signed(outcome: "Verification") -> str:
    """That nobody signed the evidence, as the end of a sentence; empty for a certificate, which has no signature."""
    from mithridate.attesting.evidence import NOT_SIGNED

    unsigned = any(each.name == "signature" and each.detail.startswith(NOT_SIGNED) for each in outcome.checks)
    return ", but it is not signed" if unsigned else ""


def _verified(arguments: argparse.Namespace) -> "Verification":
    from mithridate.attesting.archive import MANIFEST
    from mithridate.auditing.verification import verify

    given = arguments.certificate
    if arguments.public_key is not None and os.path.exists(given):
        raise ConfigError(
            f"--public-key is for evidence archives, and {given} is none: nothing in it is signed. Give the archive "
            "that mithridate evidence wrote."
        )
    if os.path.exists(given / MANIFEST):
        raise ConfigError(
            f"{given} is an evidence archive that was unpacked, and only the archive itself can be checked as a whole. "
            "Give that, or one file: its certificate.json."
        )
    with progress_bar("claims checked") as progress:
        return verify(arguments.certificate, run=arguments.source, progress=progress)


def _verified_evidence(arguments: argparse.Namespace) -> "Verification":
    from mithridate.attesting.evidence import verify_evidence

    with progress_bar("claims checked") as progress:
        return verify_evidence(
            arguments.certificate, run=arguments.source, public_key=arguments.public_key, progress=progress
        )
