"""Checks of the kernels and of training on a GPU: plain functions, without pytest, for machines that lack it.

Run `PYTHONPATH=src:tests python tests/gpu_checks.py` on a machine with an NVIDIA GPU, or add `--interpret` to run those
that Triton's interpreter can do on a CPU (`tests/test_kernels.py` does that). Every check prints PASS or FAIL and its
name; names on the command line select checks. Each compares with a slow and obvious twin in float64.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from importlib import import_module
from itertools import pairwise
from typing import Any
from unittest import mock

if "--interpret" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import torch.nn.functional as F
from reference import (
    CLASSES,
    expected_normals,
    philox,
    random_batch,
    random_inputs,
    random_units,
    random_weights,
    reference_clipped_sums,
    reference_logits,
    reference_sums_of_units,
    shares_of,
    takes_integers,
    zoo,
)
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from mithridate import TrainConfig
from mithridate._torch import products
from mithridate.data import Dataset
from mithridate.errors import ConfigError
from mithridate.training import batch_source
from mithridate.training import engine as engines
from mithridate.training.clipping import Clipping
from mithridate.training.devices import Optimiser
from mithridate.training.engine import Engine
from mithridate.training.layers import Conv
from mithridate.training.models import BasicBlock, build
from mithridate.training.network import FastNetwork, NotConvertible, kernels_for
from mithridate.training.randomness import Seeds

Check = Callable[[torch.device], None]

# What a matrix product in this precision may be off by, relative to the largest entry, after a few layers.
TOLERANCE = {"float32": 5e-5, "tf32": 2e-2, "bfloat16": 6e-2}
# Modules that the interpreter runs in reasonable time: every kernel, and every way through it.
INTERPRETED = (
    "linear", "linear-on-sequence", "conv1d-stride-padding-behind", "conv2d", "conv2d-without-bias",
    "conv2d-uneven-stride-behind", "conv2d-dilation-behind", "conv2d-same-behind", "conv2d-groups",
    "avg-pool-2d", "group-norm", "embedding-mean", "residual-plus", "functional-pools",
    "model-lenet5", "model-opa-tut", "model-wide", "model-wide-norm-first",
    "model-wide-sequence", "model-wide-residual",
)  # fmt: skip
# Those that show what is new with units, and do not take minutes.
INTERPRETED_UNITS = (
    "linear", "linear-on-sequence", "conv1d-stride-padding-behind", "conv2d", "conv2d-groups", "group-norm",
    "embedding-mean", "functional-pools", "model-wide-sequence",
)  # fmt: skip
# Those that take other ways in TF32 than in single precision.
INTERPRETED_TF32 = ("model-wide", "model-wide-residual")
# Those whose stem is computed in 16 bits.
HALVED = ("model-opa-tut",)


def assert_near(actual: Tensor, expected: Tensor, tolerance: float = TOLERANCE["float32"]) -> None:
    """Equal up to rounding in float32 and the margin by which clipping falls short of the bound."""
    assert actual.dtype == torch.float32
    scale = max(1e-30, float(expected.abs().max()))
    torch.testing.assert_close(actual.double().cpu(), expected.cpu(), rtol=2 * tolerance, atol=tolerance * scale)


def modules() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """The zoo, and residual blocks that are wide enough for the vendor's library."""
    blocks = nn.Sequential(
        nn.Conv2d(2, 64, 3, padding=1, bias=False), nn.GroupNorm(32, 64), nn.ReLU(),
        BasicBlock(64, 64, 1), BasicBlock(64, 256, 2), nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(),
        nn.Linear(256, CLASSES),
    )  # fmt: skip
    return {**zoo(), "model-wide-residual": (blocks, (2, 3, 4))}


def fast_network(module: nn.Module, shape: tuple[int, ...]) -> FastNetwork:
    """The fast path of a module of the zoo."""
    return FastNetwork(module, shape, torch.int64 if takes_integers(module) else torch.float32)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def require(statement: bool, message: str) -> None:
    if not statement:
        raise AssertionError(message)


def arithmetic(precision: str) -> AbstractContextManager[None]:
    """The products of the vendor's libraries in the given precision, and in no other."""
    return products(precision, torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def kernels_on(device: torch.device) -> Any:
    kernels = kernels_for(device)
    require(kernels is not None, "no kernels here")
    return kernels


# --- kernels one by one -----------------------------------------------------------------------------------------------

GEOMETRIES: dict[str, dict[str, Any]] = {
    "plain": {"kernel": (3, 3)},
    "strided": {"kernel": (3, 2), "stride": (2, 3)},
    "padded": {"kernel": (3, 3), "padding": (1, 2)},
    "dilated": {"kernel": (2, 3), "dilation": (2, 2), "padding": (2, 1)},
    "pointwise": {"kernel": (1, 1)},
    # Kernels that were right in the interpreter have been wrong on a GPU for padded images of such widths.
    "sixteen wide": {"kernel": (3, 3), "padding": (1, 1), "height": 16, "width": 16},
    "sixteen wide, strided": {"kernel": (3, 3), "padding": (1, 1), "height": 16, "width": 16, "stride": (2, 2)},
    "padded beyond the kernel": {"kernel": (2, 2), "padding": (2, 1), "height": 5, "width": 5},
    "many channels": {"kernel": (3, 3), "channels": 20, "outputs": 70, "height": 5, "width": 5},
}
MODELS, BATCH = 2, 3


@dataclass(frozen=True)
class Case:
    """A convolution of two models with three examples each, of which the second model has two."""

    geometry: Any
    images: Tensor
    weights: Tensor
    biases: Tensor
    extents: Tensor

    @staticmethod
    def of(kernels: Any, device: torch.device, **changes: Any) -> Case:
        shape = {
            "channels": 2, "height": 7, "width": 8, "outputs": 5,
            "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), **changes,
        }  # fmt: skip
        geometry = kernels.Geometry(**shape)
        images = draw(1, MODELS * BATCH, geometry.channels, geometry.height, geometry.width)
        weights = draw(2, MODELS, geometry.outputs, geometry.channels, *geometry.kernel)
        # Rows of a wider matrix, as in the flat weights of a model.
        wide = torch.cat([weights.flatten(1), draw(3, MODELS, geometry.outputs + 3)], dim=1).to(device)
        return Case(
            geometry,
            images.to(device),
            wide[:, : weights[0].numel()].view(weights.shape),
            wide[:, weights[0].numel() : weights[0].numel() + geometry.outputs],
            torch.tensor([3, 2], dtype=torch.int32, device=device),
        )

    def exact(self, images: Tensor) -> Tensor:
        """The convolution in float64, model by model; zero beyond the extents."""
        results = []
        for model, part in enumerate(images.chunk(MODELS)):
            weight, bias = (value[model].double().cpu() for value in (self.weights, self.biases))
            geometry = self.geometry
            result = F.conv2d(part, weight, bias, geometry.stride, geometry.padding, geometry.dilation)
            alive = torch.arange(BATCH) < self.extents[model].cpu()
            results.append(result * alive.view(-1, 1, 1, 1))
        return torch.cat(results)


def check_convolutions(device: torch.device) -> None:
    kernels = kernels_on(device)
    for name, changes in GEOMETRIES.items():
        case = Case.of(kernels, device, **changes)
        exact_images = case.images.double().cpu().requires_grad_()
        exact = case.exact(exact_images)
        images = case.images.clone().requires_grad_()
        found = kernels.convolve(images, case.weights, case.biases, case.extents, case.geometry, "ieee")
        require(found.shape == exact.shape, f"{name}: {found.shape} instead of {exact.shape}")
        assert_near(found.detach(), exact.detach())
        upstream = draw(4, *exact.shape)
        (found * upstream.to(device)).sum().backward()
        (exact * upstream.double()).sum().backward()
        assert images.grad is not None
        assert exact_images.grad is not None
        assert_near(images.grad, exact_images.grad)


def check_convolution_without_bias(device: torch.device) -> None:
    kernels = kernels_on(device)
    case = Case.of(kernels, device, kernel=(3, 3))
    case.biases.zero_()
    exact = case.exact(case.images.double().cpu())
    assert_near(kernels.convolve(case.images, case.weights, None, case.extents, case.geometry, "ieee"), exact)


def check_example_gradients_of_convolutions(device: torch.device) -> None:
    kernels = kernels_on(device)
    for changes in GEOMETRIES.values():
        case = Case.of(kernels, device, **changes)
        upstream = draw(4, *case.exact(case.images.double().cpu()).shape)
        for has_bias in (True, False):
            found = kernels.conv_example_gradients(
                case.images, upstream.to(device), case.extents, case.geometry, "ieee", has_bias=has_bias
            )
            assert_example_gradients(found, _gradients_one_by_one(case, upstream), case, has_bias=has_bias)


def _gradients_one_by_one(case: Case, upstream: Tensor) -> list[list[tuple[Tensor, Tensor]]]:
    geometry = case.geometry
    result: list[list[tuple[Tensor, Tensor]]] = []
    for model in range(MODELS):
        rows = []
        for example in range(BATCH):
            at = model * BATCH + example
            weight = case.weights[model].double().cpu().requires_grad_()
            bias = case.biases[model].double().cpu().requires_grad_()
            image = case.images[at : at + 1].double().cpu()
            output = F.conv2d(image, weight, bias, geometry.stride, geometry.padding, geometry.dilation)
            first, second = torch.autograd.grad((output * upstream[at].double()).sum(), [weight, bias])
            rows.append((first.flatten(), second))
        result.append(rows)
    return result


def assert_example_gradients(found: Any, exact: Any, case: Case, *, has_bias: bool = True) -> None:
    weights, biases, squares = found
    require(squares.dtype == torch.float64, "norms are not in double precision")
    for model in range(MODELS):
        for example in range(BATCH):
            square = float(squares[model, example])
            if example >= int(case.extents[model]):
                require(square < 1e-30, "padding has a norm")  # 0, but for what it may have lost
                continue
            weight, bias = exact[model][example]
            assert_near(weights[model, example], weight)
            expected = float(weight.square().sum())
            if has_bias:
                assert_near(biases[model, example], bias)
                expected += float(bias.square().sum())
            require(math.isclose(square, expected, rel_tol=1e-4), f"squared norm {square} instead of {expected}")
            # Never below what is stored, but for the rounding that the margin of `clipping` covers.
            stored = weights[model, example].double().square().sum()
            stored = stored + biases[model, example].double().square().sum() if has_bias else stored
            require(square >= float(stored) * (1 - 2.0**-16), "the norm is below that of what is stored")


def check_entries(device: torch.device) -> None:
    kernels = kernels_on(device)
    if not hasattr(kernels, "entry_forward"):
        return  # fused elsewhere
    for activation, window, changes in (
        ("tanh", (2, 2), {"kernel": (3, 3)}),
        ("relu", (1, 3), {"kernel": (2, 3), "padding": (1, 1)}),
        ("tanh", (3, 2), {"kernel": (3, 2), "stride": (1, 2), "channels": 1, "outputs": 20}),
    ):
        case = Case.of(kernels, device, **changes)
        entry = kernels.Entry(case.geometry, activation, window)
        function = torch.tanh if activation == "tanh" else torch.relu
        alive = (torch.arange(BATCH) < case.extents.cpu()[:, None]).flatten().view(-1, 1, 1, 1)
        exact = F.avg_pool2d(function(case.exact(case.images.double().cpu())), window) * alive
        found = kernels.entry_forward(case.images, case.weights, case.biases, case.extents, entry, "ieee")
        assert_near(found, exact)
        upstream = draw(4, *exact.shape)
        gradients = kernels.entry_example_gradients(
            case.images, case.weights, case.biases, upstream.to(device), case.extents, entry, "ieee"
        )
        assert_example_gradients(gradients, _entry_gradients(case, function, window, upstream), case)


def _entry_gradients(case: Case, function: Any, window: tuple[int, int], upstream: Tensor) -> Any:
    geometry = case.geometry
    result: list[list[tuple[Tensor, Tensor]]] = []
    for model in range(MODELS):
        rows = []
        for example in range(BATCH):
            at = model * BATCH + example
            weight = case.weights[model].double().cpu().requires_grad_()
            bias = case.biases[model].double().cpu().requires_grad_()
            image = case.images[at : at + 1].double().cpu()
            output = F.conv2d(image, weight, bias, geometry.stride, geometry.padding, geometry.dilation)
            loss = (F.avg_pool2d(function(output), window) * upstream[at].double()).sum()
            first, second = torch.autograd.grad(loss, [weight, bias])
            rows.append((first.flatten(), second))
        result.append(rows)
    return result


def check_pooling(device: torch.device) -> None:
    kernels = kernels_on(device)
    extents = torch.tensor([3, 2], dtype=torch.int32, device=device)
    alive = (torch.arange(BATCH) < extents.cpu()[:, None]).flatten().view(-1, 1, 1, 1)
    for activation, window in (("tanh", (2, 2)), ("relu", (2, 3)), ("tanh", (1, 1)), ("relu", (5, 4))):
        values = draw(1, MODELS * BATCH, 3, 7, 9)
        ours = values.clone().to(device).requires_grad_()
        exact = values.clone().double().requires_grad_()
        found = kernels.activate_and_pool(ours, extents, window, activation)
        activated = exact.tanh() if activation == "tanh" else exact.relu()
        expected = F.avg_pool2d(activated, window) * alive
        assert_near(found.detach(), expected.detach())
        upstream = draw(2, *expected.shape)
        (found * upstream.to(device)).sum().backward()
        (expected * upstream.double()).sum().backward()
        assert ours.grad is not None
        assert exact.grad is not None
        assert_near(ours.grad, exact.grad)


def check_squared_norms(device: torch.device) -> None:
    kernels = kernels_on(device)
    for shape in ((2, 3, 1), (1, 1, 5), (3, 7, 64), (2, 5, 300), (1, 40, 2049)):
        rows = draw(sum(shape), *shape)
        found = kernels.squared_norms(rows.to(device)).cpu()
        torch.testing.assert_close(found, rows.double().square().sum(dim=2), rtol=1e-12, atol=0.0)
    # Whoever overflows in single precision would call these infinite.
    large = kernels.squared_norms(torch.full((1, 1, 3), 1e30, device=device)).cpu()
    require(math.isclose(float(large), 3e60, rel_tol=1e-6), f"3e60 became {float(large)}")
    transposed = draw(5, 2, 6, 4).to(device).transpose(1, 2)
    torch.testing.assert_close(
        kernels.squared_norms(transposed).cpu(), transposed.double().square().sum(dim=2).cpu(), rtol=1e-12, atol=0.0
    )


def check_group_norm(device: torch.device) -> None:
    kernels = kernels_on(device)
    before = kernels.group_norm._MOST
    try:
        for kernels.group_norm._MOST in (before, dict.fromkeys(before, 0)):  # all at once, and piece by piece
            _check_group_norm(kernels, device)
    finally:
        kernels.group_norm._MOST = before


def _check_group_norm(kernels: Any, device: torch.device) -> None:
    extents = torch.tensor([3, 2], dtype=torch.int32, device=device)
    alive = (torch.arange(BATCH) < extents.cpu()[:, None]).flatten().view(-1, 1, 1, 1)
    for channels, groups, height, width, adds, relu in (
        (64, 32, 5, 3, False, True), (128, 8, 1, 1, False, False), (64, 1, 10, 7, False, True),
        (64, 32, 17, 16, True, True), (64, 4, 3, 3, True, False),
    ):  # fmt: skip
        images = draw(1, MODELS * BATCH, channels, height, width) * 3 + 5
        addend = draw(5, *images.shape)
        weight, bias = draw(2, MODELS, channels), draw(3, MODELS, channels)
        require(kernels.group_norm.supports(images.shape, groups), "not supported")
        ours, kept = [values.to(device).requires_grad_() for values in (images, addend)][: 1 + adds], {}
        found = kernels.group_norm.GroupNormFunction.apply(
            ours[0], ours[1] if adds else None, weight.to(device), bias.to(device), extents, groups, 1e-5, relu, kept,
            "key",
        )  # fmt: skip
        exact = [
            values.double().requires_grad_()
            for values in (images, addend, weight.repeat_interleave(BATCH, 0), bias.repeat_interleave(BATCH, 0))
        ]
        expected = F.group_norm(exact[0], groups, eps=1e-5) * exact[2][..., None, None] + exact[3][..., None, None]
        expected = expected + exact[1] * float(adds)
        expected = (expected.relu() if relu else expected) * alive
        assert_near(found.detach(), expected.detach())
        upstream = draw(4, *expected.shape) * alive
        gradients = torch.autograd.grad(found, ours, upstream.to(device))
        wanted = torch.autograd.grad(expected, exact, upstream.double())
        own, squares = kept["key"]
        for actual, exactly in zip(gradients, wanted, strict=False):
            assert_near(actual, exactly)
        assert_near(own, torch.cat(wanted[2:], dim=1))
        norms = own.double().square().sum(dim=1)
        torch.testing.assert_close(squares.double().sum(dim=1), norms, rtol=1e-5, atol=1e-30)


def check_ghost_norms(device: torch.device) -> None:
    # Never below those of operands cut to TF32 plus the slack, however much positions cancel; nor far above.
    kernels, slack = kernels_on(device), Clipping("tf32").slack
    for channels, outputs, kernel, stride, padding, height, width in (
        (70, 100, 3, 1, 1, 8, 8), (130, 33, 3, 2, 1, 9, 7), (20, 40, 1, 2, 0, 5, 5), (512, 512, 1, 1, 0, 1, 2),
        (1, 1, 1, 1, 0, 1, 1),
    ):  # fmt: skip
        conv = nn.Conv2d(channels, outputs, kernel, stride, padding, bias=False).double()
        for size in (1.0, 1e-2, 1e-4, 0.0):
            # Two examples of any kind, one of positions that cancel but for the share `size`, one of next to nothing.
            images = draw(1, 5, channels, height, width)
            upstream = draw(2, *conv(images.double()).shape)
            images[2] = images[2, :, :1, :1].abs() + size * images[2].abs()  # sums of one sign lose the most
            upstream[2] -= (1.0 - size) * upstream[2].mean(dim=(1, 2), keepdim=True)
            images[3] *= 1e-30
            places = Conv(conv).places(images.to(device))
            extents = torch.tensor([4], dtype=torch.int32, device=device)
            found = kernels.library_convolutions.ghost_norms(
                images.to(device), upstream.to(device), places, extents, slack
            ).cpu()
            require(found.dtype == torch.float64 and float(found[4]) == 0.0, "padding has a norm")
            for example in range(4):
                image, error = images[example : example + 1], upstream[example : example + 1]
                (gradient,) = torch.autograd.grad(conv(_cut(image).double()), conv.weight, _cut(error).double())
                patches = F.unfold(image.double(), kernel, padding=padding, stride=stride)
                norm, lengths = float(gradient.norm()), float(patches.norm() * error.double().norm())
                estimate = math.sqrt(float(found[example]))
                require(estimate >= norm + slack * lengths, f"{estimate} is too short for {norm} and {lengths}")
                most = math.sqrt(norm**2 + (channels + outputs + 2) * 2.0**-22 * lengths**2) + slack * lengths
                require(estimate <= 1.01 * most + 1e-12, f"{estimate} is too long for {norm} and {lengths}")
    images[1, 0, 0, 0], upstream[0, 0, 0, 0] = math.inf, math.nan
    found = kernels.library_convolutions.ghost_norms(images.to(device), upstream.to(device), places, extents, slack)
    require(found.cpu().isfinite().tolist() == [False, False, True, True, True], "what is not finite has a norm")


def _cut(values: Tensor) -> Tensor:
    """The digits of TF32: ten behind the first."""
    return (values.contiguous().view(torch.int32) & ~(2**13 - 1)).view(torch.float32)


def check_sums_of_convolutions(device: torch.device) -> None:
    """Weighted sums of single gradients, in both precisions of the sum; what has factor 0 may hold anything."""
    kernels = kernels_on(device)
    for kernel, stride, padding, dtype in ((3, 1, 1, torch.float64), (2, 2, 0, torch.float32)):
        conv = nn.Conv2d(3, 4, kernel, stride, padding, bias=False)
        images, factors = draw(1, 4, 3, 6, 5), torch.tensor([[0.5, 0.0], [2.0, 0.25]])
        gradients = draw(2, *conv(images).shape)
        extents = torch.tensor([2, 1], dtype=torch.int32)
        size = list(conv.weight.shape)
        alone = [
            conv2d_weight(images[at, None].double(), size, gradients[at, None].double(), stride, padding).flatten()
            for at in range(4)
        ]
        expected = torch.stack([0.5 * alone[0], 2.0 * alone[2]])
        images[1], gradients[1], images[3] = math.nan, math.inf, math.nan
        out = torch.full((2, conv.weight.numel() + 3), math.inf, dtype=dtype, device=device)
        geometry = kernels.Geometry(3, 6, 5, 4, *((value, value) for value in (kernel, stride, padding, 1)))
        kernels.conv_weighted_sum(
            images.to(device), gradients.to(device), factors.to(device), extents.to(device), geometry, "ieee",
            out[:, 1:-2],
        )  # fmt: skip
        torch.testing.assert_close(out[:, 1:-2].double().cpu(), expected, rtol=1e-5, atol=1e-5)
        require(bool((out[:, 0] == math.inf).all() and (out[:, -2:] == math.inf).all()), "written beside its place")


def check_outer_sums(device: torch.device) -> None:
    """Sums in double precision: equal to those of exact products, up to 2^-53 of each addition."""
    kernels = kernels_on(device)
    for batch, outputs, features in ((5, 3, 7), (131, 10, 150), (9, 33, 70)):
        left, right = draw(1, 2, batch, outputs), draw(2, 2, batch, features)
        extents = torch.tensor([batch, batch // 2], dtype=torch.int32)
        inside = (torch.arange(batch) < extents[:, None]).unsqueeze(2)
        exact = torch.bmm((left * inside).double().transpose(1, 2), right.double()).flatten(1)
        right[1, -1] = math.nan  # padding
        out = torch.full((2, outputs * features + 2), math.inf, dtype=torch.float64, device=device)
        kernels.outer_sum(left.to(device), right.to(device), extents.to(device), out[:, 1:-1])
        torch.testing.assert_close(out[:, 1:-1].cpu(), exact, rtol=0.0, atol=1e-12)
        require(bool((out[:, 0] == math.inf).all() and (out[:, -1] == math.inf).all()), "written beside its place")


def check_ghost_sums(device: torch.device) -> None:
    kernels = kernels_on(device)
    for kernel, stride, padding, height, width in ((3, 1, 1, 4, 5), (1, 2, 0, 5, 5), (2, 1, 1, 9, 33)):
        conv = nn.Conv2d(3, 4, kernel, stride, padding, bias=False)
        images = draw(1, 5, 3, height, width).double()
        upstream = draw(2, *conv.double()(images).shape).double()
        pixels, errors = images.flatten(2), upstream.flatten(2)
        squares, sizes = kernels.library_convolutions.ghost_sums(
            torch.bmm(pixels.mT, pixels).to(device),
            torch.bmm(errors.mT, errors).to(device),
            Conv(conv).places(images.to(device)),
        )
        for example in range(5):
            (gradient,) = torch.autograd.grad(conv(images[example]), conv.weight, upstream[example])
            patches = F.unfold(images[example : example + 1], kernel, padding=padding, stride=stride)
            torch.testing.assert_close(squares[example].cpu(), gradient.square().sum(), rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(sizes[example].cpu(), patches.square().sum(), rtol=1e-10, atol=1e-10)


def check_channels_first(device: torch.device) -> None:
    kernels = kernels_on(device)
    for shape in ((3, 70, 9, 11), (1, 1, 1, 1), (2, 64, 8, 8), (2, 3, 65, 1)):
        images = draw(1, *shape).to(device).contiguous(memory_format=torch.channels_last)
        found = kernels.library_convolutions.channels_first(images)
        require(found.is_contiguous() and torch.equal(found, images), "turned wrongly")


def check_weighted_sum(device: torch.device) -> None:
    kernels = kernels_on(device)
    before = kernels._SUM_TILES
    try:
        for kernels._SUM_TILES in ((), *((each,) for each in before)):  # all shapes of tiles
            _check_weighted_sum(kernels, device)
    finally:
        kernels._SUM_TILES = before


def _check_weighted_sum(kernels: Any, device: torch.device) -> None:
    for models, batch, entries in ((2, 3, 5), (1, 1, 1), (3, 17, 130), (2, 40, 300)):
        rows, factors = draw(1, models, batch, entries), draw(2, models, batch).abs()
        extents = torch.randint(batch + 1, (models,), generator=torch.Generator().manual_seed(3)).int()
        factors[torch.arange(batch) >= extents[:, None]] = 7.0  # must not be read
        factors[:, batch // 2] = 0.0
        expected = torch.stack(
            [
                (factors[m, :extent, None].double() * rows[m, :extent].double()).sum(dim=0)
                for m, extent in enumerate(extents.tolist())
            ]
        )
        rows[:, batch // 2] = math.nan  # a factor of 0 must undo this, too
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-13)):
            out = torch.full((models, entries + 4), math.inf, dtype=dtype, device=device)
            kernels.weighted_sum(rows.to(device), factors.to(device), extents.to(device), out[:, 2 : 2 + entries])
            found = out[:, 2 : 2 + entries].double().cpu()
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
            beside = torch.cat([out[:, :2], out[:, -2:]])
            require(bool((beside == math.inf).all()), "written beside its place")


# --- noise and optimisers ---------------------------------------------------------------------------------------------

STEPS = 3
RECIPES: dict[str, dict[str, Any]] = {
    "sgd": {},
    "weight decay": {"weight_decay": 0.2},
    "momentum": {"momentum": 0.9, "weight_decay": 0.1},
    "adam": {"optimizer": "adam"},
    "adam with decay": {"optimizer": "adam", "betas": (0.5, 0.9), "weight_decay": 0.3},
    "adam without memory": {"optimizer": "adam", "betas": (0.0, 0.0)},
    "cosine": {"schedule": "cosine", "momentum": 0.5},
    "average": {"average_iterates": True},
    "average of adam": {"average_iterates": True, "optimizer": "adam", "schedule": "cosine"},
}


def recipe(noise: float = 1e-12, **changes: Any) -> TrainConfig:
    constants: dict[str, Any] = {"steps": STEPS, "learning_rate": 0.3, "divisor": 4.0, **changes}
    return TrainConfig(
        instances=1, noise_multiplier=noise, sample_rate=0.5, max_grad_norm=1.0, num_train=8, classes=2, **constants
    )


def check_optimisers(device: torch.device) -> None:
    kernels = kernels_on(device)
    for name, changes in RECIPES.items():
        config = recipe(**changes)
        size = 600  # more than a tile, and no whole number of them
        ours, theirs = draw(1, 2, size).to(device), draw(1, 2, size)
        fused, plain = kernels.NoisyOptimiser(config, ours, [1, 2**127 + 5]), Optimiser(config, theirs)
        for step in range(STEPS):
            sums = draw(10 + step, 2, size)
            fused.update(sums.to(device))
            assert config.divisor is not None
            plain.update(sums / config.divisor)
            # Adam's corrections are powers in single precision on the GPU.
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-4 if "adam" in name else 1e-6)
        torch.testing.assert_close(fused.result().cpu(), plain.result(), rtol=1e-4, atol=1e-4)


def normals(kernels: Any, device: torch.device, keys: list[int], size: int, steps: int = 1) -> Tensor:
    """What a fused optimiser adds to weights of zero: steps x models x size, standard normals if all is right."""
    config = recipe(noise=1.0, steps=steps, learning_rate=1.0, divisor=1.0)
    rows = []
    weights = torch.zeros(len(keys), size, device=device)
    optimiser = kernels.NoisyOptimiser(config, weights, keys)
    for _ in range(steps):
        weights.zero_()
        optimiser.update(torch.zeros_like(weights))
        rows.append(-weights.double().cpu())
    return torch.stack(rows)


KEYS = [0, 1, 2**32, 2**63 + 12345, 2**64 + 7, 2**127 + 2**95 + 2**31, 2**128 - 1]


def check_noise_is_philox(device: torch.device) -> None:
    vectors = (
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((2**32 - 1, 2**32 - 1, 2**32 - 1, 2**32 - 1), (2**32 - 1, 2**32 - 1), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    )  # known answers published with Random123
    for counter, key, words in vectors:
        require(" ".join(f"{word:08x}" for word in philox(counter, key)) == words, "the twin itself is wrong")
    size, steps = 1031, 2  # more than two tiles of 512, and odd
    found = normals(kernels_on(device), device, KEYS, size, steps)
    for step in range(steps):
        for row, key in zip(found[step], KEYS, strict=True):
            expected = torch.tensor(expected_normals(key, step, size), dtype=torch.float64)
            # An angle near 2 pi and a uniform near 1 lose digits in single precision.
            torch.testing.assert_close(row, expected, rtol=1e-4, atol=2e-3)
            require(float((row - expected).abs().mean()) < 2e-6, "off by more than rounding")


# Keys for which the first word at place 0 is 0 or 2^32 - 1 (found by trying 2^32 of them).
SMALLEST_WORDS = (0x9ABCDEF0_33F73D8B, 0x00000007_9F0E4354)
LARGEST_WORDS = (0x9ABCDEF0_D3B901FD, 0x0BADCAFE_1234A47D)


def check_tails_of_the_noise(device: torch.device) -> None:
    for key, word in [(key, 0) for key in SMALLEST_WORDS] + [(key, 2**32 - 1) for key in LARGEST_WORDS]:
        one, two, *_ = philox((0, 0, 0, 0), (key & (2**32 - 1), key >> 32))
        require(one == word, "not the word that was looked for")
        pair = normals(kernels_on(device), device, [key], 2)[0, 0]
        radius = float(pair.square().sum().sqrt())
        if word == 0:
            # 32 bits alone would end at sqrt(-2 log(2^-33)) = 6.76 or, without the half, nowhere.
            exact = math.sqrt(-2.0 * math.log((two + 0.5) * 2.0**-64))
            require(6.66 < exact <= 9.6, "the twin itself is wrong")
            require(math.isclose(radius, exact, rel_tol=1e-4), f"radius {radius} instead of {exact}")
        else:
            require(math.isfinite(radius) and radius < 1e-3, f"radius {radius} of a uniform of nearly one")


def check_law_of_the_noise(device: torch.device) -> None:
    models = 4
    size = 2**13 if device.type == "cpu" else 2**22
    found = normals(kernels_on(device), device, list(range(100, 100 + models)), size, 2)
    require_law_of_noise(found)


def require_law_of_noise(found: Tensor) -> None:
    """Of standard normals, two steps x several models x places: moments, distribution, no correlations."""
    # False alarms: each statistic is compared with 6.5 of its standard errors, 8e-11 each; Kolmogorov-Smirnov at
    # sqrt(n) D = 3.5, 2 exp(-2 3.5^2) = 5e-11.
    values = found.flatten()
    count = values.numel()
    for power, mean, variance in ((1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)):
        off = abs(float((values**power).mean()) - mean)
        require(off < 6.5 * math.sqrt(variance / count), f"moment {power} is off by {off}")
    ordered = torch.special.ndtr(values.sort().values)
    steps = torch.arange(count + 1, dtype=torch.float64) / count
    distance = float(torch.maximum((ordered - steps[:-1]).abs().max(), (ordered - steps[1:]).abs().max()))
    require(distance * math.sqrt(count) < 3.5, f"Kolmogorov-Smirnov distance {distance}")
    # Neighbours (cosine and sine of one angle), models, steps: products have mean 0 and variance 1.
    pairs = {
        "neighbours": (found[..., 0::2], found[..., 1::2]),
        "next pairs": (found[..., 1:-1:2], found[..., 2::2]),
        "squares of neighbours": (
            (found[..., 0::2] ** 2 - 1) / math.sqrt(2),
            (found[..., 1::2] ** 2 - 1) / math.sqrt(2),
        ),
        "models": (found[:, 0], found[:, 1]),
        "steps": (found[0], found[1]),
        "step and model": (found[0, 1:], found[1, :-1]),
    }
    for name, (one, two) in pairs.items():
        product = float((one * two).mean()) * math.sqrt(one.numel())
        require(abs(product) < 6.5, f"{name} are correlated: {product} standard errors")


def check_noise_of_a_model_is_its_own(device: torch.device) -> None:
    kernels = kernels_on(device)
    together = normals(kernels, device, KEYS, 700)[0]
    for at, key in enumerate(KEYS):
        require(bool((normals(kernels, device, [key], 700)[0, 0] == together[at]).all()), "it depends on the others")
    require(len({tuple(row.tolist()) for row in together}) == len(KEYS), "two models share their noise")


# --- networks ---------------------------------------------------------------------------------------------------------


def assert_network_right(name: str, device: torch.device, precision: str) -> None:
    module, shape = modules()[name]
    network = fast_network(module, shape)
    network.clipping = Clipping(precision)
    # Where the norms of most layers come from Gram matrices, they allow for rounding: 2^-13 of |a| |g| and more.
    tolerance = TOLERANCE[precision] * (4.0 if name == "model-wide-residual" else 1.0)
    weights = random_weights(module, 3, seed=1)
    batch, bounds = (2, (0.05,)) if device.type == "cpu" else (20, (0.05, 1e6))  # the interpreter is slow
    inputs, labels, present = random_batch(module, shape, 3, batch, seed=2)
    present[0, 0] = present[1, 1] = True
    present[2] = False  # an empty batch beside others
    with arithmetic(precision):
        for bound in bounds:
            expected, _ = reference_clipped_sums(module, weights, inputs, labels, present, bound, precision)
            on_device = (weights.to(device), inputs.to(device), labels.to(device), present.to(device))
            found = network.clipped_sums(*on_device, bound)
            require(bool((found[2] == 0).all()), "an empty batch adds something")
            assert_near(found, expected, tolerance)
        found = network.logits(weights.to(device), inputs[0].to(device))
        assert_near(found, reference_logits(module, weights, inputs[0]), tolerance)


def assert_units_right(name: str, device: torch.device, precision: str) -> None:
    """Mean gradients of units, clipped as a whole; that of a unit in which an example is broken is left out."""
    module, shape = modules()[name]
    network = fast_network(module, shape)
    network.clipping = Clipping(precision)
    tolerance = TOLERANCE[precision] * (4.0 if name == "model-wide-residual" else 1.0)
    weights = random_weights(module, 2, seed=1)
    inputs, labels, counts = random_units(module, shape, 2, 3 if device.type == "cpu" else 12, seed=2)
    bounds = (0.05,) if device.type == "cpu" else (0.05, 1e6)
    shares = shares_of(counts).to(device)
    with arithmetic(precision):
        for bound in bounds:
            for breaks in (False, True):
                given = inputs.clone()
                left = counts.clone()
                if breaks and inputs.is_floating_point():
                    given[0, 0, 1].view(-1)[0] = math.inf
                    left[0, 0] = 0
                expected, _ = reference_sums_of_units(module, weights, inputs, labels, left, bound, precision)
                on_device = (weights.to(device), given.to(device), labels.to(device), (counts > 0).to(device))
                found = network.clipped_sums(*on_device, bound, shares=shares)
                assert_near(found, expected, tolerance)


def assert_contributions_bounded(name: str, device: torch.device, precision: str) -> None:
    """What single examples add, each alone in a model of its own, and that padding and broken ones add nothing."""
    module, shape = modules()[name]
    network = fast_network(module, shape)
    network.clipping = Clipping(precision)
    count, bounds = (2, (1e-3,)) if device.type == "cpu" else (64, (1e-3, 0.8))
    weights = random_weights(module, 1, seed=5).expand(count, -1).contiguous().to(device)
    width = 2 if device.type == "cpu" else 20  # as above: kernels are compiled for each
    inputs, labels, _ = random_batch(module, shape, count, width, seed=6)
    present = (torch.arange(width) < 1).expand(count, -1).contiguous()
    if inputs.is_floating_point():
        inputs[:, 1:] = math.nan  # padding may hold anything
        inputs[0, 0].view(-1)[0] = math.inf
    before = inputs.clone()
    batch = (inputs.to(device), labels.to(device), present.to(device))
    with arithmetic(precision):
        for bound in bounds:
            found = network.clipped_sums(weights, *batch, bound).double().cpu()
            require(bool(found.isfinite().all()), "not finite")
            left = batch[0].cpu()
            require(torch.equal(left.nan_to_num(7.0), before.nan_to_num(7.0)), "the inputs have been changed")
            norms = found.norm(dim=1)
            require(float(norms.max()) <= bound, f"an example adds {float(norms.max())} at a bound of {bound}")
            if inputs.is_floating_point():
                require(float(norms[0]) == 0.0, "an infinite input adds something")
                require(float(norms[1:].max()) > 0.9 * bound or bound > 0.01, "shortened more than it need be")


def check_exploding_inputs(device: torch.device) -> None:
    # In a linear model the gradient is (p - e_label) times the input; weights of zero keep p finite.
    module = nn.Linear(150, CLASSES)
    network = FastNetwork(module, (150,))
    powers = torch.arange(-44, 39)
    examples = torch.stack([10.0 ** float(power) * random_inputs(module, (150,), 1) for power in powers])
    examples = examples.nan_to_num(posinf=3e38, neginf=-3e38)
    one = torch.ones(len(powers), 1, dtype=torch.bool, device=device)
    weights = torch.zeros(len(powers), network.size, device=device)
    for bound in (1e-12, 1e-7, 1e-6, 1e-3, 1.0):
        with arithmetic("float32"):
            found = network.clipped_sums(weights, examples[:, None].to(device), one.long(), one, bound)
        norms = found.double().norm(dim=1).cpu()
        for power, norm in zip(powers.tolist(), norms.tolist(), strict=True):
            require(norm <= bound, f"an input of size 1e{power} adds {norm} at a bound of {bound}")


def check_neighbouring_batches(device: torch.device) -> None:
    """One more example in a batch of thousands moves sums by no more than the bound, with all roundings."""
    size = 0.5 - 2.0**-14  # sums of thousands have more bits than single precision
    bound = size * (1 + 2.0**-14)
    on_gpu = device.type != "cpu"  # the interpreter is slow
    for precision in ("float32", "tf32") if on_gpu else ("float32",):
        for counts in ((89, 92), (127, 130), (2400, 2440)) if on_gpu else ((89, 92), (2400, 2403)):
            for kind in ("stored", "outer"):
                sums = [_sum_of_equals(kind, count, size, bound, precision, device) for count in range(*counts)]
                worst = max(abs(after - before) for before, after in pairwise(sums))
                require(0.99 * bound < worst <= bound, f"{kind}: one example moves a sum by {worst / bound} bounds")


def _sum_of_equals(kind: str, count: int, size: float, bound: float, precision: str, device: torch.device) -> float:
    """The clipped sum of so many gradients of one number."""
    from mithridate.training import layers

    extents = torch.tensor([count], dtype=torch.int32, device=device)
    frame = layers.Layout(1, Clipping(precision), extents, kernels_on(device))
    numbers = torch.full((1, count, 1), size, device=device)
    with arithmetic(precision):
        parts: layers.Pieces = layers.Stored(numbers, frame)
        if kind == "outer":
            parts = layers.Outer(torch.ones_like(numbers), numbers, frame, has_bias=False)
        squares = parts.squared_norms()
        out = torch.zeros(1, 1, dtype=frame.clipping.accumulator(count), device=device)
        parts.write_sums(frame.clipping.factors(squares, torch.isfinite(squares), bound), out)
    return float(out)


def check_operands_of_every_size(device: torch.device) -> None:
    """Inputs and gradients from the smallest to the largest numbers: where one is tiny and the other huge, too."""
    from mithridate.training import layers

    sizes = torch.logspace(-45, 38, 84, dtype=torch.float64).float()
    inputs, gradients = torch.cartesian_prod(sizes, sizes).T
    values = 1 + draw(3, len(inputs), 4).abs() / 4
    operands = [
        (size[:, None] * values[:, :columns]).nan_to_num(posinf=3e38)[None].to(device)
        for size, columns in ((inputs, 4), (gradients, 3))
    ]
    extents = torch.tensor([len(inputs)], dtype=torch.int32, device=device)
    for precision in ("float32", "tf32"):
        frame = layers.Layout(1, Clipping(precision), extents, kernels_on(device))
        parts = layers.Outer(operands[0], operands[1], frame, has_bias=False)
        squares = parts.squared_norms()
        parts.forget(torch.isfinite(squares))
        for bound in (1e-12, 1e-7, 1.0, 1e12):
            factors = Clipping(precision).factors(squares, torch.isfinite(squares), bound)[0]
            # As the sum of a batch of one, each.
            weighted = (parts._gradients[0] * factors[:, None]).unsqueeze(2)
            with arithmetic(precision):
                norms = torch.bmm(weighted, parts._inputs[0].unsqueeze(1)).double().flatten(1).norm(dim=1)
            require(float(norms.max()) <= bound, f"an example adds {float(norms.max()) / bound} times the bound")


def check_cancelling_positions(device: torch.device) -> None:
    # Two positions whose gradients nearly cancel, where the norm is taken from Gram matrices.
    features, outputs, bound = 512, 64, 1.0
    from mithridate.training import layers

    worst = 0.0
    for precision in ("float32", "tf32"):
        for seed in range(1 if device.type == "cpu" else 10):  # the interpreter is slow
            for cancel in (2.0**-6, 2.0**-8, 2.0**-10, 2.0**-10.5, 2.0**-11):
                a, g = 30 * draw(seed, 1, 1, 1, features, 1).abs(), 30 * draw(seed + 1, 1, 1, 1, outputs, 1).abs()
                inputs = a.expand(-1, -1, -1, -1, 2).contiguous().to(device)
                gradients = torch.cat([g, -g * (1 - cancel)], 4).to(device)
                extents = torch.ones(1, dtype=torch.int32, device=device)
                frame = layers.Layout(1, Clipping(precision), extents, kernels_on(device))
                with arithmetic(precision):
                    part = layers.Contraction(inputs, gradients, frame)
                    squares = part.squared_norms()
                    out = torch.zeros(1, features * outputs, device=device)
                    part.write_sums(frame.clipping.factors(squares, torch.isfinite(squares), bound), out)
                worst = max(worst, float(out.double().norm()))
    require(worst <= bound, f"an example adds {worst} at a bound of {bound}")


# --- training (GPU only) ----------------------------------------------------------------------------------------------

SEEDS = Seeds.of(bytes(range(32)))


def engine(
    device: torch.device,
    model: str = "lenet5",
    precision: str = "float32",
    starts: Sequence[int] | None = None,
    **changes: Any,
) -> Engine:
    shape = {"lenet5": (1, 16, 18), "linear": (12,), "mlp": (12,)}[model]
    constants: dict[str, Any] = {"instances": 8, "noise_multiplier": 1.0, "sample_rate": 0.02, "steps": 40, **changes}
    config = TrainConfig(max_grad_norm=0.5, learning_rate=constants.pop("learning_rate", 0.5), **constants)
    labels = torch.randint(CLASSES, (500,), generator=torch.Generator().manual_seed(1)).numpy()
    inputs = draw(2, 500, *shape).numpy()
    config = config.resolve(num_train=500, classes=CLASSES)
    of_units = None if starts is None else np.asarray(starts)
    data = Dataset(np.ascontiguousarray(inputs), labels.astype(np.int64), of_units)
    return Engine(build(model, shape, CLASSES), data, config, device=device, precision=precision)


def check_training_twice_is_equal_bit_for_bit(device: torch.device) -> None:
    for precision in ("float32", "tf32"):
        trained = engine(device, precision=precision)
        first, second = (trained.train(SEEDS, range(8)).cpu() for _ in range(2))
        require(torch.equal(first, second), f"two runs differ by {float((first - second).abs().max())}")
    optimisers: tuple[dict[str, Any], ...] = ({"momentum": 0.9}, {"optimizer": "adam", "average_iterates": True})
    for changes in optimisers:
        trained = engine(device, "mlp", **changes)
        first, between, second = (trained.train(SEEDS, part).cpu() for part in (range(4), range(4, 8), range(4)))
        require(torch.equal(first, second), "what another group left behind is still there")
        require(not torch.equal(first, between), "two groups are the same")


def check_groups_are_equal_to_rounding(device: torch.device) -> None:
    for model in ("lenet5", "linear"):
        trained = engine(device, model)
        together = trained.train(SEEDS, range(8)).cpu()
        apart = torch.cat([trained.train(SEEDS, part).cpu() for part in (range(3), range(3, 4), range(4, 8))])
        torch.testing.assert_close(together, apart, rtol=1e-3, atol=1e-4)
        require(len({tuple(row.tolist()) for row in together}) == 8, "two instances are the same")


def check_training_agrees_with_the_cpu(device: torch.device) -> None:
    # At next to no noise, whose rounding would otherwise be all that differs: batches, clipping, optimiser.
    for model, changes in (
        ("linear", {}),
        ("lenet5", {"steps": 15}),
        ("mlp", {"momentum": 0.9, "weight_decay": 0.01, "schedule": "cosine", "learning_rate": 0.1}),
        ("mlp", {"optimizer": "adam", "learning_rate": 0.01, "average_iterates": True}),
        ("linear", {"keep": 0.3, "sample_rate": 0.2}),
    ):
        constants: dict[str, Any] = {"noise_multiplier": 1e-9, **changes}
        here = engine(device, model, **constants).train(SEEDS, range(4)).cpu()
        there = engine(torch.device("cpu"), model, **constants).train(SEEDS, range(4))
        torch.testing.assert_close(here, there, rtol=2e-3, atol=2e-3)


def check_units_agree_with_the_cpu(device: torch.device) -> None:
    """Units of one example and of more in the same batches, and the data on the device or on the host."""
    sizes = [1, 9, 2, 1, 7, 5] * 20
    constants: dict[str, Any] = {"noise_multiplier": 1e-9, "sample_rate": 0.1, "steps": 15, "unit_rows": 4}
    starts = np.append(0, np.cumsum(sizes)).tolist()
    for model in ("linear", "lenet5", "mlp"):
        there = engine(torch.device("cpu"), model, starts=starts, **constants).train(SEEDS, range(4))
        for has_room in (True, False):
            with mock.patch.object(batch_source, "has_room", return_value=has_room):
                here = engine(device, model, starts=starts, **constants).train(SEEDS, range(4)).cpu()
            torch.testing.assert_close(here, there, rtol=2e-3, atol=2e-3)


def check_widening_batches(device: torch.device) -> None:
    # Batches of about one example: whole blocks may be empty, and a rare batch needs a wider graph than any before.
    trained = engine(device, "linear", noise_multiplier=1e-9, sample_rate=0.002, steps=3000, learning_rate=0.01)
    from mithridate.training.batch_source import Block, indices_of
    from mithridate.training.devices import ReplayedStep

    here = trained.train(SEEDS, range(2)).cpu()
    there = engine(
        torch.device("cpu"), "linear", noise_multiplier=1e-9, sample_rate=0.002, steps=3000, learning_rate=0.01
    ).train(SEEDS, range(2))
    torch.testing.assert_close(here, there, rtol=2e-3, atol=2e-3)
    # And directly: sums of indices over batches of growing width, through the same replayed steps.
    total = torch.zeros(2, dtype=torch.int64, device=device)

    def step(chosen: Tensor, sizes: Tensor) -> None:
        present = torch.arange(chosen.shape[1], device=device) < sizes.unsqueeze(1)
        total.add_(torch.where(present, chosen + 1, 0).sum(dim=1))

    replayed = ReplayedStep(step, 2, device, lambda block: indices_of(block, device))
    generator = np.random.default_rng(0)
    expected = np.zeros(2, dtype=np.int64)
    for width in (0, 1, 5, 16, 17, 3, 60, 0, 200):
        sizes = generator.integers(0, width + 1, size=(7, 2)).astype(np.int32)
        indices = generator.integers(0, 500, size=(7, 2, width)).astype(np.int32)
        inside = np.arange(width) < sizes[..., None]
        expected += ((indices + 1) * inside).sum(axis=(0, 2))
        replayed.run(Block(np.where(inside, indices, 0).astype(np.int32), sizes))
    require(total.tolist() == expected.tolist(), f"{total.tolist()} instead of {expected.tolist()}")


def check_where_the_data_lies(device: torch.device) -> None:
    """Batches that are sent from the host, as where the training set has no room on the device: the same bits."""
    for model in ("lenet5", "mlp"):
        for most in (2**40, 2**17):  # whole batches, and pieces of them
            with mock.patch.dict(engines._BYTES_OF_A_PIECE, {device.type: most}):
                here = engine(device, model).train(SEEDS, range(8)).cpu()
                with mock.patch.object(batch_source, "has_room", return_value=False):
                    sent = engine(device, model).train(SEEDS, range(8)).cpu()
            require(torch.equal(here, sent), f"{model}: off by {float((here - sent).abs().max())}")


def check_pieces_of_a_batch(device: torch.device) -> None:
    for model in ("lenet5", "mlp"):
        constants: dict[str, Any] = {"noise_multiplier": 1e-9, "sample_rate": 0.5, "learning_rate": 0.1, "steps": 10}
        whole = engine(device, model, **constants).train(SEEDS, range(4)).cpu()
        with mock.patch.dict(engines._BYTES_OF_A_PIECE, {device.type: 2**19}):
            trained = engine(device, model, **constants)
            require(trained.examples_at_a_time(4) < 200, "nothing is cut")
            torch.testing.assert_close(trained.train(SEEDS, range(4)).cpu(), whole, rtol=2e-3, atol=2e-3)


def check_trainings_one_after_another(device: torch.device) -> None:
    """Graphs of engines that are gone are never freed while another is captured, of which CUDA warns on stderr."""
    with tempfile.TemporaryFile("w+") as log, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        before = os.dup(2)
        thresholds = gc.get_threshold()
        try:
            os.dup2(log.fileno(), 2)
            gc.set_threshold(20, 2, 2)  # garbage is collected all the time, also in the middle of a capture
            for features in (3, 5, 8, 13, 21, 34, 55) * 3:
                for model in ("linear", "mlp"):
                    data = Dataset(draw(1, 90, features).numpy(), np.arange(90) % CLASSES)
                    config = TrainConfig(
                        instances=4, noise_multiplier=1.0, sample_rate=0.3, steps=12, max_grad_norm=1.0,
                        learning_rate=0.5, num_train=90, classes=CLASSES, divisor=27.0,
                    )  # fmt: skip
                    Engine(build(model, (features,), CLASSES), data, config, device=device).train(SEEDS, range(4))
        finally:
            gc.set_threshold(*thresholds)
            os.dup2(before, 2)
            os.close(before)
        log.seek(0)
        said = [*log.read().splitlines(), *(str(each.message) for each in caught)]
    require(not any("captur" in line for line in said), f"warnings: {said[:3]}")


def check_noise_of_training(device: torch.device) -> None:
    # One step of rate one, by a clip bound next to nothing: what is left is noise of standard deviation sigma C / d.
    trained = engine(device, "mlp", noise_multiplier=2.0, sample_rate=1e-9, steps=1, learning_rate=1.0, divisor=4.0)
    from mithridate.training.engine import initial_weights

    start = initial_weights(build("mlp", (12,), CLASSES), SEEDS, range(64))
    moved = (trained.train(SEEDS, range(64)).cpu() - start).double() / (2.0 * 0.5 / 4.0)
    count = moved.numel()
    # Differences of weights in single precision add an error of 1e-7: nothing beside 1/4.
    require(abs(float(moved.square().sum()) - count) < 6.5 * math.sqrt(2 * count), "the scale of the noise is wrong")
    require(abs(float(moved.sum())) < 6.5 * math.sqrt(count), "the noise has a mean")
    for name, rows in (("parameters", moved), ("instances", moved.T)):
        squares = rows.square().sum(dim=0)
        wide = 7.0 * math.sqrt(2 * len(rows)) + 40.0
        require(float((squares - len(rows)).abs().max()) < wide, f"some {name} have other noise")


def check_comparisons_are_those_of_the_cpu(device: torch.device) -> None:
    """Nearest examples and sums of weights, to the bit, of coarse inputs, of which many are equally near."""
    from mithridate.core.mechanism import Threat
    from mithridate.defences import defence

    large = device.type != "cpu"
    examples, inputs, columns = (300_000, 300, 64) if large else (400, 20, 8)
    random = np.random.default_rng(0)
    x, asked = (random.integers(-2, 3, (count, columns)).astype(np.float32) for count in (examples, inputs))
    y = random.integers(0, 7, examples)
    for method, options in (("nearest-neighbours", {"neighbours": examples // 100}), ("kernel-vote", {})):
        made = defence(method, classes=7, num_train=examples, features="none", **options)
        here, there = (made.train((x, y), asked, device=each) for each in ("cpu", device))
        assert np.array_equal(here.counts, there.counts)
        assert all(np.array_equal(here.evidence[name], there.evidence[name]) for name in here.evidence)
        assert made.certify(there, threat=Threat.ADD) is not None


def check_tally(device: torch.device) -> None:
    module = build("lenet5", (1, 16, 18), CLASSES)
    weights = random_weights(module, 6, seed=1)
    weights[2] = math.nan
    inputs = random_inputs(module, (50, 1, 16, 18), seed=2).numpy()
    here = engine(device).tally(weights.to(device), inputs)
    there = engine(torch.device("cpu")).tally(weights, inputs)
    require(bool((here["counts"] == there["counts"]).all()), "other votes")
    np.testing.assert_allclose(here["score_sums"], there["score_sums"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(here["score_squares"], there["score_squares"], rtol=1e-4, atol=1e-4)
    require(bool((here["score_histograms"].sum(axis=2) == 6).all()), "histograms that do not count every model")


# --- the list ---------------------------------------------------------------------------------------------------------


# --- pretrained encoders --------------------------------------------------------------------------------------------


def _encoded_alike(made: Any, on_cpu: Any, x: Any, others: Any) -> None:
    """Rows do not depend on what is encoded beside them, or are refused; and they are those of the CPU to rounding."""
    try:
        rows = made.embeddings(x)
    except ConfigError as error:
        require("other bits" in str(error), str(error))
        made = replace(made, batch=1, made_with=None)
        rows = made.embeddings(x)
    again = made.embeddings([*others, *x[::-1]])[len(others) :][::-1]
    assert rows.tobytes() == again.tobytes()
    wanted = on_cpu.embeddings(x)
    error = np.linalg.norm(rows - wanted) / np.linalg.norm(wanted)
    assert error < 1e-2, error


def check_photographs_through_torchvision(device: torch.device) -> None:
    """The real library, with weights drawn at random: it cannot be installed everywhere."""
    from mithridate.features import encoder

    torchvision = import_module("torchvision")

    os.environ["MITHRIDATE_CACHE"] = "off"
    random = np.random.default_rng(0)
    x, others = (random.integers(0, 256, (count, 3, 40, 40), dtype=np.uint8) for count in (20, 300))
    with tempfile.TemporaryDirectory() as folder:
        for name in ("resnet18", "mobilenet_v3_small"):
            torch.manual_seed(0)
            path = f"{folder}/{name}.pth"
            torch.save(torchvision.models.get_model(name, weights=None).state_dict(), path)
            made, on_cpu = (encoder(f"torchvision:{name}", file=path, device=each) for each in (device.type, "cpu"))
            _encoded_alike(made, on_cpu, x, others)
            assert made.transform(x[:2]).shape == (2, 256)


def check_texts_through_transformers(device: torch.device) -> None:
    """A small network of random weights, in batches of one shape."""
    from mithridate.features import encoder

    transformers: Any = import_module("transformers")

    os.environ["MITHRIDATE_CACHE"] = "off"
    words = [f"w{number}" for number in range(500)]
    random = np.random.default_rng(0)
    texts, others = ([" ".join(random.choice(words, random.integers(1, 60))) for _ in range(n)] for n in (30, 200))
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/vocab.txt", "w", encoding="utf-8") as file:
            file.write("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
        torch.manual_seed(0)
        config = transformers.BertConfig(vocab_size=505, hidden_size=128, num_hidden_layers=4, num_attention_heads=4)
        transformers.BertModel(config).save_pretrained(folder)
        transformers.BertTokenizerFast(f"{folder}/vocab.txt").save_pretrained(folder)
        made, on_cpu = (encoder(f"transformers:{folder}", device=each) for each in (device.type, "cpu"))
        _encoded_alike(made, on_cpu, texts, others)


def checks(*, interpret: bool) -> dict[str, Check]:
    """All checks by name; those that the interpreter cannot do are left out for it."""
    found: dict[str, Check] = {
        name.removeprefix("check_").replace("_", "-"): value
        for name, value in globals().items()
        if name.startswith("check_")
    }
    if interpret:
        for name in GPU_ONLY:
            del found[name]
    # Every module in single precision; on a GPU those that use the kernels most in the other precision, too, since
    # each kernel is compiled anew for every shape and precision.
    # The gradients of the narrow ResNet-18 at random weights move by a fifth where operands are merely rounded to TF32
    # (in an exact computation, too): in that precision only its bounds can be checked.
    here = {"float32": INTERPRETED, "tf32": INTERPRETED_TF32}
    names = here if interpret else {"float32": tuple(modules()), "tf32": INTERPRETED, "bfloat16": HALVED}
    bounded = names if interpret else {**names, "float32": INTERPRETED, "tf32": (*INTERPRETED, RESNET)}
    for kind, assertion, selection in (
        ("zoo", assert_network_right, names),
        ("bound", assert_contributions_bounded, bounded),
        ("units", assert_units_right, {"float32": INTERPRETED_UNITS} if interpret else names),
    ):
        for precision, chosen in selection.items():
            for name in chosen:
                found[f"{kind}-{precision}-{name}"] = _bound(assertion, name, precision)
    return found


def _bound(assertion: Callable[[str, torch.device, str], None], name: str, precision: str) -> Check:
    return lambda device: assertion(name, device, precision)


RESNET = "model-resnet18-narrow"
GPU_ONLY = (
    "units-agree-with-the-cpu",
    "training-twice-is-equal-bit-for-bit", "groups-are-equal-to-rounding", "training-agrees-with-the-cpu",
    "widening-batches", "where-the-data-lies", "pieces-of-a-batch", "noise-of-training", "tally",
    "trainings-one-after-another",
    "photographs-through-torchvision", "texts-through-transformers",
)  # fmt: skip


def main() -> int:
    """Run what is asked for, and print a line for each."""
    parser = argparse.ArgumentParser(description="Checks of the kernels against slow twins.")
    parser.add_argument("names", nargs="*", help="checks to run, * for anything (default: all)")
    parser.add_argument("--interpret", action="store_true", help="in Triton's interpreter, on the CPU")
    arguments = parser.parse_args()
    if not arguments.interpret and not torch.cuda.is_available():
        print("There is no NVIDIA GPU here; --interpret runs what can be run without.")
        return 2
    device = torch.device("cpu" if arguments.interpret else "cuda")
    available = checks(interpret=arguments.interpret)
    failed = 0
    patterns = arguments.names or ["*"]
    for name in [each for each in available if any(fnmatch(each, pattern) for pattern in patterns)]:
        start = time.perf_counter()
        try:
            available[name](device)
            print(f"PASS {name} {time.perf_counter() - start:.2f}s", flush=True)
        except NotConvertible as error:
            failed += 1
            print(f"FAIL {name}: not convertible: {error}", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAIL {name}: {type(error).__name__}: {' '.join(str(error).split())[:600]}", flush=True)
            traceback.print_exc()
    print(f"{failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
