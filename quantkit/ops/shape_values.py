"""Numbers that a graph computes from static shapes alone: where a Reshape or a Fill gets its sizes from."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from quantkit.errors import QuantkitError
from quantkit.ir.graph import Node
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.ops.kernels import evaluate
from quantkit.ops.tensorflow import output_dtypes

# What handles sizes on their way.
ARITHMETIC = frozenset(
    {
        *("Add", "AddV2", "Cast", "FloorDiv", "FloorMod", "Maximum", "Minimum", "Mul", "Prod", "Sub", "Sum"),
        *("Concat", "ConcatV2", "ExpandDims", "Gather", "GatherV2", "Identity", "Pack", "Reshape", "Slice", "Squeeze"),
        "StridedSlice",
    }
)
ASKING = frozenset({"Rank", "Shape", "Size"})
SIZING = ARITHMETIC | ASKING
# Elements of the largest tensor that may be one of sizes.
MOST = 32
INTEGERS = frozenset({DType.INT32, DType.INT64})


def shape_value(node: Node, shapes: Sequence[Shape], inputs: Mapping[int, Tensor]) -> Tensor | None:
    """The value of a node's output; None where shapes do not tell it, or it is of another kind.

    Args:
        node: of TensorFlow's ops.
        shapes: of what it reads.
        inputs: the values of what it reads, by slot, as far as they are known.
    """
    if node.op in ASKING:
        return _asked(node, shapes[0])
    if not shapes or len(inputs) < len(shapes):
        return None
    values = [inputs[slot] for slot in range(len(shapes))]
    if any(value.num_elements > MOST or value.dtype not in INTEGERS for value in values):
        return None
    arrays = [value.array for value in values]
    try:
        (made,) = evaluate(node, arrays)
    except QuantkitError:
        return None
    value = Tensor.of(made)
    return value if value.num_elements <= MOST and value.dtype in INTEGERS else None


def _asked(node: Node, shape: Shape) -> Tensor | None:
    if shape.dims is None or (node.op != "Rank" and not shape.is_known):
        return None
    dtype = output_dtypes(node)[0]
    if dtype is None:
        return None
    value = {"Rank": shape.rank, "Shape": shape.dims, "Size": math.prod(shape.known) if shape.is_known else 0}
    return Tensor.of(np.asarray(value[node.op], dtype.numpy))
