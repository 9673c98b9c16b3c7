"""What a graph is, in numbers and words."""

from quantkit.summary.summary import Summary, is_eight_bit, summarize, with_batch_one

__all__ = ["Summary", "is_eight_bit", "summarize", "with_batch_one"]
