"""Fixed encoders: every row by itself, the formulas against slow loops, and what is refused."""

import hashlib
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mithridate import ArtifactError, ConfigError
from mithridate.data.named import load_named
from mithridate.features import (
    NAMES,
    Frozen,
    HashedNgrams,
    HashedWords,
    LayeredGradients,
    ObjectGradients,
    OrientedGradients,
    PhotoGradients,
    UnitNorm,
    encoder,
    from_dict,
    pick_encoder,
)

# Those that nobody trained.
FORMULAS = (
    "hashed-ngrams",
    "hashed-words",
    "layered-gradients",
    "object-gradients",
    "oriented-gradients",
    "photo-gradients",
    "unit-norm",
)
DOCS = Path(__file__).parents[1] / "docs" / "features.md"


def double(rows: Any) -> Any:
    return 2.0 * rows


def random_images(seed: int, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    random = np.random.default_rng(seed)
    if dtype is np.uint8:
        return random.integers(0, 256, shape, dtype=np.uint8)
    return random.normal(0.3, 0.5, shape).astype(dtype)


# --- every row by itself --------------------------------------------------------------------------------------------


def assert_rows_alone(made: Any, inputs: Any, seed: int) -> None:
    """Bit for bit: alone, in another order, and with other rows taken away."""
    whole = made.transform(inputs)
    assert whole.dtype == np.float32
    order = [int(i) for i in np.random.default_rng(seed).permutation(len(whole))]
    permuted = [inputs[i] for i in order] if isinstance(inputs, list) else inputs[order]
    np.testing.assert_array_equal(made.transform(permuted), whole[order])
    np.testing.assert_array_equal(made.transform(inputs[1:]), whole[1:])
    for i in range(len(whole)):
        np.testing.assert_array_equal(made.transform(inputs[i : i + 1])[0], whole[i])


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 9),
    shape=st.sampled_from([(9, 9), (5, 12), (1, 8, 7), (3, 8, 8), (2, 11, 5)]),
    dtype=st.sampled_from([np.uint8, np.float32, np.float64]),
    cells=st.integers(1, 4),
    orientations=st.integers(2, 9),
)
def test_an_image_is_encoded_by_itself(
    seed: int, count: int, shape: tuple[int, ...], dtype: type, cells: int, orientations: int
) -> None:
    images = random_images(seed, (count, *shape), dtype)
    assert_rows_alone(OrientedGradients(cells=cells, orientations=orientations, coarse_cells=3), images, seed)
    made = ObjectGradients(cells=cells, orientations=orientations, coarse_cells=3, coarse_weight=0.5)
    assert_rows_alone(made, images, seed)
    even = orientations + orientations % 2
    assert_rows_alone(PhotoGradients(cells=cells, orientations=even, coarse_cells=3), images, seed)
    layered = LayeredGradients(cells, orientations, coarse_cells=3, coarse_weight=0.4, fine_cells=5, edge_weight=0.6)
    assert_rows_alone(layered, images, seed)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 40),
    columns=st.integers(1, 300),
    dtype=st.sampled_from([np.uint8, np.float32, np.float64]),
    bias=st.sampled_from([0.0, 0.5]),
)
def test_a_table_row_is_encoded_by_itself(seed: int, count: int, columns: int, dtype: type, bias: float) -> None:
    assert_rows_alone(UnitNorm(bias=bias), random_images(seed, (count, columns), dtype), seed)


@given(st.lists(st.text(max_size=30), min_size=1, max_size=6), st.sampled_from([0.0, 0.5]))
def test_a_text_is_encoded_by_itself(texts: list[str], bias: float) -> None:
    assert_rows_alone(HashedNgrams(dimension=16, bias=bias), texts, seed=len(texts))


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    images = random_images(1, (30, 8, 8), np.uint8)
    texts = [f"text {i} of {i * i}" for i in range(30)]
    layered = LayeredGradients(fine_cells=7, edge_weight=0.6)
    made_of_images = (OrientedGradients(), ObjectGradients(), PhotoGradients(), layered, UnitNorm())
    cases = [*((made, images) for made in made_of_images), (HashedNgrams(dimension=32), texts)]
    whole = [made.transform(inputs) for made, inputs in cases]
    monkeypatch.setattr("mithridate.features._encoder._CHUNK_NUMBERS", 600)
    monkeypatch.setattr("mithridate.features.tables_and_text._REMEMBERED_NGRAMS", 10)
    for (made, inputs), expected in zip(cases, whole, strict=True):
        np.testing.assert_array_equal(made.transform(inputs), expected)


def test_the_input_is_left_alone() -> None:
    images = random_images(2, (4, 8, 8), np.float32)
    kept = images.copy()
    gradients = (OrientedGradients(), ObjectGradients(), PhotoGradients(), LayeredGradients(fine_cells=7))
    for made in (*gradients, UnitNorm(center=1.0), Frozen(double, "double", "nothing")):
        made.transform(images)
        np.testing.assert_array_equal(images, kept)


# --- images ---------------------------------------------------------------------------------------------------------


def slow_oriented_gradients(image: np.ndarray, made: OrientedGradients) -> np.ndarray:
    """One image [C, H, W], pixel by pixel, in double precision and with angles."""
    channels, height, width = image.shape
    histograms = np.zeros((made.orientations, made.cells, made.cells))
    for y in range(height):
        for x in range(width):
            across, down = longest_difference(image, y, x)
            length, angle = math.hypot(across, down), math.atan2(down, across)
            for k in range(made.orientations):
                cosine = max(0.0, math.cos(angle - 2 * math.pi * k / made.orientations))
                for i in range(made.cells):
                    for j in range(made.cells):
                        share = slow_share(y, i, height, made.cells) * slow_share(x, j, width, made.cells)
                        histograms[k, i, j] += share * length * cosine**made.sharpness
    histograms = np.sqrt(histograms)
    histograms = histograms - histograms.mean(axis=0)
    histograms = histograms - made.cell_centering * histograms.mean(axis=(1, 2))[:, None, None]
    coarse = np.zeros((channels, made.coarse_cells, made.coarse_cells))
    for c, i, j in np.ndindex(*coarse.shape):
        shares = [slow_share(y, i, height, made.coarse_cells) for y in range(height)]
        weights = np.outer(shares, [slow_share(x, j, width, made.coarse_cells) for x in range(width)])
        coarse[c, i, j] = np.average(image[c], weights=weights)
    coarse = coarse - coarse.mean()
    row = [*slow_unit(histograms.ravel()), *(made.coarse_weight * slow_unit(coarse.ravel())), made.bias]
    return slow_unit(np.array(row))


def longest_difference(image: np.ndarray, y: int, x: int) -> tuple[float, float]:
    height, width = image.shape[1:]
    found = (0.0, 0.0)
    for plane in image.astype(float):
        across = (plane[y, x + 1] - plane[y, x - 1]) / 2 if 0 < x < width - 1 else 0.0
        down = (plane[y + 1, x] - plane[y - 1, x]) / 2 if 0 < y < height - 1 else 0.0
        if math.hypot(across, down) > math.hypot(*found):
            found = (across, down)
    return found


def slow_share(pixel: int, cell: int, pixels: int, cells: int) -> float:
    centre = (cell + 0.5) * pixels / cells  # in pixels
    return max(0.0, 1.0 - abs(pixel + 0.5 - centre) / (pixels / cells))


def slow_unit(values: np.ndarray) -> np.ndarray:
    norm = math.sqrt(sum(float(value) ** 2 for value in values))
    return values / norm if norm else values


@pytest.mark.parametrize("shape", [(1, 7, 7), (1, 6, 9), (3, 8, 5)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
@pytest.mark.parametrize(
    "made",
    [
        OrientedGradients(coarse_cells=4),
        OrientedGradients(cells=3, orientations=5, sharpness=1, cell_centering=0.0, coarse_cells=2, bias=0.7),
        OrientedGradients(cells=1, orientations=6, sharpness=7, cell_centering=1.0, coarse_cells=5, coarse_weight=2.0),
    ],
    ids=["default", "few", "one cell"],
)
def test_oriented_gradients_against_a_loop_over_pixels(
    shape: tuple[int, ...], dtype: type, made: OrientedGradients
) -> None:
    images = random_images(3, (3, *shape), dtype)
    exact = images / 255.0 if dtype is np.uint8 else images
    expected = [slow_oriented_gradients(image, made) for image in exact]
    # Square roots of nearly empty bins amplify the rounding of float32 sums, hence the absolute room.
    np.testing.assert_allclose(made.transform(images), expected, rtol=1e-4, atol=2e-5)


def test_a_vertical_edge_has_one_direction() -> None:
    image = np.zeros((1, 8, 8))
    image[:, :, 4:] = 1.0
    row = OrientedGradients(cells=1, orientations=4, coarse_weight=0.0, bias=0.0, cell_centering=0.0).transform(image)
    # All length points across, at angle 0: the square-root histogram is (a, 0, 0, 0), its mean a/4.
    np.testing.assert_allclose(row, np.array([[3, -1, -1, -1]]) / math.sqrt(12), atol=1e-6)


def test_grey_images_may_have_a_channel_axis() -> None:
    images = random_images(4, (3, 9, 9), np.uint8)
    made = OrientedGradients()
    np.testing.assert_array_equal(made.transform(images), made.transform(images[:, None]))


def test_eight_bits_are_divided_by_255() -> None:
    images = random_images(5, (3, 9, 9), np.uint8)
    made = OrientedGradients()
    np.testing.assert_allclose(made.transform(images), made.transform(images / 255.0), atol=1e-5)


@given(st.integers(0, 2**32 - 1), st.floats(0.05, 0.95), st.floats(0.3, 3.0))
@pytest.mark.parametrize(
    "made",
    [
        OrientedGradients(),
        ObjectGradients(),
        PhotoGradients(),
        LayeredGradients(fine_cells=7, edge_weight=0.6, coarse_weight=0.4),
    ],
    ids=lambda made: made.name,
)
def test_brightness_and_contrast_change_nothing(
    made: OrientedGradients, seed: int, shift: float, factor: float
) -> None:
    images = random_images(seed, (2, 10, 10), np.float64)
    np.testing.assert_allclose(made.transform(images), made.transform(shift + factor * images), atol=1e-3)


@pytest.mark.parametrize("level", [0.0, 0.1, 1 / 3, 1.0])
@pytest.mark.parametrize("kind", [OrientedGradients, ObjectGradients, PhotoGradients, LayeredGradients])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_flat_grey_image_is_only_bias(channels: int, kind: type[OrientedGradients], level: float) -> None:
    flat = np.full((2, channels, 28, 28), level)
    row = kind().transform(flat)
    np.testing.assert_allclose(row[:, -1], 1.0, atol=1e-4)
    np.testing.assert_allclose(row[:, :-1], 0.0, atol=1e-2)  # rounding, not blown up to norm 1
    black = kind(bias=0.0).transform(np.zeros((2, channels, 28, 28)))
    np.testing.assert_array_equal(black, 0.0)


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 2.0))
def test_rows_have_norm_one(seed: int, bias: float) -> None:
    images = random_images(seed, (3, 8, 8), np.uint8)
    kinds = (OrientedGradients, ObjectGradients, PhotoGradients, UnitNorm)
    for made in (*(kind(bias=bias) for kind in kinds), LayeredGradients(fine_cells=7, edge_weight=2.0, bias=bias)):
        np.testing.assert_allclose(np.linalg.norm(made.transform(images).astype(float), axis=1), 1.0, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "made", "columns"),
    [
        ((28, 28), OrientedGradients(cells=2, orientations=3, coarse_cells=4), 12 + 16 + 1),
        ((3, 32, 32), OrientedGradients(cells=2, orientations=3, coarse_cells=4), 12 + 48 + 1),
        ((28, 28), OrientedGradients(cells=2, orientations=3, coarse_weight=0, bias=0), 12),
        ((28, 28), ObjectGradients(cells=2, orientations=3), 12 + 1),
        ((3, 32, 32), PhotoGradients(cells=2, orientations=4, coarse_cells=4), 16 + 48 + 1),
        ((28, 28), LayeredGradients(cells=2, orientations=3, bias=0), 3 * 12),
        ((28, 28), LayeredGradients(cells=2, orientations=3, edge_weight=1), 3 * 12 + 12 + 1),
        ((2, 28, 28), LayeredGradients(cells=2, orientations=3, edge_weight=1), 3 * 12 + 12 + 1),
        (
            (3, 32, 32),
            LayeredGradients(cells=2, orientations=3, edge_weight=1, coarse_cells=4, coarse_weight=1),
            3 * 12 + 3 * 12 + 48 + 1,
        ),
    ],
)
def test_number_of_columns(shape: tuple[int, ...], made: OrientedGradients, columns: int) -> None:
    assert made.transform(np.zeros((0, *shape), dtype=np.uint8)).shape == (0, columns)
    assert made.transform(np.zeros((2, *shape), dtype=np.uint8)).shape == (2, columns)


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (np.full((2, 9, 9), np.nan), "Row 0"),
        (np.concatenate([np.zeros((3, 9, 9)), np.full((1, 9, 9), np.inf)]), "Row 3"),
        (np.full((2, 9, 9), 1e10), "at most 1e\\+09"),
        (np.full((2, 9, 9), 1e300), "not finite or too large"),
        (np.zeros((9, 9)), "n, H, W"),
        (np.zeros((2, 1, 1, 9, 9)), "n, H, W"),
        (np.zeros((2, 9, 9), dtype=np.int64), "uint8 or floats"),
        (np.zeros((2, 9, 9), dtype=bool), "array of numbers"),
        (np.zeros((2, 9, 9), dtype=complex), "array of numbers"),
        (np.zeros((2, 9, 9), dtype=object), "array of numbers"),
        (np.zeros((2, 32, 32, 3)), "channels come before"),
        (np.zeros((2, 0, 9, 9)), "one channel"),
        (np.zeros((2, 2, 2)), "at least 5 x 5"),
        ([[[1.0]], [[1.0, 2.0]]], "different shapes"),
        (["text"], "array of numbers"),
    ],
)
def test_refused_images(images: Any, says: str) -> None:
    for made in (OrientedGradients(), ObjectGradients(cells=5), PhotoGradients(), LayeredGradients(5, fine_cells=5)):
        with pytest.raises(ConfigError, match=says):
            made.transform(images)


def draw_body(height: int, width: int, a: float, b: float, p: int) -> np.ndarray:
    """A superellipse in the middle, pixel by pixel; a and b are half its width and height as parts of the image's."""
    image = np.zeros((height, width))
    for y, x in np.ndindex(height, width):
        across, down = abs(x + 0.5 - width / 2) / (a * width), abs(y + 0.5 - height / 2) / (b * height)
        inside = (1 - (across**p + down**p) ** (1 / p)) * min(a * width, b * height)
        image[y, x] = min(1.0, max(0.0, inside + 0.5))
    return image


@pytest.mark.parametrize("shape", [(12, 12), (10, 15)])
@pytest.mark.parametrize("part", [0.3, 0.8])
def test_what_drawn_bodies_share_is_taken_out(shape: tuple[int, int], part: float) -> None:
    constants = {"cells": 3, "orientations": 6, "coarse_weight": 0.0, "bias": 0.0}
    plain = OrientedGradients(**constants, cell_centering=1.0)
    sizes = (0.3, 0.4, 0.5)
    bodies = np.stack([draw_body(*shape, a, b, p) for a in sizes for b in sizes for p in (1, 2, 4, 8)])
    shared = plain.transform(bodies).astype(float).mean(axis=0)
    images = random_images(11, (5, *shape), np.uint8)
    expected = [slow_unit(row - part * shared) for row in plain.transform(images).astype(float)]
    made = ObjectGradients(**constants, body_centering=part)
    np.testing.assert_allclose(made.transform(images), expected, atol=1e-5)


def test_without_body_centering_object_gradients_are_oriented_gradients() -> None:
    images = random_images(12, (5, 3, 12, 12), np.uint8)
    constants = {"cells": 3, "cell_centering": 0.4, "coarse_weight": 0.2}
    np.testing.assert_array_equal(
        ObjectGradients(**constants, body_centering=0).transform(images),
        OrientedGradients(**constants).transform(images),
    )


def test_bodies_are_less_alike_once_what_they_share_is_gone() -> None:
    disc, box, slim = (draw_body(28, 28, a, b, p) for a, b, p in [(0.4, 0.4, 2), (0.45, 0.45, 8), (0.15, 0.45, 2)])
    before = OrientedGradients(bias=0.0, coarse_weight=0.0).transform(np.stack([disc, box, slim]))
    after = ObjectGradients(bias=0.0).transform(np.stack([disc, box, slim]))
    for i, j in [(0, 1), (0, 2), (1, 2)]:
        assert after[i] @ after[j] < before[i] @ before[j] - 0.2


@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.sampled_from([(8, 8), (1, 7, 10), (2, 8, 8), (3, 9, 12)]),
    orientations=st.sampled_from([2, 6, 8]),
    cells=st.integers(1, 4),
)
def test_a_mirrored_photograph_has_the_same_features(
    seed: int, shape: tuple[int, ...], orientations: int, cells: int
) -> None:
    images = random_images(seed, (3, *shape), np.uint8)
    made = PhotoGradients(cells=cells, orientations=orientations, coarse_cells=3)
    np.testing.assert_allclose(made.transform(images), made.transform(images[..., ::-1]), atol=1e-3)


def test_photographs_are_the_mean_of_an_image_and_its_mirror_image() -> None:
    """Histograms of an image and of its mirror image have one norm, so they may be scaled before or after the mean."""
    images = random_images(13, (4, 3, 8, 8), np.uint8)
    plain = OrientedGradients(cells=2, cell_centering=0.25, coarse_weight=0.0, bias=0.0)
    both = plain.transform(images).astype(float) + plain.transform(images[..., ::-1])
    made = PhotoGradients(cells=2, coarse_weight=0.0, bias=0.0)
    np.testing.assert_allclose(made.transform(images), [slow_unit(row) for row in both], atol=1e-5)


def test_colours_against_a_loop() -> None:
    image = random_images(14, (3, 6, 6), np.float64)
    red, green, blue = image
    grids = [np.zeros((2, 2)) for _ in range(3)]
    planes = [(red + green + blue) / 3, red - green, (red + green) / 2 - blue]
    for grid, plane in zip(grids, planes, strict=True):
        for i, j in np.ndindex(2, 2):
            weights = np.outer([slow_share(y, i, 6, 2) for y in range(6)], [slow_share(x, j, 6, 2) for x in range(6)])
            grid[i, j] = np.average((plane + plane[:, ::-1]) / 2, weights=weights)
    expected = slow_unit(np.array([grids[0] - grids[0].mean(), 1.5 * grids[1], 1.5 * grids[2]]).ravel())
    made = PhotoGradients(cells=1, orientations=2, cell_centering=1.0, coarse_cells=2, colour_weight=1.5, bias=0.0)
    # One cell that loses all of its mean over cells leaves no histograms: only the coarse pixels remain.
    np.testing.assert_allclose(made.transform(image[None])[0, 2:], expected, atol=1e-4)


def slow_roots(image: np.ndarray, made: OrientedGradients, cells: int) -> np.ndarray:
    """Square roots of the histograms of one image [C, H, W], [orientations, cells, cells], in double precision."""
    _, height, width = image.shape
    histograms = np.zeros((made.orientations, cells, cells))
    for k, i, j, y, x in np.ndindex(made.orientations, cells, cells, height, width):
        across, down = longest_difference(image, y, x)
        cosine = max(0.0, math.cos(math.atan2(down, across) - 2 * math.pi * k / made.orientations))
        share = slow_share(y, i, height, cells) * slow_share(x, j, width, cells)
        histograms[k, i, j] += math.hypot(across, down) * cosine**made.sharpness * share
    return np.sqrt(histograms)


def slow_centred(roots: np.ndarray, part: float) -> np.ndarray:
    centred = roots - roots.mean(axis=0)
    return (centred - part * centred.mean(axis=(1, 2))[:, None, None]).ravel()


def opponent_colours(image: np.ndarray) -> list[np.ndarray]:
    red, green, blue = image
    return [(red + green + blue) / 3, red - green, (red + green) / 2 - blue]


@pytest.mark.parametrize("shape", [(1, 6, 8), (2, 7, 6), (3, 6, 6)])
def test_layered_gradients_against_two_loops_over_pixels(shape: tuple[int, ...]) -> None:
    made = LayeredGradients(2, 3, 4, 0.5, coarse_weight=0.0, bias=0.2, fine_cells=5, edge_weight=0.6)
    image = random_images(21, shape, np.float64)
    planes = [plane[None] for plane in opponent_colours(image)] if shape[0] == 3 else [image]
    second = [slow_roots(first[None], made, 2) for first in slow_roots(planes[0], made, 5)]
    row = list(slow_unit(np.concatenate([slow_centred(roots, 0.5) for roots in second])))
    for plane in planes:
        row += list(0.6 * slow_unit(slow_centred(slow_roots(plane, made, 2), 0.5)))
    expected = slow_unit(np.array([*row, 0.2]))
    # The differences between square roots of float32 sums are rounded, and their roots are taken once more.
    np.testing.assert_allclose(made.transform(image[None])[0], expected, rtol=1e-3, atol=2e-4)


def test_coarse_pixels_of_layered_gradients_are_those_of_photographs_without_the_mirror_image() -> None:
    images = random_images(22, (2, 3, 8, 8), np.float64)
    images = np.concatenate([images, images[..., ::-1]])
    constants = {"cells": 1, "orientations": 2, "cell_centering": 1.0, "coarse_weight": 1.0, "bias": 0.0}
    # One cell that loses all of its mean over cells leaves no histograms: only the coarse pixels remain.
    rows = LayeredGradients(**constants, fine_cells=3).transform(images)[:, 4:].astype(float)
    photographs = PhotoGradients(**constants).transform(images[:2])[:, 2:]
    mirrored = rows[2:].reshape(2, 3, 5, 5)
    np.testing.assert_allclose(mirrored[..., ::-1].reshape(2, -1), rows[:2], atol=1e-5)
    both = [slow_unit(row) for row in rows[:2] + rows[2:]]
    np.testing.assert_allclose(photographs, both, atol=1e-5)


def test_the_second_layer_tells_textures_apart_that_have_the_same_edges() -> None:
    """Fine stripes across everywhere or in every second band: with one cell, edges have the same directions."""
    everywhere = np.tile(np.array([0.0, 0.0, 1.0, 1.0] * 7), (28, 1))
    banded = everywhere * (np.arange(28) % 14 < 7)[:, None]
    images = np.stack([everywhere, banded])
    constants = {"cells": 1, "orientations": 4, "cell_centering": 0.0, "bias": 0.0}
    one = OrientedGradients(**constants, coarse_weight=0.0).transform(images)
    two = LayeredGradients(**constants).transform(images)
    assert two[0] @ two[1] < one[0] @ one[1] - 0.1


def test_grey_in_three_channels_is_grey() -> None:
    """Without coarse pixels, whose number differs, and without colours, whose blocks are empty."""
    grey = random_images(23, (3, 1, 20, 20), np.float64)
    made = LayeredGradients(bias=0.0)
    alike = made.transform(np.repeat(grey, 3, axis=1)), made.transform(grey)
    np.testing.assert_allclose(*alike, atol=1e-3)


def test_a_flat_colour_keeps_its_colour() -> None:
    flat = np.zeros((2, 3, 8, 8))
    flat[0, 0], flat[1, 2] = 1.0, 1.0
    red, blue = PhotoGradients(bias=0.0).transform(flat)
    assert math.isclose(float(np.linalg.norm(red)), 1.0, abs_tol=1e-6)
    assert red @ blue < 0


# --- tables ---------------------------------------------------------------------------------------------------------


def test_public_constants_are_applied_before_the_norm() -> None:
    rows = np.array([[5.0, 10.0], [3.0, 6.0]])
    made = UnitNorm(bias=2.0, center=(1.0, 2.0), scale=(2.0, 4.0))
    expected = np.array([[2.0, 2.0, 2.0], [1.0, 1.0, 2.0]])
    np.testing.assert_allclose(made.transform(rows), expected / np.linalg.norm(expected, axis=1)[:, None], rtol=1e-6)


@pytest.mark.parametrize("size", [5e-324, 1e-200, 1e200, 1.7e308])
def test_tiny_and_huge_rows_keep_their_direction(size: float) -> None:
    np.testing.assert_allclose(
        UnitNorm(bias=0).transform(np.array([[size, -size]])), [[0.5**0.5, -(0.5**0.5)]], rtol=1e-6
    )


def test_zero_rows_are_zero_or_bias() -> None:
    zeros = np.zeros((2, 3), dtype=np.int64)
    np.testing.assert_array_equal(UnitNorm(bias=0).transform(zeros), np.zeros((2, 3)))
    np.testing.assert_array_equal(UnitNorm(bias=0.2).transform(zeros), [[0, 0, 0, 1]] * 2)


def test_images_are_flattened_and_eight_bits_scaled() -> None:
    images = random_images(6, (4, 2, 3), np.uint8)
    np.testing.assert_array_equal(UnitNorm().transform(images), UnitNorm().transform(images.reshape(4, 6) / 255.0))


@pytest.mark.parametrize(
    ("made", "rows", "says"),
    [
        (UnitNorm(), np.array([[1.0, np.nan]]), "Row 0"),
        (UnitNorm(center=-1.7e308), np.array([[1.7e308]]), "Row 0"),
        (UnitNorm(), np.zeros(3), "reshape"),
        (UnitNorm(), np.zeros((3, 0)), "at least one number"),
        (UnitNorm(), np.array([["a"]]), "array of numbers"),
        (UnitNorm(), np.array([[1, None]]), "object"),
        (UnitNorm(center=(1.0, 2.0)), np.zeros((2, 3)), "center has 2 numbers, the rows have 3"),
        (UnitNorm(scale=(1.0, 2.0)), np.zeros((2, 3)), "scale has 2 numbers, the rows have 3"),
    ],
)
def test_refused_rows(made: UnitNorm, rows: np.ndarray, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        made.transform(rows)


# --- text -----------------------------------------------------------------------------------------------------------


def slow_ngrams(text: str, made: HashedNgrams) -> np.ndarray:
    """The documented hash by another road: hexadecimal digits in place of bytes, one n-gram at a time."""
    text = text.lower() if made.lowercase else text
    grams: list[str] = []
    padded = " " + re.sub(r"\s+", " ", text).strip() + " "
    if made.chars:
        low, high = made.chars
        grams += ["c" + padded[a:b] for a in range(len(padded)) for b in range(a + low, min(a + high, len(padded)) + 1)]
    if made.words:
        words = re.findall(r"\w+", text)
        low, high = made.words
        grams += [
            "w" + " ".join(words[a:b])
            for a in range(len(words))
            for b in range(a + low, a + high + 1)
            if b <= len(words)
        ]
    row = np.zeros(made.dimension)
    for gram, count in Counter(grams).items():
        digest = hashlib.blake2b(gram.encode(), digest_size=8, key=made.key.encode()).hexdigest()
        number = sum(int(digest[2 * i : 2 * i + 2], 16) * 256**i for i in range(8))
        sign = 1 - 2 * (number // 2**63)
        row[number % 2**63 % made.dimension] += sign * (1 + math.log(count))
    return slow_unit(row)


@pytest.mark.parametrize(
    "made",
    [
        HashedNgrams(),
        HashedNgrams(dimension=7, chars=None, words=(1, 3)),
        HashedNgrams(dimension=50, chars=(1, 5), words=None, lowercase=False, key="another"),
    ],
    ids=["default", "words", "chars"],
)
def test_hashed_ngrams_against_a_second_computation(made: HashedNgrams) -> None:
    texts = ["The cat sat; the cat sat.", "  Ärger\tmit\n Umlauten ", "日本語 テキスト", "a", "x" * 50]
    np.testing.assert_allclose(made.transform(texts), [slow_ngrams(text, made) for text in texts], atol=1e-6)


def test_the_hash_ignores_pythonhashseed() -> None:
    program = (
        "from mithridate.features import HashedNgrams as H; print(H(64).transform(['a few words']).tobytes().hex())"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert printed == {HashedNgrams(64).transform(["a few words"]).tobytes().hex()}


def test_another_key_is_another_hash() -> None:
    texts = ["a few words"]
    assert (HashedNgrams().transform(texts) != HashedNgrams(key="other").transform(texts)).any()


def test_unit_norm_and_empty_text() -> None:
    rows = HashedNgrams().transform(["some words", ""])
    np.testing.assert_allclose(np.linalg.norm(rows.astype(float), axis=1)[0], 1.0, atol=1e-6)
    words = HashedNgrams(dimension=4, chars=None)
    np.testing.assert_array_equal(words.transform(["", " .,; "]), np.zeros((2, 4)))
    np.testing.assert_array_equal(HashedNgrams(4, chars=None, bias=0.5).transform([""]), [[0, 0, 0, 0, 1]])
    assert words.transform([]).shape == (0, 4)


def test_lists_tuples_and_arrays_agree() -> None:
    texts = ["one text", "Another"]
    made = HashedNgrams()
    np.testing.assert_array_equal(made.transform(texts), made.transform(np.array(texts)))
    np.testing.assert_array_equal(made.transform(texts), made.transform(tuple(texts)))


def test_white_space_and_case_are_one() -> None:
    made = HashedNgrams()
    np.testing.assert_array_equal(made.transform(["A  Few\nwords"]), made.transform([" a few words"]))
    cased = HashedNgrams(lowercase=False)
    assert (cased.transform(["A few"]) != cased.transform(["a few"])).any()


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ("one text", "put one text in a list"),
        (b"bytes", "put one text in a list"),
        ([b"bytes"], "got bytes in row 0; decode"),
        (["text", None], "NoneType in row 1"),
        (np.array([b"bytes"]), "decode bytes"),
        (np.array(["text", None], dtype=object), "astype\\(str\\)"),
        (np.array([["text"]]), "one-dimensional"),
        (np.zeros(3), "array of strings"),
    ],
)
def test_refused_texts(texts: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        HashedNgrams().transform(texts)


# --- frozen encoders ------------------------------------------------------------------------------------------------


def test_a_frozen_encoder_is_trusted_and_says_so() -> None:
    made = Frozen(double, title="doubler", trained_on="other people's numbers", version="1.2", digest="sha256:12")
    assert made.trusted
    assert "'doubler' 1.2 is trusted" in made.assumption
    assert "other people's numbers" in made.assumption
    values = json.loads(json.dumps(made.to_dict()))
    assert values == {
        "name": "frozen",
        "title": "doubler",
        "trained_on": "other people's numbers",
        "version": "1.2",
        "digest": "sha256:12",
        "batch_size": 1,
    }
    assert from_dict(values, function=double) == made
    with pytest.raises(ConfigError, match="needs function; a file cannot hold"):
        from_dict(values)


def test_the_others_are_not_trusted() -> None:
    assert not any(encoder(name).trusted for name in FORMULAS)
    assert set(NAMES) - set(FORMULAS) == {
        "efficientnet-lite0",
        "efficientnet-lite2",
        "frozen",
        "minilm",
        "onnx",
        "torchvision",
        "transformers",
        "wordllama",
    }


def test_frozen_goes_through_the_rows_in_batches() -> None:
    sizes: list[int] = []

    def function(rows: np.ndarray) -> np.ndarray:
        sizes.append(len(rows))
        return rows.astype(np.float64) + 0.5

    rows = np.arange(40.0).reshape(20, 2)
    features = Frozen(function, "plus", "nothing", batch_size=6).transform(rows)
    np.testing.assert_array_equal(features, rows + 0.5)
    assert features.dtype == np.float32
    assert max(sizes) <= 8


def test_frozen_takes_text_and_keeps_further_axes() -> None:
    lengths = Frozen(lambda texts: np.array([[len(text)] for text in texts]), "lengths", "nothing")
    np.testing.assert_array_equal(lengths.transform(np.array(["a", "abc"])), [[1], [3]])
    assert Frozen(double, "double", "nothing").transform(np.ones((3, 4, 5))).shape == (3, 4, 5)


STATE = np.random.default_rng(7)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda rows: rows - rows.mean(axis=0), "treat every row by itself"),
        (lambda rows: rows + STATE.normal(size=rows.shape), "treat every row by itself"),
        (lambda rows: np.cumsum(rows, axis=0), "treat every row by itself"),
        (lambda rows: rows[:-1], "for 5 rows"),
        (lambda rows: rows[:, 0], "expected real numbers of shape \\(5, d\\)"),
        (lambda rows: rows * np.nan, "not finite"),
        (lambda rows: rows * 1e300, "not finite"),
        (lambda rows: rows.astype(complex), "complex"),
        (lambda rows: rows.astype(object), "object"),
        (lambda rows: None, "object"),
    ],
)
def test_refused_functions(function: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Frozen(function, "bad", "nothing", batch_size=8).transform(np.random.default_rng(8).normal(size=(5, 3)))


def test_frozen_refuses_no_rows_and_objects() -> None:
    made = Frozen(double, "double", "nothing")
    for rows in (np.zeros((0, 3)), np.float64(3.0), np.array([["a", None]], dtype=object)):
        with pytest.raises(ConfigError):
            made.transform(rows)  # pyright: ignore[reportArgumentType]


def test_a_torch_module_is_called_in_evaluation_mode_and_left_as_it_was() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Dropout(0.5))
    module[1].eval()
    rows = np.random.default_rng(9).normal(size=(20, 3))
    features = Frozen(module, "small", "nothing").transform(rows)
    weight, shift = (parameter.detach().numpy() for parameter in (module[0].weight, module[0].bias))
    np.testing.assert_allclose(features, (rows @ weight.T + shift) / math.sqrt(1 + 1e-5), atol=1e-5)
    assert [part.training for part in module] == [True, False, True]
    bytes_ = random_images(10, (4, 3), np.uint8)
    bytes_.flags.writeable = False
    expected = (bytes_ / 255.0 @ weight.T + shift) / math.sqrt(1 + 1e-5)
    np.testing.assert_allclose(Frozen(module, "small", "nothing").transform(bytes_), expected, atol=1e-5)
    with pytest.raises(ConfigError, match="wrap it in a function"):
        Frozen(module, "small", "nothing").transform(np.array(["text"]))


# --- names and constants --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "made",
    [
        OrientedGradients(),
        ObjectGradients(),
        ObjectGradients(cells=3, body_centering=1),
        PhotoGradients(),
        LayeredGradients(),
        LayeredGradients(fine_cells=np.int64(7), edge_weight=1),  # pyright: ignore[reportArgumentType]
        PhotoGradients(orientations=6, colour_weight=np.float32(0.5)),  # pyright: ignore[reportArgumentType]
        OrientedGradients(cells=np.int64(3), bias=np.float32(0.5), coarse_weight=0),  # pyright: ignore[reportArgumentType]
        UnitNorm(),
        UnitNorm(center=[1.0, 2.0], scale=np.array([2.0, 1.0])),  # pyright: ignore[reportArgumentType]
        HashedNgrams(),
        HashedNgrams(chars=None, words=[1, 3], key="k"),  # pyright: ignore[reportArgumentType]
        HashedWords(),
        HashedWords(chars=None, words=[1, 2], rarity=1),  # pyright: ignore[reportArgumentType]
    ],
)
def test_constants_survive_json(made: Any) -> None:
    values = json.loads(json.dumps(made.to_dict()))
    assert values["name"] in NAMES
    assert from_dict(values) == made
    assert encoder(**values) == made
    assert hash(from_dict(values)) == hash(made)


@pytest.mark.parametrize(
    ("name", "constants", "says"),
    [
        ("pca", {}, "Expected features to be one of .*frozen, hashed-ngrams"),
        ("unit-norm", {"mean": 3}, "unit-norm has no mean; it has bias, center, scale"),
        ("frozen", {"title": "a"}, "needs function, trained_on"),
        ("frozen", {"title": "", "function": double, "trained_on": "b"}, "title"),
        ("frozen", {"title": "a", "function": double, "trained_on": " "}, "trained_on"),
        ("frozen", {"title": "a", "function": double, "trained_on": "b", "digest": 3}, "digest"),
        ("frozen", {"title": "a", "function": 3, "trained_on": "b"}, "callable"),
        ("frozen", {"title": "a", "function": double, "trained_on": "b", "batch_size": 0}, "batch_size"),
        ("oriented-gradients", {"cells": 0}, "cells"),
        ("oriented-gradients", {"cells": 2.5}, "cells"),
        ("oriented-gradients", {"orientations": 1}, "orientations"),
        ("oriented-gradients", {"sharpness": 0}, "sharpness"),
        ("oriented-gradients", {"cell_centering": 1.5}, "cell_centering"),
        ("oriented-gradients", {"coarse_weight": -1}, "coarse_weight"),
        ("oriented-gradients", {"bias": math.nan}, "bias"),
        ("object-gradients", {"body_centering": 1.5}, "body_centering"),
        ("object-gradients", {"body_centering": "much"}, "body_centering"),
        ("object-gradients", {"cells": 0}, "cells"),
        ("object-gradients", {"colour_weight": 2.0}, "has no colour_weight"),
        ("photo-gradients", {"colour_weight": -1}, "colour_weight"),
        ("photo-gradients", {"orientations": 7}, "even number of orientations"),
        ("layered-gradients", {"fine_cells": 5}, "fine_cells of at least 6"),
        ("layered-gradients", {"cells": 1, "fine_cells": 2}, "fine_cells of at least 3"),
        ("layered-gradients", {"fine_cells": 7.5}, "fine_cells"),
        ("layered-gradients", {"edge_weight": -1}, "edge_weight"),
        ("layered-gradients", {"colour_weight": math.inf}, "colour_weight"),
        ("layered-gradients", {"cells": "many"}, "cells"),
        ("photo-gradients", {"orientations": "many"}, "orientations"),
        ("unit-norm", {"bias": "much"}, "bias"),
        ("unit-norm", {"scale": 0}, "scale"),
        ("unit-norm", {"scale": [1.0, -1.0]}, "scale"),
        ("unit-norm", {"center": []}, "center"),
        ("unit-norm", {"center": [[1.0]]}, "center"),
        ("unit-norm", {"center": [1.0], "scale": [1.0, 2.0]}, "one per column"),
        ("hashed-ngrams", {"dimension": 1}, "dimension"),
        ("hashed-ngrams", {"chars": None, "words": None}, "chars or words"),
        ("hashed-ngrams", {"chars": (4, 2)}, "shortest length first"),
        ("hashed-ngrams", {"words": (0, 2)}, "words"),
        ("hashed-ngrams", {"words": 2}, "words"),
        ("hashed-ngrams", {"lowercase": 1}, "lowercase"),
        ("hashed-ngrams", {"key": "k" * 65}, "64 bytes"),
    ],
)
def test_refused_constants(name: str, constants: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        encoder(name, **constants)


@pytest.mark.parametrize("values", [{}, {"name": "pca"}, "unit-norm"])
def test_foreign_files_are_refused(values: Any) -> None:
    with pytest.raises(ArtifactError, match="Expected an encoder named"):
        from_dict(values)


def test_torch_is_not_imported() -> None:
    program = "import sys, mithridate.features; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# --- documentation and data -----------------------------------------------------------------------------------------


def test_the_documented_example_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(DOCS), "exec"), {})


def test_the_documented_constants_are_the_defaults() -> None:
    text = DOCS.read_text()
    for made in map(encoder, FORMULAS):
        for key, value in made.to_dict().items():
            if key != "name":
                shown = tuple(value) if isinstance(value, list) else value
                assert f"| `{made.name}` | `{key}` | `{shown!r}` |" in text


def test_class_means_of_the_features_read_digits() -> None:
    """A mean of each class suffices for nine of ten of scikit-learn's digits; chance is one of ten."""
    train, test = load_named("digits")
    features, unseen = (OrientedGradients().transform(part.x) for part in (train, test))
    means = np.stack([features[train.y == digit].mean(axis=0) for digit in range(10)])
    guesses = (unseen @ means.T - 0.5 * (means**2).sum(axis=1)).argmax(axis=1)
    assert (guesses == test.y).mean() > 0.85


def test_an_encoder_from_elsewhere_must_be_trusted() -> None:
    """Nobody knows whether it treats every row by itself; and a name of ours does not let it in."""

    class Mine(UnitNorm):
        name = "mine"

    class Disguised(UnitNorm):
        name = "unit-norm"

    for made in (Mine(), Disguised()):
        with pytest.raises(ConfigError, match=r"put an encoder of your own into features\.Frozen"):
            pick_encoder(made)
    assert pick_encoder("unit-norm") == UnitNorm()
    assert type(from_dict({"name": "unit-norm"})) is UnitNorm
    assert "mine" not in NAMES


def test_the_order_in_memory_does_not_matter() -> None:
    """Rows of a table that lies column by column are summed as if it lay row by row."""
    table = np.random.default_rng(3).standard_normal((4001, 50))
    for encoder_ in (UnitNorm(), UnitNorm(bias=0.0)):
        expected = encoder_.transform(table)
        assert np.array_equal(encoder_.transform(np.asfortranarray(table)), expected)
        assert np.array_equal(encoder_.transform(np.asfortranarray(table)[7:8]), expected[7:8])
