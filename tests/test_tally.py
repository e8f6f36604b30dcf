"""Votes against a loop over models and inputs in numpy."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from mithridate.training import engine
from mithridate.training.engine import Counter
from mithridate.training.run_directory import TallyArrays, added

CPU = torch.device("cpu")


class Script:
    """A network whose logits are written down: inputs are the numbers of their columns."""

    def __init__(self, logits: npt.NDArray[np.float32]) -> None:
        self.table = torch.from_numpy(logits)
        self.calls = 0

    def logits(self, weights: Tensor, inputs: Tensor) -> Tensor:
        self.calls += 1
        rows = weights[:, 0].long()
        return self.table[rows][:, inputs[:, 0].long()]


def count(logits: npt.NDArray[np.float32], bins: int = 8) -> TallyArrays:
    models, inputs, classes = logits.shape
    numbers = np.arange(inputs, dtype=np.float32)[:, None]
    weights = torch.arange(models, dtype=torch.float32)[:, None]
    script: Any = Script(logits)
    return Counter(script, classes, bins, CPU).count(weights, numbers)


def oracle(logits: npt.NDArray[np.float32], bins: int) -> TallyArrays:
    models, inputs, classes = logits.shape
    counts = np.zeros((inputs, classes), np.int64)
    sums, squares = np.zeros((inputs, classes)), np.zeros((inputs, classes))
    histograms = np.zeros((inputs, classes, bins), np.int64)
    for model in range(models):
        for at in range(inputs):
            row = [float(value) for value in logits[model, at]]
            if not all(math.isfinite(value) for value in row):
                row = [0.0] + [-math.inf] * (classes - 1)
            counts[at, row.index(max(row))] += 1  # the first of equals
            powers = [math.exp(value - max(row)) for value in row]
            for label, power in enumerate(powers):
                score = power / sum(powers)
                sums[at, label] += score
                squares[at, label] += score**2
                histograms[at, label, min(int(score * bins), bins - 1)] += 1
    return {"counts": counts, "score_sums": sums, "score_squares": squares, "score_histograms": histograms}


def assert_same(actual: TallyArrays, expected: TallyArrays, *, histograms: bool = True) -> None:
    assert np.array_equal(actual["counts"], expected["counts"])
    # Scores are those of a softmax in single precision; the sums add nothing to its rounding.
    np.testing.assert_allclose(actual["score_sums"], expected["score_sums"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(actual["score_squares"], expected["score_squares"], rtol=1e-5, atol=1e-6)
    if histograms:
        assert actual["score_histograms"] is not None
        assert expected["score_histograms"] is not None
        assert np.array_equal(actual["score_histograms"], expected["score_histograms"])


def test_votes_are_those_of_a_loop() -> None:
    logits = np.random.default_rng(0).normal(0, 3, (7, 11, 5)).astype(np.float32)
    found = count(logits)
    assert_same(found, oracle(logits, 8))
    assert found["counts"].dtype == np.int64
    assert found["score_sums"].dtype == found["score_squares"].dtype == np.float64


@settings(max_examples=80)
@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(2, 4)),
        elements=st.one_of(
            st.sampled_from([0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 2.0**127, -(2.0**127)]),
            st.floats(-30, 30, width=32),
        ),
    )
)
def test_votes_are_those_of_a_loop_whatever_the_logits(logits: npt.NDArray[np.float32]) -> None:
    # Histograms may differ where a score lies on the edge of a bin to the last digit.
    found = count(logits)
    assert_same(found, oracle(logits, 8), histograms=False)
    assert (found["score_histograms"].sum(axis=2) == len(logits)).all()
    assert (found["counts"].sum(axis=1) == len(logits)).all()
    np.testing.assert_allclose(found["score_sums"].sum(axis=1), len(logits), rtol=1e-6)


def test_equal_logits_vote_for_the_smaller_label() -> None:
    logits = np.array([[[1, 1, 0]], [[0, 2, 2]], [[3, 3, 3]]], dtype=np.float32)
    assert count(logits)["counts"].tolist() == [[2, 1, 0]]


@pytest.mark.parametrize("classes", [2, 10, 64, 1000])
def test_ties_go_to_the_smaller_label_for_any_number_of_classes(classes: int) -> None:
    # A vectorised argmax must not find another one of equals first.
    logits = np.zeros((1, classes - 1, classes), dtype=np.float32)
    for first in range(classes - 1):
        logits[0, first, first:] = 1.0
    assert np.array_equal(count(logits, bins=0)["counts"].argmax(axis=1), np.arange(classes - 1))


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_diverged_model_votes_for_label_0_with_score_1(broken: float) -> None:
    logits = np.zeros((2, 3, 4), dtype=np.float32)
    logits[:, :, 2] = 5.0
    logits[1, 1, 3] = broken
    found, healthy = count(logits), count(logits[:1])
    other = count(logits[1:])
    assert other["counts"][1].tolist() == [1, 0, 0, 0]
    assert other["score_sums"][1].tolist() == [1, 0, 0, 0]
    assert other["score_squares"][1].tolist() == [1, 0, 0, 0]
    assert other["score_histograms"][1, 0].tolist() == [0] * 7 + [1]
    assert other["score_histograms"][1, 1].tolist() == [1] + [0] * 7
    # Neither the model's other votes nor those of other models are touched.
    assert np.array_equal(other["counts"][[0, 2]], healthy["counts"][[0, 2]])
    assert np.array_equal(found["counts"], added(healthy, other)["counts"])


@pytest.mark.parametrize("bins", [2, 8, 4096])
def test_edges_of_the_bins(bins: int) -> None:
    # Scores that a softmax in single precision gives exactly: 1 and 0, 1/2 twice, 1/4 four times.
    inf = np.float32(200.0)
    logits = np.array([[[inf, -inf, -inf, -inf], [0, 0, -inf, -inf], [0, 0, 0, 0]]], dtype=np.float32)
    histograms = count(logits, bins)["score_histograms"]
    places = histograms.argmax(axis=2)
    assert (histograms.sum(axis=2) == 1).all()
    assert places[0].tolist() == [bins - 1, 0, 0, 0]  # the last bin includes 1
    assert places[1].tolist() == [bins // 2, bins // 2, 0, 0]  # an edge belongs to the bin above
    assert places[2].tolist() == [bins // 4] * 4


def test_no_bins_no_histograms() -> None:
    assert count(np.zeros((2, 3, 4), np.float32), bins=0).keys() == {"counts", "score_sums", "score_squares"}


def test_sums_are_in_double_precision() -> None:
    # 3,000 scores of 1 and one of 2^-20: in single precision the small one would be lost.
    small = math.log(2.0**-20)
    logits = np.zeros((3001, 1, 2), dtype=np.float32)
    logits[:3000, 0, 0] = 200.0
    logits[3000, 0, 0] = small
    scores = count(logits)["score_sums"][0]
    assert abs(scores[0] - 3000 - 2.0**-20) < 1e-9


@pytest.mark.parametrize("budget", [1, 10**5])
def test_pieces_change_nothing(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = np.random.default_rng(1).normal(0, 2, (5, 40, 3)).astype(np.float32)
    whole = count(logits)
    monkeypatch.setitem(engine._BYTES, "cpu", budget)  # pyright: ignore[reportPrivateUsage]
    script: Any = Script(logits)
    numbers = np.arange(40, dtype=np.float32)[:, None]
    pieces = Counter(script, 3, 8, CPU).count(torch.arange(5.0)[:, None], numbers)
    assert script.calls > 1
    # A softmax of fewer rows may round otherwise in its last digit.
    assert_same(pieces, whole)


def test_tallies_of_groups_add_up() -> None:
    logits = np.random.default_rng(2).normal(0, 2, (6, 4, 3)).astype(np.float32)
    whole, parts = count(logits), added(count(logits[:2]), count(logits[2:]))
    assert np.array_equal(whole["counts"], parts["counts"])
    np.testing.assert_allclose(whole["score_sums"], parts["score_sums"], rtol=1e-12)
    np.testing.assert_allclose(whole["score_squares"], parts["score_squares"], rtol=1e-12)
    assert np.array_equal(whole["score_histograms"], parts["score_histograms"])
