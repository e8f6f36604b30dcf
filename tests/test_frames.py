"""Data frames in and out: mixed columns into CertifiedClassifier, certificates as frames and plots, what is said."""

import pickle
import subprocess
import sys
import types
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("pandas")
pytest.importorskip("polars")

import pandas
import polars
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import mithridate
from mithridate import ArtifactError, CertifiedClassifier, ConfigError, SampledGaussian, Votes, certify
from mithridate._progress import shown
from mithridate.data import Category, Date, Number, Table, Text, propose, read
from mithridate.defences import NearestNeighbours

ROWS = 120
RNG = np.random.default_rng(3)
AGE = RNG.integers(18, 80, ROWS).astype(float)
JOB = RNG.choice(["clerk", "smith", "cook"], ROWS)
RICH = (AGE > 50) ^ (JOB == "smith")
INCOME = np.where(RICH, "rich", "poor")
WORDS = ["likes tea and cake a lot", "never on time for a meeting", "a quiet person who works hard"]
COLUMNS: dict[str, Any] = {
    "age": np.where(np.arange(ROWS) % 7 == 3, np.nan, AGE),
    "job": JOB,
    "member": RNG.random(ROWS) < 0.5,
    "hired": np.datetime64("2015-01-01") + RNG.integers(0, 2000, ROWS).astype("timedelta64[D]"),
    "remarks": [None if row == 4 else WORDS[row % 3] for row in range(ROWS)],
}
FRAME = pandas.DataFrame(COLUMNS)
WHOLE = FRAME.assign(income=INCOME)
DECLARED = Table(
    None,
    (
        Number("age", 0, 120),
        Category("job"),
        Category("member"),
        Date("hired", 2010, 2030),
        Text("remarks", dimension=64),
    ),
)


def near(**parameters: Any) -> CertifiedClassifier:
    return CertifiedClassifier("nearest-neighbours", **{"neighbours": 9, **parameters})


def hugging_face(frame: Any) -> Any:
    return pytest.importorskip("datasets").Dataset.from_pandas(frame)


def ids(certificate: Any) -> list[str]:
    return [each.id for each in certificate.conditions]


# --- mixed columns --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [lambda frame: frame, polars.from_pandas, hugging_face])
def test_a_declared_frame_is_read_as_every_other_door_reads_it(made: Callable[[Any], Any]) -> None:
    """The votes are those of the examples that `read` makes, trained without an estimator; so are the radii."""
    classifier = near(schema=DECLARED, classes=["poor", "rich"], num_train=ROWS)
    certificate = classifier.fit(made(FRAME), INCOME).certify(made(FRAME), INCOME)
    examples = read((FRAME, INCOME), replace(DECLARED, classes=("poor", "rich")), labels=True)
    defence = NearestNeighbours(neighbours=9, num_train=ROWS)
    expected: Any = defence.certify(defence.train(examples, examples))
    assert np.array_equal(certificate.votes.counts, expected.votes.counts)
    assert np.array_equal(certificate.radius, expected.radius)
    assert not certificate.conditional
    assert not expected.conditional


def test_a_frame_without_a_schema_is_read_by_a_proposal_which_is_a_condition() -> None:
    fitted = near(classes=["poor", "rich"]).fit(FRAME, INCOME)
    assert fitted.schema_ == propose((FRAME, None))
    assert fitted.schema_ is not None
    kinds = [type(column) for column in fitted.schema_.columns]
    assert kinds == [Number, Category, Category, Date, Text]
    assert ids(fitted.certify(FRAME)) == ["proposed-schema"]
    assert ids(near().fit(FRAME, INCOME).certify(FRAME)) == ["class-list", "proposed-schema"]
    confirmed = near(classes=["poor", "rich"], schema=replace(fitted.schema_, proposed=False)).fit(FRAME, INCOME)
    assert ids(confirmed.certify(FRAME)) == []
    assert np.array_equal(confirmed.votes(FRAME).counts, fitted.votes(FRAME).counts)


def test_a_schema_that_was_proposed_elsewhere_is_a_condition_too() -> None:
    proposed = propose(WHOLE, label="income")
    assert ids(near(schema=proposed).fit(WHOLE).certify(WHOLE)) == ["proposed-schema", "class-list"]
    assert ids(near(schema=proposed, classes=["poor", "rich"]).fit(WHOLE).certify(WHOLE)) == ["proposed-schema"]


def test_numbers_alone_are_taken_as_they_are_and_one_missing_value_would_have_changed_that() -> None:
    """An attacker's row with a gap in it makes another method of reading all rows: so even full columns are a look."""
    numbers = pandas.DataFrame({"age": AGE, "tall": RNG.random(ROWS)})
    fitted = near(classes=[False, True]).fit(numbers, RICH)
    assert fitted.schema_ is None
    assert np.array_equal(
        fitted.votes(numbers).counts, near().fit(numbers.to_numpy(), RICH).votes(numbers.to_numpy()).counts
    )
    assert ids(fitted.certify(numbers)) == ["proposed-schema"]
    assert ids(near(classes=[False, True]).fit(numbers.to_numpy(), RICH).certify(numbers.to_numpy())) == []
    gap = numbers.assign(age=numbers["age"].where(numbers.index != 5))
    assert near().fit(gap, RICH).schema_ is not None


def test_columns_may_come_in_any_order_and_from_another_kind_of_frame() -> None:
    fitted = near().fit(FRAME, INCOME)
    expected = fitted.votes(FRAME).counts
    for other in (FRAME[FRAME.columns[::-1]], polars.from_pandas(FRAME), hugging_face(FRAME), WHOLE[FRAME.columns]):
        assert np.array_equal(fitted.votes(other).counts, expected)
    assert np.array_equal(pickle.loads(pickle.dumps(fitted)).votes(FRAME).counts, expected)
    assert list(fitted.feature_names_in_) == list(FRAME.columns)
    assert fitted.n_features_in_ == 5


@pytest.mark.parametrize("made", [lambda frame: frame, polars.from_pandas, hugging_face])
def test_labels_may_be_a_column_and_are_never_an_input(made: Callable[[Any], Any]) -> None:
    whole, apart = made(WHOLE), near().fit(FRAME, INCOME)
    assert apart.schema_ is not None
    named = near(schema=Table("income", apart.schema_.columns))
    for fitted in (near().fit(whole, "income"), named.fit(whole)):
        assert list(fitted.feature_names_in_) == list(FRAME.columns)
        assert np.array_equal(fitted.votes(whole).counts, apart.votes(FRAME).counts)
        assert np.array_equal(fitted.predict(FRAME), apart.predict(FRAME))
        assert fitted.score(whole, "income") == apart.score(FRAME, INCOME) == (apart.predict(FRAME) == INCOME).mean()
        ours, theirs = fitted.certify(whole, "income"), apart.certify(FRAME, INCOME)
        assert np.array_equal(ours.radius, theirs.radius)
        assert ours.summary() == theirs.summary()
        assert fitted.certify(whole).votes.labels is None


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (pandas.Series(INCOME), ["poor", "rich"]),
        (pandas.Series(pandas.Categorical(INCOME)), ["poor", "rich"]),
        (pandas.Series(INCOME, dtype="string"), ["poor", "rich"]),
        (pandas.Series(RICH), [False, True]),
        (pandas.Series(RICH, dtype="boolean"), [False, True]),
        (pandas.Series(RICH.astype(int), dtype="Int64"), [0, 1]),
        (polars.Series(INCOME.tolist()), ["poor", "rich"]),
        (polars.Series(RICH.astype(int).tolist()), [0, 1]),
        (INCOME.tolist(), ["poor", "rich"]),
    ],
)
def test_labels_keep_their_kind(labels: Any, classes: list[Any]) -> None:
    fitted = near().fit(FRAME, labels)
    assert fitted.classes_.tolist() == classes
    assert [type(name) for name in fitted.classes_.tolist()] == [type(name) for name in classes]
    assert set(fitted.certify(FRAME, labels).to_frame()["true_label"]) == set(classes)


def test_classes_of_a_schema_are_those_of_the_labels() -> None:
    columns = DECLARED.columns
    named = near(schema=Table("income", columns, classes=("rich", "poor", "idle"))).fit(WHOLE)
    assert named.classes_.tolist() == ["idle", "poor", "rich"]
    assert ids(named.certify(FRAME)) == []
    counted = near(schema=Table(None, columns, classes=("0", "1"))).fit(FRAME, RICH.astype(int))
    assert counted.classes_.tolist() == [0, 1]
    truths = near(schema=Table(None, columns, classes=("True", "False"))).fit(FRAME, RICH)
    assert truths.classes_.tolist() == [False, True]


def test_categories_by_their_type_are_categories_also_where_they_are_numbers() -> None:
    codes, sizes = [1, 2, 3, 4] * 30, [4, 2, 3, 1] * 30
    frames = [
        pandas.DataFrame({"code": pandas.Categorical(codes), "size": sizes}),
        polars.DataFrame({"code": polars.Series(map(str, codes), dtype=polars.Categorical), "size": sizes}),
    ]
    for frame in frames:
        found = propose((frame, None))
        assert found == Table(None, (Category("code"), Number("size", 1, 4)), proposed=True)
    empty = pandas.DataFrame({"code": pandas.Categorical([None] * 4), "size": [1, 2, 3, 4]})
    assert propose((empty, ["a", "b"] * 2)) == Table(None, (Number("size", 1, 4),), ("a", "b"), proposed=True)


def test_what_can_be_made_a_pandas_frame_is_one() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.Table.from_pandas(WHOLE)
    assert np.array_equal(near().fit(table, "income").predict(table), near().fit(WHOLE, "income").predict(WHOLE))


def test_a_run_on_a_frame_is_predicted_from_by_its_directory(tmp_path: Any) -> None:
    from mithridate.cli import main

    fitted = near(schema=replace(DECLARED, label="income"), run_dir=tmp_path / "run").fit(WHOLE)
    WHOLE.to_csv(tmp_path / "new.csv", index=False)
    out = tmp_path / "predictions.csv"
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "new.csv"), "--out", str(out), "--json"]) == 0
    assert pandas.read_csv(out)["prediction"].tolist() == fitted.predict(FRAME).tolist()


def _refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


@pytest.mark.parametrize(
    ("x", "y", "parameters", "message"),
    [
        (WHOLE, "incom", {}, "no column 'incom'; did you mean 'income'"),
        (FRAME.to_numpy(), "income", {}, "column 'income', but X is no data frame"),
        (FRAME, None, {}, "requires y to be passed.*the name of their column"),
        (AGE[:, None], INCOME, {"schema": DECLARED}, "Expected a data frame with the columns age, job"),
        (FRAME, INCOME, {"schema": "auto"}, "schema as a mithridate.data.Table"),
        (FRAME, INCOME, {"schema": Table(None, (Number("aeg", 0, 1),))}, "no column 'aeg'; did you mean 'age'"),
        (FRAME, RICH.astype(int), {"schema": replace(DECLARED, classes=("a", "b"))}, "labels are int64.*classes a, b"),
        (FRAME, INCOME, {"schema": replace(DECLARED, classes=("a", "b"))}, "none of the classes a, b"),
        (FRAME.assign(job=[[1]] * ROWS), INCOME, {}, "'job' holds list values"),
        (pandas.concat([FRAME, FRAME], axis=1), INCOME, {}, "more than one column named 'age'"),
        (FRAME[:0], INCOME[:0], {}, "no rows"),
        (polars.from_pandas(FRAME).lazy(), INCOME, {}, "give what its collect"),
        (FRAME, INCOME, {"verbose": "yes"}, "verbose as a number"),
        (WHOLE.assign(income=[None, *INCOME[1:]]), "income", {}, "Input y contains NaN: some training labels"),
        (FRAME, [float("nan"), *RICH[1:].astype(float)], {}, "Input y contains NaN: some training labels"),
    ],
)
def test_bad_frames_are_refused_in_a_sentence(x: Any, y: Any, parameters: dict[str, Any], message: str) -> None:
    _refused(lambda: near(**parameters).fit(x, y), message)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (FRAME.drop(columns=["age", "job"]), "lacks age, job; give the columns of fit, in any order"),
        (FRAME.assign(more=1), "has more, which fit did not see"),
        (FRAME.rename(columns={"age": "years"}), "lacks age and has years"),
        (FRAME.to_numpy(), "Expected a data frame with the columns age, job, member, hired, remarks"),
    ],
)
def test_other_columns_than_those_of_fit_are_named(x: Any, message: str) -> None:
    fitted = near().fit(FRAME, INCOME)
    for call in (fitted.predict, fitted.predict_proba, fitted.certify, fitted.votes):
        _refused(lambda call=call: call(x), message)


def test_words_where_numbers_were_fitted_are_refused() -> None:
    fitted = near().fit(pandas.DataFrame({"age": AGE}), INCOME)
    _refused(
        lambda: fitted.predict(pandas.DataFrame({"age": ["old"]})), "'age' holds words, but in fit it held numbers"
    )


def test_a_fit_on_an_array_forgets_the_schema_before() -> None:
    fitted = near().fit(FRAME, INCOME).fit(AGE[:, None], INCOME)
    assert fitted.schema_ is None
    assert not hasattr(fitted, "feature_names_in_")
    assert fitted.predict(AGE[:, None]).shape == (ROWS,)


# --- Hugging Face ---------------------------------------------------------------------------------------------------


def test_texts_of_hugging_face_with_named_classes() -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])})
    texts, labels = (
        ["what a lovely day", "the worst rain ever", "lovely food and friends", "an ugly, dirty room"] * 20,
        [1, 0, 1, 0] * 20,
    )
    source = datasets.Dataset.from_dict({"text": texts, "label": labels}, features=features)
    fitted = near().fit(source, "label")
    assert fitted.schema_ == Table(None, (Text("text"),), proposed=True)
    assert fitted.predict(source).tolist()[:4] == ["pos", "neg", "pos", "neg"]
    assert fitted.certify(source, "label").to_frame()["correct"].all()
    assert np.array_equal(
        fitted.votes(source.with_format("numpy")).counts, near().fit(texts, labels).votes(texts).counts
    )
    numbered = near().fit(source.to_pandas(), "label")  # pandas has no names for them
    assert numbered.classes_.tolist() == [0, 1]


# --- with scikit-learn ------------------------------------------------------------------------------------------------


def test_searches_pipelines_and_clones_take_frames() -> None:
    for frame in (FRAME, polars.from_pandas(FRAME)):
        search = GridSearchCV(near(), {"neighbours": [5, 9]}, cv=2)
        with pytest.warns(UserWarning, match="GridSearchCV"):
            search.fit(frame, INCOME)
        assert "tuned-on-training-data" in ids(search.best_estimator_.certify(frame))
        assert search.predict(frame).shape == (ROWS,)
    kept = ["age", "job"]
    part = make_pipeline(FunctionTransformer(lambda frame: frame[kept]), near(schema=Table(None, DECLARED.columns[:2])))
    assert cross_val_score(part, FRAME, INCOME, cv=3).min() > 0.7
    twin: Any = clone(near(schema=DECLARED, verbose=2))
    assert (twin.schema, twin.verbose) == (DECLARED, 2)


def heard(call: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in found]


def test_one_warning_a_search_not_one_a_fold() -> None:
    search = GridSearchCV(near(), {"neighbours": [5, 9]}, cv=2)
    for _ in range(2):  # the second search says it again
        (said,) = heard(lambda: search.fit(AGE[:, None], INCOME))
        assert "chosen by GridSearchCV" in said
    (said,) = heard(lambda: cross_val_score(search, AGE[:, None], INCOME, cv=2))
    assert "chosen by GridSearchCV" in said


@pytest.mark.parametrize("made", [pandas.DataFrame, polars.from_pandas])
def test_labels_that_are_among_the_inputs_are_noticed(made: Callable[[Any], Any]) -> None:
    whole = made(WHOLE)
    (said,) = heard(lambda: near().fit(whole, whole["income"]))
    assert "called income, and so is an input" in said
    for fitted, y in ((near(), "income"), (near(schema=DECLARED), whole["income"])):
        assert heard(lambda fitted=fitted, y=y: fitted.fit(whole, y)) == []


def test_radii_that_end_with_the_size_step_are_told_with_the_remedy() -> None:
    """134 is the last number of its step: one more example would be another one."""
    x, y = np.repeat([[0.0], [1.0]], 67, axis=0), np.repeat([0, 1], 67)
    fitted = near(neighbours=None, classes=[0, 1]).fit(x, y)
    (said,) = heard(lambda: fitted.certify(x))
    assert said.startswith("134 of 134 radii end at 0")
    assert "Declare num_train" in said
    assert repr(certify(fitted.votes(x))).endswith(
        "the size step cuts the radius of 134 predictions (declare num_train)"
    )
    declared = near(neighbours=None, classes=[0, 1], num_train=134).fit(x, y)
    assert heard(lambda: declared.certify(x)) == []
    assert "num_train" not in repr(declared.certify(x))


@pytest.mark.parametrize("validate", [cross_val_score, cross_val_predict])
def test_one_warning_a_cross_validation(validate: Callable[..., Any]) -> None:
    pytest.importorskip("torch")
    weak = CertifiedClassifier("fdp", instances=5, steps=2, device="cpu", random_state=0)
    (said,) = heard(lambda: validate(weak, AGE[:, None], INCOME, cv=3))
    assert said.startswith("Certificates will be weak")
    assert len(heard(lambda: [weak.fit(AGE[:, None], INCOME) for _ in range(2)])) == 2  # each fit by itself says it


@pytest.mark.more
def test_one_warning_in_every_process_of_a_search() -> None:
    code = """
import numpy as np
from sklearn.model_selection import cross_val_score
from mithridate import CertifiedClassifier
x, y = np.random.default_rng(0).normal(size=(80, 2)), np.arange(80) % 2
cross_val_score(CertifiedClassifier("fdp", instances=5, steps=2, device="cpu"), x, y, cv=8, n_jobs=2)
"""
    outcome = subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, check=True)
    assert 1 <= outcome.stderr.count("Certificates will be weak") <= 2


# --- progress -------------------------------------------------------------------------------------------------------


def trained(verbose: int) -> CertifiedClassifier:
    pytest.importorskip("torch")
    classifier = CertifiedClassifier("fdp", instances=20, steps=3, device="cpu", random_state=0, verbose=verbose)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return classifier.fit(AGE[:, None], INCOME)


def test_nothing_is_printed_unless_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    trained(verbose=0)
    assert capfd.readouterr() == ("", "")
    classifier = trained(verbose=1)
    assert classifier.choice_.words.splitlines()[0] in capfd.readouterr().err


def test_in_a_notebook_progress_is_one_line_of_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = type("Shell", (type("ZMQInteractiveShell", (), {}),), {})()
    kernel: Any = types.ModuleType("IPython")
    kernel.get_ipython = lambda: shell
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    trained(verbose=1)
    said = capsys.readouterr()
    *_, line = said.out.rstrip("\n").split("\n")
    assert said.err == ""
    assert line.startswith("\rtraining: ")
    assert line.rstrip().split("\r")[-1].startswith("training: 60 of 60 model-steps (100%)")


def test_without_a_terminal_lines_go_to_the_error_stream(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(0, 1000, 20))
    monkeypatch.setattr("mithridate._progress.time.monotonic", lambda: next(now))
    with shown("certifying", "inputs", ("Wait.",)) as clock:
        for done in range(3):
            clock(done, 2)
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == "mithridate: Wait."
    assert lines[-1].startswith("mithridate: 2 of 2 inputs (100%)")


# --- certificates as frames, plots and words --------------------------------------------------------------------------

MECHANISM = SampledGaussian(4.0, 0.05, 20)
NAMED = {"source": {"class_names": ["cat", "dog"]}}
COUNTS = np.array([[1000, 0], [100, 900], [500, 500], [880, 120]])


CERTIFIED = cache(lambda: certify(Votes(COUNTS, MECHANISM)))


def certificate(labels: Any = None, recipe: Any = NAMED) -> Any:
    truth = None if labels is None else np.array(labels)
    return replace(CERTIFIED(), votes=Votes(COUNTS, MECHANISM, labels=truth, recipe=recipe))


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_a_certificate_is_a_frame_with_a_row_for_each_prediction(kind: str) -> None:
    made, claimed = certificate([0, 0, 1, 0]).to_frame(kind), certificate([0, 0, 1, 0])
    assert type(made).__module__.split(".")[0] == kind
    columns = {name: list(made[name]) for name in made.columns}
    assert columns == {
        "input": [0, 1, 2, 3],
        "label": ["cat", "dog", "cat", "cat"],
        "radius": claimed.radius.tolist(),
        "status": claimed.status.tolist(),
        "votes": [1000, 900, 500, 880],
        "true_label": ["cat", "cat", "dog", "cat"],
        "correct": [True, False, False, True],
    }
    assert list(certificate().to_frame(kind).columns) == ["input", "label", "radius", "status", "votes"]
    given = certificate().to_frame(kind, labels=["cat", "cat", "dog", "cat"])
    assert list(given["correct"]) == columns["correct"]
    assert list(certificate(recipe=None).to_frame(kind)["label"]) == [0, 1, 0, 0]
    assert certificate().to_dict()["class_names"] == ["cat", "dog"]
    assert certificate(recipe=None).to_dict()["class_names"] is None


def test_a_frame_or_a_plot_of_what_cannot_be_is_refused() -> None:
    wrong = replace(certificate(), label=np.array([0, 1, 2, 0]))
    for call in (wrong.to_frame, wrong.plot):
        with pytest.raises(ArtifactError, match="cannot be; run mithridate verify"):
            call()
    _refused(lambda: certificate().to_frame("excel"), "kind to be one of pandas, polars, got 'excel'")
    _refused(lambda: certificate().to_frame(labels=["cow"] * 4), "'cow', which is none of the classes 'cat', 'dog'")


@pytest.mark.parametrize(
    ("package", "call", "remedy"),
    [
        ("pandas", lambda: certificate().to_frame(), "pip install pandas"),
        ("polars", lambda: certificate().to_frame("polars"), "pip install polars"),
        ("matplotlib", lambda: certificate().plot(), r"pip install 'mithridate\[report\]'"),
    ],
)
def test_a_package_that_is_missing_is_named_with_the_remedy(
    package: str, call: Callable[[], Any], remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    _refused(call, remedy)


@pytest.fixture
def axes() -> Any:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    return Figure().add_subplot()


def height_at(line: Any, radius: int) -> float:
    """The height of a curve of steps that are level to their right."""
    starts, heights = line.get_xdata(), line.get_ydata()
    return float(heights[np.searchsorted(starts, radius, side="right") - 1])


@pytest.mark.parametrize("labels", [None, [0, 0, 1, 0]])
def test_the_curve_of_a_plot_has_the_share_at_every_radius(axes: Any, labels: Any) -> None:
    claimed = certificate(labels)
    assert claimed.plot(ax=axes) is axes
    curve, *others = axes.lines
    assert curve.get_drawstyle() == "steps-post"
    for radius in range(int(claimed.radius.max()) + 3):
        counts = (claimed.radius >= radius) & (True if labels is None else claimed.label == np.array(labels))
        assert height_at(curve, radius) == pytest.approx(counts.mean())
    if labels is None:
        assert not others
        assert axes.get_ylabel() == "certified"
        return
    assert axes.get_ylabel() == "correct and certified"
    assert list(others[0].get_ydata()) == [0.75, 0.75]
    assert others[0].get_label() == "baseline: always 'cat', 75.0%"


def test_two_curves_share_axes_and_one_baseline_and_conditions_are_in_the_legend(axes: Any) -> None:
    conditional = near().fit(FRAME, INCOME).certify(FRAME, INCOME)
    conditional.plot(ax=axes)
    near(neighbours=5).fit(FRAME, INCOME).certify(FRAME, INCOME).plot(ax=axes, color="red", label="fewer")
    said = [text.get_text() for text in axes.get_legend().get_texts()]
    assert len(said) == 3
    assert "conditional on class-list and proposed-schema" in said[0]
    assert said[2] == "fewer"
    assert axes.get_xlim()[1] > conditional.radius.max()


def test_names_of_classes_are_no_formulas_of_a_plot(axes: Any) -> None:
    drawn = certificate([0, 0, 1, 0], {"source": {"class_names": ["$x^", "dog"]}}).plot(ax=axes)
    drawn.figure.canvas.draw()
    assert axes.lines[1].get_label().startswith(r"baseline: always '\$x^'")


def test_a_plot_of_nothing_certified_and_one_without_axes() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    drawn = certify(Votes(np.array([[500, 500]]), MECHANISM)).plot()
    assert list(drawn.lines[0].get_ydata()) == [0.0]
    pyplot.close(drawn.figure)


def test_results_are_told_in_at_most_three_lines() -> None:
    examples = read((FRAME, INCOME), replace(DECLARED, classes=("poor", "rich")), labels=True)
    fitted = near().fit(FRAME, INCOME)
    certified = fitted.certify(FRAME, INCOME)
    compared = mithridate.compare([NearestNeighbours(), NearestNeighbours(neighbours=5)], (examples, examples))
    planned = mithridate.plan(MECHANISM, instances=100, classes=2)
    for value in (certified, certified.votes, examples, compared, planned, fitted, certified.report(methods=())):
        assert len(repr(value).splitlines()) <= 3, repr(value)
        assert "array(" not in repr(value)
    assert "120 predictions by nearest-neighbours against symmetric-difference" in repr(certified)
    assert repr(certified).endswith("conditional on class-list and proposed-schema")
    assert "2 classes (poor, rich), with true labels" in repr(certified.votes)
    shares = certified.accuracy(None, [0])
    assert f"correct and certified: {shares[0]:.1%} at 0" in repr(certified)
    assert "not a guarantee" in repr(certify(Votes(COUNTS, MECHANISM), bounds="pointwise"))
    assert "not a guarantee" not in repr(certificate())


def test_dir_shows_the_api_and_nothing_else() -> None:
    listed = dir(mithridate)
    assert listed == sorted([*mithridate.__all__, "data", "defences", "features"])
    for name in listed:
        assert getattr(mithridate, name) is not None
    assert mithridate.data.Table is Table
