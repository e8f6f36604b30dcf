"""Bands on whole distributions: what they promise, by exact enumeration and simulation, and what they certify.

Simulations count the experiments in which any bound of a band is wrong, and fail when that count exceeds the quantile
which a band of exactly the promised failure probability exceeds with probability `FALSE_ALARM`. Seeds are fixed.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special, stats

from mithridate import SampledGaussian, Subsampled, Votes, certify, verify
from mithridate.accounting import ADP, FDP, RDP
from mithridate.auditing import distributions
from mithridate.core import bounds, score_bands
from mithridate.core.bounds import bound_scores, clopper_pearson_upper
from mithridate.core.mechanism import Private
from mithridate.core.score_bands import Band, FloatArray, chernoff_upper, grid_of, shares_of, steps_of_values
from mithridate.errors import ConfigError

FALSE_ALARM = 1e-6
GAUSSIAN = SampledGaussian(40.0, 1.0, 4)


def band_of(instances: int, tail: float) -> Band:
    return Band.of(instances, tail, clopper_pearson_upper)


def every_height(band: Band, instances: int) -> FloatArray:
    return band.heights[band.places(np.arange(instances + 1))]


def gaussian(shift: float) -> Callable[[FloatArray], FloatArray]:
    """The curve of a Gaussian without sampling."""
    return lambda x: special.ndtr(special.ndtri(np.clip(x, 0.0, 1.0)) + shift)


def summarise(scores: FloatArray, bins: int = 32) -> dict[str, Any]:
    """Scores (inputs x models x labels) as the arguments of `bound_scores`, by a plain histogram of each."""
    inputs, instances, labels = scores.shape
    edges = np.arange(bins + 1) / bins
    histograms = np.array([[np.histogram(row, edges)[0] for row in each.T] for each in scores])
    assert histograms.shape == (inputs, labels, bins)
    return {
        "sums": scores.sum(axis=1),
        "sumsqs": (scores**2).sum(axis=1),
        "histograms": histograms,
        "instances": instances,
    }


# --- the band ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("instances", [1, 2, 3, 10, 1000, 50_000, 3_000_000])
def test_the_grid_starts_at_zero_and_its_shares_are_at_most_all(instances: int) -> None:
    grid = grid_of(instances)
    assert grid[0] == 0
    assert (np.diff(grid) > 0).all()
    assert grid[-1] < instances
    assert len(grid) <= 2 * score_bands._COARSEST
    shares = shares_of(len(grid))
    assert (shares > 0).all()
    assert math.fsum(shares.tolist()) <= 1


@pytest.mark.parametrize("instances", [1, 2, 5, 9])
@pytest.mark.parametrize("tail", [0.5, 0.05, 1e-4])
def test_the_promise_for_few_models_is_checked_without_simulation(instances: int, tail: float) -> None:
    """Of uniform numbers, Pr[the (k + 1)-st largest is below 1 - U(k) for some k], by going from height to height."""
    heights = every_height(band_of(instances, tail), instances)[:-1]
    # The state is how many of them are in the upper part so far; it must be above k once the part is as large as U(k).
    alive, before = {0: 1.0}, 0.0
    for count, height in enumerate(heights.tolist()):
        chance, after = (height - before) / (1 - before), dict[int, float]()
        for (found, mass), more in product(alive.items(), range(instances + 1)):
            if found + more > count and found + more <= instances:
                gained = mass * float(stats.binom.pmf(more, instances - found, chance))
                after[found + more] = after.get(found + more, 0.0) + gained
        alive, before = after, height
    failure = 1 - sum(alive.values())
    assert failure <= tail + 1e-12
    assert failure >= tail / 4 or instances == 1  # not an empty promise


LAWS: dict[str, Callable[[np.random.Generator, tuple[int, int]], FloatArray]] = {
    "uniform": lambda rng, shape: rng.random(shape),
    "coin": lambda rng, shape: (rng.random(shape) < 0.3).astype(float),
    "unanimous": lambda rng, shape: np.full(shape, 0.25),
    "edges of bins": lambda rng, shape: rng.integers(0, 9, shape) / 8,
    "near zero": lambda rng, shape: rng.beta(0.1, 5, shape),
    "near one": lambda rng, shape: rng.beta(5, 0.1, shape),
    "rare": lambda rng, shape: np.where(rng.random(shape) < 0.01, 1.0, 0.001),
}


@pytest.mark.parametrize("instances", [20, 300])
@pytest.mark.parametrize("law", LAWS)
def test_the_band_holds_everywhere_at_once(law: str, instances: int) -> None:
    """At every t of a fine grid, edges included, at nominal 0.1; false alarm below 1e-6 for each case."""
    rng, runs, tail = np.random.default_rng(7), 3000, 0.1
    at = np.unique(np.concatenate([np.arange(129) / 128, np.linspace(0, 1, 97)]))
    # The law itself, from ten million draws for what has no closed form: good to 5e-4 at four deviations.
    reference = np.sort(LAWS[law](np.random.default_rng(8), (1, 10_000_000))[0])
    truth = 1 - np.searchsorted(reference, at, side="right") / len(reference)
    slack = 4 * np.sqrt(np.maximum(truth * (1 - truth), 1e-9) / len(reference))
    draws = np.sort(LAWS[law](rng, (runs, instances)), axis=1)
    heights = every_height(band_of(instances, tail), instances)
    above = instances - np.array([np.searchsorted(row, at, side="right") for row in draws])
    wrong = (heights[above] < truth - slack).any(axis=1).sum()
    assert wrong <= stats.binom.isf(FALSE_ALARM, runs, tail)
    assert wrong > 0 or law != "uniform"  # the promise is not an empty one


def test_it_is_better_than_the_inequality_of_massart_where_curves_are_steep() -> None:
    tail, instances = 5e-5, 1000
    heights = every_height(band_of(instances, tail), instances)
    massart = np.minimum(np.arange(instances + 1) / instances + math.sqrt(math.log(1 / tail) / (2 * instances)), 1)
    assert heights[0] < massart[0] / 6
    assert (heights[:120] < massart[:120]).all()
    assert (heights <= massart + 0.02).all()


# --- the mean ---------------------------------------------------------------------------------------------------------


@given(hits=st.integers(0, 300), instances=st.integers(1, 300), tail=st.floats(1e-9, 0.5))
def test_the_mean_is_the_largest_that_chernoff_does_not_reject(hits: int, instances: int, tail: float) -> None:
    mean = min(hits, instances) / instances
    (found,) = chernoff_upper(np.array([mean]), instances, tail)
    (other,) = distributions.mean_at_most(np.array([mean]), instances, tail)
    assert found >= mean
    assert found == pytest.approx(other, rel=1e-8, abs=1e-11)
    if mean < 1:
        exact = stats.beta.isf(tail, mean * instances + 1, instances - mean * instances)
        assert found >= exact * (1 - 1e-9)  # Clopper-Pearson, which needs scores of zero and one
    if found < 1:
        assert stats.entropy([mean, 1 - mean], [found, 1 - found]) >= math.log(1 / tail) / instances * (1 - 1e-6)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.floats(0.05, 3.0), st.floats(0.02, 1.2))
def test_cutting_off_is_the_worst_distribution_for_every_curve(seed: int, shift: float, share: float) -> None:
    """Against a general optimiser: all decreasing steps below the band, with a mean that is not larger."""
    rng = np.random.default_rng(seed)
    band = band_of(8, 0.3)
    lengths = rng.dirichlet(np.ones(len(band.heights)))
    mean = min(share * float(lengths @ band.heights), 1.0)
    found, curve = band.steps(lengths[None], np.array([mean])), gaussian(shift)
    ours = float(found.lengths[0] @ curve(band.heights) + found.cap_length[0] * curve(found.cap)[0])
    best = optimize.minimize(
        lambda steps: -float(lengths @ curve(steps)),
        np.minimum(band.heights, mean) * 0.9,
        bounds=[(1e-9, float(height)) for height in band.heights],
        constraints=[{"type": "ineq", "fun": lambda steps: mean - float(lengths @ steps)}],
    )
    assert ours >= -best.fun - 1e-7
    assert ours <= -best.fun + 1e-3
    assert float(found.mean[0]) <= mean * (1 + 1e-9) + 1e-12
    assert found.lengths.sum() + found.cap_length[0] == pytest.approx(1)


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 7, 200]))
def test_the_second_route_gives_the_same_steps(seed: int, instances: int) -> None:
    rng = np.random.default_rng(seed)
    first, second = rng.uniform(0.1, 4, 2).tolist()
    values = np.round(rng.beta(first, second, instances), 2)
    found = steps_of_values(values, instances, 0.01, clopper_pearson_upper)
    lengths, heights = np.array(distributions.steps_of_errors((1 - values).tolist(), 0.01)).T
    for shift in (0.0, 0.5, 2.0):
        curve = gaussian(shift)
        ours = float(found.lengths[0] @ curve(found.heights) + found.cap_length[0] * curve(found.cap)[0])
        assert ours == pytest.approx(float(lengths @ curve(heights)), rel=1e-8)


@pytest.mark.parametrize("values", [[[0.5]], [1.5], [-0.1], [math.nan]])
def test_values_that_are_no_numbers_in_the_unit_interval_are_refused(values: list[Any]) -> None:
    with pytest.raises(ConfigError, match=r"numbers in \[0, 1\]"):
        steps_of_values(np.array(values), 1, 0.1, clopper_pearson_upper)


# --- from histograms --------------------------------------------------------------------------------------------------


heights_of = cache(distributions.heights)


def obvious(scores: FloatArray, label: int, failure_prob: float, bins: int, curve: Any) -> float:
    """Both integrals by a loop over bins and labels, from the scores themselves; larger than one is not certified."""
    instances, labels = scores.shape
    tail = failure_prob / (2 * labels)
    heights = heights_of(instances, tail * (1 - score_bands.MEAN_SHARE))
    mean_tail = tail * score_bands.MEAN_SHARE
    miss = np.array([heights[int((scores[:, label] < 1 - b / bins).sum())] for b in range(bins)])
    miss[0] = 1.0
    rival = np.zeros(bins)
    for other in set(range(labels)) - {label}:
        rival = np.maximum(rival, [heights[int((scores[:, other] >= b / bins).sum())] for b in range(bins)])
    rival = np.minimum(rival, np.concatenate([miss[:1], miss[:-1]]))
    (miss_mean,) = distributions.mean_at_most(1 - scores[:, [label]].mean(axis=0), instances, mean_tail)
    others = np.delete(scores.mean(axis=0), label).max()
    (rival_mean,) = distributions.mean_at_most(np.array([others]), instances, mean_tail)
    miss = distributions.cut(miss[None], np.array([miss_mean]))[0]
    rival = distributions.cut(rival[None], np.array([min(rival_mean, miss_mean + 2.0**-20)]))[0]
    return float(curve(miss).mean() + curve(rival).mean())


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 8, 64]), st.integers(2, 4), st.sampled_from([1, 5, 90]))
def test_it_is_an_obvious_integral(seed: int, bins: int, labels: int, instances: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.dirichlet(rng.uniform(0.05, 5, labels), size=(3, instances))
    # Some scores on the edges of bins.
    scores[1] = np.round(scores[1] * 8) / 8
    scores[1, :, -1] = np.maximum(1 - scores[1, :, :-1].sum(axis=1), 0)
    scores[1] /= np.maximum(scores[1].sum(axis=1, keepdims=True), 1)
    found = bound_scores(**summarise(scores, bins), failure_prob=0.1, kind="histogram")
    assert found.spread is not None
    for shift in (0.0, 0.7, 2.5):
        curve = gaussian(shift)
        ours = found.spread.sum_of(curve)
        for row, label in enumerate(found.label.tolist()):
            expected = obvious(scores[row], label, 0.1, bins, curve)
            assert ours[row] == pytest.approx(expected, rel=1e-7, abs=1e-9)
            assert ours[row] >= expected * (1 - 1e-9)


@pytest.mark.parametrize("bins", [1, 2, 16, 256])
@pytest.mark.parametrize("law", ["dirichlet", "one-hot", "edges", "constant"])
def test_what_is_certified_holds_as_often_as_promised(law: str, bins: int) -> None:
    """The largest harm of a Gaussian shift to each label, known exactly, against both integrals, at nominal 0.1.

    An experiment fails if the integral for 1 - the score of the label that was picked is below its true worst case, or
    that for the rivals below the worst case of any of them. False alarm below 1e-6 for each case.
    """
    rng, runs, instances, many = np.random.default_rng(21), 400, 50, 200_000
    if law == "dirichlet":
        draw = lambda number: rng.dirichlet((6, 3, 1), number)  # noqa: E731
    elif law == "one-hot":
        draw = lambda number: np.eye(3)[rng.choice(3, number, p=[0.6, 0.3, 0.1])]  # noqa: E731
    elif law == "edges":
        table = np.array([[1.0, 0, 0], [0.5, 0.5, 0], [0.25, 0.5, 0.25], [0.75, 0.125, 0.125]])
        draw = lambda number: table[rng.choice(4, number)]  # noqa: E731
    else:
        draw = lambda number: np.tile([0.5, 0.25, 0.25], (number, 1))  # noqa: E731
    curve, reference = gaussian(0.6), draw(many)

    def worst(values: FloatArray) -> float:
        """E' of the worst change: the integral of K(Pr[y > t]) for the empirical law of many draws."""
        levels = np.sort(values)[::-1]
        return float(np.diff(curve(np.arange(many + 1) / many)) @ levels)

    truth_miss = np.array([worst(1 - column) for column in reference.T])
    truth_rival = np.array([worst(column) for column in reference.T])
    wrong = 0
    scores = draw(runs * instances).reshape(runs, instances, 3)
    found = bound_scores(**summarise(scores, bins), failure_prob=0.1, kind="histogram")
    assert found.spread is not None
    both = found.spread.sum_of(curve)
    for row, label in enumerate(found.label.tolist()):
        wrong += both[row] < truth_miss[label] + np.delete(truth_rival, label).max() - 0.004
    assert wrong <= stats.binom.isf(FALSE_ALARM, runs, 0.1)


def test_rounding_goes_outward() -> None:
    """All sums are rounded up: no integral is below that of the same steps in rational arithmetic."""
    rng = np.random.default_rng(5)
    scores = rng.dirichlet((8, 1, 1), size=(6, 40))
    spread = bound_scores(**summarise(scores, 16), failure_prob=0.01, kind="histogram").spread
    assert spread is not None
    exact = [
        math.fsum([*(spread.lengths[row] * spread.heights), *(spread.cap_lengths[row] * spread.caps[row])])
        for row in range(6)
    ]
    assert (spread.sum_of(lambda x: x) >= np.array(exact)).all()
    assert spread.lengths.sum(axis=1) + spread.cap_lengths.sum(axis=1) == pytest.approx(2)


def test_sums_in_single_precision_only_widen() -> None:
    scores = np.random.default_rng(6).dirichlet((8, 1, 1), size=(9, 200))
    exact = summarise(scores)
    rounded = {**exact, "sums": exact["sums"].astype(np.float32), "sumsqs": None}
    one, other = (bound_scores(**each, failure_prob=0.01, kind="histogram").spread for each in (exact, rounded))
    assert one is not None
    assert other is not None
    assert (other.sum_of(gaussian(0.5)) >= one.sum_of(gaussian(0.5)) * (1 - 1e-12)).all()


def test_bins_are_free_and_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.random.default_rng(10).dirichlet((9, 2, 1), size=(17, 60))
    sums = [
        spread.sum_of(gaussian(1.0))
        for bins in (8, 64, 512)
        if (spread := bound_scores(**summarise(scores, bins), failure_prob=0.1, kind="histogram").spread) is not None
    ]
    assert (sums[0] > sums[1]).all()
    assert (sums[1] > sums[2]).all()
    monkeypatch.setattr(bounds, "_CHUNK", 500)
    parts = bound_scores(**summarise(scores, 64), failure_prob=0.1, kind="histogram").spread
    assert parts is not None
    np.testing.assert_array_equal(parts.sum_of(gaussian(1.0)), sums[1])


# --- certificates -----------------------------------------------------------------------------------------------------


def scored(scores: FloatArray, mechanism: Private = GAUSSIAN, bins: int = 64) -> Votes:
    """Votes from scores, inputs x models x labels."""
    summary = summarise(scores, bins)
    winners = np.eye(scores.shape[2], dtype=np.int64)[scores.argmax(axis=2)].sum(axis=1)
    return Votes.from_counts(
        winners,
        mechanism=mechanism,
        score_sums=summary["sums"],
        score_squares=summary["sumsqs"],
        score_histograms=summary["histograms"],
    )


SCORES = np.random.default_rng(30).dirichlet((30, 6, 3), size=(12, 400))


def test_without_sampling_the_radius_is_that_of_the_obvious_integral() -> None:
    """With q = 1 every split of r has the curve of a Gaussian that is shifted by r sqrt(T) / sigma."""
    votes = scored(SCORES)
    found = certify(votes, on="scores", bounds="histogram", failure_prob=0.01)
    for row, (label, radius) in enumerate(zip(found.label.tolist(), found.radius.tolist(), strict=True)):
        held, next_one = (obvious(SCORES[row], label, 0.01, 64, gaussian(r * 2 / 40)) for r in (radius, radius + 1))
        assert held < 1
        assert next_one > 1 - 2e-3  # the next radius fails, or is too near for the grid of the curves
    assert found.radius.min() > 5


def test_scores_that_agree_are_certified_farther_than_by_their_means() -> None:
    votes = scored(SCORES)
    radii = {
        kind: certify(votes, on="scores", bounds=kind).radius
        for kind in ("empirical-bernstein", "hoeffding", "betting", "histogram")
    }
    for kind in ("empirical-bernstein", "hoeffding", "betting"):
        assert (radii["histogram"] > radii[kind]).all()


def test_votes_as_scores_lose_little() -> None:
    """Scores of zero and one: the distribution is the count, and the band spends half of its tail on the count zero."""
    votes = scored(np.eye(3)[np.random.default_rng(31).choice(3, (8, 1000), p=[0.97, 0.02, 0.01])])
    by_votes, by_scores = certify(votes).radius, certify(votes, on="scores", bounds="histogram").radius
    assert (by_scores <= by_votes).all()
    assert (by_scores >= 0.85 * by_votes).all()


def test_they_are_the_default_where_they_say_more() -> None:
    votes = scored(SCORES)
    assert certify(votes, on="scores").bounds == "histogram"
    assert certify(votes, on="scores", method=FDP(cached=False)).bounds == "histogram"
    for method in (RDP(), ADP()):
        assert certify(votes, on="scores", method=method).bounds == "empirical-bernstein"
    bare = Votes.from_counts(
        votes.counts, mechanism=GAUSSIAN, score_sums=votes.score_sums, score_squares=votes.score_squares
    )
    assert certify(bare, on="scores").bounds == "empirical-bernstein"
    with pytest.raises(ConfigError, match="bounds='histogram' needs histograms"):
        certify(bare, on="scores", bounds="histogram")


@pytest.mark.parametrize("method", [RDP(), RDP(complement=True), ADP()], ids=repr)
def test_methods_by_means_take_the_means_of_the_band(method: Any) -> None:
    found = certify(scored(SCORES), on="scores", bounds="histogram", method=method)
    exact = certify(scored(SCORES), on="scores", bounds="histogram")
    assert (found.radius > 0).all()
    assert (found.radius <= exact.radius).all()


def test_one_model_certifies_nothing() -> None:
    votes = scored(np.array([[[0.9, 0.1]]]))
    assert certify(votes, on="scores").radius.tolist() == [-1]


# --- the second route -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threat", ["symmetric-difference", "add", "edit"])
@pytest.mark.parametrize(
    "mechanism",
    [SampledGaussian(2.0, 0.1, 20), SampledGaussian(40.0, 1.0, 4), Subsampled(0.5, SampledGaussian(6.0, 1.0, 4))],
    ids=str,
)
def test_certificates_are_confirmed_and_one_change_more_is_not(tmp_path: Path, mechanism: Any, threat: str) -> None:
    found = certify(scored(SCORES[:5], mechanism), on="scores", threat=threat, scope="all")
    assert (found.radius > 0).all()
    path = tmp_path / "certificate.json"
    found.save(path)
    assert verify(path).valid
    replace(found, radius=found.radius + np.maximum(found.radius // 8, 1)).save(path)
    assert {check.name for check in verify(path).checks if not check.passed} == {"radii"}


def test_histograms_that_say_more_than_the_scores_are_not_taken_over(tmp_path: Path) -> None:
    votes, path = scored(SCORES[:3]), tmp_path / "certificate.json"
    found = certify(votes, on="scores")
    assert votes.score_histograms is not None
    wide = votes.score_histograms.copy()
    # What is claimed of scores that agree does not follow from scores that are zero or one as often.
    wide[:, :, 0] += wide[:, :, 1:-1].sum(axis=2) // 2
    wide[:, :, -1] += wide[:, :, 1:-1].sum(axis=2) - wide[:, :, 1:-1].sum(axis=2) // 2
    wide[:, :, 1:-1] = 0
    replace(found, votes=replace(found.votes, score_histograms=wide)).save(path)
    failed = {check.name for check in verify(path).checks if not check.passed}
    assert failed & {"radii", "statuses"}
