"""The latency lab: models and engines measured side by side."""

from quantkit.benchmark.report import Benchmark
from quantkit.benchmark.rounds import Interrupted
from quantkit.benchmark.side_by_side import benchmark

__all__ = ["Benchmark", "Interrupted", "benchmark"]
