"""Endpoints of a graph: those of its model card, else its placeholders and nodes without consumers.

An image classifier has one input that takes images and one output with the class scores. A card
names them. In any other graph they are the first input that takes images and the only output.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from quantkit.errors import UsageError
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes

if TYPE_CHECKING:
    from quantkit.zoo.cards import ModelCard

_EVALUATE = "quantkit evaluate FILE --data DATA --reference MODEL --task"
_TASK_HINT = (
    "compare all outputs: boxes with --task detection, logits of tokens with --task text or language, "
    "other values with --task regression: "
)
SIZES_HINT = (
    f"compare outputs of any size, boxes with --task detection, other values with --task text: {_EVALUATE} text"
)
TOKENS_HINT = f"{_TASK_HINT}{_EVALUATE} language"
PLACEHOLDER_OPS = frozenset({"Placeholder", "PlaceholderWithDefault"})


def scores_hint(vectors: Iterable[tuple[str, Shape]] = ()) -> str:
    """Return the hint for a model without a known output with class scores; its example is the longest vector."""
    name, _ = max(vectors, key=lambda each: (each[1].dims or (0,))[-1] or 0, default=("NAME", UNKNOWN))
    scores = f"name the output with the class scores, for example --output-layer {name}"
    return f"{scores}, or {_TASK_HINT}{_EVALUATE} regression"


def find_endpoints(graph: Graph, cards: "Iterable[ModelCard]") -> Graph:
    """Return the graph with inputs; a graph without placeholders gets the endpoints of its card.

    The release of Inception v3 of 2015, for example, decodes an image that is a constant. The graph
    is returned unchanged if it has inputs, or if the endpoints of no card or of several cards fit.
    """
    if graph.inputs:
        return graph
    fitting = {endpoints for card in cards if _fits(graph, endpoints := _card_endpoints(card), card.num_classes)}
    if len(fitting) != 1:
        return graph
    ((inputs, outputs),) = fitting
    return graph.with_endpoints(inputs, graph.outputs or outputs)


def _card_endpoints(card: "ModelCard") -> tuple[tuple[Edge, ...], tuple[Edge, ...]]:
    """Return the inputs and outputs of a card."""
    inputs, outputs = (tuple(Edge.parse(tensor.name) for tensor in tensors) for tensors in (card.inputs, card.outputs))
    return inputs, outputs


def _fits(graph: Graph, endpoints: tuple[tuple[Edge, ...], tuple[Edge, ...]], num_classes: int) -> bool:
    """Return True if the endpoints are nodes of the graph, and the inputs fill the outputs."""
    inputs, outputs = endpoints
    if any(edge.node not in graph for edge in (*inputs, *outputs)):
        return False
    dims = infer_shapes(graph).get(outputs[0], UNKNOWN).dims
    if dims and dims[-1] not in (None, num_classes):
        return False
    needed = graph.with_endpoints(inputs, outputs).reachable()
    return all(edge.node in needed for edge in inputs)


def choose_image_endpoints(
    graph: Graph, card: "ModelCard | None", cards: "Sequence[ModelCard]", input_layer: str = "", output_layer: str = ""
) -> Graph:
    """Return the graph with one input that takes images and one output with the class scores.

    Args:
        graph: graph of the model.
        card: card of the model.
        cards: cards of known models, whose outputs are preferred.
        input_layer: input that the caller chose; empty if the caller chose none.
        output_layer: output that the caller chose; empty if the caller chose none.

    Raises:
        UsageError: a name is not in the graph, the input or output is ambiguous, or the output
            depends on a second input.
    """
    graph = find_endpoints(graph, cards)
    source = Edge.parse(input_layer) if input_layer else _image_input(graph, card)
    result = Edge.parse(output_layer) if output_layer else choose_score_output(graph, card, cards)
    return _require_one_input(graph.with_endpoints([source], [result]))


def choose_endpoints(graph: Graph, card: "ModelCard | None", cards: "Sequence[ModelCard]") -> Graph:
    """Return the graph with one image input and all outputs, else one output; else with its own inputs and outputs."""
    if card is None:
        with suppress(UsageError):
            return _require_one_input(graph.with_endpoints([_image_input(graph, card)], None))
    with suppress(UsageError):
        return choose_image_endpoints(graph, card, cards)
    return graph


def _require_one_input(graph: Graph) -> Graph:
    """Return the graph if its outputs depend on no placeholder but its one input."""
    needed = graph.reachable()
    source, results = graph.inputs[0], ", ".join(map(str, graph.outputs))
    others = [
        name for name in graph.nodes if name in needed and graph[name].op == "Placeholder" and name != source.node
    ]
    if others:
        raise UsageError(
            f"output {results!r} depends on {', '.join(others)} and {str(source)!r}: images fill only one input",
            hint="give an array for each input, by input name: quantkit run MODEL --data ARRAYS.npz, or evaluate",
        )
    return graph


def takes_encoded_images(graph: Graph) -> bool:
    """Return True if an input takes encoded images, which only TensorFlow decodes."""
    return any(_dtype(graph[edge.node]) is DType.STRING for edge in graph.inputs)


def _image_input(graph: Graph, card: "ModelCard | None") -> Edge:
    if card is not None:
        return Edge.parse(card.inputs[0].name)
    # An input in the middle of the graph is the choice of the caller, or that of a card.
    if len(graph.inputs) == 1 and graph[graph.inputs[0].node].op not in PLACEHOLDER_OPS:
        return graph.inputs[0]
    matches = [name for name, node in graph.nodes.items() if _is_image_placeholder(node)]
    if matches:
        return Edge(matches[0])
    others = [name for name, node in graph.nodes.items() if node.op == "Placeholder"]
    raise UsageError(
        "no placeholder of the graph takes images" + (f" ({', '.join(others[:5])} do not)" if others else ""),
        hint="name the input with --input-layer; quantkit summarize lists the inputs",
    )


def choose_score_output(graph: Graph, card: "ModelCard | None", cards: "Iterable[ModelCard]") -> Edge:
    """Return the output with the class scores: that of a card, the only output, softmax or vector.

    Raises:
        UsageError: the output is ambiguous.
    """
    if card is not None:
        return Edge.parse(card.outputs[0].name)
    edges = graph.outputs or tuple(Edge(name) for name in graph.nodes if name not in graph.node_uses)
    card_edges = {Edge.parse(known_card.outputs[0].name) for known_card in cards}
    of_cards = tuple(edge for edge in edges if edge in card_edges)
    softmax = tuple(edge for edge in edges if graph[edge.node].op == "Softmax")
    shapes = infer_shapes(graph)
    vectors = tuple(edge for edge in edges if len(dims := shapes.get(edge, UNKNOWN).dims or ()) == 2 and dims[1] != 1)
    for candidates in (edges, of_cards, softmax, vectors):
        if len(candidates) == 1:
            return candidates[0]
    names = ", ".join(str(edge) for edge in edges[:5])
    raise UsageError(
        f"the graph has {len(edges)} outputs ({names}{', ...' if len(edges) > 5 else ''})",
        hint=scores_hint((str(edge), shapes.get(edge, UNKNOWN)) for edge in softmax or vectors),
    )


def _is_image_placeholder(node: Node) -> bool:
    if node.op not in PLACEHOLDER_OPS:
        return False
    dtype, shape = _dtype(node), node.attrs.get("shape")
    dims = shape.dims if isinstance(shape, Shape) else None
    has_channels = not dims or (len(dims) in (3, 4) and bool({1, 3, None} & {dims[-1], dims[-3]}))
    return has_channels and dtype is not None and (dtype.is_float or dtype is DType.UINT8)


def _dtype(node: Node) -> DType | None:
    dtype = node.attrs.get("dtype")
    return dtype if isinstance(dtype, DType) else None
