"""Large examples on disk: read once, resumed where reading was interrupted, and mapped into memory ever after.

One folder for a source and the way to read it, in the cache folder of the user. In it are `x.npy`, plain arrays of
whole numbers beside it, and `store.json`, which says what they hold. The latter is replaced as a whole after every
piece, with a hash of all pieces before; so a reading that was killed continues behind its last piece, if that is what
was written. One process at a time works in a folder, under a lock; others that read the same then keep what they read
to themselves. Finished arrays are never written to again: whoever has mapped them keeps them, even when the folder is
removed, which may be done at any time.

Whoever can write into the folder can falsify examples, so one that others may write to is not used. Against accidents
`store.json` carries a hash, and arrays must have the sizes that it says; what does not fit is read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from mithridate._io.artifacts import read_hashed, write_hashed
from mithridate._io.files import cache_folder, make_private, refuse_unless_private
from mithridate.errors import ArtifactError

try:
    import fcntl
except ModuleNotFoundError:  # without locks nothing is kept
    fcntl = None

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]
# Numbers that say where in the source the next piece begins.
Position = tuple[int, ...]

_SCHEMA = "mithridate.examples/1"
_ABOUT, _LOCK = "store.json", "lock"
# What nobody has asked for in so long is removed.
_KEPT_SECONDS = 30 * 24 * 3600
# Room for the largest of shapes: the number of rows is written last.
_HEADER_BYTES = 256
_CHUNK = 1 << 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class FinishedStore:
    """What is in a finished store.

    Attributes:
        x: the inputs, mapped for reading.
        numbers: arrays with a whole number for each input, by their names.
        state: what the reader had noted at the end.
    """

    x: Array
    numbers: dict[str, IntArray]
    state: dict[str, Any]


class ExampleStore:
    """The examples of one source, read in one way.

    Args:
        identity: all that the examples depend on but the content of the source, and where the source is: JSON values.
        content: what tells the content of the source from any other; it is asked for only if there is need to.
    """

    def __init__(self, root: Path, identity: Mapping[str, Any], content: Callable[[], str]) -> None:
        key = json.dumps({"schema": _SCHEMA, **identity}, sort_keys=True)
        self._folder = root / f"examples-{hashlib.sha256(key.encode()).hexdigest()[:24]}"
        self._identity, self._content = json.loads(key), content

    @classmethod
    def of(cls, identity: Mapping[str, Any], content: Callable[[], str]) -> ExampleStore | None:
        """The one in the user's cache folder; None where nothing is to be kept."""
        root = cache_folder()
        return None if root is None or fcntl is None else cls(root, identity, content)

    def finished(self) -> FinishedStore | None:
        """What is in it, if that is all of the source as it is now."""
        about = self._about()
        if about is None or not about["finished"]:
            return None
        try:
            x, *numbers = (_mapped(self._folder / f"{name}.npy", about) for name in ("x", *about["numbers"]))
        except (OSError, ValueError) as error:
            _log.warning("%s is damaged, and its source is read again (%s)", self._folder, error)
            return None
        with contextlib.suppress(OSError):
            os.utime(self._folder / _ABOUT)
        kept = {name: np.array(array) for name, array in zip(about["numbers"], numbers, strict=True)}
        return FinishedStore(x, kept, about["state"])

    def resumed(self) -> Writer | None:
        """A writer that continues where another one was interrupted, if the source is the same."""
        return self._locked(self._continued) if os.path.lexists(self._folder / _ABOUT) else None

    def begun(self, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Writer:
        """A writer for inputs of this type and shape; to a file without a name where the folder cannot be used."""
        made = self._locked(lambda: Writer(self._folder, self._said(), dtype, shape))
        return Writer(None, {}, dtype, shape) if made is None else made

    def _continued(self) -> Writer | None:
        about = self._about()
        return None if about is None or about["finished"] else Writer.continued(self._folder, self._said(), about)

    def _said(self) -> dict[str, Any]:
        return {"source": self._identity, "content": self._content()}

    def _locked(self, make: Callable[[], Writer | None]) -> Writer | None:
        """A writer that has the folder for itself; None where another process has it, or it cannot be used."""
        with contextlib.ExitStack() as stack:
            try:
                make_private(self._folder)
                lock = stack.enter_context(open(self._folder / _LOCK, "ab"))
                if not _is_locked(lock):
                    _log.info("another process reads the same into %s; nothing is kept here", self._folder)
                    return None
                _remove_old(self._folder)
                writer = make()
            except OSError as error:
                _log.warning("what is read is not kept: %s", error)
                return None
            if writer is not None:
                writer.closing.push(stack.pop_all())
            return writer

    def _about(self) -> dict[str, Any] | None:
        """What the folder says about itself; None where it is not of this source as it is now."""
        path = self._folder / _ABOUT
        if not os.path.lexists(path):
            return None
        try:
            refuse_unless_private(self._folder)
            about = read_hashed(path, _SCHEMA)
        except OSError as error:
            _log.warning("kept examples are not used: %s", error)
            return None
        except ArtifactError as error:
            _log.warning("%s is damaged, and its source is read again (%s)", self._folder, error)
            return None
        is_same = about["source"] == self._identity and about["content"] == self._content()
        return about if is_same else None


class Writer:
    """Inputs, and numbers beside them, that are written piece by piece.

    Args:
        folder: where they go, which is emptied; None: into files without a name, which are gone with the arrays.
        said: what `store.json` says of the source.
        dtype: of the inputs.
        shape: of one input.

    Attributes:
        closing: what is to be closed at the end.
        position: where the next piece begins, None at the beginning.
        state: what the reader had noted there.
    """

    def __init__(
        self, folder: Path | None, said: Mapping[str, Any], dtype: npt.DTypeLike, shape: tuple[int, ...]
    ) -> None:
        self._folder, self._said = folder, dict(said)
        self.closing = contextlib.ExitStack()
        self.position: Position | None = None
        self.state: dict[str, Any] = {}
        self._pieces: list[int] = []
        self._digest = ""
        self._numbers: dict[str, _Growing] = {}
        if folder is not None:
            _clear(folder)
        self._x = self._growing("x", dtype, shape)
        self._hash = self._next_hash()

    @classmethod
    def continued(cls, folder: Path, said: Mapping[str, Any], about: Mapping[str, Any]) -> Writer | None:
        """One that goes on behind the pieces that are there; None if they are not what was written."""
        made = cls.__new__(cls)
        made._folder, made._said, made.closing = folder, dict(said), contextlib.ExitStack()
        made.position, made.state = tuple(about["position"]), about["state"]
        made._pieces, made._digest = list(about["pieces"]), about["digest"]
        arrays = {
            name: _Growing(made.closing.enter_context(open(folder / f"{name}.npy", "r+b")), _dtype(kind), tuple(shape))
            for name, (kind, shape) in about["arrays"].items()
        }
        made._x, made._numbers = arrays["x"], {name: arrays[name] for name in about["numbers"]}
        digest = ""
        for rows in made._pieces:
            piece = hashlib.sha256(digest.encode())
            for array in arrays.values():
                array.hash_next(rows, piece)
            digest = piece.hexdigest()
        if digest != made._digest:
            made.closing.close()
            _log.warning("%s is damaged, and its source is read again", folder)
            return None
        made._hash = made._next_hash()
        return made

    @property
    def numbers(self) -> dict[str, IntArray]:
        """The numbers that were written so far, by their names."""
        return {name: np.array(array.mapped()) for name, array in self._numbers.items()}

    def append(self, x: Array) -> None:
        """Write inputs, which count once the piece is finished.

        Raises:
            ArtifactError: there is no room for them.
        """
        with self._room():
            self._x.append(x, self._hash)

    def commit(self, numbers: Mapping[str, npt.ArrayLike], position: Position, state: dict[str, Any]) -> None:
        """Finish a piece: numbers for its inputs, where the next one begins, and what the reader has noted.

        Raises:
            ArtifactError: there is no room for it.
        """
        with self._room():
            for name, values in numbers.items():
                if name not in self._numbers:
                    self._numbers[name] = self._growing(name, np.int64, ())
                self._numbers[name].append(np.asarray(values, dtype=np.int64), self._hash)
            self._pieces.append(self._x.rows - sum(self._pieces))
            self._digest, self.position, self.state = self._hash.hexdigest(), position, state
            self._hash = self._next_hash()
            self._describe(is_finished=False)

    def finish(self) -> Array:
        """The inputs, mapped for reading."""
        with self._room():
            for array in (self._x, *self._numbers.values()):
                array.finish()
            self._describe(is_finished=True)
        return self._x.mapped()

    def close(self) -> None:
        """Let others at the folder; what was finished stays."""
        self.closing.close()

    def _describe(self, *, is_finished: bool) -> None:
        if self._folder is None:
            return
        arrays = {"x": self._x, **self._numbers}
        for array in arrays.values():
            array.file.flush()
        about = {
            **self._said,
            "finished": is_finished,
            "rows": self._x.rows,
            "arrays": {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()},
            "numbers": list(self._numbers),
            "pieces": self._pieces,
            "digest": self._digest,
            "position": list(self.position or ()),
            "state": self.state,
        }
        write_hashed(self._folder / _ABOUT, _SCHEMA, about)

    def _growing(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> _Growing:
        with self._room():
            if self._folder is None:
                file = tempfile.TemporaryFile(prefix="mithridate-")
            else:
                file = open(self._folder / f"{name}.npy", "w+b")
            return _Growing(self.closing.enter_context(file), np.dtype(dtype), shape)

    def _next_hash(self) -> Any:
        return hashlib.sha256(self._digest.encode())

    @contextlib.contextmanager
    def _room(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            folder, name = (
                (tempfile.gettempdir(), "TMPDIR") if self._folder is None else (self._folder, "MITHRIDATE_CACHE")
            )
            raise ArtifactError(
                f"Cannot keep what is read in {folder}: {error.strerror}. Make room there, or set {name} to a folder "
                "on a larger disk."
            ) from error


class _Growing:
    """A file in the format of numpy that rows are added to; it says how many there are when all of them are."""

    def __init__(self, file: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.file, self.dtype, self.shape, self.rows = file, dtype, shape, 0
        self._row_bytes = dtype.itemsize * math.prod(shape)
        file.seek(0, os.SEEK_END)
        if file.tell() < _HEADER_BYTES:
            self._write_header()

    def _write_header(self) -> None:
        said = repr({"descr": self.dtype.str, "fortran_order": False, "shape": (self.rows, *self.shape)})
        start = b"\x93NUMPY\x01\x00" + (_HEADER_BYTES - 10).to_bytes(2, "little")
        self.file.seek(0)
        self.file.write((start + said.encode()).ljust(_HEADER_BYTES - 1) + b"\n")

    def append(self, rows: Array, digest: Any) -> None:
        """Write rows behind those that count, over what an interrupted piece left there, and hash them."""
        data = np.ascontiguousarray(rows, dtype=self.dtype).reshape(-1).view(np.uint8).data
        self.file.seek(_HEADER_BYTES + self.rows * self._row_bytes)
        self.file.write(data)
        digest.update(data)
        self.rows += len(rows)

    def hash_next(self, rows: int, digest: Any) -> None:
        """Hash as many more rows that are there already."""
        self.file.seek(_HEADER_BYTES + self.rows * self._row_bytes)
        left = rows * self._row_bytes
        while left and (data := self.file.read(min(left, _CHUNK))):
            digest.update(data)
            left -= len(data)
        self.rows += rows

    def finish(self) -> None:
        """Say how many rows there are, and have all of it on the disk."""
        self._write_header()
        self.file.flush()
        os.fsync(self.file.fileno())

    def mapped(self) -> Array:
        """The rows, for reading."""
        self.file.flush()
        return np.memmap(self.file, self.dtype, "r", _HEADER_BYTES, (self.rows, *self.shape))


def _mapped(path: Path, about: Mapping[str, Any]) -> Array:
    """An array of a finished store.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not as large as it should be.
    """
    kind, shape = about["arrays"][path.stem]
    wanted = (about["rows"], *shape)
    if path.stat().st_size != _HEADER_BYTES + math.prod(wanted) * _dtype(kind).itemsize:
        raise ValueError(f"{path.name} has another size than it should")
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if (array.dtype, array.shape) != (_dtype(kind), wanted):
        raise ValueError(f"{path.name} has another shape than it should")
    return array


def _dtype(kind: str) -> np.dtype[Any]:
    return np.dtype(kind)


def _is_locked(file: IO[bytes]) -> bool:
    """Whether this process now has the lock."""
    assert fcntl is not None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _clear(folder: Path) -> None:
    """Take away what is there. Files are removed and not emptied: others may have mapped them."""
    for path in folder.iterdir():
        if path.name != _LOCK:
            path.unlink()


def _remove_old(used: Path) -> None:
    """Remove the stores beside this one that nobody has asked for in a long time."""
    for folder in used.parent.glob("examples-*"):
        about = folder / _ABOUT
        with contextlib.suppress(OSError):
            age = time.time() - (about if about.exists() else folder).lstat().st_mtime
            if folder == used or age < _KEPT_SECONDS:
                continue
            with open(folder / _LOCK, "ab") as lock:
                if _is_locked(lock):
                    shutil.rmtree(folder, ignore_errors=True)
