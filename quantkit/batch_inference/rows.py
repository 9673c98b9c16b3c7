"""Rows of the results: one row per sample, in the order of the dataset.

classes   {"file": ..., "label": ..., "score": ..., "index": ...}      the most probable class
tensors   {"file": ..., "outputs": {NAME: values}}                     all outputs
rejected  the same keys with null, and {"error": ...}
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from quantkit.data import InputPipeline
from quantkit.data.labels import Labels
from quantkit.data.pipeline import Prepared
from quantkit.errors import UsageError
from quantkit.evaluation.opened_model import OpenedModel
from quantkit.ir.tensor import Array
from quantkit.runtimes.session import Session

Row = dict[str, Any]
# Contents of the rows; ``auto`` is ``classes`` for a model with one output of class scores.
ROWS = ("auto", "classes", "tensors")


def class_rows(model: OpenedModel, pipeline: InputPipeline, labels: Labels, prepared: Sequence[Prepared]) -> list[Row]:
    """Return the most probable class of each sample; null if an output is NaN."""
    scores = model.predict(pipeline, prepared, len(prepared))
    labels.check(scores.shape[1], model.label_order)
    rows = []
    for values, index in zip(scores, scores.argmax(axis=1).tolist(), strict=True):
        is_valid = not np.isnan(values).any()
        rows.append(
            {"label": labels.name(index), "score": float(values[index]), "index": index} if is_valid else empty_class()
        )
    return rows


def empty_class() -> Row:
    """Return the row of a sample without a class."""
    return {"label": None, "score": None, "index": None}


def tensor_rows(session: Session, pipeline: InputPipeline, prepared: Sequence[Prepared]) -> list[Row]:
    """Return all outputs of each sample.

    Raises:
        UsageError: the first dimension of an output does not count the samples of a batch.
    """
    outputs = session.run(pipeline.stack(prepared))
    size = pipeline.batch_size or len(prepared)
    for name, values in outputs.items():
        if size > 1 and (not values.ndim or len(values) != size):
            shape = "x".join(map(str, values.shape)) or "()"
            raise UsageError(
                f"output {name!r} has the shape {shape} for {size} samples",
                hint="run one sample at a time: --batch 1",
            )
    return [{"outputs": _outputs_of(outputs, index, size)} for index in range(len(prepared))]


def _outputs_of(outputs: Mapping[str, Array], index: int, size: int) -> dict[str, Array]:
    """Return the outputs of one sample; an output without a batch axis belongs to the only sample."""
    has_axis = {name: values.ndim > 0 and len(values) == size for name, values in outputs.items()}
    return {name: values[index] if has_axis[name] else values for name, values in outputs.items()}
