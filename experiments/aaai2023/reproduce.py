"""`make reproduce`: train what the paper trained, and keep the votes.

python experiments/aaai2023/reproduce.py                       (everything that is not there yet; needs a GPU)
python experiments/aaai2023/reproduce.py mnist-lenet5-sigma3 --device cpu
python experiments/aaai2023/reproduce.py cifar10-resnet18-sigma0.2 --piece 5 --seconds 540

Every configuration beside this file becomes `raw/NAME.npz`, the votes, and `raw/NAME.json`, how they were made. What is
there already is not trained again. Private ensembles and bagging can be trained in pieces: each piece is an
independent run with a seed of its own, from the operating system and stored nowhere, and is merged into the file when
it is done. So the command may be killed at any moment, on any machine, and goes on where it ended.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mithridate import Votes, train
from mithridate._artifact import write_atomically
from mithridate.comparison_file import read_comparison
from mithridate.data.readers import Examples
from mithridate.defences.base import Defence
from mithridate.ensemble.training import pick_device
from mithridate.errors import MithridateError
from mithridate.mechanism import Bagged, Deterministic
from mithridate.project import Project, compose, read_project

HERE = Path(__file__).parent
RAW = HERE / "raw"
BASELINES = "-baselines"
# In the order in which they are worth having.
ORDER = ("mnist-lenet5", "fashion-mnist-lenet5", "cifar10-opa-tut-sigma3", "cifar10-resnet18", "cifar10-opa-tut")


@dataclass(frozen=True)
class Experiment:
    """A row to reproduce.

    Attributes:
        name: of the raw results.
        data: where the data is.
        instances: how many models vote.
        is_random: whether it can be trained in independent pieces.
        train: from data, a number of instances and a device to votes.
    """

    name: str
    data: Project
    instances: int
    is_random: bool
    train: Callable[[tuple[Examples, Examples], int, str], Votes]


def experiments(folder: Path = HERE) -> list[Experiment]:
    """What the configurations of a folder describe, the most wanted first."""
    found: list[Experiment] = []
    for path in sorted(folder.glob("*.toml")):
        found += _baselines(path) if path.stem.endswith(BASELINES) else [_private(path)]
    return sorted(found, key=lambda one: (_place(one.name), one.name))


def _place(name: str) -> int:
    return next((place for place, start in enumerate(ORDER) if name.startswith(start)), len(ORDER))


def _private(path: Path) -> Experiment:
    """A private ensemble: what `mithridate train` does with this file."""
    project = read_project(path)

    def run(data: tuple[Examples, Examples], instances: int, device: str) -> Votes:
        training, test = data
        recipe = compose(project.options, training, pick_device(device).type)
        return train(
            _pair(training),
            _pair(test),
            model=recipe.model,
            features=recipe.features,
            config=replace(recipe.config, instances=instances),
            device=device,
            in_flight=project.options.get("in_flight"),
            precision=project.options.get("precision", "auto"),
            source=training.source,
            assumptions=training.assumptions,
            progress=_lines(path.stem),
        )

    return Experiment(path.stem, project, int(project.options["instances"]), True, run)


def _baselines(path: Path) -> Iterator[Experiment]:
    """What the paper compares with: the methods of a comparison file."""
    file = read_comparison(path)
    for defence in file.defences().values():
        constants = defence.recipe
        is_random = "draws" in constants
        size: int = constants["draws" if is_random else "partitions"]
        name = f"{path.stem.removesuffix(BASELINES)}-{defence.name}-{size}"
        instances: int = vars(defence)["instances"] if is_random else size
        yield Experiment(name, file.data, instances, is_random, _defended(defence, name))


def _defended(defence: Any, name: str) -> Callable[[tuple[Examples, Examples], int, str], Votes]:
    def run(data: tuple[Examples, Examples], instances: int, device: str) -> Votes:
        training, test = data
        trained: Defence = replace(defence, instances=instances) if "instances" in vars(defence) else defence
        return trained.train(
            _pair(training),
            _pair(test),
            device=device,
            source=training.source,
            assumptions=training.assumptions,
            progress=_lines(name),
        )

    return run


def _pair(examples: Examples) -> tuple[Any, Any]:
    assert examples.y is not None  # named data sets are labelled
    return examples.x, examples.y


def _lines(name: str) -> Callable[[int, int], None]:
    """A line of progress now and then."""
    start = shown = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal shown
        if time.monotonic() - shown > 30:
            shown = time.monotonic()
            print(f"{name}: {done / total:.0%} after {shown - start:.0f} s", flush=True)

    return tell


# --- what is kept ---------------------------------------------------------------------------------------------------


def reproduce(one: Experiment, data: tuple[Examples, Examples], *, raw: Path, device: str, piece: int) -> None:
    """Train what is missing of an experiment, up to `piece` instances, and keep it.

    Guarantee: the raw votes are those of independent instances, none of them dropped by what it voted.
    """
    votes_path, how_path = raw / f"{one.name}.npz", raw / f"{one.name}.json"
    before = Votes.load(votes_path) if votes_path.exists() else None
    missing = one.instances - (before.instances if before else 0)
    start = time.monotonic()
    votes = _small(one.train(data, min(piece, missing) if one.is_random else one.instances, device))
    taken = time.monotonic() - start
    part = {"instances": votes.instances, "seconds": round(taken, 1), **_machine(device)}
    pieces: list[dict[str, Any]] = json.loads(how_path.read_text(encoding="utf-8"))["pieces"] if before else []
    merged = votes if before is None else before.merge(votes)
    merged.save(votes_path)
    how = _how(one.name, merged, [*pieces, part])
    with write_atomically(how_path) as file:
        file.write((json.dumps(how, indent=1) + "\n").encode())
    print(f"{one.name}: {merged.instances} of {one.instances} instances, {taken:.1f} s, {accuracy(merged):.4f} right")


def _small(votes: Votes) -> Votes:
    """Sums of scores in single precision, which the confidence bounds allow for, and no preferences between labels."""
    sums, squares = (None if a is None else a.astype(np.float32) for a in (votes.score_sums, votes.score_squares))
    # How instances of a random mechanism rank labels is of no use, and large.
    if isinstance(votes.mechanism, Deterministic | Bagged):
        sums = squares = None
    return replace(votes, score_sums=sums, score_squares=squares, score_histograms=None, evidence={})


def _machine(device: str) -> dict[str, Any]:
    chosen = pick_device(device)
    name = torch.cuda.get_device_name(chosen) if chosen.type == "cuda" else f"{platform.machine()} CPU"
    return {
        "device": name,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "mithridate": _version(),
    }


def _version() -> str:
    """That of the checkout, which need not be installed."""
    return tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def _how(name: str, votes: Votes, pieces: list[dict[str, Any]]) -> dict[str, Any]:
    last = pieces[-1]
    recipe = votes.recipe or {}
    return {
        "name": name,
        "instances": votes.instances,
        "seconds": round(sum(part["seconds"] for part in pieces), 1),
        "accuracy": accuracy(votes),
        "mechanism": votes.mechanism.to_dict(),
        "seeds": "drawn from the operating system for each piece and kept nowhere",
        "precision": recipe.get("precision"),
        **{key: last[key] for key in ("device", "torch", "python", "mithridate")},
        "pieces": pieces,
    }


def accuracy(votes: Votes) -> float:
    """How often the majority is right."""
    assert votes.labels is not None
    return float((votes.counts.argmax(axis=1) == votes.labels).mean())


def is_complete(one: Experiment, raw: Path) -> bool:
    """Whether all of its instances have voted."""
    path = raw / f"{one.name}.npz"
    return path.exists() and Votes.load(path).instances >= one.instances


# --- the command ----------------------------------------------------------------------------------------------------


def run(arguments: argparse.Namespace) -> None:
    """Train until everything is there or the time is up."""
    end = time.monotonic() + arguments.seconds
    raw: Path = arguments.raw
    raw.mkdir(parents=True, exist_ok=True)
    data: tuple[Project, tuple[Examples, Examples]] | None = None
    for one in _chosen(arguments.names, arguments.configurations):
        longest = 0.0
        while not is_complete(one, raw) and time.monotonic() + longest < end:
            if data is None or data[0] != one.data:
                data = (one.data, one.data.examples())
            start = time.monotonic()
            reproduce(one, data[1], raw=raw, device=arguments.device, piece=arguments.piece or one.instances)
            longest = max(longest, time.monotonic() - start)


def _chosen(names: list[str], folder: Path) -> list[Experiment]:
    known = experiments(folder)
    unknown = set(names) - {one.name for one in known}
    if unknown:
        raise SystemExit(f"There is no {', '.join(sorted(unknown))}; there are {', '.join(o.name for o in known)}.")
    return [one for one in known if one.name in names or not names]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="raw results to make (all)")
    parser.add_argument("--device", default="cuda", help="cpu or cuda (cuda)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing that would end later")
    parser.add_argument("--piece", type=int, help="train so many instances at a time, and keep them (all)")
    parser.add_argument("--raw", type=Path, default=RAW, help="where raw results go")
    parser.add_argument("--configurations", type=Path, default=HERE, help=argparse.SUPPRESS)
    try:
        run(parser.parse_args())
    except MithridateError as error:
        sys.exit(f"reproduce: {error}")


if __name__ == "__main__":
    main()
