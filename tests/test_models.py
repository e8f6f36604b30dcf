"""The named networks: shapes, sizes by arithmetic, and nothing in them that training must refuse."""

import pytest
import torch
from torch import fx, nn

from mithridate import ConfigError
from mithridate.training import models
from mithridate.training.models import MODELS, build, scaling

HOME = {
    "linear": (1, 28, 28),
    "mlp": (1, 28, 28),
    "lenet5": (1, 28, 28),
    "opa-tut": (3, 32, 32),
    "resnet18": (3, 32, 32),
}


def convolution(inner: int, outer: int, kernel: int, *, bias: bool = True) -> int:
    return inner * outer * kernel * kernel + (outer if bias else 0)


def linear(inner: int, outer: int) -> int:
    return inner * outer + outer


def block(inner: int, outer: int) -> int:
    """A basic block without biases, with a scale and a shift per channel after every convolution."""
    both = convolution(inner, outer, 3, bias=False) + convolution(outer, outer, 3, bias=False) + 2 * 2 * outer
    shortcut = 0 if inner == outer else convolution(inner, outer, 1, bias=False) + 2 * outer
    return both + shortcut


def sizes(classes: int) -> dict[str, int]:
    stages = [(64, 64), (64, 128), (128, 256), (256, 512)]
    return {
        "linear": linear(784, classes),
        "mlp": linear(784, 64) + linear(64, classes),
        "lenet5": convolution(1, 6, 5)
        + convolution(6, 16, 5)
        + linear(16 * 4 * 4, 120)
        + linear(120, 84)
        + linear(84, classes),
        "opa-tut": convolution(3, 32, 3)
        + convolution(32, 64, 3)
        + convolution(64, 64, 3)
        + convolution(64, 128, 3)
        + linear(128, classes),
        "resnet18": convolution(3, 64, 3, bias=False)
        + 2 * 64
        + sum(block(inner, outer) + block(outer, outer) for inner, outer in stages)
        + linear(512, classes),
    }


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("name", MODELS)
def test_size_is_that_of_the_layers(name: str, classes: int) -> None:
    assert count(build(name, HOME[name], classes)) == sizes(classes)[name]


def test_lenet5_has_the_size_of_the_paper() -> None:
    # peers.md: 5x5 convolutions without padding (1-6-16), 256-120-84-10.
    assert sizes(10)["lenet5"] == 44_426


@pytest.mark.parametrize("name", MODELS)
def test_answers_logits_and_can_be_traced(name: str) -> None:
    module = build(name, HOME[name], 7)
    images = torch.randn(2, *HOME[name], generator=torch.Generator().manual_seed(0))
    logits = module(images)
    assert logits.shape == (2, 7)
    torch.testing.assert_close(fx.symbolic_trace(module)(images), logits)


@pytest.mark.parametrize("name", MODELS)
def test_is_suitable_and_can_start_afresh(name: str) -> None:
    module = build(name, HOME[name], 3)
    models.check_module(module)
    before = [parameter.detach().clone() for parameter in module.parameters()]
    models.reset_for_fresh_start(module)
    # Scales and shifts of norms start at constants; every matrix and filter is drawn.
    drawn = [(old, new) for old, new in zip(before, module.parameters(), strict=True) if new.dim() > 1]
    assert drawn
    assert all(not torch.equal(old, new) for old, new in drawn)


@pytest.mark.parametrize("name", ["lenet5", "opa-tut", "resnet18"])
@pytest.mark.parametrize("channels", [1, 4])
def test_convolutions_take_other_channels_and_sizes(name: str, channels: int) -> None:
    shape = (channels, 17, 23)
    assert build(name, shape, 5)(torch.zeros(2, *shape)).shape == (2, 5)


def test_tables_and_sequences_are_flattened() -> None:
    assert build("linear", (6,), 3)(torch.zeros(2, 6)).shape == (2, 3)
    assert build("mlp", (4, 5), 3)(torch.zeros(2, 4, 5)).shape == (2, 3)


@pytest.mark.parametrize(("name", "least"), [("lenet5", 16), ("opa-tut", 8), ("resnet18", 8)])
def test_smallest_image(name: str, least: int) -> None:
    assert build(name, (1, least, least), 2)(torch.zeros(1, 1, least, least)).shape == (1, 2)
    with pytest.raises(ConfigError, match=f"at least {least}x{least} pixels, got {least}x{least - 1}"):
        build(name, (1, least, least - 1), 2)


def test_bad_arguments() -> None:
    with pytest.raises(ConfigError, match="linear, mlp, lenet5, opa-tut, resnet18, got 'lenet'"):
        build("lenet", (1, 28, 28), 10)
    with pytest.raises(ConfigError, match="linear, mlp, lenet5, opa-tut, resnet18, got 'lenet'"):
        scaling("lenet", 1)
    with pytest.raises(ConfigError, match=r"\(channels, height, width\), got examples of shape \(28, 28\); reshape"):
        build("lenet5", (28, 28), 10)
    with pytest.raises(ConfigError, match="classes"):
        build("linear", (3,), 1)
    with pytest.raises(ConfigError, match="whole number"):
        build("linear", (3, 0), 2)
    with pytest.raises(ConfigError, match="at least one axis"):
        build("linear", (), 2)


def test_scaling_is_that_of_the_recipes() -> None:
    # peers.md for lenet5; pytorch/opacus, examples/cifar10.py for the others.
    assert scaling("lenet5", 1) == ((0.1307,), (0.3081,))
    cifar10 = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    assert scaling("opa-tut", 3) == scaling("resnet18", 3) == cifar10
    assert scaling("linear", 3) == ((0.0,) * 3, (1.0,) * 3)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_scaling_has_one_pair_per_channel(name: str, channels: int) -> None:
    mean, std = scaling(name, channels)
    assert len(mean) == len(std) == channels
    assert all(value > 0 for value in std)
