"""`mithridate init`: a project file that `train` takes, for any data, and one sentence where there is none."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_cli import run
from test_train_cli import everything_in, refused

from mithridate.data import Arrays, Images, Table, declaration_from_dict
from mithridate.data.columns import Category, Number
from mithridate.defences import defence
from mithridate.features import HashedWords
from mithridate.projects import read_project
from mithridate.training.order import compose

FLOWERS = "petal,soil,kind\n" + "".join(
    f"{number / 4},{'clay' if number % 2 else 'sand'},{'rose' if number % 3 else 'daisy'}\n" for number in range(40)
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "flowers.csv").write_text(FLOWERS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- what it writes -------------------------------------------------------------------------------------------------


def test_a_table(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    outcome = run(capsys, "init", "flowers.csv", "--label", "kind", "-o", "my flowers.toml")
    assert outcome.code == 0, outcome.err
    assert outcome.err == ""
    assert "Note: " in outcome.out
    assert outcome.out.endswith("mithridate train 'my flowers.toml'\n")
    project = read_project("my flowers.toml")
    assert project.train == Path("flowers.csv")
    assert (project.test, project.holdout, project.run_dir) == (None, 0.2, Path("runs/my flowers"))
    assert project.declaration == Table(
        "kind", (Number("petal", 0.0, 10.0, scale="log"), Category("soil")), ("daisy", "rose"), proposed=True
    )
    training, test = project.examples()
    assert len(training.x) + len(test.x) == 40
    assert any("proposed from the training data" in sentence for sentence in training.assumptions)


def test_text_gets_the_documented_features(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    lines = [f'"Line {number} of this text is about {word}","{word}"' for number in range(20) for word in "ab"]
    Path("lines.csv").write_text("\n".join(["text,kind", *lines]))
    assert run(capsys, "init", "lines.csv", "--label", "kind", "-o", "lines.toml").code == 0
    training, test = read_project("lines.toml").examples()
    assert training.kind == "text"
    for method in ("fdp", "dpa", "nearest-neighbours"):
        assert compose(defence(method), training, test).choice.defence.encoder == HashedWords()


def test_json(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    outcome = run(capsys, "init", "flowers.csv", "--label", "kind", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    content = json.loads(outcome.out, parse_constant=pytest.fail)
    assert content["project"] == "mithridate.toml"
    assert declaration_from_dict(content["declaration"]) == read_project("mithridate.toml").declaration
    assert any("proposed" in sentence for sentence in content["assumptions"])


def test_a_test_file_is_named(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    (here / "sub").mkdir()
    (here / "sub" / "more.csv").write_text(FLOWERS)
    assert run(capsys, "init", "flowers.csv", "--label", "kind", "--test", "sub/more.csv").code == 0
    project = read_project("mithridate.toml")
    assert project.test == Path("sub/more.csv")
    assert len(project.examples()[1].x) == 40


def test_arrays_and_images(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    np.savez("a.npz", x=np.zeros((4, 2)), y=np.array([0, 1, 0, 1]))
    assert run(capsys, "init", "a.npz", "-o", "a.toml").code == 0
    assert read_project("a.toml").declaration == Arrays()
    image = pytest.importorskip("PIL.Image")
    for kind in ("cat", "dog"):
        (here / "pets" / kind).mkdir(parents=True)
        image.new("RGB", (10, 12)).save(here / "pets" / kind / "1.png")
    assert run(capsys, "init", "pets", "-o", "pets.toml").code == 0
    assert read_project("pets.toml").declaration == Images((12, 8), 3, ("cat", "dog"), proposed=True)


def test_train_takes_what_init_wrote(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    assert run(capsys, "init", "flowers.csv", "--label", "kind", "-o", "flowers.toml").code == 0
    outcome = run(capsys, "train", "flowers.toml", "--instances", "8", "--device", "cpu", "--json")
    assert outcome.code == 0, outcome.err
    content = json.loads(outcome.out)
    assert content["run_dir"] == "runs/flowers"
    assert content["recipe"]["source"]["class_names"] == ["daisy", "rose"]
    assert any("proposed from the training data" in sentence for sentence in content["assumptions"])


# --- nothing is lost ------------------------------------------------------------------------------------------------


def test_what_is_there_is_overwritten_only_by_force(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    Path("mithridate.toml").write_text("mine")
    assert "--force" in refused(run(capsys, "init", "flowers.csv", "--label", "kind"))
    assert Path("mithridate.toml").read_text() == "mine"
    assert run(capsys, "init", "flowers.csv", "--label", "kind", "--force").code == 0
    assert read_project("mithridate.toml").train == Path("flowers.csv")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["flowers.csv"], "petal, soil, kind"),
        (["flowers.csv", "--label", "kid"], "did you mean 'kind'"),
        (["flowers.csv", "--label", "petal"], "numbers of another kind cannot be certified"),
        (["none.csv", "--label", "kind"], "none.csv"),
        (["empty.csv", "--label", "kind"], "empty.csv"),
        (["header.csv", "--label", "kind"], "no rows"),
        (["one.csv", "--label", "kind"], "one class"),
        (["only.csv", "--label", "kind"], "nothing to learn"),
        (
            ["numbered.csv", "--label", "name"],
            "40 different labels in 40 rows; probably this is not",
        ),
        (["numbered.csv", "--label", "number"], "different labels in 40 rows"),
        (["garbage.npz"], "not a readable .npz"),
        (["garbage.parquet", "--label", "kind"], "garbage.parquet"),
        (["garbage"], "by its name"),
        (["folder"], "folder"),
        (["broken"], "1.png"),
        (["flowers.csv", "--label", "kind", "--test", "none.csv"], "none.csv"),
        (["flowers.csv", "--label", "kind", "--test", "header.csv"], "header.csv"),
        (["flowers.csv", "--label", "kind", "-o", "none/x.toml"], "no folder"),
        (["flowers.csv", "--label", "kind", "-o", "folder"], "it is a folder"),
        (["flowers.csv", "--label", "kind", "-o", "flowers.csv/x.toml"], "no folder"),
    ],
)
def test_data_for_which_nothing_can_be_proposed(
    capsys: pytest.CaptureFixture[str], here: Path, arguments: list[str], says: str
) -> None:
    Path("empty.csv").touch()
    Path("header.csv").write_text("petal,kind\n")
    Path("one.csv").write_text("petal,kind\n1,rose\n2,rose\n")
    Path("only.csv").write_text("kind,other\nrose,\ndaisy,\n")
    Path("numbered.csv").write_text("name,number,kind\n" + "".join(f"A{i},{i},{i % 2}\n" for i in range(40)))
    for name in ("garbage.npz", "garbage.parquet", "garbage"):
        Path(name).write_bytes(bytes(range(256)))
    Path("folder").mkdir()
    if "broken" in arguments:
        pytest.importorskip("PIL")
        for kind in ("a", "b"):
            Path("broken", kind).mkdir(parents=True)
            Path("broken", kind, "1.png").write_bytes(b"\x89PNG and no more")
    if "garbage.parquet" in arguments:
        pytest.importorskip("pyarrow")
    before = everything_in(here)
    assert says in refused(run(capsys, "init", *arguments))
    assert run(capsys, "init", *arguments).out == ""
    assert everything_in(here) == before


def test_a_folder_without_permission(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # the superuser may write anywhere
    assert "read-only" in refused(run(capsys, "init", "flowers.csv", "--label", "kind"))
    assert not Path("mithridate.toml").exists()


LONG = "a" * 300


@pytest.mark.parametrize(
    "arguments",
    [
        ["flowers.csv", "--label", "kind", "-o", f"{LONG}.toml"],
        ["flowers.csv", "--label", "kind", "--test", f"{LONG}.csv"],
        [f"{LONG}.csv"],
    ],
)
def test_names_that_no_file_can_have(capsys: pytest.CaptureFixture[str], here: Path, arguments: list[str]) -> None:
    assert "too long" in refused(run(capsys, "init", *arguments))


def test_a_name_that_is_not_unicode(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    name = os.fsdecode(b"odd\xff.csv")
    try:
        Path(name).write_text(FLOWERS)
    except OSError:
        pytest.skip("this file system has no such names")
    assert "Unicode" in refused(run(capsys, "init", name, "--label", "kind"))
    assert not Path("mithridate.toml").exists()


# --- any names ------------------------------------------------------------------------------------------------------


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    name=st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="/"), min_size=1, max_size=8),
    column=st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=8).filter(str.strip),
)
def test_any_name_of_a_file_and_a_column(
    capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory, name: str, column: str
) -> None:
    folder = tmp_path_factory.mktemp("names")
    quoted = column.replace('"', '""')
    data = folder / f"{name}.csv"
    data.write_text(f'"{quoted}","the label"\n1,a\n2,b\n3,a\n', encoding="utf-8")
    made: Any = folder / f"{name}.toml"
    outcome = run(capsys, "init", data, "--label", "the label", "-o", made)
    assert outcome.code in (0, 2), outcome
    if outcome.code:
        refused(outcome)
        return
    project = read_project(made)
    assert project.train == data
    assert isinstance(project.declaration, Table)
    assert [declared.name for declared in project.declaration.columns] == [column]
