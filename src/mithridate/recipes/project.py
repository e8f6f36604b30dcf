"""Project files: where the data is, how it is read, how to train; `mithridate init` writes and `train` reads them.

    run_dir = "runs/flowers"
    assumptions = ["..."]        # what else has looked at the training data, a sentence each; may be left out

    [data]                       # or: name = "mnist", a well-known data set
    train = "flowers.csv"        # beside the project file
    holdout = 0.2                # or: test = "test.csv"
    kind = "table"               # and the rest of a declaration, see docs/data.md

    [train]
    recipe = "mnist-strong"      # a preset; where [data] is left out, also its data set
    instances = 1000             # anything that `mithridate train` has a flag for

What is left out is chosen (`recipes`), from the size of the task and the time there is.
"""

from __future__ import annotations

import dataclasses
import difflib
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mithridate import _validate
from mithridate._io.artifacts import PathLike
from mithridate._io.files import read_file
from mithridate.core.conditions import classes_read_off, of_user
from mithridate.data.arrays import kind_of
from mithridate.data.declarations import Declaration, declaration_from_dict, to_toml, toml_text
from mithridate.data.download import Progress
from mithridate.data.holdout import split_by_hash
from mithridate.data.named import NAMES, examples_of, load_named
from mithridate.data.readers import Examples, read
from mithridate.errors import ArtifactError, ConfigError
from mithridate.recipes import choosing as recipes
from mithridate.recipes import presets
from mithridate.recipes.choosing import Recipe
from mithridate.training.config import TrainConfig

HOLDOUT = 0.2
CONFIG_NAMES = tuple(field.name for field in dataclasses.fields(TrainConfig))
# What decides the mechanism and the first thing one would tune: a recipe that names all of these is complete.
_ESSENTIAL = ("noise_multiplier", "sample_rate", "steps", "max_grad_norm", "learning_rate")
_CHOICES = ("recipe", "model", "features", "seconds")
_RUNTIME = ("device", "in_flight", "precision", "keep_models", "backend", "address", "workers", "gpus_per_worker")
_OPTIONS = (*CONFIG_NAMES, *_CHOICES, *_RUNTIME)
_TEXTS = ("recipe", "model", "features", "device", "precision", "optimizer", "schedule", "backend", "address")
_FLAGS = ("keep_models", "average_iterates")


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
        options: how to train, by the names of `TrainConfig` and of the flags of `mithridate train`.
        assumptions: what the user says is taken for granted, a sentence each; every certificate repeats them.
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

    @property
    def data_name(self) -> str | None:
        """The well-known data set that is trained on: the one that is named, or that of the preset where none is.

        Raises:
            ConfigError: there is no preset of this name.
        """
        recipe = self.options.get("recipe")
        own = None if recipe is None else presets.preset(recipe).data
        return own if self.name is None and self.train is None else self.name

    def examples(self, progress: Progress | None = None) -> tuple[Examples, Examples]:
        """The training data, with all that is taken for granted about it, and the inputs to vote on.

        Args:
            progress: called with the bytes of a download that are there, and their total.

        Raises:
            ArtifactError: a file is missing or cannot be read.
            ConfigError: there is no training data, or it is not what was declared.
        """
        training, test = self._read(progress)
        return replace(training, assumptions=(*training.assumptions, *self.assumptions)), test

    def _read(self, progress: Progress | None) -> tuple[Examples, Examples]:
        if (name := self.data_name) is not None:
            if self.test is not None:
                raise ConfigError(
                    f"The test file {self.test} does not go with {name}, which has its own; leave it out."
                )
            return examples_of(load_named(name, data_dir=self.data_dir, progress=progress))
        if self.data_dir is not None:
            raise ConfigError(
                "A data folder belongs to a well-known data set: name one in [data], give a recipe, or leave it out."
            )
        if self.train is None:
            raise ConfigError("There is no training data; name it with --train, or in a project file.")
        training = read(self.train, self.declaration, labels=True)
        if self.test is None:
            return split_by_hash(self._with_classes(training), self.holdout)
        return training, read(self.test, self.declaration, classes=training.class_names)

    def _with_classes(self, whole: Examples) -> Examples:
        """Numbered classes get names, so that a class that is held out as a whole does not get lost."""
        if whole.class_names is not None or whole.y is None:
            return whole
        declared = self.options.get("classes")
        count = declared if isinstance(declared, int) else int(whole.y.max()) + 1
        assumed = classes_read_off(count)
        return replace(
            whole,
            class_names=tuple(str(label) for label in range(count)),
            assumptions=whole.assumptions if declared is not None else (*whole.assumptions, assumed),
        )


def read_project(path: PathLike) -> Project:
    """Read a project file; the files it names are looked for beside it.

    Raises:
        ArtifactError: the file is missing or is no TOML.
        ConfigError: it holds something that nobody asks for, or lacks the training data.
    """
    path = Path(path)
    content = read_toml(path)
    refuse_unknown(content, ("run_dir", "assumptions", "data", "train"), f"in {path}")
    data, options = table_of(content, "data", path), table_of(content, "train", path)
    refuse_unknown(options, _OPTIONS, f"in [train] of {path}")
    _refuse_other_kinds(options, path)
    run_dir = content.get("run_dir", "")
    if not isinstance(run_dir, str):
        raise ConfigError(f"Expected run_dir in {path} to be a path in quotes, got {run_dir!r}.")
    return replace(
        data_of(data, path),
        run_dir=Path(run_dir or f"runs/{path.stem}"),
        options=options,
        assumptions=assumptions_of(content, path),
    )


def assumptions_of(content: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    """The sentences that a file asks every certificate to repeat, a line each however they are broken there.

    Raises:
        ConfigError: they are no list of sentences.
    """
    given, name = content.get("assumptions", []), f"assumptions in {path}"
    _validate.sentences(**{name: given})
    lines = tuple(dict.fromkeys(" ".join(sentence.split()) for sentence in given))
    if not all(line.isprintable() for line in lines):
        raise ConfigError(
            f"Expected {name} as a list of sentences without control codes, got {_validate.shown(given)}."
        )
    return of_user(lines)


def data_of(data: dict[str, Any], path: Path) -> Project:
    """A project that knows its data alone, from the table [data] of a file.

    Raises:
        ConfigError: the table holds something that nobody asks for.
    """
    if "name" in data:
        refuse_unknown(data, ("name", "data_dir"), f"beside name in [data] of {path}")
        if not isinstance(data["name"], str) or data["name"] not in NAMES:
            raise ConfigError(f"Expected name in [data] of {path} to be one of {', '.join(NAMES)}.")
        return Project(name=data["name"], data_dir=_files(data, ("data_dir",), path).get("data_dir"))
    files = _files(data, ("train", "test"), path)
    holdout = data.get("holdout", HOLDOUT)
    _validate.number_in(0, 1, low_open=True, high_open=True, holdout=holdout)
    declared = {name: value for name, value in data.items() if name not in ("train", "test", "holdout")}
    if declared and "kind" not in declared:
        raise ConfigError(f"Expected kind in [data] of {path}: table, images or arrays; `mithridate init` writes one.")
    declaration = declaration_from_dict(declared) if declared else None
    return Project(train=files.get("train"), test=files.get("test"), holdout=holdout, declaration=declaration)


def _files(data: dict[str, Any], names: tuple[str, ...], path: Path) -> dict[str, Path]:
    """Files and folders that are looked for beside the file that names them."""
    for name in names:
        if name in data and not isinstance(data[name], str):
            raise ConfigError(f"Expected {name} in {path} to be a path in quotes, got {data[name]!r}.")
    return {name: path.parent / data[name] for name in names if name in data}


def read_toml(
    path: Path, what: str = "a project file", remedy: str = "give one that `mithridate init` wrote"
) -> dict[str, Any]:
    """The content of a TOML file.

    Args:
        path: where it is.
        what: what it should be, for errors.
        remedy: what to do where it is something else.

    Raises:
        ArtifactError: it is missing, or is no TOML.
    """
    try:
        return tomllib.loads(read_file(path).decode("utf-8"))
    except ArtifactError as error:
        raise ArtifactError(f"{error} Expected {what}; {remedy}.") from error
    except (RecursionError, ValueError) as error:
        raise ArtifactError(f"{path} is not {what} in TOML: {error}.") from error


def table_of(content: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    """A copy of the table of a name, empty where there is none.

    Raises:
        ConfigError: it is no table.
    """
    value = content.get(name, {})
    if not isinstance(value, dict):
        raise ConfigError(f"Expected [{name}] in {path} to be a table, got {value!r}.")
    return dict(value)


def refuse_unknown(found: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    """Require that every name is known.

    Raises:
        ConfigError: one is not; the message has a suggestion.
    """
    for name in found:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(known)}."
            raise ConfigError(f"Nobody asks for {name!r} {where}; {hint}")


def _refuse_other_kinds(options: Mapping[str, Any], path: Path) -> None:
    """Numbers are checked where they are used; what is neither number nor list is checked here."""
    for names, kind, words in ((_TEXTS, str, "a name in quotes"), (_FLAGS, bool, "true or false")):
        for name in names:
            if name in options and not isinstance(options[name], kind):
                raise ConfigError(f"Expected {name} in [train] of {path} to be {words}, got {options[name]!r}.")


def is_complete(options: Mapping[str, Any]) -> bool:
    """Whether nothing that matters is left to be chosen."""
    return all(options.get(name) is not None for name in _ESSENTIAL)


def follows_size(options: Mapping[str, Any]) -> bool:
    """Whether something is chosen by the number of training examples, which nobody declared."""
    # A preset is made for the number of examples, whatever else is given beside it.
    by_hand = is_complete(options) and options.get("recipe") is None
    return options.get("num_train") is None and not by_hand


def compose(options: Mapping[str, Any], training: Examples, device: str, **claim: Any) -> Recipe:
    """The recipe of a run: what the options say, and the rest chosen by the size of the task and the time there is.

    Options that name the noise, the rate, the steps, the clipping norm and the step size are complete: nothing else is
    changed from the defaults of `TrainConfig`. Those of a preset (`recipe`) hold where no other is given.

    Args:
        options: by the names of `TrainConfig` and of `recipes.choose`, and `recipe`; `features = "none"` stands for the
            inputs as they are.
        training: the training data; only its size, the shape of an input and the classes are used.
        device: `cpu`, `cuda` or `mps`.
        claim: what will be certified, for what is said about the radius that could be reached; see `recipes.choose`.

    Raises:
        ConfigError: an option is not what it should be.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if "recipe" in given:
        return _composed_by_preset(given, training, device, claim)
    constants = {name: given[name] for name in CONFIG_NAMES if name in given}
    if training.class_names is not None:
        constants.setdefault("classes", len(training.class_names))
    complete = is_complete(given)
    model = given.get("model", "auto")
    features = given.get("features", "none" if complete and model != "auto" else "auto")
    assert training.y is not None
    chosen: dict[str, Any] = {name: given[name] for name in ("seconds", "instances") if name in given}
    chosen |= {name: given.get(name) for name in _ESSENTIAL}
    recipe = recipes.choose(
        num_train=constants.get("num_train") or recipes.public_size(len(training.x)),
        classes=constants.get("classes", int(training.y.max()) + 1),
        shape=training.x.shape[1:],
        kind=kind_of(training.x),
        device=device,
        model=model,
        features=None if isinstance(features, str) and features == "none" else features,
        keep=constants.get("keep"),
        **chosen,
        **claim,
    )
    if not complete:  # what was chosen for a size is divided by that size
        constants.setdefault("num_train", recipe.num_train)
    base = TrainConfig(recipe.config.instances, **{name: given[name] for name in _ESSENTIAL}) if complete else None
    try:
        return replace(recipe, config=replace(base or recipe.config, **constants))
    except TypeError as error:  # a file may hold anything
        raise ConfigError(f"An option is of the wrong kind: {error}.") from error


def _composed_by_preset(given: dict[str, Any], training: Examples, device: str, claim: dict[str, Any]) -> Recipe:
    """The recipe of a preset, with the constants that are given beside it."""
    preset = presets.preset(given.pop("recipe"))
    decided = preset.options(given.get("num_train") or recipes.public_size(len(training.x)))
    recipe = compose({**decided, **given}, training, device, **claim)
    said = preset.assumption(training.x.shape[1:], recipe.classes)
    reason = f"The constants are those of the recipe {preset.name}. {preset.description}"
    return replace(recipe, reasons=(*recipe.reasons, reason), assumptions=(said,))


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
# Files beside this one. Without a test file, some examples are held out, by a hash of each, to be voted on.
train = {train}
{test}
"""
_TRAIN = """
[train]
# What is commented out is chosen from the number of examples, the classes and the time there is, and shown before
# training starts. Decide here by what you know, not by what comes out on this training data.
# instances = 1000          # models that vote: more give larger radii, and take longer
# noise_multiplier = 10.0   # more noise: larger radii, less accuracy
# seconds = 60              # about how long training may take
# model = "linear"          # or mlp, lenet5, opa-tut, resnet18
# num_train = 10000         # examples to train on (without those held out), where their number is public; else every
#                           # result says that the recipe was chosen for their number, rounded
"""


def project_toml(path: Path, train: Path, test: Path | None, declaration: Declaration) -> str:
    """A commented project file to start from.

    Args:
        path: where it will be written; the files it names are relative to that.
        train: the training data.
        test: the inputs to vote on, where there are some.
        declaration: how examples are read.

    Raises:
        ConfigError: the name of a file cannot be written as text.
    """
    run_dir = f"runs/{path.stem}"
    lines = to_toml(declaration, table="data").removesuffix("\n").split("\n")  # and not where Unicode ends a line
    # The files come first in their table; comments before it stay where they are.
    start = lines.index("[data]") + 1
    files = _FILES.format(
        train=toml_text(_relative(train, path)),
        test=f"holdout = {HOLDOUT}" if test is None else f"test = {toml_text(_relative(test, path))}",
    )
    # A comment of TOML holds no control characters.
    shown = [shlex.quote(name) if name.isprintable() else "..." for name in (path.name, run_dir)]
    header = _HEADER.format(name=shown[0], run_dir=shown[1], run_dir_quoted=toml_text(run_dir))
    return header + "\n".join([*lines[:start], files, *lines[start:], _TRAIN])


def _relative(target: Path, path: Path) -> str:
    """A path as seen from the folder of the project file, where that is possible without leaving it."""
    if any(0xD800 <= ord(character) <= 0xDFFF for character in f"{target}{path}"):
        raise ConfigError(f"The path {str(target)!r} is not valid Unicode, which TOML needs; rename it.")
    try:
        return target.resolve().relative_to(path.parent.resolve()).as_posix()
    except ValueError:
        return str(target.resolve())
