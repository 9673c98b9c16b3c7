"""Data for models: datasets of every kind, the pipeline that prepares them, and their packing into shards."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from quantkit.data.dataset import ArrayDataset, Dataset, FileDataset, Sample, StreamDataset
from quantkit.data.inference import PreprocessingOptions
from quantkit.data.pipeline import InputPipeline
from quantkit.data.preparation import Batch, InputTimes, batches, prepare_batches, prepare_samples
from quantkit.data.preprocessing import Preprocessing
from quantkit.data.sources import DATA_KINDS, as_dataset, find_images

if TYPE_CHECKING:
    from quantkit.data.packing import pack, verify
    from quantkit.data.profiling import profile
    from quantkit.pipelines import load_dataset, optimize

# Functions of packages that are imported on first use.
_MODULES = {
    "load_dataset": "quantkit.pipelines",
    "optimize": "quantkit.pipelines",
    "pack": "quantkit.data.packing",
    "profile": "quantkit.data.profiling",
    "verify": "quantkit.data.packing",
}

__all__ = [
    "DATA_KINDS",
    "ArrayDataset",
    "Batch",
    "Dataset",
    "FileDataset",
    "InputPipeline",
    "InputTimes",
    "Preprocessing",
    "PreprocessingOptions",
    "Sample",
    "StreamDataset",
    "as_dataset",
    "batches",
    "find_images",
    "load_dataset",
    "optimize",
    "pack",
    "prepare_batches",
    "prepare_samples",
    "profile",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'quantkit.data' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
