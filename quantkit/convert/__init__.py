"""Graphs of one dialect as graphs of another; pure, and without any engine."""

from quantkit.convert.tensorflow_to_onnx import convert, translate
from quantkit.convert.tensorflow_to_onnx.translator import Translation

__all__ = ["Translation", "convert", "translate"]
