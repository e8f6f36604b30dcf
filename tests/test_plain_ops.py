"""Our own operations on the CPU against those of PyTorch."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mithridate.training.kernels import cpu as plain_ops

Pair = tuple[int, int]


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --- patches ----------------------------------------------------------------------------------------------------------


def assert_patches_are_those_of_unfold(
    images: Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> None:
    spans = [each * (size - 1) + 1 for each, size in zip(dilation, kernel, strict=True)]
    height, width = (
        (size + 2 * pad - span) // step + 1
        for size, pad, span, step in zip(images.shape[2:], padding, spans, stride, strict=True)
    )
    found = plain_ops.patches(images, kernel, stride, padding, dilation, (height, width))
    assert torch.equal(found, F.unfold(images, kernel, dilation, padding, stride))


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (1, 3), (3, 1), (2, 4)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 1), (2, 3)])
def test_patches_are_those_of_unfold(kernel: Pair, stride: Pair) -> None:
    images = draw(0, 3, 2, 9, 10)
    for padding, dilation in itertools.product([(0, 0), (1, 2), (2, 0)], [(1, 1), (2, 1), (2, 2)]):
        assert_patches_are_those_of_unfold(images, kernel, stride, padding, dilation)


@settings(max_examples=100)
@given(
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(4, 9), st.integers(4, 9)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
)
def test_patches_are_those_of_unfold_for_any_geometry(
    sizes: tuple[int, int, int, int], kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> None:
    if any(each * (size - 1) + 1 > extent for each, size, extent in zip(dilation, kernel, sizes[2:], strict=True)):
        return
    assert_patches_are_those_of_unfold(draw(1, *sizes), kernel, stride, padding, dilation)


def test_patches_of_images_that_are_not_contiguous() -> None:
    images = draw(2, 3, 8, 7, 2).permute(0, 3, 1, 2)
    assert_patches_are_those_of_unfold(images, (3, 2), (1, 2), (0, 0), (1, 1))
    assert_patches_are_those_of_unfold(images[:, :1], (3, 1), (2, 2), (0, 0), (2, 1))


# --- activations ------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=20))
def test_tanh_and_its_gradient(values: list[float]) -> None:
    ours = torch.tensor(values, requires_grad=True)
    exact = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    found, expected = plain_ops.Tanh.apply(ours), torch.tanh(exact)
    assert isinstance(found, Tensor)
    assert float((found.double() - expected).detach().abs().max()) <= 2.5e-7
    assert float(found.detach().abs().max()) <= 1.0
    found.sum().backward()
    expected.sum().backward()
    assert ours.grad is not None
    assert exact.grad is not None
    assert float((ours.grad.double() - exact.grad).abs().max()) <= 1e-6


def test_tanh_at_its_ends() -> None:
    ends = torch.tensor([-torch.inf, -200.0, 200.0, torch.inf, torch.nan])
    found = plain_ops.Tanh.apply(ends)
    assert isinstance(found, Tensor)
    assert found[:4].tolist() == [-1, -1, 1, 1]
    assert bool(found[4].isnan())


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("window", [(2, 2), (1, 1), (1, 3), (3, 2), (5, 7)])
@pytest.mark.parametrize("size", [(6, 8), (7, 9), (5, 7)])
def test_activate_and_pool_and_its_gradient(size: Pair, window: Pair, activation: str) -> None:
    # Sizes that no whole number of windows covers: the rest is dropped, and its gradient is 0.
    values = draw(3, 4, 3, *size)
    ours, exact = values.clone().requires_grad_(), values.double().requires_grad_()
    found = plain_ops.ActivateAndPool.apply(ours, window, activation)
    expected = F.avg_pool2d(exact.tanh() if activation == "tanh" else exact.relu(), window)
    assert isinstance(found, Tensor)
    assert found.shape == expected.shape
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    upstream = draw(4, *found.shape)
    found.backward(upstream)
    expected.backward(upstream.double())
    assert ours.grad is not None
    assert exact.grad is not None
    torch.testing.assert_close(ours.grad.double(), exact.grad, rtol=1e-5, atol=1e-6)


def test_pooling_keeps_examples_apart() -> None:
    values = draw(5, 3, 2, 6, 6)
    broken = values.clone()
    broken[1] = torch.nan
    ours = broken.requires_grad_()
    found = plain_ops.ActivateAndPool.apply(ours, (2, 2), "tanh")
    assert isinstance(found, Tensor)
    found.backward(torch.ones_like(found))
    assert ours.grad is not None
    expected = F.avg_pool2d(values.tanh(), 2)
    torch.testing.assert_close(found[[0, 2]].detach(), expected[[0, 2]], rtol=1e-5, atol=1e-6)
    assert ours.grad[[0, 2]].isfinite().all()


def test_keeping_freed_memory_is_harmless() -> None:
    plain_ops.keep_freed_memory()
    assert float(torch.ones(2**20).sum()) == 2**20
