"""Roles of ONNX ops."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.ops.layers import WEIGHTS_INDEX, Layer
from quantkit.ops.onnx.inputs import missing_input
from quantkit.ops.roles.base import Roles
from quantkit.ops.table import ANY_CONVOLUTION, CONTROL_FLOW, Fact, find_ops

BIAS_INDEX = 2
# Layers whose kernels add an int32 bias.
INTEGER_BIAS_OPS = frozenset({"Conv", "Gemm"})
CONVOLUTION_OPS = find_ops(ANY_CONVOLUTION, "onnx")
RECURRENT_OPS = find_ops(Fact.RECURRENT, "onnx")
CONTROL_FLOW_OPS = find_ops(CONTROL_FLOW, "onnx")
GATE_OPS = find_ops(Fact.GATE, "onnx")
# Ops without data of their input type at input 0: the data are input 1.
_DATA_INDEX = {"Where": 1}
# Number of dimensions of the weights, where it is known.
_WEIGHTS_RANKS = {"Gemm": (2, 2), "Conv": (3, 8), "ConvTranspose": (3, 8), "MatMul": (2, 8)}
# Op types with outputs of one type.
_TYPES = {
    **dict.fromkeys(find_ops(Fact.INDEX, "onnx"), DType.INT64),
    **dict.fromkeys(find_ops(Fact.BOOLEAN, "onnx"), DType.BOOL),
    "DequantizeLinear": DType.FLOAT,
}


class OnnxRoles(Roles):
    """Roles of ONNX ops; images have the layout NCHW."""

    dialect = "onnx"
    view_ops = find_ops(Fact.VIEW, "onnx") & find_ops(Fact.PASS_THROUGH, "onnx") | {"Transpose"}
    non_growing_ops = find_ops(Fact.PASS_THROUGH, "onnx") - find_ops(
        Fact.REQUANTIZING | Fact.SELECTION | Fact.REPETITION | Fact.FUSED, "onnx"
    )
    float_reasons = MappingProxyType(
        {
            "Softmax": "small probabilities would quantize to zero",
            "BatchNormalization": "BatchNorm is not folded into a layer",
            "com.microsoft.QuickGelu": "ONNX Runtime computes SiLU faster in float",
            "GlobalAveragePool": "a global average costs little, and int8 would reduce its precision",
            **dict.fromkeys(RECURRENT_OPS, "no runtime has an int8 kernel for this op type: --weights-only stores it"),
            **dict.fromkeys(CONTROL_FLOW_OPS, "the nodes of its subgraphs stay float"),
            **dict.fromkeys(find_ops(Fact.NORMALIZATION, "onnx"), "normalization needs the precision of float"),
        }
    )

    def is_valid(self, node: Node) -> bool:
        return missing_input(node.op, node.inputs) is None and bool(node.inputs and node.inputs[0].node)

    def find_layer(self, graph: Graph, layer: Node) -> Layer | None:
        axes = self.weights_axes(graph, layer).get(WEIGHTS_INDEX)
        weights = graph.constant_of(layer.inputs[WEIGHTS_INDEX])
        if not axes or weights is None or layer.op not in self.layer_ops:
            return None
        rank = len(weights.shape)
        return Layer(rank, axes, rank, 1 if layer.op in CONVOLUTION_OPS else rank - 1)

    def weights_axes(self, graph: Graph, node: Node) -> Mapping[int, tuple[int, ...]]:
        if node.op == "Gather":
            rows = graph.constant_of(node.inputs[0])
            is_table = rows is not None and len(rows.shape) == 2 and not node.attrs.get("axis")
            return {0: (0,)} if is_table else {}
        if node.op in RECURRENT_OPS:
            ranks = {slot: len(value.shape) for slot in (1, 2) if (value := graph.constant_of(node.inputs[slot]))}
            return {slot: (1,) if ranks.get(slot) == 3 else () for slot in (1, 2)}  # axis 0 is the direction
        weights = graph.constant_of(node.inputs[WEIGHTS_INDEX])
        if weights is None or len(weights.shape) < 2:
            return {WEIGHTS_INDEX: ()}
        if node.op == "Conv":
            return {WEIGHTS_INDEX: (0,)}
        if node.op == "ConvTranspose":
            return {WEIGHTS_INDEX: (1,)}
        if node.op == "Gemm":
            return {WEIGHTS_INDEX: (0 if node.attrs.get("transB") else 1,)}
        # ONNX Runtime has no scales per channel of batched weights.
        return {WEIGHTS_INDEX: (1,) if len(weights.shape) == 2 else ()}

    def pair_axes(self, graph: Graph, layer: Node) -> tuple[int, ...]:
        weights = graph.constant_of(layer.inputs[WEIGHTS_INDEX])
        return () if weights is None else find_pair_axes(layer, weights.shape)

    def layer_objection(self, graph: Graph, layer: Node) -> str:
        if layer.op != "Gemm":
            return ""
        if layer.attrs.get("transA"):
            return "the input is transposed"
        has_bias = len(layer.inputs) > BIAS_INDEX and bool(layer.inputs[BIAS_INDEX].node)
        if layer.attrs.get("alpha", 1.0) != 1.0 or (has_bias and layer.attrs.get("beta", 1.0) != 1.0):
            return "alpha or beta is not 1"
        return ""

    def weights_objection(self, graph: Graph, layer: Node, weights: Tensor) -> str:
        if weights.dtype is not DType.FLOAT:
            return "the data type is not float"
        least, most = _WEIGHTS_RANKS[layer.op]
        if not least <= len(weights.shape) <= most or 0 in weights.shape:
            return f"weights of shape {Shape(weights.shape)} are not those of a layer"
        if layer.op != "MatMul" and len(layer.inputs) > BIAS_INDEX and layer.inputs[BIAS_INDEX].node:
            bias = graph.constant_of(layer.inputs[BIAS_INDEX])
            if bias is None:
                return "the bias is computed, not constant"
            axes = self.weights_axes(graph, layer)[WEIGHTS_INDEX]
            channels = weights.shape[axes[0]] * (layer.attrs.get("group", 1) if layer.op == "ConvTranspose" else 1)
            is_whole = layer.op == "Gemm" and bias.num_elements == 1
            if not _is_vector(bias) or not (bias.num_elements == channels or is_whole) or bias.dtype is not DType.FLOAT:
                return "the bias is not one number per channel"
        return ""

    def product_objection(self, graph: Graph, layer: Node) -> str:
        if layer.op != "MatMul":
            return "the weights are computed, not constant"
        if any(find_dtype(graph, edge) is not DType.FLOAT for edge in layer.inputs):
            return "the data type is not float, or not known"
        if graph.constant_of(layer.inputs[0]) is not None:
            return "the first operand is constant"
        return ""

    def is_bias(self, graph: Graph, layer: Node, value: Tensor) -> bool:
        if layer.op != "MatMul":
            return False
        weights = graph.constant_of(layer.inputs[WEIGHTS_INDEX])
        return weights is not None and _is_vector(value) and value.num_elements in (1, weights.shape[-1])

    def bias_input(self, graph: Graph, layer: Node, bias: str) -> tuple[Node, int] | None:
        if bias:
            inputs = graph[bias].inputs
            return graph[bias], next(slot for slot, edge in enumerate(inputs) if graph.constant_of(edge) is not None)
        if layer.op not in INTEGER_BIAS_OPS:
            return None
        has_bias = len(layer.inputs) > BIAS_INDEX
        return (layer, BIAS_INDEX) if not has_bias or graph.constant_of(layer.inputs[BIAS_INDEX]) is not None else None

    def mean_outputs(self, layer: Node, weights: Array, means: Array) -> Array | None:
        if layer.op == "Conv":
            summed = weights.reshape(*weights.shape[:2], -1).sum(2)
            by_group = means.reshape(-1, summed.shape[1])
            repeated = np.repeat(by_group, len(summed) // len(by_group), axis=0)
            grouped: Array = (summed * repeated).sum(1)
            return grouped
        if weights.ndim != 2 or layer.op == "ConvTranspose":
            return None
        product: Array = (weights if layer.attrs.get("transB") else weights.T) @ means
        return product

    def sum_objection(self, shapes: tuple[Shape | None, Shape | None]) -> str:
        return ""

    def is_activation(self, graph: Graph, node: Node) -> bool:
        return node.op == "Relu" or (node.op == "Clip" and clip_limits(graph, node)[0] == 0)

    def pass_through_inputs(self, graph: Graph, node: Node, shapes: Mapping[Edge, Shape]) -> tuple[Edge, ...]:
        if node.op in ("Concat", "Add", "Mul"):
            return () if any(graph.constant_of(edge) for edge in node.inputs) else node.inputs
        if node.op == "Clip" and not self.is_activation(graph, node):
            return ()
        if node.op in GATE_OPS and graph[node.inputs[0].node].op not in self.quantized_output_ops:
            return ()
        if node.op == "MaxPool" and graph.uses.get(Edge(node.name, 1)):
            return ()
        if node.op in ("Resize", "Upsample") and node.attrs.get("mode", b"nearest") != b"nearest":
            return ()
        return () if graph.constant_of(node.inputs[0]) else node.inputs[:1]

    def is_global(self, average: Node, shapes: Mapping[Edge, Shape]) -> bool:
        dims = shapes[Edge(average.name)].dims if Edge(average.name) in shapes else None
        return dims is not None and all(size == 1 for size in dims[2:])


def clip_limits(graph: Graph, clip: Node) -> tuple[float | None, float | None]:
    """Return the limits of a Clip; None for an absent or computed limit."""
    limits: list[float | None] = []
    for slot, name in ((1, "min"), (2, "max")):
        attr = clip.attrs.get(name)
        value = graph.constant_of(clip.inputs[slot]) if len(clip.inputs) > slot else None
        limits.append(float(value.array.reshape(-1)[0]) if value is not None and value.num_elements else attr)
    return limits[0], limits[1]


def find_dtype(graph: Graph, edge: Edge) -> DType | None:
    """Return the element type of an edge, from the next producer that states its type; None if no producer does."""
    for _ in graph.nodes:
        node = graph[edge.node]
        if (value := graph.constant_of(edge)) is not None:
            return value.dtype
        if node.op in _TYPES:
            return _TYPES[node.op]
        if node.op == "Placeholder":
            dtype = node.attrs.get("dtype")
            return dtype if isinstance(dtype, DType) else None
        if node.op == "Cast" or "." in node.op or node.op in CONTROL_FLOW_OPS or not node.inputs:
            return DType.FLOAT if node.attrs.get("to") == 1 else None
        edge = node.inputs[_DATA_INDEX.get(node.op, 0)]
    return None


def _is_vector(value: Tensor) -> bool:
    """Return True if all dimensions but the last are 1."""
    return all(size == 1 for size in value.shape[:-1])


def find_pair_axes(layer: Node, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the dimensions of weights whose products a kernel adds, see `Roles.pair_axes`.

    Args:
        layer: layer of an ONNX graph.
        shape: shape of its weights.
    """
    rank = len(shape)
    if rank < 2:
        return ()
    if layer.op == "Gemm":
        return (1,) if layer.attrs.get("transB") else (0,)
    if layer.op not in CONVOLUTION_OPS:
        return (rank - 2,)
    # Kernels compute one channel, or several outputs of a channel, as an ordinary convolution.
    is_depthwise = layer.op == "Conv" and shape[0] > 1 and shape[:2] == (layer.attrs.get("group", 1), 1)
    return () if is_depthwise else (*range(2, rank), 1 if layer.op == "Conv" else 0)
