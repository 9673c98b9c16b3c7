"""Fusion of consecutive maps: one call for each element instead of two."""

from quantkit.ir.draft import Draft
from quantkit.ir.functions import Function, FunctionName, Library
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
from quantkit.transforms.functions.inline_functions import inline_functions


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
    function = compose(graph, inner, outer)
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


def compose(graph: Graph, inner: Function[Graph], outer: Function[Graph]) -> Function[Graph]:
    """Return the function that passes the results of one function to another one.

    Args:
        graph: graph with the library of both.
        inner: function of the elements; its last arguments are captured tensors.
        outer: function of the results of `inner`, and of its own captured tensors.

    Returns:
        A function of the arguments of `inner`, and then of the captured tensors of `outer`.
    """
    captured = outer.graph.inputs[len(inner.results) :]
    nodes = [("inner", inner.graph[edge.node]) for edge in inner.graph.inputs]
    nodes += [("outer", outer.graph[edge.node]) for edge in captured]
    arguments = [
        node.with_(name=f"{call}_{node.name}").with_attrs(index=index) for index, (call, node) in enumerate(nodes)
    ]
    inputs = [Edge(node.name) for node in arguments]
    first = Node("inner", inner.name, tuple(inputs[: len(inner.graph.inputs)]))
    results = [Edge(first.name, port) for port in range(len(inner.results))]
    second = Node("outer", outer.name, (*results, *inputs[len(inner.graph.inputs) :]))
    outputs = [Edge(second.name, port) for port in range(len(outer.results))]
    calls = Graph.of([*arguments, first, second], inputs, outputs).with_(library=graph.library)
    body = inline_functions(calls)
    controls = {
        f"{call}_{key}": f"{call}/{name}"
        for call, function in (("inner", inner), ("outer", outer))
        for key, name in function.controls.items()
    }
    return Function(f"{inner.name}__{outer.name}", body.with_(library=Library()), outer.results, controls, inner.attrs)
