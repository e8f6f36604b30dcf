"""Training end to end: the mechanism that the certificate is about, and nothing that depends on what is in flight.

Statistical tests have fixed seeds; a right engine fails each of them with probability below 1e-8.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from reference import expected_normals, reference_clipped_sums, with_weights
from scipy import stats
from torch import Tensor, nn

from mithridate import ConfigError, MithridateError, TrainConfig
from mithridate.data import Dataset
from mithridate.data.named import load_named
from mithridate.training.batch_source import blocks
from mithridate.training.devices import on_threads
from mithridate.training.engine import Engine, initial_weights
from mithridate.training.models import build
from mithridate.training.randomness import Seeds

SEEDS = Seeds.of(bytes(range(32)))
CPU = torch.device("cpu")
FEATURES, CLASSES, EXAMPLES = 6, 3, 40
LEVEL = 1e-8
# Seconds after which something hangs.
HANGS = 600.0


def dataset(examples: int = EXAMPLES, seed: int = 0, shape: tuple[int, ...] = (FEATURES,)) -> Dataset:
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(examples, *shape)).astype(np.float32)
    return Dataset(inputs, random.integers(CLASSES, size=examples))


def recipe(**changes: Any) -> TrainConfig:
    constants: dict[str, Any] = {
        "instances": 6, "noise_multiplier": 1.0, "sample_rate": 0.2, "steps": 8, "max_grad_norm": 0.7,
        "learning_rate": 0.5, **changes,
    }  # fmt: skip
    return TrainConfig(**constants).resolve(num_train=EXAMPLES, classes=CLASSES)


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def engine(model: Any = None, data: Dataset | None = None, **changes: Any) -> Engine:
    return Engine(small() if model is None else model, data or dataset(), recipe(**changes), device=CPU)


# --- the mechanism, against a loop ------------------------------------------------------------------------------------


def slow_training(module: nn.Module, data: Dataset, config: TrainConfig, instance: int) -> Tensor:
    """One instance in float64: the same draws, one example at a time, PyTorch's own optimiser."""
    row = initial_weights(module, SEEDS, [instance])[0].double().requires_grad_()
    optimiser: torch.optim.Optimizer
    if config.optimizer == "adam":
        optimiser = torch.optim.Adam([row], config.learning_rate, config.betas, weight_decay=config.weight_decay)
    else:
        optimiser = torch.optim.SGD(
            [row], config.learning_rate, momentum=config.momentum, weight_decay=config.weight_decay
        )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, config.steps)
    batches = SEEDS.generator(instance, "batches")
    key = SEEDS.key(instance, "noise")
    iterates = list[Tensor]()
    for block in blocks([batches], len(data.labels), config.sample_rate, config.steps, config.keep):
        for indices, sizes in block:
            chosen = indices[:, : sizes[0]]
            inputs, labels = torch.from_numpy(data.inputs[chosen]), torch.from_numpy(data.labels[chosen])
            present = torch.ones(labels.shape, dtype=torch.bool)
            sums, _ = reference_clipped_sums(module, row.detach()[None], inputs, labels, present, config.max_grad_norm)
            normals = torch.tensor(expected_normals(key, len(iterates), len(row)), dtype=torch.float64)
            assert config.divisor is not None
            row.grad = (sums[0] + config.noise_multiplier * config.max_grad_norm * normals) / config.divisor
            optimiser.step()
            if config.schedule == "cosine":
                schedule.step()
            iterates.append(row.detach().clone())
    return torch.stack(iterates).mean(dim=0) if config.average_iterates else iterates[-1]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sample_rate": 1.0},
        {"sample_rate": 0.01, "steps": 20},
        {"keep": 0.4, "sample_rate": 0.5},
        {"momentum": 0.9, "weight_decay": 0.1, "schedule": "cosine"},
        {"optimizer": "adam", "learning_rate": 0.05},
        {"average_iterates": True},
        {"divisor": 3.0, "max_grad_norm": 0.01},
    ],
    ids=str,
)
def test_training_is_the_slow_loop(changes: dict[str, Any]) -> None:
    module = small()
    trained = engine(module, **changes).train(SEEDS, range(2, 4))
    for row, instance in zip(trained, (2, 3), strict=True):
        exact = slow_training(module, dataset(), recipe(**changes), instance)
        torch.testing.assert_close(row.double(), exact, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("name", ["general", "convolution"])
def test_training_is_the_slow_loop_for_other_networks(name: str) -> None:
    if name == "general":
        module, shape = nn.Sequential(nn.Linear(FEATURES, 5), nn.Softmax(dim=1), nn.Linear(5, CLASSES)), (FEATURES,)
    else:
        module, shape = build("lenet5", (1, 16, 16), CLASSES), (1, 16, 16)
    data = dataset(shape=shape)
    trainer = engine(module, data, steps=4)
    assert trainer.path == ("general" if name == "general" else "fast")
    row = trainer.train(SEEDS, range(1))[0]
    torch.testing.assert_close(row.double(), slow_training(module, data, recipe(steps=4), 0), rtol=2e-3, atol=2e-4)


def test_sums_are_divided_by_the_constant_and_never_by_the_batch() -> None:
    # The same draws: one step of a quarter of the divisor is four times as long, whatever the batch was.
    start = initial_weights(small(), SEEDS, range(4))
    moved = [
        engine(steps=1, divisor=divisor).train(SEEDS, range(4)).double() - start.double() for divisor in (32.0, 8.0)
    ]
    torch.testing.assert_close(4.0 * moved[0], moved[1], rtol=1e-3, atol=1e-6)


def test_one_example_more_moves_a_step_by_at_most_the_bound() -> None:
    # Rate 1 and the same seed: the same noise, and batches that differ by one example.
    whole = dataset()
    bound, divisor, rate = 0.7, 2.0, 0.5
    for at in range(0, EXAMPLES, 7):
        others = Dataset(np.delete(whole.inputs, at, axis=0), np.delete(whole.labels, at))
        one, two = (
            engine(data=data, steps=1, sample_rate=1.0, divisor=divisor, num_train=EXAMPLES).train(SEEDS, range(2))
            for data in (whole, others)
        )
        distance = (one - two).double().norm(dim=1) * divisor / rate
        assert (distance <= bound * (1 + 1e-4)).all()  # rounding of the sums over examples
        assert (distance > 0.5 * bound).all()


# --- noise ------------------------------------------------------------------------------------------------------------


def noise_of(steps: int, instances: range, **changes: Any) -> npt.NDArray[np.float64]:
    """What was added in all steps together, in units of what each step should add: no example is ever sampled."""
    constants = {"noise_multiplier": 2.5, "max_grad_norm": 0.3, "learning_rate": 1.0, "divisor": 5.0, **changes}
    moved = engine(steps=steps, sample_rate=1e-12, **constants).train(SEEDS, instances).double()
    start = initial_weights(small(), SEEDS, instances).double()
    return ((start - moved) * 5.0 / (2.5 * 0.3)).numpy()


def two_sided(statistic: float, degrees: int) -> float:
    return float(2 * min(stats.chi2.sf(statistic, degrees), stats.chi2.cdf(statistic, degrees)))


def test_noise_has_the_promised_scale_in_every_parameter() -> None:
    noise = noise_of(1, range(300))
    assert two_sided(float((noise**2).sum()), noise.size) > LEVEL
    assert abs(float(noise.mean())) * math.sqrt(noise.size) < 6
    assert float(stats.kstest(noise.ravel(), "norm").pvalue) > LEVEL
    # Every single parameter, biases included.
    for column in noise.T:
        assert two_sided(float((column**2).sum()), len(column)) > LEVEL / 100
    # A scale that is five percent off would be noticed: 15,900 draws know it to 0.6 percent.
    for wrong in (0.95, 1.05):
        assert two_sided(float(((wrong * noise) ** 2).sum()), noise.size) < LEVEL


def test_noise_is_independent_between_parameters_instances_and_steps() -> None:
    one, two = noise_of(1, range(200)), noise_of(2, range(200))
    second = two - one
    assert two_sided(float((second**2).sum()), second.size) > LEVEL
    pairs = {
        "steps": (one, second),
        "instances": (one[1:], one[:-1]),
        "parameters": (one[:, 1:], one[:, :-1]),
        "step and instance": (one[1:], second[:-1]),
        "step and parameter": (one[:, 1:], second[:, :-1]),
    }
    for name, (left, right) in pairs.items():
        assert abs(float((left * right).mean())) * math.sqrt(left.size) < 6, name


def test_noise_does_not_depend_on_the_data() -> None:
    # The residual after what the exact clipped sum explains is the same noise as without any data.
    module, data = small(), dataset()
    config = recipe(steps=1, sample_rate=1.0)
    start = initial_weights(module, SEEDS, range(50))
    moved = engine(module, data, steps=1, sample_rate=1.0).train(SEEDS, range(50)).double()
    assert config.divisor is not None
    everyone = torch.ones(50, EXAMPLES, dtype=torch.bool)
    inputs = torch.from_numpy(data.inputs).expand(50, -1, -1)
    labels = torch.from_numpy(data.labels).expand(50, -1)
    sums, _ = reference_clipped_sums(module, start, inputs, labels, everyone, config.max_grad_norm)
    noise = (start.double() - moved) * config.divisor / config.learning_rate - sums
    normal = (noise / (config.noise_multiplier * config.max_grad_norm)).numpy()
    assert two_sided(float((normal**2).sum()), normal.size) > LEVEL
    np.testing.assert_allclose(normal, noise_of(1, range(50)), atol=2e-3)


# --- the same draws whatever is in flight ----------------------------------------------------------------------------


def model_and_shape(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    return {
        "small": (small(), (FEATURES,)),
        "lenet5": (build("lenet5", (1, 16, 16), CLASSES), (1, 16, 16)),
        "general": (nn.Sequential(nn.Linear(FEATURES, 5), nn.Softmax(dim=1), nn.Linear(5, CLASSES)), (FEATURES,)),
    }[name]


@pytest.fixture
def many_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("model", ["small", "lenet5", "general"])
def test_instances_that_are_trained_at_the_same_time_do_not_disturb_each_other(model: str) -> None:
    module, shape = model_and_shape(model)
    trainer = engine(module, dataset(shape=shape), steps=4)
    alone = torch.cat([trainer.train(SEEDS, range(at, at + 1)) for at in range(6)])
    first = trainer.train(SEEDS, range(6))
    assert_equal_to_rounding(first, alone)
    for _ in range(10):
        assert torch.equal(trainer.train(SEEDS, range(6)), first)


def assert_equal_to_rounding(one: torch.Tensor, other: torch.Tensor) -> None:
    # Other draws, of batches or noise, would make differences of the size of the weights.
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("model", ["small", "lenet5", "general"])
def test_groups_are_equal_to_rounding(model: str) -> None:
    module, shape = model_and_shape(model)
    trainer = engine(module, dataset(shape=shape), steps=4)
    together = trainer.train(SEEDS, range(6))
    pairs = torch.cat([trainer.train(SEEDS, range(at, at + 2)) for at in (4, 0, 2)])[[2, 3, 4, 5, 0, 1]]
    singles = torch.cat([trainer.train(SEEDS, range(at, at + 1)) for at in range(6)])
    assert_equal_to_rounding(together, pairs)
    assert_equal_to_rounding(together, singles)
    assert torch.equal(together, trainer.train(SEEDS, range(6)))
    assert len({tuple(row.tolist()) for row in together}) == 6


def test_the_number_of_instances_of_the_run_changes_nothing() -> None:
    few, many = engine(instances=3), engine(instances=50)
    assert torch.equal(few.train(SEEDS, range(3)), many.train(SEEDS, range(3)))


def test_another_seed_is_another_run() -> None:
    trainer = engine()
    one, two = trainer.train(SEEDS, range(3)), trainer.train(Seeds.of(bytes(32)), range(3))
    assert not (one == two).all(dim=1).any()


def test_an_instance_needs_no_seed_but_its_own() -> None:
    trainer = engine()
    assert torch.equal(trainer.train(SEEDS.only(range(2, 5)), range(2, 5)), trainer.train(SEEDS, range(2, 5)))
    with pytest.raises(LookupError, match="lacks the seed of instance 5"):
        trainer.train(SEEDS.only(range(2, 5)), range(2, 6))


def test_the_global_generators_neither_matter_nor_move() -> None:
    trainer = engine()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = trainer.train(SEEDS, range(3))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(trainer.train(SEEDS, range(3)), first)


# --- fresh starts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["module", "function"])
def test_initial_weights_have_the_law_of_the_reset_of_pytorch(how: str) -> None:
    module = nn.Sequential(nn.Linear(25, 8), nn.GroupNorm(2, 8), nn.Linear(8, 2))

    def build_anew() -> nn.Module:
        return nn.Sequential(nn.Linear(25, 8), nn.GroupNorm(2, 8), nn.Linear(8, 2))

    rows = initial_weights(module if how == "module" else build_anew, SEEDS, range(100))
    assert rows.dtype == torch.float32
    first = rows[:, : 26 * 8].double().numpy() * 5.0  # U(-1/sqrt(25), 1/sqrt(25)), weights and biases
    assert float(stats.kstest(first.ravel(), "uniform", args=(-1, 2)).pvalue) > LEVEL
    for column in first.T[::10]:
        assert float(stats.kstest(column, "uniform", args=(-1, 2)).pvalue) > LEVEL
    norm = rows[:, 26 * 8 : 26 * 8 + 16]
    assert (norm[:, :8] == 1).all()
    assert (norm[:, 8:] == 0).all()
    # All different, and uncorrelated from one instance to the next.
    assert len({tuple(row.tolist()) for row in rows}) == 100
    assert abs(float((first[1:] * first[:-1]).mean()) * 3.0) * math.sqrt(first[1:].size) < 6


def test_initial_weights_do_not_depend_on_the_module_s_own() -> None:
    module = small()
    rows = initial_weights(module, SEEDS, range(3))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(7.0)
    assert torch.equal(initial_weights(module, SEEDS, range(3)), rows)
    assert all((parameter == 7.0).all() for parameter in module.parameters())


def test_a_parameter_that_nobody_initialises_is_refused() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(FEATURES))
            self.head = nn.Linear(FEATURES, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x * self.scale)

    with pytest.raises(ConfigError, match=r"scale.*reset_parameters"):
        engine(Bare()).train(SEEDS, range(1))
    assert engine(Bare).train(SEEDS, range(1)).shape == (1, FEATURES + CLASSES * (FEATURES + 1))


# --- a part of the data -----------------------------------------------------------------------------------------------


def test_examples_outside_the_part_never_influence_an_instance() -> None:
    instances, examples = 8, 12
    constants: dict[str, Any] = {"keep": 0.5, "sample_rate": 1.0, "steps": 3, "num_train": examples}
    data = dataset(examples)
    clean = engine(data=data, **constants).train(SEEDS, range(instances))
    influence = np.zeros((instances, examples), dtype=bool)
    for at in range(examples):
        inputs = data.inputs.copy()
        inputs[at] = -3.0 * inputs[at]
        poisoned = engine(data=Dataset(inputs, data.labels), **constants).train(SEEDS, range(instances))
        influence[:, at] = (poisoned != clean).any(dim=1).numpy()
    # At rate 1 every kept example is in every batch: the parts are what has an influence. Binomial(12, 1/2) each.
    assert float(stats.binomtest(int(influence.sum()), influence.size, 0.5).pvalue) > LEVEL
    assert len({tuple(row) for row in influence.tolist()}) > 1
    # Poison everything outside the part of one instance, at once: not a bit of it changes.
    for instance in range(instances):
        inputs, labels = data.inputs.copy(), data.labels.copy()
        inputs[~influence[instance]] = np.nan
        labels[~influence[instance]] = 0
        alone = range(instance, instance + 1)
        poisoned = engine(data=Dataset(inputs, labels), **constants).train(SEEDS, alone)
        assert torch.equal(poisoned, engine(data=data, **constants).train(SEEDS, alone))


def test_keeping_everything_is_training_on_everything_in_law() -> None:
    # Not bit for bit: the part is drawn from the same stream. But with rate 1 nothing is left to chance but the noise.
    whole = engine(sample_rate=1.0, divisor=8.0).train(SEEDS, range(2))
    kept = engine(sample_rate=1.0, divisor=8.0, keep=1.0).train(SEEDS, range(2))
    assert torch.equal(whole, kept)


# --- reports, limits, errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("instances", [1, 5])
def test_on_step_counts_every_model_step_once(instances: int) -> None:
    counts: list[int] = []
    engine(steps=7).train(SEEDS, range(instances), counts.append)
    assert sum(counts) == 7 * instances
    assert min(counts) > 0


def test_an_interruption_while_work_is_handed_out_stops_what_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go on to its end otherwise, and this has none but the one for what hangs."""
    submit, begun, end = ThreadPoolExecutor.submit, threading.Event(), time.monotonic() + HANGS
    was_stopped: list[bool] = []

    def interrupted(*arguments: Any) -> Any:
        if begun.is_set():
            raise KeyboardInterrupt
        task = submit(*arguments)
        assert begun.wait(HANGS)
        return task

    def work(part: slice, advance: Callable[[int], None]) -> torch.Tensor:
        begun.set()
        try:
            while time.monotonic() < end:
                advance(1)
        finally:
            was_stopped.append(time.monotonic() < end)
        return torch.zeros(1)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        on_threads(work, 2, 1, None, one_at_a_time=True)
    assert was_stopped == [True]


def test_an_interruption_ends_training_and_leaves_torch_as_it_was() -> None:
    threads = torch.get_num_threads()
    seen: list[int] = []

    def interrupt(steps: int) -> None:
        seen.append(steps)
        if len(seen) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine(steps=300, instances=40).train(SEEDS, range(40), interrupt)
    assert torch.get_num_threads() == threads
    # Whatever was under way may end, but nothing new is begun.
    assert len(seen) <= 300 * (threads + 1)
    assert torch.equal(engine().train(SEEDS, range(2)), engine().train(SEEDS, range(2)))


def test_precisions() -> None:
    assert Engine(small(), dataset(), recipe(), device=CPU).precision == "float32"
    assert Engine(small(), dataset(), recipe(), device=CPU, precision="float32").precision == "float32"
    with pytest.raises(ConfigError, match=r"tf32.*GPU"):
        Engine(small(), dataset(), recipe(), device=CPU, precision="tf32")
    with pytest.raises(MithridateError, match=r"precision.*float32"):
        Engine(small(), dataset(), recipe(), device=CPU, precision="float16")


def test_models_in_flight_are_at_least_one_and_at_most_the_instances() -> None:
    assert engine(instances=1).models_in_flight() == 1
    assert 1 <= engine(instances=1000).models_in_flight() <= 1000


def test_the_data_are_left_as_they_were() -> None:
    data = dataset()
    inputs, labels = data.inputs.copy(), data.labels.copy()
    engine(data=data).train(SEEDS, range(3))
    assert np.array_equal(data.inputs, inputs)
    assert np.array_equal(data.labels, labels)


def test_an_example_without_a_finite_gradient_stops_nothing() -> None:
    data = dataset()
    data.inputs[3] = np.nan
    assert engine(data=data, sample_rate=1.0).train(SEEDS, range(3)).isfinite().all()


def test_a_diverged_instance_still_votes() -> None:
    trainer = engine(instances=4, learning_rate=1e30, weight_decay=1e30)
    weights = trainer.train(SEEDS, range(4))
    assert not weights.isfinite().all()
    tally = trainer.tally(weights, dataset(7, seed=5).inputs)
    assert (tally["counts"].sum(axis=1) == 4).all()
    assert (tally["counts"][:, 0] == 4).all()
    assert np.isfinite(tally["score_sums"]).all()


def test_votes_are_those_of_the_weights() -> None:
    module = small()
    trainer = engine(module, score_bins=8)
    weights = trainer.train(SEEDS, range(5))
    inputs = dataset(9, seed=6).inputs
    expected = np.zeros((9, CLASSES), dtype=np.int64)
    for row in weights:
        with torch.no_grad():
            labels = with_weights(module, row)(torch.from_numpy(inputs).double()).argmax(dim=1)
        expected[np.arange(9), labels.numpy()] += 1
    tally = trainer.tally(weights, inputs)
    assert np.array_equal(tally["counts"], expected)
    assert tally["score_histograms"].shape == (9, CLASSES, 8)


# --- learning ---------------------------------------------------------------------------------------------------------


def accuracy(trainer: Engine, instances: int, inputs: Any, labels: Any) -> float:
    tally = trainer.tally(trainer.train(SEEDS, range(instances)), inputs)
    return float((tally["counts"].argmax(axis=1) == labels).mean())


@pytest.mark.parametrize(
    "changes", [{}, {"optimizer": "adam", "learning_rate": 0.05}, {"average_iterates": True}], ids=str
)
def test_a_linear_model_learns_separable_data(changes: dict[str, Any]) -> None:
    random = np.random.default_rng(1)
    centres = 3.0 * np.eye(CLASSES, FEATURES)
    labels = random.integers(CLASSES, size=600)
    inputs = (centres[labels] + 0.5 * random.normal(size=(600, FEATURES))).astype(np.float32)
    config = replace(
        recipe(noise_multiplier=1.0, sample_rate=0.1, steps=40, max_grad_norm=1.0, **changes),
        divisor=40.0,
        num_train=400,
    )
    data = Dataset(inputs[:400], labels[:400])
    trainer = Engine(nn.Linear(FEATURES, CLASSES), data, config, device=CPU)
    assert accuracy(trainer, 3, inputs[400:], labels[400:]) > 0.9
    shuffled = Dataset(inputs[:400], random.permutation(labels[:400]))
    control = Engine(nn.Linear(FEATURES, CLASSES), shuffled, config, device=CPU)
    assert accuracy(control, 3, inputs[400:], labels[400:]) < 0.8


def test_lenet5_learns_digits() -> None:
    """Scikit-learn's digits, each pixel as a square of nine, with a margin: 28 x 28 as LeNet-5 wants them."""
    train, test = load_named("digits")
    assert train.y is not None
    assert test.y is not None
    large = [np.kron(part.x, np.ones((3, 3))) for part in (train, test)]
    margin = [np.pad(images, ((0, 0), (0, 0), (2, 2), (2, 2))) for images in large]
    inputs, unseen = (((images / 255.0 - 0.1307) / 0.3081).astype(np.float32) for images in margin)
    config = TrainConfig(
        instances=2,
        noise_multiplier=0.5,
        sample_rate=0.04,
        steps=90,
        max_grad_norm=1.0,
        learning_rate=0.6,
        momentum=0.5,
    ).resolve(num_train=len(inputs), classes=10)
    trainer = Engine(build("lenet5", (1, 28, 28), 10), Dataset(inputs, train.y), config, device=CPU)
    assert trainer.path == "fast"
    assert accuracy(trainer, 2, unseen, test.y) > 0.6


def test_batches_that_are_too_large_to_be_added_up_are_refused() -> None:
    count = 2**21 + 1
    data = Dataset(np.zeros((1, 2), np.float32).repeat(count, axis=0), np.zeros(count, np.int64))
    config = recipe(sample_rate=1.0).resolve(num_train=count, classes=2)
    with pytest.raises(ConfigError, match="too large"):
        Engine(nn.Linear(2, 2), data, config, device=torch.device("cpu"))
    Engine(nn.Linear(2, 2), data, replace(config, sample_rate=0.5), device=torch.device("cpu"))
