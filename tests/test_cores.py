"""Cores for work that rounds nothing: what callers at the same time leave behind."""

from __future__ import annotations

import threading

import pytest

from mithridate import _computer


def test_callers_at_the_same_time_leave_no_limit_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    set_to: list[int] = [4]

    class Libraries:
        """Libraries of matrix products that have four threads."""

        def limit(self, *, limits: int, user_api: str) -> Libraries:
            self.before = set_to[-1]
            set_to.append(limits)
            return self

        def restore_original_limits(self) -> None:
            set_to.append(self.before)

        def __enter__(self) -> None:
            pass

        def __exit__(self, *error: object) -> None:
            self.restore_original_limits()

    monkeypatch.setattr(_computer, "_libraries", Libraries)
    both, first_is_done = threading.Barrier(2), threading.Event()

    def work(is_first: bool) -> None:
        both.wait(60)
        assert is_first or first_is_done.wait(60)

    def first() -> None:
        list(_computer.on_cores(work, [True]))
        first_is_done.set()

    threads = [threading.Thread(target=each) for each in (first, lambda: list(_computer.on_cores(work, [False])))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert set_to[-1] == 4


def test_an_error_leaves_no_limit_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with pytest.raises(ZeroDivisionError):
        list(_computer.on_cores(lambda number: 1 // number, [1, 0]))
    assert not _computer._limits
