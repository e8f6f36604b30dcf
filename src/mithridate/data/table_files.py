"""Tables in files, CSV and Parquet, read in pieces: each is a `Frame`, and knows where in the file the next one begins.

What a row is, and what its cells are, does not depend on where one piece ends and the next begins.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import numpy as np

from mithridate._io.files import TEXT_BYTES, opened_file, size_of, unpacked_limit, unreadable
from mithridate.data.frames import Cells, Frame, as_list, cells_of_objects, objects
from mithridate.data.ids import Numbers
from mithridate.errors import ArtifactError, ConfigError

# Where a piece begins: numbers that mean something to who reads the file, and can be written down.
Position = tuple[int, ...]

_DELIMITERS = ",;\t"
# A cell of more lines is no text of one example; one of so many lines that look like rows is no text at all.
_MOST_LINES = 1000
_SWALLOWED_ROWS = 10
# How much is read at a time: bytes of text, cells of Parquet. Text is fastest where all its cells fit into a cache. No
# result depends on it.
BLOCK_BYTES = 1 << 17
BLOCK_CELLS = 1 << 20
_MOST_ROWS = 1 << 16
_BATCH_BYTES = 1 << 26
_LONGEST_LINE = 1 << 28


@dataclass(frozen=True, eq=False)
class Piece:
    """Some rows of a file.

    Attributes:
        frame: the rows.
        position: where the next piece begins.
        done: how much of the file has been read, in bytes or rows.
        total: how much there is.
    """

    frame: Frame
    position: Position
    done: int
    total: int


def pieces(path: Path, columns: Iterable[str] | None = None, after: Position | None = None) -> Iterator[Piece]:
    """The table in a file, by the end of its name, piece by piece.

    Args:
        path: the file.
        columns: those that will be asked for; None: any.
        after: where to begin, which is the `position` of an earlier piece; None: at the beginning.

    Raises:
        ArtifactError: the file is missing or damaged, or holds no table.
        ConfigError: the table has no rows or two columns of one name, or pyarrow is not installed.
    """
    if path.suffix.lower() == ".parquet":
        return _parquet_pieces(path, None if columns is None else set(columns), (0,) if after is None else after)
    return _csv_pieces(path, (0, 0, 0) if after is None else after)


def read_table(path: Path) -> Frame:
    """All of the table in a file, by the end of its name."""
    return read_parquet(path) if path.suffix.lower() == ".parquet" else read_csv(path)


def read_csv(path: Path) -> Frame:
    """All of the table in a text file: UTF-8, a header, and commas, semicolons or tabs between the cells.

    The delimiter is the one that is most frequent in the header; rows have no say in it.

    Raises:
        ArtifactError: the file is missing, empty, not text, or its rows are not of one length.
        ConfigError: it has no rows, or two columns of one name.
    """
    with opened_file(path) as stream:
        if size_of(stream) > TEXT_BYTES:
            raise ArtifactError(f"{path} is too large, with more than {TEXT_BYTES:,} bytes.")
    return _whole([piece.frame for piece in _csv_pieces(path, (0, 0, 0))])


def read_parquet(path: Path) -> Frame:
    """All of the table in a Parquet file.

    Raises:
        ArtifactError: the file is missing or damaged.
        ConfigError: pyarrow is not installed, the table has no rows or two columns of one name.
    """
    return _whole([piece.frame for piece in _parquet_pieces(path, None, (0,))])


def _whole(frames: list[Frame]) -> Frame:
    """One frame of the pieces of a table."""
    first = frames[0]
    if len(frames) == 1:
        return first
    starts = np.cumsum([0, *(frame.rows for frame in frames)])
    lines = [frame.lines for frame in frames if frame.lines is not None]

    def place(row: int) -> str:
        piece = int(np.searchsorted(starts, row, side="right")) - 1
        return frames[piece].place(row - int(starts[piece]))

    return Frame(
        names=first.names,
        rows=int(starts[-1]),
        origin=first.origin,
        column=lambda name: np.concatenate([frame.column(name) for frame in frames]),
        place=place,
        lines=joined_numbers(lines) if lines else None,
        delimiter=first.delimiter,
    )


def joined_numbers(parts: Sequence[Numbers]) -> Numbers:
    """Numbers one after the other, as a range where they are one.

    >>> joined_numbers([range(2, 4), range(4, 9)]), joined_numbers([range(2, 4), range(5, 6)])
    (range(2, 9), array([2, 3, 5]))
    """
    ranges = [part for part in parts if isinstance(part, range)]
    if len(ranges) == len(parts) and all(one.stop == two.start for one, two in pairwise(ranges)):
        return range(ranges[0].start, ranges[-1].stop) if ranges else range(0)
    return np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])


# --- CSV ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Header:
    names: tuple[str, ...]
    delimiter: str


@dataclass(frozen=True)
class _Rows:
    """Rows as they are parsed, each with the line on which it ends, and the last line that was read."""

    rows: list[list[str]]
    lines: Sequence[int]
    last_line: int

    def below(self, header: int) -> _Rows:
        """Those below the row of this number."""
        return _Rows(self.rows[header + 1 :], self.lines[header + 1 :], self.last_line)


def _csv_pieces(path: Path, after: Position) -> Iterator[Piece]:
    """Pieces of a text file.

    A position is the bytes and the lines up to there, and how many empty lines just before it may yet be rows: of a
    table with a single column they are empty cells, unless nothing follows them.
    """
    offset, line, held = after
    with opened_file(path) as stream:
        header, total = _header(path, stream), size_of(stream)
        width, is_below, is_empty = len(header.names), offset > 0, offset == 0
        for feed in _feeds(_blocks(path, stream, offset)):
            parsed = _parsed(path, feed, header.delimiter, line, width if is_below else None)
            if not is_below:
                first = next((at for at, row in enumerate(parsed.rows) if row), None)
                is_below, parsed = first is not None, parsed.below(len(parsed.rows) if first is None else first)
            lines, rows, held = _body(path, parsed, width, held, line)
            line = parsed.last_line
            if rows:
                is_empty = False
                yield Piece(_csv_frame(path, header, lines, rows), (feed.offset, line, held), feed.offset, total)
        if is_empty:
            _csv_frame(path, header, range(0), [])  # which refuses a table without rows


def _header(path: Path, stream: IO[bytes]) -> _Header:
    blocks = _blocks(path, stream, 0)
    text = ""
    while not text.strip() and (block := next(blocks, None)) is not None:
        text += block[0]
        if len(text) > _LONGEST_LINE and not text.strip():
            raise ArtifactError(f"{path} begins with more than {_LONGEST_LINE:,} empty lines; take them out.")
    # Lines end here as they do for the parser: also by a carriage return alone.
    header_line = next((line for line in io.StringIO(text, newline="") if line.strip()), None)
    if header_line is None:
        raise ArtifactError(f"{path} is empty; give a table with a header and one row per example.")
    tabs = path.suffix.lower() == ".tsv"
    delimiter = "\t" if tabs else max(_DELIMITERS, key=header_line.count)
    row = next(row for _, row in _row_by_row(path, _Feed(text, 0, blocks), delimiter, 0, None) if row)
    return _Header(tuple(cell.strip() or f"column {i}" for i, cell in enumerate(row, 1)), delimiter)


def _csv_frame(path: Path, header: _Header, lines: Numbers, rows: list[list[str]]) -> Frame:
    columns = dict(zip(header.names, zip(*rows, strict=True), strict=False)) if rows else {}
    return Frame(
        names=header.names,
        rows=len(rows),
        origin=str(path),
        column=lambda name: objects(columns[name]),
        place=lambda row: f"line {lines[row]} of {path}",
        lines=lines,
        delimiter=header.delimiter,
    )


def _blocks(path: Path, stream: IO[bytes], start: int) -> Iterator[tuple[str, int]]:
    """The text of a file in blocks that end where a line does, each with the number of bytes up to its end."""
    stream.seek(0)
    mark = len(codecs.BOM_UTF8) if stream.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0
    offset = max(start, mark)
    stream.seek(offset)
    rest, begun, data = b"", list[str](), _read(path, stream)
    while data:
        encoded, data = rest + data, _read(path, stream)
        text, used = _decoded(path, encoded, offset - mark, final=not data)
        offset, rest = offset + used, encoded[used:]
        if not data:
            if begun or text:
                yield "".join((*begun, text)), offset
            return
        # What may follow a carriage return at the very end is yet to come.
        end = max(text.rfind("\n"), text.rfind("\r", 0, max(len(text) - 1, 0))) + 1
        if end:
            yield "".join((*begun, text[:end])), offset - len(text[end:].encode())
            begun.clear()
        begun.append(text[end:])
        if sum(map(len, begun)) > _LONGEST_LINE:
            raise ArtifactError(f"{path} has a line of more than {_LONGEST_LINE:,} characters; it is no table.")


def _read(path: Path, stream: IO[bytes]) -> bytes:
    try:
        return stream.read(BLOCK_BYTES)
    except (OSError, MemoryError) as error:
        raise unreadable(path, error) from error


def _decoded(path: Path, data: bytes, offset: int, *, final: bool) -> tuple[str, int]:
    """Bytes as text, and how many of them that took: a character may be cut in two."""
    try:
        text, used = codecs.utf_8_decode(data, "strict", final)
    except UnicodeDecodeError as error:
        raise ArtifactError(
            f"{path} is not text in UTF-8 (byte {offset + error.start}); save it as CSV in UTF-8."
        ) from error
    if "\0" in text:
        raise ArtifactError(f"{path} holds NUL bytes, so it is not a text file; save it as CSV in UTF-8.")
    return text, used


class _Feed:
    """The lines of a block for the parser, and those of the blocks behind it while a row has not ended.

    Attributes:
        text: of the first block.
        offset: bytes up to the end of the last block.
        between_rows: set it where a row has ended.
    """

    def __init__(self, text: str, offset: int, blocks: Iterator[tuple[str, int]]) -> None:
        self.text, self.offset, self.between_rows = text, offset, True
        self._lines, self._blocks = io.StringIO(text, newline=""), blocks

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._lines.readline()
        while not line:
            if self.between_rows:
                raise StopIteration
            text, self.offset = next(self._blocks)
            self._lines = io.StringIO(text, newline="")
            line = self._lines.readline()
        self.between_rows = False
        return line


def _feeds(blocks: Iterator[tuple[str, int]]) -> Iterator[_Feed]:
    for text, offset in blocks:
        yield _Feed(text, offset, blocks)


def _parsed(path: Path, feed: _Feed, delimiter: str, before: int, width: int | None) -> _Rows:
    """The rows of a block and, where the last does not end in it, of those behind it; so many lines were before it."""
    reader = csv.reader(io.StringIO(feed.text, newline=""), delimiter=delimiter, strict=True)
    with contextlib.suppress(csv.Error):
        rows = list(reader)
        if reader.line_num == len(rows):  # every row is a line, which takes a fraction of the time
            return _Rows(rows, range(before + 1, before + 1 + len(rows)), before + len(rows))
    found = list(_row_by_row(path, feed, delimiter, before, width))
    lines = [line for line, _ in found]
    return _Rows([row for _, row in found], lines, lines[-1])


def _row_by_row(
    path: Path, feed: _Feed, delimiter: str, before: int, width: int | None
) -> Iterator[tuple[int, list[str]]]:
    """Rows, each with the line on which it ends; so many cells stand in a row, if that is known."""
    start = before
    reader = csv.reader(feed, delimiter=delimiter, strict=True)
    try:
        for row in reader:
            line = start + reader.line_num
            if line > before + 1:
                _refuse_swallowed(path, row, before + 1, line, width, delimiter)
            width = len(row) if width is None and row else width
            feed.between_rows = True
            yield (before := line), row
    except csv.Error as error:
        line = start + reader.line_num
        where = f"Line {line}" if line <= before + 1 else f"The row from line {before + 1} on"
        raise ArtifactError(
            f"{where} of {path} is not valid CSV ({error}); check its quotes and write it again."
        ) from error


def _refuse_swallowed(path: Path, row: list[str], first: int, last: int, width: int | None, delimiter: str) -> None:
    """Refuse a cell that has rows in it: a quote too many makes one cell of all lines up to the next quote."""
    for cell in row:
        inner = cell.splitlines()[1:-1]  # the first and the last line also have what stands before and after the quotes
        delimiters = Counter(line.count(delimiter) for line in inner)
        usual = width - 1 if width is not None else max(delimiters, key=lambda count: delimiters[count], default=0)
        like_rows = usual > 0 and len(inner) >= _SWALLOWED_ROWS and delimiters[usual] >= 0.9 * len(inner)
        if like_rows or len(inner) > _MOST_LINES:
            raise ArtifactError(
                f"A quote on line {first} of {path} makes one cell of all lines up to line {last}; take it out, or "
                "close it where the cell ends."
            )


def _body(path: Path, parsed: _Rows, width: int, held: int, before: int) -> tuple[Numbers, list[list[str]], int]:
    """The rows of a piece with their lines, and how many empty lines at its end may yet be rows.

    Empty lines are no rows, unless they are the empty cells of a single column and something follows them.
    """
    rows, lines = parsed.rows, parsed.lines
    if width == 1:
        kept = next((len(rows) - at for at, row in enumerate(reversed(rows)) if row), 0)
        trailing = len(rows) - kept
        if not kept:
            return range(0), [], held + trailing
        lines = [*range(before - held + 1, before + 1), *lines[:kept]]
        rows, held = [[""]] * held + [row or [""] for row in rows[:kept]], trailing
    elif not all(rows):
        lines = [line for line, row in zip(lines, rows, strict=True) if row]
        rows = [row for row in rows if row]
    if set(map(len, rows)) - {width}:
        wrong = next(at for at, row in enumerate(rows) if len(row) != width)
        raise ArtifactError(
            f"Line {lines[wrong]} of {path} has {len(rows[wrong])} cells, the header {width}; mend the line."
        )
    return _as_numbers(lines), rows, held


def _as_numbers(lines: Sequence[int]) -> Numbers:
    if isinstance(lines, range):
        return lines
    numbers = np.array(lines, dtype=np.int64)
    is_range = len(lines) > 0 and lines[-1] - lines[0] == len(lines) - 1  # since they increase
    return range(lines[0], lines[-1] + 1) if is_range else numbers


# --- Parquet --------------------------------------------------------------------------------------------------------


def _parquet_pieces(path: Path, columns: set[str] | None, after: Position) -> Iterator[Piece]:
    """Pieces of a Parquet file; a position is the number of rows up to there."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise ConfigError("Reading Parquet needs pyarrow; install it with: pip install 'mithridate[data]'") from error
    damaged = (pyarrow.ArrowException, OSError, ValueError, MemoryError, RuntimeError, KeyError, TypeError)
    with opened_file(path) as stream:
        try:
            # Page by page: a file may have one group of all rows.
            file = parquet.ParquetFile(stream, buffer_size=1 << 20, pre_buffer=False)
            _check_unpacked(path, file.metadata, unpacked_limit(size_of(stream)))
            names, total = tuple(map(str, file.schema_arrow.names)), file.metadata.num_rows
            wanted = [name for name in names if columns is None or name in columns]
            batches = _batches(file, wanted, *after)
        except damaged as error:
            raise _not_parquet(path, error) from error
        if not total or not wanted:
            # Without rows it is refused, and without a column that is asked for its cells will be.
            yield Piece(Frame(names, total, str(path), lambda _: objects([]), str), (total,), total, total)
            return
        (row,) = after
        while True:
            try:
                batch = next(batches, None)
                if batch is None:
                    return
                batch.validate(full=True)
            except damaged as error:
                raise _not_parquet(path, error) from error
            yield Piece(_arrow_frame(batch, names, pyarrow, str(path), row), (row := row + len(batch),), row, total)


def _not_parquet(path: Path, error: Exception) -> Exception:
    if isinstance(error, ArtifactError):
        return error
    return ArtifactError(f"{path} is not a readable Parquet file (damaged or of another kind); write it again.")


def _batches(file: Any, columns: list[str], after: int) -> Iterator[Any]:
    """Rows in batches, beginning with the row of this number; groups that lie before it are not read."""
    groups, skipped = list(range(file.metadata.num_row_groups)), after
    row_bytes = sum(file.metadata.row_group(group).total_byte_size for group in groups) // max(
        1, file.metadata.num_rows
    )
    size = max(1, min(_MOST_ROWS, BLOCK_CELLS // max(1, len(columns)), _BATCH_BYTES // max(1, row_bytes)))
    while groups and skipped >= file.metadata.row_group(groups[0]).num_rows:
        skipped -= file.metadata.row_group(groups.pop(0)).num_rows
    for batch in file.iter_batches(batch_size=size, row_groups=groups, columns=columns):
        kept = batch.slice(min(skipped, len(batch)))
        skipped -= len(batch) - len(kept)
        if len(kept):
            yield kept


def _check_unpacked(path: Path, metadata: Any, limit: int) -> None:
    """Refuse a table that takes far more room than its file: a run of equal cells takes next to no space in it."""
    pages = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    if max(pages, 8 * metadata.num_rows * metadata.num_columns) > limit:
        raise ArtifactError(
            f"{path} would take more than {limit:,} bytes of memory, far more than its size; write it without "
            "compression and dictionaries, or with fewer columns."
        )


def _arrow_frame(batch: Any, names: tuple[str, ...], pyarrow: ModuleType, origin: str, start: int) -> Frame:
    types = pyarrow.types

    def column(name: str) -> Cells:
        values = batch.column(batch.schema.names.index(name))
        if types.is_integer(values.type) or types.is_floating(values.type):
            return values.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False).astype(np.float64)
        if types.is_string(values.type) or types.is_large_string(values.type):
            return objects(values.to_pylist())
        return cells_of_objects(as_list(values.to_pylist, name), f"The column {name!r}")

    return Frame(names, len(batch), origin, column, lambda row: f"row {start + row} of {origin} (from 0)")
