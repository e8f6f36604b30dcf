"""What a search found: every trial, the frontier, the choice, and the sentence that goes with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mithridate._io.files import TEXT_BYTES, PathLike, parse_json, read_file, write_atomically
from mithridate._text import counted, percent, shortened
from mithridate._version import VERSION
from mithridate.comparing.result import make_folder
from mithridate.core.conditions import Statement
from mithridate.core.labels import Commonest
from mithridate.core.mechanism import Threat
from mithridate.core.registry import hook
from mithridate.core.units import UnitWords
from mithridate.defences import Defence
from mithridate.errors import ArtifactError, ConfigError
from mithridate.tuning.space import Candidate, Options

SCHEMA = "mithridate.tuning/1"
RECORD = "trials.json"
# How a trial ended.
FINISHED, REFUSED, GIVEN_UP = "finished", "refused", "given up"


@dataclass(frozen=True)
class Trial:
    """One candidate, and what it certified on trusted examples that it was not trained on.

    Attributes:
        number: from 0, in the order in which they were tried.
        answers: what the sampler answered; all else of the candidate follows from that.
        candidate: the method with its constants.
        status: `finished`, `refused` (the method cannot do that) or `given up` (it took too long).
        certified: certified accuracy at every radius asked for; none where it did not finish.
        reason: why it did not finish.
        seconds: how long it took.
    """

    number: int
    answers: Mapping[str, Any]
    candidate: Candidate
    status: str
    certified: tuple[float, ...] = ()
    reason: str = ""
    seconds: float = 0.0

    @property
    def value(self) -> float:
        """What the search raises: the mean over the radii; 0 where nothing came of the trial."""
        return float(np.mean(self.certified)) if self.certified else 0.0

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "number": self.number,
            "answers": dict(self.answers),
            "method": self.candidate.method,
            "options": self.candidate.options,
            "status": self.status,
            "certified_accuracy": list(self.certified),
            "mean": self.value,
            "reason": self.reason,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, eq=False)
class Tuning:
    """What `tune` found.

    Attributes:
        trials: all of them, in their order.
        identity: what the search was about, as plain JSON values; only the same search is resumed.
        at: the radii asked for, in changes of the training set.
        scaled: the same in changes of the part that a fold trains on, of the fold with the largest ones.
        examples: the number of trusted examples.
        trained_on: how many of them a fold trains on, about.
        fingerprint: SHA-256 of the trusted examples.
        baseline: the commonest label of the trusted examples, and the share of always saying it.
        label: what that label is called.
        notes: what a reader must know about the trusted examples, a sentence each.
        trains_on_trusted: whether the choice is for the training data together with the trusted examples.
    """

    trials: tuple[Trial, ...]
    identity: Mapping[str, Any]
    at: tuple[int, ...]
    scaled: tuple[int, ...]
    examples: int
    trained_on: int
    fingerprint: str
    baseline: Commonest
    label: str
    notes: tuple[str, ...] = ()
    trains_on_trusted: bool = False

    @property
    def num_train(self) -> int:
        """The number of training examples (or units) that constants and radii are for: declared, else its step."""
        return self.identity["num_train"]

    @property
    def size(self) -> dict[str, int]:
        """The same as a constant of a configuration."""
        return {"size_step" if self.identity["is_step"] else self.unit_words.declared_as: self.num_train}

    @property
    def unit(self) -> str | None:
        """What a unit is called, where the examples have some."""
        return self.identity.get("unit")

    @property
    def unit_words(self) -> UnitWords:
        """How people speak of what radii count."""
        return UnitWords.of(self.unit)

    @property
    def many(self) -> str:
        """What radii count."""
        return self.unit_words.many

    @property
    def is_balanced(self) -> bool:
        """Whether accuracy is a mean over classes."""
        return self.identity["balanced"]

    @property
    def threat(self) -> Threat:
        """How the training data may have been changed."""
        return Threat(self.identity["threat"])

    @property
    def seed(self) -> int:
        """Of sampler and folds."""
        return self.identity["seed"]

    @property
    def baseline_accuracy(self) -> float:
        """What always saying the commonest label scores, at every radius."""
        return 1 / self.identity["labels"] if self.is_balanced else self.baseline.share

    @property
    def finished(self) -> tuple[Trial, ...]:
        """The trials that came to a result."""
        return tuple(trial for trial in self.trials if trial.status == FINISHED)

    @cached_property
    def chosen(self) -> Trial:
        """The trial with the largest mean of certified accuracy; of equal ones the first."""
        return max(self.finished, key=lambda trial: (trial.value, -trial.number))

    @cached_property
    def frontier(self) -> tuple[Trial, ...]:
        """The trials that no other one beats: as good at every radius and better at one, or equal and earlier."""
        return tuple(
            one for one in self.finished if not any(_beats(other, one) for other in self.finished if other is not one)
        )

    @property
    def method(self) -> str:
        """The method that was chosen."""
        return self.chosen.candidate.method

    @property
    def options(self) -> Options:
        """Its constants, for a number of training examples or a size step, which is among them."""
        return {**self.chosen.candidate.options, **self.size}

    def __repr__(self) -> str:
        searched = f"{counted(len(self.trials), 'trial')} on {self.examples:,} trusted examples"
        return f"Tuning by {searched}\n{self.headline}"

    def defence(self) -> Defence:
        """The choice as a defence, to be trained on the training data; the number of labels is that of the search."""
        made = self.chosen.candidate.defence(classes=self.identity["classes"])
        return replace(made, num_train=None, num_units=None, **self.size) if self.identity["is_step"] else made

    @property
    def statement(self) -> Statement:
        """The sentence that every certificate of the choice repeats: an assumption, and no condition."""
        tried = counted(len(self.trials), "trial")
        but = f", except by its size step, {self.num_train:,}, with which radii end" if self.identity["is_step"] else ""
        too = " They are trained on, too, and no radius counts changes of these." if self.trains_on_trusted else ""
        return Statement(
            f"Method, features and constants were chosen by mithridate tune ({tried}) on {self.examples:,} trusted "
            f"examples (their SHA-256 begins with {self.fingerprint[:16]}); the user states that no attacker touched "
            f"these, and the training data had no part in the choice{but}.{too}"
        )

    # --- in words ---------------------------------------------------------------------------------------------------

    @property
    def headline(self) -> str:
        """What was chosen."""
        cells = (f"{self.share(each)} at r = {r:,}" for each, r in zip(self.chosen.certified, self.at, strict=True))
        kind = "Balanced certified accuracy" if self.is_balanced else "Certified accuracy"
        title = self.defence().title
        said = title if title == self.method else f"{self.method} ({title})"
        return f"Chosen: {said}. {kind} on the trusted examples: {', '.join(cells)}."

    def share(self, accuracy: float) -> str:
        """A certified accuracy in words."""
        return f"{accuracy:.1%}" if self.is_balanced else percent(round(accuracy * self.examples), self.examples)

    @property
    def remarks(self) -> tuple[str, ...]:
        """How to read the figures, a sentence or two each."""
        said = [
            "The figures of the chosen trial are the best of many, and so a little too good: expect somewhat less on "
            "other examples. The certificates of the chosen configuration are computed anew and owe nothing to them.",
            f"Radii are changes of a training set of {self.num_train:,} {self.many}. A fold trains on about "
            f"{self.trained_on:,} trusted ones, so radii are scaled to as large a share of these and rounded up: "
            + ", ".join(f"{r:,} is {small:,}" for r, small in zip(self.at, self.scaled, strict=True))
            + f". Constants that follow the number of {self.many} are scaled alike.",
        ]
        if self.chosen.value <= self.baseline_accuracy:
            said.insert(
                0, f"No trial certifies more than the baseline on average over these radii: {self.baseline_words}."
            )
        return (*said, *self.notes)

    @property
    def baseline_words(self) -> str:
        """What the baseline is, as a clause."""
        share = self.share(self.baseline_accuracy)
        of = f"{share} of each class on average" if self.is_balanced else f"{share} of them"
        return f"always saying '{shortened(self.label)}' is correct on {of}, at every radius"

    # --- in files ---------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The search as plain JSON values."""
        return {
            **record(self.identity, self.trials),
            "headline": self.headline,
            "chosen": self.chosen.number,
            "method": self.method,
            "options": self.options,
            "statement": str(self.statement),
            "frontier": [trial.number for trial in self.frontier],
            "radii": list(self.at),
            "scaled_radii": list(self.scaled),
            "examples": self.examples,
            "trained_on": self.trained_on,
            "trusted_sha256": self.fingerprint,
            "baseline": self.baseline_accuracy,
            "remarks": list(self.remarks),
        }

    def html(self) -> str:
        """One self-contained page of all trials: no network, no script, no other files."""
        return hook("TuningReport")(self).html()

    def write(self, folder: PathLike) -> None:
        """Write trials.json and trials.html into a folder.

        Raises:
            ArtifactError: the folder cannot be written to.
        """
        folder = Path(folder)
        make_folder(folder)
        texts = {RECORD: json.dumps(self.to_dict(), allow_nan=False) + "\n", "trials.html": self.html()}
        for name, text in texts.items():
            with write_atomically(folder / name) as file:
                file.write(text.encode("utf-8", "replace"))


def _beats(one: Trial, other: Trial) -> bool:
    mine, theirs = np.array(one.certified), np.array(other.certified)
    return bool((mine >= theirs).all() and ((mine > theirs).any() or one.number < other.number))


# --- the record that a search is resumed from -------------------------------------------------------------------------

_WORDS = {
    "trusted": "the trusted examples",
    "declaration": "how the data is read",
    "given": "what [train] of the configuration decides",
    "num_train": "num_train",
    "is_step": "whether num_train is declared",
    "unit": "what a unit is called",
    "units": "the units of the trusted examples",
    "classes": "the declared classes",
    "methods": "the methods",
    "at": "the radii (--at)",
    "balanced": "--balanced",
    "threat": "the threat",
    "failure_prob": "the failure probability",
    "folds": "the number of folds",
    "seed": "the seed",
}


def record(identity: Mapping[str, Any], trials: tuple[Trial, ...]) -> dict[str, Any]:
    """What a search is resumed from, as plain JSON values."""
    return {
        "schema": SCHEMA,
        "identity": dict(identity),
        "trials": [trial.to_dict() for trial in trials],
        "versions": {"mithridate": VERSION, "numpy": np.__version__},
    }


def write_record(folder: Path, identity: Mapping[str, Any], trials: tuple[Trial, ...]) -> None:
    """Keep what is finished, whole and on the disk."""
    with write_atomically(folder / RECORD, durable=True) as file:
        file.write((json.dumps(record(identity, trials), allow_nan=False) + "\n").encode())


def read_record(folder: Path, identity: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The trials that a folder has of this very search; none where it has no record.

    Raises:
        ArtifactError: the record is damaged.
        ConfigError: it is of another search.
    """
    path = folder / RECORD
    if not path.exists():
        return []
    try:
        content = parse_json(read_file(path, TEXT_BYTES))
        before, trials = content["identity"], content["trials"]
        is_whole = content["schema"] == SCHEMA and isinstance(before, dict) and isinstance(trials, list)
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(path) from error
    if not is_whole:
        raise damaged(path)
    for name, value in json.loads(json.dumps(dict(identity))).items():
        if before.get(name) != value:
            raise ConfigError(
                f"{folder} has the trials of another search: {_WORDS.get(name, name)} differ. Choose another folder "
                "(-o), or remove it to start anew."
            )
    return trials


def damaged(path: Path) -> ArtifactError:
    """What a record that cannot be read is refused with."""
    return ArtifactError(f"{path} is not what this version of tune writes. Choose another folder (-o), or remove it.")
