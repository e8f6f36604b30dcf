"""What a claim is conditional on: said wherever it arises, kept in files, filtered by the threat, tied to its run."""

import copy
import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, Normalizer, StandardScaler
from test_cli import run, run_json

from mithridate import CertifiedClassifier, SampledGaussian, Votes, certify, train
from mithridate._io.artifacts import read_hashed, write_hashed
from mithridate.auditing.verification import verify
from mithridate.comparing.running import compare
from mithridate.core.certificate import SCHEMA, Certificate, confidence
from mithridate.core.conditions import (
    IDS,
    Statement,
    conditions_of,
    distinct,
    from_plain,
    in_json,
    in_words,
    of_user,
    to_plain,
    tuned_constants,
)
from mithridate.core.mechanism import Threat
from mithridate.data.columns import Number
from mithridate.data.declarations import Arrays, Images, Table
from mithridate.data.examples import fitted_preprocessing
from mithridate.data.sources import read
from mithridate.defences import defence
from mithridate.defences.partitions import Partitioned
from mithridate.defences.statistical import statistical_dp
from mithridate.errors import ArtifactError, ConfigError
from mithridate.features import Frozen
from mithridate.training.config import TrainConfig

DOCS = Path(__file__).parents[1] / "docs"
MECHANISM = SampledGaussian(2.0, 0.1, 20)
RNG = np.random.default_rng(5)
X = RNG.normal(size=(60, 3)) * [1.0, 4.0, 9.0] + [0.3, 2.0, 5.0]
Y = (X[:, 0] > 0.3).astype(np.int64)
BY_HAND: dict[str, Any] = {
    "noise_multiplier": 2.0,
    "sample_rate": 0.5,
    "steps": 2,
    "max_grad_norm": 1.0,
    "learning_rate": 0.5,
}


def ids(source: Any, threat: Threat = Threat.SYMMETRIC_DIFFERENCE) -> set[str]:
    """The ids of the conditions of votes or of a certificate."""
    found = source.conditions if isinstance(source, Certificate) else certify(source, threat=threat).conditions
    return {str(each.id) for each in found}


def trained(x: Any = X, y: Any = Y, **changes: Any) -> Votes:
    config = {"instances": 4, **BY_HAND, "num_train": 60, "classes": 2}
    options = {name: changes.pop(name) for name in list(changes) if name not in TrainConfig.__dataclass_fields__}
    return train((x, y), x[:3], model="linear", config=TrainConfig(**{**config, **changes}), device="cpu", **options)


# --- statements -----------------------------------------------------------------------------------------------------


def test_the_ids_are_those_that_are_promised_and_documented() -> None:
    assert IDS == (
        "class-list",
        "proposed-schema",
        "fitted-preprocessing",
        "tuned-on-training-data",
        "instances-after-a-look",
        "seed-known",
        "trusted-encoder",
        "encoder-rounding",
        "adaptive-questions",
    )
    if DOCS.exists():
        text = (DOCS / "certificate.md").read_text(encoding="utf-8")
        assert [id for id in IDS if f"`{id}`" not in text] == []


def test_an_unknown_id_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown condition"):
        Statement("Anything.", "luck")


@given(st.lists(st.tuples(st.text(min_size=1).filter(str.strip), st.none() | st.sampled_from(IDS))))
def test_statements_survive_files_copies_and_processes(given: list[tuple[str, str | None]]) -> None:
    statements = [Statement(*each) for each in given]
    for again in (
        from_plain(json.loads(json.dumps(to_plain(statements)))),
        copy.deepcopy(statements),
        pickle.loads(pickle.dumps(statements)),
    ):
        assert [(str(each), each.id) for each in again] == given  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    "value",
    [
        7,
        None,
        "One.",
        [7],
        [""],
        [{"id": "luck", "sentence": "A."}],
        [{"id": "size", "sentence": "A."}],  # what follows the size limits the radius, and is no condition
        [{"id": "class-list"}],
        [{"sentence": "A.", "id": None}],
    ],
)
def test_what_is_no_list_of_statements_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="assumption"):
        from_plain(value)


def test_of_equal_sentences_the_condition_is_kept() -> None:
    seed = Statement("A.", "seed-known")
    for order in (["A.", seed, "B."], [seed, "A.", "B."]):
        assert to_plain(distinct(order)) == [{"id": "seed-known", "sentence": "A."}, "B."]


def test_what_a_user_says_is_a_condition_and_what_we_say_stays() -> None:
    said = of_user(["The rate was tuned here.", Statement("Ours."), Statement("Seed.", "seed-known")])
    assert [each.id for each in said] == ["tuned-on-training-data", None, "seed-known"]


@pytest.mark.parametrize(
    ("id", "lifted"),
    [
        ("class-list", {Threat.FEATURES}),
        ("proposed-schema", set()),
        ("tuned-on-training-data", set()),
        ("seed-known", set()),
    ],
)
def test_a_threat_that_cannot_change_it_lifts_a_condition(id: str, lifted: set[Threat]) -> None:
    votes = replace(Votes.from_counts([[90, 10]], mechanism=MECHANISM), assumptions=(Statement("A.", id),))
    assert {threat for threat in Threat if not certify(votes, threat=threat).conditional} == lifted
    for threat in Threat:
        values = certify(votes, threat=threat).to_dict()
        assert values["conditional"] is (threat not in lifted)
        assert values["conditions"] == ([] if threat in lifted else [Statement("A.", id).to_dict()])
        assert "A." in values["assumptions"]


def test_every_condition_has_a_remedy_and_is_one_line() -> None:
    for id in IDS:
        said = in_words([Statement("A.", id)])
        assert said is not None
        assert said.startswith(f"Conditional on {id}. ")
        assert len(said) > len(f"Conditional on {id}. ")
        assert "\n" not in said
    assert in_words(["A."]) is None
    assert in_json(["A."]) == {"conditional": False, "conditions": []}


# --- where they arise -----------------------------------------------------------------------------------------------


def test_with_everything_declared_a_claim_is_unconditional() -> None:
    assert ids(trained()) == set()
    assert not certify(trained()).conditional


def test_classes_that_are_read_off() -> None:
    assert ids(trained(num_train=None)) == set()  # the radius ends with the size step instead
    assert ids(trained(classes=None)) == {"class-list"}
    assert ids(trained(num_train=None, classes=None)) == {"class-list"}


def test_a_seed_of_the_callers_and_a_trusted_encoder() -> None:
    assert ids(trained(root_seed=bytes(32))) == {"seed-known"}
    frozen = Frozen(function=lambda rows: rows * 2.0, title="twice", trained_on="nothing")
    assert ids(trained(features=frozen)) == {"trusted-encoder"}


def test_what_the_user_says_has_looked_at_the_data() -> None:
    assert ids(trained(assumptions=["The clipping norm was tried out here."])) == {"tuned-on-training-data"}


def test_proposed_declarations() -> None:
    table = Table("y", (Number("a", 0, 1),), classes=("no", "yes"), proposed=True)
    assert {each.id for each in conditions_of(table.assumptions)} == {"proposed-schema", "class-list"}
    assert replace(table, proposed=False).assumptions == ()
    for other in (Images((8, 8), proposed=True), Arrays(proposed=True)):
        assert [each.id for each in conditions_of(other.assumptions)] == ["proposed-schema"]


def test_class_names_that_are_read_off() -> None:
    found = read((X, np.where(Y, "yes", "no")), labels=True)
    assert [each.id for each in conditions_of(found.assumptions)] == ["class-list"]
    found = read((X, np.where(Y, "yes", "no")), Arrays(classes=("no", "yes")), labels=True)
    assert conditions_of(found.assumptions) == ()


@pytest.mark.parametrize("shape", [(1, 28, 28), (28, 28), (3, 32, 32), (8, 8)])
def test_defaults_that_were_tuned_on_data_of_this_shape(shape: tuple[int, ...]) -> None:
    """Whatever file the images come from, and whether or not the data set is named."""
    images, labels = RNG.integers(0, 256, (40, *shape), dtype=np.uint8), np.arange(40) % 10
    for name in ("fdp", "kernel-vote"):
        options = {"instances": 2, "num_train": 40} if name == "fdp" else {}
        votes = defence(name, classes=10, **options).train((images, labels), images[:2], device="cpu")
        expected = {"tuned-on-training-data"} if shape != (8, 8) or name == "fdp" else set()
        assert ids(votes) == expected, (name, votes.assumptions)


def test_defaults_on_other_shapes_are_said_and_no_condition() -> None:
    images, labels = RNG.integers(0, 256, (40, 20, 20), dtype=np.uint8), np.arange(40) % 10
    votes = defence("kernel-vote", classes=10).train((images, labels), images[:2], device="cpu")
    assert ids(votes) == set()
    assert sum("were tuned with a look at" in each for each in votes.assumptions) == 2  # features and kernel
    assert tuned_constants("These", ["MNIST", "CIFAR-10"], 3072, 10).id == "tuned-on-training-data"
    assert tuned_constants("These", ["MNIST", "CIFAR-10"], 3072, 9).id is None


# --- scaled on the training data ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scaler", [StandardScaler(), MinMaxScaler(), MinMaxScaler((-1, 1))], ids=repr)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_columns_that_a_scaler_was_fitted_on_are_noticed(scaler: Any, dtype: Any) -> None:
    scaled = scaler.fit_transform(X).astype(dtype)
    (found,) = fitted_preprocessing(scaled)
    assert found.id == "fitted-preprocessing"
    assert "fitted-preprocessing" in ids(trained(x=scaled))
    near = defence("nearest-neighbours", neighbours=3, classes=2, features=None)
    assert "fitted-preprocessing" in ids(near.train((scaled, Y), scaled[:3]))
    parts = defence("dpa", partitions=5, features=None, model="linear", classes=2, steps=1)
    assert "fitted-preprocessing" in ids(parts.train((scaled, Y), scaled[:3], device="cpu"))
    assert fitted_preprocessing(np.hstack([scaled, X[:, :1] > 0.3]).astype(dtype)) != ()  # beside a column of 0 and 1


@pytest.mark.parametrize(
    "rows",
    [
        X,
        X / 10,
        (X - 0.3) / 2.1,
        np.clip(X, 0, 10) / 10,
        (X > 0).astype(np.float64),
        RNG.integers(0, 2, (60, 5)).astype(np.float64),
        RNG.uniform(size=(500, 4)),
        StandardScaler().fit(RNG.normal(size=(60, 3))).transform(RNG.normal(size=(60, 3))),
        X[:5],
        np.array([[-1.0, -1.0], [1.0, 1.0], [0.8, -1.0], [-0.7, 1.0]] * 20),
        RNG.integers(0, 256, (60, 8, 8)).astype(np.uint8),
    ],
)
def test_other_columns_are_not_taken_for_scaled_ones(rows: np.ndarray) -> None:
    assert fitted_preprocessing(rows) == ()


def test_columns_that_were_declared_are_not_looked_at() -> None:
    scaled = MinMaxScaler().fit_transform(X)
    assert fitted_preprocessing(scaled, {"declaration": {"kind": "table"}}) == ()
    assert fitted_preprocessing(scaled, {"declaration": {"kind": "arrays"}}) != ()


weak = pytest.mark.filterwarnings(
    "ignore:Certificates will be weak", r"ignore:\d+ of \d+ predictions are not certified"
)


def estimator(**changes: Any) -> CertifiedClassifier:
    return CertifiedClassifier(**{"instances": 8, "classes": [0, 1], "num_train": 60, "device": "cpu", **changes})


@weak
def test_an_estimator_is_conditional_on_what_is_left_open_alone() -> None:
    assert ids(estimator(**BY_HAND).fit(X, Y).certify(X[:3])) == set()
    assert ids(estimator(num_train=None).fit(X, Y).certify(X[:3])) == set()
    assert ids(estimator(classes=None).fit(X, Y).certify(X[:3])) == {"class-list"}
    assert ids(estimator(random_state=1).fit(X, Y).certify(X[:3])) == {"seed-known"}
    assert ids(estimator(assumptions=["Tried here."]).fit(X, Y).certify(X[:3])) == {"tuned-on-training-data"}


@weak
@pytest.mark.filterwarnings("ignore:The certificates will be conditional")
def test_pipelines_and_searches_around_an_estimator_are_noticed() -> None:
    def said(model: Any) -> set[str]:
        fitted = model.fit(X, Y)
        last: Any = getattr(fitted, "best_estimator_", fitted)
        last = last[-1] if isinstance(last, Pipeline) else last
        return ids(last.certify(X[:3]))

    assert said(make_pipeline(StandardScaler(), estimator())) == {"fitted-preprocessing"}
    assert said(make_pipeline(MaxAbsScaler(), estimator())) == {"fitted-preprocessing"}  # the columns do not show it
    assert said(make_pipeline(Normalizer(), estimator())) == set()  # each row by itself
    assert said(GridSearchCV(estimator(), {"instances": [5, 6]}, cv=2)) == {"tuned-on-training-data"}
    both = GridSearchCV(make_pipeline(MaxAbsScaler(), estimator()), {"certifiedclassifier__instances": [5]}, cv=2)
    assert said(both) == {"tuned-on-training-data", "fitted-preprocessing"}
    assert said(estimator()) == set()


@weak
def test_a_search_of_something_else_is_none_of_ours() -> None:
    class Wrapped(LogisticRegression):
        def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
            self.inner_ = estimator().fit(X, y)
            return super().fit(X, y, sample_weight)

    assert ids(Wrapped().fit(X, Y).inner_.certify(X[:3])) == set()


# --- instances after a look -----------------------------------------------------------------------------------------


def part(first: int, stop: int, run_id: str = "a", planned: int | None = 10) -> Votes:
    shards = {} if planned is None else {run_id: ((first, stop),)}
    return Votes(
        np.array([[stop - first, 0]]),
        MECHANISM,
        run_ids=(run_id,),
        shards=shards,
        planned={} if planned is None else {run_id: planned},
    )


def test_whole_runs_that_are_merged_are_conditional_on_having_been_chosen_before_a_look(tmp_path: Path) -> None:
    merged = part(0, 5, "a", None).merge(part(0, 5, "b", None))
    merged.save(tmp_path / "votes.npz")
    assert ids(Votes.load(tmp_path / "votes.npz")) == {"instances-after-a-look"}
    certify(merged).save(tmp_path / "c.json")
    assert ids(Certificate.load(tmp_path / "c.json")) == {"instances-after-a-look"}


def test_all_parts_of_one_run_are_unconditional_and_some_are_not(tmp_path: Path) -> None:
    some = part(0, 4).merge(part(6, 10))
    assert ids(some) == ids(part(0, 4)) == {"instances-after-a-look"}
    whole = some.merge(part(4, 6))
    whole.save(tmp_path / "votes.npz")
    assert ids(whole) == ids(Votes.load(tmp_path / "votes.npz")) == set()
    unknown = replace(whole, planned={})
    assert ids(unknown) == {"instances-after-a-look"}  # who knows how many there were


def test_votes_without_names_that_are_merged_are_conditional() -> None:
    unnamed = Votes.from_counts([[5, 0]], mechanism=MECHANISM)
    assert ids(unnamed) == set()
    assert ids(unnamed.merge(unnamed)) == {"instances-after-a-look"}


def of_hundred(first: int, stop: int) -> Votes:
    return part(first, stop, planned=100)


def test_the_first_instances_of_a_run_are_unconditional_by_bounds_that_hold_at_any_time(tmp_path: Path) -> None:
    whole = part(0, 30, planned=None)
    unnamed = Votes.from_counts([[30, 0]], mechanism=MECHANISM)
    for votes in (
        of_hundred(0, 30),
        of_hundred(0, 20).merge(of_hundred(20, 30)),
        replace(of_hundred(0, 30), planned={}),
        whole,
        unnamed,
    ):
        certificate = certify(votes, bounds="anytime")
        assert ids(certificate) == set()
        assert sum("from 0 on and without gaps" in sentence for sentence in certificate.assumptions) == 1
        assert confidence(certificate).endswith("confidence, whenever one stops adding instances")
        certificate.save(tmp_path / "c.json")
        assert verify(tmp_path / "c.json").valid
        assert Certificate.load(tmp_path / "c.json").conditions == ()
    # By other bounds the same votes are conditional.
    assert ids(certify(of_hundred(0, 30))) == {"instances-after-a-look"}


@pytest.mark.parametrize(
    ("votes", "reason"),
    [
        (lambda: of_hundred(5, 30), "lack the instances 0 to 4 of the run 'a'"),
        (lambda: of_hundred(1, 30), "lack the instance 0 of the run 'a'"),
        (lambda: of_hundred(0, 4).merge(of_hundred(6, 30)), "lack the instances 4 to 5 of the run 'a'"),
        (lambda: of_hundred(0, 4).merge(of_hundred(5, 6), of_hundred(8, 30)), "lack the instance 4 of the run 'a'"),
        (lambda: part(0, 20, "a", None).merge(part(0, 20, "b", None)), "those of 2 runs, whose order nobody fixed"),
        (lambda: Votes.from_counts([[9, 0]], mechanism=MECHANISM).merge(
            Votes.from_counts([[9, 0]], mechanism=MECHANISM)), "come from runs without a name"),
    ],
)  # fmt: skip
def test_bounds_that_hold_at_any_time_refuse_other_instances(
    votes: Callable[[], Votes], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError, match=f"instances 0, 1, 2, ... of one run, without gaps, and these votes .*{reason}"
    ):
        certify(votes(), bounds="anytime")
    # Who writes such a certificate nevertheless is found out, whatever conditions are named.
    honest = certify(Votes.from_counts(votes().counts, mechanism=MECHANISM), bounds="anytime")
    forged = replace(honest, votes=votes(), assumptions=(*honest.assumptions, *votes().statements))
    forged.save(tmp_path / "c.json")
    assert "order of instances" in {check.name for check in verify(tmp_path / "c.json").checks if not check.passed}


# --- in every output ------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A run directory of votes that are conditional, with its certificate."""
    trained(classes=None, run_dir=tmp_path / "run", root_seed=bytes(32))
    return tmp_path / "run"


def test_commands_say_it_last_and_in_json(saved: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for command in (
        ["certify", saved],
        ["report", saved, "-o", tmp_path / "r.html"],
        ["verify", saved / "certificate.json"],
    ):
        lines = run(capsys, *command).out.splitlines()
        assert lines[-1].startswith("Conditional on class-list and seed-known. Declare the classes"), command
    for command in (["certify", saved], ["verify", saved / "certificate.json"]):
        values = run_json(capsys, *command)
        assert values["conditional"] is True
        assert [each["id"] for each in values["conditions"]] == ["class-list", "seed-known"]
        assert all(each["sentence"] and each["remedy"] for each in values["conditions"])
    assert "conditional" in (saved / "certificate.json").read_text()


def test_a_comparison_and_a_bound_say_it() -> None:
    found = compare([defence("dpa", partitions=4), defence("kernel-vote", classes=2)], ((X, Y), (X[:5], Y[:5])))
    values = found.to_dict()
    assert {entry["name"]: {each["id"] for each in entry["conditions"]} for entry in values["methods"]} == {
        "dpa": {"class-list"},
        "kernel-vote": set(),
    }
    assert values["conditional"] is True
    assert found.headline.startswith("Conditional on class-list (declare classes). ")
    assert "Conditional on class-list (declare classes). " in found.html()
    assert "Conditional on class-list (declare classes)" in found.markdown()
    said = (Statement("A.", "seed-known"),)
    votes = replace(Votes.from_counts([[9, 1]], mechanism=MECHANISM, labels=[0]), assumptions=said)
    assert statistical_dp(votes).to_dict()["conditional"] is True


# --- verify ---------------------------------------------------------------------------------------------------------


def forged(path: Path, of_votes: Mapping[str, Any] | None = None, **changes: Any) -> Path:
    """The certificate with other content, or other votes, and a hash that is right again."""
    content = read_hashed(path, SCHEMA)
    for name in ("schema", "size", "sha256"):
        content.pop(name)
    votes = {**content["votes"], **(of_votes or {})}
    write_hashed(path.with_name("forged.json"), SCHEMA, {**content, "votes": votes, **changes})
    return path.with_name("forged.json")


def failed(path: Path, run: Path | None = None) -> set[str]:
    return {check.name for check in verify(path, run=run).checks if not check.passed}


def test_a_file_that_hides_its_conditions_does_not_hold(saved: Path) -> None:
    certify(Votes.load(saved / "votes.npz")).save(saved / "c.json")
    assert verify(saved / "c.json").valid
    assert {each.id for each in verify(saved / "c.json").conditions} == {"class-list", "seed-known"}
    assert failed(forged(saved / "c.json", conditional=False)) == {"conditions"}
    assert failed(forged(saved / "c.json", conditions=[])) == {"conditions"}
    assert failed(forged(saved / "c.json", conditional=False, conditions=[])) == {"conditions"}


def test_with_its_run_a_file_can_hide_nothing(saved: Path) -> None:
    certify(Votes.load(saved / "votes.npz")).save(saved / "c.json")
    content = read_hashed(saved / "c.json", SCHEMA)
    plain = [each["sentence"] if isinstance(each, dict) else each for each in content["votes"]["assumptions"]]
    hidden = {"conditional": False, "conditions": []}
    stripped = forged(saved / "c.json", {"assumptions": plain}, **hidden)
    assert failed(stripped) == set()  # alone, it can only be believed
    assert failed(stripped, saved) == failed(stripped, saved / "votes.npz") == {"source"}
    assert failed(saved / "c.json", saved) == failed(saved / "c.json", saved / "votes.npz") == set()
    for changes in (
        {"data_fingerprint": "sha256:0"},
        {"run_ids": ["other"]},
        {"recipe": None},
        {"recipe": {**content["votes"]["recipe"], "model": "mlp"}},
    ):
        assert failed(forged(saved / "c.json", changes), saved) == {"source"}


def test_counts_of_another_run_are_noticed(saved: Path) -> None:
    votes = Votes.load(saved / "votes.npz")
    other = replace(votes, counts=votes.counts[:, ::-1].copy() + 0)
    certify(other).save(saved / "c.json")
    if not np.array_equal(other.counts, votes.counts):
        assert "source" in failed(saved / "c.json", saved)
    unanimous = replace(votes, counts=np.array([[4, 0]] * 3))
    certify(unanimous).save(saved / "c.json")
    unanimous.save(saved / "votes.npz")  # a forger who may write there, and forgot the shards
    (check,) = [each for each in verify(saved / "c.json", run=saved).checks if each.name == "source"]
    if not np.array_equal(unanimous.counts, votes.counts):
        assert not check.passed
        assert "is not what that run counted: counts" in check.detail


def test_evidence_is_compared_with_its_source(tmp_path: Path) -> None:
    votes = defence("finite-aggregation", partitions=3, spread=2, classes=2, steps=1).train((X, Y), X[:3], device="cpu")
    votes.save(tmp_path / "votes.npz")
    certify(votes).save(tmp_path / "c.json")
    assert failed(tmp_path / "c.json", tmp_path / "votes.npz") == set()
    turned = replace(votes, evidence={"predictions": votes.evidence["predictions"][:, ::-1]})
    certify(turned).save(tmp_path / "d.json")
    if not np.array_equal(turned.evidence["predictions"], votes.evidence["predictions"]):
        assert failed(tmp_path / "d.json", tmp_path / "votes.npz") == {"source"}


def test_verify_takes_the_run_on_the_command_line(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "certify", saved).code == 0
    outcome = run(capsys, "verify", saved / "certificate.json", "--run", saved)
    assert outcome.code == 0
    assert "✓ source: counts, mechanism, recipe, data, inputs, size and conditions are those of" in " ".join(
        outcome.out.split()
    )
    refused = run(capsys, "verify", saved / "certificate.json", "--run", saved / "nowhere")
    assert (refused.code, "nowhere" in refused.err) == (2, True)


def test_a_proposed_declaration_needs_its_condition(tmp_path: Path) -> None:
    votes = replace(
        Votes.from_counts([[9, 0]], mechanism=Partitioned(9)),
        recipe={"source": {"declaration": {"kind": "table", "proposed": True}}},
    )
    certify(votes).save(tmp_path / "c.json")
    assert failed(tmp_path / "c.json") == {"conditions"}


def test_conditions_that_nobody_knows_are_refused(saved: Path) -> None:
    certify(Votes.load(saved / "votes.npz")).save(saved / "c.json")
    path = forged(saved / "c.json", {"assumptions": [{"id": "luck", "sentence": "A."}]})
    with pytest.raises(ArtifactError, match="cannot be read"):
        verify(path)
