"""Large sources: what is read in pieces, kept on disk, interrupted and resumed is what is read at once."""

from __future__ import annotations

import csv
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mithridate import ArtifactError, ConfigError, MithridateError, _progress
from mithridate._io import pieces as io_pieces
from mithridate._io.pieces import taken
from mithridate.data import (
    Category,
    Date,
    Examples,
    Images,
    Number,
    Ordered,
    Table,
    Text,
    columns,
    example_store,
    read,
    reading,
    table_files,
)
from mithridate.data.ids import Ids, as_ids, joined
from mithridate.data.partition import content_hashes, shared_with, split_by_hash

TABLE = Table("y", (Number("age", 0, 50), Category("job"), Date("hired", 2000, 2030)), ("no", "yes"))
FREE = Table("y", TABLE.columns)
WORDS = Table("y", (Text("job"),))
JOBS = ("nurse", "", "clérk", '"say ""hi"""', '"two\nlines"', "3", "3.0", "TRUE")


def table_text(rows: int, seed: int = 0, end: str = "\n") -> str:
    """A table with quotes, gaps, rows of several lines, and empty lines."""
    rng = np.random.default_rng(seed)
    lines = ["age,job,hired,y,more"]
    for row in range(rows):
        age = rng.choice(["", "NA", "17", "1e1", "99.5"])
        job, day, y = rng.choice(JOBS), rng.choice(["", "2020-01-31", "1 Mar 1999"]), "no" if row % 3 else "yes"
        lines += [f"{age},{job},{day},{y},x", *[""] * int(rng.integers(8) == 0)]
    return end.join(lines)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder for one test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("MITHRIDATE_CACHE", str(folder))
    return folder


@pytest.fixture
def small(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, where next to nothing is held in memory, read at a time, or lost when reading is interrupted."""
    monkeypatch.setenv("MITHRIDATE_MEMORY_BYTES", "500")
    monkeypatch.setattr(table_files, "BLOCK_BYTES", 64)
    monkeypatch.setattr(table_files, "BLOCK_CELLS", 20)
    monkeypatch.setattr(reading, "_COMMITTED_BYTES", 100)
    monkeypatch.setattr(reading, "_PIECE_BYTES", 500)
    monkeypatch.setattr(columns, "_BLOCK_BYTES", 2000)
    monkeypatch.setattr(io_pieces, "_PIECE_BYTES", 500)
    return cache


def said(found: Examples) -> tuple[Any, ...]:
    """All that there is to know about examples."""
    y = None if found.y is None else (found.y.dtype, found.y.tolist())
    ids = None if found.ids is None else list(found.ids)
    x = (found.x.dtype, found.x.shape, np.ascontiguousarray(found.x).tobytes())
    return (*x, y, found.class_names, found.notes, found.assumptions, ids)


def outcome(path: Path, table: Table, labels: bool | None) -> tuple[Any, ...]:
    """What becomes of a file; of several errors in it, any may be named."""
    try:
        return said(read(path, table, labels=labels))
    except MithridateError:
        return ("refused",)


def whole(path: Path, table: Any = TABLE, **options: Any) -> Examples:
    """What is read at once and in memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MITHRIDATE_CACHE", "off")
        patch.delenv("MITHRIDATE_MEMORY_BYTES", raising=False)
        for module, name in ((table_files, "BLOCK_BYTES"), (table_files, "BLOCK_CELLS"), (columns, "_BLOCK_BYTES")):
            patch.setattr(module, name, 1 << 22)
        return read(path, table, **options)


# --- pieces ---------------------------------------------------------------------------------------------------------


@given(
    text=st.text('age,job\n\r"1.5 é', max_size=120) | st.integers(0, 99).map(lambda seed: table_text(9, seed)),
    block=st.integers(1, 40),
    table=st.sampled_from([TABLE, FREE, WORDS, Table(None, (Category("age"),))]),
    labels=st.sampled_from([True, None, False]),
)
def test_pieces_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, text: str, block: int, table: Table, labels: bool | None
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes((text if text.startswith("age,job,") else f"age,job,hired,y\n{text}").encode())
    at_once = outcome(path, table, labels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_files, "BLOCK_BYTES", block)
        patch.setattr(columns, "_BLOCK_BYTES", 64 * block)
        assert outcome(path, table, labels) == at_once


@given(
    st.lists(st.sampled_from(["a,b", '"x\n1",2', "", '"q""",', "é,ü"]), max_size=12),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.integers(1, 30),
)
def test_rows_and_lines_are_those_of_a_plain_parser(
    tmp_path_factory: pytest.TempPathFactory, rows: list[str], end: str, block: int
) -> None:
    """The oracle parses the whole text at once, and numbers lines as they are fed to it."""
    path = tmp_path_factory.getbasetemp() / "rows.csv"
    path.write_bytes(("\ufeff" + end.join(["p,q", "1,2", *rows])).encode())
    parser = csv.reader(io.StringIO(path.read_bytes().decode("utf-8-sig"), newline=""))
    expected = [(parser.line_num, row) for row in parser if row][1:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_files, "BLOCK_BYTES", block)
        found = list(table_files.pieces(path))
        assert with_lines(found) == expected
        for at, piece in enumerate(found):
            rest = table_files.pieces(path, after=piece.position)
            assert with_lines(rest) == expected[len(with_lines(found[: at + 1])) :]


def with_lines(pieces: Iterable[table_files.Piece]) -> list[tuple[int, list[str]]]:
    """The rows of pieces, each with its line."""
    return [
        (int(line), [str(frame.cells(name)[row]) for name in ("p", "q")])
        for frame in (piece.frame for piece in pieces)
        for row, line in enumerate(np.asarray(frame.lines))
    ]


@pytest.mark.parametrize("block", [1, 2, 3, 8, 1000])
def test_empty_lines_of_a_single_column_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    (tmp_path / "a.csv").write_text("\n\na\n\nx\n\n\ny\n\n\n")
    monkeypatch.setattr(table_files, "BLOCK_BYTES", block)
    found = table_files.read_csv(tmp_path / "a.csv")
    assert found.cells("a").tolist() == ["", "x", "", "", "y"]
    assert found.ids == [f"line {line}" for line in range(4, 9)]


@pytest.mark.parametrize("groups", [1, 3, 100])
def test_parquet_in_pieces(tmp_path: Path, small: Path, groups: int) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rng, path = np.random.default_rng(0), tmp_path / "a.parquet"
    made = {
        "age": pyarrow.array([None if at % 7 == 0 else float(at) for at in range(100)]),
        "job": pyarrow.array([[None, "nurse", "clerk"][at] for at in rng.integers(0, 3, 100)]),
        "hired": pyarrow.array([None, "2020-02-03"] * 50),
        "y": pyarrow.array(["no", "yes", "no", "no"] * 25),
        "code": pyarrow.array([0, 2, 1, 1] * 25),
        "unused": pyarrow.array([[1], [2, 3]] * 50),
    }
    parquet.write_table(pyarrow.table(made), path, row_group_size=groups)
    coded = Table("code", TABLE.columns)  # numbers by their type, which assumes nothing
    for table, labels in ((TABLE, True), (FREE, True), (TABLE, False), (WORDS, True), (coded, True)):
        expected = said(whole(path, table, labels=labels))
        assert said(read(path, table, labels=labels)) == expected
        assert said(read(path, table, labels=labels)) == expected
    assert read(path, coded, labels=True).assumptions == ()
    found = list(table_files.pieces(path, ["age"]))
    assert len(found) > 2
    for at, piece in enumerate(found):
        rest = [each.frame.cells("age") for each in table_files.pieces(path, ["age"], piece.position)]
        expected = [np.zeros(0), *(each.frame.cells("age") for each in found[at + 1 :])]
        np.testing.assert_array_equal(np.concatenate([np.zeros(0), *rest]), np.concatenate(expected))


def rows_with(row: int, bad: str) -> str:
    """Forty rows, of which this one (from 0) is bad."""
    good = ["1,nurse,2020-01-01,no", "2,clerk,,yes"]
    return "\n".join(["age,job,hired,y", *(bad if at == row else good[at % 2] for at in range(40))])


@pytest.mark.parametrize(
    ("bad", "table", "message"),
    [
        ("old,nurse,,no", TABLE, "'age' is declared as numbers, but line 33 of .* holds 'old'"),
        ("1,nurse,31.1.20,no", TABLE, "'hired' is declared as dates, but line 33 of"),
        ("1,nurse,,", TABLE, "label of line 33 of .* is missing"),
        ("1,nurse,,", FREE, "label of line 33 of .* is missing"),
        ("1,nurse,,maybe", TABLE, "label of line 33 of .* is 'maybe', which is not among"),
        ("1,nurse,,a\x7fb", FREE, "label of line 33 of .* holds characters that cannot be shown"),
        ("1,nurse", TABLE, "Line 33 of .* has 2 cells, the header 4"),
        ('1,"nurse,,no', TABLE, "The row from line 33 on of .* is not valid CSV"),
        (f"1,{'x' * 131_073},,no", TABLE, "Line 33 of .* is not valid CSV"),
        ("1,\0,,no", TABLE, "NUL bytes"),
        ("1,nurse,,no", Table("y", (Ordered("job", order=("clerk", "smith")),)), "line 2 of .* holds 'nurse'"),
    ],
)
def test_errors_name_the_line_in_whatever_piece_it_is(
    tmp_path: Path, small: Path, bad: str, table: Table, message: str
) -> None:
    (tmp_path / "a.csv").write_text(rows_with(31, bad))
    with pytest.raises(MithridateError, match=message):
        read(tmp_path / "a.csv", table, labels=True)
    with pytest.raises(MithridateError, match=message):
        read(tmp_path / "a.csv", table, labels=True)  # also where a store tells how far the first one came


def test_bytes_that_are_no_text_are_counted_from_the_beginning(tmp_path: Path, small: Path) -> None:
    data = rows_with(31, "1,é,,no").encode()
    place = data.index("é".encode())
    (tmp_path / "a.csv").write_bytes(data[: place + 1] + b"!" + data[place + 2 :])
    with pytest.raises(ArtifactError, match=f"byte {place}"):
        read(tmp_path / "a.csv", TABLE)


def test_what_is_said_of_all_rows(tmp_path: Path, small: Path) -> None:
    """Most values of all rows are outside, of the last pieces none; a column has values in the first rows alone."""
    rows = ["99,nurse,2020-01-01,no"] * 30 + ["1,,,yes"] * 20
    (tmp_path / "a.csv").write_text("\n".join(["age,job,hired,y", *rows]))
    (note,) = read(tmp_path / "a.csv", TABLE, labels=True).notes
    assert read(tmp_path / "a.csv", TABLE, labels=True).notes == (note,)  # also where the store tells it
    assert note == "More than half of the values of 'age' lie outside 0 to 50 and were clipped; check its unit."
    (tmp_path / "a.csv").write_text("\n".join(["age,job,hired,y", *["1,,,yes", "2,,,no"] * 25]))
    with pytest.raises(ConfigError, match=r"'job' of .* has no values at all"):
        read(tmp_path / "a.csv", TABLE, labels=True)
    (tmp_path / "a.csv").write_text("\n".join(["age,job,hired,y", *["1,nurse,2020-01-01,a"] * 50]))
    with pytest.raises(ConfigError, match="All examples have the label 'a'"):
        read(tmp_path / "a.csv", FREE, labels=True)


def test_a_line_without_end_is_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "BLOCK_BYTES", 100)
    monkeypatch.setattr(table_files, "_LONGEST_LINE", 1000)
    (tmp_path / "a.csv").write_text("age,y\n" + "1" * 2000)
    with pytest.raises(ArtifactError, match="line of more than 1,000 characters"):
        read(tmp_path / "a.csv", TABLE)
    (tmp_path / "a.csv").write_text("\n" * 2000 + "age,y\n")
    with pytest.raises(ArtifactError, match="begins with more than 1,000 empty lines"):
        read(tmp_path / "a.csv", TABLE)


# --- the store ------------------------------------------------------------------------------------------------------


def stores(cache: Path) -> list[Path]:
    """The folders of examples in the cache."""
    return sorted(cache.glob("examples-*"))


@pytest.fixture
def big(tmp_path: Path, small: Path) -> Path:
    """A file that is too large for the memory of these tests."""
    (tmp_path / "big.csv").write_text(table_text(150))
    return tmp_path / "big.csv"


def no_more_reading(*_: Any) -> Iterator[Any]:
    """What takes the place of a reader that must not be asked."""
    raise AssertionError("the source was read again")


@pytest.mark.parametrize("table", [TABLE, FREE, WORDS])
@pytest.mark.parametrize("labels", [True, False])
def test_large_sources_are_read_once(
    big: Path, small: Path, monkeypatch: pytest.MonkeyPatch, table: Table, labels: bool
) -> None:
    expected = said(whole(big, table, labels=labels))
    first = read(big, table, labels=labels)
    assert said(first) == expected
    assert isinstance(first.x, np.memmap)
    assert not first.x.flags.writeable
    (folder,) = stores(small)
    assert folder.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(table_files, "pieces", no_more_reading)
    assert said(read(big, table, labels=labels)) == expected


def test_small_sources_leave_nothing_behind(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "a.csv").write_text(table_text(60))
    found = read(tmp_path / "a.csv", TABLE, labels=True)
    assert not isinstance(found.x, np.memmap)
    assert not cache.exists()


def test_another_content_or_declaration_is_read_anew(big: Path, small: Path) -> None:
    before, times = read(big, TABLE, labels=True), big.stat()
    text = big.read_text()
    big.write_text(text.replace("17", "71", 1))  # as long as it was, and as old
    os.utime(big, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = read(big, TABLE, labels=True)
    assert said(after) == said(whole(big, labels=True)) != said(before)
    assert len(stores(small)) == 1
    assert read(big, FREE, labels=True).assumptions
    assert read(big, TABLE, labels=False).y is None
    assert len(stores(small)) == 3
    assert len(before.x) == len(after.x)  # what somebody has mapped stays what it was
    big.write_text(text)
    assert said(before) == said(read(big, TABLE, labels=True))


def cut(path: Path) -> None:
    """Lose the end of a file."""
    path.write_bytes(path.read_bytes()[:-1])


def changed(path: Path) -> None:
    """Change a byte in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "damage"),
    [("x.npy", cut), ("labels.npy", cut), ("store.json", cut), ("store.json", changed), ("x.npy", Path.unlink)],
)
def test_a_damaged_store_is_read_again(big: Path, small: Path, name: str, damage: Callable[[Path], None]) -> None:
    expected = said(read(big, FREE, labels=True))
    (folder,) = stores(small)
    damage(folder / name)
    assert said(read(big, FREE, labels=True)) == expected
    assert said(read(big, FREE, labels=True)) == expected


def test_a_store_that_others_may_write_to_is_not_used(big: Path, small: Path) -> None:
    expected = said(read(big, TABLE, labels=True))
    (folder,) = stores(small)
    np.load(folder / "x.npy", mmap_mode="r+")[:] = 0
    folder.chmod(0o777)
    assert said(read(big, TABLE, labels=True)) == expected


@pytest.mark.parametrize("chosen", ["off", "a file"])
def test_without_a_cache_folder_files_have_no_name(
    big: Path, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv("MITHRIDATE_CACHE", chosen if chosen == "off" else str(tmp_path / chosen))
    found = read(big, TABLE, labels=True)
    assert isinstance(found.x, np.memmap)
    assert said(found) == said(whole(big, labels=True))
    assert not small.exists()


def interrupted_after(count: int, read_pieces: Any) -> Any:
    """A reader that is interrupted after so many pieces."""

    def pieces(*given: Any) -> Iterator[Any]:
        for number, piece in enumerate(read_pieces(*given)):
            if number == count:
                raise KeyboardInterrupt
            yield piece

    return pieces


@pytest.mark.parametrize("table", [TABLE, FREE, WORDS])
@pytest.mark.parametrize("count", [1, 20, 25, 40])
def test_an_interrupted_reading_is_resumed(
    big: Path, small: Path, monkeypatch: pytest.MonkeyPatch, table: Table, count: int
) -> None:
    expected, whole_file = said(whole(big, table, labels=True)), table_files.pieces
    monkeypatch.setattr(table_files, "pieces", interrupted_after(count, whole_file))
    if table is WORDS:  # to find the longest text, all of it is read once
        monkeypatch.setattr(reading.TableReading, "layout", lambda self: (expected[0], ()))
    with pytest.raises(KeyboardInterrupt):
        read(big, table, labels=True)
    started: list[Any] = []
    monkeypatch.setattr(table_files, "pieces", lambda *given: started.append(given[2]) or whole_file(*given))
    assert said(read(big, table, labels=True)) == expected
    assert (started[0] is not None) == (count > 1)


@pytest.mark.parametrize("name", ["x.npy", "labels.npy", "lines.npy"])
def test_damage_to_an_unfinished_store_is_found(
    big: Path, small: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(table_files, "pieces", interrupted_after(30, table_files.pieces))
        with pytest.raises(KeyboardInterrupt):
            read(big, TABLE, labels=True)
    (folder,) = stores(small)
    changed(folder / name)
    assert said(read(big, TABLE, labels=True)) == said(whole(big, labels=True))


def test_two_that_read_the_same_do_no_harm(big: Path, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second begins and ends while the first is at it."""
    expected, original = said(whole(big, labels=True)), table_files.pieces

    def pieces(*given: Any) -> Iterator[Any]:
        for number, piece in enumerate(original(*given)):
            if number == 30:
                monkeypatch.setattr(table_files, "pieces", original)
                assert said(read(big, TABLE, labels=True)) == expected
                assert b'"finished": false' in (stores(small)[0] / "store.json").read_bytes()  # which is the first's
            yield piece

    monkeypatch.setattr(table_files, "pieces", pieces)
    assert said(read(big, TABLE, labels=True)) == expected
    monkeypatch.setattr(table_files, "pieces", no_more_reading)
    assert said(read(big, TABLE, labels=True)) == expected


def test_a_file_that_changes_while_it_is_read_is_refused(
    big: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = table_files.pieces

    def pieces(*given: Any) -> Iterator[Any]:
        for number, piece in enumerate(original(*given)):
            if number == 30:
                with big.open("a") as file:
                    file.write("\n1,nurse,,no,x")
            yield piece

    monkeypatch.setattr(table_files, "pieces", pieces)
    with pytest.raises(ArtifactError, match="was changed while it was read"):
        read(big, TABLE, labels=True)
    monkeypatch.setattr(table_files, "pieces", original)
    assert said(read(big, TABLE, labels=True)) == said(whole(big, labels=True))


def test_stores_that_nobody_asks_for_are_removed(big: Path, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read(big, TABLE, labels=True)
    (old,) = stores(small)
    read(big, FREE, labels=True)
    for folder in stores(small):
        os.utime(folder / "store.json", (0, 0))
    assert len(read(big, FREE, labels=True).x)  # which is asking for it
    read(big, WORDS, labels=True)
    assert old not in stores(small)
    assert len(stores(small)) == 2


def test_a_full_disk_is_a_clear_error(big: Path, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(example_store._Growing, "append", full)
    with pytest.raises(ArtifactError, match=r"No space left on device\. Make room there, or set MITHRIDATE_CACHE"):
        read(big, TABLE, labels=True)


@pytest.mark.more
def test_a_killed_reading_is_resumed(big: Path, small: Path) -> None:
    """A process is killed without warning, after its first word about how far it is."""
    program = f"""
import sys, time
from mithridate.data import read, reading, table_files
from test_reading import TABLE
table_files.BLOCK_BYTES, reading._COMMITTED_BYTES = 64, 100
commit = reading._Kept._commit
def slow(self):
    commit(self); print("committed", flush=True); time.sleep(0.05)
reading._Kept._commit = slow
read({str(big)!r}, TABLE, labels=True)
print("finished", flush=True)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment, text=True) as run:
        assert run.stdout is not None
        words = [run.stdout.readline() for _ in range(4)]
        os.kill(run.pid, signal.SIGKILL)
    assert words == ["committed\n"] * 4
    (folder,) = stores(small)
    assert b'"finished": false' in (folder / "store.json").read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        original, started = table_files.pieces, list[Any]()
        patch.setattr(table_files, "pieces", lambda *given: started.append(given[2]) or original(*given))
        assert said(read(big, TABLE, labels=True)) == said(whole(big, labels=True))
    assert started[0] is not None


# --- folders of images ----------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, small: Path) -> Path:
    """Twelve images of two classes."""
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for number in range(12):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(rng.integers(0, 256, (10, 8, 3), dtype=np.uint8)).save(path)
    return tmp_path / "images"


def test_images_in_pieces(folder: Path, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = Images((10, 8))
    expected, load = said(whole(folder, declared, labels=True)), reading.images.load
    loaded: list[int] = []

    def counting(root: Path, names: Any, how: Images) -> Any:
        loaded.append(len(names))
        if sum(loaded) == 10:
            raise KeyboardInterrupt
        return load(root, names, how)

    monkeypatch.setattr(reading.images, "load", counting)
    with pytest.raises(KeyboardInterrupt):
        read(folder, declared, labels=True)
    found = read(folder, declared, labels=True)
    assert said(found) == expected
    assert isinstance(found.x, np.memmap)
    assert sum(loaded) == 10 + 4  # the eight that were finished are not read again
    assert said(read(folder, declared, labels=True)) == expected
    assert sum(loaded) == 10 + 4
    (folder / "a" / "02.png").write_bytes((folder / "a" / "00.png").read_bytes())
    again = read(folder, declared, labels=True)
    np.testing.assert_array_equal(again.x[0], again.x[1])


# --- plain arrays ---------------------------------------------------------------------------------------------------


def test_plain_arrays_are_mapped(tmp_path: Path) -> None:
    x, y = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([0, 1, 2, 1])
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    for path in (tmp_path, tmp_path / "x.npy"):
        found = read(path, labels=True)
        np.testing.assert_array_equal(found.x, x)
        assert np.asarray(found.y).tolist() == y.tolist()
        assert not found.x.flags.writeable
        assert read(path, labels=False).y is None
    np.save(tmp_path / "other.npy", x[:2])
    assert read(tmp_path / "other.npy").y is None  # those beside it are labels of x.npy
    np.save(tmp_path / "x.npy", np.array(["one", "two", "three", "four"]))
    assert read(tmp_path, labels=True).x.tolist() == ["one", "two", "three", "four"]


class Trap:
    """Something that tells when it is unpickled."""

    def __reduce__(self) -> Any:
        return pytest.fail, ("an array was unpickled",)


def test_arrays_that_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.ones((3, 2)))
    with pytest.raises(ArtifactError, match=r"no labels beside it; save inputs as x.npy and labels as y.npy"):
        read(path, labels=True)
    data = path.read_bytes()
    for bad in (b"", data[:50], data[:-1], data + b"\0", b"text", data.replace(b"descr", b"shape", 1)):
        path.write_bytes(bad)
        with pytest.raises(ArtifactError, match=r"not a readable \.npy"):
            read(path)
    for held, message in ((np.array([Trap()], dtype=object), "Python objects"), (np.zeros(2, "i4,f4"), "no plain")):
        np.save(path, held, allow_pickle=True)
        with pytest.raises(ArtifactError, match=message):
            read(path)
    text = np.array(["ab"])
    np.save(path, text)
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")  # beyond the last of all characters
    with pytest.raises(ArtifactError, match="holds what is no text"):
        read(path)


# --- parts ----------------------------------------------------------------------------------------------------------


def test_parts_of_what_is_larger_than_memory(big: Path, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, at_once = read(big, TABLE, labels=True), whole(big, labels=True)
    assert at_once.y is not None
    training, held_out = split_by_hash(found, 0.4)
    np.testing.assert_array_equal(shared_with(held_out.x, found.x), True)
    np.testing.assert_array_equal(shared_with(held_out.x, training.x), False)
    np.testing.assert_array_equal(content_hashes(found.x, at_once.y), content_hashes(at_once.x, at_once.y))
    mask = np.arange(len(found.x)) % 3 == 0
    assert isinstance(taken(found.x, mask), np.memmap)
    np.testing.assert_array_equal(taken(found.x, mask), at_once.x[mask])
    np.testing.assert_array_equal(taken(found.x, np.array([5, 2, 5])), at_once.x[[5, 2, 5]])
    monkeypatch.delenv("MITHRIDATE_MEMORY_BYTES")
    for part, expected in zip((training, held_out), split_by_hash(at_once, 0.4), strict=True):
        assert said(part) == said(expected)


@given(st.lists(st.integers(0, 99), min_size=1, max_size=9), st.data())
def test_names_that_are_made_when_asked_for(numbers: list[int], data: st.DataObject) -> None:
    names = tuple(f"line {number}" for number in numbers)
    ids = Ids("line {}".format, np.array(numbers))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(numbers), max_size=len(numbers))), dtype=bool)
    chosen = np.array(data.draw(st.lists(st.integers(0, len(numbers) - 1), max_size=5)), dtype=np.int64)
    part = data.draw(st.slices(len(numbers)))
    assert len(ids) == len(names)
    assert ids == names == ids
    assert ids == list(names) == as_ids(names)
    assert [ids[at] for at in range(-len(names), len(names))] == [*names, *names]
    assert ids[part] == names[part]
    assert ids[mask] == [name for name, kept in zip(names, mask, strict=True) if kept]
    assert as_ids(names)[chosen] == ids[chosen] == [names[at] for at in chosen]
    assert joined(ids, names, "trusted")[part] == (*names, *(f"trusted {name}" for name in names))[part]
    assert ids != (*names, "line")
    assert ids != tuple(f"{name}!" for name in names)


# --- progress -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("long", [False, True])
def test_only_what_takes_long_is_shown(
    big: Path, small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], long: bool
) -> None:
    monkeypatch.setattr(_progress, "_LINE_SECONDS", 0.0)
    monkeypatch.setattr(_progress, "_MOMENT_SECONDS", -1.0 if long else 1e9)
    read(big, TABLE, labels=True)
    size = f"{big.stat().st_size:,}"
    assert (f"of {size} bytes" in capsys.readouterr().err) == long


def test_it_is_shown_where_something_is_shown_already(
    big: Path, small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_progress, "_LINE_SECONDS", 0.0)
    with _progress.shown():
        read(big, TABLE, labels=True)
    assert "bytes/s" in capsys.readouterr().err
