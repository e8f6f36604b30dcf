"""One order for every door: what is trained and all that is said of it, and apart from that how it runs.

A command, a project file, an estimator and a comparison hand over a defence and examples; `compose` makes the order of
them, here and nowhere else. So the same data, defence and constants give the same votes under the same conditions,
whichever door they came through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mithridate import _validate
from mithridate._io.files import PathLike
from mithridate.core.conditions import Size, classes_read_off, distinct, of_user, step_of
from mithridate.core.provenance import TrainingData
from mithridate.core.units import Unit
from mithridate.core.votes import Votes
from mithridate.data.declarations import MOST_CLASSES, Table
from mithridate.data.examples import Examples, as_examples, fitted_preprocessing, kind_of
from mithridate.data.partition import by_unit
from mithridate.errors import ConfigError
from mithridate.features import about_encoder

if TYPE_CHECKING:
    import torch

    from mithridate.training.earlier_models import EarlierModels
    from mithridate.training.known_models import KnownModels

# --- where instances are trained --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ray:
    """The workers of a Ray cluster (needs `pip install 'mithridate[ray]'`).

    Guarantee: the votes are those of this process on the same kind of device with the same number in flight, bit for
    bit, whatever workers or nodes are lost on the way. Workers receive the seeds of the instances that they train and
    no others; see `docs/scaling.md` for what else is sent, and to whom.

    Args:
        address: of a running cluster: `auto` for the one of this machine, `host:port` from a machine of the cluster, or
            `ray://host:port` from outside; None starts one on this machine, and stops it afterwards. Where the program
            is connected to a cluster already, that one is used.
        workers: how many groups of instances are trained at the same time, at most; None: as many as there is room for.
        gpus_per_worker: the share of a GPU that a worker takes, at most 1; None: a whole one where the cluster has
            GPUs, else none.
        cpus_per_worker: cores that a worker takes, and threads that it computes with; None: one.
        retries: how often a group of instances that failed, or whose worker died, is tried again.

    Raises:
        ConfigError: a value is not what it should be.

    >>> Ray(workers=0)
    Traceback (most recent call last):
    ...
    mithridate.errors.ConfigError: Expected workers to be a whole number of at least 1, got 0.
    """

    address: str | None = None
    workers: int | None = None
    gpus_per_worker: float | None = None
    cpus_per_worker: int | None = None
    retries: int = 3

    def __post_init__(self) -> None:
        if self.address is not None and (not isinstance(self.address, str) or not self.address.strip()):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Expected address to be auto, host:port or ray://host:port, got {self.address!r}.")
        numbers = {"workers": self.workers, "cpus_per_worker": self.cpus_per_worker}
        _validate.positive_integer(**{name: value for name, value in numbers.items() if value is not None})
        if self.gpus_per_worker is not None:
            _validate.number_in(0, 1, gpus_per_worker=self.gpus_per_worker)
        if self.retries != 0 or isinstance(self.retries, bool):
            _validate.positive_integer(retries=self.retries)


# --- what is trained --------------------------------------------------------------------------------------------------

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class RuntimeOptions:
    """How an order is carried out: nothing here changes a certificate.

    Attributes:
        run_dir: where the run is kept, so that the same order resumes after an interruption; None: in memory.
        device: `cpu`, `cuda`, `mps` or `auto`.
        in_flight: how many models are trained at a time; None: as many as fit into memory.
        precision: of matrix products: `float32`, `tf32`, `bfloat16` or `auto`, the fastest one.
        keep_models: whether the run directory keeps what `predict` needs.
        backend: who trains: this process (None), or the workers of a Ray cluster.
        shards: train these shards of the run alone; None: all.
        progress: called with how much is done, and of how much.
        known: models of parts that were trained before, which are not trained again; on a CPU, without a `run_dir`.
        earlier: the models of parts of a run on nearly the same data; those whose part is the same are taken over.
    """

    run_dir: PathLike | None = None
    device: str | torch.device = "auto"
    in_flight: int | None = None
    precision: str = "auto"
    keep_models: bool = False
    backend: Ray | None = None
    shards: int | range | slice | None = None
    progress: Progress | None = None
    known: KnownModels | None = None
    earlier: EarlierModels | None = None

    @property
    def folder(self) -> Path | None:
        """The run directory as a path."""
        return None if self.run_dir is None else Path(self.run_dir)


@dataclass(frozen=True)
class Facts:
    """Public facts about a task: all that a choice may depend on, and no value of the data among it.

    Attributes:
        num_train: the number of training examples as declared, else its size step; of units, where they are declared.
        classes: number of labels.
        shape: of one raw input.
        kind: what inputs hold: `uint8`, `float`, `integer` or `text`.
        device: `cpu`, `cuda` or `mps`: what the time that training may take is about.
        is_table: whether the columns of a table are declared, and are the inputs.
        unit: what a unit is called, where they are declared.
    """

    num_train: int
    classes: int
    shape: tuple[int, ...]
    kind: str
    device: str = "cpu"
    is_table: bool = False
    unit: str | None = None


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

    def __repr__(self) -> str:
        return f"Choice of {self.defence!r}"


@dataclass(frozen=True, eq=False)
class Order:
    """What is trained, on what, and all that is said of it: whatever changes a certificate.

    Attributes:
        choice: the defence, with nothing left open.
        given: the training examples as they came, which a certificate names.
        training: those that are trained on: where units are declared, the examples of each side by side, in an order of
            their own, and of each unit no more than its cap; else all of them.
        test: the inputs to vote on, with their true labels where known.
        facts: the public facts that the choice was made by.
        statements: all that certificates repeat: about the data, about looks at it, about the choice.
        size: the size step that constants follow; None where nothing follows the number of examples.
        root_seed: 32 bytes that all randomness comes from; None: the operating system's, as it should be.
    """

    choice: Choice
    given: Examples
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
    def unit(self) -> Unit | None:
        """What radii count, where that is not single examples."""
        return None if self.training.units is None else self.training.units.unit

    @property
    def count(self) -> int:
        """The number of units: of examples, where none are declared."""
        return len(self.training.x) if self.unit is None else self.unit.count

    def training_data(self, features: Any = None) -> TrainingData:
        """Which data is trained on, with what a trusted encoder made of it."""
        units = self.given.units
        assert self.given.y is not None
        names = None if units is None else units.fingerprint()
        return TrainingData.of(self.given.x, self.given.y, features, names)

    @property
    def extra(self) -> dict[str, Any]:
        """What a recipe records of the defence and of the data, beside how instances are trained."""
        said = self.defence.recorded(self.training)
        return said if self.unit is None else {**said, "unit_cap": cap_of(self.defence)}

    def run(self, runtime: RuntimeOptions | None = None) -> Votes:
        """Carry it out."""
        options = runtime or RuntimeOptions()
        votes = self.defence.run(self, options)
        if options.folder is not None and self.defence.encoder is not None:
            self.defence.encoder.keep(options.folder)
        return votes


def compose(
    defence: Any,
    training: Any,
    test: Any,
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
        defence: what to train, with what the user decided; see `mithridate.defences.Defence`.
        training: the training examples: `Examples`, or a pair of inputs and labels.
        test: the inputs to vote on: `Examples`, inputs, or a pair with their true labels.
        assumptions: what the user says has looked at the training data, a sentence each.
        device: the kind of device that training will run on.
        root_seed: a seed of the caller.

    Raises:
        ConfigError: an argument or the data is not what it should be, or does not suit the defence.
    """
    _validate.sentences(assumptions=assumptions)
    given = as_examples(training, "training", need_labels=True, classes=defence.classes)
    defence = _for_units(defence, given)
    if given.units is not None and given.units.unit.count < 2:
        unit = given.units.unit
        raise ConfigError(
            f"All training examples are of one {unit.one}, and whoever controls it controls all of them; name units of "
            "which there are several, or leave the unit out."
        )
    training = given if given.units is None else by_unit(given, cap_of(defence))
    facts, looks = facts_of(defence, training, device)
    test = as_examples(test, "test", need_labels=False, classes=facts.classes)
    choice = defence.choose(facts)
    if training.units is not None and not choice.defence.takes_units:
        raise ConfigError(_no_units(choice.defence, training.units.unit))
    size = _size_of(defence, choice, training)
    said = (
        *of_user((*training.assumptions, *assumptions)),
        *looks,
        *fitted_preprocessing(training.x, training.source),
        *choice.statements,
        *about_encoder(choice.defence.encoder, training.x, facts.classes),
    )
    return Order(choice, given, training, test, facts, distinct(said), size, root_seed)


# Examples of a unit that enter where nobody says how many may.
UNIT_CAP = 1000


def cap_of(defence: Any) -> int:
    """How many examples of a unit enter at most: as declared."""
    return int(defence.unit_cap or UNIT_CAP)


def _for_units(defence: Any, training: Examples) -> Any:
    """The defence with what was declared about units as what it calls examples; without units it declares none."""
    if training.units is not None:
        return defence.for_units()
    for name in ("num_units", "unit_cap", "unit_rows"):
        if getattr(defence, name, None) is not None:
            raise ConfigError(
                f"{name} is about units, and the training data declares none; name them with unit (--unit COLUMN), or "
                f"leave {name} out."
            )
    return defence


def _no_units(defence: Any, unit: Unit) -> str:
    return (
        f"{defence.name} cannot certify {unit.many}: {defence.units_refused}. Use a method that can, such as "
        "nearest-neighbours, fdp, dpa or bagging, or certify single examples (leave the unit out)."
    )


def _size_of(defence: Any, choice: Choice, training: Examples) -> Size | None:
    """The size step that constants follow, those of the choice or those that were given for one."""
    if defence.num_train is not None or not (choice.follows_size or defence.size_step):
        return None
    units = training.units
    number = len(training.x) if units is None else units.unit.count
    size = Size.of(number)
    if defence.size_step not in (None, size.low):
        many = "training examples" if units is None else units.unit.many
        raise ConfigError(
            f"The constants were chosen for the size step {defence.size_step:,}, and {number:,} {many} have "
            f"the step {size.low:,}; choose them anew (mithridate tune), or leave size_step and these constants out."
        )
    return size


def facts_of(defence: Any, training: Examples, device: str = "cpu") -> tuple[Facts, tuple[str, ...]]:
    """The public facts about a task, and what reading them off the data makes a claim conditional on."""
    assert training.y is not None
    names, declared = training.class_names, defence.classes
    found = max(2, int(np.max(training.y)) + 1)
    classes = declared or (len(names) if names else found)
    if classes > MOST_CLASSES:
        raise ConfigError(f"Expected at most {MOST_CLASSES:,} classes, got {classes:,}; check the column of labels.")
    looks = () if declared or names else (classes_read_off(found),)
    units = training.units
    size = defence.num_train or step_of(len(training.x) if units is None else units.unit.count)
    shape, kind = training.x.shape[1:], kind_of(training.x)
    is_table = isinstance(training.declaration, Table) and kind != "text"
    name = None if units is None else units.name
    return Facts(int(size), int(classes), shape, kind, device, is_table, name), looks
