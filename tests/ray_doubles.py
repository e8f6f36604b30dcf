"""A model that workers of a cluster can be caught building, a driver that is killed, and a cable that is cut."""

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from training_doubles import CLASSES, SEED, TEST, TRAIN, WIDTH, make_config

from mithridate import Ray, Votes, train
from mithridate.training.randomness import Seeds

# Seconds until a test gives up; a machine may be busy with others.
PATIENCE = 300.0
INSTANCES, GROUP = 12, 2


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
        after: how many groups, the first ones, are let through the gate.
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
            if torch.initial_seed() in map(weight_seed, range(GROUP * self.after, INSTANCES)):
                self._wait()
            if torch.initial_seed() in self.broken:
                raise ZeroDivisionError("this instance is broken")
            is_drawn = torch.initial_seed() in map(weight_seed, range(INSTANCES))
            if is_drawn and json.loads(manifest.read_bytes())["in_flight"] > self.room:
                raise MemoryError
        return Layer(WIDTH, CLASSES)

    def _wait(self) -> None:
        """Wait for the gate, and leave the file when the groups before have been written."""
        mark = Path(self.folder) / f"{os.getpid()}.pid"
        while not (Path(self.folder) / "open").exists():
            if len(list(Path(self.run_dir).glob("shards/0*.npz"))) >= self.after:
                mark.touch()
            time.sleep(0.01)
        mark.unlink(missing_ok=True)


def at_gate(work: Callable[..., Any], folder: str, *arguments: Any) -> Any:
    """What `work` makes of a shard of examples, after waiting for a gate."""
    mark = Path(folder) / f"{os.getpid()}.pid"
    while not (Path(folder) / "open").exists():
        mark.touch()
        time.sleep(0.01)
    mark.unlink(missing_ok=True)
    return work(*arguments)


def without_room(work: Callable[..., Any], most: int, *arguments: Any) -> Any:
    """The same, if it is at most so many examples."""
    if len(arguments[-1]) > most:
        raise MemoryError
    return work(*arguments)


def broken(*arguments: Any) -> Any:
    """A worker that cannot do anything."""
    raise ZeroDivisionError("it is broken")


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
    """A run of so many instances in groups."""
    watched = Watched(str(run_dir), str(folder), os.getpid(), **changes)
    return train(
        TRAIN, TEST, model=watched, config=make_config(instances=INSTANCES), run_dir=run_dir, root_seed=SEED,
        in_flight=GROUP, device="cpu", keep_models=keep_models, backend=backend,
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


def free_port() -> int:
    """One that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Cable:
    """Carries whatever comes in at its own port to another port of this machine, until it is cut."""

    def __init__(self, target: int) -> None:
        self._target, self.port = target, free_port()
        self._ends: list[socket.socket] = []
        self.mend()

    def mend(self) -> None:
        """Carry on, at the same port."""
        server = socket.create_server(("127.0.0.1", self.port))
        self._ends = [server]
        threading.Thread(target=self._accept, args=(server,), daemon=True).start()

    def cut(self) -> None:
        """Drop all connections and take no new ones."""
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, far = server.accept()[0], socket.create_connection(("127.0.0.1", self._target))
                self._ends += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


def command_line(folder: Path, steps: int) -> list[str]:
    """Flags of a run of 24 instances in groups of 2, with its data in a folder."""
    for name, (x, y) in (("train", TRAIN), ("test", TEST)):
        np.savez(folder / f"{name}.npz", x=x, y=y)
    recipe = (
        f"train --train train.npz --test test.npz --model linear --instances 24 --noise-multiplier 2 --sample-rate 0.5 "
        f"--steps {steps} --max-grad-norm 1 --learning-rate 0.5 --num-train 60 --classes 3 --device cpu --in-flight 2"
    )
    return recipe.split()


MAIN = [sys.executable, "-c", "import sys; from mithridate.cli import main; sys.exit(main())"]


if __name__ == "__main__":
    address, run_dir, folder, after = sys.argv[1:]
    train_watched(Path(run_dir), Path(folder), backend=Ray(address=address), after=int(after))
