"""Training without privacy: a model of a part is a function of that part, and a random one is the draw that it says.

Statistical tests have fixed seeds; a right engine fails each of them with probability below 1e-8.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn
from torch.func import functional_call
from training_doubles import train_plain

from mithridate import ConfigError, predict
from mithridate.core.conditions import Size
from mithridate.data import Dataset
from mithridate.data.partition import content_hashes, parts
from mithridate.defences import defence
from mithridate.defences.bagging import Bagged, Bootstrap
from mithridate.defences.partitions import Partitioned, Parts, SpreadPartitions, SpreadParts
from mithridate.defences.smoothing import FlippedLabels, NoisedFeatures, NoisyFeatures, NoisyLabels
from mithridate.defences.spread_election import RankedSpreadParts
from mithridate.features import Frozen
from mithridate.training import engine as engines
from mithridate.training import run as training
from mithridate.training import task
from mithridate.training.batch_source import Seen, Views, add_normals, moved, visits
from mithridate.training.config import PlainConfig, PlainRecipe, ViewPlan
from mithridate.training.engine import Engine
from mithridate.training.models import build, initial_weights
from mithridate.training.order import RuntimeOptions
from mithridate.training.randomness import PUBLIC_SEED, Seeds

SEED = bytes(range(32))
SEEDS, PUBLIC_SEEDS = Seeds.of(SEED), Seeds.of(PUBLIC_SEED)
CPU = torch.device("cpu")
FEATURES, CLASSES = 6, 3
LEVEL = 1e-8
CONFIG = PlainConfig(
    steps=9, batch_size=8, learning_rate=0.3, weight_decay=0.0, schedule="constant", classes=CLASSES, shift=1
)
RANDOM_PLANS = [Bootstrap(6, 12), FlippedLabels(6, 0.3), NoisedFeatures(6, 0.5)]
FUNCTION_PLANS = [Parts(6), SpreadParts(3, 2), RankedSpreadParts(3, 2)]


def make_data(count: int, seed: int = 0, shape: tuple[int, ...] = (FEATURES,)) -> tuple[np.ndarray, np.ndarray]:
    """Clouds that a small network tells apart."""
    random = np.random.default_rng(seed)
    y = random.integers(0, CLASSES, count)
    x = random.normal(size=(count, *shape)).astype(np.float32)
    x.reshape(count, -1)[np.arange(count), y] += 3.0
    return x, y


TRAIN, TEST = make_data(60), make_data(25, seed=1)


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def small_images() -> nn.Module:
    return build("lenet5", (1, 16, 16), CLASSES)


def engine(
    plan: ViewPlan, data: tuple[np.ndarray, np.ndarray] = TRAIN, module: nn.Module | None = None, **changes: Any
) -> Engine:
    recipe = PlainRecipe.of(replace(CONFIG, **changes), plan).resolve(num_train=len(data[1]), classes=CLASSES)
    dataset = Dataset(data[0], data[1])
    members, test = plan.members(content_hashes(*data)), TEST[0] if data[0].ndim == 2 else data[0]
    return Engine(module or small(), dataset, recipe, parts=members, test=test, device=CPU)


def seen_by(machine: Engine, seeds: Seeds, instance: int) -> Seen:
    return machine._source.seen(seeds, [instance])[0]


def seeds_of(plan: ViewPlan) -> Seeds:
    return PUBLIC_SEEDS if plan.is_deterministic else SEEDS


def trained(plan: ViewPlan, data: tuple[np.ndarray, np.ndarray] = TRAIN, **changes: Any) -> Tensor:
    return engine(plan, data, **changes).train(seeds_of(plan), range(plan.models))


def train(plan: ViewPlan, data: Any = TRAIN, test: Any = TEST, **options: Any) -> Any:
    config = options.pop("config", CONFIG)
    return train_plain(data, test, model="mlp", plan=plan, config=config, device="cpu", **options)


# --- functions of a part ----------------------------------------------------------------------------------------------


def with_everything_else_changed(
    data: tuple[np.ndarray, np.ndarray], kept: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Another data set in another order, in which only the kept examples are the same; some of the others are vast."""
    random = np.random.default_rng(seed)
    x, y = make_data(int(random.integers(20, 90)), seed + 100, data[0].shape[1:])
    x[: len(x) // 3] *= 1e25
    hashes = content_hashes(*data)
    number = hashes[kept[0], 0] % np.uint64(6)
    others = content_hashes(x, y)[:, 0] % np.uint64(6) != number
    x, y = np.concatenate([x[others], data[0][kept]]), np.concatenate([y[others], data[1][kept]])
    order = random.permutation(len(y))
    return x[order], y[order]


@pytest.mark.parametrize("name", ["linear layers", "convolutions", "general"])
def test_a_model_is_to_the_bit_a_function_of_its_part(name: str) -> None:
    data, module = TRAIN, small()
    if name == "convolutions":
        data, module = make_data(60, shape=(1, 16, 16)), small_images()
    if name == "general":
        module = nn.Sequential(nn.Linear(FEATURES, 5), nn.Softmax(dim=1), nn.Linear(5, CLASSES))
    one = engine(Parts(6), data, module, steps=4)
    assert one.path == ("general" if name == "general" else "fast")
    weights = one.train(PUBLIC_SEEDS, range(6))
    members = parts(content_hashes(*data), 6)
    for model in (0, 3):
        other = engine(Parts(6), with_everything_else_changed(data, members[model], model), module, steps=4)
        again = other.train(PUBLIC_SEEDS, range(6))
        assert torch.equal(weights[model], again[model])
        assert not torch.equal(weights[5], again[5])
        inputs = TEST[0] if data is TRAIN else data[0][:20]
        answers = [
            machine.network.logits(rows, torch.from_numpy(inputs)) for machine, rows in ((one, weights), (other, again))
        ]
        assert torch.equal(answers[0][model], answers[1][model])


def test_the_votes_of_models_depend_on_their_buckets_only() -> None:
    plan = SpreadParts(3, 2)
    votes = train(plan)
    hashes = content_hashes(*TRAIN)
    buckets = parts(hashes, 6)
    removed = int(buckets[2][0])
    less = tuple(np.delete(values, removed, axis=0)[::-1] for values in TRAIN)
    after = train(plan, less)
    affected = {(2 + offset) % 6 for offset in plan.offsets}
    assert len(affected) == 2
    same = (votes.evidence["predictions"] == after.evidence["predictions"]).all(axis=0)
    assert set(np.flatnonzero(~same)) <= affected
    assert (after.mechanism, votes.mechanism) == (SpreadPartitions(3, plan.offsets),) * 2


def test_a_model_of_several_buckets_sees_them_in_an_order_of_their_own() -> None:
    plan, mixed = SpreadParts(4, 3), np.random.default_rng(0).permutation(60)
    found = []
    for x, y in (TRAIN, (TRAIN[0][mixed], TRAIN[1][mixed])):
        found.append([[(x[i].tobytes(), y[i]) for i in part] for part in plan.members(content_hashes(x, y))])
    assert found[0] == found[1]
    assert sum(map(len, found[0])) == 3 * 60


def test_a_frozen_encoder_does_not_let_examples_disturb_each_other() -> None:
    def rounds_by_the_batch(rows: np.ndarray) -> np.ndarray:
        return rows * (1.0 + 1e-6 * len(rows))

    encoder = Frozen(rounds_by_the_batch, title="rough", trained_on="nothing")
    options: dict[str, Any] = {"plan": Parts(6), "config": CONFIG, "device": "cpu", "model": "linear"}
    votes = train_plain(TRAIN, TEST, features=encoder, **options)
    one = train_plain(TRAIN, TEST, features=replace(encoder, batch_size=1), **options)
    assert votes.equals(one)
    assert votes.recipe is not None
    assert votes.recipe["features"]["batch_size"] == 1


def test_an_example_twice_counts_twice() -> None:
    twice = tuple(np.concatenate([values, values[:1]]) for values in TRAIN)
    member = next(i for i, part in enumerate(parts(content_hashes(*TRAIN), 6)) if 0 in part)
    before, after = trained(Parts(6)), trained(Parts(6), twice)  # type: ignore[arg-type]
    assert [torch.equal(*rows) for rows in zip(before, after, strict=True)] == [i != member for i in range(6)]


def test_an_empty_part_leaves_its_model_as_it_started() -> None:
    x, y = TRAIN[0][:10], TRAIN[1][:10]
    sizes = [len(part) for part in parts(content_hashes(x, y), 9)]
    assert 0 in sizes
    machine = engine(Parts(9), (x, y))
    weights, start = machine.train(PUBLIC_SEEDS, range(9)), initial_weights(machine._model, PUBLIC_SEEDS, range(9))
    assert [torch.equal(*rows) for rows in zip(weights, start, strict=True)] == [size == 0 for size in sizes]


@pytest.mark.parametrize("plan", FUNCTION_PLANS, ids=str)
def test_functions_do_not_depend_on_how_many_are_in_flight_or_on_who_runs_them(plan: ViewPlan) -> None:
    one, two = train(plan, in_flight=2), train(plan, in_flight=5)
    assert one.equals(two)
    assert one.score_sums is None


def replaying_engine() -> Engine:
    """An engine that trains together, in places of a fixed size, as a GPU does."""
    machine = engine(Parts(6))
    machine._slots = 8
    machine._train = (
        lambda group, steps, on_step=None: machine._train_together(  # type: ignore[method-assign]
            group.filled_up(8), steps, on_step
        )[: len(group.seen)]
    )
    return machine


def test_models_in_fixed_places_are_those_that_are_trained_alone_up_to_rounding() -> None:
    together = replaying_engine().train(PUBLIC_SEEDS, range(6))
    torch.testing.assert_close(together, trained(Parts(6)), rtol=1e-4, atol=1e-5)


def test_the_rehearsal_replaces_all_but_what_is_kept() -> None:
    machine = engine(Parts(6))
    group = machine._group(PUBLIC_SEEDS, range(6))
    kept = torch.arange(6) % 2 == 1
    other = engines._with_others_replaced(group, kept)
    for slot in range(6):
        same = np.array_equal(group.seen[slot].members, other.seen[slot].members)
        assert same == torch.equal(group.start[slot], other.start[slot]) == bool(kept[slot])


@pytest.mark.parametrize("leak", ["sums", "answers"])
def test_a_device_on_which_models_disturb_each_other_is_refused(leak: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = replaying_engine()
    network = machine.network
    sums, logits = network.clipped_sums, network.logits
    if leak == "sums":
        monkeypatch.setattr(network, "clipped_sums", lambda w, *rest: sums(w, *rest) + 1e-6 * w.nan_to_num().mean())
    else:
        monkeypatch.setattr(network, "logits", lambda w, x: logits(w, x) + 1e-6 * w.nan_to_num().mean())
    with pytest.raises(ConfigError, match=r"depends on those that are (trained|asked) beside it.*device='cpu'"):
        machine.train(PUBLIC_SEEDS, range(6))


def test_a_network_that_starts_anew_each_time_is_refused() -> None:
    def build_anew() -> nn.Module:
        module = small()
        with torch.no_grad():
            next(module.parameters()).mul_(float(np.random.default_rng().normal()))
        return module

    with pytest.raises(ConfigError, match="starts from other weights"):
        train_plain(TRAIN, TEST, model=build_anew, plan=Parts(3), config=CONFIG, device="cpu")


def test_too_many_in_flight_are_halved_before_the_first_group(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Small(Engine):
        def rehearse(self) -> None:
            asked.append(self.models_in_flight())
            if asked[-1] > 2:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            super().rehearse()

    monkeypatch.setattr(task, "Engine", Small)
    assert train(Parts(9), in_flight=9).equals(train(Parts(9), in_flight=2))
    assert asked[:3] == [9, 4, 2]


def test_how_many_functions_a_gpu_trains_at_a_time_does_not_depend_on_their_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = set()
    for data in (TRAIN, make_data(2000)):
        machine = engine(Parts(60), data)
        machine._device, machine._shapes_are_fixed = torch.device("cuda"), True
        for memory in (10**5, 2 * 10**5):
            monkeypatch.setattr(engines, "_all_memory", lambda _, memory=memory: memory)
            found.add((memory, machine.models_in_flight()))
    assert len(found) == 2
    assert {1, 60}.isdisjoint(count for _, count in found)


def test_where_not_even_one_model_fits_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Engine) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Engine, "rehearse", full)
    with pytest.raises(ConfigError, match="Not even one model"):
        train(Parts(9))


def test_out_of_memory_later_ends_a_run_whose_shapes_are_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = replaying_engine()
    machine._shapes_are_fixed, machine._is_rehearsed = True, True

    def full(*_: Any) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(machine.network, "clipped_sums", full)
    with pytest.raises(ConfigError, match="another run_dir with in_flight=4"):
        machine.train(PUBLIC_SEEDS, range(6))


# --- training, against a loop -----------------------------------------------------------------------------------------


def slow_training(machine: Engine, module: nn.Module, seeds: Seeds, instance: int, inputs: Tensor) -> Tensor:
    """One instance in double precision by PyTorch's own loss and optimisers, on the same batches."""
    recipe = machine._recipe
    assert isinstance(recipe, PlainRecipe)
    group = machine._group(seeds, [instance])
    row = group.start[0].double().requires_grad_()
    if recipe.optimizer == "adam":
        optimiser: Any = torch.optim.Adam([row], recipe.learning_rate, recipe.betas, weight_decay=recipe.weight_decay)
    else:
        optimiser = torch.optim.SGD(
            [row], recipe.learning_rate, momentum=recipe.momentum or 0.0, weight_decay=recipe.weight_decay
        )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, recipe.steps)
    shapes = machine.shapes
    iterates = []
    for block in machine._source.blocks(group, recipe.steps):
        for positions in block.indices[:, 0]:
            pieces = row.split([shape.numel() for shape in shapes.values()])
            named = {name: piece.view(shapes[name]) for name, piece in zip(shapes, pieces, strict=True)}
            labels = torch.from_numpy(group.seen[0].labels[positions])
            loss = F.cross_entropy(functional_call(module, named, (inputs[positions].double(),)), labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if recipe.schedule == "cosine":
                schedule.step()
            iterates.append(row.detach().clone())
    return torch.stack(iterates).mean(dim=0) if recipe.average_iterates else iterates[-1]


@pytest.mark.parametrize(
    "changes",
    [{}, {"optimizer": "adam", "momentum": None, "learning_rate": 0.02, "weight_decay": 0.01}, {"schedule": "cosine"},
     {"average_iterates": True, "batch_size": 25}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("plan", [Parts(6), Bootstrap(6, 12), FlippedLabels(6, 0.4)], ids=str)
def test_training_is_the_slow_loop(plan: ViewPlan, changes: dict[str, Any]) -> None:
    module = small()
    machine, seeds = engine(plan, module=module, **changes), seeds_of(plan)
    rows = machine.train(seeds, range(6))
    for instance in (1, 4):
        seen = torch.from_numpy(TRAIN[0][seen_by(machine, seeds, instance).members])
        exact = slow_training(machine, module.double(), seeds, instance, seen)
        torch.testing.assert_close(rows[instance].double(), exact, rtol=1e-3, atol=1e-4)
        module.float()


def test_convolutions_are_trained_like_the_slow_loop() -> None:
    data, module = make_data(40, shape=(1, 16, 16)), small_images()
    machine = engine(Parts(3), data, module, steps=4, shift=0)
    rows = machine.train(PUBLIC_SEEDS, range(3))
    seen = torch.from_numpy(data[0][seen_by(machine, PUBLIC_SEEDS, 1).members])
    exact = slow_training(machine, module.double(), PUBLIC_SEEDS, 1, seen)
    torch.testing.assert_close(rows[1].double(), exact, rtol=1e-3, atol=1e-4)


def test_clipping_bounds_the_gradient_of_every_example() -> None:
    start = initial_weights(small(), SEEDS, range(6))
    moved = trained(Bootstrap(6, 12), steps=1, momentum=0.0, max_grad_norm=1e-3, learning_rate=2.0) - start
    assert (moved.norm(dim=1) <= 2.0 * 1e-3 * (1 + 1e-4)).all()
    free = trained(Bootstrap(6, 12), steps=1, momentum=0.0, learning_rate=2.0) - start
    assert (free.norm(dim=1) > 0.1).all()


def test_images_are_moved_as_far_as_is_said() -> None:
    images = np.random.default_rng(0).normal(size=(25, 2, 5, 7)).astype(np.float32)
    found = moved(torch.from_numpy(images), torch.arange(25), 2)
    for way, (one, image) in enumerate(zip(found, images, strict=True)):
        down, right = way // 5 - 2, way % 5 - 2
        wide = np.pad(image, ((0, 0), (2, 2), (2, 2)), mode="edge")
        assert np.array_equal(one.numpy(), wide[:, 2 - down : 7 - down, 2 - right : 9 - right])


def test_moves_are_uniform_anew_at_every_visit_and_leave_the_visits_as_they_are() -> None:
    still, moving = (
        np.concatenate([block.indices for block in visits(SEEDS, [0, 1], [20, 30], steps=900, batch_size=8, ways=ways)])
        for ways in (1, 9)
    )
    assert np.array_equal(moving // 9, still)
    assert stats.chisquare(np.bincount((moving % 9).ravel(), minlength=9)).pvalue > LEVEL
    pairs = (moving[1:, 0, 0] % 9) * 9 + moving[:-1, 0, 0] % 9
    assert stats.chisquare(np.bincount(pairs, minlength=81)).pvalue > LEVEL


def test_every_example_is_visited_equally_often() -> None:
    order = np.concatenate([block.indices[:, 0].ravel() for block in visits(SEEDS, [0], [23], steps=900, batch_size=8)])
    rounds = order[: len(order) // 23 * 23].reshape(-1, 23)
    assert len(rounds) > 300
    assert (np.sort(rounds, axis=1) == np.arange(23)).all()
    assert not (rounds[0] == rounds[1]).all()


# --- random plans -----------------------------------------------------------------------------------------------------


def test_a_bootstrap_draws_uniformly_with_replacement_and_independently() -> None:
    machine = engine(Bootstrap(2000, 30))
    draws = np.stack([seen_by(machine, SEEDS, instance).members for instance in range(2000)])
    counts = np.bincount(draws.ravel(), minlength=60)
    assert stats.chisquare(counts).pvalue > LEVEL
    # The number of different examples among 30 draws of 60: mean 60 (1 - (59/60)^30).
    different = np.array([len(set(row)) for row in draws.tolist()])
    expected = 60 * (1 - (59 / 60) ** 30)
    assert abs(different.mean() - expected) < 6 * different.std() / np.sqrt(2000)
    pairs = np.bincount(draws[:-1, 0] * 60 + draws[1:, 0], minlength=3600)
    assert stats.chisquare(pairs).pvalue > LEVEL


def test_labels_are_replaced_with_the_probability_that_is_said_by_any_other_label() -> None:
    machine = engine(FlippedLabels(3000, 0.3))
    flips = np.zeros((CLASSES, CLASSES), int)
    for instance in range(3000):
        seen = seen_by(machine, SEEDS, instance)
        np.add.at(flips, (TRAIN[1][seen.members], seen.labels), 1)
    for label in range(CLASSES):
        expected = np.full(CLASSES, 0.15 * flips[label].sum())
        expected[label] = 0.7 * flips[label].sum()
        assert stats.chisquare(flips[label], expected).pvalue > LEVEL


def test_inputs_get_gaussian_noise_once_for_each_instance() -> None:
    machine = engine(NoisedFeatures(4, 0.5))
    group = machine._group(SEEDS, range(4))
    tables = []
    for _ in range(2):
        table = machine._source.table(4)
        table.fill(group)
        assert isinstance(table, Views)
        tables.append(table.own)
    assert torch.equal(*tables)
    clean = torch.from_numpy(TRAIN[0])[torch.from_numpy(np.stack([seen.members for seen in group.seen]))]
    noise = (tables[0] - clean).double().numpy()
    assert noise.shape == (4, 60, FEATURES)
    assert stats.kstest(noise.ravel() / 0.5, "norm").pvalue > LEVEL
    correlations = np.corrcoef(noise.reshape(4, -1)) - np.eye(4)
    assert abs(correlations).max() < 6 / np.sqrt(60 * FEATURES)


def test_what_is_trained_on_is_the_noisy_set_at_every_visit() -> None:
    module = small()
    machine = engine(NoisedFeatures(6, 0.5), module=module, batch_size=25)
    row = machine.train(SEEDS, range(6))[2]
    group = machine._group(SEEDS, [2])
    table = machine._source.table(1)
    table.fill(group)
    assert isinstance(table, Views)
    assert table.own is not None
    exact = slow_training(machine, module.double(), SEEDS, 2, table.own[0])
    torch.testing.assert_close(row.double(), exact, rtol=1e-3, atol=1e-4)


def test_only_what_is_visited_is_drawn_and_it_is_any_part_of_the_data() -> None:
    machine = engine(FlippedLabels(500, 0.2), steps=2, batch_size=8)
    seen = np.stack([seen_by(machine, SEEDS, instance).members for instance in range(500)])
    assert seen.shape == (500, 16)
    assert all(len(set(row)) == 16 for row in seen.tolist())
    counts = np.bincount(seen.ravel(), minlength=60)
    assert abs(counts - 500 * 16 / 60).max() < 6 * np.sqrt(500 * 16 / 60)


@pytest.mark.parametrize("plan", RANDOM_PLANS, ids=str)
def test_random_instances_come_from_the_root_seed_and_their_number(plan: ViewPlan) -> None:
    whole, some = engine(plan).train(SEEDS, range(6)), engine(plan).train(SEEDS, range(4, 6))
    torch.testing.assert_close(some, whole[4:], rtol=1e-4, atol=1e-5)
    assert not torch.equal(whole, engine(plan).train(Seeds.of(bytes(32)), range(6)))
    assert len({tuple(row) for row in whole.tolist()}) == 6


@pytest.mark.parametrize("plan", [*RANDOM_PLANS, Parts(6)], ids=str)
def test_an_instance_needs_no_seed_but_its_own(plan: ViewPlan) -> None:
    machine, seeds = engine(plan), seeds_of(plan)
    assert torch.equal(machine.train(seeds.only(range(2, 5)), range(2, 5)), machine.train(seeds, range(2, 5)))
    with pytest.raises(LookupError, match="lacks the seed of instance 5"):
        machine.train(seeds.only(range(2, 5)), range(2, 6))


@pytest.mark.parametrize("plan", RANDOM_PLANS, ids=str)
def test_runs_without_a_seed_differ_and_merge(plan: ViewPlan) -> None:
    one, two = train(plan), train(plan)
    assert not np.array_equal(one.score_sums, two.score_sums)
    assert one.merge(two).instances == 12


# --- votes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [*RANDOM_PLANS, *FUNCTION_PLANS], ids=str)
def test_votes_say_what_was_run(plan: ViewPlan) -> None:
    votes = train(plan, assumptions=("The reader is right.",))
    expected = {
        "Bootstrap": Bagged(60, 12),
        "FlippedLabels": NoisyLabels(0.3, CLASSES),
        "NoisedFeatures": NoisyFeatures(0.5),
        "Parts": Partitioned(6),
        "SpreadParts": SpreadPartitions(3, SpreadParts(3, 2).offsets),
        "RankedSpreadParts": SpreadPartitions(3, SpreadParts(3, 2).offsets),
    }
    assert votes.mechanism == expected[type(plan).__name__]
    assert (votes.instances, votes.examples, votes.classes) == (6, 25, CLASSES)
    assert votes.assumptions[0] == "The reader is right."
    assert votes.recipe["config"]["plan"] == plan.to_dict()
    assert np.array_equal(votes.labels, TEST[1])
    assert (votes.score_sums is None) == plan.is_deterministic
    assert votes.data_fingerprint is not None


def test_predictions_and_preferences_are_those_of_the_models() -> None:
    machine = engine(Parts(6))
    weights = machine.train(PUBLIC_SEEDS, range(6))
    logits = machine.network.logits(weights, torch.from_numpy(TEST[0])).numpy()
    spread = train_plain(TRAIN, TEST, model=small(), plan=SpreadParts(6, 1), config=CONFIG, device="cpu")
    assert np.array_equal(spread.evidence["predictions"], logits.argmax(axis=2).T)
    assert np.array_equal((spread.evidence["predictions"][..., None] == np.arange(CLASSES)).sum(axis=1), spread.counts)
    ranked = train_plain(TRAIN, TEST, model=small(), plan=RankedSpreadParts(6, 1), config=CONFIG, device="cpu")
    assert np.array_equal(ranked.evidence["predictions"], spread.evidence["predictions"])
    assert np.array_equal(ranked.evidence["rankings"], np.argsort(-logits, axis=2, kind="stable").swapaxes(0, 1))
    votes = train_plain(
        TRAIN, TEST, model=small(), plan=Parts(6), config=CONFIG, device="cpu", preferences=True, in_flight=4
    )
    expected = np.zeros((25, CLASSES, CLASSES), int)
    for scores in logits:
        for at, row in enumerate(scores):
            for a in range(CLASSES):
                for b in range(CLASSES):
                    expected[at, a, b] += a != b and (row[a], -a) > (row[b], -b)
    assert np.array_equal(votes.evidence["preferences"], expected)
    assert np.array_equal(votes.counts, spread.counts)


def test_of_equals_the_smaller_label_is_preferred_and_a_diverged_model_prefers_label_0() -> None:
    from mithridate.training.engine import Counter

    class Script:
        def logits(self, weights: Tensor, inputs: Tensor) -> Tensor:
            return torch.tensor([[[1.0, 1.0, 2.0]], [[3.0, torch.nan, 4.0]]])

    script: Any = Script()
    counter = Counter(script, 3, 0, CPU, ("predictions", "rankings", "preferences"))
    tally = counter.count(torch.zeros(2, 1), np.zeros((1, 1), np.float32))
    assert tally["predictions"].tolist() == [[2, 0]]
    assert tally["rankings"].tolist() == [[[2, 0, 1], [0, 1, 2]]]
    assert tally["preferences"].tolist() == [[[0, 2, 1], [0, 0, 1], [1, 1, 0]]]


@pytest.mark.parametrize("plan", [*RANDOM_PLANS, *FUNCTION_PLANS], ids=str)
def test_an_interrupted_run_goes_on_to_the_same_votes(plan: ViewPlan, tmp_path: Path) -> None:
    options: dict[str, Any] = {"in_flight": 2} | ({} if plan.is_deterministic else {"root_seed": SEED})
    if isinstance(plan, Parts):
        options["preferences"] = True
    whole = train(plan, **options)

    def interrupt(done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(plan, run_dir=tmp_path, progress=interrupt, **options)
    assert 0 < len(list((tmp_path / "shards").glob("*.npz"))) < 3
    assert train(plan, run_dir=tmp_path, **options).equals(whole)
    assert train(plan, run_dir=tmp_path, **options).equals(whole)  # from votes.npz


@pytest.mark.parametrize("plan", [*RANDOM_PLANS, *FUNCTION_PLANS], ids=str)
def test_shards_of_a_run_are_trained_one_by_one_and_merge(plan: ViewPlan, tmp_path: Path) -> None:
    options: dict[str, Any] = {"in_flight": 2, "config": replace(CONFIG, score_bins=8)}
    if isinstance(plan, Parts):
        options["preferences"] = True
    seed: dict[str, Any] = {} if plan.is_deterministic else {"root_seed": SEED}
    whole = train(plan, **options, **seed)
    more: dict[str, Any] = {"preferences": True} if isinstance(plan, Parts) else {}
    order = training.by_hand(TRAIN, TEST, model="mlp", config=PlainRecipe.of(options["config"], plan), **more, **seed)
    assert training.prepare(order, RuntimeOptions(tmp_path, "cpu", in_flight=2)).in_flight == 2
    pieces = [train(plan, run_dir=tmp_path, shards=number, **options) for number in (2, 0, 1)]
    assert [piece.instances for piece in pieces] == [2, 2, 2]
    together = train(plan, run_dir=tmp_path, **options)
    merged = pieces[0].merge(*pieces[1:])
    for votes in (together, merged):
        assert np.array_equal(votes.counts, whole.counts)
        assert votes.run_ids == whole.run_ids
        assert votes.evidence.keys() == whole.evidence.keys()
        assert all(np.array_equal(votes.evidence[name], whole.evidence[name]) for name in whole.evidence)
    assert (together.score_histograms is None) == plan.is_deterministic
    assert np.array_equal(merged.score_histograms, whole.score_histograms)


def test_what_a_defence_adds_is_kept_with_the_run(tmp_path: Path) -> None:
    options: dict[str, Any] = {"run_dir": tmp_path, "device": "cpu", "keep_models": True}
    votes = defence("dpa", steps=3).train(TRAIN, TEST, **options)
    assert votes.recipe is not None
    assert votes.recipe["defence"]["name"] == "dpa"
    assert votes.size == Size.of(60)
    assert predict(tmp_path, TEST, device="cpu").equals(votes)
    assert train(Parts(6), size=Size.of(60)).size == Size.of(60)
    with pytest.raises(ConfigError, match=r"Size.of\(60\)"):
        train(Parts(6), size=Size.of(61))


def test_another_plan_or_computer_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(Parts(6), run_dir=tmp_path)
    with pytest.raises(ConfigError, match="belongs to another run"):
        train(Parts(5), run_dir=tmp_path)
    with pytest.raises(ConfigError, match="evidence"):
        train(Parts(6), run_dir=tmp_path, preferences=True)
    monkeypatch.setattr(task, "computer_of", lambda *_: {"name": "another"})
    with pytest.raises(ConfigError, match="computer"):
        train(Parts(6), run_dir=tmp_path)


def test_models_learn() -> None:
    data, test = make_data(600), make_data(200, seed=3)
    for plan in (Parts(10), Bootstrap(10, 60), SpreadParts(5, 2), FlippedLabels(5, 0.2), NoisedFeatures(5, 0.3)):
        votes = train(plan, data, test, config=replace(CONFIG, steps=60, learning_rate=0.03))
        assert (votes.counts.argmax(axis=1) == test[1]).mean() > 0.85


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "options", "message"),
    [
        (Parts(61), {}, "61 partitions but only 60 training examples; use fewer"),
        (SpreadParts(61, 2), {}, "61 partitions but only 60 training examples; use fewer"),
        (Bootstrap(3, 61), {}, "draws .k. of at most the 60 training examples, got 61"),
        (FlippedLabels(3, 0.7), {}, "flip_prob"),
        (Parts(3), {"root_seed": SEED}, "take no root_seed"),
        (Bootstrap(3, 5), {"root_seed": b"short"}, "root_seed"),
        (Bootstrap(3, 5), {"preferences": True}, "Parts; leave them out"),
        (Parts(3), {"in_flight": 0}, "in_flight"),
        (Parts(3), {"assumptions": "One."}, "assumptions as a list of sentences"),
        (Parts(3), {"precision": "half"}, "precision"),
        (Parts(3), {"config": None}, "config to be a PlainConfig"),
        (None, {}, "plan to be"),
    ],
)
def test_bad_input_gets_one_clear_sentence(plan: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(plan, **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Parts(0), lambda: Parts(True), lambda: SpreadParts(3, 0), lambda: Bootstrap(0, 3),
        lambda: Bootstrap(3, 0), lambda: FlippedLabels(3, 0.0), lambda: FlippedLabels(3, 1.0),
        lambda: NoisedFeatures(3, 0.0), lambda: NoisedFeatures(3, float("nan")), lambda: PlainConfig(steps=0),
        lambda: PlainConfig(batch_size=0), lambda: PlainConfig(learning_rate=0), lambda: PlainConfig(schedule="step"),
        lambda: PlainConfig(max_grad_norm=0), lambda: PlainConfig(classes=1), lambda: PlainConfig(score_bins=3),
        lambda: PlainConfig(optimizer="adam", momentum=0.5), lambda: PlainConfig(shift=-1),
        lambda: PlainConfig(shift=65),
    ],
)  # fmt: skip
def test_constants_outside_their_range_are_refused(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()


def test_noise_is_not_for_tokens_and_functions_are_not_for_every_device() -> None:
    tokens = (np.random.default_rng(0).integers(0, 7, (20, 3)), np.arange(20) % CLASSES)
    words = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, CLASSES))
    config = replace(CONFIG, steps=2)
    with pytest.raises(ConfigError, match="tokens"):
        train_plain(tokens, tokens[0], model=words, plan=NoisedFeatures(2, 1.0), config=config, device="cpu")
    votes = train_plain(tokens, tokens[0], model=words, plan=Parts(2), config=config, device="cpu")
    assert votes.instances == 2
    for device, path in (("mps", "fast"), ("cuda", "general")):
        with pytest.raises(ConfigError, match="use device='cpu'"):
            engines._check_device(torch.device(device), path)


def test_offsets_are_public_distinct_and_hold_0() -> None:
    for partitions, spread in ((1, 1), (1, 5), (7, 3), (50, 16)):
        offsets = SpreadParts(partitions, spread).offsets
        assert len(set(offsets)) == spread
        assert offsets[0] == 0
        assert offsets == SpreadParts(partitions, spread).offsets
        assert max(offsets) < partitions * spread


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU here")
@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_on_a_gpu_a_model_is_to_the_bit_a_function_of_its_part(precision: str) -> None:
    data, test = make_data(60, shape=(1, 16, 16)), make_data(30, 5, (1, 16, 16))
    members = parts(content_hashes(*data), 6)
    plan, options = SpreadParts(6, 1), {"device": "cuda", "precision": precision, "in_flight": 4, "config": CONFIG}
    votes = train_plain(data, test, model=small_images(), plan=plan, **options)  # type: ignore[arg-type]
    for model in (0, 3, 5):
        other = with_everything_else_changed(data, members[model], model)
        again = train_plain(other, test, model=small_images(), plan=plan, **options)  # type: ignore[arg-type]
        assert np.array_equal(votes.evidence["predictions"][:, model], again.evidence["predictions"][:, model])
    on_cpu = train_plain(data, test, model=small_images(), plan=plan, config=CONFIG, device="cpu")
    assert (votes.counts != on_cpu.counts).mean() < 0.1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU here")
def test_noise_on_a_gpu_is_gaussian() -> None:
    values = torch.zeros(2, 500_000, device="cuda")
    for instance in range(2):
        add_normals(values[instance], 2.0, SEEDS, instance)
    drawn = values.cpu().numpy() / 2.0
    assert stats.kstest(drawn.ravel(), "norm").pvalue > LEVEL
    assert abs((drawn[0] * drawn[1]).mean()) < 6 / np.sqrt(500_000)
    again = torch.zeros(500_000, device="cuda")
    add_normals(again, 2.0, SEEDS, 1)
    assert torch.equal(again, values[1])
    assert SEEDS.key(0, "features") != SEEDS.key(1, "features")
