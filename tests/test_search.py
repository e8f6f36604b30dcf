"""The search for recipes: what a value means, that it never sees what it must not, and that it goes on when killed."""

import importlib.util
import json
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mithridate import SampledGaussian, Votes, certify
from mithridate.data import Examples

optuna = pytest.importorskip("optuna", reason="the search needs: pip install 'mithridate[tune]'")
PATH = Path(__file__).parents[1] / "experiments" / "beyond" / "search.py"
if not PATH.exists():
    pytest.skip("the experiments lie beside the source and not in an installation", allow_module_level=True)
pytestmark = [pytest.mark.more, pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")]

MECHANISM = SampledGaussian(4.0, 0.05, 20)


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mithridate_search", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


search = loaded()


@pytest.fixture(autouse=True)
def _no_traces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Features are kept in a folder that ends with the test."""
    folder = tmp_path / "features"
    folder.mkdir()
    monkeypatch.setattr(search.tempfile, "gettempdir", lambda: str(folder))


def images(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Bars that stand and bars that lie; the first pixel of image i is i, so that each can be recognised."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 40, (count, 1, 16, 16), dtype=np.uint8), np.arange(count) % 2
    for image, label in zip(x[:, 0], y, strict=True):
        (image if label else image.T)[rng.integers(5, 10)] = 255
    return x, y


def bench(**changes: Any) -> Any:
    x, y = images(120)
    values = {"name": "mnist", "x": x, "y": y, "held_out": 20, "classes": 2, "radii": {0: 1.0, 2: 3.0}, "final": 1000}
    return search.Bench(**{**values, **changes})


PARAMS = {**search.START, "signal": 0.5, "steps": 5}


# --- what is searched -----------------------------------------------------------------------------------------------


def test_every_point_of_the_space_is_a_recipe_and_every_start_is_in_the_space() -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for change in search.CHANGES:
        study.enqueue_trial({**search.START, **change})
    for number in range(30):
        trial = study.ask()
        params = search.suggested(trial)
        config = search.config_of(params, bench(), num_train=100, instances=7)
        assert (config.instances, config.num_train, config.classes) == (7, 100, 2)
        assert search.encoder_of(params).name == params["features"]
        if number < len(search.CHANGES):
            assert params.items() <= {**search.START, **search.CHANGES[number]}.items()
            assert search.CHANGES[number].items() <= params.items()
        study.tell(trial, 0.0)


def test_constants_of_the_encoder_reach_it() -> None:
    made = search.encoder_of({**PARAMS, "oriented-gradients.cells": 6, "other.cells": 9})
    assert (made.cells, made.orientations) == (6, 8)


@pytest.mark.parametrize("num_train", [50_000, 60_000])
def test_a_recipe_has_the_signal_that_was_asked_for_at_every_size(num_train: int) -> None:
    asked = bench(x=np.zeros((60_000, 1)), radii={0: 1.0, 400: 1.0})
    config = search.config_of({**search.START, "signal": 2.0}, asked, num_train=num_train, instances=5)
    batch = config.sample_rate * num_train
    assert batch * math.sqrt(config.steps) / config.noise_multiplier == pytest.approx(2.0 * 60_000 / 400, rel=0.01)
    assert batch == pytest.approx(0.1 * 300**2 / 20, rel=0.01)
    # The step size aims at the noise of a logit: 1.4 times the signal over steps, in units of the clipping norm.
    assert config.learning_rate * config.max_grad_norm * config.steps / 300 == pytest.approx(1.4, rel=0.01)


def test_radii_shrink_with_the_examples_and_are_rounded_up() -> None:
    smaller = bench()  # 100 of 120 are trained on
    assert [smaller.scaled(radius) for radius in (0, 1, 6, 7, 120)] == [0, 1, 5, 6, 100]


# --- what a trial is worth ------------------------------------------------------------------------------------------

COUNTS = st.integers(2, 6).flatmap(
    lambda classes: st.lists(st.integers(0, 40), min_size=classes, max_size=classes).filter(any)
)


@settings(max_examples=100, deadline=None)
@given(row=COUNTS, final=st.integers(1000, 20_000))
def test_more_votes_keep_the_shares_with_half_a_vote_of_doubt(row: list[int], final: int) -> None:
    votes = Votes.from_counts([row], mechanism=MECHANISM)
    more = search.as_if(votes, final).counts[0]
    first, second = np.argsort(-votes.counts[0], kind="stable")[:2]
    assert more.sum() == final
    expected = np.array(row, dtype=float)
    expected[[first, second]] += 0.5
    assert np.abs(more - expected * final / (sum(row) + 1)).max() <= len(row)
    assert more[first] <= expected[first] * final / (sum(row) + 1) + 1e-6  # never rounded in favour of the label
    if row[first] > row[second]:
        assert more.argmax() == first


def test_what_is_certified_is_what_certify_says() -> None:
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.full(4, 0.2), 60)
    votes = Votes.from_counts([rng.multinomial(1000, share) for share in shares], mechanism=MECHANISM)
    radius = certify(votes).radius
    radii = [0, 1, 5, 15]
    shown = search.certified(votes, radii)
    assert [row.tolist() for row in shown] == [(radius >= at).tolist() for at in radii]
    assert 0 < shown[3].sum() < shown[0].sum() < len(radius)


def test_nothing_separated_is_nothing_certified() -> None:
    votes = Votes.from_counts([[500, 500]], mechanism=MECHANISM)
    assert not search.certified(votes, [0, 5]).any()


def test_held_out_examples_are_not_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def fake(training: Any, voted_on: Any, *, config: Any, **_: Any) -> Votes:
        seen.update(training=training, voted_on=voted_on, config=config)
        # Right about the first half with certainty, undecided about the second.
        counts = [[9, 1] if label == 0 else [1, 9] for label in voted_on[1]]
        counts[10:] = [[5, 5]] * 10
        return Votes.from_counts(100 * np.array(counts), mechanism=config.mechanism)

    monkeypatch.setattr(search, "train", fake)
    asked = bench(radii={0: 3.0, 12: 1.0})
    measured = asked.measure({**PARAMS, "signal": 4.0}, 10)  # too little noise for the larger radius
    features = search.features_of(asked, search.encoder_of(PARAMS))
    for name, rows in (("training", slice(None, 100)), ("voted_on", slice(100, None))):
        assert np.array_equal(seen[name][0], features[rows])
        assert np.array_equal(seen[name][1], asked.y[rows])
    assert (seen["config"].instances, seen["config"].num_train) == (10, 100)
    assert measured["certified_accuracy"] == {"0": 0.5, "12": 0.0}
    assert measured["value"] == pytest.approx(3 / 4 * 0.5)
    assert measured["instances"] == 10


def test_the_test_set_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    class TestSet:
        def __getattr__(self, name: str) -> Any:
            pytest.fail("the test set was looked at")

    train = Examples(*images(120), ("a", "b"))
    monkeypatch.setattr(search, "load_named", lambda *_, **__: (train, TestSet()))
    monkeypatch.setattr(search, "HELD_OUT", 20)
    monkeypatch.setitem(search.RADII, "mnist", {0: 1.0, 2: 1.0})
    assert search.bench_of("mnist", data_dir=None, final=100, device="cpu").measure(PARAMS, 3)["instances"] == 3


def test_features_are_computed_once_and_found_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one, chosen = bench(), search.encoder_of(PARAMS)
    first = search.features_of(one, chosen)
    assert np.array_equal(first, chosen.transform(one.x))
    assert search.features_of(one, chosen) is first
    (kept,) = tmp_path.rglob("features/*/*.npy")
    monkeypatch.setattr(search, "from_dict", lambda _: pytest.fail("computed again"))
    assert np.array_equal(search.features_of(bench(), chosen), np.load(kept))


# --- a search that goes on ------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials that cost nothing: the more steps, the better."""

    def measure(self: Any, params: Any, instances: int) -> dict[str, Any]:
        worth = params["steps"] / 1000 + instances / 1e6
        return {"value": worth, "certified_accuracy": {"0": worth}, "instances": instances, "seconds": 0.0}

    monkeypatch.setattr(search.Bench, "measure", measure)
    monkeypatch.setattr(search, "bench_of", lambda *_, **__: bench())
    monkeypatch.setenv("MITHRIDATE_CACHE", "off")  # as `main` sets it; put back afterwards


def searched(folder: Path, trials: int, *more: str) -> dict[str, Any]:
    flags = ["--data", "mnist", "--trials", str(trials), "--instances", "5", "--confirm", "2", *more]
    assert search.main([*flags, "--studies", str(folder)]) == 0
    return json.loads((folder / "mnist.json").read_text())


def storage(folder: Path) -> Any:
    return search.JournalStorage(search.JournalFileBackend(str(folder / "mnist.log")))


def studies(folder: Path) -> list[Any]:
    kept = storage(folder)
    return [optuna.load_study(study_name=name, storage=kept) for name in optuna.get_all_study_names(kept)]


@pytest.mark.usefixtures("quick")
def test_the_same_command_goes_on(tmp_path: Path) -> None:
    searched(tmp_path, 4)
    (study,) = studies(tmp_path)
    before = [trial.params for trial in study.trials]
    study.ask()  # a trial that is killed
    summary = searched(tmp_path, 12)
    (study,) = studies(tmp_path)
    assert [trial.params for trial in study.trials[:4]] == before[:4]
    states = [trial.state.name for trial in study.trials]
    assert states == ["COMPLETE"] * 4 + ["FAIL"] + ["COMPLETE"] * 8
    assert summary["trials"] == 12
    searched(tmp_path, 12)
    assert len(studies(tmp_path)[0].trials) == 13


@pytest.mark.usefixtures("quick")
def test_the_summary_has_the_best_trials_with_recipes_for_the_whole_set(tmp_path: Path) -> None:
    summary = searched(tmp_path, 12)
    best = summary["best"]
    assert len(best) == 10
    assert [place["confirmed"] is not None for place in best] == [True, True] + [False] * 8
    assert best[0]["confirmed"]["instances"] == 1000
    for part in (best[:2], best[2:]):
        steps = [place["params"]["steps"] for place in part]
        assert steps == sorted(steps, reverse=True)
    for place in best:
        made = search.config_of(place["params"], bench(), num_train=120, instances=1000)
        assert place["config"] == made.to_dict() | {"instances": 1000}
    assert summary["meaning"] == bench(final=1000).meaning(5)


@pytest.mark.usefixtures("quick")
def test_a_larger_space_starts_with_the_best_of_the_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    best = searched(tmp_path, 9)["best"][0]["params"]
    monkeypatch.setitem(search.ENCODERS, "unit-norm", {"bias": (0.5, 1.0)})
    summary = searched(tmp_path, 3)
    old, new = ([found.trial for found in search.found_in(study)] for study in studies(tmp_path))
    old, new = (old, new) if len(old) > len(new) else (new, old)
    assert (len(old), len(new)) == (9, 3)
    assert best in [trial.params for trial in new]
    assert summary["trials"] == 12


@pytest.mark.usefixtures("quick")
def test_values_of_another_meaning_are_not_compared(tmp_path: Path) -> None:
    searched(tmp_path, 4)
    flags = ["--data", "mnist", "--trials", "2", "--instances", "9", "--confirm", "0", "--studies", str(tmp_path)]
    assert search.main(flags) == 0
    assert json.loads((tmp_path / "mnist.json").read_text())["trials"] == 2
    assert len(studies(tmp_path)) == 2


def test_a_tiny_search_from_images_to_a_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(search, "bench_of", lambda *_, **__: bench(radii={0: 1.0, 1: 1.0}))
    monkeypatch.setenv("MITHRIDATE_CACHE", "off")
    summary = searched(tmp_path, 1, "--confirm-instances", "30")
    (found,) = summary["best"]
    assert found["confirmed"]["accuracy"] > 0.8
    curve = found["confirmed"]["certified_accuracy"]
    assert 0 < curve["0"] <= found["confirmed"]["accuracy"]
    assert curve["1"] <= curve["0"]
    assert "1 trials; the best are in" in capsys.readouterr().out
