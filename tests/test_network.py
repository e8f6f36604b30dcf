"""The fast path against one model and one example at a time, and what it must leave to the general path."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gpu_checks import assert_near, fast_network
from reference import (
    CLASSES,
    VOCABULARY,
    CalledTwice,
    LastWord,
    Scaled,
    Tied,
    Unused,
    random_batch,
    random_inputs,
    random_weights,
    reference_clipped_sums,
    reference_logits,
    takes_integers,
    zoo,
)
from torch import Tensor, nn
from torch.nn import functional as F

from mithridate import ConfigError, TrainConfig
from mithridate.data import Dataset
from mithridate.training.conversion import Fusion, checked_shapes, fusion_of, layers_of, trace
from mithridate.training.engine import Engine
from mithridate.training.general import GeneralNetwork
from mithridate.training.models import ResNet18
from mithridate.training.network import FastNetwork, NotConvertible

ZOO = zoo()
NO_CLIPPING = 1e30


@pytest.fixture(scope="module")
def networks() -> dict[str, FastNetwork]:
    return {name: fast_network(module, shape) for name, (module, shape) in ZOO.items()}


# --- every layer against the loop -------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", ["none", "all", "some"])
@pytest.mark.parametrize("name", ZOO)
def test_clipped_sums_are_those_of_a_loop(networks: dict[str, FastNetwork], name: str, clip: str) -> None:
    module, shape = ZOO[name]
    weights = random_weights(module, 3, seed=1)
    inputs, labels, present = random_batch(module, shape, 3, 5, seed=2)
    assert present.any()
    assert not present.all()
    _, norms = reference_clipped_sums(module, weights, inputs, labels, present, NO_CLIPPING)
    bound = {"none": NO_CLIPPING, "all": 0.01, "some": float(norms[present].median())}[clip]
    if clip == "all":
        assert norms[present].min() > bound
    expected, _ = reference_clipped_sums(module, weights, inputs, labels, present, bound)
    assert_near(networks[name].clipped_sums(weights, inputs, labels, present, bound), expected)


@pytest.mark.parametrize("name", ZOO)
def test_one_model_at_a_time_gives_the_same(networks: dict[str, FastNetwork], name: str) -> None:
    # A CPU trains one model to a core, and may take other ways for one than for many.
    module, shape = ZOO[name]
    weights = random_weights(module, 2, seed=1)
    inputs, labels, present = random_batch(module, shape, 2, 7, seed=2)
    expected, _ = reference_clipped_sums(module, weights, inputs, labels, present, 0.3)
    for at in range(2):
        one = slice(at, at + 1)
        found = networks[name].clipped_sums(weights[one], inputs[one], labels[one], present[one], 0.3)
        assert_near(found, expected[one])
        assert_near(networks[name].logits(weights[one], inputs[0]), reference_logits(module, weights[one], inputs[0]))


@pytest.mark.parametrize("name", ZOO)
def test_logits_are_those_of_a_loop(networks: dict[str, FastNetwork], name: str) -> None:
    module, shape = ZOO[name]
    weights = random_weights(module, 2, seed=3)
    inputs = random_inputs(module, (5, *shape), seed=4)
    assert_near(networks[name].logits(weights, inputs), reference_logits(module, weights, inputs))


@pytest.mark.parametrize("name", ZOO)
def test_rows_have_the_order_of_named_parameters(networks: dict[str, FastNetwork], name: str) -> None:
    module, _ = ZOO[name]
    assert networks[name].shapes == {key: value.shape for key, value in module.named_parameters()}
    assert list(networks[name].shapes) == [key for key, _ in module.named_parameters()]
    assert networks[name].size == sum(value.numel() for value in module.parameters())


@pytest.mark.parametrize("name", ZOO)
def test_norms_are_those_of_a_loop_and_bounded(networks: dict[str, FastNetwork], name: str) -> None:
    # Every example is the only one of a model of its own, so that its contribution can be seen. Clipped to a share of
    # its exact norm, it must have that length: never more, and hardly less. That pins the norm from both sides.
    module, shape = ZOO[name]
    weights = random_weights(module, 1, seed=5).expand(6, -1).contiguous()
    inputs, labels, _ = random_batch(module, shape, 6, 1, seed=6)
    everyone = torch.ones(6, 1, dtype=torch.bool)
    _, norms = reference_clipped_sums(module, weights, inputs, labels, everyone, NO_CLIPPING)
    for at in range(6):
        bound = 0.7 * float(norms[at, 0])
        one = slice(at, at + 1)
        added = networks[name].clipped_sums(weights[one], inputs[one], labels[one], everyone[one], bound)[0].double()
        assert float(added.norm()) <= bound
        # Where the norm has to allow for rounding inside sums over positions, it is longer by up to 2^-13 of |a| |g|.
        assert float(added.norm()) >= 0.99 * bound


# --- batches ----------------------------------------------------------------------------------------------------------

SOME = ["linear", "model-lenet5", "embedding-padding", "conv2d-groups", "conv2d-behind", "layer-norm-on-sequence"]


@pytest.mark.parametrize("name", SOME)
def test_empty_batches_give_zeros(networks: dict[str, FastNetwork], name: str) -> None:
    module, shape = ZOO[name]
    weights = random_weights(module, 2, seed=1)
    for batch in (0, 3):
        inputs, labels, _ = random_batch(module, shape, 2, batch, seed=2)
        sums = networks[name].clipped_sums(weights, inputs, labels, torch.zeros(2, batch, dtype=torch.bool), 1.0)
        assert sums.shape == weights.shape
        assert (sums == 0).all()


@pytest.mark.parametrize("name", SOME)
def test_one_model_may_have_an_empty_batch_beside_another(networks: dict[str, FastNetwork], name: str) -> None:
    module, shape = ZOO[name]
    weights = random_weights(module, 3, seed=1)
    inputs, labels, _ = random_batch(module, shape, 3, 4, seed=2)
    present = torch.tensor([[True] * 4, [False] * 4, [True, True, False, False]])
    sums = networks[name].clipped_sums(weights, inputs, labels, present, 0.5)
    assert (sums[1] == 0).all()
    expected, _ = reference_clipped_sums(module, weights, inputs, labels, present, 0.5)
    assert_near(sums, expected)


@pytest.mark.parametrize("name", SOME)
def test_absent_examples_add_exactly_nothing_whatever_they_hold(networks: dict[str, FastNetwork], name: str) -> None:
    module, shape = ZOO[name]
    weights = random_weights(module, 2, seed=1)
    inputs, labels, present = random_batch(module, shape, 2, 6, seed=2)
    garbage, other = inputs.clone(), labels.clone()
    garbage[~present] = torch.nan if inputs.is_floating_point() else 1
    other[~present] = 0
    sums = networks[name].clipped_sums(weights, inputs, labels, present, 0.5)
    assert torch.equal(networks[name].clipped_sums(weights, garbage, other, present, 0.5), sums)


@pytest.mark.parametrize("models", ["together", "one by one"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30, -3e38])
@pytest.mark.parametrize("name", ["linear", "relu", "model-lenet5", "conv2d-behind", "group-norm", "max-pool-2d"])
def test_a_broken_example_touches_no_other(
    networks: dict[str, FastNetwork], name: str, value: float, models: str
) -> None:
    def clipped_sums(inputs: Tensor, labels: Tensor, present: Tensor) -> Tensor:
        groups = [slice(None)] if models == "together" else [slice(0, 1), slice(1, 2)]
        return torch.cat(
            [
                networks[name].clipped_sums(weights[group], inputs[group], labels[group], present[group], 0.5)
                for group in groups
            ]
        )

    module, shape = ZOO[name]
    weights = random_weights(module, 2, seed=1)
    inputs, labels, _ = random_batch(module, shape, 2, 4, seed=2)
    everyone = torch.ones(2, 4, dtype=torch.bool)
    others = everyone.clone()
    others[0, 1] = others[1, 3] = False
    broken = inputs.clone()
    broken[0, 1] = value
    broken[1, 3].view(-1)[-1] = value
    sums, without = clipped_sums(broken, labels, everyone), clipped_sums(inputs, labels, others)
    assert sums.isfinite().all()
    if not math.isfinite(value):
        assert torch.equal(sums, without)
    # However large, it adds no more than the bound (beyond that, additions round).
    assert ((sums - without).double().norm(dim=1) <= 0.5 * (1 + 1e-5)).all()


@pytest.mark.parametrize("name", ["linear", "model-lenet5", "conv2d-groups"])
def test_diverged_weights_do_not_reach_other_models(networks: dict[str, FastNetwork], name: str) -> None:
    module, shape = ZOO[name]
    weights = random_weights(module, 3, seed=1)
    inputs, labels, present = random_batch(module, shape, 3, 4, seed=2)
    sums = networks[name].clipped_sums(weights, inputs, labels, present, 0.5)
    for broken in (math.nan, math.inf):
        diverged = weights.clone()
        diverged[1] = broken
        found = networks[name].clipped_sums(diverged, inputs, labels, present, 0.5)
        assert (found[1] == 0).all()
        torch.testing.assert_close(found[[0, 2]], sums[[0, 2]], rtol=1e-6, atol=1e-7)
        logits = networks[name].logits(diverged, inputs[0])
        torch.testing.assert_close(
            logits[[0, 2]], networks[name].logits(weights, inputs[0])[[0, 2]], rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("name", ZOO)
def test_what_an_example_adds_does_not_depend_on_the_others(networks: dict[str, FastNetwork], name: str) -> None:
    module, shape = ZOO[name]
    weights = random_weights(module, 1, seed=1)
    inputs, labels, _ = random_batch(module, shape, 1, 5, seed=2)
    swapped, other = random_batch(module, shape, 1, 5, seed=9)[:2]
    swapped[0, 2], other[0, 2] = inputs[0, 2], labels[0, 2]
    everyone = torch.ones(1, 5, dtype=torch.bool)
    without = everyone.clone()
    without[0, 2] = False
    added = [
        networks[name].clipped_sums(weights, x, y, everyone, 0.3)
        - networks[name].clipped_sums(weights, x, y, without, 0.3)
        for x, y in ((inputs, labels), (swapped, other))
    ]
    alone = networks[name].clipped_sums(weights, inputs[:, 2:3], labels[:, 2:3], everyone[:, :1], 0.3)
    for found in added:
        torch.testing.assert_close(found, alone, rtol=1e-4, atol=2e-6)


def test_the_module_is_left_as_it_was() -> None:
    module, shape = ZOO["relu-in-place"]
    before = {name: value.detach().clone() for name, value in module.named_parameters()}
    network = FastNetwork(module, shape)
    inputs, labels, present = random_batch(module, shape, 2, 3, seed=2)
    network.clipped_sums(random_weights(module, 2, seed=1), inputs, labels, present, 0.5)
    assert all(torch.equal(value, before[name]) for name, value in module.named_parameters())
    assert all(value.grad is None for value in module.parameters())
    assert [layer.inplace for layer in module.modules() if isinstance(layer, nn.ReLU)] == [True]


def test_inputs_and_weights_are_left_as_they_were(networks: dict[str, FastNetwork]) -> None:
    for name in SOME:
        module, shape = ZOO[name]
        weights = random_weights(module, 2, seed=1)
        inputs, labels, present = random_batch(module, shape, 2, 4, seed=2)
        copies = [value.clone() for value in (weights, inputs, labels, present)]
        networks[name].clipped_sums(weights, inputs, labels, present, 0.5)
        networks[name].logits(weights, inputs[0])
        for value, copy in zip((weights, inputs, labels, present), copies, strict=True):
            assert torch.equal(value, copy)
        assert not weights.requires_grad


@pytest.mark.parametrize("power", [-42, -30, -20, -10, 0, 10, 18])
def test_the_bound_holds_for_inputs_of_any_size(power: int) -> None:
    # In a linear model the gradient is (p - e_label) times the input; weights of zero keep p finite.
    module = nn.Linear(150, CLASSES)
    network = FastNetwork(module, (150,))
    for seed in range(3):
        for bound in (1e-6, 1.0, 1e6):
            assert _added(network, 10.0**power * random_inputs(module, (150,), seed), bound) <= bound


def test_the_bound_holds_for_exploding_inputs() -> None:
    # Squares of inputs overflow in single precision from 1.8e19 on; whoever sums them in double precision must mind
    # that the factor, or its product with the output gradient, falls below the smallest normal number.
    module = nn.Linear(150, CLASSES)
    network = FastNetwork(module, (150,))
    for seed in range(3):
        for power in range(19, 39):
            for bound in (1e-6, 1e-3):
                assert _added(network, 10.0**power * random_inputs(module, (150,), seed), bound) <= bound


def _added(network: FastNetwork, example: Tensor, bound: float) -> float:
    one = torch.ones(1, 1, dtype=torch.bool)
    weights = torch.zeros(1, network.size)
    return float(network.clipped_sums(weights, example[None, None], one.long(), one, bound)[0].double().norm())


# --- what it takes together -------------------------------------------------------------------------------------------


def fusion_in(module: nn.Module, shape: tuple[int, ...]) -> Fusion:
    traced = trace(module)
    return fusion_of(traced, layers_of(traced), checked_shapes(traced, shape, torch.float32))


def test_every_block_of_a_resnet_ends_inside_its_last_norm() -> None:
    fusion = fusion_in(ResNet18(3, CLASSES, width=4), (3, 16, 16))
    names = {str(norm.target): str(other.target) for norm, other in fusion.addends.items()}
    assert names == {
        "stages.0.0.residual.4": "stem.2",
        "stages.0.1.residual.4": "stages.0.0.activation",
        **{
            name: other
            for stage in (1, 2, 3)
            for name, other in (
                (f"stages.{stage}.0.shortcut.1", f"stages.{stage}.0.residual.4"),  # the shortcut is computed last
                (f"stages.{stage}.1.residual.4", f"stages.{stage}.0.activation"),
            )
        },
    }
    # The sum and the ReLU after each of them, and the ReLUs inside of blocks and of the stem.
    assert len(fusion.followers) == 2 * 8 + 8 + 1
    assert sum(follower.norm.precedes_relu for follower in fusion.followers.values()) == len(fusion.followers)


class Sums(nn.Module):
    """A norm, and a function that says what is done with it and the images."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, 4)
        self.other = nn.GroupNorm(2, 4)
        self.same = nn.Identity()
        self.head = nn.Linear(4 * 9, CLASSES)
        self.written = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.written(self, x).flatten(1))


@pytest.mark.parametrize(
    ("steps", "followers"),
    [
        (lambda net, x: torch.relu(net.norm(x) + net.other(x)), 2),
        (lambda net, x: torch.relu(x + net.other(net.norm(x))), 2),
        (lambda net, x: torch.relu(net.other(net.norm(x)) + net.same(x)), 2),  # what is not changed is known before
        (lambda net, x: (lambda y: net.other(net.norm(x)) + y)(net.same(x)), 1),
        (lambda net, x: torch.tanh(torch.add(net.norm(x), net.other(x))), 1),
        (lambda net, x: torch.relu(net.norm(x)) + net.other(x), 2),
        (lambda net, x: net.norm(x) + torch.relu(net.other(x)), 1),  # the later operand is no norm
        (lambda net, x: torch.add(net.norm(x), net.other(x), alpha=2.0), 0),
        (lambda net, x: net.norm(x) - net.other(x), 0),
        (lambda net, x: net.norm(x) + 1.0 + net.other(x).mean((2, 3), keepdim=True), 0),
        (lambda net, x: (lambda y: y + y)(net.other(net.norm(x))), 0),
        (lambda net, x: (lambda y: (x + y) * y)(net.other(net.norm(x))), 0),  # used twice
        (lambda net, x: (lambda y: torch.relu(y) * y)(net.norm(x) + net.other(x)), 1),
    ],
)
def test_only_plain_sums_follow_a_norm(steps: Callable[[Any, Tensor], Tensor], followers: int) -> None:
    assert len(fusion_in(Sums(steps), (4, 3, 3)).followers) == followers


# --- what it must not take --------------------------------------------------------------------------------------------


class Written(nn.Module):
    """Two linear layers, and a function that says what happens with them."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], features: int = 6, **parts: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.head = nn.Linear(features, CLASSES)
        self.written = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.written(self, x)


class OwnLinear(nn.Linear):
    """A subclass may do anything."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) - super().forward(input).mean(0)


class OwnParameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(CLASSES, 6))
        self.bias = nn.Parameter(torch.zeros(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class ByHand(nn.Module):
    """What BatchNorm does, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(dim=0, keepdim=True)
        return self.head(centred / (centred * centred).mean(0, keepdim=True))


class Gathering(nn.Module):
    """Looks up whole examples by a word of another."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 3)
        self.head = nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x)[x[:, 0]].mean(1))


class Masked(nn.Module):
    """An optional argument, as many modules have."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden = torch.tanh(self.first(x))
        if mask is not None:
            hidden = hidden * mask
        return self.head(hidden)


def hidden(net: Any, x: Tensor) -> Tensor:
    return torch.tanh(net.first(x))


def tripled(_module: nn.Module, _inputs: Any, output: Any) -> Any:
    return 3 * output


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    module[0].register_forward_hook(tripled)
    return module


MIXING: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "mean over examples": (Written(lambda net, x: net.head(hidden(net, x) - hidden(net, x).mean(0))), (6,)),
    "mean over everything": (Written(lambda net, x: net.head(x - x.mean()) + net.head(net.first(x))), (6,)),
    "negative axis": (Written(lambda net, x: net.head(x - x.mean(-2, keepdim=True)) + net.first(x)[:, :4]), (6,)),
    "sum over examples": (Written(lambda net, x: net.head(hidden(net, x) - torch.sum(x, 0, keepdim=True))), (6,)),
    "batch norm by hand": (ByHand(), (6,)),
    "softmax over examples": (Written(lambda net, x: net.head(torch.softmax(hidden(net, x), dim=0))), (6,)),
    "concatenated examples": (Written(lambda net, x: net.head(torch.cat([hidden(net, x), x]))), (6,)),
    "examples flattened": (Written(lambda net, x: net.head(hidden(net, x).flatten(0, 1))), (2, 6)),
    "examples flipped": (Written(lambda net, x: net.head(hidden(net, x).flip(0))), (6,)),
    "examples rolled": (Written(lambda net, x: net.head(torch.roll(hidden(net, x), 1, 0))), (6,)),
    "first example": (Written(lambda net, x: net.head(hidden(net, x) + x[0])), (6,)),
    "last example": (Written(lambda net, x: net.head(hidden(net, x) + x[-1:])), (6,)),
    "products of examples": (Written(lambda net, x: net.head(hidden(net, x) @ hidden(net, x).T)), (6,)),
    "subclass": (nn.Sequential(OwnLinear(6, 6), nn.Linear(6, CLASSES)), (6,)),
}
MIXING_THAT_GETS_BY: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "number of examples": (Written(lambda net, x: net.head(hidden(net, x) / x.size(0))), (6,)),
    "length of the first axis": (Written(lambda net, x: net.head(hidden(net, x) * x.shape[0])), (6,)),
    "examples shifted by padding": (
        Written(lambda net, x: net.head(net.pad(hidden(net, x))), pad=nn.ZeroPad2d((0, 0, 1, -1))),
        (6,),
    ),
    "examples looked up": (Gathering(), (5,)),
}
# Their forward pass fails on a batch of two or three.
FAILING: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "pairs of examples": (Written(lambda net, x: net.head(hidden(net, x).view(-1, 12)), 12), (6,)),
    "examples moved": (Written(lambda net, x: net.head(hidden(net, x).permute(1, 0))), (6,)),
    "examples transposed": (Written(lambda net, x: net.head(hidden(net, x).transpose(0, 1))), (6,)),
}
OTHER: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "layer used twice": (CalledTwice(), (6,)),
    "tied weights": (Tied(), (6,)),
    "loose parameter": (Scaled(), (6,)),
    "functional with its own parameters": (OwnParameters(), (6,)),
    "dropout": (nn.Sequential(nn.Dropout(0.5), nn.Linear(6, CLASSES)), (6,)),
    "batch norm": (nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, CLASSES)), (6,)),
    "branch": (Written(lambda net, x: net.head(hidden(net, x)) if x.sum() > 0 else net.head(x)), (6,)),
    "circular padding": (
        nn.Sequential(nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(6, CLASSES)),
        (1, 6),
    ),
    "renormalised embedding": (
        nn.Sequential(nn.Embedding(VOCABULARY, 2, max_norm=1.0), nn.Flatten(), nn.Linear(10, CLASSES)),
        (5,),
    ),
    "scores of three axes": (nn.Linear(6, CLASSES), (3, 6)),
    "last word": (LastWord(), (5,)),
    "several outputs": (Written(lambda net, x: (net.head(x), net.first(x))), (6,)),  # type: ignore[arg-type]
}
REFUSED = {**MIXING, **OTHER}


@pytest.mark.parametrize("name", REFUSED)
def test_not_convertible(name: str) -> None:
    module, shape = REFUSED[name]
    with pytest.raises(NotConvertible):
        fast_network(module, shape)


@pytest.mark.parametrize("name", MIXING_THAT_GETS_BY)
def test_not_convertible_either(name: str) -> None:
    module, shape = MIXING_THAT_GETS_BY[name]
    with pytest.raises(NotConvertible):
        fast_network(module, shape)


@pytest.mark.parametrize("name", FAILING)
def test_not_convertible_if_it_fails_on_a_batch(name: str) -> None:
    module, shape = FAILING[name]
    with pytest.raises(NotConvertible):
        fast_network(module, shape)


# Modules that are converted, or refused, but never silently something else.
OTHERWISE: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "optional argument": (Masked(), (6,)),
    "forward hook": (hooked(), (6,)),
    "in place on what is used again": (
        Written(lambda net, x: (lambda h: net.head(net.act(h) + h))(net.first(x)), act=nn.ReLU(inplace=True)),
        (6,),
    ),
    "layer called by keyword": (Written(lambda net, x: net.head(input=hidden(net, x))), (6,)),
    "pooling called by keyword": (
        Written(lambda net, x: net.head(net.pool(input=hidden(net, x)).flatten(1)), pool=nn.AvgPool2d(1)),
        (1, 1, 6),
    ),
    "activation and pooling of tables": (
        nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(6, CLASSES)),
        (4, 6),
    ),
    "window as a list": (
        nn.Sequential(
            nn.Conv2d(1, 1, 1),
            nn.Tanh(),
            nn.AvgPool2d([2, 2]),  # pyright: ignore[reportArgumentType]
            nn.Flatten(),
            nn.Linear(4, CLASSES),
        ),
        (1, 4, 4),
    ),
}
FINE: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "positional in-place flag": (Written(lambda net, x: net.head(F.relu(net.first(x), True))), (6,)),
    "activation called by keyword": (Written(lambda net, x: net.head(F.relu(input=net.first(x)))), (6,)),
    "layer not used": (Unused(), (6,)),
    "dropout of nothing": (nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.0), nn.Linear(6, CLASSES)), (6,)),
    "inner axes": (Written(lambda net, x: net.head(hidden(net, x).mean((1, 2)))), (2, 3, 6)),
    "concatenated features": (Written(lambda net, x: net.head(torch.cat([hidden(net, x), x], dim=1)), 12), (6,)),
    "centred by itself": (Written(lambda net, x: net.head(x - hidden(net, x).mean(1, keepdim=True))), (6,)),
    "a pool used twice": (
        Written(lambda net, x: net.head(torch.add(net.act(net.first(x)), net.act(x))), act=nn.Tanh()),
        (6,),
    ),
}


def assert_right_if_converted(module: nn.Module, shape: tuple[int, ...]) -> None:
    try:
        network = fast_network(module, shape)
    except NotConvertible:
        return
    weights = random_weights(module, 2, seed=1)
    inputs, labels, present = random_batch(module, shape, 2, 4, seed=2)
    assert_near(network.logits(weights, inputs[0]), reference_logits(module, weights, inputs[0]))
    expected, _ = reference_clipped_sums(module, weights, inputs, labels, present, 0.5)
    assert_near(network.clipped_sums(weights, inputs, labels, present, 0.5), expected)


@pytest.mark.parametrize("name", FINE)
def test_converted_to_the_same_function(name: str) -> None:
    module, shape = FINE[name]
    fast_network(module, shape)
    assert_right_if_converted(module, shape)


@pytest.mark.parametrize("name", OTHERWISE)
def test_converted_to_the_same_function_or_refused(name: str) -> None:
    assert_right_if_converted(*OTHERWISE[name])


# --- the engine falls back --------------------------------------------------------------------------------------------


def engine_of(module: nn.Module, shape: tuple[int, ...]) -> Engine:
    inputs = random_inputs(module, (3, *shape), seed=3).numpy()
    data = Dataset(inputs, np.zeros(3, np.int64))
    config = TrainConfig(1, 1.0, 0.5, 1, 1.0, 0.1).resolve(num_train=3, classes=CLASSES)
    return Engine(module, data, config, device=torch.device("cpu"))


MIXED = [
    "mean over examples", "mean over everything", "negative axis", "sum over examples", "softmax over examples",
    "examples flipped", "examples rolled", "first example", "last example", "subclass",
]  # fmt: skip
# Not those whose forward pass fails on one example alone, nor those that are refused altogether.
ALONE = [
    "layer used twice", "tied weights", "loose parameter", "functional with its own parameters", "circular padding",
    "last word",
]  # fmt: skip


@pytest.mark.parametrize("name", MIXED)
def test_modules_that_mix_examples_are_refused_altogether(name: str) -> None:
    with pytest.raises(ConfigError, match="mixes examples"):
        engine_of(*REFUSED[name])


@pytest.mark.parametrize("name", MIXED)
def test_the_general_path_itself_runs_every_example_alone(name: str) -> None:
    module, shape = REFUSED[name]
    weights = random_weights(module, 2, seed=1)
    inputs, labels, present = random_batch(module, shape, 2, 4, seed=2)
    expected, _ = reference_clipped_sums(module, weights, inputs, labels, present, 0.5)
    assert_near(GeneralNetwork(module, shape).clipped_sums(weights, inputs, labels, present, 0.5), expected)


@pytest.mark.parametrize("name", ALONE)
def test_the_general_path_takes_over_and_keeps_examples_apart(name: str) -> None:
    module, shape = REFUSED[name]
    engine = engine_of(module, shape)
    assert engine.path == "general"
    weights = random_weights(module, 2, seed=1)
    inputs, labels, present = random_batch(module, shape, 2, 4, seed=2)
    expected, _ = reference_clipped_sums(module, weights, inputs, labels, present, 0.5)
    assert_near(engine.network.clipped_sums(weights, inputs, labels, present, 0.5), expected)


@pytest.mark.parametrize("name", ["dropout", "batch norm"])
def test_randomness_and_state_are_refused_altogether(name: str) -> None:
    with pytest.raises(ConfigError, match=r"Dropout|BatchNorm"):
        engine_of(*REFUSED[name])


@pytest.mark.parametrize("name", ZOO)
def test_the_whole_zoo_goes_the_fast_way(name: str) -> None:
    module, shape = ZOO[name]
    assert engine_of(module, shape).path == "fast"
    assert takes_integers(module) == ("embedding" in name)
