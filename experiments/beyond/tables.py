"""How much further one can go: the best recipes of every kind, beside the paper's, from raw results alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from aaai2023.results import Certified, Results
from aaai2023.tables import duration, listed, share, table

from mithridate import Votes, certify
from mithridate._io.artifacts import read_npz
from mithridate.recipes.presets import Preset, preset

HERE = Path(__file__).parent
RAW, STUDIES = HERE / "raw", HERE / "studies"
NEAREST = "nearest-neighbours"
# How the titles of curves say of how many neighbours they are.
_OR, _NEIGHBOURS = " or ", " nearest neighbours"
# Entries of Optuna's journal: a trial begins, a trial changes its state, and the state of one that is complete.
_CREATED, _ENDED, _COMPLETE = 4, 6, 1


@dataclass(frozen=True)
class Task:
    """A data set.

    Attributes:
        name: of the data set.
        title: for people.
        published: the run of the paper's recipe that the others stand beside.
        network: what it trained.
        radii: those of the table.
        few: those of the summary.
    """

    name: str
    title: str
    published: str
    network: str
    radii: tuple[int, ...]
    few: tuple[int, ...]

    @property
    def strong(self) -> str:
        """The private ensemble at its best: the name of the preset and of its run."""
        return f"{self.name}-strong"


TASKS = (
    Task("mnist", "MNIST", "mnist-lenet5-sigma3", "LeNet-5", (0, 10, 50, 150, 400, 500, 1000), (0, 150, 500)),
    Task(
        "fashion-mnist", "Fashion-MNIST", "fashion-mnist-lenet5-sigma3", "LeNet-5", (0, 10, 80, 300, 500), (0, 80, 300)
    ),
    Task("cifar10", "CIFAR-10", "cifar10-opa-tut-sigma3", "Opa-tut", (0, 3, 10, 20, 50, 100), (0, 10, 50)),
)


@dataclass(frozen=True, eq=False)
class Curve:
    """What a recipe certifies.

    Attributes:
        title: of the recipe.
        certified: the radii of all test points.
        is_sound: whether that is a guarantee.
    """

    title: str
    certified: Certified
    is_sound: bool = True


class Beyond:
    """The runs of a folder beside those of the paper's recipes; every answer is computed once."""

    def __init__(self, paper: Results, folder: Path = RAW, studies: Path = STUDIES) -> None:
        self.paper = paper
        self.folder = folder
        self.studies = studies
        self._curves: dict[str, tuple[Curve, ...]] = {}

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """The data sets that something was run on."""
        return tuple(task for task in TASKS if any(self.runs(task)))

    def runs(self, task: Task) -> Iterator[str]:
        """The runs on a data set: the private ensemble, then neighbours, the most of them last."""
        if (self.folder / f"{task.strong}.npz").exists():
            yield task.strong
        found = [path.stem for path in self.folder.glob(f"{task.name}-{NEAREST}-*.npz")]
        yield from sorted(found, key=neighbours)

    def curves(self, task: Task) -> tuple[Curve, ...]:
        """The paper's recipe, by its rules and soundly, and the runs of this folder."""
        if task.name not in self._curves:
            self._curves[task.name] = (*self._published(task), *(self._curve(name) for name in self.runs(task)))
        return self._curves[task.name]

    def note(self, name: str) -> dict[str, Any]:
        """How a run was made."""
        return json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))

    def found(self, task: Task) -> dict[str, Any] | None:
        """The trial of the search that became the preset, and the number of trials."""
        path = self.studies / f"{task.name}.json"
        if not path.exists():
            return None
        study = json.loads(path.read_text(encoding="utf-8"))
        mine = trial_of(preset(task.strong))
        trial = next((trial for trial in study["best"] if {key: _constants(trial)[key] for key in mine} == mine), None)
        return None if trial is None else {**trial, **_counted(self.studies / f"{task.name}.log")}

    def _published(self, task: Task) -> Iterator[Curve]:
        if self.paper.has(task.published):
            by_paper = self.paper.by_paper(task.published, "rdp", "votes")
            yield Curve(f"the paper's recipe, {task.network}: RDP, the paper's rules", by_paper, is_sound=False)
            yield Curve("the same votes: f-DP, sound", self.paper.sound(task.published, "fdp", "votes"))

    def _curve(self, name: str) -> Curve:
        path = self.folder / f"{name}.npz"
        if NEAREST in name:
            kept = read_npz(path, "certified radii")
            return Curve(_neighbours_in_words(name), _certified(kept["label"], kept["radius"], kept["y"]))
        votes = Votes.load(path)
        found = certify(votes)
        assert votes.labels is not None
        wanted = preset(name).config.instances
        number = f"{votes.instances:,}" if votes.instances == wanted else f"{votes.instances:,} of {wanted:,}"
        title = f"DP ensemble, `{name}`, {number} instances: f-DP"
        return Curve(title, _certified(found.label, found.radius, votes.labels))


def _counted(journal: Path) -> dict[str, int]:
    """How many trials of a journal are complete, in all of its studies, and how many of these somebody proposed."""
    given: list[bool] = []
    complete = proposed = 0
    for line in journal.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if entry["op_code"] == _CREATED:
            given.append("fixed_params" in entry.get("system_attrs", {}))
        elif entry["op_code"] == _ENDED and entry["state"] == _COMPLETE:
            complete += 1
            proposed += given[entry["trial_id"]]
    return {"trials": complete, "proposed": proposed}


def trial_of(found: Preset) -> dict[str, Any]:
    """The constants of a preset as a summary of the search holds them."""
    names = ("noise_multiplier", "sample_rate", "steps", "max_grad_norm", "learning_rate", "average_iterates")
    return {"features": found.features.to_dict(), **{name: getattr(found.config, name) for name in names}}


def _constants(trial: dict[str, Any]) -> dict[str, Any]:
    return {**trial["config"], "features": trial["features"]}


def neighbours(name: str) -> list[int]:
    """How many neighbours vote, from the name of a run; several numbers where fewer decide when more disagree."""
    return [int(number) for number in name.rpartition(f"{NEAREST}-")[2].split("-")]


def _neighbours_in_words(name: str) -> str:
    *more, last = (f"{number:,}" for number in neighbours(name))
    return f"{', '.join(more)}{_OR}{last}{_NEIGHBOURS}" if more else f"{last}{_NEIGHBOURS}"


def _certified(label: Any, radius: Any, y: Any) -> Certified:
    return Certified(np.where(label == y, radius, -1).astype(np.int64))


# --- the page -------------------------------------------------------------------------------------------------------


def blocks(beyond: Beyond) -> dict[str, str]:
    """The generated parts of the page."""
    return {"beyond": "\n".join(_section(beyond, task) for task in beyond.tasks), "summary": summary(beyond)}


def _section(beyond: Beyond, task: Task) -> str:
    curves = beyond.curves(task)
    shares = {curve.title: curve.certified.accuracy(task.radii) for curve in curves}
    best = np.max([shares[curve.title] for curve in curves if curve.is_sound], axis=0)
    lines = [
        [
            f"{curve.title}{'' if curve.is_sound else ' †'}",
            *(_cell(value, top, curve) for value, top in zip(shares[curve.title], best, strict=True)),
            f"{curve.certified.median:g}, {curve.certified.largest}",
        ]
        for curve in curves
    ]
    head = [task.title, *(f"r = {radius:,}" for radius in task.radii), "median, largest"]
    parts = [f"### {task.title}\n", table(head, lines), *_how(beyond, task)]
    return "\n".join(parts)


def _cell(value: float, best: float, curve: Curve) -> str:
    shown = share(value) if value else ""
    return f"**{shown}**" if curve.is_sound and value == best > 0 else shown


def _how(beyond: Beyond, task: Task) -> Iterator[str]:
    """What made the lines of a table, and how it was found."""
    runs = list(beyond.runs(task))
    if task.strong in runs:
        yield _how_strong(beyond, task)
    if any(NEAREST in name for name in runs):
        times = [duration(beyond.note(name)["seconds"]) for name in runs if NEAREST in name]
        yield (
            f"The neighbours: `mithridate compare experiments/beyond/best-{task.name}.toml`, {listed(times)} on "
            f"{beyond.note(runs[-1])['device']}.\n"
        )


def _how_strong(beyond: Beyond, task: Task) -> str:
    note, found = beyond.note(task.strong), beyond.found(task)
    wanted = preset(task.strong).config.instances
    fewer = "" if note["instances"] == wanted else f" --instances {note['instances']}"
    made = (
        f"The ensemble: `mithridate train --recipe {task.strong}{fewer}`, then "
        f"`mithridate certify runs/{task.strong}`; {duration(note['seconds'])} on {note['device']}."
    )
    if found is None:
        return f"{made}\n"
    measured = found.get("confirmed") or found["measured"]
    at = listed([f"{share(value)} at {int(radius):,}" for radius, value in measured["certified_accuracy"].items()])
    return (
        f"{made} The search compared {found['trials']} recipes, {found['proposed']} of them proposed by hand, after "
        f"the constants of the features had been chosen on the same training set. On its held-out part it expected "
        f"{at} of {found['config']['instances']:,} instances of this one, from votes of {measured['instances']:,}.\n"
    )


def summary(beyond: Beyond) -> str:
    """One table for all data sets: the paper's text, its recipe soundly, and the best that there is."""
    lines = [line for task in beyond.tasks for line in _summary(beyond, task)]
    head = ["certified accuracy", "r", "paper's recipe, f-DP", "DP ensemble"]
    return table([*head, "few neighbours", "many neighbours", "at several scales"], lines)


def _summary(beyond: Beyond, task: Task) -> Iterator[list[str]]:
    curves = beyond.curves(task)
    neighbours = [curve for curve in curves if curve.title.endswith(_NEIGHBOURS)]
    alone = [curve for curve in neighbours if _OR not in curve.title]
    several = [curve for curve in neighbours if _OR in curve.title]
    starts = ("the same", "DP")
    found = [next((c for c in curves if c.title.startswith(start)), None) for start in starts]
    columns = [*found, *[*alone, None, None][:2], *[*several, None][:1]]
    for radius in task.few:
        shares = [0.0 if c is None else c.certified.accuracy([radius])[0] for c in columns]
        yield [task.title, f"{radius:,}", *(share(value) if value else "" for value in shares)]
