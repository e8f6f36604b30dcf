"""The kernels of a network's stem against torch in double precision.

Without a GPU the kernels run in Triton's interpreter, which is chosen when Triton is imported: hence in a process of
their own, this file as a script with the name of a case.
"""

import importlib.util
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

_MODELS, _BATCH = 2, 3


pytestmark = pytest.mark.more


def _opa(size: int) -> list[tuple[Any, ...]]:
    return [
        (3, size, size, 32, (3, 3), (1, 1), "relu", (2, 2)),
        (32, size // 2, size // 2, 64, (3, 3), (1, 1), "relu", (2, 2)),
        (64, size // 4, size // 4, 64, (3, 3), (1, 1), "relu", (2, 2)),
        (64, size // 8, size // 8, 128, (3, 3), (1, 1), "relu", (size // 8, size // 8)),
    ]


# For every stage channels, height, width, outputs, kernel, padding, activation, window; then the models' examples.
_CASES: dict[str, tuple[list[tuple[Any, ...]], list[int]]] = {
    "lenet": (
        [(1, 28, 28, 6, (5, 5), (0, 0), "tanh", (2, 2)), (6, 12, 12, 16, (5, 5), (0, 0), "tanh", (2, 2))],
        [3, 1],
    ),
    "opa": (_opa(8), [1, 1]),
    "windows that leave a rest": (
        [(2, 19, 15, 5, (3, 3), (1, 1), "tanh", (2, 2)), (5, 9, 7, 9, (3, 3), (0, 1), "relu", (2, 2))],
        [2, 3],
    ),
    "unequal sides, a model without examples": (
        [(1, 13, 16, 6, (4, 3), (2, 0), "relu", (1, 2)), (6, 14, 7, 17, (3, 3), (1, 1), "tanh", (3, 3))],
        [0, 3],
    ),
    "three stages, the last two narrow": (
        [
            (1, 14, 12, 3, (3, 3), (1, 1), "relu", (2, 2)),
            (3, 7, 6, 4, (2, 2), (1, 1), "tanh", (2, 1)),
            (4, 4, 7, 5, (3, 3), (0, 1), "relu", (2, 2)),
        ],
        [3, 2],
    ),
    "wide, with a rest": (
        [(2, 11, 13, 20, (3, 3), (0, 1), "tanh", (2, 2)), (20, 4, 6, 33, (3, 2), (1, 1), "relu", (3, 2))],
        [3, 2],
    ),
    "one stage": ([(2, 9, 7, 5, (3, 3), (1, 1), "tanh", (2, 2))], [3, 2]),
}


# What results may be off by, relative to their norm; in 16 bits from a twin that rounds at the same places.
_TOLERANCES = {"ieee": 1e-5, "tf32": 5e-3, "bf16": 6e-3}


# In the interpreter the first two precisions differ only in the sizes of tiles.
@pytest.mark.parametrize(
    ("case", "precision"),
    [
        *((case, "tf32") for case in _CASES),
        *((case, "ieee") for case in ("lenet", "windows that leave a rest")),
        *((case, "bf16") for case in ("opa", "wide, with a rest")),
    ],
)
def test_interpreted_kernels_agree_with_torch(case: str, precision: str) -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__, case, precision], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["ieee", "tf32", "bf16"])
@pytest.mark.parametrize("case", _CASES)
def test_compiled_kernels_agree_with_torch(case: str, precision: str) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    if not torch.cuda.is_available():
        pytest.skip("there is no NVIDIA GPU")
    _compare(case, precision, torch.device("cuda"), _TOLERANCES[precision])


def test_stages_that_do_not_fit_are_refused() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    from mithridate.training.kernels import leading_convolutions as stem

    first, second = (stem.Stage(*shape) for shape in _CASES["lenet"][0])
    assert stem.supports([first, second])
    assert not stem.supports([])
    assert not stem.supports([second, first])
    assert not stem.supports([stem.Stage(64, 8, 8, 64, (3, 3), (1, 1), "relu", (2, 2))])  # too large to come first
    assert not stem.supports([stem.Stage(1, 8, 8, 6, (3, 3), (3, 3), "relu", (2, 2))])  # more padding than kernel
    assert not stem.supports([stem.Stage(1, 4, 4, 6, (3, 3), (0, 0), "relu", (4, 4))])  # nothing left
    assert not stem.supports([stem.Stage(1, 8, 8, 6, (3, 3), (1, 1), "gelu", (2, 2))])


def _compare(case: str, precision: str, device: torch.device, tolerance: float) -> None:
    """Outputs, gradients and norms of all examples; whatever belongs to padding is NaN and must not matter."""
    from mithridate.training.kernels import leading_convolutions as stem

    torch.use_deterministic_algorithms(True)  # also fills new memory with NaN: what is not written is noticed
    shapes, counts = _CASES[case]
    stages = [stem.Stage(*shape) for shape in shapes]
    assert stem.supports(stages)
    images, params = _random_inputs(stages)
    live = torch.tensor([[place < count for place in range(_BATCH)] for count in counts]).flatten()
    outputs, weights = _reference(images, params, stages, halved=precision == "bf16")
    gradients = torch.randn(outputs.shape)
    expected = _reference_gradients(outputs, gradients, weights)
    images[~live], gradients[~live] = float("nan"), float("nan")

    def run() -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        on_device = [(weight.to(device), bias.to(device)) for weight, bias in params]
        extents = torch.tensor(counts, dtype=torch.int32, device=device)
        found, saved = stem.forward(images.to(device), on_device, extents, stages, precision)
        results = stem.example_gradients(saved, gradients.to(device))
        ordered = [
            (_in_order(weights, stage), *others) for (weights, *others), stage in zip(results, stages, strict=True)
        ]
        return found.cpu(), [tuple(part.cpu().flatten(0, 1) for part in parts) for parts in ordered]

    found, results = run()
    assert bool((found[~live] == 0).all())
    _assert_close(found[live], outputs.detach()[live], tolerance)
    assert bool((found[~live] == 0).all())
    for (weight, bias, squares), (weight_wanted, bias_wanted) in zip(results, expected, strict=True):
        _assert_close(weight[live], weight_wanted[live], tolerance)
        _assert_close(bias[live], bias_wanted[live], tolerance)
        wanted = weight_wanted.square().sum(dim=1) + bias_wanted.square().sum(dim=1)
        _assert_close(squares[live], wanted[live], 2 * tolerance)
        assert bool((squares[~live] == 0).all())

    # An example that is not finite changes not one bit of any other. Behind this one is padding, or another model.
    odd = counts.index(max(counts)) * _BATCH + max(counts) - 1
    images[odd], live[odd] = float("inf"), False
    found_again, results_again = run()
    assert torch.equal(found[live], found_again[live])
    for parts, parts_again in zip(results, results_again, strict=True):
        assert all(torch.equal(part[live], again[live]) for part, again in zip(parts, parts_again, strict=True))


def _in_order(weights: Tensor, stage: Any) -> Tensor:
    """Gradients in the order of the weights, also where places are held before channels, and rounded."""
    if weights.dim() == 3:
        return weights
    assert weights.shape[2:4] == (stage.outputs, stage.kernel[0] * stage.kernel[1])
    return weights[..., : stage.channels].transpose(-1, -2).flatten(2).float()


def _random_inputs(stages: Any) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Images, and parameters that are views of one matrix, as in training."""
    torch.manual_seed(0)
    sizes = [(stage.outputs * stage.entries, stage.outputs) for stage in stages]
    flat = torch.randn(_MODELS, sum(sum(size) for size in sizes) + 7)
    params = []
    start = 3
    for stage, (weights, biases) in zip(stages, sizes, strict=True):
        matrix = flat[:, start : start + weights].mul_(1.5 / stage.entries**0.5)
        bias = flat[:, start + weights : start + weights + biases]
        params.append((matrix.view(_MODELS, stage.outputs, stage.channels, *stage.kernel), bias))
        start += weights + biases
    return torch.randn(_MODELS * _BATCH, stages[0].channels, stages[0].height, stages[0].width), params


class _Rounded(torch.autograd.Function):
    """A value rounded to 16 bits, or its gradient, or both."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, there: bool, back: bool) -> Tensor:
        ctx.back = back
        return value.bfloat16().double() if there else value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0].bfloat16().double() if ctx.back else grads[0], None, None


class _RoundedSlope(torch.autograd.Function):
    """The hyperbolic tangent, whose slope is found from its rounded value."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        ctx.save_for_backward(value.tanh())
        return value.tanh()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return (grads[0] * (1.0 - ctx.saved_tensors[0].bfloat16().double().square()),)


def _reference(
    images: Tensor, params: list[tuple[Tensor, Tensor]], stages: Any, *, halved: bool
) -> tuple[Tensor, list[list[tuple[Tensor, Tensor]]]]:
    """Outputs in double precision, and for every example the parameters it went through, its own copies."""
    outputs, weights = [], []
    for at, image in enumerate(images.double()):
        own = [
            (weight[at // _BATCH].double().requires_grad_(), bias[at // _BATCH].double().requires_grad_())
            for weight, bias in params
        ]
        value = image.unsqueeze(0)
        for stage, (weight, bias) in zip(stages, own, strict=True):
            if halved:
                value, weight = _Rounded.apply(value, True, True), _Rounded.apply(weight, True, False)
            value = F.conv2d(value, weight, bias, padding=stage.padding)
            value = _Rounded.apply(value, False, True) if halved else value
            tanh = _RoundedSlope.apply if halved else torch.tanh
            value = F.avg_pool2d(tanh(value) if stage.activation == "tanh" else F.relu(value), stage.window)
        outputs.append(value)
        weights.append(own)
    return torch.cat(outputs), weights


def _reference_gradients(
    outputs: Tensor, gradients: Tensor, weights: list[list[tuple[Tensor, Tensor]]]
) -> list[tuple[Tensor, Tensor]]:
    """For each stage gradients with respect to weights (flat) and biases, one row per example."""
    flat = [part for own in weights for pair in own for part in pair]
    found = [gradient.flatten() for gradient in torch.autograd.grad(outputs, flat, gradients.double())]
    per_example = len(found) // len(weights)
    return [
        (torch.stack(found[at::per_example]), torch.stack(found[at + 1 :: per_example]))
        for at in range(0, per_example, 2)
    ]


def _assert_close(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    error = float((found.double() - wanted).norm() / wanted.norm())
    assert error < tolerance, error


if __name__ == "__main__":
    from interpreting import mend_halves

    mend_halves()
    _compare(sys.argv[1], sys.argv[2], torch.device("cpu"), _TOLERANCES["bf16"] if sys.argv[2] == "bf16" else 1e-5)
