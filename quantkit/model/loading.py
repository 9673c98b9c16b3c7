"""Loading of models: from a file, a folder, the name of a model card, or an object to a `Model`."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

from quantkit import formats
from quantkit.arguments import (
    as_shapes,
    public,
    require_callable,
    require_names,
    require_natural,
    type_name,
)
from quantkit.errors import UsageError, did_you_mean
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Shape
from quantkit.model.endpoints import find_endpoints
from quantkit.model.importers import EdgeNames, ImportOptions, import_file
from quantkit.model.importers.objects import import_object
from quantkit.model.model import Model, endpoint_flags, tensor_info
from quantkit.model.options import FileOptions, ShapeOptions
from quantkit.ops.tensorflow.type_inference import complete_types
from quantkit.options import Declaration, option, takes
from quantkit.progress import OnProgress, ignore_progress
from quantkit.zoo.architectures import is_random, random_graph

if TYPE_CHECKING:
    from quantkit.zoo.cards import ModelCard


class LoadKeywords(TypedDict, total=False):
    """Keyword arguments of `load`."""

    inputs: EdgeNames
    outputs: EdgeNames
    signature: str | None
    tags: Iterable[str] | None
    checkpoint: str | os.PathLike[str] | None
    input_shapes: Mapping[str, Sequence[int]] | None
    random_weights: bool
    seed: int
    offline: bool
    on_progress: OnProgress


@public
def as_model(value: Any, **options: Unpack[LoadKeywords]) -> Model:
    """Return the `Model` of any value that a verb accepts; a `Model` is returned unchanged.

    Args:
        value: see `load`.
        options: keyword arguments of `load`.

    Raises:
        InputError, UsageError, UnavailableError: see `load`.
    """
    return value if isinstance(value, Model) and not options else load(value, **options)


@dataclass(frozen=True)
class LoadArguments(ShapeOptions, FileOptions):
    """The arguments of `load`."""

    model: Annotated[
        Any,
        Declaration(
            doc="a file (``.pb``, ``.pbtxt``, ``.onnx``, ``.tflite``, ``.keras``, ``.h5``), a SavedModel folder, a "
            "checkpoint with its graph, the name of a model card, which is downloaded on first use, a `Model`, a "
            "`QuantizationResult`, a `Graph`, a GraphDef or an ONNX ModelProto, as a message or serialized, a Keras "
            "model, or a TensorFlow function"
        ),
    ]
    inputs: EdgeNames = option(
        None,
        lambda inputs: _check_edges(inputs=inputs),
        doc="names of the inputs in the graph or the signature; if None those of the card or the signature, else the "
        "placeholders, else those of the card whose tensors the graph has",
    )
    outputs: EdgeNames = option(
        None,
        lambda outputs: _check_edges(outputs=outputs),
        doc="names of the outputs, likewise; if None those of the card or the signature, else the edges without "
        "consumers",
    )
    _: KW_ONLY
    seed: int = option(0, require_natural, doc="seed of the random weights")
    on_progress: OnProgress = option(
        ignore_progress, require_callable, doc="receives the bytes done and the total number of bytes during a download"
    )


def _check_edges(**edges: Any) -> None:
    require_names(**{name: value for name, value in edges.items() if not isinstance(value, Edge)})


@public
@takes(LoadArguments)
def load(arguments: LoadArguments) -> Model:
    """Load a model.

    Raises:
        InputError: the file is missing or broken, or the download failed.
        UsageError: there is no such card or signature, an input or output is not in the graph, an
            option does not apply, or `model` has another type.
        UnavailableError: the package for this kind of model is not installed.
    """
    options = ImportOptions(
        _edges(arguments.inputs), _edges(arguments.outputs), arguments.signature, arguments.tags, arguments.checkpoint
    )
    loaded = _load(arguments, options)
    shapes = arguments.input_shapes
    return fix_input_shapes(loaded, as_shapes(shapes)) if shapes else loaded


def _load(arguments: LoadArguments, options: ImportOptions) -> Model:
    """Load a model with checked options; see `load`."""
    model, random_weights = arguments.model, arguments.random_weights
    if isinstance(quantized := getattr(model, "model", None), Model):
        model = quantized
    if isinstance(model, str | os.PathLike):
        text = os.path.expanduser(model)
        card = find_model_card(text)
        flags = _flags(options, random_weights)
        if random_weights:
            return replace(_random(text, card, options, arguments.seed), flags=flags)
        if card is None:
            return replace(_from_file(text, formats.model_path(Path(text)), None, options), flags=flags)
        from quantkit.zoo.fetch import fetch

        path = fetch(card, offline=arguments.offline, on_progress=arguments.on_progress)
        return replace(_from_file(text, path, card, options), flags=flags)
    if options.signature or options.tags or options.checkpoint or random_weights:
        raise UsageError(
            f"signature, tags, checkpoint and random_weights apply to files and cards, not to {type_name(model)}",
            hint="remove these options",
        )
    if isinstance(model, Model):
        return model.with_endpoints(options.inputs, options.outputs)
    graph = complete_types(model) if isinstance(model, Graph) else import_object(model)
    return Model("graph", _with_inputs(graph.with_endpoints(options.inputs, options.outputs)))


def _from_file(name: str, path: Path, card: "ModelCard | None", options: ImportOptions) -> Model:
    """Read a file; the endpoints of a card's frozen graph are the card's."""
    if card and formats.kind_of(path).startswith("graphdef"):
        options = _with_card_endpoints(options, card)
    runnable, signature = import_file(path, options)
    if isinstance(runnable, Path):
        return Model(name, runnable, path, card).with_endpoints(options.inputs, options.outputs)
    graph = _with_inputs(runnable)
    return Model(name, graph, path, card, is_random(graph), signature=signature)


def _flags(options: ImportOptions, random_weights: bool) -> tuple[str, ...]:
    """Return the command-line flags that load a model with these options."""
    values = {
        "--signature": options.signature,
        "--tags": ",".join(options.tags) if options.tags is not None else None,
        "--checkpoint": options.checkpoint and os.fspath(options.checkpoint),
    }
    texts = (text for flag, value in values.items() if value for text in (flag, value))
    random = ("--random-weights",) if random_weights else ()
    return (*endpoint_flags(options.inputs, options.outputs), *texts, *random)


def fix_input_shapes(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> Model:
    """Return a model whose inputs have the sizes that the caller chose.

    Raises:
        UsageError: a name is not an input, or a fixed size of an input differs.
    """
    graph = model.graph
    infos = {tensor_info(graph, edge).name: (edge, tensor_info(graph, edge).shape) for edge in graph.inputs}
    nodes = dict(graph.nodes)
    for name, sizes in shapes.items():
        if name not in infos:
            hint = did_you_mean(name, infos) or f"the inputs are {', '.join(infos)}"
            raise UsageError(f"input_shapes (--input-shape) names {name!r}, which is not an input", hint=hint)
        edge, shape = infos[name]
        if not shape.accepts(sizes):
            raise UsageError(
                f"input {name!r} has the shape {shape}, and --input-shape is {'x'.join(map(str, sizes))}",
                hint="the dynamic sizes of an input can be chosen, the others are fixed",
            )
        nodes[edge.node] = nodes[edge.node].with_attrs(shape=Shape(sizes))
    values = (f"{name}:{'x'.join(map(str, sizes))}" for name, sizes in shapes.items())
    flags = (text for value in values for text in ("--input-shape", value))
    return replace(model, runnable=graph.with_nodes(nodes.values()), flags=(*model.flags, *flags))


def _with_inputs(graph: Graph) -> Graph:
    """Return the graph with inputs; only a graph without placeholders needs the cards."""
    if graph.inputs:
        return graph
    from quantkit.zoo.cards import list_cards

    return find_endpoints(graph, list_cards())


def _random(name: str, card: "ModelCard | None", options: ImportOptions, seed: int) -> Model:
    """Build a card's architecture with random weights.

    Raises:
        UsageError: there is no such card, or an input or output is not in its graph.
    """
    if card is None:
        raise UsageError(
            f"random weights need the name of a model card, and {name!r} is not one",
            hint="quantkit models list names the cards",
        )
    options = _with_card_endpoints(options, card)
    graph = random_graph(card.name, seed=seed).with_endpoints(options.inputs, options.outputs)
    return Model(name, graph, card=card, has_random_weights=True)


def find_model_card(text: str) -> "ModelCard | None":
    """Find the card of a name; None for a path.

    Raises:
        UsageError: the text is neither a name nor a path.
    """
    if Path(text).suffix or os.sep in text:
        return None
    from quantkit.zoo.cards import find_card, list_cards

    names = [card.name for card in list_cards()]
    if text in names:
        return find_card(text)
    if not os.path.exists(text):
        raise UsageError(
            f"{text!r} is neither a file nor the name of a model card",
            hint=did_you_mean(text, names) or f"the cards are {', '.join(names)}",
        )
    return None


def _with_card_endpoints(options: ImportOptions, card: "ModelCard") -> ImportOptions:
    """Use the card's inputs or outputs if the caller chose none."""
    inputs = tuple(tensor.name for tensor in card.inputs) if options.inputs is None else options.inputs
    outputs = tuple(tensor.name for tensor in card.outputs) if options.outputs is None else options.outputs
    return replace(options, inputs=inputs, outputs=outputs)


def _edges(names: EdgeNames) -> tuple[Edge | str, ...] | None:
    """Make a tuple of edge names; a single name counts as a list of one."""
    return names if names is None else (names,) if isinstance(names, str | Edge) else tuple(names)
