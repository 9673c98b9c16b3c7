"""Average precision of detected boxes, for the forms in which detectors output them.

    heads      boxes (n, m, 4) and scores (n, m, c), or (n, 4 + c, m) and (n, m, 5 + c) of YOLO: center, size, scores
    boxes      boxes (n, m, 4), scores (n, m), classes (n, m), and optionally the number of boxes (n,)
    rows       (n, m, 6): corners, score, class; (n, m, 7): image, corners, class, score;
               (1, 1, m, 7): image, class, score, corners
    indices    (m, 3) of NonMaxSuppression: image, class, box; with or without boxes (n, k, 4) and scores (n, c, k)

A detector with NonMaxSuppression inside has another number of boxes m for each image.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from quantkit.errors import UsageError
from quantkit.ir.tensor import Array

Outputs = Mapping[str, Array]
# Lowest score of a box of the reference model, and overlap of boxes of one object.
MIN_BOX_SCORE, MIN_OVERLAP = 0.3, 0.5
# Parts of the names of outputs that repeat the boxes before their selection.
_BEFORE_SELECTION = ("raw", "anchor", "multiclass")
_CLASSES = re.compile("class|label", re.IGNORECASE)


class Detections(NamedTuple):
    """Boxes of one image: opposite corners (m, 4), scores (m,) and classes (m,)."""

    boxes: Array
    scores: Array
    classes: Array


def score_detection(expected: Outputs, actual: Outputs) -> float:
    """Return the mean average precision of boxes over images and the classes of the reference model.

    Raises:
        UsageError: the outputs do not contain boxes with scores.
    """
    detect = _find_form(expected)
    precisions = [
        _average_precision(*_of_class(reference, each), *_of_class(detections, each))
        for reference, detections in zip(detect(expected), detect(actual), strict=True)
        for each in np.unique(reference.classes[reference.scores > MIN_BOX_SCORE])
    ]
    return float(np.mean(precisions)) if precisions else 1.0


def _find_form(outputs: Outputs) -> Callable[[Outputs], Iterator[Detections]]:
    """Return the function that finds the boxes of each image in outputs of this form.

    Raises:
        UsageError: the form is not known.
    """
    indices = [name for name, array in outputs.items() if array.dtype.kind in "iu" and array.shape[-1:] == (3,)]
    boxes = _find_boxes(outputs)
    if len(indices) == 1:
        return lambda arrays: _select_indices(arrays, indices[0], boxes)
    if boxes:
        heads = [name for name, array in outputs.items() if name not in boxes and _is_head(array, outputs[boxes[0]])]
        if len(boxes) == len(heads) == 1:
            return lambda arrays: _heads(arrays[boxes[0]], arrays[heads[0]])
        names = _find_scores(outputs, boxes[0])
        if len(names) > 1:
            return lambda arrays: _lists(arrays, boxes[0], *names)
    for name, array in outputs.items():
        if array.dtype.kind == "f" and (split := _find_columns(array)) is not None:
            return lambda arrays, name=name, split=split: split(arrays[name])  # type: ignore[misc]
    shapes = ", ".join(f"{name} {array.shape}" for name, array in outputs.items())
    raise UsageError(
        f"the outputs {shapes} are not boxes (n, boxes, 4) and scores (n, boxes, classes) or another known form",
        hint="use --task regression for values of any shape, select boxes and scores with --outputs NAMES, "
        "or in Python pass a function of two outputs as task",
    )


def _find_boxes(outputs: Outputs) -> list[str]:
    """Return the names of the boxes, the most likely ones first."""
    names = [name for name, array in outputs.items() if array.ndim > 1 and array.shape[-1] == 4]
    sizes = {array.size for array in outputs.values()}
    names = [name for name in names if outputs[name].ndim == 3 or outputs[name].size // 4 in sizes]
    are_selected = {name: not any(part in name.lower() for part in _BEFORE_SELECTION) for name in names}
    return sorted(names, key=lambda name: (are_selected[name], outputs[name].ndim), reverse=True)


def _is_head(array: Array, boxes: Array) -> bool:
    return bool(array.ndim == 3 and array.dtype.kind == "f" and array.shape[:2] == boxes.shape[:2])


def _find_scores(outputs: Outputs, boxes: str) -> list[str]:
    """Return the names of scores, classes and, if there is one, the number of boxes."""
    count, rank = outputs[boxes].size // 4, max(outputs[boxes].ndim - 1, 2)
    lists = [
        name
        for name, array in outputs.items()
        if array.size == count and array.ndim <= rank and not any(part in name.lower() for part in _BEFORE_SELECTION)
    ]
    scores = [name for name in lists if outputs[name].dtype.kind == "f"]
    classes = [name for name in lists if name not in scores]
    if len(scores) == 2 and not classes:  # classes as real numbers
        classes = [max(scores, key=lambda name: (bool(_CLASSES.search(name)), _are_integers(outputs[name])))]
        scores.remove(classes[0])
    if len(scores) != 1 or len(classes) != 1:
        return []
    images = len(outputs[boxes])
    return [*scores, *classes, *(name for name, array in outputs.items() if array.size == images != count)][:3]


def _are_integers(values: Array) -> bool:
    return bool((values == np.rint(values)).all())


def _find_columns(array: Array) -> Callable[[Array], Iterator[Detections]] | None:
    """Return the function that splits the columns of one array; None for an unknown form."""
    if array.ndim == 4 and array.shape[-1] == 7:
        return lambda rows: _rows(rows.reshape(len(rows), -1, 7), slice(3, 7), 2, 1)
    if array.ndim != 3:
        return None
    _, rows, columns = array.shape
    if columns == 7 and _are_integers(array[..., [0, 5]]):
        return lambda rows: _rows(rows, slice(1, 5), 6, 5)
    if columns == 6 and _are_integers(array[..., 5]):
        return lambda rows: _rows(rows, slice(0, 4), 4, 5)
    if 4 < rows < columns and _are_scores(array[:, 4:]):
        return lambda heads: _heads(_corners(heads[:, :4].swapaxes(1, 2)), heads[:, 4:].swapaxes(1, 2))
    if 5 < columns < rows and _are_scores(array[..., 4:]):
        return lambda heads: _heads(_corners(heads[..., :4]), heads[..., 4:5] * heads[..., 5:])
    return None


def _are_scores(values: Array) -> bool:
    return bool(((values >= 0) & (values <= 1)).all())


def _corners(boxes: Array) -> Array:
    """Return corners of boxes (..., 4) of center and size."""
    return np.concatenate([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1)


def _heads(boxes: Array, scores: Array) -> Iterator[Detections]:
    """Yield the boxes of each class above the lowest score: boxes (n, m, 4), scores (n, m, c)."""
    for image_boxes, image_scores in zip(boxes, scores, strict=True):
        index, classes = np.nonzero(image_scores > MIN_BOX_SCORE)
        yield Detections(image_boxes[index], image_scores[index, classes], classes)


def _rows(rows: Array, corners: slice, score: int, label: int) -> Iterator[Detections]:
    for image in rows:
        yield Detections(image[:, corners], image[:, score], image[:, label])


def _lists(arrays: Outputs, boxes: str, scores: str, classes: str, count: str = "") -> Iterator[Detections]:
    """Yield the boxes of each image of lists, up to the number of boxes."""
    images = len(arrays[boxes])
    values = (arrays[boxes].reshape(images, -1, 4), *(arrays[name].reshape(images, -1) for name in (scores, classes)))
    for index, lists in enumerate(zip(*values, strict=True)):
        end = int(arrays[count].reshape(images, -1)[index, 0]) if count else None
        yield Detections(*(each[:end] for each in lists))


def _select_indices(arrays: Outputs, indices: str, boxes: list[str]) -> Iterator[Detections]:
    """Yield the boxes that NonMaxSuppression selects; without boxes, each index is an object of its own."""
    candidates = arrays[boxes[0]] if boxes and arrays[boxes[0]].ndim == 3 else None
    number = None if candidates is None else candidates.shape[1]
    scores = [array for array in arrays.values() if array.ndim == 3 and array.shape[2] == number and number != 4]
    for image, selected in enumerate(arrays[indices]):
        rows = selected.reshape(-1, 3)
        if candidates is None or not scores:
            lefts = rows[:, 0] + np.float64(len(arrays[indices]) * rows[:, 2])
            corners = np.stack([lefts, lefts * 0, lefts + 1, lefts * 0 + 1], -1)
            yield Detections(corners, np.ones(len(rows)), rows[:, 1])
            continue
        rows = rows[rows[:, 0] == image] if len(candidates) > 1 else rows
        yield Detections(candidates[image][rows[:, 2]], scores[0][image][rows[:, 1], rows[:, 2]], rows[:, 1])


def _of_class(detections: Detections, label: float) -> tuple[Array, Array]:
    """Return the boxes of a class, left, top, right, bottom, and their scores."""
    is_class = detections.classes == label
    boxes = detections.boxes[is_class]
    return np.concatenate([np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])], 1), (
        detections.scores[is_class]
    )


def _average_precision(boxes: Array, scores: Array, others: Array, other_scores: Array) -> float:
    """Return the average precision of the other model's boxes of one class."""
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
    """Return the intersection over union of a box (4,) with boxes (n, 4); equal boxes without area overlap, too."""
    sizes = np.maximum(np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2]), 0)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    inside = sizes.prod(1)
    ratios: Array = inside / np.maximum((box[2:] - box[:2]).prod() + areas - inside, 1e-30)
    return np.where((boxes == box).all(1), 1.0, ratios)
