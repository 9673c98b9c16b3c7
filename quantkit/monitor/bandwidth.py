"""Second worker with a known amount of work: a copy of memory, timed during a job and alone.

Without hardware counters, a processor that computes looks like a processor that is stalled by the memory. A copy
during the job separates both: it becomes slower only if the job and the copy share the bandwidth of the memory.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Any

# More than the last-level caches of current processors.
_BYTES = 128 << 20
# Fraction of the time in which the copies run, so that they change the job little.
_DUTY = 0.1
_MIN_COPIES = 3
# Rate during the job divided by the rate alone, below which both share the bandwidth.
MAX_SHARED = 0.7


@dataclass(frozen=True)
class MemoryProbe:
    """Rates of a copy in bytes per second of CPU time; reading and writing count.

    Attributes:
        during: rate during the job.
        alone: rate without the job.
    """

    during: float
    alone: float

    @property
    def is_shared(self) -> bool:
        """True if the job and the copy share the bandwidth of the memory."""
        return self.during < MAX_SHARED * self.alone

    def __str__(self) -> str:
        rates = f"{self.during / 1e9:.1f} GB/s during the job, {self.alone / 1e9:.1f} GB/s alone"
        return f"a second worker copies memory at {self.during / self.alone:.2f}x its rate ({rates})"

    def to_json(self) -> dict[str, Any]:
        """Return the rates as JSON values."""
        return {"during": self.during, "alone": self.alone, "is_shared": self.is_shared}


class Copies:
    """Copies of memory in another process, until `end`."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", __name__]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout
        self._rates: list[float] = []

    def take(self, count: int) -> None:
        """Block until a number of copies ended."""
        self._rates += [float(line) for line in islice(self._output, count)]

    def end(self) -> float | None:
        """End the copies, and return the median rate of their second half; None if there are too few.

        The first copies run during the start of the job.
        """
        self._process.kill()
        self._rates += [float(line) for line in self._output.read().split(b"\n")[:-1]]
        self._process.wait()
        self._output.close()
        later = self._rates[len(self._rates) // 2 :]
        return median(later) if len(later) >= _MIN_COPIES else None


def probe_memory(run: Callable[[], object]) -> MemoryProbe | None:
    """Time copies of memory during a job and alone; None if the job ends after too few copies.

    Args:
        run: function that runs the job.
    """
    copies = Copies()
    try:
        run()
    finally:
        during = copies.end()
    if during is None:
        return None
    copies = Copies()
    copies.take(2 * _MIN_COPIES)
    alone = copies.end()
    return MemoryProbe(during, alone) if alone else None


def _run() -> None:
    """Write the rate of one copy after another; a full pipe ends the copies of a long job."""
    import numpy as np

    source = np.ones(_BYTES // 8)
    target = np.zeros_like(source)
    while True:
        start = time.thread_time()
        np.copyto(target, source)
        seconds = time.thread_time() - start
        sys.stdout.write(f"{2 * _BYTES / max(seconds, 1e-9)}\n")
        sys.stdout.flush()
        time.sleep(seconds * (1 / _DUTY - 1))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt, BrokenPipeError):
        _run()
