"""How instances are trained, with privacy or without, and what each of them sees of the training set.

Without privacy, the certificate comes from what an instance sees, not from how it learns: a bootstrap sample, one part
of the data, labels or inputs with noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, cast

import numpy as np

from mithridate import _validate
from mithridate._text import shown
from mithridate.core import registry
from mithridate.core.conditions import step_of
from mithridate.core.mechanism import Mechanism, Private, SampledGaussian, Subsampled
from mithridate.data.declarations import MOST_CLASSES
from mithridate.data.partition import Hashes, IndexArray
from mithridate.errors import ConfigError

OPTIMIZERS = ("sgd", "adam")
SCHEDULES = ("constant", "cosine")
_MOST_INSTANCES = 10_000_000
_LARGEST = 1e30  # single precision ends at 3e38
# Between these the clipping bound holds with all roundings (see `clipping`).
_SHORTEST_NORM, _LONGEST_NORM = 1e-12, 1e12
_LIGHTEST, _HEAVIEST = 1e-6, 1e6
PRECISIONS = ("auto", "float32", "tf32", "bfloat16")
# Examples of a unit that form its gradient, where nobody says how many.
UNIT_ROWS = 16


@dataclass(frozen=True)
class GradientRule:
    """What becomes of a batch: every gradient is clipped, and noise is added to their sum, which a constant divides.

    Attributes:
        longest: largest norm of the gradient of one example; longer ones are scaled down to it.
        noise: standard deviation of the noise in every coordinate, 0 for none.
        divisor: what the sum is divided by.
        loss_weights: what the gradient of an example is multiplied by before anything else, by its label; None: 1.
    """

    longest: float
    noise: float
    divisor: float
    loss_weights: tuple[float, ...] | None = None


class Learning:
    """The constants of learning that instances have in common, whether they are private or not.

    No dataclass by itself: each configuration has its fields in an order of its own.
    """

    steps: int
    learning_rate: float
    optimizer: str
    momentum: float
    weight_decay: float
    betas: tuple[float, float]
    schedule: str
    average_iterates: bool
    max_grad_norm: float | None
    classes: int | None
    pixel_mean: tuple[float, ...] | None
    pixel_std: tuple[float, ...] | None
    score_bins: int
    loss_weights: tuple[float, ...] | None
    # What each instance sees, where that is not the whole training set.
    plan: ViewPlan | None = None

    def _check_learning(self) -> None:
        """Require constants that models can be trained with."""
        _validate.positive_integer(steps=self.steps)
        _validate.number_in(0, math.inf, low_open=True, learning_rate=self.learning_rate)
        _check_single_precision("learning_rate", self.learning_rate)
        _validate.number_in(0, _LARGEST, weight_decay=self.weight_decay)
        bins, norm = self.score_bins, self.max_grad_norm
        if norm is not None:
            _validate.number_in(0, math.inf, low_open=True, max_grad_norm=norm)
            if not _SHORTEST_NORM <= norm <= _LONGEST_NORM:
                raise ConfigError(
                    f"Expected max_grad_norm from {_SHORTEST_NORM:g} to {_LONGEST_NORM:g}, got {norm:g}; "
                    "scale the inputs and the learning_rate instead."
                )
        if isinstance(bins, bool) or not isinstance(bins, int) or bins < 0 or bins & (bins - 1) or bins > 4096:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Expected score_bins to be 0 or a power of two up to 4096, got {bins!r}.")
        self._check_optimizer()
        self._check_classes()
        self._check_scaling()
        self._check_loss_weights()

    def _check_loss_weights(self) -> None:
        found: Any = self.loss_weights
        if found is None:
            return
        if not isinstance(found, list | tuple) or len(cast("list[Any]", found)) < 2:
            raise ConfigError(f"Expected loss_weights as a list with one number for each label, got {shown(found)}.")
        if self.classes not in (None, len(found)):
            raise ConfigError(f"Expected loss_weights for {self.classes} labels, got {len(found)}; give one for each.")
        for each in found:
            _validate.number_in(_LIGHTEST, _HEAVIEST, loss_weights=each)
        object.__setattr__(self, "loss_weights", tuple(float(each) for each in found))

    def _check_optimizer(self) -> None:
        _validate.one_of(OPTIMIZERS, optimizer=self.optimizer)
        _validate.one_of(SCHEDULES, schedule=self.schedule)
        _validate.number_in(0, 1, high_open=True, momentum=self.momentum)
        if self.optimizer == "adam" and self.momentum:
            raise ConfigError(f"momentum={self.momentum} belongs to optimizer='sgd'; for adam set betas instead.")
        try:
            first, second = self.betas
        except (TypeError, ValueError):
            raise ConfigError(f"Expected betas as two numbers in [0, 1), got {self.betas!r}.") from None
        _validate.number_in(0, 1, high_open=True, first_beta=first, second_beta=second)
        object.__setattr__(self, "betas", (float(first), float(second)))

    def _check_classes(self) -> None:
        if self.classes is None:
            return
        _validate.positive_integer(classes=self.classes)
        if self.classes > MOST_CLASSES:
            raise ConfigError(
                f"Expected at most {MOST_CLASSES:,} classes, got {self.classes:,}; check the column of labels."
            )
        if self.classes < 2:
            raise ConfigError("Expected classes of at least 2; with one class there is nothing to certify.")

    def _check_scaling(self) -> None:
        for name in ("pixel_mean", "pixel_std"):
            value = getattr(self, name)
            if value is None:
                continue
            values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
            low = 0 if name == "pixel_std" else -math.inf
            for number in values:
                _validate.number_in(low, math.inf, low_open=True, **{name: number})
            object.__setattr__(self, name, tuple(float(number) for number in values))

    @property
    def is_deterministic(self) -> bool:
        """Whether a model is a function of what it sees, and not a draw."""
        return self.plan is not None and self.plan.is_deterministic

    @property
    def follows_size(self) -> bool:
        """Whether a constant is left to the number of training examples."""
        return False

    @property
    def gradient_rule(self) -> GradientRule:
        """What becomes of the gradients of a batch."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """The constants as plain JSON values; loss weights and what is about units only where there are some."""
        values = {one.name: getattr(self, one.name) for one in fields(cast("Any", self))}
        said = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        return {n: value for n, value in said.items() if value is not None or n not in ("loss_weights", "unit_rows")}

    def learning_rate_at(self, step: int) -> float:
        """The step size of a step, counted from 0.

        >>> TrainConfig(1, 1.0, 0.1, 10, 1.0, 0.5, schedule="cosine").learning_rate_at(5)
        0.25
        """
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * 0.5 * (1.0 + math.cos(math.pi * step / self.steps))


def _check_single_precision(name: str, value: float) -> None:
    """Require what models are computed with to be a number of single precision, with room to spare."""
    if not 1.0 / _LARGEST <= value <= _LARGEST:
        raise ConfigError(f"Expected {name} from {1 / _LARGEST:g} to {_LARGEST:g}, got {value:g}.")


@dataclass(frozen=True)
class TrainConfig(Learning):
    """The recipe of every instance: DP-SGD with Poisson sampling, and what the optimiser makes of its noisy sums.

    Everything here is a constant that must be fixed before the training data is seen. Three of the constants may be
    left to the data (`num_train`, `classes`, `divisor`): radii then end with the size step of the data, and the result
    says that it assumes the classes public.

    Args:
        instances: number of models that vote, at least 1.
        noise_multiplier: standard deviation of the noise in units of `max_grad_norm`, above 0.
        sample_rate: probability of an example to enter one batch, in (0, 1].
        steps: number of steps, at least 1.
        max_grad_norm: largest norm of one example's gradient, from 1e-12 to 1e12; longer ones are scaled down to it.
        learning_rate: step size of the optimiser, at the first step if it is scheduled.
        optimizer: `sgd` or `adam`.
        momentum: of `sgd`, in [0, 1).
        weight_decay: strength of the pull of the weights towards zero, 0 or more (added to the gradient).
        betas: decay rates of the two moments of `adam`, each in [0, 1).
        schedule: `constant`, or `cosine` from `learning_rate` down to 0.
        average_iterates: vote with the mean of the weights after every step instead of the last weights.
        keep: each instance first keeps every example with this probability and trains on those (`Subsampled`).
        num_train: the public number of training examples; by default the size step of the data.
        classes: the number of labels; by default one more than the largest label in the training data.
        divisor: what every noisy sum is divided by; by default `sample_rate * num_train` (times `keep`).
        pixel_mean: subtracted from 8-bit images after division by 255, one number or one per channel; by default the
            constant of the named model.
        pixel_std: what the difference is divided by; likewise.
        score_bins: number of equal bins of [0, 1] in which the scores are counted, a power of two; 0 for none.
        loss_weights: what the loss of an example is multiplied by, from 1e-6 to 1e6, one number for each label, for
            labels that are rare; before its gradient is clipped. By default 1.
        unit_rows: where units are declared: how many examples of a unit that enters a batch are drawn from it at most,
            without replacement, to form the mean gradient that is clipped; by default 16.
    """

    instances: int
    noise_multiplier: float
    sample_rate: float
    steps: int
    max_grad_norm: float  # pyright: ignore[reportIncompatibleVariableOverride]  (None is for plain training)
    learning_rate: float
    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    schedule: str = "constant"
    average_iterates: bool = False
    keep: float | None = None
    num_train: int | None = None
    classes: int | None = None
    divisor: float | None = None
    pixel_mean: tuple[float, ...] | None = None
    pixel_std: tuple[float, ...] | None = None
    score_bins: int = 32
    loss_weights: tuple[float, ...] | None = None
    unit_rows: int | None = None

    def __post_init__(self) -> None:
        _validate.positive_integer(instances=self.instances)
        if self.unit_rows is not None:
            _validate.positive_integer(unit_rows=self.unit_rows)
        if self.instances > _MOST_INSTANCES:
            raise ConfigError(f"Expected at most {_MOST_INSTANCES:,} instances, got {self.instances:,}.")
        _ = self.mechanism  # checks its own constants
        self._check_learning()
        _check_single_precision("noise_multiplier x max_grad_norm", self.noise_multiplier * self.max_grad_norm)
        if self.num_train is not None:
            _validate.positive_integer(num_train=self.num_train)
        if self.divisor is not None:
            _validate.number_in(1.0 / _LARGEST, _LARGEST, divisor=self.divisor)

    @property
    def mechanism(self) -> Private:
        """What each instance runs, as the accountants read it."""
        inner = SampledGaussian(self.noise_multiplier, self.sample_rate, self.steps)
        return inner if self.keep is None else Subsampled(self.keep, inner)

    @property
    def follows_size(self) -> bool:
        """Whether the divisor is left to the number of training examples."""
        return self.divisor is None and self.num_train is None

    def resolve(self, *, num_train: int, classes: int) -> TrainConfig:
        """The configuration with the constants that it leaves to the data.

        Args:
            num_train: number of training examples that were found.
            classes: number of classes that were found.
        """
        resolved = replace(self, classes=self.classes or classes)
        if self.divisor is not None:
            return resolved
        count = self.num_train or step_of(num_train)
        divisor = self.sample_rate * count * (1.0 if self.keep is None else self.keep)
        return replace(resolved, num_train=count, divisor=divisor)

    @property
    def gradient_rule(self) -> GradientRule:
        """Clipped sums with noise, divided by the constant; once the configuration is resolved."""
        assert self.divisor is not None
        noise = self.noise_multiplier * self.max_grad_norm
        return GradientRule(self.max_grad_norm, noise, self.divisor, self.loss_weights)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainConfig:
        """Read back what `to_dict` wrote."""
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**plain)


_MOST_PIXELS = 64
# Longer gradients are unheard of; and it is far from the end of single precision.
_NO_CLIPPING = 1e30

# --- what each instance sees ----------------------------------------------------------------------------------------


class ViewPlan(registry.Tagged, table=registry.views):
    """What each instance sees of the training set; frozen dataclasses inherit it, one for each defence.

    Attributes:
        type: what files call it; every one has its own.
        is_deterministic: whether a model is a function of what it sees, and not a draw.
        evidence: what is always counted beside votes.
        evidence_that_fits: what is counted as well, unless there are too many models and inputs to keep it.
        has_preferences: whether it can be counted how often models prefer one label to another, for run-off elections.
        counts_examples: whether its mechanism speaks of the number of training examples.
        noise: standard deviation of the noise on inputs, 0 for none.
        noise_draws: how many noisy copies of every input all models answer together; 0: each votes by itself.
    """

    type: ClassVar[str]
    is_deterministic: ClassVar[bool] = False
    evidence: ClassVar[tuple[str, ...]] = ()
    evidence_that_fits: ClassVar[tuple[str, ...]] = ()
    has_preferences: ClassVar[bool] = False
    counts_examples: ClassVar[bool] = False
    noise: float = 0.0
    noise_draws: int = 0

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

    def longest(self, examples: int, visited: int, starts: IndexArray | None = None) -> int:
        """How many examples an instance sees, at most, of so many, where its steps look at so many.

        Args:
            examples: of the training set.
            visited: by all steps.
            starts: where the examples of every unit start, and at last their number; None: a unit is an example.
        """
        return min(examples, visited)

    def drawn(
        self,
        labels: IndexArray,
        classes: int,
        longest: int,
        generator: Callable[[str], np.random.Generator],
        starts: IndexArray | None = None,
    ) -> tuple[IndexArray, IndexArray]:
        """What one instance draws to see: indices of examples, and the labels that stand there for it.

        Of what is noisy only those are drawn that a step will look at: the rest is independent of the model.

        Args:
            labels: of the training set.
            classes: number of labels.
            longest: how many examples it sees.
            generator: the stream of the instance for a purpose.
            starts: see `longest`.
        """
        members = np.arange(len(labels))
        if longest < len(members):
            members = generator("visited").permutation(members)[:longest]
        return members, labels[members]

    def check(self, num_train: int) -> None:
        """Require that it suits so many training examples; most suit any number."""

    def folded(self, answers: IndexArray) -> tuple[IndexArray, dict[str, IndexArray]]:
        """Votes and evidence of a plan with `noise_draws`.

        Args:
            answers: how many models give each label, (inputs x draws) x classes, the copies of an input side by side.
        """
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain JSON values, without the number of instances."""
        return {name: value for name, value in super().to_dict().items() if name != "instances"}


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
    return kind.from_dict(constants if kind.is_deterministic else {"instances": instances, **constants})


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
        loss_weights: what the loss of an example is multiplied by, from 1e-6 to 1e6, one number for each label, for
            labels that are rare; before its gradient is clipped. By default 1.
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
    loss_weights: tuple[float, ...] | None = None

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
        return GradientRule(longest, 0.0, float(self.batch_size), self.loss_weights)


@dataclass(frozen=True)
class PlainRecipe(PlainConfig):
    """A configuration together with its plan: all that a run is told.

    Attributes:
        plan: what each instance sees.
        num_train: number of training examples, where the mechanism speaks of it.
    """

    plan: ViewPlan = field(kw_only=True)  # pyright: ignore[reportIncompatibleVariableOverride]  (never None here)
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
    def mechanism(self) -> Mechanism:
        """What each instance runs, as the certificates read it; once the recipe is resolved."""
        assert self.classes is not None
        return self.plan.mechanism(num_train=self.num_train or 1, classes=self.classes)

    def resolve(self, *, num_train: int, classes: int) -> PlainRecipe:
        """The recipe with the constants that it leaves to the data.

        Args:
            num_train: number of training examples that were found.
            classes: number of classes that were found.

        Raises:
            ConfigError: the plan or the batches do not suit so many examples or classes.
        """
        self.plan.check(num_train)
        count = num_train if self.plan.counts_examples else self.num_train
        resolved = replace(self, num_train=count, classes=self.classes or classes)
        _ = resolved.mechanism  # checks its own constants
        return resolved

    def to_dict(self) -> dict[str, Any]:
        """The recipe as plain JSON values; `num_train` only where the mechanism speaks of it."""
        left_out = ("plan", "num_train") if self.num_train is None else ("plan",)
        plain = {name: value for name, value in super().to_dict().items() if name not in left_out}
        return {**plain, "instances": self.instances, "plan": self.plan.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PlainRecipe:
        """Read back what `to_dict` wrote; what is none of its constants is left out.

        Raises:
            KeyError: a constant is missing.
            TypeError: a constant is of another kind.
            ConfigError: a constant is not what it should be.
        """
        found: dict[str, Any] = {
            one.name: values[one.name] for one in fields(PlainConfig) if one.name != "loss_weights"
        }
        found["loss_weights"] = values.get("loss_weights")
        constants: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in found.items()}
        plan = plan_from_dict(values["plan"], values["instances"])
        return cls(**constants, plan=plan, num_train=values.get("num_train"))


def recipe_from_dict(values: dict[str, Any]) -> TrainConfig | PlainRecipe:
    """How instances were trained, with privacy or without, as `run.json` has it; see the `from_dict` of both."""
    return PlainRecipe.from_dict(values) if "plan" in values else TrainConfig.from_dict(values)
