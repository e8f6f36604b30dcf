"""CertifiedClassifier: scikit-learn's own checks, every kind of input, and that it claims what `certify` would."""

import copy
import gc
import inspect
import logging
import pickle
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("torch")

import scipy.sparse
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from mithridate import RDP, ConfigError, Threat, certify, predict
from mithridate.core.conditions import Size, conditions_of
from mithridate.defences.registry import kind_of, names
from mithridate.estimator import CertifiedClassifier
from mithridate.features import Frozen, UnitNorm

# Few instances make quick tests and weak certificates; that this is said has a test of its own.
pytestmark = pytest.mark.filterwarnings("ignore:Certificates will be weak")

RNG = np.random.default_rng(7)
LABELS = np.array([0, 1, 2] * 40)
CENTERS = np.array([[1.0, 0.0], [-0.5, 0.9], [-0.5, -0.9]])
POINTS = CENTERS[LABELS] + 0.2 * RNG.normal(size=(len(LABELS), 2))
NEW = CENTERS + 0.05
UNCLEAR = 0.1 * RNG.normal(size=(50, 2))  # between the classes: votes are split


def small(**parameters: Any) -> CertifiedClassifier:
    return CertifiedClassifier(**{"instances": 40, "device": "cpu", "random_state": 0, **parameters})


@pytest.fixture(scope="module")
def fitted() -> CertifiedClassifier:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return small(instances=120).fit(POINTS, LABELS)


# --- scikit-learn's conventions -------------------------------------------------------------------------------------


@pytest.mark.more
@pytest.mark.parametrize(
    "estimator",
    [
        CertifiedClassifier(),
        CertifiedClassifier("fdp", instances=20, device="cpu", random_state=0),
        CertifiedClassifier("kernel-vote"),
    ],
    ids=["auto", "fdp", "kernel-vote"],
)
def test_scikit_learn_finds_nothing_to_object(estimator: CertifiedClassifier) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        results = check_estimator(estimator, on_fail="raise", on_skip=None)
    assert not [result["check_name"] for result in results if result["status"] in ("xfail", "failed")]


def test_two_estimators_share_nothing() -> None:
    """Defaults are hashable and frozen, and the constructor keeps what it is given."""
    signature = inspect.signature(CertifiedClassifier)
    first, second = CertifiedClassifier(), CertifiedClassifier()
    for name, parameter in signature.parameters.items():
        assert hash(parameter.default) is not None
        assert first.get_params()[name] is parameter.default
    first.set_params(method=RDP())
    assert second.method == "auto"


def test_the_constants_of_every_method_are_parameters() -> None:
    known = {name for method in names() for name in kind_of(method).options()}
    assert known <= set(CertifiedClassifier().get_params())
    original = CertifiedClassifier("nearest-neighbours", neighbours=50)
    twin: Any = clone(original)
    assert (twin.neighbours, repr(original)) == (50, repr(twin))
    assert "partitions" not in repr(original)
    near: Any = original.fit(POINTS, LABELS).defence_
    assert near.neighbours == 50
    near = original.set_params(neighbours=20).fit(POINTS, LABELS).defence_
    assert near.neighbours == 20
    with pytest.raises(ConfigError, match="no option 'partitions'"):
        original.set_params(partitions=5).fit(POINTS, LABELS)


def test_an_unknown_parameter_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match="no argument 'neigbours'; did you mean 'neighbours'"):
        CertifiedClassifier("nearest-neighbours", neigbours=50)


def test_a_clone_has_equal_parameters_and_no_models(fitted: CertifiedClassifier) -> None:
    original = small(method=RDP(group="mixture"), threat=Threat.ADD, features=UnitNorm(bias=0.5), classes=[0, 1, 2])
    twin: Any = clone(original)
    assert twin.get_params() == original.get_params()
    assert not hasattr(clone(fitted), "defence_")


def test_it_works_inside_a_pipeline_and_under_cross_validation() -> None:
    halve = FunctionTransformer(np.tanh)  # each row by itself, nothing fitted
    assert cross_val_score(make_pipeline(halve, small()), POINTS, LABELS, cv=2).min() > 0.9


def test_a_scaler_that_was_fitted_before_it_is_pointed_out() -> None:
    with pytest.warns(UserWarning, match="conditional") as found:
        make_pipeline(StandardScaler(), small()).fit(POINTS, LABELS)
    said = " ".join(str(each.message) for each in found)
    assert "as if a scaler had been fitted" in said
    assert "StandardScaler was fitted on the training data" in said
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Certificates will be weak")
        small().fit(POINTS, LABELS)


# --- what it claims -------------------------------------------------------------------------------------------------


def test_it_claims_what_certify_claims_on_its_votes(fitted: CertifiedClassifier) -> None:
    ours, theirs = fitted.certify(POINTS), certify(fitted.votes(POINTS))
    assert ours.radius.max() > 0
    assert np.array_equal(ours.radius, theirs.radius)
    assert np.array_equal(ours.label, theirs.label)
    assert ours.assumptions == theirs.assumptions


def test_predictions_shares_and_certificates_agree(fitted: CertifiedClassifier) -> None:
    shares = fitted.predict_proba(POINTS)
    assert np.allclose(shares.sum(axis=1), 1)
    assert np.allclose(shares * 120, np.round(shares * 120))
    assert np.array_equal(fitted.predict(POINTS), fitted.classes_[shares.argmax(axis=1)])
    assert np.array_equal(fitted.predict(POINTS), fitted.classes_[fitted.certify(POINTS).label])
    assert fitted.score(POINTS, LABELS) > 0.9


def test_no_radius_is_beyond_what_was_said_before_training(fitted: CertifiedClassifier) -> None:
    assert 0 < fitted.certify(POINTS).radius.max() <= fitted.choice_.details["reach"]["1"]


def test_names_of_labels_change_no_radius(fitted: CertifiedClassifier) -> None:
    names = np.array(["ant", "bee", "cat"])  # in the order of the numbers
    named = small(instances=120).fit(POINTS, names[LABELS])
    assert np.array_equal(named.certify(NEW).radius, fitted.certify(NEW).radius)
    assert named.predict(NEW).tolist() == names[fitted.predict(NEW)].tolist()
    assert named.votes(NEW).recipe["source"]["class_names"] == ["ant", "bee", "cat"]  # pyright: ignore[reportOptionalSubscript]


def test_true_labels_come_with_the_certificate_and_change_no_radius(fitted: CertifiedClassifier) -> None:
    with_labels = fitted.certify(POINTS, LABELS)
    assert np.array_equal(np.asarray(with_labels.votes.labels), LABELS)
    assert np.array_equal(with_labels.radius, fitted.certify(POINTS).radius)


def test_method_threat_and_failure_probability_reach_the_certificate() -> None:
    certificate = small(method=RDP(), threat=Threat.REPLACE, failure_prob=0.05).fit(POINTS, LABELS).certify(NEW)
    assert (certificate.method, certificate.threat, certificate.failure_prob) == (RDP(), Threat.REPLACE, 0.05)


def test_what_was_inferred_is_assumed_and_what_was_declared_is_not() -> None:
    inferred = small().fit(POINTS, LABELS).certify(NEW)
    assert Size.of(120).sentence in inferred.assumptions
    assert "The set of classes (0, 1, 2) was read off" in " ".join(inferred.assumptions)
    assert [each.id for each in inferred.conditions] == ["class-list", "seed-known"]
    for classes in ([2, 0, 1], range(3), {0, 1, 2}, np.arange(3)):
        declared = small(classes=classes, num_train=120).fit(POINTS, LABELS).certify(NEW)
        assert declared.votes.size is None
        assert "The set of classes" not in " ".join(declared.assumptions)
        assert [each.id for each in declared.conditions] == ["seed-known"]


def test_where_nothing_is_chosen_the_divisor_alone_follows_the_number_of_examples() -> None:
    constants = small(
        noise_multiplier=4.0, sample_rate=0.2, steps=20, learning_rate=1.0, max_grad_norm=1.0, classes=[0, 1, 2]
    )
    votes = constants.fit(POINTS, LABELS).votes(NEW)
    assert votes.size == Size.of(120)
    assert votes.recipe is not None
    assert votes.recipe["config"]["divisor"] == pytest.approx(0.2 * 67)  # the step of 120
    assert [each.id for each in conditions_of(votes.assumptions)] == ["seed-known"]


def test_one_example_more_or_less_trains_by_the_same_recipe() -> None:
    recipes = [small().fit(POINTS[:count], LABELS[:count]).votes(NEW).recipe for count in (118, 119)]
    assert recipes[0] is not None
    assert recipes[0] == recipes[1]


def test_a_seed_that_was_given_is_assumed_secret_and_repeats_the_run() -> None:
    first, second = small(random_state=3).fit(POINTS, LABELS), small(random_state=3).fit(POINTS, LABELS)
    other = small(random_state=4).fit(POINTS, LABELS)
    assert np.array_equal(first.votes(UNCLEAR).counts, second.votes(UNCLEAR).counts)
    assert not np.array_equal(first.votes(UNCLEAR).counts, other.votes(UNCLEAR).counts)
    assert any("root seed was given" in sentence for sentence in first.certify(NEW).assumptions)


def test_by_default_the_seed_is_the_operating_systems() -> None:
    first, second = (small(random_state=None).fit(POINTS, LABELS) for _ in range(2))
    assert not np.array_equal(first.votes(UNCLEAR).counts, second.votes(UNCLEAR).counts)
    assert not any("root seed" in sentence for sentence in first.certify(NEW).assumptions)


def test_generators_serve_as_random_state() -> None:
    counts = [
        small(random_state=np.random.RandomState(5)).fit(POINTS, LABELS).votes(UNCLEAR).counts,
        small(random_state=np.random.RandomState(5)).fit(POINTS, LABELS).votes(UNCLEAR).counts,
        small(random_state=np.random.default_rng(5)).fit(POINTS, LABELS).votes(UNCLEAR).counts,
    ]
    assert np.array_equal(counts[0], counts[1])
    assert not np.array_equal(counts[0], counts[2])


def test_a_class_without_examples_can_be_declared() -> None:
    classifier = small(classes=["a", "b", "c", "d"]).fit(POINTS, np.array(["a", "b", "d"])[LABELS])
    assert classifier.classes_.tolist() == ["a", "b", "c", "d"]
    assert classifier.predict_proba(NEW).shape == (3, 4)
    assert classifier.predict(NEW).tolist() == ["a", "b", "d"]


def test_weak_certificates_are_announced_with_a_remedy() -> None:
    with pytest.warns(UserWarning, match="raise instances"):
        weak = small(instances=5).fit(POINTS, LABELS)
    with pytest.warns(UserWarning, match="not certified"):
        assert (weak.certify(NEW).radius == -1).all()


# --- inputs ---------------------------------------------------------------------------------------------------------


def test_images() -> None:
    digits: Any = load_digits()
    images, labels = (digits.images * 255 / 16).astype(np.uint8), digits.target
    classifier = small(instances=60).fit(images[:900], labels[:900])
    assert getattr(classifier.defence_, "features").name == "oriented-gradients"  # noqa: B009
    assert classifier.score(images[900:], labels[900:]) > 0.85
    expected = classifier.predict(images[900:])
    for container in (list, torch.tensor):
        assert np.array_equal(classifier.predict(container(images[900:])), expected)
    with pytest.raises(ConfigError, match="shape"):
        classifier.predict(images[:2, :7])


def test_images_of_floats_are_rows_of_numbers() -> None:
    images = np.zeros((120, 4, 4))
    images[np.arange(120), LABELS, LABELS] = 1.0
    classifier = small().fit(images, LABELS)
    assert isinstance(getattr(classifier.defence_, "features"), UnitNorm)  # noqa: B009
    assert classifier.score(images, LABELS) == 1.0


@pytest.mark.parametrize("container", [list, tuple, np.array, lambda texts: np.array(texts, dtype=object)])
def test_text(container: Any) -> None:
    good, bad = ["what a lovely, sunny day", "lovely food and friends"], ["the worst rain ever", "an ugly, dirty room"]
    texts, labels = [*good, *bad] * 40, [1, 1, 0, 0] * 40
    classifier = small().fit(container(texts), labels)
    assert classifier.predict(container([*good, *bad])).tolist() == [1, 1, 0, 0]


def test_frames_of_pandas_and_polars() -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    columns = {"width": POINTS[:, 0], "height": POINTS[:, 1]}
    expected = small().fit(POINTS, LABELS).votes(POINTS).counts
    for frame in (pandas.DataFrame(columns), polars.DataFrame(columns)):
        classifier = small().fit(frame, LABELS)
        assert list(classifier.feature_names_in_) == ["width", "height"]
        assert np.array_equal(classifier.votes(frame).counts, expected)
    words = ["fine" if x > 0 else "foul" for x in POINTS[:, 0]]
    assert small().fit(pandas.Series(words), LABELS > 0).score(pandas.Series(words), LABELS > 0) > 0.9


def test_tables_of_whole_numbers_and_of_bytes_are_tables() -> None:
    numbers = np.round(POINTS * 50 + 100)
    expected = small().fit(numbers, LABELS).votes(numbers).counts
    for dtype in (np.int64, np.uint8, object):
        assert np.array_equal(small().fit(numbers.astype(dtype), LABELS).votes(numbers).counts, expected)


@pytest.mark.parametrize("model", ["mlp", torch.nn.Sequential(torch.nn.Linear(2, 3)), lambda: torch.nn.Linear(2, 3)])
def test_other_networks(model: Any) -> None:
    classifier = small(model=model, steps=30, sample_rate=0.5, noise_multiplier=2.0, learning_rate=1.0)
    assert classifier.fit(POINTS, LABELS).score(POINTS, LABELS) > 0.8


def test_an_encoder_that_the_user_vouches_for_is_named_in_every_certificate() -> None:
    frozen = Frozen(np.tanh, title="squashed", trained_on="nothing at all")
    certificate = small(features=frozen).fit(POINTS, LABELS).certify(NEW)
    assert any("nothing at all" in sentence for sentence in certificate.assumptions)


@pytest.mark.parametrize(
    ("x", "y", "parameters", "message"),
    [
        (np.where(POINTS > 1, np.nan, POINTS), LABELS, {}, "NaN"),
        (POINTS, np.zeros(120), {}, "one class only"),
        (POINTS, LABELS[:7], {}, "inconsistent numbers of samples"),
        (POINTS, np.linspace(0, 1, 120), {}, "continuous"),
        (POINTS, np.where(LABELS == 2, np.nan, LABELS), {}, "NaN"),
        (["a", "b"] * 60, np.where(LABELS == 2, np.nan, LABELS), {}, "NaN|continuous"),
        (POINTS, [None, "a", "b"] * 40, {}, "label"),
        (POINTS, LABELS, {"classes": [0, 1]}, "hold 2, which is none of the classes 0, 1"),
        (POINTS, LABELS, {"classes": ["0", "1", "2"]}, "none of the classes"),
        (POINTS, LABELS, {"classes": [0, 0, 1, 2]}, "different labels"),
        (POINTS, LABELS, {"classes": [0]}, "at least 2"),
        (POINTS, LABELS, {"classes": "012"}, "a list of at least 2"),
        (POINTS, LABELS, {"classes": 3}, "a list of at least 2"),
        (POINTS, LABELS, {"classes": [None, "a"]}, "all words or all numbers"),
        (POINTS, LABELS, {"classes": [0, "a"]}, "all words or all numbers"),
        (POINTS, LABELS, {"classes": [[1, 2], [3]]}, "all words or all numbers"),
        (POINTS, LABELS % 2, {"classes": [[0, 1], [0, 1]]}, "all words or all numbers"),
        (POINTS, LABELS, {"run_dir": 3}, "run_dir as the path of a directory"),
        (POINTS, LABELS, {"instances": 0}, "instances"),
        (POINTS, LABELS, {"noise_multiplier": -1.0}, "noise_multiplier"),
        (POINTS, LABELS, {"model": "forest"}, "model"),
        (POINTS, LABELS, {"features": "words"}, "features"),
        (POINTS, LABELS, {"features": "hashed-ngrams"}, "text"),
        (POINTS, LABELS, {"device": "abacus"}, "device"),
        (POINTS, LABELS, {"random_state": "dice"}, "random_state"),
        (POINTS, LABELS, {"method": "magic"}, "method"),
        (POINTS, LABELS, {"threat": "flood"}, "threat"),
        (POINTS, LABELS, {"failure_prob": 0.0}, "failure_prob"),
        (POINTS, None, {}, "requires y"),
        (["a", "b"] * 60, None, {}, "requires y"),
        (["a", None] * 60, LABELS, {}, "Row 1 of the texts is None"),
        (["a", 3.0] * 60, LABELS, {}, "Row 1 of the texts"),
        (np.array([["a", "b"]] * 120), LABELS, {}, "declaration of mithridate"),
        ([], [], {}, "0 sample|1D array"),
        (np.zeros((120, 8, 8, 3), np.uint8), LABELS, {}, "moveaxis"),
        (np.zeros((0, 8, 8), np.uint8), LABELS[:0], {}, "0 sample"),
        (np.zeros((120, 8, 8), np.uint8), None, {}, "requires y"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(x: Any, y: Any, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**parameters).fit(x, y)


@pytest.mark.parametrize(("value", "name"), [(np.nan, "NaN"), (np.inf, "infinity"), (None, "NaN")])
def test_missing_values_are_refused_without_advice_that_voids_the_certificate(
    fitted: CertifiedClassifier, value: float | None, name: str
) -> None:
    rows: list[list[Any]] = POINTS.tolist()
    rows[7][1] = value
    for refuse in (lambda: small().fit(rows, LABELS), lambda: fitted.predict(rows)):
        with pytest.raises(ConfigError, match=f"Input X contains {name} in row 7") as refused:
            refuse()
        message = str(refused.value)
        assert "leave out such rows" in message
        assert "mithridate.data" in message
        assert "imputer that was fitted on the training data voids" in message
        assert "scikit-learn.org" not in message


IMAGE = np.zeros((4, 4), dtype=np.uint8)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (np.full((4, 4), 0.9), r"float64 of shape \(4, 4\)"),  # would become 0 among bytes
        (np.full((4, 4), 300), r"int64 of shape \(4, 4\)"),  # would become 44
        (np.zeros((4, 5), np.uint8), r"uint8 of shape \(4, 5\)"),
        (torch.zeros(4, 4), r"float32 of shape \(4, 4\)"),
        (IMAGE.tolist(), "a list"),
    ],
)
@pytest.mark.parametrize("container", [list, tuple])
def test_no_example_decides_how_the_others_are_read(container: Any, other: Any, message: str) -> None:
    examples = [IMAGE] * 120
    examples[5] = other
    with pytest.raises(ConfigError, match=f"Item 5 of X is {message}, but item 0 is uint8"):
        small().fit(container(examples), LABELS)
    examples[5], examples[0] = IMAGE, other
    with pytest.raises(ConfigError, match=f"Item 1 of X is uint8.*, but item 0 is {message}"):
        small().fit(container(examples), LABELS)


def test_lists_of_arrays_of_one_kind_are_read_as_one_array(fitted: CertifiedClassifier) -> None:
    expected = fitted.votes(POINTS).counts
    for rows in (list(POINTS), tuple(POINTS), list(torch.tensor(POINTS)), [POINTS[0], *torch.tensor(POINTS[1:])]):
        assert np.array_equal(fitted.votes(rows).counts, expected)


def test_the_precision_of_nested_lists_does_not_depend_on_their_numbers() -> None:
    seen: list[str] = []

    def look(inputs: Any) -> Any:
        seen.append(str(inputs.dtype))
        return np.asarray(inputs, dtype=np.float32)

    rows = [[np.float32(a), np.float32(b)] for a, b in POINTS]
    frozen = Frozen(look, title="as they are", trained_on="nothing")
    small(features=frozen).fit(rows, LABELS)
    assert set(seen) == {"float64"}


def test_sparse_matrices_are_refused() -> None:
    with pytest.raises(TypeError, match="dense"):
        small().fit(scipy.sparse.csr_matrix(POINTS), LABELS)


def test_true_labels_that_were_never_seen_are_refused(fitted: CertifiedClassifier) -> None:
    with pytest.raises(ConfigError, match="hold 7, which is none of the classes 0, 1, 2"):
        fitted.certify(NEW, [0, 1, 7])


def test_texts_that_cannot_be_held_are_refused() -> None:
    texts = ["x" * 1_000_000, *["short"] * 5_000]
    with pytest.raises(ConfigError, match="1,000,000 characters"):
        small().fit(texts, np.arange(len(texts)) % 2)


def test_without_torch_the_extra_is_named() -> None:
    code = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, NoTorch())
from mithridate.core.conditions import conditions_of
from mithridate.core.conditions import Size
from mithridate.defences.registry import kind_of, names
from mithridate.estimator import CertifiedClassifier
print(CertifiedClassifier().fit([[-1.0], [1.0]] * 20, [0, 1] * 20).predict([[-1.0], [1.0]]).tolist())
try:
    CertifiedClassifier("fdp").fit([[0.0], [1.0]], [0, 1])
except ModuleNotFoundError as error:
    print(error)
"""
    outcome = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert outcome.stdout.startswith("[0, 1]")  # nothing is trained there
    assert "pip install 'mithridate[train]'" in outcome.stdout


# --- where the models are -------------------------------------------------------------------------------------------


def test_it_survives_pickling_and_copying_without_its_seed(fitted: CertifiedClassifier) -> None:
    expected = fitted.votes(POINTS)
    for twin in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        assert twin.votes(POINTS) == expected
        assert pickle.loads(pickle.dumps(twin)).votes(POINTS) == expected
        assert not (twin._run.folder() / "seed").exists()
    assert not (fitted._run.folder() / "seed").exists()


def test_a_pickle_that_was_never_used_can_be_pickled_again(fitted: CertifiedClassifier) -> None:
    twice = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(fitted))))
    assert np.array_equal(twice.predict(NEW), fitted.predict(NEW))


def test_nothing_is_left_behind() -> None:
    classifier = small().fit(POINTS, LABELS)
    folder = classifier._run.folder()
    assert folder.is_dir()
    classifier.fit(POINTS[:60], LABELS[:60])
    gc.collect()
    assert not folder.exists()
    folder = classifier._run.folder()
    del classifier
    gc.collect()
    assert not folder.exists()


def test_a_run_directory_is_kept_and_gone_on_with(tmp_path: Path) -> None:
    first = small(run_dir=tmp_path / "run", random_state=None).fit(POINTS, LABELS)
    again = small(run_dir=tmp_path / "run", random_state=None).fit(POINTS, LABELS)
    counts = first.votes(POINTS).counts
    assert np.array_equal(again.votes(POINTS).counts, counts)
    assert np.array_equal(predict(tmp_path / "run", POINTS).counts, counts)
    del first, again
    gc.collect()
    assert (tmp_path / "run" / "run.json").exists()
    with pytest.raises(ConfigError):
        small(run_dir=tmp_path / "run", random_state=None).fit(POINTS[:90], LABELS[:90])


def test_what_the_user_assumes_is_in_the_certificate() -> None:
    said = "The number of steps was found by cross-validation on this data."
    twin: Any = clone(small(assumptions=[said]))
    classifier = twin.fit(POINTS, LABELS)
    assert classifier.certify(NEW).assumptions.count(said) == 1
    with pytest.raises(ConfigError, match="assumptions as a list of sentences"):
        small(assumptions=said).fit(POINTS, LABELS)


def test_a_fit_that_fails_leaves_what_was_fitted_before() -> None:
    classifier = small().fit(POINTS, LABELS)
    expected = classifier.votes(NEW)
    with pytest.raises(ConfigError):
        classifier.set_params(sample_rate=2.0).fit(POINTS, LABELS + 5)
    assert classifier.votes(NEW) == expected
    assert classifier.classes_.tolist() == [0, 1, 2]


@pytest.mark.parametrize("parameters", [{"sample_rate": 2.0}, {"classes": [0, 1]}, {"device": "abacus"}])
def test_a_fit_that_fails_forgets_the_columns_it_saw(parameters: dict[str, Any]) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(POINTS, columns=["width", "height"])
    classifier = small().fit(frame, LABELS)
    expected = classifier.votes(frame)
    with pytest.raises(ConfigError):
        classifier.set_params(**parameters).fit(np.hstack([POINTS, POINTS]), LABELS)
    classifier.set_params(device="cpu")
    assert classifier.n_features_in_ == 2
    assert list(classifier.feature_names_in_) == ["width", "height"]
    assert classifier.votes(frame) == expected


def test_a_first_fit_that_fails_leaves_nothing() -> None:
    classifier = small(sample_rate=2.0)
    before = dict(vars(classifier))
    with pytest.raises(ConfigError):
        classifier.fit(POINTS, LABELS)
    assert vars(classifier) == before


def test_a_fit_on_texts_forgets_the_columns_of_a_table_before() -> None:
    classifier = small().fit(POINTS, LABELS)
    assert not hasattr(classifier.fit(["up", "down"] * 60, [0, 1] * 60), "n_features_in_")


def test_a_relative_run_directory_is_found_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    classifier = small(run_dir="run").fit(POINTS, LABELS)
    expected = classifier.votes(NEW)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert classifier.votes(NEW) == expected
    assert pickle.loads(pickle.dumps(classifier)).votes(NEW) == expected
    assert classifier.run_dir == "run"


def test_threads_that_predict_at_once_after_unpickling_find_all_files(
    fitted: CertifiedClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = pickle.loads(pickle.dumps(fitted))
    names = set(twin._run._files)
    write, start = Path.write_bytes, threading.Barrier(4)

    def slowly(path: Path, data: bytes) -> int:
        time.sleep(0.01)
        return write(path, data)

    def found(_: int) -> tuple[Path, set[str]]:
        start.wait(timeout=600)
        root = twin._run.folder()
        return root, {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}

    monkeypatch.setattr(Path, "write_bytes", slowly)
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(found, range(4)))
    assert len(names) >= 2
    assert {root for root, _ in outcomes} == {twin._run.folder()}
    assert all(files == names for _, files in outcomes)


def test_what_was_chosen_is_logged_and_never_printed(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="mithridate.estimator"):
        classifier = small().fit(POINTS, LABELS)
    assert classifier.choice_.words in caplog.text
    assert capfd.readouterr() == ("", "")


def test_parameters_that_are_set_later_do_not_change_what_was_fitted(fitted: CertifiedClassifier) -> None:
    changed = copy.deepcopy(fitted).set_params(model="mlp", features=None, instances=3, classes=[5, 6])
    assert np.array_equal(changed.votes(POINTS).counts, fitted.votes(POINTS).counts)
