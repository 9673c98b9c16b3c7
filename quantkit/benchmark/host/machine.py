"""Description of the host: the context of a measurement, which must not be compared with that of another host."""

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from quantkit.benchmark.host.cgroup import cpu_quota, read_text
from quantkit.cores import available_cpus

# Instruction sets that determine the speed of int8 and 16-bit arithmetic on x86, and on Arm.
ISA = (
    "avx2",
    "avx512bw",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "amx_int8",
    "amx_bf16",
)
ARM_ISA = ("asimd", "asimddp", "i8mm", "bf16", "sve")

# PCI vendors of GPUs; NVIDIA GPUs are listed by their driver.
GPU_VENDORS = {"0x8086": "Intel", "0x1002": "AMD"}


@dataclass(frozen=True)
class Machine:
    """Host of a measurement.

    Attributes:
        cpu: name of the CPU.
        physical_cores: number of cores; None if unknown.
        logical_cores: number of hardware threads.
        isa: supported instruction sets of `ISA` and `ARM_ISA`.
        memory_bytes: size of the main memory; None if unknown.
        cache_bytes: size of one data or unified cache by level.
        governor: governor of the clock frequency; None if unknown (most virtual machines).
        affinity: hardware threads that this process may use.
        cpu_quota: limit of the container in CPUs; None if there is no limit.
        gpus: names of the GPUs that a driver lists.
        gpu_driver: version of the NVIDIA driver; empty if it is unknown.
        numa_nodes: number of memory nodes; None if it is unknown.
        system: operating system.
        python: Python version.
        load: runnable processes over the last minute; it changes and is not part of `identity`.
    """

    cpu: str
    physical_cores: int | None
    logical_cores: int
    isa: tuple[str, ...] = ()
    memory_bytes: int | None = None
    cache_bytes: tuple[tuple[str, int], ...] = ()
    governor: str | None = None
    affinity: tuple[int, ...] = ()
    cpu_quota: float | None = None
    gpus: tuple[str, ...] = ()
    system: str = ""
    python: str = ""
    load: float | None = None
    gpu_driver: str = ""
    numa_nodes: int | None = None

    @property
    def has_smt(self) -> bool | None:
        """True if a core has several hardware threads; None if the number of cores is unknown."""
        return None if self.physical_cores is None else self.logical_cores > self.physical_cores

    @property
    def identity(self) -> Mapping[str, object]:
        """Facts that must be equal for latencies to be comparable."""
        return {
            "cpu": self.cpu,
            "physical cores": self.physical_cores,
            "logical cores": self.logical_cores,
            "instruction sets": self.isa,
            "cpu quota": self.cpu_quota,
            "gpus": self.gpus,
        }

    @property
    def sentence(self) -> str:
        """Description in one line.

        >>> Machine("Xeon 6", 4, 8, ("avx2", "amx_int8"), memory_bytes=17 << 30).sentence
        'Xeon 6, 4 cores, 8 threads, avx2 amx_int8, 17 GiB'
        """
        parts = [self.cpu]
        if self.physical_cores is not None:
            parts.append(_count_text(self.physical_cores, "core"))
        parts.append(_count_text(self.logical_cores, "thread"))
        if self.cpu_quota is not None:
            parts.append(f"limited to {self.cpu_quota:g} CPUs")
        if len(self.affinity) not in (0, self.logical_cores):
            parts.append(f"affinity {','.join(map(str, self.affinity))}")
        if self.isa:
            parts.append(" ".join(self.isa))
        if self.memory_bytes is not None:
            parts.append(f"{self.memory_bytes / 2**30:.0f} GiB")
        parts.extend(self.gpus)
        if self.load is not None:
            parts.append(f"load {self.load:g}")
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return the machine as a JSON document."""
        return asdict(self) | {"cache_bytes": dict(self.cache_bytes)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Return the machine of a JSON document."""
        fields = dict(document)
        for name in ("isa", "affinity", "gpus"):
            fields[name] = tuple(fields[name])
        return cls(**fields | {"cache_bytes": tuple(fields["cache_bytes"].items())})


def usable_threads(machine: Machine, cpus: tuple[int, ...] = ()) -> int:
    """Return the number of hardware threads that affinity and container leave to a process, at least 1.

    Args:
        machine: the host.
        cpus: hardware threads that the process is limited to; empty for no limit.
    """
    threads = len(cpus) or len(machine.affinity) or machine.logical_cores
    return threads if machine.cpu_quota is None else max(min(threads, int(machine.cpu_quota)), 1)


def usable_cores(machine: Machine) -> int:
    """Return the number of physical cores that affinity and container leave to a process."""
    limits = [machine.physical_cores or machine.logical_cores]
    if machine.affinity:
        limits.append(len(machine.affinity))
    if machine.cpu_quota is not None:
        limits.append(max(int(machine.cpu_quota), 1))
    return min(limits)


def default_threads(machine: Machine, cpus: tuple[int, ...] = ()) -> int:
    """Return the number of threads that runtimes create by default.

    TensorFlow, ONNX Runtime and OpenVINO create one per physical core that the affinity allows, and ignore the quota of
    a container.

    Args:
        machine: the host.
        cpus: hardware threads that the process is limited to; empty for no limit.
    """
    return usable_cores(replace(machine, affinity=cpus or machine.affinity, cpu_quota=None))


def this_machine(root: Path = Path("/")) -> Machine:
    """Return the description of this host.

    Args:
        root: folder that contains ``proc`` and ``sys``; facts without a file are empty.
    """
    processors = _processors(root)
    logical = len(processors) or os.cpu_count() or 1
    first = processors[0] if processors else {}
    flags = first.get("flags", first.get("Features", "")).split()
    return Machine(
        cpu=first.get("model name") or first.get("CPU part") or platform.processor() or platform.machine(),
        physical_cores=_physical_cores(root, logical),
        logical_cores=logical,
        isa=tuple(name for name in (*ISA, *ARM_ISA) if name in flags),
        memory_bytes=_memory_bytes(root),
        cache_bytes=_cache_bytes(root),
        governor=read_text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        affinity=available_cpus(),
        cpu_quota=cpu_quota(root),
        gpus=_gpus(root),
        system=platform.platform(),
        python=platform.python_version(),
        load=_load(),
        gpu_driver=_gpu_driver(root),
        numa_nodes=len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or None,
    )


def _count_text(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _processors(root: Path) -> list[dict[str, str]]:
    """Return the stanzas of ``/proc/cpuinfo`` that describe a processor."""
    text = read_text(root / "proc/cpuinfo") or ""
    stanzas = [
        {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in stanza.splitlines())}
        for stanza in text.split("\n\n")
    ]
    return [stanza for stanza in stanzas if "processor" in stanza]


def _physical_cores(root: Path, logical: int) -> int | None:
    """Return the number of distinct sets of sibling threads."""
    siblings = {
        read_text(root / f"sys/devices/system/cpu/cpu{index}/topology/thread_siblings_list") for index in range(logical)
    } - {None}
    return len(siblings) or None


def _memory_bytes(root: Path) -> int | None:
    total = re.search(r"^MemTotal:\s+(\d+) kB", read_text(root / "proc/meminfo") or "", re.MULTILINE)
    return int(total[1]) * 1024 if total else None


def _cache_bytes(root: Path) -> tuple[tuple[str, int], ...]:
    sizes: dict[str, int] = {}
    for folder in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (read_text(folder / name) for name in ("level", "type", "size"))
        match = re.fullmatch(r"(\d+)([KMG]?)", size or "")
        if match and kind != "Instruction":
            sizes[f"L{level}"] = int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]
    return tuple(sizes.items())


def _gpus(root: Path) -> tuple[str, ...]:
    names = []
    for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        model = re.search(r"^Model:\s+(.+)$", read_text(path) or "", re.MULTILINE)
        names.append(model[1] if model else "NVIDIA GPU")
    # Containers often contain the device nodes without the files of the driver.
    names = names or ["NVIDIA GPU" for _ in (root / "dev").glob("nvidia[0-9]*")]
    for path in sorted((root / "sys/class/drm").glob("renderD*/device/vendor")):
        vendor = GPU_VENDORS.get(read_text(path) or "")
        names += [f"{vendor} GPU"] if vendor else []
    return tuple(names)


def _gpu_driver(root: Path) -> str:
    version = re.search(
        r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)", read_text(root / "proc/driver/nvidia/version") or ""
    )
    return version[1] if version else ""


def _load() -> float | None:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
