"""Labels of any source as whole numbers from 0, by the declared classes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate._text import listed, shown
from mithridate.core.conditions import PUBLIC, Statement
from mithridate.data import frames
from mithridate.data.declarations import MOST_CLASSES, why_no_class
from mithridate.data.frames import Cells, FloatArray, Place, canonical
from mithridate.errors import ConfigError

IntArray = npt.NDArray[np.int64]
Numbered = tuple[IntArray, tuple[str, ...] | None, tuple[str, ...]]

_WRONG_COLUMN = "probably this is not the column of labels"
# Of fewer rows each may well be of a class of its own.
_LEAST_ROWS = 20
_ALL_WHOLE = Statement(f"The labels were read as whole numbers, since all of them are; {PUBLIC}", "class-list")


class GatheredLabels:
    """Labels as they come, piece by piece: every different one once, with the place where it stands first.

    A label is the name of a declared class. Where no class is named by a number, labels that are whole numbers by their
    type count the declared classes from 0. Without declared classes, labels that are all whole numbers stay what they
    are, which is an assumption unless their type fixes it; else the classes are the different labels of the training
    data in sorted order, which is one, too. Other data never names classes: its labels must then be whole numbers.

    Args:
        classes: names of the classes, where they are declared.
        training: whether this is training data, which must have two classes and may name them.
        are_numbers: whether every label is a whole number by its type, though the source has no type of its own.
    """

    def __init__(self, classes: tuple[str, ...] | None, *, training: bool = False, are_numbers: bool = False) -> None:
        self._classes, self._training, self._are_numbers = classes, training, are_numbers
        self._codes: dict[str, int] = {}
        self._places: list[str] = []
        self._typed = False

    def add(self, cells: Cells, place: Place) -> IntArray:
        """The labels of the next examples, each as the number of its place among the different ones.

        Args:
            cells: the labels.
            place: how an example is called in an error.

        Raises:
            ConfigError: a label is missing or none of the declared classes, or there are too many.
        """
        words, codes = frames.coded(cells)
        rows = frames.first_rows(codes)
        for row, word in zip(rows, words, strict=True):
            if word is None:
                raise ConfigError(f"The label of {place(row)} is missing; add it, or leave out the example.")
        self._typed = cells.dtype != object
        for row, word in zip(rows, words, strict=True):
            if word is not None and word not in self._codes:
                self._codes[word] = len(self._codes)
                self._places.append(place(row))
        if self._classes is not None:
            self._looked_up(self._classes)
        elif len(self._codes) > MOST_CLASSES:
            self.numbered()  # refuses them
        return np.array([self._codes[word or ""] for word in words], dtype=np.int64)[codes]

    def numbered(self) -> Numbered:
        """Each of the different labels as a whole number, the names of the classes if any, and what that assumes.

        Raises:
            ConfigError: a label is none of the classes, or there are too few classes or too many.
        """
        labels, place = list(self._codes), self._places.__getitem__
        classes, assumptions = self._classes, tuple[str, ...]()
        if classes is None:
            word = next((number for number, label in enumerate(labels) if _as_number(label) is None), None)
            if word is None:
                return self._whole_numbers(), None, (_ALL_WHOLE,) if self._training and not self._typed else ()
            if not self._training:
                raise ConfigError(
                    f"The label of {place(word)} is {shown(labels[word])}, but the classes of the training data are "
                    "numbers; give numbers, or declare the classes before training."
                )
            classes = _different(labels, map(_as_written, labels), place)
            assumptions = (
                Statement(f"The classes ({listed(classes)}) were read off the training data; {PUBLIC}", "class-list"),
            )
        return _checked(self._looked_up(classes), self._training, labels), classes, assumptions

    def _whole_numbers(self) -> IntArray:
        """Of labels that are all numbers."""
        labels, place = list(self._codes), self._places.__getitem__
        values = _whole_numbers(labels, place, least=0)
        if values.max() >= MOST_CLASSES:
            raise ConfigError(
                f"The label of {place(int(values.argmax()))} is {values.max():g}, which would make more than "
                f"{MOST_CLASSES:,} classes; {_WRONG_COLUMN}, else declare the classes."
            )
        return _checked(values.astype(np.int64), self._training, labels)

    def _looked_up(self, classes: tuple[str, ...]) -> IntArray:
        # Only where labels are numbers by their type may they count the classes: the text "1" is a mistake, or a class.
        known = _known(classes, by_position=self._are_numbers or self._typed)
        return _looked_up(list(self._codes), known, classes, self._places.__getitem__)

    @property
    def state(self) -> dict[str, Any]:
        """What was found so far, as plain JSON values."""
        return {"labels": list(self._codes), "places": list(self._places), "typed": self._typed}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with what was found before."""
        self._codes = {label: number for number, label in enumerate(state["labels"])}
        self._places, self._typed = list(state["places"]), state["typed"]


def numbered(
    cells: Cells,
    *,
    classes: tuple[str, ...] | None,
    place: Place,
    training: bool = False,
    are_numbers: bool = False,
) -> Numbered:
    """Labels as whole numbers, the names of the classes where they have any, and what that assumes.

    See `GatheredLabels` for what becomes of them.

    Raises:
        ConfigError: a label is missing or none of the classes, or there are too few classes or too many.
    """
    labels = GatheredLabels(classes, training=training, are_numbers=are_numbers)
    codes = labels.add(cells, place)
    numbers, names, assumptions = labels.numbered()
    return numbers[codes], names, assumptions


def proposed(cells: Cells, place: Place) -> tuple[str, ...]:
    """The different labels as they stand there, to be declared as classes.

    Raises:
        ConfigError: a label is missing or cannot name a class, or there are too few classes or too many.
    """
    labels = _present(frames.texts(cells), place)
    if all(_as_number(label) is not None for label in labels):
        _whole_numbers(labels, place, least=-math.inf)
    spelled = [cell.strip() for cell in cells] if cells.dtype == object else [_as_written(label) for label in labels]
    names = _different(labels, spelled, place)
    if len(labels) >= _LEAST_ROWS and 2 * len(names) > len(labels):
        raise ConfigError(
            f"There are {len(names):,} different labels in {len(labels):,} rows; {_WRONG_COLUMN}, else declare the "
            "classes."
        )
    return names


def _present(words: list[str | None], place: Place) -> list[str]:
    absent = next((row for row, word in enumerate(words) if word is None), None)
    if absent is not None:
        raise ConfigError(f"The label of {place(absent)} is missing; add it, or leave out the example.")
    return [word for word in words if word is not None]


def are_counted(cells: Cells, classes: tuple[str, ...] | None) -> bool:
    """Whether labels are numbers although all classes are named by words: they count the classes then."""
    if classes is None or any(_as_number(canonical(name)) is not None for name in classes):
        return False
    return all(word is not None and _as_number(word) is not None for word in frames.coded(cells)[0])


def _known(classes: tuple[str, ...], *, by_position: bool) -> dict[str, int]:
    """What may stand for each class."""
    known = {canonical(name): number for number, name in enumerate(classes)}
    if by_position and not any(_as_number(name) is not None for name in known):
        known |= {canonical(str(number)): number for number in range(len(classes))}
    return known


def _looked_up(labels: list[str], known: dict[str, int], classes: tuple[str, ...], place: Place) -> IntArray:
    try:
        return np.array([known[label] for label in labels], dtype=np.int64)
    except KeyError:
        row = next(i for i, label in enumerate(labels) if label not in known)
    raise ConfigError(
        f"The label of {place(row)} is {shown(_as_written(labels[row]))}, which is not among the classes "
        f"{listed(classes)}; mend the label, or declare its class before training."
    )


def _whole_numbers(labels: list[str], place: Place, least: float) -> FloatArray:
    """Labels that are all numbers, which must be whole and at least `least`."""
    values = np.array(labels, dtype=np.float64)
    wrong = (values != np.floor(values)) | (values < least)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ConfigError(
            f"The label of {place(row)} is {_as_written(labels[row])}; labels are names or whole numbers from 0; "
            "numbers of another kind cannot be certified. If it is the name of a class, declare the classes."
        )
    return values


def _different(labels: list[str], spelled: Iterable[str], place: Place) -> tuple[str, ...]:
    """The different labels, each as it is spelled first, in sorted order."""
    found: dict[str, str] = {}
    for row, (label, name) in enumerate(zip(labels, spelled, strict=True)):
        if label in found:
            continue
        wrong = why_no_class(name)
        if wrong is not None:
            raise ConfigError(f"The label of {place(row)}, {shown(name)}, {wrong}; mend it.")
        found[label] = name
    names = in_order(found.values())
    if len(names) > MOST_CLASSES:
        raise ConfigError(f"There are {len(names):,} different labels, more than {MOST_CLASSES:,}; {_WRONG_COLUMN}.")
    if len(names) < 2:
        only = shown(next(iter(found.values())))
        raise ConfigError(
            f"All examples have the label {only}; with one class there is nothing to certify. Declare the classes."
        )
    return names


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Names of classes as they are numbered: by their values where all are numbers, else as text.

    >>> in_order(["10", "9"]), in_order(["10", "9", "a"])
    (('9', '10'), ('10', '9', 'a'))
    """
    found = sorted(names)
    values = {name: _as_number(name) for name in found}
    return tuple(found if None in values.values() else sorted(found, key=lambda name: values[name] or 0.0))


def _checked(numbers: IntArray, training: bool, labels: list[str]) -> IntArray:
    if training and numbers.min() == numbers.max():
        only = shown(_as_written(labels[0]))
        raise ConfigError(f"All examples have the label {only}; training needs examples of at least two classes.")
    return numbers


def _as_written(label: str) -> str:
    """A canonical label as a person would write it: 3 and not 3.0."""
    number = _as_number(label)
    return label if number is None or number != math.floor(number) or abs(number) >= 1e15 else str(int(number))


def _as_number(label: str) -> float | None:
    try:
        number = float(label)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
