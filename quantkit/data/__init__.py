"""Data that a command line names."""

from quantkit.data.discovery import KINDS, find_data, pictures_of
from quantkit.data.samples import Data, Sample

__all__ = ["KINDS", "Data", "Sample", "find_data", "pictures_of"]
