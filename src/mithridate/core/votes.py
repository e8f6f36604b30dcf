"""Votes: how the instances voted on each input, and the mechanism that trained them."""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import itertools
import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from mithridate import _validate
from mithridate._io.artifacts import PathLike, read_npz, write_atomically, write_npz
from mithridate._io.files import TEXT_BYTES, parse_json, read_file
from mithridate.core.conditions import Statement, distinct, from_plain, to_plain
from mithridate.core.mechanism import (
    Deterministic,
    KernelSum,
    Mechanism,
    NearestExamples,
    NoisyLabels,
    Partitioned,
    SpreadPartitions,
    mechanism_from_dict,
)
from mithridate.errors import ArtifactError, ConfigError

IntArray = npt.NDArray[np.int64]
ScoreArray = npt.NDArray[np.floating[Any]]
# Instances of one run, from the first to before the second number of every pair; sorted, with gaps between the pairs.
Parts = tuple[tuple[int, int], ...]
ClassName = str | int | float

SCHEMA = "mithridate.votes/1"
# Names of the optional arrays in a file, and of the fields that hold them.
_OPTIONAL = {"sum": "score_sums", "sumsq": "score_squares", "hist": "score_histograms", "y": "labels"}
_WANTED = "an array 'counts'"
_EVIDENCE = "evidence."
# Whole numbers in files stay below this, so that every program reads them alike.
_LARGEST = 2**53
# A run whose parts are not listed, however many instances it has.
_WHOLE: Parts = ((0, _LARGEST),)
# Names that are longer are cut in messages.
_LONG = 80
_FEW_NAMES = 20
_UNNAMED = Statement(
    "Votes of runs without a name were merged; they are taken for those of different runs.", "instances-after-a-look"
)
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
    shards: Mapping[str, Parts] = field(default_factory=dict[str, Parts])
    devices: Mapping[str, int] = field(default_factory=dict[str, int])
    planned: Mapping[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, Mechanism):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Expected mechanism to be one of mithridate.core.mechanism, got {self.mechanism!r}.")
        counts = _checked_counts(self.counts, equal_sums=not isinstance(self.mechanism, KernelSum))
        if isinstance(self.mechanism, NoisyLabels) and self.mechanism.classes != counts.shape[1]:
            raise ConfigError(
                f"Expected counts of {self.mechanism.classes} classes, those that labels were replaced by, got "
                f"{counts.shape[1]}; count votes for all of them."
            )
        if isinstance(self.mechanism, NearestExamples):
            self.mechanism.needed(counts.shape[1])  # refuses leads for another number of labels
        object.__setattr__(self, "counts", counts)
        for name in ("score_sums", "score_squares"):
            object.__setattr__(self, name, _checked_scores(name, getattr(self, name), counts))
        object.__setattr__(self, "score_histograms", _checked_histograms(self.score_histograms, counts))
        object.__setattr__(self, "labels", _checked_labels(self.labels, counts))
        object.__setattr__(self, "run_ids", _checked_run_ids(self.run_ids))
        _check_fingerprint(self.data_fingerprint)
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

    @property
    def statements(self) -> tuple[str, ...]:
        """What every certificate of these votes repeats: `assumptions`, and whether they are those of one whole run."""
        if isinstance(self.mechanism, Deterministic):  # nothing is certified before every model voted
            return self.assumptions
        whole = len(self.run_ids) < 2 and all(
            self.planned.get(run) == _size(parts) for run, parts in self.shards.items()
        )
        return self.assumptions if whole else (*self.assumptions, _SEVERAL)

    @property
    def class_names(self) -> tuple[ClassName, ...] | None:
        """What the classes are called, by position, as training recorded it; None where they have no names.

        They are read from `recipe["source"]["class_names"]`, and so travel in votes files and certificates.
        """
        source: Any = (self.recipe or {}).get("source")
        return _named(source.get("class_names") if isinstance(source, dict) else None, self.classes)  # pyright: ignore[reportUnknownMemberType]

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
        places = _places(names, self.classes)
        found = [places.get(_kind_and_value(label), -1) for label in given.tolist()]
        if -1 in found:
            raise ConfigError(_unknown_label(given.tolist()[found.index(-1)], names, self.classes))
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
        return functools.reduce(_merged, sorted((self, *others), key=merge_order))

    def save(self, path: PathLike) -> None:
        """Write a votes file (`.npz`, no pickle), atomically."""
        header: dict[str, Any] = {
            "schema": SCHEMA,
            "mechanism": self.mechanism.to_dict(),
            "data_fingerprint": self.data_fingerprint,
            "run_ids": list(self.run_ids),
            "assumptions": to_plain(self.assumptions),
            "recipe": self.recipe,
        }
        if self.shards:
            header["shards"] = self.shards
        if self.devices:
            header["devices"] = self.devices
        if self.planned:
            header["planned"] = self.planned
        arrays = {key: getattr(self, name) for key, name in _OPTIONAL.items() if getattr(self, name) is not None}
        arrays |= {f"{_EVIDENCE}{name}": array for name, array in self.evidence.items()}
        with write_atomically(path, durable=True) as file:
            write_npz(file, {"mithridate": np.array(json.dumps(header)), "counts": self.counts, **arrays})

    @classmethod
    def load(cls, path: PathLike) -> Votes:
        """Read what `save` wrote.

        Raises:
            ArtifactError: the file is missing, damaged, or not a votes file.
        """
        arrays = read_npz(Path(path), _WANTED)
        if "mithridate" not in arrays:
            raise ArtifactError(
                f"{path} is not a mithridate votes file: it does not say how instances were trained. "
                "Read it by read_votes(path, mechanism=...) and save that."
            )
        return _from_arrays(Path(path), arrays)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Votes) and self.equals(other)

    def equals(self, other: Votes) -> bool:
        """Whether both hold the same values everywhere."""
        plain = ("mechanism", "data_fingerprint", "run_ids", "recipe", "shards", "devices", "planned")
        if to_plain(self.assumptions) != to_plain(other.assumptions):
            return False
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
        votes = _from_arrays(path, arrays, labels_key)
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


def _from_arrays(path: Path, arrays: dict[str, npt.NDArray[Any]], labels_key: str | None = None) -> Votes:
    try:
        header = parse_json(str(arrays["mithridate"]))
        schema = header["schema"]
        mechanism_values, run_ids = header["mechanism"], header["run_ids"]
        if not isinstance(run_ids, list):  # The letters of a word are no names of runs.
            raise TypeError
        extra: dict[str, Any] = {
            "data_fingerprint": header["data_fingerprint"],
            "run_ids": run_ids,
            "assumptions": from_plain(header.get("assumptions", [])),
            "recipe": header.get("recipe"),
            # Where nothing is said, every run is there as a whole.
            "shards": header.get("shards", {}),
            "devices": header.get("devices", {}),
            "planned": header.get("planned", {}),
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"The header of {path} cannot be read; the file is damaged. Write it again.") from error
    if schema != SCHEMA:
        raise ArtifactError(f"{path} has the schema {schema!r:.80}, this version reads {SCHEMA!r}; update mithridate.")
    if "counts" not in arrays:
        raise ArtifactError(f"{path} has no array 'counts'; the file is damaged. Write it again.")
    known = {"mithridate", "counts", *_OPTIONAL, labels_key}
    for name in arrays:
        if name not in known and not name.startswith(_EVIDENCE):
            raise ArtifactError(f"{path} holds {name!r:.80}, which no votes file does; it is damaged. Write it again.")
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


def _check_fingerprint(fingerprint: Any) -> None:
    if fingerprint is not None and not isinstance(fingerprint, str):
        raise ConfigError(f"Expected data_fingerprint as text, got {_validate.shown(fingerprint)}.")


def _checked_run_ids(run_ids: Any) -> tuple[str, ...]:
    names = tuple(run_ids)
    if isinstance(run_ids, str) or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ConfigError("Expected run_ids as a tuple of different names of runs.")
    return names


def _checked_shards(shards: Any, votes: Votes) -> dict[str, Parts]:
    """The parts of every run that is listed, sorted and joined; they have to fit the number of instances."""
    if not isinstance(shards, Mapping):
        raise ConfigError("Expected shards as a mapping from run ids to pairs (first, stop) of instances.")
    given: dict[Any, Any] = dict(shards)  # pyright: ignore[reportUnknownArgumentType]
    if not given.keys() <= set(votes.run_ids):
        raise ConfigError("Expected shards of runs that run_ids names only.")
    checked = {run: _checked_parts(run, given[run]) for run in sorted(given)}
    if checked and isinstance(votes.mechanism, Deterministic):
        _check_models(checked, votes)
    held, whole = sum(_size(parts) for parts in checked.values()), len(votes.run_ids) - len(checked)
    if checked and (held + whole > votes.instances or (not whole and held != votes.instances)):
        others = f" and those of {whole} whole run{'s' if whole > 1 else ''}" if whole else ""
        raise ConfigError(
            f"The shards name {held} instances{others}, but {votes.instances} voted; "
            "every instance must vote exactly once on every example."
        )
    return checked


def _checked_devices(devices: Any, instances: int) -> dict[str, int]:
    """Numbers of instances by the names of devices, sorted."""
    try:
        named = {str(name): _instance(number) for name, number in dict(devices).items()}
        fits = all(number > 0 for number in named.values()) and sum(named.values()) <= instances
    except (TypeError, ValueError):
        fits, named = False, {}
    if not fits:
        raise ConfigError(
            "Expected devices as a mapping from names to the number of instances that each kind trained, together no "
            "more than there are."
        )
    return dict(sorted(named.items()))


def _checked_planned(planned: Any, shards: Mapping[str, Parts]) -> dict[str, int]:
    """Sizes of runs of which parts are here, sorted; no part may lie beyond them."""
    try:
        sizes = {str(run): _instance(size) for run, size in dict(planned).items()}
        fits = all(run in shards and shards[run][-1][1] <= size <= _LARGEST for run, size in sizes.items())
    except (TypeError, ValueError):
        fits, sizes = False, {}
    if not fits:
        raise ConfigError(
            "Expected planned as a mapping from runs in shards to the number of all their instances, none of which "
            "lies beyond it."
        )
    return dict(sorted(sizes.items()))


def _checked_parts(run: str, parts: Any) -> Parts:
    try:
        pairs = sorted((_instance(first), _instance(stop)) for first, stop in parts)
        fits = bool(pairs) and all(0 <= first < stop <= _LARGEST for first, stop in pairs)
    except (TypeError, ValueError):
        fits, pairs = False, []
    if not fits:  # Without the values, which may be of any size.
        raise ConfigError(
            f"Expected the shards of the run {_short(run)} as pairs (first, stop) of whole numbers from 0 on, "
            "first below stop, and at least one pair."
        )
    twice = _overlap(pairs)
    if twice is not None:
        raise ConfigError(f"The shards of the run {_short(run)} name {_instances(*twice)} twice; name them once.")
    return _joined(pairs)


def _instance(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def _check_models(shards: Mapping[str, Parts], votes: Votes) -> None:
    """Require parts of one run, none behind its last model: two models of one number would be one model twice."""
    mechanism = votes.mechanism
    if not isinstance(mechanism, Partitioned | SpreadPartitions):
        raise ConfigError(f"Votes of {type(mechanism).__name__} come from one function, which has no shards.")
    models = mechanism.models if isinstance(mechanism, SpreadPartitions) else mechanism.partitions
    if len(votes.run_ids) != 1:
        raise ConfigError("Expected shards of one run: models that are functions of the data are trained once.")
    if any(parts[-1][1] > models for parts in shards.values()):
        raise ConfigError(f"Expected shards of the models 0 to {models - 1}, all that there are.")


def _overlap(pairs: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """The first instances that two of the sorted pairs share."""
    for (_, end), (first, stop) in itertools.pairwise(pairs):
        if first < end:
            return first, min(end, stop)
    return None


def _joined(pairs: Iterable[tuple[int, int]]) -> Parts:
    """Sorted disjoint pairs, of which those that touch become one.

    >>> _joined([(0, 2), (2, 5), (7, 8)])
    ((0, 5), (7, 8))
    """
    result: list[tuple[int, int]] = []
    for first, stop in pairs:
        if result and result[-1][1] == first:
            first = result.pop()[0]
        result.append((first, stop))
    return tuple(result)


def _size(parts: Parts) -> int:
    return sum(stop - first for first, stop in parts)


def _instances(first: int, stop: int) -> str:
    return f"the instances {first} to {stop - 1}" if stop - first > 1 else f"the instance {first}"


def _short(run: str) -> str:
    return repr(run) if len(run) <= _LONG else f"{run[:_LONG]!r}..."


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


def _same(first: Any, second: Any) -> bool:
    if first is None or second is None:
        return first is second
    one, two = np.asarray(first), np.asarray(second)
    return one.dtype == two.dtype and np.array_equal(one, two)


# --- names of classes -----------------------------------------------------------------------------------------------


def _named(listed: Any, classes: int) -> tuple[ClassName, ...] | None:
    """A different name for each class; a file may hold anything there, and what is no list of names is none."""
    names = cast("list[Any]", listed if isinstance(listed, list) else [])
    alike = any(all(isinstance(name, kind) for name in names) for kind in (str, int | float))
    return tuple(names) if alike and len(names) == len(set(names)) == classes else None


def _places(names: tuple[ClassName, ...] | None, classes: int) -> dict[tuple[str, Any], int]:
    """The position of every label that is accepted, by its kind and value."""
    if names is None:
        return {("number", at): at for at in range(classes)}
    places = {_kind_and_value(name): at for at, name in enumerate(names)}
    if any(kind == "fraction" for kind, _ in places):  # 1 is as good as 1.0, where labels are such
        places |= {("number", name): at for at, name in enumerate(names)}
    if names == tuple(str(at) for at in range(classes)):
        places |= {("number", at): at for at in range(classes)}
    return places


def _kind_and_value(label: Any) -> tuple[str, Any]:
    """What tells 1, 1.0, True and "1" apart, which are equal to Python or mean the same to people."""
    value: Any = label.item() if hasattr(label, "item") else label  # a number of numpy
    kinds = ((str, "text"), (bool, "truth"), (int, "number"), (float, "fraction"))  # a bool is an int, too
    return next(((name, value) for kind, name in kinds if isinstance(value, kind)), ("", None))


def _unknown_label(label: Any, names: tuple[ClassName, ...] | None, classes: int) -> str:
    shown = _validate.shown(label)
    if names is None:
        return (
            f"Expected true labels as whole numbers from 0 to {classes - 1}, since these votes do not say what their "
            f"classes are called; got {shown}. Give the position of each label among the classes."
        )
    few = ", ".join(repr(name) for name in names[:_FEW_NAMES]) + (", ..." if classes > _FEW_NAMES else "")
    return (
        f"The true labels hold {shown}, which is none of the classes {_short_text(few)}; give labels as the training "
        "data had them, not positions."
    )


def _short_text(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."


# --- merging --------------------------------------------------------------------------------------------------------


def merge_order(votes: Votes) -> tuple[Any, ...]:
    """By what votes are sorted before they are added up: sums of floating-point numbers depend on their order."""
    runs = tuple((run, votes.shards[run][0][0] if run in votes.shards else 0) for run in sorted(votes.run_ids))
    return runs, "" if runs else _digest(votes)


def _digest(votes: Votes) -> str:
    """What tells votes without a name apart."""
    arrays = [getattr(votes, name) for name in ("counts", *_OPTIONAL.values())]
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(b"none" if array is None else f"{array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def _merged(first: Votes, second: Votes) -> Votes:
    _check_alike(first, second)
    _check_apart(first, second)
    return Votes(
        first.counts + second.counts,
        first.mechanism,
        _sum(first.score_sums, second.score_sums),
        _sum(first.score_squares, second.score_squares),
        _sum(first.score_histograms, second.score_histograms),
        first.labels,
        first.data_fingerprint,
        tuple(sorted({*first.run_ids, *second.run_ids})),
        _merged_assumptions(first, second),
        _merged_recipe(first, second),
        _merged_evidence(first, second) if isinstance(first.mechanism, Deterministic) else {},
        _merged_shards(first, second),
        {name: first.devices.get(name, 0) + second.devices.get(name, 0) for name in {*first.devices, *second.devices}},
        {**first.planned, **second.planned},
    )


def _merged_assumptions(first: Votes, second: Votes) -> tuple[str, ...]:
    """Sorted, so that they do not depend on the order of merging."""
    unnamed = (_UNNAMED,) if _nameless(first) or _nameless(second) else ()
    return tuple(sorted(distinct((*first.assumptions, *second.assumptions, *unnamed))))


def _check_alike(first: Votes, second: Votes) -> None:
    """Require votes of one mechanism on the same data."""
    if first.mechanism != second.mechanism:
        raise ConfigError(
            f"Votes of different mechanisms never merge: {first.mechanism} and {second.mechanism}. "
            "Certify them one by one."
        )
    parts_of_one = bool(first.shards and second.shards) and first.run_ids == second.run_ids
    if isinstance(first.mechanism, Deterministic) and not parts_of_one:
        raise ConfigError(
            "These votes come from a function of the data, which has nothing to merge but parts of one run; train once."
        )
    if first.counts.shape != second.counts.shape or first.data_fingerprint != second.data_fingerprint:
        raise ConfigError("These votes are about different data or inputs; merge only runs on the same ones.")
    if any(first.planned[run] != second.planned[run] for run in first.planned.keys() & second.planned.keys()):
        raise ConfigError("These votes contradict each other about the size of a run; the files are damaged.")
    if not _same(first.labels, second.labels):
        raise ConfigError(
            "These votes carry different true labels, or one of them none; run the mithridate train of each again with "
            "the right labels, which trains nothing anew."
        )


def _nameless(votes: Votes) -> bool:
    """Whether votes hold instances of which nobody can say whether they are elsewhere too."""
    return not votes.run_ids or _UNNAMED in votes.assumptions


def _check_apart(first: Votes, second: Votes) -> None:
    """Require that no instance of a run is in both."""
    if (first.shards or second.shards) and (_nameless(first) or _nameless(second)):
        raise ConfigError(
            "Parts of a run merge only with votes that name their runs, which some of these do not: instances could "
            "count twice. Merge them with whole runs only."
        )
    for run in sorted(set(first.run_ids) & set(second.run_ids)):
        twice = _overlap(sorted(first.shards.get(run, _WHOLE) + second.shards.get(run, _WHOLE)))
        if twice is not None:
            which = "all its instances" if twice in _WHOLE else _instances(*twice)
            raise ConfigError(
                f"These votes share a run, {_short(run)}: {which} would count twice. "
                "Merge each part once, and none beside the whole run."
            )


def _merged_shards(first: Votes, second: Votes) -> dict[str, Parts]:
    runs = {*first.shards, *second.shards}
    return {run: _joined(sorted(first.shards.get(run, ()) + second.shards.get(run, ()))) for run in runs}


def _merged_recipe(first: Votes, second: Votes) -> dict[str, Any] | None:
    """The recipe of both; they may differ in the number of instances only, which becomes that of all that voted."""
    one, two = _checked_recipe(first.recipe), _checked_recipe(second.recipe)
    counted = 0
    for recipe in (one, two):
        if recipe is not None and isinstance(recipe.get("config"), dict) and "instances" in recipe["config"]:
            del recipe["config"]["instances"]
            counted += 1
    if one != two:
        raise ConfigError("These votes were trained by different recipes; merge only runs of the same one.")
    if one is not None and counted == 2:
        one["config"]["instances"] = first.instances + second.instances
    return one


def _merged_evidence(first: Votes, second: Votes) -> dict[str, npt.NDArray[Any]]:
    """What parts of one run say beside counts: the votes of models side by side in their order, preferences added up.

    Evidence that only one of them has is dropped, as other arrays are; a rule that needs it will ask for it.
    """
    merged: dict[str, npt.NDArray[Any]] = {}
    both = first.evidence.keys() & second.evidence.keys()
    if "predictions" in both:
        merged["predictions"] = _side_by_side(first, second)
    if "preferences" in both:
        one, two = (votes.evidence["preferences"].astype(np.int64) for votes in (first, second))
        if one.shape != two.shape:
            raise ConfigError("These votes carry the evidence 'preferences' in different shapes; train them again.")
        merged["preferences"] = one + two
    return merged


def _side_by_side(first: Votes, second: Votes) -> npt.NDArray[Any]:
    tables, numbers = list[npt.NDArray[Any]](), list[IntArray]()
    for votes in (first, second):
        table = votes.evidence["predictions"]
        if table.shape != (votes.examples, votes.instances):
            raise ConfigError("The evidence 'predictions' does not hold a vote of each model; train them again.")
        tables.append(table)
        numbers += [np.arange(*pair) for pairs in votes.shards.values() for pair in pairs]
    return np.concatenate(tables, axis=1)[:, np.argsort(np.concatenate(numbers))]


def _sum(first: npt.NDArray[Any] | None, second: npt.NDArray[Any] | None) -> npt.NDArray[Any] | None:
    if first is None or second is None or first.shape != second.shape:  # histograms may have other bins
        return None
    # A sum is no more precise than its parts: single and double precision give single.
    return (first + second).astype(min(first.dtype, second.dtype, key=lambda dtype: dtype.itemsize))
