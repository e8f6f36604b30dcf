"""Tables: every row by itself, the numbers against a slow encoder, all sources alike, and what is refused."""

import csv
import datetime
import decimal
import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mithridate import ArtifactError, ConfigError
from mithridate.data import Category, Date, Number, Ordered, Table, Text, read
from mithridate.data.columns import cells_in_words, encode
from mithridate.data.frames import Frame, cells_of_objects, frame_of, moments
from mithridate.data.table_files import read_csv
from mithridate.features import HashedNgrams

TABLE = Table("y", (Number("age", 0, 120), Category("job"), Text("note", 64)), ("no", "yes"))
SCALES = ("linear", "log")
COLUMNS = {
    "age": [17.0, None, 250.0, 64.5],
    "job": ["nurse", "clerk", None, "nurse"],
    "note": ["likes tea", None, "late again", ""],
    "y": ["yes", "no", "no", "yes"],
}


def frame(columns: dict[str, list[Any]]) -> Frame:
    rows = len(next(iter(columns.values())))
    return Frame(
        tuple(columns), rows, "the table", lambda name: cells_of_objects(columns[name], name), lambda row: f"row {row}"
    )


def encoded(columns: dict[str, list[Any]], table: Table) -> np.ndarray:
    return encode(frame(columns), table.columns, table.label)[0]


# --- a slow encoder, one cell at a time -----------------------------------------------------------------------------


def slow_row(row: dict[str, Any], table: Table) -> list[float]:
    found: list[float] = []
    for column in table.columns:
        found += slow_cell(row[column.name], column)
    return found


def slow_cell(value: Any, column: Any) -> list[float]:
    missing = value is None or value == "" or value != value
    if isinstance(column, Text):
        text = "" if value is None else str(value)
        ngrams = HashedNgrams(dimension=column.dimension).transform([text])[0] * (not missing)
        return [*ngrams.tolist(), float(missing)]
    if value is None or missing:
        return [0.0] * (column.width - 1) + [math.sqrt(0.5) if isinstance(column, Category) else 1.0]
    if isinstance(column, Number):
        return [*slow_number(float(value), column), 0.0]
    if isinstance(column, Category):
        return [*slow_category(value, column.buckets), 0.0]
    return [*(slow_date(value, column) if isinstance(column, Date) else slow_ordered(value, column)), 0.0]


def slow_number(value: float, column: Number) -> list[float]:
    value = min(max(value, column.low), column.high)
    t = (value - column.low) / (column.high - column.low)
    return slow_thermometer(math.log(1 + 99 * t, 100) if column.scale == "log" else t, column.bins)


def slow_thermometer(t: float, places: int) -> list[float]:
    """Each place grows from -1 to 1 while t crosses its share of the way."""
    crossed = [min(max((t - i / places) / (1 / places), 0.0), 1.0) for i in range(places)]
    return [(2 * share - 1) / math.sqrt(places) for share in crossed]


def slow_ordered(value: Any, column: Ordered) -> list[float]:
    if column.edges is not None:
        above = [float(value) >= edge for edge in column.edges]
    else:
        assert column.order is not None
        above = [list(column.order).index(value) > i for i in range(len(column.order) - 1)]
    return [(1 if step else -1) / math.sqrt(len(above)) for step in above]


def slow_date(value: str, column: Date) -> list[float]:
    moment = datetime.datetime.fromisoformat(value)
    first, end = datetime.datetime(column.first, 1, 1), datetime.datetime(column.last + 1, 1, 1)
    midnight = datetime.datetime(moment.year, moment.month, moment.day)
    shares = [
        min(max((moment - first) / (end - first), 0.0), 1.0),
        (midnight - datetime.datetime(moment.year, 1, 1)).days / 365,
        (moment - midnight) / datetime.timedelta(days=1),
    ]
    parts = [place * math.sqrt(0.5) for share in shares[: 2 + column.time] for place in slow_thermometer(share, 16)]
    return [*parts, *(0.5 if moment.isoweekday() == day else 0.0 for day in range(1, 8))]


def slow_category(value: Any, buckets: int) -> list[float]:
    text = repr(float(value)) if isinstance(value, (int, float)) else value
    digest = hashlib.blake2b(text.encode(), digest_size=32, key=b"mithridate category").digest()
    block = [0.0] * buckets
    for part in range(4):
        number = int.from_bytes(digest[8 * part : 8 * part + 8], "little")
        place = part * (buckets // 4) + (number % 2**63) % (buckets // 4)
        block[place] = math.sqrt(0.5) * (-0.5 if number >= 2**63 else 0.5)
    return block


cells = {
    "number": st.none() | st.floats(-1e3, 1e3) | st.integers(-1000, 1000) | st.just(math.nan),
    "category": st.none() | st.sampled_from(["a", "b", "c d", "é", ""]) | st.integers(0, 5),
    "text": st.none() | st.sampled_from(["", "tea for two", "Tea", "x" * 40, "über"]),
    "ordered": st.none() | st.sampled_from(["low", "middle", "high"]),
    "edges": st.none() | st.sampled_from([-1.0, 0.0, 0.5, 2.0, 1e9]) | st.floats(-10, 10),
    "date": st.none()
    | st.dates(datetime.date(1900, 1, 1)).map(str)
    | st.datetimes(datetime.datetime(1900, 1, 1)).map(lambda moment: moment.replace(microsecond=0).isoformat()),
}


@st.composite
def small_tables(draw: st.DrawFn) -> tuple[Table, list[dict[str, Any]]]:
    kinds = draw(st.lists(st.sampled_from(sorted(cells)), min_size=1, max_size=4))
    columns: list[Any] = []
    for i, kind in enumerate(kinds):
        low = draw(st.floats(-500, 500))
        made = {
            "number": lambda name, low=low: Number(
                name, low, low + draw(st.floats(0.5, 900)), draw(st.integers(2, 20)), draw(st.sampled_from(SCALES))
            ),
            "category": lambda name: Category(name, 4 * draw(st.integers(1, 9))),
            "text": lambda name: Text(name, draw(st.integers(2, 40))),
            "ordered": lambda name: Ordered(name, ("low", "middle", "high")),
            "edges": lambda name: Ordered(name, edges=(0.0, 0.5, 2.0)),
            "date": lambda name: Date(name, year := draw(st.integers(1950, 2100)), year + 9, draw(st.booleans())),
        }
        columns.append(made[kind](f"{kind} {i}"))
    table = Table(None, tuple(columns))
    row = st.fixed_dictionaries({column.name: cells[column.name.split()[0]] for column in columns})
    return table, draw(st.lists(row, min_size=1, max_size=6))


def by_column(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


@given(small_tables())
def test_rows_are_those_of_the_slow_encoder(case: tuple[Table, list[dict[str, Any]]]) -> None:
    table, rows = case
    found = encoded(by_column(rows), table)
    assert found.dtype == np.float32
    assert found.shape == (len(rows), table.width)
    np.testing.assert_allclose(found, [slow_row(row, table) for row in rows], atol=1e-5)


@given(small_tables(), st.randoms(use_true_random=False))
def test_a_row_is_encoded_by_itself(case: tuple[Table, list[dict[str, Any]]], random: Any) -> None:
    table, rows = case
    whole = encoded(by_column(rows), table)
    for i, row in enumerate(rows):
        np.testing.assert_array_equal(encoded(by_column([row]), table)[0], whole[i])
    order = random.sample(range(len(rows)), len(rows))
    np.testing.assert_array_equal(encoded(by_column([rows[i] for i in order]), table), whole[order])


@given(st.lists(cells["category"] | st.booleans(), min_size=1, max_size=5), st.sampled_from([3.5, "word", None, True]))
def test_the_other_values_of_a_column_do_not_change_how_one_is_read(values: list[Any], other: Any) -> None:
    """What else is in a column decides its type; it must not decide what 3 means."""
    for column in (Category("c"), Text("c", 16)):
        alone = encoded({"c": values}, Table(None, (column,)))
        beside = encoded({"c": [*values, other]}, Table(None, (column,)))
        np.testing.assert_array_equal(beside[:-1], alone)


def test_numbers_are_read_alike_from_text_and_numbers() -> None:
    table = Table(None, (Number("a", -5, 5),))
    typed = encoded({"a": [1, 2.5, None, True, False, math.inf, -math.inf, 10**400, decimal.Decimal("1.5")]}, table)
    text = encoded({"a": ["1", " 2.5 ", "NA", "true", "FALSE", "inf", "-inf", "1e999", "1.50"]}, table)
    np.testing.assert_array_equal(typed, text)
    np.testing.assert_array_equal(typed[5], encoded({"a": [5]}, table)[0])
    for word in ("", "n/a", "NaN", "null", "None", "?", "-"):
        np.testing.assert_array_equal(encoded({"a": ["1", word]}, table)[1], typed[2])


@given(st.floats(-10, 10), st.integers(3, 20), st.sampled_from(SCALES))
def test_blocks_have_comparable_norms(value: float, bins: int, scale: str) -> None:
    number = Table(None, (Number("a", -3, 4, bins, scale),))
    # A place that is being crossed is all that a row can lack.
    assert math.sqrt(1 - 1 / bins) - 1e-6 <= np.linalg.norm(encoded({"a": [value]}, number)) <= 1 + 1e-6
    assert np.linalg.norm(encoded({"a": [None]}, number)) == 1.0
    category = encoded({"a": [str(value), None]}, Table(None, (Category("a"),)))
    np.testing.assert_allclose(np.linalg.norm(category, axis=1), math.sqrt(0.5), rtol=1e-6)
    for time, squared in ((False, 1.25), (True, 1.75)):
        date = encoded({"a": ["2020-02-29T12:00"]}, Table(None, (Date("a", 2020, 2021, time),)))
        assert squared - (2 + time) / 32 <= np.linalg.norm(date) ** 2 <= squared + 1e-6


@given(st.floats(0, 1), st.floats(0, 1), st.integers(2, 40), st.sampled_from(SCALES))
def test_products_fall_with_the_distance(one: float, other: float, bins: int, scale: str) -> None:
    """The guarantee of `Number`, with the distance by another formula."""
    rows = encoded({"a": [one, other]}, Table(None, (Number("a", 0, 1, bins, scale),))).astype(np.float64)
    t, u = (math.log(1 + 99 * x) / math.log(100) if scale == "log" else x for x in (one, other))
    falls_short = 1 - 2 * abs(t - u) - rows[0] @ rows[1]
    assert -1e-6 <= falls_short <= 1 / bins + 1e-6
    if math.ceil(min(t, u) * bins) <= math.floor(max(t, u) * bins):
        assert abs(falls_short) < 1e-6


@given(share=st.floats(0, 1), bins=st.integers(2, 40), scale=st.sampled_from(["linear", "log"]))
def test_people_see_the_number_that_a_block_was_made_of(share: float, bins: int, scale: str) -> None:
    value = -20 + share * 120
    columns = (Category("kind"), Number("size", low=-20, high=100, bins=bins, scale=scale))
    frame = pytest.importorskip("pandas").DataFrame({"kind": ["a", "b"], "size": [value, None], "label": ["x", "y"]})
    rows = read(frame, Table(columns=columns, label="label", classes=("x", "y")), labels=True).x
    (name, cell), (_, missing) = (cells_in_words(row, columns)[0] for row in rows)
    assert (name, missing) == ("size", "missing")
    assert float(cell) == pytest.approx(value, rel=2e-3, abs=0.02)


def test_what_differs_by_how_much() -> None:
    """Another category costs a quarter of the range of a number; steps of an order share that range."""

    def distance(column: Any, one: Any, other: Any) -> float:
        a, b = encoded({column.name: [one, other]}, Table(None, (column,))).astype(np.float64)
        return float((a @ a + b @ b) / 2 - a @ b)

    assert distance(Number("a", 0, 8), 0, 8) == pytest.approx(2)
    assert distance(Number("a", 0, 8), 0, 2) == pytest.approx(0.5)
    assert distance(Number("a", 0, 8), -100, 800) == pytest.approx(2)  # clipped
    assert distance(Number("a", 0, 8), 3, None) == pytest.approx(1)
    assert distance(Number("a", 0, 99, scale="log"), 0, 9) == pytest.approx(1)  # 1 + 9 is the root of 1 + 99
    assert distance(Category("a", 1 << 12), "nurse", "clerk") == pytest.approx(0.5)
    order = Ordered("a", ("low", "middle", "high"))
    assert distance(order, "low", "high") == pytest.approx(2)
    assert distance(order, "low", "middle") == distance(order, "middle", "high") == pytest.approx(1)
    assert distance(Ordered("a", edges=(1, 5)), 0, 1) == pytest.approx(1)  # an edge is above
    assert distance(Ordered("a", edges=(1, 5)), 1, 4.9) == 0
    date = Date("a", 2020, 2020)
    assert distance(date, "2020-03-02", "2020-03-09") < 0.05 < distance(date, "2020-03-02", "2020-03-04")


def test_different_categories_are_rarely_alike() -> None:
    rows = encoded({"a": [f"word {i}" for i in range(200)]}, Table(None, (Category("a"),)))
    likeness = rows @ rows.T - np.eye(200, dtype=np.float32) / 2
    assert len(np.unique(rows, axis=0)) >= 199
    assert np.mean((2 * likeness) ** 2) < 1.2 / 32  # as for random directions in 32 dimensions


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_a_linear_model_can_bend_at_every_place(scale: str) -> None:
    values = np.linspace(0, 3, 40)
    rows = encoded({"a": values.tolist()}, Table(None, (Number("a", 0, 3, 3, scale),)))
    shares = values / 3 if scale == "linear" else np.log1p(33 * values) / math.log(100)
    bent = np.interp(shares * 3, [0, 1, 2, 3], [1.0, -2.0, 0.5, 4.0])
    inputs = np.column_stack([rows, np.ones(40)])
    solution = np.linalg.lstsq(inputs, bent, rcond=None)[0]
    np.testing.assert_allclose(inputs @ solution, bent, atol=1e-5)


def test_every_value_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []
    original = hashlib.blake2b

    def counting(data: bytes, **options: Any) -> Any:
        hashed.append(data)
        return original(data, **options)

    monkeypatch.setattr(hashlib, "blake2b", counting)
    encoded({"a": ["x", "y", None, "x"] * 50}, Table(None, (Category("a"),)))
    assert sorted(hashed) == [b"x", b"y"]


# --- sources --------------------------------------------------------------------------------------------------------


def write_csv(path: Path, columns: dict[str, list[Any]], delimiter: str = ",") -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def as_pandas(columns: dict[str, list[Any]], folder: Path) -> Any:
    return pytest.importorskip("pandas").DataFrame(columns)


def as_polars(columns: dict[str, list[Any]], folder: Path) -> Any:
    return pytest.importorskip("polars").DataFrame(columns)


def as_hugging_face(columns: dict[str, list[Any]], folder: Path) -> Any:
    return pytest.importorskip("datasets").Dataset.from_dict(columns)


def as_parquet(columns: dict[str, list[Any]], folder: Path) -> Any:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), folder / "table.parquet")
    return folder / "table.parquet"


def as_file(name: str, delimiter: str) -> Callable[[dict[str, list[Any]], Path], Path]:
    return lambda columns, folder: write_csv(folder / name, columns, delimiter)


@pytest.mark.parametrize(
    "make",
    [
        as_pandas,
        as_polars,
        as_hugging_face,
        as_parquet,
        as_file("a.csv", ","),
        as_file("a.csv", ";"),
        as_file("a.csv", "\t"),
        as_file("a.tsv", "\t"),
        as_file("A.CSV", ","),
    ],
)
def test_all_sources_give_the_same_rows(make: Callable[..., Any], tmp_path: Path) -> None:
    source = make(COLUMNS | {"more": [1, 2, 3, 4]}, tmp_path)
    found = read(source, TABLE, labels=True)
    np.testing.assert_array_equal(found.x, encoded(COLUMNS, TABLE))
    assert found.y is not None
    assert found.y.dtype == np.int64
    assert found.y.tolist() == [1, 0, 0, 1]
    assert found.class_names == ("no", "yes")
    assert found.notes == ("Columns that are not declared were ignored: more.",)
    assert found.assumptions == ()
    assert read(source, TABLE, labels=False).y is None


def test_a_data_frame_with_labels_beside_it() -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    table = Table(None, TABLE.columns, TABLE.classes)
    inputs = {name: values for name, values in COLUMNS.items() if name != "y"}
    for labels in (pandas.Series(COLUMNS["y"]), polars.Series(COLUMNS["y"]), np.array(COLUMNS["y"]), COLUMNS["y"]):
        for source in (pandas.DataFrame(inputs), polars.DataFrame(inputs)):
            found = read((source, labels), table, labels=True)
            assert np.asarray(found.y).tolist() == [1, 0, 0, 1]
            np.testing.assert_array_equal(found.x, encoded(inputs, table))


def test_types_that_know_missing_values() -> None:
    pandas = pytest.importorskip("pandas")
    table = Table(None, (Number("a", 0, 10), Category("b"), Category("c"), Category("d")))
    plain = encoded({"a": [1, None, 3], "b": [True, None, False], "c": ["x", None, "y"], "d": [7, 8, None]}, table)
    source = pandas.DataFrame(
        {
            "a": pandas.array([1, None, 3], dtype="Int64"),
            "b": pandas.array([True, None, False], dtype="boolean"),
            "c": pandas.array(["x", None, "y"], dtype="string"),
            "d": pandas.array([7, 8, None], dtype="Float32"),
        }
    )
    np.testing.assert_array_equal(read(source, table).x, plain)
    categories = source.assign(c=pandas.Categorical(["x", None, "y"]), b=[True, None, False], d=["7", "8.0", None])
    np.testing.assert_array_equal(read(categories, table).x, plain)


def test_dates_are_dates_or_categories_and_not_numbers() -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    days = [datetime.date(2020, 2, 29), None]
    moments = pandas.DataFrame({"a": pandas.to_datetime(["2020-02-29", None])})
    plain = encoded({"a": ["2020-02-29", None]}, Table(None, (Category("a"),)))
    np.testing.assert_array_equal(read(polars.DataFrame({"a": days}), Table(None, (Category("a"),))).x, plain)
    table = Table(None, (Date("a", 2019, 2022, time=True),))
    dates = encoded({"a": ["2020-02-29", None]}, table)
    for source in (polars.DataFrame({"a": days}), moments, moments.astype("datetime64[s]"), moments.astype(object)):
        np.testing.assert_array_equal(read(source, table).x, dates)
        with pytest.raises(ConfigError, match="declare it as a date"):
            read(source, Table(None, (Number("a", 0, 1),)))
    aware = pandas.DataFrame({"a": pandas.to_datetime(["2020-02-29T10:30:00+02:00"])})
    np.testing.assert_array_equal(read(aware, table).x, encoded({"a": ["2020-02-29 10:30"]}, table))


@pytest.mark.parametrize(
    ("same", "as_written"),
    [
        ("2020-03-01", "2020-3-1 | 2020/03/01 | 1 Mar 2020 | 01-MAR-2020 | March 1, 2020 | mar 01 2020 | 2020-03"),
        ("2020-03-01T15:30:00", "2020-03-01 15:30 |  2020/03/01  3:30 PM | 1 march 2020 03:30:00pm | 2020-3-1T15:30Z"),
        ("2020-03-01T00:00:07", "2020-03-01 12:00:07 am | 2020-03-01T00:00:07.000000000 | 2020-03-01T00:00:07+0200"),
    ],
)
def test_usual_ways_to_write_a_date(same: str, as_written: str) -> None:
    table = Table(None, (Date("a", 2019, 2022, time=True),))
    written = as_written.split("|")
    for row in encoded({"a": written}, table):
        np.testing.assert_array_equal(row, encoded({"a": [same]}, table)[0])


@given(st.datetimes(datetime.datetime(1678, 1, 1), datetime.datetime(2262, 1, 1)))
def test_dates_are_read_as_pandas_reads_them(moment: datetime.datetime) -> None:
    pandas = pytest.importorskip("pandas")
    for form in ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y/%m/%d %H:%M", "%d %b %Y", "%d-%B-%Y", "%B %d, %Y", "%b %d %Y"):
        word = moment.strftime(form)
        found = moments(cells_of_objects([word], "a"), "a", str)[0]
        assert found == pandas.Timestamp(pandas.to_datetime(word)).to_pydatetime()


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("03/04/2020", "holds '03/04/2020'; write dates with the year first, such as 2020-01-31, or with the name"),
        ("3.4.2020", "year first"),
        ("1 Foo 2020", "year first"),
        ("2021-02-29", "year first"),
        ("2020-13-01", "year first"),
        ("2020-01-01 25:00", "year first"),
        ("2020-01-01 13:00 pm", "year first"),
        ("20-01-31", "year first"),
        ("soon", "year first"),
        ("20200131", "holds '20200131'; declare it as a number"),
        ("2020", "declare it as a number"),
    ],
)
def test_what_is_no_date(tmp_path: Path, word: str, says: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"a\n2020-01-31\n{word}\n")
    with pytest.raises(ConfigError, match="'a' is declared as dates, but line 3") as caught:
        read(path, Table(None, (Date("a", 2019, 2022),)))
    assert says in str(caught.value)


def test_numbers_are_no_dates_whatever_their_type() -> None:
    pandas = pytest.importorskip("pandas")
    for values in ([20200131], [20200131.0, None], ["20200131"]):
        with pytest.raises(ConfigError, match="declare it as a number"):
            read(pandas.DataFrame({"a": values}), Table(None, (Date("a", 2019, 2022),)))


def test_missing_dates_and_dates_outside_the_years() -> None:
    table = Table(None, (Date("a", 2019, 2022),))
    for word in (None, "", "NaT", "n/a", "?"):
        assert encoded({"a": [word]}, table)[0].tolist() == [0.0] * 39 + [1.0]
    years = encoded({"a": ["1850-01-01", "2019-01-01", "2022-12-31 23:59:59", "9999-12-31"]}, table)[:, :16]
    np.testing.assert_array_equal(years[0], years[1])
    np.testing.assert_allclose(years[2], years[3], atol=1e-5)
    assert encode(frame({"a": ["1850-01-01"]}), table.columns, None)[1] == (
        "More than half of the values of 'a' lie outside the years 2019 to 2022 and were clipped; check its unit.",
    )


def test_a_value_that_is_not_in_the_order() -> None:
    table = Table(None, (Ordered("size", ("S", "M", "3")),))
    typed, written = encoded({"size": [3, "3.0"]}, table)
    np.testing.assert_array_equal(typed, written)
    with pytest.raises(ConfigError, match=r"order of the column 'size' is S, M, 3, but row 1 holds 'XL'; add it"):
        encoded({"size": ["S", "XL"]}, table)


def test_columns_that_are_not_declared_may_hold_anything() -> None:
    pandas = pytest.importorskip("pandas")
    source = pandas.DataFrame({"a": [1.0, 2.0], "odd": [[1], {"b": 2}]})
    assert read(source, Table(None, (Number("a", 0, 2),))).notes == (
        "Columns that are not declared were ignored: odd.",
    )
    with pytest.raises(ConfigError, match="The column 'odd' holds list values"):
        read(source, Table(None, (Category("odd"),)))


def test_a_wrong_unit_is_noticed() -> None:
    table = Table(None, (Number("height", 0, 3),))
    assert encode(frame({"height": [180.0, 170.0, 2.0]}), table.columns, table.label)[1] == (
        "More than half of the values of 'height' lie outside 0 to 3 and were clipped; check its unit.",
    )
    assert encode(frame({"height": [180.0, 1.7, 2.0]}), table.columns, table.label)[1] == ()


# --- CSV ------------------------------------------------------------------------------------------------------------


def test_cells_of_a_csv_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes('\ufeff\n"a, b",c \r\n"line\nbreak","say ""hi"""\r\n\r\n ,é\n\n'.encode())
    found = read_csv(path)
    assert found.names == ("a, b", "c")
    assert found.cells("a, b").tolist() == ["line\nbreak", " "]
    assert found.cells("c").tolist() == ['say "hi"', "é"]
    assert [found.place(row) for row in range(2)] == [f"line 4 of {path}", f"line 6 of {path}"]


def test_empty_lines_of_a_single_column_are_missing_cells(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a\nx\n\ny\n\n\n")
    assert read_csv(tmp_path / "a.csv").cells("a").tolist() == ["x", "", "y"]


def test_columns_without_a_name_get_one(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(",a,\n1,2,3\n")
    assert read_csv(tmp_path / "a.csv").names == ("column 1", "a", "column 3")


def test_rows_have_no_say_in_the_delimiter(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a,y\n"1;2;3;4;5",yes\n')
    assert read_csv(tmp_path / "a.csv").names == ("a", "y")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_rows_have_no_say_in_the_delimiter_however_lines_end(tmp_path: Path, end: str) -> None:
    (tmp_path / "a.csv").write_bytes(end.join(["a,y", '"1;2;3;4;5",yes', '";;;;",no', ""]).encode())
    found = read_csv(tmp_path / "a.csv")
    assert found.names == ("a", "y")
    assert found.cells("a").tolist() == ["1;2;3;4;5", ";;;;"]
    assert found.ids == ("line 2", "line 3")


def test_rows_are_named_as_in_the_errors(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('age,job,note,y\n1,nurse,"two\nlines",yes\n\n2,,,no\n')
    found = read(tmp_path / "a.csv", TABLE, labels=True)
    assert found.ids == ("line 3", "line 5")
    with pytest.raises(ConfigError, match=r"label of line 5 of .* is 'no'"):
        read(tmp_path / "a.csv", TABLE, classes=("yes", "maybe"))
    for make in (as_pandas, as_polars, as_hugging_face, as_parquet):
        assert read(make(COLUMNS, tmp_path), TABLE).ids == ("row 0", "row 1", "row 2", "row 3")


def test_messages_about_tables_without_a_name() -> None:
    pandas = pytest.importorskip("pandas")
    table = Table("y", (Number("a", 0, 1),), ("no", "yes"))
    with pytest.raises(ConfigError, match=r"^The column 'a' of the table has no values"):
        read(pandas.DataFrame({"a": [None, None], "y": ["no", "yes"]}), table, labels=True)
    with pytest.raises(ConfigError, match=r"^The table has no column 'a'"):
        read(pandas.DataFrame({"b": [1, 2], "y": ["no", "yes"]}), table, labels=True)


def test_what_a_terminal_would_act_upon_is_escaped(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,\x1b[2Jb,y\n1,2,yes\nx\x1b[2J,2,no\n")
    for table in (Table("y", (Number("a", 0, 1),)), Table("y", (Number("c", 0, 1),)), Table("z", (Category("a"),))):
        with pytest.raises(ConfigError) as caught:
            read(path, table, labels=True)
        assert "\\x1b[2J" in str(caught.value)
        assert str(caught.value).isprintable()
    assert read(path, Table("y", (Category("a"),)), labels=True).notes == (
        "Columns that are not declared were ignored: '\\x1b[2Jb'.",
    )


@pytest.mark.parametrize(
    ("data", "kind", "says"),
    [
        (b"", ArtifactError, "is empty"),
        (b"\n\n  \n", ArtifactError, "is empty"),
        (b"a,y\n", ConfigError, "has no rows"),
        (b"a,y\n1,yes\n2\n", ArtifactError, "Line 3 of {path} has 1 cells, the header 2"),
        (b"a,y\n1,yes\n2,no,3\n", ArtifactError, "Line 3 of {path} has 3 cells"),
        (b"a,a\n1,2\n", ConfigError, "more than one column named 'a'"),
        (b"a,y\n1,caf\xe9\n", ArtifactError, "not text in UTF-8 (byte 9)"),
        ("a,y\n1,yes\n".encode("utf-16"), ArtifactError, "not text in UTF-8"),
        (b"a,y\n1,\0yes\n", ArtifactError, "NUL bytes"),
        (b'a,y\n"1,yes\n2,no\n', ArtifactError, "not valid CSV"),
        (b'a,y\n"1"2,yes\n', ArtifactError, "Line 2 of {path} is not valid CSV"),
        (b"a,y\n" + b"1" * 200_000 + b",yes\n", ArtifactError, "field larger than field limit"),
        (b"\x89PNG\r\n\x1a\n\0\0", ArtifactError, "not text in UTF-8"),
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, data: bytes, kind: type[Exception], says: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(data)
    with pytest.raises(kind) as caught:
        read(path, Table("y", (Number("a", 0, 1),)), labels=True)
    assert says.format(path=path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("agee,y\n1,yes\n2,no\n", "has no column 'age'; did you mean 'agee'?"),
        ("x,y\n1,yes\n2,no\n", "has no column 'age'; it has x, y."),
        ("age,z\n1,yes\n2,no\n", "has no column 'y'"),
        ("age,y\n1,yes\nold,no\n", "'age' is declared as numbers, but line 3 of {path} holds 'old'; declare it as"),
        ("age,y\n1,yes\n'2,5',no\n".replace("'", '"'), "line 3 of {path} holds '2,5'; write decimals with a point"),
        ("age,y\n1,yes\n2020-01-31,no\n", "declare it as a date"),
        ("age,y\n,yes\nNA,no\n", "'age' of {path} has no values at all"),
        ("age,y\n1,yes\n2,\n", "The label of line 3 of {path} is missing"),
        ("age,y\n1,yes\n2,maybe\n", "The label of line 3 of {path} is 'maybe', which is not among the classes no, yes"),
        ("age,y\n1,yes\n2,yes\n", "All examples have the label 'yes'"),
    ],
)
def test_tables_that_contradict_their_declaration(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read(path, Table("y", (Number("age", 0, 120),), ("no", "yes")), labels=True)
    assert says.format(path=path) in str(caught.value)
    assert "\n" not in str(caught.value)


# --- decimal commas -------------------------------------------------------------------------------------------------

COMMAS = Table(None, (Number("a", -10_000, 10_000, decimal=","),))
POINTS = Table(None, (Number("a", -10_000, 10_000),))


@given(st.decimals(-9999, 9999, places=2), st.sampled_from(["", ".", " ", "\u00a0", "\u202f"]))
def test_a_decimal_comma_is_a_decimal_point(value: decimal.Decimal, between: str) -> None:
    """Also with something between thousands: a row becomes what the same number becomes with a point."""
    written = f"{value:,.2f}".replace(",", "_").replace(".", ",").replace("_", between)
    np.testing.assert_array_equal(encoded({"a": [written]}, COMMAS), encoded({"a": [f"{value:.2f}"]}, POINTS))


@pytest.mark.parametrize(
    ("written", "value"),
    [("3,14", 3.14), (" -0,5 ", -0.5), (",5", 0.5), ("7", 7), ("1.234", 1234), ("1,5E2", 150), ("+2,", 2), ("TRUE", 1)],
)
def test_numbers_with_decimal_commas(written: str, value: float) -> None:
    np.testing.assert_array_equal(encoded({"a": [written]}, COMMAS), encoded({"a": [value]}, POINTS))


def test_missing_and_typed_numbers_of_a_column_with_decimal_commas() -> None:
    for word in (None, "", "NA", "-"):
        assert encoded({"a": [word]}, COMMAS)[0].tolist() == [0.0] * 16 + [1.0]
    typed = pytest.importorskip("pandas").DataFrame({"a": [3.14, math.nan]})
    np.testing.assert_array_equal(read(typed, COMMAS).x, read(typed, POINTS).x)


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("3.14", "decimals are declared to follow a comma"),
        ("1.23.456", "declare it as a category"),
        ("1,234,5", "declare it as a category"),
        ("12.34,5", "declare it as a category"),
        ("1e", "declare it as a category"),
        ("e5", "declare it as a category"),
        (",", "declare it as a category"),
        ("soon", "declare it as a category"),
        ("2020-01-31", "declare it as a date"),
    ],
)
def test_what_is_no_number_with_a_decimal_comma(written: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"row 0 holds .*{says}"):
        encoded({"a": [written]}, COMMAS)


def test_later_inputs_may_lack_what_training_data_must_have(tmp_path: Path) -> None:
    path, table = tmp_path / "a.csv", Table("y", (Number("age", 0, 120),), ("no", "yes"))
    path.write_text("age\n\n1\n")
    assert read(path, table).y is None
    path.write_text("age,y\n,yes\n,yes\n")
    assert np.asarray(read(path, table).y).tolist() == [1, 1]


def test_a_table_that_does_not_fit_into_memory() -> None:
    huge = Table(None, tuple(Category(f"c{i}", 1 << 20) for i in range(400)))
    source = Frame(
        tuple(column.name for column in huge.columns), 10**6, "", lambda _: cells_of_objects(["a"], "c"), str
    )
    with pytest.raises(ConfigError, match="do not fit into memory"):
        encode(source, huge.columns, huge.label)


def test_other_things_are_no_tables() -> None:
    assert frame_of(np.ones((2, 2))) is None
    assert frame_of({"a": [1]}) is None


# --- fuzzing --------------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(
    st.binary(max_size=200)
    | st.text(max_size=200).map(str.encode)
    | st.text('age,joby;\t"\n\r1.5', max_size=80).map(lambda text: b"age,job,y\n" + text.encode())
)
def test_any_bytes_are_a_table_or_one_clear_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.csv"
    path.write_bytes(data)
    for labels in (True, None):
        try:
            found = read(path, Table("y", (Number("age", 0, 9), Category("job"))), labels=labels)
        except (ArtifactError, ConfigError):
            continue
        assert found.kind == "text" or np.isfinite(found.x).all()


odd_values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.binary(max_size=3)


@settings(max_examples=100)
@given(st.dictionaries(st.text(max_size=3), st.lists(odd_values, min_size=3, max_size=3), min_size=1, max_size=4))
def test_any_data_frame_is_a_table_or_one_clear_error(columns: dict[str, list[Any]]) -> None:
    pandas = pytest.importorskip("pandas")
    declared: list[Any] = [Number("a", 0, 1)]
    declared = [
        kind for i, name in enumerate(columns) if name.strip() and name.isprintable()
        for kind in [[Number(name, 0, 1), Category(name), Text(name, 8), Date(name, 1, 9999, True)][i % 4]]
    ] or declared  # fmt: skip
    try:
        found = read(
            pandas.DataFrame({name: pandas.Series(v, dtype=object) for name, v in columns.items()}),
            Table(None, tuple(declared)),
        )
    except ConfigError:
        return
    assert found.kind == "text" or np.isfinite(found.x).all()
