"""Ranges of the quantized tensors: observed in runs of the float graph, or taken from quantization-aware training."""

from quantkit.quantization.calibration.calibration import (
    Batch,
    calibrate,
    choose_batch,
    choose_float_runtime,
    collect_ranges,
    estimate_memory,
    open_calibration_session,
    split_batches,
)

__all__ = [
    "Batch",
    "calibrate",
    "choose_batch",
    "choose_float_runtime",
    "collect_ranges",
    "estimate_memory",
    "open_calibration_session",
    "split_batches",
]
