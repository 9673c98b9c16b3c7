"""Progress and messages of long calls, as values that any front end can render.

A verb that may take more than two seconds accepts two callbacks:

    on_progress(Progress("calibrating", done=3, total=100))
    on_message("no preprocessing is known for this model: (x - 128) / 128 is assumed")
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """State of one stage of a long call.

    Attributes:
        stage: name of the stage in the present participle: ``calibrating``.
        done: number of finished steps.
        total: number of all steps; None if it is not known.
        step: name of the running step, for example of a transform; empty if steps have no names.
        seconds: expected duration of the stage in seconds; None if it is not known.
    """

    stage: str
    done: int
    total: int | None = None
    step: str = ""
    seconds: float | None = None

    @property
    def fraction(self) -> float | None:
        """Finished part of the stage in [0, 1]; None if the total is not known."""
        return self.done / self.total if self.total else None


OnProgress = Callable[[Progress], None]
OnMessage = Callable[[str], None]


class _Ignore:
    """Callback without effect, with its name as representation: `help` shows the defaults of a function."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, value: object) -> None:
        pass

    def __repr__(self) -> str:
        return self.__name__


# Defaults of ``on_progress``, ``on_message`` and ``on_image``.
ignore_progress = _Ignore("ignore_progress")
ignore_message = _Ignore("ignore_message")
ignore_image = _Ignore("ignore_image")
