"""Statistics of batch norms for the final weights.

The moving averages of a training lag by 1 / (1 - momentum) steps, in which pruning and clustering change the weights.
The mean of the statistics of some batches fits the weights (``update_bn`` in PyTorch):

    average = i / (i + 1) * average + 1 / (i + 1) * statistics of batch i        i = 0, 1, ...
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

CLASSES = ("BatchNormalization", "SyncBatchNormalization")


def find_batch_norms(layers: Iterable[Any]) -> list[Any]:
    """Return the batch norms that use the statistics of a batch in a training; frozen ones do not."""
    return [layer for layer in layers if type(layer).__name__ in CLASSES and layer.trainable]


def average_statistics(model: Any, batch_norms: Sequence[Any], batches: Iterable[Any]) -> int:
    """Set the statistics of batch norms to their mean over some batches, and return the number of batches.

    Args:
        model: Keras model.
        batch_norms: its batch norms.
        batches: inputs of the model.
    """
    momenta = [layer.momentum for layer in batch_norms]
    count = 0
    try:
        for batch in batches:
            for layer in batch_norms:
                layer.momentum = count / (count + 1)
            model(batch, training=True)
            count += 1
    finally:
        for layer, momentum in zip(batch_norms, momenta, strict=True):
            layer.momentum = momentum
    return count


def split_batches(samples: Any, size: int) -> Iterator[Any]:
    """Yield the batches of samples.

    Args:
        samples: array (n, ...), a sequence or mapping of arrays for several inputs, or a dataset of batches, each with
            or without labels.
        size: number of samples of a batch; a dataset has batches of its own.
    """
    if hasattr(samples, "element_spec"):
        yield from (batch[0] if isinstance(batch, tuple) else batch for batch in samples)
    elif isinstance(samples, Mapping):
        count = len(next(iter(samples.values()), ()))
        for start in range(0, count, size):
            yield {name: np.asarray(array[start : start + size]) for name, array in samples.items()}
    elif isinstance(samples, list | tuple):
        for start in range(0, len(samples[0] if samples else ()), size):
            yield [np.asarray(array[start : start + size]) for array in samples]
    else:
        for start in range(0, len(samples), size):
            yield np.asarray(samples[start : start + size])
