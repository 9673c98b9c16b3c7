"""TensorFlow's ops in NumPy, with TensorFlow's types and rounding: what folding and the reference engine run."""

from quantkit.ops.kernels import elementwise, indexing, passing, reductions, shapes
from quantkit.ops.kernels.registry import KERNELS, evaluate, has_kernel, kernel

__all__ = [
    "KERNELS",
    "elementwise",
    "evaluate",
    "has_kernel",
    "indexing",
    "kernel",
    "passing",
    "reductions",
    "shapes",
]
