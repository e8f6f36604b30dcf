"""A poisoned data set as what differs from the clean one, and how many changes a threat counts it as."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate._io.artifacts import read_npz, write_npz
from mithridate._io.files import PathLike, write_atomically
from mithridate._io.pieces import joined as joined_arrays
from mithridate._io.pieces import taken
from mithridate.core.mechanism import Threat
from mithridate.core.provenance import input_hashes
from mithridate.data.examples import Examples
from mithridate.data.units import Units
from mithridate.data.units import joined as joined_units
from mithridate.errors import ArtifactError, ConfigError

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]
NOTHING: IntArray = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Poison:
    """Examples to delete from a data set, and examples to insert into it.

    A changed example is one that is deleted and one that is inserted; where as many are inserted as deleted, each takes
    the place of the other.

    Attributes:
        deleted: numbers of examples of the clean set, each once.
        x: inputs to insert.
        y: their labels.
        units: the name of the unit of each, where the clean set has units.
    """

    deleted: IntArray
    x: Array
    y: IntArray
    units: tuple[str, ...] | None = None

    @classmethod
    def deleting(cls, clean: Examples, deleted: IntArray) -> Poison:
        """Delete some examples, and insert none."""
        return cls(np.sort(deleted), clean.x[:0], NOTHING, None if clean.units is None else ())

    @classmethod
    def inserting(cls, x: Array, y: IntArray, units: Sequence[str] | None = None) -> Poison:
        """Insert some examples, and delete none."""
        return cls(NOTHING, x, y, None if units is None else tuple(units))

    def applied(self, clean: Examples) -> Examples:
        """The poisoned set; all that is declared about the clean one is declared about it."""
        if len(self.deleted) == len(self.y) and clean.units is None:
            x, y = np.array(clean.x), np.array(clean.y)
            if x.dtype.kind == "U" and self.x.dtype.itemsize > x.dtype.itemsize:
                x = x.astype(self.x.dtype)
            x[self.deleted], y[self.deleted] = self.x, self.y
            return replace(clean, x=x, y=y, ids=None)
        keep = np.ones(len(clean.x), dtype=np.bool_)
        keep[self.deleted] = False
        left = replace(clean.part(keep), ids=None) if len(self.deleted) else replace(clean, ids=None)
        if not len(self.y):
            return left
        assert left.y is not None
        units = left.units
        if units is not None:
            assert self.units is not None
            units = joined_units(units, Units.of(self.units, units.name))
        more = self.x.astype(left.x.dtype) if left.x.dtype.kind != "U" else self.x
        return replace(left, x=joined_arrays(left.x, more), y=np.concatenate([left.y, self.y]), units=units)

    def cost(self, threat: Threat, clean: Examples) -> int:
        """How many changes it is, as radii of a threat count them.

        Raises:
            ConfigError: the threat does not cover it.
        """
        gone, new, changed = self._touched(clean)
        match threat:
            case Threat.SYMMETRIC_DIFFERENCE:
                return gone + new + 2 * changed
            case Threat.EDIT if clean.units is not None:
                return gone + new + changed
            case Threat.EDIT:
                return changed + max(gone, new)
            case Threat.ADD if not gone and not changed:
                return new
            case Threat.REMOVE if not new and not changed:
                return gone
            case Threat.REPLACE if gone == new and (clean.units is None or not gone):
                return changed + new
            case Threat.LABELS if clean.units is None and gone == new and self._keeps_inputs(clean):
                return new
            case Threat.FEATURES if clean.units is None and gone == new and self._keeps_labels(clean):
                return new
            case _:
                raise ConfigError(f"{threat.value} does not cover {gone} deleted, {new} inserted, {changed} changed.")

    def _keeps_inputs(self, clean: Examples) -> bool:
        """Whether what is inserted has the inputs of what is deleted, one by one."""
        return bool(np.array_equal(clean.x[self.deleted], self.x))

    def _keeps_labels(self, clean: Examples) -> bool:
        """The same of labels; how far inputs may move is for the attack to keep."""
        assert clean.y is not None
        return bool(np.array_equal(clean.y[self.deleted], self.y))

    def _touched(self, clean: Examples) -> tuple[int, int, int]:
        """How many examples are only deleted, and only inserted; of units, also how many are changed."""
        units = clean.units
        if units is None:
            return len(self.deleted), len(self.y), 0
        assert self.units is not None
        left = np.delete(units.of_example, self.deleted)
        whole = {units.names[at] for at in set(units.of_example[self.deleted].tolist()) - set(left.tolist())}
        some = {units.names[at] for at in set(units.of_example[self.deleted].tolist())} - whole
        inserted = set(self.units)
        changed = some | (inserted & set(units.names))
        return len(whole - changed), len(inserted - changed), len(changed)

    def digest(self) -> str:
        """A hash of all that it changes."""
        content = hashlib.sha256(repr((self.deleted.tolist(), self.y.tolist(), self.units)).encode())
        content.update(input_hashes(self.x).data if len(self.x) else b"")
        return content.hexdigest()[:16]

    def save(self, path: Path, about: dict[str, Any]) -> None:
        """Write all that makes the poisoned set of the clean one: a `.npz` file without pickle."""
        arrays = {"deleted": self.deleted, "x": self.x, "y": self.y, "about": np.array(json.dumps(about))}
        if self.units is not None:
            arrays["units"] = np.array(self.units, dtype=np.str_)
        with write_atomically(path) as file:
            write_npz(file, arrays)

    @classmethod
    def load(cls, path: PathLike) -> Poison:
        """What `save` wrote, such as the file that `audit.json` names for a broken claim.

        Raises:
            ArtifactError: the file is missing, or is no such file.
        """
        arrays = read_npz(Path(path), "the poison of an audit")
        if not {"deleted", "x", "y"} <= set(arrays):
            raise ArtifactError(f"{path} holds no poison; give a file of the folder `broken` of an audit.")
        numbers = [arrays[name] for name in ("deleted", "y")]
        are_numbers = all(each.dtype.kind in "iu" and each.ndim == 1 for each in numbers)
        if not are_numbers or arrays["x"].shape[:1] != numbers[1].shape:
            raise ArtifactError(f"{path} is damaged: deleted and y hold no numbers, or x is not as long as y.")
        units = tuple(arrays["units"].tolist()) if "units" in arrays else None
        deleted, y = (each.astype(np.int64) for each in numbers)
        return cls(deleted, arrays["x"], y, units)

    @classmethod
    def changing(cls, clean: Examples, which: IntArray, x: Array, y: IntArray) -> Poison:
        """Give some examples other inputs and labels; where there are units, they stay in theirs."""
        order = np.argsort(which, kind="stable")
        which, x, y = which[order], taken(x, order), y[order]
        units = clean.units
        names = None if units is None else tuple(units.names[at] for at in units.of_example[which].tolist())
        return cls(which, x, y, names)
