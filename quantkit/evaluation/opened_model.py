"""Model in an open session, with its model card and class labels."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from quantkit.data import Dataset, InputPipeline
from quantkit.data.inference import Basis
from quantkit.data.labels import Labels, Order, read_labels
from quantkit.data.pipeline import Prepared, rank_of
from quantkit.errors import UnavailableError, UsageError, did_you_mean
from quantkit.evaluation.output_rows import find_whole_outputs, rows_of
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array
from quantkit.model import Model
from quantkit.model.endpoints import (
    SIZES_HINT,
    TOKENS_HINT,
    choose_endpoints,
    choose_image_endpoints,
    choose_score_output,
    scores_hint,
    takes_encoded_images,
)
from quantkit.model.model import tensor_info
from quantkit.runtimes import AUTO, open_session, runtimes
from quantkit.runtimes.function_session import FunctionSession
from quantkit.runtimes.session import Session, SessionOptions
from quantkit.zoo.cards import ModelCard, list_cards


@dataclass(frozen=True)
class OpenedModel:
    """Model that is ready to run.

    Attributes:
        model: the model.
        session: session whose first output is the one to evaluate.
        runnable: graph or file of the session.
    """

    model: Model
    session: Session
    runnable: Graph | Path

    @property
    def name(self) -> str:
        """Name of the model, as the caller wrote it."""
        return self.model.name

    @cached_property
    def card(self) -> ModelCard | None:
        """Card of the model, or of the known model that this one was made from."""
        return self.model.find_card(self.session.inputs, self.session.outputs)

    @cached_property
    def basis(self) -> Basis | None:
        """Source of the preprocessing: the metadata of the file, the card, or the scaling in the graph."""
        return self.model.find_basis(self.session.inputs, self.session.outputs)

    @cached_property
    def whole_outputs(self) -> frozenset[str]:
        """Names of the outputs whose first dimension does not count samples: see `find_whole_outputs`."""
        if isinstance(self.runnable, Graph):
            return find_whole_outputs(self.runnable)
        return find_whole_outputs(self.model.graph) if self.model.has_readable_graph else frozenset()

    def predict(self, pipeline: InputPipeline, samples: Sequence[Prepared], batch_size: int) -> Array:
        """Compute the class scores of samples, (n, k) float64.

        Args:
            pipeline: preparation for the model's input.
            samples: samples that it prepared.
            batch_size: number of samples per run for models with a dynamic batch.

        Raises:
            UsageError: the output has no score for each class.
        """
        rows, result = [], self.session.outputs[0].name
        for part in pipeline.split(samples, batch_size):
            feeds = pipeline.stack(part)
            outputs = self.session.run(feeds)[result]
            count = pipeline.batch_size or len(part)
            if not 1 < outputs.size / count == outputs.shape[-1]:
                shape = "x".join(map(str, outputs.shape))
                has_tokens = any(ids.dtype.kind in "iu" and ids.shape == outputs.shape[:-1] for ids in feeds.values())
                raise UsageError(
                    f"output {result!r} of {self.name} has shape {shape} for {count} "
                    f"sample{'s' * (count > 1)}, not a score for each class",
                    hint=TOKENS_HINT if has_tokens and outputs.ndim == 3 else scores_hint(),
                )
            rows.append(outputs.reshape(count, -1)[: len(part)].astype(np.float64))
            if rows[-1].shape[1] != rows[0].shape[1]:
                raise UsageError(
                    f"output {result!r} of {self.name} has {rows[0].shape[1]} values for one sample and "
                    f"{rows[-1].shape[1]} for another, not a score for each class",
                    hint=f"write outputs of any size with quantkit run --rows tensors, or {SIZES_HINT}",
                )
        return np.concatenate(rows)

    def run(
        self, pipeline: InputPipeline, samples: Sequence[Prepared], batch_size: int
    ) -> Iterator[tuple[dict[str, Array], dict[str, Array]]]:
        """Yield the inputs and all outputs of each run, one row per sample; samples with a whole output run alone.

        Args:
            pipeline: preparation for the model's inputs.
            samples: samples that it prepared.
            batch_size: number of samples per run for models with a dynamic batch.
        """
        for part in pipeline.split(samples, 1 if self.whole_outputs else batch_size):
            feeds = pipeline.stack(part)
            count = pipeline.batch_size or len(part)
            outputs = self.session.run(feeds)
            yield rows_of(feeds, count, len(part)), rows_of(outputs, count, len(part), self.whole_outputs)

    def read_labels(self, path: Path | None) -> Labels:
        """Read the labels from a file, or find the model's own; empty if no labels are found.

        Raises:
            InputError: the file is missing or broken, or its labels belong to another model.
        """
        dims = self.session.outputs[0].shape.dims
        num_classes = dims[-1] if dims else None
        if path is None:
            return self.model.find_labels(self.card, num_classes)
        labels = read_labels(path)
        if num_classes is not None:
            labels.check(num_classes, self.label_order)
        return labels

    @property
    def label_order(self) -> Order | None:
        """Order of the classes; None if neither the metadata of the file nor a card state it."""
        if self.model.stated_labels.are_known:
            return self.model.stated_labels.order
        return Order(self.card.labels.order) if self.card else None


def open_model(
    model: Model,
    runtime: str = AUTO,
    options: SessionOptions = SessionOptions(),
    *,
    input_layer: str = "",
    output_layer: str = "",
    takes_arrays: bool = False,
    has_all_outputs: bool = False,
) -> OpenedModel:
    """Open a model between its image input and its class scores; the caller closes the session.

    Args:
        model: model to open.
        runtime: name of the runtime.
        options: threads, device and precision.
        input_layer: input name (default: from the model card, else the image input).
        output_layer: name of the class scores (default: from the model card, else the edge without consumers).
        takes_arrays: True if the data is arrays, so that no input needs to be an image.
        has_all_outputs: True if outputs need not be class scores, so that all inputs and outputs stay.

    Raises:
        UsageError: the input or output cannot be inferred.
        UnavailableError: the runtime cannot run the model.
    """
    runnable = _between_outputs(model, input_layer, output_layer, has_all_outputs=has_all_outputs)
    if isinstance(runnable, Graph):
        if isinstance(model.runnable, Path):
            input_layer = output_layer = ""  # of the file, and now the only ones of the graph
        if has_all_outputs and not (input_layer or output_layer):
            runnable = choose_endpoints(runnable, model.card, list_cards())
        else:
            runnable = _between_endpoints(runnable, model.card, input_layer, output_layer, takes_arrays)
        if takes_encoded_images(runnable):
            runtime = _decoding_runtime(runnable, runtime)
    session = open_session(runnable, runtime, options)
    if not isinstance(runnable, Graph) and not model.has_readable_graph:
        session = _select_output(session, input_layer, output_layer, has_all_outputs=has_all_outputs)
    return OpenedModel(model, session, runnable)


def options_for(options: SessionOptions, models: Sequence[Model], dataset: Dataset) -> SessionOptions:
    """Return the options of sessions that run the samples of a dataset.

    Args:
        options: options of the caller.
        models: models that take the samples.
        dataset: the samples.
    """
    graphs = (model.graph for model in models if model.has_readable_graph)
    rank = next((rank_of([tensor_info(graph, edge) for edge in graph.inputs]) for graph in graphs), None)
    return replace(options, varying_sizes=options.varying_sizes or dataset.varies(rank))


def _between_outputs(model: Model, input_layer: str, output_layer: str, *, has_all_outputs: bool) -> Graph | Path:
    """Return the graph of a file if the caller chose other endpoints than the file's, or it has several outputs.

    Raises:
        UsageError: an endpoint is not in the graph, or the output with the class scores is ambiguous.
    """
    if isinstance(model.runnable, Graph) or not model.has_readable_graph:
        return model.runnable
    if input_layer or output_layer:
        names = [(name,) if name else None for name in (input_layer, output_layer)]
        return model.with_endpoints(*names).runnable
    if has_all_outputs or len(model.graph.outputs) == 1:
        return model.runnable
    return model.graph.with_endpoints(None, [choose_score_output(model.graph, model.card, list_cards())])


def _select_output(session: Session, input_layer: str, output_layer: str, *, has_all_outputs: bool) -> Session:
    """Return the session of a file without a reader with one output: the caller's, or the only vector.

    Raises:
        UsageError: the file has no such input or output, or the output with the class scores is ambiguous.
    """
    for name, infos in ((input_layer, session.inputs), (output_layer, session.outputs)):
        names = [info.name for info in infos]
        if name and name not in names:
            raise UsageError(f"{name!r} is not one of {', '.join(names)}", hint=did_you_mean(name, names))
    if len(session.outputs) == 1 or (has_all_outputs and not output_layer):
        return session
    vectors = [info for info in session.outputs if len(dims := info.shape.dims or ()) == 2 and dims[1] != 1]
    candidates = [info for info in session.outputs if info.name == output_layer] or vectors
    if len(candidates) > 1 or not candidates:
        hint = scores_hint((info.name, info.shape) for info in vectors)
        raise UsageError(f"the model has {len(names)} outputs ({', '.join(names)})", hint=hint)

    def compute(arrays: list[Array]) -> list[Array]:
        feeds = {info.name: array for info, array in zip(session.inputs, arrays, strict=True)}
        return [session.run(feeds)[candidates[0].name]]

    return FunctionSession(session.runtime, session.inputs, (candidates[0],), compute, release=session.close)


def _decoding_runtime(graph: Graph, runtime: str) -> str:
    """Return the runtime that decodes images inside a graph.

    Raises:
        UnavailableError: the caller chose another runtime.
    """
    decoding = {name: properties.title for name, properties in runtimes().items() if properties.decodes_images}
    if runtime not in (AUTO, *decoding):
        raise UnavailableError(
            f"input {str(graph.inputs[0])!r} takes encoded images, which only {' or '.join(decoding.values())} decodes "
            f"inside a graph; {runtime} cannot",
            hint=f"use --runtime {' or '.join(decoding)}, or omit --input-layer: quantkit then decodes the images",
        )
    return next(iter(decoding)) if runtime == AUTO else runtime


def _between_endpoints(
    graph: Graph, card: ModelCard | None, input_layer: str, output_layer: str, takes_arrays: bool
) -> Graph:
    """Return the graph between its image input and its class scores; for arrays also between its own endpoints.

    Raises:
        UsageError: the input or output cannot be inferred.
    """
    try:
        return choose_image_endpoints(graph, card, list_cards(), input_layer, output_layer)
    except UsageError:
        if not takes_arrays or input_layer or not graph.inputs:
            raise
        result = Edge.parse(output_layer) if output_layer else choose_score_output(graph, card, list_cards())
        return graph.with_endpoints(None, [result])


def describe_assumption(preprocessing: object) -> str:
    """Return the warning for a model without known preprocessing."""
    return (
        "neither the file, a model card nor a scaling layer states the preprocessing of this model: "
        f"{preprocessing} is assumed (--input-mean, --input-std)"
    )
