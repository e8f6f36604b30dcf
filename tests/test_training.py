"""Training as users call it: what runs, what is refused, and that neither interruptions nor memory change the votes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn
from training_doubles import CLASSES, SEED, TEST, TRAIN, WIDTH, FakeEngine, make_config, make_data, same_votes

from mithridate import (
    ArtifactError,
    Certificate,
    ConfigError,
    SampledGaussian,
    Subsampled,
    TrainConfig,
    Votes,
    certify,
    train,
    verify,
)
from mithridate.core.conditions import Size
from mithridate.data.examples import Examples
from mithridate.features import Frozen, HashedNgrams
from mithridate.training import task
from mithridate.training.models import describe
from mithridate.training.randomness import Seeds
from mithridate.training.run_directory import RunDirectory, path_of

X, Y = TRAIN


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeEngine]]:
    FakeEngine.reset()
    monkeypatch.setattr(task, "Engine", FakeEngine)
    yield FakeEngine
    FakeEngine.reset()


def run(run_dir: Path | None = None, **changes: Any) -> Votes:
    options: dict[str, Any] = {
        "model": "linear",
        "config": make_config(),
        "root_seed": SEED,
        "device": "cpu",
        **changes,
    }
    return train(TRAIN, TEST, run_dir=run_dir, **options)


# --- what comes out -------------------------------------------------------------------------------------------------


def test_votes_carry_what_ran(tmp_path: Path) -> None:
    votes = run(tmp_path / "run", config=make_config(momentum=0.5, optimizer="sgd"))
    assert votes.mechanism == SampledGaussian(2.0, 0.2, 6)
    assert (votes.instances, votes.examples, votes.classes) == (10, 20, CLASSES)
    assert np.array_equal(np.asarray(votes.labels), TEST[1])
    assert votes.score_sums is not None
    assert votes.score_sums.dtype == np.float64
    np.testing.assert_allclose(votes.score_sums.sum(axis=1), 10.0, rtol=1e-5)
    assert votes.score_histograms is not None
    assert votes.score_histograms.shape == (20, CLASSES, 8)
    recipe = votes.recipe
    assert recipe is not None
    assert TrainConfig.from_dict(recipe["config"]) == make_config(momentum=0.5, divisor=12.0)
    assert (recipe["model"], recipe["features"], recipe["path"]) == ("linear", None, "fast")
    assert Votes.load(tmp_path / "run" / "votes.npz").equals(votes)
    assert len(votes.run_ids[0]) == 32
    assert SEED.hex() not in json.dumps([votes.recipe, votes.run_ids, votes.assumptions])


def test_numbers_of_numpy_are_numbers(fake: Any, tmp_path: Path) -> None:
    config = make_config(instances=np.int64(10), steps=np.int32(6), learning_rate=np.float32(0.5))
    votes = run(tmp_path / "run", config=config, in_flight=np.int64(3))
    assert votes.recipe == run(tmp_path / "run", config=make_config()).recipe


def test_votes_of_subsampled_instances_say_so(fake: Any) -> None:
    votes = run(config=make_config(keep=0.5))
    assert votes.mechanism == Subsampled(0.5, SampledGaussian(2.0, 0.2, 6))
    assert votes.recipe is not None
    assert votes.recipe["config"]["divisor"] == 0.2 * 60 * 0.5


def test_instances_learn() -> None:
    config = make_config(instances=8, noise_multiplier=0.5, steps=40, sample_rate=0.5)
    votes = run(config=config)
    assert np.mean(votes.counts.argmax(axis=1) == TEST[1]) > 0.8


def test_runs_draw_their_own_names_and_seeds() -> None:
    config = make_config(instances=4)
    one, two = (run(config=config, root_seed=None) for _ in range(2))
    assert one.run_ids != two.run_ids
    assert not same_votes(one, two)
    assert one.data_fingerprint == two.data_fingerprint
    assert one.merge(two).instances == 8


def test_two_runs_of_one_seed_are_the_same_instances_and_never_merge(fake: Any, tmp_path: Path) -> None:
    first, second = run(tmp_path / "run"), run(config=make_config(instances=7))
    with pytest.raises(ConfigError, match="share a run"):
        first.merge(second)
    copied = bytes.fromhex((tmp_path / "run" / "seed").read_text())
    with pytest.raises(ConfigError, match="share a run"):
        first.merge(run(root_seed=copied))


def test_runs_of_different_size_merge_and_of_different_recipe_do_not(fake: Any) -> None:
    first = run(root_seed=None)
    merged = first.merge(run(root_seed=None, config=make_config(instances=7)))
    assert merged.instances == 17
    assert merged.recipe is not None
    assert merged.recipe["config"]["instances"] == 17
    with pytest.raises(ConfigError, match="different data"):
        first.merge(run(root_seed=None, config=make_config(learning_rate=0.25)))
    with pytest.raises(ConfigError, match="different recipes"):
        first.merge(run(root_seed=None, precision="tf32"))


@pytest.mark.parametrize(
    "change",
    [
        {"config": make_config(max_grad_norm=0.5)},
        {"model": "mlp"},
        {"model": nn.Sequential(nn.Linear(WIDTH, CLASSES))},
    ],
)
def test_the_fingerprint_sees_every_change(fake: Any, change: dict[str, Any]) -> None:
    assert run(**change).data_fingerprint != run().data_fingerprint


def test_the_fingerprint_sees_every_change_of_data(fake: Any) -> None:
    options: dict[str, Any] = {"model": "linear", "config": make_config()}
    plain = train(TRAIN, TEST[0], **options).data_fingerprint
    assert train(TRAIN, TEST, **options).data_fingerprint == plain  # true labels change no vote
    x, y = X.copy(), Y.copy()
    x[3, 1] += 1e-6
    y[5] = (y[5] + 1) % CLASSES
    other = TEST[0].copy()
    other[0, 0] += 1e-6
    changed = [((x, Y), TEST[0]), ((X, y), TEST[0]), (TRAIN, other), ((X[::-1], Y[::-1]), TEST[0])]
    assert len({plain, *(train(*pair, **options).data_fingerprint for pair in changed)}) == 5


# --- assumptions ----------------------------------------------------------------------------------------------------


def test_classes_read_off_the_data_are_assumed_public_and_the_size_limits_radii(fake: Any, tmp_path: Path) -> None:
    inferred = run(tmp_path / "run", config=make_config(num_train=None, classes=None), root_seed=None)
    (assumed,) = inferred.assumptions
    assert "classes = 3" in assumed
    assert inferred.size == Size.of(60)
    assert inferred.recipe is not None
    assert (inferred.recipe["config"]["num_train"], inferred.recipe["config"]["classes"]) == (34, 3)
    assert run(root_seed=None).assumptions == ()
    assert Votes.load(tmp_path / "run" / "votes.npz").assumptions == inferred.assumptions


def test_what_the_reading_of_the_data_assumed_is_repeated(fake: Any) -> None:
    read = Examples(*TRAIN, ("ant", "bee", "cat"), assumptions=("The ranges are public.",))
    votes = train(read, TEST, model="linear", config=make_config(), device="cpu")
    assert votes.recipe is not None
    assert votes.recipe["source"] == {"declaration": None, "class_names": ["ant", "bee", "cat"]}
    assert "The ranges are public." in votes.assumptions
    assert "The ranges are public." in certify(votes).assumptions


def test_nothing_that_was_ever_assumed_of_a_run_gets_lost(fake: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = run(folder, assumptions=("One.",))
    again = run(folder, assumptions=("Two.",))
    assert again.assumptions == (*first.assumptions, "Two.")
    assert run(folder).assumptions == again.assumptions == Votes.load(folder / "votes.npz").assumptions
    assert np.array_equal(first.counts, again.counts)


def test_another_declaration_of_the_data_is_another_run(fake: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options: dict[str, Any] = {"model": "linear", "config": make_config(), "device": "cpu", "run_dir": folder}
    train(Examples(*TRAIN, ("a", "b", "x" * 99)), TEST, **options)
    with pytest.raises(ConfigError, match="its declaration of the data is different") as caught:
        train(Examples(*TRAIN, ("a", "b", "y" * 99)), TEST, **options)
    assert "xxx" not in str(caught.value)


def test_a_seed_of_the_caller_is_assumed_unknown_to_the_attacker(fake: Any) -> None:
    (sentence,) = run(root_seed=SEED).assumptions
    assert "given by the caller" in sentence
    assert "attacker does not know it" in sentence
    assert SEED.hex() not in sentence


def trusted() -> Frozen:
    """An encoder that a user vouches for."""
    return Frozen(lambda x: np.tanh(x[:, :2]), title="my-encoder", trained_on="somebody else's pictures")


def test_an_encoder_that_the_user_vouches_for_is_recorded_as_trusted(fake: Any) -> None:
    votes = run(features=trusted(), root_seed=None)
    (sentence,) = votes.assumptions
    assert "my-encoder" in sentence
    assert "somebody else's pictures" in sentence
    assert votes.recipe is not None
    assert votes.recipe["features"] == trusted().to_dict()


def test_certificates_repeat_the_assumptions_and_verify_misses_them(fake: Any, tmp_path: Path) -> None:
    votes = run(config=make_config(instances=200, classes=None), features=trusted())
    certificate = certify(votes)
    assert len(votes.assumptions) == 3
    assert set(votes.assumptions) < set(certificate.assumptions)
    certificate.save(tmp_path / "c.json")
    loaded = Certificate.load(tmp_path / "c.json")
    assert loaded == certificate
    assert loaded.votes.recipe == votes.recipe
    outcome = verify(tmp_path / "c.json")
    assert outcome.valid
    assert set(votes.assumptions) < set(outcome.assumptions)
    for missing in votes.assumptions:
        kept = tuple(sentence for sentence in certificate.assumptions if sentence != missing)
        forged = Certificate(**{**certificate.__dict__, "assumptions": kept})
        forged.save(tmp_path / "forged.json")
        failed = [check for check in verify(tmp_path / "forged.json").checks if not check.passed]
        assert [check.name for check in failed] == ["conditions", "assumptions"]
        assert missing in failed[1].detail


# --- the same draws -------------------------------------------------------------------------------------------------


def test_the_number_in_flight_changes_rounding_at_most() -> None:
    config = make_config(instances=7, steps=8)
    all_at_once, *others = [run(config=config, in_flight=number) for number in (7, 1, 3)]
    for votes in others:
        assert np.array_equal(votes.counts, all_at_once.counts)
        assert np.array_equal(np.asarray(votes.score_histograms), np.asarray(all_at_once.score_histograms))
        np.testing.assert_allclose(np.asarray(votes.score_sums), np.asarray(all_at_once.score_sums), rtol=1e-5)


def test_memory_and_directory_give_the_same_votes(tmp_path: Path) -> None:
    assert same_votes(run(in_flight=3), run(tmp_path / "run", in_flight=3))


def test_groups_are_all_instances_once(fake: Any) -> None:
    run(in_flight=3)
    assert fake.trained == [range(0, 2), range(2, 4), range(4, 7), range(7, 10)]
    fake.reset()
    run(in_flight=1000)
    assert fake.trained == [range(0, 10)]
    fake.reset()
    run()  # four at a time is the engine's guess
    assert [len(group) for group in fake.trained] == [3, 3, 4]


def oom_errors() -> list[BaseException]:
    return [
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("not enough memory: you tried to allocate 12 bytes"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        MemoryError(),
    ]


@pytest.mark.more
@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("in_directory", [True, False])
def test_out_of_memory_halves_the_number_in_flight(
    fake: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int, in_directory: bool
) -> None:
    expected = run()
    fake.reset()
    fake.capacity, fake.error = 3, staticmethod(lambda: oom_errors()[number])
    votes = run(tmp_path / "run" if in_directory else None, in_flight=10)
    assert np.array_equal(votes.counts, expected.counts)
    np.testing.assert_allclose(np.asarray(votes.score_sums), np.asarray(expected.score_sums), rtol=1e-12)
    assert [instance for group in fake.trained for instance in group] == list(range(10))
    assert max(len(group) for group in fake.trained) <= 3
    assert "Out of memory with 10 models in flight; going on with 5" in caplog.text
    if in_directory:
        assert json.loads((tmp_path / "run" / "run.json").read_text())["in_flight"] == 2


def test_one_model_that_does_not_fit_is_a_clear_error(fake: Any, tmp_path: Path) -> None:
    fake.capacity = 0
    with pytest.raises(ConfigError, match="Not even one model"):
        run(tmp_path / "run")


def test_other_errors_of_the_engine_are_not_mistaken_for_memory(fake: Any) -> None:
    fake.capacity, fake.error = 0, staticmethod(lambda: RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        run()


# --- resuming -------------------------------------------------------------------------------------------------------


def stop_before(first: int, error: BaseException) -> Any:
    def check(group: range) -> None:
        if group.start >= first:
            raise error

    return staticmethod(check)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("the cleaner pulled the plug")])
def test_an_interrupted_run_goes_on_where_it_ended(fake: Any, tmp_path: Path, error: BaseException) -> None:
    expected = run(tmp_path / "whole", in_flight=3)
    fake.reset()
    fake.before_group = stop_before(5, error)
    with pytest.raises(type(error)):
        run(tmp_path / "run", in_flight=3)
    assert fake.trained == [range(0, 2), range(2, 4), range(4, 7)]
    fake.reset()
    votes = run(tmp_path / "run", in_flight=3)
    assert fake.trained == [range(7, 10)]
    assert same_votes(votes, expected)


def test_the_stored_number_in_flight_counts_unless_another_is_asked_for(fake: Any, tmp_path: Path) -> None:
    fake.before_group = stop_before(3, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run")
    fake.reset()
    fake.guess, fake.before_group = 9, stop_before(6, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run")
    assert fake.trained == [range(3, 6)]
    fake.reset()
    run(tmp_path / "run", in_flight=2)
    assert fake.trained == [range(6, 8), range(8, 10)]


def test_an_engine_holds_the_seeds_of_the_group_that_it_trains_and_no_others(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[list[int]] = []
    plain = fake.train

    def train_and_look(engine: FakeEngine, seeds: Seeds, instances: range, on_step: Any) -> Any:
        held.append([instance for instance in range(100) if is_held(seeds, instance)])
        return plain(engine, seeds, instances, on_step)

    def is_held(seeds: Seeds, instance: int) -> bool:
        try:
            seeds.key(instance, "noise")
        except LookupError:
            return False
        return True

    monkeypatch.setattr(fake, "train", train_and_look)
    run(in_flight=4)
    assert held == [[*group] for group in fake.trained] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]


def test_a_finished_run_gives_its_votes_without_training(fake: Any, tmp_path: Path) -> None:
    votes = run(tmp_path / "run")
    fake.reset()
    again = run(tmp_path / "run", root_seed=None)
    assert again.equals(votes)
    assert fake.trained == []
    (tmp_path / "run" / "seed").unlink()
    assert run(tmp_path / "run", root_seed=None).equals(votes)


def test_a_damaged_votes_file_is_made_again_from_the_shards(fake: Any, tmp_path: Path) -> None:
    votes = run(tmp_path / "run")
    fake.reset()
    path = tmp_path / "run" / "votes.npz"
    path.write_bytes(path.read_bytes()[:100])
    assert run(tmp_path / "run").equals(votes)
    assert Votes.load(path).equals(votes)
    assert fake.trained == []


def test_votes_are_written_after_their_models(fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save, seen = RunDirectory.save_tally, []

    def spy(self: RunDirectory, group: range, tally: Any, device: str) -> None:
        seen.append(path_of(self.path, "models", group).exists() and not (self.path / "votes.npz").exists())
        save(self, group, tally, device)

    monkeypatch.setattr(RunDirectory, "save_tally", spy)
    run(tmp_path / "run", keep_models=True)
    assert seen == [True] * 3


def test_true_labels_may_come_later(fake: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": "linear", "config": make_config(), "run_dir": tmp_path / "run"}
    assert train(TRAIN, TEST[0], **options).labels is None
    votes = train(TRAIN, TEST, **options)
    assert np.array_equal(np.asarray(votes.labels), TEST[1])
    assert Votes.load(tmp_path / "run" / "votes.npz").equals(votes)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"config": make_config(steps=7)}, "its steps is 6, not 7"),
        ({"config": make_config(instances=11)}, "its instances is 10, not 11"),
        ({"model": "mlp"}, "its model is 'linear', not 'mlp'"),
        ({"precision": "tf32"}, "its precision"),
        ({"root_seed": bytes(32)}, "another root seed"),
        ({"keep_models": True}, "does not keep models"),
        ({"features": trusted()}, "its features"),
    ],
)
def test_a_directory_of_another_configuration_is_refused(
    fake: Any, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    run(tmp_path / "run")
    with pytest.raises(ConfigError, match="another run_dir") as caught:
        run(tmp_path / "run", **change)
    assert says in str(caught.value)


def test_a_directory_of_other_data_is_refused(fake: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": "linear", "config": make_config(), "run_dir": tmp_path / "run"}
    train(TRAIN, TEST, **options)
    with pytest.raises(ConfigError, match="training data are different"):
        train(make_data(60, seed=5), TEST, **options)
    with pytest.raises(ConfigError, match="test inputs are different"):
        train(TRAIN, TEST[0][:5], **options)


def test_a_network_with_other_constants_is_another_network(fake: Any, tmp_path: Path) -> None:
    class Masked(nn.Module):
        def __init__(self, mask: float) -> None:
            super().__init__()
            self.register_buffer("mask", torch.full((WIDTH,), mask))
            self.linear = nn.Linear(WIDTH, CLASSES)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.linear(inputs * self.get_buffer("mask"))

    votes = run(tmp_path / "run", model=Masked(1.0))
    assert run(tmp_path / "run", model=lambda: Masked(1.0)).equals(votes)
    with pytest.raises(ConfigError, match="its model"):
        run(tmp_path / "run", model=Masked(0.5))


def killing(folder: Path, **order: Any) -> dict[str, Any]:
    order["folder"] = str(folder)
    arguments = [sys.executable, str(Path(__file__).parent / "training_doubles.py"), json.dumps(order)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    outcome = subprocess.run(arguments, capture_output=True, text=True, timeout=1200, env=environment, check=False)
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)


@pytest.mark.more
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_every_write(tmp_path: Path) -> None:
    options = {"config": {"instances": 3}, "in_flight": 2, "keep_models": True}
    outcome = killing(tmp_path, how="writes", options=options)
    assert outcome["killed"] == outcome["total"] > 30
    expected = Votes.load(tmp_path / "reference" / "votes.npz")
    for number in range(1, outcome["total"] + 1):
        folder = tmp_path / f"{number:04d}"
        assert same_votes(Votes.load(folder / "votes.npz"), expected), number
        assert len(list((folder / "shards").iterdir())) == len(list((folder / "models").iterdir())) == 2
        assert not list(folder.rglob("*.tmp"))


@pytest.mark.more
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_random_moments(tmp_path: Path) -> None:
    options = {"config": {"instances": 60, "steps": 60}, "in_flight": 2, "device": "cpu"}
    outcome = killing(tmp_path, how="random", options=options, kills=5, seed=3)
    assert outcome["killed"] >= 3
    assert outcome["shards"] >= 1
    expected = Votes.load(tmp_path / "reference" / "votes.npz")
    assert same_votes(Votes.load(tmp_path / "interrupted" / "votes.npz"), expected)
    assert expected.instances == 60


# --- a diverged instance --------------------------------------------------------------------------------------------


def test_a_diverged_instance_still_votes(tmp_path: Path) -> None:
    votes = run(tmp_path / "run", config=make_config(instances=3, learning_rate=1e30, weight_decay=1e30))
    assert votes.counts.tolist() == [[3, 0, 0]] * 20  # all of them diverged, and each votes for the first label
    assert np.isfinite(np.asarray(votes.score_sums)).all()
    np.testing.assert_allclose(np.asarray(votes.score_sums).sum(axis=1), 3.0, rtol=1e-5)


# --- progress -------------------------------------------------------------------------------------------------------


def test_progress_counts_model_steps_from_where_the_run_stands(fake: Any, tmp_path: Path) -> None:
    fake.before_group = stop_before(3, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run")
    fake.reset()
    calls: list[tuple[int, int]] = []
    run(tmp_path / "run", progress=lambda done, total: calls.append((done, total)))
    assert {total for _, total in calls} == {60}
    done = [number for number, _ in calls]
    assert done[0] == 18
    assert done == sorted(done)
    assert done[-1] == 60


def test_progress_of_the_real_engine_reaches_the_end() -> None:
    calls: list[tuple[int, int]] = []
    run(progress=lambda done, total: calls.append((done, total)))
    assert calls[0] == (0, 60)
    assert calls[-1] == (60, 60)
    assert len(calls) > 3


# --- bad input ------------------------------------------------------------------------------------------------------


def bad(**changes: Any) -> str:
    """The message with which training refuses something."""
    options: dict[str, Any] = {"x": X, "y": Y, "test": TEST, "model": "linear", "config": make_config(), **changes}
    x, y, test = (options.pop(name) for name in ("x", "y", "test"))
    with pytest.raises(ConfigError) as caught:
        train((x, y), test, **options)
    return str(caught.value)


def changed(array: np.ndarray, place: Any, value: Any) -> np.ndarray:
    result = array.astype(np.result_type(array.dtype, np.asarray(value).dtype))
    result[place] = value
    return result


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"y": changed(Y, 7, 3)}, "Label 7 of the training data is 3; with classes=3"),
        ({"y": changed(Y, 7, -1)}, "Label 7 of the training data is -1"),
        ({"y": changed(Y, 7, 0.5)}, "Label 7 of the training data is 0.5"),
        ({"y": changed(Y, 7, np.nan)}, "Label 7 of the training data is nan"),
        ({"y": Y[:-1]}, "There are 60 training inputs but 59 labels"),
        ({"y": Y[:, None]}, "one number per example"),
        ({"y": Y.astype(str)}, "whole numbers from 0"),
        ({"y": Y.astype(object)}, "plain array"),
        ({"x": changed(X, (4, 1), np.nan)}, "Input 4 of the training data holds NaN"),
        ({"x": changed(X, (4, 1), np.inf)}, "Input 4 of the training data holds NaN or infinite"),
        ({"x": changed(X.astype(np.float64), (4, 1), 1e300)}, "infinite"),
        ({"x": X[:0], "y": Y[:0]}, "training inputs are empty"),
        ({"x": X[:, 0]}, "one row per example"),
        ({"x": X.astype(object)}, "plain array"),
        ({"x": X.astype(complex)}, "numbers"),
        ({"x": [[1.0], [1.0, 2.0]]}, "as an array"),
        ({"x": X.astype(str)}, "Text needs features"),
        ({"test": TEST[0][:, :4]}, "shape (5,)"),
        ({"test": TEST[0].astype(np.uint8)}, "kind float like the training inputs, got (5,) and uint8"),
        ({"test": TEST[0][:0]}, "test inputs are empty"),
        ({"test": changed(TEST[0], (2, 2), np.nan)}, "Input 2 of the test data holds NaN"),
        ({"test": (TEST[0], TEST[1][:3])}, "20 test inputs but 3 labels"),
        ({"test": (TEST[0], TEST[1] + 1)}, "of the test data is 3; with classes=3"),
        ({"y": np.zeros(60, int), "config": make_config(classes=None)}, "classes of at least 2"),
        ({"model": "lenet6"}, "lenet6"),
        ({"model": "lenet5"}, "lenet5"),
        ({"model": 7}, "model to be one of linear"),
        ({"model": lambda: "no network"}, "torch.nn.Module"),
        ({"model": nn.Linear(WIDTH, CLASSES + 1)}, "3 logits"),
        ({"model": nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES))}, "BatchNorm"),
        ({"device": "cuda"} if not torch.cuda.is_available() else {"device": "cuda:99"}, "not available"),
        ({"device": "tpu?"}, "device"),
        ({"device": "meta"}, "not available"),
        ({"precision": "float16"}, "precision"),
        ({"in_flight": 0}, "in_flight"),
        ({"in_flight": 2.5}, "in_flight"),
        ({"config": {"instances": 3}}, "TrainConfig"),
        ({"keep_models": True}, "run_dir"),
        ({"assumptions": "One."}, "Expected assumptions as a list of sentences, got 'One.'"),
        ({"assumptions": ["One.", 2]}, "Expected assumptions as a list of sentences"),
        ({"root_seed": b"short"}, "32 bytes"),
        ({"root_seed": 7}, "32 bytes"),
        ({"features": "nonsense"}, "nonsense"),
        ({"features": 3}, "features.Frozen"),
        ({"features": "frozen"}, "function"),
        ({"config": make_config(pixel_mean=0.5)}, "8-bit images"),
    ],
)
def test_bad_input_is_refused_and_named(change: dict[str, Any], says: str) -> None:
    assert says in bad(**change)


def test_a_network_that_cannot_take_the_inputs_is_refused() -> None:
    assert "cannot take inputs of shape (5,)" in bad(model=nn.Linear(WIDTH + 1, CLASSES))


@pytest.mark.parametrize("data", [X, (X,), None, {"x": X, "y": Y}])
def test_the_training_set_is_a_pair(data: Any) -> None:
    with pytest.raises(ConfigError, match="pair"):
        train(data, TEST, model="linear", config=make_config())


def test_bad_input_leaves_a_run_directory_as_it_was(fake: Any, tmp_path: Path) -> None:
    run(tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    bad(run_dir=tmp_path / "run", y=Y[:-1])
    bad(run_dir=tmp_path / "new", y=Y[:-1])
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
    assert not (tmp_path / "new").exists()


def test_a_full_disk_keeps_what_is_finished(fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run()
    fake.reset()

    def fill_the_disk(group: range) -> None:
        if group.start == 6:
            monkeypatch.setattr(os, "fsync", full)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    fake.before_group = staticmethod(fill_the_disk)
    with monkeypatch.context():
        with pytest.raises(ArtifactError, match="No space left"):
            run(tmp_path / "run")
        monkeypatch.undo()
    monkeypatch.setattr(task, "Engine", fake)
    fake.reset()
    assert same_votes(run(tmp_path / "run"), expected)
    assert fake.trained == [range(6, 10)]


# --- features and text ----------------------------------------------------------------------------------------------


def test_text_is_trained_on_through_an_encoder() -> None:
    words = np.array(["good day", "bad night", "good night", "bad day", "good good", "bad bad"])
    labels = np.array([0, 1, 0, 1, 0, 1])
    config = make_config(instances=4, steps=30, sample_rate=1.0, noise_multiplier=0.5, num_train=6, classes=2)
    votes = train(
        (words, labels),
        ["good", "bad"],
        model="linear",
        config=config,
        features=HashedNgrams(dimension=64, chars=None, words=(1, 1)),
        device="cpu",
    )
    assert votes.counts.argmax(axis=1).tolist() == [0, 1]
    assert votes.recipe is not None
    assert votes.recipe["features"]["name"] == "hashed-ngrams"
    assert votes.assumptions == ()


def test_tokens_reach_a_network_that_looks_them_up() -> None:
    tokens = np.random.default_rng(0).integers(0, 9, (30, 4))
    model = nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(12, 2))
    config = make_config(instances=2, steps=2, classes=2)
    assert train((tokens, tokens[:, 0] % 2), tokens[:5], model=model, config=config, device="cpu").instances == 2


# --- images ---------------------------------------------------------------------------------------------------------


def images(count: int, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(count)
    return rng.integers(0, 256, (count, *shape)).astype(np.uint8), rng.integers(0, 2, count)


def small(**changes: Any) -> TrainConfig:
    return make_config(instances=2, steps=2, classes=2, **changes)


def test_images_are_scaled_by_constants_of_the_recipe(fake: Any) -> None:
    data, test = images(12, 28, 28), images(3, 28, 28)[0]
    recipe = train(data, test, model="lenet5", config=small()).recipe
    assert recipe is not None
    assert (recipe["config"]["pixel_mean"], recipe["config"]["pixel_std"]) == ([0.1307], [0.3081])
    own = train(data, test, model="linear", config=small(pixel_mean=0.5, pixel_std=0.25)).recipe
    assert own is not None
    assert (own["config"]["pixel_mean"], own["config"]["pixel_std"]) == ([0.5], [0.25])
    seen: list[Any] = []

    class Spy(FakeEngine):
        def __init__(self, model: Any, data: Any, config: Any, **options: Any) -> None:
            seen.append(data.inputs)
            super().__init__(model, data, config, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "Engine", Spy)
        train(data, test, model="linear", config=small(pixel_mean=0.5, pixel_std=0.25))
    assert seen[0].shape == (12, 1, 28, 28)
    assert seen[0].dtype == np.float32
    np.testing.assert_allclose(seen[0][:, 0], (data[0] / 255 - 0.5) / 0.25, rtol=1e-5, atol=1e-6)


def test_channels_that_come_last_are_not_guessed() -> None:
    x, y = images(12, 32, 32, 3)
    with pytest.raises(ConfigError, match="moveaxis"):
        train((x, y), x, model="opa-tut", config=small())


def test_lenet5_trains_on_images() -> None:
    votes = train(images(12, 28, 28), images(3, 28, 28), model="lenet5", config=small(), device="cpu")
    assert votes.instances == 2
    assert votes.recipe is not None
    assert votes.recipe["path"] == "fast"


class Squashed(nn.Module):
    """A network whose function is in its code and in an attribute, not in its layers."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.first, self.last, self.size = nn.Linear(4, 3), nn.Linear(3, 3), size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.size * torch.tanh(self.first(x)))


class Rectified(Squashed):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.size * torch.relu(self.first(x)))


def test_networks_of_the_same_layers_but_other_code_or_attributes_are_different() -> None:
    assert describe(Squashed(1.0)) == describe(Squashed(1.0))
    assert describe(Squashed(1.0)) != describe(Squashed(9.0))
    digests = {describe(model).split()[1] for model in (Squashed(1.0), Rectified(1.0))}
    assert len(digests) == 2


def test_features_of_a_trusted_encoder_are_part_of_the_data(fake: Any) -> None:
    def doubled(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return 2.0 * x

    def tripled(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return 3.0 * x

    one, two = (run(features=Frozen(function, "scaled", "nothing")) for function in (doubled, tripled))
    assert one.data_fingerprint != two.data_fingerprint
