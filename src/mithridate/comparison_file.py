"""Comparison files: which data, which methods, which claim; `mithridate compare` reads them.

out = "comparison"                # a folder; runs are kept in it, so that a killed comparison goes on
radii = [0, 10, 50]               # this and the rest of this part may be left out
threat = "symmetric-difference"
failure_prob = 0.001
scope = "prediction"
device = "auto"
methods = ["fdp", "kernel-vote"]  # names, or tables as below

[data]                            # as in a project file, or the name of a data set
name = "digits"

[[methods]]                       # a name with options of the defence
name = "dpa"
partitions = 250
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mithridate import _validate
from mithridate._artifact import PathLike
from mithridate.comparing import examples_of
from mithridate.comparison import checked_radii
from mithridate.data.declarations import declaration_from_dict
from mithridate.data.download import Progress
from mithridate.data.named import NAMES, load_named
from mithridate.data.readers import Examples
from mithridate.errors import ConfigError
from mithridate.mechanism import Threat
from mithridate.project import HOLDOUT, Project, read_toml, refuse_unknown, table_of

if TYPE_CHECKING:
    from mithridate.defences import Defence

_TEXTS = ("out", "title", "threat", "scope", "device", "match_with")
_KNOWN = (*_TEXTS, "radii", "failure_prob", "match", "methods", "data")


@dataclass(frozen=True)
class ComparisonFile:
    """What a comparison file says.

    Attributes:
        methods: a table for each method: its name and its options.
        data: where the data is; None: a named data set.
        data_name: the name of that.
        data_dir: the folder with its files, where one is given.
        out: the folder of the results.
        options: the rest, by the names of the arguments of `compare`.
    """

    methods: tuple[dict[str, Any], ...]
    data: Project | None = None
    data_name: str | None = None
    data_dir: Path | None = None
    out: Path = Path("comparison")
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    def examples(self, progress: Progress | None = None) -> tuple[Examples, Examples]:
        """The training data, and the test points.

        Raises:
            ArtifactError: a file is missing or cannot be read.
            ConfigError: it is not what was declared.
        """
        if self.data is not None:
            return self.data.examples()
        assert self.data_name is not None
        return examples_of(load_named(self.data_name, data_dir=self.data_dir, progress=progress))

    def defences(self, names: Sequence[str] | None = None) -> list[Defence]:
        """The methods; of those in `names` with the options that the file gives them, where it does.

        Raises:
            ConfigError: a method or an option is not known.
        """
        from mithridate.defences import defence

        tables = list(self.methods) if names is None else [t for name in names for t in self._tables(name)]
        chosen: list[Defence] = []
        for table in tables:
            options = {key: value for key, value in table.items() if key != "name"}
            try:
                chosen.append(defence(table["name"], **options))
            except TypeError as error:  # a value of a kind that nobody expects there
                raise ConfigError(f"An option of {table['name']} is of the wrong kind: {error}.") from error
        return chosen

    def _tables(self, name: str) -> list[dict[str, Any]]:
        return [table for table in self.methods if table["name"] == name] or [{"name": name}]


def read_comparison(path: PathLike) -> ComparisonFile:
    """Read a comparison file; the files it names are looked for beside it.

    Raises:
        ArtifactError: the file is missing or is no TOML.
        ConfigError: it holds something that nobody asks for, or lacks data or methods.
    """
    path = Path(path)
    content = read_toml(path)
    refuse_unknown(content, _KNOWN, f"in {path}")
    for name in _TEXTS:
        if name in content and (not isinstance(content[name], str) or not content[name]):
            raise ConfigError(f"Expected {name} in {path} to be text in quotes, got {content[name]!r}.")
    if "threat" in content:
        _validate.one_of(tuple(Threat), threat=content["threat"])
    options = {name: content[name] for name in _KNOWN if name in content and name not in ("out", "methods", "data")}
    if "radii" in options:
        options["radii"] = checked_radii(options["radii"])
    return ComparisonFile(
        _methods(content, path),
        **_data(table_of(content, "data", path), path),
        out=Path(content.get("out", f"comparisons/{path.stem}")),
        options=options,
    )


def _methods(content: dict[str, Any], path: Path) -> tuple[dict[str, Any], ...]:
    methods = content.get("methods", [])
    if not isinstance(methods, list) or not all(isinstance(each, str | dict) for each in methods):
        raise ConfigError(f"Expected methods in {path} as a list of names, or as tables [[methods]].")
    if not methods:
        raise ConfigError(f'There is nothing to compare in {path}; add methods = ["fdp", "dpa"], or [[methods]].')
    tables = tuple({"name": each} if isinstance(each, str) else each for each in methods)
    for table in tables:
        if not isinstance(table.get("name"), str):
            raise ConfigError(f'Every table [[methods]] of {path} needs the name of a method, such as name = "dpa".')
    return tables


def _data(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """Where the data is, by the names of the attributes of `ComparisonFile`."""
    if "name" in values:
        refuse_unknown(values, ("name", "data_dir"), f"beside name in [data] of {path}")
        if not isinstance(values["name"], str) or values["name"] not in NAMES:
            raise ConfigError(f"Expected name in [data] of {path} to be one of {', '.join(NAMES)}.")
        folder = _path(values, "data_dir", path)
        return {"data_name": values["name"], "data_dir": folder}
    train, test = _path(values, "train", path), _path(values, "test", path)
    if train is None:
        raise ConfigError(f'Expected [data] of {path} to have name = "digits" or another data set, or train = "FILE".')
    holdout = values.pop("holdout", HOLDOUT)
    _validate.number_in(0, 1, low_open=True, high_open=True, holdout=holdout)
    declared = {name: value for name, value in values.items() if name not in ("train", "test")}
    if declared and "kind" not in declared:
        raise ConfigError(f"Expected kind in [data] of {path}: table, images or arrays; `mithridate init` writes one.")
    declaration = declaration_from_dict(declared) if declared else None
    return {"data": Project(train=train, test=test, holdout=holdout, declaration=declaration)}


def _path(values: dict[str, Any], name: str, path: Path) -> Path | None:
    value = values.get(name)
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"Expected {name} in [data] of {path} to be a path in quotes, got {value!r}.")
    return None if value is None else path.parent / value
