"""`mithridate tune`: which method and which constants, by examples that no attacker touched?"""

import argparse
import dataclasses
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mithridate._io.files import write_atomically
from mithridate._progress import progress_bar
from mithridate._text import printable, shortened
from mithridate.cli import _ending, _shared
from mithridate.comparing.result import make_folder
from mithridate.core.conditions import step_of
from mithridate.core.mechanism import Threat
from mithridate.data import Examples, read
from mithridate.errors import ConfigError
from mithridate.projects import Project, read_project, tuned_toml
from mithridate.training.order import Choice, facts_of
from mithridate.tuning.result import FINISHED, Trial, Tuning
from mithridate.tuning.search import number_of, radii_for, tune
from mithridate.tuning.space import METHODS

_TUNE_EXAMPLES = f"""examples:
  mithridate tune flowers.toml --trusted known-flowers.csv --minutes 10
  mithridate tune flowers.toml --trusted known-flowers.csv --at 0,5,50 --methods nearest-neighbours,ridge
  mithridate tune flowers.toml                          by declared facts alone
  mithridate train flowers-tuned/tuned.toml

The trusted file holds labelled examples that you state no attacker touched; it is read like the training file, and is
refused when more than 1% of it is in the training file, too. What [train] of CONFIG decides stays. Declare
num_train there, or radii end with the size step. The result is tuned.toml, an ordinary configuration, beside
trials.html and trials.json.
Methods that can be named: {", ".join(METHODS)}.
After an interruption of any kind the same command resumes; with more --minutes it adds trials.
"""
_TABLE_TRIALS = 12
# What follows the number of examples, in the configuration by declared facts alone.
_BY_FACTS = ("neighbours", "penalty", "partitions")


def add_tune(command: _shared.NewCommand) -> None:
    """Register `mithridate tune`."""
    parser = command(
        help="choose method and constants on trusted examples",
        description="Choose a method, features and constants by certified accuracy on examples that no attacker "
        "touched. The training data has no part in the choice, so certificates are not conditional on it.",
        epilog=_TUNE_EXAMPLES,
    )
    parser.add_argument("project", metavar="CONFIG.toml", type=Path, help="file that `init` wrote")
    parser.add_argument(
        "--trusted", type=Path, metavar="FILE", help="labelled examples that no attacker touched; else facts decide"
    )
    parser.add_argument("--minutes", type=float, metavar="M", help="how long the search takes in all (10)")
    parser.add_argument("--trials", type=int, metavar="N", help="end after so many trials")
    parser.add_argument(
        "--at",
        type=_radii,
        metavar="R,R,...",
        help="radii that matter: changes of the training set, or shares of it such as 0.01 or 1%% (0,0.001,0.005)",
    )
    parser.add_argument("--balanced", action="store_true", help="accuracy as a mean over classes; weigh rare labels")
    parser.add_argument("--methods", type=_names, metavar="A,B,...", help="search these methods only")
    parser.add_argument(
        "--threat",
        choices=[threat.value for threat in Threat],
        help="what an attacker may do (symmetric-difference, with units edit)",
    )
    parser.add_argument("--failure-prob", type=float, metavar="P", help="with which a claim may fail (0.001)")
    parser.add_argument("--folds", type=int, metavar="K", help="parts that the trusted examples are split into (5)")
    parser.add_argument("--seed", type=int, metavar="N", help="of the search (0); the same gives the same trials")
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, mps or auto (auto)")
    parser.add_argument(
        "--train-on-trusted", action="store_true", help="let tuned.toml train on the trusted examples, too"
    )
    parser.add_argument("-o", "--out", type=Path, metavar="DIR", help="where results go (CONFIG-tuned, beside CONFIG)")


def run_tune(arguments: argparse.Namespace) -> int:
    """Search, write, and say what is next."""
    file: Path = arguments.project
    project, console = read_project(file), _shared.console(error=arguments.json)
    out: Path = arguments.out or file.parent / f"{file.stem}-tuned"
    if arguments.trusted is None:
        return _by_facts(project, _size(project, file, None), out, arguments, console)
    trusted = read(arguments.trusted, project.declaration, labels=True)
    if arguments.train_on_trusted:
        project = _with_trusted(project, arguments.trusted)
    size = _size(project, file, trusted if arguments.train_on_trusted else None)
    with progress_bar("downloading") as progress:
        training = project.training_file(progress)
    for sentence in dict.fromkeys((*training.notes, *trusted.notes)):
        console.print(f"Note: {sentence}")
    _ending.kept_in(out)
    found = tune(trusted, training, **size, out=out, progress=_say, **_search_options(project, arguments))
    found = dataclasses.replace(found, trains_on_trusted=arguments.train_on_trusted)
    found.write(out)
    path = _write(project, out, found.method, found.options, str(found.statement))
    if arguments.json:
        files = {"config": str(path), "page": str(out / "trials.html"), "record": str(out / "trials.json")}
        _shared.print_json({**found.to_dict(), **files})
    else:
        _print(console, found, out, path)
    return 0


def _size(project: Project, file: Path, trusted: Examples | None) -> dict[str, int]:
    """What constants are chosen for: the declared number of units, with those that are trusted; else their step."""
    if project.tuned is not None:
        raise ConfigError(f"{file} was written by tune, and leaves nothing open; tune the file that it was made from.")
    for name in ("num_train", "num_units"):
        declared = project.options.get(name)
        if declared is not None:
            return {name: declared + (0 if trusted is None else number_of(trusted))}
    return {"size_step": step_of(number_of(project.examples()[0]))}


def _search_options(project: Project, arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `tune` that the configuration or the flags say something about."""
    given, methods = project.left_open()
    if methods is not None and arguments.methods is not None:
        raise ConfigError(f"The configuration asks for {methods[0]}; leave --methods out, or method (private) there.")
    names = ("at", "minutes", "trials", "threat", "failure_prob", "folds", "seed")
    flags = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    if "trials" in flags and "minutes" not in flags:
        flags["minutes"] = None
    return {
        "given": given,
        "methods": arguments.methods or methods,
        "classes": project.options.get("classes"),
        "balanced": arguments.balanced,
        "device": arguments.device or project.options.get("device", "auto"),
        **flags,
    }


def _with_trusted(project: Project, trusted: Path) -> Project:
    if project.data_name is not None:
        raise ConfigError(f"--train-on-trusted is for files of your own; {project.data_name} has its own examples.")
    return dataclasses.replace(project, trusted=trusted)


def _write(project: Project, out: Path, method: str, constants: Mapping[str, Any], sentence: str | None) -> Path:
    make_folder(out)
    path = out / "tuned.toml"
    text = tuned_toml(project, path, method, constants, sentence)
    with write_atomically(path) as file:
        file.write(text.encode())
    return path


# --- without a trusted file -------------------------------------------------------------------------------------------


def _by_facts(
    project: Project, size: Mapping[str, int], out: Path, arguments: argparse.Namespace, console: Console
) -> int:
    """The choice by declared facts, which is the one that `train` would make."""
    for name in ("minutes", "trials", "methods", "folds", "seed", "balanced", "train_on_trusted"):
        if getattr(arguments, name):
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} belongs to a search, which needs examples to search on; give --trusted FILE.")
    if arguments.at is not None:
        most = max(radii_for(arguments.at, *size.values()))
        wanted = {} if most == 0 else {"radius": most}
        project = dataclasses.replace(project, options={**project.options, **wanted})
    choice = _chosen_by_facts(project, project.training_file())
    found = {name: getattr(choice.defence, name, None) for name in _BY_FACTS}
    constants = {**{name: value for name, value in found.items() if value is not None}, **size}
    path = _write(project, out, choice.defence.name, constants, None)
    if arguments.json:
        _shared.print_json({"config": str(path), "method": choice.defence.name, "options": constants})
        return 0
    console.print("Without trusted examples, declared facts decide:")
    console.print(choice.words)
    console.print(f"Next: mithridate train {shlex.quote(str(path))}", soft_wrap=True)
    return 0


def _chosen_by_facts(project: Project, training: Examples) -> Choice:
    defence = project.defence()
    defence = defence if training.units is None else defence.for_units()
    return defence.choose(facts_of(defence, training)[0])


# --- what is shown ----------------------------------------------------------------------------------------------------


def _say(trial: Trial) -> None:
    """A line for every trial."""
    if trial.status == FINISHED:
        came = ", ".join(f"{share:.1%}" for share in trial.certified)
    else:
        came = f"{trial.status}: {shortened(trial.reason, 100)}"
    line = f"mithridate: trial {trial.number}: {trial.candidate.method}: {came} ({trial.seconds:.1f} s)"
    print(printable(line), file=sys.stderr, flush=True)


def _print(console: Console, found: Tuning, out: Path, path: Path) -> None:
    kind = "balanced certified accuracy" if found.is_balanced else "certified accuracy"
    console.print(f"The frontier of {len(found.trials):,} trials, by {kind} on the trusted examples:")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("trial", no_wrap=True)
    for radius in found.at:
        table.add_column(f"r = {radius:,}", justify="right", no_wrap=True)
    table.add_column("mean", justify="right", no_wrap=True)
    table.add_column("method")
    for trial in sorted(found.frontier, key=lambda each: (-each.value, each.number))[:_TABLE_TRIALS]:
        shares = [found.share(share) for share in trial.certified]
        table.add_row(str(trial.number), *shares, f"{trial.value:.1%}", trial.candidate.defence().title)
    base = found.share(found.baseline_accuracy)
    table.add_row("baseline", *(base for _ in found.at), base, f"always '{printable(shortened(found.label, 30))}'")
    console.print(table)
    console.print(printable(found.headline))
    for sentence in found.remarks:
        console.print(f"Note: {printable(sentence)}")
    console.print(f"All trials are in {out.absolute() / 'trials.html'}; open it in a browser.", soft_wrap=True)
    console.print(f"Next: mithridate train {shlex.quote(str(path))}", soft_wrap=True)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"expected names such as ridge,dpa, got {text!r}")
    return names


def _radii(text: str) -> list[float]:
    """Whole numbers as they are; what has a point or a per cent sign is a share."""
    try:
        return [_radius(part.strip()) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected radii such as 0,5,50 or 0,0.5%, got {text!r}") from None


def _radius(text: str) -> float:
    if text.endswith("%"):
        return float(text[:-1]) / 100
    return float(text) if "." in text else int(text)
