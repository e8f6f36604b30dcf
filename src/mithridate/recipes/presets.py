"""Recipes with a name: constants that a search found to certify most on a well-known data set.

    mithridate train --recipe mnist-strong

`experiments/beyond` has the search. It compared recipes on held-out examples of the named training set, never on a test
set. Every certificate of a preset says so: for that data set the choice was a look at the data that no certificate
accounts for (docs/recipes.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from mithridate import _validate
from mithridate._text import did_you_mean
from mithridate.core.conditions import Size, Statement, step_of, tuned_constants
from mithridate.core.votes import Votes
from mithridate.data.examples import as_examples
from mithridate.errors import ConfigError
from mithridate.features import Encoder, ObjectGradients, PhotoGradients
from mithridate.training.config import TrainConfig

_TITLES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
# Models of a preset; any other number may be asked for.
_INSTANCES = 10_000
# A preset takes the time it takes; nobody asked for less.
_NO_HURRY = 86_400.0


@dataclass(frozen=True)
class Preset:
    """A recipe that was found by search.

    Guarantee: none by itself. A certificate of votes that it made is that of its mechanism, for this recipe.

    Assumes: `assumption`, which every certificate repeats.

    Attributes:
        name: what it is called.
        description: what it is good for, in a sentence.
        data: the named data set on whose training set it was chosen.
        model: name of the network.
        features: the fixed encoder that the network is trained on.
        config: how every instance is trained on that data set.
    """

    name: str
    description: str
    data: str
    model: str
    features: Encoder
    config: TrainConfig

    @property
    def num_train(self) -> int:
        """How many training examples its data set has."""
        assert self.config.num_train is not None
        return self.config.num_train

    def size_for(self, examples: int) -> int:
        """The number of examples to choose constants for, where none is declared: a function of the size step alone."""
        step = step_of(examples)
        return self.num_train if step == step_of(self.num_train) else step

    def config_for(self, num_train: int) -> TrainConfig:
        """The constants for another number of training examples.

        The expected batch, the noise and the steps stay, and with them, about, the accuracy; radii grow with the number
        of examples. Where there are fewer than a batch has, all are taken, and the noise shrinks in proportion.

        Args:
            num_train: number of training examples where it is declared, else what `size_for` says.
        """
        _validate.positive_integer(num_train=num_train)
        if num_train == self.num_train:
            return self.config
        batch = self.config.sample_rate * self.num_train
        return replace(
            self.config,
            num_train=num_train,
            sample_rate=min(1.0, float(f"{batch / num_train:.3g}")),
            noise_multiplier=float(f"{self.config.noise_multiplier * min(1.0, num_train / batch):.3g}"),
        )

    def options(self, num_train: int) -> dict[str, Any]:
        """What the preset decides, by the names of the options of `mithridate train`; see `config_for`."""
        config = self.config_for(num_train)
        decided = {constant.name: getattr(config, constant.name) for constant in fields(TrainConfig)}
        given = {name: value for name, value in decided.items() if value is not None}
        return {**given, "model": self.model, "features": self.features, "seconds": _NO_HURRY}

    def assumption(self, shape: tuple[int, ...], classes: int) -> Statement:
        """What a certificate says about the choice of this recipe, for raw inputs of this shape and so many labels.

        It was chosen by fitting on one part of the training set of its data and comparing on another.
        """
        what = f"The constants of the recipe {self.name}"
        return tuned_constants(what, (_TITLES[self.data],), math.prod(shape), classes)

    def train(self, training_set: Any, test_set: Any, **options: Any) -> Votes:
        """Train by this recipe; the votes carry its assumption.

        Args:
            training_set: inputs and labels.
            test_set: inputs to vote on, or a pair with their true labels.
            options: constants of `TrainConfig` that are to be other ones (`instances`, say), and arguments of
                `mithridate.train` (`run_dir`, `device`, ...).

        Raises:
            ConfigError: as `mithridate.train`.
        """
        from mithridate.training.run import train

        names = [constant.name for constant in fields(TrainConfig)]
        changed = {name: options.pop(name) for name in names if name in options}
        declared = changed.pop("num_train", None)
        training = as_examples(training_set, "training", need_labels=True)
        examples = len(training.x)
        assert training.y is not None
        classes = changed.get("classes") or int(np.max(training.y)) + 1
        sentences = [*options.pop("assumptions", ()), self.assumption(training.x.shape[1:], classes)]
        return train(
            training,
            test_set,
            config=replace(self.config_for(declared or self.size_for(examples)), **changed),
            assumptions=sentences,
            size=Size.of(examples) if declared is None else None,
            **{"model": self.model, "features": self.features, **options},
        )


_PRESETS = (
    Preset(
        name="mnist-strong",
        description="MNIST: certified accuracy at r = 0, 150 and 400 together.",
        data="mnist",
        model="linear",
        features=ObjectGradients(),
        config=TrainConfig(
            instances=_INSTANCES,
            noise_multiplier=6.04,
            sample_rate=0.00607,
            steps=20,
            max_grad_norm=0.5,
            learning_rate=37.8,
            average_iterates=True,
            num_train=60_000,
        ),
    ),
    Preset(
        name="fashion-mnist-strong",
        description="Fashion-MNIST: certified accuracy at r = 0, 80 and 300 together.",
        data="fashion-mnist",
        model="linear",
        features=ObjectGradients(cells=8, orientations=12, sharpness=12),
        config=TrainConfig(
            instances=_INSTANCES,
            noise_multiplier=5.26,
            sample_rate=0.00461,
            steps=70,
            max_grad_norm=0.1,
            learning_rate=81.7,
            average_iterates=False,
            num_train=60_000,
        ),
    ),
    Preset(
        name="cifar10-strong",
        description="CIFAR-10: certified accuracy at r = 0, 10, 20 and 50 together.",
        data="cifar10",
        model="linear",
        features=PhotoGradients(cells=5),
        config=TrainConfig(
            instances=_INSTANCES,
            noise_multiplier=20.4,
            sample_rate=0.164,
            steps=20,
            max_grad_norm=0.5,
            learning_rate=252.0,
            average_iterates=True,
            num_train=50_000,
        ),
    ),
)
_BY_NAME: Mapping[str, Preset] = {each.name: each for each in _PRESETS}
NAMES = tuple(_BY_NAME)


def preset(name: str) -> Preset:
    """The preset of this name.

    Raises:
        ConfigError: there is none; the message has a suggestion.

    >>> preset("mnist-strong").data
    'mnist'
    >>> preset("mnist-strnog")
    Traceback (most recent call last):
    ...
    mithridate.errors.ConfigError: There is no recipe 'mnist-strnog'; did you mean 'mnist-strong'?
    """
    found = _BY_NAME.get(name) if isinstance(name, str) else None
    if found is None:
        raise ConfigError(f"There is no recipe {name!r}; {did_you_mean(name, NAMES)}")
    return found
