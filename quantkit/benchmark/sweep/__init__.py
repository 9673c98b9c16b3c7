"""Search for the fastest settings of a model in a runtime."""

from quantkit.benchmark.sweep.result import BestSettings, ModelSweep, Sweep
from quantkit.benchmark.sweep.workflow import sweep

__all__ = ["BestSettings", "ModelSweep", "Sweep", "sweep"]
