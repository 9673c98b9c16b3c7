"""Extract the part of a graph between some edges."""

from collections.abc import Mapping, Sequence

from quantkit.errors import GraphError, RecipeError, did_you_mean
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.names import unused_name
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.ops.tensorflow.signatures import output_dtype
from quantkit.transforms.registry import transform


@transform(exact=False)
def extract_subgraph(graph: Graph, *, inputs: tuple[str, ...] = (), outputs: tuple[str, ...] = ()) -> Outcome:
    """Keep the nodes between some edges, as a graph with these inputs and outputs.

    Each input edge becomes a Placeholder with the element type of its op and the inferred shape.

    Before:  x -> Conv2D -> Relu -> MatMul -> Softmax
    After:   Relu (Placeholder) -> MatMul      with inputs=Relu, outputs=MatMul

    Options:
        inputs: new inputs, ``extract_subgraph(inputs=Relu, inputs="split:1", outputs=MatMul)``;
            inputs of the graph that the outputs also need stay.
        outputs: new outputs (default: the outputs of the graph).

    A Placeholder has the name of its edge's node, or ``node/port`` if the node itself stays. The
    outputs differ from those of the original graph, because other edges are outputs.

    Skips an input that the outputs do not need: it becomes a Placeholder, but changes no output.

    Raises:
        RecipeError: an edge is not in the graph.
        GraphError: the element type of an input is unknown, or an input of a node is not in the graph.

    Example:
        extract_subgraph(inputs=b, outputs=c)
        inputs: x
        outputs: y
        x = Placeholder[2x3]()
        a = Relu(x, T=float)
        b = Neg(a, T=float)
        c = Abs(b, T=float)
        y = Softmax(c, T=float)
    """
    new_inputs = tuple(_parse_edge(graph, text) for text in inputs)
    new_outputs = tuple(_parse_edge(graph, text) for text in outputs) or graph.outputs
    shapes = infer_shapes(graph)  # raises an error if an input or control dependency is not in the graph
    candidates = dict.fromkeys((*new_inputs, *graph.inputs))
    names, used = _find_needed(graph, candidates, new_outputs)
    cut = [edge for edge in candidates if edge in used or edge in new_inputs]
    placeholders = _make_placeholders(graph, cut, names, shapes)
    edges = {edge: Edge(node.name) for edge, node in placeholders.items()}
    nodes = [
        *_in_node_order(graph, placeholders),
        *(_reconnect(node, edges, names) for node in graph.nodes.values() if node.name in names),
    ]
    subgraph = graph.with_nodes(nodes).with_(
        inputs=tuple(edges.values()), outputs=tuple(edges.get(edge, edge) for edge in new_outputs)
    )
    skips = tuple(Skip("no output needs this input", str(edge)) for edge in new_inputs if edge not in used)
    return Outcome(subgraph, _describe_changes(graph, placeholders, subgraph), skips)


def _parse_edge(graph: Graph, text: str) -> Edge:
    edge = graph.edge(text)
    if edge.node not in graph:
        raise RecipeError(
            f"extract_subgraph: {text!r} is not in the graph",
            hint=did_you_mean(edge.node, graph.nodes) or "quantkit summarize lists the inputs and outputs of a graph",
        )
    return edge


def _find_needed(graph: Graph, inputs: Mapping[Edge, None], outputs: Sequence[Edge]) -> tuple[set[str], set[Edge]]:
    """Return the nodes between inputs and outputs, and the inputs that the nodes or outputs use."""
    input_nodes = {edge.node for edge in inputs}
    names: set[str] = set()
    used: set[Edge] = set()
    stack = list(outputs)
    while stack:
        edge = stack.pop()
        if edge in inputs:
            used.add(edge)
        elif edge.node not in names:
            names.add(edge.node)
            node = graph[edge.node]
            # Control dependencies on inputs are dropped: the caller provides the values.
            stack.extend((*node.inputs, *(Edge(name) for name in node.controls if name not in input_nodes)))
    return names, used


def _make_placeholders(
    graph: Graph, edges: Sequence[Edge], names: set[str], shapes: Mapping[Edge, Shape]
) -> dict[Edge, Node]:
    used_names, all_names = set(names), set(graph.nodes)
    placeholders: dict[Edge, Node] = {}
    for edge in edges:
        node = graph[edge.node]
        is_free = edge.node not in used_names
        name = edge.node if is_free else unused_name(all_names, f"{edge.node}/{edge.port}")
        used_names.add(name)
        all_names.add(name)
        if node.op == "Placeholder" and is_free:
            placeholders[edge] = node
        else:
            placeholders[edge] = _make_placeholder(node, edge, name, shapes.get(edge, UNKNOWN))
    return placeholders


def _make_placeholder(node: Node, edge: Edge, name: str, shape: Shape) -> Node:
    dtype = output_dtype(node, edge.port)
    if dtype is None:
        raise GraphError(
            f"cannot determine the element type of {str(edge)!r} ({node.op})",
            hint="choose another input edge, or run add_default_attributes first",
        )
    declared = node.attrs.get("shape")
    if node.op == "PlaceholderWithDefault" and isinstance(declared, Shape):
        shape = declared
    return Node(name, "Placeholder", attrs={"dtype": dtype, "shape": shape})


def _in_node_order(graph: Graph, placeholders: Mapping[Edge, Node]) -> list[Node]:
    """Return the placeholders in the file order of their original nodes."""
    positions = {name: position for position, name in enumerate(graph.nodes)}
    return [placeholders[edge] for edge in sorted(placeholders, key=lambda edge: (positions[edge.node], edge.port))]


def _reconnect(node: Node, edges: Mapping[Edge, Edge], names: set[str]) -> Node:
    inputs = tuple(edges.get(edge, edge) for edge in node.inputs)
    controls = tuple(name for name in node.controls if name in names)
    return node if (inputs, controls) == (node.inputs, node.controls) else node.with_(inputs=inputs, controls=controls)


def _describe_changes(graph: Graph, placeholders: Mapping[Edge, Node], subgraph: Graph) -> tuple[str, ...]:
    lines = []
    for edge, node in placeholders.items():
        dtype, shape = node.attrs.get("dtype"), node.attrs.get("shape")
        if node is not graph[edge.node] and isinstance(dtype, DType) and isinstance(shape, Shape):
            lines.append(
                f"{edge} ({graph[edge.node].op}) becomes Placeholder {node.name}, {dtype.value} of shape {shape}"
            )
    removed = len(graph) - len(subgraph)
    return (*lines, *([f"{removed} nodes outside the subgraph"] if removed else []))
