"""Graphs of one dialect as graphs of another; pure, and without any engine."""

from quantkit.dialects.tensorflow_to_onnx import convert, translate
from quantkit.dialects.translator import Translation

__all__ = ["Translation", "convert", "translate"]
