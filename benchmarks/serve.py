"""How many questions `mithridate serve` answers: requests per second, how long they take, and memory.

    python benchmarks/serve.py --out benchmarks/results/serve-cpu.json

It trains two runs on made-up examples of 154 columns (nearest neighbours, 60,000 examples; 1,000 private linear
models), serves each by the real program, and asks from a process of its own: threads that keep their connections, each
of which asks again as soon as it is answered. Server and load share the cores of this machine.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

EXAMPLES, COLUMNS, CLASSES = 60_000, 154, 10
RUNS = {
    "neighbours": ["--method", "nearest-neighbours", "--neighbours", "100", "--features", "none"],
    "linear": [
        *("--method", "fdp", "--model", "linear", "--features", "none", "--instances", "1000", "--steps", "20"),
        *("--sample-rate", "0.002", "--noise-multiplier", "2", "--max-grad-norm", "1", "--learning-rate", "0.5"),
        *("--keep-models",),
    ],
}
# Batch and connections.
LOADS = ((1, 1), (1, 8), (32, 8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the results there, too")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each load")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--folder", type=Path, help="where the runs are, or are made")
    parser.add_argument("--ask", nargs=5, metavar="X", help=argparse.SUPPRESS)  # the process of the load
    arguments = parser.parse_args()
    if arguments.ask is not None:
        print(json.dumps(asked(*arguments.ask)))
        return
    with tempfile.TemporaryDirectory() as folder:
        results = measured(arguments.folder or Path(folder), arguments.workers, arguments.seconds)
    text = json.dumps(results, indent=1)
    print(table(results))
    if arguments.out is not None:
        arguments.out.write_text(text + "\n")


def measured(folder: Path, workers: list[int], seconds: float) -> dict[str, Any]:
    """Everything, with what else the machine had to do."""
    train(folder)
    busy, rows = os.getloadavg()[0], []
    for name in RUNS:
        for count in workers:
            rows += served(folder / name, count, seconds)
            print(json.dumps(rows[-1]), file=sys.stderr)
    machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    return {"machine": machine, "load_before": round(busy, 1), "seconds": seconds, "rows": rows}


def train(folder: Path) -> None:
    """The runs, where they are not there."""
    rng = np.random.default_rng(0)
    centres = rng.normal(0, 1, (CLASSES, COLUMNS))
    y = rng.integers(0, CLASSES, EXAMPLES)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "train.npz").exists():
        x = (centres[y] + rng.normal(0, 2.5, (EXAMPLES, COLUMNS))).astype(np.float32)
        np.savez(folder / "train.npz", x=x, y=y)
        np.savez(folder / "test.npz", x=x[:100])
    for name, flags in RUNS.items():
        if (folder / name / "votes.npz").exists():
            continue
        files = ["--train", folder / "train.npz", "--test", folder / "test.npz", "--run-dir", folder / name]
        common = ["--num-train", EXAMPLES, "--classes", CLASSES, "--device", "cpu"]
        subprocess.run([*PROGRAM, "train", *map(str, [*files, *common]), *flags], check=True, stdout=subprocess.DEVNULL)


PROGRAM = (sys.executable, "-m", "mithridate")


def served(run_dir: Path, workers: int, seconds: float) -> list[dict[str, Any]]:
    """All loads on one server."""
    flags = ["--port", "0", "--json", "--device", "cpu", "--workers", str(workers)]
    claims = [] if run_dir.name == "neighbours" else ["--claims", "100000000"]
    for left in run_dir.glob("served-claims.*"):
        left.unlink()
    server = subprocess.Popen([*PROGRAM, "serve", str(run_dir), *flags, *claims], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        rows: list[dict[str, Any]] = []
        for batch, connections in LOADS:
            run_load(url, batch, connections, 2.0)  # warm
            found = run_load(url, batch, connections, seconds)
            family = [server.pid, *children(server.pid)]
            memory = {"resident_mb": sum(map(resident, family)) // 10**6, "peak_mb": sum(map(peak, family)) // 10**6}
            shape = {"run": run_dir.name, "workers": workers, "batch": batch, "connections": connections}
            rows.append({**shape, **found, **memory})
        return rows
    finally:
        server.terminate()
        assert server.wait(60) == 0


def run_load(url: str, batch: int, connections: int, seconds: float) -> dict[str, Any]:
    """What a process of its own found."""
    words = [sys.executable, __file__, "--ask", url, batch, connections, seconds, COLUMNS]
    done = subprocess.run(list(map(str, words)), check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def asked(url: str, batch: str, connections: str, seconds: str, columns: str) -> dict[str, Any]:
    """Ask for so many seconds; how long the answers took."""
    rng = np.random.default_rng(1)
    bodies = [json.dumps({"inputs": rng.normal(0, 2, (int(batch), int(columns))).round(4).tolist()}) for _ in range(20)]
    took: list[float] = []
    refused: list[int] = []
    begin = time.perf_counter()
    threads = [
        threading.Thread(target=ask, args=(url, bodies, begin + float(seconds), took, refused))
        for _ in range(int(connections))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    span = time.perf_counter() - begin
    p50, p99 = np.percentile(took, (50, 99)) * 1000
    return {
        "requests": len(took),
        "refused": len(refused),
        "requests_per_s": round(len(took) / span, 1),
        "inputs_per_s": round(len(took) * int(batch) / span, 1),
        "p50_ms": round(p50, 1),
        "p99_ms": round(p99, 1),
    }


def ask(url: str, bodies: list[str], until: float, took: list[float], refused: list[int]) -> None:
    """One connection."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=120)
    at = 0
    while time.perf_counter() < until:
        start, at = time.perf_counter(), at + 1
        connection.request("POST", "/predict", bodies[at % len(bodies)], {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        took.append(time.perf_counter() - start)
        if answer.status != 200:
            refused.append(answer.status)
    connection.close()


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def resident(pid: int) -> int:
    return _status(pid, "VmRSS")


def peak(pid: int) -> int:
    return _status(pid, "VmHWM")


def _status(pid: int, name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return 0 if found is None else int(found[1]) << 10


def table(results: dict[str, Any]) -> str:
    """As docs/serve.md has it."""
    lines = [
        "| run | workers | inputs a request | connections | requests/s | p50 | p99 | memory |",
        "| --- |" + " --- |" * 7,
    ]
    for row in results["rows"]:
        cells = [row[name] for name in ("run", "workers", "batch", "connections", "requests_per_s")]
        cells += [f"{row['p50_ms']:g} ms", f"{row['p99_ms']:g} ms", f"{row['peak_mb']:,} MB"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
