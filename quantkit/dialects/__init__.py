"""Graphs of one dialect as graphs of another; pure, and without any engine."""

from quantkit.dialects import sequences_to_onnx as sequences_to_onnx  # registers its handlers
from quantkit.dialects.tensorflow_to_onnx import Translation, convert, translate

__all__ = ["Translation", "convert", "translate"]
