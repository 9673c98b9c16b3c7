"""The plan of a float graph: int8 nodes, quantized edges, number formats, and the reasons of float fallbacks."""

from quantkit.quantization.annotation.annotation import annotate
from quantkit.quantization.annotation.target_graph import TargetGraph, in_target_dialect

__all__ = ["TargetGraph", "annotate", "in_target_dialect"]
