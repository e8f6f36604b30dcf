"""Images as histograms of gradient directions, and variants of them for things, photographs and textures."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mithridate import _validate
from mithridate.errors import ConfigError
from mithridate.features._encoder import Encoder, check_finite, chunks, numbers, scaled, unit_rows

# Beyond this, squares overflow in float32.
_LARGEST_PIXEL = 1e9
# Norms below this are rounding errors of a flat image, which must not be blown up to a pattern.
_FLAT = 1e-3


def _blurred(pixels: np.ndarray, deviation: float) -> np.ndarray:
    """Images [channels, H, W, n] with every pixel the weighted mean of those around it, the border repeated."""
    reach = max(1, math.ceil(3 * deviation))
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / deviation) ** 2)
    weights = (weights / weights.sum()).astype(np.float32)
    for axis in (1, 2):
        width = [(reach, reach) if each == axis else (0, 0) for each in range(4)]
        padded, size = np.pad(pixels, width, mode="edge"), pixels.shape[axis]
        # One number of each image at a time, in one order: a row does not depend on the images beside it.
        total = np.zeros_like(pixels)
        for at, weight in enumerate(weights):
            total += weight * padded[(slice(None),) * axis + (slice(at, at + size),)]
        pixels = total
    return pixels


@dataclass(frozen=True)
class OrientedGradients(Encoder):
    """Images as histograms of gradient directions on a grid of cells, with coarse pixels and a bias.

    Pixels are first blurred by a Gaussian of standard deviation `blur`, in pixels, where that is above 0: gradients of
    noisy images (`input_noise`) are mostly noise without it. Central differences (none across the border; with several
    channels, those of the channel where they are longest at that pixel) give every pixel a length and a direction. Each
    of `orientations` evenly spaced directions receives length times cos^`sharpness` of the angle to it, where the angle
    is acute, and each pixel shares this between the nearest cells (bilinear weights). Of the histograms the square root
    is taken; each cell loses its mean over directions, then each direction the part `cell_centering` of its mean over
    cells; the block is scaled to norm 1. Coarse pixels are weighted means on a grid of `coarse_cells` per channel, less
    their mean over cells and channels, scaled to norm `coarse_weight`. The row is both blocks and `bias`, scaled to
    norm 1.

    Guarantee:
        Each row of the result is a function of that image and these constants alone, whatever the other images are,
        and equal bit for bit whether it is computed alone or with others.

    Assumes:
        The constants are chosen without looking at the data to be certified. The defaults were chosen on MNIST's
        training set, with a look at Fashion-MNIST and CIFAR-10, and are public constants now; a certificate on these
        sets does not cover an attacker who could have steered that choice.

    Args:
        cells: histograms per side of the image, at least 1.
        orientations: directions of the full circle, at least 2.
        sharpness: how narrowly a direction is tuned, a whole number of at least 1.
        cell_centering: part of a direction's mean over cells that is taken out, in [0, 1].
        coarse_cells: coarse pixels per side of the image, at least 1.
        coarse_weight: norm of the coarse pixels beside the histograms' norm of 1; 0 leaves them out.
        bias: last number of every row, before the row is scaled; 0 leaves it out.
        blur: standard deviation of the blur in pixels, from 0 to 10; the border is repeated beyond itself.

    Edge cases:
        ====================  =========================================================================
        8-bit images          are divided by 255; floats are taken as they are
        a flat image          only the bias is not zero; without a bias the whole row is zero
        [n, H, W]             is [n, 1, H, W]; channels in the last axis are not guessed
        no images             an empty result with the right number of columns
        ====================  =========================================================================

    References:
        N. Dalal, B. Triggs, 2005, "Histograms of oriented gradients for human detection" (cells, bilinear sharing,
        largest channel); R. Arandjelović, A. Zisserman, 2012, "Three things everyone should know to improve object
        retrieval" (square root).

    >>> OrientedGradients().transform(np.zeros((2, 28, 28), dtype=np.uint8)).shape
    (2, 154)
    """

    name: ClassVar[str] = "oriented-gradients"
    tuned_on: ClassVar[tuple[str, ...]] = ("MNIST", "Fashion-MNIST", "CIFAR-10")

    cells: int = 4
    orientations: int = 8
    sharpness: int = 8
    cell_centering: float = 0.5
    coarse_cells: int = 5
    coarse_weight: float = 0.3
    bias: float = 0.1
    blur: float = 0.0

    def __post_init__(self) -> None:
        _validate.number_in(0, 10, blur=self.blur)
        _validate.positive_integer(
            cells=self.cells, orientations=self.orientations, sharpness=self.sharpness, coarse_cells=self.coarse_cells
        )
        if self.orientations < 2:
            raise ConfigError("Expected orientations of at least 2; one direction is no histogram.")
        _validate.number_in(0, 1, cell_centering=self.cell_centering)
        _validate.number_in(0, math.inf, coarse_weight=self.coarse_weight, bias=self.bias)
        self._use_plain_numbers()

    def to_dict(self) -> dict[str, Any]:
        """As of any encoder; no blur is not mentioned."""
        return {name: value for name, value in super().to_dict().items() if name != "blur" or value}

    def transform(self, x: np.ndarray) -> np.ndarray:
        """Features of images.

        Args:
            x: images [n, H, W] or [n, channels, H, W], 8-bit or float.

        Returns:
            float32 array [n, d], rows of norm 1 (or 0).

        Raises:
            ConfigError: the array is not images of this kind, or has pixels that are not finite or beyond 1e9.
        """
        images = numbers(x, "images")
        if images.ndim == 3:
            images = images[:, None]
        self._check_images(images)
        n, channels, height, width = images.shape
        out = np.empty((n, self._columns(channels)), dtype=np.float32)
        for rows in chunks(n, channels * height * width * 4):
            pixels = scaled(images[rows], np.float32)
            check_finite(pixels, rows.start, largest=_LARGEST_PIXEL)
            # Images last: every operation below then works on one number of each image, none on several images.
            images_last = np.ascontiguousarray(np.moveaxis(pixels, 0, -1))
            out[rows] = self._features(_blurred(images_last, self.blur) if self.blur else images_last)
        return out

    def _check_images(self, images: np.ndarray) -> None:
        if images.ndim != 4:
            raise ConfigError(f"Expected images as [n, H, W] or [n, channels, H, W], got shape {images.shape}.")
        if images.dtype.kind != "f" and images.dtype != np.uint8:
            raise ConfigError(f"Expected images as uint8 or floats, got {images.dtype}; convert them to one of these.")
        least = self._least_size()
        if min(images.shape[2:]) < least or images.shape[1] < 1:
            raise ConfigError(
                f"Expected images of at least {least} x {least} pixels and one channel, got shape {images.shape}; "
                "channels come before height and width."
            )

    def _least_size(self) -> int:
        return max(3, self.cells, self.coarse_cells if self.coarse_weight else 1)

    def _columns(self, channels: int) -> int:
        coarse = channels * self.coarse_cells**2 if self.coarse_weight else 0
        return self.orientations * self.cells**2 + coarse + (1 if self.bias else 0)

    def _features(self, pixels: np.ndarray) -> np.ndarray:
        blocks = [norm * unit_rows(rows, least=_FLAT) for norm, rows in self._blocks(pixels)]
        if self.bias:
            blocks.append(np.full((pixels.shape[-1], 1), self.bias))
        return unit_rows(np.concatenate(blocks, axis=1))

    def _blocks(self, pixels: np.ndarray) -> list[tuple[float, np.ndarray]]:
        """The parts of the rows, each with the norm to which it is scaled."""
        return [(1.0, self._histograms(pixels)), *self._coarse_block(pixels)]

    def _coarse_block(self, pixels: np.ndarray) -> list[tuple[float, np.ndarray]]:
        return [(self.coarse_weight, self._coarse_pixels(pixels))] if self.coarse_weight else []

    def _histograms(self, pixels: np.ndarray) -> np.ndarray:
        return self._centred(self._sums(pixels, self.cells))

    def _sums(self, pixels: np.ndarray, cells: int) -> np.ndarray:
        """Lengths of the gradients by direction and cell, [orientations, cells, cells, n]."""
        across, down, length = _longest_gradient(pixels)
        unit = 1.0 / np.where(length > 0, length, np.float32(1.0))
        across, down = across * unit, down * unit
        sums = np.empty((self.orientations, cells, cells, pixels.shape[-1]), dtype=np.float32)
        for k in range(self.orientations):
            angle = 2 * math.pi * k / self.orientations
            cosine = across * np.float32(math.cos(angle)) + down * np.float32(math.sin(angle))
            np.maximum(cosine, 0, out=cosine)
            sums[k] = _pooled(length * _power(cosine, self.sharpness), cells)
        return sums

    def _centred(self, sums: np.ndarray) -> np.ndarray:
        """Rows [n, d]: the square roots, less their means over directions and over cells."""
        # Row first from here on: [n, direction, cell].
        roots = np.sqrt(_row_first(sums).reshape(sums.shape[-1], self.orientations, -1))
        roots -= roots.mean(axis=1, keepdims=True)
        roots -= self.cell_centering * roots.mean(axis=2, keepdims=True)
        return roots.reshape(len(roots), -1)

    def _coarse_pixels(self, pixels: np.ndarray) -> np.ndarray:
        rows = _coarse_means(pixels, self.coarse_cells)
        rows = rows.reshape(len(rows), -1)
        return rows - rows.mean(axis=1, keepdims=True)


@dataclass(frozen=True)
class ObjectGradients(OrientedGradients):
    """Oriented gradients for one bright thing on a dark ground, less what any such thing has.

    A thing in the middle has edges all around it that look inwards, whatever it is, and rows have this in common. What
    they share is computed from drawn bodies, not from data: bright superellipses |x/a|^p + |y/b|^p <= 1 in the middle
    of a dark image, with a and b of 0.3, 0.4 and 0.5 of its width and height and p of 1, 2, 4 and 8, the rim one pixel
    wide. Of each of these 36 images the histograms, as `OrientedGradients` has them, are scaled to norm 1. Their mean,
    times `body_centering` and the norm of the histograms of an image, is subtracted from these; all else is as with
    `OrientedGradients`.

    Guarantee:
        Each row of the result is a function of that image and these constants alone, whatever the other images are,
        and equal bit for bit whether it is computed alone or with others.

    Assumes:
        The constants are chosen without looking at the data to be certified. The defaults were chosen on the training
        sets of Fashion-MNIST and MNIST and are public constants now; a certificate on these sets does not cover an
        attacker who could have steered that choice.

    Args:
        cells: see `OrientedGradients`, likewise the others but the last.
        body_centering: part of what the drawn bodies share that is taken out, in [0, 1].

    Edge cases:
        ====================  =========================================================================
        dark on bright        invert the images first: the edges of a body then look inwards
        a flat image          only the bias is not zero, as with `OrientedGradients`
        ====================  =========================================================================

    >>> ObjectGradients().transform(np.zeros((2, 28, 28), dtype=np.uint8)).shape
    (2, 289)
    """

    name: ClassVar[str] = "object-gradients"
    tuned_on: ClassVar[tuple[str, ...]] = ("Fashion-MNIST", "MNIST")

    cells: int = 6
    cell_centering: float = 1.0
    coarse_weight: float = 0.0
    body_centering: float = 0.8

    def __post_init__(self) -> None:
        _validate.number_in(0, 1, body_centering=self.body_centering)
        super().__post_init__()

    def _histograms(self, pixels: np.ndarray) -> np.ndarray:
        rows = super()._histograms(pixels)
        if not self.body_centering:
            return rows
        plain = OrientedGradients(self.cells, self.orientations, self.sharpness, self.cell_centering)
        shared = self.body_centering * _shared_by_bodies(plain, *pixels.shape[1:3])
        return rows - np.sqrt((rows * rows).sum(axis=1, keepdims=True)) * shared


@dataclass(frozen=True)
class PhotoGradients(OrientedGradients):
    """Oriented gradients for photographs: left and right are one, and colours count for more than brightness.

    A thing and its mirror image are of one class, so a row is made of the mean of an image's features and those of its
    mirror image, block by block before the blocks are scaled. (Mirroring swaps directions and cells, so nothing is
    computed twice.) Of images with three channels, red, green and blue, the coarse pixels are brightness (the mean of
    the channels), red - green and (red + green) / 2 - blue: brightness minus its mean over cells, and both colours
    times `colour_weight`. Images with other channels have coarse pixels as with `OrientedGradients`.

    Guarantee:
        Each row of the result is a function of that image and these constants alone, whatever the other images are,
        and equal bit for bit whether it is computed alone or with others.

    Assumes:
        The constants are chosen without looking at the data to be certified. The defaults were chosen on CIFAR-10's
        training set and are public constants now; a certificate on this set does not cover an attacker who could have
        steered that choice.

    Args:
        cells: see `OrientedGradients`, likewise the others but the last.
        orientations: directions of the full circle, an even number.
        colour_weight: factor of both colours beside brightness.

    Edge cases:
        ====================  =========================================================================
        a mirrored image      has the same features, up to rounding
        a flat grey image     only the bias is not zero, up to rounding; a flat colour keeps its colour
        ====================  =========================================================================

    References:
        K. van de Sande, T. Gevers, C. Snoek, 2010, "Evaluating color descriptors for object and scene recognition"
        (opponent colours).

    >>> PhotoGradients().transform(np.zeros((2, 3, 32, 32), dtype=np.uint8)).shape
    (2, 204)
    """

    name: ClassVar[str] = "photo-gradients"
    tuned_on: ClassVar[tuple[str, ...]] = ("CIFAR-10",)

    cell_centering: float = 0.25
    coarse_weight: float = 0.6
    colour_weight: float = 3.0

    def __post_init__(self) -> None:
        _validate.number_in(0, math.inf, colour_weight=self.colour_weight)
        super().__post_init__()
        if self.orientations % 2:
            raise ConfigError("Expected an even number of orientations; the mirror image of each is one of them.")

    def _histograms(self, pixels: np.ndarray) -> np.ndarray:
        rows = super()._histograms(pixels)
        grid = rows.reshape(len(rows), self.orientations, self.cells, self.cells)
        mirrored = [(self.orientations // 2 - k) % self.orientations for k in range(self.orientations)]
        return _symmetric(grid, grid[:, mirrored])

    def _coarse_pixels(self, pixels: np.ndarray) -> np.ndarray:
        if len(pixels) == 3:
            means = _coarse_colours(pixels, self.coarse_cells, self.colour_weight)
        else:
            means = super()._coarse_pixels(pixels).reshape(-1, len(pixels), self.coarse_cells, self.coarse_cells)
        return _symmetric(means, means)


@dataclass(frozen=True)
class LayeredGradients(OrientedGradients):
    """Gradients of gradients: how edges of each direction lie and change over the image, corners and textures.

    The first layer is as with `OrientedGradients`, on a fine grid: the square roots of the histograms on `fine_cells`
    per side are one small image for each direction, bright where there are such edges. The second layer has of each of
    these images the histograms of `OrientedGradients` on `cells` per side, centred as there. All of these together are
    the first block, scaled to norm 1. Further blocks are histograms of `OrientedGradients`, scaled to norm
    `edge_weight`, and coarse pixels, scaled to norm `coarse_weight`. The row is these blocks and `bias`, scaled to norm
    1.

    Images with three channels, red, green and blue, count as brightness (the mean of the channels), red - green and
    (red + green) / 2 - blue. Both layers see the brightness; of both colours there is one block of edges each. Coarse
    pixels are brightness minus its mean over cells, and both colours times `colour_weight`. Of images with other
    channels each layer takes the longest gradient, and coarse pixels are those of `OrientedGradients`.

    For methods that compare examples, such as nearest neighbours.

    Guarantee:
        Each row of the result is a function of that image and these constants alone, whatever the other images are,
        and equal bit for bit whether it is computed alone or with others.

    Assumes:
        The constants are chosen without looking at the data to be certified. The defaults were chosen on the training
        sets of Fashion-MNIST and CIFAR-10 and are public constants now; a certificate on these sets does not cover an
        attacker who could have steered that choice.

    Args:
        cells: see `OrientedGradients`, likewise the others but the last three.
        fine_cells: cells of the first layer per side of the image, at least 3.
        edge_weight: norm of each block of edges beside the norm of 1 of the second layer; 0 leaves them out.
        colour_weight: factor of both colours beside brightness in the coarse pixels.

    Edge cases:
        ====================  =========================================================================
        a flat grey image     only the bias is not zero; a flat colour keeps its colour
        faint edges           count nearly as much as strong ones: two square roots lift them, noise as well
        ====================  =========================================================================

    References:
        J. Bruna, S. Mallat, 2013, "Invariant scattering convolution networks" (a second layer over the lengths of the
        first); K. van de Sande, T. Gevers, C. Snoek, 2010, "Evaluating color descriptors for object and scene
        recognition" (gradients of opponent colours).

    >>> LayeredGradients().transform(np.zeros((2, 28, 28), dtype=np.uint8)).shape
    (2, 2305)
    """

    name: ClassVar[str] = "layered-gradients"
    tuned_on: ClassVar[tuple[str, ...]] = ("Fashion-MNIST", "CIFAR-10")

    cells: int = 6
    cell_centering: float = 1.0
    coarse_weight: float = 0.0
    fine_cells: int = 18
    edge_weight: float = 0.0
    colour_weight: float = 3.0

    def __post_init__(self) -> None:
        _validate.positive_integer(cells=self.cells, fine_cells=self.fine_cells)
        if self.fine_cells < max(3, self.cells):
            raise ConfigError(
                f"Expected fine_cells of at least {max(3, self.cells)}, 3 and as many as cells, got {self.fine_cells}; "
                "the second layer looks for gradients between them."
            )
        _validate.number_in(0, math.inf, edge_weight=self.edge_weight, colour_weight=self.colour_weight)
        super().__post_init__()

    def _least_size(self) -> int:
        return max(super()._least_size(), self.fine_cells)

    def _columns(self, channels: int) -> int:
        edges = (3 if channels == 3 else 1) if self.edge_weight else 0
        # What `OrientedGradients` has counts for one image of the first layer.
        return super()._columns(channels) + (self.orientations - 1 + edges) * self.orientations * self.cells**2

    def _blocks(self, pixels: np.ndarray) -> list[tuple[float, np.ndarray]]:
        planes = _opponent_colours(pixels)[:, None] if len(pixels) == 3 else pixels[None]
        edges = [(self.edge_weight, self._histograms(plane)) for plane in planes] if self.edge_weight else []
        first = np.sqrt(self._sums(planes[0], self.fine_cells))
        second = np.concatenate([self._histograms(image[None]) for image in first], axis=1)
        return [(1.0, second), *edges, *self._coarse_block(pixels)]

    def _coarse_pixels(self, pixels: np.ndarray) -> np.ndarray:
        if len(pixels) != 3:
            return super()._coarse_pixels(pixels)
        return _coarse_colours(pixels, self.coarse_cells, self.colour_weight).reshape(pixels.shape[-1], -1)


@functools.lru_cache(maxsize=16)
def _shared_by_bodies(encoder: OrientedGradients, height: int, width: int) -> np.ndarray:
    """Mean of the histograms, of norm 1 each, of the drawn bodies."""
    shared = unit_rows(encoder._histograms(_drawn_bodies(height, width)), least=_FLAT).mean(axis=0)
    shared.flags.writeable = False
    return shared


# --- arithmetic, with the images last: every operation is rounded alike on every machine ------------------------------

# Half of a drawn body's width and height as parts of the image's, and log2 of its exponent: diamond to nearly a box.
_BODY_SIZES = (0.3, 0.4, 0.5)
_BODY_DOUBLINGS = (0, 1, 2, 3)


def _row_first(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(values, -1, 0), dtype=np.float64)


def _longest_gradient(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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


def _coarse_means(pixels: np.ndarray, cells: int) -> np.ndarray:
    """Weighted means [n, channels, cells, cells] of pixels [channels, H, W, n]."""
    # Divided by the sum of its weights, a coarse pixel is a mean at the border as well: a flat image stays flat.
    weights = _pooled(np.ones((*pixels.shape[1:3], 1), dtype=np.float32), cells)
    return _row_first(np.stack([_pooled(channel, cells) / weights for channel in pixels]))


def _opponent_colours(pixels: np.ndarray) -> np.ndarray:
    """Brightness, red against green, and yellow against blue."""
    red, green, blue = pixels
    return np.stack([(red + green + blue) / np.float32(3), red - green, (red + green) / np.float32(2) - blue])


def _coarse_colours(pixels: np.ndarray, cells: int, weight: float) -> np.ndarray:
    """Coarse pixels [n, 3, cells, cells]: brightness minus its mean over cells, and both colours times `weight`."""
    means = _coarse_means(_opponent_colours(pixels), cells)
    means[:, 0] -= means[:, 0].mean(axis=(1, 2), keepdims=True)
    means[:, 1:] *= weight
    return means


def _symmetric(grid: np.ndarray, swapped: np.ndarray) -> np.ndarray:
    """Rows [n, d]: the mean of a grid [n, k, cells, cells] and of another with left and right exchanged."""
    return np.ascontiguousarray((grid + swapped[..., ::-1]) / 2).reshape(len(grid), -1)


def _drawn_bodies(height: int, width: int) -> np.ndarray:
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
    norm = _power(x, 2**doublings) + _power(y, 2**doublings)
    for _ in range(doublings):
        norm = np.sqrt(norm)
    return norm


def _power(base: np.ndarray, exponent: int) -> np.ndarray:
    """A power by multiplications: correctly rounded each, so the same on every machine."""
    result = base
    for bit in bin(exponent)[3:]:
        result = result * result
        if bit == "1":
            result = result * base
    return result


def _pooled(plane: np.ndarray, cells: int) -> np.ndarray:
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
