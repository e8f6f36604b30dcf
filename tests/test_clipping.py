"""The clip bound with all roundings: what one example adds has norm at most `max_grad_norm`, checked in float64.

Matrix products of lower precision are emulated: operands are rounded before an exact product. Three roundings are tried
for each precision, since hardware may use any: to nearest, towards zero, and an adversary's, who may move every operand
by one unit (half a place, the most that rounding to nearest can do) in whichever direction lengthens the result.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from mithridate import TrainConfig
from mithridate.errors import ConfigError
from mithridate.training import layers
from mithridate.training.clipping import MOST_EXAMPLES, Clipping, examples_together
from mithridate.training.general import GeneralNetwork
from mithridate.training.layers import Conv, Layout

PRECISIONS = ("float32", "tf32")
MANTISSA = {"float32": 23, "tf32": 10}
Rounding = Callable[[Tensor], Tensor]


# --- factors ----------------------------------------------------------------------------------------------------------


def factors(squares: list[float], counted: list[bool], bound: float, precision: str = "float32") -> Tensor:
    return Clipping(precision).factors(torch.tensor([squares], dtype=torch.float64), torch.tensor([counted]), bound)[0]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_short_gradients_stay_as_they_are(precision: str) -> None:
    assert factors([0.0, 1e-300, 0.01, 0.9], [True] * 4, 1.0, precision).tolist() == [1.0] * 4


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_does_not_count_has_factor_zero(precision: str) -> None:
    broken = [math.nan, math.inf, 4.0, 0.0]
    assert factors(broken, [False] * 4, 1.0, precision).tolist() == [0.0] * 4
    # A norm that is not finite never counts for anything, even where somebody says that it does.
    assert factors([math.inf], [True], 1.0, precision).tolist() == [0.0]


@settings(max_examples=200)
@given(
    norm=st.floats(-30, 19).map(lambda power: 10.0**power),
    bound=st.floats(-6, 6).map(lambda power: 10.0**power),
    precision=st.sampled_from(PRECISIONS),
)
def test_factors_shorten_to_the_bound_and_hardly_more(norm: float, bound: float, precision: str) -> None:
    factor = float(factors([norm**2], [True], bound, precision)[0])
    assert 0 < factor <= 1
    assert factor * norm <= bound
    # Not shorter than the rounding of the precision and of sums asks for: a tenth of a percent, a percent for tf32.
    for_sums = {"float32": 2.0**-9, "tf32": 2.0**-8}[precision]
    assert factor * norm >= min(norm, bound) * (1 - 16 * 2.0 ** -(MANTISSA[precision] + 1) - 1e-4 - for_sums)


@settings(max_examples=200)
@given(norm=st.floats(19, 150).map(lambda power: 10.0**power), bound=st.floats(-6, 6).map(lambda power: 10.0**power))
def test_factors_of_exploding_gradients_do_not_lengthen(norm: float, bound: float) -> None:
    factor = float(factors([norm**2], [True], bound)[0])
    assert factor * norm <= bound


# --- emulated roundings -----------------------------------------------------------------------------------------------


def to_nearest(bits: int) -> Rounding:
    """Mantissas of so many bits, ties to even, in any dtype."""

    def rounded(values: Tensor) -> Tensor:
        mantissa, exponent = np.frexp(values.double().numpy())
        return torch.from_numpy(np.ldexp(np.rint(mantissa * 2.0 ** (bits + 1)), exponent - bits - 1))

    return rounded


def towards_zero(bits: int) -> Rounding:
    def rounded(values: Tensor) -> Tensor:
        mantissa, exponent = np.frexp(values.double().numpy())
        return torch.from_numpy(np.ldexp(np.trunc(mantissa * 2.0 ** (bits + 1)), exponent - bits - 1))

    return rounded


def pushed(bits: int, direction: float) -> Rounding:
    """Every number one unit further from zero (or nearer), and those that are negative the other way round."""

    def rounded(values: Tensor) -> Tensor:
        values = values.double()
        return values * (1.0 + direction * values.sign() * 2.0 ** -(bits + 1))

    return rounded


def inflated(bits: int) -> Rounding:
    return lambda values: values.double() * (1.0 + 2.0 ** -(bits + 1))


@contextmanager
def products_rounding(rounding: Rounding) -> Iterator[None]:
    """Matrix products with rounded operands, exact sums, and a result in single precision."""

    def product(one: Tensor, two: Tensor) -> Tensor:
        return _matmul(rounding(one), rounding(two)).float()

    with mock.patch.object(torch, "matmul", product), mock.patch.object(torch, "bmm", product):
        yield


_matmul = torch.matmul


def frame(precision: str, models: int = 1, batch: int = 1) -> layers.Layout:
    return layers.Layout(models, Clipping(precision), torch.full((models,), batch, dtype=torch.int32), None)


@dataclass(frozen=True)
class Case:
    """Gradients of one example with respect to some parameters, and the sizes of these."""

    make: Callable[[layers.Layout], list[layers.Pieces]]
    sizes: tuple[int, ...]


def contribution(case: Case, precision: str, for_norm: Rounding, for_sum: Rounding, bound: float) -> Tensor:
    """What one example adds, in float64, if the norm and the sum are computed under these roundings."""
    with products_rounding(for_norm):
        parts = case.make(frame(precision))
        squares = torch.stack([part.squared_norms() for part in parts]).sum(dim=0)
    scale = Clipping(precision).factors(squares, torch.isfinite(squares), bound)
    pieces = []
    with products_rounding(for_sum):
        for part, size in zip(parts, case.sizes, strict=True):
            out = torch.full((1, size), math.nan)
            part.write_sums(scale, out)
            pieces.append(out[0])
    return torch.cat(pieces).double()


def roundings(precision: str) -> list[tuple[Rounding, Rounding]]:
    bits = MANTISSA[precision]
    return [
        (to_nearest(bits), to_nearest(bits)),
        (towards_zero(bits), towards_zero(bits)),
        (to_nearest(bits), inflated(bits)),
        (pushed(bits, -1.0), pushed(bits, 1.0)),
        (pushed(bits, 1.0), pushed(bits, -1.0)),
    ]


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def stored(seed: int, scale: float) -> Case:
    values = scale * draw(seed, 1, 1, 37)
    return Case(lambda shared: [layers.Stored(values, shared)], (37,))


def outer(seed: int, scale: float) -> Case:
    inputs, gradients = scale * draw(seed, 1, 1, 50), draw(seed + 1, 1, 1, 10)

    def make(shared: layers.Layout) -> list[layers.Pieces]:
        bias = layers.Stored(gradients, shared, torch.zeros(1, 1, dtype=torch.float64))
        return [layers.Outer(inputs, gradients, shared, has_bias=True), bias]

    return Case(make, (500, 10))


def outer_without_bias(seed: int, scale: float) -> Case:
    inputs, gradients = scale * draw(seed, 1, 1, 50), draw(seed + 1, 1, 1, 10)
    return Case(lambda shared: [layers.Outer(inputs, gradients, shared, has_bias=False)], (500,))


def contraction(seed: int, scale: float, features: int, outputs: int, positions: int, cancel: float) -> Case:
    """Positions in pairs whose terms cancel but for the share `cancel` of each (1: they do not cancel)."""
    half = positions // 2
    a, g = scale * draw(seed, 1, 1, 1, features, half), draw(seed + 1, 1, 1, 1, outputs, half)
    # Of one sign: sums of many numbers of one sign lose the most digits.
    a, g = a.abs(), g.abs()
    inputs, gradients = torch.cat([a, a], dim=4), torch.cat([g, -g * (1 - cancel)], dim=4)
    return Case(lambda shared: [layers.Contraction(inputs, gradients, shared)], (features * outputs,))


SHAPES = {"ghost": (512, 64, 2), "formed": (6, 5, 24)}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", ["stored", "outer", "outer without bias"])
def test_the_bound_holds_under_every_rounding(kind: str, precision: str) -> None:
    make = {"stored": stored, "outer": outer, "outer without bias": outer_without_bias}[kind]
    for seed in range(5):
        for scale in (1e-3, 1.0, 1e4):
            for for_norm, for_sum in roundings(precision):
                for bound in (1e-3, 0.8):
                    added = contribution(make(seed, scale), precision, for_norm, for_sum, bound)
                    assert float(added.norm()) <= bound


def assert_contraction_bounded(shape: tuple[int, int, int], precision: str, cancels: list[float]) -> None:
    bound = 0.8
    for seed in range(4):
        for cancel in cancels:
            make = contraction(seed, 3.0, *shape, cancel)
            for for_norm, for_sum in roundings(precision):
                assert float(contribution(make, precision, for_norm, for_sum, bound).norm()) <= bound


MILD, HEAVY = [1.0, 0.5, 0.1], [2.0**-power for power in (6, 8, 9, 10, 10.5, 11, 12, 14, 18)]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("way", ["stored", "passing"])
def test_the_bound_holds_for_sums_over_positions(way: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "passing":
        monkeypatch.setitem(layers._STORED_BYTES, "cpu", 4)  # pyright: ignore[reportPrivateUsage]
    assert_contraction_bounded(SHAPES["formed"], precision, MILD + HEAVY)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_bound_holds_for_ghost_norms(precision: str) -> None:
    assert layers.is_ghost_cheaper(*SHAPES["ghost"])
    assert_contraction_bounded(SHAPES["ghost"], precision, MILD)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_bound_holds_for_ghost_norms_under_heavy_cancellation(precision: str) -> None:
    assert_contraction_bounded(SHAPES["ghost"], precision, HEAVY)


def test_the_bound_holds_for_ghost_norms_under_heavy_cancellation_in_plain_single_precision() -> None:
    # No emulation: the products of this machine.
    for seed in range(40):
        for cancel in (2.0**-10.5, 2.0**-11):
            features, outputs, positions = SHAPES["ghost"]
            a, g = 30 * draw(seed, 1, 1, 1, features, 1).abs(), 30 * draw(seed + 1, 1, 1, 1, outputs, 1).abs()
            inputs, gradients = a.expand(-1, -1, -1, -1, positions).contiguous(), torch.cat([g, -g * (1 - cancel)], 4)
            assert added_norm(inputs, gradients) <= 1.0


def added_norm(inputs: Tensor, gradients: Tensor) -> float:
    shared = frame("float32")
    part = layers.Contraction(inputs, gradients, shared)
    squares = part.squared_norms()
    out = torch.zeros(1, inputs.shape[3] * gradients.shape[3])
    part.write_sums(shared.clipping.factors(squares, torch.isfinite(squares), 1.0), out)
    return float(out.double().norm())


def test_the_bound_holds_for_words_whose_gradients_cancel() -> None:
    # One word at two positions; their gradients cancel but for one part in 10^5.
    gradients = draw(0, 1, 1, 1, 8)
    both = torch.cat([gradients, -gradients * (1 - 1e-5)], dim=2)
    part = layers.Lookups(torch.zeros(1, 1, 2, dtype=torch.int64), both, 3, frame("float32"))
    for power in range(2, 12):
        bound = 10.0**-power
        squares = part.squared_norms()
        out = torch.zeros(1, 24)
        part.write_sums(Clipping("float32").factors(squares, torch.isfinite(squares), bound), out)
        assert float(out.double().norm()) <= bound


def test_the_emulation_rounds_as_it_says() -> None:
    values = torch.tensor([1.0 + 2.0**-10, 1.0 + 2.0**-11, 1.0 + 3 * 2.0**-11, -1.0 - 2.0**-12, 3e-20])
    assert to_nearest(10)(values)[:4].tolist() == [1.0 + 2.0**-10, 1.0, 1.0 + 2.0**-9, -1.0]
    assert towards_zero(10)(values)[:4].tolist() == [1.0 + 2.0**-10, 1.0, 1.0 + 2.0**-10, -1.0]
    nearest = to_nearest(23)(values)
    assert torch.equal(nearest, values.double())


def test_ghost_norms_of_convolutions_cover_what_is_summed_when_positions_cancel() -> None:
    # Two pixels with opposite channels and (almost) equal gradients: the patches nearly cancel, single products do not.
    generator = torch.Generator().manual_seed(5)
    conv = nn.Conv2d(48, 40, 1)
    layer = Conv(conv)
    worst = 0.0
    for size in (1e-3, 1e-5, 1e-7):
        channels = torch.randn(4, 48, 1, 1, generator=generator)
        images = torch.cat([channels, -channels * (1.0 + size)], dim=3)
        gradients = torch.randn(4, 40, 1, 1, generator=generator).expand(4, 40, 1, 2).contiguous()
        frame = Layout(1, Clipping("float32"), torch.tensor([4]), None)
        parts = layer.parts(images, gradients, [torch.zeros(1, 40, 48, 1, 1), torch.zeros(1, 40)], frame)[0]
        assert type(parts).__name__ == "GhostConvolution"
        factors = frame.clipping.factors(parts.squared_norms(), torch.ones(1, 4, dtype=torch.bool), 1e-6)
        for example in range(4):
            alone = torch.zeros(1, 4)
            alone[0, example] = factors[0, example]
            out = torch.empty(1, 48 * 40)
            parts.write_sums(alone, out)
            worst = max(worst, float(out.double().norm()) / 1e-6)
    assert 0.0 < worst <= 1.0


def test_ghost_norms_of_convolutions_are_those_of_the_gradients() -> None:
    generator = torch.Generator().manual_seed(6)
    convolutions: list[Any] = [
        nn.Conv2d(30, 40, 3, padding=1),
        nn.Conv2d(30, 40, 3, stride=2, padding=1),
        nn.Conv2d(30, 40, 3, dilation=2, padding=(2, 1)),
    ]
    for conv in convolutions:
        images = torch.randn(6, 30, 5, 4, generator=generator)
        gradients = torch.randn(conv(images).shape, generator=generator)
        frame = Layout(2, Clipping("float32"), torch.tensor([3, 3]), None)
        weights = torch.randn(2, *conv.weight.shape, generator=generator)
        parts = Conv(conv).parts(images, gradients, [weights, torch.zeros(2, 40)], frame)[0]
        assert type(parts).__name__ == "GhostConvolution"
        for example in range(6):
            image, error = (values[example : example + 1].double() for values in (images, gradients))
            gradient = conv2d_weight(image, list(conv.weight.shape), error, conv.stride, conv.padding, conv.dilation)
            norm = float(parts.squared_norms().flatten()[example].sqrt())
            slack = frame.clipping.slack * 3 * float(images[example].norm() * gradients[example].norm())
            assert float(gradient.norm()) <= norm * (1 + 1e-12) <= float(gradient.norm()) + slack


def test_squares_that_are_too_small_for_single_precision_are_not_lost() -> None:
    # |g|^2 is below the smallest float, |a| is huge: the product of the norms is not 0.
    frame = Layout(1, Clipping("float32"), torch.tensor([1]), None)
    parts = layers.Outer(torch.full((1, 1, 1), 1e17), torch.full((1, 1, 1), 5e-17 / 1e6), frame, has_bias=False)
    tiny = layers.Outer(torch.full((1, 1, 1), 1e18), torch.full((1, 1, 1), 1e-23), frame, has_bias=False)
    for part, exact in ((parts, 5e-6), (tiny, 1e-5)):
        assert float(part.squared_norms().sqrt()) >= exact * (1 - 1e-6)


def test_an_example_with_a_token_that_does_not_exist_adds_nothing_to_any_model() -> None:
    frame = Layout(2, Clipping("float32"), torch.tensor([2, 2]), None)
    tokens = torch.tensor([[[0, 1], [2, -1]], [[1, 1], [3, 0]]])
    gradients = torch.randn(2, 2, 2, 4, generator=torch.Generator().manual_seed(0))
    parts = layers.Lookups(tokens, gradients, 3, frame)
    trusted = torch.isfinite(parts.squared_norms())
    assert trusted.tolist() == [[True, False], [True, False]]
    parts.forget(trusted)
    out = torch.empty(2, 12)
    parts.write_sums(trusted.float(), out)
    expected = torch.zeros(2, 3, 4)
    expected[0, 0], expected[0, 1], expected[1, 1] = gradients[0, 0, 0], gradients[0, 0, 1], gradients[1, 0].sum(0)
    torch.testing.assert_close(out.view(2, 3, 4), expected)


# --- the sums of others ---------------------------------------------------------------------------------------------
# One example is added to a batch: the sum may not move by more than the bound, however the rounding of the others'
# sum changes with it. The examples give gradients of one number each, exact in single precision.

CLIPPING = Clipping("float32")
Sum = Callable[[Tensor, float], Tensor]
# Of 13 bits: sums of thousands have more bits than single precision.
SIZE = 0.5 - 2.0**-13


def hovering(pairs: int = 300) -> Tensor:
    """Numbers whose sum stays just below 2^8; with 1/2 more, it is above, where half as many digits are left.

    Below, all additions are exact; above, every one is a tie that rounds up, by 2^-16.
    """
    unit = 2.0**-16
    steps = [step for at in range(pairs) for step in (8195 * unit, -(8193 + 4 * (at % 2)) * unit)]
    return torch.tensor([0.5] * 511 + [0.25, *steps])


def present(batch: int) -> Tensor:
    return torch.ones(1, batch, dtype=torch.bool)


def summed(parts: layers.Pieces, numbers: Tensor, entries: int, bound: float) -> Tensor:
    squares = parts.squared_norms()
    out = torch.zeros(1, entries, dtype=CLIPPING.accumulator(len(numbers)))
    parts.write_sums(CLIPPING.factors(squares, torch.isfinite(squares), bound), out)
    return out.double()


def shared(numbers: Tensor) -> layers.Layout:
    return frame("float32", 1, len(numbers))


def by_stored(numbers: Tensor, bound: float) -> Tensor:
    rows = F.pad(numbers.view(1, -1, 1), (0, 7))
    return summed(layers.Stored(rows, shared(numbers)), numbers, 8, bound)


def by_rows_apart(numbers: Tensor, bound: float) -> Tensor:
    rows = F.pad(numbers.view(-1, 1), (0, 7))
    return summed(layers.Apart([rows], len(rows), [rows.double().square().sum(1)]), numbers, 8, bound)


def by_outer(numbers: Tensor, bound: float) -> Tensor:
    inputs, gradients = F.pad(numbers.abs().view(1, -1, 1), (0, 15)), F.pad(numbers.sign().view(1, -1, 1), (0, 1))
    return summed(layers.Outer(inputs, gradients, shared(numbers), has_bias=False), numbers, 32, bound)


def by_pieces(numbers: Tensor, bound: float) -> Tensor:
    """As `by_stored`, a piece of the batch at a time; no piece ends with a whole run of neighbours."""
    rows, total = F.pad(numbers.view(1, -1, 1), (0, 7)), torch.zeros(1, 8, dtype=CLIPPING.accumulator(len(numbers)))
    for piece in rows.split(1001, dim=1):
        parts = layers.Stored(piece, replace(shared(piece[0]), whole=len(numbers)))
        factors = CLIPPING.factors(parts.squared_norms(), present(piece.shape[1]), bound)
        sums = torch.empty_like(total)
        parts.write_sums(factors, sums)
        total += sums
    return total.double()


def by_lookups(numbers: Tensor, bound: float) -> Tensor:
    tokens = torch.zeros(1, len(numbers), 1, dtype=torch.int64)
    return summed(layers.Lookups(tokens, numbers.view(1, -1, 1, 1), 1, shared(numbers)), numbers, 1, bound)


def by_contraction(numbers: Tensor, bound: float, features: int = 1, outputs: int = 1) -> Tensor:
    # The second position has nothing to add.
    inputs, gradients = torch.zeros(1, len(numbers), 1, features, 2), torch.zeros(1, len(numbers), 1, outputs, 2)
    inputs[0, :, 0, 0, 0], gradients[0, :, 0, 0, 0] = numbers.abs(), numbers.sign()
    parts = layers.Contraction(inputs, gradients, shared(numbers))
    return summed(parts, numbers, features * outputs, bound)


def by_ghost_norms(numbers: Tensor, bound: float) -> Tensor:
    return by_contraction(numbers, bound, 8, 8)


def by_convolution(numbers: Tensor, bound: float) -> Tensor:
    images, gradients = torch.zeros(2, len(numbers), 8, 1, 2)
    images[:, 0, 0, 0], gradients[:, 0, 0, 0] = numbers.abs(), numbers.sign()
    weights = [torch.zeros(1, 8, 8, 1, 1)]
    (parts,) = Conv(nn.Conv2d(8, 8, 1, bias=False)).parts(images, gradients, weights, shared(numbers))
    assert isinstance(parts, layers.GhostConvolution)
    return summed(parts, numbers, 64, bound)


def by_torch_func(numbers: Tensor, bound: float) -> Tensor:
    # With weights of zero the gradient is (1/2, -1/2) times the input, or the other way round.
    inputs, labels = 2**0.5 * numbers.abs().view(1, -1, 1), (numbers < 0).long().view(1, -1)
    sums = GENERAL.clipped_sums(torch.zeros(1, 2), inputs, labels, present(len(numbers)), bound)
    return sums.double()


GENERAL = GeneralNetwork(nn.Linear(1, 2, bias=False), (1,))
WAYS: list[Sum] = [
    by_stored, by_rows_apart, by_outer, by_pieces, by_lookups, by_contraction, by_ghost_norms, by_convolution,
]  # fmt: skip


def moved_by_one_more(way: Sum, one: float, others: Tensor, bound: float) -> float:
    """How far an example moves a sum, in units of the bound, at the first and at the last place."""
    with_it = [torch.cat(pair) for pair in ((torch.tensor([one]), others), (others, torch.tensor([one])))]
    without = way(others, bound)
    return max(float((way(numbers, bound) - without).norm()) / bound for numbers in with_it)


@pytest.fixture
def few_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(layers._STORED_BYTES, "cpu", 2**14)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.usefixtures("few_are_stored")
@pytest.mark.parametrize("way", [*WAYS, by_torch_func])
def test_one_more_in_a_batch_of_thousands(way: Sum) -> None:
    # Just not clipped, if it were not for the sum of the others: norms allow for 2^-15 and, at two positions, 2^-13.
    bound = SIZE * (1 + (0.0 if way in WAYS[:5] else 2.0**-13)) * (1 + 2.0**-14)
    worst = max(moved_by_one_more(way, SIZE, torch.full((count,), SIZE), bound) for count in range(9001, 9004))
    assert 0.99 < worst <= 1.0


@pytest.mark.parametrize("way", [by_stored, by_rows_apart, by_outer, by_pieces])
def test_one_more_in_a_batch_made_to_be_rounded_up(way: Sum) -> None:
    assert 0.99 < moved_by_one_more(way, 0.5, hovering(), 0.5 * (1 + 2.0**-14)) <= 1.0


@pytest.mark.usefixtures("few_are_stored")
@pytest.mark.parametrize("way", [by_stored, by_rows_apart, by_outer, by_pieces, by_contraction])
def test_no_neighbours_are_added_up_in_single_precision_in_a_batch_of_thousands(way: Sum) -> None:
    # However many of them are in a piece: it is the whole batch that the share for sums has to cover.
    numbers = draw(5, 5000).abs() + 1.0
    exact = float(numbers.double().sum())
    assert abs(float(way(numbers, 1e9).sum()) - exact) < 1e-12 * exact


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_share_for_sums_covers_every_batch(precision: str) -> None:
    """The arithmetic of the proof, in exact fractions: two sums, each off by n^2 d (1 + n d) times what one may add."""
    clipping = Clipping(precision)
    lost = {torch.float32: Fraction(1, 2**24 if precision == "float32" else 2**23), torch.float64: Fraction(1, 2**53)}
    share = Fraction(clipping.margin) - 4 * Fraction(1, 2 ** (MANTISSA[precision] + 1)) - Fraction(1, 2**15)
    largest = {clipping.accumulator(count): count for count in [*range(1, 1000), MOST_EXAMPLES]}
    assert set(largest) == set(lost)
    for accumulator, count in largest.items():
        off = count**2 * lost[accumulator] * (1 + count * lost[accumulator])
        assert (1 - share) * (1 + 2 * off) <= 1
    with pytest.raises(ValueError, match="too large"):
        clipping.accumulator(MOST_EXAMPLES + 1)
    # Parts of neighbours in single precision, which compiled code rounds to nearest; then in double precision.
    most = max(count for count in range(10_000) if examples_together(count))
    part = examples_together(most)
    for count in range(part, most + 1):
        off = Fraction(count * (part + 1), 2) / 2**24 + Fraction(count**2, 2**53)
        assert (1 - share) * (1 + 2 * off) <= 1


# --- the ends of single precision -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [1e-12, 1e-7, 1.0, 1e12])
def test_the_bound_holds_for_operands_of_every_size(bound: float) -> None:
    sizes = torch.logspace(-45, 38, 84, dtype=torch.float64).float()
    inputs, gradients = torch.cartesian_prod(sizes, sizes).T
    count = len(inputs)
    values = 1 + draw(3, count, 4).abs() / 4
    parts = layers.Outer(
        (inputs[:, None] * values).nan_to_num(posinf=3e38)[:, None, :],
        (gradients[:, None] * values[:, :3]).nan_to_num(posinf=3e38)[:, None, :],
        frame("float32", count, 1),
        has_bias=False,
    )
    squares = parts.squared_norms()
    parts.forget(torch.isfinite(squares))
    out = torch.zeros(count, 12)
    parts.write_sums(CLIPPING.factors(squares, torch.isfinite(squares), bound), out)
    assert float(out.double().norm(dim=1).max()) <= bound
    usual = (inputs > 1e-5) & (inputs < 1e8) & (gradients > 1e-5) & (gradients < 1e8)
    assert bool((out[usual].double().norm(dim=1) > 0).all())


def test_clipping_norms_at_the_ends_of_single_precision_are_refused() -> None:
    constants: dict[str, Any] = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 1, "learning_rate": 1.0}
    for norm in (1e-12, 1e12):
        TrainConfig(1, max_grad_norm=norm, **constants)
    for norm in (1e-26, 9e-13, 1.1e12, 1e26):
        with pytest.raises(ConfigError, match="max_grad_norm from 1e-12 to 1e"):
            TrainConfig(1, max_grad_norm=norm, **constants)
