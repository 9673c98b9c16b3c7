"""Table of kernels, with their error handling.

A kernel is a function ``(node, *inputs) -> array`` or ``-> tuple of arrays``. It raises ValueError for invalid
inputs; the registry converts the error into a GraphError with the node's name.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from quantkit.errors import GraphError, UnavailableError
from quantkit.ir.graph import Node
from quantkit.ir.tensor import Array, DType
from quantkit.limits import check_size
from quantkit.ops.kernel_errors import KERNEL_ERRORS, run_kernel
from quantkit.ops.kernels.output_sizes import OutputSize, sum_of_inputs
from quantkit.ops.shape_rules import Rules
from quantkit.ops.tensorflow.signatures import input_dtypes, output_dtypes

Kernel = Callable[..., Array | tuple[Array, ...]]
# (node, values of its inputs) -> values of its outputs; None if the op is not supported.
Evaluate = Callable[[Node, Sequence[Array]], tuple[Array, ...] | None]

KERNELS: Rules[Kernel] = Rules()
# Rules of ops whose output can be larger than the inputs.
_OUTPUT_SIZES: dict[str, OutputSize] = {}


def kernel(*ops: str, output_size: OutputSize = sum_of_inputs) -> Callable[[Kernel], Kernel]:
    """Register a function for op types.

    Args:
        ops: op types.
        output_size: number of elements of the largest output.

    Raises:
        ValueError: an op type already has a kernel.
    """
    _OUTPUT_SIZES.update(dict.fromkeys(ops, output_size))
    return KERNELS.rule(*ops)


def has_kernel(op: str) -> bool:
    """Return True if an op type has a NumPy kernel."""
    return op in KERNELS


def output_bytes(node: Node, inputs: Sequence[Array]) -> int:
    """Return an estimate of the size of the largest output in bytes; 0 if the inputs are invalid.

    Args:
        node: node of any op, also one without a kernel.
        inputs: one array per data input.
    """
    try:
        num_elements = _OUTPUT_SIZES.get(node.op, sum_of_inputs)(node, inputs)
        dtype = next(iter(output_dtypes(node)), None)
    except (GraphError, ValueError, IndexError, TypeError, KeyError, OverflowError, ZeroDivisionError):
        return 0  # the kernel rejects the inputs with a reason
    width = dtype.num_bytes if dtype not in (None, DType.RESOURCE, DType.VARIANT) else 0
    return num_elements * (width or max((array.itemsize for array in inputs), default=1))


def evaluate(
    node: Node, inputs: Sequence[Array], max_bytes: int | None = None, *, is_folded: bool = False
) -> tuple[Array, ...]:
    """Compute the outputs of one node.

    Args:
        node: node to compute; only its op and attributes are used.
        inputs: one array per data input; the kernel does not change the arrays.
        max_bytes: maximum size of an output (default: ``max_constant_bytes`` of the limits in effect).
        is_folded: True if constants replace the node, so that values that depend on the runtime are an error.

    Returns:
        One array per output, in order of ports; outputs can share memory with the inputs.

    Raises:
        UnavailableError: the op has no kernel.
        GraphError: the inputs are invalid for the op, or an output is too large.

    >>> evaluate(Node("sum", "Add"), [np.float32([1, 2]), np.float32(0.5)])
    (array([1.5, 2.5], dtype=float32),)
    """
    function = KERNELS.get(node.op)
    if function is None:
        raise UnavailableError(
            f"node {node.name!r}: the NumPy runtime has no kernel for {node.op}",
            hint="run the graph in TensorFlow: --runtime tensorflow, or --evaluate-with tensorflow when folding",
        )
    check_size(f"node {node.name!r} ({node.op}) computes", output_bytes(node, inputs), max_bytes)

    def compute() -> tuple[Array, ...]:
        try:
            return _cast_outputs(node, function(node, *inputs))
        except KERNEL_ERRORS as error:
            with suppress(GraphError):  # the node lacks the attribute with the number of inputs
                if len(inputs) != len(input_dtypes(node)):
                    raise ValueError(f"{node.op} does not have {len(inputs)} inputs") from error
            raise

    return run_kernel(node, inputs, compute, is_folded=is_folded)


def _cast_outputs(node: Node, result: Array | tuple[Array, ...]) -> tuple[Array, ...]:
    """Cast outputs to the types of the node's signature; NumPy's promotion can differ."""
    outputs = result if isinstance(result, tuple) else (result,)
    return tuple(
        array if dtype is None or dtype is DType.STRING else np.asarray(array).astype(dtype.numpy, copy=False)
        for array, dtype in zip(outputs, output_dtypes(node), strict=True)
    )
