"""Hashed files: every change is found, and nothing half-written ever replaces what was there."""

import hashlib
import json
import os
import stat
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mithridate import ArtifactError, Certificate, SampledGaussian, TamperedError, Votes, certify, verify
from mithridate._artifact import decode_array, read_hashed, write_atomically, write_hashed, write_once

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
    write_hashed(tmp_path / "a.json", "test/1", {"array": array, "strided": array[..., ::-1], "none": None})
    content = read_hashed(tmp_path / "a.json", "test/1")
    for name, expected in (("array", array), ("strided", array[..., ::-1])):
        decoded = decode_array(content[name])
        assert decoded is not None
        assert decoded.dtype == dtype
        assert np.array_equal(decoded, expected)
    assert decode_array(content["none"]) is None


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
