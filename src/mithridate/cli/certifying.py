"""`mithridate plan`, `certify` and `predict`: what votes show, or could show, and the flags that these share."""

import argparse
import csv
import dataclasses
import io
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.bar import Bar
from rich.console import Console
from rich.table import Table

from mithridate._io.files import PathLike, write_atomically
from mithridate._progress import progress_bar
from mithridate._text import counted, fraction, printable
from mithridate.accounting import ADP, FDP, RDP
from mithridate.certifying.advice import advise
from mithridate.certifying.certification import certify, own_rule
from mithridate.certifying.planning import Plan, plan
from mithridate.cli import _shared
from mithridate.cli._flags import CONFIG
from mithridate.cli.train import accuracy, accuracy_sentence, accuracy_summary
from mithridate.core.bounds import SCORE_BOUNDS, VOTE_BOUNDS
from mithridate.core.certificate import Certificate, Scope, Status, confidence, is_correct
from mithridate.core.conditions import in_json
from mithridate.core.mechanism import Private, SampledGaussian, Subsampled, Threat
from mithridate.core.provenance import in_digits
from mithridate.core.rule import Rule, Weighted
from mithridate.core.units import Unit, UnitWords, unit_in_json, words_of
from mithridate.core.votes import Votes, read_votes
from mithridate.data import Examples, read
from mithridate.defences.automatic import AUTO
from mithridate.defences.prediction import predict, read_like
from mithridate.defences.private import METHODS
from mithridate.defences.registry import defence, kind_of, names
from mithridate.defences.statistical import StatisticalBound
from mithridate.errors import ConfigError
from mithridate.projects import read_project
from mithridate.recipes import presets
from mithridate.recipes.signal import needed_examples
from mithridate.reporting import sentences as words
from mithridate.reporting.report import top_share

_PLAN_EXAMPLES = """examples:
  mithridate plan --noise-multiplier 3 --sample-rate 0.001 --steps 1000 --instances 1000 --classes 10 --radius 250
  mithridate plan shops.toml --noise-multiplier 8 --sample-rate 0.1 --steps 100 --instances 1000 --num-units 1000
  mithridate plan --noise-multiplier 8 --sample-rate 0.1 --steps 100 --instances 1000 --classes 2 \\
      --unit vendor --num-units 1000

With a project file, whatever it decides (such as unit, classes and [train]) need not be repeated, and flags take
precedence.
"""
_CERTIFY_EXAMPLES = """examples:
  mithridate certify runs/mnist
  mithridate certify counts.csv --noise-multiplier 3 --sample-rate 0.001 --steps 1000
  mithridate certify votes.npz --labels-key y --radii 0,50,100 --out certificate.json
  mithridate certify runs/mnist --csv predictions.csv
  mithridate certify runs/parts --collective 10,50
  mithridate certify runs/noisy --input-change 0,0.1,0.25,0.5
"""
_PREDICT_EXAMPLES = """examples:
  mithridate predict runs/flowers new-flowers.csv
  mithridate predict runs/mnist new.npz --out predictions.csv
  mithridate predict runs/mnist new.npz --out new-certificate.json

--out writes what its name says: .csv the predictions, .json a certificate for `mithridate verify` and `report`, .npz
the votes for `mithridate certify`.
"""
_SHOWN, _BAR = 20, 30
# What a plan cannot do without.
_PLANNED = ("noise_multiplier", "sample_rate", "steps", "instances", "classes")
_FORMS = (".csv", ".json", ".npz")


# --- flags ------------------------------------------------------------------------------------------------------------


def add_mechanism(parser: argparse.ArgumentParser, *, known: str) -> None:
    """Flags for what each instance ran; `known`: who may know it without them."""
    group = parser.add_argument_group(f"mechanism (what each instance ran; {known})")
    group.add_argument("--noise-multiplier", type=float, metavar="S", help="noise / clipping norm")
    group.add_argument("--sample-rate", type=float, metavar="Q", help="chance to enter a batch")
    group.add_argument("--steps", type=int, metavar="T", help="number of steps")
    group.add_argument(
        "--keep",
        type=fraction,
        metavar="M/N",
        help="each instance kept every example with this probability before training, e.g. 4000/50000 or 0.08",
    )


def mechanism_from(arguments: argparse.Namespace) -> Private | None:
    """The mechanism that the flags describe, or None where there are none."""
    names = ("noise_multiplier", "sample_rate", "steps")
    missing = [f"--{name.replace('_', '-')}" for name in names if getattr(arguments, name) is None]
    if len(missing) == len(names) and arguments.keep is None:
        return None
    if missing:
        raise ConfigError(
            f"The mechanism is incomplete; add {', '.join(missing)} (none of them for a votes file that knows its own)."
        )
    inner = SampledGaussian(arguments.noise_multiplier, arguments.sample_rate, arguments.steps)
    return inner if arguments.keep is None else Subsampled(arguments.keep, inner)


def add_method(parser: argparse.ArgumentParser, *, private: bool = False) -> None:
    """Flags for how votes become radii; `private`: those of private learners alone."""
    group = parser.add_argument_group("method")
    known = tuple(METHODS) if private else names()
    usual = "fdp" if private else "that of the run or of the votes"
    group.add_argument(
        "--method", choices=known, metavar="NAME", help=f"the rule that certifies ({usual}): {', '.join(known)}"
    )
    if not private:
        group.add_argument(
            "--max-change", type=float, metavar="DISTANCE", help="feature-smoothing: how far one input may have moved"
        )
    group.add_argument("--delta", type=float, help="adp: delta of one example (default 1e-5)")
    group.add_argument(
        "--class-weights",
        type=int,
        nargs="+",
        metavar="W",
        help="votes for each label count so many times (default: as the votes record it); declared beforehand",
    )


def method_from(arguments: argparse.Namespace) -> Rule | None:
    """The rule that the flags describe, or None where they name none."""
    given = {name: getattr(arguments, name, None) for name in ("max_change", "delta")}
    constants = {name: value for name, value in given.items() if value is not None}
    method = arguments.method
    if method is None and "max_change" in constants:
        method = "feature-smoothing"
    if method is None and constants:
        raise ConfigError("--delta belongs to --method adp; add it or leave it out.")
    if method is None:
        return None
    if "max_change" in kind_of(method).options() and "max_change" not in constants:
        raise ConfigError(f"--method {method} needs --max-change DISTANCE, which nobody but you can know.")
    return defence(method, **constants).rule()


def _weighing(votes: Votes, method: Rule | None, weights: Sequence[int] | None) -> Rule | None:
    """A method with the class weights of the flags, else with those that the votes record."""
    said: Any = (votes.recipe or {}).get("rule")
    found = weights or (said.get("class_weights") if isinstance(said, dict) else None)
    if found is None:
        return method
    rule = own_rule(votes) if method is None else method
    if isinstance(rule, Weighted):
        return dataclasses.replace(rule, class_weights=tuple(found))
    if weights:
        raise ConfigError(f"The method {rule.name} has no class weights; leave --class-weights out.")
    return method


def add_claim(parser: argparse.ArgumentParser) -> None:
    """Flags for what is claimed."""
    words = "; ".join(f"{threat.value}: {threat.in_words}" for threat in Threat)
    group = parser.add_argument_group("claim")
    group.add_argument(
        "--threat",
        choices=[threat.value for threat in Threat],
        help="what an attacker may have done, r times (default symmetric-difference; for votes of bagging and of "
        f"smoothing that of their authors; with units edit). {words}",
    )
    group.add_argument(
        "--failure-prob",
        type=float,
        default=1e-3,
        metavar="P",
        help="probability with which a claim may fail, over training (default 0.001)",
    )
    group.add_argument(
        "--input-change",
        type=_shared.changes_of,
        nargs="+",
        action=_shared.Joined,
        metavar="E",
        help="together with any change of the input of Euclidean length up to E: for votes on noisy inputs (train "
        "--input-noise; pixels count from 0 to 1), and for neighbours and kernels (their features); several (0.1 0.25 "
        "or 0.1,0.25) give a radius for each",
    )


def radii_of(text: str) -> list[int]:
    """Radii from a list with commas, for a flag."""
    try:
        radii = [int(part) for part in text.split(",")]
    except ValueError:
        radii = [-1]
    if min(radii) < 0:
        raise argparse.ArgumentTypeError(f"expected whole numbers of 0 or more such as 0,50,100, got {text!r}")
    return radii


def _certified(votes: Votes, method: Rule | None, arguments: argparse.Namespace, **more: Any) -> Certificate:
    """The certificate that the flags ask for; scores are certified where that was trained for."""
    with progress_bar("certifying") as progress:
        return certify(
            votes,
            method=_weighing(votes, method, arguments.class_weights),
            threat=arguments.threat,
            failure_prob=arguments.failure_prob,
            on=getattr(arguments, "on", None) or _recorded(votes).get("on", "votes"),
            input_change=arguments.input_change,
            progress=progress,
            **more,
        )


def _recorded(votes: Votes) -> dict[str, Any]:
    """The constants of the defence that votes record; none where they do not, or record something else."""
    found = (votes.recipe or {}).get("defence")
    return found if isinstance(found, dict) else {}


# --- plan -------------------------------------------------------------------------------------------------------------


def add_plan(command: _shared.NewCommand) -> None:
    """Register `mithridate plan`."""
    parser = command(
        help="say what could be certified, before anyone trains",
        description="The best radius of a mechanism, how it falls with the votes, and what a wanted radius would need.",
        epilog=_PLAN_EXAMPLES,
    )
    parser.add_argument("project", metavar=CONFIG, type=Path, nargs="?", help="project file of a private ensemble")
    add_mechanism(parser, known="a project file may know it")
    parser.add_argument("--instances", type=int, metavar="P", help="number of models that would vote")
    parser.add_argument("--classes", type=int, metavar="L", help="number of labels")
    parser.add_argument("--unit", metavar="NAME", help="what radii count, such as vendor (single examples)")
    parser.add_argument("--num-units", type=int, metavar="N", help="how many units there are")
    parser.add_argument("--radius", type=int, metavar="R", help="a radius that is wanted: what would reach it?")
    add_method(parser, private=True)
    add_claim(parser)
    parser.add_argument("--bounds", choices=VOTE_BOUNDS, default=VOTE_BOUNDS[0], help="confidence bounds on the votes")
    parser.add_argument(
        "--input-noise", type=float, metavar="S", help="standard deviation of the noise that instances add to inputs"
    )


def run_plan(arguments: argparse.Namespace) -> int:
    """Plan and print."""
    if arguments.project is not None:
        _take_project(arguments)
    missing = [name for name in _PLANNED if getattr(arguments, name) is None]
    if missing:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        where = "" if arguments.project is None else f", which {arguments.project} leaves open"
        raise ConfigError(f"A plan needs {flags}{where}; add what is missing.")
    mechanism, method = mechanism_from(arguments), method_from(arguments)
    assert mechanism is not None  # which is required above,
    assert isinstance(method, FDP | RDP | ADP | None)  # and the parser knows no others.
    if arguments.class_weights:
        method = dataclasses.replace(method or FDP(), class_weights=tuple(arguments.class_weights))
    result = plan(
        mechanism,
        instances=arguments.instances,
        classes=arguments.classes,
        radius=arguments.radius,
        failure_prob=arguments.failure_prob,
        threat=arguments.threat,
        method=method,
        bounds=arguments.bounds,
        unit=_unit_from(arguments),
        input_noise=arguments.input_noise,
        input_change=arguments.input_change,
    )
    if arguments.json:
        needed = "needed_examples" if result.unit is None else "needed_units"
        _shared.print_json({**result.to_dict(), needed: _needed_examples(result)})
    else:
        _print_plan(_shared.console(), result)
    return 0


def _take_project(arguments: argparse.Namespace) -> None:
    """Put what a project file decides in the place of the flags that were left out."""
    project = read_project(arguments.project)
    decided, declared = dict(project.options), project.declaration
    method = decided.get("method")
    if method not in (None, AUTO, *METHODS):
        raise ConfigError(
            f"plan is about private ensembles, and {arguments.project} asks for {method}; name a method such as fdp "
            "there."
        )
    if decided.get("recipe") is not None:
        preset = presets.preset(decided["recipe"])
        number = decided.get("num_units") or decided.get("num_train") or preset.num_train
        decided = {**preset.options(number), **decided}
    classes = getattr(declared, "classes", None)
    decided.setdefault("classes", None if classes is None else len(classes))
    decided |= {"unit": getattr(declared, "unit", None), "method": method if method in METHODS else None}
    more = ("keep", "radius", "method", "delta", "class_weights", "unit", "num_units", "input_noise")
    for name in (*_PLANNED, *more):
        if getattr(arguments, name) is None:
            setattr(arguments, name, decided.get(name))


def _unit_from(arguments: argparse.Namespace) -> Unit | None:
    """What radii count, as the flags or the project file say; None: single examples."""
    name, count = arguments.unit, arguments.num_units
    if name is None and count is None:
        return None
    if name is None:
        raise ConfigError("--num-units counts units, which have no name here; add --unit NAME, or leave it out.")
    if count is None:
        raise ConfigError(f"A plan needs the number of {UnitWords.of(name).many}; add --num-units N.")
    return Unit(name, count)


def _reach(radius: int) -> str:
    return str(radius) if radius >= 0 else "none"


def _planned_frontier(result: Plan, frontier: Mapping[float, Mapping[float, int]]) -> Table:
    """Radii by the votes for the label, a column for every change of the input."""
    table = Table(title=f"{words_of(result.unit).radius()}, where the input changes by up to")
    table.add_column("votes for the label", justify="right")
    for change in frontier:
        table.add_column(f"{change:g}", justify="right")
    for share in result.radius_by_top_share:
        table.add_row(f"{share:.0%}", *(_reach(radii[share]) for radii in frontier.values()))
    return table


def _needed_examples(result: Plan) -> dict[str, int]:
    """From how many examples on linear models can be expected to learn through the noise."""
    kinds = {"table": "float", "text": "text"}
    return {name: needed_examples(result.mechanism, kind, result.classes) for name, kind in kinds.items()}


def _print_plan(console: Console, result: Plan) -> None:
    counted = words_of(result.unit)
    of = "" if result.unit is None else f", {result.unit.counted(result.unit.count)}"
    table = Table(title=f"{result.instances:,} instances, {result.classes} classes{of}")
    table.add_column("votes for the label", justify="right")
    table.add_column(counted.radius(), justify="right")
    table.add_column("")
    for share, radius in result.radius_by_top_share.items():
        table.add_row(f"{share:.0%}", _reach(radius), Bar(max(result.max_radius, 1), 0, max(radius, 0), width=_BAR))
    console.print(table)
    if result.frontier is not None:
        console.print(_planned_frontier(result, result.frontier))
    console.print(f"Threat: {result.threat.of(counted)}.")
    needed = _needed_examples(result)
    rows, texts = "rows of a table", "texts"
    if counted.are_named:
        rows, texts = f"{counted.many} with rows of a table", "with texts"
    console.print(
        f"Linear models learn through this noise from about {needed['table']:,} {rows}, or {needed['text']:,} {texts}, "
        "on."
    )
    if result.radius_by_top_share[1.0] < 0:
        console.print("Not even unanimous votes are certified: use more instances.")
    if result.radius is None:
        return
    asked = f"a radius of {counted.counted(result.radius)}" if counted.are_named else f"radius {result.radius}"
    console.print(f"Unanimous votes reach {asked} with any one of these changed, all else equal:")
    instances, noise, steps = result.needed_instances, result.needed_noise_multiplier, result.needed_steps
    most = f"{instances:,} or more" if instances else "no number up to 10 million is enough"
    console.print(f"  instances          {most}")
    console.print(f"  noise multiplier   {f'{noise:g} or more' if noise else 'no amount is enough'}")
    console.print(f"  steps              {f'{steps:,} or fewer' if steps else 'not even a single step'}")


# --- certify ----------------------------------------------------------------------------------------------------------


def add_certify(command: _shared.NewCommand) -> None:
    """Register `mithridate certify`."""
    parser = command(
        help="certify predictions from vote counts",
        description="Certify the label of every example from votes: of many private models, or of another defence.",
        epilog=_CERTIFY_EXAMPLES,
    )
    parser.add_argument(
        "votes",
        metavar="RUN_DIR_OR_VOTES",
        type=Path,
        help="directory of a finished run, or a votes file: .npz with an array 'counts', or CSV",
    )
    add_mechanism(parser, known="our own votes files know it")
    add_method(parser)
    add_claim(parser)
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
        help="confidence bounds; votes: winner (default), simultaneous, anytime (add instances after a look if you "
        "like), simuem, pointwise (not simultaneous, for reproduction only); scores: histogram (default of f-DP where "
        "there are histograms), empirical-bernstein (default otherwise), hoeffding, betting (needs histograms)",
    )
    parser.add_argument("--labels-key", metavar="NAME", help="array of true labels in the .npz, for certified accuracy")
    parser.add_argument(
        "--radii", "--at", type=radii_of, metavar="R,R,...", help="radii at which to report, e.g. 0,50,100"
    )
    parser.add_argument(
        "--collective",
        type=radii_of,
        metavar="R,R,...",
        help="dpa, finite-aggregation: bound how many predictions change together at these radii, e.g. 10,50",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="write the certificate, for mithridate verify (RUN_DIR/certificate.json)",
    )
    parser.add_argument(
        "--csv",
        type=Path,
        metavar="FILE",
        help="write a table with a row for each input: its hash, label, class, radius, status, and whether that is "
        "correct, where true labels are known",
    )


def run_certify(arguments: argparse.Namespace) -> int:
    """Certify and print."""
    if os.path.isdir(arguments.votes):
        _take_run(arguments)
    for flag, path in (("--out", arguments.out), ("--csv", arguments.csv)):
        if path is not None:
            _shared.check_writable(path)
            if _shared.is_same(path, arguments.votes):
                raise ConfigError(f"{flag} would overwrite the votes in {arguments.votes}; give another name.")
    if arguments.csv is not None and arguments.out is not None and _same_place(arguments.csv, arguments.out):
        raise ConfigError(f"--csv and --out are both {arguments.out}; give two names.")
    certificate = _certificate(arguments)
    votes = certificate.votes
    if arguments.out is not None:
        certificate.save(arguments.out)
    if arguments.csv is not None:
        write_table(arguments.csv, certified_rows(certificate))
    average = None if arguments.method is not None else _on_average(votes, arguments)
    if arguments.json:
        bound = {} if average is None else {"on_average": average.to_dict()}
        _shared.print_json({**certificate.to_dict(radii=arguments.radii), **bound})
    else:
        _print_certificate(_shared.console(), certificate, arguments, average)
    return 0


def _certificate(arguments: argparse.Namespace) -> Certificate:
    """The certificate that the flags of `certify` ask for."""
    method = method_from(arguments)
    votes = read_votes(arguments.votes, mechanism=mechanism_from(arguments), labels_key=arguments.labels_key)
    together = {} if arguments.collective is None else {"collective": arguments.collective}
    return _certified(votes, method, arguments, bounds=arguments.bounds, scope=arguments.scope, **together)


def certified_run(run_dir: Path, flags: Sequence[str]) -> Certificate:
    """What `mithridate certify RUN_DIR` with these flags certifies, and writes into the directory."""
    arguments = _shared.new_parser(["certify"]).parse_args(["certify", *flags, "--", str(run_dir)])
    _take_run(arguments)
    _shared.check_writable(arguments.out)
    certificate = _certificate(arguments)
    certificate.save(arguments.out)
    return certificate


def _on_average(votes: Votes, arguments: argparse.Namespace) -> StatisticalBound | None:
    """What a method that speaks of all predictions on average says, beside the certificate of each."""
    said = _recorded(votes)
    if said.get("name") not in names() or kind_of(str(said["name"])).per_prediction:
        return None
    if votes.labels is None:
        return None
    found = defence(str(said["name"]), **{name: value for name, value in said.items() if name == "delta"})
    bound = found.certify(votes, threat=arguments.threat, failure_prob=arguments.failure_prob)
    return bound if isinstance(bound, StatisticalBound) else None


def _same_place(first: Path, second: Path) -> bool:
    return os.path.realpath(first) == os.path.realpath(second)


def _verified(out: Path) -> Path:
    """What to give to `mithridate verify`: the directory of the run, if it is one, so that both are compared."""
    return out.parent if out.name == "certificate.json" and os.path.isfile(out.parent / "run.json") else out


def certified_rows(certificate: Certificate) -> list[dict[str, Any]]:
    """What a certificate says of each input, a row each; a cell is empty where something is not known."""
    votes, count = certificate.votes, len(certificate.label)
    unknown = [""] * count
    correct = is_correct(certificate)
    columns: dict[str, Sequence[Any]] = {
        "index": range(count),
        "input_hash": unknown if votes.input_hashes is None else in_digits(votes.input_hashes),
        "label": certificate.label.tolist(),
        "class": unknown if votes.class_names is None else [votes.shown_class_names[at] for at in certificate.label],
        "radius": certificate.radius.tolist(),
        **certificate.unit_column(),
        "status": certificate.status.tolist(),
        "correct": unknown if correct is None else ["yes" if each else "no" for each in correct],
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _take_run(arguments: argparse.Namespace) -> None:
    """Put the files of a run in the place of its directory."""
    folder: Path = arguments.votes
    arguments.votes = folder / "votes.npz"
    if not arguments.votes.is_file():
        raise _shared.no_votes(folder)
    if arguments.out is None:
        arguments.out = folder / "certificate.json"


def _print_certificate(
    console: Console, certificate: Certificate, arguments: argparse.Namespace, average: StatisticalBound | None
) -> None:
    opening = words.one_label(certificate.votes, certificate.label)  # with the baseline
    for sentence in opening:
        console.print(sentence)
    radii = arguments.radii or certificate.round_radii()
    console.print(_table(certificate, radii))
    if certificate.frontier is not None and len(certificate.frontier.changes) > 1:
        console.print(_frontier_table(certificate, radii))
    for sentence in (
        *([] if opening else words.baseline_sentence(certificate.votes)),
        *words.not_above_baseline(certificate),
        *_sentences(certificate),
        *_advice(certificate),
    ):
        console.print(sentence)
    if average is not None:
        bounds = zip(radii, average.accuracy(radii).tolist(), strict=True)
        shares = ", ".join(f"{_shared.percent(share)} at r = {radius}" for radius, share in bounds)
        console.print(f"On average over training, one model stays correct on at least {shares}.")
    if arguments.out is not None:
        command = f"mithridate verify {shlex.quote(str(_verified(arguments.out)))}"
        console.print(f"Written to {arguments.out}; check it with: {command}", soft_wrap=True)
    if arguments.csv is not None:
        console.print(f"Written to {arguments.csv}", soft_wrap=True)
    _shared.print_conditions(console, certificate.conditions)


def _advice(certificate: Certificate) -> list[str]:
    weaknesses = words.weaknesses(certificate, advise(certificate, methods=()))
    return [f"To certify more: {sentence}" for sentence in weaknesses]


def _table(certificate: Certificate, radii: list[int]) -> Table:
    """Shares by radius: of what is correct, too, where that is known; a constant answer is certified as well."""
    count = certificate.votes.examples
    table = Table(title=f"{counted(count, 'prediction')}, {certificate.votes.tally}")
    if certificate.votes.labels is None:
        columns = {"certified": [float(np.mean(certificate.radius >= radius)) for radius in radii]}
    else:
        shares, balanced = certificate.accuracy(None, radii), certificate.balanced_accuracy(None, radii)
        columns = {"correct and certified": shares.tolist(), "mean over classes": balanced.tolist()}
    for name in (certificate.votes.unit_words.radius(), *columns):
        table.add_column(name, justify="right")
    table.add_column("")
    for radius, row in zip(radii, zip(*columns.values(), strict=True), strict=True):
        table.add_row(str(radius), *map(_shared.percent, row), Bar(1, 0, row[0], width=_BAR))
    return table


def _frontier_table(certificate: Certificate, radii: list[int]) -> Table:
    """Shares by radius, a column for every change of the input."""
    assert certificate.frontier is not None
    correct = is_correct(certificate)
    counted = np.ones(len(certificate.label), dtype=np.bool_) if correct is None else correct
    what = "certified" if correct is None else "correct and certified"
    table = Table(title=f"{what}, where the input changes by up to ... {certificate.frontier.in_words}")
    table.add_column(certificate.votes.unit_words.radius(), justify="right")
    for change in certificate.frontier.changes:
        table.add_column(f"{change:g}", justify="right")
    for radius in radii:
        shares = ((counted & (row >= radius)).mean() for row in certificate.frontier.radius)
        table.add_row(str(radius), *(_shared.percent(float(share)) for share in shares))
    return table


def _sentences(certificate: Certificate) -> list[str]:
    half, best = words.radius_reached_by(certificate, 0.5), int(words.counted_radii(certificate).max())
    counted = certificate.votes.unit_words
    sentences = [f"Threat: {certificate.threat.of(counted)}.", *words.moved_inputs(certificate)]
    if half >= 0:
        which = "stay" if certificate.votes.labels is None else "are correct and stay"
        sentences.append(
            f"Half of the predictions {which} the same for every such change up to r = {half}{counted.after(half)}, "
            f"the best to {best}."
        )
    sentences.append(f"{words.how(certificate)}; {confidence(certificate)}.")
    for status in Status:
        number = int((certificate.status == status.value).sum())
        if number and status is not Status.CERTIFIED:
            sentences.append(f"{status.value}: {number:,}. {status.sentence_of(counted)}")
    return [*sentences, *words.together(certificate), *words.particular_assumptions(certificate)]


# --- predict ----------------------------------------------------------------------------------------------------------


def add_predict(command: _shared.NewCommand) -> None:
    """Register `mithridate predict`."""
    parser = command(
        help="predict new inputs, with a certificate for each",
        description="Let the models that a run kept vote on new inputs, and certify every prediction.",
        epilog=_PREDICT_EXAMPLES,
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="directory of the run")
    parser.add_argument(
        "inputs", metavar="INPUTS", type=Path, help="new inputs, in a file or folder like that of train"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write predictions.csv, certificate.json or votes.npz")
    parser.add_argument("--device", default="auto", metavar="NAME", help="cpu, cuda, mps or auto")
    add_method(parser)
    add_claim(parser)


def run_predict(arguments: argparse.Namespace) -> int:
    """Predict, certify and print."""
    if arguments.out is not None:
        _shared.check_writable(arguments.out)
        _shared.check_apart(arguments.out, arguments.inputs)
        if arguments.out.suffix not in _FORMS:
            raise ConfigError(f"Expected the name in --out to end with {', '.join(_FORMS)}, got {arguments.out.name}.")
    method = method_from(arguments)
    inputs = read_alike(arguments.run_dir, arguments.inputs)
    try:
        votes = predict(arguments.run_dir, inputs, device=arguments.device)
    except ModuleNotFoundError as error:
        raise ConfigError(str(error)) from error
    certificate = _certified(votes, method, arguments)
    rows = _rows(certificate, inputs)
    if arguments.out is not None:
        _write(arguments.out, certificate, votes, rows)
    if arguments.json:
        _shared.print_json(_summary_of(arguments, certificate, rows))
    else:
        _print_predictions(_shared.console(), arguments, certificate, rows, inputs.notes)
    return 0


def read_alike(run_dir: Path, path: PathLike) -> Examples:
    """New inputs, read as the training data of a run was."""
    declaration, classes = read_like(run_dir)
    return read(path, declaration, classes=classes)


def _rows(certificate: Certificate, inputs: Examples) -> list[dict[str, Any]]:
    """One prediction each."""
    named = inputs.class_names or ()
    names = [*named, *map(str, range(len(named), certificate.votes.classes))]  # more may be declared than have names
    shares, hashes = top_share(certificate), certificate.votes.input_hashes
    unit = certificate.votes.unit
    digits = [None] * len(shares) if hashes is None else in_digits(hashes)
    columns = (certificate.label.tolist(), shares.tolist(), certificate.radius.tolist(), certificate.status.tolist())
    return [
        {
            "input": at if inputs.ids is None else inputs.ids[at],
            "input_hash": digits[at],
            "prediction": names[label],
            "share_of_votes": share,
            "radius": radius,
            **({} if unit is None else {"unit": unit.one}),
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
        write_table(path, rows)


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as CSV, whole or not at all; no spreadsheet takes a cell for a formula."""
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, fieldnames=list(rows[0]))
    table.writeheader()
    table.writerows({name: _inert(cell) for name, cell in row.items()} for row in rows)
    with write_atomically(path) as file:
        file.write(text.getvalue().encode("utf-8", "backslashreplace"))


def _inert(cell: Any) -> Any:
    """A cell that no spreadsheet takes for a formula; numbers, also those in words, stay what they are.

    >>> _inert(-1), _inert("-1.5"), _inert("-1+2"), _inert("=A1"), _inert("cat")
    (-1, '-1.5', "'-1+2", "'=A1", 'cat')
    """
    if not isinstance(cell, str) or cell[:1] not in tuple("=+-@\t\r\n"):
        return cell
    return cell if re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", cell, re.ASCII) else f"'{cell}"


def _summary_of(arguments: argparse.Namespace, certificate: Certificate, rows: list[dict[str, Any]]) -> dict[str, Any]:
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
        **unit_in_json(votes.unit),
        "threat": certificate.threat.value,
        "failure_prob": certificate.failure_prob,
        **in_json(certificate.assumptions, certificate.threat),
        "assumptions": list(map(str, certificate.assumptions)),
        **accuracy_summary(votes),
        "summary": certificate.summary(),
        "predictions": rows,
    }


def _print_predictions(
    console: Console,
    arguments: argparse.Namespace,
    certificate: Certificate,
    rows: list[dict[str, Any]],
    notes: tuple[str, ...],
) -> None:
    table = Table(title=f"{counted(len(rows), 'prediction')} of {certificate.votes.tally}")
    reached = certificate.votes.unit_words.radius("certified to")
    for name, side in (("input", "right"), ("prediction", "left"), ("votes", "right"), (reached, "right")):
        table.add_column(name, justify=side)  # pyright: ignore[reportArgumentType]
    for row in rows[:_SHOWN]:
        radius = str(row["radius"]) if row["radius"] >= 0 else "not certified"
        names = (printable(str(row[name])) for name in ("input", "prediction"))
        table.add_row(*names, f"{row['share_of_votes']:.1%}", radius)
    console.print(table)
    if len(rows) > _SHOWN:
        console.print(f"The first {_SHOWN} of {len(rows):,}; --out predictions.csv writes all.")
    console.print(words.headline(certificate).text)
    if certificate.votes.labels is not None:
        console.print(accuracy_sentence(certificate.votes, accuracy(certificate.votes) or 0.0))
    said = (*(f"Note: {note}" for note in notes), *words.particular_assumptions(certificate))
    for sentence in (*map(printable, said), *_advice(certificate)):
        console.print(sentence)
    if arguments.out is not None:
        path = shlex.quote(str(arguments.out))
        then = {
            ".json": f"; check it with: mithridate verify {path}",
            ".npz": f"; certify it with: mithridate certify {path}",
        }
        console.print(f"Written to {arguments.out}{then.get(arguments.out.suffix, '')}", soft_wrap=True)
    _shared.print_conditions(console, certificate.conditions)
