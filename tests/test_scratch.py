"""Arrays that may be larger than memory."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

from mithridate._io.scratch import read_mapped, scratch, write_mapped
from mithridate.errors import ArtifactError


def test_a_large_array_lies_in_a_file_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("MITHRIDATE_MEMORY_BYTES", "1000")
    small, large = scratch((500,), np.int16), scratch((501,), np.int16)
    assert not isinstance(small, np.memmap)
    assert isinstance(large, np.memmap)
    assert list(tmp_path.iterdir()) == []
    large[:] = np.arange(501)
    assert np.array_equal(large, np.arange(501))


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="room cannot be reserved here")
def test_no_room_is_said_before_anything_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ArtifactError, match=r"no room for 4,611,686,018,427,387,904 bytes.*TMPDIR"):
        scratch((1 << 62,), np.int8)


def test_a_mapped_file_is_read_back(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.int16).reshape(6, 4)
    digest = write_mapped(tmp_path / "rows.npy", array)
    found = read_mapped(tmp_path / "rows.npy", digest)
    assert isinstance(found, np.memmap)
    assert found.dtype == np.int16
    assert np.array_equal(found, array)
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1


@pytest.mark.parametrize("place", [0, 9, 60, -1])
def test_a_changed_byte_of_a_mapped_file_is_found(tmp_path: Path, place: int) -> None:
    digest = write_mapped(path := tmp_path / "rows.npy", np.arange(24, dtype=np.int16).reshape(6, 4))
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match="again"):
        read_mapped(path, digest)


def test_a_mapped_file_that_is_cut_short_or_holds_objects_is_refused(tmp_path: Path) -> None:
    digest = write_mapped(path := tmp_path / "rows.npy", np.arange(24, dtype=np.int16).reshape(6, 4))
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ArtifactError, match="Cannot read"):
        read_mapped(path, digest)
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ArtifactError, match="Cannot read"):
        read_mapped(path, digest)
    path.unlink()
    with pytest.raises(ArtifactError, match="no file"):
        read_mapped(path, digest)


@pytest.mark.parametrize(
    "header", ["'<i2', 'shape': (1180591620717411303424,)", "'<i2', 'shape': ()", "'<M8[s]', 'shape': (2,)"]
)
def test_a_header_that_only_damage_can_have_written_is_refused(tmp_path: Path, header: str) -> None:
    text = f"{{'fortran_order': False, 'descr': {header}, }}".ljust(117).encode() + b"\n"
    path = tmp_path / "rows.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(64))
    with pytest.raises(ArtifactError, match="again"):
        read_mapped(path, "0" * 64)
