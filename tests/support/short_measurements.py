"""Limits of measurements in tests, in which the measured times do not matter."""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

# Module, name and value of each limit.
LIMITS = (
    # Calls of a traced model, for the time of its layers.
    ("quantkit.benchmark.profiling.tracing", "MAX_PAIRS", 3),
    # Latency after a quantization, in seconds.
    ("quantkit.quantization.workflow.latency", "PROCESS_SECONDS", 0.05),
    ("quantkit.quantization.workflow.latency", "WARMUP_SECONDS", 0.2),
    ("quantkit.quantization.workflow.latency", "CALL_SECONDS", 0.2),
    ("quantkit.quantization.workflow.latency", "FURTHER_BUDGET", 0.2),
    # Last measurement of `optimize`, in seconds.
    ("quantkit.optimize.search", "LAST_SECONDS", 1.0),
)


def shorten_measurements(set_attribute: Callable[[object, str, object], None] = setattr) -> None:
    """Set the limits in this process."""
    for module, name, value in LIMITS:
        set_attribute(import_module(module), name, value)
    search = import_module("quantkit.optimize.search")
    stages = {key: replace(each, process_seconds=0.05, warmup_seconds=0.2) for key, each in search.STAGES.items()}
    set_attribute(search, "STAGES", stages)
