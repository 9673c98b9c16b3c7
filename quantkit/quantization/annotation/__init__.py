"""The plan of a float graph: int8 nodes, quantized edges, number formats, and the reasons of float fallbacks."""

from quantkit.quantization.annotation.annotation import annotate

__all__ = ["annotate"]
