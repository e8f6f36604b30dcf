"""Which steps of a program are taken together, because one pass over memory is faster than several."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from mithridate.training import layers
from mithridate.training.conversion import Shapes
from mithridate.training.kernels import cpu as plain_ops
from mithridate.training.kernels.stage import Stage


@dataclass(frozen=True)
class Fusion:
    """Which nodes of the program the kernels take together.

    Attributes:
        pools: other poolings, each with the activation before it.
        passed: nodes that another one takes care of.
        followers: additions and ReLUs after a GroupNorm that may have applied them, with the value that then stays.
        addends: GroupNorms that are added to something which is known before them, and what that is.
        stem: stages of convolution, activation and pooling from the input on, as one layer.
        stem_nodes: the nodes of the stem; the first is `stem_start`.
    """

    pools: dict[fx.Node, FusedPool] = field(default_factory=dict)
    passed: set[fx.Node] = field(default_factory=set)
    followers: dict[fx.Node, Follower] = field(default_factory=dict)
    addends: dict[fx.Node, fx.Node] = field(default_factory=dict)
    stem: layers.Stem | None = None
    stem_nodes: tuple[fx.Node, ...] = ()

    @property
    def stem_start(self) -> fx.Node | None:
        """The first convolution of the stem."""
        return self.stem_nodes[0] if self.stem_nodes else None


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
        return plain_ops.ActivateAndPool.apply(values, self.window, self.activation)  # type: ignore[return-value]


def fusion_of(traced: fx.GraphModule, known: dict[str, layers.Layer], shapes: Shapes) -> Fusion:
    """What can be taken together in a program."""
    stem, stem_nodes = _stem_of(traced, known, shapes)
    fusion = Fusion(stem=stem, stem_nodes=stem_nodes)
    for node in traced.graph.nodes:
        _follow_norms(traced, node, known, shapes, fusion)
        window = _window_of(traced, node)
        activation = _activation_of(traced, node.args[0]) if window else None
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
    elif _is_relu(traced, node) and isinstance(before := node.args[0], fx.Node) and len(before.users) == 1:
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


def _is_relu(traced: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return type(traced.get_submodule(str(node.target))) is nn.ReLU
    return node.op == "call_function" and node.target in (torch.relu, F.relu)


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


def is_tanh(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a step is the hyperbolic tangent, however it is written."""
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
