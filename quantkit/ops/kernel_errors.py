"""Runs of NumPy kernels: errors that name the node, and values that depend on the runtime."""

from collections.abc import Callable, Sequence

import numpy as np

from quantkit.errors import GraphError
from quantkit.ir.graph import Node
from quantkit.ir.tensor import Array, Shape
from quantkit.ops.table import Fact, find_ops

KERNEL_ERRORS = (ValueError, LookupError, TypeError, AttributeError, OverflowError, ZeroDivisionError)
# Ops of both dialects that copy NaN, or compute the same from it in all runtimes. Other ops order values (ArgMax,
# ReduceMax, TopK, Relu) or convert them to integers, which each kernel of a runtime does in its own way for NaN.
NAN_OPS = find_ops(Fact.EXACT_NAN)


def run_kernel(
    node: Node,
    inputs: Sequence[Array | None],
    kernel: Callable[[], Array | tuple[Array, ...]],
    *,
    is_folded: bool,
) -> tuple[Array, ...]:
    """Return the outputs of a kernel.

    Args:
        node: node that the kernel computes.
        inputs: its input arrays, None for an omitted input.
        kernel: function that computes the outputs of the node.
        is_folded: True if constants replace the node, so that values that depend on the runtime are an error.

    Raises:
        GraphError: the kernel raised one of `KERNEL_ERRORS`, or has not enough memory; or ``is_folded``, an input or
            output has NaN, and the op is not one of `NAN_OPS`.
    """
    try:
        with np.errstate(all="ignore"):
            result = kernel()
    except MemoryError as error:
        raise GraphError(f"node {node.name!r} ({node.op}) needs more memory than this machine has") from error
    except KERNEL_ERRORS as error:
        shapes = ", ".join("none" if array is None else str(Shape(array.shape)) for array in inputs) or "none"
        raise GraphError(f"node {node.name!r} ({node.op}), input shapes {shapes}: {error}") from error
    outputs = tuple(map(np.asarray, result if isinstance(result, tuple) else (result,)))
    for array in (*inputs, *outputs) if is_folded and node.op not in NAN_OPS else ():
        # V is bfloat16, which has no kind in NumPy.
        if array is not None and array.dtype.kind in "fcV" and np.isnan(array).any():
            raise GraphError(f"node {node.name!r} ({node.op}): the result for NaN depends on the runtime")
    return outputs
