"""Which steps of a program are taken together, because one pass over memory is faster than several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from mithridate.ensemble import layers, plain_ops
from mithridate.ensemble.conversion import Shapes
from mithridate.ensemble.stages import Stage


@dataclass(frozen=True)
class Fusion:
    """Which nodes of the program the kernels take together.

    Attributes:
        pools: other poolings, each with the activation before it.
        passed: nodes that another one takes care of.
        rectifiers: ReLUs that follow a GroupNorm at once, which may have applied them.
        stem: stages of convolution, activation and pooling from the input on, as one layer.
        stem_nodes: the nodes of the stem; the first is `stem_start`.
    """

    pools: dict[fx.Node, FusedPool] = field(default_factory=dict)
    passed: set[fx.Node] = field(default_factory=set)
    rectifiers: dict[fx.Node, layers.GroupNorm] = field(default_factory=dict)
    stem: layers.Stem | None = None
    stem_nodes: tuple[fx.Node, ...] = ()

    @property
    def stem_start(self) -> fx.Node | None:
        """The first convolution of the stem."""
        return self.stem_nodes[0] if self.stem_nodes else None


@dataclass(frozen=True)
class FusedPool:
    """An activation and the mean over windows side by side."""

    activation: str
    window: tuple[int, int]

    def __call__(self, values: Tensor, frame: layers.Frame) -> Tensor:
        """Both at once."""
        if frame.kernels is not None:
            return frame.kernels.activate_and_pool(values, frame.extents, self.window, self.activation)
        return plain_ops.ActivateAndPool.apply(values, self.window, self.activation)  # type: ignore[return-value]


def fusion_of(traced: fx.GraphModule, known: dict[str, layers.Layer], shapes: Shapes) -> Fusion:
    """What can be taken together in a program."""
    stem, stem_nodes = _stem_of(traced, known, shapes)
    fusion = Fusion(stem=stem, stem_nodes=stem_nodes)
    for node in traced.graph.nodes:
        if (norm := _rectified_norm(traced, node, known)) is not None:
            norm.precedes_relu = True
            fusion.rectifiers[node] = norm
        window = _window_of(traced, node)
        activation = _activation_of(traced, node.args[0]) if window else None
        if window is None or activation is None or len(shapes[node] or ()) != 4:
            continue
        fusion.passed.add(node.args[0])
        fusion.pools[node] = FusedPool(activation, window)
    return fusion


def _rectified_norm(traced: fx.GraphModule, node: fx.Node, known: dict[str, layers.Layer]) -> layers.GroupNorm | None:
    """The GroupNorm whose result nothing uses but this ReLU, if this is one."""
    if not _is_relu(traced, node) or not isinstance(before := node.args[0], fx.Node) or len(before.users) != 1:
        return None
    layer = known.get(str(before.target)) if before.op == "call_module" else None
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
