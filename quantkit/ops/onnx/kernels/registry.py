"""Table of NumPy kernels of ONNX ops, with their error handling.

A kernel is a function ``(call) -> array`` or ``-> tuple of arrays``; it raises ValueError for invalid inputs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantkit.errors import UnavailableError
from quantkit.ir.graph import Node
from quantkit.ir.tensor import Array
from quantkit.limits import check_size
from quantkit.ops.kernel_errors import run_kernel
from quantkit.ops.shape_rules import Rules

# Opset that applies if the caller gives no opset.
LATEST_OPSET = 25


@dataclass(frozen=True)
class Call:
    """One evaluation of a node.

    Attributes:
        node: node to compute.
        inputs: one array per input; None for an omitted input.
        opset: version of the standard operator set.
    """

    node: Node
    inputs: Sequence[Array | None]
    opset: int

    def array(self, slot: int) -> Array:
        """Return a required input.

        Raises:
            ValueError: the input is missing.
        """
        value = self.optional(slot)
        if value is None:
            raise ValueError(f"input {slot} is missing")
        return value

    def optional(self, slot: int) -> Array | None:
        """Return an input; None if it is omitted."""
        return self.inputs[slot] if slot < len(self.inputs) else None

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute or its default."""
        return self.node.attrs.get(name, default)

    def integers(self, name: str, slot: int) -> list[int] | None:
        """Return the integers of an attribute, or of the input that replaces it in later opsets; None if absent."""
        value = self.optional(slot)
        if value is not None:
            return [int(item) for item in value.reshape(-1)]
        attr = self.node.attrs.get(name)
        return None if attr is None else [int(item) for item in (attr if isinstance(attr, tuple) else (attr,))]


Kernel = Callable[[Call], Array | tuple[Array, ...]]
# Number of elements of an output that can be larger than the inputs, before the kernel allocates it.
OutputSize = Callable[[Call], int]
KERNELS: Rules[Kernel] = Rules()
_OUTPUT_SIZES: dict[str, OutputSize] = {}


def broadcast_size(call: Call) -> int:
    """Return the number of elements of the shape that all inputs are broadcast to."""
    return math.prod(np.broadcast_shapes(*(array.shape for array in call.inputs if array is not None)))


def kernel(ops: str, output_size: OutputSize | None = None) -> Callable[[Kernel], Kernel]:
    """Register a function for op types separated by spaces.

    Args:
        ops: op types.
        output_size: number of elements of the output, if it can be larger than the inputs.

    Raises:
        ValueError: an op type already has a kernel.
    """
    if output_size is not None:
        _OUTPUT_SIZES.update(dict.fromkeys(ops.split(), output_size))
    return KERNELS.rule(ops)


def has_kernel(op: str) -> bool:
    """Return True if an ONNX op type has a NumPy kernel."""
    return op in KERNELS


def evaluate(
    node: Node, inputs: Sequence[Array | None], opset: int = LATEST_OPSET, *, is_folded: bool = False
) -> tuple[Array, ...]:
    """Compute the outputs of one node of dialect ``onnx``.

    Args:
        node: node to compute; only its op and attributes are used.
        inputs: one array per input, None for an omitted input; the kernel does not change the arrays.
        opset: version of the standard operator set.
        is_folded: True if constants replace the node, so that values that depend on the runtime are an error.

    Returns:
        One array per output; outputs can share memory with the inputs.

    Raises:
        UnavailableError: the op has no kernel.
        GraphError: the inputs are invalid for the op, or the output is too large.

    >>> evaluate(Node("sum", "Add"), [np.float32([1, 2]), np.float32(0.5)])
    (array([1.5, 2.5], dtype=float32),)
    """
    function = KERNELS.get(node.op)
    if function is None:
        raise UnavailableError(
            f"node {node.name!r}: the NumPy runtime has no kernel for the ONNX op {node.op}",
            hint="run the model in ONNX Runtime: --runtime onnxruntime",
        )
    call = Call(node, inputs, opset)

    def compute() -> Array | tuple[Array, ...]:
        if output_size := _OUTPUT_SIZES.get(node.op):
            width = max((array.itemsize for array in inputs if array is not None), default=1)
            check_size(f"node {node.name!r} ({node.op}) computes", output_size(call) * width)
        return function(call)

    return run_kernel(node, inputs, compute, is_folded=is_folded)
