"""What a run holds at most, as far as shapes tell.

Tensors live from the node that makes them to the last that reads them, in execution order. Ops that only pass their
input on share its memory; what works element by element writes over an input that nobody else reads any more, as do
norms, which engines fuse with the layer before them. Work space of ops and what an engine keeps back are not counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from quantkit.errors import GraphError
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.tensorflow import output_dtypes

SHARING = frozenset({"CheckNumerics", "EnsureShape", "ExpandDims", "Identity", "Reshape", "Squeeze", "StopGradient"})
IN_PLACE = frozenset(
    {
        *("Add", "AddN", "AddV2", "BiasAdd", "Div", "Maximum", "Minimum", "Mul", "RealDiv", "Sub"),
        *("Abs", "Elu", "Exp", "LeakyRelu", "Log", "Neg", "Relu", "Relu6", "Rsqrt", "Selu", "Sigmoid", "Softmax"),
        *("Sqrt", "Square", "Tanh", "FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"),
        "BatchNormWithGlobalNormalization",
    }
)


@dataclass(frozen=True)
class Peak:
    """The most that lives at once.

    Attributes:
        num_bytes: of all tensors but constants.
        node: the one that runs then.
        num_unknown: tensors that are not counted, as their sizes are not known.
    """

    num_bytes: int
    node: str
    num_unknown: int = 0


def peak_memory(graph: Graph, shapes: Mapping[Edge, Shape]) -> Peak | None:
    """The largest sum of tensors that live at once while the outputs are computed, in bytes.

    Args:
        graph: of TensorFlow's ops.
        shapes: of its edges.

    Returns:
        The peak, or None where no size is known.

    Raises:
        GraphError: the graph is not well formed.
    """
    needed = graph.reachable()
    order = [graph[name] for name in graph.order if name in needed and not _is_constant(graph, name)]
    buffers = _buffers(graph, order)
    made: dict[str, list[Edge]] = {}
    for edge, buffer in buffers.items():
        if edge == buffer:
            made.setdefault(edge.node, []).append(edge)
    last = {buffers[edge]: place for place, node in enumerate(order) for edge in node.inputs if edge in buffers}
    last |= {buffers[edge]: len(order) for edge in graph.outputs if edge in buffers}
    live: dict[Edge, int] = {}
    held, most, where, num_unknown = 0, 0, "", 0
    for place, node in enumerate(order):
        ending = {buffers[edge] for edge in node.inputs if edge in buffers and last[buffers[edge]] == place}
        for edge in made.get(node.name, ()):
            size = _num_bytes(graph, edge, shapes)
            num_unknown += size is None
            over = next((one for one in ending if node.op in IN_PLACE and live.get(one) == size), None)
            if over is not None:
                held -= live.pop(over)
            live[edge] = size or 0
            held += live[edge]
        if held > most:
            most, where = held, node.name
        held -= sum(live.pop(edge, 0) for edge in ending)
    return Peak(most, where, num_unknown) if most else None


def _is_constant(graph: Graph, name: str) -> bool:
    """Whether a node holds a constant, or hands one on."""
    while graph[name].op in SHARING and name not in graph.input_names and graph[name].inputs:
        name = graph[name].inputs[0].node
    return graph[name].is_constant and name not in graph.input_names


def _buffers(graph: Graph, order: list[Node]) -> dict[Edge, Edge]:
    """For each edge that somebody reads the one whose memory it lives in; constants' are not in it."""
    drawn = {node.name: node for node in order}
    read = dict.fromkeys([edge for node in order for edge in node.inputs if edge.node in drawn])
    read |= dict.fromkeys(edge for edge in graph.outputs if edge.node in drawn)
    place = {node.name: number for number, node in enumerate(order)}
    buffers: dict[Edge, Edge] = {}
    for edge in sorted(read, key=lambda edge: (place[edge.node], edge.port)):
        node = drawn[edge.node]
        is_shared = node.op in SHARING and node.name not in graph.input_names and node.inputs
        buffers[edge] = buffers.get(node.inputs[0], edge) if is_shared else edge
    return buffers


def _num_bytes(graph: Graph, edge: Edge, shapes: Mapping[Edge, Shape]) -> int | None:
    shape, dtype = shapes.get(edge), _dtype(graph[edge.node], edge.port)
    if shape is None or not shape.is_known or dtype is None or dtype is DType.STRING:
        return None
    return prod(shape.known) * dtype.numpy.itemsize


def _dtype(node: Node, port: int) -> DType | None:
    if node.op == "Placeholder":
        dtype = node.attrs.get("dtype")
        return dtype if isinstance(dtype, DType) else None
    try:
        dtypes = output_dtypes(node)
    except GraphError:  # the attribute that says so is missing: whoever runs it will say so better
        return None
    return dtypes[port] if port < len(dtypes) else None
