"""From a user's module to a program that is known to treat every example by itself.

The module is traced once (`torch.fx`). What might mix examples is not on the lists below, and is refused; the module
then goes the general way (`general`). Last come the steps that kernels take together.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from mithridate.training import layers
from mithridate.training.kernels import MOST_PLACES, Chain, Dense, Stage, cpu


class NotConvertible(Exception):
    """A module has a part that the fast path does not know; the message says which."""


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

Shapes = dict[fx.Node, tuple[int, ...] | None]


def trace(module: nn.Module) -> fx.GraphModule:
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


def layers_of(traced: fx.GraphModule) -> dict[str, layers.Layer]:
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


def last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
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


def call(traced: fx.GraphModule, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    """Run one step of the program on the values of the steps before it."""
    arguments = map_arg(node.args, values.__getitem__)
    options = map_arg(node.kwargs, values.__getitem__)
    if node.op == "call_module":
        return traced.get_submodule(str(node.target))(*arguments, **options)
    if node.op == "call_method":
        return getattr(arguments[0], str(node.target))(*arguments[1:], **options)
    return node.target(*arguments, **options)  # type: ignore[operator]


def checked_shapes(traced: fx.GraphModule, input_shape: tuple[int, ...], input_dtype: torch.dtype) -> Shapes:
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


def _shapes(traced: fx.GraphModule, input_shape: tuple[int, ...], input_dtype: torch.dtype, examples: int) -> Shapes:
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
                    values[node] = call(traced, node, values)
            except (RuntimeError, TypeError, ValueError, IndexError) as error:
                raise NotConvertible(f"{node.target} in its forward method fails: {error}") from error
    return {node: tuple(value.shape) if isinstance(value, Tensor) else None for node, value in values.items()}


def _why_unsafe(traced: fx.GraphModule, node: fx.Node, shapes: Shapes) -> str | None:
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


def _why_size_unsafe(node: fx.Node, shapes: Shapes) -> str | None:
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


def _avoid_first(axes: Any, dims: int) -> bool:
    axes = axes if isinstance(axes, (tuple, list)) else (axes,)
    return all(isinstance(axis, int) and axis % dims != 0 for axis in axes)


# --- which steps are taken together, because one pass over memory is faster than several ------------------------------


@dataclass(frozen=True)
class Fusion:
    """Which nodes of the program the kernels take together.

    Attributes:
        pools: other poolings, each with the activation before it.
        passed: nodes that another one takes care of.
        followers: additions and ReLUs after a GroupNorm that may have applied them, with the value that then stays.
        addends: GroupNorms that are added to something which is known before them, and what that is.
        stem: stages of convolution, activation and pooling from the input on, as one layer.
        stem_nodes: the nodes of the stem; the first is its first convolution.
        chain: the whole program, where it is a stem and linear layers after it.
    """

    pools: dict[fx.Node, FusedPool] = field(default_factory=dict)
    passed: set[fx.Node] = field(default_factory=set)
    followers: dict[fx.Node, Follower] = field(default_factory=dict)
    addends: dict[fx.Node, fx.Node] = field(default_factory=dict)
    stem: layers.Stem | None = None
    stem_nodes: tuple[fx.Node, ...] = ()
    chain: Chain | None = None


@dataclass(frozen=True)
class Follower:
    """A step after a GroupNorm that has nothing left to do where the norm has completed it.

    Attributes:
        norm: the layer.
        source: the node whose value it then has, the norm itself or the addition after it.
    """

    norm: layers.GroupNorm
    source: fx.Node


@dataclass(frozen=True)
class FusedPool:
    """An activation and the mean over windows side by side."""

    activation: str
    window: tuple[int, int]

    def __call__(self, values: Tensor, frame: layers.Layout) -> Tensor:
        """Both at once."""
        if frame.kernels is not None:
            return frame.kernels.activate_and_pool(values, frame.extents, self.window, self.activation)
        return cpu.ActivateAndPool.apply(values, self.window, self.activation)  # type: ignore[return-value]


def fusion_of(traced: fx.GraphModule, known: dict[str, layers.Layer], shapes: Shapes) -> Fusion:
    """What can be taken together in a program."""
    stem, stem_nodes = _stem_of(traced, known, shapes)
    chain = None if stem is None else _chain_of(traced, known, shapes, stem, stem_nodes[-1])
    fusion = Fusion(stem=stem, stem_nodes=stem_nodes, chain=chain)
    for node in traced.graph.nodes:
        _follow_norms(traced, node, known, shapes, fusion)
        window = _window_of(traced, node, shapes)
        activation = _activation_of(traced, node.args[0], only_user=True) if window else None
        if window is None or activation is None or len(shapes[node] or ()) != 4:
            continue
        fusion.passed.add(node.args[0])
        fusion.pools[node] = FusedPool(activation, window)
    return fusion


def _follow_norms(
    traced: fx.GraphModule, node: fx.Node, known: dict[str, layers.Layer], shapes: Shapes, fusion: Fusion
) -> None:
    """Note a step as a follower of a GroupNorm: the addition of something that is known by then, or a ReLU."""
    if (pair := _operands(node, shapes)) is not None:
        for at, other in (pair, pair[::-1]):
            norm, addend = _norm_at(at, known), _known_before(traced, other, at)
            if norm is not None and addend is not None:
                fusion.addends[at] = addend
                fusion.followers[node] = Follower(norm, at)
    elif (
        _activation_of(traced, node) == "relu"
        and isinstance(before := node.args[0], fx.Node)
        and len(before.users) == 1
    ):
        added = fusion.followers.get(before)
        norm = _norm_at(before, known) if added is None else added.norm
        if norm is not None:
            norm.precedes_relu = True
            fusion.followers[node] = Follower(norm, before)


def _operands(node: fx.Node, shapes: Shapes) -> tuple[fx.Node, fx.Node] | None:
    """What a plain addition of two tensors of one shape adds."""
    if node.op != "call_function" or node.target not in (operator.add, torch.add) or node.kwargs or len(node.args) != 2:
        return None
    one, two = node.args
    if not isinstance(one, fx.Node) or not isinstance(two, fx.Node) or one is two or shapes[one] != shapes[two]:
        return None
    return one, two


def _known_before(traced: fx.GraphModule, value: fx.Node, step: fx.Node) -> fx.Node | None:
    """The node that has the same value and is computed before a step, or None."""
    order = list(traced.graph.nodes)
    while order.index(value) > order.index(step):
        is_same = value.op == "call_module" and type(traced.get_submodule(str(value.target))) is nn.Identity
        if not is_same or not isinstance(before := value.args[0], fx.Node):
            return None
        value = before
    return value


def _norm_at(node: fx.Node, known: dict[str, layers.Layer]) -> layers.GroupNorm | None:
    """The GroupNorm that a node is, if only one step uses its result."""
    layer = known.get(str(node.target)) if node.op == "call_module" and len(node.users) == 1 else None
    return layer if isinstance(layer, layers.GroupNorm) else None


def _stem_of(
    traced: fx.GraphModule, known: dict[str, layers.Layer], shapes: Shapes
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
    traced: fx.GraphModule, before: fx.Node, known: dict[str, layers.Layer], shapes: Shapes
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
    activation, window = _activation_of(traced, active, only_user=True), _window_of(traced, pooling, shapes)
    images, outputs = shapes.get(before), shapes.get(convolution)
    if not isinstance(layer, layers.Conv) or activation is None or window is None or not images or not outputs:
        return None
    stage = layer.stage(images[1:], outputs[1], activation, window)
    return None if stage is None else (stage, members)


def _chain_of(
    traced: fx.GraphModule, known: dict[str, layers.Layer], shapes: Shapes, stem: layers.Stem, last: fx.Node
) -> Chain | None:
    """The whole program, if after the last node of the stem it flattens and has linear layers with activations."""
    names, found = list(stem.names), list[Dense]()
    before, node = last, _only_user(last)
    if node is not None and _flattens(traced, node, shapes[before], shapes[node]):
        before, node = node, _only_user(node)
    while node is not None and node.op == "call_module" and isinstance(known.get(str(node.target)), layers.Linear):
        size, outputs, following = shapes[before], shapes[node], _only_user(node)
        if not size or not outputs or len(size) != 2 or following is None or len(known[str(node.target)].names) != 2:
            return None
        names += [f"{node.target}.weight", f"{node.target}.bias"]
        if following.op == "output":
            return Chain(tuple(names), stem.stages, (*found, Dense(size[1], outputs[1], None)))
        activation = _activation_of(traced, following, only_user=True)
        if activation is None:
            return None
        found.append(Dense(size[1], outputs[1], activation))
        before, node = following, _only_user(following)
    return None


def _only_user(node: fx.Node) -> fx.Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 else None


def _flattens(
    traced: fx.GraphModule, node: fx.Node, before: tuple[int, ...] | None, after: tuple[int, ...] | None
) -> bool:
    """Whether a step puts all numbers of an example into one row, in their order."""
    is_module = node.op == "call_module" and type(traced.get_submodule(str(node.target))) is nn.Flatten
    if not before or not after or not (is_module or node.target in _RESHAPES):
        return False
    return after == (before[0], math.prod(before[1:]))


def _window_of(traced: fx.GraphModule, node: fx.Node, shapes: Shapes) -> tuple[int, int] | None:
    """The window of a pooling by plain means over windows side by side, else None."""
    pooling = traced.get_submodule(str(node.target)) if node.op == "call_module" else None
    if type(pooling) is nn.AdaptiveAvgPool2d:
        before = node.args[0]
        return _whole_image(shapes.get(before), shapes.get(node)) if isinstance(before, fx.Node) else None
    if type(pooling) is not nn.AvgPool2d or pooling.ceil_mode or pooling.divisor_override is not None:
        return None
    window, stride, padding = (_pair(value) for value in (pooling.kernel_size, pooling.stride, pooling.padding))
    return window if stride == window and padding == (0, 0) else None


def _whole_image(before: tuple[int, ...] | None, after: tuple[int, ...] | None) -> tuple[int, int] | None:
    """The window of a mean over whole images, where they are as small as other windows are."""
    if not before or not after or len(before) != 4 or after[2:] != (1, 1) or math.prod(before[2:]) > MOST_PLACES:
        return None
    return before[2], before[3]


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def is_tanh(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a step is the hyperbolic tangent, however it is written."""
    if node.op == "call_module":
        return type(traced.get_submodule(str(node.target))) is nn.Tanh
    return node.target in (torch.tanh, F.tanh, "tanh")


def _activation_of(traced: fx.GraphModule, node: fx.Node, *, only_user: bool = False) -> str | None:
    """The name that `kernels` has for an activation, else None; with `only_user`, None where others use it, too."""
    if only_user and len(node.users) != 1:
        return None
    if node.op == "call_module":
        return {nn.Tanh: "tanh", nn.ReLU: "relu"}.get(type(traced.get_submodule(str(node.target))))
    return {torch.tanh: "tanh", F.tanh: "tanh", torch.relu: "relu", F.relu: "relu"}.get(node.target)  # type: ignore[arg-type]
