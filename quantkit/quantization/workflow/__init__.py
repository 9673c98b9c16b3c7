"""Quantize a model: prepare, plan, calibrate, search, convert, check, measure.

result = quantize("inception_v3", "calibration_images/", target="onnx", max_drop=0.01)
result.save("inception_v3.int8.onnx")
"""

from quantkit.quantization.workflow.result import QuantizationResult
from quantkit.quantization.workflow.verb import quantize

__all__ = ["QuantizationResult", "quantize"]
