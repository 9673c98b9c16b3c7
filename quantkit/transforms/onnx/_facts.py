"""Known facts about an ONNX graph, and edits that keep the names of its inputs and outputs.

In an ONNX graph a node has the name of its first value: a value that replaces an output of the graph takes over the
name of that output.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from quantkit.errors import QuantkitError
from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph, Node, Opaque
from quantkit.ir.rewrite import free_name, sharing_reason
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.ops.onnx.types import infer_types
from quantkit.ops.shape_inference import UNKNOWN, Inference, infer
from quantkit.transforms._names import names_in_subgraphs, rename_nodes

# Larger constants are not compared element by element.
MAX_ELEMENTS = 1 << 16


@dataclass(frozen=True)
class GraphFacts:
    """Known facts about a graph of dialect ``onnx``.

    Attributes:
        graph: the graph.
        opset: version of the standard operator set.
    """

    graph: Graph
    opset: int

    @classmethod
    def of(cls, graph: Graph) -> "GraphFacts":
        """Return the facts about a graph."""
        return cls(graph, onnx.opsets(graph).get("", onnx.OPSET))

    @cached_property
    def inference(self) -> Inference:
        """Shapes of the graph, and integers that the graph computes from shapes."""
        infos = onnx.value_infos(self.graph)
        return infer(self.graph, {edge: shape for edge, (_, shape) in infos.items() if shape.dims is not None})

    @cached_property
    def types(self) -> Mapping[Edge, DType]:
        """Element types by edge."""
        infos = onnx.value_infos(self.graph)
        stated = {edge: dtype for edge, (dtype, _) in infos.items() if dtype is not None}
        types = infer_types(self.graph, stated)
        for name in self.graph.order if "If" in self.graph.op_counts else ():
            if self.graph[name].op == "If" and Edge(name) not in types:
                stated |= _branch_types(self.graph, self.graph[name], types)
                types = infer_types(self.graph, stated)
        return types

    def shape(self, edge: Edge) -> Shape:
        """Return the shape of an edge; `UNKNOWN` if it cannot be inferred."""
        return self.inference.shapes.get(edge, UNKNOWN)

    def dims(self, edge: Edge) -> tuple[int | None, ...] | None:
        """Return the sizes of an edge; None if the rank is unknown."""
        return self.shape(edge).dims


def _branch_types(graph: Graph, node: Node, types: Mapping[Edge, DType]) -> dict[Edge, DType]:
    """Return the element types of the outputs of an If, from those of the outer values that a branch uses."""
    attribute = node.attrs.get("then_branch")
    if not isinstance(attribute, Opaque):
        return {}
    try:
        branch = onnx.decode_subgraph(attribute, graph)
    except QuantkitError:
        return {}
    edges = {edge for inner in branch.nodes.values() for edge in inner.inputs} | set(branch.outputs)
    outer = {edge.node for edge in edges if edge.node not in branch.nodes} | {
        name for inner in branch.nodes.values() for name in inner.controls if name not in branch.nodes
    }
    inputs = [Node(name, "Placeholder", attrs={"dtype": types[Edge(name)]}) for name in outer if Edge(name) in types]
    if len(inputs) < len(outer):
        return {}
    own = GraphFacts.of(branch.with_nodes([*inputs, *branch.nodes.values()])).types
    return {Edge(node.name, port): own[edge] for port, edge in enumerate(branch.outputs) if edge in own}


def constant_node(name: str, value: Array | Tensor) -> Node:
    """Return an initializer."""
    tensor = value if isinstance(value, Tensor) else Tensor.of(value)
    return Node(name, "Constant", attrs={"value": tensor})


def new_constant(graph: Graph, name: str, value: Array | Tensor) -> Node:
    """Return an initializer with a free name."""
    return constant_node(free_name(graph, name), value)


def constant_value(graph: Graph, node: Node, slot: int) -> Array | None:
    """Return the value of a constant input; None for other, omitted and large inputs."""
    if slot >= len(node.inputs):
        return None
    tensor = graph.constant_of(node.inputs[slot])
    if tensor is None or node.inputs[slot].node in graph.input_names or tensor.num_elements > MAX_ELEMENTS:
        return None
    return tensor.array


def integers(graph: Graph, node: Node, name: str, slot: int) -> list[int] | None:
    """Return the integers of an attribute, or of the constant input that replaces it in later opsets.

    Returns:
        The integers; None if the node has neither, or the input is not constant.
    """
    attr = node.attrs.get(name)
    if attr is not None:
        return [int(item) for item in (attr if isinstance(attr, tuple) else (attr,))]
    value = constant_value(graph, node, slot)
    return None if value is None else [int(item) for item in value.reshape(-1)]


def producer(graph: Graph, edge: Edge, ops: str) -> Node | None:
    """Return the producer of an edge if its op type is in ``ops``, separated by ``|``.

    Returns:
        The node; None for another op type, a later output, and a graph input.
    """
    node = graph.nodes.get(edge.node)
    if node is None or edge.port or node.op not in ops.split("|") or node.name in graph.input_names:
        return None
    return node if has_input(node, 0) and num_outputs(node) == 1 else None


def has_input(node: Node, slot: int) -> bool:
    """Return True if a node has an input that is not omitted."""
    return slot < len(node.inputs) and bool(node.inputs[slot].node)


def num_outputs(node: Node) -> int:
    """Return the number of outputs that a node lists."""
    names = node.attrs.get(onnx.OUTPUTS)
    return len(names) if isinstance(names, tuple) else 1


def reason_to_keep(graph: Graph, node: Node, consumer: Node) -> str:
    """Return a clause with a use of a node other than by one input of ``consumer``; empty without other uses."""
    if any(use.slot < 0 for use in graph.node_uses.get(node.name, ())):
        return f"a loop or branch refers to {node.name} by name"
    return sharing_reason(graph, node, consumer)


def identity(node: Node, source: Edge) -> list[Node]:
    """Return an Identity that replaces a node; `remove_new_identities` removes it."""
    return [Node(node.name, "Identity", (source,), extra=node.extra)]


def remove_new_identities(before: Graph, after: Graph) -> Graph:
    """Remove the Identity nodes that rules have added."""
    added = [
        node.name
        for node in after.nodes.values()
        if node.op == "Identity" and (node.name not in before or before[node.name].op != "Identity")
    ]
    return replace_edges(after, {Edge(name): after[name].inputs[0] for name in added})


def replace_edges(graph: Graph, replacements: Mapping[Edge, Edge]) -> Graph:
    """Redirect the consumers of edges to other edges of equal values, and remove unused nodes.

    The producer of a value that replaces an output of the graph takes the name of that output. If that is
    impossible, the node of the output becomes an Identity. Values that subgraphs use by name stay.

    Args:
        graph: graph of dialect ``onnx``.
        replacements: new edge by old edge.
    """
    captured = names_in_subgraphs(graph)
    edges = {old: _resolve(replacements, old) for old in replacements if old.node not in captured}
    if not edges:
        return graph
    nodes = {
        node.name: node.with_(inputs=tuple(edges.get(edge, edge) for edge in node.inputs))
        if any(edge in edges for edge in node.inputs)
        else node
        for node in graph.nodes.values()
    }
    result = graph.with_(nodes=nodes)
    for old in graph.outputs:
        if old in edges:
            result = _replace_output(result, old, edges[old], captured)
    return result.without_unused_nodes(stop_at_inputs=False)


def removable_outputs(graph: Graph, replacements: Mapping[Edge, Edge]) -> Iterable[Edge]:
    """Yield the outputs whose replacement can take their names."""
    captured = names_in_subgraphs(graph)
    targets: set[Edge] = set()
    for old in graph.outputs:
        new = _resolve(replacements, old)
        if new != old and new not in targets and _can_rename(graph, new, captured):
            targets.add(new)
            yield old


def _resolve(replacements: Mapping[Edge, Edge], edge: Edge) -> Edge:
    for _ in range(len(replacements) + 1):
        if edge not in replacements:
            break
        edge = replacements[edge]
    return edge


def _can_rename(graph: Graph, edge: Edge, captured: frozenset[str]) -> bool:
    node = graph[edge.node]
    return not (
        edge in graph.outputs
        or edge.node in captured
        or edge.node in graph.input_names
        or node.op == "Placeholder"
        or (node.is_constant and (node.extra or len(graph.node_uses.get(edge.node, ())) > 1))
    )


def _replace_output(graph: Graph, old: Edge, new: Edge, captured: frozenset[str]) -> Graph:
    """Return the graph with another edge as an output of the same name."""
    node = graph[old.node]
    name = onnx.value_name(node, old.port)
    if num_outputs(node) > 1 or not _can_rename(graph, new, captured):
        replacement = Node(node.name, "Identity", (new,), extra=node.extra)
        return graph.with_nodes(replacement if each is node else each for each in graph.nodes.values())
    without = graph.with_nodes(each for each in graph.nodes.values() if each is not node)
    outputs = tuple(new if edge == old else edge for edge in graph.outputs)
    return _rename_value(without.with_(outputs=outputs), new, name)


def _rename_value(graph: Graph, edge: Edge, name: str) -> Graph:
    """Return the graph with another name of one value."""
    node = graph[edge.node]
    values = node.attrs.get(onnx.OUTPUTS)
    if not isinstance(values, tuple):
        return rename_nodes(graph, {edge.node: name})
    is_first = onnx.value_name(node, edge.port) == node.name
    renamed = tuple(name.encode() if port == edge.port else value for port, value in enumerate(values))
    if is_first:
        graph = rename_nodes(graph, {edge.node: name})
        node = graph[name]
    changed = node.with_attrs(**{onnx.OUTPUTS: renamed})
    return graph.with_nodes(changed if each is node else each for each in graph.nodes.values())


def is_all(value: Array | None, number: float) -> bool:
    """Return True if all elements of a constant are a number."""
    return value is not None and value.size > 0 and value.dtype.kind in "fiu" and bool(np.all(value == number))
