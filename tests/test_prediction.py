"""Votes of kept models on new inputs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import nn
from training_doubles import (
    CLASSES,
    SEED,
    TEST,
    TRAIN,
    WIDTH,
    FakeEngine,
    make_config,
    make_data,
    same_votes,
    train_plain,
)

from mithridate import ArtifactError, ConfigError, Votes, certify, predict, train
from mithridate.data.partition import content_hashes, parts
from mithridate.defences.bagging import Bootstrap
from mithridate.defences.partitions import Parts, SpreadParts
from mithridate.defences.smoothing import FlippedLabels, NoisedFeatures
from mithridate.features import Frozen, UnitNorm
from mithridate.training import task
from mithridate.training.config import PlainConfig, ViewPlan
from mithridate.training.network import FastNetwork


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Votes]:
    """A finished run that kept its models; tests must not change it."""
    folder = tmp_path_factory.mktemp("kept") / "run"
    options: dict[str, Any] = {"config": make_config(num_train=None), "in_flight": 4, "device": "cpu"}
    votes = train(TRAIN, TEST, model="linear", run_dir=folder, keep_models=True, root_seed=SEED, **options)
    return folder, votes


def copy_of(folder: Path, target: Path) -> Path:
    for path in folder.rglob("*"):
        if path.is_file():
            (target / path.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
            (target / path.relative_to(folder)).write_bytes(path.read_bytes())
    return target


def test_the_models_answer_again_as_they_did(kept: tuple[Path, Votes]) -> None:
    folder, votes = kept
    again = predict(folder, TEST, device="cpu")
    assert again.equals(votes)
    with pytest.raises(ConfigError, match="share a run"):
        votes.merge(again)


def test_new_inputs_get_the_votes_of_every_instance(kept: tuple[Path, Votes]) -> None:
    folder, votes = kept
    x, _ = make_data(9, seed=4)
    new = predict(folder, x, device="cpu")
    assert (new.instances, new.examples, new.labels) == (10, 9, None)
    for name in ("mechanism", "recipe", "assumptions", "run_ids"):
        assert getattr(new, name) == getattr(votes, name)
    assert new.data_fingerprint != votes.data_fingerprint
    assert set(votes.assumptions) < set(certify(new).assumptions)


def test_the_votes_are_those_of_the_weights_on_the_disk(kept: tuple[Path, Votes]) -> None:
    """A loop over single models, without the engine."""
    folder, _ = kept
    x, _ = make_data(9, seed=4)
    counts = np.zeros((9, CLASSES), np.int64)
    for path in sorted((folder / "models").iterdir()):
        weights = load_file(path)
        matrices = next(array for name, array in weights.items() if name.endswith("weight"))
        biases = next(array for name, array in weights.items() if name.endswith("bias"))
        for matrix, bias in zip(matrices, biases, strict=True):
            counts[np.arange(9), (x @ matrix.T + bias).argmax(axis=1)] += 1
    assert np.array_equal(predict(folder, x, device="cpu").counts, counts)


def test_images_are_scaled_as_in_training(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (20, 6, 6)).astype(np.uint8), rng.integers(0, 2, 20)
    config = make_config(instances=3, steps=2, classes=2, pixel_mean=0.25, pixel_std=0.5)
    votes = train((x, y), (x, y), model="linear", config=config, run_dir=tmp_path, keep_models=True, device="cpu")
    assert same_votes(predict(tmp_path, (x, y), device="cpu"), votes)
    with pytest.raises(ConfigError, match="kind uint8"):
        predict(tmp_path, x / 255.0, device="cpu")


def test_models_of_a_gpu_answer_on_any_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"config": make_config(instances=3), "run_dir": tmp_path, "keep_models": True}
    with monkeypatch.context() as patch:
        patch.setattr(task, "Engine", FakeEngine)  # as if it had another precision than this machine
        votes = train(TRAIN, TEST, model="linear", precision="tf32", device="cpu", **options)
    assert votes.recipe is not None
    assert votes.recipe["precision"] == "tf32"
    assert predict(tmp_path, TEST, device="cpu").recipe == votes.recipe


def test_named_features_are_computed_again(tmp_path: Path) -> None:
    options: dict[str, Any] = {"config": make_config(instances=3, steps=2), "run_dir": tmp_path, "keep_models": True}
    votes = train(
        TRAIN, TEST, model="linear", features=UnitNorm(bias=0.5, center=(1.0,) * WIDTH), device="cpu", **options
    )
    assert predict(tmp_path, TEST, device="cpu").equals(votes)
    with pytest.raises(ConfigError, match="features of the run"):
        predict(tmp_path, TEST, features=UnitNorm(), device="cpu")


def squares(title: str = "squares") -> Frozen:
    return Frozen(np.square, title=title, trained_on="nothing")


def test_a_network_and_an_encoder_of_the_user_are_given_again(tmp_path: Path) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, CLASSES))

    options: dict[str, Any] = {"config": make_config(instances=3, steps=2), "run_dir": tmp_path, "keep_models": True}
    votes = train(TRAIN, TEST, model=model(), features=squares(), device="cpu", **options)
    assert predict(tmp_path, TEST, model=model(), features=squares(), device="cpu").equals(votes)
    with pytest.raises(ConfigError, match="give it again as model="):
        predict(tmp_path, TEST, features=squares(), device="cpu")
    with pytest.raises(ConfigError, match="network of the run"):
        predict(tmp_path, TEST, model=nn.Linear(WIDTH, CLASSES), features=squares(), device="cpu")
    with pytest.raises(ConfigError, match="network of the run"):
        predict(tmp_path, TEST, model="linear", features=squares(), device="cpu")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="give it again as features="):
        predict(tmp_path, TEST, model=model(), device="cpu")
    with pytest.raises(ConfigError, match="features of the run"):
        predict(tmp_path, TEST, model=model(), features=squares("cubes"), device="cpu")


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (TEST[0][:, :3], "shape"),
        (TEST[0][:0], "empty"),
        (np.full((2, WIDTH), np.nan, np.float32), "NaN"),
        ((TEST[0], TEST[1][:2]), "20 new inputs but 2 labels"),
        ((TEST[0], TEST[1] + 5), "of the new data"),
    ],
)
def test_bad_inputs_are_refused(kept: tuple[Path, Votes], inputs: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        predict(kept[0], inputs, device="cpu")


def test_a_run_without_models_says_how_to_keep_them(tmp_path: Path) -> None:
    train(TRAIN, TEST, model="linear", config=make_config(instances=2, steps=1), run_dir=tmp_path, device="cpu")
    with pytest.raises(ArtifactError, match="--keep-models"):
        predict(tmp_path, TEST)
    with pytest.raises(ArtifactError, match="directory of a run"):
        predict(tmp_path / "nowhere", TEST)


def test_missing_models_are_never_left_out(kept: tuple[Path, Votes], tmp_path: Path) -> None:
    run = copy_of(kept[0], tmp_path / "run")
    path = sorted((run / "models").iterdir())[1]
    path.unlink()
    with pytest.raises(ArtifactError, match="missing or damaged"):
        predict(run, TEST, device="cpu")


def test_models_that_were_changed_are_refused(kept: tuple[Path, Votes], tmp_path: Path) -> None:
    run = copy_of(kept[0], tmp_path / "run")
    path = sorted((run / "models").iterdir())[0]
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ArtifactError, match="changed after"):
        predict(run, TEST, device="cpu")
    path.write_bytes(data)
    foreign = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**foreign, "run_id": "00" * 16}))
    with pytest.raises(ArtifactError, match="another run"):
        predict(run, TEST, device="cpu")


def test_a_pickle_is_never_loaded(kept: tuple[Path, Votes], tmp_path: Path) -> None:
    run = copy_of(kept[0], tmp_path / "run")
    path = sorted((run / "models").iterdir())[0]
    torch.save({"weight": torch.ones(2)}, path)
    with pytest.raises(ArtifactError, match="damaged"):
        predict(run, TEST, device="cpu")


def test_weights_of_another_shape_are_refused(kept: tuple[Path, Votes], tmp_path: Path) -> None:
    from mithridate.training.run_directory import Manifest, _digest, _metadata

    run = copy_of(kept[0], tmp_path / "run")
    path = sorted((run / "models").iterdir())[0]
    manifest = Manifest.read(run / "run.json")
    weights = {name: np.ascontiguousarray(array[..., :1]) for name, array in load_file(path).items()}
    save_file(weights, path, {**_metadata(manifest, manifest.ranges[0]), "sha256": _digest(weights)})
    with pytest.raises(ArtifactError, match="not those of the recipe"):
        predict(run, TEST, device="cpu")


# --- models without privacy -------------------------------------------------------------------------------------------

PLANS = [Bootstrap(7, 20), FlippedLabels(7, 0.3), NoisedFeatures(7, 0.5), Parts(7), SpreadParts(4, 2)]
OWN = {
    "linear": (lambda: "linear", (WIDTH,)),
    "lenet5": (lambda: "lenet5", (16, 16)),
    "general": (lambda: nn.Sequential(nn.Linear(WIDTH, 5), nn.Softmax(dim=1), nn.Linear(5, CLASSES)), (WIDTH,)),
}


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("name", OWN)
def test_models_of_every_plan_answer_again_as_they_did(name: str, plan: ViewPlan, tmp_path: Path) -> None:
    build, shape = OWN[name]
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (60, *shape)).astype(np.uint8) if name == "lenet5" else TRAIN[0]
    test = (x[:20], TRAIN[1][:20])
    votes = train_plain(
        (x, TRAIN[1]), test, model=build(), plan=plan, config=PlainConfig(steps=4, batch_size=8, score_bins=8),
        device="cpu", in_flight=3, run_dir=tmp_path, keep_models=True, preferences=isinstance(plan, Parts),
    )  # fmt: skip
    model = None if name != "general" else build()
    assert predict(tmp_path, test, model=model, device="cpu").equals(votes)  # type: ignore[arg-type]
    assert set(votes.evidence) == {"Parts": {"predictions", "preferences"}, "SpreadParts": {"predictions"}}.get(
        type(plan).__name__, set()
    )
    new = predict(tmp_path, x[30:41], model=model, device="cpu")  # type: ignore[arg-type]
    assert (new.instances, new.examples, new.mechanism) == (plan.models, 11, votes.mechanism)
    assert {array.shape[0] for array in new.evidence.values()} <= {11}
    assert new.assumptions == votes.assumptions


def test_a_model_of_a_part_answers_whatever_the_others_became(tmp_path: Path) -> None:
    x, y = TRAIN
    plan, options = SpreadParts(6, 1), {"model": "mlp", "config": PlainConfig(steps=4, batch_size=8), "device": "cpu"}
    kept = parts(content_hashes(x, y), 6)[2]
    other = np.concatenate([x[kept], make_data(40, seed=9)[0] * 1e20]), np.concatenate([y[kept], y[:40]])
    spare = content_hashes(*other)[:, 0] % np.uint64(6) != 2
    spare[: len(kept)] = True
    answers = []
    for number, data in enumerate(((x, y), (other[0][spare], other[1][spare]))):
        folder = tmp_path / str(number)
        train_plain(data, TEST, plan=plan, run_dir=folder, keep_models=True, **options)  # type: ignore[arg-type]
        answers.append(predict(folder, make_data(30, seed=4)[0], device="cpu").evidence["predictions"])
    assert np.array_equal(answers[0][:, 2], answers[1][:, 2])
    assert not np.array_equal(answers[0], answers[1])


def test_an_encoder_of_the_user_takes_one_row_at_a_time_again(tmp_path: Path) -> None:
    encoder = Frozen(lambda rows: rows * (1.0 + 1e-6 * len(rows)), title="rough", trained_on="nothing")
    options: dict[str, Any] = {"model": "linear", "config": PlainConfig(steps=4), "device": "cpu", "features": encoder}
    votes = train_plain(TRAIN, TEST, plan=Parts(5), run_dir=tmp_path, keep_models=True, **options)
    assert predict(tmp_path, TEST, features=encoder, device="cpu").equals(votes)


def test_a_device_on_which_models_disturb_each_other_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = PlainConfig(steps=2)
    for plan in (Parts(5), Bootstrap(5, 20)):
        folder = tmp_path / plan.type
        train_plain(TRAIN, TEST, model="linear", plan=plan, config=config, run_dir=folder, keep_models=True)
    logits = FastNetwork.logits
    monkeypatch.setattr(FastNetwork, "logits", lambda s, w, x: logits(s, w, x) + 1e-6 * w.nan_to_num().mean())
    with pytest.raises(ConfigError, match=r"depends on those that are asked beside it.*device='cpu'"):
        predict(tmp_path / "parts", TEST, device="cpu")
    assert predict(tmp_path / "bootstrap", TEST, device="cpu").instances == 5
