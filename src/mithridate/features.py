"""Fixed encoders before a small model: images, tables and text to rows of numbers, learning nothing from the data.

Few parameters and good fixed features buy radius: the noise that training adds to the score of an input is proportional
to the norm of its features, so a feature that all inputs share costs certainty and tells the classes nothing. Hence
the two habits of this module: what is common to all rows is taken out where a constant rule can do it, and rows have
norm one.

An encoder is data-independent when every row of its output is a function of that input row alone. Then inserting,
deleting or changing r training examples changes r rows of features, and a certificate for training on the features is
one for training on the data. The encoders here keep to that bit for bit: they avoid matrix products, whose rounding can
depend on the number of rows. `docs/features.md` has the constants and what they reach.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np

from mithridate import _validate
from mithridate.core.conditions import Statement, tuned_constants
from mithridate.errors import ArtifactError, ConfigError

# Numbers held per chunk of rows: 32 MiB of float64. It bounds memory and cannot change a result.
_CHUNK_NUMBERS = 1 << 22
# Beyond this, squares overflow in float32.
_LARGEST_PIXEL = 1e9
# Norms below this are rounding errors of a flat image, which must not be blown up to a pattern.
_FLAT = 1e-3
_REMEMBERED_NGRAMS = 1_000_000
# Half of a drawn body's width and height as parts of the image's, and log2 of its exponent: diamond to nearly a box.
_BODY_SIZES = (0.3, 0.4, 0.5)
_BODY_DOUBLINGS = (0, 1, 2, 3)


@dataclass(frozen=True)
class OrientedGradients:
    """Images as histograms of gradient directions on a grid of cells, with coarse pixels and a bias.

    Central differences (none across the border; with several channels, those of the channel where they are longest at
    that pixel) give every pixel a length and a direction. Each of `orientations` evenly spaced directions receives
    length times cos^`sharpness` of the angle to it, where the angle is acute, and each pixel shares this between the
    nearest cells (bilinear weights). Of the histograms the square root is taken; each cell loses its mean over
    directions, then each direction the part `cell_centering` of its mean over cells; the block is scaled to norm 1.
    Coarse pixels are weighted means on a grid of `coarse_cells` per channel, minus their mean over cells and channels,
    scaled to norm `coarse_weight`. The row is both blocks and `bias`, scaled to norm 1.

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
    trusted: ClassVar[bool] = False

    cells: int = 4
    orientations: int = 8
    sharpness: int = 8
    cell_centering: float = 0.5
    coarse_cells: int = 5
    coarse_weight: float = 0.3
    bias: float = 0.1

    def __post_init__(self) -> None:
        _validate.positive_integer(
            cells=self.cells, orientations=self.orientations, sharpness=self.sharpness, coarse_cells=self.coarse_cells
        )
        if self.orientations < 2:
            raise ConfigError("Expected orientations of at least 2; one direction is no histogram.")
        _validate.number_in(0, 1, cell_centering=self.cell_centering)
        _validate.number_in(0, math.inf, coarse_weight=self.coarse_weight, bias=self.bias)
        _plain_numbers(self)

    def to_dict(self) -> dict[str, Any]:
        """The encoder as plain JSON values, enough for `from_dict`."""
        return _to_dict(self)

    def transform(self, x: np.ndarray) -> np.ndarray:
        """Features of images.

        Args:
            x: images [n, H, W] or [n, channels, H, W], 8-bit or float.

        Returns:
            float32 array [n, d], rows of norm 1 (or 0).

        Raises:
            ConfigError: the array is not images of this kind, or has pixels that are not finite or beyond 1e9.
        """
        images = _numbers(x, "images")
        if images.ndim == 3:
            images = images[:, None]
        self._check_images(images)
        n, channels, height, width = images.shape
        out = np.empty((n, self._columns(channels)), dtype=np.float32)
        for rows in _chunks(n, channels * height * width * 4):
            pixels = _scaled(images[rows], np.float32)
            _check_finite(pixels, rows.start, largest=_LARGEST_PIXEL)
            # Images last: every operation below then works on one number of each image, none on several images.
            out[rows] = self._features(np.ascontiguousarray(np.moveaxis(pixels, 0, -1)))
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
        blocks = [norm * _unit_rows(rows, least=_FLAT) for norm, rows in self._blocks(pixels)]
        if self.bias:
            blocks.append(np.full((pixels.shape[-1], 1), self.bias))
        return _unit_rows(np.concatenate(blocks, axis=1))

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
        return [(1.0, self._second_layer(planes[0])), *edges, *self._coarse_block(pixels)]

    def _second_layer(self, pixels: np.ndarray) -> np.ndarray:
        first = np.sqrt(self._sums(pixels, self.fine_cells))
        return np.concatenate([self._histograms(image[None]) for image in first], axis=1)

    def _coarse_pixels(self, pixels: np.ndarray) -> np.ndarray:
        if len(pixels) != 3:
            return super()._coarse_pixels(pixels)
        return _coarse_colours(pixels, self.coarse_cells, self.colour_weight).reshape(pixels.shape[-1], -1)


@dataclass(frozen=True)
class UnitNorm:
    """Rows of a table, shifted and scaled by public constants, with a bias, scaled to norm 1.

    Guarantee:
        Each row of the result is a function of that row and these constants alone, and equal bit for bit whether it is
        computed alone or with others.

    Assumes:
        `center` and `scale` come from outside the training data: a code book, units, other data. A mean or a standard
        deviation computed from the training set voids the certificate.

    Args:
        bias: appended to every row before it is scaled to norm 1; 0 leaves it out.
        center: subtracted from every row: one number for all columns, or one per column.
        scale: what the difference is divided by, above 0; likewise.

    Edge cases:
        ====================  =========================================================================
        a row of zeros        stays zero without a bias, and becomes 0, ..., 0, 1 with one
        images [n, ...]       are flattened
        8-bit numbers         are divided by 255, like pixels; other whole numbers are taken as they are
        ====================  =========================================================================

    >>> UnitNorm(bias=0.0).transform(np.array([[3.0, 4.0], [0.0, 0.0]]))
    array([[0.6, 0.8],
           [0. , 0. ]], dtype=float32)
    """

    name: ClassVar[str] = "unit-norm"
    trusted: ClassVar[bool] = False

    bias: float = 1.0
    center: float | tuple[float, ...] = 0.0
    scale: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        _validate.number_in(0, math.inf, bias=self.bias)
        for name, low in (("center", -math.inf), ("scale", 0.0)):
            object.__setattr__(self, name, _public_constants(getattr(self, name), name, low))
        if isinstance(self.center, tuple) and isinstance(self.scale, tuple) and len(self.center) != len(self.scale):
            raise ConfigError(
                f"center has {len(self.center)} numbers and scale {len(self.scale)}; give one per column."
            )
        _plain_numbers(self)

    def to_dict(self) -> dict[str, Any]:
        """The encoder as plain JSON values, enough for `from_dict`."""
        return _to_dict(self)

    def transform(self, x: np.ndarray) -> np.ndarray:
        """Features of table rows.

        Args:
            x: numbers [n, d], or [n, ...], which is flattened.

        Returns:
            float32 array [n, d] (with a bias [n, d + 1]), rows of norm 1 (or 0).

        Raises:
            ConfigError: the array is not numbers in rows, is not finite, or has another number of columns than
                `center` or `scale`.
        """
        table = _numbers(x, "rows")
        if table.ndim < 2:
            raise ConfigError(f"Expected rows [n, d], got shape {table.shape}; reshape one column to [n, 1].")
        # A row is summed in the order in which it lies in memory: always the same one.
        table = np.ascontiguousarray(table.reshape(len(table), math.prod(table.shape[1:])))
        columns = table.shape[1]
        if not columns:
            raise ConfigError(f"Expected rows with at least one number, got shape {np.shape(x)}.")
        center, scale = self._constants("center", columns), self._constants("scale", columns)
        out = np.empty((len(table), columns + (1 if self.bias else 0)), dtype=np.float32)
        for rows in _chunks(len(table), 2 * columns):
            with np.errstate(over="ignore"):
                values = (_scaled(table[rows], np.float64) - center) / scale
            _check_finite(values, rows.start)
            out[rows] = _unit_rows(_with_bias(values, self.bias))
        return out

    def _constants(self, name: str, columns: int) -> np.ndarray:
        values = np.atleast_1d(np.asarray(getattr(self, name), dtype=np.float64))
        if len(values) not in (1, columns):
            raise ConfigError(
                f"{name} has {len(values)} numbers, the rows have {columns}; give one number or {columns}."
            )
        return values


@dataclass(frozen=True)
class HashedNgrams:
    """Text as signed, hashed counts of character and word n-grams, scaled to norm 1.

    Text is lower-cased (if asked), runs of white space become one space, and one space is put at either end. Character
    n-grams are all its substrings of the given lengths; words are runs of letters, digits and underscores, and word
    n-grams are words in a row, joined by one space. An n-gram found c times counts 1 + log(c). Its place and its sign
    are the keyed BLAKE2b hash of its kind ("c" or "w") and its UTF-8 bytes: 8 bytes, read as a little-endian whole
    number h, give place h mod 2^63 mod `dimension`, and sign -1 if h is 2^63 or more.

    Guarantee:
        Each row of the result is a function of that text and these constants alone. The hash depends neither on
        PYTHONHASHSEED nor on the machine, and there is no vocabulary to learn.

    Assumes:
        The constants are chosen without looking at the data to be certified.

    Args:
        dimension: number of places, at least 2.
        chars: shortest and longest character n-gram, or None for none.
        words: shortest and longest word n-gram, or None for none.
        lowercase: whether "A" is "a".
        bias: appended to every row before it is scaled; 0 leaves it out.
        key: key of the hash, at most 64 bytes; another key shares out the collisions anew.

    Edge cases:
        ====================  =========================================================================
        empty text            stays zero without a bias (it has no n-gram of two characters or one word)
        bytes                 are refused: decode them first
        ====================  =========================================================================

    References:
        K. Weinberger et al., 2009, "Feature hashing for large scale multitask learning" (signs).

    >>> HashedNgrams().transform(["three words here", ""]).shape
    (2, 1024)
    """

    name: ClassVar[str] = "hashed-ngrams"
    trusted: ClassVar[bool] = False

    dimension: int = 1024
    chars: tuple[int, int] | None = (2, 4)
    words: tuple[int, int] | None = (1, 2)
    lowercase: bool = True
    bias: float = 0.0
    key: str = "mithridate"

    def __post_init__(self) -> None:
        _validate.positive_integer(dimension=self.dimension)
        if self.dimension < 2:
            raise ConfigError("Expected dimension of at least 2; all n-grams would share one place.")
        for name in ("chars", "words"):
            object.__setattr__(self, name, _lengths(getattr(self, name), name))
        if self.chars is None and self.words is None:
            raise ConfigError("Expected chars or words as a pair of lengths such as (2, 4); without both, no n-grams.")
        if not isinstance(self.lowercase, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Expected lowercase to be True or False, got {self.lowercase!r}.")
        _validate.number_in(0, math.inf, bias=self.bias)
        if not isinstance(self.key, str) or len(self.key.encode()) > 64:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Expected key as text of at most 64 bytes, got {self.key!r}.")
        _plain_numbers(self)

    def to_dict(self) -> dict[str, Any]:
        """The encoder as plain JSON values, enough for `from_dict`."""
        return _to_dict(self)

    def transform(self, x: np.ndarray | Sequence[str]) -> np.ndarray:
        """Features of texts.

        Args:
            x: list or one-dimensional array of text.

        Returns:
            float32 array [n, dimension] (with a bias one more), rows of norm 1 (or 0).

        Raises:
            ConfigError: this is not a list or array of text.
        """
        texts = _texts(x)
        out = np.empty((len(texts), self.dimension + (1 if self.bias else 0)), dtype=np.float32)
        places = {kind: _Places(kind, self.dimension, self.key) for kind in ("c", "w")}
        for rows in _chunks(len(texts), 2 * self.dimension):
            sums = np.stack([self._sums(text, places) for text in texts[rows]])
            out[rows] = _unit_rows(_with_bias(sums, self.bias))
        return out

    def _sums(self, text: str, places: dict[str, _Places]) -> np.ndarray:
        text = text.lower() if self.lowercase else text
        sums = np.zeros(self.dimension)
        if self.chars:
            sums += places["c"].sums(_windows(f" {' '.join(text.split())} ", self.chars))
        if self.words:
            words = _windows(re.findall(r"\w+", text), self.words)
            sums += places["w"].sums([" ".join(window) for window in words])
        return sums


class _Places(dict[str, tuple[int, float]]):
    """Place and sign of each n-gram of one kind, hashed when first asked for; what it remembers changes no result."""

    def __init__(self, kind: str, dimension: int, key: str) -> None:
        super().__init__()
        self.kind, self.dimension, self.key = kind, dimension, key.encode()

    def __missing__(self, ngram: str) -> tuple[int, float]:
        # Half a surrogate pair is no character, but it can stand in a string; it is hashed as it is.
        data = (self.kind + ngram).encode("utf-8", "surrogatepass")
        number = int.from_bytes(hashlib.blake2b(data, digest_size=8, key=self.key).digest(), "little")
        found = number % (1 << 63) % self.dimension, -1.0 if number >> 63 else 1.0
        self[ngram] = found
        return found

    def sums(self, ngrams: list[str]) -> np.ndarray:
        """Signed sums of 1 + log(count) at the n-grams' places."""
        if len(self) > _REMEMBERED_NGRAMS:
            self.clear()
        counts = Counter(ngrams)
        if not counts:
            return np.zeros(self.dimension)
        places, signs = zip(*[self[ngram] for ngram in counts], strict=True)
        weights = 1.0 + np.log(np.fromiter(counts.values(), dtype=np.float64))
        return np.bincount(places, weights * signs, minlength=self.dimension)


def _windows(items: Any, lengths: tuple[int, int]) -> list[Any]:
    """All runs of neighbours of the given lengths in a string or a list."""
    shortest, longest = lengths
    return [items[i : i + k] for k in range(shortest, longest + 1) for i in range(len(items) - k + 1)]


@dataclass(frozen=True)
class Frozen:
    """An encoder that the user vouches for, such as a network trained elsewhere.

    Guarantee:
        None of its own: the result is recorded as resting on this encoder, with `trained_on` in the user's words.

    Assumes:
        The function treats every row by itself and always alike, and nothing that it was trained on is open to the
        attacker or was drawn from the training set. Of this only a sample can be checked, and is: the first rows are
        computed again, in another order and number.

    Args:
        function: array [k, ...] to array [k, ...], one row for each; or a `torch.nn.Module`, which is called in
            evaluation mode without gradients on its own device, 8-bit numbers divided by 255.
        title: what the encoder is called, as a reader of the certificate may look it up.
        trained_on: what it was trained on, in words; the certificate repeats it.
        version: optional, such as a release or a commit.
        digest: optional, such as the SHA-256 of the weights.
        batch_size: most rows that the function is called with.

    >>> halves = Frozen(lambda rows: rows / 2, title="halves", trained_on="nothing")
    >>> halves.transform(np.ones((2, 3)))
    array([[0.5, 0.5, 0.5],
           [0.5, 0.5, 0.5]], dtype=float32)
    """

    name: ClassVar[str] = "frozen"
    trusted: ClassVar[bool] = True

    function: Callable[[Any], Any] = field(repr=False)
    title: str
    trained_on: str
    version: str | None = None
    digest: str | None = None
    batch_size: int = 256

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError(f"Expected function to be callable, array in and array out, got {self.function!r}.")
        for name in ("title", "trained_on"):
            _check_statement(name, getattr(self, name))
        for name in ("version", "digest"):
            if getattr(self, name) is not None:
                _check_statement(name, getattr(self, name))
        _validate.positive_integer(batch_size=self.batch_size)
        _plain_numbers(self)

    @property
    def assumption(self) -> Statement:
        """What a certificate on these features assumes, as a sentence."""
        version = f" {self.version}" if self.version else ""
        return Statement(
            f"The encoder {self.title!r}{version} is trusted. It is said to be trained on: {self.trained_on}. "
            "The certificate does not cover changes to that data.",
            "trusted-encoder",
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything but the function as plain JSON values; `from_dict` needs the function again."""
        return {key: value for key, value in _to_dict(self).items() if key != "function"}

    def transform(self, x: np.ndarray) -> np.ndarray:
        """What the function makes of the rows, checked.

        Args:
            x: array [n, ...] with at least one row.

        Returns:
            float32 array [n, d] (or [n, ...], as the function gives it).

        Raises:
            ConfigError: the function gives no finite numbers, or not one row for each, or other numbers for the same
                rows when they are computed again.
        """
        rows = np.ascontiguousarray(x)  # in one order in memory, on which rounding may depend
        if np.ndim(x) < 1 or not len(rows):
            raise ConfigError(f"Expected at least one row for the encoder {self.title!r}, got shape {rows.shape}.")
        if rows.dtype == object:
            raise ConfigError(
                "Expected an array of numbers or text, got Python objects; convert it with .astype first."
            )
        out = np.concatenate([self._call(rows[i : i + self.batch_size]) for i in range(0, len(rows), self.batch_size)])
        self._check_repeats(rows[:8], out[:8])
        return out

    def _call(self, rows: np.ndarray) -> np.ndarray:
        given = _call_module(self.function, rows) if _is_module(self.function) else self.function(rows)
        result = np.asarray(given)
        if result.dtype.kind not in "fiu" or result.ndim < 2 or len(result) != len(rows):
            raise ConfigError(
                f"The encoder {self.title!r} gave {result.dtype} of shape {result.shape} for {len(rows)} rows; "
                f"expected real numbers of shape ({len(rows)}, d)."
            )
        with np.errstate(over="ignore"):  # too large for float32 is found below
            result = result.astype(np.float32)
        if not np.isfinite(result).all():
            raise ConfigError(f"The encoder {self.title!r} gave numbers that are not finite; mend it or its input.")
        return result

    def _check_repeats(self, rows: np.ndarray, features: np.ndarray) -> None:
        # Room for the rounding of another batch size on a GPU, none for dropout or batch statistics.
        middle = len(rows) // 2
        parts = [part[::-1] for part in (rows[middle:], rows[:middle]) if len(part)]
        again = np.concatenate([self._call(np.ascontiguousarray(part)) for part in parts])[::-1]
        room = 1e-3 * max(float(np.abs(features).max(initial=0.0)), 1e-30)
        if again.shape != features.shape or np.abs(again - features).max(initial=0.0) > room:
            raise ConfigError(
                f"The encoder {self.title!r} gave other numbers for the same rows in another order; it must treat "
                "every row by itself and draw no random numbers (no dropout, no batch statistics)."
            )


Encoder = OrientedGradients | ObjectGradients | PhotoGradients | LayeredGradients | UnitNorm | HashedNgrams | Frozen
_CLASSES: dict[str, type[Encoder]] = {
    kind.name: kind
    for kind in (
        OrientedGradients,
        ObjectGradients,
        PhotoGradients,
        LayeredGradients,
        UnitNorm,
        HashedNgrams,
        Frozen,
    )
}
NAMES = tuple(_CLASSES)


def encoder(name: str, **constants: Any) -> Encoder:
    """The encoder of this name with these constants; what is left out has its default.

    Raises:
        ConfigError: the name or a constant is not known, is missing, or is outside its range.

    >>> encoder("unit-norm", bias=0.5)
    UnitNorm(bias=0.5, center=0.0, scale=1.0)
    """
    _validate.one_of(NAMES, features=name)
    kind = _CLASSES[name]
    known = [constant.name for constant in fields(kind)]
    foreign = sorted(set(constants) - set(known))
    if foreign:
        raise ConfigError(f"The encoder {name} has no {', '.join(foreign)}; it has {', '.join(known)}.")
    if kind is Frozen:
        missing = [required for required in ("function", "title", "trained_on") if required not in constants]
        if missing:
            raise ConfigError(f"The encoder frozen needs {', '.join(missing)}; a file cannot hold its function.")
    return kind(**constants)


def pick_encoder(features: Any) -> Encoder | None:
    """The encoder of a name, of a table with its name and other constants, or the encoder itself.

    Raises:
        ConfigError: it is none of these.

    >>> pick_encoder({"name": "unit-norm", "bias": 0.5})
    UnitNorm(bias=0.5, center=0.0, scale=1.0)
    """
    if features is None:
        return None
    if isinstance(features, str):
        return encoder(features)
    if isinstance(features, dict) and isinstance(features.get("name"), str):
        constants = {str(key): value for key, value in features.items() if key != "name"}
        return encoder(features["name"], **constants)
    if not isinstance(features, Encoder):
        raise ConfigError(
            f"Expected features to be a name, a table with a name and constants, or an encoder of mithridate.features, "
            f"got {features!r}; put an encoder of your own into features.Frozen."
        )
    return features


def about_encoder(chosen: Encoder | None, x: np.ndarray, classes: int) -> tuple[Statement, ...]:
    """What a certificate has to say about an encoder: that it is trusted, or what its constants were tuned on.

    Args:
        chosen: the encoder.
        x: raw inputs, of which the shape matters alone.
        classes: number of labels.
    """
    if isinstance(chosen, Frozen):
        return (chosen.assumption,)
    if not isinstance(chosen, OrientedGradients):
        return ()
    what = f"The constants of {chosen.name} features"
    return (tuned_constants(what, chosen.tuned_on, math.prod(x.shape[1:]), classes),)


def from_dict(values: dict[str, Any], *, function: Callable[[Any], Any] | None = None) -> Encoder:
    """Read back what `to_dict` wrote.

    Args:
        values: what `to_dict` wrote.
        function: the function of a frozen encoder, which no file can hold.

    Raises:
        ArtifactError: this is not what `to_dict` wrote.
        ConfigError: a constant is outside its range, or a frozen encoder comes without its function.

    >>> from_dict(HashedNgrams(dimension=64).to_dict()) == HashedNgrams(dimension=64)
    True
    """
    if not isinstance(values, dict) or values.get("name") not in NAMES:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArtifactError(
            f"Expected an encoder named {', '.join(NAMES)}, got {values!r}; is the file from a newer one?"
        )
    constants = {key: value for key, value in values.items() if key != "name"}
    return encoder(values["name"], **constants, **({} if function is None else {"function": function}))


# --- constants ------------------------------------------------------------------------------------------------------


def _to_dict(made: Encoder) -> dict[str, Any]:
    values = {constant.name: getattr(made, constant.name) for constant in fields(made)}
    return {"name": made.name, **{key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}}


def _plain_numbers(made: Encoder) -> None:
    """Turn the numbers of a checked encoder into Python's own, so that JSON takes them and equal is equal."""
    for constant in fields(made):
        value = getattr(made, constant.name)
        if str(constant.type) == "int":
            object.__setattr__(made, constant.name, int(value))
        elif str(constant.type) == "float":
            object.__setattr__(made, constant.name, float(value))


def _public_constants(value: Any, name: str, low: float) -> float | tuple[float, ...]:
    """One number, or one per column, each above `low`."""
    several = isinstance(value, (tuple, list, np.ndarray)) and np.ndim(value) == 1
    values: tuple[Any, ...] = tuple(value) if several else (value,)
    if not values:
        raise ConfigError(f"Expected {name} as one number or one per column, got none.")
    for number in values:
        _validate.number_in(low, math.inf, low_open=True, **{name: number})
    return tuple(float(number) for number in values) if several else float(values[0])


def _lengths(value: Any, name: str) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ConfigError(f"Expected {name} as shortest and longest length such as (2, 4), or None, got {value!r}.")
    _validate.positive_integer(**{name: value[0]})
    _validate.positive_integer(**{name: value[1]})
    if value[0] > value[1]:
        raise ConfigError(f"Expected {name} with the shortest length first, got {value!r}.")
    return int(value[0]), int(value[1])


def _check_statement(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"Expected {name} of the frozen encoder in words, got {value!r}; the certificate repeats it.")


# --- input ----------------------------------------------------------------------------------------------------------


def _numbers(x: Any, what: str) -> np.ndarray:
    try:
        array = np.asarray(x)
    except ValueError as error:
        raise ConfigError(f"Expected {what} as one array of numbers, got rows of different shapes.") from error
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
        raise ConfigError(f"Expected {what} as an array of numbers, got {array.dtype}; convert it with .astype(float).")
    return array


def _texts(x: Any) -> list[str]:
    if isinstance(x, np.ndarray):
        if x.ndim != 1 or x.dtype.kind not in "UT":
            raise ConfigError(
                f"Expected text as a one-dimensional array of strings, got {x.dtype} of shape {x.shape}; decode bytes, "
                "and convert Python objects with .astype(str)."
            )
        return [str(text) for text in x]
    if not isinstance(x, (list, tuple)):
        raise ConfigError(
            f"Expected text as a list or array of strings, got {type(x).__name__}; put one text in a list."
        )
    for i, text in enumerate(x):
        if not isinstance(text, str):
            raise ConfigError(
                f"Expected text as a list of strings, got {type(text).__name__} in row {i}; decode bytes."
            )
    return list(x)


def _scaled(values: np.ndarray, dtype: type) -> np.ndarray:
    with np.errstate(over="ignore"):  # too large for float32 is found by the check that follows
        numbers = values.astype(dtype)
    return numbers / dtype(255) if values.dtype == np.uint8 else numbers


def _check_finite(values: np.ndarray, first_row: int, largest: float = math.inf) -> None:
    bad = ~np.isfinite(values) | (np.abs(values) > largest)
    if bad.any():
        row = first_row + int(bad.reshape(len(values), -1).any(axis=1).argmax())
        limit = "" if math.isinf(largest) else f" of at most {largest:g}"
        raise ConfigError(
            f"Row {row} holds a number that is not finite or too large; expected numbers{limit}. Mend it."
        )


def _chunks(rows: int, numbers_per_row: int) -> Iterator[slice]:
    size = max(1, _CHUNK_NUMBERS // max(1, numbers_per_row))
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


# --- rows -----------------------------------------------------------------------------------------------------------


def _with_bias(rows: np.ndarray, bias: float) -> np.ndarray:
    return np.concatenate([rows, np.full((len(rows), 1), bias)], axis=1) if bias else rows


def _unit_rows(rows: np.ndarray, least: float = 0.0) -> np.ndarray:
    """Rows scaled to norm 1; those of norm below `least` are divided by `least`, and zero stays zero."""
    # Divided by the largest entry first: squares neither overflow nor vanish.
    peak = np.abs(rows).max(axis=1, keepdims=True)
    small = rows / np.where(peak > 0, peak, 1.0)
    norm = np.sqrt((small * small).sum(axis=1, keepdims=True))
    return np.divide(small, np.where(norm > 0, norm, 1.0)) * np.minimum(1.0, norm * peak / least if least else 1.0)


# --- images, in arrays with the images last -------------------------------------------------------------------------


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


@functools.lru_cache(maxsize=16)
def _shared_by_bodies(encoder: OrientedGradients, height: int, width: int) -> np.ndarray:
    """Mean of the histograms, of norm 1 each, of the drawn bodies."""
    shared = _unit_rows(encoder._histograms(_drawn_bodies(height, width)), least=_FLAT).mean(axis=0)
    shared.flags.writeable = False
    return shared


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


# --- modules --------------------------------------------------------------------------------------------------------


def _is_module(function: Any) -> bool:
    """Whether this is a `torch.nn.Module`; without torch imported by somebody, nothing is one."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(function, torch.nn.Module)


def _call_module(module: Any, rows: np.ndarray) -> np.ndarray:
    import torch

    if rows.dtype.kind not in "fiu":
        raise ConfigError(
            f"Expected numbers for a torch module, got {rows.dtype}; wrap it in a function that takes these."
        )
    parameter = next(module.parameters(), torch.zeros(1))
    # Copied: the array may be read-only, which torch warns of. Whole numbers of other types may be tokens: kept.
    inputs = torch.from_numpy(_scaled(rows, np.float32) if rows.dtype == np.uint8 else rows.copy()).to(parameter.device)
    inputs = inputs.to(parameter.dtype) if inputs.is_floating_point() else inputs
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            return module(inputs).float().cpu().numpy()
    finally:
        for part, training in modes:
            part.training = training
