"""The audit's curves never say too little: against tests that anybody may run."""

import numpy as np
import pytest
from oracles import LatticeTest, gaussian_curve, one_step_curve

from mithridate import SampledGaussian, Subsampled, Threat
from mithridate.auditing.exact_curves import PrivateTraining
from mithridate.auditing.private_routes import _ConcaveTable, _TradeoffRoute
from mithridate.auditing.routes import Difference
from mithridate.core.mechanism import Private

LEVELS = np.array([1e-15, 1e-12, 1e-9, 1e-6, 1e-4, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.9, 0.999, 1 - 1e-6, 1 - 1e-9])
SPLITS = [(1, 0), (0, 1), (2, 0), (0, 2), (1, 1), (3, 1), (1, 3), (5, 0), (0, 5), (2, 2)]


def audited(mechanism: Private, split: tuple[int, int]) -> np.ndarray:
    """K of a split as the auditor has it."""
    training = PrivateTraining.of(mechanism.to_dict())
    return _TradeoffRoute(training, Threat.SYMMETRIC_DIFFERENCE)._largest(Difference(*split), LEVELS)


def reached(mechanism: Private, split: tuple[int, int]) -> np.ndarray:
    """What a test reaches: a lower bound on K."""
    inner = mechanism.inner if isinstance(mechanism, Subsampled) else mechanism
    keep = mechanism.keep if isinstance(mechanism, Subsampled) else 1.0
    cells = 400 if inner.steps < 8 else 100
    noise, rate, steps = inner.noise_multiplier, inner.sample_rate, inner.steps
    return LatticeTest(noise, rate, steps, *split, keep=keep, cells=cells).lower(LEVELS)


def test_the_lattice_reaches_nearly_what_can_be_reached() -> None:
    levels = np.array([1e-9, 1e-4, 0.01, 0.3, 0.9])
    for noise, steps, split in ((2.0, 5, (1, 0)), (3.0, 2, (1, 2))):
        best = gaussian_curve(noise, steps, sum(split), levels)
        found = LatticeTest(noise, 1.0, steps, *split).lower(levels)
        assert (found <= best).all()
        assert found == pytest.approx(best, rel=0.02)
    for noise, rate, split in ((0.4, 0.3, (2, 1)), (1.5, 0.9, (0, 3))):
        best = [one_step_curve(noise, rate, *split, x) for x in levels.tolist()]
        found = LatticeTest(noise, rate, 1, *split).lower(levels)
        assert (found <= np.array(best) + 1e-12).all()
        assert found == pytest.approx(best, rel=0.02)


@pytest.mark.more
@pytest.mark.parametrize(
    ("mechanism", "split"),
    [
        (SampledGaussian(0.08, 0.99, 2), (1, 0)),  # nearly every output is certain
        (SampledGaussian(0.08, 0.99, 2), (2, 1)),
        (SampledGaussian(0.6, 0.9997, 30), (2, 0)),  # the tail of Q at 1e-15 is below rounding
        (SampledGaussian(0.077, 0.99966, 7), (2, 2)),
        (SampledGaussian(0.926, 0.95, 2), (2, 0)),  # cells of outputs wider in loss than those of the table
        (SampledGaussian(0.102, 0.0011, 2), (1, 1)),
        (Subsampled(0.477, SampledGaussian(0.095, 0.854, 12)), (0, 5)),
        (Subsampled(0.1, SampledGaussian(0.08, 0.99, 2)), (3, 0)),
        (Subsampled(0.615, SampledGaussian(0.0488, 0.99, 12)), (1, 0)),
        (SampledGaussian(3.0, 0.01, 12), (1, 3)),
        (SampledGaussian(0.5, 1e-4, 12), (3, 0)),
        (SampledGaussian(0.3, 0.5, 1), (2, 2)),
    ],
    ids=str,
)
def test_the_auditors_curve_is_not_below_what_a_test_reaches(mechanism: Private, split: tuple[int, int]) -> None:
    assert (audited(mechanism, split) >= reached(mechanism, split) - 1e-12).all()


@pytest.mark.slow
def test_the_auditors_curve_is_not_below_what_a_test_reaches_for_many_mechanisms() -> None:
    rng = np.random.default_rng(17)
    for _ in range(150):
        noise = float(10 ** rng.uniform(-1.5, 1))
        rate = float(rng.choice([10 ** rng.uniform(-4, 0), 1 - 10 ** rng.uniform(-4, -0.3)]))
        mechanism: Private = SampledGaussian(noise, rate, int(rng.choice([1, 2, 2, 3, 4, 7, 12, 30])))
        if rng.random() < 0.5:
            mechanism = Subsampled(float(rng.uniform(0.01, 1)), mechanism)
        split = SPLITS[rng.integers(len(SPLITS))]
        assert (audited(mechanism, split) >= reached(mechanism, split) - 1e-12).all(), (mechanism, split)


def test_a_table_of_a_concave_function_is_never_below_it() -> None:
    rng = np.random.default_rng(5)
    for points in (1, 2, 3, 4, 7, 30):
        x = np.sort(rng.random(points))
        table = _ConcaveTable(x, np.sqrt(x))
        probes = np.concatenate([rng.random(200), x, 10.0 ** -rng.uniform(0, 12, 50), [0.0, 1.0]])
        assert np.all(table(probes) >= np.sqrt(probes) - 1e-12)
