"""Merge convolutions of the same input into one convolution with more output channels.

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
from quantkit.ops.semantics import ACTIVATION_OPS
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.ops.tensorflow.signatures import attribute
from quantkit.transforms.folding._channels import bias_of_layer
from quantkit.transforms.registry import transform

WEIGHTS_CHANNELS = 3
# On Inception v3, whose blocks save 1 to 1.7 times the bytes that the split moves, merging is
# 1 to 5 % slower in TensorFlow and ONNX Runtime, and equally fast in OpenVINO. A merge without a
# split is always faster.
MIN_GAIN = 3.0


@transform
def merge_sibling_convolutions(graph: Graph, *, gain: float = MIN_GAIN, across_activations: bool = False) -> Outcome:
    """Merge convolutions of the same input and the same window into one, and split its output.

    The input is read once instead of several times, and one large matrix product uses the processor
    better than several small ones. Biases and activations after the convolutions are merged too.
    Outputs that a concat joins in the same order are not split.

    Before:  x -> Conv2D(a) -> BiasAdd -> Relu -> left
             x -> Conv2D(b) -> BiasAdd -> Relu -> right
    After:   x -> Conv2D(a, b) -> BiasAdd -> Relu -> SplitV -> left, right

    Options:
        gain: minimum ratio of the bytes that are no longer read again to the bytes that the split
            moves (default: 3.0); 0 merges always.
        across_activations: also merge convolutions with different activations, which then stay
            after the split (default: false).

    Skips if kernel size, stride, padding, dilations or activation differ, if weights or bias are
    not constant, if a node has control dependencies, or if the split costs more than the merge
    saves.

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
    merges: list[_Merge] = []
    groups = _find_siblings(graph, across_activations, skips)
    shapes = infer_shapes(graph) if groups else {}
    for group in groups:
        merge = _Merge.of(graph, group)
        saved, moved = merge.count_bytes(shapes)
        if saved < gain * moved:
            reason = f"a merge with {_names(merge.branches[1:])} saves {saved:,} bytes, but its split moves {moved:,}"
            skips.append(Skip(f"{reason}; gain is {gain:g}", merge.branches[0].name))
        else:
            merges.append(merge)
            line = f"{_names(merge.branches)} -> {merge.name}: saves {saved:,} bytes of input reads"
            changes.append(f"{line}, the split moves {moved:,}" if moved else line)
    return Outcome(_apply(graph, merges) if merges else graph, tuple(changes), tuple(skips))


@dataclass(frozen=True)
class _Branch:
    """Convolution with its bias and activation, which have no other consumers between them.

    Attributes:
        layer: Conv2D.
        weights: constant weights.
        bias: BiasAdd, Add or AddV2 of a constant after the layer.
        biases: constant that ``bias`` adds, (c,).
        activation: activation after layer and bias.
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
        bias = _only_consumer(graph, layer, ("BiasAdd", "Add", "AddV2"))
        biases = None if bias is None else bias_of_layer(graph, layer, bias)
        bias = None if biases is None else bias
        activation = None if across_activations else _only_consumer(graph, bias or layer, ACTIVATION_OPS)
        return cls(layer, weights, bias, biases, activation)

    @property
    def kind(self) -> tuple[object, ...]:
        """Key of bias and activation that is equal for siblings."""
        activation = self.activation
        return (self.bias is not None, activation and activation.op, activation and _attributes(activation))


def _only_consumer(graph: Graph, node: Node, ops: Iterable[str]) -> Node | None:
    """Return the only consumer of a node if its type is in ``ops`` and it can be merged."""
    uses = graph.node_uses.get(node.name, ())
    if node.name in graph.endpoint_names or len(uses) != 1 or uses[0].slot < 0:
        return None
    consumer = uses[0].node
    if consumer.op not in ops or consumer.controls or consumer.device != node.device:
        return None
    return consumer if uses[0].slot == 0 or consumer.op in ("Add", "AddV2") else None


def _attributes(node: Node) -> tuple[tuple[str, Attr], ...]:
    """Return the attributes as a hashable value, without annotations such as ``_output_shapes``."""
    return tuple(sorted((key, value) for key, value in node.attrs.items() if not key.startswith("_")))


def _find_siblings(graph: Graph, across_activations: bool, skips: list[Skip]) -> list[list[_Branch]]:
    """Return groups of branches that can be merged, in file order; add others to ``skips``."""
    convolutions: dict[Edge, list[Node]] = {}
    for node in graph.nodes.values():
        if node.op == "Conv2D" and len(node.inputs) == 2:
            convolutions.setdefault(node.inputs[0], []).append(node)
    groups: list[list[_Branch]] = []
    for layers in convolutions.values():
        if len(layers) < 2:
            continue
        groups_by_kind: dict[tuple[object, ...], list[_Branch]] = {}
        reasons: dict[str, str] = {}
        for layer in layers:
            reason = _reason_to_stay(graph, layer)
            if reason:
                reasons[layer.name] = reason
            else:
                branch = _Branch.of(graph, layer, across_activations)
                groups_by_kind.setdefault((*_window(layer, branch.weights), *branch.kind), []).append(branch)
        num_mergeable = len(layers) - len(reasons)
        for group in groups_by_kind.values():
            if len(group) > 1:
                groups.append(group)
            elif num_mergeable > 1:
                reasons[group[0].name] = f"no convolution of {layers[0].inputs[0]} has the same window and activation"
        skips.extend(Skip(reason, name) for name, reason in reasons.items())
    return groups


def _reason_to_stay(graph: Graph, layer: Node) -> str:
    edge = layer.inputs[1]
    weights = graph.constant_of(edge)
    if layer.name in graph.input_names:
        return "the node is a graph input"
    if weights is None or edge.node in graph.input_names:
        return f"weights {edge} are not constant"
    if len(weights.shape) != WEIGHTS_CHANNELS + 1 or channel_axis(layer, 4) is None:
        return "unsupported data_format or rank of the weights"
    if layer.controls or graph[edge.node].controls:
        return f"control dependency on {(*layer.controls, *graph[edge.node].controls)[0]}"
    return ""


def _window(layer: Node, weights: Tensor) -> tuple[object, ...]:
    """Return a key of the convolution that is equal for siblings."""
    names = ("strides", "padding", "explicit_paddings", "dilations", "data_format")
    return (weights.dtype, weights.shape[:3], layer.device, *(attribute(layer, name) for name in names))


@dataclass(frozen=True)
class _Merge:
    """Siblings, and the split of the merged output.

    Attributes:
        branches: branches in the order of their channels.
        pieces: groups of branches that are not split, because one concat joins them in this order.
        first: first branch in the file, which the new nodes replace.
        name: name of the new convolution.
    """

    branches: tuple[_Branch, ...]
    pieces: tuple[tuple[_Branch, ...], ...]
    first: _Branch
    name: str

    @classmethod
    def of(cls, graph: Graph, group: Sequence[_Branch]) -> "_Merge":
        slots = {branch.name: _slot_in_concat(graph, branch) for branch in group}
        pieces: list[tuple[_Branch, ...]] = [(branch,) for branch in group if slots[branch.name] is None]
        in_concat = sorted((slot, branch.name, branch) for branch in group if (slot := slots[branch.name]) is not None)
        previous: tuple[str, int] | None = None
        for (concat, index), _, branch in in_concat:
            if previous == (concat, index - 1):
                pieces[-1] = (*pieces[-1], branch)
            else:
                pieces.append((branch,))
            previous = (concat, index)
        order = {branch.name: number for number, branch in enumerate(group)}
        pieces.sort(key=lambda piece: min(order[branch.name] for branch in piece))
        branches = tuple(branch for piece in pieces for branch in piece)
        return cls(branches, tuple(pieces), group[0], free_name(graph, f"{group[0].name}/merged"))

    def count_bytes(self, shapes: Mapping[Edge, Shape]) -> tuple[int, int]:
        """Return (saved bytes of input reads, bytes that the split moves), per image.

        Per output position instead of per image if the sizes are unknown.
        """
        layer, weights = self.branches[0].layer, self.branches[0].weights
        edges = (layer.inputs[0], Edge(layer.name))
        num_inputs, num_outputs = (_num_positions(layer, shapes.get(edge, UNKNOWN)) for edge in edges)
        if num_inputs is None or num_outputs is None:
            num_inputs, num_outputs = prod(attribute(layer, "strides")), 1
        size = weights.dtype.num_bytes
        saved = (len(self.branches) - 1) * num_inputs * weights.shape[2] * size
        moved = 2 * num_outputs * sum(branch.num_channels for branch in self.branches) * size
        return saved, moved if len(self.pieces) > 1 else 0


def _num_positions(layer: Node, shape: Shape) -> int | None:
    """Return height times width of a tensor; None if unknown."""
    if shape.dims is None:
        return None
    sizes = [size for axis, size in enumerate(shape.dims) if axis not in (0, channel_axis(layer, 4))]
    return None if None in sizes else prod(size for size in sizes if size is not None)


def _slot_in_concat(graph: Graph, branch: _Branch) -> tuple[str, int] | None:
    """Return (concat name, input index) if the only consumer is a concat over channels."""
    end = branch.nodes[-1]
    uses = graph.node_uses.get(end.name, ())
    if end.name in graph.endpoint_names or len(uses) != 1 or uses[0].node.op not in ("Concat", "ConcatV2"):
        return None
    concat, slot = uses[0]
    axis = graph.constant_of(concat.inputs[_axis_slot(concat)])
    if slot < 0 or axis is None or axis.num_elements != 1:
        return None
    return (concat.name, slot) if int(axis.array.reshape(())) % 4 == channel_axis(branch.layer, 4) else None


def _axis_slot(concat: Node) -> int:
    return 0 if concat.op == "Concat" else len(concat.inputs) - 1


def _apply(graph: Graph, merges: Sequence[_Merge]) -> Graph:
    draft = Draft(graph)
    repeated: dict[str, set[int]] = {}
    for merge in merges:
        _replace_branches(graph, merge, draft, repeated)
    after = draft.graph()
    after = after.with_nodes(_remove_inputs(node, repeated.get(node.name, set())) for node in after.nodes.values())
    old_nodes = [node for merge in merges for branch in merge.branches for node in branch.nodes]
    old_nodes.extend(graph[name] for name in repeated)
    unused = {edge.node for node in old_nodes for edge in node.inputs} - graph.endpoint_names
    for node in after.nodes.values():
        unused.difference_update(edge.node for edge in node.inputs)
        unused.difference_update(node.controls)
    return after.with_nodes(node for node in after.nodes.values() if not (node.is_constant and node.name in unused))


def _replace_branches(graph: Graph, merge: _Merge, draft: Draft, repeated: dict[str, set[int]]) -> None:
    """Replace the first sibling by the merged nodes, and redirect the consumers of all siblings.

    Concat inputs that would repeat a piece are added to ``repeated``, by concat name.
    """
    nodes = _merged_nodes(graph, merge)
    end = nodes[-1].name
    edges = [Edge(end)]
    if len(merge.pieces) > 1:
        nodes.extend(_split(graph, merge, edges[0]))
        edges = [Edge(nodes[-1].name, port) for port in range(len(merge.pieces))]
    for branch in merge.branches:
        draft.remove(*(node.name for node in branch.nodes))
        for node in branch.nodes:
            if node.name not in graph.endpoint_names:
                draft.redirect_controls(node.name, end)
    for piece, edge in zip(merge.pieces, edges, strict=True):
        for branch in piece:
            name = branch.nodes[-1].name
            if name in graph.endpoint_names:
                nodes.append(Node(name, "Identity", (edge,), attrs={"T": branch.weights.dtype}, device=nodes[0].device))
            else:
                draft.redirect(name, edge)
        for branch in piece[1:]:
            concat, slot = graph.node_uses[branch.nodes[-1].name][0]
            repeated.setdefault(concat.name, set()).add(slot)
    draft.replace(merge.first.name, *nodes)


def _merged_nodes(graph: Graph, merge: _Merge) -> list[Node]:
    """Return the new constants, convolution, BiasAdd and activation."""
    tensors = [branch.weights for branch in merge.branches]
    weights = constant(free_name(graph, f"{merge.name}/weights"), _concatenate(tensors))
    layer = merge.first.layer.with_(name=merge.name).with_input(1, Edge(weights.name))
    nodes = [weights, layer]
    if merge.first.bias:
        dtype = weights.value.dtype
        biases = [Tensor.of(branch.biases, dtype) for branch in merge.branches if branch.biases is not None]
        values = constant(free_name(graph, f"{merge.name}/bias"), _concatenate(biases))
        attrs = {"T": layer.attrs.get("T"), "data_format": layer.attrs.get("data_format")}
        bias = Node(free_name(graph, f"{merge.name}/sum"), "BiasAdd", device=layer.device).with_attrs(**attrs)
        nodes += [values, bias.with_(inputs=(Edge(layer.name), Edge(values.name)))]
    if merge.first.activation:
        activation = merge.first.activation.with_(name=free_name(graph, f"{merge.name}/activation"))
        nodes.append(activation.with_input(0, Edge(nodes[-1].name)))
    return [node.with_attrs(_output_shapes=None) for node in nodes]


def _split(graph: Graph, merge: _Merge, source: Edge) -> list[Node]:
    """Return the nodes that split the merged output into its pieces."""
    sizes = [sum(branch.num_channels for branch in piece) for piece in merge.pieces]
    values = {"sizes": np.array(sizes, np.int32), "axis": np.array(channel_axis(merge.first.layer, 4), np.int32)}
    operands = [constant(free_name(graph, f"{merge.name}/{key}"), array) for key, array in values.items()]
    attrs: dict[str, Attr] = {"T": merge.first.weights.dtype, "Tlen": DType.INT32, "num_split": len(sizes)}
    inputs = (source, *(Edge(node.name) for node in operands))
    name = free_name(graph, f"{merge.name}/split")
    return [*operands, Node(name, "SplitV", inputs, attrs=attrs, device=merge.first.layer.device)]


def _concatenate(tensors: Sequence[Tensor]) -> Tensor:
    """Return constants concatenated along the last dimension, computed on access."""

    def load() -> Array:
        return np.concatenate([tensor.array for tensor in tensors], axis=-1)

    first = tensors[0]
    return Tensor(first.dtype, (*first.shape[:-1], sum(tensor.shape[-1] for tensor in tensors)), load)


def _remove_inputs(node: Node, repeated: set[int]) -> Node:
    """Return a concat without its repeated inputs, or an Identity if a single input remains."""
    if not repeated:
        return node
    inputs = tuple(edge for slot, edge in enumerate(node.inputs) if slot not in repeated)
    if len(inputs) > 2:
        return node.with_(inputs=inputs).with_attrs(N=len(inputs) - 1)
    source = inputs[1 - _axis_slot(node.with_(inputs=inputs))]
    return node.with_(op="Identity", inputs=(source,), attrs={"T": node.attrs.get("T", DType.FLOAT)})


def _names(branches: Iterable[_Branch]) -> str:
    return ", ".join(branch.name for branch in branches)
