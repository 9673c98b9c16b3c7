"""CPU quota of the control groups of this process, versions 1 and 2, and the time that it took."""

from collections.abc import Iterator
from pathlib import Path

V1_FOLDERS = ("cpu", "cpu,cpuacct", "cpuacct,cpu")


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the smallest quota of the groups of this process, in CPUs; None if there is no limit.

    Args:
        root: folder that contains ``proc`` and ``sys``.
    """
    quotas = [quota for folder in _folders(root) if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def throttled_seconds(root: Path = Path("/")) -> float:
    """Return the time for which the groups of this process were stopped by a quota, since their start.

    Args:
        root: folder that contains ``proc`` and ``sys``.
    """
    return max((_throttled_seconds(folder) for folder in _folders(root)), default=0.0)


def _folders(root: Path) -> Iterator[Path]:
    """Yield the folders of the groups of this process, with their parents; without a list, those of the root group."""
    lines = (read_text(root / "proc/self/cgroup") or "").splitlines()
    paths = dict(line.split(":", 2)[1:] for line in lines if line.count(":") >= 2)
    v1_path = next((path for controllers, path in paths.items() if "cpu" in controllers.split(",")), "/")
    mount = root / "sys/fs/cgroup"
    for folder, path in ((mount, paths.get("", "/")), *((mount / name, v1_path) for name in V1_FOLDERS)):
        group = folder / path.strip("/")
        yield group
        yield from (parent for parent in group.parents if parent.is_relative_to(folder))


def _quota(folder: Path) -> float | None:
    """Return microseconds of CPU time per period of version 2, else of version 1."""
    quota, _, period = (read_text(folder / "cpu.max") or "").partition(" ")
    quota = quota or read_text(folder / "cpu.cfs_quota_us") or "max"
    period = period or read_text(folder / "cpu.cfs_period_us") or "100000"
    return int(quota) / int(period) if quota.isdecimal() and int(quota) > 0 else None


def _throttled_seconds(folder: Path) -> float:
    lines = (read_text(folder / "cpu.stat") or "").splitlines()
    facts = dict(line.split() for line in lines if len(line.split()) == 2)
    microseconds = facts.get("throttled_usec") or int(facts.get("throttled_time", 0)) / 1e3
    return float(microseconds) / 1e6


def read_text(path: Path) -> str | None:
    """Return the text of a file of the kernel; None if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return None
