"""The directory of a run: what was run, the private seed, and the votes of every group of instances that is done.

    run.json                     what is trained, on which data, in which groups of instances; nothing secret
    seed                         the root seed, readable by its owner only; it is in no other file that stays
    shards/000000-000250.npz     votes of the instances 0 to 249, and what kind of device trained them
    models/000000-000250.safetensors   their weights, where they are kept; written before their votes
    votes.npz                    the votes of all instances, when all are done
    lock                         held by the process that works here, or together by all that train shards of their own;
                                 see `shared_run` for those, and for the files that they leave

Every file appears under its name only when all of it is on the disk, so whatever kills the process leaves a directory
from which the same command goes on. Which instances form a group is decided beforehand and written down: sums of
floating-point numbers depend on their order, and so the votes of an interrupted run are those of an uninterrupted one
bit for bit.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import logging
import os
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import numpy.typing as npt

from mithridate import _validate
from mithridate._io.artifacts import read_npz, write_npz
from mithridate._io.files import PathLike, check_is_file, parse_json, read_file, sync_folder, write_atomically
from mithridate.core.conditions import Size, distinct, from_plain, to_plain
from mithridate.core.provenance import TrainingData
from mithridate.core.units import Unit
from mithridate.core.votes import Votes
from mithridate.errors import ArtifactError, ConfigError, MithridateError, NumericalError
from mithridate.training.randomness import SEED_BYTES, Seeds, derived, new_root_seed

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# How some instances voted, by name: sums over instances, and what each of them said only where that is asked for.
#   counts             votes, examples x classes
#   score_sums         sums of softmax scores, examples x classes, float64; score_squares: of their squares
#   score_histograms   scores counted in equal bins of [0, 1], examples x classes x bins; the last bin includes 1
#   predictions        the label that each instance votes for, examples x instances
#   rankings           all labels from the one that an instance scores highest, examples x instances x classes
#   preferences        examples x classes x classes; [x, a, b] instances score a above b on x, of equals the smaller
TallyArrays = dict[str, npt.NDArray[Any]]

_log = logging.getLogger(__name__)

SCHEMA = "mithridate.run/1"
EVIDENCE = ("predictions", "rankings", "preferences")
# What each instance said by itself, which is not summed.
_OF_EACH = ("predictions", "rankings")
TALLY = ("counts", "score_sums", "score_squares", "score_histograms", *EVIDENCE)
# Values that are longer are not repeated in an error.
_LONG = 80
_WORDS = {"source": "declaration of the data"}
_TRAIN_AGAIN = "Run the same mithridate train command again, which writes what is missing."
OWN_SEEDS = "seeds"
# What a recipe says of the method; methods that train alike can share a run.
_OF_METHOD = ("defence", "rule")
_PROPOSED = ".seed."
_RESUME = "What was computed is kept: once this is solved, the same command goes on from there."


@dataclass(frozen=True)
class Manifest:
    """What `run.json` says.

    Attributes:
        run_id: public name of the run; see `run_id_of`.
        recipe: how instances are trained; see `Votes.recipe`.
        data_fingerprint: see `Votes`.
        training: which data is trained on.
        inputs: shape and kind of one raw input, for later predictions.
        assumptions: what the training takes for granted.
        keep_models: whether the weights of every instance are kept.
        device: type of the device that it was started on.
        versions: of the libraries that it was started with.
        in_flight: number of instances that are trained at once.
        in_flight_asked: what the user asked for, None if it was chosen from memory.
        ranges: the groups of instances, in order; together they are all instances, each once.
        size: see `Votes`.
        unit: likewise.
    """

    run_id: str
    recipe: dict[str, Any]
    data_fingerprint: str
    training: TrainingData
    inputs: dict[str, Any]
    assumptions: tuple[str, ...]
    keep_models: bool
    device: str
    versions: dict[str, str]
    in_flight: int
    in_flight_asked: int | None
    ranges: tuple[range, ...]
    size: Size | None = None
    unit: Unit | None = None

    @property
    def instances(self) -> int:
        """Number of instances of the run."""
        return self.recipe["config"]["instances"]

    def to_json(self) -> bytes:
        """The content of `run.json`."""
        ranges = [[group.start, group.stop] for group in self.ranges]
        size = None if self.size is None else self.size.to_dict()
        values = {**self.__dict__, "ranges": ranges, "assumptions": to_plain(self.assumptions), "size": size}
        values["training"] = self.training.to_dict()
        values["unit"] = None if self.unit is None else self.unit.to_dict()
        return (json.dumps({"schema": SCHEMA, **values}, indent=1) + "\n").encode()

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read `run.json`.

        Raises:
            ArtifactError: it is missing, damaged, or of another version.
        """
        try:
            content = read_file(path)
        except ArtifactError as error:
            raise ArtifactError(f"{error} Give the directory of a run.") from error
        try:
            values = parse_json(content)
            schema = values.pop("schema")
            if schema == SCHEMA:
                _check_kinds(values)
                values["ranges"] = tuple(range(*pair) for pair in values["ranges"])
                values["assumptions"] = from_plain(values["assumptions"])
                values["size"] = None if values.get("size") is None else Size(**values["size"])
                values["training"] = TrainingData(**values["training"])
                values["unit"] = None if values.get("unit") is None else Unit(**values["unit"])
                manifest = cls(**values)
                check_tiling(manifest.ranges, manifest.instances)
                return manifest
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArtifactError(
                f"{path} is damaged ({error!s:.200}); this run cannot go on. Use another run_dir."
            ) from error
        raise ArtifactError(f"{path} has the schema {schema!r:.80}, this version reads {SCHEMA!r}; update mithridate.")


_TEXTS = ("run_id", "data_fingerprint", "device")
_TABLES = ("recipe", "training", "inputs", "versions")


def _check_kinds(values: Mapping[str, Any]) -> None:
    """Require values of the kinds that a `Manifest` has: what a file holds can be anything.

    Raises:
        ValueError: one is of another kind.
    """
    kinds = [(str, _TEXTS), (dict, _TABLES), (bool, ("keep_models",)), (list, ("ranges",))]
    wrong = [name for kind, names in kinds for name in names if not isinstance(values[name], kind)]
    if wrong:
        raise ValueError(f"{wrong[0]} is of the wrong kind")
    _validate.positive_integer(in_flight=values["in_flight"], instances=values["recipe"]["config"]["instances"])
    if values["in_flight_asked"] is not None:
        _validate.positive_integer(in_flight_asked=values["in_flight_asked"])
    for pair in values["ranges"]:
        if len(pair) != 2 or not all(type(edge) is int for edge in pair):
            raise ValueError("a group of instances is no pair of numbers")


def plan_ranges(first: int, stop: int, in_flight: int) -> tuple[range, ...]:
    """Instances from `first` to `stop` in as few groups of at most `in_flight` as possible, of nearly equal size.

    The smaller groups come first: what a device keeps from group to group is made anew where their size changes.

    >>> plan_ranges(0, 10, 4)
    (range(0, 3), range(3, 6), range(6, 10))
    """
    groups = -(-(stop - first) // in_flight)
    size, larger = divmod(stop - first, max(groups, 1))
    edges = [first + number * size + max(0, number - groups + larger) for number in range(groups + 1)]
    return tuple(range(low, high) for low, high in itertools.pairwise(edges))


def check_tiling(ranges: Sequence[range], instances: int) -> None:
    """Require groups that hold every instance exactly once, in order.

    Raises:
        ArtifactError: an instance would be missing or counted twice.
    """
    edge = 0
    for group in ranges:
        if group.start != edge or group.stop <= group.start or group.step != 1:
            raise ArtifactError(f"the instances {group.start} to {group.stop} do not follow {edge}")
        edge = group.stop
    if edge != instances:
        raise ArtifactError(f"the groups hold {edge} instances instead of {instances}")


def replanned(ranges: Sequence[range], done: Sequence[range], in_flight: int) -> tuple[range, ...]:
    """New groups for all that is not done, with another number in flight; what is done stays as it is."""
    finished, result, first = set(done), list[range](), 0
    for group in ranges:
        if group in finished:
            if group.start > first:
                result.extend(plan_ranges(first, group.start, in_flight))
            result.append(group)
            first = group.stop
    if ranges[-1].stop > first:
        result.extend(plan_ranges(first, ranges[-1].stop, in_flight))
    return tuple(result)


def check_in_flight(path: Path, plan: Manifest, asked: int | None) -> None:
    """Refuse a number in flight that would change the groups of a run.

    Raises:
        ConfigError: it is another one.
    """
    if asked not in (None, plan.in_flight_asked, plan.in_flight):
        raise ConfigError(
            f"The shards of {path} are planned with {plan.in_flight} models in flight, not {asked}; leave in_flight "
            "(--in-flight) out, or use another run_dir."
        )


def check_root_seed(root_seed: Any) -> bytes:
    """A root seed that a caller gives, as bytes.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(root_seed, bytes | bytearray) or len(root_seed) != SEED_BYTES:
        # Without the value: a seed belongs into no message.
        raise ConfigError(f"Expected root_seed as {SEED_BYTES} bytes; leave it out to use the system's entropy.")
    return bytes(root_seed)


def run_id_of(root_seed: bytes) -> str:
    """The public name of the run of a seed, 128 bits as hexadecimal digits.

    It is derived from the seed like the seeds of its instances, so whoever lacks the seed learns no more from it than
    from a random number. And two runs of one seed, whose instances are the same, have the same name: their votes never
    merge, and a seed that was moved to another directory is recognised.
    """
    return f"{int.from_bytes(derived(root_seed, bytes(8) + b'run id', 16), 'little'):032x}"


class Run:
    """A run in memory: nothing survives the process."""

    manifest: Manifest

    def __init__(self, wanted: Manifest, root_seed: bytes | None) -> None:
        self._root_seed = root_seed if root_seed is not None else new_root_seed()
        self.manifest = replace(wanted, run_id=run_id_of(self._root_seed))
        self._total: TallyArrays | None = None
        self._done: dict[range, bool] = {}
        self._devices: dict[range, str] = {}

    @property
    def root_seed(self) -> bytes:
        """The private seed of the run."""
        assert self._root_seed is not None
        return self._root_seed

    @property
    def seeds(self) -> Seeds:
        """Those that this process has: of all instances."""
        return Seeds.of(self.root_seed)

    @property
    def groups(self) -> Sequence[range]:
        """Those that this process sees to: all."""
        return self.manifest.ranges

    @property
    def devices(self) -> dict[str, int]:
        """How many of the instances that are done were trained by which kind of device, where that is known."""
        return _instances_by({group: self._devices[group] for group in self.groups if group in self._devices})

    def missing(self) -> list[range]:
        """Groups that are not done, in order."""
        return [group for group in self.groups if not self._done.get(group)]

    def finished_votes(self) -> Votes | None:
        """Never any: a run without a directory starts anew."""
        return None

    def set_in_flight(self, in_flight: int) -> None:
        """Train the rest in groups of at most this size."""
        done = [group for group in self.groups if self._done.get(group)]
        self.manifest = replace(
            self.manifest, in_flight=in_flight, ranges=replanned(self.manifest.ranges, done, in_flight)
        )

    def save_models(self, group: range, weights: Mapping[str, npt.NDArray[np.float32]], device: str) -> None:
        """Refuse: there is no place for them; `train` checks this beforehand."""
        raise ConfigError("keep_models needs a run_dir; give one.")

    def save_tally(self, group: range, tally: TallyArrays, device: str) -> None:
        """Add the votes of one group that a device of this kind trained; groups come in order."""
        check_tally(group, tally)
        self._done[group], self._devices[group] = True, device
        self._total = tally if self._total is None else added(self._total, tally)

    def total(self) -> TallyArrays:
        """The votes of all groups."""
        assert self._total is not None
        return self._total

    def save_votes(self, votes: Votes) -> None:
        """Nothing to do."""


class RunDirectory(Run):
    """A run in a directory, held by this process until it is closed.

    Guarantee: the groups of `manifest.ranges` hold every instance exactly once, and votes enter `total` only from
    whole files of this run, one per group.

    Attributes:
        path: the directory.
        manifest: what `run.json` says.
        root_seed: the private seed.
    """

    def __init__(self, path: Path, manifest: Manifest, root_seed: bytes | None) -> None:
        self.path, self.manifest, self._root_seed = path, manifest, root_seed
        self._done: dict[range, bool] = {}
        self._devices: dict[range, str] = {}

    @classmethod
    @contextlib.contextmanager
    def open(
        cls, path: PathLike, wanted: Manifest, root_seed: bytes | None, *, may_replan: bool = True
    ) -> Iterator[RunDirectory]:
        """Start a run in this directory, or go on with the one that is there.

        Args:
            path: the directory; it is made if it is not there.
            wanted: what is to be run; its groups are used by a new run only, its `run_id` never.
            root_seed: a seed of the caller, None for that of the operating system.
            may_replan: whether another number in flight makes other groups of what is not done.

        Raises:
            ConfigError: the directory belongs to a run of something else, or to one of other groups.
            ArtifactError: it cannot be written to, is damaged, or another process works in it.
        """
        path = Path(path)
        cls._check_place(path)
        with explained():
            cls._make_folders(path, wanted)
            with locked(path):
                _remove_leftovers(path)
                settle_seed(path)
                if (path / "run.json").exists():
                    if not may_replan:
                        check_in_flight(path, Manifest.read(path / "run.json"), wanted.in_flight_asked)
                        wanted = replace(wanted, in_flight_asked=None)
                    yield cls._resumed(path, wanted, root_seed)
                else:
                    yield cls._started(path, wanted, root_seed)

    @staticmethod
    def _make_folders(path: Path, manifest: Manifest) -> None:
        for folder in (path, path / "shards", *([path / "models"] if manifest.keep_models else [])):
            make(folder)

    @staticmethod
    def _check_place(path: Path) -> None:
        """Refuse to start a run where there are results of one, or among shards that were handed out."""
        results = ("shards/*.npz", "parts/*.npz", "models/*.safetensors", "votes.npz")
        folders = [folder for folder in (path, path.parent) if _has(folder, f"*/{OWN_SEEDS}")]
        problem = None
        if is_handed_out(path):
            problem = "has seeds, but no run.json that says of what; copy the whole folder again."
        elif path in folders or (folders and path.name.isdecimal()):
            problem = (
                f"would be a new run among shards that were handed out in {folders[0]}, and none of them. Give the "
                "folder of one of them, or start a new run elsewhere."
            )
        elif any(_has(path, name) for name in results):
            problem = "holds results but no run.json that says of what; use another run_dir."
        if problem is not None and not (path / "run.json").exists():  # last, since another process may be starting
            raise ArtifactError(f"{path} {problem}")

    @classmethod
    def _started(cls, path: Path, wanted: Manifest, root_seed: bytes | None) -> RunDirectory:
        # The seed first: run.json makes the run, and no instance is trained before both are on the disk. A seed that
        # is left here without run.json is replaced.
        seed = root_seed if root_seed is not None else new_root_seed()
        with write_atomically(path / "seed", durable=True, private=True) as file:
            file.write(seed.hex().encode() + b"\n")
        run = cls(path, replace(wanted, run_id=run_id_of(seed)), seed)
        run._write_manifest()
        return run

    @classmethod
    def _resumed(cls, path: Path, wanted: Manifest, root_seed: bytes | None) -> RunDirectory:
        run = cls._found(path, wanted, root_seed)
        # What this call takes for granted is true of the same run: nothing that was ever assumed gets lost.
        assumed = distinct((*run.manifest.assumptions, *wanted.assumptions))
        size = run.manifest.size or wanted.size
        # The same models may be certified by another method: the run is then one of that method.
        recipe = {**run.manifest.recipe, **{name: wanted.recipe[name] for name in _OF_METHOD if name in wanted.recipe}}
        now = replace(run.manifest, assumptions=assumed, size=size, recipe=recipe)
        if now.to_json() != run.manifest.to_json():
            run.manifest = now
            run._write_manifest()
        run._find_done()
        if wanted.in_flight_asked not in (None, run.manifest.in_flight_asked):
            run.set_in_flight(wanted.in_flight, asked=wanted.in_flight_asked)
        return run

    @classmethod
    def _found(cls, path: Path, wanted: Manifest, root_seed: bytes | None) -> Self:
        """The run that is there, which has to be the one that is wanted."""
        manifest = Manifest.read(path / "run.json")
        differences = _differences(manifest, wanted)
        if differences:
            raise ConfigError(
                f"{path} belongs to another run: {'; '.join(differences)}. "
                "Use another run_dir (--run-dir) for this one."
            )
        seed = read_seed(path / "seed")
        if root_seed is not None and run_id_of(root_seed) != manifest.run_id:
            raise ConfigError(f"{path} belongs to a run with another root seed. Use another run_dir for this one.")
        if seed is not None and run_id_of(seed) != manifest.run_id:
            raise ArtifactError(f"{path / 'seed'} is not the seed of this run; put the right file back.")
        cls._make_folders(path, manifest)
        return cls(path, manifest, seed)

    @property
    def root_seed(self) -> bytes:
        """The private seed of the run.

        Raises:
            ArtifactError: its file is gone, so that the run cannot go on.
        """
        if self._root_seed is None:
            raise ArtifactError(
                f"{self.path / 'seed'} is missing; this run cannot go on. Use another run_dir, or split again "
                "what was handed out without its seeds."
            )
        return self._root_seed

    def finished_votes(self) -> Votes | None:
        """The votes of the whole run, if they were written already."""
        path = self.path / "votes.npz"
        if not path.exists():
            return None
        try:
            votes = Votes.load(path)
        except MithridateError:
            return None  # Damaged; the shards still know.
        ours = votes.run_ids == (self.manifest.run_id,) and votes.instances == self.manifest.instances
        return votes if ours and votes.data_fingerprint == self.manifest.data_fingerprint else None

    def set_in_flight(self, in_flight: int, *, asked: int | None = None) -> None:
        """Train the rest in groups of at most this size, and write that down."""
        for group in self.missing():  # Damaged files, under names that no longer mean anything.
            _remove(path_of(self.path, "shards", group))
            _remove(path_of(self.path, "models", group))
        super().set_in_flight(in_flight)
        if asked is not None:
            self.manifest = replace(self.manifest, in_flight_asked=asked)
        self._write_manifest()

    def save_models(self, group: range, weights: Mapping[str, npt.NDArray[np.float32]], device: str) -> None:
        """Write the weights of one group that a device of this kind trained; their votes come after them."""
        from safetensors.numpy import save

        contiguous = {name: np.ascontiguousarray(array) for name, array in weights.items()}
        metadata = {**_metadata(self.manifest, group), "sha256": _digest(contiguous), "device": device}
        with write_atomically(path_of(self.path, "models", group), durable=True) as file:
            file.write(save(contiguous, metadata=metadata))

    def save_tally(self, group: range, tally: TallyArrays, device: str) -> None:
        """Write the votes of one group that a device of this kind trained; it is done from then on."""
        check_tally(group, tally)
        # Whole numbers of 0 or more in as few bytes as they need.
        small: dict[str, Any] = {
            name: array.astype(np.min_scalar_type(int(array.max()))) if name in _WHOLE else array
            for name, array in tally.items()
        }
        header = np.array(json.dumps(_metadata(self.manifest, group)))
        with write_atomically(path_of(self.path, "shards", group), durable=True) as file:
            write_npz(file, {"run": header, "device": np.array(device), **small})
        self._done[group], self._devices[group] = True, device

    def total(self) -> TallyArrays:
        """The votes of its groups, added up in their order."""
        total: TallyArrays | None = None
        for group in self.groups:
            tally = self._read(group)
            total = tally if total is None else added(total, tally)
        assert total is not None
        return total

    def _read(self, group: range) -> TallyArrays:
        """The votes of one group, and note who trained it."""
        tally, device = read_shard(path_of(self.path, "shards", group), self.manifest, group)
        if device is not None:
            self._devices[group] = device
        return tally

    def save_votes(self, votes: Votes) -> None:
        """Write the votes of the whole run."""
        votes.save(self.path / "votes.npz")

    def _find_done(self) -> None:
        """Which groups are done: their votes can be read, and their models are there if they are kept."""
        self._check_names()
        for group in self.groups:
            self._done[group] = self._is_done(group)

    def _check_names(self) -> None:
        expected = {path_of(self.path, "shards", group).name for group in self.manifest.ranges}
        for path in sorted((self.path / "shards").glob("*.npz")):
            if path.name not in expected:
                raise ArtifactError(
                    f"{path} belongs to no group of this run: its instances would count twice. Move it elsewhere."
                )

    def _is_done(self, group: range) -> bool:
        problem = self._problem(group)
        if problem is not None and path_of(self.path, "shards", group).exists():
            _log.warning("%s The instances are trained again, with the same draws.", problem)
        return problem is None

    def _problem(self, group: range) -> ArtifactError | None:
        """Why a group is not done."""
        try:
            self._read(group)
            if self.manifest.keep_models:  # whole as far as its length tells
                with _opened_models(path_of(self.path, "models", group), self.manifest, group):
                    pass
        except ArtifactError as error:
            return error
        return None

    def _write_manifest(self) -> None:
        with write_atomically(self.path / "run.json", durable=True) as file:
            file.write(self.manifest.to_json())


_WHOLE = ("counts", "score_histograms", *EVIDENCE)


def _has(folder: Path, pattern: str) -> bool:
    """Whether there are such files, as far as can be seen."""
    try:
        return any(folder.glob(pattern))
    except OSError:
        return False


def is_handed_out(run_dir: PathLike) -> bool:
    """Whether a directory has the seeds of some shards only; see `shared_run`."""
    return os.path.exists(Path(run_dir) / OWN_SEEDS)


def path_of(run_dir: Path, folder: str, group: range) -> Path:
    """Where something of these instances is kept: their votes in `shards` or `parts`, their weights in `models`."""
    suffix = "safetensors" if folder == "models" else "npz"
    return run_dir / folder / f"{group.start:06d}-{group.stop:06d}.{suffix}"


def missing_shards(run_dir: Path, manifest: Manifest) -> list[int]:
    """The numbers of the shards that have no file; whether the others are whole is found out when they are read."""
    there = {path.name for path in (run_dir / "shards").glob("*.npz")}
    groups = enumerate(manifest.ranges)
    return [number for number, group in groups if path_of(run_dir, "shards", group).name not in there]


def recorded(run_dir: Path) -> tuple[Manifest, TallyArrays]:
    """What `run.json` says, and the votes of all shards, added up; nothing is written and no lock is needed.

    Raises:
        ArtifactError: a file is missing or damaged.
    """
    manifest = Manifest.read(run_dir / "run.json")
    return manifest, RunDirectory(run_dir, manifest, None).total()


def devices_of(run_dir: Path, manifest: Manifest) -> dict[str, int]:
    """How many instances of kept models were trained by which kind of device, as far as their files tell.

    Raises:
        ArtifactError: models are missing or damaged.
    """
    found: dict[range, str] = {}
    for group in manifest.ranges:
        with _opened_models(path_of(run_dir, "models", group), manifest, group) as file:
            if "device" in (metadata := file.metadata()):
                found[group] = metadata["device"]
    return _instances_by(found)


def check_tally(group: range, tally: TallyArrays) -> None:
    """Require that every instance of a group votes exactly once on every example.

    Raises:
        NumericalError: votes are missing, or scores are not finite.
    """
    counts = tally["counts"]
    complete = bool((counts.sum(axis=1) == len(group)).all()) and bool((counts >= 0).all())
    finite = all(np.isfinite(tally[name]).all() for name in ("score_sums", "score_squares"))
    said = all(tally[name].shape[:2] == (len(counts), len(group)) for name in _OF_EACH if name in tally)
    if not (complete and finite and said):
        raise NumericalError(f"The votes of the instances {group.start} to {group.stop - 1} are incomplete.")


def added(first: TallyArrays, second: TallyArrays) -> TallyArrays:
    """The sum of two tallies; what each instance said stands side by side."""
    return {
        name: np.concatenate([first[name], second[name]], axis=1) if name in _OF_EACH else first[name] + second[name]
        for name in first
    }


def read_models(path: Path, manifest: Manifest, group: range) -> dict[str, npt.NDArray[np.float32]]:
    """The weights of one group, by parameter, models first.

    Raises:
        ArtifactError: they are missing, damaged, or of another run or group.
    """
    with _opened_models(path, manifest, group) as file:
        weights = {name: file.get_tensor(name) for name in file.keys()}
        if file.metadata()["sha256"] != _digest(weights):
            raise ArtifactError(f"The models in {path} were changed after they were written. {_TRAIN_AGAIN}")
    return weights


@contextlib.contextmanager
def _opened_models(path: Path, manifest: Manifest, group: range) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        check_is_file(path)
    except ArtifactError as error:
        raise ArtifactError(f"The models in {path} are missing or damaged ({error}) {_TRAIN_AGAIN}") from error
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            ours = _metadata(manifest, group)
            if "sha256" not in metadata or {name: metadata.get(name) for name in ours} != ours:
                raise ArtifactError(f"The models in {path} are of another run than {manifest.run_id}. {_TRAIN_AGAIN}")
            yield file
    except (OSError, SafetensorError) as error:
        raise ArtifactError(f"The models in {path} are missing or damaged ({error}). {_TRAIN_AGAIN}") from error


def _digest(weights: Mapping[str, npt.NDArray[np.float32]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(f"{name} {weights[name].shape}".encode())
        digest.update(weights[name].tobytes())
    return digest.hexdigest()


def _metadata(manifest: Manifest, group: range) -> dict[str, str]:
    """What binds a file to its run; by which rule models are certified does not matter for them."""
    return {
        "run_id": manifest.run_id,
        "recipe": hashlib.sha256(json.dumps(_how_trained(manifest.recipe), sort_keys=True).encode()).hexdigest(),
        "first": str(group.start),
        "stop": str(group.stop),
    }


def read_shard(path: Path, manifest: Manifest, group: range) -> tuple[TallyArrays, str | None]:
    """The votes of one group, and the kind of device that trained it, where that is known; zip checks every byte.

    Raises:
        ArtifactError: the file is missing, damaged, or of another run or group.
    """
    arrays = read_npz(path, "votes of instances")
    if unknown := sorted(set(arrays) - {"run", "device", *TALLY}):
        raise ArtifactError(f"{path} is damaged: it holds {unknown[0]!r:.80}, which no shard does.")
    try:
        header = parse_json(str(arrays.pop("run")))
        if header != _metadata(manifest, group):
            raise ArtifactError(f"{path} is of another run than {manifest.run_id}.")
        # In types in which sums are exact; what is not summed stays small.
        kinds = {name: np.int64 if arrays[name].dtype.kind in "iu" else np.float64 for name in TALLY if name in arrays}
        tally = {name: arrays[name].astype(np.uint16 if name in _OF_EACH else k) for name, k in kinds.items()}
        check_tally(group, tally)
    except (KeyError, ValueError, TypeError, IndexError, NumericalError) as error:
        if isinstance(error, ArtifactError):
            raise
        raise ArtifactError(f"{path} is damaged: {error}.") from error
    return tally, str(arrays["device"]) if "device" in arrays else None


def _instances_by(devices: Mapping[range, str]) -> dict[str, int]:
    """How many instances each kind of device trained."""
    instances: Counter[str] = Counter()
    for group, device in devices.items():
        instances[device] += len(group)
    return dict(sorted(instances.items()))


def _differences(stored: Manifest, wanted: Manifest) -> list[str]:
    """What of a run is not what it should be, in words."""
    old, new = _named(stored), _named(wanted)
    changed = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    found = [_difference(name, repr(old.get(name)), repr(new.get(name))) for name in changed]
    if stored.training != wanted.training:
        found.append("its training data are different")
    elif not found and stored.data_fingerprint != wanted.data_fingerprint:
        found.append("its test inputs are different")
    if wanted.keep_models and not stored.keep_models:
        found.append("it does not keep models")
    return found


def _difference(name: str, old: str, new: str) -> str:
    if max(len(old), len(new)) > _LONG:
        return f"its {_WORDS.get(name, name)} is different"
    return f"its {name} is {old}, not {new}"


def _how_trained(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe without what is said of the method that certifies."""
    return {name: value for name, value in recipe.items() if name not in _OF_METHOD}


def _named(manifest: Manifest) -> dict[str, Any]:
    others = {name: value for name, value in _how_trained(manifest.recipe).items() if name != "config"}
    return {**manifest.recipe["config"], **others}


def read_seed(path: Path) -> bytes | None:
    """The root seed of a run, None if it is not there.

    Raises:
        ArtifactError: it cannot be read, or is damaged.
    """
    if not os.path.lexists(path):
        return None  # A finished run does not need it.
    content = read_file(path)
    try:
        seed = bytes.fromhex(content.decode("ascii").strip())
        if len(seed) != SEED_BYTES:
            raise ValueError
    except ValueError:
        raise ArtifactError(f"{path} is damaged; this run cannot go on. Use another run_dir.") from None
    return seed


# --- a seed that several processes agree on -------------------------------------------------------------------------
#
# Each of them leaves its own seed beside the run, under the name of the run that would follow from it. Then one of them
# makes run.json, which names its run: whoever comes next gives that seed its name, and removes the others.


def propose_seed(path: Path, seed: bytes) -> Path:
    """Leave a seed that becomes that of the run if `run.json` names its run; where it is.

    Raises:
        ArtifactError: it cannot be written.
    """
    proposed = path / f"{_PROPOSED}{run_id_of(seed)}.{secrets.token_hex(8)}"
    try:
        with os.fdopen(os.open(proposed, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(seed.hex().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ArtifactError(f"Cannot write {proposed}: {error.strerror}. Choose another run_dir.") from error
    sync_folder(path)
    return proposed


def settle_seed(path: Path) -> None:
    """Give the seed of the run its name, and remove those that were proposed beside it.

    If there is no run yet, all go: only a process that has the directory for itself may settle it then.
    """
    proposed = list(path.glob(f"{_PROPOSED}*"))
    if not proposed:
        return
    if (path / "run.json").exists():
        run_id = Manifest.read(path / "run.json").run_id
        ours = [file for file in proposed if file.name.startswith(f"{_PROPOSED}{run_id}.")]
        for file in ours:
            if _is_seed_of(file, run_id):
                with contextlib.suppress(OSError):  # another process has done it
                    os.replace(file, path / "seed")
        sync_folder(path)
        if not _is_seed_of(path / "seed", run_id):  # of another user, perhaps: nothing that may be needed goes
            proposed = [file for file in proposed if file not in ours]
    for file in proposed:
        with contextlib.suppress(OSError):
            file.unlink()


def _is_seed_of(path: Path, run_id: str) -> bool:
    try:
        seed = read_seed(path)
    except ArtifactError:  # not all of it was written, or it is not ours to read
        return False
    return seed is not None and run_id_of(seed) == run_id


# --- files ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Errors of writing, with what becomes of the run."""
    try:
        yield
    except ArtifactError as error:
        if not str(error).startswith("Cannot write"):
            raise
        raise ArtifactError(f"{error} {_RESUME}") from error


def make(folder: Path) -> None:
    """Make a folder of a run, unless it is there.

    Raises:
        ArtifactError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ArtifactError(f"{folder} is a file; choose another run_dir.") from None
    except OSError as error:
        raise ArtifactError(f"Cannot write {folder}: {error.strerror}. Choose another run_dir.") from error


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def _remove_leftovers(path: Path) -> None:
    """Unfinished files of a process that was killed while it wrote them; nobody else may be writing now."""
    for folder in (path, path / "shards", path / "models", path / "parts"):
        for leftover in folder.glob(".*.tmp"):
            _remove(leftover)


@contextlib.contextmanager
def locked(path: Path, *, together: bool = False) -> Iterator[None]:
    """Keep every other process out, or all but those that work together; the lock ends with this process anyhow."""
    try:
        descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise ArtifactError(f"Cannot write {path / 'lock'}: {error.strerror}. Choose another run_dir.") from error
    with os.fdopen(descriptor, "r+b") as file:
        if not _lock(file, together=together):
            raise ArtifactError(f"Another process works in {path}; wait until it ends, or choose another run_dir.")
        if not _is_still(path / "lock", file):
            raise ArtifactError(f"The run in {path} was replaced just now; run the same command again.")
        yield


def _is_still(path: Path, file: IO[bytes]) -> bool:
    """Whether this is the file of that name: a whole directory may have been put into the place of another."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    return False


def _lock(file: IO[bytes], *, together: bool) -> bool:
    """Whether the file is ours now, alone or together. A file system without locks trusts its user."""
    if fcntl is None:
        return together or _lock_bytes(file)
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if together else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


def _lock_bytes(file: IO[bytes]) -> bool:
    """The same by the means of Windows."""
    import msvcrt

    try:
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # pyright: ignore[reportAttributeAccessIssue]
    except OSError:
        return False
    return True
