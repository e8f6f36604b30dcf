"""Time and memory of private and partitioned training on a million mapped examples.

    python benchmarks/private_size.py --folder scratch --instances 1000
    python benchmarks/private_size.py --folder scratch --method dpa --partitions 1000 --model linear

The data is random, and lies in a file in the folder, where it stays for the next time. Memory is what the program holds
beside mapped files, whose pages the system takes back when it needs them.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from mithridate.defences import defence

_PIECE = 50_000


def examples(folder: Path, count: int, columns: int, classes: int) -> tuple[Any, Any]:
    """Clouds around random centres, mapped."""
    path = folder / f"inputs-{count}-{columns}-{classes}.npy"
    random = np.random.default_rng(0)
    labels = random.integers(0, classes, count)
    centres = random.standard_normal((classes, columns), dtype=np.float32)
    if not path.exists():
        inputs = np.lib.format.open_memmap(path, "w+", np.float32, (count, columns))
        for start in range(0, count, _PIECE):
            part = slice(start, start + _PIECE)
            own = labels[part]
            inputs[part] = 0.3 * centres[own] + random.standard_normal((len(own), columns), dtype=np.float32)
    return np.load(path, mmap_mode="r"), labels


class Memory(threading.Thread):
    """The largest number of bytes that the program held beside mapped files, looked at ten times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.largest, self._over = 0, threading.Event()

    def run(self) -> None:
        """Look until it is over."""
        while not self._over.wait(0.1):
            lines = Path("/proc/self/status").read_text().splitlines()
            held = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
            self.largest = max(self.largest, 1024 * held)

    def stop(self) -> int:
        """No longer."""
        self._over.set()
        self.join()
        return self.largest


def main() -> None:
    """Train once, and say how long it took and what it held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    for name, number in (("examples", 1_000_000), ("columns", 256), ("classes", 10), ("instances", 1000)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--method", default="fdp")
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--model", default="linear")
    parser.add_argument("--learner")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    x, y = examples(given.folder, given.examples, given.columns, given.classes)
    chosen: dict[str, Any] = {"model": given.model}
    chosen |= {"instances": given.instances} if given.method == "fdp" else {"partitions": given.partitions}
    if given.learner:
        chosen = {"learner": given.learner, "partitions": given.partitions}
    memory, started = Memory(), time.perf_counter()
    memory.start()
    first: list[float] = []

    def progress(done: int, total: int) -> None:
        if not first:
            first.append(time.perf_counter())

    votes = defence(given.method, **chosen).train((x, y), (x[:1000], y[:1000]), device=given.device, progress=progress)
    ended = time.perf_counter()
    counts = np.asarray(votes.counts)
    print(f"{votes.instances:,} models on {given.examples:,} x {given.columns}, load {os.getloadavg()[0]:.1f}")
    print(f"before training {first[0] - started:.1f} s, training and votes {ended - first[0]:.1f} s")
    print(f"largest memory beside mapped files {memory.stop() / 2**30:.2f} GiB")
    print(f"{(counts.argmax(axis=1) == y[:1000]).mean():.1%} of inputs are correct")


if __name__ == "__main__":
    main()
