"""What a look at a table sees, against slow counts; what `propose` makes of it; and what `init` writes and says."""

import json
import random
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_cli import run
from test_train_cli import refused

from mithridate import Certificate
from mithridate.data import Category, Number, Table, look, propose, read
from mithridate.data.frames import cells_of_objects
from mithridate.data.looking import KINDS, Looked, _by_thresholds, _by_values, giveaway, in_few_lines, rare_labels
from mithridate.data.proposing import Proposal
from mithridate.projects import project_toml, read_project

ROWS = 40


def table(folder: Path, delimiter: str = ",", rows: int = ROWS, **columns: Any) -> Path:
    """A file of an ordinary column, some others, each a function of the number of the row, and balanced labels."""
    made = {"plain": lambda row: (row * 7) % 13 + 0.5, **columns}
    made.setdefault("y", lambda row: "ab"[row % 2])
    lines = [delimiter.join(f'"{cell(row)}"' for cell in made.values()) for row in range(rows)]
    path = folder / "a.csv"
    path.write_text("\n".join([delimiter.join(made), *lines, ""]), encoding="utf-8")
    return path


def seen(found: Proposal, column: str = "x") -> list[str]:
    return [remark.kind for remark in found.remarks if remark.column == column]


# --- columns that are left out ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "cell", "kind"),
    [
        ("x", lambda row: row + 1, "identifier"),
        ("x", lambda row: 1000 - row, "identifier"),
        ("customerId", lambda row: 7919 * row % 99_991, "identifier"),
        ("ORDER_NO", lambda row: 7919 * row % 99_991, "identifier"),
        ("x", lambda row: f"k-{row:04x}", "identifier"),
        ("x", lambda row: f"k-{max(row, 2):04x}", "identifier"),  # 38 of 40 are different
        ("x", lambda row: 3.0, "constant"),
        ("x", lambda row: "always", "constant"),
        ("x", lambda row: "", "empty"),
        ("x", lambda row: "NA", "empty"),
        ("x", lambda row: (row * 7) % 13 + 0.5, "duplicate"),
        ("x", lambda row: f"{(row * 7) % 13 + 0.5:.3f}", "duplicate"),
        ("x", lambda row: f"{row % 28 + 1:02}/{row % 12 + 1:02}/2020", "unreadable-date"),
        ("x", lambda row: f"{row % 28 + 1}.{row % 12 + 1}.20 10:30", "unreadable-date"),
    ],
)
def test_columns_that_are_left_out(tmp_path: Path, name: str, cell: Any, kind: str) -> None:
    found = look(table(tmp_path, **{name: cell}), label="y")
    assert seen(found, name) == [kind]
    assert isinstance(found.declaration, Table)
    assert [column.name for column in found.declaration.columns] == ["plain"]
    assert [column.name for column in found.left_out] == ([] if kind == "empty" else [name])
    assert found.declaration.proposed


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("x", lambda row: 7919 * row % 99_991),  # different numbers are amounts unless their name says otherwise
        ("id", lambda row: row * row % 37),
        ("id", lambda row: row + 0.25),
        ("x", lambda row: f"k-{row % 30}"),
        ("x", lambda row: "only" if row % 3 else ""),  # what is missing tells something
        ("x", lambda row: f"row {row} tells a story of its own"),
        ("x", lambda row: (row * 7) % 13 + (0.5 if row else 0.25)),
    ],
)
def test_columns_that_are_kept(tmp_path: Path, name: str, cell: Any) -> None:
    found = look(table(tmp_path, **{name: cell}), label="y")
    assert seen(found, name) == []
    assert found.left_out == ()


def test_few_rows_show_nothing(tmp_path: Path) -> None:
    found = look(table(tmp_path, rows=19, x=lambda row: row, z=lambda row: "ab"[row % 2]), label="y")
    assert found.remarks == ()


def test_if_nothing_would_be_left_all_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,empty,y\n" + "".join(f"{row},,{'ab'[row % 2]}\n" for row in range(ROWS)))
    found = look(path, label="y")
    assert isinstance(found.declaration, Table)
    assert [column.name for column in found.declaration.columns] == ["x"]
    assert seen(found) == []
    assert seen(found, "empty") == ["empty"]


@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        (lambda row: row % 3 % 2, "two-values"),
        (lambda row: row % 5 == 0, "two-values"),
        (lambda row: f"2021-0{row % 7 + 1}-11", "date"),
        (lambda row: f"{row % 7 + 1} Jan {2000 + row % 3}", "date"),
    ],
)
def test_how_columns_are_read_is_said(tmp_path: Path, cell: Any, kind: str) -> None:
    assert seen(look(table(tmp_path, x=cell), label="y")) == [kind]


# --- commas ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delimiter", "cells", "other", "decimal", "kind"),
    [
        (",", ("3,14", "2,5", "7"), "a", ",", "decimal-comma"),
        (";", ("3,14", "2,5", "7"), "a", ",", "decimal-comma"),
        (",", ("1.234,5", "17,25", "-3,5"), "a", ",", "decimal-comma"),
        (",", ("0,495", "0,123", "0,7"), "a", ",", "decimal-comma"),
        (";", ("12,345", "1,234", "7,125"), "a", ",", "decimal-comma"),  # the delimiter says so
        (",", ("12,345", "1,234", "7,125"), "2,5", ",", "decimal-comma"),  # another column says so
        (",", ("1.234", "12.345", "7"), "2,5", ",", "decimal-comma"),
        (",", ("1.234", "12.345", "7"), "a", ".", None),
        (";", ("1.234", "12.345", "7"), "a", ".", None),
        (";", ("3.14", "12.345", "7"), "2,5", ".", None),
        (",", ("12,345", "1,234", "999"), "a", None, "thousands"),
        (",", ("1,234,567", "1,234.5", "999"), "a", None, "thousands"),
        (";", ("1,234,567", "1,234", "999"), "2,5", None, "thousands"),
        (",", ("1,2,3", "4,5", "6"), "a", None, None),
    ],
)
def test_commas_and_points(
    tmp_path: Path, delimiter: str, cells: tuple[str, ...], other: str, decimal: str | None, kind: str | None
) -> None:
    path = table(tmp_path, delimiter, x=lambda row: cells[row % 3], o=lambda row: f"{row % 3}{other}")
    found = look(path, label="y")
    assert seen(found) == ([] if kind is None else [kind])
    assert isinstance(found.declaration, Table)
    column = next(column for column in found.declaration.columns if column.name == "x")
    assert (column.decimal if isinstance(column, Number) else None) == decimal
    again = Table("y", found.declaration.columns, found.declaration.classes)
    np.testing.assert_array_equal(read(path, again, labels=True).x, read(path, found.declaration, labels=True).x)


def german(folder: Path, rows: int = 600) -> Path:
    """A set that two columns together separate, with decimal commas and semicolons, as spreadsheets write them."""
    source = random.Random(3)
    lines = ["nummer;laenge;preis;klasse"]
    for row in range(rows):
        left, right = source.uniform(0, 4), source.uniform(0, 40_000)
        label = "ja" if left / 4 + right / 40_000 > 1 else "nein"
        shift = 0.4 if label == "ja" else -0.4
        price = f"{right + 4_000 * shift:,.2f}".translate(str.maketrans(",.", ".,"))
        lines.append(f"{row};{left + shift:.3f};{price};{label}".replace(".", ",", 1))
    path = folder / "rows.csv"
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return path


def test_decimal_commas_from_init_to_certificate(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    german(tmp_path)
    monkeypatch.chdir(tmp_path)
    outcome = run(capsys, "init", "rows.csv", "--label", "klasse", "-o", "p.toml")
    assert outcome.code == 0, outcome.err
    assert "Columns read with decimal commas: laenge, preis." in outcome.out
    declared = read_project("p.toml").declaration
    assert isinstance(declared, Table)
    assert {each.name: getattr(each, "decimal", None) for each in declared.columns} == {"laenge": ",", "preis": ","}
    trained = run(capsys, "train", "p.toml", "--json")
    assert trained.code == 0, trained.err
    assert json.loads(trained.out)["accuracy"] > 0.97
    assert run(capsys, "certify", "runs/p").code == 0
    assert {each.id for each in Certificate.load("runs/p/certificate.json").conditions} >= {"proposed-schema"}
    # New inputs are read by the declaration alone.
    Path("new.csv").write_text("laenge;preis\n3,9;38.000,00\n1;2\n")
    predicted = json.loads(run(capsys, "predict", "runs/p", "new.csv", "--json").out)["predictions"]
    assert [each["prediction"] for each in predicted] == ["ja", "nein"]


# --- the label ------------------------------------------------------------------------------------------------------


def slow_by_values(texts: list[str | None], y: list[int]) -> int:
    right = 0
    for row, text in enumerate(texts):
        others = Counter(y[i] for i in range(len(y)) if i != row and texts[i] == text)
        best = max(others.values(), default=0)
        right += [label for label, count in others.items() if count == best] == [y[row]]
    return right


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 2)), min_size=1, max_size=14))
def test_a_label_for_each_value_is_that_of_the_other_rows(rows: list[tuple[str | None, int]]) -> None:
    texts, y = [text for text, _ in rows], [label for _, label in rows]
    assert _by_values(texts, np.array(y)) == slow_by_values(texts, y)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 1)), min_size=2, max_size=14))
def test_the_best_threshold_between_two_labels(rows: list[tuple[int, int]]) -> None:
    values, y = np.array([float(value) for value, _ in rows]), np.array([label for _, label in rows])
    if len(set(y.tolist())) < 2:
        assert _by_thresholds(values, y) == 0
        return
    medians = [float(np.median(values[y == label])) for label in (0, 1)]
    upper = 1 if medians[1] >= medians[0] else 0
    every = [int(np.sum((values > cut) == (y == upper))) for cut in values.tolist()]
    assert _by_thresholds(values, y) == max(every)


@pytest.mark.parametrize(
    ("cell", "gives"),
    [
        (lambda row: "uv"[row % 2], True),
        (lambda row: "uv"[row % 2 if row else 1], True),  # all but one
        (lambda row: row % 2 * 10 + row / 100, True),
        (lambda row: -(row % 2) * 10 + row / 100, True),
        (lambda row: "boat" if row % 2 else "", True),
        (lambda row: f"{2000 + 10 * (row % 2)}-01-{row % 28 + 1:02}", True),
        (lambda row: "uv"[row % 2 if row % 10 else 1], False),  # nine in ten
        (lambda row: row % 2 + row / 10, False),
        (lambda row: row % 4 + 0.5, True),  # each of four values has its label
    ],
)
def test_a_column_that_gives_the_label_away_is_named_and_kept(tmp_path: Path, cell: Any, gives: bool) -> None:
    found = look(table(tmp_path, x=cell), label="y")
    assert ("gives-label-away" in seen(found)) == gives
    assert found.left_out == ()


def test_intervals_of_many_labels() -> None:
    y = np.arange(60) % 5
    column = Looked("x", cells_of_objects([10 * ((2 * label) % 5) + row / 60 for row, label in enumerate(y)], "x"))
    assert giveaway(column, y) is not None
    assert giveaway(Looked("x", cells_of_objects(list(range(60)), "x")), y) is None


def test_rare_labels_and_their_weights(tmp_path: Path) -> None:
    """4 (largest share / share)^(3/4), the quotient at most 16; docs/real-data.md."""
    remark, weights = rare_labels(np.repeat([0, 1, 2], [700, 70, 7]), ("no", "maybe", "yes")) or pytest.fail("none")
    assert weights == (4, round(4 * 10**0.75), 4 * 8)
    assert "'maybe' (9.0%), 'yes' (0.9%)" in remark.sentence
    assert "conditional" in remark.sentence
    assert rare_labels(np.repeat([0, 1], [40, 10]), ("no", "yes")) is None
    assert rare_labels(np.repeat([0, 1], [50, 10]), ("no", "yes")) is not None
    found = look(table(tmp_path, y=lambda row: "ab"[row % 8 == 0]), label="y")
    assert found.class_weights == (4, round(4 * 7**0.75))
    path = tmp_path / "p.toml"
    text = project_toml(path, tmp_path / "a.csv", None, found)
    path.write_text(text)
    assert read_project(path).options == {}
    path.write_text(text.replace("# class_weights", "class_weights"))
    assert read_project(path).options == {"class_weights": [4, 17]}
    assert read_project(path).defence().choose is not None


@pytest.mark.parametrize(
    ("header", "row", "likely"),
    [
        ("petal,soil,kind", "{n},{ab},{ab}", "'kind' or 'soil'"),
        ("target,petal,soil", "{ab},{n},{ab}", "'target' or 'soil'"),
        ("Class Label,petal,soil", "{ab},{n},{ab}", "'Class Label' or 'soil'"),
        ("id,petal,y", "{n},{n},{b}", "'y'"),
        ("petal,when,last", "{n},2021-0{b}-01,{ab}", "'last'"),
    ],
)
def test_without_a_label_the_likely_columns_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, header: str, row: str, likely: str
) -> None:
    path = tmp_path / "a.csv"
    lines = [row.format(n=n * 1.5, ab="ab"[n % 2], b=n % 3 + 1) for n in range(ROWS)]
    path.write_text("\n".join([header, *lines, ""]))
    text = refused(run(capsys, "init", path))
    assert text.startswith("mithridate: Expected --label, the name of the column with the labels;")
    assert text.endswith(f"has {header.replace(',', ', ')}. Most likely it is {likely}.\n")
    none = tmp_path / "none.csv"
    none.write_text("p,q\n" + "".join(f"{n}.5,{n}.25\n" for n in range(ROWS)))
    assert refused(run(capsys, "init", none)).endswith("has p, q.\n")


# --- what init says and writes ---------------------------------------------------------------------------------------


def test_what_init_sees_is_printed_written_and_in_its_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    odd = {"id": lambda row: row, "one\x1b[2J": lambda row: 1, "void": lambda row: "", "flag": lambda row: row % 3 % 2}
    table(tmp_path, **odd, away=lambda row: "uv"[row % 2])
    Path("sub").mkdir()
    flags = ["--label", "y", "--radius", "9", "-o"]
    people = run(capsys, "init", "a.csv", *flags, "sub/p.toml")
    assert people.code == 0, people.err
    printed = " ".join(people.out.split())
    content = json.loads(run(capsys, "init", "a.csv", *flags, "sub/q.toml", "--json").out)
    text = Path("sub/q.toml").read_text()
    assert text.isascii()
    comments = " ".join(line.removeprefix("# ") for line in text.splitlines() if line.startswith("# "))
    kinds = {"identifier", "constant", "empty", "two-values", "gives-label-away", "few-examples"}
    assert {each["kind"] for each in content["seen"]} == kinds <= KINDS.keys()
    for each in content["seen"]:
        sentence = each["sentence"]
        assert sentence.isprintable()
        assert f"Note: {sentence}" in printed
        assert sentence in comments
    assert content["left_out"] == ["id", "one\x1b[2J"]
    assert "Columns that are not declared" not in printed
    assert tomllib.loads(text)["data"]["train"] == "../a.csv"
    assert read_project("sub/q.toml").options == {"radius": 9}
    assert content["conditional"]


def test_columns_that_were_left_out_can_be_taken_back(tmp_path: Path) -> None:
    found = look(table(tmp_path, id=lambda row: row, one=lambda row: "é", away=lambda row: row % 2), label="y")
    path = tmp_path / "p.toml"
    before, mark, after = project_toml(path, tmp_path / "a.csv", None, found).partition("# --- left out")
    assert mark
    lines = after.split("\n")
    start = next(i for i, line in enumerate(lines) if line == "# [[data.columns]]")
    end = lines.index("", start)
    lines[start:end] = [line.removeprefix("# ") for line in lines[start:end]]
    path.write_text(before + mark + "\n".join(lines), encoding="utf-8")
    declared, proposed = read_project(path).declaration, found.declaration
    assert isinstance(declared, Table)
    assert isinstance(proposed, Table)
    assert declared.columns == (*proposed.columns, found.left_out[0])
    read(tmp_path / "a.csv", declared, labels=True)


def test_many_columns_of_a_kind_are_one_line(tmp_path: Path) -> None:
    columns: dict[str, Any] = {f"c{number}": lambda row: 1 for number in range(30)}
    path = table(tmp_path, **columns)
    assert in_few_lines(look(path, label="y").remarks) == (
        "Columns with one value are left out: c0, c1, c2, c3, c4, c5, c6, c7 and 22 more.",
    )


@pytest.mark.parametrize(("radius", "few"), [(2, False), (3, True)])
def test_too_few_examples_for_the_radius_wanted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, radius: int, few: bool
) -> None:
    """32 of 40 are trained on; a radius asks for 6 examples of each of two labels for every change."""
    monkeypatch.chdir(tmp_path)
    table(tmp_path)
    outcome = run(capsys, "init", "a.csv", "--label", "y", "--radius", radius)
    assert ("A radius of 3 is much for 32 examples of 2 classes: about 36 would do" in outcome.out) == few
    assert f"\nradius = {radius} " in Path("mithridate.toml").read_text()


def test_a_radius_that_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = table(tmp_path)
    text = refused(run(capsys, "init", path, "--label", "y", "-o", tmp_path / "p.toml", "--radius", "0"))
    assert "Expected --radius to be a whole number of at least 1, got 0." in text
    assert not (tmp_path / "p.toml").exists()


@pytest.mark.parametrize(
    ("name", "next_words"),
    [
        ("a.csv", "mithridate init a.csv --label COLUMN"),
        ("my rows.csv", "mithridate init 'my rows.csv' --label COLUMN"),
        ("a.npz", "mithridate init a.npz"),
        ("pets", "mithridate init pets"),
    ],
)
def test_train_on_data_says_to_run_init_first(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, next_words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if name == "pets":
        (tmp_path / "pets" / "cat").mkdir(parents=True)
        (tmp_path / "pets" / "cat" / "1.png").touch()
    else:
        Path(name).touch()
    for command in ("train", "compare"):
        assert f"run init first: {next_words}\n" in refused(run(capsys, command, name))


def test_propose_is_the_declaration_of_look(tmp_path: Path) -> None:
    path = table(tmp_path, x=lambda row: row)
    assert propose(path, label="y") == look(path, label="y").declaration == Table(
        "y", (Number("plain", 0, 20, scale="log"),), ("a", "b"), proposed=True
    )  # fmt: skip
    frame = pytest.importorskip("pandas").read_csv(path)
    assert look(frame, label="y").declaration == propose(path, label="y")
    assert Category("x") not in look(frame, label="y").left_out
