"""Verdict on a quantized model: precision, size, accuracy and latency compared with the float model."""

from quantkit.quantization.report.report import (
    AccuracyReport,
    Latency,
    NextStep,
    QuantizationReport,
    RuntimeLatency,
)

__all__ = ["AccuracyReport", "Latency", "NextStep", "QuantizationReport", "RuntimeLatency"]
