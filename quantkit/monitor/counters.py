"""Hardware counters of a job, counted by ``perf stat`` where it is installed and allowed.

A counter that the machine does not have is reported as missing, never estimated.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

EVENTS = ("cycles", "instructions", "cache-references", "cache-misses", "stalled-cycles-backend")
# Memory-bound: the processor completes few instructions per cycle, and many of them miss the last-level cache.
MAX_MEMORY_BOUND_IPC = 1.0
MIN_MISSES_PER_1000 = 10.0
MIN_STALLED = 0.5


@dataclass(frozen=True)
class HardwareCounters:
    """Counts of a job over the monitored time.

    Attributes:
        counts: counts by event.
        missing: reason for no counts, or an empty string.
    """

    counts: Mapping[str, float]
    missing: str = ""

    @property
    def instructions_per_cycle(self) -> float | None:
        return self._ratio("instructions", "cycles")

    @property
    def misses_per_1000(self) -> float | None:
        """Misses of the last-level cache per 1000 instructions."""
        ratio = self._ratio("cache-misses", "instructions")
        return None if ratio is None else ratio * 1000

    @property
    def stalled(self) -> float | None:
        """Fraction of the cycles in which the execution was stalled."""
        return self._ratio("stalled-cycles-backend", "cycles")

    @property
    def is_memory_bound(self) -> bool:
        """True if the counters show that memory accesses limit the processor."""
        ipc, misses, stalled = self.instructions_per_cycle, self.misses_per_1000, self.stalled
        if ipc is None or misses is None or misses < MIN_MISSES_PER_1000:
            return False
        return ipc < MAX_MEMORY_BOUND_IPC or (stalled or 0.0) > MIN_STALLED

    def _ratio(self, numerator: str, denominator: str) -> float | None:
        if numerator not in self.counts or not self.counts.get(denominator):
            return None
        return self.counts[numerator] / self.counts[denominator]

    def to_json(self) -> dict[str, Any]:
        """Return the counts and their ratios."""
        return {
            "counts": dict(self.counts),
            "instructions_per_cycle": self.instructions_per_cycle,
            "misses_per_1000": self.misses_per_1000,
            "stalled": self.stalled,
            "missing": self.missing or None,
        }


def parse_counters(text: str) -> HardwareCounters:
    r"""Return the counts of the output of ``perf stat -x,``.

    >>> parse_counters("100,,cycles:u,1,100.00,,\n200,,instructions:u,1,100.00,,").counts
    {'cycles': 100.0, 'instructions': 200.0}
    """
    counts = {}
    for line in text.splitlines():
        value, _, rest = line.partition(",")
        event = rest.partition(",")[2].partition(",")[0].partition(":")[0]
        if event in EVENTS and value.replace(".", "").isdigit():
            counts[event] = float(value)
    if not {"cycles", "instructions"} <= counts.keys():
        reason = "this machine has no hardware counters (usual in virtual machines)"
        if "<not supported>" not in text:
            line = next((line for line in text.splitlines() if line.strip()), "no output")
            reason = f"perf stat: {line.strip()[:120]}"
        return HardwareCounters({}, reason)
    return HardwareCounters(counts)


class PerfStat:
    """Running ``perf stat`` of a process and its descendants.

    Args:
        pid: process.
    """

    def __init__(self, pid: int) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._perf = shutil.which("perf")
        if self._perf:
            self._process = subprocess.Popen(
                [self._perf, "stat", "-x,", "-e", ",".join(f"{event}:u" for event in EVENTS), "-p", str(pid)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, "LC_ALL": "C"},
            )

    def stop(self) -> HardwareCounters:
        """End the counting and return the counts."""
        if self._process is None:
            return HardwareCounters({}, "perf is not installed")
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)
        try:
            output = self._process.communicate(timeout=5)[1]
        except subprocess.TimeoutExpired:
            self._process.kill()
            output = self._process.communicate()[1]
        return parse_counters(output.decode(errors="replace"))

    def close(self) -> None:
        """End the counting without a result."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
