"""Declarations: what is refused, and that JSON and TOML hold all of one."""

import json
import math
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mithridate import ConfigError
from mithridate._text import listed
from mithridate.data import (
    Arrays,
    Category,
    Date,
    Declaration,
    Images,
    Number,
    Ordered,
    Table,
    Text,
    declaration_from_dict,
    to_toml,
)
from mithridate.data.frames import canonical

# Any character that a TOML file can hold, control characters included.
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(str.strip)
finite = st.floats(-1e300, 1e300)
columns = st.one_of(
    st.builds(
        lambda name, ends, bins, scale: Number(name, min(ends), max(ends), bins, scale),
        names,
        st.tuples(finite, finite).filter(lambda ends: ends[0] != ends[1]),
        st.integers(2, 1000),
        st.sampled_from(["linear", "log"]),
    ),
    st.builds(Ordered, names, st.lists(names, min_size=2, max_size=5, unique_by=canonical).map(tuple)),
    st.builds(
        lambda name, edges: Ordered(name, edges=tuple(sorted(edges))), names, st.sets(finite, min_size=1, max_size=5)
    ),
    st.builds(
        lambda name, years, time: Date(name, min(years), max(years), time),
        names,
        st.tuples(st.integers(1, 9999), st.integers(1, 9999)),
        st.booleans(),
    ),
    st.builds(lambda name, quarter: Category(name, 4 * quarter), names, st.integers(1, 500)),
    st.builds(Text, names, st.integers(2, 5000)),
)
shown = st.text(min_size=1, max_size=12).filter(lambda name: name.isprintable() and name.strip())
classes = st.none() | st.lists(shown, min_size=2, max_size=6, unique_by=canonical).map(tuple)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    found = draw(st.lists(columns, min_size=1, max_size=5, unique_by=lambda column: column.name))
    label = draw(st.none() | names.filter(lambda name: name not in [column.name for column in found]))
    return Table(label, tuple(found), draw(classes), draw(st.booleans()))


sizes = st.tuples(st.integers(1, 4000), st.integers(1, 4000))
declarations = st.one_of(
    tables(),
    st.builds(Images, sizes, st.sampled_from([1, 3]), classes, st.booleans()),
    st.builds(Arrays, classes, st.booleans(), st.booleans()),
)


@given(declarations)
def test_json_holds_all_of_a_declaration(declaration: Declaration) -> None:
    assert declaration_from_dict(json.loads(json.dumps(declaration.to_dict()))) == declaration


@given(declarations, st.none() | names)
def test_toml_holds_all_of_a_declaration(declaration: Declaration, table: str | None) -> None:
    text = to_toml(declaration, table=table)
    text.encode()
    values = tomllib.loads(text)
    assert declaration_from_dict(values if table is None else values[table]) == declaration


@given(declarations)
def test_a_proposal_is_an_assumption_until_its_mark_is_removed(declaration: Declaration) -> None:
    values = declaration.to_dict()
    assert bool(declaration.assumptions) == declaration.proposed == values.get("proposed", False)
    assert ("PROPOSED" in to_toml(declaration)) == declaration.proposed
    if declaration.proposed:
        assert "proposed from the training data" in declaration.assumptions[0]
    values.pop("proposed", None)
    assert declaration_from_dict(values).assumptions == ()


def test_comments_say_where_constants_come_from() -> None:
    text = to_toml(Table("y", (Number("a", 0, 1), Number("b", 0, 1), Category("c"), Text("d")), ("p", "q")))
    assert text.count("# low, high: the range that is possible by units, physics or a code book") == 2
    assert "# All labels that can occur" in text
    assert text.count("# Hashed") == text.count("# Free text") == 1


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Number("a", 1, 1), "Expected low below high for the column 'a'"),
        (lambda: Number("a", 2, 1), "Expected low below high"),
        (lambda: Number("a", -1.7e308, 1.7e308), "Expected low below high"),
        (lambda: Number("a", math.nan, 1), "low of the column 'a'"),
        (lambda: Number("a", 0, math.inf), "high of the column 'a'"),
        (lambda: Number("a", "0", 1), "low of the column 'a'"),  # pyright: ignore[reportArgumentType]
        (lambda: Number("a", 0, 10**400), "too large"),
        (lambda: Number("a", 0, 1, bins=1), "bins of the column 'a' to be a whole number from 2"),
        (lambda: Number("a", 0, 1, bins=10**9), "bins of the column 'a'"),
        (lambda: Number("a", 0, 1, bins=True), "bins of the column 'a'"),
        (lambda: Number("a", 0, 1, scale="ln"), "scale of the column 'a' to be linear or log, got 'ln'"),
        (lambda: Number("a", 0, 1, scale=["log"]), "linear or log"),  # pyright: ignore[reportArgumentType]
        (lambda: Ordered("a"), "either order or edges of the column 'a'"),
        (lambda: Ordered("a", ("x", "y"), (1.0,)), "either order or edges"),
        (lambda: Ordered("a", ("x",)), "number of steps of the column 'a'"),
        (lambda: Ordered("a", "xy"), "as a list of text"),  # pyright: ignore[reportArgumentType]
        (lambda: Ordered("a", ("1", "1.0")), "'1.0' is in the order of the column 'a' twice"),
        (lambda: Ordered("a", ("1", 2)), "as a list of text"),  # pyright: ignore[reportArgumentType]
        (lambda: Ordered("a", ("1", " ")), "value in the order of the column 'a'"),
        (lambda: Ordered("a", edges=()), "number of steps"),
        (lambda: Ordered("a", edges=(2.0, 2.0)), "edges of the column 'a' above the one before"),
        (lambda: Ordered("a", edges=(1.0, math.inf)), "edges of the column 'a'"),
        (lambda: Ordered("a", edges=3), "as a list of numbers"),  # pyright: ignore[reportArgumentType]
        (lambda: Date("a", 2021, 2020), "last of the column 'a' to be a whole number from 2021"),
        (lambda: Date("a", 0, 2020), "first of the column 'a'"),
        (lambda: Date("a", 2019, 2020, "yes"), "time of the column 'a'"),  # pyright: ignore[reportArgumentType]
        (lambda: Number("", 0, 1), "name of a column"),
        (lambda: Number("\ud800", 0, 1), "not valid Unicode"),
        (lambda: Number("a", 0, 1, decimal=";"), "decimal of the column 'a' to be \".\" or \",\", got ';'"),
        (lambda: Number("a", 0, 1, decimal=3), "decimal of the column"),  # pyright: ignore[reportArgumentType]
        (lambda: Category("a", 30), "multiple of 4"),
        (lambda: Category("a", 0), "whole number from 4"),
        (lambda: Category("a", 10**9), "whole number from 4"),
        (lambda: Text("a", 1), "whole number from 2"),
        (lambda: Text(3), "name of a column"),  # pyright: ignore[reportArgumentType]
        (lambda: Table("y", ()), "declare at least one"),
        (lambda: Table("y", ("a",)), "one or more of Number"),  # pyright: ignore[reportArgumentType]
        (lambda: Table("y", (Text("a"), Category("a"))), "'a' is declared twice"),
        (lambda: Table("a", (Text("a"),)), "label 'a' is declared as a column, too"),
        (lambda: Table("y", (Text("a"),), ("only",)), "at least two classes"),
        (lambda: Table("y", (Text("a"),), ("b", "b")), "read the same"),
        (lambda: Table("y", (Text("a"),), ("3", "3.0")), "'3' and '3.0' read the same"),
        (lambda: Table("y", (Text("a"),), "ab"), "classes as a list"),  # pyright: ignore[reportArgumentType]
        (lambda: Table("y", (Text("a"),), ("a", 3)), "name of a class"),  # pyright: ignore[reportArgumentType]
        (lambda: Table("y", (Text("a"),), tuple(f"c{i}" for i in range(10_001))), "check the label column"),
        (lambda: Table("y", (Text("a"),), proposed=1), "proposed"),  # pyright: ignore[reportArgumentType]
        (lambda: Arrays(("a", "b\x1b[2J")), "The class 'b\\x1b[2J' holds characters that cannot be shown"),
        (lambda: Arrays(("a", "b\u202ec")), "The class 'b\\u202ec' holds characters that cannot be shown"),
        (lambda: Images((4, 4), classes=("a", "x" * 201)), "xxx... is longer than 200 characters; rename it"),
        (lambda: Images((0, 3)), "size in pixels"),
        (lambda: Images((10**4, 10**4)), "at most"),
        (lambda: Images(32), "height and width"),  # pyright: ignore[reportArgumentType]
        (lambda: Images((32, 32), 4), "1 (grey) or 3 (colour)"),
        (lambda: Images((32, 32), True), "1 (grey) or 3 (colour)"),
        (lambda: Arrays(channels_last=1), "channels_last"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_what_cannot_be_declared(make: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([], "kind (table, images, arrays)"),
        ({}, "one of table, images, arrays, got None"),
        ({"kind": "tabel"}, "got 'tabel'"),
        ({"kind": ["table"]}, "one of table"),
        ({"kind": "table"}, "needs 'columns'"),
        ({"kind": "images"}, "needs 'size'"),
        ({"kind": "table", "columns": 3}, "columns as a list"),
        ({"kind": "table", "columns": ["a"]}, "Expected a column as named values"),
        ({"kind": "table", "colums": []}, "no 'colums'; did you mean 'columns'?"),
        ({"kind": "table", "columns": [{"kind": "number", "name": "a", "low": 0}]}, "needs 'high'"),
        ({"kind": "table", "columns": [{"kind": "category"}]}, "needs 'name'"),
        ({"kind": "table", "columns": [{"kind": "text", "name": "a", "low": 1}]}, "has no 'low'"),
        ({"kind": "arrays", 3: 4}, "has no '3'"),
    ],
)
def test_what_is_no_declaration(values: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        declaration_from_dict(values)
    assert says in str(caught.value)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
keys = st.sampled_from(["kind", "label", "columns", "classes", "proposed", "size", "channels", "channels_last", "name"])
kinds = st.sampled_from(["table", "images", "arrays", "number", "category", "text"])


@given(st.dictionaries(keys, plain | kinds | st.lists(st.dictionaries(keys, plain | kinds, max_size=4), max_size=3)))
def test_any_values_make_a_declaration_or_one_clear_error(values: dict[str, Any]) -> None:
    try:
        made = declaration_from_dict(values)
    except ConfigError:
        return
    assert declaration_from_dict(made.to_dict()) == made


@given(st.text(max_size=8) | st.floats().map(repr) | st.integers().map(str))
def test_canonical_text_is_canonical(text: str) -> None:
    assert canonical(canonical(text)) == canonical(text) == canonical(f" {text}\t")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_the_same_however_it_is_written(number: float) -> None:
    assert canonical(f"{number!r}") == canonical(f"{number:.17e}") == canonical(f"+{number!r}".replace("+-", "-"))
    assert float(canonical(repr(number))) == number


def test_words_are_kept_apart() -> None:
    found = ["cat", "Cat", "nan", "inf", "true story", "1,5", "1 5", "0x10"]
    assert [canonical(word) for word in found] == found
    assert canonical("-0") == canonical("0.0")


@given(st.lists(st.text(max_size=6), max_size=12))
def test_names_in_a_sentence_can_be_shown(found: list[str]) -> None:
    assert listed(found).isprintable()
    assert Arrays(("a", "x" * 200)).classes == ("a", "x" * 200)
