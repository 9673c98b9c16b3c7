"""Which tensor of one graph is which of another: a float graph and its 8-bit version, in whatever format.

Names decide first. What 8 bits add to a name (``/codes``, ``/eightbit``, ``/values``) does not count, and codes are
read as the numbers they stand for. Layers that no name joins are joined by their weights: quantizing and folding change
the length of a channel's weights, hardly their direction. What is known to read other tensors is not joined: a pool
may have moved from one side of a layer to the other.

    alike(v, w) = mean over channels of  v_c . w_c / (|v_c| |w_c|)

Inside a layer and what is fused with it (bias, batch norm, activation) two versions may compute different tensors, so
there they are only joined where the weights are equal, not just alike.
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
from quantkit.ops.tensorflow.signatures import output_dtypes

ALIKE = 0.9
# Relative distance up to which weights are equal but for 8 bits.
EQUAL = 0.1
# What formats and quantizers add to the name of a tensor, or of its codes.
_ADDED = re.compile(
    r"(?::0|/values|/codes|/unclipped|/float|/eightbit|/requantize|/quantize|/nchw|/nhwc"
    r"|_DequantizeLinear_Output|_dequantized|_quantized|_output_0)$"
)
_CODES = (DType.QUINT8, DType.QINT8)
_LAYERS = re.compile(
    r"(?:Quantized|_FusedQuantized|_Quantized|_Fused)?(?:Depthwise)?(?:Conv2[dD]|MatMul)\w*"
    r"|Conv|Gemm|QLinearConv|QLinearMatMul|ConvInteger|MatMulInteger"
)
_ACTIVATIONS = re.compile(r"(?:Quantized)?(?:Relu6?|ReluX)|LeakyRelu|Elu|Selu|Clip|Sigmoid|Tanh|HardSwish|HardSigmoid")
# What is fused with the layer before it; the operand that is not its result is a constant.
_FUSED = re.compile(
    r"(?:Quantized)?(?:BiasAdd|Add|AddV2|Mul)|Sub|Maximum|Minimum|Min|Max|BatchNormalization"
    r"|BatchNormWithGlobalNormalization|FusedBatchNorm(?:V2|V3)?"
)
_PADDING = re.compile(r"Pad|PadV2|MirrorPad|SpaceToBatchND")
_PASSING = re.compile(
    r"Identity|EnsureShape|CheckNumerics|StopGradient|QuantizeLinear|DequantizeLinear|QuantizeV2|Dequantize|Requantize|Transpose"
)


class Probe(NamedTuple):
    """Where numbers can be read in a graph.

    Attributes:
        edge: numbers, or codes.
        low, high: what the lowest and the highest code stand for; None: the edge holds numbers.
        dtype: of the edge.
    """

    edge: Edge
    low: Edge | None = None
    high: Edge | None = None
    dtype: DType = DType.FLOAT

    @property
    def edges(self) -> tuple[Edge, ...]:
        """All that must be fetched."""
        return (self.edge,) if self.low is None or self.high is None else (self.edge, self.low, self.high)

    def numbers(self, fetched: Mapping[Edge, Array]) -> Array:
        """The numbers there, as float32."""
        values = fetched[self.edge]
        if self.low is None or self.high is None:
            return values.astype(np.float32, copy=False)
        is_signed = self.dtype is DType.QINT8
        mode = b"SCALED" if is_signed else b"MIN_FIRST"
        node = Node("", "Dequantize", attrs={"T": self.dtype, "mode": mode, "narrow_range": is_signed})
        ends = [fetched[end].reshape(-1)[:1].reshape(()) for end in (self.low, self.high)]
        return evaluate(node, [values, *ends])[0]

    def step(self, fetched: Mapping[Edge, Array]) -> float | None:
        """The size of a step of codes whose lowest stands for 0; None: the edge holds others, or numbers."""
        if self.low is None or self.high is None or fetched[self.low].any():
            return None
        return float(fetched[self.high].reshape(-1)[0]) / 255 or None


class Pair(NamedTuple):
    """One tensor in both graphs.

    Attributes:
        name: in the first graph, without what 8 bits add.
        op: of the node that makes it there.
        mine: its place in the first graph.
        theirs: its place in the second.
    """

    name: str
    op: str
    mine: Probe
    theirs: Probe


@dataclass(frozen=True)
class Layer:
    """A convolution or matrix product and what is fused with it.

    Attributes:
        node: the layer's own.
        inner: names of the tensors before the last.
        end: name of what leaves the last.
        source: name of what it reads, before any padding.
        is_activated: whether an activation is among them.
        weights: (fan_in, c_out) float32; None: they are computed, or in a form that is not known.
    """

    node: Node
    inner: tuple[str, ...]
    end: str
    source: str
    is_activated: bool
    weights: Array | None


class Places:
    """The tensors of one graph that depend on what is fed.

    Args:
        graph: of TensorFlow or ONNX ops, with inputs and outputs.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        needed = graph.reachable()
        self.live: dict[str, Node] = {}
        for name in graph.order:
            node = graph[name]
            reads = [edge.node for edge in node.inputs]
            if name in needed and (name in graph.input_names or any(one in self.live for one in reads)):
                self.live[name] = node

    @cached_property
    def probes(self) -> Mapping[str, Probe]:
        """Where each tensor can be read, by its plain name, in execution order.

        Of several places the best one counts: numbers made of codes (as a QDQ model holds them), then numbers, then
        codes.
        """
        found: dict[str, tuple[int, Probe]] = {}
        for node in self.live.values():
            if node.name in self.graph.input_names:
                continue
            for rank, probe in self._of_node(node):
                name = self.plain(probe.edge)
                if name not in found or rank < found[name][0]:
                    found[name] = (rank, probe)
        return {name: probe for name, (_, probe) in found.items()}

    def plain(self, edge: Edge) -> str:
        """The name of a tensor without what a format or a quantizer adds to it."""
        name = edge.node
        if self.graph.dialect == onnx.DIALECT and edge.node:
            name = onnx.value_name(self.graph[edge.node], edge.port)
        elif edge.port:
            name = str(edge)
        while (short := _ADDED.sub("", name)) != name and short:
            name = short
        return name

    def _of_node(self, node: Node) -> Iterator[tuple[int, Probe]]:
        if self.graph.dialect == onnx.DIALECT:
            if node.op not in ("Placeholder", "QuantizeLinear", "Shape", "QLinearConv", "QLinearMatMul"):
                yield 0 if node.op == "DequantizeLinear" else 1, Probe(Edge(node.name))
            return
        dtypes = output_dtypes(node)
        for port, dtype in enumerate(dtypes):
            has_range = port == 0 and dtypes[1:3] == (DType.FLOAT, DType.FLOAT)
            if dtype in _CODES and has_range:
                yield 2, Probe(Edge(node.name), Edge(node.name, 1), Edge(node.name, 2), dtype)
            elif dtype is DType.FLOAT and not (port and dtypes[0] is not DType.FLOAT):
                yield 1, Probe(Edge(node.name, port))

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """In execution order."""
        return tuple(self._layer(node) for node in self.live.values() if _LAYERS.fullmatch(node.op))

    def _layer(self, node: Node) -> Layer:
        names, is_activated = [self.plain(Edge(node.name))], "Relu" in node.op
        at = node
        while (reader := self._sole_reader(at)) is not None and not (is_activated and not self._passes(reader)):
            if not (_ACTIVATIONS.fullmatch(reader.op) or self._passes(reader) or self._is_fused(reader)):
                break
            is_activated = is_activated or bool(_ACTIVATIONS.fullmatch(reader.op)) or self._clamps_at_zero(reader)
            at = reader
            names.append(self.plain(Edge(at.name)))
        inner = tuple(name for name in dict.fromkeys(names) if name != names[-1])
        return Layer(node, inner, names[-1], self._source(node), is_activated, self._weights(node))

    def _source(self, node: Node) -> str:
        edge = next((edge for edge in node.inputs if edge.node in self.live), node.inputs[0])
        while (source := self.live.get(edge.node)) is not None and source.name not in self.graph.input_names:
            if not source.inputs or not (self._passes(source) or _PADDING.fullmatch(source.op)):
                break
            edge = source.inputs[0]
        return self.plain(edge)

    def _sole_reader(self, node: Node) -> Node | None:
        readers = {use.node.name for use in self.graph.node_uses.get(node.name, ()) if use.slot >= 0} & self.live.keys()
        return self.live[readers.pop()] if len(readers) == 1 and node.name not in self.graph.output_names else None

    def _passes(self, node: Node) -> bool:
        return bool(_PASSING.fullmatch(node.op))

    def _clamps_at_zero(self, node: Node) -> bool:
        """Whether codes are made that begin at 0, as where an activation was left to them, or follows."""
        if node.op == "Requantize":
            low = self.graph.constant_of(node.inputs[3])
            return low is not None and not low.array.any()
        zero = self.graph.constant_of(node.inputs[2]) if node.op == "QuantizeLinear" and len(node.inputs) > 2 else None
        return zero is not None and bool((zero.array == np.iinfo(zero.dtype.numpy).min).all())

    def _is_fused(self, node: Node) -> bool:
        """Whether a node works on the layer's result and constants only."""
        reads = {edge.node for edge in node.inputs if edge.node in self.live}
        return bool(_FUSED.fullmatch(node.op)) and len(reads) == 1

    def _weights(self, node: Node) -> Array | None:
        """(fan_in, c_out), whichever way the format lays them out."""
        slot = 3 if node.op.startswith("QLinear") else 1
        values = self._constant(node.inputs[slot]) if slot < len(node.inputs) else None
        if values is None or values.ndim not in (2, 4):
            return None
        if values.ndim == 2:
            is_turned = node.attrs.get("transB" if node.op == "Gemm" else "transpose_b")
            return values.T if is_turned else values
        if self.graph.dialect == onnx.DIALECT:
            # (c_out, c_in / groups, h, w)
            return values.transpose(2, 3, 1, 0).reshape(-1, values.shape[0])
        if "Depthwise" in node.op:
            return values.reshape(values.shape[0] * values.shape[1], -1)
        return values.reshape(-1, values.shape[3])

    def _constant(self, edge: Edge) -> Array | None:
        """The numbers of a constant, or of constant codes; codes whose scale is elsewhere count as they are."""
        node = self.graph.nodes.get(edge.node)
        if node is None or edge.node in self.live or node.op == "Placeholder":
            return None
        value = node.attrs.get("value")
        if node.is_constant and isinstance(value, Tensor):
            return value.array.astype(np.float32)
        parts = [self._constant(one) for one in node.inputs]
        if any(part is None for part in parts):
            return None
        given = [part for part in parts if part is not None]
        if node.op == "DequantizeLinear":
            return _dequantized(node, given)
        if self.graph.dialect == onnx.DIALECT:
            return given[0] if node.op in ("Identity", "Cast") else _turned(node, given[0])
        if not has_kernel(node.op):
            return None
        try:
            raw = [self.graph.constant_of(one) for one in node.inputs]
            return evaluate(node, [one.array if one else part for one, part in zip(raw, given, strict=True)])[
                edge.port
            ].astype(np.float32)
        except QuantkitError:
            return None


def match(mine: Places, theirs: Places) -> tuple[Pair, ...]:
    """The tensors that two graphs have in common, in the execution order of the first.

    Args:
        mine: of the first graph.
        theirs: of the second.
    """
    joined = dict.fromkeys(mine.probes)
    other_of: dict[str, str] = {name: name for name in joined if name in theirs.probes}
    for one, other in _same_layers(mine, theirs, other_of):
        _join(one, other, other_of)
    for edge, other_edge in zip(mine.graph.outputs, theirs.graph.outputs, strict=False):
        name, other_name = mine.plain(edge), theirs.plain(other_edge)
        if name in mine.probes and other_name in theirs.probes:
            other_of.setdefault(name, other_name)
    return tuple(
        Pair(name, mine.graph[mine.probes[name].edge.node].op, mine.probes[name], theirs.probes[other_of[name]])
        for name in joined
        if name in other_of
    )


def _join(one: Layer, other: Layer, other_of: dict[str, str]) -> None:
    """Join the ends of two versions of a layer; leave out what only one of them computes that way."""
    distance = _distance(one.weights, other.weights)
    are_equal = distance is None or distance <= EQUAL
    for name in one.inner:
        # Who fuses an activation may leave the layer's own name to its result.
        is_end = other_of.get(name) == other.end and one.is_activated
        if name in other_of and (is_end or not are_equal):
            del other_of[name]
    if one.is_activated == other.is_activated:
        other_of.setdefault(one.end, other.end)
    elif other.is_activated and other_of.get(one.end) == other.end:
        del other_of[one.end]  # the activation that follows in the one has cut off numbers in the other already


def _same_layers(mine: Places, theirs: Places, other_of: Mapping[str, str]) -> Iterator[tuple[Layer, Layer]]:
    """Layers that names join, and those that their weights join."""
    by_name: dict[str, Layer] = {}
    for layer in theirs.layers:
        for name in (layer.end, *layer.inner):
            by_name.setdefault(name, layer)
    left, taken = [], set()
    for layer in mine.layers:
        names = [other_of[name] for name in (layer.end, *layer.inner) if name in other_of]
        found = next((by_name[name] for name in names if name in by_name), None)
        if found is None or found.node.name in taken:
            left.append(layer)
        else:
            taken.add(found.node.name)
            yield layer, found
    free = [layer for layer in theirs.layers if layer.node.name not in taken and layer.weights is not None]
    for layer in left:
        scores = [
            (_alike(layer.weights, other.weights), place)
            for place, other in enumerate(free)
            if layer.source == other.source or not (layer.source in theirs.probes or other.source in mine.probes)
        ]
        score, place = max(scores, default=(0.0, 0))
        if score > ALIKE:
            yield layer, free.pop(place)


def _alike(one: Array | None, other: Array | None) -> float:
    """The mean cosine of channels; 0 where the shapes differ."""
    if one is None or other is None or one.shape != other.shape:
        return 0.0
    lengths = np.linalg.norm(one, axis=0) * np.linalg.norm(other, axis=0)
    products = (one * other).sum(axis=0)
    is_there = np.isfinite(lengths) & (lengths > 0)
    return float((products[is_there] / lengths[is_there]).mean()) if is_there.any() else 0.0


def _distance(one: Array | None, other: Array | None) -> float | None:
    """Relative distance of weights; None: it is not known."""
    if one is None or other is None or one.shape != other.shape:
        return None
    finite = np.isfinite(one) & np.isfinite(other)
    size = float(np.linalg.norm(one[finite]))
    return float(np.linalg.norm(one[finite] - other[finite])) / size if size else None


def _dequantized(node: Node, parts: list[Array]) -> Array:
    """(codes - zero point) * scale, along the node's axis."""
    codes, scale = parts[0], parts[1]
    zero = parts[2] if len(parts) > 2 else np.float32(0)
    axis = node.attrs.get("axis", 1)
    if scale.ndim == 1 and isinstance(axis, int):
        shape = [-1 if place == axis % codes.ndim else 1 for place in range(codes.ndim)]
        scale = scale.reshape(shape)
        zero = np.broadcast_to(zero, scale.shape) if np.ndim(zero) == 0 else np.reshape(zero, shape)
    return np.asarray((codes - zero) * scale, np.float32)


def _turned(node: Node, values: Array) -> Array | None:
    order = node.attrs.get("perm")
    return values.transpose(order) if node.op == "Transpose" and isinstance(order, tuple) else None
