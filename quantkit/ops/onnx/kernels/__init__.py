"""NumPy kernels of ONNX ops, for constant folding, shape inference and the NumPy runtime."""

from quantkit.ops.onnx.kernels import elementwise, movement, neural, reductions
from quantkit.ops.onnx.kernels.registry import KERNELS, Call, evaluate, has_kernel, kernel

__all__ = [
    "KERNELS",
    "Call",
    "elementwise",
    "evaluate",
    "has_kernel",
    "kernel",
    "movement",
    "neural",
    "reductions",
]
