"""Large sources in pieces: what is read of each becomes numbers at once, in memory or, where it is much, on disk.

An encoded example is a function of that example and the declaration alone, so it does not matter in which pieces a
source is read. What is said about all examples (labels, notes) is gathered piece by piece, and written down beside the
examples, so that an interrupted reading can be resumed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from mithridate._io.files import opened_file
from mithridate._io.scratch import in_memory_bytes
from mithridate._progress import awaited
from mithridate.data import frames, images, table_files
from mithridate.data.columns import Column, Encoding, Notes, ignored
from mithridate.data.declarations import Images, Table
from mithridate.data.example_store import ExampleStore, Position, Writer
from mithridate.data.frames import Frame
from mithridate.data.ids import Numbers
from mithridate.data.labels import GatheredLabels
from mithridate.data.periods import unit_cells
from mithridate.data.units import GatheredUnits
from mithridate.errors import ArtifactError, ConfigError

Array = npt.NDArray[Any]
T = TypeVar("T")

# What stands beyond so many characters of a text does not count.
LONGEST_TEXT = 1 << 13
_TEXTS = 1 << 10  # at a time
# Inputs of more bytes lie on disk. It cannot change a result.
_IN_MEMORY_BYTES = 1 << 28
# After so many bytes of inputs it is written down how far reading is: what is lost when it is killed.
_COMMITTED_BYTES = 1 << 26
# How much of an image folder is read at a time.
_PIECE_BYTES = 1 << 22


@dataclass(frozen=True, eq=False)
class Batch:
    """The examples of a piece.

    Attributes:
        blocks: inputs, made as they are asked for.
        numbers: a number for each example, by the name of what they are.
        position: where the next piece begins.
        done: how much of the source has been read.
        total: how much there is.
    """

    blocks: Iterable[Array]
    numbers: Mapping[str, Numbers]
    position: Position
    done: int
    total: int


class Reading(Protocol):
    """How a source is read in pieces."""

    @property
    def unit(self) -> str:
        """What is counted, in the plural."""
        ...

    @property
    def state(self) -> dict[str, Any]:
        """What was noted of the pieces so far, as plain JSON values."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with what was noted before."""
        ...

    def layout(self) -> tuple[npt.DTypeLike, tuple[int, ...]]:
        """Type and shape of every input."""
        ...

    def batches(self, after: Position | None) -> Iterator[Batch]:
        """The pieces from a position on."""
        ...

    def check(self) -> None:
        """Require of the whole source what can be required of no piece, once all are read."""
        ...


def gathered(reading: Reading, store: ExampleStore | None) -> tuple[Array, dict[str, Numbers]]:
    """All inputs of a source, and the numbers beside them; what is in the store already is not read again.

    Guarantee:
        The result does not depend on the pieces, nor on where the inputs lie, nor on whether reading was interrupted.

    Raises:
        ArtifactError: the source cannot be read, or there is no room for what is read.
        ConfigError: it is not what was declared.
    """
    stored = None if store is None else store.finished()
    if stored is not None:
        reading.restore(stored.state)
        reading.check()
        return stored.x, dict(stored.numbers)
    kept = _Kept(reading, store)
    with contextlib.closing(kept), awaited("reading", reading.unit) as progress:
        for batch in reading.batches(kept.position):
            for block in batch.blocks:
                kept.append(block)
            kept.finish_piece(batch)
            progress(batch.done, batch.total)
        reading.check()
        return kept.finish(), {name: table_files.joined_numbers(parts) for name, parts in kept.numbers.items()}


def most_in_memory() -> int:
    """Inputs of more bytes lie on disk."""
    return min(_IN_MEMORY_BYTES, in_memory_bytes())


class _Kept:
    """What has been read so far: in memory, until it is too much, and then where a writer puts it."""

    def __init__(self, reading: Reading, store: ExampleStore | None) -> None:
        self._reading, self._store = reading, store
        self._blocks: list[Array] = []
        self._rows = self._row_bytes = self._uncommitted = 0
        self._position = Position()
        self._writer = None if store is None else store.resumed()
        self.numbers: dict[str, list[Numbers]] = {}
        self._unwritten: dict[str, list[Numbers]] = {}
        if self._writer is not None:
            reading.restore(self._writer.state)
            self.numbers = {name: [values] for name, values in self._writer.numbers.items()}

    @property
    def position(self) -> Position | None:
        """Where to begin."""
        return None if self._writer is None else self._writer.position

    def append(self, block: Array) -> None:
        """Inputs of a piece."""
        self._blocks.append(block)
        self._uncommitted += block.nbytes
        # All texts get the room of the longest one.
        self._rows, self._row_bytes = self._rows + len(block), max(self._row_bytes, block.nbytes // len(block))
        if self._writer is None and self._rows * self._row_bytes > most_in_memory():
            layout = self._reading.layout()
            self._writer = Writer(None, {}, *layout) if self._store is None else self._store.begun(*layout)
        if self._writer is not None:
            for each in self._blocks:
                self._writer.append(each)
            self._blocks.clear()

    def finish_piece(self, batch: Batch) -> None:
        """All of it is there; its numbers, and what was noted."""
        for name, values in batch.numbers.items():
            self.numbers.setdefault(name, []).append(values)
            self._unwritten.setdefault(name, []).append(values)
        self._position = batch.position
        if self._uncommitted >= _COMMITTED_BYTES:
            self._commit()

    def _commit(self) -> None:
        if self._writer is not None and self._uncommitted:
            numbers = {name: table_files.joined_numbers(parts) for name, parts in self._unwritten.items()}
            self._writer.commit(numbers, self._position, self._reading.state)
            self._unwritten.clear()
            self._uncommitted = 0

    def finish(self) -> Array:
        """All inputs."""
        if self._writer is not None:
            self._commit()
            return self._writer.finish()
        return self._blocks[0] if len(self._blocks) == 1 else np.concatenate(self._blocks)

    def close(self) -> None:
        """Let others at the store."""
        if self._writer is not None:
            self._writer.close()


# --- tables ---------------------------------------------------------------------------------------------------------


class TableReading:
    """The table in a file, by its declaration.

    Args:
        path: the file.
        table: its declaration.
        labels: what gathers the labels; None where there shall be none.
        units: what gathers the names of units; None where there shall be none.
        training: whether this is training data, which has labels.
        alone: whether it is all of the training data, which has values in every column.
    """

    def __init__(
        self,
        path: Path,
        table: Table,
        labels: GatheredLabels | None,
        units: GatheredUnits | None = None,
        *,
        training: bool,
        alone: bool | None = None,
    ) -> None:
        self._path, self._table, self._training = path, table, training
        self._labels, self._units, self.content = labels, units, FileContent(path)
        self._inputs = inputs_of(table, training=training if alone is None else alone)

    @property
    def unit(self) -> str:
        """What is counted."""
        return "rows" if self._path.suffix.lower() == ".parquet" else "bytes"

    @property
    def notes(self) -> Notes:
        """For the user."""
        return self._inputs.notes

    @property
    def state(self) -> dict[str, Any]:
        """What was noted of the pieces so far."""
        return {
            "inputs": self._inputs.state,
            "labels": None if self._labels is None else self._labels.state,
            "units": None if self._units is None else self._units.state,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with what was noted before."""
        self._inputs.restore(state["inputs"])
        if self._labels is not None and state["labels"] is not None:
            self._labels.restore(state["labels"])
        if self._units is not None:
            self._units.restore(state["units"])

    def layout(self) -> tuple[npt.DTypeLike, tuple[int, ...]]:
        """Type and shape of every input; the longest text is found by reading all of them."""
        if not isinstance(self._inputs, Texts):
            return np.float32, self._inputs.shape
        fresh = Texts(self._table.columns, self._table.label, training=False, unit=self._table.unit)
        columns = [column.name for column in self._table.columns]
        read = (block.dtype.itemsize for each in table_files.pieces(self._path, columns) for block in fresh(each.frame))
        return f"<U{max(read) // np.dtype('<U1').itemsize}", ()

    def batches(self, after: Position | None) -> Iterator[Batch]:
        """The pieces from a position on."""
        others = [name for name in (self._table.label, self._table.unit) if name is not None]
        columns = [*others, *(column.name for column in self._table.columns)]
        for piece, is_last in with_last(table_files.pieces(self._path, columns, after)):
            frame = piece.frame
            numbers: dict[str, Numbers] = {} if frame.lines is None else {"lines": frame.lines}
            codes = self._codes(frame, is_last=is_last)
            numbers |= {} if codes is None else {"labels": codes}
            if self._units is not None and self._table.unit is not None:
                numbers["units"] = self._units.add(unit_cells(frame, self._table), frame.place)
            yield Batch(self._inputs(frame, is_last=is_last), numbers, piece.position, piece.done, piece.total)

    def _codes(self, frame: Frame, *, is_last: bool) -> npt.NDArray[np.int64] | None:
        name = self._table.label
        if name is None and self._training:
            raise ConfigError(no_label(frame))
        if self._labels is None or name is None or not (name in frame.names or self._training):
            return None
        codes = self._labels.add(frame.cells(name), frame.place)
        if is_last:
            self._labels.numbered()  # what is wrong with the labels is said before columns are looked at
        return codes

    def check(self) -> None:
        """Require values in every column, and a file that stayed what it was."""
        self._inputs.check_values(str(self._path))
        self.content.check()


def no_label(frame: Frame) -> str:
    """What to say where training data has no labels."""
    return f"No column of {frame.origin} is declared as the label; declare it."


def inputs_of(table: Table, *, training: bool) -> Encoding | Texts:
    """What makes inputs of the rows of a table."""
    kind = Texts if table.is_text else Encoding
    return kind(table.columns, table.label, training=training, unit=table.unit)


class Texts:
    """The one declared column of a table of texts, as it is; like `Encoding`."""

    def __init__(
        self, columns: Sequence[Column], label: str | None, *, training: bool, unit: str | None = None
    ) -> None:
        (self._column,) = columns
        self._no_inputs, self._training = (label, unit), training
        self._is_empty, self._ignored = True, tuple[str, ...]()

    def __call__(self, frame: Frame, *, is_last: bool = False) -> Iterator[Array]:
        """The texts of the next piece."""
        words = frames.texts(frame.cells(self._column.name))
        self._ignored = ignored(frame, (self._column,), self._no_inputs)
        self._is_empty = self._is_empty and not any(words)
        if is_last:
            self.check_values(frame.origin)
        for start in range(0, len(words), _TEXTS):
            # numpy gives every text the room of the longest one.
            yield np.array([(word or "")[:LONGEST_TEXT] for word in words[start : start + _TEXTS]])

    def check_values(self, origin: str) -> None:
        """Require of training data that there is a text somewhere.

        Raises:
            ConfigError: there is none.
        """
        if self._training and self._is_empty:
            raise ConfigError(
                f"The column {self._column.name!r} of {origin} has no values at all; declare another one."
            )

    @property
    def notes(self) -> Notes:
        """For the user."""
        return self._ignored

    @property
    def state(self) -> dict[str, Any]:
        """What was found so far."""
        return {"empty": self._is_empty, "ignored": list(self._ignored)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with what was found before."""
        self._is_empty, self._ignored = state["empty"], tuple(state["ignored"])


def with_last(items: Iterable[T]) -> Iterator[tuple[T, bool]]:
    """Each item, and whether it is the last.

    >>> list(with_last("ab"))
    [('a', False), ('b', True)]
    """
    before: list[T] = []
    for item in items:
        if before:
            yield before.pop(), False
        before.append(item)
    for item in before:
        yield item, True


class FileContent:
    """What tells the content of a file from any other: its hash, computed when it is first asked for."""

    def __init__(self, path: Path) -> None:
        self._path, self._digest = path, ""
        self._status = self._now()

    def __call__(self) -> str:
        """The hash.

        Raises:
            ArtifactError: the file is another one than when it was first looked at.
        """
        if not self._digest:
            with opened_file(self._path) as stream:
                self._digest = hashlib.file_digest(stream, "sha256").hexdigest()  # pyright: ignore[reportArgumentType]
            self.check()
        return self._digest

    def check(self) -> None:
        """Require that the file is still what was hashed, if it was."""
        if self._digest and self._now() != self._status:
            raise ArtifactError(f"{self._path} was changed while it was read; read it again.")

    def _now(self) -> tuple[int, ...]:
        try:
            status = os.stat(self._path)
        except OSError:
            return ()
        return status.st_size, status.st_mtime_ns, status.st_ino


# --- images ---------------------------------------------------------------------------------------------------------


class ImageReading:
    """The images of a folder, by their declaration."""

    unit = "images"

    def __init__(self, folder: images.Folder, declared: Images) -> None:
        self._folder, self._declared = folder, declared
        self.state: dict[str, Any] = {}

    @property
    def bytes(self) -> int:
        """Of all inputs."""
        return len(self._folder.names) * self._declared.channels * int(np.prod(self._declared.size))

    @property
    def is_large(self) -> bool:
        """Whether they lie on disk."""
        return self.bytes > most_in_memory()

    def content(self) -> str:
        """What tells these files from any others: their names, sizes and times."""
        digest = hashlib.sha256()
        for name in self._folder.names:
            status = os.stat(self._folder.root / name)
            said = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
            digest.update(f"{name} {said}\n".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def restore(self, state: Mapping[str, Any]) -> None:
        """There is nothing to note."""

    def layout(self) -> tuple[npt.DTypeLike, tuple[int, ...]]:
        """Type and shape of every input."""
        return np.uint8, (self._declared.channels, *self._declared.size)

    def batches(self, after: Position | None) -> Iterator[Batch]:
        """The pieces from a position on, which is the number of images before it."""
        names, (start,) = self._folder.names, after or (0,)
        step = max(1, _PIECE_BYTES * len(names) // self.bytes)
        for first in range(start, len(names), step):
            stop = min(first + step, len(names))
            block = images.load(self._folder.root, names[first:stop], self._declared)
            yield Batch([block], {}, (stop,), stop, len(names))

    def check(self) -> None:
        """There is nothing to require."""
