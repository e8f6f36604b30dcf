"""Noise on inputs, from the first draw to the last command."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from test_cli import refused, run, run_json

from mithridate import Certificate, Votes, certify, verify
from mithridate.core.input_change import InputNoise
from mithridate.data import Examples
from mithridate.data.examples import Preparation
from mithridate.defences import defence
from mithridate.defences.prediction import predict
from mithridate.errors import ConfigError
from mithridate.training.input_noise import NoisyInputs, trained_on
from mithridate.training.order import Ray
from mithridate.training.randomness import Seeds

CONSTANTS: dict[str, Any] = {
    "model": "linear",
    "features": "none",
    "instances": 12,
    "noise_multiplier": 1.0,
    "sample_rate": 0.2,
    "steps": 20,
    "max_grad_norm": 1.0,
    "learning_rate": 1.0,
    "num_train": 200,
    "classes": 2,
}


def numbers(count: int, seed: int, apart: float = 3.0) -> Examples:
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=count)
    x = rng.normal(size=(count, 4)).astype(np.float32)
    x[:, 0] += apart * (2 * y - 1)
    return Examples(x, y)


def images(count: int, seed: int) -> Examples:
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=count)
    x = np.where(y[:, None, None] == 1, 180, 70) + rng.integers(0, 20, size=(count, 6, 6))
    return Examples(x.astype(np.uint8), y)


def seen(x: npt.NDArray[Any], noise: InputNoise, instances: Sequence[int]) -> list[npt.NDArray[Any]]:
    kind = "uint8" if x.dtype == np.uint8 else "float"
    mean, std = ((0.0,), (1.0,)) if kind == "uint8" else (None, None)
    raw = Preparation(x.shape[1:], kind, mean, std)
    return [NoisyInputs(noise, x, raw).seen_by(Seeds.of(bytes(range(32))), each) for each in instances]


# --- draws ------------------------------------------------------------------------------------------------------------


def test_every_instance_and_every_input_has_noise_of_its_own() -> None:
    """Normal, of the stated deviation, and unrelated. Each test raises a false alarm with probability 1e-6."""
    x = np.zeros((400, 5), np.float32)
    x[:] = x[0]  # the same input, again and again
    one, other = seen(x, InputNoise(0.3), [0, 1])
    for draws in (one, other):
        assert stats.kstest(draws.ravel() / 0.3, "norm").pvalue > 1e-6
    for first, second in ((one.ravel(), other.ravel()), (one[:200].ravel(), one[200:].ravel())):
        assert stats.pearsonr(first, second).pvalue > 1e-6
    again = seen(x, InputNoise(0.3), [1])[0]
    assert np.array_equal(again, other)


def test_images_are_clipped_and_rounded_after_the_noise() -> None:
    x = np.full((300, 6, 6), 128, np.uint8)
    x[0], x[1] = 0, 255
    (found,) = seen(x, InputNoise(0.1, "pixels"), [0])
    grey = found * 255
    assert np.abs(grey - np.round(grey)).max() < 1e-4
    assert 0 <= grey.min() <= grey.max() <= 255
    assert np.std(grey[2:]) == pytest.approx(25.5, rel=0.02)
    # Half of the noise goes beyond white or black, and stays there.
    assert np.mean(grey[0] == 0) == pytest.approx(0.5, abs=0.3)
    assert np.mean(grey[1] == 255) == pytest.approx(0.5, abs=0.3)


@pytest.mark.parametrize("kind", ["numbers", "images"])
def test_what_an_example_is_trained_on_is_a_function_of_it_alone(kind: str) -> None:
    x = (numbers(60, 3) if kind == "numbers" else images(60, 3)).x
    noise = InputNoise(0.25, "pixels" if kind == "images" else "values")
    whole, order = trained_on(x, noise), np.random.default_rng(0).permutation(60)
    assert np.array_equal(trained_on(x[order], noise), whole[order])
    assert np.array_equal(trained_on(x[7:], noise), whole[7:])
    assert not np.array_equal(whole, x)
    assert whole.dtype == x.dtype
    if kind == "numbers":  # the type of an array follows any one of its examples
        with_another = np.concatenate([x, np.zeros((1, 4))])
        assert with_another.dtype == np.float64
        assert np.array_equal(trained_on(with_another, noise)[:60], whole)
        assert np.array_equal(trained_on(x.astype(">f4"), noise), whole)


def test_the_last_bits_of_noise_do_not_show_a_move_that_is_too_small_to_see() -> None:
    """A sum in single precision keeps the bits of its draw, which tell inputs apart that differ by 1e-6 of the noise.

    Here all sums are multiples of one grid, whatever the input is, so such a move changes hardly any of them.
    """
    noise, x = InputNoise(1.0), np.zeros((200, 784), np.float32)
    (still,), (moved,) = (seen(each, noise, [0]) for each in (x, x + np.float32(1e-6)))
    for each in (still, moved):
        assert np.array_equal(each * 2.0**12, np.rint(each * 2.0**12))
    assert np.mean(still != moved) < 0.01
    assert np.std(still) == pytest.approx(1, rel=0.01)


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fdp", "bagging"])
@pytest.mark.parametrize("kind", ["numbers", "images"])
def test_votes_are_the_same_however_instances_are_grouped(tmp_path: Path, method: str, kind: str) -> None:
    make = numbers if kind == "numbers" else images
    constants = CONSTANTS if method == "fdp" else {"instances": 12, "draws": 20, "classes": 2, "num_train": 200}
    made = defence(method, input_noise=0.4, **constants)
    found = [
        made.train(make(200, 1), make(30, 2), root_seed=bytes(32), in_flight=in_flight, device="cpu", **kept)
        for in_flight, kept in ((12, {}), (5, {"run_dir": tmp_path / "run", "keep_models": True}))
    ]
    assert found[0].counts.tolist() == found[1].counts.tolist()
    assert found[0].input_noise == InputNoise(0.4, "pixels" if kind == "images" else "values")
    assert Votes.load(tmp_path / "run" / "votes.npz").input_noise == found[0].input_noise
    # Models that were kept answer again, on noise that is drawn anew.
    again, third = (predict(tmp_path / "run", make(30, 2)) for _ in range(2))
    assert again.input_noise == found[0].input_noise
    assert again.instances == 12
    if kind == "numbers":  # whose classes lie far apart
        assert again.counts.argmax(axis=1).tolist() == found[0].counts.argmax(axis=1).tolist()
    else:
        assert again.counts.tolist() != third.counts.tolist()


@pytest.mark.more
def test_workers_of_a_cluster_see_the_same_noise() -> None:
    pytest.importorskip("ray")
    made = defence("fdp", input_noise=0.4, **CONSTANTS)
    here, there = (
        made.train(numbers(200, 1), numbers(30, 2), root_seed=bytes(32), device="cpu", in_flight=4, backend=backend)
        for backend in (None, Ray(workers=1))
    )
    assert here.counts.tolist() == there.counts.tolist()
    assert here.input_noise == there.input_noise


def test_noise_that_hides_the_input_leaves_nothing_to_vote_for() -> None:
    """So noise reaches the votes: at a thousandth of the distance of the classes all agree, at many times it nobody."""
    shares = [
        defence("fdp", input_noise=deviation, **{**CONSTANTS, "instances": 100})
        .train(numbers(200, 1), numbers(40, 2), root_seed=bytes(32), device="cpu")
        .counts.max(axis=1)
        .mean()
        for deviation in (1e-3, 300.0)
    ]
    assert shares[0] > 95
    assert shares[1] < 70


def test_certificates_of_a_run_verify_against_it(tmp_path: Path) -> None:
    made = defence("fdp", input_noise=0.5, **{**CONSTANTS, "instances": 200, "noise_multiplier": 4.0})
    votes = made.train(numbers(200, 1), numbers(20, 2), run_dir=tmp_path / "run", device="cpu")
    certificate = certify(votes, input_change=[0, 0.3])
    assert certificate.frontier is not None
    assert certificate.frontier.of == "values"
    assert certificate.frontier.radius[1].max() >= 0
    certificate.save(tmp_path / "run" / "certificate.json")
    assert verify(tmp_path / "run").valid
    assert any("standard deviation 0.5" in sentence for sentence in certificate.assumptions)
    # Votes that pretend to more noise than there was.
    header, arrays = votes.to_parts()
    forged = Votes.from_parts({**header, "input_noise": InputNoise(5.0).to_dict()}, arrays, "forged")
    certify(forged, input_change=[0, 0.3]).save(tmp_path / "forged.json")
    failed = {check.name for check in verify(tmp_path / "forged.json", run=tmp_path / "run").checks if not check.passed}
    assert {"source", "input noise"} <= failed


# --- the command line -------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, examples in (("train", numbers(200, 1)), ("test", numbers(15, 2))):
        np.savez(tmp_path / f"{name}.npz", x=examples.x, y=np.asarray(examples.y))
    return tmp_path


FLAGS = [
    *("train", "--train", "train.npz", "--test", "test.npz", "--run-dir", "run", "--model", "linear"),
    *("--features", "none", "--instances", "150", "--noise-multiplier", "4", "--sample-rate", "0.2", "--steps", "20"),
    *("--max-grad-norm", "1", "--learning-rate", "1", "--num-train", "200", "--classes", "2", "--device", "cpu"),
]


def test_from_training_to_the_report(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    assert run(capsys, *FLAGS, "--input-noise", "0.5").code == 0
    found = run_json(capsys, "certify", "run", "--input-change", "0.3,0", "--radii", "0,1")
    assert (found["input_change"], found["input_change_of"]) == (0, "values")
    assert [row["input_change"] for row in found["frontier"]] == [0, 0.3]
    assert found["frontier"][0]["radius"] == found["radius"]
    assert found["summary"]["frontier"][1]["input_change"] == 0.3
    saved = Certificate.load("run/certificate.json")
    assert saved.frontier is not None
    shown = run(capsys, "certify", "run", "--input-change", "0.1,0.3")
    assert "any change of the input of Euclidean length up to 0.1, in the numbers of an input" in " ".join(
        shown.out.split()
    )
    assert run(capsys, "verify", "run").code == 0
    assert run(capsys, "report", "run").code == 0
    new = run_json(capsys, "predict", "run", "test.npz", "--input-change", "0.3")
    assert len(new["predictions"]) == 15
    planned = run_json(
        capsys, "plan", "--noise-multiplier", "4", "--sample-rate", "0.2", "--steps", "20", "--instances", "150",
        "--classes", "2", "--input-noise", "0.5", "--input-change", "0,0.3",
    )  # fmt: skip
    assert json.dumps(planned["frontier"][0]["radius_by_top_share"]) == json.dumps(planned["radius_by_top_share"])


@pytest.mark.parametrize("given", ["-1", "far", "1,,2", "nan", "inf", ""])
def test_lengths_that_are_none_are_refused(capsys: pytest.CaptureFixture[str], files: Path, given: str) -> None:
    outcome = run(capsys, "certify", "run", f"--input-change={given}")
    assert (outcome.code, outcome.out) == (2, "")
    assert "argument --input-change: expected numbers of 0 or more such as 0.1,0.25" in outcome.err


def test_runs_without_noise_say_how_to_get_it(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    assert run(capsys, *FLAGS).code == 0
    assert "--input-noise S" in refused(capsys, "certify", "run", "--input-change", "0.1")


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["run-off-election", "finite-aggregation", "label-smoothing"])
def test_methods_without_a_proof_take_no_noise(method: str) -> None:
    with pytest.raises(ConfigError, match=r"input_noise.*fdp, bagging or dpa"):
        defence(method, input_noise=0.1)


@pytest.mark.parametrize("value", [0, 1e-50, 1e39, -0.1, float("nan"), float("inf"), "much"])
def test_noise_of_no_size_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="input_noise"):
        defence("fdp", input_noise=value)


def test_learners_take_none() -> None:
    with pytest.raises(ConfigError, match="networks"):
        defence("bagging", learner="logistic", input_noise=0.1)


def test_texts_have_no_euclidean_length() -> None:
    texts = np.array(["a cat", "a dog"] * 20)
    with pytest.raises(ConfigError, match="Euclidean"):
        defence("fdp", input_noise=0.1, instances=3).train(Examples(texts, np.arange(40) % 2), texts[:2])
