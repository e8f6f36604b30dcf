"""Votes of kept models on inputs that nobody had when they were trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mithridate._io.files import PathLike
from mithridate.core.votes import Votes
from mithridate.data.examples import Dataset, Preparation, fingerprint, split_inputs
from mithridate.errors import ArtifactError, ConfigError
from mithridate.features import Encoder, Frozen, from_dict, pick_encoder
from mithridate.training.arithmetic import usual_settings
from mithridate.training.batch_source import TrainingRecipe
from mithridate.training.devices import is_out_of_memory
from mithridate.training.engine import Engine
from mithridate.training.models import MODELS
from mithridate.training.plain_config import recipe_from_dict
from mithridate.training.run import (
    Model,
    as_arrays,
    check_evidence,
    data_fingerprint,
    describe,
    pick_device,
    pick_model,
    row_by_row,
    votes_of,
)
from mithridate.training.run_directory import (
    Manifest,
    TallyArrays,
    added,
    check_tally,
    devices_of,
    is_handed_out,
    models_path,
    read_models,
)


@usual_settings()
def predict(
    run_dir: PathLike,
    inputs: npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike],
    *,
    model: Model | None = None,
    features: Encoder | None = None,
    device: str | torch.device = "auto",
) -> Votes:
    """How the models of a finished run vote on new inputs.

    Guarantee: every instance of the run votes, with the weights that training with `keep_models=True` left; mechanism,
    recipe, assumptions, run id and what is counted beside votes are those of the run. What a model of parts answers is
    to the bit a function of its weights: it is asked in the same group as at its training, alone on a CPU, and on a GPU
    only where a rehearsal found that the models beside it do not count.

    Assumes: whoever chose the inputs did not choose them by what these very models answer to others. The claim is about
    each input by itself, over the training of the models.

    Args:
        run_dir: the directory of a run that kept its models.
        inputs: raw inputs like those of the training set, or a pair with their true labels.
        model: the network, where the run was of a user's own; it must be the same.
        features: the encoder, where it was a `features.Frozen`; it must be the same.
        device: `cpu`, `cuda`, `mps` or `auto`.

    Raises:
        ArtifactError: the run is not finished, has no models, or they are damaged.
        ConfigError: the inputs are not like those of the training set, the model or encoder is not that of the run, or
            models of parts cannot be functions on this device.
    """
    path = Path(run_dir)
    manifest = Manifest.read(path / "run.json")
    if not manifest.keep_models:
        raise ArtifactError(f"The run in {path} did not keep its models; train with keep_models (--keep-models).")
    if is_handed_out(path):
        raise ArtifactError(
            f"{path} was handed out and has the models of some shards only. Copy the shards and models folders of all "
            "that were into the run that was split, run its mithridate train again, and predict there."
        )
    try:
        config = recipe_from_dict(manifest.recipe["config"])
        assert config.classes is not None
        _check_stored(manifest)
        preparation = _preparation(manifest, config, features)
    except (KeyError, TypeError, AttributeError, AssertionError) as error:
        raise ArtifactError(f"{path / 'run.json'} is damaged; models cannot be used without it.") from error
    raw, labels = split_inputs(inputs, "new", config.classes)
    prepared = preparation(raw, "new")
    if list(prepared.shape[1:]) != manifest.inputs["network_shape"]:
        raise ArtifactError(f"{path / 'run.json'} is damaged: its inputs are not those that its network takes.")
    target = pick_device(device)
    machine = _engine(manifest, config, prepared, model, target)
    total = _count(machine, path, manifest, prepared, target)
    identity = data_fingerprint(manifest.train_fingerprint, fingerprint(raw), manifest.recipe)
    return replace(votes_of(total, manifest, labels, identity), devices=devices_of(path, manifest))


def _check_stored(manifest: Manifest) -> None:
    """Require of the recipe and the inputs in `run.json` the kinds of values that are used here.

    Raises:
        KeyError: one is missing.
        TypeError: one is of another kind.
    """
    recipe, inputs = manifest.recipe, manifest.inputs
    shapes = (*inputs["shape"], *inputs["network_shape"])
    kinds = [(axis, int) for axis in shapes] + [(inputs["tokens"], int), (inputs["channel_axis"], bool)]
    kinds += [(value, str) for value in (inputs["kind"], recipe["model"], recipe["precision"], *_evidence(manifest))]
    for value, kind in kinds:
        if type(value) is not kind:
            raise TypeError(f"{value!r:.80} is of another kind than {kind.__name__}")
    if min(shapes, default=1) < 0 or inputs["tokens"] < 0:
        raise TypeError("a size is below zero")


def _evidence(manifest: Manifest) -> tuple[str, ...]:
    """What was counted beside votes at training."""
    return tuple(manifest.recipe.get("evidence", ()))


def _preparation(manifest: Manifest, config: TrainingRecipe, features: Any) -> Preparation:
    """The same scaling or encoder as in training."""
    stored, inputs = manifest.recipe["features"], manifest.inputs
    encoder = pick_encoder(row_by_row(features) if config.is_deterministic else features)
    if encoder is None and stored is not None:
        if stored["name"] == Frozen.name:
            raise ConfigError(f"This run used a frozen encoder, {stored}; give it again as features=.")
        encoder = from_dict(stored)
    if (None if encoder is None else encoder.to_dict()) != stored:
        raise ConfigError(f"Expected the features of the run, {stored}, got {features!r}.")
    return Preparation(
        tuple(inputs["shape"]),
        inputs["kind"],
        mean=config.pixel_mean,
        std=config.pixel_std,
        channel_axis=inputs["channel_axis"],
        tokens=inputs["tokens"],
        encoder=encoder,
    )


def _engine(
    manifest: Manifest,
    config: TrainingRecipe,
    inputs: npt.NDArray[Any],
    model: str | Model | None,
    device: torch.device,
) -> Engine:
    stored, shape = manifest.recipe["model"], tuple(manifest.inputs["network_shape"])
    assert config.classes is not None
    if model is None:
        if stored not in MODELS:
            raise ConfigError(f"This run used a network of its own, {stored}; give it again as model=.")
        model = stored
    elif (found := model if isinstance(model, str) else describe(model)) != stored:
        raise ConfigError(f"Expected the network of the run, {stored}, got {found}.")
    # Nothing is trained here: one example of zeros tells the engine the shape of its inputs.
    zeros = np.zeros((1, *shape), np.float32)
    nothing = Dataset(zeros.astype(np.int64) if manifest.inputs["tokens"] else zeros, np.zeros(1, np.int64), "")
    # Elsewhere than on a GPU all products are in single precision, however the models were trained.
    precision = manifest.recipe["precision"] if device.type == "cuda" else "float32"
    network = pick_model(model, shape, config.classes, on_features=manifest.recipe["features"] is not None)
    evidence = _evidence(manifest)
    check_evidence(evidence, len(inputs), config.classes)
    return Engine(
        network, nothing, config, device=device, precision=precision, in_flight=manifest.in_flight, evidence=evidence
    )


def _count(
    machine: Engine, path: Path, manifest: Manifest, inputs: npt.NDArray[Any], device: torch.device
) -> TallyArrays:
    total: TallyArrays | None = None
    sizes = set[int]()
    for group in manifest.ranges:
        weights = read_models(models_path(path, group), manifest, group)
        expected = {name: (len(group), *shape) for name, shape in machine.shapes.items()}
        if {name: array.shape for name, array in weights.items()} != expected:
            raise ArtifactError(f"The models in {models_path(path, group)} are not those of the recipe.")
        rows = np.concatenate([weights[name].reshape(len(group), -1) for name in machine.shapes], axis=1)
        models = torch.from_numpy(rows).to(device)
        if len(group) not in sizes:
            machine.check_answers(models, inputs)
        sizes.add(len(group))
        tally = _tally(machine, models, inputs)
        check_tally(group, tally)
        total = tally if total is None else added(total, tally)
    assert total is not None
    return total


def _tally(machine: Engine, weights: Tensor, inputs: npt.NDArray[Any]) -> TallyArrays:
    """Votes of some models, in halves where memory does not suffice."""
    try:
        return as_arrays(machine.tally(weights, inputs))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error) or len(weights) == 1:
            raise
    half = len(weights) // 2
    return added(_tally(machine, weights[:half], inputs), _tally(machine, weights[half:], inputs))
