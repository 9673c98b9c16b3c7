"""Removal of transposes around regions of elementwise ops in ONNX graphs.

    Conv -> Transpose(p) -> Add(c) -> Relu -> Transpose(1/p) -> Conv       ==       Conv -> Add(c') -> Relu -> Conv

Exporters of channels-last models transpose around every layer. A region is a set of ops whose inputs, constants
excepted, come from transposes of one permutation or from the region itself. It can compute on the tensors before these
transposes. Consumers outside of it then need transposes of their own, except those that transpose back.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, free_name
from quantkit.ops.table import ELEMENTWISE, Fact, find_ops
from quantkit.transforms._names import names_in_subgraphs
from quantkit.transforms.onnx._facts import (
    GraphFacts,
    has_input,
    integers,
    new_constant,
    num_outputs,
    replace_edges,
)

# Ops that compute each element of their output from one element of each input.
ELEMENTWISE_OPS = find_ops(ELEMENTWISE, "onnx")
# Reductions, whose axes can be permuted.
REDUCTION_OPS = find_ops(Fact.REDUCTION, "onnx")

# Ops whose constants are parameters and do not broadcast.
PARAMETER_OPS = frozenset(("Clip", "Pad"))

Order = tuple[int, ...]


def remove_transposes(graph: Graph) -> Outcome:
    """Move regions of elementwise ops before the transposes at their inputs where fewer transposes then remain."""
    orders = {name: order for name in graph.nodes if (order := _order(graph, name))}
    changes: list[str] = []
    for order in dict.fromkeys(orders.values()):
        transposes = {name for name in orders if orders[name] == order and name in graph}
        for region in _regions(graph, order, transposes):
            # An earlier move removes nodes that no output needs.
            if all(name in graph for name in region) and _num_removed(graph, region, order) > 0:
                changes.append(f"{len(region)} ops from {region[0]} move before a Transpose")
                graph = _move(graph, region, order)
    return Outcome(graph, tuple(changes))


def _order(graph: Graph, name: str) -> Order:
    """Return the permutation of a Transpose; empty for another op."""
    node = graph[name]
    if node.op != "Transpose" or name in graph.input_names or not has_input(node, 0):
        return ()
    order = integers(graph, node, "perm", 1) or []
    return tuple(order) if sorted(order) == list(range(len(order))) else ()


def _inverse(order: Order) -> Order:
    return tuple(order.index(axis) for axis in range(len(order)))


def _regions(graph: Graph, order: Order, transposes: set[str]) -> Iterable[list[str]]:
    """Yield the connected regions of one permutation, each in topological order."""
    facts, captured, outputs = GraphFacts.of(graph), names_in_subgraphs(graph), {edge.node for edge in graph.outputs}
    members: dict[str, int] = {}
    sources: dict[str, int] = {}
    for name in graph.order:
        node = graph[name]
        if (
            name in captured
            or name in outputs
            or name in graph.input_names
            or not _is_movable(graph, facts, node, order)
        ):
            continue
        edges = [edge for edge in node.inputs if edge.node and not _is_constant(graph, edge)]
        if not edges or any(edge.port or (edge.node not in transposes and edge.node not in members) for edge in edges):
            continue
        # Regions that meet at a node, or begin at the same transpose, become one.
        labels = {members[edge.node] if edge.node in members else sources.get(edge.node, -1) for edge in edges} - {-1}
        label = min(labels, default=len(members))
        if len(labels) > 1:
            members = {other: label if number in labels else number for other, number in members.items()}
            sources = {other: label if number in labels else number for other, number in sources.items()}
        sources |= {edge.node: label for edge in edges if edge.node in transposes}
        members[name] = label
    for label in dict.fromkeys(members.values()):
        yield [name for name, number in members.items() if number == label]


def _is_constant(graph: Graph, edge: Edge) -> bool:
    return graph.constant_of(edge) is not None and edge.node not in graph.input_names


def _is_movable(graph: Graph, facts: GraphFacts, node: Node, order: Order) -> bool:
    """Return True if a node can compute on tensors of another order of the axes."""
    if num_outputs(node) > 1 or not has_input(node, 0):
        return False
    if node.op == "Pad":
        pads = integers(graph, node, "pads", 1)
        return pads is not None and len(pads) == 2 * len(order) and not has_input(node, 3)
    if node.op not in ELEMENTWISE_OPS:
        return False
    tensors = [graph.constant_of(edge) for edge in node.inputs if edge.node and _is_constant(graph, edge)]
    if any(tensor is not None and len(tensor.shape) > len(order) for tensor in tensors):
        return False
    edges = [edge for edge in node.inputs if edge.node and not _is_constant(graph, edge)]
    return all(len(facts.dims(edge) or ()) == len(order) for edge in edges)


def _num_removed(graph: Graph, region: list[str], order: Order) -> int:
    """Return the number of transposes that disappear if a region moves."""
    inside = set(region)
    inputs = {edge.node for name in region for edge in graph[name].inputs if edge.node not in inside}
    before = [name for name in inputs if name in graph and _order(graph, name) == order]
    outputs = {edge.node for edge in graph.outputs}
    removed = sum(name not in outputs and _users(graph, name) <= inside for name in before)
    for name in region:
        outside = [graph[user] for user in _users(graph, name) - inside]
        removed += sum(_order(graph, node.name) == _inverse(order) for node in outside)
        removed -= any(not _absorbs(graph, node, order) for node in outside)
    return removed


def _users(graph: Graph, name: str) -> set[str]:
    return {use.node.name for use in graph.node_uses.get(name, ())}


def _absorbs(graph: Graph, node: Node, order: Order) -> bool:
    """Return True if a consumer accepts the other order of the axes: it transposes back, or reduces axes."""
    return _order(graph, node.name) == _inverse(order) or _reduced_axes(graph, node, order) is not None


def _reduced_axes(graph: Graph, node: Node, order: Order) -> list[int] | None:
    """Return the axes that a reduction reduces after the move; None if its output would change."""
    axes = integers(graph, node, "axes", 1) if node.op in REDUCTION_OPS else None
    if not axes or node.attrs.get("keepdims", 1):
        return None
    reduced = {axis % len(order) for axis in axes}
    remaining = [order[axis] for axis in range(len(order)) if axis not in reduced]
    return sorted(order[axis] for axis in reduced) if remaining == sorted(remaining) else None


def _move(graph: Graph, region: list[str], order: Order) -> Graph:
    """Return the graph with a region on the tensors before the transposes at its inputs."""
    inside, names = set(region), {name: free_name(graph, f"{name}/transposed") for name in region}
    nodes: dict[str, Node] = dict(graph.nodes)
    for name in region:
        del nodes[name]
    added: list[Node] = []
    identities: dict[Edge, Edge] = {}
    for name in region:
        moved, constants = _move_node(graph, graph[name], names, order)
        added += [*constants, moved]
        outside = [graph[user] for user in sorted(_users(graph, name) - inside)]
        for node in outside:
            if _order(graph, node.name) == _inverse(order):
                identities[Edge(node.name)] = Edge(moved.name)
            elif (axes := _reduced_axes(graph, node, order)) is not None:
                reduced, axes_constants = _with_axes(graph, nodes[node.name], axes, moved.name)
                nodes[node.name] = reduced
                added += axes_constants
        if any(not _absorbs(graph, node, order) for node in outside):
            added.append(Node(name, "Transpose", (Edge(moved.name),), attrs={"perm": order}))
    for node in added:
        nodes[node.name] = node
    result = graph.with_nodes(nodes.values())
    return replace_edges(result, identities).without_unused_nodes(stop_at_inputs=False)


def _move_node(graph: Graph, node: Node, names: Mapping[str, str], order: Order) -> tuple[Node, list[Node]]:
    """Return a node of a region on the tensors before the transposes, and its new constants."""
    inputs: list[Edge] = []
    constants: list[Node] = []
    for slot, edge in enumerate(node.inputs):
        tensor = graph.constant_of(edge)
        if edge.node in names:
            inputs.append(Edge(names[edge.node]))
        elif edge.node and not _is_constant(graph, edge):
            inputs.append(graph[edge.node].inputs[0])
        elif tensor is None or not tensor.shape or node.op in PARAMETER_OPS:
            inputs.append(edge)
        else:
            values = tensor.array.reshape((1,) * (len(order) - len(tensor.shape)) + tensor.shape)
            constants.append(new_constant(graph, f"{node.name}/{slot}/transposed", values.transpose(_inverse(order))))
            inputs.append(Edge(constants[-1].name))
    if node.op == "Pad":
        pads = integers(graph, node, "pads", 1) or []
        before, after = ([side[axis] for axis in _inverse(order)] for side in (pads[: len(order)], pads[len(order) :]))
        if "pads" in node.attrs:
            node = node.with_attrs(pads=(*before, *after))
        else:
            constants.append(new_constant(graph, f"{node.name}/pads", np.array([*before, *after], np.int64)))
            inputs[1] = Edge(constants[-1].name)
    return node.with_(name=names[node.name], inputs=tuple(inputs)), constants


def _with_axes(graph: Graph, node: Node, axes: list[int], source: str) -> tuple[Node, list[Node]]:
    """Return a reduction of other axes of another tensor, and its new constants."""
    node = node.with_input(0, Edge(source))
    if "axes" in node.attrs:
        return node.with_attrs(axes=tuple(axes)), []
    constant = new_constant(graph, f"{node.name}/axes", np.array(axes, np.int64))
    return node.with_input(1, Edge(constant.name)), [constant]
