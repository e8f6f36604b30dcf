"""One order for every door: what is trained and all that is said of it, and apart from that how it runs.

A command, a project file, an estimator and a comparison hand over a defence and examples; `compose` makes the order of
them, here and nowhere else. So the same data, defence and constants give the same votes under the same conditions,
whichever door they came through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mithridate import _validate
from mithridate._io.files import PathLike
from mithridate.core.conditions import Size, classes_read_off, distinct, of_user, step_of
from mithridate.core.votes import Votes
from mithridate.data.examples import Examples, fitted_preprocessing, kind_of
from mithridate.errors import ConfigError
from mithridate.training.backends import Backend

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class RuntimeOptions:
    """How an order is carried out: nothing here changes a certificate.

    Attributes:
        run_dir: where the run is kept, so that the same order resumes after an interruption; None: in memory.
        device: `cpu`, `cuda`, `mps` or `auto`.
        in_flight: how many models are trained at a time; None: as many as fit into memory.
        precision: of matrix products: `float32`, `tf32` or `auto`, the faster one.
        keep_models: whether the run directory keeps what `predict` needs.
        backend: who trains: this process (None), or the workers of a Ray cluster.
        shards: train these shards of the run alone; None: all.
        progress: called with how much is done, and of how much.
    """

    run_dir: PathLike | None = None
    device: str = "auto"
    in_flight: int | None = None
    precision: str = "auto"
    keep_models: bool = False
    backend: Backend | None = None
    shards: slice | None = None
    progress: Progress | None = None

    @property
    def folder(self) -> Path | None:
        """The run directory as a path."""
        return None if self.run_dir is None else Path(self.run_dir)


@dataclass(frozen=True)
class Facts:
    """Public facts about a task: all that a choice may depend on, and no value of the data among it.

    Attributes:
        num_train: the number of training examples as declared, else its size step.
        classes: number of labels.
        shape: of one raw input.
        kind: what inputs hold: `uint8`, `float`, `integer` or `text`.
        device: `cpu`, `cuda` or `mps`: what the time that training may take is about.
    """

    num_train: int
    classes: int
    shape: tuple[int, ...]
    kind: str
    device: str = "cpu"


@dataclass(frozen=True)
class Choice:
    """A defence with nothing left open, and what is to be said about how that came.

    Attributes:
        defence: the defence, with every constant decided.
        follows_size: whether some constant follows the number of training examples.
        statements: what every certificate has to say about the choice.
        words: what a user should see before training starts.
        warnings: what would make the certificates weak, a sentence each that names the remedy.
        details: the choice as plain JSON values.
    """

    defence: Any
    follows_size: bool
    statements: tuple[str, ...] = ()
    words: str = ""
    warnings: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict[str, Any])


class Orderable(Protocol):
    """What an order needs of a defence; see `mithridate.defences.Defence`."""

    @property
    def num_train(self) -> int | None:
        """The declared number of training examples."""
        ...

    @property
    def classes(self) -> int | None:
        """The declared number of labels."""
        ...

    def choose(self, facts: Facts) -> Choice:
        """Decide what is left open, by public facts."""
        ...

    def run(self, order: Order, runtime: RuntimeOptions) -> Votes:
        """Carry out an order."""
        ...


@dataclass(frozen=True, eq=False)
class Order:
    """What is trained, on what, and all that is said of it: whatever changes a certificate.

    Attributes:
        choice: the defence, with nothing left open.
        training: the training examples.
        test: the inputs to vote on, with their true labels where known.
        facts: the public facts that the choice was made by.
        statements: all that certificates repeat: about the data, about looks at it, about the choice.
        size: the size step that constants follow; None where nothing follows the number of examples.
        root_seed: 32 bytes that all randomness comes from; None: the operating system's, as it should be.
    """

    choice: Choice
    training: Examples
    test: Examples
    facts: Facts
    statements: tuple[str, ...]
    size: Size | None
    root_seed: bytes | None = None

    @property
    def defence(self) -> Any:
        """The defence, with nothing left open."""
        return self.choice.defence

    @property
    def extra(self) -> dict[str, Any]:
        """What a recipe records of the defence, beside how its instances are trained."""
        return {"defence": self.defence.to_dict(), "rule": self.defence.rule().to_dict()}

    def run(self, runtime: RuntimeOptions | None = None) -> Votes:
        """Carry it out."""
        return self.defence.run(self, runtime or RuntimeOptions())


def compose(
    defence: Orderable,
    training: Examples,
    test: Examples,
    *,
    assumptions: Sequence[str] = (),
    device: str = "cpu",
    root_seed: bytes | None = None,
) -> Order:
    """The order to train a defence on some examples.

    Guarantee: what the defence chooses depends on declared constants and on the facts alone, and the facts on the data
    through its size step, the kind and shape of its inputs and the set of its labels only. `size` and `statements` say
    on which of these a certificate depends.

    Args:
        defence: what to train, with what the user decided.
        training: the training examples.
        test: the inputs to vote on.
        assumptions: what the user says has looked at the training data, a sentence each.
        device: the kind of device that training will run on.
        root_seed: a seed of the caller.

    Raises:
        ConfigError: an argument or the data is not what it should be, or does not suit the defence.
    """
    _validate.sentences(assumptions=assumptions)
    facts, looks = facts_of(defence, training, device)
    choice = defence.choose(facts)
    size = Size.of(len(training.x)) if choice.follows_size and defence.num_train is None else None
    said = (
        *training.assumptions,
        *of_user(assumptions),
        *looks,
        *fitted_preprocessing(training.x, training.source),
        *choice.statements,
    )
    return Order(choice, training, test, facts, distinct(said), size, root_seed)


def facts_of(defence: Any, training: Examples, device: str = "cpu") -> tuple[Facts, tuple[str, ...]]:
    """The public facts about a task, and what reading them off the data makes a claim conditional on."""
    if training.y is None:
        raise ConfigError("Expected the training set with labels; give a pair (inputs, labels).")
    names, declared = training.class_names, defence.classes
    found = max(2, int(np.max(training.y)) + 1)
    classes = declared or (len(names) if names else found)
    looks = () if declared or names else (classes_read_off(found),)
    size = defence.num_train or step_of(len(training.x))
    return Facts(int(size), int(classes), training.x.shape[1:], kind_of(training.x), device), looks
