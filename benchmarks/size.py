"""How time and memory grow with the number of examples, next to libraries that search for neighbours.

    python benchmarks/size.py                       # all stages, about half an hour on two cores
    python benchmarks/size.py neighbours large      # some of them
    python benchmarks/size.py --page                # writes the tables of docs/scaling.md from the results

Every measurement runs in a process of its own; the most memory that it held beside mapped files is told. Examples are
drawn at random around ten centres. scikit-learn and faiss get the same rows, rounded to whole numbers, and are asked
for as many neighbours as a certificate looks at; neither breaks ties by content, and neither certifies. Results are
added to benchmarks/results/size-cpu.json, stage by stage.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "size-cpu.json"
RESULTS_OF_GPU = RESULTS.with_name("size-h200.json")
PAGE = ROOT / "docs" / "scaling.md"
BEGIN, END = "<!-- size -->", "<!-- end of size -->"
CLASSES, NEIGHBOURS = 10, 3500
Result = dict[str, Any]


# --- data -------------------------------------------------------------------------------------------------------------


def drawn(examples: int, columns: int, seed: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Inputs around ten centres, and which."""
    centres = 0.35 * np.random.default_rng(0).standard_normal((CLASSES, columns), dtype=np.float32)
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, examples)
    inputs = random.standard_normal((examples, columns), dtype=np.float32)
    for start in range(0, examples, 1 << 16):  # not all centres at once
        part = slice(start, start + (1 << 16))
        inputs[part] += centres[labels[part]]
    return inputs, labels


@contextmanager
def timed(result: Result, name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    result[name] = time.perf_counter() - start


# --- what is measured, each in a process of its own -------------------------------------------------------------------


def votes(method: str, examples: int, inputs: int, columns: int) -> Result:
    """Votes and certificates by the same calls that the command line makes."""
    from mithridate import Certificate, Threat
    from mithridate.defences import defence

    options: Result = {"neighbours": NEIGHBOURS} if method == "nearest-neighbours" else {}
    made = defence(method, classes=CLASSES, num_train=examples, features="none", **options)
    training, test = drawn(examples, columns, 1), drawn(inputs, columns, 2)
    importlib.import_module("torch")  # which train asks for a GPU; loading it is not in the time
    result: Result = {}
    with timed(result, "votes"):
        found = made.train(training, test)
    with timed(result, "certificates"):
        certificate = made.certify(found, threat=Threat.SYMMETRIC_DIFFERENCE)
    assert isinstance(certificate, Certificate)
    return {**result, "accuracy": float(certificate.accuracy(test[1], [0])[0])}


def rival(name: str, examples: int, inputs: int, columns: int) -> Result:
    """As many neighbours by another library, on the same rows of whole numbers."""
    from mithridate.defences._whole_rows import whole_rows

    rows, asked = (
        whole_rows(drawn(count, columns, seed)[0])[0].astype(np.float32) for count, seed in ((examples, 1), (inputs, 2))
    )
    result: Result = {}
    if name == "faiss":
        index = importlib.import_module("faiss").IndexFlatIP(columns)
        index.add(rows)
        with timed(result, "votes"):
            index.search(asked, 2 * NEIGHBOURS)
    else:
        from sklearn.neighbors import NearestNeighbors

        search = NearestNeighbors(n_neighbors=2 * NEIGHBOURS, algorithm="brute").fit(rows)
        with timed(result, "votes"):
            search.kneighbors(asked)
    return result


def private(examples: int, instances: int, columns: int) -> Result:
    """A private ensemble of linear models, with the recipe that it chooses; the examples lie in a mapped file."""
    from mithridate.defences import defence

    made = defence("fdp", classes=CLASSES, num_train=examples, features="none", instances=instances, model="linear")
    test = drawn(1000, columns, 2)
    with tempfile.TemporaryDirectory() as folder:
        inputs, labels = drawn(examples, columns, 1)
        np.save(f"{folder}/x.npy", inputs)
        del inputs
        result: Result = {}
        with timed(result, "votes"):
            found = made.train((np.load(f"{folder}/x.npy", mmap_mode="r"), labels), test, device="cpu")
    return {**result, "accuracy": float((found.counts.argmax(axis=1) == test[1]).mean())}


def reading(kind: str, examples: int) -> Result:
    """A table of eight columns of numbers and one of categories, read by its declaration."""
    from mithridate.data import read
    from mithridate.data.columns import Category, Number
    from mithridate.data.declarations import Table

    columns = [Number(f"c{i}", low=-5, high=5) for i in range(8)] + [Category("kind")]
    table = Table(columns=tuple(columns), label="label", classes=("no", "yes"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"examples.{kind}"
        _write_table(path, examples)
        os.environ["MITHRIDATE_CACHE"] = str(Path(folder) / "cache")
        result: Result = {"megabytes": path.stat().st_size / 1e6}
        with timed(result, "read"):
            found = read(path, table, labels=True)
        assert len(found.x) == examples
    return result


def _write_table(path: Path, examples: int) -> None:
    import pyarrow as pa
    from pyarrow import csv, parquet

    names = [f"c{i}" for i in range(8)]
    schema = pa.schema([*((name, pa.float64()) for name in names), ("kind", pa.string()), ("label", pa.string())])
    is_csv = path.suffix == ".csv"
    with (csv.CSVWriter if is_csv else parquet.ParquetWriter)(path, schema) as writer:
        for start in range(0, examples, 100_000):
            count = min(100_000, examples - start)
            random = np.random.default_rng(start)
            numbers = [random.normal(size=count).round(4) for _ in names]
            words = [
                np.array(list(values))[random.integers(0, len(values), count)] for values in ("abc", ("no", "yes"))
            ]
            writer.write_table(pa.table([*numbers, *words], schema=schema))


CALLS: dict[str, Callable[..., Result]] = {"votes": votes, "rival": rival, "private": private, "reading": reading}


# --- stages -----------------------------------------------------------------------------------------------------------

STAGES: dict[str, dict[str, tuple[Any, ...]]] = {
    "neighbours": {
        "mithridate, 3,500 neighbours": ("votes", "nearest-neighbours", 50_000, 10_000, 128),
        "mithridate, kernel vote": ("votes", "kernel-vote", 50_000, 10_000, 128),
        "scikit-learn, brute force": ("rival", "scikit-learn", 50_000, 10_000, 128),
        "faiss-cpu, flat index": ("rival", "faiss", 50_000, 10_000, 128),
    },
    "large": {
        "mithridate, 3,500 neighbours": ("votes", "nearest-neighbours", 1_000_000, 10_000, 256),
        "mithridate, 3,500 neighbours, arrays of more than 64 MiB in files": (
            "votes",
            "nearest-neighbours",
            1_000_000,
            10_000,
            256,
            {"MITHRIDATE_MEMORY_BYTES": str(1 << 26)},
        ),
        "faiss-cpu, flat index": ("rival", "faiss", 1_000_000, 10_000, 256),
    },
    "growth": {
        f"{examples:,}": ("votes", "nearest-neighbours", examples, 1000, 32)
        for examples in (10_000, 100_000, 1_000_000, 10_000_000)
    },
    "reading": {
        f"{kind}, {examples:,}": ("reading", kind, examples)
        for kind in ("csv", "parquet")
        for examples in (100_000, 1_000_000, 10_000_000)
    },
    "private": {"1,000 linear private instances": ("private", 1_000_000, 1000, 256)},
}


def measure(call: tuple[Any, ...]) -> Result:
    """One measurement in a process of its own."""
    environment = call[-1] if isinstance(call[-1], dict) else {}
    arguments = [value for value in call if not isinstance(value, dict)]
    outcome = subprocess.run(
        [sys.executable, __file__, "--call", json.dumps(arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if outcome.returncode != 0:
        return {"failed": outcome.stderr.strip().splitlines()[-1:]}
    return json.loads(outcome.stdout.splitlines()[-1])


class Memory(threading.Thread):
    """The most that a process held beside mapped files, whose pages the system takes back when it needs them."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.largest, self._over = 0, threading.Event()

    def run(self) -> None:
        """Look ten times a second, until it is over."""
        while not self._over.wait(0.1):
            lines = Path("/proc/self/status").read_text().splitlines()
            self.largest = max(self.largest, *(int(line.split()[1]) for line in lines if line.startswith("RssAnon")))

    def stop(self) -> float:
        """The result, in GiB."""
        self._over.set()
        self.join()
        return self.largest / 2**20


def call(arguments: list[Any]) -> None:
    name, *rest = arguments
    memory = Memory()
    memory.start()
    result = CALLS[name](*rest)
    result["gib_held"] = memory.stop()
    result["gib_with_files"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps(result))


def run(stages: list[str]) -> None:
    known: Result = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for stage in stages:
        known[stage] = {
            "cores": os.cpu_count(),
            "processor": platform.processor() or platform.machine(),
            "measured": {},
        }
        for title, arguments in STAGES[stage].items():
            load = os.getloadavg()[0]
            found = known[stage]["measured"][title] = {**measure(arguments), "load_before": load}
            shown = {name: round(value, 3) for name, value in found.items() if isinstance(value, float)}
            print(f"{stage}: {title}: {shown or found}", flush=True)
            RESULTS.write_text(json.dumps(known, indent=1) + "\n")


# --- the page ---------------------------------------------------------------------------------------------------------


def tables() -> str:
    """What stands between the two comments of the page."""
    known = json.loads(RESULTS.read_text())
    parts: list[str] = []
    for stage, words in (
        ("neighbours", "10,000 inputs, 50,000 examples, 128 columns"),
        ("large", "10,000 inputs, 1,000,000 examples, 256 columns"),
        ("private", "1,000 inputs, 1,000,000 examples, 256 columns, in a mapped file"),
    ):
        rows = [f"| {words} | votes | certificates | memory |", "| --- | ---: | ---: | ---: |"]
        rows += [
            f"| {title} | {_seconds(found.get('votes'))} | {_seconds(found.get('certificates'))} | {_memory(found)} |"
            for title, found in known[stage]["measured"].items()
        ]
        parts.append("\n".join(rows))
    rows = ["| examples | votes on 1,000 inputs | certificates | memory |", "| ---: | ---: | ---: | ---: |"]
    rows += [
        f"| {title} | {_seconds(found['votes'])} | {_seconds(found['certificates'])} | {_memory(found)} |"
        for title, found in known["growth"]["measured"].items()
    ]
    parts.append("\n".join(rows))
    rows = ["| a table of ten columns | file | time | memory |", "| --- | ---: | ---: | ---: |"]
    rows += [
        f"| {title} rows | {found['megabytes']:,.0f} MB | {_seconds(found['read'])} | {_memory(found)} |"
        for title, found in known["reading"]["measured"].items()
    ]
    parts.append("\n".join(rows))
    parts.append(_on_gpu())
    return "\n\n".join(parts)


def _on_gpu() -> str:
    """The table of `benchmarks/size_gpu.py`."""
    known = json.loads(RESULTS_OF_GPU.read_text())
    near, private, stream = (known[stage] for stage in ("near", "private", "stream"))
    rows = [
        "| one H200 | time | beside it |",
        "| --- | ---: | --- |",
        f"| nearest 7,000 of 1,000,000 examples, 256 columns, 10,000 inputs | {_seconds(near['nearest'])} | a product "
        f"and `topk` on rows that are there already: {_seconds(near['product_and_topk'])} |",
        f"| nearest 1,000 of 100,000,000 examples in a mapped file, 64 columns, 100 inputs | "
        f"{_seconds(stream['nearest'])} | sending these {stream['gigabytes']:.1f} GB alone: "
        f"{_seconds(stream['sending_alone'])} |",
        f"| 1,000 linear private instances, 1,000,000 examples in a mapped file, 256 columns | "
        f"{_seconds(private['votes'])} | the first time, which compiles kernels: {_seconds(private['first'])} |",
    ]
    return "\n".join(rows)


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"


def _memory(found: Result) -> str:
    return f"{found['gib_held']:.1f} GiB"


def write_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    block = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    PAGE.write_text(block.sub(lambda _: f"{BEGIN}\n\n{tables()}\n\n{END}", text), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", choices=[[], *STAGES], help="all, unless named")
    parser.add_argument("--page", action="store_true", help="measure nothing; write the tables of docs/scaling.md")
    parser.add_argument("--call", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.call:
        call(json.loads(given.call))
    elif given.page:
        write_page()
    else:
        run(given.stages or list(STAGES))


if __name__ == "__main__":
    main()
