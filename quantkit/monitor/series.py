"""Time series of a monitored job: one value of each metric for each sample."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any

from quantkit.monitor.sample import CpuTimes, JobSample


@dataclass(frozen=True)
class Metric:
    """Values of related quantities over the time.

    Attributes:
        title: name of the metric.
        measure: symbol of the values: ``%``, ``% of the time``, ``MB``, ``MB/s``, ``1/s`` or empty.
        values: values of each quantity by name; None where a value is not available.
        is_whole: the quantities are the parts of a whole.
    """

    title: str
    measure: str
    values: Mapping[str, tuple[float | None, ...]]
    is_whole: bool = False


@dataclass(frozen=True)
class Series:
    """All metrics of a job.

    Attributes:
        seconds: time of each value since the start.
        metrics: metrics.
    """

    seconds: tuple[float, ...]
    metrics: tuple[Metric, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the series as JSON values."""
        metrics = [
            {"title": metric.title, "measure": metric.measure, "values": {k: list(v) for k, v in metric.values.items()}}
            for metric in self.metrics
        ]
        return {"seconds": list(self.seconds), "metrics": metrics}


Pairs = Sequence[tuple[JobSample, JobSample]]
# Counters whose increase per second is shown, divided by a factor: title, measure, factor, and attribute of a sample by
# name; an attribute of the threads is summed over them.
Rates = tuple[str, str, float, Mapping[str, str]]
CPU_OF_JOB: Rates = ("CPU of the job", "cores", 1.0, {"user": "threads.user", "system": "threads.system"})
COUNTERS: tuple[Rates, ...] = (
    (
        *("page faults of the job", "1/s", 1.0),
        {"without disk access": "threads.minor_faults", "with disk access": "threads.major_faults"},
    ),
    (
        *("disk", "MB/s", 1e6),
        {
            "job, read": "read",
            "job, written": "written",
            "host, read": "system.disk_read",
            "host, written": "system.disk_written",
        },
    ),
    (
        *("network of the host", "MB/s", 1e6),
        {"received": "system.network_received", "sent": "system.network_sent"},
    ),
)
MEMORY: Mapping[str, str] = {"job": "resident", "host": "system.memory_used"}
# Gauges of a GPU: title after its number, measure, factor, attribute of its sample by name.
GAUGES: tuple[Rates, ...] = (
    (
        *("", "%", 100),
        {
            "utilization": "utilization",
            "SM utilization": "sm_utilization",
            "SM occupancy": "sm_occupancy",
            "memory bandwidth": "dram_utilization",
        },
    ),
    (", memory", "MB", 1e-6, {"used": "memory_used"}),
    (", PCIe", "MB/s", 1e-6, {"received": "pcie_received", "sent": "pcie_sent"}),
    (", clock", "MHz", 1, {"SM": "clock"}),
    (", power", "W", 1, {"power": "power"}),
)


def make_series(samples: Sequence[JobSample]) -> Series:
    """Return the time series of samples in order."""
    pairs = list(pairwise(samples))
    if len(pairs) > 1 and not pairs[-1][1].threads:
        pairs.pop()  # the job had ended
    memory = {name: tuple(round(_value(after, path) / 1e6, 3) for _, after in pairs) for name, path in MEMORY.items()}
    metrics = (
        Metric("CPU, all cores", "%", _host_cpu(pairs)),
        *_cores(pairs),
        _rates(pairs, CPU_OF_JOB),
        Metric("run states of the job", "% of the time", _activities(pairs), is_whole=True),
        Metric("memory", "MB", memory),
        *(_rates(pairs, counters) for counters in COUNTERS),
        *_gpus(pairs),
    )
    start = samples[0].seconds if samples else 0.0
    return Series(tuple(round(after.seconds - start, 3) for _, after in pairs), metrics)


def _value(sample: JobSample, path: str) -> float:
    """Return an attribute of a sample by its path."""
    owner, _, name = path.partition(".")
    if owner == "threads":
        return float(sum(getattr(thread, name) for thread in sample.threads))
    value: float = attrgetter(path)(sample)
    return value


def _rates(pairs: Pairs, rates: Rates) -> Metric:
    """Return the increase of counters per second."""
    title, measure, factor, paths = rates

    def increase(path: str, before: JobSample, after: JobSample) -> float:
        seconds = max(after.seconds - before.seconds, 1e-9)
        return round(max(_value(after, path) - _value(before, path), 0.0) / seconds / factor, 3)

    return Metric(
        title, measure, {name: tuple(increase(path, *pair) for pair in pairs) for name, path in paths.items()}
    )


def _host_cpu(pairs: Pairs) -> dict[str, tuple[float | None, ...]]:
    return {
        name: tuple(_percent(before.system.cores, after.system.cores, name) for before, after in pairs)
        for name in CPU_STATES
    }


CPU_STATES = ("user", "system", "iowait", "idle", "steal")


def _cores(pairs: Pairs) -> list[Metric]:
    """Return a metric of each core."""
    count = len(pairs[0][1].system.cores) if pairs else 0
    return [
        Metric(
            f"core {core}",
            "%",
            {
                name: tuple(
                    _percent(before.system.cores[core : core + 1], after.system.cores[core : core + 1], name)
                    for before, after in pairs
                )
                for name in CPU_STATES
            },
        )
        for core in range(count)
    ]


def _percent(before: Sequence[CpuTimes], after: Sequence[CpuTimes], name: str) -> float:
    total = sum(times.total for times in after) - sum(times.total for times in before)
    value = sum(getattr(times, name) for times in after) - sum(getattr(times, name) for times in before)
    return round(100 * max(value, 0.0) / total, 1) if total > 0 else 0.0


def _activities(pairs: Pairs) -> dict[str, tuple[float | None, ...]]:
    names = sorted({name for _, sample in pairs for name in sample.activities})
    totals = [sum(sample.activities.values()) for _, sample in pairs]
    return {
        name: tuple(
            round(100 * sample.activities.get(name, 0) / total, 1) if total else None
            for (_, sample), total in zip(pairs, totals, strict=True)
        )
        for name in names
    }


def _gpus(pairs: Pairs) -> list[Metric]:
    """Return the metrics of each GPU."""
    count = max((len(sample.gpus) for _, sample in pairs), default=0)
    return [metric for index in range(count) for metric in _gpu(pairs, index)]


def _gpu(pairs: Pairs, index: int) -> list[Metric]:
    gpus = [sample.gpus[index] if index < len(sample.gpus) else None for _, sample in pairs]

    def gauge(name: str, scale: float) -> tuple[float | None, ...]:
        values: list[Any] = [getattr(gpu, name, None) for gpu in gpus]
        return tuple(None if value is None else round(value * scale, 3) for value in values)

    return [
        Metric(f"GPU {index}{title}", measure, {name: gauge(path, scale) for name, path in paths.items()})
        for title, measure, scale, paths in GAUGES
    ]
