# Triton's decorator hides that its functions take plain integers; O is the usual name of the number of output channels.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false
# pyright: reportAttributeAccessIssue=false
# ruff: noqa: E741
"""Triton kernels for the gradients of single examples with respect to the parameters of a stage.

The gradient of an example with respect to the weights of a stage is one small matrix product for every place of the
kernel: (gradients before the activation) x (the image, shifted to that place). All places share the first factor, and
one program holds the results of many of them in registers, so that nothing of a patch is ever computed or read twice,
and what is outside of the image is found once for each pixel, not once for each number.

Images, gradients and results are all in single precision or all in 16 bits (bfloat16): what is stored is rounded before
its norm is taken. Places come before channels in it, which is how it is formed (`layers.Turned` puts that right).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mithridate.training.kernels import Stage

# Pixels whose gradients one step of `_before_activation` takes.
_UNPOOLED = 32
# Sizes of tiles of `_weight_gradient` by outputs and channels, filled up, and by type, as measured to be fast on an
# H200; any are right. BO: outputs, BC: channels, GT: places of the kernel in one product, TAPS: products of one
# program, BP: pixels at a time.
TILES: dict[tuple[int, int, torch.dtype], dict[str, int]] = {
    (32, 8, torch.bfloat16): {"BO": 32, "BC": 8, "GT": 2, "TAPS": 5, "BP": 32, "num_warps": 4, "num_stages": 3},
    (64, 32, torch.bfloat16): {"BO": 64, "BC": 32, "GT": 2, "TAPS": 5, "BP": 32, "num_warps": 4, "num_stages": 3},
    (64, 64, torch.bfloat16): {"BO": 64, "BC": 64, "GT": 1, "TAPS": 3, "BP": 32, "num_warps": 4, "num_stages": 3},
    (128, 64, torch.bfloat16): {"BO": 64, "BC": 64, "GT": 1, "TAPS": 2, "BP": 16, "num_warps": 4, "num_stages": 2},
}


@triton.jit
def _before_activation(
    activated, gradients, extents, backs, out_bias, squares, batch,
    O: tl.constexpr, OP: tl.constexpr, VH: tl.constexpr, VW: tl.constexpr, VP: tl.constexpr, QH: tl.constexpr,
    QW: tl.constexpr, ACTIVATION: tl.constexpr, LAST: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """The gradient of one example before the activation, channels last, and with respect to the biases."""
    example = tl.program_id(0).to(tl.int64)
    square = 0.0
    if example % batch < tl.load(extents + example // batch):
        Q: tl.constexpr = QH * QW
        o = tl.arange(0, OP)
        total = tl.zeros([BP, OP], dtype=tl.float32)
        for start in range(0, Q * VP, BP):
            line = start + tl.arange(0, BP)
            within, place = line // VP, line % VP
            alive = (line < Q * VP) & (place < VH * VW)
            mask = alive[:, None] & (o < O)[None, :]
            value = tl.load(activated + (example * (Q * VP) + line[:, None]) * OP + o[None, :], mask=mask, other=0.0)
            value = value.to(tl.float32)
            if ACTIVATION == "tanh":
                slope = 1.0 - value * value
            else:
                slope = tl.where(value > 0.0, 1.0, 0.0)
            if LAST:
                source = gradients + example * (O * Q) + within[:, None] + (o * Q)[None, :]
            else:
                source = gradients + (example * Q + within[:, None]) * OP + o[None, :]
            back = tl.load(source, mask=mask, other=0.0).to(tl.float32) * (1.0 / (VH * VW)) * slope
            total += back
            row, column = (within // QW) * VH + place // VW, (within % QW) * VW + place % VW
            target = backs + (example * (Q * VH * VW) + row[:, None] * (QW * VW) + column[:, None]) * OP + o[None, :]
            tl.store(target, back, mask=alive[:, None])
        bias = tl.sum(total, axis=0)
        tl.store(out_bias + example * O + o, bias, mask=o < O)
        square += tl.sum(bias * bias, axis=0)
    tl.store(squares + example, square)


@triton.jit
def _weight_gradient(
    images, backs, extents, out, squares, batch,
    H: tl.constexpr, W: tl.constexpr, O: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr,
    PW: tl.constexpr, CP: tl.constexpr, OP: tl.constexpr, P: tl.constexpr, ROW: tl.constexpr,
    BO: tl.constexpr, BC: tl.constexpr, GT: tl.constexpr, TAPS: tl.constexpr, BP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient of one example with respect to the weights of BO outputs and BC channels, at TAPS * GT places.

    Rows of a product are outputs, columns GT places and for each of them BC channels. P pixels, ROW in a line.
    """
    example, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    T: tl.constexpr = KH * KW
    c_tiles: tl.constexpr = CP // BC
    t_tiles: tl.constexpr = (T + GT * TAPS - 1) // (GT * TAPS)
    c_tile, t_tile, o_tile = part % c_tiles, (part // c_tiles) % t_tiles, part // (c_tiles * t_tiles)
    o, n = o_tile * BO + tl.arange(0, BO), tl.arange(0, GT * BC)
    channel = c_tile * BC + n % BC
    square = 0.0
    if example % batch < tl.load(extents + example // batch):
        sums = ()
        for _ in tl.static_range(TAPS):
            sums = sums + (tl.zeros([BO, GT * BC], dtype=tl.float32),)  # noqa: RUF005
        for start in range(0, P, BP):
            pixel = start + tl.arange(0, BP)
            inside = pixel < P
            row, column = pixel // ROW - PH, pixel % ROW - PW
            mask = inside[:, None] & (o < OP)[None, :]
            seen = tl.load(backs + (example * P + pixel[:, None]) * OP + o[None, :], mask=mask, other=0.0)
            seen = tl.trans(seen)
            added = ()
            for j in tl.static_range(TAPS):
                if GT == 1:
                    tap = t_tile * TAPS + j
                    y, x = row + tap // KW, column + tap % KW
                    valid = inside & (tap < T)
                    if PH + PW > 0:
                        valid = valid & (y >= 0) & (y < H) & (x >= 0) & (x < W)
                    source = images + (example * (H * W) + y[:, None] * W + x[:, None]) * CP + channel[None, :]
                    patch = tl.load(source, mask=valid[:, None], other=0.0)
                else:
                    tap = (t_tile * TAPS + j) * GT + n // BC
                    y, x = row[:, None] + (tap // KW)[None, :], column[:, None] + (tap % KW)[None, :]
                    valid = inside[:, None] & (tap < T)[None, :]
                    if PH + PW > 0:
                        valid = valid & (y >= 0) & (y < H) & (x >= 0) & (x < W)
                    source = images + (example * (H * W) + y * W + x) * CP + channel[None, :]
                    patch = tl.load(source, mask=valid, other=0.0)
                added = added + (tl.dot(seen, patch, sums[j], input_precision=PRECISION),)  # noqa: RUF005
            sums = added
        for j in tl.static_range(TAPS):
            tap = (t_tile * TAPS + j) * GT + n // BC
            rounded = sums[j].to(out.dtype.element_ty)
            stored = rounded.to(tl.float32)
            square += tl.sum(tl.sum(stored * stored, axis=1), axis=0)
            target = out + ((example * O + o[:, None]) * T + tap[None, :]) * CP + channel[None, :]
            tl.store(target, rounded, mask=(o < O)[:, None] & (tap < T)[None, :])
    tl.store(squares + example * tl.num_programs(1) + part, square)


def before_activation(
    stage: Stage, activated: Tensor, gradients: Tensor, extents: Tensor, *, last: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient before the activation of a stage, examples x height x width x channels.

    Args:
        stage: the stage.
        activated: examples x windows x places x channels.
        gradients: with respect to its result, whose channels come first in the last stage, else last.
        extents: for each model, the position in the batch from which there is only padding.
        last: whether it is the last stage.

    Returns:
        The gradient, with its sums over pixels (the gradients of the biases) and their squared norms.
    """
    examples, _, places, channels = activated.shape
    (height, width), (tall, wide) = stage.out_size, stage.window
    models = len(extents)
    backs = activated.new_empty(examples, height * tall, width * wide, channels)
    biases = torch.empty(models, examples // models, stage.outputs, device=backs.device)
    squares = torch.empty(models, examples // models, 1, device=backs.device)
    _before_activation[(examples,)](
        activated, gradients, extents, backs, biases, squares, examples // models,
        O=stage.outputs, OP=channels, VH=tall, VW=wide, VP=places, QH=height, QW=width, ACTIVATION=stage.activation,
        LAST=last, BP=_UNPOOLED,
    )  # fmt: skip
    return backs, biases, squares


def weight_gradients(
    stage: Stage, images: Tensor, backs: Tensor, extents: Tensor, precision: str
) -> tuple[Tensor, Tensor]:
    """Gradients of each example with respect to the weights of a stage, and their squared norms.

    Args:
        stage: the stage.
        images: what it was applied to, examples x height x width x channels.
        backs: see `before_activation`; of the type of the images, which is that of the result.
        extents: for each model, the position in the batch from which there is only padding.
        precision: `ieee` or `tf32` for operands in single precision.

    Returns:
        models x batch x outputs x places x channels, and models x batch x parts: the squared norms of what was written,
        part by part. Beyond the extents gradients are not written, and norms are 0.
    """
    models, channels, outputs = len(extents), images.shape[3], backs.shape[3]
    tiles, taps = _tiles(stage, outputs, channels, images.dtype), stage.kernel[0] * stage.kernel[1]
    parts = triton.cdiv(outputs, tiles["BO"]) * triton.cdiv(taps, tiles["GT"] * tiles["TAPS"])
    parts *= channels // tiles["BC"]
    out = backs.new_empty(models, len(images) // models, stage.outputs, taps, channels)
    squares = torch.empty(models, len(images) // models, parts, device=backs.device)
    _weight_gradient[(len(images), parts)](
        images, backs, extents, out, squares, out.shape[1],
        H=stage.height, W=stage.width, O=stage.outputs, KH=stage.kernel[0], KW=stage.kernel[1], PH=stage.padding[0],
        PW=stage.padding[1], CP=channels, OP=outputs, P=backs.shape[1] * backs.shape[2], ROW=backs.shape[2], **tiles,
        PRECISION=precision,
    )  # fmt: skip
    return out, squares


def _tiles(stage: Stage, outputs: int, channels: int, dtype: torch.dtype) -> dict[str, int]:
    """Tiles of `_weight_gradient`: no side of a product below 16, and none larger than what there is."""
    if (known := TILES.get((outputs, channels, dtype))) is not None:
        return known
    pixels = stage.out_size[0] * stage.window[0] * stage.out_size[1] * stage.window[1]
    wide = min(channels, 32)
    together = max(1, 32 // wide)
    return {
        "BO": max(16, min(outputs, 64)), "BC": wide, "GT": together,
        "TAPS": min(9, triton.cdiv(stage.kernel[0] * stage.kernel[1], together)),
        "BP": max(16, min(64, triton.next_power_of_2(pixels))), "num_warps": 4, "num_stages": 2,
    }  # fmt: skip
