"""Constant folding of ONNX graphs: values of nodes without other inputs than constants, and sizes that are fixed."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from quantkit.errors import QuantkitError
from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import Array, Tensor
from quantkit.ops.onnx.kernels import evaluate, has_kernel
from quantkit.ops.onnx.shapes import is_stateful
from quantkit.ops.size_inference import as_tensor
from quantkit.transforms._names import names_in_subgraphs
from quantkit.transforms.onnx._facts import GraphFacts, constant_node, num_outputs

# Maximum size in bytes by which a value may exceed the constants that it is computed from.
MAX_EXTRA_BYTES = 1 << 20
# Ops that stay: folding would store int8 weights as float.
QUANTIZED = frozenset({"DequantizeLinear"})


def fold(
    graph: Graph, exclude_op: frozenset[str], exclude_node: frozenset[str], limit: int, *, copies: bool = False
) -> Outcome:
    """Return the graph with constants instead of nodes whose values are known.

    Args:
        graph: graph of dialect ``onnx``.
        exclude_op: op types to skip.
        exclude_node: nodes to skip.
        limit: maximum size of a new constant in bytes, unless it is not larger than the constants it replaces.
        copies: True if a new constant may be large although other nodes use the constants that it is computed from.
    """
    return _ConstantFolding(GraphFacts.of(graph), exclude_op, exclude_node, limit, copies).outcome()


@dataclass
class _ConstantFolding:
    """State of constant folding in one graph.

    Attributes:
        values: known values by edge, the constants of the graph included.
        aliases: constants by the edges that have the same value.
    """

    facts: GraphFacts
    exclude_op: frozenset[str]
    exclude_node: frozenset[str]
    limit: int
    copies: bool
    values: dict[Edge, Tensor] = field(default_factory=dict)
    aliases: dict[Edge, Edge] = field(default_factory=dict)
    skips: list[Skip] = field(default_factory=list)

    def outcome(self) -> Outcome:
        """Fold all nodes."""
        graph, changes = self.facts.graph, list[str]()
        for name in graph.order:
            self._visit(graph[name])
        nodes = self._nodes(changes)
        folded = graph.with_nodes(nodes).without_unused_nodes(stop_at_inputs=False)
        return Outcome(folded, tuple(changes), tuple(self.skips))

    def _visit(self, node: Node) -> None:
        """Compute a node if its value is known."""
        graph, edge = self.facts.graph, Edge(node.name)
        if node.name in graph.input_names or node.op in ("Placeholder", "Absent"):
            return
        if node.is_constant and isinstance(node.attrs.get("value"), Tensor):
            self.values[edge] = node.value
            return
        if onnx.INITIALIZER_BYTES in node.attrs or node.op in self.exclude_op or node.name in self.exclude_node:
            return
        for port in range(num_outputs(node)):
            sizes = self.facts.inference.sizes.get(Edge(node.name, port))
            dtype = self.facts.types.get(Edge(node.name, port))
            if sizes is not None and (value := as_tensor(sizes, dtype)) is not None:
                self.values[Edge(node.name, port)] = value
        if edge in self.values:
            return
        inputs = self._value_inputs(node)
        if node.is_constant or (inputs and all(not each.node or each in self.values for each in inputs)):
            reason = self._reason_to_stay(node) or self._compute(node)
            if reason:
                self.skips.append(Skip(reason, node.name))

    def _value_inputs(self, node: Node) -> tuple[Edge, ...]:
        """Return the inputs whose values affect a node: of CastLike only the element type of the second one."""
        is_typed = node.op == "CastLike" and node.inputs[-1] in self.facts.types
        return node.inputs[:1] if is_typed else node.inputs

    def _reason_to_stay(self, node: Node) -> str:
        if node.op in QUANTIZED:
            return "folding would store quantized weights as float"
        if "." in node.op or is_stateful(node.op):
            return f"{node.op} is random, runs subgraphs, or belongs to another domain"
        if not has_kernel(node.op):
            return f"no NumPy kernel for {node.op}"
        num_bytes = self._num_bytes(node)
        inputs = [edge for edge in self._value_inputs(node) if edge.node]
        total = sum(self.values[edge].num_bytes for edge in inputs)
        if num_bytes is not None and num_bytes > total and num_bytes > min(self.limit, total + MAX_EXTRA_BYTES):
            return f"the value has {num_bytes:,} bytes, and its inputs {total:,}"
        shared = [edge for edge in inputs if self.values[edge].num_bytes > MAX_EXTRA_BYTES and self._is_shared(edge)]
        if shared and num_bytes is not None and num_bytes > MAX_EXTRA_BYTES and not self.copies:
            return f"the value has {num_bytes:,} bytes, and other nodes use {shared[0]}, which stays"
        return ""

    def _is_shared(self, edge: Edge) -> bool:
        """Return True if several nodes use a constant."""
        graph, source = self.facts.graph, self.aliases.get(edge, edge)
        return len({use.node.name for use in graph.uses.get(source, ())}) > 1 or source in graph.outputs

    def _num_bytes(self, node: Node) -> int | None:
        """Return the size of the value before it is computed; None if it is unknown."""
        shape, dtype = self.facts.shape(Edge(node.name)), self.facts.types.get(Edge(node.name))
        if not shape.is_known or dtype is None:
            return None
        return int(np.prod(shape.sizes, dtype=object)) * dtype.num_bytes

    def _compute(self, node: Node) -> str:
        """Compute the values of a node; return a reason if that is impossible, else an empty text."""
        if node.op == "Identity":
            self.values[Edge(node.name)] = self.values[node.inputs[0]]
            self.aliases[Edge(node.name)] = self.aliases.get(node.inputs[0], node.inputs[0])
            return ""
        arrays = [self.values[edge].array if edge.node else None for edge in self._value_inputs(node)]
        arrays += [np.zeros(0, self.facts.types[edge].numpy) for edge in node.inputs[len(arrays) :]]
        try:
            results = evaluate(node, arrays, self.facts.opset, is_folded=True)
        except QuantkitError as error:
            return f"evaluation fails: {error.message.splitlines()[0]}"
        for port, array in enumerate(results):
            self.values[Edge(node.name, port)] = Tensor.of(_compact(array))
        return ""

    def _nodes(self, changes: list[str]) -> Sequence[Node]:
        """Return the nodes with constants in the place of known values."""
        graph = self.facts.graph
        captured = names_in_subgraphs(graph)
        nodes: list[Node] = []
        edges: dict[Edge, Edge] = {}
        for node in graph.nodes.values():
            ports = [port for port in range(num_outputs(node)) if Edge(node.name, port) in self.values]
            is_folded = ports and not (node.is_constant and isinstance(node.attrs.get("value"), Tensor))
            if node.is_constant and node.extra and not is_folded and node.name not in graph.input_names:
                changes.append(f"{node.name} is no longer an input: its default is constant")
                nodes.append(node.with_(extra=b""))
            elif not is_folded:
                nodes.append(node)
            elif num_outputs(node) == 1 or (node.name not in captured and not self._is_output(node)):
                nodes.extend(self._constants(node, ports, edges, captured))
                changes.append(f"{node.name} ({node.op}) becomes constant")
            else:
                nodes.append(node)
        if not edges:
            return nodes
        return [node.with_(inputs=tuple(edges.get(edge, edge) for edge in node.inputs)) for node in nodes]

    def _constants(self, node: Node, ports: list[int], edges: dict[Edge, Edge], captured: frozenset[str]) -> list[Node]:
        """Return the constants for the outputs of a node, and the node if another output may have consumers."""
        graph = self.facts.graph
        if num_outputs(node) == 1:
            alias = self.aliases.get(Edge(node.name))
            if alias is not None and node.name not in captured and not self._is_output(node):
                edges[Edge(node.name)] = alias
                return []
            return [constant_node(node.name, self.values[Edge(node.name)])]
        used = {edge.port for edge in graph.uses if edge.node == node.name} if len(ports) < num_outputs(node) else set()
        stays = not used <= set(ports)
        constants = []
        for port in ports:
            name = f"{node.name}/value{port}" if stays else onnx.value_name(node, port)
            if not name:
                continue
            edges[Edge(node.name, port)] = Edge(name)
            constants.append(constant_node(name, self.values[Edge(node.name, port)]))
        return [*([node] if stays else []), *constants]

    def _is_output(self, node: Node) -> bool:
        return node.name in self.facts.graph.output_names


def _compact(array: Array) -> Array:
    """Return a contiguous array: a view of a broadcast array would be expanded at each access."""
    return np.ascontiguousarray(array).reshape(array.shape)
