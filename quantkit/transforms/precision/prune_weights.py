"""Set the weights of small magnitude to zero (magnitude pruning).

    w'  =  0 if |w| is among the k smallest magnitudes of its group, else w

The group is the whole tensor with k = floor(sparsity * size), or with the pattern 2:4 four adjacent input channels with
k = 2. Of equal magnitudes, the weight that is stored first is pruned.
"""

from functools import partial
from typing import Literal

import numpy as np

from quantkit.errors import RecipeError
from quantkit.ir.draft import Draft
from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import Array, Tensor
from quantkit.ops.weights import Weights, find_weights
from quantkit.transforms.registry import transform

GROUP = 4
NUM_ZEROS = 2


@transform(exact=False, dialects=("tensorflow", "onnx"))
def prune_weights(
    graph: Graph,
    *,
    sparsity: float = 0.5,
    pattern: Literal["unstructured", "2:4"] = "unstructured",
    minimum_size: int = 1024,
) -> Outcome:
    """Set the weights of smallest magnitude of each layer to zero.

    The zeros make the compressed file smaller; the size of the file and the latency of dense
    kernels stay. Quantization with symmetric weights keeps the zeros. Fine-tune a model that loses
    accuracy. Weights that several layers share are pruned for all of them.

    Before:  conv(x, Const[float])
    After:   conv(x, Const[float]), a fraction of the weights is 0

    Options:
        sparsity: fraction of the weights of each layer that become zero, from 0 to 1 (default: 0.5).
        pattern: unstructured, or 2:4, which prunes two of four adjacent input channels, as sparse
            tensor cores need it.
        minimum_size: weights with fewer elements stay (default: 1024).

    Skips weights that are not floating-point, and with the pattern 2:4 layers whose number of input
    channels is not divisible by 4, for example depthwise convolutions. Biases stay.

    Raises:
        RecipeError: sparsity is not from 0 to 1, or is not 0.5 with the pattern 2:4.

    Example:
        prune_weights(sparsity=0.3, minimum_size=1)
        inputs: x
        outputs: y
        x = Placeholder[1x8x8x4]()
        w = Const[3x3x4x8]()
        y = Conv2D(x, w, padding=SAME, strides=[1, 1, 1, 1])
    """
    if not 0 <= sparsity <= 1:
        raise RecipeError(f"prune_weights: sparsity must be from 0 to 1, not {sparsity:g}", hint="write sparsity=0.5")
    if pattern == "2:4" and sparsity != NUM_ZEROS / GROUP:
        raise RecipeError(
            f"prune_weights: the pattern 2:4 has sparsity 0.5, not {sparsity:g}", hint="omit sparsity or pattern"
        )
    draft = Draft(graph)
    changes: list[str] = []
    skips: list[Skip] = []
    for weights in find_weights(graph):
        node, value = weights.constant, weights.value
        if value.num_elements < max(minimum_size, 1) or node.name in graph.input_names:
            continue
        if reason := _skip_reason(weights, pattern):
            skips.append(Skip(reason, node.name))
            continue
        prune = partial(_prune_groups, weights) if pattern == "2:4" else partial(_prune, value, sparsity)
        draft.replace(node.name, node.with_attrs(value=Tensor(value.dtype, value.shape, prune)))
        changes.append(f"{node.name}: {value.num_elements} weights")
    return Outcome(draft.graph(), tuple(changes), tuple(skips))


def _skip_reason(weights: Weights, pattern: str) -> str:
    """Return the reason why weights are not pruned; empty if they are."""
    value, layer = weights.value, weights.layer
    if not value.dtype.is_float:
        return f"the weights of {layer.name} are {value.dtype.value}, not floating-point"
    if pattern == "2:4" and (weights.axis is None or value.shape[weights.axis] % GROUP):
        return f"the input channels of {layer.name} ({layer.op}) do not form groups of {GROUP}"
    return ""


def _prune(tensor: Tensor, sparsity: float) -> Array:
    """Return the values with a fraction of zeros."""
    values = tensor.array.flatten()
    # A sparsity such as 0.3 is stored below its decimal value.
    count = int(sparsity * values.size + 1e-6)
    if count:
        magnitudes = _magnitudes(values)
        threshold = np.partition(magnitudes, count - 1)[count - 1]
        is_below = magnitudes < threshold
        ties = np.flatnonzero(magnitudes == threshold)
        values[is_below] = 0
        values[ties[: count - np.count_nonzero(is_below)]] = 0
    return values.reshape(tensor.shape)


def _prune_groups(weights: Weights) -> Array:
    """Return the values with two zeros in each group of four input channels."""
    assert weights.axis is not None, "such weights are skipped"
    values = np.moveaxis(weights.value.array, weights.axis, -1).copy()
    groups = values.reshape(-1, GROUP)
    smallest = np.argsort(_magnitudes(groups), axis=-1, kind="stable")[:, :NUM_ZEROS]
    np.put_along_axis(groups, smallest, 0, axis=-1)
    return np.moveaxis(values, -1, weights.axis)


def _magnitudes(values: Array) -> Array:
    """Return the absolute values; types of 16 bits and less become float32, since NumPy cannot sort all of them."""
    magnitudes: Array = np.abs(values.astype(np.float32) if values.dtype.itemsize < 4 else values)
    return magnitudes
