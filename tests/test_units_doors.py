"""Units through every door: the same data, however its units are declared, gives the same votes and claims."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import mithridate.data.table_files as table_files
from mithridate import Certificate, CertifiedClassifier, Votes, verify
from mithridate.cli import main
from mithridate.core.conditions import conditions_of, step_of
from mithridate.core.mechanism import Threat
from mithridate.core.units import Unit, UnitWords
from mithridate.data import Arrays, Date, Images, Number, Table, Text, look, propose, read
from mithridate.data.partition import folds_of, split_by_hash
from mithridate.data.reading import TableReading
from mithridate.data.units import GatheredUnits, Units
from mithridate.defences import defence, predict
from mithridate.errors import ConfigError
from mithridate.projects import read_project

# The seventh may only be written with decimals, as a table of numbers does.
VENDORS = ("Acme", "acme", "Ångström & Söhne", "007", "12", "3", "7", "x y", *(f"v{n}" for n in range(40)))
CONSTANTS: dict[str, Any] = {"partitions": 9, "learner": "logistic"}
TABLE = Table("kind", (Number("a", -4, 6), Number("b", -4, 4)), ("no", "yes"), unit="vendor")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sources(count: int = 400, seed: int = 0) -> pd.DataFrame:
    """Rows of vendors of very different sizes."""
    random = np.random.default_rng(seed)
    y = random.integers(0, 2, count)
    owner = np.minimum(random.geometric(0.05, count) - 1, len(VENDORS) - 1)
    a, b = (random.normal(size=count).astype(np.float32).astype(np.float64) for _ in range(2))
    return pd.DataFrame(
        {"vendor": np.array(VENDORS)[owner], "a": a + 2 * y, "b": b, "kind": np.where(y == 1, "yes", "no")}
    )


def words(**constants: Any) -> list[str]:
    return [word for name, value in constants.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def trained(*flags: str, method: str = "dpa", **constants: Any) -> Votes:
    """`mithridate train`, and what it wrote."""
    assert main(["train", *flags, "--method", method, "--device", "cpu", *words(**constants), "--json"]) == 0
    return Votes.load("run/votes.npz")


def same(votes: Sequence[Votes]) -> Votes:
    """One of them, if all of them are alike in whatever a certificate rests on."""
    first = votes[0]
    assert first.unit is not None
    for each in votes[1:]:
        assert np.array_equal(each.counts, first.counts)
        assert (each.unit, each.size, each.mechanism) == (first.unit, first.size, first.mechanism)
        assert each.training == first.training
        assert [one.id for one in conditions_of(each.statements)] == [one.id for one in conditions_of(first.statements)]
    return first


# --- tables -----------------------------------------------------------------------------------------------------------


def project(train: str, *lines: str, test: str | None = "test.csv") -> Path:
    """A project file for a table."""
    path = Path("project.toml")
    declared = ['kind = "table"', 'label = "kind"', 'classes = ["no", "yes"]', *lines]
    ranges = (("a", 6), ("b", 4))
    columns = [f'[[data.columns]]\nkind = "number"\nname = "{name}"\nlow = -4\nhigh = {high}' for name, high in ranges]
    where = f'test = "{test}"' if test else "holdout = 0.25"
    path.write_text("\n".join(['run_dir = "run"', "[data]", f'train = "{train}"', where, *declared, *columns]) + "\n")
    return path


def tables(frame: pd.DataFrame) -> Iterator[tuple[str, ...]]:
    """The same table in files, and what a command says of them."""
    frame.to_csv("train.csv", index=False)
    yield (str(project("train.csv", 'unit = "vendor"')),)
    frame.to_csv("train.tsv", index=False, sep="\t")
    yield str(project("train.tsv")), "--unit", "vendor"
    frame.to_parquet("train.parquet")
    yield (str(project("train.parquet", 'unit = "vendor"')),)


def run_again(*flags: str, **more: Any) -> Votes:
    for path in sorted(Path("run").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    return trained(*flags, **more)


@pytest.mark.parametrize(
    ("method", "constants"),
    [
        ("dpa", CONSTANTS),
        ("finite-aggregation", {**CONSTANTS, "spread": 2}),
        ("run-off-election", CONSTANTS),
        ("run-off-finite-aggregation", {**CONSTANTS, "spread": 2}),
    ],
)
def test_tables_by_all_doors_give_the_same_votes(method: str, constants: dict[str, Any]) -> None:
    frame = sources()
    test = sources(60, seed=1)
    test.drop(columns=["vendor"]).to_csv("test.csv", index=False)
    found = [run_again(*flags, method=method, **constants) for flags in tables(frame)]
    chosen = defence(method, **constants)
    training = read(frame, TABLE, labels=True)
    found.append(chosen.train(training, read(test, TABLE, classes=training.class_names), device="cpu"))
    assert same(found).unit == Unit("vendor", frame.vendor.nunique())
    assert found[0].training is not None
    assert found[0].training.units == training.units.fingerprint()  # pyright: ignore[reportOptionalMemberAccess]
    fitted = CertifiedClassifier(method, **constants, device="cpu", schema=TABLE).fit(frame)
    by_name = CertifiedClassifier(method, **constants, device="cpu", schema=TABLE).fit(
        frame.drop(columns="vendor"), units=frame.vendor
    )
    for estimator, later in ((fitted, test), (fitted, test.drop(columns="vendor")), (by_name, test)):
        votes = estimator.votes(later.drop(columns="vendor") if estimator is by_name else later)
        assert np.array_equal(votes.counts, found[0].counts)
        assert (votes.unit, votes.training) == (found[0].unit, found[0].training)
        assert conditions_of(votes.statements) == conditions_of(found[0].statements)


def test_arrays_by_all_doors_give_the_same_votes() -> None:
    frame, test = sources(), sources(60, seed=1)
    x, y = frame[["a", "b"]].to_numpy(), (frame.kind == "yes").to_numpy().astype(np.int64)
    names = frame.vendor.to_numpy(dtype=np.str_)
    np.savez("test.npz", x=test[["a", "b"]].to_numpy())
    np.savez("train.npz", x=x, y=y, unit=names)
    np.savez("named.npz", x=x, y=y, vendor=names)
    Path("folder").mkdir()
    for name, array in (("x", x), ("y", y), ("unit", names)):
        np.save(f"folder/{name}.npy", array)
    Path("p.toml").write_text('run_dir = "run"\n[data]\ntrain = "train.npz"\ntest = "test.npz"\nunit = "vendor"\n')
    files = ["--test", "test.npz", "--run-dir", "run", "--unit", "vendor", "--classes", "2"]
    found = [run_again("--train", each, *files, **CONSTANTS) for each in ("train.npz", "named.npz", "folder")]
    found.append(run_again("p.toml", classes=2, **CONSTANTS))
    chosen = defence("dpa", classes=2, **CONSTANTS)
    examples = read((x, y), labels=True)
    examples = type(examples)(x, y, units=Units.of(names, "vendor"))
    found.append(chosen.train(examples, np.load("test.npz")["x"], device="cpu"))
    assert same(found).unit == Unit("vendor", frame.vendor.nunique())
    fitted = CertifiedClassifier("dpa", classes=[0, 1], **CONSTANTS, device="cpu").fit(x, y, units=list(names))
    votes = fitted.votes(np.load("test.npz")["x"])
    assert np.array_equal(votes.counts, found[0].counts)
    assert votes.unit == Unit("unit", frame.vendor.nunique())
    # An array of units needs no word for them.
    plain = run_again("--train", "train.npz", "--test", "test.npz", "--run-dir", "run", **CONSTANTS)
    assert plain.unit == Unit("unit", frame.vendor.nunique())
    assert np.array_equal(plain.counts, found[0].counts)


# --- images -----------------------------------------------------------------------------------------------------------


def draw(root: Path, level: Callable[[str], str]) -> dict[str, str]:
    """Pictures of two classes of thirty vendors; their names say whose they are, for a map."""
    random, owners = np.random.default_rng(3), dict[str, str]()
    for vendor in (f"v{n}" for n in range(30)):
        for kind in ("bright", "dark"):
            for number in range(3):
                name = f"{level(vendor)}{kind}/{vendor}-{number}.png"
                pixels = random.integers(0, 100, (8, 8)) + (120 if kind == "bright" else 0)
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.astype(np.uint8)).save(root / name)
                owners[name] = vendor
    return owners


def write_map(path: str, owners: dict[str, str], unit: str = "vendor") -> None:
    Path(path).write_text("\n".join([f"file,{unit}", *(f"{file},{owner}" for file, owner in owners.items())]) + "\n")


PICTURES = '\nkind = "images"\nsize = [8, 8]\nchannels = 1\nclasses = ["bright", "dark"]\nunit = "vendor"\n'


def test_images_by_folders_and_by_a_map_give_the_same_votes(here: Path) -> None:
    draw(here / "levels", "{}/".format)
    write_map("sources.csv", draw(here / "flat", lambda _: ""))
    draw(here / "new", lambda _: "")
    Path("a.toml").write_text('run_dir = "run"\n[data]\ntrain = "levels"\ntest = "new"' + PICTURES)
    Path("b.toml").write_text('run_dir = "run"\n[data]\ntrain = "flat"\ntest = "new"\nunits = "sources.csv"' + PICTURES)
    constants = {"partitions": 3, "learner": "logistic"}
    found = [run_again(each, **constants) for each in ("a.toml", "b.toml")]
    found.append(run_again("b.toml", "--units", "sources.csv", **constants))
    # The order of the files is another one, which no part depends on.
    assert np.array_equal(found[0].counts, found[1].counts)
    assert same(found[1:]).unit == found[0].unit == Unit("vendor", 30)
    # Later images have no vendors, whether or not they lie as those that were trained on.
    for folder in ("new", "levels"):
        assert main(["predict", "run", folder, "--json"]) == 0


def test_init_proposes_folders_of_vendors(here: Path) -> None:
    draw(here / "levels", "{}/".format)
    write_map("sources.csv", draw(here / "flat", lambda _: ""))
    assert main(["init", "levels", "--unit", "vendor", "-o", "levels.toml", "--json"]) == 0
    assert main(["init", "flat", "--unit", "vendor", "--units", "sources.csv", "-o", "flat.toml", "--json"]) == 0
    for file in ("levels.toml", "flat.toml"):
        training, test = read_project(file).examples()
        assert training.units is not None
        assert test.units is not None
        assert training.class_names == ("bright", "dark")
        assert len(training.units.names) + len(test.units.names) == 30
        assert not set(training.units.names) & set(test.units.names)


def test_init_says_where_images_of_units_lie_without_a_word_for_them(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw(here / "levels", "{}/".format)
    said = refusal(capsys, "init", "levels", "-o", "p.toml")
    assert "such as 'v0/bright/v0-0.png'" in said
    assert "--unit vendor" in said
    (here / "empty" / "a" / "b").mkdir(parents=True)
    said = refusal(capsys, "init", "empty", "-o", "p.toml")
    assert "holds no images" in said
    assert "unit" not in said


def test_init_writes_constants_of_units_for_arrays_that_have_some(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = sources()
    x, y, names = frame[["a", "b"]].to_numpy(), (frame.kind == "yes").to_numpy(), frame.vendor.to_numpy(dtype=np.str_)
    np.savez("units.npz", x=x, y=y.astype(np.int64), unit=names)
    np.savez("named.npz", x=x, y=y.astype(np.int64), vendor=names)
    assert main(["init", "units.npz", "-o", "units.toml"]) == 0
    written = Path("units.toml").read_text()
    assert "# num_units = " in written
    assert "# unit_cap = " in written
    assert "num_train" not in written
    Path("units.toml").write_text(written.replace("# num_units = 1000", "num_units = 45  "))
    votes = trained("units.toml", "--run-dir", "run", **CONSTANTS)
    assert votes.unit == Unit("unit", len(read_project("units.toml").examples()[0].units.names))  # pyright: ignore[reportOptionalMemberAccess]
    capsys.readouterr()
    assert main(["init", "named.npz", "-o", "named.toml"]) == 0
    assert "not used: vendor; one that names sources can be unit" in " ".join(capsys.readouterr().out.split())
    assert "# num_train = " in Path("named.toml").read_text()
    assert main(["init", "named.npz", "--unit", "vendor", "-o", "vendors.toml"]) == 0
    assert "not used" not in capsys.readouterr().out


def test_the_example_of_plan_works_with_what_init_writes(capsys: pytest.CaptureFixture[str]) -> None:
    sources().to_csv("train.csv", index=False)
    assert main(["init", "train.csv", "--label", "kind", "--unit", "vendor", "-o", "shops.toml"]) == 0
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    example = next(line for line in capsys.readouterr().out.splitlines() if "plan shops.toml" in line)
    assert main([*example.split()[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unit"] == {"name": "vendor", "count": 1000}


# --- what is left out of the inputs -----------------------------------------------------------------------------------


def test_the_column_of_units_is_no_input(capsys: pytest.CaptureFixture[str]) -> None:
    sources().to_csv("train.csv", index=False)
    assert main(["init", "train.csv", "--label", "kind", "-o", "plain.toml", "--json"]) == 0
    seen = {each["kind"]: each["sentence"] for each in json.loads(capsys.readouterr().out)["seen"]}
    assert seen["source"].endswith("run init again with --unit vendor.")
    assert main(["init", "train.csv", "--label", "kind", "--unit", "vendor", "-o", "p.toml", "--json"]) == 0
    assert "source" not in {each["kind"] for each in json.loads(capsys.readouterr().out)["seen"]}
    declared = read_project("p.toml").declaration
    assert isinstance(declared, Table)
    assert declared.unit == "vendor"
    assert [column.name for column in declared.columns] == ["a", "b"]
    assert main(["train", "p.toml", "--method", "dpa", *words(**CONSTANTS), "--device", "cpu"]) == 0
    assert "not declared" not in capsys.readouterr().out
    new = sources(20, seed=5)
    new.to_csv("with.csv", index=False)
    new.drop(columns="vendor").to_csv("without.csv", index=False)
    said = []
    for file in ("with.csv", "without.csv"):
        assert main(["predict", "runs/p", file, "--json"]) == 0
        said.append(json.loads(capsys.readouterr().out))
    assert said[0]["predictions"] == said[1]["predictions"]


def test_a_text_table_has_units_too() -> None:
    frame = pd.DataFrame({"who": ["a", "b", "a"], "text": ["one", "two", "three"], "kind": ["x", "y", "x"]})
    frame.to_csv("t.csv", index=False)
    declared = Table("kind", (Text("text"),), ("x", "y"), unit="who")
    for source in (Path("t.csv"), frame):
        found = read(source, declared, labels=True)
        assert found.units is not None
        assert (found.units.name, found.units.names) == ("who", ("a", "b"))
        assert found.notes == ()
        assert read(source, declared).units is None


# --- hold-out, pieces and the store -----------------------------------------------------------------------------------


def test_vendors_are_held_out_by_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    frame = sources(2000)
    frame.to_csv("train.csv", index=False)
    path = project("train.csv", 'unit = "vendor"', test=None)
    training, test = read_project(path).examples()
    whole = read(frame, TABLE, labels=True)
    expected = split_by_hash(whole, 0.25)
    assert training.units is not None
    assert expected[0].units is not None
    assert training.units.names == expected[0].units.names
    assert np.array_equal(training.x, expected[0].x)
    assert np.array_equal(test.x, expected[1].x)
    names = {*training.units.names}, {*(test.units.names if test.units is not None else ())}
    assert names[0] | names[1] == set(frame.vendor)
    assert not names[0] & names[1]
    assert main(["fingerprint", str(path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    lines = "".join(f"{name!a}\n" for name in frame.vendor if name in names[0])
    assert said["training"]["units"] == hashlib.sha256(lines.encode()).hexdigest()
    assert len(said["input"]) == len(test.x)


@given(st.lists(st.sampled_from(["a", "b ", " b", "A", "7", "7.0", "07", "é"]), min_size=1, max_size=30), st.data())
def test_names_that_come_in_pieces_are_those_of_the_whole(names: list[str], data: st.DataObject) -> None:
    gathered, numbers, at = GatheredUnits("vendor"), list[npt.NDArray[np.int64]](), 0
    while at < len(names):
        step = data.draw(st.integers(1, len(names)))
        cells = np.empty(len(names[at : at + step]), dtype=object)
        cells[:] = names[at : at + step]
        numbers.append(gathered.add(cells, str))
        if data.draw(st.booleans()):  # interrupted, and written down
            again = GatheredUnits("vendor")
            again.restore(json.loads(json.dumps(gathered.state)))
            gathered = again
        at += step
    found, whole = gathered.units(np.concatenate(numbers)), Units.of(names, "vendor")
    assert (found.names, found.of_example.tolist()) == (whole.names, whole.of_example.tolist())
    same_name = {name: name.strip().removesuffix(".0") for name in names}
    assert [whole.names[n] for n in whole.of_example] == [same_name[name] for name in names]
    assert whole.fingerprint() == hashlib.sha256("".join(f"{same_name[n]!a}\n" for n in names).encode()).hexdigest()


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_in_the_store_has_the_units_of_one_in_memory(
    suffix: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, path = sources(900), Path(f"t{suffix}")
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    expected = read(frame, TABLE, labels=True)
    monkeypatch.setenv("MITHRIDATE_CACHE", str(here / "cache"))
    monkeypatch.setattr(table_files, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(table_files, "BLOCK_CELLS", 1 << 8)
    monkeypatch.setattr("mithridate.data.reading._COMMITTED_BYTES", 1 << 12)
    monkeypatch.setattr("mithridate.data.reading.most_in_memory", lambda: 1 << 12)
    pieces, seen = TableReading.batches, []

    def interrupted(self: TableReading, after: Any) -> Iterator[Any]:
        for number, batch in enumerate(pieces(self, after)):
            if not seen and number == 5:
                seen.append(after)
                raise KeyboardInterrupt
            yield batch

    monkeypatch.setattr(TableReading, "batches", interrupted)
    with pytest.raises(KeyboardInterrupt):
        read(path, TABLE, labels=True)
    for _ in range(2):  # resumed, and then out of the store
        found = read(path, TABLE, labels=True)
        assert expected.units is not None
        assert found.units is not None
        assert found.units.names == expected.units.names
        assert np.array_equal(found.units.of_example, expected.units.of_example)
        assert np.array_equal(found.x, expected.x)
        assert isinstance(found.x, np.memmap)
    # Another column is another reading, and other data needs none.
    other = read(path, Table("kind", TABLE.columns, TABLE.classes), labels=True)
    assert other.units is None
    assert read(path, TABLE).units is None


# --- one run, one declaration -----------------------------------------------------------------------------------------


def test_a_run_is_not_resumed_with_other_units(capsys: pytest.CaptureFixture[str]) -> None:
    frame = sources()
    frame["site"] = frame.vendor.str.upper()  # as many, but for one; and the same parts of none
    frame.to_csv("train.csv", index=False)
    sources(10, seed=1).to_csv("test.csv", index=False)
    path = str(project("train.csv"))
    flags = ["--method", "dpa", *words(**CONSTANTS), "--device", "cpu"]
    assert main(["train", path, "--unit", "vendor", *flags]) == 0
    assert main(["train", path, "--unit", "vendor", *flags]) == 0
    capsys.readouterr()
    for other in (["--unit", "site"], []):
        assert main(["train", path, *other, *flags]) == 2
        message = capsys.readouterr().err
        assert "run_dir" in message or "--run-dir" in message
        assert "Traceback" not in message


def test_a_certificate_of_the_command_line_is_verified_and_names_its_unit() -> None:
    sources().to_csv("train.csv", index=False)
    sources(50, seed=1).to_csv("test.csv", index=False)
    path = str(project("train.csv", 'unit = "vendor"'))
    trained(path, **CONSTANTS, num_units=45, unit_cap=5)
    assert main(["certify", "run", "--at", "0,1", "--json"]) == 0
    found = Certificate.load("run/certificate.json")
    assert found.votes.unit == Unit("vendor", sources().vendor.nunique())
    assert found.votes.size is None
    assert (found.votes.recipe or {})["unit_cap"] == 5
    assert found.threat is Threat.EDIT
    assert verify("run/certificate.json", run="run").valid
    assert max(found.radius) > 0


# --- constants --------------------------------------------------------------------------------------------------------


def test_constants_of_units_arrive_by_files_flags_and_estimators(capsys: pytest.CaptureFixture[str]) -> None:
    frame = sources()
    frame.to_csv("train.csv", index=False)
    sources(10, seed=1).to_csv("test.csv", index=False)
    path = project("train.csv", 'unit = "vendor"')
    votes = [trained(str(path), **CONSTANTS, num_units=50, unit_cap=2)]
    path.write_text(path.read_text() + "[train]\nnum_units = 50\nunit_cap = 2\n")
    votes.append(run_again(str(path), **CONSTANTS))
    fitted = CertifiedClassifier("dpa", **CONSTANTS, num_units=50, unit_cap=2, device="cpu", schema=TABLE).fit(frame)
    votes.append(fitted.votes(sources(10, seed=1)))
    for each in votes:
        assert each.size is None
        assert (each.recipe or {})["unit_cap"] == 2
        assert np.array_equal(each.counts, votes[0].counts)
    capsys.readouterr()
    assert main(["train", str(project("train.csv", 'unit = "vendor"')), "--num-train", "400", "--run-dir", "x"]) == 2
    assert "--num-train 400 counts examples" in capsys.readouterr().err
    assert main(["train", str(project("train.csv")), "--num-units", "40", "--run-dir", "x"]) == 2
    assert "--num-units is about units" in capsys.readouterr().err


def test_init_counts_vendors_where_it_speaks_of_a_radius(capsys: pytest.CaptureFixture[str]) -> None:
    sources(2000).to_csv("train.csv", index=False)
    assert main(["init", "train.csv", "--label", "kind", "--radius", "20", "-o", "plain.toml"]) == 0
    assert "is much for" not in capsys.readouterr().out
    assert main(["init", "train.csv", "--label", "kind", "--radius", "20", "--unit", "vendor", "-o", "p.toml"]) == 0
    assert "is much for 38 vendors" in capsys.readouterr().out
    assert look(Path("train.csv"), label="kind", unit="vendor").count == 48


# --- trusted examples -------------------------------------------------------------------------------------------------


def test_trusted_examples_have_units_and_stay_on_the_side_of_their_name() -> None:
    frame, trusted = sources(), sources(60, seed=8)
    trusted.vendor = np.where(np.arange(60) % 2, trusted.vendor, "ours")
    frame.to_csv("train.csv", index=False)
    trusted.to_csv("known.csv", index=False)
    sources(10, seed=1).to_csv("test.csv", index=False)
    path = project("train.csv", 'unit = "vendor"', 'trusted = "known.csv"')
    training, _ = read_project(path).examples()
    assert training.units is not None
    assert len(training.x) == 460
    assert set(training.units.names) == {*frame.vendor, "ours"}
    path = project("train.csv", 'unit = "vendor"', 'trusted = "known.csv"', test=None)
    training, test = read_project(path).examples()
    assert training.units is not None
    assert test.units is not None
    assert not set(training.units.names) & set(test.units.names)
    assert any("known" not in note and "held out" in note for note in training.notes)


def test_a_fingerprint_asks_for_the_units_that_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    sources().to_csv("train.csv", index=False)
    sources(9).drop(columns=["vendor", "kind"]).to_csv("new.csv", index=False)
    config = str(project("train.csv"))
    assert main(["fingerprint", "train.csv", "--project", config, "--unit", "vendor"]) == 0
    assert main(["fingerprint", "new.csv", "--project", config]) == 0
    assert "no training data" in " ".join(capsys.readouterr().out.split())
    misspelt = "has no column 'vendr'"
    assert misspelt in refusal(capsys, "fingerprint", "train.csv", "--project", config, "--unit", "vendr")
    config = str(project("train.csv", 'unit = "vendr"'))
    assert misspelt in refusal(capsys, "fingerprint", "train.csv", "--project", config)
    config = str(project("train.csv", 'unit = "vendor"'))
    assert main(["fingerprint", "new.csv", "--project", config]) == 0  # inputs have no units


def test_trusted_examples_without_units_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    sources().to_csv("train.csv", index=False)
    sources(60, seed=8).drop(columns="vendor").to_csv("known.csv", index=False)
    path = project("train.csv", 'unit = "vendor"', 'trusted = "known.csv"', test=None)
    assert main(["train", str(path)]) == 2
    assert "known.csv has no column 'vendor'" in capsys.readouterr().err


# --- comparisons and searches -----------------------------------------------------------------------------------------


def test_a_comparison_reports_the_methods_that_know_no_units(capsys: pytest.CaptureFixture[str]) -> None:
    sources().to_csv("train.csv", index=False)
    sources(30, seed=1).to_csv("test.csv", index=False)
    lines = ['[[methods]]\nname = "dpa"\npartitions = 9\nlearner = "logistic"', '[[methods]]\nname = "ridge"']
    lines.append('[[methods]]\nname = "label-smoothing"')
    for number, flags in enumerate((('unit = "vendor"',), ())):
        path = project("train.csv", *flags)
        path.write_text("\n".join([*path.read_text().splitlines()[1:], *lines]) + "\n")
        more = [] if flags else ["--unit", "vendor"]
        assert main(["compare", str(path), "--out", f"out{number}", "--radii", "0,2", "--json", *more]) == 2
        printed = capsys.readouterr()
        said = json.loads(printed.out)
        assert [entry["name"] for entry in said["entries" if "entries" in said else "methods"]] == ["dpa"]
        assert "ridge cannot certify vendors" in printed.err
        assert "label-smoothing cannot certify vendors" in printed.err
        assert Certificate.load(next(Path(f"out{number}").glob("certificates/*.json"))).votes.unit is not None


def test_folds_leave_vendors_whole() -> None:
    frame = sources(300)
    examples = read(frame, TABLE, labels=True)
    folds = folds_of(examples, 4, seed=1)
    by_name = dict(zip(frame.vendor, folds.tolist(), strict=True))
    assert [by_name[name] for name in frame.vendor] == folds.tolist()
    assert len(set(folds.tolist())) > 1
    other = folds_of(examples.part(np.arange(299, -1, -1)), 4, seed=1)
    assert other[::-1].tolist() == folds.tolist()


def test_a_search_counts_vendors_and_what_it_chooses_can_be_trained(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    frame, trusted = sources(), sources(600, seed=8)
    trusted.vendor = [f"known {number % 150}" for number in range(600)]
    frame.to_csv("train.csv", index=False)
    trusted.to_csv("known.csv", index=False)
    path = project("train.csv", 'unit = "vendor"', test=None)
    search = ["--trusted", "known.csv", "--trials", "1", "--methods", "dpa", "--at", "0,1", "--folds", "2"]
    assert main(["tune", str(path), *search, "--train-on-trusted", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    training, _ = read_project("project-tuned/tuned.toml").examples()
    assert training.units is not None
    assert found["options"]["size_step"] == step_of(training.units.unit.count)
    assert (found["identity"]["unit"], found["identity"]["threat"]) == ("vendor", "edit")
    assert 60 <= found["trained_on"] <= 90
    assert any("vendors" in remark for remark in found["remarks"])
    page = " ".join(Path("project-tuned/trials.html").read_text().split())
    assert f"r counts {Threat.EDIT.counts(UnitWords.of('vendor'))}." in page
    assert f"Constants are for {found['options']['size_step']:,} vendors." in page
    assert "training examples" not in page
    assert main(["train", "project-tuned/tuned.toml", "--device", "cpu"]) == 0
    path.write_text(path.read_text() + "[train]\nnum_units = 100\n")
    assert main(["tune", str(path), *search, "-o", "declared", "--json"]) == 0
    capsys.readouterr()
    assert read_project("declared/tuned.toml").options["num_units"] == 100
    assert main(["train", "declared/tuned.toml", "--device", "cpu", "--run-dir", "other"]) == 0
    assert Votes.load("other/votes.npz").size is None
    for flags, said in (
        (["--trusted", "few.csv"], "are too few for 5 folds of different vendors"),
        (["--trusted", "plain.csv"], "plain.csv has no column 'vendor'"),
    ):
        trusted[:9].to_csv("few.csv", index=False)
        trusted.drop(columns="vendor").to_csv("plain.csv", index=False)
        assert said in refusal(capsys, "tune", str(path), *flags)
    assert main(["tune", str(path), "-o", "facts"]) == 0
    assert read_project("facts/tuned.toml").options["num_units"] == 100


def named_data(name: str) -> Path:
    Path("named.toml").write_text(f'[data]\nname = "{name}"\n')
    return Path("named.toml")


# --- bad input --------------------------------------------------------------------------------------------------------


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command says that gives up without a traceback."""
    assert main(list(words)) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert said.endswith("\n")
    return said


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (('unit = "seller"',), "has no column 'seller'"),
        (('unit = "kind"',), "cannot be both label and unit"),
        (('unit = "a"',), "The unit 'a' is declared as a column, too"),
        (("unit = 3",), "the name of a unit"),
        (('unit = ""',), "the name of a unit"),
        (('units = "train.csv"',), "say what one is called"),
        (('unit = "vendor"', 'units = "train.csv"'), "maps the images of a folder to vendors"),
        (('unit = "vendor"', "units = 3"), "path in quotes"),
    ],
)
def test_a_wrong_declaration_of_a_table_is_refused(
    lines: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sources().to_csv("train.csv", index=False)
    sources(9).to_csv("test.csv", index=False)
    assert said in refusal(capsys, "train", str(project("train.csv", *lines)))


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_row_without_a_vendor_is_named(suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    frame, path = sources(), f"train{suffix}"
    frame.loc[7, "vendor"] = None
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    sources(9).to_csv("test.csv", index=False)
    row = "line 9 of train.csv" if suffix == ".csv" else "row 7 of train.parquet (from 0)"
    assert f"The vendor of {row} is missing" in refusal(capsys, "train", str(project(path, 'unit = "vendor"')))
    with pytest.raises(ConfigError, match=r"The vendor of input 7 \(from 0\) is missing"):
        CertifiedClassifier("dpa", schema=TABLE, device="cpu").fit(frame)


def test_arrays_without_units_or_with_too_few_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    x, y = np.zeros((6, 2)), np.array([0, 1, 0, 1, 0, 1])
    np.savez("none.npz", x=x, y=y)
    np.savez("few.npz", x=x, y=y, unit=["a", "b"])
    np.savez("fractions.npz", x=x, y=y, unit=np.arange(6) / 2)
    np.savez("bytes.npz", x=x, y=y, unit=np.array([b"a"] * 6))
    Path("f").mkdir()
    np.save("f/x.npy", x)
    np.save("f/y.npy", y)
    for file, said in (
        ("none.npz", "has no array 'unit'"),
        ("few.npz", "6 inputs but 2 names of vendors"),
        ("fractions.npz", "neither text nor a whole number"),
        ("f", "has no unit.npy beside it"),
    ):
        assert said in refusal(capsys, "train", "--train", file, "--unit", "vendor", "--method", "dpa")
    refusal(capsys, "train", "--train", "bytes.npz", "--unit", "vendor", "--method", "dpa")
    with pytest.raises(ConfigError, match="arrays have no room for units"):
        read((x, y), Arrays(unit="vendor"), labels=True)
    assert "digits has no units" in refusal(capsys, "train", str(named_data("digits")), "--unit", "vendor")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: lines[:-1], "has no line for"),
        (lambda lines: [*lines, "dark/nobody.png,v1"], "there is no such image in"),
        (lambda lines: [*lines, lines[1]], "names the file"),
        (lambda lines: [*lines[:3], lines[3].split(",")[0] + ",", *lines[4:]], "line 4 of sources.csv is missing"),
        (lambda lines: ["file,site", *lines[1:]], "has no column 'vendor'"),
        (lambda lines: ["path,vendor", *lines[1:]], "has no column 'file'"),
    ],
)
def test_a_wrong_map_of_images_is_refused(
    change: Callable[[list[str]], list[str]], said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_map("sources.csv", draw(here / "flat", lambda _: ""))
    lines = Path("sources.csv").read_text().splitlines()
    Path("sources.csv").write_text("\n".join(change(lines)) + "\n")
    Path("p.toml").write_text('[data]\ntrain = "flat"\nunits = "sources.csv"' + PICTURES)
    assert said in refusal(capsys, "train", "p.toml")


def test_images_that_do_not_lie_in_folders_of_vendors_are_refused(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw(here / "flat", lambda _: "")
    draw(here / "mixed", "{}/".format)
    Image.new("L", (8, 8)).save(here / "mixed" / "v1" / "stray.png")
    for folder, said in (("flat", "'bright/v0-0.png'"), ("mixed", "v1")):
        Path("p.toml").write_text(f'[data]\ntrain = "{folder}"' + PICTURES)
        message = refusal(capsys, "train", "p.toml")
        assert said in message
    (here / "empty").mkdir()
    with pytest.raises(ConfigError, match="VENDOR/CLASS/FILE"):
        read(here / "empty", Images((8, 8), 1, unit="vendor"), labels=True)
    with pytest.raises(ConfigError, match="by its name"):
        read(here / "flat", Images((8, 8), 1, unit="vendor"), labels=True, units="sources.txt")


def test_estimators_refuse_units_that_do_not_fit() -> None:
    frame = sources()
    x, y = frame[["a", "b"]], frame.kind
    for inputs, units, said in (
        (frame, frame.vendor, r"units\.rename\('month'\); else give units='vendor'"),
        (frame, Units.of(frame.vendor, "vendor"), r"Units\.of\(names, 'month'\); else give units='vendor'"),
        (x, Units.of(frame.vendor[:9], "vendor"), "400 training inputs but 9 names"),
        (frame, "seller", "no column 'seller'"),
        (x, frame.vendor[:9], "400 training inputs but 9 names"),
        (x.to_numpy(), "vendor", "X is no data frame"),
        (x, [*frame.vendor[:-1], float("nan")], "input 399"),
        (x, frame.vendor == "Acme", "neither text nor a whole number"),
    ):
        with pytest.raises(ConfigError, match=said):
            CertifiedClassifier("dpa", **CONSTANTS, device="cpu").fit(inputs, y, units=units)
    for schema in (None, Table("kind", TABLE.columns)):
        estimator = CertifiedClassifier("dpa", **CONSTANTS, device="cpu", schema=schema)
        with pytest.raises(ConfigError, match="'kind' cannot be both label and unit"):
            estimator.fit(frame, "kind" if schema is None else None, units="kind")


def test_an_estimator_takes_units_as_they_are() -> None:
    frame = sources()
    x, estimator = frame[["a", "b"]], CertifiedClassifier("dpa", **CONSTANTS, device="cpu")
    found = estimator.fit(x, frame.kind, units=Units.of(frame.vendor, "site")).votes(x[:9])
    assert found.unit == Unit("site", frame.vendor.nunique())
    assert np.array_equal(found.counts, estimator.fit(x, frame.kind, units=frame.vendor).votes(x[:9]).counts)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_estimator_forgets_units_when_it_is_fitted_without() -> None:
    frame = sources()
    x = frame[["a", "b"]]
    fitted = CertifiedClassifier("dpa", **CONSTANTS, device="cpu").fit(x, frame.kind, units=frame.vendor)
    assert fitted.certify(x[:3]).votes.unit == Unit("vendor", frame.vendor.nunique())
    assert fitted.fit(x, frame.kind).certify(x[:3]).votes.unit is None


def test_a_run_predicts_for_units_that_it_has_never_seen() -> None:
    examples = read(sources(), TABLE, labels=True)
    defence("dpa", **CONSTANTS).train(examples, examples.x[:3], run_dir="run", keep_models=True, device="cpu")
    votes = predict("run", read(sources(9, seed=4), TABLE, classes=examples.class_names), device="cpu")
    assert votes.unit == Unit("vendor", sources().vendor.nunique())


# --- stretches of time ------------------------------------------------------------------------------------------------

DATED = Table("stars", (Number("length", 0, 10), Date("sent", 2020, 2025)), classes=("few", "many"))
LINES = ["2023-01-30,1,few", "2 Feb 2023,2,many", "2023-12-31 23:50,3,few", "2023-02-20,4,many", "2024-01-01,5,few"]


@pytest.mark.parametrize(
    ("unit", "names"),
    [
        ("day", ("2023-01-30", "2023-02-02", "2023-12-31", "2023-02-20", "2024-01-01")),
        ("week", ("2023-W05", "2023-W52", "2023-W08", "2024-W01")),
        ("month", ("2023-01", "2023-02", "2023-12", "2024-01")),
        ("quarter", ("2023-Q1", "2023-Q4", "2024-Q1")),
        ("year", ("2023", "2024")),
    ],
)
def test_a_declared_date_names_the_day_week_month_quarter_or_year(
    tmp_path: Path, unit: str, names: tuple[str, ...]
) -> None:
    path = tmp_path / "dated.csv"
    path.write_text("\n".join(["sent,length,stars", *LINES]) + "\n")
    declared = replace(DATED, unit=unit)
    units = read(path, declared, labels=True).units
    assert units is not None
    assert (units.name, units.names) == (unit, names)
    of_frame = read(pd.read_csv(path), declared, labels=True).units
    assert of_frame is not None
    assert of_frame.fingerprint() == units.fingerprint()
    assert propose(path, label="stars", unit=unit).unit == unit  # pyright: ignore[reportAttributeAccessIssue]
    for schema, named in ((declared, None), (DATED, unit)):
        estimator = CertifiedClassifier("dpa", partitions=2, learner="logistic", device="cpu", schema=schema)
        fitted = estimator.fit(pd.read_csv(path), units=named)
        assert fitted.votes(pd.read_csv(path)[:2]).training.units == units.fingerprint()  # pyright: ignore[reportOptionalMemberAccess]


def test_a_column_of_that_name_goes_first_and_a_date_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "dated.csv"
    path.write_text("sent,month,length,stars\n2023-01-30,may,1,few\n2023-02-01,june,2,many\n")
    units = read(path, replace(DATED, unit="month"), labels=True).units
    assert units is not None
    assert units.names == ("may", "june")
    with pytest.raises(ConfigError, match="no column 'year', and a year needs exactly one declared date; none is"):
        read(path, replace(DATED, columns=DATED.columns[:1], unit="year"), labels=True)
    path.write_text("sent,length,stars\n2023-01-30,1,few\n,2,many\n")
    with pytest.raises(ConfigError, match=r"The month of line 3 of .* is missing, as its date 'sent' is"):
        read(path, replace(DATED, unit="month"), labels=True)
    path.write_text("sent,received,length,stars\n2023-01-30,2023-02-01,1,few\n2023-02-01,2023-02-02,2,many\n")
    both = replace(DATED, columns=(*DATED.columns, Date("received", 2020, 2025)), unit="month")
    with pytest.raises(ConfigError, match="needs exactly one declared date; sent, received are declared"):
        read(path, both, labels=True)


def test_init_says_of_which_date_the_units_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "dated.csv"
    path.write_text("\n".join(["sent,length,stars", *LINES]) + "\n")
    assert main(["init", str(path), "--label", "stars", "--unit", "month", "-o", "dated.toml"]) == 0
    said = "The month of 'sent' is the unit."
    assert said in " ".join(capsys.readouterr().out.split())
    assert f"# {said}" in Path("dated.toml").read_text()
    training, _ = read_project("dated.toml").examples()
    assert training.units is not None
    assert training.units.name == "month"
