"""Nodes that a scheme keeps in float by the name of a node, an op type or a layer."""

import re
from collections import Counter
from collections.abc import Collection, Mapping

from quantkit.errors import UsageError, did_you_mean
from quantkit.ir.graph import Graph
from quantkit.ops.roles import find_roles


def find_float_nodes(graph: Graph, keep_float: Collection[str]) -> set[str]:
    """Return the names of the nodes that ``keep_float`` of a scheme selects.

    Args:
        graph: float graph.
        keep_float: nodes, op types, or layers of Keras.

    Raises:
        UsageError: ``keep_float`` names a node, layer or op type that is not in the graph.
    """
    scopes = _scope_of_layer(graph) if keep_float else {}
    return {node for name in keep_float for node in _find_nodes(graph, name, scopes)}


def _find_nodes(graph: Graph, name: str, scope_of_layer: Mapping[str, str]) -> Collection[str]:
    """Return the nodes of a name in ``keep_float``: a node, an op type, or a layer, whose name is their scope.

    Raises:
        UsageError: the graph has no such node, op type or layer; the hint suggests similar names.
    """
    nodes, roles = graph.nodes, find_roles(graph)
    # The output of a Keras model is an Identity with the name of its last layer.
    if name in nodes and nodes[name].op != "Identity":
        return (name,)
    ops = {*graph.op_counts, *roles.layer_ops, *roles.pass_through_ops}
    scope = scope_of_layer.get(name, name)
    names = [node.name for node in nodes.values() if node.op == name or f"/{scope}/" in f"/{node.name}"]
    if name in nodes:
        return [name, *names]
    if names or name in ops:
        return names
    scopes = {*(scope for node in nodes for scope in node.split("/")[:-1]), *scope_of_layer}
    raise UsageError(
        f"keep_float names {name!r}, which is not a node, layer or op type of the graph",
        hint=did_you_mean(name, {*nodes, *scopes, *ops}) or "quantkit summarize lists the op types",
    )


def _scope_of_layer(graph: Graph) -> Mapping[str, str]:
    """Return the scope of each layer of Keras, which appends a number to the names of all layers; else empty."""
    needed, layer_ops = graph.reachable(), find_roles(graph).layer_ops
    layers = [name.split("/") for name in graph.order if name in needed and graph[name].op in layer_ops]
    scopes = list(dict.fromkeys(path[-2] for path in layers if len(path) > 1))
    names = [re.fullmatch(r"(.+)_\d+", scope) for scope in scopes]
    counts = Counter(match[1] for match in names if match)
    if None in names or max(counts.values(), default=0) > 1:
        return {}
    return dict(zip(counts, scopes, strict=True))
