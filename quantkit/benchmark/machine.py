"""Facts about the host: what a measurement needs to be understood later, and to be refused elsewhere."""

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

# The instruction sets that decide how fast 8-bit and 16-bit arithmetic is on x86.
ISA = (
    "avx2",
    "avx512bw",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "amx_int8",
    "amx_bf16",
)
# On Arm the same question has these answers.
ARM_ISA = ("asimd", "asimddp", "i8mm", "bf16", "sve")

# PCI vendors whose render nodes compute; NVIDIA's are found by its driver.
GPU_VENDORS = {"0x8086": "Intel", "0x1002": "AMD"}


@dataclass(frozen=True)
class Machine:
    """A host as a measurement finds it.

    Attributes:
        cpu: the processor's name.
        physical_cores: cores, or None where the system does not tell.
        logical_cores: hardware threads.
        isa: which of `ISA` and `ARM_ISA` it has.
        memory_bytes: of main memory, or None.
        cache_bytes: size of one data or unified cache, by level.
        governor: of the clock frequency, or None where unreadable (most virtual machines).
        affinity: hardware threads that this process may use.
        cpu_quota: processors' worth of time that a container grants, or None.
        gpus: names of the graphics processors that a driver shows.
        system: operating system.
        python: version.
        load: runnable processes over the last minute; it changes, and is no part of `likeness`.
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

    @property
    def likeness(self) -> Mapping[str, object]:
        """What two machines must have in common for their times to be compared."""
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
        """The machine in one line.

        >>> Machine("Xeon 6", 4, 8, ("avx2", "amx_int8"), memory_bytes=17 << 30).sentence
        'Xeon 6, 4 cores, 8 threads, avx2 amx_int8, 17 GiB'
        """
        parts = [self.cpu]
        if self.physical_cores is not None:
            parts.append(_counted(self.physical_cores, "core"))
        parts.append(_counted(self.logical_cores, "thread"))
        if self.cpu_quota is not None:
            parts.append(f"of which a container grants {self.cpu_quota:g}")
        if len(self.affinity) not in (0, self.logical_cores):
            parts.append(f"bound to {','.join(map(str, self.affinity))}")
        if self.isa:
            parts.append(" ".join(self.isa))
        if self.memory_bytes is not None:
            parts.append(f"{self.memory_bytes / 2**30:.0f} GiB")
        parts.extend(self.gpus)
        if self.load is not None:
            parts.append(f"load {self.load:g}")
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """The machine as JSON knows it."""
        return asdict(self) | {"cache_bytes": dict(self.cache_bytes)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        fields = dict(document)
        for name in ("isa", "affinity", "gpus"):
            fields[name] = tuple(fields[name])
        return cls(**fields | {"cache_bytes": tuple(fields["cache_bytes"].items())})


def this_machine(root: Path = Path("/")) -> Machine:
    """Read the facts of the host.

    Args:
        root: where ``proc`` and ``sys`` are; what is missing there becomes None or empty.
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
        governor=_read(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        affinity=tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else (),
        cpu_quota=_cpu_quota(root),
        gpus=_gpus(root),
        system=platform.platform(),
        python=platform.python_version(),
        load=_load(),
    )


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _processors(root: Path) -> list[dict[str, str]]:
    """The stanzas of ``/proc/cpuinfo`` that describe a processor."""
    text = _read(root / "proc/cpuinfo") or ""
    stanzas = [
        {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in stanza.splitlines())}
        for stanza in text.split("\n\n")
    ]
    return [stanza for stanza in stanzas if "processor" in stanza]


def _physical_cores(root: Path, logical: int) -> int | None:
    """Sets of hardware threads that share a core."""
    siblings = {
        _read(root / f"sys/devices/system/cpu/cpu{index}/topology/thread_siblings_list") for index in range(logical)
    } - {None}
    return len(siblings) or None


def _memory_bytes(root: Path) -> int | None:
    found = re.search(r"^MemTotal:\s+(\d+) kB", _read(root / "proc/meminfo") or "", re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _cache_bytes(root: Path) -> tuple[tuple[str, int], ...]:
    sizes: dict[str, int] = {}
    for folder in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (_read(folder / name) for name in ("level", "type", "size"))
        found = re.fullmatch(r"(\d+)([KMG]?)", size or "")
        if found and kind != "Instruction":
            sizes[f"L{level}"] = int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]]
    return tuple(sizes.items())


def _cpu_quota(root: Path) -> float | None:
    """Control groups, version 2, then 1: microseconds of time in each period."""
    quota, _, period = (_read(root / "sys/fs/cgroup/cpu.max") or "max").partition(" ")
    if quota == "max":
        quota = _read(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us") or "-1"
        period = _read(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us") or "100000"
    return int(quota) / int(period) if int(quota) > 0 else None


def _gpus(root: Path) -> tuple[str, ...]:
    names = []
    for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        found = re.search(r"^Model:\s+(.+)$", _read(path) or "", re.MULTILINE)
        names.append(found[1] if found else "NVIDIA GPU")
    # Containers often show the device nodes and hide the driver's pages.
    names = names or ["NVIDIA GPU" for _ in (root / "dev").glob("nvidia[0-9]*")]
    for path in sorted((root / "sys/class/drm").glob("renderD*/device/vendor")):
        vendor = GPU_VENDORS.get(_read(path) or "")
        names += [f"{vendor} GPU"] if vendor else []
    return tuple(names)


def _load() -> float | None:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
