# The language inside kernels is not Python, and its types are not known to a type checker.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false
"""Triton kernels for convolutions that the vendor's library computes, with the channels last.

The library gives the gradients of a batch, but not the norms of single examples' gradients. For images with few
positions they come from Gram matrices; for others from the gradients themselves (`kernels.conv_example_gradients`),
which wants the channels first, as does what adds them up (`kernels.conv_weighted_sum`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_PAIRS = 1024  # pairs of positions of one program
_TILE = 64  # channels and pixels that are turned at a time
_POSITIONS = 64  # positions that one program can hold all pairs of
_SUMMANDS = 2048  # channels over which single precision may sum (see `ghost_norms`)


@triton.jit
def _channels_first(values, out, C: tl.constexpr, P: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr):
    """A tile of one example, turned."""
    example = tl.program_id(2).to(tl.int64) * (C * P)
    pixel, channel = tl.program_id(0) * BP + tl.arange(0, BP), tl.program_id(1) * BC + tl.arange(0, BC)
    inside = (pixel < P)[:, None] & (channel < C)[None, :]
    tile = tl.load(values + example + pixel[:, None] * C + channel[None, :], mask=inside)
    tl.store(out + example + channel[:, None] * P + pixel[None, :], tl.trans(tile), mask=tl.trans(inside))


@triton.jit
def _gram(rows, row, inside, total, C: tl.constexpr, BC: tl.constexpr):
    """Inner products of some rows of C numbers, cut to the digits of TF32, so that no product is ever rounded."""
    for start in range(0, C, BC):
        channel = start + tl.arange(0, BC)
        mask = inside[:, None] & (channel < C)[None, :]
        tile = tl.load(rows + row[:, None] * C + channel[None, :], mask=mask, other=0.0)
        tile = (tile.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
        total = tl.dot(tile, tl.trans(tile), total, input_precision="tf32")
    return total


@triton.jit
def _ghost_norms(
    images, gradients, places, extents, out, batch,
    C: tl.constexpr, OUT: tl.constexpr, HW: tl.constexpr, P: tl.constexpr, T: tl.constexpr, SLACK: tl.constexpr,
    SPREAD: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The squared norm of one example's weight gradient, enlarged as `ghost_norms` says."""
    example = tl.program_id(0)
    position = tl.arange(0, BP)
    inside = position < P
    if example % batch < tl.load(extents + example // batch):
        image, gradient = images + example.to(tl.int64) * (HW * C), gradients + example.to(tl.int64) * (P * OUT)
        none = tl.zeros([BP, BP], dtype=tl.float32)
        # Double precision from place to place of the kernel: single precision sums over no more than the channels.
        patches = tl.zeros([BP, BP], dtype=tl.float64)
        for tap in range(T):
            pixel = tl.load(places + tap * P + position, mask=inside, other=HW)
            patches += _gram(image, pixel, pixel < HW, none, C, BC).to(tl.float64)
        errors = _gram(gradient, position, inside, none, OUT, BC).to(tl.float64)
        diagonal = position[:, None] == position[None, :]
        patches_size = 1.00390625 * tl.sum(tl.sum(tl.where(diagonal, patches, 0.0), axis=1), axis=0)
        errors_size = 1.00390625 * tl.sum(tl.sum(tl.where(diagonal, errors, 0.0), axis=1), axis=0)
        # 2^-100 for each number, far more than squares can lose because they are too small.
        size = (patches_size + T * C * P * 7.888609052210118e-31) * (errors_size + OUT * P * 7.888609052210118e-31)
        square = tl.sum(tl.sum(patches * errors, axis=1), axis=0)
        norm = tl.sqrt(square + SPREAD * size) + SLACK * tl.sqrt(size)
        tl.store(out + example, norm * norm)
    else:
        tl.store(out + example, 0.0)


@triton.jit
def _ghost_sums(
    pixels, errors, places, norms, sizes,
    HW: tl.constexpr, P: tl.constexpr, T: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Sums over pairs of positions of (inner product of patches) x (inner product of output gradients)."""
    example, tile = tl.program_id(0), tl.program_id(1)
    pair = tile * BP + tl.arange(0, BP)
    inside = pair < P * P
    first, second = pair // P, pair % P
    gram = pixels + example.to(tl.int64) * (HW * HW)
    patches = tl.zeros([BP], dtype=tl.float64)
    for tap in range(T):
        one = tl.load(places + tap * P + first, mask=inside, other=HW)
        two = tl.load(places + tap * P + second, mask=inside, other=HW)
        patches += tl.load(gram + one * HW + two, mask=inside & (one < HW) & (two < HW), other=0.0)
    seen = tl.load(errors + example.to(tl.int64) * (P * P) + pair, mask=inside, other=0.0)
    tl.store(norms + example * tl.num_programs(1) + tile, tl.sum(patches * seen, axis=0))
    diagonal = tl.where(first == second, patches, 0.0)
    tl.store(sizes + example * tl.num_programs(1) + tile, tl.sum(diagonal, axis=0))


def channels_first(images: Tensor) -> Tensor:
    """The same images in the order examples, channels, height, width; faster than the library's copy."""
    images = images.contiguous(memory_format=torch.channels_last)
    examples, channels, height, width = images.shape
    out = torch.empty_like(images, memory_format=torch.contiguous_format)
    grid = (triton.cdiv(height * width, _TILE), triton.cdiv(channels, _TILE), examples)
    _channels_first[grid](images, out, C=channels, P=height * width, BC=_TILE, BP=_TILE, num_warps=4)
    return out


def takes_ghost_norms(images: Tensor, gradients: Tensor) -> bool:
    """Whether `ghost_norms` is made for images and output gradients of these shapes."""
    return gradients[0, 0].numel() <= _POSITIONS and max(images.shape[1], gradients.shape[1]) <= _SUMMANDS


def ghost_norms(images: Tensor, gradients: Tensor, places: Tensor, extents: Tensor, slack: float) -> Tensor:
    """Squared norms of the weight gradients of a convolution, examples, in double precision; 0 beyond the extents.

    Guarantee: none is below (|H| + slack |a| |g|)^2, where a are the patches of an example, g its output gradients, and
    H = sum_t h_t b_t^T is what they give when they are cut to TF32, to b and h. (So they lie within 4 units of |a| |g|
    of those of a and g, as `clipping` allows for.)

    |H|^2 = sum_{t,s} (b_t . b_s) (h_t . h_s) comes from Gram matrices. Products of two numbers of TF32 are exact in
    single precision, so only sums over the channels are off: an inner product over C channels by at most e |b_t| |b_s|
    with e = C 2^-22, and with it, by Cauchy-Schwarz, sum_{t,s} by (e + e' + e e') (sum_t |b_t| |h_t|)^2, which is at
    most (e + e' + e e') |b|^2 |h|^2. That is added to |H|^2 before the root is taken. The diagonals, |b|^2 and |h|^2,
    are enlarged by 2^-8, which covers e <= 2^-11 and what was cut off: |a| <= |b| / (1 - 2^-10).

    Assumes: the hardware loses at most 2^-22 of the sum of absolute values with each product that it adds: four times
    what rounding to single precision does, twice what cutting does.

    Args:
        images: examples x channels x height x width.
        gradients: examples x outputs x height x width.
        places: for each place of the kernel and each position the pixel under it, or one beyond the last outside.
        extents: for each model, the position in the batch from which there is only padding.
        slack: what is added to a norm, relative to |a| |g|.
    """
    images, gradients = (values.contiguous(memory_format=torch.channels_last) for values in (images, gradients))
    examples, channels, outputs = len(images), images.shape[1], gradients.shape[1]
    positions = gradients[0, 0].numel()
    out = torch.empty(examples, dtype=torch.float64, device=images.device)
    # One more for e e', since neither number of channels is above 2^11.
    spread = (channels + outputs + 1) * 2.0**-22
    _ghost_norms[(examples,)](
        images, gradients, places, extents, out, examples // len(extents),
        C=channels, OUT=outputs, HW=images[0, 0].numel(), P=positions, T=len(places), SLACK=slack, SPREAD=spread,
        **_ghost_tiles(positions),
    )  # fmt: skip
    return out


def _ghost_tiles(positions: int) -> dict[str, int]:
    """Sizes of tiles, as measured to be fast on an H200; any are right."""
    tall = max(16, triton.next_power_of_2(positions))
    return {"BP": tall, "BC": 32 if tall > 32 else 64, "num_warps": 4, "num_stages": 4}


def ghost_sums(pixels: Tensor, errors: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Squared norms of weight gradients from Gram matrices, and the squared norms of all patches together.

    Args:
        pixels: inner products of the pixels of each example, examples x HW x HW, double.
        errors: inner products of the output gradients at all positions, examples x P x P, double.
        places: for each place of the kernel and each position the pixel under it, or HW outside of the image.
    """
    examples, count = len(pixels), errors.shape[1]
    tiles = triton.cdiv(count * count, _PAIRS)
    norms, sizes = (pixels.new_empty(examples, tiles) for _ in range(2))
    _ghost_sums[(examples, tiles)](
        pixels, errors, places, norms, sizes, HW=pixels.shape[1], P=count, T=len(places), BP=_PAIRS,
    )  # fmt: skip
    return norms.sum(dim=1), sizes.sum(dim=1)
