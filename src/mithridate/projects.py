"""Project files and comparison files: all TOML is read here.

A project file says where the data is, how it is read and how to train; `mithridate init` writes and `train` reads it.

    run_dir = "runs/flowers"
    assumptions = ["..."]        # what else has looked at the training data, a sentence each; may be left out
    tuned = "..."                # what `mithridate tune` chose the constants on; every certificate repeats it

    [data]                       # or: name = "mnist", a well-known data set
    train = "flowers.csv"        # beside the project file
    holdout = 0.2                # or: test = "test.csv"
    trusted = "known.csv"        # trained on, too: examples that no attacker touched; may be left out
    unit = "vendor"              # radii count vendors: a column, an array, or a level of folders; may be left out
    units = "sources.csv"        # of images: a table of files and vendors, in place of the level of folders
    updated = "data"             # in run directories: a folder with what `mithridate update` made of all these files
    kind = "table"               # and the rest of a declaration, see docs/data.md

    [train]
    method = "fdp"               # or any other name; without it one is chosen by public facts, and the reason is shown
    instances = 1000             # constants of the method, and anything else that `mithridate train` has a flag for
    # recipe = "mnist-strong"    # a preset; where [data] is left out, also its data set

What is left out is chosen, by declared and public facts alone.

A comparison file says which data, which methods, which claim; `mithridate compare` reads it. A project file will do,
too: its [data] is read, and methods are named by --methods.

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
"""

from __future__ import annotations

import os
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mithridate import _validate
from mithridate._io.files import PathLike, read_file
from mithridate._text import did_you_mean, shown
from mithridate.comparing.result import checked_radii
from mithridate.comparing.running import row_names
from mithridate.core.conditions import Statement, classes_read_off, of_user
from mithridate.core.mechanism import Threat
from mithridate.core.units import Unit
from mithridate.data.declarations import (
    Arrays,
    Declaration,
    Images,
    Table,
    comment_lines,
    declaration_from_dict,
    to_toml,
    toml_text,
    toml_value,
)
from mithridate.data.examples import Examples, joined
from mithridate.data.kept_examples import load_examples
from mithridate.data.named import NAMES, load_named
from mithridate.data.partition import is_held_out, split_by_hash
from mithridate.data.proposing import Proposal
from mithridate.data.published_files import Progress
from mithridate.data.sources import TABLE_FILES, is_data, read
from mithridate.defences import Defence, defence
from mithridate.defences.automatic import AUTO, decided, named
from mithridate.defences.registry import methods_with
from mithridate.defences.registry import options as options_of_methods
from mithridate.errors import ArtifactError, ConfigError
from mithridate.features import Pretrained, beside, pick_encoder
from mithridate.recipes import presets
from mithridate.training.input_noise import noise_for, trained_on
from mithridate.training.order import Ray

HOLDOUT = 0.2
# What a folder of updated examples holds.
TRAINING, INPUTS = "training.npz", "inputs.npz"
# What a project file can say beside the constants of the methods: what is wanted, and how it runs.
_WANTED = ("method", "radius", "private", "calibrate")
RUNTIME = ("device", "in_flight", "precision", "keep_models")
CLUSTER = ("address", "workers", "gpus_per_worker")
BACKENDS = ("local", "ray")
_TEXTS = (
    "method",
    "calibrate",
    "recipe",
    "model",
    "device",
    "precision",
    "optimizer",
    "schedule",
    "backend",
    "address",
)
_FLAGS = ("private", "keep_models", "average_iterates", "mirrored", "moving_inputs")
_COMPARISON_TEXTS = ("out", "title", "threat", "scope", "device", "match_with")
_COMPARISON_KEYS = (*_COMPARISON_TEXTS, "radii", "failure_prob", "match", "assumptions", "methods", "data")
_NO_OPTIONS = ("out", "assumptions", "methods", "data")
# What only `mithridate train` asks for, in a file that is meant for both.
_FOR_TRAIN = ("run_dir", "tuned", "train")


@dataclass(frozen=True)
class Project:
    """What a project file says.

    Attributes:
        name: a well-known data set, in place of files.
        data_dir: the folder with its files, where one is given.
        train: where the training data is.
        test: where the inputs to vote on are; None: some of the training data is held out for that.
        holdout: how much of it.
        declaration: how examples are read; None: arrays as they are.
        run_dir: where the run is kept.
        options: what to train and how, by the names of the flags of `mithridate train`.
        assumptions: what the user says is taken for granted, a sentence each; every certificate repeats them.
        trusted: examples that are trained on, too, and that no attacker touched, as the user states.
        tuned: on what trusted examples the constants were chosen, in a sentence that every certificate repeats.
        units: a table that says to which unit each image belongs; None: they say so themselves, where units are
            declared.
        updated: a folder with the training examples and the inputs to vote on, as `mithridate update` left them; they
            take the place of all files.
    """

    train: Path | None = None
    test: Path | None = None
    name: str | None = None
    data_dir: Path | None = None
    holdout: float = HOLDOUT
    declaration: Declaration | None = None
    run_dir: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    assumptions: tuple[str, ...] = ()
    trusted: Path | None = None
    tuned: str | None = None
    units: Path | None = None
    updated: Path | None = None

    def with_units(self, unit: str | None = None, units: Path | None = None) -> Project:
        """The same, with what a unit is called and where the units of images are, as far as that is said here."""
        declared = self.declaration
        if self.updated is not None and (unit is not None or units is not None):
            raise ConfigError(f"The examples in {self.updated} have their units; leave unit and units out.")
        if unit is not None:
            declared = Arrays(unit=unit) if declared is None else replace(declared, unit=unit)
        return replace(self, declaration=declared, units=self.units if units is None else units)

    def with_method(self, name: str) -> tuple[Project, tuple[str, ...]]:
        """The same data for another method, and what was said of training that this method has no use for."""
        methods = options_of_methods()
        unused = tuple(
            option
            for option in self.options
            if option in ("radius", "private") or (option in methods and name not in methods_with(option))
        )
        kept = {option: value for option, value in self.options.items() if option not in unused}
        return replace(self, name=self.data_name, options={**kept, "method": name}), unused

    @property
    def data_name(self) -> str | None:
        """The well-known data set that is trained on: the one that is named, or that of the preset where none is.

        Raises:
            ConfigError: there is no preset of this name.
        """
        preset = self._preset
        return preset.data if preset is not None and self.name is None and self.train is None else self.name

    @property
    def _preset(self) -> presets.Preset | None:
        recipe = self.options.get("recipe")
        return None if recipe is None else presets.preset(recipe)

    def defence(self) -> Any:
        """The defence that is asked for, with its constants; or one that is still to be chosen.

        Raises:
            ConfigError: a method or a constant is unknown, or they do not go together.
        """
        others = (*_WANTED, *RUNTIME, *CLUSTER, "backend")
        constants = {name: value for name, value in self.options.items() if name not in others and value is not None}
        constants |= self._pretrained()
        preset = self._preset
        if preset is not None and self.data_name == preset.data:  # whose size is known to all
            constants.setdefault("num_train", preset.config.num_train)
        wanted = {name: self.options[name] for name in ("radius", "private") if self.options.get(name) is not None}
        return named(self.options.get("method"), constants, **wanted)

    def _pretrained(self) -> dict[str, Any]:
        """The features of a pretrained encoder, where they are asked for: on the device wanted, and calibrated."""
        features, file = self.options.get("features"), self.options.get("calibrate")
        chosen = None if features in (None, "auto", "none") else pick_encoder(features)
        if not isinstance(chosen, Pretrained):
            if file is not None:
                raise ConfigError(
                    "calibrate is for the features of a pretrained encoder; name one, such as minilm, or leave it out."
                )
            return {}
        chosen = chosen.on(self.options.get("device"))
        if file is None:
            return {"features": chosen}
        trusted = read(file, self.declaration, labels=False)
        noise = noise_for(self.options.get("input_noise"), trusted)
        if noise is None:
            return {"features": chosen.calibrated(trusted.x)}
        # As examples are trained on, and inputs are voted on.
        return {"features": chosen.for_noise(noise.deviation).calibrated(trusted.x, seen=trained_on(trusted.x, noise))}

    def left_open(self) -> tuple[dict[str, Any], tuple[str, ...] | None]:
        """What `tune` must not change, and the methods among which it may choose; None where all are open."""
        others = (*_WANTED, *RUNTIME, *CLUSTER, "backend", "num_train", "num_units", "classes")
        given = {name: value for name, value in self.options.items() if name not in others and value is not None}
        method = "fdp" if self.options.get("private") else self.options.get("method")
        return decided(given), None if method in (None, AUTO) else (str(method),)

    def backend(self) -> Ray | None:
        """Who trains: this process (None), or the workers of a cluster.

        Raises:
            ConfigError: an option is not what it should be.
        """
        name = self.options.get("backend") or "local"
        _validate.one_of(BACKENDS, backend=name)
        given = {option: self.options[option] for option in CLUSTER if self.options.get(option) is not None}
        if name == "ray":
            return Ray(**given)
        for option in given:
            raise ConfigError(f"{option} belongs to a cluster; give --backend ray, too, or leave it out.")
        return None

    def runtime(self) -> dict[str, Any]:
        """How it runs, by the names of `RuntimeOptions`, as far as the user says so."""
        found = {name: self.options[name] for name in RUNTIME if self.options.get(name) is not None}
        return {**found, "backend": self.backend()}

    def examples(self, progress: Progress | None = None) -> tuple[Examples, Examples]:
        """The training data, with all that is taken for granted about it, and the inputs to vote on.

        Args:
            progress: called with the bytes of a download that are there, and their total.

        Raises:
            ArtifactError: a file is missing or cannot be read.
            ConfigError: there is no training data, or it is not what was declared.
        """
        training, test = self._read(progress) if self.updated is None else self._updated(self.updated)
        if self.trusted is not None and self.updated is None:
            training = joined(training, self._trusted(), "trusted")
        # An assumption, and no condition: what was chosen on other data is the same whatever the training data is.
        tuned = () if self.tuned is None else (Statement(self.tuned),)
        return replace(training, assumptions=(*training.assumptions, *self.assumptions, *tuned)), test

    def training_file(self, progress: Progress | None = None) -> Examples:
        """All examples of the training data, also those that would be held out.

        Raises:
            ArtifactError: a file is missing or cannot be read.
            ConfigError: there is no training data, or it is not what was declared.
        """
        if self.updated is not None:
            return self._updated(self.updated)[0]
        return self._named(progress)[0] if self.data_name is not None else self._whole()

    def _updated(self, folder: Path) -> tuple[Examples, Examples]:
        declared = self.declaration
        return load_examples(folder / TRAINING, declared), load_examples(folder / INPUTS, declared)

    def _whole(self) -> Examples:
        return read(self._train_path(), self.declaration, labels=True, units=self.units)

    def _named(self, progress: Progress | None) -> tuple[Examples, Examples]:
        assert self.data_name is not None
        if self.units is not None or (self.declaration is not None and self.declaration.unit is not None):
            raise ConfigError(f"{self.data_name} has no units; leave unit out, or name training data that has some.")
        return load_named(self.data_name, data_dir=self.data_dir, progress=progress)

    def _trusted(self) -> Examples:
        """The trusted examples, without those of units that are held out: a hash of the name decides here, too."""
        assert self.trusted is not None
        if self.units is not None:
            raise ConfigError(
                f"units names the files of the training data, and not those of {self.trusted}; put the images of every "
                "unit into a folder of its own, above those of the classes, and leave units out."
            )
        found = read(self.trusted, self.declaration, labels=True)
        if found.units is None or self.test is not None:
            return found
        held_out = is_held_out(found, self.holdout)
        if not held_out.any():
            return found
        one = found.units.unit
        note = (
            f"Of {len(found.x):,} trusted examples, {int(held_out.sum()):,} belong to {one.many} that are held out, "
            "and are not trained on."
        )
        if held_out.all():
            raise ConfigError(
                f"All trusted examples belong to {one.many} that are held out; name a test file, or leave them out."
            )
        return replace(found.part(~held_out), notes=(*found.notes, note))

    def _read(self, progress: Progress | None) -> tuple[Examples, Examples]:
        if (name := self.data_name) is not None:
            if self.test is not None:
                raise ConfigError(
                    f"The test file {self.test} does not go with {name}, which has its own; leave it out."
                )
            return self._named(progress)
        if self.data_dir is not None:
            raise ConfigError(
                "A data folder belongs to a well-known data set: name one in [data], give a recipe, or leave it out."
            )
        training = self._whole()
        if self.test is None:
            return split_by_hash(self._with_classes(training), self.holdout)
        return training, read(self.test, self.declaration, classes=training.class_names)

    def _train_path(self) -> Path:
        if self.train is None:
            raise ConfigError("There is no training data; name it with --train, or in a project file.")
        return self.train

    def _with_classes(self, whole: Examples) -> Examples:
        """Numbered classes get names, so that a class that is held out as a whole does not get lost."""
        if whole.class_names is not None or whole.y is None:
            return whole
        declared = self.options.get("classes")
        count = declared if isinstance(declared, int) else int(whole.y.max()) + 1
        assumed = () if declared is not None else (classes_read_off(count),)
        names = tuple(str(label) for label in range(count))
        return replace(whole, class_names=names, assumptions=(*whole.assumptions, *assumed))


def read_project(path: PathLike) -> Project:
    """Read a project file; the files it names are looked for beside it.

    Raises:
        ArtifactError: the file is missing or is no TOML.
        ConfigError: it holds something that nobody asks for, or lacks the training data.
    """
    path = Path(path)
    content = _read_toml(path)
    _refuse_unknown(content, ("run_dir", "assumptions", "tuned", "data", "train"), f"in {path}")
    data, options = _table_of(content, "data", path), _table_of(content, "train", path)
    _refuse_unknown(options, known_options(), f"in [train] of {path}")
    _refuse_other_kinds(options, path)
    if "features" in options:
        options["features"] = beside(options["features"], path.parent)
    if "calibrate" in options:
        options["calibrate"] = str(path.parent / options["calibrate"])
    run_dir = content.get("run_dir", "")
    if not isinstance(run_dir, str):
        raise ConfigError(f"Expected run_dir in {path} to be a path in quotes, got {run_dir!r}.")
    return replace(
        _data_of(data, path),
        run_dir=Path(run_dir or f"runs/{path.stem}"),
        options=options,
        assumptions=of_user(_sentences_of(content.get("assumptions", []), f"assumptions in {path}")),
        tuned=" ".join(_sentences_of([content["tuned"]], f"tuned in {path}")) if "tuned" in content else None,
    )


def known_options() -> tuple[str, ...]:
    """All that a table [train] can hold."""
    return (*_WANTED, *options_of_methods(), *RUNTIME, "backend", *CLUSTER)


def _refuse_other_kinds(options: Mapping[str, Any], path: Path) -> None:
    """Numbers are checked where they are used; what is neither number nor list is checked here."""
    for names, kind, words in ((_TEXTS, str, "a name in quotes"), (_FLAGS, bool, "true or false")):
        for name in names:
            if name in options and not isinstance(options[name], kind):
                raise ConfigError(f"Expected {name} in [train] of {path} to be {words}, got {options[name]!r}.")


# --- comparisons ------------------------------------------------------------------------------------------------------


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
        chosen = tables if names is None else _chosen(tables, names)
        return {row: defence(**table) for row, table in chosen.items()}


def _chosen(tables: dict[str, dict[str, Any]], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The tables of some names, in their order: those of a method, the one of a row, or one without options."""
    chosen: dict[str, dict[str, Any]] = {}
    for name in names:
        rows = [row for row, table in tables.items() if table["name"] == name] or [name]
        chosen |= {row: tables.get(row, {"name": name}) for row in rows if row not in chosen}
    return chosen


def read_comparison(path: PathLike) -> ComparisonFile:
    """Read a comparison file; the files it names are looked for beside it.

    Raises:
        ArtifactError: the file is missing or is no TOML.
        ConfigError: it holds something that nobody asks for, or lacks data.
    """
    path = Path(path)
    content = _read_toml(path, "a comparison file", "give one such as `mithridate compare --help` shows")
    _table_of(content, "train", path)
    _refuse_unknown(
        {name: value for name, value in content.items() if name not in _FOR_TRAIN}, _COMPARISON_KEYS, f"in {path}"
    )
    for name in _COMPARISON_TEXTS:
        if name in content and (not isinstance(content[name], str) or not content[name]):
            raise ConfigError(f"Expected {name} in {path} to be text in quotes, got {content[name]!r}.")
    if "threat" in content:
        _validate.one_of(tuple(Threat), threat=content["threat"])
    options = {name: content[name] for name in _COMPARISON_KEYS if name in content and name not in _NO_OPTIONS}
    if "radii" in options:
        options["radii"] = checked_radii(options["radii"])
    if isinstance(options.get("match"), str):
        options["match"] = matched_radius(options["match"])
    ignored = [{"train": "[train]"}.get(name, name) for name in _FOR_TRAIN if name in content]
    said = _sentences_of(content.get("assumptions", []), f"assumptions in {path}")
    data = replace(_data_of(_table_of(content, "data", path), path), assumptions=of_user(said))
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
    """The radius at which bagging is matched, as it is written: `r=0`, or the number alone."""
    try:
        return int(text.strip().removeprefix("r="))
    except ValueError:
        raise ConfigError(f"Expected match as r=0, got {text!r}.") from None


def _methods(content: dict[str, Any], path: Path) -> tuple[dict[str, Any], ...]:
    methods = content.get("methods", [])
    if not isinstance(methods, list) or not all(isinstance(each, str | dict) for each in methods):
        raise ConfigError(f"Expected methods in {path} as a list of names, or as tables [[methods]].")
    tables = tuple({"name": each} if isinstance(each, str) else dict(each) for each in methods)
    for table in tables:
        if "features" in table:
            table["features"] = beside(table["features"], path.parent)
    for table in tables:
        if not isinstance(table.get("name"), str):
            raise ConfigError(f'Every table [[methods]] of {path} needs the name of a method, such as name = "dpa".')
    return tables


# --- what both read ---------------------------------------------------------------------------------------------------


def _sentences_of(given: Any, name: str) -> tuple[str, ...]:
    """The sentences that a file asks every certificate to repeat, a line each however they are broken there."""
    _validate.sentences(**{name: given})
    lines = tuple(dict.fromkeys(" ".join(sentence.split()) for sentence in given))
    if not all(line.isprintable() for line in lines):
        raise ConfigError(f"Expected {name} as a list of sentences without control codes, got {shown(given)}.")
    return lines


def _data_of(data: dict[str, Any], path: Path) -> Project:
    """A project that knows its data alone, from the table [data] of a file."""
    if "name" in data:
        _refuse_unknown(data, ("name", "data_dir", "updated"), f"beside name in [data] of {path}")
        if not isinstance(data["name"], str) or data["name"] not in NAMES:
            raise ConfigError(f"Expected name in [data] of {path} to be one of {', '.join(NAMES)}.")
        folders = _files(data, ("data_dir", "updated"), path)
        return Project(name=data["name"], data_dir=folders.get("data_dir"), updated=folders.get("updated"))
    files = _files(data, ("train", "test", "trusted", "units", "updated"), path)
    holdout = data.get("holdout", HOLDOUT)
    _validate.number_in(0, 1, low_open=True, high_open=True, holdout=holdout)
    declared = {name: value for name, value in data.items() if name not in (*files, "holdout")}
    if set(declared) == {"unit"}:
        declared["kind"] = Arrays.kind
    if declared and "kind" not in declared:
        raise ConfigError(f"Expected kind in [data] of {path}: table, images or arrays; `mithridate init` writes one.")
    declaration = declaration_from_dict(declared) if declared else None
    return replace(Project(holdout=holdout, declaration=declaration), **files)


def _files(data: dict[str, Any], names: tuple[str, ...], path: Path) -> dict[str, Path]:
    """Files and folders that are looked for beside the file that names them."""
    for name in names:
        if name in data and not isinstance(data[name], str):
            raise ConfigError(f"Expected {name} in {path} to be a path in quotes, got {data[name]!r}.")
    return {name: path.parent / data[name] for name in names if name in data}


def _read_toml(
    path: Path, what: str = "a project file", remedy: str = "give one that `mithridate init` wrote"
) -> dict[str, Any]:
    """The content of a TOML file, which should be `what`."""
    if path.suffix.lower() != ".toml" and is_data(path):
        label = " --label COLUMN" if path.suffix.lower() in TABLE_FILES else ""
        raise ConfigError(
            f"{path} holds data, and is not {what}; run init first: mithridate init {shlex.quote(str(path))}{label}"
        )
    try:
        return tomllib.loads(read_file(path).decode("utf-8"))
    except ArtifactError as error:
        raise ArtifactError(f"{error} Expected {what}; {remedy}.") from error
    except (RecursionError, ValueError) as error:
        raise ArtifactError(f"{path} is not {what} in TOML: {error}.") from error


def _table_of(content: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    """A copy of the table of a name, empty where there is none."""
    value = content.get(name, {})
    if not isinstance(value, dict):
        raise ConfigError(f"Expected [{name}] in {path} to be a table, got {value!r}.")
    return dict(value)


def _refuse_unknown(found: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in found:
        if name not in known:
            raise ConfigError(f"Nobody asks for {name!r} {where}; {did_you_mean(name, known)}")


# --- a project to start from ------------------------------------------------------------------------------------------

_HEADER = """\
# A project for mithridate: how the data is read, and how to train on it.
#
#   mithridate train {name}
#   mithridate certify {run_dir}
#   mithridate report {run_dir}

# Where the run is kept; killed at any moment, the same command goes on from there.
run_dir = {run_dir_quoted}

# What else has looked at the training data, such as a choice of constants; every certificate repeats these sentences.
# assumptions = ["The clipping norm was chosen by trials on this training data."]

"""
_FILES = """\
# Files beside this one. Without a test file, some {many} are held out, by a hash of each{name}, to be voted on.
train = {train}
{test}
"""
_NUM_TRAIN = """\
# num_train = 10000         # examples to train on (without those held out), where their number is fixed or public; else
"""
_NUM_UNITS = """\
# unit_cap = 1000           # rows of one of them that enter at most: those with the smallest hashes
# num_units = 1000          # {many} to train on (without those held out), where their number is fixed or public; else
"""
_TRAIN = """
[train]
# What is commented out is chosen from the kind of data, the step of its size and the classes, and shown before training
# starts. Decide here by what you know, not by what comes out on this training data.
# method = "auto"           # or fdp, nearest-neighbours, dpa and others: `mithridate train --help` lists them
{radius}# how many changed {many} predictions should withstand
# private = true            # the models themselves must be private: fdp
{number}#                           # a radius ends where the next step of their number begins
{weights}{encoder}# Of fdp:
# instances = 1000          # models that vote: more give larger radii, and take longer
# noise_multiplier = 10.0   # more noise: larger radii, less accuracy
# model = "linear"          # or mlp, lenet5, opa-tut, resnet18
"""


def project_toml(
    path: Path,
    train: Path,
    test: Path | None,
    proposal: Proposal,
    *,
    radius: int | None = None,
    units: Path | None = None,
) -> str:
    """A commented project file to start from.

    Args:
        path: where it will be written; the files it names are relative to that.
        train: the training data.
        test: the inputs to vote on, where there are some.
        proposal: how examples are read, and what is to be said about them.
        radius: how many changed examples predictions should withstand, where the user says so.
        units: a table that says to which unit each image belongs, where there is one.

    Raises:
        ConfigError: the name of a file cannot be written as text.
    """
    run_dir = f"runs/{path.stem}"
    said: dict[str, list[str]] = {}
    for remark in proposal.remarks:
        if remark.column is not None:
            said.setdefault(remark.column, []).append(remark.sentence)
    text = to_toml(proposal.declaration, table="data", remarks=said, left_out=proposal.left_out)
    lines = text.removesuffix("\n").split("\n")  # and not where Unicode ends a line
    # The files come first in their table; comments before it stay where they are.
    start = lines.index("[data]") + 1
    files = _FILES.format(
        train=toml_text(_relative(train, path)),
        test=f"holdout = {HOLDOUT}" if test is None else f"test = {toml_text(_relative(test, path))}",
        many=_many(proposal),
        name="" if proposal.declaration.unit is None else " name",
    )
    files += "" if units is None else f"units = {toml_text(_relative(units, path))}\n"
    # A comment of TOML holds no control characters.
    shown = [shlex.quote(name) if name.isprintable() else "..." for name in (path.name, run_dir)]
    header = _HEADER.format(name=shown[0], run_dir=shown[1], run_dir_quoted=toml_text(run_dir))
    return header + "\n".join([*lines[:start], files, *lines[start:], _train_table(proposal, radius)])


def _train_table(proposal: Proposal, radius: int | None) -> str:
    """The table [train], with what there is to say about the number of examples and about rare labels."""
    few, rare = (
        "".join(f"{line}\n" for line in comment_lines(each.sentence for each in proposal.remarks if each.kind == kind))
        for kind in ("few-examples", "rare-class")
    )
    wanted = "# radius = 20" if radius is None else f"radius = {radius}"
    weights = "" if proposal.class_weights is None else f"# class_weights = {list(proposal.class_weights)}\n"
    encoder = "".join(
        f"{line}\n" for line in comment_lines(e.sentence for e in proposal.remarks if e.kind == "encoder")
    )
    encoder += "" if proposal.features is None else f"features = {toml_text(proposal.features)}\n"
    number = _NUM_TRAIN if proposal.declaration.unit is None else _NUM_UNITS.format(many=_many(proposal))
    return _TRAIN.format(
        radius=f"{few}{wanted:<28}",
        many=_many(proposal),
        number=number,
        weights=rare + weights,
        encoder=encoder,
    )


def _many(proposal: Proposal) -> str:
    """What is counted, in a comment."""
    unit = proposal.declaration.unit
    return "examples" if unit is None else Unit(unit, 1).many


# --- a project with its constants chosen ------------------------------------------------------------------------------

_TUNED_HEADER = """\
# A project for mithridate, written by `mithridate tune`: what was left open is decided here.
#
#   mithridate train {path}

run_dir = {run_dir}
"""


def tuned_toml(project: Project, path: Path, method: str, constants: Mapping[str, Any], tuned: str | None) -> str:
    """A project file with a method and its constants in the place of what was left open.

    Args:
        project: what was left open; the new run has a place of its own, by the folder of `path`, beside `run_dir`.
        path: where it will be written; the files it names are relative to that.
        method: what was chosen.
        constants: its constants, as files name them.
        tuned: the sentence about the choice; None where declared facts decided alone.

    Raises:
        ConfigError: the name of a file cannot be written as text.
    """
    before, name = project.run_dir or Path("runs/project"), path.parent.resolve().name or "tuned"
    run_dir = before.parent / (f"{name}-tuned" if name == before.name else name)
    # A comment of TOML holds no control characters.
    shown = shlex.quote(str(path)) if str(path).isprintable() else "..."
    header = _TUNED_HEADER.format(path=shown, run_dir=toml_text(run_dir.as_posix()))
    kept = {name: value for name, value in project.options.items() if name not in ("radius", *constants, "method")}
    return _written(replace(project, tuned=tuned), path, header, {"method": method, **kept, **constants})


# --- what a run was made from -----------------------------------------------------------------------------------------

# Beside the votes of a run.
RUN_PROJECT = "project.toml"
_RUN_HEADER = """\
# What `mithridate train` was given for this run: the file that `mithridate audit` finds the data by.

run_dir = {run_dir}
"""


def run_toml(project: Project, path: Path) -> str:
    """A project file, to stand in the run directory, that says what the run there was made from.

    Args:
        project: what was trained, with what flags said.
        path: where it will be written; the files it names are relative to that.

    Raises:
        ConfigError: the name of a file cannot be written as text.
    """
    header = _RUN_HEADER.format(run_dir=toml_text(path.parent.as_posix()))
    options = {name: value for name, value in project.options.items() if name not in (*CLUSTER, "backend")}
    return _written(replace(project, name=project.data_name), path, header, options)


def project_of_run(run_dir: PathLike) -> Project:
    """What the run in a directory was made from.

    Raises:
        ArtifactError: the run does not say so, or no run is there.
    """
    path = Path(run_dir) / RUN_PROJECT
    if not path.exists():
        raise ArtifactError(
            f"{run_dir} has no {RUN_PROJECT}, which `mithridate train` leaves beside the votes of a finished run; give "
            "the project file of the run instead."
        )
    return read_project(path)


def _written(project: Project, path: Path, header: str, options: Mapping[str, Any]) -> str:
    """A project file with these options."""
    lines = [header]
    if project.assumptions:
        lines.append(f"assumptions = {toml_value(list(map(str, project.assumptions)))}\n")
    if project.tuned is not None:
        lines += ["# What the choice rests on; every certificate repeats it.", f"tuned = {toml_text(project.tuned)}\n"]
    lines += [*_data_lines(project, path), "", "[train]"]
    lines += [f"{name} = {toml_value(value)}" for name, value in options.items()]
    return "\n".join(lines) + "\n"


def _data_lines(project: Project, path: Path) -> list[str]:
    """The table [data], whose files are as seen from the folder of a file."""
    if project.name is not None:
        folders = {"data_dir": project.data_dir, "updated": project.updated}
        lines = [f"{name} = {toml_text(_relative(folder, path))}" for name, folder in folders.items() if folder]
        return ["[data]", f"name = {toml_text(project.name)}", *lines]
    names = ("train", "test", "trusted", "units", "updated")
    named = {name: getattr(project, name) for name in names}
    files = [f"{name} = {toml_text(_relative(file, path))}" for name, file in named.items() if file is not None]
    files += [f"holdout = {project.holdout!r}"] if project.test is None and project.train is not None else []
    if project.declaration is None:
        return ["[data]", *files] if files else []
    declared = to_toml(project.declaration, table="data").removesuffix("\n").split("\n")
    start = declared.index("[data]") + 1
    return [*declared[:start], *files, *declared[start:]]


def _relative(target: Path, path: Path) -> str:
    """A path as seen from the folder of the project file, so that both can be moved together."""
    if any(0xD800 <= ord(character) <= 0xDFFF for character in f"{target}{path}"):
        raise ConfigError(f"The path {str(target)!r} is not valid Unicode, which TOML needs; rename it.")
    # Links on the way are followed, as the system follows them before it goes up; a link that is the data keeps its
    # name.
    whole = target.parent.resolve() / target.name
    try:
        return Path(os.path.relpath(whole, path.parent.resolve())).as_posix()
    except ValueError:  # on another drive
        return str(whole)
