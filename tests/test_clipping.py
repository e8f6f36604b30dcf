"""The clip bound with all roundings: what one example adds has norm at most `max_grad_norm`, checked in float64.

Matrix products of lower precision are emulated: operands are rounded before an exact product. Three roundings are tried
for each precision, since hardware may use any: to nearest, towards zero, and an adversary's, who may move every operand
by one unit (half a place, the most that rounding to nearest can do) in whichever direction lengthens the result.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from mithridate.ensemble import layers
from mithridate.ensemble.clipping import Clipping
from mithridate.ensemble.layers import Conv, Frame

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
    # Not shorter than the rounding of the precision asks for: a percent of a percent, half a percent for tf32.
    assert factor * norm >= min(norm, bound) * (1 - 16 * 2.0 ** -(MANTISSA[precision] + 1) - 1e-4)


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


def frame(precision: str, models: int = 1, batch: int = 1) -> layers.Frame:
    return layers.Frame(models, Clipping(precision), torch.full((models,), batch, dtype=torch.int32), None)


@dataclass(frozen=True)
class Case:
    """Gradients of one example with respect to some parameters, and the sizes of these."""

    make: Callable[[layers.Frame], list[layers.Parts]]
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

    def make(shared: layers.Frame) -> list[layers.Parts]:
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
        frame = Frame(1, Clipping("float32"), torch.tensor([4]), None)
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
        frame = Frame(2, Clipping("float32"), torch.tensor([3, 3]), None)
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
    frame = Frame(1, Clipping("float32"), torch.tensor([1]), None)
    parts = layers.Outer(torch.full((1, 1, 1), 1e17), torch.full((1, 1, 1), 5e-17 / 1e6), frame, has_bias=False)
    tiny = layers.Outer(torch.full((1, 1, 1), 1e18), torch.full((1, 1, 1), 1e-23), frame, has_bias=False)
    for part, exact in ((parts, 5e-6), (tiny, 1e-5)):
        assert float(part.squared_norms().sqrt()) >= exact * (1 - 1e-6)


def test_an_example_with_a_token_that_does_not_exist_adds_nothing_to_any_model() -> None:
    frame = Frame(2, Clipping("float32"), torch.tensor([2, 2]), None)
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
