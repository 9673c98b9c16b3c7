"""Functions of a TensorFlow graph as graphs of their own, for one call.

The names of the nodes are unique in the calling graph as well, as ONNX requires.
"""

from collections.abc import Iterable, Mapping, Sequence

from quantkit.convert.tensorflow_to_onnx.lists import lower_lists
from quantkit.convert.tensorflow_to_onnx.translator import conversion_error, dtype_of
from quantkit.errors import QuantkitError
from quantkit.ir.functions import FunctionName
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import Shape
from quantkit.ops.kernels import evaluate

COPIES = frozenset({"Identity", "StopGradient", "PreventGradient", "Snapshot"})

# Maximum size of a folded constant, and of the constants that it is computed from.
MAX_FOLDED_BYTES = 1 << 18


def source_of(graph: Graph, edge: Edge) -> Edge:
    """Return the edge that an edge is a copy of."""
    while (node := graph[edge.node]).op in COPIES and node.name not in graph.input_names:
        edge = node.inputs[0]
    return edge


def instantiate(graph: Graph, node: Node, role: str, prefix: str, arguments: Sequence[Edge]) -> Graph:
    """Return the function of a call as a graph without lists, unused nodes and control dependencies.

    Args:
        graph: calling graph.
        node: call.
        role: attribute that names the function.
        prefix: prefix of the new names.
        arguments: arguments of the call.

    Returns:
        A graph with an input for each argument and an output for each result.

    Raises:
        UnavailableError: the graph has no such function.
    """
    name = node.attrs.get(role)
    if not isinstance(name, FunctionName) or name.name not in graph.library:
        raise conversion_error(node, f"the function {role!r} is not in the graph")
    try:
        function = graph.library.bound(name.name, node.attrs).graph
        _ = function.reachable(), function.order  # raise for a missing node and for a cycle
    except QuantkitError as error:
        raise conversion_error(node, error.message) from error
    if len(function.inputs) != len(arguments):
        raise conversion_error(node, f"the function {name.name!r} has {len(function.inputs)} arguments")
    names = _unique_names(graph, prefix, function)
    placeholders = {
        edge.node: Node(edge.node, "Placeholder", attrs={"dtype": dtype_of(graph, argument), "shape": Shape(None)})
        for edge, argument in zip(function.inputs, arguments, strict=True)
    }
    nodes = (placeholders.get(inner.name, inner) for inner in function.nodes.values())
    renamed = [
        inner.with_(
            name=names[inner.name],
            inputs=tuple(_rename(names, source_of(function, edge)) for edge in inner.inputs),
            controls=(),
        )
        for inner in nodes
    ]
    inputs, outputs = (
        [_rename(names, source_of(function, edge)) for edge in edges] for edges in (function.inputs, function.outputs)
    )
    return lower_lists(Graph.of(renamed, inputs, outputs, library=graph.library).without_unused_nodes())


def with_constants(graph: Graph, constants: Mapping[int, Node]) -> Graph:
    """Return the graph with constants in the place of inputs, by index of the input; they stay inputs."""
    names = {graph.inputs[index].node: node for index, node in constants.items()}
    return graph.with_nodes(
        names[node.name].with_(name=node.name, controls=()) if node.name in names else node
        for node in graph.nodes.values()
    )


def fold_constants(graph: Graph) -> Graph:
    """Return the graph with small constants in the place of nodes that compute them; outputs of the graph stay."""
    nodes: dict[str, Node] = {}
    moved: dict[Edge, Edge] = {}
    for name in graph.order:
        node = graph[name]
        node = nodes[name] = node.with_(inputs=tuple(moved.get(edge, edge) for edge in node.inputs))
        inputs = [nodes[edge.node] for edge in node.inputs]
        if not inputs or node.controls or name in graph.endpoint_names or not all(map(_is_small_constant, inputs)):
            continue
        try:
            values = evaluate(node, [source.value.array for source in inputs], MAX_FOLDED_BYTES, is_folded=True)
        except QuantkitError:
            continue
        for port, value in enumerate(values):
            folded = name if port == 0 else f"{name}/folded/{port}"
            nodes[folded] = constant(folded, value)
            moved[Edge(name, port)] = Edge(folded)
    return graph.with_nodes(nodes.values())


def _is_small_constant(node: Node) -> bool:
    return node.is_constant and node.value.num_elements * 4 <= MAX_FOLDED_BYTES


def copy_into(graph: Graph, prefix: str, arguments: Iterable[Edge]) -> tuple[list[Node], list[Edge]]:
    """Return the nodes of a graph without its inputs under new names, and its outputs.

    Args:
        graph: a result of `instantiate`.
        prefix: prefix of the new names.
        arguments: edges in the place of the inputs.
    """
    edges = dict(zip(graph.inputs, arguments, strict=True))
    names = {name: f"{prefix}/{name}" for name in graph.nodes}

    def rename(edge: Edge) -> Edge:
        return edges[edge] if edge in edges else _rename(names, edge)

    nodes = [
        node.with_(name=names[node.name], inputs=tuple(map(rename, node.inputs)))
        for node in graph.nodes.values()
        if node.name not in graph.input_names
    ]
    return nodes, [rename(edge) for edge in graph.outputs]


def as_results(graph: Graph, name: str, edges: Iterable[Edge]) -> list[Node]:
    """Return an Identity for each output of an ONNX subgraph, which cannot return inputs or outer values."""
    return [
        Node(f"{name}/result_{index}", "Identity", (edge,), attrs={"T": dtype_of(graph, edge)})
        for index, edge in enumerate(edges)
    ]


def _unique_names(graph: Graph, prefix: str, function: Graph) -> dict[str, str]:
    names: dict[str, str] = {}
    used_names = set(graph.nodes)
    for name in function.nodes:
        unique = name if name.startswith(f"{prefix}/") else f"{prefix}/{name}"
        while unique in used_names:
            unique += "_"
        used_names.add(unique)
        names[name] = unique
    return names


def _rename(names: Mapping[str, str], edge: Edge) -> Edge:
    return Edge(names[edge.node], edge.port)
