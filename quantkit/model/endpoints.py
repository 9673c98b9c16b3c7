"""Endpoints of image classifiers: the input that takes images and the output with the class scores.

A card names them. In any other graph they are the first placeholder that takes images and the only
edge without consumers.
"""

from collections.abc import Iterable

from quantkit.errors import UsageError
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType, Shape
from quantkit.zoo import ModelCard


def choose_image_endpoints(
    graph: Graph, card: ModelCard | None, cards: Iterable[ModelCard], input_layer: str = "", output_layer: str = ""
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
    source = Edge.parse(input_layer) if input_layer else _image_input(graph, card)
    result = Edge.parse(output_layer) if output_layer else _score_output(graph, card, cards)
    restricted = graph.with_endpoints([source], [result])
    needed = restricted.reachable()
    others = [
        name for name in graph.nodes if name in needed and graph[name].op == "Placeholder" and name != source.node
    ]
    if others:
        raise UsageError(
            f"output {str(result)!r} depends on {', '.join(others)} and {str(source)!r}: images fill only one input",
            hint="fold the other inputs into constants, or give an array for each input, by input name",
        )
    return restricted


def takes_encoded_images(graph: Graph) -> bool:
    """Return True if an input takes encoded images, which only TensorFlow decodes."""
    return any(_dtype(graph[edge.node]) is DType.STRING for edge in graph.inputs)


def _image_input(graph: Graph, card: ModelCard | None) -> Edge:
    if card is not None:
        return Edge.parse(card.inputs[0].name)
    matches = [name for name, node in graph.nodes.items() if _is_image_placeholder(node)]
    if matches:
        return Edge(matches[0])
    if "Mul" in graph and "DecodeJpeg" in graph:
        return Edge("Mul")
    others = [name for name, node in graph.nodes.items() if node.op == "Placeholder"]
    raise UsageError(
        "no placeholder of the graph takes images" + (f" ({', '.join(others[:5])} do not)" if others else ""),
        hint="name the input with --input-layer; quantkit summarize lists the inputs",
    )


def _score_output(graph: Graph, card: ModelCard | None, cards: Iterable[ModelCard]) -> Edge:
    if card is not None:
        return Edge.parse(card.outputs[0].name)
    edges = graph.outputs or tuple(Edge(name) for name in graph.nodes if name not in graph.node_uses)
    card_edges = {Edge.parse(known_card.outputs[0].name) for known_card in cards}
    of_cards = tuple(edge for edge in edges if edge in card_edges)
    softmax = tuple(edge for edge in edges if graph[edge.node].op == "Softmax")
    for candidates in (edges, of_cards, softmax):
        if len(candidates) == 1:
            return candidates[0]
    names = ", ".join(str(edge) for edge in edges[:5])
    raise UsageError(
        f"the graph has {len(edges)} outputs ({names}{', ...' if len(edges) > 5 else ''})",
        hint="name the output with the class scores with --output-layer",
    )


def _is_image_placeholder(node: Node) -> bool:
    if node.op not in ("Placeholder", "PlaceholderWithDefault"):
        return False
    dtype, shape = _dtype(node), node.attrs.get("shape")
    dims = shape.dims if isinstance(shape, Shape) else None
    has_channels = not dims or (len(dims) in (3, 4) and bool({1, 3, None} & {dims[-1], dims[-3]}))
    return has_channels and dtype is not None and (dtype.is_float or dtype is DType.UINT8)


def _dtype(node: Node) -> DType | None:
    dtype = node.attrs.get("dtype")
    return dtype if isinstance(dtype, DType) else None
