"""Hashed files: every change is found, and nothing half-written ever replaces what was there."""

import base64
import hashlib
import io
import json
import os
import stat
import zipfile
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mithridate import ArtifactError, Certificate, SampledGaussian, TamperedError, Votes, certify, verify
from mithridate._io import artifacts as _artifact
from mithridate._io import files as _files
from mithridate._io.artifacts import decode_array, read_hashed, read_npz, write_hashed, write_npz
from mithridate._io.files import read_file, write_atomically, write_once

SCHEMA = "mithridate.certificate/1"


@cache
def certificate() -> Certificate:
    votes = Votes.from_counts(
        [[100, 0, 0], [20, 70, 10], [40, 30, 30]], mechanism=SampledGaussian(4.0, 1.0, 4), labels=[0, 1, 2]
    )
    return certify(votes)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "certificate.json"
    certificate().save(path)
    return path.read_bytes()


def load_bytes(folder: Path, data: bytes) -> Certificate:
    path = folder / "changed.json"
    path.write_bytes(data)
    return Certificate.load(path)


# --- changed bytes --------------------------------------------------------------------------------------------------


def test_the_file_is_one_json_object_with_schema_size_and_hash(saved: bytes) -> None:
    content = json.loads(saved)
    assert content["schema"] == SCHEMA
    assert int(content["size"]) == len(saved)
    blank = saved.replace(content["sha256"].encode(), b"0" * 64)
    assert hashlib.sha256(blank).hexdigest() == content["sha256"]


def test_every_single_position_is_covered(tmp_path: Path, saved: bytes) -> None:
    for position in range(len(saved)):
        changed = saved[:position] + bytes([saved[position] ^ 1]) + saved[position + 1 :]
        with pytest.raises(TamperedError):
            load_bytes(tmp_path, changed)


@given(position=st.integers(0, 10**9), value=st.integers(1, 255))
@example(position=0, value=1)
@example(position=-1, value=ord("\n") ^ ord(" "))
def test_a_changed_byte_is_found(
    tmp_path_factory: pytest.TempPathFactory, saved: bytes, position: int, value: int
) -> None:
    at = position % len(saved)
    changed = saved[:at] + bytes([saved[at] ^ value]) + saved[at + 1 :]
    with pytest.raises(TamperedError):
        load_bytes(tmp_path_factory.mktemp("byte"), changed)


@given(start=st.integers(0, 10**9), end=st.integers(0, 10**9), insert=st.binary(max_size=20))
def test_any_cut_or_insertion_is_found(
    tmp_path_factory: pytest.TempPathFactory, saved: bytes, start: int, end: int, insert: bytes
) -> None:
    low, high = sorted((start % (len(saved) + 1), end % (len(saved) + 1)))
    changed = saved[:low] + insert + saved[high:]
    if changed == saved:
        return
    with pytest.raises(ArtifactError):
        load_bytes(tmp_path_factory.mktemp("cut"), changed)


@given(length=st.integers(0, 10**9))
@example(length=-1)
@example(length=-2)
@example(length=0)
def test_a_truncated_file_is_called_unreadable_not_changed(
    tmp_path_factory: pytest.TempPathFactory, saved: bytes, length: int
) -> None:
    with pytest.raises(ArtifactError) as caught:
        load_bytes(tmp_path_factory.mktemp("short"), saved[: length % len(saved)])
    assert not isinstance(caught.value, TamperedError)


@pytest.mark.parametrize("tail", [b"\n", b" ", b"x", b"\x00" * 100, b'{"radius": 1000}'])
def test_appended_bytes_are_found(tmp_path: Path, saved: bytes, tail: bytes) -> None:
    with pytest.raises(TamperedError):
        load_bytes(tmp_path, saved + tail)


def test_verify_reports_a_changed_byte_and_refuses_a_truncated_file(tmp_path: Path, saved: bytes) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(saved.replace(b"0.001", b"0.002", 1))
    outcome = verify(path)
    assert not outcome.valid
    assert [check.passed for check in outcome.checks] == [False]
    path.write_bytes(saved[:-10])
    with pytest.raises(ArtifactError, match="truncated"):
        verify(path)


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[]", b"null", b"PK\x03\x04", bytes(range(256)), b'{"schema": "mithridate.votes/1"}', b"\xff" * 1000],
)
def test_other_files_are_not_certificates(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ArtifactError, match=r"not a mithridate\.certificate file") as caught:
        load_bytes(tmp_path, data)
    assert not isinstance(caught.value, TamperedError)


def _hashed(text: str) -> bytes:
    """Text with a right hash in place of the zeros it holds."""
    return text.replace("0" * 64, hashlib.sha256(text.encode()).hexdigest()).encode()


ZEROS = "0" * 64


@pytest.mark.parametrize(
    "text",
    [
        f'[{{"sha256": "{ZEROS}"}}]',
        f'{{"sha256": "{ZEROS}"}}',
        f'{{"schema": "mithridate.certificate/2", "sha256": "{ZEROS}"}}',
        f'{{"schema": "{SCHEMA}", "sha256": "{ZEROS}"}}',
        f'{{"schema": "{SCHEMA}", "sha256": "{ZEROS}", "x": {"[" * 100_000}',
        f'{{"schema": "{SCHEMA}", "sha256": "{ZEROS}"',
    ],
)
def test_a_right_hash_alone_does_not_make_a_certificate(tmp_path: Path, text: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        load_bytes(tmp_path, _hashed(text))
    assert not isinstance(caught.value, TamperedError)


@pytest.mark.parametrize("name", ["missing.json", "."])
def test_missing_files_and_folders(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArtifactError, match="Cannot read"):
        Certificate.load(tmp_path / name)


# --- arrays ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int64, np.float64, np.float32])
@pytest.mark.parametrize("shape", [(0,), (3,), (2, 3), (2, 0, 4)])
def test_arrays_survive(tmp_path: Path, dtype: type, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).normal(size=shape).astype(dtype)
    write_hashed(tmp_path / "a.json", "test/1", {"array": array, "strided": array[..., ::-1]})
    content = read_hashed(tmp_path / "a.json", "test/1")
    for name, expected in (("array", array), ("strided", array[..., ::-1])):
        decoded = decode_array(content[name])
        assert decoded.dtype == dtype
        assert np.array_equal(decoded, expected)


@pytest.mark.parametrize(
    "change",
    [{"dtype": "object"}, {"dtype": 3}, {"shape": [4]}, {"shape": "x"}, {"data": "AAAA"}, {"data": "%"}, {"data": 7}],
)
def test_damaged_arrays_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    write_hashed(tmp_path / "a.json", "test/1", {"array": np.arange(3)})
    encoded = read_hashed(tmp_path / "a.json", "test/1")["array"]
    for wrong in ({**encoded, **change}, "text", [1, 2], 3, {}):
        with pytest.raises(ArtifactError, match="cannot be read"):
            decode_array(wrong)


@pytest.mark.parametrize("value", [np.array([object()]), np.array(["text"]), object(), {1, 2}])
def test_what_is_not_plain_is_never_written(tmp_path: Path, value: Any) -> None:
    with pytest.raises(TypeError):
        write_hashed(tmp_path / "a.json", "test/1", {"value": value})
    assert list(tmp_path.iterdir()) == []


def test_nan_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        write_hashed(tmp_path / "a.json", "test/1", {"value": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_an_array_never_unpacks_to_more_than_its_shape(tmp_path: Path) -> None:
    packed = base64.b64encode(zlib.compress(bytes(1 << 20))).decode()
    for shape in ([3], [], [1 << 16], [1 << 18], [-1], [2.0], [True], ["3"], "3", None, [0, 10**30], [1] * 99):
        with pytest.raises(ArtifactError, match="cannot be read"):
            decode_array({"dtype": "int64", "shape": shape, "data": packed})
    assert decode_array({"dtype": "int64", "shape": [1 << 17], "data": packed}) is not None
    for data in (zlib.compress(bytes(8)) + b"more", zlib.compress(bytes(8))[:-1]):
        with pytest.raises(ArtifactError, match="cannot be read"):
            decode_array({"dtype": "int64", "shape": [1], "data": base64.b64encode(data).decode()})


def bomb(path: Path, arrays: int, size: int) -> Path:
    """A certificate of little size whose arrays of zeros are as large as they say, all with a right hash."""
    packer = zlib.compressobj(9)
    piece = bytes(1 << 20)
    packed = b"".join(packer.compress(piece) for _ in range(size >> 20)) + packer.flush()
    encoded = {"dtype": "int64", "shape": [size // 8], "data": base64.b64encode(packed).decode()}
    write_hashed(path, SCHEMA, {"votes": {"arrays": {str(number): encoded for number in range(arrays)}}})
    return path


def test_arrays_that_would_fill_the_memory_are_refused_before_they_are_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bomb(tmp_path / "c.json", 40, 64 << 20)  # 2.5 GiB from 3.5 MB
    assert path.stat().st_size < 5 << 20
    monkeypatch.setattr(zlib, "decompressobj", lambda: pytest.fail("it was unpacked"))
    with pytest.raises(ArtifactError, match=r"would unpack to more than .* bytes"):
        Certificate.load(path)
    with pytest.raises(ArtifactError, match="would unpack"):
        verify(path)


def test_what_is_written_can_be_read_however_well_it_packs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With far smaller limits, so that the test is, too."""
    monkeypatch.setattr(_files, "UNPACKED_BYTES", 1 << 19)
    monkeypatch.setattr(_artifact, "UNPACKED_BYTES", 1 << 19)
    monkeypatch.setattr(_artifact, "_SMALL_ARRAY", 1 << 15)
    array = np.zeros(1 << 20, np.int64)
    write_hashed(tmp_path / "a.json", "test/1", {"arrays": [array, array]})
    for encoded in read_hashed(tmp_path / "a.json", "test/1")["arrays"]:
        assert np.array_equal(decode_array(encoded), array)
    with write_atomically(tmp_path / "a.npz") as file:
        write_npz(file, {"x": array, "y": array})
    assert np.array_equal(read_npz(tmp_path / "a.npz", "x")["y"], array)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("name", ["data_fingerprint", "failure_prob", "recipe", "versions"])
def test_numbers_that_are_not_finite_are_no_json(tmp_path: Path, saved: bytes, word: str, name: str) -> None:
    content = json.loads(saved)
    content[name] = "HERE"
    text = json.dumps({**content, "size": f"{0:012}", "sha256": ZEROS}).replace('"HERE"', word)
    with pytest.raises(ArtifactError, match="not valid JSON"):
        load_bytes(tmp_path, _hashed(text))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("assumptions", [1]), ("assumptions", ["x", None]), ("assumptions", "x"), ("assumptions", 3),
        ("error_budget", {"wrap": "x"}), ("error_budget", [["a", "b"]]),
        ("versions", {"numpy": 2}), ("versions", []), ("failure_prob", "x"), ("failure_prob", 7**400),
    ],
)  # fmt: skip
def test_values_of_another_kind_are_refused(tmp_path: Path, saved: bytes, name: str, value: Any) -> None:
    text = json.dumps({**json.loads(saved), "size": f"{0:012}", "sha256": ZEROS, name: value})
    with pytest.raises(ArtifactError, match="cannot be understood"):
        load_bytes(tmp_path, _hashed(text))


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("assumptions", [1.5], "cannot be read"), ("assumptions", [[]], "cannot be read"),
        ("assumptions", None, "cannot be read"), ("data_fingerprint", 3, "cannot be understood"),
        ("data_fingerprint", ["x"], "cannot be understood"), ("recipe", [], "cannot be understood"),
    ],
)  # fmt: skip
def test_values_of_votes_of_another_kind_are_refused(
    tmp_path: Path, saved: bytes, name: str, value: Any, says: str
) -> None:
    content = json.loads(saved)
    content["votes"][name] = value
    with pytest.raises(ArtifactError, match=says):
        load_bytes(tmp_path, _hashed(json.dumps({**content, "size": f"{0:012}", "sha256": ZEROS})))


def test_a_huge_file_of_another_kind_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "c.json").open("wb") as file:
        file.truncate(1 << 40)  # a hole, which takes no room
    with pytest.raises(ArtifactError, match="not a mithridate"):
        Certificate.load(tmp_path / "c.json")


# --- .npz -----------------------------------------------------------------------------------------------------------


def npz(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def npy(array: Any = (1.0, 2.0, 3.0), header: str | None = None, version: tuple[int, int] = (1, 0)) -> bytes:
    """An array as numpy writes it, or with a header of one's own."""
    stream = io.BytesIO()
    np.save(stream, np.array(array))
    if header is None:
        return stream.getvalue()
    length = len(header).to_bytes(2 if version == (1, 0) else 4, "little")
    return b"\x93NUMPY" + bytes(version) + length + header.encode("latin-1") + np.array(array).tobytes()


def headed(text: str) -> bytes:
    return npy(header=text)


GOOD = "{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }"


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.array("é\ud800"), np.array(3.5),
        np.zeros((0, 4), np.uint8), np.array([True, False]), np.array([1, 2], ">i4"), np.array([b"ab", b"c"]),
        np.array(["one", "two"]), np.array([1 + 2j]), np.arange(24).reshape(2, 3, 4)[:, ::2],
    ],
)  # fmt: skip
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_numpy_are_read_as_numpy_reads_them(tmp_path: Path, array: Any, save: Any) -> None:
    save(tmp_path / "a.npz", x=array)
    found = read_npz(tmp_path / "a.npz", "x")["x"]
    with np.load(tmp_path / "a.npz") as file:
        expected = file["x"]
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert np.array_equal(found, expected)
    assert found.flags.writeable


@pytest.mark.parametrize(
    "content",
    [
        headed(GOOD),
        headed(GOOD + " " * 70 + "\n"),
        headed('{"shape":(3L,),"fortran_order":False,"descr":"<f8"}'),
        npy(header=GOOD, version=(2, 0)),
        npy(header=GOOD, version=(3, 0)),
    ],
)
def test_other_writers_of_arrays_are_understood(tmp_path: Path, content: bytes) -> None:
    path = npz(tmp_path / "a.npz", {"x.npy": content})
    assert read_npz(path, "x")["x"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "content",
    [
        headed(GOOD)[:-1],
        headed(GOOD) + b"x",
        *(
            headed(GOOD.replace(old, new))
            for old, new in [
                ("3", "2"), ("3", "4"), ("3", "9" * 30), ("3", "3)("), ("3,", "3,,"), ("(3,)", "(3, 0)"),
                ("(3,)", "(-3,)"), ("(3,)", "(" * 3000), ("<f8", "<f3"), ("<f8", "<U0"), ("<f8", "<U" + "9" * 9),
                ("False", "-0"), ("'shape'", "'shape': (3,), 'shape'"), ("}", "1: 2}"), ("}", ""),
                ("'descr': '<f8', ", ""),
            ]
        ),
        *(headed(text) for text in ("", "{'descr': '<f8", "{" + "-" * 9999 + "1}", "\0" * 50, "\xe9" + GOOD)),
        npy(header=GOOD, version=(4, 0)),
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x02\0\xff\xff\xff\xff",
        headed(GOOD).replace(b"NUMPY", b"NUMPI"),
        npy([0x110000, 1, 2]).replace(b"<i8", b"<U2"),
    ],
)  # fmt: skip
def test_damaged_headers_are_refused(tmp_path: Path, content: bytes) -> None:
    """Though the checksum is right: whoever wrote it, or whatever the damage was before it was written."""
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        path = npz(tmp_path / "a.npz", {"x.npy": content}, method)
        with pytest.raises(ArtifactError, match="not a readable"):
            read_npz(path, "x")


@pytest.mark.parametrize(
    ("descr", "says"),
    [("'|O'", "Python objects"), ("'<M8[ns]'", "plain array"), ("'V8'", "plain array"), ("[('a', '<f8')]", "plain"),
     ("[('a', '|O')]", "Python objects")],
)  # fmt: skip
def test_what_is_no_plain_array_is_refused(tmp_path: Path, descr: str, says: str) -> None:
    path = npz(tmp_path / "a.npz", {"x.npy": headed(GOOD.replace("'<f8'", descr))})
    with pytest.raises(ArtifactError, match=says):
        read_npz(path, "x")


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_other_kinds_of_compression_are_refused(tmp_path: Path, method: int) -> None:
    with pytest.raises(ArtifactError, match="deflate"):
        read_npz(npz(tmp_path / "a.npz", {"x.npy": npy()}, method), "x")


@pytest.mark.parametrize("names", [["x.npy", "note.txt"], ["x"], ["x.npy", "x.npy"]])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_that_are_no_arrays_are_refused(tmp_path: Path, names: list[str]) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for name in names:
            archive.writestr(name, npy())
    with pytest.raises(ArtifactError, match="not a readable"):
        read_npz(tmp_path / "a.npz", "x")


def test_a_zip_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a far smaller limit, so that the test is, too."""
    monkeypatch.setattr(_files, "UNPACKED_BYTES", 1 << 20)
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(1 << 20))
    with pytest.raises(ArtifactError, match=r"unpacks to more than .*np\.savez"):
        read_npz(tmp_path / "a.npz", "x")
    np.savez(tmp_path / "a.npz", x=np.zeros(1 << 20))
    assert len(read_npz(tmp_path / "a.npz", "x")["x"]) == 1 << 20


def test_members_that_claim_to_be_smaller_are_refused(tmp_path: Path) -> None:
    """The size in the directory bounds what is unpacked; what is behind it shows in the checksum."""
    path = npz(tmp_path / "a.npz", {"x.npy": npy(np.zeros(1 << 17))}, zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02") + 24
    data[at : at + 4] = (128 + 8).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match="not a readable"):
        read_npz(path, "x")


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipes_and_devices_are_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    for read in (Certificate.load, verify, Votes.load, read_file, lambda path: read_npz(path, "x")):
        with pytest.raises(ArtifactError, match="a pipe or a device"):
            read(path)


# --- writing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError("a bug"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"precious")

    def write() -> None:
        with write_atomically(path) as file:
            file.write(b"half of it")
            raise error

    with pytest.raises(type(error)):
        write()
    assert path.read_bytes() == b"precious"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_leaves_the_old_file_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"precious")
    with pytest.raises(ArtifactError, match="No space left"), write_atomically(path):
        raise OSError(28, "No space left on device")
    assert path.read_bytes() == b"precious"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_certificate_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, saved: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(saved)

    def refuse(source: str, target: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    for write in (certificate().save, certificate().votes.save):
        with pytest.raises(ArtifactError, match="Permission denied"):
            write(path)
    assert path.read_bytes() == saved
    assert [p.name for p in tmp_path.iterdir()] == ["c.json"]


def test_a_folder_that_is_not_there_is_an_artifact_error(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="Cannot write"):
        certificate().save(tmp_path / "missing" / "c.json")


def test_the_file_has_the_mode_of_any_other_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    certificate().save(tmp_path / "c.json")
    certificate().votes.save(tmp_path / "v.npz")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "c.json", "v.npz")}
    assert len(modes) == 1
    assert modes.pop() & 0o111 == 0


def test_equal_certificates_are_equal_bytes(tmp_path: Path, saved: bytes) -> None:
    Certificate.load(_written(tmp_path / "a.json", saved)).save(tmp_path / "b.json")
    assert (tmp_path / "b.json").read_bytes() == saved


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_what_is_written_once_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert write_once(path, b"first")
    assert not write_once(path, b"second")
    assert path.read_bytes() == b"first"
    assert [left.name for left in tmp_path.iterdir()] == ["file"]
    with pytest.raises(ArtifactError, match="Cannot write"):
        write_once(tmp_path / "nowhere" / "file", b"")
