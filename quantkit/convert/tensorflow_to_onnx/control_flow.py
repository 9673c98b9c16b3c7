"""Lowering of loops, conditions and lists: one node for each, which a `Translator` converts to ONNX."""

from collections.abc import Mapping
from dataclasses import dataclass

from quantkit.convert.tensorflow_to_onnx.frames import with_if_nodes, with_while_nodes
from quantkit.convert.tensorflow_to_onnx.lists import lower_lists
from quantkit.convert.tensorflow_to_onnx.loops import Loop, LoopRegion, iteration_of, list_length, lower_loop, read_loop
from quantkit.convert.tensorflow_to_onnx.recurrent import RecurrenceReader, lower_recurrence
from quantkit.convert.tensorflow_to_onnx.subgraphs import as_results, fold_constants, instantiate, source_of
from quantkit.convert.tensorflow_to_onnx.translator import (
    PLAIN,
    LoweredGraph,
    Translator,
    conversion_error,
    converts,
    dtype_of,
    translate_all,
)
from quantkit.formats import onnx
from quantkit.formats.graphdef.function_library import check_inlined_size
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.onnx.types import NUMBERS
from quantkit.ops.semantics import IF_OPS, LOOP_OPS
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.ops.shape_rules import join_shapes

# Maximum number of loops and conditions inside one another, and of shape inferences of an iteration, each of which
# includes all inner loops.
MAX_DEPTH, MAX_INFERENCES = 6, 4
BRANCHES = "_Branches"
ROLES = ("then", "else")


@dataclass(frozen=True)
class Branch:
    """Branch of a condition.

    Attributes:
        lowered: branch; its inputs are the arguments that it uses.
        arguments: edge of the calling graph by input.
    """

    lowered: LoweredGraph
    arguments: Mapping[Edge, Edge]


def read_branch(graph: Graph, node: Node, role: str, shapes: Mapping[Edge, Shape]) -> tuple[Graph, dict[Edge, Edge]]:
    """Return the branch of an If node with its results as outputs, and the edge of each of its inputs.

    Raises:
        UnavailableError: the graph has no such function.
    """
    edges = [source_of(graph, edge) for edge in node.inputs[1:]]
    branch = instantiate(graph, node, f"{role}_branch", f"{node.name}/{role}", edges)
    arguments = dict(zip(branch.inputs, edges, strict=True))
    results = as_results(branch, f"{node.name}/{role}", branch.outputs)
    nodes = dict(branch.nodes)
    for inner, edge in arguments.items():
        nodes[inner.node] = nodes[inner.node].with_attrs(shape=shapes.get(edge, UNKNOWN))
    outputs = tuple(Edge(result.name) for result in results)
    branch = branch.with_nodes([*nodes.values(), *results]).with_(outputs=outputs, inputs=())
    needed = branch.reachable()
    used = {inner: edge for inner, edge in arguments.items() if inner.node in needed}
    return branch.with_(inputs=tuple(used)).without_unused_nodes(), used


def lower_branches(graph: Graph, node: Node, branch: Graph) -> Graph:
    """Return the calling graph with a condition as one node, given a branch.

    TensorFlow   If(predicate, arguments), with a function of the arguments for each branch
    ONNX         If(predicate), with branches that refer to the arguments by name
    """
    dtypes = tuple(dtype_of(branch, edge) for edge in branch.outputs)
    lowered = node.with_(op=BRANCHES, controls=(), attrs={"T": dtypes})
    return graph.with_nodes(lowered if other is node else other for other in graph.nodes.values())


@converts(BRANCHES)
def _branches(translator: Translator, node: Node) -> None:
    branches = translator.regions[node.name]
    assert isinstance(branches, tuple)
    predicate = translator.plain(node.inputs[0])
    if translator.dtype(node.inputs[0]) is not DType.BOOL:
        predicate = translator.add_intermediate(node, "predicate", "Cast", [predicate], to=NUMBERS[DType.BOOL])
    attrs: dict[str, Attr] = {}
    captured: list[str] = []
    graphs = translate_all(branch.lowered for branch in branches)
    for role, branch, graph in zip(ROLES, branches, graphs, strict=True):
        for inner, edge in branch.arguments.items():
            captured.append(translator.add_node(inner.node, "Identity", [translator.plain(edge)]).node)
        attrs[f"{role}_branch"] = onnx.encode_subgraph(f"{role}_branch", graph, f"{node.name}/{role}")
    outputs = [Edge(node.name, port) for port in range(len(branches[0].lowered.graph.outputs))]
    attrs[onnx.OUTPUTS] = tuple(str(edge).encode() for edge in outputs)
    translator.nodes[node.name] = Node(node.name, "If", (predicate,), tuple(captured), attrs)
    translator.values |= {(edge, PLAIN): edge for edge in outputs}


def lower(graph: Graph, depth: int = 0) -> LoweredGraph:
    """Return the graph with one node for each loop and each condition.

    Args:
        graph: TensorFlow graph.
        depth: number of loops and conditions around it.

    Raises:
        UnavailableError: a loop has an unusual structure, or is inside too many others.
        GraphError: the graph has too many nodes with its functions inlined.
    """
    if depth == 0:
        check_inlined_size(graph)
    graph = lower_lists(with_if_nodes(with_while_nodes(with_if_nodes(graph))))
    if (LOOP_OPS | IF_OPS).isdisjoint(graph.op_counts):
        return LoweredGraph(graph)
    graph = fold_constants(graph)
    needed = graph.reachable() - graph.input_names
    regions: dict[str, object] = {}
    shapes: dict[Edge, Shape] = {}
    for name in graph.order:
        node = graph[name]
        if name not in needed or node.op not in LOOP_OPS | IF_OPS:
            continue
        if depth == MAX_DEPTH:
            raise conversion_error(node, f"the node is inside more than {MAX_DEPTH - 1} loops and conditions")
        lower_node = _lower_loop if node.op in LOOP_OPS else _lower_branches
        try:
            graph, regions[name], outputs = lower_node(graph, node, infer_shapes(graph, shapes), depth + 1)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise conversion_error(node, f"the node is invalid ({error})") from error
        shapes |= {Edge(name, port): shape for port, shape in outputs.items()}
    return LoweredGraph(graph, regions, shapes)


def _lower_loop(
    graph: Graph, node: Node, shapes: Mapping[Edge, Shape], depth: int
) -> tuple[Graph, object, Mapping[int, Shape]]:
    """Return the graph with a loop as one node, the loop, and the shapes of its outputs by port."""
    loop = read_loop(graph, node)
    inputs = {port: shapes.get(edge, UNKNOWN) for port, edge in enumerate(loop.initial)}
    iteration, outputs = _infer_iteration(iteration_of(node.name, loop), loop, inputs, depth)
    for port in loop.scans:
        dims = outputs[port].dims
        outputs[port] = Shape([list_length(graph, loop, port), *dims[1:]]) if dims else UNKNOWN
    body_shapes = infer_shapes(iteration.graph, iteration.known_shapes)
    layer = RecurrenceReader(graph, node, loop, shapes, body_shapes).read()
    if layer is not None:
        return lower_recurrence(graph, node, layer), layer, outputs
    return lower_loop(graph, node, loop), LoopRegion(loop, iteration), outputs


def _infer_iteration(
    graph: Graph, loop: Loop, initial: Mapping[int, Shape], depth: int
) -> tuple[LoweredGraph, dict[int, Shape]]:
    """Return a lowered iteration with the shapes of its inputs, and the shapes of the outputs of the loop.

    A dimension that an iteration changes, or may change, is unknown.
    """
    ports = {edge: port for port, edge in enumerate(loop.body.inputs)}
    shapes = dict(initial)
    for remaining in reversed(range(MAX_INFERENCES)):
        nodes = dict(graph.nodes)
        for edge in graph.inputs:
            nodes[edge.node] = nodes[edge.node].with_attrs(shape=shapes[ports[edge]])
        lowered = lower(graph.with_nodes(nodes.values()), depth)
        inferred = infer_shapes(lowered.graph, lowered.known_shapes)
        results = [inferred.get(edge, UNKNOWN) for edge in graph.outputs[1:]]
        updates = dict(zip(loop.variables, results, strict=False))
        joined = {port: join_shapes(shapes[port], shape) for port, shape in updates.items()}
        if joined.items() <= shapes.items():
            break
        shapes |= joined if remaining > 1 else dict.fromkeys(joined, UNKNOWN)
    for (port, _), shape in zip(loop.scans.items(), results[len(loop.variables) :], strict=True):
        shapes[port] = UNKNOWN if shape.dims is None else Shape([None, *shape.dims])
    return lowered, shapes


def _lower_branches(
    graph: Graph, node: Node, shapes: Mapping[Edge, Shape], depth: int
) -> tuple[Graph, object, Mapping[int, Shape]]:
    """Return the graph with a condition as one node, its branches, and the shapes of its outputs by port."""
    branches = []
    results = []
    for role in ROLES:
        branch, arguments = read_branch(graph, node, role, shapes)
        branches.append(Branch(lower(branch, depth), arguments))
        inferred = infer_shapes(branches[-1].lowered.graph, branches[-1].lowered.known_shapes)
        results.append([inferred.get(edge, UNKNOWN) for edge in branch.outputs])
    joined = [join_shapes(*pair) for pair in zip(*results, strict=True)]
    return lower_branches(graph, node, branch), tuple(branches), dict(enumerate(joined))
