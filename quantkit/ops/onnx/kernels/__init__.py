"""NumPy kernels of ONNX ops, for constant folding, shape inference and the NumPy runtime."""

from quantkit.ops.onnx.kernels.registry import KERNELS, Call, evaluate, has_kernel, kernel
from quantkit.registry import import_modules

__all__ = ["KERNELS", "Call", "evaluate", "has_kernel", "kernel"]

import_modules(__name__)
