# Triton's decorator hides that its functions take plain integers; O is the usual name of the number of output channels.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false
# pyright: reportAssignmentType=false
# ruff: noqa: E741
"""Triton kernels for the stem of a network: stages of convolution, activation and pooling from the input on.

A stage is a convolution with bias, `tanh` or `relu`, and the mean over windows side by side. A chain of them at the
input of a network needs no gradient with respect to that input, so the whole chain is one layer with many parameters.
Its inside is not bound to torch's layout: between stages images lie with their channels last, filled up with zeros to a
power of two. A row of a patch is then contiguous, and is read in pieces of 16 bytes.

* The first stage has few channels. One thread computes all that belongs to one pooled pixel, with the weights in
  registers, in single precision throughout.
* The other stages are matrix products. Weights may be *spread*: one row of the product then holds all pixels of one
  window, and its weights once for every pixel, shifted (a Toeplitz matrix). That is more arithmetic, which matrix units
  have to spare, and fewer reads, which they wait for.

Examples behind the extent of their model are skipped. All sums are taken in a fixed order, without atomics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mithridate.training.kernels import MOST_PLACES, Stage, stage_gradients


@dataclass(frozen=True)
class Saved:
    """What `example_gradients` needs of a pass of `forward`; all but the first field are its own business.

    Attributes:
        stages: the stages.
        params: weights and biases of each stage.
        extents: number of examples of each model.
        images: what each stage was applied to; channels come first in the first, last in the others.
        activated: values before pooling: examples x windows x places x channels; of the first stage examples x channels
            x places x windows, or one number where they are not kept.
        precision: how operands of matrix products are rounded: `ieee`, `tf32`, or `bf16`.
    """

    stages: tuple[Stage, ...]
    params: tuple[tuple[Tensor, Tensor], ...]
    extents: Tensor
    images: list[Tensor]
    activated: list[Tensor]
    precision: str

    @property
    def is_halved(self) -> bool:
        """Whether images and gradients have 16 bits; then the first stage is a matrix product, too."""
        return self.precision == "bf16"

    @property
    def of_products(self) -> str:
        """How Triton is to round operands in single precision."""
        return "ieee" if self.is_halved else self.precision


# --- sizes of tiles -------------------------------------------------------------------------------------------------
# Any are right; most of those for TF32 were measured to be fast on an H200. "narrow" is for stages with at most
# 16 outputs (for input gradients: with at most 16 channels), "wide" for the others. SPREAD: whether the weights are
# spread over windows; for input gradients they are spread over blocks of TH x TW pixels.

# BP: pooled pixels at a time, TILES: how many times BP per program, BO: outputs per program (4 or 8).
ENTRY_FORWARD: dict[str, dict[str, int]] = {
    "narrow": {"BO": 4, "BP": 128, "TILES": 8, "num_warps": 4},
    "wide": {"BO": 4, "BP": 64, "TILES": 16, "num_warps": 2},
}
# BP: pooled pixels at a time, BO: outputs per program.
ENTRY_GRADIENT: dict[str, dict[str, int]] = {
    "narrow": {"BO": 2, "BP": 32, "num_warps": 1},
    "narrow kept": {"BO": 6, "BP": 32, "num_warps": 1},
    "wide": {"BO": 2, "BP": 32, "num_warps": 1},
    "wide kept": {"BO": 4, "BP": 32, "num_warps": 1},
}
# Whether the first stage keeps its values before pooling in memory; else they are computed twice.
ENTRY_KEEP: dict[str, bool] = {"narrow": True, "wide": True}
# BQ: pooled pixels per program, BK: numbers of a patch at a time.
STAGE_FORWARD: dict[str, dict[str, int]] = {
    "narrow tf32": {"SPREAD": 1, "BQ": 64, "BK": 16, "num_warps": 2, "num_stages": 3},
    "narrow ieee": {"SPREAD": 1, "BQ": 64, "BK": 16, "num_warps": 4, "num_stages": 1},
    "wide tf32": {"SPREAD": 0, "BQ": 32, "BK": 32, "num_warps": 4, "num_stages": 3},
    "wide bf16": {"SPREAD": 0, "BQ": 32, "BK": 32, "num_warps": 4, "num_stages": 3},
    "wide ieee": {"SPREAD": 0, "BQ": 16, "BK": 16, "num_warps": 4, "num_stages": 2},
}
# TH x TW: pixels of a block (a power of two), BR: blocks per program, BK: numbers of a patch of gradients at a time.
INPUT_GRADIENT: dict[str, dict[str, int]] = {
    "narrow tf32": {"TH": 2, "TW": 4, "BR": 128, "BK": 32, "num_warps": 4, "num_stages": 3},
    "narrow ieee": {"TH": 2, "TW": 2, "BR": 128, "BK": 16, "num_warps": 4, "num_stages": 1},
    "wide tf32": {"TH": 1, "TW": 1, "BR": 128, "BK": 32, "num_warps": 4, "num_stages": 3},
    "wide bf16": {"TH": 1, "TW": 1, "BR": 128, "BK": 32, "num_warps": 4, "num_stages": 3},
    "wide ieee": {"TH": 1, "TW": 1, "BR": 64, "BK": 16, "num_warps": 4, "num_stages": 2},
}

# Pixels whose channels are turned at a time.
_PACKED = 256
# Largest patch of a first stage, and most weights of one of its outputs: they live in registers.
_ENTRY_PIXELS, _ENTRY_WEIGHTS = 64, 48
# Most channels between stages.
_WIDEST = 128


# --- kernels --------------------------------------------------------------------------------------------------------
# Names in capitals are compile-time constants: C, H, W of the image, CP its channels filled up to a power of two, O the
# outputs (filled up: OP), KH x KW the kernel, PH, PW the padding, VH x VW the windows (VP: their size filled up), and
# QH x QW the result.


@triton.jit
def _activate(values, ACTIVATION: tl.constexpr):
    if ACTIVATION == "tanh":
        # 1 - 2 / (1 + e^(2 v)): exact limits at both ends. The root is one instruction, the quotient many.
        root = tl.rsqrt(1.0 + tl.exp(2.0 * values))
        return 1.0 - 2.0 * (root * root)
    else:
        return tl.maximum(values, 0.0)


@triton.jit
def _slope(activated, ACTIVATION: tl.constexpr):
    """Derivative of the activation, from its value."""
    if ACTIVATION == "tanh":
        return 1.0 - activated * activated
    else:
        return tl.where(activated > 0.0, 1.0, 0.0)


@triton.jit
def _spread_weights(weights, table, out, weight_stride, SIZE: tl.constexpr, BN: tl.constexpr):
    """Weights of one model in another order, some of them often: `table[i]` at place i, or 0 where that is negative."""
    tile, model = tl.program_id(0), tl.program_id(1)
    place = tile * BN + tl.arange(0, BN)
    entry = tl.load(table + place, mask=place < SIZE, other=-1)
    value = tl.load(weights + model.to(tl.int64) * weight_stride + entry, mask=entry >= 0, other=0.0)
    tl.store(out + model.to(tl.int64) * SIZE + place, value, mask=place < SIZE)


@triton.jit
def _pack(images, extents, out, batch, C: tl.constexpr, CP: tl.constexpr, P: tl.constexpr, BP: tl.constexpr):
    """Some pixels of one example, channels last and filled up with zeros."""
    example = tl.program_id(1).to(tl.int64)
    if example % batch < tl.load(extents + example // batch):
        pixel, channel = tl.program_id(0) * BP + tl.arange(0, BP), tl.arange(0, CP)
        inside = (pixel < P)[:, None]
        source = images + (example * C + channel[None, :]) * P + pixel[:, None]
        values = tl.load(source, mask=inside & (channel < C)[None, :], other=0.0)
        tl.store(out + (example * P + pixel[:, None]) * CP + channel[None, :], values, mask=inside)


@triton.jit
def _entry_pixels(
    image, row, column, alive,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    PADDED: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """The C x ROWS x COLUMNS numbers that one pooled pixel depends on, as a tuple; `image` points to the first.

    PAIRS: whether they may be read two by two.
    """
    pixels = ()
    for c in tl.static_range(C):
        for y in tl.static_range(ROWS):
            if PAIRS:
                for x in tl.static_range(0, COLUMNS, 2):
                    both = image[:, None] + (c * H * W + y * W + x) + tl.arange(0, 2)[None, :]
                    left, right = tl.split(tl.load(both, mask=alive[:, None], other=0.0))
                    pixels = pixels + (left, right)  # noqa: RUF005
            else:
                for x in tl.static_range(COLUMNS):
                    valid = alive
                    if PADDED:
                        valid = valid & (row + y >= 0) & (row + y < H) & (column + x >= 0) & (column + x < W)
                    pixels = pixels + (tl.load(image + (c * H * W + y * W + x), mask=valid, other=0.0),)  # noqa: RUF005
    return pixels


@triton.jit
def _entry_weights(weight, bias, first, O: tl.constexpr, K: tl.constexpr, BO: tl.constexpr):
    """The weights of BO outputs as a tuple of scalars, and the biases; zeros beyond the last output."""
    taps = ()
    biases = ()
    for o in tl.static_range(BO):
        inside = first + o < O
        biases = biases + (tl.load(bias + first + o, mask=inside, other=0.0),)  # noqa: RUF005
        for k in tl.static_range(K):
            taps = taps + (tl.load(weight + (first + o) * K + k, mask=inside, other=0.0),)  # noqa: RUF005
    return taps, biases


@triton.jit
def _entry_value(
    pixels, taps, bias, o: tl.constexpr, v: tl.constexpr,
    C: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, VH: tl.constexpr, VW: tl.constexpr,
):  # fmt: skip
    """The convolution of output o at place v of the window."""
    ROWS: tl.constexpr = KH + VH - 1
    COLUMNS: tl.constexpr = KW + VW - 1
    value = pixels[0] * 0.0 + bias
    for c in tl.static_range(C):
        for y in tl.static_range(KH):
            for x in tl.static_range(KW):
                value += (
                    taps[o * C * KH * KW + (c * KH + y) * KW + x]
                    * pixels[(c * ROWS + y + v // VW) * COLUMNS + x + v % VW]
                )
    return value


@triton.jit
def _entry_sum(
    entry, backs, pixels, k: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, VH: tl.constexpr, VW: tl.constexpr
):
    """Adds to the gradient of weight k what all places of the window give."""
    for v in tl.static_range(VH * VW):
        entry += (
            backs[v]
            * pixels[(k // (KH * KW) * (KH + VH - 1) + k // KW % KH + v // VW) * (KW + VW - 1) + k % KW + v % VW]
        )
    return entry


@triton.jit
def _sums_by_lane(sums, start: tl.constexpr, count: tl.constexpr):
    """Sums over 32 lanes of each of `count` vectors of a tuple: sum k comes to lane k.

    Each step adds two vectors at a time, each over two halves of the lanes, and leaves one: 31 exchanges, not 5 * 32.
    """
    lane = tl.arange(0, 32)
    for level in tl.static_range(5):
        low = (lane & (16 >> level)) == 0
        halves = ()
        for k in tl.static_range(16 >> level):
            one = sums[start + k] if level == 0 else sums[k]
            if level > 0 or k + 16 < count:
                two = sums[start + k + 16] if level == 0 else sums[k + (16 >> level)]
                given = tl.gather(tl.where(low, two, one), lane ^ (16 >> level), 0)
                halves = halves + (tl.where(low, one, two) + given,)  # noqa: RUF005
            else:
                halves = halves + (tl.where(low, one + tl.gather(one, lane ^ 16, 0), 0.0),)  # noqa: RUF005
        sums = halves
    return sums[0]


@triton.jit
def _side_by_side(a, b, c, d):
    """Four columns as a matrix."""
    return tl.interleave(tl.join(a, c), tl.join(b, d))


@triton.jit
def _entry_forward(
    images, weights, biases, extents, activated, out, batch, weight_stride, bias_stride,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr, OP: tl.constexpr, KH: tl.constexpr,
    KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, VH: tl.constexpr, VW: tl.constexpr, QH: tl.constexpr,
    QW: tl.constexpr, ACTIVATION: tl.constexpr,
    PAIRS: tl.constexpr, KEEP: tl.constexpr, LAST: tl.constexpr,
    BO: tl.constexpr, BP: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """BO outputs of the first stage of one model, at TILES * BP pairs of example and pooled pixel."""
    part, group, model = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    extent = tl.load(extents + model)
    first = model.to(tl.int64) * batch
    Q: tl.constexpr = QH * QW
    if part * (TILES * BP) >= extent * Q:
        return
    weight, bias = weights + model.to(tl.int64) * weight_stride, biases + model.to(tl.int64) * bias_stride
    taps, shifts = _entry_weights(weight, bias, group * BO, O, C * KH * KW, BO)
    for turn in range(TILES):
        tile = part * TILES + turn
        if tile * BP < extent * Q:
            position = tile * BP + tl.arange(0, BP)
            example, within = position // Q, position % Q
            alive = example < extent
            row, column = (within // QW) * VH - PH, (within % QW) * VW - PW
            image = images + (first + example) * (C * H * W) + row * W + column
            pixels = _entry_pixels(image, row, column, alive, C, H, W, KH + VH - 1, KW + VW - 1, PH + PW > 0, PAIRS)
            results = ()
            for o in tl.static_range(BO):
                result = tl.zeros([BP], dtype=tl.float32)
                if OP > BO or o < O:
                    for v in tl.static_range(VH * VW):
                        value = _activate(_entry_value(pixels, taps, shifts[o], o, v, C, KH, KW, VH, VW), ACTIVATION)
                        if KEEP:
                            target = (
                                activated + ((first + example) * O + group * BO + o) * (VH * VW * Q) + v * Q + within
                            )
                            tl.store(target, value, mask=alive & (group * BO + o < O))
                        result += value
                results = results + (result * (1.0 / (VH * VW)),)  # noqa: RUF005
            if LAST:
                for o in tl.static_range(BO):
                    target = out + (first + example) * (O * Q) + (group * BO + o) * Q + within
                    tl.store(target, results[o], mask=alive & (group * BO + o < O))
            else:
                if BO == 4:
                    matrix = _side_by_side(results[0], results[1], results[2], results[3])
                else:
                    matrix = tl.interleave(
                        _side_by_side(results[0], results[2], results[4], results[6]),
                        _side_by_side(results[1], results[3], results[5], results[7]),
                    )
                target = out + ((first * Q + position) * OP + group * BO)[:, None] + tl.arange(0, BO)[None, :]
                tl.store(target, matrix, mask=alive[:, None])


@triton.jit
def _entry_gradient(
    images, weights, biases, activated, gradients, extents, out, out_bias, squares, batch, weight_stride, bias_stride,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr, OP: tl.constexpr, KH: tl.constexpr,
    KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, VH: tl.constexpr, VW: tl.constexpr, QH: tl.constexpr,
    QW: tl.constexpr, ACTIVATION: tl.constexpr,
    PAIRS: tl.constexpr, KEPT: tl.constexpr, LAST: tl.constexpr,
    BO: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Gradient of one example with respect to the weights of BO outputs of the first stage."""
    example, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    model = example // batch
    Q: tl.constexpr = QH * QW
    K: tl.constexpr = C * KH * KW
    total = 0.0
    if example % batch < tl.load(extents + model):
        if not KEPT:
            weight, bias = weights + model * weight_stride, biases + model * bias_stride
            taps, shifts = _entry_weights(weight, bias, group * BO, O, K, BO)
        sums = ()
        for _ in tl.static_range(BO * (K + 1)):
            sums = sums + (tl.zeros([BP], dtype=tl.float32),)  # noqa: RUF005
        for start in range(0, Q, BP):
            within = start + tl.arange(0, BP)
            alive = within < Q
            row, column = (within // QW) * VH - PH, (within % QW) * VW - PW
            image = images + example * (C * H * W) + row * W + column
            pixels = _entry_pixels(image, row, column, alive, C, H, W, KH + VH - 1, KW + VW - 1, PH + PW > 0, PAIRS)
            added = ()
            for o in tl.static_range(BO):
                output = group * BO + o
                if LAST:
                    source = gradients + example * (O * Q) + output * Q + within
                else:
                    source = gradients + (example * Q + within) * OP + output
                seen = tl.load(source, mask=alive & (output < O), other=0.0) * (1.0 / (VH * VW))
                backs = ()
                shift = sums[o * (K + 1) + K]
                for v in tl.static_range(VH * VW):
                    if KEPT:
                        source = activated + (example * O + output) * (VH * VW * Q) + v * Q + within
                        value = tl.load(source, mask=alive & (output < O), other=0.0)
                    else:
                        value = _entry_value(pixels, taps, shifts[o], o, v, C, KH, KW, VH, VW)
                        value = _activate(value, ACTIVATION)
                    back = seen * _slope(value, ACTIVATION)
                    backs = backs + (back,)  # noqa: RUF005
                    shift += back
                for k in tl.static_range(K):
                    entry = _entry_sum(sums[o * (K + 1) + k], backs, pixels, k, KH, KW, VH, VW)
                    added = added + (entry,)  # noqa: RUF005
                added = added + (shift,)  # noqa: RUF005
            sums = added
        lane = tl.arange(0, BK)
        for o in tl.static_range(BO):
            output = group * BO + o
            if BP == 32 and BK == 32 and K >= 16:
                line = _sums_by_lane(sums, o * (K + 1), K + 1)
                total += tl.sum(line * line, axis=0)
            else:
                line = tl.zeros([BK], dtype=tl.float32)
                for k in tl.static_range(K + 1):
                    entry = tl.sum(sums[o * (K + 1) + k], axis=0)
                    total += entry * entry
                    line = tl.where(lane == k, entry, line)
            tl.store(out + (example * O + output) * K + lane, line, mask=(lane < K) & (output < O))
            tl.store(out_bias + example * O + output + (lane - K), line, mask=(lane == K) & (output < O))
    tl.store(squares + example * tl.num_programs(1) + group, total)


@triton.jit
def _stage_forward(
    images, spread, biases, extents, activated, out, batch, bias_stride,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr, OP: tl.constexpr, KH: tl.constexpr,
    KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, VH: tl.constexpr, VW: tl.constexpr, QH: tl.constexpr,
    QW: tl.constexpr, ACTIVATION: tl.constexpr,
    CP: tl.constexpr, VP: tl.constexpr, SPREAD: tl.constexpr, ROWS: tl.constexpr, RUN: tl.constexpr,
    KEEP: tl.constexpr, LAST: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """All outputs of one model at BQ pairs of example and pooled pixel.

    Rows of the product are windows, and columns places in the window and outputs (SPREAD); or rows are windows and
    places, and columns outputs. A patch is ROWS runs of RUN numbers.
    """
    tile, model = tl.program_id(0), tl.program_id(1)
    Q: tl.constexpr = QH * QW
    PLACES: tl.constexpr = 1 if SPREAD else VP
    N: tl.constexpr = VP * OP if SPREAD else OP
    CHUNKS: tl.constexpr = (RUN + BK - 1) // BK
    extent = tl.load(extents + model)
    first = model.to(tl.int64) * batch
    line = tl.arange(0, BQ * PLACES)
    position, place = tile * BQ + line // PLACES, line % PLACES
    example, within = position // Q, position % Q
    alive = (example < extent) & (place < VH * VW)
    row = (within // QW) * VH + place // VW - PH
    column = (within % QW) * VW + place % VW - PW
    n = tl.arange(0, N)
    pooled = tl.zeros([BQ, OP], dtype=tl.float32)
    if tile * BQ < extent * Q:
        source = images + (first + example) * (H * W * CP) + (row * W + column) * CP
        weight = spread + model.to(tl.int64) * (ROWS * CHUNKS * BK * N)
        result = tl.zeros([BQ * PLACES, N], dtype=tl.float32)
        for step in range(ROWS * CHUNKS):
            y, start = step // CHUNKS, (step % CHUNKS) * BK
            k = start + tl.arange(0, BK)
            valid = alive[:, None] & (k < RUN)[None, :]
            if PH + PW > 0:
                if BK <= CP:
                    x = column + start // CP
                    valid = valid & ((row + y >= 0) & (row + y < H) & (x >= 0) & (x < W))[:, None]
                else:
                    across = column[:, None] + (k // CP)[None, :]
                    valid = valid & ((row + y >= 0) & (row + y < H))[:, None] & (across >= 0) & (across < W)
            patch = tl.load(source[:, None] + (y * (W * CP) + k)[None, :], mask=valid, other=0.0)
            tap = tl.load(weight + step * (BK * N) + (n * BK)[:, None] + tl.arange(0, BK)[None, :])
            result = tl.dot(patch, tl.trans(tap), result, input_precision=PRECISION)
        # Places beyond the window have neither weights nor bias, and 0 is activated to 0.
        real = (n % OP < O) & (n // OP < VH * VW)
        bias = tl.load(biases + model.to(tl.int64) * bias_stride + n % OP, mask=real, other=0.0)
        value = tl.where(alive[:, None], _activate(result + bias[None, :], ACTIVATION), 0.0)
        if KEEP:
            target = activated + (((first + example) * Q + within) * VP + place) * OP
            tl.store(target[:, None] + n[None, :], value, mask=alive[:, None])
        pooled = tl.sum(tl.reshape(value, [BQ, VP, OP]), axis=1) * (1.0 / (VH * VW))
    position = tile * BQ + tl.arange(0, BQ)
    example, within = position // Q, position % Q
    o = tl.arange(0, OP)
    if LAST:
        target = out + ((first + example) * (O * Q) + within)[:, None] + (o * Q)[None, :]
        tl.store(target, pooled, mask=(example < batch)[:, None] & (o < O)[None, :])
    else:
        target = out + ((first * Q + position) * OP)[:, None] + o[None, :]
        tl.store(target, pooled, mask=(example < extent)[:, None])


@triton.jit
def _input_gradient(
    backs, spread, extents, out, batch,
    H: tl.constexpr, W: tl.constexpr, CP: tl.constexpr, OP: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    TOP: tl.constexpr, LEFT: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr, ROWS: tl.constexpr, RUN: tl.constexpr,
    BR: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient with respect to the image of a stage, at BR blocks of TH x TW pixels of one model's examples.

    A block at (y, x) depends on the OH x OW gradients from (y - TOP, x - LEFT) on, ROWS runs of RUN numbers.
    """
    tile, model = tl.program_id(0), tl.program_id(1)
    BW: tl.constexpr = (W + TW - 1) // TW
    BLOCKS: tl.constexpr = ((H + TH - 1) // TH) * BW
    N: tl.constexpr = TH * TW * CP
    CHUNKS: tl.constexpr = (RUN + BK - 1) // BK
    extent = tl.load(extents + model)
    if tile * BR >= extent * BLOCKS:
        return
    first = model.to(tl.int64) * batch
    block = tile * BR + tl.arange(0, BR)
    example, within = block // BLOCKS, block % BLOCKS
    alive = example < extent
    row, column = (within // BW) * TH, (within % BW) * TW
    source = backs + (first + example) * (OH * OW * OP) + ((row - TOP) * OW + (column - LEFT)) * OP
    weight = spread + model.to(tl.int64) * (ROWS * CHUNKS * BK * N)
    n = tl.arange(0, N)
    result = tl.zeros([BR, N], dtype=tl.float32)
    for step in range(ROWS * CHUNKS):
        down, start = step // CHUNKS, (step % CHUNKS) * BK
        k = start + tl.arange(0, BK)
        y = row + (down - TOP)
        inside = alive & (y >= 0) & (y < OH)
        if BK <= OP:
            x = column + (start // OP - LEFT)
            valid = (inside & (x >= 0) & (x < OW))[:, None] & (k < RUN)[None, :]
        else:
            across = column[:, None] + (k // OP - LEFT)[None, :]
            valid = inside[:, None] & (across >= 0) & (across < OW) & (k < RUN)[None, :]
        patch = tl.load(source[:, None] + (down * (OW * OP) + k)[None, :], mask=valid, other=0.0)
        tap = tl.load(weight + step * (BK * N) + (n * BK)[:, None] + tl.arange(0, BK)[None, :])
        result = tl.dot(patch, tl.trans(tap), result, input_precision=PRECISION)
    y, x = row[:, None] + (n // (TW * CP))[None, :], column[:, None] + ((n // CP) % TW)[None, :]
    target = out + ((first + example) * (H * W * CP))[:, None] + (y * W + x) * CP + (n % CP)[None, :]
    tl.store(target, result, mask=alive[:, None] & (y < H) & (x < W))


# --- calls ----------------------------------------------------------------------------------------------------------


def supports(stages: Sequence[Stage]) -> bool:
    """Whether the kernels can take these stages, and each fits on what the one before it gives."""
    if not stages or not all(_is_sound(stage) for stage in stages):
        return False
    for before, after in pairwise(stages):
        if (before.outputs, *before.out_size) != (after.channels, after.height, after.width):
            return False
    return stages[0].pixels <= _ENTRY_PIXELS and stages[0].entries <= _ENTRY_WEIGHTS


def _is_sound(stage: Stage) -> bool:
    return (
        min(stage.out_size) >= 1
        and stage.activation in ("tanh", "relu")
        and stage.outputs <= _WIDEST
        and stage.window[0] * stage.window[1] <= MOST_PLACES
        and all(padding < kernel for padding, kernel in zip(stage.padding, stage.kernel, strict=True))
    )


def forward(
    images: Tensor,
    params: Sequence[tuple[Tensor, Tensor]],
    extents: Tensor,
    stages: Sequence[Stage],
    precision: str,
    *,
    keep: bool = True,
) -> tuple[Tensor, Saved]:
    """All stages, one after the other.

    Args:
        images: [models * batch, C, H, W].
        params: for each stage weights [models, O, C, KH, KW] and biases [models, O]; models may lie apart.
        extents: for each model, the position in the batch from which there is only padding (int32).
        stages: the stages; see `supports`.
        precision: `ieee` or `tf32`, for operands of matrix products; or `bf16`, for all that is kept.
        keep: whether `example_gradients` will be called.

    Returns:
        [models * batch, O, height, width], zero beyond each extent, and what `example_gradients` needs.
    """
    saved = Saved(tuple(stages), tuple(params), extents, [images.contiguous()], [], precision)
    if saved.is_halved:
        saved.images[0] = _packed(saved.images[0], extents, _padded(stages[0].channels))
    for at, stage in enumerate(stages):
        last = at == len(stages) - 1
        out = _new_images(saved.images[-1], stage, last=last)
        if at == 0 and not saved.is_halved:
            _launch_entry_forward(saved, out, last=last, keep=keep)
        else:
            _launch_stage_forward(saved, at, out, last=last, keep=keep)
        saved.images.append(out)
    return saved.images.pop(), saved


def _packed(images: Tensor, extents: Tensor, channels: int) -> Tensor:
    """Images with their channels last and filled up with zeros to so many, in 16 bits."""
    examples, there, height, width = images.shape
    out = images.new_empty(examples, height, width, channels, dtype=torch.bfloat16)
    grid = (triton.cdiv(height * width, _PACKED), examples)
    _pack[grid](images, extents, out, examples // len(extents), C=there, CP=channels, P=height * width, BP=_PACKED)
    return out


def _new_images(images: Tensor, stage: Stage, *, last: bool) -> Tensor:
    """In the precision of those before; but the last ones leave the stem."""
    height, width = stage.out_size
    if last:
        return images.new_empty(images.shape[0], stage.outputs, height, width, dtype=torch.float32)
    return images.new_empty(images.shape[0], height, width, _padded(stage.outputs))


def _launch_entry_forward(saved: Saved, out: Tensor, *, last: bool, keep: bool) -> None:
    stage, (weights, biases) = saved.stages[0], saved.params[0]
    models, examples = saved.extents.shape[0], saved.images[0].shape[0]
    tiles = ENTRY_FORWARD[_width(stage.outputs)]
    if last:
        out.zero_()  # The kernel does not visit padding.
    height, width = stage.out_size
    keep = keep and ENTRY_KEEP[_width(stage.outputs)]
    kept = (examples, stage.outputs, stage.window[0] * stage.window[1], height * width)
    activated = out.new_empty(kept if keep else (1,))
    parts = triton.cdiv(examples // models * height * width, tiles["BP"] * tiles["TILES"])
    _entry_forward[(parts, _padded(stage.outputs) // tiles["BO"], models)](
        saved.images[0], weights, biases, saved.extents, activated, out, examples // models, weights.stride(0),
        biases.stride(0), **_constants(stage), PAIRS=_in_pairs(stage), KEEP=keep, LAST=last, **tiles,
    )  # fmt: skip
    saved.activated.append(activated)


def _launch_stage_forward(saved: Saved, at: int, out: Tensor, *, last: bool, keep: bool) -> None:
    stage, (weights, biases), images = saved.stages[at], saved.params[at], saved.images[at]
    models, examples = saved.extents.shape[0], images.shape[0]
    tiles = dict(STAGE_FORWARD[f"{_width(stage.outputs)} {saved.precision}"])
    if not tiles["SPREAD"]:  # made for windows of four: as many rows for others
        tiles["BQ"] = max(1, 4 * tiles["BQ"] // _window_size(stage))
    shape = _Patch(stage, stage.window if tiles["SPREAD"] else (1, 1), back=False)
    height, width = stage.out_size
    activated = images.new_empty(
        (examples, height * width, _window_size(stage), _padded(stage.outputs)) if keep else (1,)
    )
    parts = triton.cdiv(examples // models * height * width, tiles["BQ"])
    _stage_forward[(parts, models)](
        images, _spread(weights, shape, tiles["BK"], images.dtype), biases, saved.extents, activated, out,
        examples // models, biases.stride(0), **_constants(stage), CP=_padded(stage.channels), VP=_window_size(stage),
        ROWS=shape.rows, RUN=shape.run, KEEP=keep, LAST=last, PRECISION=saved.of_products, **tiles,
    )  # fmt: skip
    saved.activated.append(activated)


def example_gradients(saved: Saved, gradients: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Gradients of each example with respect to the parameters of all stages.

    Args:
        saved: from `forward`.
        gradients: with respect to its result, [models * batch, O, height, width].

    Returns:
        For each stage the gradients of the weights, those of the biases [models, batch, O] and the squared norms of
        both together [models, batch], in double precision. The weights of a first stage that threads compute lie in
        their own order, [models, batch, O * C * KH * KW]; those of others as [models, batch, O, KH * KW, channels],
        channels filled up with zeros. Beyond the extents gradients are not written, and norms are 0.
    """
    gradients = gradients.contiguous()
    results = []
    first = 0 if saved.is_halved else 1
    for at in range(len(saved.stages) - 1, first - 1, -1):
        stage, last = saved.stages[at], at == len(saved.stages) - 1
        backs, biases, of_biases = stage_gradients.before_activation(
            stage, saved.activated[at], gradients, saved.extents, last=last
        )
        weights, squares = stage_gradients.weight_gradients(
            stage, saved.images[at], backs, saved.extents, saved.of_products
        )
        results.append((weights, biases, torch.cat([of_biases, squares], dim=2).sum(dim=2, dtype=torch.float64)))
        if at > 0:
            gradients = stage_input_gradient(saved, at, backs)
    if not saved.is_halved:
        results.append(entry_gradients(saved, gradients))
    return results[::-1]


def takes_halves(stages: Sequence[Stage]) -> bool:
    """Whether there are kernels for these stages in 16 bits."""
    return supports(stages) and all(_width(stage.outputs) == "wide" for stage in stages)


def entry_gradients(saved: Saved, gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients with respect to the parameters of the first stage; see `example_gradients`."""
    stage, (weights, biases) = saved.stages[0], saved.params[0]
    kept = saved.activated[0].dim() > 1
    tiles = ENTRY_GRADIENT[_width(stage.outputs) + (" kept" if kept else "")]
    parts = triton.cdiv(stage.outputs, tiles["BO"])
    out, out_bias, squares = _new_gradients(saved, stage, parts)
    examples = saved.images[0].shape[0]
    _entry_gradient[(examples, parts)](
        saved.images[0], weights, biases, saved.activated[0], gradients, saved.extents, out, out_bias, squares,
        out.shape[1], weights.stride(0), biases.stride(0), **_constants(stage), PAIRS=_in_pairs(stage), KEPT=kept,
        LAST=len(saved.stages) == 1, BK=triton.next_power_of_2(stage.entries + 1), **tiles,
    )  # fmt: skip
    return out, out_bias, squares.sum(dim=2, dtype=torch.float64)


def stage_input_gradient(saved: Saved, at: int, backs: Tensor) -> Tensor:
    """Gradient with respect to the image of a later stage, channels last."""
    stage, images = saved.stages[at], saved.images[at]
    models, examples = saved.extents.shape[0], images.shape[0]
    tiles = INPUT_GRADIENT[f"{_width(stage.channels)} {saved.precision}"]
    shape = _Patch(stage, (tiles["TH"], tiles["TW"]), back=True)
    blocks = triton.cdiv(stage.height, shape.block[0]) * triton.cdiv(stage.width, shape.block[1])
    out = torch.empty_like(images)
    _input_gradient[(triton.cdiv(examples // models * blocks, tiles["BR"]), models)](
        backs, _spread(saved.params[at][0], shape, tiles["BK"], backs.dtype), saved.extents, out, examples // models,
        H=stage.height, W=stage.width, CP=_padded(stage.channels), OP=_padded(stage.outputs), OH=backs.shape[1],
        OW=backs.shape[2], TOP=stage.kernel[0] - 1 - stage.padding[0], LEFT=stage.kernel[1] - 1 - stage.padding[1],
        ROWS=shape.rows, RUN=shape.run, PRECISION=saved.of_products, **tiles,
    )  # fmt: skip
    return out


def _new_gradients(saved: Saved, stage: Stage, parts: int) -> tuple[Tensor, Tensor, Tensor]:
    images, models = saved.images[0], saved.extents.shape[0]
    batch = images.shape[0] // models
    out = images.new_empty(models, batch, stage.outputs * stage.entries)
    return out, images.new_empty(models, batch, stage.outputs), images.new_empty(models, batch, parts)


def _padded(channels: int) -> int:
    """Channels between stages: a power of two, and at least 32 bytes."""
    return max(8, triton.next_power_of_2(channels))


def _constants(stage: Stage) -> dict[str, Any]:
    """The shape as compile-time constants of the kernels."""
    height, width = stage.out_size
    return {
        "C": stage.channels, "H": stage.height, "W": stage.width, "O": stage.outputs, "OP": _padded(stage.outputs),
        "KH": stage.kernel[0], "KW": stage.kernel[1], "PH": stage.padding[0], "PW": stage.padding[1],
        "VH": stage.window[0], "VW": stage.window[1], "QH": height, "QW": width, "ACTIVATION": stage.activation,
    }  # fmt: skip


def _in_pairs(stage: Stage) -> bool:
    """Whether all that a window depends on starts at an even address and has even rows, without padding."""
    sides = (stage.width, stage.window[1], stage.kernel[1] + stage.window[1] - 1)
    return stage.padding == (0, 0) and all(side % 2 == 0 for side in sides)


def _window_size(stage: Stage) -> int:
    return triton.next_power_of_2(stage.window[0] * stage.window[1])


def _width(channels: int) -> str:
    return "narrow" if channels <= 16 else "wide"


@dataclass(frozen=True)
class _Patch:
    """How the weights of a stage are laid out for a product of rows of patches with columns of weights.

    Attributes:
        stage: the stage.
        block: pixels of the result that one row computes, each with weights of its own.
        back: whether this is the product for the gradient of the image.
    """

    stage: Stage
    block: tuple[int, int]
    back: bool

    @property
    def rows(self) -> int:
        """Runs of a patch."""
        return self.stage.kernel[0] + self.block[0] - 1

    @property
    def depth(self) -> int:
        """Numbers at one pixel of a patch."""
        return _padded(self.stage.outputs if self.back else self.stage.channels)

    @property
    def run(self) -> int:
        """Numbers of a run."""
        return (self.stage.kernel[1] + self.block[1] - 1) * self.depth

    def table(self, chunk: int) -> Tensor:
        """For each place of the laid out matrix the weight that belongs there, or -1.

        Columns are places in the block (as many as a power of two), and for each of them channels of the result. Rows
        are the numbers of a patch; each run is filled up to whole chunks. Chunk after chunk lies in memory, each of
        them column by column.
        """
        stage = self.stage
        (rows, columns), length = stage.kernel, -(-self.run // chunk) * chunk
        ending = _padded(stage.channels if self.back else stage.outputs)
        size = self.block[0] * self.block[1]
        y, start, place, n, k = torch.meshgrid(
            torch.arange(self.rows), torch.arange(0, length, chunk), torch.arange(triton.next_power_of_2(size)),
            torch.arange(ending), torch.arange(chunk), indexing="ij",
        )  # fmt: skip
        k = start + k
        below, right = place // self.block[1], place % self.block[1]
        down, across, inner = y - below, k // self.depth - right, k % self.depth
        if self.back:  # The image at y reached the result at y + padding - down.
            down, across = rows - 1 - down, columns - 1 - across
        channel, output = (n, inner) if self.back else (inner, n)
        real = (place < size) & (k < self.run) & (channel < stage.channels) & (output < stage.outputs)
        real &= (down >= 0) & (down < rows) & (across >= 0) & (across < columns)
        entry = ((output * stage.channels + channel) * rows + down) * columns + across
        return torch.where(real, entry, -1).int().flatten()


@cache
def _table(patch: _Patch, chunk: int, device: torch.device) -> Tensor:
    return patch.table(chunk).to(device)


def _spread(weights: Tensor, patch: _Patch, chunk: int, dtype: torch.dtype) -> Tensor:
    """The weights of all models, laid out; `weights` may have its models apart, but no holes within one."""
    table = _table(patch, chunk, weights.device)
    out = weights.new_empty(weights.shape[0], table.numel(), dtype=dtype)
    grid = (triton.cdiv(table.numel(), 1024), weights.shape[0])
    _spread_weights[grid](weights, table, out, weights.stride(0), SIZE=table.numel(), BN=1024)
    return out
