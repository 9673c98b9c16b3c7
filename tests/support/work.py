"""Work of a function as the number of executed lines: unlike run time, the same on every machine."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def count_lines(function: Callable[[], object]) -> int:
    """Count the lines of Python that a call executes, in each iteration of loops; C code is not counted."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def check_work_is_linear(work: Callable[[int], Callable[[], object]], small: int) -> None:
    """Check that eight times the size takes less than ten times the work.

    Args:
        work: returns the counted function for a size.
        small: smaller size.
    """
    few, many = (count_lines(work(size)) for size in (small, 8 * small))
    assert many < 10 * few, f"{few} lines at {small}, {many} at {8 * small}"
