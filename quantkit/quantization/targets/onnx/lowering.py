"""Replacement of float ONNX layers by other layers with an int8 kernel.

    ConvTranspose, stride 1                ->  Conv with the reversed kernel
    ConvTranspose, another stride          ->  Conv -> DepthToSpace -> Slice, see `transposed_convolutions`
    Einsum of one contraction              ->  MatMul between Transpose and Reshape

All forms compute the same products and sums. `restore_layers` reverses the second one for layers that stay float.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import NewNodes, free_name, remove_unused
from quantkit.ir.tensor import Array, DType
from quantkit.ops.layers import WEIGHTS_INDEX
from quantkit.ops.roles import find_roles
from quantkit.ops.roles.onnx import BIAS_INDEX
from quantkit.quantization.targets.transposed_convolutions import count_taps, divide_kernel, join_kernel

# Ops between the convolution of `_split_positions` and its output, also after `move_channels_last`.
MOVES = frozenset({"DepthToSpace", "Transpose", "Reshape", "Slice"})


def lower_layers(graph: Graph, *, least_split: float, least_overlap: float) -> Graph:
    """Return the ONNX graph with layers that have an int8 kernel in ONNX Runtime and in OpenVINO.

    Args:
        graph: float ONNX graph.
        least_split: number of input channels from which a transposed convolution whose kernel is as large as its
            stride becomes a convolution and a DepthToSpace.
        least_overlap: the same for larger kernels.
    """
    rules: Mapping[str, Callable[[Graph, Node], list[Node]]] = {
        "ConvTranspose": partial(_lower_transposed_convolution, least=(least_split, least_overlap)),
        "Einsum": _lower_einsum,
    }
    draft = Draft(graph)
    for node in graph.nodes.values():
        has_operands = len(node.inputs) > WEIGHTS_INDEX and all(edge.node for edge in node.inputs[:2])
        if node.op in rules and has_operands and (nodes := rules[node.op](graph, node)):
            draft.replace(node.name, *nodes)
    return _separate_weights(remove_unused(graph, draft.graph()))


def _separate_weights(graph: Graph) -> Graph:
    """Return the graph with a copy of weights that layers share along other channel axes: each has its own scales."""
    roles, draft = find_roles(graph), Draft(graph)
    axes_of: dict[str, tuple[int, ...]] = {}
    for node in graph.nodes.values():
        if node.op not in roles.layer_ops or not roles.is_valid(node):
            continue
        name = node.inputs[WEIGHTS_INDEX].node
        axes = roles.weights_axes(graph, node).get(WEIGHTS_INDEX, ())
        if graph[name].is_constant and axes_of.setdefault(name, axes) != axes:
            copy = graph[name].with_(name=free_name(graph, f"{node.name}/weights"))
            draft.replace(node.name, copy, node.with_input(WEIGHTS_INDEX, copy.name))
    return draft.graph()


# Transposed convolutions


def _lower_transposed_convolution(graph: Graph, node: Node, *, least: tuple[float, float]) -> list[Node]:
    """Return the nodes that replace a transposed convolution; empty if it stays."""
    weights = graph.constant_of(node.inputs[WEIGHTS_INDEX])
    attrs: Any = node.attrs
    if weights is None or weights.dtype is not DType.FLOAT or attrs.get("output_shape"):
        return []
    kernel, group = weights.shape[2:], attrs.get("group", 1)
    steps_of_one, zeros = (1,) * len(kernel), (0,) * len(kernel)
    strides, dilations = attrs.get("strides", steps_of_one), attrs.get("dilations", steps_of_one)
    pads, padding = attrs.get("pads", zeros * 2), attrs.get("output_padding") or zeros
    lists = ((strides, len(kernel)), (dilations, len(kernel)), (pads, 2 * len(kernel)), (padding, len(kernel)))
    # The runtime reports an invalid node with more detail.
    is_valid = kernel and all(isinstance(sizes, tuple) and len(sizes) == rank for sizes, rank in lists)
    is_computed = attrs.get("auto_pad", b"NOTSET") != b"NOTSET"
    if is_computed or not is_valid or group not in range(1, weights.shape[0] + 1) or weights.shape[0] % group:
        return []
    if strides == steps_of_one and padding == zeros:
        spans = [dilation * (size - 1) for dilation, size in zip(dilations, kernel, strict=True)] * 2
        conv_pads = tuple(span - pad for span, pad in zip(spans, pads, strict=True))
        return [] if min(conv_pads) < 0 else _reverse_kernel(graph, node, weights.array, group, conv_pads)
    bias = graph.constant_of(node.inputs[BIAS_INDEX]) if len(node.inputs) > BIAS_INDEX else None
    has_known_bias = len(node.inputs) <= BIAS_INDEX or bias is not None
    is_plain = dilations == steps_of_one and group == 1 and has_known_bias
    if not is_plain or len(kernel) != 2 or strides[0] != strides[1] or strides[0] < 2:
        return []
    taps = count_taps(kernel, strides[0])
    # The convolution computes the values of the padding too, and zeros up to the next multiple of the stride.
    sizes = zip(taps, kernel, pads[2:], padding, strict=True)
    margins = [*pads[:2], *(tap * strides[0] - size + pad - more for tap, size, pad, more in sizes)]
    least_split, least_overlap = least
    has_overlap = max(taps) > 1 or any(margins)
    if min(margins) < 0 or weights.shape[0] < (least_overlap if has_overlap else least_split):
        return []
    return _split_positions(graph, node, weights.array, None if bias is None else bias.array, margins)


def _reverse_kernel(graph: Graph, node: Node, weights: Array, group: int, pads: tuple[int, ...]) -> list[Node]:
    """Return a convolution with the weights (c_out, c_in / groups, ...)."""
    by_group = weights.reshape(group, weights.shape[0] // group, *weights.shape[1:]).swapaxes(1, 2)
    reverse = tuple(slice(None, None, -1) for _ in weights.shape[2:])
    values = by_group[(slice(None),) * 3 + reverse].reshape(-1, weights.shape[0] // group, *weights.shape[2:])
    nodes = NewNodes(graph, node.name)
    conv = node.with_(op="Conv").with_input(WEIGHTS_INDEX, nodes.constant("reversed", np.ascontiguousarray(values)))
    return [*nodes, conv.with_attrs(pads=pads, output_padding=None)]


def _split_positions(graph: Graph, node: Node, weights: Array, bias: Array | None, margins: list[int]) -> list[Node]:
    """Return a convolution of all outputs of each position of the input, and a DepthToSpace.

    Args:
        graph: ONNX graph.
        node: transposed convolution.
        weights: (depth, channels, height, width)
        bias: (channels,), or None.
        margins: rows and columns before the outputs of the layer, and after them, that the convolution computes too.
    """
    attrs: Any = node.attrs
    stride = attrs["strides"][0]
    values = divide_kernel(weights.transpose(2, 3, 1, 0), stride).transpose(3, 2, 0, 1)
    nodes = NewNodes(graph, node.name)
    inputs = [node.inputs[0], nodes.constant("positions", np.ascontiguousarray(values))]
    if bias is not None:
        inputs.append(nodes.constant("repeated", np.tile(bias, stride**2)))
    pads = tuple(tap - 1 for tap in count_taps(weights.shape[2:], stride)) * 2
    conv_attrs = {"pads": pads} if any(pads) else {}
    conv = node.with_(name=free_name(graph, f"{node.name}/conv"), op="Conv", inputs=tuple(inputs), attrs=conv_attrs)
    nodes.append(conv)
    moved = nodes.add("moved", "DepthToSpace", Edge(conv.name), blocksize=stride, mode=b"DCR")
    if any(margins):
        ends = [-margin or np.iinfo(np.int64).max for margin in margins[2:]]
        limits = {"starts": margins[:2], "ends": ends, "axes": [2, 3]}
        edges = [nodes.constant(name, np.array(limit)) for name, limit in limits.items()]
        nodes.add("sliced", "Slice", moved, *edges)
    return [*nodes[:-1], nodes[-1].with_(name=node.name)]


def restore_layers(graph: Graph) -> Graph:
    """Return the quantized ONNX graph with a ConvTranspose for each float one that `lower_layers` divided.

    ONNX Runtime computes a float ConvTranspose in 0.4 to 0.9 of the time of its divided form.
    """
    draft = Draft(graph)
    for node in graph.nodes.values():
        # Other names are those of a network with blocks of its own.
        conv = graph.nodes.get(f"{node.name}/conv")
        if conv is not None and conv.op == "Conv" and conv.inputs[WEIGHTS_INDEX].node == f"{node.name}/positions":
            draft.replace(node.name, *(_join_positions(graph, node, conv) or [node]))
    return remove_unused(graph, draft.graph())


def _join_positions(graph: Graph, last: Node, conv: Node) -> list[Node]:
    """Return the nodes that replace the divided form of a transposed convolution; empty if they have other uses.

    Args:
        graph: quantized ONNX graph.
        last: last node of the form.
        conv: convolution of the form.
    """
    moves = [last]
    while (node := graph[moves[-1].inputs[0].node]) is not conv:
        if moves[-1].op not in MOVES:
            return []
        moves.append(node)
    inner = [conv.name, *(node.name for node in moves[1:])]
    if graph.endpoint_names & {*inner} or any(len(graph.node_uses[name]) > 1 for name in inner):
        return []
    by_op = {node.op: node for node in moves}
    # The first Reshape of `move_channels_last` has the shape (n, height, width, stride, stride * channels).
    shape = graph.constant_of(by_op["Reshape"].inputs[1]) if "Reshape" in by_op else None
    stride: Any = by_op["DepthToSpace"].attrs["blocksize"] if shape is None else int(shape.array[3])
    values = [graph.constant_of(edge) for edge in (*conv.inputs[1:], *last.inputs[1:])]
    arrays = [value.array for value in values if value is not None]
    if len(arrays) < len(values):
        return []
    kernel = join_kernel(arrays[0].transpose(2, 3, 1, 0), stride).transpose(3, 2, 0, 1)
    starts, ends = (arrays[-3], arrays[-2]) if last.op == "Slice" else ([0, 0], [0, 0])
    pads = [*map(int, starts), *(max(0, -int(end)) for end in ends)]
    for axis in (2, 3):  # without the zeros up to the next multiple of the stride
        while pads[axis] and kernel.shape[axis] > 1 and not kernel.take(-1, axis).any():
            kernel, pads[axis] = kernel.take(range(kernel.shape[axis] - 1), axis), pads[axis] - 1
    nodes = NewNodes(graph, last.name)
    inputs = [conv.inputs[0], nodes.constant("weights", np.ascontiguousarray(kernel))]
    if len(conv.inputs) > BIAS_INDEX:
        biases = arrays[1].reshape(stride**2, -1)
        if (biases != biases[0]).any():
            return []
        inputs.append(nodes.constant("bias", biases[0].copy()))
    attrs = {"strides": (stride, stride), "pads": tuple(pads)}
    return [*nodes, Node(last.name, "ConvTranspose", tuple(inputs), attrs=attrs)]


# Einsum


def _lower_einsum(graph: Graph, node: Node) -> list[Node]:
    """Return the nodes that replace an Einsum; empty if it is not a matrix product."""
    equation = node.attrs.get("equation")
    text = equation.decode(errors="replace").replace(" ", "") if isinstance(equation, bytes) else ""
    operands, arrow, result = text.partition("->")
    left, comma, right = operands.partition(",")
    is_plain = len(node.inputs) == 2 and arrow and comma and "." not in text and "," not in right
    if not is_plain or any(len(set(letters)) < len(letters) for letters in (left, right, result)):
        return []
    weights = graph.constant_of(node.inputs[1])
    if weights is not None and weights.dtype is DType.FLOAT:
        is_valid = len(right) == len(weights.shape)
        return _project(graph, node, left, right, result, weights.array) if is_valid else []
    return _multiply(graph, node, left, right, result)


def _project(graph: Graph, node: Node, left: str, right: str, result: str, weights: Array) -> list[Node]:
    """Return the nodes of a product of activations, whose last axes are contracted, and constant weights."""
    contracted = [letter for letter in right if letter in left]
    free = [letter for letter in right if letter not in left]
    rows = left[: len(left) - len(contracted)]
    is_projection = set(left[len(rows) :]) == set(contracted) and result == rows + "".join(free)
    if not (is_projection and rows and contracted and free):
        return []
    order = [right.index(letter) for letter in (*left[len(rows) :], *free)]
    shape = [weights.shape[axis] for axis in order]
    matrix = weights.transpose(order).reshape(int(np.prod(shape[: len(contracted)])), -1)
    nodes, source = NewNodes(graph, node.name), node.inputs[0]
    constant = nodes.constant("matrix", np.ascontiguousarray(matrix))
    if len(contracted) > 1:
        flat = nodes.constant("flat", np.array([0] * len(rows) + [len(matrix)], np.int64))
        source = nodes.add("joined", "Reshape", source, flat)
    product = node.with_(op="MatMul", inputs=(source, constant), attrs={})
    if len(free) == 1:
        return [*nodes, product]
    nodes.append(product.with_(name=free_name(graph, f"{node.name}/product")))
    product_edge = Edge(nodes[-1].name)
    sizes = nodes.constant("sizes", np.array([0] * len(rows) + shape[len(contracted) :], np.int64))
    return [*nodes, Node(node.name, "Reshape", (product_edge, sizes))]


def _multiply(graph: Graph, node: Node, left: str, right: str, result: str) -> list[Node]:
    """Return the nodes of a product of two activations with one contracted axis and one other axis each."""
    batch = [letter for letter in result if letter in left and letter in right]
    contracted = [letter for letter in left if letter in right and letter not in result]
    rows = [letter for letter in left if letter not in right]
    columns = [letter for letter in right if letter not in left]
    if not len(contracted) == len(rows) == len(columns) == 1 or {*rows, *columns} - set(result):
        return []
    nodes, edges = NewNodes(graph, node.name), list[Edge]()
    orders = ([*batch, *rows, *contracted], left), ([*batch, *contracted, *columns], right)
    for number, (order, letters) in enumerate(orders):
        edge = node.inputs[number]
        if "".join(order) != letters:
            perm = tuple(letters.index(letter) for letter in order)
            edge = nodes.add(f"operand_{number}", "Transpose", edge, perm=perm)
        edges.append(edge)
    product = node.with_(op="MatMul", inputs=tuple(edges), attrs={})
    computed = [*batch, *rows, *columns]
    if "".join(computed) == result:
        return [*nodes, product]
    product = product.with_(name=free_name(graph, f"{node.name}/product"))
    perm = tuple(computed.index(letter) for letter in result)
    return [*nodes, product, Node(node.name, "Transpose", (Edge(product.name),), attrs={"perm": perm})]
