"""How models vote: streamed, so that nothing grows with the number of models.

Scores of single models are added up as they come and then forgotten; sums are kept in double precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# Bytes of activations that are held while inputs are scored.
_BYTES = {"cpu": 2**26, "mps": 2**29, "cuda": 2**32}


class Scorer(Protocol):
    """A network that scores inputs."""

    def logits(self, weights: Tensor, inputs: Tensor) -> Tensor:
        """Models x inputs x classes."""
        ...


@dataclass(frozen=True, eq=False)
class Tally:
    """How some instances voted: sums over instances only, so that nothing grows with their number.

    Attributes:
        counts: votes, examples x classes.
        score_sums: sums of softmax scores, examples x classes, float64.
        score_squares: sums of their squares.
        score_histograms: scores counted in equal bins of [0, 1], examples x classes x bins; the last bin includes 1.
    """

    counts: npt.NDArray[np.int64]
    score_sums: npt.NDArray[np.float64]
    score_squares: npt.NDArray[np.float64]
    score_histograms: npt.NDArray[np.int64] | None

    def __add__(self, other: Tally) -> Tally:
        both = self.score_histograms is not None and other.score_histograms is not None
        return Tally(
            self.counts + other.counts,
            self.score_sums + other.score_sums,
            self.score_squares + other.score_squares,
            self.score_histograms + other.score_histograms if both else None,  # type: ignore[operator]
        )


class Counter:
    """Counts the votes of models on inputs, a piece at a time."""

    def __init__(self, network: Scorer, classes: int, bins: int, device: torch.device) -> None:
        self._network, self._classes, self._bins, self._device = network, classes, bins, device
        # Sums need double precision, which Apple's GPUs lack.
        self._home = torch.device("cpu") if device.type == "mps" else device

    def count(self, weights: Tensor, inputs: npt.NDArray[Any], mapped: Callable[..., Iterable[Any]] = map) -> Tally:
        """The votes of all models on all inputs; `mapped` is `map` or that of a pool."""
        pieces = list(mapped(partial(self._count_piece, weights), self._pieces(inputs, len(weights))))
        histograms = [piece[3] for piece in pieces]
        return Tally(
            np.concatenate([piece[0] for piece in pieces]),
            np.concatenate([piece[1] for piece in pieces]),
            np.concatenate([piece[2] for piece in pieces]),
            np.concatenate(histograms) if self._bins else None,  # type: ignore[arg-type]
        )

    def _pieces(self, inputs: npt.NDArray[Any], models: int) -> list[Tensor]:
        # Activations of a network are some hundred times as large as its inputs at most; on a CPU, those of one model.
        activations = 64 * 4 * max(int(np.prod(inputs.shape[1:])), 64) * (1 if self._device.type == "cpu" else models)
        scores = 4 * self._classes * (8 * models + self._bins)
        size = max(1, _BYTES[self._device.type] // (activations + scores))
        return [torch.from_numpy(inputs[at : at + size]) for at in range(0, len(inputs), size)]

    def _count_piece(self, weights: Tensor, inputs: Tensor) -> tuple[Any, Any, Any, Any]:
        logits = self._network.logits(weights, inputs.to(self._device)).to(self._home)
        logits = _settle_diverged(logits)
        scores = torch.softmax(logits, dim=2).clamp_(0.0, 1.0).double()
        labels = logits.argmax(dim=2)  # the first of equals
        counts = torch.zeros(len(inputs), self._classes, dtype=torch.int64, device=self._home)
        counts.scatter_add_(1, labels.T, torch.ones_like(labels.T))
        histograms = self._histograms(scores).cpu().numpy() if self._bins else None
        return counts.cpu().numpy(), scores.sum(0).cpu().numpy(), scores.square().sum(0).cpu().numpy(), histograms

    def _histograms(self, scores: Tensor) -> Tensor:
        bins = (scores * self._bins).long().clamp_max_(self._bins - 1).permute(1, 2, 0)
        counts = torch.zeros(*bins.shape[:2], self._bins, dtype=torch.int64, device=self._home)
        return counts.scatter_add_(2, bins, torch.ones_like(bins))


def _settle_diverged(logits: Tensor) -> Tensor:
    """Where a logit is not finite, all of the input's logits become those of a sure vote for label 0."""
    sure = torch.full_like(logits[0, 0], -torch.inf)
    sure[0] = 0.0
    return torch.where(torch.isfinite(logits).all(dim=2, keepdim=True), logits, sure)
