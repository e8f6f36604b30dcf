# The language inside kernels is not Python, and its types are not known to a type checker.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false
"""Triton kernels for convolutions that the vendor's library computes, with the channels last.

The library gives sums over a batch, but not the norms of single examples' gradients. For images with few positions they
come from Gram matrices; for others from the gradients themselves (`kernels.conv_example_gradients`), which wants the
channels first.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_PAIRS = 1024  # pairs of positions of one program
_TILE = 64  # channels and pixels that are turned at a time


@triton.jit
def _channels_first(values, out, C: tl.constexpr, P: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr):
    """A tile of one example, turned."""
    example = tl.program_id(2).to(tl.int64) * (C * P)
    pixel, channel = tl.program_id(0) * BP + tl.arange(0, BP), tl.program_id(1) * BC + tl.arange(0, BC)
    inside = (pixel < P)[:, None] & (channel < C)[None, :]
    tile = tl.load(values + example + pixel[:, None] * C + channel[None, :], mask=inside)
    tl.store(out + example + channel[:, None] * P + pixel[None, :], tl.trans(tile), mask=tl.trans(inside))


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
