"""Reasons why the agreement with the float model is meaningless: the float model does not work on the samples."""

from collections.abc import Iterator

import numpy as np

from quantkit.data.preprocessing import Preprocessing
from quantkit.evaluation.classification_metrics import as_probabilities
from quantkit.facts import RANDOM_WEIGHTS_NOTE
from quantkit.ir.tensor import Array
from quantkit.model import Model
from quantkit.quantization.ranges import Provenance
from quantkit.quantization.workflow.float_reference import FloatReference

# Largest change of a probability, or of another output as a fraction of its largest value, that counts as constant.
MIN_PROBABILITY_CHANGE = 0.02
MIN_RELATIVE_CHANGE = 1e-3
# Width of the input values as a fraction of the expected width.
MIN_WIDTH, MAX_WIDTH = 0.05, 4.0


def find_doubts(model: Model, reference: FloatReference, provenance: Provenance) -> tuple[str, ...]:
    """Return the reasons why the outputs of the float model are not those of a working model.

    Args:
        model: float model.
        reference: outputs of the model on the samples of the accuracy.
        provenance: origin of the ranges.
    """
    return tuple(_doubts(model, reference, provenance))


def _doubts(model: Model, reference: FloatReference, provenance: Provenance) -> Iterator[str]:
    if not len(reference):
        return
    if model.has_random_weights:
        yield RANDOM_WEIGHTS_NOTE
    yield from _range_doubts(model, reference)
    if len(reference) > 1 and not reference.is_never_finite and barely_vary(reference):
        yield f"the outputs of the float model barely vary over the {reference.source}"
    metrics = reference.metrics
    if metrics is not None and metrics.is_at_chance and not metrics.label_shift:
        yield f"the float model itself is at chance on these labels: top-1 {metrics.top1}"
    used, calibrated = reference.preprocessing, provenance.preprocessing
    if isinstance(used, Preprocessing) and isinstance(calibrated, Preprocessing) and used != calibrated:
        yield f"the ranges were calibrated on images prepared as {calibrated}, these images are prepared as {used}"


def _range_doubts(model: Model, reference: FloatReference) -> Iterator[str]:
    """Yield a reason for each input whose values are far from the range that the graph expects."""
    for name in reference.feeds[0] if reference.feeds else ():
        scaling = model.find_scaling(name)
        arrays = [feeds[name] for feeds in reference.feeds]
        if scaling is None or arrays[0].dtype.kind != "f":
            continue
        low, high = (float(function([function(array) for array in arrays])) for function in (np.min, np.max))
        fraction = (high - low) / (scaling.high - scaling.low)
        if not MIN_WIDTH <= fraction <= MAX_WIDTH:
            yield f"the values of input {name!r} are from {low:.3g} to {high:.3g}, and {scaling}"


def barely_vary(reference: FloatReference) -> bool:
    """Return True if no output of the float model depends noticeably on the sample."""
    names = list(reference.outputs[0])
    return all(not _varies([outputs[name] for outputs in reference.outputs], reference) for name in names)


def _varies(outputs: list[Array], reference: FloatReference) -> bool:
    low = high = None
    for rows in outputs:
        values = rows.reshape(len(rows), -1).astype(np.float64)
        values = values[np.isfinite(values).all(axis=1)]
        if not len(values):
            continue
        if reference.has_class_scores:
            values = as_probabilities(values)
        if low is not None and low.shape != values.shape[1:]:
            return True  # the number of values depends on the sample
        low = values.min(0) if low is None else np.minimum(low, values.min(0))
        high = values.max(0) if high is None else np.maximum(high, values.max(0))
    if low is None or high is None:
        return False
    change = float((high - low).max(initial=0))
    if reference.has_class_scores:
        return change > MIN_PROBABILITY_CHANGE
    return change > MIN_RELATIVE_CHANGE * float(np.abs([low, high]).max(initial=0))
