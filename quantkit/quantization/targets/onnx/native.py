"""Quantization of ONNX graphs: QuantizeLinear and DequantizeLinear pairs in the graph itself.

    before    x -> Conv(w, b) -> y
    after     x -> Q -> DQ -> Conv(DQ(w), DQ(b)) -> Q -> DQ -> y

Every other node, and the names of all values, stay. A value that is computed in int8 has its name on the
DequantizeLinear. A value that is computed in float keeps its float consumers; only its int8 consumers use the pair.
uint8 images are quantized values with scale 1.

HardSwish of a quantized tensor has no int8 kernel, but two ops that have one. With the scale 3/k and the zero point k,

    hardswish(x) = x * clip(x / 6 + 1/2, 0, 1)      x = 3/k (q - k)      clip(x / 6 + 1/2, 0, 1) = clip(q, 0, 2k) / 2k
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from math import inf
from typing import Any

import numpy as np

from quantkit.errors import GraphError
from quantkit.formats import onnx
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.tensor import Array, DType, Tensor
from quantkit.ops.layers import WEIGHTS_INDEX
from quantkit.ops.roles import find_roles
from quantkit.ops.roles.onnx import INTEGER_BIAS_OPS
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.plan import FusedPattern, Plan
from quantkit.quantization.ranges import Range, Ranges
from quantkit.quantization.spec import Spec
from quantkit.quantization.targets.onnx.fused_gates import SILU as SILU_OP
from quantkit.quantization.targets.onnx.stated_shapes import infer_shapes
from quantkit.quantization.targets.workarounds import (
    AVERAGE,
    CAPTURE,
    MAXIMUM,
    PRODUCT,
    REDUCTION,
    SHUFFLE,
    SILU,
    is_needed,
)

# Quantized types in ONNX.
ONNX_TYPES = {DType.QUINT8: DType.UINT8, DType.QINT8: DType.INT8}
# Largest quantized bias: the int32 sum needs room for the products.
MAX_BIAS = float(1 << 29)
# Number format of uint8 images.
UINT8 = Spec(DType.QUINT8, symmetric=False)
# x * sigmoid(x) is above -0.003 for smaller values.
SILU_MINIMUM = -8.0
# Ops of a pixel shuffle: DepthToSpace, or a Transpose of more dimensions than an image between two Reshapes.
SHUFFLE_OPS = frozenset({"DepthToSpace", "Reshape", "Transpose"})
IMAGE_RANK = 4
# Ops that OpenVINO fuses as factors and summands if one operand is constant.
FACTOR_OPS = frozenset({"Mul", "Div", "Add", "Sub"})
# Ops after which ONNX Runtime moves a DequantizeLinear.
VIEW_OPS = frozenset({"MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})


def convert(graph: Graph, plan: Plan, ranges: Ranges, *, keeps_biases: bool = False) -> Graph:
    """Return the ONNX graph with quantized edges and weights.

    Args:
        graph: float ONNX graph, opset 13 or later.
        plan: plan of ``graph`` for the target ``onnx``.
        ranges: ranges of every edge of the plan.
        keeps_biases: True if biases, and tables that are also weights, stay float.

    Raises:
        InputError: a range is missing.
        GraphError: the plan does not fit the graph.
    """
    plan.require_ranges(ranges)
    return _NativeQuantization(graph, plan, ranges, keeps_biases=keeps_biases).graph()


def edge_parameters(graph: Graph, plan: Plan, ranges: Ranges) -> dict[Edge, QuantizationParameters]:
    """Return the quantization parameters of each edge of a plan."""
    return _NativeQuantization(graph, plan, ranges).parameters


class _NativeQuantization:
    """State of one conversion.

    Attributes:
        parameters: quantization parameters of each edge.
        gates: zero point k of each quantized input of a HardSwish.
        nodes: nodes of the quantized graph, by their names in the float graph.
        new_nodes: nodes that the conversion adds.
        names: names of all values.
        constants: float constants and Casts of images that quantized values replace.
    """

    def __init__(self, source: Graph, plan: Plan, ranges: Ranges, *, keeps_biases: bool = False) -> None:
        self.source, self.keeps_biases = source, keeps_biases
        self.plan = plan
        nonnegative, averages = plan.nonnegative_edges(source), self._clamped_averages()
        self.parameters: dict[Edge, QuantizationParameters] = {}
        self.gates: dict[Edge, int] = {}
        for edge, spec in plan.activations.items():
            if edge in averages:
                continue
            if spec.dtype is DType.QUINT8 and all(self._is_uint8_image(other) for other in plan.group_of(edge)):
                self.parameters[edge] = QuantizationParameters(UINT8, np.float32(1), np.int32(0))  # type: ignore[arg-type]
                continue
            least = 0.0 if plan.group_of(edge) - averages <= nonnegative else self._least_value(edge)
            limits = Range(0.0, 1.0) if self._is_gate(edge) else _clamp(ranges[edge], least)
            self.parameters[edge] = QuantizationParameters.of_range(spec, limits)
            if self._is_quantized_hard_swish(edge, spec):
                self.gates[edge] = zero = max(int(3 * spec.limits[1] / (3 + limits.high)), 1)
                self.parameters[edge] = replace(
                    self.parameters[edge], scale=np.array(3 / zero, np.float32), zero_point=np.array(zero, np.int32)
                )
        self.nodes = dict(source.nodes)
        self.new_nodes: list[Node] = []
        self.names = {*source.nodes, *(str(edge) for edge in source.uses), *_later_outputs(source)}
        self.constants: set[str] = set()
        self.weights: dict[tuple[str, bytes], Edge] = {}

    def _clamped_averages(self) -> frozenset[Edge]:
        """Return averages whose only consumer is a Relu: only the output of the Relu is quantized."""
        source, pass_through = self.source, set(self.plan.pass_through)
        edges = [source[name].inputs[0] for name in pass_through if source[name].op in ("Relu", "Clip")]
        return frozenset(
            edge
            for edge in edges
            if source[edge.node].op == "AveragePool"
            and edge.node in pass_through
            and len(source.node_uses[edge.node]) == 1
            and edge not in source.outputs
        )

    def _is_uint8_image(self, edge: Edge) -> bool:
        """Return True for the Cast of a uint8 input, also after pass-through ops."""
        node = self.source[edge.node]
        if node.name in self.plan.pass_through and len(node.inputs) == 1:
            return self._is_uint8_image(node.inputs[0])
        image = self.source[node.inputs[0].node] if node.op == "Cast" else node
        return image is not node and image.op == "Placeholder" and image.attrs.get("dtype") is DType.UINT8

    def _least_value(self, edge: Edge) -> float:
        """Return the limit below which all consumers of an edge compute 0: exactly for HardSwish, nearly for a SiLU."""
        if len(self.plan.group_of(edge)) > 1 or edge in self.source.outputs:
            return -inf
        consumers = self.source.consumers(edge)
        if {node.op for node in consumers} == {"HardSwish"}:
            return -3.0
        is_silu = _is_silu(edge, consumers) or {node.op for node in consumers} == {SILU_OP}
        return SILU_MINIMUM if is_silu else -inf

    def _is_gate(self, edge: Edge) -> bool:
        return self.source[edge.node].op == "Sigmoid" and len(self.plan.group_of(edge)) == 1

    def _is_quantized_hard_swish(self, edge: Edge, spec: Spec) -> bool:
        consumers = {node.name for node in self.source.consumers(edge)}
        return self._least_value(edge) == -3.0 and consumers <= {*self.plan.pass_through} and spec.limits[0] == 0

    def graph(self) -> Graph:
        """Return the quantized graph."""
        for pattern in self.plan.patterns:
            if pattern.weights:
                self._quantize_layer(pattern)
        self._store_tables()
        if not self.keeps_biases:
            self._store_tables_once()
        int8_nodes, int8_consumers = self._int8_nodes()
        outputs = [edge for edge in self.parameters if edge.node in int8_nodes and edge in self.source.outputs]
        for edge in [edge for edge in self.parameters if edge not in outputs]:
            self._quantize_edge(edge, is_int8=edge.node in int8_nodes, int8_consumers=int8_consumers)
        self._split_hard_swishes()
        steps = {
            AVERAGE: self._prevent_int8_averages,
            MAXIMUM: self._prevent_int8_maxima,
            PRODUCT: self._prevent_float_products,
            CAPTURE: self._quantize_captured_views,
            SHUFFLE: self._prevent_late_dequantization,
            REDUCTION: self._prevent_wrong_factors,
            SILU: self._merge_silu_inputs,
        }
        for name, apply in steps.items():
            if is_needed(name, self.plan.scheme.runtime):
                apply()
        for edge in outputs:
            self._quantize_output(edge)
        graph = self.source.with_nodes([*self.nodes.values(), *self.new_nodes])
        unused = {name for name in self.constants if name not in graph.node_uses and name not in graph.endpoint_names}
        return graph.with_nodes(node for name, node in graph.nodes.items() if name not in unused)

    def _int8_nodes(self) -> tuple[set[str], set[str]]:
        """Return the nodes that compute int8 outputs, and those that consume int8 inputs."""
        int8_nodes, int8_consumers = set(self.plan.pass_through), set(self.plan.pass_through)
        quantized_output_ops = find_roles(self.source).quantized_output_ops
        for pattern in self.plan.patterns:
            if self.source[pattern.layer].op in quantized_output_ops:
                int8_nodes.update(pattern.nodes)
            int8_consumers.update((pattern.layer, pattern.add))
        return int8_nodes, int8_consumers

    def _add(self, node: Node) -> Edge:
        """Add a node under its name, or the next free one; return its edge."""
        name = node.name
        if name in self.names:
            name = next(numbered for number in count(1) if (numbered := f"{name}_{number}") not in self.names)
        self.names.add(name)
        self.new_nodes.append(node.with_(name=name))
        return Edge(name)

    def _add_constant(self, name: str, values: Array | Tensor) -> Edge:
        value = values if isinstance(values, Tensor) else Tensor.of(values)
        return self._add(Node(name, "Constant", attrs={"value": value}))

    # Layers

    def _quantize_layer(self, pattern: FusedPattern) -> None:
        layer = self.nodes.get(pattern.layer)
        weights = self.source.constant_of(Edge(pattern.weights)) if pattern.weights in self.source else None
        if layer is None or weights is None or pattern.input not in self.parameters:
            raise GraphError(
                f"the fused pattern {pattern.name!r} of the plan is not in the graph", hint="annotate the graph again"
            )
        spec = self.plan.weights[pattern.weights]
        step = np.float64(self.parameters[pattern.input].scale)
        parameters = QuantizationParameters.of_weights(spec, weights.array)
        bias_name, slot = ("", 0) if self.keeps_biases else self._bias_input(pattern)
        bias = self._bias_of(bias_name, slot, parameters)
        parameters = _fit_bias(parameters, step, bias)
        quantized = Tensor(ONNX_TYPES[spec.dtype], weights.shape, partial(_quantize, weights, parameters))
        axis = spec.axes[0] if parameters.scale.shape else None
        # Layers with the same weights share the nodes.
        key = (pattern.weights, parameters.scale.tobytes())
        if key not in self.weights:
            self.weights[key] = self._dequantize(f"{layer.name}/weights", quantized, parameters.scale, axis)
        self.constants.add(pattern.weights)
        self.nodes[layer.name] = layer.with_input(WEIGHTS_INDEX, self.weights[key])
        if bias is not None:
            scales = (step * parameters.scale).astype(np.float32)
            values = Tensor.of(np.rint(bias / (step * parameters.scale)).astype(np.int32))
            node = self.nodes[bias_name]
            edge = self._dequantize(f"{layer.name}/bias", values, scales, 0 if scales.shape else None)
            self.constants.add(node.inputs[slot].node)
            self.nodes[bias_name] = node.with_input(slot, edge)

    def _store_tables(self) -> None:
        """Store the tables of the plan in int8, with a scale for each row; only the gathered rows are dequantized."""
        tables: dict[str, tuple[Edge, Edge]] = {}
        for name in self.plan.tables:
            table, ids = self.source[name].inputs
            if table.node not in tables:
                values = self.source[table.node].value
                parameters = QuantizationParameters.of_weights(self.plan.weights[table.node], values.array)
                stored = Tensor(DType.INT8, values.shape, partial(_quantize, values, parameters))
                scales = parameters.scale.reshape(-1, 1)
                tables[table.node] = (
                    self._add_constant(f"{name}/table", stored),
                    self._add_constant(f"{name}/table_scales", scales),
                )
            quantized, steps = tables[table.node]
            rows = self._add(Node(f"{name}/rows", "Gather", (quantized, ids)))
            wide = self._add(Node(f"{name}/wide", "Cast", (rows,), attrs={"to": 1}))
            scale = self._add(Node(f"{name}/scales", "Gather", (steps, ids)))
            self.nodes[name] = Node(name, "Mul", (wide, scale))
            self.constants.add(table.node)

    def _store_tables_once(self) -> None:
        """Store a table once that is also the weights of a layer, or their transpose.

            before    Gather(table, ids)
            after     Cast(Gather(quantized, ids)) * Gather(scales, ids)      between Transposes for columns

        A DequantizeLinear before the Gather would compute all rows in each run.
        """
        for node in self.source.nodes.values():
            table = self.source.constant_of(node.inputs[0]) if node.op == "Gather" and len(node.inputs) == 2 else None
            if table is None or len(table.shape) != 2 or node.name in (*self.plan.pass_through, *self.plan.tables):
                continue
            for name, _ in self.weights:
                weights = self.source[name].value
                if sorted(table.shape) == sorted(weights.shape):
                    is_equal = np.array_equal(table.array, weights.array)
                    if is_equal or np.array_equal(table.array, weights.array.T):
                        self._gather_quantized(node, name, is_transposed=not is_equal)
                        break

    def _gather_quantized(self, gather: Node, name: str, *, is_transposed: bool) -> None:
        ids, gathers_columns = gather.inputs[1], gather.attrs.get("axis") in (1, -1)
        axis = int(is_transposed != gathers_columns)
        rank = infer_shapes(self.source).get(ids, UNKNOWN).rank
        if rank is None and (axis or gathers_columns):
            return
        edge = next(edge for (weights, _), edge in self.weights.items() if weights == name)
        dequantize = next(node for node in self.new_nodes if node.name == edge.node)
        quantized, scale, _ = dequantize.inputs
        rows = self._add(Node(f"{gather.name}/codes", "Gather", (quantized, ids), attrs={"axis": axis}))
        if rank is not None and axis:
            perm = (*range(1, rank + 1), 0)
            rows = self._add(Node(f"{gather.name}/rows", "Transpose", (rows,), attrs={"perm": perm}))
        wide = self._add(Node(f"{gather.name}/wide", "Cast", (rows,), attrs={"to": 1}))
        if dequantize.attrs.get("axis") == axis:
            scales = self._add(Node(f"{gather.name}/scales", "Gather", (scale, ids)))
            last = self._add_constant(f"{gather.name}/last", np.array([-1], np.int64))
            scale = self._add(Node(f"{gather.name}/steps", "Unsqueeze", (scales, last)))
        product = Node(gather.name, "Mul", (wide, scale))
        if rank is not None and gathers_columns:
            source = self._add(product.with_(name=f"{gather.name}/product"))
            product = Node(gather.name, "Transpose", (source,), attrs={"perm": (rank, *range(rank))})
        self.nodes[gather.name] = product
        self.constants.add(gather.inputs[0].node)

    def _bias_input(self, pattern: FusedPattern) -> tuple[str, int]:
        """Return the node and the input index of the bias that a kernel adds; an empty name without such a bias."""
        layer = self.source[pattern.layer]
        bias_input = find_roles(self.source).bias_input(self.source, layer, pattern.bias)
        if bias_input is None or bias_input[1] >= len(bias_input[0].inputs):
            return "", 0
        node, slot = bias_input
        # ONNX Runtime computes a product and an Add as a Gemm if the bias is a vector or a matrix with one row.
        is_added = layer.op in INTEGER_BIAS_OPS or len(self.source[node.inputs[slot].node].value.shape) <= 2
        return (node.name if is_added else ""), slot

    def _bias_of(self, name: str, slot: int, parameters: QuantizationParameters) -> Array | None:
        """Return the bias at an input of a node, (c,), or of any size with a single scale; None without a bias."""
        if not name:
            return None
        bias = self.source[self.source[name].inputs[slot].node].value.array.reshape(-1)
        return np.broadcast_to(bias, (parameters.scale.size if parameters.scale.shape else bias.size,))

    def _dequantize(self, name: str, values: Tensor, scales: Array, axis: int | None) -> Edge:
        """Add a DequantizeLinear of a quantized constant; return its edge."""
        quantized = self._add_constant(f"{name}/codes", values)
        scale = self._add_constant(f"{name}/scale", scales.astype(np.float32))
        zero = self._add_constant(f"{name}/zero", np.zeros(scales.shape, values.dtype.numpy))
        attrs: dict[str, Attr] = {} if axis is None else {"axis": axis}
        return self._add(Node(f"{name}/values", "DequantizeLinear", (quantized, scale, zero), attrs=attrs))

    # Edges

    def _quantize_edge(self, edge: Edge, *, is_int8: bool, int8_consumers: set[str]) -> None:
        """Insert a pair after an edge; without an int8 producer, only int8 consumers use it."""
        name = onnx.value_name(self.source[edge.node], edge.port)
        values = self._add(self._dequantize_node(f"{name}/values", name, edge, self.parameters[edge]))
        consumers = {use.node.name for use in self.source.uses.get(edge, ())}
        for consumer in consumers if is_int8 else consumers & int8_consumers:
            node = self.nodes[consumer]
            inputs = tuple(values if source == edge else source for source in node.inputs)
            self.nodes[consumer] = node.with_(inputs=inputs)

    def _quantize_output(self, edge: Edge) -> None:
        """Insert a pair after a graph output with an int8 producer; its name becomes that of the DequantizeLinear."""
        node = self.nodes[edge.node]
        source = self._add(node.with_(name=f"{node.name}/float"))
        self.nodes[edge.node] = self._dequantize_node(node.name, node.name, source, self.parameters[edge])

    def _dequantize_node(self, name: str, prefix: str, source: Edge, parameters: QuantizationParameters) -> Node:
        """Add a QuantizeLinear of an edge; return the DequantizeLinear, which is not added."""
        scale = self._add_constant(f"{prefix}/scale", parameters.scale)
        zero = self._add_constant(f"{prefix}/zero", parameters.zero_point.astype(parameters.spec.dtype.numpy))
        if parameters.spec is UINT8 and self.source[source.node].op == "Cast":
            quantized = self.source[source.node].inputs[0]
            self.constants.add(source.node)
        else:
            quantized = self._add(Node(f"{prefix}/codes", "QuantizeLinear", (source, scale, zero)))
        return Node(name, "DequantizeLinear", (quantized, scale, zero))

    def _split_hard_swishes(self) -> None:
        """Replace each HardSwish of a quantized tensor by a product of the tensor and its gate."""
        added = {node.name: node for node in self.new_nodes}
        for edge, zero in self.gates.items():
            for consumer in self.source.consumers(edge):
                node = self.nodes[consumer.name]
                gate = added[node.inputs[0].node].inputs[0]
                zero_point = self._add_constant(f"{node.name}/zero", np.array(0, np.uint8))
                if 2 * zero < 255:
                    limit = self._add_constant(f"{node.name}/limit", np.array(2 * zero, np.uint8))
                    gate = self._add(Node(f"{node.name}/clipped", "Clip", (gate, zero_point, limit)))
                scale = self._add_constant(f"{node.name}/scale", np.array(1 / (2 * zero), np.float32))
                values = self._add(Node(f"{node.name}/gate", "DequantizeLinear", (gate, scale, zero_point)))
                self.nodes[node.name] = node.with_(op="Mul", inputs=(node.inputs[0], values))

    def _prevent_int8_averages(self) -> None:
        """Prevent ONNX Runtime from fusing an average pool.

        The runtime fuses an average between DequantizeLinear and QuantizeLinear, but not with a Concat of one tensor
        after it. OpenVINO removes such a Concat and computes the average in int8.
        """
        for name in self.plan.pass_through:
            if self.nodes[name].op == "AveragePool":
                self._prevent_fusion(name, "average", 1)

    def _prevent_int8_maxima(self) -> None:
        """Prevent ONNX Runtime from moving a QuantizeLinear before a float MaxPool, whose int8 kernel is slow there."""
        pools = {edge.node for edge in self.parameters if self.source[edge.node].op == "MaxPool" and edge.port == 0}
        for name in sorted(pools.difference(self.plan.pass_through)):
            self._prevent_fusion(name, "maximum", 1)

    def _prevent_float_products(self) -> None:
        """Prevent ONNX Runtime from computing a product and the Add of a computed tensor as a Gemm in float."""
        for pattern in self.plan.patterns:
            consumers = [use.node for use in self.source.uses.get(pattern.output, ())]
            is_sum = len(consumers) == 1 and consumers[0].op == "Add" and pattern.output not in self.parameters
            if self.source[pattern.layer].op == "MatMul" and not pattern.bias and is_sum:
                self._prevent_fusion(pattern.layer, "product", -1)

    def _quantize_captured_views(self) -> None:
        """Insert a pair after each view of dequantized values that subgraphs capture.

        ONNX Runtime moves a DequantizeLinear after a view, to an input of the consumer. A captured value has no input.
        """
        added = {node.name: node for node in self.new_nodes}
        for name in sorted({name for node in self.nodes.values() for name in node.controls}):
            node = self.nodes[name]
            while node.op in VIEW_OPS | {"Identity"} and node.inputs[0].node in self.nodes:
                node = self.nodes[node.inputs[0].node]
            dequantize = added.get(node.inputs[0].node) if node.op in VIEW_OPS else None
            if dequantize is not None and dequantize.op == "DequantizeLinear" and "axis" not in dequantize.attrs:
                view = self._add(self.nodes[name].with_(name=f"{name}/view"))
                parameters = dequantize.inputs[1:]
                quantized = self._add(Node(f"{name}/view/codes", "QuantizeLinear", (view, *parameters)))
                self.nodes[name] = Node(name, "DequantizeLinear", (quantized, *parameters))

    def _prevent_late_dequantization(self) -> None:
        """Prevent OpenVINO from moving a DequantizeLinear after the pixel shuffle of an output.

        Its subtraction of the zero point is slow in images of one channel. No value is below the limit.
        """
        for pattern in self.plan.patterns:
            shuffle = _find_last_shuffle(self.source, pattern.output) if pattern.output in self.parameters else None
            if shuffle is not None:
                self._insert_maximum(shuffle.name, 0)

    def _prevent_wrong_factors(self) -> None:
        """Prevent OpenVINO from fusing a reduction that drops axes with factors or summands of channels after it."""
        slots: dict[str, int] = {}
        for edge in self.parameters:
            name, slot = "", 0
            while (node := self.source[edge.node]).op in FACTOR_OPS and not (name and edge in self.parameters):
                constants = [self.source.constant_of(source) is not None for source in node.inputs]
                if sum(constants) != 1 or (node.op == "Div" and constants[0]):
                    break
                name, slot = node.name, constants.index(False)
                edge = node.inputs[slot]
            is_fused = name and edge not in self.parameters
            if is_fused and node.op.startswith("Reduce") and node.attrs.get("keepdims", 1) == 0:
                slots[name] = slot
        for name, slot in slots.items():
            self._insert_maximum(name, slot)

    def _insert_maximum(self, name: str, slot: int) -> None:
        """Insert a Max with -inf, which OpenVINO neither removes nor fuses, before an input of a node."""
        node = self.nodes[name]
        limit = self._add_constant(f"{name}/limit", np.array(-inf, np.float32))
        maximum = self._add(Node(f"{name}/maximum", "Max", (node.inputs[slot], limit)))
        self.nodes[name] = node.with_input(slot, maximum)

    def _merge_silu_inputs(self) -> None:
        """Give Sigmoid and Mul of a SiLU, x * sigmoid(x), a common input that is not a DequantizeLinear.

        ONNX Runtime copies a DequantizeLinear for each consumer, after which it cannot fuse the SiLU.
        """
        consumers: dict[Edge, list[Node]] = {}
        for node in (*self.nodes.values(), *self.new_nodes):
            for edge in set(node.inputs):
                consumers.setdefault(edge, []).append(node)
        dequantized = {Edge(node.name) for node in self.new_nodes if node.op == "DequantizeLinear"}
        for edge in sorted(dequantized & set(consumers), key=str):
            if _is_silu(edge, consumers[edge]):
                copy = self._add(Node(f"{edge}/copy", "Concat", (edge,), attrs={"axis": 0}))
                for node in consumers[edge]:
                    inputs = tuple(copy if source == edge else source for source in node.inputs)
                    self.nodes[node.name] = node.with_(inputs=inputs)

    def _prevent_fusion(self, name: str, suffix: str, axis: int) -> None:
        """Insert a Concat of one tensor after a node; it takes the name of the node."""
        source = self._add(self.nodes[name].with_(name=f"{name}/{suffix}"))
        self.nodes[name] = Node(name, "Concat", (source,), attrs={"axis": axis})


def _find_last_shuffle(graph: Graph, edge: Edge) -> Node | None:
    """Return the consumer of an edge if it starts a pixel shuffle whose output is an output of the graph, else None."""
    nodes: list[Node] = []
    while len(consumers := graph.consumers(edge)) == 1 and consumers[0].op in SHUFFLE_OPS:
        nodes.append(consumers[0])
        edge = Edge(consumers[0].name)
    is_shuffle = any(node.op == "DepthToSpace" or len(_permutation(node)) > IMAGE_RANK for node in nodes)
    return nodes[0] if is_shuffle and edge in graph.outputs else None


def _permutation(node: Node) -> Sequence[int]:
    perm: Any = node.attrs.get("perm", ())
    return tuple(perm)


def _is_silu(edge: Edge, consumers: Sequence[Node]) -> bool:
    """Return True if the consumers of an edge are the two ops of x * sigmoid(x)."""
    ops = {node.op: node for node in consumers}
    return set(ops) == {"Sigmoid", "Mul"} and set(ops["Mul"].inputs) == {edge, Edge(ops["Sigmoid"].name)}


def _later_outputs(graph: Graph) -> Iterator[str]:
    """Yield the value names of all outputs of nodes with several outputs."""
    for node in graph.nodes.values():
        names = node.attrs.get(onnx.OUTPUTS)
        yield from (name.decode() for name in (names if isinstance(names, tuple) else ()))


def _clamp(limits: Range, least: float) -> Range:
    """Return the range without values below a limit."""
    return Range(max(limits.low, least), max(limits.high, least))


def _quantize(weights: Tensor, parameters: QuantizationParameters) -> Array:
    return parameters.quantize(weights.array)


def _fit_bias(parameters: QuantizationParameters, step: float, bias: Array | None) -> QuantizationParameters:
    """Return the parameters of weights, with larger scales if the bias would not fit into 32 bits."""
    if bias is None:
        return parameters
    least = np.abs(bias) / (step * MAX_BIAS)
    return replace(
        parameters,
        scale=np.maximum(parameters.scale, least if parameters.scale.ndim else least.max()).astype(np.float32),
    )
