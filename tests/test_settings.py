"""Training inside whatever a caller has set in torch, and models that draw from where they should not."""

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from training_doubles import train_plain

from mithridate import TrainConfig, Votes, predict, train
from mithridate.defences.bagging import Bootstrap
from mithridate.defences.partitions import Parts
from mithridate.errors import ConfigError
from mithridate.training.config import PlainConfig, ViewPlan

X = np.random.default_rng(0).standard_normal((60, 6)).astype(np.float32)
Y = np.arange(60) % 3
CONFIG = TrainConfig(
    instances=4, noise_multiplier=1.0, sample_rate=0.3, steps=4, max_grad_norm=1.0, learning_rate=0.5, classes=3
)
SEED = bytes(32)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


Setting = Callable[[], AbstractContextManager[object]]
SETTINGS: dict[str, Setting] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
}


class Scaled(nn.Module):
    """Has a parameter of its own, so that it goes the general path."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs) * self.scale


def images() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.Tanh(), nn.AvgPool2d((1, 2)), nn.Flatten(), nn.Linear(4, 3)
    )


MODELS = {"linear": "linear", "mlp": "mlp", "general": Scaled, "images": images}


def trained(model: str, run_dir: Path | None = None) -> Votes:
    chosen = MODELS[model]
    return train(
        (X, Y), X[:9], model=chosen, config=CONFIG, root_seed=SEED, device="cpu", run_dir=run_dir,
        keep_models=run_dir is not None,
    )  # fmt: skip


def trained_plainly(plan: ViewPlan) -> Votes:
    config = PlainConfig(steps=4, learning_rate=0.5, batch_size=5, classes=3)
    seed = None if plan.is_deterministic else SEED
    return train_plain((X, Y), X[:9], model="mlp", plan=plan, config=config, root_seed=seed, device="cpu")


def settings_now() -> tuple[object, ...]:
    return (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype(),
        torch.is_autocast_enabled("cpu"),
    )  # fmt: skip


def assert_same(setting: str, votes: Callable[[], Votes]) -> None:
    """The same votes and scores, bit for bit, inside and outside; and the settings are as they were."""
    found: list[Votes] = []
    for inside in (nullcontext, SETTINGS[setting]):
        with inside():
            before = settings_now()
            found.append(votes())
            assert settings_now() == before
    one, other = found
    assert np.array_equal(one.counts, other.counts)
    assert one.data_fingerprint == other.data_fingerprint
    if one.score_sums is not None and other.score_sums is not None:
        assert one.score_sums.tobytes() == other.score_sums.tobytes()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_votes_do_not_depend_on_the_settings_of_the_caller(setting: str, model: str) -> None:
    assert_same(setting, lambda: trained(model))


@pytest.mark.parametrize("plan", [Parts(4), Bootstrap(4, 20)], ids=["parts", "bootstrap"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_votes_without_privacy_do_not_either(setting: str, plan: ViewPlan) -> None:
    assert_same(setting, lambda: trained_plainly(plan))


@pytest.mark.parametrize("setting", SETTINGS)
def test_nor_do_predictions(setting: str, tmp_path: Path) -> None:
    trained("mlp", tmp_path / "run")
    assert_same(setting, lambda: predict(tmp_path / "run", X[9:20], device="cpu"))


def test_a_network_that_was_built_in_inference_mode() -> None:
    with torch.inference_mode():
        module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    one, other = (
        train((X, Y), X[:9], model=each, config=CONFIG, root_seed=SEED, device="cpu").counts
        for each in (module, nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)))
    )
    assert np.array_equal(one, other)


# --- models that draw from where they should not ---------------------------------------------------------------------


def from_numpy() -> nn.Module:
    module = nn.Linear(6, 3)
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(np.random.standard_normal((3, 6))))  # noqa: NPY002
    return module


def from_new_generator() -> nn.Module:
    module = nn.Linear(6, 3)
    with torch.no_grad():
        module.bias.copy_(torch.from_numpy(np.random.default_rng().standard_normal(3)))
    return module


def from_python() -> nn.Module:
    module = nn.Linear(6, 3)
    with torch.no_grad():
        module.weight.fill_(random.random())
    return module


class ResetByNumpy(nn.Module):
    """A module that is given as it is, with a law of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 6))

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.weight.copy_(torch.from_numpy(np.random.standard_normal((3, 6))))  # noqa: NPY002

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.weight.T


class Shifted(nn.Module):
    """A constant that is another one every time."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("shift", torch.randn(6))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs + self.get_buffer("shift"))


@pytest.mark.parametrize("model", [from_numpy, from_new_generator, from_python, ResetByNumpy()])
@pytest.mark.parametrize("kind", ["private", "parts", "bootstrap"])
def test_weights_from_other_generators_are_refused(kind: str, model: Callable[[], nn.Module] | nn.Module) -> None:
    config = PlainConfig(steps=2, learning_rate=0.5, batch_size=5, classes=3)
    run = {
        "private": lambda: train((X, Y), X[:9], model=model, config=CONFIG, root_seed=SEED, device="cpu"),
        "parts": lambda: train_plain((X, Y), X[:9], model=model, plan=Parts(4), config=config, device="cpu"),
        "bootstrap": lambda: train_plain((X, Y), X[:9], model=model, plan=Bootstrap(4, 20), config=config),
    }[kind]
    with pytest.raises(ConfigError, match="other weights every time"):
        run()


def test_constants_that_are_drawn_anew_are_refused() -> None:
    with pytest.raises(ConfigError, match="Buffer shift is another one every time"):
        train((X, Y), X[:9], model=Shifted, config=CONFIG, root_seed=SEED, device="cpu")


def test_weights_from_the_generator_of_torch_are_a_function_of_the_seed() -> None:
    def orthogonal() -> nn.Module:
        module = nn.Linear(6, 3)
        nn.init.orthogonal_(module.weight)
        return module

    first, second = (
        train((X, Y), X[:9], model=orthogonal, config=CONFIG, root_seed=SEED, device="cpu") for _ in range(2)
    )
    assert np.array_equal(first.counts, second.counts)
