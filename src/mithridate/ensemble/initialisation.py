"""Fresh weights for every instance, from the law by which PyTorch initialises the layers of its model."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from mithridate.ensemble import suitability
from mithridate.ensemble.network import Model
from mithridate.ensemble.randomness import Seeds

_UNIFORM = (nn.Linear, nn.Conv1d, nn.Conv2d)
_CONSTANT = (nn.GroupNorm, nn.LayerNorm)


def initial_weights(model: Model, seeds: Seeds, instances: Sequence[int]) -> Tensor:
    """Fresh weights of some instances, models x parameters, each drawn from the model's own law of initialisation."""
    law = _uniform_law(model) if isinstance(model, nn.Module) else None
    if law is not None:
        low, width = law
        rows = np.empty((len(instances), len(low)), np.float32)
        for row, instance in zip(rows, instances, strict=True):
            seeds.generator(instance, "initial weights").random(dtype=np.float32, out=row)
            row *= width
            row += low
        return torch.from_numpy(rows)
    return _reset_weights(model, seeds, instances)


def _uniform_law(module: nn.Module) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None:
    """The lowest value of each weight and the width of its interval, where all layers are PyTorch's own.

    `Linear` and convolutions draw weights and biases from U(-1/sqrt(n), 1/sqrt(n)), n the number of inputs of an
    output; norms start at 1 and 0. Drawing all at once is several times faster than resetting layer by layer.
    """
    low: list[npt.NDArray[np.float32]] = []
    width: list[npt.NDArray[np.float32]] = []
    for layer in module.modules():
        own = list(layer.named_parameters(recurse=False))
        if own and type(layer) not in (*_UNIFORM, *_CONSTANT):
            return None
    for name, parameter in module.named_parameters():
        owner = module.get_submodule(name.rpartition(".")[0])
        if type(owner) in _UNIFORM:
            weight = owner.weight
            bound = 1.0 / math.sqrt(weight[0].numel())  # type: ignore[index, union-attr]
            low.append(np.full(parameter.numel(), -bound, np.float32))
            width.append(np.full(parameter.numel(), 2.0 * bound, np.float32))
        else:
            low.append(np.full(parameter.numel(), 1.0 if name.endswith("weight") else 0.0, np.float32))
            width.append(np.zeros(parameter.numel(), np.float32))
    if not low:
        return None
    return np.concatenate(low), np.concatenate(width)


def _reset_weights(model: Model, seeds: Seeds, instances: Sequence[int]) -> Tensor:
    """By `reset_parameters` of every layer, or by the user's function; PyTorch's generator takes 32 bits of a key."""
    with torch.random.fork_rng(devices=[]):
        draw = _drawing(model)
        rows: list[Tensor] = []
        for instance in instances:
            torch.default_generator.manual_seed(seeds.key(instance, "initial weights") % 2**63)
            rows.append(torch.cat([value.detach().float().flatten() for _, value in draw().named_parameters()]))
        return torch.stack(rows)


def _drawing(model: Model) -> Callable[[], nn.Module]:
    """A function that draws a module anew: the user's own, or one that resets a copy of the user's module."""
    if not isinstance(model, nn.Module):
        return model
    scratch = copy.deepcopy(model).cpu()
    suitability.reset_for_fresh_start(scratch)  # with all its checks, once
    layers = [layer for layer in reversed(list(scratch.modules())) if hasattr(layer, "reset_parameters")]

    def draw() -> nn.Module:
        for layer in layers:
            layer.reset_parameters()  # type: ignore[operator]
        return scratch

    return draw
