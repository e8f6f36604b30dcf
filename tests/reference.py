"""The slow and obvious twin of the training engine: one model, one example at a time, plain autograd, float64.

Nothing here imports the engine. `zoo` holds small modules made of every layer that the engine claims to know.
"""

import copy
import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mithridate.training.models import ResNet18, build

CLASSES = 4
VOCABULARY = 11


# How much shorter gradients are clipped than the bound (see `clipping`).
_MARGINS = {"float32": 2.0**-9 + 2.0**-15, "tf32": 2.0**-8 + 2.0**-9, "bfloat16": 2.0**-8 + 2.0**-9}


def reference_clipped_sums(
    module: nn.Module,
    weights: Tensor,
    inputs: Tensor,
    labels: Tensor,
    present: Tensor,
    max_grad_norm: float,
    precision: str = "float32",
) -> tuple[Tensor, Tensor]:
    """Sums of clipped per-example gradients `[M, P]` and the norms before clipping `[M, B]`, both float64.

    Gradients are clipped to the bound less the documented margin: 2^-9 and a little for float32, 2^-8 + 2^-9 and a
    little for TF32. Each example is a batch of its own. An absent example has norm 0 and adds nothing, whatever its
    content; one whose gradient is not finite keeps its (not finite) norm and adds nothing.
    """
    longest = max_grad_norm * (1 - _MARGINS[precision])
    sums = torch.zeros(weights.shape, dtype=torch.float64)
    norms = torch.zeros(labels.shape, dtype=torch.float64)
    for m in range(weights.shape[0]):
        single = with_weights(module, weights[m])
        for b in range(labels.shape[1]):
            if not present[m, b]:
                continue
            gradient = example_gradient(single, inputs[m, b], labels[m, b])
            norm = gradient.norm()
            norms[m, b] = norm
            if torch.isfinite(norm):
                sums[m] += gradient * min(1.0, longest / float(norm)) if norm > 0 else gradient
    return sums, norms


def reference_sums_of_units(
    module: nn.Module,
    weights: Tensor,
    inputs: Tensor,
    labels: Tensor,
    counts: Tensor,
    max_grad_norm: float,
    precision: str = "float32",
) -> tuple[Tensor, Tensor]:
    """Sums of the clipped mean gradients of units `[M, P]` and their norms before clipping `[M, B]`, both float64.

    Args:
        module: the network.
        weights: `[M, P]`.
        inputs: `[M, B, places, ...]`; only the first `counts` places of a unit are looked at.
        labels: `[M, B, places]`.
        counts: `[M, B]`, 0 for a unit that is absent.
        max_grad_norm: the largest norm of what one unit adds.
        precision: see `reference_clipped_sums`.
    """
    longest = max_grad_norm * (1 - _MARGINS[precision])
    sums = torch.zeros(weights.shape, dtype=torch.float64)
    norms = torch.zeros(counts.shape, dtype=torch.float64)
    for model, row in enumerate(weights):
        single = with_weights(module, row)
        for unit, count in enumerate(counts[model].tolist()):
            if not count:
                continue
            examples = zip(inputs[model, unit, :count], labels[model, unit, :count], strict=True)
            mean = torch.stack([example_gradient(single, *example) for example in examples]).mean(dim=0)
            norms[model, unit] = mean.norm()
            if torch.isfinite(mean).all():
                sums[model] += mean * min(1.0, longest / max(float(mean.norm()), 1e-300))
    return sums, norms


def reference_logits(module: nn.Module, weights: Tensor, inputs: Tensor) -> Tensor:
    """Logits `[M, N, L]`, float64, one model and one input at a time."""
    with torch.no_grad():
        return torch.stack(
            [
                torch.cat([single(_double(one)[None]) for one in inputs])
                for single in (with_weights(module, row) for row in weights)
            ]
        )


def with_weights(module: nn.Module, row: Tensor) -> nn.Module:
    """A float64 copy of the module with the weights of one flat row, in the order of `named_parameters`."""
    single = copy.deepcopy(module).double().cpu()
    start = 0
    with torch.no_grad():
        for parameter in single.parameters():
            parameter.copy_(row[start : start + parameter.numel()].view(parameter.shape))
            start += parameter.numel()
    assert start == row.numel()
    return single


def example_gradient(single: nn.Module, example: Tensor, label: Tensor) -> Tensor:
    """Gradient of the cross-entropy of one example, flat."""
    parameters = list(single.parameters())
    loss = F.cross_entropy(single(_double(example)[None]), label.cpu()[None])
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    return torch.cat(
        [
            torch.zeros_like(parameter).flatten() if gradient is None else gradient.flatten()
            for parameter, gradient in zip(parameters, gradients, strict=True)
        ]
    )


def _double(tensor: Tensor) -> Tensor:
    return tensor.double().cpu() if tensor.is_floating_point() else tensor.cpu()


# --- random models and batches ----------------------------------------------------------------------------------------


def random_weights(module: nn.Module, models: int, seed: int) -> Tensor:
    """Weights `[M, P]`, float32, of about the size of an initialisation, with norm scales around 1."""
    generator = torch.Generator().manual_seed(seed)
    columns: list[Tensor] = []
    for name, parameter in module.named_parameters():
        draw = torch.randn(models, parameter.numel(), generator=generator)
        if parameter.dim() > 1:
            columns.append(draw / math.sqrt(parameter[0].numel()))
        else:
            columns.append(0.3 * draw + (1.0 if name.endswith("weight") else 0.0))
    return torch.cat(columns, dim=1)


def takes_integers(module: nn.Module) -> bool:
    """Whether the module reads numbers of words instead of floats."""
    return any(isinstance(layer, nn.Embedding) for layer in module.modules())


def random_inputs(module: nn.Module, shape: tuple[int, ...], seed: int) -> Tensor:
    """Standard normal inputs, or numbers of words, of the given full shape."""
    generator = torch.Generator().manual_seed(seed)
    if takes_integers(module):
        return torch.randint(VOCABULARY, shape, generator=generator)
    return torch.randn(shape, generator=generator)


def random_batch(
    module: nn.Module, input_shape: tuple[int, ...], models: int, batch: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs `[M, B, ...]`, labels `[M, B]` and presence `[M, B]` (about two thirds), drawn from the seed."""
    generator = torch.Generator().manual_seed(seed)
    inputs = random_inputs(module, (models, batch, *input_shape), seed + 1)
    labels = torch.randint(CLASSES, (models, batch), generator=generator)
    present = torch.rand(models, batch, generator=generator) < 2 / 3
    return inputs, labels, present


# Places that a unit has for its examples.
PLACES = 3


def random_units(
    module: nn.Module, input_shape: tuple[int, ...], models: int, units: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs `[M, B, places, ...]`, labels and counts `[M, B]`; further places repeat the first example of the unit."""
    generator = torch.Generator().manual_seed(seed)
    inputs = random_inputs(module, (models, units, PLACES, *input_shape), seed + 1)
    labels = torch.randint(CLASSES, (models, units, PLACES), generator=generator)
    counts = torch.randint(0, PLACES + 1, (models, units), generator=generator)
    counts[0] = torch.tensor([PLACES, 2, 1, 0])[torch.arange(units) % 4]
    for place in range(1, PLACES):
        beyond = counts <= place
        inputs[:, :, place][beyond], labels[:, :, place][beyond] = inputs[:, :, 0][beyond], labels[:, :, 0][beyond]
    return inputs, labels, counts


def shares_of(counts: Tensor) -> Tensor:
    """What every place counts in the mean of its unit."""
    return torch.where(torch.arange(PLACES) < counts.unsqueeze(2), 1.0 / counts.clamp_min(1).unsqueeze(2), 0.0)


# --- the zoo ----------------------------------------------------------------------------------------------------------


class Functional(nn.Module):
    """A convolution, a function in the middle, a linear head: for what is written as functions, not as layers."""

    def __init__(self, middle: Callable[["Functional", Tensor], Tensor], flat: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(flat, CLASSES)
        self.middle = middle

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self, self.first(x)))


def _added(net: Functional, x: Tensor) -> Tensor:
    return torch.flatten(F.relu(x + net.second(x)), 1)


def _torch_added(net: Functional, x: Tensor) -> Tensor:
    x = torch.add(net.second(torch.tanh(x)), x)
    return torch.relu(x).view(x.size(0), -1)


def _added_in_place(net: Functional, x: Tensor) -> Tensor:
    y = net.second(x.relu())
    y += x
    return F.gelu(y).reshape(y.shape[0], -1)


def _meaned(net: Functional, x: Tensor) -> Tensor:
    return F.silu(net.second(F.leaky_relu(x))).mean((2, 3))


def _pooled(net: Functional, x: Tensor) -> Tensor:
    x = F.avg_pool2d(F.elu(net.second(F.max_pool2d(x, 2))), 2)
    return F.adaptive_avg_pool2d(x, 1).flatten(1)


class LastWord(nn.Module):
    """The last word's vector through a linear layer: indexing, which only the general path can do."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 5)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embedding(x))[:, -1])


class MeanOf(nn.Module):
    """Mean over one axis."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(self.axis)


class Tied(nn.Module):
    """One square matrix used by two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


class CalledTwice(nn.Module):
    """One layer run twice in a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


class Unused(nn.Module):
    """A layer that the forward pass leaves out: its gradient is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Linear(3, 2)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


class Scaled(nn.Module):
    """A bare parameter and a fixed buffer."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2, 6))
        self.register_buffer("shift", torch.linspace(-1, 1, 6))
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.sin((x + self.shift)[:, None] * self.scale).flatten(1))


class Attention(nn.Module):
    """One layer of PyTorch's own attention over a short sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        attended, _ = self.attention(x, x, x, need_weights=False)
        return self.head((x + attended).mean(1))


def _wide() -> nn.Module:
    """Convolutions with enough channels for the vendor's library, and norms that suit the kernels beside them."""
    return nn.Sequential(
        nn.Conv2d(2, 192, 3, padding=1, bias=False),
        nn.GroupNorm(48, 192),
        nn.ReLU(),
        nn.Conv2d(192, 64, 1),
        nn.GroupNorm(8, 64),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(64 * 30, CLASSES),
    )


def zoo() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """Modules made of what the fast path claims to know, each with the shape of one example."""
    _warn_about_uneven_padding_now()
    return {
        **_linear_zoo(),
        **_convolution_zoo(),
        **_norm_zoo(),
        **_embedding_zoo(),
        **_activation_zoo(),
        **_pooling_zoo(),
        **_functional_zoo(),
        **_model_zoo(),
    }


def general_zoo() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """Modules that need the general path."""
    return {
        "tied": (Tied(), (6,)),
        "called-twice": (CalledTwice(), (6,)),
        "unused": (Unused(), (6,)),
        "scaled": (Scaled(), (6,)),
        "attention": (Attention(), (3, 6)),
        "last-word": (LastWord(), (5,)),
        "convolution-3d": (_classifier(nn.Conv3d(1, 3, 2), 3 * 2 * 3 * 2), (1, 3, 4, 3)),
        "transposed-convolution": (_classifier(nn.ConvTranspose2d(2, 3, 2, stride=2), 3 * 6 * 6), (2, 3, 3)),
        "instance-norm": (_classifier(nn.InstanceNorm2d(2, affine=True), 32), (2, 4, 4)),
        "prelu": (_classifier(nn.Sequential(nn.Conv2d(2, 3, 3), nn.PReLU(3)), 12), (2, 4, 4)),
    }


def _warn_about_uneven_padding_now() -> None:
    """PyTorch warns once per process that padding="same" with an even kernel costs a copy; tests would fail on it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.Conv2d(1, 1, 2, padding="same")(torch.zeros(1, 1, 2, 2))


def _classifier(body: nn.Module, flat: int) -> nn.Module:
    return nn.Sequential(body, nn.Flatten(), nn.Linear(flat, CLASSES))


def _linear_zoo() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    return {
        "linear": (nn.Linear(7, CLASSES), (7,)),
        "linear-without-bias": (nn.Linear(7, CLASSES, bias=False), (7,)),
        "linear-on-sequence": (
            nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2, bias=False), nn.Flatten(), nn.Linear(8, CLASSES)),
            (4, 3),
        ),
        "linear-on-long-sequence": (
            nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(60, CLASSES)),
            (20, 2),
        ),
        "linear-on-grid": (_classifier(nn.Sequential(nn.Linear(3, 4), nn.Sigmoid()), 24), (2, 3, 3)),
    }


def _convolution_zoo() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    one = {
        "conv1d": (nn.Conv1d(3, 4, 3), 4 * 7, (3, 9)),
        "conv1d-stride-padding": (nn.Conv1d(3, 4, 3, stride=2, padding=1), 4 * 5, (3, 9)),
        "conv1d-dilation-groups": (nn.Conv1d(4, 6, 3, dilation=2, groups=2, bias=False), 6 * 5, (4, 9)),
        "conv1d-same": (nn.Conv1d(2, 3, 4, padding="same", dilation=2), 3 * 9, (2, 9)),
    }
    two = {
        "conv2d": (nn.Conv2d(2, 5, 3), 5 * 4 * 5, (2, 6, 7)),
        "conv2d-without-bias": (nn.Conv2d(2, 5, (2, 3), bias=False), 5 * 5 * 5, (2, 6, 7)),
        "conv2d-stride": (nn.Conv2d(2, 5, 3, stride=2), 5 * 2 * 3, (2, 6, 7)),
        "conv2d-uneven-stride": (nn.Conv2d(2, 3, (3, 2), stride=(1, 3), padding=(2, 0)), 3 * 8 * 2, (2, 6, 7)),
        "conv2d-padding": (nn.Conv2d(2, 5, 3, padding=1), 5 * 6 * 7, (2, 6, 7)),
        "conv2d-same": (nn.Conv2d(2, 3, (4, 3), padding="same"), 3 * 6 * 7, (2, 6, 7)),
        "conv2d-valid": (nn.Conv2d(2, 3, 3, padding="valid"), 3 * 4 * 5, (2, 6, 7)),
        "conv2d-dilation": (nn.Conv2d(2, 5, 3, dilation=2, padding=1), 5 * 4 * 5, (2, 6, 7)),
        "conv2d-groups": (nn.Conv2d(4, 6, 3, groups=2), 6 * 4 * 5, (4, 6, 7)),
        "conv2d-depthwise": (nn.Conv2d(4, 4, 3, groups=4, padding=1), 4 * 6 * 7, (4, 6, 7)),
        "conv2d-depthwise-multiplied": (nn.Conv2d(3, 6, 3, groups=3, stride=2, bias=False), 6 * 2 * 3, (3, 6, 7)),
        "conv2d-pointwise": (nn.Conv2d(3, 5, 1, stride=2), 5 * 3 * 4, (3, 6, 7)),
        "conv2d-all": (nn.Conv2d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2), 6 * 3 * 4, (4, 6, 7)),
    }
    single = {
        name: (_classifier(nn.Sequential(layer, nn.Tanh()), flat), shape)
        for name, (layer, flat, shape) in {**one, **two}.items()
    }
    # A convolution behind another, so that gradients have to pass through it as well.
    behind = {
        f"{name}-behind": (
            _classifier(nn.Sequential(nn.Conv2d(shape[0], shape[0], 1), nn.Tanh(), layer, nn.Tanh()), flat),
            shape,
        )
        for name, (layer, flat, shape) in two.items()
    }
    behind |= {
        f"{name}-behind": (
            _classifier(nn.Sequential(nn.Conv1d(shape[0], shape[0], 1), nn.Tanh(), layer, nn.Tanh()), flat),
            shape,
        )
        for name, (layer, flat, shape) in one.items()
    }
    return {**single, **behind}


def _norm_zoo() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    image, row = (4, 3, 5), (8,)

    def on_images(norm: nn.Module) -> tuple[nn.Module, tuple[int, ...]]:
        return _classifier(nn.Sequential(nn.Conv2d(4, 4, 1), norm, nn.Tanh()), 60), image

    return {
        "group-norm": on_images(nn.GroupNorm(2, 4)),
        "group-norm-one-group": on_images(nn.GroupNorm(1, 4)),
        "group-norm-per-channel": on_images(nn.GroupNorm(4, 4)),
        "group-norm-not-affine": on_images(nn.GroupNorm(2, 4, affine=False)),
        "group-norm-large-epsilon": on_images(nn.GroupNorm(2, 4, eps=0.5)),
        "group-norm-on-sequence": (_classifier(nn.Sequential(nn.Conv1d(4, 4, 1), nn.GroupNorm(2, 4)), 28), (4, 7)),
        "group-norm-on-rows": (nn.Sequential(nn.Linear(8, 8), nn.GroupNorm(2, 8), nn.Linear(8, CLASSES)), row),
        "layer-norm": (nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, CLASSES)), row),
        "layer-norm-not-affine": (
            nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8, elementwise_affine=False), nn.Linear(8, CLASSES)),
            row,
        ),
        "layer-norm-without-bias": (
            nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8, bias=False), nn.Linear(8, CLASSES)),
            row,
        ),
        "layer-norm-on-sequence": (_classifier(nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Tanh()), 18), (3, 5)),
        "layer-norm-on-images": on_images(nn.LayerNorm([4, 3, 5])),
        "layer-norm-on-image-rows": on_images(nn.LayerNorm([3, 5])),
    }


def _embedding_zoo() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    return {
        "embedding": (_classifier(nn.Embedding(VOCABULARY, 3), 15), (5,)),
        "embedding-mean": (nn.Sequential(nn.Embedding(VOCABULARY, 6), MeanOf(1), nn.Linear(6, CLASSES)), (9,)),
        "embedding-padding": (
            nn.Sequential(nn.Embedding(VOCABULARY, 6, padding_idx=2), MeanOf(1), nn.Tanh(), nn.Linear(6, CLASSES)),
            (9,),
        ),
        "embedding-then-linear": (
            nn.Sequential(
                nn.Embedding(VOCABULARY, 4), nn.Linear(4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(15, CLASSES)
            ),
            (5,),
        ),
    }


def _activation_zoo() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    activations: dict[str, nn.Module] = {
        "identity": nn.Identity(),
        "relu": nn.ReLU(),
        "relu-in-place": nn.ReLU(inplace=True),
        "tanh": nn.Tanh(),
        "gelu": nn.GELU(),
        "gelu-tanh": nn.GELU(approximate="tanh"),
        "silu": nn.SiLU(),
        "sigmoid": nn.Sigmoid(),
        "leaky-relu": nn.LeakyReLU(0.2),
        "elu": nn.ELU(0.7),
        "softplus": nn.Softplus(beta=2.0),
    }
    return {
        name: (nn.Sequential(nn.Linear(5, 6), activation, nn.Linear(6, CLASSES)), (5,))
        for name, activation in activations.items()
    }


def _pooling_zoo() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    one: dict[str, tuple[nn.Module, int]] = {
        "max-pool-1d": (nn.MaxPool1d(2), 3 * 4),
        "max-pool-1d-overlapping": (nn.MaxPool1d(3, stride=2, padding=1), 3 * 5),
        "avg-pool-1d": (nn.AvgPool1d(3), 3 * 3),
        "avg-pool-1d-padding": (nn.AvgPool1d(3, stride=2, padding=1), 3 * 5),
        "adaptive-avg-pool-1d": (nn.AdaptiveAvgPool1d(4), 3 * 4),
    }
    two: dict[str, tuple[nn.Module, int]] = {
        "max-pool-2d": (nn.MaxPool2d(2), 3 * 3 * 3),
        "max-pool-2d-overlapping": (nn.MaxPool2d(3, stride=2, padding=1), 3 * 3 * 4),
        "max-pool-2d-dilation": (nn.MaxPool2d(2, stride=1, dilation=2), 3 * 4 * 5),
        "avg-pool-2d": (nn.AvgPool2d(2), 3 * 3 * 3),
        "avg-pool-2d-padding": (nn.AvgPool2d(3, stride=2, padding=1), 3 * 3 * 4),
        "avg-pool-2d-padding-not-counted": (
            nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
            3 * 3 * 4,
        ),
        "avg-pool-2d-ceil": (nn.AvgPool2d(2, ceil_mode=True), 3 * 3 * 4),
        "adaptive-avg-pool-2d": (nn.AdaptiveAvgPool2d((1, 1)), 3),
        "adaptive-avg-pool-2d-uneven": (nn.AdaptiveAvgPool2d((4, 2)), 3 * 4 * 2),
    }
    return {
        name: (_classifier(nn.Sequential(nn.Conv1d(2, 3, 1), pool), flat), (2, 9)) for name, (pool, flat) in one.items()
    } | {
        name: (_classifier(nn.Sequential(nn.Conv2d(2, 3, 1), pool), flat), (2, 6, 7))
        for name, (pool, flat) in two.items()
    }


def _functional_zoo() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    return {
        "residual-plus": (Functional(_added, 4 * 16), (2, 4, 4)),
        "residual-torch-add-view": (Functional(_torch_added, 4 * 16), (2, 4, 4)),
        "residual-in-place-reshape": (Functional(_added_in_place, 4 * 16), (2, 4, 4)),
        "functional-mean": (Functional(_meaned, 4), (2, 4, 4)),
        "functional-pools": (Functional(_pooled, 4), (2, 4, 4)),
    }


def _model_zoo() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    return {
        "model-linear": (build("linear", (2, 3), CLASSES), (2, 3)),
        "model-mlp": (build("mlp", (5,), CLASSES), (5,)),
        "model-lenet5": (build("lenet5", (1, 16, 18), CLASSES), (1, 16, 18)),
        "model-opa-tut": (build("opa-tut", (3, 8, 9), CLASSES), (3, 8, 9)),
        "model-wide": (_wide(), (2, 5, 6)),
        "model-wide-sequence": (_classifier(nn.Sequential(nn.Conv1d(4, 160, 3), nn.ReLU()), 160 * 8), (4, 10)),
        "model-wide-norm-first": (
            _classifier(nn.Sequential(nn.GroupNorm(8, 64), nn.ReLU(), nn.Conv2d(64, 136, 2, bias=False)), 136 * 4),
            (64, 3, 3),
        ),
        "model-resnet18-narrow": (ResNet18(3, CLASSES, width=4), (3, 16, 16)),
    }


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox 4x32-10 of Salmon et al. 2011, in whole numbers."""
    mask = 2**32 - 1
    a, b, c, d = counter
    one, two = key
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (second >> 32) ^ b ^ one, second & mask, (first >> 32) ^ d ^ two, first & mask
        one, two = (one + 0x9E3779B9) & mask, (two + 0xBB67AE85) & mask
    return a, b, c, d


def expected_normals(key: int, step: int, size: int) -> list[float]:
    """The normals of one model at one step: Box-Muller of Philox(place // 2, step, upper key bits, 0), in doubles."""
    result: list[float] = []
    for pair in range((size + 1) // 2):
        counter = (pair, step, key >> 64 & (2**32 - 1), 0)
        one, two, three, _ = philox(counter, (key & (2**32 - 1), key >> 32 & (2**32 - 1)))
        radius = math.sqrt(-2.0 * math.log(min(1.0, one * 2.0**-32 + (two + 0.5) * 2.0**-64)))
        angle = 2.0 * math.pi * three * 2.0**-32
        result += [radius * math.cos(angle), radius * math.sin(angle)]
    return result[:size]
