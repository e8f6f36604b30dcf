"""Counts of what a server did, in the text format of Prometheus, added up over its workers.

Every worker writes its own numbers into an array, in a file where there are several workers, and whoever is asked adds
all of them up. Numbers of workers that ended still count, so that no counter falls.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

STATUSES = (200, 400, 401, 404, 405, 408, 413, 415, 422, 429, 500, 503)
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_OTHER = len(STATUSES)
_PREDICTIONS, _IN_FLIGHT, _SUM = _OTHER + 1, _OTHER + 2, _OTHER + 3
_BUCKETS = _SUM + 1
_LENGTH = _BUCKETS + len(SECONDS) + 1


class Metrics:
    """What a worker counts. One thread writes.

    Args:
        folder: where the workers of one server leave their numbers; None: there is one worker.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._own: npt.NDArray[np.float64] = np.zeros(_LENGTH)
        if folder is not None:
            path = folder / f"{os.getpid()}.counts"
            self._own = np.memmap(path, np.float64, "w+", shape=(_LENGTH,))

    def begin(self) -> None:
        """A request came."""
        self._own[_IN_FLIGHT] += 1

    def end(self, status: int, seconds: float, predictions: int = 0) -> None:
        """It was answered."""
        self._own[_IN_FLIGHT] -= 1
        self._own[STATUSES.index(status) if status in STATUSES else _OTHER] += 1
        self._own[_PREDICTIONS] += predictions
        self._own[_SUM] += seconds
        self._own[_BUCKETS + bisect.bisect_left(SECONDS, seconds)] += 1

    def text(self, labels: Mapping[str, str], claims_left: int | None) -> str:
        """All of it, for `GET /metrics`.

        Args:
            labels: what is served.
            claims_left: of a random method.
        """
        return "\n".join((*self._lines(self._total(), labels, claims_left), ""))

    def _total(self) -> npt.NDArray[np.float64]:
        if self._folder is None:
            return self._own
        total = np.zeros(_LENGTH)
        for path in self._folder.glob("*.counts"):
            numbers = np.fromfile(path, np.float64)
            if len(numbers) != _LENGTH:  # it is being made
                continue
            if not _is_alive(int(path.stem)):
                numbers[_IN_FLIGHT] = 0
            total += numbers
        return total

    @staticmethod
    def _lines(total: npt.NDArray[np.float64], labels: Mapping[str, str], claims_left: int | None) -> Iterator[str]:
        yield from _head("mithridate_info", "gauge", "What is served.")
        said = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
        yield f"mithridate_info{{{said}}} 1"
        yield from _head("mithridate_requests_total", "counter", "Requests to predict, by the status of the answer.")
        for at, status in enumerate((*map(str, STATUSES), "other")):
            yield f'mithridate_requests_total{{status="{status}"}} {total[at]:.0f}'
        yield from _head("mithridate_predictions_total", "counter", "Inputs that were predicted.")
        yield f"mithridate_predictions_total {total[_PREDICTIONS]:.0f}"
        yield from _head("mithridate_requests_in_flight", "gauge", "Requests to predict that are not answered yet.")
        yield f"mithridate_requests_in_flight {total[_IN_FLIGHT]:.0f}"
        if claims_left is not None:
            yield from _head("mithridate_claims_left", "gauge", "Claims that the models may still make.")
            yield f"mithridate_claims_left {claims_left}"
        yield from _head("mithridate_request_seconds", "histogram", "How long requests to predict took.")
        below = total[_BUCKETS:].cumsum()
        for seconds, count in zip((*map(str, SECONDS), "+Inf"), below, strict=True):
            yield f'mithridate_request_seconds_bucket{{le="{seconds}"}} {count:.0f}'
        yield f"mithridate_request_seconds_sum {total[_SUM]:.6f}"
        yield f"mithridate_request_seconds_count {below[-1]:.0f}"


def _head(name: str, kind: str, words: str) -> Iterator[str]:
    yield f"# HELP {name} {words}"
    yield f"# TYPE {name} {kind}"


def _escaped(value: str) -> str:
    r"""A label as the format wants it.

    >>> print(_escaped('a"b\\c'))
    a\"b\\c
    """
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
