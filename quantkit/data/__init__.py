"""Data for models: datasets of every kind, and the pipeline that prepares them."""

from quantkit.data.dataset import ArrayDataset, Dataset, FileDataset, StreamDataset
from quantkit.data.discovery import KINDS, find_data, pictures_of
from quantkit.data.inference import PreprocessingOptions
from quantkit.data.pipeline import Batch, InputPipeline, batches, prepare_samples
from quantkit.data.preprocessing import Preprocessing
from quantkit.data.samples import Data, Sample
from quantkit.data.sources import DATA_KINDS, as_dataset, find_images

__all__ = [
    "DATA_KINDS",
    "KINDS",
    "ArrayDataset",
    "Batch",
    "Data",
    "Dataset",
    "FileDataset",
    "InputPipeline",
    "Preprocessing",
    "PreprocessingOptions",
    "Sample",
    "StreamDataset",
    "as_dataset",
    "batches",
    "find_data",
    "find_images",
    "pictures_of",
    "prepare_samples",
]
