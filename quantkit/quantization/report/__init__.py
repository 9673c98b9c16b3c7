"""Verdict on a quantized model: precision, size, accuracy and latency compared with the float model."""

from quantkit.quantization.report.measurements import AccuracyReport, Latency, RuntimeLatency
from quantkit.quantization.report.report import NextStep, QuantizationReport

__all__ = ["AccuracyReport", "Latency", "NextStep", "QuantizationReport", "RuntimeLatency"]
