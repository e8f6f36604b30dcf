"""`tune`: the choice follows the trusted examples alone, can be resumed, and says what it rests on."""

import dataclasses
import html
import itertools
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cli import Outcome, run

from mithridate import ArtifactError, CertifiedClassifier, ConfigError, Threat, certified_accuracy_scorer, certify, tune
from mithridate.core.conditions import Size, Statement, step_of
from mithridate.core.labels import commonest
from mithridate.data import Examples, read
from mithridate.data.partition import folds_by_hash
from mithridate.defences import defence
from mithridate.projects import read_project
from mithridate.training.order import Facts, compose
from mithridate.tuning import search
from mithridate.tuning.result import FINISHED, GIVEN_UP, REFUSED, Trial, Tuning
from mithridate.tuning.search import Recorded, radii_for
from mithridate.tuning.space import Candidate, Known, candidate_of

pytest.importorskip("optuna", reason="tune needs: pip install 'mithridate[tune]'")

QUICK = ("nearest-neighbours", "kernel-vote", "ridge")
Pair = tuple[np.ndarray, np.ndarray]


def linear(number: int, seed: int) -> Pair:
    """Two classes on either side of a plane."""
    x = np.random.default_rng(seed).normal(size=(number, 3))
    return x, (x[:, 0] + 0.5 * x[:, 1] > 0).astype(np.int64)


def ring(number: int, seed: int) -> Pair:
    """Four quarters of which the opposite ones are of one class: no plane tells them apart."""
    x = np.random.default_rng(seed).uniform(-1, 1, size=(number, 2))
    x += 0.2 * np.sign(x)
    return x, (x[:, 0] * x[:, 1] > 0).astype(np.int64)


TRUSTED = linear(200, 0)


def found(trusted: Any = TRUSTED, training: Any = None, **more: Any) -> Tuning:
    return tune(
        trusted, training, **{"num_train": 1000, "classes": 2, "methods": QUICK, "at": (0, 5), "trials": 5, **more}
    )


def as_json(result: Tuning) -> dict[str, Any]:
    """All but times, which differ."""
    content = result.to_dict()
    for trial in content["trials"]:
        del trial["seconds"]
    return content


# --- the training data has no part in it ------------------------------------------------------------------------------


def test_the_training_data_changes_nothing() -> None:
    alone = as_json(found(trials=4))
    few = (np.concatenate([linear(50, 3)[0], TRUSTED[0][:2]]), np.zeros(52, dtype=np.int64))
    for training in (linear(1000, 1), linear(30, 2), ring(10, 0)[0].repeat(2, axis=1)[:, :3], few):
        other = as_json(found(training=training, trials=4))
        notes = [sentence for sentence in other["remarks"] if sentence not in alone["remarks"]]
        assert {**other, "remarks": alone["remarks"]} == alone
        assert len(notes) == (training is few)


def test_a_declared_number_of_labels_needs_no_second_declaration() -> None:
    result, (x, y) = found(trials=1), linear(1000, 1)
    votes = result.defence().train((x, y), x[:3], assumptions=[result.statement])
    assert not certify(votes).conditional


def test_a_search_is_told_in_a_few_words() -> None:
    result = found(trials=2)
    assert repr(result) == f"Tuning by 2 trials on 200 trusted examples\n{result.headline}"


def test_the_order_of_the_trusted_examples_changes_nothing() -> None:
    order = np.random.default_rng(0).permutation(len(TRUSTED[1]))
    assert as_json(found((TRUSTED[0][order], TRUSTED[1][order]))) == as_json(found())


def shared_set(shared: int, label: int | None = None) -> Pair:
    """Training data with so many of the trusted inputs in it, each twice."""
    x, y = linear(300, 9)
    own = TRUSTED[1][:shared] if label is None else np.full(shared, label)
    return np.concatenate([x, TRUSTED[0][:shared], TRUSTED[0][:shared]]), np.concatenate([y, own, own])


@pytest.mark.parametrize("label", [None, 0])
def test_more_than_one_in_a_hundred_shared_examples_are_refused(label: int | None) -> None:
    with pytest.raises(ConfigError, match="3 of 200 trusted examples are in the training data, too") as error:
        found(training=shared_set(3, label))
    assert "collected apart" in str(error.value)


def test_up_to_one_in_a_hundred_is_a_note_and_nothing_is_left_out() -> None:
    noted = found(training=shared_set(2))
    assert any("2 of 200 trusted examples are in the training data" in sentence for sentence in noted.remarks)
    assert noted.examples == 200
    assert noted.fingerprint == found().fingerprint
    assert not any("trusted examples are in" in sentence for sentence in found(training=linear(300, 9)).remarks)


# --- what a trial is --------------------------------------------------------------------------------------------------


def test_certified_accuracy_is_that_of_folds_which_were_not_trained_on() -> None:
    """The slow way: one fold after the other, one example after the other."""
    result = found(trials=6, folds=3, at=(0, 7, 0.05))
    x, y = TRUSTED
    numbers = folds_by_hash(x, 3, seed=0)
    assert (result.at, sorted(set(numbers.tolist()))) == ((0, 7, 50), [0, 1, 2])
    for trial in result.trials:
        counts = np.zeros(3)
        for number in range(3):
            own = numbers != number
            made = trial.candidate.defence(int(own.sum()), 2)
            votes = made.train((x[own], y[own]), (x[~own], y[~own]))
            certificate = certify(votes, method=made.rule())
            for label, radius, truth in zip(certificate.label, certificate.radius, y[~own], strict=True):
                for place, asked in enumerate(result.at):
                    # As large a share of fewer examples, and never less.
                    counts[place] += label == truth and radius * 1000 >= asked * own.sum() - 1e-6
        assert trial.certified == pytest.approx(counts / len(y))


def test_balanced_accuracy_is_a_mean_over_classes() -> None:
    x, y = linear(200, 4)
    rare = np.flatnonzero((y == 0) | (np.arange(200) % 5 == 0))
    plain, even = (found((x[rare], y[rare]), balanced=each, trials=3, at=(0,)) for each in (False, True))
    assert even.baseline_accuracy == 0.5 < plain.baseline_accuracy == (y[rare] == 0).mean()
    weights = [
        trial.candidate.options.get("class_weights")
        for trial in found((x[rare], y[rare]), balanced=True, trials=12).trials
    ]
    assert any(each is not None and each[1] > each[0] for each in weights)
    # Nobody declared the classes: their order could be another one in the training data.
    undeclared = found((x[rare], y[rare]), balanced=True, trials=12, classes=None)
    assert not any("class_weights" in trial.candidate.options for trial in undeclared.trials)


@pytest.mark.parametrize(("make", "best"), [(ring, ("nearest-neighbours", "kernel-vote")), (linear, ("ridge",))])
def test_the_best_method_is_found_where_it_is_known(make: Any, best: tuple[str, ...]) -> None:
    x, y = make(300, 5)
    if make is linear:  # many columns that say nothing: near is not alike
        noise = np.random.default_rng(6).normal(size=(300, 30))
        x = np.concatenate([x, noise], axis=1)
    result = found((x, y), trials=15)
    assert result.method in best
    assert result.chosen.value > result.baseline_accuracy + 0.1


def test_what_is_decided_stays() -> None:
    result = found(given={"neighbours": 100, "features": "none"}, methods=None, trials=3)
    assert {trial.candidate.method for trial in result.trials} == {"nearest-neighbours"}
    assert result.options == {"neighbours": 100, "features": "none", "num_train": 1000}
    # One in ten, on the folds as well.
    assert result.chosen.candidate.scaled(160)["neighbours"] == 16


def test_a_method_that_cannot_is_refused_and_the_search_goes_on() -> None:
    x = np.concatenate([TRUSTED[0], np.zeros((200, 8190))], axis=1)
    result = found((x, TRUSTED[1]), methods=("ridge", "kernel-vote"), trials=2)
    assert [trial.status for trial in result.trials] == [REFUSED, FINISHED]
    assert "Ridge regression is for at most" in result.trials[0].reason
    assert result.trials[0].reason in result.html()


def test_nothing_but_refusals_is_an_error() -> None:
    with pytest.raises(ConfigError, match="No trial came to a result; ridge: "):
        found(given={"features": "hashed-words"}, methods=("ridge",), trials=None, minutes=60)


# --- candidates -------------------------------------------------------------------------------------------------------

FACTS = Facts(5000, 3, (4,), "float")


class Drawn:
    """Answers by hypothesis."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.answers: dict[str, Any] = {}

    def number(self, name: str, low: float, high: float, start: float, *, log: bool = False) -> float:
        assert low <= start <= high
        return self.answers.setdefault(name, self.data.draw(st.floats(low, high)))

    def one_of(self, name: str, choices: Any, start: str | None = None) -> str:
        return str(self.answers.setdefault(name, self.data.draw(st.sampled_from(choices))))


@given(data=st.data(), number=st.integers(2, 20_000))
@settings(max_examples=150, deadline=None)
def test_a_proposal_is_a_defence_at_every_size(data: st.DataObject, number: int) -> None:
    columns = ((0.0,) * 4, (1.0,) * 4)
    methods = (*QUICK, "dpa", "run-off-election", "fdp")
    drawn, known = Drawn(data), Known(FACTS, {}, methods, (10, 5, 0), columns)
    candidate = candidate_of(drawn, known)
    assert candidate_of(Recorded(drawn.answers), known) == candidate
    assert candidate.scaled(5000) == candidate.options
    made = candidate.defence(number, 3)
    assert (made.name, made.num_train) == (candidate.method, number)
    if candidate.method == "nearest-neighbours":
        few, all_of_it = (np.atleast_1d(candidate.scaled(size)["neighbours"])[0] for size in (number, 5000))
        assert few == max(1, round(int(all_of_it) * number / 5000))
    if candidate.method == "fdp":  # the same signal at every size
        for size in (number, 5000):
            options = candidate.scaled(size)
            signal_left = options["sample_rate"] * size * math.sqrt(options["steps"]) / options["noise_multiplier"]
            assert signal_left == pytest.approx(candidate.signal, rel=0.01)


def test_two_numbers_of_neighbours_become_one_where_none_is_smaller() -> None:
    candidate = Candidate("nearest-neighbours", 1000, {"neighbours": [40, 20], "leads": [30]})
    assert candidate.scaled(100) == {"neighbours": [4, 2], "leads": [3]}
    assert candidate.scaled(25) == {"neighbours": 1}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12))
@settings(max_examples=100, deadline=None)
def test_the_frontier_is_what_no_other_trial_beats(points: list[tuple[int, int]]) -> None:
    trials = tuple(
        Trial(n, {}, Candidate("ridge", 10, {}), FINISHED, tuple(each / 4 for each in point))
        for n, point in enumerate(points)
    )
    result = dataclasses.replace(EMPTY, trials=trials)
    beaten = {
        one.number
        for one, other in itertools.permutations(trials, 2)
        if all(a >= b for a, b in zip(other.certified, one.certified, strict=True))
        and (other.certified != one.certified or other.number < one.number)
    }
    assert {trial.number for trial in result.frontier} == set(range(len(points))) - beaten
    assert result.chosen in result.frontier
    assert result.chosen.value == max(trial.value for trial in trials)


EMPTY = Tuning(
    (), {"num_train": 10, "is_step": False, "balanced": False, "threat": "add", "seed": 0}, (0, 1), (0, 1), 4, 3,
    "0" * 64, commonest(np.array([0, 1, 1])), "1",
)  # fmt: skip


# --- interruptions ----------------------------------------------------------------------------------------------------


def test_a_search_resumes_as_if_nothing_had_happened(tmp_path: Path) -> None:
    whole = found(trials=8)

    def interrupt(trial: Trial) -> None:
        if trial.number in (1, 5):
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            found(trials=8, out=tmp_path, progress=interrupt)
    tried: list[int] = []
    resumed = found(trials=8, out=tmp_path, progress=lambda trial: tried.append(trial.number))
    assert tried == [6, 7]
    assert as_json(resumed) == as_json(whole)
    again = found(trials=8, out=tmp_path, progress=lambda trial: pytest.fail("nothing was left to do"))
    assert as_json(again) == as_json(whole)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"trusted": linear(200, 1)}, "the trusted examples differ"),
        ({"given": {"features": "none"}}, "what \\[train\\] of the configuration decides differ"),
        ({"num_train": 2000}, "num_train differ"),
        ({"at": (0, 6)}, "the radii"),
        ({"seed": 1}, "the seed differ"),
        ({"balanced": True}, "--balanced differ"),
        ({"threat": "add"}, "the threat differ"),
        ({"methods": ("ridge",)}, "the methods differ"),
    ],
)
def test_another_search_is_refused(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    found(trials=1, out=tmp_path)
    kept = (tmp_path / "trials.json").read_bytes()
    with pytest.raises(ConfigError, match=f"trials of another search: {sentence}.*remove it to start anew"):
        found(**{"trials": 1, "out": tmp_path, **change})
    assert (tmp_path / "trials.json").read_bytes() == kept


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: "{",
        lambda content: "[]",
        lambda content: content.replace("mithridate.tuning/1", "x"),
        lambda content: content.replace('"finished"', '"splendid"'),
        lambda content: content.replace('"method": "nearest-neighbours"', '"method": 7', 1),
        lambda content: content.replace('"number": 0', '"number": 3'),
        lambda content: content.replace("neighbours / examples", "neighbors"),
    ],
)
def test_a_damaged_record_is_refused(tmp_path: Path, damage: Any) -> None:
    found(trials=1, out=tmp_path)
    path = tmp_path / "trials.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(ArtifactError, match="not what this version of tune writes"):
        found(trials=2, out=tmp_path)


class Clock:
    """Ten seconds from one look to the next."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 10.0
        return self.now


def test_time_ends_trials_and_the_search(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(search, "time", Clock())
    short = found(trials=None, minutes=60, methods=("kernel-vote",), out=tmp_path)
    assert 0 < sum(trial.seconds for trial in short.trials) <= 3600
    longer = found(trials=None, minutes=90, methods=("kernel-vote",), out=tmp_path)
    assert longer.trials[: len(short.trials)] == short.trials
    assert len(longer.trials) > len(short.trials)
    # Every look takes ten seconds: no trial fits into a quarter of a minute.
    with pytest.raises(ConfigError, match="No trial finished within 1 minutes; allow more time"):
        found(trials=None, minutes=1, methods=("kernel-vote",), out=tmp_path / "none")
    record = json.loads((tmp_path / "none" / "trials.json").read_text())
    assert {trial["status"] for trial in record["trials"]} == {GIVEN_UP}


def test_a_method_that_takes_too_long_is_not_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock, certified = Clock(), search._Search._certified

    def slow(self: Any, number: int, candidate: Candidate, check: Any) -> Any:
        clock.now += 500 if candidate.method == "ridge" else 0
        return certified(self, number, candidate, check)

    monkeypatch.setattr(search, "time", clock)
    monkeypatch.setattr(search._Search, "_certified", slow)
    limits: dict[str, Any] = {"trials": 8, "minutes": 30, "out": tmp_path}
    result = found(**limits)
    assert [trial.status for trial in result.trials if trial.candidate.method == "ridge"] == [GIVEN_UP]
    assert len(result.trials) == 8
    for kept in (3, 5):  # killed after the method was given up
        record = json.loads((tmp_path / "trials.json").read_text())
        (tmp_path / "trials.json").write_text(json.dumps({**record, "trials": record["trials"][:kept]}))
        assert [trial.answers for trial in found(**limits).trials] == [trial.answers for trial in result.trials]


# --- bad input --------------------------------------------------------------------------------------------------------

ONE_LABEL = (TRUSTED[0], np.zeros(200, dtype=np.int64))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_train": 0}, "Expected num_train to be a whole number of at least 1"),
        ({"num_train": None}, "declare num_train, or give size_step"),
        ({"size_step": 670}, "not both"),
        ({"classes": 1, "trusted": ONE_LABEL}, "Expected classes of at least 2"),
        ({"methods": ["bagging"]}, "tune does not search 'bagging'"),
        ({"methods": ["rigde"]}, "did you mean 'ridge'"),
        ({"at": ()}, "Expected at least one radius"),
        ({"at": 5}, "Expected at least one radius"),
        ({"at": (0, -1)}, "whole numbers or as shares below 1"),
        ({"at": (1.5,)}, "whole numbers or as shares below 1"),
        ({"at": (float("nan"),)}, "whole numbers or as shares below 1"),
        ({"at": ("3",)}, "whole numbers or as shares below 1"),
        ({"at": (1001,)}, "A radius of 1,001 is above num_train=1,000"),
        ({"minutes": None, "trials": None}, "A search needs an end"),
        ({"minutes": 0}, "Expected minutes in \\(0,"),
        ({"minutes": float("inf")}, "Expected minutes in \\(0,"),
        ({"trials": 0}, "Expected trials to be a whole number of at least 1"),
        ({"folds": 1}, "Expected folds to be a whole number from 2"),
        ({"seed": -1}, "Expected seed to be a whole number from 0"),
        ({"seed": 1.5}, "Expected seed to be a whole number from 0"),
        ({"threat": "theft"}, "Expected threat to be one of"),
        ({"failure_prob": 0}, "Expected failure_prob in"),
        ({"given": {"neighbours": 5, "penalty": 1.0}}, "None of the methods .* has all of the constants"),
        ({"given": {"neighbours": "k"}, "methods": None}, "Expected neighbours to be a whole number"),
        ({"given": {"features": 5}}, "Expected features to be a name"),
        ({"given": {"leads": [5]}, "methods": None}, "say neighbours, too"),
        ({"given": {"noise_multiplier": 5.0}, "methods": ["fdp"]}, "leave noise_multiplier out"),
        ({"trusted": (TRUSTED[0][:12], TRUSTED[1][:12])}, "12 trusted examples are too few for 5 folds"),
        ({"trusted": (np.zeros((200, 3)), TRUSTED[1])}, "too few for 5 folds of different inputs"),
        ({"trusted": ONE_LABEL}, "have one label only"),
        ({"trusted": TRUSTED[0]}, "Expected trusted data as a pair"),
        ({"trusted": (TRUSTED[0], TRUSTED[1] + 5)}, "of the trusted data is"),
        ({"training": linear(50, 1)[0][:, :2]}, "Expected trusted inputs of shape \\(2,\\)"),
    ],
)
def test_bad_input_is_answered_in_a_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        found(**change)


def test_radii_are_counts_or_shares() -> None:
    assert radii_for((0, 5, 0.0101, 5), 1000) == (0, 5, 11)


# --- a scorer ---------------------------------------------------------------------------------------------------------


def test_the_scorer_is_certified_accuracy() -> None:
    x, y = linear(120, 7)
    classifier = CertifiedClassifier("nearest-neighbours", neighbours=15, classes=[0, 1], num_train=100).fit(
        x[:80], y[:80]
    )
    certificate = classifier.certify(x[80:])
    reached = np.where(certificate.label == y[80:], certificate.radius, -1)
    assert certified_accuracy_scorer(4)(classifier, x[80:], y[80:]) == (reached >= 4).mean()
    several = certified_accuracy_scorer([0, 4])(classifier, x[80:], y[80:])
    assert several == pytest.approx(((reached >= 0).mean() + (reached >= 4).mean()) / 2)
    even = [(reached[y[80:] == label] >= 4).mean() for label in (0, 1)]
    assert certified_accuracy_scorer(4, balanced=True)(classifier, x[80:], y[80:]) == pytest.approx(np.mean(even))
    with pytest.raises(ConfigError, match="Expected radii as whole numbers"):
        certified_accuracy_scorer(-1)


@pytest.mark.filterwarnings("ignore:The certificates will be conditional")
def test_a_search_of_scikit_learn_on_trusted_data_conditions_nothing() -> None:
    from sklearn.model_selection import GridSearchCV

    x, y = linear(120, 8)
    made = CertifiedClassifier("nearest-neighbours", classes=[0, 1], num_train=80)
    scored = GridSearchCV(made, {"neighbours": [3, 21]}, scoring=certified_accuracy_scorer(5), cv=3, refit=False).fit(
        x, y
    )
    assert scored.best_params_ == {"neighbours": 21}  # three votes certify no five changes
    other = linear(120, 9)
    chosen = made.set_params(**scored.best_params_).fit(*other)
    assert not chosen.certify(x).conditional
    inside = GridSearchCV(made, {"neighbours": [21]}, scoring=certified_accuracy_scorer(5), cv=3).fit(*other)
    assert [each.id for each in inside.best_estimator_.certify(x).conditions] == ["tuned-on-training-data"]


# --- the command ------------------------------------------------------------------------------------------------------

PROJECT = """
run_dir = "runs/p"
[data]
train = "train.csv"
test = "test.csv"
kind = "table"
label = "kind"
classes = ["no", "<b>yes</b>"]
columns = [
  { name = "a", kind = "number", low = -4.0, high = 4.0 },
  { name = "b", kind = "number", low = -4.0, high = 4.0 },
  { name = "c", kind = "number", low = -4.0, high = 4.0 },
]
[train]
num_train = 400
"""
SEARCH = ("--methods", ",".join(QUICK), "--at", "0,5", "--trials", "4")


def table(path: Path, pair: Pair) -> None:
    lines = [",".join([*map(str, row), "<b>yes</b>" if label else "no"]) for row, label in zip(*pair, strict=True)]
    path.write_text("\n".join(["a,b,c,kind", *lines]) + "\n", encoding="utf-8")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a project, its data and trusted examples."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.toml").write_text(PROJECT, encoding="utf-8")
    table(tmp_path / "train.csv", linear(400, 1))
    table(tmp_path / "test.csv", linear(50, 2))
    table(tmp_path / "known.csv", TRUSTED)
    return tmp_path


def tuned(capsys: pytest.CaptureFixture[str], *more: Any) -> Outcome:
    outcome = run(capsys, "tune", "p.toml", "--trusted", "known.csv", *SEARCH, *more)
    assert outcome.code == 0, outcome.err
    return outcome


def test_the_configuration_does_not_follow_the_training_file(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    tuned(capsys)
    first = (here / "p-tuned" / "tuned.toml").read_bytes()
    for number, pair in enumerate([linear(10, 5), ring(400, 1)[0].repeat(2, axis=1)[:, :3], linear(900, 6)]):
        table(here / "train.csv", pair if isinstance(pair, tuple) else (pair, np.arange(len(pair)) % 2))
        tuned(capsys, "-o", f"other{number}")
        assert (here / f"other{number}" / "tuned.toml").read_bytes().replace(
            f"other{number}".encode(), b"p-tuned"
        ) == first


def test_every_search_has_a_run_of_its_own(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    tuned(capsys)
    for name in ("again", "p"):
        tuned(capsys, "-o", name)
    found = {name: read_project(here / name / "tuned.toml").run_dir for name in ("p-tuned", "again", "p")}
    assert found["p-tuned"] != found["again"]
    # runs/p is that of the project itself, which may have been trained.
    assert Path("runs/p") not in found.values()


def test_the_result_trains_as_it_is_and_says_one_sentence(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    outcome = tuned(capsys, "-o", "deep/er")
    text = " ".join(outcome.out.split())
    assert "Next: mithridate train deep/er/tuned.toml" in text
    assert "the best of many" in text
    project = read_project(here / "deep/er/tuned.toml")
    assert project.train is not None
    assert project.train.resolve() == (here / "train.csv").resolve()
    assert run(capsys, "train", "deep/er/tuned.toml").code == 0
    certified = json.loads(run(capsys, "certify", "runs/er", "--json").out)
    assert not certified["conditional"]
    assert project.tuned in certified["assumptions"]
    assert "200 trusted examples" in str(project.tuned)
    record = json.loads((here / "deep/er/trials.json").read_text())
    assert certified["method"] == record["method"]
    assert project.options == {"method": record["method"], **record["options"]}


def test_the_page_escapes_and_shows_all_trials(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    tuned(capsys)
    page = (here / "p-tuned" / "trials.html").read_text(encoding="utf-8")
    assert "<b>yes" not in page
    record = json.loads((here / "p-tuned" / "trials.json").read_text())
    assert len(record["trials"]) == 4
    for trial in record["trials"]:
        assert all(f"{share:.1%}" in page for share in trial["certified_accuracy"])
    assert "the best of many" in page
    trained_on = 200 - np.bincount(folds_by_hash(read(Path("known.csv"), read_project("p.toml").declaration).x, 5, 0))
    assert f"0 is 0, 5 is {math.ceil(5 * trained_on.max() / 400)}" in page
    assert "<script" not in page.lower()


def test_json_has_everything(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    content = json.loads(tuned(capsys, "--json").out)
    assert Path(content["config"]).is_file()
    assert (content["radii"], content["scaled_radii"]) == ([0, 5], [0, 3])
    assert content["chosen"] in content["frontier"]
    assert content["statement"] == read_project(content["config"]).tuned


def test_the_same_command_resumes(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    tuned(capsys)
    first = (here / "p-tuned/tuned.toml").read_bytes()
    again = tuned(capsys)
    assert "trial" not in again.err
    assert (here / "p-tuned/tuned.toml").read_bytes() == first
    table(here / "known.csv", linear(200, 77))
    outcome = run(capsys, "tune", "p.toml", "--trusted", "known.csv", *SEARCH)
    assert outcome.code == 2
    assert "the trusted examples differ. Choose another folder (-o), or remove it to start anew." in outcome.err


@pytest.mark.more
def test_a_killed_search_resumes(here: Path) -> None:
    """SIGKILL after the second trial; then the same command, and one that was never disturbed."""
    words = [sys.executable, "-m", "mithridate", "tune", "p.toml", "--trusted", "known.csv", *SEARCH]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    for line in process.stderr:
        if "trial 1" in line:
            process.send_signal(signal.SIGKILL)
            break
    process.communicate(timeout=600)
    for more in ([], ["-o", "whole"]):
        subprocess.run([*words, *more], check=True, capture_output=True, timeout=600, env=environment)
    killed, whole = ((here / name / "tuned.toml").read_text() for name in ("p-tuned", "whole"))
    assert killed == whole.replace("whole", "p-tuned")


def test_without_a_trusted_file_declared_facts_decide(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    outcome = run(capsys, "tune", "p.toml", "--at", "0,20", "--json")
    assert outcome.code == 0, outcome.err
    project = read_project(here / "p-tuned/tuned.toml")
    asked = read_project(here / "p.toml")
    asked = dataclasses.replace(asked, options={**asked.options, "radius": 20})
    settled, chosen = (compose(each.defence(), *each.examples()).defence for each in (project, asked))
    assert settled == chosen
    assert project.tuned is None
    assert not (here / "p-tuned/trials.html").exists()
    assert json.loads(outcome.out)["method"] == settled.name


def test_trusted_examples_are_trained_on_only_if_asked(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    tuned(capsys)
    assert len(read_project("p-tuned/tuned.toml").examples()[0].x) == 400
    tuned(capsys, "--train-on-trusted", "-o", "both")
    project = read_project("both/tuned.toml")
    training, _ = project.examples()
    assert len(training.x) == 600
    assert project.options["num_train"] == 600
    assert training.y is not None
    assert training.y[400:].tolist() == TRUSTED[1].tolist()
    assert str(project.tuned).endswith("They are trained on, too, and no radius counts changes of these.")


@pytest.mark.parametrize(
    ("words", "config", "sentence"),
    [
        (["--trusted", "no.csv"], PROJECT, "There is no file or folder no.csv"),
        (["--trusted", "train.csv"], PROJECT, "400 of 400 trusted examples are in the training data"),
        (["--trusted", "known.csv", "--at", "5,x"], PROJECT, "expected radii such as 0,5,50"),
        (["--trusted", "known.csv", "--methods", "ridge,"], PROJECT, "expected names such as"),
        (["--trusted", "known.csv", "--methods", "ridge"], f'{PROJECT}method = "dpa"\n', "leave --methods out"),
        (["--trusted", "known.csv", "--minutes", "-1"], PROJECT, "Expected --minutes in (0,"),
        (["--minutes", "5"], PROJECT, "--minutes belongs to a search"),
        (["--trusted", "known.csv"], f'tuned = "Chosen."\n{PROJECT}', "leaves nothing open"),
        (["--trusted", "known.csv"], f"tuned = 7\n{PROJECT}", "Expected tuned in p.toml as a list of sentences"),
    ],
)
def test_bad_commands(
    capsys: pytest.CaptureFixture[str], here: Path, words: list[str], config: str, sentence: str
) -> None:
    (here / "p.toml").write_text(config, encoding="utf-8")
    outcome = run(capsys, "tune", "p.toml", *words)
    assert outcome.code == 2
    assert sentence in outcome.err
    assert outcome.err.count("\n") == 1
    assert not (here / "p-tuned" / "tuned.toml").exists()


@pytest.mark.parametrize("words", [["--trusted", "known.csv", "--trials", "2", "--methods", "ridge"], []])
def test_a_size_that_is_not_declared_ends_the_radii(
    capsys: pytest.CaptureFixture[str], here: Path, words: list[str]
) -> None:
    (here / "p.toml").write_text(PROJECT.replace("num_train = 400\n", ""), encoding="utf-8")
    assert run(capsys, "tune", "p.toml", *words).code == 0
    project = read_project("p-tuned/tuned.toml")
    training, test = project.examples()
    step = step_of(len(training.x))
    assert project.options["size_step"] == step
    assert ("except by its size step" in str(project.tuned)) == bool(words)
    order = compose(project.defence(), training, test)
    assert order.size == Size.of(len(training.x))
    fewer = dataclasses.replace(training, x=training.x[: step - 1], y=np.asarray(training.y)[: step - 1])
    with pytest.raises(ConfigError, match="chosen for the size step"):
        compose(project.defence(), fewer, test)


def test_a_choice_for_a_size_step_says_so() -> None:
    result = found(num_train=None, size_step=670, methods=["ridge"], trials=1)
    assert result.options["size_step"] == 670
    assert "num_train" not in result.options
    assert (result.defence().num_train, result.defence().size_step) == (None, 670)
    assert str(result.statement).endswith("except by its size step, 670, with which radii end.")
    assert str(result.statement) in html.unescape(result.html())


@pytest.mark.parametrize(
    ("constants", "sentence"),
    [
        ({"size_step": 340, "num_train": 400}, "not both"),
        ({"size_step": 400}, "Expected size_step to be a step such as 340, got 400"),
        ({"size_step": 0}, "Expected size_step to be a whole number"),
    ],
)
def test_size_steps_that_are_none(constants: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        defence("ridge", **constants)


def test_the_sentence_of_a_project_is_an_assumption(here: Path) -> None:
    (here / "p.toml").write_text(f'assumptions = ["A look."]\ntuned = "Chosen elsewhere."\n{PROJECT}', encoding="utf-8")
    training, _ = read_project(here / "p.toml").examples()
    assert isinstance(training, Examples)
    said = [each for each in training.assumptions if isinstance(each, Statement)]
    assert [(str(each), each.id) for each in said] == [
        ("A look.", "tuned-on-training-data"),
        ("Chosen elsewhere.", None),
    ]


def test_private_training_can_be_searched() -> None:
    pytest.importorskip("torch")
    result = found(methods=["fdp"], trials=1, folds=2, given={"instances": 20}, threat=Threat.ADD)
    (trial,) = result.trials
    assert (trial.status, trial.candidate.options["instances"]) == (FINISHED, 20)
    assert defence("fdp", **result.options).num_train == 1000
