"""Memory that this process can still allocate."""

from math import inf
from pathlib import Path

KIBIBYTE = 1024


def available_memory(root: Path = Path("/")) -> float:
    """Return the bytes that this process can allocate; infinity if unknown.

    The smallest of: the available memory of the machine, of the control group (a container), and of the address space
    (``ulimit -v``).

    Args:
        root: root folder of ``proc`` and ``sys``.
    """
    machine = _read_field(root / "proc/meminfo", "MemAvailable:")
    return min(
        inf if machine is None else machine * KIBIBYTE,
        _control_group(root / "sys/fs/cgroup"),
        _address_space(root / "proc/self"),
    )


def _control_group(folder: Path) -> float:
    """Return the rest of the memory of a control group in bytes; the kernel frees the cached files that it counts."""
    used = _read_number(folder / "memory.current", 0.0) - (_read_field(folder / "memory.stat", "inactive_file ") or 0.0)
    return _read_number(folder / "memory.max") - used


def _address_space(process: Path) -> float:
    """Return the rest of the address space of a process in bytes."""
    limit = _read_field(process / "limits", "Max address space")
    size = _read_field(process / "status", "VmSize:")
    return inf if limit is None or size is None else limit - size * KIBIBYTE


def _read_field(path: Path, name: str) -> float | None:
    """Return the number after a name at the beginning of a line; None without it, as for ``unlimited``."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    text = next((line[len(name) :] for line in lines if line.startswith(name)), "")
    number = text.split()[0] if text.strip() else ""
    return float(number) if number.isdecimal() else None


def _read_number(path: Path, default: float = inf) -> float:
    try:
        text = path.read_text().strip()
    except OSError:
        return default
    return float(text) if text.isdecimal() else default
