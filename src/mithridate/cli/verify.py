"""`mithridate verify`: a certificate computed again, by another route."""

import argparse
from pathlib import Path
from typing import Any

from mithridate.cli import _output

_EXAMPLES = """example:
  mithridate verify certificate.json
  mithridate verify runs/mine/certificate.json --run runs/mine      the same, and that it is of this very run

exit status: 0 everything holds, 1 something does not hold or was changed, 2 the file cannot be read
"""


def add_to(commands: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "verify",
        help="recompute a certificate by another route",
        description="Recompute a saved certificate by a different, slower route and say line by line what holds.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("certificate", metavar="CERTIFICATE", type=Path, help="file written by certify --out")
    parser.add_argument(
        "--run",
        dest="source",
        metavar="RUN_DIR_OR_VOTES",
        type=Path,
        help="also compare counts, mechanism, recipe, fingerprint, size and conditions with the run, or the votes "
        "file, that was certified; without it they are believed as the certificate has them",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Verify and print."""
    # Imported here because the second route needs more of scipy than the other commands should wait for.
    from mithridate.auditing.verification import verify

    with _output.progress_bar("radii checked") as progress:
        outcome = verify(arguments.certificate, run=arguments.source, progress=progress)
    if arguments.json:
        _output.print_json(outcome.to_dict())
    else:
        console = _output.console()
        for check in outcome.checks:
            console.print(f"{'✓' if check.passed else '✗'} {check.name}: {_output.one_line(check.detail)}")
        conditions = {str(each): each.id for each in outcome.conditions}
        for assumption in outcome.assumptions:
            said = f"Condition {conditions[str(assumption)]}" if str(assumption) in conditions else "Assumed"
            console.print(f"{said}: {_output.one_line(assumption)}")
        console.print(
            "The certificate holds, under these assumptions." if outcome.valid else "The certificate does NOT hold."
        )
        _output.print_conditions(console, outcome.conditions)
    return 0 if outcome.valid else 1
