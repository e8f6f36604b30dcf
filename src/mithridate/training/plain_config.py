"""How instances are trained without privacy, and what each of them sees of the training set.

The certificate comes from what an instance sees, not from how it learns: a bootstrap sample, one part of the data,
labels or inputs with noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, cast

import numpy as np

from mithridate import _validate
from mithridate.core import registry
from mithridate.core.conditions import classes_read_off
from mithridate.core.mechanism import Mechanism
from mithridate.data.partition import Hashes, IndexArray
from mithridate.errors import ConfigError
from mithridate.training.config import GradientRule, Learning, TrainConfig

_MOST_PIXELS = 64
# Longer gradients are unheard of; and it is far from the end of single precision.
_NO_CLIPPING = 1e30

# --- what each instance sees ----------------------------------------------------------------------------------------


class ViewPlan:
    """What each instance sees of the training set; frozen dataclasses inherit it, one for each defence.

    Attributes:
        type: what files call it; every one has its own.
        is_deterministic: whether a model is a function of what it sees, and not a draw.
        evidence: what is always counted beside votes.
        has_preferences: whether models can be asked which of two labels they prefer, for run-off elections.
        counts_examples: whether its mechanism speaks of the number of training examples.
        noise: standard deviation of the noise on inputs, 0 for none.
    """

    type: ClassVar[str]
    is_deterministic: ClassVar[bool] = False
    evidence: ClassVar[tuple[str, ...]] = ()
    has_preferences: ClassVar[bool] = False
    counts_examples: ClassVar[bool] = False
    noise: float = 0.0

    def __init_subclass__(cls) -> None:
        if "type" in vars(cls):
            registry.views.add(cls.type, cls)

    @property
    def models(self) -> int:
        """Number of models that vote."""
        return cast("Any", self).instances

    def mechanism(self, *, num_train: int, classes: int) -> Mechanism:
        """What each instance runs, as the certificates read it."""
        raise NotImplementedError

    def members(self, hashes: Hashes) -> list[IndexArray] | None:
        """For each model, the indices of the examples that it sees, in an order that is theirs alone.

        None where models draw what they see.

        Args:
            hashes: of the content of every example.
        """
        return None

    def longest(self, examples: int, visited: int) -> int:
        """How many examples an instance sees, at most, of so many, where its steps look at so many."""
        return min(examples, visited)

    def drawn(
        self, labels: IndexArray, classes: int, longest: int, generator: Callable[[str], np.random.Generator]
    ) -> tuple[IndexArray, IndexArray]:
        """What one instance draws to see: indices of examples, and the labels that stand there for it.

        Of what is noisy only those are drawn that a step will look at: the rest is independent of the model.

        Args:
            labels: of the training set.
            classes: number of labels.
            longest: how many examples it sees.
            generator: the stream of the instance for a purpose.
        """
        members = np.arange(len(labels))
        if longest < len(members):
            members = generator("visited").permutation(members)[:longest]
        return members, labels[members]

    def check(self, num_train: int) -> None:
        """Require that it suits so many training examples; most suit any number."""

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain JSON values, without the number of instances."""
        return {"type": self.type, **{name: value for name, value in vars(self).items() if name != "instances"}}


def plan_from_dict(values: Mapping[str, Any], instances: int) -> ViewPlan:
    """Read back what `to_dict` of a plan wrote, for so many instances.

    Raises:
        KeyError: there is no such plan.
        TypeError: a constant is missing, or there is one too many.
        ConfigError: a constant is not what it should be.
    """
    constants = dict(values)
    name = constants.pop("type")
    kind: Any = registry.views.find(name)
    if kind is None:
        raise KeyError(name)
    return kind(**constants) if kind.is_deterministic else kind(instances=instances, **constants)


# --- how it learns --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlainConfig(Learning):
    """The recipe of every instance: mini-batch training without noise.

    Each step takes the mean gradient over the next `batch_size` of the examples that the instance sees, which pass by
    in a new order every time around; where there are fewer, some enter a batch more than once. The defaults suit a
    LeNet-5 on 50 to 500 small images each.

    Args:
        steps: number of steps, at least 1.
        batch_size: examples in each step, at least 1.
        learning_rate: step size of the optimiser, at the first step if it is scheduled.
        optimizer: `sgd` or `adam`.
        momentum: of `sgd`, in [0, 1); by default 0.9 for `sgd`, and 0 for `adam`, which has its own.
        weight_decay: strength of the pull of the weights towards zero, 0 or more (added to the gradient).
        betas: decay rates of the two moments of `adam`, each in [0, 1).
        schedule: `constant`, or `cosine` from `learning_rate` down to 0.
        average_iterates: vote with the mean of the weights after every step instead of the last weights.
        max_grad_norm: where given, the gradient of every single example is scaled down to this norm.
        shift: images are moved by up to so many pixels up or down and left or right, anew at every visit, which makes
            more of few images; 0 for none. Inputs that are not images stay where they are.
        classes: the number of labels; by default one more than the largest label in the training data.
        pixel_mean: subtracted from 8-bit images after division by 255, one number or one per channel; by default the
            constant of the named model.
        pixel_std: what the difference is divided by; likewise.
        score_bins: number of equal bins of [0, 1] in which the scores are counted, a power of two; 0 for none.
    """

    steps: int = 250
    batch_size: int = 32
    learning_rate: float = 0.1
    optimizer: str = "sgd"
    momentum: float | None = None  # pyright: ignore[reportIncompatibleVariableOverride]  (a number from then on)
    weight_decay: float = 0.002
    betas: tuple[float, float] = (0.9, 0.999)
    schedule: str = "cosine"
    average_iterates: bool = False
    max_grad_norm: float | None = None
    shift: int = 2
    classes: int | None = None
    pixel_mean: tuple[float, ...] | None = None
    pixel_std: tuple[float, ...] | None = None
    score_bins: int = 0

    def __post_init__(self) -> None:
        _validate.positive_integer(batch_size=self.batch_size)
        if isinstance(self.shift, bool) or not isinstance(self.shift, int) or not 0 <= self.shift <= _MOST_PIXELS:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"Expected shift as a whole number of pixels from 0 to {_MOST_PIXELS}, got {self.shift!r}."
            )
        if self.momentum is None:
            object.__setattr__(self, "momentum", 0.0 if self.optimizer == "adam" else 0.9)
        self._check_learning()

    @property
    def gradient_rule(self) -> GradientRule:
        """The mean of gradients, clipped where that is asked for, without noise."""
        longest = _NO_CLIPPING if self.max_grad_norm is None else self.max_grad_norm
        return GradientRule(longest, 0.0, float(self.batch_size))


@dataclass(frozen=True)
class PlainRecipe(PlainConfig):
    """A configuration together with its plan: all that a run is told.

    Attributes:
        plan: what each instance sees.
        num_train: number of training examples, where the mechanism speaks of it.
    """

    plan: ViewPlan = field(kw_only=True)
    num_train: int | None = field(default=None, kw_only=True)

    @classmethod
    def of(cls, config: PlainConfig, plan: ViewPlan) -> PlainRecipe:
        """The recipe of a configuration and a plan.

        Raises:
            ConfigError: they are something else.
        """
        if not isinstance(config, PlainConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Expected config to be a PlainConfig, got {config!r}.")
        if not isinstance(plan, ViewPlan):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Expected plan to be Bootstrap, Parts or another ViewPlan, got {plan!r}.")
        return cls(**{one.name: getattr(config, one.name) for one in fields(PlainConfig)}, plan=plan)

    @property
    def instances(self) -> int:
        """Number of models that vote."""
        return self.plan.models

    @property
    def is_deterministic(self) -> bool:
        """Whether a model is a function of what it sees, and not a draw."""
        return self.plan.is_deterministic

    @property
    def mechanism(self) -> Mechanism:
        """What each instance runs, as the certificates read it; once the recipe is resolved."""
        assert self.classes is not None
        return self.plan.mechanism(num_train=self.num_train or 1, classes=self.classes)

    def resolve(self, *, num_train: int, classes: int) -> tuple[PlainRecipe, tuple[str, ...]]:
        """The recipe with its public constants filled in from the data, and what that assumes.

        Args:
            num_train: number of training examples that were found.
            classes: number of classes that were found.

        Raises:
            ConfigError: the plan or the batches do not suit so many examples or classes.
        """
        self.plan.check(num_train)
        resolved = replace(self, num_train=num_train) if self.plan.counts_examples else self
        if self.classes is not None:
            return resolved._checked(), ()
        return replace(resolved, classes=classes)._checked(), (classes_read_off(classes),)

    def _checked(self) -> PlainRecipe:
        _ = self.mechanism  # checks its own constants
        return self

    def to_dict(self) -> dict[str, Any]:
        """The recipe as plain JSON values; `num_train` only where the mechanism speaks of it."""
        values = {one.name: getattr(self, one.name) for one in fields(PlainConfig)}
        plain: dict[str, Any] = {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}
        if self.num_train is not None:
            plain["num_train"] = self.num_train
        return {**plain, "instances": self.instances, "plan": self.plan.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PlainRecipe:
        """Read back what `to_dict` wrote; what is none of its constants is left out.

        Raises:
            KeyError: a constant is missing.
            TypeError: a constant is of another kind.
            ConfigError: a constant is not what it should be.
        """
        found: dict[str, Any] = {one.name: values[one.name] for one in fields(PlainConfig)}
        constants: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in found.items()}
        plan = plan_from_dict(values["plan"], values["instances"])
        return cls(**constants, plan=plan, num_train=values.get("num_train"))


def recipe_from_dict(values: dict[str, Any]) -> TrainConfig | PlainRecipe:
    """How instances were trained, with privacy or without, as `run.json` has it; see the `from_dict` of both."""
    return PlainRecipe.from_dict(values) if "plan" in values else TrainConfig.from_dict(values)
