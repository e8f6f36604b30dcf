"""Training data with examples added and others taken out: a function of what was there, what comes and what goes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mithridate._io.files import read_file
from mithridate._text import counted, did_you_mean, shown
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
    test: Examples,
    more: Examples | None,
    gone: Examples | Sequence[str] | None,
    *,
    holdout: float = 0.0,
    classes: int | None = None,
) -> Change:
    """Add examples, and remove others.

    Guarantee: the examples that are left keep their order, and those that come stand behind them in theirs. Of equal
    examples (input, label and, where there are units, unit), those go that stand first. With a share that is held out,
    a hash decides as it did for the others (see `split_by_hash`), and what is held out stays as it is.

    Args:
        training: what was trained on.
        test: what is voted on; with a share, the examples that were held out.
        more: what comes.
        gone: what goes: as many examples as there are of each, or all examples of units of these names.
        holdout: the share that was held out of the data, 0 where there is a test set.
        classes: the number of classes, where it is declared; by default as many as have names, or have examples.

    Raises:
        ConfigError: what is to go is not there, or too little would be left.
    """
    keep, unseen = _kept(training, test, gone, holdout)
    added, out = None, 0
    counts_labels = classes is None and training.class_names is None
    if more is not None:
        if counts_labels:
            _check_known(training, more)
        held_out = is_held_out(more, holdout) if holdout else np.zeros(len(more.x), dtype=np.bool_)
        added, out = more.part(~held_out), int(held_out.sum())
        added = added if len(added.x) else None
    _check_left(training, keep, added, counts_labels=counts_labels)
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


def _check_left(training: Examples, keep: Mask, added: Examples | None, *, counts_labels: bool) -> None:
    """Require examples of two classes, and that nothing follows labels that went."""
    assert training.y is not None
    parts = [training.y[keep], *([] if added is None or added.y is None else [added.y])]
    labels = np.unique(np.concatenate(parts))
    if len(labels) < 2:
        raise ConfigError(
            f"Examples of {'one class' if len(labels) else 'no class'} would be left in the training data, and "
            "training needs two; remove fewer."
        )
    if counts_labels and labels.max() < training.y.max():
        raise ConfigError(
            f"No example of the last class, {int(training.y.max())}, would be left, so that there would be fewer "
            "classes and every model would be another one. Train again on what is left, and declare the classes."
        )


# --- what goes --------------------------------------------------------------------------------------------------------


def _kept(
    training: Examples, test: Examples, gone: Examples | Sequence[str] | None, holdout: float
) -> tuple[Mask, int]:
    """Which examples stay, and how many of those that are to go are held out."""
    if gone is None:
        return np.ones(len(training.x), dtype=np.bool_), 0
    if isinstance(gone, Examples):
        return _without(training, test, gone, holdout)
    return _without_units(training, test, gone)


def _without(training: Examples, test: Examples, gone: Examples, holdout: float) -> tuple[Mask, int]:
    places = defaultdict[bytes, list[int]](list)
    for place, key in enumerate(_keys(training)):
        places[key].append(place)
    there = Counter(_keys(test)) if holdout and test.y is not None else Counter[bytes]()
    keep, unseen, taken = np.ones(len(training.x), dtype=np.bool_), 0, Counter[bytes]()
    for row, key in enumerate(_keys(gone)):
        number = taken[key]
        taken[key] += 1
        if number < len(places.get(key, ())):
            keep[places[key][number]] = False
        elif number < there[key]:
            unseen += 1
        else:
            name = f"example {row} (from 0)" if gone.ids is None else gone.ids[row]
            what = "is not in the training data"
            if number:
                what = f"is there {counted(number, 'time')} only, and is to be removed once more"
            raise ConfigError(
                f"{name[:1].upper()}{name[1:]} of what is to be removed {what}: no example that is left has these "
                "values and this label. Give rows as they were trained on, and each as often as it is to go."
            )
    return keep, unseen


def _keys(examples: Examples) -> list[bytes]:
    """All that makes an example what it is: input, label and unit."""
    assert examples.y is not None
    hashes = content_hashes(examples.x, examples.y)
    if examples.units is not None:
        hashes = np.concatenate([examples.units.hashes[examples.units.of_example], hashes], axis=1)
    return [row.tobytes() for row in hashes]


def _without_units(training: Examples, test: Examples, names: Sequence[str]) -> tuple[Mask, int]:
    units = training.units
    if units is None:
        raise ConfigError(
            "A list of names removes sources, and this run certifies single examples; remove rows like those of the "
            "training file."
        )
    numbers, held_out, chosen = {name: at for at, name in enumerate(units.names)}, 0, list[int]()
    elsewhere = () if test.units is None else test.units.names
    for name in names:
        if name in numbers:
            chosen.append(numbers[name])
        elif name in elsewhere:
            assert test.units is not None
            held_out += int((test.units.of_example == elsewhere.index(name)).sum())
        else:
            raise ConfigError(
                f"No training example is of the {units.name} {shown(name)}; {did_you_mean(name, units.names)}"
            )
    return ~np.isin(units.of_example, chosen), held_out


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
    if len(table.names) != 1 or (table.names[0] != unit and table.names[0] not in known):
        return None
    first = () if table.names[0] == unit else table.names
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
