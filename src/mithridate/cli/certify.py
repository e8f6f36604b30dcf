"""`mithridate certify`: from votes to certified radii."""

import argparse
import os
import shlex
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from mithridate._text import counted
from mithridate.certifying.advice import advise
from mithridate.certifying.certification import certify
from mithridate.cli import _options, _output
from mithridate.core.bounds import SCORE_BOUNDS, VOTE_BOUNDS
from mithridate.core.certificate import Certificate, Scope, Status, confidence
from mithridate.core.votes import Votes, read_votes
from mithridate.defences.registry import defence, kind_of, names
from mithridate.defences.statistical import StatisticalBound
from mithridate.errors import ArtifactError, ConfigError
from mithridate.reporting import sentences as words

_EXAMPLES = """examples:
  mithridate certify runs/mnist
  mithridate certify counts.csv --noise-multiplier 3 --sample-rate 0.001 --steps 1000
  mithridate certify votes.npz --labels-key y --radii 0,50,100 --out certificate.json
"""


def add_to(commands: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "certify",
        help="certify predictions from vote counts",
        description="Certify the label of every example from votes: of many private models, or of another defence.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "votes",
        metavar="RUN_DIR_OR_VOTES",
        type=Path,
        help="directory of a finished run, or a votes file: .npz with an array 'counts', or CSV",
    )
    _options.add_mechanism(parser, required=False)
    _options.add_method(parser)
    _options.add_claim(parser)
    parser.add_argument(
        "--scope",
        choices=[s.value for s in Scope],
        default="prediction",
        help="what may fail: one prediction, or any of all",
    )
    parser.add_argument(
        "--on",
        choices=("votes", "scores"),
        help="certify the majority label, or the label with the largest mean score (votes, or as trained)",
    )
    parser.add_argument(
        "--bounds",
        choices=(*VOTE_BOUNDS, *SCORE_BOUNDS),
        help="confidence bounds; votes: simultaneous (default), simuem, pointwise (not simultaneous, for reproduction "
        "only); scores: empirical-bernstein (default), hoeffding, betting (needs histograms)",
    )
    parser.add_argument("--labels-key", metavar="NAME", help="array of true labels in the .npz, for certified accuracy")
    parser.add_argument("--radii", type=radii_of, metavar="R,R,...", help="radii at which to report, e.g. 0,50,100")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="write the certificate, for mithridate verify (RUN_DIR/certificate.json)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Certify and print."""
    if os.path.isdir(arguments.votes):
        _take_run(arguments)
    if arguments.out is not None:
        _output.check_writable(arguments.out)
        if (
            os.path.exists(arguments.out)
            and os.path.exists(arguments.votes)
            and arguments.out.samefile(arguments.votes)
        ):
            raise ConfigError(f"--out would overwrite the votes in {arguments.votes}; give another name.")
    method = _options.method_from(arguments)
    votes = read_votes(arguments.votes, mechanism=_options.mechanism_from(arguments), labels_key=arguments.labels_key)
    with _output.progress_bar("certifying") as progress:
        certificate = certify(
            votes,
            method=method,
            threat=arguments.threat,
            failure_prob=arguments.failure_prob,
            on=arguments.on or recorded(votes).get("on", "votes"),
            bounds=arguments.bounds,
            scope=arguments.scope,
            progress=progress,
        )
    if arguments.out is not None:
        certificate.save(arguments.out)
    average = None if arguments.method is not None else _on_average(votes, arguments)
    if arguments.json:
        bound = {} if average is None else {"on_average": average.to_dict()}
        _output.print_json({**certificate.to_dict(radii=arguments.radii), **bound})
    else:
        _print(_output.console(), certificate, arguments, average)
    return 0


def recorded(votes: Votes) -> dict[str, Any]:
    """The constants of the defence that votes record; none where they do not, or record something else."""
    found = (votes.recipe or {}).get("defence")
    return found if isinstance(found, dict) else {}


def _on_average(votes: Votes, arguments: argparse.Namespace) -> StatisticalBound | None:
    """What a method that speaks of all predictions on average says, beside the certificate of each."""
    said = recorded(votes)
    if said.get("name") not in names() or kind_of(str(said["name"])).per_prediction:
        return None
    found = defence(str(said["name"]), **{name: value for name, value in said.items() if name == "delta"})
    if votes.labels is None:
        return None
    bound = found.certify(votes, threat=arguments.threat, failure_prob=arguments.failure_prob)
    return bound if isinstance(bound, StatisticalBound) else None


def _take_run(arguments: argparse.Namespace) -> None:
    """Put the files of a run in the place of its directory."""
    folder: Path = arguments.votes
    arguments.votes = folder / "votes.npz"
    if not arguments.votes.is_file():
        started = (folder / "run.json").is_file()
        remedy = "it is not finished; run its `mithridate train` again" if started else "give that of a finished run"
        parts = sorted((folder / "parts").glob("*.npz"))
        if parts:
            remedy = f"it has parts of a run; put all into one file (mithridate merge), or certify one ({parts[0]})"
        raise ArtifactError(f"There are no votes in {folder}: {remedy}.")
    if arguments.out is None:
        arguments.out = folder / "certificate.json"


def _print(
    console: Console, certificate: Certificate, arguments: argparse.Namespace, average: StatisticalBound | None
) -> None:
    opening = words.one_label(certificate)  # with the baseline
    for sentence in opening:
        console.print(sentence)
    console.print(_table(certificate, arguments.radii or certificate.round_radii()))
    for sentence in (
        *([] if opening else words.baseline_sentence(certificate.votes)),
        *words.not_above_baseline(certificate),
        *_sentences(certificate),
        *(
            f"To certify more: {sentence}"
            for sentence in words.weaknesses(certificate, advise(certificate, methods=()))
        ),
    ):
        console.print(sentence)
    if average is not None:
        radii = arguments.radii or certificate.round_radii()
        bounds = zip(radii, average.accuracy(radii).tolist(), strict=True)
        shares = ", ".join(f"{_output.percent(share)} at r = {radius}" for radius, share in bounds)
        console.print(f"On average over training, one model stays correct on at least {shares}.")
    if arguments.out is not None:
        command = f"mithridate verify {shlex.quote(str(arguments.out))}"
        console.print(f"Written to {arguments.out}; check it with: {command}", soft_wrap=True)
    _output.print_conditions(console, certificate.conditions)


def _table(certificate: Certificate, radii: list[int]) -> Table:
    """Shares by radius: of what is correct, too, where that is known; a constant answer is certified as well."""
    count = certificate.votes.examples
    table = Table(title=f"{counted(count, 'prediction')}, {certificate.votes.tally}")
    if certificate.votes.labels is None:
        columns = {"certified": [float(np.mean(certificate.radius >= radius)) for radius in radii]}
    else:
        shares, balanced = certificate.accuracy(None, radii), certificate.balanced_accuracy(None, radii)
        columns = {"correct and certified": shares.tolist(), "mean over classes": balanced.tolist()}
    for name in ("radius", *columns):
        table.add_column(name, justify="right")
    table.add_column("")
    for radius, row in zip(radii, zip(*columns.values(), strict=True), strict=True):
        table.add_row(str(radius), *map(_output.percent, row), _output.bar(row[0]))
    return table


def _sentences(certificate: Certificate) -> list[str]:
    half, best = words.radius_reached_by(certificate, 0.5), int(words.counted_radii(certificate).max())
    sentences = [f"Threat: {certificate.threat.in_words}."]
    if half >= 0:
        which = "stay" if certificate.votes.labels is None else "are correct and stay"
        sentences.append(
            f"Half of the predictions {which} the same for every such change up to r = {half}, the best to {best}."
        )
    sentences.append(f"{words.how(certificate)}; {confidence(certificate)}.")
    for status in Status:
        number = int((certificate.status == status.value).sum())
        if number and status is not Status.CERTIFIED:
            sentences.append(f"{status.value}: {number:,}. {status.sentence}")
    return [*sentences, *words.particular_assumptions(certificate)]


def radii_of(text: str) -> list[int]:
    """Radii from a list with commas, for a flag."""
    try:
        radii = [int(part) for part in text.split(",")]
    except ValueError:
        radii = [-1]
    if min(radii) < 0:
        raise argparse.ArgumentTypeError(f"expected whole numbers of 0 or more such as 0,50,100, got {text!r}")
    return radii
