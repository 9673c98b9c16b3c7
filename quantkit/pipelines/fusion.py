"""Fusion of consecutive maps: one call for each element instead of two."""

from dataclasses import replace

from quantkit.ir.draft import Draft
from quantkit.ir.functions import Function, FunctionName
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.pipelines.stages import (
    MAPS,
    PARALLEL_MAP,
    captured_inputs,
    constant_of,
    function_of,
    stages_of,
)
from quantkit.pipelines.state import order_dependence


def fuse_maps(graph: Graph) -> Outcome:
    """Fuse consecutive maps.

    Before:  map(f) -> map(g)
    After:   map(g(f))

    Skips maps of different parallelism, unless the calls of the sequential one do not depend on their order.
    """
    changes: list[str] = []
    skips: dict[str, Skip] = {}
    while (site := _find_site(graph, skips)) is not None:
        graph = _fuse(graph, *site)
        changes.append(f"{site[0].name} fused into {site[1].name}")
    return Outcome(graph, tuple(changes), tuple(skips.values()))


def _find_site(graph: Graph, skips: dict[str, Skip]) -> tuple[Node, Node, Node] | None:
    """Return a map, the map after it, and the one of both whose parallelism the fused map has."""
    for second in stages_of(graph):
        if second.op not in MAPS or second.name in skips:
            continue
        first = graph[second.inputs[0].node]
        functions = first.op in MAPS and function_of(graph, first) and function_of(graph, second)
        if not functions:
            continue
        model = _choose_parallelism(graph, first, second)
        if isinstance(model, Skip):
            skips[second.name] = model
            continue
        return first, second, model
    return None


def _choose_parallelism(graph: Graph, first: Node, second: Node) -> Node | Skip:
    if first.op == second.op:
        if first.op != PARALLEL_MAP or _parallelism(graph, first) == _parallelism(graph, second):
            return second
        return Skip("the maps have different num_parallel_calls", second.name)
    sequential, parallel = (first, second) if second.op == PARALLEL_MAP else (second, first)
    function = function_of(graph, sequential)
    reason = order_dependence(graph, function) if function else "no function"
    return Skip(reason, second.name) if reason else parallel


def _parallelism(graph: Graph, node: Node) -> int | None:
    value = constant_of(graph, node.inputs[-1])
    return None if value is None else int(value)


def _fuse(graph: Graph, first: Node, second: Node, model: Node) -> Graph:
    inner, outer = function_of(graph, first), function_of(graph, second)
    assert inner is not None
    assert outer is not None
    function = compose(inner, outer)
    captures = (*captured_inputs(first), *captured_inputs(second))
    arguments = (*_argument_types(first), *_argument_types(second))
    tail = (model.inputs[-1],) if model.op == PARALLEL_MAP else ()
    fused = model.with_(
        name=second.name, inputs=(first.inputs[0], *captures, *tail), controls=(*first.controls, *second.controls)
    ).with_attrs(
        f=FunctionName(function.name),
        Targuments=arguments,
        output_types=second.attrs["output_types"],
        output_shapes=second.attrs["output_shapes"],
        preserve_cardinality=bool(first.attrs.get("preserve_cardinality") and second.attrs.get("preserve_cardinality")),
    )
    draft = Draft(graph)
    draft.replace(second.name, fused)
    fused_graph = draft.graph()
    return fused_graph.with_(library=fused_graph.library.with_(function)).without_unused_nodes()


def _argument_types(node: Node) -> tuple[object, ...]:
    types = node.attrs.get("Targuments", ())
    assert isinstance(types, tuple)
    return types


def compose(inner: Function[Graph], outer: Function[Graph]) -> Function[Graph]:
    """Return the function that passes the results of one function to another one.

    Args:
        inner: function of the elements; its last arguments are captured tensors.
        outer: function of the results of `inner`, and of its own captured tensors.

    Returns:
        A function of the arguments of `inner`, and then of the captured tensors of `outer`.
    """
    count = len(inner.results)
    first, second = _add_prefix(inner, "inner"), _add_prefix(outer, "outer")
    own_arguments = [first.graph[edge.node] for edge in first.graph.inputs]
    later_arguments = [second.graph[edge.node] for edge in second.graph.inputs]
    captures = [
        node.with_attrs(index=len(own_arguments) + position) for position, node in enumerate(later_arguments[count:])
    ]
    replaced = {Edge(node.name): edge for node, edge in zip(later_arguments, first.graph.outputs, strict=False)}
    nodes = [*own_arguments, *captures]
    nodes += [node for node in first.graph.nodes.values() if node.op != "_Arg"]
    for node in second.graph.nodes.values():
        if node.op != "_Arg":
            nodes.append(node.with_(inputs=tuple(replaced.get(edge, edge) for edge in node.inputs)))
    outputs = tuple(replaced.get(edge, edge) for edge in second.graph.outputs)
    body = Graph.of(nodes, [Edge(node.name) for node in (*own_arguments, *captures)], outputs)
    return Function(
        f"{inner.name}__{outer.name}", body, outer.results, {**first.controls, **second.controls}, inner.attrs
    )


def _add_prefix(function: Function[Graph], prefix: str) -> Function[Graph]:
    """Return the function with a prefix to every node name."""

    def rename(node: Node) -> Node:
        inputs = tuple(Edge(f"{prefix}/{edge.node}", edge.port) for edge in node.inputs)
        controls = tuple(f"{prefix}/{name}" for name in node.controls)
        name = f"{prefix}_{node.name}" if node.op == "_Arg" else f"{prefix}/{node.name}"
        return node.with_(name=name, inputs=inputs, controls=controls).with_attrs(_class=None)

    arguments = {edge.node for edge in function.graph.inputs}

    def edge_of(edge: Edge) -> Edge:
        separator = "_" if edge.node in arguments else "/"
        return Edge(f"{prefix}{separator}{edge.node}", edge.port)

    nodes = []
    for node in function.graph.nodes.values():
        renamed = rename(node)
        nodes.append(renamed.with_(inputs=tuple(edge_of(edge) for edge in node.inputs)))
    body = Graph.of(
        nodes, [edge_of(edge) for edge in function.graph.inputs], [edge_of(edge) for edge in function.graph.outputs]
    )
    controls = {f"{prefix}_{key}": f"{prefix}/{name}" for key, name in function.controls.items()}
    return replace(function, graph=body, controls=controls)
