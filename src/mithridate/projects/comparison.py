"""Comparison files: which data, which methods, which claim; `mithridate compare` reads them.

out = "comparison"                # a folder; runs are kept in it, so that a killed comparison goes on
radii = [0, 10, 50]               # this and the rest of this part may be left out
threat = "symmetric-difference"
failure_prob = 0.001
scope = "prediction"
device = "auto"
assumptions = ["..."]             # what else has looked at the training data, for every certificate to repeat
methods = ["fdp", "kernel-vote"]  # names, or tables as below

[data]                            # as in a project file, or the name of a data set
name = "digits"

[[methods]]                       # a name with options of the defence
name = "dpa"
partitions = 250

A project file that `mithridate init` wrote will do, too: its [data] is read, and methods are named by --methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mithridate import _validate
from mithridate._io.files import PathLike
from mithridate.comparing.result import checked_radii
from mithridate.comparing.running import row_names
from mithridate.core.mechanism import Threat
from mithridate.data.declarations import Images, Table
from mithridate.data.download import Progress
from mithridate.data.examples import Examples
from mithridate.defences import Defence, defence
from mithridate.errors import ConfigError
from mithridate.projects.project import Project, assumptions_of, data_of, read_toml, refuse_unknown, table_of

_TEXTS = ("out", "title", "threat", "scope", "device", "match_with")
_KNOWN = (*_TEXTS, "radii", "failure_prob", "match", "assumptions", "methods", "data")
_NO_OPTIONS = ("out", "assumptions", "methods", "data")
# What only `mithridate train` asks for, in a file that is meant for both.
_FOR_TRAIN = ("run_dir", "train")


@dataclass(frozen=True)
class ComparisonFile:
    """What a comparison file says.

    Attributes:
        methods: a table for each method: its name and its options.
        data: where the data is, and what is taken for granted about it.
        out: the folder of the results.
        options: the rest, by the names of the arguments of `compare`.
        notes: what a reader should know about how the file was read, a sentence each.
    """

    methods: tuple[dict[str, Any], ...]
    data: Project
    out: Path = Path("comparison")
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    notes: tuple[str, ...] = ()

    def examples(self, progress: Progress | None = None) -> tuple[Examples, Examples]:
        """The training data, and the test points.

        Raises:
            ArtifactError: a file is missing or cannot be read.
            ConfigError: it is not what was declared, or the test points have no labels.
        """
        training, test = self.data.examples(progress)
        if test.y is None:
            raise ConfigError(f"{self.data.test} has no labels, which a comparison needs; {self._where_labels_go()}.")
        return training, test

    def _where_labels_go(self) -> str:
        declaration = self.data.declaration
        if isinstance(declaration, Table):
            return f"add the column {declaration.label!r}, which [data] declares as the label"
        if isinstance(declaration, Images):
            return "put its images into one folder per class"
        return "add them as the array y"

    def defences(self, names: Sequence[str] | None = None) -> dict[str, Defence]:
        """The methods by the names of their rows.

        Args:
            names: which ones: all of a method, or the one of a row; with the options that the file gives them, where
                it does.

        Raises:
            ConfigError: a method or an option is not known, or there is no method.
        """
        if names is None and not self.methods:
            raise ConfigError(
                'There is nothing to compare; add methods = ["fdp", "dpa"] or [[methods]] to the file, or --methods '
                "fdp,dpa to the command."
            )
        rows = [(str(table["name"]), str(table.get("on", "votes"))) for table in self.methods]
        tables = dict(zip(row_names(rows), self.methods, strict=True))
        return {row: _built(table) for row, table in (tables if names is None else _chosen(tables, names)).items()}


def _chosen(tables: dict[str, dict[str, Any]], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The tables of some names, in their order: those of a method, the one of a row, or one without options."""
    chosen: dict[str, dict[str, Any]] = {}
    for name in names:
        rows = [row for row, table in tables.items() if table["name"] == name] or [name]
        chosen |= {row: tables.get(row, {"name": name}) for row in rows if row not in chosen}
    return chosen


def _built(table: dict[str, Any]) -> Defence:
    return defence(table["name"], **{key: value for key, value in table.items() if key != "name"})


def read_comparison(path: PathLike) -> ComparisonFile:
    """Read a comparison file; the files it names are looked for beside it.

    Raises:
        ArtifactError: the file is missing or is no TOML.
        ConfigError: it holds something that nobody asks for, or lacks data.
    """
    path = Path(path)
    content = read_toml(path, "a comparison file", "give one such as `mithridate compare --help` shows")
    table_of(content, "train", path)
    refuse_unknown({name: value for name, value in content.items() if name not in _FOR_TRAIN}, _KNOWN, f"in {path}")
    for name in _TEXTS:
        if name in content and (not isinstance(content[name], str) or not content[name]):
            raise ConfigError(f"Expected {name} in {path} to be text in quotes, got {content[name]!r}.")
    if "threat" in content:
        _validate.one_of(tuple(Threat), threat=content["threat"])
    options = {name: content[name] for name in _KNOWN if name in content and name not in _NO_OPTIONS}
    if "radii" in options:
        options["radii"] = checked_radii(options["radii"])
    if isinstance(options.get("match"), str):
        options["match"] = matched_radius(options["match"])
    ignored = [{"run_dir": "run_dir", "train": "[train]"}[name] for name in _FOR_TRAIN if name in content]
    data = replace(data_of(table_of(content, "data", path), path), assumptions=assumptions_of(content, path))
    if data.name is None and data.train is None:
        raise ConfigError(f'Expected [data] of {path} to have name = "digits" or another data set, or train = "FILE".')
    return ComparisonFile(
        _methods(content, path),
        data,
        out=Path(content.get("out", f"comparisons/{path.stem}")),
        options=options,
        notes=(f"compare does not use {' and '.join(ignored)} of {path}; `mithridate train` does.",) if ignored else (),
    )


def matched_radius(text: str) -> int:
    """The radius at which bagging is matched, as it is written: `r=0`, or the number alone.

    Raises:
        ConfigError: it is written otherwise.
    """
    try:
        return int(text.strip().removeprefix("r="))
    except ValueError:
        raise ConfigError(f"Expected match as r=0, got {text!r}.") from None


def _methods(content: dict[str, Any], path: Path) -> tuple[dict[str, Any], ...]:
    methods = content.get("methods", [])
    if not isinstance(methods, list) or not all(isinstance(each, str | dict) for each in methods):
        raise ConfigError(f"Expected methods in {path} as a list of names, or as tables [[methods]].")
    tables = tuple({"name": each} if isinstance(each, str) else each for each in methods)
    for table in tables:
        if not isinstance(table.get("name"), str):
            raise ConfigError(f'Every table [[methods]] of {path} needs the name of a method, such as name = "dpa".')
    return tables
