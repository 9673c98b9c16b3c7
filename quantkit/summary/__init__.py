"""Summary of a model before it is transformed or quantized."""

from quantkit.summary.summary import Endpoint, Summary, summarize

__all__ = ["Endpoint", "Summary", "summarize"]
