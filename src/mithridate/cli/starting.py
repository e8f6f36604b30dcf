"""`mithridate demo` and `init`: everything at once on real data, and a commented project file for your own."""

import argparse
import os
import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mithridate._io.files import write_atomically
from mithridate._progress import progress_bar
from mithridate._text import percent, plural
from mithridate.accounting import FDP
from mithridate.certifying.certification import certify
from mithridate.cli import _ending, _shared
from mithridate.cli.train import carried_out, device_type, runtime_for
from mithridate.core.certificate import Certificate
from mithridate.core.conditions import in_json
from mithridate.data import look, read
from mithridate.data.looking import Remark, in_few_lines
from mithridate.data.named import NAMES, load_named
from mithridate.data.proposing import Proposal
from mithridate.defences import defence
from mithridate.defences.automatic import too_few
from mithridate.errors import ConfigError
from mithridate.projects import HOLDOUT, project_toml
from mithridate.reporting import Report
from mithridate.reporting import sentences as words
from mithridate.training.order import compose

_DEMO_EXAMPLES = """examples:
  mithridate demo
  mithridate demo --dataset mnist --data-dir data
"""
_INIT_EXAMPLES = """examples:
  mithridate init flowers.csv --label kind -o flowers.toml
  mithridate init photos/ --test more-photos/ -o photos.toml
  mithridate init reviews.csv --label stars --unit author -o reviews.toml
  mithridate train flowers.toml
"""


def add_demo(command: _shared.NewCommand) -> None:
    """Register `mithridate demo`."""
    parser = command(
        help="train, certify and report on real data",
        description="Train an ensemble on well-known data, certify its predictions, compare the methods, and write a "
        "report. The digits come with scikit-learn; the others are found in --data-dir or in the folder that "
        "MITHRIDATE_DATA names, or downloaded once.",
        epilog=_DEMO_EXAMPLES,
    )
    parser.add_argument("--dataset", choices=NAMES, default=NAMES[0], help="what to train on (digits)")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="folder with the files of the data set")
    parser.add_argument("--instances", type=int, metavar="P", default=1000, help="number of models that vote (1000)")
    parser.add_argument("--device", default="auto", metavar="NAME", help="cpu, cuda, mps or auto")
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="where the run is kept (runs/demo-DATASET)")
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        default=Path("report.html"),
        help="where the report goes (report.html)",
    )


def run_demo(arguments: argparse.Namespace) -> int:
    """Train, certify, compare, report."""
    begin = time.monotonic()
    run_dir = arguments.run_dir or Path("runs") / f"demo-{arguments.dataset}"
    _shared.check_writable(arguments.out)
    console = _shared.console(error=arguments.json)
    with progress_bar("downloading") as progress:
        training, test = load_named(arguments.dataset, data_dir=arguments.data_dir, progress=progress)
    console.print(f"{arguments.dataset}: {len(training.x):,} images to train on, {len(test.x):,} to predict.")
    _ending.kept_in(run_dir)
    # The number of training examples of a published data set is public.
    wanted = defence("fdp", instances=arguments.instances, num_train=len(training.x))
    order = compose(wanted, training, test, device=device_type(arguments.device))
    console.print(order.choice.words)
    votes, _ = carried_out(order, runtime_for(order, run_dir, {"device": arguments.device}, None))
    with progress_bar("certifying") as progress:
        certificate = certify(votes, method=FDP(), progress=progress)
    certificate.save(run_dir / "certificate.json")
    with progress_bar("methods compared") as progress:
        report = certificate.report(
            pictures=test.x,
            title=f"{arguments.dataset}: certified predictions",
            certificate_path=run_dir / "certificate.json",
            progress=progress,
        )
    path = arguments.out.absolute()
    report.write(path)
    if arguments.json:
        _shared.print_json(_summary(report, certificate, path, run_dir, time.monotonic() - begin))
    else:
        _print(console, report, certificate, path, run_dir)
    return 0


def _print(console: Console, report: Report, certificate: Certificate, path: Path, run_dir: Path) -> None:
    """How the methods compare, and where everything is."""
    radii = certificate.round_radii()
    table = Table(title="predictions that are correct, and certified to stay the same for up to r changes")
    table.add_column("method")
    for radius in radii:
        table.add_column(f"r = {radius}", justify="right")
    for each, curve in zip(report.certificates, report.curves, strict=True):
        counts = curve.at(curve.shown, radii).tolist()
        table.add_row(each.method.in_words(), *(percent(count, curve.total) for count in counts))
    known = words.baseline(certificate)
    if known is not None:
        table.add_row("baseline", *(percent(known.count, known.total) for _ in radii))
    console.print(table)
    console.print(report.headline)
    for sentence in (*(f"Note: {each}" for each in report.advice.left_out), *words.particular_assumptions(certificate)):
        console.print(sentence)
    folder = shlex.quote(str(run_dir))
    console.print(f"The report is in {path}; open it in a browser.", soft_wrap=True)
    console.print(f"The certificate: mithridate verify {folder}/certificate.json", soft_wrap=True)
    _shared.print_conditions(console, certificate.conditions)


def _summary(report: Report, certificate: Certificate, path: Path, run_dir: Path, seconds: float) -> dict[str, Any]:
    radii = certificate.round_radii()
    return {
        "report": str(path),
        "certificate": str(run_dir / "certificate.json"),
        "votes": str(run_dir / "votes.npz"),
        "headline": report.headline,
        "accuracy": report.accuracy,
        "summary": certificate.summary(),
        "radii": radii,
        "certified_accuracy": {
            each.method.in_words(): (curve.at(curve.shown, radii) / curve.total).tolist()
            for each, curve in zip(report.certificates, report.curves, strict=True)
        },
        "certified_balanced_accuracy": {
            each.method.in_words(): each.balanced_accuracy(None, radii).tolist() for each in report.certificates
        },
        "warnings": list(report.warnings),
        **in_json(certificate.assumptions, certificate.threat),
        "seconds": seconds,
    }


def add_init(command: _shared.NewCommand) -> None:
    """Register `mithridate init`."""
    parser = command(
        help="write a commented configuration for your data",
        description="Look at a table, a folder of images or arrays, say what there is to see, and propose how to read "
        "them. What is proposed is to be replaced by what you know: every result says so until it is.",
        epilog=_INIT_EXAMPLES,
    )
    parser.add_argument(
        "data", metavar="DATA", type=Path, help="training data: .csv, .tsv, .parquet, .npz or a folder of images"
    )
    parser.add_argument("--label", metavar="COLUMN", help="column of a table that holds the labels")
    _shared.add_units(parser)
    parser.add_argument("--test", metavar="FILE", type=Path, help="inputs to vote on; else some of DATA are held out")
    parser.add_argument(
        "--radius",
        type=int,
        metavar="R",
        help="how many changed examples, or units where they are declared, predictions should withstand",
    )
    parser.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        type=Path,
        default=Path("mithridate.toml"),
        help="where it goes (mithridate.toml)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite what is there")


def run_init(arguments: argparse.Namespace) -> int:
    """Propose, write, and say what is next."""
    path: Path = arguments.out
    _shared.check_writable(path)
    if os.path.exists(path) and not arguments.force:
        raise ConfigError(f"{path} is there already; give another name with -o, or --force to overwrite it.")
    _shared.check_apart(path, arguments.data, arguments.test, arguments.units)
    # Before anything is written: can it be read so?
    proposal = look(arguments.data, label=arguments.label, unit=arguments.unit, units=arguments.units)
    if arguments.test is not None:
        read(arguments.test, proposal.declaration, labels=False)
    if arguments.radius is not None:
        proposal = _with_radius(proposal, arguments.radius, held_out=arguments.test is None)
    text = project_toml(path, arguments.data, arguments.test, proposal, radius=arguments.radius, units=arguments.units)
    with write_atomically(path) as file:
        file.write(text.encode())
    declaration = proposal.declaration
    if arguments.json:
        _shared.print_json(
            {
                "project": str(path),
                "declaration": declaration.to_dict(),
                **in_json(declaration.assumptions),
                "assumptions": list(map(str, declaration.assumptions)),
                "seen": [remark.to_dict() for remark in proposal.remarks],
                "left_out": [column.name for column in proposal.left_out],
                "features": proposal.features,
                "class_weights": None if proposal.class_weights is None else list(proposal.class_weights),
                "notes": list(proposal.notes),
            }
        )
        return 0
    console = _shared.console()
    for sentence in (*in_few_lines(proposal.remarks), *proposal.notes, *declaration.assumptions):
        console.print(f"Note: {sentence}")
    command = f"mithridate train {shlex.quote(str(path))}"
    console.print(f"Written to {path}. Correct it by what you know, then: {command}", soft_wrap=True)
    return 0


def _with_radius(proposal: Proposal, radius: int, *, held_out: bool) -> Proposal:
    """A proposal that says whether the units are too few for the radius wanted."""
    trained = round((1 - HOLDOUT) * proposal.count) if held_out else proposal.count
    unit = proposal.declaration.unit
    many = "examples" if unit is None else plural(unit)
    few = too_few(radius, trained, len(proposal.declaration.classes or ()) or 2, many)
    return proposal if few is None else replace(proposal, remarks=(*proposal.remarks, Remark("few-examples", few)))
