"""Readers: what is told apart, how labels become numbers, what is assumed, proposals, and damaged files."""

import csv
import io
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mithridate import ArtifactError, ConfigError, MithridateError
from mithridate._io import files as _files
from mithridate.data import (
    Arrays,
    Category,
    Date,
    Images,
    Number,
    Table,
    Text,
    declaration_from_dict,
    propose,
    read,
    table_files,
    to_toml,
)
from mithridate.data.examples import check_inputs, check_labels
from mithridate.data.proposing import rounded_range

X = np.arange(12, dtype=np.float32).reshape(4, 3)
WHOLE = (
    "The labels were read as whole numbers, since all of them are; the certificate assumes that this is public and "
    "fixed."
)
INFERRED = "The classes ({}) were read off the training data; the certificate assumes that this is public and fixed."


# --- arrays ---------------------------------------------------------------------------------------------------------


def test_arrays_are_taken_as_they_are(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=[0, 1, 2, 1])
    for source in (
        (X, np.array([0, 1, 2, 1])),
        (X, np.array([0, 1, 2, 1], np.uint8)),
        tmp_path / "a.npz",
        str(tmp_path / "a.npz"),
    ):
        found = read(source, labels=True)
        assert found.x.dtype == np.float32
        np.testing.assert_array_equal(found.x, X)
        assert np.asarray(found.y).tolist() == [0, 1, 2, 1]
        assert (found.class_names, found.notes, found.assumptions, found.declaration) == (None, (), (), None)
        assert found.source == {"declaration": None, "class_names": None}
    for source in (X, (X, None)):
        assert read(source).y is None
    assert read((X, [0, 1, 2, 1]), labels=False).y is None


def test_channels_may_come_last() -> None:
    images = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    found = read(images, Arrays(channels_last=True)).x
    assert found.shape == (2, 3, 4, 5)
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found[1, 2], images[1, :, :, 2])
    with pytest.raises(ConfigError, match="channels_last"):
        read(X, Arrays(channels_last=True))


def test_the_result_is_what_train_takes() -> None:
    found = read((X, ["b", "a", "b", "a"]), labels=True)
    check_inputs(found.x, "training")
    assert check_labels(found.y, 4, "training", classes=2).tolist() == [1, 0, 1, 0]
    assert json.loads(json.dumps(found.source)) == {"declaration": None, "class_names": ["a", "b"]}


def test_text_arrays_stay_text() -> None:
    assert read((np.array(["one", "two"]), [0, 1])).x.tolist() == ["one", "two"]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ((X, [0, 1]), "4 inputs but 2 labels"),
        ((X, None), "Training needs labels; give a pair"),
        (X, "Training needs labels; give a pair"),
        ((X, np.ones((4, 2))), "has the shape (4, 2); give one value per example"),
        ((X[:0], []), "empty"),
        ((X, X, X), "a pair (inputs, labels), got 3 values"),
        (
            ([[1], [2, 3]], [0, 1]),
            "Item 1 (from 0) of the data set is an array of float64 of shape (2,), but item",
        ),
        (([[0, 1], [0.5, "a"]], [0, 1]), "Item 1 (from 0) of the data set is an array of text of shape (2,)"),
        (([0, "a"], [0, 1]), "Item 1 (from 0) of the data set is a text, but item 0 is an array"),
        (
            ([np.zeros(2, np.uint8), np.zeros(2)], [0, 1]),
            "an array of float64 of shape (2,), but item 0 is an array",
        ),
        ((np.array([object()]), [0]), "plain array"),
        ((X, [[1], 2, 3, 4]), "The list of labels holds list values"),
        ((X, [b"a", b"b", b"a", b"b"]), "bytes values"),
    ],
)
def test_arrays_that_are_refused(source: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(source, labels=True)
    assert says in str(caught.value)


def test_arrays_have_no_columns() -> None:
    with pytest.raises(ConfigError, match="arrays have no column names"):
        read((X, [0, 1, 0, 1]), Table(None, (Text("a"),)))


# --- labels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "classes", "numbers", "names", "assumed"),
    [
        (["b", "a", "b"], None, [1, 0, 1], ("a", "b"), True),
        ([True, False, True], None, [1, 0, 1], ("False", "True"), True),
        (["0", "2", "1"], None, [0, 2, 1], None, True),
        ([0.0, 2.0, 1.0], None, [0, 2, 1], None, True),
        (np.array([0, 2, 1]), None, [0, 2, 1], None, False),
        (np.array(["0", "2", "1"]), None, [0, 2, 1], None, True),
        (np.array([0, 2, 1], dtype=object), None, [0, 2, 1], None, True),
        (["0", "2", "1"], ("0", "1", "2"), [0, 2, 1], ("0", "1", "2"), False),
        (["a", "3", 3], None, [1, 0, 0], ("3", "a"), True),
        (["b", " a ", "b"], ("b", "a"), [0, 1, 0], ("b", "a"), False),
        ([0, 1, 0], ("b", "a"), [0, 1, 0], ("b", "a"), False),
        ([1, 2, 2], ("2", "1"), [1, 0, 0], ("2", "1"), False),
        ([1.0, "2", "2.0"], ("2", "1", "zero"), [1, 0, 0], ("2", "1", "zero"), False),
        ([True, False, False], ("true", "false"), [0, 1, 1], ("true", "false"), False),
        ([0.5, 1.5, 0.5], ("0.5", "1.5"), [0, 1, 0], ("0.5", "1.5"), False),
    ],
)
def test_labels_as_numbers(labels: Any, classes: Any, numbers: Any, names: Any, assumed: bool) -> None:
    for declaration, given_apart in ((Arrays(classes), None), (None, classes), (Arrays(("p", "q")), classes)):
        if declaration == Arrays(("p", "q")) and classes is None:
            continue
        found = read((X[:3], labels), declaration, labels=True, classes=given_apart)
        assert np.asarray(found.y).tolist() == numbers
        assert np.asarray(found.y).dtype == np.int64
        assert found.class_names == names
        sentence = WHOLE if names is None else INFERRED.format(", ".join(names))
        assert found.assumptions == ((sentence,) if assumed else ())


@pytest.mark.parametrize(
    ("labels", "classes", "says"),
    [
        (["a", "b", "c"], ("a", "b"), "example 2 (from 0) is 'c', which is not among the classes a, b"),
        ([0, 1, 2], ("a", "b"), "example 2 (from 0) is '2', which is not among the classes a, b"),
        ([0, 1, 2], ("1", "2"), "example 0 (from 0) is '0', which is not among the classes 1, 2"),
        (["b", "0", "a"], ("b", "a"), "The label of example 1 (from 0) is '0', which is not among the classes b, a"),
        ([0, "b", 1], ("b", "a"), "The label of example 0 (from 0) is '0', which is not among the classes b, a"),
        (["a", None, "b"], None, "The label of example 1 (from 0) is missing"),
        (["a", "", "b"], ("a", "b"), "The label of example 1 (from 0) is missing"),
        ([0, np.nan, 1], None, "The label of example 1 (from 0) is missing"),
        ([0, -1, 1], None, "The label of example 1 (from 0) is -1; labels are names or whole numbers"),
        ([0, 0.37, 1], None, "The label of example 1 (from 0) is 0.37"),
        ([0, 10_000, 1], None, "more than 10,000 classes; probably this is not the column of labels"),
        ([0, 1e300, 1], None, "more than 10,000 classes"),
        (["a", "a", "a"], None, "All examples have the label 'a'"),
        ([1, 1, 1], None, "All examples have the label '1'"),
        (["a", "a", "a"], ("a", "b"), "All examples have the label 'a'"),
        (["a", "b", "x" * 1000], ("a", "b"), "xxx..., which"),
        (["a", "b", "x" * 201], None, "The label of example 2 (from 0), 'xxxxx"),
        (["a", "b", "x" * 201], None, "is longer than 200 characters; mend it"),
        (["a", "b", "\x1b[2J"], None, "The label of example 2 (from 0), '\\x1b[2J', holds characters that cannot be"),
        (["a", "b", "\x1b[2J"], ("a", "b"), "The label of example 2 (from 0) is '\\x1b[2J', which is not among"),
        (["a", "b", "\ud800"], None, "'\\ud800', holds characters that cannot be shown"),
    ],
)
def test_labels_that_are_refused(labels: Any, classes: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read((X[:3], labels), Arrays(classes), labels=True)
    assert says in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("labels", "classes", "counted"),
    [
        (np.array([0, 1, 0]), ("b", "a"), True),
        ([0, 1, 0], ("b", "a"), True),
        (["b", "a", "b"], ("b", "a"), False),
        (np.array([0, 1, 0]), ("0", "1"), False),
        (np.array([0, 1, 0]), None, False),
    ],
)
def test_numbers_that_count_named_classes_are_noted(labels: Any, classes: Any, counted: bool) -> None:
    notes = read((X[:3], labels), Arrays(classes)).notes if classes else read((X[:3], labels), labels=True).notes
    assert notes == (("Labels that are numbers were taken to count the classes: 0 is b, 1 is a.",) if counted else ())


def test_too_many_classes() -> None:
    names = [f"person {i}" for i in range(10_001)]
    with pytest.raises(ConfigError, match="10,001 different labels, more than 10,000; probably"):
        read((np.ones((10_001, 1)), names), labels=True)


def test_test_data_may_be_of_one_class_but_not_of_a_new_one() -> None:
    trained = read((X, ["b", "a", "b", "a"]), labels=True)
    found = read((X[:2], ["b", "b"]), classes=trained.class_names)
    assert np.asarray(found.y).tolist() == [1, 1]
    assert found.assumptions == ()
    with pytest.raises(ConfigError, match="declare its class before training"):
        read((X[:2], ["b", "new"]), classes=trained.class_names)


@pytest.mark.parametrize("labels", [None, False])
def test_only_training_data_names_classes(tmp_path: Path, labels: bool | None) -> None:
    """Names of their own would be printed beside numbers of the training data that mean something else."""
    path = tmp_path / "a.csv"
    path.write_text("a,y\n1,0\n2,above\n3,below\n")
    sources = (
        ((X[:3], ["0", "above", "below"]), None, "example 1"),
        (path, Table("y", (Number("a", 0, 9),)), "line 3"),
    )
    for source, declaration, place in sources:
        if labels is False:
            assert read(source, declaration, labels=False).class_names is None
            continue
        with pytest.raises(ConfigError) as caught:
            read(source, declaration)
        assert f"The label of {place}" in str(caught.value)
        assert "is 'above', but the classes of the training data are numbers; give numbers, or" in str(caught.value)
    found = read((X[:3], ["0", "2", "2"]))
    assert (np.asarray(found.y).tolist(), found.class_names, found.assumptions) == ([0, 2, 2], None, ())


def test_labels_of_files_and_data_frames_that_are_all_whole_numbers(tmp_path: Path) -> None:
    """The type of a column is fixed; that the cells of a text file all read as numbers is not."""
    pandas, polars, datasets = (pytest.importorskip(name) for name in ("pandas", "polars", "datasets"))
    columns, table = {"a": [1, 2, 3], "y": [0, 2, 1]}, Table("y", (Number("a", 0, 9),))
    (tmp_path / "a.csv").write_text("a,y\n1,0\n2,2\n3,1\n")
    frame = pandas.DataFrame(columns)
    for source, assumed in (
        (tmp_path / "a.csv", (WHOLE,)),
        (frame, ()),
        (frame.astype(object), (WHOLE,)),
        (frame.astype(str), (WHOLE,)),
        (polars.DataFrame(columns), ()),
        (datasets.Dataset.from_dict(columns), ()),
        (Items((X[0], 0), (X[1], 2), (X[2], 1)), (WHOLE,)),
    ):
        declaration = None if isinstance(source, Items) else table
        found = read(source, declaration, labels=True)
        assert np.asarray(found.y).tolist() == [0, 2, 1]
        assert found.assumptions == assumed
        assert read(source, declaration).assumptions == ()


def test_a_label_column_of_another_name() -> None:
    pandas = pytest.importorskip("pandas")
    table = Table("y", (Number("a", 0, 1),), ("no", "yes"))
    source = pandas.DataFrame({"a": [0.1, 0.2], "z": ["yes", "no"], "y": ["no", "yes"]})
    found = read(source, table, labels=True, label="z")
    assert np.asarray(found.y).tolist() == [1, 0]
    assert found.declaration == Table("z", table.columns, table.classes)
    with pytest.raises(ConfigError, match="No column of the table is declared as the label"):
        read(source, Table(None, table.columns), labels=True)


# --- data sets ------------------------------------------------------------------------------------------------------


class Items:
    """A map-style data set, as torch has them."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def test_map_style_data_sets() -> None:
    found = read(Items(*[(row, label) for row, label in zip(X, [0, 1, 1, 0], strict=True)]), labels=True)
    np.testing.assert_array_equal(found.x, X)
    assert np.asarray(found.y).tolist() == [0, 1, 1, 0]
    assert read(Items(*X)).y is None
    texts = read(Items(("one", "a"), ("two", "b")), labels=True)
    assert texts.x.tolist() == ["one", "two"]
    assert texts.class_names == ("a", "b")
    rows = read(Items(np.array(["a", "b"]), np.array(["longer", "c"])))
    assert rows.x.tolist() == [["a", "b"], ["longer", "c"]]


def test_torch_data_sets() -> None:
    torch = pytest.importorskip("torch")
    source = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.tensor([0, 1, 1, 0]))
    for given_source in (source, (torch.from_numpy(X).requires_grad_(), torch.tensor([0, 1, 1, 0]))):
        found = read(given_source, labels=True)
        np.testing.assert_array_equal(found.x, X)
        assert found.x.dtype == np.float32
        assert np.asarray(found.y).tolist() == [0, 1, 1, 0]


def test_map_style_data_sets_of_pictures() -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 4, 3), dtype=np.uint8)
    source = Items(*[(image.fromarray(array), label) for array, label in zip(pixels, "ab", strict=True)])
    np.testing.assert_array_equal(read(source, Images((5, 4)), labels=True).x, np.moveaxis(pixels, -1, 1))
    with pytest.raises(ConfigError, match="declare their size"):
        read(source)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (Items(), "The data set is empty"),
        (Items({"x": 1}), "pair (input, label), got dict as item 0"),
        (Items((X[0], 0), (X[0], 0, 1)), "got tuple as item 1"),
        (Items(X[0], X[1]), "pair (input, label), got ndarray as item 0"),
        (
            Items((X[0], 0), (X[0, :2], 1)),
            "Item 1 (from 0) of the data set is an array of float32 of shape (2,), but item 0",
        ),
        (
            Items((X[0], 0), (X[0], 1), (X[0].astype(float), 1)),
            "Item 2 (from 0) of the data set is an array of float64",
        ),
        (Items((X[0].astype(np.uint8), 0), (X[0], 1)), "of float32 of shape (3,), but item 0 is an array of uint8"),
        (Items((X[0], 0), ("word", 1)), "Item 1 (from 0) of the data set is a text, but item 0 is an array"),
        (Items(("word", 0), (X[0], 1)), "item 0 is a text; bring all inputs to one type and shape"),
        (Items((object(), 0), (object(), 1)), "plain array"),
        ([X, [0, 1, 0, 1]], "pair (input, label), got ndarray as item 0"),
        ({"train": X, "test": X}, "got several: train, test"),
        (3, "Cannot read examples from int; expected a pair (inputs, labels) of arrays, a pandas or polars"),
        (None, "Cannot read examples from NoneType"),
        (b"bytes", "Cannot read examples from bytes"),
        (iter([1]), "Cannot read examples from"),
    ],
)
def test_sources_that_cannot_be_read(source: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(source, labels=True)
    assert says in str(caught.value)


def test_a_hugging_face_data_set_of_texts() -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])})
    source = datasets.Dataset.from_dict({"text": ["good tea", None, "bad"], "label": [1, 1, 0]}, features=features)
    found = read(source, Table("label", (Text("text", 32),)), labels=True)
    assert found.x.tolist() == ["good tea", "", "bad"]
    assert np.asarray(found.y).tolist() == [1, 1, 0]
    assert found.class_names == ("neg", "pos")
    assert "were taken from the description of the data set" in found.assumptions[0]
    with pytest.raises(ConfigError, match="got several: train, test"):
        read(datasets.DatasetDict({"train": source, "test": source}))
    assert propose(source, label="label").classes == ("neg", "pos")


# --- paths ----------------------------------------------------------------------------------------------------------


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    for name in ("missing.csv", "missing.npz", "missing", "a" * 5000, "nul\0.csv"):
        with pytest.raises(ArtifactError, match=r"no file or folder|Cannot read"):
            read(tmp_path / name)
    (tmp_path / "data.xlsx").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"by its name; expected .* \.csv, \.tsv, \.parquet, \.npz or \.npy"):
        read(tmp_path / "data.xlsx")


def test_a_table_needs_a_declaration(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,y\n1,2\n")
    for declaration in (None, Arrays()):
        with pytest.raises(ConfigError, match="`mithridate init` proposes a declaration"):
            read(tmp_path / "a.csv", declaration)
    with pytest.raises(ConfigError, match="Expected a declaration"):
        read(tmp_path / "a.csv", {"kind": "arrays"})  # pyright: ignore[reportArgumentType]


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'mithridate\[data\]'"):
        read(tmp_path / "a.parquet", Table(None, (Text("a"),)))


def test_an_npz_without_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X)
    assert read(tmp_path / "a.npz").y is None
    with pytest.raises(ArtifactError, match="no array 'y'"):
        read(tmp_path / "a.npz", labels=True)


def test_optional_packages_are_imported_when_they_are_needed() -> None:
    heavy = "('torch', 'pandas', 'polars', 'pyarrow', 'PIL')"
    code = f"import sys, mithridate.data; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# --- proposals ------------------------------------------------------------------------------------------------------


def test_a_proposal_for_a_table(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "age,job,note,empty,flag,income\n"
        "17,nurse,likes to drink tea at noon,,0,>50K\n"
        "90,clerk,never seen without a hat,,1,<=50K\n"
        "NA,,came late again on Monday,,1,<=50K\n"
    )
    found = propose(path, label="income")
    assert found == Table(
        "income",
        (Number("age", 10, 90), Category("job"), Text("note"), Category("flag")),
        ("<=50K", ">50K"),
        proposed=True,
    )
    examples = read(path, found, labels=True)
    assert examples.assumptions == found.assumptions
    assert "proposed from the training data" in found.assumptions[0]
    text = to_toml(found, table="data")
    assert "proposed = true" in text
    assert declaration_from_dict(tomllib.loads(text)["data"]) == found
    assert (
        read(path, declaration_from_dict(tomllib.loads(text.replace("proposed = true\n", ""))["data"])).assumptions
        == ()
    )


@pytest.mark.parametrize(
    ("cells", "column"),
    [
        ("0 40 7", Number("a", 0, 40, scale="log")),
        ("0 1 2", Number("a", 0, 2, scale="log")),
        ("-3 40 7", Number("a", -10, 40)),
        ("17 40 23", Number("a", 10, 40)),
        ("0 1 1", Category("a")),
        ("1 NA 0.0", Category("a")),
        ("false TRUE false", Category("a")),
        ("1 1 1", Number("a", 1, 2)),
        ("2019-12-31 2021-01-01 NA", Date("a", 2019, 2021)),
        ("2019-12-31T10:00 2021/01/01 ?", Date("a", 2019, 2021, time=True)),
        ("2019-12-31T00:00 2021/01/01 ?", Date("a", 2019, 2021)),
        ("01/02/2021 02/03/2021 ?", Category("a")),
        ("20190131 20190201 20190202", Number("a", 20190130, 20190210)),
    ],
)
def test_what_is_proposed_for_a_column(tmp_path: Path, cells: str, column: Any) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,y\n" + "".join(f"{cell},{row % 2}\n" for row, cell in enumerate(cells.split())))
    found = propose(path, label="y")
    assert isinstance(found, Table)
    assert found.columns == (column,)
    assert np.isfinite(read(path, found, labels=True).x).all()


@pytest.mark.parametrize(
    ("cells", "classes", "numbers"),
    [
        ("-1 1 -1", ("-1", "1"), [0, 1, 0]),
        ("3 1 2", ("1", "2", "3"), [2, 0, 1]),
        ("2021 2019 2020", ("2019", "2020", "2021"), [2, 0, 1]),
        ("10 9 1e5", ("9", "10", "1e5"), [1, 0, 2]),
        ("0 1 0", ("0", "1"), [0, 1, 0]),
        ("02 01 2", ("01", "02"), [1, 0, 1]),
        ("TRUE false True", ("TRUE", "false"), [0, 1, 0]),
        ("b 10 9", ("10", "9", "b"), [2, 0, 1]),
    ],
)
def test_proposed_classes_are_the_labels_of_the_file(tmp_path: Path, cells: str, classes: Any, numbers: Any) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,y\n" + "".join(f"{row}, {cell} \n" for row, cell in enumerate(cells.split())))
    found = propose(path, label="y")
    assert found.classes == classes
    again = declaration_from_dict(tomllib.loads(to_toml(found)))
    examples = read(path, again, labels=True)
    assert np.asarray(examples.y).tolist() == numbers
    assert examples.class_names == classes
    assert examples.assumptions == found.assumptions
    assert np.asarray(read(path, again, classes=examples.class_names).y).tolist() == numbers


def test_proposed_classes_of_numbers_that_are_typed() -> None:
    pandas = pytest.importorskip("pandas")
    assert propose(pandas.DataFrame({"a": [1, 2, 3], "y": [10, -9, 10]}), label="y").classes == ("-9", "10")
    objects = pandas.DataFrame({"a": [1, 2, 3], "y": pandas.Series([10, -9, 10], dtype=object)})
    assert propose(objects, label="y").classes == ("-9", "10")
    with pytest.raises(ConfigError, match="numbers of another kind cannot be certified"):
        propose(pandas.DataFrame({"a": [1, 2, 3], "y": [1.5, 2, 3]}), label="y")


def test_proposals_need_a_label(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n3,0\n")
    with pytest.raises(ConfigError, match=r"the column with the labels; .* has a, b"):
        propose(tmp_path / "a.csv")
    with pytest.raises(ConfigError, match="no column 'c'"):
        propose(tmp_path / "a.csv", label="c")
    (tmp_path / "a.csv").write_text("a,b\n,2\n,0\n")
    with pytest.raises(ConfigError, match="nothing to learn"):
        propose(tmp_path / "a.csv", label="b")


def test_a_proposal_for_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=["b", "a", "b", "a"])
    for source in (tmp_path / "a.npz", (X, ["b", "a", "b", "a"])):
        assert propose(source) == Arrays(("a", "b"), proposed=True)
    with pytest.raises(ConfigError, match="Training needs labels"):
        propose(X)


@given(hnp.arrays(np.float64, st.integers(1, 5), elements=st.floats(allow_nan=False, allow_infinity=False)))
def test_proposed_ranges_hold_the_values_and_are_round(values: np.ndarray) -> None:
    low, high = rounded_range(values)
    Number("a", low, high)
    if abs(values).max() < 1e300:
        assert low <= values.min() <= values.max() <= high
    if abs(values).max() < 1e6 and 1e-6 < np.ptp(values):
        assert high - low <= 4 * np.ptp(values)


# --- fuzzing --------------------------------------------------------------------------------------------------------


def npz(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def parquet() -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as writer

    stream = io.BytesIO()
    table = pyarrow.table({"age": [1, None, 3], "job": ["a", "b", None], "y": ["no", "yes", "no"]})
    writer.write_table(table, stream)
    return stream.getvalue()


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(draw(st.integers(0, 5))):
        changed[draw(st.integers(0, len(changed) - 1))] = draw(st.integers(0, 255))
    return bytes(changed[: draw(st.integers(0, len(changed)))]) if draw(st.booleans()) else bytes(changed)


def read_any(path: Path, data: bytes, declaration: Any) -> None:
    path.write_bytes(data)
    for labels in (True, None, False):
        try:
            found = read(path, declaration, labels=labels)
        except MithridateError as error:
            message = str(error)
        else:
            assert len(found.x)
            continue
        assert message
        assert "\n" not in message


@settings(max_examples=200)
@given(st.binary(max_size=100) | damaged(npz(x=X, y=np.array([0, 1, 0, 1]))))
def test_any_bytes_are_an_npz_or_one_clear_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    read_any(tmp_path_factory.getbasetemp() / "fuzz.npz", data, None)


@settings(max_examples=200)
@given(st.data())
def test_any_bytes_are_a_parquet_file_or_one_clear_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = data.draw(st.binary(max_size=100) | damaged(parquet()))
    table = Table("y", (Number("age", 0, 9), Category("job")), ("no", "yes"))
    read_any(tmp_path_factory.getbasetemp() / "fuzz.parquet", content, table)


@given(st.lists(st.lists(st.text("ab 1.-,", max_size=5), min_size=3, max_size=3), max_size=6))
def test_any_table_can_be_read_as_proposed_or_gives_one_clear_error(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "propose.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["a", "b", "y"], *rows])
    try:
        declared = propose(path, label="y")
    except MithridateError:
        return
    assert declared.assumptions
    assert len(read(path, declared).x) > 0


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.binary(max_size=3)


@given(st.recursive(plain, lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner), max_leaves=12))
def test_any_value_is_a_source_or_one_clear_error(source: Any) -> None:
    for declaration in (None, Images((2, 2)), Table(None, (Text("a"),))):
        try:
            found = read(source, declaration)
        except MithridateError:
            continue
        assert len(found.x)


@given(st.lists(plain, min_size=1, max_size=6), st.none() | st.just(("a", "b")))
def test_any_labels_are_numbers_or_one_clear_error(labels: list[Any], classes: Any) -> None:
    x = np.ones((len(labels), 1))
    try:
        found = read((x, labels), Arrays(classes), labels=True)
    except ConfigError:
        return
    y = np.asarray(found.y)
    assert 0 <= y.min() < y.max() < (len(found.class_names) if found.class_names else 10_000)


# --- documentation --------------------------------------------------------------------------------------------------


def test_the_examples_of_the_documentation_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[1] / "docs" / "data.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "data.md", "exec"), names)
    people = names["people"]
    written = declaration_from_dict(tomllib.loads(re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[0]))
    assert isinstance(written, Table)
    assert (written.label, written.classes) == (people.label, people.classes)
    assert set(written.columns) < set(people.columns)


@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=6))
def test_removing_exact_duplicates_never_adds_differences(one: list[int], other: list[int]) -> None:
    """The claim of the documentation on duplicates, with numbers for rows."""
    between = (Counter(one) - Counter(other)) + (Counter(other) - Counter(one))
    assert len(set(one) ^ set(other)) <= between.total()


def test_a_parquet_file_that_would_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of equal cells takes no space in the file; the limit here is far smaller than usual."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"p": np.zeros(1 << 18), "kind": ["a"] * (1 << 18)})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 1 << 14
    assert table_files.read_parquet(tmp_path / "a.parquet").rows == 1 << 18
    monkeypatch.setattr(_files, "UNPACKED_BYTES", 1 << 20)
    with pytest.raises(ArtifactError, match="would take more than"):
        table_files.read_parquet(tmp_path / "a.parquet")
