"""NumPy kernels of TensorFlow ops, with TensorFlow's types and rounding.

Constant folding and the NumPy runtime use the kernels.
"""

from quantkit.ops.kernels.registry import KERNELS, Evaluate, evaluate, has_kernel, kernel, output_bytes
from quantkit.registry import import_modules

__all__ = ["KERNELS", "Evaluate", "evaluate", "has_kernel", "kernel", "output_bytes"]

import_modules(__name__)
