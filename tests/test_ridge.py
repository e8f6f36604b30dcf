"""Ridge regression against scikit-learn, and its certificates against attacks on small and large data."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from sklearn.linear_model import Ridge as PlainRidge

from mithridate.core.mechanism import Threat
from mithridate.core.votes import Votes
from mithridate.data import Category, Date, Number, Ordered, Table, Text, read
from mithridate.data.columns import Column
from mithridate.data.examples import Examples, as_examples
from mithridate.defences import Ridge, defence
from mithridate.defences._nearness import StoredExamples
from mithridate.defences._whole_rows import LARGEST_NORM
from mithridate.defences.automatic import Auto
from mithridate.defences.ridge import ONE, LeastSquares, RidgeRule, ridge_votes
from mithridate.errors import ConfigError
from mithridate.features import UnitNorm
from mithridate.training.order import Facts, facts_of

Array = npt.NDArray[Any]
BIAS = UnitNorm(bias=1.0)


def stored(x: Array, y: Array, classes: int, encoder: UnitNorm = BIAS) -> StoredExamples:
    return StoredExamples.of(as_examples((x, y), "training", need_labels=True), encoder, classes, sparse=False)


def blobs(seed: int, n: int, d: int, classes: int, *, noise: float = 0.15) -> tuple[Array, Array]:
    random = np.random.default_rng(seed)
    y = random.integers(0, classes, n)
    x = random.normal(size=(n, d)) + 2.0 * random.normal(size=(classes, d))[y]
    return x, np.where(random.random(n) < noise, random.integers(0, classes, n), y)


# --- a second route from examples to scores -------------------------------------------------------------------------


def scores_of(rows: Array, labels: Array, inputs: Array, penalty: float, weights: Array) -> Array:
    """By scikit-learn's ridge regression."""
    if not len(rows):
        return np.zeros((len(inputs), len(weights)))
    targets = np.eye(len(weights))[labels]
    fitted = PlainRidge(alpha=penalty, fit_intercept=False, solver="svd").fit(rows, targets)
    return fitted.predict(inputs).reshape(len(inputs), -1) * weights


def unit(whole_rows: Any) -> Array:
    return np.asarray(whole_rows, dtype=np.float64) / LARGEST_NORM


@pytest.mark.parametrize("weights", [None, (1, 4, 2)])
def test_scores_are_those_of_scikit_learn(weights: tuple[int, ...] | None) -> None:
    x, y = blobs(0, 60, 4, 3)
    examples = stored(x, y, 3)
    inputs = np.random.default_rng(1).normal(size=(20, 4))
    votes = ridge_votes(examples, inputs, penalty=2.5, class_weights=weights)
    (rows,) = examples.asked(inputs, mirrored=False).views
    expected = scores_of(unit(examples.rows), y, unit(rows), 2.5, np.array(weights or (1, 1, 1)))
    above = expected - expected.min(axis=1, keepdims=True)
    one = votes.mechanism.to_dict()["one"]
    assert one == (ONE if weights is None else ONE // 4)
    np.testing.assert_allclose(votes.counts / one, above, atol=1e-7)
    assert (votes.counts.argmax(axis=1) == expected.argmax(axis=1)).all()
    assert any("class weight" in sentence for sentence in votes.assumptions) == (weights is not None)


def allowance(votes: Votes, example: int, rival: int, changes: int) -> float:
    """What so many changes may take from a lead, by the evidence."""
    offset, slope = (int(votes.evidence[name][example, rival]) for name in ("offset", "slope"))
    return (offset + changes * slope) / ONE


# --- what changes take ----------------------------------------------------------------------------------------------


def attacks(
    rows: Array, labels: Array, x: Array, label: int, rival: int, changes: int, penalty: float, random: Any
) -> list[tuple[Array, Array]]:
    """Poisoned examples, so many changes each: copies of the input, directed rows, deletions, and mixes."""
    gram = rows.T @ rows + penalty * np.eye(rows.shape[1])
    solved = np.linalg.solve(gram, x)
    models = np.linalg.solve(gram, rows.T @ np.eye(int(labels.max()) + 1 + rival)[labels])
    difference = models[:, label] - models[:, rival]
    directed = solved / np.linalg.norm(solved)
    between = solved / np.linalg.norm(solved) + difference / max(1e-9, float(np.linalg.norm(difference)))
    candidates = [x, directed, between / np.linalg.norm(between), random.normal(size=x.shape) * 0.2]
    target = (labels == label) * 1.0 - (labels == rival)
    harm = (rows @ solved) * (target - rows @ difference)
    worst = np.argsort(-harm)
    found: list[tuple[Array, Array]] = []
    for z in candidates:
        z = z / max(1.0, float(np.linalg.norm(z)))
        for deleted in sorted({0, changes // 4, changes // 2, changes}):
            kept = np.delete(np.arange(len(rows)), worst[: min(deleted, len(rows))])
            inserted = np.tile(z, (changes - deleted, 1))
            for sign, new in ((1, rival), (-1, label)):
                found.append(
                    (
                        np.vstack([rows[kept], sign * inserted]),
                        np.concatenate([labels[kept], np.full(len(inserted), new)]),
                    )
                )
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share", [0.01, 0.05, 0.3])
def test_changes_take_no_more_than_the_evidence_says(seed: int, share: float) -> None:
    random = np.random.default_rng(seed)
    classes, n = (2 + seed % 2), 80
    x, y = blobs(seed, n, 3, classes)
    penalty = share * n
    examples = stored(x, y, classes)
    inputs = random.normal(size=(6, 3))
    votes = ridge_votes(examples, inputs, penalty=penalty)
    rows, (asked,) = unit(examples.rows), examples.asked(inputs, mirrored=False).views
    before = scores_of(rows, y, unit(asked), penalty, np.ones(classes))
    tried = 0
    for i, point in enumerate(unit(asked)):
        label = int(before[i].argmax())
        for rival in set(range(classes)) - {label}:
            limit = int(votes.evidence["limit"][i, rival])
            for changes in sorted({1, 2, limit // 2, limit} - {0}):
                if changes > limit:
                    continue
                allowed = allowance(votes, i, rival, changes)
                for new_rows, new_labels in attacks(rows, y, point, label, rival, changes, penalty, random):
                    after = scores_of(new_rows, new_labels, point[None], penalty, np.ones(classes))[0]
                    taken = (before[i, label] - before[i, rival]) - (after[label] - after[rival])
                    assert taken <= allowed
                    tried += 1
    assert tried > 50


def test_the_bound_is_near_what_the_best_of_the_attacks_takes() -> None:
    """Within a factor of 3.5: or all of the above would hold of any bound that is large enough."""
    random = np.random.default_rng(4)
    x, y = blobs(3, 400, 5, 2)
    examples = stored(x, y, 2)
    votes = ridge_votes(examples, x[:30], penalty=8.0)
    radius = RidgeRule().decide(votes, Threat.SYMMETRIC_DIFFERENCE).radius
    rows, (asked,) = unit(examples.rows), examples.asked(x[:30], mirrored=False).views
    ratios: list[float] = []
    for i, point in enumerate(unit(asked)):
        label, changes = int(votes.counts[i].argmax()), int(radius[i])
        if not changes:
            continue
        before = scores_of(rows, y, point[None], 8.0, np.ones(2))[0]
        after = [
            scores_of(new_rows, new_labels, point[None], 8.0, np.ones(2))[0]
            for new_rows, new_labels in attacks(rows, y, point, label, 1 - label, changes, 8.0, random)
        ]
        taken = before[label] - before[1 - label] - min(each[label] - each[1 - label] for each in after)
        ratios.append(allowance(votes, i, 1 - label, changes) / taken)
    assert len(ratios) > 20
    assert min(ratios) >= 1.0
    assert np.median(ratios) < 3.5


@pytest.mark.parametrize("seed", range(4))
def test_labels_stay_under_attack_at_the_radius(seed: int) -> None:
    random = np.random.default_rng([seed, 5])
    x, y = blobs(seed, 150, 4, 3, noise=0.05)
    examples = stored(x, y, 3)
    votes = ridge_votes(examples, x[:10], penalty=10.0)
    decision = RidgeRule().decide(votes, Threat.SYMMETRIC_DIFFERENCE)
    rows, (asked,) = unit(examples.rows), examples.asked(x[:10], mirrored=False).views
    assert (decision.radius > 1).sum() >= 3
    for i, point in enumerate(unit(asked)):
        label, radius = int(decision.label[i]), int(decision.radius[i])
        for rival in set(range(3)) - {label}:
            for new_rows, new_labels in attacks(rows, y, point, label, rival, radius, 10.0, random):
                after = scores_of(new_rows, new_labels, point[None], 10.0, np.ones(3))[0]
                assert after.argmax() == label


# --- tables: what a row can be --------------------------------------------------------------------------------------


COLUMNS: tuple[Column, ...] = (
    Number("size", 0, 10, bins=5),
    Number("amount", 0, 1000, bins=8, scale="log"),
    Category("kind", buckets=16),
    Ordered("grade", order=("low", "middle", "high")),
    Date("day", 2000, 2010, time=True),
    Text("words", dimension=16),
)


def cells(random: np.random.Generator, n: int) -> pd.DataFrame:
    days = [
        datetime.datetime(2000, 1, 1) + datetime.timedelta(minutes=int(m)) for m in random.integers(0, 5_000_000, n)
    ]
    frame = pd.DataFrame(
        {
            "size": random.uniform(-1, 11, n),
            "amount": random.choice([0.0, 1.0, 3.0, 30.0, 200.0, 1000.0], n),
            "kind": random.choice([f"k{i}" for i in range(30)], n),
            "grade": random.choice(["low", "middle", "high"], n),
            "day": [f"{day:%Y-%m-%d %H:%M}" for day in days],
            "words": random.choice(["", "one", "two words", "three more words"], n),
        }
    )
    return frame.mask(random.random(frame.shape) < 0.1)


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: f"{column.kind}-{column.name}")
def test_no_cell_goes_beyond_what_a_column_says(column: Column) -> None:
    random = np.random.default_rng(8)
    beside = Number("beside", 0, 1)  # text alone would stay text
    frame = cells(random, 600).assign(beside=0.5)
    rows = read(frame, Table(None, (column, beside), classes=("a", "b")), labels=False).x[:, : column.width]
    blocks = np.unique(rows.astype(np.float64), axis=0)
    vectors = np.vstack([random.normal(size=(50, column.width)), blocks[:100], -blocks[:100]])
    assert ((blocks @ vectors.T).max(axis=0) <= column.highest(vectors) + 1e-5).all()
    assert (np.square(blocks).sum(axis=1) >= column.least_square - 1e-5).all()
    assert np.asarray(frame[column.name].isna()).any()


def test_numbers_and_steps_reach_what_their_columns_say() -> None:
    random = np.random.default_rng(9)
    for column, values in (
        (COLUMNS[0], [2.0 * i for i in range(6)]),
        (COLUMNS[3], ["low", "middle", "high"]),
    ):
        frame = pd.DataFrame({column.name: [*values, None]})
        rows = read(frame, Table(None, (column,), classes=("a", "b")), labels=False).x.astype(np.float64)
        vectors = random.normal(size=(30, column.width))
        np.testing.assert_allclose((rows @ vectors.T).max(axis=0), column.highest(vectors), atol=1e-6)


def table_examples(random: np.random.Generator, n: int) -> Examples:
    frame = cells(random, n)
    frame["label"] = np.where(frame["size"].fillna(5) + random.normal(size=n) > 5, "b", "a")
    return read(frame, Table("label", COLUMNS, classes=("a", "b")), labels=True)


def test_rows_of_a_table_stay_within_what_is_declared() -> None:
    """The largest product of rows as they are stored, against the bound for all rows that there could be."""
    from mithridate.defences.ridge import _highest_of

    random = np.random.default_rng(10)
    examples = StoredExamples.of(table_examples(random, 500), BIAS, 2, sparse=False)
    rows = unit(examples.rows)
    vectors = np.vstack([random.normal(size=(40, rows.shape[1])), rows[:40]])
    found = _highest_of(examples)(vectors)
    assert ((rows @ vectors.T).max(axis=0) <= found).all()
    # Knowing the columns must help, or this checks nothing but norms.
    assert (found < 0.8 * np.linalg.norm(vectors, axis=1))[:40].mean() > 0.9


def test_certificates_of_a_table_withstand_its_own_rows() -> None:
    random = np.random.default_rng(11)
    training = table_examples(random, 300)
    test = replace(training, x=training.x[:30], y=None)
    votes = Ridge(penalty=20.0).train(training, test)
    decision = RidgeRule().decide(votes, Threat.SYMMETRIC_DIFFERENCE)
    assert (decision.radius >= 3).sum() >= 10
    for i in np.flatnonzero(decision.radius >= 3)[:8].tolist():
        r, label = int(decision.radius[i]), int(decision.label[i])
        assert training.y is not None
        mine = np.flatnonzero(training.y == label)
        alike = np.argsort(-(training.x[mine] @ training.x[i]))
        for deleted in (0, r // 2, r):
            kept = np.delete(np.arange(300), mine[alike[:deleted]])
            x = np.vstack([training.x[kept], np.tile(training.x[i], (r - deleted, 1))])
            y = np.concatenate([training.y[kept], np.full(r - deleted, 1 - label)])
            poisoned = replace(training, x=x.astype(np.float32), y=y)
            again = Ridge(penalty=20.0).train(poisoned, replace(test, x=test.x[i : i + 1]))
            assert int(again.counts[0].argmax()) == label


# --- rule, doors and refusals ---------------------------------------------------------------------------------------


def evidence(offset: list[int], slope: list[int], limit: list[int]) -> dict[str, Array]:
    return {name: np.array([values]) for name, values in (("offset", offset), ("slope", slope), ("limit", limit))}


@pytest.mark.parametrize(
    ("threat", "radius"), [(Threat.SYMMETRIC_DIFFERENCE, 6), (Threat.ADD, 6), (Threat.REPLACE, 3), (Threat.LABELS, 3)]
)
def test_the_rival_that_gets_level_first_decides(threat: Threat, radius: int) -> None:
    votes = Votes(
        np.array([[100, 0, 60]]), LeastSquares(10), evidence=evidence([0, 10, 8], [0, 9, 5], [0, 50, 40])
    )  # (100 - 10) / 9 = 10 and (40 - 8) / 5 = 6
    decision = RidgeRule().decide(votes, threat)
    assert decision.label.tolist() == [0]
    assert decision.radius.tolist() == [radius]


def test_the_limit_ends_a_radius_and_an_offset_beyond_the_lead_leaves_none() -> None:
    counts = np.array([[100, 0]])
    assert RidgeRule().decide(
        Votes(counts, LeastSquares(10), evidence=evidence([0, 1], [0, 1], [0, 7])), Threat.ADD
    ).radius.tolist() == [7]
    assert RidgeRule().decide(
        Votes(counts, LeastSquares(10), evidence=evidence([0, 101], [0, 1], [0, 7])), Threat.ADD
    ).radius.tolist() == [0]


def test_what_cannot_be_is_refused() -> None:
    x, y = blobs(0, 40, 3, 2)
    with pytest.raises(ConfigError, match="penalty"):
        defence("ridge", penalty=0)
    with pytest.raises(ConfigError, match="too small"):
        ridge_votes(stored(x, y, 2), x, penalty=1e-9)
    with pytest.raises(ConfigError, match="at most 8,192 features"):
        ridge_votes(stored(np.ones((4, 9000)), y[:4], 2), np.ones((1, 9000)), penalty=1.0)
    with pytest.raises(ConfigError, match="class_weights"):
        ridge_votes(stored(x, y, 2), x, penalty=1.0, class_weights=(1, 2, 3))


def test_costs_that_are_too_large_to_keep_show_nothing() -> None:
    """Two columns that are nearly the same, and next to no penalty: an example can move the models by a million."""
    random = np.random.default_rng(3)
    x = np.stack([np.ones(300), random.choice([-1, 1], 300) / 4096], axis=1)
    votes = ridge_votes(stored(x, np.arange(300) % 2, 2, UnitNorm(bias=0.0)), x[:5], penalty=1e-6)
    assert (RidgeRule().decide(votes, Threat.ADD).radius == 0).all()


def test_large_class_weights_leave_counts_that_files_hold(tmp_path: Path) -> None:
    x, y = blobs(0, 40, 3, 2)
    votes = ridge_votes(stored(x, y, 2), x, penalty=0.15, class_weights=(1, 1_000_000))
    assert votes.counts.argmax(axis=1).mean() > (y == 1).mean()
    votes.save(tmp_path / "votes.npz")
    np.testing.assert_array_equal(Votes.load(tmp_path / "votes.npz").counts, votes.counts)


def test_an_input_without_features_gets_no_radius() -> None:
    x, y = blobs(0, 40, 3, 2)
    votes = ridge_votes(stored(x, y, 2, UnitNorm(bias=0.0)), np.zeros((1, 3)), penalty=5.0)
    assert RidgeRule().decide(votes, Threat.ADD).radius.tolist() == [0]


@pytest.mark.parametrize(
    ("radius", "constants", "chosen"),
    [
        (1, {}, "ridge"),
        (2, {"class_weights": [1, 3]}, "ridge"),
        (3, {}, "nearest-neighbours"),
        (None, {}, "nearest-neighbours"),
        (1, {"mirrored": False}, "nearest-neighbours"),
    ],
)
def test_auto_takes_it_for_tables_where_few_changes_are_feared(
    radius: int | None, constants: dict[str, Any], chosen: str
) -> None:
    facts = Facts(num_train=1000, classes=2, shape=(40,), kind="float", is_table=True)
    found, reason = Auto(constants=constants, radius=radius).pick(facts)
    assert found.name == chosen
    assert reason
    assert Auto(constants=constants, radius=radius).pick(replace(facts, is_table=False))[0].name == "nearest-neighbours"


def test_auto_knows_a_table_by_its_declaration() -> None:
    training = table_examples(np.random.default_rng(12), 60)
    facts, _ = facts_of(Ridge(), training)
    assert facts.is_table
    assert not facts_of(Ridge(), replace(training, declaration=None))[0].is_table
