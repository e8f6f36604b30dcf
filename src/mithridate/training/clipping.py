"""How long gradients are shortened, so that one example never moves a computed sum by more than the clipping norm."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Far above the factors at which single precision loses digits.
_SMALLEST = 2.0**-100
# Squared norm of a layer's inputs, or of the gradients of its outputs, above which an example is left out.
_LARGEST_SQUARE = 2.0**120
# Relative error of one rounded number: half a unit in the last place.
_UNIT = {"float32": 2.0**-24, "tf32": 2.0**-11, "bfloat16": 2.0**-11}
# Share of the norm that is set aside for the rounding of sums over examples; matrix units may cut where others round.
_FOR_SUMS = {"float32": 2.0**-9, "tf32": 2.0**-8, "bfloat16": 2.0**-8}
# How many examples single precision may add up: 2 x loss x number^2 is at most that share.
_FEW = 128
# How many neighbours compiled code adds up in single precision, and up to which size of a batch.
_NEIGHBOURS, _MANY = 16, 1900
# The same for double precision.
MOST_EXAMPLES = 2**21


@dataclass(frozen=True)
class Clipping:
    """The rule by which per-example gradients are scaled, in a given precision of matrix products.

    Guarantee: let S(B) be the sum that is computed for a batch B, before the noise. Then |S(B + S') - S(B)| is at most
    |S'| `max_grad_norm` for all batches B and all sets S' of further examples, all roundings included: those of the
    examples of S', and those of the others, which the presence of S' may change. Batches have at most `MOST_EXAMPLES`.

    Assumes: `max_grad_norm` is from 1e-12 to 1e12, as `TrainConfig` sees to. A library computes the activations and the
    gradient of one example alike, whatever else is in the batch. A matrix unit loses at most 2^-23 of a sum by adding
    one more product to it.

    Proof. Let C be `max_grad_norm` and G the gradient of one example, as it was computed. It is scaled by
    f = min(1, (1 - margin) C / N), where N >= |G| is its norm. What is added is not f G but a rounded version u of it.

    *One example.* |u| <= (1 - s) C, where s is the share that `margin` sets aside for sums. With e the unit of the
    precision:

    * G is stored: f and each entry of G are rounded to the precision before they are multiplied, so every entry is off
      by at most (1 + e)^2 - 1 < 2.1 e of itself, and the norm by the same factor. N is taken from the stored G itself,
      so how G was computed does not matter. Under `bfloat16` the stages of a stem are computed and stored in 16 bits: G
      is what was stored, N is its norm, and its entries, which have fewer digits than e allows, are not rounded again.
    * G = g a^T (a linear layer): each of f, g and a is rounded: at most 3.1 e, for the same reason.
    * G = sum_t g_t a_t^T is formed a second time for the sum: entries may cancel, so the two may differ by an error
      that is bounded relative to the operands, not to G: at most slack * |a| |g| by Cauchy-Schwarz, with slack = 8 e
      plus the rounding of sums over up to 2^10 positions. `layers.Contraction` and `layers.GhostConvolution` add that
      much to N. Norms from Gram matrices are square roots: an error of d |a|^2 |g|^2 in |G|^2 is one of
      sqrt(d) |a| |g| in |G|. They are taken in double precision or, under TF32, from operands that are cut first, whose
      products are exact, with a bound on d added under the root (`library_convolutions.ghost_norms`).

    * A unit of several examples is one example here: the mean of their gradients is formed from these alone, with as
      many places for every unit, and stored. That is the first case.

    `margin` covers the first two, the rounding of f, and that of N where it is summed in single precision, with room to
    spare. All of this is relative. Numbers below 2^-126 are rounded absolutely, by 2^-137 or less, and may then be
    multiplied by an operand. Examples whose |a| or |g| is above 2^60 are left out (`without_giants`), and so are those
    with f < 2^-100, so that this adds 2^-77 for each entry at most, nothing beside 1e-12.

    *Sums.* Every u is formed by itself, and is the same vector whatever it is added to. A sum of n numbers, in whatever
    order, in which each addition loses at most the share d of its result, is off by at most n d (1 + n d) times the sum
    of their sizes (Higham 2002, section 4.2). So S(B) is within n^2 d (1 + n d) (1 - s) C of the exact sum of the u, by
    the triangle inequality, and two sums together are off by twice that, which is at most s C:

    * in single precision, which `accumulator` chooses for up to 128 examples, since 2 x 128^2 x 2^-24 = 2^-9 (TF32: d
      is 2^-23 and s is 2^-8);
    * in double precision, for up to 2^21 examples, since 2 x 2^42 x 2^-53 = 2^-10;
    * compiled code may add up to b neighbours in single precision, one after another and in one order for all entries,
      and these sums in double precision. Partial sums of k neighbours have norms of at most C, 2 C, ..., k C, so that
      they lose at most k (k + 1) / 2 d C <= k (b + 1) / 2 d C, and all n examples in both sums together, however many
      runs of neighbours are shorter than b, n (b + 1) d C. With b = 16 and n <= 1900 that is below 0.986 x 2^-9 C, and
      what double precision adds is below 2^-30 C.

    *Pieces.* A batch that would take too much memory is cut into pieces, and the sums of these are added up. That is
    one more order in which the same n numbers are added, so all of the above holds with n the size of the whole batch:
    `accumulator` and `examples_together` are asked for that, and pieces are added up in the precision of the whole.

    Hence |S(B + S') - S(B)| <= |S'| (1 - s) C + s C <= |S'| C where S' is not empty. (The factor (1 + n d) (1 - s) is
    below 1.)

    Attributes:
        precision: `float32` or `tf32`: how operands of matrix products are rounded; `bfloat16` is `tf32`, but for the
            stem of a network (`layers.Stem`), where kernels can compute that in 16 bits.
    """

    precision: str

    @property
    def dot_precision(self) -> str:
        """The precision in the words of Triton."""
        return "ieee" if self.precision == "float32" else "tf32"

    @property
    def margin(self) -> float:
        """Share by which gradients are clipped shorter than they might be."""
        return 4.0 * _UNIT[self.precision] + 2.0**-15 + _FOR_SUMS[self.precision]

    @property
    def slack(self) -> float:
        """Rounding of a gradient that is formed twice, relative to the norms of its operands."""
        # Two operands, rounded or cut (which is twice as far), once for the norm and once for the sum.
        return 8.0 * _UNIT[self.precision] + 2.0**-13

    def accumulator(self, batch: int) -> torch.dtype:
        """The precision in which so many examples are added up.

        Raises:
            ValueError: they are more than double precision can add up.
        """
        if batch > MOST_EXAMPLES:
            raise ValueError(f"a batch of {batch:,} examples is too large; at most {MOST_EXAMPLES:,} can be added up")
        return torch.float32 if batch <= _FEW else torch.float64

    def limits(self, max_grad_norm: float) -> tuple[float, float, float]:
        """What compiled code needs for `factors` and `without_giants`.

        That is the largest norm after scaling, the smallest factor, and the largest squared norm of an operand.
        """
        return max_grad_norm * (1.0 - self.margin), _SMALLEST, _LARGEST_SQUARE

    def factors(self, squares: Tensor, counted: Tensor, max_grad_norm: float) -> Tensor:
        """What each example's gradient is multiplied by: at most 1, and 0 where it does not count.

        Args:
            squares: squared norms, float64.
            counted: where an example is present and its gradient finite.
            max_grad_norm: the largest norm of what one example adds.
        """
        longest, smallest, _ = self.limits(max_grad_norm)
        scale = (longest / squares.sqrt()).clamp_max(1.0)
        # A gradient that would be shortened by more than this is left out: single precision has no such factor.
        return torch.where(counted & (scale >= smallest), scale, 0.0).float()


def examples_together(batch: int) -> int:
    """How many neighbours of a batch compiled code may add up in single precision, in their order; 0 for none."""
    return _NEIGHBOURS if batch <= _MANY else 0


def without_giants(squares: Tensor, *operands: Tensor) -> Tensor:
    """Squared norms of gradients, infinite where an operand's squared norm is too large for safe arithmetic.

    A tiny number that is rounded absolutely must not be multiplied by a huge one; and no product may overflow.
    """
    for operand in operands:
        squares = torch.where(operand <= _LARGEST_SQUARE, squares, torch.inf)
    return squares
