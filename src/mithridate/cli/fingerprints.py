"""`mithridate fingerprint`: the hashes of a file, to be compared with those that a certificate names."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from mithridate._text import counted, printable
from mithridate.cli import _shared
from mithridate.core.provenance import TrainingData, in_digits, input_hashes
from mithridate.data import Examples, read
from mithridate.data.partition import split_by_hash
from mithridate.errors import MithridateError
from mithridate.projects import Project, read_project

_EXAMPLES = """examples:
  mithridate fingerprint digits.npz
  mithridate fingerprint flowers.csv --project flowers.toml
  mithridate fingerprint flowers.toml                 the files, or the data set, that a project names

A certificate names the fingerprint of the training data as training.fingerprint, that of the names of its units as
training.units, and a hash of each input, in order, as input_hash. Give the project where the data has to be read by a
declaration; of the training file of a project without a test file, those examples are shown as inputs that training
holds out.
"""


def add_fingerprint(command: _shared.NewCommand) -> None:
    """Register `mithridate fingerprint`."""
    parser = command(
        help="compute the hashes that a certificate names",
        description="The fingerprint of a file as training data, and the hash of every input in it.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="data as train or predict reads it, or a project file")
    parser.add_argument(
        "--project", type=Path, metavar="CONFIG.toml", help="project file that declares how the data is read"
    )
    _shared.add_units(parser)


def run_fingerprint(arguments: argparse.Namespace) -> int:
    """Read, hash and print."""
    training, inputs = _examples(arguments.file, arguments.project, arguments)
    units = None if training.units is None else training.units.fingerprint()
    found = None if training.y is None else TrainingData.of(training.x, training.y, units=units)
    hashes = in_digits(input_hashes(inputs.x))
    names = [str(number) for number in range(len(hashes))] if inputs.ids is None else list(inputs.ids)
    if arguments.json:
        _shared.print_json(_summary(arguments.file, found, hashes, names))
        return 0
    console = _shared.console()
    for note in training.notes:
        console.print(f"Note: {note}")
    if found is not None:
        words = f"training data {found.fingerprint}, {counted(found.examples, 'example')}"
        console.print(words, soft_wrap=True)
        if training.units is not None:
            unit = training.units.unit
            console.print(f"{unit.many} {found.units}, {unit.count:,} of them", soft_wrap=True)
    for digits, name in zip(hashes, names, strict=True):  # as sha256sum does, for other programs to read
        print(f"{digits}  {printable(name)}")
    return 0


def _examples(path: Path, config: Path | None, flags: argparse.Namespace) -> tuple[Examples, Examples]:
    """What a file holds as training data, and what it holds as inputs."""
    if path.suffix == ".toml" and config is None:
        return read_project(path).with_units(flags.unit, flags.units).examples()
    project = (Project() if config is None else read_project(config)).with_units(flags.unit, flags.units)
    # What is said to be training data has to be.
    is_training = flags.unit is not None or flags.units is not None or _shared.is_same(path, project.train)
    whole = _whole(path, project, is_training=is_training)
    if project.test is None and _shared.is_same(path, project.train) and whole.y is not None:
        return split_by_hash(whole, project.holdout)
    return whole, whole


def _whole(path: Path, project: Project, *, is_training: bool) -> Examples:
    """All that a file holds: with labels if it can be trained on, else the inputs alone, and why."""
    try:
        return read(path, project.declaration, labels=True, units=project.units)
    except MithridateError as error:
        if is_training:
            raise
        inputs = read(path, project.declaration, labels=False)
        return replace(inputs, notes=(f"This is no training data. {error}",))


def _summary(path: Path, found: TrainingData | None, hashes: list[str], names: list[str]) -> dict[str, Any]:
    return {
        "schema": "mithridate.fingerprint/1",
        "file": str(path),
        "training": None if found is None else found.to_dict(),
        "input": names,
        "input_hash": hashes,
    }
