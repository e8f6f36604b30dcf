"""The fast path: a user's module becomes a program in which every layer serves all models in flight.

The module is traced once (`torch.fx`). Layers with parameters are replaced by those of `layers`; everything else runs
unchanged on activations of shape [models * batch, ...], because it treats every example by itself. What might not is
not on the lists below, and the module then goes the general way (`general`).
"""

from __future__ import annotations

import copy
import math
import operator
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from mithridate.ensemble import layers, plain_ops
from mithridate.ensemble.clipping import Clipping

Model = nn.Module | Callable[[], nn.Module]


class NotConvertible(Exception):
    """A module has a part that the fast path does not know; the message says which."""


class FastNetwork:
    """Clipped gradient sums of many models in one forward and one backward pass.

    Guarantee: what one example adds to the sum of its model has norm at most `max_grad_norm` (see `clipping`), depends
    on nothing but that example and the weights, and is zero where the example is absent or its gradient not finite.

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
        traced = _trace(nn.Sequential(module) if box else module)
        self._traced = traced
        self._layers = _layers_of(traced)
        self._fusion = _fusion_of(traced, self._layers)
        self._pools_only = _fusion_of(traced, {})
        self._tanhs = {node for node in traced.graph.nodes if _is_tanh(traced, node)}
        self._last_use = _last_uses(traced.graph)
        numbers = _check_nodes(traced, input_shape, input_dtype)
        # Activations and their gradients, with a copy to work on; then the gradients that are stored.
        self.bytes_per_example = 4 * (3 * numbers + min(self.size, 2**16))
        self.bytes_per_model = 4 * 6 * self.size

    def clipped_sums(
        self, weights: Tensor, inputs: Tensor, labels: Tensor, present: Tensor, max_grad_norm: float
    ) -> Tensor:
        """Sums over the present examples of their gradients of the cross-entropy, each clipped.

        Args:
            weights: models x parameters.
            inputs: models x batch x input.
            labels: models x batch.
            present: models x batch, False for padding.
            max_grad_norm: the largest norm of what one example adds.

        Returns:
            models x parameters.
        """
        models, batch = present.shape
        if batch == 0:
            return torch.zeros_like(weights)
        frame = self._frame(models, _extents(present))
        with torch.enable_grad():
            logits, taps = self._run(weights.detach(), inputs.flatten(0, 1), frame, record=True)
        with torch.no_grad():
            errors = _loss_gradients(logits, labels.flatten(), present.flatten())
            gradients = torch.autograd.grad(logits, [tap.outputs for tap in taps], errors)
            return self._clip_and_sum(weights, taps, gradients, present, frame, max_grad_norm)

    def logits(self, weights: Tensor, inputs: Tensor) -> Tensor:
        """Scores before the softmax, models x inputs x classes; every model sees the same inputs."""
        models = weights.shape[0]
        extents = torch.full((models,), len(inputs), dtype=torch.int32, device=inputs.device)
        with torch.no_grad():
            repeated = inputs.unsqueeze(0).expand(models, *inputs.shape).flatten(0, 1)
            frame = self._frame(models, extents)
            return self._run(weights, repeated, frame, record=False)[0].unflatten(0, (models, -1))

    def _frame(self, models: int, extents: Tensor) -> layers.Frame:
        return layers.Frame(models, self.clipping, extents, kernels_for(extents.device))

    def _run(self, weights: Tensor, inputs: Tensor, frame: layers.Frame, *, record: bool) -> tuple[Tensor, list[_Tap]]:
        values: dict[fx.Node, Any] = {}
        taps: list[_Tap] = []
        fusion = self._fusion_on(inputs.device, frame)
        for node in self._traced.graph.nodes:
            if node.op == "placeholder":
                values[node] = inputs
            elif node.op == "output":
                return values[node.args[0]], taps
            elif node.op == "call_module" and node.target in self._layers:
                layer = fusion.entries.get(node) or self._layers[node.target]
                values[node] = self._run_layer(node.target, layer, values[node.args[0]], weights, frame, taps, record)
            elif node in fusion.passed:
                values[node] = values[node.args[0]]
            elif node in self._tanhs and inputs.device.type == "cpu":
                values[node] = plain_ops.Tanh.apply(values[node.args[0]])
            elif node in fusion.pools:
                values[node] = fusion.pools[node](values[node.args[0]], frame)
            else:
                values[node] = _call(self._traced, node, values)
            for finished in self._last_use.get(node, ()):
                del values[finished]
        raise AssertionError("a traced graph ends with its output")

    def _fusion_on(self, device: torch.device, frame: layers.Frame) -> _Fusion:
        if frame.kernels is not None:
            return self._fusion
        return self._pools_only if device.type == "cpu" else _Fusion()

    def _run_layer(
        self,
        name: str,
        layer: layers.Layer,
        inputs: Tensor,
        weights: Tensor,
        frame: layers.Frame,
        taps: list[_Tap],
        record: bool,
    ) -> Tensor:
        parameters = [self._view(weights, f"{name}.{parameter}") for parameter in layer.names]
        outputs = layer.forward(inputs, parameters, frame)
        if record:
            if not outputs.requires_grad:  # Nothing before it has parameters: the backward pass ends here.
                outputs.requires_grad_()
            taps.append(_Tap(name, layer, inputs.detach(), parameters, outputs))
        return outputs

    def _clip_and_sum(
        self,
        weights: Tensor,
        taps: list[_Tap],
        gradients: Sequence[Tensor],
        present: Tensor,
        frame: layers.Frame,
        max_grad_norm: float,
    ) -> Tensor:
        parts = {
            f"{tap.name}.{parameter}": part
            for tap, gradient in zip(taps, gradients, strict=True)
            for parameter, part in zip(
                tap.layer.names, tap.layer.parts(tap.inputs, gradient, tap.parameters, frame), strict=True
            )
        }
        squares = torch.stack([part.squared_norms() for part in parts.values()]).sum(dim=0)
        trusted = torch.isfinite(squares)
        factors = self.clipping.factors(squares, trusted & present, max_grad_norm)
        sums = torch.zeros_like(weights)
        # On a GPU the question whether any is not trusted would cost more than the cure.
        if trusted.device.type != "cpu" or not bool(trusted.all()):
            for part in parts.values():
                part.forget(trusted)
        for name, part in parts.items():
            part.write_sums(factors, sums[:, self._slices[name]])
        return sums

    def _view(self, weights: Tensor, name: str) -> Tensor:
        return weights[:, self._slices[name]].view(len(weights), *self._shapes[name])


@dataclass(frozen=True)
class _Tap:
    """What passed through a layer: its inputs, and the outputs whose gradient the backward pass gives."""

    name: str
    layer: layers.Layer
    inputs: Tensor
    parameters: Sequence[Tensor]
    outputs: Tensor


def _extents(present: Tensor) -> Tensor:
    """For each model, the position in the batch from which there is only padding."""
    return (present * torch.arange(1, present.shape[1] + 1, device=present.device)).amax(dim=1).int()


def kernels_for(device: torch.device) -> ModuleType | None:
    """The Triton kernels where they can run: on an NVIDIA GPU, or anywhere in Triton's interpreter (for tests)."""
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return None
    try:
        from mithridate.ensemble import kernels
    except ImportError:  # Triton is not made for every system; plain torch does the same.
        return None
    return kernels


def _loss_gradients(logits: Tensor, labels: Tensor, present: Tensor) -> Tensor:
    """Gradient of the summed cross-entropy with respect to the logits: softmax minus the label, 0 where absent."""
    # Classes first: a CPU works along the examples then, and not along a handful of classes.
    errors = torch.softmax(logits.detach().t().contiguous(), dim=0)
    errors.scatter_add_(0, labels.unsqueeze(0), errors.new_full((1, 1), -1.0).expand(1, len(labels)))
    return torch.where(present, errors, 0.0).t()


def _slices(shapes: dict[str, torch.Size]) -> dict[str, slice]:
    """Where each parameter lies in the flat row of a model."""
    result: dict[str, slice] = {}
    start = 0
    for name, shape in shapes.items():
        result[name] = slice(start, start + shape.numel())
        start += shape.numel()
    return result


@dataclass(frozen=True)
class _Fusion:
    """Which nodes of the program the kernels take together.

    Attributes:
        entries: first convolutions, each with the activation and pooling that follow it.
        pools: other poolings, each with the activation before it.
        passed: nodes that another one takes care of.
    """

    entries: dict[fx.Node, layers.Entry] = field(default_factory=dict)
    pools: dict[fx.Node, _FusedPool] = field(default_factory=dict)
    passed: set[fx.Node] = field(default_factory=set)


@dataclass(frozen=True)
class _FusedPool:
    """An activation and the mean over windows side by side."""

    activation: str
    window: tuple[int, int]

    def __call__(self, values: Tensor, frame: layers.Frame) -> Tensor:
        if frame.kernels is not None:
            return frame.kernels.activate_and_pool(values, frame.extents, self.window, self.activation)
        return plain_ops.ActivateAndPool.apply(values, self.window, self.activation)  # type: ignore[return-value]


def _fusion_of(traced: fx.GraphModule, known: dict[str, layers.Layer]) -> _Fusion:
    fusion = _Fusion()
    for node in traced.graph.nodes:
        window = _window_of(traced, node)
        activation = _activation_of(traced, node.args[0]) if window else None
        if window is None or activation is None:
            continue
        before = node.args[0].args[0]
        layer = known.get(str(before.target)) if before.op == "call_module" else None
        fusion.passed.add(node.args[0])
        if (
            isinstance(layer, layers.Conv)
            and layer.can_be_entry
            and before.args[0].op == "placeholder"
            and len(before.users) == 1
        ):
            fusion.entries[before] = layers.Entry(layer, activation, window)
            fusion.passed.add(node)
        else:
            fusion.pools[node] = _FusedPool(activation, window)
    return fusion


def _window_of(traced: fx.GraphModule, node: fx.Node) -> tuple[int, int] | None:
    """The window of a pooling by plain means over windows side by side, else None."""
    pooling = traced.get_submodule(str(node.target)) if node.op == "call_module" else None
    if type(pooling) is not nn.AvgPool2d or pooling.ceil_mode or pooling.divisor_override is not None:
        return None
    window, stride, padding = (_pair(value) for value in (pooling.kernel_size, pooling.stride, pooling.padding))
    return window if stride == window and padding == (0, 0) else None


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def _is_tanh(traced: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return type(traced.get_submodule(str(node.target))) is nn.Tanh
    return node.target in (torch.tanh, F.tanh, "tanh")


def _activation_of(traced: fx.GraphModule, node: fx.Node) -> str | None:
    """The name that `kernels` has for an activation that nothing but the pooling uses, else None."""
    if len(node.users) != 1:
        return None
    if node.op == "call_module":
        return {nn.Tanh: "tanh", nn.ReLU: "relu"}.get(type(traced.get_submodule(str(node.target))))
    return {torch.tanh: "tanh", F.tanh: "tanh", torch.relu: "relu", F.relu: "relu"}.get(node.target)  # type: ignore[arg-type]


# --- from a module to a program -------------------------------------------------------------------------------------

_ACTIVATIONS = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid,
    nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.LogSigmoid, nn.Tanhshrink, nn.Identity,
)  # fmt: skip
_POOLINGS = (
    nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d,
)  # fmt: skip
_SAFE_MODULES = (*_ACTIVATIONS, *_POOLINGS, nn.ZeroPad1d, nn.ZeroPad2d)
# Normalisations without parameters are stateless, and treat each example by itself.
_PARAMETERLESS = (nn.GroupNorm, nn.LayerNorm)

_POINTWISE = {
    F.relu, F.relu6, F.leaky_relu, F.elu, F.celu, F.selu, F.gelu, F.silu, F.mish, F.tanh, F.sigmoid, F.softplus,
    F.softsign, F.hardtanh, F.hardswish, F.logsigmoid, torch.relu, torch.tanh, torch.sigmoid, torch.exp, torch.abs,
    torch.neg, operator.neg, "relu", "tanh", "sigmoid", "exp", "abs", "neg", "contiguous",
}  # fmt: skip
_BINARY = {
    operator.add, operator.sub, operator.mul, operator.truediv, torch.add, torch.sub, torch.mul, torch.div,
    "add", "sub", "mul", "div",
}  # fmt: skip
_POOLING_FUNCTIONS = {
    F.max_pool1d, F.max_pool2d, F.avg_pool1d, F.avg_pool2d,
    F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_max_pool1d, F.adaptive_max_pool2d,
}  # fmt: skip
# Rearrangements within an example; that the first axis stays the examples is checked on shapes.
_RESHAPES = {torch.flatten, torch.reshape, "flatten", "view", "reshape"}
# Operations along named axes, none of which may be the first.
_ALONG_AXES = {torch.mean, torch.sum, "mean", "sum", torch.amax, "amax"}
_SIZES = {"size", getattr, operator.getitem}
_OUT_OF_PLACE = {operator.iadd: operator.add, operator.imul: operator.mul, operator.isub: operator.sub}


def _trace(module: nn.Module) -> fx.GraphModule:
    """The module as a graph, on a copy in which nothing happens in place."""
    module = copy.deepcopy(module).cpu().float()
    for part in module.modules():
        if getattr(part, "inplace", False):
            part.inplace = False  # type: ignore[assignment]
    try:
        traced = fx.symbolic_trace(module)
    except Exception as error:
        raise NotConvertible(f"its forward method cannot be traced ({error})") from error
    for node in traced.graph.nodes:
        if node.op == "call_function" and node.target in _OUT_OF_PLACE:
            node.target = _OUT_OF_PLACE[node.target]
        if "inplace" in node.kwargs:
            node.kwargs = {name: value for name, value in node.kwargs.items() if name != "inplace"}
    return traced


def _layers_of(traced: fx.GraphModule) -> dict[str, layers.Layer]:
    """The layers with parameters, by name; each is called once, so that its gradient is that of one call."""
    found: dict[str, layers.Layer] = {}
    for node in traced.graph.nodes:
        if node.op != "call_module":
            continue
        module = traced.get_submodule(str(node.target))
        if not any(True for _ in module.parameters()):
            continue
        if str(node.target) in found:
            raise NotConvertible(f"the layer {node.target} is used twice")
        layer = layers.layer_of(module)
        if layer is None:
            raise NotConvertible(f"the layer {node.target} ({type(module).__name__}) has no fast form")
        found[str(node.target)] = layer
    owned = {f"{name}.{parameter}" for name, layer in found.items() for parameter in layer.names}
    loose = [name for name, _ in traced.named_parameters() if name not in owned]
    if loose:
        raise NotConvertible(f"the parameter {loose[0]} belongs to no layer that is called")
    if len({id(parameter) for parameter in traced.parameters()}) != len(owned):
        raise NotConvertible("some layers share a parameter")
    return found


def _last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """After which node a value is not needed any more."""
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        for used in node.all_input_nodes:
            last[used] = node
    result: dict[fx.Node, list[fx.Node]] = {}
    for used, node in last.items():
        if node.op != "output":
            result.setdefault(node, []).append(used)
    return result


def _call(traced: fx.GraphModule, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    arguments = map_arg(node.args, values.__getitem__)
    options = map_arg(node.kwargs, values.__getitem__)
    if node.op == "call_module":
        return traced.get_submodule(str(node.target))(*arguments, **options)
    if node.op == "call_method":
        return getattr(arguments[0], str(node.target))(*arguments[1:], **options)
    return node.target(*arguments, **options)  # type: ignore[operator]


def _check_nodes(traced: fx.GraphModule, input_shape: tuple[int, ...], input_dtype: torch.dtype) -> int:
    """Require that every step of the program keeps the examples apart; returns how many numbers one example takes.

    The program is run on two and on three examples: whatever the first axis of a tensor is then, it must be the
    examples. Reshapes keep the order of the entries, so examples stay apart as long as the first axis does.
    """
    shapes = [_shapes(traced, input_shape, input_dtype, examples) for examples in (2, 3)]
    for node in traced.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        reason = _why_unsafe(traced, node, shapes[0])
        for examples, known in zip((2, 3), shapes, strict=True):
            shape = known[node]
            if shape is not None and (not shape or shape[0] != examples):
                reason = "the first axis of its result is not the examples"
        if reason is not None:
            raise NotConvertible(f"{node.target} in its forward method: {reason}")
    outputs = [node.args[0] for node in traced.graph.nodes if node.op == "output"]
    if not isinstance(outputs[0], fx.Node) or len(shapes[0][outputs[0]] or ()) != 2:
        raise NotConvertible("its result is not a table of examples x classes")
    return sum(math.prod(shape[1:]) for shape in shapes[0].values() if shape)


def _shapes(
    traced: fx.GraphModule, input_shape: tuple[int, ...], input_dtype: torch.dtype, examples: int
) -> dict[fx.Node, tuple[int, ...] | None]:
    """The shape of every value for a number of examples, None for what is no tensor."""
    values: dict[fx.Node, Any] = {}
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            values[node] = torch.zeros(examples, *input_shape, dtype=input_dtype)
        elif node.op == "get_attr":
            raise NotConvertible(f"it uses {node.target} outside a layer")
        elif node.op != "output":
            with torch.no_grad():
                values[node] = _call(traced, node, values)
    return {node: tuple(value.shape) if isinstance(value, Tensor) else None for node, value in values.items()}


def _why_unsafe(traced: fx.GraphModule, node: fx.Node, shapes: dict[fx.Node, tuple[int, ...] | None]) -> str | None:
    """Why a step might mix examples or is not known, or None."""
    if node.op == "call_module":
        return _why_module_unsafe(traced.get_submodule(str(node.target)))
    operands = [shapes[argument] for argument in node.all_input_nodes]
    dims = [len(shape) for shape in operands if shape is not None]
    target = node.target
    if target in _POINTWISE or target in _POOLING_FUNCTIONS or target in _RESHAPES or target in _SIZES:
        return None
    if target in _BINARY:
        return None if len(set(dims)) <= 1 else "operands with different numbers of axes"
    if target in _ALONG_AXES:
        axes = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        return None if _avoid_first(axes, dims[0]) else "it works along the axis of examples"
    if target is torch.cat:
        axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        return None if _avoid_first(axis, dims[0]) else "it works along the axis of examples"
    if target in ("transpose", torch.transpose, "permute", torch.permute, "softmax", F.softmax, torch.softmax):
        return "it may move the axis of examples"
    return "it is not known to treat every example by itself"


def _why_module_unsafe(module: nn.Module) -> str | None:
    kind = type(module)
    if isinstance(module, nn.Flatten):
        return None if module.start_dim >= 1 else "it flattens the axis of examples"
    if kind is nn.Dropout:
        return None if module.p == 0 else "it draws randomness"
    if kind in _SAFE_MODULES or kind in _PARAMETERLESS or layers.layer_of(module) is not None:
        return None
    return f"{kind.__name__} is not known to treat every example by itself"


def _avoid_first(axes: Any, dims: int) -> bool:
    axes = axes if isinstance(axes, (tuple, list)) else (axes,)
    return all(isinstance(axis, int) and axis % dims != 0 for axis in axes)
