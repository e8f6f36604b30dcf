"""Trade-off curves against exact ones: never below, and close.

`is_near` says how close: 1e-4 of K, or 2e-4 in the distance of two Gaussians with the same trade-off. The oracles are
good to `ORACLE` (they are compared at two resolutions in `test_oracles_agree_with_each_other`).
"""

import numpy as np
import numpy.typing as npt
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import (
    ComposedLoss,
    gaussian_curve,
    hockey_stick_of_curve,
    one_step_curve,
    one_step_curve_mp,
    weights,
)
from scipy import special

from mithridate.accounting.privacy_loss import TradeoffCurve, compose
from mithridate.errors import NumericalError

FloatArray = npt.NDArray[np.float64]
ORACLE = 1e-7
LEVELS = (1e-3, 0.01, 0.05, 0.1, 0.3, 0.5, 0.9, 0.99)


def at(curve: TradeoffCurve, x: float) -> float:
    return float(curve(np.array([x]))[0])


def is_near(value: float, exact: float, *, relative: float = 1e-4, deviation: float = 2e-4) -> bool:
    """Whether a value at or above the exact one is close to it in either sense of the module docstring."""
    if value - exact <= relative * exact:
        return True
    return bool(special.ndtri(value) - special.ndtri(exact) <= deviation)


# --- the oracles themselves -------------------------------------------------------------------------------------------


def test_oracles_agree_with_each_other() -> None:
    # Threshold search in doubles and in 30 digits; characteristic functions at two resolutions, and against Gaussians.
    for deleted, inserted in [(2, 0), (0, 2), (1, 1)]:
        exact = one_step_curve_mp("0.7", "0.3", deleted, inserted, "0.05")
        assert one_step_curve(0.7, 0.3, deleted, inserted, 0.05) == pytest.approx(exact, abs=1e-13)
    fine = ComposedLoss(3.0, 0.01, 400, 20, 10, points=12001, reach=11)
    coarse = ComposedLoss(3.0, 0.01, 400, 20, 10)
    for x in LEVELS:
        assert coarse.curve(x) == pytest.approx(fine.curve(x), abs=ORACLE / 10)
    gaussian = ComposedLoss(20.0, 1.0, 50, 4, 2)
    for x in LEVELS:
        assert gaussian.curve(x) == pytest.approx(float(gaussian_curve(20.0, 50, 6, x)), abs=1e-9)


# --- never below, and close -------------------------------------------------------------------------------------------

ONE_STEP = [
    (noise, rate, deleted, inserted)
    for noise, rate, changes in [
        (0.5046, 0.96, 2),
        (0.8, 0.3, 5),
        (1.0, 0.01, 1),
        (2.0, 0.001, 300),
        (1.5, 1 - 1e-6, 2),
        (10.0, 0.05, 400),
        (50.0, 0.5, 200),
        (1.0, 1e-9, 10),
        (0.4, 0.2, 1),
    ]
    for deleted, inserted in {(changes, 0), (0, changes), (changes // 2, changes - changes // 2)}
]


@pytest.mark.parametrize(("noise", "rate", "deleted", "inserted"), ONE_STEP)
def test_one_step_is_never_below_and_close(noise: float, rate: float, deleted: int, inserted: int) -> None:
    curve = compose(noise, rate, 1, deleted, inserted)
    for x in LEVELS:
        exact = one_step_curve(noise, rate, deleted, inserted, x)
        assert at(curve, x) >= exact - 1e-13
        assert at(curve, x) <= 1
        # One step of little noise has a loss of few scales; a grid in units of its deviation is coarse there.
        assert at(curve, x) <= exact + 1e-3
        assert noise < 1.5 or is_near(at(curve, x), exact), (x, at(curve, x), exact)


@pytest.mark.parametrize(("deleted", "inserted"), [(1, 0), (0, 3), (2, 2), (7, 1), (18, 0)])
@pytest.mark.parametrize(("noise", "steps"), [(20.0, 50), (1.0, 1), (4.0, 1), (300.0, 100_000), (0.7, 2)])
def test_without_sampling_the_curve_is_gaussian(noise: float, steps: int, deleted: int, inserted: int) -> None:
    curve = compose(noise, 1.0, steps, deleted, inserted)
    for x in LEVELS:
        exact = float(gaussian_curve(noise, steps, deleted + inserted, x))
        assert at(curve, x) >= exact - 1e-13
        assert is_near(at(curve, x), exact, deviation=3e-4), (x, at(curve, x), exact)


COMPOSED = [
    (3.0, 0.001, 1000, 150, 0),
    (3.0, 0.001, 1000, 0, 150),
    (3.0, 0.001, 1000, 75, 75),
    (3.0, 0.001, 1000, 215, 0),
    (19.0, 0.064, 2343, 13, 0),
    (19.0, 0.064, 2343, 0, 14),
    (3.0, 0.01024, 1710, 8, 8),
    (3.0, 128 / 60000, 4690, 47, 0),
    (1.0, 0.05, 20, 2, 1),
    (1.0, 1e-4, 10_000, 1, 0),
    (1.0, 1e-4, 10_000, 0, 1),
    (10.0, 0.01, 100_000, 3, 1),
    (30.0, 0.001, 100_000, 0, 60),
    (100.0, 0.5, 100, 10, 20),
    (0.6, 0.01, 50, 6, 0),
]


@pytest.mark.parametrize(("noise", "rate", "steps", "deleted", "inserted"), COMPOSED)
def test_many_steps_are_never_below_and_close(
    noise: float, rate: float, steps: int, deleted: int, inserted: int
) -> None:
    curve = compose(noise, rate, steps, deleted, inserted)
    exact = ComposedLoss(noise, rate, steps, deleted, inserted, points=12001)
    for x in LEVELS:
        truth = exact.curve(x)
        assert at(curve, x) >= truth - ORACLE
        assert is_near(at(curve, x), truth, relative=2e-4), (x, at(curve, x), truth)


@pytest.mark.parametrize(("deleted", "inserted"), [(0, 6), (3, 3)])
def test_heavy_tailed_losses_are_never_below(deleted: int, inserted: int) -> None:
    # Little noise and a small rate: the loss has a long tail, and the lines, evenly spaced in it, are far apart where
    # the mass is. Sound; the distance is 1.2e-4 at most (0.2 per cent of K).
    curve = compose(0.6, 0.01, 50, deleted, inserted)
    exact = ComposedLoss(0.6, 0.01, 50, deleted, inserted, points=12001)
    for x in LEVELS:
        assert 0 <= at(curve, x) - exact.curve(x) + ORACLE <= 2e-4


@pytest.mark.parametrize(
    ("mechanism", "deleted", "inserted", "expected", "digits"),
    [
        ((3.0, 0.001, 1000), 150, 0, (0.24364, 0.63334, 0.86238), 2e-5),
        ((3.0, 0.001, 1000), 0, 150, (0.23517, 0.63014, 0.86351), 3e-5),
        ((3.0, 0.001, 1000), 75, 75, (0.22659, 0.61585, 0.85354), 3e-5),
        ((0.6, 0.01, 50), 6, 0, (0.1803, 0.4609, 0.6967), 1e-4),
        ((0.6, 0.01, 50), 0, 6, (0.0557, 0.3480, 0.6960), 2e-4),
        ((0.6, 0.01, 50), 3, 3, (0.0926, 0.3441, 0.6267), 1e-4),
    ],
)
def test_tabulated_trade_offs(
    mechanism: tuple[float, float, int],
    deleted: int,
    inserted: int,
    expected: tuple[float, float, float],
    digits: float,
) -> None:
    # theory.md, section 8: K(0.01), K(0.1), K(0.3).
    noise, rate, steps = mechanism
    curve = compose(noise, rate, steps, deleted, inserted)
    assert curve(np.array([0.01, 0.1, 0.3])) == pytest.approx(expected, abs=digits)


def test_the_worst_split_may_be_a_mixed_one() -> None:
    # theory.md, section 3: q=.96, sigma=.5046, T=1, r=2, x=.043187.
    expected = {(2, 0): 0.95685, (0, 2): 0.95687, (1, 1): 0.95758}
    for (deleted, inserted), published in expected.items():
        exact = one_step_curve_mp("0.5046", "0.96", deleted, inserted, "0.043187")
        ours = at(compose(0.5046, 0.96, 1, deleted, inserted), 0.043187)
        assert exact == pytest.approx(published, abs=1e-5)
        assert exact <= ours <= exact + 1e-4


@pytest.mark.parametrize("noise", [0.05, 0.02])
def test_gaussians_far_apart_have_nothing_to_hide_behind(noise: float) -> None:
    # At noise 0.05 one unsampled example is told apart for certain whenever it is sampled: K(x) = min(1, q + (1-q) x).
    curve = compose(noise, 0.25, 1, 1, 0)
    for x in (0.01, 0.1, 0.5):
        assert one_step_curve(noise, 0.25, 1, 0, x) == pytest.approx(0.25 + 0.75 * x, abs=1e-12)
        assert 0.25 + 0.75 * x <= at(curve, x) <= 0.25 + 0.75 * x + 1e-2


@pytest.mark.parametrize(
    ("noise", "rate", "deleted", "inserted"), [(0.05, 0.028, 2, 6), (0.084, 0.0014, 0, 7), (0.135, 0.0508, 0, 117)]
)
def test_tiny_noise_is_never_below(noise: float, rate: float, deleted: int, inserted: int) -> None:
    # Losses beyond what doubles can hold: an underflow in the bound on the tails once let mass wrap around the circle.
    curve = compose(noise, rate, 1, deleted, inserted)
    for x in LEVELS:
        assert at(curve, x) >= one_step_curve(noise, rate, deleted, inserted, x) - 1e-12, x


def test_random_one_step_pairs_are_never_below() -> None:
    rng = np.random.default_rng(20240501)
    for _ in range(80):
        noise, changes = 10 ** rng.uniform(-1.5, 2), int(10 ** rng.uniform(0, 2.5))
        rate = float(rng.choice([1 - 10 ** rng.uniform(-6, -0.3), 10 ** rng.uniform(-8, -0.01)]))
        deleted = int(rng.choice([0, changes, int(rng.integers(0, changes + 1))]))
        curve = compose(noise, rate, 1, deleted, changes - deleted)
        for x in (1e-6, *LEVELS):
            exact = one_step_curve(noise, rate, deleted, changes - deleted, x)
            assert at(curve, x) >= exact - 1e-12, (noise, rate, deleted, changes, x)


@pytest.mark.parametrize(("rate", "deleted", "inserted"), [(0.5, 100_000, 0), (0.9, 0, 1_000_000)])
def test_huge_groups_are_never_below(rate: float, deleted: int, inserted: int) -> None:
    # Rounding errors of the weights once grew with n and were multiplied by the steps.
    # Sampling n examples at rate q adds variance n q (1 - q) per step, nothing beside the noise's: K is Gaussian with
    # mu = sqrt(T) n q / sigma to 1e-6 (the number sampled is known up to 1 / sqrt(n q)).
    noise, steps = (deleted + inserted) * rate * 316.0, 100_000
    curve = compose(noise, rate, steps, deleted, inserted)
    for x in (0.1, 0.3, 0.5):
        exact = float(special.ndtr(special.ndtri(x) + np.sqrt(steps) / 316.0))
        assert at(curve, x) >= exact - 1e-6


def test_a_grid_that_does_not_fit_is_refused() -> None:
    with pytest.raises(NumericalError, match="points"):
        compose(0.5, 1.0, 10**12, 1, 0)


# --- properties -------------------------------------------------------------------------------------------------------

# A few hundred different curves in all; the engine takes some milliseconds for each.
MECHANISMS = st.tuples(
    st.sampled_from([0.6, 1.0, 3.0, 10.0]), st.sampled_from([0.001, 0.02, 0.3, 0.9, 1.0]), st.sampled_from([5, 60, 300])
)
SPLITS = st.tuples(st.integers(0, 12), st.integers(0, 12)).filter(lambda split: sum(split) > 0)
GRID = np.array([0.0, 1e-5, 1e-3, 0.01, 0.04, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 0.95, 0.999, 1.0])


@settings(max_examples=60)
@given(MECHANISMS, SPLITS)
def test_curves_are_increasing_concave_and_between_x_and_one(
    mechanism: tuple[float, float, int], split: tuple[int, int]
) -> None:
    curve = compose(*mechanism, *split)
    odds = np.exp(np.linspace(-14, 14, 301))
    x = odds / (1 + odds)
    values = curve(x)
    assert np.all(values >= x)
    assert np.all(values <= 1)
    assert np.all(np.diff(values) >= -1e-15)
    slopes = np.diff(values) / np.diff(x)
    assert np.all(np.diff(slopes) <= 1e-6 * np.maximum(1, slopes[:-1]))


@settings(max_examples=60)
@given(MECHANISMS, SPLITS, st.integers(0, 3), st.integers(0, 3))
def test_more_changes_never_lower_the_curve(
    mechanism: tuple[float, float, int], split: tuple[int, int], more_deleted: int, more_inserted: int
) -> None:
    fewer = compose(*mechanism, *split)
    more = compose(*mechanism, split[0] + more_deleted, split[1] + more_inserted)
    assert np.all(fewer(GRID) <= more(GRID) + 3e-4)


@settings(max_examples=60)
@given(MECHANISMS, st.integers(1, 12), st.integers(1, 12))
def test_a_mixed_split_is_below_the_chain_of_its_parts(
    mechanism: tuple[float, float, int], deleted: int, inserted: int
) -> None:
    # P(S) <= K_(deleted, 0)(K_(0, inserted)(Q(S))), through the data set that both share.
    x = GRID[1:]  # At zero a curve is what its steepest line leaves, which says nothing.
    chain = compose(*mechanism, deleted, 0)(compose(*mechanism, 0, inserted)(x))
    assert np.all(compose(*mechanism, deleted, inserted)(x) <= chain + 3e-4)


@settings(max_examples=40)
@given(MECHANISMS, SPLITS)
def test_what_is_added_on_purpose_is_small(mechanism: tuple[float, float, int], split: tuple[int, int]) -> None:
    budget = compose(*mechanism, *split).budget
    for part in (budget.truncation, budget.wrap, budget.rounding, budget.loss):
        assert 0 <= part < 1e-7


@settings(max_examples=60)
@given(st.sampled_from([0.6, 1.0, 3.0]), st.sampled_from([0.02, 0.3, 0.9, 1.0]), st.integers(1, 9), st.integers(1, 9))
def test_a_chain_of_pure_curves_bounds_the_exact_mixed_one(
    noise: float, rate: float, deleted: int, inserted: int
) -> None:
    chain = compose(noise, rate, 1, deleted, 0)(compose(noise, rate, 1, 0, inserted)(GRID))
    for x, bound in zip(GRID[1:-1], chain[1:-1], strict=True):
        assert bound >= one_step_curve(noise, rate, deleted, inserted, float(x)) - 1e-12


@pytest.mark.parametrize("steps", [1, 100, 100_000])
def test_no_change_changes_nothing(steps: int) -> None:
    curve = compose(2.0, 0.1, steps, 0, 0)
    assert np.all(curve(GRID) >= GRID)
    assert curve(GRID) == pytest.approx(GRID, abs=1e-5)


def test_every_single_line_is_a_bound() -> None:
    # The guarantee of TradeoffCurve is per line, so a search that picks a wrong one can only lose tightness.
    curve = compose(0.8, 0.3, 1, 3, 2)
    x = np.array([1e-4, 0.01, 0.2, 0.7])
    exact = np.array([one_step_curve(0.8, 0.3, 3, 2, float(v)) for v in x])
    lines = curve.intercepts[:, None] + curve.slopes[:, None] * x
    assert np.all(lines >= exact - 1e-12)
    assert curve(x) == pytest.approx(np.minimum(lines.min(axis=0), 1), abs=1e-12)


# --- dp-accounting ----------------------------------------------------------------------------------------------------


@pytest.mark.more
@pytest.mark.parametrize(
    ("noise", "rate", "steps", "changes", "grid"),
    [(3.0, 0.01, 200, 6, 2e-4), (1.0, 0.05, 20, 3, 1e-3), (0.9, 0.3, 4, 2, 1e-3)],
)
def test_hockey_sticks_agree_with_dp_accounting(
    noise: float, rate: float, steps: int, changes: int, grid: float
) -> None:
    # dp-accounting answers for the worse direction; its own grid adds at most (grid / 2)^2 of variance a step, which
    # moves a delta by less than grid / 2 in total here.
    theirs = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        standard_deviation=noise,
        sensitivities=list(range(changes + 1)),
        sampling_probs=weights(changes, rate).tolist(),
        value_discretization_interval=grid,
    ).self_compose(steps)
    ours = [compose(noise, rate, steps, *split) for split in ((changes, 0), (0, changes))]
    exact = [ComposedLoss(noise, rate, steps, *split) for split in ((changes, 0), (0, changes))] if steps > 4 else []
    for eps in (0.0, 0.1, 0.5, 1.0):
        delta = theirs.get_delta_for_epsilon(eps)
        mine = max(hockey_stick_of_curve(curve, eps) for curve in ours)
        assert mine == pytest.approx(delta, abs=max(2e-5, grid / 20))
        if exact:
            truth = max(loss.hockey_stick(eps) for loss in exact)
            assert delta >= truth - ORACLE
            assert mine >= truth - ORACLE - 1e-6  # The grid of hockey_stick_of_curve may miss the best x.
