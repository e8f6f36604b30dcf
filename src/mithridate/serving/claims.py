"""How many claims a run may still make, where each of them may fail: a number on the disk that all workers share.

A claim about one input may fail with a small probability, over the training of the models, which were trained once. Who
is asked ten thousand times makes ten thousand claims about the same models. So every claim gets an equal share of
`failure_prob`, and there are no more claims than shares.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mithridate import _validate
from mithridate._io.files import parse_json, read_file, write_atomically
from mithridate.errors import ArtifactError, ConfigError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

FILE = "served-claims.json"
_LOCK = "served-claims.lock"
_SCHEMA = "mithridate.served-claims/1"
DEFAULT_CLAIMS = 10_000


class ClaimsSpentError(ConfigError):
    """There are not enough claims left for a question."""


@dataclass(frozen=True)
class ClaimBudget:
    """The claims that the models of a run may make, all together.

    Guarantee: over all processes and restarts, `reserve` succeeds for at most `budget` claims. If each is made at
    `failure_prob_each`, all of them hold together with probability at least `1 - failure_prob` over the training of the
    models, where every input was chosen independently of what the models answered (a union bound).

    Assumes: the run directory stays in one place, with its file of claims, on a file system with locks.

    Attributes:
        folder: the run directory.
        run: which run it is.
        budget: how many claims there are.
        failure_prob: the probability with which any of them may fail.
    """

    folder: Path
    run: str
    budget: int
    failure_prob: float

    @classmethod
    def open(cls, folder: Path, run: str, budget: int | None, failure_prob: float) -> ClaimBudget:
        """The budget of a run: that of its file, where it was served before.

        Raises:
            ConfigError: it was served with another budget, or claims cannot be counted on this system.
            ArtifactError: the file is damaged, or cannot be written.
        """
        if budget is not None:
            _validate.positive_integer(claims=budget)
        if fcntl is None:
            raise ConfigError(
                "Claims of a random method are counted in a locked file, and this system has no such locks; serve a "
                "method without randomness, such as nearest-neighbours or dpa."
            )
        with _locked(folder):
            known = _read(folder)
            if known is None:
                found = cls(folder, run, budget or DEFAULT_CLAIMS, failure_prob)
                found._write(0)
                return found
        found = cls(folder, known["run"], known["budget"], known["failure_prob"])
        wanted = cls(folder, run, budget or found.budget, failure_prob)
        if wanted != found:
            raise ConfigError(
                f"The run in {folder} was served with claims={found.budget} and failure_prob={found.failure_prob:g}, "
                "and what was said then has to stay true: serve it with these, or train the run again elsewhere."
            )
        return found

    @property
    def failure_prob_each(self) -> float:
        """The share of one claim, rounded down: all shares together are at most `failure_prob`."""
        return math.nextafter(self.failure_prob / self.budget, 0.0)

    @property
    def left(self) -> int:
        """How many claims there are left.

        Raises:
            ArtifactError: the file cannot be read.
        """
        return self.budget - self._used()

    def reserve(self, count: int) -> int:
        """Take so many claims, before anyone is told what is claimed; how many there are left then.

        Who is killed between this and the answer has wasted them, and never has given more than there are.

        Raises:
            ClaimsSpentError: there are not as many.
            ArtifactError: that cannot be written down.
        """
        with _locked(self.folder):
            used = self._used()
            if used + count > self.budget:
                raise ClaimsSpentError(
                    f"Of {self.budget:,} claims {self.budget - used:,} are left, and these are {count:,}: more could "
                    f"fail with a probability above {self.failure_prob:g}. Ask for fewer, or have the run trained "
                    "again, with fresh randomness."
                )
            self._write(used + count)
            return self.budget - used - count

    def _used(self) -> int:
        known = _read(self.folder)
        if known is None or (known["run"], known["budget"]) != (self.run, self.budget):
            raise ArtifactError(f"{self.folder / FILE} was removed or replaced while the run was served; start again.")
        return known["used"]

    def _write(self, used: int) -> None:
        said = {"schema": _SCHEMA, "run": self.run, "budget": self.budget, "failure_prob": self.failure_prob}
        with write_atomically(self.folder / FILE, durable=True) as file:
            file.write((json.dumps({**said, "used": used}) + "\n").encode())


def _read(folder: Path) -> dict[str, Any] | None:
    path = folder / FILE
    if not os.path.exists(path):
        return None
    try:
        said = parse_json(read_file(path))
        if (
            said["schema"] == _SCHEMA
            and isinstance(said["run"], str)
            and type(said["budget"]) is int
            and type(said["used"]) is int
            and type(said["failure_prob"]) is float
            and 0 <= said["used"] <= said["budget"]
            and 0 < said["failure_prob"] < 1
        ):
            return said
    except (ValueError, KeyError, TypeError):
        pass
    raise ArtifactError(
        f"{path} is damaged, and nobody knows how many claims were made; restore it, or train the run again elsewhere."
    )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Nobody else reads or writes the file meanwhile; the lock ends with the process at the latest."""
    assert fcntl is not None
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    except OSError as error:
        raise ArtifactError(
            f"Cannot write {folder / _LOCK}: {error.strerror}. Claims are counted in the run directory; it must be "
            "writable."
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    except OSError as error:
        raise ArtifactError(f"Cannot lock {folder / _LOCK}: {error.strerror}. Use a file system with locks.") from error
    finally:
        os.close(descriptor)
