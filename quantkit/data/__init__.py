"""Data for models: datasets of every kind, and the pipeline that prepares them."""

from quantkit.data.dataset import ArrayDataset, Dataset, FileDataset, Sample, StreamDataset
from quantkit.data.inference import PreprocessingOptions
from quantkit.data.pipeline import InputPipeline
from quantkit.data.preparation import Batch, InputTimes, batches, prepare_batches, prepare_samples
from quantkit.data.preprocessing import Preprocessing
from quantkit.data.sources import DATA_KINDS, as_dataset, find_images

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
    "prepare_batches",
    "prepare_samples",
]
