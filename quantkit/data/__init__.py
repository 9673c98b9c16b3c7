"""Data that a command line names."""

from quantkit.data.data import KINDS, Data, Sample, find_data, pictures_of

__all__ = ["KINDS", "Data", "Sample", "find_data", "pictures_of"]
