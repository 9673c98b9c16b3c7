"""The value that every verb accepts and returns: a network with all that is known about it."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from quantkit import formats
from quantkit.arguments import public
from quantkit.errors import InputError, UsageError
from quantkit.facts import PlainReport
from quantkit.formats import metadata, onnx
from quantkit.formats.saved_model import Signature
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes

# Only preprocessing and labels need these packages: a transform starts faster without them.
if TYPE_CHECKING:
    from quantkit.data.inference import Basis
    from quantkit.data.input_scaling import InputScaling
    from quantkit.data.labels import Labels
    from quantkit.data.preprocessing import Preprocessing
    from quantkit.recipes.trace import Trace
    from quantkit.runtimes.session import TensorInfo
    from quantkit.zoo.cards import ModelCard

Value = TypeVar("Value")


@dataclass(frozen=True, repr=False)
class Model(PlainReport):
    """Network with its signature, model card, preprocessing and labels.

    Attributes:
        name: as the user wrote it.
        runnable: graph, or path of a file that runtimes open unchanged (ONNX, LiteRT, OpenVINO).
        path: file or folder that the model was loaded from; None for objects and random weights.
        card: card of a known model; None for a file of the user.
        has_random_weights: True if the predictions are meaningless.
        signature: names of the inputs and outputs of a SavedModel for its callers.
        trace: record of the recipe that made this model; None for a model that was loaded.
        flags: command-line flags with which `name` means this model.
    """

    name: str
    runnable: Graph | Path
    path: Path | None = None
    card: "ModelCard | None" = None
    has_random_weights: bool = False
    signature: Signature | None = None
    trace: "Trace | None" = None
    flags: tuple[str, ...] = ()

    @cached_property
    def graph(self) -> Graph:
        """Graph of the model; that of an ONNX file is read on first use.

        Raises:
            InputError: the file is broken.
            UsageError: the format has no reader, or an input or output is not in the graph.
        """
        if isinstance(self.runnable, Graph):
            return self.runnable
        if not self.has_readable_graph:
            kind = formats.kind_of(self.runnable)
            raise UsageError(
                f"{self.name} is {formats.KINDS[kind]}: it can be run and benchmarked, but not read or rewritten",
                hint="name the TensorFlow or ONNX model that it was converted from",
            )
        return formats.load(self.runnable)

    @property
    def has_readable_graph(self) -> bool:
        """True if `graph` can be read; only runtimes can open the other files."""
        return isinstance(self.runnable, Graph) or formats.kind_of(self.runnable) == "onnx"

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata of the file, see `quantkit.formats.metadata`; empty without metadata.

        Raises:
            InputError: the metadata are damaged, or of another version.
        """
        graph = self.runnable
        try:
            return metadata.decode(metadata.text_of(graph) if isinstance(graph, Graph) else metadata.read_text(graph))
        except InputError as error:
            raise InputError(f"{self.name}: {error.message}", error.hint) from None

    @cached_property
    def stated_preprocessing(self) -> "Preprocessing | None":
        """Preprocessing that the metadata of the file state; None if they state none.

        Raises:
            InputError: the metadata are damaged, or of another version.
        """
        from quantkit.data.preprocessing import Origin, Preprocessing

        stated = self._parse_metadata("preprocessing", Preprocessing.from_json)
        return stated and (stated if stated.origin is Origin.ASSUMED else replace(stated, origin=Origin.FILE))

    @cached_property
    def stated_labels(self) -> "Labels":
        """Class labels that the metadata of the file state; may be empty.

        Raises:
            InputError: the metadata are damaged, or of another version.
        """
        from quantkit.data.labels import Labels

        return self._parse_metadata("labels", lambda value: Labels.from_json(value, self.name)) or Labels()

    def _parse_metadata(self, key: str, parse: Callable[[Any], Value]) -> Value | None:
        if key not in self.metadata:
            return None
        try:
            return parse(self.metadata[key])
        except (UsageError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"{self.name}: the metadata of quantkit have damaged {key}: {error}", hint=metadata.HINT
            ) from None

    @cached_property
    def origin(self) -> "ModelCard | None":
        """Card of the model, or of the known model that this one was transformed or converted from.

        A model without a card is recognized by the name and shape of its input and output.
        """
        endpoints = self._image_endpoints
        return self.find_card(*([info] for info in endpoints)) if endpoints else self.card

    @cached_property
    def preprocessing(self) -> "Preprocessing | None":
        """Preprocessing of images: that of the file, the card's, else inferred; None if no input takes images."""
        from quantkit.data.inference import infer_preprocessing

        endpoints = self._image_endpoints
        if endpoints is None:
            return self.stated_preprocessing
        return infer_preprocessing(endpoints[0], self.find_basis(endpoints[:1]))

    def find_card(self, inputs: "Sequence[TensorInfo]", outputs: "Sequence[TensorInfo]") -> "ModelCard | None":
        """Return the card of the model, or of the known model with the same input and output; None without one."""
        if self.card is not None or len(inputs) != 1 or not outputs:
            return self.card
        from quantkit.data.inference import find_origin
        from quantkit.zoo.cards import list_cards

        return find_origin(inputs[0], outputs[0], list_cards())

    def find_basis(
        self, inputs: "Sequence[TensorInfo]", outputs: "Sequence[TensorInfo] | None" = None
    ) -> "Basis | None":
        """Return the source of the preprocessing: the metadata of the file, the card, else a scaling in the graph.

        Args:
            inputs: inputs of an opened model.
            outputs: its outputs, which identify the card; None for the output of the graph with the class scores.
        """
        card = self.stated_preprocessing or (self.origin if outputs is None else self.find_card(inputs, outputs))
        return card or (self.find_scaling(inputs[0].name) if inputs else None)

    def find_labels(self, card: "ModelCard | None", num_classes: int | None) -> "Labels":
        """Find the class labels: in the metadata of the file, the card, the folder of the file, or the cache.

        Args:
            card: card of the model.
            num_classes: number of class scores of the output; None if it is not known.

        Returns:
            The labels; may be empty. The labels in the metadata belong to an output with as many scores.

        Raises:
            InputError: a label file is broken, or the metadata are.
        """
        from quantkit.data.inference import find_model_labels

        stated = self.stated_labels
        if stated.are_known and (num_classes is None or stated.fits(num_classes)):
            return stated
        return find_model_labels(card, self.path, num_classes)

    @property
    def input_names(self) -> frozenset[str]:
        """Names of the inputs, or of all placeholders if the file states no inputs; empty if the graph cannot be read.

        Raises:
            InputError: the file is broken.
        """
        if not self.has_readable_graph:
            return frozenset()
        placeholders = (name for name, node in self.graph.nodes.items() if node.op == "Placeholder")
        return frozenset(map(str, self.graph.inputs) if self.graph.inputs else placeholders)

    def find_scaling(self, input_name: str) -> "InputScaling | None":
        """Return the scaling of an input inside the graph; None without one, or if the graph cannot be read."""
        from quantkit.data.input_scaling import find_input_scaling

        if not self.has_readable_graph:
            return None
        edge = self.graph.edge(input_name)
        return find_input_scaling(self.graph, edge) if edge.node in self.graph else None

    @cached_property
    def labels(self) -> "Labels":
        """Class labels: from the file, from the card, or from a file in the folder of the model; may be empty.

        Raises:
            InputError: a label file is broken.
        """
        endpoints = self._image_endpoints
        if endpoints is None:
            return self.stated_labels
        dims = endpoints[1].shape.dims
        return self.find_labels(self.origin, dims[-1] if dims else None)

    @cached_property
    def _image_endpoints(self) -> "tuple[TensorInfo, TensorInfo] | None":
        """Image input and output with the class scores; None if there is no such pair."""
        from quantkit.data.inference import infer_preprocessing
        from quantkit.model.endpoints import choose_image_endpoints
        from quantkit.zoo.cards import list_cards

        try:
            graph = choose_image_endpoints(self.graph, self.card, list_cards())
            source, result = (tensor_info(graph, edge) for edge in (graph.inputs[0], graph.outputs[0]))
            infer_preprocessing(source, self.card)
        except UsageError:
            return None
        return source, result

    def with_graph(self, graph: Graph) -> Self:
        """Return a copy with a rewritten graph."""
        signature = self.signature.following(self.graph, graph) if self.signature else None
        return replace(self, runnable=graph, signature=signature, trace=None)

    @public
    def with_endpoints(
        self, inputs: tuple[Edge | str, ...] | None = None, outputs: tuple[Edge | str, ...] | None = None
    ) -> Self:
        """Return a copy with other inputs or outputs; None keeps them.

        Raises:
            UsageError: an input or output is not in the graph, or the format of the file has no reader.
        """
        if inputs is None and outputs is None:
            return self
        flags = (*self.flags, *endpoint_flags(inputs, outputs))
        if isinstance(self.runnable, Graph):
            return replace(self, runnable=self.runnable.with_endpoints(inputs, outputs), flags=flags)
        own = self.graph
        graph = formats.load(self.runnable, inputs, outputs)
        is_same = (graph.inputs, graph.outputs) == (own.inputs, own.outputs)
        return replace(self, runnable=self.runnable if is_same else graph, flags=flags)

    @public
    def save(self, path: str | os.PathLike[str], *, format: str | None = None, as_text: bool | None = None) -> None:
        """Write the model in the format of the path's suffix; see `quantkit.save`."""
        from quantkit.model.exporters.files import choose_output_file

        choose_output_file(path, format=format, as_text=as_text).write(self.graph, self.signature)

    def to_json(self) -> dict[str, Any]:
        """Return the facts about the model as a JSON document."""
        can_read = self.has_readable_graph
        return {
            "schema": "quantkit.model/1",
            "name": self.name,
            "path": None if self.path is None else str(self.path),
            "card": self.card.name if self.card else None,
            "random_weights": self.has_random_weights,
            "dialect": self.graph.dialect if can_read else None,
            "nodes": len(self.graph) if can_read else None,
            "inputs": list(map(str, self.graph.inputs)) if can_read else None,
            "outputs": list(map(str, self.graph.outputs)) if can_read else None,
            "preprocessing": str(self.preprocessing) if self.preprocessing else None,
            "labels": len(self.labels.names),
        }

    def __repr__(self) -> str:
        text = str(self.runnable)  # no file is read
        if isinstance(self.runnable, Graph):
            inputs, outputs = (", ".join(map(str, edges)) for edges in (self.runnable.inputs, self.runnable.outputs))
            text = f"{len(self.runnable)} nodes, {inputs} -> {outputs}"
        card = [f"card {self.card.name!r}"] if self.card is not None and self.card.name != self.name else []
        weights = ["random weights"] if self.has_random_weights else []
        return f"Model({', '.join((repr(self.name), text, *card, *weights))})"


def endpoint_flags(inputs: tuple[Edge | str, ...] | None, outputs: tuple[Edge | str, ...] | None) -> tuple[str, ...]:
    """Return the command-line flags of the inputs and outputs that the caller chose."""
    edges_of = {"--inputs": inputs, "--outputs": outputs}
    return tuple(
        text for flag, edges in edges_of.items() if edges is not None for text in (flag, ",".join(map(str, edges)))
    )


def tensor_info(graph: Graph, edge: Edge) -> "TensorInfo":
    """Return name, element type and shape of an edge; unknown types count as float."""
    from quantkit.runtimes.session import TensorInfo

    node = graph[edge.node]
    if graph.dialect == onnx.DIALECT:
        name, stated = onnx.value_name(node, edge.port), onnx.value_infos(graph)
        if edge in stated:
            dtype, shape = stated[edge]
            return TensorInfo(name, dtype or DType.FLOAT, shape)
    else:
        name = str(edge)
    dtypes = (node.attrs.get(key) for key in ("dtype", "T"))
    dtype = next((dtype for dtype in dtypes if isinstance(dtype, DType)), DType.FLOAT)
    attr = node.attrs.get("shape")
    shape = attr if isinstance(attr, Shape) else infer_shapes(graph).get(edge, UNKNOWN)
    return TensorInfo(name, dtype, shape)
