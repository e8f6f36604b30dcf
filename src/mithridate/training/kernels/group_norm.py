# The language inside kernels is not Python, and its types are not known to a type checker.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false
"""Triton kernels for GroupNorm of images with the channels last, with the addition and the ReLU that may follow it.

The library's GroupNorm takes several passes over memory, in another order of axes than its convolutions, and does not
give the gradients of single examples. Here one program does a block of channels of one example, in registers where it
fits there, else in the cache, so memory is read once and written once; the backward pass gives every example's own
gradients on the way.
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
def _finish(
    values, mean, scale, slope, shift, addend, out, place, inside, ADD: tl.constexpr, RELU: tl.constexpr
):  # fmt: skip
    """From values to what is written."""
    values = (values - mean[None, :]) * scale[None, :]
    values = values * slope[None, :] + shift[None, :]
    if ADD:
        values += tl.load(addend + place, mask=inside, other=0.0)
    if RELU:
        values = tl.maximum(values, 0.0)
    tl.store(out + place, values, mask=inside)


@triton.jit
def _norm_forward(
    images, addend, weight, bias, extents, out, means, scales, batch, weight_stride, bias_stride, epsilon,
    C: tl.constexpr, P: tl.constexpr, SIZE: tl.constexpr, ADD: tl.constexpr, RELU: tl.constexpr, BC: tl.constexpr,
    BP: tl.constexpr,
):  # fmt: skip
    """A block of channels of one example; beyond the extent the result is 0."""
    example = tl.program_id(0)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    model = example // batch
    first = example.to(tl.int64) * (P * C) + channel[None, :]
    if example % batch < tl.load(extents + model):
        slope = tl.load(weight + model.to(tl.int64) * weight_stride + channel)
        shift = tl.load(bias + model.to(tl.int64) * bias_stride + channel)
        if BP >= P:  # all in registers
            pixel = tl.arange(0, BP)
            inside = (pixel < P)[:, None]
            place = first + pixel[:, None] * C
            values = tl.load(images + place, mask=inside, other=0.0)
            mean = _group_mean(tl.sum(values, axis=0), P * SIZE, BC, SIZE)
            apart = tl.where(inside, values - mean[None, :], 0.0)
            scale = 1.0 / tl.sqrt(_group_mean(tl.sum(apart * apart, axis=0), P * SIZE, BC, SIZE) + epsilon)
            _finish(values, mean, scale, slope, shift, addend, out, place, inside, ADD, RELU)
        else:
            total = tl.zeros([BP, BC], dtype=tl.float32)
            for start in range(0, P, BP):
                pixel = start + tl.arange(0, BP)
                total += tl.load(images + first + pixel[:, None] * C, mask=(pixel < P)[:, None], other=0.0)
            mean = _group_mean(tl.sum(total, axis=0), P * SIZE, BC, SIZE)
            squares = tl.zeros([BP, BC], dtype=tl.float32)
            for start in range(0, P, BP):
                pixel = start + tl.arange(0, BP)
                inside = (pixel < P)[:, None]
                apart = tl.load(images + first + pixel[:, None] * C, mask=inside, other=0.0) - mean[None, :]
                squares += tl.where(inside, apart * apart, 0.0)
            scale = 1.0 / tl.sqrt(_group_mean(tl.sum(squares, axis=0), P * SIZE, BC, SIZE) + epsilon)
            for start in range(0, P, BP):
                pixel = start + tl.arange(0, BP)
                inside = (pixel < P)[:, None]
                place = first + pixel[:, None] * C
                values = tl.load(images + place, mask=inside, other=0.0)
                _finish(values, mean, scale, slope, shift, addend, out, place, inside, ADD, RELU)
        tl.store(means + example * C + channel, mean)
        tl.store(scales + example * C + channel, scale)
    else:
        tl.store(means + example * C + channel, tl.zeros([BC], dtype=tl.float32))
        tl.store(scales + example * C + channel, tl.zeros([BC], dtype=tl.float32))
        for start in range(0, P, BP):
            pixel = start + tl.arange(0, BP)
            nothing = tl.zeros([BP, BC], dtype=tl.float32)
            tl.store(out + first + pixel[:, None] * C, nothing, mask=(pixel < P)[:, None])


@triton.jit
def _look_back(
    images, gradients, results, passed, place, pixel, alive, mean, scale, slope, shift,
    P: tl.constexpr, ADD: tl.constexpr, RELU: tl.constexpr, PASS: tl.constexpr,
):  # fmt: skip
    """Normalised values, and the gradients before the ReLU, which are passed on to an addend as well."""
    inside = (pixel < P)[:, None] & alive
    normal = (tl.load(images + place, mask=inside, other=0.0) - mean[None, :]) * scale[None, :]
    seen = tl.load(gradients + place, mask=inside, other=0.0)
    if RELU:
        if ADD:
            seen = tl.where(tl.load(results + place, mask=inside, other=0.0) > 0.0, seen, 0.0)
            if PASS:
                tl.store(passed + place, seen, mask=(pixel < P)[:, None])
        else:
            seen = tl.where(normal * slope[None, :] + shift[None, :] > 0.0, seen, 0.0)
    return normal, seen


@triton.jit
def _finish_back(
    normal, seen, along, common, scale, slope, out, place, pixel, alive, P: tl.constexpr
):  # fmt: skip
    """The gradient with respect to the images."""
    result = scale[None, :] * (seen * slope[None, :] - common[None, :] - normal * along[None, :])
    inside = (pixel < P)[:, None]
    tl.store(out + place, tl.where(inside & alive, result, 0.0), mask=inside)


@triton.jit
def _norm_backward(
    images, gradients, results, weight, bias, extents, means, scales, out, passed, own, squares,
    batch, weight_stride, bias_stride,
    C: tl.constexpr, P: tl.constexpr, SIZE: tl.constexpr, ADD: tl.constexpr, RELU: tl.constexpr, BC: tl.constexpr,
    BP: tl.constexpr,
):  # fmt: skip
    """Gradients of one example with respect to a block of channels, and to its slopes and shifts."""
    example = tl.program_id(0)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    model = example // batch
    first = example.to(tl.int64) * (P * C) + channel[None, :]
    mean, scale = tl.load(means + example * C + channel), tl.load(scales + example * C + channel)
    slope = tl.load(weight + model.to(tl.int64) * weight_stride + channel)
    shift = tl.load(bias + model.to(tl.int64) * bias_stride + channel)
    alive = example % batch < tl.load(extents + model)
    if BP >= P:  # all in registers
        pixel = tl.arange(0, BP)
        place = first + pixel[:, None] * C
        normal, seen = _look_back(
            images, gradients, results, passed, place, pixel, alive, mean, scale, slope, shift, P, ADD, RELU, True
        )
        slope_gradient, shift_gradient = tl.sum(seen * normal, axis=0), tl.sum(seen, axis=0)
        along = _group_mean(slope * slope_gradient, P * SIZE, BC, SIZE)
        common = _group_mean(slope * shift_gradient, P * SIZE, BC, SIZE)
        _finish_back(normal, seen, along, common, scale, slope, out, place, pixel, alive, P)
    else:
        by_slope = tl.zeros([BP, BC], dtype=tl.float32)
        by_shift = tl.zeros([BP, BC], dtype=tl.float32)
        for start in range(0, P, BP):
            pixel = start + tl.arange(0, BP)
            place = first + pixel[:, None] * C
            normal, seen = _look_back(
                images, gradients, results, passed, place, pixel, alive, mean, scale, slope, shift, P, ADD, RELU, True
            )
            by_slope += seen * normal
            by_shift += seen
        slope_gradient, shift_gradient = tl.sum(by_slope, axis=0), tl.sum(by_shift, axis=0)
        along = _group_mean(slope * slope_gradient, P * SIZE, BC, SIZE)
        common = _group_mean(slope * shift_gradient, P * SIZE, BC, SIZE)
        for start in range(0, P, BP):
            pixel = start + tl.arange(0, BP)
            place = first + pixel[:, None] * C
            normal, seen = _look_back(
                images, gradients, results, passed, place, pixel, alive, mean, scale, slope, shift, P, ADD, RELU, False
            )
            _finish_back(normal, seen, along, common, scale, slope, out, place, pixel, alive, P)
    tl.store(own + example * (2 * C) + channel, slope_gradient)
    tl.store(own + example * (2 * C) + C + channel, shift_gradient)
    # What squares lose because they are too small, 2^-126 for each at most, is added back.
    square = tl.sum(slope_gradient * slope_gradient + shift_gradient * shift_gradient, axis=0)
    tl.store(squares + example * tl.num_programs(1) + tl.program_id(1), square + BC * 2.350988701644575e-38)


def supports(shape: tuple[int, ...], groups: int) -> bool:
    """Whether images of this shape, examples x channels x height x width, can be normalised here."""
    if len(shape) != 4 or shape[1] % groups or shape[1] % _BLOCK:
        return False
    size = shape[1] // groups
    return size & (size - 1) == 0 and size <= _BLOCK


def forward(
    images: Tensor, addend: Tensor | None, weight: Tensor, bias: Tensor, extents: Tensor, groups: int, epsilon: float,
    *, relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Normalised images (channels last), and for each example and channel the mean and the scale that were used.

    Args:
        images: [models * batch, C, H, W], in the memory format channels_last.
        addend: what is added to the normalised images, in their shape and format.
        weight: [models, C].
        bias: [models, C].
        extents: for each model, the position in the batch from which there is only padding.
        groups: number of groups of channels.
        epsilon: added to the variance.
        relu: whether the activation is applied as well, at the very end.
    """
    examples, channels = images.shape[:2]
    out = torch.empty_like(images)
    means, scales = (images.new_empty(examples, channels) for _ in range(2))
    constants = _constants(images, groups, "forward")
    _norm_forward[(examples, channels // constants["BC"])](
        images, addend, weight, bias, extents, out, means, scales, examples // len(extents), weight.stride(0),
        bias.stride(0), epsilon, **constants, ADD=addend is not None, RELU=relu,
    )  # fmt: skip
    return out, means, scales


def backward(
    images: Tensor, gradients: Tensor, results: Tensor | None, weight: Tensor, bias: Tensor, extents: Tensor,
    means: Tensor, scales: Tensor, groups: int, *, relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients with respect to images and addend, and of each example with respect to its weight and bias.

    Args:
        images: as for `forward`.
        gradients: with respect to what `forward` gave.
        results: what `forward` gave, where there was an addend and a ReLU after it; else None.
        weight: as for `forward`.
        bias: as for `forward`.
        extents: as for `forward`.
        means: what `forward` gave.
        scales: what `forward` gave.
        groups: as for `forward`.
        relu: as for `forward`.

    Returns:
        In the shape of the images twice; [models * batch, 2 C], the weight before the bias; their squared norms in
        pieces, [models * batch, pieces].
    """
    gradients = gradients.contiguous(memory_format=torch.channels_last)
    examples, channels = images.shape[:2]
    out = torch.empty_like(images)
    passed = gradients if results is None else torch.empty_like(images)
    constants = _constants(images, groups, "backward")
    blocks = channels // constants["BC"]
    own, squares = images.new_empty(examples, 2 * channels), images.new_empty(examples, blocks)
    _norm_backward[(examples, blocks)](
        images, gradients, results, weight, bias, extents, means, scales, out, passed, own, squares,
        examples // len(extents), weight.stride(0), bias.stride(0), **constants, ADD=results is not None, RELU=relu,
    )  # fmt: skip
    return out, passed, own, squares


# Numbers of a block that is read once and kept in registers: at most, and as measured to be fast on an H200.
_MOST, _FAST = {"forward": 2**15, "backward": 2**14}, {"forward": 2**15, "backward": 2**13}


def _constants(images: Tensor, groups: int, way: str) -> dict[str, Any]:
    """Sizes of tiles; any are right, if a program has whole groups."""
    _, channels, height, width = images.shape
    pixels, size = height * width, channels // groups
    tall = triton.next_power_of_2(pixels)
    block = max(size, 16, min(_BLOCK, _FAST[way] // tall))
    if block * tall <= _MOST[way]:
        warps = max(4, block * tall // (2048 if way == "forward" else 1024))
    else:
        block, tall, warps = (_BLOCK // 2, 256, 8) if size < _BLOCK else (_BLOCK, 64, 8)
    return {"C": channels, "P": pixels, "SIZE": size, "BC": block, "BP": tall, "num_warps": warps}


class GroupNormFunction(torch.autograd.Function):
    """The two as one differentiable step; every example's gradients of weight and bias are left in `kept`."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, addend: Tensor | None, weight: Tensor, bias: Tensor, extents: Tensor, groups: int,
        epsilon: float, relu: bool, kept: dict[Any, Any], key: Any,
    ) -> Tensor:  # fmt: skip
        """Normalise, add, rectify."""
        images = images.contiguous(memory_format=torch.channels_last)
        addend = None if addend is None else addend.contiguous(memory_format=torch.channels_last)
        out, means, scales = forward(images, addend, weight, bias, extents, groups, epsilon, relu=relu)
        results = None if addend is None or not relu else out
        ctx.save_for_backward(images, results, weight, bias, extents, means, scales)
        ctx.groups, ctx.relu, ctx.kept, ctx.key = groups, relu, kept, key
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients with respect to images and addend."""
        images, results, *rest = ctx.saved_tensors
        found, passed, *own = backward(images, grads[0], results, *rest, ctx.groups, relu=ctx.relu)
        ctx.kept[ctx.key] = own
        return found, passed if ctx.needs_input_grad[1] else None, *(None,) * 8
