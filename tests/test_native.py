"""The compiled stem: against torch in double precision, example by example; how it is compiled, kept and refused."""

import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from reference import random_batch, random_weights, reference_clipped_sums
from torch import Tensor, nn

from mithridate.training.kernels import Chain, Dense, Stage
from mithridate.training.kernels import cpu as native
from mithridate.training.kernels.cpu import Library
from mithridate.training.models import build
from mithridate.training.network import FastNetwork

Pairs = list[tuple[Tensor, Tensor]]

LENET = (Stage(1, 28, 28, 6, (5, 5), (0, 0), "tanh", (2, 2)), Stage(6, 12, 12, 16, (5, 5), (0, 0), "tanh", (2, 2)))
# The convolutions of Opacus' CIFAR-10 tutorial, with fewer channels on smaller images.
TUTORIAL = (
    Stage(3, 16, 16, 8, (3, 3), (1, 1), "relu", (2, 2)),
    Stage(8, 8, 8, 20, (3, 3), (1, 1), "relu", (2, 2)),
    Stage(20, 4, 4, 33, (3, 3), (1, 1), "relu", (2, 2)),
)
CHAINS: dict[str, tuple[Stage, ...]] = {
    "lenet": LENET,
    "tutorial": TUTORIAL,
    "windows that leave a rest": (
        Stage(2, 13, 17, 7, (4, 2), (1, 0), "tanh", (3, 2)),
        Stage(7, 4, 8, 9, (2, 3), (0, 2), "relu", (2, 3)),
    ),
    "kernels of one pixel": (
        Stage(3, 6, 7, 5, (1, 1), (0, 0), "relu", (1, 1)),
        Stage(5, 6, 7, 40, (1, 1), (0, 0), "tanh", (2, 3)),
        Stage(40, 3, 2, 3, (1, 1), (1, 0), "tanh", (1, 2)),
    ),
    "grey images": (
        Stage(1, 10, 31, 9, (3, 3), (1, 1), "tanh", (1, 1)),
        Stage(9, 10, 31, 2, (7, 7), (3, 3), "relu", (5, 5)),
    ),
    "padding beyond the kernel": (
        Stage(1, 3, 5, 3, (1, 3), (1, 4), "tanh", (1, 1)),
        Stage(3, 5, 11, 4, (2, 2), (3, 2), "tanh", (2, 2)),
    ),
    "one output": (
        Stage(1, 5, 5, 1, (5, 5), (0, 0), "tanh", (1, 1)),
        Stage(1, 1, 1, 1, (3, 3), (1, 1), "tanh", (1, 1)),
    ),
    "wide runs": (
        Stage(17, 6, 14, 24, (3, 3), (1, 1), "relu", (2, 2)),
        Stage(24, 3, 7, 18, (2, 5), (1, 2), "tanh", (1, 1)),
    ),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("there is no C compiler")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MITHRIDATE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("MITHRIDATE_NATIVE", raising=False)
        patch.delenv("CC", raising=False)
        native.library.cache_clear()
        found = native.library()
        native.library.cache_clear()
    assert found is not None, "there is a C compiler, and yet no compiled code: `native` logs why"
    return found


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Library) -> Iterator[Path]:
    """A cache folder that does not exist yet, on a machine that can compile."""
    monkeypatch.setenv("MITHRIDATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MITHRIDATE_NATIVE", raising=False)
    monkeypatch.delenv("CC", raising=False)
    native.library.cache_clear()
    yield tmp_path / "cache"
    native.library.cache_clear()


def problem(stages: tuple[Stage, ...], batch: int, seed: int = 0) -> tuple[Tensor, Pairs, Tensor]:
    """Images, parameters, and gradients of the results."""
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random)

    first, last = stages[0], stages[-1]
    weights = [draw(stage.outputs, stage.channels, *stage.kernel) for stage in stages]
    parameters = [(weight / weight[0].numel() ** 0.5, draw(len(weight)) / 2) for weight in weights]
    images = draw(batch, first.channels, first.height, first.width)
    return images, parameters, draw(batch, last.outputs, *last.out_size)


def by_torch(images: Tensor, parameters: list[Tensor], stages: tuple[Stage, ...]) -> Tensor:
    for stage, weight, bias in zip(stages, parameters[::2], parameters[1::2], strict=True):
        values = F.conv2d(images, weight, bias, padding=stage.padding)
        images = F.avg_pool2d(torch.tanh(values) if stage.activation == "tanh" else torch.relu(values), stage.window)
    return images


def reference(
    images: Tensor, parameters: Pairs, stages: tuple[Stage, ...], errors: Tensor
) -> tuple[Tensor, list[list[Tensor]]]:
    """Results, and gradients [example][parameter], in double precision."""
    leaves = [tensor.double().requires_grad_() for pair in parameters for tensor in pair]
    results, gradients = [], []
    for image, error in zip(images.double(), errors.double(), strict=True):
        result = by_torch(image.unsqueeze(0), leaves, stages)
        results.append(result.detach())
        gradients.append(list(torch.autograd.grad(result, leaves, error.unsqueeze(0))))
    return torch.cat(results), gradients


def flat(gradients: list[tuple[Tensor, Tensor, Tensor]], example: int) -> list[Tensor]:
    return [part[example] for weight, bias, _ in gradients for part in (weight, bias)]


def assert_close(given: Tensor, expected: Tensor) -> None:
    """Equal up to single precision: inputs, slopes and gradients are of order 1, and some results are their sums."""
    assert given.dtype == torch.float32
    assert (given.flatten() - expected.flatten()).abs().max() <= 4e-6 * expected.abs().max().clamp_min(1.0)


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("name", CHAINS)
def test_results_and_gradients_are_those_of_torch(library: Library, name: str, batch: int) -> None:
    stages = CHAINS[name]
    images, parameters, errors = problem(stages, batch)
    expected, wanted = reference(images, parameters, stages, errors)
    results, saved = library.forward(images, parameters, stages)
    assert results.shape == expected.shape
    assert_close(results, expected)
    gradients = library.example_gradients(images, parameters, stages, saved, errors)
    for stage, (weight, bias, squares) in zip(stages, gradients, strict=True):
        assert weight.shape == (batch, stage.outputs * stage.channels * stage.kernel[0] * stage.kernel[1])
        assert (bias.shape, squares.shape, squares.dtype) == ((batch, stage.outputs), (batch,), torch.float64)
    for example in range(batch):
        for given, right in zip(flat(gradients, example), wanted[example], strict=True):
            assert_close(given, right)


@pytest.mark.parametrize("kernel", range(1, 8))
@pytest.mark.parametrize("channels", [1, 2, 3, 16])
def test_every_kernel_width_at_every_image_width(library: Library, channels: int, kernel: int) -> None:
    for width in (*range(kernel, kernel + 14), 30):
        for outputs in (4, 16, 17):
            first = Stage(channels, 4, width, outputs, (3, kernel), (1, 0), "tanh", (1, 1))
            second = Stage(outputs, *first.out_size, 3, (3, kernel), (1, kernel // 2), "tanh", (2, 1))
            stages = (first, second)
            images, parameters, errors = problem(stages, 1, seed=width)
            expected, wanted = reference(images, parameters, stages, errors)
            results, saved = library.forward(images, parameters, stages)
            assert_close(results, expected)
            gradients = library.example_gradients(images, parameters, stages, saved, errors)
            for given, right in zip(flat(gradients, 0), wanted[0], strict=True):
                assert_close(given, right)


@pytest.mark.parametrize("name", CHAINS)
def test_squared_norms_are_those_of_what_is_returned(library: Library, name: str) -> None:
    # Clipping relies on this: how the gradients were computed then does not matter.
    stages = CHAINS[name]
    images, parameters, errors = problem(stages, 5, seed=1)
    _, saved = library.forward(images, parameters, stages)
    for weight, bias, squares in library.example_gradients(images, parameters, stages, saved, errors):
        exact = weight.double().square().sum(dim=1) + bias.double().square().sum(dim=1)
        torch.testing.assert_close(squares, exact, rtol=1e-12, atol=0.0)


def test_a_batch_may_be_empty(library: Library) -> None:
    images, parameters, errors = problem(LENET, 0)
    results, saved = library.forward(images, parameters, LENET)
    assert results.shape == (0, 16, 4, 4)
    assert library.forward(images, parameters, LENET, keep=False)[0].shape == (0, 16, 4, 4)
    gradients = library.example_gradients(images, parameters, LENET, saved, errors)
    assert [tuple(part.shape) for stage in gradients for part in stage] == [
        (0, 150), (0, 6), (0,), (0, 2400), (0, 16), (0,),
    ]  # fmt: skip


def test_forward_alone_gives_the_same_results(library: Library) -> None:
    images, parameters, _ = problem(TUTORIAL, 4)
    kept = library.forward(images, parameters, TUTORIAL)[0]
    results, saved = library.forward(images, parameters, TUTORIAL, keep=False)
    assert torch.equal(results, kept)
    assert not saved


def test_an_example_does_not_depend_on_its_batch(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    images, parameters, errors = problem(LENET, 6)
    results, saved = library.forward(images, parameters, LENET)
    together = library.example_gradients(images, parameters, LENET, saved, errors)
    assert len(saved) == 1
    monkeypatch.setattr(native, "_SAVED_BYTES", 1)  # every example in a part of its own
    apart, parts = library.forward(images, parameters, LENET)
    assert len(parts) == 6
    assert torch.equal(apart, results)
    for one, other in zip(together, library.example_gradients(images, parameters, LENET, parts, errors), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["lenet", "tutorial"])
def test_what_is_not_finite_stays_with_its_example(library: Library, name: str, value: float) -> None:
    stages = CHAINS[name]
    images, parameters, errors = problem(stages, 4)
    clean = library.forward(images, parameters, stages)
    wanted = library.example_gradients(images, parameters, stages, clean[1], errors)
    images[1, 0, 5:9, 5:9] = value
    results, saved = library.forward(images, parameters, stages)
    gradients = library.example_gradients(images, parameters, stages, saved, errors)
    others = torch.tensor([0, 2, 3])
    assert torch.equal(results[others], clean[0][others])
    for one, other in zip(gradients, wanted, strict=True):
        assert all(torch.equal(a[others], b[others]) for a, b in zip(one, other, strict=True))
    assert not torch.isfinite(gradients[0][2][1])


def test_a_gradient_that_is_not_finite_shows_in_every_norm(library: Library) -> None:
    images, parameters, errors = problem(LENET, 3)
    _, saved = library.forward(images, parameters, LENET)
    errors[2, 3, 1, 1] = float("nan")
    for _, _, squares in library.example_gradients(images, parameters, LENET, saved, errors):
        assert torch.isfinite(squares).tolist() == [True, True, False]


def tanh(library: Library, values: Tensor) -> Tensor:
    """By a stage that does nothing else: a kernel of one pixel with weight 1, and windows of one pixel."""
    stage = Stage(1, 1, len(values), 1, (1, 1), (0, 0), "tanh", (1, 1))
    parameters = [(torch.ones(1, 1, 1, 1), torch.zeros(1))]
    return library.forward(values.view(1, 1, 1, -1), parameters, [stage])[0].flatten()


def test_tanh(library: Library) -> None:
    values = torch.cat([torch.linspace(-12.0, 12.0, 400_001), torch.logspace(-30, 1, 100_000)])
    exact = values.double().tanh()
    given = tanh(library, values)
    assert (given - exact).abs().max() <= 3e-7
    assert given.abs().max() == 1.0
    assert ((given - exact) / exact.where(exact != 0, 1.0)).abs().max() <= 6e-7


def test_tanh_far_from_zero(library: Library) -> None:
    infinity, nan = float("inf"), float("nan")
    given = tanh(library, torch.tensor([0.0, -0.0, 10.0, -10.0, 60.0, -60.0, 3e38, -3e38, infinity, -infinity, nan]))
    assert given[:-1].tolist() == [0.0, 0.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0]
    assert torch.isnan(given[-1])


def test_tensors_that_are_not_contiguous(library: Library) -> None:
    images, parameters, errors = problem(LENET, 3)
    results, saved = library.forward(images, parameters, LENET)
    strided = images.repeat_interleave(2, dim=3)[..., ::2]
    turned = [(weight.transpose(2, 3).contiguous().transpose(2, 3), bias) for weight, bias in parameters]
    again, kept = library.forward(strided, turned, LENET)
    assert torch.equal(again, results)
    spread = errors.transpose(2, 3).contiguous().transpose(2, 3)
    one = library.example_gradients(strided, turned, LENET, kept, spread)
    other = library.example_gradients(images, parameters, LENET, saved, errors)
    assert all(torch.equal(a, b) for p, q in zip(one, other, strict=True) for a, b in zip(p, q, strict=True))


def test_threads_do_not_disturb_each_other(library: Library) -> None:
    images, parameters, errors = problem(LENET, 20)

    def gradients(seed: int) -> Tensor:
        own = [(weight + seed, bias) for weight, bias in parameters]
        _, saved = library.forward(images, own, LENET)
        return library.example_gradients(images, own, LENET, saved, errors)[0][0]

    expected = [gradients(seed) for seed in range(2)]
    differing: list[int] = []

    def repeat(seed: int) -> None:
        if not all(torch.equal(gradients(seed), expected[seed]) for _ in range(30)):
            differing.append(seed)

    threads = [threading.Thread(target=repeat, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not differing


@pytest.mark.parametrize(
    "spoil",
    [
        lambda images, pairs: (images.double(), pairs),
        lambda images, pairs: (images[:, :, 1:], pairs),
        lambda images, pairs: (images, pairs[:1]),
        lambda images, pairs: (images, [pairs[0], (pairs[1][0][:, 1:], pairs[1][1])]),
        lambda images, pairs: (images, [(pairs[0][0], pairs[0][1][:5]), pairs[1]]),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    library: Library, spoil: Callable[[Tensor, Pairs], tuple[Tensor, Pairs]]
) -> None:
    images, parameters, _ = problem(LENET, 2)
    with pytest.raises(ValueError, match=r"Expected a tensor|zip\(\)"):
        library.forward(*spoil(images, parameters), LENET)


@pytest.mark.parametrize("stages", [(), LENET[:1] * 2, (Stage(1, 4, 4, 1, (5, 5), (0, 0), "tanh", (1, 1)),), LENET * 9])
def test_stages_that_do_not_fit_are_refused(library: Library, stages: tuple[Stage, ...]) -> None:
    images, parameters, _ = problem(LENET, 1)
    with pytest.raises(ValueError, match=r"stages, got|has no result|does not take"):
        library.forward(images, parameters, stages)


def test_gradients_need_what_their_own_pass_saved(library: Library) -> None:
    images, parameters, errors = problem(LENET, 3)
    _, saved = library.forward(images[:2], parameters, LENET)
    with pytest.raises(ValueError, match="Expected a tensor"):
        library.example_gradients(images, parameters, LENET, saved, errors)


@pytest.mark.parametrize("together", [0, 1, 16])
@pytest.mark.parametrize(
    ("batch", "outputs", "features"), [(1, 1, 1), (40, 10, 150), (33, 25, 31), (70, 1, 700), (0, 3, 4)]
)
def test_sums_of_products(library: Library, batch: int, outputs: int, features: int, together: int) -> None:
    random = torch.Generator().manual_seed(batch)
    left, right = torch.randn(2, batch, outputs, generator=random), torch.randn(2, batch, features, generator=random)
    extents = torch.tensor([batch, batch // 2], dtype=torch.int32)
    inside = torch.arange(batch) < extents[:, None]
    exact = torch.bmm((left * inside.unsqueeze(2)).double().transpose(1, 2), right.double()).flatten(1)
    right[~inside] = float("nan")  # padding is not read
    out = torch.full((2, outputs * features + 2), 7.0, dtype=torch.float64)
    for order in (left, left.permute(2, 0, 1).contiguous().permute(1, 2, 0)):
        library.sum_products(order, right, extents, together, out[:, 1:-1])
        assert float((out[:, 1:-1] - exact).abs().max()) <= (1e-5 if together else 1e-13)
        assert bool((out[:, [0, -1]] == 7.0).all())


def test_sums_that_do_not_fit_are_refused(library: Library) -> None:
    left, right, extents = torch.zeros(1, 4, 2), torch.zeros(1, 4, 3), torch.tensor([4], dtype=torch.int32)
    for out, together in ((torch.zeros(1, 6), 0), (torch.zeros(1, 5).double(), 0), (torch.zeros(1, 6).double(), 17)):
        with pytest.raises(ValueError, match="do not fit"):
            library.sum_products(left, right, extents, together, out)


# --- whole networks ---------------------------------------------------------------------------------------------------


WHOLE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lenet": (lambda: build("lenet5", (1, 16, 16), 4), (1, 16, 16)),
    "three stages": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
            *(nn.Conv2d(8, 9, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2)),
            *(nn.Conv2d(9, 7, 2), nn.ReLU(), nn.AvgPool2d(1), nn.Flatten(), nn.Linear(28, 17), nn.ReLU()),
            *(nn.Linear(17, 11), nn.Tanh(), nn.Linear(11, 21)),
        ),
        (3, 12, 12),
    ),
    "hardly anything": (
        lambda: nn.Sequential(nn.Conv2d(1, 1, 2), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(1, 2)),
        (1, 3, 3),
    ),
    "one linear layer": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.AvgPool2d((2, 3)), nn.Flatten(), nn.Linear(15, 5)),
        (1, 12, 5),
    ),
}


def whole(name: str) -> tuple[nn.Module, FastNetwork, tuple[int, ...]]:
    """A network that compiled code takes as a whole."""
    make, shape = WHOLE[name]
    module = make()
    network = FastNetwork(module, shape)
    assert network._compiled(torch.device("cpu"), 37) is not None
    return module, network, shape


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("name", WHOLE)
def test_clipped_sums_of_whole_networks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, network, shape = whole(name)
    weights = random_weights(module, 2, 3)
    inputs, labels, present = random_batch(module, shape, 2, 37, 5)
    labels = labels % next(reversed(list(module.parameters()))).numel()
    _, norms = reference_clipped_sums(module, weights, inputs, labels, present, 1e9)
    bound = float(norms[present].median())  # half of the examples are clipped
    expected, _ = reference_clipped_sums(module, weights, inputs, labels, present, bound)
    inputs[~present] = float("nan")
    sums = network.clipped_sums(weights, inputs, labels, present, bound)
    assert float((sums - expected).norm() / expected.norm()) < 3e-6
    monkeypatch.setattr(network, "_compiled", lambda *_: None)  # layer by layer: what every other way must agree with
    apart = network.clipped_sums(weights, inputs, labels, present, bound)
    assert float((sums - apart).norm() / expected.norm()) < 3e-6


@pytest.mark.usefixtures("library")
def test_clipped_sums_of_whole_networks_in_double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    module, network, shape = whole("hardly anything")
    weights = random_weights(module, 2, 3)
    inputs, labels, present = random_batch(module, shape, 2, 700, 5)
    present[1, 300:] = False
    labels = labels % 2
    expected, _ = reference_clipped_sums(module, weights, inputs, labels, present, 0.3)
    sums = network.clipped_sums(weights, inputs, labels, present, 0.3)
    assert sums.dtype == torch.float64
    assert float((sums - expected).norm() / expected.norm()) < 1e-6
    monkeypatch.setattr(network, "_compiled", lambda *_: None)
    apart = network.clipped_sums(weights, inputs, labels, present, 0.3)
    assert float((sums - apart).norm() / expected.norm()) < 1e-6


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("batch", [1, 15, 16, 17, 128, 200])
def test_no_example_of_a_whole_network_moves_a_sum_by_more_than_the_bound(batch: int) -> None:
    module, network, shape = whole("lenet")
    weights = random_weights(module, 1, 7) * 2.0
    inputs, labels, _ = random_batch(module, shape, 1, batch, 8)
    inputs *= torch.logspace(-3, 3, batch).view(1, -1, 1, 1, 1)
    present = torch.ones(1, batch, dtype=torch.bool)
    for bound in (1e-6, 1e-2, 30.0):
        whole_sum = network.clipped_sums(weights, inputs, labels, present, bound).double()
        for example in range(0, batch, max(1, batch // 4)):
            without = present.clone()
            without[0, example] = False
            moved = whole_sum - network.clipped_sums(weights, inputs, labels, without, bound).double()
            assert float(moved.norm()) <= bound
            alone = network.clipped_sums(weights, inputs, labels, ~without, bound).double()
            assert float(alone.norm()) <= bound
            assert float((moved - alone).norm()) <= bound * (1e-4 if batch > 1 else 0.0)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_a_broken_example_of_a_whole_network_adds_nothing(value: float) -> None:
    module, network, shape = whole("three stages")
    weights, (inputs, labels, _) = random_weights(module, 1, 1), random_batch(module, shape, 1, 20, 2)
    present = torch.ones(1, 20, dtype=torch.bool)
    without = present.clone()
    without[0, 13] = False
    expected = network.clipped_sums(weights, inputs, labels, without, 1.0)
    inputs[0, 13, 1, 4] = value
    sums = network.clipped_sums(weights, inputs, labels, present, 1.0)
    assert torch.equal(sums, expected)  # the others are formed and added up as before, wherever they are


@pytest.mark.usefixtures("library")
def test_weights_that_are_too_large_leave_all_examples_out() -> None:
    module, network, shape = whole("one linear layer")
    weights, (inputs, labels, present) = random_weights(module, 2, 1), random_batch(module, shape, 2, 5, 2)
    labels, expected = labels % 5, network.clipped_sums(weights, inputs, labels % 5, present, 1.0)[1]
    weights[0, 0] = 2.0**70  # its activations are longer than 2^60: relu
    sums = network.clipped_sums(weights, inputs, labels, present, 1.0)
    positive = F.relu(F.conv2d(inputs[0], weights[0, :27].view(3, 1, 3, 3)))[:, 0].amax(dim=(1, 2)) > 2.0**61
    assert bool(positive[present[0]].any())
    kept = present.clone()
    kept[0, positive] = False
    assert torch.equal(sums[0], network.clipped_sums(weights, inputs, labels, kept, 1.0)[0])
    assert torch.equal(sums[1], expected)


@pytest.mark.usefixtures("library")
def test_losses_of_whole_networks_are_weighed() -> None:
    module, network, shape = whole("lenet")
    weights, (inputs, labels, present) = random_weights(module, 1, 1), random_batch(module, shape, 1, 9, 2)
    network.loss_weights = torch.tensor([1.0, 0.25, 3.0, 1e-3])
    sums = network.clipped_sums(weights, inputs, labels, present, 1e9)
    expected = torch.zeros(1, weights.shape[1], dtype=torch.float64)
    for label, weight in enumerate(network.loss_weights.tolist()):
        expected += (
            weight * reference_clipped_sums(module, weights, inputs, labels, present & (labels == label), 1e9)[0]
        )
    assert float((sums - expected).norm() / expected.norm()) < 3e-6


def chain_after(*layers: nn.Module) -> Chain | None:
    first = [nn.Conv2d(1, 2, 3), nn.Tanh(), nn.AvgPool2d(2)]
    return FastNetwork(nn.Sequential(*first, *layers), (1, 6, 6))._fusion.chain


def test_which_networks_are_taken_as_a_whole() -> None:
    flat = nn.Flatten()
    found = chain_after(flat, nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3))
    assert found is not None
    assert found.layers == (Dense(8, 5, "tanh"), Dense(5, 3, None))
    assert found.names == tuple(f"{at}.{kind}" for at in (0, 4, 6) for kind in ("weight", "bias"))
    assert chain_after(flat, nn.Linear(8, 5, bias=False)) is None
    assert chain_after(flat, nn.Linear(8, 5), nn.GELU(), nn.Linear(5, 3)) is None
    assert chain_after(flat, nn.Linear(8, 5), nn.Linear(5, 3)) is None
    assert chain_after(flat, nn.Linear(8, 5), nn.ReLU()) is None
    assert chain_after(nn.Linear(2, 5), nn.Flatten()) is None
    assert chain_after(nn.GroupNorm(1, 2), flat, nn.Linear(8, 5)) is None
    assert chain_after(nn.Conv2d(2, 4, 2), flat) is None


@pytest.mark.usefixtures("library")
def test_huge_batches_and_networks_and_other_devices_go_layer_by_layer() -> None:
    huge = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(1024, 512))
    assert FastNetwork(huge, (1, 64, 64))._compiled(torch.device("cpu"), 16) is None
    _, network, _ = whole("lenet")
    assert network._compiled(torch.device("cpu"), 1900) is not None
    assert network._compiled(torch.device("cpu"), 1901) is None
    assert network._compiled(torch.device("cuda"), 16) is None


SMALL = Chain(("",) * 4, (Stage(1, 3, 3, 2, (2, 2), (0, 0), "tanh", (1, 1)),), (Dense(8, 3, None),))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"labels": torch.tensor([[0, 3]])}, "labels from 0 to 2"),
        ({"labels": torch.tensor([[0, -1]])}, "labels from 0 to 2"),
        ({"labels": torch.zeros(1, 3, dtype=torch.int64)}, "do not fit"),
        ({"labels": torch.zeros(1, 2)}, "do not fit"),
        ({"inputs": torch.zeros(1, 2, 1, 3, 4)}, "Expected a tensor"),
        ({"weights": torch.zeros(1, 36)}, "are not those of"),
        ({"places": [0, 8, 10]}, "zip"),
        ({"places": [0, 8, 10, -1]}, "are not those of"),
        ({"places": [0, 8, 10, 10]}, "are not those of"),
        ({"together": 17}, "Expected 16 or 0"),
        ({"loss_weights": torch.ones(2)}, "Expected a tensor"),
        ({"chain": replace(SMALL, layers=())}, "linear layers"),
        ({"chain": replace(SMALL, layers=(Dense(9, 3, None),))}, "does not take"),
        ({"chain": replace(SMALL, layers=(Dense(8, 3, "tanh"),))}, "Expected tanh"),
        ({"chain": replace(SMALL, layers=(Dense(8, 4, "gelu"), Dense(4, 3, None)))}, "Expected tanh"),
    ],
)
def test_networks_that_do_not_fit_are_refused(library: Library, changes: dict[str, Any], match: str) -> None:
    given: dict[str, Any] = {
        "chain": SMALL, "places": [0, 8, 10, 34], "weights": torch.zeros(1, 37), "inputs": torch.zeros(1, 2, 1, 3, 3),
        "labels": torch.zeros(1, 2, dtype=torch.int64), "present": torch.ones(1, 2, dtype=torch.bool),
        "loss_weights": None, "limits": (1.0, 0.0, 1.0), "together": 0,
    }  # fmt: skip
    assert library.clipped_sums(**given).shape == (1, 37)
    with pytest.raises(ValueError, match=match):
        library.clipped_sums(**{**given, **changes})


# --- compiling ------------------------------------------------------------------------------------------------------


def compiled_files(folder: Path) -> list[Path]:
    return sorted((folder / "native").glob("*.so"))


def test_it_is_compiled_once(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert native.library() is not None
    assert native.library() is native.library()
    (path,) = compiled_files(fresh)
    assert list((fresh / "native").iterdir()) == [path]  # nothing is left over
    assert stat.S_IMODE((fresh / "native").stat().st_mode) == 0o700
    native.library.cache_clear()
    monkeypatch.setattr(native, "_compile", lambda *_: pytest.fail("compiled a second time"))
    assert native.library() is not None


def test_whoever_creates_files_for_a_group_still_has_a_cache(fresh: Path) -> None:
    before = os.umask(0o002)
    try:
        for _ in range(2):
            native.library.cache_clear()
            assert native.library() is not None
    finally:
        os.umask(before)
    assert len(compiled_files(fresh)) == 1


def test_without_a_cache_it_is_compiled_all_the_same(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MITHRIDATE_CACHE", "off")
    assert native.library() is not None
    assert not fresh.exists()


def test_it_can_be_switched_off(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MITHRIDATE_NATIVE", "off")
    assert native.library() is None
    assert not fresh.exists()


@pytest.mark.parametrize("compiler", ["false", "there-is-no-such-compiler", "'unbalanced"])
def test_a_broken_compiler_means_none(fresh: Path, monkeypatch: pytest.MonkeyPatch, compiler: str) -> None:
    monkeypatch.setenv("CC", compiler)
    assert native.library() is None
    assert not compiled_files(fresh)


def test_no_compiler_means_none(fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert native.library() is None


def test_a_compiler_without_flags_for_this_processor(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[list[str]] = []
    compile_it = native._compile

    def refuse_first(command: list[str], source: bytes, folder: Path) -> Path:
        tried.append(command)
        if len(tried) == 1:
            raise subprocess.CalledProcessError(1, command)
        return compile_it([*command, "-march=native"], source, folder)

    monkeypatch.setattr(native, "_compile", refuse_first)
    assert native.library() is not None
    assert ["-march=native" in command for command in tried] == [True, False]


@pytest.mark.parametrize(
    ("code", "wrong", "sums"),
    [
        (b"0.5f", b"0.51f", True),
        (b"scale / total", b"scale * total", True),
        (b"extents[model], out +", b"extents[model] - 1, out +", False),
        (b"(quarter + 1) & 2", b"quarter & 2", False),
    ],
)
def test_code_that_gives_wrong_numbers_is_not_used(
    code: bytes, wrong: bytes, sums: bool, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_it = native._compile

    def miscompile(command: list[str], source: bytes, folder: Path) -> Path:
        assert source.count(code) == 1
        quickly = ["-O0" if word == "-O3" else word for word in command]
        return compile_it(quickly, source.replace(code, wrong), folder)

    monkeypatch.setattr(native, "_compile", miscompile)
    assert native.library(stages=True) is None
    assert (native.library() is not None) == sums


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_folder_that_others_can_write_to_is_refused(fresh: Path, mode: int) -> None:
    (fresh / "native").mkdir(parents=True)
    (fresh / "native").chmod(mode)
    assert native.library() is None
    assert not compiled_files(fresh)


def test_a_folder_of_somebody_else_is_refused(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert native.library() is not None
    native.library.cache_clear()
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    assert native.library() is None


def test_a_link_in_place_of_the_folder_is_refused(fresh: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    fresh.mkdir()
    (fresh / "native").symlink_to(tmp_path / "elsewhere")
    assert native.library() is None


def test_a_file_that_others_can_write_to_is_refused(fresh: Path) -> None:
    assert native.library() is not None
    native.library.cache_clear()
    compiled_files(fresh)[0].chmod(0o722)
    assert native.library() is None


def test_a_damaged_file_is_compiled_anew(fresh: Path) -> None:
    assert native.library() is not None
    native.library.cache_clear()
    (path,) = compiled_files(fresh)
    good = path.read_bytes()
    path.unlink()  # it is in use: what is loaded must keep its content
    path.write_bytes(good[: len(good) // 2])
    path.chmod(0o700)
    assert native.library() is not None
    assert path.read_bytes() == good


def test_a_folder_that_cannot_be_written_means_none(fresh: Path) -> None:
    fresh.write_text("not a folder")
    assert native.library() is None


def test_two_processes_may_compile_at_the_same_time(fresh: Path) -> None:
    code = "from mithridate.training.kernels import cpu; print(cpu.library() is not None)"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=600)[0].strip() for process in processes] == ["True", "True"]
    assert len(compiled_files(fresh)) == 1
    assert native.library() is not None


def test_the_name_depends_on_all_that_the_code_depends_on(monkeypatch: pytest.MonkeyPatch, library: Library) -> None:
    compiler = native._compiler()
    keys = {
        native._key(compiler, ["-O3"], b"source"),
        native._key(compiler, ["-O2"], b"source"),
        native._key(compiler, ["-O3"], b"another"),
    }
    monkeypatch.setattr(native, "processor", lambda: "another")
    keys.add(native._key(compiler, ["-O3"], b"source"))
    assert len(keys) == 4
