"""Quantization parameters in ONNX models."""

from dataclasses import replace

import numpy as np

from quantkit.ir.tensor import Array, DType
from quantkit.quantization.parameters import QuantizationParameters

# Quantized types in ONNX.
ONNX_TYPES = {DType.QUINT8: DType.UINT8, DType.QINT8: DType.INT8}
# Largest quantized bias: the int32 sum needs room for the products.
MAX_BIAS = float(1 << 29)


def fit_bias(parameters: QuantizationParameters, step: float, bias: Array | None) -> QuantizationParameters:
    """Return the parameters of weights, with larger scales if the bias would not fit into 32 bits."""
    if bias is None:
        return parameters
    least = np.abs(bias) / (step * MAX_BIAS)
    return replace(
        parameters,
        scale=np.maximum(parameters.scale, least if parameters.scale.ndim else least.max()).astype(np.float32),
    )
