"""What to feed, what to ask for and what the answers mean, where the caller did not say.

A card knows. Of a plain file the first placeholder that takes pictures and the output that nobody reads are
used; when these are a card's, also after transforms or in another format, the card knows the rest.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from quantkit.data.feeding import Feeding, picture_size
from quantkit.data.labels import Labels, Order, find_labels, order_of, read_labels
from quantkit.data.preprocessing import Preprocessing
from quantkit.errors import UsageError
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType, Shape
from quantkit.runtimes.session import TensorInfo
from quantkit.zoo import ModelCard, label_files


@dataclass(frozen=True)
class Flags:
    """What the caller said about preprocessing; None: nothing.

    Attributes:
        height: of the input, in pixels.
        width: of the input, in pixels.
        mean: subtracted from the pixels.
        std: the pixels are then divided by it.
    """

    height: int | None = None
    width: int | None = None
    mean: float | None = None
    std: float | None = None


def matching_card(source: TensorInfo, result: TensorInfo, cards: Iterable[ModelCard]) -> ModelCard | None:
    """The card whose model this is, or was before it was transformed or converted; None where none or several fit.

    Args:
        source: what is fed.
        result: what is asked for.
        cards: to choose from.
    """
    fitting = [card for card in cards if _fits(card, source, result)]
    return fitting[0] if len(fitting) == 1 else None


def choose_ends(
    graph: Graph, card: ModelCard | None, cards: Iterable[ModelCard], input_layer: str = "", output_layer: str = ""
) -> Graph:
    """The graph with one input for pictures and one output of classes.

    Args:
        graph: as it was read.
        card: of the model, where it was asked for by its card's name.
        cards: whose outputs are known.
        input_layer: what the caller asked to feed; empty: nothing.
        output_layer: what the caller asked for; empty: nothing.

    Raises:
        UsageError: a name is not in the graph, it does not show which input or output is meant, or one input is not
            enough.
    """
    source = Edge.parse(input_layer) if input_layer else _input(graph, card)
    result = Edge.parse(output_layer) if output_layer else _output(graph, card, cards)
    chosen = graph.with_endpoints([source], [result])
    needed = chosen.reachable()
    unfed = [name for name in graph.nodes if name in needed and graph[name].op == "Placeholder" and name != source.node]
    if unfed:
        raise UsageError(
            f"the answers of {result} need {', '.join(unfed)} besides {source}, and pictures fill one input",
            hint="make constants of the others, or feed an .npz with an array named after each input",
        )
    return chosen


def takes_pictures(info: TensorInfo) -> bool:
    """Whether an input can be fed pictures, as far as its type and shape tell."""
    try:
        Feeding.of(info)
    except UsageError:
        return False
    return picture_size(info)[2] in (None, 1, 3)


def choose_preprocessing(info: TensorInfo, card: ModelCard | None, flags: Flags = Flags()) -> Preprocessing:
    """What the input wants: flags first, then its own shape, then the card, then label_image's first defaults.

    Raises:
        UsageError: the input takes no pictures, or a flag contradicts its shape.
    """
    Feeding.of(info)
    known = Preprocessing() if card is None else _of_card(card)
    if flags != Flags():
        # label_image, whose flags these are, squeezes the whole picture.
        known = replace(known, crop="none")
    height, width, channels = picture_size(info)
    for name, said, size in (("height", flags.height, height), ("width", flags.width, width)):
        if said and size and said != size:
            raise UsageError(
                f"--input-{name} is {said}, and input {info.name!r} takes a {name} of {size}",
                hint=f"leave out --input-{name}: the graph's own is used",
            )
    channels = channels or known.channels
    return Preprocessing(
        height=flags.height or height or known.height,
        width=flags.width or width or known.width,
        channels=channels,
        mean=_fitting(known.mean, channels) if flags.mean is None else flags.mean,
        std=_fitting(known.std, channels) if flags.std is None else flags.std,
        resize=known.resize,
        crop=known.crop,
    )


def choose_labels(card: ModelCard | None, model_file: Path | None, result: TensorInfo) -> Labels:
    """The labels of a model, from its card, from beside its file, or from the cache; empty where none are here.

    Args:
        card: of the model, where there is one.
        model_file: it came from, where it came from one.
        result: what is asked for.

    Raises:
        InputError: a label file is broken.
    """
    if card is not None and card.labels.names:
        words = card.labels.names
        return Labels(dict(enumerate(words)), order=Order(card.labels.order), length=len(words), source=card.name)
    folder = model_file.parent if model_file else None
    if card is not None:
        beside = [folder / Path(name).name for name in card.labels.files] if folder else []
        found = beside if beside and all(path.is_file() for path in beside) else label_files(card)
        return read_labels(found[0]) if found else Labels()
    dims = result.shape.dims
    is_release = bool(dims) and dims is not None and order_of(dims[-1] or 0) is Order.ILSVRC2012
    pair = find_labels(folder) if folder and is_release else None
    return read_labels(pair) if pair else Labels()


def needs_tensorflow(graph: Graph) -> bool:
    """Whether the graph is fed encoded pictures, which only TensorFlow decodes."""
    return any(_dtype(graph[edge.node]) is DType.STRING for edge in graph.inputs)


def _fits(card: ModelCard, source: TensorInfo, result: TensorInfo) -> bool:
    dims = result.shape.dims
    count = dims[-1] if dims else None
    if Edge.parse(result.name) != Edge.parse(card.outputs[0].name) or count not in (None, card.num_classes):
        return False
    if not takes_pictures(source):
        return False
    if Feeding.of(source).kind != "resized":
        return True  # the graph resizes and normalises itself
    channels = picture_size(source)[2]
    has_name = Edge.parse(source.name) == Edge.parse(card.inputs[0].name)
    return has_name and channels in (None, card.preprocessing.channels)


def _input(graph: Graph, card: ModelCard | None) -> Edge:
    if card is not None:
        return Edge.parse(card.inputs[0].name)
    fitting = [name for name, node in graph.nodes.items() if _takes_pictures(node)]
    if fitting:
        return Edge(fitting[0])
    if "Mul" in graph and "DecodeJpeg" in graph:
        return Edge("Mul")
    others = [name for name, node in graph.nodes.items() if node.op == "Placeholder"]
    raise UsageError(
        "no placeholder of the graph takes pictures" + (f" ({', '.join(others[:5])} do not)" if others else ""),
        hint="name the input with --input-layer; quantkit summarize lists them",
    )


def _output(graph: Graph, card: ModelCard | None, cards: Iterable[ModelCard]) -> Edge:
    if card is not None:
        return Edge.parse(card.outputs[0].name)
    unread = graph.outputs or tuple(Edge(name) for name in graph.nodes if name not in graph.node_uses)
    known = {Edge.parse(one.outputs[0].name) for one in cards}
    of_cards = tuple(edge for edge in unread if edge in known)
    softmax = tuple(edge for edge in unread if graph[edge.node].op == "Softmax")
    for candidates in (unread, of_cards, softmax):
        if len(candidates) == 1:
            return candidates[0]
    names = ", ".join(str(edge) for edge in unread[:5])
    raise UsageError(
        f"the graph has {len(unread)} outputs ({names}{', ...' if len(unread) > 5 else ''})",
        hint="name the one that gives a number for each class with --output-layer",
    )


def _takes_pictures(node: Node) -> bool:
    if node.op not in ("Placeholder", "PlaceholderWithDefault"):
        return False
    dtype, shape = _dtype(node), node.attrs.get("shape")
    dims = shape.dims if isinstance(shape, Shape) else None
    has_channels = not dims or (len(dims) in (3, 4) and bool({1, 3, None} & {dims[-1], dims[-3]}))
    return has_channels and dtype is not None and (dtype.is_float or dtype is DType.UINT8)


def _dtype(node: Node) -> DType | None:
    dtype = node.attrs.get("dtype")
    return dtype if isinstance(dtype, DType) else None


def _of_card(card: ModelCard) -> Preprocessing:
    said = card.preprocessing
    return Preprocessing(
        said.height, said.width, said.channels, _one(said.mean), _one(said.std), said.resize, said.crop
    )


def _one(numbers: tuple[float, ...]) -> float | tuple[float, ...]:
    return numbers[0] if len(numbers) == 1 else numbers


def _fitting(numbers: float | tuple[float, ...], channels: int) -> float | tuple[float, ...]:
    """Numbers per channel, for another count of channels: the average of them."""
    return sum(numbers) / len(numbers) if isinstance(numbers, tuple) and len(numbers) != channels else numbers
