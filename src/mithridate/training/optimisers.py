"""Optimisers on the flat weights of many models: post-processing of the sums."""

from __future__ import annotations

import torch
from torch import Tensor

from mithridate.training.config import Learning

_ADAM_EPSILON = 1e-8


class Optimiser:
    """The state of the optimiser of every model in flight; the weights are changed in place.

    Args:
        config: which optimiser, and its constants.
        weights: models x parameters, as they start.
    """

    def __init__(self, config: Learning, weights: Tensor) -> None:
        self._config = config
        self._step = 0
        self._weights = weights
        adam = config.optimizer == "adam"
        self._first = torch.zeros_like(weights) if adam or config.momentum else None
        self._second = torch.zeros_like(weights) if adam else None
        self._total = torch.zeros_like(weights) if config.average_iterates else None

    def update(self, gradients: Tensor) -> None:
        """One step along the mean gradients, noisy or not; they are overwritten."""
        config, weights = self._config, self._weights
        if config.weight_decay:
            gradients.add_(weights, alpha=config.weight_decay)
        rate = config.learning_rate_at(self._step)
        self._step += 1
        if self._second is not None:
            self._adam(gradients, rate)
        elif self._first is not None:
            self._first.mul_(config.momentum).add_(gradients)
            weights.sub_(self._first, alpha=rate)
        else:
            weights.sub_(gradients, alpha=rate)
        if self._total is not None:
            self._total.add_(weights)

    def _adam(self, gradients: Tensor, rate: float) -> None:
        assert self._first is not None
        assert self._second is not None
        one, two = self._config.betas
        self._first.mul_(one).add_(gradients, alpha=1.0 - one)
        self._second.mul_(two).addcmul_(gradients, gradients, value=1.0 - two)
        scale = (1.0 - two**self._step) ** 0.5
        spread = self._second.sqrt().div_(scale).add_(_ADAM_EPSILON)
        self._weights.addcdiv_(self._first, spread, value=-rate / (1.0 - one**self._step))

    def result(self) -> Tensor:
        """The weights that vote: the last ones, or the mean over all steps."""
        return self._weights if self._total is None else self._total / self._step
