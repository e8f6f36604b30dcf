"""Examples in one file, as they were read: what training data has become that no file of the user's holds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mithridate._io.artifacts import read_npz
from mithridate._io.files import parse_json, write_atomically
from mithridate.core.conditions import from_plain, to_plain
from mithridate.data.declarations import Declaration
from mithridate.data.examples import Examples
from mithridate.data.units import Units
from mithridate.errors import ArtifactError, ConfigError

_SCHEMA = "mithridate.examples/1"


def save_examples(path: Path, examples: Examples) -> None:
    """Write inputs, labels, units and all that is said of them; no notes, and how they are read is declared elsewhere.

    Raises:
        ArtifactError: the folder cannot be written to.
    """
    units, names = examples.units, examples.class_names
    said = {
        "schema": _SCHEMA,
        "class_names": None if names is None else list(names),
        "assumptions": to_plain(examples.assumptions),
        "unit": None if units is None else units.name,
        "unit_names": None if units is None else list(units.names),
    }
    arrays: dict[str, Any] = {"x": np.asarray(examples.x), "said": np.array(json.dumps(said))}
    if examples.y is not None:
        arrays["y"] = examples.y
    if units is not None:
        arrays["units"] = units.of_example
    if examples.ids is not None:
        arrays["ids"] = np.array(list(examples.ids), dtype=np.str_)
    with write_atomically(path, durable=True) as file:
        np.savez(file, **arrays)  # not packed: they are written at every update, and read at the next


def load_examples(path: Path, declaration: Declaration | None) -> Examples:
    """Read what `save_examples` wrote.

    Raises:
        ArtifactError: the file is missing or damaged.
    """
    arrays = read_npz(path, "the examples of a run")
    try:
        said = parse_json(str(arrays["said"]))
        if said["schema"] != _SCHEMA:
            raise ValueError(f"its schema is {said['schema']!r:.80}")
        names = None if said["class_names"] is None else tuple(map(str, said["class_names"]))
        found = Examples(
            arrays["x"],
            arrays.get("y"),
            names,
            assumptions=from_plain(said["assumptions"]),
            declaration=declaration,
            ids=tuple(arrays["ids"].tolist()) if "ids" in arrays else None,
        )
        if said["unit"] is None:
            return found
        of_example, unit_names = arrays["units"].astype(np.int64), tuple(map(str, said["unit_names"]))
        if len(of_example) != len(found.x) or not set(np.unique(of_example)) <= set(range(len(unit_names))):
            raise ValueError("its units are not those of its examples")
        return replace(found, units=Units(str(said["unit"]), unit_names, of_example))
    except (KeyError, ValueError, TypeError, AttributeError, ConfigError) as error:
        raise ArtifactError(f"{path} is damaged ({error!s:.200}). Train the run again.") from error
