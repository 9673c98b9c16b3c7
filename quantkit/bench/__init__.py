"""The latency lab: models and engines measured side by side."""

from quantkit.bench.report import Benchmark
from quantkit.bench.rounds import Interrupted
from quantkit.bench.side_by_side import benchmark

__all__ = ["Benchmark", "Interrupted", "benchmark"]
