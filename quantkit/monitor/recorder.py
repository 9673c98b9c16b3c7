"""Sampling of a job: ticks of the thread states, and samples of all counters, at a bounded cost."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from time import monotonic, process_time
from typing import Any

from quantkit.monitor.gpu import GpuReader
from quantkit.monitor.processes import ProcessReader
from quantkit.monitor.sample import JobSample, ThreadSample
from quantkit.monitor.system import read_system

TICK_SECONDS = 0.05
SAMPLE_SECONDS = 0.5
# Maximum fraction of one core that the monitor uses.
BUDGET = 0.005
MAX_SAMPLES = 1200


class Recorder:
    """Samples of one job.

    Args:
        psutil: package psutil.
        processes: reader of the job.
        gpus: reader of the GPUs.
        interval: seconds between two samples.
        clock: monotonic clock in seconds.
        cost: CPU clock of the monitor in seconds.
    """

    def __init__(
        self,
        psutil: Any,
        processes: ProcessReader,
        gpus: GpuReader,
        interval: float = SAMPLE_SECONDS,
        clock: Callable[[], float] = monotonic,
        cost: Callable[[], float] = process_time,
    ) -> None:
        self._psutil, self._processes, self._gpus = psutil, processes, gpus
        self._interval, self._clock, self._cost = interval, clock, cost
        self._start, self._start_cost = clock(), cost()
        self._next_sample = self._start
        self._tick_seconds = min(TICK_SECONDS, interval)
        self.samples: list[JobSample] = []
        self.uses_gpu = False

    @property
    def overhead(self) -> float:
        """CPU time of the monitor, as a fraction of the elapsed time."""
        elapsed = self._clock() - self._start
        return (self._cost() - self._start_cost) / elapsed if elapsed else 0.0

    @property
    def next_delay(self) -> float:
        """Seconds until the next tick: longer if the ticks exceed the budget of CPU time."""
        if self.overhead > BUDGET and len(self.samples) > 2:
            self._tick_seconds = min(self._tick_seconds * 1.2, self._interval)
        elif self.overhead < BUDGET / 2:
            self._tick_seconds = max(self._tick_seconds / 1.2, min(TICK_SECONDS, self._interval))
        return self._tick_seconds

    def tick(self) -> JobSample | None:
        """Read the thread states, and all counters when a sample is due; return the new sample."""
        self._processes.tick()
        if self._clock() < self._next_sample:
            return None
        self._next_sample = self._clock() + self._interval
        return self.sample()

    def sample(self) -> JobSample:
        """Read all counters."""
        reader = self._processes
        reader.find_threads()
        activities = dict(reader.activities)
        read, written = reader.disk()
        self.uses_gpu = self.uses_gpu or bool(not self._gpus.missing and reader.uses_gpu())
        sample = JobSample(
            seconds=self._clock(),
            system=read_system(self._psutil),
            threads=reader.sample(),
            activities=activities,
            resident=reader.memory(),
            read=read,
            written=written,
            throttled=reader.throttled_seconds(),
            gpus=self._gpus.read(),
        )
        self.samples.append(sample)
        if len(self.samples) > MAX_SAMPLES:
            self.samples = merge_pairs(self.samples)
            self._interval *= 2
        return sample


def merge_pairs(samples: list[JobSample]) -> list[JobSample]:
    """Return every second sample, with the activities of the samples that are dropped; the first one stays."""
    merged = [samples[0]]
    for index in range(2, len(samples), 2):
        first, second = samples[index - 1], samples[index]
        activities = {thread.tid: thread.activities for thread in first.threads}
        threads = tuple(_add_activities(thread, activities.get(thread.tid, {})) for thread in second.threads)
        counts = dict(Counter(first.activities) + Counter(second.activities))
        merged.append(replace(second, threads=threads, activities=counts))
    return merged if len(samples) % 2 else [*merged, samples[-1]]


def _add_activities(thread: ThreadSample, activities: Mapping[str, int]) -> ThreadSample:
    return replace(thread, activities=dict(Counter(thread.activities) + Counter(activities)))
