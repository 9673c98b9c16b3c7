"""From what names a model to its graph: a file, a folder, a card's name, or an object of TensorFlow's."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from quantkit import formats
from quantkit.errors import InputError, UsageError, did_you_mean
from quantkit.formats.saved_model import Signature
from quantkit.ir.graph import Edge, Graph
from quantkit.zoo import ModelCard, fetch, find_card, list_cards
from quantkit.zoo.architectures import is_random, random_graph

Ends = Iterable[Edge | str] | None

# What every output says of a graph whose parameters were drawn at random.
MEANINGLESS = "its parameters are random: times are real, answers mean nothing"


@dataclass(frozen=True)
class Model:
    """A model that is ready to be worked on.

    Attributes:
        name: as it was asked for.
        graph: what it computes; None where the file is an engine's own format, which `path` names.
        path: the file it came from; None for random weights and objects.
        card: what is known of it; None for a file of one's own.
        has_random_weights: whether its answers mean nothing.
        ends: what is to be fed and asked for of a file that engines open as it is.
        signature: what callers of a SavedModel call its inputs and outputs.
    """

    name: str
    graph: Graph | None
    path: Path | None = None
    card: ModelCard | None = None
    has_random_weights: bool = False
    ends: tuple[Ends, Ends] = (None, None)
    signature: Signature | None = None

    @cached_property
    def rewritable(self) -> Graph:
        """The graph, for work on its nodes: also that of an ONNX file, which engines open as it is.

        Raises:
            InputError: the file is broken.
            UsageError: it is in a format that is not read, or an input or output is not in the graph.
        """
        if self.graph is not None:
            return self.graph
        path = self.path or Path(self.name)
        kind = formats.kind_of(path)
        if kind != "onnx":
            raise UsageError(
                f"{self.name} is {formats.KINDS[kind]}: it can be run and measured, but not looked into or rewritten",
                hint="name the TensorFlow or ONNX model that it was made of",
            )
        return formats.load(path, *self.ends)

    @property
    def runnable(self) -> Graph | Path:
        """What a runtime opens: the graph, or the file of an engine's own format."""
        if self.graph is not None:
            return self.graph
        if self.path is None:
            raise InputError(f"{self.name} holds nothing to run", hint="name a file, or give it a graph")
        return self.path


def load_model(
    word: str | os.PathLike[str],
    *,
    inputs: Ends = None,
    outputs: Ends = None,
    signature: str | None = None,
    tags: Iterable[str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    random_weights: bool = False,
    seed: int = 0,
    offline: bool = False,
    progress: Callable[[int, int | None], None] | None = None,
) -> Model:
    """The model that a command line names.

    Args:
        word: a file, a SavedModel folder, a checkpoint, or the name of a card, which is fetched at first use.
        inputs: what is fed, by its name in the graph or a SavedModel's signature; None: the card's or the signature's,
            or the placeholders.
        outputs: what is asked for, likewise; None: the card's or the signature's, or what nobody reads.
        signature: of a SavedModel; None: ``serving_default``, or the only one.
        tags: of one of a SavedModel's graphs; None: the one for serving, or the only one.
        checkpoint: what holds the variables of a graph that is not frozen.
        random_weights: build the card's architecture with seeded random parameters instead of fetching it.
        seed: of the random parameters.
        offline: never fetch.
        progress: told bytes done and bytes in all while fetching.

    Raises:
        InputError: the file is missing or broken, or fetching failed.
        UsageError: no such card or signature, or an input or output that is not in the graph.
    """
    text = os.fspath(word)
    card = _card(text)
    if random_weights:
        return _random(text, card, inputs, outputs, seed)
    path = fetch(card, offline=offline, progress=progress) if card else formats.whole_of(Path(text))
    kind = formats.kind_of(path)
    _check_extras(text, kind, has_uses=bool(signature or tags), has_checkpoint=bool(checkpoint))
    if kind in ("saved_model", "checkpoint"):
        from quantkit.model.importers import variables

        if kind == "checkpoint":
            return Model(text, variables.read_checkpoint(path, inputs, outputs), path)
        graph, called = variables.read_saved_model(path, signature, tags, inputs, outputs)
        return Model(text, graph, path, signature=called)
    if kind == "keras":
        from quantkit.model.importers.keras import freeze_keras

        return Model(text, freeze_keras(path).with_endpoints(inputs, outputs), path)
    if kind in ("onnx", "tflite", "openvino"):
        return Model(text, None, path, card, ends=(inputs, outputs))
    if card:
        inputs, outputs = _card_ends(card, inputs, outputs)
    graph = formats.load(path, inputs, outputs)
    if checkpoint:
        from quantkit.model.importers import variables

        graph = variables.filled(graph, Path(checkpoint), outputs)
    return Model(text, graph, path, card, is_random(graph))


def load(
    model: Any,
    inputs: Ends = None,
    outputs: Ends = None,
    *,
    signature: str | None = None,
    tags: Iterable[str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Graph:
    """The graph of a model.

    Args:
        model: a file (``.pb``, ``.pbtxt``, ``.onnx``, ``.keras``, ``.h5``), a SavedModel folder, a checkpoint with its
            graph, a card's name, a GraphDef or ONNX ModelProto, as a message or serialized, or a Keras model or
            TensorFlow function.
        inputs: names of what is fed; None: the placeholders.
        outputs: names of what is asked for; None: what nobody reads.
        signature: of a SavedModel; None: ``serving_default``, or the only one.
        tags: of one of a SavedModel's graphs; None: the one for serving, or the only one.
        checkpoint: what holds the variables of a graph that is not frozen.

    Raises:
        InputError: it is missing, broken, or nothing that quantkit reads.
        UsageError: an input or output is not in the graph, or there is no such signature.
    """
    if isinstance(model, str | os.PathLike):
        return load_model(
            model, inputs=inputs, outputs=outputs, signature=signature, tags=tags, checkpoint=checkpoint
        ).rewritable
    if signature or tags or checkpoint:
        raise UsageError(
            f"signature, tags and checkpoint belong to files, not to a {type(model).__name__}", hint="leave them out"
        )
    if isinstance(model, Graph):
        return model.with_endpoints(inputs, outputs)
    if isinstance(model, bytes):
        return formats.decode(model).with_endpoints(inputs, outputs)
    if hasattr(model, "SerializeToString"):
        return load(_serialized(model), inputs, outputs)
    from quantkit.model.importers import freeze

    return freeze.freeze_object(model).with_endpoints(inputs, outputs)


def _check_extras(text: str, kind: str, *, has_uses: bool, has_checkpoint: bool) -> None:
    """Refuse what only other formats have.

    Raises:
        UsageError: naming it.
    """
    if has_uses and kind != "saved_model":
        raise UsageError(
            f"{text} is {formats.KINDS[kind]}, and only a SavedModel folder has signatures and tags",
            hint="leave them out, or name the folder",
        )
    if has_checkpoint and not kind.startswith("graphdef"):
        raise UsageError(
            f"a checkpoint fills the variables of a GraphDef, and {text} is {formats.KINDS[kind]}",
            hint="leave it out, or name the graph that it belongs to",
        )


def _random(name: str, card: ModelCard | None, inputs: Ends, outputs: Ends, seed: int) -> Model:
    """A card's architecture with random parameters.

    Raises:
        UsageError: there is no card, or an input or output is not in its graph.
    """
    if card is None:
        raise UsageError(
            f"--random-weights builds the architecture of a card, and {name!r} is none",
            hint="quantkit models list names the cards",
        )
    graph = random_graph(card.name, seed=seed).with_endpoints(*_card_ends(card, inputs, outputs))
    return Model(name, graph, card=card, has_random_weights=True)


def _serialized(message: Any) -> bytes:
    """The bytes of a protobuf message.

    Raises:
        InputError: it is larger than a message may be.
    """
    try:
        return bytes(message.SerializeToString())
    except ValueError as error:
        raise InputError(
            f"the {type(message).__name__} can not be serialized: {error}",
            hint="save it to a file, with its weights beside it, and load that",
        ) from None


def _card(text: str) -> ModelCard | None:
    """The card of that name, unless it looks like a file."""
    names = [card.name for card in list_cards()]
    if text in names:
        return find_card(text)
    if not os.path.exists(text) and not Path(text).suffix and os.sep not in text:
        raise UsageError(
            f"{text!r} is neither a file nor the name of a model card",
            hint=did_you_mean(text, names) or f"the cards are {', '.join(names)}",
        )
    return None


def _card_ends(card: ModelCard, inputs: Ends, outputs: Ends) -> tuple[Ends, Ends]:
    return (
        [one.name for one in card.inputs] if inputs is None else inputs,
        [one.name for one in card.outputs] if outputs is None else outputs,
    )
