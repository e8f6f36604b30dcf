"""`mithridate gate`: pass or fail in continuous integration, by what a certificate claims."""

import argparse
import time
from pathlib import Path

from mithridate._io.files import write_atomically
from mithridate._text import one_line
from mithridate.auditing.gating import MAX_FAILURE_PROB, Gate, gate
from mithridate.cli import _shared

_EXAMPLES = """examples:
  mithridate gate certificate.json --certified-accuracy 0.80 --at 20
  mithridate gate runs/mine --certified-accuracy 0.9 --at 0 --certified-accuracy 0.8 --at 20
  mithridate gate certificate.json --certified-accuracy 0.80 --at 20 --allow-conditional class-list --junit gate.xml

exit status: 0 everything that is wanted is there, 1 something is not, 2 the file or a flag cannot be understood

A gate believes the certificate: run mithridate verify on it first.
"""


def add_gate(command: _shared.NewCommand) -> None:
    """Register `mithridate gate`."""
    parser = command(
        help="pass or fail by what a certificate claims, for CI",
        description="Pass if enough test inputs are correct and certified, and nothing else weakens the certificate.",
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "certificate",
        metavar="RUN_DIR_OR_CERTIFICATE",
        type=Path,
        help="directory of a run that was certified, or file written by certify --out",
    )
    parser.add_argument(
        "--certified-accuracy",
        action="append",
        required=True,
        metavar="SHARE",
        help="least share of the test inputs that are correct and certified at least to --at, such as 0.80; may come "
        "several times, each with an --at",
    )
    parser.add_argument(
        "--at", action="append", required=True, type=int, metavar="R", help="the radius of --certified-accuracy"
    )
    parser.add_argument(
        "--balanced", action="store_true", help="take the share within each class, and the mean over the classes"
    )
    parser.add_argument(
        "--allow-conditional",
        action="extend",
        default=[],
        type=_ids,
        metavar="ID,...",
        help="conditions that the certificate may have, by their ids, such as class-list",
    )
    parser.add_argument(
        "--input-change",
        type=float,
        metavar="E",
        help="how far inputs may move besides, one of the distances of the certificate (the smallest)",
    )
    parser.add_argument(
        "--threat", metavar="T", help="what the certificate has to be against, such as symmetric-difference"
    )
    parser.add_argument(
        "--max-failure-prob",
        type=float,
        default=MAX_FAILURE_PROB,
        metavar="P",
        help="the largest probability with which a claim may fail (%(default)g)",
    )
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML, a test case for every check")


def run_gate(arguments: argparse.Namespace) -> int:
    """Judge and print."""
    source, junit = arguments.certificate, arguments.junit
    if junit is not None:
        _shared.check_writable(junit)
        _shared.check_apart(junit, source, source / "certificate.json", source / "votes.npz")
    start = time.perf_counter()
    outcome = gate(
        source,
        certified_accuracy=arguments.certified_accuracy,
        at=arguments.at,
        balanced=arguments.balanced,
        allow_conditional=arguments.allow_conditional,
        input_change=arguments.input_change,
        threat=arguments.threat,
        max_failure_prob=arguments.max_failure_prob,
    )
    if junit is not None:
        content = outcome.to_junit(name=f"mithridate gate {source}", seconds=time.perf_counter() - start)
        with write_atomically(junit) as file:
            file.write(content.encode())
    if arguments.json:
        _shared.print_json(outcome.to_dict())
    else:
        _print(outcome)
    return 0 if outcome.passed else 1


def _print(outcome: Gate) -> None:
    console = _shared.console()
    for check in outcome.checks:
        console.print(f"{'✓' if check.passed else '✗'} {check.name}: {one_line(check.detail)}")
    console.print(f"The certificate is against {outcome.threat}.")
    console.print("The gate is passed." if outcome.passed else "The gate is NOT passed.")
    _shared.print_conditions(console, outcome.conditions)


def _ids(text: str) -> list[str]:
    ids = [each.strip() for each in text.split(",")]
    if not all(ids):
        raise argparse.ArgumentTypeError(f"expected ids such as class-list,seed-known, got {text!r}")
    return ids
