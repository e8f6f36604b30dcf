"""Training data with examples added and others taken out: a function of what was there, what comes and what goes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mithridate._io.files import read_file
from mithridate._text import capitalised, counted, did_you_mean, shown
from mithridate.data.examples import Examples, joined
from mithridate.data.partition import content_hashes, is_held_out
from mithridate.data.sources import TABLE_FILES
from mithridate.data.table_files import read_table
from mithridate.data.units import Units
from mithridate.errors import ArtifactError, ConfigError

Mask = npt.NDArray[np.bool_]
TEXT_FILE = ".txt"


@dataclass(frozen=True, eq=False)
class Change:
    """What becomes of training data.

    Attributes:
        training: the examples that are left, in their order, and behind them those that came, in theirs.
        added: those that came and are trained on.
        removed: those that went.
        held_out: how many of the examples that were to come, or to go, are held out: nothing trains on these.
    """

    training: Examples
    added: Examples | None
    removed: Examples | None
    held_out: int = 0


def changed(
    training: Examples,
    more: Examples | None,
    gone: Examples | Sequence[str] | None,
    *,
    holdout: float = 0.0,
    classes: int | None = None,
    names_read_off: bool = False,
    inputs: Examples | None = None,
) -> Change:
    """Add examples, and remove others.

    Guarantee: the examples that are left keep their order, and those that come stand behind them in theirs. Of equal
    examples (input, label and, where there are units, unit), those go that stand first. With a share that is held out,
    a hash decides as it did for the others (see `split_by_hash`), and what is held out stays as it is.

    Args:
        training: what was trained on.
        more: what comes.
        gone: what goes: as many examples as there are of each, or all examples of units of these names.
        holdout: the share that was held out of the data, 0 where there is a test set.
        classes: the number of classes, where it is declared; by default as many as have names, or have examples.
        names_read_off: whether the names of the classes are those that the training data happens to have.
        inputs: what was held out, to find there what is to go and is not trained on; None: a hash alone decides.

    Raises:
        ConfigError: what is to go is not there, or too little would be left.
    """
    keep, unseen = _kept(training, gone, holdout, inputs)
    added, out = None, 0
    counts_labels = classes is None and training.class_names is None
    if more is not None:
        if counts_labels:
            _check_known(training, more)
        held_out = is_held_out(more, holdout) if holdout else np.zeros(len(more.x), dtype=np.bool_)
        added, out = more.part(~held_out), int(held_out.sum())
        added = added if len(added.x) else None
    _check_left(training, keep, added, counts_labels=counts_labels, names_read_off=names_read_off)
    left = training if keep.all() else training.part(keep)
    whole = left if added is None else joined(replace(left, ids=None, notes=()), added, "new")
    removed = None if keep.all() else training.part(~keep)
    return Change(replace(whole, ids=None, notes=()), added, removed, out + unseen)


def _check_known(training: Examples, more: Examples) -> None:
    """Refuse labels that the training data did not have where it is its labels that say how many classes there are."""
    assert training.y is not None
    assert more.y is not None
    if int(more.y.max()) > int(training.y.max()):
        raise ConfigError(
            f"The new examples have the label {int(more.y.max())}, and those of the run go up to "
            f"{int(training.y.max())}: with a class more, every model would be another one. Train again on all of the "
            "data, and declare the classes."
        )


def _check_left(
    training: Examples, keep: Mask, added: Examples | None, *, counts_labels: bool, names_read_off: bool
) -> None:
    """Require examples of two classes, and that nothing follows labels that went."""
    assert training.y is not None
    parts = [training.y[keep], *([] if added is None or added.y is None else [added.y])]
    labels = np.unique(np.concatenate(parts))
    if len(labels) < 2:
        raise ConfigError(
            f"Examples of {'one class' if len(labels) else 'no class'} would be left in the training data, and "
            "training needs two; remove fewer."
        )
    if names_read_off and training.class_names is not None and len(labels) < len(training.class_names):
        gone = next(name for label, name in enumerate(training.class_names) if label not in labels)
        raise ConfigError(
            f"No example of the class {shown(gone)} would be left, and the classes were read off the training data, so "
            "that every model would be another one. Train again on what is left, and declare the classes."
        )
    if counts_labels and labels.max() < training.y.max():
        raise ConfigError(
            f"No example of the last class, {int(training.y.max())}, would be left, so that there would be fewer "
            "classes and every model would be another one. Train again on what is left, and declare the classes."
        )


# --- what goes --------------------------------------------------------------------------------------------------------


def _kept(
    training: Examples, gone: Examples | Sequence[str] | None, holdout: float, inputs: Examples | None
) -> tuple[Mask, int]:
    """Which examples stay, and how many of those that are to go are held out."""
    if gone is None:
        return np.ones(len(training.x), dtype=np.bool_), 0
    if isinstance(gone, Examples):
        return _without(training, gone, holdout, inputs)
    return _without_units(training, gone, holdout, inputs)


def _without(training: Examples, gone: Examples, holdout: float, inputs: Examples | None) -> tuple[Mask, int]:
    places = defaultdict[bytes, list[int]](list)
    for place, key in enumerate(_keys(training)):
        places[key].append(place)
    held_out = is_held_out(gone, holdout) if holdout else np.zeros(len(gone.x), dtype=np.bool_)
    keep, unseen, taken = np.ones(len(training.x), dtype=np.bool_), 0, Counter[bytes]()
    known = None if inputs is None or inputs.y is None else set(_contents(inputs))
    for row, (key, content) in enumerate(zip(_keys(gone), _contents(gone), strict=True)):
        number, there = taken[key], places.get(key, [])
        taken[key] += 1
        if number < len(there):
            keep[there[number]] = False
        elif held_out[row] and (known is None or content in known):
            unseen += 1
        else:
            raise ConfigError(_not_there(gone, row, number))
    return keep, unseen


def _not_there(gone: Examples, row: int, before: int) -> str:
    name = capitalised(f"example {row} (from 0)" if gone.ids is None else gone.ids[row])
    if before:
        what = f"is in the training data {counted(before, 'time')} only, and is to be removed once more"
    else:
        what = "is not in the training data: no example there has these values and this label"
    return f"{name} of what is to be removed {what}. Give rows as they were trained on, each as often as it is to go."


def _keys(examples: Examples) -> list[bytes]:
    """All that makes an example what it is: input, label and unit."""
    assert examples.y is not None
    hashes = content_hashes(examples.x, examples.y)
    if examples.units is not None:
        hashes = np.concatenate([examples.units.hashes[examples.units.of_example], hashes], axis=1)
    return [row.tobytes() for row in hashes]


def _contents(examples: Examples) -> list[bytes]:
    """Input and label, without the unit: what is held out may have lost it."""
    assert examples.y is not None
    return [row.tobytes() for row in content_hashes(examples.x, examples.y)]


def _without_units(
    training: Examples, names: Sequence[str], holdout: float, inputs: Examples | None
) -> tuple[Mask, int]:
    units = training.units
    if units is None:
        raise ConfigError(
            "A list of names removes sources, and this run certifies single examples; remove rows like those of the "
            "training file."
        )
    numbers, chosen, unseen = {name: at for at, name in enumerate(units.names)}, list[int](), 0
    kept_out = None if inputs is None else inputs.units
    for name in Units.of(names, units.name).names:
        if name in numbers:
            chosen.append(numbers[name])
        elif kept_out is not None and name in kept_out.names:
            unseen += int((kept_out.of_example == kept_out.names.index(name)).sum())
        elif kept_out is not None or not holdout or not _is_name_held_out(name, units.name, holdout):
            raise ConfigError(
                f"No training example is of the {units.name} {shown(name)}; {did_you_mean(name, units.names)}"
            )
    return ~np.isin(units.of_example, chosen), unseen


def _is_name_held_out(name: str, unit: str, holdout: float) -> bool:
    one = Examples(np.zeros((1, 1)), None, units=Units.of([name], unit))
    return bool(is_held_out(one, holdout)[0])


def names_in(path: Path, unit: str | None, known: Sequence[str]) -> tuple[str, ...] | None:
    """The names of sources that a file lists: a line each in a `.txt`, or the only column of a table.

    None where the file holds examples instead.

    Args:
        path: the file.
        unit: what a source is called; None where there are none.
        known: names of sources that there are: a table without a header has one in the place of its header.

    Raises:
        ArtifactError: it cannot be read.
        ConfigError: a name is missing.
    """
    if path.suffix.lower() == TEXT_FILE:
        return _lines(path, unit, known)
    if unit is None or path.suffix.lower() not in TABLE_FILES:
        return None
    table = read_table(path)
    if len(table.names) != 1:  # examples have a label, too
        return None
    first = table.names if table.names[0] in known else ()
    units = Units.of(table.cells(table.names[0]), unit, "row")
    return tuple(dict.fromkeys((*first, *units.names)))


def _lines(path: Path, unit: str | None, known: Sequence[str]) -> tuple[str, ...]:
    try:
        words = [line.strip() for line in read_file(path).decode("utf-8-sig").splitlines()]
    except UnicodeDecodeError:
        raise ArtifactError(f"{path} is no text in UTF-8; write a name on each line.") from None
    found = [word for word in words if word]
    if found and found[0] == unit and unit not in known:
        found = found[1:]  # a header
    if not found:
        raise ConfigError(f"{path} has no names; write one on each line.")
    return Units.of(found, unit or "unit", "line").names


def per_unit(change: Change) -> dict[str, dict[str, int]]:
    """How many examples of each source came and went, and how many it has now; nothing without units."""
    if change.training.units is None:
        return {}
    found: dict[str, dict[str, int]] = {}
    for what, examples in (("added", change.added), ("removed", change.removed)):
        units = None if examples is None else examples.units
        for name, size in () if units is None else zip(units.names, units.sizes.tolist(), strict=True):
            found.setdefault(name, {"added": 0, "removed": 0, "examples": 0})[what] = size
    now = change.training.units
    for name, size in zip(now.names, now.sizes.tolist(), strict=True):
        if name in found:
            found[name]["examples"] = size
    return found
