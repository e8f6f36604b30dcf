"""`mithridate predict`: certified predictions of kept models on new inputs."""

import argparse
import csv
import io
import shlex
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mithridate._io.files import PathLike, write_atomically
from mithridate._text import counted
from mithridate.certifying.advice import advise
from mithridate.certifying.certification import certify
from mithridate.cli import _options, _output
from mithridate.cli._training import accuracy, accuracy_summary
from mithridate.cli.certify import recorded
from mithridate.core.certificate import Certificate
from mithridate.core.conditions import in_json
from mithridate.core.votes import Votes
from mithridate.data import Examples, declaration_from_dict, read
from mithridate.defences.prediction import predict, source_of
from mithridate.errors import ConfigError
from mithridate.reporting import sentences as words
from mithridate.reporting import summary

_EXAMPLES = """examples:
  mithridate predict runs/flowers new-flowers.csv
  mithridate predict runs/mnist new.npz --out predictions.csv
  mithridate predict runs/mnist new.npz --out new-certificate.json

--out writes what its name says: .csv the predictions, .json a certificate for `mithridate verify` and `report`, .npz
the votes for `mithridate certify`.
"""
_SHOWN = 20
_FORMS = (".csv", ".json", ".npz")


def add_to(commands: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "predict",
        help="predict new inputs, with a certificate for each",
        description="Let the models that a run kept vote on new inputs, and certify every prediction.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="directory of the run")
    parser.add_argument(
        "inputs", metavar="INPUTS", type=Path, help="new inputs, in a file or folder like that of train"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write predictions.csv, certificate.json or votes.npz")
    parser.add_argument("--device", default="auto", metavar="NAME", help="cpu, cuda, mps or auto")
    _options.add_method(parser)
    _options.add_claim(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Predict, certify and print."""
    if arguments.out is not None:
        _output.check_writable(arguments.out)
        _output.check_apart(arguments.out, arguments.inputs)
        if arguments.out.suffix not in _FORMS:
            raise ConfigError(f"Expected the name in --out to end with {', '.join(_FORMS)}, got {arguments.out.name}.")
    method = _options.method_from(arguments)
    inputs = read_alike(arguments.run_dir, arguments.inputs)
    try:
        votes = predict(arguments.run_dir, inputs, device=arguments.device)
    except ModuleNotFoundError as error:
        raise ConfigError(str(error)) from error
    with _output.progress_bar("certifying") as progress:
        certificate = certify(
            votes,
            method=method,
            threat=arguments.threat,
            failure_prob=arguments.failure_prob,
            on=recorded(votes).get("on", "votes"),
            progress=progress,
        )
    rows = _rows(certificate, inputs)
    if arguments.out is not None:
        _write(arguments.out, certificate, votes, rows)
    if arguments.json:
        _output.print_json(_summary(arguments, certificate, rows))
    else:
        _print(_output.console(), arguments, certificate, rows, inputs.notes)
    return 0


def read_alike(run_dir: Path, path: PathLike) -> Examples:
    """New inputs, read as the training data of a run was."""
    source = source_of(run_dir)
    declared, names = source.get("declaration"), source.get("class_names")
    classes = (
        [str(name) for name in names] if isinstance(names, list) else names
    )  # those of an estimator keep their kind
    return read(path, None if declared is None else declaration_from_dict(declared), classes=classes)


def _rows(certificate: Certificate, inputs: Examples) -> list[dict[str, Any]]:
    """One prediction each."""
    named = inputs.class_names or ()
    names = [*named, *map(str, range(len(named), certificate.votes.classes))]  # more may be declared than have names
    shares = summary.top_share(certificate)
    columns = (certificate.label.tolist(), shares.tolist(), certificate.radius.tolist(), certificate.status.tolist())
    return [
        {
            "input": at if inputs.ids is None else inputs.ids[at],
            "prediction": names[label],
            "share_of_votes": share,
            "radius": radius,
            "status": status,
        }
        for at, (label, share, radius, status) in enumerate(zip(*columns, strict=True))
    ]


def _write(path: Path, certificate: Certificate, votes: Votes, rows: list[dict[str, Any]]) -> None:
    if path.suffix == ".npz":
        votes.save(path)
    elif path.suffix == ".json":
        certificate.save(path)
    else:
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, fieldnames=list(rows[0]))
        table.writeheader()
        table.writerows({**row, "prediction": _inert(row["prediction"])} for row in rows)
        with write_atomically(path) as file:
            file.write(text.getvalue().encode())


def _inert(text: str) -> str:
    """A name that no spreadsheet takes for a formula; numbers stay what they are."""
    is_formula = text[:1] in tuple("=+@\t\r") or (text[:1] == "-" and not text[1:2].isdigit())
    return f"'{text}" if is_formula else text


def _summary(arguments: argparse.Namespace, certificate: Certificate, rows: list[dict[str, Any]]) -> dict[str, Any]:
    votes = certificate.votes
    return {
        "schema": "mithridate.predictions/1",
        "out": None if arguments.out is None else str(arguments.out),
        "run_id": votes.run_ids[0] if votes.run_ids else None,
        "instances": votes.instances,
        "examples": votes.examples,
        "mechanism": votes.mechanism.to_dict(),
        "method": certificate.method.name,
        "bounds": certificate.bounds,
        "scope": certificate.scope.value,
        "threat": certificate.threat.value,
        "failure_prob": certificate.failure_prob,
        **in_json(certificate.assumptions, certificate.threat),
        "assumptions": list(map(str, certificate.assumptions)),
        **accuracy_summary(votes),
        "summary": certificate.summary(),
        "predictions": rows,
    }


def _print(
    console: Console,
    arguments: argparse.Namespace,
    certificate: Certificate,
    rows: list[dict[str, Any]],
    notes: tuple[str, ...],
) -> None:
    table = Table(title=f"{counted(len(rows), 'prediction')} of {certificate.votes.tally}")
    for name, side in (("input", "right"), ("prediction", "left"), ("votes", "right"), ("certified to", "right")):
        table.add_column(name, justify=side)  # pyright: ignore[reportArgumentType]
    for row in rows[:_SHOWN]:
        radius = str(row["radius"]) if row["radius"] >= 0 else "not certified"
        names = (_output.printable(str(row[name])) for name in ("input", "prediction"))
        table.add_row(*names, f"{row['share_of_votes']:.1%}", radius)
    console.print(table)
    if len(rows) > _SHOWN:
        console.print(f"The first {_SHOWN} of {len(rows):,}; --out predictions.csv writes all.")
    console.print(words.headline(certificate).text)
    if certificate.votes.labels is not None:
        console.print(f"The majority is correct on {_output.percent(accuracy(certificate.votes) or 0.0)} of them.")
    for sentence in (*(f"Note: {note}" for note in notes), *words.particular_assumptions(certificate)):
        console.print(_output.printable(sentence))
    for sentence in words.weaknesses(certificate, advise(certificate, methods=())):
        console.print(f"To certify more: {sentence}")
    if arguments.out is not None:
        path = shlex.quote(str(arguments.out))
        then = {
            ".json": f"; check it with: mithridate verify {path}",
            ".npz": f"; certify it with: mithridate certify {path}",
        }
        console.print(f"Written to {arguments.out}{then.get(arguments.out.suffix, '')}", soft_wrap=True)
    _output.print_conditions(console, certificate.conditions)
