"""Quantization of TensorFlow graphs for the target "onnx".

    q = clip(round(x / scale) + zero_point, 0, 255)     activations, one scale per tensor
    q = round(w / scale[c])                             weights, -127 .. 127, one scale per channel
    q = round(b / (scale_in * scale[c]))                biases, 32 bits

A runtime replaces ``DequantizeLinear -> op -> QuantizeLinear`` by an int8 kernel. A ReLU needs no op
if the range has no negative values: the zero point is 0, and quantizing clamps at 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np

from quantkit.convert.layouts import transpose_tensor
from quantkit.convert.tensorflow_to_onnx import translate
from quantkit.convert.tensorflow_to_onnx.translator import Translation
from quantkit.errors import GraphError
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.tensor import Array, DType, Tensor
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.plan import FusedPattern, Plan
from quantkit.quantization.ranges import Range, Ranges
from quantkit.quantization.spec import Spec
from quantkit.quantization.targets.onnx.parameters import ONNX_TYPES, fit_bias
from quantkit.quantization.weights import dequantized_constant, quantize_constant, replace_constants

# uint8 images are quantized values with scale 1.
UINT8 = Spec(DType.QUINT8, symmetric=False)
# Order of the dimensions of a layer's weights in ONNX.
LAYOUTS = {"Conv2D": (3, 2, 0, 1), "DepthwiseConv2dNative": (2, 3, 0, 1)}
# Suffix of a weight constant's name after conversion to ONNX, and its order of dimensions there.
WEIGHT_LAYOUTS: Mapping[str, tuple[int, ...]] = {"/oihw": (3, 2, 0, 1), "/depthwise": (2, 3, 0, 1), "": ()}
# Upper limit of each activation.
ACTIVATION_MAX = {"Relu": np.inf, "Relu6": 6.0}


def convert(graph: Graph, plan: Plan, ranges: Ranges, *, quantized_inputs: bool = False) -> Graph:
    """Return the ONNX graph with quantized edges and weights.

    Args:
        graph: float TensorFlow graph.
        plan: plan of ``graph`` for the target ``onnx``.
        ranges: ranges of every edge of the plan.
        quantized_inputs: give the model quantized inputs. With a range of -1 .. 127/128 these
            are the bytes of the image, without any loss or computation at the input.

    Raises:
        InputError: a range is missing.
        GraphError: the plan does not fit the graph.
        UnavailableError: an op of the graph has no ONNX form.
    """
    plan.require_ranges(ranges)
    return _Quantization(graph, plan, ranges, translate(graph), quantized_inputs).graph()


def edge_parameters(graph: Graph, plan: Plan, ranges: Ranges) -> dict[Edge, QuantizationParameters]:
    """Return the quantization parameters of each edge of a plan that is quantized."""
    averages = _clamped_averages(graph, plan)
    limits = _limits_of(graph, plan, ranges, averages)
    return {edge: _parameters_of(graph, plan, edge, limits[edge]) for edge in plan.activations if edge not in averages}


def _parameters_of(graph: Graph, plan: Plan, edge: Edge, limits: Range) -> QuantizationParameters:
    if _casts_uint8(graph[edge.node]) and plan.group_of(edge) == {edge}:
        return QuantizationParameters(UINT8, np.float32(1), np.int32(0))  # type: ignore[arg-type]
    return QuantizationParameters.of_range(plan.activations[edge], limits)


@dataclass
class _Quantization:
    """State of one conversion.

    Attributes:
        parameters: quantization parameters, by edge of the float graph.
        nodes: nodes of the ONNX graph, by name.
        new_nodes: nodes that the conversion adds.
        redirects: dequantized edge, by edge of the ONNX graph.
        weights: dequantized edge of weights, by constant of the float graph, op and scales.
    """

    source: Graph
    plan: Plan
    ranges: Ranges
    translation: Translation
    quantized_inputs: bool
    parameters: dict[Edge, QuantizationParameters] = field(init=False)
    nodes: dict[str, Node] = field(init=False)
    new_nodes: list[Node] = field(default_factory=list)
    redirects: dict[Edge, Edge] = field(default_factory=dict)
    weights: dict[tuple[str, str, bytes], Edge] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.parameters = edge_parameters(self.source, self.plan, self.ranges)
        self.nodes = dict(self.translation.graph.nodes)

    def graph(self) -> Graph:
        for pattern in self.plan.patterns:
            self._quantize_layer(pattern)
        for edge, parameters in self.parameters.items():
            self._quantize_edge(edge, parameters)
        self._prevent_int8_averages()
        nodes = [*map(self._redirect, self.nodes.values()), *self.new_nodes]
        graph = self.translation.graph.with_nodes(nodes)
        needed = graph.reachable() | graph.input_names
        return graph.with_nodes(node for node in nodes if node.name in needed)

    def _redirect(self, node: Node) -> Node:
        if not any(edge in self.redirects for edge in node.inputs):
            return node
        return node.with_(inputs=tuple(self.redirects.get(edge, edge) for edge in node.inputs))

    def _add_constant(self, name: str, values: Array) -> Edge:
        """Add a small constant; return its edge."""
        self.new_nodes.append(Node(name, "Constant", attrs={"value": Tensor.of(values)}))
        return Edge(name)

    # Layers

    def _quantize_layer(self, pattern: FusedPattern) -> None:
        edges = self.translation.edges
        output = edges.get(Edge(pattern.layer)) or edges.get(Edge(pattern.bias))
        layer = self.nodes.get(output.node) if output else None
        weights = self.source.constant_of(Edge(pattern.weights))
        if layer is None or weights is None or pattern.input not in self.parameters:
            raise GraphError(
                f"the fused pattern {pattern.name!r} of the plan is not in the graph", hint="annotate the graph again"
            )
        op = self.source[pattern.layer].op
        shape = self.nodes[layer.inputs[1].node].value.shape
        spec = self.plan.weights[pattern.weights]
        step = np.float64(self.parameters[pattern.input].scale)
        bias = self.nodes[layer.inputs[2].node].value.array if len(layer.inputs) > 2 else None
        parameters = fit_bias(QuantizationParameters.of_weights(spec, weights.array), step, bias)
        scales = parameters.scale
        quantized = Tensor(ONNX_TYPES[spec.dtype], weights.shape, partial(_quantize, weights, parameters))
        quantized = transpose_tensor(quantized, LAYOUTS[op], shape) if op in LAYOUTS else quantized
        name = layer.name
        # Layers with the same weights share the nodes.
        key = (pattern.weights, op, scales.tobytes())
        if key not in self.weights:
            self.new_nodes.append(Node(f"{name}/weights", "Constant", attrs={"value": quantized}))
            axis = 0 if layer.op == "Conv" or layer.attrs.get("transB") else 1
            self.weights[key] = self._dequantize(f"{name}/weights", scales, np.int8, axis)
        inputs = [layer.inputs[0], self.weights[key]]
        if bias is not None:
            self._add_constant(f"{name}/bias", np.rint(bias / (step * scales)).astype(np.int32))
            inputs.append(self._dequantize(f"{name}/bias", (step * scales).astype(np.float32), np.int32, 0))
        self.nodes[name] = layer.with_(inputs=tuple(inputs))

    def _dequantize(self, name: str, scales: Array, integer: type, axis: int) -> Edge:
        """Add a DequantizeLinear of a quantized constant; return its edge."""
        scale = self._add_constant(f"{name}/scale", scales.astype(np.float32))
        zero = self._add_constant(f"{name}/zero", np.zeros(scales.shape, integer))
        attrs: dict[str, Attr] = {"axis": axis} if scales.shape else {}
        self.new_nodes.append(Node(f"{name}/values", "DequantizeLinear", (Edge(name), scale, zero), attrs=attrs))
        return Edge(f"{name}/values")

    # Edges

    def _quantize_edge(self, edge: Edge, parameters: QuantizationParameters) -> None:
        source = self.translation.edges[edge]
        node = self.nodes[source.node]
        if (
            node.op == "Transpose"
            and node.inputs[0].node in self._image_inputs
            and parameters.spec.dtype is DType.QUINT8
        ):
            source = node.inputs[0]  # it is quantized before the transposition; OpenVINO needs int8 values after it
        unclamped = self._skip_activation(edge, source, parameters)
        scale = self._add_constant(f"{edge}/scale", parameters.scale)
        zero = self._add_constant(f"{edge}/zero", parameters.zero_point.astype(parameters.spec.dtype.numpy))
        node = self.nodes[source.node]
        if node.op == "Cast" and parameters.spec is UINT8:
            quantized = node.inputs[0]
        elif node.op == "Placeholder" and self.quantized_inputs:
            self.nodes[source.node] = node.with_attrs(dtype=ONNX_TYPES[parameters.spec.dtype])
            quantized = source
        else:
            self.new_nodes.append(Node(f"{edge}/codes", "QuantizeLinear", (unclamped, scale, zero)))
            quantized = Edge(f"{edge}/codes")
        self.new_nodes.append(Node(f"{edge}/values", "DequantizeLinear", (quantized, scale, zero)))
        self.redirects[source] = Edge(f"{edge}/values")

    def _prevent_int8_averages(self) -> None:
        """Prevent ONNX Runtime from fusing an average pool: its float kernel is ten times faster.

        The runtime fuses an average between DequantizeLinear and QuantizeLinear, but not with a
        Concat of one tensor after it. OpenVINO removes such a Concat and computes the average in int8.
        """
        for name, node in list(self.nodes.items()):
            if node.op == "AveragePool" and name not in self.source.output_names:
                average = node.with_(name=f"{name}/average")
                self.nodes[average.name] = average
                self.nodes[name] = Node(name, "Concat", (Edge(average.name),), attrs={"axis": 1})

    @cached_property
    def _image_inputs(self) -> frozenset[str]:
        """Names of the inputs and of the Casts of uint8 inputs."""
        inputs = self.translation.graph.input_names
        casts = [node.name for node in self.nodes.values() if node.op == "Cast" and node.inputs[0].node in inputs]
        return frozenset({*inputs, *casts})

    def _skip_activation(self, edge: Edge, source: Edge, parameters: QuantizationParameters) -> Edge:
        """Return the input of an activation if quantizing clamps to the same limits, else its output."""
        node = self.source[edge.node]
        top = ACTIVATION_MAX.get(node.op)
        lowest, highest = parameters.spec.limits
        if top is None or parameters.zero_point != lowest or edge in self.source.outputs:
            return source
        if (highest - lowest) * parameters.scale > top * (1 + 1e-6):
            return source
        return self.nodes[source.node].inputs[0]


def _clamped_averages(graph: Graph, plan: Plan) -> frozenset[Edge]:
    """Return averages whose only consumer is a Relu: only the output of the Relu is quantized."""
    averages = set()
    for name in plan.pass_through:
        node = graph[name]
        if node.op in ACTIVATION_MAX:
            (edge,) = node.inputs
            is_average = graph[edge.node].op in ("AvgPool", "Mean") and edge.node in plan.pass_through
            if is_average and len(graph.uses[edge]) == 1 and edge not in graph.outputs:
                averages.add(edge)
    return frozenset(averages)


def _limits_of(graph: Graph, plan: Plan, ranges: Ranges, averages: frozenset[Edge]) -> dict[Edge, Range]:
    """Return the range of each edge; that of non-negative edges starts at 0."""
    nonnegative = plan.nonnegative_edges(graph)
    limits = {edge: ranges[edge] for edge in plan.activations}
    for edge, (low, high) in limits.items():
        if plan.group_of(edge) - averages <= nonnegative:
            limits[edge] = Range(max(low, 0.0), max(high, 0.0))
    return limits


def _casts_uint8(node: Node) -> bool:
    return node.op == "Cast" and node.attrs.get("SrcT") is DType.UINT8


def _quantize(weights: Tensor, parameters: QuantizationParameters) -> Array:
    return parameters.quantize(weights.array)


# Weights alone


def store_weights(graph: Graph, plan: Plan) -> Graph:
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
        stored = transpose_tensor(stored, order, node.value.shape)
    if spec.axes:
        shape = [1] * len(node.value.shape)
        shape[0 if order else spec.axes[0]] = -1  # ONNX layouts have the output channels first
        scale = scale.reshape(shape)
    return dequantized_constant(translated, node, stored, scale)
