"""Models: the value `Model`, importers that make it, and exporters that write it."""

from quantkit.model.loading import LoadKeywords, as_model, load
from quantkit.model.model import Model

__all__ = ["LoadKeywords", "Model", "as_model", "load"]
