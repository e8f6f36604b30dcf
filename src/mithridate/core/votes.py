"""Votes: how the instances voted on each input, and the mechanism that trained them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate import _validate
from mithridate._io.artifacts import read_npz, write_npz
from mithridate._io.files import TEXT_BYTES, PathLike, parse_json, read_file, write_atomically
from mithridate._text import counted, listed, printable, shortened, shown
from mithridate.core import merging
from mithridate.core.bounds import ANYTIME
from mithridate.core.conditions import Size, Statement, from_plain, known_by_name, to_plain
from mithridate.core.input_change import InputNoise
from mithridate.core.labels import ClassName, class_names_of, kind_and_value, places_of, unknown_label
from mithridate.core.mechanism import Deterministic, Mechanism, Random, Voters, mechanism_from_dict
from mithridate.core.merging import LARGEST, InstanceRanges, checked_parts, size_of, whole_number
from mithridate.core.provenance import HASH_BYTES, Hashes, TrainingData
from mithridate.core.units import Unit, UnitWords, words_of
from mithridate.errors import ArtifactError, ConfigError

IntArray = npt.NDArray[np.int64]
ScoreArray = npt.NDArray[np.floating[Any]]
SCHEMA = "mithridate.votes/1"
# The array that holds the header of an `.npz`.
_HEADER = "mithridate"
# Names of the arrays in a file, and of the fields that hold them.
_ARRAYS = {
    "counts": "counts",
    "sum": "score_sums",
    "sumsq": "score_squares",
    "hist": "score_histograms",
    "y": "labels",
    "input_hashes": "input_hashes",
}
_MAPPINGS = ("shards", "devices", "planned")
_MAY_BE_LEFT_OUT = (*_MAPPINGS, "size", "training", "unit", "input_noise")
_WANTED = "an array 'counts'"
_EVIDENCE = "evidence."
_LONGEST_LINE = 120
_SEVERAL = Statement(
    "The votes are those of several runs, or of a part of one: the claim holds only if it was decided before anyone "
    "saw how they vote which instances were trained and counted.",
    "instances-after-a-look",
)


@dataclass(frozen=True, eq=False)
class Votes:
    """Vote counts of the instances of one mechanism.

    Assumes: the instances of a random mechanism are independent draws of it; none was dropped, re-drawn or picked by
    its accuracy.

    Attributes:
        counts: votes, examples x classes; every row adds up to the number of instances (of `KernelSum`: scores).
        mechanism: what each instance ran.
        score_sums: sum over instances of each class's score (softmax probability), examples x classes.
        score_squares: sum over instances of the squared scores, examples x classes.
        score_histograms: scores counted in equal bins of [0, 1], examples x classes x bins.
        labels: true labels of the examples, where known; certificates do not depend on them.
        data_fingerprint: identifies training data, test inputs and configuration; votes merge only where it agrees.
        run_ids: public random names of the runs that the instances come from; never seeds.
        assumptions: what the training took for granted, a sentence each; every certificate repeats them.
        recipe: how the instances were trained, in plain JSON values (configuration, model, features, precision).
        evidence: what the rule of the mechanism needs beside counts, arrays of whole numbers by name, an entry for each
            example, in the smallest type that holds them; see `aggregation`.
        shards: which instances of a run these are, for runs of which they are not all: pairs (first, stop) of instances
            from `first` to `stop - 1`. A run of `run_ids` that is not listed is here as a whole.
        devices: how many instances each kind of device trained, as far as that is known.
        planned: how many instances the runs of `shards` have as a whole, as far as that is known.
        size: the step of the number of training examples, where constants follow it; it limits every radius.
        training: which data was trained on, where that is known.
        input_hashes: SHA-256 of every input, examples x 32 bytes, where they are known; see `core.provenance`.
        unit: what radii count, where an attacker controls more than one example at a time. The mechanism then speaks of
            units wherever it says examples, and so does the size; None: a unit is an example.
        input_noise: the noise that every instance added to every input before it voted; None: none.
    """

    counts: IntArray
    mechanism: Mechanism
    score_sums: ScoreArray | None = None
    score_squares: ScoreArray | None = None
    score_histograms: IntArray | None = None
    labels: IntArray | None = None
    data_fingerprint: str | None = None
    run_ids: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    recipe: dict[str, Any] | None = None
    evidence: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict[str, npt.NDArray[Any]])
    shards: Mapping[str, InstanceRanges] = field(default_factory=dict[str, InstanceRanges])
    devices: Mapping[str, int] = field(default_factory=dict[str, int])
    planned: Mapping[str, int] = field(default_factory=dict[str, int])
    size: Size | None = None
    training: TrainingData | None = None
    input_hashes: Hashes | None = None
    unit: Unit | None = None
    input_noise: InputNoise | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.input_noise, InputNoise | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Expected input_noise to be an InputNoise or None, got {shown(self.input_noise)}.")
        if self.input_noise is not None and not isinstance(self.mechanism, Random):
            raise ConfigError("Noise on inputs makes votes random, and these are those of a function; leave it out.")
        if not isinstance(self.unit, Unit | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Expected unit to be a Unit or None, got {shown(self.unit)}.")
        if not isinstance(self.training, TrainingData | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Expected training to be TrainingData or None, got {shown(self.training)}.")
        if not isinstance(self.size, Size | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Expected size to be a Size or None, got {shown(self.size)}; see Size.of.")
        if not isinstance(self.mechanism, Mechanism):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Expected mechanism to be one of mithridate.core.mechanism, got {self.mechanism!r}.")
        counts = _checked_counts(self.counts, equal_sums=self.mechanism.counts_voters)
        self.mechanism.check_classes(counts.shape[1])
        object.__setattr__(self, "counts", counts)
        for name in ("score_sums", "score_squares"):
            object.__setattr__(self, name, _checked_scores(name, getattr(self, name), counts))
        object.__setattr__(self, "score_histograms", _checked_histograms(self.score_histograms, counts))
        object.__setattr__(self, "labels", _checked_labels(self.labels, counts))
        object.__setattr__(self, "input_hashes", _checked_hashes(self.input_hashes, counts))
        runs: tuple[Any, ...] = tuple(self.run_ids)
        if isinstance(self.run_ids, str) or not all(isinstance(run, str) for run in runs) or len(set(runs)) < len(runs):
            raise ConfigError("Expected run_ids as a tuple of different names of runs.")
        object.__setattr__(self, "run_ids", runs)
        if not isinstance(self.data_fingerprint, str | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Expected data_fingerprint as text, got {shown(self.data_fingerprint)}.")
        _validate.sentences(assumptions=self.assumptions)
        object.__setattr__(self, "assumptions", tuple(self.assumptions))
        object.__setattr__(self, "recipe", _checked_recipe(self.recipe))
        object.__setattr__(self, "evidence", _checked_evidence(self.evidence, counts))
        object.__setattr__(self, "shards", _checked_shards(self.shards, self))
        object.__setattr__(self, "devices", _checked_devices(self.devices, self.instances))
        object.__setattr__(self, "planned", _checked_planned(self.planned, self.shards))

    @classmethod
    def from_counts(
        cls,
        counts: npt.ArrayLike,
        *,
        mechanism: Mechanism,
        score_sums: npt.ArrayLike | None = None,
        score_squares: npt.ArrayLike | None = None,
        score_histograms: npt.ArrayLike | None = None,
        labels: npt.ArrayLike | None = None,
    ) -> Votes:
        """Votes from anything that numpy turns into an array, checked; the arguments are attributes of the class.

        Raises:
            ConfigError: an array is not what it should be; the message names the remedy.

        >>> from mithridate import SampledGaussian
        >>> votes = Votes.from_counts([[1000, 0], [600, 400]], mechanism=SampledGaussian(3.0, 0.001, 1000))
        >>> votes.instances, votes.examples, votes.classes
        (1000, 2, 2)
        """
        given: dict[str, npt.ArrayLike | None] = {
            "score_sums": score_sums,
            "score_squares": score_squares,
            "score_histograms": score_histograms,
            "labels": labels,
        }
        others: dict[str, Any] = {name: _array(name, values) for name, values in given.items() if values is not None}
        return cls(_array("counts", counts), mechanism, **others)

    @property
    def instances(self) -> int:
        """Number of instances that voted; a sum of kernels is one."""
        return int(self.counts[0].sum()) if self.mechanism.counts_voters else 1

    @property
    def examples(self) -> int:
        """Number of inputs that were voted on."""
        return self.counts.shape[0]

    @property
    def classes(self) -> int:
        """Number of labels."""
        return self.counts.shape[1]

    @property
    def statements(self) -> tuple[str, ...]:
        """What every certificate of these votes repeats: `assumptions`, and what follows from the rest of the votes."""
        whole = len(self.run_ids) < 2 and all(
            self.planned.get(run) == size_of(parts) for run, parts in self.shards.items()
        )
        # Of a function of the data, nothing is certified before every model voted.
        return self._said if whole or isinstance(self.mechanism, Deterministic) else (*self._said, _SEVERAL)

    def statements_by(self, bounds: str) -> tuple[str, ...]:
        """Those of a certificate by these bounds: where they hold at any time, so do the first instances of a run."""
        return self._said if bounds == ANYTIME and not merging.not_first(self) else self.statements

    @property
    def _said(self) -> tuple[str, ...]:
        """The statements that do not depend on which instances voted."""
        said = self.assumptions
        if self.size is not None:
            said = (*said, Statement(self.size.sentence_of(self.unit_words)))
        if self.unit is not None:
            said = (*said, known_by_name(self.unit_words))
        return said

    @property
    def class_names(self) -> tuple[ClassName, ...] | None:
        """What the classes are called, by position, as training recorded it; None where they have no names.

        They are read from `recipe["source"]["class_names"]`, and so travel in votes files and certificates.
        """
        source: Any = (self.recipe or {}).get("source")
        return class_names_of(source.get("class_names") if isinstance(source, dict) else None, self.classes)  # pyright: ignore[reportUnknownMemberType]

    @property
    def shown_class_names(self) -> tuple[str, ...]:
        """What the classes are called, for people: as training recorded it, else by their numbers."""
        names = self.class_names
        return tuple(printable(str(name)) for name in (range(self.classes) if names is None else names))

    @property
    def tally(self) -> str:
        """Who voted, and how many, such as `250 models`."""
        return self.voters.tally(self.instances, self.unit_words)

    @property
    def voters(self) -> Voters:
        """How a report speaks of those who voted."""
        return self.mechanism.words.of(self.unit_words)

    @property
    def unit_words(self) -> UnitWords:
        """How people speak of what radii count."""
        return words_of(self.unit)

    def positions(self, labels: npt.ArrayLike) -> IntArray:
        """The position of each label among the classes.

        Args:
            labels: a label for each example, as the training data had them: names where the classes have names. Whole
                numbers are positions where there are no names, or where the names are these numbers.

        Raises:
            ConfigError: there is not one label for each example, or one of them is none of the classes.

        >>> from mithridate import SampledGaussian
        >>> named = {"source": {"class_names": ["no", "yes"]}}
        >>> votes = Votes(np.array([[3, 1]]), SampledGaussian(3.0, 0.001, 1000), recipe=named)
        >>> votes.positions(["yes"])
        array([1])
        """
        given = _array("true labels", labels)
        if given.shape != (self.examples,):
            raise ConfigError(f"Expected one true label for each of {self.examples} examples, got {given.shape}.")
        names = self.class_names
        places = places_of(names, self.classes)
        found = [places.get(kind_and_value(label), -1) for label in given.tolist()]
        if -1 in found:
            raise ConfigError(unknown_label(given.tolist()[found.index(-1)], names, self.classes))
        return np.array(found, dtype=np.int64)

    def merge(self, *others: Votes) -> Votes:
        """The votes of all, as if their instances had been one run.

        Independent runs of one mechanism merge, and parts of one run that share no instance. What is a function of the
        data (`Partitioned`, `SpreadPartitions`) has only parts of one run to merge; it certifies nothing before every
        model voted.

        Guarantee: no instance of a run that has a name counts twice. Counts do not depend on the order in which parts
        are merged. Sums of scores do not depend on the order in one call; over several calls they may differ by
        rounding, which bounds on scores allow for.

        Assumes: whole runs without a name in `run_ids` are different ones; the merged votes say so. Which runs there
        are, and which of them are merged, was decided before anyone saw how they vote: every certificate of votes that
        are not one whole run is conditional on that (`statements`).

        Raises:
            ConfigError: the mechanisms, the data or the inputs differ, or an instance would count twice.

        >>> from mithridate import SampledGaussian
        >>> private = SampledGaussian(3.0, 0.001, 1000)
        >>> ends = Votes(np.array([[3, 1]]), private, run_ids=("a",), shards={"a": ((0, 2), (4, 6))})
        >>> middle = Votes(np.array([[2, 0]]), private, run_ids=("a",), shards={"a": ((2, 4),)})
        >>> merged = ends.merge(middle)
        >>> merged.counts.tolist(), merged.shards
        ([[5, 1]], {'a': ((0, 6),)})
        """
        return merging.merge((self, *others))

    def save(self, path: PathLike) -> None:
        """Write a votes file (`.npz`, no pickle), atomically."""
        header, arrays = self.to_parts()
        with write_atomically(path, durable=True) as file:
            write_npz(file, {_HEADER: np.array(json.dumps({"schema": SCHEMA, **header})), **arrays})

    @classmethod
    def load(cls, path: PathLike) -> Votes:
        """Read what `save` wrote.

        Raises:
            ArtifactError: the file is missing, damaged, or not a votes file.
        """
        arrays = read_npz(Path(path), _WANTED)
        if _HEADER not in arrays:
            raise ArtifactError(
                f"{path} is not a mithridate votes file: it does not say how instances were trained. "
                "Read it by read_votes(path, mechanism=...) and save that."
            )
        return _from_npz(path, arrays)

    def to_parts(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """What every file that holds votes says of them: plain JSON values, and arrays by name.

        Whatever has nothing to say is left out. Two votes are equal where these are.
        """
        header = {
            "mechanism": self.mechanism.to_dict(),
            "data_fingerprint": self.data_fingerprint,
            "run_ids": list(self.run_ids),
            "assumptions": to_plain(self.assumptions),
            "recipe": self.recipe,
            "size": None if self.size is None else self.size.to_dict(),
            "training": None if self.training is None else self.training.to_dict(),
            "unit": None if self.unit is None else self.unit.to_dict(),
            "input_noise": None if self.input_noise is None else self.input_noise.to_dict(),
            **{name: dict(getattr(self, name)) for name in _MAPPINGS},
        }
        named = {key: getattr(self, name) for key, name in _ARRAYS.items()}
        evidence = {f"{_EVIDENCE}{name}": array for name, array in self.evidence.items()}
        said = {key: value for key, value in header.items() if value or key not in _MAY_BE_LEFT_OUT}
        return said, {key: array for key, array in (named | evidence).items() if array is not None}

    @classmethod
    def from_parts(cls, header: Any, arrays: Mapping[str, npt.NDArray[Any]], origin: object) -> Votes:
        """Read back what `to_parts` gave; `origin` is the file, for the messages.

        Raises:
            ArtifactError: something is missing, of the wrong kind, or too much.
            ConfigError: the values are not those of votes.
        """
        try:
            if not isinstance(header["run_ids"], list):  # The letters of a word are no names of runs.
                raise TypeError
            values: dict[str, Any] = {
                "data_fingerprint": header["data_fingerprint"],
                "run_ids": header["run_ids"],
                "assumptions": from_plain(header["assumptions"]),
                "recipe": header["recipe"],
                "size": None if header.get("size") is None else Size(**header["size"]),
                "training": None if header.get("training") is None else TrainingData(**header["training"]),
                "unit": None if header.get("unit") is None else Unit(**header["unit"]),
                "input_noise": None if header.get("input_noise") is None else InputNoise(**header["input_noise"]),
                **{name: header.get(name, {}) for name in _MAPPINGS},
            }
            mechanism = header["mechanism"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArtifactError(
                f"The header of {origin} cannot be read; the file is damaged. Write it again."
            ) from error
        if unknown := header.keys() - {"schema", "mechanism", *values}:
            raise ArtifactError(f"{origin} holds {min(unknown)!r:.80}, which no votes file does; write it again.")
        if "counts" not in arrays:
            raise ArtifactError(f"{origin} has no array 'counts'; the file is damaged. Write it again.")
        for name in arrays:
            if name not in _ARRAYS and not name.startswith(_EVIDENCE):
                raise ArtifactError(
                    f"{origin} holds {name!r:.80}, which no votes file does; it is damaged. Write it again."
                )
        evidence = {key.removeprefix(_EVIDENCE): array for key, array in arrays.items() if key.startswith(_EVIDENCE)}
        return _build(origin, arrays, mechanism_from_dict(mechanism), evidence=evidence, **values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Votes) and self.equals(other)

    def __repr__(self) -> str:
        names = "" if self.class_names is None else f" ({listed(self.shown_class_names)})"
        known = "" if self.labels is None else ", with true labels"
        parts = [shortened(f"parts of runs, by instances: {dict(self.shards)}", _LONGEST_LINE)] if self.shards else []
        who = f"Votes of {self.tally} on {counted(self.examples, 'input')}, {self.classes} classes{names}{known}"
        return "\n".join([who, self.mechanism.in_words(self.unit_words), *parts])

    def equals(self, other: Votes) -> bool:
        """Whether both hold the same values everywhere."""
        (one, arrays), (two, others) = self.to_parts(), other.to_parts()
        same = all(name in others and merging.same_array(array, others[name]) for name, array in arrays.items())
        return same and len(arrays) == len(others) and one == two


def read_votes(path: PathLike, *, mechanism: Mechanism | None = None, labels_key: str | None = None) -> Votes:
    """Votes from a votes file, from any `.npz` with an integer array `counts`, or from a CSV of counts.

    Args:
        path: the file.
        mechanism: what each instance ran; needed where the file does not say, refused where it says otherwise.
        labels_key: name of the array of true labels in an `.npz`.

    Raises:
        ArtifactError: the file is missing, damaged, or lacks an array.
        ConfigError: an array is not what it should be, or the mechanism is missing or contradicts the file.
    """
    path = Path(path)
    if path.suffix.lower() == ".csv":
        if labels_key is not None:
            raise ConfigError("A CSV of counts has no labels; put counts and labels into an .npz to use --labels-key.")
        return Votes(_read_csv(path), _required(mechanism))
    arrays = read_npz(path, _WANTED)
    if labels_key is not None:
        if labels_key not in arrays:
            names = ", ".join(sorted(set(arrays) - {_HEADER}))
            raise ArtifactError(f"{path} has no array {labels_key!r}; it has {names}. Name one of them.")
        arrays["y"] = arrays[labels_key] if labels_key in _ARRAYS else arrays.pop(labels_key)
    elif _HEADER not in arrays:
        arrays.pop("y", None)  # A foreign array of that name is not ours to interpret unless we are told to.
    if _HEADER in arrays:
        votes = _from_npz(path, arrays)
        if mechanism is not None and mechanism != votes.mechanism:
            raise ConfigError(f"{path} was trained with {votes.mechanism}; leave the mechanism flags out.")
        return votes
    if "counts" not in arrays:
        raise ArtifactError(f"{path} has no array 'counts' (examples x classes); save the vote counts under that name.")
    return _build(path, arrays, _required(mechanism))


def _required(mechanism: Mechanism | None) -> Mechanism:
    if mechanism is None:
        raise ConfigError(
            "This file does not say how the instances were trained; "
            "add --noise-multiplier, --sample-rate and --steps (in Python: mechanism=SampledGaussian(...))."
        )
    return mechanism


def _from_npz(path: PathLike, arrays: dict[str, npt.NDArray[Any]]) -> Votes:
    try:
        header = parse_json(str(arrays.pop(_HEADER)))
        schema = header["schema"]
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"The header of {path} cannot be read; the file is damaged. Write it again.") from error
    if schema != SCHEMA:
        raise ArtifactError(f"{path} has the schema {schema!r:.80}, this version reads {SCHEMA!r}; update mithridate.")
    return Votes.from_parts(header, arrays, path)


def _build(origin: object, arrays: Mapping[str, npt.NDArray[Any]], mechanism: Mechanism, **values: Any) -> Votes:
    known = {name: arrays[key] for key, name in _ARRAYS.items() if key in arrays}
    try:
        return Votes(mechanism=mechanism, **known, **values)
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from error


def _read_csv(path: Path) -> IntArray:
    """Counts, a row per example; a first row that is not numbers is taken for a header."""
    try:
        text = io.StringIO(read_file(path, TEXT_BYTES).decode("utf-8-sig"), newline="")
        rows = [row for row in csv.reader(text, strict=True) if any(cell.strip() for cell in row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ArtifactError(f"{path} is not a readable CSV file ({error}); check its quotes.") from error
    if any("\n" in cell or "\r" in cell for row in rows for cell in row):
        raise ArtifactError(f"A quote in {path} is not closed on its line and swallows the next; take it out.")
    if rows and not any(_is_number(cell) for cell in rows[0]):
        rows = rows[1:]
    if not rows:
        raise ArtifactError(f"{path} has no rows of counts.")
    if len({len(row) for row in rows}) != 1:
        raise ArtifactError(f"The rows of {path} have different lengths; give every row one count per class.")
    try:
        return np.array([[_whole_number(cell) for cell in row] for row in rows], dtype=np.int64)
    except (ValueError, OverflowError) as error:
        raise ArtifactError(f"{path} holds something other than whole numbers ({error}); give counts only.") from error


def _whole_number(cell: str) -> int:
    if "_" in cell:  # Python would read 1_000 as a thousand; in a file it is more likely damage.
        raise ValueError(f"{cell!r}")
    return int(cell)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _checked_counts(counts: npt.NDArray[Any], *, equal_sums: bool) -> IntArray:
    if not isinstance(counts, np.ndarray) or counts.ndim != 2 or counts.shape[0] == 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError("Expected counts as a table of examples x classes with at least one row.")
    if counts.shape[1] < 2:
        raise ConfigError("Expected counts of at least two classes; with one class there is nothing to certify.")
    counts = _integers("counts", counts)
    if (counts < 0).any():
        raise ConfigError(f"Row {_first(counts < 0)} of counts holds a negative number; counts are 0 or more.")
    if not equal_sums:
        return counts
    totals = counts.sum(axis=1)
    if (totals == 0).any():
        raise ConfigError(f"Row {_first(totals == 0)} of counts is all zero; every example needs votes.")
    if (totals != totals[0]).any():
        row = _first(totals != totals[0])
        raise ConfigError(
            f"Row {row} of counts adds up to {totals[row]}, row 0 to {totals[0]}; "
            "every instance must vote exactly once on every example."
        )
    return counts


def _integers(name: str, array: npt.NDArray[Any]) -> IntArray:
    if array.dtype.kind not in "iuf":
        raise ConfigError(f"Expected {name} to be whole numbers, got an array of {array.dtype}.")
    if array.dtype.kind == "f" and not (np.isfinite(array).all() and (array == np.floor(array)).all()):
        raise ConfigError(f"Expected {name} to be whole numbers, but some are fractions or not finite.")
    if array.size and (array.max() > 2**53 or array.min() < -(2**53)):
        raise ConfigError(f"Expected {name} below 2^53.")
    # A copy that nobody else can change: a certificate speaks about these numbers.
    return _frozen(array.astype(np.int64, copy=False))


def _checked_scores(name: str, array: npt.NDArray[Any] | None, counts: IntArray) -> ScoreArray | None:
    if array is None:
        return None
    if array.shape != counts.shape:
        raise ConfigError(f"Expected {name} in the shape of counts {counts.shape}, got {array.shape}.")
    if array.dtype.kind not in "iuf" or not np.isfinite(array).all() or (array < 0).any():
        raise ConfigError(f"Expected {name} to be finite numbers of 0 or more (sums of scores in [0, 1]).")
    if array.dtype.kind == "f" and array.dtype.itemsize < 4:
        raise ConfigError(f"{name} in half precision cannot bound anything; accumulate scores in float64.")
    # Single precision stays single: the confidence bounds allow for the rounding of its sums.
    single = array.dtype.kind == "f" and array.dtype.itemsize == 4  # in either byte order
    return _frozen(array.astype(np.float32 if single else np.float64))


def _checked_histograms(array: npt.NDArray[Any] | None, counts: IntArray) -> IntArray | None:
    if array is None:
        return None
    if array.ndim != 3 or array.shape[:2] != counts.shape or array.shape[2] < 1:
        raise ConfigError(f"Expected score histograms of shape {(*counts.shape, 'bins')}, got {array.shape}.")
    histograms = _integers("score histograms", array)
    if (histograms < 0).any() or (histograms.sum(axis=2) != counts[0].sum()).any():
        raise ConfigError(
            "Every score histogram must add up to the number of instances, in whole numbers of 0 or more."
        )
    return histograms


def _checked_labels(labels: npt.NDArray[Any] | None, counts: IntArray) -> IntArray | None:
    if labels is None:
        return None
    if labels.shape != (counts.shape[0],):
        raise ConfigError(f"Expected one true label for each of {counts.shape[0]} examples, got shape {labels.shape}.")
    labels = _integers("true labels", labels)
    if (labels < 0).any() or (labels >= counts.shape[1]).any():
        raise ConfigError(f"Expected true labels from 0 to {counts.shape[1] - 1}, the classes that were voted on.")
    return labels


def _checked_hashes(hashes: Hashes | None, counts: IntArray) -> Hashes | None:
    if hashes is None:
        return None
    if not isinstance(hashes, np.ndarray) or hashes.dtype != np.uint8 or hashes.shape != (len(counts), HASH_BYTES):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"Expected input_hashes as {HASH_BYTES} bytes for each of {len(counts)} examples.")
    return _frozen(hashes)


def _checked_shards(shards: Any, votes: Votes) -> dict[str, InstanceRanges]:
    """The parts of every run that is listed, sorted and joined; they have to fit the number of instances."""
    if not isinstance(shards, Mapping):
        raise ConfigError("Expected shards as a mapping from run ids to pairs (first, stop) of instances.")
    given: dict[Any, Any] = dict(shards)  # pyright: ignore[reportUnknownArgumentType]
    if not given.keys() <= set(votes.run_ids):
        raise ConfigError("Expected shards of runs that run_ids names only.")
    checked = {run: checked_parts(run, given[run]) for run in sorted(given)}
    if checked and isinstance(votes.mechanism, Deterministic):
        _check_models(checked, votes)
    held, whole = sum(size_of(parts) for parts in checked.values()), len(votes.run_ids) - len(checked)
    if checked and (held + whole > votes.instances or (not whole and held != votes.instances)):
        others = f" and those of {counted(whole, 'whole run')}" if whole else ""
        raise ConfigError(
            f"The shards name {held} instances{others}, but {votes.instances} voted; "
            "every instance must vote exactly once on every example."
        )
    return checked


def _checked_devices(devices: Any, instances: int) -> dict[str, int]:
    """Numbers of instances by the names of devices, sorted."""
    named = _whole_by_name(devices)
    if named is None or min(named.values(), default=1) < 1 or sum(named.values()) > instances:
        raise ConfigError(
            "Expected devices as a mapping from names to the number of instances that each kind trained, together no "
            "more than there are."
        )
    return named


def _checked_planned(planned: Any, shards: Mapping[str, InstanceRanges]) -> dict[str, int]:
    """Sizes of runs of which parts are here, sorted; no part may lie beyond them."""
    sizes = _whole_by_name(planned)
    if sizes is None or not all(run in shards and shards[run][-1][1] <= size <= LARGEST for run, size in sizes.items()):
        raise ConfigError(
            "Expected planned as a mapping from runs in shards to the number of all their instances, none of which "
            "lies beyond it."
        )
    return sizes


def _whole_by_name(values: Any) -> dict[str, int] | None:
    """Whole numbers by name, sorted; None where they are something else."""
    try:
        return dict(sorted((str(name), whole_number(number)) for name, number in dict(values).items()))
    except (TypeError, ValueError):
        return None


def _check_models(shards: Mapping[str, InstanceRanges], votes: Votes) -> None:
    """Require parts of one run, none behind its last model: two models of one number would be one model twice."""
    mechanism = votes.mechanism
    models = mechanism.models if isinstance(mechanism, Deterministic) else None
    if models is None:
        raise ConfigError(f"Votes of {type(mechanism).__name__} come from one function, which has no shards.")
    if len(votes.run_ids) != 1:
        raise ConfigError("Expected shards of one run: models that are functions of the data are trained once.")
    if any(parts[-1][1] > models for parts in shards.values()):
        raise ConfigError(f"Expected shards of the models 0 to {models - 1}, all that there are.")


def _checked_recipe(recipe: Any) -> dict[str, Any] | None:
    """A copy of a recipe, in plain JSON values."""
    if recipe is None:
        return None
    try:
        # A copy that nobody else can change, and in the very form in which it will be read back.
        copy = json.loads(json.dumps(recipe, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"Expected recipe in plain JSON values: {error}.") from error
    if not isinstance(copy, dict):
        raise ConfigError(f"Expected recipe to be a dictionary, got {recipe!r}.")
    return copy  # pyright: ignore[reportUnknownVariableType]


def _checked_evidence(evidence: Any, counts: IntArray) -> dict[str, npt.NDArray[Any]]:
    """Whole numbers of 0 or more, in the smallest type that holds them: evidence can be large."""
    result: dict[str, npt.NDArray[Any]] = {}
    for name, values in dict(evidence).items():
        array = np.asarray(values)
        if not isinstance(name, str) or array.shape[:1] != counts.shape[:1]:
            raise ConfigError(f"Expected the evidence {name!r} as an array with an entry for each example.")
        small = array.dtype.kind == "u" and array.dtype.itemsize < 8
        checked = array if small else _integers(f"the evidence {name!r}", array)
        if checked.size and checked.min() < 0:
            raise ConfigError(f"Expected the evidence {name!r} to be 0 or more.")
        largest = int(checked.max(initial=0))
        result[name] = _frozen(checked.astype(np.min_scalar_type(largest) if largest < 2**32 else np.int64))
    return result


def _array(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ConfigError(f"Expected {name} as an array, but its rows have different lengths.") from error


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array = np.array(array)
    array.flags.writeable = False
    return array


def _first(mask: npt.NDArray[np.bool_]) -> int:
    return int(np.argwhere(mask)[0][0])
