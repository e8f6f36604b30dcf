"""Project files: what they say, what is refused, and that what `init` writes is what `train` reads."""

import contextlib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mithridate import ArtifactError, ConfigError, MithridateError, TrainConfig
from mithridate.core.conditions import Size, conditions_of
from mithridate.data import Arrays, Examples, Images, Table
from mithridate.data.columns import Category, Number, Text
from mithridate.data.declarations import Declaration
from mithridate.data.proposing import Proposal
from mithridate.defences.private import PrivateDefence
from mithridate.projects import Project, known_options, project_toml, read_project
from mithridate.training.order import Order, compose

COMPLETE = {"noise_multiplier": 2.0, "sample_rate": 0.2, "steps": 6, "max_grad_norm": 1.0, "learning_rate": 0.5}
TABLE = Table("kind", (Number("petal", 0.0, 15.0), Category("soil"), Text("notes")), ("daisy", "rose"))


def written(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def examples(count: int = 60, width: int = 5, **more: Any) -> Examples:
    x = np.arange(count * width, dtype=np.float32).reshape(count, width)
    return Examples(x, np.arange(count, dtype=np.int64) % 3, **more)


def ordered(options: Mapping[str, Any], training: Examples | None = None) -> Order:
    """The order that a table [train] stands for."""
    training = examples() if training is None else training
    return compose(Project(options=options).defence(), training, Examples(training.x[:1], None))


# --- what a file says -----------------------------------------------------------------------------------------------


def test_a_whole_project(tmp_path: Path) -> None:
    text = """
    run_dir = "somewhere"
    assumptions = ["The rate was tuned here.", "So was the clip."]
    [data]
    train = "a.csv"
    test = "sub/b.csv"
    holdout = 0.25
    kind = "table"
    label = "kind"
    columns = [{kind = "number", name = "petal", low = 0, high = 15}]
    [train]
    instances = 7
    device = "cpu"
    """
    assert read_project(written(tmp_path, text)) == Project(
        train=tmp_path / "a.csv",
        test=tmp_path / "sub" / "b.csv",
        holdout=0.25,
        declaration=Table("kind", (Number("petal", 0.0, 15.0),)),
        run_dir=Path("somewhere"),
        options={"instances": 7, "device": "cpu"},
        assumptions=("The rate was tuned here.", "So was the clip."),
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "[data]\n[train]\n"])
def test_everything_may_be_left_out(tmp_path: Path, text: str) -> None:
    assert read_project(written(tmp_path, text)) == Project(run_dir=Path("runs/mine"))


def test_absolute_paths_stay_absolute(tmp_path: Path) -> None:
    data = tmp_path / "far" / "a.npz"
    assert read_project(written(tmp_path, f"[data]\ntrain = '{data}'\n")).train == data


def test_every_flag_of_train_may_stand_in_the_file(tmp_path: Path) -> None:
    from mithridate.cli._shared import new_parser

    arguments = vars(new_parser().parse_args(["train"]))
    no_options = {"project", "train", "test", "data_dir", "run_dir", "root_seed", "json", "run", "command"}
    no_options |= {"shards", "prepare"}  # of one process, not of the project
    no_options |= {"unit", "units"}  # of the data
    assert arguments.keys() - no_options == set(known_options())
    texts = {
        "method",
        "calibrate",
        "recipe",
        "model",
        "features",
        "device",
        "precision",
        "optimizer",
        "schedule",
        "backend",
        "address",
    }
    flags = {"private", "keep_models", "average_iterates", "mirrored", "moving_inputs"}
    for name in known_options():
        text, value = ("'x'", "x") if name in texts else ("true", True) if name in flags else ("1", 1)
        value = str(tmp_path / "x") if name == "calibrate" else value  # beside the file
        assert read_project(written(tmp_path, f"[train]\n{name} = {text}\n")).options == {name: value}


def test_without_training_data_there_is_nothing_to_read() -> None:
    with pytest.raises(ConfigError, match="--train"):
        Project().examples()


def test_examples_are_read_as_declared_with_the_classes_of_the_training_data(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("petal,kind\n1,rose\n2,daisy\n3,rose\n")
    (tmp_path / "b.csv").write_text("petal,kind\n4,rose\n")
    declaration = Table("kind", (Number("petal", 0.0, 15.0),))
    training, test = Project(tmp_path / "a.csv", tmp_path / "b.csv", declaration=declaration).examples()
    assert training.y is not None
    assert test.y is not None
    assert training.class_names == test.class_names == ("daisy", "rose")
    assert (training.y.tolist(), test.y.tolist()) == ([1, 0, 1], [1])


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rundir = 'x'", "'rundir' in {path}; did you mean 'run_dir'?"),
        ("[dat]\n", "'dat' in {path}; did you mean 'data'?"),
        ("qqq = 1", "expected one of run_dir, assumptions, tuned, data, train"),
        ("[train]\ninstance = 5", "'instance' in [train] of {path}; did you mean 'instances'?"),
        ("[train]\nnoise-multiplier = 5", "did you mean 'noise_multiplier'?"),
        ("[train]\nroot_seed = 'a'", "'root_seed'"),
        ("[train]\naverage_iterates = 'false'", "Expected average_iterates in [train] of {path} to be true or false"),
        ("[train]\nkeep_models = 1", "Expected keep_models in [train] of {path} to be true or false"),
        ("[train]\nmodel = 3", "Expected model in [train] of {path} to be a name in quotes"),
        ("[data]\nkind = 'table'\ncolums = []", "did you mean 'columns'?"),
        ("[data]\nlabel = 'a'", "Expected kind in [data]"),
        ("[data]\nkind = 'tables'", "table, images, arrays, got 'tables'"),
        ("data = 3", "Expected [data] in {path} to be a table, got 3"),
        ("[[data]]\nkind = 'table'", "to be a table"),
        ("train = 'a.csv'", "Expected [train] in {path} to be a table"),
        ("run_dir = 3", "Expected run_dir in {path} to be a path in quotes, got 3"),
        ("assumptions = 'One.'", "Expected assumptions in {path} as a list of sentences"),
        ("assumptions = ['One.', 2]", "got ['One.', 2]"),
        ("assumptions = ['']", "as a list of sentences"),
        ("assumptions = [0x1%s]" % ("0" * 5000), "as a list of sentences"),
        ('assumptions = ["\\u001b[2J"]', "as a list of sentences"),
        ("[assumptions]\none = 'One.'", "as a list of sentences"),
        ("[data]\ntrain = ['a']", "Expected train in {path} to be a path in quotes"),
        ("[data]\ntest = 1979-05-27", "Expected test in {path} to be a path in quotes"),
        ("[data]\nholdout = 0", "Expected holdout in (0, 1)"),
        ("[data]\nholdout = 1", "Expected holdout in (0, 1)"),
        ("[data]\nholdout = nan", "Expected holdout in (0, 1)"),
        ("[data]\nholdout = true", "Expected holdout in (0, 1)"),
        ("[data]\nholdout = 'some'", "Expected holdout in (0, 1)"),
    ],
)
def test_what_nobody_asks_for_and_what_is_of_another_kind(tmp_path: Path, text: str, says: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_project(path)
    assert says.replace("{path}", str(path)) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data", [b"\xff\xfe", b"x = ", b"[data", b"x = 1\nx = 2", b"\x00", b"PK\x03\x04", b"x = " + b"[" * 100_000]
)
def test_what_is_no_toml(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match="not a project file"):
        read_project(path)


def test_paths_that_lead_to_no_project(tmp_path: Path) -> None:
    for path, says in [
        (tmp_path / "none.toml", "there is no file"),
        (tmp_path, "is not a file"),
        (tmp_path / ("a" * 300), "File name too long"),
        (written(tmp_path, "", "file") / "below.toml", "Not a directory"),
    ]:
        with pytest.raises(ArtifactError, match=says):
            read_project(path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.toml"
    with path.open("wb") as file:
        file.truncate(1 << 30)  # a hole, which takes no room
    with pytest.raises(ArtifactError, match="too large"):
        read_project(path)


@settings(max_examples=200)
@given(data=st.binary(max_size=60) | st.text(alphabet="[]{}=.,'\"#\n datarunholdikse_0123456789", max_size=80))
def test_any_bytes_are_a_project_or_one_clear_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes | str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    with contextlib.suppress(MithridateError):
        assert read_project(path).run_dir is not None


# --- options of any kind --------------------------------------------------------------------------------------------

VALUES = st.sampled_from(
    [
        "''", "'auto'", "'cpu'", "'no'", "'1'", "0", "1", "-1", "3", "0.5", "-0.5", "1e3", "nan", "inf", "-inf",
        "true", "false", "1979-05-27", "07:32:00", "[]", "[1]", "[0.5, 0.5]", "['a', 'b']", "[[1], [2]]", "{}",
        "{a = 1}",
    ]
)  # fmt: skip
OPTIONS = st.sampled_from(
    [
        "instances", "noise_multiplier", "sample_rate", "steps", "max_grad_norm", "learning_rate", "optimizer",
        "momentum", "weight_decay", "betas", "schedule", "average_iterates", "keep", "num_train", "classes",
        "divisor", "pixel_mean", "pixel_std", "score_bins", "model", "features", "seconds", "in_flight",
        "precision", "keep_models",
    ]
)  # fmt: skip


@settings(max_examples=200)
@given(values=st.dictionaries(OPTIONS, VALUES, max_size=4), complete=st.booleans())
def test_options_of_any_kind_make_a_recipe_or_one_clear_error(
    tmp_path_factory: pytest.TempPathFactory, values: Mapping[str, str], complete: bool
) -> None:
    # Numbers of instances and steps that a plan takes seconds to be made for are left to tests of the plan.
    values = {
        "instances": "8",
        **({name: str(value) for name, value in COMPLETE.items()} if complete else {}),
        **values,
    }
    path = tmp_path_factory.getbasetemp() / "options.toml"
    path.write_text("[train]\n" + "\n".join(f"{name} = {value}" for name, value in values.items()))
    try:
        options = read_project(path).options
        found = ordered(options).defence
    except MithridateError:
        return
    assert isinstance(found, PrivateDefence)  # which alone has noise and instances
    assert TrainConfig.from_dict(found.config.to_dict()) == found.config
    for name in COMPLETE:
        if name in options:
            assert getattr(found.config, name) == options[name]


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(f"{name} = {value}", id=name)
        for name, value in {
            **dict.fromkeys(("instances", "steps", "noise_multiplier", "learning_rate", "divisor"), f"1{'0' * 400}"),
            **dict.fromkeys(("sample_rate", "keep", "momentum", "seconds", "num_train"), f"1{'0' * 400}"),
            "classes": f"1{'0' * 15}",
        }.items()
    ],
)
def test_options_beyond_all_measure_are_refused(tmp_path: Path, line: str) -> None:
    path = written(tmp_path, f"[train]\n{line}\n")
    with pytest.raises(ConfigError, match=line.split()[0]):
        ordered({"instances": 8, **read_project(path).options})


def test_a_share_beyond_all_measure_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holdout"):
        read_project(written(tmp_path, f"[data]\nholdout = 1{'0' * 400}\n"))


# --- orders ---------------------------------------------------------------------------------------------------------


def test_without_a_method_the_examples_vote_and_the_reason_is_said() -> None:
    order = ordered({})
    assert order.defence.name == "nearest-neighbours"
    assert order.choice.words.startswith("Method: nearest-neighbours, because ")
    assert order.choice.details["method"] == "nearest-neighbours"


@pytest.mark.parametrize("options", [{}, {"method": "auto"}, {"method": "nearest-neighbours"}, {"method": "fdp"}])
def test_what_is_auto_is_as_if_it_were_left_out(options: dict[str, Any]) -> None:
    assert ordered({**options, "model": "auto", "features": "auto"}).defence == ordered(options).defence


@pytest.mark.parametrize(
    "options", [{"instances": 8}, {"noise_multiplier": 2.0}, {"seconds": 9}, {"private": True}, {"model": "mlp"}]
)
def test_constants_of_private_training_or_a_network_ask_for_it(options: dict[str, Any]) -> None:
    assert ordered(options).defence.name == "fdp"
    assert ordered({"method": "auto", **options}).defence == ordered({"method": "fdp", **options}).defence


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "fpd"}, "did you mean 'fdp'"),
        ({"method": "dpa", "instances": 3}, "The method dpa has no option 'instances'"),
        ({"method": "dpa", "private": True}, "models of dpa are not private"),
        ({"partitions": 3}, "partitions belongs to dpa"),
        ({"instances": 3, "neighbours": 4}, "No single method has all"),
        ({"radius": 0}, "radius"),
    ],
)
def test_what_does_not_go_together_is_refused_before_data_is_read(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Project(options=options).defence()


def test_a_complete_recipe_is_taken_as_it_is() -> None:
    order = ordered({**COMPLETE, "instances": 9, "model": "linear", "num_train": 60, "classes": 3})
    assert order.defence.config == TrainConfig(9, 2.0, 0.2, 6, 1.0, 0.5, num_train=60, classes=3)
    assert (order.defence.model, order.defence.encoder) == ("linear", None)


@pytest.mark.parametrize("name", sorted(COMPLETE))
def test_what_is_given_is_kept_and_the_rest_is_chosen(name: str) -> None:
    config = ordered({name: COMPLETE[name], "instances": 100}).defence.config
    assert getattr(config, name) == COMPLETE[name]
    chosen = ordered({"instances": 100}).defence.config
    assert all(getattr(chosen, other) is not None for other in COMPLETE)


def test_none_is_not_given() -> None:
    one = ordered({"instances": 100, "steps": None, "model": None, "keep": None})
    assert one.choice == ordered({"instances": 100}).choice


@pytest.mark.parametrize("options", [{}, {"instances": 100}, {"method": "dpa"}])
def test_a_choice_depends_on_sizes_and_not_on_values(options: dict[str, Any]) -> None:
    one = examples()
    other = Examples(one.x[::-1] * 7 - 3, (one.y + 1) % 3 if one.y is not None else None)
    assert ordered(options, one).choice == ordered(options, other).choice


@pytest.mark.parametrize("method", ["fdp", "dpa", "nearest-neighbours"])
def test_named_classes_are_declared_and_flags_win(method: str) -> None:
    named = examples(class_names=("a", "b", "c", "d"))
    assert ordered({"method": method}, named).defence.classes == 4
    assert ordered({"method": method, "classes": 6}, named).defence.classes == 6
    assert ordered({"method": method}).defence.classes == 3
    read_off = [conditions_of(ordered({"method": method}, each).statements) for each in (named, examples())]
    assert [[each.id for each in found if each.id == "class-list"] for found in read_off] == [[], ["class-list"]]


@pytest.mark.parametrize("number", [34, 60, 66])
def test_what_follows_the_number_of_examples_follows_its_step(number: int) -> None:
    order = ordered({"method": "fdp", "instances": 100}, examples(number))
    assert order.choice == ordered({"method": "fdp", "instances": 100}, examples(34)).choice
    assert order.size == Size(number, 34, 67)
    assert ordered({"method": "fdp", "instances": 100, "num_train": number}, examples(number)).size is None


# --- what init writes -----------------------------------------------------------------------------------------------

NAMES = st.text(st.characters(blacklist_categories=("Cs",)), min_size=1, max_size=12).filter(str.strip)
# What a file may be called; names that are not Unicode come below.
FILE_NAMES = st.text(
    st.characters(blacklist_categories=("Cs",), blacklist_characters="/\0"), min_size=1, max_size=12
).filter(lambda name: name not in (".", ".."))


@st.composite
def declarations(draw: st.DrawFn) -> Declaration:
    classes = draw(st.none() | st.just(("a", "<script>")) | st.just(('"', "#", "é")))
    kind = draw(st.sampled_from(["table", "images", "arrays"]))
    if kind == "arrays":
        return Arrays(classes, channels_last=draw(st.booleans()), proposed=draw(st.booleans()))
    if kind == "images":
        return Images(
            (draw(st.integers(1, 99)), 32), draw(st.sampled_from([1, 3])), classes, proposed=draw(st.booleans())
        )
    label, *names = draw(st.lists(NAMES, min_size=2, max_size=4, unique=True))
    makers = st.sampled_from([lambda name: Number(name, -1.5, 1e300), Category, Text])
    return Table(label, tuple(draw(makers)(name) for name in names), classes, proposed=draw(st.booleans()))


@settings(max_examples=150)
@given(
    declaration=declarations(),
    project=FILE_NAMES,
    train=st.lists(FILE_NAMES, min_size=1, max_size=2),
    test=st.none() | FILE_NAMES,
)
@example(declaration=TABLE, project="my project", train=["it's here", 'say "hello".csv'], test="\\n.csv")
def test_what_is_written_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    declaration: Declaration,
    project: str,
    train: list[str],
    test: str | None,
) -> None:
    folder = tmp_path_factory.getbasetemp().resolve()
    path, data = folder / project, folder.joinpath(*train)
    text = project_toml(path, data, None if test is None else folder / test, Proposal(declaration))
    content = tomllib.loads(text)
    assert content["data"]["train"] == "/".join(train)
    place = folder / "written.toml"
    place.write_bytes(text.encode())
    found = read_project(place)
    assert (found.train, found.declaration) == (data, declaration)
    assert found.test == (None if test is None else folder / test)
    assert found.holdout == 0.2
    assert found.run_dir == Path(f"runs/{path.stem}")
    assert found.options == {}


def test_paths_are_relative_to_the_folder_of_the_project(tmp_path: Path) -> None:
    """Also through links: what is written is found again, from wherever the project is read."""
    (tmp_path / "far" / "projects").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a-v3.csv").write_text("a")
    (tmp_path / "data" / "a.csv").symlink_to("a-v3.csv")
    (tmp_path / "near").symlink_to(tmp_path / "far" / "projects")
    for folder, up in (("data", "a.csv"), ("far/projects", "../../data/a.csv"), ("near", "../../data/a.csv")):
        path = tmp_path / folder / "p.toml"
        path.write_text(project_toml(path, tmp_path / "data" / "a.csv", None, Proposal(TABLE)))
        assert tomllib.loads(path.read_text())["data"]["train"] == up
        found = read_project(path).train
        assert found is not None
        assert found.read_text() == "a"


def test_assumptions_may_be_broken_into_lines_and_are_one_each(tmp_path: Path) -> None:
    text = 'assumptions = ["""\nThe rate was\n  tuned here.\n""", "The rate was tuned here."]'
    assert read_project(written(tmp_path, text)).assumptions == ("The rate was tuned here.",)


def test_what_is_commented_out_can_be_commented_in(tmp_path: Path) -> None:
    text = project_toml(tmp_path / "p.toml", tmp_path / "a.csv", None, Proposal(TABLE))
    head, tail = text.split("[train]")
    (said,) = [line for line in head.splitlines() if "assumptions = " in line]
    head = head.replace(said, said.removeprefix("# "))
    assert len(read_project(written(tmp_path, head)).assumptions) == 1
    lines = [line.removeprefix("# ") if " = " in line else line for line in tail.splitlines()]
    options = read_project(written(tmp_path, head + "[train]" + "\n".join(lines))).options
    assert options.keys() == {
        "method", "radius", "private", "num_train", "instances", "noise_multiplier", "model",
    }  # fmt: skip
    ordered({**options, "instances": 100})


def test_a_name_that_is_not_unicode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Unicode"):
        project_toml(tmp_path / "p.toml", tmp_path / "a\udcff.csv", None, Proposal(TABLE))


def test_a_well_known_data_set_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "digits.toml").write_text('[data]\nname = "digits"\n\n[train]\ninstances = 3\n', encoding="utf-8")
    project = read_project(tmp_path / "digits.toml")
    training, test = project.examples()
    assert (project.name, project.run_dir) == ("digits", Path("runs/digits"))
    assert len(test.x) == 400
    assert training.class_names == tuple("0123456789")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('name = "nobody"', "one of digits, mnist"),
        ('name = "digits"\ntrain = "x.csv"', "beside name"),
        ('name = "digits"\ndata_dir = 3', "path in quotes"),
    ],
)
def test_a_data_set_that_is_named_wrongly_is_refused(tmp_path: Path, lines: str, message: str) -> None:
    (tmp_path / "p.toml").write_text(f"[data]\n{lines}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        read_project(tmp_path / "p.toml")
