"""What a Ray cluster costs: long shards next to this process on the same cores, and very many short ones.

    python benchmarks/ray_overhead.py long --out benchmarks/results/ray-long-mlp.json
    python benchmarks/ray_overhead.py long --model lenet5 --out benchmarks/results/ray-long-lenet5.json
    python benchmarks/ray_overhead.py many --shards 10000 --out benchmarks/results/ray-many.json

The data is random: no timing depends on its values. `long` trains the same run with both back ends, with the same
groups and cores, by turns, and compares the sums of their times; the time to start Ray is given apart, since it is paid
once whatever the run. `many` trains one instance of a trivial model in each shard, and looks at the driver's memory.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from train import machine  # the benchmark beside this one

from mithridate import Ray, TrainConfig, Votes, train
from mithridate._version import VERSION
from mithridate.training.ray_cluster import connected

CLASSES = 10
SHAPES = {"mlp": (100,), "lenet5": (1, 28, 28)}  # what the models of long shards see


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("long", "many"))
    parser.add_argument("--model", choices=SHAPES, default="mlp", help="what is trained (long: mlp)")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, help="workers, and threads of this process")
    parser.add_argument("--seconds", type=float, default=10.0, help="work of a shard on one core, at least (long)")
    parser.add_argument("--shards", type=int, help="shards for each core (long: 2), or in all (many: 10000)")
    parser.add_argument("--turns", type=int, default=2, help="how often each back end is timed (long)")
    parser.add_argument("--out", type=Path, help="where the figures are written")
    options = parser.parse_args()
    torch.set_num_threads(options.cores)
    figures = _long(options) if options.what == "long" else _many(options)
    load = [round(number, 2) for number in os.getloadavg()]
    figures = {
        **figures,
        "load_average": load,
        "machine": machine(torch.device("cpu")),
        "ray": ray.__version__,
        "version": VERSION,
    }
    print(json.dumps(figures, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _data(count: int, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, *shape)).astype(np.float32), np.arange(count) % CLASSES


def _config(instances: int, steps: int) -> TrainConfig:
    return TrainConfig(
        instances, noise_multiplier=1.0, sample_rate=0.02, steps=steps, max_grad_norm=1.0, learning_rate=0.1,
        num_train=5000, classes=CLASSES,
    )  # fmt: skip


# --- long shards -----------------------------------------------------------------------------------------------------


def _long(options: argparse.Namespace) -> dict[str, Any]:
    """Total time of both back ends, by turns: 8 models of a group for each core, where one group has them all."""
    data, test = (_data(count, *SHAPES[options.model]) for count in (5000, 500))
    group = 8 * options.cores
    shards = options.cores * (options.shards or 2)

    found: dict[int, Votes] = {}

    def timed(steps: int, instances: int, backend: Ray | None) -> float:
        begin = time.perf_counter()
        votes = train(
            data, test, model=options.model, config=_config(instances, steps), device="cpu", in_flight=group,
            root_seed=bytes(32), backend=backend,
        )  # fmt: skip
        seconds = time.perf_counter() - begin
        if not votes.equals(found.setdefault(steps * instances, votes)):
            raise AssertionError("the back ends did not do the same work")
        return seconds

    timed(20, group, None)
    per_step = timed(200, group, None) / 200 * options.cores
    steps = int(1.2 * options.seconds / per_step) + 1
    backend = Ray(workers=options.cores)
    begin = time.perf_counter()
    with connected(backend):
        start = time.perf_counter() - begin
        timed(20, options.cores * group, backend)  # the workers import torch
        times: dict[str, list[float]] = {"local": [], "ray": []}
        for _ in range(options.turns):
            times["local"].append(timed(steps, shards * group, None))
            times["ray"].append(timed(steps, shards * group, backend))
    ratio = sum(times["ray"]) / sum(times["local"])
    return {
        "model": options.model,
        "shards": shards,
        "cores": options.cores,
        "steps": steps,
        "seconds_of_work_per_shard": sum(times["local"]) / options.turns / shards * options.cores,
        "seconds": times,
        "ray_over_local": ratio,
        "seconds_to_start_ray": start,
    }


# --- many shards -----------------------------------------------------------------------------------------------------


def _resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _many(options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds per shard, and the driver's memory while they come in."""
    shards = options.shards or 10_000
    data, test = _data(100, 5), _data(20, 5)
    memory: list[tuple[int, float]] = []
    marks = iter(range(0, shards + 1, max(1, shards // 20)))
    mark, begin = next(marks), 0.0

    def look(done: int, total: int) -> None:
        nonlocal mark, begin
        if not memory:
            begin = time.perf_counter()
        while mark is not None and done >= mark:
            memory.append((done, _resident() / 2**20))
            mark = next(marks, None)

    backend = Ray(workers=options.cores)
    with connected(backend), tempfile.TemporaryDirectory() as folder:
        train(data, test, model="linear", config=_config(options.cores, 1), in_flight=1, device="cpu", backend=backend)
        train(
            data, test, model="linear", config=_config(shards, 1), in_flight=1, device="cpu", backend=backend,
            run_dir=Path(folder) / "run", progress=look,
        )  # fmt: skip
        total = time.perf_counter() - begin
    late = [size for done, size in memory if done >= shards / 4]
    return {
        "shards": shards,
        "workers": options.cores,
        "seconds": total,
        "ms_per_shard": 1000 * total / shards,
        "driver_mib": [[done, round(size, 1)] for done, size in memory],
        "driver_mib_growth_after_first_quarter": late[-1] - late[0],
    }


if __name__ == "__main__":
    main()
