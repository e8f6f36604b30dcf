"""Classifiers of scikit-learn as the learners of parts: functions of what they see, whatever an attacker puts there."""

from __future__ import annotations

import os
import pickle
import random
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from mithridate import ArtifactError, CertifiedClassifier, ConfigError, Ray, certify
from mithridate.data import Category, Number, Table, read
from mithridate.data.columns import compact
from mithridate.data.partition import content_hashes
from mithridate.defences import DPA, Bagging, Defence, FiniteAggregation, RunOffElection, SpreadRunOff, predict
from mithridate.defences.partitions import Parts, SpreadRule
from mithridate.training import learners
from mithridate.training.learners import Learner, LearnerMachine, pick_learner, seed_of

Data = tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]
Sets = tuple[Data, Data]
TREE = {"name": "extra-trees", "n_estimators": 3}


@pytest.fixture(scope="module")
def table() -> Sets:
    """Two columns of three overlapping classes."""
    drawn = np.random.default_rng(5)
    y = drawn.integers(3, size=260)
    x = drawn.normal(size=(260, 2)) + np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]])[y]
    return (x[:200], y[:200]), (x[200:], y[200:])


@pytest.fixture(autouse=True)
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the rehearsal in another process, which takes a second, to the tests that are about it."""
    if "rehearsed" not in request.node.name:
        monkeypatch.setattr(LearnerMachine, "rehearse", lambda self: None)


class Raising(ClassifierMixin, BaseEstimator):
    """Learns only where every label is below `limit`."""

    def __init__(self, limit: int = 2) -> None:
        self.limit = limit

    def fit(self, x: Any, y: Any) -> Raising:
        if len(np.unique(y)) > self.limit:
            raise ZeroDivisionError("a part that no learner likes")
        self.classes_ = np.unique(y)
        return self

    def predict(self, x: Any) -> Any:
        return np.full(len(x), self.classes_[-1])


class NotANumber(Raising):
    """Gives no number for inputs whose first column is negative."""

    def predict_proba(self, x: Any) -> Any:
        scores = np.tile([0.2, 0.8], (len(x), 1))
        scores[np.asarray(x)[:, 0] < 0] = np.nan
        return scores


class Unsteady(Raising):
    """Votes as the operating system's randomness says."""

    def predict(self, x: Any) -> Any:
        return np.frombuffer(os.urandom(len(x)), dtype=np.uint8) % len(self.classes_)


class Global(Raising):
    """Draws from the global generators."""

    def predict(self, x: Any) -> Any:
        return (np.random.random(len(x)) + random.random() > 1).astype(int)  # noqa: NPY002


def slow_counts(learner: Any, train: Data, test: Data, partitions: int, classes: int) -> npt.NDArray[np.int64]:
    """Votes of the parts, by scikit-learn itself."""
    (x, y), inputs = train, test[0].astype(np.float32)
    counts = np.zeros((len(inputs), classes), dtype=np.int64)
    for model, members in enumerate(Parts(partitions).members(content_hashes(x, y))):
        own = np.unique(y[members])
        if len(own) < 2:
            counts[:, own[0] if len(own) else 0] += 1
            continue
        fitted = learner(seed_of(model)).fit(x[members].astype(np.float32), y[members])
        scores = np.zeros((len(inputs), classes), dtype=np.float32)
        scores[:, own] = fitted.predict_proba(inputs)
        counts[np.arange(len(inputs)), scores.argmax(axis=1)] += 1
    return counts


@pytest.mark.parametrize(
    ("given", "built"),
    [
        (TREE, lambda seed: ExtraTreesClassifier(3, random_state=seed)),
        (DecisionTreeClassifier(max_depth=2), lambda seed: DecisionTreeClassifier(max_depth=2, random_state=seed)),
        ({"name": "logistic", "C": 0.5}, lambda seed: LogisticRegression(C=0.5, max_iter=200, random_state=seed)),
    ],
)
def test_parts_vote_as_scikit_learn_says(table: Sets, given: Any, built: Any) -> None:
    votes = DPA(learner=given, partitions=12, classes=3).train(*table)
    assert np.array_equal(votes.counts, slow_counts(built, *table, 12, 3))


def test_the_order_of_the_rows_does_not_matter(table: Sets) -> None:
    (x, y), test = table
    mixed = np.random.default_rng(0).permutation(len(x))
    defence = RunOffElection(learner=TREE, partitions=12, classes=3)
    first, second = defence.train((x, y), test), defence.train((x[mixed], y[mixed]), test)
    assert np.array_equal(first.counts, second.counts)
    assert np.array_equal(first.evidence["preferences"], second.evidence["preferences"])


def test_models_of_a_learner_are_asked_how_they_rank_the_labels(table: Sets) -> None:
    options: dict[str, Any] = {"learner": TREE, "partitions": 4, "spread": 2, "classes": 3}
    ranked, voted = SpreadRunOff(**options).train(*table), FiniteAggregation(**options).train(*table)
    assert np.array_equal(ranked.evidence["rankings"][:, :, 0], voted.evidence["predictions"])
    assert np.array_equal(certify(ranked, method=SpreadRule()).radius, certify(voted).radius)


def test_an_inserted_example_changes_the_models_that_see_it_and_no_others(table: Sets) -> None:
    (x, y), test = table
    defence = FiniteAggregation(learner=TREE, partitions=8, spread=2, classes=3)
    before = defence.train((x, y), test).evidence["predictions"]
    poisoned = np.vstack([x, [[1e30, -1e30]]]), np.append(y, 2)
    after = defence.train(poisoned, test).evidence["predictions"]
    assert 1 <= (before != after).any(axis=0).sum() <= 2


def test_certified_labels_withstand_poison_in_every_part(table: Sets) -> None:
    """An attacker who owns r parts, and makes their learner raise or say anything, changes no certified label."""
    (x, y), test = table
    defence = DPA(learner=TREE, partitions=12, classes=3)
    certificate = certify(defence.train((x, y), test))
    drawn = np.random.default_rng(1)
    for radius in (1, 2, 3):
        bad = drawn.choice([0.0, 1e38, -1e38, 5.0], size=(radius, 2)), drawn.integers(3, size=radius)
        poisoned = np.vstack([x, bad[0]]), np.append(y, bad[1])
        label = certify(defence.train(poisoned, test)).label
        held = certificate.radius >= radius
        assert held.any()
        assert np.array_equal(label[held], certificate.label[held])


def test_parts_that_cannot_be_learnt_vote_by_a_fixed_rule(caplog: pytest.LogCaptureFixture) -> None:
    x = np.arange(12.0)[:, None]
    learner = pick_learner(Raising(limit=2))
    for labels, vote, raised in (([], 0, None), ([2, 2], 2, None), ([0, 1, 2], 0, "ZeroDivisionError")):
        scores, error = learner.scores(x[: len(labels)], np.array(labels, dtype=np.int64), 3, 0, x)
        assert (scores.argmax(axis=1) == vote).all()
        assert (error is None) == (raised is None)
        assert raised is None or raised in str(error)
    votes = DPA(learner=Raising(limit=2), partitions=2, classes=3).train((np.tile(x, (4, 1)), np.arange(48) % 3), x)
    assert (votes.counts[:, 0] == 2).all()
    assert "could not learn from 2 of 2 parts" in caplog.text


def test_a_score_that_is_no_number_is_a_vote_for_label_0() -> None:
    x = np.array([[-1.0], [1.0]])
    scores, _ = pick_learner(NotANumber()).scores(x, np.array([1, 2]), 3, 0, x)
    assert scores.tolist() == [[1.0, 0.0, 0.0], [0.0, np.float32(0.2), np.float32(0.8)]]


def test_rehearsed_a_learner_that_is_no_function_of_its_part_is_refused(table: Sets) -> None:
    with pytest.raises(ConfigError, match="other answers when it is trained again"):
        DPA(learner=Unsteady(limit=3), partitions=5, classes=3).train(*table)


@pytest.mark.parametrize(("learner", "expected"), [(TREE, 1), (DecisionTreeClassifier(max_depth=2), 2)])
def test_rehearsed_once_in_a_process_if_it_is_named(
    table: Sets, monkeypatch: pytest.MonkeyPatch, learner: Any, expected: int
) -> None:
    starts: list[int] = []
    processes = learners._processes
    monkeypatch.setattr(learners, "_processes", lambda count, **more: starts.append(count) or processes(count, **more))
    monkeypatch.setattr(learners, "_tried_here", set[str]())
    defence = DPA(learner=learner, partitions=6, classes=3)
    assert np.array_equal(defence.train(*table).counts, defence.train(*table).counts)
    assert len(starts) == expected
    DPA(learner=learner, partitions=6, classes=4).train(*table)  # other labels are another thing to try
    assert len(starts) == expected + 1


def test_global_generators_are_seeded_and_left_as_they_were(table: Sets) -> None:
    (x, y), test = table
    defence = DPA(learner=Global(), partitions=6)
    np.random.seed(3)  # noqa: NPY002
    random.seed(3)
    expected = cast("Any", np.random.get_state())[1], random.getstate()  # noqa: NPY002
    first = defence.train((x, y % 2), test[0])
    assert np.array_equal(cast("Any", np.random.get_state())[1], expected[0])  # noqa: NPY002
    assert random.getstate() == expected[1]
    assert np.array_equal(first.counts, defence.train((x, y % 2), test[0]).counts)
    assert len(np.unique(first.counts[:, 0])) > 1


def test_rehearsed_and_in_other_processes_the_votes_are_the_same(table: Sets, monkeypatch: pytest.MonkeyPatch) -> None:
    defence = DPA(learner=DecisionTreeClassifier(max_depth=2), partitions=6, classes=3)
    alone = defence.train(*table)
    monkeypatch.setattr(learners, "_SECONDS_ALONE", 0.0)
    assert np.array_equal(defence.train(*table).counts, alone.counts)


class _Stopped(Exception):
    pass


@pytest.mark.parametrize("kind", [DPA, FiniteAggregation, RunOffElection, SpreadRunOff, Bagging])
def test_a_run_resumes_and_predicts(table: Sets, tmp_path: Path, kind: type[Defence]) -> None:
    more: dict[str, Any] = {"instances": 9, "draws": 40} if kind is Bagging else {"partitions": 5}
    defence = cast("Any", kind)(learner=TREE, classes=3, **more)
    seed: dict[str, Any] = {"root_seed": bytes(32)} if kind is Bagging else {}

    def stop(done: int, total: int) -> None:
        if done * 2 > total:
            raise _Stopped

    options: dict[str, Any] = {"run_dir": tmp_path / "run", "keep_models": True, "in_flight": 2, **seed}
    with pytest.raises(_Stopped):
        defence.train(*table, progress=stop, **options)
    resumed = defence.train(*table, **options)
    assert np.array_equal(resumed.counts, defence.train(*table, **seed).counts)
    again = predict(tmp_path / "run", table[1])
    assert np.array_equal(again.counts, resumed.counts)
    assert np.array_equal(certify(again).radius, certify(resumed).radius)
    one = predict(tmp_path / "run", table[1][0][7:8])
    assert np.array_equal(one.counts[0], resumed.counts[7])


def test_a_learner_of_the_users_own_is_given_again(table: Sets, tmp_path: Path) -> None:
    own = DecisionTreeClassifier(max_depth=2)
    votes = DPA(learner=own, partitions=5, classes=3).train(*table, run_dir=tmp_path / "run", keep_models=True)
    with pytest.raises(ConfigError, match="give it again as model="):
        predict(tmp_path / "run", table[1])
    with pytest.raises(ConfigError, match="Expected the learner of the run"):
        predict(tmp_path / "run", table[1], model=DecisionTreeClassifier(max_depth=3))
    assert np.array_equal(predict(tmp_path / "run", table[1], model=own).counts, votes.counts)


def test_a_classifier_with_a_learner_of_the_users_own_predicts_and_certifies(table: Sets) -> None:
    own = DecisionTreeClassifier(max_depth=2)
    fitted = CertifiedClassifier("dpa", learner=own, partitions=5, classes=range(3), device="cpu").fit(*table[0])
    votes = DPA(learner=own, partitions=5, classes=3).train(*table)
    assert np.array_equal(fitted.certify(*table[1]).votes.counts, votes.counts)
    assert np.array_equal(pickle.loads(pickle.dumps(fitted)).predict(table[1][0]), certify(votes).label)


def test_a_run_without_its_examples_says_what_to_do(table: Sets, tmp_path: Path) -> None:
    DPA(learner=TREE, partitions=5, classes=3).train(*table, run_dir=tmp_path / "run")
    with pytest.raises(Exception, match="--keep-models"):
        predict(tmp_path / "run", table[1])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("random-forst", "random-forest"),
        ({"name": "random-forest", "trees": 3}, "does not take these constants"),
        ({"n_estimators": 3}, "There is no learner None"),
        (ExtraTreesClassifier, "unfitted classifier"),
        (7, "unfitted classifier"),
        ({"name": "logistic", "C": float("inf")}, "finite"),
    ],
)
def test_what_is_no_learner_is_refused(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        DPA(learner=given)


def test_constants_of_networks_do_not_go_with_a_learner() -> None:
    with pytest.raises(ConfigError, match="steps is of networks"):
        DPA(learner="logistic", steps=10)
    with pytest.raises(ConfigError, match="model is of networks"):
        DPA(learner="logistic", model="linear")


def test_many_examples_are_kept_in_a_file_that_is_mapped(
    table: Sets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = DPA(learner=TREE, partitions=5, classes=3)
    in_memory = method.train(*table)
    monkeypatch.setenv("MITHRIDATE_MEMORY_BYTES", "100")
    votes = method.train(*table, run_dir=tmp_path / "run", keep_models=True)
    assert np.array_equal(votes.counts, in_memory.counts)
    kept = tmp_path / "run" / "examples.npy"
    assert np.array_equal(np.load(kept), table[0][0].astype(np.float32))
    monkeypatch.delenv("MITHRIDATE_MEMORY_BYTES")  # what is kept says where it is
    assert np.array_equal(predict(tmp_path / "run", table[1]).counts, votes.counts)
    changed = bytearray(kept.read_bytes())
    changed[-3] ^= 1
    kept.write_bytes(changed)
    with pytest.raises(ArtifactError, match=r"examples\.npy was changed"):
        predict(tmp_path / "run", table[1])
    kept.unlink()
    with pytest.raises(ArtifactError, match=r"examples\.npy"):
        predict(tmp_path / "run", table[1])


def test_to_a_learner_that_counts_a_number_below_0_is_one_in_another_column(table: Sets) -> None:
    rows = np.array([[1.5, -2.0], [0.0, 3.0]], dtype=np.float32)
    counts = learners.inputs_for(learners.pick_learner("complement-naive-bayes"), rows, None)
    assert (counts >= 0).all()
    np.testing.assert_array_equal(counts[:, :2] - counts[:, 2:], rows)
    votes = DPA(learner="complement-naive-bayes", partitions=5).train(*table)
    assert (votes.counts.argmax(axis=1) == votes.labels).mean() > 0.5


def test_texts_are_counted(tmp_path: Path) -> None:
    words = {0: "apples pears plums cherries", 1: "hammers nails saws pliers"}
    random = np.random.default_rng(2)
    labels = np.arange(80) % 2
    texts = np.array([" ".join(random.choice(words[label].split(), 3)) for label in labels.tolist()])
    defence = DPA(learner="complement-naive-bayes", partitions=6)
    votes = defence.train((texts[:60], labels[:60]), (texts[60:], labels[60:]), run_dir=tmp_path, keep_models=True)
    assert (votes.counts.argmax(axis=1) == labels[60:]).mean() > 0.9
    again = predict(tmp_path, texts[60:])
    np.testing.assert_array_equal(again.counts, votes.counts)


def test_a_learner_that_cannot_take_the_inputs_is_refused_before_training(table: Sets) -> None:
    with pytest.raises(ConfigError, match="cannot learn from such inputs"):
        DPA(learner=Raising(limit=1), partitions=5, classes=3).train(*table)


def test_packages_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "lightgbm", None)
    with pytest.raises(ConfigError, match="pip install lightgbm"):
        DPA(learner="lightgbm")


def test_a_learner_is_recorded_and_shown(table: Sets) -> None:
    defence = DPA(learner=TREE, partitions=5, classes=3)
    votes = defence.train(*table)
    assert votes.recipe is not None
    assert votes.recipe["learner"] == TREE
    assert votes.recipe["defence"]["learner"] == TREE
    assert isinstance(defence.learner, Learner)


def test_trees_see_every_column_of_a_table_as_one_number(tmp_path: Path) -> None:
    drawn = np.random.default_rng(2)
    high = drawn.integers(2, size=300)
    frame = pd.DataFrame({"x": drawn.normal(size=300) + 2 * high, "kind": drawn.choice(["a", "b"], 300), "y": high})
    frame.loc[5, "x"] = None
    columns = (Number("x", -3.0, 5.0), Category("kind", buckets=4))
    examples = read(frame, Table(label="y", columns=columns, classes=("0", "1")))
    small = compact(examples.x, columns)
    assert small.shape == (300, 2 + 5)
    kept = frame["x"].notna().to_numpy()
    # The height rises with the value, within the range.
    order = np.argsort(np.clip(frame["x"].to_numpy()[kept], -3, 5))
    assert (np.diff(small[kept, 0][order]) >= 0).all()
    assert small[~kept, 0].tolist() == [0.0]
    assert small[~kept, 1].tolist() == [1.0]
    assert np.array_equal(compact(examples.x[7:8], columns)[0], small[7])
    defence = DPA(learner=TREE, partitions=6)
    votes = defence.train(examples, examples.part(slice(0, 40)), run_dir=tmp_path / "run", keep_models=True)
    assert np.load(tmp_path / "run" / "examples.npz")["inputs"].shape[1] == 7
    assert np.array_equal(predict(tmp_path / "run", examples.part(slice(0, 40))).counts, votes.counts)


@pytest.mark.more
def test_parts_over_ray_give_the_same_votes(table: Sets, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs: pip install 'mithridate[ray]'")
    defence = DPA(learner="extra-trees", partitions=9)
    local = defence.train(*table)
    votes = defence.train(*table, backend=Ray(workers=2), in_flight=3, run_dir=tmp_path, keep_models=True)
    np.testing.assert_array_equal(votes.counts, local.counts)
    np.testing.assert_array_equal(predict(tmp_path, table[1]).counts, local.counts)
