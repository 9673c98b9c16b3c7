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
from itertools import zip_longest
from math import prod
from typing import Any

import numpy as np

from quantkit.errors import UsageError
from quantkit.evaluation.detection import Outputs, score_detection
from quantkit.ir.tensor import Array
from quantkit.registry import FUNCTION, TITLE, Registry, check_fields

# Function of the outputs of the float model and of the other model, (n, ...) by name, for one run.
Score = Callable[[Outputs, Outputs], float]


@dataclass(frozen=True)
class TaskMetric:
    """Metric of a task.

    Attributes:
        name: name of the task.
        metric: name of the metric.
        score: function that computes it for one run.
        takes_inputs: True if the function also takes the inputs.
        takes_any_size: True if the outputs of the two models may differ in size; else such outputs have the metric 0.
    """

    name: str
    metric: str
    score: Callable[..., float]
    takes_inputs: bool = False
    takes_any_size: bool = False

    def compute(self, expected: Outputs, actual: Outputs, inputs: Outputs) -> float:
        """Return the metric of one run; 0 if it is not finite.

        Args:
            expected, actual: outputs of the float model and of the other model, (n, ...) by name.
            inputs: inputs of both models, (n, ...) by name.
        """
        if not self.takes_any_size and any(values.shape != actual[name].shape for name, values in expected.items()):
            return 0.0
        score = self.score(expected, actual, inputs) if self.takes_inputs else self.score(expected, actual)
        return score if np.isfinite(score) else 0.0


def find_task(value: Any) -> TaskMetric | None:
    """Return the metric of a task name or of a function of the user; None without a task.

    Raises:
        UsageError: there is no such task, or the value is neither a name nor a function.
        UnavailableError: the plugin with the task cannot be loaded.
    """
    if value is None:
        return None
    if callable(value):
        return TaskMetric("", getattr(value, "__name__", "metric"), value, takes_any_size=True)
    return REGISTRY.find(str(value))


def _mean(values: Iterable[float]) -> float:
    scores = list(values)
    return float(np.mean(scores)) if scores else 1.0


def _pairs(expected: Outputs, actual: Outputs) -> list[tuple[Array, Array]]:
    """Return the real outputs of both models; without a real output, the integers."""
    real = [name for name, values in expected.items() if values.dtype.kind == "f"]
    integers = [name for name, values in expected.items() if values.dtype.kind in "biu"]
    return [(expected[name], actual[name]) for name in real or integers]


def score_segmentation(expected: Outputs, actual: Outputs) -> float:
    """Return the mean IoU of the classes of all positions; maps of one channel have the classes below and above 0.5."""
    return _mean(_mean_iou(_classes(a), _classes(b)) for a, b in _pairs(expected, actual))


def _classes(maps: Array) -> Array:
    """Return the class of each position of maps (n, c, h, w), (n, h, w, c) or (n, h, w); integers are classes."""
    if maps.dtype.kind in "biu":
        return maps
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
        error = float(np.square(np.subtract(a, b, dtype=np.float64)).sum())
        scores.append(1 - error / max(variation, 1e-30))
    return max(min(scores), 0.0)


def score_embedding(expected: Outputs, actual: Outputs) -> float:
    """Return the mean cosine of the vectors along the last axis."""
    return _mean(float(_cosines(a, b).mean()) for a, b in _pairs(expected, actual))


def _cosines(a: Array, b: Array) -> Array:
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    products = np.multiply(a, b, dtype=np.float64).sum(-1)
    cosines: Array = np.clip(products / np.maximum(norms, 1e-30), 0, 1)
    return cosines


def score_text(expected: Outputs, actual: Outputs) -> float:
    """Return 1 - the edit distance relative to the length, of the most likely tokens of logits (..., length, c)."""
    return _mean(
        1 - _edit_distance(a, b) / max(len(a), len(b), 1)
        for logits, others in _pairs(expected, actual)
        for a, b in zip_longest(_sequences(logits), _sequences(others), fillvalue=np.zeros(0))
    )


def _sequences(logits: Array) -> Array:
    """Return the most likely tokens, (n, length); a vector of logits is one token, and integers are tokens."""
    if logits.dtype.kind in "biu":
        return logits.reshape(len(logits), -1)
    tokens: Array = logits.argmax(-1)
    return tokens.reshape(prod(tokens.shape[:-1]), tokens.shape[-1]) if logits.ndim > 2 else tokens.reshape(-1, 1)


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


def check_task(task: TaskMetric) -> None:
    """Check the fields of a task that a plugin registers.

    Raises:
        UsageError: a field has a value that is not allowed.
    """
    check_fields(task, {"metric": TITLE, "score": FUNCTION})


_BUILT_IN = (
    TaskMetric("segmentation", "mean IoU", score_segmentation),
    TaskMetric("detection", "mAP", score_detection, takes_any_size=True),
    TaskMetric("regression", "R2", score_regression),
    TaskMetric("embedding", "cosine", score_embedding),
    TaskMetric("text", "token agreement", score_text, takes_any_size=True),
    TaskMetric("language", "perplexity ratio", score_language, takes_inputs=True),
)
TASKS: Mapping[str, TaskMetric] = {task.name: task for task in _BUILT_IN}
REGISTRY: Registry[TaskMetric] = Registry("task", TaskMetric, _BUILT_IN, check_task)
