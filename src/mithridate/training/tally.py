"""How models vote: streamed, so that nothing grows with the number of models unless it is asked for.

Scores of single models are added up as they come and then forgotten; sums are kept in double precision.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, fields
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
    """How some instances voted: sums over instances, and what each of them said only where that is asked for.

    Attributes:
        counts: votes, examples x classes.
        score_sums: sums of softmax scores, examples x classes, float64.
        score_squares: sums of their squares.
        score_histograms: scores counted in equal bins of [0, 1], examples x classes x bins; the last bin includes 1.
        predictions: the label that each instance votes for, examples x instances.
        preferences: examples x classes x classes; [x, a, b] instances score a above b on x, of equals the smaller.
    """

    counts: npt.NDArray[np.int64]
    score_sums: npt.NDArray[np.float64]
    score_squares: npt.NDArray[np.float64]
    score_histograms: npt.NDArray[np.int64] | None
    predictions: npt.NDArray[np.uint16] | None = None
    preferences: npt.NDArray[np.int64] | None = None

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.counts + other.counts,
            self.score_sums + other.score_sums,
            self.score_squares + other.score_squares,
            _both(np.add, self.score_histograms, other.score_histograms),
            _both(lambda one, two: np.concatenate([one, two], axis=1), self.predictions, other.predictions),
            _both(np.add, self.preferences, other.preferences),
        )


def _both(join: Callable[[Any, Any], Any], one: Any, two: Any) -> Any:
    return None if one is None or two is None else join(one, two)


class Counter:
    """Counts the votes of models on inputs, a piece at a time.

    The pieces are cut by the shapes of inputs and models alone, never by what is in them.

    Args:
        network: what scores the inputs.
        classes: number of labels.
        bins: in how many bins scores are counted, 0 for none.
        device: where to compute.
        evidence: which of `predictions` and `preferences` are wanted beside the counts.
    """

    def __init__(
        self, network: Scorer, classes: int, bins: int, device: torch.device, evidence: Collection[str] = ()
    ) -> None:
        self._network, self._classes, self._bins, self._device = network, classes, bins, device
        self._evidence = evidence
        # Sums need double precision, which Apple's GPUs lack.
        self._home = torch.device("cpu") if device.type == "mps" else device

    def count(self, weights: Tensor, inputs: npt.NDArray[Any], mapped: Callable[..., Iterable[Any]] = map) -> Tally:
        """The votes of all models on all inputs; `mapped` is `map` or that of a pool."""
        pieces = list(mapped(partial(self._count_piece, weights), self.pieces(inputs, len(weights))))
        names = (one.name for one in fields(Tally))
        parts: dict[str, list[Any]] = {name: [getattr(piece, name) for piece in pieces] for name in names}
        whole: dict[str, Any] = {name: None if p[0] is None else np.concatenate(p) for name, p in parts.items()}
        return Tally(**whole)

    def pieces(self, inputs: npt.NDArray[Any], models: int) -> list[Tensor]:
        """The inputs as they are scored together, from the first to the last."""
        # Activations of a network are some hundred times as large as its inputs at most; on a CPU, those of one model.
        activations = 64 * 4 * max(int(np.prod(inputs.shape[1:])), 64) * (1 if self._device.type == "cpu" else models)
        scores = 4 * self._classes * (8 * models + self._bins)
        scores += 4 * self._classes**2 if "preferences" in self._evidence else 0
        size = max(1, _BYTES[self._device.type] // (activations + scores))
        # In torch's own memory: how a library rounds can depend on the alignment, and numpy's is left to chance.
        return [torch.from_numpy(inputs[at : at + size]).clone() for at in range(0, len(inputs), size)]

    def _count_piece(self, weights: Tensor, inputs: Tensor) -> Tally:
        logits = self._network.logits(weights, inputs.to(self._device)).to(self._home)
        logits = _settle_diverged(logits)
        scores = torch.softmax(logits, dim=2).clamp_(0.0, 1.0).double()
        labels = logits.argmax(dim=2).T  # the first of equals
        counts = torch.zeros(len(inputs), self._classes, dtype=torch.int64, device=self._home)
        counts.scatter_add_(1, labels, torch.ones_like(labels))
        return Tally(
            counts.cpu().numpy(),
            scores.sum(0).cpu().numpy(),
            scores.square().sum(0).cpu().numpy(),
            self._histograms(scores).cpu().numpy() if self._bins else None,
            labels.cpu().numpy().astype(np.uint16) if "predictions" in self._evidence else None,
            _preferences(logits).cpu().numpy() if "preferences" in self._evidence else None,
        )

    def _histograms(self, scores: Tensor) -> Tensor:
        bins = (scores * self._bins).long().clamp_max_(self._bins - 1).permute(1, 2, 0)
        counts = torch.zeros(*bins.shape[:2], self._bins, dtype=torch.int64, device=self._home)
        return counts.scatter_add_(2, bins, torch.ones_like(bins))


def _settle_diverged(logits: Tensor) -> Tensor:
    """Where a logit is not finite, all of the input's logits become those of a sure vote for label 0."""
    sure = torch.full_like(logits[0, 0], -torch.inf)
    sure[0] = 0.0
    return torch.where(torch.isfinite(logits).all(dim=2, keepdim=True), logits, sure)


def _preferences(logits: Tensor) -> Tensor:
    """How many models score the label of the second axis above that of the third; of equals, the smaller is above."""
    numbers = torch.arange(logits.shape[2], device=logits.device)
    above: list[Tensor] = []
    for label in range(logits.shape[2]):
        own = logits[:, :, label, None]
        above.append(((own > logits) | ((own == logits) & (label < numbers))).sum(0))
    return torch.stack(above, dim=1)
