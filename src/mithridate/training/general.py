"""Clipped gradient sums of any module that `torch.func` can differentiate: the general path.

Slower than `network.FastNetwork`, which knows its layers, but it asks nothing of the module except that it is a
function of its parameters and of one example.

How the norm is kept below the bound. With u = 2^-24, every float32 operation is exact up to a factor in [1 - u, 1 + u].
The norm of one example's gradient g is taken as a * sqrt(s) with a = max |g_i| and s = sum (g_i / a)^2, so that nothing
overflows or vanishes, whatever the size of g. Each term of s carries at most 4 roundings (division twice, square,
and 1 in hand); the sum runs in blocks of 16, so that a term passes at most 15 additions on each of at most 11 levels
(up to 2^32 parameters) and, over up to 4,096 tensors, 5 levels more: s is exact up to 244 u and its root up to 124 u.
The scale (c / a) / sqrt(s) and its product with g_i add 4 roundings. So what is added to the sum has norm at most
c (1 + 130 u), and c = max_grad_norm (1 - margin) with the margin of `clipping`, which is above 512 u + 2^-9, keeps it
below max_grad_norm (1 - 2^-9). (Entries below 2^-126 are rounded absolutely, by 2^-150 each: nothing beside a
max_grad_norm of 10^-12 or more.) The rest is for the additions over examples, in the precision that `clipping` chooses;
see there.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from mithridate.errors import ConfigError
from mithridate.training.clipping import Clipping
from mithridate.training.models import check_forward, check_module, described
from mithridate.training.network import new_sums

_CHUNK_BYTES = 256 * 2**20  # of per-example gradients and activations at a time
_CLIPPING = Clipping("float32")
_SMALLEST_SCALE = 2.0**-126  # below, float32 loses digits and a scale could round up
_BLOCK = 16

Parameters = dict[str, Tensor]


class GeneralNetwork:
    """Many copies of one module, each with weights of its own, through `torch.func`.

    Guarantee:
        Every example is run alone, as a batch of one, in the forward and in the backward pass, so examples cannot mix
        by construction, whatever the module does. A present example moves a sum by at most `max_grad_norm` (see the
        top of this module). An example that is absent, or whose gradient is not finite or
        longer than about 10^38 `max_grad_norm`, adds exactly nothing.

    Assumes:
        The module is a function of its parameters and its input: no random numbers, no state; `models` checks
        what can be checked. PyTorch's batching rules are right: a rehearsal of two models and three examples is
        compared with one at a time when the network is made.

    Args:
        module: maps `[1, *input_shape]` to logits `[1, classes]`; a copy of it is kept.
        input_shape: shape of one example, without a batch axis.

    Raises:
        ConfigError: the module is not suitable, does not take such inputs, or is beyond `torch.func`; the message
            names the layer.

    Attributes:
        size: number of parameters of one model; a shared parameter counts once.
        shapes: name of every parameter and its shape, in the order of a row of weights.
    """

    def __init__(self, module: nn.Module, input_shape: tuple[int, ...]) -> None:
        check_module(module)
        self._module = _own_copy(module)
        self.shapes = {name: parameter.shape for name, parameter in self._module.named_parameters()}
        self.size = sum(shape.numel() for shape in self.shapes.values())
        # What grows with the batch is its inputs: gradients are formed in chunks of bounded size.
        self.bytes_per_example = 4 * math.prod(input_shape)
        self.bytes_per_model = 4 * 6 * self.size
        self.loss_weights: Tensor | None = None
        self._buffers: dict[torch.device, Parameters] = {}
        example, self._classes = _accepted_example(self._module, tuple(input_shape))
        self._takes_integers = not example.is_floating_point()
        check_forward(self._module, example)
        self._numbers_per_example = self.size + _saved_numbers(self._module, example)
        self._batches_models = True
        self._rehearse(example)

    def clipped_sums(
        self,
        weights: Tensor,
        inputs: Tensor,
        labels: Tensor,
        present: Tensor,
        max_grad_norm: float,
        whole: int | None = None,
        shares: Tensor | None = None,
    ) -> Tensor:
        """Sum over the present examples of their gradients of the cross-entropy, each scaled to the norm bound.

        Args:
            weights: `[M, P]`, a row per model.
            inputs: `[M, B, *input_shape]`, with shares `[M, B, R, *input_shape]`; what an absent example holds does not
                matter.
            labels: `[M, B]`, with shares `[M, B, R]`, int64.
            present: `[M, B]`, bool.
            max_grad_norm: bound of each example's norm; with shares, each unit's.
            whole: examples of the whole batch, where this is a piece of one, whose sum will be added to the others.
            shares: `[M, B, R]`, what every example counts in the mean gradient of its unit; None: an example is a unit.

        Returns:
            `[M, P]`, in the precision that `clipping` chooses for such a batch, or the whole.
        """
        models, batch = present.shape
        sums = new_sums(weights, _CLIPPING.accumulator(whole or batch))
        counted = present if shares is None else (shares > 0) & present.unsqueeze(2)
        inputs, labels = self._readable(inputs, counted), labels.where(counted, 0)
        for rows, columns in self._chunks(models, batch, 1 if shares is None else shares.shape[2]):
            own = (inputs[rows, columns], labels[rows, columns])
            if shares is None:
                gradients = self._gradients(weights[rows], *own)
            else:
                gradients = self._means(weights[rows], *own, shares[rows, columns])
            _add_clipped(sums[rows], gradients, present[rows, columns], max_grad_norm)
        return sums

    def logits(self, weights: Tensor, inputs: Tensor) -> Tensor:
        """What every model answers to every input, `[M, N, classes]`; each input is run alone.

        Args:
            weights: `[M, P]`, a row per model.
            inputs: `[N, *input_shape]`.
        """
        models, count = len(weights), len(inputs)
        if self._takes_integers:
            inputs = inputs.long()
        answers = weights.new_zeros(models, count, self._classes)
        buffers = self._buffers_on(weights.device)
        over_inputs = vmap(self._answer, in_dims=(None, None, 0))
        with torch.no_grad(), _batchable_attention():
            for rows, columns in self._chunks(models, count):
                (answers[rows, columns],) = self._over_models(
                    lambda row, columns=columns: (over_inputs(self._parameters(row), buffers, inputs[columns]),),
                    weights[rows],
                )
        return answers

    def _means(self, weights: Tensor, inputs: Tensor, labels: Tensor, shares: Tensor) -> tuple[Tensor, ...]:
        """The mean gradient of every unit, from its own examples alone, one `[M, B, numbers]` per parameter."""
        gradients = self._gradients(weights, inputs.flatten(1, 2), labels.flatten(1))
        return tuple((part.unflatten(1, tuple(shares.shape[1:])) * shares[..., None]).sum(2) for part in gradients)

    def _gradients(self, weights: Tensor, inputs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """Gradients of single examples, one `[M, B, numbers]` per parameter."""
        buffers = self._buffers_on(weights.device)
        over_examples = vmap(grad(self._loss), in_dims=(None, None, 0, 0))

        def of_model(row: Tensor, inputs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
            gradients = over_examples(self._parameters(row), buffers, inputs, labels)
            return tuple(
                gradients[name].flatten(1) if shape else gradients[name][:, None] for name, shape in self.shapes.items()
            )

        with torch.no_grad(), _batchable_attention():
            return self._over_models(of_model, weights, inputs, labels)

    def _over_models(self, of_model: Callable[..., tuple[Tensor, ...]], *batches: Tensor) -> tuple[Tensor, ...]:
        """What a function of one model gives for every model, along a new first axis."""
        if self._batches_models:
            return vmap(of_model)(*batches)
        return tuple(torch.stack(parts) for parts in zip(*map(of_model, *batches), strict=True))

    def _loss(self, parameters: Parameters, buffers: Parameters, example: Tensor, label: Tensor) -> Tensor:
        loss = F.cross_entropy(self._answer(parameters, buffers, example)[None], label[None])
        return loss if self.loss_weights is None else loss * self.loss_weights.index_select(0, label[None])[0]

    def _answer(self, parameters: Parameters, buffers: Parameters, example: Tensor) -> Tensor:
        """Logits of one model for one example, run as a batch of one."""
        return functional_call(self._module, (parameters, buffers), (example[None],))[0]

    def _parameters(self, row: Tensor) -> Parameters:
        """One model's row of weights as named parameters."""
        parts = row.split([shape.numel() for shape in self.shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def _buffers_on(self, device: torch.device) -> Parameters:
        if device not in self._buffers:
            self._buffers[device] = {name: buffer.to(device) for name, buffer in self._module.named_buffers()}
        return self._buffers[device]

    def _readable(self, inputs: Tensor, present: Tensor) -> Tensor:
        """Inputs that every layer can read: whole numbers where it wants them, word 0 where the example is absent."""
        if not self._takes_integers:
            return inputs
        return inputs.long().where(present.view(*present.shape, *[1] * (inputs.dim() - present.dim())), 0)

    def _chunks(self, models: int, examples: int, rows: int = 1) -> Iterator[tuple[slice, slice]]:
        """Parts of the (model, example) grid whose gradients fit into `_CHUNK_BYTES`, or single cells.

        With `rows`, parts of the grid of models and units, each of so many examples.
        """
        if not models or not examples:
            return
        cells = max(1, _CHUNK_BYTES // (4 * self._numbers_per_example * rows))
        width = min(examples, cells)
        height = max(1, min(models, cells // width)) if self._batches_models else 1
        for row in range(0, models, height):
            for column in range(0, examples, width):
                yield slice(row, row + height), slice(column, column + width)

    def _rehearse(self, example: Tensor) -> None:
        """Compare two models on three examples with one at a time; settle whether models can be batched as well.

        Some operations are not refused but batched wrongly (PReLU, PyTorch 2.13, two axes), so running is not enough.
        """
        row = torch.cat([parameter.detach().flatten() for parameter in self._module.parameters()])
        weights = torch.stack([row, 0.9 * row])
        # Word 0 is the only one that every vocabulary has.
        several = [example] * 3 if self._takes_integers else [example, example / 2, -example]
        inputs = torch.stack(several).expand(2, 3, *example.shape)
        labels = torch.arange(6, device=row.device).view(2, 3) % self._classes
        try:
            self._check_batching(weights, inputs, labels)
        except ConfigError:
            self._batches_models = False
            self._check_batching(weights, inputs, labels)

    def _check_batching(self, weights: Tensor, inputs: Tensor, labels: Tensor) -> None:
        failure = "torch.func cannot compute its gradients example by example"
        remedy = (
            "Write it with operations that torch.func can batch: no branch on a value, no .item(), nothing written in "
            "place into a tensor that was made in the forward pass."
        )
        with _naming_the_layer(self._module, failure, remedy):
            gradients = torch.cat(self._gradients(weights, inputs, labels), dim=2)
            answers = self.logits(weights, inputs[0])
        for model, example in itertools.product(*map(range, labels.shape)):
            row, buffers = self._parameters(weights[model]), self._buffers_on(weights.device)
            alone = grad(self._loss)(row, buffers, inputs[model, example], labels[model, example])
            with torch.no_grad():
                answer = self._answer(row, buffers, inputs[0, example])
            gradient = torch.cat([alone[name].flatten() for name in self.shapes])
            if not (_is_close(gradients[model, example], gradient) and _is_close(answers[model, example], answer)):
                raise ConfigError(
                    f"{described('', self._module)} cannot be used: torch.func gives other gradients or "
                    f"logits for a batch than for its examples one by one. {remedy}"
                )


def _add_clipped(sums: Tensor, gradients: tuple[Tensor, ...], present: Tensor, max_grad_norm: float) -> None:
    """Add one chunk's gradients to `sums`, clipped, in place."""
    scales = _clipping_scales(gradients, present, max_grad_norm)[..., None]
    start = 0
    for gradient in gradients:
        # Elementwise and not as a product of matrices, which may run in lower precision. 0 * inf is NaN.
        clipped = (gradient * scales).masked_fill_(scales == 0, 0.0)
        sums[:, start : start + gradient.shape[2]] += clipped.to(sums.device).sum(1, dtype=sums.dtype)
        start += gradient.shape[2]


def _is_close(batched: Tensor, alone: Tensor) -> bool:
    """Whether two ways to compute agree: a wrong batching rule is wrong by far, rounding is not (even bfloat16's)."""
    if not alone.isfinite().all():
        return True
    return bool((batched - alone).norm() <= 0.05 * alone.norm() + 1e-6)


def _clipping_scales(gradients: tuple[Tensor, ...], present: Tensor, max_grad_norm: float) -> Tensor:
    """By what each example's gradient is multiplied, `[M, B]`: 1 at most, 0 for what must not count.

    Args:
        gradients: one `[M, B, numbers]` per parameter.
        present: `[M, B]`.
        max_grad_norm: bound of the norm afterwards.
    """
    parts = [gradient for gradient in gradients if gradient.shape[2]]
    # A largest number hands NaN on, so one number tells whether all are finite.
    largest = torch.stack([torch.linalg.vector_norm(part, torch.inf, dim=2) for part in parts]).amax(0)
    counts = present & largest.isfinite()
    unit = largest.where(counts, 1.0).clamp_min(_SMALLEST_SCALE)
    squares = [_sum_in_blocks((part / unit[..., None]).square_()) for part in parts]
    root = _sum_in_blocks(torch.stack(squares, dim=-1)).sqrt()
    scales = (max_grad_norm * (1 - _CLIPPING.margin) / unit / root).clamp_max(1.0)
    return scales.where(counts & (scales >= _SMALLEST_SCALE), 0.0)


def _sum_in_blocks(values: Tensor) -> Tensor:
    """Sum over the last axis, in levels: a term passes at most 15 additions on each, so rounding stays bounded."""
    while (length := values.shape[-1]) >= _BLOCK:
        rows = length // _BLOCK
        whole, rest = values.split([rows * _BLOCK, length - rows * _BLOCK], dim=-1)
        values = torch.cat([whole.unflatten(-1, (_BLOCK, rows)).sum(-2), rest], dim=-1)
    return values.sum(-1)


def _batchable_attention() -> AbstractContextManager[object]:
    """Fused attention kernels have no batching rule; the plain formula has."""
    return sdpa_kernel(SDPBackend.MATH)


def _own_copy(module: nn.Module) -> nn.Module:
    """A copy in training mode, where PyTorch takes no short cuts that cannot be differentiated."""
    try:
        return copy.deepcopy(module).train()
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"The model cannot be copied ({_first_line(error)}); pass a function that builds it, and keep no tensors "
            "with a history in it (use torch.nn.utils.parametrizations for weight norms)."
        ) from error


def _accepted_example(module: nn.Module, input_shape: tuple[int, ...]) -> tuple[Tensor, int]:
    """An input that the module takes, floats or whole numbers (numbers of words), and how many logits it answers."""
    device = next(module.parameters()).device
    floats = torch.randn(input_shape, generator=torch.Generator().manual_seed(0)).to(device)
    whole = torch.zeros(input_shape, dtype=torch.int64, device=device)
    has_words = any(isinstance(layer, nn.Embedding | nn.EmbeddingBag) for layer in module.modules())
    first, second = (whole, floats) if has_words else (floats, whole)
    try:
        return first, _classes_of(module, first)
    except ConfigError as error:
        try:
            return second, _classes_of(module, second)
        except ConfigError:
            raise error from error.__cause__


def _classes_of(module: nn.Module, example: Tensor) -> int:
    remedy = "Compare the shape and the type of the data with what the model's first layers take."
    failure = f"it does not take inputs of shape {tuple(example.shape)}"
    with _naming_the_layer(module, failure, remedy), torch.no_grad():
        answer = module(example[None])
    if not isinstance(answer, Tensor) or answer.dim() != 2 or answer.shape[0] != 1 or answer.shape[1] < 2:
        found = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
        raise ConfigError(
            "Expected the model to answer a batch of one with logits of shape (1, classes), classes of at least 2, "
            f"got {found}; flatten before the last layer, and return the logits alone."
        )
    return answer.shape[1]


def _saved_numbers(module: nn.Module, example: Tensor) -> int:
    """How many numbers the backward pass of one example keeps, its weights aside."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal kept
        if tensor.untyped_storage().data_ptr() not in weights:
            kept += tensor.numel()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        module(example[None])
    return kept


@contextmanager
def _naming_the_layer(module: nn.Module, failure: str, remedy: str) -> Iterator[None]:
    """Turn what PyTorch raises inside into an error that names the layer that was running."""
    running: list[str] = []

    def enter(path: str) -> Callable[..., None]:
        return lambda *_: running.append(path)

    def leave(*_: object) -> None:
        running.pop()

    hooks = [layer.register_forward_pre_hook(enter(path)) for path, layer in module.named_modules()]
    hooks += [layer.register_forward_hook(leave) for layer in module.modules()]
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError) as error:
        # None is running in the backward pass; then only the message of PyTorch can tell.
        path = running[-1] if running else ""
        layer = described(path, module.get_submodule(path))
        raise ConfigError(f"{layer} cannot be used: {failure} ({_first_line(error)}). {remedy}") from error
    finally:
        for hook in hooks:
            hook.remove()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
