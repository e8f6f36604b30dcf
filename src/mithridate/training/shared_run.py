"""Some shards of a run: array tasks that share its directory, or that each have a copy of it.

In a directory that several processes share, there are two files more than `run_directory` names:

    claims                       byte N is locked by whoever trains shard N
    parts/000000-000500.npz      the votes of the instances 0 to 499, which one task was asked for

and a directory that was handed out by `split` has the seeds of its own instances in place of the root seed:

    seeds                        an instance and its seed in each line, readable by its owner only

Nothing that is counted rests on locks, which some file systems of clusters lack. The run is made by `run.json`, which
only one process can create (a hard link: `write_once`) and which says whose seed it is (`settle_seed`). Whoever comes
later reads it: so all agree on seed, name and groups, which nobody changes while shards are trained one by one. The
votes of a shard are one file under one name, which appears as a whole (a rename); if two processes did train the same
shard, one file is there in the end. Locks only keep them from doing so, and keep a process that wants the whole
directory for itself out until the tasks are done. (Where locks fail, two kinds of devices train one shard, and weights
are kept, the weights may be those of the one and the votes those of the other; each is a draw of the mechanism.)
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from mithridate._io.files import TEXT_BYTES, PathLike, read_file, write_atomically, write_once
from mithridate.core.units import words_of
from mithridate.core.votes import Votes
from mithridate.errors import ArtifactError, ConfigError
from mithridate.training.config import recipe_from_dict
from mithridate.training.randomness import Seeds, new_root_seed
from mithridate.training.run_directory import (
    OWN_SEEDS,
    Manifest,
    RunDirectory,
    TallyArrays,
    check_in_flight,
    explained,
    locked,
    make,
    missing_shards,
    path_of,
    propose_seed,
    read_seed,
    run_id_of,
    settle_seed,
)

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_RUN = "run "
_SHARDS = re.compile(r"[0-9]{1,15}|[0-9]{0,15}:[0-9]{0,15}")


# --- which shards ---------------------------------------------------------------------------------------------------


def check_shards(shards: Any) -> slice:
    """Shards that a caller asks for: a number, a range, or a slice.

    Raises:
        ConfigError: it is something else, or has steps or negative numbers.

    >>> check_shards(5), check_shards(range(3))
    (slice(5, 6, None), slice(0, 3, None))
    """
    if isinstance(shards, int) and not isinstance(shards, bool):
        shards = slice(shards, shards + 1)
    if isinstance(shards, range | slice) and shards.step in (None, 1):
        ends = (shards.start, shards.stop)
        if all(end is None or (isinstance(end, int) and end >= 0) for end in ends):
            return slice(*ends)
    raise ConfigError(f"Expected shards as a number, a range or a slice without steps from 0 on, got {shards!r}.")


def parse_shards(text: str) -> slice:
    """Shards as they are written on the command line.

    Raises:
        ConfigError: it is something else.

    >>> parse_shards("0:100"), parse_shards("100:"), parse_shards("7")
    (slice(0, 100, None), slice(100, None, None), slice(7, 8, None))
    """
    if not _SHARDS.fullmatch(text):
        raise ConfigError(f"Expected shards as A:B (from A up to before B), A:, :B or one number, got {text!r}.")
    first, colon, stop = text.partition(":")
    if not colon:
        return check_shards(int(text))
    return slice(int(first) if first else None, int(stop) if stop else None)


def selected(shards: slice, count: int) -> range:
    """The numbers of shards that are asked for, of so many.

    Raises:
        ConfigError: there are no such shards.
    """
    first, stop = shards.start or 0, count if shards.stop is None else shards.stop
    if not first < stop <= count:
        raise ConfigError(
            f"There are no shards {first}:{stop} in this run: it has {count}, so choose within 0:{count} (from 0 up to "
            f"before {count})."
        )
    return range(first, stop)


def in_words(numbers: Sequence[int]) -> str:
    """Numbers of shards, in order.

    >>> in_words([0, 1, 2, 7])
    '0 to 2, 7'
    """
    words = (str(run.start) if len(run) == 1 else f"{run.start} to {run.stop - 1}" for run in stretches(numbers))
    return ", ".join(words)


def stretches(numbers: Sequence[int]) -> list[range]:
    """Numbers in order as ranges without gaps.

    >>> stretches([0, 1, 2, 7])
    [range(0, 3), range(7, 8)]
    """
    result: list[range] = []
    for number in numbers:
        if result and result[-1].stop == number:
            result[-1] = range(result[-1].start, number + 1)
        else:
            result.append(range(number, number + 1))
    return result


# --- the run --------------------------------------------------------------------------------------------------------


class SharedRun(RunDirectory):
    """Some shards of a run, in a directory in which others may train other shards at the same time.

    Guarantee: every process that works here has the same run: the same name, seed and groups. A shard counts once,
    whoever trained it and how often. Nothing is trained again that is done.

    Attributes:
        numbers: of the shards that this process sees to.
    """

    def __init__(self, path: Path, manifest: Manifest, root_seed: bytes | None) -> None:
        super().__init__(path, manifest, root_seed)
        self.numbers = range(len(manifest.ranges))
        self._own_seeds = _read_own_seeds(path / OWN_SEEDS, manifest) if root_seed is None else None
        self._busy: set[range] = set()

    @classmethod
    @contextlib.contextmanager
    def join(
        cls, path: PathLike, wanted: Manifest, root_seed: bytes | None, shards: slice | None
    ) -> Iterator[SharedRun]:
        """Work on some shards of the run of this directory, which is started if it is not there.

        Args:
            path: the directory.
            wanted: what is to be run; see `RunDirectory.open`.
            root_seed: a seed of the caller, None for that of the operating system.
            shards: which ones; None for those whose seeds are here, in a directory that was handed out.

        Raises:
            ConfigError: the directory belongs to a run of something else, or has no such shards.
            ArtifactError: it cannot be written to, is damaged, or a process works on the whole run.
        """
        path = Path(path)
        cls._check_place(path)
        if not os.path.exists(path / "run.json"):
            selected(shards or slice(None), len(wanted.ranges))  # before anything is written
        with explained():
            cls._make_folders(path, wanted)
            with locked(path, together=True):
                if not (path / "run.json").exists():
                    cls._create(path, wanted, root_seed)
                settle_seed(path)
                run = cls._found(path, wanted, root_seed)
                run._check_plan(wanted)
                run.numbers = run._selected(shards)
                with _claimed(path, run.numbers) as busy:
                    run._busy = {run.manifest.ranges[number] for number in busy}
                    run._find_done()
                    yield run

    @staticmethod
    def _make_folders(path: Path, manifest: Manifest) -> None:
        RunDirectory._make_folders(path, manifest)
        make(path / "parts")

    @classmethod
    def _create(cls, path: Path, wanted: Manifest, root_seed: bytes | None) -> None:
        """Start the run, unless another process is faster: `run.json` decides, and only one can be made.

        A file `seed` without `run.json` is never taken over, only replaced: it may have been used.
        """
        seed = root_seed if root_seed is not None else new_root_seed()
        proposed = propose_seed(path, seed)
        try:
            write_once(path / "run.json", replace(wanted, run_id=run_id_of(seed)).to_json())
        except BaseException:
            if not (path / "run.json").exists():
                proposed.unlink(missing_ok=True)
            raise

    def _check_plan(self, wanted: Manifest) -> None:
        """Refuse what would change a run that others work on."""
        check_in_flight(self.path, self.manifest, wanted.in_flight_asked)
        sentences = wanted.assumptions
        if wanted.size is not None and self.manifest.size is None:
            said = wanted.size.sentence_of(words_of(wanted.unit))
            sentences = (*sentences, said)
        for sentence in sentences:
            if sentence not in self.manifest.assumptions:
                raise ConfigError(
                    f"This task takes something for granted that the run in {self.path} does not: {sentence} "
                    "Give all tasks the same options; what is true of all of them, --prepare adds to the run, and "
                    "what was handed out has to be split again after that."
                )

    def _selected(self, shards: slice | None) -> range:
        """The shards that are asked for, of which the seeds must be here."""
        count, seeds = len(self.manifest.ranges), self._own_seeds
        if seeds is None:
            return selected(shards or slice(None), count)
        own = [number for number, group in enumerate(self.manifest.ranges) if seeds.instances.issuperset(group)]
        runs = stretches(own)
        if len(runs) != 1:
            raise ArtifactError(f"{self.path / OWN_SEEDS} has no seeds of whole shards in a row; hand them out again.")
        if shards is None:
            return runs[0]
        numbers = selected(shards, count)
        if not set(numbers) <= set(own):
            raise ConfigError(
                f"{self.path} was handed out with the seeds of the shards {in_words(own)} only; choose among them, or "
                "leave shards out."
            )
        return numbers

    @property
    def seeds(self) -> Seeds:
        """Those that this process has: of all instances, or of those that were handed out."""
        return super().seeds if self._own_seeds is None else self._own_seeds

    @property
    def groups(self) -> Sequence[range]:
        """Those that this process sees to."""
        return self.manifest.ranges[self.numbers.start : self.numbers.stop]

    @property
    def instances(self) -> range:
        """Those of its groups."""
        return range(self.groups[0].start, self.groups[-1].stop)

    def finished_votes(self) -> Votes | None:
        """Never any: the shards that are done are read again, which costs little."""
        return None

    def missing(self) -> list[range]:
        """Groups that are neither done nor in the hands of another process, in order."""
        return [group for group in super().missing() if group not in self._busy]

    def set_in_flight(self, in_flight: int, *, asked: int | None = None) -> None:
        """Refuse: all tasks rely on the groups that there are.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"A shard of {self.manifest.in_flight} models does not fit into the memory of this machine, and the other "
            "tasks of this run rely on its size. Train these shards on a machine with more memory, or start again in "
            f"another run_dir with fewer models in flight (--in-flight {in_flight}). What is finished is kept."
        )

    def save_models(self, group: range, weights: Mapping[str, npt.NDArray[np.float32]], device: str) -> None:
        """Write the weights of one group, unless another process was faster."""
        if self._problem(group) is not None:
            super().save_models(group, weights, device)

    def save_tally(self, group: range, tally: TallyArrays, device: str) -> None:
        """Write the votes of one group, unless another process was faster: its file stays."""
        if self._problem(group) is not None:
            super().save_tally(group, tally, device)
        self._done[group] = True

    def total(self) -> TallyArrays:
        """The votes of its groups, added up in their order.

        Raises:
            ArtifactError: another process is still at work on some of them.
        """
        for group in self._busy:
            self._done[group] = self._problem(group) is None
        late = [number for number in self.numbers if not self._done[self.manifest.ranges[number]]]
        if late:
            raise ArtifactError(
                f"Another process trains shards that this one was asked for ({in_words(late)}). The others are done "
                "and kept; run the same command again when that process has ended."
            )
        return super().total()

    def save_votes(self, votes: Votes) -> None:
        """Write the votes of its groups."""
        votes.save(path_of(self.path, "parts", self.instances))

    def whole(self) -> RunDirectory | None:
        """The whole run, if all its shards are there and can be read."""
        if missing_shards(self.path, self.manifest):
            return None
        run = RunDirectory(self.path, self.manifest, self._root_seed)
        run._find_done()
        return None if run.missing() else run


@contextlib.contextmanager
def _claimed(path: Path, numbers: range) -> Iterator[list[int]]:
    """Keep other processes from training these shards; which of them another one has already."""
    try:
        descriptor = os.open(path / "claims", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise ArtifactError(f"Cannot write {path / 'claims'}: {error.strerror}. Choose another run_dir.") from error
    with os.fdopen(descriptor, "r+b") as file:
        yield [number for number in numbers if not _claim(file, number)]


def _claim(file: IO[bytes], number: int) -> bool:
    """Whether this shard is no other process's to train. A file system without locks trusts its user."""
    if fcntl is None:
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


# --- handing out ----------------------------------------------------------------------------------------------------


def hand_out(run_dir: Path, shards: range, target: Path) -> None:
    """Make a directory in which these shards of a run can be trained, and no others: it lacks their seeds.

    Raises:
        ArtifactError: there is no run, or its seed is gone; or the directory exists.
        ConfigError: its models answer the same noisy inputs, whose seed nobody gets who trains some of them.
    """
    manifest = Manifest.read(run_dir / "run.json")
    try:
        plan = recipe_from_dict(manifest.recipe["config"]).plan
    except (KeyError, TypeError, AttributeError, AssertionError) as error:
        raise ArtifactError(f"{run_dir / 'run.json'} is damaged; its shards cannot be handed out.") from error
    if plan is not None and plan.noise_draws:
        raise ConfigError(
            f"All models of the run in {run_dir} answer the same noisy inputs together, so it cannot be split; train "
            "it on one machine, or on a Ray cluster."
        )
    seed = read_seed(run_dir / "seed")
    if seed is None or run_id_of(seed) != manifest.run_id:
        raise ArtifactError(f"The seed of the run in {run_dir} is not there, so its shards cannot be handed out.")
    if target.exists():
        raise ArtifactError(f"{target} exists already; hand shards out into a new folder.")
    instances = range(manifest.ranges[shards.start].start, manifest.ranges[shards.stop - 1].stop)
    make(target)
    with write_atomically(target / "run.json", durable=True) as file:
        file.write(manifest.to_json())
    with write_atomically(target / OWN_SEEDS, durable=True, private=True) as file:
        file.write(f"{_RUN}{manifest.run_id}\n".encode() + Seeds.of(seed).only(instances).to_lines())


def _read_own_seeds(path: Path, manifest: Manifest) -> Seeds | None:
    """The seeds that were handed out, None if there are none.

    Raises:
        ArtifactError: they are damaged, or of another run.
    """
    if not os.path.lexists(path):
        return None
    first, _, rest = read_file(path, TEXT_BYTES).partition(b"\n")
    try:
        seeds = Seeds.from_lines(rest)
    except ValueError:
        raise ArtifactError(f"{path} is damaged; hand the seeds out again.") from None
    if first != f"{_RUN}{manifest.run_id}".encode():
        raise ArtifactError(f"{path} holds seeds of another run; hand them out again.")
    return seeds
