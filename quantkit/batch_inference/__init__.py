"""Batch inference: a model on a dataset, shard by shard, on several processes, GPUs or machines."""

from quantkit.batch_inference.report import BatchInference
from quantkit.batch_inference.results import FORMATS
from quantkit.batch_inference.rows import ROWS
from quantkit.batch_inference.simulation import MeasuredParts, simulate_run
from quantkit.batch_inference.workflow import run

__all__ = ["FORMATS", "ROWS", "BatchInference", "MeasuredParts", "run", "simulate_run"]
