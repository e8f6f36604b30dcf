"""The run directory of a defence without models: what `predict` needs, as arrays, and the votes.

    run.json        what votes, on which data, and all that is said of it; nothing secret
    examples.npz    the arrays that predictions need, such as the features and labels of the examples that vote
    rows.npy        such an array that is large, and is therefore read from the file as it is needed
    votes.npz       the votes on the inputs of the run

Nothing is random and nothing takes long, so a run that was interrupted is computed again as a whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate._io.artifacts import read_npz, write_npz
from mithridate._io.files import PathLike, parse_json, read_file, write_atomically
from mithridate._io.scratch import in_memory_bytes, read_mapped, write_mapped
from mithridate._version import VERSION
from mithridate.core.conditions import Size, from_plain, to_plain
from mithridate.core.provenance import TrainingData
from mithridate.core.units import Unit
from mithridate.core.votes import Votes
from mithridate.errors import ArtifactError, ConfigError

SCHEMA = "mithridate.run/1"
KIND = "examples"
_SAID = ("recipe", "inputs", "training", "assumptions", "size", "unit", "data_fingerprint", "mapped")
# What a recipe says of the method; methods that vote alike can share a run.
_OF_METHOD = ("defence", "rule")


@dataclass(frozen=True, eq=False)
class KeptRun:
    """A run that keeps arrays.

    Attributes:
        recipe: of its votes.
        inputs: shape and kind of one raw input, in plain JSON values.
        training: which data it was trained on.
        statements: all that its certificates repeat.
        size: see `Votes.size`.
        unit: see `Votes.unit`.
        arrays: what predictions need.
        folder: where it was read from.
    """

    recipe: dict[str, Any]
    inputs: dict[str, Any]
    training: TrainingData
    statements: tuple[str, ...]
    size: Size | None
    arrays: dict[str, npt.NDArray[Any]]
    unit: Unit | None = None
    folder: Path | None = None

    def save(self, run_dir: PathLike, votes: Votes) -> None:
        """Write the run, `run.json` last: what is there then is whole.

        Raises:
            ArtifactError: the directory cannot be written to.
            ConfigError: it belongs to another run.
        """
        folder = Path(run_dir)
        content = self._content(votes)
        _check_place(folder, content)
        large = {name: array for name, array in self.arrays.items() if array.nbytes > in_memory_bytes()}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArtifactError(f"Cannot make the folder {folder}: {error.strerror}. Use another one.") from error
        with write_atomically(folder / "examples.npz") as file:
            write_npz(file, {name: array for name, array in self.arrays.items() if name not in large})
        content["mapped"] = {name: write_mapped(folder / f"{name}.npy", array) for name, array in large.items()}
        votes.save(folder / "votes.npz")
        with write_atomically(folder / "run.json", durable=True) as file:
            file.write((json.dumps(content, indent=1) + "\n").encode())

    def _content(self, votes: Votes) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "kind": KIND,
            "recipe": votes.recipe,
            "inputs": self.inputs,
            "training": self.training.to_dict(),
            "data_fingerprint": votes.data_fingerprint,
            "assumptions": to_plain(votes.assumptions),
            "size": None if votes.size is None else votes.size.to_dict(),
            "unit": None if votes.unit is None else votes.unit.to_dict(),
            "versions": {"mithridate": VERSION, "numpy": np.__version__},
        }

    @classmethod
    def load(cls, run_dir: PathLike) -> KeptRun:
        """Read a run back.

        Raises:
            ArtifactError: the run is missing or damaged.
        """
        path = Path(run_dir)
        said = _read(path / "run.json")
        arrays = read_npz(path / "examples.npz", "what the predictions of a run need")
        try:
            for name, digest in said["mapped"].items():
                if not name.isidentifier():
                    raise ValueError(f"{name!r:.80} is no name of an array")
                arrays[name] = read_mapped(path / f"{name}.npy", digest)
            return cls(
                dict(said["recipe"]),
                dict(said["inputs"]),
                TrainingData(**said["training"]),
                from_plain(said["assumptions"]),
                None if said["size"] is None else Size(**said["size"]),
                arrays,
                None if said["unit"] is None else Unit(**said["unit"]),
                path,
            )
        except (TypeError, ValueError, AttributeError) as error:
            raise damaged(path, error) from error

    def votes_of_run(self, votes: Votes) -> Votes:
        """Votes on other inputs, with all that the run says of its own."""
        kept = {name: self.recipe[name] for name in ("source", "unit_cap", *_OF_METHOD) if name in self.recipe}
        recipe = {**(votes.recipe or {}), **kept}
        said = {"size": self.size, "unit": self.unit, "assumptions": self.statements, "training": self.training}
        return replace(votes, recipe=recipe, **said)


def damaged(run_dir: PathLike, error: Exception) -> ArtifactError:
    """What a run that cannot be read is refused with."""
    return ArtifactError(f"The run in {run_dir} is damaged ({error!s:.200}). Train it again.")


def _read(path: Path) -> Mapping[str, Any]:
    try:
        said = parse_json(read_file(path))
        if said["schema"] == SCHEMA and said["kind"] == KIND and all(name in said for name in _SAID):
            return said
    except ArtifactError as error:
        raise ArtifactError(f"{error} Give the directory of a run.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(path.parent, error) from error
    raise ArtifactError(f"{path} is not what this version writes for a run of examples; train it again.")


def _check_place(folder: Path, content: Mapping[str, Any]) -> None:
    """Refuse to overwrite another run."""
    path = folder / "run.json"
    if not os.path.exists(path):  # which says no, too, where no such name can be
        if any(os.path.exists(folder / name) for name in ("votes.npz", "shards", "seed")):
            raise ConfigError(f"{folder} has results, but no run.json that says of what; use another run_dir.")
        return
    try:
        before = _read(path)
    except ArtifactError as error:
        raise ConfigError(f"{folder} belongs to a run of something else; use another run_dir (--run-dir).") from error
    names = {
        "recipe": "its constants are",
        "training": "its training data is",
        "data_fingerprint": "its test inputs are",
    }
    different = [words for name, words in names.items() if _compared(before[name]) != _compared(content[name])]
    if different:
        raise ConfigError(
            f"{folder} belongs to another run: {different[0]} different; use another run_dir (--run-dir)."
        )


def _compared(said: Any) -> Any:
    """What must be equal in two descriptions of one run."""
    return {name: value for name, value in said.items() if name not in _OF_METHOD} if isinstance(said, dict) else said
