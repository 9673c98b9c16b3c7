"""Remove nodes that the outputs do not need, and cut the graph at its inputs."""

from quantkit.errors import GraphError, RecipeError, did_you_mean
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.ops.tensorflow.signatures import output_dtype
from quantkit.transforms.registry import transform


@transform(dialects=("tensorflow", "onnx"))
def strip_unused_nodes(
    graph: Graph,
    *,
    type: str | None = None,
    shape: str | None = None,
    name: tuple[str, ...] = (),
    type_for_name: tuple[str, ...] = (),
    shape_for_name: tuple[str, ...] = (),
) -> Outcome:
    """Remove nodes that the outputs do not need, and replace inputs by Placeholders.

    A Placeholder has the name of the node that it replaces.

    Before:  file -> DecodeJpeg -> Sub -> Mul -> Conv2D -> Softmax      inputs: Mul   outputs: Softmax
    After:   Mul (Placeholder) -> Conv2D -> Softmax

    Options:
        type: element type of new Placeholders, for example ``float`` or ``uint8`` (default: the node's
            element type).
        shape: shape of new Placeholders, for example ``"1,299,299,3"``; a negative size is unknown
            (default: the inferred shape).
        name: inputs with their own type and shape.
        type_for_name: type of each ``name``.
        shape_for_name: shape of each ``name``.

    Skips Placeholders, and inputs whose second or later output is an input or has consumers.

    Example:
        strip_unused_nodes(type=float, shape="1,2")
        inputs: prepared
        outputs: y
        raw = Placeholder[1x2]()
        two = Const(2.0)
        prepared = Mul(raw, two)
        y = Relu(prepared)
        unused = Neg(y)
    """
    for values, option, example in (
        (type_for_name, "type", "type_for_name=int32"),
        (shape_for_name, "shape", 'shape_for_name="1,3"'),
    ):
        if len(values) != len(name):
            raise RecipeError(
                f"You must pass a '{option}_for_name' arg for every 'name', e.g. {example}",
                hint=f"there are {len(name)} name and {len(values)} {option}_for_name options",
            )
    default = None if type is None else _parse_dtype(type), None if shape is None else _parse_shape(shape)
    pairs = zip(map(_parse_dtype, type_for_name), map(_parse_shape, shape_for_name), strict=True)
    by_name = dict(zip(name, pairs, strict=True))
    needed, uncut = _find_needed(graph)
    nodes: list[Node] = []
    changes: list[str] = []
    for node in graph.nodes.values():
        if node.name not in needed:
            continue
        if node.name in graph.input_names and node.op != "Placeholder" and node.name not in uncut:
            dtype, sizes = by_name.get(node.name, default)
            dtype = dtype or _infer_dtype(graph, node)
            sizes = sizes or _infer_shape(graph, node)
            nodes.append(Node(node.name, "Placeholder", attrs={"dtype": dtype, "shape": sizes}))
            changes.append(f"{node.name} ({node.op}) becomes a Placeholder, {dtype.value} of shape {sizes}")
        else:
            nodes.append(node)
    removed = len(graph) - len(nodes)
    changes += [f"{removed} nodes that the outputs do not need"] if removed else []
    skips = [Skip(f"output {uncut[node.name]} is needed", node.name) for node in nodes if node.name in uncut]
    no_input = "the node is not a graph input: type and shape have no effect"
    skips += [Skip(no_input, input_name) for input_name in by_name if input_name not in graph.input_names]
    return Outcome(graph.with_nodes(nodes), tuple(changes), tuple(skips))


def _find_needed(graph: Graph) -> tuple[set[str], dict[str, int]]:
    """Return the nodes that the outputs need, and the inputs that cannot become Placeholders.

    Each of these inputs is given with the number of an output that a Placeholder lacks.
    """
    uncut: dict[str, int] = {}
    inputs = {node for node in graph.input_names if node in graph}
    while True:
        cut = tuple(edge for edge in graph.inputs if edge.node not in uncut)
        cut_graph = graph.with_(inputs=cut, outputs=(*graph.outputs, *(Edge(name) for name in uncut)))
        needed = cut_graph.reachable() | inputs
        used = {edge for name in needed - cut_graph.input_names for edge in graph[name].inputs}
        later_outputs = {
            edge.node: edge.port
            for edge in sorted(used.union(graph.inputs, graph.outputs))
            if edge.port and edge.node in cut_graph.input_names
        }
        if not later_outputs:
            return needed, uncut
        uncut |= later_outputs


def _infer_dtype(graph: Graph, node: Node) -> DType:
    return (output_dtype(node) if graph.dialect == "tensorflow" else None) or DType.FLOAT


def _infer_shape(graph: Graph, node: Node) -> Shape:
    """Return the inferred shape of an input, `UNKNOWN` if the graph is invalid.

    The nodes that the cut removes are often the invalid ones.
    """
    try:
        return infer_shapes(graph).get(Edge(node.name), UNKNOWN)
    except GraphError:
        return UNKNOWN


def _parse_dtype(text: str) -> DType:
    try:
        return DType(text)
    except ValueError:
        names = [dtype.value for dtype in DType]
        raise RecipeError(
            f"Couldn't understand type argument '{text}'",
            hint=did_you_mean(text.lower().removeprefix("dt_"), names) or f"the types are {', '.join(names)}",
        ) from None


def _parse_shape(text: str) -> Shape:
    fields = [field.strip() for field in text.split(",")]
    if fields == [""]:
        raise RecipeError("Specified shape is empty.", hint='give sizes: shape="1,299,299,3"')
    try:
        sizes = [int(field) for field in fields]
    except ValueError:
        raise RecipeError(
            f"Couldn't parse as shape: '{text}'", hint='give comma-separated sizes: "1,299,299,3"'
        ) from None
    return Shape(tuple(None if size < 0 else size for size in sizes))
