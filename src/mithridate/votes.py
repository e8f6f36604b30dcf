"""Votes: how the instances voted on each input, and the mechanism that trained them."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate._artifact import PathLike, check_is_file, read_npz, write_atomically
from mithridate.errors import ArtifactError, ConfigError
from mithridate.mechanism import Deterministic, KernelSum, Mechanism, NoisyLabels, mechanism_from_dict

IntArray = npt.NDArray[np.int64]
ScoreArray = npt.NDArray[np.floating[Any]]

SCHEMA = "mithridate.votes/1"
# Names of the optional arrays in a file, and of the fields that hold them.
_OPTIONAL = {"sum": "score_sums", "sumsq": "score_squares", "hist": "score_histograms", "y": "labels"}
_WANTED = "an array 'counts'"
_EVIDENCE = "evidence."


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

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, Mechanism):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Expected mechanism to be one of mithridate.mechanism, got {self.mechanism!r}.")
        counts = _checked_counts(self.counts, equal_sums=not isinstance(self.mechanism, KernelSum))
        if isinstance(self.mechanism, NoisyLabels) and self.mechanism.classes != counts.shape[1]:
            raise ConfigError(
                f"Expected counts of {self.mechanism.classes} classes, those that labels were replaced by, got "
                f"{counts.shape[1]}; count votes for all of them."
            )
        object.__setattr__(self, "counts", counts)
        for name in ("score_sums", "score_squares"):
            object.__setattr__(self, name, _checked_scores(name, getattr(self, name), counts))
        object.__setattr__(self, "score_histograms", _checked_histograms(self.score_histograms, counts))
        object.__setattr__(self, "labels", _checked_labels(self.labels, counts))
        object.__setattr__(self, "run_ids", tuple(self.run_ids))
        object.__setattr__(self, "assumptions", _checked_assumptions(self.assumptions))
        object.__setattr__(self, "recipe", _checked_recipe(self.recipe))
        object.__setattr__(self, "evidence", _checked_evidence(self.evidence, counts))

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
        """Votes from anything that numpy turns into an array, checked.

        Args:
            counts: votes, examples x classes.
            mechanism: what each instance ran.
            score_sums: see the class; likewise the others.
            score_squares: see the class.
            score_histograms: see the class.
            labels: see the class.

        Raises:
            ConfigError: an array is not what it should be; the message names the remedy.

        >>> from mithridate import SampledGaussian
        >>> votes = Votes.from_counts([[1000, 0], [600, 400]], mechanism=SampledGaussian(3.0, 0.001, 1000))
        >>> votes.instances, votes.examples, votes.classes
        (1000, 2, 2)
        """
        return cls(
            _array("counts", counts),
            mechanism,
            score_sums=_optional_array("score_sums", score_sums),
            score_squares=_optional_array("score_squares", score_squares),
            score_histograms=_optional_array("score_histograms", score_histograms),
            labels=_optional_array("labels", labels),
        )

    @property
    def instances(self) -> int:
        """Number of instances that voted; a sum of kernels is one."""
        return 1 if isinstance(self.mechanism, KernelSum) else int(self.counts[0].sum())

    @property
    def examples(self) -> int:
        """Number of inputs that were voted on."""
        return self.counts.shape[0]

    @property
    def classes(self) -> int:
        """Number of labels."""
        return self.counts.shape[1]

    def merge(self, other: Votes) -> Votes:
        """The votes of both, as if all instances had been one run.

        Raises:
            ConfigError: the mechanisms, the data or the inputs differ, or a run is counted twice.
        """
        if isinstance(self.mechanism, Deterministic):
            raise ConfigError("These votes come from a function of the data, which has nothing to merge; train once.")
        if self.mechanism != other.mechanism:
            raise ConfigError(
                f"Votes of different mechanisms never merge: {self.mechanism} and {other.mechanism}. "
                "Certify them one by one."
            )
        if self.counts.shape != other.counts.shape or self.data_fingerprint != other.data_fingerprint:
            raise ConfigError("These votes are about different data or inputs; merge only runs on the same ones.")
        if not _same(self.labels, other.labels):
            raise ConfigError("These votes carry different true labels; merge only runs on the same test set.")
        if set(self.run_ids) & set(other.run_ids):
            raise ConfigError("These votes share a run: its instances would count twice. Merge each run once.")
        recipe = _merged_recipe(self.recipe, other.recipe)
        return Votes(
            self.counts + other.counts,
            self.mechanism,
            _sum(self.score_sums, other.score_sums),
            _sum(self.score_squares, other.score_squares),
            _sum(self.score_histograms, other.score_histograms),
            self.labels,
            self.data_fingerprint,
            tuple(sorted(self.run_ids + other.run_ids)),
            tuple(sorted(set(self.assumptions + other.assumptions))),
            recipe,
        )

    def save(self, path: PathLike) -> None:
        """Write a votes file (`.npz`, no pickle), atomically."""
        header = {
            "schema": SCHEMA,
            "mechanism": self.mechanism.to_dict(),
            "data_fingerprint": self.data_fingerprint,
            "run_ids": list(self.run_ids),
            "assumptions": list(self.assumptions),
            "recipe": self.recipe,
        }
        arrays = {key: getattr(self, name) for key, name in _OPTIONAL.items() if getattr(self, name) is not None}
        arrays |= {f"{_EVIDENCE}{name}": array for name, array in self.evidence.items()}
        with write_atomically(path, durable=True) as file:
            np.savez_compressed(file, mithridate=np.array(json.dumps(header)), counts=self.counts, **arrays)

    @classmethod
    def load(cls, path: PathLike) -> Votes:
        """Read what `save` wrote.

        Raises:
            ArtifactError: the file is missing, damaged, or not a votes file.
        """
        arrays = read_npz(Path(path), _WANTED)
        if "mithridate" not in arrays:
            raise ArtifactError(f"{path} is not a mithridate votes file; use read_votes(path, mechanism=...).")
        return _from_arrays(Path(path), arrays)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Votes) and self.equals(other)

    def equals(self, other: Votes) -> bool:
        """Whether both hold the same values everywhere."""
        plain = ("mechanism", "data_fingerprint", "run_ids", "assumptions", "recipe")
        if self.evidence.keys() != other.evidence.keys():
            return False
        arrays = [(getattr(self, name), getattr(other, name)) for name in ("counts", *_OPTIONAL.values())]
        arrays += [(self.evidence[name], other.evidence[name]) for name in self.evidence]
        return all(getattr(self, name) == getattr(other, name) for name in plain) and all(_same(*two) for two in arrays)


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
            names = ", ".join(sorted(set(arrays) - {"mithridate"}))
            raise ArtifactError(f"{path} has no array {labels_key!r}; it has {names}. Name one of them.")
        arrays["y"] = arrays[labels_key]
    elif "mithridate" not in arrays:
        arrays.pop("y", None)  # A foreign array of that name is not ours to interpret unless we are told to.
    if "mithridate" in arrays:
        votes = _from_arrays(path, arrays)
        if mechanism is not None and mechanism != votes.mechanism:
            raise ConfigError(f"{path} was trained with {votes.mechanism}; leave the mechanism flags out.")
        return votes
    if "counts" not in arrays:
        raise ArtifactError(f"{path} has no array 'counts' (examples x classes); save the vote counts under that name.")
    return _build(path, arrays, _required(mechanism), {})


def _required(mechanism: Mechanism | None) -> Mechanism:
    if mechanism is None:
        raise ConfigError(
            "This file does not say how the instances were trained; "
            "add --noise-multiplier, --sample-rate and --steps (in Python: mechanism=SampledGaussian(...))."
        )
    return mechanism


def _from_arrays(path: Path, arrays: dict[str, npt.NDArray[Any]]) -> Votes:
    try:
        header = json.loads(str(arrays["mithridate"]))
        schema = header["schema"]
        mechanism_values, run_ids = header["mechanism"], tuple(header["run_ids"])
        extra = {
            "data_fingerprint": header["data_fingerprint"],
            "run_ids": run_ids,
            # Files of version 0.1 say nothing about training.
            "assumptions": tuple(header.get("assumptions", ())),
            "recipe": header.get("recipe"),
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"The header of {path} cannot be read; the file is damaged. Write it again.") from error
    if schema != SCHEMA:
        raise ArtifactError(f"{path} has the schema {schema!r}, this version reads {SCHEMA!r}; update mithridate.")
    if "counts" not in arrays:
        raise ArtifactError(f"{path} has no array 'counts'; the file is damaged. Write it again.")
    return _build(path, arrays, mechanism_from_dict(mechanism_values), extra)


def _build(path: Path, arrays: dict[str, npt.NDArray[Any]], mechanism: Mechanism, extra: dict[str, Any]) -> Votes:
    optional: dict[str, Any] = {name: arrays[key] for key, name in _OPTIONAL.items() if key in arrays}
    if extra:  # a file of ours
        optional["evidence"] = {
            key.removeprefix(_EVIDENCE): array for key, array in arrays.items() if key.startswith(_EVIDENCE)
        }
    try:
        return Votes(arrays["counts"], mechanism, **optional, **extra)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _read_csv(path: Path) -> IntArray:
    """Counts, a row per example; a first row that is not numbers is taken for a header."""
    check_is_file(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if any(cell.strip() for cell in row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ArtifactError(f"{path} is not a readable CSV file.") from error
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
    return _frozen(array.astype(np.int64))


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


def _checked_assumptions(sentences: Any) -> tuple[str, ...]:
    if isinstance(sentences, str) or not all(isinstance(sentence, str) for sentence in sentences):
        raise ConfigError(f"Expected assumptions as a tuple of sentences, got {sentences!r}.")
    return tuple(sentences)


def _checked_recipe(recipe: Any) -> dict[str, Any] | None:
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


def _merged_recipe(first: dict[str, Any] | None, second: dict[str, Any] | None) -> dict[str, Any] | None:
    """The recipe of both; they may differ in the number of instances only, which adds up."""
    first, second = _checked_recipe(first), _checked_recipe(second)
    counts: list[int] = []
    for recipe in (first, second):
        if recipe is not None and isinstance(recipe.get("config"), dict) and "instances" in recipe["config"]:
            counts.append(recipe["config"].pop("instances"))
    if first != second:
        raise ConfigError("These votes were trained by different recipes; merge only runs of the same one.")
    if first is not None and len(counts) == 2:
        first["config"]["instances"] = sum(counts)
    return first


def _checked_evidence(evidence: Any, counts: IntArray) -> dict[str, npt.NDArray[Any]]:
    result: dict[str, npt.NDArray[Any]] = {}
    for name, values in dict(evidence).items():
        array = np.asarray(values)
        if not isinstance(name, str) or array.shape[:1] != counts.shape[:1]:
            raise ConfigError(f"Expected the evidence {name!r} as an array with an entry for each example.")
        result[name] = _whole(f"the evidence {name!r}", array)
    return result


def _whole(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Whole numbers of 0 or more, in the smallest type that holds them: evidence can be large."""
    small = array.dtype.kind == "u" and array.dtype.itemsize < 8
    checked = array if small else _integers(name, array)
    if checked.size and checked.min() < 0:
        raise ConfigError(f"Expected {name} to be 0 or more.")
    largest = int(checked.max(initial=0))
    return _frozen(checked.astype(np.min_scalar_type(largest) if largest < 2**32 else np.int64))


def _array(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ConfigError(f"Expected {name} as an array, but its rows have different lengths.") from error


def _optional_array(name: str, values: npt.ArrayLike | None) -> npt.NDArray[Any] | None:
    return None if values is None else _array(name, values)


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array = np.array(array)
    array.flags.writeable = False
    return array


def _first(mask: npt.NDArray[np.bool_]) -> int:
    return int(np.argwhere(mask)[0][0])


def _sum(first: npt.NDArray[Any] | None, second: npt.NDArray[Any] | None) -> npt.NDArray[Any] | None:
    if first is None or second is None:
        return None
    # A sum is no more precise than its parts: single and double precision give single.
    return (first + second).astype(min(first.dtype, second.dtype, key=lambda dtype: dtype.itemsize))


def _same(first: Any, second: Any) -> bool:
    if first is None or second is None:
        return first is second
    one, two = np.asarray(first), np.asarray(second)
    return one.dtype == two.dtype and np.array_equal(one, two)
