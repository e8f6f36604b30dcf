"""Private ensembles of units: what a unit adds against a slow loop, how its examples are drawn, aligned canaries."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from gpu_checks import assert_near, fast_network
from reference import (
    CLASSES,
    PLACES,
    random_inputs,
    random_units,
    random_weights,
    reference_sums_of_units,
    shares_of,
    zoo,
)
from scipy import stats
from torch import Tensor, nn

from mithridate import ConfigError, TrainConfig, Votes, train
from mithridate.accounting.privacy_loss import compose as composed_curve
from mithridate.core.units import Unit
from mithridate.data import Dataset
from mithridate.data.examples import Examples
from mithridate.data.units import Units
from mithridate.defences import defence
from mithridate.defences.automatic import named
from mithridate.training import engine as engine_module
from mithridate.training.batch_source import BlockOfUnits, PoissonSamples, Sent, _UnitSet, rows_of_units
from mithridate.training.config import recipe_from_dict
from mithridate.training.devices import ReplayedStep
from mithridate.training.engine import Engine
from mithridate.training.general import GeneralNetwork
from mithridate.training.network import FastNetwork
from mithridate.training.order import compose
from mithridate.training.randomness import Seeds

ZOO = zoo()
NO_CLIPPING = 1e30
CPU = torch.device("cpu")
SEEDS = Seeds.of(bytes(32))
CONFIG = TrainConfig(
    6, 2.0, 0.3, 4, 0.5, 0.5, num_train=30, classes=CLASSES, divisor=9.0, score_bins=0, unit_rows=PLACES
)


@pytest.fixture(scope="module")
def networks() -> dict[str, tuple[FastNetwork, GeneralNetwork]]:
    return {name: (fast_network(module, shape), GeneralNetwork(module, shape)) for name, (module, shape) in ZOO.items()}


# --- what a unit adds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", ["none", "all", "some"])
@pytest.mark.parametrize("path", [0, 1], ids=["fast", "general"])
@pytest.mark.parametrize("name", ZOO)
def test_sums_of_units_are_those_of_a_loop(networks: Any, name: str, path: int, clip: str) -> None:
    module, shape = ZOO[name]
    weights = random_weights(module, 2, seed=1)
    inputs, labels, counts = random_units(module, shape, 2, 5, seed=3)
    _, norms = reference_sums_of_units(module, weights, inputs, labels, counts, NO_CLIPPING)
    bound = {"none": NO_CLIPPING, "all": 0.01, "some": float(norms[counts > 0].median())}[clip]
    expected, _ = reference_sums_of_units(module, weights, inputs, labels, counts, bound)
    found = networks[name][path].clipped_sums(weights, inputs, labels, counts > 0, bound, shares=shares_of(counts))
    assert_near(found, expected)


@pytest.mark.parametrize("path", [0, 1], ids=["fast", "general"])
@pytest.mark.parametrize("name", ["linear", "conv2d", "conv2d-behind", "embedding", "group-norm", "model-lenet5"])
def test_one_unit_adds_at_most_the_bound_whatever_is_in_it(networks: Any, name: str, path: int) -> None:
    module, shape = ZOO[name]
    network, bound = networks[name][path], 0.3
    weights = random_weights(module, 1, seed=1)
    for scale in (1e-3, 1.0, 1e3):
        inputs = random_inputs(module, (1, 4, PLACES, *shape), 7)
        inputs = inputs if not inputs.is_floating_point() else inputs * scale
        labels = torch.zeros(1, 4, PLACES, dtype=torch.int64)
        shares, present = torch.full((1, 4, PLACES), 1 / PLACES), torch.ones(1, 4, dtype=torch.bool)
        for left_out in range(4):
            without = present.clone()
            without[0, left_out] = False
            sums = [
                network.clipped_sums(weights, inputs, labels, each, bound, shares=shares) for each in (present, without)
            ]
            assert float((sums[0].double() - sums[1].double()).norm()) <= bound


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("linear", 0),
        ("conv2d", 0),
        ("embedding", 0),
        ("layer-norm", 0),
        ("linear", 1),
        ("conv2d", 1),
        ("layer-norm", 1),
    ],
)
def test_a_broken_example_breaks_its_own_unit_alone(networks: Any, name: str, path: int) -> None:
    module, shape = ZOO[name]
    network = networks[name][path]
    weights = random_weights(module, 2, seed=1)
    inputs, labels, counts = random_units(module, shape, 2, 5, seed=3)
    counts[0] = torch.tensor([PLACES, 2, 1, 0, PLACES])
    broken = inputs.clone()
    broken[0, 0, 1] = 10**6 if not inputs.is_floating_point() else math.inf
    present = counts > 0
    without = present.clone()
    without[0, 0] = False
    found = network.clipped_sums(weights, broken, labels, present, 0.5, shares=shares_of(counts))
    expected = network.clipped_sums(weights, inputs, labels, without, 0.5, shares=shares_of(counts))
    torch.testing.assert_close(found, expected)
    # The padding of others, and whole absent units, may hold anything.
    garbage = inputs.clone()
    garbage[0, 3] = 0 if not inputs.is_floating_point() else math.nan
    again = network.clipped_sums(weights, garbage, labels, present, 0.5, shares=shares_of(counts))
    torch.testing.assert_close(
        again, network.clipped_sums(weights, inputs, labels, present, 0.5, shares=shares_of(counts))
    )


def test_the_order_of_units_and_of_their_examples_does_not_matter(networks: Any) -> None:
    module, shape = ZOO["linear"]
    weights = random_weights(module, 1, seed=1)
    inputs, labels, counts = random_units(module, shape, 1, 5, seed=3)
    found = networks["linear"][0].clipped_sums(weights, inputs, labels, counts > 0, 0.5, shares=shares_of(counts))
    order = torch.tensor([3, 4, 0, 2, 1])
    turned = networks["linear"][0].clipped_sums(
        weights, inputs[:, order], labels[:, order], (counts > 0)[:, order], 0.5, shares=shares_of(counts[:, order])
    )
    torch.testing.assert_close(found, turned)


# --- which examples of a unit -----------------------------------------------------------------------------------------


def test_examples_of_a_unit_are_all_of_them_or_a_uniform_set() -> None:
    starts, draws = np.array([0, 1, 4, 9, 14]), 6_000
    units = np.tile([0, 1, 2, 3], draws)
    rows, counts = rows_of_units(np.random.default_rng(1), starts, units, 3)
    assert counts[:4].tolist() == [1, 3, 3, 3]
    assert (rows[0::4] == [0, 0, 0]).all()  # repeats the first
    assert (rows[1::4] == [1, 2, 3]).all()
    sets = {frozenset(each): number for number, each in enumerate(combinations(range(5), 3))}
    found = [
        np.array([sets[frozenset((row - first).tolist())] for row in rows[at::4]]) for at, first in ((2, 4), (3, 9))
    ]
    for each in found:  # chi-square with 9 degrees of freedom exceeds 39 once in a hundred thousand
        assert ((np.bincount(each, minlength=10) - draws / 10) ** 2 / (draws / 10)).sum() < 39
    # Two units that are drawn at the same time are drawn independently: 81 degrees of freedom, 145 likewise.
    together = np.bincount(10 * found[0] + found[1], minlength=100)
    assert ((together - draws / 100) ** 2 / (draws / 100)).sum() < 165


def units_of(sizes: list[int], seed: int = 0, features: int = 5) -> Dataset:
    random = np.random.default_rng(seed)
    total = sum(sizes)
    inputs = random.normal(size=(total, features)).astype(np.float32)
    return Dataset(inputs, random.integers(0, CLASSES, total), np.append(0, np.cumsum(sizes)))


def test_batches_are_of_units_and_hold_their_own_examples_anew_each_time() -> None:
    data = units_of([1, 2, 7, 3, 9] * 6)
    source = PoissonSamples(CONFIG, data, CPU)
    module = nn.Linear(5, CLASSES)
    group = Engine(module, data, CONFIG, device=CPU)._group(SEEDS, range(4))
    met: dict[int, set[frozenset[int]]] = {}
    sizes = 0
    for block in source.blocks(group, 200):
        assert isinstance(block, BlockOfUnits)
        for step, model in np.ndindex(block.sizes.shape):
            sizes += int(block.sizes[step, model])
            for place in range(block.indices.shape[2]):
                count = int(block.counts[step, model, place])
                if place >= block.sizes[step, model]:
                    assert count == 0
                    continue
                unit, rows = int(block.indices[step, model, place]), block.rows[step, model, place]
                start, end = data.starts[unit], data.starts[unit + 1]  # pyright: ignore[reportOptionalSubscript]
                assert count == min(PLACES, end - start)
                assert ((rows >= start) & (rows < end)).all()
                assert len(set(rows[:count].tolist())) == count
                assert (rows[count:] == rows[0]).all()
                met.setdefault(unit, set()).add(frozenset(rows[:count].tolist()))
    # 24,000 coins of probability .3: the binomial is beyond 5 standard deviations (355) less than once in a million.
    assert abs(sizes - 7200) < 355
    assert all(
        len(met[unit]) == (1 if size <= PLACES else math.comb(size, PLACES)) for unit, size in enumerate([1, 2, 7])
    )


# --- training ---------------------------------------------------------------------------------------------------------


def test_units_of_one_example_are_added_up_as_examples_are_beside_larger_ones() -> None:
    """Their arithmetic must not depend on whether there are larger units: a data set may differ by one of those."""
    data = units_of([1, 4, 1, 2, 1, 1])
    machine = Engine(nn.Linear(5, CLASSES), data, CONFIG, device=CPU)
    table: Any = machine._source.table(1)
    assert isinstance(table, _UnitSet)
    weights = machine._group(SEEDS, range(1)).start
    rows, counts = rows_of_units(np.random.default_rng(0), np.asarray(data.starts), np.arange(6), PLACES)
    ordinary = machine.network.clipped_sums(
        weights,
        torch.from_numpy(data.inputs)[None, [0, 5, 8, 9]],
        torch.from_numpy(data.labels)[None, [0, 5, 8, 9]],
        torch.ones(1, 4, dtype=torch.bool),
        0.5,
    )
    larger = np.array([1, 3])
    of_several, _ = reference_sums_of_units(
        nn.Linear(5, CLASSES), weights, torch.from_numpy(data.inputs[rows[larger]])[None],
        torch.from_numpy(data.labels[rows[larger]])[None], torch.from_numpy(counts[larger])[None].long(), 0.5,
    )  # fmt: skip
    block = BlockOfUnits(
        np.arange(6, dtype=np.int32)[None, None], np.array([[6]], np.int32), 0,
        rows=rows[None, None], counts=counts[None, None],
    )  # fmt: skip
    (entries,) = table.entries(block)
    sums = engine_module._sums(
        machine.network, machine._rule, table, weights, entries, torch.tensor([6]), machine.examples_at_a_time(1)
    )
    assert_near(sums, ordinary.double() + of_several)
    found, present = table.look_up(*entries), table.look_up(*entries)[1].present
    assert present is not None
    assert found[1].shares is None
    assert found[1].inputs.shape == (1, 4, 5)
    assert torch.equal(machine.network.clipped_sums(weights, found[1].inputs, found[1].labels, present, 0.5), ordinary)


NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(5, CLASSES), (5,)),
    "lenet5": ("lenet5", (1, 28, 28)),
    "general": (lambda: nn.Sequential(nn.Linear(5, 6), nn.PReLU(), nn.Linear(6, CLASSES)), (5,)),
}


@pytest.mark.parametrize("keep", [None, 0.5])
@pytest.mark.parametrize("name", NETWORKS)
def test_units_of_one_example_give_the_votes_of_examples(name: str, keep: float | None) -> None:
    model, shape = NETWORKS[name]
    random = np.random.default_rng(0)
    x, y = random.normal(size=(40, *shape)).astype(np.float32), random.integers(0, CLASSES, 40)
    votes = [
        train(
            Examples(x, y, units=units), x[:10], model=model, root_seed=bytes(32), device="cpu",
            config=TrainConfig(5, 1.0, 0.2, 5, 0.5, 1.0, num_train=40, classes=CLASSES, keep=keep, unit_rows=rows),
        )
        for units, rows in ((None, None), (Units.of(range(40)), 8), (Units.of(range(40)), None))
    ]  # fmt: skip
    for each in votes[1:]:
        assert np.array_equal(votes[0].counts, each.counts)
        assert np.array_equal(votes[0].score_sums, each.score_sums)  # pyright: ignore[reportArgumentType]
        assert votes[0].mechanism == each.mechanism


@pytest.mark.parametrize("sizes", [[3] * 12, [1, 5, 2, 9] * 3, [1] * 11 + [4]])
@pytest.mark.parametrize("name", ["linear", "general"])
def test_steps_are_those_of_a_slow_loop(name: str, sizes: list[int]) -> None:
    """The whole of training with almost no noise, against one unit at a time in double precision."""
    make, _ = NETWORKS[name]
    module, data = make(), units_of(sizes)
    config = TrainConfig(
        3, 1e-6, 0.4, 4, 0.3, 0.5, num_train=12, classes=CLASSES, divisor=4.8, score_bins=0, unit_rows=PLACES
    )
    machine = Engine(module, data, config, device=CPU)
    group = machine._group(SEEDS, range(3))
    found = machine.train(SEEDS, range(3))
    weights = group.start.double()
    inputs, labels = torch.from_numpy(data.inputs), torch.from_numpy(data.labels)
    for block in machine._source.blocks(group, 4):
        assert isinstance(block, BlockOfUnits)
        for step in range(len(block)):
            rows, counts = (torch.from_numpy(each[step]).long() for each in (block.rows, block.counts))
            sums, _ = reference_sums_of_units(module, weights.float(), inputs[rows], labels[rows], counts, 0.3)
            weights = weights - 0.5 * sums / 4.8
    torch.testing.assert_close(found.double(), weights, rtol=1e-3, atol=1e-4)


def test_where_the_data_lies_and_the_pieces_of_a_batch_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    data = units_of([1, 5, 2, 9, 1, 1, 4, 3] * 8)
    config = TrainConfig(4, 1.0, 0.6, 4, 0.3, 0.5, num_train=64, classes=CLASSES, divisor=30.0, unit_rows=PLACES)
    expected = Engine(nn.Linear(5, CLASSES), data, config, device=CPU).train(SEEDS, range(4))
    with monkeypatch.context() as patch:
        patch.setattr("mithridate.training.batch_source.has_room", lambda inputs, device: False)
        sent = Engine(nn.Linear(5, CLASSES), data, config, device=CPU)
        assert isinstance(sent._source.table(1), Sent)
        torch.testing.assert_close(sent.train(SEEDS, range(4)), expected)
    machine = Engine(nn.Linear(5, CLASSES), data, config, device=CPU)
    monkeypatch.setattr(machine, "examples_at_a_time", lambda models: 7)
    torch.testing.assert_close(machine.train(SEEDS, range(4)), expected, rtol=1e-4, atol=1e-6)


# --- aligned canaries -------------------------------------------------------------------------------------------------

# What separates D' from D: units whose mean gradient has the clipping norm, all along one direction.
CANARIES, NULL_UNITS, ROWS_OF_A_CANARY = 3, 20, 50
NORM = 1e-3


def directions(sizes_of_canaries: list[int], instances: int) -> tuple[npt.NDArray[np.float64], TrainConfig]:
    """The sum of all updates of every instance along the canaries' gradient, in units of the clipping norm."""
    rows = sum(sizes_of_canaries)
    inputs = np.zeros((NULL_UNITS + rows, 1), np.float32)
    inputs[NULL_UNITS:] = 1.0  # gradients of about .7, far beyond the clipping norm, and 0 for the others
    labels = np.zeros(len(inputs), np.int64)
    starts = np.cumsum([0, *[1] * NULL_UNITS, *sizes_of_canaries])
    config = TrainConfig(
        instances, 1.5, 0.3, 12, NORM, 1.0, num_train=23, classes=2, divisor=1.0, score_bins=0, unit_rows=8
    )
    machine = Engine(lambda: nn.Linear(1, 2, bias=False), Dataset(inputs, labels, starts), config, device=CPU)
    group = machine._group(SEEDS, range(instances))
    moved = (machine.train(SEEDS, range(instances)).double() - group.start.double()).numpy() / NORM
    return (moved[:, 0] - moved[:, 1]) / math.sqrt(2), config


def canary_law(config: TrainConfig, canaries: int) -> Any:
    """The distribution function of Binomial(canaries x steps, q) + N(0, steps sigma^2)."""
    trials = canaries * config.steps
    law = stats.binom.pmf(np.arange(trials + 1), trials, config.sample_rate)
    spread = config.noise_multiplier * math.sqrt(config.steps)
    return lambda x: (law * stats.norm.cdf((np.asarray(x)[..., None] - np.arange(trials + 1)) / spread)).sum(axis=-1)


def test_units_full_of_canaries_add_what_so_many_examples_could_and_no_more() -> None:
    """Kolmogorov-Smirnov on 2,000 instances, with the norm as clipping leaves it; false alarm once in a million."""
    found, config = directions([ROWS_OF_A_CANARY] * CANARIES, 2000)
    # Clipping is .2% short of the norm, and weights have 24 bits: both far below what 2,000 instances can tell.
    assert stats.kstest(found, canary_law(config, CANARIES)).pvalue > 1e-6
    # The positive control: were every example clipped by itself, it would be the law of many more canaries.
    assert stats.kstest(found, canary_law(config, CANARIES * 8)).pvalue < 1e-9


def test_no_threshold_on_canaries_beats_the_curve_of_as_many_units() -> None:
    """Hoeffding's bound at 1e-6 for each of the comparisons, whose number is 6: false alarm below 1e-5."""
    instances = 2000
    poisoned, config = directions([ROWS_OF_A_CANARY] * CANARIES, instances)
    curve = composed_curve(config.noise_multiplier, config.sample_rate, config.steps, CANARIES, 0)
    slack = math.sqrt(math.log(1e6) / (2 * instances))
    spread = config.noise_multiplier * math.sqrt(config.steps)
    for event in (0.01, 0.05, 0.1, 0.3, 0.5, 0.8):
        threshold = stats.norm.isf(event) * spread
        share = float(np.mean(poisoned > threshold))
        assert share - slack <= float(curve(np.array([event]))[0])
        # Not an empty claim: what they reach is what the law says.
        assert abs(share - float(1 - canary_law(config, CANARIES)(threshold))) <= slack


# --- the defence ------------------------------------------------------------------------------------------------------


def many_rows(count: int = 40) -> Examples:
    random = np.random.default_rng(1)
    x = random.normal(size=(400, 3))
    return Examples(x, (x[:, 0] > 0).astype(np.int64), units=Units.of([f"v{n % count}" for n in range(400)], "vendor"))


def test_the_number_of_examples_is_no_constant_of_a_private_ensemble() -> None:
    examples = many_rows()
    assert examples.units is not None
    chosen = defence("fdp", classes=2, instances=20)
    order = chosen.order(examples, examples.x[:5])
    config = order.defence.config
    assert (config.unit_rows, order.facts.num_train, order.count) == (16, 34, 40)
    resolved = config.resolve(num_train=order.count, classes=2)
    assert resolved.divisor == pytest.approx(config.sample_rate * 34)
    declared = defence("fdp", classes=2, instances=20, num_units=40).order(examples, examples.x[:5])
    assert declared.defence.config.num_train == 40
    grown = Examples(
        np.concatenate([examples.x, np.ones((100_000, 3))]),
        np.append(np.asarray(examples.y), np.zeros(100_000, np.int64)),
        units=Units.of([*(examples.units.names[n] for n in examples.units.of_example), *["v0"] * 100_000], "vendor"),
    )
    again = chosen.order(grown, examples.x[:5])
    assert again.defence == order.defence
    votes = again.run()
    assert votes.counts.sum() == 5 * 20


def test_a_cap_below_the_places_of_a_unit_lowers_them() -> None:
    examples = many_rows()
    order = defence("fdp", classes=2, instances=20, unit_cap=3).order(examples, examples.x[:5])
    assert order.defence.config.unit_rows == 3
    with pytest.raises(ConfigError, match="unit_rows"):
        defence("fdp", unit_rows=0)
    with pytest.raises(ConfigError, match="declares none"):
        defence("fdp", classes=2, unit_rows=3).order((examples.x, examples.y), examples.x[:5])


def test_a_configuration_by_hand_has_the_same_default() -> None:
    examples = many_rows()
    config = TrainConfig(5, 1.0, 0.2, 5, 0.5, 1.0, num_train=40, classes=2)
    votes = train(examples, examples.x[:3], model="linear", config=config, device="cpu")
    assert votes.unit == Unit("vendor", 40)
    assert votes.recipe is not None
    assert votes.recipe["config"]["unit_rows"] == 16


def test_recipes_name_the_places_of_a_unit_only_where_there_are_units() -> None:
    assert "unit_rows" not in TrainConfig(5, 1.0, 0.2, 5, 0.5, 1.0).to_dict()
    assert recipe_from_dict(CONFIG.to_dict()) == CONFIG


def test_a_run_of_units_resumes_and_predicts(tmp_path: Any) -> None:
    examples, chosen = many_rows(), defence("fdp", classes=2, instances=30, seconds=1.0)
    assert examples.y is not None

    def trained(training: Examples) -> Votes:
        asked = (examples.x[:9], np.asarray(examples.y)[:9])
        return chosen.train(training, asked, run_dir=tmp_path / "run", device="cpu", keep_models=True)

    votes = trained(examples)
    assert votes.recipe is not None
    assert votes.recipe["config"]["unit_rows"] == 16
    assert np.array_equal(votes.counts, trained(examples).counts)
    asked = chosen.predict(tmp_path / "run", Examples(examples.x[:9], None))
    assert asked.unit == votes.unit == Unit("vendor", 40)
    assert np.array_equal(asked.counts, votes.counts)
    with pytest.raises(ConfigError):
        trained(Examples(examples.x, examples.y, units=Units.of([f"v{n % 41}" for n in range(400)], "vendor")))


# --- the loop of a GPU, without its graphs ----------------------------------------------------------------------------


@pytest.mark.parametrize("has_room", [True, False])
@pytest.mark.parametrize(("sizes", "rate"), [([2] * 900, 0.3), ([1, 1, 3] * 300, 0.3), ([1] * 63 + [2], 0.6)])
def test_replayed_steps_see_nothing_that_wider_batches_left(
    sizes: list[int], rate: float, has_room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of the loop with graphs have places of fixed widths, in which more stands than was written last."""
    data, steps = units_of(sizes), 40
    config = TrainConfig(
        2, 1e-3, rate, steps, 0.3, 0.5, num_train=len(sizes), classes=CLASSES, divisor=30.0, unit_rows=PLACES
    )
    plain = Engine(nn.Linear(5, CLASSES), data, config, device=CPU)
    group = plain._group(SEEDS, range(2))
    most = 10**6

    def sums_of(machine: Engine, *given: Tensor) -> Tensor:
        *entries, sizes = given
        table = machine._source.table(2)
        return engine_module._sums(machine.network, machine._rule, table, group.start, entries, sizes, most).double()

    expected = [
        sums_of(plain, *entries, counts) for entries, counts in plain._batches(group, steps, plain._source.table(2))
    ]
    monkeypatch.setattr("mithridate.training.batch_source.has_room", lambda inputs, device: has_room)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    machine = Engine(nn.Linear(5, CLASSES), data, config, device=CPU)
    found: list[Tensor] = []
    replayed = ReplayedStep(
        lambda *given: found.append(sums_of(machine, *given)), 2, CPU, machine._source.table(2).entries
    )
    replayed._can_be_captured = False
    for block in machine._source.blocks(group, steps):
        replayed.run(block)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    # Nor does what is beyond the size of a batch count, whatever stands there.
    table = machine._source.table(2)
    entries, counts = next(iter(machine._batches(group, 1, table)))
    wider = [torch.cat([each, each[:, :1].expand(-1, 3, *each.shape[2:])], dim=1) for each in entries]
    torch.testing.assert_close(sums_of(machine, *wider, counts), expected[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sizes", [[1] * 7 + [4], [1] * 63 + [2], [3, 1]])
def test_units_of_one_example_that_outnumber_larger_ones_are_sent_whole(
    sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = units_of(sizes * 8)
    config = TrainConfig(4, 1e-3, 0.6, 4, 0.3, 0.5, num_train=64, classes=CLASSES, divisor=30.0, unit_rows=PLACES)
    expected = Engine(nn.Linear(5, CLASSES), data, config, device=CPU).train(SEEDS, range(4))
    monkeypatch.setattr("mithridate.training.batch_source.has_room", lambda inputs, device: False)
    sent = Engine(nn.Linear(5, CLASSES), data, config, device=CPU)
    assert isinstance(sent._source.table(1), Sent)
    torch.testing.assert_close(sent.train(SEEDS, range(4)), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("constants", [{"private": True}, {"instances": 20}, {"model": "mlp", "instances": 5}])
@pytest.mark.parametrize("declared", [{}, {"num_units": 40}, {"unit_cap": 4}])
def test_the_private_method_that_auto_takes_knows_units(constants: dict[str, Any], declared: dict[str, int]) -> None:
    examples = many_rows()
    asked = {**constants, **declared, "classes": 2}
    order = compose(named("auto", asked, private=bool(asked.pop("private", False))), examples, examples.x[:4])
    assert order.defence.config.unit_rows == (4 if "unit_cap" in declared else 16)
    assert replace(order, choice=replace(order.choice, defence=replace(order.defence, instances=3))).run().unit == Unit(
        "vendor", 40
    )


# --- whole networks in compiled code ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("units", "places"), [(3, 1), (4, 5), (3, 16), (2, 37), (140, 2)])
def test_compiled_means_are_those_of_layer_by_layer(units: int, places: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module, shape = ZOO["model-lenet5"]
    network = fast_network(module, shape)
    if network._compiled(CPU, units) is None:
        pytest.skip("there is no compiler")
    weights = random_weights(module, 2, seed=1)
    inputs = random_inputs(module, (2, units, places, *shape), 3)
    generator = torch.Generator().manual_seed(4)
    labels = torch.randint(CLASSES, (2, units, places), generator=generator)
    counts = torch.randint(0, places + 1, (2, units), generator=generator)
    shares = torch.where(torch.arange(places) < counts.unsqueeze(2), 1.0 / counts.clamp_min(1).unsqueeze(2), 0.0)
    present = torch.rand(2, units, generator=generator) < 0.9
    network.loss_weights = torch.linspace(0.5, 2.0, CLASSES)
    bounds = (0.05, NO_CLIPPING)
    compiled = [network.clipped_sums(weights, inputs, labels, present, bound, shares=shares) for bound in bounds]
    monkeypatch.setattr(network, "_compiled", lambda device, batch: None)
    plain = [network.clipped_sums(weights, inputs, labels, present, bound, shares=shares) for bound in bounds]
    for one, other in zip(compiled, plain, strict=True):
        assert one.dtype == other.dtype == (torch.float64 if units > 128 else torch.float32)
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_broken_example_leaves_every_bit_of_other_units_in_compiled_code(value: float) -> None:
    module, shape = ZOO["model-lenet5"]
    network = fast_network(module, shape)
    weights = random_weights(module, 1, seed=1)
    inputs, labels, counts = random_units(module, shape, 1, 5, seed=3)
    broken, without = inputs.clone(), counts > 0
    broken[0, 0, 1] = value
    without[0, 0] = False
    expected = network.clipped_sums(weights, inputs, labels, without, 0.5, shares=shares_of(counts))
    found = network.clipped_sums(weights, broken, labels, counts > 0, 0.5, shares=shares_of(counts))
    assert torch.equal(found, expected)


def test_labels_and_shapes_that_do_not_fit_are_refused_by_compiled_code() -> None:
    module, shape = ZOO["model-lenet5"]
    network = fast_network(module, shape)
    if network._compiled(CPU, 2) is None:
        pytest.skip("there is no compiler")
    weights = random_weights(module, 1, seed=1)
    inputs, labels, counts = random_units(module, shape, 1, 2, seed=3)
    shares = shares_of(counts)
    with pytest.raises(ValueError, match="labels from 0 to"):
        network.clipped_sums(weights, inputs, labels + CLASSES, counts > 0, 0.5, shares=shares)
    with pytest.raises(ValueError, match="do not fit"):
        network.clipped_sums(weights, inputs, labels[:, :, :1], counts > 0, 0.5, shares=shares)
