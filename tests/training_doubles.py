"""Small data, an engine that only pretends to train, and a program that trains while it is being killed."""

import json
import os
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy  # noqa: F401  (once, and not in every child)
import torch

from mithridate import ArtifactError, TrainConfig, Votes
from mithridate.training import run as training
from mithridate.training import task
from mithridate.training.config import PlainRecipe, ViewPlan
from mithridate.training.order import RuntimeOptions
from mithridate.training.randomness import Seeds
from mithridate.training.run_directory import Manifest, RunDirectory, TallyArrays

CLASSES, WIDTH = 3, 5
SEED = bytes(range(32))


def make_data(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three clouds that a linear model tells apart."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, count)
    y[:CLASSES] = range(CLASSES)
    x = rng.normal(size=(count, WIDTH)).astype(np.float32)
    x[np.arange(count), y] += 3.0
    return x, y


TRAIN, TEST = make_data(60), make_data(20, seed=1)


def make_config(**changes: Any) -> TrainConfig:
    values = {
        "instances": 10, "noise_multiplier": 2.0, "sample_rate": 0.2, "steps": 6, "max_grad_norm": 1.0,
        "learning_rate": 0.5, "num_train": 60, "classes": CLASSES, "score_bins": 8,
    }  # fmt: skip
    return TrainConfig(**{**values, **changes})


class FakeEngine:
    """Weights that are a function of the seed of each instance, at no cost.

    Attributes:
        trained: the groups that were trained, in order.
        capacity: more models than this are "out of memory".
        before_group: called before each group.
    """

    arithmetic = "fake"
    trained: list[range]
    capacity: int
    before_group: Callable[[range], None]
    guess: int
    error: Any

    @classmethod
    def reset(cls) -> None:
        cls.trained, cls.capacity, cls.guess = [], 10**9, 4
        cls.before_group = staticmethod(lambda group: None)
        cls.error = staticmethod(lambda: torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate"))

    def __init__(
        self, model: Any, data: Any, config: TrainConfig, *, device: torch.device, precision: str, **others: Any
    ) -> None:
        module = model if isinstance(model, torch.nn.Module) else model()
        self.shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
        self.path, self.precision = "fast", "float32" if precision == "auto" else precision
        self.config = config
        self.size = sum(shape.numel() for shape in self.shapes.values())

    def check_answers(self, weights: torch.Tensor, inputs: np.ndarray) -> None:
        pass

    def models_in_flight(self) -> int:
        return self.guess

    def train(self, seeds: Seeds, instances: range, on_step: Callable[[int], None] | None) -> torch.Tensor:
        self.before_group(instances)
        if len(instances) > self.capacity:
            raise self.error()
        for _ in range(self.config.steps):
            if on_step is not None:
                on_step(len(instances))
        self.trained.append(instances)
        rows = [seeds.generator(i, "fake").normal(size=self.size).astype(np.float32) for i in instances]
        return torch.from_numpy(np.stack(rows))

    def tally(self, weights: torch.Tensor, inputs: np.ndarray) -> TallyArrays:
        classes, bins = self.config.classes or 0, self.config.score_bins
        matrices = weights.numpy()[:, : classes * inputs[0].size].reshape(len(weights), -1, classes)
        logits = np.stack([inputs.reshape(len(inputs), -1) @ matrix for matrix in matrices]).astype(np.float64)
        scores = np.exp(logits - logits.max(axis=2, keepdims=True))
        scores /= scores.sum(axis=2, keepdims=True)
        counts = (logits.argmax(axis=2)[..., None] == np.arange(classes)).sum(axis=0)
        where = np.minimum((scores * max(bins, 1)).astype(int), max(bins, 1) - 1)
        tally = {"counts": counts, "score_sums": scores.sum(axis=0), "score_squares": (scores**2).sum(axis=0)}
        if bins:
            tally["score_histograms"] = (where[..., None] == np.arange(bins)).sum(axis=0)
        return tally


FakeEngine.reset()


def use_fake_engine() -> None:
    """For a process of its own; tests patch instead."""
    task.Engine = FakeEngine  # type: ignore[misc,assignment]


def runtime_of(options: dict[str, Any]) -> RuntimeOptions:
    """Those of the options that say how a run is carried out, which are taken away."""
    names = {one.name for one in fields(RuntimeOptions)} & options.keys()
    return RuntimeOptions(**{name: options.pop(name) for name in names})


def prepare(run_dir: Path, **options: Any) -> Manifest:
    """Start a run without training anything, as `mithridate train --prepare` does."""
    runtime = replace(runtime_of(options), run_dir=run_dir)
    return training.prepare(training.by_hand(TRAIN, TEST, **options), runtime)


def train_plain(training_set: Any, test_set: Any, *, plan: ViewPlan, config: Any, **options: Any) -> Votes:
    """Train without privacy, as defences do that have nothing left open."""
    runtime = runtime_of(options)
    order = training.by_hand(training_set, test_set, config=PlainRecipe.of(config, plan), **options)
    return training.carry_out(order, runtime)


def same_votes(one: Votes, two: Votes) -> bool:
    """Bit for bit the same votes, of whichever run."""
    return all(
        np.array_equal(getattr(one, name), getattr(two, name))
        for name in ("counts", "score_sums", "score_squares", "score_histograms", "labels")
    )


def interrupt_after_a_shard() -> None:
    """Ctrl-C in this process, right after the first shard was written: the same moment on any machine."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background ignores
    _after_a_shard(lambda: os.kill(os.getpid(), signal.SIGINT))


def _after_a_shard(action: Callable[[], Any]) -> None:
    save = RunDirectory.save_tally

    def saved(*arguments: Any) -> None:
        save(*arguments)
        setattr(RunDirectory, "save_tally", save)  # noqa: B010
        action()

    setattr(RunDirectory, "save_tally", saved)  # noqa: B010


# --- a program that is killed ---------------------------------------------------------------------------------------


def _in_child(work: Callable[[], Any]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return child


def _finish(folder: Path, options: dict[str, Any], seed: bytes | None = SEED) -> None:
    training.train(TRAIN, TEST, model="linear", run_dir=folder, root_seed=seed, **options)


def _count_calls(counter: list[int], deadly: int | None) -> None:
    """Count the calls that change the disk, and die right before one of them."""

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            counter[0] += 1
            if counter[0] == deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **keywords)

        return call

    for name in ("replace", "link", "unlink", "fsync", "mkdir", "chmod", "open"):
        setattr(os, name, counting(getattr(os, name)))


def kill_at_every_write(folder: Path, options: dict[str, Any], *, seed_again: bool = True) -> dict[str, int]:
    """Die before the first call that touches the disk, before the second, ...; each time finish afterwards."""
    second = SEED if seed_again else None
    use_fake_engine()
    counter = [0]
    reader, writer = os.pipe()

    def count() -> None:
        _count_calls(counter, None)
        _finish(folder / "reference", options)
        os.write(writer, str(counter[0]).encode())

    os.waitpid(_in_child(count), 0)
    total = int(os.read(reader, 20))
    killed = 0
    for deadly in range(1, total + 1):
        run = folder / f"{deadly:04d}"

        def die(run: Path = run, deadly: int = deadly) -> None:
            _count_calls([0], deadly)
            _finish(run, options)

        killed += os.waitstatus_to_exitcode(os.waitpid(_in_child(die), 0)[1]) == -signal.SIGKILL
        assert os.waitpid(_in_child(lambda run=run: _finish(run, options, second)), 0)[1] == 0, run
    return {"total": total, "killed": killed}


def _shards(run: Path) -> int:
    return len(list(run.glob("shards/0*.npz")))


def kill_at_random(folder: Path, options: dict[str, Any], *, kills: int, seed: int) -> dict[str, int]:
    """Train for real, killed again and again at random moments, then to the end."""
    rng = random.Random(seed)
    assert os.waitpid(_in_child(lambda: _finish(folder / "reference", options)), 0)[1] == 0
    killed = 0
    for _ in range(kills):
        moment = rng.uniform(0.001, 0.03)

        def die(moment: float = moment) -> None:
            # In seconds of work, however busy the machine is; nobody handles this signal.
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            _after_a_shard(lambda: signal.setitimer(signal.ITIMER_PROF, moment))
            _finish(folder / "interrupted", options)

        killed += os.waitstatus_to_exitcode(os.waitpid(_in_child(die), 0)[1]) == -signal.SIGPROF
    progressed = _shards(folder / "interrupted")
    assert os.waitpid(_in_child(lambda: _finish(folder / "interrupted", options)), 0)[1] == 0
    return {"killed": killed, "shards": progressed}


# --- tasks that share a run directory -------------------------------------------------------------------------------


def _train_shards(folder: Path, options: dict[str, Any], shards: list[int], guess: int) -> None:
    FakeEngine.guess = guess
    training.train(TRAIN, TEST, model="linear", run_dir=folder, shards=range(*shards), **options)


def start_together(folder: Path, options: dict[str, Any], *, rounds: int, tasks: list[Any]) -> dict[str, Any]:
    """Start a process for each task (shards, and how many models in flight it would choose) at the same moment."""
    use_fake_engine()
    codes: list[list[int]] = []
    for number in range(rounds):
        gate, opener = os.pipe()

        def work(task: Any, run: Path = folder / str(number), gate: int = gate, opener: int = opener) -> None:
            os.close(opener)
            os.read(gate, 1)  # ends when nobody can write any more
            _train_shards(run, options, *task)

        children = [_in_child(lambda task=task: work(task)) for task in tasks]
        os.close(opener)
        os.close(gate)
        codes.append([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
    return {"codes": codes}


def kill_and_meet(folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """A task that is killed in its second shard, and again in the third, then one that meets another at a shard."""
    use_fake_engine()
    found: dict[str, Any] = {"killed": [], "left": []}

    def until(deadly: int) -> None:
        FakeEngine.before_group = staticmethod(
            lambda group: os.kill(os.getpid(), signal.SIGKILL) if group.start == deadly else None
        )
        _train_shards(folder / "run", options, [0, 4], 2)

    for deadly in (2, 4):
        code = os.waitstatus_to_exitcode(os.waitpid(_in_child(lambda deadly=deadly: until(deadly)), 0)[1])
        found["killed"].append(code == -signal.SIGKILL)
        found["left"].append(_shards(folder / "run"))

    came, may_go = os.pipe(), os.pipe()

    def slow(group: range) -> None:
        os.write(came[1], b"x")
        os.read(may_go[0], 1)

    def work_slowly() -> None:
        FakeEngine.before_group = staticmethod(slow)
        _train_shards(folder / "run", options, [2, 3], 2)

    other = _in_child(work_slowly)
    os.read(came[0], 1)
    try:
        _train_shards(folder / "run", options, [0, 4], 2)
    except ArtifactError as error:
        found["met"] = str(error)
    found["beside"] = _shards(folder / "run")
    try:
        training.train(TRAIN, TEST, model="linear", run_dir=folder / "run", **options)
    except ArtifactError as error:
        found["whole"] = str(error)
    os.write(may_go[1], b"x")
    found["other"] = os.waitpid(other, 0)[1]
    FakeEngine.trained.clear()
    _train_shards(folder / "run", options, [0, 4], 2)
    found["again"] = len(FakeEngine.trained)
    return found


if __name__ == "__main__":
    # Children are forked from here: torch is imported once, and has not computed anything yet.
    order = json.loads(sys.argv[1])
    order["options"]["config"] = make_config(**order["options"]["config"])
    hows = {
        "writes": kill_at_every_write,
        "random": kill_at_random,
        "together": start_together,
        "meet": kill_and_meet,
    }
    how = hows[order.pop("how")]
    print(json.dumps(how(Path(order.pop("folder")), **order)))
