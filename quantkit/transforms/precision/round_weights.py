"""Round float constants to few distinct values, so that the file compresses well.

    x'  =  lo + step * (floor((x - lo) / step) + 1/2)        step = (hi - lo) / num_steps

in float32, where lo and hi are the smallest and the largest value of the tensor.
"""

from functools import partial

import numpy as np

from quantkit.errors import RecipeError
from quantkit.ir.graph import Graph, Node
from quantkit.ir.rewrite import Outcome, rewrite_nodes
from quantkit.ir.tensor import Array, DType, Tensor
from quantkit.transforms.registry import transform

# Smaller tensors would hardly compress better.
MIN_ELEMENTS = 16


@transform(exact=False, dialects=("tensorflow", "onnx"))
def round_weights(graph: Graph, *, num_steps: int = 256) -> Outcome:
    """Round float constants of 16 or more elements to the midpoints of equal steps.

    The size of the file stays, but the file compresses well.

    Before:  w = Const[float], any values
    After:   w = Const[float], at most num_steps distinct values

    Options:
        num_steps: maximum number of distinct values of a tensor (default: 256).

    Skips tensors with a single distinct value. Infinite and NaN values stay unchanged.

    Raises:
        RecipeError: num_steps is less than 1.

    Example:
        round_weights(num_steps=4)
        outputs: y
        w = Const([0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.0, 0.25, 1.25, 2.25, 3.25, 3.75, 0.75])
        y = Neg(w)
    """
    if num_steps < 1:
        raise RecipeError(
            f"round_weights: num_steps must be at least 1, not {num_steps}", hint="use 256 for 8 bits per weight"
        )

    def rewrite(node: Node) -> list[Node] | None:
        tensor = node.attrs.get("value")
        is_float = node.is_constant and isinstance(tensor, Tensor) and tensor.dtype is DType.FLOAT
        if not is_float or node.value.num_elements < MIN_ELEMENTS:
            return None
        return [node.with_attrs(value=Tensor(DType.FLOAT, node.value.shape, partial(_round, node.value, num_steps)))]

    return rewrite_nodes(graph, rewrite, lambda node: f"{node.name}: {node.value.num_elements} values")


def _round(tensor: Tensor, num_steps: int) -> Array:
    """Return the rounded values of a tensor."""
    values = tensor.array
    finite = values[np.isfinite(values)]
    if not finite.size:
        return values
    with np.errstate(over="ignore"):
        low = finite.min()
        step = (finite.max() - low) / np.float32(num_steps)
    if not 0 < step < np.inf:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = (values - low) / step
        np.floor(rounded, out=rounded)
        np.minimum(rounded, num_steps - 1, out=rounded)
        rounded += np.float32(0.5)
        rounded *= step
        rounded += low
    return np.where(np.isfinite(values), rounded, values)
