"""The numbers of theory.md, section 8 (the paper's, and those of two unrelated computations).

"within 1" is what the page promises. For the group rule `mixture` at q=.001 a third computation (30-digit quadrature of
the pure split, orders in steps of 0.002) gives 135/134/132 as the exact answer, so more than that would be wrong.
"""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from mithridate import Votes, certify
from mithridate.accounting import ADP, FDP, RDP, Method
from mithridate.core.certificate import Certificate
from mithridate.core.mechanism import SampledGaussian
from mithridate.core.votes import read_votes

PAPER, MIXTURE, BOTH = RDP(group="paper"), RDP(group="mixture"), RDP(group="mixture", complement=True)
MNIST, RESNET, OPATUT = (
    SampledGaussian(3.0, 0.001, 1000),
    SampledGaussian(19.0, 0.064, 2343),
    SampledGaussian(3.0, 0.01024, 1710),
)


def radius(mechanism: SampledGaussian, method: Method, bounds: str, *counts: int, total: int) -> int:
    """Radius of one example of ten classes; votes that are not given go to the last eight, evenly."""
    top, second = counts
    rest = total - top - second
    row = [top, second, *(rest // 8 + (i < rest % 8) for i in range(8))]
    return int(certify(Votes.from_counts([row], mechanism=mechanism), method=method, bounds=bounds).radius[0])


UNANIMOUS = [
    # mechanism, bounds, RDP paper, RDP mixture, RDP mixture + complement, f-DP
    (MNIST, "pointwise", 147, 136, 175, 221),
    (MNIST, "simuem", 145, 134, 172, 217),
    (MNIST, "simultaneous", 143, 133, 170, 215),
    (RESNET, "pointwise", 13, 9, 11, 14),
    (RESNET, "simultaneous", 12, 8, 11, 14),
    (OPATUT, "pointwise", 10, 10, 13, 16),
    (OPATUT, "simultaneous", 10, 9, 12, 16),
]


@pytest.mark.more
@pytest.mark.parametrize(("mechanism", "bounds", "paper", "mixture", "complement", "fdp"), UNANIMOUS)
def test_unanimous_votes(
    mechanism: SampledGaussian, bounds: str, paper: int, mixture: int, complement: int, fdp: int
) -> None:
    assert radius(mechanism, PAPER, bounds, 1000, 0, total=1000) == paper
    assert abs(radius(mechanism, MIXTURE, bounds, 1000, 0, total=1000) - mixture) <= 1
    assert abs(radius(mechanism, BOTH, bounds, 1000, 0, total=1000) - complement) <= 1
    assert radius(mechanism, FDP(), bounds, 1000, 0, total=1000) == fdp


@pytest.mark.parametrize(("bounds", "exact"), [("pointwise", 135), ("simuem", 134), ("simultaneous", 132)])
def test_the_mixture_rule_never_exceeds_the_exact_radius(bounds: str, exact: int) -> None:
    assert exact - 1 <= radius(MNIST, MIXTURE, bounds, 1000, 0, total=1000) <= exact


def test_fewer_instances_at_opatut() -> None:
    assert radius(OPATUT, PAPER, "pointwise", 500, 0, total=500) == 9


def test_adp() -> None:
    # delta = 1e-5; published 44, with a group delta that is too small; the page's own 43 used coarser orders.
    assert radius(MNIST, ADP(), "pointwise", 1000, 0, total=1000) in (43, 44)
    assert radius(MNIST, ADP(), "simultaneous", 1000, 0, total=1000) == 42


OTHER_COUNTS = [
    # steps, (top, second, total), RDP paper, RDP mixture, f-DP, f-DP with simultaneous bounds
    (469, (1000, 0, 1000), 103, 91, 149, 147),
    (469, (950, 30, 1000), 67, 62, 94, 93),
    (469, (800, 100, 1000), 40, 38, 55, 54),
    (469, (10000, 0, 10000), 135, 115, 196, 195),
    (4690, (1000, 0, 1000), 30, 29, 47, 46),
    (4690, (950, 30, 1000), 20, 19, 29, 29),
    (4690, (800, 100, 1000), 12, 12, 17, 17),
    (4690, (10000, 0, 10000), 38, 36, 62, 61),
]


@pytest.mark.more
@pytest.mark.parametrize(("steps", "counts", "paper", "mixture", "fdp", "simultaneous"), OTHER_COUNTS)
def test_other_counts(
    steps: int, counts: tuple[int, int, int], paper: int, mixture: int, fdp: int, simultaneous: int
) -> None:
    mechanism, (top, second, total) = SampledGaussian(3.0, 128 / 60000, steps), counts
    assert radius(mechanism, PAPER, "simuem", top, second, total=total) == paper
    assert abs(radius(mechanism, MIXTURE, "simuem", top, second, total=total) - mixture) <= 1
    assert radius(mechanism, FDP(), "simuem", top, second, total=total) == fdp
    assert radius(mechanism, FDP(), "simultaneous", top, second, total=total) == simultaneous


# --- real votes -------------------------------------------------------------------------------------------------------

# 1000 LeNet-5 on MNIST that another program trained with the paper's settings, of which the page has the numbers below.
REAL = Path(__file__).parent / "golden" / "mnist-lenet5-sigma3.npz"


@cache
def real_votes() -> Votes:
    return read_votes(REAL, mechanism=MNIST, labels_key="y")


TABLE = [
    # bounds, method, certified accuracy at 0, 50, 100, 140, 200, median, max, tolerance of the accuracies
    ("pointwise", PAPER, (0.8793, 0.797, 0.678, 0.505, 0), 141, 147, 5e-4),
    ("pointwise", MIXTURE, (0.8793, 0.793, 0.661, 0, 0), 130, 136, 2e-3),
    ("simuem", PAPER, (0.8782, 0.795, 0.675, 0.498, 0), 139, 145, 5.1e-4),
    ("simuem", MIXTURE, (0.8782, 0.792, 0.659, 0, 0), 129, 134, 2e-3),
    ("simuem", FDP(), (0.8782, 0.8237, 0.7540, 0.6861, 0.5276), 206, 217, 5e-4),
    ("simultaneous", FDP(), (0.8774, 0.8222, 0.7525, 0.6841, 0.5236), 204, 215, 5e-4),
]


@pytest.mark.more
@pytest.mark.parametrize(("bounds", "method", "accuracies", "median", "largest", "tolerance"), TABLE)
def test_real_votes(
    bounds: str, method: Method, accuracies: tuple[float, ...], median: int, largest: int, tolerance: float
) -> None:
    votes = real_votes()
    assert votes.labels is not None
    found: Certificate = certify(votes, method=method, bounds=bounds)
    assert found.accuracy(votes.labels, [0, 50, 100, 140, 200]) == pytest.approx(accuracies, abs=tolerance)
    # A wrong or abstained point counts as -1.
    assert abs(np.median(np.where(found.label == votes.labels, found.radius, -1)) - median) <= 1
    assert abs(found.radius.max() - largest) <= 1
