"""Speed of training many private models at once, next to Opacus one model at a time in the same run.

    python benchmarks/train.py --model lenet5 --device cuda --json

Both sides draw Poisson batches, clip, add noise and update; both find the training set on the device. Opacus gets every
advantage that leaves the mechanism what it is: the fastest of its modes, batches of all steps drawn on the device at
once, no loader, no accountant, no learning-rate schedule. The data is random: no timing depends on its values.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import platform
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from mithridate._torch import products
from mithridate.data.examples import Dataset
from mithridate.training import models
from mithridate.training.config import PRECISIONS, TrainConfig
from mithridate.training.engine import Engine
from mithridate.training.randomness import Seeds
from mithridate.training.run_directory import plan_ranges

CLASSES = 10
OPACUS_MODES = ("hooks", "functorch", "ew", "ghost")
WARM_UP_STEPS = 10
_SEEDS = Seeds.of(bytes(range(32)))
_GIB = 2**30


@dataclass(frozen=True)
class Size:
    """How much is timed by default on one kind of device."""

    models: int
    steps: int
    opacus_steps: int
    repeats: int = 3
    batch: float | None = None  # expected batch where that of the recipe would take minutes a step


@dataclass(frozen=True)
class Recipe:
    """What is trained: a model, the shape of its data, and the constants of peers' experiments with it."""

    shape: tuple[int, ...]
    examples: int
    batch: float  # expected
    noise_multiplier: float
    max_grad_norm: float
    learning_rate: float
    sizes: dict[str, Size]
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: str = "constant"
    average_iterates: bool = False


_CIFAR = {"momentum": 0.9, "weight_decay": 5e-4, "schedule": "cosine"}
RECIPES = {
    "lenet5": Recipe((1, 28, 28), 60_000, 60, 3.0, 0.8, 0.1, {"cuda": Size(1000, 200, 100), "cpu": Size(16, 200, 50)}),
    "mlp": Recipe((1, 28, 28), 60_000, 60, 3.0, 0.8, 0.1, {"cuda": Size(1000, 200, 100), "cpu": Size(16, 200, 50)}),
    "opa-tut": Recipe(
        (3, 32, 32), 50_000, 512, 1.0, 50.0, 0.01, {"cuda": Size(256, 200, 50), "cpu": Size(2, 5, 2)}, **_CIFAR
    ),
    "resnet18": Recipe(
        (3, 32, 32),
        50_000,
        256,
        19.0,
        10.0,
        0.01,
        {"cuda": Size(4, 500, 20), "cpu": Size(2, 2, 2, batch=8)},
        **_CIFAR,
    ),
    "linear": Recipe(
        (150,),
        60_000,
        1200,
        15.5,
        1.0,
        1.0,
        {"cuda": Size(1000, 60, 100), "cpu": Size(1000, 60, 50, repeats=1)},
        average_iterates=True,
    ),
}


def main() -> None:
    arguments = parse()
    results = benchmark(arguments)
    print(json.dumps(results, indent=2) if arguments.json else table(results))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tuple(RECIPES), default="lenet5")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", choices=PRECISIONS, default="auto")
    parser.add_argument("--models", type=int, help="models trained in each run")
    parser.add_argument("--steps", type=int, help="steps of each model")
    parser.add_argument("--in-flight", type=int, help="models trained at once; by default from the memory there is")
    parser.add_argument("--repeats", type=int, help="runs of which the median is taken")
    parser.add_argument("--opacus-steps", type=int, help="steps of each timed run of Opacus")
    parser.add_argument("--no-opacus", action="store_true", help="time our side only")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    for name in ("models", "steps", "in_flight", "repeats", "opacus_steps"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    default = RECIPES[arguments.model].sizes[arguments.device]
    for name in ("models", "steps", "repeats", "opacus_steps"):
        if getattr(arguments, name) is None:
            setattr(arguments, name, getattr(default, name))
    return arguments


def benchmark(arguments: argparse.Namespace) -> dict[str, Any]:
    recipe = RECIPES[arguments.model]
    device = torch.device(arguments.device)
    memory = Memory(device)
    batch = recipe.sizes[device.type].batch or recipe.batch
    config = training_config(recipe, batch, arguments)
    data = random_data(arguments.model, recipe)
    ours = train_together(arguments, config, data, device)
    ours["peak_memory_gib"] = memory.peak_gib()
    if device.type == "cuda":
        torch.cuda.empty_cache()

    precision = ours["settings"]["precision"]
    flops = flops_per_model_step(models.build(arguments.model, recipe.shape, CLASSES), recipe.shape, batch)
    with products(precision, device):
        peak = measured_flops(device)
        single = train_singly(arguments, recipe, batch, data, device)

    theirs = single["opacus_model_steps_per_s"]
    ratio = None if theirs is None else ours["model_steps_per_s"] / theirs
    limit = peak / flops
    return {
        "model": arguments.model,
        **{name: value for name, value in ours.items() if name != "settings"},
        **single,
        "ratio": ratio,
        "arithmetic_limit_model_steps_per_s": limit,
        "share_of_arithmetic_limit": ours["model_steps_per_s"] / limit,
        "arithmetic": {
            "flops_per_model_step": flops,
            "measured_flops_per_s": peak,
            "how": "convolutions and matrix products of one forward pass, the weight gradients and the input gradients "
            "(none for the first layer) at the expected batch, over the speed of one large matrix product in the same "
            "precision in the same run",
        },
        "settings": {**ours["settings"], "opacus_steps": arguments.opacus_steps, "recipe": recipe_of(recipe, batch)},
        "machine": machine(device),
    }


def training_config(recipe: Recipe, batch: float, arguments: argparse.Namespace) -> TrainConfig:
    config = TrainConfig(
        instances=arguments.models,
        noise_multiplier=recipe.noise_multiplier,
        sample_rate=batch / recipe.examples,
        steps=arguments.steps,
        max_grad_norm=recipe.max_grad_norm,
        learning_rate=recipe.learning_rate,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        schedule=recipe.schedule,
        average_iterates=recipe.average_iterates,
    )
    return config.resolve(num_train=recipe.examples, classes=CLASSES)


def recipe_of(recipe: Recipe, batch: float) -> dict[str, Any]:
    constants = {name: value for name, value in asdict(recipe).items() if name != "sizes"}
    return {**constants, "batch": batch, "sample_rate": batch / recipe.examples}


def random_data(name: str, recipe: Recipe) -> Dataset:
    """Random images scaled as the model would have them, or random rows of unit norm."""
    random = np.random.default_rng(0)
    inputs = random.random((recipe.examples, *recipe.shape), dtype=np.float32)
    if len(recipe.shape) == 3:
        means, deviations = (np.array(s, np.float32).reshape(-1, 1, 1) for s in models.scaling(name, recipe.shape[0]))
        inputs -= means  # in place: a second copy would show in the peak memory
        inputs /= deviations
    else:
        inputs /= np.linalg.norm(inputs, axis=1, keepdims=True)
    return Dataset(inputs=inputs, labels=random.integers(0, CLASSES, recipe.examples))


# Our side.


class _WarmEnough(Exception):
    """Ends the run that warms up."""


def train_together(
    arguments: argparse.Namespace, config: TrainConfig, data: Dataset, device: torch.device
) -> dict[str, Any]:
    module = models.build(arguments.model, data.inputs.shape[1:], CLASSES)
    engine = Engine(module, data, config, device=device, precision=arguments.precision)
    in_flight = min(arguments.in_flight or engine.models_in_flight(), arguments.models)
    in_flight = warm_up(engine, in_flight, config.steps)
    seconds = [one_run(engine, in_flight, arguments.models, device) for _ in range(arguments.repeats)]
    median = statistics.median(seconds)
    return {
        "model_steps_per_s": arguments.models * config.steps / median,
        "seconds": median,
        "runs_s": seconds,
        "settings": {
            "models": arguments.models,
            "steps": config.steps,
            "in_flight": in_flight,
            "repeats": arguments.repeats,
            "precision": getattr(engine, "precision", arguments.precision),
            "path": engine.path,
        },
    }


def warm_up(engine: Engine, in_flight: int, steps: int) -> int:
    """Compile, tune and capture on the shapes to come; returns the models in flight that memory allows."""
    try:
        engine.train(_SEEDS, range(in_flight), stop_after(in_flight * min(WARM_UP_STEPS, steps)))
    except _WarmEnough:
        return in_flight
    except torch.OutOfMemoryError:
        if in_flight == 1:
            raise
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()  # what did not fit was not used
    else:
        return in_flight
    return warm_up(engine, in_flight // 2, steps)  # outside of the handler, which would hold on to the memory


def stop_after(model_steps: int) -> Callable[[int], None]:
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        if done >= model_steps:
            raise _WarmEnough

    return count


def one_run(engine: Engine, in_flight: int, instances: int, device: torch.device) -> float:
    """Seconds to train all models from their initial weights to their last ones."""
    wait_for(device)
    start = time.perf_counter()
    for group in plan_ranges(0, instances, in_flight):
        engine.train(_SEEDS, group, None)
    wait_for(device)
    return time.perf_counter() - start


# One model at a time: Opacus, and plain SGD for orientation.


@dataclass(frozen=True)
class Single:
    """What one model at a time is trained with."""

    name: str
    recipe: Recipe
    batch: float
    inputs: torch.Tensor
    labels: torch.Tensor

    @property
    def device(self) -> torch.device:
        return self.inputs.device

    def module(self) -> nn.Module:
        return models.build(self.name, self.recipe.shape, CLASSES).to(self.device).train()

    def optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        r = self.recipe
        return torch.optim.SGD(
            module.parameters(), r.learning_rate, momentum=r.momentum, weight_decay=r.weight_decay, fused=True
        )

    def poisson_batches(self, steps: int) -> list[torch.Tensor]:
        """The rows of each step's batch: gaps between sampled rows are geometric."""
        rate = self.batch / self.recipe.examples
        width = math.ceil(self.batch + 12 * math.sqrt(self.batch) + 20)
        uniform = 1.0 - torch.rand(steps, width, dtype=torch.float64, device=self.device)  # in (0, 1]
        rows = (uniform.log_().div_(math.log1p(-rate)).floor_() + 1).cumsum(1).sub_(1).long()
        sizes = (rows < self.recipe.examples).sum(1).tolist()  # the only wait for the device
        return [row[:size] for row, size in zip(rows, sizes, strict=True)]


Step = Callable[[torch.Tensor], None]


def train_singly(
    arguments: argparse.Namespace, recipe: Recipe, batch: float, data: Dataset, device: torch.device
) -> dict[str, Any]:
    results: dict[str, Any] = dict.fromkeys(("opacus_model_steps_per_s", "plain_model_steps_per_s", "opacus"))
    if arguments.no_opacus:
        return results
    inputs, labels = torch.from_numpy(data.inputs).to(device), torch.from_numpy(data.labels).to(device)
    single = Single(arguments.model, recipe, batch, inputs, labels)
    plain = fastest({"plain": plain_step}, single, arguments)
    results["plain_model_steps_per_s"] = plain["model_steps_per_s"]
    if find_spec("opacus") is None:
        print(
            "Opacus is not installed, so there is nothing to compare with; install it with `pip install opacus`, or "
            "with `pip install --no-deps --target .opacus opacus opt_einsum` and PYTHONPATH=.opacus.",
            file=sys.stderr,
        )
        return results
    with quiet():
        opacus = fastest({mode: opacus_step(mode) for mode in OPACUS_MODES}, single, arguments)
    return {**results, "opacus_model_steps_per_s": opacus["model_steps_per_s"], "opacus": opacus}


def fastest(makers: dict[str, Callable[[Single], Step]], single: Single, arguments: argparse.Namespace) -> Any:
    """The median speed of the fastest mode and number of threads, and the speed of each in a short trial."""
    steps, before = arguments.opacus_steps, torch.get_num_threads()
    # Small batches can be faster on one thread; on a GPU the threads of the CPU do nothing.
    threads = sorted({1, before}) if single.device.type == "cpu" else [before]
    tried: dict[str, float | str] = {}
    best: tuple[float, str, int] | None = None
    for mode, make in makers.items():
        for count in threads:
            speed = trial(make, single, max(1, steps // 5), count)
            tried[f"{mode}, {count} threads" if len(threads) > 1 else mode] = speed
            if isinstance(speed, float) and (best is None or speed > best[0]):
                best = (speed, mode, count)
    if best is None:
        return {"model_steps_per_s": None, "tried": tried}
    torch.set_num_threads(best[2])
    step = makers[best[1]](single)
    time_steps(step, single, min(WARM_UP_STEPS, steps))
    speeds = [steps / time_steps(step, single, steps) for _ in range(arguments.repeats)]
    torch.set_num_threads(before)
    return {"model_steps_per_s": statistics.median(speeds), "mode": best[1], "threads": best[2], "tried": tried}


def trial(make: Callable[[Single], Step], single: Single, steps: int, threads: int) -> float | str:
    """Model-steps per second of a short run, or why there is none."""
    torch.set_num_threads(threads)
    try:
        step = make(single)
        time_steps(step, single, min(WARM_UP_STEPS, steps))
        seconds = [time_steps(step, single, steps)]
        while len(seconds) < 3 and sum(seconds) < 3.0:  # another program may have disturbed the first
            seconds.append(time_steps(step, single, steps))
        return steps / min(seconds)
    except Exception as error:  # not every mode of Opacus supports every layer, and each says so in its own way
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    finally:
        if single.device.type == "cuda":
            torch.cuda.empty_cache()


def time_steps(step: Step, single: Single, steps: int) -> float:
    """Seconds of this many steps, the drawing of their batches included."""
    wait_for(single.device)
    start = time.perf_counter()
    for rows in single.poisson_batches(steps):
        step(rows)
    wait_for(single.device)
    return time.perf_counter() - start


def plain_step(single: Single) -> Step:
    """SGD without clipping or noise."""
    module, loss = single.module(), nn.CrossEntropyLoss()
    optimizer = single.optimizer(module)

    def step(rows: torch.Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        if len(rows):
            loss(module(single.inputs[rows]), single.labels[rows]).backward()
        optimizer.step()

    return step


def opacus_step(mode: str) -> Callable[[Single], Step]:
    """DP-SGD by Opacus in one of its modes of computing per-example gradients (`ghost`: their norms only)."""

    def make(single: Single) -> Step:
        grad_sample, optimizers = import_module("opacus.grad_sample"), import_module("opacus.optimizers")
        ghost = mode == "ghost"
        clip = {"max_grad_norm": single.recipe.max_grad_norm}
        module = grad_sample.wrap_model(single.module(), grad_sample_mode=mode, **(clip if ghost else {}))
        kind = optimizers.DPOptimizerFastGradientClipping if ghost else optimizers.DPOptimizer
        optimizer = kind(
            single.optimizer(module),
            noise_multiplier=single.recipe.noise_multiplier,
            expected_batch_size=single.batch,
            **clip,
        )
        loss: Any = nn.CrossEntropyLoss()
        if ghost:
            loss = import_module("opacus.utils.fast_gradient_clipping_utils").DPLossFastGradientClipping(
                module, optimizer, loss
            )

        def step(rows: torch.Tensor) -> None:
            optimizer.zero_grad(set_to_none=True)
            if len(rows):
                loss(module(single.inputs[rows]), single.labels[rows]).backward()
            else:
                no_gradients(optimizer.params, ghost)
            optimizer.step()

        return step

    return make


def no_gradients(parameters: list[Any], ghost: bool) -> None:
    """What a backward pass over an empty batch would leave: the step then adds noise to zero."""
    for parameter in parameters:
        if ghost:
            parameter.grad = torch.zeros_like(parameter)
        else:
            parameter.grad_sample = parameter.new_zeros(0, *parameter.shape)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of Opacus on its own use of torch."""
    logging.getLogger("opacus").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# What the arithmetic alone would allow.


def flops_per_model_step(module: nn.Module, shape: tuple[int, ...], batch: float) -> float:
    """Floating-point operations of the convolutions and matrix products of one step at the expected batch."""
    products: list[int] = []

    def count(layer: Any, _: Any, output: torch.Tensor) -> None:
        # Each weight meets each output position once; channels of the output are already counted in the weights.
        outputs_of_a_weight = output[0].numel() // layer.weight.shape[0]
        products.append(layer.weight.numel() * outputs_of_a_weight)

    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d):
            layer.register_forward_hook(count)
    with torch.no_grad():
        module(torch.zeros(1, *shape))
    # Three products of one size (forward, weight gradient, input gradient), but nobody asks for the data's gradient.
    return 2.0 * batch * (3 * sum(products) - products[0])


def measured_flops(device: torch.device) -> float:
    """Floating-point operations per second of one large matrix product."""
    size = 8192 if device.type == "cuda" else 2048
    left, right = (torch.randn(size, size, device=device) for _ in range(2))

    def seconds(times: int) -> float:
        wait_for(device)
        start = time.perf_counter()
        for _ in range(times):
            torch.mm(left, right)
        wait_for(device)
        return (time.perf_counter() - start) / times

    seconds(3)
    return 2.0 * size**3 / statistics.median(seconds(5) for _ in range(5))


# The machine.


class Memory:
    """The largest memory in use since it was made: the device's, or on the CPU the growth of this process."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0 if device.type == "cuda" else resident_bytes()

    def peak_gib(self) -> float:
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device) / _GIB
        unit = 1 if sys.platform == "darwin" else 1024
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - self._before) / _GIB


def resident_bytes() -> int:
    pages = Path("/proc/self/statm")
    if not pages.exists():
        return 0
    return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def machine(device: torch.device) -> dict[str, Any]:
    opacus = import_module("opacus.version").__version__ if find_spec("opacus") else None
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "opacus": opacus,
    }


def processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def table(results: dict[str, Any]) -> str:
    settings, arithmetic = results["settings"], results["arithmetic"]
    size = f"{settings['models']} models, {settings['steps']} steps, {settings['in_flight']} in flight"
    lines = [
        f"{results['model']} on {results['machine']['device']}: {size}, batch {settings['recipe']['batch']:g}, "
        f"{settings['precision']}",
        "",
        row("mithridate", results["model_steps_per_s"], f"{results['seconds']:.2f} s a run"),
    ]
    opacus = results["opacus"]
    if opacus is not None and opacus["model_steps_per_s"] is not None:
        note = f"one model at a time, mode {opacus['mode']}; ours is {results['ratio']:.1f} times that"
        lines.append(row("Opacus", opacus["model_steps_per_s"], note))
    if results["plain_model_steps_per_s"] is not None:
        lines.append(row("plain SGD", results["plain_model_steps_per_s"], "not private, one model at a time"))
    how = f"{arithmetic['flops_per_model_step']:.3g} flop at {arithmetic['measured_flops_per_s']:.3g} flop/s"
    lines.append(row("arithmetic limit", results["arithmetic_limit_model_steps_per_s"], how))
    return "\n".join([*lines, "", f"peak memory {results['peak_memory_gib']:.2f} GiB"])


def row(name: str, speed: float, note: str) -> str:
    return f"{name:18}{speed:14,.1f} model-steps/s   {note}"


if __name__ == "__main__":
    main()
