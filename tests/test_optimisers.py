"""Optimisers against those of PyTorch, on one model after another."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mithridate import TrainConfig
from mithridate.training.devices import Optimiser

MODELS, SIZE, STEPS = 3, 17, 12
Maker = Callable[[list[Tensor]], torch.optim.Optimizer]


def config(**changes: Any) -> TrainConfig:
    return TrainConfig(MODELS, 1.0, 0.1, STEPS, 1.0, **{"learning_rate": 0.3, **changes})


def gradients_of(step: int) -> Tensor:
    return torch.randn(MODELS, SIZE, generator=torch.Generator().manual_seed(100 + step))


def start() -> Tensor:
    return torch.randn(MODELS, SIZE, generator=torch.Generator().manual_seed(7))


def ours(recipe: TrainConfig) -> list[Tensor]:
    """The weights after every step, and at last what votes."""
    weights = start()
    optimiser = Optimiser(recipe, weights)
    iterates = []
    for step in range(STEPS):
        optimiser.update(gradients_of(step))
        iterates.append(weights.clone())
    return [*iterates, optimiser.result()]


def theirs(make: Maker, *, cosine: bool = False) -> list[Tensor]:
    rows = [row.clone().requires_grad_() for row in start()]
    optimisers = [make([row]) for row in rows]
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(each, STEPS) for each in optimisers] if cosine else []
    iterates = []
    for step in range(STEPS):
        for row, gradient, optimiser in zip(rows, gradients_of(step), optimisers, strict=True):
            row.grad = gradient.clone()
            optimiser.step()
        for schedule in schedules:
            schedule.step()
        iterates.append(torch.stack([row.detach().clone() for row in rows]))
    return iterates


SGD, ADAM = torch.optim.SGD, torch.optim.Adam
CASES: dict[str, tuple[dict[str, Any], Maker]] = {
    "sgd": ({}, lambda rows: SGD(rows, 0.3)),
    "weight decay": ({"weight_decay": 0.2}, lambda rows: SGD(rows, 0.3, weight_decay=0.2)),
    "momentum": ({"momentum": 0.9}, lambda rows: SGD(rows, 0.3, momentum=0.9)),
    "momentum and weight decay": (
        {"momentum": 0.7, "weight_decay": 0.1},
        lambda rows: SGD(rows, 0.3, momentum=0.7, weight_decay=0.1),
    ),
    "adam": ({"optimizer": "adam"}, lambda rows: ADAM(rows, 0.3)),
    "adam with other betas": (
        {"optimizer": "adam", "betas": (0.5, 0.9)},
        lambda rows: ADAM(rows, 0.3, betas=(0.5, 0.9)),
    ),
    "adam without memory": ({"optimizer": "adam", "betas": (0.0, 0.0)}, lambda rows: ADAM(rows, 0.3, betas=(0.0, 0.0))),
    # Added to the gradient (L2), as in torch.optim.Adam; not decoupled, as in AdamW.
    "adam and weight decay": (
        {"optimizer": "adam", "weight_decay": 0.4},
        lambda rows: ADAM(rows, 0.3, weight_decay=0.4),
    ),
}


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("name", CASES)
def test_iterates_are_those_of_pytorch(name: str, schedule: str) -> None:
    changes, make = CASES[name]
    found = ours(config(**changes, schedule=schedule))
    expected = theirs(make, cosine=schedule == "cosine")
    for one, two in zip(found[:-1], expected, strict=True):
        torch.testing.assert_close(one, two, rtol=2e-5, atol=2e-6)
    assert torch.equal(found[-1], found[-2])


@pytest.mark.parametrize("name", CASES)
def test_averaged_iterates_are_the_mean_over_all_steps(name: str) -> None:
    changes, make = CASES[name]
    mean = torch.stack(theirs(make)).double().mean(dim=0)
    result = ours(config(**changes, average_iterates=True))[-1]
    torch.testing.assert_close(result.double(), mean, rtol=2e-5, atol=2e-6)
    # The start is not among them.
    assert not torch.allclose(result.double(), (mean * STEPS + start()) / (STEPS + 1), atol=1e-3)


def test_the_cosine_schedule_is_that_of_pytorch_at_every_step() -> None:
    recipe = config(schedule="cosine")
    row = torch.zeros(1, requires_grad=True)
    optimiser = SGD([row], 0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    for step in range(STEPS):
        assert recipe.learning_rate_at(step) == pytest.approx(schedule.get_last_lr()[0], rel=1e-12)
        optimiser.step()
        schedule.step()


def test_weights_are_changed_in_place_and_models_do_not_mix() -> None:
    recipe = config(optimizer="adam")
    weights = start()
    together = Optimiser(recipe, weights)
    alone_weights = start()[1:2].clone()
    alone = Optimiser(recipe, alone_weights)
    for step in range(3):
        together.update(gradients_of(step))
        alone.update(gradients_of(step)[1:2].clone())
    assert together.result() is weights
    assert torch.equal(weights[1:2], alone_weights)
