"""Metadata of a quantized file: the facts about the model that its graph does not hold."""

from collections.abc import Sequence
from typing import Any

from quantkit.arguments import expand_user
from quantkit.data import Preprocessing
from quantkit.data.inference import infer_preprocessing
from quantkit.data.inputs import takes_images
from quantkit.data.labels import Labels, read_labels
from quantkit.data.preprocessing import Origin
from quantkit.ir.graph import Graph
from quantkit.model import Model
from quantkit.model.model import tensor_info
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.workflow.options import Options
from quantkit.runtimes.session import TensorInfo
from quantkit.zoo.cards import ModelCard


def describe_model(model: Model, graph: Graph, ranges: Ranges, options: Options) -> dict[str, Any]:
    """Return the metadata of the quantized file: preprocessing of images and class labels, where they are known.

    Args:
        model: float model.
        graph: prepared float graph.
        ranges: calibrated ranges.
        options: options of the caller.

    Raises:
        InputError: the label file is broken, or its labels belong to another model.
    """
    inputs, outputs = ([tensor_info(graph, edge) for edge in edges] for edges in (graph.inputs, graph.outputs))
    preprocessing = ranges.provenance.preprocessing
    if not isinstance(preprocessing, Preprocessing) and len(inputs) == 1 and takes_images(inputs[0]):
        preprocessing = infer_preprocessing(inputs[0], model.find_basis(inputs, outputs), options.preprocessing)
        if preprocessing.origin is Origin.ASSUMED:
            preprocessing = ""
    labels = choose_labels(model, model.find_card(inputs, outputs), outputs, options)
    return {
        **({"preprocessing": preprocessing.to_json()} if isinstance(preprocessing, Preprocessing) else {}),
        **({"labels": labels.to_json()} if labels.are_known else {}),
    }


def choose_labels(model: Model, card: ModelCard | None, outputs: Sequence[TensorInfo], options: Options) -> Labels:
    """Return the labels of the caller, else those of the model; may be empty.

    Raises:
        InputError: the label file is broken, or its labels belong to another model.
    """
    dims = outputs[0].shape.dims
    num_classes = dims[-1] if dims else None
    if options.labels is None:
        return model.find_labels(card, num_classes)
    labels = read_labels(expand_user(options.labels))
    if len(outputs) == 1 and num_classes is not None and len(dims or ()) == 2:
        labels.check(num_classes)
    return labels
