"""Removal of nodes of ONNX graphs that return their first input."""

from quantkit.formats.onnx import ABSENT
from quantkit.formats.onnx import DIALECT as DIALECT
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.transforms._names import names_in_subgraphs
from quantkit.transforms.onnx._facts import constant_value, has_input, removable_outputs, replace_edges


def remove(graph: Graph, ops: tuple[str, ...], max_inputs: int) -> Outcome:
    """Remove nodes of some op types, and connect their consumers to their first input.

    Args:
        graph: graph of dialect ``onnx``.
        ops: op types to remove.
        max_inputs: maximum number of inputs of a removed node.
    """
    reasons = {node.name: _reason(graph, node, max_inputs) for node in graph.nodes.values() if node.op in ops}
    return _remove(graph, reasons)


def remove_dropout(graph: Graph) -> Outcome:
    """Remove Dropout nodes that do nothing at inference."""
    reasons = {node.name: _dropout_reason(graph, node) for node in graph.nodes.values() if node.op == "Dropout"}
    return _remove(graph, reasons)


def _remove(graph: Graph, reasons: dict[str, str]) -> Outcome:
    """Remove nodes without a reason to stay; the value that replaces an output of the graph takes its name."""
    captured = names_in_subgraphs(graph)
    for name in reasons.keys() & captured:
        reasons[name] = "a loop or branch refers to the node by name"
    edges = {Edge(name): graph[name].inputs[0] for name, reason in reasons.items() if not reason}
    renamed = set(removable_outputs(graph, edges))
    for edge in graph.outputs:
        if edge in edges and edge not in renamed:
            reasons[edge.node] = f"the node is an output, and {edges[edge]} keeps its name"
            del edges[edge]
    changes = tuple(f"{name} ({graph[name].op})" for name, reason in reasons.items() if not reason)
    skips = tuple(Skip(reason, name) for name, reason in reasons.items() if reason)
    return Outcome(replace_edges(graph, edges), changes, skips)


def _reason(graph: Graph, node: Node, max_inputs: int) -> str:
    """Return a clause if a node cannot be removed; empty if it can."""
    if node.name in graph.input_names:
        return "the node is a graph input"
    if not has_input(node, 0) or node.name == ABSENT.name:
        return "the node has no input"
    if len(node.inputs) > max_inputs:
        return f"the node has {len(node.inputs)} inputs; max_inputs is {max_inputs}"
    return _later_output(graph, node)


def _later_output(graph: Graph, node: Node) -> str:
    """Return a clause if an output other than the first has consumers or is an output of the graph."""
    uses = (use.node.inputs[use.slot].port for use in graph.node_uses.get(node.name, ()) if use.slot >= 0)
    port = max([*uses, *(edge.port for edge in graph.outputs if edge.node == node.name)], default=0)
    return f"output {port} has consumers" if port else ""


def _dropout_reason(graph: Graph, node: Node) -> str:
    """Return a clause if a Dropout is in training mode or its mask is used; empty if it does nothing."""
    if has_input(node, 2):
        mode = constant_value(graph, node, 2)
        if mode is None or mode.any():
            return "the training mode is on, or not constant"
    return _reason(graph, node, len(node.inputs))
