"""Layers with a model axis, and what book-keeping needs of them: per-example gradient norms and clipped sums.

Activations travel as [models * batch, ...], model by model, so that every operation without parameters runs unchanged.
A layer with parameters sees its input `a` and the gradient `g` of its output, and from these two gives

* the squared norm of each example's gradient with respect to its parameters, and
* the sum over examples of those gradients, each times its own factor,

without a second backward pass. Three ways lead there, and `_Contraction` picks the cheapest: store every example's
gradient (small weights, many positions), form it in passing and keep only its norm (large weights), or take the norm
from the Gram matrices of inputs and output gradients, the *ghost norm* (few positions).

References:
    Goodfellow 2015, arXiv 1510.01799 (norms of linear layers); Li, Tramer, Liang, Hashimoto 2022, arXiv 2110.05679
    (ghost norms of sequences); Bu, Mao, Xu 2022, arXiv 2205.10683 (mixed ghost clipping of convolutions); Bu, Wang,
    Zha, Karypis 2023, arXiv 2210.00038 (book-keeping: one forward and one backward pass).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mithridate.training.clipping import Clipping, examples_together, without_giants
from mithridate.training.kernels import Stage, cpu

# Bytes of per-example gradients of one parameter that are held at a time.
_STORED_BYTES = {"cpu": 2**28, "mps": 2**29, "cuda": 2**32}
# Examples that are widened to double precision at a time.
_WIDENED = 64
# Squared norm of a gradient above which it is not formed.
_LONGEST_SQUARE = 2.0**200
# Number of weights per output up to which patches are faster than the library's convolution on a CPU.
_FEW_ENTRIES = 64
# Channels up to which our own convolution kernels are faster than the library's.
_NARROW = 128


@dataclass(frozen=True)
class Layout:
    """What all layers share in one pass.

    Attributes:
        models: number of models in flight.
        clipping: the rounding that norms must allow for.
        extents: for each model, the position in the batch from which there is only padding.
        kernels: the module `kernels` where Triton can run, else None.
        native: the library of `kernels.cpu` on a CPU where there is a compiler, else None.
        recording: whether gradients will be asked for.
        wide: whether convolutions are left to the vendor's library, which wants the channels last.
        kept: what a layer's forward or backward pass leaves for its gradients.
        addends: what is added to the outputs of a norm, which may do that itself.
        completed: norms that have applied the addition and the ReLU after them as well.
        whole: examples of the whole batch, where this is a piece of one; their number decides on the precision of sums.
    """

    models: int
    clipping: Clipping
    extents: Tensor
    kernels: ModuleType | None
    native: cpu.Library | None = None
    recording: bool = True
    wide: bool = False
    kept: dict[Layer, Any] = field(default_factory=dict)
    addends: dict[Layer, Tensor] = field(default_factory=dict)
    completed: set[Layer] = field(default_factory=set)
    whole: int | None = None


class Pieces(ABC):
    """The gradients of all examples with respect to some parameters of one layer, in a form that saves work."""

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """Squared norm for each example, models x batch; never below that of what `write_sums` adds, up to rounding."""

    @abstractmethod
    def write_sums(self, factors: Tensor, out: Tensor) -> None:
        """Write the sum over the batch of factor (models x batch) times gradient to `out`, models x entries.

        Each example's gradient is formed by itself; they are added up in the precision of `out` (see `clipping`).
        """

    @abstractmethod
    def forget(self, trusted: Tensor) -> None:
        """Zero whatever belongs to examples that are not trusted: a factor of 0 does not undo what is infinite."""

    @abstractmethod
    def means(self, shares: Tensor, models: slice) -> Tensor:
        """What each unit's examples give together, each times its share: models x units x entries, for some models.

        The batch is that of the examples of all units, those of one unit side by side, and as many of each unit. What a
        unit gives is formed from its own examples alone, also where they are not finite.

        Args:
            shares: of all models, models x units x examples of a unit.
            models: which of them.
        """


class Stored(Pieces):
    """Gradients that are held one by one: models x batch x entries.

    Args:
        gradients: the gradients.
        frame: what all layers share.
        squares: their squared norms where they are known already; they may include those of a companion.
    """

    def __init__(self, gradients: Tensor, frame: Layout, squares: Tensor | None = None) -> None:
        self._gradients, self._frame, self._known = gradients, frame, squares

    def squared_norms(self) -> Tensor:
        return _squares(self._gradients, self._frame) if self._known is None else self._known

    def write_sums(self, factors: Tensor, out: Tensor) -> None:
        if self._frame.kernels is not None:
            self._frame.kernels.weighted_sum(self._gradients.contiguous(), factors, self._frame.extents, out)
        else:
            _sum_products(factors.unsqueeze(2), self._gradients, self._frame, out)

    def forget(self, trusted: Tensor) -> None:
        if self._frame.kernels is None:  # The kernel does not read rows whose factor is 0.
            self._gradients = _only(trusted, self._gradients)

    def means(self, shares: Tensor, models: slice) -> Tensor:
        return _means(self._gradients[models], shares[models])


class Turned(Stored):
    """Gradients of convolutions that are held with their places before their channels, in any precision.

    Args:
        gradients: models x batch x outputs x places x channels, of which those in excess are 0.
        channels: how many channels there are.
        frame: what all layers share.
        squares: their squared norms, of the numbers that are held.
    """

    def __init__(self, gradients: Tensor, channels: int, frame: Layout, squares: Tensor) -> None:
        super().__init__(gradients.flatten(2), frame, squares)
        self._shape, self._channels = gradients.shape[2:], channels

    def write_sums(self, factors: Tensor, out: Tensor) -> None:
        sums = torch.empty(len(out), self._shape.numel(), dtype=out.dtype, device=out.device)
        super().write_sums(factors, sums)
        out.copy_(self._in_order(sums))

    def means(self, shares: Tensor, models: slice) -> Tensor:
        return self._in_order(_means(self._gradients[models].float(), shares[models]))

    def _in_order(self, rows: Tensor) -> Tensor:
        """Rows over outputs, places and channels, as rows over outputs, channels and places."""
        return rows.unflatten(-1, self._shape)[..., : self._channels].transpose(-1, -2).flatten(-3)


class Apart(Pieces):
    """Gradients that are held one by one, apart for each model and without padding.

    Args:
        gradients: for each model, examples x entries.
        batch: number of examples with padding.
        squares: for each model, the squared norms, which may include those of a companion; None where they do.
        whole: see `Layout`.
    """

    def __init__(
        self, gradients: Sequence[Tensor], batch: int, squares: Sequence[Tensor] | None, whole: int | None = None
    ) -> None:
        self._gradients, self._batch, self._known, self._whole = list(gradients), batch, squares, whole

    def squared_norms(self) -> Tensor:
        squares = torch.zeros(len(self._gradients), self._batch, dtype=torch.float64)
        for row, known in zip(squares, self._known or (), strict=self._known is not None):
            row[: len(known)] = known
        return squares

    def write_sums(self, factors: Tensor, out: Tensor) -> None:
        if out.dtype == torch.float32:
            for row, gradients, scale in zip(out, self._gradients, factors, strict=True):
                torch.mv(gradients.t(), scale[: len(gradients)], out=row)
            return
        for row, gradients, scale in zip(out, self._gradients, factors.unsqueeze(2), strict=True):
            _sum_in_double(scale[None, : len(gradients)], gradients[None], None, row[None], self._whole)

    def forget(self, trusted: Tensor) -> None:
        self._gradients = [
            gradients.masked_fill(~keep[: len(gradients), None], 0)
            for gradients, keep in zip(self._gradients, trusted, strict=True)
        ]

    def means(self, shares: Tensor, models: slice) -> Tensor:
        pairs = zip(self._gradients[models], shares[models], strict=True)
        return torch.cat([_means(gradients[None], own[None]) for gradients, own in pairs])


class Outer(Pieces):
    """Gradients that are outer products of an output gradient and an input: a linear layer at one position.

    Args:
        inputs: models x batch x features.
        gradients: models x batch x outputs.
        frame: what all layers share.
        has_bias: whether the norm is to include that of the bias, whose gradient is `gradients` itself.
    """

    def __init__(self, inputs: Tensor, gradients: Tensor, frame: Layout, *, has_bias: bool) -> None:
        self._inputs, self._gradients, self._frame = inputs, gradients, frame
        self._ones = 1.0 if has_bias else 0.0

    def squared_norms(self) -> Tensor:
        # |g a^T|_F = |g| |a|; a bias is one more input that is always 1.
        inputs, gradients = _squares(self._inputs, self._frame) + self._ones, _squares(self._gradients, self._frame)
        return without_giants(inputs * gradients, inputs, gradients)

    def write_sums(self, factors: Tensor, out: Tensor) -> None:
        weighted = self._gradients * factors.unsqueeze(2)
        if self._frame.kernels is not None and out.dtype == torch.float64:
            self._frame.kernels.outer_sum(weighted, self._inputs.contiguous(), self._frame.extents, out)
        else:
            _sum_products(weighted, self._inputs, self._frame, out)

    def forget(self, trusted: Tensor) -> None:
        self._inputs, self._gradients = _only(trusted, self._inputs), _only(trusted, self._gradients)

    def means(self, shares: Tensor, models: slice) -> Tensor:
        shares = shares[models]
        inputs, gradients = (_by_unit(values[models], shares) for values in (self._inputs, self._gradients))
        return torch.matmul((gradients * shares.unsqueeze(3)).transpose(2, 3), inputs).flatten(2)


class Contraction(Pieces):
    """Gradients that are sums of outer products over positions: G = sum_t g_t a_t^T, for every group of channels.

    Args:
        inputs: models x batch x groups x input features x positions.
        gradients: models x batch x groups x output features x positions.

    Where G is formed twice, once for its norm and once in the sum, the two roundings differ by up to slack * |a| |g|
    (see `clipping`), which the norm allows for.
    """

    def __init__(self, inputs: Tensor, gradients: Tensor, frame: Layout) -> None:
        self._inputs, self._gradients, self._frame = inputs, gradients, frame
        models, batch, groups, features, positions = inputs.shape
        outputs = gradients.shape[3]
        self._entries = groups * outputs * features
        # Gram matrices lose half of the digits when positions cancel, and so need double precision.
        self._ghost = is_ghost_cheaper(features, outputs, positions) and wide(inputs.device) == torch.float64
        fits = may_be_stored(models * batch, self._entries, inputs.device)
        self._stored = Stored(self._form(slice(0, batch)), frame) if fits and not self._ghost else None

    def squared_norms(self) -> Tensor:
        if self._stored is not None:
            return self._stored.squared_norms()
        if self._ghost:
            squares = self._ghost_norms()
        else:
            squares = torch.cat([_squares(self._form(part), self._frame) for part in self._pieces()], dim=1)
        inputs, gradients = (_squares(values.flatten(2), self._frame) for values in (self._inputs, self._gradients))
        norms = squares.clamp_min(0.0).sqrt() + self._frame.clipping.slack * (inputs * gradients).sqrt()
        return without_giants(norms.square(), inputs, gradients)

    def write_sums(self, factors: Tensor, out: Tensor) -> None:
        if self._stored is not None:
            return self._stored.write_sums(factors, out)
        out.zero_()
        whole = self._frame.whole or factors.shape[1]
        for part in self._pieces():
            inside = (self._frame.extents - part.start).clamp(0, part.stop - part.start)
            piece = torch.empty_like(out, memory_format=torch.contiguous_format)
            shared = replace(self._frame, extents=inside, whole=whole)
            Stored(self._form(part), shared).write_sums(factors[:, part], piece)
            out.add_(piece)
        return None

    def forget(self, trusted: Tensor) -> None:
        if self._stored is not None:
            return self._stored.forget(trusted)
        self._inputs, self._gradients = _only(trusted, self._inputs), _only(trusted, self._gradients)
        return None

    def means(self, shares: Tensor, models: slice) -> Tensor:
        if self._stored is not None:
            return self._stored.means(shares, models)
        shares = shares[models]
        # The examples of a unit are more positions.
        operands = (self._inputs[models], self._gradients[models])
        inputs, gradients = (_by_unit(values, shares).movedim(2, 4) for values in operands)
        weighted = gradients * shares[:, :, None, None, :, None]
        return torch.matmul(weighted.flatten(4), inputs.flatten(4).transpose(3, 4)).flatten(2)

    def _form(self, part: slice) -> Tensor:
        products = torch.matmul(self._gradients[:, part], self._inputs[:, part].transpose(3, 4))
        return products.flatten(2)

    def _pieces(self) -> list[slice]:
        """Pieces of the batch whose gradients may be held at a time."""
        models, batch = self._inputs.shape[:2]
        step = max(1, _STORED_BYTES[self._inputs.device.type] // (4 * models * self._entries))
        return [slice(at, min(at + step, batch)) for at in range(0, batch, step)]

    def _ghost_norms(self) -> Tensor:
        # |G|^2 = sum_{t,s} (a_t . a_s) (g_t . g_s)
        inputs, gradients = self._inputs.double(), self._gradients.double()
        grams = torch.matmul(inputs.transpose(3, 4), inputs) * torch.matmul(gradients.transpose(3, 4), gradients)
        return grams.sum(dim=(2, 3, 4))


class GhostConvolution(Pieces):
    """Gradients of a convolution with few positions: norms from Gram matrices of pixels, formed for the sums alone.

    A patch is never formed: with x_p the channels at pixel p, patches at t and s have the inner product
    sum_d x_{t+d} . x_{s+d} over the places d of the kernel, which are entries of one small Gram matrix.

    Args:
        images: examples x channels x height x width, of all models.
        gradients: examples x outputs x height x width.
        weights: models x outputs x channels x kernel; only their shape matters.
        conv: how the kernel moves.
        frame: what all layers share.
    """

    def __init__(self, images: Tensor, gradients: Tensor, weights: Tensor, conv: Conv, frame: Layout) -> None:
        self._images, self._gradients, self._weights = images, gradients, weights
        self._conv, self._frame = conv, frame

    def squared_norms(self) -> Tensor:
        kernels, clipping = self._frame.kernels, self._frame.clipping
        if (
            kernels is not None
            and clipping.precision != "float32"
            and kernels.library_convolutions.takes_ghost_norms(self._images, self._gradients)
        ):
            places = self._conv.places(self._images)
            squares = kernels.library_convolutions.ghost_norms(
                self._images, self._gradients, places, self._frame.extents, clipping.slack
            )
            # N >= slack |a| |g|: so long a gradient might overflow when it is formed.
            return _by_model(torch.where(squares <= _LONGEST_SQUARE, squares, torch.inf), self._frame.models)
        return self._exact_norms()

    def _exact_norms(self) -> Tensor:
        """In double precision, which Gram matrices need: they are squares, and lose half of the digits to the root."""
        pixels, gradients = self._images.double().flatten(2), self._gradients.double().flatten(2)
        places = self._conv.places(self._images)
        if self._frame.kernels is not None:
            products = torch.bmm(pixels.transpose(1, 2), pixels)
            errors = torch.bmm(gradients.transpose(1, 2), gradients)
            squares, patches_size = self._frame.kernels.library_convolutions.ghost_sums(products, errors, places)
            return self._with_slack(squares, patches_size, errors.diagonal(dim1=1, dim2=2).sum(dim=1))
        # One more row and column of zeros stand for what is outside the image.
        products = F.pad(torch.bmm(pixels.transpose(1, 2), pixels), (0, 1, 0, 1))
        patches = torch.zeros(len(pixels), *(gradients.shape[2],) * 2, dtype=torch.float64, device=pixels.device)
        for place in places:
            patches += products.index_select(1, place).index_select(2, place)
        squares = (patches * torch.bmm(gradients.transpose(1, 2), gradients)).sum(dim=(1, 2))
        return self._with_slack(
            squares, patches.diagonal(dim1=1, dim2=2).sum(dim=1), gradients.square().sum(dim=(1, 2))
        )

    def _with_slack(self, squares: Tensor, patches: Tensor, gradients: Tensor) -> Tensor:
        """Squared norms, never below those of what the sums are made of; from squared norms of all that is in them."""
        norms = squares.clamp_min(0.0).sqrt() + self._frame.clipping.slack * (patches * gradients).sqrt()
        return _by_model(without_giants(norms.square(), patches, gradients), self._frame.models)

    def write_sums(self, factors: Tensor, out: Tensor) -> None:
        kernels = self._frame.kernels
        if kernels is not None:
            turn = kernels.library_convolutions.channels_first if self._frame.wide else Tensor.contiguous
            geometry = self._conv.geometry(self._images, self._gradients.shape[1], kernels)
            kernels.conv_weighted_sum(
                turn(self._images), turn(self._gradients), factors, self._frame.extents, geometry,
                self._frame.clipping.dot_precision, out,
            )  # fmt: skip
            return
        out.zero_()
        pairs = zip(_by_model(self._images, len(out)), _by_model(self._gradients, len(out)), strict=True)
        for row, weight, scales, (images, errors) in zip(out, self._weights, factors.tolist(), pairs, strict=True):
            for example, scale in enumerate(scales):
                if scale:
                    one = slice(example, example + 1)
                    gradient = self._conv.weight_gradient(errors[one], images[one], weight)
                    row.add_(gradient.flatten().to(row.dtype), alpha=scale)

    def forget(self, trusted: Tensor) -> None:
        """Nothing: examples whose factor is 0 are not even read."""

    def means(self, shares: Tensor, models: slice) -> Tensor:
        total, _, rows = shares.shape
        images, errors = (_by_model(values, total)[models].flatten(0, 1) for values in (self._images, self._gradients))
        shares = shares[models]
        errors = errors * shares.flatten().view(-1, *(1,) * (errors.dim() - 1))
        pairs = zip(errors.split(rows), images.split(rows), strict=True)
        found = [self._conv.weight_gradient(error, images, self._weights[0]).flatten() for error, images in pairs]
        return torch.stack(found).unflatten(0, tuple(shares.shape[:2]))


class Lookups(Pieces):
    """Gradients of an embedding: each position adds its output gradient to the row of its token.

    Args:
        tokens: models x batch x positions.
        gradients: models x batch x positions x features.
        rows: number of tokens that there are; an example with any other has an infinite norm, and is left out.
        frame: what all layers share.
    """

    def __init__(self, tokens: Tensor, gradients: Tensor, rows: int, frame: Layout) -> None:
        self._known = ((tokens >= 0) & (tokens < rows)).all(dim=2)
        self._tokens = tokens.clamp(0, rows - 1)
        self._gradients = self._added_up(gradients)
        self._rows, self._frame = rows, frame

    def squared_norms(self) -> Tensor:
        return torch.where(self._known, _squares(self._gradients.flatten(2), self._frame), torch.inf)

    def write_sums(self, factors: Tensor, out: Tensor) -> None:
        models, features = self._tokens.shape[0], self._gradients.shape[3]
        result = torch.zeros(models * self._rows, features, dtype=out.dtype, device=out.device)
        offsets = torch.arange(models, device=self._tokens.device).mul(self._rows)[:, None, None]
        weighted = (self._gradients * factors[:, :, None, None]).reshape(-1, features)
        places = (self._tokens + offsets).flatten()
        result.index_put_((places.to(out.device),), weighted.to(out), accumulate=True)
        out.copy_(result.view(models, -1))

    def _added_up(self, gradients: Tensor) -> Tensor:
        """Those of equal tokens of an example added up at the first of them, and 0 at the others: its own gradient."""
        same = self._tokens.unsqueeze(3) == self._tokens.unsqueeze(2)
        first = same.int().argmax(dim=3) == torch.arange(same.shape[3], device=same.device)
        return torch.matmul((same & first.unsqueeze(3)).to(gradients), gradients)

    def forget(self, trusted: Tensor) -> None:
        self._gradients = _only(trusted, self._gradients)

    def means(self, shares: Tensor, models: slice) -> Tensor:
        shares = shares[models]
        count, units, _ = shares.shape
        # A token that there is not makes the example infinite, and so its unit.
        gradients = torch.where(self._known[models, :, None, None], self._gradients[models], torch.inf)
        weighted = gradients * shares.flatten(1)[:, :, None, None]
        pair = (self._tokens[models], weighted)
        tokens, weighted = (values.reshape(count * units, -1, *values.shape[3:]) for values in pair)
        result = weighted.new_zeros(count * units, self._rows, weighted.shape[2])
        result.scatter_add_(1, tokens.unsqueeze(2).expand_as(weighted), weighted)
        return result.view(count, units, -1)


def _by_unit(values: Tensor, shares: Tensor) -> Tensor:
    """Values of examples, models x batch x ..., as models x units x examples of a unit x ..."""
    return values.unflatten(1, tuple(shares.shape[1:]))


def _means(gradients: Tensor, shares: Tensor) -> Tensor:
    """Of gradients that are there one by one."""
    return torch.matmul(shares.unsqueeze(2), _by_unit(gradients, shares)).squeeze(2)


def _sum_products(left: Tensor, right: Tensor, frame: Layout, out: Tensor) -> None:
    """Write the sum over the batch of (left row) x (right row) to `out`, models x entries, in its precision."""
    if out.dtype == torch.float32:
        out.copy_(torch.bmm(left.transpose(1, 2), right).flatten(1))
    else:
        _sum_in_double(left.to(out.device), right.to(out.device), frame.extents.to(out.device), out, frame.whole)


def _sum_in_double(left: Tensor, right: Tensor, extents: Tensor | None, out: Tensor, whole: int | None) -> None:
    """The same for `out` in double precision; beyond the extents the rows of `left` are 0.

    A few neighbours are first added up in single precision where compiled code does it, in an order that is known.
    """
    models, batch = left.shape[:2]
    compiled = cpu.library() if out.device.type == "cpu" else None
    if compiled is not None:
        if extents is None:
            extents = torch.full((models,), batch, dtype=torch.int32)
        compiled.sum_products(left, right, extents.int(), examples_together(whole or batch), out)
        return
    out.zero_()
    for at in range(0, batch, _WIDENED):
        one, two = (values[:, at : at + _WIDENED].double() for values in (left, right))
        out.add_(torch.bmm(one.transpose(1, 2), two).flatten(1))


def _only(trusted: Tensor, values: Tensor) -> Tensor:
    return torch.where(trusted.view(*trusted.shape, *(1,) * (values.dim() - 2)), values, 0)


def is_ghost_cheaper(features: int, outputs: int, positions: int) -> bool:
    """Whether two Gram matrices cost less than the gradient itself: T^2 (K + O) against T K O."""
    return positions * (features + outputs) < features * outputs


def may_be_stored(examples: int, entries: int, device: torch.device) -> bool:
    """Whether there is room for the gradients of all examples."""
    return 4 * examples * entries <= _STORED_BYTES[device.type]


def wide(device: torch.device) -> torch.dtype:
    """Double precision, where a device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def _squares(values: Tensor, frame: Layout) -> Tensor:
    """Squared norms over the last of three axes, in double precision where there is one; never too small.

    Sums of torch are cascades: their relative error is some dozen units of single precision (at most 12 measured, up to
    2^27 terms), which the margin of `clipping` covers; summing in double precision would copy the values first. Squares
    below 2^-126 are lost, which is added back for every entry.
    """
    if frame.kernels is not None:
        return frame.kernels.squared_norms(values)
    return values.square().sum(dim=2).to(wide(values.device)) + lost_squares(values.shape[2])


def lost_squares(entries: int) -> float:
    """How much the squares of so many numbers can lose because they are too small for single precision."""
    return entries * 2.0**-126


# --- layers ---------------------------------------------------------------------------------------------------------


class Layer(ABC):
    """A layer of every model in flight, without its parameters: those are rows of one matrix, and passed in.

    Attributes:
        names: the parameters it has, in the order in which `forward` takes them and `parts` returns them.
    """

    names: tuple[str, ...]

    @abstractmethod
    def forward(self, inputs: Tensor, parameters: Sequence[Tensor], frame: Layout) -> Tensor:
        """Outputs [models * batch, ...] from inputs [models * batch, ...] and parameters [models, ...]."""

    @abstractmethod
    def parts(self, inputs: Tensor, gradients: Tensor, parameters: Sequence[Tensor], frame: Layout) -> list[Pieces]:
        """The gradients with respect to each parameter, from the inputs and the gradients of the outputs.

        One alone is those with respect to all parameters, side by side.
        """


class Linear(Layer):
    """Of `torch.nn.Linear`, at one or many positions."""

    def __init__(self, module: nn.Linear) -> None:
        self.names = ("weight",) if module.bias is None else ("weight", "bias")

    def forward(self, inputs: Tensor, parameters: Sequence[Tensor], frame: Layout) -> Tensor:
        weight = parameters[0]
        models = weight.shape[0]
        rows = inputs.reshape(models, -1, inputs.shape[-1])
        if len(parameters) == 2:
            outputs = torch.baddbmm(parameters[1].unsqueeze(1), rows, weight.transpose(1, 2))
        else:
            outputs = torch.bmm(rows, weight.transpose(1, 2))
        return outputs.view(*inputs.shape[:-1], weight.shape[1])

    def parts(self, inputs: Tensor, gradients: Tensor, parameters: Sequence[Tensor], frame: Layout) -> list[Pieces]:
        if inputs.dim() == 2:
            rows, errors = _by_model(inputs, frame.models), _by_model(gradients, frame.models)
            has_bias = len(self.names) == 2
            parts: list[Pieces] = [Outer(rows, errors, frame, has_bias=has_bias)]
            return [*parts, Stored(errors, frame, _nothing(errors))] if has_bias else parts
        columns = _by_model(inputs.flatten(1, -2).transpose(1, 2), frame.models).unsqueeze(2)
        errors = _by_model(gradients.flatten(1, -2).transpose(1, 2), frame.models).unsqueeze(2)
        parts = [Contraction(columns, errors, frame)]
        return parts if len(self.names) == 1 else [*parts, Stored(errors.sum(dim=4).flatten(2), frame)]


class Conv(Layer):
    """Of `torch.nn.Conv1d` and `torch.nn.Conv2d`, with zero padding; a sequence is an image of height one."""

    def __init__(self, module: nn.Conv1d | nn.Conv2d) -> None:
        self.names = ("weight",) if module.bias is None else ("weight", "bias")
        self._flat = isinstance(module, nn.Conv1d)
        self.kernel = self._pair(module.kernel_size, 1)
        self.stride = self._pair(module.stride, 1)
        self.dilation = self._pair(module.dilation, 1)
        self.groups = module.groups
        self._channels = max(module.in_channels, module.out_channels)
        self._places: dict[tuple[Any, ...], Tensor] = {}
        self._entries = module.in_channels * self.kernel[0] * self.kernel[1]
        self._same, self.padding = self._paddings(module)

    def _pair(self, values: tuple[int, ...], filler: int) -> tuple[int, int]:
        return (filler, values[0]) if self._flat else (values[0], values[1])

    def _paddings(self, module: nn.Conv1d | nn.Conv2d) -> tuple[list[int] | None, tuple[int, int]]:
        """Padding as torch counts it, or explicit margins where `same` needs more at one end than at the other."""
        if module.padding == "valid":
            return None, (0, 0)
        if module.padding == "same":
            spans = [size * (step - 1) for size, step in zip(self.dilation, self.kernel, strict=True)]
            if all(span % 2 == 0 for span in spans):
                return None, (spans[0] // 2, spans[1] // 2)
            return [spans[1] // 2, spans[1] - spans[1] // 2, spans[0] // 2, spans[0] - spans[0] // 2], (0, 0)
        assert not isinstance(module.padding, str)
        return None, self._pair(tuple(module.padding), 0)

    def forward(self, inputs: Tensor, parameters: Sequence[Tensor], frame: Layout) -> Tensor:
        images = self._images(inputs)
        weights = parameters[0].unsqueeze(3) if self._flat else parameters[0]
        biases = parameters[1] if len(parameters) == 2 else None
        if frame.kernels is not None and self.groups == 1 and not frame.wide:
            geometry = self.geometry(images, weights.shape[1], frame.kernels)
            outputs = frame.kernels.convolve(
                images, weights, biases, frame.extents, geometry, frame.clipping.dot_precision
            )
        elif images.device.type == "cpu" and self._entries <= _FEW_ENTRIES and self.groups == 1:
            outputs = self._convolve_patches(images, weights, biases, frame)
        else:
            outputs = self._convolve(images, weights, biases, frame)
        return outputs.squeeze(2) if self._flat else outputs

    def _convolve_patches(self, images: Tensor, weights: Tensor, biases: Tensor | None, frame: Layout) -> Tensor:
        """By patches, which are kept for the gradients: on a CPU faster than the library for very few channels."""
        size = self._out_size(images)
        patches = self._patches(images, size)
        frame.kept[self] = patches
        models, outputs = weights.shape[:2]
        kernels = weights.flatten(2).unsqueeze(1)  # models x 1 x outputs x entries
        result = torch.matmul(kernels, _by_model(patches, models))
        if biases is not None:
            result = result + biases[:, None, :, None]
        return result.view(len(images), outputs, *size)

    def _out_size(self, images: Tensor) -> tuple[int, int]:
        sizes = zip(images.shape[2:], self.kernel, self.stride, self.padding, self.dilation, strict=True)
        height, width = (
            (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            for size, kernel, stride, padding, dilation in sizes
        )
        return height, width

    @property
    def is_wide(self) -> bool:
        """Whether the vendor's library, one model after another, is faster than our kernels."""
        return self._channels > _NARROW

    def stage(self, images: Sequence[int], outputs: int, activation: str, window: tuple[int, int]) -> Stage | None:
        """Itself with what follows it as a stage of a stem, where it is plain enough."""
        moves_by_one = self.stride == (1, 1) and self.dilation == (1, 1)
        plain = self.groups == 1 and not self._flat and self._same is None and len(self.names) == 2
        if not (plain and moves_by_one):
            return None
        channels, height, width = images
        return Stage(channels, height, width, outputs, self.kernel, self.padding, activation, window)

    def geometry(self, images: Tensor, outputs: int, kernels: ModuleType) -> Any:
        """Its shape, as the kernels take it."""
        return kernels.Geometry(*images.shape[1:], outputs, self.kernel, self.stride, self.padding, self.dilation)

    def _convolve(self, images: Tensor, weights: Tensor, biases: Tensor | None, frame: Layout) -> Tensor:
        """One model after another, by the library's convolution."""
        models = weights.shape[0]
        order = torch.channels_last if frame.wide else torch.contiguous_format
        images = images.contiguous(memory_format=order)
        # Of one model, the whole: a part would be copied on the way back.
        outputs = [
            F.conv2d(
                part, weights[at].contiguous(memory_format=order), None if biases is None else biases[at],
                self.stride, self.padding, self.dilation, self.groups,
            )
            for at, part in enumerate([images] if models == 1 else images.chunk(models))
        ]  # fmt: skip
        return outputs[0] if models == 1 else torch.cat(outputs)

    def parts(self, inputs: Tensor, gradients: Tensor, parameters: Sequence[Tensor], frame: Layout) -> list[Pieces]:
        images = self._images(inputs)
        if frame.kernels is not None and self._stores_by_kernel(images, gradients, frame):
            geometry = self.geometry(images, gradients.shape[1], frame.kernels)
            gradients = gradients.unsqueeze(2) if self._flat else gradients
            if frame.wide:
                images, gradients = (
                    frame.kernels.library_convolutions.channels_first(values) for values in (images, gradients)
                )
            has_bias = len(self.names) == 2
            by_weights, by_biases, squares = frame.kernels.conv_example_gradients(
                images, gradients, frame.extents, geometry, frame.clipping.dot_precision, has_bias=has_bias
            )
            stored: list[Pieces] = [Stored(by_weights, frame, squares)]
            return [*stored, Stored(by_biases, frame, torch.zeros_like(squares))] if has_bias else stored
        if self._is_ghost(images, gradients):
            return self._ghost_parts(images, gradients, parameters[0], frame)
        patches = frame.kept[self] if self in frame.kept else self._patches(images, self._out_size(images))
        errors = gradients.flatten(2)
        columns = _by_model(patches.unflatten(1, (self.groups, -1)), frame.models)
        grouped = _by_model(errors.unflatten(1, (self.groups, -1)), frame.models)
        parts: list[Pieces] = [Contraction(columns, grouped, frame)]
        return parts if len(self.names) == 1 else [*parts, Stored(_by_model(errors.sum(dim=2), frame.models), frame)]

    def _patches(self, images: Tensor, size: tuple[int, int]) -> Tensor:
        """Patches, examples x entries x positions."""
        return cpu.patches(images, self.kernel, self.stride, self.padding, self.dilation, size)

    def _is_ghost(self, images: Tensor, gradients: Tensor) -> bool:
        positions = gradients[0, 0].numel()
        cheaper = is_ghost_cheaper(self._entries, gradients.shape[1], positions)
        return self.groups == 1 and cheaper and wide(images.device) == torch.float64

    def _ghost_parts(self, images: Tensor, gradients: Tensor, weights: Tensor, frame: Layout) -> list[Pieces]:
        errors = gradients.unsqueeze(2) if self._flat else gradients
        weights = weights.unsqueeze(3) if self._flat else weights
        parts: list[Pieces] = [GhostConvolution(images, errors, weights, self, frame)]
        return (
            parts if len(self.names) == 1 else [*parts, Stored(_by_model(errors.sum(dim=(2, 3)), frame.models), frame)]
        )

    def places(self, images: Tensor) -> Tensor:
        """For each entry of the kernel, the pixel under it at each position; one beyond the last if it is outside."""
        key = (*images.shape[2:], images.device)
        if key not in self._places:  # kept: a copy to a GPU cannot be part of a captured graph
            self._places[key] = self._find_places(images).to(images.device)
        return self._places[key]

    def _find_places(self, images: Tensor) -> Tensor:
        height, width = images.shape[2:]
        moves = zip(self._out_size(images), self.stride, self.padding, self.kernel, self.dilation, strict=True)
        rows, columns = (
            torch.arange(out)[None, :] * stride - padding + torch.arange(kernel)[:, None] * dilation
            for out, stride, padding, kernel, dilation in moves
        )
        inside = ((rows >= 0) & (rows < height))[:, None, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
        pixels = rows[:, None, :, None] * width + columns[:, None, :]
        return torch.where(inside, pixels, height * width).flatten(0, 1).flatten(1)

    def weight_gradient(self, errors: Tensor, images: Tensor, weight: Tensor) -> Tensor:
        """The weight gradient of a batch, by the library."""
        return torch.ops.aten.convolution_backward(
            errors, images, weight, None, self.stride, self.padding, self.dilation, False, [0, 0], 1,
            [False, True, False],
        )[1]  # fmt: skip

    def _stores_by_kernel(self, images: Tensor, gradients: Tensor, frame: Layout) -> bool:
        features, outputs = images.shape[1] * self.kernel[0] * self.kernel[1], gradients.shape[1]
        positions = gradients[0, 0].numel()
        return (
            self.groups == 1
            and not is_ghost_cheaper(features, outputs, positions)
            and may_be_stored(len(images), features * outputs, images.device)
        )

    def _images(self, inputs: Tensor) -> Tensor:
        images = inputs.unsqueeze(2) if self._flat else inputs
        return images if self._same is None else F.pad(images, self._same)


class Stem(Layer):
    """The first layers of a network as one: stages of convolution with bias, activation and pooling.

    Nobody asks for the gradient with respect to its input, so the whole chain is left to kernels on a GPU, or
    to C on a CPU, one model at a time (`kernels.cpu`).

    Args:
        names: full names of the weights and biases, stage by stage.
        stages: their shapes.
    """

    def __init__(self, names: tuple[str, ...], stages: tuple[Stage, ...]) -> None:
        self.names, self.stages = names, stages

    def suits(self, frame: Layout) -> bool:
        """Whether there is something that computes it."""
        if frame.kernels is not None:
            return frame.kernels.leading_convolutions.supports(self.stages)
        return frame.native is not None

    def forward(self, inputs: Tensor, parameters: Sequence[Tensor], frame: Layout) -> Tensor:
        pairs = self._pairs(parameters)
        if frame.kernels is not None:
            stem = frame.kernels.leading_convolutions
            halved = frame.clipping.precision == "bfloat16" and stem.takes_halves(self.stages)
            outputs, frame.kept[self] = stem.forward(
                inputs, pairs, frame.extents, self.stages, "bf16" if halved else frame.clipping.dot_precision,
                keep=frame.recording,
            )  # fmt: skip
            return outputs
        last = self.stages[-1]
        outputs = inputs.new_zeros(len(inputs), last.outputs, *last.out_size)
        frame.kept[self] = []
        for model, rows in enumerate(self._rows(inputs, frame)):
            assert frame.native is not None
            found, saved = frame.native.forward(
                inputs[rows], self._of_model(model, pairs), self.stages, keep=frame.recording
            )
            outputs[rows] = found
            frame.kept[self].append(saved)
        return outputs

    def parts(self, inputs: Tensor, gradients: Tensor, parameters: Sequence[Tensor], frame: Layout) -> list[Pieces]:
        saved = frame.kept.pop(self)
        if frame.kernels is not None:
            found = frame.kernels.leading_convolutions.example_gradients(saved, gradients)
            pairs = zip(found, self.stages, strict=True)
            return [part for stored, stage in pairs for part in _stored_together(stored, stage.channels, frame)]
        assert frame.native is not None
        pairs = self._pairs(parameters)
        by_model = [
            frame.native.example_gradients(
                inputs[rows], self._of_model(model, pairs), self.stages, saved[model], gradients[rows]
            )
            for model, rows in enumerate(self._rows(inputs, frame))
        ]
        batch = len(inputs) // frame.models
        parts: list[Pieces] = []
        for stage in zip(*by_model, strict=True):
            weights, biases, squares = zip(*stage, strict=True)
            lost = lost_squares(weights[0].shape[1] + biases[0].shape[1])
            known = [values + lost for values in squares]
            parts += [Apart(weights, batch, known, frame.whole), Apart(biases, batch, None, frame.whole)]
        return parts

    def _rows(self, inputs: Tensor, frame: Layout) -> list[slice]:
        """Where the examples of each model are, without padding."""
        batch = len(inputs) // frame.models
        return [slice(at * batch, at * batch + extent) for at, extent in enumerate(frame.extents.tolist())]

    def _pairs(self, parameters: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Weight and bias of each stage."""
        return list(zip(parameters[::2], parameters[1::2], strict=True))

    def _of_model(self, model: int, pairs: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
        return [(weight[model], bias[model]) for weight, bias in pairs]


def _stored_together(stored: tuple[Tensor, Tensor, Tensor], channels: int, frame: Layout) -> list[Pieces]:
    """Gradients of weights and biases, with their squared norms together."""
    weights, biases, squares = stored
    squares = squares + lost_squares(weights[0, 0].numel() + biases.shape[2])
    own = Turned(weights, channels, frame, squares) if weights.dim() == 5 else Stored(weights, frame, squares)
    return [own, Stored(biases, frame, torch.zeros_like(squares))]


def _nothing(values: Tensor) -> Tensor:
    return torch.zeros(values.shape[:2], dtype=wide(values.device), device=values.device)


class _Normalisation(Layer):
    """What GroupNorm and LayerNorm share: normalise each example by itself, then scale and shift."""

    names = ("weight", "bias")

    def __init__(self, epsilon: float, names: tuple[str, ...]) -> None:
        self._epsilon = epsilon
        self.names = names

    @abstractmethod
    def _normalise(self, inputs: Tensor) -> Tensor: ...

    @abstractmethod
    def _spread(self, parameter: Tensor, outputs: Tensor, models: int) -> Tensor:
        """A parameter in a shape that broadcasts over outputs [models, batch, ...]."""

    @abstractmethod
    def _collect(self, values: Tensor, models: int) -> Tensor:
        """Per-example values of the outputs' shape, added up to the parameter's: models x batch x entries."""

    def forward(self, inputs: Tensor, parameters: Sequence[Tensor], frame: Layout) -> Tensor:
        models = parameters[0].shape[0]
        outputs = _by_model(self._normalise(inputs), models)
        outputs = outputs * self._spread(parameters[0], outputs, models)
        if len(parameters) == 2:
            outputs = outputs + self._spread(parameters[1], outputs, models)
        return outputs.flatten(0, 1)

    def parts(self, inputs: Tensor, gradients: Tensor, parameters: Sequence[Tensor], frame: Layout) -> list[Pieces]:
        parts: list[Pieces] = [Stored(self._collect(gradients * self._normalise(inputs), frame.models), frame)]
        return parts if len(self.names) == 1 else [*parts, Stored(self._collect(gradients, frame.models), frame)]


class GroupNorm(_Normalisation):
    """Of `torch.nn.GroupNorm` with parameters."""

    def __init__(self, module: nn.GroupNorm) -> None:
        super().__init__(module.eps, ("weight", "bias"))
        self._groups = module.num_groups
        self.precedes_relu = False

    def forward(self, inputs: Tensor, parameters: Sequence[Tensor], frame: Layout) -> Tensor:
        kernels, addend = frame.kernels, frame.addends.pop(self, None)
        if not frame.wide or kernels is None or not kernels.group_norm.supports(inputs.shape, self._groups):
            return super().forward(inputs, parameters, frame)
        # Where nobody asks for the gradient of the inputs, there is no backward pass to look through what follows.
        completes = inputs.requires_grad or not frame.recording
        if completes:
            frame.completed.add(self)
        return kernels.group_norm.GroupNormFunction.apply(
            inputs, addend if completes else None, *parameters, frame.extents, self._groups, self._epsilon,
            self.precedes_relu and completes, frame.kept, self,
        )  # fmt: skip

    def parts(self, inputs: Tensor, gradients: Tensor, parameters: Sequence[Tensor], frame: Layout) -> list[Pieces]:
        if self not in frame.kept:
            return super().parts(inputs, gradients, parameters, frame)
        own, squares = (_by_model(values, frame.models) for values in frame.kept.pop(self))
        return [Stored(own, frame, squares.sum(dim=2, dtype=torch.float64))]

    def _normalise(self, inputs: Tensor) -> Tensor:
        return F.group_norm(inputs, self._groups, eps=self._epsilon)

    def _spread(self, parameter: Tensor, outputs: Tensor, models: int) -> Tensor:
        return parameter.reshape(models, 1, -1, *(1,) * (outputs.dim() - 3))

    def _collect(self, values: Tensor, models: int) -> Tensor:
        return _by_model(values.flatten(2).sum(dim=2) if values.dim() > 2 else values, models)


class LayerNorm(_Normalisation):
    """Of `torch.nn.LayerNorm` with parameters."""

    def __init__(self, module: nn.LayerNorm) -> None:
        super().__init__(module.eps, ("weight",) if module.bias is None else ("weight", "bias"))
        self._shape = list(module.normalized_shape)

    def _normalise(self, inputs: Tensor) -> Tensor:
        return F.layer_norm(inputs, self._shape, eps=self._epsilon)

    def _spread(self, parameter: Tensor, outputs: Tensor, models: int) -> Tensor:
        missing = outputs.dim() - 1 - len(self._shape)
        return parameter.reshape(models, *(1,) * missing, *self._shape)

    def _collect(self, values: Tensor, models: int) -> Tensor:
        between = values.dim() - 1 - len(self._shape)
        values = values.flatten(1 + between)
        return _by_model(values.flatten(1, -2).sum(dim=1) if between else values, models)


class Embedding(Layer):
    """Of `torch.nn.Embedding`, dense, without renormalisation."""

    names = ("weight",)

    def __init__(self, module: nn.Embedding) -> None:
        self._rows = module.num_embeddings
        self._padding = module.padding_idx

    def forward(self, inputs: Tensor, parameters: Sequence[Tensor], frame: Layout) -> Tensor:
        weight = parameters[0]
        tokens = _by_model(inputs, weight.shape[0]).clamp(0, self._rows - 1)  # `Lookups` leaves out what is clamped
        which = torch.arange(weight.shape[0], device=inputs.device).view(-1, *(1,) * (tokens.dim() - 1))
        return weight[which, tokens].flatten(0, 1)

    def parts(self, inputs: Tensor, gradients: Tensor, parameters: Sequence[Tensor], frame: Layout) -> list[Pieces]:
        if self._padding is not None:
            gradients = gradients.masked_fill((inputs == self._padding).unsqueeze(-1), 0.0)
        tokens = _by_model(inputs.reshape(len(inputs), -1), frame.models)
        errors = _by_model(gradients.reshape(len(gradients), -1, gradients.shape[-1]), frame.models)
        return [Lookups(tokens, errors, self._rows, frame)]


def _by_model(values: Tensor, models: int) -> Tensor:
    return values.unflatten(0, (models, -1))


def layer_of(module: nn.Module) -> Layer | None:
    """The layer with a model axis that does what `module` does, or None where there is none.

    Only exact types are taken: a subclass may do anything.
    """
    kind = type(module)
    if kind is nn.Linear:
        return Linear(module)  # type: ignore[arg-type]
    if kind in (nn.Conv1d, nn.Conv2d) and module.padding_mode == "zeros":
        return Conv(module)  # type: ignore[arg-type]
    if kind is nn.GroupNorm and module.affine:
        return GroupNorm(module)  # type: ignore[arg-type]
    if kind is nn.LayerNorm and module.elementwise_affine:
        return LayerNorm(module)  # type: ignore[arg-type]
    if kind is nn.Embedding and module.max_norm is None and not module.sparse and not module.scale_grad_by_freq:
        return Embedding(module)  # type: ignore[arg-type]
    return None
