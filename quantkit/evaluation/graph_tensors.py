"""Tensors of a graph that a comparison can fetch, and the layers that compute them.

A float graph and its quantized version name the same tensor differently: formats and quantizers add suffixes
(``/codes``, ``/eightbit``, ``/values``). The plain name of a tensor has no such suffix. Quantized values are
dequantized after fetching.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from quantkit.errors import QuantkitError
from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Array, DType, Tensor
from quantkit.ops.kernels import evaluate, has_kernel
from quantkit.ops.onnx.types import infer_types
from quantkit.ops.tensorflow.signatures import output_dtypes

# Suffixes that formats and quantizers add to the name of a tensor.
_SUFFIX = re.compile(
    r"(?::0|/values|/codes|/unclipped|/undivided|/float|/eightbit|/requantize|/quantize|/nchw|/nhwc"
    r"|_DequantizeLinear_Output|_dequantized|_quantized|_output_0)$"
)
_QUANTIZED_DTYPES = (DType.QUINT8, DType.QINT8)
# Outputs of these ONNX ops are not compared: inputs, shapes, and quantized values without their scale.
_NOT_COMPARED = frozenset({"Placeholder", "QuantizeLinear", "Shape", "QLinearConv", "QLinearMatMul"})
# ONNX ops whose output is a list of tensors, and those that keep a list.
_LISTS = frozenset({"SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceMap"})
_LISTS |= {"Optional", "SplitToSequence"}
_KEEPS_LISTS = frozenset({"Identity", "If", "Loop"})
_LAYERS = re.compile(
    r"(?:Quantized|_FusedQuantized|_Quantized|_Fused)?(?:Depthwise)?(?:Conv2[dD]|MatMul)\w*"
    r"|Conv|Gemm|QLinearConv|QLinearMatMul|ConvInteger|MatMulInteger"
)
_ACTIVATIONS = re.compile(r"(?:Quantized)?(?:Relu6?|ReluX)|LeakyRelu|Elu|Selu|Clip|Sigmoid|Tanh|HardSwish|HardSigmoid")
# Ops that fuse with the layer before them; their other operand is a constant.
_FUSED = re.compile(
    r"(?:Quantized)?(?:BiasAdd|Add|AddV2|Mul)|Sub|Maximum|Minimum|Min|Max|BatchNormalization"
    r"|BatchNormWithGlobalNormalization|FusedBatchNorm(?:V2|V3)?"
)
_PADDING = re.compile(r"Pad|PadV2|MirrorPad|SpaceToBatchND")
_PASS_THROUGH = re.compile(
    r"Identity|EnsureShape|CheckNumerics|StopGradient|QuantizeLinear|DequantizeLinear|QuantizeV2|Dequantize|Requantize"
    r"|Transpose"
)


class TensorProbe(NamedTuple):
    """Edge to fetch, and how its values become float.

    Attributes:
        edge: float values or quantized values.
        low, high: real values of the lowest and the highest quantized value; None if the edge is float.
        dtype: element type of the edge.
    """

    edge: Edge
    low: Edge | None = None
    high: Edge | None = None
    dtype: DType = DType.FLOAT

    @property
    def edges(self) -> tuple[Edge, ...]:
        """All edges to fetch."""
        return (self.edge,) if self.low is None or self.high is None else (self.edge, self.low, self.high)

    def values(self, fetched: Mapping[Edge, Array]) -> Array:
        """Return the tensor as float32, dequantized if necessary."""
        values = fetched[self.edge]
        if self.low is None or self.high is None:
            return values.astype(np.float32, copy=False)
        is_signed = self.dtype is DType.QINT8
        mode = b"SCALED" if is_signed else b"MIN_FIRST"
        node = Node("", "Dequantize", attrs={"T": self.dtype, "mode": mode, "narrow_range": is_signed})
        bounds = [fetched[edge].reshape(-1)[:1].reshape(()) for edge in (self.low, self.high)]
        return evaluate(node, [values, *bounds])[0]

    def scale(self, fetched: Mapping[Edge, Array]) -> float | None:
        """Return the scale of quantized values whose range begins at 0; None for other ranges and float values."""
        if self.low is None or self.high is None or fetched[self.low].any():
            return None
        return float(fetched[self.high].reshape(-1)[0]) / 255 or None


@dataclass(frozen=True)
class FusedLayer:
    """Convolution or matrix product with the bias, batch norm and activation after it.

    Attributes:
        node: the convolution or matrix product.
        inner: plain names of the tensors before the last one.
        output: plain name of the last tensor.
        source: plain name of the layer's input, before any padding.
        is_activated: True if an activation is part of the layer.
        weights: (fan_in, c_out) float32; None if they are computed or their layout is unknown.
    """

    node: Node
    inner: tuple[str, ...]
    output: str
    source: str
    is_activated: bool
    weights: Array | None

    @property
    def names(self) -> tuple[str, ...]:
        """Plain names of all tensors, the output first."""
        return self.output, *self.inner


class GraphTensors:
    """Tensors of one graph that depend on its inputs.

    Args:
        graph: TensorFlow or ONNX graph with inputs and outputs.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        needed = graph.reachable()
        self.live: dict[str, Node] = {}
        for name in graph.order:
            node = graph[name]
            depends = name in graph.input_names or any(edge.node in self.live for edge in node.inputs)
            if name in needed and depends:
                self.live[name] = node

    @cached_property
    def probes(self) -> Mapping[str, TensorProbe]:
        """Probe of each tensor by plain name, in topological order.

        If several edges have the same plain name, values before a division by moved scales come first, then dequantized
        values (QDQ models), float values, float values with a suffix, and quantized values.
        """
        ranked: dict[str, tuple[int, TensorProbe]] = {}
        for node in self.live.values():
            if node.name in self.graph.input_names:
                continue
            for rank, probe in self._probes_of(node):
                name = self.plain_name(probe.edge)
                if name not in ranked or rank < ranked[name][0]:
                    ranked[name] = (rank, probe)
        return {name: probe for name, (_, probe) in ranked.items()}

    def plain_name(self, edge: Edge) -> str:
        """Return the name of a tensor without the suffixes of formats and quantizers."""
        name = edge.node
        if self.graph.dialect == onnx.DIALECT and edge.node:
            name = onnx.value_name(self.graph[edge.node], edge.port)
        elif edge.port:
            name = str(edge)
        while (short := _SUFFIX.sub("", name)) != name and short:
            name = short
        return name

    def _probes_of(self, node: Node) -> Iterator[tuple[int, TensorProbe]]:
        """Yield the probes of a node's outputs with their rank, the best rank being 0."""
        if self.graph.dialect == onnx.DIALECT:
            edge = Edge(node.name)
            if not (node.op in _NOT_COMPARED or self._is_list(node) or self._types.get(edge) is DType.STRING):
                yield self._rank(edge), TensorProbe(edge)
            return
        dtypes = output_dtypes(node)
        for port, dtype in enumerate(dtypes):
            has_range = port == 0 and dtypes[1:3] == (DType.FLOAT, DType.FLOAT)
            if dtype in _QUANTIZED_DTYPES and has_range:
                yield 4, TensorProbe(Edge(node.name), Edge(node.name, 1), Edge(node.name, 2), dtype)
            elif dtype is DType.FLOAT and not (port and dtypes[0] is not DType.FLOAT):
                yield 2, TensorProbe(Edge(node.name, port))

    @cached_property
    def _types(self) -> Mapping[Edge, DType]:
        return infer_types(self.graph)

    def _is_list(self, node: Node) -> bool:
        """Return True for a node of an ONNX graph whose output is a list of tensors."""
        keeps = node.op in _KEEPS_LISTS and any(
            self._is_list(self.graph[edge.node]) for edge in node.inputs if edge.node
        )
        return keeps or node.op in _LISTS

    def _rank(self, edge: Edge) -> int:
        """Return the rank of an edge of an ONNX graph among those of its plain name."""
        name = onnx.value_name(self.graph[edge.node], edge.port)
        if name.endswith("/undivided"):
            return 0
        if self.graph[edge.node].op == "DequantizeLinear":
            return 1
        return 2 if name == self.plain_name(edge) else 3

    @cached_property
    def layers(self) -> tuple[FusedLayer, ...]:
        """Fused layers in topological order."""
        return tuple(self._layer(node) for node in self.live.values() if node.inputs and _LAYERS.fullmatch(node.op))

    def _layer(self, node: Node) -> FusedLayer:
        names, is_activated = [self.plain_name(Edge(node.name))], "Relu" in node.op
        last = node
        while (consumer := self._sole_consumer(last)) is not None:
            is_pass_through = bool(_PASS_THROUGH.fullmatch(consumer.op))
            is_activation = bool(_ACTIVATIONS.fullmatch(consumer.op))
            is_fusible = not is_activated and (is_activation or self._is_fusible(consumer))
            if not (is_pass_through or is_fusible):
                break
            is_activated = is_activated or is_activation or self._clamps_at_zero(consumer)
            last = consumer
            names.append(self.plain_name(Edge(last.name)))
        inner = tuple(name for name in dict.fromkeys(names) if name != names[-1])
        return FusedLayer(node, inner, names[-1], self._source(node), is_activated, self._weights(node))

    def _source(self, node: Node) -> str:
        """Return the plain name of a layer's input before padding and pass-through ops."""
        edge = next((edge for edge in node.inputs if edge.node in self.live), node.inputs[0])
        while (producer := self.live.get(edge.node)) is not None and producer.name not in self.graph.input_names:
            is_skipped = _PASS_THROUGH.fullmatch(producer.op) or _PADDING.fullmatch(producer.op)
            if not producer.inputs or not is_skipped:
                break
            edge = producer.inputs[0]
        return self.plain_name(edge)

    def _sole_consumer(self, node: Node) -> Node | None:
        """Return the only live consumer of an inner node; None for graph outputs and other consumer counts."""
        uses = self.graph.node_uses.get(node.name, ())
        consumers = {use.node.name for use in uses if use.slot >= 0} & self.live.keys()
        is_inner = len(consumers) == 1 and node.name not in self.graph.output_names
        return self.live[consumers.pop()] if is_inner else None

    def _clamps_at_zero(self, node: Node) -> bool:
        """Return True if the quantized range of a node begins at 0, which has the effect of a Relu."""
        if node.op == "Requantize" and len(node.inputs) > 3:
            low = self.graph.constant_of(node.inputs[3])
            return low is not None and not low.array.any()
        has_zero_point = node.op == "QuantizeLinear" and len(node.inputs) > 2
        zero_point = self.graph.constant_of(node.inputs[2]) if has_zero_point else None
        return zero_point is not None and bool((zero_point.array == np.iinfo(zero_point.dtype.numpy).min).all())

    def _is_fusible(self, node: Node) -> bool:
        """Return True if a node combines the layer's result with constants only."""
        live_inputs = {edge.node for edge in node.inputs if edge.node in self.live}
        return bool(_FUSED.fullmatch(node.op)) and len(live_inputs) == 1

    def _weights(self, node: Node) -> Array | None:
        """Return the weights of a layer as (fan_in, c_out), in any layout; None if they are not constant."""
        index = 3 if node.op.startswith("QLinear") else 1
        values = self._constant(node.inputs[index]) if index < len(node.inputs) else None
        if values is None or values.ndim not in (2, 4):
            return None
        if values.ndim == 2:
            is_transposed = node.attrs.get("transB" if node.op == "Gemm" else "transpose_b")
            return values.T if is_transposed else values
        if self.graph.dialect == onnx.DIALECT:
            # (c_out, c_in / groups, h, w)
            return values.transpose(2, 3, 1, 0).reshape(-1, values.shape[0])
        if "Depthwise" in node.op:
            return values.reshape(values.shape[0] * values.shape[1], -1)
        return values.reshape(-1, values.shape[3])

    def _constant(self, edge: Edge) -> Array | None:
        """Return the value of a constant edge as float32, dequantized if its scale is constant too."""
        node = self.graph.nodes.get(edge.node)
        if node is None or edge.node in self.live or node.op == "Placeholder":
            return None
        value = node.attrs.get("value")
        if node.is_constant and isinstance(value, Tensor):
            return value.array.astype(np.float32)
        operands = [self._constant(source) for source in node.inputs]
        values = [operand for operand in operands if operand is not None]
        if len(values) < len(operands):
            return None
        try:
            return self._compute(node, values, edge.port)
        except (QuantkitError, LookupError, ValueError, TypeError, ArithmeticError):  # the node is invalid
            return None

    def _compute(self, node: Node, operands: list[Array], port: int) -> Array | None:
        """Return an output of a node with constant operands; None for an op without a kernel."""
        if node.op == "DequantizeLinear":
            return _dequantize(node, operands)
        if self.graph.dialect == onnx.DIALECT:
            return operands[0] if node.op in ("Identity", "Cast") else _transpose(node, operands[0])
        if not has_kernel(node.op):
            return None
        constants = [self.graph.constant_of(source) for source in node.inputs]
        arrays = [tensor.array if tensor else operand for tensor, operand in zip(constants, operands, strict=True)]
        return evaluate(node, arrays)[port].astype(np.float32)


def _dequantize(node: Node, operands: list[Array]) -> Array:
    """Compute (q - zero_point) * scale along the axis of a DequantizeLinear node."""
    quantized, scale = operands[0], operands[1]
    zero_point = operands[2] if len(operands) > 2 else np.float32(0)
    axis = node.attrs.get("axis", 1)
    if scale.ndim == 1 and isinstance(axis, int):
        shape = [-1 if index == axis % quantized.ndim else 1 for index in range(quantized.ndim)]
        scale = scale.reshape(shape)
        is_scalar = np.ndim(zero_point) == 0
        zero_point = np.broadcast_to(zero_point, scale.shape) if is_scalar else np.reshape(zero_point, shape)
    return np.asarray((quantized - zero_point) * scale, np.float32)


def _transpose(node: Node, values: Array) -> Array | None:
    order = node.attrs.get("perm")
    return values.transpose(order) if node.op == "Transpose" and isinstance(order, tuple) else None
