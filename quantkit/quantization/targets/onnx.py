"""ONNX models in 8 bits: pairs of QuantizeLinear and DequantizeLinear where codes flow.

    code = clamp(round(value / scale) + zero_point, 0, 255)        activations, one scale a tensor
    code = round(value / scale[c])                                 weights, -127 .. 127, one scale an output channel
    code = round(value / (scale_in * scale[c]))                    biases, 32 bits

An engine replaces ``Dequantize -> op -> Quantize`` by the op's 8-bit form. A ReLU needs no op of its own: where
nothing is below zero, zero is code 0, and quantizing clamps to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from quantkit.convert import Translation, translate
from quantkit.convert.tensorflow_to_onnx.translator import transposed
from quantkit.errors import GraphError
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.tensor import Array, DType, Tensor
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.plan import FusedPattern, Plan
from quantkit.quantization.ranges import Range, Ranges
from quantkit.quantization.spec import Spec
from quantkit.quantization.targets.base import Target
from quantkit.quantization.weights import dequantized_constant, quantize_constant, replace_constants

# A picture's bytes are codes already.
BYTES = Spec(DType.QUINT8, symmetric=False)
# Codes as ONNX calls their types.
CODES = {DType.QUINT8: DType.UINT8, DType.QINT8: DType.INT8}
# Biases keep far from the end of 32 bits, because products are added to them.
MOST_BIAS = float(1 << 29)
# How a layer's weights are laid out in ONNX: the order of their dimensions.
LAYOUTS = {"Conv2D": (3, 2, 0, 1), "DepthwiseConv2dNative": (2, 3, 0, 1)}
# Suffix of a weight constant's name after conversion to ONNX, and its order of dimensions there.
WEIGHT_LAYOUTS: Mapping[str, tuple[int, ...]] = {"/oihw": (3, 2, 0, 1), "/depthwise": (2, 3, 0, 1), "": ()}
# Where an activation ends above.
ACTIVATIONS = {"Relu": np.inf, "Relu6": 6.0}


def convert(graph: Graph, plan: Plan, ranges: Ranges, *, takes_codes: bool = False) -> Graph:
    """The ONNX graph in which a plan's edges are codes.

    Args:
        graph: the float graph that was planned.
        plan: of `annotate` with a scheme for ``onnx``.
        ranges: of every edge the plan quantizes.
        takes_codes: whether inputs that are quantized are fed as codes. With a range of -1 .. 127/128 these are
            the picture's own bytes, and nothing is lost or computed at the input.

    Raises:
        InputError: a range is missing.
        GraphError: the plan does not fit the graph.
        UnavailableError: an op of the graph has no ONNX form.
    """
    plan.require_ranges(ranges)
    return _Quantization(graph, plan, ranges, translate(graph), takes_codes).graph()


@dataclass
class _Quantization:
    """One conversion: the float graph in ONNX, and what takes the place of its nodes.

    Attributes:
        instead: which edge the readers of an edge read instead.
    """

    source: Graph
    plan: Plan
    ranges: Ranges
    translation: Translation
    takes_codes: bool
    parameters: dict[Edge, QuantizationParameters] = field(init=False)
    nodes: dict[str, Node] = field(init=False)
    made: list[Node] = field(default_factory=list)
    instead: dict[Edge, Edge] = field(default_factory=dict)

    def __post_init__(self) -> None:
        averages = _averages_clamped(self.source, self.plan)
        spans = _spans(self.source, self.plan, self.ranges, averages)
        self.parameters = {
            edge: self._parameters_of(edge, spec, spans[edge])
            for edge, spec in self.plan.activations.items()
            if edge not in averages
        }
        self.nodes = dict(self.translation.graph.nodes)

    def _parameters_of(self, edge: Edge, spec: Spec, span: Range) -> QuantizationParameters:
        if _casts_bytes(self.source[edge.node]) and self.plan.group_of(edge) == {edge}:
            return QuantizationParameters(BYTES, np.float32(1), np.int32(0))  # type: ignore[arg-type]
        return QuantizationParameters.of_range(spec, span)

    def graph(self) -> Graph:
        for pattern in self.plan.patterns:
            self._quantize_layer(pattern)
        for edge, parameters in self.parameters.items():
            self._quantize_edge(edge, parameters)
        self._keep_averages_float()
        before = self.translation.graph
        nodes = [*map(self._rewired, self.nodes.values()), *self.made]
        made = before.with_nodes(nodes)
        kept = made.reachable() | made.input_names
        return made.with_nodes(node for node in nodes if node.name in kept)

    def _rewired(self, node: Node) -> Node:
        if not any(edge in self.instead for edge in node.inputs):
            return node
        return node.with_(inputs=tuple(self.instead.get(edge, edge) for edge in node.inputs))

    def _keep(self, name: str, values: Array) -> Edge:
        """A small constant."""
        self.made.append(Node(name, "Constant", attrs={"value": Tensor.of(values)}))
        return Edge(name)

    # Layers

    def _quantize_layer(self, pattern: FusedPattern) -> None:
        edges = self.translation.edges
        place = edges.get(Edge(pattern.layer)) or edges.get(Edge(pattern.bias))
        layer = self.nodes.get(place.node) if place else None
        weights = self.source.constant_of(Edge(pattern.weights))
        if layer is None or weights is None or pattern.input not in self.parameters:
            raise GraphError(
                f"the plan's pattern {pattern.name!r} does not fit the graph", hint="annotate the graph again"
            )
        kind = self.source[pattern.layer].op
        shape = self.nodes[layer.inputs[1].node].value.shape
        spec = self.plan.weights[pattern.weights]
        step = np.float64(self.parameters[pattern.input].scale)
        bias = self.nodes[layer.inputs[2].node].value.array if len(layer.inputs) > 2 else None
        parameters = _with_room(QuantizationParameters.of_weights(spec, weights.array), step, bias)
        scales = parameters.scale
        codes = Tensor(CODES[spec.dtype], weights.shape, partial(_codes, weights, parameters))
        codes = transposed(codes, LAYOUTS[kind], shape) if kind in LAYOUTS else codes
        name = layer.name
        self.made.append(Node(f"{name}/weights", "Constant", attrs={"value": codes}))
        axis = 0 if layer.op == "Conv" or layer.attrs.get("transB") else 1
        reads = [layer.inputs[0], self._values(f"{name}/weights", scales, np.int8, axis)]
        if bias is not None:
            self._keep(f"{name}/bias", np.rint(bias / (step * scales)).astype(np.int32))
            reads.append(self._values(f"{name}/bias", (step * scales).astype(np.float32), np.int32, 0))
        self.nodes[name] = layer.with_(inputs=tuple(reads))

    def _values(self, codes: str, scales: Array, integer: type, axis: int) -> Edge:
        """What codes of a constant stand for."""
        scale = self._keep(f"{codes}/scale", scales.astype(np.float32))
        point = self._keep(f"{codes}/zero", np.zeros(scales.shape, integer))
        attrs: dict[str, Attr] = {"axis": axis} if scales.shape else {}
        self.made.append(Node(f"{codes}/values", "DequantizeLinear", (Edge(codes), scale, point), attrs=attrs))
        return Edge(f"{codes}/values")

    # Edges

    def _quantize_edge(self, edge: Edge, parameters: QuantizationParameters) -> None:
        place = self.translation.edges[edge]
        node = self.nodes[place.node]
        if node.op == "Transpose" and node.inputs[0].node in self._fed_images:
            place = node.inputs[0]  # codes are made of it before it is transposed
        raw = self._without_activation(edge, place, parameters)
        scale = self._keep(f"{edge}/scale", parameters.scale)
        zero = self._keep(f"{edge}/zero", parameters.zero_point.astype(parameters.spec.dtype.numpy))
        source = self.nodes[place.node]
        if source.op == "Cast" and parameters.spec is BYTES:
            codes = source.inputs[0]
        elif source.op == "Placeholder" and self.takes_codes:
            self.nodes[place.node] = source.with_attrs(dtype=CODES[parameters.spec.dtype])
            codes = place
        else:
            self.made.append(Node(f"{edge}/codes", "QuantizeLinear", (raw, scale, zero)))
            codes = Edge(f"{edge}/codes")
        self.made.append(Node(f"{edge}/values", "DequantizeLinear", (codes, scale, zero)))
        self.instead[place] = Edge(f"{edge}/values")

    def _keep_averages_float(self) -> None:
        """Let ONNX Runtime average in float, which takes a tenth of the time of its 8-bit kernel.

        It fuses an average that stands alone between Dequantize and Quantize. A Concat of one tensor, which it
        copies, keeps it from that; OpenVINO drops such a Concat and averages codes as before.
        """
        for name, node in list(self.nodes.items()):
            if node.op == "AveragePool" and name not in self.source.output_names:
                average = node.with_(name=f"{name}/average")
                self.nodes[average.name] = average
                self.nodes[name] = Node(name, "Concat", (Edge(average.name),), attrs={"axis": 1})

    @cached_property
    def _fed_images(self) -> frozenset[str]:
        """Inputs, and what is cast of their bytes."""
        fed = self.translation.graph.input_names
        casts = [node.name for node in self.nodes.values() if node.op == "Cast" and node.inputs[0].node in fed]
        return frozenset({*fed, *casts})

    def _without_activation(self, edge: Edge, place: Edge, parameters: QuantizationParameters) -> Edge:
        """What is to be quantized: not the activation, where quantizing clamps to the same ends."""
        node = self.source[edge.node]
        top = ACTIVATIONS.get(node.op)
        lowest, highest = parameters.spec.limits
        if top is None or parameters.zero_point != lowest or edge in self.source.outputs:
            return place
        if (highest - lowest) * parameters.scale > top * (1 + 1e-6):
            return place
        return self.nodes[place.node].inputs[0]


def _averages_clamped(graph: Graph, plan: Plan) -> frozenset[Edge]:
    """Averages that only a Relu reads: both are computed in one go, and only the result has codes."""
    found = set()
    for name in plan.pass_through:
        node = graph[name]
        if node.op in ACTIVATIONS:
            (edge,) = node.inputs
            is_average = graph[edge.node].op in ("AvgPool", "Mean") and edge.node in plan.pass_through
            if is_average and len(graph.uses[edge]) == 1 and edge not in graph.outputs:
                found.add(edge)
    return frozenset(found)


def _spans(graph: Graph, plan: Plan, ranges: Ranges, averages: frozenset[Edge]) -> dict[Edge, Range]:
    """The range of each edge; those that only hold what Relus made begin at 0."""
    positive = plan.nonnegative_edges(graph)
    spans = {edge: ranges[edge] for edge in plan.activations}
    for edge, span in spans.items():
        if plan.group_of(edge) - averages <= positive:
            spans[edge] = Range(max(span.low, 0.0), max(span.high, 0.0))
    return spans


def _casts_bytes(node: Node) -> bool:
    return node.op == "Cast" and node.attrs.get("SrcT") is DType.UINT8


def _with_room(parameters: QuantizationParameters, step: float, bias: Array | None) -> QuantizationParameters:
    """The parameters of weights, coarser where the bias would else not fit into 32 bits."""
    if bias is None:
        return parameters
    least = np.abs(bias) / (step * MOST_BIAS)
    return replace(
        parameters,
        scale=np.maximum(parameters.scale, least if parameters.scale.ndim else least.max()).astype(np.float32),
    )


def _codes(weights: Tensor, parameters: QuantizationParameters) -> Array:
    return parameters.quantize(weights.array)


# Weights alone


def _store_weights(graph: Graph, plan: Plan) -> Graph:
    """Return the ONNX graph whose layers' weights are int8 constants, cast and scaled."""
    translated = translate(graph).graph
    replacements = {}
    for source, spec in plan.weights.items():
        for suffix, order in WEIGHT_LAYOUTS.items():
            name = f"{source}{suffix}"
            if name in translated:
                values = graph[source].value
                replacements[name] = _stored_constant(translated, translated[name], values, spec, order)
    return replace_constants(translated, replacements)


def _stored_constant(
    translated: Graph, node: Node, values: Tensor, spec: Spec, order: tuple[int, ...]
) -> tuple[Node, ...]:
    parameters = QuantizationParameters.of_weights(spec, values.array)
    stored = quantize_constant(values, parameters)
    scale = parameters.scale
    if order:
        stored = transposed(stored, order, node.value.shape)
    if spec.axes:
        shape = [1] * len(node.value.shape)
        shape[0 if order else spec.axes[0]] = -1  # ONNX layouts have the output channels first
        scale = scale.reshape(shape)
    return dequantized_constant(translated, node, stored, scale)


class OnnxTarget(Target):
    """ONNX models with QuantizeLinear and DequantizeLinear pairs."""

    name = "onnx"
    title = "ONNX model with QuantizeLinear and DequantizeLinear"
    dialect = "onnx"
    suffixes = (".onnx",)
    runtimes = ("openvino", "onnxruntime")
    keeps_endpoints = True
    multiplies_u8_by_s8 = True
    runs_bfloat16 = True
    thread_advice = "OpenVINO and ONNX Runtime keep the default thread settings"

    def convert(self, graph: Graph, plan: Plan, ranges: Ranges) -> Graph:
        return convert(graph, plan, ranges)

    def store_weights(self, graph: Graph, plan: Plan) -> Graph:
        return _store_weights(graph, plan)


TARGET = OnnxTarget()
