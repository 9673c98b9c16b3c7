"""Calibrated 8 bits: decide without data, observe, rewrite. Each stage is a value that can be saved and read."""

from quantkit.quantization.plan import Plan, Unit, annotate
from quantkit.quantization.ranges import Provenance, Range, Ranges
from quantkit.quantization.scheme import Scheme, Spec

__all__ = ["Plan", "Provenance", "Range", "Ranges", "Scheme", "Spec", "Unit", "annotate"]
