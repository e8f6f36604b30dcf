"""A model that workers of a cluster can be caught building, and a driver that is killed."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from training_doubles import CLASSES, SEED, TEST, TRAIN, WIDTH, make_config

from mithridate import Ray, Votes, train
from mithridate.ensemble.randomness import Seeds

# Seconds until a test gives up; a machine may be busy with others.
PATIENCE = 300.0
INSTANCES = 12


class Layer(nn.Linear):
    """Not torch's own, so that it is built anew for every instance, from the instance's seed."""


def weight_seed(instance: int) -> int:
    """What torch is seeded with when the model of an instance is built."""
    return Seeds.of(SEED).key(instance, "initial weights") % 2**63


@dataclass(frozen=True)
class Watched:
    """Builds a linear model.

    In workers of a run that has started, leaves a file with the name of the process and waits for a gate to open, fails
    for some instances, and has room for some models in flight only.

    Attributes:
        run_dir: the run.
        folder: where files are left, and where the gate is: open while there is a file `open`.
        driver: the process that does none of this.
        after: how many groups are let through the gate.
        broken: seeds of instances that fail.
        room: how many models in flight there is room for.
    """

    run_dir: str
    folder: str
    driver: int
    after: int = 0
    broken: tuple[int, ...] = ()
    room: int = 10**9

    def __call__(self) -> nn.Module:
        manifest = Path(self.run_dir) / "run.json"
        if os.getpid() != self.driver and manifest.exists():
            if len(list(Path(self.run_dir).glob("shards/0*.npz"))) >= self.after:
                self._wait()
            if torch.initial_seed() in self.broken:
                raise ZeroDivisionError("this instance is broken")
            is_drawn = torch.initial_seed() in map(weight_seed, range(INSTANCES))
            if is_drawn and json.loads(manifest.read_bytes())["in_flight"] > self.room:
                raise MemoryError
        return Layer(WIDTH, CLASSES)

    def _wait(self) -> None:
        mark = Path(self.folder) / f"{os.getpid()}.pid"
        if not (Path(self.folder) / "open").exists():
            mark.touch()
        while not (Path(self.folder) / "open").exists():
            time.sleep(0.01)
        mark.unlink(missing_ok=True)


def waiting(folder: Path, count: int) -> list[int]:
    """The processes that wait at the gate, when there are so many."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = [int(path.stem) for path in folder.glob("*.pid")]
        if len(found) >= count:
            return sorted(found)
        time.sleep(0.01)
    raise TimeoutError(f"there are not {count} workers at the gate")


def train_watched(run_dir: Path, folder: Path, *, backend: Any, keep_models: bool = False, **changes: Any) -> Votes:
    """A run of 12 instances in groups of 2."""
    watched = Watched(str(run_dir), str(folder), os.getpid(), **changes)
    return train(
        TRAIN, TEST, model=watched, config=make_config(instances=INSTANCES), run_dir=run_dir, root_seed=SEED,
        in_flight=2, device="cpu", keep_models=keep_models, backend=backend,
    )  # fmt: skip


@contextmanager
def meanwhile(folder: Path, work: Callable[[], Any]) -> Iterator[None]:
    """Do something in another thread, then open the gate; its errors are errors of the test."""
    caught: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            caught.append(error)
        (folder / "open").touch()

    thread = threading.Thread(target=guarded)
    thread.start()
    try:
        yield
    finally:
        thread.join(PATIENCE)
        if caught:
            raise caught[0]


if __name__ == "__main__":
    address, run_dir, folder, after = sys.argv[1:]
    train_watched(Path(run_dir), Path(folder), backend=Ray(address=address), after=int(after))
