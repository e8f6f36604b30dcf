# The language inside kernels is not Python, and its types are not known to a type checker.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false
"""Triton kernels for NVIDIA GPUs: convolutions with a model axis that never write patches, and noise from counters.

Small networks keep a GPU busy only if hundreds of models share every launch, and convolutions with a handful of
channels leave libraries made for large ones idle. Here one program computes a tile of a convolution for one model,
reading each patch straight from the image (implicit matrix product); it skips the padding at the end of a batch. All
kernels add in a fixed order, without atomics, so that a run can be repeated bit for bit.

Everything here has a slow twin in plain torch, in `layers` and `engine`, and is tested against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.grad import conv2d_input

from mithridate.training.config import Learning

# Whoever is handed this module finds the others in it.
from mithridate.training.kernels import group_norm as group_norm
from mithridate.training.kernels import leading_convolutions as leading_convolutions
from mithridate.training.kernels import library_convolutions as library_convolutions


@dataclass(frozen=True)
class Geometry:
    """Shape of a convolution: of one image, of the kernel, and how the one moves over the other."""

    channels: int
    height: int
    width: int
    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def out_size(self) -> tuple[int, int]:
        """Height and width of the result."""
        sizes = zip((self.height, self.width), self.kernel, self.stride, self.padding, self.dilation, strict=True)
        height, width = (
            (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            for size, kernel, stride, padding, dilation in sizes
        )
        return height, width

    @property
    def entries(self) -> int:
        """Number of weights of one output channel."""
        return self.channels * self.kernel[0] * self.kernel[1]

    def constants(self) -> dict[str, int]:
        """The shape as compile-time constants of the kernels."""
        out_height, out_width = self.out_size
        return {
            "C": self.channels, "H": self.height, "W": self.width, "O": self.outputs, "OH": out_height, "OW": out_width,
            "KH": self.kernel[0], "KW": self.kernel[1], "SH": self.stride[0], "SW": self.stride[1],
            "PH": self.padding[0], "PW": self.padding[1], "DH": self.dilation[0], "DW": self.dilation[1],
        }  # fmt: skip


# --- kernels --------------------------------------------------------------------------------------------------------
# Names in capitals are compile-time constants. Rows of `weights` are models, `weight_stride` apart. `taps` is a table
# of the kernel's entries (see `_taps`): an address is the sum of what belongs to a position and what belongs to a tap.
# It is read from memory, and not computed, because Triton 3.6 draws wrong conclusions about the alignment of such sums.


@triton.jit
def _position(within, OW: tl.constexpr, W: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr):
    """Top left corner of the patch at an output position: row, column, and place in the image."""
    row, column = (within // OW) * SH, (within % OW) * SW
    return row, column, row * W + column


@triton.jit
def _patches(
    image, taps, k, row, column, alive,
    H: tl.constexpr, W: tl.constexpr, K: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Patch entries k (first axis) at positions (second axis); `image` points to the corner of each patch."""
    inside = k < K
    offset = tl.load(taps + k, mask=inside, other=0)
    valid = inside[:, None] & alive[None, :]
    if PADDED:
        y = row[None, :] + tl.load(taps + K + k, mask=inside, other=0)[:, None]
        x = column[None, :] + tl.load(taps + 2 * K + k, mask=inside, other=0)[:, None]
        valid = valid & (y >= 0) & (y < H) & (x >= 0) & (x < W)
    return tl.load(image[None, :] + offset[:, None], mask=valid, other=0.0)


@triton.jit
def _activate(values, ACTIVATION: tl.constexpr):
    if ACTIVATION == "tanh":
        # 1 - 2 / (1 + e^(2 v)): exact limits at both ends
        return 1.0 - 2.0 / (1.0 + tl.exp(2.0 * values))
    else:
        return tl.maximum(values, 0.0)


@triton.jit
def _slope(values, ACTIVATION: tl.constexpr):
    if ACTIVATION == "tanh":
        activated = _activate(values, ACTIVATION)
        return 1.0 - activated * activated
    else:
        return tl.where(values > 0.0, 1.0, 0.0)


@triton.jit
def _conv_forward(
    images, weights, biases, taps, extents, out, batch, weight_stride, bias_stride,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, HAS_BIAS: tl.constexpr,
    BO: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of outputs of one model: BO channels at BP (example, position) pairs."""
    tile, o_tile, model = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    positions = tile * BP + tl.arange(0, BP)
    example, within = positions // (OH * OW), positions % (OH * OW)
    row, column, corner = _position(within, OW, W, SH, SW)
    output = o_tile * BO + tl.arange(0, BO)
    extent = tl.load(extents + model)
    alive = example < extent
    first = model.to(tl.int64) * batch
    image = images + (first + example) * (C * H * W) + corner
    result = tl.zeros([BO, BP], dtype=tl.float32)
    K: tl.constexpr = C * KH * KW
    if tile * BP < extent * (OH * OW):
        weight = weights + model.to(tl.int64) * weight_stride + output[:, None] * K
        for start in range(0, K, BK):
            k = start + tl.arange(0, BK)
            patch = _patches(image, taps, k, row, column, alive, H, W, K, PH + PW > 0)
            tap = tl.load(weight + k[None, :], mask=(k < K)[None, :] & (output < O)[:, None], other=0.0)
            result = tl.dot(tap, patch, result, input_precision=PRECISION)
        if HAS_BIAS:
            bias = tl.load(biases + model.to(tl.int64) * bias_stride + output, mask=output < O, other=0.0)
            result = tl.where(alive[None, :], result + bias[:, None], 0.0)
    target = out + ((first + example) * (O * OH * OW) + within)[None, :] + output[:, None] * (OH * OW)
    tl.store(target, result, mask=(output < O)[:, None] & (example < batch)[None, :])


@triton.jit
def _conv_example_gradient(
    images, gradients, taps, extents, out, out_bias, squares, batch,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, HAS_BIAS: tl.constexpr,
    BO: tl.constexpr, BK: tl.constexpr, BP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Weight gradient of one example: BO output channels by BK kernel entries, summed over all positions."""
    example, o_tile, k_tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    output = o_tile * BO + tl.arange(0, BO)
    k = k_tile * BK + tl.arange(0, BK)
    K: tl.constexpr = C * KH * KW
    gradient = gradients + example.to(tl.int64) * (O * OH * OW) + output[:, None] * (OH * OW)
    result = tl.zeros([BO, BK], dtype=tl.float32)
    # Reduced after the loop: with a reduction inside, Triton 3.6 fails to compile some tiles.
    total_seen = tl.zeros([BO, BP], dtype=tl.float32)
    if example % batch < tl.load(extents + example // batch):
        for start in range(0, OH * OW, BP):
            position = start + tl.arange(0, BP)
            alive = position < OH * OW
            row, column, corner = _position(position, OW, W, SH, SW)
            image = images + example.to(tl.int64) * (C * H * W) + corner
            patch = _patches(image, taps, k, row, column, alive, H, W, K, PH + PW > 0)
            mask = (output < O)[:, None] & alive[None, :]
            seen = tl.load(gradient + position[None, :], mask=mask, other=0.0)
            result = tl.dot(seen, tl.trans(patch), result, input_precision=PRECISION)
            if HAS_BIAS:
                total_seen += seen
        target = out + example.to(tl.int64) * (O * K) + output[:, None] * K + k[None, :]
        tl.store(target, result, mask=(output < O)[:, None] & (k < K)[None, :])
        if HAS_BIAS and k_tile == 0:
            tl.store(out_bias + example.to(tl.int64) * O + output, tl.sum(total_seen, axis=1), mask=output < O)
    total = tl.sum(tl.sum(result * result, axis=1), axis=0)
    if HAS_BIAS and k_tile == 0:
        bias = tl.sum(total_seen, axis=1)
        total += tl.sum(bias * bias, axis=0)
    # Squares below 2^-126 may be lost; that much for each is added back, at least.
    total += BO * (BK + 1) * 1.1754943508222875e-38
    parts = tl.num_programs(1) * tl.num_programs(2)
    tl.store(squares + example * parts + o_tile * tl.num_programs(2) + k_tile, total)


@triton.jit
def _row_squares(rows, out, count, ENTRIES: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr):
    """Sum of squares of each row, in double precision."""
    row = tl.program_id(0) * BR + tl.arange(0, BR)
    source = rows + row.to(tl.int64)[:, None] * ENTRIES
    result = tl.zeros([BR, BN], dtype=tl.float64)
    for start in range(0, ENTRIES, BN):
        entry = start + tl.arange(0, BN)
        mask = (row < count)[:, None] & (entry < ENTRIES)[None, :]
        values = tl.load(source + entry[None, :], mask=mask, other=0.0).to(tl.float64)
        result += values * values
    tl.store(out + row, tl.sum(result, axis=1), mask=row < count)


@triton.jit
def _weighted_sum(
    rows, factors, extents, out, entries, out_stride, BATCH: tl.constexpr, BN: tl.constexpr, BB: tl.constexpr,
):  # fmt: skip
    """Sum over the batch of factor times row, for BN entries of one model; rows of factor 0 are not even read.

    In the precision of `out`, which `clipping` chooses.
    """
    tile, model = tl.program_id(0), tl.program_id(1)
    entry = tile * BN + tl.arange(0, BN)
    extent = tl.load(extents + model)
    source = rows + model.to(tl.int64) * BATCH * entries
    # Reduced after the loop: a reduction inside makes all threads wait for each other every time.
    result = tl.zeros([BB, BN], dtype=out.dtype.element_ty)
    for start in range(0, BATCH, BB):
        example = start + tl.arange(0, BB)
        factor = tl.load(factors + model * BATCH + example, mask=example < extent, other=0.0)
        mask = (factor != 0.0)[:, None] & (entry < entries)[None, :]
        values = tl.load(source + example.to(tl.int64)[:, None] * entries + entry[None, :], mask=mask, other=0.0)
        result += factor.to(out.dtype.element_ty)[:, None] * values.to(out.dtype.element_ty)
    tl.store(out + model.to(tl.int64) * out_stride + entry, tl.sum(result, axis=0), mask=entry < entries)


@triton.jit
def _outer_sum(
    left, right, extents, out, outputs, features, out_stride,
    BATCH: tl.constexpr, BO: tl.constexpr, BF: tl.constexpr, UNROLLED: tl.constexpr,
):  # fmt: skip
    """Sum over the batch of (left row) x (right row), for BO by BF entries of one model, in double precision.

    Matrix units would add up several examples in single precision; products of two floats are exact in double.
    """
    f_tile, o_tile, model = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    output, feature = o_tile * BO + tl.arange(0, BO), f_tile * BF + tl.arange(0, BF)
    extent = tl.load(extents + model)
    first = model.to(tl.int64) * BATCH
    result = tl.zeros([BO, BF], dtype=tl.float64)
    for start in range(0, BATCH, UNROLLED):
        if start < extent:
            for step in tl.static_range(UNROLLED):
                row = first + start + step
                inside = start + step < extent
                one = tl.load(left + row * outputs + output, mask=(output < outputs) & inside, other=0.0)
                two = tl.load(right + row * features + feature, mask=(feature < features) & inside, other=0.0)
                result += one.to(tl.float64)[:, None] * two.to(tl.float64)[None, :]
    target = out + model.to(tl.int64) * out_stride + output[:, None] * features + feature[None, :]
    tl.store(target, result, mask=(output < outputs)[:, None] & (feature < features)[None, :])


@triton.jit
def _conv_weighted_sum(
    images, gradients, factors, taps, extents, out, out_stride,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, BATCH: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr, BP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum over the batch of factor times weight gradient: BO output channels by BK kernel entries of one model.

    The gradient of each example is formed by itself, and then added in the precision of `out`. What belongs to an
    example whose factor is 0 is not read.
    """
    k_tile, o_tile, model = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    output, k = o_tile * BO + tl.arange(0, BO), k_tile * BK + tl.arange(0, BK)
    K: tl.constexpr = C * KH * KW
    total = tl.zeros([BO, BK], dtype=out.dtype.element_ty)
    extent = tl.load(extents + model)
    for index in range(0, BATCH):
        example = model.to(tl.int64) * BATCH + index
        factor = tl.load(factors + example, mask=index < extent, other=0.0)
        positions = tl.where(factor != 0.0, OH * OW, 0)
        result = tl.zeros([BO, BK], dtype=tl.float32)
        for start in range(0, OH * OW, BP):
            position = start + tl.arange(0, BP)
            alive = position < positions
            row, column, corner = _position(position, OW, W, SH, SW)
            image = images + example * (C * H * W) + corner
            patch = _patches(image, taps, k, row, column, alive, H, W, K, PH + PW > 0)
            source = gradients + example * (O * OH * OW) + output[:, None] * (OH * OW) + position[None, :]
            seen = tl.load(source, mask=(output < O)[:, None] & alive[None, :], other=0.0)
            result = tl.dot(seen, tl.trans(patch), result, input_precision=PRECISION)
        total += factor.to(out.dtype.element_ty) * result.to(out.dtype.element_ty)
    target = out + model.to(tl.int64) * out_stride + output[:, None] * K + k[None, :]
    tl.store(target, total, mask=(output < O)[:, None] & (k < K)[None, :])


@triton.jit
def _pool_forward(
    values, extents, out, batch, total, CHW: tl.constexpr, W: tl.constexpr, OW: tl.constexpr, OHW: tl.constexpr,
    HW: tl.constexpr, COHW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    ACTIVATION: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Activation, then the mean over windows that do not overlap."""
    at = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    example = at // COHW
    rest = at % COHW
    channel, within = rest // OHW, rest % OHW
    row, column = within // OW, within % OW
    extent = tl.load(extents + example // batch, mask=at < total, other=0)
    alive = (at < total) & (example % batch < extent)
    source = values + example * CHW + channel * HW + row * KH * W + column * KW
    result = tl.zeros([BN], dtype=tl.float32)
    for y in tl.static_range(KH):
        for x in tl.static_range(KW):
            result += _activate(tl.load(source + y * W + x, mask=alive, other=0.0), ACTIVATION)
    tl.store(out + at, tl.where(alive, result * (1.0 / (KH * KW)), 0.0), mask=at < total)


@triton.jit
def _pool_backward(
    values, gradients, extents, out, batch, total, CHW: tl.constexpr, W: tl.constexpr, OW: tl.constexpr,
    OHW: tl.constexpr, HW: tl.constexpr, COHW: tl.constexpr, OH: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    ACTIVATION: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Gradient with respect to the values before the activation."""
    at = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    example = at // CHW
    rest = at % CHW
    channel, within = rest // HW, rest % HW
    row, column = (within // W) // KH, (within % W) // KW
    extent = tl.load(extents + example // batch, mask=at < total, other=0)
    alive = (at < total) & (example % batch < extent)
    # Rows and columns beyond the last whole window are not pooled.
    pooled = alive & (row < OH) & (column < OW)
    gradient = tl.load(gradients + example * COHW + channel * OHW + row * OW + column, mask=pooled, other=0.0)
    value = tl.load(values + at, mask=alive, other=0.0)
    tl.store(out + at, gradient * _slope(value, ACTIVATION) * (1.0 / (KH * KW)), mask=at < total)


@triton.jit
def _normal_pair(key, counter, step, tweak):
    """Two standard normals from a counter (Philox 4x32-10, Box-Muller), with tails to nine standard deviations.

    The radius takes 64 bits: with 32 it would end at 6.7 standard deviations, which a run of a billion draws notices.
    """
    zero = counter * 0
    one, two, three, _ = tl.philox(key, counter, zero + step, zero + tweak, zero)
    uniform = one.to(tl.uint32, bitcast=True).to(tl.float32) * 2.3283064365386963e-10
    uniform += (two.to(tl.uint32, bitcast=True).to(tl.float32) + 0.5) * 5.421010862427522e-20
    radius = tl.sqrt(-2.0 * tl.log(tl.minimum(uniform, 1.0)))
    angle = three.to(tl.uint32, bitcast=True).to(tl.float32) * 1.4629180792671596e-09
    return radius * tl.cos(angle), radius * tl.sin(angle)


@triton.jit
def _noisy_update(
    weights, sums, first, second, total, keys, tweaks, rates, counter, size,
    noise, divisor, decay, momentum, beta_one, beta_two,
    ADAM: tl.constexpr, MOMENTUM: tl.constexpr, AVERAGE: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """One step of the optimiser for 2 BN parameters of one model: noise, division by the constant, update."""
    tile, model = tl.program_id(0), tl.program_id(1)
    step = tl.load(counter)
    pair = tile * BN + tl.arange(0, BN)
    even, odd = _normal_pair(tl.load(keys + model), pair, step, tl.load(tweaks + model))
    rate = tl.load(rates + step)
    for half in tl.static_range(2):
        at = pair * 2 + half
        inside = at < size
        place = model.to(tl.int64) * size + at
        normal = even if half == 0 else odd
        weight = tl.load(weights + place, mask=inside, other=0.0)
        # The sum may be in double precision; it is rounded once it is noisy, and not before.
        noisy = (tl.load(sums + place, mask=inside, other=0.0) + noise * normal).to(tl.float32)
        gradient = noisy / divisor + decay * weight
        if ADAM:
            one = beta_one * tl.load(first + place, mask=inside, other=0.0) + (1.0 - beta_one) * gradient
            two = beta_two * tl.load(second + place, mask=inside, other=0.0) + (1.0 - beta_two) * gradient * gradient
            tl.store(first + place, one, mask=inside)
            tl.store(second + place, two, mask=inside)
            count = (step + 1).to(tl.float32)
            scale_one = 1.0 - tl.exp(count * tl.log(beta_one))
            scale_two = 1.0 - tl.exp(count * tl.log(beta_two))
            weight -= rate * (one / scale_one) / (tl.sqrt(two / scale_two) + 1e-8)
        elif MOMENTUM:
            velocity = momentum * tl.load(first + place, mask=inside, other=0.0) + gradient
            tl.store(first + place, velocity, mask=inside)
            weight -= rate * velocity
        else:
            weight -= rate * gradient
        tl.store(weights + place, weight, mask=inside)
        if AVERAGE:
            mean = tl.load(total + place, mask=inside, other=0.0)
            tl.store(total + place, mean + weight, mask=inside)


# --- calls ----------------------------------------------------------------------------------------------------------


def _tile(size: int, largest: int) -> int:
    """A power of two that is at least 16 and covers `size` as far as `largest` allows."""
    return max(16, min(largest, triton.next_power_of_2(size)))


def convolve(
    images: Tensor, weights: Tensor, biases: Tensor | None, extents: Tensor, geometry: Geometry, precision: str
) -> Tensor:
    """Convolution of [models * batch, C, H, W] with weights [models, O, C, KH, KW]; zero beyond each extent."""
    return _Convolution.apply(images, weights, biases, extents, geometry, precision)  # type: ignore[return-value]


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weights: Tensor, biases: Tensor | None, extents: Tensor, geometry: Geometry,
        precision: str,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(weights, extents)
        ctx.geometry, ctx.precision = geometry, precision
        return conv_forward(images, weights, biases, extents, geometry, precision)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weights, extents = ctx.saved_tensors
        gradient = conv_input_gradient(grads[0], weights, extents, ctx.geometry, ctx.precision)
        return gradient, None, None, None, None, None


def conv_forward(
    images: Tensor, weights: Tensor, biases: Tensor | None, extents: Tensor, geometry: Geometry, precision: str
) -> Tensor:
    """See `convolve`."""
    images = images.contiguous()
    models = weights.shape[0]
    batch = images.shape[0] // models
    height, width = geometry.out_size
    out = images.new_empty(images.shape[0], geometry.outputs, height, width)
    tiles = _forward_tiles(geometry.outputs, geometry.entries)
    grid = (triton.cdiv(batch * height * width, tiles["BP"]), triton.cdiv(geometry.outputs, tiles["BO"]), models)
    _conv_forward[grid](
        images, weights, biases, _taps(geometry, images.device), extents, out, batch,
        weights.stride(0), 0 if biases is None else biases.stride(0),
        **geometry.constants(), HAS_BIAS=biases is not None, **tiles, PRECISION=precision,
    )  # fmt: skip
    return out


def conv_input_gradient(
    gradients: Tensor, weights: Tensor, extents: Tensor, geometry: Geometry, precision: str
) -> Tensor:
    """Gradient of a convolution with respect to its images.

    With a stride of one it is a convolution itself, of the gradients with the kernel turned around; other strides are
    left to the library, one model after another.
    """
    margins = zip(geometry.kernel, geometry.dilation, geometry.padding, strict=True)
    rows, columns = (dilation * (kernel - 1) - padding for kernel, dilation, padding in margins)
    if geometry.stride != (1, 1) or rows < 0 or columns < 0:
        return _library_input_gradient(gradients, weights, extents, geometry)
    turned = weights.flip(3, 4).transpose(1, 2).contiguous()
    height, width = geometry.out_size
    back = Geometry(
        geometry.outputs, height, width, geometry.channels, geometry.kernel, (1, 1), (rows, columns), geometry.dilation
    )
    return conv_forward(gradients, turned, None, extents, back, precision)


def _library_input_gradient(gradients: Tensor, weights: Tensor, extents: Tensor, geometry: Geometry) -> Tensor:
    positions = torch.arange(len(gradients) // len(weights), device=gradients.device)
    alive = (positions < extents.unsqueeze(1)).view(-1, 1, 1, 1)
    parts = torch.where(alive, gradients, 0.0).chunk(len(weights))
    shape = (len(parts[0]), geometry.channels, geometry.height, geometry.width)
    moves = (geometry.stride, geometry.padding, geometry.dilation)
    return torch.cat([conv2d_input(shape, weight, part, *moves) for weight, part in zip(weights, parts, strict=True)])


def conv_example_gradients(
    images: Tensor, gradients: Tensor, extents: Tensor, geometry: Geometry, precision: str, *, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of each example with respect to weights and biases, and the squared norms of both together.

    Returns:
        [models, batch, O * C * KH * KW], [models, batch, O] and [models, batch]. Beyond the extents gradients are not
        written, and norms are next to 0; without a bias its gradient is not written. Norms include what squares may
        lose because they are too small.
    """
    images, gradients = images.contiguous(), gradients.contiguous()
    models, examples = extents.shape[0], images.shape[0]
    out = images.new_empty(models, examples // models, geometry.outputs * geometry.entries)
    out_bias = images.new_empty(models, examples // models, geometry.outputs)
    height, width = geometry.out_size
    tiles = _example_tiles(geometry.outputs, geometry.entries, height * width)
    grid = (examples, triton.cdiv(geometry.outputs, tiles["BO"]), triton.cdiv(geometry.entries, tiles["BK"]))
    squares = images.new_empty(models, examples // models, grid[1] * grid[2])
    _conv_example_gradient[grid](
        images, gradients, _taps(geometry, images.device), extents, out, out_bias, squares, examples // models,
        **geometry.constants(), HAS_BIAS=has_bias, **tiles, PRECISION=precision,
    )  # fmt: skip
    return out, out_bias, squares.sum(dim=2, dtype=torch.float64)


def squared_norms(rows: Tensor) -> Tensor:
    """Squared norms over the last of three axes, models x batch, in double precision."""
    rows = rows.contiguous()
    models, batch, entries = rows.shape
    out = torch.empty(models, batch, dtype=torch.float64, device=rows.device)
    wide = _tile(entries, 256)
    tall = max(1, 2048 // wide)
    _row_squares[(triton.cdiv(models * batch, tall),)](rows, out, models * batch, ENTRIES=entries, BR=tall, BN=wide)
    return out


@cache
def _taps(geometry: Geometry, device: torch.device) -> Tensor:
    """For each entry (channel, dy, dx) of the kernel: its place in the image relative to the corner, and dy, dx."""
    sizes = (geometry.channels, *geometry.kernel)
    channel, row, column = (axis.flatten() for axis in torch.meshgrid(*map(torch.arange, sizes), indexing="ij"))
    row = row * geometry.dilation[0] - geometry.padding[0]
    column = column * geometry.dilation[1] - geometry.padding[1]
    place = channel * geometry.height * geometry.width + row * geometry.width + column
    return torch.stack([place, row, column]).int().to(device)


# Sizes of tiles, as measured to be fast on an H200. Any are right.

_SUM_TILES = ((2**13, (16, 256, 8)), (2**19, (64, 32, 4)))


def _forward_tiles(outputs: int, entries: int) -> dict[str, int]:
    block = _tile(outputs, 64)
    return {"BO": block, "BP": 128 if block <= 32 else 64, "BK": _tile(entries, 32), "num_warps": 4}


def _example_tiles(outputs: int, entries: int, positions: int) -> dict[str, int]:
    block = _tile(outputs, 128)
    if block <= 32:
        return {"BO": block, "BK": _tile(entries, 64), "BP": _tile(positions, 64), "num_warps": 2}
    return {"BO": block, "BK": _tile(entries, 128), "BP": _tile(positions, 32), "num_warps": block // 16}


def _sum_tiles(entries: int) -> tuple[int, int, int]:
    """Entries and examples that one program takes at a time, and its warps."""
    # Few programs must each have much to wait for at a time, many need not.
    for most, tiles in _SUM_TILES:
        if entries < most:
            return tiles
    return 128, 16, 4


def weighted_sum(rows: Tensor, factors: Tensor, extents: Tensor, out: Tensor) -> None:
    """Writes sum_b factors[m, b] * rows[m, b] to `out` [models, entries], whose rows may lie apart."""
    models, batch, entries = rows.shape
    wide, tall, warps = _sum_tiles(models * entries)
    grid = (triton.cdiv(entries, wide), models)
    _weighted_sum[grid](
        rows, factors, extents, out, entries, out.stride(0), BATCH=batch, BN=wide, BB=tall, num_warps=warps
    )


def outer_sum(left: Tensor, right: Tensor, extents: Tensor, out: Tensor) -> None:
    """Writes sum_b left[m, b] x right[m, b] to `out` [models, outputs * features], float64; its rows may lie apart."""
    models, batch, outputs = left.shape
    features = right.shape[2]
    block, wide = min(16, triton.next_power_of_2(outputs)), min(64, triton.next_power_of_2(features))
    grid = (triton.cdiv(features, wide), triton.cdiv(outputs, block), models)
    _outer_sum[grid](
        left.contiguous(), right, extents, out, outputs, features, out.stride(0),
        BATCH=batch, BO=block, BF=wide, UNROLLED=8, num_warps=1 if block * wide <= 512 else 2,
    )  # fmt: skip


def conv_weighted_sum(
    images: Tensor, gradients: Tensor, factors: Tensor, extents: Tensor, geometry: Geometry, precision: str, out: Tensor
) -> None:
    """Writes the sum over the batch of factor times weight gradient of a convolution to `out`, [models, entries].

    Args:
        images: [models * batch, C, H, W], contiguous.
        gradients: with respect to the results, [models * batch, O, height, width], contiguous.
        factors: [models, batch].
        extents: for each model, the position in the batch from which there is only padding.
        geometry: shape of the convolution.
        precision: `ieee` or `tf32`, for operands of the gradient of one example.
        out: float32 or float64; its rows may lie apart.
    """
    height, width = geometry.out_size
    tiles = {"BO": _tile(geometry.outputs, 64), "BK": _tile(geometry.entries, 128), "BP": _tile(height * width, 64)}
    grid = (triton.cdiv(geometry.entries, tiles["BK"]), triton.cdiv(geometry.outputs, tiles["BO"]), len(extents))
    _conv_weighted_sum[grid](
        images, gradients, factors.contiguous(), _taps(geometry, images.device), extents, out, out.stride(0),
        **geometry.constants(), BATCH=factors.shape[1], **tiles, PRECISION=precision, num_warps=8,
    )  # fmt: skip


def activate_and_pool(values: Tensor, extents: Tensor, window: tuple[int, int], activation: str) -> Tensor:
    """Mean over windows of `tanh` or `relu` of [models * batch, C, H, W]."""
    return _Pooling.apply(values, extents, window, activation)  # type: ignore[return-value]


class _Pooling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, extents: Tensor, window: tuple[int, int], activation: str) -> Tensor:
        values = values.contiguous()
        examples, channels, height, width = values.shape
        out = values.new_empty(examples, channels, height // window[0], width // window[1])
        ctx.save_for_backward(values, extents)
        ctx.window, ctx.activation, ctx.out_shape = window, activation, out.shape
        _pool_forward[(triton.cdiv(out.numel(), 512),)](
            values, extents, out, examples // extents.shape[0], out.numel(),
            **_pool_constants(values, out, window), ACTIVATION=activation, BN=512,
        )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        values, extents = ctx.saved_tensors
        gradients = grads[0].contiguous()
        out = torch.empty_like(values)
        _pool_backward[(triton.cdiv(out.numel(), 1024),)](
            values, gradients, extents, out, values.shape[0] // extents.shape[0], out.numel(),
            **_pool_constants(values, gradients, ctx.window), OH=gradients.shape[2], ACTIVATION=ctx.activation, BN=1024,
        )  # fmt: skip
        return out, None, None, None


def _pool_constants(values: Tensor, pooled: Tensor, window: tuple[int, int]) -> dict[str, int]:
    _, channels, height, width = values.shape
    return {
        "CHW": channels * height * width, "HW": height * width, "W": width,
        "OW": pooled.shape[3], "OHW": pooled.shape[2] * pooled.shape[3], "COHW": pooled[0].numel(),
        "KH": window[0], "KW": window[1],
    }  # fmt: skip


class NoisyOptimiser:
    """Noise and optimiser in one pass over the weights; the fused twin of `optimisers.Optimiser`.

    The noise of a parameter is a function of the instance's key, the step and the place of the parameter: of nothing
    that is in flight beside it. The number of the step lives on the GPU, so that a captured graph can be replayed.
    """

    def __init__(self, config: Learning, weights: Tensor, keys: Sequence[int]) -> None:
        self._config, self._rule, self._weights = config, config.gradient_rule, weights
        device, models = weights.device, len(weights)
        self._keys = torch.empty(models, dtype=torch.int64, device=device)
        self._tweaks = torch.empty(models, dtype=torch.int32, device=device)
        rates = [config.learning_rate_at(step) for step in range(config.steps)]
        self._rates = torch.tensor(rates, dtype=torch.float32, device=device)
        self._counter = torch.empty(1, dtype=torch.int32, device=device)
        adam = config.optimizer == "adam"
        self._first = torch.empty_like(weights) if adam or config.momentum else weights
        self._second = torch.empty_like(weights) if adam else weights
        self._total = torch.empty_like(weights) if config.average_iterates else weights
        self.restart(keys)

    def restart(self, keys: Sequence[int]) -> None:
        """Begin with other instances, in the same memory; their first weights are put there by the caller."""
        low = [_signed(key & (2**64 - 1), 64) for key in keys]
        high = [_signed(key >> 64 & (2**32 - 1), 32) for key in keys]
        self._keys.copy_(torch.tensor(low, dtype=torch.int64))
        self._tweaks.copy_(torch.tensor(high, dtype=torch.int32))
        self._counter.zero_()
        for state in (self._first, self._second, self._total):
            if state is not self._weights:
                state.zero_()

    def update(self, sums: Tensor) -> None:
        """One step from clipped sums: noise, division by the constant, the optimiser's rule."""
        config, weights = self._config, self._weights
        models, size = weights.shape
        _noisy_update[(triton.cdiv(size, 2 * 256), models)](
            weights, sums, self._first, self._second, self._total, self._keys, self._tweaks, self._rates, self._counter,
            size, self._rule.noise, self._rule.divisor, config.weight_decay, config.momentum,
            *config.betas,
            ADAM=config.optimizer == "adam", MOMENTUM=config.momentum > 0, AVERAGE=config.average_iterates, BN=256,
        )  # fmt: skip
        self._counter.add_(1)

    def result(self) -> Tensor:
        """The weights that vote: the last ones, or the mean over all steps."""
        return self._total / self._config.steps if self._config.average_iterates else self._weights


def _signed(value: int, bits: int) -> int:
    return value - 2**bits if value >= 2 ** (bits - 1) else value
