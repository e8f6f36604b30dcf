"""Recipes chosen automatically: what to train, and how, from the size of the task and the time there is.

A recipe depends on the number of examples, the classes, the shape and kind of one input and the time. It never depends
on the values of the data: that would be a look at the training set which no certificate accounts for.

One number decides what noise buys. With q = sample_rate, s = noise_multiplier, T = steps and n = num_train, the sum of
all noisy steps holds the mean gradient with a *signal*, in units of its noise, of

    A = (q n / s) sqrt(T),

and unanimous votes of 1,000 instances are certified to about 2.4 n / A changes (s / (q sqrt(T)) is what the accountant
sees). So A trades accuracy against radius, and q and T hardly matter as long as a step is not much noisier for its
sampling than for its noise, and steps are not so long that they overshoot. The constants below were tuned on public
data sets (docs/recipes.md has the tables); they are public constants now.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.special import ndtri

from mithridate import _validate
from mithridate.accounting import FDP, Method
from mithridate.certifying.certification import certify, default_bounds
from mithridate.core.bounds import bound_votes
from mithridate.core.conditions import Statement, next_step, tuned_constants
from mithridate.core.mechanism import OF_UNITS, Private, Threat
from mithridate.core.units import EXAMPLES, UnitWords
from mithridate.core.votes import Votes
from mithridate.data.examples import check_channels
from mithridate.errors import ConfigError
from mithridate.features import (
    Encoder,
    Frozen,
    HashedNgrams,
    HashedWords,
    OrientedGradients,
    PhotoGradients,
    Pretrained,
    UnitNorm,
    pick_encoder,
)
from mithridate.recipes.signal import counted_classes, needed_examples, needed_signal, round_up, signal_of
from mithridate.training.config import TrainConfig

KINDS = ("uint8", "float", "integer", "text")
MODELS = ("auto", "linear", "mlp", "lenet5", "opa-tut", "resnet18")

# --- the recipe of small models on fixed features: tuned on public data, docs/recipes.md ----------------------------

# Signal A per class. Texts and photographs of one class have less in common than drawings or table rows: more for them.
_SIGNAL, _SIGNAL_OF_VARIED = 30.0, 75.0
# Fewer examples than this get less signal, by the fourth root: otherwise a few dozen could not be certified at all. But
# never less than this, nor less than tables and texts need.
_MANY_EXAMPLES = 5_000
_LEAST_SIGNAL = 40.0


@dataclass(frozen=True)
class _Small:
    """How a small model makes use of its signal.

    Attributes:
        steps: number of steps.
        logit_noise: standard deviation of the noise that all steps together add to a logit of a linear model, for a row
            of norm one and before averaging; the step size aims at it.
        average: whether the mean over all steps votes.
        cost: how much longer a step takes than that of a linear model.
        max_grad_norm: the clipping norm, where it is to be chosen.
        momentum: the largest momentum; fewer than 10 / (1 - momentum) steps get less.
        largest_step: beyond this (in units of 1 / max_grad_norm) steps overshoot, however little noise there is; with
            momentum, times (1 + momentum) / (1 - momentum), and it is all that one gradient does in the end.
    """

    steps: int
    logit_noise: float
    average: bool
    cost: float
    max_grad_norm: float
    momentum: float = 0.0
    largest_step: float = 60.0

    def momentum_of(self, steps: int) -> float:
        """What so many steps have time for."""
        return max(0.0, min(self.momentum, 1.0 - _STEPS_OF_MOMENTUM / steps))


_STEPS_OF_MOMENTUM = 10
_SMALL = {"linear": _Small(20, 1.4, True, 1.0, 0.5), "mlp": _Small(100, 0.5, False, 2.0, 1.0)}
# Rows of a table have an offset in common: up to 0.8 of their mean square lies along one direction, in which steps of
# more than 2 / (0.5 x 0.8 / 0.5) diverge (0.5 is the curvature of a logistic loss, and the clipping norm). Along all
# others so short steps hardly get anywhere: momentum helps them and not the noise. Texts have less of an offset.
_OF_ROWS = _Small(100, 1.4, False, 1.0, 0.5, momentum=0.9, largest_step=2.0)
# Rows of an encoder that was trained on much: classes lie far apart, and gradients are short.
_OF_ENCODED = _Small(40, 1.0, False, 1.0, 0.1)
_SIGNAL_OF_ENCODED = 40.0
# The expected batch, in units of (q n / s)^2: sampling then adds a few percent to the noise of a step. It is at least
# the second number, below which a step costs as much.
_BATCH, _LEAST_BATCH = 0.1, 256
# Where time is short the batch shrinks, but the noise not below this: weaker noise amplifies worse.
_LEAST_NOISE = 4.0
_SMALLEST_IMAGE = 8
_MIRRORED = "In colour, an image counts as its mirror image; if left and right differ, use oriented-gradients."

# Where units are declared, and a gradient is the mean of several: measured on MNIST in 1,000 sources
# (docs/results.md), .86 correct and certified with the smaller norm where the usual one has .74.
_SEVERAL, _NORM_OF_MEANS = 4, 0.2

# --- recipes of networks: Liu et al. 2023 as in its code, with the batch kept and the rate following n ---------------


@dataclass(frozen=True)
class _Published:
    """Constants of a published recipe: expected batch, noise, steps, clipping norm, and its product with the step."""

    batch: int
    noise_multiplier: float
    steps: int
    max_grad_norm: float
    step: float
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    seconds: dict[str, float] = field(default_factory=dict[str, float])  # of one model-step, by device (training.md)


_CIFAR = {"momentum": 0.9, "weight_decay": 5e-4, "schedule": "cosine"}
_LENET5 = _Published(60, 3.0, 1000, 0.8, 0.08, seconds={"cpu": 1 / 663, "cuda": 1 / 108_739})
_PUBLISHED = {
    "lenet5": _LENET5,
    "opa-tut": _Published(512, 2.0, 1710, 20.0, 0.2, _CIFAR, seconds={"cuda": 1 / 1_448}),
    "resnet18": _Published(256, 19.0, 2343, 10.0, 0.1, _CIFAR, seconds={"cuda": 1 / 116}),
}

# What the constants of small models, and those of Liu et al. 2023, were tuned on.
_PUBLISHED_ON = ("MNIST", "Fashion-MNIST", "CIFAR-10")
_TUNED_ON = (
    "scikit-learn's digits",
    "scikit-learn's breast cancer table",
    "scikit-learn's wine table",
    *_PUBLISHED_ON,
)
_ROWS_TUNED_ON = (
    "scikit-learn's breast cancer table",
    "scikit-learn's wine table",
    "Adult",
    "MAGIC",
    "Spambase",
    "the snippets of VADER",
    "the tweets of the 2016 election",
    "Reuters R8",
)
_ENCODED_TUNED_ON = ("CIFAR-10",)

# --- warnings -------------------------------------------------------------------------------------------------------

_FEW_INSTANCES, _USUAL_INSTANCES = 500, 1000
_FEW_PER_CLASS = 10
# Constants of a recipe have three digits.
_ROUNDING = 0.01
# Below this, sampling hides less than in proportion: the noise of one step counts as 1 / sqrt(exp(1 / s^2) - 1), not s.
_WEAK_NOISE = 2.0
_SHARE = 0.9


@dataclass(frozen=True)
class Recipe:
    """What will be trained, how, and what could come of it.

    Attributes:
        model: name of the network, or the user's own.
        features: fixed encoder that the network is trained on, or None for the inputs themselves.
        config: how every instance is trained. `num_train` and `classes` are left open: `train` then takes the size step
            and the labels of the data. Where they were declared, put them in with
            `dataclasses.replace(recipe.config, num_train=..., classes=...)`.
        classes: number of labels the recipe is for.
        num_train: number of training examples the recipe is for.
        seconds: about how long training takes on this device; NaN where it was never measured.
        device: `cpu`, `cuda` or `mps`.
        reach: for the shares 1 and 0.9 of the votes, a radius that no certificate will exceed and most will come close
            to: that of the worse of pure insertions and pure deletions. -1 where nothing can be certified.
        reasons: why it was chosen, a short sentence each.
        warnings: what would make the certificates weak, a sentence each that names the remedy.
        threat: how the data may have been changed.
        assumptions: what every certificate must say about how the recipe was chosen, a sentence each.
        unit: what a unit is called, where radii count units of many examples; `num_train` is then their number.
    """

    model: Any
    features: Encoder | None
    config: TrainConfig
    classes: int
    num_train: int
    seconds: float
    device: str
    reach: dict[float, int]
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    threat: Threat
    assumptions: tuple[str, ...] = ()
    unit: str | None = None

    def in_words(self, *, by_step: bool = False) -> str:
        """A few short lines, to be shown before training starts.

        Args:
            by_step: whether nobody declared `num_train`, so that it is the step of a number that may be larger.
        """
        config, counted = self.config, UnitWords.of(self.unit)
        number = f"{self.num_train:,} to {next_step(self.num_train) - 1:,}" if by_step else f"{self.num_train:,}"
        on = "the inputs as they are" if self.features is None else f"{self.features.name} features"
        lines = [
            f"{config.instances:,} instances of {_name(self.model)} on {on}, for {number} {counted.many} of "
            f"{self.classes} classes; {_duration(self.seconds)} on {self.device}.",
            f"{config.steps:,} steps each; {counted.a} enters a step with probability {config.sample_rate:g}; "
            f"noise {config.noise_multiplier:g} times the clipping norm of {config.max_grad_norm:g}.",
            f"Radius that could be reached: {_reach_in_words(self.reach, self.threat, counted)}.",
        ]
        if _MIRRORED in self.reasons:  # of all reasons the one that a user may have to object to
            lines.append(_MIRRORED)
        return "\n".join([*lines, *(f"Weak: {sentence}" for sentence in self.warnings)])

    def to_dict(self) -> dict[str, Any]:
        """The recipe as plain JSON values."""
        return {
            "model": _name(self.model),
            "features": None if self.features is None else self.features.to_dict(),
            "config": self.config.to_dict(),
            "classes": self.classes,
            "num_train": self.num_train,
            "seconds": None if math.isnan(self.seconds) else self.seconds,
            "device": self.device,
            "reach": {f"{share:g}": radius for share, radius in self.reach.items()},
            "reasons": list(self.reasons),
            "warnings": list(self.warnings),
            "assumptions": list(self.assumptions),
        }


def choose(
    *,
    num_train: int,
    classes: int,
    shape: tuple[int, ...],
    kind: str,
    device: str = "cpu",
    seconds: float = 60.0,
    instances: int = 1000,
    model: Any = "auto",
    features: str | Encoder | None = "auto",
    noise_multiplier: float | None = None,
    sample_rate: float | None = None,
    steps: int | None = None,
    max_grad_norm: float | None = None,
    learning_rate: float | None = None,
    momentum: float | None = None,
    keep: float | None = None,
    unit_rows: int | None = None,
    threat: Threat | str | None = None,
    failure_prob: float = 1e-3,
    method: Method | None = None,
    unit: str | None = None,
) -> Recipe:
    """A recipe for a task of this size; what is None or `auto` is chosen.

    Guarantee: the result is a function of these arguments. None of them is a value of the data; `num_train`, `classes`,
    `shape` and `kind` are taken for public.

    Assumes: the other arguments were not tuned on the training set that is to be certified.

    Args:
        num_train: number of training examples, where it is declared; else their size step, `size.step_of`.
        classes: number of labels, at least 2.
        shape: shape of one raw input; `()` for text.
        kind: what the inputs hold, as `data.Examples.kind` says: `uint8`, `float`, `integer` or `text`.
        device: `cpu`, `cuda` or `mps`; changes the time alone.
        seconds: about how long training may take, on two CPU cores or one GPU; where it is not enough, batches shrink.
        instances: number of models that vote.
        model: `auto` (linear, on fixed features), the name of a network, or a network of the user's own.
        features: `auto`, the name of an encoder, an encoder, or None for the inputs as they are.
        noise_multiplier: noise in units of the clipping norm.
        sample_rate: probability of an example to enter one batch.
        steps: number of steps.
        max_grad_norm: clipping norm. It does not enter the mechanism, so it costs no radius.
        learning_rate: step size.
        momentum: of the steps; networks with a published recipe keep theirs.
        keep: each instance first keeps every example with this probability; the rest is chosen as if it kept all.
        unit_rows: where units are declared, and `num_train` counts these: examples of a unit whose mean gradient is
            clipped. Such means have less noise of their own, and are shorter.
        threat: how the data may have been changed; by default `symmetric-difference`, with units `edit`.
        failure_prob: probability with which a claim may fail.
        method: `FDP()` (default), `RDP(...)` or `ADP(...)`.
        unit: what a unit is called, where an attacker controls more than one example at a time; all else here then
            speaks of units wherever it says examples.

    Raises:
        ConfigError: an argument is not what it should be, or the model cannot take such inputs.

    >>> recipe = choose(num_train=60_000, classes=10, shape=(28, 28), kind="uint8")
    >>> recipe.model, recipe.features.name, recipe.config.steps, recipe.reach[1.0] > 400
    ('linear', 'oriented-gradients', 20, True)
    """
    _validate.positive_integer(num_train=num_train, classes=classes, instances=instances)
    TrainConfig(instances, 1.0, 1.0, 1, 1.0, 1.0, classes=classes)  # checks both before anything is computed
    _validate.one_of(KINDS, kind=kind)
    _validate.number_in(0, math.inf, low_open=True, seconds=seconds)
    _validate.one_of(("cpu", "cuda", "mps"), device=device)
    if threat is None:
        threat = Threat.SYMMETRIC_DIFFERENCE if unit is None else OF_UNITS
    _validate.one_of(tuple(Threat), threat=threat)
    if isinstance(model, str):
        _validate.one_of(MODELS, model=model)
    counted, rows = UnitWords.of(unit), 1 if unit_rows is None else int(unit_rows)
    known = (int(num_train), int(classes), tuple(shape), kind, device, float(seconds), int(instances))
    task = _Task(*known, rows, counted)
    chosen, reasons = features_for(model, features, task.shape, kind)
    network = "linear" if isinstance(model, str) and model == "auto" else model
    asked = {
        "noise_multiplier": noise_multiplier,
        "sample_rate": sample_rate,
        "steps": steps,
        "max_grad_norm": max_grad_norm,
        "learning_rate": learning_rate,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    _check_given(given)
    small = _small_for(network, task, chosen)
    if small is not None:
        given |= {} if momentum is None else {"momentum": momentum}
        config, taken, more = _small(task, small, _width(chosen, task), given)
    else:
        config, taken, more = _published(task, network, given)
    config = replace(config, keep=keep)
    method, threat = FDP() if method is None else method, Threat(threat)
    reach = _reach(config.mechanism, task, method, threat, failure_prob)
    return Recipe(
        model=network,
        features=chosen,
        config=config,
        classes=task.classes,
        num_train=task.num_train,
        seconds=taken,
        device=device,
        reach=reach,
        reasons=(*reasons, *more),
        warnings=(
            *_warnings(task, config, taken, reach, threat, failure_prob),
            *(_too_noisy(task, config) if small is _OF_ROWS and chosen is not None else ()),
        ),
        threat=threat,
        assumptions=_tuned(small, task) if any(each is None for each in asked.values()) else (),
        unit=unit,
    )


def _tuned(small: _Small | None, task: _Task) -> tuple[Statement, ...]:
    """What the constants that were chosen here were tuned on."""
    what = "The constants of the recipe" if small else "The constants of the recipe, which are published ones,"
    of_small = _ROWS_TUNED_ON if small is _OF_ROWS else _ENCODED_TUNED_ON if small is _OF_ENCODED else _TUNED_ON
    looked_at = _PUBLISHED_ON if small is None else of_small
    return (tuned_constants(what, looked_at, math.prod(task.shape), task.classes),)


def _check_given(given: dict[str, Any]) -> None:
    """Require constants in their ranges before anything is computed from them."""
    for name, value in given.items():
        if name == "steps":
            _validate.positive_integer(steps=value)
        else:
            _validate.number_in(0, 1 if name == "sample_rate" else math.inf, low_open=True, **{name: value})


@dataclass(frozen=True)
class _Task:
    """The public facts that a recipe is chosen from."""

    num_train: int
    classes: int
    shape: tuple[int, ...]
    kind: str
    device: str
    seconds: float
    instances: int
    unit_rows: int = 1
    counted: UnitWords = EXAMPLES

    @property
    def is_images(self) -> bool:
        """Whether inputs are images that the encoders of images can take."""
        return self.kind == "uint8" and len(self.shape) in (2, 3) and min(self.shape[-2:]) >= _SMALLEST_IMAGE


# --- features -------------------------------------------------------------------------------------------------------


def features_for(model: Any, asked: Any, shape: tuple[int, ...], kind: str) -> tuple[Encoder | None, tuple[str, ...]]:
    """The encoder that `choose` chooses, and why; see there for the arguments."""
    if asked != "auto":
        asked = pick_encoder(asked)
    if asked is None and kind == "text":
        raise ConfigError("Text needs features: leave features='auto', or give numbers instead of strings.")
    if not isinstance(asked, str):
        return asked, ()
    if kind == "text":
        return HashedWords(), ("Text is hashed: a vocabulary would be learnt from the data.",)
    if not isinstance(model, str) or model in _PUBLISHED:
        return None, ("A network finds its own features in the inputs.",)
    check_channels(shape, kind)
    if kind != "uint8" or len(shape) not in (2, 3) or min(shape[-2:]) < _SMALLEST_IMAGE:
        return UnitNorm(), ("Rows of norm one: noise then costs every example alike.",)
    few = "Few parameters on fixed image features buy radius."
    if len(shape) == 3 and shape[0] == 3:
        return PhotoGradients(), (few, _MIRRORED)
    return OrientedGradients(), (few,)


def _width(chosen: Encoder | None, task: _Task) -> int:
    """Numbers per example that a linear model sees."""
    if isinstance(chosen, Pretrained):
        return chosen.width
    if isinstance(chosen, HashedNgrams | HashedWords):
        return chosen.dimension + (1 if getattr(chosen, "bias", 0) else 0)
    if chosen is None or isinstance(chosen, Frozen):  # what a frozen encoder gives is known once it has run
        return max(1, math.prod(task.shape))
    return chosen.transform(np.zeros((1, *task.shape), np.uint8 if task.kind == "uint8" else np.float32)).shape[1]


# --- how it is trained ----------------------------------------------------------------------------------------------


def _small_for(network: Any, task: _Task, chosen: Encoder | None) -> _Small | None:
    """How a small model of this name trains; None for larger ones."""
    if not isinstance(network, str) or network not in _SMALL:
        return None
    if network == "linear" and isinstance(chosen, Pretrained):
        return _OF_ENCODED
    return _OF_ROWS if network == "linear" and not task.is_images else _SMALL[network]


def _small(task: _Task, model: _Small, width: int, given: dict[str, Any]) -> tuple[TrainConfig, float, tuple[str, ...]]:
    """Small models: the signal decides the noise, noise and time the batch, all three the step size."""
    reasons: list[str] = []
    steps, norm = given.get("steps", model.steps), given.get("max_grad_norm", _norm_of(model, task))
    momentum = given.get("momentum", model.momentum_of(steps))
    signal, pace = _signal(task, model), _Pace(task, model, width, steps)
    rate = given.get("sample_rate") or _sample_rate(pace, signal / math.sqrt(steps), reasons)
    noise = given.get("noise_multiplier")
    if noise is None:
        noise = _rounded(rate * task.num_train * math.sqrt(steps) / signal)
        reasons.append(f"The noise leaves a signal of {signal:.0f}: more of it buys accuracy, less of it radius.")
    step = given.get("learning_rate")
    if step is None:
        wanted = model.logit_noise * rate * task.num_train / (noise * math.sqrt(steps))
        largest = model.largest_step * (1.0 + momentum) / (1.0 - momentum)
        step = _rounded(min(wanted, largest) * (1.0 - momentum) / norm)
    config = TrainConfig(
        task.instances, noise, rate, steps, norm, step, momentum=momentum, average_iterates=model.average
    )
    return config, pace.seconds(rate * task.num_train), tuple(reasons)


def _norm_of(model: _Small, task: _Task) -> float:
    """The clipping norm: for means of several gradients, which are shorter, a smaller one where steps allow for it."""
    is_shorter = task.unit_rows >= _SEVERAL and model is _SMALL["linear"]
    return _NORM_OF_MEANS if is_shorter else model.max_grad_norm


def _signal(task: _Task, model: _Small) -> float:
    many = min(1.0, (task.num_train / _MANY_EXAMPLES) ** 0.25) / math.sqrt(task.unit_rows)
    if model is _OF_ENCODED:
        return max(_LEAST_SIGNAL, _SIGNAL_OF_ENCODED * task.classes * many)
    in_colour = task.kind == "uint8" and len(task.shape) == 3 and task.shape[0] > 1
    each = _SIGNAL_OF_VARIED if task.kind == "text" or in_colour else _SIGNAL
    least, classes = _LEAST_SIGNAL, task.classes
    if not task.is_images:
        least, classes = needed_signal(task.kind, classes), counted_classes(classes)
    return max(least, each * classes * many)


@dataclass(frozen=True)
class _Pace:
    """About how long training takes, by the expected batch."""

    task: _Task
    model: _Small
    width: int
    steps: int

    def seconds(self, batch: float) -> float:
        """Measured on two cores; on a GPU a rough figure (docs/recipes.md)."""
        task, width, batch = self.task, self.width, batch * self.task.unit_rows
        if task.device == "cuda":
            return 5.0 + task.instances * self.steps * self.model.cost * (2e-6 + batch * width * task.classes * 1e-11)
        each = 1e-4 + 2e-8 * width * task.classes + batch * (5e-8 + width * (1.2e-9 + 5e-11 * task.classes))
        return 0.5 + task.instances * self.steps * self.model.cost * each


def _sample_rate(pace: _Pace, ratio: float, reasons: list[str]) -> float:
    """The rate, where batch / noise is to be `ratio`: large enough for little sampling noise, small enough for time."""
    task = pace.task
    wanted = max(_BATCH * ratio**2, _LEAST_BATCH / task.unit_rows)
    if 2 * wanted >= task.num_train:
        wanted = float(task.num_train)  # all of them: no sampling noise at all
    batch = wanted
    while batch > _LEAST_NOISE * ratio and pace.seconds(batch) > task.seconds:
        batch /= 1.25
    if batch < wanted:
        reasons.append(f"Batches were made smaller so that training takes about {task.seconds:g} s.")
    return min(1.0, _rounded(batch / task.num_train))


def _published(task: _Task, network: Any, given: dict[str, Any]) -> tuple[TrainConfig, float, tuple[str, ...]]:
    """Networks: the published constants, at the same expected batch."""
    known = _PUBLISHED[network] if isinstance(network, str) else _LENET5
    steps, norm = given.get("steps", known.steps), given.get("max_grad_norm", known.max_grad_norm)
    rate = given.get("sample_rate", _rounded(min(1.0, known.batch / task.num_train)))
    # The noise is in proportion to the batch, where there are fewer examples than it has.
    noise = given.get("noise_multiplier", _rounded(known.noise_multiplier * min(1.0, task.num_train / known.batch)))
    step = given.get("learning_rate", _rounded(known.step / norm))
    config = TrainConfig(task.instances, noise, rate, steps, norm, step, **known.options)
    each = known.seconds.get(task.device, math.nan) if isinstance(network, str) else math.nan
    taken = task.instances * steps * each * max(rate * task.num_train / known.batch, 0.1)
    return config, taken, ("The constants are those of Liu et al. (AAAI 2023), with the batch kept.",)


def _rounded(number: float) -> float:
    """Three significant digits: a recipe that can be read and written down."""
    return float(f"{number:.3g}")


# --- what could come of it ------------------------------------------------------------------------------------------


def _reach(mechanism: Private, task: _Task, method: Method, threat: Threat, failure_prob: float) -> dict[float, int]:
    """Radii at two shares of the votes, never too small: of pure insertions and deletions, which takes an instant."""
    counts = np.zeros((2, task.classes), dtype=np.int64)
    for row, share in enumerate((1.0, _SHARE)):
        counts[row, 0] = math.floor(share * task.instances + 1e-9)
        counts[row, 1] = task.instances - counts[row, 0]
    votes = Votes.from_counts(counts, mechanism=mechanism)
    pure = (Threat.ADD, Threat.REMOVE) if threat is Threat.SYMMETRIC_DIFFERENCE else (threat,)
    radii = [certify(votes, method=method, threat=way, failure_prob=failure_prob).radius for way in pure]
    first, second = np.min(radii, axis=0).tolist()
    return {1.0: first, _SHARE: second}


def _warnings(
    task: _Task, config: TrainConfig, taken: float, reach: dict[float, int], threat: Threat, failure_prob: float
) -> tuple[str, ...]:
    found: list[str] = []
    one, many, declared = task.counted.one, task.counted.many, task.counted.declared_as
    if reach[1.0] < 0:
        found.append(f"{task.instances} instances certify nothing, whatever they vote; raise instances.")
    elif task.instances < _FEW_INSTANCES:
        usual, own = (_margin(each, task.classes, failure_prob) for each in (_USUAL_INSTANCES, task.instances))
        found.append(f"with instances={_USUAL_INSTANCES} radii would be about {usual / own:.1f} times as large.")
    if reach[1.0] == 0:
        found.append(
            f"not even one changed {one} is covered where all instances agree; raise noise_multiplier, or train on "
            f"more {many}{_enough(task, config, threat, failure_prob, 1.0)}, declared as {declared}."
        )
    elif 0 <= reach[1.0] and reach[_SHARE] < 1:
        found.append(
            "only nearly unanimous predictions are covered against a change; raise instances or noise_multiplier, or "
            f"train on more {many}{_enough(task, config, threat, failure_prob, _SHARE)}, declared as {declared}."
        )
    if task.num_train < _FEW_PER_CLASS * task.classes:
        found.append(
            f"{task.num_train} {many} of {task.classes} classes are few; expect low accuracy, and train on more."
        )
    if taken > 1.5 * task.seconds:
        found.append(
            f"training takes {_duration(taken)}, longer than the {task.seconds:g} s asked for; lower instances or "
            "steps, or use model='auto' or a GPU."
        )
    return tuple(found)


def _too_noisy(task: _Task, config: TrainConfig) -> tuple[str, ...]:
    """That linear models of encoded rows or texts cannot be expected to learn through the noise, and what would do."""
    found, needed = signal_of(config.mechanism, task.num_train), needed_signal(task.kind, task.classes)
    if found >= needed * (1.0 - _ROUNDING):
        return ()
    quieter = float(f"{0.995 * config.noise_multiplier * found / needed:.2g}")
    enough, many = needed_examples(config.mechanism, task.kind, task.classes), task.counted.many
    return (
        f"{task.num_train:,} {many} are few for so much noise: it leaves a signal of {found:.2g}, and linear models "
        f"need about {needed:.0f} to learn half of what they could. {enough:,} {many} would do for the same radii, "
        f"noise_multiplier={quieter:g} for smaller ones; or use nearest-neighbours, which adds no noise.",
    )


def _enough(task: _Task, config: TrainConfig, threat: Threat, failure_prob: float, share: float) -> str:
    """How many examples let this share of the votes cover one change, as the end of a sentence.

    Radii are in proportion to n / A, and A grows with the fourth root of n where there are few examples. Weak noise
    follows another law, and no number is named.
    """
    apart = _margin(task.instances, task.classes, failure_prob, share) / 2
    radius = apart / signal_of(config.mechanism, 1) / threat.changes(1)
    if radius <= 0 or config.noise_multiplier < _WEAK_NOISE:
        return ""
    return f" ({round_up(task.num_train * min(1.0, radius) ** (-4 / 3)):,} would do)"


def _margin(instances: int, classes: int, failure_prob: float, share: float = 1.0) -> float:
    """How far apart votes with this share for one label are shown to be, in standard deviations; radii follow it."""
    counts = np.zeros((1, classes), dtype=np.int64)
    counts[0, 0] = math.floor(share * instances + 1e-9)
    counts[0, 1] = instances - counts[0, 0]
    limits = bound_votes(counts, failure_prob=failure_prob, kind=default_bounds("votes"))
    return float(ndtri(limits.top_lower[0]) - ndtri(limits.rival_upper[0]))


# --- words ----------------------------------------------------------------------------------------------------------


def _name(model: Any) -> str:
    return model if isinstance(model, str) else "your network"


def _duration(seconds: float) -> str:
    if math.isnan(seconds):
        return "how long it takes was never measured"
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    return f"about {round(seconds / 60)} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


def _reach_in_words(reach: dict[float, int], threat: Threat, counted: UnitWords) -> str:
    if reach[1.0] < 0:
        return "none, with so few instances"
    happened = {"add": "added", "remove": "removed", "replace": "changed"}.get(threat.value, "added or removed")
    if counted.are_named and threat is OF_UNITS:
        happened = "inserted, deleted or changed"
    less = f"{reach[_SHARE]} where 9 of 10 do" if reach[_SHARE] >= 0 else "none where 9 of 10 do"
    return f"up to {reach[1.0]} {counted.many} {happened} where all instances agree, {less}"
