"""How instances are trained: what can change a certificate, apart from what must not."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from mithridate import _validate
from mithridate.core.conditions import Statement, classes_read_off, step_of
from mithridate.core.mechanism import Private, SampledGaussian, Subsampled
from mithridate.data.declarations import MOST_CLASSES
from mithridate.errors import ConfigError

OPTIMIZERS = ("sgd", "adam")
SCHEDULES = ("constant", "cosine")
_MOST_INSTANCES = 10_000_000
_LARGEST = 1e30  # single precision ends at 3e38
# Between these the clipping bound holds with all roundings (see `clipping`).
_SHORTEST_NORM, _LONGEST_NORM = 1e-12, 1e12
PRECISIONS = ("auto", "float32", "tf32")


@dataclass(frozen=True)
class GradientRule:
    """What becomes of a batch: every gradient is clipped, and noise is added to their sum, which a constant divides.

    Attributes:
        longest: largest norm of the gradient of one example; longer ones are scaled down to it.
        noise: standard deviation of the noise in every coordinate, 0 for none.
        divisor: what the sum is divided by.
    """

    longest: float
    noise: float
    divisor: float


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

    def _check_learning(self) -> None:
        """Require constants that models can be trained with."""
        _validate.positive_integer(steps=self.steps)
        _validate.number_in(0, math.inf, low_open=True, learning_rate=self.learning_rate)
        _check_single_precision("learning_rate", self.learning_rate)
        _validate.number_in(0, _LARGEST, weight_decay=self.weight_decay)
        if self.max_grad_norm is not None:
            _check_norm(self.max_grad_norm)
        self._check_optimizer()
        self._check_classes()
        self._check_scaling()
        self._check_bins()

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

    def _check_bins(self) -> None:
        bins = self.score_bins
        if isinstance(bins, bool) or not isinstance(bins, int) or bins < 0 or bins & (bins - 1) or bins > 4096:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Expected score_bins to be 0 or a power of two up to 4096, got {bins!r}.")

    @property
    def is_deterministic(self) -> bool:
        """Whether a model is a function of what it sees, and not a draw."""
        return False

    @property
    def follows_size(self) -> bool:
        """Whether a constant is left to the number of training examples."""
        return False

    @property
    def gradient_rule(self) -> GradientRule:
        """What becomes of the gradients of a batch."""
        raise NotImplementedError

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


def _check_norm(max_grad_norm: float) -> None:
    _validate.number_in(0, math.inf, low_open=True, max_grad_norm=max_grad_norm)
    if not _SHORTEST_NORM <= max_grad_norm <= _LONGEST_NORM:
        raise ConfigError(
            f"Expected max_grad_norm from {_SHORTEST_NORM:g} to {_LONGEST_NORM:g}, got {max_grad_norm:g}; "
            "scale the inputs and the learning_rate instead."
        )


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

    def __post_init__(self) -> None:
        _validate.positive_integer(instances=self.instances)
        if self.instances > _MOST_INSTANCES:
            raise ConfigError(f"Expected at most {_MOST_INSTANCES:,} instances, got {self.instances:,}.")
        _ = self.mechanism  # checks its own constants
        _validate.number_in(0, math.inf, low_open=True, max_grad_norm=self.max_grad_norm)
        _check_single_precision("noise_multiplier x max_grad_norm", self.noise_multiplier * self.max_grad_norm)
        self._check_learning()
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

    def resolve(self, *, num_train: int, classes: int) -> tuple[TrainConfig, tuple[Statement, ...]]:
        """The configuration with its public constants filled in from the data, and what that assumes.

        Args:
            num_train: number of training examples that were found.
            classes: number of classes that were found.
        """
        inferred: list[Statement] = []
        resolved = self
        if self.divisor is None:
            count = self.num_train or step_of(num_train)
            divisor = self.sample_rate * count * (1.0 if self.keep is None else self.keep)
            resolved = replace(self, num_train=count, divisor=divisor)
        if self.classes is None:
            resolved = replace(resolved, classes=classes)
            inferred.append(classes_read_off(classes))
        return resolved, tuple(inferred)

    @property
    def gradient_rule(self) -> GradientRule:
        """Clipped sums with noise, divided by the constant; once the configuration is resolved."""
        assert self.divisor is not None
        return GradientRule(self.max_grad_norm, self.noise_multiplier * self.max_grad_norm, self.divisor)

    def to_dict(self) -> dict[str, Any]:
        """The configuration as plain JSON values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainConfig:
        """Read back what `to_dict` wrote."""
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**plain)
