"""Input pipelines of TensorFlow: their profile, and their optimization by verified rewrites."""

from quantkit.pipelines.bridge import load_dataset
from quantkit.pipelines.optimization import optimize
from quantkit.pipelines.optimization_report import OptimizationResult
from quantkit.pipelines.profiling import PipelineProfile, profile_dataset

__all__ = ["OptimizationResult", "PipelineProfile", "load_dataset", "optimize", "profile_dataset"]
