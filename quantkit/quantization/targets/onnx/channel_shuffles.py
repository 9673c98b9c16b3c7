"""Channel shuffles of int8 tensors in ONNX models."""

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import free_name, remove_unused
from quantkit.ir.tensor import Array, Tensor
from quantkit.quantization.targets.onnx.stated_shapes import infer_shapes

# Ops that move values; the quantization of a tensor that moves does not change them.
PAIR = ("QuantizeLinear", "DequantizeLinear")
KEEPING = (*PAIR, "Identity")
MOVES = ("Reshape", "Transpose", "Gather", *KEEPING)
# A product with more channels takes longer than the moves. Larger images are not followed, to limit the memory.
MOST_CHANNELS, MOST_VALUES = 512, 1 << 23


def replace_shuffles(graph: Graph) -> Graph:
    """Replace moves of whole channels of an int8 image by a convolution with a permutation matrix.

        before:  DequantizeLinear -> Reshape -> Transpose -> Reshape -> QuantizeLinear
        after:   DequantizeLinear -> Conv(permutation) -> QuantizeLinear

    The product is exact: each sum has one weight of 1. The weights of a convolution of one position take the moves: for
    a half of the channels, those of the other half are 0. The runtimes compute int8 convolutions with channels last,
    and move the image to channels first and back for each Reshape.
    """
    starts = dict.fromkeys(_find_start(graph, node) for node in graph.nodes.values() if node.op == "Transpose")
    shapes, draft = infer_shapes(graph) if any(starts) else {}, Draft(graph)
    for start in starts:
        if start is None or start not in shapes:
            continue
        dims = [size or 0 for size in shapes[start].dims or ()]
        if len(dims) != 4 or dims[0] != 1 or dims[1] > MOST_CHANNELS or not 0 < prod(dims) <= MOST_VALUES:
            continue
        values = np.arange(prod(dims)).reshape(dims)
        for edge, order in _find_images(graph, start, values, dims):
            if not _is_requantized(graph, start, edge) or np.array_equal(order, np.arange(dims[1])):
                continue
            layer = _follow(graph, edge, *PAIR, "Conv")
            if layer is not None and (nodes := _fold(graph, layer, start, order, dims[1])):
                draft.replace(layer.name, *nodes)
                continue
            name = free_name(graph, f"{edge.node}/order")
            matrix = np.eye(dims[1], dtype=np.int8)[order][..., None, None]
            draft.replace(
                edge.node,
                Node(name, "Constant", attrs={"value": Tensor.of(matrix)}),
                Node(f"{name}/scale", "Constant", attrs={"value": Tensor.of(np.array(1, np.float32))}),
                Node(f"{name}/values", "DequantizeLinear", (Edge(name), Edge(f"{name}/scale"))),
                graph[edge.node].with_(op="Conv", inputs=(start, Edge(f"{name}/values")), attrs={}),
            )
            # The first quantization changes no value.
            if (requantization := _follow(graph, edge, *PAIR, "QuantizeLinear")) is not None:
                draft.replace(requantization.name, requantization.with_input(0, edge))
    return remove_unused(graph, draft.graph())


def _fold(graph: Graph, layer: Node, start: Edge, order: Array, channels: int) -> list[Node]:
    """Return a convolution of one position with the moves of its input channels in its weights; empty for others.

    Args:
        graph: quantized graph.
        layer: Conv of the moved channels.
        start: tensor before the moves.
        order: source of each moved channel.
        channels: number of channels of ``start``.
    """
    dequantize = graph[layer.inputs[1].node]
    integers = graph.constant_of(dequantize.inputs[0]) if dequantize.op == "DequantizeLinear" else None
    # Weights for the channels that do not move cost more than the moves if there are many outputs.
    is_pointwise = integers is not None and integers.shape[1:] == (len(order), 1, 1)
    if integers is None or not is_pointwise or integers.shape[0] * (channels - len(order)) > len(order) * channels:
        return []
    values = np.zeros((integers.shape[0], channels, 1, 1), integers.array.dtype)
    values[:, order] = integers.array
    name = free_name(graph, f"{layer.name}/moved")
    return [
        Node(name, "Constant", attrs={"value": Tensor.of(values)}),
        dequantize.with_(name=f"{name}/values", inputs=(Edge(name), *dequantize.inputs[1:])),
        layer.with_(inputs=(start, Edge(f"{name}/values"), *layer.inputs[2:])),
    ]


def _follow(graph: Graph, edge: Edge, *ops: str) -> Node | None:
    """Return the last of these ops after an edge, each the only consumer of the one before; None for other ops."""
    for op in ops:
        consumers = graph.consumers(edge)
        if len(consumers) != 1 or consumers[0].op != op or edge in graph.outputs:
            return None
        edge = Edge(consumers[0].name)
    return graph[edge.node]


def _find_start(graph: Graph, node: Node) -> Edge | None:
    """Return the dequantized tensor whose values a node moves; None without one."""
    edge = node.inputs[0]
    while (node := graph[edge.node]).op in MOVES:
        if node.op == "DequantizeLinear":
            source = graph[node.inputs[0].node]
            if source.op != "QuantizeLinear" or graph[source.inputs[0].node].op not in MOVES:
                return edge
        edge = node.inputs[0]
    return None


def _find_images(graph: Graph, edge: Edge, values: Array, dims: Sequence[int]) -> Iterator[tuple[Edge, Array]]:
    """Yield the images of whole channels that moves of values reach, with the source of each channel.

    Args:
        graph: quantized graph.
        edge: moved tensor.
        values: index in the image of each of its values.
        dims: shape of the image.
    """
    cells = np.arange(dims[2] * dims[3]).reshape(dims[2:])
    for node in graph.consumers(edge):
        moved = _move(graph, node, values)
        if moved is None:
            continue
        if node.op not in KEEPING and moved.ndim == len(dims) and moved.shape[::2] == (1, dims[2]):
            order = moved[0, :, 0, 0] // cells.size
            if np.array_equal(moved[0], order[:, None, None] * cells.size + cells):
                yield Edge(node.name), order
                continue
        yield from _find_images(graph, Edge(node.name), moved, dims)


def _move(graph: Graph, node: Node, values: Array) -> Array | None:
    """Return the values after an op that moves them; None for another op, or without its constants."""
    if node.op in KEEPING:
        return values
    if node.op == "Transpose":
        perm = node.attrs.get("perm")
        return values.transpose(perm if isinstance(perm, tuple) else None)
    constant = graph.constant_of(node.inputs[1]) if node.op in MOVES else None
    if constant is None:
        return None
    if node.op == "Gather":
        axis = node.attrs.get("axis", 0)
        return np.take(values, constant.array, axis if isinstance(axis, int) else 0)
    return values.reshape([size or values.shape[index] for index, size in enumerate(constant.array.tolist())])


def _is_requantized(graph: Graph, start: Edge, edge: Edge) -> bool:
    """Return True if all consumers of an edge quantize it with the parameters of the start."""
    consumers, parameters = graph.consumers(edge), _parameters(graph, graph[start.node])
    is_used = bool(consumers) and edge not in graph.outputs and None not in parameters
    return is_used and all(node.op == "QuantizeLinear" and _parameters(graph, node) == parameters for node in consumers)


def _parameters(graph: Graph, node: Node) -> list[float | None]:
    """Return scale and zero point of a quantization; None for values that are not one constant."""
    constants = [graph.constant_of(edge) for edge in node.inputs[1:]]
    return [float(each.array.item()) if each is not None and each.array.size == 1 else None for each in constants]
