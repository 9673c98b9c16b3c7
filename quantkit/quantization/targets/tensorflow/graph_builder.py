"""A graph of 8-bit ops while it grows, in execution order."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, count

import numpy as np
import numpy.typing as npt

from quantkit.errors import GraphError
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.ops.tensorflow.in_place_sums import copy_shared_summands
from quantkit.quantization.plan import FusedPattern, Plan
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.targets.tensorflow.parameters import (
    QUANTIZED,
    TOP,
    QuantizedTensor,
    casts_bytes,
    edge_parameters,
    quantized_name,
)

RELU6_TOP = 6.0
AGAIN = "the plan was made for another graph: annotate once more"


@dataclass
class GraphBuilder:
    """The graph while it grows, in execution order.

    Attributes:
        source: the float graph.
        plan: of it.
        ranges: of every edge of the plan.
        reasons: why planned nodes stay float nevertheless, by node.
        shapes: of the float graph's edges, as far as they are known.
        edge_parameters: what codes of its edges mean.
        nodes: of the new graph, by name.
        quantized: where codes of the float graph's edges are.
        scalars: float constants by their numbers.
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

    def graph(self) -> Graph:
        """What the ends need of all that was added."""
        made = Graph.of(
            [node.with_(controls=self._controls(node)) for node in self.nodes.values()],
            self.source.inputs,
            self.source.outputs,
            versions=self.source.versions,
            library=self.source.library,
            extra=self.source.extra,
        )
        ordered = copy_shared_summands(made)
        needed = ordered.reachable() | ordered.input_names
        return ordered.with_nodes(node for node in ordered.nodes.values() if node.name in needed)

    def sizes(self) -> dict[str, Shape]:
        """Shapes of the nodes that hold codes."""
        return {quantized.edge.node: self.shapes.get(edge, UNKNOWN) for edge, quantized in self.quantized.items()}

    def _controls(self, node: Node) -> tuple[str, ...]:
        """Those that are still there: inside a pattern nothing can be waited for."""
        return tuple(name for name in node.controls if name in self.nodes)

    # Nodes

    def add(self, name: str, op: str, inputs: Sequence[Edge], **attrs: Attr) -> Edge:
        """A new node; its first output."""
        free = self._free(name)
        self.nodes[free] = Node(free, op, tuple(inputs), attrs=attrs)
        return Edge(free)

    def constant(self, name: str, values: npt.ArrayLike, dtype: DType | None = None) -> Edge:
        """A new constant."""
        free = self._free(name)
        self.nodes[free] = constant(free, values, dtype)
        return Edge(free)

    def _free(self, name: str) -> str:
        """The wanted name, or that with a number where it is taken."""
        names = chain([name], (f"{name}_{number}" for number in count(1)))
        return next(free for free in names if free not in self.nodes and free not in self.source)

    def scalar(self, value: float) -> Edge:
        """A float constant; equal ones are one node."""
        if value not in self.scalars:
            self.scalars[value] = self.constant(f"quantized/range_{len(self.scalars)}", np.float32(value))
        return self.scalars[value]

    def span(self, *quantized: QuantizedTensor) -> list[Edge]:
        """The least and the greatest number of codes, as kernels take them."""
        return [edge for one in quantized for edge in (self.scalar(0.0), self.scalar(one.high))]

    def keep(self, node: Node) -> None:
        """Take a node over in float."""
        for edge in node.inputs:
            self.float_of(edge)
        self.nodes[node.name] = node

    def keep_pattern(self, pattern: FusedPattern, reason: str) -> None:
        """Take a layer and what belongs to it over in float."""
        self.reasons[pattern.layer] = reason
        for name in pattern.nodes:
            for edge in self.source[name].inputs:
                if edge.node not in self.nodes and self.source[edge.node].is_constant:
                    self.keep(self.source[edge.node])
            self.keep(self.source[name])

    # Codes and numbers

    def parameters_of(self, edge: Edge) -> QuantizedTensor | None:
        """What codes of an edge mean, with nowhere to find them; None: it has none."""
        parameters = self.parameters.get(edge)
        return (
            None
            if parameters is None
            else QuantizedTensor(Edge(""), float(parameters.scale), int(parameters.zero_point))
        )

    def quantized_of(self, edge: Edge) -> QuantizedTensor:
        """The codes of an edge; they are computed where it is float."""
        if edge not in self.quantized:
            wanted = self.parameters_of(edge)
            if wanted is None:
                raise GraphError(f"the plan reads codes of {str(edge)!r} and gives it none", hint=AGAIN)
            self.quantized[edge] = self._quantize(quantized_name(edge), edge, wanted)
        return self.quantized[edge]

    def _quantize(self, name: str, edge: Edge, wanted: QuantizedTensor) -> QuantizedTensor:
        source = self.source.nodes.get(edge.node)
        if source is not None and casts_bytes(source) and (wanted.scale, wanted.zero) == (1.0, 0):
            made = self.add(name, "Bitcast", source.inputs, T=DType.UINT8, type=QUANTIZED)
            return wanted._replace(edge=made)
        ends = self.float_ends(wanted)
        made = self.add(name, "QuantizeV2", (edge, *ends), T=QUANTIZED, mode=wanted.mode, ensure_minimum_range=0.0)
        return wanted._replace(edge=made)

    def float_ends(self, quantized: QuantizedTensor) -> tuple[Edge, Edge]:
        """The numbers that the lowest and the highest code stand for."""
        step = np.float32(quantized.scale)
        return self.scalar(float(-quantized.zero * step)), self.scalar(float((TOP - quantized.zero) * step))

    def float_of(self, edge: Edge) -> None:
        """See that an edge of the float graph is there in float, under its name."""
        if edge.node in self.nodes:
            return
        quantized = self.quantized.get(edge)
        if quantized is None:
            if self.source[edge.node].is_constant:
                self.nodes[edge.node] = self.source[edge.node]
                return
            raise GraphError(f"{str(edge)!r} is inside a pattern and read from outside it", hint=AGAIN)
        inputs = (quantized.edge, *self.float_ends(quantized))
        self.nodes[edge.node] = Node(edge.node, "Dequantize", inputs, attrs=_decoding(quantized))

    def requantized(self, name: str, quantized: QuantizedTensor, wanted: QuantizedTensor) -> QuantizedTensor:
        """The same numbers in other codes."""
        if (quantized.scale, quantized.zero) == (wanted.scale, wanted.zero):
            return quantized
        inputs = (quantized.edge, *self.float_ends(quantized))
        numbers = self.add(f"{name}/float", "Dequantize", inputs, **_decoding(quantized))
        return self._quantize(f"{name}/recoded", numbers, wanted)

    # Moves

    def clipped(self, name: str, op: str, quantized: QuantizedTensor) -> Edge:
        """Codes after a Relu or Relu6, where their range does not clip by itself."""
        low, high = self.float_ends(quantized)
        above = op == "Relu6" and (TOP - quantized.zero) * quantized.scale > RELU6_TOP * (1 + 1e-6)
        if not above and not quantized.zero:
            return quantized.edge
        kernel = "QuantizedRelu6" if above else "QuantizedRelu"
        return self.add(name, kernel, (quantized.edge, low, high), Tinput=QUANTIZED, out_type=QUANTIZED)

    def on_bytes(self, name: str, node: Node, quantized: QuantizedTensor) -> Edge:
        """Codes moved by an op that has no kernel for codes and one for bytes."""
        bytes_ = self.add(f"{name}/bytes", "Bitcast", (quantized.edge,), T=QUANTIZED, type=DType.UINT8)
        for edge in node.inputs[1:]:
            if edge.node not in self.nodes:
                self.float_of(edge)
        attrs = {key: value for key, value in node.attrs.items() if not key.startswith("_")}
        inputs = [bytes_, *node.inputs[1:]]
        op = node.op
        if op == "Pad":
            op = "PadV2"
            inputs.append(self.constant(f"{name}/zero", np.uint8(quantized.zero)))
        moved = self.add(f"{name}/moved", op, inputs, **{**attrs, "T": DType.UINT8})
        return self.add(name, "Bitcast", (moved,), T=DType.UINT8, type=QUANTIZED)


def _decoding(quantized: QuantizedTensor) -> dict[str, Attr]:
    """Attributes of what makes numbers of codes."""
    return {"T": QUANTIZED, "mode": quantized.mode, "dtype": DType.FLOAT}
