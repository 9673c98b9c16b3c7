"""State of an interrupted calibration on disk."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic

import numpy as np

from quantkit.formats.state_files import read_state, write_state
from quantkit.ir.graph import Edge
from quantkit.ir.tensor import Array
from quantkit.quantization.calibration.observation import Observation
from quantkit.quantization.observers import Observer

SAVE_SECONDS = 10.0


class CalibrationState:
    """File with the observations so far.

    Attributes:
        path: the file; None disables saving.
        observation: observations to save and restore.
    """

    def __init__(self, path: Path | None, observation: Observation) -> None:
        self.path = path
        self.observation = observation
        self._saved = monotonic()

    @property
    def _key(self) -> str:
        observation = self.observation
        plan = observation.plan
        return f"{observation.graph_digest} {plan.scheme.digest} {' '.join(map(str, plan.edges))}"

    def load(self) -> bool:
        """Restore the observations of the file, and return True.

        A damaged file, or one of another graph or scheme, is ignored.
        """
        arrays = None if self.path is None else read_state(self.path)
        if self.path is None or arrays is None or str(arrays["key"]) != self._key:
            return False
        for number, observer in enumerate(self._observers()):
            observer.restore(_with_prefix(arrays, f"{number}/"))
        self.observation.monitor.restore(_with_prefix(arrays, "monitor "))
        self._restore_means(_with_prefix(arrays, "mean "))
        self.observation.resume_after(int(arrays["count"]), str(arrays["data"]), self.path)
        return True

    def _restore_means(self, arrays: Mapping[str, Array]) -> None:
        means = self.observation.means
        if means is not None:
            for name, array in arrays.items():
                edge = Edge.parse(name)
                means.sums[edge], means.rows[edge] = array[:-1], int(array[-1])

    def save(self, *, is_last: bool = False) -> None:
        """Write the file, at most every `SAVE_SECONDS` except for the last time."""
        if self.path is None or (not is_last and monotonic() - self._saved < SAVE_SECONDS):
            return
        self._saved = monotonic()
        observation = self.observation
        arrays: dict[str, Array] = {
            f"{number}/{name}": array
            for number, observer in enumerate(self._observers())
            for name, array in observer.state().items()
        }
        if observation.means is not None:
            for edge, total in observation.means.sums.items():
                arrays[f"mean {edge.reference}"] = np.append(total, observation.means.rows[edge])
        arrays |= {f"monitor {name}": array for name, array in observation.monitor.state().items()}
        facts = {"key": self._key, "data": observation.data_digest, "count": observation.count}
        arrays.update({name: np.array(value) for name, value in facts.items()})
        write_state(self.path, arrays)

    def remove(self) -> None:
        """Remove the file."""
        if self.path is not None:
            with suppress(OSError):
                self.path.unlink()

    def _observers(self) -> list[Observer]:
        return list({id(observer): observer for observer in self.observation.observers.values()}.values())


def _with_prefix(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """Return the arrays whose names have a prefix, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
