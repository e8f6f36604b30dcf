"""The general path against one model and one example at a time."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import (
    CLASSES,
    Attention,
    example_gradient,
    general_zoo,
    random_batch,
    random_inputs,
    random_weights,
    reference_clipped_sums,
    reference_logits,
    with_weights,
    zoo,
)
from torch import Tensor, nn

from mithridate import ConfigError
from mithridate.training import general
from mithridate.training.general import GeneralNetwork

ZOO = zoo() | general_zoo()
NO_CLIPPING = 1e30


@pytest.fixture(scope="module")
def networks() -> dict[str, GeneralNetwork]:
    return {name: GeneralNetwork(module, shape) for name, (module, shape) in ZOO.items()}


def assert_near(actual: Tensor, expected: Tensor) -> None:
    """Equal up to rounding in float32 and the margin of 2^-16 by which clipping falls short of the bound."""
    assert actual.dtype == torch.float32
    scale = max(1e-30, float(expected.abs().max()))
    torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=5e-5 * scale)


# --- every layer against the loop -------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", ["none", "all", "some"])
@pytest.mark.parametrize("name", ZOO)
def test_clipped_sums_are_those_of_a_loop(networks: dict[str, GeneralNetwork], name: str, clip: str) -> None:
    module, shape = ZOO[name]
    weights = random_weights(module, 3, seed=1)
    inputs, labels, present = random_batch(module, shape, 3, 5, seed=2)
    _, norms = reference_clipped_sums(module, weights, inputs, labels, present, NO_CLIPPING)
    bound = {"none": NO_CLIPPING, "all": 0.01, "some": float(norms[present].median())}[clip]
    if clip == "all":
        assert norms[present].min() > bound
    expected, _ = reference_clipped_sums(module, weights, inputs, labels, present, bound)
    assert_near(networks[name].clipped_sums(weights, inputs, labels, present, bound), expected)


@pytest.mark.parametrize("name", ZOO)
def test_logits_are_those_of_a_loop(networks: dict[str, GeneralNetwork], name: str) -> None:
    module, shape = ZOO[name]
    weights = random_weights(module, 2, seed=3)
    inputs = random_inputs(module, (5, *shape), seed=4)
    assert_near(networks[name].logits(weights, inputs), reference_logits(module, weights, inputs))


@pytest.mark.parametrize("name", ZOO)
def test_rows_have_the_order_of_named_parameters(networks: dict[str, GeneralNetwork], name: str) -> None:
    module, _ = ZOO[name]
    assert networks[name].shapes == {key: value.shape for key, value in module.named_parameters()}
    assert networks[name].size == sum(value.numel() for value in module.parameters())


@pytest.mark.gpu
@pytest.mark.parametrize("name", ZOO)
def test_clipped_sums_on_the_gpu_are_those_of_a_loop(
    networks: dict[str, GeneralNetwork], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    module, shape = ZOO[name]
    weights = random_weights(module, 3, seed=1)
    inputs, labels, present = random_batch(module, shape, 3, 5, seed=2)
    expected, _ = reference_clipped_sums(module, weights, inputs, labels, present, 0.5)
    sums = networks[name].clipped_sums(weights.cuda(), inputs.cuda(), labels.cuda(), present.cuda(), 0.5)
    assert_near(sums.cpu(), expected)
    logits = networks[name].logits(weights.cuda(), inputs[0].cuda())
    assert_near(logits.cpu(), reference_logits(module, weights, inputs[0]))


# --- batches ----------------------------------------------------------------------------------------------------------

SOME = ["model-lenet5", "embedding-padding", "attention", "tied"]


@pytest.mark.parametrize("name", SOME)
def test_empty_batches_give_zeros(networks: dict[str, GeneralNetwork], name: str) -> None:
    module, shape = ZOO[name]
    weights = random_weights(module, 2, seed=1)
    for batch in (0, 3):
        inputs, labels, _ = random_batch(module, shape, 2, batch, seed=2)
        sums = networks[name].clipped_sums(weights, inputs, labels, torch.zeros(2, batch, dtype=torch.bool), 1.0)
        assert sums.shape == weights.shape
        assert (sums == 0).all()


def test_no_inputs_and_no_models(networks: dict[str, GeneralNetwork]) -> None:
    module, shape = ZOO["linear"]
    weights = random_weights(module, 2, seed=1)
    assert networks["linear"].logits(weights, torch.zeros(0, *shape)).shape == (2, 0, CLASSES)
    inputs, labels, present = random_batch(module, shape, 0, 3, seed=2)
    assert networks["linear"].clipped_sums(weights[:0], inputs, labels, present, 1.0).shape == (0, weights.shape[1])


@pytest.mark.parametrize("name", SOME)
def test_absent_examples_add_exactly_nothing_whatever_they_hold(networks: dict[str, GeneralNetwork], name: str) -> None:
    module, shape = ZOO[name]
    weights = random_weights(module, 2, seed=1)
    inputs, labels, present = random_batch(module, shape, 2, 6, seed=2)
    assert present.any()
    assert not present.all()
    garbage, no_label = inputs.clone(), labels.clone()
    garbage[~present] = torch.nan if inputs.is_floating_point() else 10**6
    no_label[~present] = -7
    sums = networks[name].clipped_sums(weights, inputs, labels, present, 0.5)
    assert torch.equal(networks[name].clipped_sums(weights, garbage, no_label, present, 0.5), sums)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_examples_without_a_finite_gradient_add_exactly_nothing(
    networks: dict[str, GeneralNetwork], value: float
) -> None:
    module, shape = ZOO["conv2d"]
    weights = random_weights(module, 2, seed=1)
    inputs, labels, _ = random_batch(module, shape, 2, 4, seed=2)
    everyone = torch.ones(2, 4, dtype=torch.bool)
    broken = inputs.clone()
    broken[0, 1] = value
    broken[1, 3, 0, 0, 0] = value
    others = everyone.clone()
    others[0, 1] = others[1, 3] = False
    sums = networks["conv2d"].clipped_sums(weights, broken, labels, everyone, 0.5)
    finite = networks["conv2d"].clipped_sums(weights, inputs, labels, others, 0.5)
    assert sums.isfinite().all()
    assert torch.equal(sums, finite)


def test_diverged_weights_do_not_reach_other_models(networks: dict[str, GeneralNetwork]) -> None:
    module, shape = ZOO["conv2d"]
    weights = random_weights(module, 3, seed=1)
    inputs, labels, present = random_batch(module, shape, 3, 4, seed=2)
    sums = networks["conv2d"].clipped_sums(weights, inputs, labels, present, 0.5)
    weights[1] = torch.nan
    diverged = networks["conv2d"].clipped_sums(weights, inputs, labels, present, 0.5)
    assert (diverged[1] == 0).all()
    assert torch.equal(diverged[[0, 2]], sums[[0, 2]])


@pytest.mark.parametrize("name", ["model-lenet5", "prelu", "embedding-padding"])
def test_small_chunks_change_nothing_but_rounding(
    networks: dict[str, GeneralNetwork], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, shape = ZOO[name]
    weights = random_weights(module, 5, seed=1)
    inputs, labels, present = random_batch(module, shape, 5, 7, seed=2)
    sums = networks[name].clipped_sums(weights, inputs, labels, present, 0.5)
    logits = networks[name].logits(weights, inputs[0])
    seen: list[tuple[int, int]] = []
    unchunked = GeneralNetwork._gradients  # pyright: ignore[reportPrivateUsage]

    def watched(self: GeneralNetwork, weights: Tensor, inputs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        gradients = unchunked(self, weights, inputs, labels)
        seen.append((sum(gradient.numel() for gradient in gradients), labels.numel()))
        return gradients

    monkeypatch.setattr(GeneralNetwork, "_gradients", watched)
    for cells in (1, 3, 15):
        seen.clear()
        per_cell = 4 * networks[name]._numbers_per_example  # pyright: ignore[reportPrivateUsage]
        monkeypatch.setattr(general, "_CHUNK_BYTES", cells * per_cell)
        torch.testing.assert_close(networks[name].clipped_sums(weights, inputs, labels, present, 0.5), sums)
        torch.testing.assert_close(networks[name].logits(weights, inputs[0]), logits)
        assert all(4 * numbers <= cells * per_cell for numbers, _ in seen)
        assert sum(examples for _, examples in seen) == 35


@pytest.mark.parametrize("name", SOME)
def test_a_loop_over_models_changes_nothing_but_rounding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # What operations that can be batched over examples, but not over models as well, fall back on.
    module, shape = ZOO[name]
    network = GeneralNetwork(module, shape)
    weights = random_weights(module, 3, seed=1)
    inputs, labels, present = random_batch(module, shape, 3, 4, seed=2)
    sums = network.clipped_sums(weights, inputs, labels, present, 0.5)
    logits = network.logits(weights, inputs[0])
    monkeypatch.setattr(network, "_batches_models", False)
    torch.testing.assert_close(network.clipped_sums(weights, inputs, labels, present, 0.5), sums, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(network.logits(weights, inputs[0]), logits, rtol=1e-4, atol=1e-6)


def test_whole_numbers_may_come_as_floats(networks: dict[str, GeneralNetwork]) -> None:
    module, shape = ZOO["embedding"]
    weights = random_weights(module, 2, seed=1)
    inputs, labels, present = random_batch(module, shape, 2, 3, seed=2)
    sums = networks["embedding"].clipped_sums(weights, inputs, labels, present, 0.5)
    assert torch.equal(networks["embedding"].clipped_sums(weights, inputs.float(), labels, present, 0.5), sums)
    logits = networks["embedding"].logits(weights, inputs[0])
    assert torch.equal(networks["embedding"].logits(weights, inputs[0].float()), logits)


# --- the bound --------------------------------------------------------------------------------------------------------


def contribution(network: GeneralNetwork, weights: Tensor, example: Tensor, label: int, bound: float) -> Tensor:
    """What one example adds, in float64."""
    one = torch.ones(1, 1, dtype=torch.bool)
    labels = torch.full((1, 1), label)
    return network.clipped_sums(weights[None], example[None, None], labels, one, bound)[0].double()


@settings(max_examples=60)
@given(
    scale=st.floats(-42, 37).map(lambda power: 10.0**power),
    bound=st.floats(-6, 6).map(lambda power: 10.0**power),
    seed=st.integers(0, 2**31),
)
def test_what_a_present_example_adds_has_norm_at_most_the_bound(scale: float, bound: float, seed: int) -> None:
    # In a linear model the gradient is (p - e_label) times the input, so that inputs of any size make gradients of any
    # size; weights of zero keep p finite.
    network = _LINEAR
    example = scale * random_inputs(_LINEAR_MODULE, (150,), seed)
    weights = torch.zeros(network.size)
    added = contribution(network, weights, example, 1, bound)
    exact = example_gradient(with_weights(_LINEAR_MODULE, weights), example, torch.tensor(1))
    assert added.norm() <= bound
    if exact.norm() < 0.9979 * bound:
        # Not clipped: as it was. (Below 1e-30 float32 itself has few digits left.)
        torch.testing.assert_close(added, exact, rtol=1e-5, atol=1e-30)
    elif exact.norm() < 1e37 * bound:
        # Clipped: the same direction, no shorter than it has to be.
        assert added.norm() >= bound * (1 - 2.0**-9 - 2e-4)
        assert added @ exact >= (1 - 1e-6) * added.norm() * exact.norm()


_LINEAR_MODULE = nn.Linear(150, CLASSES)
_LINEAR = GeneralNetwork(_LINEAR_MODULE, (150,))


@settings(max_examples=15)
@given(seed=st.integers(0, 2**31), scale=st.floats(-3, 3).map(lambda power: 10.0**power))
def test_the_bound_holds_in_a_network(seed: int, scale: float) -> None:
    weights = scale * random_weights(_LENET_MODULE, 1, seed)[0]
    example = random_inputs(_LENET_MODULE, _LENET_SHAPE, seed + 1)
    for bound in (0.8, 1e-3):
        assert contribution(_LENET, weights, example, seed % CLASSES, bound).norm() <= bound


_LENET_MODULE, _LENET_SHAPE = ZOO["model-lenet5"]
_LENET = GeneralNetwork(_LENET_MODULE, _LENET_SHAPE)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 255, 4097, 100_003])
def test_norms_are_exact_up_to_the_roundings_that_the_margin_covers(length: int) -> None:
    # Equal terms of one sign are the worst for a sum that runs from left to right.
    for gradient in (torch.full((length,), 0.1), torch.rand(length, generator=torch.Generator().manual_seed(length))):
        square = general._sum_in_blocks(gradient.square())  # pyright: ignore[reportPrivateUsage]
        exact = gradient.double().square().sum()
        assert abs(float(square) / float(exact) - 1) <= 2.0**-16


def test_a_gradient_too_long_to_scale_adds_nothing() -> None:
    example = torch.full((150,), 3e37)
    assert (contribution(_LINEAR, torch.zeros(_LINEAR.size), example, 1, 1e-6) == 0).all()


# --- examples cannot mix ----------------------------------------------------------------------------------------------


class Centred(nn.Module):
    """Subtracts the mean over the batch: no list of layers shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, CLASSES)
        self.shift = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(x - x.mean(0) + self.shift))


def test_examples_cannot_mix_whatever_the_module_does() -> None:
    module = Centred()
    network = GeneralNetwork(module, (4,))
    weights = random_weights(module, 2, seed=1)
    inputs, labels, present = random_batch(module, (4,), 2, 5, seed=2)
    expected, _ = reference_clipped_sums(module, weights, inputs, labels, present, 0.5)
    assert_near(network.clipped_sums(weights, inputs, labels, present, 0.5), expected)
    assert_near(network.logits(weights, inputs[0]), reference_logits(module, weights, inputs[0]))


def test_the_module_is_left_as_it_was() -> None:
    module = Attention().eval()
    before = {name: value.detach().clone() for name, value in module.named_parameters()}
    network = GeneralNetwork(module, (3, 6))
    inputs, labels, present = random_batch(module, (3, 6), 2, 3, seed=2)
    network.clipped_sums(random_weights(module, 2, seed=1), inputs, labels, present, 0.5)
    assert not module.training
    assert all(torch.equal(value, before[name]) for name, value in module.named_parameters())
    assert all(value.grad is None for value in module.parameters())


# --- refusals ---------------------------------------------------------------------------------------------------------


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(x), x


class Detour(torch.autograd.Function):
    """Doubles, but claims that a batch is tripled: stands for a batching rule that is wrong."""

    generate_vmap_rule = False

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        pass

    @staticmethod
    def backward(ctx: object, *outputs: Tensor) -> Tensor:
        return 2 * outputs[0]

    @staticmethod
    def vmap(info: object, in_dims: tuple[int, ...], *args: Tensor) -> tuple[Tensor, int]:
        return 3 * args[0], in_dims[0]


class WronglyBatched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return Detour.apply(self.head(x))  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize(
    ("module", "shape", "message"),
    [
        (nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), (4,), r"Layer 1, BatchNorm1d.*GroupNorm\(1, 2\)"),
        (nn.Linear(4, 2), (5,), r"The model Linear.*does not take inputs of shape \(5,\).*Compare the shape"),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), (5,), r"Layer 1, Linear.*does not take inputs of shape \(5,\)"),
        (nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 2)), (3,), r"Layer 2, Linear.*shape \(3,\)"),
        (nn.Linear(4, 2), (3, 4), r"logits of shape \(1, classes\).*got \(1, 3, 2\); flatten"),
        (nn.Linear(4, 1), (4,), r"classes of at least 2, got \(1, 1\)"),
        (Pair(), (4,), r"got tuple; .*return the logits alone"),
        (nn.Sequential(nn.Linear(4, 2), Branching()), (4,), r"Layer 1, Branching.*torch\.func cannot.*no branch on"),
        (WronglyBatched(), (4,), r"WronglyBatched cannot be used: torch\.func gives other gradients"),
    ],
    ids=["batch norm", "shape", "inner shape", "words", "axes", "one class", "tuple", "branch", "wrong rule"],
)
def test_refusal_names_the_layer_and_the_remedy(module: nn.Module, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GeneralNetwork(module, shape)


def test_a_module_that_cannot_be_copied_is_refused() -> None:
    module = nn.Linear(4, 2)
    module.cached = module.weight * 2  # pyright: ignore[reportAttributeAccessIssue]  # a tensor with a history
    with pytest.raises(ConfigError, match=r"cannot be copied .*pass a function that builds it"):
        GeneralNetwork(module, (4,))
