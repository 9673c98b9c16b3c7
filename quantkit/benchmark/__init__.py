"""Latency of models in runtimes, measured side by side."""

from quantkit.benchmark.profiling import Profile
from quantkit.benchmark.profiling.verb import profile_layers
from quantkit.benchmark.results.report import Benchmark, NotMeasuredError
from quantkit.benchmark.sampling.rounds import BenchmarkInterrupted
from quantkit.benchmark.workflow import benchmark

__all__ = ["Benchmark", "BenchmarkInterrupted", "NotMeasuredError", "Profile", "benchmark", "profile_layers"]
