"""Interrupt of a long evaluation that keeps the finished part."""

from typing import Any


class EvaluationInterrupted(KeyboardInterrupt):
    """Ctrl-C during `classify`, `evaluate` or `compare`.

    Args:
        result: result of the samples that were finished, of the type that the function returns.
    """

    def __init__(self, result: Any) -> None:
        super().__init__("interrupted")
        self.result = result
