"""How time, memory and energy of training grow with instances, examples and parameters, and what more would cost.

    python benchmarks/scaling.py --device cuda --out benchmarks/results/scaling-h200.json
    python benchmarks/scaling.py --device cpu --out benchmarks/results/scaling-cpu.json
    python benchmarks/scaling.py --page          (writes the section of docs/results.md from these files)

One number is varied at a time. The data is random and of the right shapes: no timing depends on its values. What does
not fit into --seconds is skipped and listed as skipped; --only measures one group, and adds it to the file there is.
Estimates are arithmetic on the measured figures, and the page says so.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import re
import resource
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from train import machine, one_run, resident_bytes, warm_up  # the benchmark beside this one

from mithridate._version import VERSION
from mithridate.data.examples import Dataset
from mithridate.recipes.choosing import Recipe, choose
from mithridate.training import models
from mithridate.training.config import TrainConfig
from mithridate.training.engine import Engine
from mithridate.training.models import initial_weights
from mithridate.training.randomness import Seeds

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results.md"
BEGIN, END = "<!-- scaling -->", "<!-- end of scaling -->"
_BLOCK = re.compile(f"{BEGIN}\n.*?{END}\n", re.DOTALL)
_GIB = 2**30
_SEEDS = Seeds.of(bytes(range(32)))

# --- what is measured ------------------------------------------------------------------------------------------------

GROUPS = {
    "instances": "More instances",
    "examples": "More examples, at an equal expected batch",
    "parameters": "More parameters, at an equal expected batch",
    "features": "A linear model on 2,048 features and 1,000 classes, in a large batch",
}


@dataclass(frozen=True)
class Kind:
    """A network, the shape of its inputs, and how it is built."""

    shape: tuple[int, ...]
    classes: int
    build: Callable[[], nn.Module]


def named(name: str, shape: tuple[int, ...]) -> Kind:
    return Kind(shape, 10, lambda: models.build(name, shape, 10))


def linear(features: int, classes: int) -> Kind:
    """Softmax regression without a bias: the features have one."""
    return Kind((features,), classes, lambda: models.build("linear", (features,), classes, bias=False))


def wider_lenet5(width: int) -> Kind:
    """LeNet-5 with `width` times the channels and units."""

    def build() -> nn.Module:
        convolutions = [nn.Conv2d(1, 6 * width, 5), nn.Tanh(), nn.AvgPool2d(2)]
        convolutions += [nn.Conv2d(6 * width, 16 * width, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten()]
        units = [nn.Linear(256 * width, 120 * width), nn.Tanh(), nn.Linear(120 * width, 84 * width), nn.Tanh()]
        return nn.Sequential(*convolutions, *units, nn.Linear(84 * width, 10))

    return Kind((1, 28, 28), 10, build)


KINDS = {
    "linear": linear(154, 10),
    "linear-2048": linear(2048, 1000),
    "lenet5": named("lenet5", (1, 28, 28)),
    "lenet5-x2": wider_lenet5(2),
    "lenet5-x4": wider_lenet5(4),
    "opa-tut": named("opa-tut", (3, 32, 32)),
    "resnet18": named("resnet18", (3, 32, 32)),
}


@dataclass(frozen=True)
class Case:
    """One measurement: what is trained, and about how long that takes, compiling included."""

    groups: tuple[str, ...]
    model: str
    instances: int
    examples: int
    batch: float
    steps: int
    guess: float = 6.0


_ALL, _P, _N, _D, _F = ("instances", "examples"), ("instances",), ("examples",), ("parameters",), ("features",)
# What takes longest comes last. Batches and steps of `linear` are those of the recipe
# for 60,000 images, the batch of `lenet5` is that of its recipe.
CASES = {
    "cuda": (
        Case(_ALL, "linear", 1_000, 60_000, 450, 20, 10),
        Case(_ALL, "lenet5", 1_000, 60_000, 60, 100, 15),
        Case(_F, "linear-2048", 16, 100_000, 4_096, 20, 10),
        Case(_N, "lenet5", 1_000, 1_000_000, 60, 100, 10),
        Case(_N, "linear", 1_000, 6_000_000, 450, 20, 15),
        Case(_P, "linear", 10_000, 60_000, 450, 20, 10),
        Case(_N, "linear", 1_000, 6_000, 450, 20),
        Case(_N, "linear", 1_000, 600_000, 450, 20),
        Case(_P, "lenet5", 100, 60_000, 60, 100),
        Case(_D, "linear", 1_000, 60_000, 256, 20),
        Case(_D, "lenet5", 256, 60_000, 256, 100, 10),
        Case(_D, "opa-tut", 64, 50_000, 256, 50, 20),
        Case(_D, "lenet5-x2", 256, 60_000, 256, 20, 10),
        Case(_D, "lenet5-x4", 128, 60_000, 256, 20, 12),
        Case(_D, "linear-2048", 16, 100_000, 256, 20),
        Case(_P, "lenet5", 10_000, 60_000, 60, 100, 25),
        Case(_P, "linear", 100_000, 60_000, 450, 20, 40),
        Case(_D, "resnet18", 2, 50_000, 256, 100, 35),
    ),
    "cpu": (
        Case(_ALL, "linear", 100, 60_000, 450, 20),
        Case(_ALL, "lenet5", 16, 60_000, 60, 20),
        Case(_P, "linear", 10, 60_000, 450, 20),
        Case(_P, "linear", 1_000, 60_000, 450, 20, 20),
        Case(_P, "lenet5", 160, 60_000, 60, 20, 20),
        Case(_N, "linear", 100, 6_000, 450, 20),
        Case(_N, "linear", 100, 600_000, 450, 20),
        Case(_N, "lenet5", 16, 600_000, 60, 20, 10),
        Case(_D, "linear", 100, 60_000, 16, 20),
        Case(_D, "lenet5", 16, 60_000, 16, 20),
        Case(_D, "lenet5-x2", 16, 60_000, 16, 10),
        Case(_D, "lenet5-x4", 8, 60_000, 16, 5),
        Case(_D, "opa-tut", 2, 10_000, 16, 5),
        Case(_D, "linear-2048", 8, 10_000, 16, 5),
        Case(_D, "resnet18", 1, 10_000, 16, 2, 20),
        Case(_F, "linear-2048", 2, 10_000, 4_096, 2, 10),
    ),
}


@dataclass(frozen=True)
class Effort:
    """How long one case is repeated."""

    seconds: float  # no new run is begun after so many
    least: int  # unless there are fewer runs than this, and they are short
    long: float  # a run that takes so many seconds is not repeated


EFFORT = {"cuda": Effort(2.5, 3, 5.0), "cpu": Effort(1.0, 2, 3.0)}


def measure_all(device: torch.device, seconds: float, only: str | None) -> dict[str, Any]:
    """All cases of a device that fit into the time."""
    end = time.perf_counter() + seconds
    done: list[dict[str, Any]] = []
    skipped: list[dict[str, Any]] = []
    meter = PowerMeter(device)
    with meter:
        for case in CASES[device.type]:
            if only is not None and only not in case.groups:
                continue
            if end - time.perf_counter() < case.guess:
                skipped.append({**described(case), "why": f"did not fit into {seconds:g} s"})
                continue
            try:
                done.append(measure(case, device, meter))
                print(f"{in_words(done[-1])}: {done[-1]['seconds']:.2f} s", file=sys.stderr)
            except KeyboardInterrupt:
                skipped.append({**described(case), "why": "interrupted"})
                break
            except Exception as error:  # out of memory, or what a compiler says: the other cases are worth having
                why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                print(f"{in_words(described(case))}: {why}", file=sys.stderr)
                skipped.append({**described(case), "why": why})
    facts = {name: value for name, value in machine(device).items() if name != "opacus"}
    return {**facts, "kind": device.type, "mithridate": VERSION, "cases": done, "skipped": skipped}


def described(case: Case) -> dict[str, Any]:
    return {name: value for name, value in asdict(case).items() if name != "guess"} | {"groups": list(case.groups)}


def measure(case: Case, device: torch.device, meter: PowerMeter | None = None) -> dict[str, Any]:
    """Time, memory and power of one case; a run goes from drawing initial weights to the last ones, without voting."""
    give_back_memory()
    memory = PeakMemory(device)
    kind = KINDS[case.model]
    module = kind.build()
    engine = Engine(module, random_data(kind, case.examples), config_of(case, kind.classes), device=device)
    in_flight = warm_up(engine, min(engine.models_in_flight(), case.instances), case.steps)
    began = time.perf_counter()
    runs = repeated(lambda: timed_run(engine, in_flight, case.instances, device), EFFORT[device.type])
    power = None if meter is None else meter.mean_watts(began, time.perf_counter())
    seconds = statistics.median(run.counted for run in runs)
    model_steps = case.instances * case.steps
    return {
        **described(case),
        "parameters": engine.network.size,
        "in_flight": in_flight,
        "path": engine.path,
        "precision": engine.precision,
        "runs": [asdict(run) for run in runs],
        "seconds": seconds,
        "start_s": seconds_of_start(module, case.instances),
        "model_steps_per_s": model_steps / seconds,
        "examples_per_s": model_steps * case.batch / seconds,
        **memory.peaks(),
        "power_w": power,
        "joule_per_model_step": None if power is None else power * seconds / model_steps,
    }


def config_of(case: Case, classes: int) -> TrainConfig:
    """Noise, clipping and step size are any: no timing depends on them."""
    rate = case.batch / case.examples
    config = TrainConfig(case.instances, 4.0, rate, case.steps, 1.0, 0.1, average_iterates=case.model == "linear")
    return config.resolve(num_train=case.examples, classes=classes)


def random_data(kind: Kind, examples: int, distinct: int = 10_000) -> Dataset:
    """Random rows of unit norm or random 8-bit images, and random labels; a few thousand, again and again."""
    random = np.random.default_rng(0)
    block = random.integers(0, 256, (min(distinct, examples), *kind.shape), dtype=np.uint8).astype(np.float32)
    block /= 255
    if len(kind.shape) == 1:
        block /= np.linalg.norm(block, axis=1, keepdims=True)
    inputs = np.resize(block, (examples, *kind.shape))
    return Dataset(inputs=inputs, labels=random.integers(0, kind.classes, examples))


@dataclass(frozen=True)
class Run:
    """Seconds of one run: on the clock, of the processor, and those that count."""

    wall: float
    processor: float
    counted: float


def timed_run(engine: Engine, in_flight: int, instances: int, device: torch.device) -> Run:
    """On a CPU the time of the processor counts: of one thread, it is what an idle machine would take."""
    began = time.process_time()
    wall = one_run(engine, in_flight, instances, device)
    processor = time.process_time() - began
    return Run(wall, processor, processor if device.type == "cpu" else wall)


def repeated(run: Callable[[], Run], effort: Effort) -> list[Run]:
    runs = [run()]
    while runs[0].counted < effort.long and (
        len(runs) < effort.least or sum(run.counted for run in runs) < effort.seconds
    ):
        runs.append(run())
    return runs


def seconds_of_start(module: nn.Module, instances: int) -> float:
    """Of drawing initial weights, which does not grow with the steps; of a part, where there are many."""
    part = range(min(instances, 1000))
    start = time.thread_time()
    initial_weights(module, _SEEDS, part)
    return (time.thread_time() - start) * instances / len(part)


def give_back_memory() -> None:
    """What the case before has left, so that the next one does not find its memory there."""
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # of glibc
        trim(0)


class PeakMemory:
    """The largest memory since it was made: the device's, and by how much this process grew."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._can_reset = reset_peak()
        self._before = resident_bytes()
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)

    def peaks(self) -> dict[str, float | None]:
        on_device = torch.cuda.max_memory_allocated(self._device) / _GIB if self._device.type == "cuda" else None
        grown = max(0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - self._before) / _GIB
        return {"device_peak_gib": on_device, "host_growth_gib": grown if self._can_reset else None}


def reset_peak() -> bool:
    """Whether Linux could be told to forget the largest memory of this process so far."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


class PowerMeter:
    """Asks the driver for the power of the GPU about ten times a second; does nothing on a CPU."""

    def __init__(self, device: torch.device, interval: float = 0.1) -> None:
        self._interval = interval
        self._samples: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if device.type == "cuda":
            uuid = torch.cuda.get_device_properties(device).uuid
            command = ["nvidia-smi", f"--id=GPU-{uuid}", "--query-gpu=power.draw", "--format=csv,noheader,nounits"]
            self._thread = threading.Thread(target=self._ask, args=(command,), daemon=True)

    def __enter__(self) -> PowerMeter:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _ask(self, command: list[str]) -> None:
        while not self._stop.wait(self._interval):
            try:
                answer = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout
                self._samples.append((time.perf_counter(), float(answer)))
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                print(f"Energy stays unknown, since the driver does not tell the power: {error}", file=sys.stderr)
                return

    def mean_watts(self, began: float, ended: float) -> float | None:
        """The mean over a stretch without its first second: the driver reports means of about one second."""
        inside = [watts for at, watts in self._samples if began + 1.0 <= at <= ended]
        return statistics.fmean(inside) if len(inside) >= 3 else None


# --- how many floating-point operations ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Product:
    """A linear or convolutional layer on one example: a matrix of weights that meets every position of the output."""

    features: int  # inputs of one output
    outputs: int
    positions: int = 1

    @property
    def macs(self) -> int:
        """Multiplications, each with an addition, of the forward pass."""
        return self.features * self.outputs * self.positions

    @property
    def norm_macs(self) -> int:
        """Of the norm of the example's gradient: the gradient itself, or two Gram matrices, whichever costs less."""
        if self.positions == 1:
            return self.features + self.outputs
        return min(self.macs, self.positions**2 * (self.features + self.outputs))


def products_of(module: nn.Module, shape: tuple[int, ...]) -> list[Product]:
    """The layers of a module, in the order in which an example meets them."""
    found: list[Product] = []

    def note(layer: Any, _: Any, output: torch.Tensor) -> None:
        outputs = layer.weight.shape[0]
        found.append(Product(layer.weight[0].numel(), outputs, output[0].numel() // outputs))

    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            layer.register_forward_hook(note)
    with torch.no_grad():
        module(torch.zeros(1, *shape))
    return found


def resnet50_products(side: int = 224, classes: int = 1000) -> list[Product]:
    """ResNet-50 (He et al. 2016, arXiv 1512.03385), strides in the 3x3 convolutions as is usual today."""
    side //= 2
    found = [Product(3 * 49, 64, side**2)]
    side //= 2  # max pooling
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = 64 * 2**stage
        outer = 4 * inner
        for block in range(blocks):
            before = side
            side = side // 2 if stage > 0 and block == 0 else side
            found.append(Product(channels, inner, before**2))
            found += [Product(9 * inner, inner, side**2), Product(inner, outer, side**2)]
            if block == 0:
                found.append(Product(channels, outer, side**2))
            channels = outer
    return [*found, Product(channels, classes)]


def resnet50_parameters() -> int:
    """Weights, two numbers of a norm for every channel of a convolution, and the biases of the last layer."""
    layers = resnet50_products()
    weights = sum(layer.features * layer.outputs for layer in layers)
    return weights + 2 * sum(layer.outputs for layer in layers[:-1]) + layers[-1].outputs


def training_flops(layers: list[Product]) -> int:
    """Of one example in one step: forward pass, gradients of inputs and weights, norms; two for every multiplication.

    Nobody asks for the gradient of the data, so the first layer has one product less. Activations, normalisation, noise
    and the update are left out.
    """
    macs = sum(3 * layer.macs + layer.norm_macs for layer in layers) - layers[0].macs
    return 2 * macs


def forward_flops(layers: list[Product]) -> int:
    return 2 * sum(layer.macs for layer in layers)


@cache
def layers_of(model: str) -> list[Product]:
    kind = KINDS[model]
    return products_of(kind.build(), kind.shape)


# --- on paper --------------------------------------------------------------------------------------------------------

MANY = 1_000_000
IMAGENET, IMAGENET_CLASSES = 1_281_167, 1000
PASSES = 90
IMAGENET_NOISE = 4.0
_RADIUS = (
    "The radius is what f-DP can certify at most, where all instances agree: examples added or removed, failure "
    "probability 0.001 for each prediction."
)


class NotMeasured(Exception):
    """An estimate lacks the figure that it starts from."""


def slowest(result: dict[str, Any], model: str, batch: float, least_instances: int = 1) -> dict[str, Any]:
    """Of the cases with this model and expected batch, the one that takes longest for a model-step."""
    cases = [case for case in result["cases"] if case["instances"] >= least_instances]
    found = [case for case in cases if case["model"] == model and case["batch"] == batch]
    if not found:
        raise NotMeasured(f"{model} at an expected batch of {batch:g} was not measured")
    return max(found, key=step_seconds)


def step_seconds(case: dict[str, Any]) -> float:
    """Of one model-step, without the drawing of initial weights."""
    return (case["seconds"] - case["start_s"]) / (case["instances"] * case["steps"])


def flops_per_s(case: dict[str, Any]) -> float:
    return training_flops(layers_of(case["model"])) * case["batch"] / step_seconds(case)


def inputs_gib(model: str, examples: int) -> float:
    return 4 * math.prod(KINDS[model].shape) * examples / _GIB


@dataclass(frozen=True)
class Cost:
    """What something would take on one device."""

    seconds: float
    watts: float | None

    @property
    def cells(self) -> list[str]:
        energy = None if self.watts is None else self.watts * self.seconds
        return [duration(self.seconds), "not measured" if energy is None else energy_in_words(energy)]


def million_examples(result: dict[str, Any]) -> str:
    """The recipes for grey images at a million examples."""
    linear_case, lenet_case = slowest(result, "linear", 450, 1_000), slowest(result, "lenet5", 60, 1_000)
    one_pass = math.ceil(MANY / lenet_case["batch"])
    rows: list[list[str]] = []
    for instances in (1_000, 10_000):
        shared: dict[str, Any] = {"num_train": MANY, "classes": 10, "kind": "uint8", "device": "cuda"}
        shared["instances"] = instances
        rows.append(million_row("linear, equal A", linear_case, choose(shape=(28, 28), **shared)))
        lenet = choose(model="lenet5", shape=(1, 28, 28), **shared)
        rows.append(million_row("LeNet-5, equal A", lenet_case, lenet))
        longer = choose(model="lenet5", shape=(1, 28, 28), steps=one_pass, **shared)
        rows.append(million_row("LeNet-5, one pass", lenet_case, longer))
    names = ["recipe", "instances", "expected batch", "steps", "radius, at most", "time", "energy", "device memory"]
    return "\n".join(
        [
            f"**{MANY:,} examples** of 28 x 28 grey pixels, ten classes. The signal A = (q n / s) sqrt(T) decides "
            "accuracy and the radius is in proportion to n / A ([recipes](recipes.md)). So at equal A neither the "
            "batch nor the number of steps has to grow with n, and the radius grows in proportion to n. LeNet-5 then "
            f"sees only a part of the examples; one pass over all of them, in expectation, takes {MANY:,} / "
            f"{lenet_case['batch']:g} = {one_pass:,} steps, and A grows with the root of the steps.",
            "",
            "Assumed: a model-step takes as long, and draws as much power, as in the slowest measured run of at least "
            f"1,000 instances at that batch ({in_words(linear_case)}: {microseconds(linear_case)}; "
            f"{in_words(lenet_case)}: {microseconds(lenet_case)}). Time is instances x (initial weights + steps x "
            "model-step). Memory is that of the same run, with a million inputs in place of its own. Voting and the "
            f"computation of features are not counted. {_RADIUS}",
            "",
            *markdown(names, rows),
        ]
    )


def million_row(title: str, case: dict[str, Any], recipe: Recipe) -> list[str]:
    config = recipe.config
    batch = config.sample_rate * recipe.num_train
    each = case["start_s"] / case["instances"] + config.steps * step_seconds(case) * max(1.0, batch / case["batch"])
    peak = case["device_peak_gib"]
    memory = (
        None if peak is None else peak + inputs_gib(case["model"], MANY) - inputs_gib(case["model"], case["examples"])
    )
    cost = Cost(config.instances * each, case["power_w"])
    sizes = [f"{config.instances:,}", f"{batch:,.0f}", f"{config.steps:,}", f"{recipe.reach[1.0]:,}"]
    return [title, *sizes, *cost.cells, "not measured" if memory is None else f"{memory:.1f} GiB"]


def imagenet_network(result: dict[str, Any]) -> str:
    """ResNet-50 on ImageNet, by the arithmetic of the measured ResNet-18."""
    case = slowest(result, "resnet18", 256)
    small, large = layers_of("resnet18"), resnet50_products()
    rate, flops = flops_per_s(case), training_flops(large)
    each = PASSES * IMAGENET * flops / rate
    rows = [imagenet_row(instances, batch, each, case) for instances in (100, 1_000) for batch in (1_024, 4_096)]
    names = ["instances", "expected batch", "steps", "radius, at most", "GPU-hours", "energy"]
    return "\n".join(
        [
            f"**ImageNet-size**: {IMAGENET:,} images of 3 x 224 x 224, ResNet-50 with {resnet50_parameters():,} "
            f"parameters. Its forward pass has {giga(forward_flops(large) / 2)} multiply-adds an example; with the "
            "gradients of inputs and weights (as many each, but none for the data) and the norms of single examples "
            f"({giga(sum(layer.norm_macs for layer in large))}: of each layer the gradient itself or two Gram "
            f"matrices, whichever costs less), each counted as two operations, a step has {giga(flops)} floating-point "
            f"operations an example. The same count gives {giga(training_flops(small))} for ResNet-18 on 3 x 32 x 32 "
            f"pixels, which ran at {case['batch'] / step_seconds(case):,.0f} examples/s, initial weights left out: "
            f"{rate / 1e12:,.1f} TFLOP/s.",
            "",
            f"Assumed: the same operations per second; {PASSES} passes, as is usual for this network without privacy; "
            f"noise {IMAGENET_NOISE:g} times the clipping norm. Then one instance takes {PASSES} x {IMAGENET:,} x "
            f"{giga(flops)} / {rate / 1e12:,.1f} T = {each / 3600:,.1f} hours on one GPU, whatever the batch; energy "
            "is that of the card at the power of the measured run. Steps are passes x images / batch. Nothing is said "
            f"of accuracy, for which nothing was run. {_RADIUS}",
            "",
            *markdown(names, rows),
            "",
            memory_of_resnet50(case, small, large),
        ]
    )


def imagenet_row(instances: int, batch: int, each: float, case: dict[str, Any]) -> list[str]:
    steps = math.ceil(PASSES * IMAGENET / batch)
    recipe = choose(
        num_train=IMAGENET,
        classes=IMAGENET_CLASSES,
        shape=(3, 224, 224),
        kind="uint8",
        model="resnet18",  # only for the radius, which depends on what is given here alone
        instances=instances,
        noise_multiplier=IMAGENET_NOISE,
        sample_rate=batch / IMAGENET,
        steps=steps,
    )
    cost = Cost(instances * each, case["power_w"])
    hours = f"{rounded(cost.seconds / 3600)}"
    return [f"{instances:,}", f"{batch:,}", f"{steps:,}", radius_in_words(recipe), hours, cost.cells[1]]


def memory_of_resnet50(case: dict[str, Any], small: list[Product], large: list[Product]) -> str:
    """How much of a batch would fit, from the memory of the measured run."""
    if case["device_peak_gib"] is None:
        return "Memory of the device was not measured, so that of ResNet-50 is not estimated."
    numbers, more_numbers = (sum(layer.outputs * layer.positions for layer in layers) for layers in (small, large))
    fixed = inputs_gib(case["model"], case["examples"]) + 24 * case["parameters"] / _GIB
    each = (case["device_peak_gib"] - fixed) * _GIB / (case["batch"] * numbers)
    example = each * more_numbers / _GIB
    return (
        f"Memory: the measured run held {each:.0f} bytes for every output of a layer and example (peak less the inputs "
        f"and six numbers a parameter). ResNet-50 has {more_numbers / 1e6:.1f} million such outputs, so an example "
        f"would take {example:.2f} GiB and a batch of 1,024 about {1024 * example:,.0f} GiB. The speeds "
        "belong to whole batches; where one does not fit, the engine adds up clipped gradients over pieces of it, "
        "which was not measured. The images take "
        f"{4 * 3 * 224**2 * IMAGENET / _GIB:,.0f} GiB in single precision and {3 * 224**2 * IMAGENET / _GIB:,.0f} GiB "
        "as bytes: they would stay in a mapped file on the host and be sent batch by batch, which is not counted."
    )


def imagenet_features(result: dict[str, Any]) -> str:
    """A linear model on what a public ResNet-50 makes of the images."""
    network, case = slowest(result, "resnet18", 256), slowest(result, "linear-2048", 4_096)
    forward = Cost(IMAGENET * forward_flops(resnet50_products()) / flops_per_s(network), network["power_w"])
    flops = training_flops(layers_of("linear-2048"))
    rate = flops_per_s(case)
    all_at_once = 4 * (2 * 2048 + 3 * IMAGENET_CLASSES) * IMAGENET / _GIB
    rows = [features_row(instances, seconds, case) for instances in (100, 1_000) for seconds in (1.0, math.inf)]
    names = ["instances", "expected batch", "noise", "steps", "radius, at most", "time", "energy"]
    return "\n".join(
        [
            "**The alternative: frozen public features and a linear model.** A ResNet-50 trained on other, trusted "
            "data ([features](features.md) says what that assumes) turns every image into 2,048 numbers, once: "
            f"{IMAGENET:,} x {giga(forward_flops(resnet50_products()))} / {flops_per_s(network) / 1e12:,.1f} T = "
            f"{duration(forward.seconds)}, at the speed of the measured ResNet-18 (its training; a forward pass alone "
            f"was not measured). The features take {4 * 2048 * IMAGENET / _GIB:.1f} GiB. The linear model for "
            f"{IMAGENET_CLASSES:,} classes has {case['parameters']:,} parameters and {flops / 1e6:.1f} million "
            f"operations an example and step; measured at an expected batch of {case['batch']:,.0f} it did "
            f"{rate / 1e12:,.2f} TFLOP/s.",
            "",
            "Assumed: the same operations per second at the batches of the recipe; the recipe is that of `choose`, "
            "once with the smallest batch that it allows and once with the one it prefers (here all examples, in every "
            f"step: in one piece, beside the features, a copy of them and thrice the scores of all classes, "
            f"{all_at_once:.0f} GiB). "
            f"Nothing is said of accuracy. {_RADIUS}",
            "",
            *markdown(names, rows),
        ]
    )


def features_row(instances: int, seconds: float, case: dict[str, Any]) -> list[str]:
    recipe = choose(
        num_train=IMAGENET,
        classes=IMAGENET_CLASSES,
        shape=(2048,),
        kind="float",
        features=None,
        device="cuda",
        seconds=min(seconds, 1e12),
        instances=instances,
    )
    config = recipe.config
    batch = config.sample_rate * IMAGENET
    work = config.steps * batch * training_flops(layers_of("linear-2048")) / flops_per_s(case)
    cost = Cost(instances * (case["start_s"] / case["instances"] + work), case["power_w"])
    sizes = [f"{instances:,}", f"{batch:,.0f}", f"{config.noise_multiplier:g}", f"{config.steps:,}"]
    return [*sizes, radius_in_words(recipe), *cost.cells]


def radius_in_words(recipe: Recipe) -> str:
    radius = recipe.reach[1.0]
    return f"{radius:,}" if radius >= 0 else "none"


# --- the page --------------------------------------------------------------------------------------------------------

_COLUMNS = {
    "model": "model",
    "instances": "instances",
    "examples": "examples",
    "parameters": "parameters",
    "batch": "batch",
    "steps": "steps",
    "seconds": "s",
    "model_steps_per_s": "model-steps/s",
    "examples_per_s": "examples/s",
    "device_peak_gib": "device GiB",
    "host_growth_gib": "host GiB",
    "joule_per_model_step": "J a model-step",
}


def section() -> str:
    """What stands between the two comments of the page, comments included."""
    results = read_all()
    gpus = [result for result in results if result["kind"] == "cuda"]
    parts = [introduction(), *(tables(result) for result in reversed(results)), estimates(gpus[-1] if gpus else None)]
    return "\n\n".join([BEGIN, *(wrapped(part) for part in parts), END]) + "\n"


def wrapped(text: str) -> str:
    """Paragraphs in lines of the usual length; tables stay as they are."""
    fill = partial(textwrap.fill, width=120, break_long_words=False, break_on_hyphens=False)
    return "\n".join(line if line.startswith("|") else fill(line) for line in text.splitlines())


def read_all() -> list[dict[str, Any]]:
    return [read(path) for path in sorted(RESULTS.glob("scaling-*.json"))]


def read(path: Path) -> dict[str, Any]:
    """Results of this script.

    Raises:
        ValueError: the file holds something else.
    """
    remedy = f"make it again with: python benchmarks/scaling.py --out {path.name}"
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path.name} is no JSON ({error}); {remedy}") from error
    if not isinstance(result, dict) or not {"kind", "device", "cases", "skipped"} <= result.keys():
        raise ValueError(f"{path.name} holds no results of this script; {remedy}")
    return result


def introduction() -> str:
    return (
        "A run goes from drawing initial weights to the last ones; compiling and voting are not in it. Times are "
        "medians where a run is short enough to be repeated. A *model-step* is one step of one model; examples are "
        "those of all batches, in expectation. Data is random, since no timing depends on its values. Device memory is "
        "the most that torch had allocated, host memory by how much the process grew, the data included. Energy is "
        "that of the card alone, its idle power included, from the power that the driver reported about ten times a "
        "second. Only the tables of this part were measured; what follows them is arithmetic."
    )


def tables(result: dict[str, Any]) -> str:
    on_one_core = result["kind"] == "cpu"
    precisions = sorted({case["precision"] for case in result["cases"]})
    made_by = f"torch {result['torch']}, Python {result['python']}, {' and '.join(precisions)}"
    parts = [f"**Measured on {'one core of ' if on_one_core else ''}{result['device']}** ({made_by})"]
    if on_one_core:
        parts[0] += ". Seconds are those of the processor: one thread, on a machine that others used, too."
    for group, title in GROUPS.items():
        cases = [case for case in result["cases"] if group in case["groups"]]
        if cases:
            # By model, and within each by what the group varies.
            first = list(dict.fromkeys(case["model"] for case in sorted(cases, key=lambda case: case["parameters"])))
            cases.sort(
                key=lambda case: (first.index(case["model"]), case["instances"], case["examples"], case["batch"])
            )
            parts += [f"{title}:", table(cases)]
    skipped = [f"{in_words(case)} ({case['why']})" for case in result["skipped"]]
    return "\n\n".join([*parts, *([f"Not run: {'; '.join(skipped)}."] if skipped else [])])


def table(cases: list[dict[str, Any]]) -> str:
    """The columns in which there is something."""
    columns = [name for name in _COLUMNS if any(case[name] is not None for case in cases)]
    rows = [[cell(name, case[name]) for name in columns] for case in cases]
    return "\n".join(markdown([_COLUMNS[name] for name in columns], rows))


def cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if name in ("instances", "examples", "parameters", "steps", "batch"):
        return f"{value:,.0f}"
    return f"{value:.2f}" if name.endswith("gib") else rounded(value)


def estimates(result: dict[str, Any] | None) -> str:
    title = "**On paper: what more would cost.** "
    if result is None:
        return f"{title}Not estimated: the GPU run that the arithmetic starts from was not run."
    parts = [f"{title}Arithmetic on the figures of {result['device']} above, nothing of it run; one GPU."]
    for estimate in (million_examples, imagenet_network, imagenet_features):
        try:
            parts.append(estimate(result))
        except NotMeasured as error:
            summary = (estimate.__doc__ or "").strip().rstrip(".")
            parts.append(f"{summary}: not estimated, since {error}.")
    return "\n\n".join(parts)


def markdown(names: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (names, ["---", *["---:"] * (len(names) - 1)], *rows)]


def in_words(case: dict[str, Any]) -> str:
    return f"{case['model']} with {case['instances']:,} instances of {case['examples']:,} examples"


def rounded(number: float) -> str:
    """Three digits."""
    number = float(f"{number:.3g}")
    if 0 < number < 1e-4:
        return f"{number:.2e}"
    digits = 2 - math.floor(math.log10(number)) if number else 0
    return f"{number:,.{max(0, digits)}f}"


def giga(number: float) -> str:
    return f"{number / 1e9:,.2f} G"


def microseconds(case: dict[str, Any]) -> str:
    return f"{rounded(step_seconds(case) * 1e6)} µs"


def duration(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{rounded(seconds / length)} {unit}"
    return f"{rounded(seconds)} s"


def energy_in_words(joules: float) -> str:
    for unit, size in (("MWh", 3.6e9), ("kWh", 3.6e6), ("kJ", 1e3)):
        if joules >= size:
            return f"{rounded(joules / size)} {unit}"
    return f"{rounded(joules)} J"


def write_page(page: Path) -> str:
    """Put the section into the page, where it has a place for it; says what was done."""
    if not page.exists():
        return f"There is no {page.name} yet; nothing was written."
    text = page.read_text(encoding="utf-8")
    if len(_BLOCK.findall(text)) != 1:
        return f"{page.name} does not have one pair of lines {BEGIN} and {END}; add them where the section is to stand."
    page.write_text(_BLOCK.sub(lambda _: section(), text), encoding="utf-8")
    return f"Wrote the section of {page.name}."


# --- the command -----------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=tuple(CASES), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="where results go, added to those of the same machine; else printed")
    parser.add_argument("--only", choices=tuple(GROUPS), help="measure one group")
    parser.add_argument("--seconds", type=float, default=150.0, help="skip what does not fit into this (default 150)")
    parser.add_argument("--page", action="store_true", help="measure nothing; write the section of docs/results.md")
    given = parser.parse_args(arguments)
    if given.page:
        print(write_page(PAGE))
        return
    if not (math.isfinite(given.seconds) and given.seconds > 0):
        parser.error(f"--seconds must be above 0, got {given.seconds:g}")
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no NVIDIA GPU; use --device cpu")
    if given.out is not None and not given.out.parent.is_dir():
        parser.error(f"there is no folder {given.out.parent}; make it first")
    before = None
    if given.out is not None and given.out.exists():
        try:
            before = read(given.out)
        except ValueError as error:
            parser.error(str(error))
    if given.device == "cpu":
        torch.set_num_threads(1)
    result = measure_all(torch.device(given.device), given.seconds, given.only)
    try:
        result = result if before is None else merged(before, result)
    except ValueError as error:
        print(f"{error}; the new results are printed instead.", file=sys.stderr)
        given.out = None
    text = json.dumps(result, indent=1) + "\n"
    print(text) if given.out is None else given.out.write_text(text, encoding="utf-8")


def merged(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Results of two runs of one machine: of a case that was measured twice the later ones.

    Raises:
        ValueError: they are of different machines or versions.
    """
    facts = [name for name in after if name not in ("cases", "skipped")]
    if differing := [name for name in facts if before.get(name) != after[name]]:
        raise ValueError(f"results of another {', '.join(differing)} are in this file")
    cases = {key_of(case): case for case in (*before["cases"], *after["cases"])}
    skipped = {key_of(case): case for case in (*before["skipped"], *after["skipped"]) if key_of(case) not in cases}
    return {**after, "cases": list(cases.values()), "skipped": list(skipped.values())}


def key_of(case: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(case[name] for name in ("model", "instances", "examples", "batch", "steps"))


if __name__ == "__main__":
    main()
