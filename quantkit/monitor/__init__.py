"""Monitor of jobs: verdict on the bottleneck, its evidence, and marks for the steps of a job."""

from typing import TYPE_CHECKING, Any

from quantkit.monitor.markers import batches, step

if TYPE_CHECKING:
    from quantkit.monitor.report import Monitoring
    from quantkit.monitor.workflow import monitor

__all__ = ["Monitoring", "batches", "monitor", "step"]

# A job imports this package for its marks: the monitor itself is imported on first use.
_MODULES = {"Monitoring": "report", "monitor": "workflow"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'quantkit.monitor' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"quantkit.monitor.{_MODULES[name]}"), name)
