# The language inside kernels is not Python, and its types are not known to a type checker.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false
"""Triton kernels for GroupNorm of images with the channels last, with the activation that may follow it.

The library's GroupNorm takes several passes over memory, in another order of axes than its convolutions, and does not
give the gradients of single examples. Here one program does a block of channels of one example, which stays in the
cache, so memory is read once and written once; the backward pass gives every example's own gradients on the way.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 64  # channels that programs share out among them


@triton.jit
def _group_mean(sums, COUNT: tl.constexpr, BC: tl.constexpr, SIZE: tl.constexpr):
    """For each channel, the sum over its group of SIZE channels, divided by COUNT."""
    means = tl.sum(tl.reshape(sums, [BC // SIZE, SIZE]), axis=1) / COUNT
    return tl.reshape(tl.broadcast_to(means[:, None], [BC // SIZE, SIZE]), [BC])


@triton.jit
def _norm_forward(
    images, weight, bias, extents, out, means, scales, batch, weight_stride, bias_stride, epsilon,
    C: tl.constexpr, P: tl.constexpr, SIZE: tl.constexpr, RELU: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """A block of channels of one example; beyond the extent the result is 0."""
    example = tl.program_id(0)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    model = example // batch
    source = images + example.to(tl.int64) * (P * C) + channel[None, :]
    target = out + example.to(tl.int64) * (P * C) + channel[None, :]
    if example % batch < tl.load(extents + model):
        total = tl.zeros([BP, BC], dtype=tl.float32)
        for start in range(0, P, BP):
            pixel = start + tl.arange(0, BP)
            total += tl.load(source + pixel[:, None] * C, mask=(pixel < P)[:, None], other=0.0)
        mean = _group_mean(tl.sum(total, axis=0), P * SIZE, BC, SIZE)
        squares = tl.zeros([BP, BC], dtype=tl.float32)
        for start in range(0, P, BP):
            pixel = start + tl.arange(0, BP)
            inside = (pixel < P)[:, None]
            apart = tl.load(source + pixel[:, None] * C, mask=inside, other=0.0) - mean[None, :]
            squares += tl.where(inside, apart * apart, 0.0)
        scale = 1.0 / tl.sqrt(_group_mean(tl.sum(squares, axis=0), P * SIZE, BC, SIZE) + epsilon)
        tl.store(means + example * C + channel, mean)
        tl.store(scales + example * C + channel, scale)
        slope = tl.load(weight + model.to(tl.int64) * weight_stride + channel)
        shift = tl.load(bias + model.to(tl.int64) * bias_stride + channel)
        for start in range(0, P, BP):
            pixel = start + tl.arange(0, BP)
            inside = (pixel < P)[:, None]
            values = (tl.load(source + pixel[:, None] * C, mask=inside, other=0.0) - mean[None, :]) * scale[None, :]
            values = values * slope[None, :] + shift[None, :]
            if RELU:
                values = tl.maximum(values, 0.0)
            tl.store(target + pixel[:, None] * C, values, mask=inside)
    else:
        tl.store(means + example * C + channel, tl.zeros([BC], dtype=tl.float32))
        tl.store(scales + example * C + channel, tl.zeros([BC], dtype=tl.float32))
        for start in range(0, P, BP):
            pixel = start + tl.arange(0, BP)
            tl.store(target + pixel[:, None] * C, tl.zeros([BP, BC], dtype=tl.float32), mask=(pixel < P)[:, None])


@triton.jit
def _norm_backward(
    images, gradients, weight, bias, extents, means, scales, out, out_weight, out_bias,
    batch, weight_stride, bias_stride,
    C: tl.constexpr, P: tl.constexpr, SIZE: tl.constexpr, RELU: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Gradients of one example with respect to a block of channels, and to its slopes and shifts."""
    example = tl.program_id(0)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    model = example // batch
    first = example.to(tl.int64) * (P * C)
    mean, scale = tl.load(means + example * C + channel), tl.load(scales + example * C + channel)
    slope = tl.load(weight + model.to(tl.int64) * weight_stride + channel)
    shift = tl.load(bias + model.to(tl.int64) * bias_stride + channel)
    by_slope = tl.zeros([BP, BC], dtype=tl.float32)
    by_shift = tl.zeros([BP, BC], dtype=tl.float32)
    alive = example % batch < tl.load(extents + model)
    for start in range(0, P, BP):
        pixel = start + tl.arange(0, BP)
        inside = (pixel < P)[:, None] & alive
        place = first + pixel[:, None] * C + channel[None, :]
        normal = (tl.load(images + place, mask=inside, other=0.0) - mean[None, :]) * scale[None, :]
        seen = tl.load(gradients + place, mask=inside, other=0.0)
        if RELU:
            seen = tl.where(normal * slope[None, :] + shift[None, :] > 0.0, seen, 0.0)
        by_slope += seen * normal
        by_shift += seen
    slope_gradient, shift_gradient = tl.sum(by_slope, axis=0), tl.sum(by_shift, axis=0)
    tl.store(out_weight + example * C + channel, slope_gradient)
    tl.store(out_bias + example * C + channel, shift_gradient)
    along = _group_mean(slope * slope_gradient, P * SIZE, BC, SIZE)
    common = _group_mean(slope * shift_gradient, P * SIZE, BC, SIZE)
    for start in range(0, P, BP):
        pixel = start + tl.arange(0, BP)
        inside = (pixel < P)[:, None] & alive
        place = first + pixel[:, None] * C + channel[None, :]
        normal = (tl.load(images + place, mask=inside, other=0.0) - mean[None, :]) * scale[None, :]
        seen = tl.load(gradients + place, mask=inside, other=0.0)
        if RELU:
            seen = tl.where(normal * slope[None, :] + shift[None, :] > 0.0, seen, 0.0)
        result = scale[None, :] * (seen * slope[None, :] - common[None, :] - normal * along[None, :])
        tl.store(out + place, tl.where(inside, result, 0.0), mask=(pixel < P)[:, None])


def supports(shape: tuple[int, ...], groups: int) -> bool:
    """Whether images of this shape, examples x channels x height x width, can be normalised here."""
    if len(shape) != 4 or shape[1] % groups or shape[1] % _BLOCK:
        return False
    size = shape[1] // groups
    return size & (size - 1) == 0 and size <= _BLOCK


def forward(
    images: Tensor, weight: Tensor, bias: Tensor, extents: Tensor, groups: int, epsilon: float, *, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised images (channels last), and for each example and channel the mean and the scale that were used.

    Args:
        images: [models * batch, C, H, W], in the memory format channels_last.
        weight: [models, C].
        bias: [models, C].
        extents: for each model, the position in the batch from which there is only padding.
        groups: number of groups of channels.
        epsilon: added to the variance.
        relu: whether the activation is applied as well.
    """
    examples, channels = images.shape[:2]
    out = torch.empty_like(images)
    means, scales = (images.new_empty(examples, channels) for _ in range(2))
    constants = _constants(images, groups)
    _norm_forward[(examples, channels // constants["BC"])](
        images, weight, bias, extents, out, means, scales, examples // len(extents), weight.stride(0), bias.stride(0),
        epsilon, **constants, RELU=relu,
    )  # fmt: skip
    return out, means, scales


def backward(
    images: Tensor, gradients: Tensor, weight: Tensor, bias: Tensor, extents: Tensor, means: Tensor, scales: Tensor,
    groups: int, *, relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients with respect to the images, and of each example with respect to its weight and bias."""
    gradients = gradients.contiguous(memory_format=torch.channels_last)
    examples, channels = images.shape[:2]
    out = torch.empty_like(images)
    by_weight, by_bias = (images.new_empty(examples, channels) for _ in range(2))
    constants = _constants(images, groups)
    _norm_backward[(examples, channels // constants["BC"])](
        images, gradients, weight, bias, extents, means, scales, out, by_weight, by_bias, examples // len(extents),
        weight.stride(0), bias.stride(0), **constants, RELU=relu,
    )  # fmt: skip
    return out, by_weight, by_bias


def _constants(images: Tensor, groups: int) -> dict[str, Any]:
    _, channels, height, width = images.shape
    pixels, size = height * width, channels // groups
    # As measured to be fast on an H200. Any are right, if a program has whole groups.
    block, tall = (_BLOCK // 2, 256) if pixels >= 1024 and size < _BLOCK else (_BLOCK, 64)
    tall = min(tall, triton.next_power_of_2(pixels))
    return {"C": channels, "P": pixels, "SIZE": size, "BC": block, "BP": tall, "num_warps": 8}


class GroupNorm(torch.autograd.Function):
    """The two as one differentiable step; the gradients of weight and bias are left in `kept`, under `key`."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, extents: Tensor, groups: int, epsilon: float,
        relu: bool, kept: dict[Any, Any], key: Any,
    ) -> Tensor:  # fmt: skip
        """Normalise."""
        images = images.contiguous(memory_format=torch.channels_last)
        out, means, scales = forward(images, weight, bias, extents, groups, epsilon, relu=relu)
        ctx.save_for_backward(images, weight, bias, extents, means, scales)
        ctx.groups, ctx.relu, ctx.kept, ctx.key = groups, relu, kept, key
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient with respect to the images."""
        images, weight, bias, extents, means, scales = ctx.saved_tensors
        found, *own = backward(images, grads[0], weight, bias, extents, means, scales, ctx.groups, relu=ctx.relu)
        ctx.kept[ctx.key] = own
        return found, *(None,) * 8
