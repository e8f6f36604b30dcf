"""Named recipes: their constants, how they are asked for, and what certificates say about how they were chosen."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cli import run

from mithridate import Certificate, ConfigError, TrainConfig, Votes, certify, projects
from mithridate.core.conditions import Size, classes_read_off
from mithridate.data import Examples
from mithridate.data.named import NAMES as DATA_NAMES
from mithridate.defences.private import PrivateDefence
from mithridate.features import OrientedGradients, UnitNorm, from_dict
from mithridate.projects import Project, read_project
from mithridate.recipes import presets
from mithridate.recipes.presets import Preset, preset
from mithridate.training.order import Order, compose

ROOT = Path(__file__).parents[1]
STUDIES = ROOT / "experiments" / "beyond" / "studies"
SEED = bytes(range(32))
SMALL: dict[str, Any] = {"instances": 6, "steps": 2}
CONSTANTS = ("noise_multiplier", "sample_rate", "steps", "max_grad_norm", "learning_rate", "average_iterates")
named = pytest.mark.parametrize("name", presets.NAMES)


def images(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two classes: bars that stand, bars that lie."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 2
    x = rng.integers(0, 40, (count, 1, 28, 28), dtype=np.uint8)
    for image, label in zip(x[:, 0], y, strict=True):
        place = rng.integers(8, 18)
        (image if label else image.T)[place : place + 3] = 255
    return x, y


TRAIN, TEST = images(120, 0), images(30, 1)


@pytest.fixture
def fake_mnist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Few made-up images under the names of the real data sets; the list says what was asked for."""
    asked: list[str] = []

    def load(name: str, **_: Any) -> tuple[Examples, Examples]:
        asked.append(name)
        train, test = (Examples(*part, ("lying", "standing")) for part in (TRAIN, TEST))
        return train, test

    monkeypatch.setattr(projects, "load_named", load)
    monkeypatch.chdir(tmp_path)
    return asked


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    np.savez(tmp_path / "train.npz", x=TRAIN[0], y=TRAIN[1])
    np.savez(tmp_path / "test.npz", x=TEST[0], y=TEST[1])
    return ["--train", str(tmp_path / "train.npz"), "--test", str(tmp_path / "test.npz")]


# --- the table ------------------------------------------------------------------------------------------------------


@named
def test_a_preset_knows_its_name_its_data_and_constants_that_can_be_trained(name: str) -> None:
    found = preset(name)
    assert (found.name, found.data in DATA_NAMES) == (name, True)
    assert name == f"{found.data}-strong"
    assert found.config.num_train is not None
    assert found.config_for(found.config.num_train) == found.config
    assert from_dict(found.features.to_dict()) == found.features
    assert found.description.endswith(".")


@named
def test_the_constants_are_those_of_a_trial_of_the_search(name: str) -> None:
    found = preset(name)
    path = STUDIES / f"{found.data}.json"
    if not path.exists():
        pytest.skip("the studies lie beside the source and not in an installation")
    trials = json.loads(path.read_text())["best"]
    ours = (found.model, found.features.to_dict(), *(getattr(found.config, constant) for constant in CONSTANTS))
    theirs = [(one["model"], one["features"], *(one["config"][constant] for constant in CONSTANTS)) for one in trials]
    assert ours in theirs


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("mnist-strnog", "did you mean 'mnist-strong'"),
        ("zebra", "expected one of mnist-strong"),
        (7, "expected one of"),
    ],
)
def test_a_name_that_nobody_knows_gets_a_suggestion(name: Any, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy):
        preset(name)


@named
@pytest.mark.parametrize("num_train", [2_000, 30_000, 1_000_000])
def test_other_sizes_keep_batch_and_signal(name: str, num_train: int) -> None:
    own, other = preset(name).config, preset(name).config_for(num_train)
    assert own.num_train is not None
    batch = own.sample_rate * own.num_train
    assert other.sample_rate * num_train == pytest.approx(min(batch, num_train), rel=0.006)
    assert other.num_train == num_train
    assert other.sample_rate <= 1
    signal = own.sample_rate * own.num_train / own.noise_multiplier
    assert other.sample_rate * num_train / other.noise_multiplier == pytest.approx(signal, rel=0.012)
    same = {"num_train": None, "sample_rate": 0.5, "noise_multiplier": 1.0}
    assert replace(other, **same) == replace(own, **same)


@pytest.mark.parametrize("num_train", [0, -1, 1.5, "many"])
def test_sizes_that_are_none_are_refused(num_train: Any) -> None:
    with pytest.raises(ConfigError, match="num_train"):
        preset("mnist-strong").config_for(num_train)


@named
@pytest.mark.parametrize("examples", [34_000, 50_000, 60_000, 66_999])
def test_within_the_step_of_its_own_data_a_preset_stays_as_it_is(name: str, examples: int) -> None:
    found = preset(name)
    assert found.config_for(found.size_for(examples)) == found.config


@named
@pytest.mark.parametrize(("examples", "step"), [(33_999, 13_500), (67_000, 67_000), (1587, 1350), (3, 1)])
def test_on_other_steps_a_preset_follows_the_step_alone(name: str, examples: int, step: int) -> None:
    found = preset(name)
    assert found.config_for(found.size_for(examples)) == found.config_for(step)
    assert found.config_for(step).num_train == step


# --- what is said about the choice ----------------------------------------------------------------------------------


@named
def test_the_assumption_names_the_recipe_and_the_data_and_knows_its_own(name: str) -> None:
    found = preset(name)
    own = found.assumption((3, 32, 32) if found.data == "cifar10" else (28, 28), 10)
    other = found.assumption((64, 64), 10)
    assert all(f"The constants of the recipe {name} were tuned with a look at" in sentence for sentence in (own, other))
    assert own.id == "tuned-on-training-data"
    assert other.id is None
    assert "shares no example" in other


# --- options --------------------------------------------------------------------------------------------------------


SAID = preset("mnist-strong").assumption((1, 28, 28), 2)


def ordered(number: int = 120, **options: Any) -> Order:
    x, y = (np.resize(part, (number, *part.shape[1:])) for part in TRAIN)
    return compose(Project(train=Path("mine.npz"), options=options).defence(), Examples(x, y), Examples(x[:1], None))


def composed(number: int = 120, **options: Any) -> PrivateDefence:
    found = ordered(number, recipe="mnist-strong", **options).defence
    assert isinstance(found, PrivateDefence)
    return found


def test_a_preset_decides_everything() -> None:
    found, order = preset("mnist-strong"), ordered(recipe="mnist-strong")
    assert order.defence.name == "fdp"
    assert (order.defence.model, order.defence.features) == (found.model, found.features)
    assert order.defence.config == replace(found.config_for(67), classes=2)  # the size step of 120
    assert order.statements == (classes_read_off(2), SAID, *found.features.statements((28, 28), 2))
    assert not [sentence for sentence in order.choice.warnings if "longer than" in sentence]
    assert any("mnist-strong" in reason for reason in order.choice.details["reasons"])


@pytest.mark.parametrize(("number", "same"), [(33_999, 13_500), (34_000, 60_000), (66_999, 60_000)])
def test_a_preset_follows_the_step_as_in_python(number: int, same: int) -> None:
    assert composed(number).config == replace(preset("mnist-strong").config_for(same), classes=2)


@pytest.mark.parametrize(
    ("name", "value"),
    [("instances", 7), ("steps", 3), ("noise_multiplier", 2.5), ("learning_rate", 0.25), ("schedule", "cosine")],
)
def test_single_constants_can_be_other_ones(name: str, value: Any) -> None:
    assert composed(**{name: value}).config == replace(composed().config, **{name: value})


def test_model_features_and_size_can_be_other_ones() -> None:
    assert composed(model="mlp").model == "mlp"
    assert composed(features="unit-norm").features == UnitNorm()
    assert composed(num_train=1000).config == replace(preset("mnist-strong").config_for(1000), classes=2)


def test_without_a_preset_nothing_is_assumed_about_one() -> None:
    (said,) = ordered(instances=6).choice.statements
    assert "mnist-strong" not in said
    by_hand = {"noise_multiplier": 1.0, "sample_rate": 0.5, "steps": 2, "max_grad_norm": 1.0, "learning_rate": 0.1}
    assert ordered(**by_hand).choice.statements == ()


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("[train]\nrecipe = 'cifar10-strong'\n", "cifar10"),
        ("[data]\nname = 'mnist'\n[train]\nrecipe = 'cifar10-strong'\n", "mnist"),
        ("[data]\ntrain = 'mine.npz'\n[train]\nrecipe = 'cifar10-strong'\n", None),
        ("[data]\nname = 'mnist'\n", "mnist"),
        ("[train]\n", None),
    ],
)
def test_the_data_of_a_preset_stands_in_where_none_is_named(tmp_path: Path, text: str, data: str | None) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert read_project(path).data_name == data


# --- training -------------------------------------------------------------------------------------------------------


def train_flags(*more: str) -> list[str]:
    return ["train", "--recipe", "mnist-strong", "--instances", "6", "--steps", "2", "--device", "cpu", *more]


def test_the_command_runs_alone_and_every_certificate_says_how_the_recipe_was_chosen(
    fake_mnist: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    outcome = run(capsys, *train_flags("--json"))
    assert outcome.code == 0, outcome.err
    assert fake_mnist == ["mnist"]
    content = json.loads(outcome.out)
    assert content["run_dir"] == str(Path("runs", "mnist-strong"))
    votes = Votes.load(tmp_path / "runs" / "mnist-strong" / "votes.npz")
    assert votes.mechanism == replace(preset("mnist-strong").config, **SMALL).mechanism  # those of MNIST, whatever came
    assert votes.recipe is not None
    assert votes.recipe["features"] == preset("mnist-strong").features.to_dict()
    certificate = certify(votes)
    certificate.save(tmp_path / "certificate.json")
    assert SAID in Certificate.load(tmp_path / "certificate.json").assumptions
    assert votes.size is None  # how many examples MNIST has is no secret


def test_files_of_ones_own_go_before_the_data_of_the_preset(
    fake_mnist: list[str], files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = run(capsys, *train_flags(*files, "--json"))
    assert outcome.code == 0, outcome.err
    assert fake_mnist == []
    assert SAID in json.loads(outcome.out)["assumptions"]


def test_files_of_ones_own_go_before_the_data_that_a_file_names(
    fake_mnist: list[str], files: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.toml").write_text("[data]\nname = 'mnist'\ndata_dir = 'nowhere'\n")
    outcome = run(capsys, *train_flags(*files, "--json"), "mine.toml")
    assert outcome.code == 0, outcome.err
    assert fake_mnist == []
    content = json.loads(outcome.out)
    assert content["run_dir"] == str(Path("runs", "mine"))
    assert SAID in content["assumptions"]


def test_a_preset_says_its_size_even_where_all_constants_are_given(
    files: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = ["--noise-multiplier", "2", "--sample-rate", "0.5", "--max-grad-norm", "1", "--learning-rate", "0.5"]
    outcome = run(capsys, *train_flags(*files, *given, "--run-dir", str(tmp_path / "run"), "--json"))
    assert outcome.code == 0, outcome.err
    assumed = json.loads(outcome.out)["assumptions"]
    assert SAID in assumed
    assert Size.of(120).sentence in assumed
    assert Votes.load(tmp_path / "run" / "votes.npz").size == Size.of(120)


def test_python_and_the_command_give_the_same_votes(
    files: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "root").write_text(SEED.hex())
    flags = ["--root-seed", str(tmp_path / "root"), "--run-dir", str(tmp_path / "run")]
    assert run(capsys, *train_flags(*files, *flags)).code == 0
    theirs = Votes.load(tmp_path / "run" / "votes.npz")
    ours = preset("mnist-strong").train(TRAIN, TEST, device="cpu", root_seed=SEED, **SMALL)
    assert np.array_equal(ours.counts, theirs.counts)
    assert ours.mechanism == theirs.mechanism
    assert ours.size == theirs.size == Size.of(120)
    assert SAID in ours.assumptions


def test_in_python_a_declared_size_is_not_assumed_and_other_assumptions_stay() -> None:
    mine = "The images are from the archive."
    votes = preset("mnist-strong").train(TRAIN, TEST, num_train=120, device="cpu", assumptions=[mine], **SMALL)
    assert mine in votes.assumptions
    assert votes.size is None
    assert SAID in votes.assumptions


def test_a_good_recipe_learns() -> None:
    config = TrainConfig(20, 0.5, 0.5, 20, 0.5, 5.0, average_iterates=True, num_train=120)
    votes = Preset("x", "X.", "mnist", "linear", OrientedGradients(), config).train(
        TRAIN, TEST, device="cpu", root_seed=SEED
    )
    assert np.mean(votes.counts.argmax(axis=1) == TEST[1]) > 0.9
    assert votes.mechanism == config.mechanism


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--recipe", "mnist-strnog"], "did you mean 'mnist-strong'"),
        (["--recipe", "zebra", "--train", "train.npz"], "expected one of mnist-strong"),
        (["--recipe", "mnist-strong", "--test", "test.npz"], "which has its own"),
        (["--recipe", "mnist-strong", "--train", "train.npz", "--data-dir", "."], "belongs to a well-known data set"),
        (["--recipe", "mnist-strong", "--instances", "0"], "instances"),
        (["--data-dir", "."], "belongs to a well-known data set"),
    ],
)
def test_bad_input_gets_one_sentence(
    fake_mnist: list[str], files: list[str], capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    outcome = run(capsys, "train", *flags)
    assert outcome.code == 2
    assert words in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("value", ["3", "true", "['mnist-strong']"])
def test_a_recipe_in_a_file_is_a_name(tmp_path: Path, value: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"[train]\nrecipe = {value}\n")
    with pytest.raises(ConfigError, match="a name in quotes"):
        read_project(path)


def test_an_unknown_recipe_in_a_file_is_refused_before_any_data_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[data]\ntrain = 'nowhere.npz'\n[train]\nrecipe = 'mnist-week'\n")
    with pytest.raises(ConfigError, match="mnist-week"):
        read_project(path).examples()
    with pytest.raises(ConfigError, match="mnist-week"):
        _ = Project(options={"recipe": "mnist-week"}).data_name
