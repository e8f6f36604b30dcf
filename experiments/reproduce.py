"""`make reproduce`: train what the experiments need, and keep the raw results.

python experiments/reproduce.py                                    (everything that is not there yet; needs a GPU)
python experiments/reproduce.py mnist-lenet5-sigma3 --device cpu
python experiments/reproduce.py cifar10-resnet18-sigma0.2 --piece 5 --seconds 540

Every configuration in the folders beside this file becomes `raw/NAME.npz`, the votes, and `raw/NAME.json`, how they
were made. What is there already is not trained again. Private ensembles and bagging can be trained in pieces: each
piece is an independent run with a seed of its own, from the operating system and stored nowhere, and is merged into the
file when it is done. So the command may be killed at any moment, on any machine, and goes on where it ended.

Where a certificate needs more than counts (which neighbours, which of the overlapping parts), too much to be kept, the
file holds labels and certified radii instead. These methods draw nothing at random: whoever runs them gets the same.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mithridate import Certificate, Votes
from mithridate._io.files import write_atomically
from mithridate.core.mechanism import Private
from mithridate.data.examples import Examples
from mithridate.defences import Defence
from mithridate.errors import MithridateError
from mithridate.projects import Project, read_comparison, read_project
from mithridate.training.order import RuntimeOptions, compose
from mithridate.training.run import pick_device

HERE = Path(__file__).parent
FOLDERS = ("aaai2023", "beyond")
BASELINES, BEST = "-baselines", "best-"
# In the order in which they are worth having.
ORDER = ("mnist-lenet5", "fashion-mnist-lenet5", "cifar10-opa-tut-sigma3", "cifar10-resnet18", "cifar10-opa-tut")

Data = tuple[Examples, Examples]


@dataclass(frozen=True)
class Experiment:
    """Raw results to make.

    Attributes:
        name: of the files.
        raw: the folder that they go to.
        data: where the data is.
        instances: how many models vote; None where nothing is drawn at random, and all is done at once.
        train: from data, a number of instances and a device to votes.
        defence: what certifies the votes, where they are not kept.
    """

    name: str
    raw: Path
    data: Project
    instances: int | None
    train: Callable[[Data, int, str], Votes]
    defence: Defence | None = None

    @property
    def votes(self) -> Path:
        """The file of the votes, or of the certified radii."""
        return self.raw / f"{self.name}.npz"

    @property
    def how(self) -> Path:
        """The file that says how they were made."""
        return self.raw / f"{self.name}.json"

    @property
    def is_complete(self) -> bool:
        """Whether all of its instances have voted."""
        if self.instances is None or not self.votes.exists():
            return self.votes.exists()
        return Votes.load(self.votes).instances >= self.instances


def experiments(root: Path = HERE) -> list[Experiment]:
    """What the configurations describe, the most wanted first."""
    found: list[Experiment] = []
    for path in sorted(path for folder in FOLDERS for path in (root / folder).glob("*.toml")):
        is_comparison = path.stem.endswith(BASELINES) or path.stem.startswith(BEST)
        found += _compared(path) if is_comparison else [_private(path)]
    return sorted(found, key=lambda one: (_place(one), one.name))


def _place(one: Experiment) -> int:
    start = next((place for place, start in enumerate(ORDER) if one.name.startswith(start)), len(ORDER))
    return start + len(ORDER) * FOLDERS.index(one.raw.parent.name)


def _private(path: Path) -> Experiment:
    """A private ensemble: what `mithridate train` does with this file."""
    project = read_project(path)
    project.defence()  # or it says what is wrong, before anything is trained

    def run(data: Data, instances: int, device: str) -> Votes:
        wanted = replace(project, options={**project.options, "instances": instances})
        order = compose(wanted.defence(), *data, device=pick_device(device).type)
        with tempfile.TemporaryDirectory() as folder:
            runtime = {**project.runtime(), "device": device, "run_dir": Path(folder) / "run"}
            return order.run(RuntimeOptions(**runtime, progress=_lines(path.stem)))

    instances = project.options.get("instances")
    if not isinstance(instances, int):
        raise SystemExit(f"{path} does not say how many instances; add instances to [train].")
    return Experiment(path.stem, path.parent / "raw", project, instances, run)


def _compared(path: Path) -> Iterator[Experiment]:
    """The methods of a comparison file."""
    file = read_comparison(path)
    start = path.stem.removesuffix(BASELINES).removeprefix(BEST)
    for row, defence in file.defences().items():
        constants = defence.to_dict()
        is_random = "draws" in constants
        numbers = ("draws", "partitions", "spread", "neighbours")
        sizes = [_size(constants[name]) for name in numbers if name in constants]
        name = "-".join([start, defence.name, *sizes]) if sizes else f"{start}-{row}"
        instances: int | None = vars(defence)["instances"] if is_random else None
        kept = None if is_random or defence.name == "dpa" else defence
        yield Experiment(name, path.parent / "raw", file.data, instances, _defended(defence, name), kept)


def _size(constant: Any) -> str:
    """A constant, or several, as names of files have it."""
    return "-".join(map(str, constant)) if isinstance(constant, list) else str(constant)


def _defended(defence: Any, name: str) -> Callable[[Data, int, str], Votes]:
    def run(data: Data, instances: int, device: str) -> Votes:
        training, test = data
        trained: Defence = replace(defence, instances=instances) if "instances" in vars(defence) else defence
        return trained.train(training, test, device=device, progress=_lines(name))

    return run


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


def reproduce(one: Experiment, data: Data, *, device: str, piece: int | None) -> None:
    """Train what is missing of an experiment, up to `piece` instances, and keep it.

    Guarantee: the raw votes are those of independent instances, none of them dropped by what it voted.
    """
    before = Votes.load(one.votes) if one.instances is not None and one.votes.exists() else None
    missing = 1 if one.instances is None else one.instances - (before.instances if before else 0)
    pieces: list[dict[str, Any]] = []
    if before is not None and one.how.exists():  # a process may have been killed between the two files
        pieces = json.loads(one.how.read_text(encoding="utf-8"))["pieces"]
    start = time.monotonic()
    votes = one.train(data, min(piece or missing, missing), device)
    part = {"instances": votes.instances, "seconds": round(time.monotonic() - start, 3), **_machine(device)}
    right = _keep_radii(one, one.defence, votes) if one.defence is not None else None
    if right is None:
        votes = _small(votes, with_scores=one.raw.parent.name == "aaai2023")
        merged = votes if before is None else before.merge(votes)
        merged.save(one.votes)
        votes, right = merged, accuracy(merged)
    with write_atomically(one.how) as file:
        file.write((json.dumps(_how(one.name, votes, right, [*pieces, part]), indent=1) + "\n").encode())
    total = "" if one.instances is None else f" of {one.instances}"
    print(f"{one.name}: {votes.instances}{total} instances, {part['seconds']:.1f} s, {right:.4f} right", flush=True)


def _small(votes: Votes, *, with_scores: bool) -> Votes:
    """Counts, and where they are of use sums of scores in single precision, which the confidence bounds allow for."""
    sums, squares = (None if a is None else a.astype(np.float32) for a in (votes.score_sums, votes.score_squares))
    if not with_scores or not isinstance(votes.mechanism, Private):
        sums = squares = None
    return replace(votes, score_sums=sums, score_squares=squares, score_histograms=None, evidence={})


def _keep_radii(one: Experiment, defence: Defence, votes: Votes) -> float:
    """Labels and certified radii in place of votes; returns how many labels are right."""
    certificate = defence.certify(votes)
    assert isinstance(certificate, Certificate)
    assert votes.labels is not None
    label, radius, y = (a.astype(np.int32) for a in (certificate.label, certificate.radius, votes.labels))
    with write_atomically(one.votes) as file:
        np.savez_compressed(file, label=label, radius=radius, y=y)
    return float((certificate.label == votes.labels).mean())


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
    return tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def _how(name: str, votes: Votes, right: float, pieces: list[dict[str, Any]]) -> dict[str, Any]:
    last = pieces[-1]
    mechanism = votes.mechanism.to_dict()
    is_random = isinstance(votes.mechanism, Private) or "draws" in mechanism
    return {
        "name": name,
        "instances": votes.instances,
        "seconds": round(sum(part["seconds"] for part in pieces), 3),
        "accuracy": right,
        "mechanism": {key: value for key, value in mechanism.items() if key != "offsets"},
        "seeds": "drawn from the operating system for each piece and kept nowhere" if is_random else "none",
        "precision": (votes.recipe or {}).get("precision"),
        "assumptions": list(votes.assumptions),
        **{key: last[key] for key in ("device", "torch", "python", "mithridate")},
        "pieces": pieces,
    }


def accuracy(votes: Votes) -> float:
    """How often the majority is right."""
    assert votes.labels is not None
    return float((votes.counts.argmax(axis=1) == votes.labels).mean())


# --- the command ----------------------------------------------------------------------------------------------------


def run(arguments: argparse.Namespace) -> None:
    """Train until everything is there or the time is up."""
    end = time.monotonic() + arguments.seconds
    data: tuple[Any, Data] | None = None
    for one in _chosen(arguments):
        longest = 0.0
        one.raw.mkdir(parents=True, exist_ok=True)
        while not one.is_complete and time.monotonic() + longest < end:
            which = (one.data.data_name, one.data.data_dir, one.data.train, one.data.assumptions)
            if data is None or data[0] != which:
                data = (which, one.data.examples())
            start = time.monotonic()
            reproduce(one, data[1], device=arguments.device, piece=arguments.piece)
            longest = max(longest, time.monotonic() - start)


def _chosen(arguments: argparse.Namespace) -> list[Experiment]:
    known = experiments(arguments.root)
    unknown = set(arguments.names) - {one.name for one in known}
    if unknown:
        raise SystemExit(f"There is no {', '.join(sorted(unknown))}; there are {', '.join(o.name for o in known)}.")
    chosen = [one for one in known if one.name in arguments.names or not arguments.names]
    return chosen if arguments.raw is None else [replace(one, raw=arguments.raw) for one in chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="raw results to make (all)")
    parser.add_argument("--device", default="cuda", help="cpu or cuda (cuda)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing that would end later")
    parser.add_argument("--piece", type=int, help="train so many instances at a time, and keep them (all)")
    parser.add_argument("--raw", type=Path, help="where raw results go (raw/ beside the configurations)")
    parser.add_argument("--root", type=Path, default=HERE, help=argparse.SUPPRESS)
    try:
        run(parser.parse_args())
    except MithridateError as error:
        sys.exit(f"reproduce: {error}")


if __name__ == "__main__":
    main()
