"""Labels: what classes are called, and what a classifier that ignores its inputs would score.

A constant answer survives every change of the training data. On labels of which nine in ten are equal it is correct,
and certified to any radius, on nine in ten: only what is above that is an achievement of the learner.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from mithridate._text import listed, shortened, shown

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
ClassName = str | int | float

# From this share of the predictions on, one label is as good as all of them; in per cent, to be compared exactly.
_SINGLE_PERCENT = 99


@dataclass(frozen=True)
class Commonest:
    """The label that occurs most often; of equal ones, the smallest.

    Attributes:
        label: its position among the classes.
        count: how often it occurs.
        total: how many labels there are.
    """

    label: int
    count: int
    total: int

    @property
    def share(self) -> float:
        """Its share of all labels."""
        return self.count / self.total


def commonest(labels: IntArray) -> Commonest:
    """The commonest of some labels; of true ones, its share is the baseline.

    >>> commonest(np.array([2, 0, 2, 1]))
    Commonest(label=2, count=2, total=4)
    """
    values, counts = np.unique(labels, return_counts=True)
    most = int(counts.argmax())
    return Commonest(int(values[most]), int(counts[most]), len(labels))


def single_label(predictions: IntArray) -> Commonest | None:
    """The label that at least 99% of the predictions are; None where there is no such label.

    One prediction by itself has one label, which says nothing about the classifier: for that, too, it is None.

    >>> single_label(np.array([1] * 99 + [0])), single_label(np.array([1] * 98 + [0, 0])), single_label(np.array([1]))
    (Commonest(label=1, count=99, total=100), None, None)
    """
    most = commonest(predictions)
    return most if most.total > 1 and 100 * most.count >= _SINGLE_PERCENT * most.total else None


def balanced(counted: IntArray, truth: IntArray, radii: IntArray) -> FloatArray:
    """Certified accuracy within each class, averaged over the classes that occur among the true labels.

    Args:
        counted: the certified radius of every correct prediction, -1 for the others.
        truth: the true labels.
        radii: radii of 0 or more.

    >>> balanced(np.array([5, 5, 5, 3]), np.array([0, 0, 0, 1]), np.array([0, 4]))
    array([1. , 0.5])
    """
    _, place, sizes = np.unique(truth, return_inverse=True, return_counts=True)
    shares = [np.bincount(place[counted >= radius], minlength=len(sizes)) / sizes for radius in radii]
    return np.array([share.mean() for share in shares])


def balanced_share(held: BoolArray, truth: IntArray) -> Fraction:
    """The share of inputs of which something holds, within each class, averaged over the classes: exactly.

    Args:
        held: of which inputs it holds.
        truth: the true labels.

    >>> balanced_share(np.array([True, False, False, True]), np.array([0, 0, 0, 1]))
    Fraction(2, 3)
    """
    _, place, sizes = np.unique(truth, return_inverse=True, return_counts=True)
    hits = np.bincount(place[held], minlength=len(sizes))
    # Classes of one size together: fractions of many different ones would take long to add.
    by_size = (Fraction(int(hits[sizes == size].sum()), int(size)) for size in np.unique(sizes))
    return sum(by_size, Fraction(0)) / len(sizes)


def class_names_of(found: Any, classes: int) -> tuple[ClassName, ...] | None:
    """A different name for each class; a file may hold anything there, and what is no list of names is none."""
    names = cast("list[Any]", found if isinstance(found, list) else [])
    alike = any(all(isinstance(name, kind) for name in names) for kind in (str, int | float))
    return tuple(names) if alike and len(names) == len(set(names)) == classes else None


def places_of(names: tuple[ClassName, ...] | None, classes: int) -> dict[tuple[str, Any], int]:
    """The position of every label that is accepted, by its kind and value."""
    if names is None:
        return {("number", at): at for at in range(classes)}
    places = {kind_and_value(name): at for at, name in enumerate(names)}
    if any(kind == "fraction" for kind, _ in places):  # 1 is as good as 1.0, where labels are such
        places |= {("number", name): at for at, name in enumerate(names)}
    if names == tuple(str(at) for at in range(classes)):
        places |= {("number", at): at for at in range(classes)}
    return places


def kind_and_value(label: Any) -> tuple[str, Any]:
    """What tells 1, 1.0, True and "1" apart, which are equal to Python or mean the same to people."""
    value: Any = label.item() if hasattr(label, "item") else label  # a number of numpy
    kinds = ((str, "text"), (bool, "truth"), (int, "number"), (float, "fraction"))  # a bool is an int, too
    return next(((name, value) for kind, name in kinds if isinstance(value, kind)), ("", None))


def unknown_label(label: Any, names: tuple[ClassName, ...] | None, classes: int) -> str:
    """What to say of a label that is none of the classes."""
    if names is None:
        return (
            f"Expected true labels as whole numbers from 0 to {classes - 1}, since these votes do not say what their "
            f"classes are called; got {shown(label)}. Give the position of each label among the classes."
        )
    few = shortened(listed(map(repr, names)), 80)
    return (
        f"The true labels hold {shown(label)}, which is none of the classes {few}; give labels as the training "
        "data had them, not positions."
    )
