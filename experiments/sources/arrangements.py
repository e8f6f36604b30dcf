"""60,000 images dealt to 1,000 sources in three ways, each a function of the labels and of a public seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mithridate.data.examples import Examples
from mithridate.data.units import Units

SOURCES = 1000
# `two-classes` deals two shards of 30 images each, of images sorted by label: a few sources hold one class, or three.
# By the power law the source of rank k holds a share of the images in proportion to 1/k, and no source is empty.
ARRANGEMENTS = {
    "random": "dealt at random",
    "two-classes": "two classes each",
    "power-law": "sizes by a power law",
}
_SEED = 0


def in_sources(examples: Examples, arrangement: str, count: int = SOURCES) -> Examples:
    """The examples with the source of each, by the name of an arrangement."""
    assert examples.y is not None
    numbers = _NUMBERS[arrangement](examples.y, count)
    return replace(examples, units=Units.of([f"source {number}" for number in numbers.tolist()], "source"))


def sizes(arrangement: str, images: int, count: int = SOURCES) -> npt.NDArray[np.int64]:
    """How many images each source has, where that does not follow from their labels."""
    return np.bincount(_NUMBERS[arrangement](np.zeros(images, dtype=np.int64), count), minlength=count)


def _random(labels: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(_SEED).permutation(np.arange(len(labels)) % count)


def _two_classes(labels: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    random = np.random.default_rng(_SEED)
    by_label = np.lexsort((random.random(len(labels)), labels))
    owners = random.permutation(np.arange(2 * count) % count)
    numbers = np.empty(len(labels), dtype=np.int64)
    numbers[by_label] = owners[np.arange(len(labels)) * 2 * count // len(labels)]
    return numbers


def _power_law(labels: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    shares = 1 / np.arange(1, count + 1)
    ends = np.ceil(np.cumsum(shares) / shares.sum() * (len(labels) - count)) + np.arange(1, count + 1)
    numbers = np.searchsorted(ends, np.arange(len(labels)), side="right")
    return np.random.default_rng(_SEED).permutation(np.minimum(numbers, count - 1))


_NUMBERS = {"random": _random, "two-classes": _two_classes, "power-law": _power_law}
