"""How much work a function does, counted rather than timed: the same on every machine, however busy it is."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_run(function: Callable[[], object]) -> int:
    """Lines of Python that a call runs, loops and comprehensions turn by turn; what C code does inside is not seen."""
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
    """Eight times the size takes little more than eight times the work.

    Args:
        work: prepares what is counted, for a size.
        small: the smaller size.
    """
    few, many = (lines_run(work(size)) for size in (small, 8 * small))
    assert many < 10 * few, f"{few} lines at {small}, {many} at {8 * small}"
