"""The networks that are trained: small ones by name, which modules of a user's can be, and fresh weights for both.

No layer may mix examples, carry state from step to step, or draw random numbers. The certificate rests on one example
moving the clipped sum by at most `max_grad_norm`. A layer whose output for one example depends on the others
(BatchNorm), or on what was seen in earlier steps (running statistics), breaks that; a layer that draws random numbers
(Dropout) would tie an instance to the order of execution.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from mithridate import _validate
from mithridate.errors import ConfigError
from mithridate.training.randomness import PUBLIC_SEED, Seeds

Model = nn.Module | Callable[[], nn.Module]

MODELS = ("linear", "mlp", "lenet5", "opa-tut", "resnet18")

_HIDDEN = 64  # units of the hidden layer of `mlp`: few parameters buy radius

# How 8-bit images are scaled after division by 255: (mean, std). Constants of the recipes, never of a user's data.
_MNIST_SCALING = ((0.1307,), (0.3081,))
_CIFAR10_SCALING = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
_NO_SCALING = ((0.0,), (1.0,))


def build(name: str, input_shape: tuple[int, ...], classes: int, *, bias: bool = True) -> nn.Module:
    """A named network, freshly initialised.

    All are initialised by PyTorch's defaults, and `reset_parameters` of each layer draws anew from the same law.
    Forward passes have no branches on values, so that `torch.fx.symbolic_trace` can read them. Parameters at the inputs
    that each was made for, with 10 classes:

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
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), classes, bias=bias))  # softmax regression
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


def pick_model(model: Any, input_shape: tuple[int, ...], classes: int, *, on_features: bool = False) -> Model:
    """The network of a name, or what the user built.

    Features carry a bias where they want one: a linear model on them has none of its own, which would take up to half
    of each gradient's norm.

    Raises:
        ConfigError: the name is not known or does not fit the inputs, or it is no network.
    """
    if isinstance(model, str):
        return build(model, tuple(input_shape), classes, bias=not on_features)
    if isinstance(model, nn.Module) or callable(model):
        return model  # pyright: ignore[reportReturnType]  (`describe` looks at what it builds)
    raise ConfigError(f"Expected model to be one of {', '.join(MODELS)} or a torch.nn.Module, got {model!r}.")


def describe(model: Model) -> str:
    """What identifies a user's network: its class, and a hash of its structure, code and all that is not trained."""
    module = model if isinstance(model, nn.Module) else model()
    if not isinstance(module, nn.Module):
        raise ConfigError(f"Expected model to build a torch.nn.Module, got {module!r}.")
    check_module(module)
    shapes = {name: list(value.shape) for name, value in module.named_parameters()}
    digest = hashlib.sha256(json.dumps([repr(module), shapes, _code_of(module)]).encode())
    frozen = [(name, value) for name, value in module.named_parameters() if not value.requires_grad]
    for name, value in (*frozen, *module.named_buffers()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return f"{type(module).__qualname__} sha256:{digest.hexdigest()}"


def _code_of(module: nn.Module) -> list[Any]:
    """The code and the plain attributes of those parts of a network that are not torch's own."""
    found: list[Any] = []
    for name, part in module.named_modules():
        if type(part).__module__.startswith("torch.nn."):
            continue
        plain = {
            key: value
            for key, value in vars(part).items()
            if not key.startswith("_") and isinstance(value, int | float | str | tuple | None)
        }
        found.append([name, _source_of(type(part)), repr(sorted(plain.items()))])
    return found


def _source_of(kind: type[nn.Module]) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):  # typed in, not read from a file
        code = kind.forward.__code__
        return f"{code.co_code.hex()} {code.co_names} {code.co_consts!r}"


# --- which modules can be trained -------------------------------------------------------------------------------------


def check_module(module: nn.Module) -> None:
    """Refuse a module that cannot be trained here, naming the layer and what to put in its place.

    Guarantee:
        None of PyTorch's own layers that mix examples, keep running statistics, change their weights in the forward
        pass or draw random numbers gets past this. What a user's own `forward` does is not read; see
        `general.GeneralNetwork`, which runs every example alone.

    Args:
        module: the network, on any device.

    Raises:
        ConfigError: a layer or a parameter is not suitable; the message names its path and the remedy.
    """
    for path, layer in module.named_modules():
        for kinds, attribute, harmless, reason in _OBJECTIONS:
            if isinstance(layer, kinds) and (attribute is None or getattr(layer, attribute, harmless) != harmless):
                why = reason.format(replacement=_replacement(layer))
                raise ConfigError(f"{described(path, layer)} cannot be used: {why}")
    _check_parameters(module)


def described(path: str, layer: nn.Module) -> str:
    """How messages name a layer: its path in the model and its constants, in one line.

    >>> described("body.0", nn.Tanh())
    'Layer body.0, Tanh(),'
    """
    text = str(layer) if not list(layer.children()) else type(layer).__name__
    return f"Layer {path}, {text}," if path else f"The model {text}"


def check_forward(module: nn.Module, example: Tensor) -> None:
    """Refuse a module whose forward pass changes its buffers or draws random numbers, by running one example twice.

    Args:
        module: the network, which passed `check`; a copy of it is run, in training mode.
        example: one input, without a batch axis, on the device of the module.

    Raises:
        ConfigError: a buffer changed, or the two answers differ.
    """
    own = copy.deepcopy(module).train()
    before = {name: buffer.clone() for name, buffer in own.named_buffers()}
    with torch.no_grad():
        first, second = own(example[None]), own(example[None])
    for name, buffer in own.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise ConfigError(
                f"Buffer {name} changes in the forward pass: state that depends on examples escapes the noise. Leave "
                "the update out, or make it a parameter."
            )
    if not torch.allclose(first, second, rtol=1e-4, atol=1e-5, equal_nan=True):
        raise ConfigError(
            "The model's forward pass draws random numbers (two passes of one input differ), which are not a function "
            "of the instance, so that a run could not be repeated or resumed. Remove them (dropout, added noise)."
        )


def random_inputs(module: nn.Module, input_shape: tuple[int, ...], input_dtype: torch.dtype, count: int) -> Tensor:
    """Inputs to try a module on, always the same: standard normal, or tokens that its embeddings know."""
    generator = torch.Generator().manual_seed(0)
    if input_dtype != torch.int64:
        return torch.randn(count, *input_shape, generator=generator)
    rows = min((layer.num_embeddings for layer in module.modules() if isinstance(layer, nn.Embedding)), default=2)
    return torch.randint(rows, (count, *input_shape), generator=generator)


def check_examples_apart(module: nn.Module, input_shape: tuple[int, ...], input_dtype: torch.dtype) -> None:
    """Refuse a module whose results for an example depend on the others in its batch.

    Trained here it would see every example alone, and be another function than the one that was meant.

    Args:
        module: the network, which passed `check`.
        input_shape: shape of one input.
        input_dtype: float32, or int64 for tokens.

    Raises:
        ConfigError: it mixes examples.
    """
    own = copy.deepcopy(module).cpu()
    inputs = random_inputs(own, input_shape, input_dtype, 3)
    with torch.no_grad():
        try:
            together, alone = own(inputs), torch.cat([own(example[None]) for example in inputs])
        except (RuntimeError, TypeError, ValueError, IndexError):
            return  # other checks say what is wrong with it
    if isinstance(together, Tensor) and together.shape == alone.shape:
        distance = (together - alone).norm()
        if torch.isfinite(distance) and distance > 1e-3 * alone.norm() + 1e-6:
            raise ConfigError(
                "The model mixes examples: its results for one input depend on the others in the batch. Normalise "
                "within an example instead, for example by GroupNorm or LayerNorm."
            )


def reset_for_fresh_start(module: nn.Module) -> None:
    """Draw new initial weights, in place, by `reset_parameters` of every layer that has it, children before parents.

    Random numbers come from PyTorch's global generator, so seed it first. What a constructor did to the weights of its
    layers afterwards is not repeated: a module with an initialisation of its own should say it in `reset_parameters`,
    or be passed as a function that builds it.

    Raises:
        ConfigError: a parameter is not drawn by any `reset_parameters`; all weights are then as they were.
    """
    parameters = dict(module.named_parameters())
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    with torch.no_grad():
        # What nobody draws stays NaN; so does a weight that a parametrisation computes, where a reset is lost.
        for parameter in parameters.values():
            parameter.fill_(torch.nan)
        for layer in reversed(list(module.modules())):
            reset = getattr(layer, "reset_parameters", None)
            if callable(reset):
                reset()
        forgotten = [name for name, parameter in parameters.items() if parameter.isnan().any()]
        if forgotten:
            for name, parameter in parameters.items():
                parameter.copy_(before[name])
    if forgotten:
        raise ConfigError(
            f"Parameter {forgotten[0]} cannot be initialised afresh for every instance: no layer's reset_parameters() "
            "draws it. Give the module that owns it such a method, or pass a function that builds the model."
        )


def _check_parameters(module: nn.Module) -> None:
    parameters = dict(module.named_parameters())
    if not parameters:
        raise ConfigError("The model has no parameters; there is nothing to train.")
    for name, parameter in parameters.items():
        if isinstance(parameter, UninitializedParameter):
            raise ConfigError(
                f"Parameter {name} has no shape yet (a lazy layer); pass one input through the model, or give the "
                "layer its sizes."
            )
        if parameter.dtype != torch.float32:
            raise ConfigError(
                f"Parameter {name} is {parameter.dtype}; instances are trained in float32. Call .float() on the model."
            )
        if not parameter.requires_grad:
            raise ConfigError(
                f"Parameter {name} is frozen (requires_grad=False), but every parameter is initialised, trained and "
                "given noise here. Set requires_grad=True, store what is constant by register_buffer, or compute the "
                "frozen part's features beforehand and train the rest on them."
            )
    for name, buffer in module.named_buffers():
        if isinstance(buffer, UninitializedBuffer):
            raise ConfigError(f"Buffer {name} has no shape yet (a lazy layer); give the layer its sizes.")


# --- objections: which layers, the attribute that matters and its harmless value, why not and what to do --------------


def _replacement(layer: nn.Module) -> str:
    """What takes the place of a BatchNorm, with as many groups up to 32 as divide the channels; for rows, with one."""
    # The count of channels is not known before the first input of a lazy layer.
    channels = int(getattr(layer, "num_features", 0))
    # A channel of a row is one number, and a group of one number is always 0: the network would answer a constant.
    most = 1 if isinstance(layer, nn.BatchNorm1d) else min(32, channels)
    groups = next((number for number in range(most, 0, -1) if channels % number == 0), 0)
    return f"torch.nn.GroupNorm({groups}, {channels})" if channels else "torch.nn.GroupNorm"


# PyTorch's common bases of these are private, and a lazy layer is no subclass of what it turns into.
_BATCH_NORMS = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm,
    nn.LazyBatchNorm1d, nn.LazyBatchNorm2d, nn.LazyBatchNorm3d,
)  # fmt: skip
_INSTANCE_NORMS = (
    nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
    nn.LazyInstanceNorm1d, nn.LazyInstanceNorm2d, nn.LazyInstanceNorm3d,
)  # fmt: skip
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


_OBJECTIONS: tuple[tuple[tuple[type[nn.Module], ...], str | None, Any, str], ...] = (
    (
        _BATCH_NORMS, None, None,
        "it normalises by statistics of the whole batch, so that one example changes the gradients of all others and "
        "the clipping bounds nothing. Replace it by {replacement}.",
    ),
    (
        _INSTANCE_NORMS, "track_running_stats", False,
        "it keeps running statistics of the data, which escape the noise. Set track_running_stats=False.",
    ),
    (
        _DROPOUTS, "p", 0.0,
        "its random numbers are not a function of the instance, so that a run could not be repeated or resumed. Remove "
        "it or set p=0; the noise of DP-SGD regularises already.",
    ),
    (
        (nn.RReLU,), None, None,
        "its slopes are random and not a function of the instance. Replace it by torch.nn.LeakyReLU().",
    ),
    (
        (nn.FractionalMaxPool2d, nn.FractionalMaxPool3d), None, None,
        "its regions are random and not a function of the instance. Replace it by average or maximum pooling.",
    ),
    (
        (nn.RNNBase,), None, None,
        "PyTorch's fused recurrent layers have no per-example gradients under torch.func. Write the recurrence as a "
        "loop over the steps with torch.nn.Linear, or use convolutions or attention over the sequence.",
    ),
    (
        (nn.MultiheadAttention,), "dropout", 0.0,
        "its dropout draws random numbers that are not a function of the instance. Set dropout=0.",
    ),
    (
        (nn.Embedding, nn.EmbeddingBag), "max_norm", None,
        "max_norm changes the weights of the words seen in the forward pass, outside the noise. Leave max_norm out.",
    ),
    (
        (nn.Embedding, nn.EmbeddingBag), "sparse", False,
        "sparse gradients would tell which words were seen; the noise is on every weight. Set sparse=False.",
    ),
)  # fmt: skip


# --- fresh weights for every instance ---------------------------------------------------------------------------------

_UNIFORM = (nn.Linear, nn.Conv1d, nn.Conv2d)
_CONSTANT = (nn.GroupNorm, nn.LayerNorm)


def initial_weights(model: Model, seeds: Seeds, instances: Sequence[int]) -> Tensor:
    """Fresh weights of some instances, models x parameters, each drawn from the model's own law of initialisation."""
    law = _uniform_law(model) if isinstance(model, nn.Module) else None
    if law is not None:
        low, width = law
        rows = np.empty((len(instances), len(low)), np.float32)
        for row, instance in zip(rows, instances, strict=True):
            seeds.generator(instance, "initial weights").random(dtype=np.float32, out=row)
            row *= width
            row += low
        return torch.from_numpy(rows)
    return _reset_weights(model, seeds, instances)


def check_repeatable(model: Model) -> None:
    """Require that what a model starts from is a function of the seed of its instance, and all else in it a constant.

    It is built, or reset, several times: an instance's weights must come out the same to the bit, and buffers must not
    depend on the instance. (Between two builds the generators of numpy and of Python move on, if they are used.)

    Raises:
        ConfigError: it is not so.
    """
    if isinstance(model, nn.Module) and _uniform_law(model) is not None:
        return
    seeds = Seeds.of(PUBLIC_SEED)
    first, second = (_reset_weights(model, seeds, [0]) for _ in range(2))
    if not same_bits(first, second):
        raise ConfigError(
            "The model starts from other weights every time that it is built, so they are no function of its seed; "
            "draw them with torch's random numbers only, not with those of numpy or Python."
        )
    if isinstance(model, nn.Module):
        return
    one, other = (dict(module.named_buffers()) for module in _built(model, seeds, [0, 1]))
    for name, buffer in one.items():
        if name not in other or not torch.equal(buffer, other[name]):
            raise ConfigError(
                f"Buffer {name} is another one every time that the model is built, but it is a constant of all "
                "instances; draw it once, outside of the function that builds the model."
            )


def same_bits(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors of float32 are equal to the bit."""
    return torch.equal(one.contiguous().view(torch.int32), two.contiguous().view(torch.int32))


def _built(build: Callable[[], nn.Module], seeds: Seeds, instances: Sequence[int]) -> Iterator[nn.Module]:
    """What a function builds for some instances, each before the next."""
    with torch.random.fork_rng(devices=[]):
        for instance in instances:
            torch.default_generator.manual_seed(seeds.key(instance, "initial weights") % 2**63)
            yield build()


def _uniform_law(module: nn.Module) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None:
    """The lowest value of each weight and the width of its interval, where all layers are PyTorch's own.

    `Linear` and convolutions draw weights and biases from U(-1/sqrt(n), 1/sqrt(n)), n the number of inputs of an
    output; norms start at 1 and 0. Drawing all at once is several times faster than resetting layer by layer.
    """
    low: list[npt.NDArray[np.float32]] = []
    width: list[npt.NDArray[np.float32]] = []
    for layer in module.modules():
        own = list(layer.named_parameters(recurse=False))
        if own and type(layer) not in (*_UNIFORM, *_CONSTANT):
            return None
    for name, parameter in module.named_parameters():
        owner = module.get_submodule(name.rpartition(".")[0])
        if type(owner) in _UNIFORM:
            weight = owner.weight
            bound = 1.0 / math.sqrt(weight[0].numel())  # type: ignore[index, union-attr]
            low.append(np.full(parameter.numel(), -bound, np.float32))
            width.append(np.full(parameter.numel(), 2.0 * bound, np.float32))
        else:
            low.append(np.full(parameter.numel(), 1.0 if name.endswith("weight") else 0.0, np.float32))
            width.append(np.zeros(parameter.numel(), np.float32))
    if not low:
        return None
    return np.concatenate(low), np.concatenate(width)


def _reset_weights(model: Model, seeds: Seeds, instances: Sequence[int]) -> Tensor:
    """By `reset_parameters` of every layer, or by the user's function; PyTorch's generator takes 32 bits of a key."""
    rows = [
        torch.cat([value.detach().float().flatten() for _, value in module.named_parameters()])
        for module in _built(_drawing(model), seeds, instances)
    ]
    return torch.stack(rows)


def _drawing(model: Model) -> Callable[[], nn.Module]:
    """A function that draws a module anew: the user's own, or one that resets a copy of the user's module."""
    if not isinstance(model, nn.Module):
        return model
    scratch = copy.deepcopy(model).cpu()
    with torch.random.fork_rng(devices=[]):
        reset_for_fresh_start(scratch)  # with all its checks, once
    layers = [layer for layer in reversed(list(scratch.modules())) if hasattr(layer, "reset_parameters")]

    def draw() -> nn.Module:
        for layer in layers:
            layer.reset_parameters()  # type: ignore[operator]
        return scratch

    return draw
