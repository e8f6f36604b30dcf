"""Which modules can be trained here: no layer may mix examples, carry state from step to step, or draw random numbers.

The certificate rests on one example moving the clipped sum by at most `max_grad_norm`. A layer whose output for one
example depends on the others (BatchNorm), or on what was seen in earlier steps (running statistics), breaks that; a
layer that draws random numbers (Dropout) would tie an instance to the order of execution.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from mithridate.errors import ConfigError


def check(module: nn.Module) -> None:
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
        for kinds, objection in _OBJECTIONS:
            reason = objection(layer) if isinstance(layer, kinds) else None
            if reason is not None:
                raise ConfigError(f"{described(path, layer)} cannot be used: {reason}")
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


def has_tied_parameters(module: nn.Module) -> bool:
    """Whether one parameter is reached by two names: two layers share it, or one layer has two names."""
    names = module.named_parameters(remove_duplicate=False)
    return sum(1 for _ in names) > sum(1 for _ in module.parameters())


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


# --- objections: from a layer to why it cannot be used and what to do, or None ----------------------------------------


def _mixes_batch(layer: nn.Module) -> str:
    # The count of channels is not known before the first input of a lazy layer.
    channels = int(getattr(layer, "num_features", 0))
    replacement = f"torch.nn.GroupNorm({_groups(channels)}, {channels})" if channels else "torch.nn.GroupNorm"
    return (
        "it normalises by statistics of the whole batch, so that one example changes the gradients of all others and "
        f"the clipping bounds nothing. Replace it by {replacement}."
    )


def _groups(channels: int) -> int:
    """The largest number of groups up to 32 that divides the channels."""
    return next(groups for groups in range(min(32, channels), 0, -1) if channels % groups == 0)


def _keeps_running_statistics(layer: nn.Module) -> str | None:
    if not getattr(layer, "track_running_stats", False):
        return None
    return "it keeps running statistics of the data, which escape the noise. Set track_running_stats=False."


def _drops(layer: nn.Module) -> str | None:
    if not getattr(layer, "p", 0.0):
        return None
    return (
        "its random numbers are not a function of the instance, so that a run could not be repeated or resumed. Remove "
        "it or set p=0; the noise of DP-SGD regularises already."
    )


def _drops_attention(layer: nn.Module) -> str | None:
    if not getattr(layer, "dropout", 0.0):
        return None
    return "its dropout draws random numbers that are not a function of the instance. Set dropout=0."


def _draws_random_slopes(layer: nn.Module) -> str:
    return "its slopes are random and not a function of the instance. Replace it by torch.nn.LeakyReLU()."


def _draws_random_regions(layer: nn.Module) -> str:
    return "its regions are random and not a function of the instance. Replace it by average or maximum pooling."


def _is_fused_recurrence(layer: nn.Module) -> str:
    return (
        "PyTorch's fused recurrent layers have no per-example gradients under torch.func. Write the recurrence as a "
        "loop over the steps with torch.nn.Linear, or use convolutions or attention over the sequence."
    )


def _renormalises(layer: nn.Module) -> str | None:
    if getattr(layer, "max_norm", None) is None:
        return None
    return "max_norm changes the weights of the words seen in the forward pass, outside the noise. Leave max_norm out."


def _is_sparse(layer: nn.Module) -> str | None:
    if not getattr(layer, "sparse", False):
        return None
    return "sparse gradients would tell which words were seen; the noise is on every weight. Set sparse=False."


# PyTorch's common bases of these are private, and a lazy layer is no subclass of what it turns into.
_BATCH_NORMS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.LazyBatchNorm1d,
    nn.LazyBatchNorm2d,
    nn.LazyBatchNorm3d,
)
_INSTANCE_NORMS = (
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.LazyInstanceNorm1d,
    nn.LazyInstanceNorm2d,
    nn.LazyInstanceNorm3d,
)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)

_OBJECTIONS: tuple[tuple[tuple[type[nn.Module], ...], Callable[[nn.Module], str | None]], ...] = (
    (_BATCH_NORMS, _mixes_batch),
    (_INSTANCE_NORMS, _keeps_running_statistics),
    (_DROPOUTS, _drops),
    ((nn.RReLU,), _draws_random_slopes),
    ((nn.FractionalMaxPool2d, nn.FractionalMaxPool3d), _draws_random_regions),
    ((nn.RNNBase,), _is_fused_recurrence),
    ((nn.MultiheadAttention,), _drops_attention),
    ((nn.Embedding, nn.EmbeddingBag), _renormalises),
    ((nn.Embedding, nn.EmbeddingBag), _is_sparse),
)
