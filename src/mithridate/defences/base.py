"""What every defence can do: train on data, and certify its votes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

import numpy as np

from mithridate import _validate
from mithridate._io.artifacts import PathLike
from mithridate.certifying.certification import certify
from mithridate.core.certificate import Certificate, Scope
from mithridate.core.mechanism import Mechanism, Threat
from mithridate.core.rule import Rule
from mithridate.core.votes import Votes
from mithridate.data.arrays import check_inputs, check_labels, kind_of, pair_of
from mithridate.data.readers import Examples
from mithridate.errors import ConfigError
from mithridate.features import Encoder, pick_encoder
from mithridate.recipes import choosing as recipes
from mithridate.training.config import PRECISIONS
from mithridate.training.plain_config import PlainConfig

if TYPE_CHECKING:
    from mithridate.defences.statistical_bound import StatisticalBound

Progress = Callable[[int, int], None]
# What a defence about whole examples can certify against, by default the first.
ALL_THREATS = tuple(Threat)


class Defence(Protocol):
    """A way to get certified predictions from data that is not fully trusted.

    Attributes:
        name: as on the command line.
        title: for a legend or a table.
        threats: what it can certify against; the first is its default.
        per_prediction: whether it says something about each prediction, and not only about all of them on average.
        recipe: how it trains, in plain JSON values; defences of equal recipes can share votes.
    """

    @property
    def name(self) -> str:
        """As on the command line."""
        ...

    @property
    def title(self) -> str:
        """For a legend or a table."""
        ...

    @property
    def threats(self) -> tuple[Threat, ...]:
        """What it can certify against."""
        ...

    @property
    def per_prediction(self) -> bool:
        """Whether it speaks of each prediction."""
        ...

    @property
    def recipe(self) -> dict[str, Any]:
        """How it trains, in plain JSON values."""
        ...

    def train(
        self,
        training_set: tuple[Any, Any],
        test_set: Any,
        *,
        run_dir: PathLike | None = None,
        device: str = "auto",
        progress: Progress | None = None,
        source: Mapping[str, Any] | None = None,
        assumptions: Sequence[str] = (),
    ) -> Votes:
        """Train on a pair of inputs and labels, and vote on test inputs (or a pair with their true labels).

        Args:
            training_set: inputs and labels.
            test_set: inputs to vote on, or a pair with their true labels.
            run_dir: where what is computed is kept, so that the same call goes on after an interruption.
            device: `cpu`, `cuda`, `mps` or `auto`.
            progress: called with how much is done, and of how much.
            source: how the data was read; see `mithridate.train`.
            assumptions: what was taken for granted when it was read, a sentence each.
        """
        ...

    def certify(
        self,
        votes: Votes,
        *,
        threat: Threat | str | None = None,
        failure_prob: float = 1e-3,
        scope: Scope | str = Scope.PREDICTION,
        progress: Progress | None = None,
    ) -> Certificate | StatisticalBound:
        """What the votes of `train` show; see `mithridate.certify`."""
        ...


@dataclass(frozen=True, eq=False)
class Job:
    """What a defence is to be trained on, and how that is kept and watched; see `Defence.train`."""

    examples: Examples
    test_set: Any
    run_dir: PathLike | None
    device: str
    progress: Progress | None
    source: Mapping[str, Any] | None
    assumptions: tuple[str, ...]

    @property
    def training_set(self) -> tuple[Any, Any]:
        """Inputs and labels."""
        return self.examples.x, self.examples.y

    def declared_classes(self, own: int | None) -> int | None:
        """The number of classes that was declared, by itself or by their names; None where the data has to say it."""
        names = self.examples.class_names
        return own if own is not None or not names else len(names)


class Trainable:
    """What all defences here share; those who inherit it say what votes, and which rule certifies."""

    _mechanisms: ClassVar[tuple[type[Mechanism], ...]]

    def train(
        self,
        training_set: tuple[Any, Any],
        test_set: Any,
        *,
        run_dir: PathLike | None = None,
        device: str = "auto",
        progress: Progress | None = None,
        source: Mapping[str, Any] | None = None,
        assumptions: Sequence[str] = (),
    ) -> Votes:
        """See `Defence.train`."""
        x, y = pair_of("training_set", training_set)
        x = check_inputs(x, "training")
        names = None if source is None or not source.get("class_names") else tuple(source["class_names"])
        examples = Examples(x, check_labels(y, len(x), "training", classes=None), class_names=names)
        return self._train(Job(examples, test_set, run_dir, device, progress, source, tuple(assumptions)))

    def certify(
        self,
        votes: Votes,
        *,
        threat: Threat | str | None = None,
        failure_prob: float = 1e-3,
        scope: Scope | str = Scope.PREDICTION,
        progress: Progress | None = None,
    ) -> Certificate:
        """Certify the votes; see `mithridate.certify`.

        Raises:
            ConfigError: they are not votes that this defence, with these constants, could have given.
        """
        check_votes(votes, self, self._mechanisms)
        return certify(
            votes,
            method=self._rule(),
            threat=threat,
            failure_prob=failure_prob,
            on=getattr(self, "on", "votes"),
            scope=scope,
            progress=progress,
        )

    def _train(self, job: Job) -> Votes:
        raise NotImplementedError

    def _rule(self) -> Rule | None:
        """The rule that certifies; None: that of the votes."""
        return None


def network_for(model: Any, features: Any, examples: Examples) -> tuple[Any, Encoder | None]:
    """Model and features where they are left open: those of the private ensemble, from the size of the task alone."""
    if model != "auto" and features != "auto":
        return model, encoder_of(features)
    assert examples.y is not None
    chosen = recipes.choose(
        num_train=recipes.public_size(len(examples.x)),
        classes=max(2, int(np.max(examples.y)) + 1),
        shape=examples.x.shape[1:],
        kind=kind_of(examples.x),
        model=model,
        features=features,
    )
    return chosen.model, chosen.features


def check_training(
    model: Any = "auto",
    features: Any = "auto",
    in_flight: Any = None,
    precision: Any = "auto",
    seconds: Any = None,
    classes: Any = None,
) -> None:
    """Refuse what no training could use, before anything is computed.

    Raises:
        ConfigError: the message names it.
    """
    if isinstance(model, str):
        _validate.one_of(recipes.MODELS, model=model)
    elif not callable(model):
        raise ConfigError(
            f"Expected model to be one of {', '.join(recipes.MODELS)} or a torch.nn.Module, got {model!r}."
        )
    if features not in ("auto", "none"):
        pick_encoder(features)
    if in_flight is not None:
        _validate.positive_integer(in_flight=in_flight)
    _validate.one_of(PRECISIONS, precision=precision)
    if classes is not None:
        PlainConfig(classes=classes)
    if seconds is not None:
        _validate.number_in(0, math.inf, low_open=True, seconds=seconds)


def check_votes(votes: Votes, defence: Any, mechanisms: tuple[type[Mechanism], ...]) -> None:
    """Require votes that this defence, with these constants, could have given.

    Raises:
        ConfigError: they are of another one.
    """
    if not isinstance(votes, Votes):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"Expected the votes that {defence.name} gave when it was trained, got {votes!r}.")
    if not isinstance(votes.mechanism, mechanisms):
        needed = " or ".join(mechanism.__name__ for mechanism in mechanisms)
        raise ConfigError(
            f"These votes come from {type(votes.mechanism).__name__}, and {defence.name} needs those of {needed}; "
            "use what trained them, or mithridate.certify."
        )
    for name, value in vars(votes.mechanism).items():
        own = getattr(defence, name, None)
        if own not in (None, value):
            raise ConfigError(f"These votes were trained with {name}={value!r}, not {own!r}; use what trained them.")


def encoder_of(features: Any) -> Any:
    """What a recipe and a trainer take for features: a name, an encoder or None."""
    return None if features in (None, "none") else features


def in_json(value: Any) -> Any:
    """An option as plain JSON values, for a recipe."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, str | int | float | bool | None):
        return value
    if callable(value):  # a network, or a function that builds one: its words may be those of another one
        from mithridate.training.run import Model, describe

        return describe(cast("Model", value))
    return repr(value)
