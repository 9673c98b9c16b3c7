"""Numbers that a graph computes of sizes that are all known: where a Reshape or a Fill gets its shape from."""

from collections.abc import Mapping

from quantkit.errors import QuantkitError
from quantkit.ir.graph import Node
from quantkit.ir.tensor import DType, Tensor
from quantkit.ops.kernels import evaluate

# What handles sizes on their way.
SIZING = frozenset(
    {
        *("Add", "AddV2", "Cast", "FloorDiv", "FloorMod", "Maximum", "Minimum", "Mul", "Prod", "Sub", "Sum"),
        *("Concat", "ConcatV2", "ExpandDims", "Gather", "GatherV2", "Identity", "Pack", "Reshape", "Slice", "Squeeze"),
        "StridedSlice",
    }
)
# Elements of the largest tensor that may be one of sizes.
MOST = 32
INTEGERS = frozenset({DType.INT32, DType.INT64})


def shape_value(node: Node, inputs: Mapping[int, Tensor]) -> Tensor | None:
    """The value of a node's output; None where not all that it reads is known, or is of another kind.

    Args:
        node: of TensorFlow's ops.
        inputs: the values of what it reads, by slot, as far as they are known.
    """
    if not node.inputs or len(inputs) < len(node.inputs):
        return None
    values = [inputs[slot] for slot in range(len(node.inputs))]
    if any(value.num_elements > MOST or value.dtype not in INTEGERS for value in values):
        return None
    arrays = [value.array for value in values]
    try:
        (made,) = evaluate(node, arrays)
    except QuantkitError:
        return None
    value = Tensor.of(made)
    return value if value.num_elements <= MOST and value.dtype in INTEGERS else None
