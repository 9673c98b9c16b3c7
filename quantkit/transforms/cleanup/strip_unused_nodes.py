"""Keep what the outputs need; let the graph begin at its inputs."""

from quantkit.errors import GraphError, RecipeError, did_you_mean
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.ops.tensorflow.signatures import output_dtypes
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
    """Remove everything that the outputs do not need, and cut the graph at its inputs.

    An input that is no Placeholder becomes one, of the same name.

    Before:  file -> DecodeJpeg -> Sub -> Mul -> Conv2D -> Softmax      inputs: Mul   outputs: Softmax
    After:   Mul (Placeholder) -> Conv2D -> Softmax

    Options:
        type: element type of new placeholders, as a short word: ``float``, ``uint8`` (what the graph computed there).
        shape: their shape, ``"1,299,299,3"``; a negative size is an unknown one (as far as the graph tells).
        name: inputs that get a type and shape of their own.
        type_for_name: the type for each ``name``.
        shape_for_name: the shape for each ``name``.

    Skips when an input is a Placeholder already, or another output of its node than the first is fed or read: it
    stays as it is.

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
    for given, word, example in (
        (type_for_name, "type", "type_for_name=int32"),
        (shape_for_name, "shape", 'shape_for_name="1,3"'),
    ):
        if len(given) != len(name):
            raise RecipeError(
                f"You must pass a '{word}_for_name' arg for every 'name', e.g. {example}",
                hint=f"there are {len(name)} name and {len(given)} {word}_for_name",
            )
    usual = None if type is None else _dtype(type), None if shape is None else _shape(shape)
    own = dict(zip(name, zip(map(_dtype, type_for_name), map(_shape, shape_for_name), strict=True), strict=True))
    kept, whole = _kept(graph)
    nodes: list[Node] = []
    cut: list[str] = []
    for node in graph.nodes.values():
        if node.name not in kept:
            continue
        if node.name in graph.input_names and node.op != "Placeholder" and node.name not in whole:
            dtype, sizes = own.get(node.name, usual)
            dtype = dtype or _computed_dtype(graph, node)
            sizes = sizes or _computed_shape(graph, node)
            nodes.append(Node(node.name, "Placeholder", attrs={"dtype": dtype, "shape": sizes}))
            cut.append(f"{node.name} ({node.op}) becomes a Placeholder, {dtype.value} of shape {sizes}")
        else:
            nodes.append(node)
    removed = len(graph) - len(nodes)
    changes = cut + ([f"{removed} nodes that the outputs do not need"] if removed else [])
    skips = [Skip(f"its output {whole[node.name]} is wanted", node.name) for node in nodes if node.name in whole]
    no_input = "it is no input, so that it gets no type and no shape"
    skips += [Skip(no_input, one) for one in own if one not in graph.input_names]
    return Outcome(graph.with_nodes(nodes), tuple(changes), tuple(skips))


def _kept(graph: Graph) -> tuple[set[str], dict[str, int]]:
    """Names that the outputs need, and inputs that no Placeholder can be, each with an output that it would lack."""
    whole: dict[str, int] = {}
    named = {node for node in graph.input_names if node in graph}
    while True:
        cut = tuple(edge for edge in graph.inputs if edge.node not in whole)
        begins = graph.with_(inputs=cut, outputs=(*graph.outputs, *(Edge(name) for name in whole)))
        kept = begins.reachable() | named
        read = {edge for name in kept - begins.input_names for edge in graph[name].inputs}
        found = {
            edge.node: edge.port
            for edge in sorted(read.union(graph.inputs, graph.outputs))
            if edge.port and edge.node in begins.input_names
        }
        if not found:
            return kept, whole
        whole |= found


def _computed_dtype(graph: Graph, node: Node) -> DType:
    made = output_dtypes(node) if graph.dialect == "tensorflow" else ()
    return made[0] or DType.FLOAT if made else DType.FLOAT


def _computed_shape(graph: Graph, node: Node) -> Shape:
    """What is known of the shape of what is cut off; of unknown rank where that is nothing."""
    try:
        return infer_shapes(graph).get(Edge(node.name), UNKNOWN)
    except GraphError:
        return UNKNOWN  # what goes may be broken: that is often why it goes


def _dtype(word: str) -> DType:
    try:
        return DType(word)
    except ValueError:
        known = [one.value for one in DType]
        raise RecipeError(
            f"Couldn't understand type argument '{word}'",
            hint=did_you_mean(word.lower().removeprefix("dt_"), known) or f"the types are {', '.join(known)}",
        ) from None


def _shape(text: str) -> Shape:
    words = [word.strip() for word in text.split(",")]
    if words == [""]:
        raise RecipeError("Specified shape is empty.", hint='give sizes: shape="1,299,299,3"')
    try:
        sizes = [int(word) for word in words]
    except ValueError:
        raise RecipeError(
            f"Couldn't parse as shape: '{text}'", hint='sizes separated by commas: "1,299,299,3"'
        ) from None
    return Shape(tuple(None if size < 0 else size for size in sizes))
