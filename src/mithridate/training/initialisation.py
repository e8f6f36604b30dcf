"""Fresh weights for every instance, from the law by which PyTorch initialises the layers of its model."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from mithridate.errors import ConfigError
from mithridate.training import suitability
from mithridate.training.network import Model
from mithridate.training.randomness import PUBLIC_SEED, Seeds

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


def check_repeatable(model: Model) -> None:
    """Require that what a model starts from is a function of the seed of its instance, and all else in it a constant.

    It is built, or reset, several times: an instance's weights must come out the same to the bit, and buffers must not
    depend on the instance. (Between two builds the generators of numpy and of Python move on, if they are used.)

    Raises:
        ConfigError: it is not so.
    """
    if isinstance(model, nn.Module) and _uniform_law(model) is not None:
        return
    seeds = Seeds.of(PUBLIC_SEED)
    first, second = (_reset_weights(model, seeds, [0]) for _ in range(2))
    if not same_bits(first, second):
        raise ConfigError(
            "The model starts from other weights every time that it is built, so they are no function of its seed; "
            "draw them with torch's random numbers only, not with those of numpy or Python."
        )
    if isinstance(model, nn.Module):
        return
    one, other = (dict(module.named_buffers()) for module in _built(model, seeds, [0, 1]))
    for name, buffer in one.items():
        if name not in other or not torch.equal(buffer, other[name]):
            raise ConfigError(
                f"Buffer {name} is another one every time that the model is built, but it is a constant of all "
                "instances; draw it once, outside of the function that builds the model."
            )


def same_bits(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors of float32 are equal to the bit."""
    return torch.equal(one.contiguous().view(torch.int32), two.contiguous().view(torch.int32))


def _built(build: Callable[[], nn.Module], seeds: Seeds, instances: Sequence[int]) -> Iterator[nn.Module]:
    """What a function builds for some instances, each before the next."""
    with torch.random.fork_rng(devices=[]):
        for instance in instances:
            torch.default_generator.manual_seed(seeds.key(instance, "initial weights") % 2**63)
            yield build()


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
    rows = [
        torch.cat([value.detach().float().flatten() for _, value in module.named_parameters()])
        for module in _built(_drawing(model), seeds, instances)
    ]
    return torch.stack(rows)


def _drawing(model: Model) -> Callable[[], nn.Module]:
    """A function that draws a module anew: the user's own, or one that resets a copy of the user's module."""
    if not isinstance(model, nn.Module):
        return model
    scratch = copy.deepcopy(model).cpu()
    with torch.random.fork_rng(devices=[]):
        suitability.reset_for_fresh_start(scratch)  # with all its checks, once
    layers = [layer for layer in reversed(list(scratch.modules())) if hasattr(layer, "reset_parameters")]

    def draw() -> nn.Module:
        for layer in layers:
            layer.reset_parameters()  # type: ignore[operator]
        return scratch

    return draw
