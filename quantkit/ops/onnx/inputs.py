"""Required inputs of ONNX ops whose consumers in this package index them."""

from collections.abc import Sequence

from quantkit.ir.graph import Edge
from quantkit.ops.table import LAYER, Fact, find_ops

# Input index of the weights.
WEIGHTS_INDEXES = {
    **dict.fromkeys((*find_ops(LAYER, "onnx"), "Attention", "ConvInteger", "DeformConv", "MatMulInteger"), 1),
    "QLinearConv": 3,
    "QLinearMatMul": 3,
    "com.microsoft.FusedMatMul": 1,
}
_REQUIRED_INPUTS = {
    **{op: index + 1 for op, index in WEIGHTS_INDEXES.items()},
    **dict.fromkeys(("Add", "Mul", "Gather", "CastLike"), 2),
    **dict.fromkeys(find_ops(Fact.RECURRENT, "onnx"), 3),
}


def missing_input(op: str, inputs: Sequence[Edge]) -> int | None:
    """Return the index of the first required input that a node does not have; None if it has all.

    Args:
        op: op type; of most types, inputs are not required.
        inputs: inputs of the node; those without a name are omitted.
    """
    return next(
        (index for index in range(_REQUIRED_INPUTS.get(op, 0)) if index >= len(inputs) or not inputs[index].node), None
    )
