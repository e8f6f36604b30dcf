"""Training sets and batches that do not fit: nothing is copied as a whole, and no model changes by it."""

import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpu_checks import assert_near, fast_network
from reference import random_batch, random_weights, reference_clipped_sums, zoo
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from mithridate import TrainConfig
from mithridate.data import Dataset, examples
from mithridate.data.columns import Number
from mithridate.data.declarations import Table
from mithridate.data.partition import content_hashes
from mithridate.defences.bagging import Bootstrap
from mithridate.defences.partitions import Parts
from mithridate.defences.smoothing import NoisedFeatures
from mithridate.recipes.choosing import choose
from mithridate.training import batch_source, engine, learners
from mithridate.training.batch_source import Sent, TrainingRecipe
from mithridate.training.config import GradientRule, PlainConfig, PlainRecipe, ViewPlan
from mithridate.training.engine import Engine
from mithridate.training.learners import LearnerTrainer, inputs_for, pick_learner
from mithridate.training.models import build
from mithridate.training.randomness import PUBLIC_SEED, Seeds
from mithridate.training.run import by_hand
from mithridate.training.task import Job, task_of

CPU = torch.device("cpu")
SEEDS = Seeds.of(PUBLIC_SEED)
EXAMPLES, FEATURES, CLASSES = 60, 6, 3
NOTHING: Any = None
NO_TABLE = batch_source._WholeSet(NOTHING, NOTHING)
PLANS: dict[str, ViewPlan | None] = {
    "private": None,
    "parts": Parts(6),
    "bootstrap": Bootstrap(6, 12),
    "noise": NoisedFeatures(6, 0.5),
}
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear layers": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, CLASSES)), (FEATURES,)),
    "convolutions": (lambda: build("lenet5", (1, 16, 16), CLASSES), (1, 16, 16)),
    "general": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Softmax(dim=1), nn.Linear(5, CLASSES)), (FEATURES,)),
}


def dataset(shape: tuple[int, ...] = (FEATURES,), examples: int = EXAMPLES, seed: int = 0) -> Dataset:
    random = np.random.default_rng(seed)
    return Dataset(random.normal(size=(examples, *shape)).astype(np.float32), random.integers(CLASSES, size=examples))


def recipe(plan: ViewPlan | None, examples: int = EXAMPLES, **changes: Any) -> TrainingRecipe:
    if plan is not None:
        config = PlainConfig(**{"steps": 5, "batch_size": 8, "shift": 1, **changes})
        return PlainRecipe.of(config, plan).resolve(num_train=examples, classes=CLASSES)
    constants: dict[str, Any] = {"sample_rate": 0.3, "steps": 5, "max_grad_norm": 0.7, **changes}
    return TrainConfig(6, 1.0, learning_rate=0.5, **constants).resolve(num_train=examples, classes=CLASSES)


def trainer(module: nn.Module, data: Dataset, plan: ViewPlan | None = None, **changes: Any) -> Engine:
    members = None
    if plan is not None and plan.is_deterministic:
        members = plan.members(content_hashes(data.inputs, data.labels))
    test = data.inputs[:10]
    return Engine(module, data, recipe(plan, len(data.labels), **changes), device=CPU, parts=members, test=test)


def mapped(data: Dataset, folder: Path) -> Dataset:
    """The same data set in files that can only be read."""
    np.save(folder / "inputs.npy", data.inputs)
    np.save(folder / "labels.npy", data.labels)
    inputs, labels = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("inputs", "labels"))
    return Dataset(inputs, labels)


# --- where the training set lies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_where_the_data_lies_changes_no_bit(
    plan: ViewPlan | None, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, shape = NETWORKS[name]
    module, data = make(), dataset(shape)
    here = trainer(module, data, plan)
    expected = here.train(SEEDS, range(6))
    from_file = trainer(module, mapped(data, tmp_path), plan)
    assert torch.equal(from_file.train(SEEDS, range(6)), expected)
    tally, again = here.tally(expected, data.inputs), from_file.tally(expected, mapped(data, tmp_path).inputs)
    assert all(np.array_equal(tally[name], again[name]) for name in tally)
    # As on a GPU that has no room for it.
    monkeypatch.setattr(batch_source, "has_room", lambda inputs, device: False)
    from_host = trainer(module, data, plan)
    assert isinstance(from_host._source.table(1), Sent)
    assert torch.equal(from_host.train(SEEDS, range(6)), expected)


def test_what_is_sent_is_in_memory_of_its_own() -> None:
    # A piece of a batch would begin at an odd place, and how a library rounds may depend on that.
    sent, labels = torch.arange(30.0).view(1, 10, 3), torch.arange(10).view(1, 10)
    (found,) = Sent(NO_TABLE).look_up(sent[:, 3:7], labels[:, 3:7])
    inputs = found.inputs
    assert torch.equal(inputs, sent[:, 3:7])
    assert inputs.storage_offset() == 0
    assert inputs.untyped_storage().data_ptr() != sent.untyped_storage().data_ptr()


def test_a_gpu_holds_the_data_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = np.zeros((100, 10), np.float32)
    for free, has_room in ((inputs.nbytes, False), (2 * inputs.nbytes, True)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 10 * free))
        assert batch_source.has_room(inputs, torch.device("cuda")) == has_room
        assert batch_source.has_room(inputs, CPU)


@contextmanager
def little_memory(spare: int) -> Iterator[None]:
    """So much memory beyond what is in use, mapped files aside."""
    import resource

    with open("/proc/self/status") as file:
        used = next(1024 * int(line.split()[1]) for line in file if line.startswith("VmData"))
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used + spare, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.fixture
def vast(tmp_path: Path) -> Dataset:
    """A quarter of a gibibyte of zeros in a file without contents, and labels."""
    columns, examples = 2**10, 2**16
    path = tmp_path / "vast"
    with path.open("wb") as file:
        os.truncate(file.fileno(), 4 * columns * examples)
    return Dataset(np.memmap(path, np.float32, "r", shape=(examples, columns)), np.arange(examples) % CLASSES)


ENOUGH = 2**27  # for all that is not the data


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory cannot be limited here")
def test_a_limit_on_memory_is_one(vast: Dataset) -> None:
    with little_memory(ENOUGH), pytest.raises(MemoryError):
        np.array(vast.inputs)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory cannot be limited here")
@pytest.mark.parametrize("kind", ["private", "parts", "bootstrap"])
def test_networks_train_on_more_than_fits_into_memory(vast: Dataset, kind: str) -> None:
    plan, members = PLANS[kind], None
    if kind == "parts":
        members = [np.random.default_rng(at).permutation(len(vast.labels))[:50] for at in range(6)]
    changes = {"sample_rate": 1e-4} if plan is None else {}
    with little_memory(ENOUGH):
        machine = Engine(
            nn.Linear(vast.inputs.shape[1], CLASSES),
            vast,
            recipe(plan, len(vast.labels), **changes),
            device=CPU,
            parts=members,
            test=vast.inputs,
        )
        weights = machine.train(SEEDS, range(6))
        assert machine.tally(weights, vast.inputs)["counts"].sum() == 6 * len(vast.inputs)
    assert bool(weights.isfinite().all())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory cannot be limited here")
def test_learners_train_on_more_than_fits_into_memory(vast: Dataset) -> None:
    members = [np.random.default_rng(at).permutation(len(vast.labels))[:50] for at in range(2)]
    learner = pick_learner("logistic")
    with little_memory(ENOUGH):
        inputs = inputs_for(learner, vast.inputs, None)
        config = recipe(Parts(2), len(vast.labels))
        test = np.zeros((3, inputs.shape[1]), np.float32)
        job = Job(LearnerTrainer(learner), config, Dataset(inputs, vast.labels), test, (), members, keep_models=False)
        scores = job.trainer.machine(job, CPU, "auto", None).train(SEEDS, range(2), None)
    assert len(scores) == 2


def test_learners_see_the_examples_of_their_parts_in_the_canonical_order(tmp_path: Path) -> None:
    data = mapped(dataset(), tmp_path)
    members = np.random.default_rng(0).permutation(EXAMPLES)[:20]
    assert np.array_equal(learners._taken(data.inputs, members), np.asarray(data.inputs)[members])


@pytest.mark.parametrize("name", ["complement-naive-bayes", "random-forest"])
def test_inputs_of_learners_are_the_same_in_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = Table(None, (Number("a", 0, 1, bins=3), Number("b", 0, 1, bins=3)))
    learner = pick_learner(name)
    rows = np.random.default_rng(0).normal(size=(23, 8)).astype(np.float32)
    whole = inputs_for(learner, rows, declared)
    monkeypatch.setattr(learners, "_ROWS_CHANGED", 5)
    monkeypatch.setenv("MITHRIDATE_MEMORY_BYTES", "100")
    pieces = inputs_for(learner, rows, declared)
    assert isinstance(pieces, np.memmap)
    assert whole.shape != rows.shape
    assert whole.dtype == pieces.dtype
    assert np.array_equal(whole, pieces)


def test_mapped_data_is_sent_to_workers_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MITHRIDATE_MEMORY_BYTES", "100")
    monkeypatch.setattr(examples, "_PIECE_BYTES", 1)
    monkeypatch.setattr(examples, "_PIECE", 7)
    data = dataset()
    config = TrainConfig(2, 1.0, 0.3, 2, 0.7, 0.5, classes=CLASSES)
    order = by_hand((data.inputs, data.labels), data.inputs, model="linear", config=config, features="unit-norm")
    job = task_of(order).job
    assert isinstance(job.data.inputs.base, np.memmap)
    buffers: list[pickle.PickleBuffer] = []
    sent = pickle.dumps((job.data, job.test), protocol=5, buffer_callback=buffers.append)
    assert {job.data.inputs.nbytes, job.test.nbytes} <= {each.raw().nbytes for each in buffers}
    assert len(sent) < 1000


# --- pieces of a batch ------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(engine._BYTES_OF_A_PIECE, "cpu", 2**7)


ZOO = zoo()
# One for every way in which a layer adds up gradients.
LAYERS = [
    "linear", "linear-on-sequence", "linear-on-long-sequence", "conv1d", "conv2d-behind", "conv2d-groups",
    "group-norm", "layer-norm", "embedding", "residual-plus", "model-lenet5", "model-wide",
]  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_sums_over_pieces_are_those_of_a_loop(name: str) -> None:
    module, shape = ZOO[name]
    weights = random_weights(module, 2, seed=1)
    inputs, labels, _ = random_batch(module, shape, 2, 5, seed=2)
    sizes = torch.tensor([5, 3])
    present = torch.arange(5) < sizes.unsqueeze(1)
    network = fast_network(module, shape)
    _, norms = reference_clipped_sums(module, weights, inputs, labels, present, 1e30)
    bound = float(norms[present].median())
    expected, _ = reference_clipped_sums(module, weights, inputs, labels, present, bound)
    rule, table = GradientRule(bound, 0.0, 1.0), Sent(NO_TABLE)
    whole, pieces = (engine._sums(network, rule, table, weights, [inputs, labels], sizes, most) for most in (5, 2))
    assert_near(pieces, expected, 2e-4)
    assert_near(pieces, whole.double())


@pytest.mark.parametrize("name", ["linear layers", "convolutions", "general"])
def test_the_precision_of_sums_follows_from_the_whole_batch(name: str) -> None:
    make, shape = NETWORKS[name]
    data = dataset(shape, 200)
    machine = trainer(make(), data)
    weights = machine._group(SEEDS, range(1)).start
    entries = [torch.from_numpy(data.inputs)[None], torch.from_numpy(data.labels)[None]]
    for most, width in ((100, 200), (100, 100)):
        given = [each[:, :width] for each in entries]
        sums = engine._sums(machine.network, machine._rule, Sent(NO_TABLE), weights, given, torch.tensor([width]), most)
        assert sums.dtype == (torch.float64 if width > 128 else torch.float32)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_training_in_pieces_is_the_same_to_rounding(
    plan: ViewPlan | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, shape = NETWORKS[name]
    module, data = make(), dataset(shape)
    expected = trainer(module, data, plan).train(SEEDS, range(6))
    monkeypatch.setitem(engine._BYTES_OF_A_PIECE, "cpu", 2**7)
    machine = trainer(module, data, plan)
    assert machine.examples_at_a_time(6) < 8
    found = machine.train(SEEDS, range(6))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("tiny_pieces")
@pytest.mark.parametrize("name", NETWORKS)
def test_in_pieces_a_model_is_to_the_bit_a_function_of_its_part(name: str) -> None:
    make, shape = NETWORKS[name]
    module, data, plan = make(), dataset(shape), Parts(6)
    one = trainer(module, data, plan)
    own = plan.members(content_hashes(data.inputs, data.labels))[2]
    more = dataset(shape, 100, seed=1)
    # None of the others is in the part.
    others = np.concatenate(plan.members(content_hashes(more.inputs, more.labels))[:2])
    inputs: Any = np.concatenate([more.inputs[others], data.inputs[own]])
    other = trainer(module, Dataset(inputs, np.concatenate([more.labels[others], data.labels[own]])), plan)
    assert other.examples_at_a_time(6) == one.examples_at_a_time(1) < 8
    assert torch.equal(one.train(SEEDS, range(6))[2], other.train(SEEDS, range(2, 3))[0])


@pytest.mark.usefixtures("tiny_pieces")
def test_where_a_batch_is_cut_depends_on_no_other_instance() -> None:
    module = NETWORKS["linear layers"][0]()
    machine = trainer(module, dataset(), sample_rate=0.8)
    assert machine.examples_at_a_time(1) == machine.examples_at_a_time(100)
    several = machine.train(SEEDS, range(6))
    alone = machine.train(SEEDS, range(2, 3))
    torch.testing.assert_close(alone[0], several[2], rtol=1e-5, atol=1e-6)


def test_usual_batches_are_not_cut() -> None:
    chosen = choose(num_train=1_000_000, classes=10, shape=(256,), kind="float", model="linear").config
    private = chosen.resolve(num_train=1_000_000, classes=10)
    labels = np.zeros(1_000_000, np.int64)
    vast = Dataset(np.broadcast_to(np.float32(0), (1_000_000, 1)), labels)
    source = batch_source.PoissonSamples(private, vast, CPU)
    machine = trainer(nn.Linear(257, 10), dataset((257,)))
    assert source.widest < machine.examples_at_a_time(8) / 10
    lenet = trainer(build("lenet5", (1, 28, 28), 10), dataset((1, 28, 28)))
    assert lenet.examples_at_a_time(8) > 2 * 60


class Largest(TorchDispatchMode):
    """Notes the largest tensor that is made."""

    found = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else (made,):
            if isinstance(each, Tensor):
                self.found = max(self.found, each.numel() * each.element_size())
        return made


@pytest.mark.parametrize(("name", "bound", "examples"), [("linear layers", 2**17, 4000), ("convolutions", 2**21, 600)])
def test_no_tensor_is_larger_than_the_bound(
    name: str, bound: int, examples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, shape = NETWORKS[name]
    module, data = make(), dataset(shape, examples)
    found = {}
    for allowed in (bound, 100 * bound):
        monkeypatch.setitem(engine._BYTES_OF_A_PIECE, "cpu", allowed)
        machine = trainer(module, data, sample_rate=1.0, steps=1)
        group = machine._group(SEEDS, range(8))
        with Largest() as largest:
            machine._train_together(group, 1, None)
        found[allowed] = largest.found
    assert found[bound] <= bound < found[100 * bound]
