"""Conversion of graphs between the dialects, without a runtime."""

from quantkit.convert.tensorflow_to_onnx import convert, translate
from quantkit.convert.tensorflow_to_onnx.translator import Translation

__all__ = ["Translation", "convert", "translate"]
