"""How instances are trained without privacy, and what each of them sees of the training set.

The certificate comes from what an instance sees, not from how it learns: a bootstrap sample, one part of the data,
labels or inputs with noise.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from mithridate import _validate
from mithridate.core.conditions import classes_read_off
from mithridate.core.mechanism import Bagged, Mechanism, NoisyFeatures, NoisyLabels, Partitioned, SpreadPartitions
from mithridate.errors import ConfigError
from mithridate.training.config import TrainConfig

_MOST_PIXELS = 64

# --- what each instance sees ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bootstrap:
    """Each instance sees examples that it draws at random, with replacement (`mechanism.Bagged`).

    Args:
        instances: number of models that vote, at least 1.
        draws: how many examples each draws, at least 1 and at most as many as there are.
    """

    instances: int
    draws: int
    is_deterministic: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _validate.positive_integer(instances=self.instances, draws=self.draws)

    def mechanism(self, *, num_train: int, classes: int) -> Mechanism:
        """What each instance runs, as the certificates read it."""
        return Bagged(num_train, self.draws)

    def check(self, num_train: int) -> None:
        """Require that it suits so many training examples."""
        if self.draws > num_train:
            raise ConfigError(
                f"Expected draws (k) of at most the {num_train} training examples, got {self.draws}; draw fewer."
            )

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain JSON values, without the number of instances."""
        return {"type": "bootstrap", "draws": self.draws}


@dataclass(frozen=True)
class Parts:
    """Each model sees one part of the training set, and is a function of it (`mechanism.Partitioned`).

    Args:
        partitions: number of parts and of models, at least 1.
    """

    partitions: int
    is_deterministic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _validate.positive_integer(partitions=self.partitions)

    @property
    def instances(self) -> int:
        """Number of models that vote."""
        return self.partitions

    def mechanism(self, *, num_train: int, classes: int) -> Mechanism:
        """What each model is, as the certificates read it."""
        return Partitioned(self.partitions)

    def check(self, num_train: int) -> None:
        """Require that it suits so many training examples."""
        _check_partitions(self.partitions, num_train)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain JSON values."""
        return {"type": "parts", "partitions": self.partitions}


@dataclass(frozen=True)
class SpreadParts:
    """Each model sees several small parts, and each part is seen by several models (`mechanism.SpreadPartitions`).

    Args:
        partitions: number of parts that models of the same size would need without overlap, at least 1.
        spread: how many models see each example, at least 1; there are `partitions * spread` models.
    """

    partitions: int
    spread: int
    is_deterministic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _validate.positive_integer(partitions=self.partitions, spread=self.spread)

    @property
    def instances(self) -> int:
        """Number of models that vote."""
        return self.partitions * self.spread

    @property
    def offsets(self) -> tuple[int, ...]:
        """Which models see a bucket: 0 and other numbers below `instances`, a public function of the two constants."""
        found, draw = {0}, 0
        while len(found) < self.spread:
            message = f"offsets {self.partitions} {self.spread} {draw}".encode()
            found.add(int.from_bytes(hashlib.blake2b(message, digest_size=16).digest(), "little") % self.instances)
            draw += 1
        return tuple(sorted(found))

    def mechanism(self, *, num_train: int, classes: int) -> Mechanism:
        """What each model is, as the certificates read it."""
        return SpreadPartitions(self.partitions, self.offsets)

    def check(self, num_train: int) -> None:
        """Require that it suits so many training examples."""
        _check_partitions(self.partitions, num_train)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain JSON values."""
        return {"type": "spread-parts", "partitions": self.partitions, "spread": self.spread}


@dataclass(frozen=True)
class FlippedLabels:
    """Each instance sees labels of which some were replaced at random (`mechanism.NoisyLabels`).

    Args:
        instances: number of models that vote, at least 1.
        flip_prob: probability of a label to be replaced, above 0 and at most (classes - 1) / classes.
    """

    instances: int
    flip_prob: float
    is_deterministic: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _validate.positive_integer(instances=self.instances)
        _validate.number_in(0, 1, low_open=True, high_open=True, flip_prob=self.flip_prob)

    def mechanism(self, *, num_train: int, classes: int) -> Mechanism:
        """What each instance runs, as the certificates read it."""
        return NoisyLabels(self.flip_prob, classes)

    def check(self, num_train: int) -> None:
        """Any number of training examples will do."""

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain JSON values, without the number of instances."""
        return {"type": "flipped-labels", "flip_prob": float(self.flip_prob)}


@dataclass(frozen=True)
class NoisedFeatures:
    """Each instance sees inputs with Gaussian noise, drawn once for each of them (`mechanism.NoisyFeatures`).

    Args:
        instances: number of models that vote, at least 1.
        noise: standard deviation, in the units in which inputs reach the model, above 0.
    """

    instances: int
    noise: float
    is_deterministic: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _validate.positive_integer(instances=self.instances)
        _validate.number_in(0, 1e30, low_open=True, noise=self.noise)  # single precision ends at 3e38

    def mechanism(self, *, num_train: int, classes: int) -> Mechanism:
        """What each instance runs, as the certificates read it."""
        return NoisyFeatures(self.noise)

    def check(self, num_train: int) -> None:
        """Any number of training examples will do."""

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain JSON values, without the number of instances."""
        return {"type": "noised-features", "noise": float(self.noise)}


Plan = Bootstrap | Parts | SpreadParts | FlippedLabels | NoisedFeatures


def _check_partitions(partitions: int, num_train: int) -> None:
    if partitions > num_train:
        raise ConfigError(
            f"There are {partitions} partitions but only {num_train} training examples; use fewer partitions."
        )


# --- how it learns --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlainConfig:
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
    momentum: float | None = None
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
        checked = self._as_private()  # the same constants under the same rules
        for name in ("betas", "pixel_mean", "pixel_std"):
            object.__setattr__(self, name, getattr(checked, name))

    def _as_private(self) -> TrainConfig:
        return TrainConfig(
            instances=1,
            noise_multiplier=1.0,
            sample_rate=1.0,
            steps=self.steps,
            max_grad_norm=1.0 if self.max_grad_norm is None else self.max_grad_norm,
            learning_rate=self.learning_rate,
            optimizer=self.optimizer,
            momentum=0.0 if self.momentum is None else self.momentum,
            weight_decay=self.weight_decay,
            betas=self.betas,
            schedule=self.schedule,
            average_iterates=self.average_iterates,
            classes=self.classes,
            pixel_mean=self.pixel_mean,
            pixel_std=self.pixel_std,
            score_bins=self.score_bins,
        )

    def learning_rate_at(self, step: int) -> float:
        """The step size of a step, counted from 0."""
        return self._as_private().learning_rate_at(step)


@dataclass(frozen=True)
class PlainRecipe(PlainConfig):
    """A configuration together with its plan: all that a run is told.

    Attributes:
        plan: what each instance sees.
        num_train: number of training examples, where the mechanism speaks of it.
    """

    plan: Plan = field(kw_only=True)
    num_train: int | None = field(default=None, kw_only=True)

    @classmethod
    def of(cls, config: PlainConfig, plan: Plan) -> PlainRecipe:
        """The recipe of a configuration and a plan.

        Raises:
            ConfigError: they are something else.
        """
        if not isinstance(config, PlainConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Expected config to be a PlainConfig, got {config!r}.")
        if not isinstance(plan, Plan):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Expected plan to be Bootstrap, Parts or another plan of plain_config, got {plan!r}.")
        return cls(**{one.name: getattr(config, one.name) for one in fields(PlainConfig)}, plan=plan)

    @property
    def instances(self) -> int:
        """Number of models that vote."""
        return self.plan.instances

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
        resolved = replace(self, num_train=num_train) if isinstance(self.plan, Bootstrap) else self
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
