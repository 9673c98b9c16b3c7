"""Agreement of two models in the metric of a task, with the float model as the reference.

All metrics are 1 for equal outputs, and 0 or above:

    segmentation   mean intersection over union of the classes of all positions
    detection      mean average precision of the boxes, matched where they overlap by half
    regression     1 - sum (a - b)^2 / sum (a - mean a)^2
    embedding      mean cosine of the vectors
    text           1 - edit distance / length of the sequences of most likely tokens
    language       perplexity of the float model / perplexity of the other model on the tokens of the input, at most 1
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantkit.errors import UsageError, did_you_mean
from quantkit.ir.tensor import Array

Outputs = Mapping[str, Array]
# Function of the outputs of the float model and of the other model, (n, ...) by name, for one run.
Score = Callable[[Outputs, Outputs], float]
# Lowest score of a box of the reference model, and overlap of boxes of one object.
MIN_BOX_SCORE, MIN_OVERLAP = 0.3, 0.5


@dataclass(frozen=True)
class TaskMetric:
    """Metric of a task.

    Attributes:
        name: name of the metric.
        score: function that computes it for one run.
        takes_inputs: True if the function also takes the inputs.
    """

    name: str
    score: Callable[..., float]
    takes_inputs: bool = False

    def compute(self, expected: Outputs, actual: Outputs, inputs: Outputs) -> float:
        """Return the metric of one run; 0 if it is not finite.

        Args:
            expected, actual: outputs of the float model and of the other model, (n, ...) by name.
            inputs: inputs of both models, (n, ...) by name.
        """
        score = self.score(expected, actual, inputs) if self.takes_inputs else self.score(expected, actual)
        return score if np.isfinite(score) else 0.0


def find_task(value: Any) -> TaskMetric | None:
    """Return the metric of a task name or of a function of the user; None without a task.

    Raises:
        UsageError: there is no such task, or the value is neither a name nor a function.
    """
    if value is None:
        return None
    if callable(value):
        return TaskMetric(getattr(value, "__name__", "metric"), value)
    if value in TASKS:
        return TASKS[value]
    raise UsageError(
        f"{value!r} is not a task",
        hint=did_you_mean(str(value), TASKS) or f"use {', '.join(TASKS)}, or in Python a function of two outputs",
    )


def _mean(values: Iterable[float]) -> float:
    scores = list(values)
    return float(np.mean(scores)) if scores else 1.0


def _pairs(expected: Outputs, actual: Outputs) -> list[tuple[Array, Array]]:
    """Return the real outputs of both models."""
    return [(values, actual[name]) for name, values in expected.items() if values.dtype.kind == "f"]


def score_segmentation(expected: Outputs, actual: Outputs) -> float:
    """Return the mean IoU of the classes of all positions; maps of one channel have the classes below and above 0.5."""
    return _mean(_mean_iou(_classes(a), _classes(b)) for a, b in _pairs(expected, actual))


def _classes(maps: Array) -> Array:
    """Return the class of each position of maps (n, c, h, w), (n, h, w, c) or (n, h, w)."""
    if maps.ndim < 4 or 1 in (maps.shape[1], maps.shape[-1]):
        return np.asarray(maps > 0.5, np.int64)
    classes: Array = maps.argmax(1 if maps.shape[1] <= maps.shape[-1] else -1)
    return classes


def _mean_iou(expected: Array, actual: Array) -> float:
    return _mean(
        float(((expected == each) & (actual == each)).sum() / ((expected == each) | (actual == each)).sum())
        for each in np.unique(expected)
    )


def score_regression(expected: Outputs, actual: Outputs) -> float:
    """Return the lowest coefficient of determination of an output; a single value varies about 0."""
    scores = [1.0]
    for a, b in _pairs(expected, actual):
        variation = float(np.square(a - a.mean() if a.size > 1 else a).sum())
        scores.append(1 - float(np.square(a - b).sum()) / max(variation, 1e-30))
    return max(min(scores), 0.0)


def score_embedding(expected: Outputs, actual: Outputs) -> float:
    """Return the mean cosine of the vectors along the last axis."""
    return _mean(float(_cosines(a, b).mean()) for a, b in _pairs(expected, actual))


def _cosines(a: Array, b: Array) -> Array:
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    cosines: Array = np.clip((a * b).sum(-1) / np.maximum(norms, 1e-30), 0, 1)
    return cosines


def score_text(expected: Outputs, actual: Outputs) -> float:
    """Return 1 - the edit distance relative to the length, of the most likely tokens of logits (..., length, c)."""
    return _mean(
        1 - _edit_distance(a, b) / max(len(a), len(b), 1)
        for logits, others in _pairs(expected, actual)
        for a, b in zip(_sequences(logits), _sequences(others), strict=True)
    )


def _sequences(logits: Array) -> Array:
    """Return the most likely tokens, (n, length); a vector of logits is one token."""
    tokens = logits.argmax(-1)
    sequences: Array = tokens.reshape(-1, tokens.shape[-1] if logits.ndim > 2 else 1)
    return sequences


def score_language(expected: Outputs, actual: Outputs, inputs: Outputs) -> float:
    """Return the perplexity of the float model relative to that of the other model, at most 1.

    Raises:
        UsageError: no output has logits (n, positions, vocabulary) for token ids (n, positions) of an input.
    """
    for logits, others in _pairs(expected, actual):
        arrays = {name: ids for name, ids in inputs.items() if ids.shape == logits.shape[:-1] and ids.ndim == 2}
        masks = [ids[:, 1:] != 0 for name, ids in arrays.items() if "mask" in name.lower()]
        ids = [ids for name, ids in arrays.items() if ids.dtype.kind in "iu" and "mask" not in name.lower()]
        if ids:
            tokens = max(ids, key=np.max)  # positions and types are smaller numbers
            is_token = np.logical_and.reduce([np.ones(tokens[:, 1:].shape, bool), *masks])
            before, after = (_cross_entropy(values, tokens, is_token) for values in (logits, others))
            return float(np.exp(min(before - after, 0.0)))
    raise UsageError(
        "no output has logits (n, positions, vocabulary) for token ids (n, positions) of an input",
        hint="use --task text, or in Python pass a function of two outputs as task",
    )


def _cross_entropy(logits: Array, tokens: Array, is_token: Array) -> float:
    """Return the mean of -log p of each next token, in nats; the perplexity is its exponential.

    Args:
        logits: (n, positions, vocabulary).
        tokens: (n, positions) token ids; position i predicts token i + 1.
        is_token: (n, positions - 1), False for padding.
    """
    values = logits[:, :-1].astype(np.float64)
    values -= values.max(-1, keepdims=True)
    next_logits = np.take_along_axis(values, tokens[:, 1:, None].astype(np.int64), -1)[..., 0]
    losses = np.log(np.exp(values).sum(-1)) - next_logits
    return float(losses[is_token].mean()) if is_token.any() else 0.0


def _edit_distance(a: Array, b: Array) -> int:
    """Return the number of insertions, deletions and substitutions between two sequences."""
    distances = np.arange(len(b) + 1)
    for token in a:
        diagonal = distances[:-1] + (b != token)
        best = np.concatenate([[distances[0] + 1], np.minimum(diagonal, distances[1:] + 1)])
        steps = np.arange(len(best))
        distances = np.minimum.accumulate(best - steps) + steps  # insertions
    return int(distances[-1])


def score_detection(expected: Outputs, actual: Outputs) -> float:
    """Return the mean average precision of boxes over the classes of the reference model.

    Raises:
        UsageError: the outputs are not boxes (n, boxes, 4) and scores (n, boxes, c).
    """
    return _mean(
        _average_precision(*rows, scores[row, :, each], others[row, :, each])
        for boxes, scores, other_boxes, others in [(*_boxes(expected), *_boxes(actual))]
        for row in range(len(boxes))
        for rows in [(boxes[row], other_boxes[row])]
        for each in range(scores.shape[2])
        if (scores[row, :, each] > MIN_BOX_SCORE).any()
    )


def _boxes(outputs: Outputs) -> tuple[Array, Array]:
    arrays = [array for array in outputs.values() if array.ndim == 3]
    boxes = [array for array in arrays if array.shape[2] == 4]
    scores = [array for array in arrays if array.shape[2] != 4]
    if len(boxes) != 1 or len(scores) != 1 or boxes[0].shape[1] != scores[0].shape[1]:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in outputs.items())
        raise UsageError(
            f"the outputs {shapes} are not boxes (n, boxes, 4) and scores (n, boxes, classes)",
            hint="in Python, pass a function of two outputs as task",
        )
    return boxes[0], scores[0]


def _average_precision(boxes: Array, others: Array, scores: Array, other_scores: Array) -> float:
    """Return the average precision of the other model's boxes of one class, left, top, right, bottom."""
    truth = boxes[_select_boxes(boxes, scores)]
    candidates = others[_select_boxes(others, other_scores)]
    is_free, hits = np.ones(len(truth), bool), []
    for box in candidates:
        overlaps = np.where(is_free, _overlaps(box, truth), 0)
        best = int(overlaps.argmax())
        hits.append(bool(overlaps[best] >= MIN_OVERLAP))
        is_free[best] &= not hits[-1]
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    return float(precision[np.array(hits, bool)].sum() / len(truth)) if hits else 0.0


def _select_boxes(boxes: Array, scores: Array) -> list[int]:
    """Return the indices of boxes above the lowest score, best first, without boxes that overlap a better one."""
    order = [index for index in np.argsort(-scores, kind="stable").tolist() if scores[index] > MIN_BOX_SCORE]
    selected: list[int] = []
    for index in order:
        if not selected or _overlaps(boxes[index], boxes[selected]).max() < MIN_OVERLAP:
            selected.append(index)
    return selected


def _overlaps(box: Array, boxes: Array) -> Array:
    """Return the intersection over union of a box (4,) with boxes (n, 4)."""
    sizes = np.clip(np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2]), 0, None)
    areas = np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(1)
    inside = sizes.prod(1)
    ratios: Array = inside / np.maximum((box[2:] - box[:2]).prod() + areas - inside, 1e-30)
    return ratios


TASKS: Mapping[str, TaskMetric] = {
    "segmentation": TaskMetric("mean IoU", score_segmentation),
    "detection": TaskMetric("mAP", score_detection),
    "regression": TaskMetric("R2", score_regression),
    "embedding": TaskMetric("cosine", score_embedding),
    "text": TaskMetric("token agreement", score_text),
    "language": TaskMetric("perplexity ratio", score_language, takes_inputs=True),
}
