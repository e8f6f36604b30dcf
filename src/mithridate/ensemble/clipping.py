"""How long gradients are shortened, so that rounding never lengthens what one example adds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Far above the factors at which single precision loses digits.
_SMALLEST = 2.0**-100
# Relative error of one rounded number: half a unit in the last place.
_UNIT = {"float32": 2.0**-24, "tf32": 2.0**-11}


@dataclass(frozen=True)
class Clipping:
    """The rule by which per-example gradients are scaled, in a given precision of matrix products.

    Guarantee: with the factors of `factors`, what one example adds to a sum has norm at most `max_grad_norm`, rounding
    of its own terms included.

    A gradient G is scaled by f = min(1, (1 - margin) C / N), where N >= |G| is its norm. What is added is not f G but a
    rounded version of it. With u the unit of the precision:

    * G is stored: f and each entry of G are rounded to the precision before they are multiplied, so every entry is off
      by at most (1 + u)^2 - 1 < 2.1 u of itself, and the norm by the same factor. N is taken from the stored G itself,
      so how G was computed does not matter.
    * G = g a^T (a linear layer): each of f, g and a is rounded: at most 3.1 u, for the same reason.
    * G = sum_t g_t a_t^T is formed again inside the sum: entries may cancel, so the error is bounded relative to the
      operands, not to G: at most slack * |a| |g| by Cauchy-Schwarz, with slack = 8 u plus the rounding of sums in
      single precision. `layers.Contraction` adds that much to N, and `layers.Lookups` likewise. Norms from Gram
      matrices are square roots: an error of e |a|^2 |g|^2 in |G|^2 is one of sqrt(e) |a| |g| in |G|. They are taken in
      double precision or, under TF32, from operands that are cut first, whose products are exact, with a bound on e
      added under the root (`wide.ghost_norms`).

    `margin` covers the first two, the rounding of f, and that of N where it is summed in single precision, with room to
    spare. Sums over examples are accumulated in single precision; their rounding belongs to no example and is 2^-24 of
    the sum at each addition.

    Attributes:
        precision: `float32` or `tf32`: how operands of matrix products are rounded.
    """

    precision: str

    @property
    def dot_precision(self) -> str:
        """The precision in the words of Triton."""
        return "ieee" if self.precision == "float32" else "tf32"

    @property
    def margin(self) -> float:
        """Share by which gradients are clipped shorter than they might be."""
        return 4.0 * _UNIT[self.precision] + 2.0**-15

    @property
    def slack(self) -> float:
        """Rounding of a gradient that is formed inside a sum, relative to the norms of its operands."""
        # Two operands, rounded or cut (which is twice as far), once for the norm and once for the sum.
        return 8.0 * _UNIT[self.precision] + 2.0**-13

    def factors(self, squares: Tensor, counted: Tensor, max_grad_norm: float) -> Tensor:
        """What each example's gradient is multiplied by: at most 1, and 0 where it does not count.

        Args:
            squares: squared norms, float64.
            counted: where an example is present and its gradient finite.
            max_grad_norm: the largest norm of what one example adds.
        """
        longest = max_grad_norm * (1.0 - self.margin)
        scale = (longest / squares.sqrt()).clamp_max(1.0)
        # A gradient that would be shortened by more than this is left out: single precision has no such factor.
        return torch.where(counted & (scale >= _SMALLEST), scale, 0.0).float()
