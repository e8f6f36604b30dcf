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

from mithridate.ensemble import layers, native, plain_ops
from mithridate.ensemble.clipping import Clipping
from mithridate.ensemble.stages import Stage

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
        shapes = _checked_shapes(traced, input_shape, input_dtype)
        self._fusion = _fusion_of(traced, self._layers, shapes)
        self._tanhs = {node for node in traced.graph.nodes if _is_tanh(traced, node)}
        self._last_use = _last_uses(traced.graph)
        numbers = sum(math.prod(shape[1:]) for shape in shapes.values() if shape)
        stored = sum(shape.numel() for name, shape in self._shapes.items() if self._may_be_stored(name))
        # Activations and their gradients, with a copy to work on; then the gradients that are stored.
        self.bytes_per_example = 4 * (3 * numbers + min(stored, 2**18))
        self.bytes_per_model = 4 * 6 * self.size
        _rehearse(self, module, input_shape, input_dtype)

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
        frame = self._frame(models, _extents(present), recording=True)
        with torch.enable_grad():
            logits, taps = self._run(weights.detach(), inputs.flatten(0, 1), frame, record=True)
        with torch.no_grad():
            errors = _loss_gradients(logits, labels.flatten(), present.flatten())
            gradients = torch.autograd.grad(logits, [tap.outputs for tap in taps], errors)
            return self._clip_and_sum(weights, taps, gradients, present, frame, max_grad_norm)

    def logits(self, weights: Tensor, inputs: Tensor) -> Tensor:
        """Scores before the softmax, models x inputs x classes; every model sees the same inputs."""
        if weights.device.type == "cpu":  # One model after another: nothing is gained by taking them together.
            return torch.stack([self._logits(weights[at : at + 1], inputs)[0] for at in range(len(weights))])
        return self._logits(weights, inputs)

    def _logits(self, weights: Tensor, inputs: Tensor) -> Tensor:
        models = weights.shape[0]
        extents = torch.full((models,), len(inputs), dtype=torch.int32, device=inputs.device)
        with torch.no_grad():
            repeated = inputs if models == 1 else inputs.unsqueeze(0).expand(models, *inputs.shape).flatten(0, 1)
            frame = self._frame(models, extents, recording=False)
            return self._run(weights, repeated, frame, record=False)[0].unflatten(0, (models, -1))

    def _frame(self, models: int, extents: Tensor, *, recording: bool) -> layers.Frame:
        on_cpu = extents.device.type == "cpu"
        return layers.Frame(
            models,
            self.clipping,
            extents,
            kernels_for(extents.device),
            native=native.library() if on_cpu and self._fusion.stem is not None else None,
            recording=recording,
        )

    def _run(self, weights: Tensor, inputs: Tensor, frame: layers.Frame, *, record: bool) -> tuple[Tensor, list[_Tap]]:
        values: dict[fx.Node, Any] = {}
        taps: list[_Tap] = []
        fusion = self._fusion
        stem_runs = False
        for node in self._traced.graph.nodes:
            if node.op == "placeholder":
                values[node] = inputs
            elif node.op == "output":
                return values[node.args[0]], taps
            elif node is fusion.stem_start and fusion.stem is not None and fusion.stem.suits(frame):
                stem_runs = True
                values[node] = self._run_layer("", fusion.stem, values[node.args[0]], weights, frame, taps, record)
            elif stem_runs and node in fusion.stem_nodes:
                values[node] = values[node.args[0]]
            elif node.op == "call_module" and node.target in self._layers:
                layer = self._layers[node.target]
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

    def _may_be_stored(self, parameter: str) -> bool:
        """Whether gradients with respect to a parameter may be held for every example."""
        layer, _, name = parameter.rpartition(".")
        return name == "bias" or not isinstance(self._layers.get(layer), layers.Linear | layers.Embedding)

    @property
    def has_stem(self) -> bool:
        """Whether it starts with stages of convolution, activation and pooling."""
        return self._fusion.stem is not None

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
        parameters = [self._view(weights, _full_name(name, parameter)) for parameter in layer.names]
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
            _full_name(tap.name, parameter): part
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


def _full_name(layer: str, parameter: str) -> str:
    return f"{layer}.{parameter}" if layer else parameter


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
        pools: other poolings, each with the activation before it.
        passed: nodes that another one takes care of.
        stem: stages of convolution, activation and pooling from the input on, as one layer.
        stem_nodes: the nodes of the stem; the first is `stem_start`.
    """

    pools: dict[fx.Node, _FusedPool] = field(default_factory=dict)
    passed: set[fx.Node] = field(default_factory=set)
    stem: layers.Stem | None = None
    stem_nodes: tuple[fx.Node, ...] = ()

    @property
    def stem_start(self) -> fx.Node | None:
        """The first convolution of the stem."""
        return self.stem_nodes[0] if self.stem_nodes else None


@dataclass(frozen=True)
class _FusedPool:
    """An activation and the mean over windows side by side."""

    activation: str
    window: tuple[int, int]

    def __call__(self, values: Tensor, frame: layers.Frame) -> Tensor:
        if frame.kernels is not None:
            return frame.kernels.activate_and_pool(values, frame.extents, self.window, self.activation)
        return plain_ops.ActivateAndPool.apply(values, self.window, self.activation)  # type: ignore[return-value]


def _fusion_of(traced: fx.GraphModule, known: dict[str, layers.Layer], shapes: _Shapes) -> _Fusion:
    stem, stem_nodes = _stem_of(traced, known, shapes)
    fusion = _Fusion(stem=stem, stem_nodes=stem_nodes)
    for node in traced.graph.nodes:
        window = _window_of(traced, node)
        activation = _activation_of(traced, node.args[0]) if window else None
        if window is None or activation is None or len(shapes[node] or ()) != 4:
            continue
        fusion.passed.add(node.args[0])
        fusion.pools[node] = _FusedPool(activation, window)
    return fusion


def _stem_of(
    traced: fx.GraphModule, known: dict[str, layers.Layer], shapes: _Shapes
) -> tuple[layers.Stem | None, tuple[fx.Node, ...]]:
    """The longest chain of stages from the input on, and its nodes."""
    names: list[str] = []
    stages: list[Stage] = []
    nodes: list[fx.Node] = []
    node = next(iter(traced.graph.nodes))
    while (found := _next_stage(traced, node, known, shapes)) is not None:
        stage, members = found
        stages.append(stage)
        names += [f"{members[0].target}.weight", f"{members[0].target}.bias"]
        nodes += members
        node = members[-1]
    return (layers.Stem(tuple(names), tuple(stages)) if stages else None), tuple(nodes)


def _next_stage(
    traced: fx.GraphModule, before: fx.Node, known: dict[str, layers.Layer], shapes: _Shapes
) -> tuple[Stage, list[fx.Node]] | None:
    """Convolution, activation and pooling that follow a node, if nothing else uses what is between them."""
    members: list[fx.Node] = []
    for _ in range(3):
        users = list((members[-1] if members else before).users)
        if len(users) != 1:
            return None
        members.append(users[0])
    convolution, active, pooling = members
    layer = known.get(str(convolution.target)) if convolution.op == "call_module" else None
    activation, window = _activation_of(traced, active), _window_of(traced, pooling)
    images, outputs = shapes.get(before), shapes.get(convolution)
    if not isinstance(layer, layers.Conv) or activation is None or window is None or not images or not outputs:
        return None
    stage = layer.stage(images[1:], outputs[1], activation, window)
    return None if stage is None else (stage, members)


def _window_of(traced: fx.GraphModule, node: fx.Node) -> tuple[int, int] | None:
    """The window of a pooling by plain means over windows side by side, else None."""
    pooling = traced.get_submodule(str(node.target)) if node.op == "call_module" else None
    if type(pooling) is not nn.AvgPool2d or pooling.ceil_mode or pooling.divisor_override is not None:
        return None
    window, stride, padding = (_pair(value) for value in (pooling.kernel_size, pooling.stride, pooling.padding))
    return window if stride == window and padding == (0, 0) else None


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


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
_OUT_OF_PLACE = {operator.iadd: operator.add, operator.imul: operator.mul, operator.isub: operator.sub}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

_Shapes = dict[fx.Node, tuple[int, ...] | None]


def _trace(module: nn.Module) -> fx.GraphModule:
    """The module as a graph, on a copy in which nothing happens in place."""
    module = copy.deepcopy(module).cpu().float()
    for name, part in module.named_modules():
        if any(getattr(part, hooks) for hooks in _HOOKS) or "forward" in vars(part):
            raise NotConvertible(f"the layer {name or 'itself'} has hooks or a forward method of its own")
        if getattr(part, "inplace", False):
            part.inplace = False  # type: ignore[assignment]
    try:
        traced = fx.symbolic_trace(module)
    except Exception as error:
        raise NotConvertible(f"its forward method cannot be traced ({error})") from error
    traced.graph.eliminate_dead_code()
    if sum(node.op == "placeholder" for node in traced.graph.nodes) != 1:
        raise NotConvertible("its forward method takes more than one argument")
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


def _checked_shapes(traced: fx.GraphModule, input_shape: tuple[int, ...], input_dtype: torch.dtype) -> _Shapes:
    """The shape of every value for two examples, after a check that every step keeps the examples apart.

    The program is run on two and on three examples: whatever the first axis of a tensor is then, it must be the
    examples. Reshapes keep the order of the entries, so examples stay apart as long as the first axis does.
    """
    runs = {examples: _shapes(traced, input_shape, input_dtype, examples) for examples in (2, 3)}
    for node in traced.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        reason = _why_unsafe(traced, node, runs[2])
        for examples, shapes in runs.items():
            shape = shapes[node]
            if shape is not None and (not shape or shape[0] != examples):
                reason = "the first axis of its result is not the examples"
        if reason is not None:
            raise NotConvertible(f"{node.target} in its forward method: {reason}")
    result = next(node.args[0] for node in traced.graph.nodes if node.op == "output")
    if not isinstance(result, fx.Node) or len(runs[2][result] or ()) != 2:
        raise NotConvertible("its result is not a table of examples x classes")
    return runs[2]


def _shapes(traced: fx.GraphModule, input_shape: tuple[int, ...], input_dtype: torch.dtype, examples: int) -> _Shapes:
    """The shape of every value for a number of examples, None for what is no tensor."""
    values: dict[fx.Node, Any] = {}
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            values[node] = torch.zeros(examples, *input_shape, dtype=input_dtype)
        elif node.op == "get_attr":
            raise NotConvertible(f"it uses {node.target} outside a layer")
        elif node.op != "output":
            try:
                with torch.no_grad():
                    values[node] = _call(traced, node, values)
            except (RuntimeError, TypeError, ValueError, IndexError) as error:
                raise NotConvertible(f"{node.target} in its forward method fails: {error}") from error
    return {node: tuple(value.shape) if isinstance(value, Tensor) else None for node, value in values.items()}


def _why_unsafe(traced: fx.GraphModule, node: fx.Node, shapes: _Shapes) -> str | None:
    """Why a step might mix examples or is not known, or None."""
    if not node.args or not isinstance(node.args[0], (fx.Node, tuple, list)):
        return "its first argument is not given by position"
    operands = [shapes[argument] for argument in node.all_input_nodes if shapes[argument] is not None]
    dims = [len(shape) for shape in operands if shape is not None]
    if node.op == "call_module":
        if len(node.args) != 1 or node.kwargs:
            return "it is called with more than one argument"
        return _why_module_unsafe(traced.get_submodule(str(node.target)), dims[0])
    target = node.target
    if shapes[node] is None or target in (getattr, operator.getitem, "size"):
        return _why_size_unsafe(node, shapes)
    if target in _RESHAPES:
        return None
    if any(isinstance(argument, fx.Node) and shapes[argument] is None for argument in node.all_input_nodes):
        return "it computes with the number of examples"
    if target in _POINTWISE or target in _POOLING_FUNCTIONS:
        return None
    if target in _BINARY:
        return None if len(set(dims)) <= 1 else "operands with different numbers of axes"
    if target in _ALONG_AXES:
        axes = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        return None if _avoid_first(axes, dims[0]) else "it works along the axis of examples"
    if target is torch.cat:
        axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        return None if _avoid_first(axis, dims[0]) else "it works along the axis of examples"
    return "it is not known to treat every example by itself"


def _why_size_unsafe(node: fx.Node, shapes: _Shapes) -> str | None:
    """Sizes may be asked for, and be used to reshape, and for nothing else."""
    source = node.args[0]
    is_tensor = isinstance(source, fx.Node) and shapes[source] is not None
    if node.target is getattr:
        return None if is_tensor and node.args[1] == "shape" else "it reads an attribute"
    if node.target == "size":
        return None
    if node.target is operator.getitem:
        return "it takes parts of a tensor" if is_tensor else None
    return "it computes with the number of examples"


def _why_module_unsafe(module: nn.Module, dims: int) -> str | None:
    kind = type(module)
    if isinstance(module, nn.Flatten):
        return None if module.start_dim >= 1 else "it flattens the axis of examples"
    if kind is nn.Dropout:
        return None if module.p == 0 else "it draws randomness"
    wanted = {nn.Conv1d: 3, nn.Conv2d: 4, nn.ZeroPad1d: 3, nn.ZeroPad2d: 4}.get(kind, dims)
    if dims != wanted or (kind in _POOLINGS and dims < 3):
        return "its input has another number of axes than a batch has"
    if kind in _SAFE_MODULES or kind in _PARAMETERLESS or layers.layer_of(module) is not None:
        return None
    return f"{kind.__name__} is not known to treat every example by itself"


def _rehearse(network: FastNetwork, module: nn.Module, input_shape: tuple[int, ...], input_dtype: torch.dtype) -> None:
    """Compare the program with the module itself, one example at a time: results, and one gradient.

    Everything above says that they agree; this would notice if it were wrong.
    """
    own = copy.deepcopy(module).cpu().float()
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(5, *input_shape, generator=generator)
    if input_dtype == torch.int64:
        rows = min(layer.num_embeddings for layer in own.modules() if isinstance(layer, nn.Embedding))
        inputs = torch.randint(rows, (5, *input_shape), generator=generator)
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


def _avoid_first(axes: Any, dims: int) -> bool:
    axes = axes if isinstance(axes, (tuple, list)) else (axes,)
    return all(isinstance(axis, int) and axis % dims != 0 for axis in axes)
