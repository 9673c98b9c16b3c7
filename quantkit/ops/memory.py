"""What a run holds at most, as far as shapes tell.

Tensors live from the node that makes them to the last that reads them, in execution order. Ops that only pass their
input on share its memory; what works element by element writes over an input that nobody else reads any more, as do
norms, which engines fuse with the layer before them. Work space of ops and what an engine keeps back are not counted.
For Inception v3, MobileNet v1 and ResNet50, TensorFlow's allocator tells the same, within half a percent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from quantkit.errors import GraphError
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.tensorflow.signatures import output_dtypes

SHARING = frozenset(
    {
        *("CheckNumerics", "EnsureShape", "ExpandDims", "Identity", "Reshape", "Squeeze", "StopGradient"),
        *("Dropout", "Flatten", "Unsqueeze"),
    }
)
IN_PLACE = frozenset(
    {
        *("Add", "AddN", "AddV2", "BiasAdd", "Div", "Maximum", "Minimum", "Mul", "RealDiv", "Sub"),
        *("Abs", "Elu", "Exp", "LeakyRelu", "Log", "Neg", "Relu", "Relu6", "Rsqrt", "Selu", "Sigmoid", "Softmax"),
        *("Sqrt", "Square", "Tanh", "FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"),
        *("BatchNormWithGlobalNormalization", "BatchNormalization", "Clip", "HardSigmoid", "HardSwish", "PRelu"),
    }
)
# What ONNX's ops give that is of another type than what they read first.
ONNX_DTYPES = {"DequantizeLinear": DType.FLOAT, "Shape": DType.INT64, "ArgMax": DType.INT64, "ConvInteger": DType.INT32}


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


def peak_memory(graph: Graph, shapes: Mapping[Edge, Shape], stated: Mapping[Edge, DType | None] = {}) -> Peak | None:
    """The largest sum of tensors that live at once while the outputs are computed, in bytes.

    Args:
        graph: of TensorFlow's or of ONNX's ops.
        shapes: of its edges.
        stated: element types that an ONNX file tells.

    Returns:
        The peak, or None where no size is known.

    Raises:
        GraphError: the graph is not well formed.
    """
    order = _computed(graph)
    buffers = _buffers(graph, order)
    dtypes = _onnx_dtypes(graph, order, stated) if graph.dialect == "onnx" else None
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
            dtype = dtypes.get(edge.node) if dtypes is not None else _dtype(node, edge.port)
            size = _num_bytes(dtype, shapes.get(edge))
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


def _computed(graph: Graph) -> list[Node]:
    """What the outputs need, in execution order, without what depends on constants alone: engines compute that once."""
    needed = graph.reachable()
    found: dict[str, Node] = {}
    for name in graph.order:
        node = graph[name]
        begins = not node.sources and not node.is_constant
        if name in needed and (begins or name in graph.input_names or any(one in found for one in node.sources)):
            found[name] = node
    return list(found.values())


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


def _num_bytes(dtype: DType | None, shape: Shape | None) -> int | None:
    if shape is None or not shape.is_known or dtype is None or dtype is DType.STRING:
        return None
    return prod(shape.sizes) * dtype.numpy.itemsize


def _onnx_dtypes(graph: Graph, order: list[Node], stated: Mapping[Edge, DType | None]) -> dict[str, DType]:
    """The element type of what each node gives: as the file states it, or that of what it reads first."""
    found: dict[str, DType] = {}
    for node in order:
        read = [
            graph[edge.node].value.dtype if graph.constant_of(edge) is not None else found.get(edge.node)
            for edge in node.inputs
            if edge.node in graph
        ]
        own = node.attrs.get("dtype") if node.op == "Placeholder" else ONNX_DTYPES.get(node.op)
        if node.op == "QuantizeLinear" and len(read) > 2:
            own = read[2]
        dtype = stated.get(Edge(node.name)) or own or next(filter(None, read), DType.FLOAT)
        found[node.name] = dtype if isinstance(dtype, DType) else DType.FLOAT
    return found


def _dtype(node: Node, port: int) -> DType | None:
    if node.op == "Placeholder":
        dtype = node.attrs.get("dtype")
        return dtype if isinstance(dtype, DType) else None
    try:
        dtypes = output_dtypes(node)
    except GraphError:  # the attribute that says so is missing: whoever runs it will say so better
        return None
    return dtypes[port] if port < len(dtypes) else None
