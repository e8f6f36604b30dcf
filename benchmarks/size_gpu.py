"""Large comparisons and private ensembles on a GPU: how long they take, beside what the device needs at least.

    PYTHONPATH=src python benchmarks/size_gpu.py                       # about two minutes on an H200
    PYTHONPATH=src python benchmarks/size_gpu.py near stream           # some of them

Results go to benchmarks/results/size-h200.json, or to --out. Numbers are random: no time depends on their values.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from size import CLASSES, NEIGHBOURS, drawn

from mithridate._torch import products
from mithridate.defences import defence
from mithridate.defences._nearness import Inputs
from mithridate.defences._on_gpu import OnGpu
from mithridate.defences._search import Search
from mithridate.defences._sending import Sender
from mithridate.defences._whole_rows import whole_rows

RESULTS = Path(__file__).parent / "results" / "size-h200.json"
DEVICE = torch.device("cuda")
# Examples that are written to a file at a time, and sent at a time where only sending is timed.
_TOGETHER = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", choices=[[], *STAGES], help="all, unless named")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    known: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    known["machine"] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "on": platform.machine()}
    for name in given.stages or list(STAGES):
        known[name] = STAGES[name]()
        print(name, {key: round(value, 3) for key, value in known[name].items()}, flush=True)
        given.out.write_text(json.dumps(known, indent=1) + "\n")


def seconds(call: Callable[[], Any], times: int = 3) -> float:
    """The median, after a first call that is not timed."""
    call()
    torch.cuda.synchronize()
    found: list[float] = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return sorted(found)[times // 2]


def near(inputs: int = 10_000, examples: int = 1_000_000, columns: int = 256) -> dict[str, float]:
    """As many neighbours as a certificate of 3,500 looks at, beside a product and a selection that break no ties."""
    rows, asked = (whole_rows(drawn(count, columns, seed)[0])[0] for count, seed in ((examples, 1), (inputs, 2)))
    count = 2 * NEIGHBOURS
    found = {"nearest": _nearest(rows, asked, count)}
    there, those = (torch.from_numpy(each).to(DEVICE).float() for each in (rows, asked))

    def plainly() -> None:
        for part in those.split(1250):
            (part @ there.T).topk(count, dim=1)

    with products("float32", DEVICE):
        found["product_and_topk"] = seconds(plainly)
    return found


def _nearest(rows: npt.NDArray[np.int16], asked: npt.NDArray[np.int16], count: int, times: int = 3) -> float:
    """Seconds from rows of whole numbers to the labels of the nearest examples of every input, the nearest first."""
    labels = np.random.default_rng(0).integers(0, CLASSES, len(rows)).astype(np.int8)
    order = np.empty((len(asked), count), dtype=np.int8)
    inputs = Inputs((asked,), None, cast("Any", None))
    search = Search(inputs, rows, np.arange(len(rows), dtype=np.uint32), labels)
    gpu = OnGpu(DEVICE)
    return seconds(lambda: gpu.fill_with_nearest(order, search, None), times)


def stream(examples: int = 100_000_000, columns: int = 64, inputs: int = 100, count: int = 1000) -> dict[str, float]:
    """Examples that lie in a mapped file, each sent to the device once, beside the time that sending alone takes."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/rows.bin"
        written = np.memmap(path, np.int16, "w+", shape=(examples, columns))
        random = np.random.default_rng(0)
        piece = whole_rows(random.standard_normal((_TOGETHER, columns), dtype=np.float32))[0]
        for number, start in enumerate(range(0, examples, _TOGETHER)):
            part = written[start : start + _TOGETHER]
            part[:] = np.roll(piece, number, axis=1)[: len(part)]
        rows = np.memmap(path, np.int16, "r", shape=(examples, columns))
        asked = whole_rows(random.standard_normal((inputs, columns), dtype=np.float32))[0]
        return {
            "gigabytes": rows.nbytes / 1e9,
            "sending_alone": seconds(lambda: _sent(rows), 1),
            "nearest": _nearest(rows, asked, count, 1),
        }


def _sent(rows: npt.NDArray[np.int16]) -> None:
    with Sender(DEVICE) as sender:
        coming = sender.send(rows[:_TOGETHER])
        for start in range(_TOGETHER, len(rows), _TOGETHER):
            following = sender.send(rows[start : start + _TOGETHER])
            coming.there()
            coming = following
        coming.there()


def private(examples: int = 1_000_000, instances: int = 1000, columns: int = 256) -> dict[str, float]:
    """A private ensemble of linear models, with the recipe that it chooses; the examples lie in a mapped file."""
    made = defence("fdp", classes=CLASSES, num_train=examples, features="none", instances=instances, model="linear")
    test = drawn(1000, columns, 2)
    with tempfile.TemporaryDirectory() as folder:
        inputs, labels = drawn(examples, columns, 1)
        np.save(f"{folder}/x.npy", inputs)
        del inputs
        found: list[float] = []
        for _ in range(3):
            start = time.perf_counter()
            made.train((np.load(f"{folder}/x.npy", mmap_mode="r"), labels), test, device="cuda")
            found.append(time.perf_counter() - start)
        return {"first": found[0], "votes": min(found)}


STAGES: dict[str, Callable[[], dict[str, float]]] = {"near": near, "private": private, "stream": stream}


if __name__ == "__main__":
    main()
