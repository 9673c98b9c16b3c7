"""Raw values of one moment of a job: cumulative counters, gauges and the activities of the threads.

Counters only increase, so the difference of two samples is exact for the time between them, also after the samples in
between are dropped.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

# Activities of a thread, from its state and the kernel function in which it is blocked.
RUNNING, DISK, NETWORK, PIPE, LOCK, SLEEP, CHILD, EVENTS, OTHER = (
    *("running", "disk", "network", "pipe", "lock", "sleep", "child process", "events", "other"),
)


@dataclass(frozen=True)
class CpuTimes:
    """Cumulative seconds of one core."""

    user: float
    system: float
    idle: float
    iowait: float = 0.0
    steal: float = 0.0

    @property
    def total(self) -> float:
        return self.user + self.system + self.idle + self.iowait + self.steal


@dataclass(frozen=True)
class GpuSample:
    """Gauges of one GPU; None for a value that the GPU or its driver does not report.

    Attributes:
        name: product name.
        utilization: fraction of the last period in which any kernel ran.
        sm_utilization: fraction of the streaming multiprocessors that were busy (GPM).
        sm_occupancy: fraction of the warps that were resident (GPM).
        dram_utilization: fraction of the memory bandwidth in use (GPM).
        memory_used, memory_total: bytes.
        pcie_received, pcie_sent: bytes per second, as seen from the GPU.
        pcie_limit: bytes per second of the link in one direction.
        clock: SM clock in MHz.
        power: watts.
    """

    name: str
    utilization: float | None = None
    sm_utilization: float | None = None
    sm_occupancy: float | None = None
    dram_utilization: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    pcie_received: float | None = None
    pcie_sent: float | None = None
    pcie_limit: float | None = None
    clock: int | None = None
    power: float | None = None


@dataclass(frozen=True)
class ThreadSample:
    """Counters of one thread of the job.

    Attributes:
        pid, tid: process and thread.
        name: name that the kernel shows.
        user, system: cumulative CPU seconds.
        queued: cumulative seconds in the run queue without a core; None if the kernel does not report it.
        minor_faults, major_faults: cumulative page faults, without and with disk access.
        voluntary, involuntary: cumulative context switches.
        activities: number of ticks in each activity since the previous sample.
    """

    pid: int
    tid: int
    name: str
    user: float
    system: float
    queued: float | None = None
    minor_faults: int = 0
    major_faults: int = 0
    voluntary: int = 0
    involuntary: int = 0
    activities: Mapping[str, int] = field(default_factory=dict)

    @property
    def cpu(self) -> float:
        return self.user + self.system


@dataclass(frozen=True)
class SystemSample:
    """Counters and gauges of the host.

    Attributes:
        cores: cumulative times of each core.
        memory_used, memory_available: bytes.
        swapped_in, swapped_out: cumulative bytes.
        disk_read, disk_written, network_received, network_sent: cumulative bytes.
    """

    cores: tuple[CpuTimes, ...]
    memory_used: int
    memory_available: int
    swapped_in: int = 0
    swapped_out: int = 0
    disk_read: int = 0
    disk_written: int = 0
    network_received: int = 0
    network_sent: int = 0


@dataclass(frozen=True)
class JobSample:
    """State of the host and of the job.

    Attributes:
        seconds: monotonic clock.
        system: counters of the host.
        threads: counters of the threads of the job that are alive.
        activities: number of ticks in each activity of the whole job since the previous sample.
        resident: memory of the job in bytes.
        read, written: cumulative bytes between the job and the disk.
        throttled: cumulative seconds in which the CPU quota of the job's control group was exhausted; None if unknown.
        gpus: gauges of the GPUs.
    """

    seconds: float
    system: SystemSample
    threads: tuple[ThreadSample, ...] = ()
    activities: Mapping[str, int] = field(default_factory=dict)
    resident: int = 0
    read: int = 0
    written: int = 0
    throttled: float | None = None
    gpus: tuple[GpuSample, ...] = ()
