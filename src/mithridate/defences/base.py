"""What every defence can do: train on data, and certify its votes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from mithridate import _validate, recipes
from mithridate._artifact import PathLike
from mithridate.certificate import Certificate, Scope
from mithridate.config import PRECISIONS
from mithridate.data.arrays import check_inputs, check_labels, kind_of, pair_of
from mithridate.data.readers import Examples
from mithridate.errors import ConfigError
from mithridate.features import Encoder, pick_encoder
from mithridate.mechanism import Mechanism, Threat
from mithridate.votes import Votes

if TYPE_CHECKING:
    from mithridate.accounting.statistical import StatisticalBound

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


def arrays(training_set: Any) -> Examples:
    """The training set as checked arrays.

    Raises:
        ConfigError: it is no pair of inputs and labels.
    """
    x, y = pair_of("training_set", training_set)
    x = check_inputs(x, "training")
    return Examples(x, check_labels(y, len(x), "training", classes=None))


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
        max_grad_norm=None,
    )
    return chosen.model, chosen.features


def check_training(
    model: Any = "auto", features: Any = "auto", in_flight: Any = None, precision: Any = "auto", seconds: Any = None
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
    if seconds is not None:
        _validate.number_in(0, math.inf, low_open=True, seconds=seconds)


def declared_classes(own: int | None, source: Mapping[str, Any] | None) -> int | None:
    """The number of classes that was declared, by itself or by their names; None where the data has to say it."""
    names = None if source is None else source.get("class_names")
    return own if own is not None or not names else len(names)


def check_votes(votes: Votes, defence: Any, mechanism: type[Mechanism]) -> None:
    """Require votes that this defence, with these constants, could have given.

    Raises:
        ConfigError: they are of another one.
    """
    if not isinstance(votes, Votes):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"Expected the votes that {defence.name} gave when it was trained, got {votes!r}.")
    if not isinstance(votes.mechanism, mechanism):
        raise ConfigError(
            f"These votes come from {type(votes.mechanism).__name__}, and {defence.name} needs those of "
            f"{mechanism.__name__}; use what trained them, or mithridate.certify."
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
        from mithridate.ensemble.training import Model, describe

        return describe(cast("Model", value))
    return repr(value)
