"""The part of a graph between edges, as a graph of its own."""

from collections.abc import Mapping, Sequence

from quantkit.errors import GraphError, RecipeError, did_you_mean
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.ops.tensorflow.signatures import output_dtypes
from quantkit.transforms.registry import transform


@transform(exact=False)
def extract_subgraph(graph: Graph, *, inputs: tuple[str, ...] = (), outputs: tuple[str, ...] = ()) -> Outcome:
    """Keep what is computed from some edges on the way to others.

    Each edge that the part begins with becomes a Placeholder, with the element type that its op gives and the shape
    that inference finds; these are the inputs of the new graph, and the edges that it ends with are its outputs.

    Before:  x -> Conv2D -> Relu -> MatMul -> Softmax
    After:   Relu (Placeholder) -> MatMul      with inputs=Relu, outputs=MatMul

    Options:
        inputs: edges to begin with, ``extract_subgraph(inputs=Relu, inputs="split:1", outputs=MatMul)``; inputs of the
            graph that the part needs besides stay.
        outputs: edges to end with (those of the graph).

    A Placeholder has the name of the node whose edge it stands for, unless more of that node is needed: then
    ``node/port``. It tells other answers than the graph before, because it is asked for others.

    Skips when the outputs do not need an input that is named: it becomes one all the same, and changes nothing.

    Raises:
        RecipeError: an edge is not in the graph.
        GraphError: the element type of an input is not known.

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
    begin = tuple(_edge(graph, text) for text in inputs)
    end = tuple(_edge(graph, text) for text in outputs) or graph.outputs
    cut = dict.fromkeys((*begin, *graph.inputs))
    kept, read = _needed(graph, cut, end)
    made = _placeholders(graph, [edge for edge in cut if edge in read or edge in begin], kept)
    edges = {edge: Edge(node.name) for edge, node in made.items()}
    nodes = [*_in_order(graph, made), *(_cut(node, edges, kept) for node in graph.nodes.values() if node.name in kept)]
    part = graph.with_nodes(nodes).with_(
        inputs=tuple(edges.values()), outputs=tuple(edges.get(edge, edge) for edge in end)
    )
    skips = tuple(Skip("the outputs do not need it", str(edge)) for edge in begin if edge not in read)
    return Outcome(part, _changes(graph, made, part), skips)


def _edge(graph: Graph, text: str) -> Edge:
    edge = Edge(text) if text in graph else Edge.parse(text)
    if edge.node not in graph:
        raise RecipeError(
            f"extract_subgraph: {text!r} is not in the graph",
            hint=did_you_mean(edge.node, graph.nodes) or "quantkit summarize lists the inputs and outputs of a graph",
        )
    return edge


def _needed(graph: Graph, cut: Mapping[Edge, None], end: Sequence[Edge]) -> tuple[set[str], set[Edge]]:
    """Nodes that run, and the edges among the cut ones that they or the caller read."""
    fed = {edge.node for edge in cut}
    kept: set[str] = set()
    read: set[Edge] = set()
    stack = list(end)
    while stack:
        edge = stack.pop()
        if edge in cut:
            read.add(edge)
        elif edge.node not in kept:
            kept.add(edge.node)
            node = graph[edge.node]
            # Nobody waits for a tensor that is fed.
            stack.extend((*node.inputs, *(Edge(name) for name in node.controls if name not in fed)))
    return kept, read


def _placeholders(graph: Graph, edges: Sequence[Edge], kept: set[str]) -> dict[Edge, Node]:
    shapes = infer_shapes(graph)
    taken = set(kept)
    made: dict[Edge, Node] = {}
    for edge in edges:
        node = graph[edge.node]
        is_free = edge.node not in taken
        name = edge.node if is_free else _free(graph, f"{edge.node}/{edge.port}", taken)
        taken.add(name)
        if node.op == "Placeholder" and is_free:
            made[edge] = node
        else:
            made[edge] = _placeholder(node, edge, name, shapes.get(edge, UNKNOWN))
    return made


def _free(graph: Graph, wanted: str, taken: set[str]) -> str:
    name, number = wanted, 0
    while name in graph or name in taken:
        number += 1
        name = f"{wanted}_{number}"
    return name


def _placeholder(node: Node, edge: Edge, name: str, shape: Shape) -> Node:
    dtypes = output_dtypes(node)
    dtype = dtypes[edge.port] if edge.port < len(dtypes) else None
    if dtype is None:
        raise GraphError(
            f"the element type of {str(edge)!r} is not known: {node.op} does not say it",
            hint="begin at another edge, or run add_default_attributes first",
        )
    declared = node.attrs.get("shape")
    if node.op == "PlaceholderWithDefault" and isinstance(declared, Shape):
        shape = declared
    return Node(name, "Placeholder", attrs={"dtype": dtype, "shape": shape})


def _in_order(graph: Graph, made: Mapping[Edge, Node]) -> list[Node]:
    """Placeholders in the order of the nodes that they stand for."""
    place = {name: number for number, name in enumerate(graph.nodes)}
    return [made[edge] for edge in sorted(made, key=lambda edge: (place[edge.node], edge.port))]


def _cut(node: Node, edges: Mapping[Edge, Edge], kept: set[str]) -> Node:
    inputs = tuple(edges.get(edge, edge) for edge in node.inputs)
    controls = tuple(name for name in node.controls if name in kept)
    return node if (inputs, controls) == (node.inputs, node.controls) else node.with_(inputs=inputs, controls=controls)


def _changes(graph: Graph, made: Mapping[Edge, Node], part: Graph) -> tuple[str, ...]:
    lines = []
    for edge, node in made.items():
        dtype, shape = node.attrs.get("dtype"), node.attrs.get("shape")
        if node is not graph[edge.node] and isinstance(dtype, DType) and isinstance(shape, Shape):
            lines.append(
                f"{edge} ({graph[edge.node].op}) becomes the Placeholder {node.name}, {dtype.value} of {shape}"
            )
    removed = len(graph) - len(part)
    return (*lines, *([f"{removed} nodes that are not on the way"] if removed else []))
