"""Evaluation of integers that a graph computes from known sizes, for example the shape input of a Reshape."""

from collections.abc import Mapping

from quantkit.errors import QuantkitError
from quantkit.ir.graph import Node
from quantkit.ir.tensor import DType, Tensor
from quantkit.ops.kernels import evaluate

# Op types that occur in shape arithmetic.
SIZE_OPS = frozenset(
    {
        *("Add", "AddV2", "Cast", "FloorDiv", "FloorMod", "Maximum", "Minimum", "Mul", "Prod", "Sub", "Sum"),
        *("Concat", "ConcatV2", "ExpandDims", "Gather", "GatherV2", "Identity", "Pack", "Reshape", "Slice", "Squeeze"),
        "StridedSlice",
    }
)
# Maximum number of elements of a tensor of sizes.
MAX_ELEMENTS = 32
INTEGERS = frozenset({DType.INT32, DType.INT64})


def shape_value(node: Node, inputs: Mapping[int, Tensor]) -> Tensor | None:
    """Return the value of a node's output; None if an input is unknown, large, or not an integer tensor.

    Args:
        node: node of dialect ``tensorflow``.
        inputs: known input values by input index.
    """
    if not node.inputs or len(inputs) < len(node.inputs):
        return None
    values = [inputs[slot] for slot in range(len(node.inputs))]
    if any(value.num_elements > MAX_ELEMENTS or value.dtype not in INTEGERS for value in values):
        return None
    arrays = [value.array for value in values]
    try:
        (result,) = evaluate(node, arrays)
    except QuantkitError:
        return None
    value = Tensor.of(result)
    return value if value.num_elements <= MAX_ELEMENTS and value.dtype in INTEGERS else None
