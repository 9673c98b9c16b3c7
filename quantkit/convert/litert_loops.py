"""Workaround for a defect of LiteRT in loops.

LiteRT copies the results of an iteration to the variables one after the other. A result that is another variable
itself is therefore overwritten before it is copied:

    a, b = f(a), a    ->    a, b = f(a), max(a, lowest value)

A boolean is copied as an integer.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from quantkit.errors import QuantkitError
from quantkit.ir.functions import Function, FunctionName
from quantkit.ir.graph import LOOP_MERGES, SWITCHES, Attr, Edge, Graph, Node, constant
from quantkit.ir.rewrite import free_name
from quantkit.ir.tensor import DType
from quantkit.ops.semantics import LOOP_OPS
from quantkit.ops.tensorflow.frames import NEXT_ITERATIONS


def copy_exchanged_variables(graph: Graph) -> Graph:
    """Return the graph with a copy of each loop variable that is the new value of another variable."""
    graph = _copy_in_frames(graph)
    functions = {name: graph.library[name] for name in sorted(_body_names(graph))}
    changed = [after for name, before in functions.items() if (after := _copy_in_body(before)) is not before]
    return graph.with_(library=graph.library.with_(*changed)) if changed else graph


def _body_names(graph: Graph) -> set[str]:
    """Return the bodies of the loops of a graph and its functions, without functions that cannot be loaded."""
    names: set[str] = set()
    graphs = [graph]
    for name in graph.library:
        try:
            graphs.append(graph.library[name].graph)
        except QuantkitError:
            continue
    for nodes in graphs:
        for node in nodes.nodes.values():
            body = node.attrs.get("body")
            if node.op in LOOP_OPS and isinstance(body, FunctionName) and body.name in graph.library:
                names.add(body.name)
    return {name for name in names if not graph.library.is_open(name)}


def _copy_in_body(function: Function[Graph]) -> Function[Graph]:
    body = function.graph
    nodes = dict(body.nodes)
    outputs = list(body.outputs)
    for port, edge in enumerate(body.outputs):
        source = source_of(nodes, edge)
        if source in body.inputs and body.inputs.index(source) != port:
            dtype = nodes[source.node].attrs.get("T")
            copies = _copy(body, edge, dtype, f"{source.node}/copy/{port}", ())
            nodes |= {node.name: node for node in copies}
            outputs[port] = Edge(copies[-1].name) if copies else edge
    if outputs == list(body.outputs):
        return function
    return replace(function, graph=body.with_nodes(nodes.values()).with_(outputs=tuple(outputs)))


def _copy_in_frames(graph: Graph) -> Graph:
    nodes = dict(graph.nodes)
    for merge in graph.nodes.values():
        producers = [graph[edge.node] for edge in merge.inputs]
        backs = [node for node in producers if node.op in NEXT_ITERATIONS and node.inputs]
        if merge.op not in LOOP_MERGES or not backs:
            continue
        switch = graph[source_of(nodes, backs[0].inputs[0]).node]
        if switch.op not in SWITCHES or not switch.inputs or switch.inputs[0].node == merge.name:
            continue
        dtype = merge.attrs.get("T", DType.FLOAT)
        pivot = Node(
            free_name(graph, f"{merge.name}/pivot"), "Identity", backs[0].inputs, attrs={"T": merge.attrs["T"]}
        )
        copies = _copy(graph, Edge(pivot.name), dtype, f"{merge.name}/copy", (pivot.name,))
        if copies:
            back = backs[0].with_(inputs=(Edge(copies[-1].name),))
            nodes |= {node.name: node for node in (pivot, *copies, back)}
    return graph.with_nodes(nodes.values()) if len(nodes) > len(graph) else graph


def source_of(nodes: Mapping[str, Node], edge: Edge) -> Edge:
    """Return the edge whose value an edge has after Identity nodes."""
    for _ in range(len(nodes)):  # a cycle ends
        node = nodes[edge.node]
        if node.op != "Identity" or not node.inputs:
            break
        edge = node.inputs[0]
    return edge


def _copy(graph: Graph, edge: Edge, dtype: object, name: str, controls: tuple[str, ...]) -> list[Node]:
    """Return the nodes of a copy that the converter keeps; empty for types that are not numbers."""
    if dtype is DType.BOOL:
        return _copy_bool(graph, edge, name, controls)
    if not isinstance(dtype, DType) or dtype.numpy.kind not in "fiu":
        return []
    lowest = -np.inf if dtype.is_float else np.iinfo(dtype.numpy).min
    limit = constant(free_name(graph, f"{name}/limit"), np.array(lowest, dtype.numpy), dtype)
    copy = Node(free_name(graph, name), "Maximum", (edge, Edge(limit.name)), attrs={"T": dtype})
    return [limit.with_(controls=controls), copy]


def _copy_bool(graph: Graph, edge: Edge, name: str, controls: tuple[str, ...]) -> list[Node]:
    """Return a copy as an integer: the converter removes logical ops that do not change the value.

    The attributes with default values are there because the converter compares functions with and without them.
    """
    casts: list[dict[str, Attr]] = [
        {"SrcT": source, "DstT": result, "Truncate": False}
        for source, result in ((DType.BOOL, DType.INT32), (DType.INT32, DType.BOOL))
    ]
    number = Node(free_name(graph, f"{name}/number"), "Cast", (edge,), attrs=casts[0])
    copies = _copy(graph, Edge(number.name), DType.INT32, name, controls)
    flag = Node(free_name(graph, f"{name}/flag"), "Cast", (Edge(copies[-1].name),), attrs=casts[1])
    return [number, *copies, flag]
