"""What is claimed of many predictions together: how many of them a single poisoning can change at most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate._io.artifacts import decode_array

IntArray = npt.NDArray[np.int64]

# A proof is in whole numbers: multipliers in units of 1 / MULTIPLIER_UNIT, thresholds of 1 / THRESHOLD_UNIT.
MULTIPLIER_UNIT = 1 << 16
THRESHOLD_UNIT = 1 << 24
# Up to so many examples, sums of a multiplier times a threshold fit into 64 bits.
MOST_EXAMPLES = 1 << 22
_LONGEST_RADIUS = 7


@dataclass(frozen=True)
class Collective:
    """A claim about all predictions of a certificate together.

    Guarantee: for each r of `most_changed`, no single D' within r units of the threat changes more than so many of the
    predictions.

    Assumes: what the certificate assumes.

    Attributes:
        most_changed: the largest number of predictions that change together, by the radius.
        proofs: what `verify` needs to see that a number is not too small, by the radius: for each example a multiplier
            and a threshold (docs/theory.md, section 10). A radius without one was decided by trying everything.
    """

    most_changed: Mapping[int, int]
    proofs: Mapping[int, IntArray] = field(default_factory=dict[int, IntArray], compare=False, repr=False)

    def to_dict(self) -> dict[str, int]:
        """The numbers as plain JSON values, by the radius."""
        return {str(radius): most for radius, most in self.most_changed.items()}

    def proofs_to_dict(self) -> dict[str, Any]:
        """The proofs as a file holds them."""
        return {str(radius): proof for radius, proof in self.proofs.items()}

    @classmethod
    def of(cls, numbers: Any, proofs: Any, examples: int) -> Collective | None:
        """Read back what a file holds; None where it holds neither.

        Raises:
            ValueError: something is of the wrong kind.
        """
        if numbers is None and proofs is None:
            return None
        if examples > MOST_EXAMPLES:
            raise ValueError(f"collective is about more than {MOST_EXAMPLES:,} examples")
        if not isinstance(numbers, dict) or not isinstance(proofs, dict) or not numbers:
            raise ValueError("collective is not a number of predictions by the radius, with its proofs")
        most: dict[int, int] = {_radius_of(name): number for name, number in numbers.items()}  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
        if not all(type(number) is int and 0 <= number <= examples for number in most.values()):
            raise ValueError(f"collective holds something other than whole numbers from 0 to {examples}")
        found = {_radius_of(name): decode_array(array) for name, array in proofs.items()}  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
        if not found.keys() <= most.keys():
            raise ValueError("collective_proof is about radii that collective does not have")
        return cls(most, {radius: _checked_proof(proof, examples) for radius, proof in found.items()})


def _radius_of(name: Any) -> int:
    if not (isinstance(name, str) and name.isascii() and name.isdigit() and len(name) <= _LONGEST_RADIUS):
        raise ValueError(f"collective has {name!r:.80}, which is no radius")
    if str(int(name)) != name or name == "0":
        raise ValueError(f"collective has {name!r:.80}, which is no radius from 1 on")
    return int(name)


def _checked_proof(proof: npt.NDArray[Any], examples: int) -> IntArray:
    if proof.shape != (2, examples) or proof.dtype.kind not in "iu":
        raise ValueError("collective_proof is not a multiplier and a threshold for each example")
    limits = np.array([[MULTIPLIER_UNIT], [THRESHOLD_UNIT]])
    if (proof < 0).any() or (proof > limits).any():
        raise ValueError("collective_proof holds numbers out of their range")
    return proof.astype(np.int64)
