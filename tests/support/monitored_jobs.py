"""Scripted jobs for the monitor: files of ``/proc``, counters of the host, GPUs, marks, calls and a clock."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from quantkit.monitor.agent import LIBRARY_FILES
from quantkit.monitor.calls import read_calls
from quantkit.monitor.counters import HardwareCounters, parse_counters
from quantkit.monitor.facts import JobFacts, gather_facts
from quantkit.monitor.gpu import GpuReader
from quantkit.monitor.markers import RECORD
from quantkit.monitor.processes import ProcessReader
from quantkit.monitor.recorder import Recorder
from quantkit.monitor.steps import read_steps

PID = 100
TICK = 0.05
TICKS = 41
TICKS_PER_SAMPLE = 10
RUN = ("R", "0")
FUTEX = ("S", "futex_do_wait")


@dataclass
class ScriptedThread:
    """Thread with a repeated sequence of states.

    Attributes:
        states: state letter and kernel function at each tick.
        user, system, queued: seconds per tick.
        minor, major: page faults per tick.
        wakes: voluntary context switches per tick.
        name, pid: name of the thread, and its process.
    """

    states: Sequence[tuple[str, str]]
    user: float = 0.0
    system: float = 0.0
    queued: float = 0.0
    minor: int = 0
    major: int = 0
    wakes: int = 1
    name: str = "job"
    pid: int = PID


@dataclass
class ScriptedJob:
    """Job, and the verdict that its monitor must reach.

    Attributes:
        verdict, cause: expected verdict.
        threads: threads by number.
        rates: increase per second of the counters of the host: swap, disk reads and writes of the job, other CPU.
        gpu: gauges of the GPU, for `ScriptedNvml`; None without a GPU.
        calls: is_main, number of samples, frames from the innermost one, and its source line.
        marks: kind of each mark, and the seconds before it.
        counters: output of ``perf stat``.
        cores: cores that the job may use.
        memory: used fraction of the memory.
        throttled: fraction of the time in which the quota is exhausted.
    """

    verdict: str
    cause: str
    threads: Mapping[int, ScriptedThread]
    rates: Mapping[str, float] = field(default_factory=dict)
    gpu: Mapping[str, float | None] | None = None
    calls: Sequence[tuple[bool, int, Sequence[tuple[str, str]], str]] = ()
    marks: Sequence[tuple[bytes, float]] = ()
    counters: str = ""
    cores: float = 4.0
    memory: float = 0.3
    throttled: float = 0.0


class ScriptedNvml:
    """Interface of ``pynvml`` with one GPU.

    Args:
        gauges: ``utilization``, ``sm``, ``dram``, ``pcie`` (bytes per second); a missing one is not supported.
    """

    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES, NVML_CLOCK_SM = 0, 1, 1
    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_GPM_METRIC_SM_UTIL, NVML_GPM_METRIC_SM_OCCUPANCY, NVML_GPM_METRIC_DRAM_BW_UTIL = 2, 3, 10
    NVML_GPM_METRIC_PCIE_TX_PER_SEC, NVML_GPM_METRIC_PCIE_RX_PER_SEC = 20, 21

    class NVMLError(Exception):
        """Error of the driver."""

    def __init__(self, gauges: Mapping[str, float | None]) -> None:
        self.gauges = gauges
        self.open_samples = 0
        self.is_open = False

    def nvmlInit(self) -> None:
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"gpu{index}"

    def nvmlDeviceGetName(self, handle: str) -> bytes:
        return b"Scripted GPU"

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: str) -> int:
        return 4

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: str) -> int:
        return 16

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        return SimpleNamespace(gpu=round(100 * self._gauge("utilization")))

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(used=1 << 30, total=8 << 30)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 71_000

    def nvmlDeviceGetClockInfo(self, handle: str, clock: int) -> int:
        return 1500

    def nvmlDeviceGetPcieThroughput(self, handle: str, counter: int) -> float:
        return self._gauge("pcie") / 1e3

    def nvmlGpmQueryDeviceSupport(self, handle: str) -> Any:
        return SimpleNamespace(isSupportedDevice="sm" in self.gauges)

    def nvmlGpmSampleAlloc(self) -> object:
        self.open_samples += 1
        return object()

    def nvmlGpmSampleFree(self, sample: object) -> None:
        self.open_samples -= 1

    def nvmlGpmSampleGet(self, handle: str, sample: object) -> object:
        return sample

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        return SimpleNamespace(metrics=[SimpleNamespace(metricId=0, value=0.0, nvmlReturn=0) for _ in range(8)])

    def nvmlGpmMetricsGet(self, request: Any) -> None:
        assert request.sample1 is not request.sample2
        values = {2: ("sm", 100), 3: ("sm", 50), 10: ("dram", 100), 20: ("pcie", 2**-20), 21: ("pcie", 2**-20)}
        for metric in request.metrics[: request.numMetrics]:
            name, scale = values[metric.metricId]
            metric.nvmlReturn = 0 if self.gauges.get(name) is not None else 3
            metric.value = (self.gauges.get(name) or 0.0) * scale

    def _gauge(self, name: str) -> float:
        value = self.gauges.get(name)
        if value is None:
            raise self.NVMLError("Not Supported")
        return value


class ScriptedHost:
    """Interface of ``psutil``, and the clock.

    Args:
        job: script.
    """

    def __init__(self, job: ScriptedJob) -> None:
        self.job = job
        self.seconds = 0.0

    def clock(self) -> float:
        return self.seconds

    def cpu_times(self, percpu: bool) -> list[Any]:
        threads = self.job.threads.values()
        busy = sum(thread.user + thread.system for thread in threads) / TICK + self.job.rates.get("other cpu", 0.0)
        per_core = min(busy / self.job.cores, 1.0) * self.seconds
        core = SimpleNamespace(user=per_core, system=0.0, idle=self.seconds - per_core, iowait=0.0)
        return [core] * int(self.job.cores)

    def virtual_memory(self) -> Any:
        return SimpleNamespace(total=1000 << 20, available=int((1 - self.job.memory) * 1000) << 20)

    def swap_memory(self) -> Any:
        return SimpleNamespace(sin=int(self.job.rates.get("swap", 0.0) * self.seconds), sout=0)

    def disk_io_counters(self) -> None:
        return None

    def net_io_counters(self) -> Any:
        return SimpleNamespace(bytes_recv=0, bytes_sent=0)


def write_proc(root: Path, job: ScriptedJob, tick: int) -> None:
    """Write the files of ``/proc`` at one tick: the states, and at samples all counters."""
    seconds = tick * TICK
    for tid, thread in job.threads.items():
        folder = root / str(thread.pid) / "task" / str(tid)
        folder.mkdir(parents=True, exist_ok=True)
        state, function = thread.states[tick % len(thread.states)]
        user, system = (round(100 * each * tick) for each in (thread.user, thread.system))
        fields = [state, *"0" * 6, thread.minor * tick, 0, thread.major * tick, 0, user, system]
        (folder / "stat").write_text(f"{tid} ({thread.name}) {' '.join(map(str, fields))}")
        (folder / "wchan").write_text(function)
        if tick % TICKS_PER_SAMPLE:
            continue
        (folder / "schedstat").write_text(f"0 {round(thread.queued * tick * 1e9)} 0")
        (folder / "status").write_text(
            f"VmRSS:\t1024 kB\nvoluntary_ctxt_switches:\t{thread.wakes * tick}\nnonvoluntary_ctxt_switches:\t0\n"
        )
        children = {other.pid for other in job.threads.values()} - {PID} if tid == PID else set()
        (folder / "children").write_text(" ".join(map(str, children)))
        process = root / str(thread.pid)
        (process / "status").write_text("VmRSS:\t1024 kB\n")
        (process / "cgroup").write_text("0::/job\n")
        (process / "fd").mkdir(exist_ok=True)
        reads, writes = (round(job.rates.get(name, 0.0) * seconds) for name in ("read", "write"))
        (process / "io").write_text(f"read_bytes: {reads}\nwrite_bytes: {writes}\n")


def write_marks(folder: Path, marks: Sequence[tuple[bytes, float]]) -> None:
    """Write the marks of a process."""
    seconds, data = 0.0, b""
    for kind, pause in marks:
        seconds += pause
        data += RECORD.pack(kind, seconds)
    (folder / f"marks-{PID}").write_bytes(data)


def write_calls(folder: Path, calls: Sequence[tuple[bool, int, Sequence[tuple[str, str]], str]]) -> None:
    """Write the call samples of a process."""
    stacks = {}
    for number, (is_main, _, frames, text) in enumerate(calls):
        own = [[file.lstrip("/"), name, 7, text] for file, name in frames if not LIBRARY_FILES.search(file)]
        stack = {"thread": PID, "is_main": is_main, "frames": list(map(list, frames)), "text": text}
        stacks[str(number)] = {**stack, "own": own[0] if own else None}
    counts = {str(number): count for number, (_, count, _, _) in enumerate(calls)}
    record = {"seconds": 1.0, "stacks": stacks, "counts": counts}
    (folder / f"calls-{PID}").write_text(json.dumps(record) + "\n")


def run_job(job: ScriptedJob, folder: Path) -> tuple[JobFacts, Recorder]:
    """Record a scripted job, and return its facts."""
    root = folder / "proc"
    host = ScriptedHost(job)
    write_proc(root, job, 0)
    if job.gpu is not None:
        (root / str(PID) / "fd" / "7").symlink_to("/dev/nvidia0")
    if job.calls:
        write_calls(folder, job.calls)
    if job.marks:
        write_marks(folder, job.marks)
    gpus = GpuReader(ScriptedNvml(job.gpu or {}))
    groups = folder / "cgroup"
    (groups / "job").mkdir(parents=True)
    reader = ScriptedReader(PID, root, ticks_per_second=100)
    reader.groups = groups
    recorder = Recorder(host, reader, gpus, interval=TICKS_PER_SAMPLE * TICK, clock=host.clock, cost=lambda: 0.0)
    for tick in range(TICKS):
        host.seconds = tick * TICK
        write_proc(root, job, tick)
        (groups / "job" / "cpu.stat").write_text(f"throttled_usec {round(job.throttled * host.seconds * 1e6)}\n")
        recorder.tick()
    facts = gather_facts(
        recorder.samples,
        cores=job.cores,
        steps=read_steps(folder),
        calls=read_calls(folder),
        counters=parse_counters(job.counters) if job.counters else HardwareCounters({}, "not counted"),
        uses_gpu=recorder.uses_gpu,
    )
    return facts, recorder


class ScriptedReader(ProcessReader):
    """Reader whose control groups are in a folder of the test."""

    groups: Path

    def throttled_seconds(self, groups: Path | None = None) -> float | None:
        return super().throttled_seconds(groups or self.groups)
