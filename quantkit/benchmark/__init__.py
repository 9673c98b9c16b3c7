"""Latency of models in runtimes, measured side by side."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quantkit.benchmark.profiling import Profile
    from quantkit.benchmark.profiling.verb import profile_layers
    from quantkit.benchmark.results.report import Benchmark, NotMeasuredError
    from quantkit.benchmark.sampling.rounds import BenchmarkInterrupted
    from quantkit.benchmark.workflow import benchmark

# Module of each public name, imported on first use: a worker process needs none of them.
_MODULES = {
    "Benchmark": "results.report",
    "BenchmarkInterrupted": "sampling.rounds",
    "NotMeasuredError": "results.report",
    "Profile": "profiling.profile",
    "benchmark": "workflow",
    "profile_layers": "profiling.verb",
}

__all__ = ["Benchmark", "BenchmarkInterrupted", "NotMeasuredError", "Profile", "benchmark", "profile_layers"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'quantkit.benchmark' has no attribute {name!r}")
    return getattr(import_module(f"quantkit.benchmark.{_MODULES[name]}"), name)
