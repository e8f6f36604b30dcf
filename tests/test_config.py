"""The recipe: checked when it is made, resolved with what it assumes, and saved without loss."""

import itertools
import json
import math
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mithridate import ConfigError, MithridateError, SampledGaussian, Subsampled, TrainConfig

BASE: dict[str, Any] = {
    "instances": 10,
    "noise_multiplier": 3.0,
    "sample_rate": 0.01,
    "steps": 100,
    "max_grad_norm": 0.8,
    "learning_rate": 0.1,
}


def test_the_mechanism_is_that_of_the_constants() -> None:
    assert TrainConfig(**BASE).mechanism == SampledGaussian(3.0, 0.01, 100)
    assert TrainConfig(**BASE, keep=0.25).mechanism == Subsampled(0.25, SampledGaussian(3.0, 0.01, 100))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"instances": 0}, "instances"),
        ({"instances": 2.5}, "instances"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"sample_rate": 0.0}, "sample_rate"),
        ({"sample_rate": 1.5}, "sample_rate"),
        ({"steps": 0}, "steps"),
        ({"max_grad_norm": 0.0}, "max_grad_norm"),
        ({"max_grad_norm": math.inf}, "max_grad_norm"),
        ({"max_grad_norm": math.nan}, "max_grad_norm"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"optimizer": "lamb"}, r"optimizer.*sgd.*adam"),
        ({"schedule": "linear"}, r"schedule.*constant.*cosine"),
        ({"momentum": 1.0}, "momentum"),
        ({"momentum": -0.1}, "momentum"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum.*betas"),
        ({"weight_decay": -1e-3}, "weight_decay"),
        ({"betas": (0.9,)}, "betas"),
        ({"betas": 0.9}, "betas"),
        ({"betas": (0.9, 1.0)}, "second_beta"),
        ({"keep": 0.0}, "keep"),
        ({"keep": 1.5}, "keep"),
        ({"num_train": 0}, "num_train"),
        ({"classes": 1}, "classes of at least 2"),
        ({"divisor": 0.0}, "divisor"),
        ({"divisor": math.inf}, "divisor"),
        ({"pixel_std": 0.0}, "pixel_std"),
        ({"pixel_mean": (0.1, math.nan)}, "pixel_mean"),
        ({"score_bins": 12}, "score_bins.*power of two"),
        ({"score_bins": -1}, "score_bins"),
        ({"score_bins": 8192}, "score_bins"),
        ({"score_bins": True}, "score_bins"),
    ],
)
def test_bad_constants_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MithridateError, match=message):
        TrainConfig(**{**BASE, **changes})


def test_it_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        TrainConfig(**BASE).steps = 5  # pyright: ignore[reportAttributeAccessIssue]


def test_single_numbers_become_one_per_channel() -> None:
    config = TrainConfig(**BASE, pixel_mean=0.5, pixel_std=[0.25, 0.5])  # pyright: ignore[reportArgumentType]
    assert config.pixel_mean == (0.5,)
    assert config.pixel_std == (0.25, 0.5)


# --- resolving --------------------------------------------------------------------------------------------------------


def test_what_is_declared_is_not_read_off_the_data() -> None:
    config = TrainConfig(**BASE, num_train=1000, classes=7)
    resolved = config.resolve(num_train=555, classes=3)
    assert (resolved.num_train, resolved.classes) == (1000, 7)
    assert resolved.divisor == pytest.approx(10.0)  # of the declared number, never of the data


def test_what_is_left_open_follows_the_data() -> None:
    resolved = TrainConfig(**BASE).resolve(num_train=500, classes=4)
    assert (resolved.num_train, resolved.classes, resolved.divisor) == (340, 4, pytest.approx(3.4))  # the size step


def test_the_divisor_follows_the_number_of_examples_only_where_nothing_is_declared() -> None:
    assert TrainConfig(**BASE).follows_size
    assert not TrainConfig(**BASE, num_train=500).follows_size
    assert not TrainConfig(**BASE, divisor=5.0).follows_size


def test_a_divisor_makes_the_number_of_examples_irrelevant() -> None:
    resolved = TrainConfig(**BASE, divisor=3.0, classes=4).resolve(num_train=500, classes=4)
    assert (resolved.divisor, resolved.num_train) == (3.0, None)


def test_the_divisor_of_a_part_is_that_of_the_part() -> None:
    resolved = TrainConfig(**BASE, keep=0.2).resolve(num_train=500, classes=4)
    assert resolved.divisor == pytest.approx(0.01 * 340 * 0.2)


@settings(max_examples=50)
@given(num_train=st.integers(1, 10**6), classes=st.integers(2, 1000), keep=st.none() | st.floats(0.01, 1.0))
def test_resolving_twice_changes_nothing(num_train: int, classes: int, keep: float | None) -> None:
    once = TrainConfig(**BASE, keep=keep).resolve(num_train=num_train, classes=classes)
    assert once.resolve(num_train=num_train + 1, classes=classes + 1) == once
    assert once.mechanism == TrainConfig(**BASE, keep=keep).mechanism


# --- schedule and files -----------------------------------------------------------------------------------------------


def test_the_constant_schedule_is_constant() -> None:
    config = TrainConfig(**BASE)
    assert {config.learning_rate_at(step) for step in range(100)} == {0.1}


def test_the_cosine_schedule_starts_at_the_rate_and_falls_to_nearly_zero() -> None:
    config = TrainConfig(**BASE, schedule="cosine")
    rates = [config.learning_rate_at(step) for step in range(100)]
    assert rates[0] == 0.1
    assert all(later < earlier for earlier, later in itertools.pairwise(rates))
    assert 0 < rates[-1] < 1e-4
    assert rates[50] == pytest.approx(0.05)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimizer": "adam", "betas": (0.8, 0.99), "weight_decay": 0.1, "schedule": "cosine"},
        {"keep": 0.5, "num_train": 100, "classes": 3, "divisor": 2.0, "score_bins": 0, "average_iterates": True},
        {"pixel_mean": (0.1, 0.2, 0.3), "pixel_std": 0.5, "momentum": 0.9},
    ],
)
def test_json_and_back_is_the_identity(changes: dict[str, Any]) -> None:
    config = TrainConfig(**BASE, **changes)
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_from_dict_checks_like_the_constructor() -> None:
    values = TrainConfig(**BASE).to_dict()
    with pytest.raises(ConfigError, match="optimizer"):
        TrainConfig.from_dict({**values, "optimizer": "lamb"})


def test_replacing_a_constant_checks_again() -> None:
    with pytest.raises(MithridateError, match="momentum"):
        replace(TrainConfig(**BASE), momentum=2.0)


@pytest.mark.parametrize(
    "change",
    [
        {"max_grad_norm": 1e300},
        {"max_grad_norm": 1e-300},
        {"learning_rate": 1e300},
        {"noise_multiplier": 1e300},
        {"noise_multiplier": 1e20, "max_grad_norm": 1e20},
        {"weight_decay": 1e300},
    ],
)
def test_numbers_that_single_precision_does_not_have_are_refused(change: dict[str, float]) -> None:
    values: dict[str, Any] = {
        "instances": 1, "noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 1, "max_grad_norm": 1.0,
        "learning_rate": 1.0,
    }  # fmt: skip
    TrainConfig(**values)
    with pytest.raises(ConfigError, match="Expected"):
        TrainConfig(**{**values, **change})
