"""Poisson sampling against its law: sizes, inclusion, independence.

Every statistical test has a fixed seed and a threshold at which a right sampler fails with probability below 1e-8 (so
below 1e-6 all together). That each would notice a wrong sampler is checked on samplers with a plausible bug:
`test_wrong_samplers_are_noticed`.
"""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mithridate.training import batch_source
from mithridate.training.batch_source import Block, blocks, sample_batches
from mithridate.training.randomness import Seeds

# A right sampler fails a test with at most this probability.
LEVEL = 1e-8

# incidence: instances x steps x examples, True where an example is in a batch.
Incidence = npt.NDArray[np.bool_]
Sampler = Callable[[np.random.Generator, int, float, int], Incidence]


def streams(count: int, seed: int = 0) -> list[np.random.Generator]:
    seeds = Seeds.of(seed.to_bytes(32, "little"))
    return [seeds.generator(at, "batches") for at in range(count)]


def incidence_of_batches(random: np.random.Generator, examples: int, rate: float, steps: int) -> Incidence:
    """Of one instance, steps x examples; refuses indices that are out of range, not sorted, or there twice."""
    batches = sample_batches(random, examples, rate, steps)
    result = np.zeros((steps, examples), dtype=bool)
    for step in range(steps):
        indices = batches[step]
        assert np.all(np.diff(indices) > 0)
        result[step, indices] = True
    return result


def incidence_of_blocks(found: Iterator[Block], instances: int, examples: int) -> Incidence:
    rows = []
    for block in found:
        for indices, sizes in block:
            row = np.zeros((instances, examples), dtype=bool)
            for at, size in enumerate(sizes):
                chosen = indices[at, :size]
                assert len(set(chosen.tolist())) == size
                row[at, chosen] = True
            rows.append(row)
    return np.stack(rows, axis=1)


def coins(random: np.random.Generator, examples: int, rate: float, steps: int) -> Incidence:
    """The slow and obvious twin: a coin for every example in every step."""
    return random.random((steps, examples)) < rate


# --- tests of the law: each gives a p-value ---------------------------------------------------------------------------


def p_of_counts(observed: npt.NDArray[np.float64], expected: npt.NDArray[np.float64]) -> float:
    """Chi-square with neighbours pooled until each expectation is at least 10, so that its law is near enough."""
    groups: list[tuple[float, float]] = []
    seen = wanted = 0.0
    for one, two in zip(observed, expected, strict=True):
        seen, wanted = seen + one, wanted + two
        if wanted >= 10:
            groups.append((seen, wanted))
            seen = wanted = 0.0
    groups[-1] = (groups[-1][0] + seen, groups[-1][1] + wanted)
    table = np.array(groups)
    return float(stats.chi2.sf(((table[:, 0] - table[:, 1]) ** 2 / table[:, 1]).sum(), len(table) - 1))


def p_of_sizes(incidence: Incidence, rate: float) -> float:
    """Batch sizes are Binomial(n, q)."""
    sizes = incidence.sum(axis=-1).ravel()
    examples = incidence.shape[-1]
    observed = np.bincount(sizes, minlength=examples + 1).astype(np.float64)
    return p_of_counts(observed, len(sizes) * stats.binom.pmf(np.arange(examples + 1), examples, rate))


def p_of_inclusion(incidence: Incidence, rate: float) -> float:
    """Every example is in a batch with probability q: the counts are Binomial(draws, q), independent."""
    counts = incidence.reshape(-1, incidence.shape[-1]).sum(axis=0)
    draws = incidence.size // incidence.shape[-1]
    statistic = ((counts - draws * rate) ** 2 / (draws * rate * (1 - rate))).sum()
    return float(2 * min(stats.chi2.sf(statistic, len(counts)), stats.chi2.cdf(statistic, len(counts))))


def p_of_pairs(one: Incidence, two: Incidence, rate: float) -> float:
    """Two sets of coins, independent of each other: both show heads with probability q^2."""
    both = int((one & two).sum())
    return float(2 * min(stats.binom.sf(both - 1, one.size, rate**2), stats.binom.cdf(both, one.size, rate**2), 0.5))


def p_values(incidence: Incidence, rate: float) -> dict[str, float]:
    """Of all tests of a sampler: incidence is instances x steps x examples."""
    result = {"sizes": p_of_sizes(incidence, rate), "inclusion": p_of_inclusion(incidence, rate)}
    for lag in (1, 2, 3, 7):
        result[f"examples {lag} apart"] = p_of_pairs(incidence[..., lag:], incidence[..., :-lag], rate)
    # The last examples of a step and the first of the next are neighbours in the sequence of coins.
    result["steps"] = p_of_pairs(incidence[:, 1:], incidence[:, :-1], rate)
    result["end of a step"] = p_of_pairs(incidence[:, 1:, :5], incidence[:, :-1, -5:], rate)
    result["instances"] = p_of_pairs(incidence[1:], incidence[:-1], rate)
    result["steps of the next instance"] = p_of_pairs(incidence[1:, 1:], incidence[:-1, :-1], rate)
    return result


SETTINGS = [(40, 0.1), (7, 0.5), (30, 0.9), (200, 0.01)]


@pytest.mark.parametrize(("examples", "rate"), SETTINGS)
def test_sampled_batches_have_the_law_of_coins(examples: int, rate: float) -> None:
    incidence = np.stack([incidence_of_batches(stream, examples, rate, 400) for stream in streams(20)])
    assert min(p_values(incidence, rate).values()) > LEVEL


@pytest.mark.parametrize(("examples", "rate"), SETTINGS)
def test_blocks_have_the_law_of_coins(examples: int, rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    # Blocks of a few steps, so that neighbouring steps lie in one block and in two.
    monkeypatch.setattr(batch_source, "_DRAWS_PER_BLOCK", 5 * (examples * rate + 1))
    incidence = incidence_of_blocks(blocks(streams(20), examples, rate, 400), 20, examples)
    assert min(p_values(incidence, rate).values()) > LEVEL


def test_the_slow_twin_passes_the_same_tests() -> None:
    # If it did not, the tests would be wrong.
    incidence = np.stack([coins(stream, 40, 0.1, 400) for stream in streams(20)])
    assert min(p_values(incidence, 0.1).values()) > LEVEL


def test_sizes_agree_with_the_slow_twin() -> None:
    # Two samples from one law: a chi-square test of homogeneity that knows nothing of the binomial law.
    steps, examples, rate = 4000, 60, 0.05
    ours = sample_batches(streams(1)[0], examples, rate, steps).sizes
    theirs = coins(np.random.default_rng(1), examples, rate, steps).sum(axis=1)
    table = np.stack([np.bincount(np.minimum(sizes, 8), minlength=9) for sizes in (ours, theirs)])
    assert float(stats.chi2_contingency(table).pvalue) > LEVEL  # pyright: ignore[reportAttributeAccessIssue]


# --- plausible bugs ---------------------------------------------------------------------------------------------------


def fixed_size(random: np.random.Generator, examples: int, rate: float, steps: int) -> Incidence:
    result = np.zeros((steps, examples), dtype=bool)
    for row in result:
        row[random.choice(examples, round(examples * rate), replace=False)] = True
    return result


def with_replacement(random: np.random.Generator, examples: int, rate: float, steps: int) -> Incidence:
    result = np.zeros((steps, examples), dtype=bool)
    for row in result:
        row[random.integers(examples, size=random.binomial(examples, rate))] = True
    return result


def by_gaps(first: int, shift: int) -> Sampler:
    """Gaps as in the code, with the first position or every gap off by one."""

    def sample(random: np.random.Generator, examples: int, rate: float, steps: int) -> Incidence:
        count = int(3 * examples * steps * rate) + 50
        positions = first + np.cumsum(random.geometric(rate, count) + shift)
        result = np.zeros(steps * examples, dtype=bool)
        result[positions[(positions >= 0) & (positions < steps * examples)]] = True
        return result.reshape(steps, examples)

    return sample


def poisson_process(random: np.random.Generator, examples: int, rate: float, steps: int) -> Incidence:
    """Gaps by -q instead of log(1 - q): heads come at the rate 1 - e^-q."""
    return by_gaps(-1, 0)(random, examples, float(-np.expm1(-rate)), steps)


def restarting(random: np.random.Generator, examples: int, rate: float, steps: int) -> Incidence:
    """Every step starts with a head's gap from position 0: example 0 is never drawn."""
    return np.concatenate([by_gaps(0, 0)(random, examples, rate, 1) for _ in range(steps)])


def same_batch_twice(random: np.random.Generator, examples: int, rate: float, steps: int) -> Incidence:
    return np.repeat(coins(random, examples, rate, -(-steps // 2)), 2, axis=0)[:steps]


def epochs(random: np.random.Generator, examples: int, rate: float, steps: int) -> Incidence:
    """A shuffled pass over the data, cut into batches."""
    length = max(1, round(1 / rate))
    rows = []
    while len(rows) < steps:
        place = random.permutation(examples) % length
        rows.extend(place == at for at in range(length))
    return np.stack(rows[:steps])


def never_the_last(random: np.random.Generator, examples: int, rate: float, steps: int) -> Incidence:
    result = coins(random, examples, rate, steps)
    result[:, -1] = False
    return result


def too_often(random: np.random.Generator, examples: int, rate: float, steps: int) -> Incidence:
    return coins(random, examples, 1.05 * rate, steps)


WRONG: dict[str, Sampler] = {
    "fixed size": fixed_size,
    "with replacement": with_replacement,
    "gaps one too long": by_gaps(-1, 1),
    "gaps of a Poisson process": poisson_process,
    "restarting at the second example": restarting,
    "the same batch twice": same_batch_twice,
    "epochs": epochs,
    "never the last": never_the_last,
    "five percent too often": too_often,
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_samplers_are_noticed(name: str) -> None:
    incidence = np.stack([WRONG[name](stream, 40, 0.1, 400) for stream in streams(20)])
    assert min(p_values(incidence, 0.1).values()) < LEVEL


def test_instances_that_share_a_stream_are_noticed() -> None:
    incidence = np.stack([coins(np.random.default_rng(0), 40, 0.1, 400)] * 2)
    assert p_values(incidence, 0.1)["instances"] < LEVEL


# --- edges ------------------------------------------------------------------------------------------------------------


def test_rate_one_takes_everything() -> None:
    batches = sample_batches(streams(1)[0], 6, 1.0, 3)
    assert [batches[step].tolist() for step in range(3)] == [[0, 1, 2, 3, 4, 5]] * 3


def test_the_largest_rate_below_one() -> None:
    # Of 6,000 coins none shows tails except with probability 7e-13.
    assert incidence_of_batches(streams(1)[0], 6, float(np.nextafter(1, 0)), 1000).all()


def test_one_example_is_a_coin() -> None:
    steps, rate = 20_000, 0.3
    sizes = sample_batches(streams(1)[0], 1, rate, steps).sizes
    assert set(sizes.tolist()) == {0, 1}
    assert stats.binomtest(int(sizes.sum()), steps, rate).pvalue > LEVEL
    # In a row as often as coins are: a run test on neighbours.
    assert stats.binomtest(int((sizes[1:] & sizes[:-1]).sum()), steps - 1, rate**2).pvalue > 1e-12


@pytest.mark.parametrize("rate", [1e-9, 1e-12, 1e-300])
def test_tiny_rates_give_empty_batches(rate: float) -> None:
    # One head among 2e6 coins has probability 2e-3 at most at 1e-9; the seed is fixed, and it is not there.
    batches = sample_batches(streams(1)[0], 1000, rate, 2000)
    assert len(batches) == 2000
    assert len(batches.indices) == 0
    assert batches.sizes.tolist() == [0] * 2000


def test_no_examples() -> None:
    batches = sample_batches(streams(1)[0], 0, 0.5, 4)
    assert batches.sizes.tolist() == [0, 0, 0, 0]


def test_whole_blocks_may_be_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_source, "_DRAWS_PER_BLOCK", 3)
    found = list(blocks(streams(2), 100, 0.0005, 600))
    assert sum(len(block) for block in found) == 600
    empty = [block for block in found if block.sizes.sum() == 0]
    assert empty
    for block in empty:
        assert [(indices.shape, sizes.tolist()) for indices, sizes in block] == [((2, 0), [0, 0])] * len(block)
    # The heads that there are: Binomial(120000, 0.0005), mean 60.
    heads = sum(int(block.sizes.sum()) for block in found)
    assert stats.binomtest(heads, 120_000, 0.0005).pvalue > LEVEL


def test_rare_heads_are_where_they_should_be() -> None:
    # At a rate of 1e-5 the gaps are long: 200 x 50,000 coins, uniform over all positions.
    heads = np.concatenate([sample_batches(stream, 50_000, 1e-5, 200).indices for stream in streams(20)])
    assert stats.binomtest(len(heads), 20 * 200 * 50_000, 1e-5).pvalue > LEVEL
    observed = np.bincount(heads // 5000, minlength=10).astype(np.float64)
    assert p_of_counts(observed, np.full(10, len(heads) / 10)) > LEVEL


@settings(max_examples=60)
@given(
    examples=st.integers(0, 50),
    rate=st.floats(1e-6, 1.0),
    steps=st.integers(1, 30),
    seed=st.integers(0, 1000),
)
def test_batches_are_sets_of_examples(examples: int, rate: float, steps: int, seed: int) -> None:
    batches = sample_batches(streams(1, seed)[0], examples, rate, steps)
    assert len(batches) == steps
    assert batches.sizes.sum() == len(batches.indices)
    for step in range(steps):
        assert np.all(np.diff(batches[step]) > 0)
        assert np.all((batches[step] >= 0) & (batches[step] < examples))


# --- parts of the data ------------------------------------------------------------------------------------------------

KEEP, RATE, EXAMPLES, STEPS, INSTANCES = 0.4, 0.3, 30, 60, 300


@pytest.fixture(scope="module")
def subsampled() -> Incidence:
    return incidence_of_blocks(blocks(streams(INSTANCES, 5), EXAMPLES, RATE, STEPS, KEEP), INSTANCES, EXAMPLES)


def seen_in(incidence: Incidence) -> Incidence:
    """Which examples an instance ever saw, instances x examples."""
    return incidence.max(axis=1)


def test_each_instance_keeps_one_part_with_the_law_of_coins(subsampled: Incidence) -> None:
    # In 60 steps at rate 0.3 a kept example is never drawn with probability 0.7^60 = 5e-10: 300 x 30 x 0.4 of them,
    # 2e-6 in all, so what was seen is the part itself. (A missing one would change a p-value little.)
    parts = seen_in(subsampled)
    assert p_of_sizes(parts, KEEP) > LEVEL
    assert p_of_inclusion(parts[:, None], KEEP) > LEVEL
    assert p_of_pairs(parts[:, 1:], parts[:, :-1], KEEP) > LEVEL
    assert p_of_pairs(parts[1:], parts[:-1], KEEP) > LEVEL


def test_the_part_is_fixed_for_all_steps(subsampled: Incidence) -> None:
    # Halves of training see the same part: a part drawn anew would show examples of 0.4 x 0.3 each step, all of them.
    early, late = seen_in(subsampled[:, :30]), seen_in(subsampled[:, 30:])
    # A kept example is missed in one half with probability 2 x 0.7^30 = 4.5e-5: of 3,600 fewer than 10, but for 1e-13.
    assert int((early != late).sum()) < 10
    assert 0.3 < seen_in(subsampled).mean() < 0.5


def test_within_the_part_batches_have_the_law_of_coins(subsampled: Incidence) -> None:
    parts = seen_in(subsampled)
    kept = [subsampled[at][:, parts[at]] for at in range(INSTANCES)]
    heads, coins_thrown = sum(int(rows.sum()) for rows in kept), sum(rows.size for rows in kept)
    assert stats.binomtest(heads, coins_thrown, RATE).pvalue > LEVEL
    # Sizes: standardised by their own part, the sum of squares has a chi-square law but for the fourth moment of a
    # binomial, which is smaller than that of a normal: the two-sided threshold is conservative.
    squares = np.concatenate(
        [(rows.sum(axis=1) - rows.shape[1] * RATE) ** 2 / max(rows.shape[1] * RATE * (1 - RATE), 1e-9) for rows in kept]
    )
    total, count = float(squares.sum()), len(squares)
    assert 2 * min(stats.chi2.sf(total, count), stats.chi2.cdf(total, count)) > LEVEL
    # Neighbouring steps of one instance, and neighbouring kept examples.
    both = sum(int((rows[1:] & rows[:-1]).sum()) for rows in kept)
    assert stats.binomtest(both, sum(rows[1:].size for rows in kept), RATE**2).pvalue > LEVEL
    both = sum(int((rows[:, 1:] & rows[:, :-1]).sum()) for rows in kept)
    assert stats.binomtest(both, sum(rows[:, 1:].size for rows in kept), RATE**2).pvalue > LEVEL


def test_keeping_everything_or_next_to_nothing() -> None:
    everything = incidence_of_blocks(blocks(streams(3), 20, 1.0, 4, 1.0), 3, 20)
    assert everything.all()
    nothing = incidence_of_blocks(blocks(streams(3), 20, 1.0, 4, 1e-12), 3, 20)
    assert not nothing.any()


# --- what is in flight beside an instance changes nothing ------------------------------------------------------------


@pytest.mark.parametrize("keep", [None, 0.5])
def test_draws_of_an_instance_are_the_same_alone_and_beside_others(keep: float | None) -> None:
    together = incidence_of_blocks(blocks(streams(5), 80, 0.05, 500, keep), 5, 80)
    for at in range(5):
        alone = incidence_of_blocks(blocks([streams(5)[at]], 80, 0.05, 500, keep), 1, 80)
        assert np.array_equal(alone[0], together[at])


def test_blocks_cover_all_steps_with_the_same_lengths_for_everybody() -> None:
    lengths = [[len(block) for block in blocks(streams(count), 3000, 0.1, 40)] for count in (1, 4)]
    assert lengths[0] == lengths[1]
    assert sum(lengths[0]) == 40
    assert len(lengths[0]) > 1


def test_padding_points_to_the_first_example_and_is_not_counted() -> None:
    for block in blocks(streams(6), 50, 0.1, 100):
        width = block.indices.shape[2]
        beyond = np.arange(width) >= block.sizes[..., None]
        assert (block.indices[beyond] == 0).all()
        assert width == block.sizes.max()
        for indices, sizes in block:
            assert indices.shape == (6, sizes.max())
