"""Model in an open session, with its model card and class labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quantkit.data.choices import choose_ends, choose_labels, matching_card, needs_tensorflow
from quantkit.data.labels import Labels, Order, read_labels
from quantkit.data.preparation import Preparation, Prepared
from quantkit.errors import UnavailableError, UsageError
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.model import Model
from quantkit.runtimes import AUTO, open_session
from quantkit.runtimes.session import Session, SessionOptions
from quantkit.zoo import ModelCard, list_cards


@dataclass(frozen=True)
class OpenedModel:
    """Model that is ready to run.

    Attributes:
        name: as the caller wrote it.
        session: session whose first output is the one to evaluate.
        card: model card, or the card of the known model that this one was made from.
        path: file that the model was loaded from.
    """

    name: str
    session: Session
    card: ModelCard | None = None
    path: Path | None = None

    def predict(self, preparation: Preparation, samples: Sequence[Prepared], batch_size: int) -> Array:
        """Compute the class scores of samples, (n, k) float64.

        Args:
            preparation: preparation of the model's inputs.
            samples: samples that it prepared.
            batch_size: number of samples per run for models with a dynamic batch.

        Raises:
            UsageError: the output has no score for each class.
        """
        rows, result = [], self.session.outputs[0].name
        size = preparation.batch or batch_size
        for start in range(0, len(samples), size):
            part = samples[start : start + size]
            outputs = self.session.run(preparation.feeds(part))[result]
            count = preparation.batch or len(part)
            if not 1 < outputs.size / count == outputs.shape[-1]:
                shape = "x".join(map(str, outputs.shape))
                raise UsageError(
                    f"output {result!r} of {self.name} has shape {shape} for {count} samples, not a score "
                    "for each class",
                    hint="select another output with --output-layer, or compare versions with quantkit compare",
                )
            rows.append(outputs.reshape(count, -1)[: len(part)].astype(np.float64))
        return np.concatenate(rows)

    def read_labels(self, path: Path | None) -> Labels:
        """Read the labels from a file, or find the model's own; empty if no labels are found.

        Raises:
            InputError: the file is missing or broken, or its labels belong to another model.
        """
        if path is None:
            return choose_labels(self.card, self.path, self.session.outputs[0])
        labels, dims = read_labels(path), self.session.outputs[0].shape.dims
        if dims and dims[-1] is not None:
            labels.check(dims[-1], self.label_order)
        return labels

    @property
    def label_order(self) -> Order | None:
        """Order of the classes; None if no card states it."""
        return Order(self.card.labels.order) if self.card else None


def open_model(
    model: Model,
    runtime: str = AUTO,
    options: SessionOptions = SessionOptions(),
    *,
    input_layer: str = "",
    output_layer: str = "",
    takes_arrays: bool = False,
) -> OpenedModel:
    """Open a model between its image input and its class scores; the caller closes the session.

    Args:
        model: model to open.
        runtime: name of the runtime.
        options: threads, device and precision.
        input_layer: input name (default: from the model card, else the image input).
        output_layer: name of the class scores (default: from the model card, else the edge without consumers).
        takes_arrays: True if the data is arrays, so that no input needs to be an image.

    Raises:
        UsageError: the input or output cannot be inferred.
        UnavailableError: the runtime cannot run the model.
    """
    runnable = model.runnable
    if isinstance(runnable, Graph):
        runnable = _between_endpoints(runnable, model.card, input_layer, output_layer, takes_arrays)
        if needs_tensorflow(runnable):
            runtime = _decoding_runtime(runnable, runtime)
    session = open_session(runnable, runtime, options)
    card = model.card
    if card is None and len(session.inputs) == 1:
        card = matching_card(session.inputs[0], session.outputs[0], list_cards())
    return OpenedModel(model.name, session, card, model.path)


def _decoding_runtime(graph: Graph, runtime: str) -> str:
    """Return the runtime that decodes images inside a graph.

    Raises:
        UnavailableError: the caller chose another runtime.
    """
    if runtime not in (AUTO, "tensorflow"):
        raise UnavailableError(
            f"input {str(graph.inputs[0])!r} takes encoded images, which only TensorFlow decodes inside a graph; "
            f"{runtime} cannot",
            hint="use --runtime tensorflow, or omit --input-layer: quantkit then decodes the images",
        )
    return "tensorflow"


def _between_endpoints(
    graph: Graph, card: ModelCard | None, input_layer: str, output_layer: str, takes_arrays: bool
) -> Graph:
    """Return the graph between its image input and its class scores; for arrays also between its own endpoints.

    Raises:
        UsageError: the input or output cannot be inferred.
    """
    try:
        return choose_ends(graph, card, list_cards(), input_layer, output_layer)
    except UsageError:
        if not takes_arrays or input_layer or output_layer or not graph.inputs or len(graph.outputs) != 1:
            raise
        return graph


def describe_assumption(preprocessing: object) -> str:
    """Return the warning for a model without known preprocessing."""
    return f"no model card describes this model: {preprocessing} is assumed (input_mean, input_std)"
