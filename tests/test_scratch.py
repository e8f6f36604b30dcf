"""Arrays that may be larger than memory."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

from mithridate._io.scratch import scratch
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
