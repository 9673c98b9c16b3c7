"""Input pipelines of TensorFlow: their optimization by verified rewrites."""

from quantkit.pipelines.bridge import load_dataset
from quantkit.pipelines.optimization import optimize
from quantkit.pipelines.optimization_report import OptimizationResult

__all__ = ["OptimizationResult", "load_dataset", "optimize"]
