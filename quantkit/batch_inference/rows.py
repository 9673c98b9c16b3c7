"""Rows of the results: one row per sample, in the order of the dataset.

classes   {"file": ..., "label": ..., "score": ..., "index": ...}      the most probable class
tensors   {"file": ..., "outputs": {NAME: values}}                     all outputs
rejected  the same keys with null, and {"error": ...}
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from quantkit.data import InputPipeline
from quantkit.data.labels import Labels
from quantkit.data.pipeline import Prepared
from quantkit.errors import UsageError
from quantkit.evaluation.opened_model import OpenedModel

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


def tensor_rows(model: OpenedModel, pipeline: InputPipeline, prepared: Sequence[Prepared]) -> list[Row]:
    """Return all outputs of each sample; samples with a whole output run alone.

    Raises:
        UsageError: the first dimension of an output does not count the samples of a batch of fixed size.
    """
    rows: list[Row] = []
    for part in pipeline.split(prepared, 1 if model.whole_outputs else len(prepared)):
        outputs = model.session.run(pipeline.stack(part))
        size = pipeline.batch_size or len(part)
        whole = [name for name, values in outputs.items() if name in model.whole_outputs or values.shape[:1] != (size,)]
        if size > 1 and whole:
            shape = "x".join(map(str, outputs[whole[0]].shape)) or "()"
            raise UsageError(
                f"output {whole[0]!r} has the shape {shape} for {size} samples",
                hint="export the model with a dynamic batch or the batch size 1"
                if pipeline.batch_size
                else "run one sample at a time: --batch 1",
            )
        rows += [
            {"outputs": {name: values if name in whole else values[index] for name, values in outputs.items()}}
            for index in range(len(part))
        ]
    return rows
