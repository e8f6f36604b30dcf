"""What tests of serving share: small runs to serve, a server in a process of its own, and a client that counts."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from mithridate.cli import main

PATIENCE = 60.0
PROJECT = """
[data]
train = "flowers.csv"
test = "test.csv"
kind = "table"
label = "kind"
classes = ["daisy", "lily", "rose"]
[[data.columns]]
kind = "number"
name = "petal"
low = 0
high = 15
[[data.columns]]
kind = "category"
name = "soil"
"""
PRIVATE = [
    "--instances", "40", "--noise-multiplier", "2", "--sample-rate", "0.2", "--steps", "5", "--max-grad-norm", "1",
    "--learning-rate", "0.5", "--num-train", "60", "--classes", "3", "--model", "linear", "--device", "cpu",
]  # fmt: skip


def flowers(count: int, seed: int, *, labels: bool = True) -> str:
    """A table of petals and soils, with some cells missing."""
    rng = np.random.default_rng(seed)
    lines = ["petal,soil,kind" if labels else "petal,soil"]
    for kind in rng.integers(0, 3, count):
        petal = "" if rng.random() < 0.05 else f"{2 + 5 * kind + rng.normal(0.0, 1.0):.3f}"
        soil = ["clay", "sand", "peat"][kind if rng.random() < 0.8 else rng.integers(3)]
        lines.append(",".join([petal, soil, *(["daisy", "lily", "rose"][kind : kind + 1] if labels else [])]))
    return "\n".join(lines) + "\n"


def serve_table(folder: Path) -> Path:
    """A finished run of neighbours on a table."""
    (folder / "flowers.csv").write_text(flowers(200, 0))
    (folder / "test.csv").write_text(flowers(20, 1))
    (folder / "new.csv").write_text(flowers(40, 2, labels=False))
    (folder / "flowers.toml").write_text(PROJECT)
    flags = ["--method", "nearest-neighbours", "--neighbours", "15", "--run-dir", str(folder / "near")]
    assert main(["train", str(folder / "flowers.toml"), *flags]) == 0
    return folder / "near"


def serve_private(folder: Path) -> Path:
    """A finished run of private models on arrays of four numbers."""
    rng = np.random.default_rng(3)
    y = rng.integers(0, 3, 60)
    x = (np.eye(4)[y] * 2 + rng.normal(0, 0.3, (60, 4))).astype(np.float32)
    np.savez(folder / "train.npz", x=x, y=y)
    np.savez(folder / "test.npz", x=x[:10])
    files = ["--train", str(folder / "train.npz"), "--test", str(folder / "test.npz")]
    assert main(["train", *files, "--run-dir", str(folder / "private"), *PRIVATE]) == 0
    return folder / "private"


# --- a server in a process of its own ---------------------------------------------------------------------------------


class Server(NamedTuple):
    """One that runs."""

    process: subprocess.Popen[bytes]
    host: str
    port: int


@contextmanager
def server(run_dir: Path, *flags: str) -> Iterator[Server]:
    """`mithridate serve`, which is killed at the latest when this ends."""
    words = [sys.executable, "-m", "mithridate", "serve", str(run_dir), "--port", "0", "--json", "--device", "cpu"]
    process = subprocess.Popen([*words, *flags], stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.wait(PATIENCE)
        address = urlsplit(json.loads(line)["url"])
        assert address.hostname is not None
        assert address.port is not None
        yield Server(process, address.hostname, address.port)
    finally:
        process.kill()
        process.wait(PATIENCE)
        if process.stdout is not None:
            process.stdout.close()


def stopped(running: Server, number: int = signal.SIGTERM) -> int:
    """The status of a server that was asked to stop."""
    running.process.send_signal(number)
    return running.process.wait(PATIENCE)


def asked(running: Server, inputs: Sequence[Any], **headers: str) -> tuple[int, Any]:
    """Status and JSON of one question over a connection of its own."""
    connection = http.client.HTTPConnection(running.host, running.port, timeout=PATIENCE)
    try:
        connection.request(
            "POST", "/predict", json.dumps({"inputs": inputs}), {"Content-Type": "application/json", **headers}
        )
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


class Load:
    """Threads that ask all the time, each over one connection, until they are told to stop; what came of it.

    Attributes:
        whole: answers that came whole, in JSON, by status.
        failed: questions that ended in an error that the client saw.
    """

    def __init__(self, running: Server, inputs: Sequence[Any], threads: int) -> None:
        self._server, self._body = running, json.dumps({"inputs": inputs}).encode()
        self.count, self.whole, self.failed, self.started = len(inputs), dict[int, int](), 0, 0
        self.lost = list[str]()
        self._lock, self._end = threading.Lock(), threading.Event()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(threads)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a question has neither an answer nor an error"

    def wait_for(self, answers: int) -> None:
        """Until there were so many answers."""
        until = time.monotonic() + PATIENCE
        while sum(self.whole.values()) < answers:
            assert time.monotonic() < until, (self.whole, self.failed)
            time.sleep(0.01)

    def _ask(self) -> None:
        connection = http.client.HTTPConnection(self._server.host, self._server.port, timeout=PATIENCE)
        while not self._end.is_set():
            with self._lock:
                self.started += 1
            try:
                connection.request("POST", "/predict", self._body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                said = json.loads(answer.read())
            except (OSError, http.client.HTTPException):
                connection.close()
                with self._lock:
                    self.failed += 1
                if self._server.process.poll() is not None:
                    return
                time.sleep(0.01)
                continue
            except ValueError as error:
                self.lost.append(str(error))
                return
            is_whole = len(said["predictions"]) == self.count if answer.status == 200 else "message" in said["error"]
            with self._lock:
                self.whole[answer.status] = self.whole.get(answer.status, 0) + 1
                self.lost += [] if is_whole else [str(said)]
        connection.close()
