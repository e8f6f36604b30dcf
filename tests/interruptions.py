"""Ctrl-C at random moments of real commands on a busy machine, and what came of each.

While Python itself starts and imports the two files that hold our first line, its own handler answers: those cases are
counted by themselves.

As a program, `python tests/interruptions.py COUNT [SEED]`; `make slow` runs it as a test. A moment is any one between
our first line and the end of the command: imports, training, certifying, writing, the end of the process. Several
commands run at a time, more than there are cores for.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from training_doubles import SEED, TEST, TRAIN

# Seconds after which something hangs; a busy machine takes long.
HANGS = 600.0
# Commands for each core, which make the machine a busy one.
BUSY = 4
# Closes a pipe as it begins: how long Python itself takes to start is not ours to say. In a job in the background, the
# signal would be ignored.
PROGRAM = """import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
os.close(int(sys.argv.pop(1)))
from mithridate.cli import main
sys.exit(main())"""
RECIPE = (
    "--model linear --instances 6 --noise-multiplier 2 --sample-rate 0.2 --steps 300 --max-grad-norm 1 "
    "--learning-rate 0.5 --num-train 60 --classes 3 --score-bins 8 --in-flight 1 --device cpu --root-seed root"
).split()
COMMANDS = {
    "train": ["train", "--train", "train.npz", "--test", "test.npz", *RECIPE, "--json"],
    "certify": ["certify", "done", "--out", "certificate.json", "--json"],
    "verify": ["verify", "done/certificate.json", "--json"],
    "report": ["report", "done", "-o", "report.html", "--json"],
    "demo": ["demo", "--instances", "8", "--device", "cpu", "--json"],
}


@dataclass
class Figures:
    """What came of all interruptions."""

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    longest: dict[str, float] = field(default_factory=dict)
    finished: int = 0

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.outcomes.items()))
        runs = f"{self.finished} runs resumed to the same votes"
        longest = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in sorted(self.longest.items()))
        return f"{counts}; wrong {len(self.wrong)}; {runs}; longest until the end: {longest}"


@dataclass(frozen=True)
class Ended:
    status: int
    out: str
    err: str
    seconds: float
    was_whole: bool


def run(folder: Path, words: Sequence[str], moment: float | None = None) -> Ended:
    """Run a command, interrupted after so many seconds, or not at all."""
    ours, theirs = os.pipe()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MITHRIDATE_CACHE": str(folder / "cache")}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(theirs), *words],
            cwd=folder, stdout=out, stderr=err, env=environment, pass_fds=(theirs,),
        )  # fmt: skip
        os.close(theirs)
        os.read(ours, 1)
        os.close(ours)
        begin, was_whole = time.monotonic(), False
        if moment is not None:
            try:
                process.wait(moment)
            except subprocess.TimeoutExpired:
                was_whole = is_whole(out.fileno())
                process.send_signal(signal.SIGINT)
                was_whole |= is_zombie(process.pid)
                begin = time.monotonic()
            else:
                was_whole = True
        try:
            process.wait(HANGS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        seconds = time.monotonic() - begin
        out.seek(0)
        err.seek(0)
        return Ended(process.returncode, out.read(), err.read(), seconds, was_whole)


def is_whole(descriptor: int) -> bool:
    """Whether a command has written its JSON, which is the last that it does."""
    size = os.fstat(descriptor).st_size
    return size > 0 and os.pread(descriptor, 1, size - 1) == b"\n"


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


def judged(ended: Ended) -> str:
    """What came of an interruption, in a word; `wrong` where it should not have."""
    ours = [line for line in ended.err.splitlines() if line.startswith("mithridate: interrupted; what is finished is")]
    noise = any(word in ended.err for word in ("Traceback", "terminate called", "Exception ignored", "Error"))
    if ended.status == 130 and len(ours) == 1 and ended.err.endswith(f"{ours[0]}\n") and not noise:
        return "interrupted"
    if ended.status == -signal.SIGINT and ended.err.endswith("KeyboardInterrupt\n") and "in main" not in ended.err:
        return "before our first line"
    if ended.status == 0 and ended.was_whole and not ours and not noise:
        json.loads(ended.out)
        return "finished before"
    return "wrong"


class Sweep:
    """Interrupts commands until there were so many interruptions, and checks that nothing is lost by any."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._random, self._lock = folder, random.Random(seed), threading.Lock()
        self.figures = Figures()
        self._left = 0
        self._place(folder / "reference")
        self._seconds = {name: self._undisturbed(folder / "reference", words) for name, words in COMMANDS.items()}
        self._shards = shards(folder / "reference" / "run")

    def _place(self, folder: Path) -> None:
        """A folder with all that the commands read."""
        folder.mkdir()
        np.savez(folder / "train.npz", x=TRAIN[0], y=TRAIN[1])
        np.savez(folder / "test.npz", x=TEST[0], y=TEST[1])
        (folder / "root").write_text(SEED.hex())
        done = self._folder / "reference" / "done"
        if folder.name == "reference":
            self._undisturbed(folder, [*COMMANDS["train"], "--run-dir", "done"])
            self._undisturbed(folder, ["certify", "done", "--out", "done/certificate.json", "--json"])
        else:
            (folder / "done").symlink_to(done)

    def _undisturbed(self, folder: Path, words: Sequence[str]) -> float:
        ended = run(folder, words)
        assert ended.status == 0, ended
        return ended.seconds

    def interrupt(self, count: int) -> Figures:
        """So many times, and then let what was interrupted finish."""
        self._left, workers = count, BUSY * (os.cpu_count() or 1)
        with ThreadPoolExecutor(workers) as pool:
            for worker in [pool.submit(self._work, f"place-{number}") for number in range(workers)]:
                worker.result()
        return self.figures

    def _work(self, name: str) -> None:
        """Interrupt one command after the other; a run again and again, until it is finished."""
        number, folder = 0, self._folder / f"{name}-0"
        self._place(folder)
        while (drawn := self._draw()) is not None:
            self._interrupt(folder, *drawn)
            if (folder / "run" / "votes.npz").exists():
                self._finish(folder)
                number += 1
                folder = self._folder / f"{name}-{number}"
                self._place(folder)
        self._finish(folder)

    def _interrupt(self, folder: Path, name: str, moment: float) -> None:
        before = shards(folder / "run")
        ended = run(folder, COMMANDS[name], moment)
        verdict = judged(ended)
        is_lost = bool(before.items() - shards(folder / "run").items())
        with self._lock:
            self.figures.outcomes[f"{name}: {verdict}"] += 1
            self.figures.longest[name] = max(self.figures.longest.get(name, 0.0), ended.seconds)
            if verdict == "wrong" or is_lost:
                self.figures.wrong.append(f"{name} at {moment:.3f} s, {is_lost=}: {ended}")

    def _finish(self, folder: Path) -> None:
        """The same command goes on, and gives what an undisturbed one gives."""
        ended = run(folder, COMMANDS["train"])
        with self._lock:
            self.figures.finished += 1
            if ended.status != 0 or shards(folder / "run") != self._shards:
                self.figures.wrong.append(f"not resumed: {ended}")

    def _draw(self) -> tuple[str, float] | None:
        """A command and a moment of it, which comes later where several run at a time."""
        with self._lock:
            if not self._left:
                return None
            self._left -= 1
            name = self._random.choice(["train", "train", "demo", "certify", "verify", "report"])
            return name, self._random.uniform(0, 1.5 * BUSY * self._seconds[name])


def shards(run_dir: Path) -> dict[str, bytes]:
    """What is finished of a run."""
    return {path.name: path.read_bytes() for path in run_dir.glob("shards/0*.npz")}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        sweep = Sweep(Path(place), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
        figures = sweep.interrupt(int(sys.argv[1]))
    print(figures)
    for each in figures.wrong:
        print(each)
    sys.exit(bool(figures.wrong))
