"""NumPy kernels of TensorFlow ops, with TensorFlow's types and rounding.

Constant folding and the NumPy runtime use the kernels.
"""

from quantkit.ops.kernels import (
    convolution,
    elementwise,
    identity,
    images,
    indexing,
    neural,
    pooling,
    quantized,
    reductions,
    shapes,
    tables,
)
from quantkit.ops.kernels.registry import KERNELS, Evaluate, evaluate, has_kernel, kernel, output_bytes

__all__ = [
    "KERNELS",
    "Evaluate",
    "convolution",
    "elementwise",
    "evaluate",
    "has_kernel",
    "identity",
    "images",
    "indexing",
    "kernel",
    "neural",
    "output_bytes",
    "pooling",
    "quantized",
    "reductions",
    "shapes",
    "tables",
]
