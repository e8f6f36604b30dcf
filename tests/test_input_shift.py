"""Inputs that move beside the training data: moved curves against oracles, and the claims that follow from them."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from mithridate import ADP, RDP, Certificate, SampledGaussian, Subsampled, Votes, certify, plan, verify
from mithridate._io.artifacts import read_hashed
from mithridate.accounting.fdp import Curves
from mithridate.accounting.input_shift import identity, shifted
from mithridate.accounting.privacy_loss import compose
from mithridate.auditing.exact_curves import ExactTradeoff
from mithridate.certifying.certification import bound
from mithridate.core.bounds import SCORE_BOUNDS
from mithridate.core.certificate import SCHEMA, Scope, Status
from mithridate.core.input_change import Frontier, InputNoise, checked_changes
from mithridate.core.mechanism import Mechanism, Threat
from mithridate.core.rule import Margins
from mithridate.defences.bagging import Bagged, BaggingRule, MovedBaggingAccountant
from mithridate.errors import ArtifactError, ConfigError, UnsupportedMechanismError

FloatArray = npt.NDArray[np.float64]
LEVELS = np.array([1e-8, 1e-6, 1e-4, 1e-3, 0.01, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
PRIVATE = SampledGaussian(3.0, 0.01, 100)
NOISE = InputNoise(0.5, "pixels")


def gaussian(x: FloatArray, shift: float) -> FloatArray:
    return special.ndtr(special.ndtri(x) + shift)


def cells_of_one_step(noise: float, rate: float, deleted: int, inserted: int) -> tuple[FloatArray, FloatArray]:
    """Masses of one step's output under D' and D, in cells: what cells tell, the output tells as well."""
    edges = np.linspace(-inserted - 9 * noise, deleted + 9 * noise, 900)

    def masses(changes: int, side: int) -> FloatArray:
        kept = np.arange(changes + 1)
        law = stats.binom.pmf(kept, changes, rate)
        return np.diff(special.ndtr((edges[:, None] - side * kept) / noise) @ law)

    return masses(deleted, 1), masses(inserted, -1)


def best_test(p: FloatArray, q: FloatArray, shift: float) -> Callable[[float], float]:
    """K of the cells times a normal draw in cells, by sorting likelihood ratios: never above the true curve."""
    edges = np.linspace(-9, 9 + shift, 900)
    moved, still = np.diff(special.ndtr(edges - shift)), np.diff(special.ndtr(edges))
    joint_p, joint_q = np.outer(p, moved).ravel(), np.outer(q, still).ravel()
    order = np.argsort(-joint_p / np.maximum(joint_q, 1e-300))
    above_p, above_q = np.cumsum(joint_p[order]), np.cumsum(joint_q[order])
    return lambda x: float(np.interp(x, above_q, above_p))


# --- curves -----------------------------------------------------------------------------------------------------------


@given(st.floats(1e-5, 6), st.floats(1e-9, 1 - 1e-9))
def test_nothing_but_the_input_moves(shift: float, x: float) -> None:
    found, exact = shifted(identity(), shift)(np.array([x]))[0], gaussian(np.array([x]), shift)[0]
    assert exact <= found <= exact * (1 + 5e-4) + 1e-9


@settings(max_examples=30, deadline=None)
@given(st.floats(1e-4, 4), st.integers(0, 30), st.integers(0, 30))
def test_gaussians_add_up(shift: float, deleted: int, inserted: int) -> None:
    whole = (deleted + inserted) * np.sqrt(20) / 50
    found = shifted(compose(50.0, 1.0, 20, deleted, inserted), shift)(LEVELS)
    exact = gaussian(LEVELS, float(np.hypot(whole, shift)))
    assert np.all(found >= exact)
    assert np.all(found[2:] <= exact[2:] * (1 + 1e-3))
    chain = Curves(SampledGaussian(50.0, 1.0, 20), shift=shift, cached=False).chain(deleted, inserted)(LEVELS)
    assert np.all(chain >= exact)


@pytest.mark.parametrize("shift", [0.05, 0.5, 2.0])
@pytest.mark.parametrize("split", [(1, 0), (0, 3), (4, 0), (2, 2)])
@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.3), (3.0, 0.05), (0.5, 0.9)])
def test_no_test_on_one_step_and_the_input_beats_the_curve(
    noise: float, rate: float, split: tuple[int, int], shift: float
) -> None:
    best = best_test(*cells_of_one_step(noise, rate, *split), shift)
    at_best = np.array([best(x) for x in LEVELS])
    found = shifted(compose(noise, rate, 1, *split), shift)(LEVELS)
    assert np.all(found >= at_best - 1e-12)
    assert np.all(found[2:] <= at_best[2:] * 1.02 + 2e-5)
    # The second route, by the characteristic function.
    exact = ExactTradeoff(noise, rate, 1, *split, shift=shift)(LEVELS)
    assert np.all(exact >= at_best - 1e-9)


@pytest.mark.parametrize("shift", [0.02, 0.4, 1.5])
@pytest.mark.parametrize("split", [(3, 0), (0, 3), (2, 1), (40, 0), (0, 0)])
def test_both_routes_agree_on_many_steps(split: tuple[int, int], shift: float) -> None:
    found = (
        shifted(compose(3.0, 0.01, 100, *split), shift)(LEVELS) if any(split) else shifted(identity(), shift)(LEVELS)
    )
    exact = ExactTradeoff(3.0, 0.01, 100, *split, shift=shift)(LEVELS)
    assert np.all(found >= exact - 1e-9)
    assert np.all(found[2:] <= exact[2:] * (1 + 2e-3))


@pytest.mark.parametrize("split", [(1, 0), (0, 1), (5, 0), (0, 5)])
def test_of_subsampled_mechanisms_nothing_kept_still_moves(split: tuple[int, int]) -> None:
    # One step on a part that was kept is one step at a lower rate.
    best = best_test(*cells_of_one_step(1.5, 0.4 * 0.3, *split), 0.7)
    found = Curves(Subsampled(0.4, SampledGaussian(1.5, 0.3, 1)), shift=0.7, cached=False).curve(*split)(LEVELS)
    assert np.all(found >= np.array([best(x) for x in LEVELS]) - 1e-12)
    assert np.all(found >= gaussian(LEVELS, 0.7))
    mixed = Curves(Subsampled(0.4, SampledGaussian(1.5, 0.3, 1)), shift=0.7, cached=False).chain(2, 3)(LEVELS)
    best = best_test(*cells_of_one_step(1.5, 0.4 * 0.3, 2, 3), 0.7)
    assert np.all(mixed >= np.array([best(x) for x in LEVELS]) - 1e-12)


def test_a_larger_move_and_more_changes_are_easier_to_see() -> None:
    curves = [[shifted(compose(3.0, 0.01, 100, r, 0), shift)(LEVELS) for shift in (0, 1e-3, 0.2, 1, 5)] for r in (1, 9)]
    for row in curves:
        for less, more in itertools.pairwise(row):
            assert np.all(less <= more + 1e-9)
    assert np.all(np.array(curves[0]) <= np.array(curves[1]) + 1e-9)


def test_beyond_twenty_deviations_nothing_is_known() -> None:
    assert np.all(shifted(identity(), 21.0)(LEVELS) == 1)
    assert np.all(shifted(identity(), 19.9)(LEVELS) <= 1)


def test_a_move_that_cannot_be_missed_is_no_error(tmp_path: Path) -> None:
    found = certify(replace(noisy(PRIVATE), input_noise=InputNoise(1e-3, "pixels")), input_change=[0, 0.5])
    assert found.frontier is not None
    assert found.frontier.radius[1].tolist() == [-1] * 4
    found.save(tmp_path / "c.json")
    assert verify(tmp_path / "c.json").valid


# --- bagging ----------------------------------------------------------------------------------------------------------


def draws_in_cells(total: int, draws: int, deleted: int, inserted: int) -> tuple[FloatArray, FloatArray]:
    """Probabilities under D' and D of drawing shared examples alone, and of everything else."""
    left = total - deleted
    shared_q = (left / total) ** draws
    shared_p = (left / (left + inserted)) ** draws if left + inserted else 0.0
    return np.array([shared_p, 0.0, 1 - shared_p]), np.array([shared_q, 1 - shared_q, 0.0])


@pytest.mark.parametrize("threat", list(Threat))
def test_bagging_withstands_the_best_test_of_every_split(threat: Threat) -> None:
    mechanism, shift, radius = Bagged(40, 3), 0.6, 4
    rng = np.random.default_rng(1)
    miss = rng.uniform(0.001, 0.4, 40)
    rival = miss * rng.uniform(0.2, 1, 40)
    margins = Margins.of(1 - miss, miss, rival)
    shown = MovedBaggingAccountant(mechanism, threat, shift).holds(radius, margins)
    match threat:
        case Threat.ADD:
            splits = [(0, a) for a in range(radius + 1)]
        case Threat.REMOVE:
            splits = [(d, 0) for d in range(radius + 1)]
        case Threat.SYMMETRIC_DIFFERENCE:
            splits = [(d, a) for d in range(radius + 1) for a in range(radius + 1 - d)]
        case Threat.EDIT:
            splits = [(d, a) for d in range(radius + 1) for a in range(radius + 1)]
        case _:
            splits = [(d, d) for d in range(radius + 1)]
    worst = np.zeros(40)
    for split in splits:
        best = best_test(*draws_in_cells(40, 3, *split), shift)
        worst = np.maximum(worst, [best(m) + best(r) for m, r in zip(miss, rival, strict=True)])
    assert np.all(worst[shown] < 1)
    assert np.all(shown[worst < 1 - 0.01])
    assert set(shown.tolist()) == {True, False}


def test_bagging_without_a_move_has_the_radii_of_its_own_rule() -> None:
    counts = [[1000 - rest, rest] for rest in range(0, 400, 7)]
    votes = Votes.from_counts(counts, mechanism=Bagged(5000, 50))
    for threat in Threat:
        moved = MovedBaggingAccountant(Bagged(5000, 50), threat, 0.0)
        limits = bound(votes, on="votes", kind="winner", failure_prob=1e-3)
        margins = Margins.of(limits.top_lower, limits.top_miss_upper, limits.rival_upper)
        own = BaggingRule().accountant(Bagged(5000, 50), threat)
        for radius in (1, 5, 20, 33, 60, 300):
            assert np.array_equal(moved.holds(radius, margins), own.holds(radius, margins)), (threat, radius)


# --- certificates -----------------------------------------------------------------------------------------------------

MECHANISMS: list[Mechanism] = [PRIVATE, Subsampled(0.2, SampledGaussian(3.0, 0.05, 100)), Bagged(5000, 50)]


def noisy(mechanism: Mechanism, counts: Any = ((1000, 0, 0), (930, 70, 0), (800, 150, 50), (520, 480, 0))) -> Votes:
    return replace(Votes.from_counts(np.array(counts), mechanism=mechanism), input_noise=NOISE)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda each: each.type)
def test_an_input_that_stays_has_the_radii_of_the_same_votes(mechanism: Mechanism) -> None:
    votes = noisy(mechanism)
    found, plain = certify(votes, input_change=0), certify(replace(votes, input_noise=None))
    assert found.radius.tolist() == plain.radius.tolist()
    assert found.status.tolist() == plain.status.tolist()


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda each: each.type)
def test_a_radius_of_0_reaches_as_far_as_randomised_smoothing(mechanism: Mechanism) -> None:
    """Cohen, Rosenfeld and Kolter 2019: S / 2 (Phi^-1(p_a) - Phi^-1(p_b)), with the same bounds."""
    votes = noisy(mechanism)
    limits = bound(votes, on="votes", kind="winner", failure_prob=1e-3)
    lower, rival = limits.top_lower[:3], limits.rival_upper[:3]
    reach = NOISE.deviation / 2 * (special.ndtri(lower) - special.ndtri(rival))
    for at, length in enumerate(reach.tolist()):
        within, beyond = (certify(votes, input_change=length * factor).radius[at] for factor in (0.999, 1.001))
        assert (within >= 0, beyond) == (True, -1)


@pytest.mark.parametrize("threat", [Threat.SYMMETRIC_DIFFERENCE, Threat.ADD, Threat.EDIT])
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda each: each.type)
def test_the_second_route_confirms_the_frontier_and_refuses_more(
    tmp_path: Path, mechanism: Mechanism, threat: Threat
) -> None:
    found = certify(noisy(mechanism), input_change=[0, 0.1, 0.4], threat=threat)
    assert found.frontier is not None
    radius = found.frontier.radius
    assert np.all(np.diff(radius, axis=0) <= 0)
    assert radius[1].max() > 0
    assert found.frontier.status[1, 3] == Status.NOT_SEPARATED or radius[1, 3] == -1
    found.save(tmp_path / "c.json")
    assert Certificate.load(tmp_path / "c.json") == found
    outcome = verify(tmp_path / "c.json")
    assert outcome.valid, [check for check in outcome.checks if not check.passed]
    for row in (1, 2):
        forged = radius.copy()
        forged[row, 0] = int(1.05 * forged[row, 0]) + 1
        more = Frontier(found.frontier.changes, "pixels", forged, found.frontier.status)
        replace(found, frontier=more).save(tmp_path / "forged.json")
        failed = [check.name for check in verify(tmp_path / "forged.json").checks if not check.passed]
        assert failed == [f"radii, input change {found.frontier.changes[row]:g}"]


def test_full_batches_have_the_radius_of_the_formula() -> None:
    """At a sample rate of 1 everything is Gaussian: m(r) = sqrt((r sqrt(T) / s)^2 + (e / S)^2) has to stay below z."""
    votes = noisy(SampledGaussian(200.0, 1.0, 25))
    limits = bound(votes, on="votes", kind="winner", failure_prob=1e-3)
    z = (special.ndtri(limits.top_lower) - special.ndtri(limits.rival_upper)) / 2
    for change in (0.1, 0.25, 0.4):
        left = z[:3] ** 2 - (change / 0.5) ** 2
        exact = np.where(left < 0, -1, np.floor(np.sqrt(np.maximum(left, 0)) * 200 / 5))
        found = certify(votes, input_change=change).radius[:3]
        assert np.all(found <= exact)
        assert np.all(found >= np.floor(exact * 0.99) - 1)


def test_attackers_of_both_sides_break_claims_no_more_often_than_promised() -> None:
    """Canaries in one dimension, and an input that moves: what instances vote on D' and the moved input is known.

    An instance sees the sum of its updates, N(0, T s^2) on D and N(r T, T s^2) on D + r canaries, and its noisy input,
    N(0, 1) and N(e / S, 1). It votes for label 1 where the best combination of both exceeds a
    threshold, set so that label 1 wins on D' and the moved input by a hair: a certificate of D for label 0 that covers
    both is wrong. False alarm below 1e-6 for a procedure that fails with probability 0.1 (binomial).
    """
    mechanism, radius, change = SampledGaussian(20.0, 1.0, 50), 6, 0.3
    from_data, from_input = radius * np.sqrt(50) / 20, change / NOISE.deviation
    both = float(np.hypot(from_data, from_input))
    experiments, instances = 3000, 500
    # Along the best direction the sum of both is N(0, 1) on D, N(both, 1) on D': the threshold is just below `both`.
    ones = np.random.default_rng(4).binomial(instances, float(special.ndtr(-both + 1e-9)), experiments)
    votes = replace(
        Votes.from_counts(np.stack([instances - ones, ones], axis=1), mechanism=mechanism), input_noise=NOISE
    )
    found = certify(votes, threat=Threat.ADD, failure_prob=0.1, input_change=change)
    wrong = int(((found.label == 0) & (found.radius >= radius)).sum())
    assert wrong <= stats.binom.isf(1e-6, experiments, 0.1)
    assert wrong > 0.002 * experiments
    # The test has power: a certificate that forgets the input is wrong too often here.
    alone = certify(replace(votes, input_noise=None), threat=Threat.ADD, failure_prob=0.1)
    wrong = int(((alone.label == 0) & (alone.radius >= radius)).sum())
    assert wrong > stats.binom.isf(1e-6, experiments, 0.1)


def test_scores_obey_the_same_curves() -> None:
    votes = replace(
        Votes.from_counts([[950, 50]], mechanism=PRIVATE, score_sums=[[940.0, 60.0]], score_squares=[[920.0, 20.0]]),
        input_noise=NOISE,
    )
    found = certify(votes, on="scores", bounds=SCORE_BOUNDS[0], input_change=[0, 0.2], scope=Scope.ALL)
    assert found.frontier is not None
    assert 0 <= found.frontier.radius[1, 0] < found.frontier.radius[0, 0]


def test_plans_know_of_inputs_that_move() -> None:
    made = plan(PRIVATE, instances=1000, classes=10, input_noise=0.5, input_change=[0.1, 0.4], radius=20)
    assert made.frontier is not None
    counts = [[1000, *[0] * 9], [900, 100, *[0] * 8]]
    found = certify(noisy(PRIVATE, counts), input_change=[0.1, 0.4])
    assert found.frontier is not None
    for change, row in zip((0.1, 0.4), found.frontier.radius.tolist(), strict=True):
        assert [made.frontier[change][share] for share in (1.0, 0.9)] == row
    assert made.max_radius == made.frontier[0.1][1.0]
    still = plan(PRIVATE, instances=1000, classes=10, radius=20)
    assert made.needed_steps is not None
    assert still.needed_steps is not None
    assert made.needed_steps < still.needed_steps
    assert made.to_dict()["frontier"][1]["input_change"] == 0.4
    with pytest.raises(ConfigError, match="input_change"):
        plan(PRIVATE, instances=1000, classes=10, input_noise=0.5)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [-0.1, float("nan"), float("inf"), "far", [], [0.1] * 101, None])
def test_bad_lengths_are_refused(given: Any) -> None:
    with pytest.raises(ConfigError):
        checked_changes(given)


@pytest.mark.parametrize("values", [(0.0,), (-1.0,), (float("inf"),), ("much",), (0.5, "grams")])
def test_bad_noise_is_refused(values: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError):
        InputNoise(*values)


def test_votes_on_inputs_without_noise_say_nothing_of_moves() -> None:
    with pytest.raises(ConfigError, match="--input-noise"):
        certify(Votes.from_counts([[9, 1]], mechanism=PRIVATE), input_change=0.1)


@pytest.mark.parametrize("method", [RDP(), ADP()])
def test_other_methods_certify_no_moves(method: Any) -> None:
    with pytest.raises(UnsupportedMechanismError, match="fdp"):
        certify(noisy(PRIVATE), method=method, input_change=0.1)


def test_votes_with_other_noise_do_not_merge() -> None:
    one, other = noisy(PRIVATE), replace(noisy(PRIVATE), input_noise=InputNoise(0.25, "pixels"))
    with pytest.raises(ConfigError, match="noise"):
        replace(one, run_ids=("a",)).merge(replace(other, run_ids=("b",)))


def test_a_file_may_not_contradict_its_frontier(tmp_path: Path) -> None:
    found = certify(noisy(PRIVATE), input_change=[0.1, 0.4])
    assert found.frontier is not None
    found.save(tmp_path / "good.json")
    swapped = Frontier(found.frontier.changes, "pixels", found.frontier.radius[::-1], found.frontier.status)
    replace(found, frontier=swapped).save(tmp_path / "c.json")
    with pytest.raises(ArtifactError, match="frontier"):
        Certificate.load(tmp_path / "c.json")
    for at, value in ((0, "0.1"), (1, "1_0"), (1, True), (0, None)):
        content = {**read_hashed(tmp_path / "good.json", SCHEMA)}
        content["frontier"] = [dict(row) for row in content["frontier"]]
        content["frontier"][at]["input_change"] = value
        with pytest.raises(ArtifactError, match="input_change"):
            Certificate.from_content(content)
    other = Frontier(found.frontier.changes, "values", found.frontier.radius, found.frontier.status)
    replace(found, frontier=other).save(tmp_path / "c.json")
    failed = [check.name for check in verify(tmp_path / "c.json").checks if not check.passed]
    assert failed == ["input noise"]
    still = replace(found, votes=replace(found.votes, input_noise=None))
    still.save(tmp_path / "c.json")
    failed = [check.name for check in verify(tmp_path / "c.json").checks if not check.passed]
    assert "input noise" in failed
