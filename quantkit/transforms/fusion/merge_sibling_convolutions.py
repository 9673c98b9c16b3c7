"""One wide convolution for several that read the same tensor.

concat(x * W1, x * W2)  ==  x * concat(W1, W2)     over output channels
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from quantkit.errors import RecipeError
from quantkit.ir.draft import Draft
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.rewrite import Outcome, Skip, free_name
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.ops.layers import channel_axis
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.ops.tensorflow.signatures import attribute
from quantkit.transforms.folding._channels import bias_of_layer
from quantkit.transforms.registry import transform

ACTIVATIONS = ("Relu", "Relu6", "Elu", "Selu", "LeakyRelu", "Sigmoid", "Tanh", "Softplus")
WEIGHTS_CHANNELS = 3
# Measured on Inception v3, whose blocks save 1 to 1.7 times what their split moves: 1 to 5 % slower in TensorFlow and
# ONNX Runtime, even in OpenVINO. A split that is not needed always pays.
WORTH_IT = 3.0


@transform
def merge_sibling_convolutions(graph: Graph, *, gain: float = WORTH_IT, across_activations: bool = False) -> Outcome:
    """Merge convolutions that read the same tensor in the same way into one, and split what it makes.

    The tensor is read once instead of several times, and one larger product keeps processors busier than several
    small ones; bias sums and activations behind them merge, too. What a concat takes up again in the same order is
    not split.

    Before:  x -> Conv2D(a) -> BiasAdd -> Relu -> left
             x -> Conv2D(b) -> BiasAdd -> Relu -> right
    After:   x -> Conv2D(a, b) -> BiasAdd -> Relu -> SplitV -> left, right

    Options:
        gain: merge where the bytes that are read once instead of again are at least so many times the bytes that
            splitting reads and writes (3.0); 0 merges wherever possible.
        across_activations: merge convolutions with different activations, which then stay behind the split (false).

    Skips when kernel, stride, padding, dilations or activation differ, when weights or bias are not constant, when
    a node waits for others, or when splitting would cost more than it saves.

    Example:
        merge_sibling_convolutions(gain=0)
        inputs: x
        outputs: y
        x = Placeholder[1x4x4x4]()
        u = Const[1x1x4x1]()
        v = Const[1x1x4x2]()
        one = Conv2D(x, u, padding=SAME, strides=[1, 1, 1, 1])
        two = Conv2D(x, v, padding=SAME, strides=[1, 1, 1, 1])
        axis = Const[int32](3)
        y = ConcatV2(one, two, axis, N=2)
    """
    if gain < 0:
        raise RecipeError(f"merge_sibling_convolutions: gain must not be negative, not {gain:g}")
    skips: list[Skip] = []
    changes: list[str] = []
    merged: list[_Merged] = []
    groups = _siblings(graph, across_activations, skips)
    shapes = infer_shapes(graph) if groups else {}
    for group in groups:
        one = _Merged.of(graph, group)
        saved, moved = one.bytes(shapes)
        if saved < gain * moved:
            reason = f"merging it with {_names(one.branches[1:])} saves {saved:,} bytes and costs {moved:,} to split"
            skips.append(Skip(f"{reason}; gain is {gain:g}", one.branches[0].name))
        else:
            merged.append(one)
            line = f"{_names(one.branches)} -> {one.name}: {saved:,} bytes less to read"
            changes.append(f"{line}, {moved:,} to split" if moved else line)
    return Outcome(_rewritten(graph, merged) if merged else graph, tuple(changes), tuple(skips))


@dataclass(frozen=True)
class _Branch:
    """A convolution, and the bias sum and activation that only it feeds.

    Attributes:
        layer: the Conv2D.
        weights: its constant weights.
        bias: the BiasAdd, Add or AddV2 of a constant behind it.
        biases: what that adds, (c,).
        activation: the activation behind that.
    """

    layer: Node
    weights: Tensor
    bias: Node | None
    biases: Array | None
    activation: Node | None

    @property
    def name(self) -> str:
        return self.layer.name

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(node for node in (self.layer, self.bias, self.activation) if node)

    @property
    def num_channels(self) -> int:
        return self.weights.shape[WEIGHTS_CHANNELS]

    @classmethod
    def of(cls, graph: Graph, layer: Node, across_activations: bool) -> "_Branch":
        weights = graph[layer.inputs[1].node].value
        bias = _only_reader(graph, layer, ("BiasAdd", "Add", "AddV2"))
        biases = None if bias is None else bias_of_layer(graph, layer, bias)
        bias = None if biases is None else bias
        activation = None if across_activations else _only_reader(graph, bias or layer, ACTIVATIONS)
        return cls(layer, weights, bias, biases, activation)

    @property
    def kind(self) -> tuple[object, ...]:
        """What siblings have in common behind the convolution."""
        found = self.activation
        return (self.bias is not None, found and found.op, found and _other_attrs(found))


def _only_reader(graph: Graph, node: Node, ops: Iterable[str]) -> Node | None:
    """The one reader of a node, if it is of these types, reads nothing else that is computed, and waits for nobody."""
    uses = graph.node_uses.get(node.name, ())
    if node.name in graph.endpoint_names or len(uses) != 1 or uses[0].slot < 0:
        return None
    reader = uses[0].node
    is_first = uses[0].slot == 0 or reader.op in ("Add", "AddV2")
    return reader if is_first and reader.op in ops and not reader.controls and reader.device == node.device else None


def _other_attrs(node: Node) -> tuple[tuple[str, Attr], ...]:
    """Attributes as a value; those that only speak of shapes are left out."""
    return tuple(sorted((key, value) for key, value in node.attrs.items() if not key.startswith("_")))


def _siblings(graph: Graph, across_activations: bool, skips: list[Skip]) -> list[list[_Branch]]:
    """Branches that can be merged, two or more of each, in file order; why others can not goes to ``skips``."""
    readers: dict[Edge, list[Node]] = {}
    for node in graph.nodes.values():
        if node.op == "Conv2D" and len(node.inputs) == 2:
            readers.setdefault(node.inputs[0], []).append(node)
    groups: list[list[_Branch]] = []
    for layers in readers.values():
        if len(layers) < 2:
            continue
        alike: dict[tuple[object, ...], list[_Branch]] = {}
        reasons: dict[str, str] = {}
        for layer in layers:
            reason = _reason_to_stay(graph, layer)
            if reason:
                reasons[layer.name] = reason
            else:
                branch = _Branch.of(graph, layer, across_activations)
                alike.setdefault((*_window(layer, branch.weights), *branch.kind), []).append(branch)
        num_left = len(layers) - len(reasons)
        for group in alike.values():
            if len(group) > 1:
                groups.append(group)
            elif num_left > 1:
                reasons[group[0].name] = f"no other convolution of {layers[0].inputs[0]} has its window and activation"
        skips.extend(Skip(reason, name) for name, reason in reasons.items())
    return groups


def _reason_to_stay(graph: Graph, layer: Node) -> str:
    edge = layer.inputs[1]
    weights = graph.constant_of(edge)
    if layer.name in graph.input_names:
        return "it is an input of the graph"
    if weights is None or edge.node in graph.input_names:
        return f"its weights {edge} are not constant"
    if len(weights.shape) != WEIGHTS_CHANNELS + 1 or channel_axis(layer, 4) is None:
        return "it is of no form that is merged"
    if layer.controls or graph[edge.node].controls:
        return f"it waits for {(*layer.controls, *graph[edge.node].controls)[0]}"
    return ""


def _window(layer: Node, weights: Tensor) -> tuple[object, ...]:
    """All that siblings have in common in the convolution itself."""
    names = ("strides", "padding", "explicit_paddings", "dilations", "data_format")
    return (weights.dtype, weights.shape[:3], layer.device, *(attribute(layer, name) for name in names))


@dataclass(frozen=True)
class _Merged:
    """Siblings, and how what they make is divided.

    Attributes:
        branches: in the order of their channels.
        pieces: branches that stay together, because one concat takes them up in this order.
        first: the branch that comes first in the file: the new nodes take its place.
        name: of the new convolution.
    """

    branches: tuple[_Branch, ...]
    pieces: tuple[tuple[_Branch, ...], ...]
    first: _Branch
    name: str

    @classmethod
    def of(cls, graph: Graph, group: Sequence[_Branch]) -> "_Merged":
        places = {branch.name: _place_in_concat(graph, branch) for branch in group}
        alone = [(branch,) for branch in group if places[branch.name] is None]
        joined = sorted((place, branch.name, branch) for branch in group if (place := places[branch.name]) is not None)
        pieces: list[tuple[_Branch, ...]] = list(alone)
        last: tuple[str, int] | None = None
        for place, _, branch in joined:
            if last == (place[0], place[1] - 1):
                pieces[-1] = (*pieces[-1], branch)
            else:
                pieces.append((branch,))
            last = place
        order = {branch.name: number for number, branch in enumerate(group)}
        pieces.sort(key=lambda piece: min(order[branch.name] for branch in piece))
        branches = tuple(branch for piece in pieces for branch in piece)
        return cls(branches, tuple(pieces), group[0], free_name(graph, f"{group[0].name}/merged"))

    def bytes(self, shapes: Mapping[Edge, Shape]) -> tuple[int, int]:
        """(read once instead of again, moved by the split), per picture, or per place where sizes are not known."""
        layer, weights = self.branches[0].layer, self.branches[0].weights
        given, made = (_places(layer, shapes.get(edge, UNKNOWN)) for edge in (layer.inputs[0], Edge(layer.name)))
        if given is None or made is None:
            stride = prod(attribute(layer, "strides"))
            given, made = stride, 1
        size = weights.dtype.num_bytes
        saved = (len(self.branches) - 1) * given * weights.shape[2] * size
        moved = 2 * made * sum(branch.num_channels for branch in self.branches) * size
        return saved, moved if len(self.pieces) > 1 else 0


def _places(layer: Node, shape: Shape) -> int | None:
    """Pixels of one picture of a tensor; None: not known."""
    if shape.dims is None:
        return None
    sizes = [size for axis, size in enumerate(shape.dims) if axis not in (0, channel_axis(layer, 4))]
    return None if None in sizes else prod(size for size in sizes if size is not None)


def _place_in_concat(graph: Graph, branch: _Branch) -> tuple[str, int] | None:
    """The concat over channels that alone reads the branch, and the slot of the branch there."""
    end = branch.nodes[-1]
    uses = graph.node_uses.get(end.name, ())
    if end.name in graph.endpoint_names or len(uses) != 1 or uses[0].node.op not in ("Concat", "ConcatV2"):
        return None
    joined, slot = uses[0]
    axis = graph.constant_of(joined.inputs[_axis_slot(joined)])
    if slot < 0 or axis is None or axis.num_elements != 1:
        return None
    return (joined.name, slot) if int(axis.array.reshape(())) % 4 == channel_axis(branch.layer, 4) else None


def _axis_slot(joined: Node) -> int:
    return 0 if joined.op == "Concat" else len(joined.inputs) - 1


def _rewritten(graph: Graph, merged: Sequence[_Merged]) -> Graph:
    draft = Draft(graph)
    repeated: dict[str, set[int]] = {}
    for one in merged:
        _merge(graph, one, draft, repeated)
    made = draft.graph()
    made = made.with_nodes(_rejoined(node, repeated.get(node.name, set())) for node in made.nodes.values())
    before = [node for one in merged for branch in one.branches for node in branch.nodes]
    before.extend(graph[name] for name in repeated)
    unread = {edge.node for node in before for edge in node.inputs} - graph.endpoint_names
    for node in made.nodes.values():
        unread.difference_update(edge.node for edge in node.inputs)
        unread.difference_update(node.controls)
    return made.with_nodes(node for node in made.nodes.values() if not (node.is_constant and node.name in unread))


def _merge(graph: Graph, one: _Merged, draft: Draft, repeated: dict[str, set[int]]) -> None:
    """Put the wide nodes where the first sibling stands, and redirect the readers of all of them.

    The slots of concats that come to read a piece once more go to ``repeated``.
    """
    made = _wide(graph, one)
    end = made[-1].name
    edges = [Edge(end)]
    if len(one.pieces) > 1:
        made.extend(_split(graph, one, edges[0]))
        edges = [Edge(made[-1].name, port) for port in range(len(one.pieces))]
    for branch in one.branches:
        draft.remove(*(node.name for node in branch.nodes))
        for node in branch.nodes:
            if node.name not in graph.endpoint_names:
                draft.redirect_controls(node.name, end)
    for piece, edge in zip(one.pieces, edges, strict=True):
        for branch in piece:
            name = branch.nodes[-1].name
            if name in graph.endpoint_names:
                made.append(Node(name, "Identity", (edge,), attrs={"T": branch.weights.dtype}, device=made[0].device))
            else:
                draft.redirect(name, edge)
        for branch in piece[1:]:
            reader, slot = graph.node_uses[branch.nodes[-1].name][0]
            repeated.setdefault(reader.name, set()).add(slot)
    draft.replace(one.first.name, *made)


def _wide(graph: Graph, one: _Merged) -> list[Node]:
    """The new constants, convolution, bias sum and activation."""
    weights = constant(free_name(graph, f"{one.name}/weights"), _joined([branch.weights for branch in one.branches]))
    layer = one.first.layer.with_(name=one.name).with_input(1, Edge(weights.name))
    nodes = [weights, layer]
    if one.first.bias:
        biases = [Tensor.of(branch.biases, weights.value.dtype) for branch in one.branches if branch.biases is not None]
        values = constant(free_name(graph, f"{one.name}/bias"), _joined(biases))
        attrs = {"T": layer.attrs.get("T"), "data_format": layer.attrs.get("data_format")}
        bias = Node(free_name(graph, f"{one.name}/sum"), "BiasAdd", device=layer.device).with_attrs(**attrs)
        nodes += [values, bias.with_(inputs=(Edge(layer.name), Edge(values.name)))]
    if one.first.activation:
        activation = one.first.activation.with_(name=free_name(graph, f"{one.name}/activation"))
        nodes.append(activation.with_input(0, Edge(nodes[-1].name)))
    return [node.with_attrs(_output_shapes=None) for node in nodes]


def _split(graph: Graph, one: _Merged, source: Edge) -> list[Node]:
    """The nodes that divide the wide tensor into its pieces."""
    sizes = [sum(branch.num_channels for branch in piece) for piece in one.pieces]
    values = {"sizes": np.array(sizes, np.int32), "axis": np.array(channel_axis(one.first.layer, 4), np.int32)}
    operands = [constant(free_name(graph, f"{one.name}/{word}"), array) for word, array in values.items()]
    attrs: dict[str, Attr] = {"T": one.first.weights.dtype, "Tlen": DType.INT32, "num_split": len(sizes)}
    inputs = (source, *(Edge(node.name) for node in operands))
    name = free_name(graph, f"{one.name}/split")
    return [*operands, Node(name, "SplitV", inputs, attrs=attrs, device=one.first.layer.device)]


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """Constants side by side along their last dimension, put together when they are read."""

    def load() -> Array:
        return np.concatenate([tensor.array for tensor in tensors], axis=-1)

    first = tensors[0]
    return Tensor(first.dtype, (*first.shape[:-1], sum(tensor.shape[-1] for tensor in tensors)), load)


def _rejoined(node: Node, repeated: set[int]) -> Node:
    """A concat without the slots that read a piece once more; of one tensor, there is nothing to join."""
    if not repeated:
        return node
    inputs = tuple(edge for slot, edge in enumerate(node.inputs) if slot not in repeated)
    if len(inputs) > 2:
        return node.with_(inputs=inputs).with_attrs(N=len(inputs) - 1)
    source = inputs[1 - _axis_slot(node.with_(inputs=inputs))]
    return node.with_(op="Identity", inputs=(source,), attrs={"T": node.attrs.get("T", DType.FLOAT)})


def _names(branches: Iterable[_Branch]) -> str:
    return ", ".join(branch.name for branch in branches)
