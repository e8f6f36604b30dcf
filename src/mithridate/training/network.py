"""The fast path: a user's module becomes a program in which every layer serves all models in flight.

Layers with parameters are replaced by those of `layers`; everything else runs unchanged on activations of shape
[models * batch, ...], because it treats every example by itself (`conversion` sees to that).
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from mithridate.training import layers
from mithridate.training.clipping import Clipping, examples_together
from mithridate.training.conversion import (
    NotConvertible,
    call,
    checked_shapes,
    fusion_of,
    is_tanh,
    last_uses,
    layers_of,
    trace,
)
from mithridate.training.kernels import Chain, cpu
from mithridate.training.models import random_inputs

# Parameters up to which compiled code is faster than layer by layer: they and their sums stay in the caches.
_MOST_COMPILED = 2**19
# Bytes of gradients that a core works on at a time.
_CACHED_BYTES = 2**21


class FastNetwork:
    """Clipped gradient sums of many models in one forward and one backward pass.

    Guarantee: one example moves the sum of its model by at most `max_grad_norm`, all roundings included (see `clipping`
    for what that means, and for what it assumes of libraries). What it adds depends on nothing but that example and the
    weights, up to rounding, and is zero where the example is absent or its gradient not finite. The same holds of one
    unit of several examples, whose mean gradient is clipped as a whole.

    Args:
        module: the network; it is copied, and its own weights are not used.
        input_shape: shape of one input.
        input_dtype: float32, or int64 for tokens.

    Raises:
        NotConvertible: use `general.GeneralNetwork` instead.
    """

    def __init__(
        self, module: nn.Module, input_shape: tuple[int, ...], input_dtype: torch.dtype = torch.float32
    ) -> None:
        self.shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
        self.size = sum(shape.numel() for shape in self.shapes.values())
        self.clipping = Clipping("float32")
        # A module that is a single layer is traced inside a box, which adds to the names.
        box = "0." if layers.layer_of(module) is not None else ""
        self._slices = _slices({f"{box}{name}": shape for name, shape in self.shapes.items()})
        self._shapes = {f"{box}{name}": shape for name, shape in self.shapes.items()}
        self.loss_weights: Tensor | None = None
        traced = trace(nn.Sequential(module) if box else module)
        self._traced = traced
        self._layers = layers_of(traced)
        shapes = checked_shapes(traced, input_shape, input_dtype)
        self._fusion = fusion_of(traced, self._layers, shapes)
        # Whether it starts with stages of convolution, activation and pooling.
        self.has_stem = self._fusion.stem is not None
        self._tanhs = {node for node in traced.graph.nodes if is_tanh(traced, node)}
        self._last_use = last_uses(traced.graph)
        # One model of wide convolutions keeps a GPU busy, and its batch need not wait for the largest of others.
        self.is_wide = any(isinstance(layer, layers.Conv) and layer.is_wide for layer in self._layers.values())
        numbers = sum(math.prod(shape[1:]) for shape in shapes.values() if shape)
        # Gradients with respect to these may be held for every example.
        named = [(*name.rpartition("."), shape.numel()) for name, shape in self._shapes.items()]
        looked_up = layers.Linear | layers.Embedding
        stored = sum(n for at, _, name, n in named if name == "bias" or not isinstance(self._layers.get(at), looked_up))
        # Activations and their gradients, with a copy to work on; then the gradients that are stored.
        self.bytes_per_example = 4 * (3 * numbers + min(stored, 2**18))
        self.bytes_per_model = 4 * 6 * self.size
        _rehearse(self, module, input_shape, input_dtype)

    def takes_halves(self, device: torch.device) -> bool:
        """Whether there are kernels that compute its stem in 16 bits."""
        kernels, stem = kernels_for(device), self._fusion.stem
        if kernels is None or stem is None:
            return False
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
            return False
        return kernels.leading_convolutions.takes_halves(stem.stages)

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
        """Sums over the present examples of their gradients of the cross-entropy, each clipped.

        Args:
            weights: models x parameters.
            inputs: models x batch x input; with shares, models x batch x examples of a unit x input.
            labels: models x batch; with shares, models x batch x examples of a unit.
            present: models x batch, False for padding.
            max_grad_norm: the largest norm of what one example adds; with shares, one unit.
            whole: examples of the whole batch, where this is a piece of one, whose sum will be added to the others.
            shares: what every example counts in the mean gradient of its unit, models x batch x examples of a unit;
                None: every example is a unit.

        Returns:
            models x parameters, in the precision that `clipping.accumulator` names for such a batch, or the whole.
        """
        models, batch = present.shape
        if batch == 0:
            return new_sums(weights, self.clipping.accumulator(whole or batch))
        compiled = self._compiled(weights.device, whole or batch)
        if compiled is not None:
            chain, library = compiled
            places = [self._slices[name].start for name in chain.names]
            limits, precision = self.clipping.limits(max_grad_norm), self.clipping.accumulator(whole or batch)
            if shares is not None:
                shares = torch.where(present.unsqueeze(2), shares, 0.0)
                return library.clipped_means(
                    chain, places, weights, inputs, labels, shares, self.loss_weights, limits, precision
                )
            together = 0 if precision == torch.float32 else examples_together(whole or batch)
            return library.clipped_sums(
                chain, places, weights, inputs, labels, present, self.loss_weights, limits, together
            )
        if shares is not None:
            return self._clipped_means(weights, inputs, labels, present, max_grad_norm, whole, shares)
        frame = self._frame(models, _extents(present), recording=True, whole=whole)
        parts = self._parts(weights, inputs.flatten(0, 1), labels.flatten(), present.flatten(), frame)
        with torch.no_grad():
            return self._clip_and_sum(weights, parts, present, frame, max_grad_norm)

    def _parts(
        self, weights: Tensor, inputs: Tensor, labels: Tensor, present: Tensor, frame: layers.Layout
    ) -> list[tuple[layers.Pieces, slice]]:
        """The gradients of all examples, a piece for some of the parameters each, and where these lie in a row."""
        with torch.enable_grad():
            logits, taps = self._run(weights.detach(), inputs, frame, record=True)
        with torch.no_grad():
            errors = _loss_gradients(logits, labels, present, self.loss_weights)
            gradients = torch.autograd.grad(logits, [tap.outputs for tap in taps], errors)
            return [
                located
                for tap, gradient in zip(taps, gradients, strict=True)
                for located in self._located(tap, tap.layer.parts(tap.inputs, gradient, tap.parameters, frame))
            ]

    def _clipped_means(
        self,
        weights: Tensor,
        inputs: Tensor,
        labels: Tensor,
        present: Tensor,
        max_grad_norm: float,
        whole: int | None,
        shares: Tensor,
    ) -> Tensor:
        """Sums over the present units of the mean gradients of their examples, each clipped; see `clipped_sums`.

        A mean is formed from the examples of its unit and nothing else, also where they are not finite, and is stored.
        How many examples are computed together does not depend on what they are: all units have as many places.
        """
        models, units, rows = shares.shape
        everywhere = torch.full((models,), units * rows, dtype=torch.int32, device=shares.device)
        frame = self._frame(models, everywhere, recording=True)
        parts = self._parts(weights, inputs.flatten(0, 2), labels.flatten(), shares.flatten() > 0, frame)
        # On a CPU as many models at a time as its cache holds the means of.
        together = max(1, _CACHED_BYTES // (4 * units * self.size)) if shares.device.type == "cpu" else models
        sums: list[Tensor] = []
        with torch.no_grad():
            for at in range(0, models, together):
                some = slice(at, at + together)
                means = _side_by_side([(part.means(shares, some), where) for part, where in parts], self.size)
                frame = self._frame(len(means), _extents(present[some]), recording=False, whole=whole)
                stored: list[tuple[layers.Pieces, slice]] = [(layers.Stored(means, frame), slice(None))]
                sums.append(self._clip_and_sum(weights[some], stored, present[some], frame, max_grad_norm))
        return sums[0] if len(sums) == 1 else torch.cat(sums)

    def _compiled(self, device: torch.device, batch: int) -> tuple[Chain, cpu.Library] | None:
        """The whole network as compiled code takes it, where it can: on a CPU, if neither it nor the batch is huge."""
        chain = self._fusion.chain
        if chain is None or self.size > _MOST_COMPILED or not examples_together(batch):
            return None
        if device.type != "cpu" or kernels_for(device) is not None:
            return None
        library = cpu.library(stages=True)
        return None if library is None else (chain, library)

    def logits(self, weights: Tensor, inputs: Tensor) -> Tensor:
        """Scores before the softmax, models x inputs x classes; every model sees the same inputs."""
        if weights.device.type == "cpu":  # One model after another: nothing is gained by taking them together.
            # In memory of its own, so that what comes out does not depend on a model's place among the others.
            alone = [weights[at : at + 1].clone() for at in range(len(weights))]
            return torch.stack([self._logits(each, inputs)[0] for each in alone])
        return self._logits(weights, inputs)

    def _logits(self, weights: Tensor, inputs: Tensor) -> Tensor:
        models = weights.shape[0]
        extents = torch.full((models,), len(inputs), dtype=torch.int32, device=inputs.device)
        with torch.no_grad():
            repeated = inputs if models == 1 else inputs.unsqueeze(0).expand(models, *inputs.shape).flatten(0, 1)
            frame = self._frame(models, extents, recording=False)
            return self._run(weights, repeated, frame, record=False)[0].unflatten(0, (models, -1))

    def _frame(self, models: int, extents: Tensor, *, recording: bool, whole: int | None = None) -> layers.Layout:
        on_cpu, kernels = extents.device.type == "cpu", kernels_for(extents.device)
        return layers.Layout(
            models,
            self.clipping,
            extents,
            kernels,
            native=cpu.library(stages=True) if on_cpu and self.has_stem else None,
            recording=recording,
            wide=self.is_wide and kernels is not None,
            whole=whole,
        )

    def _run(self, weights: Tensor, inputs: Tensor, frame: layers.Layout, *, record: bool) -> tuple[Tensor, list[_Tap]]:
        values: dict[fx.Node, Any] = {}
        taps: list[_Tap] = []
        fusion = self._fusion
        stem_runs = False
        for node in self._traced.graph.nodes:
            if node.op == "placeholder":
                values[node] = inputs
            elif node.op == "output":
                return values[node.args[0]], taps
            elif fusion.stem is not None and node is fusion.stem_nodes[0] and fusion.stem.suits(frame):
                stem_runs = True
                values[node] = self._run_layer("", fusion.stem, values[node.args[0]], weights, frame, taps, record)
            elif stem_runs and node in fusion.stem_nodes:
                values[node] = values[node.args[0]]
            elif node.op == "call_module" and node.target in self._layers:
                layer = self._layers[node.target]
                if node in fusion.addends:
                    frame.addends[layer] = values[fusion.addends[node]]
                values[node] = self._run_layer(node.target, layer, values[node.args[0]], weights, frame, taps, record)
            elif node in fusion.passed:
                values[node] = values[node.args[0]]
            elif node in fusion.followers and fusion.followers[node].norm in frame.completed:
                values[node] = values[fusion.followers[node].source]
            elif node in self._tanhs and inputs.device.type == "cpu":
                values[node] = cpu.Tanh.apply(values[node.args[0]])
            elif node in fusion.pools:
                values[node] = fusion.pools[node](values[node.args[0]], frame)
            else:
                values[node] = call(self._traced, node, values)
            for finished in self._last_use.get(node, ()):
                del values[finished]
        raise AssertionError("a traced graph ends with its output")

    def _run_layer(
        self,
        name: str,
        layer: layers.Layer,
        inputs: Tensor,
        weights: Tensor,
        frame: layers.Layout,
        taps: list[_Tap],
        record: bool,
    ) -> Tensor:
        names = [f"{name}.{parameter}" if name else parameter for parameter in layer.names]
        parameters = [weights[:, self._slices[each]].view(len(weights), *self._shapes[each]) for each in names]
        outputs = layer.forward(inputs, parameters, frame)
        if record:
            if not outputs.requires_grad:  # Nothing before it has parameters: the backward pass ends here.
                outputs.requires_grad_()
            taps.append(_Tap(names, layer, inputs.detach(), parameters, outputs))
        return outputs

    def _clip_and_sum(
        self,
        weights: Tensor,
        parts: Sequence[tuple[layers.Pieces, slice]],
        present: Tensor,
        frame: layers.Layout,
        max_grad_norm: float,
    ) -> Tensor:
        squares = torch.stack([part.squared_norms() for part, _ in parts]).sum(dim=0)
        trusted = torch.isfinite(squares)
        factors = self.clipping.factors(squares, trusted & present, max_grad_norm)
        sums = new_sums(weights, self.clipping.accumulator(frame.whole or present.shape[1]))
        # On a GPU the question whether any is not trusted would cost more than the cure.
        if trusted.device.type != "cpu" or not bool(trusted.all()):
            for part, _ in parts:
                part.forget(trusted)
        for part, where in parts:
            part.write_sums(factors, sums[:, where])
        return sums

    def _located(self, tap: _Tap, parts: Sequence[layers.Pieces]) -> list[tuple[layers.Pieces, slice]]:
        """Each part with its place in the flat row of a model; the parameters of one layer lie side by side."""
        slices = [self._slices[name] for name in tap.names]
        if len(parts) == 1:
            return [(parts[0], slice(slices[0].start, slices[-1].stop))]
        return list(zip(parts, slices, strict=True))


@dataclass(frozen=True)
class _Tap:
    """What passed through a layer: its inputs, and the outputs whose gradient the backward pass gives."""

    names: Sequence[str]
    layer: layers.Layer
    inputs: Tensor
    parameters: Sequence[Tensor]
    outputs: Tensor


def _side_by_side(parts: Sequence[tuple[Tensor, slice]], size: int) -> Tensor:
    """Gradients with respect to some parameters each as those with respect to all, in the order of a row."""
    if len(parts) == 1:
        return parts[0][0]
    whole = parts[0][0].new_zeros(*parts[0][0].shape[:2], size)
    for part, where in parts:
        whole[:, :, where] = part
    return whole


def _extents(present: Tensor) -> Tensor:
    """For each model, the position in the batch from which there is only padding."""
    return (present * torch.arange(1, present.shape[1] + 1, device=present.device)).amax(dim=1).int()


def new_sums(weights: Tensor, accumulator: torch.dtype) -> Tensor:
    """Zeros in the shape of the weights; on the CPU where their device lacks double precision."""
    lacks_double = accumulator == torch.float64 and layers.wide(weights.device) != torch.float64
    return torch.zeros(weights.shape, dtype=accumulator, device="cpu" if lacks_double else weights.device)


def kernels_for(device: torch.device) -> ModuleType | None:
    """The Triton kernels where they can run: on an NVIDIA GPU, or anywhere in Triton's interpreter (for tests)."""
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return None
    try:
        from mithridate.training.kernels import triton as kernels
    except ImportError:  # Triton is not made for every system; plain torch does the same.
        return None
    return kernels


def _loss_gradients(logits: Tensor, labels: Tensor, present: Tensor, weights: Tensor | None) -> Tensor:
    """Gradient of the summed cross-entropy with respect to the logits: softmax minus the label, 0 where absent.

    Each example times the weight of its label, where there are weights.
    """
    # Classes first: a CPU works along the examples then, and not along a handful of classes.
    errors = torch.softmax(logits.detach().t().contiguous(), dim=0)
    errors.scatter_add_(0, labels.unsqueeze(0), errors.new_full((1, 1), -1.0).expand(1, len(labels)))
    if weights is not None:
        errors *= weights[labels]
    return torch.where(present, errors, 0.0).t()


def _slices(shapes: dict[str, torch.Size]) -> dict[str, slice]:
    """Where each parameter lies in the flat row of a model."""
    result: dict[str, slice] = {}
    start = 0
    for name, shape in shapes.items():
        result[name] = slice(start, start + shape.numel())
        start += shape.numel()
    return result


def _rehearse(network: FastNetwork, module: nn.Module, input_shape: tuple[int, ...], input_dtype: torch.dtype) -> None:
    """Compare the program with the module itself, one example at a time: results, and one gradient.

    Everything above says that they agree; this would notice if it were wrong.
    """
    own = copy.deepcopy(module).cpu().float()
    inputs = random_inputs(own, input_shape, input_dtype, 5)
    weights = torch.cat([value.detach().flatten() for value in own.parameters()]).unsqueeze(0)
    with torch.no_grad():
        alone = torch.cat([own(example.unsqueeze(0)) for example in inputs])
    for count in (2, 5):
        together = network.logits(weights, inputs[:count])[0]
        if not _agree(together, alone[:count]):
            raise NotConvertible("its results for one example depend on others")
    label = torch.zeros(1, 1, dtype=torch.int64)
    present = torch.ones(1, 1, dtype=torch.bool)
    found = network.clipped_sums(weights, inputs[:1].unsqueeze(0), label, present, 1e30)[0]
    with torch.enable_grad():
        loss = F.cross_entropy(own(inputs[:1]), label[0])
        gradients = torch.autograd.grad(loss, list(own.parameters()), allow_unused=True)
    expected = [
        torch.zeros_like(value).flatten() if gradient is None else gradient.flatten()
        for value, gradient in zip(own.parameters(), gradients, strict=True)
    ]
    if not _agree(found, torch.cat(expected)):
        raise NotConvertible("its gradients are not those of its layers")


def _agree(found: Tensor, expected: Tensor) -> bool:
    """Whether two ways to compute differ by rounding only."""
    return bool((found - expected).norm() <= 1e-3 * expected.norm() + 1e-6)
