"""What a graph is, in numbers and words."""

from quantkit.summary.summary import Summary, summarize, with_batch_one

__all__ = ["Summary", "summarize", "with_batch_one"]
