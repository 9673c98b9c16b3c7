"""Builder of a graph of oneDNN ops, in execution order."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, count

import numpy as np
import numpy.typing as npt

from quantkit.errors import GraphError
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.ops.tensorflow.frames import NEXT_ITERATIONS
from quantkit.ops.tensorflow.in_place_sums import copy_shared_summands
from quantkit.quantization.plan import FusedPattern, Plan
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.targets.tensorflow.parameters import (
    ACTIVATION_TYPE,
    MAX_VALUE,
    QuantizedTensor,
    casts_uint8,
    edge_parameters,
    quantized_name,
    requantized_name,
)

RELU6_MAX = 6.0
ANNOTATE_AGAIN = "the plan was made for another graph: annotate this graph"


@dataclass
class GraphBuilder:
    """Graph of oneDNN ops under construction, in execution order.

    Attributes:
        source: float graph.
        plan: plan of ``source``.
        ranges: ranges of every edge of the plan.
        reasons: reasons of planned nodes that stay float, by node name.
        shapes: shapes of the float graph's edges; some may be unknown.
        parameters: quantization parameters of the planned edges.
        nodes: nodes of the new graph, by name.
        quantized: quantized tensors, by edge of the float graph.
        scalars: edges of float constants, by value.
        weights: edges of quantized weights and their limits, by constant of the float graph and transposition.
    """

    source: Graph
    plan: Plan
    ranges: Ranges
    reasons: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shapes = infer_shapes(self.source)
        self.parameters = edge_parameters(self.source, self.plan, self.ranges)
        self.nodes: dict[str, Node] = {}
        self.quantized: dict[Edge, QuantizedTensor] = {}
        self.scalars: dict[float, Edge] = {}
        self.weights: dict[tuple[str, bool], tuple[Edge, Edge, Edge]] = {}

    def graph(self) -> Graph:
        """Return the graph, with the nodes that its outputs need."""
        graph = Graph.of(
            [node.with_(controls=self._controls(node)) for node in self.nodes.values()],
            self.source.inputs,
            self.source.outputs,
            versions=self.source.versions,
            library=self.source.library,
            extra=self.source.extra,
        )
        return copy_shared_summands(graph).without_unused_nodes()

    def quantized_shapes(self) -> dict[str, Shape]:
        """Return the shapes of the quantized tensors, by node name."""
        return {tensor.edge.node: self.shapes.get(edge, UNKNOWN) for edge, tensor in self.quantized.items()}

    def _controls(self, node: Node) -> tuple[str, ...]:
        """Return the control dependencies that still exist: nodes inside a fused pattern do not."""
        return tuple(name for name in node.controls if name in self.nodes)

    # Nodes

    def add(self, name: str, op: str, inputs: Sequence[Edge], **attrs: Attr) -> Edge:
        """Add a node; return its first output."""
        unique = self._unique_name(name)
        self.nodes[unique] = Node(unique, op, tuple(inputs), attrs=attrs)
        return Edge(unique)

    def constant(self, name: str, values: npt.ArrayLike, dtype: DType | None = None) -> Edge:
        """Add a constant; return its edge."""
        unique = self._unique_name(name)
        self.nodes[unique] = constant(unique, values, dtype)
        return Edge(unique)

    def _unique_name(self, name: str) -> str:
        """Return the name, with a number appended if it is in use."""
        names = chain([name], (f"{name}_{number}" for number in count(1)))
        return next(free for free in names if free not in self.nodes and free not in self.source)

    def scalar(self, value: float) -> Edge:
        """Return the edge of a float constant; equal values have one node."""
        if value not in self.scalars:
            self.scalars[value] = self.constant(f"quantized/range_{len(self.scalars)}", np.float32(value))
        return self.scalars[value]

    def unshifted_limits(self, *tensors: QuantizedTensor) -> list[Edge]:
        """Return the edges of minimum and maximum that kernels without a zero point take."""
        return [edge for tensor in tensors for edge in (self.scalar(0.0), self.scalar(tensor.max_unshifted))]

    def keep(self, node: Node) -> None:
        """Add a node of the float graph."""
        for edge in node.inputs:
            if self.source[edge.node].op not in NEXT_ITERATIONS:  # these follow the Merge that consumes them
                self.require_float(edge)
        self.nodes[node.name] = node

    def keep_pattern(self, pattern: FusedPattern, reason: str) -> None:
        """Add the nodes of a fused pattern in float, and note the reason."""
        self.reasons[pattern.layer] = reason
        for name in pattern.nodes:
            for edge in self.source[name].inputs:
                if edge.node not in self.nodes and self.source[edge.node].is_constant:
                    self.keep(self.source[edge.node])
            self.keep(self.source[name])

    # Quantize and dequantize

    def planned_tensor(self, edge: Edge) -> QuantizedTensor | None:
        """Return the planned scale and zero point of an edge, without a node; None if it stays float."""
        parameters = self.parameters.get(edge)
        if parameters is None:
            return None
        return QuantizedTensor(Edge(""), float(parameters.scale), int(parameters.zero_point))

    def quantized_tensor(self, edge: Edge) -> QuantizedTensor:
        """Return the quantized tensor of an edge; quantize the edge if it is float.

        Raises:
            GraphError: the plan does not quantize the edge.
        """
        if edge not in self.quantized:
            planned = self.planned_tensor(edge)
            if planned is None:
                raise GraphError(
                    f"the plan needs quantized values of {str(edge)!r} and does not quantize it", hint=ANNOTATE_AGAIN
                )
            self.quantized[edge] = self._quantize(quantized_name(edge), edge, planned)
        return self.quantized[edge]

    def _quantize(self, name: str, edge: Edge, planned: QuantizedTensor) -> QuantizedTensor:
        source = self.source.nodes.get(edge.node)
        if source is not None and casts_uint8(source) and (planned.scale, planned.zero) == (1.0, 0):
            output = self.add(name, "Bitcast", source.inputs, T=DType.UINT8, type=ACTIVATION_TYPE)
            return planned._replace(edge=output)
        inputs = (edge, *self.limits(planned))
        output = self.add(name, "QuantizeV2", inputs, T=ACTIVATION_TYPE, mode=planned.mode, ensure_minimum_range=0.0)
        return planned._replace(edge=output)

    def limits(self, tensor: QuantizedTensor) -> tuple[Edge, Edge]:
        """Return the edges of the real values of the lowest and the highest quantized value."""
        step = np.float32(tensor.scale)
        return self.scalar(float(-tensor.zero * step)), self.scalar(float((MAX_VALUE - tensor.zero) * step))

    def require_float(self, edge: Edge) -> None:
        """Add the float form of an edge of the float graph, under its name.

        Raises:
            GraphError: the edge is inside a fused pattern.
        """
        if edge.node in self.nodes:
            return
        tensor = self.quantized.get(edge)
        if tensor is None:
            if self.source[edge.node].is_constant:
                self.nodes[edge.node] = self.source[edge.node]
                return
            raise GraphError(
                f"{str(edge)!r} is inside a fused pattern and has a consumer outside it", hint=ANNOTATE_AGAIN
            )
        inputs = (tensor.edge, *self.limits(tensor))
        self.nodes[edge.node] = Node(edge.node, "Dequantize", inputs, attrs=_dequantize_attrs(tensor))

    def requantize(self, name: str, tensor: QuantizedTensor, planned: QuantizedTensor) -> QuantizedTensor:
        """Return a tensor with the planned scale and zero point."""
        if (tensor.scale, tensor.zero) == (planned.scale, planned.zero):
            return tensor
        inputs = (tensor.edge, *self.limits(tensor))
        dequantized = self.add(f"{name}/float", "Dequantize", inputs, **_dequantize_attrs(tensor))
        return self._quantize(requantized_name(name), dequantized, planned)

    # Ops on quantized values

    def clamp(self, name: str, op: str, tensor: QuantizedTensor) -> Edge:
        """Apply a Relu or Relu6, unless the range of the tensor clamps already; return the edge."""
        low, high = self.limits(tensor)
        exceeds = op == "Relu6" and (MAX_VALUE - tensor.zero) * tensor.scale > RELU6_MAX * (1 + 1e-6)
        if not exceeds and not tensor.zero:
            return tensor.edge
        kernel = "QuantizedRelu6" if exceeds else "QuantizedRelu"
        inputs = (tensor.edge, low, high)
        return self.add(name, kernel, inputs, Tinput=ACTIVATION_TYPE, out_type=ACTIVATION_TYPE)

    def apply_to_bytes(self, name: str, node: Node, tensor: QuantizedTensor) -> Edge:
        """Apply an op that has a uint8 kernel and no quint8 kernel; return the edge."""
        as_bytes = self.add(f"{name}/bytes", "Bitcast", (tensor.edge,), T=ACTIVATION_TYPE, type=DType.UINT8)
        for edge in node.inputs[1:]:
            if edge.node not in self.nodes:
                self.require_float(edge)
        attrs = {key: value for key, value in node.attrs.items() if not key.startswith("_")}
        inputs = [as_bytes, *node.inputs[1:]]
        op = node.op
        if op == "Pad":
            op = "PadV2"
            inputs.append(self.constant(f"{name}/zero", np.uint8(tensor.zero)))
        moved = self.add(f"{name}/moved", op, inputs, **{**attrs, "T": DType.UINT8})
        return self.add(name, "Bitcast", (moved,), T=DType.UINT8, type=ACTIVATION_TYPE)


def _dequantize_attrs(tensor: QuantizedTensor) -> dict[str, Attr]:
    return {"T": ACTIVATION_TYPE, "mode": tensor.mode, "dtype": DType.FLOAT}
