"""Where the gap between the best attack and the f-DP certificate comes from, on linear private models of digits.

    python experiments/audit/gap.py            # a few minutes on two cores; writes gap.json beside this file

The certificate holds against an attacker whose examples push the decision with all their clipped norm, in every step,
where nothing but the noise of training varies. Let a label's lead over its rival have mean m and standard deviation s
over instances. Then r changes by such an attacker shift it by r q sqrt(T) / sigma standard deviations of the noise, and
flip it at r = (m / s) sigma / (q sqrt(T)). Copies of the input, inserted into the real training, need more. By how much
is measured, and split into factors, each measured by itself:

* averaging: of iterates, by which early pushes count more than late ones, while noise of all steps is averaged;
* alignment: what the clipped gradient of a copy has in the direction of the decision, over the clipping bound;
* pushing back: how much less the lead moves than these pushes add up to, since all other examples resist;
* other randomness: the standard deviation of the lead over that by the noise alone (sampling and first weights).

Training is written out here once more, in a few lines of torch, and compared with the votes of the real one.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mithridate import certify
from mithridate._io.files import write_atomically
from mithridate.core.mechanism import Threat
from mithridate.data.named import load_named
from mithridate.defences import defence
from mithridate.features import pick_encoder
from mithridate.training.order import RuntimeOptions, compose

HERE = Path(__file__).parent
INSTANCES, REAL, TARGETS = 512, 1000, 10


@dataclass(frozen=True)
class Training:
    """Features, labels, and the constants of training."""

    rows: Tensor
    labels: Tensor
    recipe: Any

    def weights(self, seed: int, copies: Tensor | None = None, label: int = 0, *, only_noise: bool = False) -> Tensor:
        """The weights that vote, columns x instances x classes, with some copies of a row among the examples.

        Args:
            seed: of all randomness: the same seed draws the same, whatever the copies are.
            copies: rows to insert.
            label: theirs.
            only_noise: all instances have the same first weights and batches, and differ by noise alone.
        """
        made = self.recipe
        rows = self.rows if copies is None else torch.cat([self.rows, copies])
        new = torch.full((len(rows) - len(self.rows),), label)
        truth = torch.nn.functional.one_hot(torch.cat([self.labels, new]), made.classes).float()
        lengths, columns = rows.norm(dim=1), rows.shape[1]
        random, batches, others = (torch.Generator().manual_seed(3 * seed + part) for part in range(3))
        shape = columns, 1 if only_noise else INSTANCES, made.classes
        weights = ((2 * torch.rand(shape, generator=batches) - 1) / math.sqrt(columns)).repeat(
            1, INSTANCES // shape[1], 1
        )
        total = torch.zeros_like(weights)
        for _ in range(made.steps):
            scores = (rows @ weights.flatten(1)).unflatten(1, weights.shape[1:])
            errors = scores.softmax(dim=2) - truth[:, None]
            factors = made.max_grad_norm / (lengths[:, None] * errors.norm(dim=2)).clamp_min(1e-12)
            chosen = torch.rand(len(self.rows), shape[1], generator=batches)
            more = torch.rand(len(new), shape[1], generator=others)
            enters = torch.cat([chosen, more]) < made.sample_rate
            errors *= (factors.clamp_max(1) * enters)[:, :, None]
            sums = (rows.T @ errors.flatten(1)).unflatten(1, weights.shape[1:])
            sums += made.noise_multiplier * made.max_grad_norm * torch.randn(sums.shape, generator=random)
            weights = weights - made.learning_rate / (made.sample_rate * made.num_train) * sums
            total += weights
        return total / made.steps


def lead(weights: Tensor, row: Tensor, own: int, rival: int) -> Tensor:
    """By how much the score of a label exceeds that of another, an entry for every instance."""
    return row @ (weights[:, :, own] - weights[:, :, rival])


def shares(weights: Tensor, row: Tensor) -> Tensor:
    """How many instances vote for each label, as shares."""
    scores = torch.einsum("c,cml->ml", row, weights)
    return scores.argmax(dim=1).bincount(minlength=weights.shape[2]) / weights.shape[1]


def flips_at(training: Training, row: Tensor, own: int, rival: int, guess: int) -> int:
    """The fewest copies found at which fewer instances vote for the label than for the rival."""

    def flips(count: int) -> bool:
        voted = shares(training.weights(1, row.repeat(count, 1), rival), row)
        return bool(voted[own] <= voted[rival])

    low, high = 0, guess
    while not flips(high):
        low, high = high, 2 * high
    while high - low > max(1, high // 30):
        middle = (low + high) // 2
        low, high = (low, middle) if flips(middle) else (middle, high)
    return high


def factors(training: Training, row: Tensor, own: int, rival: int, count: int) -> dict[str, float]:
    """What makes the copies weaker than an attacker that a certificate allows for."""
    made = training.recipe
    clean = lead(training.weights(1), row, own, rival)
    moved = clean.mean() - lead(training.weights(1, row.repeat(count, 1), rival), row, own, rival).mean()
    noise = lead(training.weights(1, only_noise=True), row, own, rival).std()
    step = made.learning_rate / (made.sample_rate * made.num_train)
    # The average counts a push in step t as often as it is in an iterate.
    left = torch.arange(made.steps, 0, -1) / made.steps
    direction = math.sqrt(2) * float(row.norm())
    most = step * count * made.sample_rate * made.max_grad_norm * direction * float(left.sum())
    pushes = _alignment(training, row, own, rival, count) * most
    # By noise that nothing resists.
    free = step * made.noise_multiplier * made.max_grad_norm * direction * float(left.square().sum().sqrt())
    return {
        "averaging": float(math.sqrt(made.steps) * left.square().sum().sqrt() / left.sum()),
        "alignment": most / pushes,
        "pushing back": float((pushes / free) / (moved / noise)),
        "other randomness": float(clean.std() / noise),
        "all": float(count * made.sample_rate * math.sqrt(made.steps) / made.noise_multiplier / (moved / clean.std())),
    }


def _alignment(training: Training, row: Tensor, own: int, rival: int, count: int) -> float:
    """The share of the clipping bound that a copy's gradient has in the direction of the decision, over training."""
    made = training.recipe
    found: list[float] = []
    for steps in (1, made.steps // 2, made.steps):
        part = Training(training.rows, training.labels, _Shorter(made, steps))
        weights = part.weights(1, row.repeat(count, 1), rival)
        errors = torch.einsum("c,cml->ml", row, weights).softmax(dim=1)
        errors[:, rival] -= 1
        norms = row.norm() * errors.norm(dim=1)
        kept = (made.max_grad_norm / norms.clamp_min(1e-12)).clamp_max(1)
        along = (errors[:, own] - errors[:, rival]) / math.sqrt(2) * row.norm() * kept
        found.append(float(along.mean()) / made.max_grad_norm)
    return float(np.mean(found))


class _Shorter:
    """The same constants, for fewer steps."""

    def __init__(self, made: Any, steps: int) -> None:
        self._made, self.steps = made, steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)


def main() -> None:
    """Measure all targets, and write what came of it."""
    train, test = load_named("digits")
    order = compose(defence("fdp", instances=REAL), train, test)
    votes = order.run(RuntimeOptions())
    made = order.defence
    encoder = pick_encoder(made.features)
    assert encoder is not None
    rows, inputs = (torch.from_numpy(np.asarray(encoder.transform(x), np.float32)) for x in (train.x, test.x))
    training = Training(rows, torch.from_numpy(train.y), made)
    clean = training.weights(1)
    known = np.stack([shares(clean, row).numpy() for row in inputs])
    differs = np.abs(known - votes.counts / REAL).max(axis=1)
    certified = certify(votes, threat=Threat.SYMMETRIC_DIFFERENCE).radius
    # As if so many instances had voted that nothing is lost to confidence bounds.
    many = type(votes).from_counts(votes.counts * 10**4, mechanism=votes.mechanism)
    exact = certify(many, threat=Threat.SYMMETRIC_DIFFERENCE).radius
    top = votes.counts.max(axis=1)
    fit = np.flatnonzero((certified >= 5) & (top < 0.99 * REAL))
    chosen = fit[np.linspace(0, len(fit) - 1, TARGETS).astype(int)]
    found: list[dict[str, Any]] = []
    for at in chosen.tolist():
        own, rival = np.argsort(-votes.counts[at], kind="stable")[:2].tolist()
        count = flips_at(training, inputs[at], own, rival, 2 * int(exact[at]))
        one = {"input": at, "certified": int(certified[at]), "without bounds": int(exact[at]), "flipped at": count}
        found.append({**one, **factors(training, inputs[at], own, rival, count)})
        print(json.dumps(found[-1]), flush=True)
    said = {"differs": float(differs.mean()), "targets": found}
    with write_atomically(HERE / "gap.json") as file:
        file.write((json.dumps(said, indent=1) + "\n").encode())
    for name in found[0]:
        print(f"{name}: median {np.median([each[name] for each in found]):.2f}")
    print(f"votes differ from those of the real training by {said['differs']:.3f} on average, at most a share of 1")


if __name__ == "__main__":
    main()
