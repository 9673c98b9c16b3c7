"""Lowering of loops, conditions and lists: one node for each, which a `Translator` converts to ONNX."""

from collections.abc import Mapping

from quantkit.convert.tensorflow_to_onnx.branches import ROLES, Branch, lower_branches, read_branch
from quantkit.convert.tensorflow_to_onnx.conditions import with_if_nodes
from quantkit.convert.tensorflow_to_onnx.frames import with_while_nodes
from quantkit.convert.tensorflow_to_onnx.lists import lower_lists
from quantkit.convert.tensorflow_to_onnx.loops import Loop, LoopRegion, iteration_of, list_length, lower_loop, read_loop
from quantkit.convert.tensorflow_to_onnx.recurrent import RecurrenceReader, lower_recurrence
from quantkit.convert.tensorflow_to_onnx.subgraphs import fold_constants
from quantkit.convert.tensorflow_to_onnx.translator import LoweredGraph, conversion_error
from quantkit.formats.graphdef.function_library import check_inlined_size
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Shape
from quantkit.ops.semantics import IF_OPS, LOOP_OPS
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.ops.shape_rules import join_shapes

# Maximum number of loops and conditions inside one another, and of shape inferences of an iteration, each of which
# includes all inner loops.
MAX_DEPTH, MAX_INFERENCES = 6, 4


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
