"""Int8 quantization in steps, each of which returns a value that can be saved and read.

>>> plan = annotate(graph, Scheme.for_target("onnx"))  # doctest: +SKIP
>>> ranges = calibrate(graph, plan, batches)  # doctest: +SKIP
>>> quantized = convert(graph, plan, ranges)  # doctest: +SKIP

`quantkit.quantize` does all of it, with preparation, accuracy search and report; see `quantkit.quantization.workflow`.
"""

from quantkit.quantization.annotation import annotate
from quantkit.quantization.calibration import calibrate
from quantkit.quantization.conversion import convert, prepare
from quantkit.quantization.plan import FusedPattern, Plan
from quantkit.quantization.ranges import Provenance, Range, Ranges
from quantkit.quantization.scheme import Scheme
from quantkit.quantization.spec import Spec

__all__ = [
    "FusedPattern",
    "Plan",
    "Provenance",
    "Range",
    "Ranges",
    "Scheme",
    "Spec",
    "annotate",
    "calibrate",
    "convert",
    "prepare",
]
