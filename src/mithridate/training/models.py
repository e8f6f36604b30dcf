"""Small networks by name: none mixes examples, carries state or draws random numbers in its forward pass.

All are initialised by PyTorch's defaults, and `reset_parameters` of each layer draws anew from the same law. Forward
passes have no branches on values, so that `torch.fx.symbolic_trace` can read them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn

from mithridate import _validate
from mithridate.errors import ConfigError

MODELS = ("linear", "mlp", "lenet5", "opa-tut", "resnet18")

_HIDDEN = 64  # units of the hidden layer of `mlp`: few parameters buy radius

# How 8-bit images are scaled after division by 255: (mean, std). Constants of the recipes, never of a user's data.
_MNIST_SCALING = ((0.1307,), (0.3081,))
_CIFAR10_SCALING = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
_NO_SCALING = ((0.0,), (1.0,))


def build(name: str, input_shape: tuple[int, ...], classes: int, *, bias: bool = True) -> nn.Module:
    """A named network, freshly initialised.

    Parameters at the inputs that each was made for, with 10 classes:

    | name       | input     | parameters |                                                               |
    | ---------- | --------- | ---------- | ------------------------------------------------------------- |
    | `linear`   | any       | 7,850 at 1x28x28 | softmax regression                                      |
    | `mlp`      | any       | 50,890 at 1x28x28 | one hidden layer of 64 units, tanh                     |
    | `lenet5`   | 1x28x28   | 44,426     | LeNet-5 with tanh and average pooling                         |
    | `opa-tut`  | 3x32x32   | 131,466    | the convolutional network of Opacus' CIFAR-10 tutorial        |
    | `resnet18` | 3x32x32   | 11,173,962 | ResNet-18 for small images, GroupNorm in place of BatchNorm   |

    Args:
        name: one of `MODELS`.
        input_shape: shape of one example, without a batch axis; `(channels, height, width)` for the last three.
        classes: number of outputs, at least 2.
        bias: whether `linear` has a bias of its own; the others always have.

    Raises:
        ConfigError: the name is unknown, or the network cannot take inputs of this shape.

    >>> sum(parameter.numel() for parameter in build("lenet5", (1, 28, 28), 10).parameters())
    44426
    """
    _validate.one_of(MODELS, model=name)
    _validate.positive_integer(classes=classes)
    if classes < 2:
        raise ConfigError("Expected classes of at least 2; with one class there is nothing to learn.")
    for size in input_shape:
        _validate.positive_integer(size_of_each_input_axis=size)
    if not input_shape:
        raise ConfigError("Expected an input_shape with at least one axis; give tables one column at least.")
    if name == "linear":
        return _linear(tuple(input_shape), classes, bias=bias)
    return _BUILDERS[name](tuple(input_shape), classes)


def scaling(name: str, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation, per channel, with which 8-bit images are scaled for a named network.

    They are constants of the published recipes: MNIST's for `lenet5` (also where it is trained on other grey images),
    CIFAR-10's for `opa-tut` and `resnet18` on three channels, and 0 and 1 everywhere else.

    Raises:
        ConfigError: the name is unknown.

    >>> scaling("lenet5", 1)
    ((0.1307,), (0.3081,))
    """
    _validate.one_of(MODELS, model=name)
    _validate.positive_integer(channels=channels)
    if name in ("opa-tut", "resnet18") and channels == 3:
        return _CIFAR10_SCALING
    mean, std = _MNIST_SCALING if name == "lenet5" else _NO_SCALING
    return mean * channels, std * channels


def _linear(input_shape: tuple[int, ...], classes: int, *, bias: bool) -> nn.Module:
    """Softmax regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), classes, bias=bias))


def _mlp(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """One hidden layer, tanh: bounded activations suit clipped gradients (Papernot et al. 2021, arXiv 2007.14191)."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(input_shape), _HIDDEN), nn.Tanh(), nn.Linear(_HIDDEN, classes)
    )


def _lenet5(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """LeNet-5 as in the code of Liu et al. (AAAI 2023), repository shijiel2/AML_TrainingCertifiedDefense.

    Two 5x5 convolutions without padding (6 and 16 channels), each with tanh and average pooling by 2; then 120, 84 and
    `classes` units. At 1x28x28 with 10 classes: 156 + 2,416 + 30,840 + 10,164 + 850 = 44,426 parameters.
    """
    channels, height, width = _image("lenet5", input_shape, least=16)
    flat = 16 * _after_lenet_convolutions(height) * _after_lenet_convolutions(width)
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(flat, 120),
        nn.Tanh(),
        nn.Linear(120, 84),
        nn.Tanh(),
        nn.Linear(84, classes),
    )


def _after_lenet_convolutions(size: int) -> int:
    """Side of the image after two 5x5 convolutions without padding, each followed by pooling by 2."""
    return ((size - 4) // 2 - 4) // 2


def _opa_tut(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The convolutional network of Opacus' CIFAR-10 tutorial (pytorch/opacus, examples/cifar10.py).

    Four 3x3 convolutions with ReLU, average pooling by 2 after the first three, the mean over the image after the
    last, one linear layer. At 3x32x32 with 10 classes: 896 + 18,496 + 36,928 + 73,856 + 1,290 = 131,466 parameters.
    """
    channels, _, _ = _image("opa-tut", input_shape, least=8)
    layers: list[nn.Module] = []
    for inner, outer in ((channels, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(inner, outer, 3, stride=1, padding=1), nn.ReLU(), nn.AvgPool2d(2, stride=2)]
    layers += [nn.Conv2d(64, 128, 3, stride=1, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d((1, 1))]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, classes))


def _resnet18(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """`ResNet18` of the published width."""
    channels, _, _ = _image("resnet18", input_shape, least=8)
    return ResNet18(channels, classes)


_BUILDERS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {
    "mlp": _mlp,
    "lenet5": _lenet5,
    "opa-tut": _opa_tut,
    "resnet18": _resnet18,
}


class ResNet18(nn.Module):
    """ResNet-18 (He et al. 2016, arXiv 1512.03385) for 32x32 images, with GroupNorm in place of BatchNorm.

    As is usual for CIFAR-10, the stem is one 3x3 convolution of stride 1 without max pooling; then four stages of two
    basic blocks with `width` times 1, 2, 4 and 8 channels. GroupNorm (Wu and He 2018, arXiv 1803.08494) has 32 groups,
    or one per channel where there are fewer; it has as many parameters as the BatchNorm that it replaces. Convolutions
    have no bias. 3 channels, 10 classes: 11,173,962 parameters.

    Args:
        channels: channels of the images.
        classes: number of outputs.
        width: channels of the first stage.
    """

    def __init__(self, channels: int, classes: int, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(_convolution(channels, width, 3), _group_norm(width), nn.ReLU())
        self.stages = nn.Sequential(
            _stage(width, width, stride=1),
            _stage(width, 2 * width, stride=2),
            _stage(2 * width, 4 * width, stride=2),
            _stage(4 * width, 8 * width, stride=2),
        )
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(8 * width, classes))

    def forward(self, images: Tensor) -> Tensor:
        """Logits, `[example, class]`."""
        return self.head(self.stages(self.stem(images)))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut; the shortcut is a 1x1 convolution where the shape changes."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            _convolution(inner, outer, 3, stride),
            _group_norm(outer),
            nn.ReLU(),
            _convolution(outer, outer, 3),
            _group_norm(outer),
        )
        changes = stride != 1 or inner != outer
        self.shortcut = (
            nn.Sequential(_convolution(inner, outer, 1, stride), _group_norm(outer)) if changes else nn.Identity()
        )
        self.activation = nn.ReLU()

    def forward(self, images: Tensor) -> Tensor:
        """The sum of both ways, rectified."""
        return self.activation(self.residual(images) + self.shortcut(images))


def _stage(inner: int, outer: int, stride: int) -> nn.Module:
    return nn.Sequential(BasicBlock(inner, outer, stride), BasicBlock(outer, outer, 1))


def _convolution(inner: int, outer: int, kernel: int, stride: int = 1) -> nn.Module:
    return nn.Conv2d(inner, outer, kernel, stride=stride, padding=kernel // 2, bias=False)


def _group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(min(32, channels), channels)


def _image(name: str, input_shape: tuple[int, ...], *, least: int) -> tuple[int, int, int]:
    """Channels, height and width of the images that a convolutional network takes."""
    if len(input_shape) != 3:
        raise ConfigError(
            f"model={name!r} takes images of shape (channels, height, width), got examples of shape {input_shape}; "
            "reshape them, or use model='linear' or 'mlp'."
        )
    channels, height, width = input_shape
    if min(height, width) < least:
        raise ConfigError(
            f"model={name!r} takes images of at least {least}x{least} pixels, got {height}x{width} "
            "(axes are channels, height, width); enlarge them, or use model='linear' or 'mlp'."
        )
    return channels, height, width
