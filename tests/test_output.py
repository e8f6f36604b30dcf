"""What the command line writes where, and what it never writes."""

from pathlib import Path

import pytest

from mithridate._text import printable
from mithridate.cli._shared import check_apart, check_writable, percent
from mithridate.errors import ArtifactError


@pytest.mark.parametrize("name", ["run.json", "seed", "lock", "votes.npz", "inputs.npz"])
def test_files_of_a_run_are_not_overwritten(tmp_path: Path, name: str) -> None:
    check_writable(tmp_path / name)  # there is no run yet
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ArtifactError, match="belongs to the run"):
        check_writable(tmp_path / name)
    check_writable(tmp_path / "report.html")


@pytest.mark.parametrize("folder", ["models", "shards"])
def test_models_and_shards_of_a_run_are_not_overwritten(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    check_writable(tmp_path / folder / "000000-000007.npz")
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ArtifactError, match="belongs to the run"):
        check_writable(tmp_path / folder / "000000-000007.npz")


def test_what_is_read_is_not_overwritten(tmp_path: Path) -> None:
    data, other = tmp_path / "data.csv", tmp_path / "out.csv"
    data.write_text("a\n")
    check_apart(other, data, None)
    other.symlink_to(data)
    for out in (data, other):
        with pytest.raises(ArtifactError, match="it is read from"):
            check_apart(out, None, data)


def test_names_that_no_file_can_have_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError):
        check_writable(tmp_path / ("x" * 300) / "report.html")


@pytest.mark.parametrize("count", range(1, 400, 7))
def test_a_share_is_never_rounded_up_to_all(count: int) -> None:
    assert (percent(1 - 1 / (100 * count)) == "100.00%") is False
    assert percent(1.0) == "100.00%"


def test_what_a_terminal_would_obey_is_escaped() -> None:
    hostile = "a\x1b[2Jb\x07\u202ec\x7f\r"
    assert printable(hostile) == "a\\x1b[2Jb\\x07\\u202ec\\x7f\\r"
    assert printable("Grüße, 文字\nzweite Zeile") == "Grüße, 文字\nzweite Zeile"
