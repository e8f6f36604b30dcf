"""Arithmetic on images, in arrays with the images last: every operation is rounded alike on every machine."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

# Half of a drawn body's width and height as parts of the image's, and log2 of its exponent: diamond to nearly a box.
_BODY_SIZES = (0.3, 0.4, 0.5)
_BODY_DOUBLINGS = (0, 1, 2, 3)


def row_first(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(values, -1, 0), dtype=np.float64)


def longest_gradient(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Differences across and down, and their length, [H, W, n], from the channel where they are longest."""
    across, down, length = _gradient(pixels[0])
    for channel in pixels[1:]:
        other_across, other_down, other_length = _gradient(channel)
        longer = other_length > length
        np.copyto(across, other_across, where=longer)
        np.copyto(down, other_down, where=longer)
        np.copyto(length, other_length, where=longer)
    return across, down, length


def _gradient(plane: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    across, down = np.zeros_like(plane), np.zeros_like(plane)
    across[:, 1:-1] = (plane[:, 2:] - plane[:, :-2]) * np.float32(0.5)
    down[1:-1] = (plane[2:] - plane[:-2]) * np.float32(0.5)
    return across, down, np.sqrt(across * across + down * down)


def coarse_means(pixels: np.ndarray, cells: int) -> np.ndarray:
    """Weighted means [n, channels, cells, cells] of pixels [channels, H, W, n]."""
    # Divided by the sum of its weights, a coarse pixel is a mean at the border as well: a flat image stays flat.
    weights = pooled(np.ones((*pixels.shape[1:3], 1), dtype=np.float32), cells)
    return row_first(np.stack([pooled(channel, cells) / weights for channel in pixels]))


def opponent_colours(pixels: np.ndarray) -> np.ndarray:
    """Brightness, red against green, and yellow against blue."""
    red, green, blue = pixels
    return np.stack([(red + green + blue) / np.float32(3), red - green, (red + green) / np.float32(2) - blue])


def coarse_colours(pixels: np.ndarray, cells: int, weight: float) -> np.ndarray:
    """Coarse pixels [n, 3, cells, cells]: brightness minus its mean over cells, and both colours times `weight`."""
    means = coarse_means(opponent_colours(pixels), cells)
    means[:, 0] -= means[:, 0].mean(axis=(1, 2), keepdims=True)
    means[:, 1:] *= weight
    return means


def symmetric(grid: np.ndarray, swapped: np.ndarray) -> np.ndarray:
    """Rows [n, d]: the mean of a grid [n, k, cells, cells] and of another with left and right exchanged."""
    return np.ascontiguousarray((grid + swapped[..., ::-1]) / 2).reshape(len(grid), -1)


def drawn_bodies(height: int, width: int) -> np.ndarray:
    """Bright superellipses in the middle of dark images, [1, H, W, bodies]."""
    down = np.abs(np.arange(height) + 0.5 - height / 2)[:, None]
    across = np.abs(np.arange(width) + 0.5 - width / 2)
    bodies: list[np.ndarray] = []
    for a, b, doublings in itertools.product(_BODY_SIZES, _BODY_SIZES, _BODY_DOUBLINGS):
        distance = _p_norm(across / (a * width), down / (b * height), doublings)
        bodies.append(np.clip((1 - distance) * min(a * width, b * height) + 0.5, 0, 1))
    return np.stack(bodies, axis=-1)[None].astype(np.float32)


def _p_norm(x: np.ndarray, y: np.ndarray, doublings: int) -> np.ndarray:
    """(x^p + y^p)^(1/p) with p = 2^doublings, by operations that are rounded alike on every machine."""
    norm = power(x, 2**doublings) + power(y, 2**doublings)
    for _ in range(doublings):
        norm = np.sqrt(norm)
    return norm


def power(base: np.ndarray, exponent: int) -> np.ndarray:
    """A power by multiplications: correctly rounded each, so the same on every machine."""
    result = base
    for bit in bin(exponent)[3:]:
        result = result * result
        if bit == "1":
            result = result * base
    return result


def pooled(plane: np.ndarray, cells: int) -> np.ndarray:
    """Sums [cells, cells, n] of a plane [H, W, n] with bilinear weights."""
    rows = np.zeros((cells, *plane.shape[1:]), dtype=np.float32)
    for pixel, cell, weight in _shares(plane.shape[0], cells):
        rows[cell] += plane[pixel] * weight
    sums = np.zeros((cells, cells, plane.shape[2]), dtype=np.float32)
    for pixel, cell, weight in _shares(plane.shape[1], cells):
        sums[:, cell] += rows[:, pixel] * weight
    return sums


def _shares(pixels: int, cells: int) -> Iterator[tuple[int, int, np.float32]]:
    """How each pixel of a line is shared between the two nearest cells: 1 at a centre, falling to 0 at the next."""
    for pixel in range(pixels):
        position = (pixel + 0.5) * cells / pixels - 0.5  # in cells, 0 at the centre of the first
        for cell in (math.floor(position), math.floor(position) + 1):
            weight = 1.0 - abs(position - cell)
            if 0 <= cell < cells and weight > 0:
                yield pixel, cell, np.float32(weight)
