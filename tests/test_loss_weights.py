"""Losses that are weighed by the label of the example, before its gradient is clipped; on both paths, at every door."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpu_checks import assert_near
from reference import random_batch, random_weights, with_weights
from torch import Tensor, nn
from torch.nn import functional as F

from mithridate import ConfigError, TrainConfig, certify, verify
from mithridate.defences import DPA, Bagging, FeatureSmoothing, LabelSmoothing, RunOffElection
from mithridate.defences.registry import defence
from mithridate.training.config import PlainConfig, PlainRecipe, recipe_from_dict
from mithridate.training.general import GeneralNetwork
from mithridate.training.network import FastNetwork

MODULE = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
WEIGHTS = (0.25, 1.0, 40.0)
SMALL: dict[str, Any] = {"classes": 2, "num_train": 400, "model": "linear", "features": "none", "steps": 60}


def slow_sums(weights: Tensor, inputs: Tensor, labels: Tensor, present: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """One example at a time: the gradient of weight x loss, then clipped; and its norm before."""
    longest = bound * (1 - 2.0**-9 - 2.0**-15)  # less the margin that is set aside for rounding
    sums, norms = torch.zeros(weights.shape, dtype=torch.float64), torch.zeros(labels.shape, dtype=torch.float64)
    for model, example in present.nonzero().tolist():
        single, label = with_weights(MODULE, weights[model]), labels[model, example]
        loss = WEIGHTS[int(label)] * F.cross_entropy(single(inputs[model, example].double()[None]), label[None])
        flat = torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(single.parameters()))])
        norms[model, example] = flat.norm()
        sums[model] += flat * min(1.0, longest / float(flat.norm()))
    return sums, norms


NETWORKS: list[Callable[[], Any]] = [
    lambda: FastNetwork(MODULE, (4,), torch.float32),
    lambda: GeneralNetwork(MODULE, (4,)),
]


@pytest.mark.parametrize("build", NETWORKS, ids=["fast", "general"])
def test_gradients_are_weighed_before_they_are_clipped(build: Callable[[], Any]) -> None:
    weights = random_weights(MODULE, 3, seed=1)
    inputs, labels, present = random_batch(MODULE, (4,), 3, 9, seed=2)
    labels = labels % 3
    network = build()
    plain = network.clipped_sums(weights, inputs, labels, present, 1.0)
    network.loss_weights = torch.ones(3)
    assert torch.equal(network.clipped_sums(weights, inputs, labels, present, 1.0), plain)
    network.loss_weights = torch.tensor(WEIGHTS)
    for bound in (1e30, 1.0, 0.1):
        expected, norms = slow_sums(weights, inputs, labels, present, bound)
        assert_near(network.clipped_sums(weights, inputs, labels, present, bound), expected)
    assert norms[present].max() > 1.0 > norms[present].min()


@pytest.mark.parametrize("build", NETWORKS, ids=["fast", "general"])
def test_no_weight_lets_an_example_move_a_sum_farther(build: Callable[[], Any]) -> None:
    weights = random_weights(MODULE, 1, seed=3)
    inputs, labels, _ = random_batch(MODULE, (4,), 1, 6, seed=4)
    network, everyone = build(), torch.ones(1, 6, dtype=torch.bool)
    for heavy in (1e-6, 1.0, 1e6):
        network.loss_weights = torch.full((3,), heavy)
        together = network.clipped_sums(weights, inputs, labels % 3, everyone, 0.5).double()
        for left_out in range(6):
            without = everyone.clone()
            without[0, left_out] = False
            alone = network.clipped_sums(weights, inputs, labels % 3, without, 0.5).double()
            assert (together - alone).norm() <= 0.5


def _rare() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(8)
    labels = (rng.random(600) < 0.08).astype(np.int64)
    return (rng.normal(size=(600, 3)) + 1.1 * labels[:, None]).astype(np.float32), labels


def _votes(build: Any, **options: Any) -> Any:
    x, y = _rare()
    seed = None if issubclass(build, DPA) else bytes(32)  # models of parts draw nothing
    return build(**SMALL, **options).train((x[:400], y[:400]), (x[400:], y[400:]), device="cpu", root_seed=seed)


def test_run_off_and_smoothing_weigh_their_losses() -> None:
    cases: list[tuple[Any, dict[str, Any]]] = [
        (RunOffElection, {"partitions": 8}),
        (LabelSmoothing, {"flip_prob": 0.1, "instances": 8}),
        (FeatureSmoothing, {"noise": 0.3, "max_change": 0.1, "instances": 8}),
    ]
    for build, own in cases:
        plain, weighed = _votes(build, **own), _votes(build, class_weights=[1, 12], **own)
        again = _votes(build, loss_weights=[1.0, 12.0], **own)
        assert (weighed.counts == again.counts).all()
        assert weighed.counts[:, 1].sum() > 2 * plain.counts[:, 1].sum()
        assert "class_weights" not in weighed.recipe["rule"]
        assert weighed.recipe["config"]["loss_weights"] == [1.0, 12.0] if "config" in weighed.recipe else True
        with pytest.raises(ConfigError, match="one of the two"):
            build(class_weights=[1, 2], loss_weights=[1, 2], **own)


@pytest.mark.parametrize("build", [DPA, Bagging])
def test_losses_and_votes_are_weighed_apart(build: Any) -> None:
    own = {"partitions": 8} if build is DPA else {"draws": 40, "instances": 8}
    plain, votes = _votes(build, **own), _votes(build, class_weights=[1, 12], **own)
    assert (plain.counts == votes.counts).all()
    assert votes.recipe["rule"]["class_weights"] == [1, 12]
    losses = _votes(build, loss_weights=[1, 12], **own)
    assert losses.counts[:, 1].sum() > plain.counts[:, 1].sum()
    assert build(loss_weights=[1, 12]).training_key != build().training_key


def test_private_models_weigh_their_losses(tmp_path: Path) -> None:
    private = {**SMALL, "instances": 12, "noise_multiplier": 1.0, "sample_rate": 0.2, "max_grad_norm": 1.0}
    private["learning_rate"] = 0.5
    x, y = _rare()
    counts = []
    for weights in (None, [0.08, 1.0]):  # what is clipped cannot weigh more, so others weigh less
        chosen = defence("fdp", **private, **({} if weights is None else {"loss_weights": weights}))
        votes = chosen.train((x[:400], y[:400]), (x[400:], y[400:]), device="cpu", root_seed=bytes(32))
        counts.append(int(votes.counts[:, 1].sum()))
        # The mechanism is the same one: weights come before the clipping.
        assert votes.mechanism.to_dict()["noise_multiplier"] == 1.0
        certify(votes).save(tmp_path / "certificate.json")
        assert verify(tmp_path / "certificate.json").valid
    assert counts[1] > counts[0]


def test_configurations_are_read_back_and_say_nothing_where_there_is_nothing() -> None:
    private = TrainConfig(1, 1.0, 0.1, 10, 1.0, 0.5, loss_weights=(1, 2.5))
    plain = PlainRecipe.of(PlainConfig(loss_weights=(1, 2.5)), DPA(partitions=3).plan())
    for config in (private, plain):
        assert config.to_dict()["loss_weights"] == [1.0, 2.5]
        assert recipe_from_dict(config.to_dict()) == config
    assert "loss_weights" not in TrainConfig(1, 1.0, 0.1, 10, 1.0, 0.5).to_dict()
    without = PlainRecipe.of(PlainConfig(), DPA(partitions=3).plan())
    assert "loss_weights" not in without.to_dict()
    assert recipe_from_dict(without.to_dict()) == without


@pytest.mark.parametrize(
    "weights", [(0, 1), (-1.0, 2.0), (1e7, 1), (float("nan"), 1), [1.0], 3.0, ("1", "2"), (1, 2, 3)]
)
def test_loss_weights_that_make_no_sense_are_refused(weights: Any) -> None:
    for build in (DPA, LabelSmoothing, lambda **options: defence("fdp", **options)):
        with pytest.raises(ConfigError, match="loss_weights"):
            build(loss_weights=weights, classes=2)
